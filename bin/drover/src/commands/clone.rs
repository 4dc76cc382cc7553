//! `drover copy --no-hash`: a file that shares its blocks with another (reflink).
//!
//! `copy_file_range` is not used where blocks cannot be shared: on ext4 it went through the page cache and
//! took 3.5 s for 1 GiB, flushed, where the ordinary copy took 1.1 s, hashed.

use std::fs::File;
use std::path::Path;

use drover_endpoint::{End, TargetEnd, path_of};

use crate::cli::CopyArgs;
use crate::exit::{Exit, Failure};

/// Whether it worked.
pub enum Cloned {
    Yes,
    /// Why not; nothing was changed.
    No(String),
}

/// Lets the target, which is open, locked and empty, share the source's blocks.
pub fn share_blocks(args: &CopyArgs, source: &End, target: &TargetEnd) -> Result<Cloned, Failure> {
    let (Some(from), Some(to)) = (path_of(&args.source), path_of(&args.target)) else {
        return Ok(Cloned::No("one of both is no file of this host".to_string()));
    };
    // A raw file is read as it is; an image's bytes are not those of its file.
    let is_raw =
        |path: &Path, size: u64| path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == size);
    if source.disk.size() != target.end.disk.size()
        || !is_raw(&from, source.disk.size())
        || !is_raw(&to, target.end.disk.size())
        || !source.disk.identity().starts_with("file ")
        || !target.end.disk.identity().starts_with("file ")
    {
        return Ok(Cloned::No("one of both is no raw file".to_string()));
    }
    let identity = source.disk.identity();
    let open = || {
        let from = File::open(&from)?;
        let to = File::options().write(true).open(&to)?;
        Ok::<_, std::io::Error>((from, to))
    };
    let failed = |error: std::io::Error| Failure::new(Exit::Target, format!("{}: {error}", args.target));
    let (from, to) = open().map_err(failed)?;
    if let Err(errno) = rustix::fs::ioctl_ficlone(&to, &from) {
        return Ok(Cloned::No(std::io::Error::from(errno).to_string()));
    }
    to.sync_all().map_err(failed)?;
    target.end.disk.flush().map_err(|error| Failure::new(Exit::Target, error.to_string()))?;
    if source.disk.identity() != identity {
        let text = format!("{} was changed while it was copied", args.source);
        return Err(
            Failure::new(Exit::Source, text).advise("remove the target and stop whatever writes to it")
        );
    }
    Ok(Cloned::Yes)
}
