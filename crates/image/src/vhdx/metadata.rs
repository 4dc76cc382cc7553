use std::io;

use drover_types::ByteSpan;

use super::header::{Guid, guid};
use crate::fault::{Numbers, damaged, unsupported};
use crate::source::{ReadAt, read_piece};

const FILE_PARAMETERS: Guid =
    guid(0xcaa1_6737, 0xfa36, 0x4d43, [0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b]);
const DISK_SIZE: Guid = guid(0x2fa5_4224, 0xcd1b, 0x4876, [0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8]);
const DISK_ID: Guid = guid(0xbeca_12ab, 0xb2e6, 0x4523, [0x93, 0xef, 0xc3, 0x09, 0xe0, 0x00, 0xc7, 0x46]);
const LOGICAL_SECTOR: Guid =
    guid(0x8141_bf1d, 0xa96f, 0x4709, [0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f]);
const PHYSICAL_SECTOR: Guid =
    guid(0xcda3_48c7, 0x445d, 0x4471, [0x9c, 0xc9, 0xe9, 0x88, 0x52, 0x51, 0xc5, 0x56]);
const PARENT: Guid = guid(0xa8d3_5f2d, 0xb30b, 0x454d, [0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c]);

const TABLE_BYTES: u64 = 64 << 10;
/// As the format says.
const ITEMS_MAX: u16 = 2047;
/// "A reader that does not know this item must not read on."
const REQUIRED: u32 = 1 << 2;
const HAS_PARENT: u32 = 1 << 1;

const BLOCK_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(256 << 20);
const SIZE_MAX: u64 = 64 << 40;

/// What the disk is like.
///
/// ```text
/// 0 "metadata"  10 items u16  32 items: GUID, place u32 (in the region), length u32, flags u32, 4 free
/// ```
/// Source: Microsoft, MS-VHDX, "Metadata Region".
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) size: u64,
    pub(crate) block_bytes: u64,
    pub(crate) sector_bytes: u64,
}

impl Metadata {
    pub(crate) fn read(source: &dyn ReadAt, region: ByteSpan) -> io::Result<Metadata> {
        let place = ByteSpan::new(region.offset, TABLE_BYTES);
        let table = read_piece(source, "its metadata", place, TABLE_BYTES)?;
        let table = &table[..];
        let count = table.le16(10)?;
        if !table.starts_with(b"metadata") || count > ITEMS_MAX {
            return Err(damaged("its metadata does not start as such"));
        }
        let mut found = Metadata::default();
        for entry in table[32..].chunks_exact(32).take(count as usize) {
            let span = ByteSpan::new(u64::from(entry.le32(16)?), u64::from(entry.le32(20)?));
            if span.end() > region.length {
                return Err(damaged("an item of its metadata lies outside it"));
            }
            let number = || item(source, region.offset, span);
            match entry.take(0)? {
                FILE_PARAMETERS => found.take_parameters(number()?)?,
                DISK_SIZE => found.size = number()?,
                LOGICAL_SECTOR => found.sector_bytes = number()?,
                PARENT => return Err(differencing()),
                DISK_ID | PHYSICAL_SECTOR => {}
                _ if entry.le32(24)? & REQUIRED != 0 => {
                    return Err(unsupported("it needs an item of metadata that is not known here"));
                }
                _ => {}
            }
        }
        found.check()?;
        Ok(found)
    }

    /// Block size in the low half, flags in the high one.
    fn take_parameters(&mut self, word: u64) -> io::Result<()> {
        self.block_bytes = word & 0xffff_ffff;
        if (word >> 32) as u32 & HAS_PARENT != 0 { Err(differencing()) } else { Ok(()) }
    }

    fn check(&self) -> io::Result<()> {
        let Metadata { size, block_bytes, sector_bytes } = *self;
        let good = block_bytes.is_power_of_two() && BLOCK_BYTES.contains(&block_bytes);
        if good && matches!(sector_bytes, 512 | 4096) && size <= SIZE_MAX {
            return Ok(());
        }
        Err(damaged(format!("a disk of {size} bytes in blocks of {block_bytes}, sectors of {sector_bytes}")))
    }
}

/// An item of 4 or 8 bytes.
fn item(source: &dyn ReadAt, region: u64, span: ByteSpan) -> io::Result<u64> {
    let offset =
        region.checked_add(span.offset).ok_or_else(|| damaged("an item of its metadata is nowhere"))?;
    let bytes = read_piece(source, "an item of its metadata", ByteSpan::new(offset, span.length), 8)?;
    match bytes.len() {
        4 => bytes.le32(0).map(u64::from),
        8 => bytes.le64(0),
        length => Err(damaged(format!("an item of its metadata of {length} bytes"))),
    }
}

fn differencing() -> io::Error {
    unsupported("a differencing disk; merge it with its parents first (`Merge-VHD`)")
}
