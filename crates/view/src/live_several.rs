//! Several guests that move at once: their lines on a terminal, and the report of all. Pure but for the display itself.

use std::time::Duration;

use drover_live::MirrorState;
use drover_types::{Bytes, Rate};
use serde::Serialize;
use serde_json::{Value, json};

use crate::frame::bar;
use crate::in_place::{InLines, InPlace};
use crate::live::{LiveOutcome, LiveReport, live_report_json};
use crate::live_display::LiveNow;
use crate::text::{clean, estimate, percent};

/// Of the JSON document; it grows when a field's meaning changes or one goes.
const VERSION: u32 = 1;

/// A guest of several, as of its latest news.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveGuestNow {
    /// What it is called.
    pub name: String,
    /// What goes on, where there are no figures of it (or how it ended).
    pub state: String,
    /// Its figures, while it moves.
    pub now: Option<LiveNow>,
}

/// Shows several moves in place on a terminal, a line each.
pub type LiveSeveralDisplay = InPlace<Vec<LiveGuestNow>>;

impl InLines for Vec<LiveGuestNow> {
    fn lines(&self, blocks: bool) -> Vec<String> {
        lines(self, blocks)
    }
}

const BAR: usize = 16;
/// Of a longer name the end is cut.
const NAME_MAX: usize = 20;

fn lines(guests: &[LiveGuestNow], blocks: bool) -> Vec<String> {
    let names: Vec<String> =
        guests.iter().map(|guest| clean(&guest.name).chars().take(NAME_MAX).collect()).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |(name, guest): (&String, &LiveGuestNow)| format!("{name:<width$}  {}", words(guest, blocks));
    names.iter().zip(guests).map(line).collect()
}

/// A guest in a line, what matters most at its left: what does not fit is cut.
fn words(guest: &LiveGuestNow, blocks: bool) -> String {
    let Some(now) = &guest.now else { return clean(&guest.state).into_owned() };
    if let Some(memory) = &now.memory {
        let done = memory.all_bytes.saturating_sub(memory.left_bytes);
        let rate = memory.rate.map_or("--".into(), |rate| Rate(rate).to_string());
        let mut line = format!(
            "{}  ETA {}  {rate}, pass {}, {} left of {}",
            bar_and_share(done, memory.all_bytes, blocks),
            estimate(memory.left),
            memory.pass,
            Bytes(memory.left_bytes),
            Bytes(memory.all_bytes)
        );
        if memory.throttle_percent > 0 {
            line.push_str(&format!(", slowed down by {} %", memory.throttle_percent));
        }
        if !memory.state.is_empty() {
            line.push_str(&format!(", {}", memory.state));
        }
        return line;
    }
    let sum = |of: fn(&MirrorState) -> u64| now.disks.iter().map(|(_, state)| of(state)).sum::<u64>();
    let (done, all) = (sum(|disk| disk.done_bytes), sum(|disk| disk.all_bytes));
    match now.disks.is_empty() {
        true => clean(&guest.state).into_owned(),
        false => format!("{}  disks of {} are copied", bar_and_share(done, all, blocks), Bytes(all)),
    }
}

fn bar_and_share(done: u64, all: u64, blocks: bool) -> String {
    let share = if all == 0 { 0.0 } else { done.min(all) as f64 / all as f64 };
    format!("{}  {:>3} %", bar(share, BAR, blocks), percent(share))
}

/// Several live moves from the command's begin to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveSeveralReport {
    /// Milliseconds since 1970.
    pub began_ms: i64,
    /// Milliseconds since 1970.
    pub ended_ms: i64,
    /// Why none began, where that has no guest of its own.
    pub message: Option<String>,
    /// How they were to go, for each two hosts.
    pub schedules: Vec<LiveSchedule>,
    /// Each guest.
    pub moves: Vec<LiveOfSeveral>,
}

/// A guest of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveOfSeveral {
    /// What it is called.
    pub name: String,
    /// When it began, in seconds since the command did; nothing if it did not.
    pub began_s: Option<f64>,
    /// What became of it.
    pub report: LiveReport,
}

/// How guests between two hosts were to go.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveSchedule {
    /// Both hosts.
    pub between: String,
    /// Bytes a second that the line carries.
    pub line_bytes_per_s: f64,
    /// Whether that was said, or is a guess.
    pub line_is_known: bool,
    /// Bytes a second that all together may send.
    pub rate_max_bytes_per_s: Option<u64>,
    /// Bytes a second by which they may go beyond it, where that is much.
    pub excess_bytes_per_s: Option<u64>,
    /// The way that was taken; nothing where none keeps each promise.
    pub chosen: Option<String>,
    /// Each way that was looked at.
    pub ways: Vec<LiveSeveralWay>,
    /// Each guest's turn in the way that was taken.
    pub turns: Vec<LiveTurn>,
}

/// A number of guests at once that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveSeveralWay {
    /// In words.
    pub way: String,
    /// So many at once.
    pub at_once: usize,
    /// Seconds until all have ended.
    pub total_s: f64,
    /// How far off that may be.
    pub total_s_spread: f64,
    /// For which a guest stands still, at most.
    pub downtime_ms_most: f64,
    /// What speaks against it; nothing if each promise is kept.
    pub misses: Option<String>,
}

/// A guest's turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveTurn {
    /// What it is called.
    pub guest: String,
    /// When it begins, in seconds.
    pub begins_s: f64,
    /// From its begin to its end.
    pub takes_s: f64,
    /// For which it stands still.
    pub downtime_ms: f64,
    /// Bytes a second that it has, at least.
    pub rate_least_bytes_per_s: f64,
}

/// What all moves come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LiveSums {
    /// Guests.
    pub guests: usize,
    /// That run at the target.
    pub moved: usize,
    /// That did not move as they should, the ones that never began among them.
    pub failed: usize,
    /// Whose promise was kept.
    pub kept: usize,
    /// Seconds from the first to the last.
    pub total_s: f64,
    /// Bytes of memory that were sent for guests that moved.
    pub sent_bytes: u64,
    /// Milliseconds for which a guest stood still, at most, as far as that was told.
    pub downtime_ms_max: Option<u64>,
}

impl LiveSeveralReport {
    /// What all moves come to.
    pub fn sums(&self) -> LiveSums {
        let reports = || self.moves.iter().map(|one| &one.report);
        let real = || {
            reports().filter_map(|report| match &report.outcome {
                LiveOutcome::Moved(real) => Some(real),
                LiveOutcome::Looked | LiveOutcome::Failed { .. } => None,
            })
        };
        let is_failed = |report: &&LiveReport| matches!(report.outcome, LiveOutcome::Failed { .. });
        let time = Duration::from_millis(u64::try_from(self.ended_ms - self.began_ms).unwrap_or_default());
        LiveSums {
            guests: self.moves.len(),
            moved: real().count(),
            failed: reports().filter(is_failed).count(),
            kept: reports().filter(|report| report.is_kept() == Some(true)).count(),
            total_s: time.as_secs_f64(),
            sent_bytes: real().map(|real| real.sent_bytes).sum(),
            downtime_ms_max: real().filter_map(|real| real.downtime_ms.or(real.downtime_ms_by_qemu)).max(),
        }
    }
}

/// The report as a document with a version; each move's is what it would be alone.
pub fn live_several_json(report: &LiveSeveralReport) -> Value {
    let moves = report.moves.iter().map(
        |one| json!({"name": one.name, "began_s": one.began_s, "report": live_report_json(&one.report)}),
    );
    json!({
        "kind": "drover-live-several-report", "version": VERSION,
        "began_ms": report.began_ms, "ended_ms": report.ended_ms, "message": report.message,
        "sums": report.sums(), "schedules": report.schedules, "moves": moves.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::live::tests::{moved, refused};
    use crate::live_display::LiveMemoryNow;

    const MIB: u64 = 1 << 20;

    pub(crate) fn several() -> LiveSeveralReport {
        let way = |way: &str, at_once, misses: Option<&str>| LiveSeveralWay {
            way: way.into(),
            at_once,
            total_s: 12.5,
            total_s_spread: 1.5,
            downtime_ms_most: 41.0,
            misses: misses.map(str::to_string),
        };
        let turn = LiveTurn {
            guest: "web<01>".into(),
            begins_s: 0.0,
            takes_s: 6.25,
            downtime_ms: 41.0,
            rate_least_bytes_per_s: 125e6,
        };
        let one = |name: &str, began_s, report| LiveOfSeveral { name: name.into(), began_s, report };
        LiveSeveralReport {
            began_ms: crate::sample::START,
            ended_ms: crate::sample::START + 12_000,
            message: None,
            schedules: vec![LiveSchedule {
                between: "here to 10.0.0.2".into(),
                line_bytes_per_s: 125e6,
                line_is_known: true,
                rate_max_bytes_per_s: Some(100_000_000),
                excess_bytes_per_s: None,
                chosen: Some("one after the other".into()),
                ways: vec![
                    way("one after the other", 1, None),
                    way("all at once", 2, Some("db does not converge with 50.0 MB/s")),
                ],
                turns: vec![turn],
            }],
            moves: vec![one("web<01>", Some(1.5), moved()), one("db", None, refused())],
        }
    }

    #[test]
    fn a_line_each() {
        let memory = LiveMemoryNow {
            all_bytes: 1024 * MIB,
            left_bytes: 256 * MIB,
            pass: 3,
            rate: Some(812e6),
            throttle_percent: 40,
            left: Some(Duration::from_secs(12)),
            ..LiveMemoryNow::default()
        };
        let disk =
            ("hd0".to_string(), MirrorState { done_bytes: 4 * MIB, all_bytes: 8 * MIB, is_ready: false });
        let guest =
            |name: &str, state: &str, now| LiveGuestNow { name: name.into(), state: state.into(), now };
        let guests = [
            guest("web01", "", Some(LiveNow { memory: Some(memory), ..LiveNow::default() })),
            guest("db", "", Some(LiveNow { disks: vec![disk], ..LiveNow::default() })),
            guest("a\u{1b}name-that-is-far-too-long", "waits", None),
            guest("new", "begins", Some(LiveNow::default())),
        ];
        assert_eq!(
            lines(&guests, false),
            [
                "web01                 ############----   75 %  ETA 0:12  812 MB/s, pass 3, 256 MiB left of 1 GiB, slowed down by 40 %",
                "db                    ########--------   50 %  disks of 8 MiB are copied",
                "a\u{fffd}name-that-is-far-t  waits",
                "new                   begins",
            ]
        );
    }

    #[test]
    fn the_document_has_the_sums_and_each_move() {
        let told = live_several_json(&several());
        assert_eq!(
            (told["kind"].as_str(), told["version"].as_u64()),
            (Some("drover-live-several-report"), Some(1))
        );
        let sums = &told["sums"];
        assert_eq!(
            (&sums["guests"], &sums["moved"], &sums["failed"], &sums["kept"]),
            (&json!(2), &json!(1), &json!(1), &json!(1))
        );
        assert_eq!((&sums["total_s"], &sums["downtime_ms_max"]), (&json!(12.0), &json!(52)));
        assert_eq!(told["moves"][0]["report"]["kind"], "drover-live-report");
        assert_eq!(told["moves"][1]["began_s"], Value::Null);
        assert_eq!(told["schedules"][0]["ways"][1]["misses"], "db does not converge with 50.0 MB/s");
    }
}
