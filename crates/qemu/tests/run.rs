//! A real QEMU, under TCG, with disks that hold nothing to boot.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use drover_qemu::{
    Accelerator, Cache, Clock, DiskBus, DiskSpec, ImageFormat, MachineFirmware, MachineSpec, NicAttach,
    NicSpec, Ovmf, Qcow2Options, QemuErrorKind, RunOptions, VmFolder, create_qcow2, find_running, is_running,
    start, undo_definition, write_definition,
};
use drover_types::NicModel;

/// Generous: only what never comes runs into it. Firmware under emulation takes half a minute on a machine of its own.
const PATIENCE: Duration = Duration::from_secs(300);

struct Machine {
    _folder: tempfile::TempDir,
    spec: MachineSpec,
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(Some(running)) = find_running(&self.spec.folder) {
            let _ = running.stop(Duration::ZERO);
        }
    }
}

/// A machine with a disk on each bus; `None` without QEMU.
fn machine() -> Option<Machine> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("skipped: no qemu-system-x86_64");
        return None;
    }
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("it's a, machine");
    fs::create_dir(&folder).unwrap();
    let buses = [DiskBus::Virtio, DiskBus::Scsi, DiskBus::Sata];
    let disks: Vec<DiskSpec> = (0..3).map(|index| raw_disk(&folder, index, buses[index])).collect();
    let nics = [
        (NicAttach::User, NicModel::Virtio),
        (NicAttach::None, NicModel::E1000e),
        (NicAttach::None, NicModel::E1000),
    ];
    let spec = MachineSpec {
        folder: VmFolder::new(&folder),
        name: "a, b=c".into(),
        uuid: Some("4211a1b2-0000-1111-2222-333344445555".into()),
        title: None,
        description: None,
        firmware: MachineFirmware::Bios,
        cpus: 2,
        cores_per_socket: 2,
        memory_mib: 128,
        clock: Clock::LocalTime,
        cache: Cache::for_files(disks.iter().map(|disk| disk.path.as_path())),
        disks,
        nics: (0..).zip(nics).map(|(index, (attach, model))| nic(index, attach, model)).collect(),
        accelerator: Accelerator::Tcg,
    };
    Some(Machine { _folder: temporary, spec })
}

fn raw_disk(folder: &Path, index: usize, bus: DiskBus) -> DiskSpec {
    let path = folder.join(format!("disk{index}.raw"));
    File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let serial = Some(format!("drover-{index}"));
    DiskSpec { path, rbd: None, format: ImageFormat::Raw, bus, capacity_bytes: 4 << 20, serial }
}

fn nic(index: u8, attach: NicAttach, model: NicModel) -> NicSpec {
    NicSpec { mac: format!("00:50:56:aa:bb:{index:02x}"), attach, is_up: true, model }
}

fn options() -> RunOptions {
    RunOptions { screen: true, ..RunOptions::default() }
}

#[test]
fn a_machine_runs_is_found_and_stops() {
    let Some(machine) = machine() else { return };
    let folder = &machine.spec.folder;
    assert!(!is_running(folder).unwrap());
    let running = start(&machine.spec, &options()).unwrap();
    assert_eq!(running.qmp().unwrap().status().unwrap(), "running");
    assert!(is_running(folder).unwrap() && running.is_alive());
    assert_eq!(find_running(folder).unwrap().unwrap().pid, running.pid);
    assert_eq!(start(&machine.spec, &options()).unwrap_err().kind, QemuErrorKind::AlreadyRunning);
    assert_eq!(undo_definition(folder).unwrap_err().kind, QemuErrorKind::AlreadyRunning);
    running.stop(Duration::ZERO).unwrap();
    running.stop(Duration::ZERO).unwrap();
    assert!(!is_running(folder).unwrap() && !running.is_alive());
    // And once more, over what the first run left.
    start(&machine.spec, &options()).unwrap().stop(Duration::from_millis(100)).unwrap();
}

#[test]
fn auto_ends_with_an_accelerator_that_runs_and_says_why_it_is_slow() {
    let Some(mut machine) = machine() else { return };
    machine.spec.accelerator = Accelerator::Auto;
    let running = start(&machine.spec, &options()).unwrap();
    println!("{:?} {:?}", running.accelerator, running.notes);
    let forced = std::env::var_os("DROVER_ACCEL").is_some();
    assert_eq!(running.accelerator == Accelerator::Tcg && !forced, running.notes.len() == 1);
}

#[test]
fn a_machine_is_not_in_our_session() {
    let Some(machine) = machine() else { return };
    let running = start(&machine.spec, &options()).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", running.pid)).unwrap();
    let ours = fs::read_to_string("/proc/self/stat").unwrap();
    let session =
        |stat: &str| stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().to_string();
    assert_ne!(session(&stat), session(&ours));
}

#[test]
fn a_machine_that_was_killed_is_off_and_can_be_started_again() {
    let Some(machine) = machine() else { return };
    let running = start(&machine.spec, &options()).unwrap();
    assert!(Command::new("kill").args(["-9", &running.pid.to_string()]).status().unwrap().success());
    assert!(running.wait_off(PATIENCE));
    assert!(machine.spec.folder.pid_file().exists(), "a kill leaves its traces");
    assert!(!is_running(&machine.spec.folder).unwrap());
    start(&machine.spec, &options()).unwrap();
}

#[test]
fn uefi_boots_from_the_machines_own_variables_and_speaks_on_the_serial_line() {
    let Some(mut machine) = machine() else { return };
    let files = match Ovmf::find(false) {
        Ok(files) => Some(files),
        Err(error) => return println!("skipped: {error}"),
    };
    machine.spec.firmware = MachineFirmware::Uefi { secure_boot: false, files };
    let definition = write_definition(&machine.spec).unwrap();
    let running = start(&machine.spec, &options()).unwrap();
    // Nothing on the disks can be booted, and the firmware says so.
    running.wait_serial("BdsDxe", PATIENCE).unwrap();
    assert!(fs::metadata(definition.nvram_path.unwrap()).unwrap().len() > 0);
}

#[test]
fn secure_boot_starts_with_its_own_firmware() {
    let Some(mut machine) = machine() else { return };
    let files = match Ovmf::find(true) {
        Ok(files) => Some(files),
        Err(error) => return println!("skipped: {error}"),
    };
    machine.spec.firmware = MachineFirmware::Uefi { secure_boot: true, files };
    write_definition(&machine.spec).unwrap();
    let running = start(&machine.spec, &options()).unwrap();
    running.wait_serial("BdsDxe", PATIENCE).unwrap();
}

#[test]
fn dozens_of_disks_find_their_places() {
    let Some(mut machine) = machine() else { return };
    let folder = machine.spec.folder.path().to_path_buf();
    let buses = [DiskBus::Virtio, DiskBus::Scsi, DiskBus::Sata];
    machine.spec.disks = (0..60).map(|index| raw_disk(&folder, index, buses[index % 3])).collect();
    let running = start(&machine.spec, &options()).unwrap();
    let blocks = running.qmp().unwrap().execute("query-block", serde_json::Value::Null).unwrap();
    assert_eq!(blocks.as_array().unwrap().len(), 60);
}

#[test]
fn a_qcow2_disk_is_locked_against_a_second_machine() {
    let Some(mut first) = machine() else { return };
    let Some(mut second) = machine() else { return };
    let path = first.spec.folder.path().join("shared.qcow2");
    create_qcow2(&path, 4 << 20, &Qcow2Options::default()).unwrap();
    for spec in [&mut first.spec, &mut second.spec] {
        spec.disks[0].path = path.clone();
        spec.disks[0].format = ImageFormat::Qcow2;
    }
    start(&first.spec, &options()).unwrap();
    let error = start(&second.spec, &options()).unwrap_err();
    assert_eq!(error.kind, QemuErrorKind::Busy, "{}", error.chain());
    assert!(!is_running(&second.spec.folder).unwrap());
}

#[test]
fn a_machine_that_cannot_start_says_why() {
    let Some(mut machine) = machine() else { return };
    machine.spec.disks[0].path = PathBuf::from("/nonexistent/disk.raw");
    let error = start(&machine.spec, &options()).unwrap_err();
    assert_eq!(error.kind, QemuErrorKind::NotFound, "{}", error.chain());
    assert!(error.chain().contains("/nonexistent/disk.raw"), "{}", error.chain());
}

#[test]
fn the_run_script_runs_the_machine_and_drover_sees_it() {
    let Some(machine) = machine() else { return };
    let script = write_definition(&machine.spec).unwrap().run_script_path.unwrap();
    let until = Instant::now() + PATIENCE;
    let mut child = loop {
        match Command::new(&script).stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            // A program that another test starts holds the file as it was written, until it is its own.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => assert!(Instant::now() < until),
            child => break child.unwrap(),
        }
    };
    while !is_running(&machine.spec.folder).unwrap() {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(start(&machine.spec, &options()).unwrap_err().kind, QemuErrorKind::AlreadyRunning);
    find_running(&machine.spec.folder).unwrap().unwrap().stop(Duration::ZERO).unwrap();
    child.wait().unwrap();
}
