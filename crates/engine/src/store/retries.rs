//! What the store keeps of VMs that failed and are to be tried again while their run goes on.
//!
//! An order is taken only while a run takes orders, in the transaction that looks whether it does: it is heeded by that run, or
//! refused. A run that is killed leaves it behind, and the next one tries all that failed anyway.

use rusqlite::{Connection, params};

use super::{Durable, Outcome, Store, VmRow, add_event, now_ms, vm_row};

/// The kind of an event that says that a VM that failed is tried again by order.
const RETRY: &str = "retry";

impl Store {
    /// Orders that VMs of a plan, by their ids, are tried again: those of them that failed and are not ordered yet. False, and nothing
    /// is ordered, if no run takes such orders.
    pub fn ask_retry(&self, plan: &str, ids: &[&str]) -> Outcome<bool> {
        self.change(Durable::Now, |db| {
            let takes = "SELECT takes_retries FROM plan WHERE name = ?1";
            if !db.query_row(takes, [plan], |row| row.get::<_, bool>(0))? {
                return Ok(false);
            }
            let mut ask = db.prepare(
                "INSERT INTO retry (plan, vm, at_ms) SELECT plan, id, ?3 FROM vm WHERE plan = ?1 AND id = ?2 AND state = 'failed'
                 AND NOT EXISTS (SELECT 1 FROM give_up WHERE give_up.plan = ?1 AND give_up.vm = ?2)
                 ON CONFLICT(plan, vm) DO NOTHING",
            )?;
            let at_ms = now_ms();
            ids.iter().try_for_each(|id| ask.execute(params![plan, id, at_ms]).map(drop))?;
            Ok(true)
        })
    }

    /// VMs that are to be tried again, by their ids, in the order in which that was ordered.
    pub(crate) fn retries(&self, plan: &str) -> Outcome<Vec<String>> {
        self.rows("SELECT vm FROM retry WHERE plan = ?1 ORDER BY at_ms, rowid", [plan], |row| row.get(0))
    }

    /// Heeds orders: enters these VMs as queued, as a resume would. Gives them as they were; one that has not failed is none of them.
    pub(crate) fn heed_retries(&self, plan: &str, ids: &[&str]) -> Outcome<Vec<VmRow>> {
        self.change(Durable::Now, |db| {
            let mut failed = db.prepare(
                "SELECT * FROM vm WHERE plan = ?1 AND id = ?2 AND state = 'failed'
                 AND NOT EXISTS (SELECT 1 FROM give_up WHERE give_up.plan = ?1 AND give_up.vm = ?2)",
            )?;
            let mut queue = db.prepare(
                "UPDATE vm SET state = 'queued', error = NULL, cause = NULL, advice = NULL, ended_ms = NULL
                 WHERE plan = ?1 AND id = ?2",
            )?;
            let mut rows = Vec::new();
            for id in ids {
                forget(db, plan, id)?;
                for row in failed.query_map([plan, id], vm_row)?.collect::<rusqlite::Result<Vec<_>>>()? {
                    queue.execute([plan, id])?;
                    add_event(db, plan, Some(id), None, RETRY, "it failed, and is tried again by order")?;
                    rows.push(row);
                }
            }
            Ok(rows)
        })
    }

    /// Drops an order that is not heeded, and notes why.
    pub(crate) fn drop_retry(&self, plan: &str, id: &str, why: &str) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| drop_one(db, plan, id, why))
    }

    /// The run of a plan takes such orders no more, and drops those there are.
    pub(crate) fn refuse_retries(&self, plan: &str, why: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let ids: Vec<String> = db
                .prepare("SELECT vm FROM retry WHERE plan = ?1 ORDER BY at_ms, rowid")?
                .query_map([plan], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            ids.iter().try_for_each(|id| drop_one(db, plan, id, why))?;
            db.execute("UPDATE plan SET takes_retries = 0 WHERE name = ?1", [plan]).map(drop)
        })
    }

    /// The same if there are none; false if there are some, and it takes more.
    pub(crate) fn end_retries(&self, plan: &str) -> Outcome<bool> {
        self.change(Durable::Now, |db| {
            let is_ordered = "SELECT EXISTS (SELECT 1 FROM retry WHERE plan = ?1)";
            if db.query_row(is_ordered, [plan], |row| row.get::<_, bool>(0))? {
                return Ok(false);
            }
            db.execute("UPDATE plan SET takes_retries = 0 WHERE name = ?1", [plan])?;
            Ok(true)
        })
    }
}

fn drop_one(db: &Connection, plan: &str, id: &str, why: &str) -> rusqlite::Result<()> {
    forget(db, plan, id)?;
    add_event(db, plan, Some(id), None, "note", &format!("it was to be tried again, and is not: {why}"))
}

fn forget(db: &Connection, plan: &str, id: &str) -> rusqlite::Result<()> {
    db.execute("DELETE FROM retry WHERE plan = ?1 AND vm = ?2", [plan, id]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::{PlanState, VmState};

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        for id in ["a", "b", "c"] {
            store.enter_vm("p", id, id, "{}").unwrap();
        }
        for id in ["a", "b"] {
            store.enter_phase("p", id, "copy").unwrap();
            store.end_vm("p", id, VmState::Failed, Some(("why", "source", Some("this")))).unwrap();
        }
        (folder, store)
    }

    /// Its VMs stay as they are: those of a run that goes on fail again.
    fn begins_again(store: &Store) {
        store.begin_plan("p", "", Path::new("/")).unwrap();
        store.enter_vms("p", []).unwrap();
    }

    #[test]
    fn a_run_takes_orders_once_its_vms_are_entered() {
        let (_folder, store) = store();
        store.end_plan("p", PlanState::Incomplete).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        assert!(!store.ask_retry("p", &["a"]).unwrap(), "what failed before is tried anyway");
        store.enter_vm("p", "a", "a", "{}").unwrap();
        assert!(store.ask_retry("p", &["a"]).unwrap());
        assert_eq!(store.retries("p").unwrap(), Vec::<String>::new(), "it waits, and did not fail");
    }

    #[test]
    fn only_what_failed_is_ordered_and_heeded_once() {
        let (_folder, store) = store();
        assert!(store.ask_retry("p", &["b", "c", "x"]).unwrap());
        assert!(store.ask_retry("p", &["a", "b"]).unwrap());
        assert_eq!(store.retries("p").unwrap(), ["b", "a"]);
        assert!(!store.end_retries("p").unwrap(), "an order is there");
        let rows = store.heed_retries("p", &["b"]).unwrap();
        assert_eq!(rows.iter().map(|row| row.error.as_deref()).collect::<Vec<_>>(), [Some("why")]);
        let now = store.vm("p", "b").unwrap().unwrap();
        assert_eq!((now.state, now.phase.as_deref()), (VmState::Queued, Some("copy")));
        assert_eq!((now.error, now.cause, now.advice, now.ended_ms), (None, None, None, None));
        assert_eq!(store.events_of("p", "b").unwrap().last().unwrap().kind, "retry");
        assert_eq!(store.retries("p").unwrap(), ["a"]);
        // One that was ordered twice, the second time before the first was heeded.
        assert!(store.ask_retry("p", &["b"]).unwrap());
        assert_eq!(store.heed_retries("p", &["b"]).unwrap(), []);
    }

    #[test]
    fn a_run_that_ends_refuses_orders_and_the_next_one_knows_of_none() {
        let (_folder, store) = store();
        assert!(store.end_retries("p").unwrap());
        assert!(!store.ask_retry("p", &["a"]).unwrap());
        store.end_plan("p", PlanState::Incomplete).unwrap();
        begins_again(&store);
        assert!(store.ask_retry("p", &["a"]).unwrap());
        store.refuse_retries("p", "the run stops").unwrap();
        assert_eq!(store.retries("p").unwrap(), Vec::<String>::new());
        assert!(store.events_of("p", "a").unwrap().last().unwrap().text.ends_with("the run stops"));
        assert!(!store.ask_retry("p", &["a"]).unwrap());
        // As after a kill.
        begins_again(&store);
        assert!(store.ask_retry("p", &["a"]).unwrap());
        store.begin_plan("p", "", Path::new("/")).unwrap();
        assert_eq!(store.retries("p").unwrap(), Vec::<String>::new());
        assert!(store.ask_retry("x", &["a"]).is_err());
    }
}
