use std::io;
use std::sync::Arc;

use drover_types::ByteSpan;

use crate::map::{Layer, Place, Run};
use crate::source::ReadAt;

/// Bytes as they are.
pub(crate) struct RawLayer {
    source: Arc<dyn ReadAt>,
    offset: u64,
    size: u64,
}

impl RawLayer {
    /// The first `size` bytes from `offset` on; the caller has checked that they are there.
    pub(crate) fn new(source: Arc<dyn ReadAt>, offset: u64, size: u64) -> RawLayer {
        RawLayer { source, offset, size }
    }
}

impl Layer for RawLayer {
    fn size(&self) -> u64 {
        self.size
    }

    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        let place = Place::Data { source: &*self.source, offset: self.offset + span.offset };
        Ok(Run { length: span.length, place })
    }

    fn sources(&self) -> Vec<&dyn ReadAt> {
        vec![&*self.source]
    }
}

/// Zeros: a disk that starts empty.
pub(crate) struct ZeroLayer {
    pub(crate) size: u64,
}

impl Layer for ZeroLayer {
    fn size(&self) -> u64 {
        self.size
    }

    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        Ok(Run { length: span.length, place: Place::Zero })
    }

    fn sources(&self) -> Vec<&dyn ReadAt> {
        Vec::new()
    }
}
