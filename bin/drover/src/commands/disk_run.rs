//! What the commands for single disks have in common: signals, progress, what they say.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use drover_copy::RetryPolicy;
use drover_endpoint::End;
use drover_mover::{MemoryBudget, Progress, StopSignal, TransferOptions};
use drover_view::{CopyDisplay, DisplayMode};

use super::manifest::Proof;
use crate::cli::TuneArgs;
use crate::exit::{Exit, Failure};
use crate::signals::stop_on_signals;

/// One run of such a command.
pub struct DiskRun {
    pub stop: StopSignal,
    pub options: TransferOptions,
    mode: DisplayMode,
    quiet: bool,
    /// Threads that tell what is found out late.
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskRun {
    /// Begins to listen to signals.
    pub fn new(tune: &TuneArgs, json: bool, quiet: bool) -> Result<DiskRun, Failure> {
        let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
        Ok(DiskRun {
            stop,
            options: options(tune),
            mode: DisplayMode::choose(json, quiet),
            quiet,
            telling: Mutex::default(),
        })
    }

    /// Runs a transfer with its progress on show.
    pub fn shown<T>(&self, what: &str, work: impl FnOnce(&Progress) -> T) -> T {
        let progress = Arc::new(Progress::default());
        let display = CopyDisplay::start(self.mode, what, progress.clone());
        let result = work(&progress);
        display.finish();
        result
    }

    /// Says what a person should know.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            crate::out::say(text);
        }
    }

    /// Says what an appliance's manifest told, if there was one to ask.
    pub fn tell_proof(&self, proof: Option<Proof>) -> Result<(), Failure> {
        proof.map(Proof::finish).transpose()?.iter().for_each(|what| self.say(what));
        Ok(())
    }

    /// Says what was noticed at opening: now, or when it is found out.
    pub fn tell_notes(&self, end: &End) {
        end.notes.known().iter().for_each(|note| self.say(note));
        if self.quiet {
            return;
        }
        let Some(found) = end.notes.found() else { return };
        let tell = || found().iter().for_each(crate::out::say);
        let thread = std::thread::Builder::new().name("notes".into()).spawn(tell);
        self.telling.lock().unwrap_or_else(PoisonError::into_inner).extend(thread);
    }
}

impl Drop for DiskRun {
    /// What is still to be said is said before the end.
    fn drop(&mut self) {
        let telling = self.telling.get_mut().unwrap_or_else(PoisonError::into_inner);
        telling.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A share given in percent, as a number from 0 to 1.
pub fn share_of(percent: f64) -> Result<f64, Failure> {
    if (0.0..=100.0).contains(&percent) {
        return Ok(percent / 100.0);
    }
    Err(Failure::new(Exit::Usage, format!("--sample {percent} is not between 0 and 100")))
}

/// A seed that is another one in each run, so that repeated samples reach other blocks.
pub fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40)
}

/// Whatever is asked for, no disk takes more; the products of these stay far from any limit.
const LANES_MAX: usize = 1024;
const DEPTH_MAX: usize = 4096;
const REQUEST_BYTES_MAX: u64 = 1 << 30;

fn options(tune: &TuneArgs) -> TransferOptions {
    TransferOptions {
        lanes: tune.lanes.map(|lanes| lanes.min(LANES_MAX)),
        depth: tune.depth.map(|depth| depth.min(DEPTH_MAX)),
        request_bytes: tune.request.map(|bytes| bytes.0.min(REQUEST_BYTES_MAX)),
        retry: RetryPolicy { give_up_after: Duration::from_secs(tune.retry_for), ..RetryPolicy::default() },
        memory: MemoryBudget::new(tune.memory.0.max(1)),
    }
}
