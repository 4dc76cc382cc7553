//! Disks that a hypervisor attached to this machine for a peer: found by their serial, and read only.
//!
//! ```text
//! hot-added:SERIAL     SERIAL is the disk's UUID without dashes, as the hypervisor shows it to its guest
//! ```
//!
//! A disk is looked for among the links of `/dev/disk/by-id`, which udev makes, and, where there is no udev, in the
//! SCSI identification that the kernel keeps below `/sys/block/DISK/device`: page 0x80 (serial number) and 0x83 (device
//! identification). Source: SPC-4, 7.8.15 "Unit Serial Number VPD page" and 7.8.6 "Device Identification VPD page".

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drover_disk::device::{DeviceNumber, Usage, device_usage};
use drover_disk::{DiskErrorKind, FileDisk};

use super::{generation, told};
use crate::error::Refusal;
use crate::opening::Stat;
use crate::serve::Held;

/// How a name of such a disk begins.
pub const HOT_ADDED: &str = "hot-added:";

/// Where udev links disks by what they say of themselves.
pub const BY_ID: &str = "/dev/disk/by-id";

const SYSFS: &str = "/sys";
/// Shorter ones are no disk's own, and could be a part of another's.
const SERIAL_DIGITS_MIN: usize = 16;
const SERIAL_DIGITS_MAX: usize = 64;
/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 65_536;
/// A page of identification is not longer.
const PAGE_BYTES_MAX: usize = 4096;
/// How long a disk may take to appear after it was attached; who asked asks again after that.
const APPEAR_WAIT: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(100);
/// SCSI hosts are scanned so often while a disk is waited for: not all drivers notice that one came.
const SCAN_AFTER: Duration = Duration::from_secs(1);

/// Disks that are attached while the agent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotAdded {
    folder: PathBuf,
}

impl HotAdded {
    /// Looks for them among the links in this folder, [`BY_ID`] on a machine. Only there also at what the kernel says, and only
    /// block devices are served; another folder may hold links to files.
    pub fn new(folder: &Path) -> HotAdded {
        HotAdded { folder: folder.to_path_buf() }
    }

    fn is_real(&self) -> bool {
        self.folder == Path::new(BY_ID)
    }

    /// The serial in a disk's name; nothing if it is no name of such a disk.
    pub(super) fn serial(name: &str) -> Option<&str> {
        name.strip_prefix(HOT_ADDED)
    }

    /// Opens the disk to be read, once it is there.
    pub(super) fn read(&self, serial: &str) -> Result<Held, Refusal> {
        let path = self.wait_for(serial)?;
        if self.is_real() {
            check_unused(&path)?;
        }
        // Past the page cache: it is read once, and another disk may have its name next.
        let disk = FileDisk::open_for_verify(&path)?;
        let tag = format!("{HOT_ADDED}{serial}");
        let mut opened = told(&disk, tag.clone(), generation::of_device());
        // It is the same disk, whatever the kernel calls it after the next boot.
        opened.identity = format!("{tag} {}", opened.size);
        Ok(Held::new(disk, opened))
    }

    pub(super) fn stat(&self, serial: &str) -> Result<Stat, Refusal> {
        let found = self.find(&checked(serial)?)?;
        if let Some(path) = found.as_ref().filter(|_| self.is_real()) {
            check_unused(path)?;
        }
        let size = found.map(|path| FileDisk::open_source(path).map(|disk| drover_disk::Disk::size(&disk)));
        let tag = format!("{HOT_ADDED}{serial}");
        Ok(Stat { size: size.transpose()?, tag, holds_nothing: false, allocated: None, epoch: 0 })
    }

    fn wait_for(&self, serial: &str) -> Result<PathBuf, Refusal> {
        let serial = checked(serial)?;
        let begun = Instant::now();
        let mut scan = Duration::ZERO;
        loop {
            if let Some(path) = self.find(&serial)? {
                return Ok(path);
            }
            if begun.elapsed() >= APPEAR_WAIT {
                let why = format!("no disk with serial {serial} has appeared on this machine");
                return Err(Refusal::new(DiskErrorKind::Transient, why));
            }
            if self.is_real() && begun.elapsed() >= scan {
                scan_hosts(Path::new(SYSFS));
                scan += SCAN_AFTER;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The one disk with this serial. Of two nobody can tell which is meant.
    fn find(&self, serial: &str) -> Result<Option<PathBuf>, Refusal> {
        let mut found = linked(&self.folder, serial);
        if self.is_real() {
            let sysfs = Path::new(SYSFS);
            // udev's links may still lead to a device that has another disk's name by now.
            found.retain(|path| !says_otherwise(sysfs, path, serial));
            found.extend(in_sysfs(sysfs, serial));
        }
        match found.len() {
            0 | 1 => Ok(found.pop_first()),
            many => {
                let why = format!("{many} disks of this machine have serial {serial}");
                Err(Refusal::new(DiskErrorKind::Denied, why))
            }
        }
    }
}

/// Only hexadecimal digits, and enough of them.
fn checked(serial: &str) -> Result<String, Refusal> {
    let digits = serial.to_ascii_lowercase();
    let fits = (SERIAL_DIGITS_MIN..=SERIAL_DIGITS_MAX).contains(&digits.len());
    if fits && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digits);
    }
    Err(Refusal::new(DiskErrorKind::Denied, "that is no serial of a hot-added disk"))
}

/// A disk of this machine's own is in use by it: its root above all.
fn check_unused(path: &Path) -> Result<(), Refusal> {
    let refuse = |why: String| Refusal::new(DiskErrorKind::Denied, format!("{}: {why}", path.display()));
    let meta = fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
    if !meta.file_type().is_block_device() {
        return Err(refuse("it is no block device".to_string()));
    }
    let usage = device_usage(Path::new("/"), DeviceNumber::of(meta.rdev()));
    match in_the_way(&usage) {
        None => Ok(()),
        Some(found) => Err(refuse(format!("this machine uses it itself: {found}"))),
    }
}

/// What keeps a device from being read for others. That nobody can write to it does not.
fn in_the_way(usage: &[Usage]) -> Option<String> {
    let found = usage.iter().filter(|it| !matches!(it, Usage::ReadOnly { .. }));
    let found: Vec<String> = found.map(ToString::to_string).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// What links of a folder lead to whose names end in the whole serial: `wwn-0x6000c29...`, `scsi-36000c29...`,
/// `scsi-SVMware_Virtual_disk_6000c29...`. Those of partitions end otherwise.
fn linked(folder: &Path, serial: &str) -> BTreeSet<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    let named = entries.take(ENTRIES_MAX).flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
        let head = name.strip_suffix(serial);
        head.is_some_and(|head| ["-0x", "-3", "_"].iter().any(|end| head.ends_with(end)))
    });
    named.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect()
}

/// What a disk, a folder below `/sys/block`, says it is: by its pages of identification.
fn names(disk: &Path) -> Vec<String> {
    let page = |name: &str| fs::read(disk.join("device").join(name)).unwrap_or_default();
    let mut names = designators(&page("vpd_pg83"));
    names.extend(serial_of(&page("vpd_pg80")).filter(|number| !number.is_empty()));
    names
}

/// Whether the kernel names the disk at this path, and otherwise.
fn says_otherwise(sysfs: &Path, path: &Path, serial: &str) -> bool {
    let names = path.file_name().map(|name| names(&sysfs.join("block").join(name))).unwrap_or_default();
    !names.is_empty() && !names.iter().any(|name| name == serial)
}

fn in_sysfs(sysfs: &Path, serial: &str) -> BTreeSet<PathBuf> {
    let Ok(disks) = fs::read_dir(sysfs.join("block")) else { return BTreeSet::new() };
    let is_it = |disk: &Path| names(disk).iter().any(|it| it == serial);
    let its = disks.take(ENTRIES_MAX).flatten().filter(|entry| is_it(&entry.path()));
    its.map(|entry| Path::new("/dev").join(entry.file_name())).collect()
}

/// What follows the four bytes of a page's head, of which the last two say how long it is.
fn content(page: &[u8]) -> Option<&[u8]> {
    let page = page.get(..page.len().min(PAGE_BYTES_MAX))?;
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let content = page.get(4..)?;
    Some(&content[..length.min(content.len())])
}

/// The serial number of page 0x80.
fn serial_of(page: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content(page)?).ok()?;
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_ascii_lowercase())
}

/// The designators of page 0x83 that are NAA names, in hexadecimal.
///
/// | offset | |
/// |---|---|
/// | 0 | protocol, code set (low 4 bits): 1 is binary |
/// | 1 | association (bits 4 and 5): 0 is the disk itself; type (low 4 bits): 3 is NAA |
/// | 3 | length of what follows |
fn designators(page: &[u8]) -> Vec<String> {
    const NAA: u8 = 3;
    const BINARY: u8 = 1;
    let mut found = Vec::new();
    let mut rest = content(page).unwrap_or_default();
    while let [code, kind, _, length, more @ ..] = rest {
        let length = usize::from(*length).min(more.len());
        let (name, after) = more.split_at(length);
        if kind & 0x3f == NAA && code & 0xf == BINARY {
            found.push(name.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        rest = after;
    }
    found
}

/// Has the kernel look for new disks, where it lets this user ask.
fn scan_hosts(sysfs: &Path) {
    let Ok(hosts) = fs::read_dir(sysfs.join("class/scsi_host")) else { return };
    for host in hosts.take(ENTRIES_MAX).flatten() {
        // Most drivers notice by themselves; a disk that does not appear is told by whoever waits for it.
        let _ = fs::write(host.path().join("scan"), "- - -");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERIAL: &str = "6000c29a0123456789abcdef01234567";

    #[test]
    fn disks_are_found_by_links_and_by_what_the_kernel_says_and_never_by_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let disk = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, vec![7; 1024]).unwrap();
            path
        };
        let (one, other) = (disk("one"), disk("other"));
        let by_id = folder.path().join("by-id");
        fs::create_dir(&by_id).unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, by_id.join(name)).unwrap();
        let places = HotAdded::new(&by_id);
        assert_eq!(places.find(SERIAL).unwrap(), None);
        link(&one, &format!("wwn-0x{SERIAL}"));
        link(&one, &format!("scsi-3{}", SERIAL.to_uppercase()));
        link(&other, &format!("wwn-0x{SERIAL}-part1"));
        assert_eq!(places.find(SERIAL).unwrap(), Some(fs::canonicalize(&one).unwrap()));
        assert_eq!(places.find(&SERIAL.replace('6', "7")).unwrap(), None);
        assert_eq!(places.find(&SERIAL[16..]).unwrap(), None, "a part of a serial is none");
        let held = places.read(SERIAL).unwrap();
        assert_eq!(
            (held.opened.size, held.opened.tag.as_str()),
            (1024, "hot-added:6000c29a0123456789abcdef01234567")
        );
        link(&other, &format!("scsi-SVMware_Virtual_disk_{SERIAL}"));
        let refused = places.find(SERIAL).unwrap_err();
        assert!(refused.why.contains("2 disks"), "{refused}");
        for serial in ["", "sda", "6000c29a", "../../../../dev/sda00", &"a".repeat(65)] {
            assert!(places.read(serial).is_err(), "{serial}");
        }
    }

    #[test]
    fn the_kernels_pages_tell_a_disk_however_they_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let device = |name: &str| {
            let path = folder.path().join("block").join(name).join("device");
            fs::create_dir_all(&path).unwrap();
            path
        };
        let mut serial_page = vec![0, 0x80, 0, 32];
        serial_page.extend(SERIAL.as_bytes());
        let binary: Vec<u8> =
            (0..16).map(|at| u8::from_str_radix(&SERIAL[at * 2..at * 2 + 2], 16).unwrap()).collect();
        // A text first, then the target port's own name, then the disk's.
        let mut names = vec![2, 1, 0, 3, b'a', b'b', b'c', 1, 0x13, 0, 16];
        names.extend([9; 16]);
        names.extend([1, 3, 0, 16]);
        names.extend(&binary);
        let mut name_page = vec![0, 0x83, 0, names.len() as u8];
        name_page.extend(&names);
        fs::write(device("sda").join("vpd_pg80"), &serial_page).unwrap();
        fs::write(device("sdb").join("vpd_pg83"), &name_page).unwrap();
        device("sdc");
        let found: Vec<PathBuf> = in_sysfs(folder.path(), SERIAL).into_iter().collect();
        assert_eq!(found, [PathBuf::from("/dev/sda"), PathBuf::from("/dev/sdb")]);
        let says =
            |name: &str, serial: &str| says_otherwise(folder.path(), &Path::new("/dev").join(name), serial);
        assert!(!says("sda", SERIAL) && !says("sdb", SERIAL) && !says("sdc", SERIAL));
        assert!(says("sda", &SERIAL.replace('6', "7")), "a link that is not up to date");
        for length in 0..name_page.len() {
            assert!(designators(&name_page[..length]).iter().all(|it| it != SERIAL));
            let _ = serial_of(&serial_page[..length.min(serial_page.len())]);
        }
    }

    #[test]
    fn a_disk_that_this_machine_uses_is_never_served() {
        let device = || "sda".to_string();
        let read_only = Usage::ReadOnly { device: device() };
        assert_eq!(in_the_way(std::slice::from_ref(&read_only)), None);
        assert!(in_the_way(&[read_only, Usage::Swap { device: device() }]).is_some());
        assert!(check_unused(Path::new("/dev/null")).is_err());
        let root = fs::metadata("/").unwrap();
        let link = PathBuf::from(format!("/sys/dev/block/{}:{}", root.dev() >> 8, root.dev() & 0xff));
        let Some(name) = fs::canonicalize(link).ok().and_then(|path| Some(path.file_name()?.to_owned()))
        else {
            return println!("skipped: the root of this machine is on no block device that can be seen");
        };
        let device = Path::new("/dev").join(name);
        if device.exists() {
            assert!(check_unused(&device).is_err(), "{}", device.display());
        }
    }
}
