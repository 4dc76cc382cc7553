//! `drover-lab bench`.

mod ways;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use drover_pulse::{BEATS_PER_SECOND, MEMORY_MIB_MAX, MEMORY_MIB_MIN, PAGE_BYTES};
use drover_types::Bytes;
use drover_types::units::{Rate, Share, size, time};

pub use ways::{By, Way};

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Move guests that write to their memory, by QEMU and by drover
    Memory(Box<BenchMemoryArgs>),
    /// In a clone: drover beside curl, nbdcopy and qemu-img
    Copy,
    /// In a clone: passes of warm migrations, and many disks
    Warm,
    /// In a clone: 5,000 VMs in the simulator
    Fleet,
    /// In a clone: `drover relay` beside socat and haproxy
    Relay,
    /// In a clone: what programs get out of a long, lossy line
    Wan,
}

const AFTER: &str = "\
Guests are drover's own: no operating system, a hundred beats a second that are heard from outside, memory that is filled and written to at a \
set rate and proven after each move. Each way of a table is gone in turns, with two new QEMUs for each guest whose memory is there beforehand: \
that much memory has to be free twice. Lists grow where an option is given again; else the last one counts.

Ways:
  tcp, multifd:N             QEMU alone, over one connection or N (told as \"direct\")
  tls, tls-multifd:N         the same, encrypted by QEMU
  drover, drover:N           `drover live`, with as many connections as it chooses, or N
  link                       `drover live --via`, over the encrypted link to an agent that is started for it
  chosen                     the same with `--or-direct`: over the link or past it, unencrypted, as it finds better; told in its row
  rdma, drover-rdma          QEMU alone, and `drover live`, by RDMA; needs a card
  WAY@bbr                    on the line: with that congestion control at both ends [default: cubic]
  default here: tcp,multifd:2,multifd:4,drover,tls,tls-multifd:4,link, and rdma,drover-rdma where there is a card
  default on the line: tcp,multifd:4@bbr,multifd:16@bbr,link

Ends with 0 if every way was measured, given up at --limit or refused by drover's promise, 7 if a move failed, 9 if a guest's memory was not what it was, 3 if this host \
cannot do it; Ctrl-C (130) leaves nothing behind. See docs/dev/bench.md.

Examples:
  drover-lab bench memory
  drover-lab bench memory --size 1g --memory once --way tcp,multifd:4,drover,link --rounds 5
  drover-lab bench memory --size 128m --guests 1,8 --memory continuous --writes 30MB/s --pattern random,sequential
  drover-lab bench memory --place line --rate 1g --rtt 55ms --loss 0.5% --limit 60s   # as root
  drover-lab bench memory --way tcp,rdma --chunk 1m,32m,1g --rdma-address 10.0.0.2 --json";

#[derive(Debug, Args)]
#[command(after_help = AFTER, args_override_self = true)]
pub struct BenchMemoryArgs {
    /// Memory of each guest [default: 256m,1g]
    #[arg(long = "size", value_delimiter = ',', default_values = ["256m", "1g"], hide_default_value = true, value_parser = memory_mib, value_name = "SIZE,...")]
    pub sizes_mib: Vec<u64>,
    /// How many guests move together; QEMU alone moves all at once
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=i64::from(GUESTS_MAX)), value_name = "N,...")]
    pub guests: Vec<u16>,
    /// What guests do with their memory [default: all of these]
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["idle", "once", "continuous"], hide_default_value = true, value_name = "WHAT,...")]
    pub memory: Vec<MemoryUse>,
    /// Dirty rate of each continuous guest, in pages of 4 KiB: 50MB/s, 1.5GB/s [default: 50MB/s]
    #[arg(long, value_parser = writes, value_name = "RATE")]
    pub writes: Option<Writes>,
    /// Which pages continuous guests write to [default: random]
    #[arg(long = "pattern", value_enum, value_delimiter = ',', value_name = "HOW,...")]
    pub patterns: Vec<Pattern>,
    /// Ways to move, see below
    #[arg(long = "way", value_delimiter = ',', value_name = "WAY,...")]
    pub ways: Vec<Way>,
    /// Chunk sizes for ways by RDMA, each a row of its own (powers of two, 1m to 1g; QEMU 11.1 and later) [default: QEMU's]
    #[arg(long = "chunk", value_delimiter = ',', value_parser = chunk, value_name = "SIZE,...")]
    pub chunks: Vec<u64>,
    /// Address of this host's RDMA card [default: the first IPv4 address that a card tells]
    #[arg(long, value_name = "ADDRESS")]
    pub rdma_address: Option<IpAddr>,
    /// Where guests move [default: here; line, where --rate, --rtt or --loss is given]
    #[arg(long = "place", value_enum, value_delimiter = ',', value_name = "PLACE,...")]
    pub places: Vec<Place>,
    /// Of the line: bits per second [default: 1g]
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Of the line: round trip [default: 55ms]
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub rtt: Option<Duration>,
    /// Of the line: share of the packets that are lost in each direction [default: 0.5%]
    #[arg(long, value_name = "SHARE")]
    pub loss: Option<Share>,
    /// Moves of each way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    pub rounds: u16,
    /// Longest downtime, 1ms to 2000s, also for QEMU alone
    #[arg(long, default_value = "300ms", value_parser = downtime, value_name = "TIME")]
    pub downtime: Duration,
    /// Time after which a move is cancelled and reported by its rate; at least 1s
    #[arg(long, default_value = "120s", value_parser = limit, value_name = "TIME")]
    pub limit: Duration,
    /// Of several guests: at most so many of drover's send at a time [default: as drover chooses]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub at_once: Option<u16>,
    /// QEMU that guests move between
    #[arg(long, default_value = "qemu-system-x86_64", value_name = "PROGRAM")]
    pub qemu: PathBuf,
    /// What executes guests [default: kvm where it works, else tcg]
    #[arg(long, value_enum)]
    pub accel: Option<AccelArg>,
    /// Drover to measure [default: the one beside this program, else the one in PATH]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Keep the reports (JSON) of drover's moves in this folder
    #[arg(long, value_name = "FOLDER")]
    pub reports: Option<PathBuf>,
    /// Print one JSON object per line: `bench`, then a `run` for each move and a `row` for each way
    #[arg(long)]
    pub json: bool,
}

/// Guests that move together: each has two QEMUs.
pub const GUESTS_MAX: u16 = 32;

/// What a guest does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryUse {
    /// Hardly any of it was ever touched
    Idle,
    /// All of it was filled once
    Once,
    /// All of it was filled, and is written to at --writes
    Continuous,
}

impl MemoryUse {
    pub fn word(self) -> &'static str {
        match self {
            MemoryUse::Idle => "idle",
            MemoryUse::Once => "once",
            MemoryUse::Continuous => "continuous",
        }
    }
}

/// Which pages a guest writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Anywhere
    Random,
    /// One after the other
    Sequential,
}

impl Pattern {
    pub fn word(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        }
    }
}

/// Where guests move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// Over this host's loopback
    Here,
    /// Over an emulated long line, as root
    Line,
}

impl Place {
    pub fn word(self) -> &'static str {
        match self {
            Place::Here => "here",
            Place::Line => "line",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Place::Here => "on loopback",
            Place::Line => "over the line",
        }
    }
}

/// What executes guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccelArg {
    /// The processor
    Kvm,
    /// Software emulation
    Tcg,
}

/// How much a guest writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    pub pages_per_beat: u32,
}

impl Default for Writes {
    /// 50 MB/s.
    fn default() -> Writes {
        Writes { pages_per_beat: 122 }
    }
}

impl Writes {
    pub fn bytes_per_s(self) -> u64 {
        u64::from(self.pages_per_beat) * PAGE_BYTES * BEATS_PER_SECOND
    }
}

/// `1g`, `256m`.
fn memory_mib(text: &str) -> Result<u64, String> {
    let mib = whole_mib(text)?;
    if mib < MEMORY_MIB_MIN {
        return Err(format!("a guest has {MEMORY_MIB_MIN}m at least"));
    }
    if mib > MEMORY_MIB_MAX {
        return Err(format!(
            "a guest has {}g at most; for more memory in all, move several (--guests)",
            MEMORY_MIB_MAX >> 10
        ));
    }
    Ok(mib)
}

fn whole_mib(text: &str) -> Result<u64, String> {
    let whole = text.parse::<Bytes>().ok().filter(|bytes| bytes.0.is_multiple_of(1 << 20));
    whole.map(|bytes| bytes.0 >> 20).ok_or_else(|| "write whole MiB or GiB: 256m, 1.5g".to_string())
}

/// The smallest rate: one page at each beat.
const WRITES_MIN: u64 = PAGE_BYTES * BEATS_PER_SECOND;
/// More than any machine's memory takes from one processor.
const WRITES_MAX: u64 = 100_000_000_000;

/// `50MB/s`, `1.5GB/s`: decimal, as rates are.
fn writes(text: &str) -> Result<Writes, String> {
    const FORM: &str = "write bytes per second: 50MB/s, 1.5GB/s";
    let lower = text.trim().to_ascii_lowercase();
    let (number, factor) = [("kb/s", 1e3), ("mb/s", 1e6), ("gb/s", 1e9)]
        .iter()
        .find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?.trim_end(), factor)))
        .ok_or(FORM)?;
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let bytes = number.parse::<f64>().ok().filter(|_| is_plain).ok_or(FORM)? * factor;
    if bytes < WRITES_MIN as f64 {
        return Err("0.41MB/s at least: a page of 4 KiB at each of a hundred beats a second".to_string());
    }
    if bytes > WRITES_MAX as f64 {
        return Err(format!("{}GB/s at most", WRITES_MAX / 1_000_000_000));
    }
    // The cast: some 240,000 pages at most.
    Ok(Writes { pages_per_beat: (bytes / WRITES_MIN as f64) as u32 })
}

/// QEMU's own bounds.
const DOWNTIME: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(2000);

fn downtime(text: &str) -> Result<Duration, String> {
    let time = time(text).map_err(|error| error.to_string())?;
    match DOWNTIME.contains(&time) {
        true => Ok(time),
        false => Err("QEMU takes 1ms to 2000s".to_string()),
    }
}

/// Drover gives up half a second before its deadline.
const LIMIT_MIN: Duration = Duration::from_secs(1);

fn limit(text: &str) -> Result<Duration, String> {
    let time = time(text).map_err(|error| error.to_string())?;
    if time < LIMIT_MIN {
        return Err("a way has 1s at least".to_string());
    }
    Ok(time)
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size(text).map_err(|error| error.to_string())?;
    if bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes) {
        return Ok(bytes);
    }
    Err("a chunk is a power of two from 1m to 1g".to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_mib_that_a_guest_can_fill() {
        assert_eq!([memory_mib("256m"), memory_mib("1G"), memory_mib("16m")], [Ok(256), Ok(1024), Ok(16)]);
        let why = |text| memory_mib(text).unwrap_err();
        assert_eq!(memory_mib("64g"), Ok(65_536));
        assert!(why("15m").contains("16m at least"));
        assert!(why("65g").contains("64g at most; for more memory in all, move several (--guests)"));
        for bad in ["1500k", "1.3g", "1024", "big", "-1m", "", "99999999999999m"] {
            assert!(why(bad).contains("whole MiB"), "{bad}");
        }
    }

    #[test]
    fn rates_of_writing_are_bytes_a_second_in_whole_pages() {
        assert_eq!(writes("50MB/s"), Ok(Writes::default()));
        assert_eq!(writes("410 kb/s"), Ok(Writes { pages_per_beat: 1 }));
        assert_eq!(writes("1.5GB/s").map(Writes::bytes_per_s), Ok(1_499_955_200));
        for bad in ["50", "50m", "MB/s", "-1MB/s", "1e3MB/s", ""] {
            assert!(writes(bad).unwrap_err().contains("50MB/s"), "{bad}");
        }
        assert!(writes("0.1MB/s").unwrap_err().contains("at least"));
        assert!(writes("1000GB/s").unwrap_err().contains("100GB/s at most"));
    }

    #[test]
    fn times_are_such_as_qemu_and_drover_can_keep() {
        assert_eq!(downtime("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(downtime("2000s"), Ok(Duration::from_secs(2000)));
        for bad in ["0s", "999us", "2001s"] {
            assert_eq!(downtime(bad), Err("QEMU takes 1ms to 2000s".into()), "{bad}");
        }
        assert!(downtime("soon").is_err() && limit("soon").is_err());
        assert_eq!([limit("1s"), limit("20m")], [Ok(LIMIT_MIN), Ok(LIMIT_MIN * 1200)]);
        assert!(limit("999ms").unwrap_err().contains("1s at least"));
    }

    #[test]
    fn chunks_are_powers_of_two() {
        assert_eq!([chunk("1m"), chunk("1g")], [Ok(1 << 20), Ok(1 << 30)]);
        for bad in ["3m", "512k", "2g", "x"] {
            assert!(chunk(bad).is_err(), "{bad}");
        }
    }
}
