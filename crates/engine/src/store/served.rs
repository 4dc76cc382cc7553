//! What the daemon keeps: plans that were handed to it with what shall become of them, who ordered what, and rows in pages for
//! those who look.

use std::path::PathBuf;

use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, params};

use super::{Durable, EventRow, Outcome, SampleRow, Store, VmRow, event_row, now_ms, unsigned, vm_row};

/// Points of a chart of rates.
const POINTS_MAX: i64 = 600;

/// A plan that was handed to the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedRow {
    /// Name.
    pub name: String,
    /// Project.
    pub project: String,
    /// Text of the plan file.
    pub text: String,
    /// The file that it is from, or would be in the folder that its paths are relative to.
    pub path: PathBuf,
    /// Whether VMs are started whatever the plan says.
    pub start: bool,
    /// What shall become of it: a word of the daemon's.
    pub wanted: String,
    /// Who handed it in.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Exit code of its last run.
    pub exit: Option<u8>,
    /// Why that failed.
    pub error: Option<String>,
    /// What to try.
    pub advice: Option<String>,
    /// What is wrong with the plan, as a JSON list.
    pub problems: Option<String>,
}

/// An order in the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of the audit log")]
pub struct OrderRow {
    pub id: i64,
    pub at_ms: i64,
    pub who: String,
    pub role: String,
    /// Address that it came from.
    pub origin: String,
    pub project: String,
    pub plan: Option<String>,
    pub vm: Option<String>,
    pub action: String,
    /// State of the plan before.
    pub before: Option<String>,
    /// State of the plan after.
    pub after: Option<String>,
    /// `ok`, `begun`, or why it was refused.
    pub outcome: String,
}

/// VMs of a plan by state and phase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of a count")]
pub struct CountRow {
    pub plan: String,
    pub state: String,
    pub phase: Option<String>,
    pub count: u64,
}

impl Store {
    /// Keeps a plan that was handed in; one of the same name gives way.
    pub fn put_served(&self, row: &ServedRow) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute(
                "INSERT OR REPLACE INTO served VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                params![
                    row.name,
                    row.project,
                    row.text,
                    row.path.to_string_lossy(),
                    row.start,
                    row.wanted,
                    row.by,
                    row.at_ms,
                    row.exit,
                    row.error,
                    row.advice,
                    row.problems,
                ],
            )
        })?;
        Ok(())
    }

    /// Plans that were handed in, the latest first.
    pub fn served(&self) -> Outcome<Vec<ServedRow>> {
        self.rows("SELECT * FROM served ORDER BY at_ms DESC, name", [], served_row)
    }

    /// One of them.
    pub fn served_plan(&self, name: &str) -> Outcome<Option<ServedRow>> {
        Ok(self.rows("SELECT * FROM served WHERE name = ?1", [name], served_row)?.pop())
    }

    /// Writes an order down before it is carried out; gives its number.
    pub fn add_order(&self, row: &OrderRow) -> Outcome<i64> {
        self.change(Durable::Now, |db| {
            db.execute(
                "INSERT INTO orders (at_ms, who, role, origin, project, plan, vm, action, before, outcome)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'begun')",
                params![
                    now_ms(),
                    row.who,
                    row.role,
                    row.origin,
                    row.project,
                    row.plan,
                    row.vm,
                    row.action,
                    row.before
                ],
            )?;
            Ok(db.last_insert_rowid())
        })
    }

    /// Writes down how an order ended.
    pub fn end_order(&self, id: i64, after: Option<&str>, outcome: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute(
                "UPDATE orders SET after = ?2, outcome = ?3 WHERE id = ?1",
                params![id, after, outcome],
            )
        })?;
        Ok(())
    }

    /// Orders, the latest first, before one.
    pub fn orders(&self, before: Option<i64>, limit: usize) -> Outcome<Vec<OrderRow>> {
        let sql = "SELECT * FROM orders WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
        self.rows(sql, params![before.unwrap_or(i64::MAX), limit as i64], |row| {
            Ok(OrderRow {
                id: row.get("id")?,
                at_ms: row.get("at_ms")?,
                who: row.get("who")?,
                role: row.get("role")?,
                origin: row.get("origin")?,
                project: row.get("project")?,
                plan: row.get("plan")?,
                vm: row.get("vm")?,
                action: row.get("action")?,
                before: row.get("before")?,
                after: row.get("after")?,
                outcome: row.get("outcome")?,
            })
        })
    }

    /// VMs of all plans by state and phase.
    pub fn vm_counts(&self) -> Outcome<Vec<CountRow>> {
        self.rows("SELECT plan, state, phase, count(*) AS n FROM vm GROUP BY plan, state, phase", [], |row| {
            let (plan, state, phase) = (row.get("plan")?, row.get("state")?, row.get("phase")?);
            Ok(CountRow { plan, state, phase, count: unsigned(row, "n")?.unwrap_or(0) })
        })
    }

    /// VMs of a plan after a number, with theirs; `state` and a part of the name narrow it down.
    pub fn vms_after(
        &self,
        plan: &str,
        after: i64,
        limit: usize,
        state: Option<&str>,
        search: Option<&str>,
    ) -> Outcome<Vec<(i64, VmRow)>> {
        let sql =
            "SELECT rowid AS number, * FROM vm WHERE plan = ?1 AND rowid > ?2 AND (?4 IS NULL OR state = ?4)
                   AND (?5 IS NULL OR instr(lower(name), lower(?5)) > 0) ORDER BY rowid LIMIT ?3";
        self.rows(sql, params![plan, after, limit as i64, state, search], |row| {
            Ok((row.get("number")?, vm_row(row)?))
        })
    }

    /// Events of a plan after a number, with theirs.
    pub fn events_after(&self, plan: &str, after: i64, limit: usize) -> Outcome<Vec<(i64, EventRow)>> {
        let sql = "SELECT * FROM event WHERE plan = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
        self.rows(sql, params![plan, after, limit as i64], |row| Ok((row.get("id")?, event_row(row)?)))
    }

    /// Samples of a plan for a chart: the last of each of a bounded number of stretches of time.
    pub fn samples_for_chart(&self, plan: &str) -> Outcome<Vec<SampleRow>> {
        let bounds = self.read(|db| {
            let sql = "SELECT min(at_ms), max(at_ms) FROM sample WHERE plan = ?1";
            db.query_row(sql, [plan], |row| {
                Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?))
            })
            .optional()
        })?;
        let Some((Some(first), Some(last))) = bounds else { return Ok(Vec::new()) };
        let step = ((last - first) / POINTS_MAX).max(1);
        let sql = "SELECT max(at_ms) AS at_ms, read_bytes, written_bytes, disks FROM sample WHERE plan = ?1
                   GROUP BY (at_ms - ?2) / ?3 ORDER BY 1";
        self.rows(sql, params![plan, first, step], |row| {
            Ok(SampleRow {
                at_ms: row.get("at_ms")?,
                read_bytes: unsigned(row, "read_bytes")?.unwrap_or(0),
                written_bytes: unsigned(row, "written_bytes")?.unwrap_or(0),
                disks: unsigned(row, "disks")?.unwrap_or(0),
            })
        })
    }
}

fn served_row(row: &Row<'_>) -> rusqlite::Result<ServedRow> {
    let exit: Option<i64> = row.get("exit")?;
    let exit = exit
        .map(u8::try_from)
        .transpose()
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, error.into()))?;
    Ok(ServedRow {
        name: row.get("name")?,
        project: row.get("project")?,
        text: row.get("text")?,
        path: PathBuf::from(row.get::<_, String>("path")?),
        start: row.get("start")?,
        wanted: row.get("wanted")?,
        by: row.get("handed_by")?,
        at_ms: row.get("at_ms")?,
        exit,
        error: row.get("error")?,
        advice: row.get("advice")?,
        problems: row.get("problems")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_served_plan_and_the_orders_about_it_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let row =
            ServedRow { name: "p".into(), wanted: "run".into(), exit: Some(130), ..ServedRow::default() };
        let store = Store::open(folder.path()).unwrap();
        store.put_served(&ServedRow { exit: None, ..row.clone() }).unwrap();
        store.put_served(&row).unwrap();
        let order = OrderRow { who: "ann".into(), action: "pause".into(), ..OrderRow::default() };
        let ids = [0, 1, 2].map(|_| store.add_order(&order).unwrap());
        store.end_order(ids[0], Some("paused"), "ok").unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.served().unwrap(), std::slice::from_ref(&row));
        assert_eq!(store.served_plan("p").unwrap(), Some(row));
        let page = store.orders(None, 2).unwrap();
        assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[2], ids[1]]);
        assert_eq!(page[0].outcome, "begun");
        let last = store.orders(Some(ids[1]), 2).unwrap();
        assert_eq!(
            (last.len(), last[0].outcome.as_str(), last[0].after.as_deref()),
            (1, "ok", Some("paused"))
        );
    }

    #[test]
    fn a_plan_that_is_begun_has_no_failure_of_the_daemons_last_try_left() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let served = |name: &str| ServedRow { name: name.into(), exit: Some(3), ..ServedRow::default() };
        let failed = |name: &str| ServedRow {
            error: Some("the plan has errors; nothing was touched".into()),
            advice: Some("mend them".into()),
            problems: Some("[]".into()),
            ..served(name)
        };
        for name in ["p", "q"] {
            store.put_served(&failed(name)).unwrap();
        }
        store.begin_plan("p", "", folder.path()).unwrap();
        assert_eq!(store.served_plan("p").unwrap(), Some(served("p")));
        assert_eq!(store.served_plan("q").unwrap(), Some(failed("q")), "another plan's stays");
    }

    #[test]
    fn vms_and_events_come_in_pages_without_gap_or_overlap() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", folder.path()).unwrap();
        let names: Vec<String> = (0..25).map(|number| format!("Web{number:02}")).collect();
        let rows: Vec<_> =
            names.iter().map(|name| (name.as_str(), name.as_str(), "{}".to_string())).collect();
        store.enter_vms("p", rows).unwrap();
        let (mut seen, mut after) = (Vec::new(), 0);
        loop {
            let page = store.vms_after("p", after, 10, None, None).unwrap();
            let Some((last, _)) = page.last() else { break };
            after = *last;
            seen.extend(page.into_iter().map(|(_, vm)| vm.name));
        }
        assert_eq!(seen, names);
        let found = store.vms_after("p", 0, 100, Some("queued"), Some("eb1")).unwrap();
        assert_eq!(found.len(), 10);
        assert!(store.vms_after("p", 0, 100, Some("done"), None).unwrap().is_empty());
        assert_eq!(store.vm_counts().unwrap()[0].count, 25);
        for _ in 0..5 {
            store.add_event("p", None, None, "note", "x").unwrap();
        }
        let first = store.events_after("p", 0, 3).unwrap();
        assert_eq!(store.events_after("p", first[2].0, 3).unwrap().len(), 2);
    }

    #[test]
    fn a_chart_of_a_long_run_has_a_bounded_number_of_points() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", folder.path()).unwrap();
        assert!(store.samples_for_chart("p").unwrap().is_empty());
        let add = |at: i64| {
            store.change(Durable::WithTheNext, |db| {
                db.execute("INSERT INTO sample VALUES ('p', ?1, ?2, 0, 1)", params![at * 500, at])
            })
        };
        for at in 0..5_000 {
            add(at).unwrap();
        }
        let points = store.samples_for_chart("p").unwrap();
        assert!((500..=POINTS_MAX as usize + 1).contains(&points.len()), "{}", points.len());
        assert_eq!(points.last().unwrap().at_ms, 4_999 * 500);
        assert!(points.windows(2).all(|pair| pair[0].at_ms < pair[1].at_ms));
    }
}
