//! The hash report's format, version 1: a disk's whole hash tree in a file, to check a disk against
//! years later. Integers are little endian. `docs/dev/hash-report.md` says the same.
//!
//! ```text
//! header, 56 + n bytes                     segment, 8 + 32 c bytes, one for each 256 MiB in order
//!   0   8  magic "DROVERH\n"                 0   1  kind: 0 all zero, 1 leaves
//!   8   4  version = 1                       1   3  zero
//!  12   4  block bytes = 65536               4   4  blocks c (4096; the last segment may have fewer)
//!  16   8  disk size in bytes                8 32c  kind 1: leaves; kind 0: nothing
//!  24   8  made at, seconds since 1970
//!  32   8  bytes n of the texts            end, 64 bytes
//!  40   n  texts: program, name,             0  32  root of the tree
//!          identity; each u32 length        32  32  BLAKE3 of all bytes of the file before this
//!          and UTF-8 bytes
//!   .  16  check: BLAKE3 of all bytes before, first 16 bytes
//! ```
//!
//! Written and read in order, never more than a few segments in memory: the report of a 6 TB disk full
//! of data has 3 GB. The hash at the end covers the whole file, the root is made again from the leaves
//! when it is read: a report that was damaged is never held against a disk.

use std::io::{self, Read, Write};

use drover_types::{BLOCK_BYTES, Digest};

use crate::leaves::{Leaf, LeafTable, RootHasher, SEGMENT_BLOCKS, SEGMENT_BYTES, zero_leaf};

const MAGIC: [u8; 8] = *b"DROVERH\n";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 40;
const CHECK_BYTES: usize = 16;

/// No text in a report is longer.
pub const TEXT_BYTES_MAX: usize = 4096;
const TEXTS: usize = 3;
const TEXTS_BYTES_MAX: usize = TEXTS * (4 + TEXT_BYTES_MAX);

/// What a report says of the disk besides its leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Size in bytes.
    pub size: u64,
    /// When the disk was read, in seconds since 1970.
    pub made_at: u64,
    /// The program that made the report, with its version.
    pub program: String,
    /// The disk's name: a path, a URI without secrets.
    pub name: String,
    /// What told the disk and its state from another at that time.
    pub identity: String,
}

/// A report that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The magic is wrong, or the file is too short.
    #[error("it is not a drover hash report")]
    NotAReport,
    /// Another version.
    #[error("it has format version {0}, and this drover knows version 1")]
    Version(u32),
    /// Another block size.
    #[error("it has blocks of {0} bytes, and this drover uses 65536")]
    BlockBytes(u32),
    /// A check fails, or a field cannot be right.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// Writes a report, part after part.
pub struct ReportWriter<W> {
    out: Hashed<W>,
    root: RootHasher,
}

impl<W: Write> ReportWriter<W> {
    /// Begins a report. Texts longer than [`TEXT_BYTES_MAX`] are cut.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn new(out: W, about: &About) -> io::Result<Self> {
        let mut texts = Vec::new();
        for text in [&about.program, &about.name, &about.identity] {
            let text = cut(text);
            texts.extend((text.len() as u32).to_le_bytes());
            texts.extend(text.as_bytes());
        }
        let mut head = Vec::with_capacity(FIXED_BYTES + texts.len() + CHECK_BYTES);
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((BLOCK_BYTES as u32).to_le_bytes());
        head.extend(about.size.to_le_bytes());
        head.extend(about.made_at.to_le_bytes());
        head.extend((texts.len() as u64).to_le_bytes());
        head.extend(texts);
        let check = blake3::hash(&head);
        head.extend(&check.as_bytes()[..CHECK_BYTES]);
        let mut out = Hashed { inner: out, hasher: blake3::Hasher::new() };
        out.write_all(&head)?;
        Ok(ReportWriter { out, root: RootHasher::new(about.size) })
    }

    /// Appends the leaves of the part that follows; it ends on 256 MiB or with the disk.
    ///
    /// # Errors
    /// When the writer fails.
    ///
    /// # Panics
    /// If the part has an unknown block, or does not follow.
    pub fn push(&mut self, part: &LeafTable) -> io::Result<()> {
        self.root.push(part).expect("every block of a hashed part is known");
        let mut first = 0;
        while first < part.blocks() {
            let count = (part.blocks() - first).min(SEGMENT_BLOCKS);
            self.out.write_all(&encode_segment(part, first, count))?;
            first += count;
        }
        Ok(())
    }

    /// Ends the report. Gives the root and the writer, which is not flushed.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn finish(mut self) -> io::Result<(Digest, W)> {
        let root = self.root.finish();
        self.out.write_all(&root.0)?;
        let hash = self.out.hasher.finalize();
        self.out.inner.write_all(hash.as_bytes())?;
        Ok((root, self.out.inner))
    }
}

fn encode_segment(part: &LeafTable, first: u64, count: u64) -> Vec<u8> {
    let leaves = || (first..first + count).map(|block| (block, part.get(block)));
    let is_zero = leaves().all(|(_, leaf)| leaf == Some(Leaf::Zero));
    let mut bytes = vec![u8::from(!is_zero), 0, 0, 0];
    bytes.extend((count as u32).to_le_bytes());
    if !is_zero {
        for (block, leaf) in leaves() {
            let digest = match leaf {
                Some(Leaf::Data(digest)) => digest,
                _ => zero_leaf(part.span_of(block).length),
            };
            bytes.extend(digest.0);
        }
    }
    bytes
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads a report, part after part.
pub struct ReportReader<R> {
    input: Hashed<R>,
    about: About,
    root: Option<RootHasher>,
    left: u64,
}

impl<R: Read> ReportReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn open(input: R) -> Result<Self, ReportError> {
        let mut input = Hashed { inner: input, hasher: blake3::Hasher::new() };
        let mut fixed = [0; FIXED_BYTES];
        input.fill(&mut fixed).map_err(|error| match error {
            ReportError::Damaged(_) => ReportError::NotAReport,
            error => error,
        })?;
        let texts_bytes = check_fixed(&fixed)?;
        let mut texts = vec![0; texts_bytes];
        input.fill(&mut texts)?;
        let expected = input.hasher.finalize();
        let mut check = [0; CHECK_BYTES];
        input.fill(&mut check)?;
        if expected.as_bytes()[..CHECK_BYTES] != check {
            return Err(ReportError::Damaged("its header fails its check"));
        }
        let mut rest = texts.as_slice();
        let mut text = || take_text(&mut rest).ok_or(ReportError::Damaged("its texts make no sense"));
        let (program, name, identity) = (text()?, text()?, text()?);
        let size = u64_at(&fixed, 16);
        let about = About { size, made_at: u64_at(&fixed, 24), program, name, identity };
        Ok(ReportReader { input, about, root: Some(RootHasher::new(size)), left: size })
    }

    /// What the report says of the disk.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The leaves of the next `bytes` of the disk, or of what is left of it; `None` at its end.
    ///
    /// # Errors
    /// See [`ReportError`].
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 256 MiB.
    pub fn next_part(&mut self, bytes: u64) -> Result<Option<LeafTable>, ReportError> {
        assert!(bytes > 0 && bytes.is_multiple_of(SEGMENT_BYTES), "parts are whole segments");
        if self.left == 0 {
            return Ok(None);
        }
        let size = bytes.min(self.left);
        let mut part = LeafTable::new(size);
        let mut first = 0;
        while first < part.blocks() {
            let count = (part.blocks() - first).min(SEGMENT_BLOCKS);
            self.read_segment(&mut part, first, count)?;
            first += count;
        }
        self.left -= size;
        if let Some(root) = &mut self.root {
            root.push(&part).expect("every block of the part was just read");
        }
        Ok(Some(part))
    }

    fn read_segment(&mut self, part: &mut LeafTable, first: u64, count: u64) -> Result<(), ReportError> {
        let mut head = [0; 8];
        self.input.fill(&mut head)?;
        if head[1..4] != [0; 3] || u64::from(u32_at(&head, 4)) != count {
            return Err(ReportError::Damaged("a segment makes no sense"));
        }
        match head[0] {
            0 => part.set_zero(first, count),
            1 => {
                let mut leaves = vec![0; count as usize * 32];
                self.input.fill(&mut leaves)?;
                for (block, bytes) in (first..).zip(leaves.chunks_exact(32)) {
                    let digest = Digest(bytes.try_into().expect("chunks of 32 bytes"));
                    let is_zero = digest == zero_leaf(part.span_of(block).length);
                    part.set(block, if is_zero { Leaf::Zero } else { Leaf::Data(digest) });
                }
            }
            _ => return Err(ReportError::Damaged("a segment makes no sense")),
        }
        Ok(())
    }

    /// Reads what is left, checks the end, and gives the root.
    ///
    /// # Errors
    /// If the root is not that of the leaves, the hash of the file is wrong, or bytes follow.
    pub fn finish(mut self) -> Result<Digest, ReportError> {
        while self.next_part(SEGMENT_BYTES)?.is_some() {}
        let made = self.root.take().expect("taken here only").finish();
        let (mut root, mut hash) = ([0; 32], [0; 32]);
        self.input.fill(&mut root)?;
        let expected = self.input.hasher.finalize();
        self.input.fill(&mut hash)?;
        if expected.as_bytes() != &hash {
            return Err(ReportError::Damaged("its bytes are not those that were written"));
        }
        if made.0 != root {
            return Err(ReportError::Damaged("its root is not that of its leaves"));
        }
        match self.input.inner.read(&mut [0])? {
            0 => Ok(made),
            _ => Err(ReportError::Damaged("bytes follow its end")),
        }
    }
}

/// Checks the fixed part of the header and gives the length of the texts.
fn check_fixed(fixed: &[u8; FIXED_BYTES]) -> Result<usize, ReportError> {
    if fixed[..8] != MAGIC {
        return Err(ReportError::NotAReport);
    }
    match u32_at(fixed, 8) {
        VERSION => {}
        version => return Err(ReportError::Version(version)),
    }
    match u32_at(fixed, 12) {
        bytes if u64::from(bytes) == BLOCK_BYTES => {}
        bytes => return Err(ReportError::BlockBytes(bytes)),
    }
    match u64_at(fixed, 32) {
        bytes if bytes <= TEXTS_BYTES_MAX as u64 => Ok(bytes as usize),
        _ => Err(ReportError::Damaged("its texts are too long")),
    }
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let (length, after) = rest.split_at_checked(4)?;
    let length = u32_at(length, 0) as usize;
    let (text, after) = after.split_at_checked(length).filter(|_| length <= TEXT_BYTES_MAX)?;
    *rest = after;
    String::from_utf8(text.to_vec()).ok()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Hashes what goes through.
struct Hashed<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<W: Write> Hashed<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Hashed<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReportError> {
        self.inner.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ReportError::Damaged("it ends too early"),
            _ => error.into(),
        })?;
        self.hasher.update(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(size: u64) -> About {
        let text = |text: &str| text.to_string();
        About { size, made_at: 7, program: text("drover 1"), name: text("disk"), identity: text("é") }
    }

    /// Two parts: a segment of zeros with one data block, and a short one.
    fn parts() -> Vec<LeafTable> {
        let mut first = LeafTable::new(2 * SEGMENT_BYTES);
        first.set_zero(0, first.blocks());
        first.set(5, Leaf::of(b"data"));
        let mut last = LeafTable::new(BLOCK_BYTES + 3);
        last.set(0, Leaf::of(b"more"));
        last.set(1, Leaf::Zero);
        vec![first, last]
    }

    fn report() -> (Digest, Vec<u8>) {
        let size = parts().iter().map(LeafTable::size).sum();
        let mut writer = ReportWriter::new(Vec::new(), &about(size)).unwrap();
        parts().iter().for_each(|part| writer.push(part).unwrap());
        writer.finish().unwrap()
    }

    fn root_of(bytes: &[u8]) -> Result<Digest, ReportError> {
        ReportReader::open(bytes)?.finish()
    }

    #[test]
    fn what_was_written_is_read_again_in_other_parts() {
        let (root, bytes) = report();
        let mut reader = ReportReader::open(&bytes[..]).unwrap();
        assert_eq!(reader.about(), &about(2 * SEGMENT_BYTES + BLOCK_BYTES + 3));
        let first = reader.next_part(SEGMENT_BYTES).unwrap().unwrap();
        assert_eq!((first.size(), first.get(5)), (SEGMENT_BYTES, Some(Leaf::of(b"data"))));
        let second = reader.next_part(SEGMENT_BYTES).unwrap().unwrap();
        assert_eq!(second.data_blocks(), 0);
        assert_eq!(reader.next_part(4 * SEGMENT_BYTES).unwrap(), parts().pop());
        assert_eq!(reader.next_part(SEGMENT_BYTES).unwrap(), None);
        assert_eq!(reader.finish().unwrap(), root);
        let zero_segment = 8;
        assert_eq!(bytes.len(), 56 + 12 + 8 + 4 + 2 + 8 + 4096 * 32 + zero_segment + 8 + 64 + 64);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let (_, bytes) = report();
        let offsets =
            (0..400).chain((400..bytes.len() - 200).step_by(997)).chain(bytes.len() - 200..bytes.len());
        for at in offsets {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(root_of(&damaged).is_err(), "byte {at}");
            assert!(root_of(&bytes[..at]).is_err(), "cut at {at}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(root_of(&longer), Err(ReportError::Damaged("bytes follow its end"))));
        assert!(matches!(root_of(b"no report"), Err(ReportError::NotAReport)));
        let with = |at: usize, byte: u8| {
            let mut changed = bytes.clone();
            changed[at] = byte;
            root_of(&changed).unwrap_err()
        };
        assert!(matches!(with(8, 2), ReportError::Version(2)));
        assert!(matches!(with(12, 1), ReportError::BlockBytes(65537)));
    }

    #[test]
    fn a_forged_size_costs_no_memory() {
        let mut writer = ReportWriter::new(Vec::new(), &about(u64::MAX)).unwrap();
        writer.out.write_all(&[9; 64]).unwrap();
        let bytes = writer.out.inner;
        let mut reader = ReportReader::open(&bytes[..]).unwrap();
        assert!(matches!(reader.next_part(SEGMENT_BYTES), Err(ReportError::Damaged(_))));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let long = About { name: "é".repeat(TEXT_BYTES_MAX), ..about(0) };
        let (_, bytes) = ReportWriter::new(Vec::new(), &long).unwrap().finish().unwrap();
        let read = ReportReader::open(&bytes[..]).unwrap();
        assert_eq!(read.about().name.len(), TEXT_BYTES_MAX);
        read.finish().unwrap();
        assert_eq!(cut(&format!("x{}", long.name)).len(), TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn a_part_of_several_segments_may_end_in_a_short_one() {
        let mut part = LeafTable::new(SEGMENT_BYTES + 2 * BLOCK_BYTES);
        part.set_zero(0, part.blocks());
        part.set(SEGMENT_BYTES / BLOCK_BYTES + 1, Leaf::of(b"last"));
        let mut writer = ReportWriter::new(Vec::new(), &about(part.size())).unwrap();
        writer.push(&part).unwrap();
        let (root, bytes) = writer.finish().unwrap();
        let mut reader = ReportReader::open(&bytes[..]).unwrap();
        assert_eq!(reader.next_part(2 * SEGMENT_BYTES).unwrap(), Some(part));
        assert_eq!(reader.finish().unwrap(), root);
    }

    #[test]
    fn a_segment_that_makes_no_sense_is_refused_at_once() {
        let (_, bytes) = report();
        let segment = 56 + 12 + 8 + 4 + 2;
        for at in [0, 1, 2, 3, 4, 7] {
            let mut damaged = bytes.clone();
            damaged[segment + at] ^= 0x80;
            let mut reader = ReportReader::open(&damaged[..]).unwrap();
            let error = reader.next_part(SEGMENT_BYTES).unwrap_err();
            assert!(matches!(error, ReportError::Damaged("a segment makes no sense")), "byte {at}: {error}");
        }
    }

    #[test]
    fn texts_that_are_too_long_cost_no_memory() {
        let (_, bytes) = report();
        for (length, is_too_long) in [(TEXTS_BYTES_MAX, false), (TEXTS_BYTES_MAX + 1, true)] {
            let mut damaged = bytes.clone();
            damaged[32..40].copy_from_slice(&(length as u64).to_le_bytes());
            let found = ReportReader::open(&damaged[..]).err().map(|error| error.to_string());
            let words = found.unwrap_or_default();
            assert_eq!(words.ends_with("its texts are too long"), is_too_long, "{length}: {words}");
        }
        assert_eq!(TEXTS_BYTES_MAX, 3 * 4100);
    }
}
