use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use super::SECTOR_BYTES;
use crate::fault::{Numbers, damaged, unsupported};
use crate::map::{Place, Run};
use crate::open::Context;
use crate::source::{ReadAt, read_piece};
use crate::tables::Tables;
use crate::unpack::{Codec, Packed, UNIT_BYTES_MAX};

/// The header of a sparse extent.
///
/// ```text
/// 0 "KDMV"  4 version u32  8 flags u32  12 capacity u64  20 grain u64  28 descriptor u64  36 its length u64
/// 44 entries of a grain table u32  48 redundant directory u64  56 directory u64  64 overhead u64
/// 72 unclean u8  73 "\n \r\n"  77 compression u16                                   (512 bytes in all)
/// ```
/// Little endian; offsets and lengths in sectors of 512 bytes. Source: VMware, "Virtual Disk Format 5.0".
#[derive(Clone, Debug)]
pub(crate) struct Header {
    flags: u32,
    capacity: u64,
    grain: u64,
    pub(crate) descriptor: ByteSpan,
    table_entries: u32,
    redundant: u64,
    directory: u64,
    unclean: bool,
    compressed: bool,
}

pub(crate) const MAGIC: &[u8; 4] = b"KDMV";
const HEADER_BYTES: u64 = 512;

const NEWLINES_CHECKED: u32 = 1;
const REDUNDANT: u32 = 1 << 1;
const ZERO_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;

/// "The directory's place is told by the footer", which stream-optimized files end with.
const AT_END: u64 = u64::MAX;
/// Footer and end-of-stream mark, which stand at the end.
const FOOTER_FROM_END: u64 = 1024;

/// Grains are 64 KiB as a rule, 4 KiB at least by the format.
const GRAIN_SECTORS_MAX: u64 = 1 << 16;
/// The format knows 512 only; writers of fewer exist.
const TABLE_ENTRIES_MAX: u32 = 512;
/// With grains of 64 KiB this is 256 TiB.
const DIRECTORY_BYTES_MAX: u64 = 32 << 20;
/// The largest disk of VMware is 62 TiB; this keeps sums of sectors far from their end.
const SECTORS_MAX: u64 = 1 << 48;

impl Header {
    /// The header, or the footer where that has the places.
    pub(crate) fn read(source: &dyn ReadAt) -> io::Result<Header> {
        let header = Header::read_at(source, 0)?;
        if header.directory != AT_END {
            return Ok(header);
        }
        let at = source.length().saturating_sub(FOOTER_FROM_END);
        let footer = Header::read_at(source, at)
            .map_err(|error| crate::fault::about("its footer; was it downloaded in full?", error))?;
        if footer.directory == AT_END {
            return Err(damaged("its footer does not tell where its grain directory is"));
        }
        Ok(Header { descriptor: header.descriptor, ..footer })
    }

    fn read_at(source: &dyn ReadAt, offset: u64) -> io::Result<Header> {
        let bytes = read_piece(source, "the header", ByteSpan::new(offset, HEADER_BYTES), HEADER_BYTES)?;
        let bytes = &bytes[..];
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("it does not start as a sparse VMDK"));
        }
        let version = bytes.le32(4)?;
        if !(1..=3).contains(&version) {
            return Err(unsupported(format!("a sparse VMDK of version {version}; 1 to 3 are read")));
        }
        let sectors = |at: usize| bytes.le64(at);
        let header = Header {
            flags: bytes.le32(8)?,
            capacity: sectors(12)?,
            grain: sectors(20)?,
            descriptor: descriptor_span(sectors(28)?, sectors(36)?)?,
            table_entries: bytes.le32(44)?,
            redundant: sectors(48)?,
            directory: sectors(56)?,
            unclean: bytes[72] != 0,
            compressed: bytes.le32(8)? & COMPRESSED != 0,
        };
        header.check(bytes)?;
        Ok(header)
    }

    fn check(&self, bytes: &[u8]) -> io::Result<()> {
        if self.flags & NEWLINES_CHECKED != 0 && bytes[73..77] != *b"\n \r\n" {
            return Err(damaged("it was damaged by a transfer as text"));
        }
        if !self.grain.is_power_of_two() || self.grain > GRAIN_SECTORS_MAX {
            return Err(damaged(format!("grains of {} sectors", self.grain)));
        }
        if self.capacity > SECTORS_MAX || self.table_entries == 0 || self.table_entries > TABLE_ENTRIES_MAX {
            let (capacity, entries) = (self.capacity, self.table_entries);
            return Err(damaged(format!("{capacity} sectors in tables of {entries} entries")));
        }
        if self.compressed {
            let method = bytes.le16(77)?;
            if method != 1 || self.flags & MARKERS == 0 || self.grain_bytes() > UNIT_BYTES_MAX {
                let grain = self.grain;
                return Err(unsupported(format!(
                    "compression by method {method}, grains of {grain} sectors"
                )));
            }
        }
        Ok(())
    }

    fn grain_bytes(&self) -> u64 {
        self.grain * SECTOR_BYTES
    }

    /// Bytes that one grain table maps.
    fn table_span(&self) -> u64 {
        self.grain_bytes() * u64::from(self.table_entries)
    }
}

fn descriptor_span(offset: u64, length: u64) -> io::Result<ByteSpan> {
    match (offset.checked_mul(SECTOR_BYTES), length.checked_mul(SECTOR_BYTES)) {
        (Some(offset), Some(length)) => Ok(ByteSpan::new(offset, length)),
        _ => Err(damaged(format!("a descriptor at sector {offset}, {length} sectors long"))),
    }
}

/// A sparse extent.
///
/// ```text
/// directory (in memory) -> grain tables (cached) -> grains
/// ```
/// An entry 0 means that the grain is not there; 1 that it is zeros, if the flag says so.
pub(crate) struct Sparse {
    source: Arc<dyn ReadAt>,
    header: Header,
    /// Sectors of the grain tables, little endian.
    directory: Vec<u8>,
    /// The same of their copies, if there are any.
    redundant: Option<Vec<u8>>,
    tables: Tables,
}

impl Sparse {
    pub(crate) fn open(source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Sparse> {
        let header = Header::read(&*source)?;
        let tables = (header.capacity * SECTOR_BYTES).div_ceil(header.table_span());
        let bytes = tables * 4;
        context.take_memory("its grain directory", 2 * bytes)?;
        let read = |sector: u64| {
            let offset = sector.checked_mul(SECTOR_BYTES).filter(|offset| *offset != 0 || bytes == 0);
            let offset = offset.ok_or_else(|| damaged(format!("a grain directory at sector {sector}")))?;
            read_piece(&*source, "its grain directory", ByteSpan::new(offset, bytes), DIRECTORY_BYTES_MAX)
        };
        let copy = (header.flags & REDUNDANT != 0).then(|| read(header.redundant));
        let (directory, redundant) = match (read(header.directory), copy) {
            (Ok(directory), copy) => (directory, copy.and_then(Result::ok)),
            (Err(_), Some(Ok(copy))) => {
                context.note(format!("{}: its grain directory is lost, its copy is used", source.name()));
                (copy, None)
            }
            (Err(error), _) => return Err(error),
        };
        if header.unclean {
            context.note(format!("{} was not closed in order", source.name()));
        }
        let tables = context.cache(tables, u64::from(header.table_entries) * 4);
        Ok(Sparse { source, header, directory, redundant, tables })
    }

    /// Bytes of the extent.
    pub(crate) fn size(&self) -> u64 {
        self.header.capacity * SECTOR_BYTES
    }

    pub(crate) fn descriptor(&self) -> ByteSpan {
        self.header.descriptor
    }

    pub(crate) fn source(&self) -> &dyn ReadAt {
        &*self.source
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        if self.header.compressed { self.header.grain_bytes() } else { 0 }
    }

    /// What lies at byte `at` of the extent, up to the end of its grain or further.
    pub(crate) fn piece_at(&self, at: u64) -> io::Result<Run<'_>> {
        let grain_bytes = self.header.grain_bytes();
        let table = at / self.header.table_span();
        if self.directory[..].le32(table as usize * 4)? == 0 {
            let end = (table + 1) * self.header.table_span();
            return Ok(Run { length: end - at, place: Place::Below });
        }
        let entries = self.tables.table(table, |bytes| self.load(table, bytes))?;
        let index = at % self.header.table_span() / grain_bytes;
        let entry = u64::from(entries.le32(index as usize * 4)?);
        let skip = at % grain_bytes;
        let place = match entry {
            0 => Place::Below,
            1 if self.header.flags & ZERO_GRAINS != 0 => Place::Zero,
            _ if self.header.compressed => Place::Packed { unit: self.packed(entry, at - skip), skip },
            _ => Place::Data { source: &*self.source, offset: entry * SECTOR_BYTES + skip },
        };
        Ok(Run { length: grain_bytes - skip, place })
    }

    /// Reads a grain table, or its copy where it lies outside the file.
    fn load(&self, table: u64, bytes: &mut [u8]) -> io::Result<()> {
        let read = |directory: &[u8], bytes: &mut [u8]| {
            let sector = u64::from(directory.le32(table as usize * 4)?);
            self.source.read_at(sector * SECTOR_BYTES, bytes)
        };
        let first = read(&self.directory, bytes);
        match (&first, &self.redundant) {
            (Err(error), Some(redundant)) if error.kind() == io::ErrorKind::InvalidData => {
                read(redundant, bytes).or(first)
            }
            _ => first,
        }
    }

    fn packed(&self, sector: u64, start: u64) -> Packed<'_> {
        let unit_bytes = self.header.grain_bytes();
        Packed {
            source: &*self.source,
            // Incompressible data grows a little; twice its size is more than any writer makes of it.
            at: ByteSpan::new(sector * SECTOR_BYTES, 2 * unit_bytes),
            codec: Codec::Grain { sector: start / SECTOR_BYTES },
            unit_bytes,
            needed_bytes: unit_bytes.min(self.size() - start),
        }
    }
}
