//! What came of the ways of a table, for people and machines.

use anyhow::{Error, Result};
use drover_console::out::{line, say};
use serde_json::{Value, json};

use super::ours::Refused;
use super::run::{Run, Terms, Unsound};
use super::tables::{Path, Table};
use crate::cli::{MemoryUse, Place};

/// A way, and what came of it.
pub struct Row {
    pub way: Path,
    runs: Vec<Run>,
    failures: Vec<(Kind, String)>,
    /// Why it is not gone.
    pub absent: Option<String>,
}

/// What a run is that has no figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Drover kept its promise by moving nothing.
    Refused,
    Failed,
    /// A guest's memory was not what it was.
    Unsound,
}

impl Kind {
    pub fn of(error: &Error) -> Kind {
        match (error.is::<Unsound>(), error.is::<Refused>()) {
            (true, _) => Kind::Unsound,
            (false, true) => Kind::Refused,
            (false, false) => Kind::Failed,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Refused => "refused",
            Kind::Failed => "failed",
            Kind::Unsound => "unsound",
        }
    }
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
                let not = run.late.as_ref().map(|why| format!(", not done: {why}")).unwrap_or_default();
                say(format_args!("round {round}, {}: {:.2} s{not}", self.way.name(), run.seconds));
                self.runs.push(run);
            }
            Err(error) => {
                say(format_args!("round {round}, {}: {error:#}", self.way.name()));
                self.failures.push((Kind::of(&error), format!("{error:#}")));
            }
        }
    }

    /// Of runs that are done, if there are any.
    fn of(&self, value: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        let is_any_done = self.is_any_done();
        let runs = self.runs.iter().filter(|run| run.is_done() || !is_any_done);
        Spread::of(runs.filter_map(value))
    }

    fn is_any_done(&self) -> bool {
        self.runs.iter().any(Run::is_done)
    }

    /// What ways are compared by: the limit where it was never done.
    fn compared_s(&self, terms: Terms) -> Option<f64> {
        match self.is_any_done() {
            true => self.of(|run| Some(run.seconds)).map(|it| it.median),
            false => (!self.runs.is_empty()).then_some(terms.limit.as_secs_f64()),
        }
    }

    fn times(&self, direct: Option<f64>, terms: Terms) -> Option<f64> {
        self.compared_s(terms).zip(direct).map(|(seconds, direct)| seconds / direct)
    }

    fn print(&self, direct: Option<f64>, terms: Terms) {
        let notes = self.notes(terms).join("; ");
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
            median(|run| run.beside_s),
            median(|run| run.bytes as f64 / f64::from(1 << 20)),
            median(Run::gbit_per_s),
            self.times(direct, terms).map_or("-".into(), |times| format!("{times:.2}")),
            Spread::ms(self.of(|run| run.downtime_ms)),
            Spread::ms(self.of(|run| run.counted_ms.map(|ms| ms as f64))),
            median(|run| run.cpu_s),
        ));
    }

    fn document(&self, table: &Table, direct: Option<f64>, terms: Terms) -> Value {
        let mut document = described(table, &self.way);
        let count = |kind: Kind| self.failures.iter().filter(|(other, _)| *other == kind).count();
        let rest = json!({
            "event": "row",
            "runs": self.runs.len(),
            "runs_not_done": self.runs.iter().filter(|run| !run.is_done()).count(),
            "runs_refused": count(Kind::Refused),
            "runs_failed": count(Kind::Failed),
            "runs_unsound": count(Kind::Unsound),
            "seconds": Spread::json(self.of(|run| Some(run.seconds))),
            "beside_s": Spread::json(self.of(|run| Some(run.beside_s))),
            "sent_bytes": Spread::json(self.of(|run| Some(run.bytes as f64))),
            "gbit_per_s": Spread::json(self.of(|run| Some(run.gbit_per_s()))),
            "times_direct": self.times(direct, terms),
            "downtime_ms": Spread::json(self.of(|run| run.downtime_ms)),
            "downtime_ms_by_qemu": Spread::json(self.of(|run| run.counted_ms.map(|ms| ms as f64))),
            "cpu_s": Spread::json(self.of(|run| Some(run.cpu_s))),
            "notes": self.notes(terms),
        });
        merge(&mut document, rest);
        document
    }

    /// The worst first.
    fn notes(&self, terms: Terms) -> Vec<String> {
        let all = self.runs.len() + self.failures.len();
        let of = |what: &str, whys: &[&str]| {
            let number = whys.len();
            whys.last().map(|why| format!("{what} in {number} of {all} runs: {why}"))
        };
        let failed = [Kind::Unsound, Kind::Failed, Kind::Refused].map(|kind| {
            let failures = self.failures.iter().filter(|(other, _)| *other == kind);
            of("no figures", &failures.map(|(_, why)| why.as_str()).collect::<Vec<_>>())
        });
        let late =
            of("not done", &self.runs.iter().filter_map(|run| run.late.as_deref()).collect::<Vec<_>>());
        let wrote = Spread::of(self.runs.iter().filter_map(|run| run.wrote_less));
        let wrote = wrote.map(|it| format!("a guest wrote to {:.0} MB/s only", it.low / 1e6));
        let foreseen: Vec<bool> = self.runs.iter().filter_map(Run::is_as_foreseen).collect();
        let promise = (!foreseen.is_empty()).then(|| {
            let promised_ms = terms.downtime.as_secs_f64() * 1e3;
            let is_kept = |run: &&Run| run.downtime_ms.is_some_and(|ms| ms <= promised_ms);
            format!(
                "as long as foreseen, within a fifth, in {right} of {0}; promise kept in {kept} of {1}",
                foreseen.len(),
                self.runs.len(),
                right = foreseen.iter().filter(|is_right| **is_right).count(),
                kept = self.runs.iter().filter(is_kept).count(),
            )
        });
        let doubt =
            of("in doubt", &self.runs.iter().filter_map(|run| run.doubt.as_deref()).collect::<Vec<_>>());
        let ways = self.runs.iter().filter_map(|run| run.chosen.as_ref()).collect::<Vec<_>>();
        let chosen = (!ways.is_empty()).then(|| {
            let directly = ways.iter().filter(|way| **way == "direct").count();
            format!("directly in {directly} of {}, else over the link", ways.len())
        });
        let [unsound, failed, refused] = failed;
        let all = [self.absent.clone(), unsound, failed, refused, late, wrote, promise, chosen, doubt];
        all.into_iter().flatten().collect()
    }
}

/// Tells a table.
pub fn tell(table: &Table, rows: &[Row], terms: Terms, is_json: bool) {
    // QEMU alone at its best, or on the line as it comes.
    let of_direct = rows.iter().filter(|row| row.way.way.is_direct());
    let mut of_direct = of_direct.filter_map(|row| row.compared_s(terms));
    let direct = match table.place {
        Place::Here => of_direct.reduce(f64::min),
        Place::Line => of_direct.next(),
    };
    if is_json {
        rows.iter().for_each(|row| line(row.document(table, direct, terms)));
        return;
    }
    line(format_args!("## {}\n", table.name()));
    line(
        "| way | s | spread | s beside | MiB | Gbit/s | x direct | downtime, ms | QEMU's count, ms | CPU s | |",
    );
    line("|---|---|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| row.print(direct, terms));
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
        Err(error) => json!({"error": format!("{error:#}"), "kind": Kind::of(error).word()}),
        Ok(run) => json!({
            "seconds": run.seconds,
            "beside_s": run.beside_s,
            "sent_bytes": run.bytes,
            "gbit_per_s": run.gbit_per_s(),
            "downtime_ms": run.downtime_ms,
            "downtime_ms_by_qemu": run.counted_ms,
            "is_done": run.is_done(),
            "not_done_because": run.late,
            "is_sound": run.is_done().then_some(true),
            "cpu_s": run.cpu_s,
            "foreseen_s": run.foreseen_s,
            "chosen": run.chosen,
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
    use std::time::Duration;

    use anyhow::anyhow;
    use drover_pulse::Verdict;

    use super::*;
    use crate::cli::{Pattern, Writes};
    use crate::memory::tables::Guest;

    const TERMS: Terms =
        Terms { downtime: Duration::from_millis(300), limit: Duration::from_secs(8), at_once: None };

    fn run(seconds: f64, downtime_ms: Option<f64>) -> Run {
        Run {
            seconds,
            beside_s: 0.1,
            bytes: 1 << 20,
            downtime_ms,
            counted_ms: Some(3),
            late: downtime_ms.is_none().then(|| "the deadline is here".to_string()),
            cpu_s: 1.0,
            foreseen_s: Some(1.0),
            chosen: None,
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
        row.failures.push((Kind::Failed, "QEMU ended".to_string()));
        let document = row.document(&table(), Some(0.5), TERMS);
        // What is not done is not among them.
        assert_eq!(document["seconds"], json!({"median": 1.0, "min": 0.9, "max": 1.1}));
        assert_eq!(document["times_direct"], 2.0);
        assert_eq!(document["downtime_ms"]["max"], 400.0);
        assert_eq!((&document["guests"], &document["way"]), (&json!(2), &json!("link")));
        let notes = row.notes(TERMS).join("; ");
        for words in [
            "not done in 1 of 4 runs: the deadline is here",
            "no figures in 1 of 4 runs: QEMU ended",
            "within a fifth, in 2 of 3",
            "kept in 1 of 3",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }

    #[test]
    fn a_way_that_is_never_done_is_told_by_its_rate_and_compared_by_the_limit() {
        let row = row(vec![run(7.6, None), run(7.4, None)]);
        let document = row.document(&table(), Some(2.0), TERMS);
        assert_eq!(document["seconds"]["median"], 7.5);
        assert_eq!((&document["times_direct"], &document["runs_not_done"]), (&json!(4.0), &json!(2)));
    }

    #[test]
    fn what_is_worse_is_told_first_and_hidden_by_nothing_that_comes_later() {
        let mut row = row(vec![run(1.0, Some(9.0))]);
        let unsound = Unsound(Verdict { bad_pages: 2, writes_found: 3, writes_counted: 4 });
        let errors = [Error::new(unsound), anyhow!("QEMU ended"), Error::new(Refused("no way".into()))];
        for error in errors {
            row.failures.push((Kind::of(&error), format!("{error:#}")));
        }
        let notes = row.notes(TERMS);
        assert!(
            notes[0].contains("no figures in 1 of 4 runs: a guest's memory is not what it was"),
            "{notes:?}"
        );
        assert_eq!(notes[1], "no figures in 1 of 4 runs: QEMU ended");
        assert_eq!(notes[2], "no figures in 1 of 4 runs: refused: no way");
        let document = row.document(&table(), None, TERMS);
        for count in ["runs", "runs_refused", "runs_failed", "runs_unsound"] {
            assert_eq!(document[count], 1, "{count}");
        }
    }

    #[test]
    fn a_way_that_is_not_gone_has_no_figures() {
        let mut row = row(Vec::new());
        row.absent = Some("no card on this host".to_string());
        let document = row.document(&table(), Some(0.5), TERMS);
        let figures = ["seconds", "sent_bytes", "gbit_per_s", "times_direct", "downtime_ms", "cpu_s"];
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
