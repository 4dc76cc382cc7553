//! `drover-lab bench relay` (`make bench-relay`): one stream over loopback through drover's relay, socat and haproxy, in turns.
//!
//! Each program relays the same number of bytes from a sender to a receiver in this process; the time is
//! from the first byte sent to the last one received, the CPU is the relay's own. Environment:
//! `DROVER_BENCH_MIB` (4096), `DROVER_BENCH_ROUNDS` (5), `DROVER_BENCH_CASES` (names with commas).

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::clone::shared::{spread, variable};

/// A program that does not listen by then does not work.
const START_MAX: Duration = Duration::from_secs(10);
const PIECE_BYTES: usize = 1 << 20;

/// One way for the bytes to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Direct,
    Drover,
    Socat,
    SocatLarge,
    Haproxy,
    HaproxySplice,
}

const CASES: [Case; 6] =
    [Case::Direct, Case::Drover, Case::Socat, Case::SocatLarge, Case::Haproxy, Case::HaproxySplice];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Direct => "direct",
            Case::Drover => "drover relay",
            Case::Socat => "socat",
            Case::SocatLarge => "socat -b 1048576",
            Case::Haproxy => "haproxy",
            Case::HaproxySplice => "haproxy splice",
        }
    }

    fn program(self) -> Option<&'static str> {
        match self {
            Case::Direct | Case::Drover => None,
            Case::Socat | Case::SocatLarge => Some("socat"),
            Case::Haproxy | Case::HaproxySplice => Some("haproxy"),
        }
    }

    fn is_there(self) -> bool {
        let found = |program: &str| {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&paths).any(|path| path.join(program).exists())
        };
        self.program().is_none_or(|program| found(program) || found(&format!("../sbin/{program}")))
    }
}

/// A relay that runs, and ends when it is dropped.
struct Relay {
    child: Child,
    address: SocketAddr,
    _config: Option<TempDir>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It has ended by itself, as socat does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start(case: Case, target: SocketAddr) -> Result<Option<Relay>> {
    let port = free_port()?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let (mut command, config) = match case {
        Case::Direct => return Ok(None),
        Case::Drover => (drover(address, target), None),
        Case::Socat => (socat(&["-b", "8192"], port, target), None),
        Case::SocatLarge => (socat(&["-b", "1048576"], port, target), None),
        Case::Haproxy => haproxy(port, target, false)?,
        Case::HaproxySplice => haproxy(port, target, true)?,
    };
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    let child = command.spawn().with_context(|| format!("starting {}", case.name()))?;
    let relay = Relay { child, address, _config: config };
    wait_until_it_listens(port).with_context(|| format!("waiting for {}", case.name()))?;
    Ok(Some(relay))
}

fn drover(address: SocketAddr, target: SocketAddr) -> Command {
    let mut command = Command::new(drover_lab::workspace().join("target/release/drover"));
    let control = std::env::temp_dir().join(format!("drover-relay-bench-{}.sock", address.port()));
    command.args(["relay", "--congestion", "host", "--exit-with-parent", "--control"]).arg(control);
    command.args(["--listen", &address.to_string(), "--to", &target.to_string()]);
    command
}

fn socat(options: &[&str], port: u16, target: SocketAddr) -> Command {
    let mut command = Command::new("socat");
    command.args(options);
    command.arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr")).arg(format!("TCP:{target}"));
    command
}

fn haproxy(port: u16, target: SocketAddr, splice: bool) -> Result<(Command, Option<TempDir>)> {
    let folder = tempfile::Builder::new().prefix("drover-relay-bench-").tempdir()?;
    let path: PathBuf = folder.path().join("haproxy.cfg");
    let splicing = if splice { "  option splice-request\n  option splice-response\n" } else { "" };
    let text = format!(
        "global\n  nbthread 2\n  tune.pipesize 1048576\n\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
         timeout client 60s\n  timeout server 60s\n{splicing}\nlisten bench\n  bind 127.0.0.1:{port}\n  \
         server target {target}\n"
    );
    fs::write(&path, text)?;
    let program = if PathBuf::from("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" };
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(path);
    Ok((command, Some(folder)))
}

/// Without connecting, which socat would take for the one connection it serves.
fn wait_until_it_listens(port: u16) -> Result<()> {
    let wanted = format!(":{port:04X} ");
    let until = Instant::now() + START_MAX;
    while Instant::now() < until {
        let table = fs::read_to_string("/proc/net/tcp")?;
        let listens = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            format!("{local} ").ends_with(&wanted) && words.nth(1) == Some("0A")
        };
        if table.lines().any(listens) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("nobody listens on port {port}")
}

/// CPU time of all threads that a process has, in seconds.
fn cpu(pid: u32) -> Result<f64> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(nanos as f64 / 1e9)
}

/// What one run came to.
#[derive(Clone, Copy, Debug)]
struct Run {
    gigabytes_per_second: f64,
    cpu_seconds_per_gigabyte: f64,
    /// The sender's and the receiver's beside it: on loopback who transmits also does some of the receiving.
    all_cpu_seconds_per_gigabyte: f64,
}

fn send(case: Case, bytes: u64) -> Result<Run> {
    let target = TcpListener::bind("127.0.0.1:0")?;
    let relay = start(case, target.local_addr()?)?;
    let address = relay.as_ref().map_or(target.local_addr()?, |relay| relay.address);
    let receiving = std::thread::spawn(move || receive(&target));
    let mut stream = TcpStream::connect(address)?;
    let cpu_of = |relay: &Option<Relay>| relay.as_ref().map_or(Ok(0.0), |relay| cpu(relay.child.id()));
    let (before, ends_before) = (cpu_of(&relay)?, cpu(std::process::id())?);
    let begun = Instant::now();
    let piece = vec![0x5a; PIECE_BYTES];
    for _ in 0..bytes / PIECE_BYTES as u64 {
        stream.write_all(&piece)?;
    }
    // The receiver answers when it has got the last byte, and the relay stays while both ends are open.
    let answer_wanted = receiving.thread().id();
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;
    let seconds = begun.elapsed().as_secs_f64();
    let used = cpu_of(&relay)? - before;
    let ends_used = cpu(std::process::id())? - ends_before;
    stream.shutdown(Shutdown::Write)?;
    let received = receiving.join().map_err(|_| anyhow::anyhow!("receiver {answer_wanted:?} panicked"))??;
    ensure!(received == bytes + 1, "{received} bytes arrived of {}", bytes + 1);
    let gigabytes = bytes as f64 / 1e9;
    Ok(Run {
        gigabytes_per_second: gigabytes / seconds,
        cpu_seconds_per_gigabyte: used / gigabytes,
        all_cpu_seconds_per_gigabyte: (used + ends_used) / gigabytes,
    })
}

/// Takes all, answers the byte that ends it, and gives how many came.
fn receive(target: &TcpListener) -> Result<u64> {
    let (mut stream, _) = target.accept()?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut received = 0;
    loop {
        let bytes = stream.read(&mut piece)?;
        if bytes == 0 {
            return Ok(received);
        }
        received += bytes as u64;
        if piece[bytes - 1] == 1 {
            stream.write_all(&[1])?;
        }
    }
}

/// Runs the bench.
pub fn run() -> Result<()> {
    let mib = variable("DROVER_BENCH_MIB", 4096u64)?.max(1);
    let rounds = variable("DROVER_BENCH_ROUNDS", 5u64)?.max(1);
    let wanted = std::env::var("DROVER_BENCH_CASES").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    let is_wanted = |case: &Case| wanted.is_empty() || wanted.contains(&case.name());
    let (cases, missing): (Vec<Case>, Vec<Case>) =
        CASES.into_iter().filter(is_wanted).partition(|case| case.is_there());
    missing.iter().for_each(|case| println!("left out: {} is not installed", case.name()));
    let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
    println!(
        "{mib} MiB by one stream on loopback, {rounds} rounds in turns, {} everywhere",
        congestion.trim()
    );
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for (at, case) in cases.iter().enumerate() {
            runs[at].push(send(*case, mib << 20).with_context(|| case.name())?);
        }
    }
    println!(
        "\n| way | GB/s, median (spread) | CPU s per GB of the relay | and of both ends |\n|---|---|---|---|"
    );
    for (case, runs) in cases.iter().zip(&runs) {
        let (low, rate, high) = spread(runs.iter().map(|run| run.gigabytes_per_second));
        let (least, cpu, most) = spread(runs.iter().map(|run| run.cpu_seconds_per_gigabyte));
        let cpu =
            if *case == Case::Direct { String::new() } else { format!("{cpu:.3} ({least:.3}-{most:.3})") };
        let (least, all, most) = spread(runs.iter().map(|run| run.all_cpu_seconds_per_gigabyte));
        println!(
            "| {} | {rate:.2} ({low:.2}-{high:.2}) | {cpu} | {all:.3} ({least:.3}-{most:.3}) |",
            case.name()
        );
    }
    Ok(())
}
