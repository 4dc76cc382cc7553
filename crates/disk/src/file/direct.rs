use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::FileKind;
use crate::{BUFFER_ALIGN, Buffer};

/// Pieces that go past the page cache start and end on multiples of at least this.
///
/// A file system may take 512, but then a buffered write to one half of a page and a direct write
/// to its other half could meet, and the stale half of the cached page would win at write-back.
/// With whole pages two requests that do not overlap never share a page both ways.
pub const GRAIN_BYTES_MIN: u64 = 4096;

/// An open file whose reads and writes bypass the page cache.
pub struct DirectFile {
    /// The same file as the buffered one, opened once more with `O_DIRECT`.
    pub file: File,
    /// Offsets and lengths are multiples of this.
    pub grain: u64,
    /// So are the addresses of the memory.
    pub memory_align: usize,
}

/// Opens `file` once more for direct I/O, or `None` where that does not work: then the page cache
/// does the job, slower but as well.
pub fn open(file: &File, kind: FileKind, size: u64, access: OFlags) -> Option<DirectFile> {
    if is_cache_only(file) {
        return None;
    }
    let (grain, memory_align) = alignment(file, kind)?;
    // Through /proc it is this very file even if the path was replaced meanwhile.
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?.into();
    let direct = DirectFile { file, grain, memory_align };
    direct.reads(size).then_some(direct)
}

/// Whether the page cache is all there is: tmpfs takes the flag (since Linux 6.6) and means nothing by it.
fn is_cache_only(file: &File) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(file).map(|stat| stat.f_type as u64);
    matches!(kind, Ok(TMPFS_MAGIC | RAMFS_MAGIC))
}

impl DirectFile {
    /// Tries it: some file systems take the flag and refuse the read.
    fn reads(&self, size: u64) -> bool {
        if size < self.grain {
            return true;
        }
        let mut probe = Buffer::zeroed(self.grain as usize);
        matches!(rustix::io::pread(&self.file, &mut probe[..], 0), Ok(length) if length == probe.len())
    }
}

/// Grain and memory alignment for direct I/O on this file; `None` if it cannot be.
fn alignment(file: &File, kind: FileKind) -> Option<(u64, usize)> {
    let (offset_align, memory_align) = match kind {
        // The device's logical block is enough for its memory, too.
        FileKind::Block => rustix::fs::ioctl_blksszget(file).map(|bytes| (bytes, bytes)).ok()?,
        FileKind::Regular => file_alignment(file)?,
    };
    let (grain, memory_align) = (u64::from(offset_align).max(GRAIN_BYTES_MIN), memory_align as usize);
    let fits = grain.is_power_of_two() && (1..=BUFFER_ALIGN).contains(&memory_align);
    fits.then_some((grain, memory_align))
}

/// Alignment of offsets and of memory, by `statx` (Linux 6.1), else the usual page.
fn file_alignment(file: &File) -> Option<(u32, u32)> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match stat {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            Some((stat.stx_dio_offset_align, stat.stx_dio_mem_align)).filter(|(offset, _)| *offset != 0)
        }
        _ => Some((4096, 4096)),
    }
}
