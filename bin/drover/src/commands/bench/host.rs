//! Whether this host can do what is asked, before anything is begun.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drover_engine::chain;
use drover_mover::StopSignal;
use drover_pulse::{MEMORY_MIB_MIN, Pulse, PulseError, PulseSpec};
use drover_qemu::Accelerator;
use serde_json::json;

use super::cards;
use super::ground::Line;
use super::keeper::{Keeper, mark};
use super::tables::{Path as Way, Table};
use crate::cli::{AccelArg, BenchMemoryArgs, Place};
use crate::exit::{Exit, Failure};
use crate::out::line;

/// What guests run on here, and where they go.
#[derive(Debug)]
pub struct Host {
    /// The drover that moves guests.
    pub program: PathBuf,
    /// Folder for its reports.
    pub reports: Option<PathBuf>,
    /// The long line.
    pub line: Line,
    /// The card's address, or why nothing goes by RDMA.
    pub rdma: Result<std::net::IpAddr, String>,
    /// Machine, QEMU and what executes guests, of those in tables.
    spec: PulseSpec,
    version: String,
    accel_why: String,
    has_line: bool,
}

/// Beside a guest's memory: QEMU itself.
const QEMU_MIB: u64 = 64;
/// A guest of the smallest kind has begun to beat by then under software emulation, also on a busy machine.
const PROBE_TIME: Duration = Duration::from_secs(60);
/// Under KVM, where it takes less than a second.
const PROBE_KVM_TIME: Duration = Duration::from_secs(10);
const PROBE_LOOK: Duration = Duration::from_millis(100);
const PROBE_PAGES: u32 = 16;

impl Host {
    /// Looks whether there are programs, memory, a line and what else is asked for.
    ///
    /// # Errors
    /// If not, with what to try.
    pub fn look(
        args: &BenchMemoryArgs,
        tables: &[Table],
        keeper: &Keeper,
        stop: &StopSignal,
    ) -> Result<Host, Failure> {
        let qemu = whole(&args.qemu);
        let version = version(&qemu)?;
        let program = program(args.program.as_deref())?;
        enough_memory(tables, &fs::read_to_string("/proc/meminfo").unwrap_or_default())?;
        let has_line = tables.iter().any(|table| table.place == Place::Line);
        let line = Line::of(args);
        if has_line {
            line.try_out()?;
        }
        let reports = args.reports.as_ref().map(|folder| made(folder)).transpose()?;
        let plain = PulseSpec { qemu, stop: stop.flag(), ..PulseSpec::default() };
        let (spec, accel_why) = accelerated(args.accel, plain, keeper)?;
        let rdma = rdma(args);
        Ok(Host { program, reports, line, rdma, spec, version, accel_why, has_line })
    }

    /// What all guests have in common.
    pub fn spec(&self) -> PulseSpec {
        self.spec.clone()
    }

    /// Why a way is not gone here.
    pub fn cannot(&self, way: &Way) -> Option<String> {
        self.rdma.as_ref().err().filter(|_| way.way.is_rdma()).cloned()
    }

    /// Says what is measured on.
    pub fn tell(&self, args: &BenchMemoryArgs) {
        let (downtime, limit) = (args.downtime, args.limit);
        let rdma = self.rdma.as_ref().map_or_else(Clone::clone, |address| format!("at {address}"));
        if args.json {
            line(json!({
                "event": "bench",
                "machine": machine(),
                "qemu": self.version,
                "qemu_program": self.spec.qemu,
                "accelerator": self.spec.accel,
                "accelerator_because": self.accel_why,
                "drover": env!("CARGO_PKG_VERSION"),
                "drover_program": self.program,
                "downtime_ms": downtime.as_secs_f64() * 1e3,
                "limit_s": limit.as_secs_f64(),
                "rounds": args.rounds,
                "line": self.has_line.then(|| self.line.to_string()),
                "rdma": rdma,
                "note": self.note(),
            }));
            return;
        }
        line(format_args!("machine: {}", machine()));
        line(format_args!(
            "QEMU {} ({}), guests run by {} ({})",
            self.version,
            self.spec.qemu.display(),
            self.spec.accel,
            self.accel_why
        ));
        line(format_args!("drover: {}", self.program.display()));
        if let Some(note) = self.note() {
            line(note);
        }
        if self.has_line {
            line(format_args!("the line: {}", self.line));
        }
        line(format_args!("RDMA: {rdma}"));
        line(format_args!(
            "{} ms promised, {} s at most, {} rounds, in turns\n",
            downtime.as_millis(),
            limit.as_secs_f64(),
            args.rounds
        ));
    }

    fn note(&self) -> Option<String> {
        let major: Option<u32> = self.version.split('.').next().and_then(|it| it.parse().ok());
        let is_old = self.spec.accel == "tcg" && major.is_some_and(|major| major < 8);
        is_old.then(|| {
            "note: QEMU before 8.0 loses writes when it migrates under software emulation; its guests may fail their proof".into()
        })
    }
}

/// Programs are started in other folders than this.
fn whole(program: &Path) -> PathBuf {
    match program.parent() {
        Some(folder) if folder != Path::new("") => {
            std::path::absolute(program).unwrap_or_else(|_| program.to_path_buf())
        }
        _ => program.to_path_buf(),
    }
}

/// The version of a QEMU, `10.0.2`.
fn version(qemu: &Path) -> Result<String, Failure> {
    let unusable = |why: String| {
        Failure::new(Exit::Plan, why)
            .advise("install QEMU (apt-get install qemu-system-x86), or name its program by --qemu")
    };
    let asked = Command::new(qemu).arg("--version").stdin(Stdio::null()).output();
    let said = match asked {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(unusable(format!("there is no QEMU: {} is not found", qemu.display())));
        }
        Err(error) => return Err(unusable(format!("{}: {error}", qemu.display()))),
    };
    let version =
        said.split_once("QEMU emulator version ").and_then(|(_, rest)| rest.split_whitespace().next());
    version.map(str::to_string).ok_or_else(|| unusable(format!("{} is no QEMU", qemu.display())))
}

fn program(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(asked) = asked else {
        let own = std::env::current_exe();
        return own
            .map_err(|error| Failure::new(Exit::Internal, format!("this program's own file: {error}")));
    };
    if !asked.is_file() {
        let why = format!("--program: there is no file {}", asked.display());
        return Err(Failure::new(Exit::Usage, why).advise("give the path of another drover"));
    }
    std::path::absolute(asked).map_err(|error| Failure::new(Exit::Usage, format!("--program: {error}")))
}

fn made(folder: &Path) -> Result<PathBuf, Failure> {
    let made = fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
    made.map_err(|error| Failure::new(Exit::Usage, format!("--reports {}: {error}", folder.display())))
}

/// Each guest has two QEMUs, whose memory is all there from the begin on.
fn enough_memory(tables: &[Table], meminfo: &str) -> Result<(), Failure> {
    let needed = |table: &Table| 2 * u64::from(table.guest.number) * (table.guest.memory_mib + QEMU_MIB);
    let Some(most) = tables.iter().max_by_key(|table| needed(table)) else { return Ok(()) };
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|it| it.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    // A kernel that does not tell cannot be asked.
    let Some(available_mib) = available.map(|kib| kib >> 10) else { return Ok(()) };
    if needed(most) <= available_mib {
        return Ok(());
    }
    let each_mib = (available_mib / 2 / u64::from(most.guest.number)).saturating_sub(QEMU_MIB);
    let why = format!(
        "{} x {} MiB and as much again at the target, with their QEMUs, take {} MiB; this host has {available_mib} MiB available",
        most.guest.number,
        most.guest.memory_mib,
        needed(most)
    );
    let advice = match each_mib >= MEMORY_MIB_MIN {
        true => format!(
            "--size {each_mib}m or less with so many guests, fewer --guests, or free memory of this host"
        ),
        false => "fewer --guests, or free memory of this host".to_string(),
    };
    Err(Failure::new(Exit::Plan, why).advise(advice))
}

/// If memory becomes short all the same, the kernel ends what this bench has started before anything else.
pub fn end_first_where_memory_is_short() {
    // Where it may not say so it goes on all the same.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

fn rdma(args: &BenchMemoryArgs) -> Result<std::net::IpAddr, String> {
    if !cards::is_there() {
        return Err(format!("no card on this host ({} has none), not measured", cards::CARDS));
    }
    let address = args.rdma_address.or_else(cards::address);
    address.ok_or_else(|| "no card tells an address: name one by --rdma-address; not measured".to_string())
}

/// What executes guests, seen to do so, and why it is that.
fn accelerated(
    asked: Option<AccelArg>,
    plain: PulseSpec,
    keeper: &Keeper,
) -> Result<(PulseSpec, String), Failure> {
    let tcg = PulseSpec { accel: "tcg".into(), cpu: "qemu64".into(), ..plain };
    let kvm = PulseSpec { accel: "kvm".into(), cpu: "host".into(), ..tcg.clone() };
    let found = Accelerator::detect();
    let is_kvm_tried = match asked {
        Some(asked) => asked == AccelArg::Kvm,
        None => found.accelerator == Accelerator::Kvm,
    };
    let asked_for = || "--accel says so".to_string();
    let mut why = if asked.is_some() { asked_for() } else { found.reason };
    if is_kvm_tried {
        match probe(&kvm, keeper) {
            Ok(()) => return Ok((kvm, why)),
            Err(PulseError::Stopped) => return Err(stopped()),
            Err(error) if asked.is_some() || found.forced => {
                let why = format!("KVM runs no guest here: {}", chain(&error));
                return Err(Failure::new(Exit::Plan, why).advise("see /dev/kvm, or take --accel tcg"));
            }
            Err(error) => why = format!("KVM runs no guest here: {}", chain(&error)),
        }
    }
    match probe(&tcg, keeper) {
        Ok(()) => Ok((tcg, why)),
        Err(PulseError::Stopped) => Err(stopped()),
        Err(error) => {
            let why = format!("{} runs no guest of drover's: {}", tcg.qemu.display(), chain(&error));
            Err(Failure::new(Exit::Plan, why).advise("name another QEMU for x86-64 guests by --qemu"))
        }
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Interrupted, "stopped before anything was begun")
}

/// Runs a small guest until it beats.
fn probe(spec: &PulseSpec, keeper: &Keeper) -> Result<(), PulseError> {
    let spec = PulseSpec { memory_mib: MEMORY_MIB_MIN, pages: PROBE_PAGES, ..spec.clone() };
    let guest = Pulse::start_by(&keeper.folder().join("probe"), &spec, |command| {
        mark(command, keeper.folder());
        command.spawn()
    })?;
    let time = if spec.accel == "kvm" { PROBE_KVM_TIME } else { PROBE_TIME };
    let until = Instant::now() + time;
    while Instant::now() < until {
        if guest.beats_within(PROBE_LOOK) {
            return Ok(());
        }
        if spec.stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(PulseError::Stopped);
        }
    }
    let last = guest.lines().last().map(|line| line.text.clone());
    Err(PulseError::Silent { what: "beat", seconds: time.as_secs(), last })
}

/// Processors and kernel, in words.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} x {}, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cli::{MemoryUse, Pattern, Writes};
    use crate::commands::bench::tables::Guest;

    fn table(number: u16, memory_mib: u64) -> Table {
        let guest = Guest {
            number,
            memory_mib,
            memory: MemoryUse::Once,
            writes: Writes { pages_per_beat: 1 },
            pattern: Pattern::Random,
        };
        Table { guest, place: Place::Here, ways: Vec::new() }
    }

    #[test]
    fn memory_is_needed_twice_for_the_largest_table() {
        let meminfo = "MemTotal: 9 kB\nMemAvailable:    4194304 kB\n";
        assert!(enough_memory(&[table(1, 1024), table(8, 128)], meminfo).is_ok());
        let why = enough_memory(&[table(1, 1024), table(8, 256)], meminfo).unwrap_err();
        assert_eq!(why.exit, Exit::Plan);
        let why = why.to_string();
        assert!(why.contains("8 x 256 MiB") && why.contains("5120 MiB; this host has 4096 MiB"), "{why}");
        assert!(why.contains("--size 192m or less"), "{why}");
        assert!(enough_memory(&[table(8, 192)], meminfo).is_ok());
        let why = enough_memory(&[table(32, 128)], meminfo).unwrap_err().to_string();
        assert!(why.contains("try: fewer --guests"), "{why}");
        assert!(enough_memory(&[table(32, 1024)], "").is_ok());
    }

    #[test]
    fn a_qemu_that_is_none_is_told_with_what_to_try() {
        for (program, word) in [("/no/such/qemu", "is not found"), ("/bin/true", "is no QEMU")] {
            let why = version(Path::new(program)).unwrap_err().to_string();
            assert!(why.contains(word) && why.contains("--qemu"), "{why}");
        }
    }

    #[test]
    fn programs_by_a_path_are_found_from_any_folder() {
        assert_eq!(whole(Path::new("qemu-system-x86_64")), Path::new("qemu-system-x86_64"));
        assert!(whole(Path::new("lab/qemu")).is_absolute());
    }
}
