use std::io::Write;
use std::sync::Mutex;
use std::time::Instant;

use crate::frame::Head;

/// Where the heads of frames are written: what a real host does can be told from them, without its data or tickets.
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
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let Head { kind, op, .. } = head;
        self.line(&format!("{} type={kind} op={op} payload={hex}", if from_host { "<-" } else { "->" }));
    }

    pub(crate) fn line(&self, text: &str) {
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A trace that cannot be written must not end a copy; its reader sees that lines are missing.
        let _ = writeln!(out, "{:.6} {text}", self.since.elapsed().as_secs_f64());
    }
}
