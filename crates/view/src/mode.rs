use std::io::IsTerminal;

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
        let term = std::env::var("TERM").unwrap_or_default();
        let can_move = std::io::stderr().is_terminal() && !term.is_empty() && term != "dumb";
        match (json, quiet, can_move) {
            (true, ..) => DisplayMode::Json,
            (_, true, _) => DisplayMode::Quiet,
            (.., true) => DisplayMode::Terminal,
            _ => DisplayMode::Plain,
        }
    }
}
