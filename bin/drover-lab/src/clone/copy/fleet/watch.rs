//! What processes take while they run, and what a report tells of when.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clone::copy::measure::cpu_s;

pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What some processes took together.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub wall: f64,
    pub cpu: f64,
    /// Most resident memory at once.
    pub peak_mib: f64,
    /// Most threads at once.
    pub threads: u64,
}

/// Looks at processes until they have ended, or `is_over` says so.
pub struct Watch {
    started: Instant,
    /// Milliseconds since 1970.
    pub started_ms: i64,
    cpu: Vec<f64>,
    usage: Usage,
}

impl Watch {
    pub fn new() -> Watch {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_ms = i64::try_from(now.as_millis()).unwrap_or(0);
        Watch { started: Instant::now(), started_ms, cpu: Vec::new(), usage: Usage::default() }
    }

    /// Takes in what these processes have now.
    pub fn look(&mut self, pids: &[u32]) {
        self.cpu.resize(pids.len().max(self.cpu.len()), 0.0);
        let (mut resident, mut threads) = (0, 0);
        for (cpu, pid) in self.cpu.iter_mut().zip(pids) {
            *cpu = cpu_s(*pid).max(*cpu);
            resident += status(*pid, "VmRSS");
            threads += status(*pid, "Threads");
        }
        self.usage.peak_mib = self.usage.peak_mib.max(resident as f64 / 1024.0);
        self.usage.threads = self.usage.threads.max(threads);
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn usage(&self) -> Usage {
        Usage { wall: self.started.elapsed().as_secs_f64(), cpu: self.cpu.iter().sum(), ..self.usage }
    }
}

/// Runs commands at once to their ends, which are to be good.
pub fn run_all(commands: Vec<Command>) -> Result<(Watch, Usage)> {
    let mut watch = Watch::new();
    let quiet = |mut command: Command| command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut children: Vec<Child> = commands.into_iter().map(quiet).collect::<Result<_, _>>()?;
    let pids: Vec<u32> = children.iter().map(Child::id).collect();
    loop {
        watch.look(&pids);
        let mut is_over = true;
        for child in &mut children {
            match child.try_wait()? {
                Some(status) => ensure!(status.success(), "drover ended with {status}"),
                None => is_over = false,
            }
        }
        if is_over {
            let usage = watch.usage();
            return Ok((watch, usage));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A number of `/proc/PID/status`; 0 if the process is gone.
fn status(pid: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// When things happened in a run, in seconds since its command was given.
pub struct Timeline {
    /// The first disk is being copied.
    pub first_copy: f64,
    /// As many disks were at work as may be, but for 5 %; absent if that never was.
    pub full: Option<f64>,
    /// Disks at work, the median over the run's middle half.
    pub disks: f64,
    pub events: usize,
    /// Events that say what a VM waits for.
    pub waits: usize,
}

/// By the reports of plans that ran at once, with so many disks allowed in all.
pub fn timeline(reports: &[Value], started_ms: i64, slots: u64) -> Result<Timeline> {
    let since = |ms: i64| (ms - started_ms) as f64 / 1000.0;
    let vms = || reports.iter().filter_map(|report| report["vms"].as_array()).flatten();
    let phases = || vms().filter_map(|vm| vm["phases"].as_array()).flatten();
    let copies = phases().filter(|phase| phase["phase"] == "copy");
    let first = copies.filter_map(|phase| phase["started_ms"].as_i64()).min().context("no copy began")?;
    let mut looks = Vec::new();
    for (plan, report) in reports.iter().enumerate() {
        let rates = report["rates"].as_array().context("rates")?;
        let look = |rate: &Value| Some((rate["at_ms"].as_i64()?, plan, rate["disks"].as_u64()?));
        looks.extend(rates.iter().filter_map(look));
    }
    looks.sort_unstable();
    let mut now = vec![0; reports.len()];
    let sums: Vec<(i64, u64)> = looks
        .into_iter()
        .map(|(at, plan, disks)| {
            now[plan] = disks;
            (at, now.iter().sum())
        })
        .collect();
    let full = sums.iter().find(|(_, disks)| disks * 20 >= slots * 19).map(|(at, _)| since(*at));
    let mut middle: Vec<u64> = sums.iter().skip(sums.len() / 4).take(sums.len() / 2).map(|it| it.1).collect();
    middle.sort_unstable();
    let events = || reports.iter().filter_map(|report| report["events"].as_array()).flatten();
    Ok(Timeline {
        first_copy: since(first),
        full,
        disks: middle.get(middle.len() / 2).copied().unwrap_or(0) as f64,
        events: events().count(),
        waits: events().filter(|event| event["kind"] == "waits").count(),
    })
}

/// MiB of the files of a state folder.
pub fn state_mib(folder: &Path) -> Result<f64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let meta = entry?.metadata()?;
        bytes += if meta.is_file() { meta.len() } else { 0 };
    }
    Ok(bytes as f64 / f64::from(1 << 20))
}
