//! `drover-lab wan`. Skips, and says so, where no namespaces or TUN devices can be made.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LAB: &str = env!("CARGO_BIN_EXE_drover-lab");

const PATIENCE: Duration = Duration::from_secs(60);

fn wan(args: &[&str]) -> Output {
    Command::new(LAB).arg("wan").args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether there can be lines here.
fn can() -> bool {
    let output = wan(&["--", "true"]);
    if output.status.success() {
        return true;
    }
    println!("SKIPPED: no line can be laid here: {}", text(&output.stderr));
    assert!(std::env::var_os("DROVER_NEEDS_WAN").is_none(), "DROVER_NEEDS_WAN is set");
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("error: making a "), "it is not this machine that cannot");
    false
}

#[test]
fn a_command_runs_at_the_near_end_and_its_exit_code_is_kept() {
    if !can() {
        return;
    }
    let output = wan(&[
        "--rate",
        "100m",
        "--rtt",
        "10ms",
        "--down-loss",
        "1%",
        "--near-addresses",
        "5",
        "--far-addresses",
        "2",
        "--tcp-mem",
        "8m",
        "--congestion",
        "reno",
        "--",
        "sh",
        "-c",
        "echo $DROVER_WAN_NEARS $DROVER_WAN_FAR; cat /proc/sys/net/ipv4/tcp_wmem; test -e $DROVER_WAN_FAR_NETNS && exit 7",
    ]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(7), "{err}");
    assert!(out.starts_with("10.81.1.1,10.81.1.2,10.81.1.3,10.81.1.4,10.81.1.5 10.81.2.1\n"), "{out}");
    assert!(out.trim_end().ends_with("8388608"), "{out}");
    assert!(err.contains("up: 100 Mbit/s, 5ms one way, 0 % lost"), "{err}");
    assert!(err.contains("down: 100 Mbit/s, 5ms one way, 1 % lost"), "{err}");
    assert!(err.contains("congestion control near reno, far reno (read back)"), "{err}");
    assert!(err.contains("segments carried"), "{err}");
}

#[test]
fn the_far_end_serves_and_orders_are_taken() {
    if !can() {
        return;
    }
    let serve = "exec nbdkit -f -p 10809 memory 1M";
    let ask =
        format!("nbdinfo --size nbd://$DROVER_WAN_FAR && {LAB} wan ctl outage 10ms && {LAB} wan ctl status");
    let output = wan(&["--quiet", "--far", serve, "--far-port", "10809", "--", "sh", "-c", &ask]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out} {}", text(&output.stderr));
    assert!(out.starts_with("1048576\nok\nup: "), "{out}");
}

#[test]
fn what_fails_before_the_command_has_a_code_of_its_own() {
    let nothing = wan(&[]);
    assert_eq!(nothing.status.code(), Some(2), "{}", text(&nothing.stderr));
    let share = wan(&["--police-flow", "20%", "--", "true"]);
    assert_eq!(share.status.code(), Some(2), "{}", text(&share.stderr));
    assert!(text(&share.stderr).contains("needs a --rate"));
    assert_eq!(wan(&["--rtt", "55", "--", "true"]).status.code(), Some(2));
    if !can() {
        return;
    }
    assert_eq!(wan(&["--", "/no/such/program"]).status.code(), Some(127));
    assert_eq!(wan(&["--", "/etc/passwd"]).status.code(), Some(126));
    assert_eq!(wan(&["--mtu", "100", "--", "true"]).status.code(), Some(125));
    // One that names no port is waited for for a moment only.
    let early = wan(&["--far", "exit 3", "--far-port", "9", "--", "true"]);
    assert_eq!(early.status.code(), Some(125), "{}", text(&early.stderr));
}

/// Starts a line whose command says that it runs and then sleeps.
fn sleeper() -> std::process::Child {
    let mut child = Command::new(LAB)
        .args(["wan", "--quiet", "--", "sh", "-c", "echo $DROVER_WAN_CONTROL $$; exec sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take();
    child
}

fn first_line(child: &mut std::process::Child) -> (std::path::PathBuf, i32) {
    let mut line = String::new();
    let mut byte = [0];
    while child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0].into());
    }
    let (path, pid) = line.split_once(' ').unwrap();
    (path.into(), pid.parse().unwrap())
}

fn send(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_signal_ends_the_command_and_nothing_is_left() {
    if !can() {
        return;
    }
    let mut child = sleeper();
    let (socket, pid) = first_line(&mut child);
    send(child.id(), rustix::process::Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "as the command that SIGTERM ended");
    assert!(!socket.exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn programs_of_the_far_end_end_though_the_signal_comes_twice() {
    if !can() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let far = format!("echo $$ >{}; exec sleep 1000", file.display());
    let mut child = Command::new(LAB)
        .args([
            "wan",
            "--quiet",
            "--far",
            &far,
            "--",
            "sh",
            "-c",
            "echo $DROVER_WAN_CONTROL $$; exec sleep 1000",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    first_line(&mut child);
    let pid = std::fs::read_to_string(file).unwrap();
    for _ in 0..2 {
        send(child.id(), rustix::process::Signal::INT);
    }
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "as the command that SIGTERM ended");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "it lives on: {stat}");
}

/// Whether a process runs. One that has ended and that nobody waited for does not.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Waits until a file holds a line, and returns it.
fn told(file: &std::path::Path) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text.ends_with('\n') {
            return text.trim().to_string();
        }
        assert!(Instant::now() < until, "nothing in {}", file.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_that_is_killed_takes_what_runs_at_its_ends_with_it() {
    if !can() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (far_file, deep_file) = (folder.path().join("far"), folder.path().join("deep"));
    // At each end one that its parent has forgotten, of which one ends only when it is killed.
    let far = format!("(trap '' TERM; exec sleep 1000) & echo $! >{}; wait", far_file.display());
    let deep = format!(
        "setsid sleep 1000 & echo $! >{}; echo $DROVER_WAN_CONTROL $$; exec sleep 1000",
        deep_file.display()
    );
    let mut child = Command::new(LAB)
        .args(["wan", "--quiet", "--far", &far, "--", "sh", "-c", &deep])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (socket, pid) = first_line(&mut child);
    let all = [pid.to_string(), told(&deep_file), told(&far_file)];
    assert!(all.iter().all(|pid| runs(pid)), "{all:?}");
    let mut device = Command::new("nsenter");
    device.args([&format!("--net=/proc/{pid}/ns/net"), "cat", "/proc/net/dev"]);
    assert!(text(&device.output().unwrap().stdout).contains("wan0:"));
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + PATIENCE;
    while all.iter().any(|pid| runs(pid)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<&String> = all.iter().filter(|pid| runs(pid)).collect();
    left.iter().for_each(|pid| send(pid.parse().unwrap(), rustix::process::Signal::KILL));
    assert!(left.is_empty(), "of {all:?} these live on: {left:?}");
    // The socket goes with the next start, unless that of another one has removed it already.
    assert!(wan(&["--", "true"]).status.success());
    assert!(!socket.exists());
}
