use std::path::Path;

use drover_disk::DiskError;

use crate::fault::open_error;
use crate::open::Format;
use crate::source::{FileSource, ReadAt};

/// Says what format a file seems to have, by its first and last bytes.
///
/// Only for a user who asks for it in so many words: what is inside a raw disk belongs to its
/// guest, who may write any format's header there and so have another disk shown than its own.
/// Whoever knows the format says it. Rules: `docs/reference/formats.md`.
///
/// # Errors
/// When the file cannot be read. A file without any known mark is raw.
pub fn probe(path: impl AsRef<Path>) -> Result<Format, DiskError> {
    let path = path.as_ref();
    let look = || {
        let source = FileSource::open(path)?;
        let mut head = vec![0; source.length().min(HEAD_BYTES) as usize];
        source.read_at(0, &mut head)?;
        // A fixed VHD is known by its footer only.
        let mut tail = vec![0; source.length().min(TAIL_BYTES) as usize];
        source.read_at(source.length() - tail.len() as u64, &mut tail)?;
        Ok(of_ends(&head, &tail))
    };
    look().map_err(|error| open_error(&path.display().to_string(), error))
}

/// What the beginning of a disk says that it is; without any known mark it is raw. A fixed VHD is known by its end only.
pub fn probe_head(head: &[u8]) -> Format {
    of_ends(head, &[])
}

/// What is looked at.
const HEAD_BYTES: u64 = 1024;
const TAIL_BYTES: u64 = 512;

fn of_ends(head: &[u8], tail: &[u8]) -> Format {
    match () {
        () if head.starts_with(b"QFI\xfb") => Format::Qcow2,
        () if head.starts_with(b"KDMV") || crate::vmdk::is_descriptor(head) => Format::Vmdk,
        () if crate::vhdx::is_head(head) => Format::Vhdx,
        () if crate::vhd::is_head(head) || crate::vhd::is_head(tail) => Format::Vhd,
        () => Format::Raw,
    }
}
