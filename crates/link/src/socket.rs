//! The sockets of a link: what is set on them, and what the kernel tells of them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::core::{DEAD_AFTER, Seen, StripeId};
use crate::stats::StripeStats;
use crate::stripe::Line;

/// Bytes that wait unsent in a socket, at most: what is there waits for this connection alone.
const NOT_SENT_BYTES: u32 = 256 << 10;

/// What stands for the congestion control of a connection over RDMA, whose card decides itself.
pub const RDMA: &str = "rdma";

/// How the sockets of a link are set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The congestion control to use where this host has it and lets us; else what the host uses.
    pub congestion: String,
    /// Size of the send buffer in bytes; `None` leaves it to the kernel, which makes it as large as needed
    /// up to `net.ipv4.tcp_wmem`.
    pub send_buffer: Option<usize>,
    /// Size of the receive buffer in bytes, likewise (`net.ipv4.tcp_rmem`).
    pub receive_buffer: Option<usize>,
    /// Marks the packets, for rules of the packet filter that must leave them alone (SO_MARK).
    pub mark: Option<u32>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            congestion: drover_tcp::BBR.to_string(),
            send_buffer: None,
            receive_buffer: None,
            mark: None,
        }
    }
}

impl SocketOptions {
    /// Sets a connected socket up. Gives what could not be done as it was asked for. On RDMA nothing of it is needed.
    pub(crate) fn apply(&self, socket: &Socket) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
        let Socket::Tcp(socket) = socket else { return Ok(notes) };
        socket.set_nodelay(true)?;
        drover_tcp::set_not_sent_low_water(socket, NOT_SENT_BYTES)?;
        drover_tcp::set_dead_peer_timeout(socket, DEAD_AFTER)?;
        let congestion = drover_tcp::best_congestion(socket, &self.congestion)?;
        if congestion != self.congestion {
            notes.push(format!(
                "congestion control is {congestion}: this host does not give {}",
                self.congestion
            ));
        }
        if let Some(bytes) = self.send_buffer {
            let given = drover_tcp::set_send_buffer(socket, bytes)?;
            notes.extend(given.is_limited.then(|| limited("send", "wmem_max", bytes, given.bytes)));
        }
        if let Some(bytes) = self.receive_buffer {
            let given = drover_tcp::set_receive_buffer(socket, bytes)?;
            notes.extend(given.is_limited.then(|| limited("receive", "rmem_max", bytes, given.bytes)));
        }
        Ok(notes)
    }
}

fn limited(which: &str, limit: &str, wanted: usize, given: usize) -> String {
    format!("{which} buffer is {} bytes, not {wanted}: net.core.{limit} is too small", given / 2)
}

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// Of TCP.
    Tcp(TcpStream),
    /// Of RDMA.
    Rdma(drover_rdma::Stream),
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Socket {
        Socket::Tcp(socket)
    }
}

impl Socket {
    /// The same connection once more.
    pub fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(socket) => socket.try_clone().map(Socket::Tcp),
            Socket::Rdma(socket) => Ok(Socket::Rdma(socket.clone())),
        }
    }

    /// How long one call may take that reads.
    pub fn set_read_timeout(&self, within: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.set_read_timeout(Some(within)),
            Socket::Rdma(socket) => {
                socket.set_read_timeout(within);
                Ok(())
            }
        }
    }

    /// The same for one that writes.
    pub fn set_write_timeout(&self, within: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.set_write_timeout(Some(within)),
            Socket::Rdma(socket) => {
                socket.set_write_timeout(within);
                Ok(())
            }
        }
    }

    /// From now on calls may take as long as they like.
    pub fn set_unlimited(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(None)?;
                socket.set_write_timeout(None)
            }
            Socket::Rdma(socket) => socket.set_unlimited(),
        }
    }

    /// Says that no more will be written. RDMA's ends with the peer, which knows by TLS that no more comes: to say so here waits for it.
    pub fn finish(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Rdma(_) => Ok(()),
        }
    }

    /// Ends both directions, for all who have the connection. It may have ended already.
    pub fn end(&self) {
        match self {
            Socket::Tcp(socket) => drop(socket.shutdown(Shutdown::Both)),
            Socket::Rdma(socket) => socket.end(),
        }
    }

    /// The shortest round trip that the kernel saw; zero if it does not tell.
    pub fn rtt_min(&self) -> Duration {
        match self {
            Socket::Tcp(socket) => drover_tcp::info(socket).map_or(Duration::ZERO, |info| info.rtt_min),
            Socket::Rdma(_) => Duration::ZERO,
        }
    }

    /// What a session's table has of it.
    pub fn line(&self) -> io::Result<Box<dyn Line>> {
        Ok(match self {
            Socket::Tcp(socket) => Box::new(TcpLine::new(socket)?),
            Socket::Rdma(socket) => Box::new(RdmaLine(socket.clone())),
        })
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(bytes),
            Socket::Rdma(socket) => socket.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Rdma(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection over RDMA, apart from its halves. No kernel counts what it does.
struct RdmaLine(drover_rdma::Stream);

impl Line for RdmaLine {
    fn kill(&self) {
        self.0.end();
    }

    fn fill(&self, stats: &mut StripeStats) {
        stats.congestion = RDMA.to_string();
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.0.addresses()
    }

    fn is_rdma(&self) -> bool {
        true
    }
}

/// A TCP connection, apart from its halves.
struct TcpLine {
    socket: TcpStream,
    addresses: Option<(SocketAddr, SocketAddr)>,
}

impl TcpLine {
    fn new(socket: &TcpStream) -> io::Result<TcpLine> {
        let addresses = socket.local_addr().and_then(|local| Ok((local, socket.peer_addr()?))).ok();
        Ok(TcpLine { socket: socket.try_clone()?, addresses })
    }
}

impl Line for TcpLine {
    fn kill(&self) {
        // It may have ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn fill(&self, stats: &mut StripeStats) {
        stats.congestion = drover_tcp::congestion(&self.socket).unwrap_or_default();
        let Ok(info) = drover_tcp::info(&self.socket) else { return };
        let known = |time: Duration| (!time.is_zero()).then_some(time);
        stats.rtt = known(info.rtt).or(stats.rtt);
        stats.rtt_min = known(info.rtt_min);
        stats.line_bytes_sent = info.bytes_sent;
        stats.line_bytes_again = info.bytes_again;
        stats.busy = [info.busy, info.limited_by_window, info.limited_by_buffer];
    }

    fn seen(&self, id: StripeId) -> Option<Seen> {
        let info = drover_tcp::info(&self.socket).ok()?;
        Some(Seen {
            id,
            delivered: u64::from(info.segments_delivered) * u64::from(info.segment_bytes),
            sent: info.bytes_sent,
            again: info.bytes_again,
            rtt: info.rtt,
            rtt_min: info.rtt_min,
        })
    }

    fn hold_to(&self, bytes_per_second: Option<u64>) {
        // A connection that has just ended needs no pace.
        let _ = drover_tcp::set_pacing_rate_max(&self.socket, bytes_per_second.unwrap_or(u64::MAX));
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.addresses
    }
}
