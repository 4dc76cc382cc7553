//! What the program says: `drover_console` carries it out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use drover_console::out::{
    ask, csv, event, fresh_page, gone, json, large_json, line, print, say, say_in_json, say_of,
};

use drover_plan::{PlannedVm, Problem};
use drover_view::{CheckedVm, Grouping};

use crate::cli::RunArgs;
use crate::exit::{Exit, Failure};

/// Writes a page to a file, and says so.
pub fn page(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    let failed = |error| {
        Failure::new(Exit::Target, format!("writing {}: {error}", path.display()))
            .advise("name a file in a folder that you may write to")
    };
    std::fs::write(path, text).map_err(failed)?;
    say(format_args!("wrote {}", path.display()));
    Ok(())
}

/// Columns for tables: those of the terminal on standard output; where there is none, what `COLUMNS` says, if it is set.
pub fn columns() -> Option<usize> {
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    drover_view::terminal_columns().or_else(of_variable)
}

/// Says which command comes next, to people who want to read more than errors.
pub fn next(args: &RunArgs, command: impl std::fmt::Display) {
    if !args.json && !args.quiet {
        say(format_args!("next: {command}"));
    }
}

/// Says what is wrong with a file, if anything is.
pub fn problems(file: &std::path::Path, problems: &[Problem]) {
    if !problems.is_empty() {
        say(drover_view::problems_text(file, problems).trim_end());
    }
}

/// Says what is wrong with a plan, what its VMs share once; `--verbose` names them all.
pub fn problems_of(file: &std::path::Path, problems: &[Problem], vms: &[PlannedVm]) {
    let vms: Vec<CheckedVm> = vms.iter().map(CheckedVm::from).collect();
    let text = Grouping::new(&vms, crate::log::is_verbose()).problems(file, problems);
    if !text.is_empty() {
        say(text.trim_end());
    }
}

/// Lets through so many lines a second: what strangers cause must not fill a log.
#[derive(Debug)]
pub struct Throttle(Mutex<(Instant, u64)>);

impl Throttle {
    /// Lines a second.
    pub const LINES_MAX: u64 = 10;

    pub fn new() -> Throttle {
        Throttle(Mutex::new((Instant::now(), 0)))
    }

    /// Whether one more may pass; with the first of a second, how many of the last one were left out.
    pub fn pass(&self) -> (bool, u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if state.0.elapsed() >= Duration::from_secs(1) {
            left_out = state.1.saturating_sub(Throttle::LINES_MAX);
            *state = (Instant::now(), 0);
        }
        state.1 += 1;
        (state.1 <= Throttle::LINES_MAX, left_out)
    }
}
