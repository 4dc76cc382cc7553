//! The state of all plans, in one SQLite file.
//!
//! Every change is a transaction of its own. What decides how a run goes on after a crash - phases, what drover did
//! to the source, change ids - is durable when the call returns; changes of many VMs share their flushes. Events,
//! samples and other words for the report ride along with the next of these: a power cut may take the last ones,
//! the end of the process takes none. Bytes are kept as the 64-bit integers SQLite has; no disk is larger than 2^63
//! bytes.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

pub(crate) use self::hooks::{Around, Called, wave_key};
pub use self::hooks::{HookRow, WaveCall};
use self::limits::forget_limits;
pub use self::progress::{ProgressRow, SampleRow};
pub use self::rehearsals::{RehearsalResult, RehearsalRow, RehearsedCheck};
pub use self::rows::{DiskRow, EventRow, PlanRow, PlanState, VmRow, VmState};
use self::rows::{disk_row, event_row, plan_row, state, unsigned, vm_row, word};
pub use self::runs::{
    ForecastError, Foreseen, ForeseenEnds, ForeseenNow, ForeseenVm, KnownRates, RunFacts, RunRow,
};
use self::schema::{SCHEMA_VERSION, open_database};
pub use self::served::{CountRow, OrderRow, ServedRow};
use self::sync::LogSync;
pub use self::warm::{Downtime, PassKind, PassRow, PassState, TrackedRow, WarmRow};
use crate::phase::Phase;

mod attached;
mod give_ups;
mod hooks;
mod limits;
mod outages;
mod progress;
mod read;
mod rehearsals;
mod retries;
mod rows;
mod runs;
mod schema;
mod served;
mod sync;
mod warm;
mod waves;

/// The store could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("state in {}", path.display())]
pub struct StoreError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: StoreFault,
}

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// SQLite says.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The file system says.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A later drover made it.
    #[error("it has schema {0}, made by a later drover; this one knows {SCHEMA_VERSION}")]
    Newer(i64),
    /// Somebody removed it, or put another in its place, while it was in use.
    #[error("it was removed or replaced while this run used it")]
    Gone,
    /// A value in it makes no sense.
    #[error("{0}")]
    Value(String),
}

impl StoreError {
    /// What to try.
    pub fn advice(&self) -> &'static str {
        use rusqlite::ErrorCode as E;
        const WRITABLE: &str = "give a folder that can be written with --state";
        match &self.source {
            StoreFault::Newer(_) => "use the drover that made it, or give another folder with --state",
            StoreFault::Gone => {
                "see who removes drover's state and put it back; without it, `drover migrate` with the plan's file goes on with \
                 the images, and the source may have drover's snapshots"
            }
            StoreFault::Value(_) => DAMAGED,
            StoreFault::Io(error)
                if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                MAKE_ROOM
            }
            StoreFault::Io(_) => WRITABLE,
            StoreFault::Sqlite(error) => match error.sqlite_error_code() {
                Some(E::NotADatabase | E::DatabaseCorrupt | E::TypeMismatch) => DAMAGED,
                Some(E::DiskFull) => MAKE_ROOM,
                Some(E::DatabaseBusy | E::DatabaseLocked | E::FileLockingProtocolFailed) => {
                    "another program holds it for long; see who has it open, then try again"
                }
                Some(_) => WRITABLE,
                None => DAMAGED,
            },
        }
    }
}

const MAKE_ROOM: &str = "make room on its file system";
const DAMAGED: &str = "it is damaged: put back a copy of it; or move it away, and `drover migrate` with the plan's file goes on \
                       with the images (look at the source for drover's snapshots, and for VMs it switched off)";

/// The store.
#[derive(Debug)]
pub struct Store {
    connection: Mutex<Connection>,
    path: PathBuf,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
    log: LogSync,
    /// Somebody held it for as long as it is waited for. Until it is free again nobody waits that long: a run that has to end
    /// makes many calls.
    is_held: AtomicBool,
    /// A lock could not be had or given back in the ten seconds that SQLite itself tries for, at each call. It stays so for this
    /// process: no call tries again.
    is_stuck: AtomicBool,
    /// A copy of a store that this user may only read.
    copy: Option<read::Copy>,
}

/// Whether a change has to outlast a power cut when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durable {
    /// It is waited for.
    Now,
    /// It rides along with the next that is waited for.
    WithTheNext,
}

type Outcome<T> = Result<T, StoreError>;

const FILE: &str = "drover.db";
/// How long others are waited for who hold the store.
const BUSY_WAIT: Duration = Duration::from_secs(10);
/// The same once one of them held it for longer.
const HELD_WAIT: Duration = Duration::from_millis(250);

// What is asked about one VM, by plan and id. Each is asked for every VM of a plan, so none may look at the others.
const VM: &str = "SELECT * FROM vm WHERE plan = ?1 AND id = ?2";
const IN_OTHER_PLANS: &str = "SELECT * FROM vm WHERE id = ?2 AND plan <> ?1";
const ALL_IN_OTHER_PLANS: &str =
    "SELECT * FROM vm WHERE id IN (SELECT value FROM json_each(?2)) AND plan <> ?1 ORDER BY plan, rowid";
const DISKS_OF: &str = "SELECT disk.*, read_bytes_all, written_bytes_all
    FROM disk LEFT JOIN disk_sum ON disk_sum.plan = disk.plan AND disk_sum.vm = disk.vm AND disk_sum.number = disk.number
    WHERE disk.plan = ?1 AND disk.vm = ?2 ORDER BY disk.number";
const EVENTS_OF: &str =
    "SELECT at_ms, vm, phase, kind, text FROM event WHERE plan = ?1 AND vm = ?2 ORDER BY id";

/// The kind of an event that says what a VM waits for.
const WAITS: &str = "waits";
/// The kind of an event that says that a VM that was given up is begun anew.
const ANEW: &str = "anew";

impl Store {
    /// Whether there is a store in a folder.
    pub fn is_there(folder: &Path) -> bool {
        folder.join(FILE).is_file()
    }

    /// Opens or makes the store in a folder.
    ///
    /// # Errors
    /// If the folder or file cannot be used, or a later drover made it.
    pub fn open(folder: &Path) -> Outcome<Store> {
        let path = folder.join(FILE);
        let wrap = |source: StoreFault| StoreError { path: path.clone(), source };
        std::fs::create_dir_all(folder).map_err(|error| wrap(error.into()))?;
        let connection = open_database(&path).map_err(wrap)?;
        let file = file_at(&path);
        let (connection, log) = (Mutex::new(connection), LogSync::of(&path));
        Ok(Store {
            connection,
            path,
            file,
            log,
            is_held: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            copy: None,
        })
    }

    /// Whether this is a copy of a store that this user may only read: it does not change.
    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// How often the store was flushed so far.
    pub fn flushes(&self) -> u64 {
        self.log.flushes()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that it lies in, with all that belongs to the state.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Enters a plan for a run by this process; keeps what an earlier run left.
    pub fn begin_plan(&self, name: &str, text: &str, folder: &Path) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            // Words about waves were given about what is over.
            let over = "DELETE FROM proceed WHERE plan IN (SELECT name FROM plan WHERE name = ?1 AND state IN ('done', 'cancelled'))";
            db.execute(over, [name])?;
            db.execute(
                "DELETE FROM give_up WHERE plan IN (SELECT name FROM plan WHERE name = ?1 AND state = 'cancelled')",
                [name],
            )?;
            forget_limits(db, name, text)?;
            // It tries all that failed.
            db.execute("DELETE FROM retry WHERE plan = ?1", [name])?;
            // Why the daemon's last try failed.
            let sql = "UPDATE served SET error = NULL, advice = NULL, problems = NULL WHERE name = ?1";
            db.execute(sql, [name])?;
            db.execute(
                "INSERT INTO plan (name, text, folder, state, pid, started_ms)
                 VALUES (?1, ?2, ?3, 'running', ?4, ?5)
                 ON CONFLICT(name) DO UPDATE SET text = ?2, folder = ?3, state = 'running', pid = ?4, cancel_asked = 0,
                 takes_retries = 0, ended_ms = NULL, started_ms = CASE WHEN state IN ('done', 'cancelled') THEN ?5 ELSE started_ms END",
                params![name, text, folder.to_string_lossy(), std::process::id(), now_ms()],
            )
        })?;
        Ok(())
    }

    /// Forgets all about a plan.
    pub fn remove_plan(&self, name: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("DELETE FROM served WHERE name = ?1", [name])?;
            db.execute("DELETE FROM plan WHERE name = ?1", [name])
        })?;
        Ok(())
    }

    /// Ends a plan.
    pub fn end_plan(&self, name: &str, state: PlanState) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute(
                "UPDATE plan SET state = ?2, pid = NULL, ended_ms = ?3, takes_retries = 0 WHERE name = ?1",
                params![name, word(&state), now_ms()],
            )
        })?;
        Ok(())
    }

    /// Asks whoever runs a plan to stop.
    pub fn ask_cancel(&self, name: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE plan SET cancel_asked = 1 WHERE name = ?1", [name])
        })?;
        Ok(())
    }

    /// Whether a stop was asked for.
    pub fn cancel_asked(&self, name: &str) -> Outcome<bool> {
        let asked = self.read(|db| {
            db.query_row("SELECT cancel_asked FROM plan WHERE name = ?1", [name], |row| row.get::<_, bool>(0))
                .optional()
        })?;
        Ok(asked.unwrap_or(false))
    }

    /// All plans, the latest first.
    pub fn plans(&self) -> Outcome<Vec<PlanRow>> {
        self.rows("SELECT * FROM plan ORDER BY started_ms DESC", [], plan_row)
    }

    /// A plan.
    pub fn plan(&self, name: &str) -> Outcome<Option<PlanRow>> {
        Ok(self.rows("SELECT * FROM plan WHERE name = ?1", [name], plan_row)?.pop())
    }

    /// Enters a VM as queued, unless it is there; then only what is planned is renewed.
    pub fn enter_vm(&self, plan: &str, id: &str, name: &str, planned: &str) -> Outcome<()> {
        self.enter_vms(plan, [(id, name, planned.to_string())])
    }

    /// As [`Store::enter_vm`], of many by id, name and what is planned. Of one that was given up nothing is kept but its events: it
    /// begins anew. What is planned is asked for one VM after the other: all of it together is large.
    pub fn enter_vms<'a>(
        &self,
        plan: &str,
        vms: impl IntoIterator<Item = (&'a str, &'a str, String)>,
    ) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let anew: HashMap<String, String> = db
                .prepare("SELECT id, name FROM vm WHERE plan = ?1 AND state = 'cancelled'")?
                .query_map([plan], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let mut enter = db.prepare(
                "INSERT INTO vm (plan, id, name, state, planned, trace_id)
                 VALUES (?1, ?2, ?3, 'queued', ?4, lower(hex(randomblob(16))))
                 ON CONFLICT(plan, id) DO UPDATE SET name = ?3, planned = ?4,
                 state = CASE WHEN state IN ('done', 'not_cleaned_up') THEN state ELSE 'queued' END",
            )?;
            vms.into_iter().try_for_each(|(id, name, planned)| {
                if let Some(had) = anew.get(id) {
                    forget_vm(db, plan, id, had)?;
                }
                enter.execute(params![plan, id, name, planned]).map(drop)
            })?;
            // Not before: what failed in an earlier run is queued from here on.
            db.execute("UPDATE plan SET takes_retries = 1 WHERE name = ?1", [plan]).map(drop)
        })
    }

    /// VMs of a plan, in the order they were entered.
    pub fn vms(&self, plan: &str) -> Outcome<Vec<VmRow>> {
        self.rows("SELECT * FROM vm WHERE plan = ?1 ORDER BY rowid", [plan], vm_row)
    }

    /// The same without what is planned, which is the larger part, and without where they go by that.
    pub fn vms_in_short(&self, plan: &str) -> Outcome<Vec<VmRow>> {
        let sql = "SELECT id, name, trace_id, state, phase, '' AS planned, snapshot, switched_off, touched, started, error, cause,
                   advice, started_ms, ended_ms FROM vm WHERE plan = ?1 ORDER BY rowid";
        self.rows(sql, [plan], vm_row)
    }

    /// A VM of a plan.
    pub fn vm(&self, plan: &str, id: &str) -> Outcome<Option<VmRow>> {
        Ok(self.rows(VM, [plan, id], vm_row)?.pop())
    }

    /// The same VM in other plans than this one, with their names.
    pub fn in_other_plans(&self, plan: &str, id: &str) -> Outcome<Vec<(String, VmRow)>> {
        self.rows(IN_OTHER_PLANS, [plan, id], |row| Ok((row.get("plan")?, vm_row(row)?)))
    }

    /// These VMs in other plans than this one, with their names, by one look at the state.
    pub fn all_in_other_plans(&self, plan: &str, ids: &[&str]) -> Outcome<Vec<(String, VmRow)>> {
        let ids = serde_json::to_string(ids).unwrap_or_default();
        self.rows(ALL_IN_OTHER_PLANS, [plan, &ids], |row| Ok((row.get("plan")?, vm_row(row)?)))
    }

    /// Records that a VM enters a phase, before it does.
    pub fn enter_phase(&self, plan: &str, vm: &str, phase: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let sql =
                "UPDATE vm SET state = 'running', phase = ?3, error = NULL, cause = NULL, advice = NULL,
                       started_ms = COALESCE(started_ms, ?4), ended_ms = NULL WHERE plan = ?1 AND id = ?2";
            db.prepare_cached(sql)?.execute(params![plan, vm, phase, now_ms()])?;
            add_event(db, plan, Some(vm), Some(phase), "started", "")
        })
    }

    /// Records that a VM that had ended is gone on with, in the phase that it had reached.
    pub(crate) fn go_on_with(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute(
                "UPDATE vm SET state = 'running', error = NULL, cause = NULL, advice = NULL, ended_ms = NULL
                 WHERE plan = ?1 AND id = ?2",
                params![plan, vm],
            )
        })?;
        Ok(())
    }

    /// Ends a VM, well or with error, cause and advice.
    pub fn end_vm(
        &self,
        plan: &str,
        vm: &str,
        state: VmState,
        error: Option<(&str, &str, Option<&str>)>,
    ) -> Outcome<()> {
        self.change(Durable::Now, |db| end_vm(db, plan, vm, state, error))
    }

    /// Ends a VM that is given up and that its source has no more, with what becomes of its copy. All that is recorded of what is
    /// to be undone at its source is forgotten with it: nobody looks after it any more, and who is killed here finds it as it was.
    pub(crate) fn end_gone(&self, plan: &str, vm: &str, words: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            warm::give_up(db, plan, vm)?;
            let sql = "UPDATE vm SET switched_off = 0, snapshot = NULL WHERE plan = ?1 AND id = ?2";
            db.execute(sql, [plan, vm])?;
            end_vm(db, plan, vm, VmState::Cancelled, Some((words, "source", None)))
        })
    }

    /// Records the snapshot that drover holds on a VM, or that it holds none.
    pub fn set_snapshot(&self, plan: &str, vm: &str, snapshot: Option<&str>) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE vm SET snapshot = ?3 WHERE plan = ?1 AND id = ?2", params![plan, vm, snapshot])
        })?;
        Ok(())
    }

    /// Keeps a VM as it is planned by now.
    pub fn set_planned(&self, plan: &str, vm: &str, planned: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE vm SET planned = ?3 WHERE plan = ?1 AND id = ?2", params![plan, vm, planned])
        })?;
        Ok(())
    }

    /// Records whether drover switched a VM off.
    pub fn set_switched_off(&self, plan: &str, vm: &str, yes: bool) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE vm SET switched_off = ?3 WHERE plan = ?1 AND id = ?2", params![plan, vm, yes])
        })?;
        Ok(())
    }

    /// Records that the images may change from now on, other than by copying.
    pub fn set_touched(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE vm SET touched = 1 WHERE plan = ?1 AND id = ?2", params![plan, vm])
        })?;
        Ok(())
    }

    /// Records what the start phase said.
    pub fn set_started(&self, plan: &str, vm: &str, text: Option<&str>) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("UPDATE vm SET started = ?3 WHERE plan = ?1 AND id = ?2", params![plan, vm, text])
        })?;
        Ok(())
    }

    /// Writes all that is known of a disk.
    pub fn put_disk(&self, plan: &str, disk: &DiskRow) -> Outcome<()> {
        let number = |value: Option<u64>| value.map(|value| value as i64);
        self.change(Durable::WithTheNext, |db| {
            db.execute(
                "INSERT OR REPLACE INTO disk VALUES
                 (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
                params![
                    plan,
                    disk.vm,
                    disk.number as i64,
                    disk.label,
                    disk.path.to_string_lossy(),
                    disk.size as i64,
                    number(disk.data_bytes),
                    number(disk.read_bytes),
                    number(disk.written_bytes),
                    number(disk.resumed_bytes),
                    number(disk.retries),
                    disk.root,
                    disk.target_root,
                    number(disk.blocks_verified),
                    number(disk.blocks),
                    number(disk.differing),
                    number(disk.copy_ms),
                    number(disk.verify_ms),
                    disk.attribution,
                    disk.note,
                    disk.link,
                ],
            )?;
            db.execute(
                "INSERT OR REPLACE INTO disk_sum (plan, vm, number, read_bytes_all, written_bytes_all)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    plan,
                    disk.vm,
                    disk.number as i64,
                    number(disk.read_bytes_all),
                    number(disk.written_bytes_all),
                ],
            )
        })?;
        Ok(())
    }

    /// Disks of a plan.
    pub fn disks(&self, plan: &str) -> Outcome<Vec<DiskRow>> {
        let sql = "SELECT disk.*, read_bytes_all, written_bytes_all FROM disk LEFT JOIN disk_sum
                   ON disk_sum.plan = disk.plan AND disk_sum.vm = disk.vm AND disk_sum.number = disk.number
                   WHERE disk.plan = ?1 ORDER BY disk.vm, disk.number";
        self.rows(sql, [plan], disk_row)
    }

    /// Disks of a VM of a plan.
    pub fn disks_of(&self, plan: &str, vm: &str) -> Outcome<Vec<DiskRow>> {
        self.rows(DISKS_OF, [plan, vm], disk_row)
    }

    /// Adds an event.
    pub fn add_event(
        &self,
        plan: &str,
        vm: Option<&str>,
        phase: Option<&str>,
        kind: &str,
        text: &str,
    ) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| add_event(db, plan, vm, phase, kind, text))
    }

    /// Notes what VMs wait for from now on, by their ids.
    pub fn add_waits(&self, plan: &str, waits: &[(&str, String)]) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| {
            waits.iter().try_for_each(|(vm, text)| add_event(db, plan, Some(vm), None, WAITS, text))
        })
    }

    /// What VMs wait for, by id: those whose last event says so, and those at work while the source does not answer.
    pub fn waits(&self, plan: &str) -> Outcome<Vec<(String, String)>> {
        let query = "SELECT vm, text FROM event WHERE plan = ?1 AND kind = ?2
             AND id IN (SELECT max(id) FROM event WHERE plan = ?1 AND vm IS NOT NULL GROUP BY vm) ORDER BY id";
        let mut waits: Vec<(String, String)> =
            self.rows(query, [plan, WAITS], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if let Some(what) = self.source_away(plan)? {
            waits.extend(self.at_work(plan)?.into_iter().map(|vm| (vm, what.clone())));
        }
        Ok(waits)
    }

    /// Events of a plan in order.
    pub fn events(&self, plan: &str) -> Outcome<Vec<EventRow>> {
        let sql = "SELECT at_ms, vm, phase, kind, text FROM event WHERE plan = ?1 ORDER BY id";
        self.rows(sql, [plan], event_row)
    }

    /// Events of a VM of a plan in order.
    pub fn events_of(&self, plan: &str, vm: &str) -> Outcome<Vec<EventRow>> {
        self.rows(EVENTS_OF, [plan, vm], event_row)
    }

    /// How often runs shut down a VM that ran.
    pub fn shutdowns(&self, plan: &str, vm: &str) -> Outcome<usize> {
        let off = Phase::PowerOff.name();
        let is_one =
            |it: &&EventRow| it.phase.as_deref() == Some(off) && it.kind == "ended" && it.text.is_empty();
        Ok(self.events_of(plan, vm)?.iter().filter(is_one).count())
    }

    /// Events of a VM since it was begun anew last: of what was before, nothing is left.
    pub(crate) fn events_since_begun(&self, plan: &str, vm: &str) -> Outcome<Vec<EventRow>> {
        let mut events = self.events_of(plan, vm)?;
        let before = events.iter().rposition(|event| event.kind == ANEW);
        Ok(events.split_off(before.unwrap_or(0)))
    }

    /// What a phase took in seconds the latest times that it ended with such a text, with any VM of any plan, the latest
    /// last.
    pub fn phase_seconds(&self, phase: &str, ended: &str, most: usize) -> Outcome<Vec<f64>> {
        let sql = "SELECT at_ms - (SELECT at_ms FROM event b WHERE b.plan = e.plan AND b.vm = e.vm AND b.phase = e.phase
                   AND b.kind = 'started' AND b.id < e.id ORDER BY b.id DESC LIMIT 1) AS ms
                   FROM event e WHERE phase = ?1 AND kind = 'ended' AND text = ?2 ORDER BY id DESC LIMIT ?3";
        let mut latest =
            self.rows(sql, params![phase, ended, most as i64], |row| row.get::<_, Option<i64>>(0))?;
        latest.reverse();
        Ok(latest.into_iter().flatten().map(|ms| ms.max(0) as f64 / 1000.0).collect())
    }

    fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Outcome<T> {
        self.patiently(&self.lock(), work).map_err(|error| self.wrap(error.into()))
    }

    /// How long others are waited for now.
    fn wait(&self) -> Duration {
        if self.is_held.load(Ordering::Relaxed) { HELD_WAIT } else { BUSY_WAIT }
    }

    /// Does some work, and waits for others who hold the store.
    fn patiently<T>(
        &self,
        db: &Connection,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        if self.is_stuck.load(Ordering::Relaxed) {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_PROTOCOL);
            let why = "its locks failed earlier in this run";
            return Err(rusqlite::Error::SqliteFailure(code, Some(why.into())));
        }
        let done = db.busy_timeout(self.wait()).and_then(|()| work(db));
        let code = done.as_ref().err().and_then(rusqlite::Error::sqlite_error_code);
        self.is_held.store(code == Some(rusqlite::ErrorCode::DatabaseBusy), Ordering::Relaxed);
        let is_stuck = code == Some(rusqlite::ErrorCode::FileLockingProtocolFailed);
        self.is_stuck.fetch_or(is_stuck, Ordering::Relaxed);
        done
    }

    /// Does some work in one transaction.
    fn change<T>(
        &self,
        durable: Durable,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Outcome<T> {
        let connection = self.lock();
        let done = self.patiently(&connection, |db| {
            let change = Transaction::new_unchecked(db, TransactionBehavior::Immediate)?;
            let done = work(&change)?;
            change.commit()?;
            Ok(done)
        });
        let done = done.map_err(|error| self.wrap(error.into()))?;
        let commit = self.log.committed();
        drop(connection);
        if durable == Durable::Now {
            self.log.wait_for(commit).map_err(|error| self.wrap(error.into()))?;
            // What is written to a file without a name is lost with this process, and nobody could resume.
            if self.file.is_none() || file_at(&self.path) != self.file {
                return Err(self.wrap(StoreFault::Gone));
            }
        }
        Ok(done)
    }

    fn rows<T, P: rusqlite::Params>(
        &self,
        sql: &str,
        params: P,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Outcome<Vec<T>> {
        self.read(|db| db.prepare_cached(sql)?.query_map(params, read)?.collect())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrap(&self, source: StoreFault) -> StoreError {
        StoreError { path: self.path.clone(), source }
    }
}

fn end_vm(
    db: &Connection,
    plan: &str,
    vm: &str,
    state: VmState,
    error: Option<(&str, &str, Option<&str>)>,
) -> rusqlite::Result<()> {
    let (text, cause, advice) =
        error.map_or((None, None, None), |(text, cause, advice)| (Some(text), Some(cause), advice));
    let sql = "UPDATE vm SET state = ?3, error = ?4, cause = ?5, advice = ?6, ended_ms = ?7 WHERE plan = ?1 AND id = ?2";
    db.execute(sql, params![plan, vm, word(&state), text, cause, advice, now_ms()]).map(drop)
}

fn add_event(
    db: &Connection,
    plan: &str,
    vm: Option<&str>,
    phase: Option<&str>,
    kind: &str,
    text: &str,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO event (plan, at_ms, vm, phase, kind, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(sql)?.execute(params![plan, now_ms(), vm, phase, kind, text]).map(drop)
}

/// Forgets what runs of a VM came to that was given up.
fn forget_vm(db: &Connection, plan: &str, id: &str, name: &str) -> rusqlite::Result<()> {
    db.execute("DELETE FROM disk WHERE plan = ?1 AND vm = ?2", [plan, id])?;
    db.execute("DELETE FROM disk_sum WHERE plan = ?1 AND vm = ?2", [plan, id])?;
    db.execute("DELETE FROM progress WHERE plan = ?1 AND vm = ?2", [plan, name])?;
    let sql =
        "UPDATE vm SET phase = NULL, touched = 0, started = NULL, error = NULL, cause = NULL, advice = NULL,
               started_ms = NULL, ended_ms = NULL WHERE plan = ?1 AND id = ?2";
    db.execute(sql, [plan, id])?;
    add_event(db, plan, Some(id), None, ANEW, "begun anew")
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Milliseconds since 1970 by this machine's clock.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests;
