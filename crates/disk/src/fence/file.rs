//! The highest epoch of a disk, kept in a file that outlives the server.
//!
//! ```text
//!   0  512  slot A: "drover fence 1 epoch 00000000000000000007 check 0123456789abcdef", blanks, line feed
//! 512  512  slot B: the same
//! ```
//!
//! A new epoch goes into the slot that does not hold the highest, so a torn write costs only an epoch
//! that nobody was told to be durable. The check is the first eight bytes of the BLAKE3 of what stands
//! before it. The file is locked while a server uses it: two servers on one disk could not fence it.
//!
//! A file is taken as a fence only if it is empty, of these slots and nothing behind them, or what is left of the first slot
//! of all that was cut off while it was written. Only a file that this server made is removed, or an empty one of the name
//! that drover gives to fences: a server that was killed left it.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Epoch;
use crate::open_locked;

/// Slots lie in disk sectors of their own, so that a write of one never tears the other.
const SLOT_BYTES: usize = 512;
const SLOTS: usize = 2;
const SUFFIX: &str = ".drover-fence";
const PREFIX: &str = "drover fence 1 epoch ";
const CHECK_BYTES: usize = 8;
/// How often it is opened that others removed.
const OPEN_ATTEMPTS_MAX: usize = 8;

/// The fence file that belongs to a target: its path with `.drover-fence` added.
pub fn fence_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(SUFFIX);
    PathBuf::from(name)
}

/// Whether a file is named as [`fence_path`] names them.
fn is_drovers(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(SUFFIX.as_bytes())
}

/// The highest epoch that a fence file tells at this moment, whoever holds it; 0 where there is none.
///
/// # Errors
/// When it cannot be read, or holds something else.
pub fn highest_in(path: &Path) -> Result<Epoch, FenceFileError> {
    let failed = |source| FenceFileError { op: "reading", path: path.to_path_buf(), source };
    match File::open(path) {
        Ok(file) => read(&file).map(|(highest, _)| highest).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(failed(error)),
    }
}

/// A fence file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{op} of fence file {}", path.display())]
pub struct FenceFileError {
    op: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// An open fence file.
#[derive(Debug)]
pub(crate) struct FenceFile {
    file: File,
    path: PathBuf,
    highest: Epoch,
    /// Where the next epoch goes.
    next: usize,
    /// Whether this made the file, or a server that was killed before any epoch came.
    is_made: bool,
}

impl FenceFile {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// When another server holds it, it cannot be read or written, or it holds something else: a fence
    /// that forgot its epoch would let in whom it kept out, so it is never made anew on its own.
    pub(crate) fn open(path: &Path) -> Result<FenceFile, FenceFileError> {
        let wrap = |op| move |source| FenceFileError { op, path: path.to_path_buf(), source };
        let is_made = Cell::new(false);
        let open = |path: &Path| {
            let (file, is_new) = open_or_make(path)?;
            is_made.set(is_new);
            Ok(file)
        };
        let file = open_locked(path, OPEN_ATTEMPTS_MAX, open, lock);
        let file = file.map_err(|(op, error)| wrap(op)(error))?;
        let (highest, slot) = read(&file).map_err(wrap("reading"))?;
        let is_left = is_drovers(path) && file.metadata().map_err(wrap("reading"))?.len() == 0;
        let (path, next) = (path.to_path_buf(), (slot + 1) % SLOTS);
        Ok(FenceFile { file, path, highest, next, is_made: is_made.get() || is_left })
    }

    pub(crate) fn highest(&self) -> Epoch {
        self.highest
    }

    /// Makes `epoch` durable.
    pub(crate) fn store(&mut self, epoch: Epoch) -> Result<(), FenceFileError> {
        let written = self
            .file
            .write_all_at(&encode(epoch), (self.next * SLOT_BYTES) as u64)
            .and_then(|()| self.file.sync_all())
            .and_then(|()| sync_folder(&self.path));
        written.map_err(|source| FenceFileError { op: "writing", path: self.path.clone(), source })?;
        self.highest = epoch;
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }
}

/// A file that was made here and that no epoch went into is not left behind.
impl Drop for FenceFile {
    fn drop(&mut self) {
        if self.is_made && self.highest == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens the file, or makes it; and whether it was made.
fn open_or_make(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match options.clone().create_new(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Ok((options.open(path)?, false))
                }
                made => Ok((made?, true)),
            }
        }
        there => Ok((there?, false)),
    }
}

fn lock(file: &File) -> io::Result<()> {
    crate::lock_file(file).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another drover serves this disk for writing; stop it first",
        ),
        other => other.into(),
    })
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The highest epoch and its slot. An empty file has seen none.
fn read(file: &File) -> io::Result<(Epoch, usize)> {
    let mut bytes = [0; SLOTS * SLOT_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            length => filled += length,
        }
    }
    let meta = file.metadata()?;
    let length = if meta.is_file() { meta.len() } else { u64::MAX };
    let slots = bytes.chunks(SLOT_BYTES).enumerate();
    let found = slots.filter_map(|(index, slot)| Some((decode(slot)?, index))).max();
    match found {
        Some(found) if length <= (SLOTS * SLOT_BYTES) as u64 => Ok(found),
        None if length <= SLOT_BYTES as u64 && never_whole(&bytes) => Ok((0, SLOTS - 1)),
        _ => {
            let text = "it holds no epoch drover wrote; if no earlier run can still be alive, remove it";
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}

/// Whether the first epoch ever was cut off while it was written, if there was one at all: a slot that
/// was once whole ends in a line feed.
fn never_whole(bytes: &[u8; SLOTS * SLOT_BYTES]) -> bool {
    let (first, second) = bytes.split_at(SLOT_BYTES);
    let written = first.iter().position(|byte| *byte == 0).unwrap_or(SLOT_BYTES).min(PREFIX.len());
    let ours = first[..written] == PREFIX.as_bytes()[..written];
    ours && first[SLOT_BYTES - 1] == 0 && second.iter().all(|byte| *byte == 0)
}

fn encode(epoch: Epoch) -> [u8; SLOT_BYTES] {
    let text = format!("{PREFIX}{epoch:020} check ");
    let line = format!("{text}{}", check(&text));
    let mut slot = [b' '; SLOT_BYTES];
    slot[..line.len()].copy_from_slice(line.as_bytes());
    slot[SLOT_BYTES - 1] = b'\n';
    slot
}

fn check(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes()[..CHECK_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(slot: &[u8]) -> Option<Epoch> {
    let text = std::str::from_utf8(slot).ok()?;
    let epoch = text.strip_prefix(PREFIX)?.get(..20)?.parse().ok()?;
    (encode(epoch) == slot).then_some(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_outlive_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.drover-fence");
        for (before, after) in [(0, 7), (7, 8), (8, u64::MAX)] {
            let mut file = FenceFile::open(&path).unwrap();
            assert_eq!(file.highest(), before);
            file.store(after).unwrap();
        }
        assert_eq!(FenceFile::open(&path).unwrap().highest(), u64::MAX);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1024, "it never grows");
    }

    #[test]
    fn a_second_server_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        let first = FenceFile::open(&path).unwrap();
        let error = FenceFile::open(&path).unwrap_err();
        assert!(path.exists());
        assert!(error.source.to_string().contains("another drover serves"), "{}", error.source);
        drop(first);
        assert!(!path.exists(), "no epoch came, so nothing is left");
    }

    #[test]
    fn a_write_torn_at_any_byte_leaves_the_epoch_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        let mut file = FenceFile::open(&path).unwrap();
        file.store(1).unwrap();
        file.store(2).unwrap();
        drop(file);
        let whole = std::fs::read(&path).unwrap();
        let next = encode(3);
        for torn in 0..SLOT_BYTES {
            let mut bytes = whole.clone();
            bytes[..torn].copy_from_slice(&next[..torn]);
            std::fs::write(&path, &bytes).unwrap();
            // Up to the last byte that differs the new epoch does not count, and never is it an error.
            let highest = FenceFile::open(&path).unwrap().highest();
            assert!(highest == 2 || (highest == 3 && bytes[..SLOT_BYTES] == next), "{torn}: {highest}");
        }
        for torn in 0..SLOT_BYTES {
            std::fs::write(&path, &encode(9)[..torn]).unwrap();
            assert_eq!(FenceFile::open(&path).unwrap().highest(), 0);
        }
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        let mut flipped = encode(7);
        flipped[30] ^= 1;
        // The head of a bare ext4 file system is zeros.
        let mut ext4 = vec![0; 65536];
        ext4[1080..1082].copy_from_slice(b"\x53\xef");
        let longer = [&encode(7)[..], &[0; 1024]].concat();
        for bytes in [&[b'x'; 4096][..], b"x", &flipped, &ext4, &longer, &[0; 1024]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(FenceFile::open(&path).is_err());
            assert!(std::fs::read(&path).unwrap() == bytes, "what is refused stays as it is");
        }
    }

    #[test]
    fn a_file_that_was_there_before_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        std::fs::write(&path, "").unwrap();
        drop(FenceFile::open(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn an_empty_file_that_a_killed_server_left_is_used_and_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = fence_path(&folder.path().join("disk"));
        std::fs::write(&path, "").unwrap();
        assert_eq!(highest_in(&path).unwrap(), 0);
        drop(FenceFile::open(&path).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        FenceFile::open(&path).unwrap().store(7).unwrap();
        assert_eq!(FenceFile::open(&path).unwrap().highest(), 7, "an epoch stays");
    }
}
