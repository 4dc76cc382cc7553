//! The real virt-v2v-in-place, called by drover, on a disk that it takes for Windows, and on a Debian as VMware has it. Nobody here
//! has a Windows to boot: what is looked at is what a conversion leaves in the registry.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use drover_lab::v2v::{V2v, make_virtio_win, make_windows, windows_file, windows_folder};
use drover_stage::debian::guest_of_vmware;
use drover_stage::process::wait_until;
use drover_stage::{Stage, vm, with};
use serde_json::json;

struct Windows {
    stage: Stage,
    v2v: V2v,
}

impl Windows {
    /// A plan's source with one Windows; `None`, after a printed line, without simulator or converter.
    fn new(number: u8) -> Option<Windows> {
        let v2v = V2v::find().unwrap()?;
        let stage = Stage::new(number, |folder| {
            let disk = folder.join("win");
            make_windows(&v2v, &disk).unwrap();
            let nics = json!([{"network": "VM Network", "mac": "00:50:56:aa:00:01"}]);
            vec![with(vm("win", &[&disk]), json!({"guest_id": "windows9_64Guest", "nics": nics}))]
        })?;
        Some(Windows { stage, v2v })
    }

    fn drivers(&self) -> PathBuf {
        self.stage.path("virtio-win")
    }

    fn drover(&self, words: &[&str]) -> Output {
        let path = format!("{}:{}", self.v2v.bin().display(), std::env::var("PATH").unwrap());
        let mut command = self.stage.drover.command(words);
        command.env("PATH", path).env("VIRTIO_WIN", self.drivers());
        command.env("VIRT_TOOLS_DATA_DIR", self.v2v.services()).output().unwrap()
    }

    fn fine(&self, words: &[&str]) -> String {
        let output = self.drover(words);
        let text = told(&output);
        assert!(output.status.success(), "{words:?}: {text}");
        text
    }

    /// A key of the moved machine's registry.
    fn key(&self, key: &str) -> String {
        let hive = self.stage.path("hive");
        let content = windows_file(&self.stage.image("win", 0), "/Windows/System32/config/SYSTEM").unwrap();
        std::fs::write(&hive, content).unwrap();
        self.v2v.key(&hive, key).unwrap_or_default()
    }

    fn has(&self, path: &str) -> bool {
        windows_file(&self.stage.image("win", 0), path).is_ok()
    }
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const VIOSTOR: &str = r"\ControlSet001\Services\viostor";
const VIOSCSI: &str = r"\ControlSet001\Services\vioscsi";

#[test]
fn windows_without_its_drivers_is_not_converted_and_with_them_it_is() {
    let Some(it) = Windows::new(176) else { return };
    let plan = it.stage.plan("windows", &[("convert: never", "convert: auto")]);
    let refused = it.drover(&["plan", "check", &plan]);
    assert!(!refused.status.success() && told(&refused).contains("virtio-win"), "{}", told(&refused));
    make_virtio_win(&it.drivers(), &["viostor/w7"]).unwrap();
    let refused = it.drover(&["plan", "check", &plan]);
    let none = "none for the Windows of the guest id windows9_64Guest";
    assert!(refused.status.code() == Some(7) && told(&refused).contains(none), "{}", told(&refused));
    // There is a driver for this Windows, but none for its machine: the tool ends successfully all the same.
    make_virtio_win(&it.drivers(), &["viostor/w10/x86"]).unwrap();
    it.fine(&["plan", "check", &plan]);
    let failed = it.drover(&["migrate", &plan]);
    let words = told(&failed);
    assert!(!failed.status.success(), "{words}");
    assert!(words.contains("the guest has no virtio drivers and would not boot"), "{words}");
    assert_eq!(it.key(VIOSTOR), "", "the image is as it was copied");
    make_virtio_win(&it.drivers(), &["viostor", "vioscsi", "NetKVM", "Balloon", "viorng", "vioserial"])
        .unwrap();
    it.fine(&["resume", &plan]);
    let report = it.stage.report(&plan).to_string();
    assert!(report.contains("converted; log in"), "{report}");
    let service = it.key(VIOSTOR);
    assert!(service.contains("\"Start\"=dword:00000000"), "it starts at boot: {service}");
    assert!(it.has("/Windows/System32/drivers/viostor.sys"));
    assert_eq!(it.key(VIOSCSI), "");
}

#[test]
fn windows_that_goes_to_virtio_scsi_starts_from_it_and_finds_a_script_for_its_addresses() {
    let Some(it) = Windows::new(177) else { return };
    make_virtio_win(&it.drivers(), &["viostor", "vioscsi", "NetKVM"]).unwrap();
    let win = "- name: \"win\"\n    disk_bus: scsi\n    \
               addresses: {\"00:50:56:aa:00:01\": \"192.0.2.7/24 192.0.2.1 2001:db8::7/64\"}";
    let edits = [("convert: never", "convert: auto"), ("- name: \"win\"", win)];
    it.fine(&["migrate", &it.stage.plan("scsi", &edits)]);
    let service = it.key(VIOSCSI);
    assert!(service.contains("\"Start\"=dword:00000000"), "{service}");
    assert!(it.has("/Windows/System32/drivers/vioscsi.sys"));
    let image = it.stage.image("win", 0);
    let names = windows_folder(&image, SCRIPTS).unwrap();
    let scripts = names.iter().filter(|name| name.ends_with(".bat"));
    let mut scripts = scripts.map(|name| windows_file(&image, &format!("{SCRIPTS}/{name}")).unwrap());
    // The converter calls it by the end of its path.
    let own = scripts.find_map(|text| String::from_utf8(text).ok().filter(|text| text.contains("by drover")));
    let own = own.unwrap_or_else(|| panic!("{names:?}"));
    assert!(own.starts_with("@echo off\r\nrem Written by drover") && !own.contains("\r\r"), "{own}");
    assert!(own.contains(" address=192.0.2.7 ") && own.contains(" address=2001:db8::7/64\r\n"), "{own}");
}

const SCRIPTS: &str = "/Program Files/Guestfs/Firstboot/scripts";

/// A package for the first boot, and a script that tells whether it is installed.
const AGENT: &str =
    "Package: drover-agent\nVersion: 1.5\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n";
const FIRST: &str =
    "#!/bin/sh\necho \"DROVER-FIRST agent=$(dpkg-query -W -f '${Version}' drover-agent)\" >/dev/ttyS0\n";

/// Software emulation on a busy machine: two to five minutes of conversion came before.
const BOOT_TIME_MAX: Duration = Duration::from_secs(600);

#[test]
#[ignore = "takes five minutes and more; `make check-conversion` runs it"]
fn a_debian_that_knows_only_vmware_is_seen_through_converted_and_boots_from_virtio() {
    let Some(v2v) = V2v::find().unwrap() else { return };
    let Some((guest, expect)) = guest_of_vmware() else { return };
    let Some(stage) = Stage::new(178, |_| {
        let disks = [guest.join("root.img"), guest.join("data.img")];
        vec![with(vm("vmware", &[&disks[0], &disks[1]]), json!({"memory_mib": 512}))]
    }) else {
        return;
    };
    let package = stage.path("agent");
    for (file, text) in [("DEBIAN/control", AGENT), ("opt/agent", "")] {
        std::fs::create_dir_all(package.join(file).parent().unwrap()).unwrap();
        std::fs::write(package.join(file), text).unwrap();
    }
    let built = Command::new("dpkg-deb").args(["--build", "--root-owner-group"]).arg(&package).status();
    assert!(built.unwrap().success());
    std::fs::write(stage.path("first.sh"), FIRST).unwrap();
    let vm =
        "- name: \"vmware\"\n    start: true\n    first_boot: {scripts: [first.sh], guest_agent: agent.deb}";
    let edits = [("convert: never", "convert: auto"), ("- name: \"vmware\"", vm)];
    let plan = stage.plan("vmware", &edits);
    let path = format!("{}:{}", v2v.bin().display(), std::env::var("PATH").unwrap());
    let check =
        stage.drover.command(&["plan", "check", &plan, "--inspect"]).env("PATH", &path).output().unwrap();
    for word in ["has no driver virtio_blk", "/dev/sdb1 (/data)", "configures ens192", "has open-vm-tools"] {
        assert!(told(&check).contains(word), "'{word}' in {}", told(&check));
    }
    let moved = stage.drover.command(&["migrate", &plan]).env("PATH", path).output().unwrap();
    assert!(moved.status.success(), "{}", told(&moved));
    let report = stage.report(&plan).to_string();
    assert!(report.contains("converted; log in"), "{report}");
    assert!(report.contains("ens192 of 00:50:56:aa:00:01"), "{report}");
    let serial = stage.vms().join("vmware/serial.log");
    let said = || String::from_utf8_lossy(&std::fs::read(&serial).unwrap_or_default()).into_owned();
    wait_until("the guest proves itself", BOOT_TIME_MAX, || said().contains("DROVER-DONE"));
    for line in expect.lines().chain(["DROVER-FIRST agent=1.5"]) {
        assert!(said().lines().any(|it| it.trim().starts_with(line)), "'{line}' in {}", said());
    }
    println!("{}", said().lines().filter(|line| line.contains("DROVER-")).collect::<Vec<_>>().join("\n"));
}
