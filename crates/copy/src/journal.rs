//! The journal's format, version 4. Integers are little endian. `docs/dev/journal.md` says the same.
//!
//! ```text
//! header, 128 bytes                       record, 32 + 32 n bytes
//!   0   8  magic "DROVERJ\n"                0   1  kind: 1 data leaves, 2 zero run, 3 complete,
//!   8   4  version = 3, or 4 with an owner          4 run, 5 pass begun, 6 pass complete, 7 forget
//!  12   4  block bytes = 65536              1   3  zero
//!  16   8  disk size in bytes               4   4  blocks, 1 to 4096 for kind 1; pass (kinds 5, 6)
//!  24  32  BLAKE3 of the source identity    8   8  first block (kinds 1, 2, 7), epoch (kind 4)
//!  56  32  BLAKE3 of the target identity   16 32n  leaves (kind 1), root (kinds 3, 6), frozen state
//!  88   8  epoch                                   (kind 5), nothing (kinds 2, 4, 7)
//!  96  16  owner, zeros if not told         .  16  check: BLAKE3 keyed by the header's hash,
//! 112  16  check: BLAKE3 of bytes 0..112,          over this record, first 16 bytes
//!          first 16 bytes
//! ```
//!
//! Records are appended only after the target has flushed the blocks they name. The check of a record
//! is keyed by its header, so a record of another journal does not pass for one of this. Reading stops
//! at the first record that is short or fails its check: what follows is copied again.

use std::io::{self, Read};

use drover_types::{BLOCK_BYTES, Digest};

use crate::blocks::BlockSet;
use crate::leaves::{Leaf, LeafTable};

/// No disk is larger: 1 PiB.
const DISK_BYTES_MAX: u64 = 1 << 50;

/// Blocks in one record of data leaves.
pub const RECORD_BLOCKS_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"DROVERJ\n";
const VERSION: u32 = 4;
/// The version of journals that name no owner: drover read it before it knew of owners.
const VERSION_UNOWNED: u32 = 3;
/// The first version with records of passes.
const VERSION_PASSES: u32 = 3;
/// Version 1 had no records of runs and is else the same.
const VERSION_OLDEST: u32 = 1;
const HEADER_BYTES: usize = 128;
const CHECK_BYTES: usize = 16;
const OWNER_BYTES: usize = 16;
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
    /// Hash of what tells whose the target is: the plan and its disk. Copies and older versions tell nothing.
    pub owner: Option<[u8; OWNER_BYTES]>,
}

impl Header {
    /// A header for these identities.
    pub fn new(size: u64, source: &str, target: &str, epoch: u64) -> Self {
        let (source, target) = (text_digest(source), text_digest(target));
        Header { size, source, target, epoch, version: VERSION_UNOWNED, owner: None }
    }

    /// The same, with this owner told.
    #[must_use]
    pub fn owned_by(self, owner: &str) -> Self {
        Header { owner: Some(owner_hash(owner)), version: VERSION, ..self }
    }

    /// Whether the target is that of this owner; nothing if it is not told whose it is.
    pub fn is_owned_by(&self, owner: &str) -> Option<bool> {
        self.owner.map(|told| told == owner_hash(owner))
    }

    /// Whether the journal is of this source. Journals of before drover looked at files' times of change name it
    /// without: they are gone on with, as the drover does that made them.
    pub fn is_of(&self, source: &str) -> bool {
        self.source == text_digest(source) || self.source == text_digest(&without_change_times(source))
    }

    /// Whether the journal is of a copy to this very target.
    pub fn is_to(&self, target: &str) -> bool {
        self.target == text_digest(target)
    }

    /// Whether records of passes may be appended to this journal.
    pub fn takes_passes(&self) -> bool {
        self.version >= VERSION_PASSES
    }

    /// The same in the newest version of the format.
    pub fn newest(self) -> Self {
        let version = if self.owner.is_some() { VERSION } else { VERSION_UNOWNED };
        Header { version, ..self }
    }

    /// Reads the header of a journal.
    ///
    /// # Errors
    /// If it is not sound or the reader fails.
    pub fn read(reader: &mut dyn Read) -> Result<Self, JournalError> {
        let mut head = [0; HEADER_BYTES];
        match read_full(reader, &mut head)? {
            HEADER_BYTES => Header::decode(&head),
            _ => Err(JournalError::NotAJournal),
        }
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
        bytes[96..112].copy_from_slice(&self.owner.unwrap_or_default());
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
        let size = u64::from_le_bytes(field(bytes, 16));
        // A forged header would have memory taken for a map of whatever size it names.
        if size > DISK_BYTES_MAX {
            return Err(JournalError::DamagedHeader);
        }
        let owner = Some(field(bytes, 96)).filter(|owner| *owner != [0; OWNER_BYTES]);
        if owner.is_some() && version <= VERSION_UNOWNED {
            return Err(JournalError::DamagedHeader);
        }
        Ok(Header {
            size,
            source: Digest(field(bytes, 24)),
            target: Digest(field(bytes, 56)),
            epoch: u64::from_le_bytes(field(bytes, 88)),
            version,
            owner,
        })
    }

    fn key(&self) -> [u8; 32] {
        *blake3::hash(&self.encode()).as_bytes()
    }
}

/// BLAKE3 of a text.
pub fn text_digest(text: &str) -> Digest {
    Digest(*blake3::hash(text.as_bytes()).as_bytes())
}

fn owner_hash(owner: &str) -> [u8; OWNER_BYTES] {
    field(&text_digest(owner).0, 0)
}

/// What stands before the time of change in the text that identifies a file.
const CHANGE_TIME: &str = " ctime=";

fn without_change_times(source: &str) -> String {
    let mut parts = source.split(CHANGE_TIME);
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.'));
    std::iter::once(first).chain(rest).collect()
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
    /// A pass begins: until it is complete, the target is in no state that the source ever had.
    PassBegun {
        /// Its number.
        number: u32,
        /// Hash of what tells the frozen state of the source; zeros if nothing does.
        frozen: Digest,
    },
    /// The pass is complete: the target is the source's frozen state.
    PassComplete {
        /// Its number.
        number: u32,
        /// Root of the hash tree.
        root: Digest,
    },
    /// These blocks may be overwritten from now on: what was recorded of them does not count any more.
    Forget {
        /// First block.
        first: u64,
        /// How many.
        count: u32,
    },
}

impl Entry {
    /// Its length in a journal.
    pub fn encoded_bytes(&self) -> u64 {
        let digests = match self {
            Entry::Data { leaves, .. } => leaves.len(),
            Entry::Complete(_) | Entry::PassBegun { .. } | Entry::PassComplete { .. } => 1,
            Entry::Zero { .. } | Entry::Run(_) | Entry::Forget { .. } => 0,
        };
        (FIXED_BYTES + digests * 32 + CHECK_BYTES) as u64
    }

    /// The beginning of a pass from a frozen state told by this text, if anything tells it.
    pub fn pass_begun(number: u32, frozen: Option<&str>) -> Self {
        Entry::PassBegun { number, frozen: frozen_digest(frozen) }
    }
}

fn frozen_digest(frozen: Option<&str>) -> Digest {
    frozen.map_or(NOT_TOLD, |text| Digest(*blake3::hash(text.as_bytes()).as_bytes()))
}

/// A frozen state that nothing tells from others.
const NOT_TOLD: Digest = Digest([0; 32]);

/// The last pass that a journal tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassRecord {
    /// Its number.
    pub number: u32,
    /// Whether it was completed.
    pub is_complete: bool,
    /// Blocks recorded since it began.
    pub recorded: BlockSet,
    frozen: Digest,
}

impl PassRecord {
    /// Whether it is this pass, from this frozen state.
    pub fn is(&self, number: u32, frozen: Option<&str>) -> bool {
        frozen.is_some() && (self.number, self.frozen) == (number, frozen_digest(frozen))
    }
}

/// The bytes of a record in the journal of `header`.
pub fn encode_entry(header: &Header, entry: &Entry) -> Vec<u8> {
    let (kind, count, first) = match entry {
        Entry::Data { first, leaves } => (1, leaves.len() as u32, *first),
        Entry::Zero { first, count } => (2, *count, *first),
        Entry::Complete(_) => (3, 0, 0),
        Entry::Run(epoch) => (4, 0, *epoch),
        Entry::PassBegun { number, .. } => (5, *number, 0),
        Entry::PassComplete { number, .. } => (6, *number, 0),
        Entry::Forget { first, count } => (7, *count, *first),
    };
    let mut bytes: Vec<u8> = vec![kind, 0, 0, 0];
    bytes.extend(count.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    match entry {
        Entry::Data { leaves, .. } => leaves.iter().for_each(|leaf| bytes.extend(leaf.0)),
        Entry::Complete(digest)
        | Entry::PassBegun { frozen: digest, .. }
        | Entry::PassComplete { root: digest, .. } => bytes.extend(digest.0),
        Entry::Zero { .. } | Entry::Run(_) | Entry::Forget { .. } => {}
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
    /// Root of a complete copy, or of the last pass if that is complete.
    pub complete: Option<Digest>,
    /// The last pass, if there was one.
    pub pass: Option<PassRecord>,
    /// Frozen states since which a later pass may be told what changed.
    pub bases: Bases,
    /// The highest epoch of a run that wrote here.
    pub epoch: u64,
    /// Bytes from the start that are sound; cut the file here before appending.
    pub sound_bytes: u64,
    /// Why reading stopped before the end of the file.
    pub damage: Option<Damage>,
}

/// A pass is asked from the last completed one; one disk is further than another by few passes.
const BASES_KEPT: usize = 16;

/// Frozen states of the source that the target has had all of, and those from which its copy began.
///
/// What changed since one of these brings the target up to date. What changed since any other state does not:
/// the target may be older.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bases(Vec<Digest>);

impl Bases {
    /// Whether the target has had all of the frozen state that this text tells.
    pub fn have(&self, frozen: &str) -> bool {
        self.0.contains(&frozen_digest(Some(frozen)))
    }

    /// Records that tell a rewritten journal of these (the last 16), to stand before its first leaf.
    pub fn entries(&self, number: u32) -> impl Iterator<Item = Entry> + '_ {
        let skipped = self.0.len().saturating_sub(BASES_KEPT);
        self.0.iter().skip(skipped).map(move |frozen| Entry::PassBegun { number, frozen: *frozen })
    }

    fn add(&mut self, frozen: Digest) {
        if frozen != NOT_TOLD && self.0.last() != Some(&frozen) {
            self.0.push(frozen);
        }
    }
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
    #[error("it has format version {0}, and this drover knows versions 1 to 4")]
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
    let header = Header::read(reader)?;
    let key = header.key();
    let leaves = LeafTable::new(header.size);
    let mut replay = Replay {
        header,
        leaves,
        complete: None,
        pass: None,
        bases: Bases::default(),
        epoch: header.epoch,
        sound_bytes: HEADER_BYTES as u64,
        damage: None,
    };
    loop {
        match read_record(reader, &header, &key)? {
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
                self.recorded(|set| set.insert(*first, leaves.len() as u64));
            }
            Entry::Zero { first, count } if fits(*first, u64::from(*count)) => {
                self.leaves.set_zero(*first, u64::from(*count));
                self.recorded(|set| set.insert(*first, u64::from(*count)));
            }
            Entry::Forget { first, count } if fits(*first, u64::from(*count)) => {
                self.leaves.forget(*first, u64::from(*count));
                self.recorded(|set| set.remove(*first, u64::from(*count)));
                self.complete = None;
            }
            Entry::Complete(root) => self.complete = Some(*root),
            Entry::Run(epoch) => self.epoch = self.epoch.max(*epoch),
            Entry::PassBegun { number, frozen } => self.begin_pass(*number, *frozen),
            Entry::PassComplete { number, root } => self.complete_pass(*number, *root),
            _ => return false,
        }
        true
    }

    fn recorded(&mut self, change: impl FnOnce(&mut BlockSet)) {
        if let Some(pass) = &mut self.pass {
            change(&mut pass.recorded);
        }
    }

    fn begin_pass(&mut self, number: u32, frozen: Digest) {
        if self.leaves.known_blocks() == 0 {
            // All that will be there is of this state or a later one.
            self.bases.add(frozen);
        }
        let recorded = BlockSet::none(self.header.size);
        self.pass = Some(PassRecord { number, is_complete: false, recorded, frozen });
        self.complete = None;
    }

    /// The end of a pass may stand alone: so a rewrite left it before it kept the beginning.
    fn complete_pass(&mut self, number: u32, root: Digest) {
        if self.pass.as_ref().is_none_or(|pass| pass.number != number) {
            self.begin_pass(number, NOT_TOLD);
        }
        self.complete = Some(root);
        if let Some(pass) = &mut self.pass {
            pass.is_complete = true;
            self.bases.add(pass.frozen);
        }
    }
}

enum Step {
    End,
    Bad(Damage),
    Record(Entry, u64),
}

fn read_record(reader: &mut dyn Read, header: &Header, key: &[u8; 32]) -> io::Result<Step> {
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
        5 | 6 if header.takes_passes() => 1,
        7 if header.takes_passes() => 0,
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
    let leaves: Vec<Digest> = body.chunks_exact(32).map(|chunk| Digest(field(chunk, 0))).collect();
    let first = u64::from_le_bytes(field(&fixed, 8));
    let entry = match (fixed[0], leaves.as_slice()) {
        (2, _) => Entry::Zero { first, count },
        (3, [root]) => Entry::Complete(*root),
        (4, _) => Entry::Run(first),
        (5, [frozen]) => Entry::PassBegun { number: count, frozen: *frozen },
        (6, [root]) => Entry::PassComplete { number: count, root: *root },
        (7, _) => Entry::Forget { first, count },
        _ => Entry::Data { first, leaves },
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
mod tests;
