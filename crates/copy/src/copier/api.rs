//! What goes into a copier and what comes out of it.

use std::time::Duration;

use drover_types::ByteSpan;

use crate::retry::RetryPolicy;
use crate::sample::Sample;

/// What the copier does with a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Copies source to target.
    Copy {
        /// Whether the target is proven to read as zeros wherever nothing was written yet.
        target_zeroed: bool,
    },
    /// Reads and hashes; writes nothing. With a sample, only the blocks it takes.
    Hash(Option<Sample>),
}

/// How a copy is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopierConfig {
    /// What to do.
    pub mode: Mode,
    /// Bytes of a read request; a multiple of the block size. See [`Copier::set_request_bytes`].
    pub request_bytes: u64,
    /// Space is set aside on the target for this many bytes of data at a time; 0 is never.
    pub reserve_bytes: u64,
    /// Most bytes being read or written at a time.
    pub window_bytes: u64,
    /// A flush is asked for when this many bytes have landed since the last one.
    pub flush_bytes: u64,
    /// And when anything has landed and this much time has passed since the last one.
    pub flush_interval: Duration,
    /// What to do about failures.
    pub retry: RetryPolicy,
}

impl CopierConfig {
    /// The defaults for a mode: 1 MiB requests, a window of 64 MiB, a flush every 256 MiB or 1 s.
    pub fn new(mode: Mode) -> Self {
        CopierConfig {
            mode,
            request_bytes: 1 << 20,
            reserve_bytes: 0,
            window_bytes: 64 << 20,
            flush_bytes: 256 << 20,
            flush_interval: Duration::from_secs(1),
            retry: RetryPolicy::default(),
        }
    }
}

/// What a free worker should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask the source what this span holds, then call [`Copier::mapped`] or [`Copier::map_failed`].
    Map(ByteSpan),
    /// Set space aside on the target for [`Copier::to_reserve`], whose content stays as it is; then call
    /// [`Copier::reserve_failed`] if that did not work. It may be left undone.
    Reserve,
    /// Read this span, then call [`Copier::read`] or [`Copier::failed`].
    Read(ByteSpan),
    /// Make this span of the target zero, then call [`Copier::landed`] or [`Copier::failed`].
    Zero(ByteSpan),
    /// Flush the target, then call [`Copier::flushed`] or [`Copier::flush_failed`].
    Flush(FlushTicket),
    /// Append the records of [`Copier::to_forget`] to the journal and make them durable, then call
    /// [`Copier::forgotten`] or [`Copier::forget_failed`]. Without a journal there is nothing to append.
    Forget,
    /// Nothing now: wait for others, but not beyond this time.
    Wait(Option<Duration>),
    /// Every block is recorded.
    Done,
    /// Stopped for good; ask [`Copier::stop_cause`].
    Stopped,
}

/// Names the writes that a flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTicket(pub(super) u64);

/// Why a copy stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The user asked.
    Cancelled,
    /// A failure that cannot pass or did not pass in time; the driver holds the error itself.
    Failed,
}

/// What of a span that was read has to go to the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteParts {
    /// To be written.
    pub data: Vec<ByteSpan>,
    /// To be made zero.
    pub zero: Vec<ByteSpan>,
}

impl WriteParts {
    /// Whether the target has it all already.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.zero.is_empty()
    }
}

/// Sums of one run, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Known from the journal before this run; of a pass, what its interrupted try recorded.
    pub resumed: u64,
    /// Mapped so far, of what is to be visited.
    pub mapped: u64,
    /// Mapped as data that this run has to read.
    pub to_read: u64,
    /// Read from the source, retries not counted.
    pub read: u64,
    /// Written to the target as data.
    pub written: u64,
    /// Blocks that the source called data and that were all zero.
    pub zero_found: u64,
    /// Blocks that the map says are zero.
    pub zero_mapped: u64,
    /// Settled: landed on the target, or hashed.
    pub settled: u64,
    /// Settled in a copy because it was not known to be on the target as it is: written, or made zero.
    pub changed: u64,
    /// Number of failures that were tried again.
    pub retries: u64,
}

/// How a request failed, as far as the copy's course depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// May pass.
    Transient,
    /// The answer cannot be right; may pass once or twice.
    Corrupt,
    /// Will not pass by itself.
    Fatal,
}
