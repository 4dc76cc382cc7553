use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The path of an open file, to notice that it leads elsewhere by now: what is written then arrives where nobody
/// looks for it, or goes with the last one who has it open.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    id: Id,
}

/// What is behind a path: many nodes may name one device, and the same node another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    File { device: u64, inode: u64 },
    Device(u64),
}

impl Id {
    fn of(meta: &Metadata) -> Id {
        match meta.file_type().is_block_device() {
            true => Id::Device(meta.rdev()),
            false => Id::File { device: meta.dev(), inode: meta.ino() },
        }
    }
}

impl Place {
    pub fn of(path: &Path, file: &File) -> io::Result<Place> {
        Ok(Place { path: path.to_path_buf(), id: Id::of(&file.metadata()?) })
    }

    pub fn check(&self) -> io::Result<()> {
        let why = match std::fs::metadata(&self.path) {
            Ok(meta) if Id::of(&meta) == self.id => return Ok(()),
            Ok(_) if matches!(self.id, Id::Device(_)) => "its path led to another device while it was open",
            Ok(_) => "another file was put in its place while it was open",
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "it, or its folder, was removed or renamed while it was open"
            }
            Err(error) => return Err(error),
        };
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }
}
