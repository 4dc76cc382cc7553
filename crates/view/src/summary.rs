//! What a report adds up to; the text, the JSON and the page say the same.

use std::fmt;
use std::time::Duration;

use drover_engine::{DiskReport, Phase, PlanReport, VmReport, VmState};
use drover_mover::Attribution;
use serde::Serialize;

use crate::text::{between, count, percent};

/// Stages that took a smaller share of the time are not worth a word.
const SHARE_MIN: f64 = 0.05;
/// Whether what arrived is what left, as far as somebody looked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Equal {
    /// Every block was compared.
    Yes,
    /// Those that were compared, a share from 0 to 1.
    Sampled(f64),
    /// Some block differs.
    No,
    /// Nobody looked, or not at all of it.
    NotChecked,
}

impl fmt::Display for Equal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Equal::Yes => f.pad("yes"),
            Equal::Sampled(share) => f.pad(&format!("yes, of {} %", percent(*share))),
            Equal::No => f.pad("NO"),
            Equal::NotChecked => f.pad("not checked"),
        }
    }
}

impl Equal {
    /// Of one disk.
    pub(crate) fn of_disk(disk: &DiskReport) -> Equal {
        let blocks = (disk.details.blocks_verified.unwrap_or(0), disk.details.blocks.unwrap_or(0));
        match disk.equal {
            None => Equal::NotChecked,
            Some(false) => Equal::No,
            Some(true) if roots_differ(disk) => Equal::No,
            Some(true) if blocks.0 < blocks.1 => Equal::Sampled(blocks.0 as f64 / blocks.1 as f64),
            Some(true) => Equal::Yes,
        }
    }

    /// Of several disks: a difference in one outweighs all, then one that was not checked.
    pub(crate) fn of_disks<'a>(disks: impl IntoIterator<Item = &'a DiskReport>) -> Equal {
        disks.into_iter().map(Equal::of_disk).reduce(Equal::and).unwrap_or(Equal::NotChecked)
    }

    /// Of several VMs. What was read back of one that has not arrived may not be what its source holds by now.
    pub(crate) fn of_vms<'a>(vms: impl IntoIterator<Item = &'a VmReport>) -> Equal {
        let of_vm = |vm: &VmReport| match (Equal::of_disks(&vm.disks), vm.has_arrived()) {
            (Equal::No, _) => Equal::No,
            (_, false) => Equal::NotChecked,
            (equal, true) => equal,
        };
        vms.into_iter().map(of_vm).reduce(Equal::and).unwrap_or(Equal::NotChecked)
    }

    fn and(self, other: Equal) -> Equal {
        match (self, other) {
            (Equal::No, _) | (_, Equal::No) => Equal::No,
            (Equal::NotChecked, _) | (_, Equal::NotChecked) => Equal::NotChecked,
            (Equal::Sampled(one), Equal::Sampled(two)) => Equal::Sampled(one.min(two)),
            (Equal::Sampled(share), Equal::Yes) | (Equal::Yes, Equal::Sampled(share)) => {
                Equal::Sampled(share)
            }
            (Equal::Yes, Equal::Yes) => Equal::Yes,
        }
    }
}

fn roots_differ(disk: &DiskReport) -> bool {
    matches!((&disk.details.root, &disk.details.target_root), (Some(source), Some(target)) if source != target)
}

/// All VMs of a report together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub vms: usize,
    pub done: usize,
    /// At the target, with a source that was not cleaned up.
    pub not_cleaned_up: usize,
    pub failed: usize,
    /// Given up by order.
    pub cancelled: usize,
    /// Neither arrived nor failed, nor given up.
    pub unfinished: usize,
    pub disks: usize,
    pub size_bytes: u64,
    pub data_bytes: u64,
    /// By all copies and passes of all runs.
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// That the last copies had not to do, holes among them.
    pub resumed_bytes: u64,
    pub retries: u64,
    /// Of all VMs: one that has not arrived is not known to be equal.
    pub equal: Equal,
    /// Of those that arrived.
    #[serde(skip)]
    pub arrived_equal: Equal,
    /// From the begin of the plan to its end, or to the last that is known of it.
    pub elapsed_ms: u64,
    /// The moment that the plan ended, or the last that is known of it.
    pub ended_ms: i64,
    /// Where the time of all copies went.
    pub attribution: Attribution,
}

impl Summary {
    pub(crate) fn of(report: &PlanReport) -> Summary {
        let disks = || report.vms.iter().flat_map(|vm| &vm.disks);
        let sum =
            |field: fn(&DiskReport) -> Option<u64>| disks().filter_map(field).fold(0, u64::saturating_add);
        let in_state = |state| report.vms.iter().filter(|vm| vm.row.state == state).count();
        let (done, failed) = (in_state(VmState::Done), in_state(VmState::Failed));
        let (not_cleaned_up, cancelled) = (in_state(VmState::NotCleanedUp), in_state(VmState::Cancelled));
        let ended_ms = report.plan.ended_ms.unwrap_or_else(|| last_seen(report));
        Summary {
            vms: report.vms.len(),
            done,
            not_cleaned_up,
            failed,
            cancelled,
            unfinished: report.vms.len() - done - not_cleaned_up - failed - cancelled,
            disks: disks().count(),
            size_bytes: sum(|disk| Some(disk.size)),
            data_bytes: sum(|disk| disk.details.data_bytes),
            read_bytes: report.vms.iter().fold(0, |sum, vm| vm.read_in_all().saturating_add(sum)),
            written_bytes: report.vms.iter().fold(0, |sum, vm| vm.written_in_all().saturating_add(sum)),
            resumed_bytes: sum(|disk| disk.details.resumed_bytes),
            retries: sum(|disk| disk.details.retries),
            equal: Equal::of_vms(&report.vms),
            arrived_equal: Equal::of_vms(report.vms.iter().filter(|vm| vm.has_arrived())),
            elapsed_ms: between(report.plan.started_ms, ended_ms).as_millis() as u64,
            ended_ms,
            attribution: disks()
                .filter_map(|disk| disk.attribution)
                .fold(Attribution::default(), saturating_plus),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_millis(self.elapsed_ms)
    }

    /// VMs at the target.
    pub(crate) fn arrived(&self) -> usize {
        self.done + self.not_cleaned_up
    }

    /// `3 of 4 VMs arrived, 1 failed`.
    pub(crate) fn verdict(&self) -> String {
        let mut text = format!("{} of {} arrived", self.arrived(), count(self.vms, "VM"));
        text.push_str(&and_not_cleaned_up(self.not_cleaned_up));
        if self.failed > 0 {
            text.push_str(&format!(", {} failed", self.failed));
        }
        if self.cancelled > 0 {
            text.push_str(&format!(", {} cancelled", self.cancelled));
        }
        if self.unfinished > 0 {
            text.push_str(&format!(", {} unfinished", self.unfinished));
        }
        text
    }

    /// The proof in a sentence, about what has arrived and nothing else.
    pub(crate) fn proof(&self) -> String {
        let of_these = match self.vms - self.arrived() {
            0 => String::new(),
            _ => format!(" of the {} that arrived", count(self.arrived(), "VM")),
        };
        match (self.equal, self.arrived_equal) {
            _ if self.disks == 0 => "no disk was copied".into(),
            (Equal::No, _) => "SOME DISK IS NOT EQUAL TO ITS SOURCE".into(),
            _ if self.arrived() == 0 => "nothing has arrived that could be equal".into(),
            (_, Equal::Yes) => format!("every block{of_these} was read back and is equal"),
            (_, Equal::Sampled(share)) => {
                let percent = percent(share);
                format!(
                    "of each disk{of_these} {percent} % of the blocks or more were read back and are equal"
                )
            }
            (_, Equal::No | Equal::NotChecked) => format!("not all disks{of_these} were compared"),
        }
    }
}

fn last_seen(report: &PlanReport) -> i64 {
    let events = report.events.iter().map(|event| event.at_ms);
    let moments = events.chain(report.rates.iter().map(|point| point.at_ms));
    moments.max().unwrap_or(report.plan.started_ms)
}

fn saturating_plus(one: Attribution, two: Attribution) -> Attribution {
    Attribution {
        source_ns: one.source_ns.saturating_add(two.source_ns),
        cpu_ns: one.cpu_ns.saturating_add(two.cpu_ns),
        target_ns: one.target_ns.saturating_add(two.target_ns),
        flush_ns: one.flush_ns.saturating_add(two.flush_ns),
        idle_ns: one.idle_ns.saturating_add(two.idle_ns),
    }
}

/// What the workers' time went to, the most first: `source 71 %, target 20 %`; empty if nothing is known.
pub(crate) fn waited_for(time: &Attribution) -> String {
    let mut stages = [
        ("source", time.source_ns),
        ("cpu", time.cpu_ns),
        ("target", time.target_ns),
        ("flush", time.flush_ns),
        ("idle", time.idle_ns),
    ]
    .map(|(name, ns)| (name, ns as f64));
    let sum: f64 = stages.iter().map(|(_, ns)| ns).sum();
    stages.sort_by(|one, two| two.1.total_cmp(&one.1));
    let worth = stages.iter().filter(|(_, ns)| sum > 0.0 && ns / sum >= SHARE_MIN);
    worth.map(|(name, ns)| format!("{name} {} %", percent(ns / sum))).collect::<Vec<_>>().join(", ")
}

/// Bytes per second of a VM's last copy phase.
pub(crate) fn vm_rate(vm: &VmReport) -> Option<f64> {
    let read = vm.sum(|disk| disk.read_bytes);
    let phase =
        vm.phases.iter().rev().find(|phase| phase.phase == Phase::Copy.name() && phase.ended_ms.is_some());
    let phase = phase.map(|phase| between(phase.started_ms, phase.ended_ms.unwrap_or(phase.started_ms)));
    let longest = vm.disks.iter().filter_map(|disk| disk.details.copy_ms).max().map(Duration::from_millis);
    let seconds = phase.or(longest)?.as_secs_f64();
    (read > 0 && seconds > 0.0).then(|| read as f64 / seconds)
}

/// Whether the machine was started at the target, in a word.
pub(crate) fn started_word(vm: &VmReport) -> &'static str {
    let in_start = vm.row.phase.as_deref() == Some(Phase::Start.name());
    match vm.row.started {
        Some(_) => "yes",
        None if in_start && vm.row.touched => "tried",
        None => "no",
    }
}

/// How long a VM took, if it has ended.
pub(crate) fn vm_time(vm: &VmReport) -> Option<Duration> {
    vm.row.started_ms.zip(vm.row.ended_ms).map(|(started, ended)| between(started, ended))
}

/// `, 1 not cleaned up at the source`; empty for none.
pub(crate) fn and_not_cleaned_up(vms: usize) -> String {
    if vms == 0 { String::new() } else { format!(", {vms} not cleaned up at the source") }
}

/// State of a VM in a word.
pub fn vm_state(state: VmState) -> &'static str {
    match state {
        VmState::NotCleanedUp => "NOT CLEANED UP",
        VmState::Failed => "FAILED",
        state => state.word(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn equal_needs_every_block_of_every_disk() {
        let report = sample::report();
        assert_eq!(Equal::of_disks(&report.vms[0].disks), Equal::Yes);
        assert_eq!(Equal::of_disks(&report.vms[1].disks), Equal::NotChecked);
        assert_eq!(Equal::of_disks([]), Equal::NotChecked);
        let mut disk = report.vms[0].disks[0].clone();
        disk.details.blocks_verified = disk.details.blocks.map(|blocks| blocks / 10);
        assert_eq!(Equal::of_disks([&disk, &report.vms[0].disks[1]]), Equal::Sampled(0.1));
        disk.details.target_root = Some("other".into());
        assert_eq!(Equal::of_disks([&report.vms[1].disks[0], &disk]), Equal::No);
    }

    #[test]
    fn time_is_told_by_the_stages_that_took_it() {
        let time = Attribution { source_ns: 710, target_ns: 200, cpu_ns: 60, flush_ns: 20, idle_ns: 10 };
        assert_eq!(waited_for(&time), "source 71 %, target 20 %, cpu 6 %");
        assert_eq!(waited_for(&Attribution::default()), "");
        assert!(
            waited_for(&Attribution { source_ns: u64::MAX, cpu_ns: u64::MAX, ..time })
                .starts_with("source 50 %")
        );
    }

    #[test]
    fn the_sum_of_a_plan_says_what_arrived_and_what_is_proven() {
        let summary = Summary::of(&sample::report());
        assert_eq!(summary.verdict(), "1 of 2 VMs arrived, 1 failed");
        assert_eq!(summary.proof(), "every block of the 1 VM that arrived was read back and is equal");
        assert_eq!(summary.equal, Equal::NotChecked);
        assert_eq!((summary.disks, summary.read_bytes), (3, 5 << 30));
    }

    #[test]
    fn nothing_is_called_equal_beside_vms_that_did_not_arrive() {
        let mut report = sample::report();
        // Failed after its disks were read back; and another that failed before it had any.
        report.vms[0].row.state = VmState::Failed;
        report.vms[1].disks.clear();
        let summary = Summary::of(&report);
        assert_eq!(summary.verdict(), "0 of 2 VMs arrived, 2 failed");
        assert_eq!(summary.proof(), "nothing has arrived that could be equal");
        report.vms[0].row.state = VmState::Done;
        let summary = Summary::of(&report);
        assert_eq!(summary.proof(), "every block of the 1 VM that arrived was read back and is equal");
        let json = crate::sample::json(&report);
        assert_eq!(json["summary"]["equal"], serde_json::json!(Equal::NotChecked));
        let (text, page) = (crate::report_text(&report), crate::report_html(&report));
        assert!(
            !text.contains("; every block was read back") && !page.contains("; every block was read back")
        );
        assert!(!page.contains("verdict good"));
        report.vms.remove(1);
        assert_eq!(Summary::of(&report).proof(), "every block was read back and is equal");
    }

    #[test]
    fn vms_that_were_given_up_are_cancelled_and_not_unfinished() {
        let mut report = sample::report();
        report.vms[1].row.state = VmState::Cancelled;
        let summary = Summary::of(&report);
        assert_eq!((summary.cancelled, summary.unfinished), (1, 0));
        assert_eq!(summary.verdict(), "1 of 2 VMs arrived, 1 cancelled");
        report.vms[1].row.state = VmState::Stopped;
        assert_eq!(Summary::of(&report).verdict(), "1 of 2 VMs arrived, 1 unfinished");
        assert_eq!(sample::json(&report)["summary"]["cancelled"], 0);
    }

    #[test]
    fn bytes_are_those_of_all_passes_and_runs() {
        let mut report = sample::report();
        // Its last pass read nothing, and changed the rate of nothing.
        let disk = &mut report.vms[0].disks[0].details;
        (disk.read_bytes, disk.written_bytes) = (Some(0), Some(0));
        (disk.read_bytes_all, disk.written_bytes_all) = (Some(3 << 30), Some(7 << 30));
        let summary = Summary::of(&report);
        assert_eq!((summary.read_bytes, summary.written_bytes), (6 << 30, 11 << 30));
        let text = crate::report_text(&report);
        assert!(text.contains("6 GiB read, 11 GiB written in all runs"), "{text}");
        assert!(text.contains("10 GiB  2 GiB  3 GiB      0 B"), "its disk: {text}");
        let table = crate::report_csv(&report, &crate::VmFilter::default());
        assert!(table.contains(",4294967296,5368709120,9663676416,0,"), "{table}");
        assert!(crate::report_html(&report).contains("<dt>Read in all runs</dt><dd>6 GiB</dd>"));
        // Of what an earlier drover copied, passes are known.
        report.vms[0].disks[0].details.read_bytes_all = None;
        report.vms[0].warm = Some(sample::warm());
        assert_eq!(Summary::of(&report).read_bytes, 21 << 30);
    }

    #[test]
    fn an_empty_report_has_a_sum() {
        let summary = Summary::of(&sample::empty());
        assert_eq!(summary.verdict(), "0 of 0 VMs arrived");
        assert_eq!(summary.proof(), "no disk was copied");
        assert_eq!(summary.elapsed_ms, 0);
    }
}
