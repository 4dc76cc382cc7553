use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, sendmsg, sockopt};
use rustls::ServerConfig;

use crate::tls::Tls;

/// Room asked for what we send over a Unix socket, where the default is 208 KiB. For TCP the kernel
/// finds the right size itself, and would stop doing so if we set one.
const UNIX_SEND_BYTES: usize = 2 << 20;

/// Parts of one call; Linux takes no more.
const PARTS_MAX: usize = 1024;

/// A client in the middle of a request, or of taking a reply, that does not move for this long is
/// let go. Between requests it may rest as long as it likes.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Silence after which TCP asks whether the other host is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// A client's connection: read by one thread, written by several.
pub(crate) struct Stream {
    socket: Socket,
    tls: OnceLock<Tls>,
    /// When the handshake must be over; none once it is.
    until: Mutex<Option<Instant>>,
    /// Held while a reply goes out, so that replies do not mix.
    sending: Mutex<()>,
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(it) => {
                it.set_read_timeout(Some(read)).and_then(|()| it.set_write_timeout(Some(write)))
            }
            Socket::Unix(it) => {
                it.set_read_timeout(Some(read)).and_then(|()| it.set_write_timeout(Some(write)))
            }
        }
    }

    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Socket::Tcp(it) => (&*it).read(bytes),
                Socket::Unix(it) => (&*it).read(bytes),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                result => return result,
            }
        }
    }

    /// Sends all parts, in one call if there is room.
    pub(crate) fn write_all(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            // Whoever uses this may not have SIGPIPE ignored; a client that left must not end it.
            let some = &parts[..parts.len().min(PARTS_MAX)];
            let sent = match self {
                Socket::Tcp(it) => sendmsg(it, some, &mut Default::default(), SendFlags::NOSIGNAL),
                Socket::Unix(it) => sendmsg(it, some, &mut Default::default(), SendFlags::NOSIGNAL),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => IoSlice::advance_slices(&mut parts, length),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn shutdown(&self, how: Shutdown) {
        // Fails only if the other side was faster.
        let _ = match self {
            Socket::Tcp(it) => it.shutdown(how),
            Socket::Unix(it) => it.shutdown(how),
        };
    }
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> io::Result<Stream> {
        // All but the timeouts is a matter of speed, or of noticing a dead host sooner.
        match &socket {
            Socket::Tcp(tcp) => {
                let _ = tcp.set_nodelay(true);
                let _ = sockopt::set_socket_keepalive(tcp, true);
                let _ = sockopt::set_tcp_keepidle(tcp, KEEPALIVE_AFTER);
            }
            Socket::Unix(unix) => {
                let _ = sockopt::set_socket_send_buffer_size(unix, UNIX_SEND_BYTES);
            }
        }
        socket.set_timeouts(STALL_MAX, STALL_MAX)?;
        Ok(Stream { socket, tls: OnceLock::new(), until: Mutex::new(None), sending: Mutex::new(()) })
    }

    /// For the handshake: no read or write waits past `until`.
    pub(crate) fn limit(&self, until: Instant) -> io::Result<()> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        self.keep_limit()
    }

    /// Cuts the next wait to what is left of the handshake's time.
    fn keep_limit(&self) -> io::Result<()> {
        let Some(until) = *self.until.lock().unwrap_or_else(PoisonError::into_inner) else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeouts(left, left)
    }

    /// After the handshake.
    pub(crate) fn unlimit(&self) -> io::Result<()> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.socket.set_timeouts(STALL_MAX, STALL_MAX)
    }

    /// Goes on in TLS, within the time of [`Stream::limit`].
    pub(crate) fn start_tls(&self, config: &Arc<ServerConfig>) -> io::Result<()> {
        let tls = Tls::accept(&self.socket, config.clone(), || self.keep_limit())?;
        self.tls.set(tls).map_err(|_| io::Error::other("TLS has started already"))
    }

    /// Reads some bytes; 0 at the end. Times out after [`STALL_MAX`].
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.read(bytes),
            Some(tls) => loop {
                match tls.read(&self.socket, bytes, || self.keep_limit())? {
                    Some(length) => return Ok(length),
                    None => self.write_parts(&mut [])?,
                }
            },
        }
    }

    /// Sends all parts, unbroken by what other threads send.
    pub(crate) fn write_parts(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        match self.tls.get() {
            None => self.socket.write_all(parts),
            Some(tls) => tls.write(&self.socket, parts),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_parts(&mut [IoSlice::new(bytes)])
    }

    /// Ends what is read, so that the connection ends after its last reply.
    pub(crate) fn stop_reading(&self) {
        self.socket.shutdown(Shutdown::Read);
    }

    /// Ends the connection; whoever waits for it fails at once.
    pub(crate) fn close(&self) {
        self.socket.shutdown(Shutdown::Both);
    }

    /// Says goodbye, as TLS demands, and closes.
    pub(crate) fn finish(&self) {
        if let Some(tls) = self.tls.get() {
            tls.say_goodbye();
            let _ = self.write_parts(&mut []);
        }
        self.close();
    }
}

/// Bytes read from a stream ahead of being asked for, so that small requests share a read.
pub(crate) struct Input<'a> {
    stream: &'a Stream,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
}

/// What follows a head in the same read is copied from here to its buffer, so it is not large.
const STAGE_BYTES: usize = 4096;

impl<'a> Input<'a> {
    pub(crate) fn new(stream: &'a Stream) -> Input<'a> {
        Input { stream, stage: vec![0; STAGE_BYTES].into(), start: 0, end: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Waits until there is a byte, or the end (`false`), however long it takes.
    pub(crate) fn wait(&mut self) -> io::Result<bool> {
        while self.is_empty() {
            match self.stream.read(&mut self.stage) {
                Ok(0) => return Ok(false),
                Ok(length) => (self.start, self.end) = (0, length),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Fills `bytes`.
    pub(crate) fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            if !self.is_empty() {
                let length = rest.len().min(self.end - self.start);
                rest[..length].copy_from_slice(&self.stage[self.start..self.start + length]);
                self.start += length;
                filled += length;
            } else if rest.len() >= STAGE_BYTES {
                filled += some(self.stream.read(rest)?)?;
            } else {
                (self.start, self.end) = (0, some(self.stream.read(&mut self.stage)?)?);
            }
        }
        Ok(())
    }

    /// Reads bytes and forgets them.
    pub(crate) fn skip(&mut self, mut length: u64) -> io::Result<()> {
        let mut bytes = [0; STAGE_BYTES];
        while length > 0 {
            let piece = length.min(STAGE_BYTES as u64);
            self.read_exact(&mut bytes[..piece as usize])?;
            length -= piece;
        }
        Ok(())
    }
}

fn some(length: usize) -> io::Result<usize> {
    if length == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(length) }
}
