//! The journal as a file next to the target: opened under a lock, judged, cut at its last sound
//! record, appended to and made durable.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{SystemTime, UNIX_EPOCH};

use drover_copy::{
    Bases, Entry, Header, JournalError, Leaf, LeafTable, PassRecord, Replay, encode_entry, replay,
};
use drover_disk::open_locked;
use drover_types::Digest;

/// The journal that belongs to a target file: its path with `.drover-journal` added.
pub fn journal_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".drover-journal");
    PathBuf::from(name)
}

/// Where a journal lies that cannot lie beside its disk, as that of a block device or of another site's: in the state folder, by
/// what the disk is known by. `/dev` is made anew at each boot, and its names change.
pub fn journal_in(state: &Path, tag: &str) -> PathBuf {
    let name: String =
        tag.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(100).collect();
    let digits = match Leaf::of(tag.as_bytes()) {
        Leaf::Data(digest) => digest.short(),
        Leaf::Zero => "0".to_string(),
    };
    state.join("journals").join(format!("{name}-{digits}.drover-journal"))
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
    epoch: u64,
    /// Frozen states that the target had when it was opened.
    bases: Bases,
    claim: Arc<Claim>,
}

/// A run's hold on its target, looked at before every write.
///
/// The lock on the journal keeps a second run out as long as this one lives on the same host. Where a
/// lock can be lost without the holder's knowledge (a network file system after a partition), another
/// run may take over, and then the journal shows it: it is longer than this run made it, shorter, or gone.
#[derive(Debug)]
pub struct Claim {
    file: File,
    /// The journal's length lies between these: they differ while a record is being appended.
    least: AtomicU64,
    most: AtomicU64,
}

impl Claim {
    fn of(file: &File) -> io::Result<Arc<Claim>> {
        let length = file.metadata()?.len();
        let claim = Claim { file: file.try_clone()?, least: length.into(), most: length.into() };
        Ok(Arc::new(claim))
    }

    /// Fails if another run has taken over.
    ///
    /// # Errors
    /// Then, and when the journal cannot be looked at.
    pub fn check(&self) -> io::Result<()> {
        // Records may be appended meanwhile: both only grow, so the length lies between what one was before it was
        // looked at and what the other was after.
        let least = self.least.load(SeqCst);
        let meta = self.file.metadata()?;
        let is_ours = (least..=self.most.load(SeqCst)).contains(&meta.len());
        if is_ours && meta.nlink() > 0 {
            return Ok(());
        }
        let text = "another run has taken this target over, so this one writes nothing more";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
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
    /// The last pass, if the copy is made in passes.
    pub pass: Option<PassRecord>,
    /// Whether the journal that was found recorded data of this target, of whatever source.
    pub had_data: bool,
    /// How much of an earlier try is there to go on with.
    pub resumed: Option<String>,
    /// What else the user should know: why it is not gone on with, or what was wrong.
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
        JournalFile::start_as(path, Header::new(size, source, target, 1), source, target_is_new)
    }

    /// As [`JournalFile::start`], with a header that may name an owner. That the target is not another's was seen to
    /// before ([`crate::owner`]).
    pub(crate) fn start_as(
        path: &Path,
        wanted: Header,
        source: &str,
        target_is_new: bool,
    ) -> Result<JournalStart, JournalFileError> {
        let size = wanted.size;
        let wrap = |op| move |source| JournalFileError { op, path: path.to_path_buf(), source };
        let mut file =
            open_locked(path, OPEN_ATTEMPTS_MAX, open, lock).map_err(|(op, source)| wrap(op)(source))?;
        let old = judge(&mut file, &wanted, source, target_is_new).map_err(wrap("reading"))?;
        let last = match &old {
            Old::Continue { old, .. } => old.epoch,
            Old::StartAgain { epoch, .. } => *epoch,
        };
        let epoch = new_epoch(last);
        match old {
            Old::Continue { old, resumed, note } => {
                let Replay { header, leaves, complete, pass, bases, sound_bytes, .. } = *old;
                file.set_len(sound_bytes).map_err(wrap("cutting"))?;
                file.write_all(&encode_entry(&header, &Entry::Run(epoch))).map_err(wrap("writing"))?;
                let journal = JournalFile::opened(file, path, header, epoch, bases)?;
                let had_data = leaves.data_blocks() > 0;
                Ok(JournalStart { journal, leaves, complete, pass, had_data, resumed: Some(resumed), note })
            }
            Old::StartAgain { had_data, note, .. } => {
                let header = Header { epoch, ..wanted };
                if file.metadata().map_err(wrap("reading"))?.len() > 0 {
                    file = replace(path, &header).map_err(wrap("replacing"))?;
                } else {
                    file.write_all(&header.encode()).map_err(wrap("writing"))?;
                }
                let journal = JournalFile::opened(file, path, header, epoch, Bases::default())?;
                let leaves = LeafTable::new(size);
                Ok(JournalStart {
                    journal,
                    leaves,
                    complete: None,
                    pass: None,
                    had_data,
                    resumed: None,
                    note,
                })
            }
        }
    }

    /// What was written to it so far is made durable.
    fn opened(
        file: File,
        path: &Path,
        header: Header,
        epoch: u64,
        bases: Bases,
    ) -> Result<JournalFile, JournalFileError> {
        let wrap = |op| move |source| JournalFileError { op, path: path.to_path_buf(), source };
        let claim = Claim::of(&file).map_err(wrap("reading"))?;
        let journal = JournalFile { file, path: path.to_path_buf(), header, epoch, bases, claim };
        journal.sync_with_folder().map_err(wrap("syncing"))?;
        Ok(journal)
    }

    /// Whether all of the frozen state that this text tells is on the target.
    pub(crate) fn has_had(&self, frozen: &str) -> bool {
        self.bases.have(frozen)
    }

    /// Appends records and makes them durable.
    ///
    /// # Errors
    /// If they cannot be written; the copy may go on, but a resume would start from before them.
    pub fn append(&mut self, entries: &[Entry]) -> Result<(), JournalFileError> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| encode_entry(&self.header, entry)).collect();
        self.append_bytes(&bytes).map_err(|source| self.error("writing", source))
    }

    /// Sees to it that records of passes can be appended: an older format is rewritten.
    ///
    /// # Errors
    /// If that fails; then all is as it was.
    pub(crate) fn take_passes(&mut self, leaves: &LeafTable) -> Result<(), JournalFileError> {
        if self.header.takes_passes() { Ok(()) } else { self.rewrite(leaves, &[], &[]) }
    }

    /// Rewrites a journal that has become more than twice as long as it need be, so that passes without
    /// end do not make it grow without end. `pass` is the beginning and the end of the last one.
    ///
    /// # Errors
    /// If that fails; then all is as it was.
    pub(crate) fn compact(
        &mut self,
        leaves: &LeafTable,
        number: u32,
        pass: [Entry; 2],
    ) -> Result<(), JournalFileError> {
        let length = self.file.metadata().map_err(|source| self.error("reading", source))?.len();
        if length <= REWRITE_BYTES_MIN {
            return Ok(());
        }
        let needed: u64 = leaves.entries().map(|entry| entry.encoded_bytes()).sum();
        if length <= 2 * needed {
            return Ok(());
        }
        let [begun, complete] = pass;
        let before: Vec<Entry> = self.bases.entries(number).chain([begun]).collect();
        self.rewrite(leaves, &before, &[complete])
    }

    fn rewrite(
        &mut self,
        leaves: &LeafTable,
        before: &[Entry],
        after: &[Entry],
    ) -> Result<(), JournalFileError> {
        self.put_rewritten(leaves, before, after).map_err(|source| self.error("rewriting", source))
    }

    /// The new file is whole and durable before it takes the old one's place: whenever this run dies, one
    /// of both lies there.
    fn put_rewritten(&mut self, leaves: &LeafTable, before: &[Entry], after: &[Entry]) -> io::Result<()> {
        let header = self.header.newest();
        let (file, new) = open_beside(&self.path)?;
        let mut out = BufWriter::with_capacity(1 << 20, &file);
        out.write_all(&header.encode())?;
        out.write_all(&encode_entry(&header, &Entry::Run(self.epoch)))?;
        let entries = before.iter().cloned().chain(leaves.entries()).chain(after.iter().cloned());
        for entry in entries {
            out.write_all(&encode_entry(&header, &entry))?;
        }
        out.flush()?;
        drop(out);
        file.sync_all()?;
        self.claim.check()?;
        let claim = Claim::of(&file)?;
        std::fs::rename(&new, &self.path)?;
        (self.file, self.header, self.claim) = (file, header, claim);
        self.sync_with_folder()
    }

    fn error(&self, op: &'static str, source: io::Error) -> JournalFileError {
        JournalFileError { op, path: self.path.clone(), source }
    }

    /// This run's epoch: larger than that of every run before it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What is to be looked at before every write.
    pub fn claim(&self) -> Arc<Claim> {
        self.claim.clone()
    }

    /// The journal's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.append_unsynced(bytes)?;
        self.file.sync_data()
    }

    fn append_unsynced(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.claim.check()?;
        let length = self.file.metadata()?.len() + bytes.len() as u64;
        self.claim.most.store(length, SeqCst);
        self.file.write_all(bytes)?;
        self.claim.least.store(length, SeqCst);
        Ok(())
    }

    fn sync_with_folder(&self) -> io::Result<()> {
        self.file.sync_all()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// A journal that is no longer than this is never rewritten.
const REWRITE_BYTES_MIN: u64 = 256 << 10;

/// The size that the disk had when the journal at `path` was made, if it was made for this source and
/// target.
///
/// # Errors
/// If there is a journal and it cannot be read.
pub(crate) fn recorded_size(
    path: &Path,
    source: &str,
    target: &str,
) -> Result<Option<u64>, JournalFileError> {
    let failed = |source| JournalFileError { op: "reading", path: path.to_path_buf(), source };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let ours = Header::new(0, source, target, 1);
    match Header::read(&mut file) {
        Ok(header) if header.is_of(source) && header.target == ours.target => Ok(Some(header.size)),
        Ok(_) => Ok(None),
        Err(JournalError::Io(error)) => Err(failed(error)),
        // It will be started again.
        Err(_) => Ok(None),
    }
}

/// An epoch for a new run: the time in microseconds, so that runs without a common journal are in
/// order as well, but in any case larger than the last one.
pub fn new_epoch(last: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64);
    now.max(last.saturating_add(1))
}

/// How often a journal is opened in whose place others put a new one.
const OPEN_ATTEMPTS_MAX: usize = 100;

/// Appending only: what a run that was given up for dead still adds never overwrites what is there.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path)
}

/// Puts a locked file that begins a journal in the place of another. The old one is not emptied, so that the run that
/// made it, should it still live, sees that its journal is gone.
fn replace(path: &Path, header: &Header) -> io::Result<File> {
    let (file, new) = begin_beside(path, header)?;
    std::fs::rename(&new, path)?;
    Ok(file)
}

/// The beginning of a journal beside the one at `path`, durable, so that whenever this run dies a journal that can be read
/// lies there: the target has data, and without one nobody could tell whose.
fn begin_beside(path: &Path, header: &Header) -> io::Result<(File, PathBuf)> {
    let (mut file, new) = open_beside(path)?;
    file.write_all(&header.encode())?;
    file.sync_all()?;
    Ok((file, new))
}

/// An empty, locked file that is to take the place of the journal at `path`, and where it lies until then.
fn open_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let file = open(&new)?;
    lock(&file)?;
    file.set_len(0)?;
    Ok((file, new))
}

fn lock(file: &File) -> io::Result<()> {
    drover_disk::lock_file(file).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another drover is copying to this target; wait for it or stop it",
        ),
        other => other.into(),
    })
}

enum Old {
    Continue { old: Box<Replay>, resumed: String, note: Option<String> },
    StartAgain { epoch: u64, had_data: bool, note: Option<String> },
}

fn judge(file: &mut File, wanted: &Header, source: &str, target_is_new: bool) -> io::Result<Old> {
    if file.metadata()?.len() == 0 {
        return Ok(Old::StartAgain { epoch: 0, had_data: false, note: None });
    }
    file.seek(SeekFrom::Start(0))?;
    let old = match replay(&mut BufReader::with_capacity(1 << 20, &*file)) {
        Ok(old) => old,
        Err(JournalError::Io(error)) => return Err(error),
        Err(error) => {
            let note = Some(format!("journal started again: {error}"));
            return Ok(Old::StartAgain { epoch: 0, had_data: false, note });
        }
    };
    let epoch = old.epoch;
    let had_data = old.header.target == wanted.target && old.leaves.data_blocks() > 0;
    let again = |why: &str| {
        let note = Some(format!("copy started again from the beginning: {why}"));
        Ok(Old::StartAgain { epoch, had_data, note })
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
    if !old.header.is_of(source) {
        return again("the source has changed since the journal was made");
    }
    let known = (old.leaves.known_blocks() * drover_types::BLOCK_BYTES).min(wanted.size);
    let resumed = format!("resumed: {} of {} are on the target", sized(known), sized(wanted.size));
    let cut = |damage| format!("the journal was cut at byte {}, because {damage}", old.sound_bytes);
    let note = old.damage.map(cut);
    Ok(Old::Continue { old: Box::new(old), resumed, note })
}

fn sized(bytes: u64) -> drover_types::Bytes {
    drover_types::Bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("drover-claim-{}-{name}", std::process::id()))
    }

    fn start(path: &Path) -> JournalFile {
        JournalFile::start(path, 1 << 20, "source", "target", false).unwrap().journal
    }

    /// As a network file system does after a partition: the holder is not asked.
    fn lose_lock(journal: &JournalFile) {
        flock(&journal.file, FlockOperation::Unlock).unwrap();
    }

    #[test]
    fn a_run_that_lost_its_lock_and_its_target_writes_nothing_more() {
        let path = path("taken");
        let mut old = start(&path);
        old.append(&[Entry::Zero { first: 0, count: 3 }]).unwrap();
        old.claim().check().unwrap();
        assert!(JournalFile::start(&path, 1 << 20, "source", "target", false).is_err(), "the lock holds");
        lose_lock(&old);
        let mut new = start(&path);
        assert!(new.epoch() > old.epoch());
        assert_eq!(old.claim().check().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(old.append(&[Entry::Zero { first: 3, count: 3 }]).is_err());
        new.claim().check().unwrap();
        new.append(&[Entry::Zero { first: 6, count: 1 }]).unwrap();
        drop(new);
        let again = JournalFile::start(&path, 1 << 20, "source", "target", false).unwrap();
        assert_eq!(again.leaves.known_blocks(), 4, "nothing of what the old run appended late");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_run_that_records_while_it_looks_never_takes_itself_for_another() {
        let path = path("own");
        let mut journal = start(&path);
        let (claim, is_over, looks) = (journal.claim(), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    claim.check().unwrap();
                    looks.fetch_add(1, SeqCst);
                }
            });
            // Without the wait for the disk, so that many records meet many looks.
            let mut records = 0;
            while (records < 20_000 || looks.load(SeqCst) < 1000) && !looking.is_finished() {
                journal.append_unsynced(&[0; 40]).unwrap();
                records += 1;
            }
            is_over.store(true, SeqCst);
            looking.join().unwrap();
        });
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_journal_started_again_or_removed_ends_the_run_as_well() {
        let path = path("gone");
        let old = start(&path);
        lose_lock(&old);
        let new = JournalFile::start(&path, 1 << 20, "other source", "target", false).unwrap().journal;
        assert!(old.claim().check().is_err(), "as long as before, but another file");
        new.claim().check().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(new.claim().check().is_err());
    }

    #[test]
    fn a_journal_that_takes_anothers_place_can_be_read_before_it_is_there() {
        let path = path("whole");
        drop(start(&path));
        let before = std::fs::read(&path).unwrap();
        let header = Header::new(1 << 20, "other source", "target", 7);
        let (file, new) = begin_beside(&path, &header).unwrap();
        // As if the run died here, and then an instant later.
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(Header::read(&mut File::open(&new).unwrap()).unwrap(), header);
        drop(file);
        drop(replace(&path, &header).unwrap());
        assert!(!new.exists(), "what a run that died left beside it is taken");
        assert_eq!(Header::read(&mut File::open(&path).unwrap()).unwrap(), header);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn epochs_grow_even_when_the_clock_stands_in_the_past() {
        assert_eq!(new_epoch(u64::MAX - 1), u64::MAX);
        assert!(new_epoch(0) > 1_600_000_000_000_000);
    }
}
