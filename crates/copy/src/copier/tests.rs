//! Whole copies in simulation: random disks, random answers, random faults in random order, and a
//! crash at any step, against the plain rule "the target ends equal to the source".

use drover_types::Extent;

use super::*;
use crate::journal::{Header, encode_entry, replay};
use crate::retry::RetryPolicy;

mod details;
mod passes;
mod turns;

/// A seeded generator, so that a failure is repeated by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

struct World {
    dice: Dice,
    source: Vec<u8>,
    /// What the target shows now, and what of it a power cut cannot take away.
    target: Vec<u8>,
    durable: Vec<u8>,
    journal: Vec<u8>,
    /// Bytes of the journal that an earlier run made durable.
    journal_floor: usize,
    header: Header,
    target_zeroed: bool,
    fault_percent: u64,
    restarts_per_400: u64,
    reads_of_block: Vec<u32>,
    reserve_bytes: u64,
    /// Whether the target keeps space for a block.
    allocated: Vec<bool>,
    /// Records of blocks to forget are in the journal and may still be torn off.
    forgetting: bool,
    /// Those records do not reach the journal.
    drops_forgets: bool,
    writes_of_block: Vec<u32>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice(seed * 2 + 1);
        for _ in 0..8 {
            dice.roll(2);
        }
        let size = dice.roll(40 * BLOCK_BYTES) + 1;
        let mut source = vec![0; size as usize];
        for block in source.chunks_mut(BLOCK_BYTES as usize) {
            if dice.chance(50) {
                let at = dice.roll(block.len() as u64) as usize;
                block[at] = dice.roll(255) as u8 + 1;
            }
        }
        let target_zeroed = dice.chance(50);
        let target = vec![if target_zeroed { 0 } else { 0xee }; size as usize];
        let header = Header::new(size, "source", "target", 1);
        let blocks = size.div_ceil(BLOCK_BYTES) as usize;
        let dice_reserve = dice.roll(3) * 5 * BLOCK_BYTES;
        World {
            fault_percent: dice.roll(30),
            restarts_per_400: dice.roll(8),
            dice,
            source,
            durable: target.clone(),
            target,
            journal: header.encode().to_vec(),
            journal_floor: 128,
            header,
            target_zeroed,
            reads_of_block: vec![0; blocks],
            reserve_bytes: dice_reserve,
            allocated: vec![!target_zeroed; blocks],
            forgetting: false,
            drops_forgets: false,
            writes_of_block: vec![0; blocks],
        }
    }

    fn config(&self) -> CopierConfig {
        CopierConfig {
            request_bytes: 3 * BLOCK_BYTES,
            window_bytes: 9 * BLOCK_BYTES,
            flush_bytes: 8 * BLOCK_BYTES,
            reserve_bytes: self.reserve_bytes,
            retry: RetryPolicy { corrupt_attempts_max: u32::MAX, ..RetryPolicy::default() },
            ..CopierConfig::new(Mode::Copy { target_zeroed: self.target_zeroed })
        }
    }

    /// Extents that say "zero" only where it is true, cut at odd places, and not always to the end.
    fn extents(&mut self, span: ByteSpan) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut at = span.offset;
        while at < span.end() && !(extents.len() > 2 && self.dice.chance(20)) {
            let end = (at + 1 + self.dice.roll(3 * BLOCK_BYTES)).min(span.end());
            let piece = ByteSpan::from_bounds(at, end);
            let zero = crate::is_zero(&self.source[at as usize..end as usize]) && self.dice.chance(80);
            extents.push(if zero { Extent::zero(piece) } else { Extent::allocated(piece) });
            at = end;
        }
        extents
    }

    fn leaves(&self, span: ByteSpan) -> Vec<Leaf> {
        self.source[span.offset as usize..span.end() as usize]
            .chunks(BLOCK_BYTES as usize)
            .map(Leaf::of)
            .collect()
    }

    fn apply(&mut self, parts: &WriteParts) {
        for part in parts.data.iter().chain(&parts.zero) {
            let blocks = part.offset / BLOCK_BYTES..part.end().div_ceil(BLOCK_BYTES);
            blocks.for_each(|block| self.writes_of_block[block as usize] += 1);
        }
        for part in &parts.data {
            let range = part.offset as usize..part.end() as usize;
            self.target[range.clone()].copy_from_slice(&self.source[range]);
            self.set_allocated(*part, true);
        }
        for part in &parts.zero {
            self.set_allocated(*part, false);
            self.target[part.offset as usize..part.end() as usize].fill(0);
        }
    }

    fn set_allocated(&mut self, span: ByteSpan, allocated: bool) {
        let blocks = span.offset / BLOCK_BYTES..span.end().div_ceil(BLOCK_BYTES);
        blocks.for_each(|block| self.allocated[block as usize] = allocated);
    }

    /// A target that was all holes has space for data only, in spite of what was set aside.
    fn check_holes(&self) {
        for (block, allocated) in self.source.chunks(BLOCK_BYTES as usize).zip(&self.allocated) {
            assert_eq!(*allocated, !crate::is_zero(block), "space for zeros, or none for data");
        }
    }

    /// Runs until done, stopped, or `steps` are used up (a crash).
    fn run(&mut self, copier: &mut Copier, steps: u64) -> Next {
        let mut now = Duration::ZERO;
        let mut reading: Vec<ByteSpan> = Vec::new();
        let mut zeroing: Vec<ByteSpan> = Vec::new();
        for _ in 0..steps {
            copier.check_invariants();
            if self.dice.roll(400) < self.restarts_per_400 {
                self.restart_target(copier, &mut zeroing, now);
            }
            now += Duration::from_millis(self.dice.roll(20));
            if self.dice.chance(5) {
                copier.set_request_bytes((1 + self.dice.roll(5)) * BLOCK_BYTES);
            }
            if self.forgetting && self.dice.chance(40) {
                self.forgetting = false;
                self.journal_floor = self.journal.len();
                copier.forgotten();
            }
            let busy = reading.len() + zeroing.len();
            if busy < 4 && self.dice.chance(70) {
                match copier.next(now) {
                    Next::Map(_) if self.dice.chance(self.fault_percent / 3) => copier.map_failed(),
                    Next::Map(span) => copier.mapped(&self.extents(span)),
                    Next::Reserve if self.dice.chance(self.fault_percent / 3) => copier.reserve_failed(),
                    Next::Reserve => {
                        copier.to_reserve().iter().for_each(|span| self.set_allocated(*span, true))
                    }
                    Next::Read(span) => reading.push(span),
                    Next::Zero(span) => zeroing.push(span),
                    Next::Flush(ticket) => self.flush(copier, ticket, now),
                    Next::Forget => self.start_forgetting(copier),
                    Next::Wait(until) => now = now.max(until.unwrap_or(now)),
                    end @ (Next::Done | Next::Stopped) => return end,
                }
            } else if !reading.is_empty() && self.dice.chance(60) {
                let span = reading.swap_remove(self.dice.roll(reading.len() as u64) as usize);
                self.end_read(copier, span, now);
            } else if let Some(span) = zeroing.pop() {
                self.apply(&WriteParts { data: Vec::new(), zero: vec![span] });
                copier.landed(span);
            }
        }
        Next::Wait(None)
    }

    fn end_read(&mut self, copier: &mut Copier, span: ByteSpan, now: Duration) {
        if self.dice.chance(self.fault_percent) {
            let failure = if self.dice.chance(50) { Failure::Transient } else { Failure::Corrupt };
            assert!(copier.failed(span, failure, now), "a passing fault does not stop the copy");
            return;
        }
        let first = (span.offset / BLOCK_BYTES) as usize;
        let leaves = self.leaves(span);
        (first..first + leaves.len()).for_each(|block| self.reads_of_block[block] += 1);
        let parts = copier.read(span, leaves);
        self.apply(&parts);
        if parts.is_empty() {
            return;
        }
        if self.dice.chance(self.fault_percent) {
            assert!(copier.failed(span, Failure::Transient, now), "a failed write is tried again");
        } else {
            copier.landed(span);
        }
    }

    fn start_forgetting(&mut self, copier: &Copier) {
        self.forgetting = true;
        for entry in copier.to_forget().iter().filter(|_| !self.drops_forgets) {
            self.journal.extend(encode_entry(&self.header, entry));
        }
    }

    fn flush(&mut self, copier: &mut Copier, ticket: FlushTicket, now: Duration) {
        self.durable.copy_from_slice(&self.target);
        for entry in copier.flushed(ticket, now) {
            self.journal.extend(encode_entry(&self.header, &entry));
        }
    }

    /// The target's server restarts: what it had not flushed is kept or lost by chance.
    fn restart_target(&mut self, copier: &mut Copier, zeroing: &mut Vec<ByteSpan>, now: Duration) {
        self.lose_unflushed();
        copier.target_lost();
        for span in zeroing.drain(..) {
            assert!(copier.failed(span, Failure::Transient, now));
        }
    }

    fn lose_unflushed(&mut self) {
        let pairs =
            self.target.chunks_mut(BLOCK_BYTES as usize).zip(self.durable.chunks_mut(BLOCK_BYTES as usize));
        for (shown, durable) in pairs {
            match self.dice.roll(3) {
                0 => shown.copy_from_slice(durable),
                1 => durable.copy_from_slice(shown),
                _ => {
                    let torn = self.dice.roll(durable.len() as u64) as usize;
                    durable[..torn].copy_from_slice(&shown[..torn]);
                    shown.copy_from_slice(durable);
                }
            }
        }
    }

    /// A power cut: unflushed blocks are kept or lost by chance, the journal's tail may be torn.
    fn crash(&mut self) {
        self.lose_unflushed();
        if self.dice.chance(50) {
            let torn = self.dice.roll(40) as usize;
            self.journal.truncate(self.journal.len().saturating_sub(torn).max(self.journal_floor));
        }
    }

    fn reopen(&mut self) -> Copier {
        let replayed = replay(&mut &self.journal[..]).unwrap();
        self.journal.truncate(replayed.sound_bytes as usize);
        self.journal_floor = self.journal.len();
        for block in 0..replayed.leaves.blocks() {
            let span = replayed.leaves.span_of(block);
            let range = span.offset as usize..span.end() as usize;
            if replayed.leaves.get(block).is_some() {
                assert_eq!(
                    self.durable[range.clone()],
                    self.source[range],
                    "journal names a block that is not there"
                );
                self.reads_of_block[block as usize] = 1000;
            }
        }
        // After a crash nothing proves that unrecorded blocks are still zero.
        self.target_zeroed = false;
        Copier::new(self.config(), replayed.leaves)
    }
}

#[test]
fn copies_equal_through_thousands_of_fault_schedules() {
    for seed in 0..1000 {
        let mut world = World::new(seed);
        let mut copier = Copier::new(world.config(), LeafTable::new(world.source.len() as u64));
        assert_eq!(world.run(&mut copier, 100_000), Next::Done, "seed {seed}");
        assert!(world.durable == world.source, "seed {seed}: target differs or is not durable");
        if world.target_zeroed {
            world.check_holes();
        }
        let replayed = replay(&mut &world.journal[..]).unwrap();
        assert!(replayed.leaves.is_complete(), "seed {seed}");
        assert_eq!(replayed.leaves.root(), copier.root(), "seed {seed}");
    }
}

#[test]
fn resumes_after_a_crash_at_any_step_without_reading_recorded_blocks_again() {
    for seed in 0..1000 {
        let mut world = World::new(seed);
        let mut copier = Copier::new(world.config(), LeafTable::new(world.source.len() as u64));
        let mut crashes = 0;
        loop {
            let steps = 1 + world.dice.roll(if crashes < 6 { 80 } else { 100_000 });
            if world.run(&mut copier, steps) == Next::Done {
                break;
            }
            crashes += 1;
            world.crash();
            copier = world.reopen();
            assert!(crashes < 200, "seed {seed}: no end");
        }
        assert!(world.durable == world.source, "seed {seed}: target differs after {crashes} crashes");
        assert!(
            world.reads_of_block.iter().all(|reads| *reads <= 1000),
            "seed {seed}: recorded block read again"
        );
    }
}

fn drive_to_first_read(copier: &mut Copier, size: u64) -> ByteSpan {
    let Next::Map(span) = copier.next(Duration::ZERO) else { panic!("maps first") };
    copier.mapped(&[Extent::allocated(span)]);
    assert!(size > 0);
    match copier.next(Duration::ZERO) {
        Next::Read(span) => span,
        other => panic!("reads after mapping, not {other:?}"),
    }
}

#[test]
fn a_fatal_failure_stops_but_what_landed_is_still_recorded() {
    let size = 64 * BLOCK_BYTES;
    let mut copier = Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: true }), LeafTable::new(size));
    let first = drive_to_first_read(&mut copier, size);
    let Next::Read(second) = copier.next(Duration::ZERO) else { panic!("reads ahead") };
    copier.read(first, vec![Leaf::Data(Digest([1; 32])); 16]);
    copier.landed(first);
    assert!(!copier.failed(second, Failure::Fatal, Duration::ZERO));
    let Next::Flush(ticket) = copier.next(Duration::ZERO) else { panic!("flushes what landed") };
    assert_eq!(copier.flushed(ticket, Duration::ZERO).len(), 1);
    assert_eq!((copier.next(Duration::ZERO), copier.stop_cause()), (Next::Stopped, Some(StopCause::Failed)));
}

#[test]
fn an_outage_longer_than_the_policy_stops_the_copy() {
    let size = BLOCK_BYTES;
    let mut copier = Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: true }), LeafTable::new(size));
    let span = drive_to_first_read(&mut copier, size);
    let mut now = Duration::ZERO;
    while copier.failed(span, Failure::Transient, now) {
        let Next::Wait(Some(until)) = copier.next(now) else { panic!("waits for its pause") };
        now = until;
        assert_eq!(copier.next(now), Next::Read(span));
    }
    assert!((Duration::from_secs(120)..Duration::from_secs(130)).contains(&now), "{now:?}");
}

#[test]
fn a_failed_flush_records_nothing_and_stops() {
    let size = BLOCK_BYTES;
    let mut copier = Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: true }), LeafTable::new(size));
    let span = drive_to_first_read(&mut copier, size);
    copier.read(span, vec![Leaf::Data(Digest([1; 32]))]);
    copier.landed(span);
    let Next::Flush(_) = copier.next(Duration::ZERO) else { panic!("flushes at the end") };
    copier.flush_failed(Failure::Fatal, Duration::ZERO);
    assert_eq!(copier.next(Duration::ZERO), Next::Stopped);
}

#[test]
fn a_flush_that_fails_for_good_ends_a_copy_also_if_zeros_are_not_recorded() {
    let size = 3 * BLOCK_BYTES;
    let mut copier = Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: true }), LeafTable::new(size));
    let Next::Map(_) = copier.next(Duration::ZERO) else { panic!("asks for the map") };
    let data = ByteSpan::new(BLOCK_BYTES, 2 * BLOCK_BYTES);
    copier.mapped(&[Extent::zero(ByteSpan::new(0, BLOCK_BYTES)), Extent::allocated(data)]);
    assert_eq!(copier.next(Duration::ZERO), Next::Read(data));
    copier.read(data, vec![Leaf::Data(Digest([1; 32])); 2]);
    copier.landed(data);
    copier.stop(StopCause::Cancelled);
    let Next::Flush(_) = copier.next(Duration::ZERO) else { panic!("flushes before it stops") };
    copier.flush_failed(Failure::Fatal, Duration::ZERO);
    assert_eq!(copier.next(Duration::ZERO), Next::Stopped);
    assert!(copier.is_over());
}

#[test]
fn a_sparse_disk_costs_its_data_and_not_its_size() {
    let size = 20u64 << 30;
    let mut copier = Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: true }), LeafTable::new(size));
    let mut calls = 0;
    loop {
        calls += 1;
        match copier.next(Duration::ZERO) {
            Next::Map(span) => copier.mapped(&[Extent::zero(span)]),
            Next::Flush(ticket) => assert_eq!(copier.flushed(ticket, Duration::ZERO).len(), 1),
            Next::Done => break,
            other => panic!("{other:?} for a disk of zeros"),
        }
    }
    assert!(calls < 30 && copier.root().is_some());
}

#[test]
fn an_answer_that_makes_no_progress_counts_as_data() {
    let size = 3 * BLOCK_BYTES;
    let mut copier = Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: true }), LeafTable::new(size));
    for wrong in [vec![], vec![Extent::zero(ByteSpan::new(5, 100))], vec![Extent::zero(ByteSpan::new(0, 0))]]
    {
        let Next::Map(_) = copier.next(Duration::ZERO) else { panic!("asks on") };
        copier.mapped(&wrong);
    }
    assert_eq!(copier.totals().to_read, size);
}

#[test]
fn hashing_writes_nothing_and_finds_the_same_root() {
    let mut world = World::new(42);
    let config = CopierConfig { mode: Mode::Hash(None), ..world.config() };
    let mut copier = Copier::new(config, LeafTable::new(world.source.len() as u64));
    let before = world.target.clone();
    assert_eq!(world.run(&mut copier, 100_000), Next::Done);
    let mut copied = Copier::new(world.config(), LeafTable::new(world.source.len() as u64));
    assert!(world.target == before && world.journal.len() == 128);
    assert_eq!(world.run(&mut copied, 100_000), Next::Done);
    assert_eq!(copier.root(), copied.root());
}
