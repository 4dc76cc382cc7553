//! Cold migrations from the simulated vCenter to files, from end to end.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;

use drover_stage::collector::Collector;
use drover_stage::process::{EndsWithTest, PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, same_bytes, signer, vm, with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

#[test]
fn vms_arrive_equal_and_the_source_stays_as_it_was() {
    let Some(stage) = Stage::new(10, |folder| {
        let a = disk_file(folder, "a", 20 * MIB);
        let b = disk_file(folder, "b", 7 * MIB + 512);
        let c = disk_file(folder, "c", 3 * MIB);
        vec![
            vm("one", &[&a]),
            with(
                vm("three disks", &[&a, &b, &c]),
                json!({"host": "esx2.lab", "cbt": false, "firmware": "efi"}),
            ),
        ]
    }) else {
        return;
    };
    let before = stage.source_state();
    let plan = stage.plan("arrive", &[]);
    stage.migrate(&plan);
    stage.assert_equal("one", 0, &stage.path("a"));
    for (disk, file) in ["a", "b", "c"].iter().enumerate() {
        let image = stage.vms().join(format!("three-disks/three-disks-{disk}.raw"));
        assert!(same_bytes(&image, &stage.path(file)), "{file}");
    }
    assert_eq!(stage.source_state(), before);
    let report = stage.report(&plan);
    for vm in report["vms"].as_array().unwrap() {
        for disk in vm["disks"].as_array().unwrap() {
            assert_eq!(disk["equal"], true);
            assert_eq!(disk["details"]["root"], disk["details"]["target_root"]);
        }
    }
    assert_evidence(&stage, &plan, &report);
    assert!(stage.vms().join("one/domain.xml").is_file() && stage.vms().join("one/run.sh").is_file());
    let again = stage.run(&["migrate", &plan]);
    assert_eq!(again.code, Some(0), "a plan that is done has nothing to do: {}", again.err);
    // Its name is free again, and a plan of that name takes nothing of its images for its own.
    let forgotten = stage.run(&["clean", "arrive", "--forget"]);
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.err);
    assert!(forgotten.err.contains("recorded of its 2 VMs"), "{}", forgotten.err);
    assert!(!stage.run(&["status"]).out.contains("arrive"));
    let anew = stage.run(&["migrate", &plan]);
    assert!(anew.code != Some(0) && anew.err.contains("no journal is beside it"), "{}", anew.err);
    stage.assert_equal("one", 0, &stage.path("a"));
}

/// What a vCenter of thousands of VMs is asked for each of them. Waits for tasks are not counted: they depend on how fast those end.
#[test]
fn a_vm_costs_the_vcenter_a_bounded_number_of_large_reads() {
    const VMS: u64 = 3;
    const DISKS: u64 = 6;
    let Some(stage) = Stage::new(16, |folder| {
        let disk = disk_file(folder, "a", MIB);
        vec![vm("one", &[&disk]), vm("two", &[&disk, &disk]), vm("three", &[&disk, &disk, &disk])]
    }) else {
        return;
    };
    let plan = stage.plan("asked", &[]);
    stage.sim.post("/stats/reset", json!({})).unwrap();
    stage.migrate(&plan);
    let stats = stage.sim.get("/stats").unwrap();
    let count = |of: &str, what: &str| stats[of][what].as_u64().unwrap_or(0);
    // The whole device list of a snapshot: once when it was made, and once for each disk that is opened.
    assert_eq!(count("properties", "VirtualMachineSnapshot.config.hardware"), VMS + DISKS, "{stats}");
    assert_eq!(count("properties", "VirtualMachineSnapshot.config"), 0, "{stats}");
    // Of a VM: in the inventory, in a page of all three, and before what is done to it.
    let looks = count("properties", "VirtualMachine.config.hardware");
    assert!((1 + VMS..=1 + 8 * VMS).contains(&looks), "{looks}: {stats}");
    // Tracked disks are known by their change IDs: no file of theirs is looked up.
    assert_eq!(count("soap", "SearchDatastore_Task"), 0, "{stats}");
    assert_eq!(count("soap", "Login"), 1, "{stats}");
}

/// The report names who ran what, from where, and which VMs; and another file of that name does not take the plan over.
fn assert_evidence(stage: &Stage, plan: &str, report: &serde_json::Value) {
    let run = &report["runs"][0];
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    assert_eq!(
        (text(&run["drover"]), text(&run["plan_file"])),
        (env!("CARGO_PKG_VERSION").into(), plan.into())
    );
    let digest = drover_copy::text_digest(&std::fs::read_to_string(plan).unwrap());
    assert_eq!(run["plan_blake3"], digest.to_hex().to_string());
    assert!(text(&run["user"]).contains("uid ") && !text(&run["host"]).is_empty(), "{run}");
    assert!(text(&run["source"]).ends_with(&stage.sim.port.to_string()), "{run}");
    assert!(
        text(&run["source_product"]).contains("vCenter") && text(&run["source_uuid"]).len() > 30,
        "{run}"
    );
    let vm = &report["vms"][0];
    assert_eq!(vm["source_host"], "esx1.lab");
    assert_eq!(text(&vm["instance_uuid"]).len(), 36, "{vm}");
    let words = stage.run(&["report", plan]).out;
    assert!(words.contains("Evidence:") && words.contains(&text(&vm["id"])), "{words}");
    let other = stage.path("other.yaml").display().to_string();
    std::fs::copy(plan, &other).unwrap();
    for command in [&["migrate", other.as_str()][..], &["plan", "check", other.as_str()]] {
        let refused = stage.run(command);
        assert_eq!(refused.code, Some(3), "{}", refused.err);
        assert!(
            refused.err.contains(&format!("is that of {plan}, and this file would take it over")),
            "{}",
            refused.err
        );
    }
}

#[test]
fn plans_of_one_state_read_the_inventory_one_after_the_other() {
    let Some(stage) = Stage::new(77, |folder| vec![vm("one", &[&disk_file(folder, "a", MIB)])]) else {
        return;
    };
    let (turns, plan) = (stage.path("state/inventories"), stage.plan("turns", &[]));
    assert_eq!(stage.run(&["plan", "check", &plan]).code, Some(0));
    assert!(!turns.exists(), "a check begins no state");
    let log = stage.path("drover.log");
    let begin = || {
        let mut command = stage.drover.command(&["migrate", &plan, "--log-file"]);
        command.arg(&log).stderr(Stdio::piped()).spawn().unwrap()
    };
    let waits =
        || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("another plan reads the inventory"));
    let source = format!("{}_127.0.0.1_{}", stage.somebody().about().instance_uuid, stage.sim.port);
    std::fs::create_dir_all(&turns).unwrap();
    let other = std::fs::File::create(turns.join(source)).unwrap();
    other.lock().unwrap();
    let stopped = begin();
    wait_until("it waits", PATIENCE, waits);
    kill_process(Pid::from_child(&stopped), Signal::INT).unwrap();
    let output = stopped.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&log).unwrap();
    let waiting = begin();
    wait_until("it waits", PATIENCE, waits);
    drop(other);
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    stage.assert_equal("one", 0, &stage.path("a"));
}

/// What may be read in the time of the test is far less than one request: the first of all is the last.
#[test]
fn a_rate_limit_holds_what_all_vms_read_together_and_ctrl_c_ends_the_wait() {
    let Some(stage) = Stage::new(41, |folder| {
        let a = disk_file(folder, "a", 16 * MIB);
        vec![vm("one", &[&a]), with(vm("two", &[&a]), json!({"host": "esx2.lab"}))]
    }) else {
        return;
    };
    let limit = "overcommit: true\n  rate_limit: [2g, '00:00-24:00=1KiB']";
    let plan = stage.plan("held", &[("overcommit: true", limit)]);
    let mut command = stage.drover.command(&["migrate", &plan]);
    let mut started = EndsWithTest(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("both are copied", PATIENCE, || {
        let images = ["one", "two"].iter().all(|vm| stage.image(vm, 0).exists());
        images && stage.served() > 0
    });
    kill_process(Pid::from_child(&started.0), Signal::INT).unwrap();
    assert_eq!(started.0.wait().unwrap().code(), Some(130));
    let served = stage.served();
    assert!(served <= 4 * MIB, "{served} of 24 MiB were read, and a request has 4 at most");
    // What was begun goes on without the limit, as the plan says by now.
    let plan = stage.plan("held", &[]);
    stage.migrate(&plan);
    ["one", "two"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
}

#[test]
fn limits_of_a_running_plan_are_changed_by_order_and_it_ends_as_it_would_have_with_them() {
    let Some(stage) = Stage::new(210, |folder| {
        let a = disk_file(folder, "a", 16 * MIB);
        vec![vm("one", &[&a]), with(vm("two", &[&a]), json!({"host": "esx2.lab"}))]
    }) else {
        return;
    };
    let plan = stage.plan("slow", &[("overcommit: true", "overcommit: true\n  rate_limit: [1KiB]")]);
    let unknown = stage.run(&["limits", "slow"]);
    assert!(unknown.code == Some(3) && unknown.err.contains("there is no plan 'slow'"), "{}", unknown.err);
    let mut command = stage.drover.command(&["migrate", &plan, "--json"]);
    let mut started = EndsWithTest(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("both are copied", PATIENCE, || {
        let images = ["one", "two"].iter().all(|vm| stage.image(vm, 0).exists());
        images && stage.served() > 0
    });
    let limits = || serde_json::from_str::<Value>(&stage.run(&["limits", "slow", "--json"]).out).unwrap();
    let own = json!({"rate_limit": ["1KiB"], "disks": 200, "vms_per_host": 20});
    assert_eq!(limits(), json!({"plan": "slow", "limits": {"now": own, "plan": own}}));
    for (wrong, why) in [
        (["--rate-limit", "fast"], "rate_limit: "),
        (["--rate-limit", "fast"], "a rate is 50MiB, 500m, WINDOW=RATE, or none alone"),
        (["--disks", "0"], "disks: '0' is not a number from 1 to 1000"),
        (["--vms-per-host", "-1"], "vms_per_host: '-1' is not"),
    ] {
        let refused = stage.run(&[&["limits", "slow"][..], &wrong].concat());
        assert!(refused.code == Some(2) && refused.err.contains(why), "{:?} {}", refused.code, refused.err);
    }
    // As slow as before: the run is still there to be told something else.
    let fewer = stage.run(&["limits", "slow", "--disks", "7", "--vms-per-host", "3"]);
    assert_eq!(fewer.code, Some(0), "{}", fewer.err);
    assert!(
        fewer.err.contains("disks 200 -> 7, vms_per_host 20 -> 3; the drover that runs"),
        "{}",
        fewer.err
    );
    let slow = json!({"rate_limit": ["1KiB"], "disks": 7, "vms_per_host": 3});
    assert_eq!(limits(), json!({"plan": "slow", "limits": {"now": slow, "plan": own}}));
    let status = stage.run(&["status", "slow"]).out;
    let changed = "limits changed by order: disks 200 -> 7, vms_per_host 20 -> 3\n";
    assert!(status.contains(changed), "{status}");
    let faster = stage.run(&["limits", "slow", "--rate-limit", "none", "--json"]);
    assert_eq!(faster.code, Some(0), "{}", faster.err);
    let now = json!({"rate_limit": [], "disks": 7, "vms_per_host": 3});
    let changed = "rate_limit 1KiB -> none";
    assert_eq!(
        serde_json::from_str::<Value>(&faster.out).unwrap(),
        json!({"plan": "slow", "before": slow, "after": now, "changed": changed, "running": true})
    );
    let mut events = String::new();
    std::io::Read::read_to_string(started.0.stdout.as_mut().unwrap(), &mut events).unwrap();
    assert_eq!(started.0.wait().unwrap().code(), Some(0));
    ["one", "two"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
    let events: Vec<Value> = events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let told: Vec<&Value> = events.iter().filter(|it| it["event"] == "limits_changed").collect();
    let last = told.last().expect("the run tells that it keeps to others");
    assert_eq!(
        (&last["rate_limit"], &last["disks"], &last["vms_per_host"]),
        (&json!([]), &json!(7), &json!(3))
    );
    // It is over, and what was ordered holds no more.
    assert_eq!(limits(), json!({"plan": "slow", "limits": {"now": own, "plan": own}}));
    let status = stage.run(&["status", "slow"]).out;
    assert!(status.contains("done") && !status.contains("limits changed"), "{status}");
    let report = stage.report("slow");
    let mut kept = report["events"].as_array().unwrap().iter().filter(|it| it["kind"] == "limits");
    assert!(
        kept.next_back().unwrap()["text"].as_str().unwrap().contains("rate_limit 1KiB -> none"),
        "{report}"
    );
    let over = stage.run(&["limits", "slow", "--disks", "3"]);
    assert!(over.code == Some(3) && over.err.contains("plan slow is over"), "{:?} {}", over.code, over.err);
}

#[test]
fn bytes_come_from_the_hosts_backup_address_or_through_the_vcenter_as_the_plan_says() {
    let Some(stage) = Stage::new(11, |folder| {
        let a = disk_file(folder, "a", 8 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let bytes_at = |address: &str| {
        let stats = stage.sim.get("/stats").unwrap();
        stats["endpoints"][address]["folder_bytes"].as_u64().unwrap()
    };
    stage.migrate(&stage.plan("hosts", &[]));
    assert!(
        bytes_at("127.11.2.1") >= 6 * MIB && bytes_at("127.0.0.1") == 0,
        "the address tagged for backups"
    );
    let edits = [("from: hosts", "from: provider"), ("/vms\n", "/vms2\n")];
    stage.migrate(&stage.plan("provider", &edits));
    assert!(bytes_at("127.0.0.1") >= 6 * MIB);
    let login = "from: hosts\n    network: vmk0\n    user: root\n    password_env: DROVER_PASSWORD";
    stage.migrate(&stage.plan("login", &[("from: hosts", login), ("/vms\n", "/vms3\n")]));
    assert!(bytes_at("127.11.1.1") >= 6 * MIB, "the vmknic that the plan names, with the host's own login");
}

#[test]
fn a_single_esxi_host_is_a_source_too() {
    let Some(stage) = Stage::new_as("esxi", 16, |folder| {
        let a = disk_file(folder, "a", 8 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let before = stage.source_state();
    let plan = stage.plan("esxi", &[("administrator@vsphere.local", "root")]);
    stage.migrate(&plan);
    stage.assert_equal("one", 0, &stage.path("a"));
    assert_eq!(stage.source_state(), before);
}

#[test]
fn a_running_vm_is_refused_shut_down_or_forced_as_the_plan_says() {
    let Some(stage) = Stage::new(12, |folder| {
        let a = disk_file(folder, "a", 4 * MIB);
        vec![
            with(vm("busy", &[&a]), json!({"power": "on"})),
            with(vm("mute", &[&a]), json!({"power": "on", "tools": "notRunning"})),
        ]
    }) else {
        return;
    };
    let power = |name: &str| stage.sim.vm(name).unwrap()["power"].clone();
    let refused =
        stage.run(&["migrate", &stage.plan("refuse", &[("power_off: shutdown", "power_off: refuse")])]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    for words in ["2 VMs on esx1.lab: is running, and the plan does not allow", "\n    busy, mute\n"] {
        assert!(refused.err.contains(words), "{}", refused.err);
    }
    assert_eq!((power("busy"), power("mute")), (json!("poweredOn"), json!("poweredOn")));
    let mute = stage.run(&["migrate", &stage.plan("shutdown", &[])]);
    assert!(mute.err.contains("mute is running without guest tools"), "{}", mute.err);
    stage.migrate(&stage.plan("force", &[("power_off: shutdown", "power_off: force")]));
    assert_eq!((power("busy"), power("mute")), (json!("poweredOff"), json!("poweredOff")));
    stage.assert_equal("busy", 0, &stage.path("a"));
    stage.assert_equal("mute", 0, &stage.path("a"));
}

#[test]
fn a_sparse_disk_takes_time_and_room_by_its_data() {
    let Some(stage) = Stage::new(13, |folder| {
        let a = disk_file(folder, "a", 4 * MIB);
        let mut sparse = vm("sparse", &[&a]);
        sparse["disks"][0]["capacity"] = json!("20GiB");
        vec![sparse]
    }) else {
        return;
    };
    let plan = stage.plan("sparse", &[]);
    stage.migrate(&plan);
    let image = std::fs::metadata(stage.image("sparse", 0)).unwrap();
    assert_eq!(image.len(), 20 << 30);
    assert!(std::os::unix::fs::MetadataExt::blocks(&image) * 512 <= 4 * MIB);
    assert!(stage.served() <= 4 * MIB);
}

#[test]
fn qcow2_images_hold_the_same_bytes() {
    if std::process::Command::new("qemu-img").arg("--version").output().is_err() {
        println!("skipped: qemu-img is not installed");
        return;
    }
    let Some(stage) = Stage::new(14, |folder| {
        let a = disk_file(folder, "a", 9 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = stage.plan("qcow", &[("  accelerator: tcg", "  format: qcow2\n  accelerator: tcg")]);
    stage.migrate(&plan);
    let image = stage.vms().join("one/one-0.qcow2");
    let compared = std::process::Command::new("qemu-img")
        .args(["compare", "-f", "qcow2", "-F", "raw"])
        .args([&image, &stage.path("a")])
        .output()
        .unwrap();
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
    assert_eq!(stage.report(&plan)["vms"][0]["disks"][0]["equal"], true);
}

#[test]
fn inventory_status_and_report_speak_json_and_text() {
    let Some(stage) = Stage::new(15, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = stage.plan("talk", &[]);
    let inventory = stage.run(&["inventory", &plan, "--json"]).json().unwrap();
    let vm = |key: &str| inventory["vms"][0][key].clone();
    assert_eq!((vm("name"), vm("power"), vm("firmware")), (json!("one"), json!("off"), json!("bios")));
    let events = stage.run(&["migrate", &plan, "--json"]);
    let lines: Vec<serde_json::Value> =
        events.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().any(|line| line["event"] == "vm_ended")
            && lines.last().unwrap()["event"] == "plan_ended"
    );
    assert!(stage.run(&["status"]).out.contains("talk"));
    assert!(stage.run(&["status", &plan]).out.contains("one"));
    assert!(stage.run(&["report", "talk"]).out.contains("one"));
    let page = stage.path("report.html");
    let (key, signers) = signer(&stage.path(""), "anna");
    let [page_path, key, signers] = [&page, &key, &signers].map(|path| path.to_str().unwrap());
    assert_eq!(stage.run(&["report", "talk", "--html", page_path, "--sign", key]).code, Some(0));
    let signed = stage.run(&["verify", "--report", page_path, "--signers", signers]);
    assert!(signed.code == Some(0) && signed.err.contains("signed by anna@example.org"), "{}", signed.err);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("<html") && !page.contains("http://") && !page.contains("<script"),
        "one page, nothing fetched"
    );
    let all = format!("{}{}{page}", events.out, events.err);
    assert!(!all.contains(drover_lab::PASSWORD), "a secret is shown");
    let state = std::fs::read(stage.path("state/drover.db")).unwrap();
    assert!(!String::from_utf8_lossy(&state).contains(drover_lab::PASSWORD), "a secret is in the state");
    let drafted = stage.path("new.yaml");
    let source = format!("127.0.0.1:{}", stage.sim.port);
    let new = [
        "plan",
        "new",
        &source,
        "--thumbprint",
        &stage.sim.thumbprint,
        "--output",
        drafted.to_str().unwrap(),
    ];
    assert_eq!(stage.run(&new).code, Some(0));
    assert_ne!(stage.run(&new).code, Some(0), "an existing plan is not overwritten");
    assert_eq!(stage.run(&["plan", "check", drafted.to_str().unwrap(), "--offline"]).code, Some(0));
    let misspelt =
        ["plan", "new", &source, "--thumbprint", &stage.sim.thumbprint, "--vm", "onne", "--vm", "o*"];
    let refused = stage.run(&misspelt);
    assert_eq!(refused.code, Some(3), "a pattern that matches no VM is an error");
    assert!(
        refused.err.contains("matches 'onne'") && refused.err.contains("near names: one"),
        "{}",
        refused.err
    );
    let table = stage.path("waves.csv");
    let from_table = |rows: &str, plan: &str| {
        std::fs::write(&table, rows).unwrap();
        let (table, plan) = (table.to_str().unwrap(), stage.path(plan));
        let trust = &stage.sim.thumbprint;
        let args =
            ["plan", "new", &source, "--thumbprint", trust, "--table", table, "-o", plan.to_str().unwrap()];
        (stage.run(&args), plan)
    };
    let (refused, plan) = from_table("VM;Wave\nonne;pilot\n", "refused.yaml");
    assert_eq!((refused.code, plan.exists()), (Some(3), false), "{}", refused.err);
    let told = "waves.csv:2:1: error: name: there is no VM called 'onne'\n  try: did you mean 'one'?";
    assert!(refused.err.contains(told), "{}", refused.err);
    let (written, plan) = from_table("VM;Wave;Host\none;Wave 1;x\n", "fleet.yaml");
    assert_eq!(written.code, Some(0), "{}", written.err);
    assert!(written.err.contains("are left out: Host"), "{}", written.err);
    let text = std::fs::read_to_string(&plan).unwrap();
    assert!(text.contains("- {name: \"wave-1\"}") && text.contains("wave: \"wave-1\""), "{text}");
    let checked = stage.run(&["plan", "check", plan.to_str().unwrap()]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
}

#[test]
fn a_guest_that_drover_starts_inherits_no_password() {
    let Some(stage) = Stage::new(17, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = stage.plan("starts", &[("convert: never", "convert: never\nstart: true")]);
    let output = stage.run(&["migrate", &plan]);
    if output.err.contains("is not installed") {
        return println!("skipped: {}", output.err);
    }
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let folder = drover_qemu::VmFolder::new(stage.vms().join("one"));
    let running = drover_qemu::find_running(&folder).unwrap().unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", running.pid)).unwrap();
    running.stop(std::time::Duration::ZERO).unwrap();
    let names: Vec<_> = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    assert!(names.iter().any(|name| name.starts_with("PATH=")), "{names:?}");
    assert!(
        !names.iter().any(|name| name.contains("DROVER_") || name.contains(drover_lab::PASSWORD)),
        "{names:?}"
    );
}

/// A QEMU that emulates where it is to use KVM, and ends three seconds later as one whose KVM fails.
const FAILING_QEMU: &str = "PATH=${PATH#*:}
doomed= before=
for word; do
  shift
  case $before in
    -D) log=$word ;;
    -pidfile) pid=$word ;;
    -accel) [ $word = kvm ] && word=tcg doomed=1 ;;
  esac
  before=$word
  set -- \"$@\" \"$word\"
done
fail() {
  for second in 1 2 3 4 5 6 7 8 9; do [ -s \"$pid\" ] && break; sleep 1; done
  sleep 3
  echo 'error: kvm run failed Bad address' >>\"$log\"
  kill -9 $(cat \"$pid\")
}
[ -z \"$doomed\" ] || fail >/dev/null 2>&1 </dev/null &
exec qemu-system-x86_64 \"$@\"";

#[test]
fn a_guest_that_kvm_gives_up_some_seconds_after_its_start_goes_back_to_its_source() {
    let Some(stage) = Stage::new(18, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    std::fs::create_dir(stage.path("bin")).unwrap();
    drover_lab::put_script(&stage.path("bin").join("qemu-system-x86_64"), FAILING_QEMU).unwrap();
    let path = format!("{}:{}", stage.path("bin").display(), std::env::var("PATH").unwrap());
    let edits = [("convert: never", "convert: never\nstart: true"), ("accelerator: tcg", "accelerator: kvm")];
    let mut command = stage.drover.command(&["migrate", &stage.plan("kvm", &edits)]);
    command.env("PATH", &path).env_remove("DROVER_ACCEL");
    let failed = drover_stage::moves::run(command);
    if failed.err.contains("is not installed") || failed.err.contains("/dev/kvm") {
        return println!("skipped: {}", failed.err);
    }
    assert_ne!(failed.code, Some(0), "{}{}", failed.out, failed.err);
    assert!(failed.err.contains("kvm run failed Bad address"), "{}", failed.err);
    assert!(failed.err.contains("accelerator: tcg"), "{}", failed.err);
    assert_eq!(stage.sim.vm("one").unwrap()["power"], "poweredOn");
    let folder = drover_qemu::VmFolder::new(stage.vms().join("one"));
    assert!(drover_qemu::find_running(&folder).unwrap().is_none());
}

#[test]
fn a_collector_gets_one_trace_for_each_vm_and_one_that_does_not_answer_fails_nothing() {
    let Some(stage) = Stage::new(19, |folder| {
        let a = disk_file(folder, "a", MIB);
        vec![vm("one", &[&a]), vm("two", &[&a])]
    }) else {
        return;
    };
    let migrate = |plan: &str, url: &str| {
        let output = stage
            .drover
            .command(&["migrate", plan])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            // One that is waited for until it answers takes an hour.
            .env("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{words}");
        words
    };
    let collector = Collector::start();
    let words = migrate(&stage.plan("traced", &[]), &collector.url);
    assert!(!words.contains("traces"), "{words}");
    let spans = collector.spans();
    let status: serde_json::Value =
        serde_json::from_str(&stage.run(&["status", "traced", "--json"]).out).unwrap();
    let vms = status["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 2);
    for vm in vms {
        let own: Vec<_> = spans.iter().filter(|span| vm["trace_id"] == span["traceId"]).collect();
        for name in ["migrate", "check", "snapshot", "copy", "copy disk", "verify", "clean up"] {
            assert_eq!(own.iter().filter(|span| span["name"] == name).count(), 1, "{name} in {own:#?}");
        }
        for span in &own {
            let is_known = own.iter().any(|it| it["spanId"] == span["parentSpanId"]);
            assert_eq!(is_known, span["name"] != "migrate", "{own:#?}");
        }
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let began = std::time::Instant::now();
    let words = migrate(&stage.plan("untraced", &[("/vms\n", "/others\n")]), &url);
    assert!(words.contains("note: not all traces were sent"), "{words}");
    assert!(began.elapsed().as_secs() < 300, "{:?}", began.elapsed());
}
