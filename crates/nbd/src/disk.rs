use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, Work, check_span};
use drover_types::{BLOCK_BYTES, ByteSpan, Extent};

use crate::connection::{Connection, Ended};
use crate::handshake::{Contexts, Export, Style};
use crate::lane::NbdLane;
use crate::pieces::PiecesLane;
use crate::reply::{DirtyExtent, Status, Ticket};
use crate::route::{Route, open_error};
use crate::tls::TlsFiles;
use crate::uri::NbdUri;
use crate::wire::{Command, flag};

/// More connections than this gained nothing locally, two to four are enough; a long line wants more.
const LANES_MAX: usize = 16;

/// Lanes that take turns on one connection: while one hashes or writes, another receives.
const LANES_SHARING: usize = 4;

/// Requests in flight on a connection. nbdkit serves 16 of a connection at a time.
const DEPTH_MAX: usize = 16;

/// Smaller requests than this cost the server more than they move.
const REQUEST_BYTES_PREFERRED: u64 = 256 << 10;

/// Bytes that one question for block status covers. Servers walk their map while we wait.
const STATUS_BYTES_MAX: u64 = 1 << 30;

/// Tries to get an answer about it, on as many connections.
const STATUS_TRIES: usize = 3;

/// How long a further connection may take at least, and how many times as long as the first one did: a server lets
/// clients beyond its limit wait without a word (qemu-nbd with --shared=N), whether it says that it takes several or not.
const FURTHER_WAIT_MIN: Duration = Duration::from_secs(2);
const FURTHER_WAIT_FACTOR: u32 = 4;

/// Further connections that a server may end although it says that it takes several, before it is believed that it
/// takes no more (a limit on its clients).
const REFUSALS_MAX: u32 = 4;

/// Owner of questions for block status and flushes on a shared connection.
const CONTROL: u64 = 0;

const TICKET: Ticket = Ticket { owner: CONTROL, id: 0 };

/// How to talk to a server.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Without a byte for this long a connection counts as broken.
    pub timeout: Duration,
    /// So does one with a request that shows no sign of life for this long while others are answered.
    pub request_timeout: Duration,
    /// What tells the export's content from another, if the caller knows better than this crate,
    /// which only sees a name and a size (a change id; a path where the socket is made anew).
    pub identity: Option<String>,
    /// Files for TLS; used with `nbds://` and `nbds+unix://` only.
    pub tls: TlsFiles,
    /// The name of a dirty bitmap that [`NbdDisk::dirty`] tells (of `qemu:dirty-bitmap:NAME`). An
    /// export without it is refused.
    pub dirty_bitmap: Option<String>,
    /// The epoch of this run, from 1 and higher than that of every run before it. A server that keeps
    /// epochs (`drover serve-disk`) lets no run with a lower one write any more, see
    /// [`NbdDisk::is_fenced`]; others do not know of it.
    pub fence: Option<u64>,
    /// Whether all lanes share one connection, for servers on which each costs something of its own (nbdkit's
    /// vddk plugin opens the disk anew for each).
    pub single: bool,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(120),
            identity: None,
            tls: TlsFiles::default(),
            dirty_bitmap: None,
            fence: None,
            single: false,
        }
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
    place: String,
    name: String,
    options: NbdOptions,
    export: Export,
    writable: bool,
    control: Mutex<Arc<Slot>>,
    /// Whether all lanes share the control connection.
    single: AtomicBool,
    /// Connections that lanes have of their own, or share because the server lets in no more.
    lanes: Mutex<Vec<Weak<Slot>>>,
    /// How many of these the server lets in, once it let in no more.
    lanes_full: AtomicUsize,
    /// Further connections that it ended at once, while it served others.
    refusals: AtomicU32,
    /// How long a further connection may take.
    further_wait: Duration,
    /// Whether a connection broke since the last flush.
    lost: Arc<AtomicBool>,
    no_status: AtomicBool,
    next_owner: AtomicU64,
    /// Last, so that connections end before what they go through.
    route: Arc<Route>,
}

/// A connection that several owners take in turns.
pub struct Slot {
    /// Held while waiting for the connection, so that who came first gets it first: a lane that
    /// takes it again at once would otherwise keep a flush out for long.
    queue: Mutex<()>,
    connection: Mutex<Connection>,
}

impl Slot {
    fn new(connection: Connection) -> Arc<Slot> {
        Arc::new(Slot { queue: Mutex::new(()), connection: Mutex::new(connection) })
    }

    pub fn lock(&self) -> MutexGuard<'_, Connection> {
        let _queue = lock(&self.queue);
        lock(&self.connection)
    }

    /// Whether it is broken, without waiting for who uses it now: they will see.
    fn is_known_broken(&self) -> bool {
        self.connection.try_lock().is_ok_and(|connection| connection.is_broken())
    }

    /// Sends a request of the disk itself and waits for its end.
    fn call(&self, command: Command, span: ByteSpan) -> Ended {
        self.do_alone(|connection| connection.start_plain(TICKET, command, span))
    }

    /// Reads a little, to see whether an answer comes.
    fn look(&self, span: ByteSpan) {
        let work = Work::Read(Buffer::zeroed(span.length as usize));
        self.do_alone(|connection| connection.start_work(TICKET, span, work));
    }

    fn do_alone(&self, start: impl FnOnce(&mut Connection)) -> Ended {
        let mut connection = self.lock();
        start(&mut connection);
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
        let name = uri.name();
        let lost = Arc::new(AtomicBool::new(false));
        let failed = |error| open_error(&name, error);
        let route = Arc::new(Route::new(uri, &options).map_err(failed)?);
        let started = Instant::now();
        let connection = route.connect(options.timeout, &lost).map_err(failed)?;
        let further_wait =
            (started.elapsed() * FURTHER_WAIT_FACTOR).max(FURTHER_WAIT_MIN).min(options.timeout);
        let export = *connection.export();
        let single = options.single || (writable && !export.has(flag::MULTI_CONN));
        Ok(NbdDisk {
            route,
            place: uri.place(),
            name,
            options,
            export,
            writable,
            control: Mutex::new(Slot::new(connection)),
            single: AtomicBool::new(single),
            lanes: Mutex::default(),
            lanes_full: AtomicUsize::new(usize::MAX),
            refusals: AtomicU32::new(0),
            further_wait,
            lost,
            no_status: AtomicBool::new(false),
            next_owner: AtomicU64::new(CONTROL + 1),
        })
    }

    fn refusal(&self, kind: DiskErrorKind, text: &str) -> DiskError {
        let source = io::Error::new(io::ErrorKind::PermissionDenied, text);
        DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), &self.name, source)
    }

    /// Whether the server keeps out writers of older epochs than [`NbdOptions::fence`].
    pub fn is_fenced(&self) -> bool {
        self.export.contexts.fence.is_some()
    }

    /// What the bitmap of [`NbdOptions::dirty_bitmap`] marks, from `span.offset` on: as with
    /// [`Disk::extents`], at least one byte and at most `span`; ask again from where it ends.
    ///
    /// The bitmap has a granularity (64 KiB as QEMU makes it), so more may be marked than was written,
    /// never less.
    ///
    /// # Errors
    /// When no bitmap was chosen, and when the server fails to answer. Then all of it must be taken as
    /// dirty.
    pub fn dirty(&self, span: ByteSpan) -> Result<Vec<DirtyExtent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        if self.export.contexts.dirty.is_none() {
            let source = io::Error::new(io::ErrorKind::Unsupported, "no dirty bitmap was chosen");
            return Err(DiskError::new(DiskOp::Extents, span, &self.name, source));
        }
        let found = self.status(span)?.dirty;
        let part = |extent: DirtyExtent| Some(DirtyExtent { span: extent.span.intersect(span)?, ..extent });
        let parts: Vec<_> = found.into_iter().filter_map(part).collect();
        if parts.is_empty() {
            let source = io::Error::new(io::ErrorKind::InvalidData, "the server tells nothing of the bitmap");
            return Err(DiskError::new(DiskOp::Extents, span, &self.name, source));
        }
        Ok(parts)
    }

    /// What the server tells about `span` or its front. A connection that broke meanwhile is made anew
    /// a few times: maps are asked for ahead of the copy, and without one all has to be read.
    fn status(&self, span: ByteSpan) -> Result<Status, DiskError> {
        let most = if self.export.style == Style::Extended { u64::MAX } else { STATUS_BYTES_MAX };
        let asked = ByteSpan::new(span.offset, span.length.min(most))
            .widened(self.export.block.minimum, self.export.size);
        for _ in 1..STATUS_TRIES {
            let (broken, result) = self.status_once(asked)?;
            if result.is_ok() || !broken {
                return result;
            }
        }
        self.status_once(asked)?.1
    }

    fn status_once(&self, asked: ByteSpan) -> Result<(bool, Result<Status, DiskError>), DiskError> {
        let control = self.control()?;
        // A server may have come back without contexts.
        let Contexts { allocation, dirty, .. } = control.lock().export().contexts;
        if allocation.or(dirty).is_none() {
            return Ok((false, Ok(Status::default())));
        }
        let ended = control.call(Command::BlockStatus, asked);
        let broken = control.lock().is_broken();
        Ok((broken, self.error(DiskOp::Extents, ended).map(|ended| ended.status)))
    }

    /// The control connection, made anew if it broke.
    fn control(&self) -> Result<Arc<Slot>, DiskError> {
        let mut control = lock(&self.control);
        // A server that was killed while nothing was in flight is noticed by looking.
        if !control.lock().probe() {
            *control = Slot::new(self.connect_again(self.options.timeout)?);
        }
        Ok(control.clone())
    }

    fn connect_again(&self, limit: Duration) -> Result<Connection, DiskError> {
        let connection = self.route.connect_again(limit, &self.lost, &self.name)?;
        if self.is_fenced() && connection.export().contexts.fence.is_none() {
            return Err(self.refusal(DiskErrorKind::Denied, "the server does not keep epochs any more"));
        }
        let (now, then) = (connection.export(), &self.export);
        if now.size != then.size {
            let text = format!("the export has {} bytes now, it had {} when opened", now.size, then.size);
            return Err(self.refusal(DiskErrorKind::Corrupt, &text));
        }
        // What makes a write safe was decided by these.
        let safety = flag::READ_ONLY | flag::FLUSH | flag::FUA | flag::MULTI_CONN;
        if self.writable && (now.flags ^ then.flags) & safety != 0 {
            let text = format!("the export's flags are {:#x} now, they were {:#x}", now.flags, then.flags);
            return Err(self.refusal(DiskErrorKind::Corrupt, &text));
        }
        Ok(connection)
    }

    /// Whether lanes may have to share a connection.
    pub(crate) fn shares_connection(&self) -> bool {
        self.single.load(SeqCst) || self.lanes_full.load(SeqCst) != usize::MAX
    }

    /// A connection of a lane's own, or one that it shares with others.
    fn lane_slot(&self) -> Result<Arc<Slot>, DiskError> {
        if self.single.load(SeqCst) {
            return self.control();
        }
        if let Some(slot) = self.shared_slot() {
            return Ok(slot);
        }
        let error = match self.connect_again(self.further_wait) {
            Ok(connection) => {
                let slot = Slot::new(connection);
                lock(&self.lanes).push(Arc::downgrade(&slot));
                return Ok(slot);
            }
            Err(error) => error,
        };
        // A server that lives and lets nobody else in has admitted what it admits: that is shared from now on. One that
        // ends connections at once may only be busy for a moment, if it said that it takes several. One that denies this
        // run (its epoch is over) denies it on every connection.
        if matches!(error.kind, DiskErrorKind::Corrupt | DiskErrorKind::Denied) || !self.answers() {
            return Err(error);
        }
        let lets_wait = error.source.kind() == io::ErrorKind::TimedOut;
        let is_limit = lets_wait || self.refusals.fetch_add(1, SeqCst) + 1 >= REFUSALS_MAX;
        let admitted = self.live_lanes().len();
        if admitted > 0 && is_limit {
            self.lanes_full.store(admitted, SeqCst);
        } else if admitted == 0 && (is_limit || !self.export.has(flag::MULTI_CONN)) {
            self.single.store(true, SeqCst);
            return self.control();
        }
        self.least_used().ok_or(error)
    }

    /// Whether the server answers on the connection that there is. One that stands still as a whole lets new clients
    /// wait, too.
    fn answers(&self) -> bool {
        let control = lock(&self.control).clone();
        let length = self.export.block.minimum.max(512).min(self.export.size);
        let span = ByteSpan::new(0, length);
        if control.lock().probe() && !span.is_empty() {
            control.look(span);
        }
        !control.lock().is_broken()
    }

    /// A connection to share, if the server lets in no more than there are.
    fn shared_slot(&self) -> Option<Arc<Slot>> {
        let is_full = self.live_lanes().len() >= self.lanes_full.load(SeqCst);
        if is_full { self.least_used() } else { None }
    }

    fn least_used(&self) -> Option<Arc<Slot>> {
        self.live_lanes().into_iter().min_by_key(Arc::strong_count)
    }

    /// Connections of lanes that stand.
    fn live_lanes(&self) -> Vec<Arc<Slot>> {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|slot| slot.strong_count() > 0);
        lanes.iter().filter_map(Weak::upgrade).filter(|slot| !slot.is_known_broken()).collect()
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
            None => format!("{}:{}", self.place, self.export.size),
        }
    }

    fn limits(&self) -> Limits {
        let block = self.export.block;
        let bytes_max = block.maximum.max(BLOCK_BYTES);
        Limits {
            bytes_min: block.minimum,
            bytes_preferred: block.preferred.max(REQUEST_BYTES_PREFERRED).min(bytes_max),
            bytes_max,
            lanes_max: if self.single.load(SeqCst) { LANES_SHARING } else { LANES_MAX },
            depth_max: DEPTH_MAX,
        }
    }

    /// `zeroed` is never claimed: no server promises it.
    fn features(&self) -> Features {
        Features {
            writable: self.writable,
            fast_zero: self.writable && self.export.has(flag::WRITE_ZEROES),
            extents: self.export.contexts.allocation.is_some(),
            zeroed: false,
        }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        if self.no_status.load(SeqCst) || self.export.contexts.allocation.is_none() {
            return Ok(vec![Extent::allocated(span)]);
        }
        match self.status(span) {
            Ok(status) if status.allocation.is_empty() => Ok(vec![Extent::allocated(span)]),
            Ok(status) => Ok(cut(status.allocation, span)),
            Err(error) if error.kind == DiskErrorKind::Unsupported => {
                self.no_status.store(true, SeqCst);
                Ok(vec![Extent::allocated(span)])
            }
            Err(error) => Err(error),
        }
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        let slot = self.lane_slot()?;
        let owner = self.next_owner.fetch_add(1, SeqCst);
        let (lane, bytes_max) =
            (NbdLane::new(slot, owner, self.route.clone(), self), self.export.block.maximum);
        Ok(if bytes_max < BLOCK_BYTES { Box::new(PiecesLane::new(lane, bytes_max)) } else { Box::new(lane) })
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
