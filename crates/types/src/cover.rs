use crate::ByteSpan;

/// Spans that came in, apart from each other and in order: what of a read is there.
#[derive(Clone, Debug, Default)]
pub struct Cover(Vec<ByteSpan>);

impl Cover {
    /// Adds a span; `false` if some of it is there already.
    pub fn add(&mut self, span: ByteSpan) -> bool {
        let index = self.0.partition_point(|known| known.offset < span.offset);
        let overlaps = |known: &ByteSpan| known.intersect(span).is_some();
        if self.0.get(index).is_some_and(overlaps) || (index > 0 && overlaps(&self.0[index - 1])) {
            return false;
        }
        // Most come in order, so most of the time there is one span that grows.
        if index > 0 && self.0[index - 1].end() == span.offset {
            self.0[index - 1].length += span.length;
            self.close_gap(index - 1);
        } else {
            self.0.insert(index, span);
            self.close_gap(index);
        }
        true
    }

    fn close_gap(&mut self, index: usize) {
        if self.0.get(index + 1).is_some_and(|next| next.offset == self.0[index].end()) {
            let next = self.0.remove(index + 1);
            self.0[index].length += next.length;
        }
    }

    /// Whether it is this span, whole and alone.
    pub fn is(&self, span: ByteSpan) -> bool {
        self.0 == [span]
    }

    /// The first span.
    pub fn first(&self) -> Option<ByteSpan> {
        self.0.first().copied()
    }

    /// Spans that do not touch; each one more makes the next one dearer to sort in.
    pub fn pieces(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the slow oracle: a map of single bytes.
        #[test]
        fn cover_agrees_with_a_byte_map(spans in prop::collection::vec((0u64..40, 1u64..12), 1..30)) {
            let (mut cover, mut map) = (Cover::default(), [false; 64]);
            for (offset, length) in spans {
                let range = offset as usize..(offset + length) as usize;
                let free = map[range.clone()].iter().all(|taken| !taken);
                prop_assert_eq!(cover.add(ByteSpan::new(offset, length)), free);
                if free {
                    map[range].fill(true);
                }
                prop_assert!(cover.0.windows(2).all(|pair| pair[0].end() < pair[1].offset));
                let covered: u64 = cover.0.iter().map(|span| span.length).sum();
                prop_assert_eq!(covered, map.iter().filter(|taken| **taken).count() as u64);
            }
        }
    }
}
