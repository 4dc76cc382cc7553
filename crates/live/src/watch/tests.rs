use std::time::Duration;

use super::*;

const MIB: f64 = (1 << 20) as f64;

/// A guest and a line on a virtual clock, as QEMU moves them.
struct World {
    rate: f64,
    dirty: f64,
    left: f64,
    /// Dirtied since the pass began.
    next: f64,
    working_set: f64,
    /// Share of memory that goes over the line.
    packs_to: f64,
    sample: Sample,
}

impl World {
    fn new(memory_mib: f64, rate_mib: f64, dirty_mib: f64) -> World {
        let left = memory_mib * MIB;
        let sample =
            Sample { phase: Phase::Precopy, passes: 1, left_bytes: left as u64, ..Sample::default() };
        World {
            rate: rate_mib * MIB,
            dirty: dirty_mib * MIB,
            left,
            next: 0.0,
            working_set: left,
            packs_to: 1.0,
            sample,
        }
    }

    /// Lets 100 ms pass.
    fn step(&mut self, downtime_ms: f64) -> Sample {
        self.sample.at_ms += 100;
        if self.sample.phase != Phase::Precopy {
            return self.sample;
        }
        let sent = (self.rate * 0.1).min(self.left);
        self.left -= sent;
        self.next = (self.next + self.dirty * 0.1).min(self.working_set);
        self.sample.sent_bytes += (sent * self.packs_to) as u64;
        self.sample.gone_bytes += sent as u64;
        if self.left <= self.rate * downtime_ms / 1000.0 && self.rate > 0.0 {
            self.left = std::mem::take(&mut self.next);
            self.sample.passes += 1;
            self.sample.dirty_bytes_per_s = self.dirty as u64;
            if self.left <= self.rate * downtime_ms / 1000.0 {
                self.sample.phase = Phase::Done;
            }
        }
        self.sample.left_bytes = self.left as u64;
        self.sample
    }

    fn obey(&mut self, deed: Deed) {
        match deed {
            Deed::Throttle => self.dirty *= 0.5,
            Deed::PostCopy => self.sample.phase = Phase::PostCopy,
            Deed::GiveUp => self.sample.phase = Phase::Failed,
        }
    }
}

fn promise(deadline_s: u64) -> Promise {
    Promise { downtime_max: Duration::from_millis(300), deadline: Duration::from_secs(deadline_s) }
}

/// Runs to the end; what was done, and when.
fn run(mut world: World, deadline_s: u64, deeds: &[Deed]) -> (Vec<(Deed, Why, u64)>, Sample) {
    let mut watch = Watch::new(promise(deadline_s), deeds);
    let mut done = Vec::new();
    for _ in 0..deadline_s * 20 {
        let sample = world.step(300.0);
        if let Some((deed, why)) = watch.see(sample) {
            done.push((deed, why, sample.at_ms));
            world.obey(deed);
        }
    }
    (done, world.sample)
}

const ALL: [Deed; 2] = [Deed::Throttle, Deed::PostCopy];

#[test]
fn a_move_that_converges_is_left_alone() {
    for dirty in [0.0, 10.0, 50.0, 70.0] {
        let (done, end) = run(World::new(1024.0, 100.0, dirty), 120, &ALL);
        assert_eq!(done, [], "{dirty}");
        assert_eq!(end.phase, Phase::Done, "{dirty}");
    }
}

#[test]
fn memory_that_is_packed_on_its_way_goes_faster_than_what_is_sent() {
    let world = World { packs_to: 0.25, ..World::new(1024.0, 100.0, 50.0) };
    let (done, end) = run(world, 30, &ALL);
    assert_eq!(done, []);
    assert_eq!(end.phase, Phase::Done);
}

#[test]
fn a_hot_guest_is_slowed_down_and_then_converges() {
    let (done, end) = run(World::new(1024.0, 100.0, 120.0), 300, &ALL);
    let deeds: Vec<Deed> = done.iter().map(|(deed, ..)| *deed).collect();
    assert_eq!(deeds, [Deed::Throttle]);
    assert_eq!(done[0].1.cause, Cause::Standstill);
    assert_eq!(end.phase, Phase::Done);
}

#[test]
fn where_slowing_down_does_not_help_the_next_follows() {
    let (done, end) = run(World::new(1024.0, 100.0, 500.0), 600, &ALL);
    let deeds: Vec<Deed> = done.iter().map(|(deed, ..)| *deed).collect();
    assert_eq!(deeds, [Deed::Throttle, Deed::PostCopy]);
    assert!(done[1].2 - done[0].2 >= SETTLE_MS);
    assert_eq!(end.phase, Phase::PostCopy);
}

#[test]
fn without_leave_it_is_given_up_before_the_deadline() {
    let (done, end) = run(World::new(1024.0, 100.0, 500.0), 600, &[]);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].0, done[0].1.cause), (Deed::GiveUp, Cause::Standstill));
    assert!(done[0].2 < 600_000);
    assert_eq!(end.phase, Phase::Failed);
}

#[test]
fn the_first_pass_may_not_outlast_the_deadline() {
    let (done, _) = run(World::new(1_048_576.0, 100.0, 0.0), 60, &ALL);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].0, done[0].1.cause), (Deed::GiveUp, Cause::Deadline));
    assert!(done[0].2 < 60_000 && done[0].2 >= 59_000, "{}", done[0].2);
}

#[test]
fn one_that_would_end_after_the_deadline_is_hurried() {
    // 1 GiB at 100 MiB/s, 90 of them dirty: about 100 s to converge.
    let (done, end) = run(World::new(1024.0, 100.0, 90.0), 60, &ALL);
    assert_eq!((done[0].0, done[0].1.cause), (Deed::Throttle, Cause::TooSlow), "{done:?}");
    assert_eq!(end.phase, Phase::Done);
}

#[test]
fn one_long_pass_changes_nothing() {
    let mut world = World::new(1024.0, 100.0, 60.0);
    let mut watch = Watch::new(promise(300), &ALL);
    for step in 0..3000 {
        // The line stumbles for five seconds in the second pass.
        world.rate = if (130..180).contains(&step) { 5.0 * MIB } else { 100.0 * MIB };
        assert_eq!(watch.see(world.step(300.0)), None, "step {step}");
    }
    assert_eq!(world.sample.phase, Phase::Done);
}

#[test]
fn a_line_that_carries_nothing_is_given_up() {
    let mut world = World::new(1024.0, 100.0, 10.0);
    let mut watch = Watch::new(promise(3600), &ALL);
    for _ in 0..50 {
        assert_eq!(watch.see(world.step(300.0)), None);
    }
    world.rate = 0.0;
    let found = (0..400).find_map(|_| watch.see(world.step(300.0))).unwrap();
    assert_eq!((found.0, found.1.cause), (Deed::GiveUp, Cause::Silence));
    let at = world.sample.at_ms;
    assert!((5_000 + SILENCE_MS..5_500 + SILENCE_MS).contains(&at), "{at}");
}

#[test]
fn nothing_is_done_once_the_guest_has_moved() {
    for phase in [Phase::Switchover, Phase::PostCopy, Phase::Broken, Phase::Done, Phase::Failed] {
        let mut watch = Watch::new(promise(10), &ALL);
        for at_ms in (0..100_000).step_by(100) {
            assert_eq!(watch.see(Sample { at_ms, phase, ..Sample::default() }), None);
        }
    }
}

#[test]
fn the_reason_names_its_numbers() {
    let (done, _) = run(World::new(1024.0, 100.0, 500.0), 600, &[]);
    let text = done[0].1.to_string();
    assert!(text.starts_with("passes leave as much as they bring: 10") && text.contains("no end"), "{text}");
}

#[test]
fn words_of_every_version() {
    assert_eq!(Phase::of("active"), Phase::Precopy);
    assert_eq!(Phase::of("failing"), Phase::Precopy);
    assert_eq!(Phase::of("cancelling"), Phase::Precopy);
    assert_eq!(Phase::of("something-new"), Phase::Precopy);
    assert_eq!(Phase::of("postcopy-paused"), Phase::Broken);
    assert_eq!(Phase::of("postcopy-device"), Phase::PostCopy);
    assert_eq!(Phase::of("completed"), Phase::Done);
    assert_eq!(Phase::of("cancelled"), Phase::Failed);
}

#[test]
fn a_line_in_full_swing_is_told_twice_without_its_first_second() {
    let mut watch = Watch::new(promise(600), &ALL);
    let mut told = Vec::new();
    let mut gone_bytes = 0;
    for at_ms in (0..=6000).step_by(100) {
        gone_bytes += if at_ms <= 1000 { 1_000_000 } else { 10_000_000 };
        let sample = Sample {
            at_ms,
            gone_bytes,
            sent_bytes: gone_bytes,
            passes: 1,
            phase: Phase::Precopy,
            ..Sample::default()
        };
        assert_eq!(watch.see(sample), None);
        told.extend(watch.full_swing().map(|rate| (at_ms, rate)));
    }
    assert_eq!(told, [(2000, 100e6), (3000, 100e6)]);
    let mut watch = Watch::new(promise(600), &ALL);
    for at_ms in (0..=6000).step_by(100) {
        let passes = if at_ms < 2000 { 1 } else { 2 };
        watch.see(Sample { at_ms, gone_bytes: at_ms, passes, phase: Phase::Precopy, ..Sample::default() });
        assert_eq!(watch.full_swing(), None, "a second pass sends what is written to");
    }
}

#[test]
fn a_line_that_is_away_for_a_while_changes_nothing() {
    let mut world = World::new(1000.0, 100.0, 10.0);
    let mut watch = Watch::new(promise(600), &ALL);
    for _ in 0..30 {
        assert_eq!(watch.see(world.step(300.0)), None);
    }
    let before = watch.rate().unwrap().likely;
    let rate = std::mem::replace(&mut world.rate, 0.0);
    // Far longer than what is taken for silence.
    for _ in 0..1000 {
        assert_eq!(watch.see_interrupted(world.step(300.0)), None);
    }
    world.rate = rate;
    while world.sample.phase != Phase::Done {
        let sample = world.step(300.0);
        assert_eq!(watch.see(sample), None);
        assert!(sample.at_ms < 300_000, "it does not end");
    }
    assert!((watch.rate().unwrap().likely / before - 1.0).abs() < 0.05);
}

#[test]
fn a_cut_right_after_sending_began_is_not_taken_for_the_line() {
    let mut world = World::new(1000.0, 100.0, 10.0);
    let mut watch = Watch::new(promise(600), &ALL);
    for _ in 0..2 {
        assert_eq!(watch.see(world.step(300.0)), None);
    }
    let rate = std::mem::replace(&mut world.rate, 0.0);
    for _ in 0..50 {
        assert_eq!(watch.see(world.step(300.0)), None);
        assert_eq!(watch.rate(), None);
    }
    world.rate = rate;
    for _ in 0..12 {
        assert_eq!(watch.see(world.step(300.0)), None);
    }
    let found = watch.rate().unwrap().likely;
    assert!((found / rate - 1.0).abs() < 0.05, "{found}");
}

#[test]
fn a_line_that_stays_away_is_given_up_at_the_deadline() {
    let mut world = World::new(1000.0, 0.0, 10.0);
    let mut watch = Watch::new(promise(100), &ALL);
    let (deed, why) = (0..2000).find_map(|_| watch.see_interrupted(world.step(300.0))).unwrap();
    assert_eq!((deed, why.cause), (Deed::GiveUp, Cause::Deadline));
    assert!(world.sample.at_ms > 99_000 && world.sample.at_ms < 100_000);
}

/// RDMA pins memory and connects before it sends, for which the source's monitor does not answer: there is one look before and the
/// next long after.
#[test]
fn what_goes_before_the_first_byte_says_nothing_of_the_line() {
    for setup_ms in [14_500, 45_000] {
        let mut watch = Watch::new(promise(600), &ALL);
        let setup = Sample { at_ms: 130, ..Sample::default() };
        assert_eq!(watch.see(setup), None);
        // The stream's header, in the second case not even that.
        let header = if setup_ms < 20_000 { 232 } else { 0 };
        for look in 0..30 {
            let sent_bytes = header + look * 1_000_000;
            let sample = Sample {
                at_ms: setup_ms + look * 100,
                phase: Phase::Precopy,
                sent_bytes,
                gone_bytes: sent_bytes,
                left_bytes: 1 << 30,
                passes: 1,
                ..Sample::default()
            };
            assert_eq!(watch.see(sample), None, "{look}");
            let rate = watch.rate().map(|rate| rate.likely.round());
            assert_eq!(rate, (look >= 10).then_some(10e6), "{look}");
        }
    }
}

#[test]
fn a_move_that_never_begins_to_send_is_given_up() {
    let mut watch = Watch::new(promise(600), &ALL);
    let looks = (0..600).map(|look| Sample { at_ms: look * 100, ..Sample::default() });
    let given_up = looks.into_iter().find_map(|look| watch.see(look));
    assert!(matches!(given_up, Some((Deed::GiveUp, Why { cause: Cause::Silence, .. }))), "{given_up:?}");
}
