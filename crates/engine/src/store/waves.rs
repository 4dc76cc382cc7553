//! What the store keeps of waves: words of operators. How far a wave is, its VMs tell.

use rusqlite::params;

use super::{Durable, Outcome, Store, now_ms};

impl Store {
    /// Keeps that the waves after one go on, whatever of it failed or will.
    pub fn ask_proceed(&self, plan: &str, wave: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let sql = "INSERT INTO proceed (plan, wave, at_ms) VALUES (?1, ?2, ?3) ON CONFLICT(plan, wave) DO NOTHING";
            db.execute(sql, params![plan, wave, now_ms()]).map(drop)
        })
    }

    /// The waves of a plan after which others go on, whatever of them failed.
    pub fn proceeds(&self, plan: &str) -> Outcome<Vec<String>> {
        self.rows("SELECT wave FROM proceed WHERE plan = ?1 ORDER BY at_ms, wave", [plan], |row| {
            row.get("wave")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::PlanState;

    #[test]
    fn a_word_is_kept_until_its_plan_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        for wave in ["pilot", "web", "pilot"] {
            store.ask_proceed("p", wave).unwrap();
        }
        store.end_plan("p", PlanState::Incomplete).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        assert_eq!(store.proceeds("p").unwrap(), ["pilot", "web"]);
        assert_eq!(store.proceeds("other").unwrap(), Vec::<String>::new());
        store.end_plan("p", PlanState::Cancelled).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        assert_eq!(store.proceeds("p").unwrap(), Vec::<String>::new());
    }
}
