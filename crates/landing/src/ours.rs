//! Whose an image at a plan's place is. Nothing but its journal proves that this plan made it: the journal names the file
//! by device and inode, and a file that got the number of one that was removed was made after that journal
//! (`drover_mover::naming`). A device may itself get another number, by a reboot or a remount; then the content shows whether
//! it is the image that is gone on with.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use drover_disk::{Disk, DiskError, DiskErrorKind, FileDisk, holds_nothing};
use drover_engine::{Cause, ProviderError};
use drover_mover::{Held, Naming, journal_path, look, naming, recorded_leaves, why_not_of};
use drover_plan::ImageFormat;
use drover_qcow2::Qcow2Disk;

/// What is at an image's place.
#[derive(Debug, PartialEq, Eq)]
pub enum Image {
    /// No file.
    Missing,
    /// An image that holds nothing, and of which no journal tells: its run died right after it was made, perhaps beside the
    /// journal of one that was removed.
    Blank,
    /// What this plan made, perhaps changed since.
    Ours,
    /// Of another plan, or of another disk, and why it counts as that.
    Plans(&'static str),
    /// Another file than its journal names: somebody else's, or this plan's on a device whose number has changed.
    Unnamed,
    /// Something else, and why it counts as that.
    Others(String),
}

/// Judges the file at `path`, which a journal lies beside, for a disk of this owner ([`PlannedVm::owner_of`]).
///
/// [`PlannedVm::owner_of`]: drover_plan::PlannedVm::owner_of
pub fn image_at(path: &Path, format: ImageFormat, owner: &str) -> std::io::Result<Image> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Image::Missing),
        Err(error) => return Err(error),
    };
    let tag = format!("file dev={} ino={}", meta.dev(), meta.ino());
    let journal = journal_path(path);
    let image = match naming(&journal, &tag, meta.created().ok()) {
        Naming::Named(header) => why_not_of(&header, owner).map_or(Image::Ours, Image::Plans),
        Naming::Unnamed(header) => {
            why_not_of(&header, owner).map_or(Image::Unnamed, |why| Image::Others(why.to_string()))
        }
        Naming::Useless(why) => Image::Others(why),
        Naming::Nothing => Image::Others(format!("its journal {} is empty", journal.display())),
    };
    Ok(match image {
        // Nothing is written to an image before it has a journal of its own, with a beginning that can be read.
        Image::Unnamed | Image::Others(_) if is_blank(path, format)? => Image::Blank,
        judged => judged,
    })
}

/// Whether a file that its journal does not name is this plan's all the same: many blocks of data were recorded, and
/// all that are looked at are so.
///
/// # Errors
/// As [`why_another`].
pub fn is_known_by_content(path: &Path, format: ImageFormat) -> Result<bool, ProviderError> {
    Ok(held(path, format)?.is_some_and(|held| held.is_surely_it()))
}

/// Why an image is not what the journal recorded, as far as some blocks tell: somebody put something else into the same
/// file. A converter and a guest leave much of it as it was copied.
///
/// # Errors
/// When the journal or the image cannot be read, which tells nothing of the kind.
pub fn why_another(path: &Path, format: ImageFormat) -> Result<Option<&'static str>, ProviderError> {
    Ok(match held(path, format)? {
        None => Some("it can no longer be read as an image that drover made"),
        Some(held) => held.is_another().then_some(NOTHING_AS_RECORDED),
    })
}

/// The same of an open disk that nothing but its content tells from another of its name. Where little data was recorded, all of it has to be
/// as recorded, and where none was, the disk has to hold nothing; `may_differ`: a converter wrote to it since, and such a disk is judged by what
/// it left.
///
/// # Errors
/// As [`why_another`].
pub fn why_another_disk(
    disk: &dyn Disk,
    journal: &Path,
    may_differ: bool,
    holds_something: &dyn Fn(&dyn Disk) -> Result<bool, DiskError>,
) -> Result<Option<&'static str>, ProviderError> {
    let name = Path::new(disk.name());
    let leaves = recorded_leaves(journal).map_err(|error| not_looked_at(name, error))?;
    if disk.size() != leaves.size().next_multiple_of(512) {
        return Ok(Some(ANOTHER_SIZE));
    }
    let held = look(disk, &leaves).map_err(|error| not_looked_at(name, error))?;
    Ok(match leaves.data_blocks() {
        _ if held.is_enough() || may_differ => held.is_another().then_some(NOTHING_AS_RECORDED),
        0 if holds_something(disk).map_err(|error| not_looked_at(name, error))? => Some(NOTHING_RECORDED),
        _ => (!held.is_all()).then_some(NOT_ALL_AS_RECORDED),
    })
}

/// How a look at an image ends that has another size than its journal says.
pub const ANOTHER_SIZE: &str = "it has another size than the disk";

const NOT_ALL_AS_RECORDED: &str = "its journal recorded little of it, and not all of that is as recorded: it may be another image of its name";

const NOTHING_RECORDED: &str = "it holds something, and its journal recorded no data in it";

/// How a look at some blocks of an image ends whose content is another's.
pub const NOTHING_AS_RECORDED: &str = "nothing that was looked at in it is as its journal recorded it";

/// What some blocks of an image hold of what its journal recorded; nothing if it is no image of the kind that drover makes.
fn held(path: &Path, format: ImageFormat) -> Result<Option<Held>, ProviderError> {
    let disk = match open(path, format) {
        Ok(disk) => disk,
        Err(error) if format == ImageFormat::Qcow2 && is_no_image(&error) => return Ok(None),
        Err(error) => return Err(not_looked_at(path, error)),
    };
    let leaves = recorded_leaves(&journal_path(path)).map_err(|error| not_looked_at(path, error))?;
    look(disk.as_ref(), &leaves).map(Some).map_err(|error| not_looked_at(path, error))
}

fn open(path: &Path, format: ImageFormat) -> Result<Box<dyn Disk>, DiskError> {
    Ok(match format {
        ImageFormat::Raw => Box::new(FileDisk::open_for_verify(path)?),
        ImageFormat::Qcow2 => Box::new(Qcow2Disk::open_for_verify(path)?),
    })
}

/// Whether it is the bytes of a file that are in the way, and not the reading of them.
fn is_no_image(error: &DiskError) -> bool {
    matches!(error.kind, DiskErrorKind::Corrupt | DiskErrorKind::Unsupported)
}

fn not_looked_at(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
    ProviderError::new(Cause::Target, format!("looking at what {} holds", path.display()))
        .because(error)
        .advise("see why it or its journal cannot be read, then the same command again")
}

/// Whether something lies at an image's place that no journal tells of: it is somebody else's.
pub fn is_in_the_way(path: &Path, format: ImageFormat) -> std::io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(!meta.is_file() || !is_blank(path, format)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(std::fs::symlink_metadata(path).is_ok()),
        Err(error) => Err(error),
    }
}

fn is_blank(path: &Path, format: ImageFormat) -> std::io::Result<bool> {
    match format {
        ImageFormat::Raw => holds_nothing(&File::open(path)?),
        // Opened to be written it would be mended, and it may be somebody else's.
        ImageFormat::Qcow2 => Ok(Qcow2Disk::open_for_verify(path).is_ok_and(|disk| disk.was_empty())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::FileExt;

    use drover_copy::{Entry, Header, Leaf};
    use drover_mover::{JournalFile, file_tag};
    use drover_qcow2::Qcow2Options;
    use drover_types::BLOCK_BYTES;

    use super::*;

    const BLOCKS: u64 = 20;
    const OWNER: &str = "plan p vm v disk 2000";

    /// An image of data, and its journal.
    fn image(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("image");
        let content: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(|at| (at / 997) as u8 | 1).collect();
        std::fs::write(&path, &content).unwrap();
        let leaves = content.chunks(BLOCK_BYTES as usize).map(Leaf::of).map(|leaf| match leaf {
            Leaf::Data(digest) => digest,
            Leaf::Zero => panic!("data"),
        });
        let tag = file_tag(&path).unwrap();
        let start =
            JournalFile::start(&journal_path(&path), content.len() as u64, "source", &tag, true).unwrap();
        let mut journal = start.journal;
        journal.append(&[Entry::Data { first: 0, leaves: leaves.collect() }]).unwrap();
        path
    }

    fn raw(path: &Path) -> Image {
        image_at(path, ImageFormat::Raw, OWNER).unwrap()
    }

    fn why(path: &Path) -> String {
        match raw(path) {
            Image::Others(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_plan_made_stays_its_own_though_a_guest_wrote_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        assert_eq!(raw(&path), Image::Ours);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&vec![9; 4 * BLOCK_BYTES as usize], 0).unwrap();
        assert!(raw(&path) == Image::Ours && why_another(&path, ImageFormat::Raw).unwrap().is_none());
        file.write_all_at(&vec![9; (BLOCKS * BLOCK_BYTES) as usize], 0).unwrap();
        assert_eq!(why_another(&path, ImageFormat::Raw).unwrap(), Some(NOTHING_AS_RECORDED));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(raw(&path), Image::Missing);
    }

    #[test]
    fn what_is_no_image_any_more_is_somebody_elses_and_what_cannot_be_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        // Its bytes are those of a raw image: somebody wrote one over the same file.
        let why = why_another(&path, ImageFormat::Qcow2).unwrap();
        assert!(why.is_some_and(|why| why.contains("no longer be read as an image")), "{why:?}");
        std::fs::remove_file(&path).unwrap();
        Qcow2Disk::create(&path, BLOCKS * BLOCK_BYTES, Qcow2Options::default()).unwrap();
        assert_eq!(why_another(&path, ImageFormat::Qcow2).unwrap(), Some(NOTHING_AS_RECORDED));
        let journal = journal_path(&path);
        std::fs::write(&journal, &std::fs::read(&journal).unwrap()[..100]).unwrap();
        assert!(
            why_another(&path, ImageFormat::Qcow2).is_err(),
            "a journal that cannot be read proves nothing"
        );
        std::fs::remove_file(&path).unwrap();
        assert!(why_another(&path, ImageFormat::Raw).is_err(), "nor does what cannot be opened");
    }

    #[test]
    fn another_file_in_its_place_is_unnamed_and_known_by_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        // As after a reboot: the bytes are the same, the numbers are not.
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        assert_eq!(raw(&path), Image::Unnamed);
        assert!(is_known_by_content(&path, ImageFormat::Raw).unwrap());
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[9; BLOCK_BYTES as usize], 3 * BLOCK_BYTES).unwrap();
        assert!(!is_known_by_content(&path, ImageFormat::Raw).unwrap(), "one block is somebody's");
        assert!(!is_known_by_content(&path, ImageFormat::Qcow2).unwrap(), "nor is it an image of that kind");
    }

    #[test]
    fn an_image_of_another_plan_is_told_as_that_even_if_it_holds_nothing_but_not_by_a_journal_of_another_file()
     {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let journal = |owner: &str, tag: &str| {
            let header = Header::new(BLOCKS * BLOCK_BYTES, "source", tag, 1).owned_by(owner);
            std::fs::write(journal_path(&path), header.encode()).unwrap();
        };
        let tag = file_tag(&path).unwrap();
        journal(OWNER, &tag);
        assert_eq!(raw(&path), Image::Ours);
        journal("plan p vm v disk 2001", &tag);
        assert!(matches!(raw(&path), Image::Plans(why) if why.contains("another disk")));
        File::create(&path).unwrap().set_len(BLOCKS * BLOCK_BYTES).unwrap();
        assert!(matches!(raw(&path), Image::Plans(_)), "a disk of zeros may be all that was copied");
        journal("plan q vm v disk 2000", "file dev=1 ino=2");
        assert_eq!(raw(&path), Image::Blank, "of an image that was removed");
    }

    #[test]
    fn without_a_journal_that_can_be_read_only_what_holds_nothing_may_be_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let journal = journal_path(&path);
        let bytes = std::fs::read(&journal).unwrap();
        for (content, words) in [
            (&[][..], "is empty"),
            (&bytes[..100], "not a drover journal"),
            (&[&bytes[..60], b"x", &bytes[61..]].concat(), "header is damaged"),
        ] {
            std::fs::write(&journal, content).unwrap();
            assert!(why(&path).contains(words), "{}", why(&path));
        }
        let blank = File::create(&path).unwrap();
        blank.set_len(BLOCKS * BLOCK_BYTES).unwrap();
        assert_eq!(raw(&path), Image::Blank);
    }

    #[test]
    fn looking_at_somebodys_image_changes_nothing_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        std::fs::rename(&path, folder.path().join("removed")).unwrap();
        drop(Qcow2Disk::create(&path, BLOCKS * BLOCK_BYTES, Qcow2Options::default()).unwrap());
        // Room behind its last cluster, as whoever writes it may have taken; a writer of ours would cut it off.
        let length = std::fs::metadata(&path).unwrap().len() + 5 * BLOCK_BYTES + 512;
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert_eq!(image_at(&path, ImageFormat::Qcow2, OWNER).unwrap(), Image::Blank);
        assert!(std::fs::read(&path).unwrap() == before, "it was written to");
    }

    #[test]
    fn a_blank_image_beside_the_journal_of_a_removed_one_may_be_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        // Kept, so that its number is not given out again.
        std::fs::rename(&path, folder.path().join("removed")).unwrap();
        File::create(&path).unwrap().set_len(BLOCKS * BLOCK_BYTES).unwrap();
        assert_eq!(raw(&path), Image::Blank);
        std::fs::remove_file(&path).unwrap();
        drop(Qcow2Disk::create(&path, BLOCKS * BLOCK_BYTES, Qcow2Options::default()).unwrap());
        assert_eq!(image_at(&path, ImageFormat::Qcow2, OWNER).unwrap(), Image::Blank);
    }
}
