//! Runs that break: killed with hundreds of transfers under way, and a target that is full.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drover_lab::Started;
use serde_json::json;

use super::Setting;
use super::many::{arrived, head, report};
use super::vcenter::{Fleet, Shape};
use super::watch::run_all;

const KILLED_DISKS: u64 = 500;
const KILLED_HOSTS: usize = 40;
/// What each connection to a host gives: so slow that all are under way at once, and one more still adds to the sum of its host.
const KILLED_BYTES_PER_S: u64 = 16 << 10;
const KILLS: usize = 3;
/// Within this time as many disks are at work.
const PATIENCE: Duration = Duration::from_secs(300);

/// SIGKILL with 500 transfers under way, some times over, then on to the end.
pub fn killed(setting: &Setting<'_>) -> Result<()> {
    let shape = Shape { data_bytes: 2 << 20, capacity_bytes: 2 << 20, ..Shape::of(600, KILLED_HOSTS) };
    let fleet = Fleet::new(setting.folder, shape)?;
    head("killed", &fleet);
    let drover = fleet.drover("state")?;
    let plan = fleet.plan("killed", 0..shape.vms, &format!("limits: {{disks: {KILLED_DISKS}}}\n"))?;
    fleet.sim.post("/nfc/set", json!({ "connection_bytes_per_s": KILLED_BYTES_PER_S }))?;
    for round in 0..KILLS {
        let command = if round == 0 { ["migrate", &plan] } else { ["resume", "killed"] };
        let mut run = Killed(Some(drover.start(&command)?));
        let begun = Instant::now();
        let mut most = 0;
        let at_work = loop {
            ensure!(begun.elapsed() < PATIENCE, "{most} disks were under way at most");
            ensure!(run.runs()?, "drover ended by itself");
            std::thread::sleep(Duration::from_millis(500));
            let status = drover.run(&["status", "killed", "--json"])?;
            // Before its first word there is no plan.
            let Ok(status) = status.json() else { continue };
            let disks = status["progress"]["disks"].as_array().map_or(0, Vec::len) as u64;
            most = most.max(disks);
            if disks * 20 >= KILLED_DISKS * 19 {
                break disks;
            }
        };
        drop(run);
        println!(
            "kill {}: after {:.1} s, with {at_work} disks under way",
            round + 1,
            begun.elapsed().as_secs_f64()
        );
    }
    fleet.sim.post("/nfc/set", json!({ "connection_bytes_per_s": 0 }))?;
    let (_, usage) = run_all(vec![drover.command(&["resume", "killed", "--quiet"])])?;
    let told = report(&drover, "killed")?;
    let summary = &told["summary"];
    println!(
        "resumed to its end: {:.1} s, {:.1} s of CPU, {:.0} MiB; {} of {} bytes had been copied before",
        usage.wall, usage.cpu, usage.peak_mib, summary["resumed_bytes"], summary["data_bytes"]
    );
    arrived(&fleet, 0..shape.vms)
}

/// A drover that is killed when this is dropped, also where the case fails: it has hundreds of disks open.
struct Killed(Option<Started>);

impl Killed {
    fn runs(&mut self) -> Result<bool> {
        let ended = self.0.as_mut().map(|run| run.child.try_wait()).transpose()?;
        Ok(ended.is_some_and(|ended| ended.is_none()))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.take().map(Started::kill);
    }
}

const FULL_VMS: usize = 400;
/// Of a target that would need some 200.
const FULL_MIB: u64 = 80;

/// The target's file system is full in the middle, then it is made larger.
pub fn full(setting: &Setting<'_>) -> Result<()> {
    let fleet = Fleet::new(setting.folder, Shape::of(FULL_VMS, KILLED_HOSTS))?;
    head("full", &fleet);
    let target = fleet.folder.join("vms");
    std::fs::create_dir_all(&target)?;
    let Some(_mounted) = Mounted::new(&target, FULL_MIB)? else {
        println!("skipped: NOTHING WAS MEASURED: no file system can be mounted; run it as root");
        return Ok(());
    };
    let drover = fleet.drover("state")?;
    let plan = fleet.plan("full", 0..FULL_VMS, "")?;
    let begun = Instant::now();
    let run = drover.run(&["migrate", &plan, "--quiet"])?;
    let told = report(&drover, "full")?;
    let vms = told["vms"].as_array().context("VMs")?;
    let done = vms.iter().filter(|vm| vm["state"] == "done").count();
    println!(
        "full: exit code {:?} after {:.1} s, {done} VMs done, {} failed; one says: {}",
        run.code,
        begun.elapsed().as_secs_f64(),
        vms.iter().filter(|vm| vm["state"] == "failed").count(),
        vms.iter().find_map(|vm| vm["error"].as_str()).unwrap_or("nothing"),
    );
    ensure!(run.code == Some(8), "{}", run.err);
    fleet.check_snapshots()?;
    mount(&["-o", "remount,size=2g"], &target)?;
    let (_, usage) = run_all(vec![drover.command(&["resume", "full", "--quiet"])])?;
    println!("resumed to its end: {:.1} s", usage.wall);
    arrived(&fleet, 0..FULL_VMS)
}

/// A file system in memory; unmounted when dropped.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    /// One of so many MiB; `None` where this user may not.
    fn new(folder: &Path, mib: u64) -> Result<Option<Mounted<'_>>> {
        let size = format!("size={mib}m");
        let is_mounted = mount(&["-t", "tmpfs", "-o", &size, "bench"], folder).is_ok();
        Ok(is_mounted.then_some(Mounted(folder)))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // What stays is told by the next run, which cannot remove its folder.
        let _ = Command::new("umount").arg(self.0).stderr(Stdio::null()).status();
    }
}

fn mount(args: &[&str], folder: &Path) -> Result<()> {
    let done = Command::new("mount").args(args).arg(folder).stderr(Stdio::null()).status()?;
    ensure!(done.success(), "mount {args:?} ended with {done}");
    Ok(())
}
