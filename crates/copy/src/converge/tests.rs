//! A virtual clock, and machines that change at set rates.

use super::*;

const MIB: f64 = 1_048_576.0;

fn costs() -> Costs {
    let about = |likely: f64| Estimate { likely, spread: likely / 4.0 };
    Costs { shutdown: about(30.0), freeze: about(2.0), prove: about(0.0), boot: about(8.0), off_by: None }
}

/// A machine that changes so many bytes a second, copied at so many.
struct Machine {
    churn: f64,
    rate: f64,
    size: f64,
    passes: Vec<PassFacts>,
    now_ms: i64,
}

/// What became of a machine.
#[derive(Debug)]
struct End {
    reason: Reason,
    forecast: Forecast,
    real_s: f64,
}

impl Machine {
    fn new(churn_mib: f64, rate_mib: f64, size_gib: f64) -> Machine {
        let (churn, rate, size) = (churn_mib * MIB, rate_mib * MIB, size_gib * 1024.0 * MIB);
        Machine { churn, rate, size, passes: Vec::new(), now_ms: 1_000_000 }
    }

    fn sleep(&mut self, seconds: f64) {
        self.now_ms += (seconds * 1000.0).ceil() as i64;
    }

    /// Bytes that changed since the last frozen state.
    fn dirty(&self) -> Option<f64> {
        let since = (self.now_ms - self.passes.last()?.frozen_ms) as f64 / 1000.0;
        Some((self.churn * since).min(self.size))
    }

    fn pass(&mut self) {
        let began_ms = self.now_ms;
        self.sleep(2.0);
        let (frozen_ms, areas) = (self.now_ms, self.dirty());
        let bytes = areas.unwrap_or(self.size);
        let copying = Duration::from_secs_f64(1.0 + bytes / self.rate);
        self.sleep(copying.as_secs_f64());
        let areas_bytes = areas.map(|bytes| bytes as u64);
        self.passes.push(PassFacts { began_ms, frozen_ms, copying, read_bytes: bytes as u64, areas_bytes });
    }

    /// Goes by the contract's word until the cutover, or `None` after so many passes.
    fn run(&mut self, contract: &Contract, asked_at_ms: Option<i64>, passes_max: usize) -> Option<End> {
        while self.passes.len() < passes_max {
            let asked = asked_at_ms.is_some_and(|at| self.now_ms >= at);
            match contract.decide(&self.passes, &costs(), asked, self.now_ms) {
                Decision::Pass => self.pass(),
                Decision::Wait { until_ms } => {
                    assert!(until_ms > self.now_ms, "a wait that is over");
                    let asked_at = asked_at_ms.filter(|at| *at > self.now_ms).unwrap_or(i64::MAX);
                    self.now_ms = until_ms.min(asked_at);
                }
                Decision::Cutover(reason) => {
                    let forecast = Trend::of(&self.passes).unwrap().forecast(&costs(), self.now_ms);
                    let began = self.now_ms;
                    self.sleep(30.0);
                    self.pass();
                    self.sleep(8.0);
                    return Some(End { reason, forecast, real_s: (self.now_ms - began) as f64 / 1000.0 });
                }
            }
        }
        None
    }
}

fn contract(when: When) -> Contract {
    Contract { interval: Some(Duration::from_secs(600)), when, downtime_max: Duration::from_secs(120) }
}

#[test]
fn the_first_pass_begins_at_once() {
    let decision = contract(When::Asked).decide(&[], &costs(), true, 5);
    assert_eq!(decision, Decision::Pass);
}

#[test]
fn an_automatic_cutover_comes_after_three_passes_and_keeps_its_word() {
    let mut machine = Machine::new(2.0, 100.0, 20.0);
    let end = machine.run(&contract(When::Fits), None, 50).unwrap();
    assert_eq!((end.reason, machine.passes.len()), (Reason::Fits, 3 + 1), "three, and the last one");
    assert!(end.forecast.high <= Duration::from_secs(120));
    assert!(end.real_s <= 120.0, "{end:?}");
    assert!(
        (end.forecast.low.as_secs_f64()..=end.forecast.high.as_secs_f64()).contains(&end.real_s),
        "{end:?}"
    );
}

#[test]
fn the_passes_of_a_trend_follow_each_other_sooner_than_the_interval_where_nothing_else_is_waited_for() {
    let hourly = |when| Contract { interval: Some(Duration::from_secs(3600)), ..contract(when) };
    let mut machine = Machine::new(1.0, 100.0, 1.0);
    let end = machine.run(&hourly(When::Fits), None, 50).unwrap();
    assert_eq!((end.reason, machine.passes.len()), (Reason::Fits, 3 + 1));
    // The first pass takes 13.24 s, and as long is waited after it; the second one is shorter, so 10 s are.
    let starts: Vec<i64> = machine.passes.iter().map(|pass| pass.began_ms - 1_000_000).collect();
    assert!((26_000..27_000).contains(&starts[1]) && starts[2] - starts[1] < 15_000, "{starts:?}");
    for when in [When::Asked, When::At(100 * 3_600_000)] {
        let mut machine = Machine::new(1.0, 100.0, 1.0);
        machine.run(&hourly(when), None, 3);
        assert_eq!(machine.passes[2].began_ms - machine.passes[1].began_ms, 3_600_000, "{when:?}");
    }
    // With a trend that does not fit, the interval holds again.
    let mut slow = Machine::new(1.0, 100.0, 1.0);
    slow.run(&Contract { downtime_max: Duration::from_secs(35), ..hourly(When::Fits) }, None, 4);
    assert_eq!(slow.passes[3].began_ms - slow.passes[2].began_ms, 3_600_000);
}

#[test]
fn what_does_not_fit_never_cuts_over_by_itself_but_does_when_asked() {
    let when = Contract { downtime_max: Duration::from_secs(35), ..contract(When::Fits) };
    assert!(Machine::new(2.0, 100.0, 20.0).run(&when, None, 30).is_none());
    let mut machine = Machine::new(2.0, 100.0, 20.0);
    let end = machine.run(&when, Some(machine.now_ms + 5_000_000), 300).unwrap();
    assert_eq!(end.reason, Reason::Asked);
}

#[test]
fn a_cutover_by_command_first_brings_a_stale_copy_up_to_date() {
    let mut machine = Machine::new(20.0, 100.0, 50.0);
    let hourly = Contract { interval: Some(Duration::from_secs(36_000)), ..contract(When::Asked) };
    let asked_at = machine.now_ms + 8 * 3_600_000;
    let end = machine.run(&hourly, Some(asked_at), 50).unwrap();
    // Hours of changes would have been copied while the machine is down.
    assert!(end.real_s < 90.0, "{end:?}");
    assert!(machine.passes.len() >= 3, "{}", machine.passes.len());
}

#[test]
fn a_quiet_machine_is_cut_over_the_moment_somebody_says_so() {
    let mut machine = Machine::new(0.0, 100.0, 1.0);
    machine.pass();
    machine.pass();
    machine.sleep(7200.0);
    let decision = contract(When::Asked).decide(&machine.passes, &costs(), true, machine.now_ms);
    assert_eq!(decision, Decision::Cutover(Reason::Asked));
}

#[test]
fn a_cutover_at_a_set_time_is_prepared_so_that_it_happens_then() {
    let mut machine = Machine::new(5.0, 100.0, 50.0);
    let at = machine.now_ms + 3 * 3_600_000 + 123_000;
    let end = machine.run(&contract(When::At(at)), None, 200).unwrap();
    assert_eq!(end.reason, Reason::Time);
    let began = machine.now_ms as f64 - end.real_s * 1000.0;
    assert!((began - at as f64).abs() < 30_000.0, "{} ms off", began - at as f64);
    // The last pass before it was a fresh one.
    let last = machine.passes[machine.passes.len() - 2];
    assert!(at - last.frozen_ms < 180_000, "{} ms before", at - last.frozen_ms);
    assert!(end.real_s < 60.0, "{end:?}");
}

#[test]
fn a_time_that_has_passed_is_now() {
    let mut machine = Machine::new(1.0, 100.0, 1.0);
    let end = machine.run(&contract(When::At(0)), None, 10).unwrap();
    assert_eq!((end.reason, machine.passes.len()), (Reason::Time, 2 + 1));
}

#[test]
fn passes_keep_their_interval_from_beginning_to_beginning() {
    let mut machine = Machine::new(1.0, 100.0, 1.0);
    machine.run(&contract(When::Asked), None, 5);
    for pair in machine.passes.windows(2) {
        assert_eq!(pair[1].began_ms - pair[0].began_ms, 600_000);
    }
    // A pass that takes longer than the interval is followed by the next one at once.
    let mut slow = Machine::new(60.0, 100.0, 100.0);
    slow.run(&contract(When::Asked), None, 3);
    assert!(slow.passes[1].began_ms >= slow.passes[0].began_ms + 1_024_000);
}

#[test]
fn an_interval_of_its_own_choice_follows_the_rate_of_change() {
    let auto = Contract { interval: None, ..contract(When::Asked) };
    let interval = |churn: f64| {
        let mut machine = Machine::new(churn, 100.0, 1000.0);
        machine.run(&auto, None, 4);
        let trend = Trend::of(&machine.passes).unwrap();
        auto.interval(&trend, &costs()).as_secs_f64()
    };
    let (quiet, busy, mad) = (interval(0.1), interval(5.0), interval(95.0));
    assert_eq!((quiet, mad), (INTERVAL_AUTO_MAX_S, INTERVAL_AUTO_MIN_S));
    assert!(busy > mad && busy < quiet, "{busy}");
    // What changes in it takes about half of the 120 s that are left when all else is paid for.
    assert!((20.0..60.0).contains(&(busy * 5.0 / 100.0)), "{busy}");
}

#[test]
fn a_machine_that_changes_as_fast_as_it_is_copied_is_told_so() {
    let hopeless = |churn: f64| {
        let mut machine = Machine::new(churn, 100.0, 1000.0);
        machine.run(&contract(When::Asked), None, 3);
        Trend::of(&machine.passes).unwrap().is_hopeless()
    };
    assert!(hopeless(90.0) && hopeless(500.0));
    assert!(!hopeless(50.0) && !hopeless(0.0));
    let mut young = Machine::new(500.0, 100.0, 10.0);
    young.pass();
    assert!(!Trend::of(&young.passes).unwrap().is_hopeless(), "one pass is no trend");
}

/// What is advised after some passes at an interval of so many minutes.
fn advised(churn: f64, size_gib: f64, minutes: u64) -> Option<Advice> {
    let interval = Some(Duration::from_secs(minutes * 60));
    let contract = Contract { interval, ..contract(When::Asked) };
    let mut machine = Machine::new(churn, 100.0, size_gib);
    machine.run(&contract, None, 5);
    contract.advice(&Trend::of(&machine.passes).unwrap(), &costs())
}

#[test]
fn another_interval_is_advised_where_this_one_does_not_fit_what_changes() {
    assert_eq!(advised(90.0, 1000.0, 60), Some(Advice::Hopeless));
    assert_eq!(advised(1.0, 1000.0, 10), None, "6 s for what changes in 10 minutes");
    // 20 MiB/s for an hour are 720 s at 100 MiB/s; the contract has two minutes.
    match advised(20.0, 1000.0, 60) {
        Some(Advice::IntervalTooLong { pass, better }) => {
            assert!((650..800).contains(&pass.as_secs()), "{pass:?}");
            assert!((60..1500).contains(&better.as_secs()), "{better:?}");
            let minutes = better.as_secs() / 60;
            assert_eq!(advised(20.0, 1000.0, minutes), None, "what was advised is not found wrong");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(advised(20.0, 1000.0, 5), None);
    // A pass has 20 s of its own here, whatever it copies.
    let slow = |minutes: f64| {
        let interval = Some(Duration::from_secs_f64(minutes * 60.0));
        let contract = Contract { interval, ..contract(When::Asked) };
        let mut passes = Vec::new();
        for number in 0..4i64 {
            let began_ms = number * 22_000;
            let areas_bytes = (number > 0).then_some(1 << 20);
            let read_bytes = areas_bytes.unwrap_or(1 << 30);
            let copying = Duration::from_secs(20);
            passes.push(PassFacts { began_ms, frozen_ms: began_ms, copying, read_bytes, areas_bytes });
        }
        contract.advice(&Trend::of(&passes).unwrap(), &costs())
    };
    match slow(0.1) {
        Some(Advice::IntervalTooShort { pass, better }) => {
            assert!(pass.as_secs() >= 18 && better.as_secs() >= 60, "{pass:?} {better:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(slow(2.0), None);
    let mut young = Machine::new(20.0, 100.0, 1000.0);
    young.pass();
    let trend = Trend::of(&young.passes).unwrap();
    assert_eq!(contract(When::Asked).advice(&trend, &costs()), None, "one pass is no trend");
}

#[test]
fn one_wild_pass_widens_the_forecast_and_is_forgotten_in_time() {
    let mut machine = Machine::new(1.0, 100.0, 100.0);
    machine.run(&contract(When::Asked), None, 5);
    let look = |machine: &Machine| {
        Trend::of(&machine.passes)
            .unwrap()
            .forecast(&costs(), machine.passes.last().unwrap().frozen_ms + 20_000)
    };
    let calm = look(&machine);
    machine.churn *= 40.0;
    machine.run(&contract(When::Asked), None, 6);
    let wild = look(&machine);
    assert!(wild.high - wild.low > (calm.high - calm.low) * 2, "{calm:?} {wild:?}");
    machine.churn /= 40.0;
    machine.run(&contract(When::Asked), None, 16);
    let calm_again = look(&machine);
    assert!(calm_again.high < calm.high + Duration::from_secs(3), "{calm:?} {calm_again:?}");
}

#[test]
fn a_source_whose_changes_are_not_known_is_read_whole_and_the_forecast_says_so() {
    let mut machine = Machine::new(1.0, 100.0, 60.0);
    machine.pass();
    machine.pass();
    machine.passes[1].areas_bytes = None;
    machine.passes[1].read_bytes = (60.0 * 1024.0 * MIB) as u64;
    machine.passes[1].copying = Duration::from_secs(614);
    let forecast = Trend::of(&machine.passes).unwrap().forecast(&costs(), machine.now_ms);
    assert!(forecast.likely > Duration::from_secs(600), "{forecast:?}");
    let decision = contract(When::Asked).decide(&machine.passes, &costs(), true, machine.now_ms);
    assert_eq!(decision, Decision::Cutover(Reason::Asked), "another pass would gain nothing");
    // By itself it moves over as soon as that fits, too, but not after one of them.
    let last = machine.passes[1];
    let long = Contract { downtime_max: Duration::from_secs(3600), ..contract(When::Fits) };
    let early = long.decide(&machine.passes, &costs(), false, machine.now_ms);
    assert_ne!(early, Decision::Cutover(Reason::Fits));
    machine.passes.push(last);
    let decide = |contract: Contract| contract.decide(&machine.passes, &costs(), false, machine.now_ms);
    assert_eq!(decide(long), Decision::Cutover(Reason::Fits));
    assert_ne!(decide(contract(When::Fits)), Decision::Cutover(Reason::Fits));
}

/// A pass that read at 100 MB/s and froze the moment it began.
fn pass_at(at_s: i64, read_bytes: u64, areas_bytes: Option<u64>) -> PassFacts {
    let copying = Duration::from_secs_f64(read_bytes as f64 / 100e6);
    PassFacts { began_ms: at_s * 1000, frozen_ms: at_s * 1000, copying, read_bytes, areas_bytes }
}

/// What passes at 100 MB/s tell of a machine that changes so many bytes a second; the last of them froze at second 100.
fn trend_of(churn: f64) -> Trend {
    let passes = [pass_at(0, 1_000_000_000, None), pass_at(100, 1_000_000_000, Some((churn * 100.0) as u64))];
    Trend { deltas: 2, fixed_s: 0.0, ..Trend::of(&passes).unwrap() }
}

#[test]
fn a_forecast_has_all_parts_of_a_downtime_and_of_what_may_go_wrong_in_it() {
    let sure = |likely: f64| Estimate { likely, spread: 0.0 };
    let shutdown = Estimate { likely: 30.0, spread: 8.0 };
    let costs = Costs { shutdown, freeze: sure(2.0), prove: sure(0.0), boot: sure(8.0), off_by: None };
    // 10 MB/s for 20 s and the 30 s of the shutdown are 500 MB, which take 5 s. One sample may be off by half, which
    // is 250 MB, and 8 s more of shutdown are 80 MB: 3.3 s, and a quarter of the 5 s. With the 8 s: the root of
    // 8^2 + 4.55^2.
    let forecast = trend_of(10e6).forecast(&costs, 120_000);
    let near = |time: Duration, seconds: f64| (time.as_secs_f64() - seconds).abs() < 0.001;
    assert!(forecast.delta_bytes.abs_diff(500_000_000) < 1000, "{forecast:?}");
    assert!(near(forecast.likely, 45.0), "{forecast:?}");
    assert!(near(forecast.low, 45.0 - 9.2033) && near(forecast.high, 45.0 + 9.2033), "{forecast:?}");
}

#[test]
fn after_the_first_pass_alone_nothing_is_foretold_of_the_next_one() {
    let forecast = Trend::of(&[pass_at(0, 50_000_000_000, None)]).unwrap().forecast(&costs(), 600_000);
    assert_eq!((forecast.delta_bytes, forecast.likely), (0, Duration::from_secs(40)));
}

#[test]
fn what_each_pass_costs_of_itself_leaves_less_for_what_changed() {
    let auto = Contract { interval: None, ..contract(When::Asked) };
    let interval = |fixed_s: f64| auto.interval(&Trend { fixed_s, ..trend_of(5e6) }, &costs()).as_secs_f64();
    // 80 s and 60 s are left of the 120 s; half of that, at twenty times the rate of change.
    assert!((interval(0.0) - 800.0).abs() < 0.001 && (interval(20.0) - 600.0).abs() < 0.001);
}

#[test]
fn what_is_advised_is_never_what_there_is_and_what_just_fits_is_left_alone() {
    let advice = |churn: f64, fixed_s: f64, interval: u64, downtime_max: u64| {
        let interval = Some(Duration::from_secs(interval));
        let downtime_max = Duration::from_secs(downtime_max);
        let trend = Trend { fixed_s, ..trend_of(churn) };
        Contract { interval, downtime_max, when: When::Asked }.advice(&trend, &costs())
    };
    assert_eq!(advice(0.0, 60.0, 60, 120), None, "a pass takes just the interval");
    assert_eq!(
        advice(50e6, 50.0, 80, 120),
        None,
        "90 s for 80 s of changes, and 80 s is what would be advised"
    );
    assert_eq!(advice(10e6, 0.0, 1200, 120), None, "what changes in 1200 s takes just the downtime");
    assert_eq!(advice(50e6, 10.0, 60, 30), None, "40 s are too long, and no interval is shorter than 60 s");
    assert!(matches!(advice(10e6, 0.0, 1201, 120), Some(Advice::IntervalTooLong { .. })));
}

/// What is decided before a cutover at second 3700, with passes ten hours apart otherwise.
fn before_a_set_time(passes: &[PassFacts], now_s: i64) -> Decision {
    let interval = Some(Duration::from_secs(36_000));
    let contract = Contract { interval, ..contract(When::At(3_700_000)) };
    contract.decide(passes, &costs(), false, now_s * 1000)
}

#[test]
fn the_last_pass_before_a_set_time_begins_half_as_early_again_as_it_takes() {
    // What changes in an hour takes 360 s, and freezing 2 s; half as much again is 543 s.
    let passes = [pass_at(0, 1_000_000_000, None), pass_at(100, 1_000_000_000, Some(1_000_000_000))];
    assert_eq!(before_a_set_time(&passes, 200), Decision::Wait { until_ms: 3_157_000 });
    assert_eq!(before_a_set_time(&passes, 3157), Decision::Pass);
}

#[test]
fn nothing_but_the_cutover_comes_after_the_last_pass_or_where_none_is_worth_it() {
    let the_cutover = Decision::Wait { until_ms: 3_700_000 };
    let quiet = [pass_at(0, 1_000_000_000, None), pass_at(100, 0, Some(0))];
    for now_s in [200, 3600, 3699] {
        assert_eq!(before_a_set_time(&quiet, now_s), the_cutover);
    }
    // Each takes 20 s whatever it reads, and half of the time whose changes it brings: 70 s for 100 s. Another one would
    // not be done in time.
    let changed = Some(3600 * 50_000_000);
    let slow = PassFacts { copying: Duration::from_secs_f64(20.1), ..pass_at(3600, 10_000_000, changed) };
    let passes = [pass_at(0, 10_000_000_000, None), slow];
    assert!(Trend::of(&passes).unwrap().pays_before_cutover(&costs(), 3_700_000), "it would gain something");
    assert_eq!(before_a_set_time(&passes, 3621), the_cutover);
}

#[test]
fn an_interval_beyond_all_time_is_a_long_wait() {
    let contract = Contract { interval: Some(Duration::MAX), ..contract(When::Asked) };
    let decision = contract.decide(&[pass_at(0, 1 << 30, None)], &costs(), false, 0);
    assert!(matches!(decision, Decision::Wait { until_ms } if until_ms > i64::MAX / 4), "{decision:?}");
}

#[test]
fn earlier_errors_are_worth_more_than_what_the_parts_may_be_off_by() {
    let forecast = |off_by| trend_of(0.0).forecast(&Costs { off_by, ..costs() }, 120_000);
    let wide = forecast(None);
    let known = forecast(Some(0.25));
    assert_eq!(known.likely, wide.likely);
    assert_eq!((known.high - known.low).as_millis(), 500, "{known:?} instead of {wide:?}");
    // What changes has a spread of its own, which earlier machines do not tell.
    let busy = trend_of(10e6).forecast(&Costs { off_by: Some(0.25), ..costs() }, 120_000);
    assert!(busy.high - busy.low > Duration::from_secs(6), "{busy:?}");
}

#[test]
fn errors_are_bounded_so_that_eight_of_ten_of_the_next_keep_to_it() {
    assert_eq!((off_by([]), off_by([1.0, 2.0, 3.0])), (None, None), "three are too few");
    assert_eq!(off_by([0.1, -0.4, 0.2, 0.3]), Some(0.4));
    assert_eq!(off_by((1..=9).map(f64::from)), Some(8.0));
    assert_eq!(off_by((1..=19).map(|error| -f64::from(error))), Some(16.0));
}

#[test]
fn whatever_was_measured_there_is_an_answer_and_a_wait_lies_ahead() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut roll = |sides: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if sides == 0 { state } else { state % sides }
    };
    for round in 0..20_000 {
        let mut when = 0;
        let facts: Vec<PassFacts> = (0..roll(6))
            .map(|_| {
                when += roll(10_000_000) as i64;
                let (copying, read_bytes) = (Duration::from_millis(roll(1_000_000)), roll(0));
                let areas_bytes = (roll(2) == 0).then(|| roll(0));
                PassFacts { began_ms: when, frozen_ms: when, copying, read_bytes, areas_bytes }
            })
            .collect();
        let contract = Contract {
            interval: (roll(2) == 0).then(|| Duration::from_millis(roll(10_000_000))),
            when: if roll(2) == 0 { When::Fits } else { When::At(roll(0) as i64 / 4) },
            downtime_max: Duration::from_millis(roll(0)),
        };
        let now = roll(100_000_000) as i64;
        if let Decision::Wait { until_ms } = contract.decide(&facts, &costs(), roll(2) == 0, now) {
            assert!(until_ms > now, "round {round}");
        }
        if let Some(trend) = Trend::of(&facts) {
            let forecast = trend.forecast(&costs(), now);
            assert!(forecast.low <= forecast.likely && forecast.likely <= forecast.high, "round {round}");
        }
    }
}

#[test]
fn a_cutover_that_can_never_fit_is_told() {
    let fits = |seconds| Contract {
        when: When::Fits,
        downtime_max: Duration::from_secs(seconds),
        ..contract(When::Asked)
    };
    let assumed = Costs {
        shutdown: Estimate { likely: 30.0, spread: 20.0 },
        prove: Estimate { likely: 2.0, spread: 2.0 },
        boot: Estimate { likely: 5.0, spread: 5.0 },
        ..Costs::default()
    };
    let trend = trend_of(1.0);
    let Some(Advice::NeverFits { least }) = fits(57).advice(&trend, &assumed) else {
        panic!("nothing is said")
    };
    assert_eq!(least.as_secs(), 57, "{least:?}");
    assert!(!matches!(fits(58).advice(&trend, &assumed), Some(Advice::NeverFits { .. })));
    let asked = Contract { when: When::Asked, ..fits(1) };
    assert!(
        !matches!(asked.advice(&trend, &assumed), Some(Advice::NeverFits { .. })),
        "whoever asks gets it"
    );
}
