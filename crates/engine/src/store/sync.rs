//! Durable commits that share their flushes: while one thread flushes, others commit, and the next flush is theirs
//! together. Source: SQLite's "Write-Ahead Logging": a commit is a frame at the end of the log, so it is durable
//! when the log is.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Flushes the log of a database.
#[derive(Debug)]
pub(super) struct LogSync {
    path: PathBuf,
    commits: AtomicU64,
    state: Mutex<Flushed>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flushed {
    log: Option<File>,
    is_flushing: bool,
    /// Commits that are durable.
    commits: u64,
    flushes: u64,
    /// Why a flush failed: after that the kernel may drop what it could not write and call the next one a success.
    failure: Option<String>,
}

impl LogSync {
    pub(super) fn of(database: &Path) -> LogSync {
        let mut path = database.as_os_str().to_os_string();
        path.push("-wal");
        let (commits, state, changed) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        LogSync { path: path.into(), commits, state, changed }
    }

    /// A commit was made; gives its number. To be called before another can be made.
    pub(super) fn committed(&self) -> u64 {
        self.commits.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Waits until a commit is durable, and those before it.
    pub(super) fn wait_for(&self, commit: u64) -> io::Result<()> {
        let mut state = self.lock();
        while state.commits < commit {
            if let Some(failure) = &state.failure {
                return Err(io::Error::other(format!("an earlier flush failed: {failure}")));
            }
            if state.is_flushing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self.flush(state)?;
        }
        Ok(())
    }

    /// How often the log was flushed.
    pub(super) fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    fn flush<'a>(&'a self, mut state: MutexGuard<'a, Flushed>) -> io::Result<MutexGuard<'a, Flushed>> {
        let log = match state.log.take() {
            Some(log) => log,
            None => File::open(&self.path)?,
        };
        let commits = self.commits.load(Ordering::SeqCst);
        state.is_flushing = true;
        drop(state);
        let result = log.sync_data();
        let mut state = self.lock();
        state.is_flushing = false;
        state.log = Some(log);
        state.flushes += 1;
        match &result {
            Ok(()) => state.commits = state.commits.max(commits),
            Err(error) => state.failure = Some(error.to_string()),
        }
        self.changed.notify_all();
        result.map(|()| state)
    }

    fn lock(&self) -> MutexGuard<'_, Flushed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_flush_makes_all_commits_before_it_durable() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("db-wal"), "").unwrap();
        let log = LogSync::of(&folder.path().join("db"));
        let commits = [log.committed(), log.committed(), log.committed()];
        for commit in commits {
            log.wait_for(commit).unwrap();
            assert_eq!(log.flushes(), 1, "{commit}");
        }
        log.wait_for(log.committed()).unwrap();
        assert_eq!(log.flushes(), 2, "one that came after it");
    }
}
