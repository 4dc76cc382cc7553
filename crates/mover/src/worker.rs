//! A worker thread of a transfer, with a lane to each disk.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use drover_copy::{Leaf, Next};
use drover_disk::{Buffer, Completion, Disk, DiskError, DiskErrorKind, DiskOp, Lane, Request, Slice, Work};
use drover_log::log;
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::progress::Progress;
use crate::shared::{Sent, Shared, Turn};

/// Runs up to `count` workers to the end of the copy, the first of them in the caller's thread. A panic of one is passed on.
pub(crate) fn run_workers(shared: &Shared<'_>, count: usize, source: &dyn Disk, target: Option<&dyn Disk>) {
    std::thread::scope(|scope| {
        let watch = Builder::new().name("watch-stop".to_string());
        if let Err(error) = watch.spawn_scoped(scope, move || shared.withdraw_on_stop(source, target)) {
            log!("copy", "no thread to watch for a stop, which will take longer: {error}");
        }
        let crew = Crew { shared, count, source, target };
        std::thread::scope(|scope| crew.run_from(scope, 0));
        shared.end();
    });
}

/// What the workers of a transfer share.
struct Crew<'a> {
    shared: &'a Shared<'a>,
    count: usize,
    source: &'a dyn Disk,
    target: Option<&'a dyn Disk>,
}

impl Crew<'_> {
    /// Runs the worker of that number once it is wanted, and has the next one wait for that. Most disks never want all of them, and
    /// thousands of disks would spend more on threads than on their data.
    fn run_from<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, number: usize) {
        let Crew { shared, count, source, target } = *self;
        if !shared.is_wanted(number) {
            return;
        }
        if number + 1 < count {
            // Where no more threads can be had, those that there are do the work.
            let _ = Builder::new().spawn_scoped(scope, move || self.run_from(scope, number + 1));
        }
        let _guard = PanicGuard(shared);
        Worker::new(number, shared, source, target).run();
    }
}

/// Tells the others when this worker panics.
struct PanicGuard<'a>(&'a Shared<'a>);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lose();
        }
    }
}

struct Worker<'a> {
    number: usize,
    shared: &'a Shared<'a>,
    source: Side<'a>,
    target: Option<Side<'a>>,
    /// Writes in flight on the target's lane at most.
    target_depth: usize,
    buffers: Vec<Buffer>,
    /// Leaves of reads that are arriving, as far as their blocks are whole.
    arriving: HashMap<u64, Vec<Leaf>>,
    sent: HashMap<u64, Sent>,
    writing: HashMap<u64, Writing>,
    write_id: u64,
    /// Which span a write or zero request of the target lane belongs to.
    span_of_write: HashMap<u64, ByteSpan>,
}

/// Buffers that a worker keeps for further use; more are in flight now and then.
const BUFFERS_KEPT: usize = 4;

/// Writes in flight on a lane: the next one is on its way while one is served.
const TARGET_DEPTH: usize = 4;

/// A span whose parts are on their way to the target.
struct Writing {
    /// How often the target had lost writes when the first part was sent.
    losses: u64,
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
    fn new(
        number: usize,
        shared: &'a Shared<'a>,
        source: &'a dyn Disk,
        target: Option<&'a dyn Disk>,
    ) -> Self {
        Worker {
            number,
            shared,
            source: Side { disk: source, lane: None },
            target: target.map(|disk| Side { disk, lane: None }),
            target_depth: target.map_or(1, |disk| disk.limits().depth_max.clamp(1, TARGET_DEPTH)),
            buffers: Vec::new(),
            arriving: HashMap::new(),
            sent: HashMap::new(),
            writing: HashMap::new(),
            write_id: 0,
            span_of_write: HashMap::new(),
        }
    }

    fn run(&mut self) {
        while self.shared.is_wanted(self.number) {
            if self.work() {
                return;
            }
            for buffer in self.buffers.drain(..) {
                self.shared.let_go(buffer.capacity());
            }
        }
    }

    /// Works until all is over (true) or the window has no room for this lane any more (false).
    fn work(&mut self) -> bool {
        loop {
            let pending = self.refill();
            if self.collect() {
                continue;
            }
            match pending {
                Turn::Full => return false,
                Turn::Go(Next::Done | Next::Stopped) => return true,
                Turn::Go(Next::Wait(until)) => self.idle(until),
                Turn::Go(_) => {}
            }
        }
    }

    /// Starts work until the lane is full or there is none.
    fn refill(&mut self) -> Turn {
        loop {
            match self.shared.next(self.number, self.source.in_flight()) {
                Turn::Go(next) if self.start(next) => {}
                pending => return pending,
            }
        }
    }

    /// Starts a piece of work; false if there was none.
    fn start(&mut self, next: Next) -> bool {
        match next {
            Next::Map(span) => self.map(span),
            Next::Reserve => self.reserve(),
            Next::Read(span) => self.start_read(span),
            Next::Zero(span) => self.start_zero(span),
            Next::Flush(ticket) => match &self.target {
                Some(target) => self.shared.flush(ticket, target.disk),
                None => unreachable!("hashing has nothing to flush"),
            },
            Next::Forget => self.shared.forget(),
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

    fn reserve(&mut self) {
        let started = Instant::now();
        let spans = self.shared.to_reserve();
        if let Some(target) = &self.target
            && target.disk.reserve(&spans).is_err()
        {
            // A gain in speed, no more; what the space is missing for will say so when it is written.
            self.shared.tell(|copier, _| copier.reserve_failed());
        }
        Progress::spent(&self.shared.progress.target_ns, started.elapsed());
    }

    fn start_read(&mut self, span: ByteSpan) {
        let buffer = match self.buffer(span.length as usize) {
            Ok(buffer) => buffer,
            Err(source) => {
                let (kind, name) = (DiskErrorKind::Failed, self.source.disk.name());
                let error = DiskError::with_kind(kind, DiskOp::Read, span, name, source);
                return self.shared.failed(span, error);
            }
        };
        let started = Instant::now();
        match self.source.lane() {
            Ok(lane) => {
                self.sent.insert(span.offset, self.shared.sent());
                lane.submit(Request { id: span.offset, span, work: Work::Read(buffer) });
            }
            Err(error) => {
                self.keep(buffer);
                self.shared.failed(span, error);
            }
        }
        Progress::spent(&self.shared.progress.source_ns, started.elapsed());
    }

    /// A buffer of that length, if possible one that was used before: fresh memory is slow.
    fn buffer(&mut self, length: usize) -> io::Result<Buffer> {
        let found = self.buffers.iter().position(|buffer| buffer.capacity() >= length);
        // One that is too small makes room for the new one.
        let kept = match found {
            Some(index) => Some(self.buffers.swap_remove(index)),
            None => self.buffers.pop(),
        };
        kept.iter().for_each(|buffer| self.shared.let_go(buffer.capacity()));
        let kept = kept.filter(|_| found.is_some());
        let mut buffer = kept.map_or_else(|| Buffer::try_zeroed(length), Ok)?;
        buffer.set_len(length);
        Ok(buffer)
    }

    fn keep(&mut self, buffer: Buffer) {
        let is_of_use = self.buffers.len() < BUFFERS_KEPT.max(self.source.in_flight());
        if is_of_use && self.shared.may_keep(buffer.capacity()) {
            self.buffers.push(buffer);
        }
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
        if target_in_flight > 0 && (target_in_flight >= self.target_depth || self.source.in_flight() == 0) {
            self.collect_write();
            return true;
        }
        let (started, mut hashing) = (Instant::now(), Duration::ZERO);
        let arriving = &mut self.arriving;
        let mut seen = |id: u64, bytes: &[u8]| {
            let leaves = arriving.entry(id).or_default();
            if bytes.len() as u64 >= (leaves.len() as u64 + 1) * BLOCK_BYTES {
                let started = Instant::now();
                add_leaves(leaves, bytes.len() / BLOCK_BYTES as usize, bytes);
                hashing += started.elapsed();
            }
        };
        let completion = self.source.lane.as_mut().and_then(|lane| lane.complete_seeing(&mut seen));
        Progress::spent(&self.shared.progress.source_ns, started.elapsed().saturating_sub(hashing));
        Progress::spent(&self.shared.progress.cpu_ns, hashing);
        match completion {
            Some(completion) => self.on_read(completion),
            None => return false,
        }
        true
    }

    fn on_read(&mut self, completion: Completion) {
        let Completion { id, span, work, result } = completion;
        let mut leaves = self.arriving.remove(&id).unwrap_or_default();
        let Work::Read(buffer) = work else { unreachable!("only reads go to the source") };
        let sent = self.sent.remove(&span.offset);
        if let Err(error) = result {
            self.keep(buffer);
            self.shared.failed(span, error);
            return;
        }
        if let Some(sent) = sent {
            self.shared.arrived(span, sent);
        }
        let started = Instant::now();
        add_leaves(&mut leaves, buffer.len().div_ceil(BLOCK_BYTES as usize), &buffer);
        Progress::spent(&self.shared.progress.cpu_ns, started.elapsed());
        let parts = self.shared.tell(|copier, _| copier.read(span, leaves));
        if parts.is_empty() {
            self.keep(buffer);
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
        let losses = self.shared.losses();
        self.writing.insert(span.offset, Writing { losses, parts_left: pieces.len(), error: None });
        for (piece, slice) in pieces {
            while self.target.as_ref().is_some_and(|target| target.in_flight() >= self.target_depth) {
                self.collect_write();
            }
            let started = Instant::now();
            if let Err(error) = self.shared.check_claim() {
                let name = self.target.as_ref().map_or("target", |target| target.disk.name());
                let error = DiskError::with_kind(DiskErrorKind::Denied, DiskOp::Write, piece, name, error);
                self.part_ended(span, Some(error));
                continue;
            }
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
            self.keep(buffer);
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
        let target = self.target.as_ref().map_or("target", |target| target.disk.name());
        match writing.error {
            Some(error) => self.shared.failed(span, error),
            None => self.shared.landed(span, writing.losses, target),
        }
    }
}

/// Adds the leaves of the blocks after those that are there, up to the `count`th.
fn add_leaves(leaves: &mut Vec<Leaf>, count: usize, bytes: &[u8]) {
    let blocks = bytes.chunks(BLOCK_BYTES as usize).take(count).skip(leaves.len());
    leaves.extend(blocks.map(Leaf::of));
}
