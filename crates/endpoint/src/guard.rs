//! What keeps a copy from overwriting what it must not: its own source by another name, and a device that
//! is in use. Whose the rest is that may be there, `drover_mover::judge` decides.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use drover_disk::LockedFile;
use drover_disk::device::{DeviceNumber, Signature, device_usage, whole_disk_of};
use drover_engine::Cause;

use crate::errors::{EndError, failed, target_failure, usage};

/// Refuses a target that this process has open: then it is the source, a file that the source's image
/// is made of, or standard output, under whichever name.
pub(crate) fn check_not_open(target: &Path, file: &LockedFile) -> Result<(), EndError> {
    let meta = file.metadata().map_err(target_failure)?;
    if !is_open(&meta, Some(file.file().as_raw_fd())) {
        return Ok(());
    }
    let text = format!("{} is both source and target, or a part of the source", target.display());
    Err(usage(text).advise("name another target"))
}

/// Refuses a journal that is the source, the target, or any file that is no journal: it would be cut
/// and written over.
pub(crate) fn check_journal(path: &Path) -> Result<(), EndError> {
    let refused = |text: String| usage(text).advise("name another file with --journal");
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(format!("journal {}: {error}", path.display()))),
    };
    if !meta.is_file() || is_open(&meta, None) {
        return Err(refused(format!("{} cannot be the journal of this copy", path.display())));
    }
    let mut start = [0; JOURNAL_MARK.len()];
    let is_journal = File::open(path).and_then(|file| file.read_exact_at(&mut start, 0)).is_ok();
    if meta.len() > 0 && (!is_journal || start != *JOURNAL_MARK) {
        return Err(refused(format!("{} is there and is no journal of drover's", path.display())));
    }
    Ok(())
}

/// How every journal begins (docs/dev/journal.md).
const JOURNAL_MARK: &[u8; 8] = b"DROVERJ\n";

/// Whether this process has it open, but for one descriptor.
fn is_open(meta: &Metadata, but: Option<RawFd>) -> bool {
    let but = but.map(|number| OsString::from(number.to_string()));
    let others = open_files().into_iter().filter(|(number, _)| but.as_ref() != Some(number));
    is_among(meta, others.map(|(_, open)| open))
}

/// Files that were open before a source was, by the numbers of their descriptors.
pub struct Before(BTreeMap<OsString, Metadata>);

impl Before {
    /// Those that are open now.
    pub fn now() -> Before {
        Before(open_files())
    }

    /// Refuses to stream a source that was opened since into a file that it is made of.
    ///
    /// # Errors
    /// If it would be.
    pub fn check_stream(&self, out: &Metadata) -> Result<(), EndError> {
        let since = open_files().into_iter().filter(|(number, _)| !self.0.contains_key(number));
        check_stream_of(since.map(|(_, open)| open), out)
    }
}

/// Refuses to stream one of these files or devices into itself, under whichever name.
///
/// # Errors
/// If it would be.
pub fn check_stream_of(sources: impl Iterator<Item = Metadata>, out: &Metadata) -> Result<(), EndError> {
    if !is_among(out, sources) {
        return Ok(());
    }
    let text = "standard output is the source, or a part of it";
    Err(usage(text).advise("send it somewhere else"))
}

fn is_among(meta: &Metadata, mut files: impl Iterator<Item = Metadata>) -> bool {
    let target_disk = device_of(meta);
    if !meta.is_file() && target_disk.is_none() {
        return false;
    }
    files.any(|open| {
        let open = &open;
        let same = open.dev() == meta.dev() && open.ino() == meta.ino();
        let overlaps = match (target_disk, device_of(open)) {
            (Some(target), Some(open)) => overlap(target, open),
            (Some(target), None) => backs(open, target),
            (None, Some(open)) => backs(meta, open),
            (None, None) => false,
        };
        same || overlaps
    })
}

fn open_files() -> BTreeMap<OsString, Metadata> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return BTreeMap::new() };
    let told = |entry: DirEntry| Some((entry.file_name(), std::fs::metadata(entry.path()).ok()?));
    entries.flatten().filter_map(told).collect()
}

fn device_of(meta: &Metadata) -> Option<DeviceNumber> {
    meta.file_type().is_block_device().then(|| DeviceNumber::of(meta.rdev()))
}

/// Whether two devices have bytes in common: the same one, or a partition and its disk.
fn overlap(a: DeviceNumber, b: DeviceNumber) -> bool {
    let ((disk_a, part_a), (disk_b, part_b)) =
        (whole_disk_of(Path::new("/"), a), whole_disk_of(Path::new("/"), b));
    disk_a == disk_b && (part_a.is_none() || part_b.is_none() || part_a == part_b)
}

/// Whether a file is what a loop device shows.
fn backs(file: &Metadata, device: DeviceNumber) -> bool {
    let (disk, _) = whole_disk_of(Path::new("/"), device);
    let Ok(path) = std::fs::read_to_string(format!("/sys/dev/block/{disk}/loop/backing_file")) else {
        return false;
    };
    let backing = std::fs::metadata(PathBuf::from(path.trim_end_matches('\n')));
    file.is_file() && backing.is_ok_and(|it| (it.dev(), it.ino()) == (file.dev(), file.ino()))
}

/// Refuses a device that somebody uses. `--force` does not help: whoever uses it would find it changed
/// under its feet, and the kernel refuses most of it anyway.
pub(crate) fn check_unused(path: &Path, device: DeviceNumber) -> Result<(), EndError> {
    let usage = device_usage(Path::new("/"), device);
    if usage.is_empty() {
        return Ok(());
    }
    let found: Vec<String> = usage.iter().map(|usage| usage.to_string()).collect();
    let advice = "see `lsblk`; unmount it, or take it out of use, first (--force does not change this)";
    let text = format!("{} is in use: {}", path.display(), found.join("; "));
    Err(failed(Cause::Target, text).advise(advice))
}

/// The refusal of a device that holds something.
pub(crate) fn holds(path: &Path, found: &[Signature]) -> EndError {
    let list: Vec<String> = found.iter().map(Signature::to_string).collect();
    let at = path.display();
    failed(Cause::Target, format!("{at} holds something: {}", list.join(", "))).advise(format!(
        "look with `blkid -p {at}` and `wipefs {at}`; if it may go, `wipefs -a {at}` or --force"
    ))
}

/// The refusal of a device that holds bytes without a mark: a database may lie on it, or what is left of
/// a volume that was given back.
pub(crate) fn holds_unknown(path: &Path, byte: u64) -> EndError {
    let at = path.display();
    let text = format!("{at} is not blank: byte {byte} is not zero, and no mark says what it holds");
    failed(Cause::Target, text).advise(format!(
        "look with `hexdump -C -s {byte} -n 512 {at}`; if it may go, `blkdiscard -z {at}` or --force"
    ))
}
