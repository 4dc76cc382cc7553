//! What the store keeps of VMs that are given up by order, while the rest of their plan goes on.
//!
//! An order stays after it was carried out: later runs of the plan leave the VM alone. It ends when the VM is taken back, or when the
//! whole plan was given up and begins anew.

use rusqlite::{OptionalExtension, params};

use super::{Durable, Outcome, Store, add_event, forget_vm, now_ms};

/// The kind of an event that tells of such an order.
const GIVEN_UP: &str = "given_up";

impl Store {
    /// Orders that VMs of a plan, by their ids, are given up. One that has arrived is not. An order that is given again counts anew.
    pub fn ask_give_up(&self, plan: &str, ids: &[&str]) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let mut ask = db.prepare(
                "INSERT INTO give_up (plan, vm, at_ms) SELECT plan, id, ?3 FROM vm
                 WHERE plan = ?1 AND id = ?2 AND state NOT IN ('done', 'not_cleaned_up')
                 ON CONFLICT(plan, vm) DO UPDATE SET at_ms = ?3",
            )?;
            let mut is_known =
                db.prepare("SELECT EXISTS (SELECT 1 FROM give_up WHERE plan = ?1 AND vm = ?2)")?;
            let mut no_retry = db.prepare("DELETE FROM retry WHERE plan = ?1 AND vm = ?2")?;
            let at_ms = now_ms();
            ids.iter().try_for_each(|id| {
                no_retry.execute([plan, id])?;
                let is_known = is_known.query_row([plan, id], |row| row.get::<_, bool>(0))?;
                if ask.execute(params![plan, id, at_ms])? == 0 || is_known {
                    return Ok(());
                }
                add_event(db, plan, Some(id), None, GIVEN_UP, "it is given up by order")
            })
        })
    }

    /// VMs of a plan that are given up by order, by their ids, in the order in which that was ordered.
    pub fn give_ups(&self, plan: &str) -> Outcome<Vec<String>> {
        Ok(self.give_ups_at(plan)?.into_iter().map(|(id, _)| id).collect())
    }

    /// The same with when each was ordered last, in milliseconds since 1970.
    pub(crate) fn give_ups_at(&self, plan: &str) -> Outcome<Vec<(String, i64)>> {
        let of = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        self.rows("SELECT vm, at_ms FROM give_up WHERE plan = ?1 ORDER BY at_ms, rowid", [plan], of)
    }

    /// Takes VMs back that were given up: the next run of the plan begins them anew, also if all others have arrived.
    pub fn take_back(&self, plan: &str, ids: &[&str]) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let mut forget = db.prepare("DELETE FROM give_up WHERE plan = ?1 AND vm = ?2")?;
            let mut undone =
                db.prepare("SELECT name FROM vm WHERE plan = ?1 AND id = ?2 AND state = 'cancelled'")?;
            let mut queue = db.prepare("UPDATE vm SET state = 'queued' WHERE plan = ?1 AND id = ?2")?;
            db.execute("UPDATE plan SET state = 'incomplete' WHERE name = ?1 AND state = 'done'", [plan])?;
            ids.iter().try_for_each(|id| {
                forget.execute([plan, id])?;
                let name = undone.query_row([plan, id], |row| row.get::<_, String>(0)).optional()?;
                if let Some(name) = name {
                    forget_vm(db, plan, id, &name)?;
                    queue.execute([plan, id])?;
                }
                add_event(db, plan, Some(id), None, GIVEN_UP, "it is taken back, and moves with the next run")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::{PlanState, VmState};

    #[test]
    fn an_order_stays_until_the_vm_is_taken_back_or_the_plan_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let ordered = || {
            let mut ids = store.give_ups("p").unwrap();
            ids.sort();
            ids
        };
        let begin = || store.begin_plan("p", "", Path::new("/")).unwrap();
        begin();
        for id in ["a", "b", "c"] {
            store.enter_vm("p", id, id, "{}").unwrap();
        }
        store.end_vm("p", "a", VmState::Failed, Some(("why", "source", None))).unwrap();
        store.end_vm("p", "c", VmState::Done, None).unwrap();
        assert!(store.ask_retry("p", &["a"]).unwrap());
        store.ask_give_up("p", &["b", "a", "c", "x"]).unwrap();
        store.ask_give_up("p", &["b"]).unwrap();
        assert_eq!(ordered(), ["a", "b"], "what has arrived stays, what is not there is nothing");
        assert_eq!(store.retries("p").unwrap(), Vec::<String>::new());
        let told = store.events_of("p", "b").unwrap();
        assert_eq!(told.iter().filter(|event| event.kind == GIVEN_UP).count(), 1);
        store.end_plan("p", PlanState::Incomplete).unwrap();
        begin();
        assert_eq!(ordered(), ["a", "b"]);
        store.end_vm("p", "a", VmState::Cancelled, None).unwrap();
        store.take_back("p", &["a"]).unwrap();
        assert_eq!(store.vm("p", "a").unwrap().unwrap().state, VmState::Queued);
        store.end_plan("p", PlanState::Done).unwrap();
        begin();
        assert_eq!(store.give_ups("p").unwrap(), ["b"]);
        store.end_plan("p", PlanState::Done).unwrap();
        store.take_back("p", &["a"]).unwrap();
        assert_eq!(
            store.plan("p").unwrap().unwrap().state,
            PlanState::Incomplete,
            "there is something to be done"
        );
        store.end_plan("p", PlanState::Cancelled).unwrap();
        begin();
        assert_eq!(store.give_ups("p").unwrap(), Vec::<String>::new());
    }
}
