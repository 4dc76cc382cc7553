//! What goes on, for whoever asks for it (`--verbose`, `--log-file`): a switch, a sink, and what stays hidden.
//!
//! Nothing is formatted while the switch is off, which costs one relaxed load. No line is written for a block or a
//! frame: for requests, connections, choices and retries. Secrets do not belong in a line; what was named to [`hide`] is
//! replaced all the same, wherever it stands.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::collections::VecDeque;
use std::fmt::Arguments;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Takes lines: the part of drover that tells, and what it tells.
pub type Sink = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Secrets known at once; a process that runs for months gets new tickets all the time, and the oldest are worth nothing.
const HIDDEN_MAX: usize = 4096;
/// Shorter texts are no secrets, and would be found everywhere.
const HIDDEN_BYTES_MIN: usize = 4;
/// What stands for a secret.
const HIDDEN: &str = "***";

static IS_ON: AtomicBool = AtomicBool::new(false);
static SINK: OnceLock<Sink> = OnceLock::new();
static SECRETS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

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

/// A text that must never be in the log: a password, a ticket, a token, a session.
pub fn hide(secret: &str) {
    if !is_on() || secret.len() < HIDDEN_BYTES_MIN {
        return;
    }
    let mut secrets = secrets();
    if !secrets.iter().any(|known| known == secret) {
        secrets.push_back(secret.to_string());
        let over = secrets.len().saturating_sub(HIDDEN_MAX);
        secrets.drain(..over);
    }
}

/// Writes a line; [`log!`] calls it.
pub fn write(part: &str, words: Arguments<'_>) {
    if let Some(sink) = SINK.get() {
        sink(part, &without(&words.to_string(), secrets().iter()));
    }
}

/// A text without these secrets. The longest go first: one may be a part of another.
fn without<'a>(text: &str, secrets: impl Iterator<Item = &'a String>) -> String {
    let mut found: Vec<&String> = secrets.filter(|secret| text.contains(secret.as_str())).collect();
    found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    found.into_iter().fold(text.to_string(), |text, secret| text.replace(secret.as_str(), HIDDEN))
}

fn secrets() -> MutexGuard<'static, VecDeque<String>> {
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
        assert!(start(Box::new(move |part, text| sink.lock().unwrap().push(format!("{part}: {text}")))));
        hide("hunter2");
        hide("hunter2-and-more");
        hide("no");
        log!("test", "{} of hunter2-and-more, hunter2: no", count());
        for number in 0..HIDDEN_MAX {
            hide(&format!("ticket-{number}"));
        }
        log!("test", "ticket-{} hunter2", HIDDEN_MAX - 1);
        assert_eq!(
            *lines.lock().unwrap(),
            ["test: 1 of ***, ***: no", "test: *** hunter2"],
            "the oldest secrets are forgotten, never the newest"
        );
        assert!(secrets().len() == HIDDEN_MAX && !start(Box::new(|_, _| {})));
    }

    #[test]
    fn a_secret_within_another_leaves_nothing_behind() {
        let secrets = ["abcd".to_string(), "abcdefgh".to_string()];
        assert_eq!(without("x abcdefgh y abcd", secrets.iter()), "x *** y ***");
    }
}
