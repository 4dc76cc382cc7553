//! Many disks of one host at once: what the host carries, and what larger NFC buffers gain.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::host::Host;
use crate::clone::copy::data::Data;
use crate::clone::copy::measure::cpu_s;
use crate::clone::shared::spread;

const MB: f64 = 1e6;
/// Half of what R1 (MTV, performance recommendations, 2025) tells of a real host: 100 MiB/s for one disk, 284 MiB/s
/// for twenty. Half, so that two cores are not the limit.
const CONNECTION_BYTES_PER_S: u64 = 50 << 20;
const HOST_BYTES_PER_S: u64 = 142 << 20;
const DISKS: [usize; 5] = [1, 2, 3, 10, 20];
/// Bytes in all, by number of disks: some 6 to 8 s of copying.
const fn mib_in_all(disks: usize) -> u64 {
    match disks {
        1 => 320,
        2 => 640,
        _ => 1080,
    }
}

/// 1, 2, 3, 10 and 20 disks at once.
pub fn disks(data: &Data, rounds: usize) -> Result<()> {
    let hosts =
        DISKS.map(|disks| host(data, &format!("disks-{disks}"), 85, disks, mib_in_all(disks) / disks as u64));
    println!(
        "\n## disks at once, one host of {:.0} MB/s, {:.0} MB/s a connection\n",
        HOST_BYTES_PER_S as f64 / MB,
        CONNECTION_BYTES_PER_S as f64 / MB
    );
    println!("| disks | MB/s (min-max) | of the host's cap |");
    println!("|---|---|---|");
    let mut runs: Vec<Vec<f64>> = vec![Vec::new(); DISKS.len()];
    for (disks, (host, runs)) in DISKS.into_iter().zip(hosts.into_iter().zip(&mut runs)) {
        let host = host?;
        host.stand_in.set(&format!(
            "connection_bytes_per_s={CONNECTION_BYTES_PER_S}\nhost_bytes_per_s={HOST_BYTES_PER_S}\nlatency_us=500"
        ))?;
        for _ in 0..rounds {
            runs.push(rate(&host, disks, mib_in_all(disks) / disks as u64, "1, buf_count: 4")?);
        }
        let (low, median, high) = spread(runs.iter().copied());
        let share = median / HOST_BYTES_PER_S as f64 * 100.0;
        println!("| {disks} | {:.0} ({:.0}-{:.0}) | {share:.0} % |", median / MB, low / MB, high / MB);
    }
    Ok(())
}

/// The same by NFC, and what the host counted of its memory.
pub fn by_nfc(data: &Data, rounds: usize) -> Result<()> {
    println!("\n## disks at once by NFC, the same host, data through TLS\n");
    println!("| disks | MB/s (min-max) | of the host's cap | NFC memory at most MiB | refused |");
    println!("|---|---|---|---|---|");
    for disks in DISKS {
        let mib = mib_in_all(disks) / disks as u64;
        let host = host(data, &format!("nfc-disks-{disks}"), 79, disks, mib)?;
        host.sim.post(
            "/nfc/set",
            json!({
                "connection_bytes_per_s": CONNECTION_BYTES_PER_S, "host_bytes_per_s": HOST_BYTES_PER_S,
                "latency_ms": 0.5,
            }),
        )?;
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let plan = host.plan_by_nfc(&format!("mode: cold\nlimits: {{disks: {disks}}}"), "")?;
            host.settle()?;
            plan.run("migrate")?;
            runs.push(((mib << 20) * disks as u64) as f64 / plan.told()?.copy_phase_s()?);
        }
        let stats = host.sim.get("/nfc/stats")?;
        let service = &stats["hosts"]["esx1.lab"]["services"]["vpxa-nfc"];
        let (low, median, high) = spread(runs.iter().copied());
        println!(
            "| {disks} | {:.0} ({:.0}-{:.0}) | {:.0} % | {} | {} |",
            median / MB,
            low / MB,
            high / MB,
            median / HOST_BYTES_PER_S as f64 * 100.0,
            service["memory_most"].as_u64().unwrap_or(0) >> 20,
            service["refused"]
        );
    }
    Ok(())
}

const GIGABIT_BYTES_PER_S: u64 = 125_000_000;

/// A disk that is half zeros, all of them allocated as far as the host tells, over 1 Gbit/s.
pub fn packed(data: &Data, rounds: usize) -> Result<()> {
    let file = Data::new(&data.folder, PACKED_MIB)?.half_sparse()?;
    let vm = json!({
        "name": "one", "host": "esx1.lab", "power": "off", "cpus": 1, "memory_mib": 256, "disks": [disk(&file, 0)],
    });
    let host = Host::new(data.folder.join("nfc-packed"), 76, vec![vm])?;
    host.sim.post("/nfc/set", json!({"host_bytes_per_s": GIGABIT_BYTES_PER_S, "qab": "off"}))?;
    println!("\n## {PACKED_MIB} MiB half of zeros by NFC, 1 Gbit/s, no allocated areas told\n");
    println!("| compression | MB/s (min-max) | MB on the wire | host CPU s |");
    println!("|---|---|---|---|");
    for compression in ["none", "skipz", "auto", "fastlz", "zlib"] {
        let (mut runs, mut wire, mut cpu) = (Vec::new(), 0.0, Vec::new());
        for _ in 0..rounds {
            host.sim.post("/stats/reset", json!({}))?;
            let plan = host.plan_by_nfc("mode: cold", &format!("compression: {compression}"))?;
            host.settle()?;
            let before = cpu_s(host.sim.pid());
            plan.run("migrate")?;
            cpu.push(cpu_s(host.sim.pid()) - before);
            runs.push((PACKED_MIB << 20) as f64 / plan.told()?.copy_phase_s()?);
            let stats = host.sim.get("/nfc/stats")?;
            wire = stats["hosts"]["esx1.lab"]["services"]["vpxa-nfc"]["bytes_sent"].as_f64().unwrap_or(0.0);
        }
        let (low, median, high) = spread(runs.iter().copied());
        println!(
            "| {compression} | {:.0} ({:.0}-{:.0}) | {:.0} | {:.2} |",
            median / MB,
            low / MB,
            high / MB,
            wire / MB,
            spread(cpu.iter().copied()).1
        );
    }
    Ok(())
}

const PACKED_MIB: u64 = 512;

/// Each buffer of the NFC session takes so long on its way.
const BUFFER_LATENCY_US: u64 = 20_000;
const BUFFER_DISKS: usize = 10;
const BUFFER_DISK_MIB: u64 = 64;

/// AIO buffers 1 x 4 against 16 x 4, in turns.
pub fn buffers(data: &Data, rounds: usize) -> Result<()> {
    let host = host(data, "aio", 86, BUFFER_DISKS, BUFFER_DISK_MIB)?;
    host.stand_in.set(&format!("latency_us={BUFFER_LATENCY_US}"))?;
    let settings = [("1 x 4", "1, buf_count: 4"), ("16 x 4", "16, buf_count: 4")];
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for ((_, setting), runs) in settings.iter().zip(&mut runs) {
            runs.push(rate(&host, BUFFER_DISKS, BUFFER_DISK_MIB, setting)?);
        }
    }
    println!(
        "\n## AIO buffers, {BUFFER_DISKS} disks at once, {} ms for each buffer\n",
        BUFFER_LATENCY_US / 1000
    );
    println!("| buffers | MB/s (min-max) | against 1 x 4 (min-max) |");
    println!("|---|---|---|");
    for ((name, _), of_it) in settings.iter().zip(&runs) {
        let (low, median, high) = spread(of_it.iter().copied());
        let ratio = spread(of_it.iter().zip(&runs[0]).map(|(it, first)| it / first));
        println!(
            "| {name} | {:.0} ({:.0}-{:.0}) | {:.2} ({:.2}-{:.2}) |",
            median / MB,
            low / MB,
            high / MB,
            ratio.1,
            ratio.0,
            ratio.2
        );
    }
    Ok(())
}

/// A host with one VM that is off and has so many disks.
fn host(data: &Data, name: &str, number: u8, disks: usize, mib: u64) -> Result<Host> {
    let file = data.part(mib)?;
    let vm = json!({
        "name": "one", "host": "esx1.lab", "power": "off", "cbt": true, "cpus": 1, "memory_mib": 256,
        "disks": (0..disks).map(|at| disk(&file, at)).collect::<Vec<_>>(),
    });
    Host::new(data.folder.join(name), number, vec![vm])
}

fn disk(file: &Path, at: usize) -> Value {
    let (controller, unit) = (["pvscsi", "lsilogic"][at / 10], at % 10);
    // Unit 7 of a SCSI bus is the controller's own.
    let unit = if unit >= 7 { unit + 1 } else { unit };
    json!({"file": file, "datastore": "ds1", "controller": controller, "unit": unit})
}

/// Bytes per second of the copy of all disks at once.
fn rate(host: &Host, disks: usize, mib: u64, buffers: &str) -> Result<f64> {
    let limits = format!("mode: cold\nlimits: {{disks: {disks}}}");
    let plan = host.plan(&limits, &format!(", aio: {{buf_size_in_64kb: {buffers}}}"))?;
    host.settle()?;
    plan.run("migrate")?;
    Ok(((mib << 20) * disks as u64) as f64 / plan.told()?.copy_phase_s()?)
}
