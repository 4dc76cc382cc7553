//! One modelled ESXi host: a simulated vSphere, a stand-in library, and plans that read through it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_lab::{Drover, Scene, Sim, StandIn};
use serde_json::{Value, json};

use crate::clone::copy::cases::program;

/// Nothing that has to come takes longer.
const PATIENCE: Duration = Duration::from_secs(170);

pub struct Host {
    pub sim: Sim,
    pub stand_in: StandIn,
    scene: Scene,
    folder: PathBuf,
}

/// What a finished migration tells, by its report.
pub struct Told(pub Value);

impl Host {
    /// A host with these VMs. Hosts of different numbers do not share addresses.
    pub fn new(folder: PathBuf, number: u8, vms: Vec<Value>) -> Result<Host> {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        let scene = Scene::new(number, vms);
        let sim = Sim::start(&scene.inventory, &folder.join("vsphere"))?;
        let stand_in = StandIn::new(&folder.join("libdir"), &sim)?;
        Ok(Host { sim, stand_in, scene, folder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Image of a VM's disk.
    pub fn image(&self, vm: &str, disk: usize) -> PathBuf {
        self.folder.join("vms").join(vm).join(format!("{vm}-{disk}.raw"))
    }

    /// A plan with these lines instead of `mode: cold`, and these keys of `vddk`; state and target begin empty.
    pub fn plan(&self, lines: &str, vddk: &str) -> Result<Plan> {
        let (libdir, plugin) = (self.stand_in.libdir().display(), StandIn::plugin());
        let vddk = format!("libdir: {libdir}, plugin: {}{vddk}", plugin.display());
        self.plan_by(lines, &format!("path: vddk\n    vddk: {{{vddk}}}"))
    }

    /// The same by NFC, with these keys of `nfc`.
    pub fn plan_by_nfc(&self, lines: &str, nfc: &str) -> Result<Plan> {
        self.plan_by(lines, &format!("path: nfc\n    nfc: {{{nfc}}}"))
    }

    fn plan_by(&self, lines: &str, path: &str) -> Result<Plan> {
        for name in ["vms", "state"] {
            let folder = self.folder.join(name);
            if folder.exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            std::fs::create_dir_all(&folder)?;
        }
        let data = format!("from: provider\n    {path}");
        let text = self.scene.plan("bench", &self.sim, &self.folder.join("vms"));
        let text = text.replace("from: hosts", &data).replace("mode: cold\n", &format!("{lines}\n"));
        let path = self.folder.join("plan.yaml");
        std::fs::write(&path, text + "start: false\nverify: none\n")?;
        let drover = Drover::new(program()?, self.folder.join("state"));
        Ok(Plan { drover, path: path.display().to_string() })
    }

    /// Nothing of what was measured before is in the page cache's way: all is written.
    pub fn settle(&self) -> Result<()> {
        ensure!(std::process::Command::new("sync").status()?.success(), "sync failed");
        Ok(())
    }

    /// Switches a VM on, unless it is.
    pub fn switch_on(&self, vm: &str) -> Result<()> {
        if self.sim.vm(vm)?["power"] != "poweredOn" {
            self.sim.post("/vm/power", json!({"vm": vm, "state": "on"}))?;
        }
        Ok(())
    }
}

/// A plan and the drover that runs it.
pub struct Plan {
    drover: Drover,
    path: String,
}

impl Plan {
    /// Runs a command on the plan to its end.
    pub fn run(&self, command: &str) -> Result<()> {
        let output = self.drover.run(&[command, &self.path])?;
        ensure!(output.code == Some(0), "drover {command}: {}{}", output.out, output.err);
        Ok(())
    }

    /// Runs until so many passes are complete, and stops cleanly.
    pub fn run_passes(&self, passes: usize) -> Result<()> {
        let mut started = self.drover.start(&["migrate", &self.path])?;
        let until = Instant::now() + PATIENCE;
        while self.passes().unwrap_or(0) < passes {
            ensure!(Instant::now() < until, "pass {passes} did not come");
            if started.child.try_wait()?.is_some() {
                bail!("drover ended: {:#}", self.told()?.0);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let id = started.child.id().to_string();
        ensure!(std::process::Command::new("kill").args(["-INT", &id]).status()?.success(), "kill");
        started.child.wait()?;
        Ok(())
    }

    fn passes(&self) -> Result<usize> {
        let told = self.told()?;
        let passes = told.passes()?;
        Ok(passes.iter().filter(|pass| pass["state"] == "complete").count())
    }

    pub fn told(&self) -> Result<Told> {
        Ok(Told(self.drover.run(&["report", &self.path, "--json"])?.json()?))
    }
}

impl Told {
    pub fn passes(&self) -> Result<&Vec<Value>> {
        self.0["vms"][0]["warm"]["passes"].as_array().context("passes")
    }

    /// Seconds that copying took in a pass, counted from 0.
    pub fn copying_s(&self, pass: usize) -> Result<f64> {
        let pass = &self.passes()?[pass];
        seconds(&pass["copying_ms"], &pass["ended_ms"])
    }

    /// Seconds from the first disk's beginning to the last one's end.
    pub fn copy_phase_s(&self) -> Result<f64> {
        let phases = self.0["vms"][0]["phases"].as_array().context("phases")?;
        let copy = phases.iter().find(|phase| phase["phase"] == "copy").context("the copy")?;
        seconds(&copy["started_ms"], &copy["ended_ms"])
    }
}

fn seconds(from: &Value, to: &Value) -> Result<f64> {
    Ok((to.as_i64().context("an end")? - from.as_i64().context("a beginning")?) as f64 / 1000.0)
}
