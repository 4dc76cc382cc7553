//! `make bench`: drover beside other copiers, on the same data in the same run, in turns.
//!
//! Prints medians and spread, CPU seconds and peak memory of the copier (not of the server), and each
//! copier's speed against drover's. The physical limits are measured in the same rounds.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use drover_lab::{PASSWORD, Scene, Sim, USER, lab_folder};
use serde_json::json;

/// One program in a case.
struct Entry {
    name: &'static str,
    command: Vec<String>,
    /// Whether it is a limit rather than a copier.
    is_limit: bool,
}

/// What one run took.
#[derive(Clone, Copy)]
struct Run {
    wall: f64,
    cpu: f64,
    peak_kib: f64,
}

fn main() -> Result<()> {
    let mib: u64 = variable("DROVER_BENCH_MIB", 2048)?;
    let rounds: u64 = variable("DROVER_BENCH_ROUNDS", 5)?;
    let folder = lab_folder().join("bench");
    std::fs::create_dir_all(&folder)?;
    let data = folder.join("random.raw");
    make_random(&data, mib << 20)?;
    println!("machine: {}", machine());
    println!(
        "data: {mib} MiB of random bytes; rounds: {rounds}, in turns; target: a new raw file on disk, flushed"
    );
    nbd_case(&folder, &data, rounds)?;
    https_case(&folder, &data, rounds)?;
    Ok(())
}

fn variable(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} x {}, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}

fn make_random(path: &Path, bytes: u64) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() == bytes) {
        return Ok(());
    }
    std::io::copy(&mut File::open("/dev/urandom")?.take(bytes), &mut File::create(path)?)?;
    Ok(())
}

fn nbd_case(folder: &Path, data: &Path, rounds: u64) -> Result<()> {
    let socket = folder.join("nbd.sock");
    let _server = Server::nbdkit(&socket, &["-r".into(), "file".into(), text(data)])?;
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let out = text(&folder.join("out.raw"));
    let entries = [
        copier("drover copy", &[&program()?, "copy", "--quiet", &uri, &out]),
        copier("nbdcopy", &["nbdcopy", "--flush", &uri, &out]),
        copier(
            "nbdcopy -C4 -R16 1 MiB",
            &[
                "nbdcopy",
                "--flush",
                "--connections=4",
                "--threads=4",
                "--requests=16",
                "--request-size=1048576",
                &uri,
                &out,
            ],
        ),
        copier(
            "qemu-img -t none -W -m 16",
            &["qemu-img", "convert", "-t", "none", "-W", "-m", "16", "-f", "raw", "-O", "raw", &uri, &out],
        ),
        limit("limit: nbdcopy to null", &["nbdcopy", &uri, "null:"]),
        disk_limit(data, &out)?,
    ];
    case("NBD (nbdkit file, Unix socket) to a raw file", &entries, Path::new(&out), data, rounds)
}

fn https_case(folder: &Path, data: &Path, rounds: u64) -> Result<()> {
    let vm = json!({"name": "bench", "power": "off", "disks": [{"file": data, "datastore": "ds1"}]});
    let sim = Sim::start(&Scene::new(78, vec![vm]).inventory, &folder.join("vsphere"))?;
    let url = format!("https://127.0.0.1:{}/folder/bench/bench-flat.vmdk?dcPath=DC0&dsName=ds1", sim.port);
    let source = format!("vsphere://127.0.0.1:{}/bench/0", sim.port);
    let out = text(&folder.join("out.raw"));
    let socket = folder.join("curl.sock");
    let login = [
        format!("url={url}"),
        format!("user={USER}"),
        format!("password={PASSWORD}"),
        "sslverify=false".into(),
    ];
    let _server =
        Server::nbdkit(&socket, &[&["-r".to_string(), "curl".to_string()][..], &login[..]].concat())?;
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let basic = format!("{USER}:{PASSWORD}");
    let entries = [
        copier(
            "drover copy",
            &[&program()?, "copy", "--quiet", "--thumbprint", &sim.thumbprint, &source, &out],
        ),
        copier("curl, one GET", &["curl", "-sSfk", "-u", &basic, "-o", &out, &url]),
        copier("nbdkit-curl + nbdcopy", &["nbdcopy", "--flush", &uri, &out]),
        copier("nbdkit-curl + nbdcopy 4 MiB", &["nbdcopy", "--flush", "--request-size=4194304", &uri, &out]),
        limit("limit: curl to /dev/null", &["curl", "-sSfk", "-u", &basic, "-o", "/dev/null", &url]),
        disk_limit(data, &out)?,
    ];
    case("HTTPS ranges (simulated vSphere) to a raw file", &entries, Path::new(&out), data, rounds)
}

fn program() -> Result<String> {
    let beside = std::env::current_exe()?.with_file_name("drover");
    if !beside.is_file() {
        bail!("{} is not built; run `make build`", beside.display());
    }
    Ok(text(&beside))
}

fn copier(name: &'static str, command: &[&str]) -> Entry {
    Entry { name, command: command.iter().map(|word| word.to_string()).collect(), is_limit: false }
}

fn limit(name: &'static str, command: &[&str]) -> Entry {
    Entry { is_limit: true, ..copier(name, command) }
}

fn disk_limit(data: &Path, out: &str) -> Result<Entry> {
    let mib = std::fs::metadata(data)?.len() >> 20;
    let count = format!("count={mib}");
    let of = format!("of={out}");
    Ok(limit(
        "limit: dd direct to the disk",
        &["dd", "if=/dev/zero", &of, "bs=1M", &count, "oflag=direct", "status=none"],
    ))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn case(title: &str, entries: &[Entry], out: &Path, data: &Path, rounds: u64) -> Result<()> {
    let mut runs: Vec<Vec<Run>> = entries.iter().map(|_| Vec::new()).collect();
    // One round that does not count, to warm the cache of the source; it is also checked byte by byte.
    for round in 0..=rounds {
        for (entry, runs) in entries.iter().zip(&mut runs) {
            remove(out)?;
            let run = measure(&entry.command).with_context(|| entry.name)?;
            if round == 0 && !entry.is_limit {
                check_equal(entry.name, out, data)?;
            } else if round > 0 {
                runs.push(run);
            }
        }
    }
    remove(out)?;
    print_case(title, entries, &runs, std::fs::metadata(data)?.len());
    Ok(())
}

fn print_case(title: &str, entries: &[Entry], runs: &[Vec<Run>], bytes: u64) {
    println!("\n## {title}\n");
    println!("| program | median s | min-max s | GB/s | CPU s | peak MiB | drover is ... times as fast |");
    println!("|---|---|---|---|---|---|---|");
    for (entry, of_entry) in entries.iter().zip(runs) {
        let (low, median, high) = spread(of_entry.iter().map(|run| run.wall));
        // In turns: the ratio is taken within each round, where the machine was in the same mood.
        let (ratio_low, ratio, ratio_high) =
            spread(of_entry.iter().zip(&runs[0]).map(|(it, ours)| it.wall / ours.wall));
        println!(
            "| {} | {median:.2} | {low:.2}-{high:.2} | {:.2} | {:.2} | {:.0} | {ratio:.2} ({ratio_low:.2}-{ratio_high:.2}) |",
            entry.name,
            bytes as f64 / 1e9 / median,
            spread(of_entry.iter().map(|run| run.cpu)).1,
            spread(of_entry.iter().map(|run| run.peak_kib)).1 / 1024.0,
        );
    }
}

fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.as_slice() {
        [] => (0.0, 0.0, 0.0),
        [low, .., high] => (*low, values[values.len() / 2], *high),
        [one] => (*one, *one, *one),
    }
}

/// Runs a command under time(1), then makes what it wrote durable within the measured time.
fn measure(command: &[String]) -> Result<Run> {
    let times = lab_folder().join("bench/times");
    let started = std::time::Instant::now();
    let status = Command::new("/usr/bin/time")
        .args(["-q", "-f", "%U %S %M", "-o"])
        .arg(&times)
        .args(command)
        .env("DROVER_PASSWORD", PASSWORD)
        .env("DROVER_USER", USER)
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    flush(command)?;
    let wall = started.elapsed().as_secs_f64();
    let said = std::fs::read_to_string(&times)?;
    let mut numbers = said.split_whitespace().map(|word| word.parse::<f64>().unwrap_or(0.0));
    let mut next = || numbers.next().unwrap_or(0.0);
    Ok(Run { cpu: next() + next(), wall, peak_kib: next() })
}

/// curl and qemu-img leave data in the page cache; a copy counts when it is durable.
fn flush(command: &[String]) -> Result<()> {
    let out = lab_folder().join("bench/out.raw");
    if out.is_file() && command.iter().any(|word| word.contains("out.raw")) {
        File::open(&out)?.sync_all()?;
    }
    Ok(())
}

fn check_equal(name: &str, out: &Path, data: &Path) -> Result<()> {
    let same = Command::new("cmp").arg(out).arg(data).status()?.success();
    if same { Ok(()) } else { bail!("{name} did not copy what there was") }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// A server that ends with this program.
struct Server(Child);

impl Server {
    fn nbdkit(socket: &PathBuf, args: &[String]) -> Result<Server> {
        remove(socket)?;
        let child =
            Command::new("nbdkit").args(["-f", "--exit-with-parent", "-U"]).arg(socket).args(args).spawn()?;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !socket.exists() {
            if std::time::Instant::now() > until {
                bail!("nbdkit did not start");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(Server(child))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
