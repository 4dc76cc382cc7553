//! Many disks at once against one disk of as many bytes: they share cores, memory and the target.

use std::path::{Path, PathBuf};

use anyhow::Result;
use drover_lab::{Scene, Sim};
use serde_json::{Value, json};

use crate::clone::copy::cases::{program, text};
use crate::clone::copy::data::Data;
use crate::clone::copy::measure::{Run, measure};
use crate::clone::shared::spread;

/// Name of the case.
pub const NAME: &str = "10 disks at once";

const DISKS: usize = 10;

/// A VM with ten disks and one with a single disk, together as large, leave a simulated vSphere in turns.
pub fn run(data: &Data, rounds: usize) -> Result<()> {
    let mib = data.mib / DISKS as u64;
    let (part, whole) = (data.part(mib)?, data.part(mib * DISKS as u64)?);
    // Unit 7 of a SCSI bus is the controller's own.
    let units = (0..=DISKS).filter(|unit| *unit != 7);
    let many = Mover::new(data, "ten", 80, units.map(|unit| disk(&part, unit)).collect())?;
    let one = Mover::new(data, "one", 81, vec![disk(&whole, 0)])?;
    let mut runs = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (mover, runs) in [&many, &one].into_iter().zip(&mut runs) {
            let run = mover.run()?;
            eprintln!("{NAME}, round {round} of {rounds}: {}: {:.2} s", mover.name, run.wall);
            if round > 0 {
                runs.push(run);
            }
        }
    }
    println!("\n## {NAME}, HTTPS ranges to disk, {} MiB in all, whole migrations\n", mib * DISKS as u64);
    println!("| disks | median s | min-max s | CPU s | peak MiB | time against one disk |");
    println!("|---|---|---|---|---|---|");
    for (name, of_it) in ["10", "1"].into_iter().zip(&runs) {
        let (low, median, high) = spread(of_it.iter().map(|run| run.wall));
        let cpu = spread(of_it.iter().map(|run| run.cpu)).1;
        let peak = spread(of_it.iter().map(|run| run.peak_kib)).2 / 1024.0;
        let (ratio_low, ratio, ratio_high) =
            spread(of_it.iter().zip(&runs[1]).map(|(it, one)| it.wall / one.wall));
        println!(
            "| {name} | {median:.2} | {low:.2}-{high:.2} | {cpu:.2} | {peak:.0} | {ratio:.2} ({ratio_low:.2}-{ratio_high:.2}) |"
        );
    }
    Ok(())
}

fn disk(file: &Path, unit: usize) -> Value {
    json!({"file": file, "datastore": "ds1", "controller": "pvscsi", "unit": unit})
}

/// A simulated vSphere with one VM, and the plan that takes it away.
struct Mover {
    _sim: Sim,
    name: &'static str,
    plan: PathBuf,
    state: PathBuf,
    target: PathBuf,
}

impl Mover {
    fn new(data: &Data, name: &'static str, number: u8, disks: Vec<Value>) -> Result<Mover> {
        let folder = data.folder.join(name);
        let vm = json!({"name": name, "host": "esx1.lab", "power": "off", "cpus": 1, "memory_mib": 256, "disks": disks});
        let scene = Scene::new(number, vec![vm]);
        let sim = Sim::start(&scene.inventory, &folder.join("vsphere"))?;
        let (target, plan) = (folder.join("target"), folder.join("plan.yaml"));
        std::fs::write(&plan, over_https(&scene.plan(name, &sim, &target)) + "start: false\nverify: none\n")?;
        Ok(Mover { _sim: sim, name, plan, state: folder.join("state"), target })
    }

    fn run(&self) -> Result<Run> {
        for folder in [&self.state, &self.target] {
            if folder.exists() {
                std::fs::remove_dir_all(folder)?;
            }
            std::fs::create_dir_all(folder)?;
        }
        let command = [&program()?, "migrate", "--state", &text(&self.state), &text(&self.plan), "--quiet"];
        measure(&command.map(str::to_string), None)
    }
}

/// The same plan, reading the datastore's files.
fn over_https(plan: &str) -> String {
    plan.replace("    from: hosts\n", "    path: https\n    from: hosts\n")
}
