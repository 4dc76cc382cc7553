//! What the store keeps of hooks and checks: which ended, so that no resume calls them again, and what they said.

use drover_plan::{AFTER_WAVE, BEFORE_WAVE};
use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::{Durable, Outcome, Store, now_ms, state, word};
use crate::hooks::{Answer, CallKind, HookResult};

/// A call of a hook or a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRow {
    /// VM's id.
    #[serde(skip)]
    pub vm: String,
    /// Hook or check.
    pub kind: CallKind,
    /// When in the VM's way: `before_copy`, `post_start`.
    pub point: String,
    /// Position among those of this point, from 1.
    pub number: usize,
    /// What was called, in a few words.
    pub what: String,
    /// When it began, in milliseconds since 1970.
    pub began_ms: i64,
    /// When it ended; absent if it runs, or was running when the process was killed.
    pub ended_ms: Option<i64>,
    /// What it decided.
    pub result: Option<HookResult>,
    /// Why, in a line.
    pub message: String,
    /// The last of what it wrote.
    pub output: String,
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called<'a> {
    pub(crate) kind: CallKind,
    pub(crate) point: &'a str,
    /// From 1.
    pub(crate) number: usize,
    pub(crate) what: &'a str,
}

/// Calls of a VM that are told of, the latest ones.
const CALLS_MAX: i64 = 200;
/// Of an output in the state.
const OUTPUT_BYTES_MAX: usize = 4096;

/// Begins what stands for a wave where a VM's id does for a VM.
const WAVE: &str = "wave:";

/// By what the calls about a wave are known.
pub(crate) fn wave_key(wave: &str) -> String {
    format!("{WAVE}{wave}")
}

/// A call about a wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveCall {
    /// Wave.
    pub wave: String,
    /// The call.
    #[serde(flatten)]
    pub call: HookRow,
}

/// The latest calls before and after a wave, by their numbers; 0 if there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) before: i64,
    pub(crate) after: i64,
}

impl Around {
    /// Whether something was called before it and nothing after it since.
    pub(crate) fn is_open(self) -> bool {
        self.before > self.after
    }
}

impl Store {
    /// The latest calls about waves of a plan, in order.
    pub fn wave_calls(&self, plan: &str, waves: &[&str]) -> Outcome<Vec<WaveCall>> {
        let mut calls = Vec::new();
        for wave in waves {
            let of = self.hooks_of(plan, &wave_key(wave))?;
            calls.extend(of.into_iter().map(|call| WaveCall { wave: wave.to_string(), call }));
        }
        calls.sort_by_key(|it| it.call.began_ms);
        Ok(calls)
    }

    /// Records that a call begins.
    pub(crate) fn begin_hook(&self, plan: &str, vm: &str, called: Called<'_>) -> Outcome<i64> {
        let Called { kind, point, number, what } = called;
        self.change(Durable::WithTheNext, |db| {
            let sql = "INSERT INTO hook (plan, vm, kind, point, number, what, began_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            db.execute(sql, params![plan, vm, word(&kind), point, number as i64, what, now_ms()])?;
            Ok(db.last_insert_rowid())
        })
    }

    /// Records how a call ended; `counts` if a resume need not call it again.
    pub(crate) fn end_hook(&self, id: i64, answer: &Answer, counts: bool) -> Outcome<()> {
        let output = last(&answer.output);
        self.change(Durable::Now, |db| {
            let sql = "UPDATE hook SET ended_ms = ?2, result = ?3, message = ?4, output = ?5, counts = ?6 WHERE id = ?1";
            db.execute(sql, params![id, now_ms(), word(&answer.result), answer.message, output, counts])
        })?;
        Ok(())
    }

    /// Whether a call ended in such a way that it need not be made again.
    pub(crate) fn is_hook_over(&self, plan: &str, vm: &str, called: Called<'_>) -> Outcome<bool> {
        let sql = "SELECT 1 FROM hook WHERE plan = ?1 AND vm = ?2 AND kind = ?3 AND point = ?4 AND number = ?5 AND what = ?6
                   AND counts = 1 LIMIT 1";
        let Called { kind, point, number, what } = called;
        let found = self.rows(sql, params![plan, vm, word(&kind), point, number as i64, what], |_| Ok(()))?;
        Ok(!found.is_empty())
    }

    /// What was done since the guest was about to be shut down is undone: its hooks are called again when it is done again.
    pub(crate) fn forget_hooks(&self, plan: &str, vm: &str, keep: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            let sql = "UPDATE hook SET counts = 0 WHERE plan = ?1 AND vm = ?2 AND point <> ?3 AND counts = 1";
            db.execute(sql, params![plan, vm, keep])
        })?;
        Ok(())
    }

    /// Which calls about a wave came last, whatever became of them.
    pub(crate) fn latest_around(&self, plan: &str, wave: &str) -> Outcome<Around> {
        let latest = |point: &str| -> Outcome<i64> {
            let sql =
                "SELECT id FROM hook WHERE plan = ?1 AND vm = ?2 AND point = ?3 ORDER BY id DESC LIMIT 1";
            let found = self.rows(sql, params![plan, wave_key(wave), point], |row| row.get(0))?;
            Ok(found.first().copied().unwrap_or(0))
        };
        Ok(Around { before: latest(BEFORE_WAVE)?, after: latest(AFTER_WAVE)? })
    }

    /// All hooks of a wave are called again.
    pub(crate) fn forget_wave(&self, plan: &str, wave: &str) -> Outcome<()> {
        self.forget_hooks(plan, &wave_key(wave), "")
    }

    /// Whether any hook of a VM counts as called; a run without any is not told of.
    pub(crate) fn has_hooks(&self, plan: &str, vm: &str) -> Outcome<bool> {
        let sql = "SELECT 1 FROM hook WHERE plan = ?1 AND vm = ?2 AND counts = 1 LIMIT 1";
        Ok(!self.rows(sql, params![plan, vm], |_| Ok(()))?.is_empty())
    }

    /// The latest calls of a VM, in order.
    pub fn hooks_of(&self, plan: &str, vm: &str) -> Outcome<Vec<HookRow>> {
        let sql = "SELECT * FROM hook WHERE plan = ?1 AND vm = ?2 ORDER BY id DESC LIMIT ?3";
        let mut latest = self.rows(sql, params![plan, vm, CALLS_MAX], |row| {
            let result: Option<String> = row.get("result")?;
            Ok(HookRow {
                vm: row.get("vm")?,
                kind: state(row, "kind")?,
                point: row.get("point")?,
                number: row.get::<_, i64>("number")?.max(0) as usize,
                what: row.get("what")?,
                began_ms: row.get("began_ms")?,
                ended_ms: row.get("ended_ms")?,
                result: result.map(|_| state(row, "result")).transpose()?,
                message: row.get("message")?,
                output: row.get("output")?,
            })
        })?;
        latest.reverse();
        Ok(latest)
    }
}

/// The end of a text, where its cause stands.
fn last(text: &str) -> &str {
    let mut from = text.len().saturating_sub(OUTPUT_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_ended_counts_until_it_is_undone_and_what_runs_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let called = |point, what| Called { kind: CallKind::Hook, point, number: 1, what };
        let (before, after) = (called("before_copy", "a"), called("after_copy", "b"));
        for one in [before, after] {
            let id = store.begin_hook("p", "vm-1", one).unwrap();
            assert!(!store.is_hook_over("p", "vm-1", one).unwrap(), "it runs");
            store.end_hook(id, &Answer::new(HookResult::Passed, ""), true).unwrap();
            assert!(store.is_hook_over("p", "vm-1", one).unwrap());
        }
        assert!(!store.is_hook_over("p", "vm-1", called("before_copy", "another")).unwrap());
        assert!(!store.is_hook_over("p", "vm-2", before).unwrap());
        store.forget_hooks("p", "vm-1", "before_copy").unwrap();
        assert!(store.is_hook_over("p", "vm-1", before).unwrap());
        assert!(!store.is_hook_over("p", "vm-1", after).unwrap());
        let rows = store.hooks_of("p", "vm-1").unwrap();
        assert_eq!(rows.iter().map(|row| row.what.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(rows[1].result, Some(HookResult::Passed));
    }

    #[test]
    fn of_a_long_output_the_end_is_kept() {
        let text = format!("{}the cause", "ä".repeat(5000));
        assert!(last(&text).ends_with("the cause") && last(&text).len() <= OUTPUT_BYTES_MAX);
        assert_eq!(last("short"), "short");
    }
}
