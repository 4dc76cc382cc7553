use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use drover_disk::{Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, check_span};
use drover_http::ExtentSource;
use drover_types::{ByteSpan, Bytes, Extent};

use crate::budget::{Buffers, Grant, Ledger};
use crate::choice::{Choice, CodecWish};
use crate::codec::Codec;
use crate::connect::{OPEN_SESSION, Session, Ticket, Tickets, Way, connect};
use crate::connection::{CONTROL, Connection, control_error};
use crate::error::{NfcError, NfcErrorKind};
use crate::frame::{self, kind};
use crate::lane::NfcLane;
use crate::slot::{OutOfMemory, Slot, lock};
use crate::tls::TlsMaker;
use crate::trace::Trace;

pub(crate) const SECTOR_BYTES: u64 = 512;

/// Lanes that take turns on one connection: while one hashes or writes, another receives.
const LANES_MAX: usize = 4;

/// Requests in flight; hosts were seen to take 32.
const DEPTH_MAX: usize = 16;

/// Requests of this size and more are worth their cost; VMware's own client sends up to 32 MiB in one.
const REQUEST_BYTES_PREFERRED: u64 = 1 << 20;
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Bytes of a chunk in a question for allocated blocks: the least that VDDK asks for.
const CHUNK_BYTES: u64 = 64 << 10;

/// Fewer chunks than these are not worth a question: a host that refuses them is not asked at all.
const CHUNKS_MIN: u64 = 1024;

/// How often a session of the API is kept alive; it ends after half an hour without a call.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(5 * 60);

/// Tries to open a disk that each meet another obstacle: a ticket that was too old, a tag that is not known, buffers
/// that are too large.
const TRIES_MAX: usize = 12;
const PAUSE: Duration = Duration::from_millis(500);

/// How to open a disk.
pub struct NfcOptions {
    /// For errors and progress.
    pub name: String,
    /// The disk as the host names it: `[datastore] folder/name.vmdk`.
    pub path: String,
    /// What tells its content from others.
    pub identity: String,
    /// Its size, if it is known: another one is refused.
    pub size: Option<u64>,
    /// Whether it is written. Not yet proven on any real host.
    pub writable: bool,
    /// Whether the data goes through TLS too (NFCSSL).
    pub encrypted: bool,
    /// Without a byte for this long the connection is made anew.
    pub timeout: Duration,
    /// How long a host without free NFC memory is waited for, and a disk that somebody else has open.
    pub patience: Duration,
    /// Most bytes of buffers that it takes of its host's memory.
    pub buffers_max: u64,
    /// How data is packed.
    pub codec: CodecWish,
    /// What is allocated, if somebody else knows it: asked before the host is.
    pub extents: Option<Arc<dyn ExtentSource>>,
    /// Where heads of frames are written.
    pub trace: Option<Arc<Trace>>,
}

impl NfcOptions {
    /// To read a disk, with everything as it is best.
    pub fn new(name: &str, path: &str) -> NfcOptions {
        NfcOptions {
            name: name.to_string(),
            path: path.to_string(),
            identity: format!("nfc {path}"),
            size: None,
            writable: false,
            encrypted: true,
            timeout: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            buffers_max: u64::MAX,
            codec: CodecWish::Measure,
            extents: None,
            trace: None,
        }
    }
}

/// What became of a disk's connection, to be told.
#[derive(Clone, Debug, Default)]
pub struct NfcState {
    /// `host:port`.
    pub host: String,
    /// The name under which the host's memory is shared.
    pub memory_of: String,
    /// `nfc`, `vpxa-nfc`.
    pub service: String,
    /// The host's version of NFC.
    pub version: u32,
    /// Buffers of the session.
    pub buffers: String,
    /// Bytes of all of them.
    pub buffer_bytes: u64,
    /// How data is packed, and what was measured: plain bytes per second.
    pub codec: Option<Codec>,
    /// Rates that were measured.
    pub rates: Vec<(Codec, f64)>,
    /// Plain bytes read, and bytes that came for them.
    pub bytes: (u64, u64),
    /// Connections that were made after the first.
    pub reconnects: u64,
    /// What else an operator should know.
    pub notes: Vec<String>,
}

/// What lanes and disk share.
pub(crate) struct Facts {
    pub name: String,
    pub size: u64,
    choice: Mutex<Choice>,
    plain: AtomicU64,
    wire: AtomicU64,
    tickets: Arc<dyn Tickets>,
    kept_alive: Mutex<Instant>,
}

impl Facts {
    /// `kept_alive` is when the session of the API was last used.
    pub fn new(
        name: &str,
        size: u64,
        wish: CodecWish,
        tickets: Arc<dyn Tickets>,
        kept_alive: Instant,
    ) -> Facts {
        Facts {
            name: name.to_string(),
            size,
            choice: Mutex::new(Choice::new(wish)),
            plain: AtomicU64::new(0),
            wire: AtomicU64::new(0),
            tickets,
            kept_alive: Mutex::new(kept_alive),
        }
    }

    pub fn codec(&self) -> Codec {
        lock(&self.choice).next()
    }

    pub fn on_read(&self, codec: Codec, plain: u64, wire: u64, now: Instant) {
        self.plain.fetch_add(plain, Ordering::Relaxed);
        self.wire.fetch_add(wire, Ordering::Relaxed);
        lock(&self.choice).on_read(codec, plain, wire, now);
    }

    /// Reading does not keep the session of the API alive, in which the next ticket is asked for.
    pub fn keep_alive(&self) {
        let mut last = lock(&self.kept_alive);
        if last.elapsed() < KEEP_ALIVE {
            return;
        }
        *last = Instant::now();
        let tickets = self.tickets.clone();
        // Not waited for: a vCenter may take long, and what comes of it, or of no thread for it, shows itself when a ticket is wanted.
        let _ = thread::Builder::new().spawn(move || tickets.keep_alive());
    }
}

/// A disk of a host, over one connection at a time.
pub struct NfcDisk {
    options: NfcOptions,
    way: Way,
    ledger: Ledger,
    facts: Arc<Facts>,
    /// As the host told it first.
    uuid: OnceLock<String>,
    control: Mutex<Arc<Slot>>,
    /// Bytes of buffers that are asked for at most: less after the host refused some.
    most: Mutex<u64>,
    state: Mutex<NfcState>,
    /// The last answer about allocated blocks: from where on, and a bit for each chunk.
    map: Mutex<Option<(u64, u64, Vec<u8>)>>,
    /// Chunks that the host was seen to tell in one answer.
    chunks_max: AtomicU64,
    no_map: AtomicBool,
    next_owner: AtomicU64,
}

/// A connection with all that belongs to it.
struct Made {
    session: Session,
    grant: Grant,
    uuid: Option<String>,
    ticket: Ticket,
    notes: Vec<String>,
}

impl NfcDisk {
    /// Opens a disk.
    ///
    /// # Errors
    /// When no ticket can be had, the host cannot be reached or is another one, or refuses.
    pub fn open(
        options: NfcOptions,
        tickets: Arc<dyn Tickets>,
        tls: Arc<dyn TlsMaker>,
        ledger: Ledger,
    ) -> Result<NfcDisk, NfcError> {
        let way = Way {
            tls,
            encrypted: options.encrypted,
            timeout: options.timeout,
            trace: options.trace.clone(),
            no_tag: false,
        };
        let made = make(&options, &way, &ledger, tickets.as_ref(), options.buffers_max)?;
        let size = made.session.opened.capacity;
        if options.size.is_some_and(|known| known != size) {
            let why = format!(
                "the host says that it has {size} bytes, the inventory {}",
                options.size.unwrap_or(0)
            );
            return Err(NfcError::new(NfcErrorKind::Protocol, format!("opening {}", options.path), why));
        }
        let facts = Arc::new(Facts::new(&options.name, size, options.codec, tickets, Instant::now()));
        let mut state = NfcState::default();
        tell(&mut state, &made);
        let name = options.name.clone();
        let slot = Slot::new(made.session.connection, made.grant)
            .map_err(|error| NfcError::io(format!("opening {name}"), &error))?;
        Ok(NfcDisk {
            most: Mutex::new(options.buffers_max),
            options,
            way,
            ledger,
            facts,
            uuid: made.uuid.map_or_else(OnceLock::new, OnceLock::from),
            control: Mutex::new(slot),
            state: Mutex::new(state),
            map: Mutex::default(),
            chunks_max: AtomicU64::new(frame::CHUNKS_MAX),
            no_map: AtomicBool::new(false),
            next_owner: AtomicU64::new(CONTROL + 1),
        })
    }

    /// What there is to tell by now.
    pub fn state(&self) -> NfcState {
        let mut state = lock(&self.state).clone();
        let choice = lock(&self.facts.choice);
        state.codec = choice.chosen();
        state.rates = choice.rates().to_vec();
        state.bytes = (self.facts.plain.load(Ordering::Relaxed), self.facts.wire.load(Ordering::Relaxed));
        state
    }

    /// A value of the disk's database, by its key without `ddb.`; `None` if it has none.
    ///
    /// # Errors
    /// When the host fails to answer.
    pub fn database(&self, key: &str) -> Result<Option<String>, NfcError> {
        let slot =
            self.control().map_err(|error| NfcError::other(NfcErrorKind::Connection, "asking", error))?;
        ddb_get(&mut slot.lock(), key)
    }

    /// The connection, made anew if it broke.
    fn control(&self) -> Result<Arc<Slot>, DiskError> {
        let mut control = lock(&self.control);
        let Err(OutOfMemory(no_memory)) = control.probe() else { return Ok(control.clone()) };
        let op = |error: NfcError| error.into_disk(DiskOp::Open, ByteSpan::new(0, 0), &self.facts.name);
        // What the old session had is free, as far as we know; lanes that still hold it only wait for its end.
        // Once: when it is tried again, nothing is given back, and nothing was refused.
        if let Some(had) = control.give_back().filter(|_| no_memory) {
            let state = lock(&self.state).clone();
            // The ledger's folder was good a moment ago; without it the disk still gets smaller buffers.
            let _ = self.ledger.lower(&state.memory_of, &state.service, had.total());
            *lock(&self.most) = had.smaller().unwrap_or(had).total();
        }
        let most = *lock(&self.most);
        let made =
            make(&self.options, &self.way, &self.ledger, self.facts.tickets.as_ref(), most).map_err(op)?;
        let size = made.session.opened.capacity;
        // A uuid that was not told, now or before, says nothing.
        let uuid = made.uuid.as_ref().map(|uuid| (uuid, self.uuid.get_or_init(|| uuid.clone())));
        if size != self.facts.size || uuid.is_some_and(|(now, before)| now != before) {
            let text = format!(
                "it was connected to anew and is another disk: {size} bytes and uuid {:?}, before {} and {:?}",
                made.uuid,
                self.facts.size,
                self.uuid.get()
            );
            return Err(op(NfcError::new(NfcErrorKind::Protocol, "opening it again", text)));
        }
        let mut state = lock(&self.state);
        state.reconnects += 1;
        tell(&mut state, &made);
        *control = Slot::new(made.session.connection, made.grant)
            .map_err(|error| op(NfcError::io("opening it again", &error)))?;
        Ok(control.clone())
    }

    /// The allocated chunks around `offset`, as the host tells them.
    fn allocated(&self, span: ByteSpan) -> Result<Vec<Extent>, NfcError> {
        let whole = self.facts.size / CHUNK_BYTES;
        let chunk = span.offset / CHUNK_BYTES;
        // What is no whole chunk is taken as allocated.
        if chunk >= whole {
            return Ok(vec![Extent::allocated(span)]);
        }
        let mut map = lock(&self.map);
        let known = map.as_ref().is_some_and(|(from, count, _)| (*from..from + count).contains(&chunk));
        if !known {
            *map = Some(self.chunks_from(chunk, whole - chunk)?);
        }
        let Some((from, count, bits)) = map.as_ref() else { return Ok(vec![Extent::allocated(span)]) };
        let is_set = |chunk: u64| {
            let at = (chunk - from) as usize;
            bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
        };
        let mut extents: Vec<Extent> = Vec::new();
        let end = span.end().min((from + count) * CHUNK_BYTES);
        let mut at = span.offset;
        while at < end {
            let chunk = at / CHUNK_BYTES;
            let allocated = is_set(chunk);
            let mut next = chunk + 1;
            while next * CHUNK_BYTES < end && is_set(next) == allocated {
                next += 1;
            }
            let part = ByteSpan::from_bounds(at, (next * CHUNK_BYTES).min(end));
            extents.push(if allocated { Extent::allocated(part) } else { Extent::zero(part) });
            at = part.end();
        }
        Ok(extents)
    }

    /// A bit for each of the next chunks, of which there are `left`. How many a host tells at once nobody knows: one that
    /// refuses is asked for half as many.
    fn chunks_from(&self, chunk: u64, left: u64) -> Result<(u64, u64, Vec<u8>), NfcError> {
        let mut count = left.min(self.chunks_max.load(Ordering::Relaxed));
        loop {
            match self.query(chunk, count) {
                Err(error) if error.kind == NfcErrorKind::Refused && count / 2 >= CHUNKS_MIN => {
                    count /= 2;
                    self.chunks_max.store(count, Ordering::Relaxed);
                }
                told => return Ok((chunk, count, told?)),
            }
        }
    }

    fn query(&self, chunk: u64, count: u64) -> Result<Vec<u8>, NfcError> {
        let op = "asking for allocated blocks";
        let slot = self.control().map_err(|error| NfcError::other(NfcErrorKind::Connection, op, error))?;
        let mut connection = slot.lock();
        let question = frame::query_allocated(connection.handle(), CHUNK_BYTES, chunk * CHUNK_BYTES, count);
        connection.start_control(kind::QUERY_ALLOCATED, &question, &[], count);
        drop(connection);
        let ended = slot.wait(CONTROL, &mut |_, _| {});
        let reply = ended.result.map_err(|failure| control_error(op, failure))?;
        // One that tells of fewer chunks than asked for would have the rest read as zeros.
        if frame::u64_at(&reply.payload, 32) != count {
            let told = frame::u64_at(&reply.payload, 32);
            let why = format!("the host tells {told} chunks, asked were {count}");
            return Err(NfcError::new(NfcErrorKind::Protocol, op, why));
        }
        Ok(reply.extra)
    }
}

fn tell(state: &mut NfcState, made: &Made) {
    let Made { ticket, grant, session, notes, .. } = made;
    state.host = format!("{}:{}", ticket.host, ticket.port);
    state.memory_of = ticket.memory_of.clone();
    state.service = ticket.service.clone();
    state.version = session.version;
    state.buffers = grant.buffers.to_string();
    state.buffer_bytes = grant.buffers.total();
    for note in notes {
        if !state.notes.contains(note) {
            state.notes.push(note.clone());
        }
    }
}

fn ddb_get(connection: &mut Connection, key: &str) -> Result<Option<String>, NfcError> {
    let question = frame::ddb_get(connection.handle(), key);
    let reply =
        connection.call("asking for a value of the disk", kind::DDB_GET, &question, key.as_bytes())?;
    let text = String::from_utf8_lossy(&reply.extra);
    Ok(Some(drover_stream::printable(text.trim_end_matches('\0'))).filter(|text| !text.is_empty()))
}

/// A session with the open disk, and what the host says of its uuid.
fn connect_and_ask(
    options: &NfcOptions,
    way: &Way,
    ticket: &Ticket,
    buffers: Buffers,
) -> Result<(Session, Result<Option<String>, NfcError>), NfcError> {
    let mut session = connect(way, ticket, buffers, &options.path, options.writable)?;
    let uuid = ddb_get(&mut session.connection, "uuid");
    if session.connection.is_broken() {
        let why = "the host ended the connection when it was asked for the disk's uuid";
        return Err(NfcError::new(NfcErrorKind::Connection, format!("opening {}", options.path), why));
    }
    Ok((session, uuid))
}

/// Makes a connection with the largest buffers that the budget has and the host takes.
fn make(
    options: &NfcOptions,
    way: &Way,
    ledger: &Ledger,
    tickets: &dyn Tickets,
    mut most: u64,
) -> Result<Made, NfcError> {
    let mut way = way.clone();
    let mut notes = Vec::new();
    let mut old_tickets = 0;
    let until = Instant::now() + options.patience;
    let mut tries = 0;
    loop {
        let ticket = tickets.ticket()?;
        let grant =
            ledger.reserve(&ticket.memory_of, &ticket.service, most, options.patience).map_err(|error| {
                let kind = match error.kind() {
                    io::ErrorKind::TimedOut => NfcErrorKind::Memory,
                    _ => NfcErrorKind::Refused,
                };
                NfcError::other(kind, "sharing the NFC memory of the host", error)
            })?;
        // The ticket may have died meanwhile.
        let ticket = if grant.waited { tickets.ticket()? } else { ticket };
        let buffers = grant.buffers;
        let error = match connect_and_ask(options, &way, &ticket, buffers) {
            Ok((session, uuid)) => {
                let uuid = uuid.unwrap_or_else(|error| {
                    notes.push(format!("the host does not tell the disk's uuid ({error})"));
                    None
                });
                return Ok(Made { session, grant, uuid, ticket, notes });
            }
            Err(error) => error,
        };
        drop(grant);
        let passes = match error.kind {
            // What others hold they give back in time, and a service that restarts (vpxa) is there again soon.
            NfcErrorKind::Locked | NfcErrorKind::Connection => true,
            NfcErrorKind::Memory => buffers.smaller().is_none(),
            _ => false,
        };
        if passes && Instant::now() < until {
            thread::sleep(PAUSE);
            continue;
        }
        tries += 1;
        if tries >= TRIES_MAX {
            return Err(error);
        }
        match error.kind {
            // Used or too old: each ticket is good for one connection, soon.
            NfcErrorKind::Ticket if old_tickets == 0 => old_tickets += 1,
            NfcErrorKind::Tag if !way.no_tag => {
                way.no_tag = true;
                notes.push("the host does not know the tag of newer ones".to_string());
            }
            NfcErrorKind::Memory => {
                let lowered = ledger
                    .lower(&ticket.memory_of, &ticket.service, buffers.total())
                    .unwrap_or_else(|_| ledger.budget(&ticket.memory_of, &ticket.service));
                notes.push(format!(
                    "the host has no NFC memory for buffers of {buffers}; drover now counts on {} there",
                    Bytes(lowered)
                ));
                match buffers.smaller() {
                    Some(smaller) => most = smaller.total(),
                    None => return Err(error),
                }
            }
            _ if error.op == OPEN_SESSION && error.kind != NfcErrorKind::Connection => {
                match buffers.smaller() {
                    Some(smaller) => {
                        notes.push(format!("the host refuses buffers of {buffers}"));
                        most = smaller.total();
                    }
                    None => return Err(error),
                }
            }
            _ => return Err(error),
        }
    }
}

impl Disk for NfcDisk {
    fn name(&self) -> &str {
        &self.facts.name
    }

    fn size(&self) -> u64 {
        self.facts.size
    }

    fn identity(&self) -> String {
        self.options.identity.clone()
    }

    fn limits(&self) -> Limits {
        Limits {
            bytes_min: SECTOR_BYTES,
            bytes_preferred: REQUEST_BYTES_PREFERRED,
            bytes_max: REQUEST_BYTES_MAX,
            lanes_max: LANES_MAX,
            depth_max: DEPTH_MAX,
        }
    }

    fn features(&self) -> Features {
        let extents = !self.options.writable;
        Features { writable: self.options.writable, fast_zero: false, extents, zeroed: false }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        // What the host tells is old after writes, until the disk is opened again.
        if self.options.writable {
            return Ok(vec![Extent::allocated(span)]);
        }
        if let Some(extents) = self.options.extents.as_ref().and_then(|source| source.extents(span)) {
            return Ok(extents);
        }
        if self.no_map.load(Ordering::Relaxed) {
            return Ok(vec![Extent::allocated(span)]);
        }
        match self.allocated(span) {
            Ok(extents) => Ok(extents),
            Err(error) if error.disk_kind() == DiskErrorKind::Transient => {
                Err(error.into_disk(DiskOp::Extents, span, &self.facts.name))
            }
            Err(error) => {
                self.no_map.store(true, Ordering::Relaxed);
                let note = format!("allocated blocks are unknown, so the whole disk is read: {error}");
                lock(&self.state).notes.push(note);
                Ok(vec![Extent::allocated(span)])
            }
        }
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        let owner = self.next_owner.fetch_add(1, Ordering::Relaxed);
        let (slot, facts) = (self.control()?, self.facts.clone());
        Ok(Box::new(NfcLane::new(slot, owner, facts, self.limits(), self.options.writable)))
    }

    /// A host answers a write when it is on the datastore; there is no message to ask for more.
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}
