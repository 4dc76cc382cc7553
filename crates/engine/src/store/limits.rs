//! What the store keeps of limits that are changed by order.
//!
//! An order holds over resumes and restarts, until the plan is begun anew or with another text: then the text counts.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Durable, Outcome, PlanState, Store, now_ms};
use crate::limits::LimitsOrder;

impl Store {
    /// Keeps that limits of a plan are these from now on; others that were ordered before stay.
    pub fn ask_limits(&self, plan: &str, order: &LimitsOrder) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let known = known(db, plan)?.as_deref().and_then(read).unwrap_or_default();
            let sql = "INSERT INTO limits_order (plan, limits, at_ms) VALUES (?1, ?2, ?3)
                       ON CONFLICT(plan) DO UPDATE SET limits = ?2, at_ms = ?3";
            let text = serde_json::to_string(&order.clone().over(known)).unwrap_or_default();
            db.execute(sql, params![plan, text, now_ms()]).map(drop)
        })
    }

    /// What was ordered of a plan's limits; nothing if nothing was.
    pub fn limits_order(&self, plan: &str) -> Outcome<Option<LimitsOrder>> {
        let sql = "SELECT limits FROM limits_order WHERE plan = ?1";
        let texts = self.rows(sql, [plan], |row| row.get::<_, String>(0))?;
        Ok(texts.first().and_then(|text| read(text)))
    }

    /// The same, as it holds for a run of the plan with this text.
    pub fn limits_order_for(&self, plan: &str, text: &str) -> Outcome<Option<LimitsOrder>> {
        let goes_on = self.plan(plan)?.is_some_and(|row| {
            !matches!(row.state, PlanState::Done | PlanState::Cancelled) && row.text == text
        });
        if goes_on { self.limits_order(plan) } else { Ok(None) }
    }
}

/// Forgets an order about a plan that is begun anew, or with another text.
pub(super) fn forget_limits(db: &Connection, plan: &str, text: &str) -> rusqlite::Result<()> {
    let sql = "DELETE FROM limits_order WHERE plan IN
               (SELECT name FROM plan WHERE name = ?1 AND (text <> ?2 OR state IN ('done', 'cancelled')))";
    db.execute(sql, [plan, text]).map(drop)
}

fn known(db: &Connection, plan: &str) -> rusqlite::Result<Option<String>> {
    db.query_row("SELECT limits FROM limits_order WHERE plan = ?1", [plan], |row| row.get(0)).optional()
}

/// One that a later drover wrote, in a way that this one does not know, is as if there were none.
fn read(text: &str) -> Option<LimitsOrder> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn an_order_is_kept_until_the_plan_is_begun_anew_or_with_another_text() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let begin = |text: &str| store.begin_plan("p", text, Path::new("/")).unwrap();
        let disks = |disks| LimitsOrder { disks: Some(disks), ..LimitsOrder::default() };
        begin("a");
        assert_eq!(store.limits_order("p").unwrap(), None);
        store.ask_limits("p", &disks(4)).unwrap();
        store
            .ask_limits("p", &LimitsOrder { rate_limit: Some(Vec::new()), ..LimitsOrder::default() })
            .unwrap();
        let both = LimitsOrder { rate_limit: Some(Vec::new()), ..disks(4) };
        assert_eq!(store.limits_order("p").unwrap(), Some(both.clone()));
        store.end_plan("p", PlanState::Incomplete).unwrap();
        assert_eq!(store.limits_order_for("p", "a").unwrap(), Some(both.clone()));
        assert_eq!(store.limits_order_for("p", "b").unwrap(), None);
        begin("a");
        assert_eq!(store.limits_order("p").unwrap(), Some(both));
        begin("b");
        assert_eq!(store.limits_order("p").unwrap(), None, "what was edited counts");
        for over in [PlanState::Done, PlanState::Cancelled] {
            store.ask_limits("p", &disks(7)).unwrap();
            store.end_plan("p", over).unwrap();
            assert_eq!(store.limits_order_for("p", "b").unwrap(), None);
            assert_eq!(store.limits_order("p").unwrap(), Some(disks(7)), "it is forgotten by the next begin");
            begin("b");
            assert_eq!(store.limits_order("p").unwrap(), None);
        }
        store.ask_limits("p", &disks(7)).unwrap();
        store.remove_plan("p").unwrap();
        assert_eq!(store.limits_order("p").unwrap(), None);
    }
}
