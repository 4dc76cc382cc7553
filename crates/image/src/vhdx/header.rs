use std::io;

use drover_types::ByteSpan;

use super::crc::crc32c;
use crate::fault::{Numbers, damaged, unsupported};
use crate::source::{ReadAt, read_piece};

/// A GUID as it is stored: the first three groups little endian.
pub(crate) type Guid = [u8; 16];

pub(crate) const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> Guid {
    let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

const BAT: Guid = guid(0x2dc2_7766, 0xf623, 0x4200, [0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd, 0x4a, 0x08]);
const METADATA: Guid = guid(0x8b7c_a206, 0x4790, 0x4b9a, [0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e]);

pub(crate) const MARK: &[u8] = b"vhdxfile";

const KIB_64: u64 = 64 << 10;
const HEADERS: [u64; 2] = [KIB_64, 2 * KIB_64];
const HEADER_BYTES: u64 = 4096;
const TABLES: [u64; 2] = [3 * KIB_64, 4 * KIB_64];
const TABLE_BYTES: u64 = KIB_64;
/// As the format says.
const REGIONS_MAX: u32 = 2047;
pub(crate) const CHECKSUM: std::ops::Range<usize> = 4..8;

/// The newer of the two headers.
///
/// ```text
/// 0 "head"  4 checksum u32  8 sequence u64  48 log GUID  64 log version u16  66 version u16
/// 68 log length u32  72 log place u64                                        (4 KiB, little endian)
/// ```
/// Source: Microsoft, MS-VHDX, "Headers".
pub(crate) struct Header {
    sequence: u64,
    /// All zeros if the log holds nothing.
    pub(crate) log_guid: Guid,
    pub(crate) log_version: u16,
    pub(crate) log: ByteSpan,
}

impl Header {
    pub(crate) fn read(source: &dyn ReadAt) -> io::Result<Header> {
        let headers: Vec<Header> =
            HEADERS.iter().filter_map(|at| Header::read_at(source, *at).ok()).collect();
        let newest = headers.into_iter().max_by_key(|header| header.sequence);
        newest.ok_or_else(|| damaged("neither of its two headers is whole"))
    }

    fn read_at(source: &dyn ReadAt, offset: u64) -> io::Result<Header> {
        let bytes = read_piece(source, "a header", ByteSpan::new(offset, HEADER_BYTES), HEADER_BYTES)?;
        let bytes = &bytes[..];
        if !bytes.starts_with(b"head") || bytes.le32(4)? != crc32c(bytes, CHECKSUM) || bytes.le16(66)? != 1 {
            return Err(damaged("a header is broken"));
        }
        Ok(Header {
            sequence: bytes.le64(8)?,
            log_guid: bytes.take(48)?,
            log_version: bytes.le16(64)?,
            log: ByteSpan::new(bytes.le64(72)?, u64::from(bytes.le32(68)?)),
        })
    }
}

/// Where the table of blocks and the metadata are.
pub(crate) struct Regions {
    pub(crate) blocks: ByteSpan,
    pub(crate) metadata: ByteSpan,
}

impl Regions {
    /// Reads the first of the two tables that is whole.
    pub(crate) fn read(source: &dyn ReadAt) -> io::Result<Regions> {
        let first = Regions::read_at(source, TABLES[0]);
        match first {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Regions::read_at(source, TABLES[1]),
            first => first,
        }
    }

    fn read_at(source: &dyn ReadAt, offset: u64) -> io::Result<Regions> {
        let bytes =
            read_piece(source, "a table of regions", ByteSpan::new(offset, TABLE_BYTES), TABLE_BYTES)?;
        let bytes = &bytes[..];
        let count = bytes.le32(8)?;
        if !bytes.starts_with(b"regi") || bytes.le32(4)? != crc32c(bytes, CHECKSUM) || count > REGIONS_MAX {
            return Err(damaged("both of its tables of regions are broken"));
        }
        let (mut blocks, mut metadata) = (None, None);
        for entry in bytes[16..].chunks_exact(32).take(count as usize) {
            let span = ByteSpan::new(entry.le64(16)?, u64::from(entry.le32(24)?));
            match entry.take(0)? {
                BAT => blocks = Some(span),
                METADATA => metadata = Some(span),
                _ if entry.le32(28)? & 1 == 1 => {
                    return Err(unsupported("it needs a region that is not known here"));
                }
                _ => {}
            }
        }
        match (blocks, metadata) {
            (Some(blocks), Some(metadata)) => Ok(Regions { blocks, metadata }),
            _ => Err(damaged("it has no table of blocks or no metadata")),
        }
    }
}
