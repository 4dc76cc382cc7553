use std::path::Path;
use std::sync::Arc;

use drover_disk::fence::{Epoch, FenceFileError, Gate};
use drover_disk::{Disk, DiskError, Lanes};
use drover_nbd::wire::flag;
use drover_types::ByteSpan;

use crate::holes::Holes;
use crate::wire::{self, Run};

/// Tells what is known of a span of a disk: runs that start at the span's start, follow each other
/// and cover at least one byte and at most the span.
pub type Status = dyn Fn(ByteSpan) -> Vec<Run> + Send + Sync;

/// A disk under a name that clients ask for.
pub struct Export {
    pub(crate) name: String,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) lanes: Lanes,
    pub(crate) access: Access,
    pub(crate) holes: Option<Holes>,
    pub(crate) contexts: Vec<(String, Box<Status>)>,
}

pub(crate) enum Access {
    ReadOnly,
    /// Anybody who may connect may write.
    Writable,
    /// Writers are told apart by their epochs.
    Fenced(Gate),
}

impl Export {
    /// A disk to be read. Clients that ask for no name get it too, if it is the only one.
    pub fn new(name: &str, disk: Arc<dyn Disk>) -> Export {
        Export {
            name: name.to_string(),
            lanes: Lanes::new(disk.clone()),
            disk,
            access: Access::ReadOnly,
            holes: None,
            contexts: Vec::new(),
        }
    }

    /// Lets clients write, and keeps no epochs.
    #[must_use]
    pub fn writable(self) -> Export {
        Export { access: Access::Writable, ..self }
    }

    /// Lets clients write; those that carry an epoch (`drover:fence=N`) are fenced. The highest epoch
    /// is kept in this file; without one it is forgotten when the server ends.
    ///
    /// # Errors
    /// When the file cannot be used, or another server has it.
    pub fn fenced(self, file: Option<&Path>) -> Result<Export, FenceFileError> {
        let gate = file.map_or_else(|| Ok(Gate::in_memory()), Gate::open)?;
        Ok(Export { access: Access::Fenced(gate), ..self })
    }

    /// Answers reads of holes without data. Good for disks that know their holes without asking
    /// anyone: they are asked before each read.
    #[must_use]
    pub fn holes_in_reads(self) -> Export {
        let holes = self.disk.features().extents.then(|| Holes::new(self.disk.clone()));
        Export { holes, ..self }
    }

    /// Adds something that block status can tell, by the name of its context (`drover:recorded`).
    #[must_use]
    pub fn with_context(
        mut self,
        name: &str,
        status: impl Fn(ByteSpan) -> Vec<Run> + Send + Sync + 'static,
    ) -> Export {
        self.contexts.push((name.to_string(), Box::new(status)));
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The highest epoch that took the disk; `None` where epochs are not kept.
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.access {
            Access::Fenced(gate) => Some(gate.highest()),
            Access::ReadOnly | Access::Writable => None,
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        !matches!(self.access, Access::ReadOnly)
    }

    /// Transmission flags. Every connection leads to the same disk, whose flush covers all its lanes.
    pub(crate) fn flags(&self) -> u16 {
        let always = flag::HAS_FLAGS | flag::DF | flag::MULTI_CONN;
        if !self.is_writable() {
            return always | flag::READ_ONLY;
        }
        let trim = if self.disk.features().fast_zero { wire::FLAG_TRIM } else { 0 };
        always | flag::FLUSH | flag::FUA | flag::WRITE_ZEROES | trim
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// When the disk cannot.
    pub(crate) fn flush(&self) -> Result<(), DiskError> {
        if self.is_writable() { self.disk.flush() } else { Ok(()) }
    }
}
