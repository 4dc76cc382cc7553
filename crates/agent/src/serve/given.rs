//! Files that follow an order: they lie in a folder of their machine as long as it is carried out.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use drover_link::{Message, Receiver};
use drover_types::file_name;

use super::machines::FirstBootFiles;
use super::refused;
use crate::error::Refusal;
use crate::machine::{FILES_BYTES_MAX, FILES_MAX, Guest, GuestFile};

/// A peer that sends nothing of its files for so long is given up: other orders about its machine wait.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// What comes on a channel for an order: the order itself, and then numbered pieces of its files. A link brings each message whole and
/// once, in any order.
pub(super) struct Pieces<'a> {
    receiver: &'a Receiver,
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: u64,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(receiver: &'a Receiver) -> Pieces<'a> {
        Pieces { receiver, next: 0, early: BTreeMap::new(), early_bytes: 0 }
    }

    /// The order, which alone has no number; nothing if the channel ends before it.
    pub(super) fn order(&mut self) -> Option<Vec<u8>> {
        loop {
            let message = self.receiver.receive().ok().flatten()?;
            if message.head.is_empty() {
                return Some(message.body);
            }
            self.keep(message).ok()?;
        }
    }

    /// The next piece; nothing if the channel ended before it.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            if let Some(piece) = self.early.remove(&self.next) {
                self.next += 1;
                self.early_bytes -= piece.len() as u64;
                return Ok(Some(piece));
            }
            match self.receiver.receive()? {
                Some(message) => self.keep(message)?,
                None => return Ok(None),
            }
        }
    }

    fn keep(&mut self, message: Message) -> Result<(), Refusal> {
        let wrong = |what: &str| refused(DiskErrorKind::Corrupt, format!("a piece of a file {what}"));
        let number: [u8; 8] = message.head.try_into().map_err(|_| wrong("has no number"))?;
        let (number, bytes) = (u64::from_le_bytes(number), message.body.len() as u64);
        if number < self.next || self.early.contains_key(&number) {
            return Err(wrong("came twice"));
        }
        if self.early_bytes + bytes > FILES_BYTES_MAX {
            return Err(wrong("is missing, and all others came"));
        }
        self.early_bytes += bytes;
        self.early.insert(number, message.body);
        Ok(())
    }
}

/// The files of a guest.
pub(super) struct Given {
    folder: PathBuf,
    pub files: FirstBootFiles,
}

impl Given {
    /// Takes the files that an order to convert a guest tells of.
    /// A peer that sends nothing for long is given up.
    pub(super) fn take(
        guest: &Guest,
        from: &mut Pieces<'_>,
        give_up: &(dyn Fn() + Sync),
        folder: PathBuf,
    ) -> Result<Given, Refusal> {
        remove(&folder)?;
        let mut given = Given { folder, files: FirstBootFiles::default() };
        if !guest.addresses.is_empty() {
            let why = "this agent gives a Windows its addresses by a file that newer drovers send; update the drover that runs the plan";
            return Err(refused(DiskErrorKind::Unsupported, why));
        }
        if guest.scripts.is_empty() && guest.package.is_none() {
            return Ok(given);
        }
        check(guest)?;
        given.make(&given.folder)?;
        let pieces = AtomicU64::new(0);
        let mut receive = || {
            pieces.fetch_add(1, Relaxed);
            from.next()
        };
        watched(SILENCE_MAX, &pieces, give_up, || {
            for script in &guest.scripts {
                let path = given.take_one(script, &mut receive)?;
                given.files.scripts.push(path);
            }
            let package = guest.package.as_ref().map(|package| given.take_one(package, &mut receive));
            given.files.package = package.transpose()?;
            Ok(given)
        })
    }

    fn make(&self, folder: &Path) -> Result<(), Refusal> {
        DirBuilder::new().mode(0o700).create(folder).map_err(|error| failed("making", folder, &error))
    }

    /// In a folder of its own, since two may have the same name.
    fn take_one(
        &self,
        file: &GuestFile,
        receive: &mut dyn FnMut() -> Result<Option<Vec<u8>>, Refusal>,
    ) -> Result<PathBuf, Refusal> {
        let folder = self.folder.join(self.files.scripts.len().to_string());
        self.make(&folder)?;
        let path = folder.join(file_name(&file.name));
        let write = |error: std::io::Error| failed("writing", &path, &error);
        let mut written = File::create_new(&path).map_err(write)?;
        let mut left = file.bytes;
        while left > 0 {
            let piece = receive()?.unwrap_or_default();
            let wrong = || refused(DiskErrorKind::Corrupt, format!("{} is not as long as told", file.name));
            left = match piece.len() as u64 {
                0 => return Err(wrong()),
                bytes => left.checked_sub(bytes).ok_or_else(wrong)?,
            };
            written.write_all(&piece).map_err(write)?;
        }
        Ok(path)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // What stays is removed by the next order, or with the machine.
        let _ = remove(&self.folder);
    }
}

/// Removes what an agent left that was killed. Nothing to remove is fine.
pub(super) fn remove(folder: &Path) -> Result<(), Refusal> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", folder, &error)),
        _ => Ok(()),
    }
}

/// Does this, and gives up whoever it waits for where `pieces` stands still for so long. Without a thread to look at that nobody is given up.
fn watched<T>(
    silence_max: Duration,
    pieces: &AtomicU64,
    give_up: &(dyn Fn() + Sync),
    work: impl FnOnce() -> T,
) -> T {
    let is_done = AtomicBool::new(false);
    let watch = || {
        let mut seen = (pieces.load(Relaxed), Instant::now());
        while !is_done.load(Relaxed) {
            thread::park_timeout(LOOK.min(silence_max));
            match pieces.load(Relaxed) {
                now if now != seen.0 => seen = (now, Instant::now()),
                _ if seen.1.elapsed() >= silence_max => return give_up(),
                _ => {}
            }
        }
    };
    thread::scope(|scope| {
        let watcher = Builder::new().name("agent-files".into()).spawn_scoped(scope, watch);
        let done = work();
        is_done.store(true, Relaxed);
        watcher.iter().for_each(|watcher| watcher.thread().unpark());
        done
    })
}

fn check(guest: &Guest) -> Result<(), Refusal> {
    let files = || guest.scripts.iter().chain(&guest.package);
    let bytes = files().try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
    if files().count() > FILES_MAX || bytes.is_none_or(|bytes| bytes > FILES_BYTES_MAX) {
        let most = FILES_BYTES_MAX >> 20;
        let why = format!("an agent takes {FILES_MAX} files for the first boot, of {most} MiB in all");
        return Err(refused(DiskErrorKind::Misuse, why));
    }
    Ok(())
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Refusal {
    refused(DiskErrorKind::of(error), format!("{doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_for_long_is_given_up_and_who_goes_on_is_not() {
        let (pieces, is_given_up) = (AtomicU64::new(0), AtomicBool::new(false));
        let give_up = || is_given_up.store(true, Relaxed);
        let silence = Duration::from_millis(200);
        watched(silence, &pieces, &give_up, || {
            for _ in 0..20 {
                pieces.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(!is_given_up.load(Relaxed));
        watched(silence, &pieces, &give_up, || {
            while !is_given_up.load(Relaxed) {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn files_have_their_limits() {
        let guest = |files: usize, bytes| {
            let file = GuestFile { name: "a".into(), bytes };
            Guest { scripts: vec![file; files], ..Guest::default() }
        };
        assert!(check(&guest(FILES_MAX, FILES_BYTES_MAX / FILES_MAX as u64)).is_ok());
        assert!(check(&guest(FILES_MAX + 1, 1)).is_err());
        assert!(check(&guest(2, FILES_BYTES_MAX)).is_err());
        assert!(check(&guest(2, u64::MAX)).is_err());
    }
}
