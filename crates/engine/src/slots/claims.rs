//! VM slots of hosts that processes share: numbered files, of which each is held by its lock, as those of a site's limit are.
//!
//! A process that dies, however it does, gives its slots back with its locks. Files stay for the next one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use drover_disk::claim_file;
use drover_types::file_name;

/// The folder.
pub(super) struct Claims {
    folder: PathBuf,
}

/// A slot; free when dropped.
pub(super) struct Claim {
    /// Holds the lock. Absent where files cannot be locked: then processes do not share.
    _file: Option<File>,
}

impl Claims {
    pub(super) fn new(folder: &Path) -> io::Result<Claims> {
        fs::create_dir_all(folder)?;
        Ok(Claims { folder: folder.to_path_buf() })
    }

    /// One of so many slots of a host; `None` if others hold all.
    ///
    /// A folder that cannot be used any more keeps no VM back: budgets are not shared then.
    pub(super) fn claim(&self, host: &str, of: u32) -> Option<Claim> {
        let place = self.folder.join(file_name(host));
        if fs::create_dir_all(&place).is_err() {
            return Some(Claim { _file: None });
        }
        for number in 0..of {
            let path = place.join(number.to_string());
            match claim_file(&path) {
                Ok(file) => return Some(Claim { _file: Some(file) }),
                Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Some(Claim { _file: None }),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_slots_of_a_host_are_held_than_there_are_and_they_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Claims::new(folder.path()).unwrap(), Claims::new(folder.path()).unwrap());
        let held = [one.claim("host-1", 3).unwrap(), other.claim("host-1", 3).unwrap()];
        let last = one.claim("host-1", 3).unwrap();
        assert!(one.claim("host-1", 3).is_none() && other.claim("host-1", 3).is_none());
        assert!(other.claim("host/1", 3).is_some(), "another host");
        drop(last);
        assert!(other.claim("host-1", 3).is_some());
        drop(held);
    }
}
