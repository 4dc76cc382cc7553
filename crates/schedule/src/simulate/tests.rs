use drover_types::{DayLimit, IfFailed, Wave, WaveWindow, Windows};

use super::*;
use crate::job::{Disk, Group};
use crate::wait::Resource;

const MIB: u64 = 1 << 20;

fn vm(host: &str, mib: u64, disks: usize) -> Vm {
    let disk = Disk { bytes: mib * MIB, datastore: format!("of-{host}"), pool: Some("pool".into()) };
    let job = Job { name: "vm".into(), host: host.into(), disks: vec![disk; disks], ..Job::default() };
    Vm { job, ..Vm::default() }
}

fn fleet(vms: Vec<Vm>, capacities: Capacities) -> Fleet {
    Fleet { vms, capacities, ..Fleet::default() }
}

fn rates(stream: u64, host: u64) -> Capacities {
    Capacities { stream: Some(stream * MIB), host: Some(host * MIB), ..Capacities::default() }
}

#[test]
fn disks_share_what_they_go_through_and_what_limits_them_is_told() {
    // Two disks alone take 100 MiB/s each; a third and a fourth share the host's 300.
    let two = simulate(&fleet(vec![vm("a", 1000, 2)], rates(100, 300)));
    assert_eq!(two.makespan_ms, 10_000);
    assert_eq!(two.vms[0].limited_by, [(Resource::Stream, 20_000)]);
    let four = simulate(&fleet(vec![vm("a", 1000, 4)], rates(100, 300)));
    assert!((13_330..=13_340).contains(&four.makespan_ms), "{}", four.makespan_ms);
    assert_eq!(four.vms[0].limited_by[0].0, Resource::Host("a".into()));
    assert!((four.resources[0].part - 1.0).abs() < 0.01);
    assert_eq!(
        four.limited.iter().map(|span| span.by.clone()).collect::<Vec<_>>(),
        [Some(Resource::Host("a".into()))]
    );
}

#[test]
fn fixed_times_hold_slots_and_the_start_does_not() {
    let one = Vm { shutdown_ms: 1000, snapshot_ms: 500, verify_ms: 2000, start_ms: 4000, ..vm("a", 100, 1) };
    let mut fleet = fleet(vec![one.clone(), one], rates(100, 300));
    fleet.budgets.vms_per_host = 1;
    let outcome = simulate(&fleet);
    let [first, second] = &outcome.vms[..] else { panic!("two VMs") };
    // 1.5 s, the copy of 1 s, 2 s; then it holds no slot.
    assert_eq!((first.begin_ms, second.begin_ms), (Some(0), Some(4500)));
    assert_eq!((first.end_ms, first.downtime_ms()), (Some(8500), Some(8500)));
    assert_eq!(outcome.makespan_ms, 13_000);
}

#[test]
fn the_line_is_as_wide_as_its_hours_say() {
    // 8 Mbit/s until 00:01, then 16: 60 MB and 40 MB of them.
    let link = vec!["00:00-00:01=8m".parse().unwrap(), "00:01-00:00=16m".parse().unwrap()];
    let one = Job { disks: vec![Disk { bytes: 100_000_000, ..Disk::default() }], ..Job::default() };
    let outcome = simulate(&fleet(
        vec![Vm { job: one, ..Vm::default() }],
        Capacities { link, ..Capacities::default() },
    ));
    assert_eq!(outcome.makespan_ms, 80_000);
    assert_eq!(outcome.vms[0].limited_by[0].0, Resource::Link);
}

#[test]
fn those_that_share_a_line_have_it_between_them_and_others_do_not_wait_for_it() {
    let over = |line: &str, host: &str| Vm { lines: vec![line.into()], ..vm(host, 1000, 1) };
    let lines = [("site b", 100 * MIB), ("site c", 100 * MIB)]
        .map(|(name, bytes_per_second)| (name.to_string(), vec![DayLimit::always(bytes_per_second)]));
    let vms = vec![over("site b", "a"), over("site b", "b"), over("site c", "c")];
    let fleet = fleet(vms, Capacities { lines: lines.into(), ..rates(100, 300) });
    let outcome = simulate(&fleet);
    let ends: Vec<Option<u64>> = outcome.vms.iter().map(|vm| vm.end_ms).collect();
    assert_eq!(ends, [Some(20_000), Some(20_000), Some(10_000)]);
    assert_eq!(outcome.vms[0].limited_by[0].0, Resource::Line("site b".into()));
    assert_eq!(lower_bound_ms(&fleet), 20_000);
}

#[test]
fn a_warm_vm_goes_through_passes_and_is_down_for_the_last_only() {
    let warm = WarmMove { churn: MIB, interval_ms: 100_000, cutover_ms: Some(500_000), downtime_ms: 0 };
    let one = Vm { shutdown_ms: 10_000, start_ms: 5000, warm: Some(warm), ..vm("a", 10_000, 1) };
    let outcome = simulate(&fleet(vec![one], rates(100, 300)));
    let told = &outcome.vms[0];
    // The first pass takes 100 s, which is the interval; the others read what changed since the one before began.
    assert_eq!(told.passes, 6, "{told:?}");
    assert_eq!(told.down_ms, Some(500_000));
    assert!(told.downtime_ms().is_some_and(|ms| (15_900..16_100).contains(&ms)), "{told:?}");
}

#[test]
fn a_vm_that_moves_over_by_itself_does_so_after_two_deltas_which_do_not_wait_for_the_interval() {
    let moved = |interval_ms, downtime_ms| {
        let warm = WarmMove { churn: MIB, interval_ms, cutover_ms: None, downtime_ms };
        let one = Vm { warm: Some(warm), ..vm("a", 1_000, 1) };
        simulate(&fleet(vec![one], rates(100, 300))).vms.remove(0)
    };
    // The first pass takes 10 s, and a pause of 10 s follows it and the second one, which brings 20 s of changes.
    let auto = moved(3_600_000, 300_000);
    assert_eq!(auto.passes, 4, "{auto:?}");
    assert!(auto.down_ms.is_some_and(|at| (30_000..31_000).contains(&at)), "{auto:?}");
    // A shorter interval holds: the second pass begins as the first one ends, the third one 5 s after that.
    let short = moved(5_000, 300_000);
    assert!(short.down_ms.is_some_and(|at| (15_000..15_500).contains(&at)), "{short:?}");
    // By order it is ready after the first one.
    assert_eq!((moved(3_600_000, 0).down_ms, moved(3_600_000, 0).passes), (Some(10_000), 2));
}

#[test]
fn what_goes_on_while_nothing_is_transferred_is_counted() {
    let of = |warm, wave: Option<&str>| {
        let one = vm("a", 1_000, 1);
        let job = Job { wave: wave.map(Into::into), ..one.job };
        let one = Vm { warm, job, shutdown_ms: 20_000, start_ms: 5_000, ..one };
        let window = WaveWindow { from_ms: Some(60_000), ..WaveWindow::default() };
        let waves = vec![Wave { name: "late".into(), window, ..Wave::default() }];
        let fleet = Fleet { waves: [(Tenant(0), waves)].into(), ..fleet(vec![one], rates(100, 300)) };
        simulate(&fleet).idle
    };
    assert_eq!(of(None, None), [(Idle::Steps, 25_000)].into());
    assert_eq!(of(None, Some("late")), [(Idle::Steps, 25_000), (Idle::Windows, 60_000)].into());
    // Two pauses of 10 s, and nothing changes.
    let warm = WarmMove { churn: 0, interval_ms: 3_600_000, cutover_ms: None, downtime_ms: 300_000 };
    let idle = of(Some(warm), None);
    assert!((20_000..20_100).contains(&idle[&Idle::Pauses]), "{idle:?}");
    assert!((24_900..25_100).contains(&idle[&Idle::Steps]), "{idle:?}");
}

#[test]
fn a_window_that_closes_before_there_is_a_trend_is_missed() {
    let of = |until_ms| {
        let window = WaveWindow { until_ms: Some(until_ms), ..WaveWindow::default() };
        let wave = Wave { name: "one".into(), window, ..Wave::default() };
        let warm = WarmMove { churn: MIB, interval_ms: 3_600_000, cutover_ms: None, downtime_ms: 300_000 };
        let one = vm("a", 1_000, 1);
        let one = Vm { warm: Some(warm), job: Job { wave: Some("one".into()), ..one.job }, ..one };
        let fleet = Fleet { waves: [(Tenant(0), vec![wave])].into(), ..fleet(vec![one], rates(100, 300)) };
        simulate(&fleet).vms.remove(0)
    };
    // It is ready after 30 s.
    let (missed, met) = (of(25_000), of(40_000));
    assert_eq!((missed.given_up, missed.down_ms), (Some(crate::Ended::TooLate), None));
    assert!(met.end_ms.is_some(), "{met:?}");
}

#[test]
fn a_warm_stage_moves_over_together() {
    let one = |mib| {
        let warm = WarmMove { churn: 0, interval_ms: 1000, cutover_ms: None, downtime_ms: 0 };
        let mut vm = Vm { warm: Some(warm), ..vm("a", mib, 1) };
        vm.job.group = Some(Group { name: "shop".into(), stage: 0 });
        vm
    };
    let outcome = simulate(&fleet(vec![one(100), one(5000)], rates(100, 300)));
    assert_eq!(outcome.vms[0].down_ms, outcome.vms[1].down_ms);
}

#[test]
fn more_disks_than_a_host_gains_by_are_not_read() {
    let mut many = fleet((0..200).map(|_| vm("a", 10_000, 1)).collect(), rates(100, 300));
    many.climb_from = Some(20);
    let outcome = simulate(&many);
    let [(Resource::Host(host), found)] = &outcome.found[..] else { panic!("one host") };
    assert_eq!((host.as_str(), found.disks), ("a", 3), "{found}");
    assert!(outcome.makespan_ms as f64 <= lower_bound_ms(&many) as f64 * 1.05);
}

#[test]
fn waves_follow_one_another_and_a_warm_vm_moves_over_in_its_own() {
    let wave = |name: &str, after: &[&str], from_ms| Wave {
        name: name.into(),
        after: after.iter().map(|it| it.to_string()).collect(),
        window: WaveWindow { from_ms, ..WaveWindow::default() },
        if_failed: IfFailed::Wait,
    };
    let of = |name: &str, vm: Vm| Vm { job: Job { wave: Some(name.into()), ..vm.job }, ..vm };
    let warm = WarmMove { churn: MIB, interval_ms: 60_000, cutover_ms: None, downtime_ms: 0 };
    let warm = Vm { warm: Some(warm), ..vm("b", 100, 1) };
    let vms = vec![of("one", vm("a", 1000, 1)), of("two", vm("a", 1000, 1)), of("three", warm)];
    let waves =
        vec![wave("one", &[], None), wave("two", &["one"], None), wave("three", &["one"], Some(7_200_000))];
    let fleet = Fleet { waves: [(Tenant(0), waves)].into(), ..fleet(vms, rates(100, 300)) };
    let outcome = simulate(&fleet);
    let [one, two, three] = &outcome.vms[..] else { panic!("three VMs") };
    assert_eq!((one.begin_ms, one.end_ms, two.begin_ms), (Some(0), Some(10_000), Some(10_000)));
    // It was copied at once, and again and again: its last pass has a minute of changes, not two hours of them.
    assert_eq!((three.begin_ms, three.down_ms), (Some(0), Some(7_200_000)));
    assert!(three.downtime_ms().is_some_and(|ms| (500..1000).contains(&ms)), "{three:?}");
}

#[test]
fn the_virtual_clock_has_the_weekdays_and_zones_of_its_zero() {
    // Friday, 2026-10-23; in Berlin the clock is put back on Sunday, so that its night lasts nine hours.
    let (zero_ms, hour) = (1_792_713_600_000, 3_600_000);
    let windows = Windows(vec!["Sat 22:00-06:00 Europe/Berlin".parse().unwrap()]);
    let window = WaveWindow { windows, zero_ms, ..WaveWindow::default() };
    let waves = vec![Wave { name: "one".into(), window, ..Wave::default() }];
    // The second of a host that takes one at a time does not begin in the first night.
    let night = |vm: Vm| Vm { job: Job { wave: Some("one".into()), ..vm.job }, ..vm };
    let link = vec![DayLimit::always(MIB), "Sat-Mon Europe/Berlin=512KiB".parse().unwrap()];
    let capacities = Capacities { link, zero_ms, ..Capacities::default() };
    let mib = 9 * 3600 / 2;
    let mut fleet = fleet(vec![night(vm("a", mib, 1)), night(vm("a", 1, 1))], capacities);
    (fleet.waves, fleet.budgets.vms_per_host) = ([(Tenant(0), waves)].into(), 1);
    let outcome = simulate(&fleet);
    let opens = (24 + 20) * hour;
    assert_eq!((outcome.vms[0].begin_ms, outcome.vms[0].end_ms), (Some(opens), Some(opens + 9 * hour)));
    assert_eq!(outcome.vms[1].begin_ms, Some(opens + (7 * 24 + 1) * hour));
    // On a working day the line is twice as wide.
    fleet.waves.clear();
    assert_eq!(simulate(&fleet).vms[0].end_ms, Some(mib * 1000));
}

#[test]
fn a_window_that_opens_in_decades_is_waited_for_to_the_last_byte() {
    let opens = 75 * 365 * 86_400_000;
    let window = WaveWindow { from_ms: Some(opens), ..WaveWindow::default() };
    let waves = vec![Wave { name: "one".into(), window, ..Wave::default() }];
    let late = |mib| {
        let vm = vm("a", mib, 1);
        Vm { job: Job { wave: Some("one".into()), ..vm.job }, ..vm }
    };
    let vms = vec![late(1000), late(333), late(77)];
    let fleet = Fleet { waves: [(Tenant(0), waves)].into(), ..fleet(vms, rates(3001, 7001)) };
    for moved in simulate(&fleet).vms {
        assert!(moved.end_ms.is_some_and(|end| (opens..opens + 1000).contains(&end)), "{moved:?}");
    }
}

#[test]
fn a_wave_that_is_never_let_go_ends_the_run_all_the_same() {
    let windows = Windows(vec!["22:00-23:00".parse().unwrap()]);
    let window = WaveWindow { windows, ..WaveWindow::default() };
    let late = WaveWindow { until_ms: Some(1), ..WaveWindow::default() };
    let waves = vec![
        Wave { name: "late".into(), window: late, ..Wave::default() },
        Wave { name: "next".into(), after: vec!["late".into()], window, ..Wave::default() },
    ];
    let of = |name: &str, vm: Vm| Vm { job: Job { wave: Some(name.into()), ..vm.job }, ..vm };
    let warm = WarmMove { churn: 0, interval_ms: 60_000, cutover_ms: None, downtime_ms: 0 };
    let warm = Vm { warm: Some(warm), ..vm("b", 100, 1) };
    let vms = vec![of("late", vm("a", 1, 1)), of("next", vm("a", 1, 1)), of("next", warm)];
    let fleet = Fleet { waves: [(Tenant(0), waves)].into(), start_ms: 5, ..fleet(vms, rates(100, 300)) };
    let outcome = simulate(&fleet);
    assert_eq!(outcome.vms.iter().map(|vm| vm.end_ms).collect::<Vec<_>>(), [None, None, None]);
    assert_eq!(outcome.vms[0].given_up, Some(crate::Ended::TooLate));
}

#[test]
fn of_a_tenant_no_more_move_over_at_once_than_its_own_limit_lets() {
    let warm = WarmMove { churn: 0, interval_ms: 1_000, cutover_ms: Some(60_000), downtime_ms: 0 };
    let of =
        |tenant: u64| Vm { tenant: Tenant(tenant), warm: Some(warm), start_ms: 10_000, ..vm("a", 100, 1) };
    let vms = [0, 0, 0, 1, 1, 1].map(of).to_vec();
    let one = TenantLimits { cutovers: Some(1), ..TenantLimits::default() };
    let fleet = Fleet { limits: [(Tenant(0), one)].into(), ..fleet(vms, rates(100, 300)) };
    let outcome = simulate(&fleet);
    let downs = |range: std::ops::Range<usize>| {
        let mut downs: Vec<u64> = outcome.vms[range].iter().map(|vm| vm.down_ms.unwrap()).collect();
        downs.sort_unstable();
        downs
    };
    let limited = downs(0..3);
    assert!(limited.windows(2).all(|pair| pair[1] - pair[0] >= 10_000), "{limited:?}");
    let free = downs(3..6);
    assert!(free[2] - free[0] < 10_000, "{free:?}");
}

#[test]
fn a_wave_whose_last_vm_never_moves_over_lets_those_after_it_do_so() {
    let late = WaveWindow { until_ms: Some(1_000), ..WaveWindow::default() };
    let waves = vec![
        Wave { name: "late".into(), window: late, if_failed: IfFailed::GoOn, ..Wave::default() },
        Wave { name: "next".into(), after: vec!["late".into()], ..Wave::default() },
    ];
    let warm = WarmMove { churn: 0, interval_ms: 60_000, cutover_ms: None, downtime_ms: 0 };
    let of = |wave: &str, mib| {
        let vm = vm("a", mib, 1);
        Vm { warm: Some(warm), job: Job { wave: Some(wave.into()), ..vm.job }, ..vm }
    };
    // That of the late wave is copied last, when nothing but its end can happen any more.
    let vms = vec![of("late", 10_000), of("next", 100)];
    let fleet = Fleet { waves: [(Tenant(0), waves)].into(), ..fleet(vms, rates(100, 300)) };
    let outcome = simulate(&fleet);
    assert_eq!(outcome.vms[0].given_up, Some(crate::Ended::TooLate));
    assert!(outcome.vms[1].end_ms.is_some(), "{:?}", outcome.vms[1]);
}
