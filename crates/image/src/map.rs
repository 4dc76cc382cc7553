//! Where the bytes of a guest's disk are.

use std::io;

use drover_types::ByteSpan;

use crate::source::ReadAt;
use crate::unpack::Packed;

/// One image of a chain: says where bytes are and reads only its own tables.
pub(crate) trait Layer: Send + Sync {
    /// Bytes the guest sees.
    fn size(&self) -> u64;

    /// Where the bytes from `span.offset` on are. The run is at least one byte and at most
    /// `span` long; `span` is not empty and lies inside the size.
    fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>>;

    /// The files it reads, for the identity.
    fn sources(&self) -> Vec<&dyn ReadAt>;

    /// Bytes of the largest compressed unit; 0 if there is none. Requests that hold whole units
    /// save unpacking one twice.
    fn unit_bytes(&self) -> u64 {
        0
    }
}

/// A run of guest bytes that are in one place.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) length: u64,
    pub(crate) place: Place<'a>,
}

/// Where the bytes of a run are.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// Nowhere: they read as zeros.
    Zero,
    /// In the image below, or zeros if there is none.
    Below,
    /// In a file, from this offset on.
    Data { source: &'a dyn ReadAt, offset: u64 },
    /// In a compressed unit, from `skip` on.
    Packed { unit: Packed<'a>, skip: u64 },
}

/// Pieces looked at for one run, so that no image can keep a lane busy for long.
const STEPS_MAX: usize = 1 << 16;

/// Joins what `piece_at` says about one cluster after the other into one run: zeros with zeros,
/// data with the data that follows it in the same file. `piece_at(at)` gives the run at `at`, which
/// may reach beyond `span`.
pub(crate) fn gather<'a>(
    span: ByteSpan,
    mut piece_at: impl FnMut(u64) -> io::Result<Run<'a>>,
) -> io::Result<Run<'a>> {
    let first = piece_at(span.offset)?;
    let mut length = first.length;
    for _ in 1..STEPS_MAX {
        if length >= span.length || matches!(first.place, Place::Packed { .. }) {
            break;
        }
        // A fault further on is told when someone asks from there.
        let Ok(next) = piece_at(span.offset + length) else { break };
        if !follows(&first.place, length, &next.place) {
            break;
        }
        length += next.length;
    }
    Ok(Run { length: length.min(span.length), place: first.place })
}

/// Whether `next` goes on where `length` bytes from `first` on end.
fn follows(first: &Place<'_>, length: u64, next: &Place<'_>) -> bool {
    match (first, next) {
        (Place::Zero, Place::Zero) | (Place::Below, Place::Below) => true,
        (Place::Data { source, offset }, Place::Data { source: same, offset: then }) => {
            std::ptr::addr_eq(*source, *same) && offset.checked_add(length) == Some(*then)
        }
        _ => false,
    }
}

/// An image and those below it; the top one first.
pub(crate) struct Chain {
    layers: Vec<Box<dyn Layer>>,
}

impl Chain {
    /// A chain of one or more layers.
    pub(crate) fn new(layers: Vec<Box<dyn Layer>>) -> Chain {
        assert!(!layers.is_empty(), "a chain has a top");
        Chain { layers }
    }

    pub(crate) fn size(&self) -> u64 {
        self.layers[0].size()
    }

    /// Where the bytes from `span.offset` on are; never `Below`.
    pub(crate) fn run_at(&self, span: ByteSpan) -> io::Result<Run<'_>> {
        let mut length = span.length;
        for layer in &self.layers {
            // Past the end of a shorter image below there are zeros, whatever lies below that.
            let Some(inside) = layer.size().checked_sub(span.offset).filter(|left| *left > 0) else { break };
            length = length.min(inside);
            let run = layer.run_at(ByteSpan::new(span.offset, length))?;
            length = run.length;
            if !matches!(run.place, Place::Below) {
                return Ok(run);
            }
        }
        Ok(Run { length, place: Place::Zero })
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = &dyn ReadAt> {
        self.layers.iter().flat_map(|layer| layer.sources())
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.unit_bytes()).max().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.layers.len()
    }
}
