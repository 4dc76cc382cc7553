//! What the tests say of a mutant.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::tree::{ENVIRONMENT, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Caught,
    Timeout,
    Survived,
    #[serde(rename = "not compiled")]
    NotCompiled,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Caught => "caught",
            Outcome::Timeout => "timeout",
            Outcome::Survived => "survived",
            Outcome::NotCompiled => "not compiled",
        })
    }
}

/// Addresses that a mutant may take.
const MEMORY_KIB: u64 = 4 << 20;

/// One that sleeps uses no processor: it ends after this many times its seconds.
const SLEEPS: u32 = 30;

const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

/// Seconds of a processor, so that a busy machine makes no mutant late. The program and its arguments come behind the
/// seconds.
const LIMITED: &str = "ulimit -t \"$1\"; ulimit -v \"$2\"; ulimit -c 0; shift 2; exec \"$@\"";

/// How the tests of a tree are run.
pub struct Tests<'a> {
    pub tree: &'a Tree,
    pub skip: &'a [String],
}

impl Tests<'_> {
    /// What the tests say of a mutant, and which of them, or how they ended.
    pub fn run(&self, program: &Path, number: u32, seconds: u64) -> Result<(Outcome, String)> {
        let folder = self.tree.crate_folder();
        // A case that was found with another mutant is none of this one's.
        match std::fs::remove_dir_all(folder.join("proptest-regressions")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut command = Command::new("sh");
        command.args(["-c", LIMITED, "sh", &seconds.to_string(), &MEMORY_KIB.to_string()]).arg(program);
        command.args(["--test-threads", "2"]).args(self.skip.iter().flat_map(|name| ["--skip", name]));
        command.current_dir(&folder).envs(ENVIRONMENT).env("DROVER_MUTANT", number.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        told(command.spawn().with_context(|| program.display().to_string())?, seconds)
    }
}

/// Reads what the tests print until the first fails, they end, or they are late.
fn told(mut child: Child, seconds: u64) -> Result<(Outcome, String)> {
    let group = child.id();
    let out = child.stdout.take().context("output of the tests")?;
    let (ended, has_ended) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let late =
            has_ended.recv_timeout(Duration::from_secs(seconds) * SLEEPS) == Err(RecvTimeoutError::Timeout);
        if late {
            kill(group);
        }
        late
    });
    let mut caught = None;
    for line in BufReader::new(out).split(b'\n') {
        let line = line?;
        if let Some(name) = failed(&String::from_utf8_lossy(&line)) {
            caught = Some(name.to_string());
            kill(group);
            break;
        }
    }
    // Until here the process was not waited for, so that its number is no other's.
    drop(ended);
    let late = watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let status = child.wait()?;
    Ok(match caught {
        Some(name) => (Outcome::Caught, name),
        None if late || matches!(status.signal(), Some(SIGKILL | SIGXCPU)) => {
            (Outcome::Timeout, String::new())
        }
        None if status.success() => (Outcome::Survived, String::new()),
        None => (Outcome::Caught, format!("ended with {status}")),
    })
}

/// The name of the test that a line says has failed.
fn failed(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?;
    line.trim_end().ends_with("FAILED").then(|| name.split_whitespace().next())?
}

/// Ends a program and all that it started. That it has ended already is fine.
fn kill(group: u32) {
    let _ = Command::new("sh").args(["-c", "kill -s KILL -- \"-$1\"", "sh", &group.to_string()]).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(script: &str, seconds: u64) -> (Outcome, String) {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            LIMITED,
            "sh",
            &seconds.to_string(),
            &MEMORY_KIB.to_string(),
            "sh",
            "-c",
            script,
        ]);
        told(command.stdout(Stdio::piped()).process_group(0).spawn().unwrap(), seconds).unwrap()
    }

    #[test]
    fn programs_are_judged_by_what_they_print_and_how_they_end() {
        assert_eq!(of("echo test a::b ... ok", 5), (Outcome::Survived, String::new()));
        assert_eq!(of("echo test a::b ... FAILED; sleep 1000", 5), (Outcome::Caught, "a::b".into()));
        assert_eq!(of("while :; do :; done", 1).0, Outcome::Timeout);
        let (outcome, by) = of("exit 3", 5);
        assert!(outcome == Outcome::Caught && by.contains('3'), "{by}");
    }
}
