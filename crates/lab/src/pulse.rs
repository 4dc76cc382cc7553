//! Guests that beat (`crates/pulse`) under the QEMUs that `scripts/get-qemu` finds for tests.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use drover_pulse::PulseSpec;

use crate::program::lab_folder;

/// What a guest that beats does.
#[derive(Clone, Debug)]
pub struct PulseOptions {
    /// Memory of the machine.
    pub memory_mib: u64,
    /// Pages of 4 KiB that it fills.
    pub pages: u32,
    /// Pages that it writes to at each beat, of which there are 100 in a second.
    pub pages_per_beat: u32,
    /// Its IDE disk, which it writes to; raw.
    pub disk: Option<PathBuf>,
    /// A program that is run in place of its QEMU, and runs that.
    pub runner: Option<PathBuf>,
    /// Its QEMU: `7.2`, `11.1`; empty: the one that tests judge by.
    pub version: &'static str,
    /// `pc-q35-10.0`; what every version has the same of.
    pub machine: &'static str,
    /// `tcg`, or `kvm` with what it takes.
    pub accel: &'static str,
    /// Arguments for QEMU besides.
    pub more: Vec<String>,
}

impl Default for PulseOptions {
    fn default() -> Self {
        let PulseSpec { memory_mib, pages, pages_per_beat, disk, more, .. } = PulseSpec::default();
        let (runner, version, machine, accel) = (None, "", "pc", "tcg");
        PulseOptions { memory_mib, pages, pages_per_beat, disk, runner, version, machine, accel, more }
    }
}

/// A QEMU of the lab with a guest that beats, or that waits for one. It ends when this is dropped.
#[derive(Debug)]
pub struct Pulse(drover_pulse::Pulse);

impl Pulse {
    /// The QEMU that `scripts/get-qemu` found; nothing, after a printed line, where there is none.
    pub fn qemu() -> Option<PathBuf> {
        Pulse::qemu_of("")
    }

    /// The same for a version that it was told to find ([`PulseOptions::version`]).
    pub fn qemu_of(version: &str) -> Option<PathBuf> {
        let program = program(version);
        if !program.is_file() {
            println!("skipped: no QEMU {version} for live migration (`make lab`)");
            return None;
        }
        Some(program)
    }

    /// Starts a guest; its files lie in `folder`, which is made.
    ///
    /// # Errors
    /// If it cannot be built or started.
    pub fn start(folder: &Path, options: &PulseOptions) -> Result<Pulse> {
        drover_pulse::Pulse::start(folder, &options.spec()).map(Pulse).context("a guest that beats")
    }

    /// Starts a QEMU that waits for a guest.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn waiting(folder: &Path, options: &PulseOptions) -> Result<Pulse> {
        drover_pulse::Pulse::waiting(folder, &options.spec()).map(Pulse).context("a QEMU that waits")
    }
}

impl Deref for Pulse {
    type Target = drover_pulse::Pulse;

    fn deref(&self) -> &drover_pulse::Pulse {
        &self.0
    }
}

impl DerefMut for Pulse {
    fn deref_mut(&mut self) -> &mut drover_pulse::Pulse {
        &mut self.0
    }
}

impl PulseOptions {
    /// The same, whose QEMU writes into its log what its monitor is told.
    #[must_use]
    pub fn traced(mut self) -> PulseOptions {
        self.more.extend(["-trace", "handle_qmp_command"].map(String::from));
        self
    }

    /// The guest as a file that QEMU loads, with its settings in it.
    ///
    /// # Errors
    /// If its pages do not fit its memory.
    pub fn image(&self) -> Result<Vec<u8>> {
        Ok(self.spec().image()?)
    }

    fn spec(&self) -> PulseSpec {
        PulseSpec {
            qemu: self.runner.clone().unwrap_or_else(|| program(self.version)),
            machine: self.machine.to_string(),
            accel: self.accel.to_string(),
            memory_mib: self.memory_mib,
            pages: self.pages,
            pages_per_beat: self.pages_per_beat,
            disk: self.disk.clone(),
            more: self.more.clone(),
            ..PulseSpec::default()
        }
    }
}

fn program(version: &str) -> PathBuf {
    let name = if version.is_empty() { "qemu".to_string() } else { format!("qemu-{version}") };
    lab_folder().join(name).join("qemu-system-x86_64")
}
