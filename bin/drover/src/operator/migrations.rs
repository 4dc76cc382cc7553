//! Migrations: decided on one by one.

use drover_kubevirt::{Change, KubeError, KubeErrorKind};
use drover_operator::decide::{
    ClaimRoom, ClaimSeen, Cutover, Decision, Facts, PlanStanding, ProviderStanding, decide,
};
use drover_operator::layout::standing;
use drover_operator::lock::LockSeen;
use drover_operator::model::{MigrationSpec, Named, Phase, Pinned, Status};
use drover_operator::time::Moment;
use drover_operator::{ABANDON, FINALIZER, RETRY};
use serde_json::{Value, json};

use super::carry::Done;
use super::plans::Plan;
use super::{Kind, Meta, Operator, now, path_of};

/// Acts of one Migration before others have their turn.
const ACTS_MAX: usize = 8;
/// Seconds before something that the server refused is tried again.
const REFUSED_SECONDS: i64 = 15;

/// A Migration, as it was seen last.
pub struct Migration {
    pub meta: Meta,
    pub spec: MigrationSpec,
    pub status: Status,
    pub finalizers: Vec<String>,
    retry: Option<String>,
    is_abandoned: bool,
}

impl Migration {
    pub fn of(object: &Value) -> Result<Migration, serde_json::Error> {
        let metadata = &object["metadata"];
        let status = match object["status"].is_null() {
            true => Status::default(),
            false => serde_json::from_value(object["status"].clone())?,
        };
        let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
        Ok(Migration {
            meta: Meta::of(object),
            spec: serde_json::from_value(object["spec"].clone())?,
            status,
            finalizers: finalizers.filter_map(|it| it.as_str().map(str::to_string)).collect(),
            retry: metadata["annotations"][RETRY].as_str().map(str::to_string),
            is_abandoned: metadata["annotations"][ABANDON] == "true",
        })
    }

    /// Whether it goes its way whatever its plan says now: a worker touches something, or it was given up.
    pub fn has_begun(&self) -> bool {
        self.status.begun || self.status.phase == Phase::Cancelled
    }

    pub fn named(&self) -> Named {
        Named { name: self.meta.name.clone(), uid: self.meta.uid.clone() }
    }
}

/// What the keys of a plan say.
pub fn cutovers_of(keys: &Value) -> Option<u32> {
    keys["limits"]["cutovers"].as_u64().and_then(|number| u32::try_from(number).ok())
}

impl Operator {
    /// Decides on all Migrations for which something has changed, or it is time.
    pub(super) fn tend_migrations(&mut self) {
        let at = now();
        let woken: Vec<String> =
            self.wakes.iter().filter(|(_, wake)| **wake <= at).map(|(name, _)| name.clone()).collect();
        self.due.extend(woken);
        for name in std::mem::take(&mut self.due) {
            if !self.lease.is_held() {
                return;
            }
            self.tell_figures();
            self.wakes.remove(&name);
            if self.waits_for_cancel(&name, at) {
                continue;
            }
            let tended = match self.tend(&name) {
                // It was changed since it was seen.
                Err(error) if error.kind == KubeErrorKind::Conflict => {
                    self.wakes.insert(name.clone(), at.plus(1));
                    self.read_again(&name)
                }
                tended => tended,
            };
            if let Err(error) = tended {
                crate::out::say(format_args!("Migration {name}: {error}; it is tried again"));
                self.wakes.insert(name, at.plus(REFUSED_SECONDS));
            }
        }
        let now_ms = self.now_ms();
        // What is admitted now has its turn in the next round.
        self.due.extend(self.admissions.admit(now_ms));
        self.due.extend(self.cutovers.admit(now_ms));
    }

    /// How many of its Plan's guests may be down at once, as that says now; where it is gone, as it said.
    pub(super) fn cutovers_of_plan(&self, spec: &MigrationSpec) -> Option<u32> {
        let plan = self.plans.get(&spec.plan_ref.name).filter(|plan| plan.meta.uid == spec.plan_ref.uid);
        cutovers_of(plan.map_or(&spec.plan, Plan::keys))
    }

    fn facts(&self, migration: &Migration) -> Facts {
        let name = &migration.meta.name;
        Facts {
            now: now(),
            me: migration.named(),
            generation: migration.meta.generation,
            is_going: migration.meta.is_going,
            is_held: migration.finalizers.iter().any(|it| it == FINALIZER),
            is_abandoned: migration.is_abandoned,
            retry: migration.retry.clone(),
            plan: self.plan_standing(&migration.spec),
            provider: self.provider_standing(&migration.spec.provider),
            wave: self.wave_standing(&migration.spec, &migration.status),
            jobs: self.jobs.of(name),
            claim: ClaimSeen::NotAsked,
            room: ClaimRoom::Enough,
            lock: LockSeen::NotAsked,
            pods: None,
            namespace_ends: None,
            is_admitted: self.admissions.has(name),
            may_cut_over: self.cutovers.may(name),
            keep_failed_seconds: self.keep_failed_seconds,
            keep_done_seconds: self.keep_done_seconds,
            has_converter: self.shape.converter.is_some(),
        }
    }

    fn plan_standing(&self, spec: &MigrationSpec) -> PlanStanding {
        let laid = self.plans.get(&spec.plan_ref.name).map(|plan| {
            let provider = self.providers.get(plan.provider());
            plan.laid(provider.map(super::Provider::pinned))
        });
        standing(spec, laid.as_ref())
    }

    fn provider_standing(&self, wanted: &Pinned) -> ProviderStanding {
        let name = &wanted.name;
        match self.providers.get(name).map(super::Provider::pinned) {
            None => ProviderStanding::Missing(format!("there is no Provider {name}")),
            Some(now) if now != *wanted => {
                ProviderStanding::Other(format!("the Plan is not laid over the Provider {name} as it is now"))
            }
            Some(_) => ProviderStanding::Same,
        }
    }

    fn tend(&mut self, name: &str) -> Result<(), KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let mut facts = self.facts(migration);
        for _ in 0..ACTS_MAX {
            let Some(migration) = self.migrations.get(name) else { return Ok(()) };
            let decision = decide(&migration.spec, &migration.status, &facts);
            // Until it is answered nothing is decided.
            if !decision.act.is_question() {
                self.keep(name, &decision)?;
            }
            match self.carry_out(name, &decision.act, &mut facts)? {
                Done::Again => {}
                Done::Whole => return Ok(()),
            }
        }
        self.wakes.insert(name.to_string(), now());
        Ok(())
    }

    /// Keeps what was decided, and tells the scheduler once it is written.
    fn keep(&mut self, name: &str, decision: &Decision) -> Result<(), KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let exit = migration.status.word().and_then(|word| word.exit);
        let has_ended = migration.status.job.is_some() && decision.status.job.is_none();
        if decision.status != migration.status {
            let forecast = self.forecast_with(name, &decision.status);
            self.write_status(name, &Status { forecast, ..decision.status.clone() })?;
        }
        if has_ended {
            *self.ends.entry(exit).or_default() += 1;
        }
        self.tell("Migration", name, &decision.notes);
        if let Some(wake) = decision.wake {
            self.wakes.insert(name.to_string(), wake);
        }
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let now_ms = self.now_ms();
        if let Some(told) = &decision.host {
            self.admissions.tell(name, told, now_ms);
        }
        match decision.cutover {
            None => self.cutovers.leave(name, now_ms),
            Some(Cutover::Passes) => self.cutovers.pause(name, now_ms),
            Some(it) => {
                let (plan, most) = (&migration.spec.plan_ref.uid, self.cutovers_of_plan(&migration.spec));
                self.cutovers.want(name, plan, most, it == Cutover::IsDown, now_ms);
            }
        }
        match decision.wants_slot {
            None => self.admissions.leave(name, now_ms),
            // The scheduler is asked once for all, at the end of the round.
            Some(work) => {
                let goes_on = decision.status.epoch > 0;
                let spec = self.in_its_turn(&migration.spec);
                self.admissions.want(name, &spec, work, goes_on, now_ms);
            }
        }
        Ok(())
    }

    /// Writes a status, if nothing has changed since it was seen.
    fn write_status(&mut self, name: &str, status: &Status) -> Result<(), KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let body = json!({
            "metadata": {"resourceVersion": migration.meta.version, "uid": migration.meta.uid}, "status": status.patch(),
        });
        let path = format!("{}/status", path_of(Kind::Migration, &self.namespace, name));
        let answer = self.cluster.change(&path, Change::Merge, &body)?;
        self.take_answer(&answer);
        Ok(())
    }

    /// Whatever version was known: after a restore of the cluster's store older ones are the true ones.
    pub(super) fn read_again(&mut self, name: &str) -> Result<(), KubeError> {
        match self.cluster.get(&path_of(Kind::Migration, &self.namespace, name))? {
            Some(found) => self.take_answer(&found),
            None => self.lose(Kind::Migration, name),
        }
        Ok(())
    }

    /// Keeps what the server answered, so that nothing is decided by what was before.
    pub(super) fn take_answer(&mut self, object: &Value) {
        if let Ok(migration) = Migration::of(object) {
            self.migrations.insert(migration.meta.name.clone(), migration);
        }
    }

    pub(super) fn wake_at(&mut self, name: &str, at: Moment) {
        let wake = self.wakes.get(name).map_or(at, |earlier| at.min(*earlier));
        self.wakes.insert(name.to_string(), wake);
    }
}
