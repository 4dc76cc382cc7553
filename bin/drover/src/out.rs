//! Standard output, whose reader may go away at any time (`drover ... | head`).

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_types::calendar::moment_text;
use drover_view::PlainJson;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::RunArgs;
use crate::exit::{Exit, Failure};

/// Bytes that are written at once of what is large.
const WRITTEN_BYTES: usize = 64 << 10;
/// What a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: i32 = 141;

/// Writes to standard output, for people: what others named themselves drives no terminal. For programs there is
/// [`json`]. Ends the program, without a word, when nobody reads any more; while something is to
/// be undone ([`crate::signals::Undo`]) it is asked to stop instead, and what was to be written is lost.
pub fn print(text: &str) {
    put(&drover_view::plain(text));
}

/// Writes JSON and a line end. It says exactly what it was, and drives no terminal.
pub fn json(text: impl std::fmt::Display) {
    put(&(drover_view::plain_json(&text.to_string()) + "\n"));
}

/// The same, indented, of what is made one piece after the other and may be large.
pub fn large_json(document: &impl Serialize) {
    let mut out = PlainJson(BufWriter::with_capacity(WRITTEN_BYTES, io::stdout().lock()));
    let done = serde_json::to_writer_pretty(&mut out, document).map_err(io::Error::from);
    is_written(done.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()));
}

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

/// Goes to the beginning of the terminal on standard output, and empties it.
pub fn fresh_page() {
    put("\x1b[H\x1b[J");
}

/// Columns for tables: those of the terminal on standard output; where there is none, what `COLUMNS` says, if it is set.
pub fn columns() -> Option<usize> {
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    drover_view::terminal_columns().or_else(of_variable)
}

/// Asks a person for something, on standard error.
pub fn ask(text: &str) {
    // Where nobody listens, nobody will answer.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn put(text: &str) {
    let mut out = io::stdout().lock();
    is_written(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn is_written(result: io::Result<()>) {
    match result {
        Ok(()) => {}
        Err(_) if crate::signals::stop_to_undo() => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => gone(),
        Err(error) => {
            say(format_args!("error: standard output cannot be written: {error}"));
            exit(crate::exit::Exit::Internal as i32);
        }
    }
}

/// Writes a line.
pub fn line(text: impl std::fmt::Display) {
    print(&format!("{text}\n"));
}

/// Ends the program, without a word, because nobody reads any more.
pub fn gone() -> ! {
    exit(BROKEN_PIPE)
}

/// Says something to a person, on standard error. What others named themselves drives no terminal. Where nobody
/// listens any more nothing is said, and the program is asked to stop while something is to be undone.
pub fn say(text: impl std::fmt::Display) {
    match IS_JSON.load(Ordering::Relaxed) {
        true => event(json!({"event": "said", "message": text.to_string()})),
        false => tell(&drover_view::plain(&text.to_string())),
    }
}

/// Whether all that is said is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on all that is said is JSON, an object with its moment a line.
pub fn say_in_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// Says what became of an object of a cluster.
pub fn say_of(kind: &str, name: &str, reason: &str, message: &str) {
    match IS_JSON.load(Ordering::Relaxed) {
        true => {
            event(json!({"event": "told", "kind": kind, "name": name, "reason": reason, "message": message}))
        }
        false => say(format_args!("{kind} {name}: {reason}: {message}")),
    }
}

/// Says an event: JSON in any case, with its moment where all is.
pub fn event(mut event: Value) {
    if IS_JSON.load(Ordering::Relaxed)
        && let Some(fields) = event.as_object_mut()
    {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let moment = moment_text(i64::try_from(since.as_millis()).unwrap_or_default());
        fields.insert("time".into(), json!(moment));
    }
    tell(&drover_view::plain_json(&event.to_string()));
}

fn tell(line: &str) {
    if writeln!(std::io::stderr(), "{line}").is_err() {
        crate::signals::stop_to_undo();
    }
}

/// Says which command comes next, to people who want to read more than errors.
pub fn next(args: &RunArgs, command: impl std::fmt::Display) {
    if !args.json && !args.quiet {
        say(format_args!("next: {command}"));
    }
}

/// Says what is wrong with a file, if anything is.
pub fn problems(file: &std::path::Path, problems: &[drover_plan::Problem]) {
    if !problems.is_empty() {
        say(drover_view::problems_text(file, problems).trim_end());
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
