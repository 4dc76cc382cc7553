//! Hooks and checks on a VM's way: when they are called, and what their answers mean for it.

use std::time::{Duration, Instant};

use drover_mover::StopSignal;
use drover_plan::{Check, Hook, HookPoint, OnFailure};
use drover_types::inventory::PowerState;
use serde_json::{Value, json};

use super::{Context, Journey, Outcome};
use crate::error::{Cause, EngineError, ProviderError};
use crate::event::Event;
use crate::hooks::{Answer, CallKind, HookResult, HookRunner, POST_START, PRE_CUTOVER};
use crate::phase::Phase;
use crate::store::{Called, RunFacts, wave_key};

/// Who carries out hooks and checks, and what they are told of the run.
#[derive(Clone, Copy)]
pub(crate) struct Outside<'a> {
    pub(crate) runner: &'a dyn HookRunner,
    pub(crate) facts: &'a RunFacts,
    /// Number of the run in the state.
    pub(crate) run: i64,
}

/// How a VM that failed or was stopped ended, or why one waits that was prepared for its shutdown.
pub(super) struct Ending<'a> {
    pub(super) state: &'a str,
    pub(super) error: &'a str,
    pub(super) advice: Option<&'a str>,
}

impl Journey<'_> {
    /// What is called before a phase.
    pub(super) fn call_before(&mut self, phase: Phase) -> Outcome<()> {
        match phase {
            Phase::PowerOff => self.before_shutdown(),
            Phase::Start if self.planned.start => self.call_hooks(HookPoint::BeforeStart),
            Phase::Start => {
                self.tell_not_started();
                Ok(())
            }
            Phase::CleanUp if self.stays && self.planned.start => self.after_start(),
            _ => Ok(()),
        }
    }

    /// What is called after a phase.
    pub(super) fn call_after(&mut self, phase: Phase) -> Outcome<()> {
        match phase {
            Phase::Check => self.call_hooks(HookPoint::BeforeCopy),
            Phase::PowerOff => self.call_hooks(HookPoint::AfterShutdown),
            Phase::Verify => self.call_hooks(HookPoint::AfterCopy),
            Phase::CleanUp => self.call_hooks(HookPoint::AfterDone),
            _ => Ok(()),
        }
    }

    /// While the guest still runs: whatever fails here costs no downtime. What is called may take long, so the window is asked again
    /// after it: one that has closed meanwhile keeps the guest up, and all is called again when it opens.
    fn before_shutdown(&mut self) -> Outcome<()> {
        let has_any = !self.planned.checks.pre_cutover.is_empty()
            || self.planned.hooks.get(&HookPoint::BeforeShutdown).is_some_and(|hooks| !hooks.is_empty());
        if !has_any {
            return Ok(());
        }
        loop {
            if self.look()?.power == PowerState::Off {
                self.note("its guest is off already, so nothing is asked or called before a shutdown".into());
                return Ok(());
            }
            if self.was_down {
                // Somebody switched on again what an earlier run had shut down.
                self.forget_hooks()?;
            }
            let asked = self.ask_checks(PRE_CUTOVER, &self.planned.checks.pre_cutover);
            // A check shuts no guest down: one that went off meanwhile was switched off by its owner, and stays off.
            let may_be_theirs = asked.is_ok() && self.planned.hooks.contains_key(&HookPoint::BeforeShutdown);
            let called = asked.and_then(|()| self.call_hooks(HookPoint::BeforeShutdown));
            // One that hooks shut down is down already, by the plan's will: what fails later switches it on again.
            let is_down = self.look().map(|now| now.power == PowerState::Off);
            if may_be_theirs && matches!(is_down, Ok(true)) {
                self.note(
                    "its guest went off while hooks before its shutdown ran, so it counts as shut down by them: it is switched on again \
                     at its source if it does not move over"
                        .into(),
                );
                self.record_going_down()?;
            }
            if called.is_err() {
                self.take_cutover()?;
                return called;
            }
            if is_down? || self.slots.wave_wait()?.is_none() {
                return Ok(());
            }
            self.stay_until_window()?;
        }
    }

    /// Waits until the window is open again, as if its turn had not come: what was prepared for a shutdown is taken back first.
    fn stay_until_window(&mut self) -> Outcome<()> {
        let why = "its window closed while what is called before a shutdown ran, so its guest stays up until it opens again; all \
                   of that is called again then";
        self.call_after_failure(&Ending { state: "waits", error: why, advice: None });
        self.note(why.into());
        self.forget_hooks()?;
        if self.is_warm() {
            self.slots.drop_cutover();
            // It is decided anew, and its moment stays one.
            self.context.store.undo_cutover(self.context.plan, &self.planned.vm.id, None)?;
            return self.run_phase(Phase::Passes);
        }
        self.slots.begin_anew(self.context.stop)?;
        // Hours later, it may have other disks.
        self.run_phase(Phase::Check)
    }

    fn tell_not_started(&self) {
        let of_start = [HookPoint::BeforeStart, HookPoint::AfterStart];
        let has_hooks = of_start.iter().any(|it| self.planned.hooks.get(it).is_some_and(|it| !it.is_empty()));
        if has_hooks || !self.planned.checks.post_start.is_empty() {
            self.note(
                "the plan does not start it, so what is called and asked around a start is left out".into(),
            );
        }
    }

    /// The guest was started at the target: from here on only a check that does not pass sends it back, and only by leave.
    fn after_start(&mut self) -> Outcome<()> {
        self.call_hooks(HookPoint::AfterStart)?;
        let checks = &self.planned.checks;
        let asked = self.ask_checks(POST_START, &checks.post_start);
        let has_failed = asked.as_ref().is_err_and(|error| error.cause() == Cause::Check);
        // What an earlier run started may have been worked with since: nothing of that is given up.
        self.rolls_back = has_failed && checks.roll_back && self.started_now;
        if has_failed && checks.roll_back && !self.started_now {
            self.note(
                "an earlier run started it, so it is not sent back: what was done there since would be lost"
                    .into(),
            );
        }
        if self.rolls_back {
            self.note("a check does not pass, so it goes back to its source, as the plan says".into());
        }
        asked
    }

    /// Forgets that hooks were called for what is undone now.
    pub(super) fn forget_hooks(&self) -> Outcome<()> {
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        if store.has_hooks(plan, id)? {
            store.forget_hooks(plan, id, HookPoint::BeforeCopy.name())?;
        }
        Ok(())
    }

    /// Calls the hooks after a failure. What comes of them changes nothing.
    pub(super) fn call_after_failure(&self, ending: &Ending<'_>) {
        let Some(hooks) = self.planned.hooks.get(&HookPoint::AfterFailure) else { return };
        let outcome = json!({"state": ending.state, "error": ending.error, "advice": ending.advice});
        // One that was stopped is told of too: its stop is not that of these hooks, whose time is bounded.
        let asked = self.context.stop;
        let stop = if asked.is_set() { StopSignal::default() } else { asked.child() };
        for (at, hook) in hooks.iter().enumerate() {
            if let Err(error) = self.call_hook(HookPoint::AfterFailure, at + 1, hook, Some(&outcome), &stop) {
                self.note(error.chain());
            }
        }
    }

    fn call_hooks(&self, point: HookPoint) -> Outcome<()> {
        let hooks = self.planned.hooks.get(&point).map_or(&[][..], Vec::as_slice);
        let done = json!({"state": "done", "error": null, "advice": null});
        let outcome = (point == HookPoint::AfterDone).then_some(&done);
        hooks
            .iter()
            .enumerate()
            .try_for_each(|(at, hook)| self.call_hook(point, at + 1, hook, outcome, self.context.stop))
    }

    fn call_hook(
        &self,
        point: HookPoint,
        number: usize,
        hook: &Hook,
        outcome: Option<&Value>,
        stop: &StopSignal,
    ) -> Outcome<()> {
        // The next failure is another one.
        let (may_skip, recurs) = (point.may_skip(), point == HookPoint::AfterFailure);
        let moment = Moment { point: point.name(), may_skip, recurs };
        let document = |outside: Outside<'_>, called: Called<'_>| self.document(outside, called, outcome);
        self.calls().call(moment, number, hook, document, stop)
    }

    fn calls(&self) -> Calls<'_> {
        let (id, name) = (&self.planned.vm.id, &self.planned.target_name);
        Calls { context: self.context, about: About::Vm { id, name } }
    }

    /// Asks checks until each has passed.
    fn ask_checks(&self, point: &'static str, checks: &[Check]) -> Outcome<()> {
        checks.iter().enumerate().try_for_each(|(at, check)| self.ask_check(point, at + 1, check))
    }

    fn ask_check(&self, point: &'static str, number: usize, check: &Check) -> Outcome<()> {
        let what = check.words();
        let called = Called { kind: CallKind::Check, point, number, what: &what };
        let outside = self.calls().outside()?;
        let document = self.document(outside, called, None);
        let (clock, stop) = (self.context.clock, self.context.stop);
        let asked = |tries: &mut u32| -> Answer {
            let until =
                clock.now_ms().saturating_add(i64::try_from(check.within.as_millis()).unwrap_or(i64::MAX));
            loop {
                *tries += 1;
                let answer = outside.runner.ask(check, &document, stop);
                if answer.result != HookResult::Failed || clock.now_ms() >= until {
                    return answer;
                }
                let left = Duration::from_millis(until.saturating_sub(clock.now_ms()).max(0) as u64);
                let mut pause = check.every.min(left);
                while !pause.is_zero() && !stop.is_set() {
                    let step = pause.min(STOP_LOOK);
                    clock.sleep(step);
                    pause -= step;
                }
                if stop.is_set() {
                    return Answer::new(HookResult::Interrupted, "the run was stopped");
                }
            }
        };
        let answer = self.calls().tell_call(called, asked, |_| false)?;
        match answer.result {
            HookResult::Passed => Ok(()),
            HookResult::Interrupted => Err(EngineError::Cancelled),
            HookResult::Failed | HookResult::Stop | HookResult::Skip => {
                let text = said(&format!("check {point} {number} ({what})"), &answer);
                let error = ProviderError::new(Cause::Check, text);
                Err(error.advise("see why, then `drover resume`: it asks again").into())
            }
        }
    }

    /// What a hook or a check is told. Nothing in it is a secret.
    fn document(&self, outside: Outside<'_>, called: Called<'_>, outcome: Option<&Value>) -> Value {
        let Outside { facts, run, .. } = outside;
        let (planned, vm) = (self.planned, &self.planned.vm);
        let disks: Vec<Value> = planned
            .disks
            .iter()
            .map(|disk| {
                let (label, bytes) = (&disk.disk.label, disk.disk.capacity_bytes);
                json!({"label": label, "path": planned.place_of(disk), "bytes": bytes})
            })
            .collect();
        json!({
            "version": 1,
            "kind": called.kind,
            "point": called.point,
            "number": called.number,
            // The same for every call of this one: whoever sees it twice has been called again after a kill.
            "call": format!("{}/{}/{}/{}", self.context.plan, vm.id, called.point, called.number),
            "plan": self.context.plan,
            "run": run,
            "phase": self.reached.name(),
            "mode": if self.is_warm() { "warm" } else { "cold" },
            "vm": {
                "id": vm.id,
                "name": vm.name,
                "target_name": planned.target_name,
                "instance_uuid": vm.instance_uuid,
                "guest_id": vm.guest_id,
                "tags": vm.tags,
                "wave": planned.wave,
            },
            "source": {
                "address": facts.source,
                "product": facts.source_product,
                "uuid": facts.source_uuid,
                "host": planned.host_name,
            },
            "target": {
                "site": planned.site,
                "daemon": planned.daemon,
                "folder": planned.folder,
                "disks": disks,
                "start": planned.start,
            },
            "outcome": outcome,
        })
    }
}

/// Who a call is about.
#[derive(Clone, Copy)]
pub(crate) enum About<'a> {
    Vm { id: &'a str, name: &'a str },
    Wave(&'a str),
}

/// When hooks are called, and what follows from it.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) point: &'static str,
    /// One may have the VM left out.
    pub(crate) may_skip: bool,
    /// What is called then is called each time that it comes to it.
    pub(crate) recurs: bool,
}

/// Makes the calls about a VM or a wave, and keeps and tells what came of them.
#[derive(Clone, Copy)]
pub(crate) struct Calls<'a> {
    pub(crate) context: &'a Context<'a>,
    pub(crate) about: About<'a>,
}

impl<'a> Calls<'a> {
    /// Calls a hook, unless it ended in an earlier run.
    ///
    /// # Errors
    /// If it says so, or fails and the plan does not take that for a warning.
    pub(crate) fn call(
        &self,
        moment: Moment,
        number: usize,
        hook: &Hook,
        document: impl Fn(Outside<'_>, Called<'_>) -> Value,
        stop: &StopSignal,
    ) -> Outcome<()> {
        let (Moment { point, may_skip, recurs }, what) = (moment, hook.words());
        let called = Called { kind: CallKind::Hook, point, number, what: &what };
        let (store, plan) = (self.context.store, self.context.plan);
        if store.is_hook_over(plan, &self.key(), called)? {
            // Of waves, each run comes to all of them.
            if let About::Vm { .. } = self.about {
                self.note(format!(
                    "{point} {number} ({what}) is not called again: it ended in an earlier run"
                ));
            }
            return Ok(());
        }
        if stop.is_set() {
            return Err(EngineError::Cancelled);
        }
        let outside = self.outside()?;
        let document = document(outside, called);
        let answer = self.tell_call(
            called,
            |_| outside.runner.call(hook, &document, stop),
            |answer| {
                let goes_on = answer.result == HookResult::Passed
                    || answer.result == HookResult::Failed && hook.on_failure == OnFailure::Warn;
                goes_on && !recurs
            },
        )?;
        let text = said(&format!("hook {point} {number} ({what})"), &answer);
        match answer.result {
            HookResult::Passed => Ok(()),
            HookResult::Interrupted => Err(EngineError::Cancelled),
            HookResult::Failed if hook.on_failure == OnFailure::Warn => {
                self.note(format!("{text}; it goes on, as the plan says"));
                Ok(())
            }
            HookResult::Skip if may_skip => Err(EngineError::Skipped(text)),
            HookResult::Skip => {
                let text = format!("{text}, which it cannot say at {point}");
                Err(ProviderError::new(Cause::Hook, text)
                    .advise("have it stop or go on; only before_copy and before_shutdown can leave a VM out")
                    .into())
            }
            HookResult::Failed | HookResult::Stop => Err(ProviderError::new(Cause::Hook, text)
                .advise("see what it wrote in `drover report`; when it is repaired: `drover resume`")
                .into()),
        }
    }

    /// Makes a call, and tells that it began and how it ended: in the state and to whoever watches.
    fn tell_call(
        &self,
        called: Called<'_>,
        call: impl FnOnce(&mut u32) -> Answer,
        counts: impl FnOnce(&Answer) -> bool,
    ) -> Outcome<Answer> {
        let (store, plan) = (self.context.store, self.context.plan);
        let row = store.begin_hook(plan, &self.key(), called)?;
        self.add_event("hook", &format!("{} {} ({}) begins", called.point, called.number, called.what));
        let (kind, point, number, what) =
            (called.kind, called.point.to_string(), called.number, called.what.to_string());
        let (vm, wave) = match self.about {
            About::Vm { name, .. } => (Some(name.to_string()), None),
            About::Wave(name) => (None, Some(name.to_string())),
        };
        self.context.observer.event(&Event::HookStarted {
            vm: vm.clone(),
            wave: wave.clone(),
            kind,
            point: point.clone(),
            number,
            what: what.clone(),
        });
        let (began, mut tries) = (Instant::now(), 0);
        let mut answer = call(&mut tries);
        if tries > 1 {
            let tried = format!("{tries} tries");
            answer.message =
                if answer.message.is_empty() { tried } else { format!("{}; {tried}", answer.message) };
        }
        let seconds = began.elapsed().as_secs_f64();
        store.end_hook(row, &answer, counts(&answer))?;
        self.add_event(
            "hook",
            &format!("{point} {number} ({what}): {} in {seconds:.1} s", answer.result.word()),
        );
        let Answer { result, message, .. } = answer.clone();
        let event = Event::HookEnded { vm, wave, kind, point, number, what, result, message, seconds };
        self.context.observer.event(&event);
        Ok(answer)
    }

    pub(crate) fn outside(&self) -> Outcome<Outside<'a>> {
        self.context
            .outside
            .ok_or_else(|| ProviderError::new(Cause::Internal, "nobody was told how to call hooks").into())
    }

    /// By what the state knows the calls about it.
    fn key(&self) -> String {
        match self.about {
            About::Vm { id, .. } => id.to_string(),
            About::Wave(name) => wave_key(name),
        }
    }

    pub(crate) fn note(&self, text: String) {
        self.add_event("note", &text);
        if let About::Vm { name, .. } = self.about {
            self.context.observer.event(&Event::Note { vm: name.to_string(), text });
        }
    }

    /// A word for the report; what counts is recorded.
    fn add_event(&self, kind: &str, text: &str) {
        let (store, plan) = (self.context.store, self.context.plan);
        let _ = match self.about {
            About::Vm { id, .. } => store.add_event(plan, Some(id), None, kind, text),
            About::Wave(name) => store.add_event(plan, None, None, kind, &format!("wave {name}: {text}")),
        };
    }
}

/// What a call said, in a line.
fn said(who: &str, answer: &Answer) -> String {
    let word = answer.result.word();
    match answer.message.as_str() {
        "" => format!("{who} {word}"),
        message => format!("{who} {word}: {message}"),
    }
}

/// While a check waits for its next try, a stop is noticed this fast.
const STOP_LOOK: Duration = Duration::from_millis(200);
