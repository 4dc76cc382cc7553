use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use drover_disk::{Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, check_span};
use drover_link::{Receiver, Sender};
use drover_pack::Chooser;
use drover_types::{ByteSpan, Extent};

use super::lane::{AgentLane, withdrawn};
use super::offers::Offers;
use super::open::{Door, Target, Way};
use super::pending::{Pending, Reply, What};
use super::send::send_all;
use crate::error::Refusal;
use crate::message::{DATA_BYTES_MAX, Head, Kind, PieceHash, decode_extents, piece_count, pieces, words_in};
use crate::opening::{Opened, Writer, codec_names, codecs_of};
use crate::site::Site;
use crate::stats::{Counters, Way as Sent};

/// More gained nothing with any backend; a lane's own requests fill the line.
const LANES_MAX: usize = 8;
/// Reads in flight on a lane: with 8 lanes 128 MiB, more than 10 Gbit/s at 100 ms hold.
const DEPTH_MAX: usize = 16;
/// How long a disk that is dropped waits for the agent to let go of it.
const CLOSE_WAIT: Duration = Duration::from_secs(20);
/// Pauses between tries to reach an agent that went away.
const DIAL_PAUSE_MIN: Duration = Duration::from_millis(100);
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Messages without sense before an agent is given up.
const SENSELESS_MAX: u32 = 3;
/// How long an opening waits for an earlier run to be let go.
const BUSY_WAIT: Duration = Duration::from_secs(15);
/// For so long it says nothing of that.
const BUSY_UNTOLD: Duration = Duration::from_secs(1);

/// How to use a disk of another site.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Bytes of writes that were taken and are not answered.
    pub pending_bytes_max: u64,
    /// Threads that hash and pack.
    pub senders: usize,
    /// How long an agent may be away before the disk is given up.
    pub give_up_after: Duration,
    /// Whether what goes over the link may be packed, both ways.
    pub pack: bool,
    /// Whether the agent is asked which blocks it has already.
    pub offer: bool,
    /// Is told, once, that an opening waits for another run, and what the agent says of that.
    pub waits: fn(&str),
}

impl Default for AgentOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        AgentOptions {
            pending_bytes_max: 64 << 20,
            senders: cores.clamp(2, 4),
            give_up_after: Duration::from_secs(15 * 60),
            pack: true,
            offer: true,
            waits: |_| {},
        }
    }
}

/// A disk that an agent of another site serves.
///
/// A write ends for its lane as soon as it is copied into memory (64 MiB at most); a flush waits for all of them. A
/// write that the agent could not do ends the disk: no flush succeeds after it. When the link is lost the disk opens
/// itself again and sends what was not answered.
pub struct AgentDisk {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub name: String,
    pub opened: Opened,
    pub writable: bool,
    pub options: AgentOptions,
    pub counters: Counters,
    offers: Mutex<Offers>,
    chooser: Mutex<Chooser>,
    site: Arc<Site>,
    state: Mutex<State>,
    /// No write is sent any more; see [`Inner::withdraw`].
    pub is_withdrawn: AtomicBool,
    changed: Condvar,
    started: Instant,
}

pub(super) struct State {
    pub pending: Pending,
    /// The way to the agent, while there is one.
    pub sender: Option<Sender>,
    /// Lanes that wait until more is answered.
    pub blocked: usize,
    /// It is being dropped: a channel that ends is not opened again.
    pub closing: bool,
    pub closed: bool,
}

impl AgentDisk {
    /// Opens a disk of a site to read it.
    ///
    /// # Errors
    /// When the agent cannot be reached or refuses.
    pub fn open_source(site: &Arc<Site>, disk: &str, options: AgentOptions) -> Result<AgentDisk, DiskError> {
        AgentDisk::open(site, disk, None, options)
    }

    /// Opens a disk of a site to overwrite it.
    ///
    /// # Errors
    /// When the agent cannot be reached or refuses: there is something that is not to be overwritten, another run
    /// writes it, or a run with a higher epoch has taken it.
    pub fn open_target(
        site: &Arc<Site>,
        disk: &str,
        target: &Target,
        options: AgentOptions,
    ) -> Result<AgentDisk, DiskError> {
        let writer = Writer {
            size: target.size,
            how: target.how,
            run: crate::random::hex(16),
            epoch: target.epoch,
            attempt: 0,
            volume: target.volume.clone(),
        };
        AgentDisk::open(site, disk, Some(writer), options)
    }

    fn open(
        site: &Arc<Site>,
        disk: &str,
        writer: Option<Writer>,
        options: AgentOptions,
    ) -> Result<AgentDisk, DiskError> {
        let unpacks = if options.pack { codec_names() } else { Vec::new() };
        let mut door = Door { disk: disk.to_string(), writer, takes: unpacks };
        let name = format!("agent://{}/{disk}", site.name());
        let failed = |refusal: Refusal| refusal.on(DiskOp::Open, ByteSpan::new(0, 0), &name);
        let way = first_way(site, &mut door, options.waits).map_err(failed)?;
        door.was_opened();
        let codecs = if options.pack { codecs_of(&way.opened.takes) } else { Vec::new() };
        let inner = Arc::new(Inner {
            name: name.clone(),
            opened: way.opened.clone(),
            writable: door.writer.is_some(),
            site: site.clone(),
            state: Mutex::new(State {
                pending: Pending::new(&way.opened.generation, options.give_up_after),
                sender: Some(way.sender.clone()),
                blocked: 0,
                closing: false,
                closed: false,
            }),
            is_withdrawn: AtomicBool::new(false),
            changed: Condvar::new(),
            counters: Counters::default(),
            offers: Mutex::new(Offers::new(options.offer && takes(&way.opened, "offer"))),
            chooser: Mutex::new(Chooser::new(options.senders, &codecs)),
            options,
            started: Instant::now(),
        });
        let disk = AgentDisk { inner: inner.clone() };
        disk.start(way, door)
            .map_err(|error| failed(Refusal::new(DiskErrorKind::Transient, error.to_string())))?;
        Ok(disk)
    }

    fn start(&self, way: Way, door: Door) -> std::io::Result<()> {
        for _ in 0..self.inner.options.senders.max(1) {
            let inner = self.inner.clone();
            Builder::new().name("agent-send".to_string()).spawn(move || send_all(&inner))?;
        }
        let inner = self.inner.clone();
        Builder::new().name("agent-disk".to_string()).spawn(move || inner.receive_all(way, door))?;
        Ok(())
    }

    /// What the agent told when it was opened.
    pub fn opened(&self) -> &Opened {
        &self.inner.opened
    }

    /// Bytes of writes that were taken and are not answered.
    pub fn pending_bytes(&self) -> u64 {
        self.inner.lock().pending.bytes()
    }

    /// Ends the disk for good: whoever waits for the agent waits no more, and no flush succeeds any more.
    pub fn give_up(&self, why: &str) {
        self.inner.fail(Refusal::new(DiskErrorKind::Gone, why));
    }

    /// Why the disk is of no use any more, once it is not.
    pub fn failure(&self) -> Option<Refusal> {
        self.inner.lock().pending.failed().cloned()
    }

    /// What went over the link so far, by which way.
    pub fn sent(&self) -> Sent {
        self.inner.counters.look()
    }
}

/// The parts of a span that one message covers each.
fn messages(span: ByteSpan) -> impl Iterator<Item = ByteSpan> {
    let starts = (span.offset..span.end()).step_by(DATA_BYTES_MAX as usize);
    starts.map(move |at| ByteSpan::from_bounds(at, at.saturating_add(DATA_BYTES_MAX).min(span.end())))
}

fn takes(opened: &Opened, what: &str) -> bool {
    opened.takes.iter().any(|it| it == what)
}

/// Opens it, and waits a moment for an earlier run that has just ended and is not let go yet.
fn first_way(site: &Site, door: &mut Door, waits: fn(&str)) -> Result<Way, Refusal> {
    let (begun, mut is_told) = (Instant::now(), false);
    loop {
        match door.open(site) {
            Err(refusal) if refusal.kind == DiskErrorKind::Transient && begun.elapsed() < BUSY_WAIT => {
                // One that has just ended is let go at once.
                if !is_told && begun.elapsed() > BUSY_UNTOLD {
                    waits(&format!("{}; waiting for up to {} s", refusal.why, BUSY_WAIT.as_secs()));
                    is_told = true;
                }
                std::thread::sleep(DIAL_PAUSE_MIN);
            }
            result => return result,
        }
    }
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match until {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let pause = until.saturating_sub(self.now()).max(Duration::from_millis(1));
                self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    pub(super) fn offers(&self) -> MutexGuard<'_, Offers> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn chooser(&self) -> MutexGuard<'_, Chooser> {
        self.chooser.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn fail(&self, refusal: Refusal) {
        self.lock().pending.fail(refusal);
        self.notify();
    }

    /// Asks something and waits for the reply.
    pub(super) fn ask(&self, what: What, span: ByteSpan) -> Result<Reply, Refusal> {
        let mut state = self.lock();
        if let Some(refusal) = state.pending.failed() {
            return Err(refusal.clone());
        }
        let id = state.pending.add(what, span);
        drop(state);
        self.notify();
        self.reply_to(id)
    }

    /// Waits for the reply to a request.
    fn reply_to(&self, id: u64) -> Result<Reply, Refusal> {
        let mut state = self.lock();
        loop {
            if let Some(reply) = state.pending.take_reply(id) {
                return if let Reply::Failed(refusal) = reply { Err(refusal) } else { Ok(reply) };
            }
            if let Some(refusal) = state.pending.failed() {
                return Err(refusal.clone());
            }
            state = self.wait(state, None);
        }
    }

    /// Waits until no write that is not answered touches the span; with room for so many more bytes. Not after a
    /// withdrawal.
    pub(super) fn wait_for_room(&self, span: ByteSpan, bytes: u64) -> Result<MutexGuard<'_, State>, Refusal> {
        let mut state = self.lock();
        loop {
            if let Some(refusal) = state.pending.failed() {
                return Err(refusal.clone());
            }
            if state.pending.is_withdrawn() {
                return Err(withdrawn());
            }
            let held = state.pending.bytes();
            let fits = held == 0 || held + bytes <= self.options.pending_bytes_max;
            if fits && !state.pending.overlaps(span) {
                return Ok(state);
            }
            state.blocked += usize::from(!fits);
            state = self.wait(state, None);
            state.blocked -= usize::from(!fits);
        }
    }

    /// A message was not wanted any more when there was room for it.
    pub(super) fn unsent(&self, id: u64) {
        self.lock().pending.unsent(id);
        self.notify();
    }

    fn withdraw(&self) {
        // Before the link is asked: what a sender hands to it after that is not wanted.
        self.is_withdrawn.store(true, SeqCst);
        let mut state = self.lock();
        state.pending.withdraw();
        let sender = state.sender.clone();
        drop(state);
        let mut unsent = Vec::new();
        if let Some(sender) = sender {
            sender.withdraw(|head| {
                let id = Head::decode(head).ok().filter(|head| head.kind.writes()).map(|head| head.id);
                unsent.extend(id);
                id.is_some()
            });
        }
        let mut state = self.lock();
        unsent.into_iter().for_each(|id| state.pending.unsent(id));
        drop(state);
        self.notify();
    }

    fn receive_all(&self, mut way: Way, mut door: Door) {
        let mut senseless = 0;
        loop {
            if self.receive(&way.receiver).is_err() {
                senseless += 1;
                way.sender.reset();
            }
            if self.is_over() {
                return self.notify();
            }
            self.site.lost(way.session);
            let again = match senseless >= SENSELESS_MAX {
                true => Err(Refusal::new(DiskErrorKind::Corrupt, "what the agent answers makes no sense")),
                false => self.open_again(&mut door),
            };
            match again {
                Ok(Some(again)) => way = again,
                Ok(None) => return,
                Err(refusal) => return self.fail(refusal),
            }
            self.notify();
        }
    }

    /// The channel has ended: whether the disk has, too.
    fn is_over(&self) -> bool {
        let mut state = self.lock();
        state.sender = None;
        state.pending.disconnected();
        state.closing || state.pending.failed().is_some()
    }

    /// Takes answers until the channel is over. An error is a message without sense.
    fn receive(&self, receiver: &Receiver) -> Result<(), ()> {
        while let Ok(Some(message)) = receiver.receive() {
            let head = Head::decode(&message.head).map_err(|_| ())?;
            if head.kind == Kind::Have {
                let found = pieces(head.span).enumerate().filter(|(number, _)| head.mask >> number & 1 == 1);
                self.counters.had(found.map(|(_, piece)| piece.length).sum());
                self.offers().found(head.mask.count_ones(), piece_count(head.span) as u32);
            }
            if head.kind == Kind::Data {
                self.counters.read(head.span.length, message.body.len() as u64);
            }
            let now = self.now();
            let result = self.lock().pending.answer(head, message.body, now);
            self.notify();
            result.map_err(|_| ())?;
        }
        Ok(())
    }

    /// Opens the disk again, with patience; `None` if it is not wanted any more.
    fn open_again(&self, door: &mut Door) -> Result<Option<Way>, Refusal> {
        let since = Instant::now();
        let mut pause = DIAL_PAUSE_MIN;
        loop {
            let is_over = |state: &State| state.closing || state.pending.failed().is_some();
            if is_over(&self.lock()) {
                return Ok(None);
            }
            let refusal = match door.open(&self.site) {
                Ok(way) => return self.take_again(way).map(Some),
                Err(refusal) => refusal,
            };
            if refusal.kind != DiskErrorKind::Transient {
                return Err(refusal);
            }
            if since.elapsed() >= self.options.give_up_after {
                let why = format!("given up after {} s: {}", since.elapsed().as_secs(), refusal.why);
                return Err(Refusal::new(DiskErrorKind::Gone, why));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(DIAL_PAUSE_MAX);
        }
    }

    /// Goes on with a disk that was opened again, if it is the same.
    fn take_again(&self, way: Way) -> Result<Way, Refusal> {
        let (was, is) = (&self.opened, &way.opened);
        let same_disk = is.size == was.size && is.tag == was.tag;
        let same_state = self.writable || is.identity == was.identity;
        if !same_disk || !same_state {
            let why =
                "it is not the disk that was opened before the link was lost: it was replaced or changed";
            return Err(Refusal::new(DiskErrorKind::Failed, why));
        }
        let mut state = self.lock();
        state.pending.reopened(&is.generation)?;
        state.sender = Some(way.sender.clone());
        drop(state);
        self.counters.reopened();
        Ok(way)
    }

    fn flush(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        let id = state.pending.next_id();
        while state.pending.failed().is_none() && state.pending.has_writes_before(id) {
            state = self.wait(state, None);
        }
        drop(state);
        self.ask(What::Flush, ByteSpan::new(0, 0)).map(|_| ())
    }

    /// Asks for the hashes of these spans, none longer than a message covers, all at once.
    fn hashes(&self, spans: impl Iterator<Item = ByteSpan>) -> Result<Vec<PieceHash>, Refusal> {
        let mut asked = Vec::new();
        for span in spans {
            let mut state = self.wait_for_room(span, 0)?;
            asked.push(state.pending.add(What::Hash, span));
            drop(state);
            self.notify();
        }
        let mut hashes = Vec::new();
        for (at, id) in asked.iter().enumerate() {
            match self.reply_to(*id) {
                Ok(Reply::Data(head, _)) => hashes.extend(head.hashes),
                other => {
                    let mut state = self.lock();
                    asked[at..].iter().for_each(|id| state.pending.abandon(*id));
                    return Err(other
                        .err()
                        .unwrap_or_else(|| Refusal::new(DiskErrorKind::Corrupt, "no hashes in the answer")));
                }
            }
        }
        Ok(hashes)
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, Refusal> {
        let span = ByteSpan::new(span.offset, span.length.min(crate::message::SPAN_BYTES_MAX));
        drop(self.wait_for_room(span, 0)?);
        match self.ask(What::Extents, span)? {
            Reply::Map(body) => decode_extents(&body, span)
                .map_err(|error| Refusal::new(DiskErrorKind::Corrupt, error.to_string())),
            _ => Err(Refusal::new(DiskErrorKind::Corrupt, "no extents in the answer")),
        }
    }
}

impl Disk for AgentDisk {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn size(&self) -> u64 {
        self.inner.opened.size
    }

    /// A disk that is read may change there; one that is written is what it was opened as.
    fn identity(&self) -> String {
        let identity = match self.inner.writable {
            true => Ok(Reply::Done(self.inner.opened.identity.clone().into_bytes())),
            false => self.inner.ask(What::Identity, ByteSpan::new(0, 0)),
        };
        match identity {
            Ok(Reply::Done(text)) => format!("agent {} {}", self.inner.site.name(), words_in(&text)),
            _ => format!("agent {} gone", self.inner.site.name()),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            bytes_min: self.inner.opened.bytes_min,
            bytes_preferred: DATA_BYTES_MAX,
            bytes_max: DATA_BYTES_MAX,
            lanes_max: LANES_MAX,
            depth_max: DEPTH_MAX,
        }
    }

    fn features(&self) -> Features {
        let Opened { fast_zero, extents, zeroed, .. } = self.inner.opened;
        Features { writable: self.inner.writable, fast_zero, extents, zeroed }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        if !self.inner.opened.extents {
            return Ok(vec![Extent::allocated(span)]);
        }
        self.inner.extents(span).map_err(|refusal| refusal.on(DiskOp::Extents, span, self.name()))
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Ok(Box::new(AgentLane::new(self.inner.clone())))
    }

    fn flush(&self) -> Result<(), DiskError> {
        if !self.inner.writable {
            return Ok(());
        }
        self.inner.flush().map_err(|refusal| refusal.on(DiskOp::Flush, ByteSpan::new(0, 0), self.name()))
    }

    /// What waits to be sent, here or at a connection, is given up; what is on its way is still answered, and a flush
    /// covers it.
    fn withdraw(&self) -> bool {
        self.inner.withdraw();
        true
    }

    fn withdrawn(&self) -> Vec<ByteSpan> {
        self.inner.lock().pending.withdrawn().to_vec()
    }

    /// Of a target, the agent looks itself where it lies, at each flush.
    fn check_same(&self) -> Result<(), DiskError> {
        let failed = |refusal: Refusal| refusal.on(DiskOp::Read, ByteSpan::new(0, 0), self.name());
        if self.inner.writable {
            return Ok(());
        }
        match self.inner.ask(What::Identity, ByteSpan::new(0, 0)).map_err(failed)? {
            Reply::Done(text) if words_in(&text) == self.inner.opened.identity => Ok(()),
            _ => Err(failed(Refusal::new(
                DiskErrorKind::Failed,
                "it was changed at its site while it was read: stop whatever writes to it, or read a snapshot",
            ))),
        }
    }

    fn reserve_bytes(&self) -> u64 {
        self.inner.opened.reserve_bytes
    }

    fn hashes(&self, spans: &[ByteSpan]) -> Result<Option<Vec<PieceHash>>, DiskError> {
        if !takes(&self.inner.opened, "hash") {
            return Ok(None);
        }
        spans.iter().try_for_each(|span| check_span(DiskOp::Read, *span, self))?;
        let first = spans.first().copied().unwrap_or(ByteSpan::new(0, 0));
        let hashes = self.inner.hashes(spans.iter().copied().flat_map(messages));
        hashes.map(Some).map_err(|refusal| refusal.on(DiskOp::Read, first, self.name()))
    }

    /// Nobody waits for it: it is a gain in speed, and what there is no room for shows when it is written.
    fn reserve(&self, spans: &[ByteSpan]) -> Result<(), DiskError> {
        spans.iter().try_for_each(|span| check_span(DiskOp::Write, *span, self))?;
        let Some(sender) = self.inner.lock().sender.clone() else { return Ok(()) };
        for span in spans {
            sender
                .send(&Head::plain(Kind::Reserve, 0, *span).encode(), &[])
                .map_err(|error| Refusal::from(error).on(DiskOp::Write, *span, self.name()))?;
        }
        Ok(())
    }
}

impl Drop for AgentDisk {
    /// The agent is to have let go of the disk before the next one wants it.
    fn drop(&mut self) {
        let until = self.inner.now() + CLOSE_WAIT;
        let mut state = self.inner.lock();
        state.closing = true;
        if state.pending.failed().is_none() && state.sender.is_some() {
            let id = state.pending.add(What::Close, ByteSpan::new(0, 0));
            self.inner.notify();
            while state.pending.take_reply(id).is_none()
                && state.sender.is_some()
                && state.pending.failed().is_none()
                && self.inner.now() < until
            {
                state = self.inner.wait(state, Some(until));
            }
        }
        state.closed = true;
        let sender = state.sender.take();
        drop(state);
        self.inner.notify();
        if let Some(sender) = sender {
            // It has said goodbye, or will not any more.
            sender.reset();
        }
    }
}
