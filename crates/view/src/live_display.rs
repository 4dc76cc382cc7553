use std::time::Duration;

use drover_live::MirrorState;
use drover_types::{Bytes, Rate};

use crate::frame::bar;
use crate::in_place::{InLines, InPlace};
use crate::text::{estimate, percent};

/// A live move, as of its latest news.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveNow {
    /// Disks that are copied, by name.
    pub disks: Vec<(String, MirrorState)>,
    /// Memory, once it is on its way.
    pub memory: Option<LiveMemoryNow>,
    /// What is foreseen, once that is known.
    pub foreseen: Option<LiveForeseen>,
}

/// Memory on its way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveMemoryNow {
    /// What goes on beyond sending, in words; else empty.
    pub state: String,
    /// The guest's memory.
    pub all_bytes: u64,
    /// Bytes left in this pass.
    pub left_bytes: u64,
    /// Bytes sent in all passes.
    pub sent_bytes: u64,
    /// Passes begun.
    pub pass: u64,
    /// Bytes a second that are sent; nothing before the first second.
    pub rate: Option<f64>,
    /// Bytes a second of pages that are written to.
    pub dirty: u64,
    /// How much the guest is slowed down.
    pub throttle_percent: u8,
    /// Until the guest runs at the target; nothing where no end is in sight.
    pub left: Option<Duration>,
}

/// What is foreseen of a move, and promised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveForeseen {
    /// Seconds from the begin of memory's way.
    pub total_s: f64,
    /// For which the guest stands still.
    pub downtime_ms: f64,
    /// For which it may.
    pub promised_ms: u64,
    /// Whether it ends at all.
    pub converges: bool,
}

/// Shows a live move in place on a terminal.
pub type LiveDisplay = InPlace<LiveNow>;

impl InLines for LiveNow {
    fn lines(&self, blocks: bool) -> Vec<String> {
        lines(self, blocks)
    }
}

const BAR: usize = 24;

/// The lines, what matters most at their left: what does not fit is cut.
fn lines(now: &LiveNow, blocks: bool) -> Vec<String> {
    let disks = now.disks.iter().map(|disk| disk_line(disk, blocks));
    let memory = now.memory.iter().flat_map(|memory| [memory_line(memory, blocks), rates_line(memory)]);
    disks.chain(memory).chain(now.foreseen.map(foreseen_line)).collect()
}

fn bar_and_share(done: u64, all: u64, blocks: bool) -> String {
    let share = if all == 0 { 0.0 } else { done.min(all) as f64 / all as f64 };
    format!("{}  {:>3} %", bar(share, BAR, blocks), percent(share))
}

fn disk_line((name, state): &(String, MirrorState), blocks: bool) -> String {
    let MirrorState { done_bytes, all_bytes, is_ready } = state;
    let state = if *is_ready { "follows each write" } else { "is copied" };
    format!(
        "disk      {}  {name} of {}, {state}",
        bar_and_share(*done_bytes, *all_bytes, blocks),
        Bytes(*all_bytes)
    )
}

fn memory_line(memory: &LiveMemoryNow, blocks: bool) -> String {
    let done = memory.all_bytes.saturating_sub(memory.left_bytes);
    let mut line = format!(
        "memory    {}  ETA {}  pass {}, {} left of {}",
        bar_and_share(done, memory.all_bytes, blocks),
        estimate(memory.left),
        memory.pass,
        Bytes(memory.left_bytes),
        Bytes(memory.all_bytes)
    );
    if !memory.state.is_empty() {
        line.push_str(&format!(", {}", memory.state));
    }
    line
}

fn rates_line(memory: &LiveMemoryNow) -> String {
    let rate = memory.rate.map_or("--".into(), |rate| Rate(rate).to_string());
    let mut line = format!(
        "rates     {rate} sent, dirty rate {}; {} sent so far",
        Rate(memory.dirty as f64),
        Bytes(memory.sent_bytes)
    );
    if memory.throttle_percent > 0 {
        line.push_str(&format!("; the guest is slowed down by {} %", memory.throttle_percent));
    }
    line
}

fn foreseen_line(foreseen: LiveForeseen) -> String {
    let LiveForeseen { total_s, downtime_ms, promised_ms, converges } = foreseen;
    if !converges {
        return format!("foreseen  no end as it is; {promised_ms} ms of standing still are promised");
    }
    format!(
        "foreseen  {total_s:.1} s in all, downtime {downtime_ms:.0} ms (promised: {promised_ms} ms at most)"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::canvas::tests::{Paper, shown};

    const MIB: u64 = 1 << 20;

    fn now() -> LiveNow {
        let memory = LiveMemoryNow {
            all_bytes: 1024 * MIB,
            left_bytes: 256 * MIB,
            sent_bytes: 1900 * MIB,
            pass: 3,
            rate: Some(812e6),
            dirty: 96_000_000,
            throttle_percent: 40,
            left: Some(Duration::from_secs(12)),
            ..LiveMemoryNow::default()
        };
        let foreseen = LiveForeseen { total_s: 14.25, downtime_ms: 41.4, promised_ms: 300, converges: true };
        let disk =
            ("hd0".to_string(), MirrorState { done_bytes: 4 * MIB, all_bytes: 8 * MIB, is_ready: false });
        LiveNow { disks: vec![disk], memory: Some(memory), foreseen: Some(foreseen) }
    }

    #[test]
    fn a_move_in_four_lines() {
        assert_eq!(
            lines(&now(), false),
            [
                "disk      ############------------   50 %  hd0 of 8 MiB, is copied",
                "memory    ##################------   75 %  ETA 0:12  pass 3, 256 MiB left of 1 GiB",
                "rates     812 MB/s sent, dirty rate 96 MB/s; 1.9 GiB sent so far; the guest is slowed down by 40 %",
                "foreseen  14.2 s in all, downtime 41 ms (promised: 300 ms at most)",
            ]
        );
    }

    #[test]
    fn what_was_said_stays_and_what_moved_goes() {
        let paper = Paper::default();
        let display = LiveDisplay::start_on(Box::new(paper.clone()));
        display.show(now());
        display.say("4 connections: keeps the\u{1b}[31m promise");
        let has = |words: &str| String::from_utf8_lossy(&paper.0.lock().unwrap()).contains(words);
        let until = Instant::now() + Duration::from_secs(60);
        while !has("pass 3, 256 MiB left") {
            assert!(Instant::now() < until, "it was never shown");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(display);
        let bytes = paper.0.lock().unwrap().clone();
        assert_eq!(shown(&bytes), ["4 connections: keeps the\u{fffd}[31m promise"]);
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        assert!(lines(&LiveNow::default(), false).is_empty());
        let memory = LiveMemoryNow { state: "the line is away".into(), ..LiveMemoryNow::default() };
        let foreseen = LiveForeseen { promised_ms: 300, ..LiveForeseen::default() };
        let now = LiveNow { disks: Vec::new(), memory: Some(memory), foreseen: Some(foreseen) };
        let lines = lines(&now, false);
        assert!(lines[0].contains("ETA --") && lines[0].ends_with(", the line is away"), "{lines:?}");
        assert!(lines[1].contains("-- sent") && lines[2].contains("no end"), "{lines:?}");
    }
}
