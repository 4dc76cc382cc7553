use drover_disk::{Buffer, DiskError, DiskErrorKind, DiskOp};
use drover_types::ByteSpan;

use crate::entry::Entry;
use crate::geometry::Geometry;
use crate::header::Header;
use crate::host::Host;
use crate::image::Image;
use crate::options::{Preallocation, Qcow2Options, refusal};
use crate::table::{Piece, Table};

/// Zeros written at a time by [`Preallocation::Full`].
const FILL_BYTES: u64 = 4 << 20;

/// Makes an image of at least `size` bytes in an empty file and opens it.
///
/// ```text
/// cluster 0  header | refcount table | L1 | refcount blocks for all this
/// ```
///
/// # Errors
/// When the options or the size are impossible, or the file has no room.
pub fn create(host: Box<dyn Host>, size: u64, options: Qcow2Options) -> Result<Image, DiskError> {
    let geometry = options.check().and_then(|bits| Geometry::new(bits, size));
    let geometry = geometry.map_err(|source| {
        DiskError::with_kind(
            DiskErrorKind::of(&source),
            DiskOp::Open,
            ByteSpan::new(0, 0),
            host.name(),
            source,
        )
    })?;
    lay_out(&*host, geometry, &options)?;
    let image = Image::open(host, options)?;
    if options.preallocation != Preallocation::Off {
        image.preallocate()?;
        image.flush()?;
    }
    image.host.publish()?;
    Ok(image)
}

fn lay_out(host: &dyn Host, geometry: Geometry, options: &Qcow2Options) -> Result<(), DiskError> {
    let (cluster_bytes, per_block) = (geometry.cluster_bytes(), geometry.refs_per_block());
    let reftable_clusters = geometry.reftable_clusters();
    let l1_cluster = 1 + reftable_clusters;
    let first_block = l1_cluster + geometry.l1_clusters();
    let mut blocks = 0;
    while blocks * per_block < first_block + blocks {
        blocks += 1;
    }
    let used = first_block + blocks;
    host.set_length(used * cluster_bytes)?;
    let mut reftable = Table::new(cluster_bytes, reftable_clusters * cluster_bytes);
    let mut pieces: Vec<Piece> = Vec::new();
    for block in 0..blocks {
        let at = (first_block + block) * cluster_bytes;
        reftable.set64(block, at);
        let mut table = Table::new(at, cluster_bytes);
        (block * per_block..used.min((block + 1) * per_block)).for_each(|it| table.set16(it % per_block, 1));
        pieces.extend(table.take_dirty());
    }
    let header = Header {
        geometry,
        l1_offset: l1_cluster * cluster_bytes,
        reftable_offset: cluster_bytes,
        reftable_clusters,
        compression: options.compression,
    };
    let mut first = Buffer::zeroed(cluster_bytes as usize);
    header.encode(&mut first);
    pieces.extend(reftable.take_dirty());
    pieces.push(Piece { host: 0, bytes: first });
    // The L1 table is a hole as yet, and so reads as zeros.
    pieces.iter().try_for_each(|piece| host.write(piece.host, &piece.bytes))
}

impl Image {
    /// Gives every guest cluster a host cluster, in order.
    fn preallocate(&self) -> Result<(), DiskError> {
        let clusters = self.header.geometry.clusters();
        let mut cluster = 0;
        while cluster < clusters {
            let (at, count) = self.preallocate_some(cluster, clusters)?;
            let bytes = count * self.header.geometry.cluster_bytes();
            match self.options.preallocation {
                Preallocation::Off | Preallocation::Metadata => {}
                Preallocation::Falloc => self.set_room_aside(ByteSpan::new(at, bytes))?,
                Preallocation::Full => self.fill(ByteSpan::new(at, bytes))?,
            }
            cluster += count;
            self.flush_if_due()?;
        }
        Ok(())
    }

    fn preallocate_some(&self, first: u64, clusters: u64) -> Result<(u64, u64), DiskError> {
        let mut state = self.state();
        state.ensure_table(&*self.host, first)?;
        let entries = self.header.geometry.l2_entries();
        let wanted = (entries - first % entries).min(clusters - first);
        let range = state.allocate(&*self.host, wanted)?;
        let bits = self.header.geometry.cluster_bits;
        for (cluster, at) in (first..).zip(range.clone()) {
            state.set(cluster, Entry::Data(at << bits));
        }
        Ok((range.start << bits, range.end - range.start))
    }

    fn set_room_aside(&self, span: ByteSpan) -> Result<(), DiskError> {
        if self.host.allocate(span)? {
            return Ok(());
        }
        let source = refusal("this file system cannot set room aside; choose another preallocation");
        let nowhere = ByteSpan::new(0, 0);
        Err(DiskError::with_kind(
            DiskErrorKind::Unsupported,
            DiskOp::Write,
            nowhere,
            self.host.name(),
            source,
        ))
    }

    fn fill(&self, span: ByteSpan) -> Result<(), DiskError> {
        let zeros = Buffer::zeroed(FILL_BYTES.min(span.length) as usize);
        let mut at = span.offset;
        while at < span.end() {
            let length = FILL_BYTES.min(span.end() - at);
            self.host.write(at, &zeros[..length as usize])?;
            at += length;
        }
        Ok(())
    }
}
