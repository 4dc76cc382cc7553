//! What sessions live through.

use std::time::Duration;

use super::{Chance, Faults, World, small_limits};
use crate::core::Limits;
use crate::error::LinkErrorKind;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Seeds from `DROVER_LINK_SEED`, and so many from there (`DROVER_LINK_ROUNDS`).
fn seeds(rounds: u64) -> std::ops::Range<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let first = read("DROVER_LINK_SEED").unwrap_or(1);
    first..first + read("DROVER_LINK_ROUNDS").unwrap_or(rounds)
}

fn run(seed: u64, faults: Faults, limit: Duration) -> World {
    let mut world = World::new(seed, faults, small_limits());
    let opens = [3 + seed % 10, seed % 7];
    for side in 0..2 {
        world.programs[side].plan(opens[side], 300_000, opens[1 - side]);
    }
    world.run(limit);
    world
}

#[test]
fn all_arrives_over_sound_lines() {
    let (mut sent, mut overdue) = (0, 0);
    for seed in seeds(20) {
        let world = run(seed, Faults::default(), seconds(300));
        let doubles = world.cores.iter().map(|core| core.counters().double_frames).sum::<u64>();
        let carried_again = world.cores.iter().map(|core| core.counters().overdue_frames).sum::<u64>();
        // A line that carries a fiftieth of what others do is passed by, and what it carried comes, too.
        assert!(world.deaths == 0 && doubles <= carried_again, "seed {seed}: {doubles} {carried_again}");
        overdue += carried_again;
        sent += world.cores.iter().map(|core| core.next_sequence).sum::<u64>();
    }
    assert!(overdue * 50 < sent, "{overdue} of {sent}");
}

#[test]
fn a_line_that_stands_still_for_two_seconds_holds_up_the_others_for_moments_only() {
    for seed in seeds(10) {
        let mut world = World::new(seed, Faults::default(), small_limits());
        world.programs[0].plan(6, 100_000_000, 0);
        world.programs[1].plan(0, 0, 6);
        (0..1000).for_each(|_| world.step(Duration::from_millis(1)));
        // Too short for it to become suspect.
        world.lines[0].1.stalled_until = world.now + seconds(2);
        let before = world.cores[1].counters().arrived_bytes;
        (0..2000).for_each(|_| world.step(Duration::from_millis(1)));
        let came = world.cores[1].counters().arrived_bytes - before;
        // All there is credit for, many times. Else it was 0.4 MB: once.
        assert!(came > 1_500_000, "seed {seed}: {came} bytes");
    }
}

#[test]
fn all_arrives_once_while_connections_end_at_any_step() {
    let mut deaths = 0;
    for seed in seeds(40) {
        deaths += run(seed, Faults { death: 3000, ..Faults::default() }, seconds(600)).deaths;
    }
    assert!(deaths > 50, "{deaths}");
}

#[test]
fn all_arrives_once_over_lines_that_stall_and_swallow() {
    for seed in seeds(30) {
        run(seed, Faults { black_hole: 200, stall: 500, death: 300, ..Faults::default() }, seconds(900));
    }
}

#[test]
fn flipped_bits_end_a_connection_and_nothing_wrong_arrives() {
    let mut deaths = 0;
    for seed in seeds(30) {
        deaths += run(seed, Faults { flip: 20_000, ..Faults::default() }, seconds(900)).deaths;
    }
    assert!(deaths > 20, "{deaths}");
}

#[test]
fn channels_that_are_given_up_at_any_step_leave_nothing_behind() {
    let mut quit = 0;
    for seed in seeds(40) {
        let faults = Faults { death: 1000, stall: 200, ..Faults::default() };
        let mut world = World::new(seed, faults, small_limits());
        for (program, quits) in world.programs.iter_mut().zip([5000, 1000 + seed * 100]) {
            program.quits = quits;
            program.plan(20, 300_000, 20);
        }
        world.run(seconds(600));
        quit += world.programs.iter().map(|program| program.quit).sum::<u64>();
    }
    assert!(quit > 200, "{quit}");
}

#[test]
fn all_arrives_once_after_cuts_of_any_length() {
    for (seed, cut) in seeds(12).zip([1, 3, 10, 16, 60, 600].into_iter().cycle()) {
        let from = Duration::from_millis(30 + seed * 7);
        let faults = Faults { outage: Some((from, from + seconds(cut))), death: 100, ..Faults::default() };
        let world = run(seed, faults, seconds(cut + 600));
        assert!(world.now > from + seconds(cut), "seed {seed}: it was done before the line was cut");
    }
}

#[test]
fn all_arrives_once_while_the_number_of_connections_changes() {
    for seed in seeds(20) {
        let mut world = World::new(seed, Faults { death: 200, ..Faults::default() }, small_limits());
        world.programs[0].plan(6, 400_000, 0);
        world.programs[1].plan(0, 0, 6);
        let mut chance = Chance::new(seed);
        for _ in 0..40 {
            world.set_wanted(1 + chance.below(8) as usize);
            (0..25).for_each(|_| world.step(Duration::from_millis(1)));
        }
        world.run(seconds(600));
    }
}

#[test]
fn one_black_hole_of_four_is_passed_by_in_seconds() {
    let mut world = World::new(5, Faults::default(), small_limits());
    world.programs[0].plan(4, 2_000_000, 0);
    world.programs[1].plan(0, 0, 4);
    (0..1000).for_each(|_| world.step(Duration::from_millis(1)));
    world.lines[0].1.fate = super::Fate::BlackHole;
    world.run(seconds(60));
    let repeated: u64 = world.cores.iter().map(|core| core.counters().repeated_frames).sum();
    assert!(repeated > 0, "nothing was on that line");
}

#[test]
fn a_session_without_a_connection_is_given_up_on_both_sides() {
    let limits = Limits { give_up_after: seconds(30), ..small_limits() };
    let mut world = World::new(1, Faults::default(), limits);
    for core in &mut world.cores {
        (0..=31).for_each(|second| drop(core.tick(4, seconds(second))));
    }
    for core in &world.cores {
        assert_eq!(core.ended().map(|why| why.kind), Some(LinkErrorKind::Lost));
    }
}

#[test]
fn a_session_that_is_closed_ends_when_all_has_arrived_and_tells_the_peer() {
    for seed in seeds(10) {
        let mut world = World::new(seed, Faults { death: 2000, ..Faults::default() }, small_limits());
        let id = world.cores[0].open(crate::core::Order::Stream, b"12345678").unwrap();
        assert!(world.cores[0].gather(id, b"last words").unwrap());
        world.cores[0].finish(id).unwrap();
        world.cores[0].close();
        assert!(world.cores[0].open(crate::core::Order::Stream, b"").is_err());
        while world.cores[0].ended().is_none() {
            world.step_without_checks(Duration::from_millis(1));
            assert!(world.now < seconds(60), "seed {seed}");
        }
        for _ in 0..60_000 {
            world.step_without_checks(Duration::from_millis(1));
            if world.cores[1].ended().is_some() {
                break;
            }
        }
        assert_eq!(world.cores[1].ended().map(|why| why.kind), Some(LinkErrorKind::Closed), "seed {seed}");
        let read = world.cores[1].piece(id).unwrap();
        assert_eq!(read, crate::core::Taken::Some(b"last words".to_vec()), "seed {seed}");
        assert_eq!(world.cores[1].piece(id).unwrap(), crate::core::Taken::End, "seed {seed}");
    }
}
