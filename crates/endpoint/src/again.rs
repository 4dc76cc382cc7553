//! Targets opened once more, to be verified.

use std::path::Path;
use std::sync::Arc;

use drover_disk::{Disk, DiskErrorKind};
use drover_engine::{Cause, chain};
use drover_qcow2::Qcow2Disk;

use crate::errors::{EndError, failed, target_failure};
use crate::format::{ToldFormat, format_of};
use crate::named::NamedTarget;
use crate::path::real_path;
use crate::place::path_of;

/// The disk that a target is verified by. An image is opened anew: the writer's tables lie in memory, where a write
/// of them that was lost does not show. Raw targets keep nothing in memory and are read past the page cache as they are.
///
/// # Errors
/// If what was written cannot be read back.
pub fn for_verify(asked: &NamedTarget<'_>, target: &Arc<dyn Disk>) -> Result<Arc<dyn Disk>, EndError> {
    match path_of(asked.text) {
        Some(path) if format_of(&path, asked.format) == ToldFormat::QCOW2 => image(&real_path(&path)?),
        _ => Ok(target.clone()),
    }
}

fn image(path: &Path) -> Result<Arc<dyn Disk>, EndError> {
    match Qcow2Disk::open_for_verify(path) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(error) if error.kind == DiskErrorKind::Corrupt => {
            Err(failed(Cause::Verification, format!("reading back what was written: {}", chain(&error)))
                .advise("look at its disk and file system for errors, then copy again with --force"))
        }
        Err(error) => Err(target_failure(error)),
    }
}
