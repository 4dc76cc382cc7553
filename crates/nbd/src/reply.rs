//! What a request in flight still waits for. Every byte from the server is checked against the
//! request it answers, so that a broken server is an error and never wrong data.

use std::io;
use std::ops::Range;

use drover_disk::{DiskErrorKind, Work};
use drover_stream::printable;
use drover_types::{ByteSpan, Cover, Extent};

use crate::handshake::Contexts;
use crate::wire::{self, Command};

/// Error chunks for one request; an honest server sends one.
const ERRORS_MAX: usize = 64;

/// Pieces of a read that came and do not touch yet. Honest servers send a read nearly in order; each
/// piece more makes the next one dearer to sort in.
const PIECES_MAX: usize = 4096;

/// A request in flight.
#[derive(Debug)]
pub struct Pending {
    pub ticket: Ticket,
    pub command: Command,
    pub span: ByteSpan,
    pub work: Work,
    pub status: Status,
    /// Bytes of payload that came for it: a sign of life.
    pub received: usize,
    cover: Cover,
    errors: usize,
    failure: Option<(u32, String)>,
}

/// What a block status told, by context.
#[derive(Debug, Default)]
pub struct Status {
    pub allocation: Vec<Extent>,
    pub dirty: Vec<DirtyExtent>,
    /// Whether the fence's context, which tells nothing, was told.
    fence: bool,
}

/// A span, and whether something was written to it since its bitmap was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyExtent {
    /// The bytes.
    pub span: ByteSpan,
    /// Whether the bitmap marks them.
    pub dirty: bool,
}

/// Whose request it is: several lanes may share a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub owner: u64,
    pub id: u64,
}

/// A breach of the protocol, in words.
pub type Breach = String;

/// How a request failed.
#[derive(Debug)]
pub struct Failure {
    pub kind: DiskErrorKind,
    pub source: io::Error,
}

impl Pending {
    pub fn new(ticket: Ticket, command: Command, span: ByteSpan, work: Work) -> Self {
        let cover = Cover::default();
        let status = Status::default();
        Pending { ticket, command, span, work, status, received: 0, cover, errors: 0, failure: None }
    }

    /// Where in the buffer `length` bytes of data or zeros from `offset` belong.
    pub fn place(&mut self, offset: u64, length: u64) -> Result<Range<usize>, Breach> {
        let span = ByteSpan::new(offset, length);
        if self.command != Command::Read {
            return Err(format!("data in the answer to a {:?}", self.command));
        }
        if span.is_empty() || offset.checked_add(length).is_none() || !self.span.contains(span) {
            return Err(format!("bytes {span} in the answer to a read of {}", self.span));
        }
        if !self.cover.add(span) {
            return Err(format!("bytes of {span} come twice"));
        }
        if self.cover.pieces() > PIECES_MAX {
            return Err(format!("the answer to a read of {} comes in shreds", self.span));
        }
        let start = (offset - self.span.offset) as usize;
        Ok(start..start + length as usize)
    }

    /// The part of the buffer that [`Pending::place`] named.
    pub fn buffer(&mut self, range: Range<usize>) -> &mut [u8] {
        match &mut self.work {
            Work::Read(buffer) => &mut buffer[range],
            Work::Write(_) | Work::Zero => &mut [],
        }
    }

    /// Whether the buffer is filled from its beginning up to some place in the chunk that ends at `end`.
    pub fn is_filled_into(&self, end: usize) -> bool {
        let first = self.cover.first();
        first.is_some_and(|it| it.offset == self.span.offset && it.length >= end as u64)
    }

    /// Takes an error; the first one counts.
    pub fn fail(&mut self, error: u32, message: String) -> Result<(), Breach> {
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            return Err("errors without end".to_string());
        }
        self.failure.get_or_insert((error, message));
        Ok(())
    }

    /// Takes a block status; `contexts` are those that were chosen.
    pub fn take_status(&mut self, payload: &[u8], extended: bool, contexts: Contexts) -> Result<(), Breach> {
        if self.command != Command::BlockStatus {
            return Err(format!("block status in the answer to a {:?}", self.command));
        }
        let Some((found, runs)) = wire::decode_status(payload, extended) else {
            return Err(format!("a block status of {} bytes", payload.len()));
        };
        if Some(found) == contexts.allocation && self.status.allocation.is_empty() {
            // A hole that is not said to be zero may read as anything.
            let is_zero = |flags| flags & u64::from(wire::STATUS_ZERO) != 0;
            let extent = |(span, zero)| if zero { Extent::zero(span) } else { Extent::allocated(span) };
            self.status.allocation = pieces(self.span, runs, is_zero)?.into_iter().map(extent).collect();
            return Ok(());
        }
        if Some(found) == contexts.dirty && self.status.dirty.is_empty() {
            let is_dirty = |flags| flags & u64::from(wire::STATUS_DIRTY) != 0;
            let extent = |(span, dirty)| DirtyExtent { span, dirty };
            self.status.dirty = pieces(self.span, runs, is_dirty)?.into_iter().map(extent).collect();
            return Ok(());
        }
        if Some(found) == contexts.fence && !self.status.fence {
            self.status.fence = true;
            return Ok(());
        }
        Err(format!("a block status of context {found}, which was not chosen or is there twice"))
    }

    /// The outcome, once the last chunk is in.
    pub fn outcome(&self) -> Result<(), Failure> {
        if let Some((error, message)) = &self.failure {
            return Err(server_error(*error, message));
        }
        match self.command {
            Command::Read if !self.cover.is(self.span) => {
                Err(Failure::corrupt(format!("the answer to a read of {} leaves bytes out", self.span)))
            }
            Command::BlockStatus if self.status.allocation.is_empty() && self.status.dirty.is_empty() => {
                Err(Failure::corrupt(format!("the answer about {} says nothing", self.span)))
            }
            _ => Ok(()),
        }
    }
}

impl Failure {
    pub fn corrupt(text: String) -> Failure {
        Failure { kind: DiskErrorKind::Corrupt, source: io::Error::new(io::ErrorKind::InvalidData, text) }
    }
}

/// Turns runs into pieces of `span`: neighbours that are alike become one, what lies past the span is cut.
fn pieces(
    span: ByteSpan,
    runs: impl Iterator<Item = (u64, u64)>,
    is_marked: impl Fn(u64) -> bool,
) -> Result<Vec<(ByteSpan, bool)>, Breach> {
    let mut pieces: Vec<(ByteSpan, bool)> = Vec::new();
    let mut at = span.offset;
    for (length, flags) in runs {
        if length == 0 {
            return Err("a run of no bytes in a block status".to_string());
        }
        let length = length.min(span.end() - at);
        if length == 0 {
            break;
        }
        let marked = is_marked(flags);
        match pieces.last_mut() {
            Some((last, was)) if *was == marked => last.length += length,
            _ => pieces.push((ByteSpan::new(at, length), marked)),
        }
        at += length;
    }
    Ok(pieces)
}

/// An error that the server reports. What it means for us:
///
/// An EIO may pass (a path of the server's storage failed over, a proxy lost its peer); the core
/// bounds how often it tries. EINVAL and EOVERFLOW will not.
fn server_error(error: u32, message: &str) -> Failure {
    use DiskErrorKind as K;
    let (kind, name) = match error {
        1 => (K::Denied, "operation not permitted"),
        5 => (K::Transient, "input/output error"),
        12 => (K::Transient, "out of memory"),
        22 => (K::Failed, "invalid argument"),
        28 => (K::OutOfSpace, "no space left"),
        75 => (K::Failed, "value too large"),
        95 => (K::Unsupported, "not supported"),
        108 => (K::Transient, "shutting down"),
        _ => (K::Failed, "an error the protocol does not know"),
    };
    let said = if message.is_empty() { String::new() } else { format!(": {}", printable(message)) };
    let text = format!("the server reports error {error}, {name}{said}");
    Failure { kind, source: io::Error::other(ServerError { number: error, text }) }
}

/// What a server answered a request with, the source of a [`drover_disk::DiskError`]. The connection stands.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ServerError {
    number: u32,
    text: String,
}

impl ServerError {
    /// Whether the server cannot get at its own disk, or lacks memory; it has not gone away.
    pub fn is_of_its_disk(&self) -> bool {
        matches!(self.number, 5 | 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_disk::Buffer;

    fn read(span: ByteSpan) -> Pending {
        let work = Work::Read(Buffer::zeroed(span.length as usize));
        Pending::new(Ticket { owner: 1, id: 1 }, Command::Read, span, work)
    }

    #[test]
    fn a_read_is_whole_when_each_byte_came_once() {
        let mut pending = read(ByteSpan::new(100, 30));
        assert_eq!(pending.place(110, 10), Ok(10..20));
        assert_eq!(pending.outcome().unwrap_err().kind, DiskErrorKind::Corrupt);
        assert_eq!(pending.place(120, 10), Ok(20..30));
        assert!(pending.place(125, 1).is_err() && pending.place(95, 10).is_err());
        assert!(pending.place(u64::MAX, 2).is_err() && pending.place(100, 0).is_err());
        assert_eq!(pending.place(100, 10), Ok(0..10));
        assert!(pending.outcome().is_ok());
    }

    fn status(context: u32, runs: &[(u64, u64)]) -> Vec<u8> {
        let mut payload = [context.to_be_bytes(), (runs.len() as u32).to_be_bytes()].concat();
        payload.extend(
            runs.iter().flat_map(|(length, flags)| [length.to_be_bytes(), flags.to_be_bytes()].concat()),
        );
        payload
    }

    #[test]
    fn a_hole_that_may_read_as_anything_is_data() {
        let span = ByteSpan::new(1000, 100);
        let contexts = Contexts { allocation: Some(1), dirty: Some(2), fence: Some(4) };
        let ticket = Ticket { owner: 1, id: 1 };
        let mut pending = Pending::new(ticket, Command::BlockStatus, span, Work::Zero);
        assert!(pending.outcome().is_err(), "nothing was told yet");
        let runs = [(10, 1), (10, 0), (30, 3), (10, 2), (u64::MAX, 0), (5, 0)];
        pending.take_status(&status(1, &runs), true, contexts).unwrap();
        let expected = [
            Extent::allocated(ByteSpan::new(1000, 20)),
            Extent::zero(ByteSpan::new(1020, 40)),
            Extent::allocated(ByteSpan::new(1060, 40)),
        ];
        assert_eq!(pending.status.allocation, expected);
        pending.take_status(&status(2, &[(60, 1), (1, 2)]), true, contexts).unwrap();
        let dirty = |offset, length, dirty| DirtyExtent { span: ByteSpan::new(offset, length), dirty };
        assert_eq!(pending.status.dirty, [dirty(1000, 60, true), dirty(1060, 1, false)]);
        pending.take_status(&status(4, &[(100, 0)]), true, contexts).unwrap();
        for (context, runs) in [(1, [(1, 1)]), (2, [(1, 1)]), (3, [(1, 1)]), (4, [(1, 1)])] {
            assert!(pending.take_status(&status(context, &runs), true, contexts).is_err());
        }
        let mut pending = Pending::new(ticket, Command::BlockStatus, span, Work::Zero);
        assert!(pending.take_status(&status(1, &[(0, 0)]), true, contexts).is_err());
    }

    #[test]
    fn errors_of_the_server_keep_its_words() {
        let mut pending = read(ByteSpan::new(0, 1));
        pending.fail(28, "pool is full".to_string()).unwrap();
        pending.fail(5, String::new()).unwrap();
        let failure = pending.outcome().unwrap_err();
        assert_eq!(failure.kind, DiskErrorKind::OutOfSpace);
        assert!(failure.source.to_string().contains("pool is full"));
        let endless = (0..ERRORS_MAX).find_map(|_| pending.fail(5, String::new()).err());
        assert!(endless.is_some());
    }

    #[test]
    fn a_buffer_is_filled_from_its_beginning_only_when_nothing_is_missing_there() {
        let mut pending = read(ByteSpan::new(100, 50));
        assert!(!pending.is_filled_into(10));
        pending.place(120, 10).unwrap();
        assert!(!pending.is_filled_into(30), "the first 20 bytes are missing");
        pending.place(100, 15).unwrap();
        assert!(pending.is_filled_into(15));
        assert!(!pending.is_filled_into(30), "five bytes between are missing");
        pending.place(115, 5).unwrap();
        assert!(pending.is_filled_into(20) && pending.is_filled_into(30) && !pending.is_filled_into(31));
    }
}
