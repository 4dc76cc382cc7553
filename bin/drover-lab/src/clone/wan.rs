//! `drover-lab bench wan` (`make bench-wan`): what programs get out of a long, narrow, lossy line.
//!
//! For each line and each congestion control one line is laid, and all programs send the same random bytes over it, in turns. What counts is bytes that
//! arrived at the other end's program, from the start of the sender until the receiver has them; a program that is not done after
//! one and a half times what the bare line would take is stopped, and what the line carried for it is told with "at most", because it may hold bytes sent twice.
//! Beside it stands the rate without the first second, in which streams and buffers grow.
//! One that has not brought a quarter of the line's rate three seconds after it began to send is stopped then.
//! A run that fails or does not end is told in its row, and the next one begins; what programs said is in `wan-told` beside the bytes. The link of a pair is
//! there before the time begins.
//! Before its table each line tells how true it is while nothing else uses it: round trips of 200 echoes by UDP, and how many of 400,000 datagrams are lost on the way up.
//! Each round of each line has losses of its own, the same in each run of the bench and for all programs of the round.
//! The congestion control told is what the sending sockets had in the middle of the run.
//!
//! | variable | default | |
//! |---|---|---|
//! | `DROVER_WAN_RATES` | `1g 2g` | rates, with blanks; those behind the first on some lines only, with BBR |
//! | `DROVER_WAN_LINES` | all | words that the name of a line must contain one of |
//! | `DROVER_WAN_CONGESTION` | `bbr`, at 0.5 % loss `cubic bbr` | on all lines |
//! | `DROVER_WAN_TOOLS` | all | words that the name of a program must contain one of |
//! | `DROVER_WAN_MORE` | 0 | 1: all programs, cubic on all lines; an hour instead of some 25 minutes |
//! | `DROVER_WAN_SECONDS` | 5 | how long the bare line takes for the bytes |
//! | `DROVER_WAN_ROUNDS` | 3 | |
//! | `DROVER_WAN_RTT` | `55ms` | |
//! | `DROVER_WAN_MTU` | 9000 | |
//! | `DROVER_WAN_POOL` | `/dev/shm`, or beside the bytes | a folder that disks are copied to |
//! | `DROVER_PROGRAM` | `target/release/drover` | measured as far as it knows the commands |

mod data;
mod idle;
mod lines;
mod measure;
mod ours;
mod tools;

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use drover_wan::WanSpec;
use drover_wan::line::units::Rate;

use crate::clone::shared::{spread, variable};
use crate::clone::wan::idle::Idle;
use crate::clone::wan::lines::{Condition, Ground};
use crate::clone::wan::measure::{Run, measure};
use crate::clone::wan::tools::Tool;
use crate::memory::machine;

/// What is asked for.
struct Wanted {
    lines: String,
    tools: String,
    congestion: String,
    rounds: usize,
    has_more: bool,
}

/// Runs the bench.
pub fn run() -> Result<()> {
    let wanted = Wanted {
        lines: variable("DROVER_WAN_LINES", String::new())?,
        tools: variable("DROVER_WAN_TOOLS", String::new())?,
        congestion: variable("DROVER_WAN_CONGESTION", String::new())?,
        rounds: variable("DROVER_WAN_ROUNDS", 3)?,
        has_more: variable("DROVER_WAN_MORE", 0)? != 0,
    };
    let ground = Ground::from_environment()?;
    println!("machine: {}", machine());
    println!(
        "line: round trip {:?}, MTU {}, TCP buffers 64 MiB; {} rounds, in turns\n",
        ground.rtt, ground.mtu, wanted.rounds
    );
    let (begun, pool) = (Instant::now(), data::pool()?);
    println!("copies to an agent go to {}\n", pool.display());
    for (at, rate) in ground.rates.iter().enumerate() {
        let is_top = at > 0;
        let is_asked = |it: &&Condition| is_wanted(&wanted.lines, it.name) && (it.at_top || !is_top);
        for condition in lines::all().iter().filter(is_asked) {
            if let Err(error) = table(&ground, *rate, condition, &wanted, is_top) {
                println!("this line was not measured: {error:#}\n");
            }
        }
    }
    if pool.exists() {
        std::fs::remove_dir_all(&pool)?;
    }
    println!("all of it took {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

fn is_wanted(words: &str, name: &str) -> bool {
    words.is_empty() || words.split_whitespace().any(|word| name.contains(word))
}

fn table(ground: &Ground, rate: Rate, condition: &Condition, wanted: &Wanted, is_top: bool) -> Result<()> {
    println!("## {rate}, {}\n", condition.name);
    let names = congestions(condition, wanted, is_top);
    let congestion = names.last().map_or("bbr", String::as_str);
    let seeds: Vec<u64> = (0..=wanted.rounds).map(|round| lines::seed(rate, condition, round)).collect();
    println!("seeds, of the idle line and of each round: {seeds:?}\n");
    match Idle::measure(&ground.spec(rate, condition, congestion, seeds[0])) {
        Ok(idle) => println!("{}\n", idle.text()),
        Err(error) => println!("idle, it was not measured: {error:#}\n"),
    }
    println!(
        "| program | congestion control | Mbit/s | % of the line | spread | % after the first second | MB on the line | |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let bytes = ground.bytes(rate);
    let file = data::random(bytes)?;
    for (at, congestion) in names.iter().enumerate() {
        let mut rows: Vec<Row> = tools::all(ground, &file, bytes, wanted.has_more)?
            .into_iter()
            .filter(|it| is_wanted(&wanted.tools, &it.name) && (at + 1 == names.len() || !it.chooses))
            .map(|tool| Row { tool, runs: Vec::new(), failures: Vec::new() })
            .collect();
        for (round, seed) in seeds.iter().enumerate().skip(1) {
            let spec = ground.spec(rate, condition, congestion, *seed);
            for row in &mut rows {
                row.run(&spec, ground.limit());
                eprintln!("round {round}, {}: {}", row.tool.name, row.last(rate));
            }
        }
        rows.iter().for_each(|row| row.print(rate));
    }
    println!();
    Ok(())
}

/// Congestion controls that a line is measured with, in turn.
fn congestions(condition: &Condition, wanted: &Wanted, is_top: bool) -> Vec<String> {
    let usual = if wanted.has_more || condition.is_telling { "cubic bbr" } else { "bbr" };
    let asked = if wanted.congestion.is_empty() { usual } else { &wanted.congestion };
    let asked = || asked.split_whitespace().map(str::to_string);
    let names: Vec<String> = asked().filter(|name| !is_top || name != "cubic").collect();
    if names.is_empty() { asked().collect() } else { names }
}

/// A program and what came out.
struct Row {
    tool: Tool,
    runs: Vec<Run>,
    /// Runs that did not work, and why.
    failures: Vec<String>,
}

impl Row {
    /// Runs the program once. That it fails is told in its row; the others go on.
    fn run(&mut self, spec: &WanSpec, limit: Duration) {
        let done = match self.tool.missing() {
            Some(program) => Err(anyhow!("there is no {program} here")),
            None => measure(&self.tool, spec, limit),
        };
        match done {
            Ok(run) => self.runs.push(run),
            Err(error) => self.failures.push(format!("{error:#}")),
        }
    }

    /// What the last run came to.
    fn last(&self, rate: Rate) -> String {
        match (self.runs.last(), self.failures.last()) {
            (Some(run), _) => format!("{:.1} %", 100.0 * run.bits_per_s / rate.bits_per_s() as f64),
            (None, failure) => format!("{failure:?}"),
        }
    }

    fn print(&self, rate: Rate) {
        let (low, median, high) = spread(self.runs.iter().map(|run| run.bits_per_s));
        let (_, later, _) = spread(self.runs.iter().map(|run| run.later_bits_per_s));
        let (_, carried, _) = spread(self.runs.iter().map(|run| run.carried_bytes));
        let percent = |bits: f64| 100.0 * bits / rate.bits_per_s() as f64;
        let congestion = self.runs.iter().map(|run| run.congestion.as_str()).find(|it| !it.is_empty());
        println!(
            "| {} | {} | {:.0} | {:.1} | {:.1}-{:.1} | {:.1} | {:.0} | {} |",
            self.tool.name,
            congestion.unwrap_or("?"),
            median / 1e6,
            percent(median),
            percent(low),
            percent(high),
            percent(later),
            carried / 1e6,
            self.notes().join("; ")
        );
    }

    fn notes(&self) -> Vec<String> {
        let count = |what: &str, count: usize, why: &str| {
            (count > 0)
                .then(|| format!("{what} in {count} of {} runs{why}", self.runs.len() + self.failures.len()))
        };
        let late = self.runs.iter().filter(|run| run.is_at_most).count();
        let doubts: Vec<&String> = self.runs.iter().filter_map(|run| run.doubt.as_ref()).collect();
        let last = |texts: Option<&String>| texts.map(|it| format!(": {it}")).unwrap_or_default();
        [
            count("at most this: not done in time", late, ""),
            count("in doubt", doubts.len(), &last(doubts.last().copied())),
            count("failed", self.failures.len(), &last(self.failures.last())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
