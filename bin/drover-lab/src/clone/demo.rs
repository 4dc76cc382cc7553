//! `drover-lab demo` (`make demo`): virtual machines leave a simulated vCenter, arrive on QEMU with every byte proven, and boot.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use drover_lab::{Drover, Guest, Guests, Scene, Sim, lab_folder};
use serde_json::{Value, json};

/// Software emulation on two busy cores takes half a minute for four guests.
const BOOT_SECONDS_MAX: u64 = 180;
/// A QEMU that has not said a word for so long will not: seen twice in some hundred starts of the guest with two processors, under software
/// emulation on two busy cores, and not understood.
const SILENT_SECONDS_MAX: u64 = 60;
/// A process that was killed is gone after so long.
const GONE_SECONDS_MAX: u64 = 10;
/// The VM that keeps running until it is moved over.
const WARM: &str = "warm01";
/// What its guest writes in a second.
const WRITES_PER_S: u64 = 500_000;

/// Runs the demo; gives whether all arrived and booted.
pub fn run() -> Result<bool> {
    let started = Instant::now();
    let folder = lab_folder().join("demo");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("removing the last demo")?;
    }
    std::fs::create_dir_all(&folder)?;
    let guests = Guests::build()?;
    let mut scene = Scene::of_guests(&guests);
    add_warm_vm(&mut scene)?;
    let sim = Sim::start(&scene.inventory, &folder.join("vsphere"))?;
    // Its guest writes all the time, to a disk that nobody boots from.
    sim.post("/writer", json!({"vm": WARM, "disk": 1, "bytes_per_s": WRITES_PER_S}))?;
    println!("a simulated vCenter is at https://127.0.0.1:{}\n", sim.port);
    let drover = Drover::new(program()?, folder.join("state"));
    let plan = folder.join("demo.yaml");
    let text = scene.plan("demo", &sim, &folder.join("vms"));
    std::fs::write(&plan, text.replace(&format!("  - name: \"{WARM}\"\n"), &warm_selection()))?;

    let plan_text = plan.display().to_string();
    show(&drover, &["inventory", &plan_text])?;
    show(&drover, &["plan", "check", &plan_text])?;
    show(&drover, &["migrate", &plan_text, "--start"])?;
    let html = folder.join("report.html").display().to_string();
    show(&drover, &["report", &plan_text, "--html", &html])?;

    println!(
        "\nwaiting for the guests to boot and prove their data (software emulation, up to {BOOT_SECONDS_MAX} s)"
    );
    let report = drover.run(&["report", &plan_text, "--json"])?.json()?;
    let fine = final_table(&guests, &report, &folder.join("vms"))?;
    let warm = warm_words(&guests, &report, &folder.join("vms"))?;
    let disk = sparse_disk(&report)?;
    let way = way_words(&sim)?;
    println!("\n{disk}\n{}\n{}", warm.0, way.0);
    println!("plan {plan_text}\nreport {html}\ntook {:.0} s", started.elapsed().as_secs_f64());
    Ok(fine && warm.1 && way.1)
}

/// What came from the hosts' NFC servers, as these count it, and whether nothing came by another way.
fn way_words(sim: &Sim) -> Result<(String, bool)> {
    let sum = |stats: &Value, list: &str, of: &dyn Fn(&Value) -> u64| -> u64 {
        stats[list].as_object().into_iter().flatten().map(|(_, one)| of(one)).sum()
    };
    let nfc = sum(&sim.get("/nfc/stats")?, "hosts", &|host| {
        host["services"]["vpxa-nfc"]["bytes_sent"].as_u64().unwrap_or(0)
    });
    let https = sum(&sim.get("/stats")?, "endpoints", &|one| one["folder_bytes"].as_u64().unwrap_or(0));
    let words = format!(
        "read by NFC from the simulated hosts: {} MiB on the wire; over HTTPS: {} MiB",
        nfc >> 20,
        https >> 20
    );
    Ok((words, nfc > 0 && https == 0))
}

/// A copy of the first guest with a disk more, which runs until it is moved over.
fn add_warm_vm(scene: &mut Scene) -> Result<()> {
    let vms = scene.inventory["vms"].as_array_mut().context("VMs of the scene")?;
    let mut vm = vms.first().context("a guest")?.clone();
    vm["name"] = json!(WARM);
    for (number, nic) in vm["nics"].as_array_mut().into_iter().flatten().enumerate() {
        nic["mac"] = json!(format!("00:50:56:aa:02:{number:02x}"));
    }
    let data =
        json!({"capacity": "64MiB", "thin": true, "datastore": "ds2", "controller": "pvscsi", "unit": 1});
    vm["disks"].as_array_mut().context("disks")?.push(data);
    vms.push(vm);
    Ok(())
}

fn warm_selection() -> String {
    format!("  - name: {WARM}\n    mode: warm\n    warm: {{interval: 2s, cutover: auto, downtime_max: 3m}}\n")
}

/// What became of the VM that kept running, and whether all is well with it.
fn warm_words(guests: &Guests, report: &Value, vms: &Path) -> Result<(String, bool)> {
    let list = report["vms"].as_array().context("VMs in the report")?;
    let vm = list.iter().find(|vm| vm["name"] == WARM).context("the warm VM")?;
    let guest = guests.guests.first().context("a guest")?;
    let booted = wait_for_proof(guest, WARM, &vms.join(WARM))?;
    let equal = vm["disks"].as_array().is_some_and(|disks| disks.iter().all(|disk| disk["equal"] == true));
    let warm = &vm["warm"];
    let passes = warm["passes"].as_array().context("passes")?;
    let read = |pass: &Value| mib(pass["read_bytes"].as_u64().unwrap_or(0));
    let all: Vec<String> = passes.iter().map(read).collect();
    let seconds = |ms: &Value| ms.as_u64().unwrap_or(0) as f64 / 1000.0;
    let (real, forecast) = (warm["downtime_ms"].as_u64(), &warm["forecast"]);
    let text = format!(
        "{WARM} moved while it ran, under constant writes: {} passes and the last one (read {}), hash equal: {}, booted and proved its \
         data: {}\n{WARM} was down for {:.1} s; predicted {:.1} s ({:.1} s to {:.1} s)",
        passes.len() - 1,
        all.join(", "),
        if equal { "yes" } else { "NO" },
        if booted { "yes" } else { "NO" },
        real.unwrap_or(0) as f64 / 1000.0,
        seconds(&forecast["forecast_ms"]),
        seconds(&forecast["low_ms"]),
        seconds(&forecast["high_ms"]),
    );
    Ok((text, equal && booted && real.is_some() && passes.len() > 3))
}

/// The drover program that was built beside this one.
fn program() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("drover");
    if !beside.is_file() {
        bail!("{} is not built; run `make build`", beside.display());
    }
    Ok(beside)
}

/// Runs a drover command as a user would, with its words on the screen.
fn show(drover: &Drover, args: &[&str]) -> Result<()> {
    println!("$ drover {}", args.join(" "));
    let status = drover.command(args).status()?;
    println!();
    if !status.success() {
        bail!("drover {} ended with {status}", args[0]);
    }
    Ok(())
}

fn final_table(guests: &Guests, report: &Value, vms: &Path) -> Result<bool> {
    let mut fine = true;
    let mut rows = Vec::new();
    let list = report["vms"].as_array().context("VMs in the report")?;
    for guest in &guests.guests {
        let vm =
            list.iter().find(|vm| vm["name"] == guest.name.as_str()).with_context(|| guest.name.clone())?;
        let booted = wait_for_proof(guest, &guest.name, &vms.join(&guest.name))?;
        let disks = vm["disks"].as_array().context("disks")?;
        let equal = disks.iter().all(|disk| disk["equal"] == true);
        let sum = |key: &str| disks.iter().filter_map(|disk| disk["details"][key].as_u64()).sum::<u64>();
        let seconds = disks.iter().filter_map(|disk| disk["details"]["copy_ms"].as_u64()).max().unwrap_or(0)
            as f64
            / 1000.0;
        let rate = sum("read_bytes") as f64 / seconds.max(0.001) / 1e6;
        rows.push(format!(
            "{:<12} {:>5} {:>11} {:>11} {:>11} {:>11}   {:<10}   {}",
            guest.name,
            disks.len(),
            mib(sum("size")),
            mib(sum("read_bytes")),
            mib(sum("written_bytes")),
            format!("{rate:.0} MB/s"),
            if equal { "yes" } else { "NO" },
            if booted { "yes" } else { "NO" }
        ));
        fine &= equal && booted;
    }
    println!(
        "\n{:<12} {:>5} {:>11} {:>11} {:>11} {:>11}   {:<10}   booted and proved its data",
        "VM", "disks", "size", "read", "written", "rate", "hash equal"
    );
    rows.iter().for_each(|row| println!("{row}"));
    Ok(fine)
}

/// Whether the guest printed all that it must; its serial line goes to a file in the VM's folder. One of which nothing at all is heard is
/// started anew, once.
fn wait_for_proof(guest: &Guest, name: &str, folder: &Path) -> Result<bool> {
    let (began, mut is_anew) = (Instant::now(), false);
    let mut until = began + Duration::from_secs(BOOT_SECONDS_MAX);
    loop {
        let serial = std::fs::read(folder.join("serial.log")).unwrap_or_default();
        if serial.is_empty() && !is_anew && began.elapsed() > Duration::from_secs(SILENT_SECONDS_MAX) {
            is_anew = true;
            if !start_anew(folder)? {
                println!("{name}: its QEMU has ended without a word");
                return Ok(false);
            }
            println!("{name}: its QEMU had said nothing for {SILENT_SECONDS_MAX} s, and was started anew");
            until = Instant::now() + Duration::from_secs(BOOT_SECONDS_MAX);
        }
        let serial = String::from_utf8_lossy(&serial);
        let missing = guest.missing_in(&serial);
        if missing.is_empty() {
            serial
                .lines()
                .filter(|line| line.contains("DROVER-"))
                .for_each(|line| println!("{name}: {}", line.trim()));
            return Ok(true);
        }
        if Instant::now() > until {
            println!("{name}: did not print {missing:?}");
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Kills the QEMU of a VM's folder, and starts the machine as drover has written it down; false if none runs.
fn start_anew(folder: &Path) -> Result<bool> {
    let pid = std::fs::read_to_string(folder.join("qemu.pid")).unwrap_or_default();
    let process = Path::new("/proc").join(pid.trim());
    let line = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    if !line.contains(&folder.display().to_string()) {
        return Ok(false);
    }
    Command::new("kill").args(["-9", pid.trim()]).status()?;
    let until = Instant::now() + Duration::from_secs(GONE_SECONDS_MAX);
    while is_there(&process) {
        if Instant::now() > until {
            bail!("QEMU process {} does not end", pid.trim());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let serial = File::create(folder.join("serial.log"))?;
    let said = File::create(folder.join("qemu.log"))?;
    // It outlasts the demo, as the others do.
    let mut machine = Command::new(folder.join("run.sh"));
    machine.stdin(Stdio::null()).stdout(serial).stderr(said).process_group(0).spawn()?;
    Ok(true)
}

/// Whether a process holds files: until its last thread has gone, and it waits for its parent only.
fn is_there(process: &Path) -> bool {
    let threads = std::fs::read_dir(process.join("task")).map_or(0, Iterator::count);
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    let is_zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    threads > 1 || (threads == 1 && !is_zombie)
}

/// What the largest disk took, in bytes and time.
fn sparse_disk(report: &Value) -> Result<String> {
    let vms = report["vms"].as_array().context("VMs")?;
    let disks = vms.iter().flat_map(|vm| vm["disks"].as_array().into_iter().flatten());
    let disk = disks.max_by_key(|disk| disk["size"].as_u64()).context("a disk")?;
    let path = disk["path"].as_str().context("a path")?;
    let allocated = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path)?) * 512;
    Ok(format!(
        "the sparse disk: {} large, {} read, {} on the target, copied in {:.1} s",
        mib(disk["size"].as_u64().unwrap_or(0)),
        mib(disk["details"]["read_bytes"].as_u64().unwrap_or(0)),
        mib(allocated),
        disk["details"]["copy_ms"].as_u64().unwrap_or(0) as f64 / 1000.0
    ))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
