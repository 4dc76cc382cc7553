//! Acknowledgements: which frames arrived.
//!
//! ```text
//! number of the header: every frame below it arrived
//! payload, 8 bytes for each of 0..=64 ranges, in order, not touching:
//!   0  4  first, as a distance from that number, 1 at least (the frame of that very number is missing)
//!   4  4  frames in the range, 1 at least
//! ```

use std::ops::Range;

use crate::WireError;

/// Ranges in one acknowledgement.
pub const ACK_RANGES_MAX: usize = 64;

/// Frames from the oldest that is not acknowledged to the newest that may be sent. What the receiver
/// remembers to drop doubles is bounded by it.
pub const WINDOW_FRAMES: u64 = 1 << 16;

/// Which frames arrived: all below a number, and some above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Every frame below this arrived.
    pub below: u64,
    /// So did these.
    pub ranges: Vec<Range<u64>>,
}

impl Ack {
    /// The payload. At most [`ACK_RANGES_MAX`] ranges, all above `below` and within the window.
    pub fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.ranges.len() * 8);
        for range in &self.ranges {
            bytes.extend(((range.start - self.below) as u32).to_le_bytes());
            bytes.extend(((range.end - range.start) as u32).to_le_bytes());
        }
        bytes
    }

    /// Reads an acknowledgement.
    ///
    /// # Errors
    /// [`WireError::Ranges`] when ranges are empty, out of order, touch, or lie beyond the window.
    pub fn read(below: u64, payload: &[u8]) -> Result<Ack, WireError> {
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(payload.len() / 8);
        let mut free = below.checked_add(1).ok_or(WireError::Ranges)?;
        let end_max = below.checked_add(WINDOW_FRAMES).ok_or(WireError::Ranges)?;
        if !payload.len().is_multiple_of(8) || payload.len() / 8 > ACK_RANGES_MAX {
            return Err(WireError::Ranges);
        }
        for part in payload.chunks_exact(8) {
            let distance = u32::from_le_bytes([part[0], part[1], part[2], part[3]]);
            let length = u32::from_le_bytes([part[4], part[5], part[6], part[7]]);
            // Neither sum can overflow: a peer may name any number as `below`.
            let distance_end = u64::from(distance) + u64::from(length);
            if distance_end > end_max - below {
                return Err(WireError::Ranges);
            }
            let (start, end) = (below + u64::from(distance), below + distance_end);
            if start < free || length == 0 {
                return Err(WireError::Ranges);
            }
            free = end + 1;
            ranges.push(start..end);
        }
        Ok(Ack { below, ranges })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_acknowledgement_reads_back(below in 0..u64::MAX / 2, steps in prop::collection::vec((1u64..400, 1u64..400), 0..=ACK_RANGES_MAX)) {
            let mut at = below;
            let ranges = steps.into_iter().map(|(gap, length)| {
                let start = at + gap;
                at = start + length;
                start..at
            });
            let ack = Ack { below, ranges: ranges.collect() };
            prop_assert_eq!(Ack::read(below, &ack.payload()), Ok(ack));
        }

        #[test]
        fn what_is_read_lies_in_the_window(below in any::<u64>(), payload in prop::collection::vec(0u8..3, 0..64)) {
            if let Ok(ack) = Ack::read(below, &payload) {
                let mut free = below;
                for range in &ack.ranges {
                    prop_assert!(range.start > free && range.end > range.start && range.end <= below + WINDOW_FRAMES);
                    free = range.end;
                }
            }
        }
    }

    #[test]
    fn wrong_ranges_are_refused() {
        let one = |distance: u32, length: u32| [distance.to_le_bytes(), length.to_le_bytes()].concat();
        assert!(Ack::read(10, &one(1, 1)).is_ok());
        assert_eq!(Ack::read(10, &one(0, 1)), Err(WireError::Ranges), "the number itself is missing");
        assert_eq!(Ack::read(10, &one(1, 0)), Err(WireError::Ranges));
        assert_eq!(Ack::read(10, &one(1, 1 << 16)), Err(WireError::Ranges));
        assert_eq!(Ack::read(10, &[one(1, 1), one(2, 1)].concat()), Err(WireError::Ranges), "they touch");
        assert_eq!(Ack::read(10, &[0; 7]), Err(WireError::Ranges));
        assert_eq!(Ack::read(u64::MAX, &[]), Err(WireError::Ranges));
        for far in [one(u32::MAX, 1), one(1, u32::MAX), one(u32::MAX, u32::MAX)] {
            assert_eq!(
                Ack::read(u64::MAX - WINDOW_FRAMES, &far),
                Err(WireError::Ranges),
                "beyond all numbers"
            );
        }
        let many: Vec<u8> = (0..65).flat_map(|at| one(1 + 2 * at, 1)).collect();
        assert_eq!(Ack::read(10, &many), Err(WireError::Ranges));
    }
}
