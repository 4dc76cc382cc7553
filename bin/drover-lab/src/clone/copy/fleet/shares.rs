//! Whether the cut into plans matters, and what VMs of one host get of what it gives.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Setting;
use super::many::{SLOTS, arrived, head, parted, report, serve};
use super::vcenter::{Fleet, Shape};
use super::watch::run_all;
use crate::clone::shared::spread;

const FAIR_VMS: usize = 800;
const FAIR_HOSTS: usize = 8;
const FAIR_PLANS: usize = 8;
/// What each host gives: less than the rest of the machine can take.
const FAIR_BYTES_PER_S: u64 = 4 << 20;
const FAIR_DISK_BYTES: u64 = 2 << 20;

/// One plan of 800 VMs and eight of 100 on the same hosts, in turns, each in a daemon of its own.
pub fn fair(setting: &Setting<'_>) -> Result<()> {
    let shape = Shape {
        disks: Some(1),
        data_bytes: FAIR_DISK_BYTES,
        capacity_bytes: FAIR_DISK_BYTES,
        ..Shape::of(FAIR_VMS, FAIR_HOSTS)
    };
    let fleet = Fleet::new(setting.folder, shape)?;
    fleet.sim.post("/nfc/set", json!({ "host_bytes_per_s": FAIR_BYTES_PER_S }))?;
    head("one plan and eight", &fleet);
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..setting.rounds {
        for (plans, times) in [1, FAIR_PLANS].into_iter().zip(&mut times) {
            remove(&fleet, "state")?;
            remove(&fleet, "vms")?;
            let (usage, _) = serve(&fleet, "state", &parted(&fleet, plans)?, SLOTS)?;
            eprintln!("round {round}: {plans} plans: {:.1} s, {:.1} s of CPU", usage.wall, usage.cpu);
            times.push(usage.wall);
            arrived(&fleet, 0..FAIR_VMS)?;
        }
    }
    println!("| plans | s (min-max) | against one plan, round by round |\n|---|---|---|");
    for (plans, of_it) in [1, FAIR_PLANS].into_iter().zip(&times) {
        let (low, median, high) = spread(of_it.iter().copied());
        let (least, ratio, most) = spread(of_it.iter().zip(&times[0]).map(|(it, one)| it / one));
        println!("| {plans} | {median:.1} ({low:.1}-{high:.1}) | {ratio:.3} ({least:.3}-{most:.3}) |");
    }
    Ok(())
}

/// What the one host gives.
const CAP_BYTES_PER_S: u64 = 64 << 20;
/// What all disks have together, so that each run takes as long.
const CAPPED_BYTES: u64 = 1 << 30;

/// VMs of one disk each on a host with a cap: what of it they get.
pub fn capped(setting: &Setting<'_>) -> Result<()> {
    println!(
        "\n## a host of {} MiB/s\n\n| disks | MiB/s | of the cap (min-max) |\n|---|---|---|",
        CAP_BYTES_PER_S >> 20
    );
    for vms in [1, 2, 3, 10, 20] {
        let bytes = (CAPPED_BYTES / vms as u64) & !0xffff;
        let shape = Shape { disks: Some(1), data_bytes: bytes, capacity_bytes: bytes, ..Shape::of(vms, 1) };
        let fleet = Fleet::new(setting.folder, shape)?;
        fleet.sim.post("/nfc/set", json!({ "host_bytes_per_s": CAP_BYTES_PER_S }))?;
        let mut rates = Vec::new();
        for round in 0..setting.rounds {
            remove(&fleet, "state")?;
            remove(&fleet, "vms")?;
            let drover = fleet.drover("state")?;
            let plan = fleet.plan("capped", 0..vms, "verify: none\n")?;
            run_all(vec![drover.command(&["migrate", &plan, "--quiet"])])?;
            let rate = (bytes * vms as u64) as f64 / copying_s(&report(&drover, "capped")?)?;
            eprintln!("round {round}: {vms} disks: {:.1} MiB/s", rate / f64::from(1 << 20));
            rates.push(rate);
        }
        let (low, median, high) = spread(rates.into_iter());
        let part = |rate: f64| 100.0 * rate / CAP_BYTES_PER_S as f64;
        println!(
            "| {vms} | {:.1} | {:.0} % ({:.0}-{:.0}) |",
            median / f64::from(1 << 20),
            part(median),
            part(low),
            part(high)
        );
    }
    Ok(())
}

/// From the first disk's beginning to the last one's end.
fn copying_s(report: &Value) -> Result<f64> {
    let vms = report["vms"].as_array().context("VMs")?;
    let phases = vms.iter().filter_map(|vm| vm["phases"].as_array()).flatten();
    let copies: Vec<&Value> = phases.filter(|phase| phase["phase"] == "copy").collect();
    let began = copies.iter().filter_map(|phase| phase["started_ms"].as_i64()).min();
    let ended = copies.iter().filter_map(|phase| phase["ended_ms"].as_i64()).max();
    let (began, ended) = began.zip(ended).context("copies")?;
    ensure!(ended > began, "copies took no time");
    Ok((ended - began) as f64 / 1000.0)
}

fn remove(fleet: &Fleet, name: &str) -> Result<()> {
    let folder = fleet.folder.join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}
