//! What goes on, for whoever asks for it (`--verbose`, `--log-file`): a switch, a sink, and what stays hidden.
//!
//! Nothing is formatted while the switch is off, which costs one relaxed load. No line is written for a block or a
//! frame: for requests, connections, choices and retries. Secrets do not belong in a line; what was named to [`hold`] or [`hide`]
//! is replaced all the same, wherever it stands.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Arguments;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Takes lines: the part of drover that tells, and what it tells.
pub type Sink = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Secrets that nobody holds any more are known so many at once; a process that runs for months gets new tickets all the time,
/// and the oldest are worth nothing.
const GONE_MAX: usize = 4096;
/// Shorter texts are no secrets, and would be found everywhere.
const HIDDEN_BYTES_MIN: usize = 4;
/// What stands for a secret.
const HIDDEN: &str = "***";

static IS_ON: AtomicBool = AtomicBool::new(false);
static SINK: OnceLock<Sink> = OnceLock::new();
static SECRETS: Mutex<Secrets> = Mutex::new(Secrets { held: BTreeMap::new(), gone: VecDeque::new() });

/// What no line may hold.
struct Secrets {
    /// Those in use, and by how many.
    held: BTreeMap<String, usize>,
    /// Others, the latest last.
    gone: VecDeque<String>,
}

/// Tells what goes on: `log!("http", "connected to {host}")`. Nothing is formatted where nobody asked for it.
#[macro_export]
macro_rules! log {
    ($part:expr, $($words:tt)*) => {
        if $crate::is_on() {
            $crate::write($part, format_args!($($words)*));
        }
    };
}

/// Switches the log on, for good; false if it was on.
pub fn start(sink: Sink) -> bool {
    let is_first = SINK.set(sink).is_ok();
    IS_ON.store(true, Ordering::Relaxed);
    is_first
}

/// Whether somebody asked for it.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A text that must not be in the log, of which nobody says how long it is in use: a session.
pub fn hide(secret: &str) {
    if is_secret(secret) {
        secrets().let_go(secret);
    }
}

/// A text that must not be in the log as long as it is in use: a password, a ticket, a token. Ends with [`release`].
pub fn hold(secret: &str) {
    if is_secret(secret) {
        *secrets().held.entry(secret.to_string()).or_default() += 1;
    }
}

/// One who held a secret does so no more. It stays hidden until many others were used.
pub fn release(secret: &str) {
    if !is_secret(secret) {
        return;
    }
    let mut secrets = secrets();
    let Some(users) = secrets.held.get_mut(secret) else { return };
    *users -= 1;
    if *users == 0 {
        secrets.held.remove(secret);
        secrets.let_go(secret);
    }
}

fn is_secret(text: &str) -> bool {
    is_on() && text.len() >= HIDDEN_BYTES_MIN
}

impl Secrets {
    fn let_go(&mut self, secret: &str) {
        self.gone.retain(|known| known != secret);
        self.gone.push_back(secret.to_string());
        let over = self.gone.len().saturating_sub(GONE_MAX);
        self.gone.drain(..over);
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.held.keys().chain(&self.gone)
    }
}

/// Writes a line; [`log!`] calls it.
pub fn write(part: &str, words: Arguments<'_>) {
    if let Some(sink) = SINK.get() {
        let text = words.to_string();
        // A sink that waits must not keep those waiting that use secrets.
        let text = without(&text, secrets().all());
        sink(part, &text);
    }
}

/// A text without these secrets, as they are and as JSON writes them. The longest go first: one may be a part of another.
fn without<'a>(text: &str, secrets: impl Iterator<Item = &'a String>) -> String {
    let forms =
        secrets.flat_map(|secret| [Some(Cow::from(secret)), in_json(secret).map(Cow::from)]).flatten();
    let mut found: Vec<Cow<'_, str>> = forms.filter(|form| text.contains(form.as_ref())).collect();
    found.sort_by_key(|form| std::cmp::Reverse(form.len()));
    found.into_iter().fold(text.to_string(), |text, form| text.replace(form.as_ref(), HIDDEN))
}

/// What stands for a text between the quotes of JSON, where that is something else.
fn in_json(text: &str) -> Option<String> {
    let is_escaped = |c: char| matches!(c, '"' | '\\' | '\0'..'\u{20}');
    if !text.contains(is_escaped) {
        return None;
    }
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\u{8}' => "\\b".into(),
        '\u{c}' => "\\f".into(),
        c if is_escaped(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.into(),
    };
    Some(text.chars().map(escape).collect())
}

fn secrets() -> MutexGuard<'static, Secrets> {
    SECRETS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    // One test: the switch is the process's.
    #[test]
    fn nothing_is_formatted_before_somebody_asks_and_no_secret_is_written_after() {
        let mut formatted = 0;
        let mut count = || {
            formatted += 1;
            formatted
        };
        hide("early-secret");
        log!("test", "{}", count());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        assert!(start(Box::new(move |part, text| {
            hide("a secret that comes up while a line is written");
            sink.lock().unwrap().push(format!("{part}: {text}"));
        })));
        let users = [(); 2].map(|()| hold("hunter2"));
        hide("hunter2-and-more");
        hide("no");
        log!("test", "{} of hunter2-and-more, hunter2: no", count());
        let tickets = || {
            for number in 0..GONE_MAX {
                hold(&format!("ticket-{number}"));
                release(&format!("ticket-{number}"));
            }
        };
        tickets();
        release("hunter2");
        log!("test", "ticket-{} hunter2 hunter2-and-more", GONE_MAX - 1);
        release("hunter2");
        log!("test", "hunter2");
        tickets();
        log!("test", "hunter2");
        let told = ["1 of ***, ***: no", "*** *** ***-and-more", "***", "hunter2"];
        assert_eq!(
            *lines.lock().unwrap(),
            told.map(|words| format!("test: {words}")),
            "what is in use is never forgotten, and the oldest of what is not"
        );
        assert!(users.len() == 2 && secrets().gone.len() == GONE_MAX && !start(Box::new(|_, _| {})));
    }

    #[test]
    fn a_secret_is_found_as_json_writes_it() {
        let secrets = ["a\"b\\c".to_string(), "tab\there\u{1}".to_string(), "plain-é".to_string()];
        let text = r#"{"one": "a\"b\\c", "two": "tab\there\u0001", "three": "plain-é"} a"b\c"#;
        assert_eq!(without(text, secrets.iter()), r#"{"one": "***", "two": "***", "three": "***"} ***"#);
    }

    #[test]
    fn a_secret_within_another_leaves_nothing_behind() {
        let secrets = ["abcd".to_string(), "abcdefgh".to_string()];
        assert_eq!(without("x abcdefgh y abcd", secrets.iter()), "x *** y ***");
    }
}
