//! Ctrl-C and SIGTERM.

use drover_mover::StopSignal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The first signal asks for a clean stop, the second ends the process at once; both lose nothing,
/// because only what was flushed is in the journal.
pub fn stop_on_signals() -> std::io::Result<StopSignal> {
    let stop = StopSignal::default();
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 130, stop.flag())?;
        flag::register(signal, stop.flag())?;
    }
    Ok(stop)
}
