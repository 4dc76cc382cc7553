//! What the store keeps of the runs of a plan: who ran what, where and from where. A report names it as its evidence.

use std::collections::BTreeMap;
use std::path::PathBuf;

use drover_schedule::Quarantined;
use rusqlite::params;
use rusqlite::types::Type;
use serde::{Deserialize, Serialize};

use super::{Durable, Outcome, Store, now_ms};

/// What is known of a run when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Version of drover.
    pub drover: String,
    /// Who ran it.
    pub user: String,
    /// Where it ran; VMs that go to no site come there.
    pub host: String,
    /// The plan file.
    pub plan_file: PathBuf,
    /// BLAKE3 of its text, in hexadecimal digits.
    pub plan_blake3: String,
    /// Address of the source.
    pub source: String,
    /// What runs there, with its version.
    pub source_product: String,
    /// Tells one installation from another; empty if not told.
    pub source_uuid: String,
    /// Names of the hosts of the source's VMs, by the provider's id.
    pub source_hosts: BTreeMap<String, String>,
    /// What was foreseen for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<Foreseen>,
    /// What was foreseen lately, while it went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreseen_now: Option<ForeseenNow>,
    /// Hosts and datastores because of which VMs failed; of a daemon also those of other plans.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantine: Vec<Quarantined>,
}

/// When a run ends, as it was foreseen while it went on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeseenNow {
    /// When that was, in milliseconds since 1970.
    pub at_ms: i64,
    /// When the last VM arrives: P10, P50 and P90, in milliseconds since 1970.
    pub end_ms: [i64; 3],
    /// When all VMs that wait for `drover cutover` are ready for it, and the others have arrived, in the same way; absent where none
    /// waits for that. Then `end_ms` is the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<[i64; 3]>,
}

/// What was foreseen for a run when it began: P10, P50 and P90, in milliseconds from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreseen {
    /// Until its last VM has arrived.
    pub makespan_ms: [u64; 3],
    /// Until all VMs that wait for `drover cutover` are ready for it, and the others have arrived; absent where none waits for that.
    /// Then `makespan_ms` is the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<[u64; 3]>,
    /// By the source's id of the VM.
    pub vms: BTreeMap<String, ForeseenVm>,
    /// What earlier runs measured: the order of the schedule goes by it.
    #[serde(skip)]
    pub known: KnownRates,
}

/// What earlier runs measured of a source, in bytes a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownRates {
    /// All disks of a host.
    pub host: Option<u64>,
    /// All disks of datastores, by their names.
    pub datastores: BTreeMap<String, u64>,
}

/// How far what was foreseen for a run was from what came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastError {
    /// By which share of the outcome the likely time (P50) was off; below 0 it was too short.
    pub off: f64,
    /// Whether the outcome was from P10 to P90.
    pub inside: bool,
}

impl ForecastError {
    /// Of P10, P50 and P90 and what it took, in milliseconds from the beginning.
    pub fn of([p10, p50, p90]: [u64; 3], outcome_ms: u64) -> ForecastError {
        let off = p50 as f64 / outcome_ms.max(1) as f64 - 1.0;
        ForecastError { off, inside: (p10..=p90).contains(&outcome_ms) }
    }
}

/// When a run was foreseen to end: P10, P50 and P90, in milliseconds since 1970. Nothing was where VMs of it wait for `drover cutover`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeseenEnds {
    /// When it began.
    pub began_ms: i64,
    /// As it began.
    pub first: Option<[i64; 3]>,
    /// As it was said last.
    pub now: Option<[i64; 3]>,
}

impl ForeseenEnds {
    /// What was foreseen as it began, beside an end that was good; absent if nothing was.
    pub fn error(&self, ended_ms: i64) -> Option<ForecastError> {
        let since = |at_ms: i64| u64::try_from(at_ms.saturating_sub(self.began_ms)).unwrap_or(0);
        Some(ForecastError::of(self.first?.map(since), since(ended_ms)))
    }
}

/// What was foreseen for a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeseenVm {
    /// Until it has arrived.
    pub end_ms: [u64; 3],
    /// How long its guest is down; absent if it did not run.
    pub downtime_ms: Option<[u64; 3]>,
    /// Whether it moves over only when `drover cutover` says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_order: bool,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRow {
    /// When it began, in milliseconds since 1970.
    pub at_ms: i64,
    /// What is known of it.
    #[serde(flatten)]
    pub facts: RunFacts,
}

/// The latest are told of; a plan is run some times.
const RUNS_MAX: i64 = 100;

impl Store {
    /// Records a run of a plan that is known; gives its number.
    pub fn add_run(&self, plan: &str, facts: &RunFacts) -> Outcome<i64> {
        let facts = serde_json::to_string(facts).unwrap_or_default();
        self.change(Durable::WithTheNext, |db| {
            let sql = "INSERT INTO run (plan, at_ms, facts) VALUES (?1, ?2, ?3)";
            db.execute(sql, params![plan, now_ms(), facts])?;
            Ok(db.last_insert_rowid())
        })
    }

    /// Adds to the latest run of a plan what was foreseen for it.
    pub fn set_foreseen(&self, plan: &str, foreseen: &Foreseen) -> Outcome<()> {
        self.add_fact(plan, "$.foreseen", foreseen)
    }

    /// Adds to the latest run of a plan what is foreseen for it now.
    pub fn set_foreseen_now(&self, plan: &str, now: &ForeseenNow) -> Outcome<()> {
        self.add_fact(plan, "$.foreseen_now", now)
    }

    /// Adds to the latest run of a plan because of which hosts and datastores VMs failed.
    pub fn set_quarantine(&self, plan: &str, quarantine: &[Quarantined]) -> Outcome<()> {
        self.add_fact(plan, "$.quarantine", &quarantine)
    }

    /// Adds a fact to the latest run of a plan.
    fn add_fact(&self, plan: &str, path: &str, fact: &impl Serialize) -> Outcome<()> {
        let fact = serde_json::to_string(fact).unwrap_or_default();
        self.change(Durable::WithTheNext, |db| {
            let sql = "UPDATE run SET facts = json_set(facts, ?2, json(?3))
                       WHERE id = (SELECT max(id) FROM run WHERE plan = ?1)";
            db.execute(sql, params![plan, path, fact]).map(drop)
        })
    }

    /// When the last VM of a plan's latest run was foreseen to arrive: as the run began, and as it was said last.
    pub fn foreseen_ends(&self, plan: &str) -> Outcome<ForeseenEnds> {
        let sql = "SELECT at_ms,
                          iif(json_extract(facts, '$.foreseen.ready_ms') IS NULL,
                              json_extract(facts, '$.foreseen.makespan_ms'), NULL) AS first,
                          iif(json_extract(facts, '$.foreseen_now.ready_ms') IS NULL,
                              json_extract(facts, '$.foreseen_now.end_ms'), NULL) AS now
                   FROM run WHERE plan = ?1 ORDER BY id DESC LIMIT 1";
        let ends = self.rows(sql, params![plan], |row| {
            let three = |text: Option<String>| serde_json::from_str::<[i64; 3]>(&text?).ok();
            let at_ms: i64 = row.get("at_ms")?;
            let first = three(row.get("first")?).map(|it| it.map(|after_ms| at_ms.saturating_add(after_ms)));
            Ok(ForeseenEnds { began_ms: at_ms, first, now: three(row.get("now")?).or(first) })
        })?;
        Ok(ends.into_iter().next().unwrap_or_default())
    }

    /// The latest runs of a plan, in order.
    pub fn runs(&self, plan: &str) -> Outcome<Vec<RunRow>> {
        let sql = "SELECT at_ms, facts FROM run WHERE plan = ?1 ORDER BY id DESC LIMIT ?2";
        let mut latest = self.rows(sql, params![plan, RUNS_MAX], |row| {
            let text: String = row.get("facts")?;
            let facts = serde_json::from_str(&text)
                .map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, Box::new(error)))?;
            Ok(RunRow { at_ms: row.get("at_ms")?, facts })
        })?;
        latest.reverse();
        Ok(latest)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn runs_are_kept_in_order_and_go_with_their_plan() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let facts = |user: &str| RunFacts {
            user: user.into(),
            source_hosts: [("host-1".to_string(), "esx1".to_string())].into(),
            ..RunFacts::default()
        };
        store.add_run("p", &facts("ann")).unwrap();
        store.add_run("p", &facts("bob")).unwrap();
        let runs = store.runs("p").unwrap();
        assert_eq!(runs.iter().map(|run| &run.facts).collect::<Vec<_>>(), [&facts("ann"), &facts("bob")]);
        let foreseen = Foreseen { makespan_ms: [1, 2, 3], ..Foreseen::default() };
        let began_ms = store.runs("p").unwrap()[1].at_ms;
        let none = ForeseenEnds { began_ms, ..ForeseenEnds::default() };
        assert_eq!((store.foreseen_ends("p").unwrap(), none.error(began_ms + 9)), (none, None));
        store.set_foreseen("p", &foreseen).unwrap();
        let first = Some([began_ms + 1, began_ms + 2, began_ms + 3]);
        assert_eq!(store.foreseen_ends("p").unwrap(), ForeseenEnds { first, now: first, ..none });
        let error = |took_ms| store.foreseen_ends("p").unwrap().error(began_ms + took_ms).unwrap();
        assert_eq!(error(4), ForecastError { off: -0.5, inside: false });
        assert_eq!(error(1), ForecastError { off: 1.0, inside: true });
        let now = ForeseenNow { at_ms: 5, end_ms: [6, 7, 8], ready_ms: None };
        store.set_foreseen_now("p", &now).unwrap();
        assert_eq!(store.foreseen_ends("p").unwrap(), ForeseenEnds { first, now: Some([6, 7, 8]), ..none });
        assert_eq!(store.runs("p").unwrap()[1].facts.foreseen_now, Some(now));
        // Whose cutovers nobody ordered yet ends nobody knows when.
        let waits = Foreseen { ready_ms: Some([1, 2, 2]), ..foreseen.clone() };
        store.set_foreseen("p", &waits).unwrap();
        store.set_foreseen_now("p", &ForeseenNow { ready_ms: Some([6, 7, 7]), ..now }).unwrap();
        assert_eq!(store.foreseen_ends("p").unwrap(), none);
        store.set_foreseen_now("p", &now).unwrap();
        assert_eq!(
            store.foreseen_ends("p").unwrap(),
            ForeseenEnds { now: Some([6, 7, 8]), ..none },
            "all are"
        );
        assert_eq!(none.error(began_ms + 4), None);
        store.set_foreseen("p", &foreseen).unwrap();
        let runs = store.runs("p").unwrap();
        assert_eq!((&runs[0].facts, &runs[1].facts.foreseen), (&facts("ann"), &Some(foreseen)));
        store.remove_plan("p").unwrap();
        assert_eq!(store.runs("p").unwrap(), []);
    }
}
