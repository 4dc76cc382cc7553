//! Bytes on the wire. All numbers are big-endian; nothing here panics whatever the bytes are.
//!
//! ```text
//! greeting (server)         option (client)            option reply (server)
//!  0  8  "NBDMAGIC"          0  8  "IHAVEOPT"           0  8  0x0003e889045565a9
//!  8  8  "IHAVEOPT"          8  4  option               8  4  option
//! 16  2  handshake flags    12  4  length              12  4  type, bit 31: error
//!                           16  .  data                16  4  length
//!                                                      20  .  data
//!
//! request (client)          simple reply (server)      structured reply chunk (server)
//!  0  4  0x25609513          0  4  0x67446698           0  4  0x668e33ef
//!  4  2  flags               4  4  error                4  2  flags, bit 0: last chunk
//!  6  2  command             8  8  cookie               6  2  type, bit 15: error
//!  8  8  cookie             16  .  data of a read       8  8  cookie
//! 16  8  offset                                        16  4  length
//! 24  4  length                                        20  .  payload, by type:
//! 28  .  data of a write
//!                             offset data   0  8 offset   8 . data
//!                             offset hole   0  8 offset   8 4 length of the hole
//!                             block status  0  4 context  4 . (4 length, 4 flags)*
//!                             error         0  4 error    4 2 length   6 . message
//! ```
//!
//! With extended headers:
//!
//! ```text
//! request (client)          chunk (server)             payload that differs
//!  0  4  0x21e41c71          0  4  0x6e8a278c          block status  0  4 context
//!  4  2  flags               4  2  flags                             4  4 number of runs
//!  6  2  command             6  2  type                              8  . (8 length, 8 flags)*
//!  8  8  cookie              8  8  cookie
//! 16  8  offset             16  8  offset of the request
//! 24  8  length             24  8  length
//! 32  .  data, if flag 5    32  .  payload
//! ```
//!
//! A server that agreed to structured replies still may answer all but reads with simple ones, so
//! the magic of each reply tells which it is.
//!
//! Source: NBD `doc/proto.md`.

/// First eight bytes from a server.
pub const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Next eight bytes from a newstyle server, and first eight of each option.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// The same from a server of before 2010: size and flags follow, and no option.
pub const OLD_STYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// First eight bytes of the answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First four bytes of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First four bytes of a request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First four bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First four bytes of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// First four bytes of a chunk with an extended header.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flag: the server takes options and answers each.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: no 124 zero bytes after the answer to `EXPORT_NAME`.
pub const NO_ZEROES: u16 = 1 << 1;

/// Options of the handshake.
pub mod option {
    /// Choose an export and start; the only one without an answer for errors.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up politely.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Go on in TLS.
    pub const STARTTLS: u32 = 5;
    /// Ask about an export without starting.
    pub const INFO: u32 = 6;
    /// Choose an export and start.
    pub const GO: u32 = 7;
    /// Ask for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Ask what block status could tell.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose what block status tells.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Ask for 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of answers to options.
pub mod answer {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export of the list.
    pub const SERVER: u32 = 2;
    /// A fact about the export.
    pub const INFO: u32 = 3;
    /// A context that block status will tell.
    pub const META_CONTEXT: u32 = 4;
    /// Bit of all errors.
    pub const ERROR: u32 = 1 << 31;
    /// The server does not know the option.
    pub const UNSUPPORTED: u32 = ERROR | 1;
    /// The server's rules forbid it.
    pub const POLICY: u32 = ERROR | 2;
    /// The server takes the option for malformed.
    pub const INVALID: u32 = ERROR | 3;
    /// Not on this platform.
    pub const PLATFORM: u32 = ERROR | 4;
    /// TLS first.
    pub const TLS_REQUIRED: u32 = ERROR | 5;
    /// No such export.
    pub const UNKNOWN: u32 = ERROR | 6;
    /// The server is about to end.
    pub const SHUTDOWN: u32 = ERROR | 7;
    /// The client must ask for block sizes.
    pub const BLOCK_SIZE_REQUIRED: u32 = ERROR | 8;
    /// The option has more data than the server takes.
    pub const TOO_BIG: u32 = ERROR | 9;
    /// Extended headers were agreed and rule this out.
    pub const EXTENDED_HEADERS_REQUIRED: u32 = ERROR | 10;
}

/// Types of facts in an [`answer::INFO`].
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's name as the server writes it.
    pub const NAME: u16 = 1;
    /// What the export is, for people.
    pub const DESCRIPTION: u16 = 2;
    /// Block size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod flag {
    /// Set in all that follow the protocol.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// No writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Takes `FLUSH`.
    pub const FLUSH: u16 = 1 << 2;
    /// Takes the FUA flag.
    pub const FUA: u16 = 1 << 3;
    /// Takes `WRITE_ZEROES`.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// Takes the flag that a read is answered in one chunk.
    pub const DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Request flag: the reply comes when the bytes are durable.
pub const COMMAND_FUA: u16 = 1 << 0;
/// Request flag of a zeroing: leave no hole.
pub const COMMAND_NO_HOLE: u16 = 1 << 1;
/// Request flag of a read: answer in one chunk.
pub const COMMAND_DF: u16 = 1 << 2;
/// Request flag of a block status: one run per context.
pub const COMMAND_REQ_ONE: u16 = 1 << 3;
/// Request flag with extended headers: the length is that of the payload which follows.
pub const COMMAND_PAYLOAD: u16 = 1 << 5;
/// Block status flag: no storage is taken.
pub const STATUS_HOLE: u32 = 1 << 0;
/// Block status flag: reads as zeros. That it is a hole (bit 0) says nothing about what it reads as.
pub const STATUS_ZERO: u32 = 1 << 1;
/// Block status flag of a dirty bitmap: something was written here.
pub const STATUS_DIRTY: u32 = 1 << 0;
/// The context whose block status tells holes and zeros.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// With a decimal number behind it, the context by which a writer carries its epoch; drover's own, see
/// `docs/dev/fence.md`.
pub const FENCE_PREFIX: &str = "drover:fence=";

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// The same with an extended header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply without its data.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of the head of a chunk.
pub const CHUNK_BYTES: usize = 20;
/// The same with an extended header.
pub const EXTENDED_CHUNK_BYTES: usize = 32;
/// The longest string the protocol allows.
pub const STRING_BYTES_MAX: usize = 4096;

/// Commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Read.
    Read = 0,
    /// Write; data follows.
    Write = 1,
    /// Close; no reply.
    Disconnect = 2,
    /// Make writes durable.
    Flush = 3,
    /// Make a span read as zeros.
    WriteZeroes = 6,
    /// What a span holds.
    BlockStatus = 7,
}

/// A request without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Request flags.
    pub flags: u16,
    /// What to do.
    pub command: Command,
    /// Comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; without extended headers at most `u32::MAX`.
    pub length: u64,
}

impl RequestHead {
    /// The request's bytes.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        self.put(REQUEST_MAGIC, &mut bytes);
        bytes[24..28].copy_from_slice(&(self.length as u32).to_be_bytes());
        bytes
    }

    /// The request's bytes with an extended header.
    pub fn encode_extended(&self) -> [u8; EXTENDED_REQUEST_BYTES] {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        self.put(EXTENDED_REQUEST_MAGIC, &mut bytes);
        bytes[24..32].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    fn put(&self, magic: u32, bytes: &mut [u8]) {
        bytes[0..4].copy_from_slice(&magic.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&(self.command as u16).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
    }
}

/// The head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// A whole reply; the data of a read without error follows.
    Simple {
        /// 0 or an errno.
        error: u32,
        /// Of which request.
        cookie: u64,
    },
    /// A part of a reply; a payload follows.
    Chunk(ChunkHead),
}

/// The head of a chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// Whether it is the reply's last.
    pub done: bool,
    /// What the payload is.
    pub kind: ChunkKind,
    /// Of which request.
    pub cookie: u64,
    /// The request's offset, in an extended header only.
    pub offset: Option<u64>,
    /// Bytes of the payload.
    pub length: u64,
}

/// Types of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// Nothing.
    None,
    /// Data at an offset.
    Data,
    /// Zeros at an offset.
    Hole,
    /// Block status.
    Status,
    /// Block status with lengths of 64 bits.
    ExtendedStatus,
    /// An error, of a known or unknown type.
    Error,
    /// Anything else.
    Unknown(u16),
}

const CHUNK_ERROR: u16 = 1 << 15;

impl ChunkKind {
    fn from_wire(kind: u16) -> Self {
        match kind {
            0 => ChunkKind::None,
            1 => ChunkKind::Data,
            2 => ChunkKind::Hole,
            5 => ChunkKind::Status,
            6 => ChunkKind::ExtendedStatus,
            kind if kind & CHUNK_ERROR != 0 => ChunkKind::Error,
            kind => ChunkKind::Unknown(kind),
        }
    }
}

/// What the bytes at hand make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<T> {
    /// This, from that many bytes.
    Whole(T, usize),
    /// More bytes are needed.
    Partial,
    /// No reply starts with these bytes.
    Garbage(u32),
}

/// The head of a reply from the first bytes of `bytes`.
pub fn decode_reply(bytes: &[u8]) -> Decoded<ReplyHead> {
    let mut fields = Fields(bytes);
    match fields.u32() {
        None => Decoded::Partial,
        Some(SIMPLE_REPLY_MAGIC) => whole(simple(fields), SIMPLE_BYTES),
        Some(CHUNK_MAGIC) => whole(chunk(fields, false), CHUNK_BYTES),
        Some(EXTENDED_CHUNK_MAGIC) => whole(chunk(fields, true), EXTENDED_CHUNK_BYTES),
        Some(other) => Decoded::Garbage(other),
    }
}

fn whole(head: Option<ReplyHead>, bytes: usize) -> Decoded<ReplyHead> {
    head.map_or(Decoded::Partial, |head| Decoded::Whole(head, bytes))
}

fn simple(mut fields: Fields<'_>) -> Option<ReplyHead> {
    Some(ReplyHead::Simple { error: fields.u32()?, cookie: fields.u64()? })
}

fn chunk(mut fields: Fields<'_>, extended: bool) -> Option<ReplyHead> {
    let (flags, kind) = (fields.u16()?, ChunkKind::from_wire(fields.u16()?));
    let cookie = fields.u64()?;
    let (offset, length) =
        if extended { (Some(fields.u64()?), fields.u64()?) } else { (None, fields.u32()?.into()) };
    Some(ReplyHead::Chunk(ChunkHead { done: flags & 1 != 0, kind, cookie, offset, length }))
}

/// Offset and length of a hole.
pub fn decode_hole(payload: &[u8]) -> Option<(u64, u32)> {
    let mut fields = Fields(payload);
    let hole = (fields.u64()?, fields.u32()?);
    fields.0.is_empty().then_some(hole)
}

/// Errno and message of an error chunk. What follows the message (an offset) is left out.
pub fn decode_error(payload: &[u8]) -> Option<(u32, String)> {
    let mut fields = Fields(payload);
    let (error, length) = (fields.u32()?, fields.u16()?);
    let message = fields.bytes(usize::from(length))?;
    Some((error, String::from_utf8_lossy(message).into_owned()))
}

/// Context and (length, flags) of each run of a block status, `extended` or not.
pub fn decode_status(payload: &[u8], extended: bool) -> Option<(u32, impl Iterator<Item = (u64, u64)> + '_)> {
    let mut fields = Fields(payload);
    let context = fields.u32()?;
    let count = if extended { Some(fields.u32()? as usize) } else { None };
    let (runs, run_bytes) = (fields.0, if extended { 16 } else { 8 });
    let whole = !runs.is_empty() && runs.len().is_multiple_of(run_bytes);
    if !whole || count.is_some_and(|count| count != runs.len() / run_bytes) {
        return None;
    }
    let run = move |bytes: &[u8]| {
        let mut fields = Fields(bytes);
        let mut number = || if extended { fields.u64() } else { fields.u32().map(u64::from) }.unwrap_or(0);
        (number(), number())
    };
    Some((context, runs.chunks_exact(run_bytes).map(run)))
}

/// An option with its data.
pub fn encode_option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Data of [`option::GO`]: the export, and the facts we want.
pub fn encode_go(export: &str, infos: &[u16]) -> Vec<u8> {
    let mut bytes = encode_string(export);
    bytes.extend((infos.len() as u16).to_be_bytes());
    bytes.extend(infos.iter().flat_map(|info| info.to_be_bytes()));
    bytes
}

/// Data of [`option::SET_META_CONTEXT`] and [`option::LIST_META_CONTEXT`]: the export, and queries.
pub fn encode_meta_contexts(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = encode_string(export);
    bytes.extend((queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| encode_string(query)));
    bytes
}

fn encode_string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// Reads fields off the front of bytes; `None` once they run out.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests;
