//! Two QEMUs on this host, and a guest that is to move from one to the other.

use crate::program;
use std::path::PathBuf;
use std::process::{Child, Command};

use drover_lab::{Drover, Output, Pulse, PulseOptions};
use serde_json::Value;
use tempfile::TempDir;

use crate::moves::{self, is_sending};

/// A guest that beats, and a QEMU that waits for it.
pub struct Pair {
    pub source: Pulse,
    pub target: Pulse,
    drover: Drover,
    folder: TempDir,
}

impl Pair {
    pub fn new(options: &PulseOptions) -> Option<Pair> {
        Pair::unlike(options, options)
    }

    pub fn unlike(here: &PulseOptions, there: &PulseOptions) -> Option<Pair> {
        Pulse::qemu_of(here.version)?;
        Pulse::qemu_of(there.version)?;
        let pair = Pair::started(here, there).unwrap();
        pair.source.beat(3).unwrap();
        Some(pair)
    }

    /// With guests that may not run on this machine; nothing where its QEMU cannot even start.
    pub fn silent(here: &PulseOptions, there: &PulseOptions) -> Option<Pair> {
        Pulse::qemu()?;
        Pair::started(here, there).ok()
    }

    fn started(here: &PulseOptions, there: &PulseOptions) -> anyhow::Result<Pair> {
        let folder = tempfile::Builder::new().prefix("drover-live-").tempdir()?;
        let source = Pulse::start(&folder.path().join("a"), here)?;
        let target = Pulse::waiting(&folder.path().join("b"), there)?;
        let drover = Drover::new(program(), folder.path().join("state"));
        Ok(Pair { source, target, drover, folder })
    }

    /// The target ends, and another QEMU waits for the guest, with its files in this folder.
    pub fn wait_anew(&mut self, folder: &str, there: &PulseOptions) {
        self.target.kill();
        self.target = Pulse::waiting(&self.path(folder), there).unwrap();
    }

    /// The guest has come to the target: from there it moves on, to another QEMU with its files in this folder.
    pub fn move_on(&mut self, folder: &str, there: &PulseOptions) {
        self.source.kill();
        let next = Pulse::waiting(&self.path(folder), there).unwrap();
        self.source = std::mem::replace(&mut self.target, next);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, more: &[&str]) -> Command {
        self.command_to(&format!("unix:{}", self.path("memory.sock").display()), more)
    }

    /// With another place for memory.
    pub fn command_to(&self, memory: &str, more: &[&str]) -> Command {
        let (from, to) = (self.source.monitor(), self.target.monitor());
        let mut command = self.drover.command(&["live"]);
        command
            .arg(from)
            .arg("--to")
            .arg(to)
            .args(["--uri", memory, "--deadline", "10m", "--json"])
            .args(more);
        command
    }

    pub fn live_at(&self, memory: &str, more: &[&str]) -> Output {
        moves::run(self.command_to(memory, more))
    }

    /// What the QEMU in this folder was told to set to this name, in order; it was started as [`PulseOptions::traced`].
    pub fn was_told(&self, folder: &str, name: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.path(folder).join("qemu.log")).unwrap();
        let told =
            log.lines().filter_map(|line| serde_json::from_str::<Value>(line.split_once("req: ")?.1).ok());
        let sets = told.filter(|told| told["execute"] == "migrate-set-parameters");
        sets.filter_map(|told| told["arguments"].get(name).cloned()).collect()
    }

    pub fn live(&self, more: &[&str]) -> Output {
        moves::run(self.command(more))
    }

    pub fn spawn(&self, more: &[&str]) -> Child {
        moves::spawn(self.command(more), &self.path("out"))
    }

    pub fn spawn_at(&self, memory: &str, more: &[&str]) -> Child {
        moves::spawn(self.command_to(memory, more), &self.path("out"))
    }

    /// Waits until drover says that memory is on its way.
    pub fn wait_until_sending(&self) {
        assert!(moves::is_told(&self.path("out"), is_sending), "nothing is sent");
    }

    pub fn ended(&self, child: Child) -> Output {
        moves::ended(child, &self.path("out"))
    }

    #[track_caller]
    pub fn has_moved(&mut self, output: &Output) -> Value {
        moves::has_moved(&mut self.source, &mut self.target, output);
        moves::moved(output)
    }

    #[track_caller]
    pub fn has_stayed(&mut self) {
        moves::has_stayed(&mut self.source, &self.target);
    }
}
