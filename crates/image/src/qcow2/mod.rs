//! qcow2, versions 2 and 3.
//!
//! ```text
//! L1 table (whole, in memory) -> L2 tables (one cluster each, cached) -> clusters
//! ```
//!
//! An entry says that its cluster is not there (the backing file's), is zeros, is data at a host
//! offset, or is compressed. With extended entries each of the 32 parts of a cluster is told on its
//! own. Refcounts and internal snapshots do not matter to a reader. Source: QEMU
//! `docs/interop/qcow2.txt`.

mod entry;
mod header;

use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use crate::fault::{Numbers, damaged};
use crate::map::{Layer, Place, Run, gather};
use crate::open::{Below, Context, Location, Opened};
use crate::source::{ReadAt, read_piece};
use crate::tables::Tables;
use crate::unpack::Packed;
use entry::{Cluster, Entry};
use header::Header;

/// Opens one image, without its backing file.
pub(crate) fn open(source: Arc<dyn ReadAt>, place: &Location, context: &mut Context) -> io::Result<Opened> {
    let header = Header::read(&*source)?;
    let l1_bytes = header.l1_entries * 8;
    context.take_memory("its L1 table", l1_bytes)?;
    let l1 = read_piece(&*source, "its L1 table", ByteSpan::new(header.l1_offset, l1_bytes), l1_bytes)?;
    if header.dirty {
        let name = source.name();
        context.note(format!("{name} was not closed in order; what its guest had flushed is there"));
    }
    let data = match &header.data_file {
        None => None,
        Some(name) => Some(context.files.open("its data file", name, &place.folder)? as Arc<dyn ReadAt>),
    };
    let below = header.backing.as_ref().map(|backing| Below {
        what: "backing file",
        name: backing.name.clone(),
        format: backing.format,
        content_id: None,
    });
    let tables = context.cache(header.l1_entries, header.cluster_bytes());
    Ok(Opened { layer: Box::new(Qcow2 { source, data, header, l1, tables }), below, content_id: None })
}

struct Qcow2 {
    source: Arc<dyn ReadAt>,
    /// The external data file, if there is one.
    data: Option<Arc<dyn ReadAt>>,
    header: Header,
    l1: Vec<u8>,
    tables: Tables,
}

impl Qcow2 {
    fn piece_at(&self, at: u64) -> io::Result<Run<'_>> {
        let header = &self.header;
        let cluster = at >> header.cluster_bits;
        let per_table = header.cluster_bytes() / header.entry_bytes();
        let (table, index) = (cluster / per_table, cluster % per_table);
        let Some(offset) = self.table_offset(table)? else {
            let end = (table + 1).saturating_mul(per_table * header.cluster_bytes());
            return Ok(Run { length: end - at, place: Place::Below });
        };
        let l2 = self.tables.table(table, |bytes| self.source.read_at(offset, bytes))?;
        let entry = Entry::read(&l2, index as usize, header)?;
        let skip = at & (header.cluster_bytes() - 1);
        let piece = entry.piece_at(skip, header, self.data.is_some())?;
        let place = match piece.cluster {
            Cluster::Absent => Place::Below,
            Cluster::Zero => Place::Zero,
            Cluster::Data(host) => Place::Data { source: self.data(), offset: host + skip },
            Cluster::Packed(host) => Place::Packed { unit: self.packed(host, at - skip), skip },
        };
        Ok(Run { length: piece.end - skip, place })
    }

    /// Where the L2 table of that number is; `None` if there is none.
    fn table_offset(&self, table: u64) -> io::Result<Option<u64>> {
        let entry = self.l1[..].be64(table as usize * 8)?;
        let offset = entry & entry::OFFSET_MASK;
        if entry & entry::L1_RESERVED != 0 || !offset.is_multiple_of(self.header.cluster_bytes()) {
            return Err(damaged(format!("entry {table} of its L1 table is {entry:#x}")));
        }
        Ok(Some(offset).filter(|offset| *offset != 0))
    }

    fn data(&self) -> &dyn ReadAt {
        self.data.as_deref().unwrap_or(&*self.source)
    }

    fn packed(&self, host: ByteSpan, start: u64) -> Packed<'_> {
        // Lengths are told in sectors, but the last compressed cluster ends where the file does.
        let end = host.end().min(self.source.length()).max(host.offset);
        Packed {
            source: &*self.source,
            at: ByteSpan::from_bounds(host.offset, end),
            codec: self.header.codec,
            unit_bytes: self.header.cluster_bytes(),
            needed_bytes: self.header.cluster_bytes().min(self.header.size - start),
        }
    }
}

impl Layer for Qcow2 {
    fn size(&self) -> u64 {
        self.header.size
    }

    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        gather(span, |at| self.piece_at(at))
    }

    fn sources(&self) -> Vec<&dyn ReadAt> {
        std::iter::once(&*self.source).chain(self.data.as_deref()).collect()
    }

    fn unit_bytes(&self) -> u64 {
        // Whether any cluster is compressed is not known without reading all tables.
        self.header.cluster_bytes()
    }
}
