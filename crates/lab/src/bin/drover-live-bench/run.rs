//! One guest that moves one way.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drover_lab::bench::variable;
use drover_lab::{Pulse, PulseOptions};

use crate::ground::{Ground, Line};
use crate::ours::Agent;
use crate::ways::{By, Way};
use crate::{alone, ours};

/// What is promised, and how long a way may take.
pub struct Terms {
    pub downtime_ms: u64,
    pub limit_s: u64,
}

impl Terms {
    pub fn from_environment() -> Result<Terms> {
        Ok(Terms {
            downtime_ms: variable("DROVER_LIVE_DOWNTIME", 300)?,
            limit_s: variable("DROVER_LIVE_LIMIT", 120)?,
        })
    }

    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s)
    }
}

/// What who moved the guest told.
pub struct Told {
    pub seconds: f64,
    pub before_s: f64,
    pub bytes: u64,
    pub counted_ms: Option<u64>,
    pub is_done: bool,
    /// Of programs beside both QEMUs.
    pub cpu_s: f64,
}

/// What came out.
pub struct Run {
    pub seconds: f64,
    /// What was done before anything was sent.
    pub before_s: f64,
    pub bytes: u64,
    /// Between two beats, from outside; nothing for a guest that did not move.
    pub stood_still_ms: Option<f64>,
    /// By QEMU's own count.
    pub counted_ms: Option<u64>,
    pub is_done: bool,
    /// Processor time of both QEMUs, drover and its agent, from before to after.
    pub cpu_s: f64,
    pub doubt: Option<String>,
}

/// Beats after which a guest is taken to run.
const BEATS: usize = 20;

/// Moves a guest, and has it prove its memory.
pub fn run(way: &Way, options: &PulseOptions, terms: &Terms, line: &Line, seed: u64) -> Result<Run> {
    // Paths of sockets must be short, whatever the workspace's is.
    let folder = std::env::temp_dir().join(format!("drover-live-bench-{}", std::process::id()));
    let done = run_in(&folder, way, options, terms, line, seed);
    // It is in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    done
}

fn run_in(
    folder: &Path,
    way: &Way,
    options: &PulseOptions,
    terms: &Terms,
    line: &Line,
    seed: u64,
) -> Result<Run> {
    let ground = Ground::lay(way, line, seed)?;
    let mut source = ground.source(&folder.join("a"), options)?;
    let mut target = ground.target(&folder.join("b"), options)?;
    source.beat(BEATS)?;
    let agent = match way.by {
        By::Link => Some(Agent::paired(&ground, folder)?),
        By::Qemu { .. } | By::Drover => None,
    };
    let cpu = |source: &Pulse, target: &Pulse| {
        let agent = agent.as_ref().map_or(0.0, |agent| cpu_s(agent.pid()));
        cpu_s(source.pid()) + cpu_s(target.pid()) + agent
    };
    let before = cpu(&source, &target);
    let told = match way.by {
        By::Qemu { channels, tls } => {
            let tls = tls.then(|| folder.join("tls"));
            alone::migrate(&source, &target, &ground, channels, tls.as_deref(), terms)
        }
        By::Drover | By::Link => ours::live(&source, &target, &ground, folder, agent.is_some(), terms),
    }?;
    let cpu_s = cpu(&source, &target) - before + told.cpu_s;
    let stood_still_ms = if told.is_done { Some(heard(&source, &mut target)?) } else { None };
    source.kill();
    target.kill();
    drop(agent);
    let doubt = ground.leave()?;
    let Told { seconds, before_s, bytes, counted_ms, is_done, .. } = told;
    Ok(Run { seconds, before_s, bytes, stood_still_ms, counted_ms, is_done, cpu_s, doubt })
}

/// Milliseconds between the last beat at the source and the first at the target; fails where the guest is not what it was.
fn heard(source: &Pulse, target: &mut Pulse) -> Result<f64> {
    target.beat(BEATS)?;
    let (last, first) = (source.beats().last().copied(), target.beats().first().copied());
    let ((last, before), (first, after)) = last.zip(first).context("no beats")?;
    ensure!(after == before + 1 || after == before + 2, "beat {before}, then {after}");
    let verdict = target.verify()?;
    ensure!(verdict.is_sound(), "{verdict:?}");
    Ok(first.saturating_duration_since(last).as_secs_f64() * 1000.0)
}

/// Ticks of `/proc/PID/stat` in a second: USER_HZ, the same on every Linux of today.
const TICKS: f64 = 100.0;

/// Processor time that a program has used so far; nothing of one that has ended.
pub fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold blanks: the state is the first field, times are the 12th and 13th.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS
}

/// Waits a little, until then at most.
pub fn look_again(until: Instant) {
    std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
}

const LOOK: Duration = Duration::from_millis(5);
