//! A disk of an appliance, held against the appliance's own checksums while it is copied.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use drover_disk::DiskError;
use drover_endpoint::appliance_of;
use drover_engine::chain;
use drover_image::{ManifestCheck, Ova};
use drover_mover::StopSignal;
use drover_source::appliance::judge;

use crate::cli::CopyArgs;
use crate::exit::{Exit, Failure, MORE_THREADS, disk_exit};

/// A comparison that runs beside the copy; dropped, it is given up.
pub struct Proof {
    path: PathBuf,
    thread: Option<JoinHandle<Result<ManifestCheck, DiskError>>>,
    given_up: Arc<AtomicBool>,
}

impl Proof {
    /// Begins to read the descriptor and the disk's file, if the source is a disk of an appliance and its
    /// manifest is not to be ignored.
    pub fn start(args: &CopyArgs, stop: &StopSignal) -> Result<Option<Proof>, Failure> {
        let Some((path, disk)) = appliance_of(&args.source).filter(|_| !args.ignore_manifest) else {
            return Ok(None);
        };
        let ova = Ova::open(&path).map_err(|error| Failure::new(disk_exit(&error, ""), chain(&error)))?;
        let given_up = Arc::new(AtomicBool::new(false));
        let (stop, over) = (stop.clone(), given_up.clone());
        let go_on = move |_, _| match stop.is_set() || over.load(Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let thread = std::thread::Builder::new().spawn(move || ova.check_manifest_of(disk, go_on));
        let thread = thread.map_err(|error| {
            Failure::new(Exit::Internal, format!("starting a thread for the manifest: {error}"))
                .advise(MORE_THREADS)
        })?;
        Ok(Some(Proof { path, thread: Some(thread), given_up }))
    }

    /// Waits for it; what the manifest says, or the failure that it says otherwise.
    pub fn finish(mut self) -> Result<String, Failure> {
        let Some(thread) = self.thread.take() else { unreachable!("it is finished once") };
        let found = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let name = self.path.display().to_string();
        let check = found.map_err(|error| {
            Failure::new(Exit::Manifest, format!("the manifest of {name}: {}", chain(&error)))
        })?;
        judge(&name, &check).map_err(|what| {
            Failure::new(Exit::Manifest, what)
                .advise("get the appliance again; if you trust it as it is, add --ignore-manifest")
        })
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        self.given_up.store(true, Relaxed);
    }
}
