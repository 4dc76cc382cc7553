use std::io;

use crate::options::refusal;

/// The sizes of an image, which all follow from its cluster size and its virtual size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub cluster_bits: u32,
    /// Bytes a guest sees; whole sectors.
    pub size: u64,
}

/// QEMU counts in sectors and would cut an odd tail off.
pub const SECTOR_BYTES: u64 = 512;
/// QEMU opens no image with a larger L1 table.
pub const L1_BYTES_MAX: u64 = 32 << 20;
/// QEMU opens no image with a larger refcount table.
pub const REFTABLE_BYTES_MAX: u64 = 8 << 20;

impl Geometry {
    pub fn new(cluster_bits: u32, size: u64) -> io::Result<Geometry> {
        let too_large = || refusal(format!("qcow2 cannot hold {size} bytes"));
        let size = size.checked_next_multiple_of(SECTOR_BYTES).ok_or_else(too_large)?;
        let geometry = Geometry { cluster_bits, size };
        if geometry.l1_entries() * 8 > L1_BYTES_MAX || geometry.host_clusters_min() > geometry.refs_max() {
            let text = format!(
                "clusters of {} bytes cannot hold a disk of {size} bytes; choose larger ones",
                geometry.cluster_bytes()
            );
            return Err(refusal(text));
        }
        Ok(geometry)
    }

    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Guest clusters; the last may be a part of one.
    pub fn clusters(&self) -> u64 {
        self.size.div_ceil(self.cluster_bytes())
    }

    /// Entries of one L2 table.
    pub fn l2_entries(&self) -> u64 {
        self.cluster_bytes() / 8
    }

    /// L2 tables, each with an entry in the L1 table.
    pub fn l1_entries(&self) -> u64 {
        self.clusters().div_ceil(self.l2_entries())
    }

    pub fn l1_clusters(&self) -> u64 {
        (self.l1_entries() * 8).div_ceil(self.cluster_bytes()).max(1)
    }

    /// Host clusters that one block of 16-bit refcounts covers.
    pub fn refs_per_block(&self) -> u64 {
        self.cluster_bytes() / 2
    }

    /// Clusters of a new image's refcount table. It never grows, so it covers twice what the image needs
    /// when full: what crashes and compressed clusters written again leave behind takes numbers, too.
    pub fn reftable_clusters(&self) -> u64 {
        let blocks = (2 * self.host_clusters_min()).div_ceil(self.refs_per_block());
        (blocks * 8).min(REFTABLE_BYTES_MAX).div_ceil(self.cluster_bytes())
    }

    /// Host clusters that any refcount table can cover.
    fn refs_max(&self) -> u64 {
        REFTABLE_BYTES_MAX / 8 * self.refs_per_block()
    }

    /// Host clusters of a full image, rounded up.
    fn host_clusters_min(&self) -> u64 {
        let used = self.clusters() + self.l1_entries() + self.l1_clusters() + 1;
        // Refcount blocks cover themselves; the table takes at most its maximum.
        let reftable = REFTABLE_BYTES_MAX.div_ceil(self.cluster_bytes()).min(used / 64 + 1);
        used + reftable + (used + reftable).div_ceil(self.refs_per_block() - 1) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_cluster() {
        let geometry = Geometry::new(16, 16 << 40).unwrap();
        assert_eq!((geometry.l1_entries(), geometry.l1_clusters()), (32768, 4));
        assert_eq!(geometry.reftable_clusters(), 3);
        assert_eq!(Geometry::new(16, 1).unwrap().size, 512);
        assert_eq!(Geometry::new(16, 0).unwrap().l1_clusters(), 1);
    }

    #[test]
    fn what_qemu_would_not_open_is_refused() {
        assert!(Geometry::new(12, 16 << 40).is_err());
        assert!(Geometry::new(12, 2 << 40).is_ok());
        assert!(Geometry::new(21, 1 << 50).is_ok());
        assert!(Geometry::new(16, u64::MAX).is_err());
    }
}
