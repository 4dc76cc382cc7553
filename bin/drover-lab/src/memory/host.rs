//! Whether this host can do what is asked, before anything is begun.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drover_child::Kind;
use drover_console::Exit;
use drover_console::out::line;
use drover_live::{LOSES_WRITES, loses_writes};
use drover_mover::StopSignal;
use drover_pulse::{MEMORY_MIB_MIN, Pulse, PulseError, PulseSpec};
use drover_qemu::Accelerator;
use drover_types::chain;
use serde_json::json;

use super::cards;
use super::ground::Line;
use super::keeper::{Keeper, mark};
use super::ours::Running;
use super::tables::{Path as Way, Table};
use crate::cli::{AccelArg, BenchMemoryArgs, Place};
use crate::failure::Failure;

/// What guests run on here, and where they go.
#[derive(Debug)]
pub struct Host {
    /// The drover that moves guests.
    pub program: PathBuf,
    program_version: String,
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
/// What this host keeps free for all else, or [`FREE_SHARE`] where that is more.
const FREE_MIB: u64 = 512;
/// One part in so many of its memory.
const FREE_SHARE: u64 = 10;
/// A program tells its version by then.
const VERSION_TIME: Duration = Duration::from_secs(30);
const VERSION_BYTES_MAX: u64 = 64 << 10;
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
        let asker = Asker { keeper, stop, time: VERSION_TIME };
        let (program, program_version) = program(args.program.as_deref(), &asker)?;
        let qemu = whole(&args.qemu);
        let version = version(&qemu, &asker)?;
        enough_memory(tables, Room::here())?;
        let has_line = tables.iter().any(|table| table.place == Place::Line);
        let line = Line::of(args);
        for congestion in congestions(tables) {
            line.try_out(congestion)?;
        }
        let reports = args.reports.as_ref().map(|folder| made(folder)).transpose()?;
        let plain = PulseSpec { qemu, stop: stop.flag(), ..PulseSpec::default() };
        let (spec, accel_why) = accelerated(args.accel, plain, keeper)?;
        let rdma = rdma(args);
        Ok(Host { program, program_version, reports, line, rdma, spec, version, accel_why, has_line })
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
            drover_console::out::json(json!({
                "event": "bench",
                "machine": machine(),
                "qemu": self.version,
                "qemu_program": self.spec.qemu,
                "accelerator": self.spec.accel,
                "accelerator_because": self.accel_why,
                "drover": self.program_version,
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
        line(format_args!("drover {} ({})", self.program_version, self.program.display()));
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
        loses_writes(&self.version, self.spec.accel == "tcg")
            .then(|| format!("note: {LOSES_WRITES}; its guests may fail their proof"))
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

/// Congestion controls of all ways over the line, once each.
fn congestions(tables: &[Table]) -> BTreeSet<&str> {
    let of_line = tables.iter().filter(|table| table.place == Place::Line);
    of_line.flat_map(|table| table.ways.iter().map(Way::congestion)).collect()
}

/// If memory becomes short all the same, the kernel ends what this bench has started before anything else.
pub fn end_first_where_memory_is_short() {
    // Where it may not say so it goes on all the same.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

/// Asks programs what they are.
struct Asker<'a> {
    keeper: &'a Keeper,
    stop: &'a StopSignal,
    time: Duration,
}

/// Why a program did not tell what it is.
#[derive(Debug)]
enum Unasked {
    Missing,
    Failed(String),
    Stopped,
}

impl Asker<'_> {
    /// What a program says; one that hangs is ended.
    fn hear(&self, command: &mut Command) -> Result<String, Unasked> {
        let failed = |error: std::io::Error| Unasked::Failed(error.to_string());
        let said = self.keeper.folder().join("version");
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(fs::File::create(&said).map_err(failed)?);
        mark(command, self.keeper.folder());
        let mut running = match command.spawn() {
            Ok(child) => Running(child),
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Unasked::Missing),
            Err(error) => return Err(failed(error)),
        };
        let ended = running.ended(self.time, self.stop, |_| {});
        if self.stop.is_set() {
            return Err(Unasked::Stopped);
        }
        ended.map_err(|error| Unasked::Failed(format!("asked for its version, {error}")))?;
        let mut bytes = Vec::new();
        let said = fs::File::open(&said).map_err(failed)?;
        said.take(VERSION_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The version of a QEMU, `10.0.2`.
fn version(qemu: &Path, asker: &Asker<'_>) -> Result<String, Failure> {
    let unusable = |why: String| {
        Failure::new(Exit::Plan, why)
            .advise("install QEMU (apt-get install qemu-system-x86), or name its program by --qemu")
    };
    let said = match asker.hear(drover_child::command(qemu, Kind::Plain).arg("--version")) {
        Ok(said) => said,
        Err(Unasked::Stopped) => return Err(stopped()),
        Err(Unasked::Missing) => {
            return Err(unusable(format!("there is no QEMU: {} is not found", qemu.display())));
        }
        Err(Unasked::Failed(why)) => return Err(unusable(format!("{}: {why}", qemu.display()))),
    };
    let version = word_after(&said, "QEMU emulator version ");
    version.ok_or_else(|| unusable(format!("{} is no QEMU", qemu.display())))
}

fn word_after(said: &str, words: &str) -> Option<String> {
    said.split_once(words)?.1.split_whitespace().next().map(str::to_string)
}

/// The drover that moves guests, and its version.
fn program(asked: Option<&Path>, asker: &Asker<'_>) -> Result<(PathBuf, String), Failure> {
    let unusable = |why: String| match asked {
        Some(_) => {
            Failure::new(Exit::Usage, format!("--program: {why}")).advise("give the path of another drover")
        }
        None => Failure::new(Exit::Plan, why).advise("install drover, or name its file by --program"),
    };
    let path = match asked {
        Some(asked) => std::path::absolute(asked).map_err(|error| unusable(error.to_string()))?,
        None => installed(),
    };
    let said = match asker.hear(drover_child::command(&path, Kind::Plain).arg("--version")) {
        Ok(said) => said,
        Err(Unasked::Stopped) => return Err(stopped()),
        Err(Unasked::Missing) => return Err(unusable(format!("{} is not found", path.display()))),
        Err(Unasked::Failed(why)) => return Err(unusable(format!("{}: {why}", path.display()))),
    };
    let version = said.strip_prefix("drover ").and_then(|_| word_after(&said, "drover "));
    let version = version.ok_or_else(|| unusable(format!("{} is no drover", path.display())))?;
    Ok((path, version))
}

/// The drover beside this program, else the one that a shell would find.
fn installed() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("drover")).ok();
    beside.filter(|it| it.is_file()).unwrap_or_else(|| PathBuf::from("drover"))
}

fn made(folder: &Path) -> Result<PathBuf, Failure> {
    let made = fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
    made.map_err(|error| Failure::new(Exit::Usage, format!("--reports {}: {error}", folder.display())))
}

/// Memory that guests may take.
struct Room {
    mib: u64,
    /// Who has it, and what is kept.
    of: String,
}

impl Room {
    /// Nothing where the kernel does not tell.
    fn here() -> Option<Room> {
        let host = Room::of_host(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let groups = Path::new(CGROUPS).join(own);
        let groups = groups.ancestors().filter(|group| group.starts_with(CGROUPS));
        // A limit above counts for all below.
        host.into_iter().chain(groups.filter_map(Room::of_group)).min_by_key(|room| room.mib)
    }

    fn of_host(meminfo: &str) -> Option<Room> {
        let mib = |what: &str| {
            let kib = meminfo.lines().find_map(|line| line.strip_prefix(what))?.trim().strip_suffix(" kB")?;
            kib.trim().parse::<u64>().ok().map(|kib| kib >> 10)
        };
        let available = mib("MemAvailable:")?;
        let kept = FREE_MIB.max(mib("MemTotal:").unwrap_or_default() / FREE_SHARE);
        let of = format!("this host has {available} MiB available, of which {kept} are kept free");
        Some(Room { mib: available.saturating_sub(kept), of })
    }

    /// Nothing where it has no limit.
    fn of_group(group: &Path) -> Option<Room> {
        let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let (most, now) = (number("memory.max")?, number("memory.current")?);
        // What was read and not used again goes where others want memory, as in what the host has available.
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
        let mib = most.saturating_sub(now.saturating_sub(cached.unwrap_or_default())) >> 20;
        let of = format!("the control group {} has {mib} MiB left of its {}", group.display(), most >> 20);
        Some(Room { mib, of })
    }
}

/// Where version 2 of them is.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Each guest has two QEMUs, whose memory is all there from the begin on.
fn enough_memory(tables: &[Table], room: Option<Room>) -> Result<(), Failure> {
    let needed = |table: &Table| 2 * u64::from(table.guest.number) * (table.guest.memory_mib + QEMU_MIB);
    // A kernel that does not tell cannot be asked.
    let (Some(most), Some(room)) = (tables.iter().max_by_key(|table| needed(table)), room) else {
        return Ok(());
    };
    if needed(most) <= room.mib {
        return Ok(());
    }
    let each_mib = (room.mib / 2 / u64::from(most.guest.number)).saturating_sub(QEMU_MIB);
    let why = format!(
        "{} x {} MiB and as much again at the target, with their QEMUs, take {} MiB; {}",
        most.guest.number,
        most.guest.memory_mib,
        needed(most),
        room.of
    );
    let advice = match each_mib >= MEMORY_MIB_MIN {
        true => format!("--size {each_mib}m or less with so many guests, fewer --guests, or free memory"),
        false => "fewer --guests, or free memory".to_string(),
    };
    Err(Failure::new(Exit::Plan, why).advise(advice))
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
pub fn machine() -> String {
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
    use crate::memory::tables::Guest;

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
        let room = || Room::of_host("MemTotal: 9 kB\nMemAvailable:    4718592 kB\n");
        assert!(enough_memory(&[table(1, 1024), table(8, 128)], room()).is_ok());
        let why = enough_memory(&[table(1, 1024), table(8, 256)], room()).unwrap_err();
        assert_eq!(why.exit, Exit::Plan);
        let why = why.to_string();
        assert!(why.contains("8 x 256 MiB") && why.contains("5120 MiB; this host has 4608 MiB"), "{why}");
        assert!(why.contains("--size 192m or less"), "{why}");
        assert!(enough_memory(&[table(8, 192)], room()).is_ok());
        assert!(enough_memory(&[table(8, 193)], room()).is_err());
        let why = enough_memory(&[table(32, 128)], room()).unwrap_err().to_string();
        assert!(why.contains("try: fewer --guests"), "{why}");
        assert!(enough_memory(&[table(32, 1024)], Room::of_host("")).is_ok());
    }

    #[test]
    fn a_host_keeps_a_tenth_of_its_memory_or_512_mib() {
        let mib = |total: u64, available: u64| {
            let meminfo = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", total << 10, available << 10);
            Room::of_host(&meminfo).unwrap().mib
        };
        assert_eq!([mib(2000, 1000), mib(20_000, 10_000), mib(2000, 100)], [488, 8000, 0]);
    }

    #[test]
    fn a_control_group_has_room_up_to_its_limit() {
        let group = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(group.path().join(file), text).unwrap();
        assert!(Room::of_group(group.path()).is_none());
        write("memory.max", "max\n");
        write("memory.current", "1073741824\n");
        assert!(Room::of_group(group.path()).is_none());
        write("memory.max", "3221225472\n");
        assert_eq!(Room::of_group(group.path()).unwrap().mib, 2048);
        write("memory.stat", "anon 5\ninactive_file 524288000\n");
        assert_eq!(Room::of_group(group.path()).unwrap().mib, 2548);
        write("memory.stat", "");
        let why = enough_memory(&[table(1, 1024)], Room::of_group(group.path())).unwrap_err().to_string();
        assert!(why.contains("take 2176 MiB; the control group") && why.contains("2048 MiB left"), "{why}");
    }

    #[test]
    fn congestion_controls_are_those_of_all_ways_over_the_line() {
        let way = |name: &str| Way { way: name.parse().unwrap(), chunk: None };
        let ways = ["link@bbr", "tcp", "multifd:4@bbr"].map(way).to_vec();
        let line = Table { place: Place::Line, ways, ..table(1, 64) };
        let here = Table { ways: vec![way("tcp")], ..table(1, 64) };
        assert_eq!(congestions(&[here.clone(), line]), BTreeSet::from(["bbr", "cubic"]));
        assert!(congestions(&[here]).is_empty());
    }

    #[test]
    fn a_qemu_that_is_none_is_told_with_what_to_try() {
        let (keeper, stop) = (Keeper::start().unwrap(), StopSignal::default());
        let asker = Asker { keeper: &keeper, stop: &stop, time: VERSION_TIME };
        for (program, word) in [("/no/such/qemu", "is not found"), ("/bin/true", "is no QEMU")] {
            let why = version(Path::new(program), &asker).unwrap_err().to_string();
            assert!(why.contains(word) && why.contains("--qemu"), "{why}");
        }
        for (file, word) in [("/no/such/drover", "is not found"), ("/bin/true", "is no drover")] {
            let why = program(Some(Path::new(file)), &asker).unwrap_err();
            assert_eq!(why.exit, Exit::Usage);
            assert!(why.to_string().contains(word), "{why}");
        }
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_so_it_is_where_the_bench_is_stopped() {
        let (keeper, stop) = (Keeper::start().unwrap(), StopSignal::default());
        let asker = Asker { keeper: &keeper, stop: &stop, time: Duration::from_millis(20) };
        let hear = |asker: &Asker<'_>| asker.hear(Command::new("sleep").arg("600"));
        assert!(matches!(hear(&asker), Err(Unasked::Failed(why)) if why.contains("did not end")));
        stop.stop();
        let asker = Asker { time: VERSION_TIME, ..asker };
        assert!(matches!(hear(&asker), Err(Unasked::Stopped)));
        let stop = StopSignal::default();
        let asker = Asker { stop: &stop, ..asker };
        assert_eq!(asker.hear(Command::new("echo").arg("drover 1.2.3")).unwrap(), "drover 1.2.3\n");
    }

    #[test]
    fn programs_by_a_path_are_found_from_any_folder() {
        assert_eq!(whole(Path::new("qemu-system-x86_64")), Path::new("qemu-system-x86_64"));
        assert!(whole(Path::new("lab/qemu")).is_absolute());
    }
}
