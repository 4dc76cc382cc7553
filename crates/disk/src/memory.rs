//! A disk in memory with faults on order, for tests of whatever uses disks.
//!
//! Everything is deterministic: a fault strikes the nth operation of its kind, and what a crash
//! leaves is drawn from a seed. The disk is shared by its clones.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_types::{ByteSpan, Extent, ExtentKind};

use crate::{
    Buffer, Completion, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, Request, Work,
    check_request, check_span,
};

/// Holes are told in runs of this many bytes.
const HOLE_BYTES: u64 = 4096;

/// A power cut keeps or loses each unflushed write in pieces of this many bytes, so writes tear.
const TEAR_BYTES: usize = 4096;

/// A disk in memory.
#[derive(Clone)]
pub struct MemDisk {
    name: String,
    limits: Limits,
    features: Features,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    content: Vec<u8>,
    /// What a power cut cannot take away.
    durable: Vec<u8>,
    /// Writes since the last flush, oldest first.
    unflushed: Vec<(usize, Vec<u8>)>,
    faults: Vec<Fault>,
    counts: Counts,
    identity: String,
}

/// How often each operation was done, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes of reads that succeeded.
    pub bytes_read: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of writes that succeeded.
    pub bytes_written: u64,
    /// Zeroings.
    pub zeros: u64,
    /// Bytes of zeroings that succeeded.
    pub bytes_zeroed: u64,
    /// Flushes.
    pub flushes: u64,
    /// Lanes opened and extents asked for.
    pub opens: u64,
    /// Questions for extents.
    pub extents: u64,
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// With which operation.
    pub op: DiskOp,
    /// When, counted from 1 over all lanes.
    pub nth: Nth,
    /// What.
    pub effect: Effect,
}

/// Which operations of a kind.
#[derive(Clone, Copy, Debug)]
pub enum Nth {
    /// Only this one.
    Only(u64),
    /// This one and all after it.
    From(u64),
    /// Every nth one.
    Every(u64),
    /// Those that touch these bytes; for operations with a span.
    Over(ByteSpan),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// It fails with this kind; a write that fails may have left its first half.
    Fail(DiskErrorKind),
    /// It takes this long (really sleeps).
    Delay(Duration),
    /// The lane breaks: it and all else in flight on the lane end with a transient error.
    BreakLane,
    /// It succeeds, but one bit of the data read or written is flipped.
    FlipBit,
    /// A write that is acknowledged but never done.
    Drop,
    /// The thread panics, as if the process were killed.
    Panic,
}

impl MemDisk {
    /// A disk with this content; writable, all of it durable, nothing known about zeros.
    pub fn new(name: &str, content: Vec<u8>) -> MemDisk {
        let state = State { durable: content.clone(), content, identity: "1".into(), ..State::default() };
        MemDisk {
            name: name.to_string(),
            limits: Limits {
                bytes_min: 1,
                bytes_preferred: 64 << 10,
                bytes_max: 32 << 20,
                lanes_max: 8,
                depth_max: 16,
            },
            features: Features { writable: true, fast_zero: true, extents: true, zeroed: false },
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A disk of zeros that says so.
    pub fn blank(name: &str, size: u64) -> MemDisk {
        let disk = MemDisk::new(name, vec![0; size as usize]);
        let features = Features { zeroed: true, ..disk.features };
        disk.with_features(features)
    }

    /// The same disk with other limits.
    pub fn with_limits(self, limits: Limits) -> MemDisk {
        MemDisk { limits, ..self }
    }

    /// The same disk with other features. Without `extents` it tells no holes.
    pub fn with_features(self, features: Features) -> MemDisk {
        MemDisk { features, ..self }
    }

    /// Adds a fault.
    pub fn add_fault(&self, op: DiskOp, nth: Nth, effect: Effect) {
        self.state().faults.push(Fault { op, nth, effect });
    }

    /// The same disk with one fault more.
    pub fn with_fault(self, op: DiskOp, nth: Nth, effect: Effect) -> MemDisk {
        self.add_fault(op, nth, effect);
        self
    }

    /// Takes all faults away.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// What the disk holds now.
    pub fn content(&self) -> Vec<u8> {
        self.state().content.clone()
    }

    /// Changes bytes behind the back of whoever uses the disk; counts as durable.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let range = offset as usize..offset as usize + bytes.len();
        let mut state = self.state();
        state.content[range.clone()].copy_from_slice(bytes);
        state.durable[range].copy_from_slice(bytes);
    }

    /// Gives the disk another identity, as a source has that changed.
    pub fn set_identity(&self, identity: &str) {
        self.state().identity = identity.to_string();
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Whether writes wait for a flush.
    pub fn has_unflushed(&self) -> bool {
        !self.state().unflushed.is_empty()
    }

    /// What a power cut could leave: of each unflushed write, each 4 KiB is kept or lost by a coin
    /// drawn from `seed`. The disk itself goes on as if nothing had happened.
    pub fn crash(&self, seed: u64) -> Vec<u8> {
        let state = self.state();
        let mut content = state.durable.clone();
        let mut coin = Coin(seed);
        for (offset, bytes) in &state.unflushed {
            for (index, piece) in bytes.chunks(TEAR_BYTES).enumerate() {
                let start = offset + index * TEAR_BYTES;
                if coin.toss() {
                    content[start..start + piece.len()].copy_from_slice(piece);
                }
            }
        }
        content
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the operation and says what strikes it.
    fn strike(&self, op: DiskOp, span: ByteSpan) -> Option<Effect> {
        let mut state = self.state();
        let count = state.counts.next(op);
        let effect = state.faults.iter().find(|fault| fault.op == op && fault.nth.hits(count, span))?.effect;
        drop(state);
        if let Effect::Delay(time) = effect {
            std::thread::sleep(time);
            return None;
        }
        assert!(!matches!(effect, Effect::Panic), "the process dies at {op:?} {count}");
        Some(effect)
    }

    fn fail(&self, kind: DiskErrorKind, op: DiskOp, span: ByteSpan) -> DiskError {
        DiskError::with_kind(kind, op, span, &self.name, io::Error::other("fault on order"))
    }

    /// An operation without data: fails if any fault but a delay strikes it.
    fn plain(&self, op: DiskOp, span: ByteSpan) -> Result<(), DiskError> {
        match self.strike(op, span) {
            None => Ok(()),
            Some(Effect::Fail(kind)) => Err(self.fail(kind, op, span)),
            Some(_) => Err(self.fail(DiskErrorKind::Transient, op, span)),
        }
    }
}

impl Counts {
    fn next(&mut self, op: DiskOp) -> u64 {
        let count = match op {
            DiskOp::Open => &mut self.opens,
            DiskOp::Extents => &mut self.extents,
            DiskOp::Read => &mut self.reads,
            DiskOp::Write => &mut self.writes,
            DiskOp::Zero => &mut self.zeros,
            DiskOp::Flush => &mut self.flushes,
        };
        *count += 1;
        *count
    }
}

impl Nth {
    fn hits(self, count: u64, span: ByteSpan) -> bool {
        match self {
            Nth::Only(nth) => count == nth,
            Nth::From(nth) => count >= nth,
            Nth::Every(nth) => count.is_multiple_of(nth),
            Nth::Over(bytes) => bytes.intersect(span).is_some(),
        }
    }
}

impl Disk for MemDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.state().content.len() as u64
    }

    fn identity(&self) -> String {
        format!("memory {}:{}:{}", self.name, self.size(), self.state().identity)
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn features(&self) -> Features {
        self.features
    }

    /// Runs of zeros on multiples of 4 KiB are holes; every other answer stops halfway, as
    /// backends may.
    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        self.plain(DiskOp::Extents, span)?;
        if !self.features.extents {
            return Ok(vec![Extent::allocated(span)]);
        }
        let state = self.state();
        let half = ByteSpan::new(span.offset, span.length.div_ceil(2));
        Ok(holes(&state.content, if state.counts.extents.is_multiple_of(2) { half } else { span }))
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.plain(DiskOp::Open, ByteSpan::new(0, 0))?;
        Ok(Box::new(MemLane {
            disk: self.clone(),
            queue: VecDeque::new(),
            broken: false,
            newest_first: false,
        }))
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.plain(DiskOp::Flush, ByteSpan::new(0, 0))?;
        let mut state = self.state();
        state.durable = state.content.clone();
        state.unflushed.clear();
        Ok(())
    }
}

fn holes(content: &[u8], span: ByteSpan) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = span.offset;
    while at < span.end() {
        let block = ByteSpan::new(at / HOLE_BYTES * HOLE_BYTES, HOLE_BYTES);
        let end = block.end().min(content.len() as u64);
        let zero = content[block.offset as usize..end as usize].iter().all(|byte| *byte == 0);
        let kind = if zero { ExtentKind::Zero } else { ExtentKind::Allocated };
        let piece = ByteSpan::from_bounds(at, end.min(span.end()));
        match extents.last_mut() {
            Some(last) if last.kind == kind => last.span.length += piece.length,
            _ => extents.push(Extent { span: piece, kind }),
        }
        at = piece.end();
    }
    extents
}

/// A lane that ends requests out of order: oldest and newest by turns.
struct MemLane {
    disk: MemDisk,
    queue: VecDeque<Request>,
    broken: bool,
    newest_first: bool,
}

impl Lane for MemLane {
    fn submit(&mut self, request: Request) {
        self.queue.push_back(request);
        let depth_max = self.disk.limits.depth_max;
        assert!(self.queue.len() <= depth_max, "more than {depth_max} requests in flight");
    }

    fn complete(&mut self) -> Option<Completion> {
        self.newest_first = !self.newest_first;
        let next = if self.newest_first { self.queue.pop_front() } else { self.queue.pop_back() };
        let Request { id, span, mut work } = next?;
        let result = self.run(span, &mut work);
        Some(Completion { id, span, work, result })
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn is_broken(&self) -> bool {
        self.broken
    }
}

impl MemLane {
    fn run(&mut self, span: ByteSpan, work: &mut Work) -> Result<(), DiskError> {
        let disk = &self.disk;
        let op = work.op();
        check_request(span, work, disk.size(), disk.features.writable, &disk.name)?;
        check_limits(span, disk)?;
        if self.broken {
            return Err(disk.fail(DiskErrorKind::Transient, op, span));
        }
        match disk.strike(op, span) {
            Some(Effect::Fail(kind)) => {
                disk.half_done(span, work);
                Err(disk.fail(kind, op, span))
            }
            Some(Effect::BreakLane) => {
                self.broken = true;
                Err(disk.fail(DiskErrorKind::Transient, op, span))
            }
            effect => {
                disk.act(span, work, effect);
                Ok(())
            }
        }
    }
}

fn check_limits(span: ByteSpan, disk: &MemDisk) -> Result<(), DiskError> {
    let Limits { bytes_min, bytes_max, .. } = disk.limits;
    let ends_well = span.end().is_multiple_of(bytes_min) || span.end() == disk.size();
    if span.offset.is_multiple_of(bytes_min) && ends_well && span.length <= bytes_max {
        return Ok(());
    }
    Err(disk.fail(DiskErrorKind::Misuse, DiskOp::Open, span))
}

impl MemDisk {
    fn act(&self, span: ByteSpan, work: &mut Work, effect: Option<Effect>) {
        let mut state = self.state();
        let start = span.offset as usize;
        let flip = matches!(effect, Some(Effect::FlipBit));
        let dropped = matches!(effect, Some(Effect::Drop));
        match work {
            Work::Read(buffer) => {
                buffer.copy_from_slice(&state.content[start..start + span.length as usize]);
                buffer[0] ^= u8::from(flip);
                state.counts.bytes_read += span.length;
            }
            Work::Write(slice) => {
                let mut bytes = slice.to_vec();
                bytes[0] ^= u8::from(flip);
                state.write(start, bytes, dropped);
                state.counts.bytes_written += span.length;
            }
            Work::Zero => {
                state.write(start, vec![0; span.length as usize], dropped);
                state.counts.bytes_zeroed += span.length;
            }
        }
    }

    /// A failed write may have reached the disk in part; a failed read leaves rubbish.
    fn half_done(&self, span: ByteSpan, work: &mut Work) {
        let half = span.length as usize / 2;
        match work {
            Work::Read(buffer) => fill_with_rubbish(buffer),
            Work::Write(slice) => self.state().write(span.offset as usize, slice[..half].to_vec(), false),
            Work::Zero => self.state().write(span.offset as usize, vec![0; half], false),
        }
    }
}

fn fill_with_rubbish(buffer: &mut Buffer) {
    buffer.fill(0xdb);
}

impl State {
    fn write(&mut self, start: usize, bytes: Vec<u8>, dropped: bool) {
        if !dropped {
            self.content[start..start + bytes.len()].copy_from_slice(&bytes);
            self.unflushed.push((start, bytes));
        }
    }
}

/// A splitmix64 generator, one bit at a time.
struct Coin(u64);

impl Coin {
    fn toss(&mut self) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Slice, conformance};

    fn write(lane: &mut dyn Lane, offset: u64, bytes: &[u8]) -> Completion {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        let span = ByteSpan::new(offset, bytes.len() as u64);
        lane.submit(Request { id: 7, span, work: Work::Write(Slice::from(buffer)) });
        lane.complete().unwrap()
    }

    #[test]
    fn passes_the_conformance_suite() {
        let content = conformance::pattern(1 << 20);
        conformance::check_reader(&MemDisk::new("a", content.clone()), &content);
        let made = Mutex::new(None);
        conformance::check_writer(
            |size| {
                let disk = MemDisk::blank("b", size);
                *made.lock().unwrap() = Some(disk.clone());
                Arc::new(disk)
            },
            || made.lock().unwrap().as_ref().unwrap().content(),
        );
    }

    #[test]
    fn a_crash_keeps_what_was_flushed_and_some_of_the_rest() {
        let disk = MemDisk::blank("a", 1 << 20);
        let mut lane = disk.open_lane().unwrap();
        write(&mut *lane, 0, &[1; 4096]).result.unwrap();
        disk.flush().unwrap();
        for block in 1..200 {
            write(&mut *lane, block * 4096, &[1; 4096]).result.unwrap();
        }
        let left = disk.crash(1);
        assert!(left[..4096].iter().all(|byte| *byte == 1));
        let kept = left.chunks(4096).filter(|block| block[0] == 1).count();
        assert!((50..150).contains(&kept), "{kept} of 200 kept");
        assert_eq!(left, disk.crash(1), "the same seed gives the same crash");
        assert_ne!(left, disk.crash(2));
    }

    #[test]
    fn faults_strike_when_ordered_and_only_then() {
        let disk = MemDisk::blank("a", 1 << 16)
            .with_fault(DiskOp::Write, Nth::Only(2), Effect::Fail(DiskErrorKind::OutOfSpace))
            .with_fault(DiskOp::Write, Nth::Only(4), Effect::BreakLane);
        let mut lane = disk.open_lane().unwrap();
        let mut kinds = Vec::new();
        for _ in 0..5 {
            kinds.push(write(&mut *lane, 0, &[1; 512]).result.err().map(|error| error.kind));
        }
        let (full, transient) = (Some(DiskErrorKind::OutOfSpace), Some(DiskErrorKind::Transient));
        assert_eq!(kinds, [None, full, None, transient, transient]);
        assert!(lane.is_broken());
        assert!(write(&mut *disk.open_lane().unwrap(), 0, &[1]).result.is_ok());
    }
}
