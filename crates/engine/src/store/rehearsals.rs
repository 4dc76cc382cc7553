//! What the store keeps of rehearsals: when a VM's copy was booted, and what came of it.

use rusqlite::params;
use rusqlite::types::Type;
use serde::{Deserialize, Serialize};

use super::{Durable, Outcome, Store, now_ms, state, word};

/// A rehearsal of a VM's copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RehearsalRow {
    /// When it began, in milliseconds since 1970.
    pub began_ms: i64,
    /// When it ended; absent if it runs, or was running when the process was killed.
    pub ended_ms: Option<i64>,
    /// What came of it.
    pub result: Option<RehearsalResult>,
    /// In a line.
    pub text: String,
    /// What was asked of the guest.
    pub checks: Vec<RehearsedCheck>,
}

/// What came of a rehearsal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RehearsalResult {
    /// The guest ran, and every check that can be asked in a rehearsal passed; one was asked at the least.
    Passed,
    /// The guest ran; the plan has no check that tells whether it booted.
    Ran,
    /// The guest ended, could not be started, or a check did not pass.
    Failed,
    /// It was stopped.
    Interrupted,
}

impl RehearsalResult {
    /// In a word, for people.
    pub fn word(self) -> &'static str {
        match self {
            RehearsalResult::Passed => "passed",
            RehearsalResult::Ran => "ran, and nothing was asked",
            RehearsalResult::Failed => "FAILED",
            RehearsalResult::Interrupted => "interrupted",
        }
    }
}

/// A check of a rehearsal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RehearsedCheck {
    /// What was asked, in a few words.
    pub what: String,
    /// Whether it passed; absent if it cannot be asked in a rehearsal.
    pub passed: Option<bool>,
    /// Why, in a line.
    pub message: String,
}

/// Rehearsals of a VM that are told of, the latest ones.
const REHEARSALS_MAX: i64 = 20;

impl Store {
    /// Records that a rehearsal begins; gives its number.
    pub fn begin_rehearsal(&self, plan: &str, vm: &str) -> Outcome<i64> {
        self.change(Durable::Now, |db| {
            db.execute(
                "INSERT INTO rehearsal (plan, vm, began_ms) VALUES (?1, ?2, ?3)",
                params![plan, vm, now_ms()],
            )?;
            Ok(db.last_insert_rowid())
        })
    }

    /// Records how it ended.
    pub fn end_rehearsal(
        &self,
        id: i64,
        result: RehearsalResult,
        text: &str,
        checks: &[RehearsedCheck],
    ) -> Outcome<()> {
        let checks = serde_json::to_string(checks).unwrap_or_default();
        self.change(Durable::Now, |db| {
            let sql = "UPDATE rehearsal SET ended_ms = ?2, result = ?3, text = ?4, checks = ?5 WHERE id = ?1";
            db.execute(sql, params![id, now_ms(), word(&result), text, checks])
        })?;
        Ok(())
    }

    /// The latest rehearsals of a VM, in order.
    pub fn rehearsals_of(&self, plan: &str, vm: &str) -> Outcome<Vec<RehearsalRow>> {
        let sql = "SELECT * FROM rehearsal WHERE plan = ?1 AND vm = ?2 ORDER BY id DESC LIMIT ?3";
        let mut latest = self.rows(sql, params![plan, vm, REHEARSALS_MAX], |row| {
            let result: Option<String> = row.get("result")?;
            let checks: String = row.get("checks")?;
            let checks = serde_json::from_str(&checks)
                .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))?;
            Ok(RehearsalRow {
                began_ms: row.get("began_ms")?,
                ended_ms: row.get("ended_ms")?,
                result: result.map(|_| state(row, "result")).transpose()?,
                text: row.get("text")?,
                checks,
            })
        })?;
        latest.reverse();
        Ok(latest)
    }
}
