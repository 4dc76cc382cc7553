//! Whose a target is: decided here, for every command, by its journal and by what it holds.
//!
//! ```text
//! journal            what the target holds                            then it is
//! of another plan    anything                                         that plan's (`why_not_of`, `check_owner`)
//! none, or empty     nothing                                          blank
//! of another target  nothing                                          blank
//! names it           data as recorded, and no mark that is unrecorded  drover's own: gone on with
//! names it, no data  nothing but the source's own bytes                drover's own, killed before its first flush
//! any                anything else                                    somebody else's
//! ```
//!
//! Only what was seen while the target was locked counts: it is to be opened and locked first
//! (`drover_disk::LockedFile`), and nothing that was decided earlier is used.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_copy::{Header, JournalError, Leaf, LeafTable, Replay};
use drover_disk::device::{HEAD_BYTES, Signature, TAIL_BYTES, signatures};
use drover_disk::{Disk, DiskError, DiskErrorKind, DiskOp, read_span};
use drover_types::{BLOCK_BYTES, ByteSpan, ExtentKind};

use crate::blocks::recorded;
use crate::held::{look, look_at};
use crate::there::leaves_there;
use crate::transfer::{CopyJob, MoveError};

/// A file may look so much younger than its journal: clocks of file servers are a little ahead.
const BORN_AFTER_MAX: Duration = Duration::from_secs(10);

/// Epochs from here on are microseconds since 1970, of 2001 and later. In format 1 they counted runs.
const EPOCH_TIME_MIN: u64 = 1_000_000_000_000_000;

/// Blocks looked at in all of a target, and in what is allocated of it, beside its head and tail: 4 MiB each.
const SAMPLES: u64 = 64;

/// Extents of a target that are asked for to find samples.
const EXTENTS_MAX: usize = 4096;

/// What a journal says of the target it lies beside.
#[derive(Debug)]
pub enum Naming {
    /// There is none, or an empty one: its run ended before it began.
    Nothing,
    /// It is this target's.
    Named(Header),
    /// It is that of another target, or of this one on a device whose number has changed.
    Unnamed(Header),
    /// It proves nothing: why.
    Useless(String),
}

/// Reads the beginning of the journal of a target with this tag that was `born` then, if that is known: a file that got the
/// number of one that was removed was made after that one's journal.
pub fn naming(journal: &Path, tag: &str, born: Option<SystemTime>) -> Naming {
    let at = journal.display();
    let unread = |error: io::Error| Naming::Useless(format!("its journal {at} cannot be read ({error})"));
    let opened = File::open(journal).and_then(|file| Ok((file.metadata()?, file)));
    let (meta, mut file) = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Naming::Nothing,
        Err(error) => return unread(error),
    };
    if meta.is_file() && meta.len() == 0 {
        return Naming::Nothing;
    }
    let header = match Header::read(&mut file) {
        Ok(header) => header,
        Err(JournalError::Io(error)) => return unread(error),
        Err(error) => return Naming::Useless(format!("its journal {at} is no use ({error})")),
    };
    if header.target != Header::new(header.size, "", tag, 1).target {
        return Naming::Unnamed(header);
    }
    match born.is_some_and(|born| is_younger(born, began(meta.created().ok(), header.epoch))) {
        true => Naming::Useless("it was made after its journal".to_string()),
        false => Naming::Named(header),
    }
}

/// When a journal was begun, as far as its file and its epoch tell. The file's time is that of the image's own clock, which
/// may be another than this host's; it is later than the epoch also where the journal was rewritten, and the image was
/// drover's then.
fn began(journal_born: Option<SystemTime>, epoch: u64) -> Option<SystemTime> {
    let told = (epoch >= EPOCH_TIME_MIN).then(|| UNIX_EPOCH + Duration::from_micros(epoch));
    journal_born.max(told)
}

/// Whether a file was made after a run began its journal; it made its image before.
fn is_younger(born: SystemTime, began: Option<SystemTime>) -> bool {
    began.is_some_and(|began| born > began + BORN_AFTER_MAX)
}

/// What a journal says of an earlier copy to its target.
#[derive(Debug)]
pub enum Earlier {
    /// Nothing.
    Nothing,
    /// There was one, of whatever source; this is what it recorded.
    Half(Box<Replay>),
    /// It does not speak of this target: why.
    Other(String),
}

/// Reads the journal of a target with this tag, as [`naming`] does, with all it recorded.
pub fn earlier(journal: &Path, tag: &str, born: Option<SystemTime>) -> Earlier {
    match naming(journal, tag, born) {
        Naming::Nothing => Earlier::Nothing,
        Naming::Unnamed(_) => Earlier::Other(format!("{} belongs to another target", journal.display())),
        Naming::Useless(why) => Earlier::Other(why),
        Naming::Named(_) => match recorded(journal) {
            Ok(replay) => Earlier::Half(Box::new(replay)),
            Err(error) => Earlier::Other(format!("{error}: {}", error.source)),
        },
    }
}

/// A target that is open and locked, and what is to be told apart by.
pub struct FoundTarget<'a> {
    /// Where its journal would lie, if this run keeps one.
    pub journal: Option<&'a Path>,
    /// What tells it from another of its name.
    pub tag: &'a str,
    /// When it was made, if that is known.
    pub born: Option<SystemTime>,
    /// To look at it; nothing if it is no image of the kind that drover makes.
    pub disk: Option<&'a dyn Disk>,
    /// Whether it holds nothing that anybody would miss. Asked only if that decides.
    pub is_blank: &'a dyn Fn() -> Result<bool, DiskError>,
}

/// What a copy may do with its target.
#[derive(Debug)]
pub enum Standing {
    /// Nothing is there.
    Blank,
    /// A copy of drover's own stopped there half-way.
    Half(Box<Replay>),
    /// Something else is there, and why it counts as that if a journal is in play.
    Others(Option<String>),
}

/// Decides what a copy of `source` may do with a target.
///
/// # Errors
/// When either cannot be read.
pub fn judge(found: &FoundTarget<'_>, source: &dyn Disk) -> Result<Standing, DiskError> {
    let blank_or =
        |why: Option<String>| Ok(if (found.is_blank)()? { Standing::Blank } else { Standing::Others(why) });
    let half = match found.journal.map(|journal| earlier(journal, found.tag, found.born)) {
        None | Some(Earlier::Nothing) => return blank_or(None),
        Some(Earlier::Other(why)) => return blank_or(Some(why)),
        Some(Earlier::Half(half)) => half,
    };
    let is_same = half.header.is_of(&source.identity()) && half.header.size == source.size();
    if let Some(why) = why_anothers(&half, is_same) {
        return Ok(Standing::Others(Some(why.to_string())));
    }
    let source = is_same.then_some(source);
    Ok(match found.disk.map_or(Ok(Some(CHANGED.to_string())), |disk| why_others(disk, &half, source))? {
        None => Standing::Half(half),
        // What was recorded is gone: somebody's work, though nothing is there.
        Some(why) if half.leaves.data_blocks() > 0 => Standing::Others(Some(why)),
        Some(why) => return blank_or(Some(why)),
    })
}

/// Why a copy may not take what an earlier one of another source, or a plan, made.
fn why_anothers(half: &Replay, is_same_source: bool) -> Option<&'static str> {
    match half {
        Replay { header: Header { owner: Some(_), .. }, .. } => Some("it is the image of a plan"),
        Replay { complete: Some(_), .. } if !is_same_source => {
            Some("it is the finished copy of another source")
        }
        _ => None,
    }
}

/// Why a plan's disk, which tells itself by `owner`, may not take an image of which this is the journal's beginning.
/// Journals that do not say whose they are prove nothing either way: see [`check_owner`].
pub fn why_not_of(header: &Header, owner: &str) -> Option<&'static str> {
    let is_anothers = header.is_owned_by(owner) == Some(false);
    is_anothers.then_some("its journal says that it is the image of another plan, or of another disk")
}

/// Refuses a target that is another plan's, or the finished copy of another source.
///
/// # Errors
/// Then, and when its journal cannot be read.
pub(crate) fn check_owner(job: &CopyJob, journal: &Path, owner: &str, source: &str) -> Result<(), MoveError> {
    if job.target_is_new {
        return Ok(());
    }
    let why = match naming(journal, &job.target_tag, None) {
        Naming::Nothing | Naming::Useless(_) => None,
        Naming::Named(header) | Naming::Unnamed(header) => match header.is_owned_by(owner) {
            Some(_) => why_not_of(&header, owner),
            None => why_anothers(&recorded(journal)?, header.is_of(source)),
        },
    };
    let Some(why) = why else { return Ok(()) };
    let text =
        format!("{why}; choose another folder or name, or remove the target and its journal if it may go");
    Err(denied(job.target.as_ref(), text).into())
}

fn denied(target: &dyn Disk, text: String) -> DiskError {
    let (op, why) = (DiskOp::Open, io::Error::new(ErrorKind::PermissionDenied, text));
    DiskError::with_kind(DiskErrorKind::Denied, op, ByteSpan::new(0, 0), target.name(), why)
}

const CHANGED: &str = "it was changed since its journal was made";

/// Why what is on a target that its journal names is not what an earlier run of drover's left there, as far as some of its
/// blocks tell. `source` is what was copied, if that is to be had still in the same state.
///
/// # Errors
/// When either cannot be read.
pub fn why_others(
    target: &dyn Disk,
    half: &Replay,
    source: Option<&dyn Disk>,
) -> Result<Option<String>, DiskError> {
    if !look(target, &half.leaves)?.is_all() {
        return Ok(Some(CHANGED.to_string()));
    }
    let marks = unrecorded_marks(target, &half.leaves, source)?;
    if !marks.is_empty() {
        return Ok(Some(not_recorded(&marks)));
    }
    if half.leaves.data_blocks() > 0 {
        return Ok(None);
    }
    let is_unfinished = match source {
        Some(source) => holds_only(target, source)?,
        None => false,
    };
    Ok((!is_unfinished).then(|| "its journal recorded nothing of what it holds".to_string()))
}

fn not_recorded(marks: &[Signature]) -> String {
    let list: Vec<String> = marks.iter().map(Signature::to_string).collect();
    format!("its journal did not record what it holds: {}", list.join(", "))
}

/// Refuses a target that holds the mark of a file system or the like which neither its journal recorded nor the source has:
/// somebody put it there since. For plans, whose source may have changed since the earlier run, so that bytes that were
/// written and not recorded need not be the source's.
///
/// # Errors
/// Then, and when either cannot be read.
pub(crate) fn check_marks(target: &dyn Disk, leaves: &LeafTable, source: &dyn Disk) -> Result<(), DiskError> {
    let marks = unrecorded_marks(target, leaves, Some(source))?;
    if marks.is_empty() {
        return Ok(());
    }
    let text = format!("{}; if it may go, remove the target and its journal", not_recorded(&marks));
    Err(denied(target, text))
}

/// Marks in blocks of a target that were not recorded, and that the source does not have at the same place.
fn unrecorded_marks(
    target: &dyn Disk,
    leaves: &LeafTable,
    source: Option<&dyn Disk>,
) -> Result<Vec<Signature>, DiskError> {
    let size = leaves.size().min(target.size());
    let mut marks = marks_on(target, size)?;
    let blocks = marks.iter().map(|mark| mark.offset / BLOCK_BYTES);
    let recorded: Vec<u64> = blocks.filter(|block| leaves.get(*block).is_some()).collect();
    let as_recorded = look_at(target, leaves, recorded)?.is_all();
    marks.retain(|mark| !(as_recorded && leaves.get(mark.offset / BLOCK_BYTES).is_some()));
    if let Some(source) = source.filter(|source| !marks.is_empty() && source.size() >= size) {
        let there = marks_on(source, size)?;
        marks.retain(|mark| !there.contains(mark));
    }
    Ok(marks)
}

/// What the head and the tail of the first `size` bytes of a disk say.
fn marks_on(disk: &dyn Disk, size: u64) -> Result<Vec<Signature>, DiskError> {
    let (head, tail) = (size.min(HEAD_BYTES), size.min(TAIL_BYTES));
    let (head, tail) = (bytes_of(disk, 0, head)?, bytes_of(disk, size - tail, size)?);
    Ok(signatures(&head, &tail, size))
}

/// The bytes from `start` to `end`, read in whole blocks.
fn bytes_of(disk: &dyn Disk, start: u64, end: u64) -> Result<Vec<u8>, DiskError> {
    let mut bytes = Vec::new();
    let first = start / BLOCK_BYTES * BLOCK_BYTES;
    if first == end {
        return Ok(bytes);
    }
    let mut lane = disk.open_lane()?;
    for at in (first..end).step_by(BLOCK_BYTES as usize) {
        let span = ByteSpan::from_bounds(at, (at + BLOCK_BYTES).min(disk.size()));
        bytes.extend_from_slice(&read_span(lane.as_mut(), span)?);
    }
    bytes.truncate((end - first) as usize);
    Ok(bytes.split_off((start - first) as usize))
}

/// A kill ends a write to a file between two pages of memory.
const PAGE_BYTES: usize = 4096;

/// Whether nothing is on a target but zeros and the source's own bytes, as far as its head, its tail, and samples of all of
/// it and of what is allocated tell: a copy that was killed before it recorded anything.
fn holds_only(target: &dyn Disk, source: &dyn Disk) -> Result<bool, DiskError> {
    let mut table = LeafTable::new(source.size());
    if target.size() < source.size() {
        return Ok(false);
    }
    let blocks = samples(target, &table)?;
    let spans: Vec<ByteSpan> = blocks.iter().map(|block| table.span_of(*block)).collect();
    let leaves = match leaves_there(target, &spans)? {
        Some(leaves) => leaves,
        None => {
            let mut lane = target.open_lane()?;
            let leaf = |span: &ByteSpan| Ok(Leaf::of(&read_span(lane.as_mut(), *span)?));
            spans.iter().map(leaf).collect::<Result<Vec<Leaf>, DiskError>>()?
        }
    };
    let mut data = Vec::new();
    for (block, leaf) in blocks.into_iter().zip(leaves) {
        if leaf != Leaf::Zero {
            table.set(block, leaf);
            data.push(block);
        }
    }
    if look_at(source, &table, data.clone())?.is_all() {
        return Ok(true);
    }
    let (mut here, mut there) = (source.open_lane()?, target.open_lane()?);
    for span in data.into_iter().map(|block| table.span_of(block)) {
        let (of_source, of_target) = (read_span(here.as_mut(), span)?, read_span(there.as_mut(), span)?);
        let mut pages = of_source.chunks(PAGE_BYTES).zip(of_target.chunks(PAGE_BYTES));
        if !pages.all(|(of_source, of_target)| of_source == of_target || of_target.iter().all(|it| *it == 0))
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Blocks of a target to be looked at, each once and in order.
fn samples(target: &dyn Disk, table: &LeafTable) -> Result<Vec<u64>, DiskError> {
    let count = table.blocks();
    let allocated = allocated_blocks(target, table)?;
    let mut blocks: Vec<u64> = (0..HEAD_BYTES.div_ceil(BLOCK_BYTES).min(count)).collect();
    blocks.extend(count.saturating_sub(TAIL_BYTES.div_ceil(BLOCK_BYTES))..count);
    blocks.extend((0..count).step_by((count / SAMPLES).max(1) as usize));
    blocks.extend(allocated.iter().step_by((allocated.len() as u64 / SAMPLES).max(1) as usize));
    blocks.sort_unstable();
    blocks.dedup();
    // An end in the midst of the target's blocks may not be read by itself.
    blocks.retain(|block| table.span_of(*block).length == BLOCK_BYTES || target.size() <= table.size());
    Ok(blocks)
}

/// The first and the last block of each extent that is allocated, as far as the target tells.
fn allocated_blocks(target: &dyn Disk, table: &LeafTable) -> Result<Vec<u64>, DiskError> {
    let (mut at, mut blocks, mut seen) = (0, Vec::new(), 0);
    if !target.features().extents {
        return Ok(blocks);
    }
    while at < table.size() && seen < EXTENTS_MAX {
        let extents = target.extents(ByteSpan::from_bounds(at, table.size()))?;
        seen += extents.len().max(1);
        let Some(last) = extents.last() else { break };
        at = last.span.end();
        for extent in extents.iter().filter(|extent| extent.kind == ExtentKind::Allocated) {
            blocks.extend([extent.span.offset / BLOCK_BYTES, (extent.span.end() - 1) / BLOCK_BYTES]);
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use drover_copy::Entry;
    use drover_disk::MemDisk;

    use super::*;
    use crate::journal::JournalFile;

    const BLOCKS: u64 = 40;

    /// A disk of data with a partition table, and a journal of a copy of it to `t` that recorded these blocks.
    struct Scene {
        source: MemDisk,
        folder: tempfile::TempDir,
    }

    impl Scene {
        fn new(recorded: std::ops::Range<u64>) -> Scene {
            let mut bytes: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(|at| (at / 997) as u8 | 1).collect();
            bytes[512..520].copy_from_slice(b"EFI PART");
            let source = MemDisk::new("s", bytes);
            let folder = tempfile::tempdir().unwrap();
            let scene = Scene { source, folder };
            let size = scene.source.size();
            let journal = scene.folder.path().join("journal");
            let start = JournalFile::start(&journal, size, &scene.source.identity(), "t", true).unwrap();
            let mut journal = start.journal;
            for first in recorded {
                let at = (first * BLOCK_BYTES) as usize;
                let leaf = Leaf::of(&scene.source.content()[at..at + BLOCK_BYTES as usize]);
                let Leaf::Data(digest) = leaf else { panic!("data") };
                journal.append(&[Entry::Data { first, leaves: vec![digest] }]).unwrap();
            }
            scene
        }

        /// A target that holds these blocks of the source.
        fn target(&self, blocks: std::ops::Range<u64>) -> MemDisk {
            let target = MemDisk::blank("t", self.source.size());
            let (from, to) = ((blocks.start * BLOCK_BYTES) as usize, (blocks.end * BLOCK_BYTES) as usize);
            target.overwrite(from as u64, &self.source.content()[from..to]);
            target
        }

        fn judged(&self, target: &MemDisk, source: &MemDisk) -> Standing {
            let journal = self.folder.path().join("journal");
            let is_blank = || Ok(target.content().iter().all(|byte| *byte == 0));
            let found = FoundTarget {
                journal: Some(&journal),
                tag: "t",
                born: None,
                disk: Some(target),
                is_blank: &is_blank,
            };
            judge(&found, source).unwrap()
        }
    }

    fn is_half(standing: &Standing) -> bool {
        matches!(standing, Standing::Half(_))
    }

    fn why(standing: Standing) -> String {
        match standing {
            Standing::Others(Some(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn recorded_data_proves_a_target_until_something_else_is_put_there() {
        let scene = Scene::new(3..20);
        let target = scene.target(0..25);
        assert!(is_half(&scene.judged(&target, &scene.source)));
        // A file system where nothing was recorded.
        target.overwrite(1080, b"\x53\xef");
        assert!(why(scene.judged(&target, &scene.source)).contains("ext2/3/4 file system at byte 1080"));
        let target = scene.target(3..20);
        target.overwrite(7 * BLOCK_BYTES, b"x");
        assert!(why(scene.judged(&target, &scene.source)).contains("changed since"));
        let gone = why(scene.judged(&scene.target(0..0), &scene.source));
        assert!(gone.contains("changed since"), "somebody emptied it: {gone}");
        // Of another source it is gone on with as well: a half copy is worth nothing.
        let other = MemDisk::new("o", vec![9; 1 << 20]);
        assert!(is_half(&scene.judged(&scene.target(3..20), &other)));
    }

    #[test]
    fn a_journal_that_recorded_nothing_proves_only_the_sources_own_bytes() {
        let scene = Scene::new(0..0);
        for blocks in [0..0, 0..3, 0..BLOCKS, 17..18, BLOCKS - 1..BLOCKS] {
            let target = scene.target(blocks.clone());
            assert!(is_half(&scene.judged(&target, &scene.source)), "{blocks:?}");
        }
        let other = MemDisk::new("o", vec![9; 1 << 20]);
        assert!(matches!(scene.judged(&scene.target(0..0), &other), Standing::Blank));
        assert!(why(scene.judged(&scene.target(5..6), &other)).contains("recorded nothing"));
        for at in [1080, 3 * BLOCK_BYTES, 22 * BLOCK_BYTES + 9, BLOCKS * BLOCK_BYTES - 1] {
            let target = scene.target(2..4);
            target.overwrite(at, b"\x53\xef".get(..1).unwrap());
            assert!(why(scene.judged(&target, &scene.source)).contains("recorded nothing"), "{at}");
        }
    }

    #[test]
    fn a_write_that_a_kill_cut_short_leaves_the_sources_own_pages() {
        let scene = Scene::new(0..0);
        let target = scene.target(0..0);
        let (from, to) = ((9 * BLOCK_BYTES) as usize, (9 * BLOCK_BYTES) as usize + 3 * PAGE_BYTES);
        target.overwrite(from as u64, &scene.source.content()[from..to]);
        assert!(is_half(&scene.judged(&target, &scene.source)));
        target.overwrite(to as u64 + 5, b"x");
        assert!(why(scene.judged(&target, &scene.source)).contains("recorded nothing"));
    }

    #[test]
    fn a_plan_takes_its_image_unless_somebody_made_a_file_system_in_it() {
        let scene = Scene::new(0..0);
        let leaves = LeafTable::new(scene.source.size());
        let target = scene.target(0..7);
        // Of an earlier state of the source: it ran in between.
        target.overwrite(5 * BLOCK_BYTES, b"before");
        check_marks(&target, &leaves, &scene.source).unwrap();
        target.overwrite(1080, b"\x53\xef");
        let error = check_marks(&target, &leaves, &scene.source).unwrap_err();
        assert_eq!((error.kind, error.disk.as_str()), (DiskErrorKind::Denied, "t"));
        assert!(error.source.to_string().contains("ext2/3/4 file system"), "{}", error.source);
    }

    #[test]
    fn an_empty_journal_is_none_and_one_that_cannot_be_read_protects_what_is_there() {
        let scene = Scene::new(0..5);
        let journal = scene.folder.path().join("journal");
        let whole = std::fs::read(&journal).unwrap();
        for (bytes, words) in
            [(&whole[..100], "not a drover journal"), (&[7; 300][..], "not a drover journal")]
        {
            std::fs::write(&journal, bytes).unwrap();
            assert!(why(scene.judged(&scene.target(0..5), &scene.source)).contains(words));
            assert!(matches!(scene.judged(&scene.target(0..0), &scene.source), Standing::Blank));
        }
        std::fs::write(&journal, "").unwrap();
        assert!(matches!(scene.judged(&scene.target(0..0), &scene.source), Standing::Blank));
        assert!(matches!(scene.judged(&scene.target(0..5), &scene.source), Standing::Others(None)));
    }

    #[test]
    fn a_file_with_the_number_of_the_one_that_was_removed_is_younger_than_the_journal() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let (journal, born) = (2_000_000_000, |after: u64| at(2_000_000_000 + after));
        for began in [began(None, journal * 1_000_000), began(Some(at(journal)), 7)] {
            assert!(!is_younger(at(0), began) && !is_younger(born(10), began));
            assert!(is_younger(born(11), began));
        }
        let scene = Scene::new(0..0);
        let journal = scene.folder.path().join("journal");
        let later = SystemTime::now() + Duration::from_secs(60);
        assert!(
            matches!(naming(&journal, "t", Some(later)), Naming::Useless(why) if why.contains("after its journal"))
        );
        assert!(matches!(naming(&journal, "t", Some(SystemTime::now())), Naming::Named(_)));
        assert!(matches!(naming(&journal, "u", None), Naming::Unnamed(_)));
    }

    #[test]
    fn a_journal_that_tells_no_time_and_a_clock_that_is_ahead_make_no_image_younger() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(began(None, 7), None, "an epoch of format 1 counts runs");
        assert!(!is_younger(at(2_000_000_000), began(None, 7)));
        // A file server's clock, an hour ahead of this host's: of both files.
        let (host, server) = (2_000_000_000, 2_000_003_600);
        assert!(!is_younger(at(server), began(Some(at(server)), host * 1_000_000)));
        assert!(is_younger(at(server), began(None, host * 1_000_000)), "what the epoch alone would say");
    }
}
