//! Whose an image at a plan's place is. Nothing but its journal proves that this plan made it: the journal names the file
//! by device and inode, and a file that got the number of one that was removed was made after that journal.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_copy::{Header, JournalError};
use drover_disk::{Disk, FileDisk};
use drover_mover::{journal_path, look, recorded_leaves};
use drover_plan::ImageFormat;
use drover_qcow2::{Qcow2Disk, Qcow2Options};

use crate::endpoint::holds_nothing;

/// What is at an image's place.
#[derive(Debug, PartialEq, Eq)]
pub enum Image {
    /// No file.
    Missing,
    /// An image that holds nothing, as one does that was made right before its run died.
    Blank,
    /// What this plan made, perhaps changed since.
    Ours,
    /// Something else, and why it counts as that.
    Others(String),
}

/// A file may look so much younger than its journal: clocks of file servers are a little ahead.
const BORN_AFTER_MAX: Duration = Duration::from_secs(10);

/// Judges the file at `path`, which a journal lies beside.
pub fn image_at(path: &Path, format: ImageFormat) -> std::io::Result<Image> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Image::Missing),
        Err(error) => return Err(error),
    };
    let header = match header_of(&journal_path(path)) {
        Ok(header) => header,
        // Nothing is written to an image before its journal has a beginning that can be read.
        Err(_) if is_blank(path, &meta, format) => return Ok(Image::Blank),
        Err(why) => return Ok(Image::Others(why)),
    };
    Ok(why_not(&meta, &header).map_or(Image::Ours, Image::Others))
}

/// Whether nothing of what the journal recorded is in the image any more, as far as some blocks tell: somebody put
/// something else into the same file. A converter and a guest leave much of it as it was copied.
pub fn holds_another(path: &Path, format: ImageFormat) -> bool {
    let disk: Option<Box<dyn Disk>> = match format {
        ImageFormat::Raw => FileDisk::open_for_verify(path).ok().map(|disk| Box::new(disk) as _),
        ImageFormat::Qcow2 => Qcow2Disk::open_for_verify(path).ok().map(|disk| Box::new(disk) as _),
    };
    let leaves = recorded_leaves(&journal_path(path)).ok();
    let held = disk.zip(leaves).and_then(|(disk, leaves)| look(disk.as_ref(), &leaves).ok());
    held.is_some_and(|held| held.is_another())
}

fn header_of(journal: &Path) -> Result<Header, String> {
    let at = journal.display();
    let unread = |error: std::io::Error| format!("its journal {at} cannot be read ({error})");
    Header::read(&mut File::open(journal).map_err(unread)?).map_err(|error| match error {
        JournalError::Io(error) => unread(error),
        other => format!("its journal {at} is no use ({other})"),
    })
}

fn why_not(meta: &Metadata, header: &Header) -> Option<String> {
    let tag = format!("file dev={} ino={}", meta.dev(), meta.ino());
    if header.target != Header::new(header.size, "", &tag, 1).target {
        return Some("its journal names another file".to_string());
    }
    let is_younger = meta.created().is_ok_and(|born| is_younger(born, header.epoch));
    is_younger.then(|| "it was made after its journal".to_string())
}

/// Whether a file was made after the run with this epoch began its journal; it made its image before.
fn is_younger(born: SystemTime, epoch: u64) -> bool {
    let began = UNIX_EPOCH + Duration::from_micros(epoch);
    born > began + BORN_AFTER_MAX
}

fn is_blank(path: &Path, meta: &Metadata, format: ImageFormat) -> bool {
    match format {
        ImageFormat::Raw => holds_nothing(path, meta),
        ImageFormat::Qcow2 => {
            Qcow2Disk::open(path, Qcow2Options::default()).is_ok_and(|disk| disk.was_empty())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::FileExt;

    use drover_copy::{Entry, Leaf};
    use drover_mover::{JournalFile, file_tag};
    use drover_types::BLOCK_BYTES;

    use super::*;

    const BLOCKS: u64 = 20;

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
        image_at(path, ImageFormat::Raw).unwrap()
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
        assert!(raw(&path) == Image::Ours && !holds_another(&path, ImageFormat::Raw));
        file.write_all_at(&vec![9; (BLOCKS * BLOCK_BYTES) as usize], 0).unwrap();
        assert!(holds_another(&path, ImageFormat::Raw), "something else in the same file");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(raw(&path), Image::Missing);
    }

    #[test]
    fn another_file_in_its_place_is_somebody_elses_also_with_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        assert!(why(&path).contains("names another file"), "{}", why(&path));
    }

    #[test]
    fn a_file_with_the_number_of_the_one_that_was_removed_is_younger_than_the_journal() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let epoch = 1000 * 1_000_000;
        assert!(!is_younger(at(0), epoch) && !is_younger(at(1010), epoch));
        assert!(is_younger(at(1011), epoch));
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        if std::fs::metadata(&path).unwrap().created().is_err() {
            println!("skipped in part: files here do not tell when they were made");
            return;
        }
        // As if the journal had been begun long ago.
        let header = Header { epoch: 1, ..header_of(&journal_path(&path)).unwrap() };
        let why = why_not(&std::fs::metadata(&path).unwrap(), &header);
        assert_eq!(why.as_deref(), Some("it was made after its journal"));
    }

    #[test]
    fn without_a_journal_that_can_be_read_only_what_holds_nothing_may_be_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let journal = journal_path(&path);
        let bytes = std::fs::read(&journal).unwrap();
        for (content, words) in [
            (&[][..], "not a drover journal"),
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
}
