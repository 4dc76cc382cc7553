//! Whether a VM was switched on since an earlier moment, by the server's history of events.
//!
//! `runtime.bootTime` does not tell: it is cleared when the VM is switched off again.

use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::vm_ref;
use crate::session::{Call, Inner, Session};
use crate::soap::{Moref, tag};
use crate::time::{seconds_of, text_of};

/// A moment in the history of a VM's power, by the server's own clock and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerMark {
    /// From when on events are asked for.
    since: String,
    /// Number of the last event by which the VM was switched on; events are numbered as they come.
    last: i64,
}

/// Events are asked for from so long before the mark on: clocks of hosts differ, and some arrive late.
const MARGIN_S: u64 = 600;
/// By which a VM is switched on. One that was suspended was on before.
const SWITCHED_ON: [&str; 2] = ["VmPoweredOnEvent", "DrsVmPoweredOnEvent"];
/// The latest so many are looked at: one is enough.
const EVENTS_MAX: u32 = 100;

impl Session {
    /// A mark to ask [`Session::was_switched_on`] with; nothing if the server tells no events to this user.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn power_mark(&self, vm: &str) -> Result<Option<PowerMark>, VsphereError> {
        let op = self.inner.op("look at the power events of", vm);
        let Some(now) = self.inner.server_time(&op)? else { return Ok(None) };
        let since = text_of(now.saturating_sub(MARGIN_S));
        let last = match self.inner.last_switched_on(&op, vm, &since) {
            Ok(last) => last,
            Err(error) if is_untold(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(last.map(|last| PowerMark { since, last }))
    }

    /// Whether a VM was switched on since `mark` was taken.
    ///
    /// # Errors
    /// When the server cannot be asked (any more).
    pub fn was_switched_on(&self, vm: &str, mark: &PowerMark) -> Result<bool, VsphereError> {
        let op = self.inner.op("look at the power events of", vm);
        let last = self.inner.last_switched_on(&op, vm, &mark.since)?;
        Ok(last.is_none_or(|last| last > mark.last))
    }
}

/// Hosts that keep no events, and users who may not see them.
fn is_untold(error: &VsphereError) -> bool {
    matches!(error.kind, VsphereErrorKind::Unsupported | VsphereErrorKind::PermissionDenied)
}

impl Inner {
    /// The server's clock in seconds since 1970, if it tells a time that makes sense.
    pub(crate) fn server_time(&self, op: &str) -> Result<Option<u64>, VsphereError> {
        let this = &Moref::new("ServiceInstance", "ServiceInstance");
        let answer = self.call(&Call { op, method: "CurrentTime", this, arguments: "", is_read: true })?;
        Ok(answer.text_at("returnval").and_then(seconds_of))
    }

    /// Number of the last event since then by which the VM was switched on, 0 if there is none; nothing without
    /// a history.
    fn last_switched_on(&self, op: &str, vm: &str, since: &str) -> Result<Option<i64>, VsphereError> {
        let Some(events) = &self.content.events else { return Ok(None) };
        let entity = vm_ref(vm).tag("entity") + &tag("recursion", "self");
        let kinds: String = SWITCHED_ON.iter().map(|kind| tag("eventTypeId", kind)).collect();
        let arguments = format!(
            "<filter><entity>{entity}</entity><time>{}</time>{}{kinds}{}</filter>",
            tag("beginTime", since),
            tag("disableFullMessage", "true"),
            tag("maxCount", &EVENTS_MAX.to_string()),
        );
        let call = Call { op, method: "QueryEvents", this: events, arguments: &arguments, is_read: true };
        let answer = self.call(&call)?;
        let numbers = answer.all("returnval").filter_map(|event| event.number_at::<i64>("key"));
        Ok(Some(numbers.max().unwrap_or(0)))
    }
}
