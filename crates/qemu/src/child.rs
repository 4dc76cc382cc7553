//! Child processes with bounds: on their time, on their words, and on their life.

use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::error::{QemuError, QemuErrorKind};
use drover_child::Kind;

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) status: String,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Ended {
    /// What it said about its failure: standard error, or its status where it said nothing.
    pub(crate) fn words(&self) -> String {
        match tail(&self.stderr) {
            words if words.is_empty() => self.status.clone(),
            words => words,
        }
    }

    /// Turns a failure into an error.
    pub(crate) fn check(self, what: impl Into<String>) -> Result<Ended, QemuError> {
        if self.success {
            return Ok(self);
        }
        let words = self.words();
        Err(QemuError::new(QemuErrorKind::of_words(&words), what).because(words))
    }
}

/// Runs a command to its end. It gets no input, and its process group is killed when time is up.
///
/// # Errors
/// If it cannot be started, or with `TimedOut`.
pub(crate) fn run(command: &mut Command, time_max: Duration) -> io::Result<Ended> {
    run_with(command, Stdio::null(), time_max)
}

/// As [`run`], with this for its input.
pub(crate) fn run_with(command: &mut Command, input: Stdio, time_max: Duration) -> io::Result<Ended> {
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let readers = read_in_background(stdout).and_then(|one| Ok((one, read_in_background(stderr)?)));
    let (stdout, stderr) = match readers {
        Ok(readers) => readers,
        Err(error) => {
            kill_group(&mut child);
            return Err(error);
        }
    };
    let status = match wait(&mut child, time_max)? {
        Some(status) => status,
        None => {
            kill_group(&mut child);
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("not done after {} s", time_max.as_secs()),
            ));
        }
    };
    let collected = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    let (stdout, stderr) = (collected(stdout), collected(stderr));
    Ok(Ended { success: status.success(), status: status.to_string(), stdout, stderr })
}

/// Runs a program that a package brings.
///
/// # Errors
/// As [`run`]; [`QemuErrorKind::Missing`] if there is no such program.
pub(crate) fn run_of(
    package: &'static str,
    command: &mut Command,
    time_max: Duration,
) -> Result<Ended, QemuError> {
    let program = command.get_program().to_string_lossy().into_owned();
    run(command, time_max).map_err(|error| start_error(package, &program, error))
}

/// Why a program did not start, or did not end.
pub(crate) fn start_error(package: &'static str, program: &str, error: io::Error) -> QemuError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            QemuError::new(QemuErrorKind::Missing(package), format!("{program} is not installed"))
        }
        io::ErrorKind::WouldBlock => QemuError::not_started(program, error),
        _ => QemuError::io(format!("run of {program}"), error),
    }
}

/// Waits for a child's end, at most so long.
pub(crate) fn wait(child: &mut Child, time_max: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    wait_while(child, time_max, &|| false)
}

fn wait_while(
    child: &mut Child,
    time_max: Duration,
    is_unwanted: &dyn Fn() -> bool,
) -> io::Result<Option<std::process::ExitStatus>> {
    let until = Instant::now() + time_max;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until || is_unwanted() {
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// A folder that only this user can look into; short, as paths of sockets must be.
pub(crate) fn private_folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("drover-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// A child that ends when this process ends, however that happens. Its folder goes after it.
#[derive(Debug)]
pub(crate) struct Guarded {
    shell: Child,
    lifeline: Option<ChildStdin>,
}

impl Guarded {
    /// Starts `program arguments` under a guard; when this process or the value is gone, the child gets SIGTERM,
    /// and `folder` is removed once it has ended. Both outputs of the child go to `log`.
    pub(crate) fn spawn(command: &Command, folder: &Path, log: fs::File) -> io::Result<Guarded> {
        // What `command` inherits is among the variables it sets.
        let mut shell = drover_child::command("/bin/sh", Kind::Plain);
        shell
            .args(["-c", GUARD, "drover-guard"])
            .arg(folder)
            .arg(command.get_program())
            .args(command.get_args());
        command.get_envs().for_each(|(name, value)| match value {
            Some(value) => drop(shell.env(name, value)),
            None => drop(shell.env_remove(name)),
        });
        if let Some(here) = command.get_current_dir() {
            shell.current_dir(here);
        }
        shell.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        // A group of its own: Ctrl-C on the terminal is ours to handle, and must not cut a target off.
        let mut shell = shell.process_group(0).spawn()?;
        let lifeline = shell.stdin.take();
        Ok(Guarded { shell, lifeline })
    }

    /// Waits for the child's end by itself.
    pub(crate) fn wait(&mut self, time_max: Duration) -> io::Result<Option<std::process::ExitStatus>> {
        wait(&mut self.shell, time_max)
    }

    /// The same while it is wanted.
    pub(crate) fn wait_while(
        &mut self,
        time_max: Duration,
        is_unwanted: &dyn Fn() -> bool,
    ) -> io::Result<Option<std::process::ExitStatus>> {
        wait_while(&mut self.shell, time_max, is_unwanted)
    }

    /// Ends the child and waits until it is gone.
    pub(crate) fn stop(&mut self) {
        self.lifeline.take();
        if !matches!(wait(&mut self.shell, STOP_TIME_MAX), Ok(Some(_))) {
            kill_group(&mut self.shell);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.stop();
    }
}

// The kernel closes our end of the pipe even after SIGKILL, so the shell's `read` returns then. PR_SET_PDEATHSIG
// would be shorter, but it fires when the *thread* that started the child ends, and workers come and go.
// What the child started, as a converter that is a script does, goes with the group, in which the shell itself is.
// A shell's background job has no standard input, hence descriptor 3. The folder is removed when the child is gone: it makes files in
// it meanwhile, and who finds no folder takes it that nobody is at work in it (`forget_rehearsal`).
const GUARD: &str = r#"
folder=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- & child=$!
( read -r _ <&3; trap '' TERM; kill "$child"
  while kill -0 "$child"; do sleep 0.05; done
  rm -rf -- "$folder"; kill -KILL 0 ) >/dev/null 2>&1 & reader=$!
wait "$child"; status=$?
kill "$reader" 2>/dev/null
wait "$reader" 2>/dev/null
exit "$status"
"#;

fn kill_group(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It fails only if all of the group is gone.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

/// Reads to the end, keeping the first [`WORDS_BYTES_MAX`] bytes.
fn read_in_background(stream: Option<impl Read + Send + 'static>) -> io::Result<thread::JoinHandle<Vec<u8>>> {
    thread::Builder::new().spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.by_ref().take(WORDS_BYTES_MAX).read_to_end(&mut kept);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        kept
    })
}

/// The last lines of a program's words, fit for an error.
pub(crate) fn tail(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(&words[words.len().saturating_sub(TAIL_BYTES)..]).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("; ")
}

const POLL: Duration = Duration::from_millis(10);
/// qemu-nbd writes back what is in flight before it ends.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// `qemu-img info` of an image with many snapshots stays far below.
const WORDS_BYTES_MAX: u64 = 4 << 20;
const TAIL_BYTES: usize = 2048;
const TAIL_LINES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let told = folder.path().join("pid");
        let script = format!("echo $$ >'{}'; sleep 600 & sleep 600", told.display());
        let error = run(Command::new("sh").args(["-c", &script]), Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let group = std::fs::read_to_string(told).unwrap().trim().to_string();
        // The fifth field of a process's state is its group; one that was killed may still be a zombie.
        let is_left = |stat: String| {
            let fields: Vec<&str> =
                stat.rsplit_once(") ").map_or(vec![], |(_, rest)| rest.split(' ').collect());
            fields.len() > 2 && fields[0] != "Z" && fields[2] == group
        };
        let stats = || {
            std::fs::read_dir("/proc")
                .unwrap()
                .filter_map(|it| std::fs::read_to_string(it.ok()?.path().join("stat")).ok())
        };
        let until = Instant::now() + Duration::from_secs(60);
        while stats().any(is_left) {
            assert!(Instant::now() < until, "a child of the child lives on");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_failed_child_is_quoted() {
        let ended = run(
            Command::new("sh").args(["-c", "echo one >&2; echo two >&2; exit 3"]),
            Duration::from_secs(60),
        )
        .unwrap();
        let error = ended.check("doing it").unwrap_err();
        assert_eq!(error.chain(), "doing it: one; two");
    }

    #[test]
    fn a_program_that_is_not_there_names_its_package() {
        let error = run_of("qemu-utils", &mut Command::new("drover-no-such-program"), POLL).unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::Missing("qemu-utils"));
    }

    #[test]
    fn a_guarded_child_goes_with_all_that_it_started_when_its_value_goes() {
        let folder = private_folder().unwrap();
        let pid_file = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("sh");
        let script = "sleep 600 & echo $! $$ > \"$1\"; sleep 600";
        command.args(["-c", script, "x"]).arg(pid_file.path());
        let log = tempfile::tempfile().unwrap();
        let guarded = Guarded::spawn(&command, folder.path(), log).unwrap();
        let pids = || fs::read_to_string(pid_file.path()).unwrap_or_default();
        let until = Instant::now() + Duration::from_secs(60);
        while !pids().ends_with('\n') && Instant::now() < until {
            thread::sleep(POLL);
        }
        drop(guarded);
        let is_alive = |pid: &str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim().starts_with('Z'))
        };
        let until = Instant::now() + Duration::from_secs(60);
        while pids().split_whitespace().any(is_alive) {
            assert!(Instant::now() < until, "{} live on", pids().trim());
            thread::sleep(POLL);
        }
        assert!(!folder.path().exists());
    }

    #[test]
    fn the_folder_of_a_guarded_child_is_there_until_the_child_has_ended() {
        let (folder, seen) = (private_folder().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let begun = folder.path().join("begun");
        let mut command = Command::new("sh");
        let script =
            "trap 'test -e \"$1\" && echo yes >\"$2\"; exit' TERM; : >\"$1\"; while :; do sleep 0.05; done";
        command.args(["-c", script, "x"]).arg(&begun).arg(seen.path());
        let guarded = Guarded::spawn(&command, folder.path(), tempfile::tempfile().unwrap()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !begun.exists() && Instant::now() < until {
            thread::sleep(POLL);
        }
        drop(guarded);
        assert_eq!(fs::read_to_string(seen.path()).unwrap(), "yes\n");
        assert!(!folder.path().exists());
    }
}
