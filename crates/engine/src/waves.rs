//! The waves of a run: what is told of them while it runs, and what they come to.

use std::collections::BTreeMap;

use drover_plan::Plan;
use drover_schedule::{Wait, WaveUsage};
use drover_types::Wave;
use serde::{Deserialize, Serialize};

use crate::error::{Cause, EngineError, ProviderError};
use crate::event::Event;
use crate::store::{PlanRow, Store, VmRow, VmState, now_ms};

/// What was told of the waves of a run.
#[derive(Default)]
pub(crate) struct Told(BTreeMap<String, OneTold>);

#[derive(Default)]
struct OneTold {
    begun: bool,
    /// VMs that had arrived and failed when it was told that it is over.
    over: Option<(usize, usize)>,
    /// The wave that failed, if it waits for a word because of it.
    held_by: Option<String>,
}

impl Told {
    /// What is new since the last look. Waves without a VM of this run are not told of. `is_stopped`: the run was asked to stop before
    /// that look; then VMs end that have not failed, and of waves those alone are told that are over with all their VMs.
    pub(crate) fn news(&mut self, waves: &[WaveUsage], is_stopped: bool) -> Vec<Event> {
        let mut events = Vec::new();
        let is_told = |usage: &&WaveUsage| !is_stopped || usage.arrived == usage.vms;
        for usage in waves.iter().filter(|usage| usage.vms > 0).filter(is_told) {
            let one = self.0.entry(usage.name.clone()).or_default();
            let wave = || usage.name.clone();
            // Warm VMs are copied before their wave may move.
            if usage.begun > 0 && usage.waits.is_none() && !std::mem::replace(&mut one.begun, true) {
                events.push(Event::WaveStarted { wave: wave(), vms: usage.vms });
            }
            let held_by = match &usage.waits {
                Some(Wait::WaveFailed { wave, .. }) => Some(wave.clone()),
                _ => None,
            };
            if one.held_by != held_by {
                if let (Some(Wait::WaveFailed { failed, .. }), Some(by)) = (&usage.waits, &held_by) {
                    events.push(Event::WaveHeld { wave: wave(), by: by.clone(), failed: *failed });
                }
                one.held_by = held_by;
            }
            let (arrived, failed) = (usage.arrived, usage.failed);
            // Told anew if VMs of it were tried again, and came to something else.
            if usage.is_over() && one.over.replace((arrived, failed)) != Some((arrived, failed)) {
                events.push(Event::WaveEnded { wave: wave(), arrived, failed });
            }
        }
        events
    }
}

/// A wave of a plan, and how far it is over all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaveReport {
    /// The wave as the plan has it.
    #[serde(flatten)]
    pub wave: Wave,
    /// How far it is.
    pub state: WaveState,
    /// VMs in it.
    pub vms: usize,
    /// VMs at the target, those that were not cleaned up among them.
    pub done: usize,
    /// VMs at work.
    pub running: usize,
    /// VMs that failed, those that never began because of others among them.
    pub failed: usize,
    /// VMs that were given up by order.
    #[serde(default)]
    pub cancelled: usize,
    /// VMs that a hook left out.
    #[serde(default)]
    pub skipped: usize,
    /// VMs that did not begin yet, or were stopped.
    pub left: usize,
    /// Whether the waves after it go on whatever of it failed, because somebody said so.
    pub may_go_on: bool,
    /// When its first VM began, in milliseconds since 1970.
    pub began_ms: Option<i64>,
    /// When its last VM ended; absent while some are left.
    pub ended_ms: Option<i64>,
    /// When its window opens next, on the clock of its zone; absent if it is open, never opens again, or no VM is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens: Option<String>,
}

/// How far a wave is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaveState {
    /// None of its VMs began.
    Queued,
    /// Some began, and some are left.
    Running,
    /// All its VMs arrived, but for those that were given up or left out.
    Done,
    /// All its VMs ended, and some failed.
    Failed,
    /// None of its VMs arrived: a hook left all of them out.
    Skipped,
    /// None of its VMs arrived: they were given up, or some were, and a hook left out the others.
    Cancelled,
}

/// How far the waves of a plan are, in the order of the plan; none if it has no waves.
pub fn wave_reports(store: &Store, plan: &PlanRow, vms: &[VmRow]) -> Vec<WaveReport> {
    // A text that an earlier drover took and this one does not has no waves.
    let waves = Plan::parse(&plan.text).map(|plan| plan.waves()).unwrap_or_default();
    if waves.is_empty() {
        return Vec::new();
    }
    let mut members: BTreeMap<&str, Vec<&VmRow>> = BTreeMap::new();
    for row in vms {
        if let Some(wave) = row.wave.as_deref() {
            members.entry(wave).or_default().push(row);
        }
    }
    let words = store.proceeds(&plan.name).unwrap_or_default();
    let none = Vec::new();
    let now_ms = now_ms().max(0) as u64;
    let report = |wave: Wave| {
        let vms = members.get(wave.name.as_str()).unwrap_or(&none);
        let count = |fits: fn(VmState) -> bool| vms.iter().filter(|vm| fits(vm.state)).count();
        let done = count(VmState::has_arrived);
        let (running, failed) =
            (count(|state| state == VmState::Running), count(|state| state == VmState::Failed));
        // These are none of it any more.
        let (cancelled, skipped) =
            (count(|state| state == VmState::Cancelled), count(|state| state == VmState::Skipped));
        let left = vms.len() - done - running - failed - cancelled - skipped;
        let is_over = running + left == 0;
        WaveReport {
            state: match () {
                () if !is_over && done + running + failed == 0 => WaveState::Queued,
                () if !is_over => WaveState::Running,
                () if failed > 0 => WaveState::Failed,
                () if done == 0 && cancelled > 0 => WaveState::Cancelled,
                () if done == 0 && skipped > 0 => WaveState::Skipped,
                () => WaveState::Done,
            },
            vms: vms.len(),
            done,
            running,
            failed,
            cancelled,
            skipped,
            left,
            may_go_on: words.contains(&wave.name),
            began_ms: vms.iter().filter_map(|vm| vm.started_ms).min(),
            ended_ms: vms.iter().filter_map(|vm| vm.ended_ms).max().filter(|_| is_over),
            opens: wave.window.opens(now_ms).filter(|_| left > 0),
            wave,
        }
    };
    waves.into_iter().map(report).collect()
}

/// Lets the waves after one go on, whatever of it failed or will. A running drover heeds it at once, else the next one that
/// goes on with the plan. Gives the names of the waves after it.
///
/// # Errors
/// If the plan has no such wave, none comes after it, or the state cannot be written.
pub fn ask_proceed(store: &Store, plan: &str, wave: &str) -> Result<Vec<String>, EngineError> {
    let refuse =
        |what: String, advice: String| Err(ProviderError::new(Cause::Plan, what).advise(advice).into());
    let Some(row) = store.plan(plan)? else {
        return refuse(
            format!("there is no plan '{plan}'"),
            "see `drover status` for those there are".into(),
        );
    };
    let waves = Plan::parse(&row.text).map(|plan| plan.waves()).unwrap_or_default();
    if !waves.iter().any(|it| it.name == wave) {
        let names: Vec<&str> = waves.iter().map(|it| it.name.as_str()).collect();
        let advice = match names.as_slice() {
            [] => "the plan has no `waves`".to_string(),
            names => format!("its waves: {}", names.join(", ")),
        };
        return refuse(format!("plan {plan} has no wave '{wave}'"), advice);
    }
    let after = |it: &&Wave| it.after.iter().any(|name| name == wave);
    let after: Vec<String> = waves.iter().filter(after).map(|it| it.name.clone()).collect();
    if after.is_empty() {
        return refuse(format!("no wave of plan {plan} is after '{wave}'"), "nothing waits for it".into());
    }
    store.ask_proceed(plan, wave)?;
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(name: &str, [vms, begun, arrived, failed]: [usize; 4], waits: Option<Wait>) -> WaveUsage {
        WaveUsage { name: name.into(), vms, begun, arrived, failed, waits }
    }

    #[test]
    fn what_becomes_of_a_wave_is_told_once() {
        let mut told = Told::default();
        assert!(told.news(&[usage("a", [2, 0, 0, 0], None), usage("empty", [0; 4], None)], false).is_empty());
        let words = |events: Vec<Event>| -> Vec<String> {
            events.iter().map(|event| serde_json::to_string(event).unwrap()).collect()
        };
        let copied = usage("a", [2, 1, 0, 0], Some(Wait::Window { opens_ms: 5, opens: String::new() }));
        assert!(told.news(&[copied], false).is_empty(), "a warm VM is copied before its wave");
        let began = [usage("a", [2, 1, 0, 0], None)];
        assert_eq!(words(told.news(&began, false)), [r#"{"event":"wave_started","wave":"a","vms":2}"#]);
        assert!(told.news(&began, false).is_empty());
        let waits = Some(Wait::WaveFailed { wave: "a".into(), failed: 1 });
        let ended = [usage("a", [2, 2, 1, 1], None), usage("b", [1, 0, 0, 0], waits)];
        assert_eq!(
            words(told.news(&ended, false)),
            [
                r#"{"event":"wave_ended","wave":"a","arrived":1,"failed":1}"#,
                r#"{"event":"wave_held","wave":"b","by":"a","failed":1}"#
            ]
        );
        assert!(told.news(&ended, false).is_empty());
        // What failed is tried again: the word is not waited for any more, and the wave is over a second time.
        let waits = Some(Wait::Wave { wave: "a".into(), left: 1 });
        let again = [usage("a", [2, 1, 1, 0], None), usage("b", [1, 0, 0, 0], waits)];
        assert!(told.news(&again, false).is_empty());
        let arrived = [usage("a", [2, 2, 2, 0], None), usage("b", [1, 0, 0, 0], None)];
        assert_eq!(
            words(told.news(&arrived, false)),
            [r#"{"event":"wave_ended","wave":"a","arrived":2,"failed":0}"#]
        );
    }

    #[test]
    fn a_run_that_is_stopped_ends_and_begins_no_wave_but_one_that_has_arrived() {
        let mut told = Told::default();
        told.news(&[usage("a", [2, 1, 0, 0], None), usage("b", [2, 0, 0, 0], None)], false);
        let held = Wait::WaveFailed { wave: "a".into(), failed: 1 };
        let stopped = [
            usage("a", [2, 2, 1, 1], None),
            usage("b", [2, 1, 0, 2], None),
            usage("c", [1, 0, 0, 0], Some(held)),
            usage("d", [1, 1, 1, 0], None),
        ];
        let words: Vec<String> =
            told.news(&stopped, true).iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        assert_eq!(
            words,
            [
                r#"{"event":"wave_started","wave":"d","vms":1}"#,
                r#"{"event":"wave_ended","wave":"d","arrived":1,"failed":0}"#
            ]
        );
    }
}
