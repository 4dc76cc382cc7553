use std::thread;
use std::time::{Duration, Instant};

use crate::collect::{filter_spec, just};
use crate::error::{VsphereError, VsphereErrorKind};
use crate::outage::Patience;
use crate::session::{Call, Inner};
use crate::soap::{Moref, tag, task_fault};
use crate::xml::Element;

/// How long the server may hold one wait open: a stop is noticed within this time, and a dead server too.
const WAIT_SECONDS_MAX: u64 = 3;
/// After a stop, a task may still end by itself for so long: what it did is known then, and can be undone.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// Failures in a row to ask for a change, before the wait is given up.
const FAILURES_MAX: u32 = 8;
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has not, or nobody knows: a state without a meaning here is waited out until time is up.
    NotYet,
    Success,
    Error,
}

fn end_of(info: &Element) -> End {
    match info.text_at("state") {
        Some("success") => End::Success,
        Some("error") => End::Error,
        _ => End::NotYet,
    }
}

impl Inner {
    /// Starts a task and waits for its end: its result, if it has one.
    pub fn run_task(&self, call: &Call<'_>, timeout: Duration) -> Result<Option<Element>, VsphereError> {
        self.run_task_with(call, self.patience(), timeout)
    }

    /// The same, and it is sent with this patience. Its end is waited for in any case.
    pub fn run_task_with(
        &self,
        call: &Call<'_>,
        patience: Patience<'_>,
        timeout: Duration,
    ) -> Result<Option<Element>, VsphereError> {
        let answer = self.call_with(call, patience)?;
        let task = answer.child("returnval").map(Moref::of).filter(|task| !task.id.is_empty());
        let task = task.ok_or_else(|| {
            VsphereError::new(VsphereErrorKind::NotVsphere, call.op, "no task in the answer")
        })?;
        match self.wait_task(call.op, &task, timeout) {
            Err(stopped) if stopped.kind == VsphereErrorKind::Stopped => self.end_task(call, &task, stopped),
            done => done,
        }
    }

    /// After a stop: a snapshot need not be made to its end, whatever else was begun goes on by itself.
    fn end_task(
        &self,
        call: &Call<'_>,
        task: &Moref,
        stopped: VsphereError,
    ) -> Result<Option<Element>, VsphereError> {
        if call.method == "CreateSnapshot_Task" {
            let cancel = Call { op: call.op, method: "CancelTask", this: task, arguments: "", is_read: true };
            // One that cannot be cancelled is waited for as the others are.
            let _ = self.call(&cancel);
        }
        match self.wait_task(call.op, task, STOP_TIME_MAX) {
            Err(error) if error.is_fault("RequestCanceled") => Err(stopped),
            Err(error) if error.kind == VsphereErrorKind::Timeout => {
                Err(VsphereError { source: Some("its task goes on at the server".into()), ..stopped })
            }
            done => done,
        }
    }

    /// Waits for the end of a task.
    pub fn wait_task(
        &self,
        op: &str,
        task: &Moref,
        timeout: Duration,
    ) -> Result<Option<Element>, VsphereError> {
        let is_over = |info: &Element| end_of(info) != End::NotYet;
        let info = self.wait_for(op, task, "info.state", "info", timeout, is_over);
        // It was there. What its end says of other objects comes with the end.
        let info =
            info.map_err(|error| if error.is_gone() { VsphereError::of_lost_task(op) } else { error })?;
        if end_of(&info) == End::Success {
            return Ok(info.child("result").cloned());
        }
        let nothing = Element::default();
        Err(VsphereError::of_fault(op, task_fault(info.child("error").unwrap_or(&nothing))))
    }

    /// Waits until the property `path` of `object` satisfies `done`; `watched` is the part of it whose change is
    /// worth a look. Reads first: what is waited for may have happened already.
    pub fn wait_for(
        &self,
        op: &str,
        object: &Moref,
        watched: &str,
        path: &str,
        timeout: Duration,
        done: impl Fn(&Element) -> bool,
    ) -> Result<Element, VsphereError> {
        let work = self.begin();
        let deadline = Instant::now() + timeout;
        let mut watch: Option<Watch<'_>> = None;
        let mut failures = 0;
        loop {
            let seen = self.read(op, object, &[path])?.get(path).cloned().unwrap_or_default();
            if done(&seen) {
                return Ok(seen);
            }
            work.check(op)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("not done after {} s", timeout.as_secs());
                return Err(VsphereError::new(VsphereErrorKind::Timeout, op, why));
            }
            match Watch::next(&mut watch, self, op, object, watched, left) {
                Ok(()) => failures = 0,
                // The collector ends with its session and with the connection; the next round makes another.
                Err(error) if failures >= FAILURES_MAX => return Err(error),
                Err(_) => {
                    failures += 1;
                    watch = None;
                    thread::sleep(FAILURE_PAUSE.min(left));
                }
            }
        }
    }
}

/// A property collector of our own with one filter: threads that share one would get each other's changes.
struct Watch<'a> {
    session: &'a Inner,
    collector: Moref,
    version: String,
}

impl<'a> Watch<'a> {
    /// Waits for the next change, or for a while.
    fn next(
        watch: &mut Option<Self>,
        session: &'a Inner,
        op: &str,
        object: &Moref,
        watched: &str,
        left: Duration,
    ) -> Result<(), VsphereError> {
        let watch = match watch {
            Some(watch) => watch,
            none => none.insert(Watch::start(session, op, object, watched)?),
        };
        // The first answer tells how things are, at once. Ours has been read, but it may have changed since.
        watch.wait(op, left)
    }

    fn start(session: &'a Inner, op: &str, object: &Moref, watched: &str) -> Result<Self, VsphereError> {
        let this = &session.content.collector;
        let call = Call { op, method: "CreatePropertyCollector", this, arguments: "", is_read: true };
        let answer = session.call(&call)?;
        let collector = answer.child("returnval").map(Moref::of);
        let collector = collector.ok_or_else(|| {
            VsphereError::new(VsphereErrorKind::NotVsphere, op, "no property collector in the answer")
        })?;
        let watch = Watch { session, collector, version: String::new() };
        let spec = filter_spec(&[(&object.kind, &[watched])], &just(object));
        let arguments = format!("<spec>{spec}</spec>{}", tag("partialUpdates", "false"));
        session.call(&Call {
            op,
            method: "CreateFilter",
            this: &watch.collector,
            arguments: &arguments,
            is_read: true,
        })?;
        Ok(watch)
    }

    fn wait(&mut self, op: &str, left: Duration) -> Result<(), VsphereError> {
        let seconds = left.as_secs().clamp(1, WAIT_SECONDS_MAX).to_string();
        let arguments =
            tag("version", &self.version) + "<options>" + &tag("maxWaitSeconds", &seconds) + "</options>";
        let call = Call {
            op,
            method: "WaitForUpdatesEx",
            this: &self.collector,
            arguments: &arguments,
            is_read: true,
        };
        let answer = self.session.call(&call)?;
        // No answer value means that nothing changed. A truncated one goes on in the next.
        if let Some(version) = answer.child("returnval").and_then(|update| update.text_at("version")) {
            self.version = version.to_string();
        }
        Ok(())
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // What stays behind ends with the session.
        let op = "end a wait";
        let call = Call {
            op,
            method: "DestroyPropertyCollector",
            this: &self.collector,
            arguments: "",
            is_read: false,
        };
        let _ = self.session.call(&call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn a_state_that_nobody_knows_is_no_success() {
        let end = |text: &str| end_of(&xml::parse(text).unwrap());
        let of = |state: &str| end(&format!("<info><state>{state}</state><progress>100</progress></info>"));
        assert_eq!((of("success"), of("error")), (End::Success, End::Error));
        for state in ["queued", "running", "", "Success", "succeeded", "gone"] {
            assert_eq!(of(state), End::NotYet, "'{state}'");
        }
        assert_eq!(end("<info><result>all is well</result></info>"), End::NotYet);
    }
}
