use super::*;
use crate::fleet::{FleetDisk, WarmWish};

pub(crate) fn question(vms: usize, hosts: usize, gib: u64) -> Question {
    let vm = |at: usize| FleetVm {
        name: format!("vm{at:03}"),
        host: format!("esx{}", at % hosts),
        disks: vec![FleetDisk { data_bytes: gib << 30, datastore: "ds".into(), pool: None }],
        runs: true,
        ..FleetVm::default()
    };
    Question {
        vms: (0..vms).map(vm).collect(),
        plans: vec!["p".into()],
        start_ms: 1_800_000_000_000,
        seed: 7,
        ..Question::default()
    }
}

#[test]
fn the_same_seed_gives_the_same_forecast_and_the_spread_has_an_order() {
    let question = question(30, 2, 20);
    let (one, two) = (foresee(&question), foresee(&question));
    assert_eq!((one.makespan_s, &one.vms), (two.makespan_s, &two.vms));
    let Spread { p10, p50, p90 } = one.makespan_s;
    assert!(0.0 < p10 && p10 < p50 && p50 < p90, "{:?}", one.makespan_s);
    // 30 VMs of 20 GiB through two hosts of 284 MiB/s: 1,082 s for the bytes, and the fixed times.
    assert!((1_000.0..1_500.0).contains(&p50), "{p50}");
    let other = foresee(&Question { seed: 8, ..question });
    assert_ne!(one.makespan_s, other.makespan_s);
}

#[test]
fn a_host_whose_nfc_server_takes_one_disk_is_read_disk_by_disk() {
    let mut asked = question(6, 2, 20);
    asked.vms.iter_mut().for_each(|vm| vm.disks[0].datastore.clone_from(&vm.host));
    let one_disk = HostLimits { disks: Some(1), ..HostLimits::default() };
    let limited = Question { hosts: [("esx0".to_string(), one_disk)].into(), ..asked.clone() };
    let ends = |question: &Question, host: &str| {
        let forecast = foresee_roughly(question);
        let of = forecast.vms.into_iter().filter(|vm| vm.host == host);
        of.filter_map(|vm| Some(vm.end_s?.p50)).fold(0.0, f64::max)
    };
    // Three streams of 100 MiB/s fill a host: one after the other takes three times as long, the fixed times beside.
    let (free, one_by_one) = (ends(&asked, "esx0"), ends(&limited, "esx0"));
    assert!(one_by_one > 1.8 * free, "{one_by_one} {free}");
    let (before, after) = (ends(&asked, "esx1"), ends(&limited, "esx1"));
    assert!((after - before).abs() < 0.5 * before, "{after} {before}");
}

#[test]
fn what_was_measured_of_a_place_holds_for_what_goes_through_it() {
    let mut asked = question(8, 2, 10);
    asked.vms.iter_mut().for_each(|vm| {
        vm.source = "vc".into();
        vm.disks[0].pool = Some("/vms".into());
    });
    let measured = || Quantity::measured([20e6; 9]).map(|it| it.on(Some(7))).unwrap();
    let ends = |question: &Question| foresee_roughly(question).makespan_s.p50;
    // 80 GiB at 20 MB/s.
    let takes = 80.0 * f64::from(1 << 30) / 20e6;
    let slow = |question: &Question| (ends(question) - takes).abs() < takes / 10.0;
    let rates = |key: &str| Rates { datastores: [(key.to_string(), measured())].into(), ..Rates::default() };
    let datastore = Question { rates: rates("vc/ds"), ..asked.clone() };
    assert!(slow(&datastore) && !slow(&asked), "{} {}", ends(&datastore), ends(&asked));
    assert!(!slow(&Question { rates: rates("another/ds"), ..asked.clone() }), "of another source");
    let told = foresee_roughly(&datastore).by.into_iter().find(|by| by.name == "datastore ds").unwrap();
    assert_eq!((told.quantity.origin, told.quantity.measured_ms), (crate::Origin::Measured(9), Some(7)));
    let pools = Rates { pools: [("/vms".to_string(), measured())].into(), ..Rates::default() };
    assert!(slow(&Question { rates: pools, ..asked.clone() }));
    let sites = Rates { sites: [("b".to_string(), measured())].into(), ..Rates::default() };
    let here = Question { rates: sites, ..asked };
    assert!(!slow(&here), "it does not go there");
    assert!(slow(&Question { sites: [(0, "b".to_string())].into(), ..here }));
}

#[test]
fn what_is_known_exactly_has_no_spread() {
    let mut asked = question(5, 1, 1);
    let value = |it: &Quantity| Quantity::given(it.spread.p50);
    let rates = &asked.rates;
    asked.rates = Rates {
        stream: value(&rates.stream),
        host: value(&rates.host),
        datastore: value(&rates.datastore),
        link: value(&rates.link),
        pool: value(&rates.pool),
        verify: value(&rates.verify),
        snapshot_s: value(&rates.snapshot_s),
        shutdown_s: value(&rates.shutdown_s),
        start_s: value(&rates.start_s),
        churn: value(&rates.churn),
        ..Rates::default()
    };
    let Spread { p10, p90, .. } = foresee(&asked).makespan_s;
    assert_eq!(p10, p90);
}

#[test]
fn a_warm_vm_is_down_for_its_last_pass_and_a_cold_one_for_all_of_it() {
    let mut asked = question(2, 1, 50);
    asked.vms[1].warm = Some(WarmWish { interval_ms: 3_600_000, ..WarmWish::default() });
    let forecast = foresee(&asked);
    let down = |at: usize| forecast.vms[at].downtime_s.unwrap().p50;
    assert!(down(0) > 400.0 && down(1) < 120.0, "{} and {}", down(0), down(1));
    asked.vms[0].runs = false;
    assert_eq!(foresee(&asked).vms[0].downtime_s, None, "it does not run");
}

#[test]
fn a_wave_begins_when_its_window_opens_in_its_zone_after_a_freeze() {
    // 2027-01-15 08:00 UTC, a Friday.
    let mut asked = question(2, 1, 1);
    asked.vms.iter_mut().for_each(|vm| vm.wave = Some("one".into()));
    let list = |text: &str| drover_types::Windows(vec![text.parse().unwrap()]);
    let window = WaveWindow {
        windows: list("Sat 22:00-06:00 Europe/Berlin"),
        freezes: list("2027-01-15 - 2027-01-20 Europe/Berlin"),
        ..WaveWindow::default()
    };
    asked.waves = [(0, vec![Wave { name: "one".into(), window: window.clone(), ..Wave::default() }])].into();
    let forecast = foresee_roughly(&asked);
    let [one] = &forecast.waves[..] else { panic!("one wave") };
    assert_eq!(one.opens.as_deref(), Some("Sat 2027-01-23 22:00 Europe/Berlin"));
    let begins = f64::from(8 * 24 * 3600 + 13 * 3600);
    assert!((one.begin_s.unwrap().p50 - begins).abs() < 1.0, "{:?}", one.begin_s);
    assert_eq!((one.fits, &one.window.windows), (Some(1.0), &window.windows));
}

#[test]
fn a_window_holds_a_vm_back_and_a_wave_ends_with_its_last_vm() {
    let mut asked = question(4, 1, 1);
    for (at, vm) in asked.vms.iter_mut().enumerate() {
        vm.wave = Some(format!("wave-{}", at / 2));
        let opens = asked.start_ms + 3_600_000 * (at as u64 / 2 * 5);
        vm.windows = vec![(opens, opens + 3_600_000)];
    }
    let forecast = foresee(&asked);
    let waves: Vec<_> = forecast.waves.iter().map(|it| (it.name.as_str(), it.vms)).collect();
    assert_eq!(waves, [("wave-0", 2), ("wave-1", 2)]);
    let [one, two] = &forecast.waves[..] else { panic!("two waves") };
    assert!(one.end_s.unwrap().p90 < 3_600.0 && two.begin_s.unwrap().p10 >= 18_000.0);
    assert_eq!((one.fits, two.fits), (None, None), "they have no windows of their own");
    assert!(forecast.never.is_empty());
    asked.vms[3].windows = vec![(1, 2)];
    assert_eq!(foresee(&asked).never, ["vm003"]);
}

#[test]
fn a_wave_has_a_chance_to_fit_its_window_and_comes_after_those_before_it() {
    let mut asked = question(20, 1, 20);
    asked
        .vms
        .iter_mut()
        .enumerate()
        .for_each(|(at, vm)| vm.wave = Some(["small", "large"][usize::from(at > 1)].into()));
    asked.vms[1].warm = Some(WarmWish { interval_ms: 60_000, ..WarmWish::default() });
    let opens = asked.start_ms + 7_200_000;
    let wave = |name: &str, after: Vec<String>, from_ms, until_ms| Wave {
        name: name.into(),
        after,
        window: WaveWindow { from_ms, until_ms, ..WaveWindow::default() },
        ..Wave::default()
    };
    let waves = |until_ms| {
        vec![
            wave("large", vec!["small".into()], None, Some(until_ms)),
            wave("small", vec![], Some(opens), Some(opens + 3_600_000)),
        ]
    };
    asked.waves = [(0, waves(opens + 86_400_000))].into();
    let forecast = foresee(&asked);
    let [large, small] = &forecast.waves[..] else { panic!("two waves, as the plan has them") };
    assert_eq!((small.name.as_str(), small.vms, small.fits, large.fits), ("small", 2, Some(1.0), Some(1.0)));
    assert!(small.begin_s.unwrap().p10 >= 7_200.0 && small.begin_s.unwrap().p90 < 7_300.0, "{small:?}");
    assert!(large.begin_s.unwrap().p10 >= small.end_s.unwrap().p10, "{large:?}");
    assert!(forecast.vms[1].begin_s.unwrap().p90 < 60.0, "a warm VM is copied before its wave");
    // Until the middle of what it takes.
    let middle = (large.end_s.unwrap().p50 * 1000.0) as u64;
    asked.waves = [(0, waves(asked.start_ms + middle))].into();
    let fits = foresee(&asked).waves[0].fits.unwrap();
    assert!((0.3..0.7).contains(&fits), "{fits}");
    asked.waves = [(0, waves(asked.start_ms))].into();
    let late = foresee(&asked);
    assert_eq!((late.never.len(), late.waves[0].fits, late.waves[0].begin_s), (18, Some(0.0), None));
}

#[test]
fn stages_of_a_group_come_one_after_the_other_and_of_a_pair_one_at_a_time() {
    let mut asked = question(4, 4, 10);
    for (at, vm) in asked.vms.iter_mut().enumerate() {
        match at {
            0 | 1 => vm.group = Some(("shop".into(), 1 - at as u32)),
            _ => vm.anti_affinity = Some("pair".into()),
        }
    }
    let forecast = foresee(&asked);
    let [last, first, one, two] = &forecast.vms[..] else { panic!("four VMs") };
    let (begin, end) = (|vm: &VmForecast| vm.begin_s.unwrap(), |vm: &VmForecast| vm.end_s.unwrap());
    assert!(begin(last).p50 >= end(first).p10 && begin(last).p10 > 0.0, "{last:?} after {first:?}");
    let later = begin(one).p50.max(begin(two).p50);
    assert!(later > 60.0, "each takes more than 100 s at 100 MiB/s: {one:?} {two:?}");
}

#[test]
fn no_vms_take_no_time() {
    assert_eq!(foresee(&question(0, 1, 1)).makespan_s, Spread::default());
}
