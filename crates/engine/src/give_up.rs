//! VMs that are given up by order, while the rest of their run goes on.
//!
//! One that is at work is stopped first, as the whole run would be, and one that waits begins no more. For its wave and its group it is
//! then as if it had never been there. What was begun of it is undone as `drover cancel` does it for a whole plan.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

use drover_mover::StopSignal;
use drover_plan::PlannedVm;

use crate::cancel::{GivenUp, cancel_in_run};
use crate::error::{Cause, chain};
use crate::event::Event;
use crate::itinerary::Context;
use crate::runner::{Run, Runner};
use crate::standing::VmEnd;
use crate::store::VmState;

const DONE: &str = "it is given up by order, and what was begun of it is undone";

/// Which VMs of a run are given up, by their places in it.
#[derive(Default)]
pub(crate) struct GiveUps(Mutex<Heeded>);

#[derive(Default)]
struct Heeded {
    ordered: BTreeMap<usize, Ordered>,
    /// What stops those at work.
    stops: BTreeMap<usize, StopSignal>,
}

/// An order that is heeded.
struct Ordered {
    at_ms: i64,
    /// Whether what came of it is still to come.
    is_on_its_way: bool,
}

impl GiveUps {
    /// A VM is at work from now on. Gives what stops it: that, or what stops the run.
    pub(crate) fn begins(&self, at: usize, run: &StopSignal) -> StopSignal {
        let (stop, mut heeded) = (run.child(), self.lock());
        if heeded.ordered.contains_key(&at) {
            stop.stop();
        }
        heeded.stops.insert(at, stop.clone());
        stop
    }

    pub(crate) fn is_ordered(&self, at: usize) -> bool {
        self.lock().ordered.contains_key(&at)
    }

    /// False if it is heeded already: an order that is given again counts once what came of the one before is known.
    fn order(&self, at: usize, at_ms: i64) -> bool {
        let mut heeded = self.lock();
        let known = heeded.ordered.get(&at);
        if known.is_some_and(|known| known.is_on_its_way || known.at_ms >= at_ms) {
            return false;
        }
        heeded.ordered.insert(at, Ordered { at_ms, is_on_its_way: true });
        if let Some(stop) = heeded.stops.get(&at) {
            stop.stop();
        }
        true
    }

    fn is_known(&self, at: usize) {
        if let Some(ordered) = self.lock().ordered.get_mut(&at) {
            ordered.is_on_its_way = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heeded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner<'_> {
    /// Gives VMs up of which somebody ordered it.
    pub(crate) fn heed_give_ups<'scope>(&self, run: &'scope Run<'_>, scope: &'scope Scope<'scope, '_>) {
        // Trouble with the store shows itself elsewhere; orders are looked for again. A run that stops leaves them to the next one.
        let ordered = self.store.give_ups_at(self.plan).unwrap_or_default();
        if ordered.is_empty() {
            return;
        }
        // What never began is told, and what failed is tried again, under the same lock.
        let _begun = run.calls.lock();
        for (id, at_ms) in ordered.iter().filter(|_| !self.stop.is_set()) {
            let Some(at) = run.todo.iter().position(|vm| vm.vm.id == *id) else { continue };
            let name = &run.todo[at].target_name;
            // Whether it has ended, and whether its end is heeded, is one question.
            let ends = run.ends.lock().unwrap_or_else(PoisonError::into_inner);
            let has_ended = ends.iter().any(|end| end.name == *name);
            if !run.give_ups.order(at, *at_ms) {
                continue;
            }
            drop(ends);
            if !has_ended {
                run.schedule.leave_out(run.tenant, at, self.clock);
                continue;
            }
            let undo = move || run.put_end(at, give_up(run.context, run.todo[at], Was::AtWork));
            // Undoing asks source and target, which may take their time.
            if Builder::new().spawn_scoped(scope, undo).is_err() {
                undo();
            }
        }
    }
}

impl Run<'_> {
    /// Keeps what came of giving a VM up, in the place of how it had ended.
    pub(crate) fn put_end(&self, at: usize, end: VmEnd) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|it| it.name != end.name);
        ends.push(end);
        drop(ends);
        self.give_ups.is_known(at);
    }
}

/// What a VM did that is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Was {
    /// It was at work: its end was told.
    AtWork,
    /// It waited for its turn.
    Waiting,
}

/// Undoes what was begun of a VM that has stopped, and tells what came of it.
pub(crate) fn give_up(context: &Context<'_>, vm: &PlannedVm, was: Was) -> VmEnd {
    let (store, plan, id) = (context.store, context.plan, vm.vm.id.as_str());
    let mut unkept = None;
    let given_up = match store.vm(plan, id) {
        Ok(row) => row.map(|row| cancel_in_run(context, &row)).unwrap_or_default(),
        Err(error) => {
            let left = vec![format!("how far it came is not known: {}", chain(&error))];
            unkept = Some(error);
            GivenUp { left, ..GivenUp::default() }
        }
    };
    for note in &given_up.notes {
        // A note that cannot be kept is a loss to the report only.
        let _ = store.add_event(plan, Some(id), None, "note", note);
    }
    let name = vm.target_name.clone();
    let end = match (given_up.left.as_slice(), given_up.arrived.as_slice()) {
        ([], []) => VmEnd::plain(name, VmState::Cancelled),
        ([], _) => {
            // What failed after its start stays told.
            let error = store.vm(plan, id).ok().flatten().and_then(|row| row.error);
            VmEnd { error, ..VmEnd::plain(name, VmState::Done) }
        }
        (left, _) => {
            let text = format!("it is given up by order, and not all could be undone: {}", left.join("; "));
            let advice = format!("mend the cause, then `drover cancel {plan} {}` again", vm.vm.name);
            let why = Some((text.as_str(), "source", Some(advice.as_str())));
            unkept = unkept.or(store.end_vm(plan, id, VmState::Failed, why).err());
            let (cause, error, advice) = (Some(Cause::Source), Some(text), Some(advice));
            VmEnd { cause, error, advice, unkept, ..VmEnd::plain(name, VmState::Failed) }
        }
    };
    let text = match end.state {
        VmState::Cancelled if !given_up.kept.is_empty() => {
            let of_it = format!("{}: ", vm.target_name);
            let notes = given_up.notes.iter().map(|note| note.strip_prefix(&of_it).unwrap_or(note));
            format!("it is given up by order: {}", notes.collect::<Vec<_>>().join("; "))
        }
        VmState::Cancelled => DONE.to_string(),
        VmState::Done => {
            let stays = || "it had arrived before it could be given up, and stays".to_string();
            end.error.clone().unwrap_or_else(stays)
        }
        _ => end.error.clone().unwrap_or_default(),
    };
    let (vm, state) = (end.name.clone(), end.state);
    context.observer.event(&match was {
        Was::AtWork => Event::Note { vm, text },
        Was::Waiting => {
            Event::VmEnded { vm, state, error: Some(text), advice: end.advice.clone(), standing: None }
        }
    });
    end
}
