//! What the workers of a transfer share: the copier, the window, the journal.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_copy::{Copier, Failure, FlushTicket, Next, StopCause, Window};
use drover_disk::{Disk, DiskError, DiskErrorKind, DiskOp};
use drover_log::log;
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::journal::{Claim, JournalFile};
use crate::memory::MemoryShare;
use crate::progress::{Progress, StopSignal};
use crate::transfer::MoveError;

/// A worker with nothing to do looks again after this long, to notice a stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Told of the blocks that the audit of a pass found changed, before any of them is mended.
pub type Found<'a> = dyn Fn(u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Sync + 'a;

/// What the workers of a transfer share.
pub(crate) struct Shared<'a> {
    core: Mutex<Core>,
    /// Something happened that a worker with nothing to do may wait for.
    changed: Condvar,
    /// The window has room for more lanes, or all is over.
    wanted: Condvar,
    journal: Mutex<Option<JournalFile>>,
    claim: Option<Arc<Claim>>,
    found: Option<&'a Found<'a>>,
    was_told: AtomicBool,
    pub(crate) progress: &'a Progress,
    stop: &'a StopSignal,
    started: Instant,
}

struct Core {
    copier: Copier,
    window: Window,
    memory: MemoryShare,
    /// The share as it was last looked at, and what of it was free.
    memory_bytes: (u64, u64),
    /// Buffers that wait for their next use.
    kept_bytes: u64,
    error: Option<MoveError>,
    /// How often the target lost, or may have lost, what it had not flushed.
    losses: u64,
    /// A worker panicked: what it had in flight will never end.
    is_lost: bool,
    /// The workers have ended.
    is_ended: bool,
    /// The disks were told of the stop: what fails from now on may do so because of that.
    is_withdrawn: bool,
}

/// What a worker is to do with its lane.
pub(crate) enum Turn {
    /// This.
    Go(Next),
    /// Its lane is full, or not wanted any more: collect what is in flight.
    Full,
}

/// A request that was sent: what the window has to know when it ends.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    at: Duration,
    generation: u64,
}

/// How it ended.
pub(crate) struct End {
    pub(crate) copier: Copier,
    pub(crate) journal: Option<JournalFile>,
    pub(crate) error: Option<MoveError>,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(
        copier: Copier,
        window: Window,
        memory: MemoryShare,
        journal: Option<JournalFile>,
        progress: &'a Progress,
        stop: &'a StopSignal,
    ) -> Self {
        progress.update(&copier.totals());
        let core = Mutex::new(Core {
            copier,
            window,
            memory,
            memory_bytes: (0, 0),
            kept_bytes: 0,
            error: None,
            losses: 0,
            is_lost: false,
            is_ended: false,
            is_withdrawn: false,
        });
        Shared {
            core,
            changed: Condvar::new(),
            wanted: Condvar::new(),
            claim: journal.as_ref().map(JournalFile::claim),
            found: None,
            was_told: AtomicBool::new(false),
            journal: Mutex::new(journal),
            progress,
            stop,
            started: Instant::now(),
        }
    }

    /// The same, with somebody to be told of what an audit finds.
    pub(crate) fn telling(self, found: &'a Found<'a>) -> Self {
        Shared { found: Some(found), ..self }
    }

    pub(crate) fn into_end(self) -> End {
        let core = self.core.into_inner().unwrap_or_else(PoisonError::into_inner);
        let journal = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        End { copier: core.copier, journal, error: core.error }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the worker of that number is to do, with so many reads in flight on its lane.
    pub(crate) fn next(&self, worker: usize, in_flight: usize) -> Turn {
        let mut core = self.core();
        if core.is_lost {
            return Turn::Go(Next::Stopped);
        }
        core.follow_budget();
        let depth = if worker < core.window.lanes() { core.window.depth() } else { 0 };
        if self.stop.is_set() {
            core.copier.stop(StopCause::Cancelled);
        }
        if in_flight >= depth {
            return Turn::Full;
        }
        let next = core.copier.next(self.now());
        core.tell_budget();
        if matches!(next, Next::Done | Next::Stopped) {
            self.wanted.notify_all();
        }
        Turn::Go(next)
    }

    /// Whether a buffer may wait for its next use: those that wait and those in flight have to fit into what this
    /// disk may take, and none may be much larger than a request is by now. Many disks at once have little each,
    /// and what each worker kept of its first large ones would come on top.
    pub(crate) fn may_keep(&self, bytes: usize) -> bool {
        let mut core = self.core();
        let kept_bytes = core.kept_bytes + bytes as u64;
        let fits = core.copier.in_flight_bytes() + kept_bytes <= core.memory.bytes();
        let may = fits && bytes as u64 <= 2 * core.window.request_bytes();
        if may {
            core.kept_bytes = kept_bytes;
        }
        may
    }

    /// A buffer that was kept is kept no more.
    pub(crate) fn let_go(&self, bytes: usize) {
        self.core().kept_bytes -= bytes as u64;
    }

    /// Waits until the window wants the worker of that number; false if all is over before.
    pub(crate) fn is_wanted(&self, worker: usize) -> bool {
        let mut core = self.core();
        loop {
            if worker < core.window.lanes() {
                return true;
            }
            if core.is_lost || core.copier.is_over() {
                return false;
            }
            core = self.wanted.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the transfer after a panic, so that the other workers do not wait for ever.
    pub(crate) fn lose(&self) {
        self.core().is_lost = true;
        self.changed.notify_all();
        self.wanted.notify_all();
    }

    /// Waits for the stop, or for the end of the workers. Once a stop is asked for nothing more is begun, and the disks give
    /// up what has not left this host: a slow line may have minutes of it. What was only read is not written to a target
    /// that did so; any other takes it.
    pub(crate) fn withdraw_on_stop(&self, source: &dyn Disk, target: Option<&dyn Disk>) {
        let mut core = self.core();
        while !self.stop.is_set() {
            if core.is_lost || core.is_ended {
                return;
            }
            core = self.wanted.wait_timeout(core, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        if core.copier.is_over() {
            return;
        }
        core.copier.stop(StopCause::Cancelled);
        // One that failed before ends as it would have without the stop.
        if core.copier.stop_cause() != Some(StopCause::Cancelled) {
            return;
        }
        core.is_withdrawn = true;
        drop(core);
        // Until the copier is told, a write of what was read fails there, and counts as given up.
        if target.is_some_and(Disk::withdraw) {
            self.core().copier.withdraw();
        }
        source.withdraw();
        self.changed.notify_all();
    }

    /// The workers have ended: nobody waits for a stop any more.
    pub(crate) fn end(&self) {
        self.core().is_ended = true;
        self.wanted.notify_all();
    }

    /// Whether this run may still write: no other has taken the target over.
    pub(crate) fn check_claim(&self) -> std::io::Result<()> {
        self.claim.as_ref().map_or(Ok(()), |claim| claim.check())
    }

    /// What space is to be set aside for.
    pub(crate) fn to_reserve(&self) -> Vec<ByteSpan> {
        self.core().copier.to_reserve().to_vec()
    }

    /// A read goes out now.
    pub(crate) fn sent(&self) -> Sent {
        Sent { at: self.now(), generation: self.core().window.generation() }
    }

    /// A read ended well.
    pub(crate) fn arrived(&self, span: ByteSpan, sent: Sent) {
        let mut core = self.core();
        let now = self.now();
        let lanes = core.window.lanes();
        let waited = Duration::from_nanos(self.progress.source_ns.load(Relaxed));
        if !core.window.completed(sent.generation, span.length, now.saturating_sub(sent.at), waited, now) {
            return;
        }
        let bytes = core.window.request_bytes();
        core.copier.set_request_bytes(bytes);
        if core.window.lanes() > lanes {
            self.wanted.notify_all();
        }
    }

    /// Tells the core what happened and wakes workers that wait for it.
    pub(crate) fn tell<R>(&self, event: impl FnOnce(&mut Copier, Duration) -> R) -> R {
        let mut core = self.core();
        let result = event(&mut core.copier, self.now());
        self.progress.update(&core.copier.totals());
        drop(core);
        self.changed.notify_all();
        result
    }

    /// Tells the core of a failure; keeps the error if the copy ends because of it.
    pub(crate) fn failed(&self, span: ByteSpan, error: DiskError) {
        log!("copy", "{error}: {}", error.source);
        let mut core = self.core();
        let now = self.now();
        // Whoever waited for its turn may have heard of the stop first.
        let is_given_up = self.stop.is_set() && matches!(error.kind, DiskErrorKind::Transient);
        if is_given_up {
            core.copier.stop(StopCause::Cancelled);
        }
        let is_cancelled = core.copier.stop_cause() == Some(StopCause::Cancelled);
        if core.is_withdrawn || (is_given_up && is_cancelled) {
            core.copier.dropped(span);
        } else if core.copier.failed(span, failure_of(error.kind), now) {
            log!("copy", "{span} is tried again");
        } else {
            core.error.get_or_insert(error.into());
        }
        self.progress.update(&core.copier.totals());
        drop(core);
        self.changed.notify_all();
    }

    pub(crate) fn target_broke(&self) {
        self.core().losses += 1;
        self.tell(|copier, _| copier.target_lost());
    }

    /// How often the target lost writes so far; to be asked before a span is written.
    pub(crate) fn losses(&self) -> u64 {
        self.core().losses
    }

    /// A span is written. If the target lost writes since its first part was sent, it may be among them:
    /// nothing of it counted as landed yet, so nobody else has it done again.
    pub(crate) fn landed(&self, span: ByteSpan, losses: u64, target: &str) {
        let mut core = self.core();
        if core.losses == losses {
            core.copier.landed(span);
        } else if core.is_withdrawn {
            core.copier.dropped(span);
        } else if !core.copier.failed(span, Failure::Transient, self.now()) {
            let lost = std::io::Error::other("the target lost writes while this one was under way");
            let error = DiskError::with_kind(DiskErrorKind::Transient, DiskOp::Write, span, target, lost);
            core.error.get_or_insert(error.into());
        }
        self.progress.update(&core.copier.totals());
        drop(core);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self, until: Option<Duration>) {
        let pause = until.map_or(LOOK_AGAIN, |until| until.saturating_sub(self.now()).min(LOOK_AGAIN));
        let core = self.core();
        drop(self.changed.wait_timeout(core, pause.max(Duration::from_micros(100))));
    }

    /// Flushes the target and records what that made durable.
    pub(crate) fn flush(&self, ticket: FlushTicket, target: &dyn Disk) {
        let started = Instant::now();
        let result = target.flush();
        match result {
            Ok(()) => self.record(ticket, &target.withdrawn()),
            Err(error) => {
                let mut core = self.core();
                let now = self.now();
                core.losses += 1;
                core.copier.flush_failed(failure_of(error.kind), now);
                if core.copier.stop_cause() == Some(StopCause::Failed) {
                    core.error.get_or_insert(error.into());
                }
            }
        }
        Progress::spent(&self.progress.flush_ns, started.elapsed());
        self.changed.notify_all();
    }

    /// Has the journal forget blocks that are about to be overwritten.
    pub(crate) fn forget(&self) {
        match self.tell_found().and_then(|()| self.record_forgotten()) {
            Ok(()) => self.tell(|copier, _| copier.forgotten()),
            Err(error) => {
                let mut core = self.core();
                core.copier.forget_failed();
                core.error.get_or_insert(error);
            }
        }
        self.changed.notify_all();
    }

    /// What an audit found is told before it is mended: blocks that are mended tell nothing any more.
    fn tell_found(&self) -> Result<(), MoveError> {
        let blocks = self.core().copier.audit_mismatches();
        if blocks == 0 || self.was_told.swap(true, Relaxed) {
            return Ok(());
        }
        let what = "keeping what the audit found".to_string();
        let failed = |source| MoveError::Other { what, source };
        self.found.map_or(Ok(()), |found| found(blocks)).map_err(failed)
    }

    fn record_forgotten(&self) -> Result<(), MoveError> {
        let entries = self.core().copier.to_forget();
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(journal.as_mut().map_or(Ok(()), |journal| journal.append(&entries))?)
    }

    fn record(&self, ticket: FlushTicket, withdrawn: &[ByteSpan]) {
        let entries = self.tell(|copier, now| {
            copier.withdrawn(withdrawn);
            copier.flushed(ticket, now)
        });
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(journal) = journal.as_mut() else { return };
        match journal.append(&entries) {
            Ok(()) => self.progress.add_recorded(bytes_of(&entries)),
            // A copy whose journal cannot be kept must not go on for hours: it could not be resumed.
            Err(error) => {
                let mut core = self.core();
                core.copier.stop(StopCause::Failed);
                core.error.get_or_insert(error.into());
            }
        }
    }
}

impl Core {
    /// Takes over the share of memory as it is now.
    fn follow_budget(&mut self) {
        self.tell_budget();
        let (share, free) = (self.memory.bytes().max(BLOCK_BYTES), self.memory.free_bytes().max(BLOCK_BYTES));
        let (share_before, free_before) = std::mem::replace(&mut self.memory_bytes, (share, free));
        if share != share_before {
            self.window.set_bytes_max(share);
            self.copier.set_request_bytes(self.window.request_bytes());
        }
        if free != free_before {
            self.copier.set_window_bytes(free);
        }
    }

    fn tell_budget(&mut self) {
        self.memory.set_used(self.copier.in_flight_bytes());
    }
}

fn bytes_of(entries: &[drover_copy::Entry]) -> u64 {
    let blocks = entries.iter().map(|entry| match entry {
        drover_copy::Entry::Data { leaves, .. } => leaves.len() as u64,
        drover_copy::Entry::Zero { count, .. } => u64::from(*count),
        _ => 0,
    });
    blocks.sum::<u64>() * BLOCK_BYTES
}

/// What a kind of error means for the copy's course.
fn failure_of(kind: DiskErrorKind) -> Failure {
    match kind {
        DiskErrorKind::Transient => Failure::Transient,
        DiskErrorKind::Corrupt => Failure::Corrupt,
        DiskErrorKind::OutOfSpace
        | DiskErrorKind::Gone
        | DiskErrorKind::Denied
        | DiskErrorKind::Unsupported
        | DiskErrorKind::Misuse
        | DiskErrorKind::Failed => Failure::Fatal,
    }
}
