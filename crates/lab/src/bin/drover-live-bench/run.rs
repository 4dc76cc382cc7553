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
    /// Seconds that were foreseen once the line was known, by who foresees.
    pub foreseen_s: Option<f64>,
}

impl Told {
    /// Of both, at the same time.
    pub fn beside(self, other: &Told) -> Told {
        Told {
            seconds: self.seconds.max(other.seconds),
            before_s: self.before_s.max(other.before_s),
            bytes: self.bytes + other.bytes,
            counted_ms: self.counted_ms.max(other.counted_ms),
            is_done: self.is_done && other.is_done,
            cpu_s: self.cpu_s + other.cpu_s,
            foreseen_s: None,
        }
    }
}

/// What came out.
pub struct Run {
    pub seconds: f64,
    /// What was done before anything was sent.
    pub before_s: f64,
    pub bytes: u64,
    /// Between two beats, from outside, of the guest that stood longest; nothing where one did not move.
    pub stood_still_ms: Option<f64>,
    /// By QEMU's own count.
    pub counted_ms: Option<u64>,
    pub is_done: bool,
    /// Processor time of both QEMUs, drover and its agent, from before to after.
    pub cpu_s: f64,
    /// Seconds that were foreseen once the line was known, by who foresees.
    pub foreseen_s: Option<f64>,
    pub doubt: Option<String>,
}

impl Run {
    /// Whether it took as long as was foreseen, within a fifth of that.
    pub fn is_as_foreseen(&self) -> Option<bool> {
        self.foreseen_s.map(|foreseen| (self.seconds - foreseen).abs() <= foreseen * FORESEEN_SHARE)
    }
}

/// By which a move may miss what was foreseen.
const FORESEEN_SHARE: f64 = 0.2;

/// Beats after which a guest is taken to run.
const BEATS: usize = 20;

/// Moves so many guests, and has them prove their memory.
pub fn run(
    way: &Way,
    (guests, options): (usize, &PulseOptions),
    terms: &Terms,
    line: &Line,
    seed: u64,
) -> Result<Run> {
    // Paths of sockets must be short, whatever the workspace's is.
    let folder = std::env::temp_dir().join(format!("drover-live-bench-{}", std::process::id()));
    let done = run_in(&folder, way, (guests, options), terms, line, seed);
    // It is in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    done
}

fn run_in(
    folder: &Path,
    way: &Way,
    (guests, options): (usize, &PulseOptions),
    terms: &Terms,
    line: &Line,
    seed: u64,
) -> Result<Run> {
    let ground = Ground::lay(way, line, seed)?;
    let start = |number| {
        let source = ground.source(&folder.join(format!("a{number}")), options)?;
        Ok((source, ground.target(&folder.join(format!("b{number}")), options)?))
    };
    let mut pairs = (0..guests).map(start).collect::<Result<Vec<(Pulse, Pulse)>>>()?;
    pairs.iter().try_for_each(|(source, _)| source.beat(BEATS).map(drop))?;
    let agent = match way.by {
        By::Link => Some(Agent::paired(&ground, folder, guests)?),
        By::Qemu { .. } | By::Drover => None,
    };
    let cpu = |pairs: &[(Pulse, Pulse)]| {
        let agent = agent.as_ref().map_or(0.0, |agent| cpu_s(agent.pid()));
        agent + pairs.iter().map(|(source, target)| cpu_s(source.pid()) + cpu_s(target.pid())).sum::<f64>()
    };
    let before = cpu(&pairs);
    let told = match way.by {
        By::Qemu { channels, tls } => {
            let tls = tls.then(|| folder.join("tls"));
            alone::migrate(&pairs, &ground, channels, tls.as_deref(), terms)
        }
        By::Drover | By::Link => ours::live(&pairs, &ground, folder, agent.is_some(), terms),
    }?;
    let cpu_s = cpu(&pairs) - before + told.cpu_s;
    let mut stood_still_ms: Option<f64> = None;
    for (source, target) in pairs.iter_mut().filter(|_| told.is_done) {
        let one = heard(source, target)?;
        stood_still_ms = Some(stood_still_ms.map_or(one, |most| most.max(one)));
    }
    for (mut source, mut target) in pairs {
        source.kill();
        target.kill();
    }
    drop(agent);
    let doubt = ground.leave()?;
    let Told { seconds, before_s, bytes, counted_ms, is_done, foreseen_s, .. } = told;
    Ok(Run { seconds, before_s, bytes, stood_still_ms, counted_ms, is_done, cpu_s, foreseen_s, doubt })
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
