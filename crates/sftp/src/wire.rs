//! The packets that reading a file takes. Source: draft-ietf-secsh-filexfer-02 (version 3).
//!
//! ```text
//! 0  4  length of what follows, big endian
//! 4  1  type
//! 5  4  request's id (in INIT and VERSION: the version)
//! 9  .  what belongs to the type; strings are a length of 4 bytes and so many bytes
//! ```

pub const INIT: u8 = 1;
pub const VERSION: u8 = 2;
pub const OPEN: u8 = 3;
pub const READ: u8 = 5;
pub const FSTAT: u8 = 8;
pub const STATUS: u8 = 101;
pub const HANDLE: u8 = 102;
pub const DATA: u8 = 103;
pub const ATTRS: u8 = 105;

/// The version that drover speaks, and every server.
pub const VERSION_3: u32 = 3;

/// No packet of a peer may be longer: OpenSSH's servers send up to 256 KiB.
pub const PACKET_BYTES_MAX: u32 = (256 << 10) + 1024;

/// No handle of a server may be longer, says the draft.
pub const HANDLE_BYTES_MAX: usize = 256;

const OPEN_READ: u32 = 1;
const HAS_SIZE: u32 = 1;
const HAS_OWNER: u32 = 2;
const HAS_PERMISSIONS: u32 = 4;
const HAS_TIMES: u32 = 8;

/// A packet being made.
pub struct Packet(Vec<u8>);

impl Packet {
    pub fn new(kind: u8, id: u32) -> Packet {
        let mut bytes = vec![0, 0, 0, 0, kind];
        bytes.extend(id.to_be_bytes());
        Packet(bytes)
    }

    pub fn number(mut self, number: u32) -> Packet {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn string(self, bytes: &[u8]) -> Packet {
        let mut packet = self.number(bytes.len() as u32);
        packet.0.extend(bytes);
        packet
    }

    pub fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

pub fn init() -> Vec<u8> {
    Packet::new(INIT, VERSION_3).finish()
}

pub fn open(id: u32, path: &str) -> Vec<u8> {
    Packet::new(OPEN, id).string(path.as_bytes()).number(OPEN_READ).number(0).finish()
}

pub fn fstat(id: u32, handle: &[u8]) -> Vec<u8> {
    Packet::new(FSTAT, id).string(handle).finish()
}

pub fn read(id: u32, handle: &[u8], offset: u64, length: u32) -> Vec<u8> {
    let packet = Packet::new(READ, id).string(handle);
    packet.number((offset >> 32) as u32).number(offset as u32).number(length).finish()
}

/// What a server says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub size: u64,
    pub mode: Option<u32>,
    pub modified: Option<u32>,
}

/// Takes fields off the front of a body; `None` where it is too short.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*number))
    }

    pub fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.number()? as usize;
        let (string, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(string)
    }

    pub fn attributes(&mut self) -> Option<Attributes> {
        let flags = self.number()?;
        if flags & HAS_SIZE == 0 {
            return None;
        }
        let size = u64::from(self.number()?) << 32 | u64::from(self.number()?);
        if flags & HAS_OWNER != 0 {
            self.number()?;
            self.number()?;
        }
        let mode = if flags & HAS_PERMISSIONS != 0 { Some(self.number()?) } else { None };
        let modified = if flags & HAS_TIMES != 0 {
            self.number()?;
            Some(self.number()?)
        } else {
            None
        };
        Some(Attributes { size, mode, modified })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_laid_out_as_written_down() {
        assert_eq!(init(), [0, 0, 0, 5, 1, 0, 0, 0, 3]);
        let read = read(7, b"h", 0x1_0000_0002, 5);
        assert_eq!(read, [0, 0, 0, 22, 5, 0, 0, 0, 7, 0, 0, 0, 1, b'h', 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5]);
        assert_eq!(open(1, "/x").len(), 9 + 4 + 2 + 8);
    }

    #[test]
    fn fields_end_where_the_bytes_end() {
        let full = [0, 0, 0, 13, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0o100 >> 1, 0, 0, 0, 0, 3, 0, 0, 0, 4];
        let found = Fields(&full).attributes().unwrap();
        assert_eq!((found.size, found.modified), (0x1_0000_0002, Some(4)));
        for cut in 0..full.len() {
            assert_eq!(Fields(&full[..cut]).attributes(), None, "{cut}");
        }
        assert_eq!(Fields(&[0, 0, 0, 0]).attributes(), None, "no size");
        assert_eq!(Fields(&[0xff, 0xff, 0xff, 0xff, 1]).string(), None);
    }
}
