use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of an open file, to notice that it leads elsewhere by now: what is written then arrives where nobody
/// looks for it, or goes with the last one who has it open.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    id: (u64, u64),
}

impl Place {
    pub fn of(path: &Path, file: &File) -> io::Result<Place> {
        let meta = file.metadata()?;
        Ok(Place { path: path.to_path_buf(), id: (meta.dev(), meta.ino()) })
    }

    pub fn check(&self) -> io::Result<()> {
        let why = match std::fs::metadata(&self.path) {
            Ok(meta) if (meta.dev(), meta.ino()) == self.id => return Ok(()),
            Ok(_) => "another file was put in its place while it was open",
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "it, or its folder, was removed or renamed while it was open"
            }
            Err(error) => return Err(error),
        };
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }
}
