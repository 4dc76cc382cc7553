//! Guests that move one way, once.

use std::path::{Path as Folder, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_mover::StopSignal;
use drover_pulse::{PAGE_BYTES, Pulse, Verdict};
use drover_qemu::Qmp;

use super::ground::Ground;
use super::host::Host;
use super::ours::{Agent, Ours};
use super::tables::{Path, Table};
use super::{alone, ours};
use crate::cli::{BenchMemoryArgs, By, MemoryUse};

/// What all runs of a bench share.
pub struct Bench {
    pub host: Host,
    pub terms: Terms,
    /// What is below it ends with the bench.
    pub folder: PathBuf,
    pub stop: StopSignal,
}

/// What is promised, and how long a way may take.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub downtime: Duration,
    pub limit: Duration,
    pub at_once: Option<u16>,
}

impl Terms {
    pub fn of(args: &BenchMemoryArgs) -> Terms {
        Terms { downtime: args.downtime, limit: args.limit, at_once: args.at_once }
    }
}

/// What who moved the guests told.
#[derive(Clone, Debug)]
pub struct Told {
    pub seconds: f64,
    pub beside_s: f64,
    pub bytes: u64,
    pub counted_ms: Option<u64>,
    /// Why it was given up at the limit; nothing where it is done.
    pub late: Option<String>,
    /// Of programs beside both QEMUs.
    pub cpu_s: f64,
    /// Seconds that were foreseen once the line was known, by who foresees.
    pub foreseen_s: Option<f64>,
    /// Which way drover chose, where it was to.
    pub chosen: Option<String>,
}

impl Told {
    /// Of both, at the same time.
    pub fn beside(self, other: &Told) -> Told {
        Told {
            seconds: self.seconds.max(other.seconds),
            beside_s: self.beside_s.max(other.beside_s),
            bytes: self.bytes + other.bytes,
            counted_ms: self.counted_ms.max(other.counted_ms),
            late: self.late.or_else(|| other.late.clone()),
            cpu_s: self.cpu_s + other.cpu_s,
            foreseen_s: None,
            chosen: self.chosen,
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Run {
    pub seconds: f64,
    /// What drover did besides, before it sent and after.
    pub beside_s: f64,
    pub bytes: u64,
    /// Between two beats, from outside, of the guest that stood longest; nothing where one did not move.
    pub downtime_ms: Option<f64>,
    /// By QEMU's own count.
    pub counted_ms: Option<u64>,
    /// Why it was given up at the limit; nothing where it is done.
    pub late: Option<String>,
    /// Processor time of both QEMUs, drover and its agent, from before to after.
    pub cpu_s: f64,
    /// Seconds that were foreseen once the line was known, by who foresees.
    pub foreseen_s: Option<f64>,
    /// Which way drover chose, where it was to.
    pub chosen: Option<String>,
    /// What the slowest of continuous guests wrote to, where that is much less than it was told.
    pub wrote_less: Option<f64>,
    pub doubt: Option<String>,
}

impl Run {
    pub fn is_done(&self) -> bool {
        self.late.is_none()
    }

    /// Whether it took as long as was foreseen, within a fifth of that.
    pub fn is_as_foreseen(&self) -> Option<bool> {
        self.foreseen_s.map(|foreseen| (self.seconds - foreseen).abs() <= foreseen * FORESEEN_SHARE)
    }

    pub fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.seconds.max(1e-6)
    }
}

/// A guest that came, and whose memory is not what it was.
#[derive(Debug, thiserror::Error)]
#[error(
    "a guest's memory is not what it was: {} bad pages, {} of {} writes found",
    .0.bad_pages,
    .0.writes_found,
    .0.writes_counted
)]
pub struct Unsound(pub Verdict);

/// By which a move may miss what was foreseen.
const FORESEEN_SHARE: f64 = 0.2;
/// A monitor that nobody else has answers at once.
const ANSWER: Duration = Duration::from_secs(10);
/// Beats after which a guest is taken to run.
const BEATS: usize = 20;
/// Of what a guest was told to write, below which it is remarked: its processor is too slow, or busy.
const WRITES_SHARE: f64 = 0.8;

/// Moves the guests of a table, and has them prove their memory.
pub fn run(bench: &Bench, table: &Table, path: &Path, round: u16) -> Result<Run> {
    let folder = bench.folder.join("r");
    let done = run_in(bench, &folder, table, path, round);
    // What stays goes with the bench.
    let _ = std::fs::remove_dir_all(&folder);
    done
}

fn run_in(bench: &Bench, folder: &Folder, table: &Table, path: &Path, round: u16) -> Result<Run> {
    let ground = Ground::lay(table.place, &bench.host.line, path.congestion(), round.into())?;
    let spec = table.guest.of(bench.host.spec());
    let start = |number: u16| {
        let source = ground.source(&folder.join(format!("a{number}")), &spec, &bench.folder)?;
        Ok((source, ground.target(&folder.join(format!("b{number}")), &spec, &bench.folder)?))
    };
    let mut pairs = (0..table.guest.number).map(start).collect::<Result<Vec<(Pulse, Pulse)>>>()?;
    for (source, _) in &pairs {
        source.beat(BEATS)?;
    }
    let wrote_less = wrote_less(&pairs, table);
    let ours = Ours { bench, ground: &ground, folder };
    let agent = match path.way.by {
        By::Link | By::Chosen => Some(Agent::paired(&ours, pairs.len())?),
        By::Qemu { .. } | By::Drover { .. } | By::Rdma { .. } => None,
    };
    let cpu = |pairs: &[(Pulse, Pulse)]| {
        let agent = agent.as_ref().map_or(0.0, |agent| cpu_s(agent.pid()));
        agent + pairs.iter().map(|(source, target)| cpu_s(source.pid()) + cpu_s(target.pid())).sum::<f64>()
    };
    let before = cpu(&pairs);
    let told = match path.way.by {
        By::Qemu { .. } | By::Rdma { is_drover: false } => alone::migrate(&pairs, &ours, path),
        By::Drover { .. } | By::Link | By::Chosen | By::Rdma { is_drover: true } => {
            ours::live(&pairs, &ours, path)
        }
    };
    let cpu_s = cpu(&pairs) - before;
    let is_done = told.as_ref().is_ok_and(|told| told.late.is_none());
    let proven = proven(&mut pairs, is_done, &bench.stop);
    let (told, downtime_ms) = weighed(told, proven)?;
    drop(pairs);
    drop(agent);
    let doubt = ground.leave()?;
    let Told { seconds, beside_s, bytes, counted_ms, late, foreseen_s, chosen, .. } = told;
    Ok(Run {
        seconds,
        beside_s,
        bytes,
        downtime_ms: downtime_ms.filter(|_| is_done),
        counted_ms,
        late,
        cpu_s: cpu_s + told.cpu_s,
        foreseen_s,
        chosen,
        wrote_less,
        doubt,
    })
}

/// What the slowest guest wrote to so far, in bytes a second, if it was told to write much more.
fn wrote_less(pairs: &[(Pulse, Pulse)], table: &Table) -> Option<f64> {
    let wrote = |source: &Pulse| {
        let writes = source.writes();
        let ((began, first), (ended, last)) = writes.first().copied().zip(writes.last().copied())?;
        let seconds = ended.saturating_duration_since(began).as_secs_f64();
        Some(f64::from(last.wrapping_sub(first)) * PAGE_BYTES as f64 / seconds.max(1e-6))
    };
    let slowest = pairs.iter().filter_map(|(source, _)| wrote(source)).reduce(f64::min)?;
    let told = table.guest.writes.bytes_per_s() as f64;
    (table.guest.memory == MemoryUse::Continuous && slowest < told * WRITES_SHARE).then_some(slowest)
}

/// Has all guests prove their memory, or, where not all moved, those that did; gives for how long one stood still at most.
fn proven(pairs: &mut [(Pulse, Pulse)], is_done: bool, stop: &StopSignal) -> Result<Option<f64>> {
    let mut all = Vec::new();
    for (source, target) in pairs {
        if !stop.is_set() && (is_done || runs(target)) {
            all.push(heard(source, target));
        }
    }
    longest(all)
}

/// The longest, or the worst that somebody ended in.
fn longest(all: Vec<Result<f64>>) -> Result<Option<f64>> {
    let (fine, errors): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    let errors = errors.into_iter().filter_map(Result::err);
    match errors.reduce(|worst, other| if worst.is::<Unsound>() { worst } else { other }) {
        Some(worst) => Err(worst),
        None => Ok(fine.into_iter().flatten().reduce(f64::max)),
    }
}

/// Whether the guest runs at the target, whatever was said of its move.
fn runs(target: &mut Pulse) -> bool {
    if !target.is_alive() {
        return false;
    }
    match Qmp::connect(&target.monitor(), ANSWER).and_then(|mut qmp| qmp.status()) {
        Ok(status) => status == "running",
        // Somebody else still has its monitor.
        Err(_) => !target.beats().is_empty(),
    }
}

/// What came of a run; that a guest is not what it was weighs more than that another did not move.
fn weighed(told: Result<Told>, proven: Result<Option<f64>>) -> Result<(Told, Option<f64>)> {
    match (told, proven) {
        (Ok(told), Ok(downtime_ms)) => Ok((told, downtime_ms)),
        (Err(error), Err(why)) if why.is::<Unsound>() => Err(why.context(format!("{error:#}"))),
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Milliseconds between the last beat at the source and the first at the target.
///
/// # Errors
/// If the guest is not what it was.
fn heard(source: &Pulse, target: &mut Pulse) -> Result<f64> {
    target.beat(BEATS)?;
    let (last, first) = (source.beats().last().copied(), target.beats().first().copied());
    let ((last, before), (first, after)) = last.zip(first).context("no beats")?;
    ensure!(
        after == before + 1 || after == before + 2,
        "beat {before} at the source, then {after} at the target"
    );
    let verdict = target.verify()?;
    if !verdict.is_sound() {
        bail!(Unsound(verdict));
    }
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
///
/// # Errors
/// If the bench is to end.
pub fn look_again(until: Instant, stop: &StopSignal) -> Result<()> {
    ensure!(!stop.is_set(), "stopped");
    std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
    Ok(())
}

const LOOK: Duration = Duration::from_millis(5);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn all_guests_are_heard_and_one_that_is_not_what_it_was_is_the_worst() {
        assert_eq!(longest(vec![Ok(3.0), Ok(7.0), Ok(5.0)]).unwrap(), Some(7.0));
        assert_eq!(longest(Vec::new()).unwrap(), None);
        let unsound = || anyhow!(Unsound(Verdict { bad_pages: 2, writes_found: 3, writes_counted: 4 }));
        for all in
            [vec![Err(anyhow!("no beats")), Err(unsound())], vec![Err(unsound()), Err(anyhow!("no beats"))]]
        {
            assert!(longest(all).unwrap_err().is::<Unsound>());
        }
        assert_eq!(longest(vec![Ok(3.0), Err(anyhow!("no beats"))]).unwrap_err().to_string(), "no beats");
    }

    #[test]
    fn a_guest_that_is_not_what_it_was_weighs_more_than_why_another_did_not_move() {
        let told = || Told {
            seconds: 1.0,
            beside_s: 0.0,
            bytes: 1,
            counted_ms: None,
            late: None,
            cpu_s: 0.0,
            foreseen_s: None,
            chosen: None,
        };
        let unsound = || anyhow!(Unsound(Verdict { bad_pages: 2, writes_found: 3, writes_counted: 4 }));
        assert_eq!(weighed(Ok(told()), Ok(Some(7.0))).unwrap().1, Some(7.0));
        assert!(weighed(Ok(told()), Err(unsound())).unwrap_err().is::<Unsound>());
        let both = weighed(Err(anyhow!("refused")), Err(unsound())).unwrap_err();
        assert!(both.is::<Unsound>());
        assert!(format!("{both:#}").starts_with("refused: a guest's memory is not what it was: 2 bad pages"));
        let first = weighed(Err(anyhow!("refused")), Err(anyhow!("no beats"))).unwrap_err();
        assert_eq!(first.to_string(), "refused");
        assert_eq!(weighed(Err(anyhow!("refused")), Ok(Some(7.0))).unwrap_err().to_string(), "refused");
    }
}
