//! A disk as a stream: read by several lanes at once, written in order.
//!
//! ```text
//! worker ─ lane ─ read, hash ─┐                        ┌─ written in order ─> sink
//! worker ─ lane ─ read, hash ─┴─> reorder buffer ──────┘
//!            next chunk < written + window     (bounds the buffer)
//! ```
//!
//! A worker takes the next chunk only if it lies within the window after what has been written, so the
//! reorder buffer never holds more than the window, however slow the sink is. Nothing can be resumed:
//! what a pipe has swallowed does not come back.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use drover_copy::{Leaf, LeafTable, RetryPolicy, RootHasher, SEGMENT_BYTES, Totals, Verdict};
use drover_disk::{Buffer, Disk, DiskError, DiskErrorKind, Lane, Request, Work};
use drover_types::{BLOCK_BYTES, ByteSpan, Digest, Extent, ExtentKind};

use crate::progress::{Progress, StopSignal};
use crate::transfer::{MoveError, TransferOptions, check_same};

/// What a stream was.
#[derive(Clone, Copy, Debug)]
pub struct StreamReport {
    /// Root of the hash tree of what was written.
    pub root: Digest,
    /// Time taken.
    pub elapsed: Duration,
}

/// Bytes that are being read or wait to be written at a time, if memory allows.
const WINDOW_BYTES: u64 = 64 << 20;
const LANES_DEFAULT: usize = 4;
const DEPTH_DEFAULT: usize = 4;
/// Extents are asked for in pages of this size.
const MAP_BYTES: u64 = 1 << 30;
/// A waiter looks again after this long, to notice a stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Zeros are written from here.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes a disk to `sink`, every byte in order, holes as zeros.
///
/// # Errors
/// See [`MoveError`]; a sink that fails is [`MoveError::Other`] with its `io::Error` as the source.
pub fn stream(
    disk: &dyn Disk,
    sink: &mut dyn Write,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<StreamReport, MoveError> {
    let started = Instant::now();
    let mut tree = Tree::new(disk.size());
    stream_telling(disk, sink, options, progress, stop, &mut |leaf| tree.add(leaf))?;
    Ok(StreamReport { root: tree.root(), elapsed: started.elapsed() })
}

/// As [`stream`], and tells the leaf of each block in turn.
pub(crate) fn stream_telling(
    disk: &dyn Disk,
    sink: &mut dyn Write,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
    leaf: &mut dyn FnMut(Leaf),
) -> Result<(), MoveError> {
    progress.start(disk.size());
    let limits = disk.limits();
    let chunk = options.request_bytes.unwrap_or(limits.bytes_preferred.max(1 << 20)).min(limits.bytes_max);
    let chunk = (chunk / BLOCK_BYTES).max(1) * BLOCK_BYTES;
    let memory = options.memory.share(WINDOW_BYTES);
    let pipe = Pipe {
        disk,
        chunk,
        window: (memory.bytes() / chunk).max(1),
        depth: options.depth.unwrap_or(DEPTH_DEFAULT).clamp(1, limits.depth_max.max(1)),
        options,
        stop,
        state: Mutex::default(),
        changed: Condvar::new(),
        map: Mutex::default(),
    };
    let lanes = options.lanes.unwrap_or(LANES_DEFAULT).clamp(1, limits.lanes_max.max(1));
    let written = std::thread::scope(|scope| {
        pipe.state().workers = lanes;
        for number in 0..lanes {
            let work = || {
                let _leave = Leave(&pipe);
                pipe.work();
            };
            if let Err(source) = Builder::new().spawn_scoped(scope, work) {
                // Those that there are do the work; this one writes, and cannot.
                pipe.state().workers = number;
                if number == 0 {
                    let what = format!("starting a thread to read {}", disk.name());
                    pipe.end(Some(MoveError::Other { what, source: Box::new(source) }));
                }
                break;
            }
        }
        let written = pipe.write(sink, progress, leaf);
        pipe.end(None);
        if written.is_err() && stop.is_set() {
            // Reads that wait for their turn give up. Where only the sink failed the disk may be sent again, and is not withdrawn:
            // the last reads take their turn.
            disk.withdraw();
        }
        written
    });
    written.and_then(|()| check_same([disk]))
}

struct Pipe<'a> {
    disk: &'a dyn Disk,
    chunk: u64,
    /// Chunks that may be on their way.
    window: u64,
    depth: usize,
    options: &'a TransferOptions,
    stop: &'a StopSignal,
    state: Mutex<State>,
    changed: Condvar,
    map: Mutex<Vec<Extent>>,
}

#[derive(Default)]
struct State {
    /// The chunk that is taken next, and the one that is written next.
    next: u64,
    written: u64,
    ready: BTreeMap<u64, Ready>,
    buffers: Vec<Buffer>,
    retries: u64,
    workers: usize,
    ended: bool,
    error: Option<MoveError>,
}

/// A chunk that can be written.
enum Ready {
    Zero,
    Data(Buffer, Vec<Leaf>),
}

/// A worker that is gone, also by a panic, is counted out, or the writer would wait for ever.
struct Leave<'a>(&'a Pipe<'a>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.state().workers -= 1;
        self.0.changed.notify_all();
    }
}

/// A chunk that failed and waits to be read again.
struct Again {
    chunk: u64,
    due: Instant,
    first: Instant,
    attempts: u32,
}

impl Pipe<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn span(&self, chunk: u64) -> ByteSpan {
        ByteSpan::from_bounds(chunk * self.chunk, ((chunk + 1) * self.chunk).min(self.disk.size()))
    }

    fn chunks(&self) -> u64 {
        self.disk.size().div_ceil(self.chunk)
    }

    /// Ends all workers; with an error, that one is what the run ends with.
    fn end(&self, error: Option<MoveError>) {
        let mut state = self.state();
        state.ended = true;
        if let Some(error) = error {
            state.error.get_or_insert(error);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The next chunk, if the window allows one. A worker with requests in flight does not wait: what it
    /// has may be what everybody waits for.
    fn take(&self, may_wait: bool) -> Option<u64> {
        let mut state = self.state();
        loop {
            if state.ended || state.next >= self.chunks() {
                return None;
            }
            if state.next < state.written + self.window {
                state.next += 1;
                return Some(state.next - 1);
            }
            if !may_wait {
                return None;
            }
            state = self.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn work(&self) {
        let mut lane: Option<Box<dyn Lane>> = None;
        let mut again: Vec<Again> = Vec::new();
        let mut failed: BTreeMap<u64, (Instant, u32)> = BTreeMap::new();
        while !self.state().ended {
            let in_flight = lane.as_ref().map_or(0, |lane| lane.in_flight());
            if lane.as_ref().is_some_and(|lane| lane.is_broken() && in_flight == 0) {
                lane = None;
            }
            let broken = lane.as_ref().is_some_and(|lane| lane.is_broken());
            let due = again.iter().position(|it| it.due <= Instant::now());
            let chunk = match due {
                _ if in_flight >= self.depth || broken => None,
                Some(index) => {
                    let it = again.swap_remove(index);
                    failed.insert(it.chunk, (it.first, it.attempts));
                    Some(it.chunk)
                }
                None => self.take(in_flight == 0 && again.is_empty()),
            };
            let outcome = match chunk {
                Some(chunk) => self.start(chunk, &mut lane).err().map(|error| (chunk, error)),
                None if in_flight > 0 => self.complete(&mut lane, &mut failed),
                None if again.is_empty() => return,
                None => {
                    std::thread::sleep(Duration::from_millis(10));
                    None
                }
            };
            let Some((chunk, error)) = outcome else { continue };
            let (first, attempts) = failed.remove(&chunk).unwrap_or((Instant::now(), 0));
            match self.verdict(&error, attempts + 1, first) {
                Verdict::Again(pause) => {
                    self.state().retries += 1;
                    let pause = RetryPolicy::spread(pause, chunk, first.elapsed());
                    again.push(Again { chunk, due: Instant::now() + pause, first, attempts: attempts + 1 });
                }
                Verdict::GiveUp => return self.end(Some(error.into())),
            }
        }
    }

    fn verdict(&self, error: &DiskError, attempts: u32, first: Instant) -> Verdict {
        match error.kind {
            DiskErrorKind::Transient => self.options.retry.after_transient(attempts, first.elapsed()),
            DiskErrorKind::Corrupt => self.options.retry.after_corrupt(attempts),
            _ => Verdict::GiveUp,
        }
    }

    fn start(&self, chunk: u64, lane: &mut Option<Box<dyn Lane>>) -> Result<(), DiskError> {
        let span = self.span(chunk);
        if self.is_zero(span) {
            self.hand_over(chunk, Ready::Zero);
            return Ok(());
        }
        let lane = match lane {
            Some(lane) => lane,
            none => none.insert(self.disk.open_lane()?),
        };
        let mut buffer = self.state().buffers.pop().unwrap_or_else(|| Buffer::zeroed(self.chunk as usize));
        buffer.set_len(span.length as usize);
        lane.submit(Request { id: chunk, span, work: Work::Read(buffer) });
        Ok(())
    }

    /// Takes one completion; gives the chunk whose reading failed.
    fn complete(
        &self,
        lane: &mut Option<Box<dyn Lane>>,
        failed: &mut BTreeMap<u64, (Instant, u32)>,
    ) -> Option<(u64, DiskError)> {
        let done = lane.as_mut()?.complete()?;
        let Work::Read(buffer) = done.work else { return None };
        if let Err(error) = done.result {
            self.state().buffers.push(buffer);
            return Some((done.id, error));
        }
        failed.remove(&done.id);
        let leaves = buffer.chunks(BLOCK_BYTES as usize).map(Leaf::of).collect();
        self.hand_over(done.id, Ready::Data(buffer, leaves));
        None
    }

    fn hand_over(&self, chunk: u64, ready: Ready) {
        self.state().ready.insert(chunk, ready);
        self.changed.notify_all();
    }

    /// Whether the disk says that all of a span is zero. If it fails to say, it is read.
    fn is_zero(&self, span: ByteSpan) -> bool {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = span.offset;
        while at < span.end() {
            let known = map.iter().find(|extent| extent.span.offset <= at && at < extent.span.end());
            match known {
                Some(extent) if extent.kind == ExtentKind::Zero => at = extent.span.end(),
                Some(_) => return false,
                None => {
                    let page = ByteSpan::from_bounds(at, at.saturating_add(MAP_BYTES).min(self.disk.size()));
                    match self.disk.extents(page) {
                        Ok(extents)
                            if extents
                                .first()
                                .is_some_and(|it| it.span.offset == at && !it.span.is_empty()) =>
                        {
                            *map = extents;
                        }
                        _ => return false,
                    }
                }
            }
        }
        true
    }

    /// Writes chunk after chunk, and tells the leaves of what it wrote.
    fn write(
        &self,
        sink: &mut dyn Write,
        progress: &Progress,
        leaf: &mut dyn FnMut(Leaf),
    ) -> Result<(), MoveError> {
        let mut totals = Totals::default();
        let failed = |source: std::io::Error| MoveError::Other {
            what: "writing of the stream".to_string(),
            source: source.into(),
        };
        for chunk in 0..self.chunks() {
            let span = self.span(chunk);
            match self.wait_for(chunk)? {
                Ready::Zero => {
                    let mut left = span.length;
                    while left > 0 {
                        let length = left.min(ZEROS.len() as u64);
                        sink.write_all(&ZEROS[..length as usize]).map_err(failed)?;
                        left -= length;
                    }
                    totals.zero_mapped += span.length;
                    (0..span.length.div_ceil(BLOCK_BYTES)).for_each(|_| leaf(Leaf::Zero));
                }
                Ready::Data(buffer, leaves) => {
                    sink.write_all(&buffer).map_err(failed)?;
                    totals.read += span.length;
                    totals.to_read += span.length;
                    leaves.into_iter().for_each(&mut *leaf);
                    self.state().buffers.push(buffer);
                }
            }
            totals.written += span.length;
            totals.mapped = span.end();
            totals.settled = span.end();
            totals.retries = self.state().retries;
            progress.update(&totals);
            self.state().written = chunk + 1;
            self.changed.notify_all();
        }
        sink.flush().map_err(failed)
    }

    fn wait_for(&self, chunk: u64) -> Result<Ready, MoveError> {
        let mut state = self.state();
        loop {
            if self.stop.is_set() {
                return Err(MoveError::Cancelled);
            }
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if let Some(ready) = state.ready.remove(&chunk) {
                return Ok(ready);
            }
            // Only a panic of a worker gets here; the scope passes it on.
            if state.workers == 0 {
                return Err(MoveError::Cancelled);
            }
            state = self.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The hash tree of a stream, one segment of it in memory.
struct Tree {
    root: RootHasher,
    left: u64,
    segment: LeafTable,
    block: u64,
}

impl Tree {
    fn new(size: u64) -> Tree {
        let segment = LeafTable::new(size.min(SEGMENT_BYTES));
        Tree { root: RootHasher::new(size), left: size, segment, block: 0 }
    }

    fn add(&mut self, leaf: Leaf) {
        self.segment.set(self.block, leaf);
        self.block += 1;
        if self.block == self.segment.blocks() {
            self.root.push(&self.segment).expect("every block of the segment was added");
            self.left -= self.segment.size();
            self.segment = LeafTable::new(self.left.min(SEGMENT_BYTES));
            self.block = 0;
        }
    }

    fn root(self) -> Digest {
        self.root.finish()
    }
}
