//! The journal's format, version 2. Integers are little endian. `docs/journal.md` says the same.
//!
//! ```text
//! header, 128 bytes                       record, 32 + 32 n bytes
//!   0   8  magic "DROVERJ\n"                0   1  kind: 1 data leaves, 2 zero run, 3 complete, 4 run
//!   8   4  version = 2                      1   3  zero
//!  12   4  block bytes = 65536              4   4  blocks, 1 to 4096 for kind 1
//!  16   8  disk size in bytes               8   8  first block (kinds 1, 2), epoch (kind 4)
//!  24  32  BLAKE3 of the source identity   16 32n  leaves (kind 1), root (kind 3), nothing (kind 2)
//!  56  32  BLAKE3 of the target identity    .  16  check: BLAKE3 keyed by the header's hash,
//!  88   8  epoch                                   over this record, first 16 bytes
//!  96  16  zero
//! 112  16  check: BLAKE3 of bytes 0..112, first 16 bytes
//! ```
//!
//! Records are appended only after the target has flushed the blocks they name. The check of a record
//! is keyed by its header, so a record of another journal does not pass for one of this. Reading stops
//! at the first record that is short or fails its check: what follows is copied again.

use std::io::{self, Read};

use drover_types::{BLOCK_BYTES, Digest};

use crate::leaves::{Leaf, LeafTable};

/// No disk is larger: 1 PiB.
const DISK_BYTES_MAX: u64 = 1 << 50;

/// Blocks in one record of data leaves.
pub const RECORD_BLOCKS_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"DROVERJ\n";
const VERSION: u32 = 2;
/// Version 1 had no records of runs and is else the same.
const VERSION_OLDEST: u32 = 1;
const HEADER_BYTES: usize = 128;
const CHECK_BYTES: usize = 16;
const FIXED_BYTES: usize = 16;

/// What a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size of the disk.
    pub size: u64,
    /// Hash of what identifies the source and its state.
    pub source: Digest,
    /// Hash of what identifies the target.
    pub target: Digest,
    /// Epoch of the run that made the journal; a later run takes a larger one.
    pub epoch: u64,
    /// Version of the format it was written in.
    pub version: u32,
}

impl Header {
    /// A header for these identities.
    pub fn new(size: u64, source: &str, target: &str, epoch: u64) -> Self {
        let hash = |text: &str| Digest(*blake3::hash(text.as_bytes()).as_bytes());
        Header { size, source: hash(source), target: hash(target), epoch, version: VERSION }
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.source.0);
        bytes[56..88].copy_from_slice(&self.target.0);
        bytes[88..96].copy_from_slice(&self.epoch.to_le_bytes());
        let check = blake3::hash(&bytes[..112]);
        bytes[112..].copy_from_slice(&check.as_bytes()[..CHECK_BYTES]);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, JournalError> {
        if bytes[..8] != MAGIC {
            return Err(JournalError::NotAJournal);
        }
        let version = u32::from_le_bytes(field(bytes, 8));
        if !(VERSION_OLDEST..=VERSION).contains(&version) {
            return Err(JournalError::Version(version));
        }
        if blake3::hash(&bytes[..112]).as_bytes()[..CHECK_BYTES] != bytes[112..] {
            return Err(JournalError::DamagedHeader);
        }
        let block_bytes = u32::from_le_bytes(field(bytes, 12));
        if u64::from(block_bytes) != BLOCK_BYTES {
            return Err(JournalError::BlockBytes(block_bytes));
        }
        Ok(Header {
            size: u64::from_le_bytes(field(bytes, 16)),
            source: Digest(field(bytes, 24)),
            target: Digest(field(bytes, 56)),
            epoch: u64::from_le_bytes(field(bytes, 88)),
            version,
        })
    }

    fn key(&self) -> [u8; 32] {
        *blake3::hash(&self.encode()).as_bytes()
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Leaves of consecutive data blocks; 1 to [`RECORD_BLOCKS_MAX`] of them.
    Data {
        /// First block.
        first: u64,
        /// Their digests.
        leaves: Vec<Digest>,
    },
    /// Consecutive blocks that read as zeros.
    Zero {
        /// First block.
        first: u64,
        /// How many.
        count: u32,
    },
    /// The copy is complete and has this root.
    Complete(Digest),
    /// A run of this epoch goes on with the copy; from here on runs of lower ones must not write.
    Run(u64),
}

/// The bytes of a record in the journal of `header`.
pub fn encode_entry(header: &Header, entry: &Entry) -> Vec<u8> {
    let (kind, count, first): (u8, u32, u64) = match entry {
        Entry::Data { first, leaves } => (1, leaves.len() as u32, *first),
        Entry::Zero { first, count } => (2, *count, *first),
        Entry::Complete(_) => (3, 0, 0),
        Entry::Run(epoch) => (4, 0, *epoch),
    };
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(count.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    match entry {
        Entry::Data { leaves, .. } => leaves.iter().for_each(|leaf| bytes.extend(leaf.0)),
        Entry::Complete(root) => bytes.extend(root.0),
        Entry::Zero { .. } | Entry::Run(_) => {}
    }
    let check = blake3::keyed_hash(&header.key(), &bytes);
    bytes.extend(&check.as_bytes()[..CHECK_BYTES]);
    bytes
}

/// What a journal tells.
#[derive(Debug)]
pub struct Replay {
    /// Its header.
    pub header: Header,
    /// Blocks that are on the target for certain.
    pub leaves: LeafTable,
    /// Root of a complete copy.
    pub complete: Option<Digest>,
    /// The highest epoch of a run that wrote here.
    pub epoch: u64,
    /// Bytes from the start that are sound; cut the file here before appending.
    pub sound_bytes: u64,
    /// Why reading stopped before the end of the file.
    pub damage: Option<Damage>,
}

/// What was wrong with the first record that is not sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file ends inside a record: the process or the host died while writing it.
    #[error("it ends inside a record")]
    TornTail,
    /// A record fails its check.
    #[error("a record fails its check")]
    FailedCheck,
    /// A record passes its check but makes no sense.
    #[error("a record names blocks that the disk does not have")]
    OutOfRange,
}

/// A journal that cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The magic is wrong, or the file is too short.
    #[error("it is not a drover journal")]
    NotAJournal,
    /// The header fails its check.
    #[error("its header is damaged")]
    DamagedHeader,
    /// Another version.
    #[error("it has format version {0}, and this drover knows versions 1 and 2")]
    Version(u32),
    /// Another block size.
    #[error("it has blocks of {0} bytes, and this drover uses 65536")]
    BlockBytes(u32),
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// Reads a journal to its end, or to the first record that is not sound.
///
/// # Errors
/// If the header is not sound or the reader fails; damage further on is part of the answer.
pub fn replay(reader: &mut dyn Read) -> Result<Replay, JournalError> {
    let mut head = [0; HEADER_BYTES];
    match read_full(reader, &mut head)? {
        HEADER_BYTES => {}
        _ => return Err(JournalError::NotAJournal),
    }
    let header = Header::decode(&head)?;
    // A forged header would have memory taken for a map of whatever size it names.
    if header.size > DISK_BYTES_MAX {
        return Err(JournalError::DamagedHeader);
    }
    let key = header.key();
    let leaves = LeafTable::new(header.size);
    let mut replay = Replay {
        header,
        leaves,
        complete: None,
        epoch: header.epoch,
        sound_bytes: HEADER_BYTES as u64,
        damage: None,
    };
    loop {
        match read_record(reader, &key)? {
            Step::End => return Ok(replay),
            Step::Bad(damage) => {
                replay.damage = Some(damage);
                return Ok(replay);
            }
            Step::Record(entry, bytes) => {
                if !replay.apply(&entry) {
                    replay.damage = Some(Damage::OutOfRange);
                    return Ok(replay);
                }
                replay.sound_bytes += bytes;
            }
        }
    }
}

impl Replay {
    /// Takes in a record; false if it does not fit the disk.
    fn apply(&mut self, entry: &Entry) -> bool {
        let blocks = self.leaves.blocks();
        let fits = |first: u64, count: u64| first.checked_add(count).is_some_and(|end| end <= blocks);
        match entry {
            Entry::Data { first, leaves } if fits(*first, leaves.len() as u64) => {
                for (block, leaf) in (*first..).zip(leaves) {
                    self.leaves.set(block, Leaf::Data(*leaf));
                }
            }
            Entry::Zero { first, count } if fits(*first, u64::from(*count)) => {
                self.leaves.set_zero(*first, u64::from(*count));
            }
            Entry::Complete(root) => self.complete = Some(*root),
            Entry::Run(epoch) => self.epoch = self.epoch.max(*epoch),
            _ => return false,
        }
        true
    }
}

enum Step {
    End,
    Bad(Damage),
    Record(Entry, u64),
}

fn read_record(reader: &mut dyn Read, key: &[u8; 32]) -> io::Result<Step> {
    let mut fixed = [0; FIXED_BYTES];
    match read_full(reader, &mut fixed)? {
        0 => return Ok(Step::End),
        FIXED_BYTES => {}
        _ => return Ok(Step::Bad(Damage::TornTail)),
    }
    let count = u32::from_le_bytes(field(&fixed, 4));
    let digests = match fixed[0] {
        1 if (1..=RECORD_BLOCKS_MAX as u32).contains(&count) => count as usize,
        2 | 4 => 0,
        3 => 1,
        _ => return Ok(Step::Bad(Damage::FailedCheck)),
    };
    let mut rest = vec![0; digests * 32 + CHECK_BYTES];
    if read_full(reader, &mut rest)? != rest.len() {
        return Ok(Step::Bad(Damage::TornTail));
    }
    let (body, check) = rest.split_at(digests * 32);
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&fixed).update(body);
    if hasher.finalize().as_bytes()[..CHECK_BYTES] != *check {
        return Ok(Step::Bad(Damage::FailedCheck));
    }
    let mut leaves = body.chunks_exact(32).map(|chunk| Digest(field(chunk, 0)));
    let first = u64::from_le_bytes(field(&fixed, 8));
    let entry = match (fixed[0], leaves.len()) {
        (1, _) => Entry::Data { first, leaves: leaves.collect() },
        (2, _) => Entry::Zero { first, count },
        (4, _) => Entry::Run(first),
        _ => leaves.next().map_or(Entry::Zero { first, count: 0 }, Entry::Complete),
    };
    Ok(Step::Record(entry, (FIXED_BYTES + rest.len()) as u64))
}

fn read_full(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header::new(10 * BLOCK_BYTES, "source", "target", 3)
    }

    fn sample() -> Vec<u8> {
        let header = header();
        let mut bytes = header.encode().to_vec();
        bytes.extend(encode_entry(
            &header,
            &Entry::Data { first: 1, leaves: vec![Digest([7; 32]), Digest([8; 32])] },
        ));
        bytes.extend(encode_entry(&header, &Entry::Zero { first: 4, count: 6 }));
        bytes.extend(encode_entry(&header, &Entry::Complete(Digest([9; 32]))));
        bytes
    }

    #[test]
    fn what_was_written_is_read_back() {
        let bytes = sample();
        let replay = replay(&mut &bytes[..]).unwrap();
        assert_eq!((replay.header, replay.damage), (header(), None));
        assert_eq!(replay.leaves.get(2), Some(Leaf::Data(Digest([8; 32]))));
        assert_eq!((replay.leaves.get(0), replay.leaves.get(9)), (None, Some(Leaf::Zero)));
        assert_eq!((replay.complete, replay.sound_bytes), (Some(Digest([9; 32])), bytes.len() as u64));
    }

    #[test]
    fn a_journal_cut_at_any_byte_keeps_its_whole_records() {
        let bytes = sample();
        let ends = [128, 128 + 96, 128 + 96 + 32, bytes.len()];
        for cut in 128..bytes.len() {
            let replay = replay(&mut &bytes[..cut]).unwrap();
            let expected = ends.iter().filter(|end| **end <= cut).max().unwrap();
            assert_eq!(replay.sound_bytes, *expected as u64, "cut at {cut}");
            assert_eq!(replay.damage.is_some(), cut != *expected, "cut at {cut}");
        }
        for cut in 0..128 {
            assert!(matches!(replay(&mut &bytes[..cut]), Err(JournalError::NotAJournal)));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let bytes = sample();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            match replay(&mut &damaged[..]) {
                Err(_) => assert!(at < 128, "header error from byte {at}"),
                Ok(replay) => {
                    assert!(at >= 128 && replay.damage.is_some(), "byte {at}");
                    assert!(replay.sound_bytes as usize <= at);
                }
            }
        }
    }

    #[test]
    fn a_record_of_another_journal_is_refused() {
        let other = Header { epoch: 4, ..header() };
        let mut bytes = header().encode().to_vec();
        bytes.extend(encode_entry(&other, &Entry::Zero { first: 0, count: 1 }));
        assert_eq!(replay(&mut &bytes[..]).unwrap().damage, Some(Damage::FailedCheck));
    }

    #[test]
    fn blocks_beyond_the_disk_are_refused() {
        for entry in [
            Entry::Zero { first: 10, count: 1 },
            Entry::Zero { first: u64::MAX, count: 2 },
            Entry::Data { first: 9, leaves: vec![Digest([1; 32]); 2] },
        ] {
            let mut bytes = header().encode().to_vec();
            bytes.extend(encode_entry(&header(), &entry));
            assert_eq!(replay(&mut &bytes[..]).unwrap().damage, Some(Damage::OutOfRange));
        }
    }

    #[test]
    fn a_forged_size_costs_no_memory() {
        let header = Header::new(u64::MAX, "source", "target", 1).encode();
        assert!(matches!(replay(&mut &header[..]), Err(JournalError::DamagedHeader)));
    }

    #[test]
    fn a_record_of_no_blocks_or_too_many_is_refused() {
        let header = Header::new((RECORD_BLOCKS_MAX as u64 + 1) * BLOCK_BYTES, "source", "target", 1);
        for (count, damage) in [
            (0, Some(Damage::FailedCheck)),
            (RECORD_BLOCKS_MAX, None),
            (RECORD_BLOCKS_MAX + 1, Some(Damage::FailedCheck)),
        ] {
            let entry = Entry::Data { first: 0, leaves: vec![Digest([1; 32]); count] };
            let bytes = [&header.encode()[..], &encode_entry(&header, &entry)].concat();
            assert_eq!(replay(&mut &bytes[..]).unwrap().damage, damage, "{count} blocks");
        }
    }

    /// Gives a byte at a time, is interrupted each time before, and fails in the end.
    struct Slow<'a> {
        bytes: &'a [u8],
        interrupted: bool,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.interrupted = !self.interrupted;
            match self.bytes.split_first() {
                _ if self.interrupted => Err(io::ErrorKind::Interrupted.into()),
                Some((first, rest)) => {
                    (buffer[0], self.bytes) = (*first, rest);
                    Ok(1)
                }
                None => Err(io::ErrorKind::PermissionDenied.into()),
            }
        }
    }

    #[test]
    fn interrupted_reads_go_on_and_failed_ones_do_not() {
        let bytes = sample();
        let error = replay(&mut Slow { bytes: &bytes, interrupted: false }).unwrap_err();
        assert!(matches!(&error, JournalError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied));
        let chained = Slow { bytes: &bytes, interrupted: false }.take(bytes.len() as u64);
        let whole = replay(&mut { chained }).unwrap();
        assert_eq!((whole.damage, whole.sound_bytes), (None, bytes.len() as u64));
    }
}
