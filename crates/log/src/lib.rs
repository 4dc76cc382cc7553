//! What goes on, for whoever asks for it (`--verbose`, `--log-file`): a switch, a sink, and what stays hidden.
//!
//! Nothing is formatted while the switch is off, which costs one relaxed load. No line is written for a block or a
//! frame: for requests, connections, choices and retries. Secrets do not belong in a line; what was named to [`hold`] or [`hide`]
//! is replaced all the same, wherever it stands.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Arguments;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

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
static SECRETS: LazyLock<Mutex<Secrets>> = LazyLock::new(Mutex::default);

/// What no line may hold. Thousands of tickets are known at once, and each line is held against all of them.
#[derive(Default)]
struct Secrets {
    known: HashMap<String, Known>,
    /// Those that nobody holds, by when they were let go.
    gone: BTreeMap<u64, String>,
    let_go: u64,
    /// The forms in which secrets are written, by their first bytes.
    forms: HashMap<Start, Vec<String>>,
}

type Start = [u8; HIDDEN_BYTES_MIN];

/// What is known of a secret.
#[derive(Default)]
struct Known {
    users: usize,
    /// Its place among those that are gone.
    gone: Option<u64>,
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
        secrets().hold(secret);
    }
}

/// One who held a secret does so no more. It stays hidden until many others were used.
pub fn release(secret: &str) {
    if !is_secret(secret) {
        return;
    }
    let mut secrets = secrets();
    let Some(known) = secrets.known.get_mut(secret).filter(|known| known.users > 0) else { return };
    known.users -= 1;
    if known.users == 0 {
        secrets.let_go(secret);
    }
}

fn is_secret(text: &str) -> bool {
    is_on() && text.len() >= HIDDEN_BYTES_MIN
}

impl Secrets {
    fn hold(&mut self, secret: &str) {
        let known = self.know(secret);
        known.users += 1;
        if let Some(at) = known.gone.take() {
            self.gone.remove(&at);
        }
    }

    /// Nobody holds it, or nobody says for how long.
    fn let_go(&mut self, secret: &str) {
        self.let_go += 1;
        let at = self.let_go;
        let known = self.know(secret);
        if known.users > 0 {
            return;
        }
        if let Some(before) = known.gone.replace(at) {
            self.gone.remove(&before);
        }
        self.gone.insert(at, secret.to_string());
        while self.gone.len() > GONE_MAX {
            let Some((_, oldest)) = self.gone.pop_first() else { break };
            self.forget(&oldest);
        }
    }

    fn know(&mut self, secret: &str) -> &mut Known {
        if !self.known.contains_key(secret) {
            for form in forms(secret) {
                self.forms.entry(start_of(&form)).or_default().push(form);
            }
        }
        self.known.entry(secret.to_string()).or_default()
    }

    fn forget(&mut self, secret: &str) {
        self.known.remove(secret);
        for form in forms(secret) {
            let start = start_of(&form);
            let Some(alike) = self.forms.get_mut(&start) else { continue };
            if let Some(at) = alike.iter().position(|known| *known == form) {
                alike.swap_remove(at);
            }
            if alike.is_empty() {
                self.forms.remove(&start);
            }
        }
    }

    /// A text without the secrets.
    fn hidden_in(&self, text: &str) -> String {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (at, bytes) in text.as_bytes().windows(HIDDEN_BYTES_MIN).enumerate() {
            let Some(alike) = Start::try_from(bytes).ok().and_then(|start| self.forms.get(&start)) else {
                continue;
            };
            let is_here = |form: &&String| text.as_bytes()[at..].starts_with(form.as_bytes());
            let Some(longest) = alike.iter().filter(is_here).map(String::len).max() else { continue };
            // One may be a part of another, or begin within it: nothing of either stays.
            match found.last_mut().filter(|last| at < last.end) {
                Some(last) => last.end = last.end.max(at + longest),
                None => found.push(at..at + longest),
            }
        }
        let (mut out, mut kept) = (String::with_capacity(text.len()), 0);
        for span in found {
            out.push_str(&text[kept..span.start]);
            out.push_str(HIDDEN);
            kept = span.end;
        }
        out.push_str(&text[kept..]);
        out
    }
}

/// A secret as it is, and as JSON writes it.
fn forms(secret: &str) -> impl Iterator<Item = String> + use<> {
    [Some(secret.to_string()), in_json(secret)].into_iter().flatten()
}

/// The first bytes of a form, which is no shorter.
fn start_of(form: &str) -> Start {
    std::array::from_fn(|at| form.as_bytes()[at])
}

/// Writes a line; [`log!`] calls it.
pub fn write(part: &str, words: Arguments<'_>) {
    if let Some(sink) = SINK.get() {
        let text = words.to_string();
        // A sink that waits must not keep those waiting that use secrets.
        let text = secrets().hidden_in(&text);
        sink(part, &text);
    }
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

    fn knowing(secrets: &[&str]) -> Secrets {
        let mut known = Secrets::default();
        secrets.iter().for_each(|secret| known.let_go(secret));
        known
    }

    #[test]
    fn a_secret_is_found_as_json_writes_it() {
        let secrets = knowing(&["a\"b\\c", "tab\there\u{1}", "plain-é"]);
        let text = r#"{"one": "a\"b\\c", "two": "tab\there\u0001", "three": "plain-é"} a"b\c"#;
        assert_eq!(secrets.hidden_in(text), r#"{"one": "***", "two": "***", "three": "***"} ***"#);
    }

    #[test]
    fn a_secret_within_another_or_across_its_end_leaves_nothing_behind() {
        let secrets = knowing(&["abcd", "abcdefgh", "ghij-k"]);
        assert_eq!(secrets.hidden_in("x abcdefgh y abcd"), "x *** y ***");
        assert_eq!(secrets.hidden_in("éabcdefghij-ké, abc"), "é***é, abc");
    }

    #[test]
    fn a_secret_that_is_forgotten_leaves_those_that_begin_like_it() {
        let mut secrets = knowing(&["ticket-1", "ticket-2"]);
        secrets.hold("ticket-2");
        for number in 0..GONE_MAX {
            secrets.let_go(&format!("other-{number}"));
        }
        assert_eq!(secrets.hidden_in("ticket-1 ticket-2 other-7"), "ticket-1 *** ***");
        assert_eq!((secrets.gone.len(), secrets.known.len()), (GONE_MAX, GONE_MAX + 1));
        secrets.let_go("ticket-2");
        assert_eq!(secrets.hidden_in("ticket-2"), "***", "one who holds it does still");
    }
}
