//! What is set on the sockets of a link, and what the kernel tells of them.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::core::{DEAD_AFTER, Seen, StripeId};
use crate::stats::StripeStats;
use crate::stripe::Line;

/// Bytes that wait unsent in a socket, at most: what is there waits for this connection alone.
const NOT_SENT_BYTES: u32 = 256 << 10;

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
    /// Sets a connected socket up. Gives what could not be done as it was asked for.
    pub fn apply(&self, socket: &TcpStream) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
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

/// A TCP connection, apart from its halves.
pub struct TcpLine {
    socket: TcpStream,
    addresses: Option<(SocketAddr, SocketAddr)>,
}

impl TcpLine {
    pub fn new(socket: &TcpStream) -> io::Result<TcpLine> {
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
