//! `drover copy`: one disk from any source to any target.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use drover_lab::Drover;
use drover_stage::nbdkit::{Nbdkit, SLOWLY};
use drover_stage::process::wait_for_records;
use drover_stage::{MIB, Stage, disk_file, same_bytes, vm};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn copied(drover: &Drover, source: &str, target: &Path, more: &[&str]) -> String {
    let args = [&["copy", source, target.to_str().unwrap()], more].concat();
    let output = drover.run(&args).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    output.err + &output.out
}

fn refused(drover: &Drover, args: &[&str], code: i32, words: &str) {
    let output = drover.run(&[&["copy"], args].concat()).unwrap();
    assert_eq!(output.code, Some(code), "{}", output.err);
    assert!(output.err.contains(words), "'{words}' is not in: {}", output.err);
}

#[test]
fn files_of_odd_sizes_are_copied_and_verified() {
    let (folder, drover) = setup();
    for size in [1, 511, 65_537, 5 * MIB + 3] {
        let source = disk_file(folder.path(), "source", size);
        let target = folder.path().join(format!("target-{size}"));
        let said = copied(&drover, source.to_str().unwrap(), &target, &["--verify", "full"]);
        assert!(said.contains("verified: equal") && same_bytes(&source, &target), "{size}: {said}");
        assert!(!drover_mover::journal_path(&target).exists(), "a finished copy needs no journal");
    }
}

#[test]
fn what_is_there_is_kept_unless_forced() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", MIB);
    let target = folder.path().join("target");
    std::fs::write(&target, vec![1; MIB as usize]).unwrap();
    let (from, to) = (source.to_str().unwrap(), target.to_str().unwrap());
    refused(&drover, &[from, to], 7, "already holds");
    assert_eq!(std::fs::read(&target).unwrap()[0], 1);
    refused(&drover, &[from, from, "--force"], 2, "both source and target");
    copied(&drover, from, &target, &["--force"]);
    assert!(same_bytes(&source, &target));
    refused(&drover, &["/no/such/file", to], 6, "/no/such/file");
    refused(&drover, &["vsphere://host", to], 2, "vsphere://HOST");
    refused(&drover, &["gopher://host/x", to], 2, "not known");
}

#[test]
fn nbd_servers_are_read_and_written() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 9 * MIB);
    let target = folder.path().join("target");
    let Some(server) = Nbdkit::start(folder.path(), &["-r", "file", source.to_str().unwrap()]) else {
        return;
    };
    copied(&drover, &server.uri(), &target, &[]);
    assert!(same_bytes(&source, &target));
    drop(server);
    let other = folder.path().join("other");
    std::fs::write(&other, vec![0xee; 9 * MIB as usize]).unwrap();
    let Some(server) = Nbdkit::start(folder.path(), &["file", other.to_str().unwrap()]) else { return };
    copied(&drover, source.to_str().unwrap(), Path::new(&server.uri()), &["--verify", "full"]);
    assert!(same_bytes(&source, &other));
}

#[test]
fn errors_and_delays_of_a_server_are_outlasted() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 6 * MIB);
    let target = folder.path().join("target");
    let args = [
        "-r",
        "--filter=error",
        "--filter=delay",
        "file",
        source.to_str().unwrap(),
        "error-pread-rate=10%",
        "delay-read=2ms",
    ];
    let Some(server) = Nbdkit::start(folder.path(), &args) else { return };
    copied(&drover, &server.uri(), &target, &["--request", "64KiB", "--verify", "full"]);
    assert!(same_bytes(&source, &target));
}

#[test]
fn qcow2_goes_both_ways_and_is_never_guessed_from_content() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        println!("skipped: qemu-img is not installed");
        return;
    }
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source.raw", 5 * MIB);
    let image = folder.path().join("image.qcow2");
    copied(&drover, source.to_str().unwrap(), &image, &["--verify", "full"]);
    let back = folder.path().join("back.raw");
    copied(&drover, image.to_str().unwrap(), &back, &[]);
    assert!(same_bytes(&source, &back));
    let disguised = folder.path().join("disguised.raw");
    std::fs::copy(&image, &disguised).unwrap();
    let as_raw = folder.path().join("as-raw");
    copied(&drover, disguised.to_str().unwrap(), &as_raw, &[]);
    assert!(same_bytes(&disguised, &as_raw), "a raw disk that looks like qcow2 is copied as it is");
}

#[test]
fn images_of_other_makers_are_read_by_ending_by_word_and_by_auto() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        println!("skipped: qemu-img is not installed");
        return;
    }
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source.raw", 6 * MIB);
    for (ending, qemu, options) in [
        ("vmdk", "vmdk", "subformat=streamOptimized"),
        ("vmdk", "vmdk", "subformat=monolithicSparse"),
        ("vhd", "vpc", "subformat=dynamic,force_size=on"),
        ("vhdx", "vhdx", "subformat=dynamic"),
        ("qcow2", "qcow2", "compression_type=zstd"),
    ] {
        let image = folder.path().join(format!("{options}.{ending}"));
        let made = Command::new("qemu-img")
            .args(["convert", "-q", "-O", qemu, "-o", options])
            .arg(&source)
            .arg(&image)
            .status();
        assert!(made.unwrap().success(), "{options}");
        let nameless = folder.path().join("nameless");
        std::fs::copy(&image, &nameless).unwrap();
        let ways = [
            (&image, &[][..]),
            (&nameless, &["--source-format", ending]),
            (&nameless, &["--source-format", "auto"]),
        ];
        for (number, (from, how)) in ways.into_iter().enumerate() {
            let target = folder.path().join(format!("{options}-{ending}-{number}"));
            copied(&drover, from.to_str().unwrap(), &target, how);
            assert!(same_bytes(&source, &target), "{options} {how:?}");
        }
    }
    refused(
        &drover,
        &[source.to_str().unwrap(), "target.vhdx"],
        2,
        "only raw disks and qcow2 images are written",
    );
}

const OVF: &str = r#"<?xml version="1.0"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
  xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
 <References><File ovf:id="file1" ovf:href="web01-disk1.vmdk"/></References>
 <DiskSection><Info>disks</Info><Disk ovf:diskId="disk1" ovf:fileRef="file1" ovf:capacity="6291456"
   ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/></DiskSection>
 <VirtualSystem ovf:id="web01"><Info>a machine</Info><VirtualHardwareSection><Info>hardware</Info>
  <Item><rasd:ElementName>CPU</rasd:ElementName><rasd:InstanceID>1</rasd:InstanceID>
   <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
  <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:ElementName>memory</rasd:ElementName>
   <rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>
   <rasd:VirtualQuantity>256</rasd:VirtualQuantity></Item>
  <Item><rasd:ElementName>SCSI 0</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID>
   <rasd:ResourceSubType>lsilogic</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
  <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard disk 1</rasd:ElementName>
   <rasd:HostResource>ovf:/disk/disk1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID>
   <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
 </VirtualHardwareSection></VirtualSystem>
</Envelope>"#;

#[test]
fn disks_of_appliances_are_copied_by_number() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source.raw", 6 * MIB);
    let parts = folder.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    std::fs::write(parts.join("web01.ovf"), OVF).unwrap();
    let ran = |program: &str, args: &[&str]| {
        Command::new(program).args(args).current_dir(&parts).status().is_ok_and(|it| it.success())
    };
    let vmdk = [
        "convert",
        "-q",
        "-O",
        "vmdk",
        "-o",
        "subformat=streamOptimized",
        source.to_str().unwrap(),
        "web01-disk1.vmdk",
    ];
    if !ran("qemu-img", &vmdk) || !ran("tar", &["-cf", "../web01.ova", "web01.ovf", "web01-disk1.vmdk"]) {
        println!("skipped: qemu-img or tar is not installed");
        return;
    }
    for (number, place) in ["web01.ova", "parts", "parts/web01.ovf"].into_iter().enumerate() {
        let place = folder.path().join(place).display().to_string();
        let target = folder.path().join(format!("target-{number}"));
        let said = copied(&drover, &format!("ova:{place}/0"), &target, &["--verify", "source"]);
        assert!(same_bytes(&source, &target) && said.contains("has no manifest"), "{place}: {said}");
        refused(&drover, &[&format!("ova:{place}/1"), "x"], 6, "has no disk 1; it has 0 (");
    }
    let ova = folder.path().join("web01.ova");
    let ova = ova.to_str().unwrap();
    refused(&drover, &[&format!("ova:{ova}/0"), ova, "--force"], 2, "a part of the source");
    refused(&drover, &[&format!("ova:{ova}"), "x"], 2, "ova:FILE/DISK");
}

#[test]
fn a_killed_copy_goes_on_where_it_stopped() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 64 * MIB);
    let target = folder.path().join("target");
    let Some(server) = Nbdkit::held(folder.path(), &source, 60, 32 * MIB) else { return };
    let (uri, to) = (server.uri(), target.to_str().unwrap().to_string());
    let child = drover.start(&[&["copy", &uri, &to][..], &SLOWLY].concat()).unwrap();
    wait_for_records(&target);
    child.kill().unwrap();
    server.go_on();
    let said = copied(&drover, &uri, &target, &["--verify", "full"]);
    assert!(said.contains("resumed"), "{said}");
    assert!(same_bytes(&source, &target));
}

/// Whether an image has neither errors nor leaks, as QEMU judges; true where QEMU is not installed.
fn is_sound(image: &Path) -> bool {
    let Ok(output) = Command::new("qemu-img").args(["check", "-f", "qcow2"]).arg(image).output() else {
        println!("skipped: qemu-img is not installed");
        return true;
    };
    print!("{}", String::from_utf8_lossy(&output.stdout));
    output.status.success()
}

#[test]
fn a_killed_copy_to_qcow2_goes_on_and_leaves_a_sound_image() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 64 * MIB);
    for (name, more) in [("plain", &[][..]), ("packed", &["--compress", "-o", "compression_type=zstd"][..])] {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).unwrap();
        let Some(server) = Nbdkit::held(&place, &source, 60, 32 * MIB) else { return };
        let target = folder.path().join(format!("{name}.qcow2"));
        let (uri, to) = (server.uri(), target.to_str().unwrap().to_string());
        let child = drover.start(&[&["copy", &uri, &to][..], &SLOWLY, more].concat()).unwrap();
        wait_for_records(&target);
        child.kill().unwrap();
        server.go_on();
        let said = copied(&drover, &uri, &target, &[&["--verify", "full"], more].concat());
        assert!(said.contains("resumed"), "{said}");
        assert!(is_sound(&target));
        let back = folder.path().join(format!("{name}.raw"));
        copied(&drover, &to, &back, &[]);
        assert!(same_bytes(&source, &back));
    }
}

#[test]
fn a_qcow2_target_that_is_full_says_so_and_goes_on_when_there_is_room() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source.raw", 24 * MIB);
    let target = folder.path().join("image.qcow2");
    // The shell's unit is 512 bytes; the image may have 10 MiB, its journal less.
    let limited = "trap '' XFSZ; ulimit -f 20480; exec \"$0\" copy \"$1\" \"$2\" --request 1MiB";
    let program = env!("CARGO_BIN_EXE_drover");
    let output = Command::new("sh").args(["-c", limited, program]).args([&source, &target]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("make room"), "{said}");
    copied(&drover, source.to_str().unwrap(), &target, &["--verify", "full"]);
    assert!(is_sound(&target));
}

#[test]
fn qcow2_images_are_made_as_asked_and_replaced_only_by_force() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source.raw", 5 * MIB);
    let (from, target) = (source.to_str().unwrap(), folder.path().join("image.qcow2"));
    let to = target.to_str().unwrap();
    for more in [
        &["-o", "cluster_size=4k"][..],
        &["-o", "cluster_size=2MiB,preallocation=metadata"],
        &["-o", "preallocation=falloc"],
        &["--compress"],
        &["--compress", "-o", "compression_type=zstd,cluster_size=128KiB"],
    ] {
        copied(&drover, from, &target, &[&["--force", "--verify", "full"], more].concat());
        assert!(is_sound(&target), "{more:?}");
        let back = folder.path().join("back.raw");
        copied(&drover, to, &back, &["--force"]);
        assert!(same_bytes(&source, &back), "{more:?}");
    }
    refused(&drover, &[from, to], 7, "already holds");
    refused(&drover, &[from, to, "--force", "-o", "cluster_size=1000"], 7, "a cluster of 1000 bytes");
    assert!(target.exists(), "what cannot be replaced stays");
    refused(&drover, &[from, "x.qcow2", "-o", "lazy_refcounts=on"], 2, "no such option");
    refused(&drover, &[from, "x.raw", "--compress"], 2, "for qcow2 targets");
}

#[test]
fn disks_of_vsphere_are_copied_by_name_and_number() {
    let Some(stage) = Stage::new(50, |folder| {
        let a = disk_file(folder, "a", 3 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let source = format!("vsphere://127.0.0.1:{}/one/0", stage.sim.port);
    let target = stage.path("copy.raw");
    copied(&stage.drover, &source, &target, &["--thumbprint", &stage.sim.thumbprint]);
    assert!(same_bytes(&stage.path("a"), &target));
    let wrong = format!("vsphere://127.0.0.1:{}/one/7", stage.sim.port);
    refused(&stage.drover, &[&wrong, "x", "--thumbprint", &stage.sim.thumbprint], 6, "there is no disk 7");
}

#[test]
fn completions_and_man_pages_are_written() {
    let (folder, drover) = setup();
    for shell in ["bash", "zsh", "fish"] {
        let output = drover.run(&["completions", shell]).unwrap();
        assert!(output.out.contains("migrate"), "{shell}");
    }
    let pages = folder.path().join("man");
    assert_eq!(drover.run(&["man", pages.to_str().unwrap()]).unwrap().code, Some(0));
    assert!(std::fs::read_to_string(pages.join("drover-migrate.1")).unwrap().contains(".TH"));
}

#[test]
fn exit_codes_tell_a_source_that_fails_from_one_that_is_away_and_from_a_full_target() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", MIB);
    let target = folder.path().join("target");
    let to = target.to_str().unwrap();
    let give_up = ["--retry-for", "0", "--lanes", "1"];
    for errno in ["EIO", "ENOMEM", "ENOSPC"] {
        let place = tempfile::tempdir_in(folder.path()).unwrap();
        let args = ["-r", "--filter=error", "file", source.to_str().unwrap(), "error-pread-rate=100%"];
        let error = format!("error={errno}");
        let Some(server) = Nbdkit::start(place.path(), &[&args[..], &[&error]].concat()) else { return };
        let uri = server.uri();
        let output = drover.run(&[&["copy", &uri, to, "--force"][..], &give_up].concat()).unwrap();
        assert_eq!(output.code, Some(6), "{errno}: {}", output.err);
        assert!(!output.err.contains("make room"), "{errno}: {}", output.err);
        refused(
            &drover,
            &[&["--force", uri.as_str(), "null:"], &give_up[..]].concat(),
            6,
            "the server reports",
        );
    }
    refused(
        &drover,
        &["nbd://no-such-host.invalid/", to, "--force"],
        5,
        "no-such-host.invalid has no address",
    );
    let target = ["copy", source.to_str().unwrap(), "nbd://no-such-host.invalid/"];
    let output = drover.run(&[&target[..], &give_up].concat()).unwrap();
    assert!(output.code == Some(5) && output.err.contains("has no address"), "{}", output.err);
}
