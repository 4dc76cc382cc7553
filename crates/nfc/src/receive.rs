//! From bytes to ended requests.

use std::ops::Range;
use std::time::Instant;

use drover_disk::Work;
use drover_stream::{Stage, Stream, printable};

use crate::codec::Codec;
use crate::connection::{Connection, Fault};
use crate::frame::{self, HEAD_BYTES, Head, Io, kind};
use crate::pending::Reply;

/// Data taken from the socket at a time. It is looked at before more comes, while it is in the processor's cache.
const DATA_BYTES_MAX: usize = 128 << 10;

/// What the next bytes are.
#[derive(Debug)]
pub enum Expect {
    Head,
    Payload(Head),
    /// Data for this part of a read's buffer, as it is.
    Data {
        op: u32,
        range: Range<usize>,
    },
    /// Data for this part, packed; gathered before it is unpacked.
    Packed {
        op: u32,
        range: Range<usize>,
        codec: Codec,
        bytes: usize,
    },
    /// What follows another payload.
    Extra {
        head: Head,
        payload: Vec<u8>,
        bytes: usize,
    },
}

/// What is gathered of packed data or an extra. Kept, so that its memory is warm.
#[derive(Default)]
pub struct Gathered {
    bytes: Vec<u8>,
    filled: usize,
}

impl Gathered {
    fn begin(&mut self, bytes: usize) {
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
        self.filled = 0;
    }

    /// Takes what is staged of `bytes` to be gathered; whether that is all.
    fn is_whole(&mut self, stage: &mut Stage, bytes: usize) -> bool {
        self.filled += stage.take(&mut self.bytes[self.filled..bytes]);
        self.filled == bytes
    }
}

impl Connection {
    pub(crate) fn receive_some(&mut self) -> Result<(), Fault> {
        let (stream, into, fill) = self.destination();
        let length = stream.receive(into, fill)?;
        self.received(length)
    }

    /// Whether anything was there.
    pub(crate) fn receive_now(&mut self) -> Result<bool, Fault> {
        let (stream, into, _) = self.destination();
        match stream.receive_now(into)? {
            Some(length) => self.received(length).map(|()| true),
            None => Ok(false),
        }
    }

    /// Where the next bytes go, and whether to wait until all of it is filled: all of the data of a fragment will come,
    /// but of what follows nobody knows.
    fn destination(&mut self) -> (&mut Stream, &mut [u8], bool) {
        match &self.expect {
            Expect::Data { op, range } => {
                if let Some(pending) = self.pending.get_mut(op) {
                    let end = range.end.min(range.start + DATA_BYTES_MAX);
                    return (&mut self.stream, pending.buffer(range.start..end), true);
                }
            }
            Expect::Packed { bytes, .. } | Expect::Extra { bytes, .. } if *bytes > self.gathered.filled => {
                let range = self.gathered.filled..*bytes;
                return (&mut self.stream, &mut self.gathered.bytes[range], true);
            }
            _ => {}
        }
        (&mut self.stream, self.stage.room(), false)
    }

    fn received(&mut self, length: usize) -> Result<(), Fault> {
        self.heard = Instant::now();
        match &mut self.expect {
            Expect::Data { range, .. } => range.start += length,
            Expect::Packed { .. } | Expect::Extra { .. } => self.gathered.filled += length,
            Expect::Head | Expect::Payload(_) => self.stage.received(length),
        }
        while self.advance()? {}
        Ok(())
    }

    /// Understands one more thing of what is at hand; `false` when more bytes are needed.
    fn advance(&mut self) -> Result<bool, Fault> {
        match std::mem::replace(&mut self.expect, Expect::Head) {
            Expect::Head => {
                let Some(head) = Head::decode(self.stage.get())? else { return Ok(false) };
                self.stage.consume(HEAD_BYTES);
                self.expect = Expect::Payload(head);
            }
            Expect::Payload(head) => {
                let length = head.payload as usize;
                if self.stage.get().len() < length {
                    self.expect = Expect::Payload(head);
                    return Ok(false);
                }
                let payload = self.stage.get()[..length].to_vec();
                self.stage.consume(length);
                if let Some(trace) = &self.trace {
                    trace.frame(true, &head, &payload);
                }
                self.on_payload(head, payload)?;
            }
            Expect::Data { op, mut range } => {
                let pending = self.pending.get_mut(&op).ok_or("data of no request".to_string())?;
                range.start += self.stage.take(pending.buffer(range.clone()));
                if range.start < range.end {
                    self.expect = Expect::Data { op, range };
                    return Ok(false);
                }
                self.fragment_ends(op);
            }
            Expect::Packed { op, range, codec, bytes } => {
                if !self.gathered.is_whole(&mut self.stage, bytes) {
                    self.expect = Expect::Packed { op, range, codec, bytes };
                    return Ok(false);
                }
                let pending = self.pending.get_mut(&op).ok_or("data of no request".to_string())?;
                codec.unpack(&self.gathered.bytes[..bytes], pending.buffer(range))?;
                self.fragment_ends(op);
            }
            Expect::Extra { head, payload, bytes } => {
                if !self.gathered.is_whole(&mut self.stage, bytes) {
                    self.expect = Expect::Extra { head, payload, bytes };
                    return Ok(false);
                }
                let extra = self.gathered.bytes[..bytes].to_vec();
                self.on_reply(head, Reply { payload, extra })?;
            }
        }
        Ok(true)
    }

    /// The read of `owner` that is being received, and how far the beginning of its buffer is filled.
    pub fn arriving(&self, owner: u64) -> Option<(u64, &[u8])> {
        let Expect::Data { op, range } = &self.expect else { return None };
        let pending = self.pending.get(op).filter(|pending| pending.owner.owner == owner)?;
        let Work::Read(buffer) = &pending.work else { return None };
        pending.is_filled_into(range.end).then(|| (pending.owner.id, &buffer[..range.start]))
    }

    fn on_payload(&mut self, head: Head, payload: Vec<u8>) -> Result<(), Fault> {
        let asked =
            self.pending.get_mut(&head.op).filter(|it| it.kind == head.kind || head.kind == kind::ERROR);
        let Some(pending) = asked else {
            return self.on_stranger(head, payload);
        };
        if head.kind == kind::IO && matches!(pending.work, Work::Read(_)) {
            let io = Io::decode(&payload)?;
            if io.handle != 0 {
                return Err(Fault::Host(crate::error::NfcError::of_host("read", io.handle, "")));
            }
            let range = pending.place(&io, self.buffer_bytes)?;
            let (op, bytes) = (head.op, io.extra as usize);
            self.expect = match Codec::of(io.codec)? {
                Codec::None => Expect::Data { op, range },
                codec => {
                    self.gathered.begin(bytes);
                    Expect::Packed { op, range, codec, bytes }
                }
            };
            return Ok(());
        }
        let chunks = pending.chunks;
        let bytes = frame::extra_of(head.kind, &payload)?;
        if head.kind == kind::QUERY_ALLOCATED && frame::u64_at(&payload, 32) > chunks {
            return Err(
                format!("a bitmap of {} chunks, asked were {chunks}", frame::u64_at(&payload, 32)).into()
            );
        }
        self.expect_extra(head, payload, bytes)
    }

    /// The ordinary reply that some hosts send after an error; all of it is taken off the stream.
    fn on_stranger(&mut self, head: Head, payload: Vec<u8>) -> Result<(), Fault> {
        if !self.ghosts.contains(&head.op) || head.kind == kind::ERROR {
            return Err(format!(
                "a reply of type {} to operation {}, which is not in flight",
                head.kind, head.op
            )
            .into());
        }
        let bytes = frame::extra_of(head.kind, &payload)?;
        self.expect_extra(head, payload, bytes)
    }

    fn expect_extra(&mut self, head: Head, payload: Vec<u8>, bytes: u64) -> Result<(), Fault> {
        let bytes = bytes as usize;
        if bytes == 0 {
            return self.on_reply(head, Reply { payload, extra: Vec::new() });
        }
        self.gathered.begin(bytes);
        self.expect = Expect::Extra { head, payload, bytes };
        Ok(())
    }

    fn on_reply(&mut self, head: Head, reply: Reply) -> Result<(), Fault> {
        if head.kind == kind::ERROR {
            let text = String::from_utf8_lossy(&reply.extra);
            let text = printable(text.trim_end_matches('\0'));
            if let Some(trace) = &self.trace {
                trace.text(&text);
            }
            return self.on_error(head.op, frame::u64_at(&reply.payload, 0), &text);
        }
        let Some(pending) = self.pending.get(&head.op) else {
            self.ghosts.retain(|op| *op != head.op);
            return Ok(());
        };
        if head.kind == kind::IO {
            let io = Io::decode(&reply.payload)?;
            if io.handle != 0 {
                return Err(Fault::Host(crate::error::NfcError::of_host("write", io.handle, "")));
            }
            if io.offset != pending.span.offset || u64::from(io.total) != pending.span.length {
                return Err(format!(
                    "a reply about {:#x}+{:#x} to a write of {}",
                    io.offset, io.total, pending.span
                )
                .into());
            }
        }
        self.end(head.op, Ok(reply));
        Ok(())
    }

    fn fragment_ends(&mut self, op: u32) {
        if self.pending.get(&op).is_some_and(|pending| pending.is_whole()) {
            self.end(op, Ok(Reply::default()));
        }
    }
}
