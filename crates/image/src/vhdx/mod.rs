//! VHDX, as Hyper-V writes it: fixed and dynamic.
//!
//! ```text
//! 0 "vhdxfile"   64K, 128K headers   192K, 256K tables of regions   then log, metadata, blocks' table, blocks
//! ```
//! The table of blocks has an entry for each block, and after each chunk of them one for a bitmap
//! of sectors, which only differencing disks use. Source: Microsoft, MS-VHDX.

mod crc;
mod header;
mod log;
mod metadata;

use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use crate::fault::{Numbers, damaged};
use crate::map::{Layer, Place, Run, gather};
use crate::open::{Context, Opened};
use crate::source::{ReadAt, read_piece};
use crate::tables::Tables;
use header::{Header, Regions};
use metadata::Metadata;

/// What of the table of blocks is held at a time. Regions are whole MiB, so pieces are whole, too.
const TABLE_PIECE_BYTES: u64 = 64 << 10;

/// Sectors whose bits one bitmap block of 1 MiB holds.
const CHUNK_SECTORS: u64 = 1 << 23;

const NO_LOG: [u8; 16] = [0; 16];

const ENTRY_STATE: u64 = 7;
const ENTRY_OFFSET: u64 = !0xf_ffff;

pub(crate) fn is_head(head: &[u8]) -> bool {
    head.starts_with(header::MARK)
}

/// Opens an image.
pub(crate) fn open(source: Arc<dyn ReadAt>, context: &mut Context) -> io::Result<Opened> {
    let mark = ByteSpan::new(0, header::MARK.len() as u64);
    if read_piece(&*source, "the mark", mark, mark.length)? != header::MARK {
        return Err(damaged("it does not start as a VHDX image"));
    }
    let header = Header::read(&*source)?;
    let source = match header.log_guid {
        NO_LOG => source,
        _ => {
            let replayed = log::replay(source, &header)?;
            let (name, pages) = (replayed.name(), replayed.pages());
            context.note(format!(
                "{name} was not closed in order; its log ({pages} pages) was replayed in memory"
            ));
            Arc::new(replayed)
        }
    };
    let regions = Regions::read(&*source)?;
    let metadata = Metadata::read(&*source, regions.metadata)?;
    Ok(Opened::alone(Box::new(Vhdx::new(source, metadata, regions.blocks, context)?)))
}

struct Vhdx {
    source: Arc<dyn ReadAt>,
    metadata: Metadata,
    /// Blocks between two entries for bitmaps.
    chunk_blocks: u64,
    table: ByteSpan,
    tables: Tables,
}

impl Vhdx {
    fn new(
        source: Arc<dyn ReadAt>,
        metadata: Metadata,
        table: ByteSpan,
        context: &mut Context,
    ) -> io::Result<Vhdx> {
        let chunk_blocks = CHUNK_SECTORS * metadata.sector_bytes / metadata.block_bytes;
        let blocks = metadata.size.div_ceil(metadata.block_bytes);
        let entries = blocks + blocks.saturating_sub(1) / chunk_blocks;
        let inside = table.offset.checked_add(table.length).is_some_and(|end| end <= source.length());
        if entries * 8 > table.length || !table.length.is_multiple_of(TABLE_PIECE_BYTES) || !inside {
            let needed = entries * 8;
            return Err(damaged(format!("a table of blocks at {table}; its size needs {needed} bytes")));
        }
        let tables = context.cache(table.length / TABLE_PIECE_BYTES, TABLE_PIECE_BYTES);
        Ok(Vhdx { source, metadata, chunk_blocks, table, tables })
    }

    fn piece_at(&self, at: u64) -> io::Result<Run<'_>> {
        let (block, skip) = (at / self.metadata.block_bytes, at % self.metadata.block_bytes);
        let entry = self.entry(block + block / self.chunk_blocks)?;
        let place = match entry & ENTRY_STATE {
            // Not present, undefined, zero, unmapped: all read as zeros without a parent.
            0..=3 => Place::Zero,
            6 => {
                let offset = (entry & ENTRY_OFFSET).checked_add(skip);
                let offset = offset.filter(|offset| *offset >= 1 << 20);
                let offset = offset.ok_or_else(|| damaged(format!("block {block} is at {entry:#x}")))?;
                Place::Data { source: &*self.source, offset }
            }
            state => {
                return Err(damaged(format!("block {block} is in state {state}, which only deltas know")));
            }
        };
        Ok(Run { length: self.metadata.block_bytes - skip, place })
    }

    fn entry(&self, index: u64) -> io::Result<u64> {
        let byte = index * 8;
        let piece = self.tables.table(byte / TABLE_PIECE_BYTES, |bytes| {
            self.source.read_at(self.table.offset + byte / TABLE_PIECE_BYTES * TABLE_PIECE_BYTES, bytes)
        })?;
        piece.le64((byte % TABLE_PIECE_BYTES) as usize)
    }
}

impl Layer for Vhdx {
    fn size(&self) -> u64 {
        self.metadata.size
    }

    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        gather(span, |at| self.piece_at(at))
    }

    fn sources(&self) -> Vec<&dyn ReadAt> {
        vec![&*self.source]
    }
}
