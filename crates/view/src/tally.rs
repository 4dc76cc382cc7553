//! What the events of a run add up to, and how each reads. Pure.

use std::time::{Duration, Instant};

use drover_engine::{CallKind, EngineError, Event, HookResult, LinkBytes, Phase, VmState};
use drover_types::{Bytes, Rate};

use crate::summary::{and_not_cleaned_up, vm_state};
use crate::text::{clean, count, duration, percent};
use crate::warm::{cutover_words, forecast_words, kind_word, wait_words};

/// A line that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub text: String,
    /// Whether it tells of a failure.
    pub bad: bool,
}

/// A VM that is on its way.
#[derive(Clone, Debug)]
pub(crate) struct RunningVm {
    pub name: String,
    pub phase: Phase,
    pub since: Instant,
    /// What its passes do, while it keeps running.
    pub passing: Option<String>,
    sums: Sums,
}

/// What is known of a VM's disks.
#[derive(Clone, Debug, Default)]
struct Sums {
    disks: usize,
    read: u64,
    copy_seconds: f64,
    blocks: u64,
    blocks_total: u64,
    verified: usize,
    unequal: usize,
}

/// The sum of a run's events.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub vms: usize,
    pub done: usize,
    pub not_cleaned_up: usize,
    pub failed: usize,
    pub stopped: usize,
    /// Given up before their turn. One that was at work had stopped, or failed, before it was undone.
    pub cancelled: usize,
    pub running: Vec<RunningVm>,
}

impl Tally {
    /// VMs that have not begun.
    pub(crate) fn queued(&self) -> usize {
        let ended = self.done + self.not_cleaned_up + self.failed + self.stopped + self.cancelled;
        self.vms.saturating_sub(ended + self.running.len())
    }

    /// Takes in an event; gives the lines it is worth.
    pub(crate) fn take(&mut self, event: &Event, now: Instant) -> Vec<Line> {
        match event {
            Event::PlanStarted { vms, .. } => self.vms = *vms,
            Event::PhaseStarted { vm, phase } => {
                let running = self.enter(vm, *phase, now);
                (running.phase, running.since) = (*phase, now);
            }
            Event::PhaseEnded { vm, phase: Phase::Copy, seconds } => {
                self.sums(vm, |sums| sums.copy_seconds = *seconds);
            }
            Event::DiskCopied { vm, bytes_read, .. } => self.sums(vm, |sums| {
                sums.disks += 1;
                sums.read += bytes_read;
            }),
            Event::DiskVerified { vm, blocks, blocks_total, equal, .. } => self.sums(vm, |sums| {
                sums.verified += 1;
                sums.blocks += blocks;
                sums.blocks_total += blocks_total;
                sums.unequal += usize::from(!equal);
            }),
            Event::VmEnded { vm, state, error, advice, .. } => {
                return self.leave(vm, *state, error.as_deref(), advice.as_deref());
            }
            Event::PassStarted { vm, number, .. } => self.passing(vm, Some(format!("pass {number}"))),
            Event::PassWaits { vm, number, next_ms, forecast, .. } => {
                self.passing(vm, Some(wait_words(*number, *next_ms, forecast.as_ref())));
            }
            Event::CutoverStarted { vm, .. } => self.passing(vm, None),
            Event::VmRetried { .. } => self.failed = self.failed.saturating_sub(1),
            Event::PhaseEnded { .. }
            | Event::Note { .. }
            | Event::SourceAway { .. }
            | Event::SourceBack { .. }
            | Event::HookStarted { .. }
            | Event::HookEnded { .. }
            | Event::PassEnded { .. }
            | Event::CutoverEnded { .. }
            | Event::WaveStarted { .. }
            | Event::WaveHeld { .. }
            | Event::WaveEnded { .. }
            | Event::LimitsChanged { .. }
            | Event::PlanEnded { .. } => {}
        }
        vec![Line { text: clean(&words(event)).into_owned(), bad: is_bad(event) }]
    }

    fn enter(&mut self, name: &str, phase: Phase, now: Instant) -> &mut RunningVm {
        let at = self.running.iter().position(|vm| vm.name == name).unwrap_or_else(|| {
            let name = name.to_string();
            self.running.push(RunningVm { name, phase, since: now, passing: None, sums: Sums::default() });
            self.running.len() - 1
        });
        &mut self.running[at]
    }

    fn passing(&mut self, name: &str, words: Option<String>) {
        if let Some(vm) = self.running.iter_mut().find(|vm| vm.name == name) {
            vm.passing = words;
        }
    }

    fn sums(&mut self, name: &str, change: impl FnOnce(&mut Sums)) {
        if let Some(vm) = self.running.iter_mut().find(|vm| vm.name == name) {
            change(&mut vm.sums);
        }
    }

    fn leave(&mut self, name: &str, state: VmState, error: Option<&str>, advice: Option<&str>) -> Vec<Line> {
        let at = self.running.iter().position(|vm| vm.name == name);
        let sums = at.map(|at| self.running.remove(at).sums).unwrap_or_default();
        let name = clean(name);
        let Some(error) = error else {
            self.done += 1;
            return vec![Line { text: format!("{name}  done  {}", sums.words()), bad: false }];
        };
        if state != VmState::NotCleanedUp && error.ends_with(&EngineError::Cancelled.to_string()) {
            self.stopped += 1;
            return vec![Line { text: format!("{name}  stopped"), bad: false }];
        }
        match state {
            VmState::Skipped => {
                // Nothing is wrong: the plan's own hook said so.
                self.stopped += 1;
                return vec![Line { text: format!("{name}  skipped  {}", clean(error)), bad: false }];
            }
            VmState::Cancelled => {
                self.cancelled += 1;
                return vec![Line { text: format!("{name}  given up  {}", clean(error)), bad: false }];
            }
            VmState::NotCleanedUp => self.not_cleaned_up += 1,
            // Its end could not be recorded.
            VmState::Done => self.done += 1,
            _ => self.failed += 1,
        }
        let bad = |text| Line { text, bad: true };
        let advice = advice.map(|advice| bad(format!("  try: {}", clean(advice))));
        [bad(format!("{name}  {}  {}", vm_state(state), clean(error)))].into_iter().chain(advice).collect()
    }
}

impl Sums {
    /// `3 disks  4.1 GiB  812 MB/s  hash equal`.
    fn words(&self) -> String {
        let mut parts = vec![count(self.disks, "disk"), Bytes(self.read).to_string()];
        if self.copy_seconds > 0.0 && self.read > 0 {
            parts.push(Rate(self.read as f64 / self.copy_seconds).to_string());
        }
        parts.push(self.verdict());
        parts.join("  ")
    }

    fn verdict(&self) -> String {
        match self {
            Sums { unequal: 1.., .. } => "HASH NOT EQUAL".into(),
            Sums { verified: 0, .. } => "not compared in this run".into(),
            Sums { verified, disks, .. } if verified < disks => {
                format!("{verified} of {disks} compared, equal")
            }
            Sums { blocks, blocks_total, .. } if blocks < blocks_total => {
                format!("{} % compared, equal", percent(*blocks as f64 / *blocks_total as f64))
            }
            _ => "hash equal".into(),
        }
    }
}

/// Whether an event is worth a line above the moving ones: what the moving ones cannot tell.
pub(crate) fn stays(event: &Event) -> bool {
    match event {
        Event::PlanStarted { .. } | Event::Note { .. } | Event::VmEnded { .. } | Event::PlanEnded { .. } => {
            true
        }
        Event::VmRetried { .. } | Event::SourceAway { .. } | Event::SourceBack { .. } => true,
        Event::PassEnded { .. } | Event::CutoverStarted { .. } | Event::CutoverEnded { .. } => true,
        Event::HookEnded { .. } | Event::LimitsChanged { .. } => true,
        Event::WaveStarted { .. } | Event::WaveHeld { .. } | Event::WaveEnded { .. } => true,
        Event::DiskVerified { equal, .. } => !equal,
        Event::PhaseStarted { .. }
        | Event::PhaseEnded { .. }
        | Event::PassStarted { .. }
        | Event::PassWaits { .. }
        | Event::HookStarted { .. }
        | Event::DiskCopied { .. } => false,
    }
}

fn is_bad(event: &Event) -> bool {
    match event {
        Event::DiskVerified { equal, .. } => !equal,
        Event::HookEnded { result, .. } => matches!(result, HookResult::Failed | HookResult::Stop),
        Event::PlanEnded { failed, not_cleaned_up, .. } => failed + not_cleaned_up > 0,
        Event::WaveHeld { .. } | Event::SourceAway { .. } => true,
        Event::WaveEnded { failed, .. } => *failed > 0,
        _ => false,
    }
}

/// What crossed the line.
fn link_words(link: &LinkBytes) -> String {
    let LinkBytes { sent, sent_packed, had, .. } = *link;
    format!("; {} sent as {}, {} there by hash", Bytes(sent), Bytes(sent_packed), Bytes(had))
}

/// Who a hook was called for.
fn who(vm: Option<&str>, wave: Option<&str>) -> String {
    vm.map_or_else(|| format!("wave {}", wave.unwrap_or_default()), str::to_string)
}

fn words(event: &Event) -> String {
    match event {
        Event::PlanStarted { plan, vms, done_before: 0 } => {
            format!("plan {plan}: {} to move", count(*vms, "VM"))
        }
        Event::PlanStarted { plan, vms, done_before } => {
            format!("plan {plan}: {} to move, {done_before} moved before", count(*vms, "VM"))
        }
        Event::PhaseStarted { vm, phase } => format!("{vm}: {phase} begins"),
        Event::PhaseEnded { vm, phase, seconds } => format!("{vm}: {phase} took {}", seconds_text(*seconds)),
        Event::Note { vm, text } => format!("{vm}: {text}"),
        Event::SourceAway { what } => format!("waits for {what}"),
        Event::SourceBack { what, seconds } => {
            format!("answers again after {}: {what}", seconds_text(*seconds))
        }
        Event::HookStarted { vm, wave, kind, point, number, what } => {
            let who = who(vm.as_deref(), wave.as_deref());
            format!("{who}: {} {point} {number} begins ({what})", call_word(*kind))
        }
        Event::HookEnded { vm, wave, kind, point, number, what, result, message, seconds } => {
            let who = who(vm.as_deref(), wave.as_deref());
            let (kind, result) = (call_word(*kind), result.word());
            let why = if message.is_empty() { String::new() } else { format!(": {message}") };
            format!("{who}: {kind} {point} {number} ({what}) {result} after {}{why}", seconds_text(*seconds))
        }
        Event::DiskCopied { vm, disk, root, bytes_read, seconds, link } => format!(
            "{vm}/{disk}: copied, {} read in {} at {}{}, root {root}",
            Bytes(*bytes_read),
            seconds_text(*seconds),
            Rate(if *seconds > 0.0 { *bytes_read as f64 / seconds } else { 0.0 }),
            link.as_ref().map(link_words).unwrap_or_default()
        ),
        Event::DiskVerified { vm, disk, blocks, blocks_total, equal } => {
            let verdict = if *equal { "equal" } else { "NOT EQUAL" };
            format!("{vm}/{disk}: verified, {blocks} of {blocks_total} blocks compared, {verdict}")
        }
        Event::PassStarted { vm, number, kind, .. } => {
            format!("{vm}: pass {number} begins ({})", kind_word(*kind))
        }
        Event::PassEnded {
            vm,
            number,
            kind,
            areas_bytes,
            read_bytes,
            changed_bytes,
            mismatches,
            seconds,
            ..
        } => {
            let wrong = if *mismatches > 0 { ", CHANGE TRACKING LIED" } else { "" };
            format!(
                "{vm}: pass {number} ({}) took {}, {} in areas, {} read, {} changed{wrong}",
                kind_word(*kind),
                seconds_text(*seconds),
                Bytes(*areas_bytes),
                Bytes(*read_bytes),
                Bytes(*changed_bytes)
            )
        }
        Event::PassWaits { vm, number, next_ms, forecast, .. } => {
            format!("{vm}: {}", wait_words(*number, *next_ms, forecast.as_ref()))
        }
        Event::CutoverStarted { vm, reason, forecast } => {
            let predicted =
                forecast.as_ref().map(|it| format!(", predicted downtime {}", forecast_words(it)));
            format!("{vm}: moves over: {reason}{}", predicted.unwrap_or_default())
        }
        Event::CutoverEnded { vm, forecast, downtime_ms, ready_ms } => {
            let predicted = forecast.as_ref().map(|it| format!(", predicted {}", forecast_words(it)));
            let real = cutover_words(*downtime_ms, *ready_ms);
            format!("{vm}: {real}{}", predicted.unwrap_or_default())
        }
        Event::VmEnded { vm, error, .. } => format!("{vm}: {}", error.as_deref().unwrap_or("done")),
        Event::VmRetried { vm, .. } => format!("{vm}: it failed, and is tried again by order"),
        Event::WaveStarted { wave, vms } => format!("wave {wave} begins: {}", count(*vms, "VM")),
        Event::WaveHeld { wave, by, failed } => format!(
            "wave {wave} waits: {} of wave {by} failed; `drover proceed PLAN {by}` lets it go on",
            count(*failed, "VM")
        ),
        Event::WaveEnded { wave, arrived, failed } => {
            format!("wave {wave} is over: {arrived} arrived, {failed} failed or did not begin")
        }
        Event::LimitsChanged { changed, .. } => format!("limits changed: {changed}"),
        Event::PlanEnded { plan, done, not_cleaned_up, failed, cancelled, unfinished } => {
            let left = and_not_cleaned_up(*not_cleaned_up);
            let given_up = if *cancelled > 0 { format!(", {cancelled} cancelled") } else { String::new() };
            format!("plan {plan}: {done} done{left}, {failed} failed{given_up}, {unfinished} unfinished")
        }
    }
}

/// Hook or check, for people.
pub(crate) fn call_word(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Hook => "hook",
        CallKind::Check => "check",
    }
}

fn seconds_text(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn journey(vm: &str) -> Vec<Event> {
        let vm = || vm.to_string();
        let copied = |disk: &str| Event::DiskCopied {
            vm: vm(),
            disk: disk.into(),
            root: "ab12".into(),
            bytes_read: 2 << 30,
            seconds: 2.5,
            link: None,
        };
        let verified = |disk: &str| Event::DiskVerified {
            vm: vm(),
            disk: disk.into(),
            blocks: 9,
            blocks_total: 9,
            equal: true,
        };
        vec![
            Event::PhaseStarted { vm: vm(), phase: Phase::Copy },
            copied("Hard disk 1"),
            copied("Hard disk 2"),
            Event::PhaseEnded { vm: vm(), phase: Phase::Copy, seconds: 5.0 },
            Event::PhaseStarted { vm: vm(), phase: Phase::Verify },
            verified("Hard disk 1"),
            verified("Hard disk 2"),
            Event::PhaseEnded { vm: vm(), phase: Phase::Verify, seconds: 1.0 },
        ]
    }

    fn ended(vm: &str, error: Option<&str>) -> Event {
        let state = if error.is_some() { VmState::Failed } else { VmState::Done };
        Event::VmEnded {
            vm: vm.into(),
            state,
            error: error.map(Into::into),
            advice: error.map(|_| "make room".into()),
            standing: None,
        }
    }

    fn texts(lines: Vec<Line>) -> Vec<String> {
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_vm_that_arrives_is_summed_up_in_one_line() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        tally.take(&Event::PlanStarted { plan: "lab".into(), vms: 3, done_before: 0 }, now);
        journey("web01").iter().for_each(|event| drop(tally.take(event, now)));
        assert_eq!((tally.running.len(), tally.queued()), (1, 2));
        let lines = texts(tally.take(&ended("web01", None), now));
        assert_eq!(lines, ["web01  done  2 disks  4 GiB  859 MB/s  hash equal"]);
        assert_eq!((tally.done, tally.running.len(), tally.queued()), (1, 0, 2));
    }

    #[test]
    fn a_vm_that_fails_says_why_and_what_to_try() {
        let mut tally = Tally::default();
        let lines = tally.take(&ended("web\u{1b}01", Some("disk full")), Instant::now());
        assert!(lines.iter().all(|line| line.bad));
        assert_eq!(texts(lines), ["web\u{fffd}01  FAILED  disk full", "  try: make room"]);
        assert_eq!((tally.failed, tally.queued()), (1, 0));
    }

    #[test]
    fn a_vm_that_is_tried_again_waits_and_has_not_failed() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        tally.take(&Event::PlanStarted { plan: "lab".into(), vms: 2, done_before: 0 }, now);
        tally.take(&ended("web01", Some("disk full")), now);
        assert_eq!((tally.failed, tally.queued()), (1, 1));
        let again = Event::VmRetried { vm: "web01".into(), error: Some("disk full".into()) };
        assert!(stays(&again));
        assert_eq!(texts(tally.take(&again, now)), ["web01: it failed, and is tried again by order"]);
        assert_eq!((tally.failed, tally.queued()), (0, 2));
        tally.take(&ended("web01", None), now);
        assert_eq!((tally.done, tally.failed, tally.queued()), (1, 0, 1));
    }

    #[test]
    fn a_vm_that_arrived_and_was_not_cleaned_up_is_neither_failed_nor_stopped() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        for error in ["snapshot 7 is busy", "stopped as asked"] {
            let error = Some(error.to_string());
            let end = Event::VmEnded {
                vm: "web01".into(),
                state: VmState::NotCleanedUp,
                error,
                advice: None,
                standing: None,
            };
            let lines = tally.take(&end, now);
            assert!(lines[0].bad && lines[0].text.starts_with("web01  NOT CLEANED UP  s"), "{lines:?}");
        }
        assert_eq!((tally.not_cleaned_up, tally.done, tally.failed, tally.stopped), (2, 0, 0, 0));
    }

    #[test]
    fn a_vm_that_was_stopped_has_not_failed() {
        let mut tally = Tally::default();
        let lines =
            tally.take(&ended("web01", Some("copy of web01/Hard disk 1: stopped as asked")), Instant::now());
        assert_eq!(texts(lines), ["web01  stopped"]);
        assert_eq!((tally.failed, tally.stopped), (0, 1));
    }

    #[test]
    fn a_vm_that_was_given_up_has_neither_failed_nor_been_stopped_and_waits_no_more() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        tally.take(&Event::PlanStarted { plan: "lab".into(), vms: 2, done_before: 0 }, now);
        let end = Event::VmEnded {
            vm: "web01".into(),
            state: VmState::Cancelled,
            error: Some("it is given up by order".into()),
            advice: None,
            standing: None,
        };
        assert_eq!(texts(tally.take(&end, now)), ["web01  given up  it is given up by order"]);
        assert_eq!((tally.cancelled, tally.failed, tally.stopped, tally.queued()), (1, 0, 0, 1));
    }

    #[test]
    fn equal_is_said_only_of_what_was_compared() {
        let sums = Sums { disks: 2, verified: 2, blocks: 10, blocks_total: 100, ..Sums::default() };
        assert_eq!(sums.verdict(), "10 % compared, equal");
        assert_eq!(Sums { verified: 1, ..sums.clone() }.verdict(), "1 of 2 compared, equal");
        assert_eq!(Sums { verified: 0, ..sums.clone() }.verdict(), "not compared in this run");
        assert_eq!(Sums { unequal: 1, ..sums }.verdict(), "HASH NOT EQUAL");
    }

    #[test]
    fn every_event_reads_as_a_line() {
        let mut tally = Tally::default();
        let lines = journey("web01").into_iter().flat_map(|event| tally.take(&event, Instant::now()));
        let text: Vec<String> = lines.map(|line| line.text).collect();
        assert_eq!(text[0], "web01: copy begins");
        assert_eq!(text[1], "web01/Hard disk 1: copied, 2 GiB read in 2.5 s at 859 MB/s, root ab12");
        assert_eq!(text[3], "web01: copy took 5.0 s");
        assert_eq!(text[5], "web01/Hard disk 1: verified, 9 of 9 blocks compared, equal");
        let end = |cancelled| Event::PlanEnded {
            plan: "lab".into(),
            done: 1,
            not_cleaned_up: 0,
            failed: 0,
            cancelled,
            unfinished: 2,
        };
        let mut told = |cancelled| texts(tally.take(&end(cancelled), Instant::now()));
        assert_eq!(told(0), ["plan lab: 1 done, 0 failed, 2 unfinished"]);
        assert_eq!(told(3), ["plan lab: 1 done, 0 failed, 3 cancelled, 2 unfinished"]);
    }

    #[test]
    fn times_that_no_clock_has_do_not_panic() {
        for seconds in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            seconds_text(seconds);
        }
    }
}
