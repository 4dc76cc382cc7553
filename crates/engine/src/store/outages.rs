//! Whether the source of a plan that runs answers.

use rusqlite::params;

use super::{Durable, Outcome, Store, VmState, add_event, word};

const AWAY: &str = "away";
const BACK: &str = "back";

impl Store {
    /// Notes that the source of a plan does not answer: what of it, and why.
    pub(crate) fn add_source_away(&self, plan: &str, what: &str) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| add_event(db, plan, None, None, AWAY, what))
    }

    /// Notes that it answers again.
    pub(crate) fn add_source_back(&self, plan: &str, text: &str) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| add_event(db, plan, None, None, BACK, text))
    }

    /// What of the source does not answer, and why, by the latest word of the plan's run.
    pub(crate) fn source_away(&self, plan: &str) -> Outcome<Option<String>> {
        let query = "SELECT kind, text FROM event WHERE plan = ?1 AND vm IS NULL AND kind IN (?2, ?3)
             ORDER BY id DESC LIMIT 1";
        let latest = self.rows(query, params![plan, AWAY, BACK], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })?;
        Ok(latest.into_iter().next().filter(|(kind, _)| kind == AWAY).map(|(_, what)| what))
    }

    /// Ids of the VMs of a plan that are at work.
    pub(super) fn at_work(&self, plan: &str) -> Outcome<Vec<String>> {
        let query = "SELECT id FROM vm WHERE plan = ?1 AND state = ?2 ORDER BY id";
        self.rows(query, params![plan, word(&VmState::Running)], |row| row.get(0))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn vms_at_work_wait_for_a_source_that_is_away_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let planned = String::new;
        store.enter_vms("p", [("vm-1", "a", planned()), ("vm-2", "b", planned())]).unwrap();
        store.enter_phase("p", "vm-1", "copy").unwrap();
        assert_eq!(store.waits("p").unwrap(), []);
        store.add_source_away("p", "vc.lab:443: HTTP 503").unwrap();
        assert_eq!(store.waits("p").unwrap(), [("vm-1".into(), "vc.lab:443: HTTP 503".into())]);
        store.add_source_back("p", "it answers again").unwrap();
        assert_eq!((store.waits("p").unwrap(), store.source_away("p").unwrap()), (vec![], None));
    }
}
