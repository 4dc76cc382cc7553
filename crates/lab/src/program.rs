use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    path.canonicalize().unwrap_or(path)
}

/// Where the lab's built things are: the simulator, the guests.
pub fn lab_folder() -> PathBuf {
    workspace().join("target/lab")
}

/// The drover program with a state folder of its own.
#[derive(Clone, Debug)]
pub struct Drover {
    program: PathBuf,
    state: PathBuf,
}

/// A drover at work.
pub struct Started {
    /// The process.
    pub child: Child,
}

/// What a finished drover left.
#[derive(Debug)]
pub struct Output {
    /// Exit code; absent if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Output {
    /// Standard output as JSON.
    ///
    /// # Errors
    /// If it is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("JSON in {} / {}", self.out, self.err))
    }
}

impl Drover {
    /// A program, keeping its state in `state`.
    pub fn new(program: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        Drover { program: program.into(), state: state.into() }
    }

    /// A command with the state folder and the simulator's password set.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("DROVER_STATE", &self.state).env("DROVER_PASSWORD", crate::sim::PASSWORD);
        command.env("DROVER_USER", crate::sim::USER);
        // Of simulated hosts, which other tests have under the same addresses.
        command.env("DROVER_NFC_LEDGER", self.state.with_extension("nfc"));
        // What is foreseen is not to depend on what else this host does.
        command.env("DROVER_PROC", Path::new(env!("CARGO_MANIFEST_DIR")).join("idle-host"));
        command
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// If it does not start.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        let output = self.command(args).stdin(Stdio::null()).output().context("drover")?;
        Ok(Output {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Starts it and goes on; its words are thrown away.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&self, args: &[&str]) -> Result<Started> {
        let child =
            self.command(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Started { child })
    }
}

impl Started {
    /// Kills it at once, as a power cut of the process would, and waits until it is gone.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(mut self) -> Result<()> {
        // It may have ended by itself already.
        let _ = self.child.kill();
        self.child.wait()?;
        Ok(())
    }
}

/// A command, run by words that are set before it.
pub fn run_by(before: &[String], command: &Command) -> Command {
    let mut whole = Command::new("env");
    whole.args(before).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    whole
}
