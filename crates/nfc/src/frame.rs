//! Frames of an AIO session. All numbers are little-endian.
//!
//! ```text
//! @0 u32 magic 0xA100DA7A | @4 u32 type | @8 u32 bytes of payload | @12 u32 operation | payload | extra
//! ```
//!
//! The extra is not counted in the head: its length is in the payload. An operation is a request, with all replies.

/// First bytes of a frame: `7a da 00 a1`.
pub const MAGIC: u32 = 0xa100_da7a;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 16;

/// The longest payload we know has 60 bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 256;

/// Bytes of the payload of a read, a write and their replies.
pub const IO_BYTES: usize = 44;

/// Chunks of one question for allocated blocks.
pub const CHUNKS_MAX: u64 = 512 << 10;

/// Longest text of an error or value of the disk's database.
pub const TEXT_BYTES_MAX: u32 = 64 << 10;

/// Types of frames.
pub mod kind {
    pub const ERROR: u32 = 1;
    pub const OPEN_SESSION: u32 = 2;
    pub const CLOSE_SESSION: u32 = 3;
    pub const OPEN_FILE: u32 = 4;
    pub const CLOSE_FILE: u32 = 5;
    pub const IO: u32 = 7;
    pub const SET_SOCKET_OPTIONS: u32 = 9;
    pub const DDB_GET: u32 = 11;
    pub const QUERY_ALLOCATED: u32 = 13;
    pub const SET_RESOURCE_POOL: u32 = 22;
}

/// Flags of an open: to read, and to read and write.
pub const OPEN_READ: u32 = 0x1e;
pub const OPEN_WRITE: u32 = 0x1a;

/// A file that is a disk.
const FILE_TYPE_DISK: u32 = 2;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: u32,
    pub payload: u32,
    pub op: u32,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        put(&mut bytes, 0, &[MAGIC, self.kind, self.payload, self.op]);
        bytes
    }

    /// Takes the first 16 of `bytes`, if there are so many.
    pub fn decode(bytes: &[u8]) -> Result<Option<Head>, String> {
        if bytes.len() < HEAD_BYTES {
            return Ok(None);
        }
        if u32_at(bytes, 0) != MAGIC {
            return Err(format!("a frame starts with {:#010x}", u32_at(bytes, 0)));
        }
        let head = Head { kind: u32_at(bytes, 4), payload: u32_at(bytes, 8), op: u32_at(bytes, 12) };
        if head.payload > PAYLOAD_BYTES_MAX {
            return Err(format!("a frame of type {} has a payload of {} bytes", head.kind, head.payload));
        }
        Ok(Some(head))
    }
}

/// The u32 at an offset that is known to be there.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The u64 at an offset that is known to be there.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn put(bytes: &mut [u8], at: usize, words: &[u32]) {
    for (i, word) in words.iter().enumerate() {
        bytes[at + 4 * i..at + 4 * i + 4].copy_from_slice(&word.to_le_bytes());
    }
}

fn put_u64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// A read or write, its fragments and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Of the file in a request, the status in a reply: 0 is good.
    pub handle: u64,
    pub is_read: bool,
    pub codec: u32,
    /// Of the whole request on the disk.
    pub offset: u64,
    /// Of the whole request.
    pub total: u32,
    /// Of the fragment within the request.
    pub at: u32,
    /// Bytes of the disk in the fragment.
    pub plain: u32,
    /// Bytes that they have on the wire.
    pub extra: u32,
}

impl Io {
    /// A request for bytes of the disk.
    pub fn read(handle: u64, offset: u64, length: u32, codec: u32) -> Io {
        Io { handle, is_read: true, codec, offset, total: length, at: 0, plain: length, extra: length }
    }

    pub fn encode(&self) -> [u8; IO_BYTES] {
        let mut bytes = [0; IO_BYTES];
        put_u64(&mut bytes, 0, self.handle);
        put(&mut bytes, 8, &[u32::from(self.is_read), self.codec]);
        put_u64(&mut bytes, 16, self.offset);
        put(&mut bytes, 24, &[self.total, self.at, self.plain, self.extra]);
        bytes
    }

    pub fn decode(payload: &[u8]) -> Result<Io, String> {
        need(payload, IO_BYTES, "a reply to a read or write")?;
        Ok(Io {
            handle: u64_at(payload, 0),
            is_read: u32_at(payload, 8) == 1,
            codec: u32_at(payload, 12),
            offset: u64_at(payload, 16),
            total: u32_at(payload, 24),
            at: u32_at(payload, 28),
            plain: u32_at(payload, 32),
            extra: u32_at(payload, 36),
        })
    }
}

/// Refuses a payload of another length: one that is taken for longer or shorter than it is shifts all data behind it.
pub fn need(payload: &[u8], bytes: usize, what: &str) -> Result<(), String> {
    match payload.len() {
        length if length != bytes => Err(format!("{what} has {length} bytes instead of {bytes}")),
        _ => Ok(()),
    }
}

/// The payload of a session's opening.
pub fn open_session(buffer_bytes: u32, buffers: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 4, &[buffer_bytes, buffers]);
    bytes
}

/// The payload of a file's opening; its path is the extra.
pub fn open_file(path: &str, writable: bool) -> [u8; 60] {
    let mut bytes = [0; 60];
    put(&mut bytes, 0, &[path.len() as u32]);
    put(&mut bytes, 16, &[FILE_TYPE_DISK, if writable { OPEN_WRITE } else { OPEN_READ }]);
    bytes
}

/// What an opened file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub status: u64,
    pub handle: u64,
    pub capacity: u64,
    pub sector: u32,
}

impl Opened {
    pub fn decode(payload: &[u8]) -> Result<Opened, String> {
        need(payload, 60, "the answer to an open")?;
        let (status, handle) = (u64_at(payload, 0), u64_at(payload, 8));
        let sector = if u32_at(payload, 36) == 0 { 512 } else { u32_at(payload, 36) };
        Ok(Opened { status, handle, capacity: u64_at(payload, 28), sector })
    }
}

/// The payload of a file's closing.
pub fn close_file(handle: u64) -> [u8; 8] {
    handle.to_le_bytes()
}

/// The payload of a question for a value of the disk's database; its key, without `ddb.`, is the extra.
pub fn ddb_get(handle: u64, key: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    put_u64(&mut bytes, 0, handle);
    put(&mut bytes, 8, &[key.len() as u32]);
    bytes
}

/// The payload of a question for allocated blocks.
pub fn query_allocated(handle: u64, chunk_bytes: u64, start: u64, chunks: u64) -> [u8; 48] {
    let mut bytes = [0; 48];
    put_u64(&mut bytes, 0, handle);
    put_u64(&mut bytes, 16, chunk_bytes);
    put_u64(&mut bytes, 24, start);
    put_u64(&mut bytes, 32, chunks);
    bytes
}

/// Bytes of the bitmap of so many chunks: a multiple of four.
pub fn bitmap_bytes(chunks: u64) -> u64 {
    chunks.div_ceil(8).next_multiple_of(4)
}

/// How many bytes of extra follow this payload of a reply, where they do not belong to a read.
pub fn extra_of(kind: u32, payload: &[u8]) -> Result<u64, String> {
    match kind {
        kind::ERROR | kind::DDB_GET => {
            need(payload, 16, "an error or a value")?;
            match u32_at(payload, 12) {
                length if length <= TEXT_BYTES_MAX => Ok(length.into()),
                length => Err(format!("a text of {length} bytes")),
            }
        }
        kind::QUERY_ALLOCATED => {
            need(payload, 48, "an answer about allocated blocks")?;
            match u64_at(payload, 32) {
                chunks if chunks <= CHUNKS_MAX => Ok(bitmap_bytes(chunks)),
                chunks => Err(format!("a bitmap of {chunks} chunks")),
            }
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    fn head(kind: u32, payload: u32, op: u32) -> Vec<u8> {
        Head { kind, payload, op }.encode().to_vec()
    }

    #[test]
    fn the_worked_bytes_of_the_note_come_out() {
        let session = [head(kind::OPEN_SESSION, 16, 0), open_session(1 << 20, 4).to_vec()].concat();
        let wanted = "7ada00a1 02000000 10000000 00000000 | 00000000 00001000 04000000 00000000";
        assert_eq!(session, bytes(wanted));

        let path = "[ds1] vm1/vm1.vmdk";
        let open = [&head(kind::OPEN_FILE, 60, 3), &open_file(path, false)[..], path.as_bytes()].concat();
        let wanted =
            "7ada00a1 04000000 3c000000 03000000 | 12000000 00000000 00000000 00000000 02000000 1e000000";
        let tail = "5b6473315d20766d312f766d312e766d646b";
        assert_eq!(open, [bytes(wanted), vec![0; 36], bytes(tail)].concat());

        let io = Io::read(0xffff_ffff_8000_1234, 1 << 20, 66048, 2);
        let read = [head(kind::IO, 44, 4), io.encode().to_vec()].concat();
        let wanted = "7ada00a1 07000000 2c000000 04000000 | 34120080 ffffffff 01000000 02000000
                      00001000 00000000 00020100 00000000 00020100 00020100 00000000";
        assert_eq!(read, bytes(wanted));
    }

    #[test]
    fn the_second_fragment_of_the_note_is_understood() {
        let frame = bytes(
            "7ada00a1 07000000 2c000000 04000000 | 00000000 00000000 01000000 00000000
             00001000 00000000 00020100 00000100 00020000 00020000 00000000",
        );
        let found = Head::decode(&frame).unwrap().unwrap();
        assert_eq!(found, Head { kind: kind::IO, payload: 44, op: 4 });
        let io = Io::decode(&frame[16..]).unwrap();
        let wanted = Io {
            handle: 0,
            is_read: true,
            codec: 0,
            offset: 1 << 20,
            total: 66048,
            at: 65536,
            plain: 512,
            extra: 512,
        };
        assert_eq!(io, wanted);
    }

    #[test]
    fn a_capacity_that_is_not_aligned_in_its_frame_is_read() {
        let mut payload = [0; 60];
        put_u64(&mut payload, 8, 0xffff_ffff_8000_0001);
        put_u64(&mut payload, 28, 0x1_2345_6600);
        let opened = Opened::decode(&payload).unwrap();
        assert_eq!((opened.handle, opened.capacity), (0xffff_ffff_8000_0001, 0x1_2345_6600));
        assert_eq!(opened.sector, 512, "0 means 512");
        assert!(Opened::decode(&payload[..59]).is_err() && Opened::decode(&[0; 61]).is_err());
        assert!(Io::decode(&[0; 43]).is_err() && Io::decode(&[0; 48]).is_err());
    }

    #[test]
    fn bitmaps_are_rounded_up_to_four_bytes_and_sizes_are_bounded() {
        assert_eq!([0, 1, 8, 32, 33].map(bitmap_bytes), [0, 4, 4, 4, 8]);
        let question = query_allocated(1, 65536, 1 << 20, CHUNKS_MAX + 1);
        assert!(extra_of(kind::QUERY_ALLOCATED, &question).is_err());
        let mut text = [0; 16];
        put(&mut text, 12, &[TEXT_BYTES_MAX + 1]);
        assert!(extra_of(kind::ERROR, &text).is_err() && extra_of(kind::DDB_GET, &text).is_err());
        assert!(Head::decode(&head(2, PAYLOAD_BYTES_MAX + 1, 0)).is_err());
        assert!(Head::decode(&[0; 16]).is_err());
        assert_eq!(Head::decode(&[0; 15]), Ok(None));
    }

    proptest! {
        #[test]
        fn heads_and_payloads_survive_the_wire(kind: u32, payload in 0..=PAYLOAD_BYTES_MAX, op: u32, io: [u64; 2],
                                               words: [u32; 5], is_read: bool) {
            let head = Head { kind, payload, op };
            prop_assert_eq!(Head::decode(&head.encode()), Ok(Some(head)));
            let [codec, total, at, plain, extra] = words;
            let io = Io { handle: io[0], is_read, codec, offset: io[1], total, at, plain, extra };
            prop_assert_eq!(Io::decode(&io.encode()), Ok(io));
        }
    }
}
