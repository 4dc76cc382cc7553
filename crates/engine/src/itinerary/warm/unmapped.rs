use std::sync::Arc;

use drover_disk::{Around, Disk, DiskError, Features};
use drover_types::{ByteSpan, Extent};

/// A disk of whose map nothing is believed: the source's word for what is allocated comes from the same
/// change tracking that is in doubt.
pub(in crate::itinerary) struct Unmapped(pub(in crate::itinerary) Arc<dyn Disk>);

impl Around for Unmapped {
    fn inner(&self) -> &dyn Disk {
        self.0.as_ref()
    }

    fn features(&self) -> Features {
        Features { extents: false, ..self.0.features() }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        Ok(vec![Extent::allocated(span)])
    }
}
