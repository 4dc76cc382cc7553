//! Whose a state folder is: the daemon's alone, or that of any number of commands.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use drover_engine::Store;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::{Exit, Failure};

const FILE: &str = "daemon.lock";
const BYTES_MAX: u64 = 4096;

/// A store, and the right to give orders in its folder.
pub struct OwnedStore {
    store: Store,
    _share: File,
}

impl Deref for OwnedStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl OwnedStore {
    /// Opens a state folder for a command; refused where a daemon owns it.
    pub fn open(folder: &Path) -> Result<OwnedStore, Failure> {
        let store = Store::open(folder)?;
        let mut share = lock_file(folder)?;
        match flock(&share, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(OwnedStore { store, _share: share }),
            Err(Errno::WOULDBLOCK) => Err(owned(folder, &mut share)),
            Err(error) => Err(unusable(&folder.join(FILE), error.into())),
        }
    }
}

fn owned(folder: &Path, file: &mut File) -> Failure {
    let mut text = String::new();
    // What cannot be read names no address.
    let _ = file.take(BYTES_MAX).read_to_string(&mut text);
    let folder = folder.display();
    match text.lines().next().filter(|url| !url.is_empty()) {
        Some(url) => Failure::new(Exit::Plan, format!("the daemon at {url} owns the state in {folder}"))
            .advise(format!("give the order to it with `--server {url}`, or stop it")),
        None => Failure::new(Exit::Plan, format!("a daemon that begins or ends owns the state in {folder}"))
            .advise("try again in a moment"),
    }
}

fn lock_file(folder: &Path) -> Result<File, Failure> {
    let path = folder.join(FILE);
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).truncate(false);
    open.open(&path).map_err(|error| unusable(&path, error))
}

fn unusable(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("lock file {}: {error}", path.display()))
        .advise("give a folder that can be written with --state")
}

/// The daemon's right to a state folder, as long as it lives.
pub struct DaemonLock {
    file: File,
    path: PathBuf,
}

impl DaemonLock {
    /// Takes it; refused while another daemon or a command has the folder.
    pub fn take(folder: &Path) -> Result<DaemonLock, Failure> {
        std::fs::create_dir_all(folder).map_err(|error| unusable(folder, error))?;
        let mut file = lock_file(folder)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let lock = DaemonLock { file, path: folder.join(FILE) };
                lock.write("")?;
                Ok(lock)
            }
            Err(Errno::WOULDBLOCK) => {
                // Those that have it together may still be there: then it is no daemon that has it.
                if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                    let text = format!("a drover command works with the state in {}", folder.display());
                    return Err(
                        Failure::new(Exit::Plan, text).advise("wait for its end, or stop it with Ctrl-C")
                    );
                }
                Err(owned(folder, &mut file))
            }
            Err(error) => Err(unusable(&folder.join(FILE), error.into())),
        }
    }

    /// Tells others where the daemon listens.
    pub fn tell(&self, url: &str) -> Result<(), Failure> {
        self.write(&format!("{url}\n{}\n", std::process::id()))
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        let write = || -> std::io::Result<()> {
            self.file.set_len(0)?;
            (&self.file).seek(SeekFrom::Start(0))?;
            (&self.file).write_all(text.as_bytes())
        };
        write().map_err(|error| unusable(&self.path, error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_and_commands_shut_each_other_out_and_say_who_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let commands = [0, 1].map(|_| OwnedStore::open(folder.path()).unwrap());
        let refused = |failure: Option<Failure>| failure.unwrap().to_string();
        let text = refused(DaemonLock::take(folder.path()).err());
        assert!(text.contains("a drover command works with the state"), "{text}");
        drop(commands);
        let daemon = DaemonLock::take(folder.path()).unwrap();
        daemon.tell("http://127.0.0.1:8420").unwrap();
        for text in
            [refused(OwnedStore::open(folder.path()).err()), refused(DaemonLock::take(folder.path()).err())]
        {
            assert!(text.contains("the daemon at http://127.0.0.1:8420 owns the state"), "{text}");
            assert!(text.contains("--server http://127.0.0.1:8420"), "{text}");
        }
        drop(daemon);
        assert!(OwnedStore::open(folder.path()).is_ok());
    }
}
