//! A program of the user's, run to its end: bounded in time and words, and gone when this process is gone.
//!
//! A shell stands between, as long as the program runs: its standard input is a pipe that nobody writes to. The kernel
//! closes our end of it even after SIGKILL, and then the shell ends the program, and all that it started. What
//! the program reads lies in a file in a private folder, because its shell reads the pipe.

use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::Kind;

/// A program to be run.
#[derive(Clone, Debug)]
pub struct Attended<'a> {
    /// The program, by its path.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [String],
    /// Variables that it gets besides those of [`Kind::Plain`].
    pub variables: &'a [(&'a str, String)],
    /// Where it is run.
    pub folder: &'a Path,
    /// What it finds on its standard input.
    pub input: &'a [u8],
    /// How long it may take.
    pub time_max: Duration,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited(ExitStatus),
    /// Its time was up, and it was ended.
    TimedOut,
    /// It was ended as it was to be.
    Stopped,
}

/// What came of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The last of what it wrote on its standard output.
    pub stdout: Vec<u8>,
    /// The same of its standard error.
    pub stderr: Vec<u8>,
}

/// Bytes that are kept of each output: the last ones, where the cause stands.
pub const WORDS_BYTES_MAX: usize = 16 << 10;

/// Runs a program to its end, until its time is up, or until `is_stopped`. What it leaves in its process group is ended
/// with it.
///
/// # Errors
/// If it cannot be started.
pub fn run(attended: &Attended<'_>, is_stopped: &dyn Fn() -> bool) -> io::Result<Outcome> {
    let folder = private_folder()?;
    let input = folder.path().join("input");
    fs::write(&input, attended.input)?;
    let mut guard = Guard::spawn(attended, folder, &input)?;
    let (stdout, stderr) = (Words::of(guard.shell.stdout.take())?, Words::of(guard.shell.stderr.take())?);
    let end = guard.wait(attended.time_max, is_stopped)?;
    drop(guard);
    Ok(Outcome { end, stdout: stdout.taken(), stderr: stderr.taken() })
}

/// The program of a command line, as a shell would find it: a path is relative to `folder`, a name is looked for in `PATH`.
///
/// # Errors
/// If there is none, or it cannot be executed.
pub fn find(name: &str, folder: &Path) -> io::Result<PathBuf> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such program");
    if name.contains('/') {
        let path = folder.join(name);
        return executable(&path).map(|()| path);
    }
    let paths = std::env::var_os("PATH").ok_or_else(missing)?;
    let found = std::env::split_paths(&paths).filter(|it| it.is_absolute()).map(|it| it.join(name));
    found.into_iter().find(|path| executable(path).is_ok()).ok_or_else(missing)
}

fn executable(path: &Path) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a folder"));
    }
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK)
        .map_err(|error| io::Error::new(io::Error::from(error).kind(), "it cannot be executed"))
}

fn private_folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("drover-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// The shell around a program.
struct Guard {
    shell: Child,
    lifeline: Option<ChildStdin>,
    _folder: TempDir,
}

impl Guard {
    fn spawn(attended: &Attended<'_>, folder: TempDir, input: &Path) -> io::Result<Guard> {
        let mut shell = crate::command("/bin/sh", Kind::Plain);
        shell.args(["-c", GUARD, "drover-guard"]).arg(folder.path()).arg(input);
        shell.arg(attended.program).args(attended.arguments);
        shell.envs(attended.variables.iter().map(|(name, value)| (name, value)));
        shell.current_dir(attended.folder);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C on the terminal is for drover, which ends the program in order.
        let mut shell = shell.process_group(0).spawn()?;
        let lifeline = shell.stdin.take();
        Ok(Guard { shell, lifeline, _folder: folder })
    }

    fn wait(&mut self, time_max: Duration, is_stopped: &dyn Fn() -> bool) -> io::Result<End> {
        let until = Instant::now() + time_max;
        loop {
            if let Some(status) = self.shell.try_wait()? {
                return Ok(End::Exited(status));
            }
            let end = match () {
                () if is_stopped() => End::Stopped,
                () if Instant::now() >= until => End::TimedOut,
                () => {
                    thread::sleep(POLL);
                    continue;
                }
            };
            self.end()?;
            return Ok(end);
        }
    }

    /// Asks the program to end, and waits for that.
    fn end(&mut self) -> io::Result<()> {
        self.lifeline.take();
        let until = Instant::now() + END_TIME_MAX;
        while self.shell.try_wait()?.is_none() && Instant::now() < until {
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw) {
            // It fails only if all of the group is gone.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.shell.wait();
    }
}

// The program is first asked to end (SIGTERM to the group, which the shell and the reader outlive), and killed when
// it has not after five seconds. `trap :` and not `trap ''`: what is ignored would be ignored by the program as well.
const GUARD: &str = r#"
folder=$1; input=$2; shift 2
exec 3<&0
"$@" <"$input" 3<&- & child=$!
trap : TERM
( trap : TERM; read -r _ <&3; rm -rf -- "$folder"; kill -TERM 0; sleep 5; kill -KILL 0 ) >/dev/null 2>&1 & reader=$!
exec 3<&-
while :; do
  wait "$child"; status=$?
  kill -0 "$child" 2>/dev/null || break
done
kill -KILL "$reader" 2>/dev/null
exit "$status"
"#;

/// The last of what comes from a stream.
struct Words {
    kept: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

impl Words {
    fn of(stream: Option<impl Read + Send + 'static>) -> io::Result<Words> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = kept.clone();
        let reader = thread::Builder::new().spawn(move || {
            let mut piece = [0; 4096];
            let Some(mut stream) = stream else { return };
            while let Ok(got @ 1..) = stream.read(&mut piece) {
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..got]);
                let over = kept.len().saturating_sub(WORDS_BYTES_MAX);
                kept.drain(..over);
            }
        })?;
        Ok(Words { kept, reader })
    }

    /// What there is. A program of another group that still holds the stream is not waited for.
    fn taken(self) -> Vec<u8> {
        let until = Instant::now() + LAST_WORDS_TIME_MAX;
        while !self.reader.is_finished() && Instant::now() < until {
            thread::sleep(POLL);
        }
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

const POLL: Duration = Duration::from_millis(10);
/// A little more than the five seconds of the guard.
const END_TIME_MAX: Duration = Duration::from_secs(7);
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell<'a>(words: &'a [String], folder: &'a Path) -> Attended<'a> {
        Attended {
            program: Path::new("/bin/sh"),
            arguments: words,
            variables: &[],
            folder,
            input: b"{\"a\": 1}",
            time_max: Duration::from_secs(60),
        }
    }

    fn words(script: &str) -> Vec<String> {
        vec!["-c".into(), script.into()]
    }

    fn wait_for(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(120);
        while !what() {
            assert!(Instant::now() < until, "it does not happen");
            thread::sleep(POLL);
        }
    }

    fn is_alive(pid: &str) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim().starts_with('Z'))
    }

    #[test]
    fn a_program_gets_its_input_and_its_folder_and_its_words_and_status_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let script = words("cat; pwd; echo \"$SET\" >&2; env >env; exit 3");
        let told = [("SET", "yes".to_string())];
        let outcome =
            run(&Attended { variables: &told, ..shell(&script, folder.path()) }, &|| false).unwrap();
        let here = folder.path().canonicalize().unwrap();
        assert_eq!(String::from_utf8(outcome.stdout).unwrap(), format!("{{\"a\": 1}}{}\n", here.display()));
        assert_eq!(outcome.stderr, b"yes\n");
        assert!(matches!(outcome.end, End::Exited(status) if status.code() == Some(3)));
        let env = fs::read_to_string(folder.path().join("env")).unwrap();
        assert!(!env.contains("CARGO"), "{env}");
    }

    #[test]
    fn only_the_last_words_are_kept_and_what_is_left_behind_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let script = words("sleep 600 & echo $! >pid; seq 1 20000; echo the end");
        let outcome = run(&shell(&script, folder.path()), &|| false).unwrap();
        assert_eq!(outcome.stdout.len(), WORDS_BYTES_MAX);
        assert!(outcome.stdout.ends_with(b"20000\nthe end\n"));
        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        wait_for(|| !is_alive(&pid));
    }

    #[test]
    fn a_program_is_ended_when_its_time_is_up_or_it_is_stopped_and_may_tidy_up() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            words("trap 'echo tidy >tidied; exit 0' TERM; echo $$ >pid; while :; do sleep 0.1; done");
        let short = Attended { time_max: Duration::from_secs(1), ..shell(&script, folder.path()) };
        assert_eq!(run(&short, &|| false).unwrap().end, End::TimedOut);
        assert_eq!(fs::read_to_string(folder.path().join("tidied")).unwrap(), "tidy\n");
        fs::remove_file(folder.path().join("pid")).unwrap();
        let begun = || folder.path().join("pid").exists();
        assert_eq!(run(&shell(&script, folder.path()), &begun).unwrap().end, End::Stopped);
        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        wait_for(|| !is_alive(&pid));
    }

    #[test]
    fn one_that_does_not_heed_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let script = words("trap '' TERM; echo $$ >pid; sleep 600");
        let begun = Instant::now();
        let stops = || folder.path().join("pid").exists();
        assert_eq!(run(&shell(&script, folder.path()), &stops).unwrap().end, End::Stopped);
        assert!(begun.elapsed() < Duration::from_secs(300));
        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        wait_for(|| !is_alive(&pid));
    }

    #[test]
    fn programs_are_found_by_path_and_by_name_and_must_be_executable() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        assert_eq!(find("sh", here).unwrap().file_name().unwrap(), "sh");
        assert_eq!(find("no-such-program", here).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(here.join("hook"), "#!/bin/sh\n").unwrap();
        let refused = find("./hook", here);
        // Nobody keeps root from executing a file but the lack of any executable bit.
        assert!(refused.is_err());
        fs::set_permissions(here.join("hook"), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("./hook", here).unwrap(), here.join("./hook"));
        assert!(find("./", here).is_err());
    }
}
