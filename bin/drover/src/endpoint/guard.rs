//! What keeps a copy from overwriting what it must not: its own source by another name, a device that
//! is in use, and whatever was there before and is not a copy of drover's own that stopped half-way.

use std::fs::{File, Metadata};
use std::io::{self, BufReader};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use drover_copy::{Header, Leaf, LeafTable, Replay, replay};
use drover_disk::device::{DeviceNumber, Signature, device_usage, whole_disk_of};
use drover_disk::{Disk, DiskError};
use drover_mover::{look, looked_at};
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::exit::{Exit, Failure};

/// Whether an earlier copy to this target can be gone on with.
pub enum Earlier {
    /// There was none.
    Nothing,
    /// This one stopped half-way. Of the same source, or else its journal says so and it starts again.
    Half(Box<Replay>),
    /// Its journal speaks of something else: why.
    Other(String),
}

/// Judges the journal at `path` for a copy of this source to the target `tag`.
pub fn earlier_copy(path: &Path, size: u64, source: &str, tag: &str) -> Earlier {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Earlier::Nothing,
        Err(error) => return Earlier::Other(format!("{} cannot be read: {error}", path.display())),
    };
    let found = match replay(&mut BufReader::with_capacity(1 << 20, file)) {
        Ok(found) => found,
        Err(error) => return Earlier::Other(format!("{} is no use: {error}", path.display())),
    };
    let wanted = Header::new(size, source, tag, 1);
    if found.header.target != wanted.target {
        return Earlier::Other(format!("{} belongs to another target", path.display()));
    }
    let same = found.header.source == wanted.source && found.header.size == wanted.size;
    if found.complete.is_some() && !same {
        return Earlier::Other("it is the finished copy of another source".to_string());
    }
    Earlier::Half(Box::new(found))
}

/// What a journal says of the target with this tag; nothing if it is another's, or cannot be read.
pub fn journal_of(path: &Path, tag: &str) -> Option<Box<Replay>> {
    let file = File::open(path).ok()?;
    let found = replay(&mut BufReader::with_capacity(1 << 20, file)).ok()?;
    let wanted = Header::new(found.header.size, "", tag, 1);
    (found.header.target == wanted.target).then(|| Box::new(found))
}

/// Whether the target still holds what its journal says, as far as some blocks of it tell. Something
/// else may have been put in its place or written to it since, which a journal alone cannot know.
pub fn still_holds(target: &Path, leaves: &LeafTable) -> bool {
    let Ok(file) = File::open(target) else { return false };
    looked_at(leaves).into_iter().all(|block| block_is(&file, leaves.span_of(block), leaves.get(block)))
}

/// As [`still_holds`], of a disk that is already open: an export of a server, an image, a disk of another site.
pub fn disk_still_holds(disk: &dyn Disk, leaves: &LeafTable) -> Result<bool, DiskError> {
    Ok(look(disk, leaves)?.is_all())
}

fn block_is(file: &File, span: ByteSpan, leaf: Option<Leaf>) -> bool {
    let mut bytes = vec![0; span.length as usize];
    file.read_exact_at(&mut bytes, span.offset).is_ok() && Some(Leaf::of(&bytes)) == leaf
}

/// Refuses a target that this process has open: then it is the source, a file that the source's image
/// is made of, or standard output, under whichever name. To be called before the target is opened.
pub fn check_not_open(target: &Path, meta: &Metadata) -> Result<(), Failure> {
    if !is_open(meta) {
        return Ok(());
    }
    let text = format!("{} is both source and target, or a part of the source", target.display());
    Err(Failure::new(Exit::Usage, text).advise("name another target"))
}

/// Refuses a journal that is the source, the target, or any file that is no journal: it would be cut
/// and written over.
pub fn check_journal(path: &Path) -> Result<(), Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text).advise("name another file with --journal");
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(usage(format!("journal {}: {error}", path.display()))),
    };
    if !meta.is_file() || is_open(&meta) {
        return Err(usage(format!("{} cannot be the journal of this copy", path.display())));
    }
    let mut start = [0; JOURNAL_MARK.len()];
    let is_journal = File::open(path).and_then(|file| file.read_exact_at(&mut start, 0)).is_ok();
    if meta.len() > 0 && (!is_journal || start != *JOURNAL_MARK) {
        return Err(usage(format!("{} is there and is no journal of drover's", path.display())));
    }
    Ok(())
}

/// How every journal begins (docs/journal.md).
const JOURNAL_MARK: &[u8; 8] = b"DROVERJ\n";

fn is_open(meta: &Metadata) -> bool {
    let target_disk = device_of(meta);
    if !meta.is_file() && target_disk.is_none() {
        return false;
    }
    open_files().iter().any(|open| {
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

fn open_files() -> Vec<Metadata> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok()).collect()
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
pub fn check_unused(path: &Path, device: DeviceNumber) -> Result<(), Failure> {
    let usage = device_usage(Path::new("/"), device);
    if usage.is_empty() {
        return Ok(());
    }
    let found: Vec<String> = usage.iter().map(|usage| usage.to_string()).collect();
    let advice = "see `lsblk`; unmount it, or take it out of use, first (--force does not change this)";
    let text = format!("{} is in use: {}", path.display(), found.join("; "));
    Err(Failure::new(Exit::Target, text).advise(advice))
}

/// Whether an earlier copy of drover's own left these signatures: the blocks they lie in are still as
/// its journal recorded them, or were not recorded before it stopped.
pub fn are_ours(path: &Path, found: &[Signature], leaves: &LeafTable) -> bool {
    let Ok(file) = File::open(path) else { return false };
    found.iter().all(|signature| {
        let block = signature.offset / BLOCK_BYTES;
        let leaf = leaves.get(block);
        leaf.is_none() || block_is(&file, leaves.span_of(block), leaf)
    })
}

/// The refusal of a device that holds something.
pub fn holds(path: &Path, found: &[Signature]) -> Failure {
    let list: Vec<String> = found.iter().map(Signature::to_string).collect();
    let at = path.display();
    Failure::new(Exit::Target, format!("{at} holds something: {}", list.join(", "))).advise(format!(
        "look with `blkid -p {at}` and `wipefs {at}`; if it may go, `wipefs -a {at}` or --force"
    ))
}

/// The refusal of a device that holds bytes without a mark: a database may lie on it, or what is left of
/// a volume that was given back.
pub fn holds_unknown(path: &Path, byte: u64) -> Failure {
    let at = path.display();
    let text = format!("{at} is not blank: byte {byte} is not zero, and no mark says what it holds");
    Failure::new(Exit::Target, text).advise(format!(
        "look with `hexdump -C -s {byte} -n 512 {at}`; if it may go, `blkdiscard -z {at}` or --force"
    ))
}
