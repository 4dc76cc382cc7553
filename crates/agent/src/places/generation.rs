use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::error::Refusal;
use drover_disk::DiskErrorKind;

/// What the kernel tells its boots apart by.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot of this host. Writes that were not flushed outlive the agent, but not the host.
fn boot() -> String {
    let read = std::fs::read_to_string(BOOT_ID).ok().map(|text| text.trim().to_string());
    // A host that does not tell counts as another one each time: that may end a copy, never spoil it.
    read.filter(|text| !text.is_empty()).unwrap_or_else(once)
}

/// Never the same twice: for disks whose unflushed writes may go away without our knowing.
pub(super) fn once() -> String {
    crate::random::hex(16)
}

/// The generation of a device: the boot.
pub(super) fn of_device() -> String {
    format!("boot {}", boot())
}

/// The generation of a file: the boot, and the file itself.
pub(super) fn of_file(path: &Path) -> Result<String, Refusal> {
    let meta = std::fs::metadata(path)
        .map_err(|error| Refusal::new(DiskErrorKind::of(&error), format!("{}: {error}", path.display())))?;
    let born = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let born = born.map_or(0, |time| time.as_nanos());
    Ok(format!("boot {} file {}:{} {born}", boot(), meta.dev(), meta.ino()))
}

/// What tells a file from another that has its name later.
pub(super) fn tag_of(meta: &std::fs::Metadata) -> String {
    let born = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("file dev={} ino={} born={}", meta.dev(), meta.ino(), born.map_or(0, |time| time.as_nanos()))
}
