//! Reading what a plan says of warm migrations.

use std::time::Duration;

use drover_types::units;

use super::{Fields, Reader};
use crate::keys;
use crate::model::{Mode, Plan, Source};
use crate::node::{Node, Value};
use crate::problem::Problem;
use crate::warm::{Audit, Cutover, Interval, WarmKeys, parse_moment};

/// Shortest time between passes: each costs the source a snapshot.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest time between passes.
const INTERVAL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

impl Reader {
    pub(super) fn mode(&mut self, fields: &Fields<'_>) -> Option<Mode> {
        Some(if self.choice(fields, "mode")? == "warm" { Mode::Warm } else { Mode::Cold })
    }

    /// What of warm migrations does not go together with the rest of the plan.
    pub(super) fn check_warm(&mut self, plan: &Plan, root: &Node) {
        let is_warm =
            plan.mode == Mode::Warm || plan.vms.iter().any(|vm| vm.overrides.mode == Some(Mode::Warm));
        let place = |key: &str| match &root.value {
            Value::Map(entries) => entries.iter().find(|it| it.key == key).map(|it| it.node.at),
            _ => None,
        };
        if is_warm && matches!(plan.source, Source::Ova(_)) {
            let problem = Problem::error("mode", "an appliance does not run, so it cannot move warm");
            let at = place("mode").unwrap_or(root.at);
            self.problems.push(problem.at(at).advise("use `mode: cold`"));
        }
        if let Some(at) = place("warm").filter(|_| !is_warm) {
            let problem = Problem::warning("warm", "is not used, because no VM moves warm");
            self.problems.push(problem.at(at).advise("add `mode: warm`, or remove it"));
        }
    }

    pub(super) fn warm(&mut self, parent: &Fields<'_>) -> WarmKeys {
        let fields = self.map(parent, "warm", &keys::WARM);
        WarmKeys {
            interval: self.interval(&fields),
            cutover: self.cutover(&fields),
            downtime_max: self.duration(&fields, "downtime_max"),
            quiesce: self.flag(&fields, "quiesce"),
            audit: self.choice(&fields, "audit").map(|word| match word {
                "none" => Audit::None,
                "full" => Audit::Full,
                _ => Audit::Sampled,
            }),
        }
    }

    fn interval(&mut self, fields: &Fields<'_>) -> Option<Interval> {
        let entry = fields.find("interval")?;
        let read = |text: &str| match text {
            "auto" => Some(Interval::Auto),
            _ => units::time(text)
                .ok()
                .filter(|time| (INTERVAL_MIN..=INTERVAL_MAX).contains(time))
                .map(Interval::Every),
        };
        let interval = match &entry.node.value {
            Value::Scalar { text, .. } => read(text),
            _ => None,
        };
        if interval.is_none() {
            self.wrong(fields, entry, "is neither auto nor a time from 1s to 720h such as 30m");
        }
        interval
    }

    fn cutover(&mut self, fields: &Fields<'_>) -> Option<Cutover> {
        let entry = fields.find("cutover")?;
        let read = |text: &str| match text {
            "manual" => Some(Cutover::Manual),
            "auto" => Some(Cutover::Auto),
            _ => parse_moment(text).map(Cutover::At),
        };
        let cutover = match &entry.node.value {
            Value::Scalar { text, .. } => read(text),
            _ => None,
        };
        if cutover.is_none() {
            self.wrong(fields, entry, "is neither manual, auto, nor a moment such as 2026-12-01T22:00:00Z");
        }
        cutover
    }
}
