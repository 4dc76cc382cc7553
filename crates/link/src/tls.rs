//! TLS 1.3 over a TCP socket whose two directions belong to two threads.
//!
//! ```text
//! socket ── recv, up to 256 KiB ──> incoming ── decrypted record by record ──> frames' own buffers
//! frames ── encrypted ──> outgoing, 320 KiB ── send ──> socket
//! ```
//!
//! The keys are behind a lock that is held while bytes are encrypted or decrypted, never while waiting for
//! the socket. What the session itself has to say (alerts, key updates) is written by the thread that
//! writes, in the order in which it was made.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_wire::WireError;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};

use crate::core::Outgoing;
use crate::plain::in_pieces;
use crate::stripe::{Reading, Writing};

/// Room for records as they come; a handshake message may take 64 KiB of it until it is whole.
const INCOMING_BYTES: usize = 256 << 10;

/// Plain bytes encrypted while the lock is held once.
const PIECE_BYTES: usize = 64 << 10;

/// Room for what one piece becomes: a record of 16 KiB grows by 22 bytes, an alert or key update is small.
const PIECE_ROOM: usize = PIECE_BYTES + (4 << 10);

/// Encrypted bytes that are sent in one go.
const OUTGOING_BYTES: usize = 320 << 10;

/// What the session has to say by itself and nobody has written yet, at most: a peer could ask for key
/// updates without end.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// Plain bytes that came with the end of the handshake, at most: what `incoming` can hold.
const EARLY_BYTES_MAX: usize = INCOMING_BYTES;

/// A peer that was sent away is listened to for so long, and so many reads.
const HANG_UP_WITHIN: Duration = Duration::from_secs(1);
const HANG_UP_READS: usize = 64;

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

struct State {
    connection: Connection,
    pending: Vec<u8>,
    /// What the thread that reads has received and not handled: the begin of a record. rustls wants to see it
    /// in every call, or it looks for the begin of a handshake message where there is nothing.
    held: Vec<u8>,
    is_closed: bool,
    /// The session is over by an error: nothing is handled or encrypted any more.
    is_broken: bool,
}

/// What a look at the session came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The handshake needs more bytes.
    Handshaking,
    /// Bytes may be written; no whole record is left.
    Ready,
    /// The peer has said all.
    Closed,
}

/// A TLS session on a socket, handshake done.
pub struct Tls {
    state: Arc<Mutex<State>>,
    socket: TcpStream,
    incoming: Incoming,
    early: Vec<u8>,
}

struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

pub struct TlsReader {
    state: Arc<Mutex<State>>,
    socket: TcpStream,
    incoming: Incoming,
    early: Vec<u8>,
}

pub struct TlsWriter {
    state: Arc<Mutex<State>>,
    socket: TcpStream,
    outgoing: Box<[u8]>,
    filled: usize,
    scratch: Vec<u8>,
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Incoming {
    fn new() -> Incoming {
        Incoming { bytes: vec![0; INCOMING_BYTES], start: 0, end: 0 }
    }

    /// Receives more; zero at the end.
    fn refill(&mut self, socket: &mut TcpStream) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            return Err(failed("a record that never ends"));
        }
        let length = socket.read(&mut self.bytes[self.end..])?;
        self.end += length;
        Ok(length)
    }
}

impl State {
    fn common(&self) -> &CommonState {
        match &self.connection {
            Connection::Client(connection) => connection,
            Connection::Server(connection) => connection,
        }
    }

    /// Handles all records in `incoming`; gives their plain bytes to `take`.
    fn process(
        &mut self,
        incoming: &mut Incoming,
        take: &mut dyn FnMut(&[u8]) -> Result<(), WireError>,
    ) -> io::Result<Stop> {
        let handled = self.handle_all(incoming, take);
        self.is_broken |= handled.is_err();
        let stop = handled?;
        self.held.clear();
        self.held.extend_from_slice(&incoming.bytes[incoming.start..incoming.end]);
        Ok(stop)
    }

    /// Has the session say what it has to say, without new bytes.
    fn settle(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        let mut incoming = Incoming { start: 0, end: held.len(), bytes: held };
        let settled = self.handle_all(&mut incoming, &mut |_| Ok(()));
        self.held = incoming.bytes;
        match settled {
            // The thread that reads has handled everything that can be.
            Ok(_) if incoming.start > 0 => Err(failed("records that came from nowhere")),
            settled => settled.map(drop),
        }
    }

    fn handle_all(
        &mut self,
        incoming: &mut Incoming,
        take: &mut dyn FnMut(&[u8]) -> Result<(), WireError>,
    ) -> io::Result<Stop> {
        loop {
            let bytes = &mut incoming.bytes[incoming.start..incoming.end];
            let (discard, stop) = match &mut self.connection {
                Connection::Client(it) => handle(it.process_tls_records(bytes), &mut self.pending, take),
                Connection::Server(it) => handle(it.process_tls_records(bytes), &mut self.pending, take),
            };
            incoming.start += discard;
            match stop? {
                Some(Stop::Closed) => {
                    self.is_closed = true;
                    return Ok(Stop::Closed);
                }
                Some(stop) => return Ok(stop),
                None => {}
            }
        }
    }

    /// Encrypts a piece into `room`, after what the session itself has to say. Gives the bytes.
    fn encrypt(&mut self, plain: &[u8], room: &mut [u8]) -> io::Result<usize> {
        if self.is_broken {
            // What `held` has is what it was before the error.
            return Err(failed("what came before was no sound TLS"));
        }
        let mut filled = self.take_pending(room)?;
        self.settle()?;
        filled += self.take_pending(&mut room[filled..])?;
        let room = &mut room[filled..];
        let length = match &mut self.connection {
            Connection::Client(it) => seal(it.process_tls_records(&mut self.held), plain, room),
            Connection::Server(it) => seal(it.process_tls_records(&mut self.held), plain, room),
        }?;
        Ok(filled + length)
    }

    fn take_pending(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let length = self.pending.len();
        room.get_mut(..length).ok_or_else(|| failed("too much to say"))?.copy_from_slice(&self.pending);
        self.pending.clear();
        Ok(length)
    }
}

/// Handles one state of the session. `None`: there may be more.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    pending: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]) -> Result<(), WireError>,
) -> (usize, io::Result<Option<Stop>>) {
    let UnbufferedStatus { mut discard, state } = status;
    let stop = match state {
        Err(error) => Err(failed(error)),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut result = Ok(None);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        if let Err(error) = take(record.payload) {
                            result = Err(failed(error));
                        }
                    }
                    Err(error) => result = Err(failed(error)),
                }
                if result.is_err() {
                    break;
                }
            }
            result
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let at = pending.len();
            match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    pending.resize(at + required_size, 0);
                    match data.encode(&mut pending[at..]) {
                        Ok(_) if pending.len() > PENDING_BYTES_MAX => Err(failed("too much to say")),
                        Ok(length) => {
                            pending.truncate(at + length);
                            Ok(None)
                        }
                        Err(error) => Err(failed(error)),
                    }
                }
                Ok(_) => Ok(None),
                Err(error) => Err(failed(error)),
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // What was encoded is in `pending`, and goes out before anything else does.
            data.done();
            Ok(None)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Some(Stop::Handshaking)),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Some(Stop::Ready)),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Some(Stop::Closed)),
        Ok(_) => Err(failed("early data, which is not spoken here")),
    };
    (discard, stop)
}

fn seal<Data>(status: UnbufferedStatus<'_, '_, Data>, plain: &[u8], room: &mut [u8]) -> io::Result<usize> {
    match status.state.map_err(failed)? {
        ConnectionState::WriteTraffic(mut traffic) => traffic.encrypt(plain, room).map_err(failed),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn close<Data>(status: UnbufferedStatus<'_, '_, Data>, room: &mut [u8]) -> io::Result<usize> {
    match status.state.map_err(failed)? {
        ConnectionState::WriteTraffic(mut traffic) => traffic.queue_close_notify(room).map_err(failed),
        _ => Ok(0),
    }
}

impl Tls {
    /// Shakes hands as the side that dialled.
    pub fn connect(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        until: Instant,
    ) -> io::Result<Tls> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(failed)?;
        Tls::shake_hands(socket, Connection::Client(connection), until)
    }

    /// Shakes hands as the side that listens.
    pub fn accept(socket: TcpStream, config: Arc<ServerConfig>, until: Instant) -> io::Result<Tls> {
        let connection = UnbufferedServerConnection::new(config).map_err(failed)?;
        Tls::shake_hands(socket, Connection::Server(connection), until)
    }

    fn shake_hands(mut socket: TcpStream, connection: Connection, until: Instant) -> io::Result<Tls> {
        let mut state =
            State { connection, pending: Vec::new(), held: Vec::new(), is_closed: false, is_broken: false };
        let (mut incoming, mut early) = (Incoming::new(), Vec::new());
        loop {
            let stop = state.process(&mut incoming, &mut |bytes| {
                early.extend_from_slice(bytes);
                Ok(())
            });
            if stop.is_err() {
                // The alert that tells the peer why; whether it can still be told changes nothing.
                let _ = state.process(&mut incoming, &mut |_| Ok(()));
            }
            socket.set_write_timeout(Some(left(until)?))?;
            let written = socket.write_all(&state.pending);
            state.pending.clear();
            if stop.is_err() {
                hang_up(&mut socket);
            }
            let stop = stop?;
            written?;
            if early.len() > EARLY_BYTES_MAX {
                return Err(failed("too much too early"));
            }
            match stop {
                Stop::Ready => {
                    return Ok(Tls { state: Arc::new(Mutex::new(state)), socket, incoming, early });
                }
                Stop::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
                Stop::Handshaking => {}
            }
            socket.set_read_timeout(Some(left(until)?))?;
            if incoming.refill(&mut socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// What was agreed: protocol, certificates.
    pub fn with_common<T>(&self, look: impl FnOnce(&CommonState) -> T) -> T {
        look(lock(&self.state).common())
    }

    /// Writes bytes that are no frames.
    pub fn write_all(&mut self, plain: &[u8], until: Instant) -> io::Result<()> {
        self.socket.set_write_timeout(Some(left(until)?))?;
        let mut room = vec![0; PIECE_ROOM];
        for piece in plain.chunks(PIECE_BYTES) {
            let length = lock(&self.state).encrypt(piece, &mut room)?;
            self.socket.write_all(&room[..length])?;
        }
        Ok(())
    }

    /// Reads bytes that are no frames.
    pub fn read_exact(&mut self, plain: &mut [u8], until: Instant) -> io::Result<()> {
        while self.early.len() < plain.len() {
            self.socket.set_read_timeout(Some(left(until)?))?;
            let received = self.incoming.refill(&mut self.socket)?;
            let early = &mut self.early;
            let stop = lock(&self.state).process(&mut self.incoming, &mut |bytes| {
                early.extend_from_slice(bytes);
                Ok(())
            })?;
            if self.early.len() < plain.len() && (received == 0 || stop == Stop::Closed) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if self.early.len() > EARLY_BYTES_MAX + plain.len() {
                return Err(failed("too much too early"));
            }
        }
        plain.copy_from_slice(&self.early[..plain.len()]);
        self.early.drain(..plain.len());
        Ok(())
    }

    /// The two directions, for two threads, without time limits.
    pub fn split(self) -> io::Result<(TlsReader, TlsWriter)> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)?;
        let writer = TlsWriter {
            state: self.state.clone(),
            socket: self.socket.try_clone()?,
            outgoing: vec![0; OUTGOING_BYTES].into(),
            filled: 0,
            scratch: Vec::new(),
        };
        let reader =
            TlsReader { state: self.state, socket: self.socket, incoming: self.incoming, early: self.early };
        Ok((reader, writer))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a connection so that what was said last arrives: the kernel throws it away where bytes of the peer
/// are left unread.
fn hang_up(socket: &mut TcpStream) {
    let until = Instant::now() + HANG_UP_WITHIN;
    let mut bytes = [0; 4096];
    let mut is_over = socket.shutdown(Shutdown::Write).is_err();
    for _ in 0..HANG_UP_READS {
        let limit = left(until).and_then(|left| socket.set_read_timeout(Some(left)));
        is_over = is_over || limit.is_err() || !matches!(socket.read(&mut bytes), Ok(1..));
        if is_over {
            return;
        }
    }
}

/// Time that is left; never zero, which would mean no limit.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.max(Duration::from_millis(1))) }
}

impl Reading for TlsReader {
    fn read(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<(), WireError>) -> io::Result<usize> {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            take(&early).map_err(failed)?;
            return Ok(early.len());
        }
        if lock(&self.state).is_closed {
            return Ok(0);
        }
        let received = self.incoming.refill(&mut self.socket)?;
        if received == 0 {
            return Ok(0);
        }
        let stop = lock(&self.state).process(&mut self.incoming, take)?;
        Ok(if stop == Stop::Closed { 0 } else { received })
    }
}

impl TlsWriter {
    fn put(&mut self, plain: &[u8]) -> io::Result<()> {
        for piece in plain.chunks(PIECE_BYTES) {
            if self.outgoing.len() - self.filled < PIECE_ROOM {
                self.flush()?;
            }
            self.filled += lock(&self.state).encrypt(piece, &mut self.outgoing[self.filled..])?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        self.socket.write_all(&self.outgoing[..filled])
    }
}

impl Writing for TlsWriter {
    fn write(&mut self, frames: &[Outgoing]) -> io::Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let written = in_pieces(frames, &mut scratch, |bytes| self.put(bytes));
        self.scratch = scratch;
        written?;
        self.flush()
    }

    fn finish(&mut self) {
        let mut state = lock(&self.state);
        let State { connection, held, .. } = &mut *state;
        let closed = match connection {
            Connection::Client(it) => close(it.process_tls_records(held), &mut self.outgoing),
            Connection::Server(it) => close(it.process_tls_records(held), &mut self.outgoing),
        };
        drop(state);
        self.filled = closed.unwrap_or(0);
        // Whether the peer still is there makes no difference any more.
        let _ = self.flush();
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}
