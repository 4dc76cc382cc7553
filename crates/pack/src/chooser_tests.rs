use std::cell::Cell;

use super::*;
use proptest::prelude::*;

const BLOCK: u64 = 1 << 20;
const TRIAL: u64 = 64 << 10;
/// What a link takes before it makes senders wait.
const BUFFER: f64 = (4 << 20) as f64;

/// A machine and a line.
#[derive(Clone, Debug)]
struct World {
    lanes: usize,
    /// Bytes for each second.
    line: f64,
    source: f64,
    /// What the other side's disk takes.
    target: f64,
    /// By codec: packed bytes for each plain one, and seconds for each plain byte.
    ratio: [f64; 4],
    cost: [f64; 4],
    /// Blocks that a run packed.
    packed: Cell<u64>,
}

impl World {
    /// Seconds to move so many blocks, with the chooser or always by one codec.
    fn run(&self, blocks: u64, mut choose: Option<&mut Chooser>, always: Codec) -> f64 {
        let mut lanes = vec![0.0f64; self.lanes];
        let (mut line_free, mut source_free, mut target_free) = (0.0f64, 0.0f64, 0.0f64);
        for _ in 0..blocks {
            let lane = (0..lanes.len()).min_by(|a, b| lanes[*a].total_cmp(&lanes[*b])).unwrap();
            source_free += BLOCK as f64 / self.source;
            let mut now = lanes[lane].max(source_free);
            let codec = choose.as_ref().map_or(always, |chooser| chooser.codec());
            if let Some(chooser) = choose.as_deref_mut()
                && let Some(codec) = chooser.trial(Duration::from_secs_f64(now))
            {
                let sampled = self.pack(codec, TRIAL);
                now += sampled.took.as_secs_f64();
                chooser.tried(sampled);
            }
            let sampled = self.pack(codec, BLOCK);
            self.packed.set(self.packed.get() + u64::from(codec != Codec::Plain));
            now += sampled.took.as_secs_f64();
            let taken = now.max(line_free - BUFFER / self.line).max(target_free - BUFFER / self.target);
            line_free = line_free.max(taken) + sampled.packed as f64 / self.line;
            target_free = target_free.max(line_free) + BLOCK as f64 / self.target;
            if let Some(chooser) = choose.as_deref_mut() {
                chooser.packed(sampled);
                let waited = Duration::from_secs_f64(taken - now);
                chooser.sent(BLOCK, sampled.packed, waited, Duration::from_secs_f64(taken));
            }
            lanes[lane] = taken;
        }
        target_free
    }

    fn pack(&self, codec: Codec, plain: u64) -> Sampled {
        let index = codec.index();
        let packed = (plain as f64 * self.ratio[index]) as u64;
        Sampled { codec, plain, packed, took: Duration::from_secs_f64(plain as f64 * self.cost[index]) }
    }
}

const GBIT: f64 = 125e6;

/// Figures of one core of a server: lz4 700 MB/s, zstd 1 350 MB/s, zstd 3 200 MB/s.
fn world(line: f64, ratio: [f64; 3]) -> World {
    World {
        lanes: 2,
        line,
        source: 4e9,
        target: 4e9,
        ratio: [1.0, ratio[0], ratio[1], ratio[2]],
        cost: [0.0, 1.0 / 700e6, 1.0 / 350e6, 1.0 / 200e6],
        packed: Cell::default(),
    }
}

/// Blocks that take plain bytes so many seconds.
fn blocks_for(world: &World, seconds: f64) -> u64 {
    (world.line.min(world.source).min(world.target) * seconds / BLOCK as f64).ceil() as u64
}

/// Time with the chooser, for each second with plain bytes.
fn share(world: &World, seconds: f64) -> f64 {
    let blocks = blocks_for(world, seconds);
    let mut chooser = Chooser::new(world.lanes, &Codec::ALL);
    world.run(blocks, Some(&mut chooser), Codec::Plain) / world.run(blocks, None, Codec::Plain)
}

#[test]
fn noise_goes_plain_and_trials_cost_next_to_nothing() {
    for line in [0.1 * GBIT, GBIT, 4.0 * GBIT, 10.0 * GBIT] {
        let share = share(&world(line, [1.0; 3]), 60.0);
        assert!(share < 1.0 + 2.0 * TRIAL_SHARE_MAX, "{line}: {share}");
    }
}

#[test]
fn a_slow_line_gets_what_packs_best_and_a_faster_one_what_packs_fast_enough() {
    let packs = [0.5, 0.4, 0.35];
    assert!(share(&world(GBIT, packs), 60.0) < 0.42, "zstd 3 promises 0.35");
    let fast = world(6.0 * GBIT, packs);
    let lz4 = fast.run(blocks_for(&fast, 60.0), None, Codec::Lz4);
    let mut chooser = Chooser::new(2, &Codec::ALL);
    let chosen = fast.run(blocks_for(&fast, 60.0), Some(&mut chooser), Codec::Plain);
    assert!(chosen < lz4 * 1.1, "{chosen} and {lz4}");
}

#[test]
fn a_source_that_is_slower_than_the_line_leaves_bytes_plain() {
    let slow = World { source: 50e6, ..world(GBIT, [0.5, 0.4, 0.35]) };
    let mut chooser = Chooser::new(2, &Codec::ALL);
    slow.run(blocks_for(&slow, 60.0), Some(&mut chooser), Codec::Plain);
    assert_eq!(chooser.codec(), Codec::Plain);
}

#[test]
fn a_target_that_is_slower_than_the_line_leaves_bytes_plain_most_of_the_time() {
    let slow = World { target: 50e6, ..world(GBIT, [0.5, 0.4, 0.35]) };
    let mut chooser = Chooser::new(2, &Codec::ALL);
    let blocks = blocks_for(&slow, 300.0);
    slow.run(blocks, Some(&mut chooser), Codec::Plain);
    let packed = slow.packed.get();
    assert!(packed * 4 < blocks, "{packed} of {blocks}");
}

#[test]
fn a_line_that_is_slow_no_more_lets_go_of_packing() {
    let mut chooser = Chooser::new(2, &Codec::ALL);
    let slow = world(0.5 * GBIT, [0.5, 0.4, 0.35]);
    slow.run(blocks_for(&slow, 20.0), Some(&mut chooser), Codec::Plain);
    assert_ne!(chooser.codec(), Codec::Plain);
    for second in 0..50 {
        chooser.sent(1 << 20, 1 << 20, Duration::ZERO, Duration::from_secs(1000 + second));
    }
    assert_eq!(chooser.codec(), Codec::Plain);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the machine, the line and the data are: never slower than plain bytes by more than the trials.
    #[test]
    fn never_slower_than_plain_bytes(
        lanes in 1usize..5, line in 5e6..2e9, source in 20e6..4e9, target in 20e6..4e9,
        ratio in [0.02..1.0, 0.02..1.0, 0.02..1.0], cost in [1e-10..1e-7, 1e-10..1e-7, 1e-10..1e-7],
    ) {
        let world = World {
            lanes, line, source, target,
            ratio: [1.0, ratio[0], ratio[1], ratio[2]],
            cost: [0.0, cost[0], cost[1], cost[2]],
            packed: Cell::default(),
        };
        let share = share(&world, 60.0);
        prop_assert!(share < 1.0 + 2.0 * TRIAL_SHARE_MAX, "{share} of the time that plain bytes take");
    }
}
