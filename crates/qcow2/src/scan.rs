//! Reads all tables of an image and counts who uses which host cluster. That says where the used part
//! of the file ends, what a crash left counted but unused, and whether anything is used twice.

use std::collections::BTreeMap;
use std::io;

use drover_disk::{Buffer, DiskError, DiskErrorKind, DiskOp};
use drover_types::ByteSpan;

use crate::entry::{Entry, check_l1};
use crate::geometry::{Geometry, SECTOR_BYTES};
use crate::header::{Header, PROLOGUE_BYTES};
use crate::host::Host;
use crate::options::{corrupt, refusal};
use crate::table::{Table, Tables};
use crate::tables::{State, load};

/// Memory for counting: 2 bytes a host cluster, so 32 TiB of clusters of 64 KiB.
const COUNTS_BYTES_MAX: u64 = 1 << 30;
/// In a count: the cluster has one user and admits no other.
const ALONE: u16 = 1 << 15;

/// What a scan found.
pub struct Found {
    pub state: State,
    /// Whether no guest cluster has data.
    pub is_empty: bool,
    /// Host clusters that were counted and not used.
    pub leaked: u64,
}

/// Reads and checks the header.
///
/// # Errors
/// When it is none that drover may go on with.
pub fn read_header(host: &dyn Host) -> Result<Header, DiskError> {
    let mut buffer = Buffer::zeroed(PROLOGUE_BYTES);
    let length = host.length()?.min(PROLOGUE_BYTES as u64) as usize;
    host.read(0, &mut buffer[..length])?;
    let mut prologue = [0; PROLOGUE_BYTES];
    prologue.copy_from_slice(&buffer);
    Header::decode(&prologue).map_err(|source| open_error(host, source))
}

/// Reads the tables of an image whose file is `length` bytes long. With `repair`, clusters that nobody
/// uses are no longer counted in the state it gives; the caller flushes that.
///
/// # Errors
/// When the tables contradict each other, or lead out of the file.
pub fn scan(host: &dyn Host, header: &Header, length: u64, repair: bool) -> Result<Found, DiskError> {
    let geometry = header.geometry;
    let cluster_bytes = geometry.cluster_bytes();
    let mut counts = Counts { geometry, end: length.div_ceil(cluster_bytes), blocks: BTreeMap::new() };
    let check = |result: io::Result<()>| result.map_err(|source| open_error(host, source));
    let l1_clusters = if geometry.l1_entries() == 0 { 0 } else { geometry.l1_clusters() };
    check(counts.alone(0, 1))?;
    check(counts.alone(header.reftable_offset, header.reftable_clusters))?;
    check(counts.alone(header.l1_offset, l1_clusters))?;
    let reftable =
        load_padded(host, header.reftable_offset, header.reftable_clusters * cluster_bytes, length)?;
    let l1 = load_padded(host, header.l1_offset, l1_clusters.max(1) * cluster_bytes, length)?;
    for block in 0..reftable.words() {
        match reftable.get64(block) {
            0 => {}
            at => check(counts.alone(at, 1))?,
        }
    }
    let mut is_empty = true;
    for index in 0..geometry.l1_entries() {
        let at = check_l1(l1.get64(index), geometry).map_err(|source| open_error(host, source))?;
        let Some(at) = at else { continue };
        check(counts.alone(at, 1))?;
        let table = load(host, at, cluster_bytes)?;
        is_empty &= check(counts.l2_table(&table, index))
            .map(|()| (0..table.words()).all(|it| table.get64(it) == 0))?;
    }
    let mut found = Found {
        is_empty,
        leaked: 0,
        state: State {
            geometry,
            l1,
            l2: Tables::default(),
            next: counts.used_end(),
            reftable,
            refs: Tables::default(),
            length,
            reserved: 0,
            pending: Default::default(),
            zone: 0..0,
            frees: Vec::new(),
            flushing: false,
        },
    };
    for block in 0..found.state.reftable.words() {
        found.leaked += compare(host, &mut found.state, &counts, block, repair)?;
    }
    let counted = found.state.reftable.words().saturating_mul(geometry.refs_per_block());
    if counts.used_end() > counted {
        return Err(open_error(host, corrupt("a cluster in use has no refcount")));
    }
    Ok(found)
}

/// Compares one refcount block with who uses its clusters; the number of clusters nobody uses.
fn compare(
    host: &dyn Host,
    state: &mut State,
    counts: &Counts,
    block: u64,
    repair: bool,
) -> Result<u64, DiskError> {
    let used = counts.blocks.get(&block);
    let at = state.reftable.get64(block);
    if at == 0 {
        let nobody = used.is_none_or(|counts| counts.iter().all(|count| *count == 0));
        let text = "a cluster in use has no refcount";
        return if nobody { Ok(0) } else { Err(open_error(host, corrupt(text))) };
    }
    let mut table = load(host, at, state.geometry.cluster_bytes())?;
    let mut leaked = 0;
    for index in 0..state.geometry.refs_per_block() {
        let used = used.map_or(0, |counts| counts[index as usize] & !ALONE);
        let said = table.get16(index);
        if said < used {
            let cluster = block * state.geometry.refs_per_block() + index;
            let text =
                format!("cluster {cluster} has {used} users and a refcount of {said}; see `qemu-img check`");
            return Err(open_error(host, corrupt(text)));
        }
        if said > used {
            leaked += 1;
            table.set16(index, used);
        }
    }
    if repair && leaked > 0 {
        state.refs.insert(block, table);
    }
    Ok(leaked)
}

/// Users of host clusters, by refcount block.
struct Counts {
    geometry: Geometry,
    /// Clusters of the file.
    end: u64,
    blocks: BTreeMap<u64, Box<[u16]>>,
}

impl Counts {
    /// Counts clusters that have one user.
    fn alone(&mut self, offset: u64, clusters: u64) -> io::Result<()> {
        if !offset.is_multiple_of(self.geometry.cluster_bytes()) {
            return Err(corrupt(format!("a table names the odd place {offset:#x}")));
        }
        let first = offset >> self.geometry.cluster_bits;
        for cluster in first..first.saturating_add(clusters) {
            let count = self.count(cluster)?;
            if *count != 0 {
                return Err(corrupt(format!("cluster {cluster} has two users")));
            }
            *count = ALONE | 1;
        }
        Ok(())
    }

    fn packed(&mut self, span: ByteSpan) -> io::Result<()> {
        let start = span.offset / SECTOR_BYTES * SECTOR_BYTES;
        let bytes = self.geometry.cluster_bytes();
        for cluster in start >> self.geometry.cluster_bits..span.end().div_ceil(bytes) {
            let count = self.count(cluster)?;
            if *count >= ALONE - 1 {
                return Err(corrupt(format!("cluster {cluster} has too many users")));
            }
            *count += 1;
        }
        Ok(())
    }

    fn l2_table(&mut self, table: &Table, index: u64) -> io::Result<()> {
        let first = index * self.geometry.l2_entries();
        for within in 0..table.words() {
            let entry = Entry::check(table.get64(within), self.geometry)?;
            if entry != Entry::Absent && first + within >= self.geometry.clusters() {
                return Err(corrupt("an L2 table has entries beyond the disk"));
            }
            match entry {
                Entry::Absent | Entry::Zero(None) => {}
                Entry::Data(at) | Entry::Zero(Some(at)) => self.alone(at, 1)?,
                Entry::Packed(span) => self.packed(span)?,
            }
        }
        Ok(())
    }

    fn count(&mut self, cluster: u64) -> io::Result<&mut u16> {
        if cluster >= self.end {
            return Err(corrupt(format!("a table names cluster {cluster}, and the file has {}", self.end)));
        }
        let per_block = self.geometry.refs_per_block();
        let block_bytes = 2 * per_block;
        let blocks = self.blocks.len() as u64;
        let counts = match self.blocks.entry(cluster / per_block) {
            std::collections::btree_map::Entry::Occupied(block) => block.into_mut(),
            std::collections::btree_map::Entry::Vacant(_)
                if (blocks + 1) * block_bytes > COUNTS_BYTES_MAX =>
            {
                return Err(refusal("it is too large or too scattered to be written; convert it first"));
            }
            std::collections::btree_map::Entry::Vacant(block) => {
                block.insert(vec![0; per_block as usize].into_boxed_slice())
            }
        };
        Ok(&mut counts[(cluster % per_block) as usize])
    }

    /// One past the last cluster that has a user.
    fn used_end(&self) -> u64 {
        let last = self.blocks.iter().rev().find_map(|(block, counts)| {
            let last = counts.iter().rposition(|count| *count != 0)?;
            Some(block * self.geometry.refs_per_block() + last as u64 + 1)
        });
        last.unwrap_or(0)
    }
}

/// Reads a table whose last cluster the file may hold in part.
fn load_padded(host: &dyn Host, at: u64, bytes: u64, length: u64) -> Result<Table, DiskError> {
    let mut buffer = Buffer::zeroed(bytes as usize);
    let there = length.saturating_sub(at).min(bytes) as usize;
    host.read(at, &mut buffer[..there])?;
    Ok(Table::loaded(at, buffer))
}

fn open_error(host: &dyn Host, source: io::Error) -> DiskError {
    let kind = DiskErrorKind::of(&source);
    DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), host.name(), source)
}
