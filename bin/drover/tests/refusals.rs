//! Bad input: each with its own words and exit code, and nothing touched.
#![allow(clippy::unwrap_used)]

use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::json;

/// Runs `migrate`; it must end with this code and these words, touching nothing on either side.
fn refused(stage: &Stage, plan: &str, code: i32, words: &[&str]) {
    let before = stage.source_state();
    let output = stage.run(&["migrate", plan]);
    assert_eq!(output.code, Some(code), "{}", output.err);
    for words in words {
        assert!(output.err.contains(words), "'{words}' is not in: {}", output.err);
    }
    assert_eq!(stage.source_state(), before, "the source was touched");
    assert!(!stage.vms().exists(), "the target was touched");
}

#[test]
fn plans_that_cannot_work_are_refused_with_all_their_problems() {
    let Some(stage) = Stage::new(20, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        let twin = with(vm("twin", &[&a]), json!({"folder": "test"}));
        let disk = |change: serde_json::Value| {
            let mut disk = vm("x", &[&a])["disks"][0].clone();
            change.as_object().unwrap().iter().for_each(|(key, value)| disk[key] = value.clone());
            json!({ "disks": [disk] })
        };
        let mut writers = vm("writers", &[&a, &a]);
        writers["disks"][1]["sharing"] = json!("multi_writer");
        vec![
            vm("good", &[&a]),
            with(vm("win", &[&a]), json!({"guest_id": "windows2019srv_64Guest"})),
            vm("twin", &[&a]),
            twin,
            with(vm("bare", &[]), json!({})),
            with(vm("dmz", &[&a]), json!({"nics": [{"network": "Storage Net", "mac": "00:50:56:aa:00:09"}]})),
            with(vm("odd", &[&a]), disk(json!({"capacity": 2_097_153}))),
            with(vm("empty", &[&a]), disk(json!({"file": null, "capacity": 0}))),
            with(vm("alone", &[&a]), disk(json!({"mode": "independent_persistent"}))),
            with(vm("lun", &[&a]), disk(json!({"rdm": "physical"}))),
            with(vm("snapped", &[&a]), json!({"snapshots": [{"name": "before-patch"}]})),
            writers,
        ]
    }) else {
        return;
    };
    let only = |vm: &str| {
        let text = stage.plan_text("bad");
        let head = text.split("vms:\n").next().unwrap().to_string();
        let path = stage.path("bad.yaml");
        std::fs::write(&path, format!("{head}vms:\n  - name: {vm}\n")).unwrap();
        path.display().to_string()
    };
    let unplugged =
        std::fs::read_to_string(only("good")).unwrap().replace("\"*\": user", "\"*\": no-such-br");
    let unplugged = unplugged.replace("name: bad", "name: unplugged");
    std::fs::write(stage.path("unplugged.yaml"), unplugged).unwrap();
    let path = stage.path("unplugged.yaml").display().to_string();
    let check = stage.run(&["plan", "check", &path]);
    assert_eq!(check.code, Some(7), "{}", check.err);
    assert!(check.err.contains("good: there is no bridge no-such-br"), "{}", check.err);
    refused(&stage, &path, 7, &["there is no bridge no-such-br"]);
    assert_eq!(stage.run(&["cancel", "unplugged"]).code, Some(0));
    refused(&stage, &only("goood"), 3, &["there is no VM called 'goood'", "did you mean 'good'?"]);
    refused(&stage, &only("twin"), 3, &["2 VMs are called 'twin'", "folder 'prod'", "folder 'test'"]);
    refused(&stage, &only("bare"), 3, &["bare has no disk to move"]);
    refused(&stage, &only("odd"), 3, &["2097153 bytes, which is no multiple of 512"]);
    refused(&stage, &only("empty"), 3, &["has 0 bytes"]);
    refused(&stage, &only("alone"), 3, &["is independent"]);
    refused(&stage, &only("lun"), 3, &["raw device mapping"]);
    refused(&stage, &only("snapped"), 3, &["1 snapshot (before-patch)"]);
    let shared = only("writers");
    let text = std::fs::read_to_string(&shared).unwrap();
    std::fs::write(&shared, text + "    exclude_disks: [Hard disk 2]\n").unwrap();
    refused(
        &stage,
        &shared,
        3,
        &["writers/Hard disk 2 is multi-writer", "vSphere makes no snapshot of such a VM"],
    );
    let unmapped = only("dmz");
    let text = std::fs::read_to_string(&unmapped).unwrap().replace("  \"*\": user\n", "  VM Network: br0\n");
    std::fs::write(&unmapped, text).unwrap();
    refused(&stage, &unmapped, 3, &["network 'Storage Net' of dmz is not mapped"]);
    let unknown = only("good");
    let text = std::fs::read_to_string(&unknown).unwrap().replace("mode: cold", "mode: cold\nverfy: full");
    std::fs::write(&unknown, text).unwrap();
    refused(&stage, &unknown, 3, &["unknown key 'verfy'", "did you mean 'verify'?", "bad.yaml:"]);
    let check = stage.run(&["plan", "check", &stage.plan("all", &[])]);
    let run = stage.run(&["migrate", &stage.plan("all", &[])]);
    assert_eq!((check.code, run.code), (Some(3), Some(3)));
    for name in ["twin", "bare", "odd", "empty", "alone", "lun", "snapped"] {
        assert!(check.err.contains(name), "{name} is not among all problems: {}", check.err);
        assert!(run.err.contains(name), "a check tells of {name}, and a run does not: {}", run.err);
    }
    if drover_qemu::can_convert().is_err() {
        let check = stage.run(&["plan", "check", &only("win")]);
        assert_eq!(check.code, Some(0), "with `convert: never`: {}", check.err);
        // Also one that is not started: it would arrive, be "done", and not boot.
        let windows =
            std::fs::read_to_string(only("win")).unwrap().replace("convert: never", "convert: auto");
        std::fs::write(stage.path("windows.yaml"), windows).unwrap();
        let plan = stage.path("windows.yaml").display().to_string();
        let before = stage.source_state();
        for words in [&["plan", "check", plan.as_str()][..], &["migrate", plan.as_str()]] {
            let refused = stage.run(words);
            let told = "win needs conversion: virt-v2v-in-place is not installed";
            assert_eq!((refused.code, refused.err.contains(told)), (Some(7), true), "{}", refused.err);
        }
        assert_eq!(stage.source_state(), before, "the source was touched");
    }
}

#[test]
fn target_folders_that_cannot_take_it_are_refused_before_the_start() {
    let Some(stage) = Stage::new(21, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        let mut huge = vm("huge", &[&a]);
        huge["disks"][0]["capacity"] = json!("15TiB");
        vec![huge]
    }) else {
        return;
    };
    refused(
        &stage,
        &stage.plan("small", &[("  overcommit: true\n", "")]),
        3,
        &["free, and the disks may take 15 TiB"],
    );
    let vms = stage.vms().display().to_string();
    let file = stage.path("a").join("below").display().to_string();
    refused(&stage, &stage.plan("unwritable", &[(&vms, &file)]), 3, &["cannot be written"]);
    let read_only = stage.path("read-only");
    std::fs::create_dir(&read_only).unwrap();
    let mount = |args: &[&str]| std::process::Command::new("mount").args(args).arg(&read_only).output();
    if !mount(&["-t", "tmpfs", "-o", "ro", "drover-test"]).is_ok_and(|output| output.status.success()) {
        println!("skipped: a read-only file system cannot be mounted (needs root)");
        return;
    }
    let path = read_only.display().to_string();
    refused(&stage, &stage.plan("read-only", &[(&vms, &path)]), 3, &["cannot be written"]);
    assert!(std::process::Command::new("umount").arg(&read_only).status().unwrap().success());
}

#[test]
fn an_image_that_drover_did_not_make_is_not_overwritten() {
    let Some(stage) = Stage::new(22, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let image = stage.image("one", 0);
    std::fs::create_dir_all(image.parent().unwrap()).unwrap();
    std::fs::write(&image, b"somebody's work").unwrap();
    let before = stage.source_state();
    let plan = stage.plan("keep", &[]);
    let check = stage.run(&["plan", "check", &plan]);
    assert_eq!(check.code, Some(7), "{}", check.err);
    assert!(check.err.contains("already holds"), "{}", check.err);
    let output = stage.run(&["migrate", &plan]);
    assert_eq!(output.code, Some(7), "{}", output.err);
    assert!(output.err.contains("already holds"), "{}", output.err);
    assert_eq!(std::fs::read(&image).unwrap(), b"somebody's work");
    assert_eq!(stage.source_state(), before);
    let report = stage.report(&plan);
    let phases: Vec<_> =
        report["vms"][0]["phases"].as_array().unwrap().iter().map(|it| &it["phase"]).collect();
    assert_eq!(phases, ["check"], "the guest was shut down for nothing");
    assert!(
        report["summary"]["equal"] == json!("not_checked") && !output.out.contains("equal"),
        "{}",
        output.out
    );
    // A folder in the way of the image, and a converter that is not there.
    std::fs::remove_file(&image).unwrap();
    std::fs::create_dir(&image).unwrap();
    assert_eq!(stage.run(&["plan", "check", &plan]).code, Some(7));
}

#[test]
fn connection_troubles_have_different_words_and_codes() {
    let Some(stage) = Stage::new(23, |folder| {
        let a = disk_file(folder, "a", MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let thumb = stage.sim.thumbprint.clone();
    let here = format!("127.0.0.1:{}", stage.sim.port);
    let ask = |args: &[&str], password: &str| {
        let mut command = stage.drover.command(&[&["inventory"], args].concat());
        let output = command.env("DROVER_PASSWORD", password).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let cases: [(&[&str], &str, i32, &str); 6] = [
        (&[&here, "--thumbprint", &thumb], "wrong", 4, "wrong user or password"),
        (&[&here, "--thumbprint", &thumb, "--user", "administrator"], "wrong", 4, "no domain"),
        (&[&here, "--thumbprint", "00112233445566778899aabbccddeeff00112233"], "s3cret", 5, &thumb),
        (&[&here], "s3cret", 5, "certificate"),
        (&["127.0.0.1:1", "--insecure"], "s3cret", 5, "refused"),
        (&["no-such-host.invalid", "--insecure"], "s3cret", 5, "no-such-host.invalid"),
    ];
    let mut said = Vec::new();
    for (args, password, code, words) in cases {
        let (got, err) = ask(args, password);
        assert_eq!(got, code, "{err}");
        assert!(err.contains(words), "'{words}' is not in: {err}");
        assert!(err.contains("try:") && !err.contains("s3cret"), "{err}");
        said.push(err);
    }
    said.dedup();
    assert_eq!(said.len(), 6, "all different");
}

#[test]
fn garbage_and_answers_that_never_end_are_given_up() {
    let Some(stage) = Stage::new(24, |folder| {
        let a = disk_file(folder, "a", MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = stage.plan("garbage", &[]);
    let fault = |fault: serde_json::Value| stage.sim.post("/fault/http", fault).unwrap();
    fault(json!({"path": "/sdk", "garbage": true, "count": -1}));
    refused(&stage, &plan, 5, &["is not one of a vSphere server"]);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    // Fast, so that it becomes too long before it has lasted too long.
    fault(json!({"path": "/sdk", "endless": true, "bytes_per_s": 500_000_000, "count": -1}));
    refused(&stage, &plan, 5, &["is not one of a vSphere server"]);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    stage.migrate(&plan);
}

/// A VM that is to stay because of its tag would move if nobody knows its tags.
#[test]
fn a_plan_that_goes_by_tags_is_refused_while_tags_cannot_be_read() {
    let Some(stage) = Stage::new(28, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![vm("one", &[&a]), with(vm("sealed", &[&a]), json!({"tags": ["move:never"]}))]
    }) else {
        return;
    };
    let by_tag = [
        ("  - name: \"sealed\"\n", "exclude:\n  - tag: 'move:never'\n"),
        ("  - name: \"one\"\n", "  - glob: '*'\n"),
    ];
    let plan = stage.plan("tags", &by_tag);
    let fault = json!({"path": "/rest", "status": 503, "count": -1});
    stage.sim.post("/fault/http", fault).unwrap();
    refused(&stage, &plan, 3, &["exclude[0]", "which VMs have the tag 'move:never' is not known"]);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    stage.migrate(&plan);
    assert_eq!(stage.report("tags")["vms"].as_array().unwrap().len(), 1);
}

#[test]
fn missing_rights_are_named_before_anything_is_touched() {
    let Some(stage) = Stage::new(25, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"})), vm("two", &[&a])]
    }) else {
        return;
    };
    let deny = |vm: &str, privileges: &[&str]| {
        stage.sim.post("/privileges", json!({"vm": vm, "deny": privileges})).unwrap();
    };
    let (off, on) = ("VirtualMachine.Interact.PowerOff", "VirtualMachine.Interact.PowerOn");
    let (make, remove) = ("VirtualMachine.State.CreateSnapshot", "VirtualMachine.State.RemoveSnapshot");
    let plan = stage.plan("all", &[]);
    deny("one", &[off, on]);
    deny("two", &[off, on, remove]);
    let words = [
        "lacks the privilege VirtualMachine.Interact.PowerOff on one:",
        "lacks the privilege VirtualMachine.Interact.PowerOn on one:",
        "lacks the privilege VirtualMachine.State.RemoveSnapshot on two:",
        "nothing was touched",
    ];
    refused(&stage, &plan, 4, &words);
    let check = stage.run(&["plan", "check", &plan]);
    assert_eq!(check.code, Some(4), "{}", check.err);
    assert!(words.iter().all(|words| check.err.contains(words)), "{}", check.err);
    deny("one", &[]);
    deny("two", &[make]);
    refused(&stage, &plan, 4, &["CreateSnapshot on two: it is needed to freeze disks"]);
    // A VM that is off is not switched off or on.
    deny("two", &[off, on]);
    let everywhere = |deny: &[&str]| stage.sim.post("/privileges", json!({"deny": deny})).unwrap();
    everywhere(&["Datastore.FileManagement"]);
    let lacking = "lacks the privilege Datastore.FileManagement on ds1: it is needed";
    refused(&stage, &plan, 4, &[&format!("error: source.user: the user {lacking} to read disks")]);
    // NFC needs none of the files.
    let nfc = stage.plan("nfc", &[("path: https", "path: auto")]);
    let check = stage.run(&["plan", "check", &nfc]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    assert!(check.err.contains(&format!("warning: source.user: the user {lacking} where")), "{}", check.err);
    everywhere(&[]);
    // A server that cannot tell is no reason to stop.
    let unknown = json!({"method": "HasPrivilegeOnEntities", "fault": "NotSupported", "count": -1});
    stage.sim.post("/fault/soap", unknown).unwrap();
    let check = stage.run(&["plan", "check", &plan]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    assert!(check.err.contains("warning: source.user: the server does not tell"), "{}", check.err);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    stage.migrate(&plan);
}

#[test]
fn names_of_others_drive_no_terminal_and_stay_as_they_are_for_programs() {
    let odd = "o\u{9b}31m\u{202e}\u{85}\u{61c}\u{2067}\u{7f}dd";
    let Some(stage) = Stage::new(26, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm(odd, &[&a]), json!({"tags": [format!("t{odd}:x")]}))]
    }) else {
        return;
    };
    let plan = stage.plan("all", &[]);
    let drives = |c: char| c != '\n' && drover_types::drives_terminal(c);
    let port = stage.sim.port;
    let host = format!("127.0.0.1:{port}");
    let login = ["--user", drover_lab::USER, "--thumbprint", &stage.sim.thumbprint];
    let of_host = |args: &[&str]| [args, &login].concat().iter().map(|it| it.to_string()).collect::<Vec<_>>();
    let commands = [
        vec!["plan".to_string(), "check".into(), plan.clone()],
        vec!["plan".to_string(), "check".into(), plan.clone(), "--json".into()],
        of_host(&["inventory", &host, "--details"]),
        of_host(&["inventory", &host, "--json"]),
        vec!["migrate".to_string(), plan.clone()],
        vec!["migrate".to_string(), plan.clone(), "--json".into()],
        vec!["status".to_string(), plan.clone()],
        vec!["report".to_string(), plan.clone()],
        vec!["report".to_string(), plan.clone(), "--json".into()],
    ];
    for command in &commands {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut run = stage.drover.command(&args);
        let output = run.env("DROVER_PASSWORD", drover_lab::PASSWORD).output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(text.len() > 10 && !text.contains(drives), "{args:?}: {text:?}");
        if args[0] == "inventory" && args.contains(&"--json") {
            let found: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(found.to_string().contains(odd), "{found}");
        }
    }
}

#[test]
fn a_plan_without_end_and_a_provider_without_tls_are_refused() {
    let Some(stage) = Stage::new(27, |folder| vec![vm("one", &[&disk_file(folder, "a", MIB)])]) else {
        return;
    };
    let endless = stage.run(&["plan", "check", "/dev/zero"]);
    assert_eq!(endless.code, Some(3), "{}", endless.err);
    assert!(endless.err.contains("larger than 16 MiB"), "{}", endless.err);
    let url = format!("http://127.0.0.1:{}", stage.sim.port);
    let disk = format!("vsphere://{url}/one/0");
    for args in [["inventory", &url, "--insecure"], ["copy", &disk, "null:"]] {
        let mut run = stage.drover.command(&args);
        let run = run.env("DROVER_PASSWORD", "hunter2").env("DROVER_USER", "root");
        let output = run.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(2 | 5)), "{args:?}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let mut run = stage.drover.command(&["inventory", &url, "--insecure"]);
    let output = run.env("DROVER_PASSWORD", "hunter2").env("DROVER_USER", "root").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("is not encrypted") && text.contains("https://"), "{text}");
}

#[test]
fn a_moment_for_the_cutover_that_has_long_passed_is_refused() {
    let Some(stage) = Stage::new(29, |folder| {
        let a = disk_file(folder, "a", MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let warm = "mode: warm\nwarm: {cutover: \"2020-02-29T22:00:00+01:00\"}";
    let plan = stage.plan("past", &[("mode: cold", warm)]);
    let words = "the moment for the cutover of one passed more than an hour ago";
    refused(&stage, &plan, 3, &[words, "write one that is to come, or `manual`"]);
    let check = stage.run(&["plan", "check", &plan]);
    assert!(check.code == Some(3) && check.err.contains(words), "{}", check.err);
}

#[test]
fn a_state_that_cannot_be_written_is_shown_and_one_that_is_damaged_is_said_to_be() {
    let Some(stage) = Stage::new(28, |folder| {
        let a = disk_file(folder, "a", MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = stage.plan("shown", &[]);
    stage.migrate(&plan);
    let state = stage.path("state");
    let mount = |args: &[&str]| {
        let output = std::process::Command::new("mount").args(args).arg(&state).output();
        output.is_ok_and(|output| output.status.success())
    };
    if mount(&["--bind", state.to_str().unwrap()]) {
        let is_read_only = mount(&["-o", "remount,bind,ro"]);
        let asked = [["status", "shown"], ["report", "shown"]].map(|words| stage.run(&words));
        assert!(std::process::Command::new("umount").arg(&state).status().unwrap().success());
        assert!(is_read_only);
        for output in asked {
            assert!(output.code == Some(0) && output.out.contains("one"), "{}{}", output.out, output.err);
        }
    } else {
        println!("skipped in part: a read-only folder cannot be mounted (needs root)");
    }
    std::fs::write(state.join("drover.db"), vec![b'x'; 65536]).unwrap();
    for log in ["drover.db-wal", "drover.db-shm"] {
        let _ = std::fs::remove_file(state.join(log));
    }
    let damaged = stage.run(&["status"]);
    assert_eq!(damaged.code, Some(14), "{}", damaged.err);
    assert!(
        damaged.err.contains("it is damaged") && !damaged.err.contains("can be written"),
        "{}",
        damaged.err
    );
}
