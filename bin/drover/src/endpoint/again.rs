//! Targets opened once more, to be verified.

use std::path::Path;
use std::sync::Arc;

use drover_disk::{Disk, DiskErrorKind};
use drover_engine::chain;
use drover_qcow2::Qcow2Disk;

use super::format_of;
use super::path::{real_path, target_failure};
use super::place::path_of;
use crate::cli::{CopyArgs, Format};
use crate::exit::{Exit, Failure};

/// The disk that a target is verified by. An image is opened anew: the writer's tables lie in memory, where a write
/// of them that was lost does not show. Raw targets keep nothing in memory and are read past the page cache as they are.
pub fn for_verify(args: &CopyArgs, target: &Arc<dyn Disk>) -> Result<Arc<dyn Disk>, Failure> {
    match path_of(&args.target) {
        Some(path) if format_of(&path, args.format) == Format::Qcow2 => image(&real_path(&path)?),
        _ => Ok(target.clone()),
    }
}

fn image(path: &Path) -> Result<Arc<dyn Disk>, Failure> {
    match Qcow2Disk::open_for_verify(path) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(error) if error.kind == DiskErrorKind::Corrupt => {
            Err(Failure::new(Exit::Verification, format!("reading back what was written: {}", chain(&error)))
                .advise("look at its disk and file system for errors, then copy again with --force"))
        }
        Err(error) => Err(target_failure(error)),
    }
}
