//! What nbdkit and VDDK say: kept in a bounded file, and the last lines for errors.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use drover_types::Secret;

/// The file may not become larger; what follows is only counted.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Lines kept for errors.
const LINES_KEPT: usize = 64;
/// A longer line is cut into several.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines that an error shows.
const LINES_SHOWN: usize = 4;
/// A secret this short would be found in ordinary words.
const SECRET_BYTES_MIN: usize = 4;
/// Secrets that are hidden: the password, and cookies of the last children.
const SECRETS_MAX: usize = 16;

/// The log of one disk, over all its children.
pub(crate) struct Log {
    inner: Mutex<Inner>,
}

struct Inner {
    file: Option<File>,
    written: u64,
    lost: u64,
    tail: VecDeque<String>,
    /// Never shown; the password first.
    secrets: Vec<String>,
}

impl Log {
    /// Starts a log; without a path only the last lines are kept.
    pub(crate) fn new(path: Option<&Path>, secret: &Secret) -> io::Result<Arc<Log>> {
        let open = |path| OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        let file = path.map(open).transpose()?;
        let inner = Inner { file, written: 0, lost: 0, tail: VecDeque::new(), secrets: Vec::new() };
        let log = Arc::new(Log { inner: Mutex::new(inner) });
        log.hide(secret);
        Ok(log)
    }

    /// Hides one more secret in all lines from now on.
    pub(crate) fn hide(&self, secret: &Secret) {
        let mut inner = self.lock();
        let is_new = inner.secrets.iter().all(|known| known != secret.reveal());
        if secret.reveal().len() < SECRET_BYTES_MIN || !is_new {
            return;
        }
        if inner.secrets.len() == SECRETS_MAX {
            inner.secrets.remove(1);
        }
        inner.secrets.push(secret.reveal().to_string());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes lines until the other side closes.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn follow(self: &Arc<Self>, stream: impl Read + Send + 'static) -> io::Result<JoinHandle<()>> {
        let log = self.clone();
        thread::Builder::new().spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line), Ok(1..)) {
                log.add(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        })
    }

    /// Adds a line. A secret in it is hidden.
    pub(crate) fn add(&self, line: &str) {
        let mut inner = self.lock();
        let line = inner.secrets.iter().fold(line.to_string(), |line, secret| line.replace(secret, "***"));
        if inner.written < FILE_BYTES_MAX {
            inner.written += line.len() as u64 + 1;
            // A full disk must not end a copy: the last lines are in memory too.
            let failed = inner.file.as_mut().is_some_and(|file| writeln!(file, "{line}").is_err());
            inner.lost += u64::from(failed);
        } else {
            inner.lost += 1;
        }
        if inner.tail.len() == LINES_KEPT {
            inner.tail.pop_front();
        }
        inner.tail.push_back(line);
    }

    /// The last lines, oldest first.
    pub(crate) fn tail(&self) -> Vec<String> {
        self.lock().tail.iter().cloned().collect()
    }

    /// The last lines that tell of errors, or else the last lines, fit for a message.
    pub(crate) fn words(&self) -> String {
        let lines = self.tail();
        let is_error = |line: &&String| line.to_lowercase().contains("error");
        let mut shown: Vec<&str> = lines.iter().filter(is_error).map(String::as_str).collect();
        if shown.is_empty() {
            shown = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        }
        shown.dedup();
        match shown[shown.len().saturating_sub(LINES_SHOWN)..].join("; ") {
            words if words.is_empty() => "nothing".to_string(),
            words => words,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Arc<Log> {
        Log::new(None, &Secret::new("hunter2")).unwrap()
    }

    #[test]
    fn errors_are_shown_before_other_lines_and_secrets_never() {
        let log = log();
        assert_eq!(log.words(), "nothing");
        log.add("nbdkit: debug: starting as hunter2");
        assert_eq!(log.words(), "nbdkit: debug: starting as ***");
        log.add("nbdkit: vddk[1]: error: no");
        log.add("nbdkit: debug: more");
        assert_eq!(log.words(), "nbdkit: vddk[1]: error: no");
        for number in 0..2 * SECRETS_MAX {
            log.hide(&Secret::new(format!("cookie-{number:02}")));
        }
        log.add("config key=cookie, value=cookie-31 user=hunter2 error");
        assert!(log.words().ends_with("value=*** user=*** error"), "{}", log.words());
    }

    #[test]
    fn a_stream_without_line_ends_is_cut_and_only_the_last_lines_stay() {
        let log = log();
        log.follow(io::Cursor::new(vec![b'a'; 3 * LINE_BYTES_MAX as usize])).unwrap().join().unwrap();
        assert_eq!(log.tail().iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES_MAX as usize; 3]);
        (0..2 * LINES_KEPT).for_each(|number| log.add(&number.to_string()));
        assert_eq!((log.tail().len(), log.tail()[0].as_str()), (LINES_KEPT, "64"));
    }

    #[test]
    fn the_file_is_bounded_and_for_its_user_alone() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::new(Some(&path), &Secret::new("")).unwrap();
        let line = "x".repeat(1 << 20);
        (0..20).for_each(|_| log.add(&line));
        let meta = path.metadata().unwrap();
        assert!((FILE_BYTES_MAX..FILE_BYTES_MAX + (2 << 20)).contains(&meta.len()), "{}", meta.len());
        assert_eq!(meta.mode() & 0o777, 0o600);
    }
}
