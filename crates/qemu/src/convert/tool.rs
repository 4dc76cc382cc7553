//! The converter on this machine: where it is, what it lacks for a guest, and how it is called.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::SourceGuest;
use super::source::{FALLBACK_SCRIPT, names_script};
use crate::child;
use crate::spec::DiskBus;
use drover_child::Kind;
use drover_child::find_program;

/// Something that a conversion needs and that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// What it is.
    pub what: String,
    /// What to try.
    pub advice: String,
}

/// What a guest is, as far as its conversion wants something that others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind<'a> {
    /// Windows.
    Windows {
        /// The guest id of vSphere, which tells the version; empty where it is not known.
        guest_id: &'a str,
    },
    /// Windows of a version that was found in its disks.
    FoundWindows(WindowsVersion),
    /// Anything else.
    Other,
}

/// A version of Windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowsVersion {
    /// The number of its build, such as 17763; absent where it is not known.
    pub build: Option<u32>,
    /// Whether it is a server.
    pub is_server: bool,
}

impl WindowsVersion {
    /// Folders of virtio-win with drivers for it; none where any may do.
    fn drivers(self) -> &'static [&'static str] {
        let Some(build) = self.build else { return &[] };
        let found = DRIVERS_OF.iter().rfind(|(first, ..)| build >= *first);
        found.map(|(_, server, client)| if self.is_server { *server } else { *client }).unwrap_or_default()
    }
}

/// What a converter is to do besides, as far as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct With {
    /// Keep the names of network interfaces.
    pub(super) names: bool,
    /// Put the boot loader where a firmware without boot entries starts it.
    pub(super) fallback: bool,
}

/// A converter, and where it looks for what it puts into Windows.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    program: PathBuf,
    /// Places of virtio-win, of which the first that is there counts.
    virtio_win: Vec<PathBuf>,
    /// Folders of the service that runs scripts at the first boot of Windows.
    services: Vec<PathBuf>,
}

impl Tool {
    /// The one of this machine.
    pub(super) fn find(told: Option<&Path>) -> Option<Tool> {
        let program = told.map(Path::to_path_buf).or_else(find_converter)?;
        let drivers = std::env::var_os("VIRTIO_WIN").map(PathBuf::from);
        let virtio_win = drivers.map_or(VIRTIO_WIN.map(PathBuf::from).to_vec(), |told| vec![told]);
        let services = match std::env::var_os("VIRT_TOOLS_DATA_DIR") {
            Some(told) => vec![PathBuf::from(told)],
            None => {
                let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
                vec![prefix.join("share/virt-tools"), PathBuf::from(VIRT_TOOLS)]
            }
        };
        Some(Tool { program, virtio_win, services })
    }

    /// What it lacks for a guest whose boot disk goes to this bus.
    pub(super) fn check(&self, guest: GuestKind<'_>, boot_bus: DiskBus) -> Result<(), Lack> {
        let (folders, whose, correct) = match guest {
            GuestKind::Other => return Ok(()),
            GuestKind::Windows { guest_id } => {
                let whose = format!("the Windows of the guest id {guest_id}");
                (drivers_for(guest_id), whose, LOOK)
            }
            GuestKind::FoundWindows(version) => {
                let build = version.build.map(|build| format!(", build {build}")).unwrap_or_default();
                (version.drivers(), format!("the Windows that was found in it{build}"), LOOK_AGAIN)
            }
        };
        if !self.services.iter().any(|folder| SERVICES.iter().any(|name| folder.join(name).is_file())) {
            return Err(Lack {
                what: "virt-v2v-in-place needs rhsrvany.exe to convert Windows, which is not installed".into(),
                advice: "install the package rhsrvany (Debian 12: from its backports), or name the folder that has it in the \
                         variable VIRT_TOOLS_DATA_DIR"
                    .into(),
            });
        }
        let driver = if boot_bus == DiskBus::Scsi { "vioscsi" } else { "viostor" };
        let install = "install virtio-win (an rpm or ISO by Red Hat or Fedora), or name its folder or ISO in the variable VIRTIO_WIN";
        match self.virtio_win.iter().find(|place| place.exists()) {
            None => {
                return Err(Lack {
                    what: "virtio-win, which has the drivers for Windows, is not installed".into(),
                    advice: install.into(),
                });
            }
            // What is in an ISO the converter looks at.
            Some(place) if place.is_dir() && !holds(place, driver, &[]) => {
                return Err(Lack {
                    what: format!("{} has no driver {driver}", place.display()),
                    advice: install.into(),
                });
            }
            Some(place) if place.is_dir() && !holds(place, driver, folders) => {
                return Err(Lack {
                    what: format!(
                        "{} has a driver {driver}, but none for {whose} ({})",
                        place.display(),
                        folders.join(", ")
                    ),
                    advice: format!("{install}{correct}"),
                });
            }
            Some(_) => {}
        }
        if boot_bus == DiskBus::Scsi && !self.knows_block_drivers() {
            return Err(Lack {
                what: "this virt-v2v-in-place cannot have Windows start from virtio-scsi (--block-driver came with 2.6)".into(),
                advice: "choose `disk_bus: virtio` or `disk_bus: sata`, or install virt-v2v 2.6 or later".into(),
            });
        }
        Ok(())
    }

    /// What tells it from another: its file, and the variables that decide how its appliance is made.
    pub(super) fn stamp(&self) -> String {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(&self.program).map(|it| (it.len(), it.mtime(), it.mtime_nsec()));
        let (bytes, seconds, nanoseconds) = file.unwrap_or_default();
        let mut stamp = format!("{} {bytes} {seconds}.{nanoseconds:09}\n", self.program.display());
        for name in MAKE_IT {
            if let Some(value) = std::env::var_os(name) {
                stamp += &format!("{name}={}\n", value.display());
            }
        }
        stamp
    }

    /// What it calls its version.
    pub(super) fn version(&self) -> String {
        let mut version = self.command();
        version.arg("--version");
        let ended = child::run(&mut version, HELP_TIME_MAX);
        let words = ended.map(|ended| String::from_utf8_lossy(&ended.stdout).into_owned());
        words.unwrap_or_default().lines().next().unwrap_or_default().trim().to_string()
    }

    fn knows_block_drivers(&self) -> bool {
        self.knows(BLOCK_DRIVER)
    }

    /// Whether it writes files into a guest, and has it run others, as it does from 2.6 on.
    pub(super) fn can_write(&self) -> bool {
        self.knows(WRITE)
    }

    fn knows(&self, option: &str) -> bool {
        let mut help = self.command();
        help.arg("--help");
        child::run(&mut help, HELP_TIME_MAX)
            .is_ok_and(|ended| String::from_utf8_lossy(&ended.stdout).contains(option))
    }

    /// The conversion of what `definition` describes.
    pub(super) fn conversion(
        &self,
        definition: &Path,
        guest: &SourceGuest,
        boot_bus: DiskBus,
        with: With,
    ) -> Command {
        let mut command = self.command();
        if guest.is_windows && boot_bus == DiskBus::Scsi {
            // One storage driver starts at boot: viostor, unless told otherwise.
            command.args([BLOCK_DRIVER, "virtio-scsi"]);
        }
        for name in guest.names.iter().filter(|_| with.names) {
            command.arg(WRITE).arg(name.written());
        }
        if with.names && !guest.names_maybe.is_empty() {
            command.arg(RUN).arg(names_script(&guest.names_maybe));
        }
        if with.fallback {
            command.arg(RUN).arg(FALLBACK_SCRIPT);
        }
        command.args(guest.first_boot.words(&cards_script(definition)));
        command.args(["-i", "libvirtxml"]).arg(definition);
        command
    }

    fn command(&self) -> Command {
        let mut command = drover_child::command(&self.program, Kind::Converter);
        // Its words are read.
        command.env("LC_ALL", "C").env_remove("LANGUAGE");
        if std::env::var_os(BACKEND).is_none() {
            // No libvirtd is needed to look into a disk.
            command.env(BACKEND, "direct");
        }
        command
    }
}

/// Where the script is that gives cards their addresses: beside what the converter is told of the guest.
pub(super) fn cards_script(definition: &Path) -> PathBuf {
    definition.with_file_name("addresses.bat")
}

/// Folders of virtio-win with drivers for a Windows, by its guest id; none where any may do.
fn drivers_for(guest_id: &str) -> &'static [&'static str] {
    let id = guest_id.to_ascii_lowercase();
    let found = DRIVERS_FOR.iter().find(|(start, _)| id.starts_with(start));
    found.map(|(_, folders)| *folders).unwrap_or_default()
}

/// What a folder is called in [`DRIVERS_FOR`]: `Win2012R2` and `2k12R2` are one, and so are `Win7` and `w7`.
fn folder_name(name: &OsStr) -> String {
    let name = name.to_string_lossy().to_ascii_lowercase();
    match (name.strip_prefix("win20"), name.strip_prefix("win")) {
        (Some(year), _) => format!("2k{}", year.trim_start_matches('0')),
        (None, Some("xp")) => "xp".into(),
        (None, Some(number)) if number.starts_with(|c: char| c.is_ascii_digit()) => format!("w{number}"),
        (None, _) => name,
    }
}

/// Whether a folder has a driver of this name, at a depth where trees of virtio-win have them, and below a folder of one of these
/// names, if there are any.
fn holds(folder: &Path, driver: &str, below: &[&str]) -> bool {
    let mut left = ENTRIES_MAX;
    search(folder, (driver, below), DEPTH_MAX, &mut left)
}

fn search(folder: &Path, (driver, below): (&str, &[&str]), depth: usize, left: &mut usize) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    for entry in entries.flatten() {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let path = entry.path();
        let is_named = |it: &std::ffi::OsStr| it.to_string_lossy().eq_ignore_ascii_case(driver);
        let is_driver = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("inf"));
        if below.is_empty() && is_driver && path.file_stem().is_some_and(is_named) {
            return true;
        }
        let is_below = path.file_name().is_some_and(|name| below.contains(&folder_name(name).as_str()));
        let below: &[&str] = if is_below { &[] } else { below };
        if depth > 0 && path.is_dir() && search(&path, (driver, below), depth - 1, left) {
            return true;
        }
    }
    false
}

fn find_converter() -> Option<PathBuf> {
    find_program("virt-v2v-in-place", &["/usr/libexec", "/usr/lib", "/usr/lib/virt-v2v"])
}

pub(super) const NO_CONVERTER: &str = "virt-v2v-in-place is not installed (package virt-v2v)";
const LOOK: &str =
    "; or have `drover plan check --inspect` find which Windows it is, if the guest id is an old one";
const LOOK_AGAIN: &str = "; or run `drover plan check --inspect` again, if it was upgraded since";
/// Either is put into Windows. Source: virt-v2v `mlcustomize/firstboot.ml`.
const SERVICES: [&str; 2] = ["rhsrvany.exe", "pvvxsvc.exe"];
/// Source: virt-v2v(1), `VIRTIO_WIN`.
const VIRTIO_WIN: [&str; 2] = ["/usr/share/virtio-win/virtio-win.iso", "/usr/share/virtio-win"];
/// What virtio-win calls the Windows of a guest id, by how the id begins; the first that fits counts. An id may stand for what came
/// after it, too: hosts that do not know that yet have no other.
///
/// Source: `VirtualMachineGuestOsIdentifier` of the vSphere API; virt-v2v, `virtio_iso_path_matches_guest_os`.
const DRIVERS_FOR: [(&str, &[&str]); 14] = [
    ("windows2022srvnext", &["2k25"]),
    ("windows2019srvnext", &["2k22", "2k25"]),
    ("windows2019srv", &["2k19", "2k22", "2k25"]),
    ("windows9server", &["2k16", "2k19", "2k22", "2k25"]),
    ("windows8server", &["2k12", "2k12r2"]),
    ("windows7server", &["2k8r2"]),
    ("windows12", &["w11"]),
    ("windows11", &["w10", "w11"]),
    ("windows9", &["w10", "w11"]),
    ("windows8", &["w8", "w8.1", "w10"]),
    ("windows7", &["w7"]),
    ("winlonghorn", &["2k8"]),
    ("winnet", &["2k3"]),
    ("winvista", &["vista"]),
];
/// What virtio-win calls a server and a client from this build on.
///
/// Source: Microsoft's lists of releases; virt-v2v, `virtio_iso_path_matches_guest_os`. Windows 11 takes drivers of 10.
const DRIVERS_OF: [(u32, &[&str], &[&str]); 11] = [
    (2600, &["2k3"], &["xp"]),
    (6000, &["2k8"], &["vista"]),
    (7600, &["2k8r2"], &["w7"]),
    (9200, &["2k12"], &["w8"]),
    (9600, &["2k12r2"], &["w8.1"]),
    (10_240, &["2k16"], &["w10"]),
    (17_763, &["2k19"], &["w10"]),
    (20_348, &["2k22"], &["w10"]),
    (22_000, &["2k22"], &["w11", "w10"]),
    (26_100, &["2k25"], &["w11", "w10"]),
    // What comes after is not known.
    (27_000, &[], &[]),
];
const VIRT_TOOLS: &str = "/usr/share/virt-tools";
const BLOCK_DRIVER: &str = "--block-driver";
const WRITE: &str = "--write";
/// Came with the former. Source: virt-customize(1).
const RUN: &str = "--run-command";
const BACKEND: &str = "LIBGUESTFS_BACKEND";
/// Variables of libguestfs and supermin that another appliance comes of. Source: guestfs(3), supermin(1).
const MAKE_IT: [&str; 8] = [
    BACKEND,
    super::SETTINGS,
    "LIBGUESTFS_HV",
    "LIBGUESTFS_PATH",
    "LIBGUESTFS_MEMSIZE",
    "SUPERMIN_KERNEL",
    "SUPERMIN_KERNEL_VERSION",
    "SUPERMIN_MODULES",
];
const HELP_TIME_MAX: Duration = Duration::from_secs(30);
const DEPTH_MAX: usize = 5;
const ENTRIES_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Place {
            Place(tempfile::tempdir().unwrap())
        }

        fn put(&self, path: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }

        /// A converter whose help says this.
        fn tool(&self, help: &str) -> Tool {
            let program = self.0.path().join("converter");
            drover_lab::put_script(&program, &format!("echo '{help}'")).unwrap();
            let at = |name: &str| vec![self.0.path().join(name)];
            Tool { program, virtio_win: at("virtio-win"), services: at("tools") }
        }

        fn lacks(&self, help: &str, bus: DiskBus) -> Option<String> {
            self.lacks_for("", help, bus)
        }

        fn lacks_for(&self, guest_id: &str, help: &str, bus: DiskBus) -> Option<String> {
            self.tool(help).check(GuestKind::Windows { guest_id }, bus).err().map(|lack| lack.what)
        }
    }

    #[test]
    fn windows_needs_a_service_and_drivers_and_each_is_named() {
        let place = Place::new();
        let lacks = |word: &str| {
            let what = place.lacks("", DiskBus::Virtio);
            assert!(what.as_ref().is_some_and(|it| it.contains(word)), "{word}: {what:?}");
        };
        assert_eq!(
            place.tool("").check(GuestKind::Other, DiskBus::Virtio),
            Ok(()),
            "Linux needs nothing more"
        );
        lacks("rhsrvany.exe");
        place.put("tools/rhsrvany.exe");
        lacks("virtio-win");
        place.put("virtio-win/NetKVM/w10/amd64/netkvm.inf");
        lacks("no driver viostor");
        place.put("virtio-win/viostor/w10/amd64/VIOSTOR.INF");
        assert_eq!(place.lacks("", DiskBus::Virtio), None);
    }

    #[test]
    fn drivers_for_another_windows_are_none() {
        let place = Place::new();
        place.put("tools/rhsrvany.exe");
        place.put("virtio-win/viostor/w7/amd64/viostor.inf");
        let lacks = |guest_id: &str| place.lacks_for(guest_id, "", DiskBus::Virtio);
        let what = lacks("windows9_64Guest").unwrap();
        assert!(what.ends_with("none for the Windows of the guest id windows9_64Guest (w10, w11)"), "{what}");
        assert!(lacks("windows7Server64Guest").is_some() && lacks("windows2019srv_64Guest").is_some());
        assert_eq!([lacks("windows7_64Guest"), lacks(""), lacks("winXPProGuest")], [None, None, None]);
        // As the rpm has them.
        place.put("virtio-win/drivers/by-os/amd64/2k19/viostor.inf");
        place.put("virtio-win/drivers/amd64/Win2012R2/viostor.inf");
        let ids = ["windows2019srv_64Guest", "windows9Server64Guest", "windows8Server64Guest"];
        assert_eq!(ids.map(lacks), [None, None, None]);
        assert!(lacks("windows2019srvNext_64Guest").is_some(), "older ones");
        let name = |name: &str| folder_name(OsStr::new(name));
        assert_eq!(
            ["Win2008R2", "Win2012", "Win8.1", "WinXP", "w10"].map(name),
            ["2k8r2", "2k12", "w8.1", "xp", "w10"]
        );
    }

    #[test]
    fn a_windows_that_was_found_needs_drivers_for_itself() {
        let place = Place::new();
        place.put("tools/rhsrvany.exe");
        place.put("virtio-win/viostor/2k19/amd64/viostor.inf");
        place.put("virtio-win/viostor/w10/amd64/viostor.inf");
        let lacks = |build, is_server| {
            let found = GuestKind::FoundWindows(WindowsVersion { build, is_server });
            place.tool("").check(found, DiskBus::Virtio).err()
        };
        assert_eq!([lacks(Some(17_763), true), lacks(Some(19_045), false)], [None, None]);
        assert_eq!(
            [lacks(Some(22_631), false), lacks(None, true), lacks(Some(99_999), true)],
            [None, None, None]
        );
        let lack = lacks(Some(14_393), true).unwrap();
        assert!(
            lack.what.ends_with("none for the Windows that was found in it, build 14393 (2k16)"),
            "{lack:?}"
        );
        assert!(!lack.advice.contains("guest id"), "{lack:?}");
        assert!(lacks(Some(20_348), true).is_some() && lacks(Some(9600), false).is_some());
    }

    #[test]
    fn an_iso_is_left_to_the_converter() {
        let place = Place::new();
        place.put("tools/pvvxsvc.exe");
        place.put("virtio-win");
        assert_eq!(place.lacks("", DiskBus::Virtio), None);
    }

    #[test]
    fn windows_starts_from_virtio_scsi_only_with_a_converter_that_can_be_told() {
        let place = Place::new();
        place.put("tools/rhsrvany.exe");
        place.put("virtio-win/viostor/w10/amd64/viostor.inf");
        assert!(place.lacks("--block-driver", DiskBus::Scsi).unwrap().contains("no driver vioscsi"));
        place.put("virtio-win/vioscsi/w10/amd64/vioscsi.inf");
        assert!(
            place.lacks("-i", DiskBus::Scsi).unwrap().contains("cannot have Windows start from virtio-scsi")
        );
        assert_eq!(place.lacks("-i --block-driver <driver>", DiskBus::Scsi), None);
        let words = |guest: &SourceGuest, bus| -> Vec<String> {
            let with = With { names: true, fallback: guest.fallback };
            let command = place.tool("").conversion(Path::new("/x.xml"), guest, bus, with);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let windows = SourceGuest { is_windows: true, ..SourceGuest::default() };
        assert_eq!(words(&windows, DiskBus::Scsi)[..2], ["--block-driver", "virtio-scsi"]);
        for (guest, bus) in [(&windows, DiskBus::Virtio), (&SourceGuest::default(), DiskBus::Scsi)] {
            assert_eq!(words(guest, bus), ["-i", "libvirtxml", "/x.xml"]);
        }
        let lost = SourceGuest { fallback: true, ..SourceGuest::default() };
        assert_eq!(words(&lost, DiskBus::Virtio)[..2], ["--run-command", FALLBACK_SCRIPT]);
    }
}
