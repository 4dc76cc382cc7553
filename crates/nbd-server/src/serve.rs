//! Doing what requests ask: from a request to its reply.

use std::io::{self, IoSlice};
use std::sync::Arc;

use drover_disk::fence::Superseded;
use drover_disk::{Buffer, DiskError, DiskErrorKind, Request, Slice, Work};
use drover_nbd::wire::{COMMAND_DF, COMMAND_FUA, COMMAND_NO_HOLE, COMMAND_REQ_ONE, STATUS_HOLE, STATUS_ZERO};
use drover_types::{ByteSpan, Extent, ExtentKind};

use crate::export::Access;
use crate::negotiate::{Agreed, REQUEST_BYTES_MAX, Told};
use crate::queue::Queue;
use crate::stream::Stream;
use crate::wire::{self, Framing, RequestHead, Run, chunk, command, errno};

/// Runs in one block status; the client asks again from where it ends.
const RUNS_MAX: usize = 4096;

/// Zeros written at a time for a client that wants no hole.
const ZEROS_BYTES: u64 = 1 << 20;

/// A request on its way to a worker.
pub(crate) struct Job {
    pub head: RequestHead,
    /// Data of a write.
    pub data: Option<Buffer>,
    /// What it took of the connection's memory.
    pub bytes: u64,
}

/// What all workers of a connection share.
pub(crate) struct Service<'a> {
    pub agreed: &'a Agreed,
    pub stream: &'a Stream,
    pub queue: &'a Queue<Job>,
}

/// An error on its way to the client.
pub(crate) struct Failure {
    errno: u32,
    message: String,
}

impl Failure {
    pub(crate) fn new(errno: u32, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into() }
    }
}

impl From<DiskError> for Failure {
    fn from(error: DiskError) -> Failure {
        let errno = match error.kind {
            DiskErrorKind::Denied => errno::EPERM,
            DiskErrorKind::OutOfSpace => errno::ENOSPC,
            DiskErrorKind::Unsupported => errno::ENOTSUP,
            DiskErrorKind::Misuse => errno::EINVAL,
            DiskErrorKind::Transient
            | DiskErrorKind::Corrupt
            | DiskErrorKind::Gone
            | DiskErrorKind::Failed => errno::EIO,
        };
        // The disk's name may be a path or host that is none of the client's business.
        Failure::new(errno, format!("{}: {}", error.op, error.source))
    }
}

impl From<Superseded> for Failure {
    fn from(superseded: Superseded) -> Failure {
        Failure::new(errno::EPERM, superseded.to_string())
    }
}

/// A part of a read's answer.
enum Part {
    Data(ByteSpan, Buffer),
    Hole(ByteSpan),
}

impl Service<'_> {
    /// Does a job and answers it.
    ///
    /// # Errors
    /// When the client cannot be answered; the connection is lost then.
    pub(crate) fn run(&self, job: Job) -> io::Result<()> {
        let head = job.head;
        let done = match head.command {
            command::READ => match self.read(&head) {
                Ok(parts) => return self.send_parts(&head, parts),
                Err(failure) => Err(failure),
            },
            command::BLOCK_STATUS => match self.status(&head) {
                Ok(chunks) => return self.stream.write(&chunks),
                Err(failure) => Err(failure),
            },
            command::WRITE => self.write(&head, job.data),
            command::TRIM | command::WRITE_ZEROES => self.zero(&head),
            command::FLUSH => self.flush(),
            _ => Err(Failure::new(errno::EINVAL, "not a command of this server")),
        };
        match done {
            Ok(()) => self.stream.write(&self.done(&head)),
            Err(failure) => self.send_failure(&head, &failure),
        }
    }

    fn is_extended(&self) -> bool {
        self.agreed.framing == Framing::Extended
    }

    fn done(&self, head: &RequestHead) -> Vec<u8> {
        match self.agreed.framing {
            Framing::Simple => wire::simple(0, head.cookie),
            _ => wire::chunk_head(self.is_extended(), head, chunk::NONE, true, 0),
        }
    }

    pub(crate) fn send_failure(&self, head: &RequestHead, failure: &Failure) -> io::Result<()> {
        if self.agreed.framing == Framing::Simple {
            return self.stream.write(&wire::simple(failure.errno, head.cookie));
        }
        let payload = wire::error_payload(failure.errno, &failure.message);
        let mut bytes = wire::chunk_head(self.is_extended(), head, chunk::ERROR, true, payload.len());
        bytes.extend(payload);
        self.stream.write(&bytes)
    }

    fn read(&self, head: &RequestHead) -> Result<Vec<Part>, Failure> {
        let span = ByteSpan::new(head.offset, head.length);
        let whole = self.agreed.framing == Framing::Simple || head.flags & COMMAND_DF != 0;
        let holes = self.agreed.export.holes.as_ref().filter(|_| !whole);
        let pieces = holes.map_or_else(|| vec![Extent::allocated(span)], |holes| holes.pieces(span));
        let part = |piece: Extent| match piece.kind {
            ExtentKind::Zero => Ok(Part::Hole(piece.span)),
            ExtentKind::Allocated => Ok(Part::Data(piece.span, self.read_data(piece.span)?)),
        };
        pieces.into_iter().map(part).collect()
    }

    fn read_data(&self, span: ByteSpan) -> Result<Buffer, Failure> {
        let lanes = &self.agreed.export.lanes;
        let bytes_max = self.agreed.export.disk.limits().bytes_max;
        let buffer = self.queue.buffer(span.length as usize);
        if span.length <= bytes_max {
            return match lanes.run(Request { id: 0, span, work: Work::Read(buffer) })? {
                drover_disk::Completion { work: Work::Read(buffer), result: Ok(()), .. } => Ok(buffer),
                completion => Err(failed(completion.result)),
            };
        }
        let mut whole = buffer;
        for piece in cut(span, bytes_max) {
            let buffer = self.queue.buffer(piece.length as usize);
            let completion = lanes.run(Request { id: 0, span: piece, work: Work::Read(buffer) })?;
            completion.result?;
            if let Work::Read(buffer) = completion.work {
                let start = (piece.offset - span.offset) as usize;
                whole[start..start + buffer.len()].copy_from_slice(&buffer);
                self.queue.recycle(buffer);
            }
        }
        Ok(whole)
    }

    /// Sends heads and data of a read in one call, from the buffers the disk filled.
    fn send_parts(&self, head: &RequestHead, parts: Vec<Part>) -> io::Result<()> {
        let heads: Vec<Vec<u8>> = parts
            .iter()
            .enumerate()
            .map(|(index, part)| self.part_head(head, part, index + 1 == parts.len()))
            .collect();
        let mut slices = Vec::with_capacity(2 * parts.len());
        for (head, part) in heads.iter().zip(&parts) {
            slices.push(IoSlice::new(head));
            if let Part::Data(_, buffer) = part {
                slices.push(IoSlice::new(buffer));
            }
        }
        let sent = self.stream.write_parts(&mut slices);
        for part in parts {
            if let Part::Data(_, buffer) = part {
                self.queue.recycle(buffer);
            }
        }
        sent
    }

    fn part_head(&self, head: &RequestHead, part: &Part, last: bool) -> Vec<u8> {
        if self.agreed.framing == Framing::Simple {
            return wire::simple(0, head.cookie);
        }
        let extended = self.is_extended();
        match part {
            Part::Data(span, buffer) => {
                let mut bytes = wire::chunk_head(extended, head, chunk::DATA, last, 8 + buffer.len());
                bytes.extend(span.offset.to_be_bytes());
                bytes
            }
            Part::Hole(span) => {
                let mut bytes = wire::chunk_head(extended, head, chunk::HOLE, last, 12);
                bytes.extend(span.offset.to_be_bytes());
                bytes.extend((span.length as u32).to_be_bytes());
                bytes
            }
        }
    }

    /// Runs something that changes the disk or makes changes durable, if the client still may.
    fn fenced<T>(&self, act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        match &self.agreed.export.access {
            Access::ReadOnly => Err(Failure::new(errno::EPERM, "the export is read-only")),
            Access::Writable => act(),
            Access::Fenced(gate) => {
                let _pass = gate.pass(self.agreed.epoch)?;
                act()
            }
        }
    }

    fn write(&self, head: &RequestHead, data: Option<Buffer>) -> Result<(), Failure> {
        let Some(data) = data else { return Err(Failure::new(errno::EINVAL, "a write without data")) };
        let span = ByteSpan::new(head.offset, head.length);
        let data = Arc::new(data);
        let result = self.write_pieces(span, &data).and_then(|()| self.flush_if_fua(head));
        if let Some(buffer) = Arc::into_inner(data) {
            self.queue.recycle(buffer);
        }
        result
    }

    fn write_pieces(&self, span: ByteSpan, data: &Arc<Buffer>) -> Result<(), Failure> {
        for piece in cut(span, self.agreed.export.disk.limits().bytes_max) {
            let start = (piece.offset - span.offset) as usize;
            let slice = Slice::new(data.clone(), start..start + piece.length as usize);
            self.change(piece, Work::Write(slice))?;
        }
        Ok(())
    }

    /// One request that changes the disk. A long zeroing asks the fence for each of its pieces, so that
    /// a run that takes over need not wait for all of it.
    fn change(&self, span: ByteSpan, work: Work) -> Result<(), Failure> {
        self.fenced(|| Ok(self.agreed.export.lanes.run(Request { id: 0, span, work })?.result?))
    }

    fn zero(&self, head: &RequestHead) -> Result<(), Failure> {
        let span = ByteSpan::new(head.offset, head.length);
        let limits = self.agreed.export.disk.limits();
        if head.command == command::WRITE_ZEROES && head.flags & COMMAND_NO_HOLE != 0 {
            self.write_zeros(span, ZEROS_BYTES.min(limits.bytes_max))?;
        } else {
            for piece in cut(span, limits.bytes_max) {
                self.change(piece, Work::Zero)?;
            }
        }
        self.flush_if_fua(head)
    }

    /// Zeros that take storage.
    fn write_zeros(&self, span: ByteSpan, piece_max: u64) -> Result<(), Failure> {
        let mut zeros = self.queue.buffer(piece_max.min(span.length) as usize);
        zeros.fill(0);
        let zeros = Arc::new(zeros);
        let result = cut(span, piece_max).try_for_each(|piece| {
            self.change(piece, Work::Write(Slice::new(zeros.clone(), 0..piece.length as usize)))
        });
        if let Some(buffer) = Arc::into_inner(zeros) {
            self.queue.recycle(buffer);
        }
        result
    }

    fn flush(&self) -> Result<(), Failure> {
        if !self.agreed.export.is_writable() {
            return Ok(());
        }
        self.fenced(|| Ok(self.agreed.export.flush()?))
    }

    fn flush_if_fua(&self, head: &RequestHead) -> Result<(), Failure> {
        if head.flags & COMMAND_FUA != 0 { self.flush() } else { Ok(()) }
    }

    fn status(&self, head: &RequestHead) -> Result<Vec<u8>, Failure> {
        let span = ByteSpan::new(head.offset, head.length);
        let runs_max = if head.flags & COMMAND_REQ_ONE != 0 { 1 } else { RUNS_MAX };
        let extended = self.is_extended();
        let kind = if extended { chunk::STATUS_EXTENDED } else { chunk::STATUS };
        let mut bytes = Vec::new();
        for (index, chosen) in self.agreed.contexts.iter().enumerate() {
            let mut runs = self.runs(chosen.what, span)?;
            runs.truncate(runs_max);
            let payload = wire::status_payload(extended, chosen.id, &runs);
            let last = index + 1 == self.agreed.contexts.len();
            bytes.extend(wire::chunk_head(extended, head, kind, last, payload.len()));
            bytes.extend(payload);
        }
        Ok(bytes)
    }

    fn runs(&self, what: Told, span: ByteSpan) -> Result<Vec<Run>, Failure> {
        let export = &self.agreed.export;
        match what {
            Told::Fence => Ok(vec![Run { length: span.length, flags: 0 }]),
            Told::Own(index) => Ok(export.contexts[index].1(span)),
            Told::Base => {
                let flags = |kind| match kind {
                    ExtentKind::Allocated => 0,
                    ExtentKind::Zero => u64::from(STATUS_HOLE | STATUS_ZERO),
                };
                let extents = export.disk.extents(span)?;
                Ok(extents
                    .iter()
                    .map(|extent| Run { length: extent.span.length, flags: flags(extent.kind) })
                    .collect())
            }
        }
    }
}

fn failed(result: Result<(), DiskError>) -> Failure {
    result.err().map_or_else(|| Failure::new(errno::EIO, "the disk mixed its requests up"), Failure::from)
}

/// Pieces of at most `bytes_max`, on its multiples so that odd starts stay the only odd ones.
fn cut(span: ByteSpan, bytes_max: u64) -> impl Iterator<Item = ByteSpan> {
    let mut at = span.offset;
    let step = bytes_max.max(1);
    std::iter::from_fn(move || {
        let end = (at / step + 1).saturating_mul(step).min(span.end());
        let piece = (at < end).then(|| ByteSpan::from_bounds(at, end));
        at = end;
        piece
    })
}

/// Refuses what no disk could do, before it takes any memory.
pub(crate) fn check(agreed: &Agreed, head: &RequestHead) -> Result<(), Failure> {
    let invalid = |text: &str| Err(Failure::new(errno::EINVAL, text));
    let (writes, flags) = match head.command {
        command::READ => (false, COMMAND_DF),
        command::WRITE => (true, COMMAND_FUA | drover_nbd::wire::COMMAND_PAYLOAD),
        command::TRIM if agreed.export.flags() & wire::FLAG_TRIM != 0 => (true, COMMAND_FUA),
        command::WRITE_ZEROES => (true, COMMAND_FUA | COMMAND_NO_HOLE),
        command::BLOCK_STATUS if !agreed.contexts.is_empty() => (false, COMMAND_REQ_ONE),
        command::FLUSH => return Ok(()),
        _ => return invalid("not a command of this export"),
    };
    if writes && !agreed.export.is_writable() {
        return Err(Failure::new(errno::EPERM, "the export is read-only"));
    }
    // A client may set FUA on any request where the server offers it.
    if head.flags & !(flags | COMMAND_FUA) != 0 {
        return invalid("a flag that does not go with this command");
    }
    let (size, min) = (agreed.export.disk.size(), agreed.export.disk.limits().bytes_min);
    let Some(end) = head.offset.checked_add(head.length).filter(|end| *end <= size) else {
        let errno = if writes { errno::ENOSPC } else { errno::EINVAL };
        return Err(Failure::new(errno, format!("the disk ends at {size:#x}")));
    };
    if head.length == 0 {
        return invalid("a request of no bytes");
    }
    if !head.offset.is_multiple_of(min) || !(end.is_multiple_of(min) || end == size) {
        return Err(Failure::new(errno::EINVAL, format!("requests must be multiples of {min} bytes")));
    }
    let carries = matches!(head.command, command::READ | command::WRITE);
    if carries && head.length > u64::from(REQUEST_BYTES_MAX) {
        return Err(Failure::new(errno::EINVAL, format!("no more than {REQUEST_BYTES_MAX} bytes at once")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_a_span_once(offset in 0u64..1 << 40, length in 1u64..1 << 26, max in 1u64..1 << 24) {
            let span = ByteSpan::new(offset, length);
            let max = max.max(length / 1000);
            let mut at = offset;
            for piece in cut(span, max) {
                prop_assert!(piece.offset == at && !piece.is_empty() && piece.length <= max);
                at = piece.end();
            }
            prop_assert_eq!(at, span.end());
        }
    }
}
