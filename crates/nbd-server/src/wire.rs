//! The server's half of the bytes on the wire; see [`drover_nbd::wire`] for the layouts.
//!
//! With extended headers a request has a 64-bit length, and every reply is a chunk like this:
//!
//! ```text
//! request                   chunk                       block status, type 6
//!  0  4  0x21e41c71          0  4  0x6e8a278c            0  4  context
//!  4  2  flags               4  2  flags                 4  4  number of runs
//!  6  2  command             6  2  type                  8  .  (8 length, 8 flags)*
//!  8  8  cookie              8  8  cookie
//! 16  8  offset             16  8  offset of the request
//! 24  8  length             24  8  length
//! ```

use drover_nbd::wire::{
    CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, Fields,
    OPTION_REPLY_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX,
};

/// Commands by their numbers; a client may send any.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Transmission flag: takes `TRIM`.
pub const FLAG_TRIM: u16 = 1 << 5;

/// Types of chunks.
pub mod chunk {
    pub const NONE: u16 = 0;
    pub const DATA: u16 = 1;
    pub const HOLE: u16 = 2;
    pub const STATUS: u16 = 5;
    pub const STATUS_EXTENDED: u16 = 6;
    pub const ERROR: u16 = (1 << 15) | 1;
}

/// Errors of the protocol.
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const ENOTSUP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
}

/// A request without its data, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
}

/// Bytes of a request without its data.
pub fn request_bytes(extended: bool) -> usize {
    if extended { EXTENDED_REQUEST_BYTES } else { REQUEST_BYTES }
}

/// A request from exactly its bytes; `None` if no request of this kind starts so.
pub fn decode_request(bytes: &[u8], extended: bool) -> Option<RequestHead> {
    let mut fields = Fields(bytes);
    let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    fields.u32().filter(|found| *found == magic)?;
    let (flags, command) = (fields.u16()?, fields.u16()?);
    let (cookie, offset) = (fields.u64()?, fields.u64()?);
    let length = if extended { fields.u64()? } else { fields.u32()?.into() };
    Some(RequestHead { flags, command, cookie, offset, length })
}

/// How replies are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Simple,
    Structured,
    Extended,
}

/// A simple reply without data.
pub fn simple(error: u32, cookie: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

/// The head of a chunk whose payload has `length` bytes, with room for a small payload after it.
pub fn chunk_head(extended: bool, request: &RequestHead, kind: u16, done: bool, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(if extended { EXTENDED_CHUNK_MAGIC } else { CHUNK_MAGIC }.to_be_bytes());
    bytes.extend(u16::from(done).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(request.cookie.to_be_bytes());
    if extended {
        bytes.extend(request.offset.to_be_bytes());
        bytes.extend((length as u64).to_be_bytes());
    } else {
        bytes.extend((length as u32).to_be_bytes());
    }
    bytes
}

/// The payload of an error chunk. A message longer than the protocol allows is cut.
pub fn error_payload(error: u32, message: &str) -> Vec<u8> {
    let message = &message.as_bytes()[..message.floor_char_boundary(STRING_BYTES_MAX)];
    let mut bytes = error.to_be_bytes().to_vec();
    bytes.extend((message.len() as u16).to_be_bytes());
    bytes.extend(message);
    bytes
}

/// A run of a block status: bytes, and flags whose meaning the context tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes, at least one.
    pub length: u64,
    /// Flags.
    pub flags: u64,
}

/// The payload of a block status. Without extended headers it ends before a run that does not fit
/// into 32 bits, but for a first one, which is cut.
pub fn status_payload(extended: bool, context: u32, runs: &[Run]) -> Vec<u8> {
    let mut bytes = context.to_be_bytes().to_vec();
    if extended {
        bytes.extend((runs.len() as u32).to_be_bytes());
        for run in runs {
            bytes.extend(run.length.to_be_bytes());
            bytes.extend(run.flags.to_be_bytes());
        }
        return bytes;
    }
    for run in runs {
        let length = u32::try_from(run.length).unwrap_or(CUT_BYTES);
        bytes.extend(length.to_be_bytes());
        bytes.extend((run.flags as u32).to_be_bytes());
        if u64::from(length) != run.length {
            break;
        }
    }
    bytes
}

/// What is left of a run that does not fit: a multiple of every block size.
const CUT_BYTES: u32 = 1 << 31;

/// An answer to an option.
pub fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_nbd::wire::{
        ChunkHead, ChunkKind, Command, Decoded, ReplyHead, decode_error, decode_reply, decode_status,
    };

    #[test]
    fn a_request_is_read_as_the_client_wrote_it() {
        let (cookie, offset, length) = (0x0102_0304_0506_0708, 0x1000, 0x0010_0000);
        let sent =
            drover_nbd::wire::RequestHead { flags: 1, command: Command::Write, cookie, offset, length };
        let bytes = sent.encode();
        let expected = RequestHead { flags: 1, command: command::WRITE, cookie, offset, length };
        assert_eq!(decode_request(&bytes, false), Some(expected));
        assert_eq!(decode_request(&bytes, true), None);
        assert_eq!(decode_request(&bytes[..27], false), None);
    }

    #[test]
    fn replies_are_what_the_client_reads() {
        let request = RequestHead { flags: 0, command: command::READ, cookie: 7, offset: 512, length: 512 };
        let simple = ReplyHead::Simple { error: errno::EIO, cookie: 7 };
        assert_eq!(decode_reply(&super::simple(errno::EIO, 7)), Decoded::Whole(simple, 16));
        let head = ChunkHead { done: true, kind: ChunkKind::Hole, cookie: 7, offset: None, length: 12 };
        let bytes = chunk_head(false, &request, chunk::HOLE, true, 12);
        assert_eq!(decode_reply(&bytes), Decoded::Whole(ReplyHead::Chunk(head), 20));
        assert_eq!(decode_error(&error_payload(22, "no")), Some((22, "no".to_string())));
        let long = "é".repeat(5000);
        assert_eq!(decode_error(&error_payload(22, &long)), Some((22, "é".repeat(2048))));
    }

    #[test]
    fn a_run_that_does_not_fit_ends_the_status() {
        let runs =
            [Run { length: 5, flags: 1 }, Run { length: 1 << 33, flags: 3 }, Run { length: 1, flags: 0 }];
        let bytes = status_payload(false, 9, &runs);
        let (context, found) = decode_status(&bytes, false).unwrap();
        assert_eq!((context, found.collect::<Vec<_>>()), (9, vec![(5, 1), (u64::from(CUT_BYTES), 3)]));
        assert_eq!(status_payload(true, 9, &runs).len(), 8 + 3 * 16);
    }
}
