use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_types::{ByteSpan, Extent};
use rustix::fs::{Advice, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::fault::{damaged, unsupported};

/// Bytes at offsets. Several threads read at once.
pub trait ReadAt: Send + Sync {
    /// For errors.
    fn name(&self) -> &str;

    /// How many bytes there are.
    fn length(&self) -> u64;

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// Also when it ends before `bytes` is full: what is missing is never taken as zeros.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// What is known without reading about the bytes from `span.offset` on: an extent that starts
    /// there, is not empty and ends within `span`.
    fn extent_at(&self, span: ByteSpan) -> io::Result<Extent>;

    /// Changes when the bytes may have changed, and not with the path.
    fn identity(&self) -> String;
}

/// Reads `length` bytes at `offset`, of a thing called `what`, that may not be longer than `max`
/// and must lie in the source. Checked before memory is taken.
pub(crate) fn read_piece(
    source: &dyn ReadAt,
    what: &str,
    span: ByteSpan,
    bytes_max: u64,
) -> io::Result<Vec<u8>> {
    if span.length > bytes_max {
        return Err(unsupported(format!("{what} is {} bytes long, more than {bytes_max}", span.length)));
    }
    if span.offset.checked_add(span.length).is_none_or(|end| end > source.length()) {
        let end = source.length();
        return Err(damaged(format!("{what} at {span} lies past the end of the file ({end:#x})")));
    }
    let mut bytes = vec![0; span.length as usize];
    source.read_at(span.offset, &mut bytes)?;
    Ok(bytes)
}

/// A file or block device of this host, read through the page cache.
pub(crate) struct FileSource {
    name: String,
    /// Where the file really is, symbolic links resolved.
    path: PathBuf,
    file: File,
    length: u64,
    regular: bool,
    id: (u64, u64),
}

impl FileSource {
    /// Opens a path to be read. What is neither file nor block device is refused before it is
    /// opened: opening a pipe would wait, opening a tape would wind it.
    pub(crate) fn open(path: &Path) -> io::Result<FileSource> {
        check_kind(&std::fs::metadata(path)?)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
        let metadata = file.metadata()?;
        check_kind(&metadata)?;
        let regular = metadata.is_file();
        let length = if regular { metadata.len() } else { rustix::fs::seek(&file, SeekFrom::End(0))? };
        // Best effort: without the advice reading is slower, not wrong.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
        Ok(FileSource {
            name: path.display().to_string(),
            path: real,
            file,
            length,
            regular,
            id: (metadata.dev(), metadata.ino()),
        })
    }

    /// Where the open file is, as the kernel tells: no link can fool it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a file, and not a block device.
    pub(crate) fn is_regular(&self) -> bool {
        self.regular
    }

    /// Refuses a file that another program has open for writing.
    pub(crate) fn check_no_writer(&self) -> io::Result<()> {
        drover_disk::check_no_writer(&self.file)
    }

    /// Device and inode.
    pub(crate) fn id(&self) -> (u64, u64) {
        self.id
    }
}

fn check_kind(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() || metadata.file_type().is_block_device() {
        return Ok(());
    }
    Err(unsupported("it is neither a regular file nor a block device"))
}

impl ReadAt for FileSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(format!(
                "{} bytes at {offset:#x} are missing: {} was cut short (it had {:#x} bytes when opened)",
                bytes.len(),
                self.name,
                self.length
            )),
            _ => error,
        })
    }

    fn extent_at(&self, span: ByteSpan) -> io::Result<Extent> {
        if !self.regular || span.end() > self.length {
            return Ok(Extent::allocated(span));
        }
        let data = match rustix::fs::seek(&self.file, SeekFrom::Data(span.offset)) {
            Ok(data) => data.clamp(span.offset, span.end()),
            // No data up to the end, which is also what a file says that became shorter.
            Err(Errno::NXIO) if self.file.metadata()?.len() >= self.length => span.end(),
            Err(_) => span.offset,
        };
        if data > span.offset {
            return Ok(Extent::zero(ByteSpan::from_bounds(span.offset, data)));
        }
        let hole = match rustix::fs::seek(&self.file, SeekFrom::Hole(span.offset)) {
            // A hole where data just was: someone punched it in between. It will be read.
            Ok(hole) if hole > span.offset => hole.min(span.end()),
            _ => span.end(),
        };
        Ok(Extent::allocated(ByteSpan::from_bounds(span.offset, hole)))
    }

    fn identity(&self) -> String {
        let Ok(now) = self.file.metadata() else { return "gone".to_string() };
        let (device, inode) = self.id;
        if self.regular {
            let written = format!("{device:x}:{inode}:{}:{}.{:09}", now.len(), now.mtime(), now.mtime_nsec());
            format!("{written} ctime={}.{:09}", now.ctime(), now.ctime_nsec())
        } else {
            format!("block {:x}:{}", now.rdev(), self.length)
        }
    }
}

/// A part of another source, with offsets of its own: a disk inside an archive.
pub(crate) struct Part {
    whole: Arc<dyn ReadAt>,
    span: ByteSpan,
}

impl Part {
    /// # Errors
    /// When the part does not lie in the whole.
    pub(crate) fn new(whole: Arc<dyn ReadAt>, span: ByteSpan) -> io::Result<Part> {
        if span.offset.checked_add(span.length).is_none_or(|end| end > whole.length()) {
            let end = whole.length();
            return Err(damaged(format!("the part {span} lies past the end of the file ({end:#x})")));
        }
        Ok(Part { whole, span })
    }
}

impl ReadAt for Part {
    fn name(&self) -> &str {
        self.whole.name()
    }

    fn length(&self) -> u64 {
        self.span.length
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.span.length) {
            let (length, end) = (bytes.len(), self.span.length);
            return Err(damaged(format!("{length} bytes at {offset:#x} are missing: it ends at {end:#x}")));
        }
        self.whole.read_at(self.span.offset + offset, bytes)
    }

    fn extent_at(&self, span: ByteSpan) -> io::Result<Extent> {
        if span.end() > self.span.length {
            return Ok(Extent::allocated(span));
        }
        let inner = ByteSpan::new(self.span.offset + span.offset, span.length);
        let mut extent = self.whole.extent_at(inner)?;
        extent.span.offset = span.offset;
        Ok(extent)
    }

    fn identity(&self) -> String {
        format!("{} {}", self.whole.identity(), self.span)
    }
}
