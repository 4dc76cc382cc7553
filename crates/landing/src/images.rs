//! Images on this machine as targets: raw files, and qcow2 by drover's own writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::{Disk, FileDisk, LockedFile};
use drover_engine::{Cause, ProviderError};
use drover_mover::{file_tag, journal_path};
use drover_qcow2::{Compression, Preallocation, Qcow2Disk, Qcow2Options};
use drover_types::Bytes;

use crate::errors::disk_error;

/// An image that is open, and what is known of it.
pub struct OpenImage {
    /// The disk in it.
    pub disk: Arc<dyn Disk>,
    /// What its journal calls it.
    pub tag: String,
    /// Whether nothing of it counts.
    pub is_new: bool,
    /// Whether it reads as zeros.
    pub zeroed: bool,
    /// Where its journal lies, if nothing else is said.
    pub journal: PathBuf,
    /// What was noticed when it was opened.
    pub notes: Vec<String>,
}

/// A raw file that is open.
pub fn raw(path: &Path, disk: FileDisk) -> Result<OpenImage, ProviderError> {
    let zeroed = disk.features().zeroed;
    let mut notes = Vec::new();
    if !disk.is_direct() {
        let at = path.display();
        notes.push(format!("{at}: no direct I/O here, so it is read back through the page cache"));
    }
    let tag = tag_of(path)?;
    Ok(OpenImage { disk: Arc::new(disk), tag, is_new: zeroed, zeroed, journal: journal_path(path), notes })
}

/// What a plan says of its images.
pub fn planned(told: &drover_plan::Qcow2) -> Qcow2Options {
    use drover_plan::{Preallocation as P, Qcow2Compression as C};
    Qcow2Options {
        cluster_bytes: told.cluster_bytes,
        preallocation: match told.preallocation {
            P::Off => Preallocation::Off,
            P::Metadata => Preallocation::Metadata,
            P::Falloc => Preallocation::Falloc,
            P::Full => Preallocation::Full,
        },
        compression: match told.compression {
            C::Zlib => Compression::Zlib,
            C::Zstd => Compression::Zstd,
        },
        compress: told.compressed,
    }
}

/// The image in a locked file, as it is; nothing if it is none of the kind that drover makes.
pub fn image_in(file: &LockedFile) -> Result<Option<Qcow2Disk>, ProviderError> {
    let host = file.host_reader().map_err(disk_error)?;
    Ok(Qcow2Disk::open_for_verify_on(Box::new(host)).ok())
}

/// Makes an image where no file is.
pub fn create(path: &Path, size: u64, options: Qcow2Options) -> Result<OpenImage, ProviderError> {
    qcow2(path, Qcow2Disk::create(path, size, options).map_err(disk_error)?, true)
}

/// Goes on with an image of ours, or, if it is as good as new, with one that an earlier try made and did not write to.
pub fn go_on(
    file: LockedFile,
    path: &Path,
    size: u64,
    is_new: bool,
    options: Qcow2Options,
) -> Result<OpenImage, ProviderError> {
    let host = file.into_host_file().map_err(disk_error)?;
    let disk = Qcow2Disk::open_on(Box::new(host), options).map_err(disk_error)?;
    if fits(&disk, size) {
        return qcow2(path, disk, is_new);
    }
    let what =
        format!("{} holds a disk of {} bytes, and {size} are to be copied", path.display(), disk.size());
    Err(ProviderError::new(Cause::Target, what).advise("remove it and its journal, or choose another name"))
}

/// Makes an image in place of a locked file. That stays locked until the image is there: whoever waits for it finds another
/// in its place then.
pub fn replace(
    file: LockedFile,
    path: &Path,
    size: u64,
    options: Qcow2Options,
) -> Result<OpenImage, ProviderError> {
    let failed =
        |error: std::io::Error| ProviderError::new(Cause::Target, format!("{}: {error}", path.display()));
    options.check_for(size).map_err(failed)?;
    // Its room, too, before the new one takes any.
    file.file().set_len(0).map_err(failed)?;
    std::fs::remove_file(path).map_err(failed)?;
    let made = create(path, size, options);
    drop(file);
    made
}

/// Whether an image is of this size; those are rounded up to sectors.
pub fn fits(disk: &Qcow2Disk, size: u64) -> bool {
    size.checked_next_multiple_of(512) == Some(disk.size())
}

fn qcow2(path: &Path, disk: Qcow2Disk, is_new: bool) -> Result<OpenImage, ProviderError> {
    let tag = tag_of(path)?;
    let mut notes = Vec::new();
    if disk.leaked_clusters() > 0 {
        let bytes = Bytes(disk.leaked_clusters() * disk.cluster_bytes());
        notes.push(format!("{}: gave back {bytes} that an interrupted run had set aside", path.display()));
    }
    Ok(OpenImage { disk: Arc::new(disk), tag, is_new, zeroed: is_new, journal: journal_path(path), notes })
}

fn tag_of(path: &Path) -> Result<String, ProviderError> {
    let failed =
        |error: std::io::Error| ProviderError::new(Cause::Target, format!("{}: {error}", path.display()));
    file_tag(path).map_err(failed)
}
