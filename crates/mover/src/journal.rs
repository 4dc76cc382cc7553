//! The journal as a file next to the target: opened under a lock, judged, cut at its last sound
//! record, appended to and made durable.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use drover_copy::{Entry, Header, LeafTable, encode_entry, replay};
use drover_types::Digest;
use rustix::fs::{FlockOperation, flock};

/// The journal that belongs to a target file: its path with `.drover-journal` added.
pub fn journal_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".drover-journal");
    PathBuf::from(name)
}

/// What tells a target file from another that took its name: device and inode.
///
/// # Errors
/// If the file is not there.
pub fn file_tag(path: &Path) -> io::Result<String> {
    let meta = std::fs::metadata(path)?;
    Ok(format!("file dev={} ino={}", meta.dev(), meta.ino()))
}

/// A journal open for one run.
#[derive(Debug)]
pub struct JournalFile {
    file: File,
    path: PathBuf,
    header: Header,
}

/// How a run begins.
#[derive(Debug)]
pub struct JournalStart {
    /// The journal, ready to be appended to.
    pub journal: JournalFile,
    /// What is on the target already.
    pub leaves: LeafTable,
    /// Root of a copy that an earlier run completed.
    pub complete: Option<Digest>,
    /// What the user should know: resumed from where, or why not.
    pub note: Option<String>,
}

/// A journal that cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("{op} of journal {}", path.display())]
pub struct JournalFileError {
    /// What was being done.
    pub op: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl JournalFile {
    /// Opens or makes the journal at `path` for a copy of `size` bytes between these two.
    ///
    /// A journal of the same source state and the same target is continued; any other is started
    /// again, and `note` says why. With `target_is_new`, nothing an older journal says can be true.
    ///
    /// # Errors
    /// If another process holds it, or it cannot be read or written.
    pub fn start(
        path: &Path,
        size: u64,
        source: &str,
        target: &str,
        target_is_new: bool,
    ) -> Result<JournalStart, JournalFileError> {
        let wrap = |op| move |source| JournalFileError { op, path: path.to_path_buf(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(wrap("opening"))?;
        lock(&file).map_err(wrap("locking"))?;
        let wanted = Header::new(size, source, target, 1);
        let old = judge(&mut file, &wanted, target_is_new).map_err(wrap("reading"))?;
        let start = match old {
            Old::Continue { header, leaves, complete, sound_bytes, note } => {
                file.set_len(sound_bytes).map_err(wrap("cutting"))?;
                let journal = JournalFile { file, path: path.to_path_buf(), header };
                JournalStart { journal, leaves, complete, note: Some(note) }
            }
            Old::StartAgain { epoch, note } => {
                let header = Header { epoch, ..wanted };
                file.set_len(0).map_err(wrap("cutting"))?;
                file.seek(SeekFrom::Start(0)).map_err(wrap("writing"))?;
                file.write_all(&header.encode()).map_err(wrap("writing"))?;
                let journal = JournalFile { file, path: path.to_path_buf(), header };
                JournalStart { journal, leaves: LeafTable::new(size), complete: None, note }
            }
        };
        start.journal.sync_with_folder().map_err(wrap("syncing"))?;
        Ok(start)
    }

    /// Appends records and makes them durable.
    ///
    /// # Errors
    /// If they cannot be written; the copy may go on, but a resume would start from before them.
    pub fn append(&mut self, entries: &[Entry]) -> Result<(), JournalFileError> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| encode_entry(&self.header, entry)).collect();
        self.append_bytes(&bytes).map_err(|source| JournalFileError {
            op: "writing",
            path: self.path.clone(),
            source,
        })
    }

    /// The journal's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn sync_with_folder(&self) -> io::Result<()> {
        self.file.sync_all()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

fn lock(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another drover is copying to this target; wait for it or stop it",
        ),
        other => other.into(),
    })
}

enum Old {
    Continue { header: Header, leaves: LeafTable, complete: Option<Digest>, sound_bytes: u64, note: String },
    StartAgain { epoch: u64, note: Option<String> },
}

fn judge(file: &mut File, wanted: &Header, target_is_new: bool) -> io::Result<Old> {
    if file.metadata()?.len() == 0 {
        return Ok(Old::StartAgain { epoch: 1, note: None });
    }
    file.seek(SeekFrom::Start(0))?;
    let old = match replay(&mut BufReader::with_capacity(1 << 20, &*file)) {
        Ok(old) => old,
        Err(drover_copy::JournalError::Io(error)) => return Err(error),
        Err(error) => {
            return Ok(Old::StartAgain { epoch: 1, note: Some(format!("journal started again: {error}")) });
        }
    };
    let epoch = old.header.epoch.saturating_add(1);
    let again = |why: &str| {
        let note = Some(format!("copy started again from the beginning: {why}"));
        Ok(Old::StartAgain { epoch, note })
    };
    if target_is_new {
        return again("the target of the earlier try is gone");
    }
    if old.header.size != wanted.size {
        return again("the source has another size than when the journal was made");
    }
    if old.header.target != wanted.target {
        return again("the journal belongs to another target");
    }
    if old.header.source != wanted.source {
        return again("the source has changed since the journal was made");
    }
    let known = (old.leaves.known_blocks() * drover_types::BLOCK_BYTES).min(wanted.size);
    let mut note = format!("resumed: {} of {} are on the target", sized(known), sized(wanted.size));
    if let Some(damage) = old.damage {
        note.push_str(&format!("; the journal was cut at byte {}, because {damage}", old.sound_bytes));
    }
    Ok(Old::Continue {
        header: old.header,
        leaves: old.leaves,
        complete: old.complete,
        sound_bytes: old.sound_bytes,
        note,
    })
}

fn sized(bytes: u64) -> drover_types::Bytes {
    drover_types::Bytes(bytes)
}
