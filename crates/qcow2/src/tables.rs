use std::collections::HashMap;
use std::ops::Range;

use drover_disk::{Buffer, DiskError};
use drover_types::ByteSpan;

use crate::entry::{COPIED, Entry, l2_host};
use crate::geometry::Geometry;
use crate::host::Host;
use crate::table::{Table, Tables};

/// Written L2 tables kept in memory: those of 512 GiB of disk with clusters of 64 KiB.
const L2_BYTES_MAX: usize = 64 << 20;
/// Written refcount blocks kept in memory. Writing needs the last one, packed clusters written again others.
const REFS_BYTES_MAX: usize = 8 << 20;
/// With so many bytes of L2 tables that the file lacks, a write flushes before it ends.
const DIRTY_BYTES_MAX: usize = 64 << 20;

/// The tables of an image and what was not yet said in them. Behind one lock, held for no data.
pub struct State {
    pub geometry: Geometry,
    pub l1: Table,
    pub l2: Tables,
    pub reftable: Table,
    pub refs: Tables,
    /// Host clusters from here on were never used, and read as zeros.
    pub next: u64,
    /// Length of the file.
    pub length: u64,
    /// Room was set aside up to this byte of the file; `u64::MAX` if that is not to be done.
    pub reserved: u64,
    /// Guest clusters whose host place is chosen and being written. The tables do not name it yet.
    pub pending: HashMap<u64, u64>,
    /// Room for packed clusters, taken from `next` but not yet counted.
    pub zone: Range<u64>,
    /// Host bytes that the tables name no more, to be given back once the file agrees.
    pub frees: Vec<ByteSpan>,
    /// A flush is under way: tables that were taken may not be in the file yet, so none is forgotten.
    pub flushing: bool,
}

/// Where a guest cluster lies at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// As the tables say.
    Settled(Entry),
    /// Its host cluster is new and being written to by a request.
    Pending(u64),
}

impl State {
    /// Guest clusters that `span` touches.
    pub fn clusters_of(&self, span: ByteSpan) -> Range<u64> {
        let bits = self.geometry.cluster_bits;
        span.offset >> bits..span.end().div_ceil(self.geometry.cluster_bytes())
    }

    /// The guest bytes of a cluster, to the end of the disk at most.
    pub fn span_of(&self, cluster: u64) -> ByteSpan {
        let bytes = self.geometry.cluster_bytes();
        let start = cluster * bytes;
        ByteSpan::from_bounds(start, (start + bytes).min(self.geometry.size))
    }

    /// Where a guest cluster lies.
    ///
    /// # Errors
    /// When its table cannot be read.
    pub fn place(&mut self, host: &dyn Host, cluster: u64) -> Result<Place, DiskError> {
        if let Some(at) = self.pending.get(&cluster) {
            return Ok(Place::Pending(*at));
        }
        let (table, index) = self.index_of(cluster);
        let geometry = self.geometry;
        let word = self.l2_table(host, table)?.map_or(0, |table| table.get64(index));
        Ok(Place::Settled(Entry::decode(word, geometry)))
    }

    /// The first cluster after `cluster` that another L2 table speaks of, if `cluster`'s has no table.
    pub fn skip_absent_table(&self, cluster: u64) -> Option<u64> {
        let (table, _) = self.index_of(cluster);
        let absent = l2_host(self.l1.get64(table)).is_none();
        absent.then(|| ((table + 1) * self.geometry.l2_entries()).min(self.geometry.clusters()))
    }

    fn index_of(&self, cluster: u64) -> (u64, u64) {
        (cluster / self.geometry.l2_entries(), cluster % self.geometry.l2_entries())
    }

    fn l2_table(&mut self, host: &dyn Host, index: u64) -> Result<Option<&mut Table>, DiskError> {
        let Some(at) = l2_host(self.l1.get64(index)) else { return Ok(None) };
        if self.l2.get(index).is_none() {
            if !self.flushing {
                self.l2.shrink(L2_BYTES_MAX);
            }
            self.l2.insert(index, load(host, at, self.geometry.cluster_bytes())?);
        }
        Ok(self.l2.get_mut(index))
    }

    /// Makes sure that a cluster has an L2 table, so that [`State::set`] cannot fail.
    ///
    /// # Errors
    /// When there is no room for the table or it cannot be read.
    pub fn ensure_table(&mut self, host: &dyn Host, cluster: u64) -> Result<(), DiskError> {
        let (index, _) = self.index_of(cluster);
        if self.l2_table(host, index)?.is_some() {
            return Ok(());
        }
        let at = self.allocate_one(host)?;
        self.l2.insert(index, Table::new(at, self.geometry.cluster_bytes()));
        self.l1.set64(index, at | COPIED);
        Ok(())
    }

    /// Says where a cluster lies. What it used before and does not use now is given back after the next
    /// flush. Its table must be in memory: see [`State::ensure_table`].
    pub fn set(&mut self, cluster: u64, entry: Entry) {
        let (index, within) = self.index_of(cluster);
        let word = entry.encode(self.geometry);
        let table = self.l2.get_mut(index).expect("a table is loaded or made before its entries are set");
        let before = table.get64(within);
        if before == word {
            return;
        }
        table.set64(within, word);
        let used = Entry::decode(before, self.geometry).used(self.geometry);
        if used != entry.used(self.geometry) {
            self.frees.extend(used);
        }
    }

    /// Moves clusters from being written into the tables.
    ///
    /// # Errors
    /// When a table was forgotten meanwhile and cannot be read again.
    pub fn publish(&mut self, host: &dyn Host, clusters: &[u64]) -> Result<(), DiskError> {
        for cluster in clusters {
            if let Some(at) = self.pending.get(cluster).copied() {
                self.ensure_table(host, *cluster)?;
                self.set(*cluster, Entry::Data(at));
                self.pending.remove(cluster);
            }
        }
        Ok(())
    }

    /// Whether so much is unwritten that a flush is due.
    pub fn wants_flush(&self) -> bool {
        !self.flushing && self.l2.dirty_bytes() > DIRTY_BYTES_MAX
    }

    /// Forgets tables beyond the bounds, after a flush.
    pub fn shrink(&mut self) {
        self.l2.shrink(L2_BYTES_MAX);
        self.refs.shrink(REFS_BYTES_MAX);
    }
}

/// Reads a table.
///
/// # Errors
/// When it cannot be read.
pub fn load(host: &dyn Host, at: u64, bytes: u64) -> Result<Table, DiskError> {
    let mut buffer = Buffer::zeroed(bytes as usize);
    host.read(at, &mut buffer)?;
    Ok(Table::loaded(at, buffer))
}
