//! `make bench-warm`: passes of a warm migration, and many disks of one host, through nbdkit's true vddk plugin
//! and a stand-in for VMware's library that models latency and rates, and by NFC from the simulator; there the stand-in reads by NFC, too.
//!
//! `DROVER_BENCH_ROUNDS` (3), `DROVER_BENCH_CASES` (of delta, nfc-delta, inflated, disks, nfc-disks, nfc-packed, aio; all).

mod delta;
mod host;
mod inflated;
mod many;
mod peer;

use std::path::Path;

use anyhow::Result;
use drover_lab::{Sim, StandIn};

use crate::clone::copy::data::Data;

/// Runs the cases whose names hold one of these words; all if there is none.
pub fn run(folder: &Path, rounds: usize, wanted: &str) -> Result<()> {
    if Sim::program().is_none() || !StandIn::is_there() {
        println!("skipped: NOTHING WAS MEASURED: simulator, stand-in or nbdkit's vddk plugin is not there");
        return Ok(());
    }
    let data = Data::new(folder, DATA_MIB)?;
    let cases: [(&str, Case); 7] = [
        ("delta", delta::by_vddk),
        ("nfc-delta", delta::by_nfc),
        ("inflated", inflated::run),
        ("disks", many::disks),
        ("nfc-disks", many::by_nfc),
        ("nfc-packed", many::packed),
        ("aio", many::buffers),
    ];
    for (name, case) in cases {
        if wanted.is_empty() || wanted.split_whitespace().any(|word| name.contains(word)) {
            case(&data, rounds)?;
        }
    }
    Ok(())
}

type Case = fn(&Data, usize) -> Result<()>;

/// Size of the disk whose passes are measured.
const DATA_MIB: u64 = 256;
