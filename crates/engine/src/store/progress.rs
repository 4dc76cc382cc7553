//! How far a run is: the sum of its bytes, and each disk at work. Written together, twice a second, by the run; read by
//! those who follow it from another process.

use rusqlite::params;
use rusqlite::types::Type;
use serde::{Deserialize, Serialize};

use super::{Durable, Outcome, Store, now_ms, unsigned, word};
use crate::event::DiskActivity;

/// Bytes moved by a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleRow {
    /// When.
    pub at_ms: i64,
    /// Read so far in that run.
    pub read_bytes: u64,
    /// Written so far.
    pub written_bytes: u64,
    /// Disks at work.
    pub disks: u64,
}

/// A disk at work, or the last that is known of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressRow {
    /// Name of the VM at the target.
    pub vm: String,
    /// Label of the disk.
    pub disk: String,
    /// What it does.
    pub activity: DiskActivity,
    /// Whether it was at work at the latest look.
    pub is_live: bool,
    /// When it was looked at.
    pub at_ms: i64,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Bytes of the disk that need no more work.
    pub done_bytes: u64,
    /// Bytes read in this run.
    pub read_bytes: u64,
    /// Bytes still to be read; absent until the source has described some of the disk.
    pub left_bytes: Option<u64>,
    /// Bytes read per second, lately; absent if it is too early to say, or it is not at work.
    pub rate_bytes_per_s: Option<u64>,
}

impl ProgressRow {
    /// Bytes that are still to be read of a disk with so much data. Holes need no work, and are no data.
    pub fn left_of(&self, data_bytes: u64) -> u64 {
        self.left_bytes
            .map_or_else(|| data_bytes.saturating_sub(self.done_bytes), |left| left.min(data_bytes))
    }
}

impl Store {
    /// Adds a sample of the rate, and renews what is known of the disks at work; the others no longer are. One
    /// transaction, which is not waited for.
    pub fn add_sample(&self, plan: &str, read: u64, written: u64, live: &[ProgressRow]) -> Outcome<()> {
        self.change(Durable::WithTheNext, |db| {
            db.execute(
                "INSERT INTO sample VALUES (?1, ?2, ?3, ?4, ?5)",
                params![plan, now_ms(), read as i64, written as i64, live.len() as i64],
            )?;
            db.execute(
                "UPDATE progress SET is_live = 0, rate = NULL WHERE plan = ?1 AND is_live = 1",
                [plan],
            )?;
            let mut put = db.prepare_cached(
                "INSERT OR REPLACE INTO progress VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?;
            live.iter().try_for_each(|disk| {
                put.execute(params![
                    plan,
                    disk.vm,
                    disk.disk,
                    word(&disk.activity),
                    disk.at_ms,
                    disk.size_bytes as i64,
                    disk.done_bytes as i64,
                    disk.read_bytes as i64,
                    disk.left_bytes.map(|bytes| bytes as i64),
                    disk.rate_bytes_per_s.map(|rate| rate as i64),
                ])
                .map(drop)
            })
        })
    }

    /// Samples of a plan in order.
    pub fn samples(&self, plan: &str) -> Outcome<Vec<SampleRow>> {
        self.rows("SELECT * FROM sample WHERE plan = ?1 ORDER BY at_ms", [plan], |row| {
            Ok(SampleRow {
                at_ms: row.get("at_ms")?,
                read_bytes: unsigned(row, "read_bytes")?.unwrap_or(0),
                written_bytes: unsigned(row, "written_bytes")?.unwrap_or(0),
                disks: unsigned(row, "disks")?.unwrap_or(0),
            })
        })
    }

    /// What is known of the progress of a plan's disks.
    pub fn progress(&self, plan: &str) -> Outcome<Vec<ProgressRow>> {
        self.rows("SELECT * FROM progress WHERE plan = ?1 ORDER BY vm, disk", [plan], |row| {
            let activity: String = row.get("activity")?;
            let activity = serde_json::from_value(activity.into())
                .map_err(|error| rusqlite::Error::FromSqlConversionFailure(3, Type::Text, Box::new(error)))?;
            Ok(ProgressRow {
                vm: row.get("vm")?,
                disk: row.get("disk")?,
                activity,
                is_live: row.get("is_live")?,
                at_ms: row.get("at_ms")?,
                size_bytes: unsigned(row, "size_bytes")?.unwrap_or(0),
                done_bytes: unsigned(row, "done_bytes")?.unwrap_or(0),
                read_bytes: unsigned(row, "read_bytes")?.unwrap_or(0),
                left_bytes: unsigned(row, "left_bytes")?,
                rate_bytes_per_s: unsigned(row, "rate")?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn row(disk: &str, done: u64) -> ProgressRow {
        ProgressRow {
            vm: "web01".into(),
            disk: disk.into(),
            activity: DiskActivity::Copy,
            is_live: true,
            at_ms: 7,
            size_bytes: 1 << 40,
            done_bytes: done,
            read_bytes: done,
            left_bytes: Some((1 << 40) - done),
            rate_bytes_per_s: Some(5),
        }
    }

    #[test]
    fn a_disk_that_left_keeps_how_far_it_came_and_has_no_rate() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let flushes = store.flushes();
        store.add_sample("p", 1, 2, &[row("a", 10), row("b", 20)]).unwrap();
        store.add_sample("p", 1, 2, &[row("b", 30)]).unwrap();
        assert_eq!(store.flushes(), flushes, "nobody waits for it");
        let left = ProgressRow { is_live: false, rate_bytes_per_s: None, ..row("a", 10) };
        assert_eq!(store.progress("p").unwrap(), [left, row("b", 30)]);
        assert_eq!(store.samples("p").unwrap().iter().map(|it| it.disks).collect::<Vec<_>>(), [2, 1]);
        store.remove_plan("p").unwrap();
        assert_eq!(store.progress("p").unwrap(), []);
    }
}
