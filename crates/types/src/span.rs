use std::fmt;

use serde::{Deserialize, Serialize};

/// A run of bytes of a disk: `offset..offset + length`. Printed as `0x40000+0x10000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ByteSpan {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl ByteSpan {
    /// The span of `length` bytes from `offset`.
    pub const fn new(offset: u64, length: u64) -> Self {
        ByteSpan { offset, length }
    }

    /// The span `start..end`.
    ///
    /// # Panics
    /// If `end` lies before `start`.
    pub const fn from_bounds(start: u64, end: u64) -> Self {
        assert!(start <= end, "a span ends before it starts");
        ByteSpan { offset: start, length: end - start }
    }

    /// One past the last byte. Saturates, so a hostile span cannot wrap round.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Whether there is no byte in it.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether every byte of `other` lies in this span.
    pub const fn contains(&self, other: ByteSpan) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }

    /// The bytes that lie in both, if any.
    pub fn intersect(&self, other: ByteSpan) -> Option<ByteSpan> {
        let start = self.offset.max(other.offset);
        let end = self.end().min(other.end());
        (start < end).then(|| ByteSpan::from_bounds(start, end))
    }

    /// The smallest span around this one whose ends are multiples of `grain`, cut at `limit`.
    pub fn widened(&self, grain: u64, limit: u64) -> ByteSpan {
        let start = self.offset / grain * grain;
        let end = self.end().div_ceil(grain).saturating_mul(grain).min(limit);
        ByteSpan::from_bounds(start, end.max(start))
    }
}

impl fmt::Display for ByteSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.offset, self.length)
    }
}

/// What a run of bytes holds, as far as its source knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentKind {
    /// Must be read to be known.
    Allocated,
    /// Reads as zeros.
    Zero,
}

/// A span and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where.
    pub span: ByteSpan,
    /// What.
    pub kind: ExtentKind,
}

impl Extent {
    /// An extent that has to be read.
    pub const fn allocated(span: ByteSpan) -> Self {
        Extent { span, kind: ExtentKind::Allocated }
    }

    /// An extent that reads as zeros.
    pub const fn zero(span: ByteSpan) -> Self {
        Extent { span, kind: ExtentKind::Zero }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersection_is_what_lies_in_both() {
        let a = ByteSpan::new(10, 10);
        assert_eq!(a.intersect(ByteSpan::new(15, 10)), Some(ByteSpan::new(15, 5)));
        assert_eq!(a.intersect(ByteSpan::new(20, 1)), None);
        assert!(a.contains(ByteSpan::new(10, 10)) && !a.contains(ByteSpan::new(10, 11)));
    }

    #[test]
    fn widening_goes_to_the_grain_but_not_past_the_limit() {
        assert_eq!(ByteSpan::new(70, 10).widened(64, 1000), ByteSpan::new(64, 64));
        assert_eq!(ByteSpan::new(70, 100).widened(64, 180), ByteSpan::from_bounds(64, 180));
    }

    #[test]
    fn a_span_at_the_top_of_the_range_does_not_wrap() {
        assert_eq!(ByteSpan::new(u64::MAX, 5).end(), u64::MAX);
    }

    #[test]
    fn a_span_without_bytes_is_empty_and_shows_where() {
        assert!(ByteSpan::new(7, 0).is_empty() && !ByteSpan::new(0, 1).is_empty());
        assert_eq!(ByteSpan::new(0x40000, 0x10000).to_string(), "0x40000+0x10000");
    }
}
