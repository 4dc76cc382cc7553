//! Drover: over the network, or over the link to an agent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path as Folder, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use drover_child::Kind;
use drover_console::Exit;
use drover_mover::StopSignal;
use drover_pulse::Pulse;
use serde_json::Value;

use super::alone::rdma_uri;
use super::ground::{End, Ground};
use super::run::{Bench, Told, cpu_s, look_again};
use super::tables::Path;
use crate::cli::By;

/// Of an order that is soon done.
const SOON: Duration = Duration::from_secs(30);
/// For which drover may go on behind its deadline: it may wait for the other site.
const GRACE: Duration = Duration::from_secs(120);
/// What the source's host calls the target's.
const SITE: &str = "site-b";
/// A note of a row has room for so much of why drover moved nothing.
const WHY_CHARS_MAX: usize = 400;
/// What an agent says first is far shorter.
const LINE_BYTES_MAX: u64 = 64 << 10;

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
        let mut command = drover_child::command(&self.bench.host.program, Kind::Plain);
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

/// A program that ends with its value.
pub struct Running(pub Child);

impl Running {
    /// Waits for its end, looking at it meanwhile.
    pub fn ended(
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
            ensure!(Instant::now() < until, "it did not end in {within:?}");
            look_again(until, stop)?;
        }
    }

    /// Waits for the first line that it says in this file.
    fn first_line(&mut self, said: &Folder, within: Duration, stop: &StopSignal) -> Result<String> {
        let until = Instant::now() + within;
        loop {
            // What is there once it has ended is all of it.
            let has_ended = self.0.try_wait()?;
            let mut text = String::new();
            File::open(said)?.take(LINE_BYTES_MAX).read_to_string(&mut text)?;
            if let Some((line, _)) = text.split_once('\n') {
                return Ok(line.to_string());
            }
            if let Some(status) = has_ended {
                bail!("it ended with {status}, and said '{text}'");
            }
            ensure!(Instant::now() < until, "it said nothing in {within:?}");
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
        let said = ours.folder.join("agent.out");
        let mut agent = ours.start(End::Target, command.stdout(File::create(&said)?))?;
        let line = agent.first_line(&said, SOON, &ours.bench.stop).context("the agent")?;
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
    let status = running.ended(within, stop, |pid| used = cpu_s(pid).max(used)).context("drover")?;
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
pub struct Refused(pub String);

/// The error that drover ended with, in one line.
fn why(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let from =
        lines.iter().rposition(|line| line.starts_with("error:")).unwrap_or(lines.len().saturating_sub(1));
    let words: Vec<&str> = lines[from..].iter().map(|line| line.trim()).collect();
    let whole = words.join(" / ");
    whole.strip_prefix("error: ").unwrap_or(&whole).chars().take(WHY_CHARS_MAX).collect()
}

/// What `failed` events begin with where no way keeps the promise. They tell the cause in words only.
const PROMISE: &str = "the promise cannot be kept: ";
/// The same where the time is over.
const DEADLINE: &str = "the move was given up: the deadline is here: ";

/// Tells drover what to move, and how.
fn order(command: &mut Command, pairs: &[(Pulse, Pulse)], ours: &Ours<'_>, path: &Path) -> Result<()> {
    let terms = ours.bench.terms;
    let (downtime, deadline) =
        (format!("{}ms", terms.downtime.as_millis()), format!("{}s", terms.limit.as_secs_f64()));
    let past = (path.way.by == By::Chosen).then(|| ours.ground.far_address());
    let mut ways = Vec::new();
    for number in 0..pairs.len() {
        ways.push(match path.way.by {
            By::Link | By::Chosen => ("via", SITE.to_string()),
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
        if let Some(address) = past {
            command.args(["--or-direct", &address.to_string(), "--direct-plain"]);
        }
        if let Some(chunk) = path.chunk {
            command.args(["--rdma-chunk-size", &chunk.to_string()]);
        }
    } else {
        let file = ours.folder.join("moves.yaml");
        let all =
            past.map_or(String::new(), |address| format!("or_direct: '{address}'\ndirect_plain: true\n"));
        std::fs::write(&file, all + &moves(pairs, &ways, (&downtime, &deadline), path))?;
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
    /// The way that was chosen for the first, where there was a choice.
    fn chosen(&self) -> Option<String> {
        let route = self.events.iter().find(|event| event["event"] == "route")?;
        Some(route["way"].as_str()?.to_string())
    }

    fn last(&self, name: &str) -> Option<&Value> {
        self.events.iter().rev().find(|event| event["event"] == name)
    }

    /// Of several guests; nothing where one neither moved nor was given up as it was told to be.
    fn several(&self, guests: usize) -> Result<Option<Told>> {
        let begins = self.events.iter().find(|event| event["event"] == "begins");
        let (Some(ended), Some(begins)) = (self.last("ended"), begins) else { return Ok(None) };
        let is_done = ended["moved"] == guests;
        let late = self.late().filter(|_| !is_done);
        if !is_done && late.is_none() {
            return Ok(None);
        }
        // What each looks at before it sends is in it.
        let seconds =
            ended["total_s"].as_f64().context("total_s")? - begins["at_s"].as_f64().context("at_s")?;
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
            seconds,
            beside_s: self.whole.as_secs_f64() - seconds,
            bytes: sent.into_values().sum(),
            counted_ms: counted_ms.filter(|_| is_done),
            late,
            cpu_s: self.cpu_s,
            foreseen_s: ended["total_s_foreseen"].as_f64().filter(|_| is_done),
            chosen: self.chosen(),
        }))
    }

    /// It was found, before anything was begun or on the way, that the promise cannot be kept.
    fn is_refused(&self) -> bool {
        self.have_failed_by(Exit::Plan, &[PROMISE])
    }

    /// What is said of a guest that was given up at the limit, if none was for a reason that is a failure.
    fn late(&self) -> Option<String> {
        let mut messages = self.events.iter().filter_map(|event| event["message"].as_str());
        let message = messages.rfind(|message| message.starts_with(DEADLINE))?;
        self.have_failed_by(Exit::Source, &[DEADLINE, PROMISE]).then(|| why(message))
    }

    /// Whether it ended so, and all guests that did not move for one of these reasons, each where it was.
    fn have_failed_by(&self, exit: Exit, causes: &[&str]) -> bool {
        let is_so = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["guest_at"] == "source" && causes.iter().any(|cause| message.starts_with(cause))
        };
        let mut failed = self.events.iter().filter(|event| event["event"] == "failed").peekable();
        self.status.code() == Some(exit as i32) && failed.peek().is_some() && failed.all(is_so)
    }

    /// Of one guest; nothing where it neither moved nor was given up as it was told to be.
    fn one(&self) -> Result<Option<Told>> {
        let beside_s = |seconds: f64| self.whole.as_secs_f64() - seconds;
        if let Some(moved) = self.last("moved") {
            let seconds = moved["total_s"].as_f64().context("total_s")?;
            return Ok(Some(Told {
                seconds,
                beside_s: beside_s(seconds),
                bytes: moved["sent_bytes"].as_u64().context("sent_bytes")?,
                counted_ms: moved["downtime_ms_by_qemu"].as_u64(),
                late: None,
                cpu_s: self.cpu_s,
                // Of one that was over before its line was measured there is a bound only.
                foreseen_s: moved["total_s_foreseen"]
                    .as_f64()
                    .filter(|_| moved["total_s_foreseen_below"].is_null()),
                chosen: self.chosen(),
            }));
        }
        let (Some(last), Some(late)) = (self.last("memory"), self.late()) else { return Ok(None) };
        let seconds = last["at_ms"].as_f64().unwrap_or_default() / 1000.0;
        Ok(Some(Told {
            seconds,
            beside_s: beside_s(seconds),
            bytes: last["sent_bytes"].as_u64().unwrap_or_default(),
            counted_ms: None,
            late: Some(late),
            cpu_s: self.cpu_s,
            foreseen_s: None,
            chosen: self.chosen(),
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use drover_live::Where;
    use drover_live::{Cause, Choice, Facts, Forecast, SoFar, Unclear, Why};
    use drover_qemu::live::{Ending, LiveError};
    use drover_types::Estimate;
    use serde_json::json;

    use super::*;

    /// What `drover live` ends in.
    fn ended(exit: Exit, mut events: Vec<Value>, failed: Vec<(Ending, Where)>) -> Ended {
        events.extend(failed.into_iter().map(|(cause, guest_at)| {
            let place = if guest_at == Where::Source { "source" } else { "unknown" };
            let message = LiveError { cause, guest_at }.to_string();
            json!({"event": "failed", "message": message, "guest_at": place})
        }));
        let status = ExitStatus::from_raw((exit as i32) << 8);
        Ended { events, status, whole: Duration::from_secs(9), cpu_s: 1.0 }
    }

    fn promise() -> Ending {
        let nothing = Estimate { likely: 0.0, spread: 0.0 };
        let facts = Facts {
            used_bytes: 0,
            memory_bytes: 0,
            dirty: nothing,
            working_set_bytes: 0,
            rate: nothing,
            overhead: nothing,
            so_far: SoFar::default(),
        };
        let choice = Choice { course: None, forecast: Forecast::default(), looked_at: Vec::new(), facts };
        Ending::Promise(Box::new(choice))
    }

    fn given_up(cause: Cause) -> Ending {
        Ending::GivenUp(Why { cause, rate: 1e6, dirty: 2e6, left_bytes: 3, needs_s: None, has_s: 0.4 })
    }

    #[test]
    fn only_a_promise_that_cannot_be_kept_is_a_refusal() {
        let is_refused = |exit, failed| ended(exit, Vec::new(), failed).is_refused();
        assert!(is_refused(Exit::Plan, vec![(promise(), Where::Source), (promise(), Where::Source)]));
        let obstacles = || Ending::Obstacles(Vec::new());
        assert!(!is_refused(Exit::Plan, vec![(obstacles(), Where::Source)]));
        assert!(!is_refused(Exit::Plan, vec![(Ending::Unclear(Unclear::Copy), Where::Source)]));
        assert!(!is_refused(Exit::Plan, vec![(promise(), Where::Source), (obstacles(), Where::Source)]));
        // Nothing is said of any guest.
        assert!(!is_refused(Exit::Plan, Vec::new()));
        assert!(!is_refused(Exit::Target, vec![(promise(), Where::Unknown)]));
        assert!(!is_refused(Exit::Plan, vec![(promise(), Where::Unknown)]));
    }

    #[test]
    fn only_what_is_given_up_at_the_deadline_is_late_and_its_reason_is_told() {
        let memory = || vec![json!({"event": "memory", "at_ms": 1500, "sent_bytes": 7})];
        let one =
            |cause| ended(Exit::Source, memory(), vec![(given_up(cause), Where::Source)]).one().unwrap();
        let told = one(Cause::Deadline).unwrap();
        assert_eq!((told.seconds, told.beside_s, told.bytes), (1.5, 7.5, 7));
        assert!(told.late.unwrap().contains("the deadline is here: 1 MB/s sent, dirty rate 2 MB/s"));
        for cause in [Cause::Silence, Cause::Standstill, Cause::TooSlow] {
            assert!(one(cause).is_none(), "{cause:?}");
        }
    }

    #[test]
    fn of_several_guests_all_that_did_not_move_have_to_be_late() {
        let several = |failed| {
            let events = vec![
                json!({"event": "begins", "guest": "a", "at_s": 2.0}),
                json!({"event": "memory", "guest": "b", "sent_bytes": 9}),
                json!({"event": "moved", "guest": "a", "sent_bytes": 5, "downtime_ms_by_qemu": 3}),
                json!({"event": "ended", "moved": 1, "total_s": 6.5, "total_s_foreseen": 4.0}),
            ];
            ended(Exit::Source, events, failed).several(3).unwrap()
        };
        let late = || (given_up(Cause::Deadline), Where::Source);
        let told = several(vec![late(), late()]).unwrap();
        assert_eq!((told.seconds, told.beside_s, told.bytes), (4.5, 4.5, 14));
        assert!(told.late.is_some() && told.counted_ms.is_none() && told.foreseen_s.is_none());
        assert!(several(vec![late(), (given_up(Cause::Silence), Where::Source)]).is_none());
        assert!(several(vec![late(), (promise(), Where::Source)]).is_some());
        assert!(several(Vec::new()).is_none());
    }

    /// A shell that says this into a file.
    fn says(script: &str) -> (tempfile::TempDir, PathBuf, Running) {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(File::create(&said).unwrap());
        let running = Running(command.spawn().unwrap());
        (folder, said, running)
    }

    #[test]
    fn an_agent_is_heard_until_it_has_said_a_line_has_ended_or_it_is_enough() {
        let stop = StopSignal::default();
        let (_folder, said, mut running) = says("printf 'one\\ntwo'; exec sleep 600");
        assert_eq!(running.first_line(&said, SOON, &stop).unwrap(), "one");
        let (_folder, said, mut running) = says("printf no; exit 3");
        let why = running.first_line(&said, SOON, &stop).unwrap_err().to_string();
        assert!(why.contains("exit status: 3, and said 'no'"), "{why}");
        let (_folder, said, mut running) = says("exec sleep 600");
        let why = running.first_line(&said, Duration::from_millis(20), &stop).unwrap_err().to_string();
        assert!(why.contains("said nothing"), "{why}");
        stop.stop();
        let why = running.first_line(&said, SOON, &stop).unwrap_err().to_string();
        assert_eq!(why, "stopped");
    }

    #[test]
    fn the_last_error_is_told_with_all_its_lines() {
        let said = "looks at both\nerror: one\nerror: 2 of 2 guests did not move:\n  a: no way\n  try: --downtime 2s\n";
        assert_eq!(why(said), "2 of 2 guests did not move: / a: no way / try: --downtime 2s");
        assert_eq!((why("killed").as_str(), why("").as_str()), ("killed", ""));
    }
}
