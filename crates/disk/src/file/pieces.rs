use std::ops::Range;

use drover_types::ByteSpan;

/// A part of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where; never empty.
    pub span: ByteSpan,
    /// Whether it starts and ends on the grain.
    pub whole: bool,
}

impl Piece {
    /// Its place in the bytes of `span`, of which it is a part.
    pub fn within(&self, span: ByteSpan) -> Range<usize> {
        let start = (self.span.offset - span.offset) as usize;
        start..start + self.span.length as usize
    }
}

/// Cuts `span` into an odd head, whole grains and an odd tail, leaving out what is empty.
pub fn cut(span: ByteSpan, grain: u64) -> Vec<Piece> {
    let start = span.offset.next_multiple_of(grain).min(span.end());
    let end = (span.end() / grain * grain).max(start);
    let parts = [(span.offset, start, false), (start, end, true), (end, span.end(), false)];
    parts
        .into_iter()
        .filter(|(start, end, _)| start < end)
        .map(|(start, end, whole)| Piece { span: ByteSpan::from_bounds(start, end), whole })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_span_in_order_and_only_whole_ones_lie_on_the_grain() {
        for offset in 0..40 {
            for length in 0..40 {
                let span = ByteSpan::new(offset, length);
                let pieces = cut(span, 8);
                let mut at = offset;
                for piece in &pieces {
                    assert_eq!(piece.span.offset, at);
                    assert!(!piece.span.is_empty());
                    assert!(!piece.whole || (at % 8 == 0 && piece.span.length % 8 == 0), "{span} {piece:?}");
                    at = piece.span.end();
                }
                assert_eq!(at, span.end());
                let whole: u64 =
                    pieces.iter().filter(|piece| piece.whole).map(|piece| piece.span.length).sum();
                assert!(whole + 14 >= length, "heads and tails are shorter than a grain: {span}");
            }
        }
    }
}
