//! Rehearsals: a machine booted from throw-away overlays of its images, with no network but an emulated one that leads nowhere.
//!
//! ```text
//! images ──> overlays ──> QEMU ──> asked ──> killed, overlays removed
//! .drover-rehearsal/disk0.qcow2   overlay of the first disk
//! .drover-rehearsal/nvram.fd      a copy of the machine's UEFI variables
//! ```
//!
//! Images of another host and those of Ceph are served by NBD, and their overlays lie on that. QEMU opens what is below overlays
//! for reading only. It runs under a guard: when this process is gone, however that happened, the guard ends it and removes the folder.
//! What a crash of the whole host leaves is removed by the next rehearsal, or when the plan is run again.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::child::{self, Guarded};
use crate::command::{RunOptions, Serial, qemu_command};
use crate::convert::{make_overlay, make_overlay_on};
use crate::error::{QemuError, QemuErrorKind};
use crate::folder::VmFolder;
use crate::machine::kill_machine;
use crate::process::{find_pid, wait_gone};
use crate::spec::{Accelerator, ImageFormat, MachineFirmware, MachineSpec, NicAttach};
use drover_child::Kind;

/// A port of this host's loopback address that leads to one of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Port on 127.0.0.1.
    pub here: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// A machine prepared for a rehearsal, not started yet: its disks are overlays.
#[derive(Debug)]
pub struct Prepared {
    spec: MachineSpec,
    folder: Gone,
}

/// A machine that runs from overlays.
#[derive(Debug)]
pub struct Rehearsal {
    // Fields drop in this order: first the machine goes, then its folder.
    guarded: Guarded,
    spec: MachineSpec,
    /// What executes it.
    pub accelerator: Accelerator,
    _folder: Gone,
}

/// A folder that goes with the value.
#[derive(Debug)]
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        // The guard has removed it already, or the next rehearsal does.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes overlays of a machine's images in a folder of their own. The machine must not run. `served` is where images are served
/// by NBD as raw disks, in the order of the disks; nothing: they are the files that the machine names.
///
/// # Errors
/// If an image is in use by somebody who writes, or an overlay cannot be made; then nothing is left.
pub fn prepare_rehearsal(spec: &MachineSpec, served: &[Option<String>]) -> Result<Prepared, QemuError> {
    spec.check()?;
    forget_rehearsal(&spec.folder)?;
    let path = rehearsal_folder(&spec.folder);
    let failed = |error| QemuError::io(format!("creation of {}", path.display()), error);
    fs::create_dir_all(&path).map_err(failed)?;
    let folder = Gone(path.clone());
    fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(failed)?;
    let inner = VmFolder::new(&path);
    let mut rehearsed = MachineSpec { folder: inner.clone(), ..spec.clone() };
    for (number, (disk, image)) in rehearsed.disks.iter_mut().zip(&spec.disks).enumerate() {
        let overlay = path.join(format!("disk{number}.qcow2"));
        match served.get(number).and_then(Option::as_deref) {
            Some(uri) => make_overlay_on(Path::new(uri), ImageFormat::Raw, &overlay)?,
            None => make_overlay(image, &overlay)?,
        }
        (disk.path, disk.rbd, disk.format) = (overlay, None, ImageFormat::Qcow2);
    }
    rehearsed.cache = crate::spec::Cache::for_files(rehearsed.disks.iter().map(|disk| disk.path.as_path()));
    if let MachineFirmware::Uefi { files: Some(files), .. } = &spec.firmware {
        let own = spec.folder.nvram();
        let from = if own.exists() { own } else { files.vars_template.clone() };
        fs::copy(&from, inner.nvram()).map_err(failed)?;
        fs::set_permissions(inner.nvram(), Permissions::from_mode(0o600)).map_err(failed)?;
    }
    Ok(Prepared { spec: rehearsed, folder })
}

/// Ends and removes what a rehearsal left that was cut off together with its guard. Fine if there is nothing.
///
/// # Errors
/// If a QEMU that runs from the overlays does not end, or its folder cannot be removed.
pub fn forget_rehearsal(folder: &VmFolder) -> Result<(), QemuError> {
    let path = rehearsal_folder(folder);
    // Who runs from overlays has them in this folder, which goes after it. It is asked for before each copy, and a look at all
    // processes costs more.
    if fs::symlink_metadata(&path).is_err_and(|error| is_none(&error)) {
        return Ok(());
    }
    // Its guard, if there is one still, names the same pid file.
    while let Some(pid) = find_pid(&VmFolder::new(&path))? {
        kill_machine(pid);
        if !wait_gone(pid, END_TIME_MAX) {
            let what =
                format!("QEMU process {pid}, which runs a rehearsal in {}, does not end", path.display());
            return Err(QemuError::new(QemuErrorKind::Timeout, what));
        }
    }
    match fs::remove_dir_all(&path) {
        Err(error) if !is_none(&error) => Err(QemuError::io(format!("removal of {}", path.display()), error)),
        _ => Ok(()),
    }
}

fn is_none(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Where a machine's overlays lie.
fn rehearsal_folder(folder: &VmFolder) -> PathBuf {
    folder.path().join(".drover-rehearsal")
}

impl Prepared {
    /// The machine with overlays for disks, to be converted before it is started.
    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Starts the machine. Its first NIC is on an emulated network without a way out, the others are on nothing.
    ///
    /// # Errors
    /// QEMU's own words; [`QemuErrorKind::Missing`] without QEMU or firmware.
    pub fn start(mut self, forwards: &[Forward]) -> Result<Rehearsal, QemuError> {
        for (number, nic) in self.spec.nics.iter_mut().enumerate() {
            nic.attach = if number == 0 { NicAttach::User } else { NicAttach::None };
            nic.is_up = true;
        }
        let detected = match self.spec.accelerator {
            Accelerator::Auto => Accelerator::detect(),
            accelerator => crate::Detected { accelerator, forced: true, reason: String::new() },
        };
        let (guarded, accelerator) = match launch(&self.spec, detected.accelerator, forwards) {
            Err(_) if detected.accelerator == Accelerator::Kvm && !detected.forced => {
                (launch(&self.spec, Accelerator::Tcg, forwards)?, Accelerator::Tcg)
            }
            launched => (launched?, detected.accelerator),
        };
        Ok(Rehearsal { guarded, spec: self.spec, accelerator, _folder: self.folder })
    }
}

impl Rehearsal {
    /// The folder that holds its serial log.
    pub fn folder(&self) -> &Path {
        self.spec.folder.path()
    }

    /// The last of what the guest wrote to its serial port.
    pub fn serial(&self) -> String {
        let log = fs::read(self.spec.folder.serial_log()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(SERIAL_BYTES_MAX)..]).into_owned()
    }

    /// Whether the machine still runs; it ends when the guest switches off.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.guarded.wait(Duration::ZERO), Ok(None))
    }

    /// QEMU's last words.
    pub fn words(&self) -> String {
        child::tail(&fs::read(self.spec.folder.qemu_log()).unwrap_or_default())
    }
}

fn launch(spec: &MachineSpec, accelerator: Accelerator, forwards: &[Forward]) -> Result<Guarded, QemuError> {
    let what = format!("rehearsal of {} under {}", spec.name, accelerator.as_str());
    let spec = MachineSpec { accelerator, ..spec.clone() };
    let words = qemu_command(&spec, &RunOptions { serial: Serial::File, ..RunOptions::default() })?;
    let words = isolated(words, forwards);
    if let Some(open) = open_network(&words) {
        return Err(QemuError::new(QemuErrorKind::Invalid, what)
            .because(format!("internal error: {open} is not cut off")));
    }
    let program = drover_child::find_program(&words[0], &[])
        .ok_or_else(|| child::start_error("qemu-system-x86", &words[0], io::ErrorKind::NotFound.into()))?;
    let mut command = drover_child::command(program, Kind::Plain);
    command.args(&words[1..]).current_dir(spec.folder.path());
    let log = File::create(spec.folder.qemu_log());
    let mut guarded = log
        .and_then(|log| Guarded::spawn(&command, spec.folder.path(), log))
        .map_err(|error| QemuError::io(&what, error))?;
    // A KVM that cannot run the guest, and an image that is in use, show themselves in this time.
    let until = Instant::now() + SETTLE_TIME;
    while Instant::now() < until {
        if let Ok(Some(status)) = guarded.wait(Duration::ZERO) {
            let words = child::tail(&fs::read(spec.folder.qemu_log()).unwrap_or_default());
            let why = if words.is_empty() { status.to_string() } else { words };
            return Err(QemuError::new(QemuErrorKind::of_words(&why), what).because(why));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(guarded)
}

/// With the network of the first NIC cut off: neither the host nor anything beyond is reached from it.
fn isolated(words: Vec<String>, forwards: &[Forward]) -> Vec<String> {
    let forwarded: String = forwards
        .iter()
        .map(|Forward { here, guest }| format!(",hostfwd=tcp:127.0.0.1:{here}-:{guest}"))
        .collect();
    let cut = |word: String| match word.as_str() {
        "user,id=net0" => format!("user,id=net0,restrict=on{forwarded}"),
        _ => word,
    };
    words.into_iter().map(cut).collect()
}

/// A network that leads somewhere, if there is one after all.
fn open_network(words: &[String]) -> Option<&String> {
    let networks = words.iter().zip(words.iter().skip(1)).filter(|(key, _)| *key == "-netdev");
    let is_cut =
        |it: &str| it.starts_with("hubport,") || it.starts_with("user,") && it.contains(",restrict=on");
    networks.map(|(_, it)| it).find(|it| !is_cut(it))
}

const END_TIME_MAX: Duration = Duration::from_secs(10);
const SETTLE_TIME: Duration = Duration::from_secs(1);
const SERIAL_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::qemu_command;
    use crate::daemon::tests::ceph;
    use crate::image::image_info;
    use crate::server::{Access, ImageServer};
    use crate::spec::tests::{disk, machine, nic};
    use crate::spec::{DiskBus, DiskSpec};
    use crate::validate::on_path;
    use drover_types::NicModel;

    #[test]
    fn the_network_of_a_rehearsal_leads_nowhere() {
        let mut spec = machine(Path::new("/vm"));
        spec.nics = vec![nic(NicAttach::User, NicModel::Virtio), nic(NicAttach::None, NicModel::Virtio)];
        let words = qemu_command(&spec, &RunOptions::default()).unwrap();
        let words = isolated(words, &[Forward { here: 4022, guest: 22 }]);
        let networks: Vec<&String> = words
            .iter()
            .zip(words.iter().skip(1))
            .filter(|(key, _)| *key == "-netdev")
            .map(|(_, it)| it)
            .collect();
        assert_eq!(
            networks,
            ["user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:4022-:22", "hubport,id=net1,hubid=1"]
        );
    }

    #[test]
    fn overlays_lie_on_what_is_served_and_else_on_the_files() {
        if !["qemu-img", "qemu-nbd"].into_iter().all(on_path) {
            println!("skipped: no qemu-img or qemu-nbd");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (served, file) = (folder.path().join("served"), folder.path().join("disk1.raw"));
        for image in [&served, &file] {
            File::create(image).unwrap().set_len(1 << 20).unwrap();
        }
        let server = ImageServer::open(&served, ImageFormat::Raw, Access::Read).unwrap();
        let in_ceph = disk(Path::new("rbd:vms/web01-0.raw"), DiskBus::Virtio);
        let in_ceph = DiskSpec { rbd: Some(ceph()), ..in_ceph };
        let spec = MachineSpec {
            disks: vec![in_ceph, disk(&file, DiskBus::Virtio)],
            ..machine(&folder.path().join("vm"))
        };
        let prepared = prepare_rehearsal(&spec, &[Some(server.uri().to_string()), None]).unwrap();
        let below = |number: usize| {
            let overlay = &prepared.spec().disks[number];
            assert!(overlay.rbd.is_none() && overlay.path.starts_with(prepared.spec().folder.path()));
            image_info(&overlay.path, overlay.format).unwrap().backing_file.unwrap()
        };
        assert_eq!([below(0), below(1)], [server.uri().to_string(), file.display().to_string()]);
        let overlays = prepared.spec().folder.path().to_path_buf();
        drop(prepared);
        assert!(!overlays.exists());
    }

    #[test]
    fn what_an_earlier_rehearsal_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let vm = VmFolder::new(folder.path());
        forget_rehearsal(&vm).unwrap();
        fs::create_dir(rehearsal_folder(&vm)).unwrap();
        fs::write(rehearsal_folder(&vm).join("disk0.qcow2"), "x").unwrap();
        forget_rehearsal(&vm).unwrap();
        assert!(!rehearsal_folder(&vm).exists() && folder.path().exists());
    }
}
