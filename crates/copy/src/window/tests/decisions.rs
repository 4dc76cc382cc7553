//! Single decisions, at and beside their thresholds: what a whole copy in a world does not come near.

use super::*;

/// One request is 1 MiB and takes a sixteenth of a second, so a rate is so many requests served at a time.
const LATENCY: Duration = Duration::from_nanos(62_500_000);
const ONE_SERVED: f64 = (16 * MIB) as f64;

const SHAPE: Shape = Shape { lanes: 4, in_flight: 10, request: MIB };
const LATER: Duration = Duration::from_secs(10);

/// Limits that are in no decision's way.
const WIDE: WindowLimits = WindowLimits { depth_max: 1024, bytes_max: 4096 * MIB, ..LIMITS };

impl Window {
    /// Where requests have the window's size, as in a copy of a whole disk.
    fn measured_whole(&mut self, rate: f64, is_waiting: bool, now: Duration) -> bool {
        let usual = Usual { latency: self.latency.unwrap_or_default(), bytes: self.shape.request };
        self.measured(rate, usual, is_waiting, now)
    }
}

/// Past its start, with nothing tried yet.
fn window(shape: Shape) -> Window {
    let mut window = Window::new(WIDE);
    (window.shape, window.latency, window.starting) = (shape, Some(LATENCY), false);
    window
}

/// As if more in flight had just been tried in vain.
fn without_more(shape: Shape) -> Window {
    let mut window = window(shape);
    window.more.until = Duration::from_secs(100);
    window
}

fn trial(kind: TrialKind) -> Trial {
    Trial { kind, before: SHAPE, latency_before: Some(LATENCY), rate_before: 10.0 * ONE_SERVED }
}

#[test]
fn more_is_in_flight_where_seven_tenths_are_served_at_once() {
    let mut all = window(SHAPE);
    assert!(all.measured_whole(7.0 * ONE_SERVED, true, LATER));
    assert_eq!(all.shape, Shape { in_flight: 20, ..SHAPE });
    assert_eq!(all.trial.unwrap().kind, TrialKind::More);
    assert!(!all.serves_many, "that is told at the start only");
    let fast = Shape { request: 32 * MIB, ..SHAPE };
    let mut some = window(fast);
    assert!(!some.measured_whole(6.0 * 32.0 * ONE_SERVED, true, LATER));
    let mut lazy = window(SHAPE);
    assert!(!lazy.measured_whole(7.0 * ONE_SERVED, false, LATER), "nobody waits");
    let mut paused = window(fast);
    paused.more.until = LATER;
    assert!(!paused.measured_whole(7.0 * 32.0 * ONE_SERVED, true, LATER - Duration::from_nanos(1)));
    assert!(paused.measured_whole(7.0 * 32.0 * ONE_SERVED, true, LATER));
}

#[test]
fn at_the_start_it_is_as_much_more_as_the_source_is_far() {
    for (latency_us, request, times, request_then) in [
        (62_500, MIB / 2, 16, MIB),
        (10_000, MIB / 2, 16, MIB),
        (9_999, MIB / 2, 4, MIB),
        (3_000, MIB / 2, 4, MIB),
        (2_999, MIB / 2, 4, MIB / 2),
        (62_500, 2 * MIB, 16, 2 * MIB),
    ] {
        let shape = Shape { request, ..SHAPE };
        let mut window = window(shape);
        (window.starting, window.latency) = (true, Some(Duration::from_micros(latency_us)));
        let rate = 8.0 * request as f64 / (latency_us as f64 / 1e6);
        assert!(window.measured_whole(rate, true, LATER));
        let expected = Shape { in_flight: 10 * times, request: request_then, ..SHAPE };
        assert_eq!(window.shape, expected, "{latency_us} us");
        assert!(window.serves_many && window.starting);
    }
    let mut few = window(Shape { lanes: 1, in_flight: 2, request: MIB });
    few.starting = true;
    assert!(few.measured_whole(2.0 * ONE_SERVED, true, LATER));
    assert!(!few.serves_many);
    let mut late = window(Shape { request: MIB / 2, ..SHAPE });
    assert!(late.measured_whole(4.0 * ONE_SERVED, true, LATER));
    assert_eq!(late.shape.request, MIB / 2, "far sources are judged at the start");
}

#[test]
fn less_is_in_flight_where_less_than_a_quarter_is_served() {
    let shape = Shape { in_flight: 16, ..SHAPE };
    let mut quarter = window(shape);
    quarter.starting = true;
    assert!(!quarter.measured_whole(4.0 * ONE_SERVED, false, LATER));
    assert!(!quarter.starting);
    let mut less = window(shape);
    assert!(less.measured_whole(3.0 * ONE_SERVED, false, LATER));
    assert_eq!(less.shape, Shape { in_flight: 6, ..shape });
}

#[test]
fn a_trial_is_kept_for_a_gain_of_three_tenths() {
    for (kind, served, is_kept) in [
        (TrialKind::More, 13.0, true),
        (TrialKind::More, 12.0, false),
        (TrialKind::Lanes, 13.0, true),
        (TrialKind::Lanes, 12.0, false),
    ] {
        let mut window = window(Shape { in_flight: 40, ..SHAPE });
        (window.trial, window.starting, window.serves_many) = (Some(trial(kind)), true, true);
        window.more.lengthen(LATER);
        window.trials.pause.lengthen(LATER);
        let lengthened = (window.more.length, window.trials.pause.length);
        window.measured_whole(served * ONE_SERVED, false, LATER);
        assert_eq!(window.shape.in_flight, if is_kept { 40 } else { 10 }, "{kind:?}");
        assert!(window.trial.is_none());
        let pauses = (window.more.length, window.trials.pause.length);
        let expected = match (kind, is_kept) {
            (TrialKind::More, true) => (TRIAL_PAUSE, lengthened.1),
            (TrialKind::More, false) => (4 * lengthened.0, lengthened.1),
            (_, true) => (lengthened.0, TRIAL_PAUSE),
            // One of two kinds: the pause comes after the other.
            (_, false) => lengthened,
        };
        assert_eq!(pauses, expected, "{kind:?} {is_kept}");
        let first = if kind == TrialKind::Lanes && is_kept { TrialKind::Lanes } else { TrialKind::Larger };
        assert_eq!(window.trials.first, first);
        assert_eq!(window.serves_many, is_kept || kind != TrialKind::More);
    }
}

#[test]
fn a_rate_below_half_of_the_best_is_another_line() {
    for (served, is_forgotten) in [(5.0, false), (4.99, true), (6.0, false)] {
        let mut window = window(SHAPE);
        window.best_rate = 10.0 * ONE_SERVED;
        assert!(!window.measured_whole(served * ONE_SERVED, false, LATER));
        assert_eq!(window.latency.is_none(), is_forgotten, "{served}");
        let best = if is_forgotten { served } else { 10.0 };
        assert_eq!(window.best_rate, best * ONE_SERVED);
    }
}

#[test]
fn larger_requests_are_tried_where_one_alone_is_slow() {
    // 31,250,000 bytes in a sixteenth of a second are 500 MB/s.
    for (request, is_tried) in [(31_250_000, false), (31_249_999, true), (MIB, true)] {
        let shape = Shape { request, ..SHAPE };
        let mut window = without_more(shape);
        let rate = 8.0 * 16.0 * request as f64;
        assert_eq!(window.measured_whole(rate, true, LATER), is_tried, "{request}");
        assert_eq!(window.trial.is_some_and(|trial| trial.kind == TrialKind::Larger), is_tried);
        assert!(!without_more(shape).measured_whole(rate, false, LATER), "nobody waits");
    }
    let mut window = without_more(SHAPE);
    window.measured_whole(8.0 * ONE_SERVED, true, LATER);
    assert_eq!(window.shape, Shape { request: 4 * MIB, ..SHAPE });
    assert_eq!(window.latency, Some(4 * LATENCY), "a bound until it is measured");
    assert_eq!((window.generation, window.changes), (1, 1));
    assert_eq!(window.measure.skip, SHAPE.in_flight);
}

#[test]
fn a_source_of_many_is_not_tried_with_larger_ones_at_once() {
    for (serves_many, at_ms, is_tried) in
        [(true, 499, false), (true, 500, true), (false, 0, true), (false, 499, true)]
    {
        let mut window = without_more(SHAPE);
        window.serves_many = serves_many;
        assert_eq!(window.measured_whole(8.0 * ONE_SERVED, true, Duration::from_millis(at_ms)), is_tried);
    }
}

#[test]
fn where_all_memory_is_in_flight_and_served_nothing_is_tried() {
    for (bytes_max, served, is_tried) in [
        (11 * MIB - 1, 8.0, false),
        (11 * MIB - 1, 7.0, false),
        (11 * MIB - 1, 6.0, true),
        (32 * MIB, 8.0, true),
    ] {
        let mut window = without_more(SHAPE);
        window.limits.bytes_max = bytes_max;
        assert_eq!(window.measured_whole(served * ONE_SERVED, true, LATER), is_tried, "{bytes_max} {served}");
    }
    let mut window = window(Shape { in_flight: 3, ..SHAPE });
    for (bytes_max, is_full) in [(4 * MIB, false), (4 * MIB - 1, true), (5 * MIB, false), (1, true)] {
        window.limits.bytes_max = bytes_max;
        assert_eq!(window.is_memory_full(), is_full, "{bytes_max}");
    }
}

#[test]
fn after_both_kinds_have_failed_there_is_a_pause_four_times_as_long_each_time() {
    let mut window = without_more(SHAPE);
    let mut now = Duration::from_secs(200);
    window.more.until = Duration::MAX;
    for pause in [1, 4, 16, 60, 60] {
        let kinds = [window.trials.first, window.trials.next(now).unwrap()];
        assert_eq!(kinds[0], kinds[1]);
        for _ in 0..2 {
            assert!(window.measured_whole(8.0 * ONE_SERVED, true, now));
            let tried = window.trial.unwrap();
            let expected = match tried.kind {
                TrialKind::Larger => Shape { request: 4 * MIB, ..SHAPE },
                _ => Shape { lanes: 8, in_flight: 20, ..SHAPE },
            };
            assert_eq!(window.shape, expected);
            assert!(window.measured_whole(8.0 * ONE_SERVED, true, now), "undone");
            assert_eq!((window.shape, window.latency), (SHAPE, Some(LATENCY)));
        }
        assert_eq!(window.trials.pause.until, now + Duration::from_secs(pause));
        assert!(!window.measured_whole(8.0 * ONE_SERVED, true, now + Duration::from_secs(pause) / 2));
        now += Duration::from_secs(pause);
    }
}

/// At its start, with eight requests in flight.
fn starting() -> Window {
    let mut window = window(Shape { in_flight: 8, ..SHAPE });
    (window.starting, window.latency) = (true, None);
    window
}

fn ended(window: &mut Window, latency: Duration, now: Duration) -> bool {
    let generation = window.generation;
    window.completed(generation, MIB, latency, Duration::ZERO, now)
}

#[test]
fn what_is_old_or_short_tells_no_latency() {
    let mut window = starting();
    window.starting = false;
    assert!(!window.completed(7, MIB, LATENCY, LATENCY, LATER));
    assert_eq!((window.latency, window.measure.count), (None, 0));
    window.completed(0, MIB / 2, LATENCY, LATENCY, LATER);
    assert_eq!(window.latency, None);
    window.completed(0, MIB / 2 + 1, LATENCY, LATENCY, LATER);
    assert_eq!(window.latency, Some(LATENCY));
    window.completed(0, MIB, LATENCY / 2, LATENCY, LATER);
    window.completed(0, MIB, LATENCY, LATENCY, LATER);
    assert_eq!(window.latency, Some(LATENCY / 2), "the shortest");
    assert_eq!((window.measure.count, window.measure.bytes), (4, 3 * MIB + 1));
}

#[test]
fn the_first_answers_of_a_shape_are_passed_over() {
    let mut window = starting();
    window.measure = Measure::after(2);
    let waited = Duration::from_millis(7);
    assert!(!window.completed(0, MIB, LATENCY, waited, LATER));
    assert_eq!((window.measure.skip, window.measure.began), (1, None));
    assert!(!window.completed(0, MIB, LATENCY, waited, 2 * LATER));
    assert_eq!((window.measure.skip, window.measure.began), (0, Some(2 * LATER)));
    assert_eq!((window.measure.waited, window.measure.count), (waited, 0));
    window.completed(0, MIB, LATENCY, waited, 2 * LATER);
    assert_eq!(window.measure.count, 1);
}

#[test]
fn a_far_source_is_judged_when_most_answers_are_there() {
    let mut far = starting();
    for answer in 1..=4 {
        assert!(!ended(&mut far, LATENCY, LATENCY));
        assert_eq!(far.measure.count, answer);
    }
    ended(&mut far, LATENCY, LATENCY);
    assert_eq!((far.measure.count, far.measure.began), (0, Some(LATENCY)), "measured, and begun anew");
    assert_eq!(far.best_rate, 8.0 * ONE_SERVED, "not more than what is in flight, once a latency");
    // The others are not judged before all have come, however late.
    let not_early: [fn(&mut Window); 2] = [|window| window.starting = false, |window| window.changes = 1];
    for set in not_early {
        let mut window = starting();
        set(&mut window);
        for answer in 1..=7 {
            ended(&mut window, LATENCY, LATENCY);
            assert_eq!(window.measure.count, answer);
        }
        ended(&mut window, LATENCY, LATENCY);
        assert_eq!(window.measure.count, 0);
        assert_eq!(window.best_rate, 8.0 * ONE_SERVED);
    }
}

#[test]
fn three_milliseconds_are_far() {
    for (latency_us, is_far) in [(3_000, true), (2_999, false)] {
        let latency = Duration::from_micros(latency_us);
        let mut window = starting();
        for _ in 0..5 {
            ended(&mut window, latency, latency);
        }
        assert_eq!(window.measure.count == 0, is_far, "{latency_us} us");
    }
}

#[test]
fn a_source_that_answers_one_by_one_is_judged_by_two_answers() {
    let mut window = starting();
    assert!(!ended(&mut window, LATENCY, LATENCY));
    assert!(!ended(&mut window, LATENCY, LATENCY * 3 / 2 - Duration::from_nanos(1)));
    assert_eq!(window.measure.count, 2);
    let mut window = starting();
    assert!(!ended(&mut window, LATENCY, LATENCY));
    ended(&mut window, LATENCY, LATENCY * 3 / 2);
    assert_eq!(window.measure.count, 0);
    assert_eq!(window.best_rate, 4.0 * ONE_SERVED, "2 MiB in half a latency");
}

#[test]
fn a_near_source_is_judged_by_a_whole_round_of_20_ms() {
    let ms = Duration::from_millis;
    let mut window = window(Shape { lanes: 2, in_flight: 2, request: MIB });
    window.latency = None;
    assert!(!ended(&mut window, ms(1), ms(1)));
    assert!(!ended(&mut window, ms(1), ms(19)));
    assert_eq!(window.measure.count, 2, "a round, and too short");
    ended(&mut window, ms(1), ms(20));
    assert_eq!(window.measure.count, 0);
    assert_eq!(window.best_rate, 3.0 * MIB as f64 / 0.020);
    window.measure = Measure { began: Some(ms(0)), ..Measure::after(0) };
    assert!(!ended(&mut window, ms(1), ms(90)));
    assert_eq!(window.measure.count, 1, "long, and no round");
}

#[test]
fn lanes_wait_that_wait_two_fifths_of_the_time() {
    let shape = Shape { lanes: 5, in_flight: 8, ..SHAPE };
    for (waited, is_waiting) in [(2.0, true), (1.99, false), (3.0, true), (1.0, false)] {
        let mut window = window(shape);
        let before = Duration::from_secs(3);
        window.measure = Measure { began: Some(LATER), waited: before, ..Measure::after(0) };
        let waited = before + LATENCY.mul_f64(waited);
        let mut changed = false;
        for _ in 0..8 {
            changed |= window.completed(0, MIB, LATENCY, waited, LATER + LATENCY);
        }
        assert_eq!(window.best_rate, 8.0 * ONE_SERVED);
        assert_eq!(changed, is_waiting, "{waited:?}");
        if !changed {
            assert_eq!((window.measure.began, window.measure.waited), (Some(LATER + LATENCY), waited));
        }
    }
}

#[test]
fn shapes_are_bent_to_their_limits() {
    let bounded = |limits: WindowLimits, shape: Shape| Window::new(limits).bounded(shape);
    let limits = WindowLimits { bytes_max: 10 * MIB + 100_000, ..WIDE };
    // Eight requests of 20 blocks, and as many more as fit.
    let fitted = bounded(limits, Shape { in_flight: 4, request: 4 * MIB, ..SHAPE });
    assert_eq!(fitted, Shape { in_flight: 4, request: 20 * BLOCK_BYTES, ..SHAPE });
    let limits = WindowLimits { bytes_max: 64 * MIB, depth_max: 16, ..WIDE };
    assert_eq!(bounded(limits, Shape { in_flight: 100, ..SHAPE }), Shape { in_flight: 64, ..SHAPE });
    let limits = WindowLimits { lanes_max: 2, depth_max: 5, ..WIDE };
    assert_eq!(
        bounded(limits, Shape { in_flight: 100, ..SHAPE }),
        Shape { lanes: 2, in_flight: 10, ..SHAPE }
    );
    let limits = WindowLimits { depth: Some(3), depth_max: 16, ..WIDE };
    assert_eq!(bounded(limits, SHAPE), Shape { in_flight: 12, ..SHAPE });
    let limits = WindowLimits { lanes: Some(2), depth_max: 5, ..WIDE };
    assert_eq!(bounded(limits, Shape { in_flight: 30, ..SHAPE }), Shape { lanes: 2, in_flight: 10, ..SHAPE });
}
