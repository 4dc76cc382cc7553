//! Waves of Plans: what they say, and how they stand.

use std::collections::BTreeMap;

use drover_kubevirt::{KubeError, KubeErrorKind};
use drover_operator::PROCEED;
use drover_operator::model::{MigrationSpec, Place, ProviderSpec, Status, plan_text};
use drover_operator::time::Moment;
use drover_operator::waves::{Count, Counts, Kept, Order, WaveStanding, asked_waves};
use drover_types::Wave;
use serde_json::{Value, json};

use super::{Operator, now};

/// The waves that a Plan's keys have. None where they cannot be read: then the Plan is refused, and what of it is in a wave waits.
pub fn waves_of(keys: &Value) -> Vec<Wave> {
    if keys["waves"].is_null() {
        return Vec::new();
    }
    let mut alone =
        json!({"target": {"type": "kubevirt", "image": "i"}, "vms": [{"glob": "*"}], "waves": keys["waves"]});
    if !keys["freezes"].is_null() {
        alone["freezes"] = keys["freezes"].clone();
    }
    let provider = ProviderSpec { endpoint: "source".into(), insecure: true, ..ProviderSpec::default() };
    let place = Place { namespace: "vms", folder: "/provider", images: &["i".to_string()] };
    let text = plan_text("waves", &alone, &provider, "user", &place);
    let read = text.ok().and_then(|text| drover_plan::Plan::parse(&text).ok());
    read.map(|plan| plan.waves()).unwrap_or_default()
}

/// Milliseconds since 1970.
pub fn ms(at: Moment) -> u64 {
    u64::try_from(at.0.saturating_mul(1000)).unwrap_or_default()
}

impl Operator {
    /// Whether its wave lets a Migration begin, or one that has begun go on.
    pub(super) fn wave_standing(&self, spec: &MigrationSpec, status: &Status) -> WaveStanding {
        let open = WaveStanding::Open { closes: None };
        let Some(wave) = &spec.wave else { return open };
        let plan = self.plans.get(&spec.plan_ref.name).filter(|plan| plan.meta.uid == spec.plan_ref.uid);
        match plan {
            // What has begun goes on without its Plan, and nothing else does.
            None => WaveStanding::Gone,
            // Its own plan holds its window, which its worker heeds.
            Some(plan) if status.begun && !plan.waves.iter().any(|it| it.name == *wave) => open,
            Some(plan) => {
                plan.order.as_ref().map_or(WaveStanding::Unknown, |order| order.standing(wave, ms(now())))
            }
        }
    }

    /// What the scheduler goes by: first go those whose wave has to be over first.
    pub(super) fn in_its_turn(&self, spec: &MigrationSpec) -> MigrationSpec {
        let mut spec = spec.clone();
        let order = self.plans.get(&spec.plan_ref.name).and_then(|plan| plan.order.as_ref());
        let due = || spec.wave.as_ref().and_then(|wave| order?.due_ms(wave));
        spec.size.deadline_ms = spec.size.deadline_ms.or_else(due);
        spec
    }

    /// How many Migrations of each wave are left, arrived and failed, by the UIDs of the Plans that have waves.
    fn counts_by_plan(&self) -> BTreeMap<String, Counts> {
        let waved = self.plans.values().filter(|plan| !plan.waves.is_empty());
        let mut all: BTreeMap<String, Counts> =
            waved.map(|plan| (plan.meta.uid.clone(), plan.late.clone())).collect();
        for it in self.migrations.values() {
            let Some(wave) = &it.spec.wave else { continue };
            if let Some(counts) = all.get_mut(&it.spec.plan_ref.uid) {
                counts.entry(wave.clone()).or_default().add(&it.spec.vm.name, &it.status);
            }
        }
        all
    }

    /// Takes what a Plan's annotation says anew. It is written to the status before anything goes by it, and read there by whoever comes next.
    fn heed_proceed(&mut self, name: &str) -> Result<(), KubeError> {
        let Some(plan) = self.plans.get(name) else { return Ok(()) };
        // Which waves it has is known then.
        if plan.status.resolved_generation != plan.meta.generation || plan.cancel || plan.meta.is_going {
            return Ok(());
        }
        let status = &plan.status;
        let said = plan.said.clone();
        let word = asked_waves(said.as_deref(), status.proceeded.as_deref(), &plan.waves, &status.proceed);
        let Some(word) = word else { return Ok(()) };
        let notes = word.notes(&plan.waves);
        let before = status.clone();
        let answer = self.write(name, |status| {
            status.proceed.extend(word.waves);
            status.proceeded = said;
        })?;
        if answer["status"]["proceeded"].is_null() {
            // Nothing goes by what is not kept.
            if let Some(plan) = self.plans.get_mut(name) {
                plan.status = before;
            }
            let what = format!(
                "the cluster does not keep what {PROCEED} says (apply deploy/crds.yaml of this version of drover)"
            );
            return Err(KubeError { kind: KubeErrorKind::Refused, what });
        }
        self.tell("Plan", name, &notes);
        Ok(())
    }

    /// Looks how the waves of all Plans stand that have some. What another standing lets go is decided on.
    pub(super) fn tend_waves(&mut self, at: Moment) {
        let mut all = self.counts_by_plan();
        let names: Vec<String> = self.plans.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.heed_proceed(&name) {
                crate::out::say(format_args!("Plan {name}: {error}; it is tried again"));
            }
            let Some(plan) = self.plans.get_mut(&name) else { continue };
            let Some(counts) = all.remove(&plan.meta.uid) else { continue };
            // Which VMs the server had refused to an operator before this one is known when it is laid over its source again.
            if plan.order.is_none() && plan.is_stale && plan.status.has_refused() {
                continue;
            }
            let Kept { passed, proceed } = plan.status.kept();
            if plan.order.as_ref().is_some_and(|order| order.is_of(&counts, &proceed)) {
                continue;
            }
            let passed = plan.order.as_ref().map_or(passed, |order| order.passed().clone());
            let order = Order::new(&plan.waves, counts, Kept { passed, proceed }, ms(at));
            let fresh = order.changed(plan.order.as_ref(), ms(at));
            plan.order = Some(order);
            self.due_where(|it| {
                it.spec.plan_ref.name == name
                    && it.spec.wave.as_ref().is_some_and(|wave| fresh.contains(wave))
            });
        }
    }

    /// The waves of Plans by their names, for the forecast.
    pub(super) fn waves_by_plan(&self) -> BTreeMap<String, Vec<Wave>> {
        let with = self.plans.iter().filter(|(_, plan)| !plan.waves.is_empty());
        with.map(|(name, plan)| (name.clone(), plan.waves.clone())).collect()
    }
}

/// VMs whose Migrations the server refused for now: those after their waves wait for them.
pub fn late(specs: &[MigrationSpec]) -> BTreeMap<String, Count> {
    let mut late: BTreeMap<String, Count> = BTreeMap::new();
    for wave in specs.iter().filter_map(|spec| spec.wave.clone()) {
        late.entry(wave).or_default().left += 1;
    }
    late
}

#[cfg(test)]
mod tests {
    use drover_types::{IfFailed, Opening};

    use super::*;

    #[test]
    fn waves_are_read_as_a_plan_file_has_them() {
        let keys = json!({
            "target": {"type": "kubevirt", "image": "other", "rate_limit": "1MiB"}, "vms": [{"name": "web01", "wave": "pilot"}],
            "waves": [{"name": "pilot", "until": "2026-12-02T06:00:00Z"},
                {"name": "rest", "after": ["pilot"], "window": ["22:00-06:00"], "if_failed": "go_on", "vms": [{"glob": "db*"}]}],
            "freezes": ["2026-12-20 - 2027-01-03 Europe/Berlin"],
        });
        let waves = waves_of(&keys);
        let [pilot, rest] = waves.as_slice() else { panic!("{waves:?}") };
        assert_eq!(
            (pilot.name.as_str(), pilot.if_failed, pilot.window.until_ms),
            ("pilot", IfFailed::Wait, Some(1_796_191_200_000))
        );
        assert_eq!(
            (rest.after.as_slice(), rest.if_failed),
            (["pilot".to_string()].as_slice(), IfFailed::GoOn)
        );
        // Noon in the freeze.
        assert!(matches!(rest.window.at(1_798_200_000_000), Opening::At(at) if at > 1_798_900_000_000));
        assert!(waves_of(&json!({"waves": [{"name": "pilot", "window": "at night"}]})).is_empty());
        assert!(waves_of(&json!({"vms": []})).is_empty());
    }
}
