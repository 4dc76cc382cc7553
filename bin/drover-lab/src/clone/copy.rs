//! `drover-lab bench copy` (`make bench`): drover beside other copiers, on the same data in the same run, in turns.
//!
//! Prints medians and spread, CPU seconds and peak memory of the copier (not of the server), and each
//! copier's speed against drover's. The physical limits are measured in the same rounds. At the end:
//! one table of the cases, with the best peer of each.
//!
//! `DROVER_BENCH_MIB` (4096), `DROVER_BENCH_ROUNDS` (5), `DROVER_BENCH_CASES` (words that a case's name
//! must contain one of; all), `DROVER_BENCH_OTHER` (a second drover, in turns with this one). `drover-lab bench warm` measures passes and many disks of one host instead,
//! `drover-lab bench fleet` thousands of VMs.

mod cases;
mod data;
mod fleet;
mod many;
mod measure;
mod nfc;
mod server;
mod warm;

use std::path::PathBuf;

use anyhow::{Context, Result};
use drover_lab::lab_folder;

use crate::clone::copy::data::Data;
use crate::clone::copy::measure::{Outcome, summary};
use crate::clone::shared::variable;
use crate::memory::machine;

/// Runs `drover-lab bench warm`.
pub fn warm() -> Result<()> {
    println!("machine: {}", machine());
    warm::run(&folder(), variable("DROVER_BENCH_ROUNDS", 3)?, &wanted()?)
}

/// Runs `drover-lab bench fleet`.
pub fn fleet() -> Result<()> {
    println!("machine: {}", machine());
    fleet::run(&folder(), variable("DROVER_BENCH_ROUNDS", 3)?, &wanted()?)
}

fn folder() -> PathBuf {
    lab_folder().join("bench")
}

fn wanted() -> Result<String> {
    variable("DROVER_BENCH_CASES", String::new())
}

/// Runs `drover-lab bench copy`.
pub fn run() -> Result<()> {
    let mib: u64 = variable("DROVER_BENCH_MIB", 4096)?;
    let wanted = wanted()?;
    let rounds: usize = variable("DROVER_BENCH_ROUNDS", 5)?;
    let data = Data::new(&folder(), mib)?;
    println!("machine: {}", machine());
    println!("data: {mib} MiB (latency cases {} MiB); rounds: {rounds}, in turns", data.small_mib());
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.split_whitespace().any(|word| name.contains(word));
    let mut outcomes: Vec<Outcome> = Vec::new();
    // The others' disks take long to make.
    let is_only_nfc = !wanted.is_empty() && wanted.split_whitespace().all(|word| word.starts_with("NFC"));
    let others = if is_only_nfc { Vec::new() } else { cases::all(&data)? };
    for case in others {
        if is_wanted(case.name) {
            outcomes.push(case.run(rounds).with_context(|| case.name)?);
        }
    }
    for name in nfc::NAMES.into_iter().filter(|name| is_wanted(name)) {
        if let Some(mut case) = nfc::case(&data, name)? {
            cases::add_other(&mut case, &cases::program()?);
            outcomes.push(case.run(rounds).context(name)?);
        }
    }
    if is_wanted(many::NAME) {
        many::run(&data, rounds)?;
    }
    println!("\n## Summary\n");
    print!("{}", summary(&outcomes));
    Ok(())
}
