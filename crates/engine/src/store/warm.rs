//! What the store keeps of warm migrations.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::{Durable, Outcome, Store, state, unsigned, word};

/// What a pass was meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassKind {
    /// The first: everything.
    Full,
    /// What changed since the last one.
    Delta,
    /// All is read, and what differs is written.
    HashDiff,
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassState {
    /// Begun; if nothing runs it, it was interrupted.
    Begun,
    /// All disks are on the target.
    Complete,
    /// Given up; it is done again.
    Failed,
}

/// A pass over a VM's disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassRow {
    /// The source's id of the VM.
    pub vm: String,
    /// From 1; one that is done again keeps its number.
    pub number: u32,
    /// What it was meant to be.
    pub kind: PassKind,
    /// How far it is.
    pub state: PassState,
    /// Why it was a hash diff, or failed.
    pub why: Option<String>,
    /// The snapshot it read.
    pub snapshot: Option<String>,
    /// Begin, in milliseconds since 1970.
    pub began_ms: i64,
    /// When its snapshot stood.
    pub frozen_ms: Option<i64>,
    /// When the copying began.
    pub copying_ms: Option<i64>,
    /// End of the copying.
    pub ended_ms: Option<i64>,
    /// Bytes that the source said had changed.
    pub areas_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes that had changed indeed.
    pub changed_bytes: u64,
    /// Blocks compared that the source called unchanged.
    pub audited_blocks: u64,
    /// Of these, the ones that had changed.
    pub mismatches: u64,
}

impl PassRow {
    /// A pass that begins.
    pub fn begin(vm: &str, number: u32, began_ms: i64) -> PassRow {
        PassRow {
            vm: vm.into(),
            number,
            kind: if number == 1 { PassKind::Full } else { PassKind::Delta },
            state: PassState::Begun,
            why: None,
            snapshot: None,
            began_ms,
            frozen_ms: None,
            copying_ms: None,
            ended_ms: None,
            areas_bytes: 0,
            read_bytes: 0,
            changed_bytes: 0,
            audited_blocks: 0,
            mismatches: 0,
        }
    }
}

/// A disk as the last completed pass found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackedRow {
    /// The source's key of the disk.
    pub disk: i32,
    /// Change id of what was copied; absent if the disk was not tracked.
    pub change_id: Option<String>,
    /// Datastore.
    pub datastore: String,
    /// Path of the backing before the snapshot.
    pub path: String,
    /// What tells the disk from another of its key; empty if not told.
    pub uuid: String,
    /// Capacity in bytes.
    pub capacity: u64,
}

/// How long a VM is down, by forecast and in fact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downtime {
    /// Predicted, in milliseconds.
    pub forecast_ms: u64,
    /// The least that is likely.
    pub low_ms: u64,
    /// The most that is likely.
    pub high_ms: u64,
    /// The time that the guest takes to shut down is not in it: none was ever seen doing so.
    pub without_shutdown: bool,
    /// Nor is the time that the machine takes to start.
    pub without_start: bool,
}

/// What is kept of a warm VM besides its passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmRow {
    /// Whether `drover cutover` was said.
    pub cutover_asked: bool,
    /// Whether the guest was converted or started at the target, which may have changed the images.
    pub replica_touched: bool,
    /// Host that ran the VM at the last completed pass.
    pub host: Option<String>,
    /// Why change tracking is not believed any more.
    pub distrust: Option<String>,
    /// Advice found on the way.
    pub hint: Option<String>,
    /// When the next pass begins.
    pub next_ms: Option<i64>,
    /// Whether drover switched change tracking on, and has not switched it off again.
    pub tracking_on: bool,
    /// The plan's moment for the cutover, in milliseconds since 1970, if that was tried and undone.
    pub moment_tried_ms: Option<i64>,
    /// Why the cutover began.
    pub reason: Option<String>,
    /// The latest forecast; once the cutover has begun, the one it began with.
    pub forecast: Option<Downtime>,
    /// When the shutdown began.
    pub down_ms: Option<i64>,
    /// When the target was seen running, or could be started where that is left to somebody else.
    pub up_ms: Option<i64>,
}

impl WarmRow {
    /// Milliseconds from the shutdown to a target that was started or could be, if the VM has moved over.
    pub fn ready_ms(&self) -> Option<u64> {
        Some(self.up_ms?.saturating_sub(self.down_ms?).max(0) as u64)
    }
}

impl Store {
    /// What is kept of a warm VM; all empty if there is nothing.
    pub fn warm(&self, plan: &str, vm: &str) -> Outcome<WarmRow> {
        let rows = self.rows("SELECT * FROM warm WHERE plan = ?1 AND vm = ?2", [plan, vm], warm_row)?;
        Ok(rows.into_iter().next().unwrap_or_default())
    }

    /// Asks for the cutover of one VM by its name, or of all that have not arrived; gives their names.
    pub fn ask_cutover(&self, plan: &str, name: Option<&str>) -> Outcome<Vec<String>> {
        let sql = "SELECT id, name FROM vm WHERE plan = ?1 AND state NOT IN ('done', 'not_cleaned_up') AND (?2 IS NULL OR name = ?2) ORDER BY rowid";
        let vms = self.rows(sql, params![plan, name], |row| {
            Ok((row.get::<_, String>("id")?, row.get::<_, String>("name")?))
        })?;
        for (id, _) in &vms {
            self.set_warm(Durable::Now, plan, id, "cutover_asked = 1", &[])?;
        }
        Ok(vms.into_iter().map(|(_, name)| name).collect())
    }

    /// Whether the cutover of a VM was asked for.
    pub fn cutover_asked(&self, plan: &str, vm: &str) -> Outcome<bool> {
        let asked = self.read(|db| {
            let sql = "SELECT cutover_asked FROM warm WHERE plan = ?1 AND vm = ?2";
            db.query_row(sql, [plan, vm], |row| row.get::<_, bool>(0)).optional()
        })?;
        Ok(asked.unwrap_or(false))
    }

    /// Ids of VMs of a plan whose cutover was asked for, or has begun.
    pub fn cutovers_ordered(&self, plan: &str) -> Outcome<BTreeSet<String>> {
        let sql = "SELECT vm FROM warm WHERE plan = ?1 AND (cutover_asked OR down_ms IS NOT NULL)";
        Ok(self.rows(sql, [plan], |row| row.get("vm"))?.into_iter().collect())
    }

    /// Records when the next pass is to begin, and what a cutover would take now.
    pub fn set_next_pass(
        &self,
        plan: &str,
        vm: &str,
        next_ms: Option<i64>,
        forecast: Option<Downtime>,
    ) -> Outcome<()> {
        let lacks = forecast.map(|it| i64::from(it.without_shutdown) + 2 * i64::from(it.without_start));
        let forecast = forecast.map(|it| [it.forecast_ms, it.low_ms, it.high_ms].map(|ms| ms as i64));
        let part = |at: usize| forecast.map(|it| it[at]);
        self.set_warm(
            Durable::WithTheNext,
            plan,
            vm,
            "next_ms = ?3, forecast_ms = ?4, forecast_low_ms = ?5, forecast_high_ms = ?6, forecast_lacks = ?7",
            &[&next_ms, &part(0), &part(1), &part(2), &lacks],
        )
    }

    /// What whole forecasts of the latest VMs that moved over were off by in seconds, of those that were started there or
    /// of those that were not; the latest last.
    pub fn forecast_errors(&self, started: bool, most: usize) -> Outcome<Vec<f64>> {
        let sql = "SELECT warm.up_ms - warm.down_ms - forecast_ms FROM warm JOIN vm ON vm.plan = warm.plan AND vm.id = warm.vm
                   WHERE warm.up_ms IS NOT NULL AND warm.down_ms IS NOT NULL AND forecast_lacks = 0
                   AND (vm.started IS NOT NULL) = ?1 ORDER BY warm.up_ms DESC LIMIT ?2";
        let mut latest = self.rows(sql, params![started, most as i64], |row| row.get::<_, i64>(0))?;
        latest.reverse();
        Ok(latest.into_iter().map(|ms| ms as f64 / 1000.0).collect())
    }

    /// Records why the cutover begins.
    pub fn set_cutover_reason(&self, plan: &str, vm: &str, reason: &str) -> Outcome<()> {
        self.set_warm(Durable::Now, plan, vm, "reason = ?3, next_ms = NULL", &[&reason])
    }

    /// Records at once that drover switches a VM off, when its downtime began, unless it had begun before, and that
    /// the cutover that was asked for is under way. One that is asked for later is another.
    pub fn begin_downtime(&self, plan: &str, vm: &str, at_ms: i64) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let set = "down_ms = COALESCE(down_ms, ?3), up_ms = NULL, cutover_asked = 0";
            set_warm(db, plan, vm, set, &[&at_ms])?;
            db.execute("UPDATE vm SET switched_off = 1 WHERE plan = ?1 AND id = ?2", [plan, vm]).map(drop)
        })
    }

    /// Records that the cutover that was asked for is under way.
    pub fn take_cutover(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.set_warm(Durable::WithTheNext, plan, vm, "cutover_asked = 0", &[])
    }

    /// Records when the target ran.
    pub fn set_up(&self, plan: &str, vm: &str, at_ms: i64) -> Outcome<()> {
        self.set_warm(Durable::WithTheNext, plan, vm, "up_ms = ?3", &[&at_ms])
    }

    /// Records that a cutover was undone. The moment that the plan sets, if any, does not count any more; a cutover
    /// that was asked for since does.
    pub fn undo_cutover(&self, plan: &str, vm: &str, moment_ms: Option<i64>) -> Outcome<()> {
        let set = "down_ms = NULL, up_ms = NULL, reason = NULL, \
                   moment_tried_ms = COALESCE(?3, moment_tried_ms)";
        self.set_warm(Durable::Now, plan, vm, set, &[&moment_ms])
    }

    /// Records whether the images may hold something else than was copied.
    pub fn set_replica_touched(&self, plan: &str, vm: &str, touched: bool) -> Outcome<()> {
        self.set_warm(Durable::Now, plan, vm, "replica_touched = ?3", &[&touched])
    }

    /// Records whether change tracking is on because drover switched it on.
    pub fn set_tracking_on(&self, plan: &str, vm: &str, on: bool) -> Outcome<()> {
        self.set_warm(Durable::Now, plan, vm, "tracking_on = ?3", &[&on])
    }

    /// Records why change tracking is not believed any more.
    pub fn set_distrust(&self, plan: &str, vm: &str, why: &str) -> Outcome<()> {
        self.set_warm(Durable::Now, plan, vm, "distrust = ?3", &[&why])
    }

    /// Records advice.
    pub fn set_hint(&self, plan: &str, vm: &str, hint: Option<&str>) -> Outcome<()> {
        self.set_warm(Durable::WithTheNext, plan, vm, "hint = ?3", &[&hint])
    }

    /// Forgets all passes of a VM and what went with them.
    pub fn forget_warm(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| give_up(db, plan, vm))
    }

    /// Forgets all passes of a VM, but not what was found out about it or asked for.
    pub fn forget_passes(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("DELETE FROM tracked WHERE plan = ?1 AND vm = ?2", [plan, vm])?;
            db.execute("DELETE FROM pass WHERE plan = ?1 AND vm = ?2", [plan, vm])?;
            let sql =
                "UPDATE warm SET host = NULL, hint = NULL, replica_touched = 0 WHERE plan = ?1 AND vm = ?2";
            db.execute(sql, [plan, vm]).map(drop)
        })
    }

    /// Forgets since when changes are known: until the next pass is complete, nobody knows what changed.
    pub fn forget_change_ids(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE tracked SET change_id = NULL WHERE plan = ?1 AND vm = ?2", [plan, vm])
        })?;
        Ok(())
    }

    /// Writes what is known of a pass.
    pub fn put_pass(&self, plan: &str, pass: &PassRow) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| put_pass(db, plan, pass))
    }

    /// Records a pass as complete, together with what the next one is asked from, or nothing of both.
    pub fn complete_pass(&self, plan: &str, pass: &PassRow, host: &str, disks: &[TrackedRow]) -> Outcome<()> {
        let pass = PassRow { state: PassState::Complete, ..pass.clone() };
        self.begin_from(plan, &pass, host, disks)
    }

    /// Records what the next try or the next pass is asked from. The first pass says so as soon as its
    /// snapshot stands: should it be interrupted, what is on the target need not be read again.
    pub fn begin_from(&self, plan: &str, pass: &PassRow, host: &str, disks: &[TrackedRow]) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            put_pass(db, plan, pass)?;
            db.execute("DELETE FROM tracked WHERE plan = ?1 AND vm = ?2", [plan, &pass.vm])?;
            for it in disks {
                let (id, capacity) = (&it.change_id, it.capacity as i64);
                db.execute(
                    "INSERT INTO tracked VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![plan, pass.vm, it.disk, id, it.datastore, it.path, it.uuid, capacity],
                )?;
            }
            db.execute(
                "INSERT INTO warm (plan, vm, host) VALUES (?1, ?2, ?3) ON CONFLICT(plan, vm) DO UPDATE SET host = ?3",
                params![plan, pass.vm, host],
            )
            .map(drop)
        })
    }

    /// Disks as the last completed pass found them.
    pub fn tracked(&self, plan: &str, vm: &str) -> Outcome<Vec<TrackedRow>> {
        self.rows("SELECT * FROM tracked WHERE plan = ?1 AND vm = ?2", [plan, vm], |row| {
            Ok(TrackedRow {
                disk: row.get("disk_key")?,
                change_id: row.get("change_id")?,
                datastore: row.get("datastore")?,
                path: row.get("path")?,
                uuid: row.get("uuid")?,
                capacity: unsigned(row, "capacity")?.unwrap_or(0),
            })
        })
    }

    /// Passes of a plan, those of a VM in order.
    pub fn passes(&self, plan: &str) -> Outcome<Vec<PassRow>> {
        self.rows("SELECT * FROM pass WHERE plan = ?1 ORDER BY vm, number", [plan], pass_row)
    }

    /// Passes of a VM in order.
    pub fn passes_of(&self, plan: &str, vm: &str) -> Outcome<Vec<PassRow>> {
        let sql = "SELECT * FROM pass WHERE plan = ?1 AND vm = ?2 ORDER BY number";
        self.rows(sql, [plan, vm], pass_row)
    }

    /// Sets columns of a VM's row, which is made if it is not there. Values begin with `?3`.
    fn set_warm(
        &self,
        durable: Durable,
        plan: &str,
        vm: &str,
        set: &str,
        values: &[&dyn rusqlite::ToSql],
    ) -> Outcome<()> {
        self.change(durable, |db| set_warm(db, plan, vm, set, values))
    }
}

/// Forgets all about the passes of a VM but that change tracking is on, which is still to be undone.
pub(super) fn give_up(db: &rusqlite::Connection, plan: &str, vm: &str) -> rusqlite::Result<()> {
    let sql = "SELECT coalesce(max(tracking_on), 0) FROM warm WHERE plan = ?1 AND vm = ?2";
    let tracking_on: bool = db.query_row(sql, [plan, vm], |row| row.get(0))?;
    for table in ["warm", "tracked", "pass"] {
        db.execute(&format!("DELETE FROM {table} WHERE plan = ?1 AND vm = ?2"), [plan, vm])?;
    }
    if tracking_on { set_warm(db, plan, vm, "tracking_on = ?3", &[&true]) } else { Ok(()) }
}

fn set_warm(
    db: &rusqlite::Connection,
    plan: &str,
    vm: &str,
    set: &str,
    values: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<()> {
    db.execute("INSERT OR IGNORE INTO warm (plan, vm) VALUES (?1, ?2)", [plan, vm])?;
    let mut all: Vec<&dyn rusqlite::ToSql> = vec![&plan, &vm];
    all.extend(values);
    let sql = format!("UPDATE warm SET {set} WHERE plan = ?1 AND vm = ?2");
    db.execute(&sql, all.as_slice()).map(drop)
}

fn put_pass(db: &rusqlite::Connection, plan: &str, pass: &PassRow) -> rusqlite::Result<()> {
    db.execute(
        "INSERT OR REPLACE INTO pass VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        params![
            plan,
            pass.vm,
            pass.number,
            word(&pass.kind),
            word(&pass.state),
            pass.why,
            pass.snapshot,
            pass.began_ms,
            pass.frozen_ms,
            pass.copying_ms,
            pass.ended_ms,
            pass.areas_bytes as i64,
            pass.read_bytes as i64,
            pass.changed_bytes as i64,
            pass.audited_blocks as i64,
            pass.mismatches as i64,
        ],
    )?;
    Ok(())
}

fn pass_row(row: &Row<'_>) -> rusqlite::Result<PassRow> {
    let bytes = |column: &str| Ok::<u64, rusqlite::Error>(unsigned(row, column)?.unwrap_or(0));
    Ok(PassRow {
        vm: row.get("vm")?,
        number: row.get("number")?,
        kind: state(row, "kind")?,
        state: state(row, "state")?,
        why: row.get("why")?,
        snapshot: row.get("snapshot")?,
        began_ms: row.get("began_ms")?,
        frozen_ms: row.get("frozen_ms")?,
        copying_ms: row.get("copying_ms")?,
        ended_ms: row.get("ended_ms")?,
        areas_bytes: bytes("areas_bytes")?,
        read_bytes: bytes("read_bytes")?,
        changed_bytes: bytes("changed_bytes")?,
        audited_blocks: bytes("audited_blocks")?,
        mismatches: bytes("mismatches")?,
    })
}

fn warm_row(row: &Row<'_>) -> rusqlite::Result<WarmRow> {
    let lacks = unsigned(row, "forecast_lacks")?.unwrap_or(0);
    let forecast = match unsigned(row, "forecast_ms")? {
        Some(forecast_ms) => Some(Downtime {
            forecast_ms,
            low_ms: unsigned(row, "forecast_low_ms")?.unwrap_or(forecast_ms),
            high_ms: unsigned(row, "forecast_high_ms")?.unwrap_or(forecast_ms),
            without_shutdown: lacks & 1 != 0,
            without_start: lacks & 2 != 0,
        }),
        None => None,
    };
    Ok(WarmRow {
        cutover_asked: row.get("cutover_asked")?,
        replica_touched: row.get("replica_touched")?,
        host: row.get("host")?,
        distrust: row.get("distrust")?,
        hint: row.get("hint")?,
        next_ms: row.get("next_ms")?,
        tracking_on: row.get("tracking_on")?,
        moment_tried_ms: row.get("moment_tried_ms")?,
        reason: row.get("reason")?,
        forecast,
        down_ms: row.get("down_ms")?,
        up_ms: row.get("up_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::VmState;

    #[test]
    fn a_pass_and_its_change_ids_are_kept_together_and_survive_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let tracked =
            |id: &str| TrackedRow { disk: 2000, change_id: Some(id.into()), ..TrackedRow::default() };
        let mut pass = PassRow { areas_bytes: 1 << 40, ..PassRow::begin("vm-1", 1, 5) };
        store.put_pass("p", &pass).unwrap();
        assert_eq!(store.tracked("p", "vm-1").unwrap(), []);
        store.complete_pass("p", &pass, "host-1", &[tracked("a/1")]).unwrap();
        store.complete_pass("p", &PassRow::begin("vm-1", 2, 7), "host-2", &[tracked("a/2")]).unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.tracked("p", "vm-1").unwrap(), [tracked("a/2")]);
        assert_eq!(store.warm("p", "vm-1").unwrap().host.as_deref(), Some("host-2"));
        pass.state = PassState::Complete;
        let passes = store.passes("p").unwrap();
        assert_eq!((passes.len(), &passes[0], passes[1].kind), (2, &pass, PassKind::Delta));
        store.forget_warm("p", "vm-1").unwrap();
        assert_eq!((store.passes("p").unwrap(), store.tracked("p", "vm-1").unwrap()), (vec![], vec![]));
        assert_eq!(store.warm("p", "vm-1").unwrap(), WarmRow::default());
    }

    #[test]
    fn a_cutover_is_asked_of_one_vm_or_of_all_that_have_not_arrived() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        ["a", "b", "c"].iter().for_each(|id| store.enter_vm("p", id, id, "{}").unwrap());
        store.end_vm("p", "a", VmState::Done, None).unwrap();
        assert_eq!(store.ask_cutover("p", Some("b")).unwrap(), ["b"]);
        assert_eq!(["a", "b", "c"].map(|vm| store.cutover_asked("p", vm).unwrap()), [false, true, false]);
        assert_eq!(store.ask_cutover("p", None).unwrap(), ["b", "c"]);
        assert_eq!(store.ask_cutover("p", Some("x")).unwrap(), Vec::<String>::new());
        let ordered = |ids: &[&str]| ids.iter().map(|id| id.to_string()).collect::<BTreeSet<_>>();
        assert_eq!(store.cutovers_ordered("p").unwrap(), ordered(&["b", "c"]));
        // An undone cutover has to be asked for again.
        store.begin_downtime("p", "b", 5).unwrap();
        assert_eq!(store.cutovers_ordered("p").unwrap(), ordered(&["b", "c"]), "it is under way");
        assert!(store.warm("p", "b").unwrap().down_ms.is_some());
        store.undo_cutover("p", "b", Some(77)).unwrap();
        store.undo_cutover("p", "b", None).unwrap();
        assert_eq!(store.warm("p", "b").unwrap().moment_tried_ms, Some(77));
        assert!(!store.cutover_asked("p", "b").unwrap());
    }

    #[test]
    fn a_forecast_and_the_real_downtime_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let forecast = Downtime {
            forecast_ms: 9000,
            low_ms: 5000,
            high_ms: 20_000,
            without_shutdown: true,
            without_start: false,
        };
        store.set_next_pass("p", "v", Some(77), Some(forecast)).unwrap();
        let row = store.warm("p", "v").unwrap();
        assert_eq!((row.next_ms, row.forecast, row.ready_ms()), (Some(77), Some(forecast), None));
        store.begin_downtime("p", "v", 1000).unwrap();
        store.begin_downtime("p", "v", 5000).unwrap();
        store.set_up("p", "v", 9000).unwrap();
        assert_eq!(store.warm("p", "v").unwrap().ready_ms(), Some(8000), "from the first shutdown on");
    }
}
