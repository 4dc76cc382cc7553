use drover_types::{BLOCK_BYTES, ByteSpan};

/// A set of blocks of one disk.
///
/// Takes 512 bytes for each 256 MiB of disk of which some blocks are in it and some are not, and next to
/// nothing for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    blocks: u64,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    None,
    All,
    Some(Box<[u64; WORDS]>),
}

const WORDS: usize = 64;
const WORD_BLOCKS: u64 = 64;
const PART_BLOCKS: u64 = WORDS as u64 * WORD_BLOCKS;

impl BlockSet {
    /// No block of a disk of `size` bytes.
    pub fn none(size: u64) -> Self {
        BlockSet::filled(size, Part::None)
    }

    /// Every block of a disk of `size` bytes.
    pub fn all(size: u64) -> Self {
        BlockSet::filled(size, Part::All)
    }

    /// Every block of a disk of `size` bytes that one of these spans touches. They may come in any order,
    /// overlap, be empty, and reach beyond the disk.
    pub fn touched_by(spans: &[ByteSpan], size: u64) -> Self {
        let mut set = BlockSet::none(size);
        let disk = ByteSpan::new(0, size);
        for span in spans.iter().filter_map(|span| span.intersect(disk)) {
            let first = span.offset / BLOCK_BYTES;
            set.insert(first, span.end().div_ceil(BLOCK_BYTES) - first);
        }
        set
    }

    fn filled(size: u64, part: Part) -> Self {
        let blocks = size.div_ceil(BLOCK_BYTES);
        BlockSet { blocks, parts: vec![part; blocks.div_ceil(PART_BLOCKS) as usize] }
    }

    /// Whether a block is in it.
    pub fn contains(&self, block: u64) -> bool {
        block < self.blocks && self.word(block) >> (block % WORD_BLOCKS) & 1 == 1
    }

    /// Adds `count` blocks from `first` on.
    ///
    /// # Panics
    /// If the disk does not have them.
    pub fn insert(&mut self, first: u64, count: u64) {
        self.change(first, count, true);
    }

    /// Takes out `count` blocks from `first` on.
    ///
    /// # Panics
    /// If the disk does not have them.
    pub fn remove(&mut self, first: u64, count: u64) {
        self.change(first, count, false);
    }

    /// The runs of blocks in it between `first` and `end`, as first block and count.
    pub fn runs(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = end.min(self.blocks);
        let mut at = first;
        std::iter::from_fn(move || {
            let start = self.next(at, true).filter(|start| *start < end)?;
            at = self.next(start, false).unwrap_or(end).min(end);
            Some((start, at - start))
        })
    }

    /// The first block from `block` on that is in it.
    pub fn next_from(&self, block: u64) -> Option<u64> {
        self.next(block, true)
    }

    /// The first block from `block` on that is in it, or is not.
    fn next(&self, block: u64, wanted: bool) -> Option<u64> {
        let mut at = block;
        while at < self.blocks {
            let part = &self.parts[(at / PART_BLOCKS) as usize];
            let barren = if wanted { Part::None } else { Part::All };
            if *part == barren {
                at = (at / PART_BLOCKS + 1) * PART_BLOCKS;
                continue;
            }
            let word = if wanted { self.word(at) } else { !self.word(at) };
            let rest = word >> (at % WORD_BLOCKS);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                return (found < self.blocks).then_some(found);
            }
            at = (at / WORD_BLOCKS + 1) * WORD_BLOCKS;
        }
        None
    }

    fn word(&self, block: u64) -> u64 {
        match &self.parts[(block / PART_BLOCKS) as usize] {
            Part::None => 0,
            Part::All => u64::MAX,
            Part::Some(words) => words[(block % PART_BLOCKS / WORD_BLOCKS) as usize],
        }
    }

    fn change(&mut self, first: u64, count: u64, wanted: bool) {
        let end = first.saturating_add(count);
        assert!(end <= self.blocks, "blocks {first}..{end} of {}", self.blocks);
        let mut at = first;
        while at < end {
            let index = (at / PART_BLOCKS) as usize;
            let part_end = (index as u64 + 1) * PART_BLOCKS;
            if at.is_multiple_of(PART_BLOCKS) && end >= part_end.min(self.blocks) {
                self.parts[index] = if wanted { Part::All } else { Part::None };
                at = part_end;
                continue;
            }
            let word_end = ((at / WORD_BLOCKS + 1) * WORD_BLOCKS).min(end);
            let bits = (u64::MAX >> (WORD_BLOCKS - (word_end - at))) << (at % WORD_BLOCKS);
            let word = &mut self.words(index)[(at % PART_BLOCKS / WORD_BLOCKS) as usize];
            *word = if wanted { *word | bits } else { *word & !bits };
            at = word_end;
        }
    }

    fn words(&mut self, index: usize) -> &mut [u64; WORDS] {
        let part = &mut self.parts[index];
        if !matches!(part, Part::Some(_)) {
            let fill = if *part == Part::All { u64::MAX } else { 0 };
            *part = Part::Some(Box::new([fill; WORDS]));
        }
        match part {
            Part::Some(words) => words,
            _ => unreachable!("made so just above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = (2 * PART_BLOCKS + 70) * BLOCK_BYTES - 9;
    const BLOCKS: u64 = 2 * PART_BLOCKS + 70;

    fn check(set: &BlockSet, oracle: &[bool]) {
        for (block, expected) in (0..).zip(oracle) {
            assert_eq!(set.contains(block), *expected, "block {block}");
        }
        assert!(!set.contains(BLOCKS));
        let mut from_runs = vec![false; oracle.len()];
        let mut last_end = None;
        for (first, count) in set.runs(0, u64::MAX) {
            assert!(count > 0 && last_end.is_none_or(|end| end < first), "runs that touch");
            last_end = Some(first + count);
            (first..first + count).for_each(|block| from_runs[block as usize] = true);
        }
        assert!(from_runs == oracle);
    }

    #[test]
    fn is_what_a_plain_list_of_flags_is() {
        let mut seed = 7_u64;
        let mut roll = |sides: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % sides
        };
        let mut set = BlockSet::none(SIZE);
        let mut oracle = vec![false; BLOCKS as usize];
        for round in 0..300 {
            let first = roll(BLOCKS);
            let longest = if roll(3) == 0 { BLOCKS } else { 130 };
            let count = roll(longest).min(BLOCKS - first);
            let wanted = roll(2) == 0;
            if wanted {
                set.insert(first, count)
            } else {
                set.remove(first, count)
            }
            oracle[first as usize..(first + count) as usize].fill(wanted);
            if round % 10 == 0 {
                check(&set, &oracle);
                let (from, to) = (roll(BLOCKS), roll(BLOCKS));
                let clipped: u64 = set.runs(from, to).map(|(_, count)| count).sum();
                let expected = (from..to).filter(|block| oracle[*block as usize]).count();
                assert_eq!(clipped, expected as u64, "{from}..{to}");
                assert_eq!(set.next_from(from), (from..BLOCKS).find(|block| oracle[*block as usize]));
            }
        }
    }

    #[test]
    fn all_and_none_are_so_to_the_last_block() {
        check(&BlockSet::all(SIZE), &[true; BLOCKS as usize]);
        check(&BlockSet::none(SIZE), &[false; BLOCKS as usize]);
        let mut all = BlockSet::none(SIZE);
        all.insert(0, BLOCKS);
        assert_eq!(all, BlockSet::all(SIZE));
        assert_eq!(BlockSet::all(0).next_from(0), None);
    }

    #[test]
    fn no_block_is_found_behind_the_last_one_of_the_disk() {
        let mut set = BlockSet::all(SIZE);
        set.remove(BLOCKS - 1, 1);
        assert_eq!((set.next_from(BLOCKS - 2), set.next_from(BLOCKS - 1)), (Some(BLOCKS - 2), None));
        assert_eq!(set.next_from(BLOCKS), None);
    }

    #[test]
    fn spans_off_borders_overlapping_and_beyond_the_disk_are_made_right() {
        let spans = [
            ByteSpan::new(5 * BLOCK_BYTES + 1, 1),
            ByteSpan::new(2 * BLOCK_BYTES - 1, 2),
            ByteSpan::new(7 * BLOCK_BYTES, 0),
            ByteSpan::new(0, 2 * BLOCK_BYTES),
            ByteSpan::new(SIZE - 1, u64::MAX),
            ByteSpan::new(SIZE, 10),
            ByteSpan::new(u64::MAX, u64::MAX),
        ];
        let set = BlockSet::touched_by(&spans, SIZE);
        assert_eq!(set.runs(0, BLOCKS).collect::<Vec<_>>(), [(0, 3), (5, 1), (BLOCKS - 1, 1)]);
    }

    #[test]
    #[should_panic = "blocks 60..71 of 70"]
    fn blocks_beyond_the_disk_are_refused() {
        BlockSet::none(70 * BLOCK_BYTES).insert(60, 11);
    }
}
