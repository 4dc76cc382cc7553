//! What came of the ways of a table, for people and machines.

use std::time::Duration;

use anyhow::{Error, Result};
use serde_json::{Value, json};

use super::run::Run;
use super::tables::{Path, Table};
use crate::cli::{MemoryUse, Place};
use crate::out::{line, say};

/// A way, and what came of it.
pub struct Row {
    pub way: Path,
    runs: Vec<Run>,
    failures: Vec<String>,
    /// Why it is not gone.
    pub absent: Option<String>,
}

/// Smallest, median and largest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    /// Of two in the middle their mean; nothing of nothing.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let (one, other) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Spread { low, median: f64::midpoint(one, other), high })
    }

    fn ms(spread: Option<Spread>) -> String {
        spread.map_or("-".into(), |it| format!("{:.0} ({:.0}-{:.0})", it.median, it.low, it.high))
    }

    fn json(spread: Option<Spread>) -> Value {
        spread.map_or(Value::Null, |it| json!({"median": it.median, "min": it.low, "max": it.high}))
    }
}

impl Row {
    pub fn new(way: Path) -> Row {
        Row { way, runs: Vec::new(), failures: Vec::new(), absent: None }
    }

    /// Takes in a run, and tells of it.
    pub fn add(&mut self, table: &Table, round: u16, run: Result<Run>, is_json: bool) {
        if is_json {
            line(run_document(table, &self.way, round, &run));
        }
        match run {
            Ok(run) => {
                let not = if run.is_done { "" } else { ", not done" };
                say(format_args!("round {round}, {}: {:.2} s{not}", self.way.name(), run.seconds));
                self.runs.push(run);
            }
            Err(error) => {
                say(format_args!("round {round}, {}: {error:#}", self.way.name()));
                self.failures.push(format!("{error:#}"));
            }
        }
    }

    fn of(&self, value: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(value))
    }

    fn seconds(&self) -> Option<f64> {
        self.of(|run| Some(run.seconds)).map(|it| it.median)
    }

    fn print(&self, direct: Option<f64>, promised: Duration) {
        let notes = self.notes(promised).join("; ");
        let Some(seconds) = self.of(|run| Some(run.seconds)) else {
            line(format_args!("| {} | | | | | | | | | | {notes} |", self.way.name()));
            return;
        };
        let median = |value: fn(&Run) -> f64| self.of(|run| Some(value(run))).map_or(0.0, |it| it.median);
        line(format_args!(
            "| {} | {:.2} | {:.2}-{:.2} | {:.2} | {:.0} | {:.2} | {} | {} | {} | {:.1} | {notes} |",
            self.way.name(),
            seconds.median,
            seconds.low,
            seconds.high,
            median(|run| run.before_s),
            median(|run| run.bytes as f64 / f64::from(1 << 20)),
            median(Run::gbit_per_s),
            direct.map_or("-".into(), |direct| format!("{:.2}", seconds.median / direct)),
            Spread::ms(self.of(|run| run.stood_still_ms)),
            Spread::ms(self.of(|run| run.counted_ms.map(|ms| ms as f64))),
            median(|run| run.cpu_s),
        ));
    }

    fn document(&self, table: &Table, direct: Option<f64>, promised: Duration) -> Value {
        let mut document = described(table, &self.way);
        let beside = self.seconds().zip(direct).map(|(seconds, direct)| seconds / direct);
        let rest = json!({
            "event": "row",
            "runs": self.runs.len(),
            "runs_failed": self.failures.len(),
            "seconds": Spread::json(self.of(|run| Some(run.seconds))),
            "before_s": Spread::json(self.of(|run| Some(run.before_s))),
            "sent_bytes": Spread::json(self.of(|run| Some(run.bytes as f64))),
            "gbit_per_s": Spread::json(self.of(|run| Some(run.gbit_per_s()))),
            "times_direct": beside,
            "stood_still_ms": Spread::json(self.of(|run| run.stood_still_ms)),
            "downtime_ms_by_qemu": Spread::json(self.of(|run| run.counted_ms.map(|ms| ms as f64))),
            "cpu_s": Spread::json(self.of(|run| Some(run.cpu_s))),
            "notes": self.notes(promised),
        });
        merge(&mut document, rest);
        document
    }

    fn notes(&self, promised: Duration) -> Vec<String> {
        let all = self.runs.len() + self.failures.len();
        let late = self.runs.iter().filter(|run| !run.is_done).count();
        let late = (late > 0).then(|| format!("not done in {late} of {all} runs"));
        let failed = self
            .failures
            .last()
            .map(|why| format!("no figures in {} of {all} runs: {why}", self.failures.len()));
        let wrote = self.of(|run| run.wrote_less);
        let wrote = wrote.map(|it| format!("a guest wrote to {:.0} MB/s only", it.low / 1e6));
        let foreseen: Vec<bool> = self.runs.iter().filter_map(Run::is_as_foreseen).collect();
        let promise = (!foreseen.is_empty()).then(|| {
            let promised_ms = promised.as_secs_f64() * 1e3;
            let is_kept = |run: &&Run| run.stood_still_ms.is_some_and(|ms| ms <= promised_ms);
            format!(
                "as long as foreseen, within a fifth, in {right} of {0}; promise kept in {kept} of {1}",
                foreseen.len(),
                self.runs.len(),
                right = foreseen.iter().filter(|is_right| **is_right).count(),
                kept = self.runs.iter().filter(is_kept).count(),
            )
        });
        let doubts: Vec<&str> = self.runs.iter().filter_map(|run| run.doubt.as_deref()).collect();
        let doubt = doubts.last().map(|why| format!("in doubt in {} of {all} runs: {why}", doubts.len()));
        [self.absent.clone(), late, failed, wrote, promise, doubt].into_iter().flatten().collect()
    }
}

/// Tells a table.
pub fn tell(table: &Table, rows: &[Row], promised: Duration, is_json: bool) {
    // QEMU alone at its best, or on the line as it comes.
    let mut of_direct = rows.iter().filter(|row| row.way.way.is_direct()).filter_map(Row::seconds);
    let direct = match table.place {
        Place::Here => of_direct.reduce(f64::min),
        Place::Line => of_direct.next(),
    };
    if is_json {
        rows.iter().for_each(|row| line(row.document(table, direct, promised)));
        return;
    }
    line(format_args!("## {}\n", table.name()));
    line(
        "| way | s | spread | s before | MiB | Gbit/s | x direct | stood still, ms | QEMU's count, ms | CPU s | |",
    );
    line("|---|---|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| row.print(direct, promised));
    line("");
}

/// What every event tells of its guests and its way.
fn described(table: &Table, way: &Path) -> Value {
    let guest = &table.guest;
    let is_writing = guest.memory == MemoryUse::Continuous;
    json!({
        "place": table.place.word(),
        "guests": guest.number,
        "size_mib": guest.memory_mib,
        "memory": guest.memory.word(),
        "writes_bytes_per_s": is_writing.then(|| guest.writes.bytes_per_s()),
        "pattern": is_writing.then(|| guest.pattern.word()),
        "way": way.way.to_string(),
        "chunk_bytes": way.chunk,
    })
}

fn run_document(table: &Table, way: &Path, round: u16, run: &Result<Run, Error>) -> Value {
    let mut document = described(table, way);
    let rest = match run {
        Err(error) => json!({"error": format!("{error:#}")}),
        Ok(run) => json!({
            "seconds": run.seconds,
            "before_s": run.before_s,
            "sent_bytes": run.bytes,
            "gbit_per_s": run.gbit_per_s(),
            "stood_still_ms": run.stood_still_ms,
            "downtime_ms_by_qemu": run.counted_ms,
            "is_done": run.is_done,
            "is_sound": run.is_done.then_some(true),
            "cpu_s": run.cpu_s,
            "foreseen_s": run.foreseen_s,
            "wrote_bytes_per_s_only": run.wrote_less,
            "doubt": run.doubt,
        }),
    };
    merge(&mut document, json!({"event": "run", "round": round}));
    merge(&mut document, rest);
    document
}

fn merge(document: &mut Value, more: Value) {
    if let (Some(document), Value::Object(more)) = (document.as_object_mut(), more) {
        document.extend(more);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cli::{Pattern, Writes};
    use crate::commands::bench::tables::Guest;

    fn run(seconds: f64, stood_still_ms: Option<f64>) -> Run {
        Run {
            seconds,
            before_s: 0.1,
            bytes: 1 << 20,
            stood_still_ms,
            counted_ms: Some(3),
            is_done: stood_still_ms.is_some(),
            cpu_s: 1.0,
            foreseen_s: Some(1.0),
            wrote_less: None,
            doubt: None,
        }
    }

    fn table() -> Table {
        let (memory, pattern) = (MemoryUse::Once, Pattern::Random);
        let guest =
            Guest { number: 2, memory_mib: 64, memory, writes: Writes { pages_per_beat: 9 }, pattern };
        Table { guest, place: Place::Here, ways: Vec::new() }
    }

    fn row(runs: Vec<Run>) -> Row {
        Row { runs, ..Row::new(Path { way: "link".parse().unwrap(), chunk: None }) }
    }

    #[test]
    fn a_row_tells_medians_and_what_speaks_against_them() {
        let mut row = row(vec![run(1.1, Some(90.0)), run(0.9, Some(400.0)), run(5.0, None)]);
        row.failures.push("QEMU ended".to_string());
        let document = row.document(&table(), Some(0.5), Duration::from_millis(300));
        assert_eq!(document["seconds"], json!({"median": 1.1, "min": 0.9, "max": 5.0}));
        assert_eq!(document["times_direct"], 2.2);
        assert_eq!(document["stood_still_ms"]["max"], 400.0);
        assert_eq!((&document["guests"], &document["way"]), (&json!(2), &json!("link")));
        let notes = row.notes(Duration::from_millis(300)).join("; ");
        for words in [
            "not done in 1 of 4 runs",
            "no figures in 1 of 4 runs: QEMU ended",
            "within a fifth, in 2 of 3",
            "kept in 1 of 3",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }

    #[test]
    fn a_way_that_is_not_gone_has_no_figures() {
        let mut row = row(Vec::new());
        row.absent = Some("no card on this host".to_string());
        let document = row.document(&table(), Some(0.5), Duration::from_millis(300));
        let figures = ["seconds", "sent_bytes", "gbit_per_s", "times_direct", "stood_still_ms", "cpu_s"];
        assert!(figures.iter().all(|name| document[name].is_null()), "{document}");
        assert_eq!(document["notes"], json!(["no card on this host"]));
    }

    #[test]
    fn figures_lie_between_the_smallest_and_the_largest() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { low: 1.0, median: 2.0, high: 3.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 3.0, 2.0]), Some(Spread { low: 1.0, median: 2.5, high: 9.0 }));
        assert_eq!(Spread::ms(Spread::of([7.4])), "7 (7-7)");
    }
}
