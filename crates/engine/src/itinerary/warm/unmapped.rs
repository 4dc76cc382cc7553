use std::sync::Arc;

use drover_disk::{Disk, DiskError, Features, Lane, Limits};
use drover_types::{ByteSpan, Extent};

/// A disk of whose map nothing is believed: the source's word for what is allocated comes from the same
/// change tracking that is in doubt.
pub(in crate::itinerary) struct Unmapped(pub(in crate::itinerary) Arc<dyn Disk>);

impl Disk for Unmapped {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn features(&self) -> Features {
        Features { extents: false, ..self.0.features() }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        Ok(vec![Extent::allocated(span)])
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.0.open_lane()
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.0.flush()
    }
}
