//! From bytes to ended requests.

use std::ops::Range;

use drover_disk::Work;

use drover_stream::Stream;

use super::{Connection, Fault, NOBODY, ended};
use crate::handshake::Style;
use crate::reply::Pending;
use crate::wire::{self, ChunkHead, ChunkKind, Command, Decoded, ReplyHead};

/// Data taken from the socket at a time. It is looked at before more comes, while it is in the
/// processor's cache, and the server fills the socket again meanwhile.
const DATA_BYTES_MAX: usize = 128 << 10;

/// A payload that is not data; the longest is an extended block status of a million runs.
const PAYLOAD_BYTES_MAX: u64 = 8 + 16 * (1 << 20);

/// An error: number, length of the message, the message, and what the type adds.
const ERROR_BYTES_MAX: u64 = 6 + u16::MAX as u64 + 64;

/// What the next bytes are.
#[derive(Debug)]
pub(super) enum Expect {
    Head,
    /// The offset of a data chunk.
    Offset(ChunkHead),
    /// Data for this part of a read's buffer.
    Data {
        cookie: u64,
        range: Range<usize>,
        done: bool,
    },
    /// A payload that is gathered before it is looked at.
    Payload(ChunkHead, Vec<u8>),
}

impl Connection {
    pub(super) fn receive_some(&mut self) -> Result<(), Fault> {
        let (stream, into, fill) = self.destination();
        let length = stream.receive(into, fill)?;
        self.received(length)
    }

    pub(super) fn receive_now(&mut self) -> Result<(), Fault> {
        let (stream, into, _) = self.destination();
        match stream.receive_now(into)? {
            Some(length) => self.received(length),
            None => Ok(()),
        }
    }

    /// Where the next bytes go, and whether to wait until all of it is filled: all of the data of a
    /// chunk will come, but of what follows nobody knows.
    fn destination(&mut self) -> (&mut Stream, &mut [u8], bool) {
        if let Expect::Data { cookie, range, .. } = &self.expect
            && let Some(pending) = self.pending.get_mut(cookie)
        {
            let end = range.end.min(range.start + DATA_BYTES_MAX);
            return (&mut self.stream, pending.buffer(range.start..end), true);
        }
        (&mut self.stream, self.stage.room(), false)
    }

    fn received(&mut self, length: usize) -> Result<(), Fault> {
        match &mut self.expect {
            Expect::Data { cookie, range, .. } => {
                range.start += length;
                if let Some(pending) = self.pending.get_mut(cookie) {
                    pending.received += length;
                }
            }
            _ => self.stage.received(length),
        }
        while self.advance()? {}
        self.watch()
    }

    /// Understands one more thing of what is at hand; `false` when more bytes are needed.
    fn advance(&mut self) -> Result<bool, Fault> {
        match &mut self.expect {
            Expect::Head => match wire::decode_reply(self.stage.get()) {
                Decoded::Partial => return Ok(false),
                Decoded::Garbage(magic) => return Err(format!("a reply starts with {magic:#010x}").into()),
                Decoded::Whole(head, bytes) => {
                    self.stage.consume(bytes);
                    self.on_head(head)?;
                }
            },
            Expect::Offset(head) => {
                let head = *head;
                let Some(offset) = wire::Fields(self.stage.get()).u64() else { return Ok(false) };
                self.stage.consume(8);
                self.on_offset(head, offset)?;
            }
            Expect::Data { cookie, range, done } => {
                let pending = self.pending.get_mut(cookie).ok_or("data of no request".to_string())?;
                let length = self.stage.take(pending.buffer(range.clone()));
                pending.received += length;
                range.start += length;
                if range.start < range.end {
                    return Ok(false);
                }
                let (cookie, done) = (*cookie, *done);
                self.chunk_ends(cookie, done);
            }
            Expect::Payload(head, bytes) => {
                let length = self.stage.get().len().min(head.length as usize - bytes.len());
                bytes.extend_from_slice(&self.stage.get()[..length]);
                self.stage.consume(length);
                if bytes.len() < head.length as usize {
                    return Ok(false);
                }
                let (head, bytes) = (*head, std::mem::take(bytes));
                self.on_payload(head, &bytes)?;
            }
        }
        Ok(true)
    }

    /// The read of `owner` that is being received, and how far the beginning of its buffer is filled.
    pub fn arriving(&self, owner: u64) -> Option<(u64, &[u8])> {
        let Expect::Data { cookie, range, .. } = &self.expect else { return None };
        let pending = self.pending.get(cookie).filter(|pending| pending.ticket.owner == owner)?;
        let Work::Read(buffer) = &pending.work else { return None };
        pending.is_filled_into(range.end).then(|| (pending.ticket.id, &buffer[..range.start]))
    }

    fn pending(&mut self, cookie: u64) -> Result<&mut Pending, Fault> {
        let unknown = || Fault::Breach(format!("a reply to request {cookie}, which is not in flight"));
        self.pending.get_mut(&cookie).ok_or_else(unknown)
    }

    fn on_head(&mut self, head: ReplyHead) -> Result<(), Fault> {
        match head {
            ReplyHead::Simple { error, cookie } => self.on_simple(error, cookie),
            ReplyHead::Chunk(head) => self.on_chunk(head),
        }
    }

    fn on_simple(&mut self, error: u32, cookie: u64) -> Result<(), Fault> {
        let style = self.export.style;
        if style == Style::Extended {
            return Err("a simple reply, though extended headers were agreed".to_string().into());
        }
        let pending = self.pending(cookie)?;
        if error != 0 {
            pending.fail(error, String::new())?;
        } else if pending.command == Command::Read {
            if style == Style::Structured {
                return Err("a simple reply to a read, though chunks were agreed".to_string().into());
            }
            let range = pending.place(pending.span.offset, pending.span.length)?;
            self.expect = Expect::Data { cookie, range, done: true };
            return Ok(());
        }
        self.chunk_ends(cookie, true);
        Ok(())
    }

    fn on_chunk(&mut self, head: ChunkHead) -> Result<(), Fault> {
        let agreed = match self.export.style {
            Style::Simple => return Err("a chunk, though chunks were not agreed".to_string().into()),
            Style::Structured => head.offset.is_none(),
            Style::Extended => head.offset.is_some(),
        };
        if !agreed {
            return Err("a chunk with a header of the other kind".to_string().into());
        }
        let pending = self.pending(head.cookie)?;
        let (offset, span) = (head.offset, pending.span);
        if offset.is_some_and(|offset| offset != span.offset) {
            return Err(format!("a chunk about another offset than {span}").into());
        }
        let extended = head.offset.is_some();
        let (length, most) = (head.length, PAYLOAD_BYTES_MAX);
        match head.kind {
            ChunkKind::None if length == 0 && head.done => self.chunk_ends(head.cookie, true),
            ChunkKind::Data if length > 8 => self.expect = Expect::Offset(head),
            ChunkKind::Hole if length == 12 => self.expect = Expect::Payload(head, Vec::new()),
            ChunkKind::Status if !extended && (4..=most).contains(&length) => {
                self.expect = Expect::Payload(head, Vec::new());
            }
            ChunkKind::ExtendedStatus if extended && (8..=most).contains(&length) => {
                self.expect = Expect::Payload(head, Vec::new());
            }
            ChunkKind::Error if (6..=ERROR_BYTES_MAX).contains(&length) => {
                self.expect = Expect::Payload(head, Vec::new());
            }
            kind => return Err(format!("a chunk {kind:?} of {length} bytes").into()),
        }
        Ok(())
    }

    fn on_offset(&mut self, head: ChunkHead, offset: u64) -> Result<(), Fault> {
        let range = self.pending(head.cookie)?.place(offset, head.length - 8)?;
        self.expect = Expect::Data { cookie: head.cookie, range, done: head.done };
        Ok(())
    }

    fn on_payload(&mut self, head: ChunkHead, payload: &[u8]) -> Result<(), Fault> {
        let contexts = self.export.contexts;
        let pending = self.pending(head.cookie)?;
        match head.kind {
            ChunkKind::Hole => {
                let (offset, length) =
                    wire::decode_hole(payload).ok_or("a hole that is cut off".to_string())?;
                let range = pending.place(offset, length.into())?;
                pending.buffer(range).fill(0);
            }
            ChunkKind::Status => pending.take_status(payload, false, contexts)?,
            ChunkKind::ExtendedStatus => pending.take_status(payload, true, contexts)?,
            _ => {
                let (error, message) =
                    wire::decode_error(payload).ok_or("an error that is cut off".to_string())?;
                // Zero would mean that nothing went wrong; it says it did.
                pending.fail(if error == 0 { 5 } else { error }, message)?;
            }
        }
        self.chunk_ends(head.cookie, head.done);
        Ok(())
    }

    fn chunk_ends(&mut self, cookie: u64, done: bool) {
        self.expect = Expect::Head;
        if let Some(pending) = done.then(|| self.pending.remove(&cookie)).flatten() {
            let result = pending.outcome();
            if pending.ticket.owner != NOBODY {
                self.done.push_back(ended(pending, result));
            }
        }
    }
}
