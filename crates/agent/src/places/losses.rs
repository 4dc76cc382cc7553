//! Flushes of a disk that failed.
//!
//! The kernel tells a failed write-back to those who have the file open then, and to nobody who opens it later. So it is written down here,
//! where it outlives the agent: a byte for each, in a file of the state folder.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use drover_disk::DiskErrorKind;

use crate::error::Refusal;

/// The file of one disk.
#[derive(Debug)]
pub(super) struct Losses(pub PathBuf);

impl Losses {
    /// The generation of a disk that is of this one otherwise.
    pub(super) fn generation(&self, otherwise: &str) -> Result<String, Refusal> {
        match std::fs::metadata(&self.0) {
            Ok(meta) => Ok(format!("{otherwise} lost {}", meta.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(otherwise.to_string()),
            Err(error) => Err(self.failed("reading", &error)),
        }
    }

    /// One more, durably.
    pub(super) fn add(&self) -> Result<(), Refusal> {
        let write = || {
            let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
            file.write_all(b".")?;
            file.sync_all()?;
            self.0.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
        };
        write().map_err(|error| self.failed("writing", &error))
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> Refusal {
        Refusal::new(DiskErrorKind::Failed, format!("{what} {}: {error}", self.0.display()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_makes_another_generation_which_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let losses = || Losses(folder.path().join("x.drover-lost"));
        assert_eq!(losses().generation("boot 1").unwrap(), "boot 1");
        losses().add().unwrap();
        let first = losses().generation("boot 1").unwrap();
        losses().add().unwrap();
        assert!(first != "boot 1" && losses().generation("boot 1").unwrap() != first);
    }

    #[test]
    fn what_cannot_be_written_down_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = Losses(folder.path().join("none/x.drover-lost"));
        assert!(nowhere.add().unwrap_err().why.contains("x.drover-lost"));
    }
}
