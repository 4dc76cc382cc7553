//! One run of one program on a line of its own.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_lab::lab_folder;
use drover_wan::{Site, Wan, WanSpec};
use serde_json::Value;

use crate::clone::wan::tools::{Goodput, Tool};

const LOOK: Duration = Duration::from_millis(5);

/// How long a server has to begin to listen.
const START_TIME: Duration = Duration::from_secs(30);

/// How long a preparation may take, and a program that was ended until it has.
const PREPARE_TIME: Duration = Duration::from_secs(30);
const END_TIME: Duration = Duration::from_secs(10);

/// Streams and buffers grow meanwhile.
const FIRST: Duration = Duration::from_secs(1);

/// When the sockets are looked at.
const MIDDLE: Duration = Duration::from_secs(2);

/// Who has brought more than this to the line does no longer shake hands only.
const BEGINNING_BYTES: f64 = 262_144.0;
/// A program that has not brought this share of the line's rate that long after it began to send is not waited for.
const HOPE: (f64, Duration) = (0.25, Duration::from_secs(3));

/// What came out.
pub struct Run {
    pub bits_per_s: f64,
    /// Without the first second, in which streams and buffers grow: what came less what the line had carried by
    /// then, in the time that was left. What was under way then, or came twice, counts against the program.
    pub later_bits_per_s: f64,
    /// It was stopped: so much passed the line, perhaps some of it twice.
    pub is_at_most: bool,
    /// As the sending sockets had it; empty if it was over before they were looked at.
    pub congestion: String,
    pub doubt: Option<String>,
    /// Bytes that passed the line there, with all heads.
    pub carried_bytes: f64,
}

/// Runs a program.
pub fn measure(tool: &Tool, spec: &WanSpec, limit: Duration) -> Result<Run> {
    let wan = Wan::start(spec)?;
    let mut server = spawn(&wan.far, &tool.server, &wan, Stdio::null())?;
    listening(&wan.far, tool.port, &mut server).context("the far end")?;
    let mut helper = None;
    if let Some(port) = tool.helper_port {
        let mut child = spawn(&wan.near, &tool.helper, &wan, Stdio::null())?;
        listening(&wan.near, port, &mut child).context("the helper")?;
        helper = Some(child);
    }
    if !tool.prepare.is_empty() {
        let mut child = spawn(&wan.near, &tool.prepare, &wan, Stdio::null())?;
        let status = ended_within(&mut child, PREPARE_TIME)?.context("its preparation does not end")?;
        ensure!(status.success(), "its preparation ended with {status}");
    }
    // A pipe would be full before anybody reads it.
    let output = lab_folder().join("bench/wan-output");
    let before = carried(&wan)?;
    let begun = Instant::now();
    let mut client = spawn(&wan.near, &tool.client, &wan, File::create(&output)?.into())?;
    let mut congestion = String::new();
    let mut first = None;
    // Shaking hands sixteen times takes seconds on such a line, and is no sign of what comes after.
    let mut sends_since: Option<Instant> = None;
    let mut is_over = false;
    // iperf3 ends by itself, and tells only then.
    let mut is_judged = tool.is_sparing || matches!(tool.goodput, Goodput::Iperf);
    let mut deadline = if matches!(tool.goodput, Goodput::Iperf) { limit * 4 } else { limit };
    while !is_over && begun.elapsed() < deadline {
        std::thread::sleep(LOOK);
        let ended = client.try_wait()?;
        if ended.is_some_and(|status| !status.success()) && !matches!(tool.goodput, Goodput::Iperf) {
            bail!("{} ended with {ended:?}", tool.name);
        }
        is_over = match tool.goodput {
            Goodput::ReceiverEnds(_) => server.try_wait()?.is_some(),
            _ => ended.is_some(),
        };
        if first.is_none() && begun.elapsed() > FIRST {
            first = Some((carried(&wan)? - before, begun.elapsed().as_secs_f64()));
        }
        if congestion.is_empty() && begun.elapsed() > MIDDLE.min(limit / 3) {
            congestion = sockets(&wan.near)?;
        }
        if sends_since.is_none() && carried(&wan)? - before > BEGINNING_BYTES {
            sends_since = Some(Instant::now());
        }
        if !is_judged && sends_since.is_some_and(|since| since.elapsed() > HOPE.1) {
            is_judged = true;
            if is_hopeless(&wan, spec, begun.elapsed())? {
                deadline = Duration::ZERO;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let carried_bytes = carried(&wan)? - before;
    let (came, seconds) = match tool.goodput {
        Goodput::Iperf if is_over => told_by_iperf(&output)?,
        Goodput::SenderEnds(bytes) | Goodput::ReceiverEnds(bytes) if is_over => (bytes as f64, seconds),
        _ => (carried_bytes, seconds),
    };
    let bits_per_s = came * 8.0 / seconds;
    let later = first.filter(|(_, at)| *at < seconds && !tool.is_sparing);
    let later_bits_per_s = later.map_or(bits_per_s, |(by_then, at)| (came - by_then) * 8.0 / (seconds - at));
    // Not waited for after a deadline: it ends with the line.
    let report = wan.stop()?;
    for mut child in [Some(client), Some(server), helper].into_iter().flatten() {
        ensure!(ended_within(&mut child, END_TIME)?.is_some(), "a program of it does not end");
    }
    let is_at_most = !is_over;
    Ok(Run { bits_per_s, later_bits_per_s, is_at_most, congestion, doubt: report.doubt(), carried_bytes })
}

/// Bytes that the line has brought to the far end, with all heads.
fn carried(wan: &Wan) -> Result<f64> {
    Ok(wan.report()?.up.counts.carried_bytes as f64)
}

/// Waits for a program, and ends it after that time.
fn ended_within(child: &mut Child, within: Duration) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + within;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Whether so little passed the line that the program will never be done in time.
fn is_hopeless(wan: &Wan, spec: &WanSpec, elapsed: Duration) -> Result<bool> {
    let Some(rate) = spec.line.up.rate else { return Ok(false) };
    Ok(carried(wan)? * 8.0 / elapsed.as_secs_f64() < HOPE.0 * rate.bits_per_s() as f64)
}

fn spawn(site: &Site, words: &[String], wan: &Wan, output: Stdio) -> Result<Child> {
    let fill = |word: &String| {
        word.replace("{far}", &wan.far.address().to_string())
            .replace("{near}", &wan.near.address().to_string())
    };
    let words: Vec<String> = words.iter().map(fill).collect();
    let (program, args) = words.split_first().context("a program")?;
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new(program);
    let told = OpenOptions::new().create(true).append(true).open(lab_folder().join("bench/wan-told"))?;
    command.args(args).env("PATH", path).stdin(Stdio::null()).stdout(output).stderr(told);
    site.spawn(&mut command).with_context(|| program.clone())
}

fn listening(site: &Site, port: u16, server: &mut Child) -> Result<()> {
    let until = Instant::now() + START_TIME;
    while !site.listens(Some(port))? {
        if let Some(status) = server.try_wait()? {
            bail!("ended with {status} and listens on no port {port}");
        }
        if Instant::now() > until {
            bail!("nobody listens on port {port}");
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The congestion controls of the connections over the line, as ss(8) tells them.
fn sockets(near: &Site) -> Result<String> {
    let mut ss = Command::new("ss");
    ss.args(["-Htin", "state", "established", "dst", "10.81.2.0/24"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = near.spawn(&mut ss)?.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Each socket has a second line, set in, that begins with the name.
    let details = text.lines().filter(|line| line.starts_with(char::is_whitespace));
    let mut names: Vec<&str> = details.filter_map(|line| line.split_whitespace().next()).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names.join("+"))
}

/// Bytes that were received, and in how many seconds.
fn told_by_iperf(output: &Path) -> Result<(f64, f64)> {
    let text = std::fs::read_to_string(output)?;
    let told: Value = serde_json::from_str(&text).context("JSON of iperf3")?;
    if let Some(error) = told["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let sum = &told["end"]["sum_received"];
    let found = sum["bytes"].as_f64().zip(sum["seconds"].as_f64());
    found.context("iperf3 tells what was received")
}
