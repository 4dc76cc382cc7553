//! qcow2 images of kinds that drover does not write: QEMU's own server does, over a private socket.

use std::path::Path;
use std::sync::Arc;

use drover_disk::Disk;
use drover_engine::{Cause, ProviderError, chain};
use drover_landing::qemu_error;
use drover_mover::file_tag;
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_qemu::{Access, ImageFormat, ImageServer};

/// An image and the server that it lives by.
pub(crate) struct OpenImage {
    pub disk: Arc<dyn Disk>,
    pub server: ImageServer,
}

/// Opens an image to write it.
pub(crate) fn open_for_writing(path: &Path) -> Result<OpenImage, ProviderError> {
    let failed =
        |what: String, cause: Cause| ProviderError::new(cause, format!("image {}: {what}", path.display()));
    let server = ImageServer::open(path, ImageFormat::Qcow2, Access::Write).map_err(qemu_error)?;
    let uri: NbdUri = server.uri().parse().map_err(|error| failed(format!("{error}"), Cause::Internal))?;
    // The socket has another name each time; the image is told by what it is.
    let tag = file_tag(path).map_err(|error| failed(error.to_string(), Cause::Target))?;
    let options = NbdOptions { identity: Some(format!("qcow2 {tag}")), ..NbdOptions::default() };
    let disk = NbdDisk::open_target(&uri, options).map_err(|error| failed(chain(&error), Cause::Target))?;
    Ok(OpenImage { disk: Arc::new(disk), server })
}
