//! How a VM's run ends: what is undone after a failure, and what is told of it. Whatever fails here, the state too, the end is
//! told, from memory if need be.

use std::time::Duration;

use drover_plan::PlannedVm;
use drover_types::inventory::{PowerState, Vm};

use super::hooks::Ending;
use super::source::{down_for, down_words, switch_on_again, switch_on_recorded};
use super::{Context, Journey, is_own_snapshot, own_name};
use crate::error::{Cause, EngineError, ProviderError, chain};
use crate::event::Event;
use crate::phase::Phase;
use crate::standing::{AtTarget, Standing, VmEnd};
use crate::store::{Store, StoreError, VmRow, VmState};

/// While the source does not answer, undoing is tried again after so many looks for a stop.
const UNDO_LOOKS: u32 = 8;
const UNDO_LOOK: Duration = Duration::from_millis(250);

/// What this run did, and found done by earlier ones.
#[derive(Default)]
pub(super) struct Memory {
    /// drover switched the VM off, and has not switched it on again.
    pub(super) switched_off: bool,
    /// What is known of its snapshot.
    pub(super) snapshot: Held,
    /// Whether the machine is defined; absent if an earlier run may have left that.
    pub(super) defined: Option<bool>,
    /// It was started at the target.
    pub(super) started: bool,
    /// This run switched it on again, after it was down for so long, as far as that is known.
    pub(super) on_again: Option<OnAgain>,
}

/// A guest that was switched on again.
pub(super) struct OnAgain(Option<Duration>);

/// What is known of a snapshot of drover's at the source.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum Held {
    /// There is none.
    #[default]
    No,
    /// It was asked for; it is listed if it was made.
    Asked,
    /// It was asked for, and the answer was lost.
    Unanswered,
    /// It was made, with this id.
    Made(String),
}

impl Held {
    /// Its id, once it was made.
    pub(super) fn id(&self) -> Option<&str> {
        match self {
            Held::Made(id) => Some(id),
            Held::No | Held::Asked | Held::Unanswered => None,
        }
    }

    /// A source that refuses answers. One that breaks off, or talks nonsense, may have made it.
    pub(super) fn was_refused(&mut self, error: &ProviderError) {
        if error.cause == Cause::Connection {
            *self = Held::Unanswered;
        }
    }
}

impl Memory {
    pub(super) fn of(row: &VmRow) -> Memory {
        let reached = |phase: Phase| row.phase.as_deref() == Some(phase.name());
        let may_be_defined = [Phase::Define, Phase::Start, Phase::CleanUp].into_iter().any(reached);
        Memory {
            switched_off: row.switched_off,
            snapshot: row.snapshot.clone().map_or(Held::No, Held::Made),
            defined: if may_be_defined { None } else { Some(false) },
            started: row.started.is_some(),
            on_again: None,
        }
    }

    fn at_target(&self) -> AtTarget {
        match (self.started, self.defined) {
            (true, _) => AtTarget::Started,
            (false, Some(true)) => AtTarget::Defined,
            (false, Some(false)) => AtTarget::Nothing,
            (false, None) => AtTarget::MayBeDefined,
        }
    }
}

impl Journey<'_> {
    pub(super) fn end_well(&self) -> VmEnd {
        let kept = self.context.store.end_vm(self.context.plan, &self.planned.vm.id, VmState::Done, None);
        let end = VmEnd::plain(self.name(), VmState::Done);
        match kept {
            Ok(()) => self.tell_vm_ended(end),
            Err(error) => {
                let where_it_is = self.where_it_is(Some(PowerState::Off));
                let text = format!("{where_it_is}; nothing is left there, but that could not be recorded");
                self.tell_vm_ended(VmEnd { error: Some(text), ..unkept(end, error) })
            }
        }
    }

    /// Puts the source back as it was, and keeps the error.
    pub(super) fn end_badly(&mut self, error: EngineError, reached: Phase) -> VmEnd {
        // It is at the target to stay: only the clean-up is still to be done.
        let has_arrived = reached == Phase::CleanUp;
        // A guest that runs is not stopped for what fails after its start, but by leave.
        let stays = has_arrived || self.stays && !self.rolls_back;
        let is_touched = self.is_touched();
        let undone = if stays { Ok(Vec::new()) } else { self.undo_patiently(reached) };
        let has_leave = undone.is_ok();
        let kept = |why: ProviderError| is_touched.then(|| format!("what it did ({})", chain(&why)));
        let problems = undone.unwrap_or_else(|why| kept(why).into_iter().collect());
        let standing = is_touched.then(|| self.standing(has_leave));
        let mut text = error.chain();
        let mut advice = error.advice();
        let state = match &standing {
            Some(stands) if has_arrived => {
                let left = stands.left_words();
                let what = if error.cause() == Cause::Hook {
                    "what is called then failed"
                } else {
                    "its clean-up failed"
                };
                text = format!("{}; {what}: {text}{left}", self.where_it_is(Some(stands.source)));
                advice = advice.or_else(|| Some("`drover resume` cleans up, and does nothing else".into()));
                match stands.source {
                    // Two of it may run: nobody should take that for an arrival.
                    PowerState::On | PowerState::Suspended => VmState::Failed,
                    PowerState::Off | PowerState::Unknown => VmState::NotCleanedUp,
                }
            }
            _ => {
                problems.iter().for_each(|problem| text.push_str(&format!("; left behind: {problem}")));
                if self.rolls_back && problems.is_empty() {
                    text.push_str("; rolled back: its machine was stopped at the target, and what it wrote there is given up");
                }
                if problems.is_empty() {
                    text.push_str(&self.source_again(&error, standing.as_ref()));
                }
                if let Some(stands) = standing.as_ref().filter(|stands| !stands.is_as_before()) {
                    text.push_str(&format!("; {}", stands.words()));
                }
                match error.cause() {
                    Cause::Cancelled => VmState::Stopped,
                    Cause::Skipped => VmState::Skipped,
                    _ => VmState::Failed,
                }
            }
        };
        let was_begun = state == VmState::Stopped && reached > Phase::Check;
        if state == VmState::Failed || was_begun {
            let state = if was_begun { "stopped" } else { "failed" };
            self.call_after_failure(&Ending { state, error: &text, advice: advice.as_deref() });
        }
        let (cause, name) = (Some(error.cause()), self.name());
        self.record_and_tell(
            VmEnd { name, state, cause, error: Some(text), advice, standing, unkept: None },
            Some(reached),
            error.is_window_over(),
        )
    }

    /// The end of a VM whose thread panicked: what it was doing stays as a crash would leave it.
    pub(crate) fn end_in_panic(&self, what: &str) -> VmEnd {
        let standing = self.is_touched().then(|| self.standing(true));
        let mut text = format!("internal error: {what}");
        if let Some(stands) = &standing {
            text.push_str(&format!("; {}", stands.words()));
        }
        let advice = "report this; `drover resume` goes on with the VM, `drover cancel` puts its source back";
        let end = VmEnd {
            name: self.name(),
            state: VmState::Failed,
            cause: Some(Cause::Internal),
            error: Some(text),
            advice: Some(advice.into()),
            standing,
            unkept: None,
        };
        self.record_and_tell(end, None, false)
    }

    /// The end of a VM of which nobody knows how far it came: what is recorded of it stays as it is, for the next run.
    /// `why`: if it ends for another reason than that.
    pub(super) fn end_unknown(&self, why: Option<&EngineError>, error: &EngineError) -> VmEnd {
        let mut text = why.map(|why| format!("{}; ", why.chain())).unwrap_or_default();
        text.push_str(&format!("how far it came is not known: {}", error.chain()));
        let why = why.unwrap_or(error);
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        let standing = self.is_touched().then(|| self.standing(true));
        if let Some(stands) = &standing {
            text.push_str(&format!("; {}", stands.words()));
        }
        let keep = || -> Result<(), StoreError> {
            store.add_event(plan, Some(id), None, "error", &text)?;
            let Some(row) = store.vm(plan, id)?.filter(|row| !row.state.has_arrived()) else { return Ok(()) };
            // `Failed` would be taken for one that was undone.
            let (cause, advice) = (why.cause().word(), why.advice());
            store.end_vm(plan, id, row.state, Some((&text, &cause, advice.as_deref())))
        };
        let unkept = keep().err();
        self.tell_vm_ended(VmEnd {
            name: self.name(),
            state: VmState::Failed,
            cause: Some(why.cause()),
            error: Some(text),
            advice: why.advice(),
            standing,
            unkept,
        })
    }

    /// A guest wrote to the images, so that nothing of them may be gone on with. A warm one's are compared by its next run.
    fn give_up_copy(&self) -> Option<String> {
        if self.is_warm() {
            return None;
        }
        self.context.target.remove_images(self.planned).err().map(|error| chain(&error))
    }

    fn record_and_tell(&self, end: VmEnd, phase: Option<Phase>, window_over: bool) -> VmEnd {
        record_and_tell(self.context, &self.planned.vm.id, end, phase, window_over)
    }

    fn tell_vm_ended(&self, end: VmEnd) -> VmEnd {
        tell_vm_ended(self.context, end)
    }

    /// Whether this run or an earlier one did anything to the VM that has to be undone.
    fn is_touched(&self) -> bool {
        let Memory { switched_off, snapshot, .. } = &self.memory;
        *switched_off || *snapshot != Held::No || self.memory.at_target() != AtTarget::Nothing
    }

    /// Where the VM stands now, by one more look at its source if there is leave for it.
    fn standing(&self, has_leave: bool) -> Standing {
        let plan = self.context.plan;
        let (source, snapshots) = match has_leave.then(|| self.look()) {
            Some(Ok(now)) => {
                let own = now.snapshots.iter().filter(|it| is_own_snapshot(&it.description, plan));
                let mut names: Vec<String> = own.map(|it| it.name.clone()).collect();
                if let (true, Held::Made(id)) = (names.is_empty(), &self.memory.snapshot)
                    && self.context.source.has_snapshot(&now, id).unwrap_or(true)
                {
                    names.push(own_name(plan));
                }
                (now.power, names)
            }
            Some(Err(_)) | None => {
                let may_be_there = self.memory.snapshot != Held::No;
                (PowerState::Unknown, may_be_there.then(|| own_name(plan)).into_iter().collect())
            }
        };
        let go_on = format!("drover resume {plan}");
        let switched_off = self.memory.switched_off;
        Standing { source, switched_off, target: self.memory.at_target(), snapshots, go_on }
    }

    /// What became of the guest at its source, whose owner asks for it; empty for one that was not shut down.
    fn source_again(&self, error: &EngineError, standing: Option<&Standing>) -> String {
        match (&self.memory.on_again, standing) {
            // The reason of a stop is the last of its words.
            _ if error.cause() == Cause::Cancelled => String::new(),
            (Some(OnAgain(down)), _) => format!("; its source is switched on again{}", down_words(*down)),
            (None, Some(stands))
                if self.rolls_back && stands.source == PowerState::Off && stands.is_as_before() =>
            {
                "; its source is off, as it was before".into()
            }
            (None, _) => String::new(),
        }
    }

    /// What holds on both sides for a VM that has arrived.
    fn where_it_is(&self, source: Option<PowerState>) -> String {
        let target = match self.memory.started {
            true => "it was started there",
            false => "nobody has started it there yet",
        };
        let source = match source {
            Some(PowerState::Off) => "its source stays off",
            Some(PowerState::On | PowerState::Suspended) => "ITS SOURCE IS SWITCHED ON",
            Some(PowerState::Unknown) | None => "whether its source is off cannot be told now",
        };
        format!("{} has arrived at the target, {target}, and {source}", self.planned.target_name)
    }

    /// Switches the source on again if drover switched it off. A guest that may go down yet is left marked as
    /// switched off, so that the next run or cancelling sees to it.
    fn switch_on_again(&mut self) -> Vec<String> {
        let is_on = || self.look().is_ok_and(|now| now.power == PowerState::On);
        let stands = match self.may_go_down.then(|| self.look()) {
            None | Some(Ok(Vm { power: PowerState::Off, .. })) => None,
            Some(Ok(Vm { power: PowerState::On, .. })) => Some("runs".to_string()),
            Some(Ok(_)) => Some("is not told to be off".into()),
            Some(Err(error)) => Some(format!("may run ({})", error.chain())),
        };
        if let Some(stands) = stands {
            let name = &self.planned.vm.name;
            return vec![format!(
                "{name} {stands}; should it go down yet, because it was asked to, `drover cancel` switches it on again"
            )];
        }
        let down = down_for(self.context, self.planned);
        let (problems, was_off) = match self.memory.switched_off {
            true => switch_on_recorded(self.context, self.planned),
            false => (switch_on_again(self.context, self.planned), false),
        };
        self.memory.switched_off &= !problems.is_empty() && !is_on();
        if was_off {
            self.memory.on_again = Some(OnAgain(down));
        }
        problems
    }

    /// Undoes, and again while the source does not answer: a guest that drover switched off does not stay off because of a short
    /// outage. That takes as long as others of the run are at work with their slots, and as long as the plan waits for a source at the
    /// least; a stop ends it.
    ///
    /// # Errors
    /// As [`Journey::undo`].
    fn undo_patiently(&mut self, reached: Phase) -> Result<Vec<String>, ProviderError> {
        let Context { source, clock, stop, options, .. } = *self.context;
        let slots = self.slots;
        let until_ms = clock.now_ms() + options.retry.give_up_after.as_millis() as i64;
        let mut waits = None;
        loop {
            let missed = source.missed();
            let left = self.undo(reached)?;
            let may_pass = !left.is_empty() && source.missed() != missed;
            let is_over = clock.now_ms() >= until_ms && !slots.has_others();
            if !may_pass || is_over || stop.is_set() {
                if waits.is_some() && left.is_empty() {
                    self.note("the source answers again, and all is undone".into());
                }
                return Ok(left);
            }
            if waits.is_none() {
                waits = Some(slots.waits_to_be_undone());
                self.note(format!("what it did is undone once the source answers: {}", left.join("; ")));
            }
            for _ in 0..UNDO_LOOKS {
                if stop.is_set() {
                    break;
                }
                clock.sleep(UNDO_LOOK);
            }
        }
    }

    /// Undoes the phases up to `reached`, last first; gives what could not be undone.
    ///
    /// # Errors
    /// Without leave: another run may be at work with the VM, and nothing was done.
    pub(super) fn undo(&mut self, reached: Phase) -> Result<Vec<String>, ProviderError> {
        (self.context.leave)()?;
        let mut given_up = None;
        let mut left: Vec<String> =
            self.forget_hooks().err().map(|error| error.chain()).into_iter().collect();
        let mut keep = |result: Result<(), ProviderError>| match result {
            Ok(()) => true,
            Err(error) => {
                left.push(chain(&error));
                false
            }
        };
        if reached >= Phase::Start && (self.planned.start || self.rolls_back) {
            let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
            // A store that fails here failed before; the error that led here tells.
            if self.rolls_back {
                let _ = store.set_started(plan, id, Some(ROLLS_BACK));
            }
            self.memory.started &= !keep(self.context.target.stop(self.planned));
            if self.rolls_back && !self.memory.started {
                // Whatever fails from here on: what the guest wrote is not gone on with.
                given_up = self.give_up_copy();
            }
            if given_up.is_none() {
                let _ = store.set_started(plan, id, None);
            }
        }
        if reached >= Phase::Define && keep(self.context.target.undo_define(self.planned)) {
            self.memory.defined = Some(false);
        }
        left.extend(given_up);
        let row = self.context.store.vm(self.context.plan, &self.planned.vm.id);
        let has_snapshot = self.memory.snapshot != Held::No
            || row.is_ok_and(|row| row.is_some_and(|row| row.snapshot.is_some()));
        if reached >= Phase::Track && self.is_warm() || reached >= Phase::Snapshot || has_snapshot {
            left.extend(self.thaw().map_or_else(|error| Some(error.chain()), |()| self.unanswered()));
        }
        // Removing a snapshot may have taken hours.
        match (self.context.leave)() {
            Ok(()) => left.extend(self.switch_on_again()),
            Err(why) => left.push(chain(&why)),
        }
        if self.is_warm() {
            left.extend(self.undo_cutover().err().map(|error| error.chain()));
        }
        Ok(left)
    }
}

/// What is recorded as its start of a guest that is sent back to its source, until what it wrote is given up.
pub(crate) const ROLLS_BACK: &str = "sent back to its source";

/// Records how a VM ended that did not arrive, and tells it.
fn record_and_tell(
    context: &Context<'_>,
    id: &str,
    mut end: VmEnd,
    phase: Option<Phase>,
    window_over: bool,
) -> VmEnd {
    let (store, plan) = (context.store, context.plan);
    let used_up = match window_over && end.state == VmState::Failed {
        true => use_up_order(store, plan, id),
        false => Ok(false),
    };
    if let (Ok(true), Some(error)) = (&used_up, &mut end.error) {
        error.push_str(USED_UP);
    }
    let text = end.error.as_deref().unwrap_or_default();
    let cause = end.cause.map(Cause::word).unwrap_or_default();
    let kept = store
        .add_event(plan, Some(id), phase.map(Phase::name), "error", text)
        .and_then(|()| store.end_vm(plan, id, end.state, Some((text, &cause, end.advice.as_deref()))))
        .and(used_up.map(drop));
    let end = match kept {
        Ok(()) => end,
        Err(error) => {
            let error_text = Some(format!("{text}; and that could not be recorded: {}", chain(&error)));
            VmEnd { error: error_text, ..unkept(end, error) }
        }
    };
    tell_vm_ended(context, end)
}

/// Said of a VM whose cutover was ordered, and may not take place later by that order.
pub(super) const USED_UP: &str =
    "; the cutover that was ordered for it is used up, and has to be ordered again";

/// An order to move over is for the window that it was given in: with a later one no guest goes down unless somebody orders it then.
/// Whether there was one.
pub(super) fn use_up_order(store: &Store, plan: &str, id: &str) -> Result<bool, StoreError> {
    let was_asked = store.cutover_asked(plan, id)?;
    if was_asked {
        store.take_cutover(plan, id)?;
    }
    Ok(was_asked)
}

fn tell_vm_ended(context: &Context<'_>, end: VmEnd) -> VmEnd {
    context.observer.event(&Event::VmEnded {
        vm: end.name.clone(),
        state: end.state,
        error: end.error.clone(),
        advice: end.advice.clone(),
        standing: end.standing.clone(),
    });
    end
}

/// The end of a VM that the schedule gave up, and that no run began. Nothing of it is undone, for nothing was done.
pub(crate) fn end_untouched(context: &Context<'_>, planned: &PlannedVm, why: &EngineError) -> VmEnd {
    let end = VmEnd {
        name: planned.target_name.clone(),
        state: VmState::Failed,
        cause: Some(why.cause()),
        error: Some(why.chain()),
        advice: why.advice(),
        standing: None,
        unkept: None,
    };
    record_and_tell(context, &planned.vm.id, end, None, why.is_window_over())
}

/// The end of a VM that could not be recorded.
fn unkept(end: VmEnd, error: StoreError) -> VmEnd {
    let advice = end.advice.or_else(|| Some(error.advice().into()));
    VmEnd { advice, unkept: Some(error), ..end }
}
