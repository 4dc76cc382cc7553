//! One step of bytes between two sockets: by splice through a pipe, or copied where there is no pipe.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

use crate::bucket::{Bucket, Grant};
use crate::flow::{Moved, Way};
use crate::pipes::Pipe;

/// What a worker copies at a time.
pub(crate) const SCRATCH_BYTES: usize = 256 << 10;

/// Where the bytes of a flow lie.
#[derive(Debug)]
pub(crate) enum Store {
    /// It has none.
    Empty,
    /// In a pipe.
    Pipe(Pipe),
    /// Where they are: looked at in the source's socket, copied to the target's, and only then taken.
    Copy,
}

/// A rate that flows share.
#[derive(Debug)]
pub(crate) struct Limit {
    bucket: Mutex<Bucket>,
    start: Instant,
}

impl Limit {
    pub(crate) fn new(bytes_per_second: u64, start: Instant) -> Limit {
        Limit { bucket: Mutex::new(Bucket::new(bytes_per_second)), start }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Bucket, Duration) -> T) -> T {
        // A bucket is whole at any time, so one that a panic left is as good as any.
        let mut bucket = self.bucket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        act(&mut bucket, self.start.elapsed())
    }

    /// Draws up to so many bytes.
    pub(crate) fn take(&self, wanted: u64) -> Grant {
        self.with(|bucket, now| bucket.take(wanted, now))
    }

    /// Puts back what was drawn and did not go.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.with(|bucket, _| bucket.give_back(bytes));
    }

    /// When a time of the bucket's is.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.start + time
    }
}

/// The sockets and the store of one direction, for one turn.
pub(crate) struct Hop<'a> {
    pub(crate) from: &'a OwnedFd,
    pub(crate) to: &'a OwnedFd,
    pub(crate) store: &'a Store,
    pub(crate) limit: Option<&'a Limit>,
    pub(crate) scratch: &'a mut [u8],
    /// Bytes at the start of `scratch` that are next in the source; only with [`Store::Copy`].
    pub(crate) seen: usize,
    /// Bytes that were seen and are still in the source; only with [`Store::Copy`].
    pub(crate) unsent: usize,
    /// Found out on the way: the source has bytes that only copying gets past.
    pub(crate) must_copy: bool,
}

/// Splicing looks at flags of each side; sockets and pipes are set not to block, too.
const HOW: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// What a call that may not block came to. Nothing is [`Moved::End`] when reading.
fn moved(result: Result<usize, Errno>) -> io::Result<Moved> {
    match result {
        Ok(0) => Ok(Moved::End),
        Ok(bytes) => Ok(Moved::Bytes(bytes)),
        Err(Errno::AGAIN) => Ok(Moved::Blocked),
        Err(error) => Err(error.into()),
    }
}

/// Calls again when a signal came in between.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

impl Hop<'_> {
    fn take_in(&mut self, bytes_max: usize) -> io::Result<Moved> {
        match self.store {
            Store::Pipe(pipe) => {
                match moved(retried(|| splice(self.from, None, &pipe.inlet, None, bytes_max, HOW)))? {
                    Moved::End => self.look_behind(),
                    moved => Ok(moved),
                }
            }
            Store::Copy | Store::Empty => self.look(bytes_max),
        }
    }

    /// Splice stops at an urgent byte for good, and tells an end if the true one has come behind it.
    fn look_behind(&mut self) -> io::Result<Moved> {
        let next = moved(self.peek(1))?;
        self.must_copy = next != Moved::End;
        Ok(if self.must_copy { Moved::Blocked } else { Moved::End })
    }

    /// Sees what is next, unless something that was seen is still to be sent.
    fn look(&mut self, bytes_max: usize) -> io::Result<Moved> {
        if self.unsent > 0 {
            return Ok(Moved::Blocked);
        }
        let result = self.peek(bytes_max.min(SCRATCH_BYTES));
        if let Ok(bytes) = result {
            (self.seen, self.unsent) = (bytes, bytes);
        }
        moved(result)
    }

    fn peek(&mut self, bytes_max: usize) -> Result<usize, Errno> {
        let part = &mut self.scratch[..bytes_max];
        retried(|| recv(self.from, &mut *part, RecvFlags::PEEK | RecvFlags::DONTWAIT)).map(|(bytes, _)| bytes)
    }

    /// Sends what was seen, and takes as much out of the source.
    fn copy(&mut self, bytes: usize) -> io::Result<Moved> {
        if self.seen == 0 {
            self.seen = self.peek(bytes.min(SCRATCH_BYTES))?;
        }
        let part = &self.scratch[..self.seen];
        let sent = moved(retried(|| send(self.to, part, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)))?;
        if let Moved::Bytes(sent) = sent {
            self.take_out(sent)?;
        }
        Ok(sent)
    }

    /// Takes bytes out of the source without looking at them: TCP's meaning of MSG_TRUNC.
    fn take_out(&mut self, bytes: usize) -> io::Result<()> {
        let part = &mut self.scratch[..bytes];
        let (_, taken) = retried(|| recv(self.from, &mut *part, RecvFlags::TRUNC | RecvFlags::DONTWAIT))?;
        (self.seen, self.unsent) = (0, self.unsent - bytes);
        if taken == bytes { Ok(()) } else { Err(io::Error::other("bytes that were seen have gone")) }
    }
}

impl Way for Hop<'_> {
    fn fill(&mut self, bytes_max: usize) -> io::Result<Moved> {
        let Some(limit) = self.limit else { return self.take_in(bytes_max) };
        let granted = match limit.take(bytes_max as u64) {
            Grant::Bytes(bytes) => bytes,
            Grant::Wait(time) => return Ok(Moved::Later(time)),
        };
        let result = self.take_in(granted as usize);
        let taken = if let Ok(Moved::Bytes(bytes)) = result { bytes as u64 } else { 0 };
        limit.give_back(granted - taken);
        result
    }

    fn drain(&mut self, bytes: usize) -> io::Result<Moved> {
        let given = match self.store {
            Store::Pipe(pipe) => moved(retried(|| splice(&pipe.outlet, None, self.to, None, bytes, HOW))),
            Store::Copy | Store::Empty => self.copy(bytes),
        };
        match given? {
            Moved::End => Err(io::Error::other("bytes that were held have gone")),
            moved => Ok(moved),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match shutdown(self.to, Shutdown::Write) {
            // It has gone by itself: whoever waits for its bytes will notice.
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
