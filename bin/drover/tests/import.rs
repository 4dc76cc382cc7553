//! Appliances become machines: as plans, by `drover import`, resumed, and refused where they are not whole.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use drover_lab::{Drover, Guests, Output, lab_folder};
use drover_stage::process::{PATIENCE, recorded_blocks, wait_until};
use drover_stage::{MIB, disk_file, same_bytes};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Software emulation on a busy machine.
const BOOT_SECONDS_MAX: u64 = 300;

struct Bench {
    folder: TempDir,
    drover: Drover,
}

impl Bench {
    /// `None`, after a printed line, without the programs that make an appliance.
    fn new() -> Option<Bench> {
        if Command::new("qemu-img").arg("--version").output().is_err() {
            println!("skipped: qemu-img is not installed");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("drover-import-").tempdir().unwrap();
        let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
        Some(Bench { folder, drover })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn command(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new(program).args(args).current_dir(self.folder.path()).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// `web.ova` of a disk, in a folder `web` as well.
    fn appliance(&self, disk: &Path) {
        std::fs::create_dir(self.path("web")).unwrap();
        let source = disk.to_str().unwrap();
        let how = [
            "convert",
            "-f",
            "raw",
            "-O",
            "vmdk",
            "-o",
            "subformat=streamOptimized",
            source,
            "web/web-disk1.vmdk",
        ];
        self.command("qemu-img", &how);
        self.describe("web-disk1.vmdk", std::fs::metadata(disk).unwrap().len());
        let mut lines = String::new();
        for name in ["web.ovf", "web-disk1.vmdk"] {
            let sum = self.command("sha256sum", &[&format!("web/{name}")]);
            lines += &format!("SHA256({name})= {}\n", sum.split_whitespace().next().unwrap());
        }
        std::fs::write(self.path("web/web.mf"), lines).unwrap();
        self.command(
            "tar",
            &["--format=ustar", "-C", "web", "-cf", "web.ova", "web.ovf", "web.mf", "web-disk1.vmdk"],
        );
    }

    fn describe(&self, file: &str, capacity: u64) {
        let text = OVF.replace("FILE", file).replace("CAPACITY", &capacity.to_string());
        std::fs::write(self.path("web/web.ovf"), text).unwrap();
    }

    fn plan(&self, source: &str, more: &str) -> String {
        let text = format!(
            "version: 1\nname: web\nsource: {{type: ova, path: {source}}}\n\
             target: {{type: qemu, folder: vms, accelerator: tcg}}\nnetworks: {{\"*\": user}}\nvms: [{{name: web 01}}]\n{more}"
        );
        std::fs::write(self.path("web.yaml"), text).unwrap();
        self.text("web.yaml")
    }

    fn run(&self, args: &[&str]) -> Output {
        self.drover.run(args).unwrap()
    }

    fn fine(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert_eq!(output.code, Some(0), "{args:?}: {}{}", output.out, output.err);
        output
    }

    fn report(&self, plan: &str) -> Value {
        self.run(&["report", plan, "--json"]).json().unwrap()
    }

    fn image(&self) -> PathBuf {
        self.path("vms/web-01/web-01-0.raw")
    }
}

const OVF: &str = r#"<?xml version="1.0"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
  xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
  <References><File ovf:href="FILE" ovf:id="file1"/></References>
  <DiskSection><Info/><Disk ovf:capacity="CAPACITY" ovf:diskId="d1" ovf:fileRef="file1"/></DiskSection>
  <NetworkSection><Info/><Network ovf:name="VM Network"/></NetworkSection>
  <VirtualSystem ovf:id="web01"><Info/><Name>web 01</Name>
    <OperatingSystemSection ovf:id="96"><Info/><Description>debian12_64Guest</Description></OperatingSystemSection>
    <VirtualHardwareSection><Info/>
      <Item><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>
        <rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
      <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:InstanceID>2</rasd:InstanceID>
        <rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>256</rasd:VirtualQuantity></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceType>6</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard disk 1</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/d1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID>
        <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:Connection>VM Network</rasd:Connection><rasd:ElementName>Network adapter 1</rasd:ElementName>
        <rasd:InstanceID>5</rasd:InstanceID><rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>
        <rasd:ResourceType>10</rasd:ResourceType></Item>
    </VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
"#;

#[test]
fn an_appliance_is_imported_proven_and_boots() {
    let Some(bench) = Bench::new() else { return };
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let guest = guests.get("web01").unwrap();
    let disk = guests.folder.join(&guest.disks[0].file);
    bench.appliance(&disk);
    let (ova, vms) = (bench.text("web.ova"), bench.text("vms"));
    let run = bench.fine(&["import", &ova, "--folder", &vms, "--output", &bench.text("kept.yaml")]);
    assert!(run.err.contains("type: ova") && run.err.contains("drover resume import-web-01"), "{}", run.err);
    assert!(same_bytes(&bench.image(), &disk));
    let report = bench.report("import-web-01");
    assert_eq!(report["vms"][0]["disks"][0]["equal"], true);
    assert!(report.to_string().contains("2 files are as the appliance's manifest says"), "{report}");
    bench.fine(&["plan", "check", &bench.text("kept.yaml")]);
    let other = bench.run(&["import", &ova, "--folder", &bench.text("elsewhere")]);
    assert_eq!(other.code, Some(3), "another plan of that name: {}", other.err);
    assert!(!bench.path("elsewhere").exists());

    // The same appliance once more, by a plan: emulated, which boots on any machine.
    let plan = bench.plan("web.ova", "");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace("folder: vms,", "folder: vms2,")).unwrap();
    bench.fine(&["migrate", &plan, "--start"]);
    let folder = bench.path("vms2/web-01");
    let until = Instant::now() + Duration::from_secs(BOOT_SECONDS_MAX);
    let missing = loop {
        let serial = std::fs::read(folder.join("serial.log")).unwrap_or_default();
        let missing = guest.missing_in(&String::from_utf8_lossy(&serial)).len();
        if missing == 0 || Instant::now() > until {
            break missing;
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    let machine = drover_qemu::find_running(&drover_qemu::VmFolder::new(&folder)).unwrap();
    // A guest that has proven its data switches itself off.
    if let Some(machine) = machine {
        machine.stop(Duration::from_secs(5)).unwrap();
    }
    assert_eq!(missing, 0, "the guest did not prove its data");
}

#[test]
fn an_image_of_another_plan_or_another_appliance_is_refused_and_one_that_is_gone_is_told() {
    let Some(bench) = Bench::new() else { return };
    let (first, second) =
        (disk_file(bench.folder.path(), "a", 5 * MIB), disk_file(bench.folder.path(), "b", 5 * MIB));
    bench.appliance(&first);
    let (ova, vms) = (bench.text("first.ova"), bench.text("vms"));
    std::fs::rename(bench.path("web.ova"), &ova).unwrap();
    std::fs::remove_dir_all(bench.path("web")).unwrap();
    bench.appliance(&second);
    bench.fine(&["import", &ova, "--folder", &vms]);
    let refused = |args: &[&str], code: i32, words: &str| {
        let output = bench.run(args);
        assert!(output.code == Some(code) && output.err.contains(words), "{args:?}: {}", output.err);
        assert!(same_bytes(&bench.image(), &first), "{args:?}");
    };
    let words = "it is the image of another plan, or of another disk";
    // Another appliance with a VM of that name.
    refused(&["import", &bench.text("web.ova"), "--folder", &vms, "--name", "third"], 7, words);
    bench.fine(&["cancel", "third"]);
    // The same one once more, by a drover that does not know of the first: its guest may have run since.
    let elsewhere = bench.text("elsewhere");
    let again = ["import", &ova, "--folder", &vms, "--name", "second", "--state", &elsewhere];
    refused(&again, 7, words);
    assert!(same_bytes(&bench.image(), &first), "what is another plan's stays");
    let plan = bench.plan("web.ova", "");
    refused(&["plan", "check", &plan], 7, words);
    refused(&["migrate", &plan], 7, words);
    refused(
        &["copy", second.to_str().unwrap(), bench.image().to_str().unwrap()],
        7,
        "it is the image of a plan",
    );
    bench.fine(&["import", &ova, "--folder", &vms]);

    std::fs::remove_dir_all(&vms).unwrap();
    let gone = bench.run(&["import", &ova, "--folder", &vms]);
    assert!(gone.code == Some(7) && gone.err.contains("is not there any more"), "{}{}", gone.out, gone.err);
    assert!(gone.err.contains("--name"), "{}", gone.err);
    bench.fine(&["import", &ova, "--folder", &vms, "--name", "second"]);
    assert!(same_bytes(&bench.image(), &first));
}

#[test]
fn plans_take_archives_descriptors_and_folders() {
    let Some(bench) = Bench::new() else { return };
    let disk = disk_file(bench.folder.path(), "a", 5 * MIB);
    bench.appliance(&disk);
    for source in ["web.ova", "web/web.ovf", "web"] {
        let plan = bench.plan(source, "");
        let checked = bench.fine(&["plan", "check", &plan]);
        assert!(checked.out.contains("1 VM with 1 disk of 5 MiB"), "{}", checked.out);
        bench.fine(&["migrate", &plan]);
        assert!(same_bytes(&bench.image(), &disk), "{source}");
        assert_eq!(bench.report("web")["vms"][0]["disks"][0]["equal"], true);
        let inventory = bench.fine(&["inventory", &bench.text(source), "--json"]).json().unwrap();
        assert_eq!(inventory["vms"][0]["name"], json!("web 01"));
        std::fs::remove_dir_all(bench.path("vms")).unwrap();
        std::fs::remove_dir_all(bench.path("state")).unwrap();
    }
    let lost = bench.run(&["plan", "check", &bench.plan("lost.ova", "")]);
    assert_eq!(lost.code, Some(6), "{}", lost.err);
}

#[test]
fn one_flipped_byte_is_refused_and_nothing_is_defined() {
    let Some(bench) = Bench::new() else { return };
    let disk = disk_file(bench.folder.path(), "a", 5 * MIB);
    bench.appliance(&disk);
    let path = bench.path("web.ova");
    let mut bytes = std::fs::read(&path).unwrap();
    // Padding before the first grain: no reader would see it.
    let at = bytes.windows(4).position(|four| four == b"KDMV").unwrap() + 500;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let plan = bench.plan("web.ova", "");
    let refused = bench.run(&["migrate", &plan]);
    assert_eq!(refused.code, Some(11), "{}", refused.err);
    assert!(refused.err.contains("'web-disk1.vmdk' differs from its checksum"), "{}", refused.err);
    let status = bench.run(&["status", &plan, "--json"]).json().unwrap();
    assert_eq!(status["vms"][0]["cause"], json!("manifest"), "{status}");
    assert!(!bench.path("vms/web-01/domain.xml").exists(), "nothing is defined");
    // Giving it up needs nothing of the appliance, which may be gone.
    std::fs::rename(&path, bench.path("moved.ova")).unwrap();
    bench.fine(&["cancel", "web"]);
    assert!(!bench.image().exists());
    std::fs::rename(bench.path("moved.ova"), &path).unwrap();
    let ignoring = ["import", &bench.text("web.ova"), "--folder", &bench.text("vms"), "--ignore-manifest"];
    bench.fine(&ignoring);
    assert!(same_bytes(&bench.image(), &disk));
}

#[test]
fn a_copied_disk_is_held_against_the_manifest() {
    let Some(bench) = Bench::new() else { return };
    let disk = disk_file(bench.folder.path(), "a", 5 * MIB);
    bench.appliance(&disk);
    let (good, target) = (bench.text("web.ova"), bench.path("copy"));
    let copy = |appliance: &str, more: &[&str]| {
        let _ = std::fs::remove_file(&target);
        let _ = std::fs::remove_file(drover_mover::journal_path(&target));
        let source = format!("ova:{appliance}/0");
        bench.run(&[&["copy", &source, target.to_str().unwrap()], more].concat())
    };
    for place in [&good, &bench.text("web"), &bench.text("web/web.ovf")] {
        let output = copy(place, &[]);
        assert!(output.code == Some(0) && same_bytes(&disk, &target), "{place}: {}", output.err);
        assert!(output.err.contains("2 files are as the appliance's manifest says"), "{}", output.err);
    }
    let sums = std::fs::read_to_string(bench.path("web/web.mf")).unwrap();
    let sha1 = bench.command("sha1sum", &["web/web-disk1.vmdk"]);
    let sha1 = sha1.split_whitespace().next().unwrap();
    let (ovf, vmdk) = sums.split_once('\n').unwrap();
    let zeros = "0".repeat(64);
    let wrong = format!("SHA256(web-disk1.vmdk)= {zeros}\n");
    for (manifest, code, words) in [
        (format!("{ovf}\nSHA1(web-disk1.vmdk)= {sha1}\n"), 0, "2 files are as"),
        (format!("{ovf}\nSHA1(web-disk1.vmdk)= {}\n", "0".repeat(40)), 11, "'web-disk1.vmdk' differs"),
        (format!("{ovf}\n{wrong}"), 11, "'web-disk1.vmdk' differs"),
        (format!("SHA256(web.ovf)= {zeros}\n{vmdk}"), 11, "'web.ovf' differs"),
        (format!("{ovf}\n"), 11, "'web-disk1.vmdk' is not listed"),
        (format!("{sums}SHA256(other.vmdk)= {zeros}\n"), 0, "2 files are as"),
        (format!("{sums}nonsense\n"), 11, "manifest"),
    ] {
        std::fs::write(bench.path("web/web.mf"), &manifest).unwrap();
        let output = copy(&bench.text("web"), &[]);
        assert_eq!(output.code, Some(code), "{manifest}: {}", output.err);
        assert!(output.err.contains(words), "{manifest}: {}", output.err);
        let ignored = copy(&bench.text("web"), &["--ignore-manifest"]);
        assert!(
            ignored.code == Some(0) && ignored.err.contains("manifest is not looked at"),
            "{}",
            ignored.err
        );
        assert!(same_bytes(&disk, &target));
    }
    std::fs::write(bench.path("web/web.mf"), format!("{ovf}\n{wrong}")).unwrap();
    assert_eq!(bench.run(&["copy", &format!("ova:{}/0", bench.text("web")), "null:"]).code, Some(11));
    assert_eq!(bench.run(&["copy", &format!("ova:{}/0", bench.text("web")), "-"]).code, Some(11));
    std::fs::remove_file(bench.path("web/web.mf")).unwrap();
    let output = copy(&bench.text("web"), &[]);
    assert!(output.code == Some(0) && output.err.contains("no manifest"), "{}", output.err);
}

#[test]
fn images_are_made_as_the_plan_says() {
    let Some(bench) = Bench::new() else { return };
    let disk = bench.path("a");
    std::fs::write(&disk, "packs well ".repeat(500_000)).unwrap();
    std::fs::File::options().append(true).open(&disk).unwrap().set_len(6 * MIB).unwrap();
    bench.appliance(&disk);
    let plan = bench.plan("web.ova", "");
    let text = std::fs::read_to_string(&plan).unwrap();
    let options = "format: qcow2, qcow2: {cluster_size: 128KiB, compressed: true, compression_type: zstd}";
    std::fs::write(&plan, text.replace("folder: vms,", &format!("folder: vms, {options},"))).unwrap();
    bench.fine(&["migrate", &plan]);
    let image = bench.text("vms/web-01/web-01-0.qcow2");
    let told = bench.command("qemu-img", &["info", "--output=json", &image]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["cluster-size"], json!(128 << 10));
    assert_eq!(told["format-specific"]["data"]["compression-type"], json!("zstd"));
    let allocated = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap()) * 512;
    assert!(allocated < 3 * MIB, "{allocated} bytes for 5.5 MB that pack well");
    bench.command("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", "a", &image]);
}

#[test]
fn a_folder_is_imported_as_its_archive_is() {
    let Some(bench) = Bench::new() else { return };
    let disk = disk_file(bench.folder.path(), "a", 3 * MIB);
    bench.appliance(&disk);
    let imported = bench.fine(&["import", &bench.text("web"), "--folder", &bench.text("vms")]);
    assert!(std::fs::read(bench.image()).unwrap() == std::fs::read(&disk).unwrap(), "{}", imported.out);
    let report = bench.report("import-web-01");
    assert_eq!(report["vms"][0]["disks"][0]["equal"], true, "{report:#}");
}

/// C1 control characters and turned writing are fine in XML.
#[test]
fn names_of_appliances_drive_no_terminal() {
    let Some(bench) = Bench::new() else { return };
    bench.appliance(&disk_file(bench.folder.path(), "a", MIB));
    let text = std::fs::read_to_string(bench.path("web/web.ovf")).unwrap();
    let hostile =
        text.replace("Hard disk 1", "Hard\u{9b}31m\u{202e} disk").replace("web 01", "web\u{9b}2J\u{202e}");
    assert_ne!(text, hostile);
    std::fs::write(bench.path("web/web.ovf"), hostile).unwrap();
    std::fs::write(bench.path("web/web.mf"), "SHA256(\u{202e}\u{9b}31m)= 00\n").unwrap();
    let (place, vms) = (bench.text("web"), bench.text("vms"));
    for args in [
        &["copy", &format!("ova:{place}/7"), "x"][..],
        &["copy", &format!("ova:{place}/0"), &bench.text("copy")],
        &["hash", &format!("ova:{place}/0")],
        &["inventory", &place],
        &["import", &place, "--folder", &vms, "--plan-only"],
        &["import", &place, "--folder", &vms],
    ] {
        let output = bench.run(args);
        let unsafe_char = |c: &char| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c);
        let found: Vec<char> = output.err.chars().chain(output.out.chars()).filter(unsafe_char).collect();
        assert_eq!(found, [], "{args:?}: {:?}{:?}", output.err, output.out);
    }
}

/// Kills a copy once it has recorded something; gives how many blocks. Where it was over before, takes all away.
fn killed_in_the_middle(bench: &Bench, plan: &str) -> Option<u64> {
    let mut started = bench.drover.start(&["migrate", plan]).unwrap();
    wait_until("something is recorded", PATIENCE, || {
        recorded_blocks(&bench.image()) > 0 || started.child.try_wait().unwrap().is_some()
    });
    started.kill().unwrap();
    let blocks = recorded_blocks(&bench.image());
    let status = bench.run(&["status", plan, "--json"]).json().unwrap();
    if blocks > 0 && status["vms"][0]["state"] != "done" {
        return Some(blocks);
    }
    assert_eq!(status["vms"][0]["state"], "done", "it failed: {status}");
    for folder in ["vms", "state"] {
        std::fs::remove_dir_all(bench.path(folder)).unwrap();
    }
    None
}

#[test]
fn killed_in_the_middle_it_goes_on_where_it_stopped() {
    let Some(bench) = Bench::new() else { return };
    std::fs::create_dir(bench.path("web")).unwrap();
    let disk = disk_file(&bench.path("web"), "disk1.raw", 384 * MIB);
    bench.describe("disk1.raw", 384 * MIB);
    let plan = bench.plan("web", "limits: {lanes_per_disk: 1, depth: 1, request: 64KiB}\n");
    // Nothing slows a copy of a file down. One that was over before it was killed is begun anew.
    let blocks = (0..20).find_map(|_| killed_in_the_middle(&bench, &plan));
    let blocks = blocks.expect("the copy was over before it was killed, each time");
    bench.fine(&["resume", "web"]);
    assert!(same_bytes(&bench.image(), &disk));
    let report = bench.report("web");
    let disk = &report["vms"][0]["disks"][0];
    assert_eq!(disk["equal"], true);
    let resumed = disk["details"]["resumed_bytes"].as_u64().unwrap();
    assert!(
        resumed >= blocks * drover_types::BLOCK_BYTES,
        "{resumed} bytes were not copied again, of {blocks} blocks"
    );
    assert!(report.to_string().contains("no manifest"), "{report}");
}
