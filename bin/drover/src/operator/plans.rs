//! Plans and Providers: laid over each other again when either changes.

use std::collections::BTreeMap;

use drover_kubevirt::{Change, KubeError, KubeErrorKind};
use drover_operator::PROCEED;
use drover_operator::begun::Begun;
use drover_operator::layout::{Existing, Laid, lay_out};
use drover_operator::model::{
    Condition, Foreseen, MigrationSpec, Phase, Pinned, ProviderSpec, WaveStatus, Work, set_condition,
};
use drover_operator::objects::{self, Note};
use drover_operator::time::Moment;
use drover_operator::waves::{Count, Kept, Order, set_held};
use drover_types::Wave;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::resolve::{Question, Refused, Resolved, resolve};
use super::waves::{late, ms, waves_of};
use super::{Kind, Message, Meta, Operator, now, path_of};

const PAUSE_MIN: i64 = 15;
const PAUSE_MAX: i64 = 600;
/// VMs that do not move by a plan, of which its status names so many.
const REFUSED_MAX: usize = 50;
/// How often a Migration that others change meanwhile is changed anew.
const CHANGES_MAX: u32 = 3;
/// Seconds between two writes of what a plan's Migrations come to.
const COUNT_SECONDS: i64 = 2;

/// A VM that a plan does not move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Left {
    vm: String,
    reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStatus {
    pub observed_generation: i64,
    /// The generation whose Migrations are all there.
    pub resolved_generation: i64,
    /// The provider that it was laid over.
    provider: Option<Pinned>,
    migrations: u64,
    done: u64,
    failed: u64,
    /// Workers that move its VMs: they share its `rate_limit`.
    running: u64,
    /// When the last of its VMs that are on their way is foreseen to arrive.
    forecast: Option<Foreseen>,
    /// How its waves stand.
    waves: Vec<WaveStatus>,
    /// Waves after which others go on, whatever of them failed, since somebody said so.
    pub proceed: Vec<String>,
    /// What [`PROCEED`] said when it was heeded.
    pub proceeded: Option<String>,
    refused: Vec<Left>,
    conditions: Vec<Condition>,
}

impl PlanStatus {
    /// Whether the server refused VMs of it.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Waves that hold back no other any more, and those that others were let go on after.
    pub fn kept(&self) -> Kept {
        let passed = self.waves.iter().filter(|wave| wave.passed);
        Kept {
            passed: passed.map(|wave| wave.name.clone()).collect(),
            proceed: self.proceed.iter().cloned().collect(),
        }
    }
}

/// A Plan, as it was seen last.
pub struct Plan {
    pub meta: Meta,
    pub cancel: bool,
    pub status: PlanStatus,
    provider: String,
    keys: Value,
    /// What [`PROCEED`] says.
    pub said: Option<String>,
    /// Its waves.
    pub waves: Vec<Wave>,
    /// How they stand, once that was looked at.
    pub order: Option<Order>,
    /// VMs by their waves whose Migrations are not made yet, since the server refused them.
    pub late: BTreeMap<String, Count>,
    /// After a failure: when it is tried again, after a pause of so long.
    next: Option<(Moment, i64)>,
    /// A Migration of it is gone, or one because of which a VM was refused.
    pub is_stale: bool,
}

impl Plan {
    pub fn of(object: &Value, known: Option<Plan>) -> Plan {
        let meta = Meta::of(object);
        let spec = &object["spec"];
        // One that cannot be read is written anew.
        let status: PlanStatus = serde_json::from_value(object["status"].clone()).unwrap_or_default();
        let known = known.filter(|it| it.meta.uid == meta.uid);
        let is_same = known.as_ref().is_some_and(|it| it.meta.generation == meta.generation);
        let same = known.as_ref().filter(|_| is_same);
        Plan {
            waves: same.map_or_else(|| waves_of(&spec["plan"]), |it| it.waves.clone()),
            order: same.and_then(|it| it.order.clone()),
            late: same.map(|it| it.late.clone()).unwrap_or_default(),
            cancel: spec["cancel"] == true,
            provider: spec["provider"].as_str().unwrap_or_default().to_string(),
            keys: spec["plan"].clone(),
            said: object["metadata"]["annotations"][PROCEED].as_str().map(str::to_string),
            next: same.and_then(|it| it.next),
            // What an operator before this one was refused may be taken now.
            is_stale: known.map_or(!status.refused.is_empty(), |it| it.is_stale),
            status,
            meta,
        }
    }

    /// Its Provider is another by now: what failed may not any more.
    pub fn try_now(&mut self) {
        self.next = None;
    }

    /// When it is tried again after another failure.
    fn after(&self, at: Moment) -> (Moment, i64) {
        after(self.next, at)
    }

    /// Whether VMs of it are somebody else's.
    pub fn has_refused(&self) -> bool {
        !self.status.refused.is_empty()
    }

    /// The name of its Provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Its plan's keys.
    pub fn keys(&self) -> &Value {
        &self.keys
    }

    /// What it was laid over, beside its Provider as it is now.
    pub fn laid(&self, provider: Option<Pinned>) -> Laid {
        Laid {
            plan: self.pinned(),
            is_over: self.meta.is_going || self.cancel,
            resolved: self.status.resolved_generation,
            over: self.status.provider.clone(),
            provider,
        }
    }

    fn pinned(&self) -> Pinned {
        let Meta { name, uid, generation, .. } = self.meta.clone();
        Pinned { name, uid, generation }
    }
}

/// What a plan's Migrations come to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    migrations: u64,
    done: u64,
    failed: u64,
    /// Those with a worker that moves.
    running: u64,
}

/// A Provider, as it was seen last.
pub struct Provider {
    pub meta: Meta,
    pub spec: ProviderSpec,
    conditions: Vec<Condition>,
}

impl Provider {
    pub fn of(object: &Value) -> Provider {
        Provider {
            meta: Meta::of(object),
            // The schema keeps others out; one without an endpoint is refused by the plan's parser.
            spec: serde_json::from_value(object["spec"].clone()).unwrap_or_default(),
            conditions: serde_json::from_value(object["status"]["conditions"].clone()).unwrap_or_default(),
        }
    }

    pub fn pinned(&self) -> Pinned {
        let Meta { name, uid, generation, .. } = self.meta.clone();
        Pinned { name, uid, generation }
    }
}

/// When something is tried again after another failure, by when that was to be before.
pub fn after(known: Option<(Moment, i64)>, at: Moment) -> (Moment, i64) {
    let pause = known.map_or(PAUSE_MIN, |(_, pause)| (pause * 2).min(PAUSE_MAX));
    (at.plus(pause), pause)
}

/// Whether the next request would end the same way, whatever it is about.
pub fn stops_all(kind: KubeErrorKind) -> bool {
    matches!(
        kind,
        KubeErrorKind::Unreachable | KubeErrorKind::Server | KubeErrorKind::Denied | KubeErrorKind::NotServed
    )
}

impl Operator {
    pub(super) fn tend_plans(&mut self) {
        let at = now();
        let names: Vec<String> = self.plans.keys().cloned().collect();
        let sums = self.sums(at);
        if sums.is_some() {
            self.tend_waves(at);
        }
        self.cancel_in_turns(at);
        for name in names {
            let sum =
                |plan: &Plan| sums.as_ref().map(|sums| sums.get(&plan.meta.uid).copied().unwrap_or_default());
            let sum = self.plans.get(&name).and_then(sum);
            if let Err(error) = self.count(&name, sum)
                && error.kind != KubeErrorKind::Conflict
            {
                crate::out::say(format_args!("Plan {name}: {error}; it is tried again"));
            }
            if !self.is_resolving
                && let Err(error) = self.ask(&name, at)
            {
                crate::out::say(format_args!("Plan {name}: {error}"));
            }
        }
    }

    /// Begins to lay a plan over its source, where that was not done with both as they are now.
    fn ask(&mut self, name: &str, at: Moment) -> Result<(), KubeError> {
        let Some(plan) = self.plans.get(name) else { return Ok(()) };
        if plan.meta.is_going || plan.cancel || plan.next.is_some_and(|(next, _)| next > at) {
            return Ok(());
        }
        let Some(provider) = self.providers.get(&plan.provider) else {
            let why = Refused {
                reason: "ProviderMissing".into(),
                message: format!("there is no Provider {}", plan.provider),
                provider_is_fine: true,
            };
            return self.put_off(name, &why);
        };
        let (pinned, of) = (plan.pinned(), provider.pinned());
        if !plan.is_stale
            && plan.status.resolved_generation == pinned.generation
            && plan.status.provider.as_ref() == Some(&of)
        {
            return Ok(());
        }
        let question = Question {
            plan: pinned,
            provider: of,
            spec: provider.spec.clone(),
            keys: plan.keys.clone(),
            namespace: self.namespace.clone(),
            images: self.shape.images(),
            begun: self.begun_of(&plan.meta.uid),
        };
        if let Some(plan) = self.plans.get_mut(name) {
            plan.is_stale = false;
        }
        let (cluster, sender) = (self.cluster.clone(), self.sender.clone());
        let thread = std::thread::Builder::new().name("resolve".into()).spawn(move || {
            // Nobody listens only when all of it ends.
            let _ = sender.send(Message::Resolved(Box::new(resolve(&cluster, question))));
        });
        self.is_resolving = thread.is_ok();
        Ok(())
    }

    /// VMs that are on their way, for a plan.
    fn begun_of(&self, plan: &str) -> Vec<Begun> {
        let begun = self.migrations.values().filter(|it| it.has_begun());
        let begun = begun.map(|it| Begun {
            source: it.spec.source.instance_uuid.clone(),
            vm: it.spec.vm.clone(),
            size: it.spec.size.clone(),
            is_own: it.spec.plan_ref.uid == plan,
        });
        begun.collect()
    }

    pub(super) fn take_resolved(&mut self, resolved: Resolved) {
        self.is_resolving = false;
        let name = resolved.plan.name.clone();
        let is_same = self.plans.get(&name).is_some_and(|plan| plan.pinned() == resolved.plan);
        let of = resolved.provider.clone();
        let is_same = is_same && self.providers.get(&of.name).is_some_and(|it| it.pinned() == of);
        // What was asked meanwhile is another plan.
        if !is_same {
            return;
        }
        let answered = match resolved.result {
            Ok(specs) => self.lay(&resolved.plan, &of, specs),
            Err(why) => {
                let ready = self.say_ready(&of.name, &why);
                ready.and_then(|()| self.put_off(&name, &why))
            }
        };
        // Who leads by now tells it.
        if let Err(error) = answered
            && self.lease.is_held()
        {
            let why =
                Refused { reason: "ClusterRefused".into(), message: error.what, provider_is_fine: true };
            // Then the next round tries it.
            if let Err(error) = self.put_off(&name, &why) {
                crate::out::say(format_args!("Plan {name}: {error}"));
            }
        }
    }

    /// Makes and changes Migrations; only when all are there the plan counts as laid out.
    fn lay(&mut self, plan: &Pinned, provider: &Pinned, specs: Vec<MigrationSpec>) -> Result<(), KubeError> {
        let of = |it: &super::Migration| Existing { spec: it.spec.clone(), has_begun: it.has_begun() };
        let existing: BTreeMap<String, Existing> =
            self.migrations.iter().map(|(name, it)| (name.clone(), of(it))).collect();
        let mut layout = lay_out(plan, specs, &existing);
        let mut refused_now = Vec::new();
        for (name, spec) in layout.change.iter().chain(&layout.make) {
            self.check_lease()?;
            // What one of them is refused for is no reason to keep the others.
            if let Err(error) = self.lay_one(name, spec) {
                if stops_all(error.kind) {
                    return Err(error);
                }
                layout.refused.push((spec.vm.name.clone(), error.what));
                refused_now.push(spec.clone());
            }
            self.due.insert(name.clone());
        }
        self.say_fine(&provider.name)?;
        let count = layout.refused.len();
        let refused: Vec<Left> =
            layout.refused.into_iter().take(REFUSED_MAX).map(|(vm, reason)| Left { vm, reason }).collect();
        let (name, at) = (plan.name.clone(), now());
        let is_edited =
            self.plans.get(&name).is_some_and(|it| it.status.resolved_generation != plan.generation);
        self.write(&name, |status| {
            status.observed_generation = plan.generation;
            status.resolved_generation = plan.generation;
            status.provider = Some(provider.clone());
            // Another generation has other waves, or other VMs in them.
            if is_edited {
                status.waves = Vec::new();
            }
            status.refused = refused;
            let words = "each of its VMs has a Migration";
            set_condition(&mut status.conditions, "Resolved", true, "Resolved", words, plan.generation, at);
            let (reason, words) = match count {
                0 => ("AllTaken", String::new()),
                _ => ("VmsRefused", format!("{count} VMs do not move by this plan: see status.refused")),
            };
            set_condition(
                &mut status.conditions,
                "Complete",
                count == 0,
                reason,
                &words,
                plan.generation,
                at,
            );
        })?;
        if let Some(image) = self.shape.by_tag().first().filter(|_| is_edited) {
            let message = format!(
                "{image} is named by a tag, so its workers may run different programs: see --image of the operator"
            );
            self.tell("Plan", &name, &[Note { is_warning: true, reason: "ImageByTag".into(), message }]);
        }
        if let Some(plan) = self.plans.get_mut(&name) {
            // Those that the server refused are asked for again.
            plan.next = (!refused_now.is_empty()).then(|| plan.after(at));
            plan.is_stale |= !refused_now.is_empty();
            // How its waves stand is looked at before anything of it begins.
            (plan.late, plan.order) = (late(&refused_now), None);
        }
        self.due.extend(
            self.migrations.iter().filter(|(_, it)| it.spec.plan_ref.name == name).map(|(it, _)| it.clone()),
        );
        Ok(())
    }

    /// Makes a Migration, or gives it another spec as long as it has not begun.
    fn lay_one(&mut self, name: &str, spec: &MigrationSpec) -> Result<(), KubeError> {
        let all = path_of(Kind::Migration, &self.namespace, "");
        for _ in 0..CHANGES_MAX {
            let Some(migration) = self.migrations.get(name) else {
                let made = self.cluster.create(&all, &objects::migration(name, spec), false)?;
                self.take_answer(&made);
                return Ok(());
            };
            if migration.has_begun() {
                return Ok(());
            }
            // A cancel that came meanwhile stays.
            let spec = MigrationSpec { cancel: migration.spec.cancel, ..spec.clone() };
            // Whole, since a merge would keep keys of the plan that are gone.
            let body = json!([
                {"op": "test", "path": "/metadata/uid", "value": migration.meta.uid},
                {"op": "test", "path": "/metadata/resourceVersion", "value": migration.meta.version},
                {"op": "replace", "path": "/spec", "value": spec},
            ]);
            match self.cluster.change(
                &path_of(Kind::Migration, &self.namespace, name),
                Change::Operations,
                &body,
            ) {
                Ok(answer) => {
                    self.take_answer(&answer);
                    return Ok(());
                }
                Err(error) if matches!(error.kind, KubeErrorKind::Refused | KubeErrorKind::Conflict) => {
                    let version = migration.meta.version.clone();
                    self.read_again(name)?;
                    // It was not changed meanwhile: the spec itself is refused.
                    if self.migrations.get(name).is_some_and(|it| it.meta.version == version) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let what = format!("Migration {name} was changed by others at each try");
        Err(KubeError { kind: KubeErrorKind::Conflict, what })
    }

    /// Says why a plan is not laid out, and when it is tried again.
    fn put_off(&mut self, name: &str, why: &Refused) -> Result<(), KubeError> {
        let at = now();
        let Some(plan) = self.plans.get_mut(name) else { return Ok(()) };
        plan.next = Some(plan.after(at));
        // Also where it was laid out before, and one of its Migrations was to be made anew.
        plan.is_stale = true;
        let generation = plan.meta.generation;
        let is_news =
            plan.status.conditions.iter().all(|it| it.kind != "Resolved" || it.reason != why.reason);
        self.write(name, |status| {
            status.observed_generation = generation;
            set_condition(
                &mut status.conditions,
                "Resolved",
                false,
                &why.reason,
                &why.message,
                generation,
                at,
            );
        })?;
        if is_news {
            let note = Note { is_warning: true, reason: why.reason.clone(), message: why.message.clone() };
            self.tell("Plan", name, &[note]);
        }
        Ok(())
    }

    /// Changes a plan's status, where it is another then. What the server answered, if it was.
    pub(super) fn write(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut PlanStatus),
    ) -> Result<Value, KubeError> {
        let Some(plan) = self.plans.get_mut(name) else { return Ok(Value::Null) };
        let mut status = plan.status.clone();
        change(&mut status);
        if status == plan.status {
            return Ok(Value::Null);
        }
        // Only this operator writes it; it is about the generation that it names.
        let body = json!({"metadata": {"uid": plan.meta.uid}, "status": status});
        let path = format!("{}/status", path_of(Kind::Plan, &self.namespace, name));
        let answer = self.cluster.change(&path, Change::Merge, &body)?;
        // What the watch tells of before it is older.
        plan.meta.version = Meta::of(&answer).version;
        plan.status = status;
        Ok(answer)
    }

    fn say_fine(&mut self, name: &str) -> Result<(), KubeError> {
        self.say_provider(name, true, "Ready", "it answers, and the login is right")
    }

    fn say_ready(&mut self, name: &str, why: &Refused) -> Result<(), KubeError> {
        match why.provider_is_fine {
            true => Ok(()),
            false => self.say_provider(name, false, &why.reason, &why.message),
        }
    }

    fn say_provider(
        &mut self,
        name: &str,
        is_fine: bool,
        reason: &str,
        words: &str,
    ) -> Result<(), KubeError> {
        let Some(provider) = self.providers.get_mut(name) else { return Ok(()) };
        let generation = provider.meta.generation;
        if !set_condition(&mut provider.conditions, "Ready", is_fine, reason, words, generation, now()) {
            return Ok(());
        }
        let body = json!({
            "metadata": {"uid": provider.meta.uid},
            "status": {"observedGeneration": generation, "conditions": provider.conditions},
        });
        let path = format!("{}/status", path_of(Kind::Provider, &self.namespace, name));
        self.cluster.change(&path, Change::Merge, &body).map(drop)
    }

    /// What the Migrations of plans come to, by the UID of each plan; nothing where that was summed up a moment ago.
    fn sums(&mut self, at: Moment) -> Option<BTreeMap<String, Sum>> {
        if self.counted.plus(COUNT_SECONDS) > at {
            return None;
        }
        self.counted = at;
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for it in self.migrations.values() {
            let uid = &it.spec.plan_ref.uid;
            let sum = sums.entry(uid.clone()).or_default();
            sum.migrations += 1;
            sum.done += u64::from(it.status.phase == Phase::Done);
            sum.failed += u64::from(it.status.phase == Phase::Failed);
            sum.running += u64::from(it.status.job.as_ref().is_some_and(|job| job.work == Work::Move));
        }
        Some(sums)
    }

    fn count(&mut self, name: &str, sum: Option<Sum>) -> Result<(), KubeError> {
        let Some(Sum { migrations, done, failed, running }) = sum else { return Ok(()) };
        let Some(plan) = self.plans.get(name) else { return Ok(()) };
        let forecast = self.forecasts.of_plan(&plan.meta.uid, plan.status.forecast.as_ref());
        let (at, generation) = (now(), plan.meta.generation);
        let (waves, held) = match &plan.order {
            Some(order) => (Some(order.told(ms(at))), Some(order.held(ms(at)))),
            // It has none by now.
            None if plan.waves.is_empty() && plan.status.resolved_generation == generation => {
                (None, Some(Vec::new()))
            }
            None => (None, None),
        };
        let failed_of_held = held.iter().flatten().map(|it| it.failed).sum::<u64>();
        let mut note = None;
        self.write(name, |status| {
            status.waves = waves.unwrap_or(std::mem::take(&mut status.waves));
            note = held.and_then(|held| set_held(&mut status.conditions, name, &held, generation, at));
            (status.migrations, status.done, status.failed) = (migrations, done, failed);
            (status.running, status.forecast) = (running, forecast);
        })?;
        match note {
            Some(note) if note.is_warning => self.tell_counted(name, &note, failed_of_held.max(1)),
            note => self.tell("Plan", name, note.as_slice()),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_asked_for_again_by_the_next_operator() {
        let plan = |refused: Value| {
            json!({"metadata": {"name": "p", "uid": "u", "generation": 1},
                "status": {"resolvedGeneration": 1, "refused": refused}})
        };
        let refused = plan(json!([{"vm": "web01", "reason": "exceeded quota"}]));
        let mut first = Plan::of(&refused, None);
        assert!(first.is_stale && !Plan::of(&plan(json!([])), None).is_stale);
        first.is_stale = false;
        assert!(!Plan::of(&refused, Some(first)).is_stale, "once");
    }

    #[test]
    fn a_word_is_kept_by_the_next_operator_and_over_edits() {
        let plan = |generation: i64| {
            json!({"metadata": {"name": "p", "uid": "u", "generation": generation, "annotations": {"drover.dev/proceed": "pilot"}},
                "status": {"resolvedGeneration": 1, "proceed": ["pilot"], "proceeded": "pilot",
                    "waves": [{"name": "pilot", "vms": 1, "arrived": 0, "failed": 1, "passed": true, "holds": false}]}})
        };
        let first = Plan::of(&plan(1), None);
        assert_eq!(first.said, first.status.proceeded, "it is not taken twice");
        let kept = first.status.kept();
        assert!(kept.passed.contains("pilot") && kept.proceed.contains("pilot"), "{kept:?}");
        assert!(Plan::of(&plan(2), Some(first)).status.kept().proceed.contains("pilot"));
        // One of an operator before had no such words.
        let status: PlanStatus = serde_json::from_value(
            json!({"waves": [{"name": "a", "vms": 1, "arrived": 0, "failed": 0, "passed": false}]}),
        )
        .unwrap();
        assert_eq!(status.kept(), Kept::default());
        let written = json!(PlanStatus { proceed: vec!["pilot".into()], ..PlanStatus::default() });
        assert_eq!((&written["proceed"], &written["proceeded"]), (&json!(["pilot"]), &Value::Null));
    }

    #[test]
    fn pauses_grow_to_their_most() {
        let mut next = None;
        let pauses = (0..8).map(|_| {
            next = Some(after(next, Moment(0)));
            next.unwrap().1
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [15, 30, 60, 120, 240, 480, 600, 600]);
    }
}
