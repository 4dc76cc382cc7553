//! A pass whose areas are wider than what changed: what is read, and what is written.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::host::Host;
use crate::clone::copy::data::Data;
use crate::clone::shared::spread;

/// Writes of 4 KiB, each in a block of 64 KiB of its own.
const WRITES: u64 = 32;
const EVERY_BYTES: u64 = 8 << 20;
const BLOCK_BYTES: u64 = 64 << 10;
/// Areas are multiples of these.
const WIDTHS: [&str; 3] = ["64KiB", "1MiB", "4MiB"];

pub fn run(data: &Data, rounds: usize) -> Result<()> {
    let disk = data.part(data.mib)?;
    let vm = json!({
        "name": "one", "host": "esx1.lab", "power": "on", "cbt": true, "tools": "running", "cpus": 1, "memory_mib": 256,
        "disks": [{"file": disk, "datastore": "ds1", "controller": "pvscsi"}],
    });
    let host = Host::new(data.folder.join("inflated"), 84, vec![vm])?;
    let changed = WRITES * BLOCK_BYTES;
    println!(
        "\n## inflated areas: {WRITES} writes of 4 KiB in as many blocks of 64 KiB ({} KiB)\n",
        changed >> 10
    );
    println!("| areas are multiples of | areas KiB | read KiB | written KiB | written / truly changed |");
    println!("|---|---|---|---|---|");
    for width in WIDTHS {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            runs.push(round(&host, width)?);
        }
        let median = |of: fn(&Pass) -> u64| spread(runs.iter().map(|it| of(it) as f64)).1 / 1024.0;
        let ratio = spread(runs.iter().map(|it| it.written as f64 / changed as f64));
        println!(
            "| {width} | {:.0} | {:.0} | {:.0} | {:.2} ({:.2}-{:.2}) |",
            median(|it| it.areas),
            median(|it| it.read),
            median(|it| it.written),
            ratio.1,
            ratio.0,
            ratio.2
        );
    }
    Ok(())
}

struct Pass {
    areas: u64,
    read: u64,
    written: u64,
}

fn round(host: &Host, width: &str) -> Result<Pass> {
    host.switch_on("one")?;
    let plan = host.plan("mode: warm\nwarm: {interval: 720h, audit: none}", "")?;
    plan.run_passes(1)?;
    host.sim.post("/cbt/lie", json!({"vm": "one", "disk": 0, "widen": width}))?;
    let write = json!({"vm": "one", "disk": 0, "offset": 4096, "fill": "random", "length": 4096, "every": EVERY_BYTES, "count": WRITES});
    host.sim.post("/write", write)?;
    plan.run("cutover")?;
    plan.run("resume")?;
    host.sim.post("/cbt/lie", json!({"vm": "one", "disk": 0}))?;
    let told = plan.told()?;
    let pass = &told.passes()?[1];
    let number = |pass: &Value, key: &str| pass[key].as_u64().with_context(|| key.to_string());
    Ok(Pass {
        areas: number(pass, "areas_bytes")?,
        read: number(pass, "read_bytes")?,
        written: number(pass, "changed_bytes")?,
    })
}
