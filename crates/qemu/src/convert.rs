//! Conversion of guests with `virt-v2v-in-place`, on overlays.
//!
//! ```text
//! copies ──> overlays ──> converter ──> fails:  overlays removed, copies as they were
//!                                  └──> ready:  state "converted", each overlay merged, state "committed", overlays removed
//!
//! convert/disk0.qcow2      overlay of the first disk
//! convert/domain.xml       the guest as its source had it, for the converter
//! convert/addresses.bat    for the first boot of Windows, of a guest whose cards are given addresses
//! convert/state            written whole and durable
//! convert/convert.log      the converter's words
//! ```
//!
//! Changes are merged into the copies rather than kept on top, so that a disk stays one file in the format that
//! was asked for. All overlays stay until all are merged, and none is emptied: a merge that is cut short at any
//! point, of any disk, is simply done again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::{self, Guarded, private_folder, run_of};
use crate::definition::{remove_if_there, write_file};
use crate::error::{QemuError, QemuErrorKind};
use crate::image::{HOURS, PACKAGE};
use crate::spec::{Accelerator, DiskBus, DiskSpec, ImageFormat, MachineSpec};
use drover_child::Kind;
use record::{State, folder_of, line_of, read_state, remote_line};
use said::{KEEPS, Said};
use tool::{NO_CONVERTER, Tool, With, cards_script};

mod addresses;
mod record;
mod said;
mod source;
mod tool;
mod trial;

pub use record::{forget_conversion, has_converted, is_converted};
pub use source::{FirstBoot, NicName, SourceBus, SourceGuest};
pub use tool::{GuestKind, Lack, WindowsVersion};
pub use trial::{TrialOptions, Trials};

/// How a guest is converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The converter; found in the usual places if absent.
    pub program: Option<PathBuf>,
    /// Longest time it may take.
    pub time_max: Duration,
    /// Images that are reached by NBD, in the order of the machine's disks; none: they are the files that it names.
    pub remote: Vec<Remote>,
}

/// An image of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it is served, writable; may be another place each time.
    pub uri: String,
    /// A line that tells it from others, and from a later one of its name.
    pub identity: String,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        // Without KVM a small guest took 4 minutes; the rest is room for large ones on busy machines.
        ConvertOptions { program: None, time_max: Duration::from_secs(3600), remote: Vec::new() }
    }
}

/// How a conversion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertOutcome {
    /// The images hold the converted guest, which has drivers for its disks' bus.
    Converted {
        /// What the converter said.
        log: PathBuf,
        /// What it warned of.
        warnings: Vec<String>,
        /// Network interfaces that keep their names.
        kept: Vec<String>,
    },
    /// An earlier run converted it.
    ConvertedBefore,
    /// There is no converter on this machine; why.
    NotAvailable(String),
}

/// Converts the guest of a machine whose images are complete and not in use.
///
/// Afterwards the images are not the source's any more, so compare them before. Done again, it goes on where
/// it was cut short, and never converts twice.
///
/// The converter is ended when `is_unwanted`; what it has done by then counts for nothing.
///
/// # Errors
/// If the converter fails, is ended, or has no drivers for the guest (the images are as they were), or an overlay cannot be
/// made or merged.
pub fn convert(
    spec: &MachineSpec,
    guest: &SourceGuest,
    options: &ConvertOptions,
    is_unwanted: &dyn Fn() -> bool,
) -> Result<ConvertOutcome, QemuError> {
    let conversion = Conversion { spec, guest, folder: folder_of(&spec.folder), remote: &options.remote };
    match conversion.state()? {
        State::Committed => {
            conversion.remove_overlays()?;
            return Ok(ConvertOutcome::ConvertedBefore);
        }
        State::Converted => {}
        State::Untouched => {
            let Some(tool) = Tool::find(options.program.as_deref()) else {
                return Ok(ConvertOutcome::NotAvailable(NO_CONVERTER.into()));
            };
            conversion.run(&tool, options.time_max, is_unwanted)?;
        }
    }
    conversion.commit()?;
    let Said { warnings, kept, .. } = conversion.said();
    Ok(ConvertOutcome::Converted { log: conversion.log(), warnings, kept })
}

/// Whether this machine has a converter.
///
/// # Errors
/// Why it has none.
pub fn can_convert() -> Result<(), String> {
    Tool::find(None).map(drop).ok_or_else(|| NO_CONVERTER.into())
}

/// Whether this machine has a converter that puts files into a guest: those that keep names of network interfaces, and work
/// for its first boot.
///
/// # Errors
/// Why not.
pub fn can_customize() -> Result<(), String> {
    match Tool::find(None) {
        Some(tool) if tool.can_write() => Ok(()),
        Some(_) => Err("this virt-v2v-in-place puts no files into guests (2.6 and later do)".into()),
        None => Err(NO_CONVERTER.into()),
    }
}

/// Whether this machine can convert a guest whose boot disk goes to that bus: the converter, and for Windows what it puts
/// into it.
///
/// # Errors
/// The first thing that is not there.
pub fn check_conversion(guest: GuestKind<'_>, boot_bus: DiskBus) -> Result<(), Lack> {
    match Tool::find(None) {
        Some(tool) => tool.check(guest, boot_bus),
        None => Err(Lack {
            what: NO_CONVERTER.into(),
            advice: "install it, choose `disk_bus: sata`, or write `convert: never` for a guest that has virtio drivers or is \
                     converted by other means"
                .into(),
        }),
    }
}

/// How long a converter may go on.
struct Until<'a> {
    time_max: Duration,
    is_unwanted: &'a dyn Fn() -> bool,
}

struct Conversion<'a> {
    spec: &'a MachineSpec,
    guest: &'a SourceGuest,
    folder: PathBuf,
    remote: &'a [Remote],
}

impl Conversion<'_> {
    fn run(&self, tool: &Tool, time_max: Duration, is_unwanted: &dyn Fn() -> bool) -> Result<(), QemuError> {
        let until = Until { time_max, is_unwanted };
        let done = self.try_to(tool, &until).and_then(|()| self.check_drivers());
        if done.is_err() {
            self.remove_overlays()?;
            return done;
        }
        self.sync_overlays()?;
        self.set_state(CONVERTED)
    }

    fn commit(&self) -> Result<(), QemuError> {
        for (index, overlay) in self.overlays().into_iter().enumerate() {
            let what = format!("merge of the converted {}", overlay.display());
            if let Some(remote) = self.remote.get(index) {
                // It may be served at another place than when the overlay was made.
                let mut moved = drover_child::command("qemu-img", Kind::Plain);
                moved
                    .args(["rebase", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", &remote.uri])
                    .arg(&overlay);
                run_of(PACKAGE, &mut moved, OVERLAY_TIME_MAX)?.check(&what)?;
            }
            let mut command = drover_child::command("qemu-img", Kind::Plain);
            // `-d` keeps the overlay's content, which must stay whole until all are merged.
            command.args(["commit", "-q", "-d", "-f", "qcow2"]).arg(&overlay);
            run_of(PACKAGE, &mut command, HOURS)?.check(what)?;
        }
        self.sync_images()?;
        self.set_state(COMMITTED)?;
        self.remove_overlays()
    }

    fn log(&self) -> PathBuf {
        self.folder.join("convert.log")
    }

    /// The machine with overlays for disks.
    fn on_overlays(&self) -> MachineSpec {
        let mut spec = self.spec.clone();
        for (disk, overlay) in spec.disks.iter_mut().zip(self.overlays()) {
            (disk.path, disk.format) = (overlay, ImageFormat::Qcow2);
        }
        spec
    }

    fn overlays(&self) -> Vec<PathBuf> {
        (0..self.spec.disks.len()).map(|index| self.folder.join(format!("disk{index}.qcow2"))).collect()
    }

    fn make_overlays(&self) -> Result<(), QemuError> {
        fs::create_dir_all(&self.folder).map_err(|error| self.failure("preparation", error))?;
        self.remove_overlays()?;
        for (index, (disk, overlay)) in self.spec.disks.iter().zip(self.overlays()).enumerate() {
            match self.remote.get(index) {
                Some(remote) => make_overlay_on(Path::new(&remote.uri), ImageFormat::Raw, &overlay)?,
                None => make_overlay(disk, &overlay)?,
            }
        }
        let xml = source::converter_xml(&self.on_overlays(), self.guest);
        write_file(&self.definition(), xml.as_bytes(), 0o644)?;
        match self.guest.first_boot.cards_script() {
            Some(script) => write_file(&cards_script(&self.definition()), script.as_bytes(), 0o644),
            None => Ok(()),
        }
    }

    fn remove_overlays(&self) -> Result<(), QemuError> {
        let files = self.overlays().into_iter().chain([self.definition(), cards_script(&self.definition())]);
        let removed = files.map(|file| if self.folder.exists() { remove_if_there(&file) } else { Ok(()) });
        removed.collect::<io::Result<()>>().map_err(|error| self.failure("clean-up", error))
    }

    fn sync_overlays(&self) -> Result<(), QemuError> {
        self.sync(self.overlays().iter().map(PathBuf::as_path))
    }

    fn sync_images(&self) -> Result<(), QemuError> {
        // Those of another host were flushed by the merge.
        let files = self.spec.disks.iter().skip(self.remote.len());
        self.sync(files.map(|disk| disk.path.as_path()))
    }

    fn sync<'a>(&self, mut files: impl Iterator<Item = &'a Path>) -> Result<(), QemuError> {
        files.try_for_each(|file| File::open(file)?.sync_all()).map_err(|error| self.failure("flush", error))
    }

    fn definition(&self) -> PathBuf {
        self.folder.join("domain.xml")
    }

    /// Runs the converter, a second time in emulation where its machine did not come up on KVM: that `/dev/kvm` opens does not
    /// prove that it works.
    fn try_to(&self, tool: &Tool, until: &Until<'_>) -> Result<(), QemuError> {
        let found = Accelerator::detect();
        let in_emulation = found.accelerator == Accelerator::Tcg;
        self.make_overlays()?;
        let mut log = File::create(self.log()).map_err(|error| self.failure("run", error))?;
        let with = self.tell_besides(tool, &mut log).map_err(|error| self.failure("run", error))?;
        let first = self.run_program(tool, until, (in_emulation, with), &log);
        let is_settled = in_emulation || found.forced || std::env::var_os(SETTINGS).is_some();
        match first {
            Err(error) if !is_settled && is_of_kvm(&self.words()) => {
                // It never began: its own machine looks into the overlays.
                self.make_overlays()?;
                writeln!(log, "drover: {AGAIN}").map_err(|error| self.failure("run", error))?;
                self.run_program(tool, until, (true, with), &log).map_err(|second| match second.kind {
                    QemuErrorKind::Timeout | QemuErrorKind::Stopped => second,
                    _ => error,
                })
            }
            first => first,
        }
    }

    /// Writes into the log what the converter does besides; gives what it can do of it.
    fn tell_besides(&self, tool: &Tool, log: &mut File) -> io::Result<With> {
        let names = self.tell_names(tool, log)?;
        let fallback = self.guest.fallback && tool.can_write();
        if self.guest.fallback && !fallback {
            writeln!(
                log,
                "drover: warning: its boot loader is not put where its firmware looks for one (virt-v2v 2.6 and later can do it)"
            )?;
        }
        Ok(With { names, fallback })
    }

    /// Writes into the log which interfaces keep their names; gives whether they do.
    fn tell_names(&self, tool: &Tool, log: &mut File) -> io::Result<bool> {
        let SourceGuest { names, names_maybe, .. } = self.guest;
        let mut all = names.iter().chain(names_maybe).peekable();
        let can = all.peek().is_some() && all.all(NicName::is_sane) && tool.can_write();
        for NicName { name, mac } in names {
            match can {
                true => writeln!(log, "{KEEPS}{name} of {mac}")?,
                false => writeln!(
                    log,
                    "drover: warning: the interface {name} may get another name (virt-v2v 2.6 and later can keep it)"
                )?,
            }
        }
        for NicName { name, mac } in names_maybe.iter().filter(|_| can) {
            writeln!(log, "{KEEPS}{name} of {mac} (if its settings name it)")?;
        }
        Ok(can)
    }

    /// It ends with us, so that it never works on overlays behind the back of a drover that was started anew.
    fn run_program(
        &self,
        tool: &Tool,
        until: &Until<'_>,
        (in_emulation, with): (bool, With),
        log: &File,
    ) -> Result<(), QemuError> {
        let mut command = tool.conversion(&self.definition(), self.guest, self.boot_bus(), with);
        if in_emulation && std::env::var_os(SETTINGS).is_none() {
            command.env(SETTINGS, "force_tcg");
        }
        let io = |error| self.failure("run", error);
        let guard = private_folder().map_err(io)?;
        let log = log.try_clone().map_err(io)?;
        let mut child = Guarded::spawn(&command, guard.path(), log).map_err(io)?;
        let status = child.wait_while(until.time_max, until.is_unwanted).map_err(io)?;
        child.stop();
        let words = child::tail(self.words().as_bytes());
        let (kind, why) = match status {
            Some(status) if status.success() => return Ok(()),
            Some(status) if words.is_empty() => (QemuErrorKind::Failed, status.to_string()),
            Some(_) => (QemuErrorKind::Failed, self.said().cause.unwrap_or(words)),
            None if (until.is_unwanted)() => {
                (QemuErrorKind::Stopped, "it was stopped; the images are as they were copied".to_string())
            }
            None => (
                QemuErrorKind::Timeout,
                format!("not done after {} s; last words: {words}", until.time_max.as_secs()),
            ),
        };
        Err(QemuError::new(kind, self.what()).because(why))
    }

    /// That the converter ended well does not mean that the guest has drivers.
    fn check_drivers(&self) -> Result<(), QemuError> {
        let needs = self.spec.disks.iter().any(|disk| disk.bus != DiskBus::Sata);
        let said = self.said();
        if !needs || said.drivers == Some(true) {
            return Ok(());
        }
        let mut why = match said.drivers {
            Some(_) => "it ended well, but the guest has no virtio drivers and would not boot".to_string(),
            None => {
                "it ended well, but its log does not say that the guest has virtio drivers now".to_string()
            }
        };
        if !said.warnings.is_empty() {
            why += &format!("; it warned: {}", said.warnings.join("; "));
        }
        why += "; install virtio-win for this Windows, or use `disk_bus: sata`";
        Err(QemuError::new(QemuErrorKind::Failed, self.what()).because(why))
    }

    fn what(&self) -> String {
        format!("conversion of {} (log in {})", self.spec.name, self.log().display())
    }

    fn said(&self) -> Said {
        Said::of(&self.words())
    }

    /// The end of what the converter said so far.
    fn words(&self) -> String {
        let bytes = fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_BYTES_MAX)..]).into_owned()
    }

    /// The bus of the disk that is booted from.
    fn boot_bus(&self) -> DiskBus {
        self.spec.disks.first().map_or(DiskBus::Virtio, |disk| disk.bus)
    }

    /// A state counts only for the very files it was written about: images that were removed and copied
    /// anew under the same names hold an unconverted guest again.
    fn state(&self) -> Result<State, QemuError> {
        let text = read_state(&self.folder).map_err(|error| self.failure("state", error))?;
        let Some(text) = text else { return Ok(State::Untouched) };
        let (state, images) = text.split_once('\n').unwrap_or((&text, ""));
        match state {
            CONVERTED | COMMITTED if images != self.images()? => Ok(State::Untouched),
            CONVERTED => Ok(State::Converted),
            COMMITTED => Ok(State::Committed),
            // Taking it for untouched could convert twice.
            _ => Err(self.failure("state", io::Error::other(format!("'{state}' is not known")))),
        }
    }

    fn set_state(&self, state: &str) -> Result<(), QemuError> {
        write_file(&self.folder.join("state"), format!("{state}\n{}", self.images()?).as_bytes(), 0o644)
    }

    /// A line for each image.
    fn images(&self) -> Result<String, QemuError> {
        let line = |(index, disk): (usize, &DiskSpec)| match self.remote.get(index) {
            Some(remote) => Ok(remote_line(&remote.identity) + "\n"),
            None => line_of(&disk.path),
        };
        let lines = self.spec.disks.iter().enumerate().map(line).collect::<io::Result<Vec<_>>>();
        lines.map(|lines| lines.concat()).map_err(|error| self.failure("look at the images", error))
    }

    fn failure(&self, step: &str, error: io::Error) -> QemuError {
        QemuError::io(format!("{step} of the conversion in {}", self.folder.display()), error)
    }
}

pub(crate) fn make_overlay(disk: &DiskSpec, overlay: &Path) -> Result<(), QemuError> {
    make_overlay_on(&disk.path, disk.format, overlay)
}

/// An overlay on what qemu-img opens by this name.
pub(crate) fn make_overlay_on(image: &Path, format: ImageFormat, overlay: &Path) -> Result<(), QemuError> {
    let mut command = drover_child::command("qemu-img", Kind::Plain);
    command.args(["create", "-q", "-f", "qcow2", "-F", format.as_str(), "-b"]).arg(image).arg(overlay);
    let what = format!("creation of the overlay {}", overlay.display());
    run_of(PACKAGE, &mut command, OVERLAY_TIME_MAX)?.check(what).map(drop)
}

/// Whether these are the words of a machine that did not come up, as on a broken `/dev/kvm`.
fn is_of_kvm(words: &str) -> bool {
    KVM_SIGNS.iter().any(|sign| words.contains(sign))
}

/// QEMU's words, and those of libguestfs where it lost its machine.
const KVM_SIGNS: [&str; 4] =
    ["failed to set MSR", "guestfs_launch failed", "appliance failed to start", "failed to initialize kvm"];
const AGAIN: &str = "the converter's machine did not come up on KVM; once more in emulation";
const SETTINGS: &str = "LIBGUESTFS_BACKEND_SETTINGS";
/// More than any converter says in its quiet mode.
const LOG_BYTES_MAX: usize = 4 << 20;
const CONVERTED: &str = "converted";
const COMMITTED: &str = "committed";
const OVERLAY_TIME_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Qcow2Options, create_qcow2};
    use crate::spec::DiskBus;
    use crate::spec::tests::{disk, machine};
    use crate::validate::on_path;

    /// Writes sevens to the start of each disk in the domain XML, and notes that it ran.
    const CONVERTS: &str = "echo x >> \"$(dirname \"$0\")/runs\"\n\
        sed -n \"s/.*source file='\\([^']*\\)'.*/\\1/p\" \"$3\" | while read -r image; do\n\
        qemu-io -f qcow2 -c 'write -q -P 7 0 64k' \"$image\" || exit 1\ndone\n\
        echo 'This guest has virtio drivers installed.'\n";

    /// As virt-v2v fails: a cause of several lines, then its advice.
    const FAILS: &str = "printf '%s\\n' 'virt-v2v-in-place: error: inspection could not detect the source guest (or ' 'physical machine).' '' \\\n\
        'No root device found in this operating system image.' '' \\\n\
        'If reporting bugs, run virt-v2v-in-place with debugging enabled and include ' 'the complete output:' '' \\\n\
        '  virt-v2v-in-place -v -x [...]' >&2; exit 1\n";

    struct Scene {
        folder: tempfile::TempDir,
        spec: MachineSpec,
        guest: SourceGuest,
        options: ConvertOptions,
    }

    impl Scene {
        /// A machine with a raw and a qcow2 disk, and a converter that runs `body`; `None` without QEMU's tools.
        fn new(body: &str) -> Option<Scene> {
            if !on_path("qemu-img") || !on_path("qemu-io") {
                println!("skipped: no qemu-img and qemu-io");
                return None;
            }
            let folder = tempfile::tempdir().unwrap();
            let mut spec = machine(folder.path());
            fs::write(&spec.disks[0].path, vec![1; 1 << 20]).unwrap();
            let mut second = disk(&folder.path().join("disk1.qcow2"), DiskBus::Virtio);
            second.format = ImageFormat::Qcow2;
            create_qcow2(&second.path, 1 << 20, &Qcow2Options::default()).unwrap();
            spec.disks.push(second);
            let guest = SourceGuest { buses: vec![SourceBus::Scsi; 2], ..SourceGuest::default() };
            let mut scene = Scene { folder, spec, guest, options: ConvertOptions::default() };
            scene.set_program(body);
            Some(scene)
        }

        fn set_program(&mut self, body: &str) {
            let program = self.folder.path().join("converter");
            drover_lab::put_script(&program, body).unwrap();
            self.options.program = Some(program);
        }

        fn convert(&self) -> Result<ConvertOutcome, QemuError> {
            convert(&self.spec, &self.guest, &self.options, &|| false)
        }

        fn conversion(&self) -> Conversion<'_> {
            Conversion {
                spec: &self.spec,
                guest: &self.guest,
                folder: folder_of(&self.spec.folder),
                remote: &self.options.remote,
            }
        }

        fn runs(&self) -> usize {
            fs::read_to_string(self.folder.path().join("runs")).unwrap_or_default().lines().count()
        }

        /// Whether both disks start with these bytes.
        fn disks_start_with(&self, first: u8, second: u8) -> bool {
            let read = format!("read -q -P {second} 0 64k");
            let mut command = drover_child::command("qemu-io", Kind::Plain);
            // A program that was just ended may still have it open.
            command.args(["-r", "-U", "-f", "qcow2", "-c", &read]).arg(&self.spec.disks[1].path);
            // qemu-io tells a differing pattern only in words.
            let ended = child::run(&mut command, Duration::from_secs(60)).unwrap();
            let differs = String::from_utf8_lossy(&ended.stdout).contains("failed");
            fs::read(&self.spec.disks[0].path).unwrap()[0] == first && ended.success && !differs
        }

        fn is_as_copied(&self) -> bool {
            self.disks_start_with(1, 0)
        }

        fn is_converted(&self) -> bool {
            self.disks_start_with(7, 7)
        }
    }

    #[test]
    fn a_conversion_changes_the_disks_once() {
        let Some(scene) = Scene::new(CONVERTS) else { return };
        assert!(scene.is_as_copied());
        assert!(matches!(scene.convert().unwrap(), ConvertOutcome::Converted { log, .. } if log.is_file()));
        assert_eq!(scene.convert().unwrap(), ConvertOutcome::ConvertedBefore);
        assert!(scene.is_converted());
        assert_eq!(scene.runs(), 1);
        // The state and the log are left, and no overlay.
        assert_eq!(fs::read_dir(scene.folder.path().join("convert")).unwrap().count(), 2);
    }

    #[test]
    fn a_merge_that_was_cut_short_is_done_again_and_the_converter_is_not() {
        let Some(scene) = Scene::new(CONVERTS) else { return };
        let conversion = scene.conversion();
        let tool = Tool::find(scene.options.program.as_deref()).unwrap();
        conversion.run(&tool, Duration::from_secs(60), &|| false).unwrap();
        assert!(scene.is_as_copied());
        // The first disk was merged, then drover was killed.
        let overlay = &conversion.overlays()[0];
        let mut commit = drover_child::command("qemu-img", Kind::Plain);
        commit.args(["commit", "-q", "-d", "-f", "qcow2"]).arg(overlay);
        assert!(child::run(&mut commit, Duration::from_secs(60)).unwrap().success);
        assert!(scene.disks_start_with(7, 0));
        scene.convert().unwrap();
        assert!(scene.is_converted());
        assert_eq!(scene.runs(), 1);
    }

    #[test]
    fn overlays_of_a_conversion_that_was_killed_are_not_used() {
        let Some(mut scene) = Scene::new("exit 1") else { return };
        scene.conversion().make_overlays().unwrap();
        scene.convert().unwrap_err();
        assert!(scene.is_as_copied());
        scene.conversion().make_overlays().unwrap();
        scene.set_program(CONVERTS);
        scene.convert().unwrap();
        assert!(scene.is_converted());
    }

    #[test]
    fn a_failed_conversion_costs_no_copy_and_can_be_tried_again() {
        let Some(mut scene) = Scene::new(&format!("{CONVERTS}{FAILS}")) else {
            return;
        };
        let error = scene.convert().unwrap_err();
        assert!(error.chain().contains("convert.log"), "{}", error.chain());
        assert!(error.chain().ends_with(": inspection could not detect the source guest (or physical machine). No root device found in this operating system image."), "{}", error.chain());
        assert!(scene.is_as_copied());
        scene.set_program(CONVERTS);
        scene.convert().unwrap();
        assert!(scene.is_converted());
    }

    #[test]
    fn an_end_without_drivers_is_no_conversion() {
        let without = format!(
            "{}echo 'virt-v2v-in-place: warning: there are no virtio drivers available for this version'\n\
             echo 'This guest does not have virtio drivers installed.'\n",
            CONVERTS.replace("echo 'This guest has virtio drivers installed.'\n", "")
        );
        let Some(mut scene) = Scene::new(&without) else { return };
        let error = scene.convert().unwrap_err().chain();
        assert!(error.contains("no virtio drivers and would not boot"), "{error}");
        assert!(error.contains("it warned: there are no virtio drivers available"), "{error}");
        assert!(scene.is_as_copied(), "nothing of it is merged");
        scene.set_program(&CONVERTS.replace("echo", "true"));
        assert!(scene.convert().unwrap_err().chain().contains("does not say"), "silence proves nothing");
        scene.set_program(CONVERTS);
        scene.convert().unwrap();
        assert!(scene.is_converted());
    }

    #[test]
    fn on_a_bus_that_every_guest_knows_drivers_are_not_asked_for() {
        let body = CONVERTS.replace("guest has virtio", "guest does not have virtio");
        let Some(mut scene) = Scene::new(&format!("{body}echo 'x: warning: no guest agent'\n")) else {
            return;
        };
        scene.spec.disks.iter_mut().for_each(|disk| disk.bus = DiskBus::Sata);
        let ConvertOutcome::Converted { warnings, .. } = scene.convert().unwrap() else { panic!() };
        assert_eq!(warnings, ["no guest agent"]);
        assert!(scene.is_converted());
    }

    #[test]
    fn a_machine_that_does_not_come_up_on_kvm_is_tried_in_emulation() {
        let body = format!(
            "if [ \"$LIBGUESTFS_BACKEND_SETTINGS\" != force_tcg ]; then echo 'error: failed to set MSR 0x10a'; exit 1; fi\n{CONVERTS}"
        );
        let Some(scene) = Scene::new(&body) else { return };
        // Where KVM cannot be opened or is forced, nothing is left to try: the first try is the one.
        let found = Accelerator::detect();
        let can_be_tried = found.accelerator == Accelerator::Tcg || !found.forced;
        assert_eq!(scene.convert().is_ok(), can_be_tried);
        assert_eq!(scene.is_converted(), can_be_tried);
        assert_eq!(scene.runs(), usize::from(can_be_tried));
    }

    #[test]
    fn the_converter_is_told_the_bus_of_the_source() {
        let told = format!("cp \"$3\" \"$(dirname \"$0\")/told.xml\"\n{CONVERTS}");
        let Some(scene) = Scene::new(&told) else { return };
        scene.convert().unwrap();
        let xml = fs::read_to_string(scene.folder.path().join("told.xml")).unwrap();
        for target in ["<target dev='sda' bus='scsi'/>", "<target dev='sdb' bus='scsi'/>"] {
            assert!(xml.contains(target), "{xml}");
        }
    }

    #[test]
    fn names_of_interfaces_are_kept_where_the_converter_can_write() {
        let body = |help: &str| {
            format!(
                "if [ \"$1\" = --help ]; then echo '{help}'; exit; fi\n[ \"$1\" != --write ] || shift 2\n{CONVERTS}"
            )
        };
        let Some(mut scene) = Scene::new(&body("-i --write")) else { return };
        scene.guest.names.push(NicName { mac: "00:50:56:aa:bb:cc".into(), name: "ens192".into() });
        let ConvertOutcome::Converted { kept, warnings, .. } = scene.convert().unwrap() else { panic!() };
        assert_eq!(kept, ["ens192 of 00:50:56:aa:bb:cc"]);
        assert_eq!(warnings, Vec::<String>::new());
        forget_conversion(&scene.spec.folder).unwrap();
        scene.set_program(&body("-i"));
        let ConvertOutcome::Converted { kept, warnings, .. } = scene.convert().unwrap() else { panic!() };
        assert_eq!(kept, Vec::<String>::new());
        assert!(warnings[0].contains("ens192 may get another name"), "{warnings:?}");
    }

    #[test]
    fn a_conversion_that_hangs_is_given_up() {
        let Some(mut scene) = Scene::new("exec sleep 600") else { return };
        scene.options.time_max = Duration::from_millis(300);
        assert_eq!(scene.convert().unwrap_err().kind, QemuErrorKind::Timeout);
        assert!(scene.is_as_copied());
    }

    #[test]
    fn a_conversion_that_nobody_wants_any_more_is_ended() {
        let Some(mut scene) = Scene::new(&format!("{CONVERTS}exec sleep 600")) else { return };
        let has_run = || scene.runs() > 0;
        let ended = convert(&scene.spec, &scene.guest, &scene.options, &has_run).unwrap_err();
        assert_eq!(ended.kind, QemuErrorKind::Stopped, "{}", ended.chain());
        assert!(scene.is_as_copied() && !is_converted(&scene.spec.folder, &[]));
        scene.set_program(CONVERTS);
        scene.convert().unwrap();
        assert!(scene.is_converted());
    }

    #[test]
    fn images_that_were_copied_anew_are_converted_anew() {
        let Some(scene) = Scene::new(CONVERTS) else { return };
        assert!(!is_converted(&scene.spec.folder, &[]));
        scene.convert().unwrap();
        assert!(is_converted(&scene.spec.folder, &[]));
        let first = &scene.spec.disks[0].path;
        fs::remove_file(first).unwrap();
        fs::write(first, vec![1; 1 << 20]).unwrap();
        assert!(!is_converted(&scene.spec.folder, &[]));
        assert!(matches!(scene.convert().unwrap(), ConvertOutcome::Converted { .. }));
        assert!(scene.is_converted());
        assert_eq!(scene.runs(), 2);
        forget_conversion(&scene.spec.folder).unwrap();
        forget_conversion(&scene.spec.folder).unwrap();
        assert!(!folder_of(&scene.spec.folder).exists());
    }

    #[test]
    fn a_state_that_nobody_knows_stops_the_conversion() {
        let Some(scene) = Scene::new(CONVERTS) else { return };
        fs::create_dir(scene.folder.path().join("convert")).unwrap();
        fs::write(scene.folder.path().join("convert/state"), "half").unwrap();
        assert!(scene.convert().unwrap_err().chain().contains("half"));
        assert!(scene.runs() == 0 && scene.is_as_copied());
    }
}
