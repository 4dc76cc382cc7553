//! The tables, and how those of an earlier drover become today's.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::StoreFault;

/// Version that this drover makes and understands.
pub(super) const SCHEMA_VERSION: i64 = 16;

/// Statements that a connection keeps compiled. To compile one costs more than to carry it out.
const STATEMENTS_KEPT: usize = 64;

/// What version 1 had.
const FIRST: &str = "
CREATE TABLE plan (
    name TEXT PRIMARY KEY, text TEXT NOT NULL, folder TEXT NOT NULL, state TEXT NOT NULL, pid INTEGER,
    cancel_asked INTEGER NOT NULL DEFAULT 0, started_ms INTEGER NOT NULL, ended_ms INTEGER);
CREATE TABLE vm (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, id TEXT NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL, phase TEXT, planned TEXT NOT NULL, snapshot TEXT, switched_off INTEGER NOT NULL DEFAULT 0,
    touched INTEGER NOT NULL DEFAULT 0, started TEXT, error TEXT, cause TEXT, advice TEXT, started_ms INTEGER, ended_ms INTEGER,
    PRIMARY KEY (plan, id));
CREATE TABLE disk (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, number INTEGER NOT NULL,
    label TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, data_bytes INTEGER, read_bytes INTEGER,
    written_bytes INTEGER, resumed_bytes INTEGER, retries INTEGER, root TEXT, target_root TEXT,
    blocks_verified INTEGER, blocks INTEGER, differing INTEGER, copy_ms INTEGER, verify_ms INTEGER,
    attribution TEXT, note TEXT,
    PRIMARY KEY (plan, vm, number));
CREATE TABLE event (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE,
    at_ms INTEGER NOT NULL, vm TEXT, phase TEXT, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE sample (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, at_ms INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
    written_bytes INTEGER NOT NULL, disks INTEGER NOT NULL);
CREATE INDEX event_of_plan ON event(plan, id);
CREATE INDEX sample_of_plan ON sample(plan, at_ms);
";

/// What version 2 added: warm migrations.
const WARM: &str = "
CREATE TABLE warm (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL,
    cutover_asked INTEGER NOT NULL DEFAULT 0, replica_touched INTEGER NOT NULL DEFAULT 0, host TEXT, distrust TEXT, hint TEXT,
    next_ms INTEGER, reason TEXT, forecast_ms INTEGER, forecast_low_ms INTEGER, forecast_high_ms INTEGER,
    down_ms INTEGER, up_ms INTEGER,
    PRIMARY KEY (plan, vm));
CREATE TABLE tracked (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, disk_key INTEGER NOT NULL,
    change_id TEXT, datastore TEXT NOT NULL, path TEXT NOT NULL, uuid TEXT NOT NULL, capacity INTEGER NOT NULL,
    PRIMARY KEY (plan, vm, disk_key));
CREATE TABLE pass (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, number INTEGER NOT NULL,
    kind TEXT NOT NULL, state TEXT NOT NULL, why TEXT, snapshot TEXT, began_ms INTEGER NOT NULL, frozen_ms INTEGER,
    copying_ms INTEGER, ended_ms INTEGER, areas_bytes INTEGER NOT NULL DEFAULT 0, read_bytes INTEGER NOT NULL DEFAULT 0,
    changed_bytes INTEGER NOT NULL DEFAULT 0, audited_blocks INTEGER NOT NULL DEFAULT 0,
    mismatches INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (plan, vm, number));
";

/// What version 3 added: a moment for a cutover counts once.
const MOMENT: &str = "ALTER TABLE warm ADD COLUMN moment_tried_ms INTEGER;";

/// What version 4 added: disks at other sites.
const LINK: &str = "ALTER TABLE disk ADD COLUMN link TEXT;";

/// What version 5 added: files of disks that are attached to VMs which read them.
const ATTACHED: &str = "
CREATE TABLE attached (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, proxy TEXT NOT NULL, file TEXT NOT NULL,
    PRIMARY KEY (plan, vm, proxy, file));
";

/// What version 6 added: which parts of a downtime a forecast lacks. What was foreseen before has all, and parts that were
/// never measured are assumed in it. Whether change tracking was switched on by drover. And who ran what.
const LACKS: &str = "
ALTER TABLE warm ADD COLUMN forecast_lacks INTEGER;
ALTER TABLE warm ADD COLUMN tracking_on INTEGER NOT NULL DEFAULT 0;
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE,
    at_ms INTEGER NOT NULL, facts TEXT NOT NULL);
CREATE INDEX run_of_plan ON run(plan, id);
";

/// What version 7 added: plans that were handed to the daemon, and who ordered what there.
const SERVED: &str = "
CREATE TABLE served (
    name TEXT PRIMARY KEY, project TEXT NOT NULL, text TEXT NOT NULL, path TEXT NOT NULL, start INTEGER NOT NULL,
    wanted TEXT NOT NULL, handed_by TEXT NOT NULL, at_ms INTEGER NOT NULL, exit INTEGER, error TEXT, advice TEXT, problems TEXT);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, who TEXT NOT NULL, role TEXT NOT NULL, origin TEXT NOT NULL,
    project TEXT NOT NULL, plan TEXT, vm TEXT, action TEXT NOT NULL, before TEXT, after TEXT, outcome TEXT NOT NULL);
";

/// What version 8 added: hooks and checks, and rehearsals of what has arrived.
const HOOKS: &str = "
CREATE TABLE hook (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL,
    kind TEXT NOT NULL, point TEXT NOT NULL, number INTEGER NOT NULL, what TEXT NOT NULL, began_ms INTEGER NOT NULL,
    ended_ms INTEGER, result TEXT, message TEXT NOT NULL DEFAULT '', output TEXT NOT NULL DEFAULT '',
    counts INTEGER NOT NULL DEFAULT 0);
CREATE INDEX hook_of_vm ON hook(plan, vm, id);
CREATE TABLE rehearsal (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL,
    began_ms INTEGER NOT NULL, ended_ms INTEGER, result TEXT, text TEXT NOT NULL DEFAULT '', checks TEXT NOT NULL DEFAULT '[]');
CREATE INDEX rehearsal_of_vm ON rehearsal(plan, vm, id);
";

/// What version 9 added: waves after which others go on, whatever of them failed.
const WAVES: &str = "
CREATE TABLE proceed (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, wave TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (plan, wave));
";

/// What version 10 added: how far the disks at work are.
const PROGRESS: &str = "
CREATE TABLE progress (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, disk TEXT NOT NULL, activity TEXT NOT NULL,
    is_live INTEGER NOT NULL, at_ms INTEGER NOT NULL, size_bytes INTEGER NOT NULL, done_bytes INTEGER NOT NULL,
    read_bytes INTEGER NOT NULL, left_bytes INTEGER, rate INTEGER,
    PRIMARY KEY (plan, vm, disk));
";

/// What version 11 added: what is asked of one VM is found without a look at all the others.
const OF_ONE: &str = "
CREATE INDEX vm_of_id ON vm(id);
CREATE INDEX event_of_vm ON event(plan, vm, id);
";

/// What version 12 added: what tells the migration of a VM from all others, in traces and logs.
const TRACE: &str = "
ALTER TABLE vm ADD COLUMN trace_id TEXT NOT NULL DEFAULT '';
UPDATE vm SET trace_id = lower(hex(randomblob(16)));
";

/// What version 13 added: failed VMs that are to be tried again by the run that goes on, and whether that takes such orders.
const RETRIES: &str = "
ALTER TABLE plan ADD COLUMN takes_retries INTEGER NOT NULL DEFAULT 0;
CREATE TABLE retry (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (plan, vm));
";

/// What version 14 added: VMs that are given up by order.
const GIVE_UPS: &str = "
CREATE TABLE give_up (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (plan, vm));
";

/// What version 15 added: bytes of a disk over all its copies. Of those that an earlier drover copied, they count from then on. They have a
/// table of their own, since a process of version 14 that still runs writes whole rows of `disk`.
const IN_ALL: &str = "
CREATE TABLE disk_sum (
    plan TEXT NOT NULL REFERENCES plan(name) ON DELETE CASCADE, vm TEXT NOT NULL, number INTEGER NOT NULL,
    read_bytes_all INTEGER, written_bytes_all INTEGER,
    PRIMARY KEY (plan, vm, number));
";

/// What version 16 added: limits that are changed by order.
const LIMITS: &str = "
CREATE TABLE limits_order (
    plan TEXT PRIMARY KEY REFERENCES plan(name) ON DELETE CASCADE, limits TEXT NOT NULL, at_ms INTEGER NOT NULL);
";

/// What each version added, from the first.
const STEPS: [&str; SCHEMA_VERSION as usize] = [
    FIRST, WARM, MOMENT, LINK, ATTACHED, LACKS, SERVED, HOOKS, WAVES, PROGRESS, OF_ONE, TRACE, RETRIES,
    GIVE_UPS, IN_ALL, LIMITS,
];

/// Opens the file, or makes it; one of an earlier version is brought up to date, in one transaction.
pub(super) fn open_database(path: &Path) -> Result<Connection, StoreFault> {
    let mut db = Connection::open(path)?;
    db.busy_timeout(super::BUSY_WAIT)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    patiently(|| db.pragma_update(None, "journal_mode", "wal"))?;
    // What has to be durable is flushed by `sync.rs`.
    db.pragma_update(None, "synchronous", "normal")?;
    db.pragma_update(None, "foreign_keys", true)?;
    let change = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version = change.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))?;
    if version > SCHEMA_VERSION {
        return Err(StoreFault::Newer(version));
    }
    // A file that is up to date is not written to: opening one costs no flush.
    if version < SCHEMA_VERSION {
        let mut steps = STEPS.into_iter().skip(version.max(0) as usize);
        steps.try_for_each(|step| change.execute_batch(step))?;
        change.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    change.commit()?;
    Ok(db)
}

/// Tries again while another process opens the same new file: SQLite does not wait by itself when the mode of
/// the journal changes.
fn patiently<T>(mut act: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    for _ in 0..BUSY_TRIES {
        match act() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                std::thread::sleep(BUSY_PAUSE);
            }
            result => return result,
        }
    }
    act()
}

const BUSY_TRIES: usize = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{PlanState, Store};

    #[test]
    fn a_store_of_the_first_version_keeps_all_it_had_and_takes_warm_rows() {
        let folder = tempfile::tempdir().unwrap();
        let old = Connection::open(folder.path().join("drover.db")).unwrap();
        old.execute_batch(FIRST).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        let rows = "INSERT INTO plan (name, text, folder, state, started_ms) VALUES ('p', 't', '/f', 'incomplete', 5);
                    INSERT INTO vm (plan, id, name, state, planned) VALUES ('p', 'vm-1', 'web01', 'failed', '{}');
                    INSERT INTO disk (plan, vm, number, label, path, size, read_bytes) VALUES ('p', 'vm-1', 0, 'd', '/i', 9, 7);";
        old.execute_batch(rows).unwrap();
        drop(old);
        for _ in 0..2 {
            let store = Store::open(folder.path()).unwrap();
            assert_eq!(store.plan("p").unwrap().unwrap().state, PlanState::Incomplete);
            assert_eq!(store.vm("p", "vm-1").unwrap().unwrap().name, "web01");
            assert_eq!(store.ask_cutover("p", None).unwrap(), ["web01"]);
            assert!(store.warm("p", "vm-1").unwrap().cutover_asked);
            let disk = store.disks("p").unwrap().remove(0);
            assert_eq!((disk.read_in_all(), disk.written_in_all()), (7, 0), "what was known counts");
        }
    }

    #[test]
    fn a_process_of_version_14_that_still_runs_goes_on_beside_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let old = Connection::open(folder.path().join("drover.db")).unwrap();
        old.pragma_update(None, "journal_mode", "wal").unwrap();
        STEPS[..14].iter().for_each(|step| old.execute_batch(step).unwrap());
        old.pragma_update(None, "user_version", 14).unwrap();
        let plan =
            "INSERT INTO plan (name, text, folder, state, started_ms) VALUES ('p', 't', '/f', 'running', 5)";
        old.execute_batch(plan).unwrap();
        // All 21 places, as it writes them.
        let put = |read: i64| {
            let nulls = ", NULL".repeat(12);
            let sql =
                format!("INSERT OR REPLACE INTO disk VALUES ('p', 'vm-1', 0, 'd', '/i', 9, 9, ?1, 3{nulls})");
            old.execute(&sql, [read]).unwrap();
        };
        put(7);
        let store = Store::open(folder.path()).unwrap();
        let disk = || store.disks("p").unwrap().remove(0);
        assert_eq!((disk().read_in_all(), disk().written_in_all()), (7, 3));
        put(8);
        assert_eq!((disk().read_in_all(), disk().written_in_all()), (8, 3), "it goes on");
        store.put_disk("p", &disk().plus_moved(5, 1)).unwrap();
        assert_eq!((disk().read_in_all(), disk().written_in_all()), (13, 4));
        put(8);
        assert_eq!((disk().read_in_all(), disk().written_in_all()), (13, 4), "the sums stay");
        assert_eq!(store.disks_of("p", "vm-1").unwrap().remove(0).read_in_all(), 13);
    }

    #[test]
    fn a_new_store_is_opened_by_many_at_once() {
        for _ in 0..40 {
            let folder = tempfile::tempdir().unwrap();
            let start = std::sync::Barrier::new(8);
            let open = || {
                start.wait();
                open_database(&folder.path().join("drover.db")).map(drop)
            };
            std::thread::scope(|scope| {
                let opened: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
                opened.into_iter().for_each(|it| it.join().unwrap().unwrap());
            });
        }
    }

    #[test]
    fn the_first_version_is_as_it_was_left() {
        // Changing it would change what is found in the stores of users. A new version adds a step.
        assert_eq!(FIRST.matches("CREATE").count(), 7);
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(FIRST).unwrap();
        let columns = |table: &str| {
            let sql = format!("SELECT count(*) FROM pragma_table_info('{table}')");
            db.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!(["plan", "vm", "disk", "event", "sample"].map(columns), [8, 15, 20, 7, 5]);
    }
}
