//! The ends of `drover copy` and its sisters: from a path or URI to an open disk.
//!
//! ```text
//! place     what a text names; named: and how it was asked for; format: of which format it is
//! source    disks to be read
//! target    disks to be written, and which of them are refused
//! existing  targets that hold all but a part already
//! again     targets opened once more, to be verified
//! agent     disks of other sites
//! qcow2     qcow2 images as they are asked for; image: those that QEMU's server writes
//! guard     what must not be overwritten, whosever it is
//! path      paths of targets, and what those have to be that are changed in place
//! errors    why an end cannot be had, and whose fault an error of a disk is
//! ```
//!
//! Nothing here ends a program, reads an option or prints.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod again;
mod agent;
mod errors;
mod existing;
mod format;
pub mod guard;
mod image;
mod named;
mod path;
mod place;
mod qcow2;
mod source;
mod target;

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use drover_agent::AgentDisk;
use drover_disk::Disk;
use drover_landing::images::OpenImage;

pub use again::for_verify;
pub use errors::{EndError, disk_cause};
pub use existing::open_existing_target;
pub use format::ToldFormat;
pub use named::{NamedSource, NamedTarget};
pub use place::{AgentPlace, Place, appliance_of, is_stream, nbd_uri_of, path_of, place};
pub use source::{open_in_place, open_source};
pub use target::open_target;

/// An open end of a copy.
pub struct End {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// What must live as long as the disk: image servers, sessions.
    pub keep: Vec<Box<dyn Any + Send + Sync>>,
    /// What was noticed.
    pub notes: Notes,
    /// The disk again, if it is another site's.
    pub link: Option<Arc<AgentDisk>>,
}

/// What was noticed when a disk was opened.
#[derive(Default)]
pub struct Notes {
    known: Vec<String>,
    /// A look at its beginning. A far source takes as long to answer it as for the first block, and the copy need not wait.
    look: Mutex<Option<JoinHandle<Option<String>>>>,
}

impl Notes {
    /// What is known by now.
    pub fn known(&self) -> &[String] {
        &self.known
    }

    /// Waits for what a look under way finds; absent where there is none, or this was asked before.
    pub fn found(&self) -> Option<impl FnOnce() -> Option<String> + Send + 'static> {
        let look = self.look.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(|| look.join().ok()?)
    }

    fn look(&mut self, look: impl FnOnce() -> Option<String> + Send + 'static) {
        // Where no thread can be had a note is left out, no more.
        self.look = Mutex::new(std::thread::Builder::new().name("look".into()).spawn(look).ok());
    }
}

impl From<Vec<String>> for Notes {
    fn from(known: Vec<String>) -> Notes {
        Notes { known, look: Mutex::default() }
    }
}

/// A target, and what is known of it.
pub struct TargetEnd {
    /// The disk.
    pub end: End,
    /// What tells it from others, in its journal.
    pub tag: String,
    /// Whether nothing of it counts that was there before.
    pub is_new: bool,
    /// Whether it is proven to be zero where nothing was written.
    pub zeroed: bool,
    /// Where its journal lies, if nothing else is said.
    pub journal: Option<PathBuf>,
}

impl From<OpenImage> for TargetEnd {
    fn from(image: OpenImage) -> TargetEnd {
        let OpenImage { disk, tag, is_new, zeroed, journal, notes } = image;
        let end = End { disk, keep: Vec::new(), notes: notes.into(), link: None };
        TargetEnd { end, tag, is_new, zeroed, journal: Some(journal) }
    }
}
