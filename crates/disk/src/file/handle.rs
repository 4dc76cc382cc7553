use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};

use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;

use drover_types::ByteSpan;

use super::FileKind;
use super::direct::{self, DirectFile};
use super::pieces::{Piece, cut};
use crate::{Buffer, DiskError, DiskErrorKind, DiskOp};

/// An open file and how its bytes are moved. Shared by the lanes.
///
/// ```text
///        head          middle (whole grains)          tail
/// |<- buffered ->|<------ direct, if possible ----->|<- buffered ->|
/// ```
///
/// Only a whole grain goes past the page cache, so the tail of an odd-sized file never makes it
/// longer. Each way sees what the other wrote: the kernel writes cached pages back before a direct
/// read or write of them, and drops them after. `seam` keeps the two from meeting on one folio of
/// the cache, which may be larger than a page: then the kernel could only report a stale cache.
pub struct Handle {
    name: String,
    size: u64,
    file: File,
    direct: Option<DirectFile>,
    direct_off: AtomicBool,
    seam: RwLock<()>,
    zeroing: AtomicU8,
    failed: Mutex<Option<Failure>>,
    /// The directory whose entry for this file is not durable yet.
    new_in: Mutex<Option<PathBuf>>,
}

/// A flush that failed. The kernel reports such an error once and forgets the pages it lost, so
/// the next flush would be a lie: it is kept here and the disk stays failed.
struct Failure {
    kind: DiskErrorKind,
    text: String,
}

/// Ways to make a span read as zeros, cheapest first. One that is not supported is not tried again.
const ZEROING: [Zeroing; 3] = [Zeroing::Punch, Zeroing::Range, Zeroing::Write];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zeroing {
    Punch,
    Range,
    Write,
}

/// Bytes of one direct write.
const DIRECT_BYTES_MAX: usize = 1 << 20;

/// Zeros written at a time where nothing better works.
const ZEROS_BYTES: usize = 64 << 10;
static ZEROS: AlignedZeros = AlignedZeros([0; ZEROS_BYTES]);

#[repr(align(4096))]
struct AlignedZeros([u8; ZEROS_BYTES]);

impl Handle {
    /// A handle that reads through the page cache.
    ///
    /// Measured on ext4, 4 GiB, 1 MiB requests, 1 and 4 lanes: with the file in the cache 6 to 7 GB/s,
    /// direct 0.8 to 1.0; a cold file ties at the disk's own 1.0 to 1.2 GB/s, where direct would save
    /// 1.5 s of CPU. Missing the cache costs far more than using it. Nothing is dropped from it
    /// afterwards: the pages may be a running guest's.
    pub fn for_source(name: String, file: File, size: u64) -> Handle {
        // Best effort: without the advice reading is slower, not wrong.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        Handle::new(name, file, size, None, None)
    }

    /// A handle that goes past the page cache where it can: buffered writes to a new file of 4 GiB
    /// took 9 s of CPU and 12 s, direct ones 1 to 1.5 s of CPU and 2.6 to 3 s.
    pub fn for_target(
        name: String,
        file: File,
        kind: FileKind,
        size: u64,
        new_in: Option<PathBuf>,
    ) -> Handle {
        let direct = direct::open(&file, kind, size, OFlags::RDWR);
        if direct.is_some() {
            // Heads and tails must not pull their neighbours into the cache.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        }
        Handle::new(name, file, size, direct, new_in)
    }

    /// A handle that reads past the page cache where it can.
    pub fn for_verify(name: String, file: File, kind: FileKind, size: u64) -> Handle {
        let direct = direct::open(&file, kind, size, OFlags::RDONLY);
        Handle::new(name, file, size, direct, None)
    }

    fn new(
        name: String,
        file: File,
        size: u64,
        direct: Option<DirectFile>,
        new_in: Option<PathBuf>,
    ) -> Handle {
        Handle {
            name,
            size,
            file,
            direct,
            direct_off: AtomicBool::new(false),
            seam: RwLock::new(()),
            zeroing: AtomicU8::new(0),
            failed: Mutex::new(None),
            new_in: Mutex::new(new_in),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn is_direct(&self) -> bool {
        self.direct().is_some()
    }

    /// Fills `buffer` from `span`.
    pub fn read(&self, span: ByteSpan, buffer: &mut [u8]) -> Result<(), DiskError> {
        for piece in self.pieces(span, buffer) {
            let bytes = &mut buffer[piece.within(span)];
            self.read_piece(piece, bytes).map_err(|source| self.error(DiskOp::Read, span, source))?;
        }
        Ok(())
    }

    fn read_piece(&self, piece: Piece, bytes: &mut [u8]) -> io::Result<()> {
        if let Some(direct) = self.direct() {
            let read = if piece.whole {
                read_all(&direct.file, piece.span.offset, bytes)
            } else {
                read_part_of_grains(direct, piece.span, bytes)
            };
            match read {
                Err(error) if self.turn_direct_off(&error) => {}
                result => return result,
            }
        }
        read_all(&self.file, piece.span.offset, bytes)
    }

    /// Writes `bytes` to `span`.
    pub fn write(&self, span: ByteSpan, bytes: &[u8]) -> Result<(), DiskError> {
        self.check_failed(DiskOp::Write, span)?;
        self.write_pieces(span, bytes).map_err(|source| self.error(DiskOp::Write, span, source))
    }

    fn write_pieces(&self, span: ByteSpan, bytes: &[u8]) -> io::Result<()> {
        self.pieces(span, bytes)
            .into_iter()
            .try_for_each(|piece| self.write_piece(piece, &bytes[piece.within(span)]))
    }

    fn write_piece(&self, piece: Piece, bytes: &[u8]) -> io::Result<()> {
        if let Some(direct) = self.direct().filter(|_| piece.whole) {
            let _direct = self.seam.read().unwrap_or_else(PoisonError::into_inner);
            match write_in_steps(&direct.file, piece.span.offset, bytes) {
                Err(error) if self.turn_direct_off(&error) => {}
                result => return result,
            }
        }
        // Where all is buffered there is no seam, but the kernel takes one writer of a file at a time and has
        // the others spin: 26 % of all time in a copy to tmpfs. Here they sleep.
        let _buffered = self.seam.write().unwrap_or_else(PoisonError::into_inner);
        write_all(&self.file, piece.span.offset, bytes)
    }

    /// Makes `span` read as zeros: whole pages by the cheapest way that works here, parts of pages
    /// by writing.
    pub fn zero(&self, span: ByteSpan) -> Result<(), DiskError> {
        self.check_failed(DiskOp::Zero, span)?;
        cut(span, direct::GRAIN_BYTES_MIN)
            .into_iter()
            .try_for_each(|piece| {
                if piece.whole { self.zero_pages(piece.span) } else { self.write_zeros(piece.span) }
            })
            .map_err(|source| self.error(DiskOp::Zero, span, source))
    }

    fn zero_pages(&self, span: ByteSpan) -> io::Result<()> {
        loop {
            let way = self.zeroing.load(Relaxed);
            let done = match ZEROING[usize::from(way)] {
                Zeroing::Punch => self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, span),
                Zeroing::Range => self.allocate(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, span),
                Zeroing::Write => return self.write_zeros(span),
            };
            match done {
                Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                    // Whoever comes first moves on; the others find the next way already chosen.
                    let _ = self.zeroing.compare_exchange(way, way + 1, Relaxed, Relaxed);
                }
                done => return Ok(done?),
            }
        }
    }

    fn allocate(&self, mode: FallocateFlags, span: ByteSpan) -> rustix::io::Result<()> {
        // Whole pages, so it may meet direct writes; but it drops pages from the cache.
        let _direct = self.seam.read().unwrap_or_else(PoisonError::into_inner);
        retry(|| rustix::fs::fallocate(&self.file, mode, span.offset, span.length))
    }

    fn write_zeros(&self, span: ByteSpan) -> io::Result<()> {
        let mut at = span.offset;
        while at < span.end() {
            // The pieces after an odd start lie on the grain again, so that they go direct.
            let end = (at / ZEROS_BYTES as u64 + 1).saturating_mul(ZEROS_BYTES as u64).min(span.end());
            let piece = ByteSpan::from_bounds(at, end);
            self.write_pieces(piece, &ZEROS.0[..piece.length as usize])?;
            at = end;
        }
        Ok(())
    }

    /// Sets space aside without touching content or length. ext4 waits for the writes under way with each
    /// call, so none begins before the last.
    pub fn reserve(&self, spans: &[ByteSpan]) -> Result<(), DiskError> {
        let keep = FallocateFlags::KEEP_SIZE;
        let _alone = self.seam.write().unwrap_or_else(PoisonError::into_inner);
        spans.iter().try_for_each(|span| {
            retry(|| rustix::fs::fallocate(&self.file, keep, span.offset, span.length))
                .map_err(|errno| self.error(DiskOp::Write, *span, errno.into()))
        })
    }

    /// Makes completed writes durable, direct ones and buffered ones, and for a new file its name.
    pub fn flush(&self) -> Result<(), DiskError> {
        let span = ByteSpan::new(0, 0);
        self.check_failed(DiskOp::Flush, span)?;
        self.sync().map_err(|source| {
            let error = self.error(DiskOp::Flush, span, source);
            self.keep_failure(&error);
            error
        })
    }

    fn keep_failure(&self, error: &DiskError) {
        let failure = Failure { kind: error.kind, text: error.source.to_string() };
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }

    fn sync(&self) -> io::Result<()> {
        retry(|| rustix::fs::fdatasync(&self.file))?;
        let mut new_in = self.new_in.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = &*new_in {
            File::open(directory)?.sync_all()?;
            *new_in = None;
        }
        Ok(())
    }

    /// Fails if a flush failed before.
    fn check_failed(&self, op: DiskOp, span: ByteSpan) -> Result<(), DiskError> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(failure) = &*failed else { return Ok(()) };
        let text = format!("an earlier flush failed ({}), so bytes were lost: open it again", failure.text);
        Err(DiskError::with_kind(failure.kind, op, span, &self.name, io::Error::other(text)))
    }

    fn direct(&self) -> Option<&DirectFile> {
        self.direct.as_ref().filter(|_| !self.direct_off.load(Relaxed))
    }

    /// Turns to the page cache for good if direct I/O was refused, as some file systems do only
    /// at the first real request.
    fn turn_direct_off(&self, error: &io::Error) -> bool {
        let refused = Errno::from_io_error(error) == Some(Errno::INVAL);
        if refused {
            self.direct_off.store(true, Relaxed);
        }
        refused
    }

    /// Cuts `span` into what may go direct and what must not. Direct I/O wants the memory aligned
    /// as well; a slice from the middle of a buffer may not be.
    fn pieces(&self, span: ByteSpan, memory: &[u8]) -> Vec<Piece> {
        let Some(direct) = self.direct() else { return vec![Piece { span, whole: false }] };
        let pieces = cut(span, direct.grain);
        let aligned =
            |piece: &Piece| memory[piece.within(span)].as_ptr().addr().is_multiple_of(direct.memory_align);
        match pieces.iter().find(|piece| piece.whole) {
            Some(whole) if aligned(whole) => pieces,
            _ => vec![Piece { span, whole: false }],
        }
    }

    fn error(&self, op: DiskOp, span: ByteSpan, source: io::Error) -> DiskError {
        // An argument the kernel refuses is no defect of the caller: requests were checked before.
        let kind = match DiskErrorKind::of(&source) {
            DiskErrorKind::Misuse | DiskErrorKind::Transient => DiskErrorKind::Failed,
            kind => kind,
        };
        DiskError::with_kind(kind, op, span, &self.name, source)
    }
}

fn read_all(file: &File, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let length = retry(|| rustix::io::pread(file, &mut *bytes, offset))?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, ends_early(offset)));
        }
        bytes = &mut bytes[length..];
        offset += length as u64;
    }
    Ok(())
}

/// Reads what does not lie on the grain (or into memory that is not aligned) directly, too: the whole
/// grains around it, of which the last may be cut by the end of the file. Whoever reads directly wants
/// what the disk has, also in the last bytes of an odd-sized file, which were written through the cache.
fn read_part_of_grains(direct: &DirectFile, span: ByteSpan, bytes: &mut [u8]) -> io::Result<()> {
    let mut at = span.offset;
    while at < span.end() {
        let start = at / direct.grain * direct.grain;
        let end = span.end().min(start + BOUNCE_BYTES_MAX);
        let mut bounce = Buffer::zeroed((end - start).next_multiple_of(direct.grain) as usize);
        let length = retry(|| rustix::io::pread(&direct.file, &mut bounce[..], start))?;
        let got = (start + length as u64).min(end);
        if got <= at {
            return Err(io::Error::new(io::ErrorKind::InvalidData, ends_early(at)));
        }
        let into = (at - span.offset) as usize..(got - span.offset) as usize;
        bytes[into].copy_from_slice(&bounce[(at - start) as usize..(got - start) as usize]);
        at = got;
    }
    Ok(())
}

/// Bytes that a read through a buffer of our own takes at once; heads and tails are far shorter.
const BOUNCE_BYTES_MAX: u64 = 1 << 20;

fn ends_early(offset: u64) -> String {
    format!("it ends at byte {offset}, it was longer when opened")
}

fn write_all(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let length = retry(|| rustix::io::pwrite(file, bytes, offset))?;
        if length == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[length..];
        offset += length as u64;
    }
    Ok(())
}

/// Long direct writes go in steps: 8 MiB and more at a time were slower than 2 to 4 on a virtual disk.
fn write_in_steps(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let steps = bytes.chunks(DIRECT_BYTES_MAX).zip((offset..).step_by(DIRECT_BYTES_MAX));
    steps.into_iter().try_for_each(|(step, at)| write_all(file, at, step))
}

/// Does a system call again that a signal interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(name: &str, size: u64) -> (Handle, PathBuf) {
        let path = std::env::temp_dir().join(format!("drover-handle-{}-{name}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        (Handle::for_target(name.to_string(), file, FileKind::Regular, size, None), path)
    }

    #[test]
    fn where_nothing_can_be_punched_zeros_are_written_over_the_whole_span() {
        const SIZE: u64 = (1 << 20) + 7;
        let (handle, path) = handle("zeros", SIZE);
        handle.zeroing.store(2, Relaxed);
        for span in [ByteSpan::new(100, 300_000), ByteSpan::new(400_000, SIZE - 400_000), ByteSpan::new(5, 1)]
        {
            handle.write(ByteSpan::new(0, SIZE), &vec![9; SIZE as usize]).unwrap();
            handle.zero(span).unwrap();
            let found = std::fs::read(&path).unwrap();
            let expected = |at: u64| if (span.offset..span.end()).contains(&at) { 0 } else { 9 };
            assert!((0..SIZE).zip(&found).all(|(at, byte)| *byte == expected(at)), "{span}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_failed_flush_is_never_followed_by_a_good_one() {
        let (handle, path) = handle("flush", 4096);
        handle.flush().unwrap();
        let cause = io::Error::from(Errno::IO);
        handle.keep_failure(&handle.error(DiskOp::Flush, ByteSpan::new(0, 0), cause));
        for _ in 0..2 {
            let error = handle.flush().unwrap_err();
            assert_eq!(error.kind, DiskErrorKind::Failed);
            assert!(error.source.to_string().contains("an earlier flush failed"));
        }
        assert!(handle.write(ByteSpan::new(0, 1), &[1]).is_err());
        assert!(handle.zero(ByteSpan::new(0, 1)).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
