//! What was decided is carried out.

use drover_kubevirt::objects::{quantity, uid};
use drover_kubevirt::{Change, KubeError, KubeErrorKind};
use drover_nfc::BUDGET_BYTES;
use drover_operator::decide::{Act, ClaimRoom, ClaimSeen, Facts, JobSeen, condition_of};
use drover_operator::jobs::Known;
use drover_operator::lock::{self, LockSeen};
use drover_operator::model::{MigrationSpec, Named, Work};
use drover_operator::objects::{self, NfcPart, Note, Order};
use drover_operator::time::Moment;
use drover_operator::{FINALIZER, MIGRATION, MIGRATION_UID, NFC_BYTES, WORK};
use drover_types::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Kind, Meta, Operator, now, path_of};

/// Seconds before a worker that the server refused is asked for again.
const REFUSED_SECONDS: i64 = 30;

/// Pods that have not ended: `status.phase!=Succeeded,status.phase!=Failed`.
const ALIVE: &str = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

/// Whether to decide again at once.
pub enum Done {
    Again,
    Whole,
}

/// What a Job tells.
pub fn job_seen(object: &Value) -> JobSeen {
    let meta = Meta::of(object);
    let status = &object["status"];
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is = |kind: &str| conditions.iter().find(|it| it["type"] == kind && it["status"] == "True");
    // `Complete` and `Failed` come when the pods have ended; what is before that is not the end.
    let failed = is("Failed");
    let left = |key: &str| status[key].as_i64().unwrap_or_default();
    let has_ended =
        (failed.is_some() || is("Complete").is_some()) && left("active") + left("terminating") == 0;
    let was_disrupted = failed.or(is("FailureTarget")).is_some_and(|it| it["reason"] == "PodFailurePolicy");
    let at = |condition: Option<&Value>| Moment::parse(condition?["lastTransitionTime"].as_str()?);
    let (failed_at, done_at) = (at(failed), at(is("Complete")));
    let work = Work::deserialize(&object["metadata"]["annotations"][WORK]).ok();
    let nfc = object["metadata"]["annotations"][NFC_BYTES].as_str();
    let nfc_bytes = nfc.and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
    let Meta { name, uid, is_going, .. } = meta;
    JobSeen { name, uid, is_going, has_ended, was_disrupted, failed_at, done_at, work, nfc_bytes }
}

/// What a refused request says of a lock; an error where that may pass.
fn unseen(error: KubeError) -> Result<LockSeen, KubeError> {
    match error.kind {
        KubeErrorKind::NotServed => {
            let what = format!("{} (apply deploy/crds.yaml of this version of drover)", error.what);
            Ok(LockSeen::NotServed(what))
        }
        KubeErrorKind::Denied | KubeErrorKind::Refused => Ok(LockSeen::Denied(error.what)),
        _ => Err(error),
    }
}

/// What a claim that was read says to the Migration of a UID.
fn claim_seen(found: Option<&Value>, me: &str) -> ClaimSeen {
    match found {
        None => ClaimSeen::Missing,
        Some(claim) if !claim["metadata"]["deletionTimestamp"].is_null() => ClaimSeen::Going,
        Some(claim) => {
            let is_mine = claim["metadata"]["annotations"][MIGRATION_UID] == me;
            ClaimSeen::There(uid(claim).to_string(), is_mine)
        }
    }
}

/// What a claim asks for.
fn asked(claim: &Value) -> &str {
    claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap_or_default()
}

/// Whether a claim has the room that it is to have.
fn claim_room(claim: &Value, wanted: &str) -> ClaimRoom {
    let (size, has) = (asked(claim), claim["status"]["capacity"]["storage"].as_str());
    let is_less = |size: &str| matches!((quantity(size), quantity(wanted)), (Some(size), Some(wanted)) if size < wanted);
    // The storage has said for good that it cannot.
    let state = claim["status"]["allocatedResourceStatuses"]["storage"].as_str().unwrap_or_default();
    match has.filter(|has| is_less(has) && state.ends_with("Infeasible")) {
        Some(has) => {
            let why = format!("its storage refused ({state})");
            ClaimRoom::Stays { size: has.into(), wanted: wanted.into(), why }
        }
        None if is_less(size) => ClaimRoom::Small { size: size.into(), wanted: wanted.into() },
        None => ClaimRoom::Enough,
    }
}

impl Operator {
    pub(super) fn carry_out(&mut self, name: &str, act: &Act, facts: &mut Facts) -> Result<Done, KubeError> {
        match act {
            Act::Nothing => return Ok(Done::Whole),
            Act::Hold => self.set_finalizers(name, true)?,
            Act::LetGo => {
                self.set_finalizers(name, false)?;
                return Ok(Done::Whole);
            }
            Act::AskClaim => (facts.claim, facts.room) = self.claim_of(name, &facts.me.uid)?,
            Act::AskLock => facts.lock = self.lock_of(name, &facts.me).or_else(unseen)?,
            Act::RemoveLock(uid) => facts.lock = self.remove_lock(name, uid).or_else(unseen)?,
            Act::AskNamespace => facts.namespace_ends = Some(self.namespace_ends()?),
            Act::AskPods => facts.pods = Some(self.has_pods(name)?),
            Act::MakeClaim => match self.make_claim(name, &facts.me) {
                Ok(made) => facts.claim = ClaimSeen::There(made, true),
                Err(error) => return self.refused(name, facts, "StateClaimRefused", error),
            },
            Act::GrowClaim(uid, size) => facts.room = self.grow_claim(name, uid, size)?,
            Act::MakeJob => {
                return match self.make_job(name, &facts.me) {
                    Ok(()) => Ok(Done::Whole),
                    Err(error) => self.refused(name, facts, "WorkerRefused", error),
                };
            }
            Act::RemoveJob(job) => {
                let path = path_of(Kind::Job, &self.namespace, &job.name);
                // Its pods go before it, so that whoever sees it gone knows that they are.
                self.cluster.remove(&path, &json!({"uid": job.uid}), "Foreground")?;
                // What becomes of it is seen by the watch.
                self.wake_at(name, now().plus(REFUSED_SECONDS));
                return Ok(Done::Whole);
            }
            Act::RemoveClaim(uid) => {
                let path = self.claim_path(&objects::claim_name(name));
                self.cluster.delete(&path, uid)?;
                facts.claim = ClaimSeen::Missing;
            }
            Act::RemoveMigration => {
                if let Some(migration) = self.migrations.get(name) {
                    let path = path_of(Kind::Migration, &self.namespace, name);
                    let same = json!({"uid": migration.meta.uid, "resourceVersion": migration.meta.version});
                    self.cluster.remove(&path, &same, "Background")?;
                }
                return Ok(Done::Whole);
            }
        }
        if let Some(migration) = self.migrations.get(name) {
            facts.is_held = migration.finalizers.iter().any(|it| it == FINALIZER);
        }
        Ok(Done::Again)
    }

    /// The server takes something not: that is told, and tried again. In a namespace that ends nothing can be undone, and nothing holds it.
    fn refused(
        &mut self,
        name: &str,
        facts: &Facts,
        reason: &str,
        error: KubeError,
    ) -> Result<Done, KubeError> {
        let is_ending = error.what.contains("is being terminated");
        if is_ending && facts.is_going {
            self.set_finalizers(name, false)?;
            return Ok(Done::Whole);
        }
        if !matches!(error.kind, KubeErrorKind::Refused | KubeErrorKind::Denied) {
            return Err(error);
        }
        let Some(migration) = self.migrations.get(name) else { return Ok(Done::Whole) };
        let mut status = migration.status.clone();
        let has_arrived = status.condition("Arrived").is_some_and(|it| it.status == "True");
        let work = migration.status.job.as_ref().map_or(Work::Move, |job| job.work);
        let kind = if has_arrived { "CleanedUp" } else { condition_of(work) };
        if status.set(kind, false, reason, &error.what, now()) {
            let body = json!({
                "metadata": {"resourceVersion": migration.meta.version}, "status": {"conditions": status.conditions},
            });
            let path = format!("{}/status", path_of(Kind::Migration, &self.namespace, name));
            let answer = self.cluster.change(&path, Change::Merge, &body)?;
            self.take_answer(&answer);
            let note = Note { is_warning: true, reason: reason.into(), message: error.what };
            self.tell("Migration", name, &[note]);
        }
        self.wake_at(name, now().plus(REFUSED_SECONDS));
        Ok(Done::Whole)
    }

    fn set_finalizers(&mut self, name: &str, has_ours: bool) -> Result<(), KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let mut all = migration.finalizers.clone();
        all.retain(|it| it != FINALIZER);
        if has_ours {
            all.push(FINALIZER.into());
        }
        let body = json!({"metadata": {"resourceVersion": migration.meta.version, "finalizers": all}});
        let path = path_of(Kind::Migration, &self.namespace, name);
        match self.cluster.change(&path, Change::Merge, &body) {
            Ok(answer) if has_ours => self.take_answer(&answer),
            Ok(_) => {}
            Err(error) if error.kind == KubeErrorKind::Missing => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn namespace_ends(&self) -> Result<bool, KubeError> {
        let found = self.cluster.get(&format!("/api/v1/namespaces/{}", self.namespace))?;
        Ok(found.is_none_or(|found| !found["metadata"]["deletionTimestamp"].is_null()))
    }

    fn claim_path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims/{name}", self.namespace)
    }

    fn claim_of(&self, name: &str, me: &str) -> Result<(ClaimSeen, ClaimRoom), KubeError> {
        let found = self.cluster.get(&self.claim_path(&objects::claim_name(name)))?;
        let room = found.as_ref().map(|claim| claim_room(claim, self.claim_size(name)));
        Ok((claim_seen(found.as_ref(), me), room.unwrap_or_default()))
    }

    fn claim_size(&self, name: &str) -> &str {
        let conversion = self.migrations.get(name).map(|it| it.spec.conversion).unwrap_or_default();
        objects::claim_size(conversion, &self.shape)
    }

    /// Has a claim ask for more. Its volume grows before a pod has it, or when one does.
    fn grow_claim(&self, name: &str, uid: &str, size: &str) -> Result<ClaimRoom, KubeError> {
        let path = self.claim_path(&objects::claim_name(name));
        let body = json!({"metadata": {"uid": uid}, "spec": {"resources": {"requests": {"storage": size}}}});
        match self.cluster.change(&path, Change::Merge, &body) {
            Ok(claim) => Ok(claim_room(&claim, size)),
            Err(error) if matches!(error.kind, KubeErrorKind::Denied | KubeErrorKind::Refused) => {
                let found = self.cluster.get(&path)?.unwrap_or_default();
                Ok(ClaimRoom::Stays { size: asked(&found).into(), wanted: size.into(), why: error.what })
            }
            Err(error) => Err(error),
        }
    }

    fn lock_of(&self, name: &str, me: &Named) -> Result<LockSeen, KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(LockSeen::NotAsked) };
        let found = self.cluster.get(&lock::path(&lock::name(&migration.spec)))?;
        Ok(lock::seen(found.as_ref(), me, &self.namespace))
    }

    fn remove_lock(&self, name: &str, uid: &str) -> Result<LockSeen, KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(LockSeen::NotAsked) };
        self.cluster.delete(&lock::path(&lock::name(&migration.spec)), uid)?;
        Ok(LockSeen::Free)
    }

    fn make_claim(&self, name: &str, me: &Named) -> Result<String, KubeError> {
        let conversion = self.migrations.get(name).map(|it| it.spec.conversion).unwrap_or_default();
        let all = format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.namespace);
        let made = self.cluster.create(&all, &objects::claim(me, conversion, &self.shape), false)?;
        Ok(uid(&made).to_string())
    }

    /// Whether pods of workers are left that may still do something.
    fn has_pods(&self, name: &str) -> Result<bool, KubeError> {
        let selector = format!("{}%3D{name}", MIGRATION.replace('/', "%2F"));
        // Ended ones are kept for their logs, any number of them.
        let path = format!(
            "/api/v1/namespaces/{}/pods?limit=1&fieldSelector={ALIVE}&labelSelector={selector}",
            self.namespace
        );
        let list = self.cluster.get(&path)?.unwrap_or_default();
        Ok(list["items"].as_array().is_some_and(|pods| !pods.is_empty()))
    }

    /// What one more worker may take of the NFC memory of its VM's host: a part of what those have left that run.
    fn nfc_part(&self, spec: &MigrationSpec) -> Option<NfcPart> {
        spec.size.host_disks?;
        let disks = u32::try_from(spec.size.disks.len()).unwrap_or(u32::MAX).max(1);
        let is_same = |it: &MigrationSpec| it.source == spec.source && it.size.host == spec.size.host;
        let is_of_host =
            |job: &&Known| self.migrations.get(&job.migration).is_some_and(|it| is_same(&it.spec));
        let taken = self.jobs.running().filter(is_of_host).map(|job| job.seen.nfc_bytes).sum();
        let told = spec.plan["source"]["data"]["nfc"]["memory"].as_str();
        let told = told.and_then(|text| text.parse().ok()).map_or(BUDGET_BYTES, |Bytes(bytes)| bytes);
        let each = drover_nfc::each_of(told.min(BUDGET_BYTES).saturating_sub(taken), disks);
        Some(NfcPart { each, all: each * u64::from(disks) })
    }

    fn make_job(&mut self, name: &str, me: &Named) -> Result<(), KubeError> {
        let Some(migration) = self.migrations.get(name) else { return Ok(()) };
        let Some(job) = &migration.status.job else { return Ok(()) };
        let provider = self.providers.get(&migration.spec.provider.name);
        let secret = provider.map(|it| it.spec.secret_name.clone()).unwrap_or_default();
        // What was begun has volumes, as a rule. Without an answer the worker goes anywhere.
        let disk = self.claim_path(&objects::first_disk(&migration.spec));
        let disk = migration.status.begun.then(|| self.cluster.get(&disk).ok().flatten()).flatten();
        let order = Order {
            epoch: migration.status.epoch,
            work: job.work,
            secret: &secret,
            begun: migration.status.begun,
            conversion: migration.spec.conversion,
            vm: &migration.spec.target_name,
            node: disk.as_ref().and_then(objects::node_of),
            nfc: (job.work == Work::Move).then(|| self.nfc_part(&migration.spec)).flatten(),
        };
        let object = objects::job(me, &order, &self.shape);
        let made = match self.cluster.create(&path_of(Kind::Job, &self.namespace, ""), &object, false) {
            // It was made, and its answer lost; or it is somebody's, which the watch does not show.
            Err(error) if error.kind == KubeErrorKind::Conflict => {
                let path = path_of(Kind::Job, &self.namespace, &job.name);
                let found = self.cluster.get(&path)?.unwrap_or_default();
                if found["metadata"]["annotations"][MIGRATION_UID] != me.uid.as_str() {
                    let what = format!("there is a Job {} of somebody else's", job.name);
                    return Err(KubeError { kind: KubeErrorKind::Refused, what });
                }
                found
            }
            made => made?,
        };
        self.due.insert(name.to_string());
        let (seen, version) = (job_seen(&made), Meta::of(&made).version);
        self.jobs.put(Known { migration: name.to_string(), version, seen });
        Ok(())
    }

    /// Makes events. One that is refused changes nothing.
    pub(super) fn tell(&self, kind: &str, name: &str, notes: &[Note]) {
        let uid = match kind {
            "Plan" => self.plans.get(name).map(|it| it.meta.uid.clone()),
            _ => self.migrations.get(name).map(|it| it.meta.uid.clone()),
        };
        let Some(uid) = uid else { return };
        let about = Named { name: name.to_string(), uid };
        for note in notes {
            crate::out::say_of(kind, name, &note.reason, &note.message);
            let event = objects::event(kind, &about, &self.namespace, note, now());
            let all = format!("/api/v1/namespaces/{}/events", self.namespace);
            if let Err(error) = self.cluster.create(&all, &event, false) {
                crate::out::say(format_args!("an event of {name} is not kept: {error}"));
            }
        }
    }

    /// Keeps one event of a Plan whose waves are held, which counts the VMs because of which they are.
    pub(super) fn tell_counted(&self, name: &str, note: &Note, count: u64) {
        let Some(uid) = self.plans.get(name).map(|it| it.meta.uid.clone()) else { return };
        crate::out::say_of("Plan", name, &note.reason, &note.message);
        let all = format!("/api/v1/namespaces/{}/events", self.namespace);
        let (event_name, about) = (format!("waves-held-{uid}"), Named { name: name.to_string(), uid });
        let event = objects::event("Plan", &about, &self.namespace, note, now());
        let (made, change) = objects::counted_event(event, &event_name, count);
        let told = match self.cluster.create(&all, &made, false) {
            Err(error) if error.kind == KubeErrorKind::Conflict => {
                self.cluster.change(&format!("{all}/{event_name}"), Change::Merge, &change)
            }
            told => told,
        };
        if let Err(error) = told {
            crate::out::say(format_args!("an event of {name} is not kept: {error}"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_ended_when_nothing_of_it_runs() {
        let job = |status: Value| job_seen(&json!({"metadata": {"name": "j"}, "status": status}));
        let failed = json!([{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]);
        assert!(job(json!({"conditions": failed})).has_ended);
        let at = json!([{"type": "Failed", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"}]);
        let failed_then = job(json!({"conditions": at}));
        assert_eq!((failed_then.failed_at, failed_then.done_at), (Some(Moment(7)), None));
        let complete =
            json!([{"type": "Complete", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"}]);
        let done_then = job(json!({"conditions": complete}));
        assert_eq!((done_then.failed_at, done_then.done_at), (None, Some(Moment(7))));
        let annotated = json!({"metadata": {"name": "j", "annotations": {WORK: "SwitchOn"}}});
        assert_eq!((job_seen(&annotated).work, job(json!({})).work), (Some(Work::SwitchOn), None));
        assert!(!job(json!({"conditions": failed, "terminating": 1})).has_ended);
        assert!(!job(json!({"active": 1})).has_ended && !job(json!({})).has_ended);
        let evicted =
            job(json!({"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}));
        assert!(evicted.was_disrupted && evicted.has_ended);
        let aimed =
            job(json!({"conditions": [{"type": "FailureTarget", "status": "True"}], "terminating": 1}));
        assert!(!aimed.has_ended && !aimed.was_disrupted);
    }

    #[test]
    fn a_claim_that_is_being_removed_is_neither_there_nor_gone() {
        let mut claim = json!({"metadata": {"uid": "c1", "annotations": {MIGRATION_UID: "m1"}}});
        assert_eq!(claim_seen(Some(&claim), "m1"), ClaimSeen::There("c1".into(), true));
        assert_eq!(claim_seen(Some(&claim), "m2"), ClaimSeen::There("c1".into(), false));
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(claim_seen(Some(&claim), "m1"), ClaimSeen::Going);
        assert_eq!(claim_seen(None, "m1"), ClaimSeen::Missing);
    }

    #[test]
    fn only_what_the_server_says_of_locks_decides() {
        let seen = |kind: KubeErrorKind| unseen(KubeError { kind, what: "words".into() });
        let Ok(LockSeen::NotServed(why)) = seen(KubeErrorKind::NotServed) else { panic!() };
        assert!(why.contains("words") && why.contains("deploy/crds.yaml"), "{why}");
        for kind in [KubeErrorKind::Denied, KubeErrorKind::Refused] {
            assert_eq!(seen(kind).unwrap(), LockSeen::Denied("words".into()));
        }
        for kind in [KubeErrorKind::Unreachable, KubeErrorKind::Server, KubeErrorKind::Conflict] {
            assert_eq!(seen(kind).unwrap_err().kind, kind, "that may pass");
        }
    }
}
