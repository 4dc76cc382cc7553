use drover_types::{IfFailed, WaveWindow, Windows};

use super::*;

fn with_waves(vms: &str, waves: &str) -> String {
    SMALL.replace("vms: [{name: a}]\n", &format!("vms: {vms}\nwaves:\n{waves}"))
}

#[test]
fn waves_are_read_with_their_windows_and_their_order() {
    let text = with_waves(
        "[{name: a, wave: pilot}, {glob: '*'}]",
        "  - {name: pilot, window: 22:00-06:00, if_failed: stop}\n  \
           - {name: rest, after: [pilot], from: 2026-12-01T22:00:00Z, until: 2026-12-02T06:00:00+01:00, vms: [{folder: prod}]}\n",
    );
    let plan = Plan::parse(&text).unwrap();
    let [pilot, rest] = &plan.waves[..] else { panic!("two waves") };
    assert_eq!((pilot.wave.if_failed, rest.wave.if_failed), (IfFailed::Stop, IfFailed::Wait));
    let windows = Windows(vec!["22:00-06:00".parse().unwrap()]);
    assert_eq!(pilot.wave.window, WaveWindow { windows, ..WaveWindow::default() });
    let from_ms = Some(1_796_162_400_000);
    let until_ms = Some(1_796_162_400_000 + 7 * 3_600_000);
    assert_eq!(rest.wave.window, WaveWindow { from_ms, until_ms, ..WaveWindow::default() });
    assert_eq!((&rest.wave.after[..], rest.vms.len()), (&["pilot".to_string()][..], 1));
    assert_eq!(plan.vms[0].overrides.wave.as_deref(), Some("pilot"));
    assert_eq!(plan.waves()[1], rest.wave);
}

#[test]
fn windows_and_freezes_are_read_one_or_several() {
    let text = with_waves(
        "[{glob: '*'}]",
        "  - {name: one, window: [Sat 22:00-06:00 Europe/Berlin, 2026-12-12 20:00 - 2026-12-13 04:00]}\n  \
           - {name: two, window: Mon-Fri 20:00-06:00}\n",
    );
    let texts = |windows: &Windows| windows.0.iter().map(ToString::to_string).collect::<Vec<_>>();
    let plan = Plan::parse(&(text.clone() + "freezes: 2026-12-20 - 2027-01-03\n")).unwrap();
    let [one, two] = &plan.waves[..] else { panic!("two waves") };
    let of_one = ["Sat 22:00-06:00 Europe/Berlin", "2026-12-12 20:00 - 2026-12-13 04:00 UTC"];
    assert_eq!(texts(&one.wave.window.windows), of_one);
    assert_eq!(texts(&two.wave.window.windows), ["Mon-Fri 20:00-06:00 UTC"]);
    for it in [one, two] {
        assert_eq!(texts(&it.wave.window.freezes), ["2026-12-20 00:00 - 2027-01-04 00:00 UTC"]);
    }
    for (freezes, wanted) in [
        ("Sat-Sun", "freezes: 'Sat-Sun 00:00-24:00 UTC' comes again and again (write dates"),
        ("[]", "freezes: there are 0 of them"),
        ("[{from: x}]", "freezes: a map is here where a window such as"),
        ("2026-12-20 to 2027-01-03", "freezes: 'to' is not a day of the week"),
    ] {
        let found = problems(&format!("{text}freezes: {freezes}\n"));
        assert!(found.iter().any(|it| it.contains(wanted)), "{wanted}:\n{found:#?}");
    }
    let without = only_problem(|text| text.to_string() + "freezes: 2026-12-20\n");
    assert!(
        without.contains("freezes: it holds back waves, and the plan has none (add `waves`"),
        "{without}"
    );
}

#[test]
fn the_schema_takes_windows_as_the_reader_does() {
    let validator = jsonschema::validator_for(&crate::schema()).unwrap();
    let fits = |window: &str| {
        let text = with_waves("[{glob: '*'}]", &format!("  - {{name: a, window: {window}}}\n"));
        let is_valid = validator.is_valid(&to_json(&crate::node::parse(&text).unwrap()));
        assert_eq!(is_valid, Plan::parse(&text).is_ok(), "{window}");
        is_valid
    };
    for window in [
        "22:00-06:00",
        "8:00 - 9:5 UTC",
        "Sat 22:00-06:00 Europe/Berlin",
        "Mon-Fri 20:00-06:00",
        "Sat-Sun America/Port-au-Prince",
        "Fri 20:00 - Mon 06:00",
        "2026-12-12 20:00 - 2026-12-13 04:00 Etc/GMT-3",
        "2026-12-12 20:00-23:00",
        "2026-12-12 - 2026-12-13",
        "2026-12-24",
        "[22:00-06:00, Sat-Sun]",
    ] {
        assert!(fits(window), "{window}");
    }
    for window in
        ["22-6", "22:00", "Sat 22:00", "22:00-06:00 Sat-Sun 1", "[]", "[{from: x}]", "2026-1-5", "5", "UTC"]
    {
        assert!(!fits(window), "{window}");
    }
}

#[test]
fn hooks_of_a_wave_are_read_as_those_of_vms_are() {
    let hooks = "{before_wave: [{command: [a, b], timeout: 1m}], after_wave: [{url: 'https://x/', on_failure: warn}]}";
    let text = with_waves(
        "[{name: a, wave: one}]",
        &format!("  - {{name: one, hooks: {hooks}}}\n  - {{name: two}}\n"),
    );
    let of = Plan::parse(&text).unwrap().wave_hooks();
    assert_eq!(of.keys().collect::<Vec<_>>(), ["one"]);
    let WaveHooks { before, after } = &of["one"];
    assert_eq!(before[0].call, Call::Command(vec!["a".into(), "b".into()]));
    assert_eq!((before[0].timeout.as_secs(), before[0].on_failure), (60, OnFailure::Stop));
    assert_eq!((after[0].on_failure, after[0].words().as_str()), (OnFailure::Warn, "POST https://x/"));
    for (hooks, wanted) in [
        ("{before_wave: [{}]}", "waves[0].hooks.before_wave[0]: it does not say what is called"),
        ("{before_copy: [{shell: x}]}", "unknown key 'before_copy'"),
        (
            "{after_wave: [{url: 'http://far.example.org/'}]}",
            "waves[0].hooks.after_wave[0].url: http:// to another host",
        ),
    ] {
        let text = with_waves("[{name: a, wave: one}]", &format!("  - {{name: one, hooks: {hooks}}}\n"));
        let told: Vec<String> = Plan::parse(&text).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|it| it.contains(wanted)), "{wanted}: {told:?}");
    }
}

#[test]
fn what_cannot_be_of_waves_is_told_without_an_inventory() {
    let one = "  - {name: one, vms: [{glob: '*'}]}\n";
    for (vms, waves, wanted) in [
        ("[{name: a, wave: on}]", one, "vms[0].wave: there is no wave 'on' (did you mean 'one'?)"),
        ("[{name: a}]", "  - {name: one, vms: [{name: b}]}\n", "vms[0]: a is in no wave"),
        ("[{name: a}]", "  - {name: one}\n", "vms[0]: a is in no wave"),
        (
            "[{name: a}]",
            "  - {name: one, vms: [{name: a}]}\n  - {name: two, vms: [{name: a}]}\n",
            "waves[1].vms[0]: a is in more than one wave: one, two",
        ),
        (
            "[{name: a}]",
            "  - {name: one, vms: [{glob: '*'}]}\n  - {name: one}\n",
            "waves[1].name: there is another wave 'one' before it",
        ),
        (
            "[{name: a}]",
            "  - {name: one, after: [two], vms: [{glob: '*'}]}\n",
            "waves[0].after: there is no wave 'two' (there are: one)",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, after: [c]}\n  - {name: b, after: [a]}\n  - {name: c, after: [b]}\n  - {name: d, after: [c]}\n",
            "these waves wait for each other: a after c after b after a",
        ),
        ("[{name: a, wave: a}]", "  - {name: a, after: [a]}\n", "these waves wait for each other: a after a"),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, from: 2026-12-02T00:00:00Z, until: 2026-12-01T00:00:00Z}\n",
            "waves[0]: it ends before it begins",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, window: 22:00-06:00, from: 2026-12-01T08:00:00Z, until: 2026-12-01T20:00:00Z}\n",
            "waves[0]: its windows never come between its first and its last moment",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, after: [c], until: 2026-12-03T00:00:00Z}\n  - {name: b, from: 2026-12-03T12:00:00Z}\n  \
               - {name: c, after: [b]}\n",
            "waves[0]: its window is over before that of c opens",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, window: 22-6}\n",
            "waves[0].window: '22' is not a time from 00:00 to 24:00, such as 22:00",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, window: 22:00-06:00 Berlin}\n",
            "waves[0].window: 'Berlin' is not a time zone such as Europe/Berlin or UTC",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, window: 2026-12-24 20:00-23:00}\nfreezes: [2026-12-20 - 2027-01-03]\n",
            "waves[0]: its windows are all in freezes",
        ),
        (
            "[{name: a, wave: a}]",
            "  - {name: a, until: tomorrow}\n",
            "waves[0].until: 'tomorrow' is not a moment",
        ),
        ("[{name: a, wave: a}]", "  - {name: a, if_failed: halt}\n", "is not one of: wait, go_on, stop"),
        ("[{name: a, wave: a}]", "  - {name: A}\n", "waves[0].name: 'A' is not made of"),
        ("[{name: a, wave: a}]", "  - {name: a, vms: [{}]}\n", "waves[0].vms[0]: it does not say which VMs"),
    ] {
        let found = problems(&with_waves(vms, waves));
        assert!(found.iter().any(|it| it.contains(wanted)), "{wanted}:\n{found:#?}");
    }
    let without = only_problem(|text| text.replace("{name: a}", "{name: a, wave: pilot}"));
    assert!(without.contains("there is no wave 'pilot' (the plan has no `waves`)"), "{without}");
}

#[test]
fn a_vm_that_another_entry_or_the_inventory_may_give_a_wave_is_no_problem() {
    for (vms, waves) in [
        ("[{name: a}]", "  - {name: one, vms: [{folder: prod}]}\n"),
        ("[{name: a}, {glob: 'a*', wave: one}]", "  - {name: one}\n"),
        ("[{glob: '*'}]", "  - {name: one}\n"),
        (
            "[{name: a}]",
            "  - {name: one, vms: [{name: a, folder: x}]}\n  - {name: two, vms: [{name: a, folder: y}]}\n",
        ),
    ] {
        assert_eq!(problems(&with_waves(vms, waves)), Vec::<String>::new(), "{waves}");
    }
}

#[test]
fn there_may_not_be_more_waves_than_the_most() {
    let waves: String = (0..=WAVES_MAX).map(|number| format!("  - {{name: w{number}}}\n")).collect();
    let found = problems(&with_waves("[{glob: '*'}]", &waves));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("there are 501 of them, 500 are the most"), "{found:#?}");
}
