//! Disks whose reads wait for their turn.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

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

    /// Whether nothing is to be read any more: whoever waits gives up.
    fn is_stopped(&self) -> bool;
}

/// A disk whose reads begin when a pace lets them. Only what is read of the disk inside counts, by its length: not its
/// extents, nor hashes that are taken where it is. Writes do not wait.
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
        Ok(Box::new(PacedLane { name, lane, turns, held: VecDeque::new() }))
    }

    fn withdraw(&self) -> bool {
        self.turns.is_withdrawn.store(true, Relaxed);
        self.inner.withdraw()
    }
}

struct PacedLane {
    name: String,
    lane: Box<dyn Lane>,
    turns: Arc<Turns>,
    /// Requests that wait for their turn.
    held: VecDeque<Request>,
}

impl PacedLane {
    /// Hands on what may go now; how long to wait before the next may, if one is left.
    fn let_go(&mut self) -> Option<Duration> {
        loop {
            let waits = self.held.front()?;
            if let Work::Read(buffer) = &waits.work {
                if self.turns.are_over() {
                    return Some(Duration::ZERO);
                }
                // A broken lane reads nothing.
                let is_read = !self.lane.is_broken();
                if is_read && let Err(wait) = self.turns.pace.take(buffer.len() as u64) {
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
            let wait = self.let_go();
            // What is under way is received first: no server is left with data that nobody takes.
            if self.lane.in_flight() > 0 {
                return self.lane.complete_seeing(seen);
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
}
