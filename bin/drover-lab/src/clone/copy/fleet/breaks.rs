//! Runs that break: killed with hundreds of transfers under way, and a target that is full.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drover_lab::Started;
use serde_json::json;

use super::Setting;
use super::many::{SLOTS, arrived, head, report};
use super::vcenter::{Fleet, Shape};
use super::watch::{LOOK_EVERY, run_all};

const KILLED_DISKS: u64 = 500;
const KILLED_HOSTS: usize = 40;
/// What each connection to a host gives: so slow that all are under way at once, and one more still adds to the sum of its host.
const KILLED_BYTES_PER_S: u64 = 64 << 10;
const KILLS: usize = 3;
/// Within this time as many disks are at work.
const PATIENCE: Duration = Duration::from_secs(120);

/// SIGKILL with 500 transfers under way, some times over, then on to the end.
pub fn killed(setting: &Setting<'_>) -> Result<()> {
    let shape = Shape { data_bytes: 8 << 20, capacity_bytes: 8 << 20, ..Shape::of(600, KILLED_HOSTS) };
    let fleet = Fleet::new(setting.folder, shape)?;
    head("killed", &fleet);
    let drover = fleet.drover("state")?;
    let plan = fleet.plan("killed", 0..shape.vms, &format!("limits: {{disks: {KILLED_DISKS}}}\n"))?;
    fleet.sim.post("/nfc/set", json!({ "connection_bytes_per_s": KILLED_BYTES_PER_S }))?;
    for round in 0..KILLS {
        let command = if round == 0 { ["migrate", &plan] } else { ["resume", "killed"] };
        until_closed(&fleet)?;
        let mut run = Killed(Some(drover.start(&command)?));
        let full = run.until_full(&fleet, KILLED_DISKS)?;
        drop(run);
        println!("kill {}: after {:.1} s, with {} disks under way", round + 1, full.full_s, full.disks);
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

/// How long it takes until transfers are under way, with as many disks at once as a plan has if it says nothing, and so slow that none
/// ends meanwhile.
pub fn slots(setting: &Setting<'_>) -> Result<()> {
    let fleet = Fleet::new(setting.folder, setting.shape)?;
    head("slots", &fleet);
    fleet.sim.post("/nfc/set", json!({ "connection_bytes_per_s": SLOW_BYTES_PER_S }))?;
    let plan = fleet.plan("slots", 0..fleet.shape.vms, "")?;
    for round in 0..setting.rounds {
        let drover = fleet.drover(&format!("state{round}"))?;
        until_closed(&fleet)?;
        let mut run = Killed(Some(drover.start(&["migrate", &plan])?));
        let Full { first_s, full_s, disks } = run.until_full(&fleet, SLOTS)?;
        drop(run);
        // The next round finds its images, and nothing else, in the way.
        std::fs::remove_dir_all(fleet.folder.join("vms"))?;
        println!("first disk open after {first_s:.1} s, {disks} of {SLOTS} after {full_s:.1} s");
    }
    Ok(())
}

/// What each connection gives where no disk of 256 KiB is to end within a minute.
const SLOW_BYTES_PER_S: u64 = 4 << 10;

/// When disks were under way, in seconds from the begin of the program.
struct Full {
    first_s: f64,
    full_s: f64,
    /// Disks then.
    disks: u64,
}

/// Disks that the hosts have open.
fn open_disks(fleet: &Fleet) -> Result<u64> {
    let stats = fleet.sim.get("/nfc/stats")?;
    let hosts = stats["hosts"].as_object().context("hosts")?;
    Ok(hosts.values().filter_map(|host| host["services"]["vpxa-nfc"]["sessions"].as_u64()).sum())
}

/// Waits until the hosts have closed the disks of one that was killed.
fn until_closed(fleet: &Fleet) -> Result<()> {
    let begun = Instant::now();
    while open_disks(fleet)? > 0 {
        ensure!(begun.elapsed() < PATIENCE, "disks of a drover that was killed stay open");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// A drover that is killed when this is dropped, also where the case fails: it has hundreds of disks open.
struct Killed(Option<Started>);

impl Killed {
    fn runs(&mut self) -> Result<bool> {
        let ended = self.0.as_mut().map(|run| run.child.try_wait()).transpose()?;
        Ok(ended.is_some_and(|ended| ended.is_none()))
    }

    /// Waits until the hosts have nearly so many disks open.
    fn until_full(&mut self, fleet: &Fleet, wanted: u64) -> Result<Full> {
        let begun = Instant::now();
        let (mut first_s, mut most) = (None, 0);
        loop {
            let disks = open_disks(fleet)?;
            let passed_s = begun.elapsed().as_secs_f64();
            if disks > 0 {
                first_s.get_or_insert(passed_s);
            }
            if let Some(first_s) = first_s.filter(|_| disks * 20 >= wanted * 19) {
                return Ok(Full { first_s, full_s: passed_s, disks });
            }
            most = most.max(disks);
            ensure!(begun.elapsed() < PATIENCE, "{most} disks were under way at most");
            ensure!(self.runs()?, "drover ended by itself");
            std::thread::sleep(LOOK_EVERY);
        }
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
