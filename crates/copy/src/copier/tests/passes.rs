//! Passes in simulation: a guest writes while its disk is copied, passes die at any step, areas are
//! inflated, off borders, out of order, or lies.

use drover_types::ByteSpan;

use super::*;
use crate::journal::PassRecord;
use crate::leaves::LeafTable;
use crate::sample::{Sample, miss_probability};

/// A guest's disk that is copied in passes, and what its source tells of changes.
struct Guest {
    world: World,
    live: Vec<u8>,
    /// What was written since the last completed pass was frozen.
    dirty: Vec<ByteSpan>,
    /// How much of it when the disk was frozen for the present pass.
    frozen_at: usize,
    /// Earlier contents of the disk, to go back to.
    history: Vec<Vec<u8>>,
    number: u32,
    /// Counts frozen states.
    freezes: u32,
    /// Percent of the writes that the source does not tell of.
    lies_percent: u64,
}

/// How one try of a pass went.
struct Try {
    copier: Copier,
    is_done: bool,
}

impl Guest {
    fn new(seed: u64) -> Guest {
        let world = World::new(seed);
        let live = world.source.clone();
        let whole = ByteSpan::new(0, live.len() as u64);
        Guest {
            history: vec![live.clone(), vec![0; live.len()]],
            live,
            world,
            dirty: vec![whole],
            frozen_at: 0,
            number: 1,
            freezes: 0,
            lies_percent: 0,
        }
    }

    /// The guest writes: something new, zeros, or what was there before.
    fn write(&mut self) {
        for _ in 0..self.world.dice.roll(8) {
            let span = self.any_span();
            let range = span.offset as usize..span.end() as usize;
            match self.world.dice.roll(4) {
                0 => self.live[range].fill(0),
                1 | 2 => {
                    let earlier = self.world.dice.roll(self.history.len() as u64) as usize;
                    self.live[range.clone()].copy_from_slice(&self.history[earlier][range]);
                }
                _ => {
                    let byte = self.world.dice.roll(256) as u8;
                    self.live[range].fill(byte);
                }
            }
            if !self.world.dice.chance(self.lies_percent) {
                self.dirty.push(span);
            }
        }
    }

    fn any_span(&mut self) -> ByteSpan {
        let size = self.live.len() as u64;
        let offset = self.world.dice.roll(size);
        let length = 1 + self.world.dice.roll(3 * BLOCK_BYTES);
        ByteSpan::new(offset, length.min(size - offset))
    }

    /// The disk stands still for a pass.
    fn freeze(&mut self) {
        self.world.source = self.live.clone();
        self.history.push(self.live.clone());
        self.frozen_at = self.dirty.len();
        self.freezes += 1;
    }

    /// What the source calls changed: at least what was written, in any order, and more.
    fn areas(&mut self) -> BlockSet {
        let size = self.live.len() as u64;
        let mut spans = self.dirty[..self.frozen_at].to_vec();
        for _ in 0..self.world.dice.roll(3) {
            let mut more = self.any_span();
            more.length += self.world.dice.roll(2) * size;
            spans.push(more);
        }
        for index in (1..spans.len()).rev() {
            spans.swap(index, self.world.dice.roll(index as u64 + 1) as usize);
        }
        BlockSet::touched_by(&spans, size)
    }

    /// Opens the journal and holds every leaf in it against what is on the target for certain.
    fn reopen(&mut self) -> Result<(LeafTable, Option<PassRecord>), String> {
        let replayed = replay(&mut &self.world.journal[..]).unwrap();
        self.world.journal.truncate(replayed.sound_bytes as usize);
        self.world.journal_floor = self.world.journal.len();
        self.world.forgetting = false;
        for block in 0..replayed.leaves.blocks() {
            let span = replayed.leaves.span_of(block);
            let found = Leaf::of(&self.world.durable[span.offset as usize..span.end() as usize]);
            if replayed.leaves.get(block).is_some_and(|leaf| leaf != found) {
                return Err(format!("the journal is wrong about block {block}"));
            }
        }
        Ok((replayed.leaves, replayed.pass))
    }

    /// One try of a pass, as the driver does it; it dies after so many steps.
    fn try_pass(&mut self, areas: BlockSet, audit: Option<Sample>, steps: u64) -> Result<Try, String> {
        let (leaves, record) = self.reopen()?;
        let frozen = self.freezes.to_string();
        let done = record.filter(|record| record.is(self.number, Some(&frozen)));
        if done.is_none() {
            self.append(&Entry::pass_begun(self.number, Some(&frozen)));
        }
        let done = done.map_or(BlockSet::none(leaves.size()), |record| record.recorded);
        let plan = PassPlan { areas, done, audit };
        let mut copier = Copier::for_pass(self.world.config(), leaves, plan);
        let is_done = self.world.run(&mut copier, steps) == Next::Done;
        if !is_done {
            self.world.crash();
            self.world.target_zeroed = false;
        }
        Ok(Try { copier, is_done })
    }

    fn append(&mut self, entry: &Entry) {
        self.world.journal.extend(encode_entry(&self.world.header, entry));
        self.world.journal_floor = self.world.journal.len();
    }

    /// The pass is over: the target must be the frozen disk, and the journal says so.
    fn complete(&mut self, copier: &Copier) -> Result<(), String> {
        self.world.target_zeroed = false;
        if self.world.durable != self.world.source {
            return Err(format!("after pass {} the target differs", self.number));
        }
        let root = table_of(&self.world.source).root();
        if copier.root() != root {
            return Err(format!("after pass {} the root differs", self.number));
        }
        let end = Entry::PassComplete { number: self.number, root: root.unwrap() };
        if self.world.dice.chance(50) {
            self.world.journal = self.world.header.encode().to_vec();
            let entries: Vec<Entry> = copier.leaves().entries().collect();
            entries.iter().for_each(|entry| self.append(entry));
        }
        self.append(&end);
        let replayed = replay(&mut &self.world.journal[..]).unwrap();
        assert_eq!((replayed.damage, replayed.complete), (None, root));
        assert!(replayed.pass.is_some_and(|pass| pass.is_complete));
        self.dirty.drain(..self.frozen_at);
        self.frozen_at = 0;
        self.number += 1;
        Ok(())
    }
}

fn table_of(bytes: &[u8]) -> LeafTable {
    let mut table = LeafTable::new(bytes.len() as u64);
    for (block, chunk) in (0..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
        table.set(block, Leaf::of(chunk));
    }
    table
}

/// Passes over a guest that goes on writing, each dying at any step, with a new frozen state or the same
/// one at its next try.
fn passes_with_crashes(guest: &mut Guest, passes: u32) -> Result<(), String> {
    for _ in 0..passes {
        guest.write();
        guest.freeze();
        let mut crashes = 0;
        loop {
            let knows_areas = guest.world.dice.chance(80);
            let size = guest.live.len() as u64;
            let areas = if knows_areas { guest.areas() } else { BlockSet::all(size) };
            let share = guest.world.dice.roll(3) as f64 / 4.0;
            let audit = (share > 0.0).then(|| Sample::of_share(share, guest.world.dice.roll(1000)));
            let steps = 1 + guest.world.dice.roll(if crashes < 6 { 80 } else { 100_000 });
            let tried = guest.try_pass(areas, audit, steps)?;
            if tried.is_done {
                assert!(tried.copier.audit().mismatches.is_empty(), "the source told of all changes");
                guest.complete(&tried.copier)?;
                break;
            }
            crashes += 1;
            assert!(crashes < 200, "no end");
            if guest.world.dice.chance(70) {
                guest.write();
                guest.freeze();
            }
        }
    }
    Ok(())
}

#[test]
fn passes_end_equal_through_thousands_of_schedules_with_crashes() {
    for seed in 0..400 {
        let mut guest = Guest::new(seed);
        if let Err(error) = passes_with_crashes(&mut guest, 4) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn without_forgetting_before_overwriting_the_same_schedules_find_the_damage() {
    let is_found = |seed: &u64| {
        let mut guest = Guest::new(*seed);
        guest.world.drops_forgets = true;
        passes_with_crashes(&mut guest, 4).is_err()
    };
    let found = (0..150).filter(is_found).count();
    assert!(found > 50, "{found} of 150");
}

#[test]
fn a_pass_writes_what_differs_and_nothing_else() {
    for seed in 0..200 {
        let mut guest = Guest::new(seed);
        (guest.world.fault_percent, guest.world.restarts_per_400) = (0, 0);
        for pass in 0..3 {
            guest.write();
            guest.freeze();
            let areas = if pass == 1 { BlockSet::all(guest.live.len() as u64) } else { guest.areas() };
            let before = table_of(&guest.world.target);
            guest.world.writes_of_block.fill(0);
            let tried = guest.try_pass(areas.clone(), None, 100_000).unwrap();
            assert!(tried.is_done);
            let after = table_of(&guest.world.source);
            let mut changed = 0;
            for block in 0..after.blocks() {
                let differs = pass == 0 || before.get(block) != after.get(block);
                let writes = guest.world.writes_of_block[block as usize];
                assert!(writes <= u32::from(differs), "seed {seed}: block {block} written {writes} times");
                changed += if differs { after.span_of(block).length } else { 0 };
                if pass > 0 {
                    assert_eq!(writes, u32::from(differs), "seed {seed}: block {block}");
                }
            }
            let totals = tried.copier.totals();
            assert_eq!(totals.changed, changed, "seed {seed}, pass {pass}");
            assert_eq!(totals.resumed + totals.settled, tried.copier.bytes_in_all(), "seed {seed}");
            assert_eq!(totals.mapped, tried.copier.bytes_in_all(), "seed {seed}");
            let areas_bytes: u64 = (0..after.blocks())
                .filter(|block| areas.contains(*block))
                .map(|block| after.span_of(block).length)
                .sum();
            assert_eq!(tried.copier.areas_bytes(), areas_bytes);
            guest.complete(&tried.copier).unwrap();
        }
    }
}

#[test]
fn a_try_with_the_same_frozen_state_does_not_read_again_what_was_recorded() {
    let mut resumed = 0;
    for seed in 0..200 {
        let mut guest = Guest::new(seed);
        guest.freeze();
        for crashes in 0.. {
            let areas = guest.areas();
            guest.world.reads_of_block.fill(0);
            let tried = guest.try_pass(areas, None, if crashes < 5 { 60 } else { 100_000 }).unwrap();
            let known = tried.copier.totals().resumed;
            resumed += u64::from(known > 0);
            if tried.is_done {
                let read: usize = guest.world.reads_of_block.iter().filter(|reads| **reads > 0).count();
                let all = guest.world.reads_of_block.len() as u64 * BLOCK_BYTES;
                assert!(known + read as u64 * BLOCK_BYTES <= all, "seed {seed}: recorded blocks were read");
                guest.complete(&tried.copier).unwrap();
                break;
            }
        }
    }
    assert!(resumed > 100, "{resumed}");
}

#[test]
fn a_source_that_conceals_changes_is_found_with_the_probability_of_the_sample() {
    const CONCEALED: u64 = 5;
    let share = 0.2;
    let (mut runs, mut caught) = (0, 0);
    for seed in 0..700 {
        let mut guest = Guest::new(seed);
        if guest.live.len() < 24 * BLOCK_BYTES as usize {
            continue;
        }
        let size = guest.live.len() as u64;
        runs += 1;
        guest.freeze();
        let first = guest.try_pass(BlockSet::none(size), None, 100_000).unwrap();
        guest.complete(&first.copier).unwrap();
        for block in 0..CONCEALED {
            guest.live[((3 + block * 5) * BLOCK_BYTES) as usize] ^= 0xff;
        }
        guest.freeze();
        let sample = Sample::of_share(share, seed * 77);
        let tried = guest.try_pass(BlockSet::none(size), Some(sample), 100_000).unwrap();
        assert!(tried.is_done);
        let findings = tried.copier.audit();
        assert_eq!(
            findings.blocks,
            (0..size.div_ceil(BLOCK_BYTES)).filter(|block| sample.takes(*block)).count() as u64
        );
        let expected: Vec<u64> =
            (0..CONCEALED).map(|block| 3 + block * 5).filter(|block| sample.takes(*block)).collect();
        let mut found: Vec<u64> = findings.mismatches.iter().map(|mismatch| mismatch.block).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "seed {seed}");
        for block in &found {
            let range = (block * BLOCK_BYTES) as usize..((block + 1) * BLOCK_BYTES).min(size) as usize;
            assert!(guest.world.durable[range.clone()] == guest.world.source[range], "found and not copied");
        }
        caught += i32::from(!found.is_empty());
        let again = guest.try_pass(BlockSet::all(size), None, 100_000).unwrap();
        guest.complete(&again.copier).unwrap();
    }
    let expected = 1.0 - miss_probability(share, CONCEALED);
    let rate = f64::from(caught) / f64::from(runs);
    assert!((rate - expected).abs() < 0.08, "{rate} caught, {expected} expected");
}

#[test]
fn whatever_a_source_conceals_and_wherever_a_pass_dies_the_journal_is_right() {
    for seed in 0..150 {
        let mut guest = Guest::new(seed);
        guest.lies_percent = 40;
        for attempt in 0..12 {
            guest.write();
            guest.freeze();
            let areas = guest.areas();
            let sample = Sample::of_share(0.5, seed + attempt);
            let steps = 1 + guest.world.dice.roll(150);
            let tried = guest.try_pass(areas, Some(sample), steps);
            tried.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            guest.number += guest.world.dice.roll(2) as u32;
        }
        guest.number += 1;
        let size = guest.live.len() as u64;
        let last = guest.try_pass(BlockSet::all(size), None, 1_000_000).unwrap();
        assert!(last.is_done);
        guest.complete(&last.copier).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// The trap: L1 is recorded; a pass writes L2 and dies before it records that; the guest goes back to L1.
#[test]
fn a_block_that_went_back_to_what_was_recorded_is_written_again() {
    let size = 2 * BLOCK_BYTES;
    let mut recorded = LeafTable::new(size);
    recorded.set(0, Leaf::Data(Digest([1; 32])));
    recorded.set(1, Leaf::Zero);
    let header = Header::new(size, "source", "target", 1);
    let mut journal = header.encode().to_vec();
    recorded.entries().for_each(|entry| journal.extend(encode_entry(&header, &entry)));
    for _ in 0..2 {
        let replayed = replay(&mut &journal[..]).unwrap();
        let areas = BlockSet::touched_by(&[ByteSpan::new(5, 1)], size);
        let plan = PassPlan { areas, done: BlockSet::none(size), audit: None };
        let config = CopierConfig::new(Mode::Copy { target_zeroed: true });
        let mut copier = Copier::for_pass(config, replayed.leaves, plan);
        let is_first = journal.len() == 128 + 64 + 32;
        if is_first {
            assert_eq!(copier.next(Duration::ZERO), Next::Forget);
            assert_eq!(copier.next(Duration::ZERO), Next::Wait(None), "nothing before it is forgotten");
            assert_eq!(copier.to_forget(), [Entry::Forget { first: 0, count: 1 }]);
            journal.extend(encode_entry(&header, &copier.to_forget()[0]));
            copier.forgotten();
        }
        let Next::Map(page) = copier.next(Duration::ZERO) else { panic!("asks for the block") };
        assert_eq!(page, ByteSpan::new(0, BLOCK_BYTES), "and for no more");
        copier.mapped(&[Extent::allocated(page)]);
        assert_eq!(copier.next(Duration::ZERO), Next::Read(page));
        let leaf = Leaf::Data(Digest([if is_first { 2 } else { 1 }; 32]));
        assert_eq!(copier.read(page, vec![leaf]).data, [page]);
    }
}

#[test]
fn what_cannot_be_forgotten_is_not_overwritten() {
    let size = BLOCK_BYTES;
    let mut recorded = LeafTable::new(size);
    recorded.set(0, Leaf::Data(Digest([1; 32])));
    let plan = PassPlan { areas: BlockSet::all(size), done: BlockSet::none(size), audit: None };
    let mut copier = Copier::for_pass(CopierConfig::new(Mode::Copy { target_zeroed: false }), recorded, plan);
    assert_eq!(copier.next(Duration::ZERO), Next::Forget);
    assert!(!copier.is_over(), "an answer is awaited");
    copier.forget_failed();
    assert_eq!((copier.next(Duration::ZERO), copier.stop_cause()), (Next::Stopped, Some(StopCause::Failed)));
}

#[test]
fn a_pass_over_a_large_disk_asks_for_its_areas_only() {
    let size = 6 << 40;
    let mut recorded = LeafTable::new(size);
    recorded.set_zero(0, recorded.blocks());
    let areas = BlockSet::touched_by(&[ByteSpan::new(5 << 40, 1), ByteSpan::new(size - 1, 1)], size);
    let plan = PassPlan { areas, done: BlockSet::none(size), audit: None };
    let mut copier = Copier::for_pass(CopierConfig::new(Mode::Copy { target_zeroed: false }), recorded, plan);
    assert_eq!(copier.bytes_in_all(), 2 * BLOCK_BYTES);
    let mut asked = Vec::new();
    loop {
        match copier.next(Duration::ZERO) {
            Next::Forget => copier.forgotten(),
            Next::Map(span) => {
                asked.push(span);
                copier.mapped(&[Extent::zero(span)]);
            }
            Next::Flush(ticket) => assert_eq!(copier.flushed(ticket, Duration::ZERO).len(), 2),
            Next::Done => break,
            other => panic!("{other:?} for zeros that stay zeros"),
        }
    }
    let last = size - BLOCK_BYTES;
    assert_eq!(asked, [5 << 40, last].map(|offset| ByteSpan::new(offset, BLOCK_BYTES)));
    assert_eq!((copier.totals().changed, copier.totals().settled), (0, 2 * BLOCK_BYTES));
}
