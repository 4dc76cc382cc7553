use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use super::SECTOR_BYTES;
use crate::fault::{Numbers, damaged, unsupported};
use crate::map::{Place, Run};
use crate::open::Context;
use crate::source::{ReadAt, read_piece};
use crate::tables::Tables;

/// An extent of an ESXi snapshot or linked clone, in one of two layouts.
///
/// ```text
/// COWD      0 "COWD"  4 version u32  12 sectors u32  16 grain u32  20 directory u32  24 its entries u32
///           entries of directory and tables: u32, the sector of a table or grain; 0: the parent's
/// seSparse  0 magic u64  8 version u64  16 sectors u64  24 grain u64  32 table u64
///           80 volatile header u64  128 directory u64  136 its sectors u64  144 tables u64  192 grains u64
///           entries: u64, a kind in the first four bits, then the number of a table or grain
/// ```
/// Little endian; places and lengths in sectors. Sources: VMware, "Virtual Disk Format 5.0", "ESX
/// Server Sparse Extents"; seSparse is not published, the layout is the one that QEMU's
/// `block/vmdk.c` tells.
pub(crate) struct Delta {
    source: Arc<dyn ReadAt>,
    layout: Layout,
    size: u64,
    grain_bytes: u64,
    directory: Vec<u8>,
    tables: Tables,
}

#[derive(Clone, Copy)]
enum Layout {
    Cowd,
    SeSparse { tables_offset: u64, grains_offset: u64 },
}

/// Entries of a table, in both layouts.
const TABLE_ENTRIES: u64 = 4096;

pub(crate) const COWD_MAGIC: &[u8; 4] = b"COWD";
const COWD_HEADER_BYTES: u64 = 512;
/// ESXi writes grains of one sector.
const GRAIN_SECTORS_MAX: u64 = 1 << 16;

const SE_MAGIC: u64 = 0xcafe_babe;
const SE_VOLATILE_MAGIC: u64 = 0xcafe_cafe;
const SE_VERSION: u64 = 0x2_0000_0001;
const SE_GRAIN_SECTORS: u64 = 8;
const SE_TABLE_SECTORS: u64 = 64;
const SE_HEADER_BYTES: u64 = 512;
/// The kind of an entry of the directory that is there.
const SE_TABLE: u64 = 0x1000_0000;

/// With grains of 4 KiB, 16 MiB to a table, this is 64 TiB in seSparse.
const DIRECTORY_BYTES_MAX: u64 = 32 << 20;
/// The largest disk of VMware is 62 TiB.
const SECTORS_MAX: u64 = 1 << 40;

impl Delta {
    pub(crate) fn open_cowd(source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Delta> {
        let place = ByteSpan::new(0, COWD_HEADER_BYTES);
        let bytes = read_piece(&*source, "the header", place, COWD_HEADER_BYTES)?;
        let bytes = &bytes[..];
        if !bytes.starts_with(COWD_MAGIC) || bytes.le32(4)? != 1 {
            return Err(damaged("it does not start as a delta of an ESXi snapshot (COWD)"));
        }
        let number = |at: usize| bytes.le32(at).map(u64::from);
        let (sectors, grain, directory, entries) = (number(12)?, number(16)?, number(20)?, number(24)?);
        if !grain.is_power_of_two() || grain > GRAIN_SECTORS_MAX {
            return Err(damaged(format!("grains of {grain} sectors")));
        }
        let table_bytes = TABLE_ENTRIES * 4;
        let needed = sectors.div_ceil(grain * TABLE_ENTRIES);
        if needed > entries {
            return Err(damaged(format!("a grain directory of {entries} entries; its size needs {needed}")));
        }
        let directory = ByteSpan::new(directory * SECTOR_BYTES, needed * 4);
        Delta::new(source, Layout::Cowd, sectors, grain, directory, table_bytes, context)
    }

    pub(crate) fn open_se(source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Delta> {
        let place = ByteSpan::new(0, SE_HEADER_BYTES);
        let bytes = read_piece(&*source, "the header", place, SE_HEADER_BYTES)?;
        let number = |at: usize| bytes[..].le64(at);
        if number(0)? != SE_MAGIC {
            return Err(damaged("it does not start as a delta of an ESXi snapshot (seSparse)"));
        }
        let known = [SE_VERSION, SE_GRAIN_SECTORS, SE_TABLE_SECTORS];
        let (sectors, grain) = (number(16)?, number(24)?);
        if [number(8)?, grain, number(32)?] != known || sectors > SECTORS_MAX {
            return Err(unsupported(format!("a seSparse extent of an unknown kind, {sectors} sectors")));
        }
        check_journal(&*source, number(80)?)?;
        let needed = sectors.div_ceil(grain * TABLE_ENTRIES) * 8;
        let offset = bytes_of(number(128)?)?;
        if bytes_of(number(136)?)? < needed {
            return Err(damaged("its grain directory is too short for its size"));
        }
        let layout = Layout::SeSparse {
            tables_offset: bytes_of(number(144)?)?,
            grains_offset: bytes_of(number(192)?)?,
        };
        let directory = ByteSpan::new(offset, needed);
        Delta::new(source, layout, sectors, grain, directory, SE_TABLE_SECTORS * SECTOR_BYTES, context)
    }

    fn new(
        source: Arc<dyn ReadAt>,
        layout: Layout,
        sectors: u64,
        grain: u64,
        directory: ByteSpan,
        table_bytes: u64,
        context: &mut Context,
    ) -> io::Result<Delta> {
        context.take_memory("its grain directory", directory.length)?;
        let tables = context.cache(sectors.div_ceil(grain * TABLE_ENTRIES), table_bytes);
        let directory = read_piece(&*source, "its grain directory", directory, DIRECTORY_BYTES_MAX)?;
        let (size, grain_bytes) = (sectors * SECTOR_BYTES, grain * SECTOR_BYTES);
        Ok(Delta { source, layout, size, grain_bytes, directory, tables })
    }

    /// Bytes of the extent.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn source(&self) -> &dyn ReadAt {
        &*self.source
    }

    /// What lies at byte `at` of the extent, up to the end of its grain or further.
    pub(crate) fn piece_at(&self, at: u64) -> io::Result<Run<'_>> {
        let table_span = self.grain_bytes * TABLE_ENTRIES;
        let table = at / table_span;
        let Some(offset) = self.table_offset(table as usize)? else {
            return Ok(Run { length: (table + 1) * table_span - at, place: Place::Below });
        };
        let entries = self.tables.table(table, |bytes| self.source.read_at(offset, bytes))?;
        let index = (at % table_span / self.grain_bytes) as usize;
        let skip = at % self.grain_bytes;
        let place = match self.layout {
            Layout::Cowd => self.cowd_grain(entries.le32(index * 4)?, skip),
            Layout::SeSparse { grains_offset, .. } => {
                self.se_grain(entries.le64(index * 8)?, grains_offset, skip)?
            }
        };
        Ok(Run { length: self.grain_bytes - skip, place })
    }

    /// Where a grain table is; `None` if there is none.
    fn table_offset(&self, table: usize) -> io::Result<Option<u64>> {
        match self.layout {
            Layout::Cowd => {
                let sector = u64::from(self.directory[..].le32(table * 4)?);
                Ok((sector != 0).then_some(sector * SECTOR_BYTES))
            }
            Layout::SeSparse { tables_offset, .. } => {
                let entry = self.directory[..].le64(table * 8)?;
                match (entry >> 32, entry & 0xffff_ffff) {
                    (0, 0) => Ok(None),
                    (SE_TABLE, number) => {
                        let offset = tables_offset.checked_add(number * SE_TABLE_SECTORS * SECTOR_BYTES);
                        offset.map(Some).ok_or_else(|| damaged(format!("a grain table at {entry:#x}")))
                    }
                    _ => Err(damaged(format!("an entry {entry:#x} of its grain directory"))),
                }
            }
        }
    }

    fn cowd_grain(&self, sector: u32, skip: u64) -> Place<'_> {
        match sector {
            0 => Place::Below,
            _ => Place::Data { source: &*self.source, offset: u64::from(sector) * SECTOR_BYTES + skip },
        }
    }

    fn se_grain(&self, entry: u64, grains_offset: u64, skip: u64) -> io::Result<Place<'_>> {
        match entry >> 60 {
            0 if entry == 0 => Ok(Place::Below),
            // Unmapped by the guest, or written as zeros.
            1 | 2 => Ok(Place::Zero),
            3 => {
                // The number's low twelve bits stand above its high ones.
                let number = (entry & 0x0fff_0000_0000_0000) >> 48 | (entry & 0x0000_ffff_ffff_ffff) << 12;
                let offset =
                    number.checked_mul(self.grain_bytes).and_then(|it| it.checked_add(grains_offset + skip));
                let offset = offset.ok_or_else(|| damaged(format!("a grain at {entry:#x}")))?;
                Ok(Place::Data { source: &*self.source, offset })
            }
            _ => Err(damaged(format!("an entry {entry:#x} of a grain table"))),
        }
    }
}

/// The volatile header tells whether the journal waits to be replayed.
fn check_journal(source: &dyn ReadAt, sector: u64) -> io::Result<()> {
    let place = ByteSpan::new(bytes_of(sector)?, SE_HEADER_BYTES);
    let bytes = read_piece(source, "its volatile header", place, SE_HEADER_BYTES)?;
    if bytes[..].le64(0)? != SE_VOLATILE_MAGIC {
        return Err(damaged("its volatile header does not start as such"));
    }
    if bytes[24] != 0 {
        return Err(unsupported(
            "its journal waits to be replayed; switch the VM on and off once where it is",
        ));
    }
    Ok(())
}

fn bytes_of(sectors: u64) -> io::Result<u64> {
    if sectors > SECTORS_MAX {
        return Err(damaged(format!("something at sector {sectors}")));
    }
    Ok(sectors * SECTOR_BYTES)
}
