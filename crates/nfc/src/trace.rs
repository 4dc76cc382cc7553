use std::io::Write;
use std::sync::Mutex;
use std::time::Instant;

use crate::frame::{Head, u32_at};

/// Characters of a host's error that are written.
const TEXT_MAX: usize = 200;

/// Where messages and the heads of frames are written: what a real host does can be told from them, without its data or
/// tickets.
pub struct Trace {
    out: Mutex<Box<dyn Write + Send>>,
    since: Instant,
}

impl Trace {
    /// A trace into `out`.
    pub fn new(out: Box<dyn Write + Send>) -> Trace {
        Trace { out: Mutex::new(out), since: Instant::now() }
    }

    pub(crate) fn frame(&self, from_host: bool, head: &Head, payload: &[u8]) {
        let Head { kind, op, .. } = head;
        self.line(&format!("{} type={kind} op={op} payload={}", arrow(from_host), hex(payload)));
    }

    /// A classic message, up to the last word that is not zero. What follows it is not part of it.
    pub(crate) fn message(&self, from_host: bool, message: &[u8]) {
        let end = message.iter().rposition(|byte| *byte != 0).map_or(4, |last| last / 4 * 4 + 4);
        let (kind, body) = (u32_at(message, 0), hex(&message[4..end]));
        self.line(&format!("{} classic type={kind} body={body}", arrow(from_host)));
    }

    /// What a host says of an error.
    pub(crate) fn text(&self, text: &str) {
        let text: String = text.chars().take(TEXT_MAX).collect();
        self.line(&format!("<- text={text}"));
    }

    pub(crate) fn line(&self, text: &str) {
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A trace that cannot be written must not end a copy; its reader sees that lines are missing.
        let _ = writeln!(out, "{:.6} {text}", self.since.elapsed().as_secs_f64());
    }
}

fn arrow(from_host: bool) -> &'static str {
    if from_host { "<-" } else { "->" }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
