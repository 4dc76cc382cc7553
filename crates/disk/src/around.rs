//! Disks that are another disk in all but a few things.

use drover_types::{ByteSpan, Extent};

use crate::{Disk, DiskError, Features, Lane, Limits};

/// A disk around another one. What is not written down here is as of the one inside.
pub trait Around: Send + Sync {
    /// The disk inside.
    fn inner(&self) -> &dyn Disk;

    /// As [`Disk::features`].
    fn features(&self) -> Features {
        self.inner().features()
    }

    /// As [`Disk::extents`].
    ///
    /// # Errors
    /// The same.
    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        self.inner().extents(span)
    }

    /// As [`Disk::open_lane`].
    ///
    /// # Errors
    /// The same.
    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.inner().open_lane()
    }

    /// As [`Disk::flush`].
    ///
    /// # Errors
    /// The same.
    fn flush(&self) -> Result<(), DiskError> {
        self.inner().flush()
    }

    /// As [`Disk::withdraw`].
    fn withdraw(&self) -> bool {
        self.inner().withdraw()
    }

    /// As [`Disk::hashes`].
    ///
    /// # Errors
    /// The same.
    fn hashes(&self, spans: &[ByteSpan]) -> Result<Option<Vec<[u8; 32]>>, DiskError> {
        self.inner().hashes(spans)
    }
}

impl<T: Around> Disk for T {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn size(&self) -> u64 {
        self.inner().size()
    }

    fn identity(&self) -> String {
        self.inner().identity()
    }

    fn limits(&self) -> Limits {
        self.inner().limits()
    }

    fn features(&self) -> Features {
        Around::features(self)
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        Around::extents(self, span)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Around::open_lane(self)
    }

    fn flush(&self) -> Result<(), DiskError> {
        Around::flush(self)
    }

    fn withdraw(&self) -> bool {
        Around::withdraw(self)
    }

    fn withdrawn(&self) -> Vec<ByteSpan> {
        self.inner().withdrawn()
    }

    fn check_same(&self) -> Result<(), DiskError> {
        self.inner().check_same()
    }

    fn reserve_bytes(&self) -> u64 {
        self.inner().reserve_bytes()
    }

    fn reserve(&self, spans: &[ByteSpan]) -> Result<(), DiskError> {
        self.inner().reserve(spans)
    }

    fn hashes(&self, spans: &[ByteSpan]) -> Result<Option<Vec<[u8; 32]>>, DiskError> {
        Around::hashes(self, spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDisk, conformance};

    struct Same(MemDisk);

    impl Around for Same {
        fn inner(&self) -> &dyn Disk {
            &self.0
        }
    }

    struct Blind(MemDisk);

    impl Around for Blind {
        fn inner(&self) -> &dyn Disk {
            &self.0
        }

        fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
            Ok(vec![Extent::allocated(span)])
        }
    }

    #[test]
    fn a_disk_around_another_is_that_one_but_for_what_it_changes() {
        let bytes = conformance::pattern(1 << 20);
        let inside = MemDisk::new("inside", bytes.clone());
        let whole = ByteSpan::new(0, 1 << 20);
        let same: &dyn Disk = &Same(inside.clone());
        assert_eq!((same.name(), same.size(), same.identity()), ("inside", 1 << 20, inside.identity()));
        assert_eq!((same.limits(), same.features()), (inside.limits(), inside.features()));
        let blind: &dyn Disk = &Blind(inside);
        assert_eq!(blind.extents(whole).unwrap(), [Extent::allocated(whole)]);
        conformance::check_reader(same, &bytes);
    }
}
