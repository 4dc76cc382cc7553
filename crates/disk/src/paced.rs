//! Disks whose reads wait for their turn.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::{Around, Completion, Disk, DiskError, DiskErrorKind, DiskOp, Lane, Request, Work};

/// A read that waits looks again after this long at most, to notice a stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What says when bytes may be read, of one disk or of many.
pub trait Pace: Send + Sync {
    /// Takes so many bytes if that is in order now; else how long to wait before asking again.
    ///
    /// # Errors
    /// With that time; nothing was taken.
    fn take(&self, bytes: u64) -> Result<(), Duration>;

    /// Whether a lane that has left the source to others for so long does so a while longer: it begins no read, and what it asked
    /// for stays at the server. Each time this says no, a read of the lane begins, or all that it asked for is received.
    fn gives_way(&self, _waited: Duration) -> bool {
        false
    }

    /// From now on a lane waits for what it asked of the source.
    fn waits(&self, _since: Instant) {}

    /// A lane waits no longer since then: what it asked for has come, or has failed.
    fn received(&self, _since: Instant, _is_well: bool) {}

    /// Whether nothing is to be read any more: whoever waits gives up.
    fn is_stopped(&self) -> bool;
}

/// A disk whose reads begin when a pace lets them, and are received unless it gives way to others. Only what is read of the
/// disk inside counts, by its length: not its extents, nor hashes that are taken where it is. Writes do not wait.
pub struct Paced {
    inner: Arc<dyn Disk>,
    turns: Arc<Turns>,
}

/// What all lanes of a disk go by.
struct Turns {
    pace: Arc<dyn Pace>,
    is_withdrawn: AtomicBool,
}

impl Turns {
    fn are_over(&self) -> bool {
        self.is_withdrawn.load(Relaxed) || self.pace.is_stopped()
    }
}

impl Paced {
    /// That disk, at that pace.
    pub fn new(inner: Arc<dyn Disk>, pace: Arc<dyn Pace>) -> Paced {
        Paced { inner, turns: Arc::new(Turns { pace, is_withdrawn: AtomicBool::new(false) }) }
    }
}

impl Around for Paced {
    fn inner(&self) -> &dyn Disk {
        self.inner.as_ref()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        let name = self.inner.name().to_string();
        let (lane, turns) = (self.inner.open_lane()?, self.turns.clone());
        Ok(Box::new(PacedLane {
            name,
            lane,
            turns,
            held: VecDeque::new(),
            gives_way_since: None,
            goes_on: false,
        }))
    }

    fn withdraw(&self) -> bool {
        self.turns.is_withdrawn.store(true, Relaxed);
        self.inner.withdraw()
    }
}

/// A lane waits for its source, until this is dropped.
struct Wait<'a> {
    pace: &'a dyn Pace,
    since: Instant,
    is_well: bool,
}

impl<'a> Wait<'a> {
    fn begin(pace: &'a dyn Pace) -> Wait<'a> {
        let since = Instant::now();
        pace.waits(since);
        Wait { pace, since, is_well: false }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.pace.received(self.since, self.is_well);
    }
}

struct PacedLane {
    name: String,
    lane: Box<dyn Lane>,
    turns: Arc<Turns>,
    /// Requests that wait for their turn.
    held: VecDeque<Request>,
    /// Since when it leaves the source to others, while it does.
    gives_way_since: Option<Instant>,
    /// What it asked for is received although others are to be served first, because it has waited.
    goes_on: bool,
}

impl PacedLane {
    /// Whether it leaves the source to others. One that is over, or whose connection broke, keeps nothing from them.
    fn gives_way(&mut self) -> bool {
        let waited = self.gives_way_since.map_or(Duration::ZERO, |since| since.elapsed());
        let may_wait = !self.turns.are_over() && !self.lane.is_broken();
        let is_behind = may_wait && self.turns.pace.gives_way(Duration::ZERO);
        let gives_way = is_behind && self.turns.pace.gives_way(waited);
        self.gives_way_since = gives_way.then(|| self.gives_way_since.unwrap_or_else(Instant::now));
        self.goes_on = is_behind && (self.goes_on || !gives_way);
        gives_way
    }

    /// Hands on what may go now; how long to wait before the next may, if one is left.
    fn let_go(&mut self) -> Option<Duration> {
        loop {
            let waits = self.held.front()?;
            if let Work::Read(buffer) = &waits.work {
                let bytes = buffer.len() as u64;
                if self.turns.are_over() {
                    return Some(Duration::ZERO);
                }
                if self.gives_way() {
                    return Some(LOOK_EVERY);
                }
                // A broken lane reads nothing.
                let is_read = !self.lane.is_broken();
                if is_read && let Err(wait) = self.turns.pace.take(bytes) {
                    return Some(wait);
                }
            }
            let next = self.held.pop_front()?;
            self.lane.submit(next);
        }
    }

    /// The first of those that wait, where nothing is read any more.
    fn give_up(&mut self) -> Option<Completion> {
        if !self.turns.are_over() {
            return None;
        }
        let Request { id, span, work } = self.held.pop_front()?;
        let why = io::Error::other("the run was asked to stop before this was read");
        let error = DiskError::with_kind(DiskErrorKind::Transient, DiskOp::Read, span, &self.name, why);
        Some(Completion { id, span, work, result: Err(error) })
    }
}

impl Lane for PacedLane {
    fn submit(&mut self, request: Request) {
        self.held.push_back(request);
        self.let_go();
    }

    fn complete(&mut self) -> Option<Completion> {
        self.complete_seeing(&mut |_, _| {})
    }

    fn complete_seeing(&mut self, seen: &mut dyn FnMut(u64, &[u8])) -> Option<Completion> {
        loop {
            let is_busy = self.lane.in_flight() > 0;
            self.goes_on &= is_busy;
            // A server that nobody takes data from sends no more of it, and its line is free for others.
            if is_busy && !self.goes_on && self.gives_way() {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let wait = self.let_go();
            // What is under way is received first: but for others, no server is left with data that nobody takes.
            if self.lane.in_flight() > 0 {
                let mut wait = Wait::begin(self.turns.pace.as_ref());
                let ended = self.lane.complete_seeing(seen)?;
                wait.is_well = ended.result.is_ok();
                return Some(ended);
            }
            if let Some(given_up) = self.give_up() {
                return Some(given_up);
            }
            std::thread::sleep(wait?.min(LOOK_EVERY));
        }
    }

    fn in_flight(&self) -> usize {
        self.lane.in_flight() + self.held.len()
    }

    fn is_broken(&self) -> bool {
        self.lane.is_broken()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use drover_types::ByteSpan;

    use super::*;
    use crate::memory::{Effect, Nth};
    use crate::{Buffer, MemDisk, conformance};

    const PIECE: u64 = 64 << 10;

    /// Lets as many bytes through as are in it.
    #[derive(Default)]
    struct Purse {
        bytes: AtomicU64,
        is_stopped: AtomicBool,
    }

    impl Pace for Purse {
        fn take(&self, bytes: u64) -> Result<(), Duration> {
            let taken = self.bytes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
            taken.map(drop).map_err(|_| Duration::from_millis(1))
        }

        fn is_stopped(&self) -> bool {
            self.is_stopped.load(Relaxed)
        }
    }

    /// Refuses every other time.
    #[derive(Default)]
    struct Hesitant(AtomicU64);

    impl Pace for Hesitant {
        fn take(&self, _: u64) -> Result<(), Duration> {
            let asked = self.0.fetch_add(1, Relaxed);
            if asked.is_multiple_of(2) { Err(Duration::from_micros(1)) } else { Ok(()) }
        }

        fn is_stopped(&self) -> bool {
            false
        }
    }

    /// Gives way while it is told to, but for each time that a lane that waits has asked so often.
    struct Polite {
        is_behind: AtomicBool,
        patience: u64,
        asked: AtomicU64,
        begun: AtomicU64,
        served: AtomicU64,
    }

    impl Polite {
        fn new(is_behind: bool, patience: u64) -> Arc<Polite> {
            let [asked, begun, served] = [0; 3].map(AtomicU64::new);
            Arc::new(Polite { is_behind: AtomicBool::new(is_behind), patience, asked, begun, served })
        }

        fn counts(&self) -> (u64, u64) {
            (self.begun.load(Relaxed), self.served.load(Relaxed))
        }
    }

    impl Pace for Polite {
        fn take(&self, _: u64) -> Result<(), Duration> {
            self.begun.fetch_add(1, Relaxed);
            Ok(())
        }

        fn gives_way(&self, waited: Duration) -> bool {
            let waits =
                || waited.is_zero() || !(self.asked.fetch_add(1, Relaxed) + 1).is_multiple_of(self.patience);
            self.is_behind.load(Relaxed) && waits()
        }

        fn received(&self, _: Instant, is_well: bool) {
            self.served.fetch_add(u64::from(is_well), Relaxed);
        }

        fn is_stopped(&self) -> bool {
            false
        }
    }

    fn read(piece: u64) -> Request {
        let work = Work::Read(Buffer::zeroed(PIECE as usize));
        Request { id: piece, span: ByteSpan::new(piece * PIECE, PIECE), work }
    }

    #[test]
    fn it_is_the_disk_inside_whatever_has_to_wait() {
        let bytes = conformance::pattern(1 << 20);
        let disk = Paced::new(Arc::new(MemDisk::new("disk", bytes.clone())), Arc::new(Hesitant::default()));
        conformance::check_reader(&disk, &bytes);
        let last = Mutex::new(MemDisk::blank("none", 1));
        let make = |size| {
            let inside = MemDisk::blank("target", size);
            *last.lock().unwrap() = inside.clone();
            let disk: Arc<dyn Disk> = Arc::new(Paced::new(Arc::new(inside), Arc::new(Hesitant::default())));
            disk
        };
        conformance::check_writer(make, || last.lock().unwrap().content());
    }

    #[test]
    fn no_more_is_read_than_the_pace_lets_and_a_stop_ends_the_wait() {
        for by_disk in [false, true] {
            let inside = MemDisk::new("disk", conformance::pattern(4 * PIECE));
            let purse = Arc::new(Purse { bytes: AtomicU64::new(2 * PIECE), ..Purse::default() });
            let disk: &dyn Disk = &Paced::new(Arc::new(inside.clone()), purse.clone());
            let (mut one, mut other) = (disk.open_lane().unwrap(), disk.open_lane().unwrap());
            (0..3).for_each(|piece| one.submit(read(piece)));
            other.submit(read(3));
            assert_eq!((one.in_flight(), other.in_flight()), (3, 1));
            // What was begun ends, whoever waits.
            assert!((0..2).all(|_| one.complete().unwrap().result.is_ok()));
            assert_eq!(inside.counts().bytes_read, 2 * PIECE);
            if by_disk {
                assert!(!disk.withdraw());
            } else {
                purse.is_stopped.store(true, Relaxed);
            }
            purse.bytes.store(u64::MAX, Relaxed);
            for (lane, piece) in [(&mut one, 2), (&mut other, 3)] {
                let ended = lane.complete().unwrap();
                assert_eq!((ended.id, ended.result.unwrap_err().kind), (piece, DiskErrorKind::Transient));
                assert!(lane.in_flight() == 0 && lane.complete().is_none());
            }
            one.submit(read(0));
            assert!(one.complete().unwrap().result.is_err(), "nothing is begun any more");
            assert_eq!(inside.counts().bytes_read, 2 * PIECE);
        }
    }

    #[test]
    fn what_waits_goes_on_once_the_pace_lets_it() {
        let inside = MemDisk::new("disk", conformance::pattern(4 * PIECE));
        let purse = Arc::new(Purse::default());
        let disk: &dyn Disk = &Paced::new(Arc::new(inside.clone()), purse.clone());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut lane = disk.open_lane().unwrap();
                (0..2).for_each(|piece| lane.submit(read(piece)));
                [0, 1].map(|_| lane.complete().unwrap()).map(|it| (it.id, it.result.is_ok()))
            });
            assert_eq!(inside.counts().reads, 0);
            for _ in 0..2 {
                purse.bytes.fetch_add(PIECE, Relaxed);
            }
            assert_eq!(waits.join().unwrap(), [(0, true), (1, true)], "one after the other");
        });
        assert_eq!((inside.counts().bytes_read, purse.bytes.load(Relaxed)), (2 * PIECE, 0));
    }

    /// Keeps what it is told of.
    #[derive(Default)]
    struct Told {
        waits: Mutex<Vec<Instant>>,
        ended: Mutex<Vec<bool>>,
    }

    impl Pace for Told {
        fn take(&self, _: u64) -> Result<(), Duration> {
            Ok(())
        }

        fn waits(&self, since: Instant) {
            self.waits.lock().unwrap().push(since);
        }

        fn received(&self, since: Instant, is_well: bool) {
            assert_eq!(self.waits.lock().unwrap().pop(), Some(since));
            self.ended.lock().unwrap().push(is_well);
        }

        fn is_stopped(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_lane_waits_for_its_source_while_it_receives_and_not_while_a_read_is_under_way() {
        let inside = MemDisk::new("disk", conformance::pattern(4 * PIECE));
        inside.add_fault(DiskOp::Read, Nth::From(2), Effect::Fail(DiskErrorKind::Transient));
        let pace = Arc::new(Told::default());
        let disk: &dyn Disk = &Paced::new(Arc::new(inside), pace.clone());
        let mut lane = disk.open_lane().unwrap();
        (0..3).for_each(|piece| lane.submit(read(piece)));
        assert!(pace.waits.lock().unwrap().is_empty() && pace.ended.lock().unwrap().is_empty());
        assert!(lane.complete().unwrap().result.is_ok());
        assert!(lane.complete().unwrap().result.is_err());
        drop(lane);
        assert!(pace.waits.lock().unwrap().is_empty());
        assert_eq!(*pace.ended.lock().unwrap(), [true, false]);
    }

    #[test]
    fn one_that_gives_way_reads_one_at_a_time_when_it_has_waited() {
        let pace = Polite::new(true, 3);
        let inside = MemDisk::new("disk", conformance::pattern(4 * PIECE));
        let disk: &dyn Disk = &Paced::new(Arc::new(inside), pace.clone());
        let mut lane = disk.open_lane().unwrap();
        lane.submit(read(0));
        assert_eq!((pace.counts(), lane.in_flight()), ((0, 0), 1));
        for piece in 0..3 {
            lane.submit(read(piece + 1));
            let ended = lane.complete().unwrap();
            assert_eq!((ended.id, ended.result.is_ok()), (piece, true));
            assert_eq!(pace.counts(), (piece + 1, piece + 1), "no other was begun");
        }
    }

    #[test]
    fn what_was_left_at_the_server_for_long_is_received_at_once_and_no_more_is_begun() {
        let pace = Polite::new(false, 3);
        let inside = MemDisk::new("disk", conformance::pattern(4 * PIECE));
        let disk: &dyn Disk = &Paced::new(Arc::new(inside), pace.clone());
        let mut lane = disk.open_lane().unwrap();
        (0..3).for_each(|piece| lane.submit(read(piece)));
        pace.is_behind.store(true, Relaxed);
        lane.submit(read(3));
        assert!((0..3).all(|_| lane.complete().unwrap().result.is_ok()));
        assert_eq!(pace.counts(), (3, 3));
        assert!(pace.asked.load(Relaxed) < 6, "it waited once");
        assert_eq!(lane.complete().unwrap().id, 3);
        // The next time it waits again.
        pace.is_behind.store(false, Relaxed);
        lane.submit(read(0));
        pace.is_behind.store(true, Relaxed);
        let asked = pace.asked.load(Relaxed);
        assert!(lane.complete().unwrap().result.is_ok() && pace.asked.load(Relaxed) >= asked + 3);
    }

    #[test]
    fn one_that_gives_way_receives_nothing_until_it_goes_on_or_is_over() {
        for is_withdrawn in [false, true] {
            let pace = Polite::new(false, u64::MAX);
            let inside = MemDisk::new("disk", conformance::pattern(4 * PIECE));
            let disk: &dyn Disk = &Paced::new(Arc::new(inside.clone()), pace.clone());
            let mut lane = disk.open_lane().unwrap();
            (0..2).for_each(|piece| lane.submit(read(piece)));
            assert_eq!(pace.counts(), (2, 0));
            pace.is_behind.store(true, Relaxed);
            std::thread::scope(|scope| {
                let (tell, told) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    lane.submit(read(2));
                    while let Some(ended) = lane.complete() {
                        tell.send(ended.result.is_ok()).unwrap();
                    }
                });
                assert!(told.recv_timeout(4 * LOOK_EVERY).is_err(), "it was received, or begun");
                assert_eq!((pace.counts(), inside.counts().reads), ((2, 0), 0));
                match is_withdrawn {
                    true => assert!(!disk.withdraw()),
                    false => pace.is_behind.store(false, Relaxed),
                }
                // What was under way ends well; what was not begun fails once all is over.
                assert_eq!(told.iter().collect::<Vec<_>>(), [true, true, !is_withdrawn]);
            });
        }
    }
}
