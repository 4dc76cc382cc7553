//! Which parts of a read are holes, so that they need not be read nor sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use drover_disk::Disk;
use drover_types::{ByteSpan, Extent, ExtentKind};

/// Holes smaller than this are sent as data: a chunk and another read cost more.
const HOLE_BYTES_MIN: u64 = 64 << 10;

/// Pieces of one read; beyond that, the rest is read as it comes.
const PIECES_MAX: usize = 64;

/// Bytes that are looked at beyond a read which met only data, and runs of data that are remembered.
const AHEAD_BYTES: u64 = 1 << 30;
const KNOWN_MAX: usize = 1 << 14;

/// Answers that one read waits for.
const ANSWERS_MAX: usize = 8;

/// What a disk told of its data. Only data is remembered: should it become a hole, reading it is no
/// mistake. A hole is asked for anew by each read, as data may have come into it, perhaps from another
/// program.
///
/// Asking is not always cheap: to find the end of a run of data, tmpfs looks at each of its pages.
pub(crate) struct Holes {
    disk: Arc<dyn Disk>,
    /// Runs of data, by start and end.
    known: Mutex<BTreeMap<u64, u64>>,
}

impl Holes {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Holes {
        Holes { disk, known: Mutex::default() }
    }

    /// What of `span` is a large hole and what must be read.
    pub(crate) fn pieces(&self, span: ByteSpan) -> Vec<Extent> {
        if span.length < HOLE_BYTES_MIN || self.is_data(span) {
            return vec![Extent::allocated(span)];
        }
        let extents = self.extents(span);
        if extents.iter().all(|extent| extent.kind == ExtentKind::Allocated) {
            self.look_ahead(span);
            return vec![Extent::allocated(span)];
        }
        large_holes(span, &extents)
    }

    /// The extents of `span`, which a disk may tell in several answers. The map only saves work: what it
    /// does not tell is read.
    fn extents(&self, span: ByteSpan) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = span.offset;
        for _ in 0..ANSWERS_MAX {
            let found = self.disk.extents(ByteSpan::from_bounds(at, span.end())).unwrap_or_default();
            at = found.last().map_or(span.end(), |last| last.span.end());
            for extent in found {
                match extents.last_mut() {
                    Some(last) if last.kind == extent.kind => last.span.length += extent.span.length,
                    _ => extents.push(extent),
                }
            }
            if at >= span.end() {
                break;
            }
        }
        extents
    }

    fn is_data(&self, span: ByteSpan) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.range(..=span.offset).next_back().is_some_and(|(_, end)| *end >= span.end())
    }

    fn look_ahead(&self, span: ByteSpan) {
        let end = span.offset.saturating_add(AHEAD_BYTES).min(self.disk.size());
        let found = self.disk.extents(ByteSpan::from_bounds(span.offset, end)).unwrap_or_default();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + found.len() > KNOWN_MAX {
            known.clear();
        }
        for extent in found.iter().filter(|extent| extent.kind == ExtentKind::Allocated) {
            let end = known.entry(extent.span.offset).or_default();
            *end = extent.span.end().max(*end);
        }
    }
}

/// `span` in pieces, of which the zero ones are the large holes among `extents`; whatever these leave
/// out counts as data.
fn large_holes(span: ByteSpan, extents: &[Extent]) -> Vec<Extent> {
    let mut pieces = Vec::new();
    let mut at = span.offset;
    for hole in extents.iter().filter(|extent| extent.kind == ExtentKind::Zero) {
        let Some(hole) = shrunk(hole.span, span).intersect(span) else { continue };
        if hole.length < HOLE_BYTES_MIN.min(span.length) || hole.offset < at || pieces.len() + 3 > PIECES_MAX
        {
            continue;
        }
        if at < hole.offset {
            pieces.push(Extent::allocated(ByteSpan::from_bounds(at, hole.offset)));
        }
        pieces.push(Extent::zero(hole));
        at = hole.end();
    }
    if at < span.end() {
        pieces.push(Extent::allocated(ByteSpan::from_bounds(at, span.end())));
    }
    pieces
}

/// A hole whose ends lie on the grain, so that what is left to read is aligned for any disk; the
/// ends of the request itself may stay.
fn shrunk(hole: ByteSpan, request: ByteSpan) -> ByteSpan {
    let start = if hole.offset <= request.offset {
        request.offset
    } else {
        hole.offset.next_multiple_of(HOLE_BYTES_MIN)
    };
    let end = if hole.end() >= request.end() {
        request.end()
    } else {
        hole.end() / HOLE_BYTES_MIN * HOLE_BYTES_MIN
    };
    ByteSpan::from_bounds(start, end.max(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_disk::MemDisk;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn large_holes_are_kept_and_nothing_else_is_a_hole(
            offset in 0u64..1 << 20,
            lengths in prop::collection::vec((1u64..1 << 19, any::<bool>()), 1..40),
        ) {
            let mut at = offset;
            let mut extents = Vec::new();
            for (length, zero) in lengths {
                let span = ByteSpan::new(at, length);
                extents.push(if zero { Extent::zero(span) } else { Extent::allocated(span) });
                at += length;
            }
            let span = ByteSpan::from_bounds(offset, at);
            let pieces = large_holes(span, &extents);
            prop_assert!(pieces.len() <= PIECES_MAX);
            let mut at = offset;
            for piece in pieces {
                prop_assert!(piece.span.offset == at && !piece.span.is_empty());
                let inside = |extent: &Extent| extent.kind == ExtentKind::Zero && extent.span.contains(piece.span);
                prop_assert!(piece.kind == ExtentKind::Allocated || extents.iter().any(inside));
                at = piece.span.end();
            }
            prop_assert_eq!(at, span.end());
        }
    }

    #[test]
    fn data_is_asked_for_once_and_holes_each_time() {
        let mut content = vec![1; 4 << 20];
        content[1 << 20..2 << 20].fill(0);
        let disk = MemDisk::new("a", content);
        let holes = Holes::new(Arc::new(disk.clone()));
        let kinds = |offset, length| -> Vec<ExtentKind> {
            holes.pieces(ByteSpan::new(offset, length)).iter().map(|piece| piece.kind).collect()
        };
        for _ in 0..100 {
            assert_eq!(kinds(2 << 20, 256 << 10), [ExtentKind::Allocated]);
            assert_eq!(kinds((3 << 20) - 5, 1 << 16), [ExtentKind::Allocated]);
        }
        let asked = disk.counts().extents;
        assert!(asked < 10, "asked {asked} times");
        for _ in 0..10 {
            assert_eq!(kinds(1 << 20, 1 << 16), [ExtentKind::Zero]);
        }
        disk.overwrite(1 << 20, &[1; 1 << 20]);
        assert_eq!(kinds(1 << 20, 1 << 16), [ExtentKind::Allocated], "data came into the hole");
    }
}
