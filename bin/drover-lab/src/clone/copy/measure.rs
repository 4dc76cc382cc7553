//! Runs the programs of a case in turns and prints what came out.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use drover_lab::{PASSWORD, USER, lab_folder};

use crate::clone::copy::server::Server;
use crate::clone::shared::spread;

/// A case: programs that do the same work.
pub struct Case {
    pub name: &'static str,
    /// What is asked of drover against the best peer.
    pub goal: f64,
    pub bytes: u64,
    /// The first is drover.
    pub entries: Vec<Entry>,
    /// A file that each run makes anew, and what it has to equal.
    pub output: Option<Output>,
    /// What has to live while the case runs: servers, simulators.
    pub keep: Vec<Box<dyn std::any::Any>>,
    /// Servers whose CPU time is told beside the copier's.
    pub servers: Vec<u32>,
}

pub struct Output {
    pub path: PathBuf,
    pub equals: PathBuf,
    /// Format of what is made, as qemu-img calls it.
    pub format: &'static str,
}

/// One program in a case.
pub struct Entry {
    pub name: &'static str,
    pub command: Vec<String>,
    /// What it stands for.
    pub role: Role,
    /// A process that works for this program alone: what it uses of the CPU counts as the program's.
    pub helper: Option<u32>,
}

/// What a program in a case stands for. The first is drover, whatever it says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A copier that drover is held against.
    Peer,
    /// Drover by another way.
    Ours,
    /// What can be reached at all.
    Limit,
}

/// What one run took.
#[derive(Clone, Copy)]
pub struct Run {
    pub wall: f64,
    pub cpu: f64,
    pub peak_kib: f64,
    /// CPU seconds of the servers meanwhile.
    pub server_cpu: f64,
}

/// A case's result for the summary.
pub struct Outcome {
    name: &'static str,
    goal: f64,
    drover: f64,
    peer: &'static str,
    peer_seconds: f64,
    ratio: (f64, f64, f64),
    cpu: (f64, f64),
    server_cpu: f64,
    peak_mib: (f64, f64),
    limit: Option<f64>,
}

impl Case {
    pub fn keep(mut self, server: Server) -> Case {
        self.servers.push(server.pid());
        self.keep.push(Box::new(server));
        self
    }

    pub fn run(&self, rounds: usize) -> Result<Outcome> {
        let mut runs: Vec<Vec<Run>> = self.entries.iter().map(|_| Vec::new()).collect();
        // One round that does not count warms the cache of the source; what it made is compared.
        for round in 0..=rounds {
            for (entry, index) in turns(round, self.entries.len()).map(|index| (&self.entries[index], index))
            {
                if let Some(output) = &self.output {
                    remove(&output.path)?;
                }
                let made = self.output.as_ref().map(|output| output.path.as_path());
                let helper_cpu = || entry.helper.map_or(0.0, cpu_s);
                let before = (self.server_cpu(), helper_cpu());
                let mut run = measure(&entry.command, made).with_context(|| entry.name)?;
                run.server_cpu = self.server_cpu() - before.0;
                run.cpu += helper_cpu() - before.1;
                eprintln!("{}, round {round} of {rounds}: {}: {:.2} s", self.name, entry.name, run.wall);
                match &self.output {
                    Some(output) if round == 0 && entry.role != Role::Limit => output.check(entry.name)?,
                    _ => {}
                }
                if round > 0 {
                    runs[index].push(run);
                }
            }
        }
        if let Some(output) = &self.output {
            remove(&output.path)?;
        }
        self.print(&runs);
        Ok(self.outcome(&runs))
    }

    /// CPU seconds that the servers have used so far.
    fn server_cpu(&self) -> f64 {
        self.servers.iter().copied().map(cpu_s).sum()
    }

    fn print(&self, runs: &[Vec<Run>]) {
        println!("\n## {}\n", self.name);
        println!(
            "| program | median s | min-max s | GB/s | % of the limit | CPU s | CPU s/GB | of the servers | peak MiB | drover is ... times as fast |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        let limit = self.limit(runs);
        for (entry, of_entry) in self.entries.iter().zip(runs) {
            let (low, median, high) = spread(of_entry.iter().map(|run| run.wall));
            let (ratio_low, ratio, ratio_high) = ratios(of_entry, &runs[0]);
            let (gb, cpu) = (self.bytes as f64 / 1e9, spread(of_entry.iter().map(|run| run.cpu)).1);
            println!(
                "| {} | {median:.2} | {low:.2}-{high:.2} | {:.2} | {} | {cpu:.2} | {:.2} | {:.2} | {:.0} | {ratio:.2} ({ratio_low:.2}-{ratio_high:.2}) |",
                entry.name,
                gb / median,
                limit.map_or(String::new(), |limit| format!("{:.0}", 100.0 * limit / median)),
                cpu / gb,
                spread(of_entry.iter().map(|run| run.server_cpu)).1,
                spread(of_entry.iter().map(|run| run.peak_kib)).1 / 1024.0,
            );
        }
    }

    /// Seconds of the slowest thing that every program of the case has to do at least.
    fn limit(&self, runs: &[Vec<Run>]) -> Option<f64> {
        let limits = self.entries.iter().zip(runs).filter(|(entry, _)| entry.role == Role::Limit);
        limits.map(|(_, runs)| spread(runs.iter().map(|run| run.wall)).1).reduce(f64::max)
    }

    /// The best peer is the one with the best median.
    fn outcome(&self, runs: &[Vec<Run>]) -> Outcome {
        let median = |runs: &[Run]| spread(runs.iter().map(|run| run.wall)).1;
        let cpu = |runs: &[Run]| spread(runs.iter().map(|run| run.cpu)).1;
        let of = |role| self.entries.iter().zip(runs).skip(1).filter(move |(entry, _)| entry.role == role);
        let peak = |runs: &[Run]| spread(runs.iter().map(|run| run.peak_kib)).1 / 1024.0;
        let best = of(Role::Peer).min_by(|a, b| median(a.1).total_cmp(&median(b.1)));
        let (name, of_best) = best.map_or(("none", &runs[0]), |(entry, runs)| (entry.name, runs));
        Outcome {
            name: self.name,
            goal: self.goal,
            drover: median(&runs[0]),
            peer: name,
            peer_seconds: median(of_best),
            ratio: ratios(of_best, &runs[0]),
            cpu: (cpu(&runs[0]), cpu(of_best)),
            server_cpu: spread(runs[0].iter().map(|run| run.server_cpu)).1,
            peak_mib: (peak(&runs[0]), peak(of_best)),
            limit: self.limit(runs),
        }
    }
}

impl Output {
    fn check(&self, name: &str) -> Result<()> {
        let same = Command::new("qemu-img")
            .args(["compare", "-q", "-f", self.format, "-F", "raw"])
            .args([&self.path, &self.equals])
            .status()?;
        if same.success() { Ok(()) } else { bail!("{name} did not copy what there was") }
    }
}

/// CPU seconds that a process has used so far; 0 if it is gone.
pub fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // User and system time, in hundredths, come 12th and 13th after the name in brackets.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap_or(0.0)).sum::<f64>() / 100.0
}

/// A table of the cases.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| case | drover s | best peer | peer s | ratio (spread) | goal | CPU s drover / peer / servers | peak MiB drover / peer | limit s |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for it in outcomes {
        let (low, ratio, high) = it.ratio;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {:.2} | {} | {:.2} | {ratio:.2} ({low:.2}-{high:.2}) | {:.2} | {:.2} / {:.2} / {:.2} | {:.0} / {:.0} | {} |",
            it.name,
            it.drover,
            it.peer,
            it.peer_seconds,
            it.goal,
            it.cpu.0,
            it.cpu.1,
            it.server_cpu,
            it.peak_mib.0,
            it.peak_mib.1,
            it.limit.map_or(String::new(), |limit| format!("{limit:.2}")),
        );
    }
    text
}

/// In turns: the ratio is taken within each round, where the machine was in the same mood.
fn ratios(of: &[Run], ours: &[Run]) -> (f64, f64, f64) {
    spread(of.iter().zip(ours).map(|(it, ours)| it.wall / ours.wall))
}

/// Runs a command under time(1), then makes what it made durable within the measured time.
pub fn measure(command: &[String], made: Option<&Path>) -> Result<Run> {
    let times = lab_folder().join("bench/times");
    let started = std::time::Instant::now();
    let status = Command::new("/usr/bin/time")
        .args(["-q", "-f", "%U %S %M", "-o"])
        .arg(&times)
        .args(command)
        .env("DROVER_PASSWORD", PASSWORD)
        .env("DROVER_USER", USER)
        // What other drovers of this machine took, or left behind, is not to count.
        .env("DROVER_NFC_LEDGER", lab_folder().join("bench/nfc-ledger"))
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    // curl and qemu-img leave data in the page cache; a copy counts when it is durable.
    if let Some(made) = made.filter(|made| made.is_file()) {
        File::open(made)?.sync_all()?;
    }
    let wall = started.elapsed().as_secs_f64();
    let said = std::fs::read_to_string(&times)?;
    let mut numbers = said.split_whitespace().map(|word| word.parse::<f64>().unwrap_or(0.0));
    let mut next = || numbers.next().unwrap_or(0.0);
    Ok(Run { cpu: next() + next(), wall, peak_kib: next(), server_cpu: 0.0 })
}

/// The order of a round: another one for each, and the same in each run of the bench. What one program leaves to the disk
/// and its file system, the next one pays for.
fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = round as u64 + 1;
    for last in (1..count).rev() {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(last, ((bits ^ (bits >> 31)) % (last as u64 + 1)) as usize);
    }
    order.into_iter()
}

pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
