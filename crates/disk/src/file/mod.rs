//! Disks that are regular files or block devices of this host.
//!
//! ```text
//! mod        FileDisk: the Disk and Lane of a path
//! locked     opening a path that may be overwritten: locked first, looked at then
//! blank      whether a file holds anything
//! target     a locked path as a target
//! handle     reads, writes and zeroing of any span, direct where the file system takes it
//! direct     whether and how direct I/O works on an open file
//! pieces     cutting a span at whole grains
//! in_use     whether another program writes to a file
//! map        holes and data
//! place      whether a path still leads to the file that was opened
//! host       a file that grows, for image formats
//! preflight  room and rights, before anything is opened
//! writers    threads that write, so that lanes do not stand still
//! ```

mod blank;
mod direct;
mod handle;
mod host;
mod in_use;
mod locked;
mod map;
mod pieces;
mod place;
mod preflight;
mod target;
mod writers;

pub use blank::holds_nothing;
pub use host::HostFile;
pub use in_use::check_no_writer;
pub use locked::LockedFile;
pub use preflight::{can_hold_file, free_bytes, is_writable_dir};
pub use target::OpenTarget;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use drover_types::{ByteSpan, Extent};

use crate::{Completion, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, Request, Work};
use handle::Handle;
use place::Place;
use writers::{Done, Writers};

/// A regular file or a block device, raw bytes without any header.
pub struct FileDisk {
    handle: Arc<Handle>,
    kind: FileKind,
    access: Access,
    features: Features,
    writers: Option<Arc<Writers>>,
    opened: Opened,
}

/// What a disk is held against when its transfer is over.
enum Opened {
    /// A source was this.
    As(String),
    /// A target lay here.
    At(Place),
}

/// What a path turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A block device.
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Source,
    Target,
}

/// Direct writes to a fast disk gain up to four or so at a time; more lanes do no harm.
const LANES_MAX: usize = 8;

/// A lane reads in `complete`, one request after the other: more in flight only hold buffers.
const READ_DEPTH_MAX: usize = 1;

/// Writes of a lane under way: the next one waits in line while one is served.
const WRITE_DEPTH_MAX: usize = 2;

/// The largest request. Direct I/O gains nothing beyond 1 MiB in our trials.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Writes to a new file allocate, and while a direct write allocates, ext4 lets no other write of the
/// file go on: 2 GiB in requests of 1 MiB, four at a time, took 1.4 s, and 1.1 s when space was reserved
/// for 16 MiB at a time. Setting aside waits for all writes under way, so it is done seldom and for much.
const RESERVE_BYTES: u64 = 64 << 20;

/// Four of these at a time reach the disk's own rate once space is reserved, and stay in the cache.
const REQUEST_BYTES_PREFERRED: u64 = 512 << 10;

impl FileDisk {
    /// Opens a file or block device to be read. Its size is taken now; bytes that are gone later
    /// are an error, never zeros.
    ///
    /// # Errors
    /// When it is not there, not readable, or neither a regular file nor a block device.
    pub fn open_source(path: impl AsRef<Path>) -> Result<FileDisk, DiskError> {
        FileDisk::open_to_read(path.as_ref(), |name, file, _, size| Handle::for_source(name, file, size))
    }

    fn open_to_read(
        path: &Path,
        handle: impl FnOnce(String, File, FileKind, u64) -> Handle,
    ) -> Result<FileDisk, DiskError> {
        let name = path.display().to_string();
        let opened = check_kind(path).and_then(|kind| Ok((File::open(path)?, kind)));
        let (file, kind) = opened.map_err(|source| open_error(&name, source))?;
        let size = size_of(&file, kind).map_err(|source| open_error(&name, source))?;
        Ok(FileDisk::of_reader(handle(name, file, kind, size), kind))
    }

    fn of_reader(handle: Handle, kind: FileKind) -> FileDisk {
        let features = Features {
            writable: false,
            fast_zero: false,
            extents: kind == FileKind::Regular && map::works(handle.file(), handle.size()),
            zeroed: false,
        };
        let opened = Opened::As(source_identity(&handle, kind));
        FileDisk { handle: Arc::new(handle), kind, access: Access::Source, features, writers: None, opened }
    }

    /// Opens a file or block device to be read from the disk itself, past the page cache where the
    /// file system lets it be: what a copy just wrote is in the cache, and reading it there would
    /// prove nothing. [`FileDisk::is_direct`] tells whether that works.
    ///
    /// # Errors
    /// As [`FileDisk::open_source`].
    pub fn open_for_verify(path: impl AsRef<Path>) -> Result<FileDisk, DiskError> {
        FileDisk::open_to_read(path.as_ref(), Handle::for_verify)
    }

    /// Refuses a file that another program has open for writing.
    ///
    /// # Errors
    /// Then, see [`check_no_writer`].
    pub fn check_no_writer(&self) -> Result<(), DiskError> {
        check_no_writer(self.handle.file()).map_err(|source| open_error(self.name(), source))
    }

    /// What the path is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether reads and writes bypass the page cache at the moment.
    pub fn is_direct(&self) -> bool {
        self.handle.is_direct()
    }
}

impl FileDisk {
    fn check_length(&self) -> io::Result<()> {
        match self.handle.file().metadata()?.len() {
            length if length == self.size() => Ok(()),
            length => {
                let size = self.size();
                let text = format!("it has {length} bytes and had {size}: another program resized it");
                Err(io::Error::other(text))
            }
        }
    }
}

impl Disk for FileDisk {
    fn name(&self) -> &str {
        self.handle.name()
    }

    fn size(&self) -> u64 {
        self.handle.size()
    }

    /// A source carries its modification time. A target does not: drover itself changes it with
    /// every write, and a resume could never match.
    fn identity(&self) -> String {
        match (self.kind, self.access) {
            (FileKind::Regular, Access::Target) => match rustix::fs::fstat(self.handle.file()) {
                Ok(stat) => format!("file {:x}:{}:{}", stat.st_dev, stat.st_ino, stat.st_size),
                Err(_) => gone(&self.handle),
            },
            (kind, _) => source_identity(&self.handle, kind),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            bytes_min: 1,
            bytes_preferred: REQUEST_BYTES_PREFERRED,
            bytes_max: REQUEST_BYTES_MAX,
            lanes_max: LANES_MAX,
            depth_max: if self.writers.is_some() { WRITE_DEPTH_MAX } else { READ_DEPTH_MAX },
        }
    }

    fn features(&self) -> Features {
        self.features
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        crate::check_span(DiskOp::Extents, span, self)?;
        if !self.features.extents {
            return Ok(vec![Extent::allocated(span)]);
        }
        map::extents(self.handle.file(), span, self.size())
            .map_err(|source| DiskError::new(DiskOp::Extents, span, self.name(), source))
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        // pread and pwrite do not use the file's position, so lanes share the open file.
        Ok(Box::new(FileLane {
            handle: self.handle.clone(),
            writers: self.writers.clone(),
            queue: VecDeque::new(),
            done: Arc::default(),
            writing: 0,
        }))
    }

    /// Bytes are not safe in a file that nobody finds any more: so this looks where it lies, too.
    fn flush(&self) -> Result<(), DiskError> {
        self.handle.flush()?;
        if self.access == Access::Target { self.check_same() } else { Ok(()) }
    }

    fn check_same(&self) -> Result<(), DiskError> {
        let failed = |kind, op, why| DiskError::with_kind(kind, op, ByteSpan::new(0, 0), self.name(), why);
        match &self.opened {
            Opened::As(identity) if *identity != self.identity() => {
                let why = "it was changed while it was read: stop whatever writes to it, or read a snapshot";
                Err(failed(DiskErrorKind::Failed, DiskOp::Read, io::Error::other(why)))
            }
            Opened::As(_) => Ok(()),
            Opened::At(place) => {
                // A device's length is its kernel's affair.
                let is_device = self.kind == FileKind::Block;
                let same = place.check().and_then(|()| if is_device { Ok(()) } else { self.check_length() });
                same.map_err(|why| failed(DiskErrorKind::Gone, DiskOp::Write, why))
            }
        }
    }

    /// Only where writes go past the page cache: buffered ones are allocated late and together anyway.
    fn reserve_bytes(&self) -> u64 {
        let gains = self.access == Access::Target && self.kind == FileKind::Regular && self.is_direct();
        if gains { RESERVE_BYTES } else { 0 }
    }

    fn reserve(&self, spans: &[ByteSpan]) -> Result<(), DiskError> {
        spans.iter().try_for_each(|span| crate::check_span(DiskOp::Write, *span, self))?;
        self.handle.reserve(spans)
    }
}

/// What tells a file's content from what it was: when it was last written, by what the file says and by what nobody
/// can set (the time of change: a file that was written and given its old time back shows there).
fn source_identity(handle: &Handle, kind: FileKind) -> String {
    let Ok(stat) = rustix::fs::fstat(handle.file()) else { return gone(handle) };
    match kind {
        FileKind::Block => format!("block {:x}:{}", stat.st_rdev, handle.size()),
        FileKind::Regular => {
            let (inode, size, modified) = (stat.st_ino, stat.st_size, stat.st_mtime);
            let (changed, nanoseconds) = (stat.st_ctime, stat.st_ctime_nsec);
            let written =
                format!("file {:x}:{inode}:{size}:{modified}.{:09}", stat.st_dev, stat.st_mtime_nsec);
            format!("{written} ctime={changed}.{nanoseconds:09}")
        }
    }
}

fn gone(handle: &Handle) -> String {
    format!("file gone:{}", handle.name())
}

struct FileLane {
    handle: Arc<Handle>,
    /// Who writes; nobody if the disk is only read.
    writers: Option<Arc<Writers>>,
    /// What this lane does itself, when asked for a completion.
    queue: VecDeque<Request>,
    done: Arc<Done>,
    /// Requests that the writers have.
    writing: usize,
}

impl Lane for FileLane {
    fn submit(&mut self, request: Request) {
        match &self.writers {
            Some(writers) if !matches!(request.work, Work::Read(_)) && self.check(&request).is_ok() => {
                self.writing += 1;
                writers.submit(request, self.done.clone());
            }
            _ => self.queue.push_back(request),
        }
    }

    fn complete(&mut self) -> Option<Completion> {
        if let Some(mut request) = self.queue.pop_front() {
            let result = self.read(&mut request);
            let Request { id, span, work } = request;
            return Some(Completion { id, span, work, result });
        }
        self.writing = self.writing.checked_sub(1)?;
        Some(self.done.wait())
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.writing
    }
}

impl FileLane {
    fn check(&self, Request { span, work, .. }: &Request) -> Result<(), DiskError> {
        let (size, name) = (self.handle.size(), self.handle.name());
        crate::check_request(*span, work, size, self.writers.is_some(), name)
    }

    /// Carries out what is not the writers' to do: reads, and the refusal of what is wrong.
    fn read(&self, request: &mut Request) -> Result<(), DiskError> {
        self.check(request)?;
        match &mut request.work {
            Work::Read(buffer) => self.handle.read(request.span, buffer),
            Work::Write(_) | Work::Zero => unreachable!("writers have what is right"),
        }
    }
}

/// What `path` is, before it is opened: opening a FIFO would wait for its other end.
fn check_kind(path: &Path) -> io::Result<FileKind> {
    use std::os::unix::fs::FileTypeExt;
    let file_type = std::fs::metadata(path)?.file_type();
    if file_type.is_file() {
        return Ok(FileKind::Regular);
    }
    if file_type.is_block_device() {
        return Ok(FileKind::Block);
    }
    let what = match () {
        () if file_type.is_dir() => "a directory",
        () if file_type.is_fifo() => "a pipe",
        () if file_type.is_socket() => "a socket",
        () if file_type.is_char_device() => "a character device",
        () => "something else",
    };
    let text = format!("it is {what}; a disk is a regular file or a block device");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn size_of(file: &File, kind: FileKind) -> io::Result<u64> {
    match kind {
        FileKind::Regular => Ok(file.metadata()?.len()),
        // A block device tells its size by where its end is.
        FileKind::Block => Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?),
    }
}

/// A failed opening. What is wrong with a path is the user's to fix: `Misuse` would blame drover.
fn open_error(name: &str, source: io::Error) -> DiskError {
    let kind = match DiskErrorKind::of(&source) {
        DiskErrorKind::Misuse => DiskErrorKind::Unsupported,
        kind => kind,
    };
    DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), name, source)
}

#[cfg(test)]
mod tests;
