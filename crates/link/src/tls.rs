//! TLS 1.3 over a socket whose two directions belong to two threads.
//!
//! ```text
//! socket ── recv, up to 256 KiB ──> incoming ── decrypted record by record ──> frames' own buffers
//! frames ── encrypted ──> outgoing, 320 KiB ── send ──> socket
//! ```
//!
//! The library shakes hands, and makes the keys; from then on each direction has its own ([`records`]), and the two have only
//! their renewal in common.

mod records;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_wire::WireError;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{AlertDescription, ClientConfig, CommonState, Error, ServerConfig};

use crate::core::Outgoing;
use crate::error::LinkError;
use crate::identity;
use crate::plain::in_pieces;
use crate::socket::Socket;
use crate::stripe::{Reading, Taking, Writing};
use records::{GROWTH_BYTES, Kind, Opener, PLAIN_BYTES_MAX, Sealer, room_for, whole};

/// Room for records as they come; a handshake message may take 64 KiB of it until it is whole.
const INCOMING_BYTES: usize = 256 << 10;

/// Encrypted bytes that are sent in one go.
const OUTGOING_BYTES: usize = 320 << 10;

/// Room for a record, and for one before it that renews the keys.
const RECORD_ROOM: usize = PLAIN_BYTES_MAX + GROWTH_BYTES + RENEWAL.len() + GROWTH_BYTES;

/// What the library has to say while it shakes hands and nobody has written yet, at most.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// Plain bytes that came with the end of the handshake, at most: what `incoming` can hold.
const EARLY_BYTES_MAX: usize = INCOMING_BYTES;

/// A peer that was sent away is listened to for so long, and so many reads.
const HANG_UP_WITHIN: Duration = Duration::from_secs(1);
const HANG_UP_READS: usize = 64;

/// Says that the next record has new keys (KeyUpdate), and asks for none.
const RENEWAL: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
const KEY_UPDATE: u8 = 24;
const NEW_SESSION_TICKET: u8 = 4;

/// How many records may come without a byte of data between.
const EMPTY_MAX: u32 = 32;

/// Alerts: a warning that says that no more comes.
const WARNING: u8 = 1;
const CLOSE_NOTIFY: u8 = 0;

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What a look at the handshake came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It needs more bytes.
    Handshaking,
    /// It is done; no whole record is left.
    Ready,
    /// The peer has said all.
    Closed,
}

/// A TLS session on a socket, handshake done.
pub struct Tls {
    reader: TlsReader,
    writer: TlsWriter,
    proven: Result<[u8; 32], LinkError>,
}

struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Where keys come from.
struct Source {
    kernel: Mutex<Kernel>,
    /// The peer has asked for new keys of ours.
    is_asked: AtomicBool,
    /// Records after which keys are renewed: half of what the cipher allows.
    records_max: u64,
}

enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

pub struct TlsReader {
    keys: Opener,
    source: Arc<Source>,
    socket: Socket,
    incoming: Incoming,
    early: Vec<u8>,
    /// Records since the last byte of data.
    empty: u32,
    is_closed: bool,
}

pub struct TlsWriter {
    keys: Sealer,
    source: Arc<Source>,
    socket: Socket,
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
    fn refill(&mut self, socket: &mut Socket) -> io::Result<usize> {
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

impl Connection {
    fn common(&self) -> &CommonState {
        match self {
            Connection::Client(connection) => connection,
            Connection::Server(connection) => connection,
        }
    }

    /// Handles all records in `incoming`: what the library has to say goes to `pending`, plain bytes that came already to
    /// `early`.
    fn handle_all(
        &mut self,
        incoming: &mut Incoming,
        pending: &mut Vec<u8>,
        early: &mut Vec<u8>,
    ) -> io::Result<Stop> {
        loop {
            let bytes = &mut incoming.bytes[incoming.start..incoming.end];
            let (discard, stop) = match self {
                Connection::Client(it) => handle(it.process_tls_records(bytes), pending, early),
                Connection::Server(it) => handle(it.process_tls_records(bytes), pending, early),
            };
            incoming.start += discard;
            if let Some(stop) = stop? {
                return Ok(stop);
            }
        }
    }

    /// The keys of what is written and of what is read, and where further ones come from. Nothing may be left of the handshake: a
    /// message of it behind the last that was handled, which no drover sends, ends the connection at the first record.
    fn into_keys(self) -> io::Result<(Sealer, Opener, Arc<Source>)> {
        let (secrets, kernel, suite) = match self {
            Connection::Client(it) => {
                let (secrets, kernel) = it.dangerous_into_kernel_connection().map_err(failed)?;
                let suite = kernel.negotiated_cipher_suite();
                (secrets, Kernel::Client(kernel), suite)
            }
            Connection::Server(it) => {
                let (secrets, kernel) = it.dangerous_into_kernel_connection().map_err(failed)?;
                let suite = kernel.negotiated_cipher_suite();
                (secrets, Kernel::Server(kernel), suite)
            }
        };
        let suite = suite.tls13().ok_or_else(|| failed("that is not TLS 1.3"))?;
        let records_max = suite.common.confidentiality_limit / 2;
        let (kernel, is_asked) = (Mutex::new(kernel), AtomicBool::new(false));
        let source = Source { kernel, is_asked, records_max };
        Ok((Sealer::new(secrets.tx)?, Opener::new(secrets.rx)?, Arc::new(source)))
    }
}

impl Source {
    fn kernel<T>(&self, renew: impl FnOnce(&mut Kernel) -> T) -> T {
        renew(&mut self.kernel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The peer's next keys.
    fn next_to_read(&self) -> io::Result<Opener> {
        let secrets = self.kernel(|kernel| match kernel {
            Kernel::Client(it) => it.update_rx_secret(),
            Kernel::Server(it) => it.update_rx_secret(),
        });
        Opener::new(secrets.map_err(failed)?)
    }

    /// Ours.
    fn next_to_write(&self) -> io::Result<Sealer> {
        let secrets = self.kernel(|kernel| match kernel {
            Kernel::Client(it) => it.update_tx_secret(),
            Kernel::Server(it) => it.update_tx_secret(),
        });
        Sealer::new(secrets.map_err(failed)?)
    }
}

/// Handles one state of the handshake. `None`: there may be more.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    pending: &mut Vec<u8>,
    early: &mut Vec<u8>,
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
                        early.extend_from_slice(record.payload);
                    }
                    Err(error) => {
                        result = Err(failed(error));
                        break;
                    }
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

impl Tls {
    /// Shakes hands as the side that dialled.
    pub fn connect(
        socket: impl Into<Socket>,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        until: Instant,
    ) -> io::Result<Tls> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(failed)?;
        Tls::shake_hands(socket.into(), Connection::Client(connection), until)
    }

    /// Shakes hands as the side that listens.
    pub fn accept(socket: impl Into<Socket>, config: Arc<ServerConfig>, until: Instant) -> io::Result<Tls> {
        let connection = UnbufferedServerConnection::new(config).map_err(failed)?;
        Tls::shake_hands(socket.into(), Connection::Server(connection), until)
    }

    fn shake_hands(mut socket: Socket, mut connection: Connection, until: Instant) -> io::Result<Tls> {
        let (mut incoming, mut pending, mut early) = (Incoming::new(), Vec::new(), Vec::new());
        loop {
            let stop = connection.handle_all(&mut incoming, &mut pending, &mut early);
            if stop.is_err() {
                // The alert that tells the peer why; whether it can still be told changes nothing.
                let _ = connection.handle_all(&mut incoming, &mut pending, &mut early);
            }
            socket.set_write_timeout(left(until)?)?;
            let written = socket.write_all(&pending);
            pending.clear();
            if stop.is_err() {
                hang_up(&mut socket);
            }
            let stop = stop?;
            written?;
            if early.len() > EARLY_BYTES_MAX {
                return Err(failed("too much too early"));
            }
            match stop {
                Stop::Ready => return Tls::new(socket, connection, incoming, early),
                Stop::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
                Stop::Handshaking => {}
            }
            socket.set_read_timeout(left(until)?)?;
            if incoming.refill(&mut socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn new(socket: Socket, connection: Connection, incoming: Incoming, early: Vec<u8>) -> io::Result<Tls> {
        let proven = identity::proven(connection.common());
        let (to_write, to_read, source) = connection.into_keys()?;
        let writer = TlsWriter {
            keys: to_write,
            source: source.clone(),
            socket: socket.try_clone()?,
            outgoing: vec![0; OUTGOING_BYTES].into(),
            filled: 0,
            scratch: Vec::new(),
        };
        let (empty, is_closed) = (0, false);
        let reader = TlsReader { keys: to_read, source, socket, incoming, early, empty, is_closed };
        Ok(Tls { reader, writer, proven })
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.reader.socket
    }

    /// Whose key the peer has proven to have.
    pub fn proven(&self) -> Result<[u8; 32], LinkError> {
        self.proven.clone()
    }

    /// Writes bytes that are no frames.
    pub fn write_all(&mut self, plain: &[u8], until: Instant) -> io::Result<()> {
        self.socket().set_write_timeout(left(until)?)?;
        self.writer.put(plain)?;
        self.writer.flush()
    }

    /// Reads bytes that are no frames.
    pub fn read_exact(&mut self, plain: &mut [u8], until: Instant) -> io::Result<()> {
        while self.reader.early.len() < plain.len() {
            self.socket().set_read_timeout(left(until)?)?;
            let mut early = std::mem::take(&mut self.reader.early);
            let received = self.reader.receive(&mut Plain(&mut early));
            self.reader.early = early;
            if received? == 0 && self.reader.early.len() < plain.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if self.reader.early.len() > EARLY_BYTES_MAX + plain.len() {
                return Err(failed("too much too early"));
            }
        }
        plain.copy_from_slice(&self.reader.early[..plain.len()]);
        self.reader.early.drain(..plain.len());
        Ok(())
    }

    /// The two directions, for two threads, without time limits.
    pub fn split(self) -> io::Result<(TlsReader, TlsWriter)> {
        self.socket().set_unlimited()?;
        Ok((self.reader, self.writer))
    }
}

/// Ends a connection so that what was said last arrives: the kernel throws it away where bytes of the peer
/// are left unread.
fn hang_up(socket: &mut Socket) {
    let until = Instant::now() + HANG_UP_WITHIN;
    let mut bytes = [0; 4096];
    let mut is_over = socket.finish().is_err();
    for _ in 0..HANG_UP_READS {
        let limit = left(until).and_then(|left| socket.set_read_timeout(left));
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

impl TlsReader {
    /// Receives bytes once, and gives what is whole of them; how many came, zero at the end.
    fn receive(&mut self, taker: &mut dyn Taking) -> io::Result<usize> {
        if self.is_closed {
            return Ok(0);
        }
        let received = self.incoming.refill(&mut self.socket)?;
        while let Some(length) = whole(&self.incoming.bytes[self.incoming.start..self.incoming.end])? {
            let said = self.open(length, taker)?;
            self.incoming.start += length;
            self.empty += 1;
            match said {
                Said::Data(0) => {}
                Said::Data(_) => self.empty = 0,
                Said::Handshake(message) => {
                    if let Some(is_asked) = renewal(&message)? {
                        self.keys = self.source.next_to_read()?;
                        self.source.is_asked.fetch_or(is_asked, Ordering::Relaxed);
                    }
                }
                Said::Alert(CLOSE_NOTIFY) => {
                    self.is_closed = true;
                    return Ok(0);
                }
                Said::Alert(why) => return Err(failed(Error::AlertReceived(AlertDescription::from(why)))),
            }
            if self.empty > EMPTY_MAX {
                return Err(failed("records without a byte of data, again and again"));
            }
        }
        Ok(received)
    }

    /// Opens the record of this length that comes next; what of it is data is taken.
    fn open(&mut self, length: usize, taker: &mut dyn Taking) -> io::Result<Said> {
        let record = &mut self.incoming.bytes[self.incoming.start..][..length];
        match taker.room(room_for(record)) {
            // Decrypted to where it is to be in the end.
            Some(room) => match self.keys.open_into(record, room)? {
                (Kind::Data, length) => {
                    taker.filled(length).map_err(failed)?;
                    Ok(Said::Data(length))
                }
                (kind, length) => said(kind, &room[..length]),
            },
            None => match self.keys.open(record)? {
                (Kind::Data, plain) => {
                    taker.take(plain).map_err(failed)?;
                    Ok(Said::Data(plain.len()))
                }
                (kind, plain) => said(kind, plain),
            },
        }
    }
}

/// What a record said.
enum Said {
    /// So many bytes of data.
    Data(usize),
    Handshake(Vec<u8>),
    Alert(u8),
}

/// What a record said that is no data.
fn said(kind: Kind, plain: &[u8]) -> io::Result<Said> {
    match (kind, plain) {
        (Kind::Alert, [_, why]) => Ok(Said::Alert(*why)),
        (Kind::Alert, _) => Err(failed("an alert that says nothing")),
        (Kind::Handshake | Kind::Data, message) => Ok(Said::Handshake(message.to_vec())),
    }
}

/// Bytes that are no frames, in their order.
struct Plain<'a>(&'a mut Vec<u8>);

impl Taking for Plain<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn room(&mut self, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn filled(&mut self, _: usize) -> Result<(), WireError> {
        Ok(())
    }
}

/// Whether a handshake message renews the peer's keys, and asks for ours. Tickets are of no use here.
fn renewal(message: &[u8]) -> io::Result<Option<bool>> {
    match message {
        [KEY_UPDATE, 0, 0, 1, asks @ 0..=1] => Ok(Some(*asks == 1)),
        [NEW_SESSION_TICKET, ..] => Ok(None),
        _ => Err(failed("a handshake message that has no place behind the handshake")),
    }
}

impl Reading for TlsReader {
    fn read(&mut self, taker: &mut dyn Taking) -> io::Result<usize> {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            taker.take(&early).map_err(failed)?;
            return Ok(early.len());
        }
        self.receive(taker)
    }
}

impl TlsWriter {
    fn put(&mut self, plain: &[u8]) -> io::Result<()> {
        for piece in plain.chunks(PLAIN_BYTES_MAX) {
            if self.outgoing.len() - self.filled < RECORD_ROOM {
                self.flush()?;
            }
            // Asked first: what is asked from here on is for the next record.
            let is_asked = self.source.is_asked.load(Ordering::Relaxed)
                && self.source.is_asked.swap(false, Ordering::Relaxed);
            if is_asked || self.keys.records() >= self.source.records_max {
                self.renew()?;
            }
            self.seal(Kind::Data, piece)?;
        }
        Ok(())
    }

    fn seal(&mut self, kind: Kind, plain: &[u8]) -> io::Result<()> {
        self.filled += self.keys.seal(kind, plain, &mut self.outgoing[self.filled..])?;
        Ok(())
    }

    /// Goes on with new keys, and says so by the old ones.
    fn renew(&mut self) -> io::Result<()> {
        self.seal(Kind::Handshake, &RENEWAL)?;
        self.keys = self.source.next_to_write()?;
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
        // What could not be written before is lost already, and whether the peer still is there makes no difference any more.
        self.filled = 0;
        let _ = self.seal(Kind::Alert, &[WARNING, CLOSE_NOTIFY]).and_then(|()| self.flush());
        let _ = self.socket.finish();
    }
}
