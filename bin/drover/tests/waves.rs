//! Waves: as a plan has them, as they move and are told, through a kill, and as drover proposes them.
#![allow(clippy::unwrap_used)]

use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

/// VMs of so many MiB each, by turns on two hosts and in folders of two.
fn stage(number: u8, sizes: &[u64]) -> Option<Stage> {
    Stage::new(number, |folder| {
        let one = |(at, mib): (usize, &u64)| {
            let file = disk_file(folder, &format!("disk{at}"), mib * MIB);
            let host = if at % 2 == 0 { "esx1.lab" } else { "esx2.lab" };
            with(vm(&format!("vm{at:02}"), &[&file]), json!({ "host": host }))
        };
        sizes.iter().enumerate().map(one).collect()
    })
}

fn plan(stage: &Stage, name: &str, waves: &str) -> String {
    let path = stage.path(&format!("{name}.yaml"));
    std::fs::write(&path, stage.plan_text(name) + waves).unwrap();
    path.display().to_string()
}

const TWO: &str = "waves:\n  - name: second\n    after: [first]\n    vms: [{name: vm02}]\n  \
                   - name: first\n    vms: [{name: vm00}, {name: vm01}]\n";

fn waves(document: &Value) -> Vec<(String, String, u64)> {
    let one = |it: &Value| {
        let text = |key: &str| it[key].as_str().unwrap().to_string();
        (text("name"), text("state"), it["done"].as_u64().unwrap())
    };
    document["waves"].as_array().unwrap().iter().map(one).collect()
}

fn wave(name: &str, state: &str, done: u64) -> (String, String, u64) {
    (name.into(), state.into(), done)
}

#[test]
fn waves_move_one_after_the_other_also_when_the_run_was_killed_in_between() {
    let Some(stage) = stage(93, &[24, 24, 4]) else { return };
    let plan = plan(&stage, "waves", TWO);
    stage.sim.post("/rate", json!({ "bytes_per_s": 6 * MIB, "per": "host" })).unwrap();
    let started = stage.drover.start(&["migrate", &plan]).unwrap();
    wait_until("bytes of the first wave", PATIENCE, || stage.served() > 6 * MIB);
    // It is kept a moment after it is known.
    wait_until("what the second wave waits for", PATIENCE, || {
        let status = stage.run(&["status", "waves", "--json"]).json().unwrap();
        status["waits"]["vm02"] == "the end of wave first"
    });
    started.kill().unwrap();
    let status = stage.run(&["status", "waves", "--json"]).json().unwrap();
    assert_eq!(waves(&status), [wave("second", "queued", 0), wave("first", "running", 0)]);
    let refused = stage.run(&["proceed", "waves", "frist"]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(refused.err.contains("plan waves has no wave 'frist'"), "{}", refused.err);
    let word = stage.run(&["proceed", "waves", "first", "--json"]).json().unwrap();
    assert_eq!((&word["proceed"], &word["running"]), (&json!(["second"]), &json!(false)));
    stage.sim.post("/rate", json!({ "bytes_per_s": 0, "per": "host" })).unwrap();
    let resumed = stage.run(&["resume", "waves", "--json"]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    let events: Vec<Value> = resumed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let place = |event: &str, key: &str, name: &str| {
        let fits = |it: &Value| it["event"] == event && it[key] == name;
        events.iter().position(fits).unwrap_or_else(|| panic!("no {event} of {name}:\n{}", resumed.out))
    };
    let second = place("phase_started", "vm", "vm02");
    let first = |name: &str| {
        let is_last =
            |it: &Value| it["event"] == "phase_ended" && it["vm"] == name && it["phase"] == "clean_up";
        events.iter().position(is_last).unwrap()
    };
    assert!(first("vm00") < second && first("vm01") < second, "{}", resumed.out);
    assert!(place("wave_started", "wave", "first") < place("wave_ended", "wave", "first"));
    assert_eq!(events[place("wave_ended", "wave", "second")]["arrived"], 1);
    let report = stage.report("waves");
    assert_eq!(waves(&report), [wave("second", "done", 1), wave("first", "done", 2)]);
    let began = |at: usize| report["waves"][at]["began_ms"].as_i64().unwrap();
    assert!(report["waves"][1]["ended_ms"].as_i64().unwrap() <= began(0), "{}", report["waves"]);
    let text = stage.run(&["report", "waves"]).out;
    assert!(text.contains("wave second is after first"), "{text}");
    (0..3).for_each(|at| stage.assert_equal(&format!("vm{at:02}"), 0, &stage.path(&format!("disk{at}"))));
}

#[test]
fn what_is_wrong_with_waves_is_an_error_before_anything_is_touched() {
    let Some(stage) = stage(94, &[1, 1, 1]) else { return };
    let before = stage.source_state();
    let circle =
        plan(&stage, "circle", &TWO.replace("  - name: first\n", "  - name: first\n    after: [second]\n"));
    let checked = stage.run(&["plan", "check", "--offline", &circle]);
    assert_eq!(checked.code, Some(3), "{}", checked.err);
    assert!(
        checked.err.contains("these waves wait for each other: first after second after first"),
        "{}",
        checked.err
    );
    let without = plan(&stage, "without", &TWO.replace("{name: vm02}", "{folder: nowhere}"));
    assert_eq!(
        stage.run(&["plan", "check", "--offline", &without]).code,
        Some(0),
        "only the inventory tells"
    );
    for command in [&["plan", "check", &without][..], &["migrate", &without]] {
        let refused = stage.run(command);
        assert_eq!(refused.code, Some(3), "{}", refused.err);
        assert!(refused.err.contains("vm02 is in no wave"), "{}", refused.err);
    }
    let late =
        plan(&stage, "late", &TWO.replace("    after: [first]\n", "    until: 2026-01-01T00:00:00Z\n"));
    let offline = stage.run(&["plan", "check", "--offline", &late]);
    assert_eq!(offline.code, Some(0), "{}", offline.err);
    assert!(
        offline.err.contains("warning: waves[0].until: the window of wave second is over"),
        "{}",
        offline.err
    );
    let refused = stage.run(&["migrate", &late]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(refused.err.contains("1 of its VMs have not begun"), "{}", refused.err);
    assert_eq!(stage.source_state(), before);
}

#[test]
fn what_waits_for_a_window_tells_when_it_opens_in_its_zone() {
    let Some(stage) = stage(98, &[1, 1, 1]) else { return };
    let before = stage.source_state();
    let freeze = "freezes: 2020-01-01 - 2099-12-31 Europe/Berlin\n";
    let path = plan(&stage, "frozen", &(TWO.to_string() + freeze));
    let opens = "Fri 2100-01-01 00:00 Europe/Berlin";
    let started = stage.drover.start(&["migrate", &path]).unwrap();
    let waits = || stage.run(&["status", "frozen", "--json"]).json().unwrap_or_default()["waits"].clone();
    wait_until("VMs that wait", PATIENCE, || waits()["vm00"].is_string());
    assert_eq!(waits()["vm00"], format!("its window to open ({opens})"));
    assert_eq!(waits()["vm02"], "the end of wave first");
    started.kill().unwrap();
    let status = stage.run(&["status", "frozen", "--json"]).json().unwrap();
    assert_eq!(status["waves"][1]["opens"], opens, "{status}");
    for text in [stage.run(&["status", "frozen"]).out, stage.run(&["report", &path]).out] {
        assert!(text.contains(&format!("wave first waits: its window opens {opens}\n")), "{text}");
    }
    assert_eq!(stage.source_state(), before);
    // Seconds are not enough for what is read at once.
    let short = TWO.replace(
        "  - name: first\n",
        "  - name: first\n    from: 2099-01-01T00:00:00Z\n    until: 2099-01-01T00:00:02Z\n",
    );
    let short = stage.run(&["plan", "check", &plan(&stage, "short", &short)]);
    assert_eq!(short.code, Some(0), "{}", short.err);
    let warning = "warning: waves[1].until: wave first does not fit its window: 2 VMs: it takes ";
    assert!(short.err.contains(warning) && short.err.contains("drover plan waves"), "{}", short.err);
    let over = TWO.replace(
        "    after: [first]\n",
        "    after: [first]\n    window: [2026-01-01, 2026-01-03 20:00-23:00]\n",
    );
    let over = stage.run(&["plan", "check", "--offline", &plan(&stage, "over", &over)]);
    assert_eq!(over.code, Some(0), "{}", over.err);
    assert!(over.err.contains("warning: waves[0].window: the window of wave second is over"), "{}", over.err);
}

#[test]
fn waves_are_proposed_so_that_they_fit_and_the_forecast_says_how_likely_that_is() {
    let Some(stage) = stage(95, &[4; 6]) else { return };
    let before = stage.source_state();
    let path = stage.plan("fleet", &[]);
    let file = stage.path("waves.yaml").display().to_string();
    let window = ["--window", "22:00-22:01", "--link", "3m"];
    let propose = |more: &[&str]| stage.run(&[&["plan", "waves", &path][..], &window, more].concat());
    let proposed = propose(&["--json", "-o", &file]);
    assert_eq!(proposed.code, Some(0), "{}", proposed.err);
    let json = proposed.json().unwrap();
    let waves = json["waves"].as_array().unwrap();
    let mut vms: Vec<&str> =
        waves.iter().flat_map(|it| it["vms"].as_array().unwrap()).map(|it| it.as_str().unwrap()).collect();
    vms.sort_unstable();
    assert_eq!(vms, ["vm00", "vm01", "vm02", "vm03", "vm04", "vm05"]);
    assert!(waves.len() > 1 && waves.len() < 6, "{json}");
    assert!(waves.iter().all(|it| it["chance"].as_f64().unwrap() >= 0.9), "{json}");
    assert_eq!((&json["window_s"], &json["rest"]), (&json!(60.0), &Value::Null));
    // A window that opens once has the first, and the rest none.
    let once = ["plan", "waves", &path, "--window", "2099-01-01 22:00-22:01", "--link", "3m", "--json"];
    let rest = stage.path("rest.yaml").display().to_string();
    let proposed = stage.run(&[&once[..], &["-o", &rest]].concat());
    assert_eq!(proposed.code, Some(0), "{}", proposed.err);
    assert!(
        proposed.err.contains(" left in wave rest, which has no window, for 2099-01-01"),
        "{}",
        proposed.err
    );
    let left = &proposed.json().unwrap()["rest"]["vms"];
    assert_eq!(left.as_array().unwrap().len() + waves[0]["vms"].as_array().unwrap().len(), 6, "{left}");
    let keys = std::fs::read_to_string(&rest).unwrap();
    let refused = stage.run(&["plan", "check", &plan(&stage, "unwritten", &keys)]);
    assert!(refused.code != Some(0) && refused.err.contains("to-be-written"), "{}", refused.err);
    let with_rest = plan(&stage, "with-rest", &keys.replace("to-be-written", "2099-01-02 22:00-22:01"));
    let checked = stage.run(&["plan", "check", &with_rest]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    // What is there is left alone without leave.
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "mine").unwrap();
    let refused = propose(&["-o", &file]);
    assert_eq!((refused.code, std::fs::read_to_string(&file).unwrap().as_str()), (Some(7), "mine"));
    assert!(refused.err.contains("--force"), "{}", refused.err);
    assert_eq!(propose(&["-o", &file, "--force"]).code, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), written, "the same seed, the same waves");
    let none = stage.run(&["plan", "waves", &path]);
    assert_eq!(none.code, Some(2), "{}", none.err);
    let text = propose(&[]).out;
    assert!(text.contains("wave-1") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // With them the plan is fine, and foreseen by wave.
    let with = plan(&stage, "with", &written);
    let checked = stage.run(&["plan", "check", &with]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    assert!(!checked.err.contains("does not fit"), "{}", checked.err);
    let forecast = stage.run(&["forecast", &with, "--json", "--link", "3m"]).json().unwrap();
    let foreseen = forecast["waves"].as_array().unwrap();
    assert_eq!(foreseen.len(), waves.len());
    for it in foreseen {
        assert!(it["fits"].as_f64().unwrap() >= 0.7, "{it}");
        let (begin, end) = (&it["begin_s"], &it["end_s"]);
        assert!(
            begin["p50"].as_f64() < end["p10"].as_f64() && end["p10"].as_f64() < end["p90"].as_f64(),
            "{it}"
        );
    }
    let days =
        foreseen[1]["begin_s"]["p50"].as_f64().unwrap() - foreseen[0]["begin_s"]["p50"].as_f64().unwrap();
    assert!((days - 86_400.0).abs() < 1.0, "each has a day of its own: {days}");
    let text = stage.run(&["forecast", &with]).out;
    assert!(text.contains("wave-2") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(stage.source_state(), before);
}

#[test]
fn hooks_around_a_wave_are_programs_and_one_that_drover_was_killed_in_is_called_again() {
    let Some(stage) = stage(96, &[2, 2, 2]) else { return };
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(stage.path(name)).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    };
    let hooks = "  - name: first\n    if_failed: stop\n    hooks:\n      before_wave:\n        - {shell: 'echo before $DROVER_WAVE >>log'}\n        \
                 - {shell: 'echo begins >>log; test -e go && exit 0; test -e no && exit 9; echo $$ >pid; exec sleep 600'}\n      \
                 after_wave: [{shell: 'cat >told; echo after >>log'}]\n";
    let text = TWO.replace("  - name: first\n", hooks);
    let path = plan(&stage, "hooks", &text);
    let checked = stage.run(&["plan", "check", &path]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let started = stage.drover.start(&["migrate", &path]).unwrap();
    wait_until("the second hook runs", PATIENCE, || !lines("pid").is_empty());
    started.kill().unwrap();
    assert_eq!((lines("log"), stage.served()), (vec!["before first".to_string(), "begins".into()], 0));
    std::fs::write(stage.path("no"), "").unwrap();
    let before = stage.source_state();
    let failed = stage.run(&["resume", &path]);
    assert_eq!(failed.code, Some(15), "the wave after it hides no cause: {}{}", failed.out, failed.err);
    assert!(failed.out.contains("wave first: hook before_wave 2"), "{}", failed.out);
    assert_eq!((stage.source_state(), stage.served()), (before, 0));
    std::fs::write(stage.path("go"), "").unwrap();
    let resumed = stage.run(&["resume", &path]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    // What is called after a wave undoes what was called before it.
    assert_eq!(
        lines("log"),
        ["before first", "begins", "begins", "after", "before first", "begins", "after"]
    );
    let told: Value = serde_json::from_str(&lines("told").concat()).unwrap();
    assert_eq!(told["outcome"], json!({"state": "done", "arrived": 2, "failed": 0}));
    assert_eq!((&told["wave"]["name"], &told["point"]), (&json!("first"), &json!("after_wave")));
    assert_eq!(told["wave"]["vms"][1]["name"], "vm01");
    assert!(!told.to_string().contains(drover_lab::PASSWORD), "no secret is told");
    let report = stage.report(&path);
    let calls = report["wave_hooks"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[1]["result"], &calls[2]["result"]), (7, &Value::Null, &json!("failed")));
    let words = stage.run(&["report", &path]).out;
    assert!(words.contains("wave first") && words.contains("hook after_wave 1"), "{words}");
    let missing = plan(
        &stage,
        "missing",
        &text.replace("{shell: 'echo before $DROVER_WAVE >>log'}", "{command: [./no]}"),
    );
    let told = stage.run(&["plan", "check", "--offline", &missing]);
    assert!(told.code == Some(3) && told.err.contains("waves[1].hooks.before_wave"), "{}", told.err);
}
