//! Drover: over the network, or over the link to an agent.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use drover_lab::{Drover, Pulse, workspace};
use serde_json::Value;

use crate::ground::Ground;
use crate::run::{Terms, Told, cpu_s, look_again};

/// Of an order that is soon done.
const SOON: Duration = Duration::from_secs(30);
/// For which drover may go on behind its deadline: it may wait for the other site.
const GRACE: Duration = Duration::from_secs(120);

fn drover(folder: &Path, host: &str) -> Drover {
    let built = workspace().join("target/release/drover");
    let program = std::env::var_os("DROVER_PROGRAM").map_or(built, PathBuf::from);
    Drover::new(program, folder.join(host))
}

/// An agent at the target's host, which the source's knows.
pub struct Agent(Child);

impl Agent {
    pub fn paired(ground: &Ground, folder: &Path, guests: usize) -> Result<Agent> {
        let (here, there) = (drover(folder, "here"), drover(folder, "there"));
        let listen = SocketAddr::from((ground.far_address(), 0)).to_string();
        let place = |number| format!("unix:{}/*", folder.join(format!("b{number}")).display());
        let allowed = (0..guests).flat_map(|number| ["--allow-connect".to_string(), place(number)]);
        let mut command = there.command(&["agent", "run", "--json", "--listen", &listen, "--name", "west"]);
        command.args(allowed);
        let agent = ground.far(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()))?;
        let mut agent = Agent(agent);
        let mut said = BufReader::new(agent.0.stdout.take().context("the agent's output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        // What it says later is of no interest, but must be taken.
        std::thread::spawn(move || said.lines().for_each(drop));
        let listening: Value =
            serde_json::from_str(&line).with_context(|| format!("the agent said '{line}'"))?;
        let address = listening["addresses"][0].as_str().context("the agent's address")?.to_string();
        let token = there.run(&["agent", "pair", "--new-token"])?;
        let file = folder.join("token");
        std::fs::write(&file, token.out)?;
        let mut pair = here.command(&["agent", "pair", &address, "--name", "site-b", "--as", "site-a"]);
        pair.arg("--token-file").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = ended(&mut ground.near(&mut pair)?, SOON, |_| {})?;
        ensure!(status.success(), "pairing ended with {status}");
        Ok(agent)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Moves guests: one, or several as drover decides.
pub fn live(
    pairs: &[(Pulse, Pulse)],
    ground: &Ground,
    folder: &Path,
    is_linked: bool,
    terms: &Terms,
) -> Result<Told> {
    let mut command = drover(folder, "here").command(&["live", "--json"]);
    let (key, value) = match is_linked {
        true => ("via", "site-b".to_string()),
        false => ("uri", format!("tcp:{}:0", ground.far_address())),
    };
    let (downtime, deadline) = (format!("{}ms", terms.downtime_ms), format!("{}s", terms.limit_s));
    if let [(source, target)] = pairs {
        command.arg(source.monitor()).arg("--to").arg(target.monitor());
        command.args([&format!("--{key}"), &value, "--downtime", &downtime, "--deadline", &deadline]);
    } else {
        let mut moves = format!("{key}: '{value}'\ndowntime: {downtime}\ndeadline: {deadline}\nmoves:\n");
        for (source, target) in pairs {
            let (from, to) = (source.monitor(), target.monitor());
            moves.push_str(&format!("  - {{from: '{}', to: '{}'}}\n", from.display(), to.display()));
        }
        let file = folder.join("moves.yaml");
        std::fs::write(&file, moves)?;
        command.arg("--moves").arg(file);
        if let Some(number) = std::env::var_os("DROVER_LIVE_AT_ONCE") {
            command.arg("--at-once").arg(number);
        }
    }
    if let Some(folder) = std::env::var_os("DROVER_LIVE_REPORTS") {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        command.arg("--report").arg(Path::new(&folder).join(format!("live-{}.json", since.as_millis())));
    }
    let (out, err) = (folder.join("out"), folder.join("err"));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let began = Instant::now();
    let mut child = ground.near(&mut command)?;
    let mut used = 0.0;
    let status = ended(&mut child, terms.limit() + GRACE, |child| used = cpu_s(child.id()).max(used))?;
    let whole = began.elapsed().as_secs_f64();
    let events: Vec<Value> =
        std::fs::read_to_string(&out)?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let named = |name: &str| events.iter().rev().find(|event| event["event"] == name);
    if let (Some(ended), Some(begins)) =
        (named("ended"), events.iter().find(|event| event["event"] == "begins"))
    {
        ensure!(ended["moved"] == pairs.len(), "drover ended with {status}: {ended}");
        // What each looks at before it sends is in it.
        let began_s = begins["at_s"].as_f64().context("at_s")?;
        let moved = events.iter().filter(|event| event["event"] == "moved");
        return Ok(Told {
            seconds: ended["total_s"].as_f64().context("total_s")? - began_s,
            before_s: began_s,
            bytes: moved.clone().filter_map(|event| event["sent_bytes"].as_u64()).sum(),
            counted_ms: moved.filter_map(|event| event["downtime_ms_by_qemu"].as_u64()).max(),
            is_done: true,
            cpu_s: used,
            foreseen_s: ended["total_s_foreseen"].as_f64(),
        });
    }
    if let Some(moved) = named("moved") {
        let seconds = moved["total_s"].as_f64().context("total_s")?;
        return Ok(Told {
            seconds,
            before_s: whole - seconds,
            bytes: moved["sent_bytes"].as_u64().context("sent_bytes")?,
            counted_ms: moved["downtime_ms_by_qemu"].as_u64(),
            is_done: true,
            cpu_s: used,
            // Of one that was over before its line was measured there is a bound only.
            foreseen_s: moved["total_s_foreseen"]
                .as_f64()
                .filter(|_| moved["total_s_foreseen_below"].is_null()),
        });
    }
    let said = std::fs::read_to_string(&err)?;
    let why = said.lines().next_back().unwrap_or_default();
    let is_at_source = named("failed").is_some_and(|failed| failed["guest_at"] == "source");
    match named("memory") {
        // Given up, as it was told to be.
        Some(last) if is_at_source && status.code() == Some(6) => Ok(Told {
            seconds: last["at_ms"].as_f64().unwrap_or_default() / 1000.0,
            before_s: 0.0,
            bytes: last["sent_bytes"].as_u64().unwrap_or_default(),
            counted_ms: None,
            is_done: false,
            cpu_s: used,
            foreseen_s: None,
        }),
        _ => bail!("drover ended with {status}: {why}"),
    }
}

/// Waits for a program, looking at it meanwhile; one that does not end is ended.
fn ended(child: &mut Child, within: Duration, mut look: impl FnMut(&Child)) -> Result<ExitStatus> {
    let until = Instant::now() + within;
    loop {
        look(child);
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            bail!("it did not end in {within:?}");
        }
        look_again(until);
    }
}
