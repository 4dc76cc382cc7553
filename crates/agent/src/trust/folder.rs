use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// No file of the state is longer; a thousand peers take 300 KiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The part of the state folder that links use: `STATE/link`. Only its owner may look into it.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// The state cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{op} {}", path.display())]
pub struct FolderError {
    op: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Its name in the state.
const NAME: &str = "link";

impl FolderError {
    pub(crate) fn new(op: &'static str, path: PathBuf, source: io::Error) -> FolderError {
        FolderError { op, path, source }
    }
}

impl Folder {
    /// Whether a state has one.
    pub fn is_there(state: &Path) -> bool {
        state.join(NAME).is_dir()
    }

    /// Opens it, and makes it if it is not there.
    ///
    /// # Errors
    /// When it cannot be made, or others may look into it or change it.
    pub fn open(state: &Path) -> Result<Folder, FolderError> {
        let path = state.join(NAME);
        let failed = |op| {
            let path = path.clone();
            move |source| FolderError { op, path, source }
        };
        std::fs::create_dir_all(state).map_err(failed("making"))?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("making")(error));
            }
            _ => {}
        }
        let meta = std::fs::metadata(&path).map_err(failed("looking at"))?;
        let mine = meta.uid() == rustix::process::geteuid().as_raw();
        if !mine || meta.mode() & 0o077 != 0 {
            let text =
                "others than its owner have rights there; the keys in it would not be secret (chmod 700)";
            return Err(failed("using")(io::Error::new(io::ErrorKind::PermissionDenied, text)));
        }
        Ok(Folder { path })
    }

    /// A folder in it, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn below(&self, parts: &[&str]) -> Result<PathBuf, FolderError> {
        let path = parts.iter().fold(self.path.clone(), |path, part| path.join(part));
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&path);
        made.map_err(|source| FolderError { op: "making", path: path.clone(), source })?;
        Ok(path)
    }

    /// Reads a file; `None` if it is not there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.path.join(name);
        let read = || -> io::Result<Option<Vec<u8>>> {
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let mut bytes = Vec::new();
            file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        };
        read().map_err(|source| FolderError { op: "reading", path: path.clone(), source })
    }

    /// Puts a file in its place as a whole, durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let new = self.path.join(format!("{name}.new-{}", crate::random::hex(8)));
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| {
            // Nothing but a file that nobody reads.
            let _ = std::fs::remove_file(&new);
            FolderError { op: "writing", path: path.clone(), source }
        })
    }

    /// Reads a file of JSON; what is not there is as by default.
    ///
    /// # Errors
    /// When it cannot be read or holds something else.
    pub(crate) fn read_json<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, FolderError> {
        let Some(bytes) = self.read(name)? else { return Ok(T::default()) };
        serde_json::from_slice(&bytes).map_err(|error| FolderError {
            op: "reading",
            path: self.path.join(name),
            source: io::Error::new(io::ErrorKind::InvalidData, error),
        })
    }

    /// Changes a file of JSON, while no other process does.
    ///
    /// # Errors
    /// As for reading and writing; nothing is changed then.
    pub(crate) fn change_json<T: DeserializeOwned + Serialize + Default, R>(
        &self,
        name: &str,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, FolderError> {
        let _lock = self.lock(name)?;
        let mut value: T = self.read_json(name)?;
        let result = change(&mut value);
        let bytes = serde_json::to_vec_pretty(&value).map_err(|error| FolderError {
            op: "writing",
            path: self.path.join(name),
            source: io::Error::other(error),
        })?;
        self.write(name, &bytes)?;
        Ok(result)
    }

    /// Keeps other processes from changing a file until it is dropped.
    ///
    /// # Errors
    /// When the lock file cannot be had.
    pub(crate) fn lock(&self, name: &str) -> Result<File, FolderError> {
        let path = self.path.join(format!("{name}.lock"));
        let lock = || -> io::Result<File> {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        lock().map_err(|source| FolderError { op: "locking", path: path.clone(), source })
    }
}
