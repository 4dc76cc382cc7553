//! Guests are looked into before they move, and again when their images are here: by files on disks that are made without
//! mounting anything.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Stdio;

use drover_lab::windows::Windows;
use drover_stage::debian::{
    HAS_DRIVERS, VIRTIO, debian, disk_of, partition, put_converter, put_converter_tried, put_windows_tools,
    puts_loader, uefi_debian, windows_of,
};
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, same_bytes, vm, with};
use serde_json::{Value, json};

/// The ids of what was found in a VM.
fn found(checked: &Value, vm: &str) -> Vec<String> {
    let inspected = checked["inspected"].as_array().unwrap();
    let of_vm = inspected.iter().find(|it| it["vm"] == vm).unwrap_or_else(|| panic!("{vm} in {checked:#}"));
    let concerns = of_vm["concerns"].as_array().unwrap();
    concerns.iter().map(|it| it["id"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_check_tells_what_would_keep_a_guest_from_booting_and_leaves_the_source_as_it_was() {
    let Some(stage) = Stage::new(171, |folder| {
        let vmware = debian(folder, "vmware", &[]);
        let data = disk_file(folder, "data", 4 * MIB);
        let locked = folder.join("locked");
        partition(
            &locked,
            32 * MIB,
            "label: gpt\nstart=1MiB size=8MiB type=U\nstart=9MiB size=20MiB type=L\n",
        );
        let mut bytes = std::fs::read(&locked).unwrap();
        bytes[9 * MIB as usize..][..6].copy_from_slice(b"LUKS\xba\xbe");
        std::fs::write(&locked, bytes).unwrap();
        let ready = debian(folder, "ready", &VIRTIO);
        vec![
            with(vm("vmware", &[&vmware, &data]), json!({"power": "on"})),
            with(vm("locked", &[&locked]), json!({"nics": []})),
            with(vm("ready", &[&ready]), json!({"nics": []})),
        ]
    }) else {
        return;
    };
    let plan = stage.plan("look", &[]);
    let before = stage.source_state();
    let checked = stage.run(&["plan", "check", &plan, "--inspect", "--json"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    let json = checked.json().unwrap();
    let of_debian = [
        "initramfs-without-driver",
        "fstab-by-path",
        "interface-names",
        "vmware-tools-inside",
        "vendor-services-inside",
    ];
    let seen = found(&json, "vmware");
    assert!(of_debian.iter().all(|id| seen.iter().any(|it| it == id)), "{seen:?}");
    assert!(!found(&json, "ready").contains(&"initramfs-without-driver".to_string()), "{json:#}");
    assert_eq!(found(&json, "locked"), ["encrypted-inside"]);
    let words = stage.run(&["plan", "check", &plan, "--inspect"]).out;
    for word in [
        "vmware: Debian GNU/Linux 12 (bookworm), booted by GRUB, root UUID=1-2 (looked into in",
        "/boot/initrd.img-6.1.0 has no driver virtio_blk",
        "/dev/sdb1 (/data)",
        "  network: ens192 with 192.0.2.7/24 in /etc/network/interfaces: holds if the name is kept, 00:50:56:aa:00:01 may",
        "MACAddress=00:50:56:aa:00:01",
        "partition 2 encrypted with LUKS",
    ] {
        assert!(words.contains(word), "'{word}' in {words}");
    }
    assert_eq!(stage.source_state(), before, "power, snapshots and files are as they were");
    let of_vm = |name: &str| {
        json["inspected"].as_array().unwrap().iter().find(|it| it["vm"] == name).unwrap().clone()
    };
    let expected = json!({"if_named": {"name": "ens192", "mac": "00:50:56:aa:00:01"}});
    assert_eq!(of_vm("vmware")["network"][0]["stays"], expected);
    assert_eq!(of_vm("locked")["network"], json!([]));
    let without = stage.run(&["plan", "check", &plan, "--json"]).json().unwrap();
    assert!(without["inspected"].is_null(), "nothing is looked into unasked");
}

#[test]
fn a_check_tells_what_the_registry_of_windows_says_and_what_keeps_it_from_booting() {
    let mut is_made = true;
    let stage = Stage::new(221, |folder| {
        let mut windows = |name: &str, guest_id: &str, windows: &Windows, more: Value| {
            let disk = windows_of(folder, name, windows);
            is_made &= disk.is_some();
            let disk = disk.unwrap_or_else(|| disk_file(folder, name, 2 * MIB));
            with(with(vm(name, &[&disk]), json!({"guest_id": guest_id})), more)
        };
        let server = Windows::server();
        let asleep = server
            .clone()
            .and_driver("viostor")
            .and_system("[ControlSet001\\Services\\NTDS]\n\"Start\"=dword:00000002\n")
            .and_file("hiberfil.sys", &[&b"hibr"[..], &[0; 4096]].concat());
        let locked = windows("locked", "windows2019srv_64Guest", &server, json!({"nics": []}));
        let mut bytes = std::fs::read(folder.join("locked")).unwrap();
        bytes[MIB as usize + 3..][..8].copy_from_slice(b"-FVE-FS-");
        std::fs::write(folder.join("locked"), bytes).unwrap();
        vec![
            windows("vmware", "windows2019srv_64Guest", &server, json!({"power": "on"})),
            windows("asleep", "otherGuest64", &asleep, json!({"nics": []})),
            locked,
        ]
    });
    let Some(stage) = stage.filter(|_| is_made) else { return };
    let plan = stage.plan("look", &[]);
    let before = stage.source_state();
    let checked = stage.run(&["plan", "check", &plan, "--inspect", "--json"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    let json = checked.json().unwrap();
    assert_eq!(
        found(&json, "vmware"),
        ["windows-without-driver", "fixed-addresses", "vmware-tools-inside", "vendor-services-inside"]
    );
    assert_eq!(
        found(&json, "asleep"),
        [
            "guest-id-differs",
            "hibernated",
            "domain-controller",
            "vmware-tools-inside",
            "vendor-services-inside"
        ]
    );
    assert_eq!(found(&json, "locked"), ["encrypted-inside"]);
    let all = json["vms"].to_string();
    assert!(
        !all.contains("vmware: has a guest id of Windows")
            && !all.contains("needs-drivers\",\"subject\":\"vmware")
    );
    let words = stage.run(&["plan", "check", &plan, "--inspect"]).out;
    for word in [
        "vmware: Windows Server 2019 Standard (build 17763) (looked into in",
        "  drivers of virtio: none\n",
        "  network: Ethernet0 with 192.0.2.7/24: does not hold, Windows binds it to the card that it had",
        "its driver viostor is not installed, so Windows would stop with INACCESSIBLE_BOOT_DEVICE",
        "`addresses: {\"00:50:56:aa:00:01\": \"192.0.2.7/24 192.0.2.1 192.0.2.53 192.0.2.54\"}`",
        "  drivers of virtio: viostor (starts at boot)\n",
        "holds Windows Server 2019 Standard (build 17763), and its guest id otherGuest64 says otherwise",
        "partition 1 encrypted with BitLocker",
    ] {
        assert!(words.contains(word), "'{word}' in {words}");
    }
    assert_eq!(stage.source_state(), before, "power, snapshots and files are as they were");
}

/// Runs commands beside a converter that has what Windows wants; gives their exit codes and what they told.
fn with_windows_tools(stage: &Stage) -> impl Fn(&[&str]) -> (Option<i32>, String) {
    let tools = stage.path("tools");
    let path = put_converter(
        &tools,
        &format!("[ \"$3\" ] || exit 0\necho x >>\"$(dirname \"$0\")/runs\"\n{HAS_DRIVERS}"),
    );
    let drivers = put_windows_tools(&tools);
    move |words| {
        let output = stage.drover.command(words).env("PATH", &path).envs(drivers.clone()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }
}

/// How many guests that converter converted.
fn conversions(stage: &Stage) -> usize {
    std::fs::read_to_string(stage.path("tools").join("runs")).unwrap().lines().count()
}

#[test]
fn a_windows_is_judged_by_what_was_found_in_it() {
    let mut is_made = true;
    let stage = Stage::new(222, |folder| {
        let mut windows = |name: &str, guest_id: &str, build: &str| {
            let mut windows = Windows::server();
            windows.software = windows.software.replace("17763", build);
            let disk = windows_of(folder, name, &windows);
            is_made &= disk.is_some();
            let disk = disk.unwrap_or_else(|| disk_file(folder, name, 2 * MIB));
            with(vm(name, &[&disk]), json!({"guest_id": guest_id, "nics": []}))
        };
        vec![
            windows("old", "windows9Server64Guest", "14393"),
            windows("new", "windows9Server64Guest", "17763"),
            windows("other", "otherGuest64", "17763"),
        ]
    });
    let Some(stage) = stage.filter(|_| is_made) else { return };
    let run = with_windows_tools(&stage);
    let plan = stage.plan("found", &[("convert: never", "convert: auto")]);
    let (code, told) = run(&["plan", "check", &plan]);
    assert_eq!(code, Some(0), "by guest ids the drivers of 2019 may do for all: {told}");
    let (code, told) = run(&["plan", "check", &plan, "--inspect"]);
    assert_eq!(code, Some(7), "{told}");
    let lack = "old needs conversion: ";
    assert!(told.contains(lack) && told.contains("found in it, build 14393 (2k16)"), "{told}");
    assert!(!told.contains("new needs conversion") && !told.contains("other needs"), "{told}");
    let plan = stage.plan("moved", &[("convert: never", "convert: auto"), ("  - name: \"old\"\n", "")]);
    let (code, told) = run(&["migrate", &plan]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(conversions(&stage), 2, "the one of no known guest id, too: {}", stage.report(&plan));
}

#[test]
fn an_older_guest_id_keeps_no_newer_windows_from_its_move_once_it_was_looked_into() {
    let mut is_made = true;
    let stage = Stage::new(229, |folder| {
        let disk = windows_of(folder, "aged", &Windows::server());
        is_made &= disk.is_some();
        let disk = disk.unwrap_or_else(|| disk_file(folder, "aged", 2 * MIB));
        vec![with(vm("aged", &[&disk]), json!({"guest_id": "winNetStandard64Guest", "nics": []}))]
    });
    let Some(stage) = stage.filter(|_| is_made) else { return };
    let plan = stage.plan("aged", &[("convert: never", "convert: auto")]);
    let run = with_windows_tools(&stage);
    let run = |words: &[&str]| run(&[words, &[plan.as_str()]].concat());
    let (code, told) = run(&["plan", "check"]);
    assert!(code == Some(7) && told.contains("the guest id winNetStandard64Guest (2k3)"), "{told}");
    assert!(told.contains("or have `drover plan check --inspect` find which Windows it is"), "{told}");
    let (code, told) = run(&["plan", "check", "--inspect"]);
    assert_eq!(code, Some(0), "what is in it is a Windows of 2019: {told}");
    let (code, told) = run(&["plan", "check"]);
    assert_eq!(code, Some(0), "that is kept: {told}");
    let (code, told) = run(&["migrate"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(conversions(&stage), 1, "{told}");
}

#[test]
fn a_check_that_is_killed_leaves_a_snapshot_that_the_next_one_removes() {
    let Some(stage) = Stage::new(172, |folder| vec![vm("one", &[&debian(folder, "one", &[])])]) else {
        return;
    };
    let plan = stage.plan("killed", &[]);
    let snapshots = || stage.sim.vm("one").unwrap()["snapshots"].as_array().map_or(0, Vec::len);
    let slow = json!({"path": "/folder", "match": "flat", "delay_ms": 600_000, "count": -1});
    stage.sim.post("/fault/http", slow).unwrap();
    let mut command = stage.drover.command(&["plan", "check", &plan, "--inspect"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the snapshot", PATIENCE, || snapshots() == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    stage.sim.post("/fault/clear", json!({})).unwrap();
    assert_eq!(snapshots(), 1, "nobody was left to remove it");
    let checked = stage.run(&["plan", "check", &plan, "--inspect"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    assert!(checked.out.contains("Debian GNU/Linux 12"), "{}", checked.out);
    assert_eq!(snapshots(), 0);
}

#[test]
fn what_cannot_be_frozen_is_told_and_stops_no_check() {
    let Some(stage) = Stage::new(173, |folder| vec![vm("one", &[&debian(folder, "one", &[])])]) else {
        return;
    };
    let plan = stage.plan("refused", &[]);
    let fault = json!({"method": "CreateSnapshot_Task", "fault": "NoPermission", "count": -1});
    stage.sim.post("/fault/soap", fault).unwrap();
    let checked = stage.run(&["plan", "check", &plan, "--inspect"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    assert!(checked.err.contains("one was not looked into"), "{}{}", checked.out, checked.err);
}

/// A plan that converts where it is needed, moved with a converter that only says that it did; gives the notes of the VM.
fn moved(stage: &Stage, name: &str) -> String {
    let script = format!("cp \"$3\" \"$(dirname \"$0\")/told.xml\"\n{HAS_DRIVERS}");
    let path = put_converter(&stage.path("tools"), &script);
    let plan = stage.plan(name, &[("convert: never", "convert: auto")]);
    let moved = stage.drover.command(&["migrate", &plan]).env("PATH", &path).output().unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    stage.report(&plan).to_string()
}

#[test]
fn an_image_that_lacks_drivers_is_converted_whatever_its_guest_id_says() {
    let Some(stage) = Stage::new(174, |folder| {
        vec![with(vm("vmware", &[&debian(folder, "vmware", &[])]), json!({"nics": []}))]
    }) else {
        return;
    };
    let report = moved(&stage, "bare");
    assert!(report.contains("converted; log in"), "{report}");
    let told = std::fs::read_to_string(stage.path("tools/told.xml")).unwrap();
    assert!(told.contains("<target dev='sda' bus='scsi'/>"), "the source's bus: {told}");
}

/// A Debian that boots from virtio as it is, and whose network settings are for VMware's name of its card.
fn ready(folder: &Path, name: &str) -> Value {
    let disk = debian(folder, name, &VIRTIO);
    // Without the line that names a disk by its path.
    let tree = folder.join(format!("{name}.tree"));
    std::fs::write(tree.join("etc/fstab"), "UUID=1-2 / ext4 defaults 0 1\n").unwrap();
    std::fs::remove_file(&disk).unwrap();
    vm(name, &[&disk_of(folder, name, &tree)])
}

#[test]
fn an_image_that_has_drivers_and_no_paths_is_left_as_it_is() {
    let Some(stage) = Stage::new(175, |folder| {
        vec![with(ready(folder, "ready"), json!({"nics": []})), ready(folder, "named")]
    }) else {
        return;
    };
    let report = moved(&stage, "ready");
    let left = "not converted: its /boot/initrd.img-6.1.0 has the driver of its disks";
    assert!(report.contains(&format!("{left}\"")), "{report}");
    let named = format!(
        "{left}, BUT its network settings are for ens192, a name that its card may lose, and this virt-v2v-in-place puts no files into guests"
    );
    assert!(report.contains(&named), "{report}");
    assert!(!stage.path("tools/told.xml").exists(), "the converter was not asked");
}

#[test]
fn a_guest_that_boots_is_converted_so_that_it_keeps_its_address_and_moves_where_that_fails() {
    let Some(stage) = Stage::new(177, |folder| {
        let nics = json!([{"network": "VM Network", "mac": "00:50:56:aa:00:02", "model": "vmxnet3"}]);
        vec![ready(folder, "keeps"), with(ready(folder, "fails"), json!({"nics": nics}))]
    }) else {
        return;
    };
    let tells = "[ \"$1\" != --help ] || { echo --write; exit; }\ncase \"$5\" in */fails/*) echo unable; exit 1;; esac\n\
                 printf '%s\\n' \"$@\" >\"$(dirname \"$0\")/told\"";
    let path = put_converter(&stage.path("tools"), &format!("{tells}\n{HAS_DRIVERS}"));
    let plan = stage.plan("address", &[("convert: never", "convert: auto")]);
    let moved = stage.drover.command(&["migrate", &plan]).env("PATH", &path).output().unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    let told = std::fs::read_to_string(stage.path("tools/told")).unwrap();
    assert!(told.contains("10-drover-ens192.link:[Match]\nMACAddress=00:50:56:aa:00:01"), "{told}");
    let report = stage.report(&plan).to_string();
    assert!(report.contains("interfaces that keep their names: ens192 of 00:50:56:aa:00:01"), "{report}");
    assert!(report.contains("not converted: its network settings are for ens192"), "{report}");
    assert!(report.contains("BUT conversion of fails"), "{report}");
}

#[test]
fn interfaces_keep_the_names_that_the_slots_of_their_cards_gave_them() {
    let Some(stage) = Stage::new(176, |folder| {
        debian(folder, "two", &[]);
        let tree = folder.join("two.tree");
        let interfaces = "iface ens192 inet static\n  address 192.0.2.7/24\niface ens224 inet dhcp\niface ens256 inet dhcp\n";
        std::fs::write(tree.join("etc/network/interfaces"), interfaces).unwrap();
        std::fs::remove_file(folder.join("two")).unwrap();
        let nic = |mac: &str, slot: u32| json!({"network": "VM Network", "mac": mac, "slot": slot});
        let nics = [nic("00:50:56:aa:00:01", 224), nic("00:50:56:aa:00:02", 192)];
        vec![with(vm("two", &[&disk_of(folder, "two", &tree)]), json!({"nics": nics}))]
    }) else {
        return;
    };
    let tells =
        "[ \"$1\" != --help ] || { echo --write; exit; }\nprintf '%s\\n' \"$@\" >\"$(dirname \"$0\")/told\"";
    let path = put_converter(&stage.path("tools"), &format!("{tells}\n{HAS_DRIVERS}"));
    let plan = stage.plan("names", &[("convert: never", "convert: auto")]);
    let moved = stage.drover.command(&["migrate", &plan]).env("PATH", &path).output().unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    let told = std::fs::read_to_string(stage.path("tools/told")).unwrap();
    for (name, mac) in [("ens192", "00:50:56:aa:00:02"), ("ens224", "00:50:56:aa:00:01")] {
        let file = format!(
            "/etc/systemd/network/10-drover-{name}.link:[Match]\nMACAddress={mac}\n\n[Link]\nName={name}\n"
        );
        assert!(told.contains(&file), "{told}");
    }
    assert!(!told.contains("ens256"), "no card is in that slot: {told}");
    let report = stage.report(&plan).to_string();
    assert!(
        report.contains("interfaces that keep their names: ens192 of 00:50:56:aa:00:02, ens224 of"),
        "{report}"
    );
}

#[test]
fn work_for_the_first_boot_is_given_to_the_converter_and_refused_where_it_cannot_be_done() {
    let Some(stage) = Stage::new(179, |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &VIRTIO)]), json!({"nics": []}))]
    }) else {
        return;
    };
    let tells = "[ \"$1\" != --help ] || { cat \"$(dirname \"$0\")/help\"; exit; }\nprintf '%s\\n' \"$@\" >\"$(dirname \"$0\")/told\"";
    let path = put_converter(&stage.path("tools"), &format!("{tells}\n{HAS_DRIVERS}"));
    let plan = |name: &str, convert: &str| {
        let vm = "- name: \"one\"\n    first_boot: {scripts: [first.sh], guest_agent: agent.deb}";
        stage.plan(name, &[("convert: never", convert), ("- name: \"one\"", vm)])
    };
    let run = |words: &[&str]| {
        let output = stage.drover.command(words).env("PATH", &path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let refuses = |plan: &str, word: &str| {
        let (is_fine, words) = run(&["plan", "check", plan]);
        assert!(!is_fine && words.contains(word), "'{word}' in {words}");
    };
    let good = plan("first", "convert: auto");
    std::fs::write(stage.path("tools/help"), "-i\n").unwrap();
    refuses(&good, "first.sh is for the first boot, and cannot be read");
    std::fs::write(stage.path("first.sh"), "#!/bin/sh\n").unwrap();
    std::fs::write(stage.path("agent.deb"), "x").unwrap();
    refuses(&good, "this virt-v2v-in-place puts no files into guests");
    std::fs::write(stage.path("tools/help"), "--write\n").unwrap();
    refuses(&plan("never", "convert: never"), "one has work for its first boot, and is not to be converted");
    let (is_fine, words) = run(&["migrate", &good]);
    assert!(is_fine, "{words}");
    let told = std::fs::read_to_string(stage.path("tools/told")).unwrap();
    let agent = format!("--upload\n{}:/var/lib/drover/guest-agent.deb\n", stage.path("agent.deb").display());
    assert!(told.contains(&agent), "{told}");
    assert!(told.contains(&format!("--firstboot\n{}\n", stage.path("first.sh").display())), "{told}");
    let report = stage.report(&good).to_string();
    assert!(report.contains("; for its first boot: ") && report.contains("first.sh"), "{report}");
}

/// The tools of a guest that is off tell nothing, and a run that goes on then knows its addresses all the same.
#[test]
fn windows_gets_the_addresses_that_its_tools_told_while_it_ran() {
    let Some(stage) = Stage::new(181, |folder| {
        let nics = json!([
            {"network": "VM Network", "mac": "00:50:56:aa:00:01", "addresses": ["192.0.2.7/24", "192.0.2.8/24"], "gateway": "192.0.2.1", "dns": ["192.0.2.53"]},
            {"network": "VM Network", "mac": "00:50:56:aa:00:02"},
        ]);
        let about =
            json!({"guest_id": "windows2019srv_64Guest", "power": "on", "tools": "running", "nics": nics});
        vec![with(vm("win", &[&disk_file(folder, "a", 24 * MIB)]), about)]
    }) else {
        return;
    };
    let tells = "[ \"$1\" != --help ] || { echo --write; exit; }\n\
                 while [ \"$1\" ]; do [ \"$1\" != --firstboot ] || cat \"$2\" >>\"$(dirname \"$0\")/told\"; shift; done";
    let tools = stage.path("tools");
    let path = put_converter(&tools, &format!("{tells}\n{HAS_DRIVERS}"));
    let command = |words: &[&str]| {
        let mut command = stage.drover.command(words);
        command.env("PATH", &path).envs(put_windows_tools(&tools));
        command
    };
    let run = |words: &[&str]| {
        let output = command(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let plain = stage.plan("plain", &[("convert: never", "convert: auto")]);
    let (code, text) = run(&["plan", "check", &plain]);
    assert!(
        code == Some(0)
            && text
                .contains("has fixed addresses (192.0.2.7/24, 192.0.2.8/24), which stay with its old card"),
        "{text}"
    );
    let plan = stage.plan("keep", &[("convert: never", "convert: auto\nkeep_addresses: true")]);
    stage.sim.post("/fault/http", json!({"path": "/folder", "bytes_per_s": 4 * MIB, "count": -1})).unwrap();
    let mut running = command(&["migrate", &plan]).spawn().unwrap();
    wait_until("the guest is off and its disk is copied", PATIENCE, || {
        stage.sim.vm("win").unwrap()["power"] != "on" && stage.served() > 4 * MIB
    });
    running.kill().unwrap();
    running.wait().unwrap();
    stage.sim.post("/fault/clear", json!({})).unwrap();
    let (code, text) = run(&["resume", "keep"]);
    assert_eq!(code, Some(0), "{text}");
    let told = std::fs::read_to_string(tools.join("told")).unwrap();
    assert!(told.contains("\ncall :find 00:50:56:AA:00:01\nif defined CARD call :card0\nexit"), "{told}");
    assert!(told.contains(" address=192.0.2.7 mask=255.255.255.0 gateway=192.0.2.1 "), "{told}");
    assert!(
        told.contains(" address=192.0.2.8 mask=255.255.255.0\n") && told.contains(" address=192.0.2.53 "),
        "{told}"
    );
}

#[test]
fn the_converters_appliance_is_tried_before_anything_is_touched_and_once() {
    let Some(stage) = Stage::new(183, |folder| {
        let disks = ["one", "two"].map(|name| debian(folder, name, &[]));
        let vm = |name: &str, disk: &Path| with(vm(name, &[disk]), json!({"nics": [], "power": "on"}));
        vec![vm("one", &disks[0]), vm("two", &disks[1])]
    }) else {
        return;
    };
    let tools = stage.path("tools");
    let tries = "echo x >>\"$(dirname \"$0\")/tries\"";
    let run = |words: &[&str]| {
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        let output = stage.drover.command(words).env("PATH", path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let tried = || std::fs::read_to_string(tools.join("tries")).unwrap_or_default().lines().count();
    let before = stage.source_state();
    let plan = stage.plan("tried", &[("convert: never", "convert: always")]);
    let broken = format!(
        "{tries}; echo 'virt-v2v-in-place: error: /usr/bin/supermin exited with error status 1' >&2; exit 1"
    );
    put_converter_tried(&tools, &broken, HAS_DRIVERS);
    for words in [["plan", "check", &plan].as_slice(), &["migrate", &plan]] {
        let (code, text) = run(words);
        assert_eq!(code, Some(7), "{words:?}: {text}");
        for part in [
            "one needs conversion: the appliance of virt-v2v-in-place",
            "supermin exited",
            "install a kernel",
        ] {
            assert!(text.contains(part), "{words:?}: '{part}' in {text}");
        }
    }
    assert_eq!(tried(), 2, "once for both VMs, by the check and by the run");
    assert_eq!(stage.source_state(), before);
    assert!(!stage.vms().exists(), "nothing was made");
    // It is repaired, and the program the same; then it is known to work.
    let works = format!(
        "{tries}; echo 'virt-v2v-in-place: error: inspection could not detect the source guest' >&2; exit 1"
    );
    put_converter_tried(&tools, &works, HAS_DRIVERS);
    for words in [["plan", "check", &plan].as_slice(), &["plan", "check", &plan], &["resume", "tried"]] {
        let (code, text) = run(words);
        assert_eq!(code, Some(0), "{words:?}: {text}");
    }
    assert_eq!(tried(), 3, "once, and remembered");
    let report = stage.report(&plan);
    assert!(report["vms"].as_array().unwrap().iter().all(|vm| vm["state"] == "done"), "{report:#}");
}

#[test]
fn a_conversion_that_only_a_look_inside_asks_for_is_refused_where_it_cannot_be_done() {
    if drover_qemu::can_convert().is_ok() {
        println!("skipped: this machine has a converter outside of PATH");
        return;
    }
    let Some(stage) = Stage::new(187, |folder| {
        let off = json!({"nics": []});
        let unknown = disk_file(folder, "unknown", 2 * MIB);
        vec![
            with(vm("bare", &[&debian(folder, "bare", &[])]), json!({"nics": [], "power": "on"})),
            with(vm("paths", &[&debian(folder, "paths", &VIRTIO)]), off.clone()),
            with(vm("unknown", &[&unknown]), json!({"nics": [], "guest_id": "rhel9_64Guest"})),
        ]
    }) else {
        return;
    };
    let tools = stage.path("tools");
    let run = |words: &[&str]| {
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        let output = stage.drover.command(words).env("PATH", path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let says = |words: &[&str], code: i32, parts: &[&str]| {
        let (ended, text) = run(words);
        assert_eq!(ended, Some(code), "{words:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{words:?}: '{part}' in {text}");
        }
        text
    };
    let plan = stage.plan("needs", &[("convert: never", "convert: auto")]);
    let before = stage.source_state();
    let unsure = "1 VM may not boot without conversion (unknown), which guest ids do not tell, and virt-v2v-in-place is";
    let blind =
        says(&["plan", "check", &plan], 0, &[unsure, "`drover plan check --inspect` looks into them"]);
    assert!(!blind.contains("needs conversion"), "{blind}");
    let needs = "bare: needs conversion (its /boot/initrd.img-6.1.0 has no driver virtio_blk): ";
    let look = ["plan", "check", &plan, "--inspect"];
    let is_not_there = format!("{needs}virt-v2v-in-place is not installed");
    let by_path = "paths: is to be converted (it finds disks by paths that change with their bus: /dev/sdb1 (/data)), and virt-v2v";
    let told = says(&look, 7, &[&is_not_there, by_path, "the plan has 1 error;"]);
    assert!(!told.contains("may not boot without conversion"), "it was looked into: {told}");
    let never = stage.plan("never", &[]);
    says(&["plan", "check", &never, "--inspect"], 0, &[]);

    put_converter_tried(&tools, "echo 'libguestfs: error: no kernel' >&2; exit 1", HAS_DRIVERS);
    says(&look, 7, &[&format!("{needs}the appliance of virt-v2v-in-place"), "paths: needs conversion"]);
    put_converter(&tools, HAS_DRIVERS);
    says(&look, 0, &["the plan is fine"]);
    assert_eq!(stage.source_state(), before, "power, snapshots and files are as they were");
    assert!(!stage.vms().exists(), "nothing was made");

    // The converter goes meanwhile: a guest that would not boot does not arrive, also where it is not to be started.
    std::fs::remove_file(tools.join("virt-v2v-in-place")).unwrap();
    says(&["migrate", &plan], 7, &["has no driver virtio_blk, but virt-v2v-in-place is not installed"]);
    let states = || {
        let report = stage.report(&plan);
        let vms = report["vms"].as_array().unwrap().iter();
        vms.map(|vm| (vm["name"].as_str().unwrap().to_string(), vm["state"] == "done")).collect::<Vec<_>>()
    };
    let done =
        |bare| [("bare", bare), ("paths", true), ("unknown", true)].map(|(name, it)| (name.to_string(), it));
    assert_eq!(states(), done(false));
    put_converter(&tools, HAS_DRIVERS);
    says(&["resume", "needs"], 0, &[]);
    assert_eq!(states(), done(true));
}

#[test]
fn a_uefi_guest_without_a_fallback_loader_is_converted_so_that_its_firmware_starts_it() {
    let mut esp = None;
    let stage = Stage::new(197, |folder| {
        let mut uefi = |name: &str| {
            let (disk, with_loader) = uefi_debian(folder, name)?;
            esp = Some(with_loader);
            Some(with(vm(name, &[&disk]), json!({"nics": [], "firmware": "efi"})))
        };
        ["gets", "fails", "still", "bare"].iter().filter_map(|name| uefi(name)).collect()
    });
    let (Some(stage), Some(esp)) = (stage, esp) else { return };
    let tools = stage.path("tools");
    let skips = "case \"$5\" in */fails/*) echo unable; exit 1;; */still/*) echo This guest has virtio drivers installed.; exit;; esac";
    let path = put_converter(&tools, &format!("{skips}\n{}", puts_loader(&esp)));
    let run = |words: &[&str]| {
        let output = stage.drover.command(words).env("PATH", &path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let only = |name: &str, names: &[&str]| {
        let left_out: Vec<String> = ["gets", "fails", "still", "bare"]
            .iter()
            .filter(|it| !names.contains(it))
            .map(|it| format!("  - name: \"{it}\"\n"))
            .collect();
        let edits = left_out.iter().map(|line| (line.as_str(), ""));
        stage.plan(name, &[("convert: never", "convert: auto")].into_iter().chain(edits).collect::<Vec<_>>())
    };
    let plan = only("loader", &["gets", "fails", "still"]);
    let (code, told) = run(&["plan", "check", &plan, "--inspect"]);
    assert!(code == Some(0) && told.contains("puts the loader there"), "{told}");
    let (code, told) = run(&["migrate", &plan]);
    assert_eq!(code, Some(0), "{told}");
    let report = stage.report(&plan).to_string().replace(r"\\", r"\");
    for words in [
        r"; its firmware finds \EFI\BOOT\BOOTX64.EFI now",
        r"not converted: it has no \EFI\BOOT\BOOTX64.EFI, so its firmware would start nothing, BUT conversion of fails",
        r"; BUT there still is no \EFI\BOOT\BOOTX64.EFI",
    ] {
        assert!(report.contains(words), "'{words}' in {report}");
    }
    let image = std::fs::read(stage.image("gets", 0)).unwrap();
    assert!(image[MIB as usize..][..8 * MIB as usize] == std::fs::read(&esp).unwrap());
    assert!(same_bytes(&stage.image("fails", 0), &stage.path("fails")), "it is as it was copied");
    // One that writes no files into guests.
    put_converter(&tools, HAS_DRIVERS);
    let plan = only("bare", &["bare"]);
    let (code, told) = run(&["migrate", &plan]);
    assert_eq!(code, Some(0), "{told}");
    let report = stage.report(&plan).to_string();
    let words = "so its firmware would start nothing, and this virt-v2v-in-place puts no files into guests";
    assert!(
        report.contains("has the driver of its disks, BUT it has no ") && report.contains(words),
        "{report}"
    );
}
