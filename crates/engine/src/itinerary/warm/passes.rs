//! Pass after pass, until the VM moves over.

use std::time::Duration;

use drover_copy::converge::{Decision, Reason, Trend, When};

use super::outlook::{advice_words, facts, reason_word};
use crate::error::{Cause, EngineError};
use crate::event::Event;
use crate::itinerary::ending::{Held, USED_UP, use_up_order};
use crate::itinerary::{Journey, Outcome};
use crate::slots::Turn;
use crate::store::{Downtime, PassRow};

/// A pass that fails so often in a row ends the migration; what passes by itself is waited out before.
const FAILURES_MAX: u32 = 3;
/// Wait after a pass that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Time between passes of a VM that waits for its wave, where the plan leaves that open.
const WAVE_INTERVAL: Duration = Duration::from_secs(600);
/// How long a VM stands there at the least that somebody else is to let move over. It is told that the VM asks, and the VM that it may, each
/// within some seconds: with a shorter stand all leave could come in a pass.
const STANDS_FOR_LEAVE: Duration = Duration::from_secs(6);
/// A command or a stop is noticed within this time.
const TICK: Duration = Duration::from_millis(250);

/// Whether a VM moves over now.
enum Ready {
    Yes,
    /// What there was to do took so long, or showed such things, that it has to be decided anew.
    Anew,
    /// It has to wait, and another pass is due.
    AfterPass,
}

impl Journey<'_> {
    /// Passes while the VM runs. Ends when it is to move over, with the slots held.
    pub(in crate::itinerary) fn passes(&mut self) -> Outcome<()> {
        // Also where it comes back to them: the moment of a cutover is held against the run.
        self.passes_began_ms.get_or_insert(self.context.clock.now_ms());
        self.leave_it_on()?;
        if let Some(why) = self.why_moment_is_over()? {
            self.note(format!(
                "the moment of its cutover {why}, so its passes go on until `drover cutover` or another moment in the plan"
            ));
        }
        self.check_replica()?;
        self.check_images()?;
        let (mut failures, mut looked_again, mut told_wave) = (0, false, false);
        loop {
            if self.context.stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            self.must_move()?;
            let passes = self.passes_done()?;
            match self.decide(&passes)? {
                Decision::Wait { until_ms } => self.wait(until_ms, &passes)?,
                Decision::Pass => self.pass_or_wait(&mut failures)?,
                Decision::Cutover(_) if self.waits_for_wave(&mut told_wave)? => {
                    self.until_wave(&passes, &mut failures)?;
                }
                Decision::Cutover(reason) => match self.is_ready(reason, &passes, &mut looked_again)? {
                    Ready::Yes => return Ok(()),
                    Ready::Anew => {}
                    Ready::AfterPass => self.pass_or_wait(&mut failures)?,
                },
            }
        }
    }

    fn pass_or_wait(&mut self, failures: &mut u32) -> Outcome<()> {
        match self.pass(*failures + 1 >= FAILURES_MAX) {
            Ok(()) => {
                *failures = 0;
                // It serves well again.
                self.forget_fault();
            }
            Err(error) => {
                *failures += 1;
                self.after_failure(error, *failures)?;
            }
        }
        Ok(())
    }

    /// Whether it still may move over, asked of the wave that it is in: one that never may ends, and does not keep the waves after
    /// its own waiting for ever.
    fn must_move(&self) -> Outcome<()> {
        match self.planned.wave {
            Some(_) => self.slots.wave_wait().map(drop),
            None => Ok(()),
        }
    }

    /// Whether it would move over if it were the turn of its wave. A cutover that an earlier run had begun goes on.
    fn waits_for_wave(&self, told: &mut bool) -> Outcome<bool> {
        let wait = match self.is_cut_short()? {
            true => None,
            false => self.slots.wave_wait()?,
        };
        if let Some(wait) = wait.as_ref().filter(|_| !std::mem::replace(told, true)) {
            self.note(format!(
                "it would move over now, and its passes go on until its wave may: it waits for {wait}"
            ));
        }
        *told &= wait.is_some();
        Ok(wait.is_some())
    }

    /// Waits for its wave without holding slots, or makes the pass that is due meanwhile: what is left to the last one stays
    /// small.
    fn until_wave(&mut self, passes: &[PassRow], failures: &mut u32) -> Outcome<()> {
        let due_ms = self.next_due_ms(passes)?;
        if due_ms <= self.context.clock.now_ms() {
            return self.pass_or_wait(failures);
        }
        self.slots.park_untold();
        self.slots.await_wave(true);
        while due_ms > self.context.clock.now_ms() && self.slots.wave_wait()?.is_some() {
            if self.context.stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            self.context.clock.sleep(TICK);
        }
        self.slots.await_wave(false);
        Ok(())
    }

    /// When a VM makes its next pass that would move over if it were let.
    fn next_due_ms(&self, passes: &[PassRow]) -> Outcome<i64> {
        let interval = self.contract()?.interval.unwrap_or(WAVE_INTERVAL);
        Ok(passes.last().map_or(0, |pass| pass.began_ms) + interval.as_millis() as i64)
    }

    /// Until when it stands among those that are to move over before it makes another pass: until that is due, and for as long as
    /// the last one took at the least, so that it stands there for half of its time; longer where it takes long to let it.
    fn stands_until_ms(&self, passes: &[PassRow]) -> Outcome<i64> {
        let took_ms = passes.last().map_or(0, |pass| pass.ended_ms.unwrap_or(pass.began_ms) - pass.began_ms);
        let least_ms = match self.slots.waits_for_leave() {
            true => took_ms.max(STANDS_FOR_LEAVE.as_millis() as i64),
            false => took_ms,
        };
        Ok(self.next_due_ms(passes)?.max(self.context.clock.now_ms() + least_ms))
    }

    /// A guest that runs although an earlier run's cutover was cut short is not shut down for that any more:
    /// somebody wanted it back, or it never went.
    fn leave_it_on(&mut self) -> Outcome<()> {
        if !self.is_cut_short()? || !self.stays_on()? {
            return Ok(());
        }
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        store.undo_cutover(plan, id, self.moment())?;
        store.set_switched_off(plan, id, false)?;
        (self.memory.switched_off, self.may_go_down) = (false, false);
        self.slots.takes_back();
        self.note(
            "it runs although an earlier run had begun its cutover, so its passes go on; a cutover has to be asked for \
             again"
                .into(),
        );
        Ok(())
    }

    fn decide(&self, passes: &[PassRow]) -> Outcome<Decision> {
        if self.is_cut_short()? {
            return Ok(Decision::Cutover(Reason::Asked));
        }
        let asked = self.context.store.cutover_asked(self.context.plan, &self.planned.vm.id)?;
        let (facts, costs) = (facts(passes), self.costs(passes)?);
        Ok(self.contract()?.decide(&facts, &costs, asked, self.context.clock.now_ms()))
    }

    /// A pass of a VM that runs. The VM `ends` if it fails.
    fn pass(&mut self, ends: bool) -> Outcome<()> {
        self.slots.take(self.context.stop)?;
        self.begin_pass(false)?;
        let copied = self.copy_pass();
        self.forget_proof();
        // What was copied is compared with again when the VM moves over; until then it only takes memory.
        self.copies.iter_mut().for_each(|copied| *copied = None);
        // Change ids outlive snapshots, and a snapshot that stays slows the VM down.
        let thawed = self.thaw();
        // Its next pass may be due already; the others come first.
        match &copied {
            Ok(()) => self.slots.park(),
            Err(error) => self.park_failed(error, ends),
        }
        copied?;
        thawed?;
        self.advise()
    }

    /// Passes what cannot pass by itself, and waits otherwise.
    fn after_failure(&mut self, error: EngineError, failures: u32) -> Outcome<()> {
        let passes_by = matches!(error.cause(), Cause::Source | Cause::Connection | Cause::Access);
        if !passes_by || failures >= FAILURES_MAX || self.context.stop.is_set() {
            return Err(error);
        }
        // It may have overwritten any of what was read back.
        self.proved = None;
        // It may have been the look that failed: whether the disks are still those of the plan.
        self.inspect_now()?;
        self.thaw()?;
        if let Some(told) = self.unanswered() {
            self.note(told);
            self.memory.snapshot = Held::No;
        }
        let told =
            format!("a pass failed and is done again ({failures} of {FAILURES_MAX}): {}", error.chain());
        let interval = self.contract()?.interval.unwrap_or(AFTER_FAILURE).min(AFTER_FAILURE);
        let until_ms = self.context.clock.now_ms() + interval.as_millis() as i64;
        self.park_failed(&error, false);
        // Until the next pass is complete, status and page say so beside the VM, and when it is done again.
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        store.set_hint(plan, id, Some(&told))?;
        store.set_next_pass(plan, id, Some(until_ms), None)?;
        self.note(told);
        self.sleep_until(until_ms, false)?;
        Ok(store.set_next_pass(plan, id, None, None)?)
    }

    /// Advice that the trend gives, told when it is new.
    fn advise(&self) -> Outcome<()> {
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        let passes = self.passes_done()?;
        let (contract, costs) = (self.contract()?, self.costs(&passes)?);
        let advice = Trend::of(&facts(&passes)).and_then(|trend| contract.advice(&trend, &costs));
        let hint = self.seen.clone().or(advice.map(advice_words));
        if store.warm(plan, id)?.hint != hint {
            store.set_hint(plan, id, hint.as_deref())?;
            hint.into_iter().for_each(|hint| self.note(hint));
        }
        Ok(())
    }

    /// Waits for the next pass without holding slots.
    fn wait(&self, until_ms: i64, passes: &[PassRow]) -> Outcome<()> {
        self.slots.park_untold();
        let forecast = self.forecast(passes)?;
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        store.set_next_pass(plan, id, Some(until_ms), forecast)?;
        let number = 1 + passes.last().map_or(0, |pass| pass.number);
        let until_asked = self.contract()?.when == When::Asked;
        self.tell(Event::PassWaits { vm: self.name(), number, next_ms: until_ms, forecast, until_asked });
        self.sleep_until(until_ms, true)?;
        Ok(store.set_next_pass(plan, id, None, forecast)?)
    }

    /// Sleeps, unless the run is to stop or, where that counts, the cutover is asked for.
    fn sleep_until(&self, until_ms: i64, wakes_for_cutover: bool) -> Outcome<()> {
        loop {
            let left = until_ms - self.context.clock.now_ms();
            if self.context.stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            self.must_move()?;
            let asked = || self.context.store.cutover_asked(self.context.plan, &self.planned.vm.id);
            if left <= 0 || wakes_for_cutover && asked()? {
                return Ok(());
            }
            self.context.clock.sleep(TICK.min(Duration::from_millis(left as u64)));
        }
    }

    /// The error of a VM that does not move over, and whose order may be there: once it is mended, perhaps days later, no guest goes down
    /// unless somebody orders it then.
    fn use_up_order(&self, error: EngineError) -> EngineError {
        match (error, use_up_order(self.context.store, self.context.plan, &self.planned.vm.id)) {
            (_, Err(unkept)) => unkept.into(),
            (EngineError::Provider(mut error), Ok(true)) => {
                error.what.push_str(USED_UP);
                error.into()
            }
            (error, Ok(_)) => error,
        }
    }

    /// Does all that can be done before the guest is shut down, and waits for its turn.
    fn is_ready(&mut self, reason: Reason, passes: &[PassRow], looked_again: &mut bool) -> Outcome<Ready> {
        let cut_short = self.is_cut_short()?;
        // Also of a cutover that is gone on with: disks that are not the run's are refused while the guest may run.
        let (now, doubts) = self.inspect_now()?;
        self.keep_hardware(&now).map_err(|error| self.use_up_order(error))?;
        if !cut_short {
            if !doubts.passing.is_empty() && !std::mem::replace(looked_again, true) {
                // Better found now than while the guest is down.
                self.pass(true)?;
                return Ok(Ready::Anew);
            }
            self.tell_seen(&now)?;
            if self.proved.is_none() && self.prove_replica()? {
                return Ok(Ready::Anew);
            }
            // Its guest runs: it may wait, and others get its slots meanwhile.
            self.slots.park_untold();
        }
        // With its slots from before the shutdown on: a guest that is down waits for nobody.
        match self.slots.take_turn(self.stands_until_ms(passes)?, self.context.stop)? {
            Turn::Now => {}
            Turn::NotYet => return Ok(Ready::AfterPass),
            Turn::WaveShut => {
                self.note("its window closed while it waited for slots, so it does not move over yet".into());
                return Ok(Ready::Anew);
            }
        }
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        let forecast: Option<Downtime> = match cut_short {
            true => store.warm(plan, id)?.forecast,
            false => self.forecast(&self.passes_done()?)?,
        };
        let reason = if cut_short { "an earlier run had begun it" } else { reason_word(reason) };
        store.set_next_pass(plan, id, None, forecast)?;
        store.set_cutover_reason(plan, id, reason)?;
        self.tell(Event::CutoverStarted { vm: self.name(), reason: reason.into(), forecast });
        Ok(Ready::Yes)
    }
}
