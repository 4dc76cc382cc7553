//! Ctrl-C, SIGTERM and SIGHUP, and what must be undone before the process ends.

use std::io::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drover_mover::StopSignal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{SigId, flag, low_level};

/// What was asked of the kernel, and how many [`Undo`]s there are.
struct State {
    stop: StopSignal,
    signals: Vec<i32>,
    /// What ends the process at a second signal; nothing while something is to be undone.
    ending: Vec<SigId>,
    stopping: Vec<SigId>,
    undos: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first signal asks for a clean stop, the second ends the process at once; both lose nothing,
/// because only what was flushed is in the journal. What does lose something says so by [`Undo`].
/// SIGHUP counts unless it was ignored already (`nohup`).
///
/// # Errors
/// What the kernel says if it takes no handler.
pub fn stop_on_signals() -> Result<StopSignal> {
    let hangup = (!is_hangup_ignored()).then_some(SIGHUP);
    let signals = [SIGINT, SIGTERM].into_iter().chain(hangup).collect();
    let stop = StopSignal::default();
    let (ending, stopping) = (Vec::new(), Vec::new());
    let mut fresh = State { stop: stop.clone(), signals, ending, stopping, undos: 0 };
    fresh.arm()?;
    *state() = Some(fresh);
    Ok(stop)
}

/// Lets a write beyond a limit on the size of files (`ulimit -f`) fail as one without room, which can be gone on with;
/// without it the kernel ends the process. Programs that this one starts are not concerned.
pub fn take_file_size_limits() {
    // A kernel that takes no handler ends the process as before.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

impl State {
    /// Ending comes before stopping, or a first signal would be a second one.
    fn arm(&mut self) -> Result<()> {
        let old = std::mem::take(&mut self.stopping);
        for signal in &self.signals {
            self.ending.push(flag::register_conditional_shutdown(*signal, 130, self.stop.flag())?);
            self.stopping.push(flag::register(*signal, self.stop.flag())?);
        }
        forget(old);
        Ok(())
    }
}

fn forget(ids: Vec<SigId>) {
    for id in ids {
        low_level::unregister(id);
    }
}

/// Bit 0 is signal 1.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// While there is one, something is to be undone before the process ends: further signals, and readers of its
/// output that have gone, ask for the clean stop and nothing more.
#[derive(Debug)]
pub struct Undo(());

impl Undo {
    /// To be made before what it stands for, after [`stop_on_signals`], and dropped when that is undone.
    pub fn begin() -> Undo {
        if let Some(state) = &mut *state() {
            state.undos += 1;
            forget(std::mem::take(&mut state.ending));
        }
        Undo(())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(state) = &mut *state() {
            state.undos -= 1;
            if state.undos == 0 {
                // Without it a second signal does no more than the first.
                let _ = state.arm();
            }
        }
    }
}

/// Asks for the clean stop if something is to be undone; gives whether it is.
pub fn stop_to_undo() -> bool {
    match &*state() {
        Some(state) if state.undos > 0 => {
            state.stop.stop();
            true
        }
        Some(_) | None => false,
    }
}
