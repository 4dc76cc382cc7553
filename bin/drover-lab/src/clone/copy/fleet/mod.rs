//! `make bench-fleet`: thousands of VMs with small disks, as one plan and as many, with the commands that look at them;
//! plans of different sizes on the same hosts; a host with a cap; a run that is killed, and one whose target is full.
//!
//! `DROVER_FLEET_VMS` (5000), `DROVER_FLEET_HOSTS` (40), `DROVER_FLEET_PLANS` (40), `DROVER_BENCH_ROUNDS` (3),
//! `DROVER_BENCH_CASES` (of whole, served, processes, fair, capped, slots, killed, full; all).

mod breaks;
mod daemon;
mod many;
mod shares;
mod vcenter;
mod watch;

use std::path::Path;

use anyhow::Result;
use drover_lab::Sim;

use self::vcenter::Shape;
use crate::clone::shared::variable;

/// What is measured.
pub struct Setting<'a> {
    folder: &'a Path,
    shape: Shape,
    /// Plans that the VMs are parted into.
    plans: usize,
    rounds: usize,
}

/// Runs the cases whose names hold one of these words; all if there is none.
pub fn run(folder: &Path, rounds: usize, wanted: &str) -> Result<()> {
    if Sim::program().is_none() {
        println!("skipped: NOTHING WAS MEASURED: the simulator is not there");
        return Ok(());
    }
    let folder = folder.join("fleet");
    let shape = Shape::of(variable("DROVER_FLEET_VMS", 5000)?, variable("DROVER_FLEET_HOSTS", 40)?);
    let setting = Setting { folder: &folder, shape, plans: variable("DROVER_FLEET_PLANS", 40)?, rounds };
    let cases: [(&str, Case); 8] = [
        ("whole", many::whole),
        ("served", many::served),
        ("processes", many::processes),
        ("fair", shares::fair),
        ("capped", shares::capped),
        ("slots", breaks::slots),
        ("killed", breaks::killed),
        ("full", breaks::full),
    ];
    for (name, case) in cases {
        if wanted.is_empty() || wanted.split_whitespace().any(|word| name.contains(word)) {
            case(&setting)?;
        }
    }
    Ok(())
}

type Case = fn(&Setting<'_>) -> Result<()>;
