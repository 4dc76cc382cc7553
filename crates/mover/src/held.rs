//! Whether a target still holds what its journal says, as far as some blocks of it tell: something else may have been
//! put in its place or written to it since, which a journal alone cannot know.

use std::time::Duration;

use drover_copy::{Leaf, LeafTable};
use drover_disk::{Buffer, Disk, DiskError, DiskErrorKind, Request, Work};
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::there::leaves_there;

/// Recorded blocks of data that are looked at, and places at which blocks recorded as zeros are: 4 MiB each at most,
/// spread over the disk.
const LOOKED_AT_MAX: u64 = 64;

/// Tries to read them where that fails for now, and the pause after the first; the others are longer.
const LOOKS_MAX: u32 = 8;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Requests in flight while looking.
const LOOK_DEPTH: usize = 16;

/// So many blocks of data that all differ are no work of a converter or a guest: the image is another one.
const ANOTHER_MIN: u64 = 16;

/// So many blocks of data that are all as recorded are in no other image by chance.
const KNOWN_BY_MIN: u64 = 16;

/// What a look at a target found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Recorded blocks that were looked at.
    pub blocks: u64,
    /// Of these, the ones that are not as recorded.
    pub differing: u64,
    /// Blocks recorded as data that were looked at.
    data: u64,
    data_differing: u64,
}

impl Held {
    /// Whether every block that was looked at is as recorded.
    pub fn is_all(&self) -> bool {
        self.differing == 0
    }

    /// Whether enough is as recorded, and nothing else, to know the image by its content.
    pub fn is_surely_it(&self) -> bool {
        self.is_all() && self.data >= KNOWN_BY_MIN
    }

    /// Whether enough data was looked at to judge what a converter or a guest changed by what they left.
    pub fn is_enough(&self) -> bool {
        self.data >= ANOTHER_MIN
    }

    /// Whether so little is as recorded that this is not even what became of the disk that was recorded.
    pub fn is_another(&self) -> bool {
        self.is_enough() && self.data_differing == self.data
    }

    fn differs(&mut self, leaf: Option<Leaf>) {
        self.differing += 1;
        self.data_differing += u64::from(is_data(leaf));
    }
}

/// The recorded blocks that are looked at: of data at most 64, and as many of zeros, spread over the disk.
fn looked_at(leaves: &LeafTable) -> Vec<u64> {
    let stride = (leaves.data_blocks() / LOOKED_AT_MAX).max(1);
    let data = (0..leaves.blocks()).filter(|block| is_data(leaves.get(*block)));
    let data = data.step_by(stride as usize).take(LOOKED_AT_MAX as usize);
    let stride = (leaves.blocks() / LOOKED_AT_MAX).max(1);
    let places = (0..leaves.blocks()).step_by(stride as usize).take(LOOKED_AT_MAX as usize);
    data.chain(places.filter(|block| leaves.get(*block) == Some(Leaf::Zero))).collect()
}

/// Looks at some recorded blocks of a disk: where it is, if it can hash there, else by reading them.
///
/// # Errors
/// If they cannot be read, after some tries where that may pass.
pub fn look(disk: &dyn Disk, leaves: &LeafTable) -> Result<Held, DiskError> {
    look_at(disk, leaves, looked_at(leaves))
}

/// As [`look`], at these blocks.
pub(crate) fn look_at(disk: &dyn Disk, leaves: &LeafTable, mut left: Vec<u64>) -> Result<Held, DiskError> {
    // An end in the midst of the target's blocks may not be read by itself.
    left.retain(|block| leaves.span_of(*block).length == BLOCK_BYTES || disk.size() <= leaves.size());
    let data = left.iter().filter(|block| is_data(leaves.get(**block))).count() as u64;
    let mut held = Held { blocks: left.len() as u64, data, ..Held::default() };
    left.retain(|block| {
        let is_there = leaves.span_of(*block).end() <= disk.size();
        if !is_there {
            held.differs(leaves.get(*block));
        }
        is_there
    });
    let mut looks = 0;
    while !left.is_empty() {
        looks += 1;
        match look_once(disk, leaves, &mut left, &mut held) {
            Err(error) if error.kind == DiskErrorKind::Transient && looks < LOOKS_MAX => {
                std::thread::sleep(LOOK_PAUSE * looks);
            }
            result => result?,
        }
    }
    Ok(held)
}

/// Looks at blocks, and takes those off the list of which it is known now whether they are as recorded.
fn look_once(
    disk: &dyn Disk,
    leaves: &LeafTable,
    left: &mut Vec<u64>,
    held: &mut Held,
) -> Result<(), DiskError> {
    let mut found = |block: u64, leaf: Leaf| {
        if leaves.get(block) != Some(leaf) {
            held.differs(leaves.get(block));
        }
    };
    let spans: Vec<ByteSpan> = left.iter().map(|block| leaves.span_of(*block)).collect();
    if let Some(there) = leaves_there(disk, &spans)? {
        left.drain(..).zip(there).for_each(|(block, leaf)| found(block, leaf));
        return Ok(());
    }
    let mut lane = disk.open_lane()?;
    let depth = disk.limits().depth_max.clamp(1, LOOK_DEPTH);
    let mut wanted = left.clone().into_iter();
    let mut failure = None;
    // What is under way is waited for also when one fails: not every server outlives a client that does not.
    loop {
        while failure.is_none()
            && lane.in_flight() < depth
            && let Some(block) = wanted.next()
        {
            let span = leaves.span_of(block);
            let work = Work::Read(Buffer::zeroed(span.length as usize));
            lane.submit(Request { id: block, span, work });
        }
        let Some(completion) = lane.complete() else { break };
        match (completion.result, completion.work) {
            (Err(error), _) => failure = Some(error),
            (Ok(()), Work::Read(bytes)) => {
                found(completion.id, Leaf::of(&bytes));
                left.retain(|block| *block != completion.id);
            }
            (Ok(()), Work::Write(_) | Work::Zero) => unreachable!("only reads were asked for"),
        }
    }
    failure.map_or(Ok(()), Err)
}

fn is_data(leaf: Option<Leaf>) -> bool {
    matches!(leaf, Some(Leaf::Data(_)))
}

#[cfg(test)]
mod tests {
    use drover_disk::memory::{Effect, Nth};
    use drover_disk::{DiskOp, MemDisk};

    use super::*;

    const BLOCKS: u64 = 300;

    /// A disk of data with zeros in its second third, and what a journal says of it.
    fn recorded() -> (MemDisk, LeafTable) {
        let size = (BLOCKS * BLOCK_BYTES) as usize;
        let mut bytes: Vec<u8> = (0..size).map(|at| (at / 997) as u8 | 1).collect();
        bytes[size / 3..size / 3 * 2].fill(0);
        let mut leaves = LeafTable::new(size as u64);
        for (block, bytes) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
            leaves.set(block as u64, Leaf::of(bytes));
        }
        (MemDisk::new("t", bytes), leaves)
    }

    #[test]
    fn a_look_is_bounded_and_finds_what_was_changed_emptied_or_cut() {
        let (disk, leaves) = recorded();
        let held = look(&disk, &leaves).unwrap();
        assert!(held.is_all() && held.data == LOOKED_AT_MAX && held.blocks < 2 * LOOKED_AT_MAX, "{held:?}");
        assert!(held.is_surely_it() && !Held { data: KNOWN_BY_MIN - 1, ..held }.is_surely_it());
        assert_eq!(disk.counts().bytes_read, held.blocks * BLOCK_BYTES);
        let places = looked_at(&leaves);
        for block in [places[0], places[LOOKED_AT_MAX as usize - 1], *places.last().unwrap()] {
            let (disk, _) = recorded();
            disk.overwrite(block * BLOCK_BYTES + 7, b"x");
            let held = look(&disk, &leaves).unwrap();
            assert_eq!((held.differing, held.is_all(), held.is_another()), (1, false, false));
            assert!(!held.is_surely_it());
        }
        let blank = look(&MemDisk::blank("t", leaves.size()), &leaves).unwrap();
        assert!(!blank.is_all() && blank.is_another() && blank.differing == LOOKED_AT_MAX, "{blank:?}");
        let cut =
            look(&MemDisk::new("t", disk.content()[..BLOCK_BYTES as usize * 2].to_vec()), &leaves).unwrap();
        assert!(!cut.is_all() && !cut.is_another() && cut.is_enough(), "{cut:?}");
        let few = Held { data: ANOTHER_MIN - 1, data_differing: ANOTHER_MIN - 1, ..blank };
        assert!(!few.is_enough() && !few.is_another());
    }

    #[test]
    fn what_fails_for_now_is_read_again_and_what_fails_is_told() {
        let (disk, leaves) = recorded();
        disk.add_fault(DiskOp::Read, Nth::Only(3), Effect::Fail(DiskErrorKind::Transient));
        assert!(look(&disk, &leaves).unwrap().is_all());
        disk.add_fault(DiskOp::Read, Nth::From(1), Effect::Fail(DiskErrorKind::Failed));
        assert_eq!(look(&disk, &leaves).unwrap_err().kind, DiskErrorKind::Failed);
    }
}
