//! What is done to the source: power and snapshots.

use std::time::Duration;

use drover_plan::{PlannedVm, PowerOff};
use drover_types::inventory::{PowerState, Snapshot, Vm};

use super::ending::Held;
use super::{
    Context, Journey, LOOK_AND_RUN_AGAIN, NOTHING_DONE, Outcome, is_own_snapshot, own_description, own_name,
};
use crate::error::{Cause, EngineError, ProviderError, chain};
use crate::event::Event;
use crate::phase::Phase;
use crate::provider::SourceProvider;
use crate::store::{EventRow, Store, StoreError, now_ms};

/// A guest that may be shutting down is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Journey<'_> {
    /// A cold guest that runs although an earlier run had begun to shut it down: somebody wanted it back, so it goes down when its
    /// wave lets it, like those that did not begin. That it is drover that may have switched it off stays recorded: it may yet go off.
    pub(super) fn leave_it_on_for_now(&mut self) -> Outcome<()> {
        if self.is_warm() || !self.slots.goes_on() || !self.stays_on()? {
            return Ok(());
        }
        // It would grow as long as the guest runs.
        self.thaw()?;
        self.slots.begin_anew(self.context.stop)
    }

    /// Whether its guest runs, and not only because it has not shut down yet: one that an earlier run asked to is waited for as
    /// long as that run would have waited.
    pub(super) fn stays_on(&mut self) -> Outcome<bool> {
        let clock = self.context.clock;
        loop {
            let now = self.look();
            let is_over = clock.now_ms() >= self.down_by_ms;
            match now {
                Ok(now) if now.power == PowerState::On && !is_over => {}
                Ok(now) => {
                    self.may_go_down &= now.power != PowerState::Off;
                    return Ok(now.power == PowerState::On);
                }
                Err(error) if is_over => return Err(error),
                // A guest that goes down is not left for one look that fails.
                Err(_) => {}
            }
            if self.context.stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            clock.sleep(LOOK_EVERY);
        }
    }

    /// How long a guest that an earlier run asked to shut down may still take.
    pub(super) fn time_to_go_down(&self) -> Outcome<Duration> {
        let asked = asked_down(self.context, self.planned)?;
        Ok(asked.map_or(Duration::ZERO, |asked| asked.left_of(self.planned.shutdown_timeout)))
    }

    pub(super) fn power_off(&mut self) -> Outcome<()> {
        let now = self.look()?;
        // Better told now than when the guest is down.
        if let Err(error) = self.check_disks(&now).and_then(|()| self.keep_hardware(&now)) {
            self.take_cutover()?;
            return Err(error);
        }
        match (now.power, self.planned.power_off) {
            (PowerState::Off, _) => {
                self.did_nothing = true;
                return self.take_cutover();
            }
            (PowerState::Unknown, _) => {
                self.take_cutover()?;
                return Err(self.power_untold());
            }
            (PowerState::Suspended, _) => {
                self.take_cutover()?;
                return Err(self.refused("is suspended", "resume it and shut it down, or discard its state"));
            }
            (PowerState::On, PowerOff::Refuse) => {
                self.take_cutover()?;
                return Err(self.refused(
                    "is running",
                    "shut it down, or allow it with `power_off: shutdown` in the plan",
                ));
            }
            (PowerState::On, PowerOff::Shutdown | PowerOff::Force) => {}
        }
        self.keep_told(&now)?;
        // Whoever was told that it enters this phase may have stopped it.
        if self.context.stop.is_set() {
            return Err(EngineError::Cancelled);
        }
        // Before it happens: after a crash in between, cancelling switches it on again.
        self.record_going_down()?;
        match (self.shut_down(&now), self.planned.power_off) {
            (Err(error), PowerOff::Force) if error.cause != Cause::Cancelled => {
                self.note(format!("the guest did not shut down ({}), so it was switched off", chain(&error)));
                self.may_go_down = false;
                (self.context.leave)()?;
                let off = self.context.source.power_off(&now);
                // It may have been asked for, and the answer is lost.
                Ok(off.inspect_err(|error| {
                    self.may_go_down = matches!(error.cause, Cause::Cancelled | Cause::Connection);
                })?)
            }
            (done, _) => Ok(done?),
        }
    }

    /// Records that the guest is down, or may be from now on, because it moves.
    pub(super) fn record_going_down(&mut self) -> Outcome<()> {
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        self.memory.switched_off = true;
        match self.is_warm() {
            true => store.begin_downtime(plan, id, self.context.clock.now_ms())?,
            false => store.set_switched_off(plan, id, true)?,
        }
        Ok(())
    }

    fn shut_down(&mut self, now: &Vm) -> Result<(), ProviderError> {
        let asked = self.context.source.ask_shutdown(now);
        // One that is cut short by a stop does not tell whether the guest was asked.
        asked.inspect_err(|error| self.may_go_down |= error.cause == Cause::Cancelled)?;
        let off = self.context.source.wait_until_off(now, self.planned.shutdown_timeout);
        self.may_go_down = off.is_err();
        off
    }

    /// A cutover that was asked for is under way: should it be undone, it has to be asked for again.
    pub(super) fn take_cutover(&self) -> Outcome<()> {
        match self.is_warm() {
            true => Ok(self.context.store.take_cutover(self.context.plan, &self.planned.vm.id)?),
            false => Ok(()),
        }
    }

    /// Takes a snapshot of the VM as it is now. One that an earlier run left is removed first: the VM may
    /// have run since, and what it wrote then is not in it.
    pub(super) fn freeze(&mut self) -> Outcome<()> {
        let now = self.look()?;
        self.must_be_off(&now, "was switched on again by someone", "leave it off until it has arrived")?;
        self.remove_own_snapshots(&now)?;
        self.watch_power(&now)?;
        let name = own_name(self.context.plan);
        self.memory.snapshot = Held::Asked;
        let frozen = self.context.source.create_snapshot(&now, &name, &own_description(self.context.plan));
        let frozen = frozen.inspect_err(|error| self.memory.snapshot.was_refused(error))?;
        self.memory.snapshot = Held::Made(frozen.snapshot.clone());
        self.context.store.set_snapshot(self.context.plan, &self.planned.vm.id, Some(&frozen.snapshot))?;
        self.keep_live_disks(&frozen.change_ids)
    }

    /// Removes every snapshot that drover made for this plan, also one that a crashed run left.
    pub(super) fn thaw(&mut self) -> Outcome<()> {
        (self.context.leave)()?;
        let now = self.look()?;
        self.remove_own_snapshots(&now)?;
        let is_found = now.snapshots.iter().any(|it| is_own_snapshot(&it.description, self.context.plan));
        self.memory.snapshot = match self.memory.snapshot {
            Held::Unanswered if !is_found => Held::Unanswered,
            _ => Held::No,
        };
        self.context.store.set_snapshot(self.context.plan, &self.planned.vm.id, None)?;
        Ok(())
    }

    /// What is said of a snapshot whose making was not answered and that is not listed: the answers of such a source prove
    /// nothing, and there is no id by which to ask for it.
    pub(super) fn unanswered(&self) -> Option<String> {
        if self.memory.snapshot != Held::Unanswered {
            return None;
        }
        let (snapshot, vm) = (own_name(self.context.plan), &self.planned.vm.name);
        Some(format!(
            "whether snapshot {snapshot} of {vm} was made is not known: the source gave no answer and lists none; look in vSphere"
        ))
    }

    /// Removes what this plan's runs left at the VM.
    pub(super) fn remove_own_snapshots(&self, now: &Vm) -> Outcome<()> {
        let Context { plan, store, source, .. } = self.context;
        let detached = remove_own_snapshots(plan, store, *source, now)?;
        detached.into_iter().for_each(|line| self.note(line));
        Ok(())
    }

    /// What arrived is only right as long as the source stays off.
    pub(super) fn clean_up(&mut self) -> Outcome<()> {
        self.thaw()?;
        self.must_be_off(
            &self.look()?,
            "was switched on at the source after it had arrived",
            "decide which of the two goes on: switch the source off and `drover resume`, or stop the target, \
             remove its files and move the VM with another plan",
        )?;
        self.context.target.settle(self.planned)?;
        self.untrack()?;
        self.see_that_it_runs();
        Ok(())
    }

    /// A guest that was started may have ended since. It has arrived all the same, and what ended it (the guest itself, somebody,
    /// the machine) is not known here: so it is told, and no more.
    fn see_that_it_runs(&self) {
        if !self.memory.started {
            return;
        }
        match self.context.target.is_running(self.planned) {
            Ok(true) => {}
            Ok(false) => self.note("it was started at the target and does not run there any more: look at its console and its log".into()),
            Err(error) => self.note(format!("whether it still runs at the target is not known: {}", chain(&error))),
        }
    }

    /// Refuses with this if the VM is not off. One whose power state is not told may run.
    pub(super) fn must_be_off(&self, now: &Vm, what: &str, advice: &str) -> Outcome<()> {
        match now.power {
            PowerState::Off => Ok(()),
            PowerState::Unknown => Err(self.power_untold()),
            PowerState::On | PowerState::Suspended => Err(self.refused(what, advice)),
        }
    }

    fn power_untold(&self) -> EngineError {
        let advice =
            "see that its host is connected and that this user may read the VM, then `drover resume`";
        self.refused("may run: the source does not tell its power state", advice)
    }
}

/// Detaches what is attached of a VM's disks, and removes every snapshot that drover made of it for this plan: in this order,
/// for an attached disk blocks the removal. Gives a line about each disk that was attached.
pub(crate) fn remove_own_snapshots(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    now: &Vm,
) -> Result<Vec<String>, EngineError> {
    // State that cannot be read or written keeps nothing from being undone; it is told when that is done.
    let (recorded, mut unkept) = match store.attachments(plan, &now.id) {
        Ok(recorded) => (recorded, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let detached = source.detach(now, &recorded)?;
    if !recorded.is_empty() {
        unkept = store.forget_attachments(plan, &now.id).err();
    }
    for snapshot in now.snapshots.iter().filter(|snapshot| is_own_snapshot(&snapshot.description, plan)) {
        remove_listed(source, now, snapshot)?;
    }
    check_recorded(plan, store, source, now)?;
    unkept.map_or(Ok(detached), |error| Err(error.into()))
}

/// Removes a snapshot that a VM lists. To remove one of no id would find none, and that is no proof.
pub(crate) fn remove_listed(
    source: &dyn SourceProvider,
    now: &Vm,
    snapshot: &Snapshot,
) -> Result<(), ProviderError> {
    if snapshot.id.is_empty() {
        return Err(left(format!(
            "the source does not tell the id of snapshot {} of {}",
            snapshot.name, now.name
        )));
    }
    source.remove_snapshot(now, &snapshot.id)
}

/// A snapshot that is recorded is listed as drover's own, or it is gone by the source's own word. One that is listed and no longer
/// says whose it is may be somebody else's by now, and one that is there and not listed is not touched unseen: that is told.
pub(crate) fn check_recorded(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    now: &Vm,
) -> Result<(), EngineError> {
    let Some(recorded) = store.vm(plan, &now.id)?.and_then(|row| row.snapshot) else { return Ok(()) };
    match now.snapshots.iter().find(|it| it.id == recorded) {
        Some(own) if is_own_snapshot(&own.description, plan) => Ok(()),
        Some(other) => Err(left(format!(
            "snapshot {} of {} was made by drover, and its description no longer says so: it was not removed",
            other.name, now.name
        ))
        .into()),
        None if !source.has_snapshot(now, &recorded)? => Ok(()),
        None => Err(not_listed(plan, now, &recorded).into()),
    }
}

/// The error of a snapshot that is there, by its id, and not listed.
pub(crate) fn not_listed(plan: &str, now: &Vm, id: &str) -> ProviderError {
    let (name, vm) = (own_name(plan), &now.name);
    left(format!(
        "snapshot {name} ({id}) of {vm} is still there, and the source does not list it: it was not removed"
    ))
}

/// The error of a snapshot that stays.
fn left(what: String) -> ProviderError {
    let advice = "look at it in vSphere and remove it there, then `drover resume`";
    ProviderError::new(Cause::Source, what).advise(advice)
}

/// Switches a VM on again if drover switched it off; gives what went wrong.
pub(crate) fn switch_on_again(context: &Context<'_>, planned: &PlannedVm) -> Vec<String> {
    let (plan, id) = (context.plan, &planned.vm.id);
    let switched_off = match context.store.vm(plan, id) {
        Ok(row) => row.is_some_and(|row| row.switched_off),
        Err(error) => return vec![chain(&error)],
    };
    if switched_off { switch_on_recorded(context, planned).0 } else { Vec::new() }
}

/// Switches a VM on again that drover switched off, and records it; gives what went wrong, and whether it was off and is on now.
pub(super) fn switch_on_recorded(context: &Context<'_>, planned: &PlannedVm) -> (Vec<String>, bool) {
    let name = &planned.vm.name;
    let was_off = match switch_on(context, planned) {
        Ok(was_off) => was_off,
        Err(error) => return (vec![format!("{name} is still off: {}", chain(&error))], false),
    };
    if was_off {
        tell_on_again(context, planned, down_for(context, planned));
    }
    let recorded = context.store.set_switched_off(context.plan, &planned.vm.id, false);
    let unkept =
        |error: StoreError| format!("{name} is on again, and that could not be recorded: {}", chain(&error));
    (recorded.err().map(unkept).into_iter().collect(), was_off)
}

/// The kind of the event of a guest that was switched on again.
const ON_AGAIN: &str = "on_again";

/// A guest that is switched on again is told of with its time, whoever ordered it, and with how long it was down.
fn tell_on_again(context: &Context<'_>, planned: &PlannedVm, down: Option<Duration>) {
    let text = format!("it is switched on again at its source{}", down_words(down));
    let kept = down.map_or(text.clone(), |down| format!("{DOWN_FOR}{} ms", down.as_millis()));
    // What cannot be kept is a loss to the report only.
    let _ = context.store.add_event(context.plan, Some(&planned.vm.id), None, ON_AGAIN, &kept);
    context.observer.event(&Event::Note { vm: planned.target_name.clone(), text });
}

const DOWN_FOR: &str = "it is switched on again at its source, and was down for ";

/// For how many milliseconds a guest was down before it was switched on again the last time, as far as its events tell.
pub(crate) fn undone_downtime<'a>(events: impl DoubleEndedIterator<Item = &'a EventRow>) -> Option<u64> {
    let text = &events.rev().find(|event| event.kind == ON_AGAIN)?.text;
    text.strip_prefix(DOWN_FOR)?.strip_suffix(" ms")?.parse().ok()
}

/// `, after it was down for 9.0 s`; empty if that is not known.
pub(super) fn down_words(down: Option<Duration>) -> String {
    down.map_or(String::new(), |down| format!(", after it was down for {:.1} s", down.as_secs_f64()))
}

/// For how long a guest that drover shut down is down by now, as far as the state tells when that began.
pub(super) fn down_for(context: &Context<'_>, planned: &PlannedVm) -> Option<Duration> {
    let (store, plan, id) = (context.store, context.plan, &planned.vm.id);
    let ms = match store.warm(plan, id).ok().and_then(|row| row.down_ms) {
        Some(down_ms) => context.clock.now_ms() - down_ms,
        None => {
            // By the clock that the store keeps events by.
            now_ms() - went_down_ms(&store.events_since_begun(plan, id).ok()?)?
        }
    };
    Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// Since when a guest is down, as far as its events tell. A run that goes on with it enters the phase again, and finds nothing to do.
fn went_down_ms(events: &[EventRow]) -> Option<i64> {
    let since = events.iter().rposition(|event| event.kind == ON_AGAIN).map_or(0, |at| at + 1);
    let of_phase = |event: &&EventRow| event.phase.as_deref() == Some(Phase::PowerOff.name());
    // Each time that the phase was entered, with what it ended with, if it ended.
    let mut entered: Vec<(i64, Option<&str>)> = Vec::new();
    for event in events[since..].iter().filter(of_phase) {
        if event.kind == "started" {
            entered.push((event.at_ms, None));
        } else if event.kind == "ended"
            && let Some(last) = entered.last_mut()
        {
            last.1 = Some(&event.text);
        }
    }
    let shut_down = entered.iter().rfind(|(_, ended)| ended.is_some_and(|text| text != NOTHING_DONE));
    let cut_short = || entered.iter().find(|(_, ended)| ended.is_none());
    shut_down.or_else(cut_short).or(entered.first()).map(|(at_ms, _)| *at_ms)
}

/// Whether it was not on already.
fn switch_on(context: &Context<'_>, planned: &PlannedVm) -> Result<bool, ProviderError> {
    // A guest that runs, or may run, at the target must not run at the source too.
    if may_run_at_target(context, planned)? {
        let what = format!("{} runs at the target", planned.target_name);
        return Err(ProviderError::new(Cause::Target, what));
    }
    let now = look(context.source, planned)?;
    // The answer may have taken long: another run may have been put in the place of this one meanwhile.
    (context.leave)()?;
    context.source.power_on(&now)?;
    Ok(now.power != PowerState::On)
}

/// Whether a VM runs at the target. Where nobody can tell, one that was never defined there does not: there is nothing
/// that anybody could have started.
pub(crate) fn may_run_at_target(context: &Context<'_>, planned: &PlannedVm) -> Result<bool, ProviderError> {
    match context.target.is_running(planned) {
        Err(_) if !has_begun(context, planned, Phase::Define).unwrap_or(true) => Ok(false),
        told => told,
    }
}

/// A guest was asked to shut down, or was about to be, and the run that did so never saw it off.
pub(crate) struct AskedDown {
    /// Negative if the clock was set back since.
    age_ms: i64,
}

impl AskedDown {
    /// What the events of a VM tell of it.
    fn of(events: &[EventRow], now_ms: i64) -> Option<AskedDown> {
        let of_phase = |event: &&EventRow| event.phase.as_deref() == Some(Phase::PowerOff.name());
        let latest =
            events.iter().filter(of_phase).rfind(|it| matches!(it.kind.as_str(), "started" | "ended"));
        let asked = latest.filter(|event| event.kind == "started");
        asked.map(|asked| AskedDown { age_ms: now_ms - asked.at_ms })
    }

    /// Whether it is so long ago at most.
    pub(crate) fn is_within(&self, time: Duration) -> bool {
        u128::try_from(self.age_ms).is_ok_and(|age_ms| age_ms < time.as_millis())
    }

    /// What is left of a time that began then; all of it where the clock does not tell.
    fn left_of(&self, time: Duration) -> Duration {
        time.saturating_sub(Duration::from_millis(u64::try_from(self.age_ms).unwrap_or(0)))
    }
}

/// What is recorded of the latest shutdown of a VM that drover may have switched off.
pub(crate) fn asked_down(
    context: &Context<'_>,
    planned: &PlannedVm,
) -> Result<Option<AskedDown>, StoreError> {
    let (store, plan, id) = (context.store, context.plan, &planned.vm.id);
    if !store.vm(plan, id)?.is_some_and(|row| row.switched_off) {
        return Ok(None);
    }
    // By the clock that the store keeps events by.
    Ok(AskedDown::of(&store.events_of(plan, id)?, now_ms()))
}

/// Whether any run entered a phase with this VM since the plan was begun, or begun anew.
pub(crate) fn has_begun(
    context: &Context<'_>,
    planned: &PlannedVm,
    phase: Phase,
) -> Result<bool, StoreError> {
    let events = context.store.events_since_begun(context.plan, &planned.vm.id)?;
    Ok(events.iter().any(|event| event.kind == "started" && event.phase.as_deref() == Some(phase.name())))
}

/// The VM as it is now, if it is still the one that was planned: hosts without vCenter give ids again.
pub(crate) fn look(source: &dyn SourceProvider, planned: &PlannedVm) -> Result<Vm, ProviderError> {
    let now = source.vm(&planned.vm.id)?;
    if now.instance_uuid.is_empty() && !planned.vm.instance_uuid.is_empty() {
        let what =
            format!("the source does not tell the instance UUID of {}, by which it is known", now.name);
        let advice = "see that its host is connected and that this user may read the VM, then run this again";
        return Err(ProviderError::new(Cause::Source, what).advise(advice));
    }
    if now.instance_uuid != planned.vm.instance_uuid {
        let what = format!("{} is another VM than when the plan was checked", now.name);
        return Err(ProviderError::new(Cause::Source, what).advise(LOOK_AND_RUN_AGAIN));
    }
    Ok(now)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn event(kind: &str, phase: Phase, at_ms: i64) -> EventRow {
        let (kind, phase) = (kind.into(), Some(phase.name().into()));
        EventRow { at_ms, vm: Some("vm-1".into()), phase, kind, text: String::new() }
    }

    #[test]
    fn of_a_time_to_go_down_what_has_passed_since_it_was_asked_is_gone() {
        let asked_ms = 1_000_000;
        let events = [event("started", Phase::PowerOff, asked_ms)];
        let time = Duration::from_secs(300);
        for (age_ms, left_ms, is_within) in [
            (-1, 300_000, false),
            (0, 300_000, true),
            (150_000, 150_000, true),
            (299_999, 1, true),
            (300_000, 0, false),
            (7_200_000, 0, false),
        ] {
            let asked = AskedDown::of(&events, asked_ms + age_ms).unwrap();
            assert_eq!(asked.left_of(time), Duration::from_millis(left_ms), "after {age_ms} ms");
            assert_eq!(asked.is_within(time), is_within, "after {age_ms} ms");
        }
    }

    #[test]
    fn only_the_latest_shutdown_counts_and_only_while_it_has_not_ended() {
        let events = [
            event("started", Phase::PowerOff, 1000),
            event("ended", Phase::PowerOff, 2000),
            event("started", Phase::PowerOff, 5000),
            event("error", Phase::PowerOff, 6000),
            event("started", Phase::Copy, 7000),
        ];
        assert_eq!(AskedDown::of(&events, 9000).map(|asked| asked.age_ms), Some(4000));
        assert!(AskedDown::of(&events[..2], 9000).is_none(), "it was seen off");
        assert!(AskedDown::of(&events[4..], 9000).is_none());
    }

    #[test]
    fn a_guest_is_down_since_it_was_shut_down_and_not_since_a_run_found_it_so() {
        let ended =
            |text: &str, at_ms| EventRow { text: text.into(), ..event("ended", Phase::PowerOff, at_ms) };
        let started = |at_ms| event("started", Phase::PowerOff, at_ms);
        let on_again = |at_ms| EventRow { phase: None, ..event(ON_AGAIN, Phase::PowerOff, at_ms) };
        let resumed = [started(1000), ended("", 2000), started(9000), ended(NOTHING_DONE, 9001)];
        assert_eq!(went_down_ms(&resumed), Some(1000));
        // The first run was killed while the guest went down.
        let killed = [started(1000), started(9000), ended(NOTHING_DONE, 9001), started(9500)];
        assert_eq!(went_down_ms(&killed), Some(1000));
        let failed_to_look = [started(1000), ended("", 2000), started(9000)];
        assert_eq!(went_down_ms(&failed_to_look), Some(1000));
        // The first run was killed before it asked, and the guest ran until the next one asked.
        let asked_again = [started(1000), started(9000), ended("", 9500)];
        assert_eq!(went_down_ms(&asked_again), Some(9000));
        let again = [started(1000), ended("", 2000), on_again(3000), started(9000), ended("", 9500)];
        assert_eq!(went_down_ms(&again), Some(9000));
        assert_eq!(went_down_ms(&again[..3]), None, "it is on");
        // It went off while hooks were called before.
        assert_eq!(went_down_ms(&resumed[2..]), Some(9000));
    }
}
