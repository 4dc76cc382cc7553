//! The program at work under strace, which delays, fails or kills it at a system call.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use drover_lab::Drover;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::dice::Dice;
use crate::tally::{Kind, Violation};

/// Nothing here has more than a few MiB to do; a machine that is busy with something else may need its time.
const TIME_MAX: Duration = Duration::from_secs(120);

/// One thing that strace does to a system call: `openat:error=EIO:when=3`.
pub type Injection = String;

/// The program that is tested: `DROVER_SOAK_PROGRAM`, or that of this build.
pub fn program() -> PathBuf {
    std::env::var_os("DROVER_SOAK_PROGRAM").map_or(env!("CARGO_BIN_EXE_drover").into(), PathBuf::from)
}

/// Whether there is an strace that may trace here; prints a line where there is none.
pub fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-D", "-f", "-qq", "-o", "/dev/null", "true"]).output();
    let can = traced.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: strace is not installed, or may not trace here");
    }
    can
}

/// A drover with its words in files of `folder`.
pub struct Run {
    pub child: Child,
    name: String,
    folder: PathBuf,
    is_killed: bool,
    /// It was denied memory.
    is_starved: bool,
}

/// One that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub said: String,
}

impl Run {
    /// Starts `drover ARGS` with what strace is to do to it; its words go to `NAME.out` and `NAME.err`.
    pub fn start(drover: &Drover, folder: &Path, name: &str, args: &[&str], injections: &[Injection]) -> Run {
        let plain = drover.command(args);
        let mut command = match injections {
            [] => plain,
            _ => traced(&plain, &injecting(injections)),
        };
        let file = |ending: &str| File::create(folder.join(format!("{name}.{ending}"))).unwrap();
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).process_group(0);
        command.env("XDG_RUNTIME_DIR", folder).env("RUST_BACKTRACE", "0");
        let has = |what: &str| injections.iter().any(|injection| injection.contains(what));
        let (is_killed, is_starved) = (has("signal=KILL"), has("ENOMEM"));
        Run {
            child: command.spawn().unwrap(),
            name: name.to_string(),
            folder: folder.to_path_buf(),
            is_killed,
            is_starved,
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end; a violation if it does not come, or is no end of a program that is whole.
    pub fn end(mut self) -> Result<Ended, Violation> {
        let until = Instant::now() + TIME_MAX;
        while !self.has_ended() {
            if Instant::now() > until {
                self.kill();
                return Err(Violation::new(Kind::Hang, self.words()));
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        let status = self.child.wait().unwrap();
        let ended = Ended { code: status.code(), said: self.words() };
        self.check(&ended, status)?;
        Ok(ended)
    }

    fn check(&self, ended: &Ended, status: ExitStatus) -> Result<(), Violation> {
        let said = &ended.said;
        let signal = status.signal();
        // Rust's own library ends a process that gets no memory so; the loader says nothing.
        let is_out_of_memory = self.is_starved
            && (said.is_empty()
                || ["memory allocation of", "an alternative stack"].iter().any(|words| said.contains(words)));
        let is_killed = signal == Some(9) && self.is_killed;
        if said.contains("panicked at") && !is_out_of_memory
            || signal.is_some() && !is_killed && !is_out_of_memory
        {
            return Err(Violation::new(Kind::Panic, format!("ended by signal {signal:?}: {said}")));
        }
        let is_foul = |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r') || is_direction(c);
        match said.chars().find(|c| is_foul(*c)) {
            Some(c) => Err(Violation::new(Kind::Terminal, format!("U+{:04X} in {said:?}", c as u32))),
            None => Ok(()),
        }
    }

    /// kill -9, for it and what it started.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.kill();
        self.is_killed = true;
    }

    fn words(&self) -> String {
        let read = |ending: &str| std::fs::read(self.folder.join(format!("{}.{ending}", self.name)));
        let text = |ending: &str| String::from_utf8_lossy(&read(ending).unwrap_or_default()).into_owned();
        format!("{}{}", text("out"), text("err"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
        }
        let _ = self.child.wait();
    }
}

fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Runs it to its end.
pub fn run(
    drover: &Drover,
    folder: &Path,
    name: &str,
    args: &[&str],
    injections: &[Injection],
) -> Result<Ended, Violation> {
    Run::start(drover, folder, name, args, injections).end()
}

/// With its tracer as a grandchild: what is started is drover itself, and its exit code is its own.
fn traced(command: &Command, options: &[String]) -> Command {
    let mut whole = Command::new("strace");
    whole.args(["-D", "-f", "-qq"]).args(options).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        whole.env(name, value.unwrap_or_default());
    }
    whole
}

fn injecting(injections: &[Injection]) -> Vec<String> {
    let calls: Vec<&str> = injections.iter().map(|one| one.split(':').next().unwrap()).collect();
    let mut options: Vec<String> = ["--seccomp-bpf", "-o", "/dev/null", "-e"].map(str::to_string).into();
    options.push(format!("trace={}", calls.join(",")));
    for injection in injections {
        options.extend(["-e".to_string(), format!("inject={injection}")]);
    }
    options
}

/// A system call, and how many of them a thread does at most.
pub type Point = (String, u64);

/// All system calls of a whole life of the program: each a place to strike at.
///
/// strace counts the calls of each thread by itself, and so does this.
pub fn points_of(drover: &Drover, folder: &Path, args: &[&str]) -> Vec<Point> {
    let trace = folder.join("trace");
    let options = ["-o".to_string(), trace.display().to_string()];
    let words = || File::create(folder.join("words")).unwrap();
    let mut command = traced(&drover.command(args), &options);
    let status = command.stdin(Stdio::null()).stdout(words()).stderr(words()).status().unwrap();
    let said = || std::fs::read_to_string(folder.join("words"));
    assert!(status.success(), "{args:?}: {:?}", said());
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let text = std::fs::read_to_string(&trace).unwrap();
    let mut others = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let Some((call, _)) = call.trim_start().split_once('(') else { continue };
        // What a child does is its own affair; one that has not executed its program yet is as drover left it.
        if call == "execve" && number > 0 {
            others.insert(thread);
        }
        if others.contains(thread) {
            continue;
        }
        let is_call = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if is_call && !NEVER_STRUCK.contains(&call) {
            *counts.entry((call, thread)).or_default() += 1;
        }
    }
    let mut most: BTreeMap<&str, u64> = BTreeMap::new();
    for ((call, _), count) in counts {
        let at = most.entry(call).or_default();
        *at = count.max(*at);
    }
    let calls: u64 = most.values().sum();
    assert!(calls > 100, "{calls} calls in {args:?}: nothing was traced");
    most.into_iter().map(|(call, count)| (call.to_string(), count)).collect()
}

/// Before the program begins or when it is over, or without an end that anybody could tell.
const NEVER_STRUCK: &[&str] = &["execve", "exit", "exit_group", "futex", "restart_syscall", "rt_sigreturn"];

/// kill -9 or an error of the kernel, at any call of a life: each kind of call is as likely, and of one kind each time that it is called.
pub fn strike(points: &[Point], dice: &mut Dice) -> Injection {
    let is_kill = dice.percent(45);
    loop {
        let (call, most) = dice.one_of(points);
        let when = 1 + dice.roll(*most);
        if is_kill {
            return format!("{call}:signal=KILL:when={when}");
        }
        if let Some(injection) = fail_at(call, when, dice) {
            return injection;
        }
    }
}

/// What the kernel may answer to a call, for one of its calls or from one on.
fn fail_at(call: &str, when: u64, dice: &mut Dice) -> Option<Injection> {
    let errors = errors_of(call)?;
    let error = dice.one_of(errors);
    // A disk that is full or broken stays so; EINTR for ever is no kernel's answer.
    let goes_on = !matches!(*error, "EINTR" | "EAGAIN") && dice.percent(25);
    Some(format!("{call}:error={error}:when={when}{}", if goes_on { "+" } else { "" }))
}

fn errors_of(call: &str) -> Option<&'static [&'static str]> {
    Some(match call {
        "openat" | "open" => &["EMFILE", "ENFILE", "ENOMEM", "EACCES", "EIO", "ENOSPC", "EINTR", "EROFS"],
        "pread64" | "read" | "readv" | "preadv" | "preadv2" | "pread" => &["EIO", "EINTR", "ENOMEM"],
        "pwrite64" | "write" | "writev" | "pwritev" | "pwritev2" => {
            &["EIO", "ENOSPC", "EINTR", "EDQUOT", "EFBIG", "ENOMEM"]
        }
        "fsync" | "fdatasync" | "sync_file_range" | "syncfs" => &["EIO", "ENOSPC", "EDQUOT", "EINTR"],
        "ftruncate" | "fallocate" | "truncate" => &["EIO", "ENOSPC", "EFBIG", "EINTR", "EOPNOTSUPP"],
        "rename" | "renameat" | "renameat2" | "link" | "linkat" | "symlink" => {
            &["EIO", "ENOSPC", "EXDEV", "EACCES"]
        }
        "unlink" | "unlinkat" | "mkdir" | "mkdirat" | "rmdir" => &["EIO", "EROFS", "EACCES", "ENOSPC"],
        "statx" | "stat" | "fstat" | "newfstatat" | "lstat" | "getdents64" | "statfs" | "fstatfs" => {
            &["EIO", "ENOMEM", "EACCES"]
        }
        // ENXIO is no error: it says that there is no data.
        "lseek" => &["EIO", "EINVAL"],
        // Not EINTR: locks are asked for without waiting, so no signal ends the call. SQLite waits for ever after one.
        "fcntl" | "flock" => &["ENOLCK"],
        "ioctl" => &["EIO", "ENOTTY"],
        "clone3" | "clone" => &["EAGAIN", "ENOMEM"],
        // Not mprotect and getrandom: Rust's own library panics where a stack gets no guard page and where there is no
        // chance for a hash table, which no kernel lacks. Nor brk, whose failure is no error number.
        "mmap" | "mremap" => &["ENOMEM"],
        // Not close: strace does not carry out a call that is to fail, and Linux gives the descriptor back whatever close answers.
        "copy_file_range" => &["EIO", "ENOSPC", "EXDEV", "EOPNOTSUPP", "EINTR"],
        "socket" | "accept4" | "bind" | "listen" => &["EMFILE", "ENOMEM", "EACCES"],
        "connect" => &["ECONNREFUSED", "ETIMEDOUT", "EINTR", "ENETUNREACH"],
        "sendto" | "sendmsg" | "recvfrom" | "recvmsg" => &["ECONNRESET", "EINTR", "ENOMEM", "EPIPE"],
        "poll" | "ppoll" | "epoll_wait" => &["EINTR", "ENOMEM"],
        "pipe2" | "eventfd2" | "epoll_create1" | "socketpair" | "dup" => &["EMFILE"],
        _ => return None,
    })
}

/// `delay_enter` or `delay_exit` at a call, in microseconds.
pub fn delay_at(call: &str, when: u64, micros: u64, dice: &mut Dice) -> Injection {
    let side = if dice.percent(50) { "enter" } else { "exit" };
    format!("{call}:delay_{side}={micros}:when={when}")
}
