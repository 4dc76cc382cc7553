use drover_disk::{Completion, Disk, DiskError, Features, Lane, Limits, Request};
use drover_types::{ByteSpan, Extent};

/// A span of a disk as a disk of its own, so that a large disk is hashed in parts of bounded memory.
pub(crate) struct Part<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) span: ByteSpan,
}

impl Part<'_> {
    fn outer(&self, span: ByteSpan) -> ByteSpan {
        ByteSpan::new(self.span.offset + span.offset, span.length)
    }
}

impl Disk for Part<'_> {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn size(&self) -> u64 {
        self.span.length
    }

    fn identity(&self) -> String {
        format!("{} of {}", self.span, self.disk.identity())
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn features(&self) -> Features {
        Features { writable: false, ..self.disk.features() }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        let mut extents = self.disk.extents(self.outer(span))?;
        extents.retain_mut(|extent| {
            // What the backend says of other bytes is none of this part's.
            let inside = extent.span.intersect(self.span);
            extent.span =
                inside.map_or(extent.span, |span| ByteSpan::new(span.offset - self.span.offset, span.length));
            inside.is_some()
        });
        Ok(extents)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Ok(Box::new(PartLane { lane: self.disk.open_lane()?, offset: self.span.offset }))
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn withdraw(&self) -> bool {
        self.disk.withdraw()
    }
}

struct PartLane {
    lane: Box<dyn Lane>,
    offset: u64,
}

impl Lane for PartLane {
    fn submit(&mut self, mut request: Request) {
        request.span.offset += self.offset;
        self.lane.submit(request);
    }

    fn complete(&mut self) -> Option<Completion> {
        let mut completion = self.lane.complete()?;
        completion.span.offset -= self.offset;
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.lane.in_flight()
    }

    fn is_broken(&self) -> bool {
        self.lane.is_broken()
    }
}
