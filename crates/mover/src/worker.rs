//! The worker threads of one transfer.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_copy::{Copier, Failure, FlushTicket, Leaf, Next, StopCause};
use drover_disk::{Buffer, Completion, Disk, DiskError, DiskErrorKind, DiskOp, Lane, Request, Slice, Work};
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::journal::JournalFile;
use crate::progress::{Progress, StopSignal};
use crate::transfer::{Lanes, MoveError};

/// A worker with nothing to do looks again after this long, to notice a stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the workers of a transfer share.
pub(crate) struct Shared<'a> {
    core: Mutex<Core>,
    changed: Condvar,
    journal: Mutex<Option<JournalFile>>,
    progress: &'a Progress,
    stop: &'a StopSignal,
    started: Instant,
}

struct Core {
    copier: Copier,
    error: Option<MoveError>,
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
        journal: Option<JournalFile>,
        progress: &'a Progress,
        stop: &'a StopSignal,
    ) -> Self {
        progress.update(&copier.totals());
        let core = Mutex::new(Core { copier, error: None });
        Shared {
            core,
            changed: Condvar::new(),
            journal: Mutex::new(journal),
            progress,
            stop,
            started: Instant::now(),
        }
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

    fn next(&self) -> Next {
        let mut core = self.core();
        if self.stop.is_set() {
            core.copier.stop(StopCause::Cancelled);
        }
        core.copier.next(self.now())
    }

    /// Tells the core what happened and wakes workers that wait for it.
    fn tell<R>(&self, event: impl FnOnce(&mut Copier, Duration) -> R) -> R {
        let mut core = self.core();
        let result = event(&mut core.copier, self.now());
        self.progress.update(&core.copier.totals());
        drop(core);
        self.changed.notify_all();
        result
    }

    /// Tells the core of a failure; keeps the error if the copy ends because of it.
    fn failed(&self, span: ByteSpan, error: DiskError) {
        let mut core = self.core();
        let now = self.now();
        if !core.copier.failed(span, failure_of(error.kind), now) {
            core.error.get_or_insert(error.into());
        }
        self.progress.update(&core.copier.totals());
        drop(core);
        self.changed.notify_all();
    }

    fn target_broke(&self) {
        self.tell(|copier, _| copier.target_lost());
    }

    fn wait(&self, until: Option<Duration>) {
        let pause = until.map_or(LOOK_AGAIN, |until| until.saturating_sub(self.now()).min(LOOK_AGAIN));
        let core = self.core();
        drop(self.changed.wait_timeout(core, pause.max(Duration::from_micros(100))));
    }

    /// Flushes the target and records what that made durable.
    fn flush(&self, ticket: FlushTicket, target: &dyn Disk) {
        let started = Instant::now();
        let result = target.flush();
        match result {
            Ok(()) => self.record(ticket),
            Err(error) => {
                let mut core = self.core();
                let now = self.now();
                core.copier.flush_failed(failure_of(error.kind), now);
                if core.copier.stop_cause() == Some(StopCause::Failed) {
                    core.error.get_or_insert(error.into());
                }
            }
        }
        Progress::spent(&self.progress.flush_ns, started.elapsed());
        self.changed.notify_all();
    }

    fn record(&self, ticket: FlushTicket) {
        let entries = self.tell(|copier, now| copier.flushed(ticket, now));
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

fn bytes_of(entries: &[drover_copy::Entry]) -> u64 {
    let blocks = entries.iter().map(|entry| match entry {
        drover_copy::Entry::Data { leaves, .. } => leaves.len() as u64,
        drover_copy::Entry::Zero { count, .. } => u64::from(*count),
        drover_copy::Entry::Complete(_) => 0,
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

/// Runs the workers to the end of the copy. A panic of one is passed on.
pub(crate) fn run_workers(shared: &Shared<'_>, lanes: &Lanes, source: &dyn Disk, target: Option<&dyn Disk>) {
    std::thread::scope(|scope| {
        for _ in 0..lanes.count {
            scope.spawn(|| Worker::new(shared, *lanes, source, target).run());
        }
    });
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    lanes: Lanes,
    source: Side<'a>,
    target: Option<Side<'a>>,
    buffers: Vec<Buffer>,
    writing: HashMap<u64, Writing>,
    write_id: u64,
    /// Which span a write or zero request of the target lane belongs to.
    span_of_write: HashMap<u64, ByteSpan>,
}

/// A span whose parts are on their way to the target.
struct Writing {
    parts_left: usize,
    error: Option<DiskError>,
}

/// A disk and this worker's lane to it, opened when first needed and again when it broke.
struct Side<'a> {
    disk: &'a dyn Disk,
    lane: Option<Box<dyn Lane>>,
}

impl Side<'_> {
    fn lane(&mut self) -> Result<&mut Box<dyn Lane>, DiskError> {
        if self.lane.as_ref().is_some_and(|lane| lane.is_broken() && lane.in_flight() == 0) {
            self.lane = None;
        }
        if self.lane.is_none() {
            self.lane = Some(self.disk.open_lane()?);
        }
        Ok(self.lane.as_mut().expect("opened just above"))
    }

    fn in_flight(&self) -> usize {
        self.lane.as_ref().map_or(0, |lane| lane.in_flight())
    }
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, lanes: Lanes, source: &'a dyn Disk, target: Option<&'a dyn Disk>) -> Self {
        Worker {
            shared,
            lanes,
            source: Side { disk: source, lane: None },
            target: target.map(|disk| Side { disk, lane: None }),
            buffers: Vec::new(),
            writing: HashMap::new(),
            write_id: 0,
            span_of_write: HashMap::new(),
        }
    }

    fn run(&mut self) {
        let mut pending = Next::Wait(None);
        loop {
            while self.source.in_flight() < self.lanes.depth {
                pending = self.shared.next();
                if !self.start(pending) {
                    break;
                }
            }
            if self.collect() {
                continue;
            }
            match pending {
                Next::Done | Next::Stopped => return,
                Next::Wait(until) => self.idle(until),
                _ => {}
            }
        }
    }

    /// Starts a piece of work; false if there was none.
    fn start(&mut self, next: Next) -> bool {
        match next {
            Next::Map(span) => self.map(span),
            Next::Read(span) => self.start_read(span),
            Next::Zero(span) => self.start_zero(span),
            Next::Flush(ticket) => match &self.target {
                Some(target) => self.shared.flush(ticket, target.disk),
                None => unreachable!("hashing has nothing to flush"),
            },
            Next::Wait(_) | Next::Done | Next::Stopped => return false,
        }
        true
    }

    fn idle(&self, until: Option<Duration>) {
        let started = Instant::now();
        self.shared.wait(until);
        Progress::spent(&self.shared.progress.idle_ns, started.elapsed());
    }

    fn map(&mut self, span: ByteSpan) {
        let started = Instant::now();
        match self.source.disk.extents(span) {
            Ok(extents) => self.shared.tell(|copier, _| copier.mapped(&extents)),
            // Reading everything is slower and always right.
            Err(_) => self.shared.tell(|copier, _| copier.map_failed()),
        }
        Progress::spent(&self.shared.progress.source_ns, started.elapsed());
    }

    fn start_read(&mut self, span: ByteSpan) {
        let mut buffer =
            self.buffers.pop().unwrap_or_else(|| Buffer::zeroed(self.lanes.request_bytes as usize));
        buffer.set_len(span.length as usize);
        let started = Instant::now();
        match self.source.lane() {
            Ok(lane) => lane.submit(Request { id: span.offset, span, work: Work::Read(buffer) }),
            Err(error) => {
                self.buffers.push(buffer);
                self.shared.failed(span, error);
            }
        }
        Progress::spent(&self.shared.progress.source_ns, started.elapsed());
    }

    fn start_zero(&mut self, span: ByteSpan) {
        let limit = self.target.as_ref().map_or(span.length, |target| target.disk.limits().bytes_max.max(1));
        let mut pieces = Vec::new();
        let mut rest = span;
        while !rest.is_empty() {
            let piece = ByteSpan::new(rest.offset, rest.length.min(limit));
            pieces.push((piece, None));
            rest = ByteSpan::from_bounds(piece.end(), rest.end());
        }
        self.start_writes(span, pieces);
    }

    /// Takes one completion; false if nothing was in flight.
    fn collect(&mut self) -> bool {
        let target_in_flight = self.target.as_ref().map_or(0, Side::in_flight);
        if target_in_flight > 0
            && (target_in_flight >= self.lanes.target_depth || self.source.in_flight() == 0)
        {
            self.collect_write();
            return true;
        }
        let started = Instant::now();
        let completion = self.source.lane.as_mut().and_then(|lane| lane.complete());
        Progress::spent(&self.shared.progress.source_ns, started.elapsed());
        match completion {
            Some(completion) => self.on_read(completion),
            None => return false,
        }
        true
    }

    fn on_read(&mut self, completion: Completion) {
        let Completion { span, work, result, .. } = completion;
        let Work::Read(buffer) = work else { unreachable!("only reads go to the source") };
        if let Err(error) = result {
            self.buffers.push(buffer);
            self.shared.failed(span, error);
            return;
        }
        let started = Instant::now();
        let leaves: Vec<Leaf> = buffer.chunks(BLOCK_BYTES as usize).map(Leaf::of).collect();
        Progress::spent(&self.shared.progress.cpu_ns, started.elapsed());
        let parts = self.shared.tell(|copier, _| copier.read(span, leaves));
        if parts.is_empty() {
            self.buffers.push(buffer);
            return;
        }
        let buffer = Arc::new(buffer);
        let slice = |part: ByteSpan| {
            let start = (part.offset - span.offset) as usize;
            Slice::new(buffer.clone(), start..start + part.length as usize)
        };
        let data = parts.data.iter().map(|part| (*part, Some(slice(*part))));
        let pieces: Vec<_> = data.chain(parts.zero.iter().map(|part| (*part, None))).collect();
        drop(buffer);
        self.start_writes(span, pieces);
    }

    /// Sends the pieces of a span to the target: a slice is written, nothing means zeros.
    fn start_writes(&mut self, span: ByteSpan, pieces: Vec<(ByteSpan, Option<Slice>)>) {
        self.writing.insert(span.offset, Writing { parts_left: pieces.len(), error: None });
        for (piece, slice) in pieces {
            while self.target.as_ref().is_some_and(|target| target.in_flight() >= self.lanes.target_depth) {
                self.collect_write();
            }
            let started = Instant::now();
            let work = slice.map_or(Work::Zero, Work::Write);
            self.write_id += 1;
            let id = self.write_id;
            let target = self.target.as_mut().expect("a copy that writes has a target");
            match target.lane() {
                Ok(lane) => {
                    self.span_of_write.insert(id, span);
                    lane.submit(Request { id, span: piece, work });
                }
                Err(error) => self.part_ended(span, Some(error)),
            }
            Progress::spent(&self.shared.progress.target_ns, started.elapsed());
        }
    }

    fn collect_write(&mut self) {
        let started = Instant::now();
        let Some(lane) = self.target.as_mut().and_then(|target| target.lane.as_mut()) else { return };
        let completion = lane.complete();
        let broke = lane.is_broken();
        Progress::spent(&self.shared.progress.target_ns, started.elapsed());
        let Some(completion) = completion else { return };
        if broke {
            self.lose_target(&completion);
        }
        if let Work::Write(slice) = completion.work
            && let Some(buffer) = slice.into_buffer()
        {
            self.buffers.push(buffer);
        }
        let span = self.span_of_write.remove(&completion.id).expect("the target ends what it was given");
        self.part_ended(span, completion.result.err());
    }

    /// The target's lane broke: its server may have restarted without what it had not flushed. What
    /// this worker was writing counts as failed, also the parts that had been acknowledged.
    fn lose_target(&mut self, last: &Completion) {
        let disk = self.target.as_ref().map_or("target", |target| target.disk.name());
        for (offset, writing) in &mut self.writing {
            let span = ByteSpan::new(*offset, last.span.length);
            let lost =
                io::Error::new(io::ErrorKind::ConnectionReset, "the connection to the target was lost");
            writing.error.get_or_insert_with(|| DiskError::new(DiskOp::Write, span, disk, lost));
        }
        self.shared.target_broke();
    }

    fn part_ended(&mut self, span: ByteSpan, error: Option<DiskError>) {
        let writing = self.writing.get_mut(&span.offset).expect("a part belongs to a span being written");
        writing.parts_left -= 1;
        writing.error = writing.error.take().or(error);
        if writing.parts_left > 0 {
            return;
        }
        let writing = self.writing.remove(&span.offset).expect("it was there just above");
        match writing.error {
            Some(error) => self.shared.failed(span, error),
            None => self.shared.tell(|copier, _| copier.landed(span)),
        }
    }
}
