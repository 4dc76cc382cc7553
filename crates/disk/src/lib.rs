//! The trait a disk backend implements, the buffers that travel through it, the conformance
//! suite every backend passes, the backend for files and block devices, for those who serve disks to others the
//! fence between writers and lanes to lend, and disks whose reads wait for their turn.
//!
//! A [`Disk`] is shared between threads; each worker thread opens its own [`Lane`] (a connection,
//! a file handle), keeps several requests in flight on it, and takes completions as they come:
//!
//! ```text
//! worker thread ── submit(request) ──> lane ── wire or system call
//!               <── complete() ─────── lane      (any order)
//! ```
//!
//! A lane needs no lock and no helper thread, so many requests are in flight on few connections.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod around;
mod buffer;
mod check;
pub mod conformance;
pub mod device;
mod error;
pub mod fence;
mod file;
mod lanes;
pub mod memory;
mod paced;
mod patience;
mod threads;

pub use around::Around;
pub use buffer::{BUFFER_ALIGN, Buffer, Slice};
pub use check::{check_request, check_span};
pub use error::{DiskError, DiskErrorKind, DiskOp};
pub use file::{
    FileDisk, FileKind, HostFile, LockedFile, OpenTarget, can_hold_file, check_no_writer, free_bytes,
    holds_nothing, is_writable_dir,
};
pub use lanes::Lanes;
pub use memory::MemDisk;
pub use paced::{Pace, Paced};
pub use patience::{claim_file, lock_file, open_locked};
pub use threads::in_threads;

use drover_types::{ByteSpan, Extent};

/// A disk that can be read, and perhaps written.
pub trait Disk: Send + Sync {
    /// The name used in errors and progress: a path, a URI without secrets, `web01/disk0`.
    fn name(&self) -> &str;

    /// Capacity in bytes; any number, not always a multiple of a sector.
    fn size(&self) -> u64;

    /// What tells this disk and its state from another: compared at resume. It changes when the
    /// content may have changed (file size and modification time, a change id, a snapshot).
    fn identity(&self) -> String;

    /// What requests the backend takes.
    fn limits(&self) -> Limits;

    /// What the backend can do.
    fn features(&self) -> Features;

    /// What the disk holds from `span.offset` on, as far as the backend knows without reading.
    ///
    /// The extents are not empty, start at `span.offset`, follow each other without a gap and
    /// cover at least one byte and at most `span`; ask again from where they end. A backend that
    /// knows nothing answers one allocated extent over `span`.
    ///
    /// # Errors
    /// When the backend fails to answer; callers may then take all of it as allocated.
    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError>;

    /// Opens one more lane.
    ///
    /// # Errors
    /// When no connection or handle can be had.
    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError>;

    /// Makes every write that completed before this call durable. When it returns, a power cut
    /// loses none of them, whichever lane they came through.
    ///
    /// # Errors
    /// When the backend cannot promise that.
    fn flush(&self) -> Result<(), DiskError>;

    /// For a run that is to stop, at a backend that takes writes ahead of a slow line: gives up the writes and zeroings
    /// that have not left this host, and takes no more of them. Those that come fail, and so may reads on their way. Tells
    /// whether it is such a backend.
    fn withdraw(&self) -> bool {
        false
    }

    /// The spans of writes and zeroings that completed and were given up by [`Disk::withdraw`] later: what was written
    /// there is not on the disk. A flush covers all others, so ask after each one before anything is called durable.
    fn withdrawn(&self) -> Vec<ByteSpan> {
        Vec::new()
    }

    /// Looks whether the disk still is what was opened: a source that nobody wrote to since, a target that lies where
    /// it lay and has its size. To be asked when a transfer is over. What a backend cannot tell counts as the same.
    ///
    /// # Errors
    /// When it is not, with what happened to it.
    fn check_same(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// How many bytes of space [`Disk::reserve`] had best be asked for at a time; 0 if it gains nothing.
    fn reserve_bytes(&self) -> u64 {
        0
    }

    /// Sets space aside for spans that will be written soon. Their content stays as it is, so this may be
    /// left out, and may meet writes to the same spans. What is not written in the end is to be zeroed
    /// ([`Work::Zero`]), or it keeps its space.
    ///
    /// # Errors
    /// When there is no space, or the backend cannot do it; the copy goes on without.
    fn reserve(&self, _spans: &[ByteSpan]) -> Result<(), DiskError> {
        Ok(())
    }

    /// Hashes of blocks, taken where the disk is: for backends that would have to move the bytes here first. The
    /// BLAKE3 of each 64 KiB block of each span, in order; spans begin and end on blocks, or with the disk. The
    /// bytes are read anew, as [`Work::Read`] does. `None` if the backend cannot: then they are to be read.
    ///
    /// # Errors
    /// As those of a read.
    fn hashes(&self, _spans: &[ByteSpan]) -> Result<Option<Vec<[u8; 32]>>, DiskError> {
        Ok(None)
    }
}

/// One worker's way to a disk. Owned by one thread at a time.
pub trait Lane: Send {
    /// Hands in a request. The lane may start it at once or only when [`Lane::complete`] is called.
    /// At most [`Limits::depth_max`] requests may be in flight.
    fn submit(&mut self, request: Request);

    /// Waits for the next request to end, in any order; `None` when nothing is in flight.
    ///
    /// When the connection breaks, every request in flight ends with a transient error and
    /// [`Lane::is_broken`] turns true; open another lane then.
    fn complete(&mut self) -> Option<Completion>;

    /// As [`Lane::complete`]; a lane that receives a read bit by bit may tell meanwhile how far the
    /// beginning of its buffer is filled, by the request's id, so that it can be looked at while it is
    /// in the processor's cache. What it told counts only if the read ends well.
    fn complete_seeing(&mut self, _seen: &mut dyn FnMut(u64, &[u8])) -> Option<Completion> {
        self.complete()
    }

    /// Requests handed in and not yet taken back.
    fn in_flight(&self) -> usize;

    /// Whether the lane is lost. Requests submitted to it fail with a transient error.
    fn is_broken(&self) -> bool {
        false
    }
}

/// One read, by a lane that has nothing else in flight.
pub fn read_span(lane: &mut dyn Lane, span: ByteSpan) -> Result<Buffer, DiskError> {
    let work = Work::Read(Buffer::zeroed(span.length as usize));
    lane.submit(Request { id: 0, span, work });
    let completion = lane.complete().expect("a request in flight ends");
    completion.result?;
    match completion.work {
        Work::Read(bytes) => Ok(bytes),
        Work::Write(_) | Work::Zero => unreachable!("only a read was asked for"),
    }
}

/// A piece of work for a lane.
#[derive(Debug)]
pub struct Request {
    /// Comes back in the completion; chosen by the caller.
    pub id: u64,
    /// Which bytes. Lies inside the disk and is at most [`Limits::bytes_max`] long.
    pub span: ByteSpan,
    /// What to do with them.
    pub work: Work,
}

/// What a request does.
#[derive(Debug)]
pub enum Work {
    /// Fill this buffer, whose length is the span's.
    Read(Buffer),
    /// Write these bytes, whose length is the span's.
    Write(Slice),
    /// Make the span read as zeros, by the cheapest way that the target really supports.
    Zero,
}

/// A request that ended.
#[derive(Debug)]
pub struct Completion {
    /// The request's id.
    pub id: u64,
    /// The request's span.
    pub span: ByteSpan,
    /// The request's work, with its buffer, to be used again.
    pub work: Work,
    /// How it went.
    pub result: Result<(), DiskError>,
}

/// The requests a disk takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Offsets and lengths are multiples of this (a power of two), but for the disk's own tail.
    pub bytes_min: u64,
    /// Requests of at least this many bytes are worth their cost.
    pub bytes_preferred: u64,
    /// No request may be longer.
    pub bytes_max: u64,
    /// No more lanes than this help (or are allowed).
    pub lanes_max: usize,
    /// No more requests than this in flight on one lane.
    pub depth_max: usize,
}

/// What a disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Takes writes.
    pub writable: bool,
    /// `Work::Zero` costs less than writing zeros.
    pub fast_zero: bool,
    /// `extents` tells holes from data.
    pub extents: bool,
    /// The whole disk is known to read as zeros now (a file just made, a fresh image), so zeros
    /// need not be written. Only proven facts count here.
    pub zeroed: bool,
}
