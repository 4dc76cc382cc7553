//! A trial of the converter's appliance: the small machine, built of the host's own kernel and programs, in which it looks into
//! disks. That the converter is installed does not mean that this machine comes up.
//!
//! The converter is given an empty disk. It starts its appliance, finds no system on the disk, and ends with just these words: so
//! the appliance works. A success is remembered until the converter, or what variables tell it, is another.
//!
//! ```text
//! FOLDER/tried        of the converter that worked: its file, size and time of change, its version, and such variables
//! FOLDER/trial.log    what one said that did not work
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::source::SourceBus;
use super::tool::{Lack, Tool};
use super::{Conversion, SourceGuest, Until, folder_of};
use crate::child::private_folder;
use crate::definition::write_file;
use crate::error::{QemuError, QemuErrorKind};
use crate::folder::VmFolder;
use crate::spec::{Accelerator, Cache, Clock, DiskBus, DiskSpec, ImageFormat, MachineFirmware, MachineSpec};

/// The name of the machine that the converter is given.
const NAME: &str = "drover-trial";

/// Trials of the converter of this machine, and what came of the last.
#[derive(Debug)]
pub struct Trials {
    /// Where results lie.
    folder: PathBuf,
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    stamp: String,
    result: Result<(), Lack>,
    at: Instant,
}

/// How the converter is tried.
pub struct TrialOptions<'a> {
    /// The converter; found in the usual places if absent.
    pub program: Option<PathBuf>,
    /// Longest time that it may take.
    pub time_max: Duration,
    /// Ends it.
    pub is_unwanted: &'a dyn Fn() -> bool,
    /// Called when the trial begins; not if its result is known.
    pub on_begin: &'a dyn Fn(),
}

impl Trials {
    /// Trials whose results lie in this folder, which is made when there is one.
    pub fn in_folder(folder: PathBuf) -> Trials {
        Trials { folder, last: Mutex::default() }
    }

    /// Tries the converter, unless it is known to work. Nothing to be tried is told by [`super::check_conversion`].
    ///
    /// # Errors
    /// Why its appliance does not come up.
    pub fn check(&self, options: &TrialOptions<'_>) -> Result<(), Lack> {
        let Some(tool) = Tool::find(options.program.as_deref()) else { return Ok(()) };
        let stamp = tool.stamp();
        // Held while it is tried: whoever comes meanwhile has the same question.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = |last: &&Last| {
            last.stamp == stamp && (last.result.is_ok() || last.at.elapsed() < FAILURE_COUNTS_FOR)
        };
        if let Some(last) = last.as_ref().filter(counts) {
            return last.result.clone();
        }
        let identity = format!("{stamp}version {}\n", tool.version());
        let result = match fs::read_to_string(self.remembered()) {
            Ok(found) if found == identity => Ok(()),
            _ => self.try_it(&tool, &identity, options),
        };
        if !(options.is_unwanted)() {
            *last = Some(Last { stamp, result: result.clone(), at: Instant::now() });
        }
        result
    }

    fn remembered(&self) -> PathBuf {
        self.folder.join("tried")
    }

    fn try_it(&self, tool: &Tool, identity: &str, options: &TrialOptions<'_>) -> Result<(), Lack> {
        (options.on_begin)();
        let until = Until { time_max: options.time_max, is_unwanted: options.is_unwanted };
        let failed = |error: QemuError| lack(&error, &self.folder.join("trial.log"));
        let (result, log) = run(tool, &until).map_err(|error| failed(io_error(error)))?;
        let kept = fs::create_dir_all(&self.folder).map_err(io_error).and_then(|()| match &result {
            Ok(()) => write_file(&self.remembered(), identity.as_bytes(), 0o644),
            Err(_) => write_file(&self.folder.join("trial.log"), log.as_bytes(), 0o644),
        });
        // Where nothing can be kept, it is tried again.
        drop(kept);
        result.map_err(failed)
    }
}

/// Runs the converter on an empty disk; gives what it said, too.
fn run(tool: &Tool, until: &Until<'_>) -> io::Result<(Result<(), QemuError>, String)> {
    let place = private_folder()?;
    let disk = place.path().join("empty.raw");
    fs::File::create(&disk)?.set_len(DISK_BYTES)?;
    let spec = machine(place.path(), &disk);
    let guest = SourceGuest { buses: vec![SourceBus::Scsi], ..SourceGuest::default() };
    let conversion = Conversion { spec: &spec, guest: &guest, folder: folder_of(&spec.folder), remote: &[] };
    let result = match conversion.try_to(tool, until) {
        Err(_) if conversion.said().cause.is_some_and(|cause| cause.contains(NO_SYSTEM)) => Ok(()),
        result => result,
    };
    Ok((result, conversion.words()))
}

fn machine(folder: &Path, disk: &Path) -> MachineSpec {
    let disk = DiskSpec {
        path: disk.to_path_buf(),
        rbd: None,
        format: ImageFormat::Raw,
        bus: DiskBus::Virtio,
        capacity_bytes: DISK_BYTES,
        serial: None,
    };
    MachineSpec {
        folder: VmFolder::new(folder),
        name: NAME.into(),
        uuid: None,
        title: None,
        description: None,
        firmware: MachineFirmware::Bios,
        cpus: 1,
        cores_per_socket: 1,
        memory_mib: 256,
        clock: Clock::Utc,
        disks: vec![disk],
        cache: Cache::Buffered,
        nics: Vec::new(),
        accelerator: Accelerator::Auto,
    }
}

fn io_error(error: io::Error) -> QemuError {
    QemuError::io("trial of the converter", error)
}

fn lack(error: &QemuError, log: &Path) -> Lack {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let what =
        format!("the appliance of virt-v2v-in-place, in which it looks into disks, does not work: {cause}");
    let known = CAUSES.iter().find(|(sign, _)| cause.contains(sign)).map(|(_, advice)| *advice);
    let advice = match known {
        Some(advice) => advice.to_string(),
        None if error.kind == QemuErrorKind::Timeout => {
            "without KVM it takes minutes to start for the first time: see whether this host is busy, then the same command again"
                .into()
        }
        None => "`libguestfs-test-tool` (package libguestfs-tools, or guestfs-tools) tells more".into(),
    };
    let advice =
        format!("{advice}; all that it said is in {}; `convert: never` does without it", log.display());
    Lack { what, advice }
}

/// Words of what fails most, with what to try. Source: libguestfs, guestfs-faq(1) and supermin(1).
const CAUSES: [(&str, &str); 3] = [
    ("passt", "remove the package passt, which does not start here; libguestfs then goes without it"),
    ("Permission denied", "let this user read the kernel in /boot and use /dev/kvm, or run drover as root"),
    (
        "supermin",
        "install a kernel that lies in /boot, which a container has not (apt-get install linux-image-amd64), or name one in \
         SUPERMIN_KERNEL and SUPERMIN_MODULES",
    ),
];

/// How virt-v2v ends on a disk without a system. Source: `convert/inspect_source.ml`, the same words from 2.2 to 2.10.
const NO_SYSTEM: &str = "inspection could not detect the source guest";
/// Room for a table of partitions, and no more.
const DISK_BYTES: u64 = 1 << 20;
/// Long enough for the VMs of one check or one run, and short enough for whoever repairs it meanwhile.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::validate::on_path;

    const FINDS_NOTHING: &str = "printf '%s\\n' 'virt-v2v-in-place: error: inspection could not detect the source guest (or ' \
        'physical machine).' '' 'If reporting bugs, run it' >&2; exit 1";

    struct Scene {
        place: tempfile::TempDir,
        trials: Trials,
        began: AtomicUsize,
        is_stopped: AtomicBool,
    }

    impl Scene {
        /// With a converter of that version that does this; `None` without QEMU's tools.
        fn new(version: &str, body: &str) -> Option<Scene> {
            if !on_path("qemu-img") {
                println!("skipped: no qemu-img");
                return None;
            }
            let place = tempfile::tempdir().unwrap();
            let trials = Trials::in_folder(place.path().join("state/converter"));
            let scene =
                Scene { place, trials, began: AtomicUsize::new(0), is_stopped: AtomicBool::new(false) };
            scene.put(version, body);
            Some(scene)
        }

        fn put(&self, version: &str, body: &str) {
            let script = format!(
                "if [ \"$1\" = --version ]; then echo 'virt-v2v-in-place {version}'; exit; fi\n\
                 grep -q '<name>drover-trial</name>' \"$3\" || exit 2\n{body}"
            );
            drover_lab::put_script(&self.program(), &script).unwrap();
        }

        fn program(&self) -> PathBuf {
            self.place.path().join("virt-v2v-in-place")
        }

        fn check_within(&self, time_max: Duration) -> Result<(), Lack> {
            self.trials.check(&TrialOptions {
                program: Some(self.program()),
                time_max,
                is_unwanted: &|| self.is_stopped.load(SeqCst),
                on_begin: &|| {
                    self.began.fetch_add(1, SeqCst);
                },
            })
        }

        fn check(&self) -> Result<(), Lack> {
            self.check_within(Duration::from_secs(60))
        }

        fn began(&self) -> usize {
            self.began.load(SeqCst)
        }

        /// As the next drover has it.
        fn next(mut self) -> Scene {
            self.trials = Trials::in_folder(self.trials.folder.clone());
            self
        }
    }

    #[test]
    fn an_appliance_that_works_is_not_tried_again_until_the_converter_is_another() {
        let Some(scene) = Scene::new("2.6.0", FINDS_NOTHING) else { return };
        assert_eq!((scene.check(), scene.check(), scene.began()), (Ok(()), Ok(()), 1));
        let scene = scene.next();
        assert_eq!((scene.check(), scene.began()), (Ok(()), 1), "the next drover knows it, too");
        scene.put("2.10.0", FINDS_NOTHING);
        assert_eq!((scene.check(), scene.began()), (Ok(()), 2), "another version");
        fs::write(scene.trials.remembered(), "something else").unwrap();
        let scene = scene.next();
        assert_eq!((scene.check(), scene.began()), (Ok(()), 3));
        assert!(!scene.trials.folder.join("trial.log").exists());
    }

    #[test]
    fn one_that_does_not_work_is_told_with_what_to_try_and_is_tried_again_later() {
        let body = "echo 'virt-v2v-in-place: error: libguestfs error: /usr/bin/supermin exited with error status 1.' >&2; exit 1";
        let Some(scene) = Scene::new("2.6.0", body) else { return };
        let lack = scene.check().unwrap_err();
        assert!(
            lack.what.ends_with("libguestfs error: /usr/bin/supermin exited with error status 1."),
            "{lack:?}"
        );
        assert!(lack.advice.starts_with("install a kernel") && lack.advice.contains("trial.log"), "{lack:?}");
        let log = fs::read_to_string(scene.trials.folder.join("trial.log")).unwrap();
        assert!(log.contains("supermin"), "{log}");
        assert_eq!((scene.check(), scene.began()), (Err(lack), 1), "of the next VM of the same check");
        // A kernel is installed, and the converter the same.
        scene.put(
            "2.6.0",
            &format!("if [ -e \"$(dirname \"$0\")/kernel\" ]; then {FINDS_NOTHING}; fi\n{body}"),
        );
        let scene = scene.next();
        assert!(scene.check().is_err());
        fs::write(scene.place.path().join("kernel"), "").unwrap();
        let scene = scene.next();
        assert_eq!((scene.check(), scene.began()), (Ok(()), 3));
    }

    #[test]
    fn one_that_hangs_is_given_up_and_so_is_one_that_nobody_waits_for() {
        let Some(scene) = Scene::new("2.6.0", "exec sleep 600") else {
            return;
        };
        let lack = scene.check_within(Duration::from_millis(300)).unwrap_err();
        assert!(lack.what.contains("not done after 0 s"), "{lack:?}");
        assert!(lack.advice.starts_with("without KVM it takes minutes"), "{lack:?}");
        let scene = scene.next();
        scene.is_stopped.store(true, SeqCst);
        assert!(scene.check().unwrap_err().what.contains("it was stopped"));
        scene.is_stopped.store(false, SeqCst);
        scene.put("2.6.0", FINDS_NOTHING);
        assert_eq!((scene.check(), scene.began()), (Ok(()), 3));
    }

    #[test]
    fn a_converter_that_ends_well_works_and_none_is_nothing_to_try() {
        let Some(scene) = Scene::new("2.6.0", "exit 0") else { return };
        assert_eq!((scene.check(), scene.began()), (Ok(()), 1));
    }
}
