use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_tls::{Presented, refusal_of};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::endpoint::Endpoint;
use crate::error::{HttpError, HttpErrorKind, HttpOp};

/// How long to wait for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, over all addresses of the name.
    pub connect: Duration,
    /// For the next byte.
    pub stall: Duration,
    /// For a whole answer, however steadily its bytes trickle.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            answer: Duration::from_secs(300),
        }
    }
}

/// Bytes to and from a server.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

/// What is read from a socket at a time, in place of the 4 KiB that rustls asks for. Each TLS connection holds as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Of answers that come whole: hundreds of threads each have such a connection at once.
    Small,
    /// Of disks.
    Large,
}

impl Reads {
    const fn bytes(self) -> usize {
        match self {
            Reads::Small => 32 << 10,
            Reads::Large => 256 << 10,
        }
    }
}

/// Bytes that are given to rustls at a time.
const WRITE_BYTES: usize = 32 << 10;

pub(crate) struct TlsStream {
    tls: ClientConnection,
    socket: BufReader<TcpStream>,
}

impl Stream {
    /// Connects to the first address that answers, and speaks TLS if there is a `config`.
    pub fn connect(
        endpoint: &Endpoint,
        config: Option<&Arc<ClientConfig>>,
        timeouts: &Timeouts,
        reads: Reads,
    ) -> Result<Self, HttpError> {
        let socket = connect_tcp(endpoint, timeouts)?;
        let io = |error| HttpError::io(error, HttpOp::Connect, &endpoint.authority(), timeouts.connect);
        // Requests are written whole, so there is nothing that Nagle's algorithm could gather.
        socket.set_nodelay(true).map_err(io)?;
        socket.set_read_timeout(Some(timeouts.stall)).map_err(io)?;
        socket.set_write_timeout(Some(timeouts.stall)).map_err(io)?;
        match config {
            None => Ok(Stream::Plain(socket)),
            Some(config) => {
                let socket = BufReader::with_capacity(reads.bytes(), socket);
                Ok(Stream::Tls(Box::new(TlsStream::connect(socket, endpoint, config, timeouts)?)))
            }
        }
    }
}

fn connect_tcp(endpoint: &Endpoint, timeouts: &Timeouts) -> Result<TcpStream, HttpError> {
    let peer = endpoint.authority();
    let deadline = Instant::now() + timeouts.connect;
    let addresses = (endpoint.host.as_str(), endpoint.port)
        .to_socket_addrs()
        .map_err(|error| HttpError::other(HttpErrorKind::UnknownHost, HttpOp::Connect, &peer, error))?;
    let mut last = HttpError::new(HttpErrorKind::UnknownHost, HttpOp::Connect, &peer);
    for address in addresses {
        match connect_before(&address, deadline) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = HttpError::io(error, HttpOp::Connect, &peer, timeouts.connect),
        }
    }
    Err(last)
}

/// A process that was stopped and goes on (a debugger, a frozen machine) has its call interrupted, and tries again.
fn connect_before(address: &SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
        match TcpStream::connect_timeout(address, left) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && Instant::now() < deadline => {}
            ended => return ended,
        }
    }
}

impl TlsStream {
    fn connect(
        socket: BufReader<TcpStream>,
        endpoint: &Endpoint,
        config: &Arc<ClientConfig>,
        timeouts: &Timeouts,
    ) -> Result<Self, HttpError> {
        let peer = endpoint.authority();
        let name = ServerName::try_from(endpoint.host.clone())
            .map_err(|error| HttpError::other(HttpErrorKind::BadUrl, HttpOp::Connect, &peer, error))?;
        let tls = ClientConnection::new(config.clone(), name)
            .map_err(|error| HttpError::other(HttpErrorKind::Tls, HttpOp::Connect, &peer, error))?;
        let mut stream = TlsStream { tls, socket };
        stream
            .handshake(Instant::now() + timeouts.connect)
            .map_err(|error| handshake_error(error, &peer, timeouts))?;
        Ok(stream)
    }

    fn handshake(&mut self, deadline: Instant) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.flush_tls()?;
            if self.tls.is_handshaking() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let usual = self.socket.get_ref().read_timeout()?;
                self.socket.get_ref().set_read_timeout(Some(left))?;
                let more = self.read_tls();
                self.socket.get_ref().set_read_timeout(usual)?;
                if !more? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        self.flush_tls()
    }

    fn flush_tls(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(self.socket.get_mut())?;
        }
        Ok(())
    }

    /// Takes what the socket has into rustls; false at the end of the stream.
    fn read_tls(&mut self) -> io::Result<bool> {
        if self.tls.read_tls(&mut self.socket)? == 0 {
            return Ok(false);
        }
        if let Err(error) = self.tls.process_new_packets() {
            // The alert tells the server's log why we left; that we cannot send it changes nothing.
            let _ = self.flush_tls();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // Key updates and the like are answered at once.
        if self.tls.wants_write() {
            self.flush_tls()?;
        }
        Ok(true)
    }
}

fn handshake_error(error: io::Error, peer: &str, timeouts: &Timeouts) -> HttpError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => {
            let refusal = refusal_of(tls).cloned();
            let kind = refusal.map_or(HttpErrorKind::Tls, HttpErrorKind::Certificate);
            let source = (kind == HttpErrorKind::Tls).then(|| tls.clone().into());
            HttpError { kind, op: HttpOp::Connect, peer: peer.to_string(), source }
        }
        None => HttpError::io(error, HttpOp::Connect, peer, timeouts.connect),
    }
}

impl Read for TlsStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if !self.read_tls()? {
                // No close_notify: a body without a length may have been cut, so this is an error.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Stream {
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let done = match self {
                Stream::Plain(socket) => socket.read(out),
                Stream::Tls(stream) => stream.read(out),
            };
            match done {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// The certificate that the server showed; none without TLS.
    pub fn presented(&self) -> Option<Presented> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => stream.tls.peer_certificates()?.first().map(|it| Presented::of(it)),
        }
    }

    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.write_all(bytes),
            // Requests may be larger than what rustls takes at once, so write as it drains.
            Stream::Tls(stream) => bytes.chunks(WRITE_BYTES).try_for_each(|piece| {
                stream.tls.writer().write_all(piece)?;
                stream.flush_tls()
            }),
        }
    }

    /// Calls return after this long without a byte that moved.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        let socket = match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.socket.get_ref(),
        };
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))
    }

    /// Writes some of the bytes, and all that was taken before: how many it took. With none, what was taken before is
    /// gone once it gives 0. An error that says to wait loses nothing.
    pub fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let done = match self {
                Stream::Plain(socket) if bytes.is_empty() => socket.flush().map(|()| 0),
                Stream::Plain(socket) => socket.write(bytes),
                Stream::Tls(stream) => stream
                    .flush_tls()
                    .and_then(|()| stream.tls.writer().write(&bytes[..bytes.len().min(WRITE_BYTES)])),
            };
            match done {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) if !bytes.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
                done => return done,
            }
        }
    }

    /// Whether an idle connection is still good: nothing has arrived, not even its end. Under TLS
    /// waiting bytes are most often the alert before the end, so they count as an end as well.
    pub fn is_quiet(&mut self) -> bool {
        let (socket, buffered) = match self {
            Stream::Plain(socket) => (&*socket, 0),
            Stream::Tls(stream) => (stream.socket.get_ref(), stream.socket.buffer().len()),
        };
        if buffered > 0 || socket.set_nonblocking(true).is_err() {
            return false;
        }
        let peeked = socket.peek(&mut [0]);
        socket.set_nonblocking(false).is_ok()
            && peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}
