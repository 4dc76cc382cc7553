//! The report of a live move: what was promised, foreseen and real, for people and machines. Pure.

use drover_live::{Choice, Deed, Event, Forecast, Looked, Part, Sample, Told, Why};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::live_words::live_words;

/// Of the JSON document; it grows when a field's meaning changes or one goes.
const VERSION: u32 = 1;

/// Samples that are kept; of more every second one goes, so a move of days fits too.
const SAMPLES_MAX: usize = 4096;
/// Notes that are kept.
const NOTES_MAX: usize = 1000;

/// A live move from the command's begin to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveReport {
    /// Milliseconds since 1970.
    pub began_ms: i64,
    /// Milliseconds since 1970.
    pub ended_ms: i64,
    /// The source's monitor.
    pub source: String,
    /// The target's monitor.
    pub target: String,
    /// The site it is at, if it was reached over a link.
    pub site: Option<String>,
    /// What was asked for.
    pub asked: LiveAsked,
    /// What was foreseen and chosen, each time that was looked at.
    pub forecasts: Vec<LiveLook>,
    /// What was done on the way.
    pub actions: Vec<LiveDeed>,
    /// What was said on the way.
    pub notes: Vec<LiveNote>,
    /// Disks that were copied.
    pub disks: Vec<LiveDisk>,
    /// When memory began to go, in seconds since the begin.
    pub memory_began_s: Option<f64>,
    /// What the source's QEMU told of memory on its way, in order.
    #[serde(serialize_with = "samples")]
    pub samples: Vec<Told>,
    /// What became of it.
    pub outcome: LiveOutcome,
    /// What the time was made of in which the guest stood still; empty if it did not, or nothing of it is known.
    #[serde(serialize_with = "parts")]
    pub downtime_parts: Vec<Part>,
    /// What went over the link.
    pub link: Option<Value>,
    /// Samples of which one is kept.
    #[serde(skip)]
    stride: usize,
    /// Samples since the last one that was kept.
    #[serde(skip)]
    skipped: usize,
    /// What is added to the time of samples.
    #[serde(skip)]
    offset_ms: u64,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveAsked {
    /// Longest time for which the guest may stand still.
    pub downtime_ms: u64,
    /// Time in which it must have moved.
    pub deadline_s: f64,
    /// `shared` or `mirror`.
    pub disks: String,
    /// What was allowed to keep the promise.
    pub allowed: Vec<String>,
    /// Connections, where their number was given.
    pub channels: Option<u8>,
    /// What the line was said to carry.
    pub line_bits_per_s: Option<u64>,
    /// Most that was to be sent.
    pub rate_max_bits_per_s: Option<u64>,
}

/// What was foreseen at a moment, and from what.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveLook {
    /// Seconds since the begin.
    pub at_s: f64,
    /// What was chosen, and each way that was looked at.
    pub choice: Choice,
    /// Whether the line was measured or said, or is a guess.
    pub line_is_known: bool,
}

/// Something that was done, and what was known then.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveDeed {
    /// Seconds since the begin.
    pub at_s: f64,
    /// What was done.
    pub what: Deed,
    /// Why, with its numbers.
    pub why: Why,
}

/// Something that was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveNote {
    /// Seconds since the begin.
    pub at_s: f64,
    /// In words.
    pub text: String,
}

/// A disk that was copied.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveDisk {
    /// What it is plugged into.
    pub name: String,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes to copy; what is written again counts again.
    pub all_bytes: u64,
    /// When all was copied once, in seconds since the begin.
    pub ready_s: Option<f64>,
}

/// What became of a move.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum LiveOutcome {
    /// It was looked at only.
    #[default]
    Looked,
    /// The guest runs at the target.
    Moved(LiveReal),
    /// It did not move, or not as it should.
    Failed {
        /// What went wrong, and where the guest is.
        message: String,
        /// What to try.
        advice: Option<String>,
        /// Where the guest is, in a word; nothing if nobody looked.
        guest_at: Option<String>,
        /// For which it stood still at the source before it went on there.
        stood_at_source_ms: Option<f64>,
    },
}

/// What a move really took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveReal {
    /// From the begin of memory's way to the guest running at the target.
    pub total_s: f64,
    /// For which the guest stood still, by QEMU's count.
    pub downtime_ms_by_qemu: Option<u64>,
    /// From its stop at the source to its start at the target, by the events of both monitors.
    pub downtime_ms: Option<u64>,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Passes over memory.
    pub passes: u64,
}

impl LiveReport {
    /// Takes in what happened, so long after the begin.
    pub fn take(&mut self, at_s: f64, event: &Event) {
        match event {
            Event::Note(_) | Event::Route(_) | Event::Busy { .. } | Event::Share(_) | Event::Mending(_) => {
                self.add_note(at_s, live_words(event).unwrap_or_default());
            }
            Event::Chosen(choice) => {
                // What is looked at once memory is on its way is what its rate told.
                let line_is_known = self.asked.line_bits_per_s.is_some() || !self.samples.is_empty();
                self.forecasts.push(LiveLook { at_s, choice: (**choice).clone(), line_is_known });
            }
            Event::Disk { name, state } => {
                self.add_disk(at_s, name, state.done_bytes, state.all_bytes, state.is_ready);
            }
            Event::Memory(told) => {
                let sample_s = told.sample.at_ms as f64 / 1000.0;
                self.memory_began_s.get_or_insert((at_s - sample_s).max(0.0));
                self.add_sample(told.clone());
            }
            Event::Sent => {}
            Event::Did(what, why) => self.actions.push(LiveDeed { at_s, what: *what, why: *why }),
            Event::Link { site, is_up } => {
                let word = if *is_up { "is back" } else { "is away" };
                self.add_note(at_s, format!("the link to {site} {word}"));
            }
        }
    }

    /// Takes in a sample. Of very many some are left out; the first and the latest never are.
    pub fn add_sample(&mut self, told: Told) {
        let last_ms = self.samples.last().map_or(0, |last| last.sample.at_ms);
        // A move that is brought to its end after it failed begins to count anew.
        if told.sample.at_ms.saturating_add(self.offset_ms) < last_ms {
            self.offset_ms = last_ms;
        }
        let at_ms = told.sample.at_ms.saturating_add(self.offset_ms);
        if self.samples.len() >= SAMPLES_MAX {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride = self.stride.max(1) * 2;
        }
        // The latest stands last until it is due to stay.
        if self.skipped > 0 && self.samples.len() > 1 {
            self.samples.pop();
        }
        self.skipped = (self.skipped + 1) % self.stride.max(1);
        self.samples.push(Told { sample: Sample { at_ms, ..told.sample }, ..told });
    }

    /// Takes in something that was said.
    pub fn add_note(&mut self, at_s: f64, text: impl Into<String>) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(LiveNote { at_s, text: text.into() });
        }
    }

    /// What a disk's copy has come to.
    pub fn add_disk(&mut self, at_s: f64, name: &str, done_bytes: u64, all_bytes: u64, is_ready: bool) {
        let at = self.disks.iter().position(|disk| disk.name == name).unwrap_or_else(|| {
            self.disks.push(LiveDisk { name: name.into(), ..LiveDisk::default() });
            self.disks.len() - 1
        });
        let disk = &mut self.disks[at];
        (disk.done_bytes, disk.all_bytes) = (done_bytes, all_bytes);
        disk.ready_s = disk.ready_s.or(is_ready.then_some(at_s));
    }

    /// Whether the promise was kept, by what the events of both monitors told, or else by QEMU's count; nothing for a
    /// guest that did not move, or of whose downtime nothing is known.
    pub fn is_kept(&self) -> Option<bool> {
        let LiveOutcome::Moved(real) = &self.outcome else { return None };
        real.is_kept(&self.asked)
    }
}

impl LiveReal {
    /// Whether it is what was promised; nothing where nothing is known of the downtime.
    pub fn is_kept(&self, asked: &LiveAsked) -> Option<bool> {
        self.stood_ms().map(|_| self.broken(asked).is_none())
    }

    /// What of the promise was broken, in words, with both figures.
    pub fn broken(&self, asked: &LiveAsked) -> Option<String> {
        let stood = self.stood_ms().filter(|ms| *ms > asked.downtime_ms);
        let stood = stood.map(|ms| format!("downtime {ms} ms, {} ms were promised", asked.downtime_ms));
        let late = self.total_s > asked.deadline_s;
        let late =
            late.then(|| format!("it took {:.1} s, {:.1} were promised", self.total_s, asked.deadline_s));
        let all: Vec<String> = stood.into_iter().chain(late).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// For how long it stood still, by what is known best.
    fn stood_ms(&self) -> Option<u64> {
        self.downtime_ms.or(self.downtime_ms_by_qemu)
    }
}

impl Serialize for LiveLook {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Choice { course, forecast, looked_at, facts } = &self.choice;
        let course = course.as_ref();
        let ready = course.map(|course| course.deeds.iter().map(Deed::to_string).collect::<Vec<_>>());
        let way = |looked: &Looked| json!({"way": looked.way, "keeps_the_promise": looked.keeps, "foreseen": foreseen(&looked.forecast)});
        let document = json!({
            "at_s": self.at_s, "channels": course.map(|course| course.channels),
            "at_once": course.and_then(|course| course.at_once).map(|deed| deed.to_string()),
            "ready": ready.unwrap_or_default(), "memory_bytes": facts.memory_bytes,
            "dirty_bytes_per_s": facts.dirty.likely, "dirty_bytes_per_s_spread": facts.dirty.spread,
            "line_bytes_per_s": facts.rate.likely, "line_bytes_per_s_spread": facts.rate.spread,
            "line_is_known": self.line_is_known, "foreseen": foreseen(forecast),
            "ways": looked_at.iter().map(way).collect::<Vec<_>>(),
        });
        document.serialize(to)
    }
}

fn foreseen(forecast: &Forecast) -> Value {
    let Forecast { total, downtime, passes, sent_bytes, converges } = forecast;
    json!({
        "total_s": total.likely, "total_s_spread": total.spread, "downtime_ms": downtime.likely * 1000.0,
        "downtime_ms_spread": downtime.spread * 1000.0, "passes": passes, "sent_bytes": sent_bytes, "converges": converges,
    })
}

impl Serialize for LiveDeed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let LiveDeed { at_s, what, why } = self;
        let document = json!({
            "at_s": at_s, "what": what.to_string(), "why": why.to_string(), "sent_bytes_per_s": why.rate,
            "dirty_bytes_per_s": why.dirty, "left_bytes": why.left_bytes, "needs_s": why.needs_s, "has_s": why.has_s,
        });
        document.serialize(to)
    }
}

fn samples<S: Serializer>(all: &[Told], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|Told { sample, status, .. }| {
        json!({
            "at_ms": sample.at_ms, "status": status, "pass": sample.passes, "sent_bytes": sample.sent_bytes,
            "left_bytes": sample.left_bytes, "dirty_bytes_per_s": sample.dirty_bytes_per_s,
            "throttle_percent": sample.throttle_percent,
        })
    }))
}

fn parts<S: Serializer>(all: &[Part], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|Part { name, time, how }| {
        json!({"name": name, "ms": time.map(|time| time.as_secs_f64() * 1000.0), "how": how})
    }))
}

/// The report as a document with a version.
pub fn live_report_json(report: &LiveReport) -> Value {
    let mut value = json!({ "kind": "drover-live-report", "version": VERSION });
    match (serde_json::to_value(report), &mut value) {
        (Ok(Value::Object(fields)), Value::Object(all)) => all.extend(fields),
        (told, _) => value["error"] = json!(told.err().map(|error| error.to_string())),
    }
    value["promise_kept"] = json!(report.is_kept());
    value
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use drover_live::{Cause, Course, Facts, LINE_ASSUMED, facts_before};
    use drover_types::Estimate;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn forecast(total_s: f64) -> Forecast {
        Forecast {
            total: Estimate { likely: total_s, spread: total_s / 5.0 },
            downtime: Estimate { likely: 0.041, spread: 0.02 },
            passes: 3,
            sent_bytes: 1 << 30,
            converges: true,
        }
    }

    pub(crate) fn sample(at_ms: u64, pass: u64, sent_mib: u64, left_mib: u64) -> Told {
        let sample = Sample {
            at_ms,
            passes: pass,
            sent_bytes: sent_mib * MIB,
            left_bytes: left_mib * MIB,
            dirty_bytes_per_s: 20 * MIB,
            ..Sample::default()
        };
        Told { sample, status: "active".into(), ..Told::default() }
    }

    /// A guest that moved in two seconds, with hostile names.
    pub(crate) fn moved() -> LiveReport {
        let facts = facts_before(1 << 30, Some(0.0), Estimate::default());
        let dirty = Estimate { likely: 20e6, spread: 0.0 };
        let deeds = vec![Deed::Throttle, Deed::GiveUp];
        let choice = Choice {
            course: Some(Course { channels: 4, zstd: false, at_once: None, deeds }),
            forecast: forecast(1.5),
            looked_at: vec![Looked { way: "4 connections".into(), forecast: forecast(1.5), keeps: true }],
            facts: Facts { dirty, rate: LINE_ASSUMED, ..facts },
        };
        let look = LiveLook { at_s: 1.2, choice, line_is_known: false };
        let why =
            Why { cause: Cause::Standstill, rate: 0.0, dirty: 0.0, left_bytes: 0, needs_s: None, has_s: 0.0 };
        let mut report = LiveReport {
            began_ms: crate::sample::START,
            ended_ms: crate::sample::START + 3_500,
            source: "/run/<vm>&\"a\".sock".into(),
            target: "/run/b\u{1b}[31m.sock".into(),
            asked: LiveAsked {
                downtime_ms: 300,
                deadline_s: 600.0,
                disks: "mirror".into(),
                allowed: vec!["throttle".into()],
                ..LiveAsked::default()
            },
            forecasts: vec![look],
            actions: vec![LiveDeed { at_s: 2.4, what: Deed::Throttle, why }],
            memory_began_s: Some(1.4),
            outcome: LiveOutcome::Moved(LiveReal {
                total_s: 2.0,
                downtime_ms_by_qemu: Some(30),
                downtime_ms: Some(52),
                sent_bytes: 1100 * MIB,
                passes: 3,
            }),
            downtime_parts: vec![
                Part { name: "last pass", time: Some(Duration::from_micros(50_240)), how: "by events" },
                Part { name: "first heartbeat", time: None, how: "nobody looks" },
            ],
            ..LiveReport::default()
        };
        report.add_note(1.3, "memory goes to <unix:/x>");
        report.add_disk(1.0, "hd0", 0, 8 * MIB, false);
        report.add_disk(1.1, "hd0", 8 * MIB, 8 * MIB, true);
        for (at_ms, pass, sent, left) in
            [(0, 1, 0, 1024), (500, 1, 600, 424), (1000, 2, 1030, 12), (1900, 3, 1100, 0)]
        {
            report.add_sample(sample(at_ms, pass, sent, left));
        }
        report
    }

    /// One that was refused before it began.
    pub(crate) fn refused() -> LiveReport {
        LiveReport {
            began_ms: crate::sample::START,
            ended_ms: crate::sample::START + 900,
            outcome: LiveOutcome::Failed {
                message: "the guest cannot move: <cpu> differs; the guest is at the source, as it was".into(),
                advice: Some("start the target with `-cpu qemu64`".into()),
                guest_at: Some("source".into()),
                stood_at_source_ms: None,
            },
            ..LiveReport::default()
        }
    }

    #[test]
    fn the_document_has_its_version_and_all_figures() {
        let told = live_report_json(&moved());
        assert_eq!((told["kind"].as_str(), told["version"].as_u64()), (Some("drover-live-report"), Some(1)));
        assert_eq!(told["outcome"]["result"], "moved");
        assert_eq!(told["outcome"]["downtime_ms"], 52);
        assert_eq!(told["promise_kept"], true);
        assert_eq!(told["samples"].as_array().unwrap().len(), 4);
        assert_eq!(told["forecasts"][0]["ways"][0]["foreseen"]["passes"], 3);
        assert_eq!(told["downtime_parts"][1]["ms"], Value::Null);
        assert_eq!(told["disks"][0]["ready_s"], 1.1);
        assert!(told.get("stride").is_none());
        let told = live_report_json(&refused());
        assert_eq!(
            (&told["outcome"]["result"], &told["outcome"]["guest_at"]),
            (&json!("failed"), &json!("source"))
        );
        assert_eq!(told["promise_kept"], Value::Null);
    }

    #[test]
    fn what_was_broken_is_told_with_both_figures() {
        let asked = LiveAsked { downtime_ms: 300, deadline_s: 60.0, ..LiveAsked::default() };
        let real = LiveReal { downtime_ms: Some(514), total_s: 12.0, ..LiveReal::default() };
        assert_eq!(real.broken(&asked).unwrap(), "downtime 514 ms, 300 ms were promised");
        let late = LiveReal { downtime_ms: Some(300), total_s: 61.5, ..real.clone() };
        assert_eq!(late.broken(&asked).unwrap(), "it took 61.5 s, 60.0 were promised");
        assert_eq!(LiveReal { total_s: 60.0, ..late.clone() }.broken(&asked), None);
        let counted = LiveReal { downtime_ms: None, downtime_ms_by_qemu: Some(301), ..real };
        assert_eq!((counted.is_kept(&asked), late.is_kept(&asked)), (Some(false), Some(false)));
    }

    #[test]
    fn a_promise_is_kept_by_what_was_seen_from_outside_before_what_qemu_counts() {
        let mut report = moved();
        let LiveOutcome::Moved(real) = &mut report.outcome else { unreachable!() };
        real.downtime_ms = Some(301);
        assert_eq!(report.is_kept(), Some(false));
        let LiveOutcome::Moved(real) = &mut report.outcome else { unreachable!() };
        (real.downtime_ms, real.downtime_ms_by_qemu) = (None, None);
        assert_eq!(report.is_kept(), None);
        assert_eq!(refused().is_kept(), None);
    }

    #[test]
    fn a_move_of_days_keeps_its_first_and_its_latest_sample() {
        let mut report = LiveReport::default();
        for number in 0..100_000u64 {
            report.add_sample(sample(number * 100, 1, number, 0));
            assert_eq!(report.samples.last().unwrap().sample.at_ms, number * 100);
        }
        assert!(
            (SAMPLES_MAX / 2 - 1..=SAMPLES_MAX).contains(&report.samples.len()),
            "{}",
            report.samples.len()
        );
        let times: Vec<u64> = report.samples.iter().map(|told| told.sample.at_ms).collect();
        assert_eq!(times[0], 0);
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
        let steps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = steps.iter().max().unwrap();
        assert!(steps[..steps.len() - 1].iter().all(|step| step * 2 >= *longest), "{longest}");
    }

    #[test]
    fn time_that_begins_anew_goes_on() {
        let mut report = LiveReport::default();
        for at_ms in [0, 900, 20, 120] {
            report.add_sample(sample(at_ms, 1, 1, 1));
        }
        let times: Vec<u64> = report.samples.iter().map(|told| told.sample.at_ms).collect();
        assert_eq!(times, [0, 900, 920, 1020]);
    }
}
