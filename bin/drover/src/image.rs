//! qcow2 images, which QEMU's own server reads and writes for us over a private socket.

use std::path::Path;
use std::sync::Arc;

use drover_disk::Disk;
use drover_engine::{Cause, ProviderError, chain};
use drover_mover::file_tag;
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_qemu::{Access, ImageFormat, ImageServer, Qcow2Options, QemuError, QemuErrorKind, create_qcow2};

/// An image and the server that it lives by.
pub struct OpenImage {
    pub disk: Arc<dyn Disk>,
    pub server: ImageServer,
}

/// Opens an image to read it.
pub fn open_for_reading(path: &Path) -> Result<OpenImage, ProviderError> {
    open(path, Access::Read)
}

/// Opens an image to write it, and makes it first if it is new.
pub fn open_for_writing(path: &Path, size: u64, is_new: bool) -> Result<OpenImage, ProviderError> {
    if is_new {
        create_qcow2(path, size, &Qcow2Options::default()).map_err(qemu_error)?;
    }
    open(path, Access::Write)
}

fn open(path: &Path, access: Access) -> Result<OpenImage, ProviderError> {
    let failed =
        |what: String, cause: Cause| ProviderError::new(cause, format!("image {}: {what}", path.display()));
    let server = ImageServer::open(path, ImageFormat::Qcow2, access).map_err(qemu_error)?;
    let uri: NbdUri = server.uri().parse().map_err(|error| failed(format!("{error}"), Cause::Internal))?;
    // The socket has another name each time; the image is told by what it is.
    let tag = file_tag(path).map_err(|error| failed(error.to_string(), Cause::Target))?;
    let modified = std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let identity = match access {
        Access::Read => format!("qcow2 {tag} modified={modified:?}"),
        Access::Write => format!("qcow2 {tag}"),
    };
    let options = NbdOptions { identity: Some(identity), ..NbdOptions::default() };
    let disk = match access {
        Access::Read => NbdDisk::open_source(&uri, options),
        Access::Write => NbdDisk::open_target(&uri, options),
    };
    let disk = disk.map_err(|error| failed(chain(&error), Cause::Target))?;
    Ok(OpenImage { disk: Arc::new(disk), server })
}

/// A QEMU error in the engine's words.
pub fn qemu_error(error: QemuError) -> ProviderError {
    let cause = match error.kind {
        QemuErrorKind::OutOfSpace => Cause::TargetFull,
        QemuErrorKind::Denied => Cause::Access,
        _ => Cause::Target,
    };
    let mut wrapped = ProviderError::new(cause, error.to_string());
    wrapped.advice = error.advice();
    wrapped.source = error.source;
    wrapped
}
