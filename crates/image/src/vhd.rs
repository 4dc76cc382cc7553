//! VHD, as Virtual PC and Hyper-V write it: fixed and dynamic.
//!
//! ```text
//! fixed     data, footer
//! dynamic   copy of the footer, header, table of blocks, blocks (bitmap of sectors, data) ..., footer
//! ```
//! All big endian. Source: Microsoft, "Virtual Hard Disk Image Format Specification", 1.0.

use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use crate::fault::{Numbers, damaged, unsupported};
use crate::map::{Layer, Place, Run, gather};
use crate::open::{Context, Opened};
use crate::raw::RawLayer;
use crate::source::{ReadAt, read_piece};

/// ```text
/// 0 "conectix"  16 place of the header u64  48 size u64  60 type u32  64 checksum u32      (512 bytes)
/// ```
const FOOTER_BYTES: u64 = 512;
const FOOTER_COOKIE: &[u8] = b"conectix";
const FOOTER_CHECKSUM: usize = 64;

/// ```text
/// 0 "cxsparse"  16 place of the table u64  28 entries u32  32 bytes of a block u32  36 checksum u32
/// ```
const HEADER_BYTES: u64 = 1024;
const HEADER_COOKIE: &[u8] = b"cxsparse";
const HEADER_CHECKSUM: usize = 36;

const SECTOR_BYTES: u64 = 512;
/// 2 MiB as a rule.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = SECTOR_BYTES..=(256 << 20);
/// 2 TiB by the format, in blocks of 512 KiB or more.
const TABLE_BYTES_MAX: u64 = 32 << 20;
/// An entry of a block that is not there.
const NO_BLOCK: u32 = 0xffff_ffff;

pub(crate) fn is_head(head: &[u8]) -> bool {
    head.starts_with(FOOTER_COOKIE)
}

/// Opens an image.
pub(crate) fn open(source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Opened> {
    let footer = Footer::read(&*source, context)?;
    match footer.kind {
        2 => {
            if footer.size > source.length() - FOOTER_BYTES {
                let length = source.length();
                return Err(damaged(format!(
                    "it has {length} bytes, its footer says {} and a footer",
                    footer.size
                )));
            }
            Ok(Opened::alone(Box::new(RawLayer::new(source, 0, footer.size))))
        }
        3 => Ok(Opened::alone(Box::new(Dynamic::open(source, &footer, context)?))),
        4 => Err(unsupported("a differencing disk; merge it with its parents first (`Merge-VHD`)")),
        kind => Err(unsupported(format!("a VHD of type {kind}; fixed and dynamic ones are read"))),
    }
}

struct Footer {
    header_offset: u64,
    size: u64,
    kind: u32,
}

impl Footer {
    /// The footer at the end, or of dynamic disks its copy at the start.
    fn read(source: &dyn ReadAt, context: &mut Context) -> io::Result<Footer> {
        let end = source.length().saturating_sub(FOOTER_BYTES);
        match Footer::read_at(source, end) {
            Ok(footer) => Ok(footer),
            Err(error) => {
                let footer =
                    Footer::read_at(source, 0).ok().filter(|footer| footer.kind == 3).ok_or(error)?;
                context.note(format!("{}: its footer is lost, the copy at the start is used", source.name()));
                Ok(footer)
            }
        }
    }

    fn read_at(source: &dyn ReadAt, offset: u64) -> io::Result<Footer> {
        let bytes = read_piece(source, "the footer", ByteSpan::new(offset, FOOTER_BYTES), FOOTER_BYTES)?;
        let bytes = &bytes[..];
        check(bytes, FOOTER_COOKIE, FOOTER_CHECKSUM, "footer")?;
        Ok(Footer { header_offset: bytes.be64(16)?, size: bytes.be64(48)?, kind: bytes.be32(60)? })
    }
}

/// Checks the mark and the checksum: the complement of the sum of all bytes but its own.
fn check(bytes: &[u8], cookie: &[u8], place: usize, what: &str) -> io::Result<()> {
    if !bytes.starts_with(cookie) {
        return Err(damaged(format!("it has no {what} of a VHD; was it copied in full?")));
    }
    let own: u32 = bytes[place..place + 4].iter().map(|byte| u32::from(*byte)).sum();
    let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
    if bytes.be32(place)? == !(sum - own) {
        Ok(())
    } else {
        Err(damaged(format!("the checksum of its {what} is wrong")))
    }
}

/// A dynamic disk. The bitmaps of sectors do not matter without a parent: what was never written
/// in a block is zeros there.
struct Dynamic {
    source: Arc<dyn ReadAt>,
    size: u64,
    block_bytes: u64,
    bitmap_bytes: u64,
    table: Vec<u8>,
}

impl Dynamic {
    fn open(source: Arc<dyn ReadAt>, footer: &Footer, context: &mut Context) -> io::Result<Dynamic> {
        let place = ByteSpan::new(footer.header_offset, HEADER_BYTES);
        let bytes = read_piece(&*source, "the header", place, HEADER_BYTES)?;
        let bytes = &bytes[..];
        check(bytes, HEADER_COOKIE, HEADER_CHECKSUM, "header")?;
        let (entries, block_bytes) = (u64::from(bytes.be32(28)?), u64::from(bytes.be32(32)?));
        if !block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&block_bytes) {
            return Err(damaged(format!("blocks of {block_bytes} bytes")));
        }
        let needed = footer.size.div_ceil(block_bytes);
        if needed > entries {
            return Err(damaged(format!("a table of {entries} blocks; its size needs {needed}")));
        }
        context.take_memory("its table of blocks", needed * 4)?;
        let place = ByteSpan::new(bytes.be64(16)?, needed * 4);
        let table = read_piece(&*source, "its table of blocks", place, TABLE_BYTES_MAX)?;
        let bitmap_bytes = (block_bytes / SECTOR_BYTES).div_ceil(8).next_multiple_of(SECTOR_BYTES);
        Ok(Dynamic { source, size: footer.size, block_bytes, bitmap_bytes, table })
    }

    fn piece_at(&self, at: u64) -> io::Result<Run<'_>> {
        let (block, skip) = (at / self.block_bytes, at % self.block_bytes);
        let sector = self.table[..].be32(block as usize * 4)?;
        let place = match sector {
            NO_BLOCK => Place::Zero,
            _ => {
                let offset = u64::from(sector) * SECTOR_BYTES + self.bitmap_bytes + skip;
                Place::Data { source: &*self.source, offset }
            }
        };
        Ok(Run { length: self.block_bytes - skip, place })
    }
}

impl Layer for Dynamic {
    fn size(&self) -> u64 {
        self.size
    }

    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        gather(span, |at| self.piece_at(at))
    }

    fn sources(&self) -> Vec<&dyn ReadAt> {
        vec![&*self.source]
    }
}
