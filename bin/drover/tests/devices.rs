//! Block devices as targets: loop devices, where this machine has them.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use drover_lab::Drover;
use drover_stage::loops::{Loop, ran};
use drover_stage::nbdkit::{Nbdkit, SLOWLY};
use drover_stage::process::{PATIENCE, recorded_in, wait_until};
use drover_stage::{MIB, disk_file, same_bytes};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn copy(drover: &Drover, source: &Path, target: &str, more: &[&str], code: i32) -> String {
    let output = drover.run(&[&["copy", source.to_str().unwrap(), target], more].concat()).unwrap();
    assert_eq!(output.code, Some(code), "{more:?}: {}", output.err);
    output.err
}

#[test]
fn a_device_takes_a_disk_and_its_rest_is_left_alone() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 5 * MIB + 512);
    let Some(device) = Loop::blank(folder.path(), "device", 8 * MIB) else { return };
    std::fs::write(&device.file, vec![0xee; 8 * MIB as usize]).unwrap();
    let said = copy(&drover, &source, &device.device, &["--verify", "full", "--force"], 0);
    assert!(said.contains("verified: equal"), "{said}");
    assert!(device.starts_with(&source));
    let all = std::fs::read(&device.device).unwrap();
    assert!(all[5 * MIB as usize + 512..].iter().all(|byte| *byte == 0xee), "what is behind the disk");
    let journals = std::fs::read_dir(folder.path().join("state/journals")).unwrap();
    assert_eq!(journals.count(), 0, "a finished copy needs no journal");
    let output = drover.run(&["verify", source.to_str().unwrap(), &device.device, "--allow-longer"]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    let larger = disk_file(folder.path(), "larger", 9 * MIB);
    assert!(copy(&drover, &larger, &device.device, &["--force"], 7).contains("are needed"));
}

#[test]
fn a_device_that_is_not_blank_is_refused_unless_forced() {
    const SIZE: u64 = 256 * MIB;
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 3 * MIB);
    let Some(device) = Loop::blank(folder.path(), "device", SIZE) else { return };
    let put = |at: u64, byte: u8| {
        let raw = std::fs::File::options().write(true).open(&device.device).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&raw, &[byte], at).unwrap();
        raw.sync_all().unwrap();
    };
    // In the head, in a sample, at the very end.
    for at in [4097, 100 * MIB + 77, SIZE - 1] {
        put(at, 0xee);
        let said = copy(&drover, &source, &device.device, &[], 7);
        assert!(said.contains(&format!("byte {at} is not zero")) && said.contains("hexdump"), "{said}");
        copy(&drover, &source, &device.device, &["--no-journal"], 7);
        put(at, 0);
    }
    copy(&drover, &source, &device.device, &[], 0);
    assert!(device.starts_with(&source));
    copy(&drover, &source, &device.device, &[], 7);
    copy(&drover, &source, &device.device, &["--force"], 0);
}

#[test]
fn a_device_with_a_signature_is_refused_unless_forced() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 3 * MIB);
    let Some(device) = Loop::blank(folder.path(), "device", 8 * MIB) else { return };
    let Some(made) = ran("mkfs.ext4", &["-q", "-F", &device.device]) else {
        println!("skipped: mkfs.ext4 is not installed");
        return;
    };
    assert!(made.status.success());
    let before = std::fs::read(&device.device).unwrap();
    let said = copy(&drover, &source, &device.device, &[], 7);
    assert!(said.contains("ext2/3/4 file system at byte 1080") && said.contains("wipefs"), "{said}");
    copy(&drover, &source, &device.device, &["--no-journal"], 7);
    copy(&drover, &source, &device.device, &["--format", "qcow2", "--force"], 2);
    assert!(std::fs::read(&device.device).unwrap() == before, "a refusal changes nothing");
    copy(&drover, &source, &device.device, &["--force"], 0);
    assert!(device.starts_with(&source));
}

#[test]
fn a_mounted_device_is_refused_even_if_forced() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 3 * MIB);
    let Some(device) = Loop::blank(folder.path(), "device", 8 * MIB) else { return };
    let at = folder.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let made = ran("mkfs.ext4", &["-q", "-F", &device.device]).is_some_and(|output| output.status.success());
    let mounted = made
        && ran("mount", &[&device.device, at.to_str().unwrap()])
            .is_some_and(|output| output.status.success());
    if !mounted {
        println!("skipped: nothing can be mounted here");
        return;
    }
    let outputs: Vec<String> =
        [&[][..], &["--force"]].map(|more| copy(&drover, &source, &device.device, more, 7)).into();
    ran("umount", &[at.to_str().unwrap()]);
    for said in outputs {
        assert!(said.contains("is mounted at") && said.contains("--force does not change this"), "{said}");
    }
}

#[test]
fn a_device_is_not_overwritten_with_what_it_shows() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let Some(device) = Loop::over(&source) else { return };
    // The device may write to the file at any time, so the file is no source while it stands.
    let said = copy(&drover, &source, &device.device, &["--force"], 6);
    assert!(said.contains("open for writing"), "{said}");
    let device_path = Path::new(&device.device);
    let said = copy(&drover, device_path, source.to_str().unwrap(), &["--force"], 2);
    assert!(said.contains("both source and target"), "{said}");
    copy(&drover, device_path, &device.device, &["--force"], 2);
    let node = folder.path().join("node");
    let number: Vec<u32> = {
        use std::os::unix::fs::MetadataExt;
        let rdev = std::fs::metadata(device_path).unwrap().rdev();
        vec![rustix::fs::major(rdev), rustix::fs::minor(rdev)]
    };
    let made = ran("mknod", &[node.to_str().unwrap(), "b", &number[0].to_string(), &number[1].to_string()]);
    if made.is_some_and(|output| output.status.success()) {
        copy(&drover, device_path, node.to_str().unwrap(), &["--force"], 2);
    }
}

#[test]
fn a_copy_to_a_device_goes_on_where_it_stopped() {
    let (folder, drover) = setup();
    let source = folder.path().join("source");
    // With a file system's mark in it, so that the half copy holds a signature, too.
    let mut content = std::fs::read(disk_file(folder.path(), "content", 32 * MIB)).unwrap();
    content[1080..1082].copy_from_slice(b"\x53\xef");
    std::fs::write(&source, content).unwrap();
    let Some(device) = Loop::blank(folder.path(), "device", 32 * MIB) else { return };
    let Some(server) = Nbdkit::held(folder.path(), &source, 80, 20 * MIB) else { return };
    let uri = server.uri();
    let child = drover.start(&[&["copy", &uri, &device.device][..], &SLOWLY].concat()).unwrap();
    let journals = folder.path().join("state/journals");
    wait_until("the copy records blocks", PATIENCE, || recorded_in(&journals) > 0);
    child.kill().unwrap();
    server.go_on();
    let output = drover.run(&["copy", &uri, &device.device, "--verify", "full"]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("resumed"), "{}", output.err);
    assert!(same_bytes(&source, Path::new(&device.device)));
}
