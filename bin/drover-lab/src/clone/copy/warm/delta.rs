//! The delta pass against a loop that reads, writes, reads: far sources make the difference.

use anyhow::Result;
use drover_types::ByteSpan;
use serde_json::json;

use super::host::Host;
use super::peer::{compare, copy_areas};
use crate::clone::copy::data::Data;
use crate::clone::shared::spread;

/// Of each buffer of the modelled NFC session; by NFC, of each answer.
const LATENCIES_MS: [u64; 3] = [1, 5, 20];
/// Areas of 64 KiB, each 512 KiB from the next: 16 MiB.
const AREAS: u64 = 256;
const AREA_BYTES: u64 = 64 << 10;
const EVERY_BYTES: u64 = 512 << 10;
const ONE_DELTA: &str = "mode: warm\nwarm: {interval: 720h, audit: none}";

/// Through VDDK.
pub fn by_vddk(data: &Data, rounds: usize) -> Result<()> {
    run(data, rounds, By::Vddk)
}

/// By NFC, as VDDK's stand-in reads for the loop.
pub fn by_nfc(data: &Data, rounds: usize) -> Result<()> {
    run(data, rounds, By::Nfc)
}

#[derive(Clone, Copy)]
enum By {
    Vddk,
    Nfc,
}

fn run(data: &Data, rounds: usize, by: By) -> Result<()> {
    let disk = data.part(data.mib)?;
    let vm = json!({
        "name": "one", "host": "esx1.lab", "power": "on", "cbt": true, "tools": "running", "cpus": 1, "memory_mib": 256,
        "disks": [{"file": disk, "datastore": "ds1", "controller": "pvscsi"}],
    });
    let (folder, number, what) = match by {
        By::Vddk => ("delta", 83, "VDDK's own buffers (1 x 4)"),
        By::Nfc => ("delta-nfc", 82, "drover by NFC, the loop through VDDK (1 x 4)"),
    };
    let host = Host::new(data.folder.join(folder), number, vec![vm])?;
    if let By::Nfc = by {
        host.stand_in.set("data=nfc")?;
    }
    let areas: Vec<ByteSpan> = (0..AREAS).map(|at| ByteSpan::new(at * EVERY_BYTES, AREA_BYTES)).collect();
    println!("\n## delta pass: {AREAS} areas of 64 KiB, {what}\n");
    println!("| latency | drover s (min-max) | read-then-write loop s (min-max) | times as fast (min-max) |");
    println!("|---|---|---|---|");
    for latency_ms in LATENCIES_MS {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            runs.push(round(&host, &areas, latency_ms, by)?);
        }
        let (low, ours, high) = spread(runs.iter().map(|it| it.0));
        let (loop_low, theirs, loop_high) = spread(runs.iter().map(|it| it.1));
        let (ratio_low, ratio, ratio_high) = spread(runs.iter().map(|it| it.1 / it.0));
        println!(
            "| {latency_ms} ms | {ours:.2} ({low:.2}-{high:.2}) | {theirs:.2} ({loop_low:.2}-{loop_high:.2}) | \
             {ratio:.2} ({ratio_low:.2}-{ratio_high:.2}) |"
        );
    }
    Ok(())
}

/// Seconds of drover's delta pass, and of the loop over the same areas.
fn round(host: &Host, areas: &[ByteSpan], latency_ms: u64, by: By) -> Result<(f64, f64)> {
    host.switch_on("one")?;
    host.stand_in.set("latency_us=0")?;
    host.sim.post("/nfc/set", json!({"latency_ms": 0}))?;
    let plan = match by {
        By::Vddk => host.plan(ONE_DELTA, "")?,
        By::Nfc => host.plan_by_nfc(ONE_DELTA, "")?,
    };
    plan.run_passes(1)?;
    host.sim.post(
        "/write",
        json!({"vm": "one", "disk": 0, "offset": 0, "fill": "random", "length": AREA_BYTES, "every": EVERY_BYTES, "count": AREAS}),
    )?;
    host.stand_in.set(&format!("latency_us={}", latency_ms * 1000))?;
    host.sim.post("/nfc/set", json!({"latency_ms": latency_ms}))?;
    host.settle()?;
    plan.run("cutover")?;
    plan.run("resume")?;
    let ours = plan.told()?.copying_s(1)?;
    let out = host.path("peer.raw");
    host.settle()?;
    let theirs = copy_areas(host, "one", areas, &out)?;
    compare(&host.image("one", 0), &out, areas)?;
    Ok((ours, theirs))
}
