//! What a newcomer meets: checks of many VMs, the log, completions, and the command that comes next.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

const FLEET: usize = 60;

/// Many VMs on two hosts and in two folders.
fn fleet(number: u8) -> Option<Stage> {
    Stage::new(number, |folder| {
        let a = disk_file(folder, "a", MIB);
        let one = |at: usize| {
            let (host, place) = if at < 40 { ("esx1.lab", "prod/web") } else { ("esx2.lab", "test") };
            with(vm(&format!("web-{at:03}"), &[&a]), json!({"host": host, "folder": place, "cbt": false}))
        };
        (0..FLEET).map(one).collect()
    })
}

#[test]
fn a_check_of_a_fleet_says_once_what_its_vms_share() {
    let Some(stage) = fleet(149) else { return };
    let plan = stage.plan("fleet", &[]);
    stage.backup("web-007");
    stage.backup("web-041");
    let check = |more: &[&str]| stage.run(&[&["plan", "check", &plan], more].concat());
    let all = check(&[]);
    assert_eq!(all.code, Some(3), "{}{}", all.out, all.err);
    let shown = format!("{}{}", all.out, all.err);
    assert!(shown.lines().count() <= 24, "it fits a screen: {shown}");
    let on_both =
        format!("note: {FLEET} VMs (40 on esx1.lab, 20 on esx2.lab): changed block tracking is off");
    assert!(all.out.contains(&on_both), "{}", all.out);
    let error = "2 VMs (1 on esx1.lab, 1 on esx2.lab): has 1 snapshot (backup)";
    let few = "\n    web-007, web-041\n";
    assert!(all.err.contains(error) && all.err.contains(few), "{}", all.err);
    for command in ["migrate", "forecast"] {
        let refused = stage.run(&[command, &plan]);
        assert!(refused.err.contains(error) && refused.err.contains(few), "{command}: {}", refused.err);
    }
    assert!(!shown.replace(few, "").contains("web-0"), "names of many are for -v and --json: {shown}");
    let named = check(&["-v"]);
    assert!(named.out.contains("    web-000, web-001,") && named.err.contains(few));
    let one = check(&["--vm", "web-04*", "--folder", "test"]);
    assert!(one.out.contains("shown: 10 of 60 VMs\n"), "{}", one.out);
    assert!(one.out.contains("note: 10 VMs on esx2.lab: changed block tracking"), "{}", one.out);
    assert!(one.err.contains("web-041 has 1 snapshot") && !one.err.contains("web-007"), "{}", one.err);
    let below = check(&["--folder", "prod"]);
    assert!(below.out.contains("shown: 40 of 60 VMs\n"), "{}", below.out);
    let blocked = check(&["--blocked", "--json"]).json().unwrap();
    let names: Vec<&Value> = blocked["vms"].as_array().unwrap().iter().map(|vm| &vm["name"]).collect();
    assert_eq!(names, ["web-007", "web-041"]);
    assert!(blocked["vms"][0]["concerns"].as_array().unwrap().iter().any(|it| it["id"] == "cbt-off"));
    assert!(blocked["problems"].as_array().unwrap().len() == 2, "{blocked:#}");
    let none = check(&["--vm", "wbe-001"]);
    assert_eq!(none.code, Some(2), "{}", none.err);
    assert!(none.err.contains("near names: web-001"), "{}", none.err);
}

#[test]
fn an_inventory_shows_what_is_asked_for_and_a_plan_takes_the_same() {
    let Some(stage) = fleet(152) else { return };
    let source = format!("127.0.0.1:{}", stage.sim.port);
    let trust = ["--thumbprint", &stage.sim.thumbprint];
    let inventory = |more: &[&str]| stage.run(&[&["inventory", &source], &trust[..], more].concat());
    let all = inventory(&[]).out;
    assert!(all.contains("    and 55 more (all by --vm '*', --json or --csv)\n"), "{all}");
    assert!(all.ends_with("60 VMs (60 off), 60 disks of 60 MiB\n"), "{all}");
    let asked = ["--folder", "prod", "--host", "esx1.lab", "--vm", "web-00?", "--vm", "web-05*"];
    let some = inventory(&asked).out;
    assert!(some.contains("web-009") && !some.contains("web-010") && !some.contains("web-050"), "{some}");
    assert!(some.ends_with("10 VMs (10 off) of 60, 10 disks of 10 MiB\n"), "{some}");
    assert!(some.contains("esx1.lab") && !some.contains("esx2.lab"), "{some}");
    let json = inventory(&[&asked[..], &["--json"]].concat()).json().unwrap();
    assert_eq!(
        (json["vms"].as_array().unwrap().len(), json["concerns"].as_object().unwrap().len()),
        (10, 10)
    );
    let csv = inventory(&[&asked[..], &["--csv"]].concat()).out;
    assert!(csv.starts_with("name,id,folder,power,host,") && csv.lines().count() == 11, "{csv}");
    let refused = inventory(&["--folder", "prdo", "--vm", "web*"]);
    assert_eq!(refused.code, Some(3), "{}", refused.out);
    assert!(refused.err.contains("has the folder 'prdo'\n  try: near names: prod;"), "{}", refused.err);
    let plan_new = |more: &[&str]| {
        let folder = stage.path("there").display().to_string();
        stage.run(&[&["plan", "new", &source], &trust[..], &["--target-folder", &folder], more].concat())
    };
    let plan = plan_new(&asked);
    assert!(plan.out.matches("- name: ").count() == 10 && plan.out.contains("/there\""), "{}", plan.out);
    let table = stage.path("fleet.csv");
    std::fs::write(&table, csv).unwrap();
    let plan = plan_new(&["--table", table.to_str().unwrap()]);
    assert_eq!(plan.out.matches("- name: ").count(), 10, "{}{}", plan.out, plan.err);
    let none = plan_new(&["--folder", "prod", "--host", "esx2.lab"]);
    assert!(none.code == Some(3) && none.err.contains("no VM fits all that is asked for"), "{}", none.err);
}

/// Whether a text holds something like a session's or a ticket's id.
fn has_uuid(text: &str) -> bool {
    let is_uuid = |word: &str| word.len() == 36 && word.bytes().filter(|it| *it == b'-').count() == 4;
    text.split(|c: char| !c.is_ascii_hexdigit() && c != '-').any(is_uuid)
}

#[test]
fn a_log_tells_requests_connections_and_choices_and_no_secret() {
    let stage = Stage::new(150, |folder| vec![vm("one", &[&disk_file(folder, "a", 2 * MIB)])]);
    let Some(stage) = stage else { return };
    let log = stage.path("log").display().to_string();
    // Over NFC, which takes tickets; over HTTPS, which takes the session's cookie; and with a refused password.
    let nfc = stage.plan("nfc", &[("    path: https\n", "    path: nfc\n")]);
    let https = stage.plan("https", &[("/vms\n", "/vms2\n")]);
    let moved = stage.run(&["migrate", &nfc, "--log-file", &log, "-v"]);
    assert_eq!(moved.code, Some(0), "{}{}", moved.out, moved.err);
    let again = stage.run(&["--log-file", &log, "migrate", &https]);
    assert_eq!(again.code, Some(0), "{}{}", again.out, again.err);
    let denied = stage
        .drover
        .command(&["-v", "--log-file", &log, "inventory", &nfc])
        .env("DROVER_PASSWORD", "not-the-password")
        .output()
        .unwrap();
    assert_ne!(denied.status.code(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    for told in [
        "drover: version ",
        "http: connected to 127.0.0.1:",
        "vsphere: Login of SessionManager",
        "vsphere: NfcGetVmFiles of ",
        "nfc: [",
        "run: plan nfc, 1 VM; disks are ",
        "run: {\"event\":\"phase_started\",\"vm\":\"one\",\"phase\":\"copy\"}",
        "drover: ended with exit code ",
    ] {
        assert!(text.contains(told), "no '{told}' in {text}");
    }
    let is_stamped =
        |line: &str| line.len() > 25 && line.as_bytes()[10] == b'T' && line.as_bytes()[23] == b'Z';
    assert!(text.lines().all(is_stamped), "{text}");
    assert!(moved.err.contains("vsphere: Login of SessionManager"), "-v tells it on standard error");
    assert!(!again.err.contains("vsphere: "), "a file alone leaves the terminal alone");
    let shown = format!("{text}{}{}", moved.err, String::from_utf8_lossy(&denied.stderr));
    for secret in [drover_lab::PASSWORD, "not-the-password", "vmware_soap_session", "vmware_cgi_ticket"] {
        assert!(!shown.contains(secret), "'{secret}' is in {shown}");
    }
    assert!(!has_uuid(&shown), "a session or a ticket is in {shown}");
    assert!(has_uuid("x 123e4567-e89b-12d3-a456-426614174000 y"));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    let nowhere = stage.run(&["status", "--log-file", "/nowhere/log"]);
    assert_eq!(nowhere.code, Some(2), "{}", nowhere.err);
}

/// What bash offers for the last of these words.
fn offered(stage: &Stage, words: &[&str]) -> Vec<String> {
    let script = stage.path("completions");
    std::fs::write(&script, stage.run(&["completions", "bash"]).out).unwrap();
    let program = env!("CARGO_BIN_EXE_drover");
    let ask = format!(
        "source {}; COMP_WORDS=({program} {}); COMP_CWORD=$(({} )); _drover_names {program} \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len(),
    );
    let mut command = Command::new("bash");
    command.args(["-c", &ask]).current_dir(stage.vms().parent().unwrap()).stdin(Stdio::null());
    let output = command.env("DROVER_STATE", stage.path("state")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_string).collect()
}

#[test]
fn shells_offer_plans_and_vms_and_commands_name_near_ones_and_the_next() {
    let stage = Stage::new(151, |folder| {
        let a = disk_file(folder, "a", MIB);
        vec![vm("web01", &[&a]), vm("web02", &[&a]), vm("db", &[&a])]
    });
    let Some(stage) = stage else { return };
    let plan = stage.plan("moves", &[]);
    let checked = stage.run(&["plan", "check", &plan]);
    assert!(checked.out.ends_with(&format!("next: drover migrate {plan}\n")), "{}", checked.out);
    let moved = stage.run(&["migrate", &plan]);
    assert_eq!(moved.code, Some(0), "{}{}", moved.out, moved.err);
    assert!(moved.err.contains("next: drover report moves --html moves.html --state "), "{}", moved.err);
    let quiet = stage.run(&["migrate", &plan, "--quiet"]);
    assert!(!quiet.err.contains("next:"), "{}", quiet.err);
    assert_eq!(offered(&stage, &["status", "mo"]), ["moves", "moves.yaml"]);
    assert_eq!(offered(&stage, &["migrate", "mo"]), ["moves.yaml"], "a run takes files");
    assert_eq!(offered(&stage, &["plan", "check", "mo"]), ["moves.yaml"]);
    assert_eq!(offered(&stage, &["cutover", "moves", "we"]), ["web01", "web02"]);
    assert_eq!(offered(&stage, &["rehearse", "moves.yaml", "--vm", "d"]), ["db"]);
    assert!(offered(&stage, &["status", "--wa"]).contains(&"--watch".to_string()), "options stay");
    assert!(offered(&stage, &["sta"]).contains(&"status".to_string()), "commands stay");
    for (words, near) in [
        (&["status", "mvoes"][..], "near names: moves;"),
        (&["cutover", "moves", "wbe01"], "near names: web01"),
        (&["rehearse", "moves", "--vm", "wbe02"], "near names: web02"),
    ] {
        let refused = stage.run(words);
        assert!(refused.code != Some(0) && refused.err.contains(near), "{words:?}: {}", refused.err);
    }
    let nameless = stage.run(&["status", "mvoes"]).err;
    assert!(nameless.contains(stage.path("state").to_str().unwrap()), "{nameless}");
    let shown = stage.run(&["status", "moves"]).out;
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}
