//! Standard output, whose reader may go away at any time (`drover ... | head`), and what is said on standard error.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use drover_types::calendar::moment_text;
use drover_types::shown::{PlainJson, plain, plain_json};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Exit;

/// Bytes that are written at once of what is large.
const WRITTEN_BYTES: usize = 64 << 10;
/// What a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: i32 = 141;

/// Writes to standard output, for people: what others named themselves drives no terminal. For programs there is
/// [`json`]. Ends the program, without a word, when nobody reads any more; while something is to
/// be undone ([`crate::signals::Undo`]) it is asked to stop instead, and what was to be written is lost.
pub fn print(text: &str) {
    put(&plain(text));
}

/// Writes JSON and a line end. It says exactly what it was, and drives no terminal.
pub fn json(text: impl std::fmt::Display) {
    put(&(plain_json(&text.to_string()) + "\n"));
}

/// The same, indented, of what is made one piece after the other and may be large.
pub fn large_json(document: &impl Serialize) {
    let mut out = PlainJson(BufWriter::with_capacity(WRITTEN_BYTES, io::stdout().lock()));
    let done = serde_json::to_writer_pretty(&mut out, document).map_err(io::Error::from);
    is_written(done.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()));
}

/// Goes to the beginning of the terminal on standard output, and empties it.
pub fn fresh_page() {
    put("\x1b[H\x1b[J");
}

/// Writes a table as CSV, whose cells drive no terminal already; it keeps its line ends.
pub fn csv(text: &str) {
    put(text);
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
            exit(Exit::Internal as i32);
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
        false => tell(&plain(&text.to_string())),
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
    tell(&plain_json(&event.to_string()));
}

fn tell(line: &str) {
    if writeln!(std::io::stderr(), "{line}").is_err() {
        crate::signals::stop_to_undo();
    }
}
