//! A store that this user may read and not write: on a read-only file system, or of somebody else.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tempfile::TempDir;

use super::schema::{SCHEMA_VERSION, open_database};
use super::{FILE, Outcome, Store, StoreError, StoreFault, file_at};
use crate::store::sync::LogSync;

/// A folder with a copy, which goes with the value.
#[derive(Debug)]
pub(super) struct Copy {
    _folder: TempDir,
}

impl Store {
    /// Opens the store in a folder to be read; also where nothing can be written.
    ///
    /// # Errors
    /// If it cannot be read, or a later drover made it.
    pub fn open_to_read(folder: &Path) -> Outcome<Store> {
        let is_denied = |error: &StoreError| match &error.source {
            StoreFault::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied)
            ),
            _ => false,
        };
        match Store::open(folder) {
            Err(error) if is_denied(&error) && Store::is_there(folder) => {
                let path = folder.join(FILE);
                read_only(&path).map_err(|source| StoreError { path, source })
            }
            opened => opened,
        }
    }
}

fn read_only(path: &Path) -> Result<Store, StoreFault> {
    // Beside a writer, its shared memory is there to be read. Without one, SQLite would have to make it.
    let (connection, copy) = match as_it_is(path) {
        Ok(connection) => (connection, None),
        Err(StoreFault::Newer(version)) => return Err(StoreFault::Newer(version)),
        Err(_) => {
            let (connection, copy) = copied(path)?;
            (connection, Some(copy))
        }
    };
    let (connection, log) = (connection.into(), LogSync::of(path));
    let (path, file) = (path.to_path_buf(), file_at(path));
    let (is_held, is_stuck) = (AtomicBool::default(), AtomicBool::default());
    Ok(Store { connection, path, file, log, is_held, is_stuck, copy })
}

fn as_it_is(path: &Path) -> Result<Connection, StoreFault> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let version = db.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))?;
    match version {
        SCHEMA_VERSION => Ok(db),
        version if version > SCHEMA_VERSION => Err(StoreFault::Newer(version)),
        // It is brought up to date in a copy.
        version => Err(StoreFault::Value(format!("it has schema {version}"))),
    }
}

fn copied(path: &Path) -> Result<(Connection, Copy), StoreFault> {
    let folder = TempDir::with_prefix("drover-state-")?;
    let copy = folder.path().join(FILE);
    std::fs::copy(path, &copy)?;
    let log = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
    match std::fs::copy(log(path), log(&copy)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    for file in std::fs::read_dir(folder.path())? {
        // The copy of a file that nobody may write is one that nobody may write.
        let file = file?.path();
        let mut permissions = file.metadata()?.permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
        std::fs::set_permissions(&file, permissions)?;
    }
    Ok((open_database(&copy)?, Copy { _folder: folder }))
}
