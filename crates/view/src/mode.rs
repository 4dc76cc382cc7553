use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisplayMode {
    /// Lines that change in place, on standard error.
    Terminal,
    /// Lines with a time stamp, on standard error.
    Plain,
    /// One JSON object per line, on standard output.
    Json,
    /// Nothing but failures, on standard error.
    Quiet,
}

impl DisplayMode {
    /// What was asked for, or else what standard error can show.
    pub fn choose(json: bool, quiet: bool) -> DisplayMode {
        let can_move = can_move(&std::io::stderr());
        match (json, quiet, can_move) {
            (true, ..) => DisplayMode::Json,
            (_, true, _) => DisplayMode::Quiet,
            (.., true) => DisplayMode::Terminal,
            _ => DisplayMode::Plain,
        }
    }
}

static PLAIN: AtomicBool = AtomicBool::new(false);

/// Whether all that is shown is lines that stay, also on a terminal.
pub fn set_plain_display(is_plain: bool) {
    PLAIN.store(is_plain, Ordering::Relaxed);
}

/// Whether this is a terminal whose lines can be drawn again.
pub fn can_move(out: &impl IsTerminal) -> bool {
    if PLAIN.load(Ordering::Relaxed) {
        return false;
    }
    let term = std::env::var("TERM").unwrap_or_default();
    out.is_terminal() && !term.is_empty() && term != "dumb"
}
