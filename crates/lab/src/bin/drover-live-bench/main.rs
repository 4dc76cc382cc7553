//! `make bench-live`: how long running guests take to move, and for how long they stand still, by QEMU alone and by drover.
//!
//! Guests of `lab/guests/pulse.rs` under software emulation: the sizes asked for, with memory that was never touched (idle), filled
//! once (once), or written to all along at a set rate (continuous). For each of them all ways are gone in turns, each with two
//! new QEMUs whose memory is there beforehand. A way counts from the order to send until the guest runs at the target, by that QEMU's word;
//! what drover does before it sends is in the column beside. The guest is heard from outside, a hundred times a
//! second: it stood still between its last beat at the source and its first at the target. Then it proves all of its memory.
//! QEMU alone is tuned as well as it can be by hand: no limit of its own to the rate, and the downtime that drover promises.
//! "x direct" is the time beside that of QEMU alone: on loopback in the best of its ways without TLS, on the line in one connection with cubic; that is
//! the limit where it was not done. Where both QEMUs share two cores, all but QEMU's plain ways are bound by the processor.
//!
//! | variable | default | |
//! |---|---|---|
//! | `DROVER_LIVE_SIZES` | `256 1024` | MiB of the guests' memory, with blanks |
//! | `DROVER_LIVE_GUESTS` | 1 | so many of that size together, with blanks; QEMU alone moves them all at once |
//! | `DROVER_LIVE_AT_ONCE` | as drover chooses | at most so many of drover's send at a time |
//! | `DROVER_LIVE_MEMORY` | all | words of `idle once continuous` |
//! | `DROVER_LIVE_WRITES` | 50 | MB/s that a continuous guest writes to |
//! | `DROVER_LIVE_PLACES` | `here line` | this host's loopback; the long line, as root |
//! | `DROVER_LIVE_WAYS` | all | words that the name of a way must contain one of; `_` for a blank in them |
//! | `DROVER_LIVE_ROUNDS` | 3 | |
//! | `DROVER_LIVE_DOWNTIME` | 300 | ms that are promised |
//! | `DROVER_LIVE_LIMIT` | 120 | seconds after which a way is given up, and told by its rate |
//! | `DROVER_LIVE_RATE`, `_RTT`, `_LOSS` | `1g`, `55ms`, `0.5%` | of the line |
//! | `DROVER_LIVE_REPORTS` | none | a folder for the reports (JSON) of drover's moves |
//! | `DROVER_PROGRAM` | `target/release/drover` | |
#![forbid(unsafe_code)]

mod alone;
mod ground;
mod ours;
mod run;
mod ways;

use std::time::Instant;

use anyhow::{Result, ensure};
use drover_lab::bench::{machine, spread, variable};
use drover_lab::{Pulse, PulseOptions};

use crate::ground::{Line, Place};
use crate::run::{Run, Terms, run};
use crate::ways::Way;

fn main() -> Result<()> {
    ensure!(Pulse::qemu().is_some(), "no QEMU for live migration");
    let rounds: usize = variable("DROVER_LIVE_ROUNDS", 3)?;
    let (terms, line) = (Terms::from_environment()?, Line::from_environment()?);
    let places: String = variable("DROVER_LIVE_PLACES", "here line".to_string())?;
    let ways: String = variable("DROVER_LIVE_WAYS", String::new())?;
    println!("machine: {}", machine());
    println!(
        "{} ms promised, {} s at most, {rounds} rounds, in turns; the line: {line}\n",
        terms.downtime_ms, terms.limit_s
    );
    let begun = Instant::now();
    for guest in guests()? {
        for place in [Place::Here, Place::Line].into_iter().filter(|place| places.contains(place.word())) {
            let ways: Vec<Way> =
                ways::all(place).into_iter().filter(|way| is_wanted(&ways, &way.name)).collect();
            table(&guest, place, ways, rounds, &terms, &line);
        }
    }
    println!("all of it took {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

fn is_wanted(words: &str, name: &str) -> bool {
    words.is_empty() || words.split_whitespace().any(|word| name.contains(&word.replace('_', " ")))
}

/// A guest to move.
struct Guest {
    name: String,
    options: PulseOptions,
    /// So many of them.
    number: usize,
}

/// Pages that an idle guest fills: it has to have some.
const IDLE_PAGES: u32 = 256;
/// Of a guest's memory, what is not its pages.
const REST_MIB: u64 = 8;

fn guests() -> Result<Vec<Guest>> {
    let sizes: String = variable("DROVER_LIVE_SIZES", "256 1024".to_string())?;
    let memory: String = variable("DROVER_LIVE_MEMORY", "idle once continuous".to_string())?;
    let writes: u32 = variable("DROVER_LIVE_WRITES", 50)?;
    let numbers: String = variable("DROVER_LIVE_GUESTS", "1".to_string())?;
    let numbers = numbers.split_whitespace().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let mut guests = Vec::new();
    for (number, size) in
        numbers.iter().flat_map(|number| sizes.split_whitespace().map(move |size| (*number, size)))
    {
        let memory_mib: u64 = size.parse()?;
        let pages = u32::try_from(memory_mib.saturating_sub(REST_MIB) << 8)?;
        let options = |pages, pages_per_beat| PulseOptions {
            memory_mib,
            pages,
            pages_per_beat,
            ..PulseOptions::default()
        };
        for word in memory.split_whitespace() {
            let (words, options) = match word {
                "idle" => ("idle".to_string(), options(IDLE_PAGES, 0)),
                "once" => ("filled once".to_string(), options(pages, 0)),
                // A hundred beats a second, pages of 4 KiB.
                "continuous" => {
                    (format!("written to at {writes} MB/s"), options(pages, writes * 10_000 / 4096))
                }
                other => anyhow::bail!("DROVER_LIVE_MEMORY: '{other}'"),
            };
            let times = if number > 1 { format!("{number} x ") } else { String::new() };
            guests.push(Guest { name: format!("{times}{memory_mib} MiB, {words}"), options, number });
        }
    }
    Ok(guests)
}

/// Median and spread; nothing where nothing was heard.
fn ms_words(values: Vec<f64>) -> String {
    if values.is_empty() {
        return "-".into();
    }
    let (low, median, high) = spread(values.into_iter());
    format!("{median:.0} ({low:.0}-{high:.0})")
}

/// A way, and what came of it.
struct Row {
    way: Way,
    runs: Vec<Run>,
    failures: Vec<String>,
}

fn table(guest: &Guest, place: Place, ways: Vec<Way>, rounds: usize, terms: &Terms, line: &Line) {
    let mut rows: Vec<Row> =
        ways.into_iter().map(|way| Row { way, runs: Vec::new(), failures: Vec::new() }).collect();
    if rows.is_empty() {
        return;
    }
    for round in 1..=rounds {
        for row in &mut rows {
            match run(&row.way, (guest.number, &guest.options), terms, line, round as u64) {
                Ok(run) => {
                    eprintln!("round {round}, {}: {:.2} s", row.way.name, run.seconds);
                    row.runs.push(run);
                }
                Err(error) => {
                    eprintln!("round {round}, {}: {error:#}", row.way.name);
                    row.failures.push(format!("{error:#}"));
                }
            }
        }
    }
    println!("## {}, {}\n", guest.name, place.words());
    println!(
        "| way | s | spread | s before | MiB | Gbit/s | x direct | stood still, ms | QEMU's count, ms | CPU s | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    // QEMU alone at its best, or on the line as it comes.
    let direct = match place {
        Place::Here => rows.iter().filter(|row| row.way.is_direct).filter_map(Row::seconds).reduce(f64::min),
        Place::Line => rows.iter().find(|row| row.way.is_direct).and_then(Row::seconds),
    };
    rows.iter().for_each(|row| row.print(direct, terms.downtime_ms));
    println!();
}

impl Row {
    fn seconds(&self) -> Option<f64> {
        (!self.runs.is_empty()).then(|| spread(self.runs.iter().map(|run| run.seconds)).1)
    }

    fn print(&self, direct: Option<f64>, promised_ms: u64) {
        let of = |value: fn(&Run) -> f64| spread(self.runs.iter().map(value));
        let (low, seconds, high) = of(|run| run.seconds);
        let heard = ms_words(self.runs.iter().filter_map(|run| run.stood_still_ms).collect());
        let counted =
            ms_words(self.runs.iter().filter_map(|run| run.counted_ms.map(|ms| ms as f64)).collect());
        let beside = direct.map_or("-".into(), |direct| format!("{:.2}", seconds / direct));
        if self.runs.is_empty() {
            println!("| {} | | | | | | | | | | {} |", self.way.name, self.notes(promised_ms).join("; "));
            return;
        }
        println!(
            "| {} | {seconds:.2} | {low:.2}-{high:.2} | {:.2} | {:.0} | {:.2} | {beside} | {heard} | {counted} | {:.1} | {} |",
            self.way.name,
            of(|run| run.before_s).1,
            of(|run| run.bytes as f64 / f64::from(1 << 20)).1,
            of(|run| run.bytes as f64 * 8.0 / 1e9 / run.seconds.max(1e-6)).1,
            of(|run| run.cpu_s).1,
            self.notes(promised_ms).join("; ")
        );
    }

    fn notes(&self, promised_ms: u64) -> Vec<String> {
        let all = self.runs.len() + self.failures.len();
        let late = self.runs.iter().filter(|run| !run.is_done).count();
        let late = (late > 0).then(|| format!("not done in {late} of {all} runs"));
        let failed =
            self.failures.last().map(|why| format!("failed in {} of {all} runs: {why}", self.failures.len()));
        let doubts: Vec<&str> = self.runs.iter().filter_map(|run| run.doubt.as_deref()).collect();
        let foreseen: Vec<bool> = self.runs.iter().filter_map(Run::is_as_foreseen).collect();
        let kept = self
            .runs
            .iter()
            .filter(|run| run.stood_still_ms.is_some_and(|ms| ms <= promised_ms as f64))
            .count();
        let promise = (!foreseen.is_empty()).then(|| {
            let right = foreseen.iter().filter(|is_right| **is_right).count();
            format!(
                "as long as foreseen, within a fifth, in {right} of {0}; promise kept in {kept} of {0}",
                foreseen.len()
            )
        });
        let doubt = doubts.last().map(|why| format!("in doubt in {} of {all} runs: {why}", doubts.len()));
        [late, failed, promise, doubt].into_iter().flatten().collect()
    }
}
