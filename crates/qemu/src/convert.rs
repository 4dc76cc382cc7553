//! Conversion of guests with `virt-v2v-in-place`, on overlays.
//!
//! ```text
//! overlay beside each image ──> virt-v2v-in-place ──> failed:  overlays removed, images as they were
//!                                                └──> ready:   marked, then each overlay committed, then removed
//! ```
//!
//! A crash while overlays are being committed is mended by committing them again: the mark says so.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::{Ended, run};
use crate::definition::remove_if_there;
use crate::error::QemuError;
use crate::image::{PACKAGE, beside};
use crate::libvirt::libvirt_xml;
use crate::spec::{ImageFormat, MachineSpec};

/// How a guest is converted.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// The converter; found in the usual places if absent.
    pub program: Option<PathBuf>,
    /// Longest time it may take.
    pub time_max: Duration,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        // Half an hour covers emulation: a small guest took 4 minutes without KVM.
        ConvertOptions { program: None, time_max: Duration::from_secs(1800) }
    }
}

/// How a conversion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertOutcome {
    /// The images hold the converted guest; what the converter said is in the file.
    Converted(PathBuf),
    /// An earlier run converted it.
    ConvertedBefore,
    /// There is no converter on this machine; why.
    NotAvailable(String),
}

/// Debian's package of the converter.
const CONVERTER_PACKAGE: &str = "virt-v2v";
const PLACES: [&str; 3] =
    ["/usr/bin/virt-v2v-in-place", "/usr/libexec/virt-v2v-in-place", "/usr/lib/virt-v2v-in-place"];
const COMMIT_TIME_MAX: Duration = Duration::from_secs(3600);

/// Converts the guest of a machine whose images are complete and not in use.
///
/// # Errors
/// If the converter fails (the images are as they were), or an overlay cannot be made or committed.
pub fn convert(spec: &MachineSpec, options: &ConvertOptions) -> Result<ConvertOutcome, QemuError> {
    let paths = Paths::of(spec);
    if paths.done.exists() {
        return Ok(ConvertOutcome::ConvertedBefore);
    }
    if !paths.ready.exists() {
        let Some(program) = options.program.clone().or_else(find_program) else {
            return Ok(ConvertOutcome::NotAvailable(format!(
                "virt-v2v-in-place is not installed (package {CONVERTER_PACKAGE})"
            )));
        };
        let made =
            make_overlays(spec).and_then(|overlays| run_converter(&overlays, &program, options, &paths));
        if let Err(error) = made {
            remove_overlays(spec)?;
            return Err(error);
        }
        mark(&paths.ready)?;
    }
    commit(spec)?;
    mark(&paths.done)?;
    remove_if_there(&paths.ready).map_err(|error| QemuError::io("clean-up of a conversion", error))?;
    Ok(ConvertOutcome::Converted(paths.log))
}

struct Paths {
    log: PathBuf,
    /// The converter is done, and the overlays are being committed.
    ready: PathBuf,
    done: PathBuf,
}

impl Paths {
    fn of(spec: &MachineSpec) -> Paths {
        let folder = spec.folder.path();
        Paths {
            log: folder.join("convert.log"),
            ready: folder.join("convert.ready"),
            done: folder.join("convert.done"),
        }
    }
}

fn find_program() -> Option<PathBuf> {
    let in_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let candidates =
        in_path.map(|folder| folder.join("virt-v2v-in-place")).chain(PLACES.iter().map(PathBuf::from));
    candidates.into_iter().find(|path| path.is_file())
}

fn overlay_of(image: &Path) -> PathBuf {
    beside(image, "convert")
}

/// The machine with overlays in place of its images.
fn make_overlays(spec: &MachineSpec) -> Result<MachineSpec, QemuError> {
    let mut with_overlays = spec.clone();
    for disk in &mut with_overlays.disks {
        let overlay = overlay_of(&disk.path);
        let what = format!("overlay {}", overlay.display());
        remove_if_there(&overlay).map_err(|error| QemuError::io(&what, error))?;
        let mut command = Command::new("qemu-img");
        command
            .args(["create", "-q", "-f", "qcow2", "-F", disk.format.as_str(), "-b"])
            .arg(&disk.path)
            .arg(&overlay);
        run_image(&mut command, &what)?;
        disk.path = overlay;
        disk.format = ImageFormat::Qcow2;
    }
    Ok(with_overlays)
}

fn run_converter(
    spec: &MachineSpec,
    program: &Path,
    options: &ConvertOptions,
    paths: &Paths,
) -> Result<(), QemuError> {
    let what = format!("conversion of {}", spec.name);
    let io = |error| QemuError::io(&what, error);
    let xml = spec.folder.path().join("convert.xml");
    fs::write(&xml, libvirt_xml(spec)).map_err(io)?;
    let mut command = Command::new(program);
    command.args(["-i", "libvirtxml"]).arg(&xml);
    let ended = run(&mut command, options.time_max).map_err(io)?;
    write_log(&paths.log, &ended).map_err(io)?;
    remove_if_there(&xml).map_err(io)?;
    ended.check(format!("{what} (log in {})", paths.log.display())).map(|_| ())
}

fn write_log(path: &Path, ended: &Ended) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(&ended.stdout)?;
    file.write_all(&ended.stderr)
}

fn commit(spec: &MachineSpec) -> Result<(), QemuError> {
    for disk in &spec.disks {
        let overlay = overlay_of(&disk.path);
        if overlay.exists() {
            let mut command = Command::new("qemu-img");
            command.args(["commit", "-q", "-f", "qcow2"]).arg(&overlay);
            run_image(&mut command, &format!("commit of {}", overlay.display()))?;
            remove_if_there(&overlay).map_err(|error| QemuError::io("clean-up of a conversion", error))?;
        }
    }
    Ok(())
}

fn remove_overlays(spec: &MachineSpec) -> Result<(), QemuError> {
    let overlays = spec.disks.iter().map(|disk| overlay_of(&disk.path));
    overlays
        .into_iter()
        .try_for_each(|overlay| remove_if_there(&overlay))
        .map_err(|error| QemuError::io("removal of overlays", error))
}

fn run_image(command: &mut Command, what: &str) -> Result<(), QemuError> {
    crate::child::run_of(PACKAGE, command, COMMIT_TIME_MAX)?.check(what).map(|_| ())
}

fn mark(path: &Path) -> Result<(), QemuError> {
    let made = fs::File::create(path).and_then(|file| file.sync_all());
    made.and_then(|()| crate::image::sync_folder_of(path))
        .map_err(|error| QemuError::io(format!("mark {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{Accelerator, Cache, Clock, DiskBus, DiskSpec, MachineFirmware, VmFolder};

    fn machine(folder: &Path) -> MachineSpec {
        let path = folder.join("disk.raw");
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let disk = DiskSpec {
            path,
            format: ImageFormat::Raw,
            bus: DiskBus::Virtio,
            capacity_bytes: 1 << 20,
            serial: None,
        };
        MachineSpec {
            folder: VmFolder::new(folder),
            name: "m".into(),
            uuid: None,
            title: None,
            description: None,
            firmware: MachineFirmware::Bios,
            cpus: 1,
            cores_per_socket: 1,
            memory_mib: 64,
            clock: Clock::Utc,
            disks: vec![disk],
            cache: Cache::Buffered,
            nics: Vec::new(),
            accelerator: Accelerator::Tcg,
        }
    }

    fn has_qemu_img() -> bool {
        let there = Command::new("qemu-img").arg("--version").output().is_ok();
        if !there {
            println!("skipped: qemu-img is not installed");
        }
        there
    }

    /// A stand-in that writes into the first overlay it finds in the XML, then ends as told.
    fn program(folder: &Path, ends: u8) -> ConvertOptions {
        let path = folder.join("fake-v2v");
        let script = format!(
            "#!/bin/sh\nf=$(sed -n \"s/.*source file='\\([^']*\\)'.*/\\1/p; s/.*source file=\\\"\\([^\\\"]*\\)\\\".*/\\1/p\" \"$3\" | head -n 1)\n\
             echo \"converting $f\"\nqemu-io -f qcow2 -c 'write -P 9 0 64k' \"$f\" >/dev/null || exit 9\nexit {ends}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        ConvertOptions { program: Some(path), ..ConvertOptions::default() }
    }

    #[test]
    fn a_conversion_that_succeeds_changes_the_image_once() {
        if !has_qemu_img() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let spec = machine(folder.path());
        let options = program(folder.path(), 0);
        let outcome = convert(&spec, &options).unwrap();
        assert!(
            matches!(outcome, ConvertOutcome::Converted(log) if fs::read_to_string(&log).unwrap().contains("converting"))
        );
        let bytes = fs::read(&spec.disks[0].path).unwrap();
        assert!(bytes[..65536].iter().all(|byte| *byte == 9) && bytes[65536..].iter().all(|byte| *byte == 7));
        assert_eq!(convert(&spec, &options).unwrap(), ConvertOutcome::ConvertedBefore);
        assert!(!overlay_of(&spec.disks[0].path).exists());
    }

    #[test]
    fn a_conversion_that_fails_leaves_the_image_as_it_was() {
        if !has_qemu_img() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let spec = machine(folder.path());
        convert(&spec, &program(folder.path(), 1)).unwrap_err();
        assert!(fs::read(&spec.disks[0].path).unwrap().iter().all(|byte| *byte == 7));
        assert!(!overlay_of(&spec.disks[0].path).exists());
        convert(&spec, &program(folder.path(), 0)).unwrap();
    }
}
