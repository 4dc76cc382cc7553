//! `drover-lab wan`: a command at one end of a long, lossy line.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use drover_console::out::{line, say};
use drover_console::signals::{Undo, stop_on_signals};
use drover_types::chain;
use drover_types::units::Cap;
use drover_wan::line::{DirectionSpec, LineSpec, REORDER_BY};
use drover_wan::{Control, Site, Wan, WanError, WanSpec, running, tell};

use crate::cli::{DirectionArgs, LineArgs, WanArgs, WanControl};

/// There is no line: as env(1) and others say that they themselves failed.
const NO_LINE: u8 = 125;

const CANNOT_RUN: u8 = 126;

const NOT_FOUND: u8 = 127;
/// Ctrl-C came before the command began.
const STOPPED: u8 = 130;

/// How often to look whether the command has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How long a program at the far end is waited for that listens on nothing by TCP.
const FAR_TIME: Duration = Duration::from_secs(2);

/// How long the port that was named is waited for.
const FAR_PORT_TIME: Duration = Duration::from_secs(60);

/// How long the command has to end after a signal.
const END_TIME: Duration = Duration::from_secs(10);

/// A failure of our own, with the code to end with.
struct Failed(u8, String);

impl From<WanError> for Failed {
    fn from(error: WanError) -> Failed {
        let advice = error.advice().map(|advice| format!("\n  try: {advice}")).unwrap_or_default();
        Failed(NO_LINE, chain(&error) + &advice)
    }
}

/// Runs a command at one end of a line, or gives a line an order.
pub fn run(args: &WanArgs) -> ExitCode {
    let done = match &args.control {
        Some(WanControl::Ctl { socket, order }) => control(socket.as_deref(), &order.join(" ")),
        None => run_command(args),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failed(code, why)) => {
            say(format_args!("error: {why}"));
            ExitCode::from(code)
        }
    }
}

fn control(socket: Option<&Path>, order: &str) -> Result<u8, Failed> {
    let socket = match socket {
        Some(socket) => socket.to_path_buf(),
        None => only_one(running()?)?,
    };
    line(tell(&socket, order)?);
    Ok(0)
}

fn only_one(sockets: Vec<PathBuf>) -> Result<PathBuf, Failed> {
    match <[PathBuf; 1]>::try_from(sockets) {
        Ok([one]) => Ok(one),
        Err(none) if none.is_empty() => Err(Failed(NO_LINE, "no line is in use".into())),
        Err(several) => {
            let list: Vec<String> = several.iter().map(|it| it.display().to_string()).collect();
            Err(Failed(
                NO_LINE,
                format!("several lines are in use; say which by --socket: {}", list.join(", ")),
            ))
        }
    }
}

fn run_command(args: &WanArgs) -> Result<u8, Failed> {
    let [program, rest @ ..] = args.command.as_slice() else {
        return Err(Failed(2, "there is nothing to run; write it after --".into()));
    };
    let stop = stop_on_signals().map_err(|error| Failed(NO_LINE, format!("signals: {error}")))?;
    let spec = spec(args)?;
    // Ended in its midst, programs of the far end would live on in a namespace that has no name.
    let _undo = Undo::begin();
    let wan = Wan::start(&spec)?;
    let orders = Control::serve(wan.handle())?;
    if !args.quiet {
        say(described(&spec, &wan));
    }
    let mut far =
        args.far.as_ref().map(|it| far(it, args.far_port, &wan, &orders, || stop.is_set())).transpose()?;
    let mut command = Command::new(program);
    command.args(rest);
    let mut child = start(&mut command, &wan.near, &wan, &orders)
        .map_err(|error| Failed(code_of(&error), format!("{program}: {error}")))?;
    let ended = wait(&mut child, || stop.is_set()).map_err(|error| Failed(NO_LINE, error.to_string()))?;
    drop(orders);
    let report = wan.stop()?;
    if let Some(far) = &mut far {
        // Ended with the line; this only takes its status.
        let _ = far.wait();
    }
    if !args.quiet {
        say(report);
    }
    Ok(code(ended))
}

/// The command's exit code; that of a shell if a signal ended it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn code_of(error: &std::io::Error) -> u8 {
    if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }
}

/// Starts a program at an end, with what it needs to know.
fn start(command: &mut Command, site: &Site, wan: &Wan, orders: &Control) -> std::io::Result<Child> {
    fn all<T: ToString>(addresses: &[T]) -> String {
        addresses.iter().map(T::to_string).collect::<Vec<_>>().join(",")
    }
    for (name, end) in [("NEAR", &wan.near), ("FAR", &wan.far)] {
        command.env(format!("DROVER_WAN_{name}"), end.address().to_string());
        command.env(format!("DROVER_WAN_{name}S"), all(&end.addresses));
        command.env(format!("DROVER_WAN_{name}_NETNS"), end.namespace.path());
        if let Some(address) = end.addresses6.first() {
            command.env(format!("DROVER_WAN_{name}6"), address.to_string());
            command.env(format!("DROVER_WAN_{name}6S"), all(&end.addresses6));
        }
    }
    site.spawn(command.env("DROVER_WAN_CONTROL", orders.path()))
}

/// Starts the far end's program and waits until it listens. Its output goes to standard error: the other is the command's.
fn far(
    text: &str,
    port: Option<u16>,
    wan: &Wan,
    orders: &Control,
    is_over: impl Fn() -> bool,
) -> Result<Child, Failed> {
    let failed = |what: &str, error: std::io::Error| Failed(NO_LINE, format!("{what}: {error}"));
    let output = std::io::stderr();
    let output = std::os::fd::AsFd::as_fd(&output).try_clone_to_owned();
    let output = output.map_err(|error| failed("standard error", error))?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]).stdin(Stdio::null()).stdout(output);
    let mut child = start(&mut command, &wan.far, wan, orders).map_err(|error| failed("--far", error))?;
    let until = Instant::now() + if port.is_some() { FAR_PORT_TIME } else { FAR_TIME };
    while !wan.far.listens(port).map_err(|error| failed("looking for listeners", error))? {
        if let Some(status) = child.try_wait().map_err(|error| failed("--far", error))?
            && (port.is_some() || !status.success())
        {
            return Err(Failed(NO_LINE, format!("--far ended ({status}) before anything listened")));
        }
        if is_over() {
            return Err(Failed(STOPPED, "stopped before anything listened at the far end".into()));
        }
        match port {
            Some(port) if Instant::now() > until => {
                return Err(Failed(NO_LINE, format!("nobody listens on port {port} of the far end")));
            }
            None if Instant::now() > until => break,
            _ => std::thread::sleep(LOOK),
        }
    }
    Ok(child)
}

/// Waits for the command; after a signal it is asked to end, and killed if it does not.
fn wait(child: &mut Child, is_over: impl Fn() -> bool) -> std::io::Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match asked {
            None if is_over() => {
                asked = Some(Instant::now());
                terminate(child);
            }
            Some(at) if at.elapsed() > END_TIME => child.kill()?,
            _ => {}
        }
        std::thread::sleep(LOOK);
    }
}

fn terminate(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended since it was looked at.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

fn spec(args: &WanArgs) -> Result<WanSpec, Failed> {
    let line = LineSpec {
        up: direction(&args.line, &DirectionArgs::from(&args.up))?,
        down: direction(&args.line, &DirectionArgs::from(&args.down))?,
    };
    Ok(WanSpec {
        line: line.with_queues(),
        mtu: args.mtu,
        near_addresses: args.near_addresses,
        far_addresses: args.far_addresses,
        tcp_mem: args.tcp_mem,
        near_congestion: args.congestion.clone(),
        far_congestion: args.far_congestion.clone().or_else(|| args.congestion.clone()),
        seed: args.seed,
    })
}

fn direction(both: &LineArgs, own: &DirectionArgs) -> Result<DirectionSpec, Failed> {
    let rate = own.rate.or(both.rate);
    let cap = |cap: Option<Cap>| match cap {
        None => Ok(None),
        Some(cap) => cap
            .of(rate)
            .map(Some)
            .ok_or_else(|| Failed(2, "a share of the line's rate needs a --rate".into())),
    };
    let (reorder, by) = own.reorder.or(both.reorder).unwrap_or_default();
    Ok(DirectionSpec {
        rate,
        delay: own.delay.unwrap_or(both.rtt / 2),
        loss: own.loss.unwrap_or(both.loss),
        burst: own.burst.or(both.burst),
        jitter: own.jitter.or(both.jitter).unwrap_or_default(),
        reorder,
        reorder_by: by.unwrap_or(REORDER_BY),
        queue: own.queue.or(both.queue),
        police_flow: cap(own.police_flow.or(both.police_flow))?,
        shape_flow: cap(own.shape_flow.or(both.shape_flow))?,
        outages: both.outages.iter().chain(&own.outages).copied().collect(),
    })
}

fn described(spec: &WanSpec, wan: &Wan) -> String {
    let one = |name: &str, it: &DirectionSpec| {
        let rate = it.rate.map_or("no rate".to_string(), |rate| rate.to_string());
        let mut text = format!("{name}: {rate}, {:?} one way, {} lost", it.delay, it.loss);
        if let Some(burst) = it.burst {
            text += &format!(" in bursts of {burst}");
        }
        for (what, rate) in [("policed", it.police_flow), ("shaped", it.shape_flow)] {
            text += &rate.map(|rate| format!(", sessions {what} to {rate}")).unwrap_or_default();
        }
        text
    };
    format!(
        "{}\n{}\nMTU {}, seed {}, congestion control near {}, far {} (read back)",
        one("up", &spec.line.up),
        one("down", &spec.line.down),
        spec.mtu,
        spec.seed,
        wan.near.congestion,
        wan.far.congestion
    )
}
