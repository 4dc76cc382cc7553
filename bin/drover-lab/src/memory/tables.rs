//! What is measured beside what.

use drover_console::Exit;
use drover_pulse::{PulseSpec, pages_max};

use crate::cli::{BenchMemoryArgs, By, MemoryUse, Pattern, Place, Way, Writes};
use crate::failure::Failure;

/// Guests that move one way after the other, in one place.
#[derive(Clone, Debug)]
pub struct Table {
    pub guest: Guest,
    pub place: Place,
    pub ways: Vec<Path>,
}

/// Guests of one kind that move together.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    pub number: u16,
    pub memory_mib: u64,
    pub memory: MemoryUse,
    pub writes: Writes,
    pub pattern: Pattern,
}

/// A way, with what is said of it besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub way: Way,
    /// Of RDMA.
    pub chunk: Option<u64>,
}

/// Pages that an idle guest fills: it has to have some.
const IDLE_PAGES: u32 = 256;

impl Guest {
    /// In words.
    pub fn name(&self) -> String {
        let times = if self.number > 1 { format!("{} x ", self.number) } else { String::new() };
        let what = match self.memory {
            MemoryUse::Idle => "idle".to_string(),
            MemoryUse::Once => "filled once".to_string(),
            MemoryUse::Continuous => {
                let how = if self.pattern == Pattern::Random { "anywhere" } else { "page by page" };
                format!("written to {how} at {:.0} MB/s", self.writes.bytes_per_s() as f64 / 1e6)
            }
        };
        format!("{times}{} MiB, {what}", self.memory_mib)
    }

    /// Sets what it does.
    pub fn of(&self, spec: PulseSpec) -> PulseSpec {
        let pages = pages_max(self.memory_mib);
        let (pages, pages_per_beat) = match self.memory {
            MemoryUse::Idle => (IDLE_PAGES, 0),
            MemoryUse::Once => (pages, 0),
            MemoryUse::Continuous => (pages, self.writes.pages_per_beat),
        };
        let at_random = self.pattern == Pattern::Random;
        PulseSpec { memory_mib: self.memory_mib, pages, pages_per_beat, at_random, ..spec }
    }
}

impl Table {
    pub fn name(&self) -> String {
        format!("{}, {}", self.guest.name(), self.place.words())
    }
}

impl Path {
    pub fn name(&self) -> String {
        let chunk = self.chunk.map(|chunk| format!(", chunks of {} MiB", chunk >> 20)).unwrap_or_default();
        format!("{}{chunk}", self.way)
    }

    /// Congestion control at both ends of the line.
    pub fn congestion(&self) -> &str {
        self.way.congestion.as_deref().unwrap_or("cubic")
    }
}

/// All tables, in the order in which they are measured.
pub fn tables(args: &BenchMemoryArgs) -> Result<Vec<Table>, Failure> {
    let places = places(args)?;
    nothing_in_vain(args)?;
    let ways: Vec<(Place, Vec<Path>)> =
        places.into_iter().map(|place| Ok((place, ways(args, place)))).collect::<Result<_, Failure>>()?;
    if let Some((place, _)) = ways.iter().find(|(_, ways)| ways.is_empty()) {
        let why = format!("no --way is one for --place {}", place.word());
        return Err(Failure::new(Exit::Usage, why)
            .advise("name one there: those with @ are of the line, those by RDMA of this host"));
    }
    if !ways.iter().any(|(_, ways)| ways.iter().any(|path| path.way.is_rdma())) {
        let asked = [(!args.chunks.is_empty(), "--chunk"), (args.rdma_address.is_some(), "--rdma-address")];
        if let Some((_, name)) = asked.iter().find(|(is_asked, _)| *is_asked) {
            let why = format!("{name} is of ways by RDMA, and none of these is one");
            return Err(in_vain(why, format!("add --way rdma,drover-rdma, or leave {name} away")));
        }
    }
    let mut tables = Vec::new();
    for guest in guests(args) {
        for (place, ways) in &ways {
            tables.push(Table { guest, place: *place, ways: ways.clone() });
        }
    }
    Ok(tables)
}

/// Refuses what would say nothing of the guests that are asked for.
fn nothing_in_vain(args: &BenchMemoryArgs) -> Result<(), Failure> {
    let is_continuous = args.memory.contains(&MemoryUse::Continuous);
    let asked = [(args.writes.is_some(), "--writes"), (!args.patterns.is_empty(), "--pattern")];
    if let Some((_, name)) = asked.iter().find(|(is_asked, _)| *is_asked && !is_continuous) {
        let why = format!("{name} is of continuous guests, and none of these is one");
        return Err(in_vain(why, format!("add --memory continuous, or leave {name} away")));
    }
    if args.at_once.is_some() && args.guests.iter().all(|number| *number == 1) {
        let why = "--at-once is of several guests, and only one moves";
        return Err(in_vain(why, "add --guests 8, or leave --at-once away"));
    }
    Ok(())
}

fn in_vain(why: impl Into<String>, advice: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, why).advise(advice)
}

fn places(args: &BenchMemoryArgs) -> Result<Vec<Place>, Failure> {
    let is_line_described = args.rate.is_some() || args.rtt.is_some() || args.loss.is_some();
    let places = match (args.places.is_empty(), is_line_described) {
        (true, true) => vec![Place::Line],
        (true, false) => vec![Place::Here],
        (false, _) => without_doubles(&args.places),
    };
    if is_line_described && !places.contains(&Place::Line) {
        return Err(Failure::new(
            Exit::Usage,
            "--rate, --rtt and --loss are of the line, which is not asked for",
        )
        .advise("add --place line, or --place here,line"));
    }
    Ok(places)
}

fn guests(args: &BenchMemoryArgs) -> Vec<Guest> {
    let patterns = if args.patterns.is_empty() { &[Pattern::Random][..] } else { &args.patterns };
    let writes = args.writes.unwrap_or_default();
    let mut guests = Vec::new();
    for number in without_doubles(&args.guests) {
        for memory_mib in without_doubles(&args.sizes_mib) {
            for memory in without_doubles(&args.memory) {
                // What writes nothing writes it in no order.
                let all = if memory == MemoryUse::Continuous { patterns } else { &patterns[..1] };
                for pattern in without_doubles(all) {
                    guests.push(Guest { number, memory_mib, memory, writes, pattern });
                }
            }
        }
    }
    guests
}

fn ways(args: &BenchMemoryArgs, place: Place) -> Vec<Path> {
    let ways = if args.ways.is_empty() { usual(place) } else { without_doubles(&args.ways) };
    let is_of_place = |way: &Way| match place {
        Place::Here => way.congestion.is_none(),
        Place::Line => !way.is_rdma(),
    };
    let mut paths = Vec::new();
    for way in ways.into_iter().filter(is_of_place) {
        match &args.chunks[..] {
            chunks @ [_, ..] if way.is_rdma() => {
                let path = |chunk| Path { way: way.clone(), chunk: Some(chunk) };
                paths.extend(without_doubles(chunks).into_iter().map(path));
            }
            _ => paths.push(Path { way, chunk: None }),
        }
    }
    paths
}

fn usual(place: Place) -> Vec<Way> {
    let qemu = |channels, tls| By::Qemu { channels, tls };
    let with = |by, congestion: Option<&str>| Way { by, congestion: congestion.map(str::to_string) };
    match place {
        Place::Here => {
            let drover = By::Drover { channels: None };
            let (rdma, drover_rdma) = (By::Rdma { is_drover: false }, By::Rdma { is_drover: true });
            let mut all = vec![
                qemu(1, false),
                qemu(2, false),
                qemu(4, false),
                drover,
                qemu(1, true),
                qemu(4, true),
                By::Link,
            ];
            if super::cards::is_there() {
                all.extend([rdma, drover_rdma]);
            }
            all.into_iter().map(|by| with(by, None)).collect()
        }
        Place::Line => vec![
            with(qemu(1, false), None),
            with(qemu(4, false), Some("bbr")),
            with(qemu(16, false), Some("bbr")),
            with(By::Link, None),
        ],
    }
}

fn without_doubles<T: Clone + PartialEq>(all: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for one in all {
        if !kept.contains(one) {
            kept.push(one.clone());
        }
    }
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};

    fn args(words: &str) -> BenchMemoryArgs {
        let words = ["drover-lab", "bench", "memory"].into_iter().chain(words.split_whitespace());
        let Command::Bench { command: BenchCommand::Memory(args) } =
            Cli::try_parse_from(words).unwrap().command
        else {
            panic!("another command")
        };
        *args
    }

    fn names(words: &str) -> Vec<String> {
        tables(&args(words)).unwrap().iter().map(Table::name).collect()
    }

    fn ways_of(words: &str) -> Vec<Vec<String>> {
        let ways = |table: &Table| table.ways.iter().map(Path::name).collect();
        tables(&args(words)).unwrap().iter().map(ways).collect()
    }

    #[test]
    fn guests_are_all_that_was_asked_for_once_each() {
        assert_eq!(
            names("--size 128m,1g,128m --guests 1,8 --memory once"),
            [
                "128 MiB, filled once, on loopback",
                "1024 MiB, filled once, on loopback",
                "8 x 128 MiB, filled once, on loopback",
                "8 x 1024 MiB, filled once, on loopback",
            ]
        );
        assert_eq!(
            names("--size 64m --memory idle,continuous --pattern random,sequential --writes 8MB/s"),
            [
                "64 MiB, idle, on loopback",
                "64 MiB, written to anywhere at 8 MB/s, on loopback",
                "64 MiB, written to page by page at 8 MB/s, on loopback",
            ]
        );
    }

    #[test]
    fn lists_grow_and_what_is_one_thing_is_the_last_that_is_said() {
        let names = names("--size 64m --memory once --size 32m --rounds 2 --rounds 3");
        assert_eq!(names, ["64 MiB, filled once, on loopback", "32 MiB, filled once, on loopback"]);
        assert_eq!(args("--rounds 2 --rounds 3 --qemu a --qemu b").rounds, 3);
    }

    #[test]
    fn the_line_is_there_where_it_is_asked_for_or_described() {
        let one = "--size 64m --memory idle";
        assert!(names(&format!("{one} --rtt 20ms"))[0].ends_with("over the line"));
        assert_eq!(names(&format!("{one} --place here,line")).len(), 2);
        let why = tables(&args(&format!("{one} --place here --loss 1%"))).unwrap_err();
        assert_eq!(why.exit, Exit::Usage);
        assert!(why.to_string().contains("--place line"), "{why}");
    }

    #[test]
    fn what_would_say_nothing_is_refused_with_what_to_do() {
        let one = "--size 64m --memory once --way tcp";
        for (words, name, advice) in [
            ("--chunk 1m", "--chunk", "--way rdma"),
            ("--rdma-address 10.0.0.2", "--rdma-address", "--way rdma"),
            ("--at-once 2", "--at-once", "--guests"),
            ("--writes 8MB/s", "--writes", "--memory continuous"),
            ("--pattern random", "--pattern", "--memory continuous"),
        ] {
            let why = tables(&args(&format!("{one} {words}"))).unwrap_err();
            assert_eq!(why.exit, Exit::Usage, "{words}");
            let why = why.to_string();
            assert!(why.contains(&format!("error: {name} is of")) && why.contains(advice), "{why}");
        }
        for words in [
            "--way rdma --chunk 1m --rdma-address 10.0.0.2",
            "--at-once 2 --guests 1,8",
            "--memory idle,continuous --writes 8MB/s --pattern random",
        ] {
            assert!(tables(&args(&format!("{one} {words}"))).is_ok(), "{words}");
        }
    }

    #[test]
    fn ways_go_where_they_can() {
        let one = "--size 64m --memory idle --place here,line --way";
        assert_eq!(
            ways_of(&format!("{one} tcp,multifd:4@bbr,link")),
            [vec!["tcp", "link"], vec!["tcp", "multifd:4@bbr", "link"]]
        );
        let why = tables(&args("--way tcp@bbr")).unwrap_err();
        assert!(why.to_string().contains("no --way is one for --place here"), "{why}");
        let chunks = ways_of("--size 64m --memory idle --way tcp,rdma --chunk 1m,32m");
        assert_eq!(chunks, [["tcp", "rdma, chunks of 1 MiB", "rdma, chunks of 32 MiB"]]);
    }
}
