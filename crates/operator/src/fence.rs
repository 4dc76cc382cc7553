//! What a worker writes to its Migration: an epoch is one pod's, and all that is written is held against that by the API server.

use serde_json::{Value, json};

use crate::model::{Pinned, Work, WorkerWord};

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The UID of its Migration.
    pub uid: String,
    /// Its epoch.
    pub epoch: u64,
    /// The UID of its pod: a Job may have had more than one.
    pub pod: String,
}

/// What becomes of a worker that begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    /// The epoch is this pod's already.
    Mine,
    /// These operations make it this pod's, if nothing was changed meanwhile.
    By(Value),
    /// It is not, and will not be.
    Refused(String),
}

impl Fence {
    /// Takes the epoch, as the Migration was read.
    pub fn take(&self, migration: &Value) -> Taken {
        if let Some(why) = self.foreign(migration) {
            return Taken::Refused(why);
        }
        let status = &migration["status"];
        let taken = &status["worker"];
        if taken["epoch"] == self.epoch {
            return match taken["pod"] == self.pod.as_str() {
                true => Taken::Mine,
                false => Taken::Refused(format!("epoch {} is another pod's", self.epoch)),
            };
        }
        let word = WorkerWord { epoch: self.epoch, pod: Some(self.pod.clone()), ..WorkerWord::default() };
        Taken::By(json!([
            {"op": "test", "path": "/metadata/uid", "value": self.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": migration["metadata"]["resourceVersion"]},
            {"op": "test", "path": "/status/epoch", "value": self.epoch},
            {"op": "add", "path": "/status/worker", "value": word},
        ]))
    }

    fn foreign(&self, migration: &Value) -> Option<String> {
        if self.pod.is_empty() {
            return Some("the pod's UID is not told".into());
        }
        if migration["metadata"]["uid"] != self.uid.as_str() {
            return Some("the Migration is gone, or another".into());
        }
        (migration["status"]["epoch"] != self.epoch).then(|| format!("epoch {} is over", self.epoch))
    }

    /// Whether it is still meant.
    pub fn holds(&self, migration: &Value) -> bool {
        let worker = &migration["status"]["worker"];
        self.foreign(migration).is_none()
            && worker["epoch"] == self.epoch
            && worker["pod"] == self.pod.as_str()
    }

    /// Operations that write fields of the status; refused where another is meant.
    pub fn write(&self, fields: &[(&str, Value)]) -> Value {
        let mut operations = self.tests();
        for (field, value) in fields {
            operations.push(json!({"op": "add", "path": format!("/status/{field}"), "value": value}));
        }
        Value::Array(operations)
    }

    /// Operations that say that source and target are touched from now on; refused where another is meant, or something else is wanted
    /// than in that generation.
    pub fn begin(&self, generation: i64) -> Value {
        let mut operations = self.tests();
        operations.push(json!({"op": "test", "path": "/metadata/generation", "value": generation}));
        operations.push(json!({"op": "add", "path": "/status/begun", "value": true}));
        Value::Array(operations)
    }

    /// Operations that say that the guest goes down; refused where another is meant, or leave that it had to move over was taken back.
    pub fn go_down(&self, had_leave: bool) -> Value {
        let mut operations = self.tests();
        if had_leave {
            operations.push(json!({"op": "test", "path": "/status/cutoverEpoch", "value": self.epoch}));
        }
        operations.push(json!({"op": "add", "path": "/status/worker/outage", "value": true}));
        Value::Array(operations)
    }

    /// Whether its guest may be shut down for its cutover, as the Migration was read.
    pub fn may_cut_over(&self, migration: &Value) -> bool {
        migration["status"]["cutoverEpoch"] == self.epoch
    }

    fn tests(&self) -> Vec<Value> {
        vec![
            json!({"op": "test", "path": "/metadata/uid", "value": self.uid}),
            json!({"op": "test", "path": "/status/epoch", "value": self.epoch}),
            json!({"op": "test", "path": "/status/worker/epoch", "value": self.epoch}),
            json!({"op": "test", "path": "/status/worker/pod", "value": self.pod}),
        ]
    }
}

/// Why this work is not wanted of a Migration, as it was read.
pub fn unwanted(work: Work, migration: &Value) -> Option<&'static str> {
    let is_given_up =
        migration["spec"]["cancel"] == true || !migration["metadata"]["deletionTimestamp"].is_null();
    match (work, is_given_up) {
        (Work::Move, true) => Some("it is given up"),
        (Work::Undo, false) => Some("it is not given up"),
        (Work::Move, false) | (Work::Undo, true) | (Work::SwitchOn, _) => None,
    }
}

/// What [`crate::CUTOVER`] says that no worker heeded yet.
pub fn asked_cutover(migration: &Value) -> Option<&str> {
    let word = migration["metadata"]["annotations"][crate::CUTOVER].as_str()?;
    (migration["status"]["cutover"] != word).then_some(word)
}

/// Whether a worker may use a Provider as it is now. What has begun may whatever became of it, since the vCenter itself is proven by its
/// instance UUID.
pub fn takes_provider(wanted: &Pinned, has_begun: bool, provider: &Value) -> bool {
    let metadata = &provider["metadata"];
    match has_begun {
        true => metadata["name"] == wanted.name.as_str(),
        false => metadata["uid"] == wanted.uid.as_str() && metadata["generation"] == wanted.generation,
    }
}

/// Whether an object of one UID was seen in a later version already. Versions that are no numbers tell nothing.
pub fn is_older(seen: &str, fresh: &str) -> bool {
    match (seen.parse::<u64>(), fresh.parse::<u64>()) {
        (Ok(seen), Ok(fresh)) => fresh < seen,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(pod: &str) -> Fence {
        Fence { uid: "m1".into(), epoch: 3, pod: pod.into() }
    }

    fn migration(epoch: u64, worker: Value) -> Value {
        json!({"metadata": {"uid": "m1", "resourceVersion": "77", "generation": 2},
               "status": {"epoch": epoch, "worker": worker}})
    }

    /// What the API server does with tests and additions.
    fn applied(migration: &Value, operations: &Value) -> Option<Value> {
        let mut now = migration.clone();
        for it in operations.as_array().unwrap() {
            let path = it["path"].as_str().unwrap();
            if it["op"] == "test" {
                if now.pointer(path)? != &it["value"] {
                    return None;
                }
            } else {
                let (parent, key) = path.rsplit_once('/').unwrap();
                now.pointer_mut(parent)?[key] = it["value"].clone();
            }
        }
        now["metadata"]["resourceVersion"] = json!("78");
        Some(now)
    }

    #[test]
    fn an_epoch_is_one_pods() {
        for worker in [Value::Null, json!({"epoch": 2, "pod": "a", "exit": 5})] {
            let there = migration(3, worker);
            let Taken::By(first) = fence("a").take(&there) else { panic!("{there}") };
            let Taken::By(second) = fence("b").take(&there) else { panic!("{there}") };
            let taken = applied(&there, &first).unwrap();
            assert_eq!(applied(&taken, &second), None, "both read it before either wrote");
            assert_eq!(fence("a").take(&taken), Taken::Mine, "an answer that was lost");
            assert!(matches!(fence("b").take(&taken), Taken::Refused(_)));
            assert!(fence("a").holds(&taken) && !fence("b").holds(&taken));
        }
        assert!(matches!(fence("").take(&migration(3, Value::Null)), Taken::Refused(_)));
    }

    #[test]
    fn what_an_epoch_of_another_writes_is_refused() {
        let Taken::By(taking) = fence("a").take(&migration(3, Value::Null)) else { panic!() };
        let taken = applied(&migration(3, Value::Null), &taking).unwrap();
        let begins = |fence: &Fence, there: &Value| applied(there, &fence.begin(2)).is_some();
        let writes =
            |fence: &Fence, there: &Value| applied(there, &fence.write(&[("progress", json!(1))])).is_some();
        assert!(begins(&fence("a"), &taken) && writes(&fence("a"), &taken));
        let mut over = taken.clone();
        over["status"]["epoch"] = json!(4);
        let mut remade = taken.clone();
        remade["metadata"]["uid"] = json!("m2");
        for (pod, there) in [("b", &taken), ("a", &over), ("a", &remade), ("a", &Value::Null)] {
            let fence = fence(pod);
            assert!(!begins(&fence, there) && !writes(&fence, there) && !fence.holds(there), "{there}");
        }
        let mut edited = taken;
        edited["metadata"]["generation"] = json!(3);
        assert!(!begins(&fence("a"), &edited) && writes(&fence("a"), &edited));
        assert!(matches!(fence("a").take(&over), Taken::Refused(_)));
        assert!(matches!(fence("a").take(&Value::Null), Taken::Refused(_)));
    }

    #[test]
    fn a_guest_goes_down_for_its_cutover_as_long_as_that_is_let() {
        let let_go = |epoch: Value| {
            let mut there = migration(3, json!({"epoch": 3, "pod": "a"}));
            there["status"]["cutoverEpoch"] = epoch;
            there
        };
        let goes = |there: &Value, had_leave| applied(there, &fence("a").go_down(had_leave));
        let down = goes(&let_go(json!(3)), true).unwrap();
        assert_eq!(down["status"]["worker"]["outage"], true);
        assert!(fence("a").may_cut_over(&let_go(json!(3))));
        for other in [json!(2), Value::Null] {
            let there = let_go(other);
            assert!(goes(&there, true).is_none() && !fence("a").may_cut_over(&there), "{there}");
            assert!(goes(&there, false).is_some(), "nobody had to let it");
        }
        assert!(applied(&let_go(json!(3)), &fence("b").go_down(false)).is_none());
    }

    #[test]
    fn a_worker_does_what_is_wanted_now() {
        let plain = json!({"metadata": {}, "spec": {"cancel": false}});
        let cancelled = json!({"metadata": {}, "spec": {"cancel": true}});
        let going = json!({"metadata": {"deletionTimestamp": "now"}, "spec": {}});
        assert!(unwanted(Work::Move, &plain).is_none() && unwanted(Work::Undo, &plain).is_some());
        for it in [cancelled, going] {
            assert!(unwanted(Work::Move, &it).is_some() && unwanted(Work::Undo, &it).is_none());
        }
    }

    #[test]
    fn a_cutover_is_asked_for_once_by_each_word() {
        let migration = |status: Value| json!({"metadata": {"annotations": {crate::CUTOVER: "monday"}}, "status": status});
        assert_eq!(asked_cutover(&migration(json!({}))), Some("monday"));
        assert_eq!(asked_cutover(&migration(json!({"cutover": "sunday"}))), Some("monday"));
        assert_eq!(asked_cutover(&migration(json!({"cutover": "monday"}))), None);
        assert_eq!(asked_cutover(&json!({"metadata": {}, "status": {"cutover": "monday"}})), None);
    }

    #[test]
    fn what_has_begun_takes_the_provider_of_that_name() {
        let wanted = Pinned { name: "vc".into(), uid: "u".into(), generation: 1 };
        let provider = |uid: &str, generation: i64| json!({"metadata": {"name": "vc", "uid": uid, "generation": generation}});
        for (provider, is_as_laid) in
            [(provider("u", 1), true), (provider("u", 2), false), (provider("v", 1), false)]
        {
            assert_eq!(takes_provider(&wanted, false, &provider), is_as_laid);
            assert!(takes_provider(&wanted, true, &provider));
        }
        assert!(
            !takes_provider(&wanted, false, &Value::Null) && !takes_provider(&wanted, true, &Value::Null)
        );
    }

    #[test]
    fn older_versions_are_known() {
        assert!(is_older("100", "99") && !is_older("99", "100") && !is_older("100", "100"));
        assert!(!is_older("", "1") && !is_older("b", "a"));
    }
}
