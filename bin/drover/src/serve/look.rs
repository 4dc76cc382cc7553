//! What the store has, as the API shows it.

use std::collections::HashMap;

use drover_engine::{CountRow, EventRow, Foreseen, PlanState, VmRow};
use drover_plan::PlannedVm;
use drover_server::{Counts, PlanEvent, VmLine};

/// The word of a state, as the store and the API have it.
pub fn state_word(state: impl serde::Serialize) -> String {
    serde_json::to_value(state).ok().and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}

pub fn plan_word(state: PlanState, runs_elsewhere: bool) -> &'static str {
    match state {
        PlanState::Running if runs_elsewhere => "running",
        PlanState::Running | PlanState::Incomplete => "incomplete",
        PlanState::Done => "done",
        PlanState::Cancelled => "cancelled",
    }
}

pub fn counts<'a>(rows: impl IntoIterator<Item = &'a CountRow>) -> Counts {
    let mut counts = Counts::default();
    for row in rows {
        counts.all += row.count;
        let part = match row.state.as_str() {
            "running" => &mut counts.running,
            "done" => &mut counts.done,
            "not_cleaned_up" => &mut counts.not_cleaned_up,
            "failed" => &mut counts.failed,
            "stopped" => &mut counts.stopped,
            "skipped" => &mut counts.skipped,
            "cancelled" => &mut counts.cancelled,
            _ => &mut counts.queued,
        };
        *part += row.count;
    }
    counts
}

/// What is known of a plan's VMs beside their rows.
#[derive(Debug, Default)]
pub struct KnownOfPlan {
    /// Names of hosts, by the provider's ids.
    pub hosts: HashMap<String, String>,
    /// What VMs wait for, by their ids.
    pub waits: HashMap<String, String>,
    /// When the latest run began, and what was foreseen for it.
    pub foreseen: Option<(i64, Foreseen)>,
}

impl KnownOfPlan {
    /// When a VM was foreseen to arrive.
    fn foreseen_ms(&self, id: &str) -> Option<[i64; 3]> {
        let (began_ms, foreseen) = self.foreseen.as_ref()?;
        let at = |after_ms: u64| began_ms.saturating_add(i64::try_from(after_ms).unwrap_or(i64::MAX));
        Some(foreseen.vms.get(id)?.end_ms.map(at))
    }
}

/// A VM's line; hosts have names where a run told them.
pub fn vm_line(row: VmRow, planned: Option<&PlannedVm>, known: &KnownOfPlan) -> VmLine {
    let host = planned.map(|planned| planned.vm.host_id.clone()).filter(|id| !id.is_empty());
    VmLine {
        host: host.map(|id| known.hosts.get(&id).cloned().unwrap_or(id)),
        wave: planned.and_then(|planned| planned.wave.clone()),
        waits: known.waits.get(&row.id).cloned(),
        foreseen_ms: known.foreseen_ms(&row.id),
        disks: planned.map_or(0, |planned| planned.disks.len() as u64),
        size_bytes: planned.map_or(0, PlannedVm::capacity_bytes),
        warm: planned.is_some_and(|planned| planned.warm.is_some()),
        id: row.id,
        name: row.name,
        trace_id: row.trace_id,
        site: row.site,
        state: state_word(row.state),
        phase: row.phase,
        error: row.error,
        cause: row.cause,
        advice: row.advice,
        started_ms: row.started_ms,
        ended_ms: row.ended_ms,
    }
}

pub fn event(row: EventRow) -> PlanEvent {
    PlanEvent { at_ms: row.at_ms, vm: row.vm, phase: row.phase, kind: row.kind, text: row.text }
}
