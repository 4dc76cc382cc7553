use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_disk::{
    Completion, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, Request, Work, check_request,
    check_span,
};
use drover_types::{ByteSpan, Extent};

use crate::connection::{Connection, Ended};
use crate::handshake::{Export, HandshakeError, handshake};
use crate::reply::Ticket;
use crate::socket::Socket;
use crate::uri::NbdUri;
use crate::wire::{Command, flag};

/// More connections than this gained nothing locally, two to four are enough; a long line wants more.
const LANES_MAX: usize = 16;

/// Requests in flight on a connection. nbdkit serves 16 of a connection at a time.
const DEPTH_MAX: usize = 16;

/// Smaller requests than this cost the server more than they move.
const REQUEST_BYTES_PREFERRED: u64 = 256 << 10;

/// Bytes that one question for block status covers. Servers walk their map while we wait.
const STATUS_BYTES_MAX: u64 = 1 << 30;

/// How long a further connection may take when the server did not say that it takes several: one
/// that serves a single client lets the others wait without a word (qemu-nbd without --shared).
const SECOND_CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// Owner of questions for block status and flushes on a shared connection.
const CONTROL: u64 = 0;

/// How to talk to a server.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Without a byte for this long a connection counts as broken.
    pub timeout: Duration,
    /// What tells the export's content from another, if the caller knows better than this crate,
    /// which only sees a name and a size (a change id; a path where the socket is made anew).
    pub identity: Option<String>,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions { timeout: Duration::from_secs(30), identity: None }
    }
}

/// A disk behind an NBD server.
///
/// ```text
/// several connections: control ── block status, flush      one connection: control ── all of it
///                      lane 1  ── reads, writes                            │ lanes share it
///                      lane 2  ── reads, writes
/// ```
///
/// A target takes several connections only if the server says that a flush on one covers the
/// writes of all (`NBD_FLAG_CAN_MULTI_CONN`). A source takes as many as the server lets in.
pub struct NbdDisk {
    uri: NbdUri,
    name: String,
    options: NbdOptions,
    export: Export,
    writable: bool,
    control: Mutex<Arc<Slot>>,
    /// Whether all lanes share the control connection.
    single: AtomicBool,
    /// Whether a connection broke since the last flush.
    lost: Arc<AtomicBool>,
    no_status: AtomicBool,
    next_owner: AtomicU64,
}

/// A connection that several owners take in turns.
struct Slot {
    /// Held while waiting for the connection, so that who came first gets it first: a lane that
    /// takes it again at once would otherwise keep a flush out for long.
    queue: Mutex<()>,
    connection: Mutex<Connection>,
}

impl Slot {
    fn new(connection: Connection) -> Arc<Slot> {
        Arc::new(Slot { queue: Mutex::new(()), connection: Mutex::new(connection) })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        let _queue = lock(&self.queue);
        lock(&self.connection)
    }

    /// Sends a request of the disk itself and waits for its end.
    fn call(&self, command: Command, span: ByteSpan) -> Ended {
        let mut connection = self.lock();
        connection.start_plain(Ticket { owner: CONTROL, id: 0 }, command, span);
        loop {
            if let Some(ended) = connection.take(CONTROL) {
                return ended;
            }
            connection.receive();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NbdDisk {
    /// Connects to an export to read it.
    ///
    /// # Errors
    /// When there is no server, no such export, or the server demands TLS.
    pub fn open_source(uri: &NbdUri, options: NbdOptions) -> Result<NbdDisk, DiskError> {
        NbdDisk::open(uri, options, false)
    }

    /// Connects to an export to overwrite it.
    ///
    /// # Errors
    /// As [`NbdDisk::open_source`]; also when the export is read-only, and when it can make writes
    /// durable neither by flush nor by FUA: then nothing written could ever be called safe.
    pub fn open_target(uri: &NbdUri, options: NbdOptions) -> Result<NbdDisk, DiskError> {
        let disk = NbdDisk::open(uri, options, true)?;
        if disk.export.has(flag::READ_ONLY) {
            return Err(disk.refusal(DiskErrorKind::Denied, "the export is read-only"));
        }
        if !disk.export.is_durable() {
            let text = "the server offers neither flush nor FUA, so no write is ever known to be safe";
            return Err(disk.refusal(DiskErrorKind::Unsupported, text));
        }
        Ok(disk)
    }

    fn open(uri: &NbdUri, options: NbdOptions, writable: bool) -> Result<NbdDisk, DiskError> {
        let name = uri.to_string();
        let lost = Arc::new(AtomicBool::new(false));
        let connection =
            connect(uri, &options, options.timeout, &lost).map_err(|error| open_error(&name, error))?;
        let export = *connection.export();
        Ok(NbdDisk {
            uri: uri.clone(),
            name,
            options,
            export,
            writable,
            control: Mutex::new(Slot::new(connection)),
            single: AtomicBool::new(writable && !export.has(flag::MULTI_CONN)),
            lost,
            no_status: AtomicBool::new(false),
            next_owner: AtomicU64::new(CONTROL + 1),
        })
    }

    fn refusal(&self, kind: DiskErrorKind, text: &str) -> DiskError {
        let source = io::Error::new(io::ErrorKind::PermissionDenied, text);
        DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), &self.name, source)
    }

    /// The control connection, made anew if it broke.
    fn control(&self) -> Result<Arc<Slot>, DiskError> {
        let mut control = lock(&self.control);
        if control.lock().is_broken() {
            *control = Slot::new(self.connect_again(self.options.timeout)?);
        }
        Ok(control.clone())
    }

    fn connect_again(&self, limit: Duration) -> Result<Connection, DiskError> {
        let connection = connect(&self.uri, &self.options, limit, &self.lost)
            .map_err(|error| open_error(&self.name, error))?;
        let (now, then) = (connection.export().size, self.export.size);
        if now == then {
            return Ok(connection);
        }
        let text = format!("the export has {now} bytes now, it had {then} when opened");
        Err(self.refusal(DiskErrorKind::Corrupt, &text))
    }

    /// A connection of a lane's own, or the one that all share.
    fn lane_slot(&self) -> Result<Arc<Slot>, DiskError> {
        if self.single.load(SeqCst) {
            return self.control();
        }
        let several = self.export.has(flag::MULTI_CONN);
        let limit =
            if several { self.options.timeout } else { self.options.timeout.min(SECOND_CONNECTION_WAIT) };
        match self.connect_again(limit) {
            Ok(connection) => Ok(Slot::new(connection)),
            // The server lives but lets nobody else in: share what we have, now and from now on.
            Err(error) if error.kind != DiskErrorKind::Corrupt && lock(&self.control).lock().probe() => {
                self.single.store(true, SeqCst);
                self.control()
            }
            Err(error) => Err(error),
        }
    }

    fn error(&self, op: DiskOp, ended: Ended) -> Result<Ended, DiskError> {
        match ended.result {
            Ok(()) => Ok(ended),
            Err(failure) => {
                Err(DiskError::with_kind(failure.kind, op, ended.span, &self.name, failure.source))
            }
        }
    }

    /// Fails once after a connection broke: its server may have been restarted, and have forgotten
    /// what it had taken and not yet made durable. A flush on a new connection would not tell.
    fn check_lost(&self) -> Result<(), DiskError> {
        if !self.lost.swap(false, SeqCst) || !self.writable {
            return Ok(());
        }
        let text = "a connection broke since the last flush, so what was written since may be lost";
        let source = io::Error::new(io::ErrorKind::ConnectionAborted, text);
        Err(DiskError::new(DiskOp::Flush, ByteSpan::new(0, 0), &self.name, source))
    }
}

fn connect(
    uri: &NbdUri,
    options: &NbdOptions,
    limit: Duration,
    lost: &Arc<AtomicBool>,
) -> Result<Connection, HandshakeError> {
    let socket = Socket::connect(&uri.address, limit)?;
    let export = handshake(&socket, &uri.export, limit)?;
    socket.set_timeout(options.timeout)?;
    Ok(Connection::new(socket, export, options.timeout, lost.clone()))
}

fn open_error(name: &str, error: HandshakeError) -> DiskError {
    let kind = error.kind();
    let source = match error {
        HandshakeError::Io(error) => error,
        other => io::Error::other(other),
    };
    DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), name, source)
}

impl Disk for NbdDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.export.size
    }

    fn identity(&self) -> String {
        match &self.options.identity {
            Some(identity) => identity.clone(),
            None => format!("{}:{}", self.name, self.export.size),
        }
    }

    fn limits(&self) -> Limits {
        let block = self.export.block;
        Limits {
            bytes_min: block.minimum,
            bytes_preferred: block.preferred.max(REQUEST_BYTES_PREFERRED).min(block.maximum),
            bytes_max: block.maximum,
            lanes_max: if self.single.load(SeqCst) { 1 } else { LANES_MAX },
            depth_max: DEPTH_MAX,
        }
    }

    /// `zeroed` is never claimed: no server promises it.
    fn features(&self) -> Features {
        Features {
            writable: self.writable,
            fast_zero: self.writable && self.export.has(flag::WRITE_ZEROES),
            extents: self.export.context.is_some(),
            zeroed: false,
        }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        let asked = ByteSpan::new(span.offset, span.length.min(STATUS_BYTES_MAX))
            .widened(self.export.block.minimum, self.export.size);
        let control = self.control()?;
        if self.no_status.load(SeqCst) || control.lock().export().context.is_none() {
            return Ok(vec![Extent::allocated(span)]);
        }
        let ended = control.call(Command::BlockStatus, asked);
        if matches!(&ended.result, Err(failure) if failure.kind == DiskErrorKind::Unsupported) {
            self.no_status.store(true, SeqCst);
            return Ok(vec![Extent::allocated(span)]);
        }
        Ok(cut(self.error(DiskOp::Extents, ended)?.extents, span))
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Ok(Box::new(NbdLane {
            slot: self.lane_slot()?,
            owner: self.next_owner.fetch_add(1, SeqCst),
            name: self.name.clone(),
            size: self.export.size,
            writable: self.writable,
            limits: self.limits(),
            refused: VecDeque::new(),
            in_flight: 0,
        }))
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.check_lost()?;
        // Without flush every write went out with FUA, see `open_target`.
        if self.writable && self.export.has(flag::FLUSH) {
            let ended = self.control()?.call(Command::Flush, ByteSpan::new(0, 0));
            self.error(DiskOp::Flush, ended)?;
        }
        self.check_lost()
    }
}

/// The parts of `extents` that lie in `span`.
fn cut(extents: Vec<Extent>, span: ByteSpan) -> Vec<Extent> {
    let part = |extent: Extent| Some(Extent { span: extent.span.intersect(span)?, ..extent });
    extents.into_iter().filter_map(part).collect()
}

struct NbdLane {
    slot: Arc<Slot>,
    owner: u64,
    name: String,
    size: u64,
    writable: bool,
    limits: Limits,
    /// Requests that were not even sent.
    refused: VecDeque<Completion>,
    in_flight: usize,
}

impl Lane for NbdLane {
    fn submit(&mut self, request: Request) {
        let Request { id, span, work } = request;
        self.in_flight += 1;
        match self.check(span, &work) {
            Ok(()) => self.slot.lock().start_work(Ticket { owner: self.owner, id }, span, work),
            Err(error) => self.refused.push_back(Completion { id, span, work, result: Err(error) }),
        }
    }

    fn complete(&mut self) -> Option<Completion> {
        if self.in_flight == 0 {
            return None;
        }
        let completion = self.refused.pop_front().unwrap_or_else(|| self.wait());
        self.in_flight -= 1;
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn is_broken(&self) -> bool {
        self.slot.lock().is_broken()
    }
}

impl NbdLane {
    fn wait(&self) -> Completion {
        loop {
            // Between two reads of the socket others may have it, so a flush gets its turn.
            let mut connection = self.slot.lock();
            if let Some(ended) = connection.take(self.owner) {
                return self.completion(ended);
            }
            connection.receive();
        }
    }

    fn completion(&self, ended: Ended) -> Completion {
        let Ended { ticket, span, work, result, .. } = ended;
        let result = result.map_err(|failure| {
            DiskError::with_kind(failure.kind, work.op(), span, &self.name, failure.source)
        });
        Completion { id: ticket.id, span, work, result }
    }

    fn check(&self, span: ByteSpan, work: &Work) -> Result<(), DiskError> {
        check_request(span, work, self.size, self.writable, &self.name)?;
        let Limits { bytes_min, bytes_max, .. } = self.limits;
        let ends_well = span.end().is_multiple_of(bytes_min) || span.end() == self.size;
        if span.offset.is_multiple_of(bytes_min) && ends_well && span.length <= bytes_max {
            return Ok(());
        }
        let text = format!("the server takes multiples of {bytes_min} bytes, up to {bytes_max}");
        let source = io::Error::new(io::ErrorKind::InvalidInput, text);
        Err(DiskError::new(work.op(), span, &self.name, source))
    }
}

impl Drop for NbdLane {
    fn drop(&mut self) {
        self.slot.lock().abandon(self.owner);
    }
}
