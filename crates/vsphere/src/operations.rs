use std::thread;
use std::time::{Duration, Instant};

use drover_types::inventory::{PowerState, Snapshot};

use crate::error::{VsphereError, VsphereErrorKind};
use crate::session::{Call, Inner, Session, Work};
use crate::soap::{Moref, tag};
use crate::vm::power_of;
use crate::xml::Element;

const POWER_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// An API that does not answer is waited for so long at most before a VM is switched on: whoever asks has just seen that it may
/// run, and after a longer time has to look again.
const SWITCH_ON_PATIENCE: Duration = Duration::from_secs(5);
/// Quiescing a busy guest takes minutes, and vSphere has its own limits.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a snapshot waits to be made or removed for another task of the VM, a backup's above all: one that stays slows
/// the VM down, and keeps one that was shut down from being switched on again.
const BUSY_TIME_MAX: Duration = Duration::from_secs(10 * 60);
const BUSY_FIRST_PAUSE: Duration = Duration::from_secs(1);
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Tries at once after something made way.
const UNBLOCKED_MAX: u32 = 3;
/// Tries of a removal after the server forgot its task.
const LOST_MAX: u32 = 3;
/// A pause is slept in pieces of this length, so that a stop is noticed.
const TICK: Duration = Duration::from_millis(250);
/// Consolidation writes everything that changed since back into the disk.
pub(crate) const CONSOLIDATION_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

const LOOK_FOR_SNAPSHOT: &str = "look for a snapshot";

impl Session {
    /// Asks the guest to shut down. A VM that is off is fine; so is a request of which nobody knows whether it arrived.
    ///
    /// # Errors
    /// [`VsphereErrorKind::State`] if no guest tools run. The guest was not asked, unless it is [`VsphereErrorKind::Stopped`]: then
    /// nobody knows.
    pub fn ask_shutdown(&self, vm: &str) -> Result<(), VsphereError> {
        let session = &self.inner;
        let op = session.op("shut down", vm);
        let this = &vm_ref(vm);
        let call = Call { op: &op, method: "ShutdownGuest", this, arguments: "", is_read: false };
        let mut patience = session.patience();
        let mut was_lost = false;
        loop {
            match session.power(&op, vm) {
                Ok(PowerState::Off) => return Ok(()),
                Ok(_) => {}
                Err(error) if was_lost && error.kind != VsphereErrorKind::Stopped => return Ok(()),
                Err(error) => return Err(error),
            }
            match session.call(&call) {
                // It may not have arrived. Asked twice, a guest goes down once.
                Err(error) if error.is_away() && error.is_unclear() => {
                    was_lost = true;
                    match patience.wait(&op, error) {
                        Err(error) if error.kind == VsphereErrorKind::Stopped => return Err(error),
                        Err(_) => return Ok(()),
                        Ok(()) => {}
                    }
                }
                Err(error) if error.is_fault("InvalidPowerState") || error.is_unclear() => return Ok(()),
                // It may have arrived the first time. Of a guest that goes down already, no tools run any more.
                Err(error) if was_lost && error.kind != VsphereErrorKind::Stopped => return Ok(()),
                done => return done.map(drop),
            }
        }
    }

    /// Waits until a VM is off.
    ///
    /// # Errors
    /// [`VsphereErrorKind::Timeout`] if it stays on, [`VsphereErrorKind::State`] as soon as somebody suspends it: then it does
    /// not go down by itself.
    pub fn wait_until_off(&self, vm: &str, timeout: Duration) -> Result<(), VsphereError> {
        let (session, this) = (&self.inner, &vm_ref(vm));
        let op = session.op("shut down", vm);
        let power = |state: &Element| power_of(Some(&state.text));
        let is_over = |state: &Element| matches!(power(state), PowerState::Off | PowerState::Suspended);
        let seen =
            session.wait_for(&op, this, "runtime.powerState", "runtime.powerState", timeout, is_over)?;
        match power(&seen) {
            PowerState::Suspended => {
                let why = "it was suspended by somebody else meanwhile; resume it, and it can be shut down";
                Err(VsphereError::new(VsphereErrorKind::State, &op, why))
            }
            _ => Ok(()),
        }
    }

    /// Powers a VM off, hard. A VM that is off stays off.
    ///
    /// # Errors
    /// When vSphere refuses, or it cannot be told whether the VM is off.
    pub fn power_off(&self, vm: &str) -> Result<(), VsphereError> {
        self.inner.set_power(vm, "power off", "PowerOffVM_Task", PowerState::Off)
    }

    /// Powers a VM on. A VM that is on stays on. It is asked for at once: an API that does not answer is waited for some seconds only,
    /// whatever [`Session::outlast`] says.
    ///
    /// # Errors
    /// When vSphere refuses, or it cannot be told whether the VM is on.
    pub fn power_on(&self, vm: &str) -> Result<(), VsphereError> {
        self.inner.set_power(vm, "power on", "PowerOnVM_Task", PowerState::On)
    }

    /// Takes a snapshot without memory. `name` should be unique: if the connection breaks at the wrong moment, the
    /// snapshot is found again by it.
    ///
    /// # Errors
    /// When vSphere refuses, quiescing fails, or the VM stays busy with other tasks for ten minutes.
    pub fn create_snapshot(
        &self,
        vm: &str,
        name: &str,
        description: &str,
        quiesce: bool,
    ) -> Result<Snapshot, VsphereError> {
        let session = &self.inner;
        let op = session.op("create snapshot of", vm);
        let arguments = tag("name", name)
            + &tag("description", description)
            + &tag("memory", "false")
            + &tag("quiesce", if quiesce { "true" } else { "false" });
        let this = &vm_ref(vm);
        let call =
            Call { op: &op, method: "CreateSnapshot_Task", this, arguments: &arguments, is_read: false };
        // Where an answer was lost, the VM may be busy with this very snapshot: a second one would be made.
        let is_none = || matches!(session.find_snapshot(&op, vm, name), Ok(None));
        let mut patience = session.patience();
        let mut was_lost = false;
        loop {
            let unclear = match session.when_free(&call, SNAPSHOT_TIME_MAX, |_| Then::Later, is_none) {
                Ok(Some(id)) => {
                    let (name, description) = (name.to_string(), description.to_string());
                    return Ok(Snapshot { id: id.text, name, description, created_s: None });
                }
                Ok(None) => {
                    return session.find_snapshot(&op, vm, name)?.ok_or_else(|| {
                        VsphereError::new(
                            VsphereErrorKind::NotVsphere,
                            &op,
                            "the task ended well, but there is no snapshot",
                        )
                    });
                }
                Err(error) if error.is_unclear() => error,
                Err(busy) if was_lost && busy.kind == VsphereErrorKind::Busy => {
                    return session.find_late_snapshot(&op, vm, name)?.ok_or(busy);
                }
                Err(error) => return Err(error),
            };
            was_lost = true;
            // Asking again could make a second snapshot, so look first whether this one was made.
            if let Some(made) = session.find_late_snapshot(&op, vm, name)? {
                return Ok(made);
            }
            patience.wait(&op, unclear)?;
        }
    }

    /// Removes a snapshot, lets its data flow back into its parent, and waits for that. One that is gone is fine.
    ///
    /// # Errors
    /// When vSphere refuses, or the VM stays busy with other tasks for ten minutes. Where a file is held open elsewhere
    /// the snapshot is gone all the same, and the VM says that it needs consolidation.
    pub fn remove_snapshot(&self, snapshot: &str) -> Result<(), VsphereError> {
        self.remove_blocked_snapshot(snapshot, &mut || false)
    }

    /// The same, with somebody who makes way: called where a file of the snapshot is held open elsewhere, it tells whether it
    /// has ended that.
    ///
    /// # Errors
    /// The same.
    pub fn remove_blocked_snapshot(
        &self,
        snapshot: &str,
        unblock: &mut dyn FnMut() -> bool,
    ) -> Result<(), VsphereError> {
        let op = format!("remove snapshot {snapshot}");
        let arguments = tag("removeChildren", "false") + &tag("consolidate", "true");
        let this = &Moref::new("VirtualMachineSnapshot", snapshot);
        let call =
            Call { op: &op, method: "RemoveSnapshot_Task", this, arguments: &arguments, is_read: false };
        let mut unblocked = 0;
        let mut then = |busy: &VsphereError| match self.inner.is_gone(this) {
            true => Then::GiveUp,
            false if busy.is_fault("FileLocked") && unblocked < UNBLOCKED_MAX && unblock() => {
                unblocked += 1;
                Then::AtOnce
            }
            false => Then::Later,
        };
        let mut patience = self.inner.patience();
        let mut lost = 0;
        loop {
            let error = match self.inner.when_free(&call, CONSOLIDATION_TIME_MAX, &mut then, || true) {
                Err(error) if error.is_unclear() || GONE_MEANWHILE.iter().any(|it| error.is_fault(it)) => {
                    error
                }
                done => return done.map(drop),
            };
            // Somebody else removed it meanwhile. One that is gone while files of it stay is told.
            if self.inner.is_gone(this) {
                return Ok(());
            }
            // A removal that goes on at the host keeps the VM busy until it has ended.
            if error.is_lost_task() && lost < LOST_MAX {
                lost += 1;
                patience.work.check(&op)?;
                continue;
            }
            patience.wait(&op, error)?;
        }
    }

    /// Whether there is a snapshot of this id. It is asked for by itself, so that no list has to be whole for an answer.
    ///
    /// # Errors
    /// When vSphere neither tells of it nor says that it is gone.
    pub fn has_snapshot(&self, snapshot: &str) -> Result<bool, VsphereError> {
        match self.inner.read(LOOK_FOR_SNAPSHOT, &Moref::new("VirtualMachineSnapshot", snapshot), &["vm"]) {
            Err(error) if error.is_gone() => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Where the VM of this id and instance UUID is by now. Asked for by itself, so that no list has to be whole for an answer.
    ///
    /// # Errors
    /// When vSphere neither tells of it nor says that it is gone: a user who may not see it is not told that.
    pub fn whereabouts(&self, vm: &str, instance_uuid: &str) -> Result<Whereabouts, VsphereError> {
        let op = self.inner.op("look for", vm);
        match self.inner.read(&op, &vm_ref(vm), &["runtime.powerState"]) {
            Err(error) if error.is_gone() => {}
            found => return found.map(|_| Whereabouts::There),
        }
        Ok(match self.inner.find_by_uuid(&op, instance_uuid)? {
            Some(found) if found.id == vm => Whereabouts::There,
            Some(found) => Whereabouts::Under(found.id),
            None => Whereabouts::Gone,
        })
    }
}

/// Where a VM is that was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Where it was.
    There,
    /// It has this id by now: it was registered anew.
    Under(String),
    /// By vSphere's own word there is none of its id any more, and it finds none of its UUID.
    Gone,
}

/// What to do about a task that found its VM busy.
enum Then {
    GiveUp,
    /// What was in its way is gone.
    AtOnce,
    Later,
}

/// Pauses between tries of something that is busy: twice as long each time, ten minutes in all.
pub(crate) fn busy_pauses() -> impl Iterator<Item = Duration> {
    let longer = |pause: &Duration| Some((*pause * 2).min(BUSY_PAUSE_MAX));
    let mut left = BUSY_TIME_MAX;
    std::iter::successors(Some(BUSY_FIRST_PAUSE), longer).map_while(move |pause| {
        let pause = pause.min(left);
        left -= pause;
        (!pause.is_zero()).then_some(pause)
    })
}

/// What vSphere says of a removal where another came first.
const GONE_MEANWHILE: [&str; 3] = ["ManagedObjectNotFound", "NotFound", "TaskInProgress"];

impl Work<'_> {
    /// Sleeps, unless the stop is asked for.
    pub(crate) fn sleep(&self, op: &str, time: Duration) -> Result<(), VsphereError> {
        let mut left = time;
        while !left.is_zero() {
            self.check(op)?;
            let tick = left.min(TICK);
            thread::sleep(tick);
            left -= tick;
        }
        self.check(op)
    }
}

impl Inner {
    pub fn op(&self, what: &str, vm: &str) -> String {
        format!("{what} {}", self.name_of(vm))
    }

    /// Runs a task, and again after a pause as long as the VM is busy with another, for ten minutes in all, if it is still wanted
    /// after the pause.
    fn when_free(
        &self,
        call: &Call<'_>,
        timeout: Duration,
        mut then: impl FnMut(&VsphereError) -> Then,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<Element>, VsphereError> {
        let work = self.begin();
        let mut pauses = busy_pauses();
        loop {
            match self.run_task(call, timeout) {
                Err(busy) if busy.kind == VsphereErrorKind::Busy => match (then(&busy), pauses.next()) {
                    (Then::AtOnce, _) => {}
                    (Then::Later, Some(pause)) => {
                        work.sleep(call.op, pause)?;
                        if !is_wanted() {
                            return Err(busy);
                        }
                    }
                    (Then::Later, None) | (Then::GiveUp, _) => return Err(busy),
                },
                done => return done,
            }
        }
    }

    fn set_power(&self, vm: &str, what: &str, method: &str, wanted: PowerState) -> Result<(), VsphereError> {
        let op = self.op(what, vm);
        let call = Call { op: &op, method, this: &vm_ref(vm), arguments: "", is_read: false };
        let until = (wanted == PowerState::On).then(|| Instant::now() + SWITCH_ON_PATIENCE);
        let missed = self.outage.missed();
        // A look that took its time where all is answered is no outage.
        let is_late = || until.is_some_and(|until| Instant::now() >= until && self.outage.missed() != missed);
        let mut patience = self.patience().until(until);
        loop {
            if self.power(&op, vm)? == wanted {
                return Ok(());
            }
            if is_late() {
                let why = "the API did not answer for a while, and then it was not asked for any more";
                return Err(VsphereError::new(VsphereErrorKind::Timeout, &op, why));
            }
            let error = match self.run_task_with(&call, self.patience().until(until), POWER_TIME_MAX) {
                // Somebody else was faster, or our own request got through after all.
                Err(error) if error.is_fault("InvalidPowerState") || error.is_unclear() => error,
                done => return done.map(drop),
            };
            // One that got through may be under way yet.
            let ended = match error.is_away() || error.is_lost_task() {
                true => self.wait_for_tasks(&op, vm, "power", POWER_TIME_MAX),
                false => Ok(()),
            };
            match ended.and_then(|()| self.power(&op, vm)) {
                Ok(state) if state == wanted => return Ok(()),
                Err(stopped) if stopped.kind == VsphereErrorKind::Stopped => return Err(stopped),
                Err(_) => return Err(error),
                Ok(_) => patience.wait(&op, error)?,
            }
        }
    }

    fn find_snapshot(&self, op: &str, vm: &str, name: &str) -> Result<Option<Snapshot>, VsphereError> {
        let found = self.vm(vm).map_err(|error| VsphereError { op: op.to_string(), ..error })?;
        Ok(found.snapshots.into_iter().find(|snapshot| snapshot.name == name))
    }

    /// Waits for snapshots that are being made of the VM, then looks for ours.
    fn find_late_snapshot(&self, op: &str, vm: &str, name: &str) -> Result<Option<Snapshot>, VsphereError> {
        self.wait_for_tasks(op, vm, "createSnapshot", SNAPSHOT_TIME_MAX)?;
        self.find_snapshot(op, vm, name)
    }

    /// Waits for the end of a VM's tasks that have this in their name, so long at most for each.
    fn wait_for_tasks(&self, op: &str, vm: &str, kind: &str, timeout: Duration) -> Result<(), VsphereError> {
        let recent = self.read(op, &vm_ref(vm), &["recentTask"])?;
        let tasks: Vec<Moref> =
            recent.get("recentTask").map_or(Vec::new(), |list| list.children.iter().map(Moref::of).collect());
        for task in tasks {
            let info = self.read(op, &task, &["info"]);
            let is_one = |info: &Element| info.text_at("descriptionId").is_some_and(|id| id.contains(kind));
            // A task that is gone or failed did nothing; what counts is the look afterwards.
            if info.is_ok_and(|task| task.get("info").is_some_and(is_one)) {
                let _ = self.wait_task(op, &task, timeout);
            }
        }
        Ok(())
    }

    /// The VM of an instance UUID, if there is one that this user may see.
    fn find_by_uuid(&self, op: &str, instance_uuid: &str) -> Result<Option<Moref>, VsphereError> {
        let Some(this) = self.content.search.as_ref().filter(|_| !instance_uuid.is_empty()) else {
            return Ok(None);
        };
        let arguments = tag("uuid", instance_uuid) + &tag("vmSearch", "true") + &tag("instanceUuid", "true");
        let call = Call { op, method: "FindByUuid", this, arguments: &arguments, is_read: true };
        Ok(self.call(&call)?.child("returnval").map(Moref::of))
    }

    fn is_gone(&self, object: &Moref) -> bool {
        self.read(LOOK_FOR_SNAPSHOT, object, &["vm"]).is_err_and(|error| error.is_gone())
    }
}

pub(crate) fn vm_ref(id: &str) -> Moref {
    Moref::new("VirtualMachine", id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_is_tried_for_ten_minutes_and_not_hastily() {
        let pauses: Vec<Duration> = busy_pauses().collect();
        assert_eq!(pauses[..6], [1, 2, 4, 8, 16, 30].map(Duration::from_secs));
        assert_eq!(pauses.iter().sum::<Duration>(), BUSY_TIME_MAX);
        assert!(pauses.len() < 40);
    }
}
