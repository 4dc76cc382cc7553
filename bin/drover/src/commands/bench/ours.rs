//! Drover: over the network, or over the link to an agent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path as Folder, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use drover_mover::StopSignal;
use drover_pulse::Pulse;
use serde_json::Value;

use super::alone::rdma_uri;
use super::ground::{End, Ground};
use super::run::{Bench, Told, cpu_s, look_again};
use super::tables::Path;
use crate::cli::By;
use crate::exit::Exit;

/// Of an order that is soon done.
const SOON: Duration = Duration::from_secs(30);
/// For which drover may go on behind its deadline: it may wait for the other site.
const GRACE: Duration = Duration::from_secs(120);
/// What the source's host calls the target's.
const SITE: &str = "site-b";
/// A note of a row has room for so much of why drover moved nothing.
const WHY_CHARS_MAX: usize = 400;

/// What drovers of one run share.
pub struct Ours<'a> {
    pub bench: &'a Bench,
    pub ground: &'a Ground,
    /// Of this run.
    pub folder: &'a Folder,
}

impl Ours<'_> {
    /// A drover with a state of its own, and with the run's folder for what it keeps for a while.
    fn command(&self, state: &str, words: &[&str]) -> Result<Command> {
        let (state, temporary) = (self.folder.join(state), self.folder.join("t"));
        std::fs::create_dir_all(&temporary)?;
        let mut command = Command::new(&self.bench.host.program);
        command.args(words).env("DROVER_STATE", state).env("TMPDIR", temporary);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    fn start(&self, end: End, command: &mut Command) -> Result<Running> {
        let program = self.bench.host.program.display();
        let started = self.ground.start(end, command, &self.bench.folder);
        started.map(Running).with_context(|| format!("starting {program}"))
    }
}

/// A drover that ends with its value.
struct Running(Child);

impl Running {
    /// Waits for its end, looking at it meanwhile.
    fn ended(
        &mut self,
        within: Duration,
        stop: &StopSignal,
        mut look: impl FnMut(u32),
    ) -> Result<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            look(self.0.id());
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < until, "drover did not end in {within:?}");
            look_again(until, stop)?;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent at the target's host, which the source's knows.
pub struct Agent(Running);

impl Agent {
    /// Starts one that lets so many guests in.
    pub fn paired(ours: &Ours<'_>, guests: usize) -> Result<Agent> {
        let listen = SocketAddr::from((ours.ground.far_address(), 0)).to_string();
        let mut command = ours.command("there", &["agent", "run", "--json", "--listen", &listen])?;
        command.args(["--name", "west", "--control"]).arg(ours.folder.join("agent.sock"));
        for number in 0..guests {
            let place = ours.folder.join(format!("b{number}"));
            command.arg("--allow-connect").arg(format!("unix:{}/*", place.display()));
        }
        let mut agent = ours.start(End::Target, command.stdout(Stdio::piped()))?;
        let mut said = BufReader::new(agent.0.stdout.take().context("the agent's output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        // What it says later is of no interest, but must be taken.
        std::thread::spawn(move || said.lines().for_each(drop));
        let listening: Value =
            serde_json::from_str(&line).with_context(|| format!("the agent said '{line}'"))?;
        let address = listening["addresses"][0].as_str().context("the agent's address")?;
        Agent::pair(ours, address)?;
        Ok(Agent(agent))
    }

    fn pair(ours: &Ours<'_>, address: &str) -> Result<()> {
        let stop = &ours.bench.stop;
        let token = ours.folder.join("token");
        let mut command = ours.command("there", &["agent", "pair", "--new-token"])?;
        let told =
            ours.start(End::Target, command.stdout(File::create(&token)?))?.ended(SOON, stop, |_| {})?;
        ensure!(told.success(), "a token for pairing: drover ended with {told}");
        let words = ["agent", "pair", address, "--name", SITE, "--as", "site-a", "--token-file"];
        let mut command = ours.command("here", &words)?;
        let status = ours.start(End::Source, command.arg(&token))?.ended(SOON, stop, |_| {})?;
        ensure!(status.success(), "pairing ended with {status}");
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.0.0.id()
    }
}

/// Moves guests: one, or several as drover decides.
pub fn live(pairs: &[(Pulse, Pulse)], ours: &Ours<'_>, path: &Path) -> Result<Told> {
    let mut command = ours.command("here", &["live", "--json"])?;
    let stop = &ours.bench.stop;
    order(&mut command, pairs, ours, path)?;
    let (out, err) = (ours.folder.join("out"), ours.folder.join("err"));
    command.stdout(File::create(&out)?).stderr(File::create(&err)?);
    let began = Instant::now();
    let mut used = 0.0;
    let mut running = ours.start(End::Source, &mut command)?;
    let within = ours.bench.terms.limit + GRACE;
    let status = running.ended(within, stop, |pid| used = cpu_s(pid).max(used))?;
    let events: Vec<Value> =
        std::fs::read_to_string(&out)?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ended = Ended { events, status, whole: began.elapsed(), cpu_s: used };
    let said = std::fs::read_to_string(&err)?;
    let told = if pairs.len() > 1 { ended.several(pairs.len())? } else { ended.one()? };
    match told {
        Some(told) => Ok(told),
        None if ended.is_refused() => Err(Refused(why(&said)).into()),
        None => bail!("drover ended with {status}: {}", why(&said)),
    }
}

/// Drover left all where it was, because it could not keep its promise: no fault of anybody's.
#[derive(Debug, thiserror::Error)]
#[error("refused: {0}")]
pub struct Refused(String);

/// The error that drover ended with, in one line.
fn why(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let from =
        lines.iter().rposition(|line| line.starts_with("error:")).unwrap_or(lines.len().saturating_sub(1));
    let words: Vec<&str> = lines[from..].iter().map(|line| line.trim()).collect();
    let whole = words.join(" / ");
    whole.strip_prefix("error: ").unwrap_or(&whole).chars().take(WHY_CHARS_MAX).collect()
}

/// Tells drover what to move, and how.
fn order(command: &mut Command, pairs: &[(Pulse, Pulse)], ours: &Ours<'_>, path: &Path) -> Result<()> {
    let terms = ours.bench.terms;
    let (downtime, deadline) =
        (format!("{}ms", terms.downtime.as_millis()), format!("{}s", terms.limit.as_secs_f64()));
    let mut ways = Vec::new();
    for number in 0..pairs.len() {
        ways.push(match path.way.by {
            By::Link => ("via", SITE.to_string()),
            By::Rdma { .. } => ("uri", rdma_uri(ours, number)?),
            By::Drover { .. } | By::Qemu { .. } => ("uri", ours.ground.tcp_uri()),
        });
    }
    if let [(source, target)] = pairs {
        let (key, value) = &ways[0];
        command.arg(source.monitor()).arg("--to").arg(target.monitor());
        command.args([&format!("--{key}"), value, "--downtime", &downtime, "--deadline", &deadline]);
        if let By::Drover { channels: Some(channels) } = path.way.by {
            command.args(["--channels", &channels.to_string()]);
        }
        if let Some(chunk) = path.chunk {
            command.args(["--rdma-chunk-size", &chunk.to_string()]);
        }
    } else {
        let file = ours.folder.join("moves.yaml");
        std::fs::write(&file, moves(pairs, &ways, (&downtime, &deadline), path))?;
        command.arg("--moves").arg(file);
        if let Some(number) = terms.at_once {
            command.args(["--at-once", &number.to_string()]);
        }
    }
    if let Some(folder) = &ours.bench.host.reports {
        command.arg("--report").arg(report(folder)?);
    }
    Ok(())
}

fn moves(
    pairs: &[(Pulse, Pulse)],
    ways: &[(&str, String)],
    (downtime, deadline): (&str, &str),
    path: &Path,
) -> String {
    let mut moves = format!("downtime: {downtime}\ndeadline: {deadline}\n");
    if let By::Drover { channels: Some(channels) } = path.way.by {
        moves.push_str(&format!("channels: {channels}\n"));
    }
    if let Some(chunk) = path.chunk {
        moves.push_str(&format!("rdma-chunk-size: {chunk}\n"));
    }
    moves.push_str("moves:\n");
    for ((source, target), (key, value)) in pairs.iter().zip(ways) {
        let (from, to) = (source.monitor(), target.monitor());
        moves.push_str(&format!(
            "  - {{from: '{}', to: '{}', {key}: '{value}'}}\n",
            from.display(),
            to.display()
        ));
    }
    moves
}

fn report(folder: &Folder) -> Result<PathBuf> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(folder.join(format!("live-{}.json", since.as_millis())))
}

/// A drover that has ended, and what it told.
struct Ended {
    events: Vec<Value>,
    status: ExitStatus,
    /// From its start to its end.
    whole: Duration,
    cpu_s: f64,
}

impl Ended {
    fn last(&self, name: &str) -> Option<&Value> {
        self.events.iter().rev().find(|event| event["event"] == name)
    }

    /// Of several guests; nothing where one neither moved nor was given up as it was told to be.
    fn several(&self, guests: usize) -> Result<Option<Told>> {
        let begins = self.events.iter().find(|event| event["event"] == "begins");
        let (Some(ended), Some(begins)) = (self.last("ended"), begins) else { return Ok(None) };
        let is_done = ended["moved"] == guests;
        if !is_done && !self.is_given_up() {
            return Ok(None);
        }
        // What each looks at before it sends is in it.
        let began_s = begins["at_s"].as_f64().context("at_s")?;
        // What each has sent in the end.
        let mut sent = BTreeMap::new();
        for event in
            self.events.iter().filter(|event| event["event"] == "memory" || event["event"] == "moved")
        {
            sent.insert(event["guest"].to_string(), event["sent_bytes"].as_u64().unwrap_or_default());
        }
        let moved = self.events.iter().filter(|event| event["event"] == "moved");
        let counted_ms = moved.filter_map(|event| event["downtime_ms_by_qemu"].as_u64()).max();
        Ok(Some(Told {
            seconds: ended["total_s"].as_f64().context("total_s")? - began_s,
            before_s: began_s,
            bytes: sent.into_values().sum(),
            counted_ms: counted_ms.filter(|_| is_done),
            is_done,
            cpu_s: self.cpu_s,
            foreseen_s: ended["total_s_foreseen"].as_f64().filter(|_| is_done),
        }))
    }

    /// Nothing was begun, or it was found on the way that the promise cannot be kept.
    fn is_refused(&self) -> bool {
        self.ended_with(Exit::Plan)
    }

    /// At the limit.
    fn is_given_up(&self) -> bool {
        self.ended_with(Exit::Source) && self.last("failed").is_some()
    }

    /// With each guest that did not move where it was.
    fn ended_with(&self, exit: Exit) -> bool {
        let mut failed = self.events.iter().filter(|event| event["event"] == "failed");
        self.status.code() == Some(exit as i32) && failed.all(|event| event["guest_at"] == "source")
    }

    /// Of one guest; nothing where it neither moved nor was given up as it was told to be.
    fn one(&self) -> Result<Option<Told>> {
        if let Some(moved) = self.last("moved") {
            let seconds = moved["total_s"].as_f64().context("total_s")?;
            return Ok(Some(Told {
                seconds,
                before_s: self.whole.as_secs_f64() - seconds,
                bytes: moved["sent_bytes"].as_u64().context("sent_bytes")?,
                counted_ms: moved["downtime_ms_by_qemu"].as_u64(),
                is_done: true,
                cpu_s: self.cpu_s,
                // Of one that was over before its line was measured there is a bound only.
                foreseen_s: moved["total_s_foreseen"]
                    .as_f64()
                    .filter(|_| moved["total_s_foreseen_below"].is_null()),
            }));
        }
        Ok(self.last("memory").filter(|_| self.is_given_up()).map(|last| Told {
            seconds: last["at_ms"].as_f64().unwrap_or_default() / 1000.0,
            before_s: 0.0,
            bytes: last["sent_bytes"].as_u64().unwrap_or_default(),
            counted_ms: None,
            is_done: false,
            cpu_s: self.cpu_s,
            foreseen_s: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_told_with_all_its_lines() {
        let said = "looks at both\nerror: one\nerror: 2 of 2 guests did not move:\n  a: no way\n  try: --downtime 2s\n";
        assert_eq!(why(said), "2 of 2 guests did not move: / a: no way / try: --downtime 2s");
        assert_eq!((why("killed").as_str(), why("").as_str()), ("killed", ""));
    }
}
