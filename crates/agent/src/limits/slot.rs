//! Slots: files of which each is held, by its lock, by one that keeps to the limit of a site.
//!
//! ```text
//! "wants 00000000000025000000 takes 00000000000012500000", line feed
//! ```
//!
//! Beside them `turn`, locked by whoever looks at the others and tells its own: two at once would both take what is free.
//!
//! The lock ends with its process, also with one that is killed. The text is overwritten where it lies and is not
//! locked against readers: one that meets a write halfway has a wrong number for one look. Files stay for the next one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use drover_disk::open_locked;

use super::Part;
use crate::trust::{Folder, FolderError, check_name};

/// So many keep to the limit of one site; further ones get no slot.
pub const SLOTS_MAX: usize = 1024;

/// How often a slot is opened that others removed.
const OPEN_ATTEMPTS_MAX: usize = 8;

/// No text of a slot is longer.
const TEXT_BYTES_MAX: usize = 64;

/// Locked for a look; no number, so no slot.
const TURN: &str = "turn";

/// Who looks has its turn within 100 ms, or none: a look takes a few, and one that was stopped may hold it for long.
const TURN_ATTEMPTS_MAX: usize = 20;
const TURN_ATTEMPT_EVERY: Duration = Duration::from_millis(5);

/// A slot that is held until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Slot {
    folder: PathBuf,
    number: usize,
    file: File,
}

impl Slot {
    /// Takes the first one that is free.
    ///
    /// # Errors
    /// When the folder cannot be used, or all are held.
    pub fn claim(folder: &Folder, site: &str) -> Result<Slot, FolderError> {
        let folder = of_site(folder, site)?;
        for number in 0..SLOTS_MAX {
            let path = folder.join(number.to_string());
            match open_locked(&path, OPEN_ATTEMPTS_MAX, create, |file| Ok(file.try_lock()?)) {
                Ok(file) => return Ok(Slot { folder, number, file }),
                // Who only looks holds it for an instant: the next one is as good.
                Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err((op, error)) => return Err(FolderError::new(op, path, error)),
            }
        }
        let text = format!("{SLOTS_MAX} others keep to the limit of this site");
        Err(FolderError::new("taking a slot in", folder, io::Error::new(io::ErrorKind::QuotaExceeded, text)))
    }

    /// Whether it lies where others look: it may have been removed.
    pub fn is_in_place(&self) -> bool {
        let id = |file: std::fs::Metadata| (file.dev(), file.ino());
        let there = std::fs::metadata(self.path()).map(id);
        there.is_ok_and(|there| self.file.metadata().is_ok_and(|own| id(own) == there))
    }

    /// Finds one's part by what the others tell, and tells it, while no other does. One that has no turn does it even so:
    /// until the next look some may take too much then.
    ///
    /// # Errors
    /// When that cannot be read or written.
    pub fn exchange(&self, found: impl FnOnce(&[Part]) -> Part) -> Result<Part, FolderError> {
        let _turn = self.turn();
        let part = found(&self.others()?);
        self.tell(part)?;
        Ok(part)
    }

    fn turn(&self) -> Option<File> {
        let file = create(&self.folder.join(TURN)).ok()?;
        for _ in 0..TURN_ATTEMPTS_MAX {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) => sleep(TURN_ATTEMPT_EVERY),
                Err(TryLockError::Error(_)) => return None,
            }
        }
        None
    }

    /// Tells the others.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn tell(&self, part: Part) -> Result<(), FolderError> {
        let written = self.file.write_all_at(encode(part).as_bytes(), 0);
        written.map_err(|error| FolderError::new("writing", self.path(), error))
    }

    /// What the others tell.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn others(&self) -> Result<Vec<Part>, FolderError> {
        held(&self.folder, Some(self.number))
    }

    fn path(&self) -> PathBuf {
        self.folder.join(self.number.to_string())
    }
}

/// What all tell that keep to the limit of a site.
///
/// # Errors
/// When that cannot be read.
pub fn parts(folder: &Folder, site: &str) -> Result<Vec<Part>, FolderError> {
    held(&of_site(folder, site)?, None)
}

fn of_site(folder: &Folder, site: &str) -> Result<PathBuf, FolderError> {
    // Of a file that somebody wrote by hand.
    check_name(site).map_err(|error| {
        let path = PathBuf::from("the limits' folder");
        FolderError::new("naming", path, io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
    })?;
    folder.below(&["limits", site])
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn held(folder: &Path, but: Option<usize>) -> Result<Vec<Part>, FolderError> {
    let failed = |error| FolderError::new("reading", folder.to_path_buf(), error);
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<usize>().ok());
        if number.is_some_and(|number| number < SLOTS_MAX && Some(number) != but) {
            // One that cannot be looked at takes nothing from the sight of the others.
            parts.extend(part(&folder.join(name)).ok().flatten());
        }
    }
    Ok(parts)
}

/// What is told in a slot, if somebody holds it. Those who look do not hold it against each other.
fn part(path: &Path) -> io::Result<Option<Part>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match file.try_lock_shared() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut bytes = [0; TEXT_BYTES_MAX];
    let length = file.read_at(&mut bytes, 0)?;
    // Whoever holds it has not said yet what it wants.
    Ok(Some(decode(&bytes[..length]).unwrap_or_default()))
}

fn encode(part: Part) -> String {
    let Part { wants, takes } = part;
    format!("wants {wants:020} takes {takes:020}\n")
}

fn decode(bytes: &[u8]) -> Option<Part> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (wants, takes) = text.strip_prefix("wants ")?.split_once(" takes ")?;
    Some(Part { wants: wants.parse().ok()?, takes: takes.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn state() -> (tempfile::TempDir, Folder) {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        (state, folder)
    }

    #[test]
    fn each_sees_what_the_others_tell_for_as_long_as_they_are_there() {
        let (_state, folder) = state();
        let part = |takes| Part { wants: u64::MAX, takes };
        let slots: Vec<Slot> = (0..3).map(|_| Slot::claim(&folder, "site-b").unwrap()).collect();
        assert_eq!(slots[0].others().unwrap(), [Part::default(); 2], "nothing told yet");
        slots.iter().zip(1..).for_each(|(slot, takes)| slot.tell(part(takes)).unwrap());
        let mut others = slots[1].others().unwrap();
        others.sort_unstable_by_key(|part| part.takes);
        assert_eq!(others, [part(1), part(3)]);
        assert!(Slot::claim(&folder, "site-c").unwrap().others().unwrap().is_empty(), "another site");
        let [first, _, third] = <[Slot; 3]>::try_from(slots).unwrap();
        assert_eq!(parts(&folder, "site-b").unwrap().len(), 2);
        let again = Slot::claim(&folder, "site-b").unwrap();
        assert_eq!((first.number, again.number, third.number), (0, 1, 2), "a free one is taken again");
    }

    #[test]
    fn a_slot_that_somebody_removed_is_no_longer_in_place() {
        let (_state, folder) = state();
        let slot = Slot::claim(&folder, "site-b").unwrap();
        assert!(slot.is_in_place());
        std::fs::remove_file(slot.path()).unwrap();
        assert!(!slot.is_in_place());
        let _other = Slot::claim(&folder, "site-b").unwrap();
        assert!(!slot.is_in_place());
    }

    #[test]
    fn only_the_owner_may_look_and_no_name_leads_elsewhere() {
        let (state, folder) = state();
        let slot = Slot::claim(&folder, "site-b").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let limits = state.path().join("link/limits");
        assert_eq!([mode(&limits), mode(&limits.join("site-b")), mode(&slot.path())], [0o700, 0o700, 0o600]);
        for name in ["..", "../x", "a/b", "", "/tmp"] {
            assert!(Slot::claim(&folder, name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_told() {
        let (state, folder) = state();
        std::fs::write(state.path().join("link/limits"), "no folder").unwrap();
        let error = Slot::claim(&folder, "site-b").unwrap_err().to_string();
        assert!(error.contains("limits/site-b"), "{error}");
    }

    #[test]
    fn one_at_a_time_looks_and_tells_and_who_waits_too_long_goes_ahead() {
        let (_state, folder) = state();
        let [one, other] = [(); 2].map(|()| Slot::claim(&folder, "site-b").unwrap());
        let part = Part { wants: 9, takes: 5 };
        let told = one.exchange(|_| {
            assert!(other.turn().is_none());
            assert_eq!(other.exchange(|_| part).unwrap(), part);
            part
        });
        assert_eq!(told.unwrap(), part);
        assert!(other.turn().is_some());
        assert_eq!(other.others().unwrap(), [part], "the turn is no slot");
    }

    #[test]
    fn one_slot_that_cannot_be_read_hides_no_other() {
        let (state, folder) = state();
        let slots = [(); 2].map(|()| Slot::claim(&folder, "site-b").unwrap());
        let broken = state.path().join("link/limits/site-b/5");
        std::os::unix::fs::symlink(&broken, &broken).unwrap();
        assert_eq!(slots[0].others().unwrap().len(), 1);
    }

    #[test]
    fn texts_are_read_as_written_and_others_are_not() {
        for part in [Part::default(), Part { wants: u64::MAX, takes: 7 }] {
            assert_eq!(decode(encode(part).as_bytes()), Some(part));
            assert!(encode(part).len() <= TEXT_BYTES_MAX);
        }
        for bytes in [&b""[..], b"x", b"wants 1 takes 2", b"wants 1 takes \xff\n", b"wants -1 takes 2\n"] {
            assert_eq!(decode(bytes), None);
        }
    }
}
