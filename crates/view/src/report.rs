use std::collections::HashSet;
use std::fmt::{self, Write};

use drover_engine::{DiskReport, PassState, Phase, PlanReport, PlanState, VmReport, VmRow, VmState};
use drover_types::Bytes;
use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};

use crate::clock::local;
use crate::evidence::evidence;
use crate::filter::{Errors, Extent, LISTED_MAX, ShownState, VmFilter, others, write_errors};
use crate::foreseen::{self, compared, order_line, waits_for_cutover};
use crate::hooks::{write_hooks, write_rehearsals};
use crate::now::rate_text;
use crate::status::runs;
use crate::summary::{Equal, Summary, started_word, vm_rate, vm_state, vm_time, waited_for};
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, clean, count, duration};
use crate::warm::write_passes;
use crate::waves::waves_text;

/// The report of a plan as text: its VMs, what failed and what to try, its disks, and their proof.
pub fn report_text(report: &PlanReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_head(&mut text, report, &Summary::of(report))
        .and_then(|()| write_whole(&mut text, report, runs(&report.plan)));
    text
}

/// A part of it, below the sums of all: of some VMs everything; or, in short, what became of all, with details of those that
/// failed. `runs`: whether a process runs the plan, which is known where it would run alone. `at` is the option that says where the
/// plan is.
pub fn report_part_text(report: PlanReport, runs: bool, extent: Extent<'_>, at: &str) -> String {
    let mut text = String::new();
    let _ = write_part(&mut text, report, runs, extent, at);
    text
}

fn write_part(
    text: &mut String,
    mut report: PlanReport,
    runs: bool,
    extent: Extent<'_>,
    at: &str,
) -> fmt::Result {
    write_head(text, &report, &Summary::of(&report))?;
    if extent == Extent::Short {
        return write_short(text, report, runs, at);
    }
    let all = report.vms.len();
    keep(&mut report, extent);
    write_whole(text, &report, runs)?;
    text.push_str(&others(report.vms.len(), all));
    Ok(())
}

/// The report with the VMs of a filter alone, and with what happened to them; the whole of one that asks for nothing.
pub fn report_of(mut report: PlanReport, filter: &VmFilter) -> PlanReport {
    if !filter.is_empty() {
        keep(&mut report, Extent::Of(filter));
        let ids: HashSet<&str> = report.vms.iter().map(|vm| vm.row.id.as_str()).collect();
        report.events.retain(|event| event.vm.as_deref().is_none_or(|vm| ids.contains(vm)));
    }
    report
}

fn keep(report: &mut PlanReport, extent: Extent<'_>) {
    let keys: Vec<_> = report.vms.iter().map(vm_key).collect();
    let listed = extent.listed(&keys);
    let mut vms: Vec<Option<VmReport>> = std::mem::take(&mut report.vms).into_iter().map(Some).collect();
    report.vms = listed.into_iter().filter_map(|at| vms[at].take()).collect();
}

/// Name, wave and word of the state.
pub(crate) fn vm_key(vm: &VmReport) -> (&str, Option<&str>, &'static str) {
    (&vm.row.name, vm.row.wave.as_deref(), state_word(vm))
}

fn state_word(vm: &VmReport) -> &'static str {
    let passes = vm.warm.iter().flat_map(|warm| &warm.passes);
    let waits = || {
        vm.row.phase.as_deref() == Some(Phase::Passes.name())
            && passes.last().is_some_and(|pass| pass.state == PassState::Complete)
    };
    match vm.row.state {
        VmState::Running if waits() => ShownState::Waiting.word(),
        state => state.word(),
    }
}

/// The report of a plan as JSON: all that the store has, and a summary. Keys come in their order at every depth, and what there are
/// many of is made one after the other as it is written.
pub struct ReportJson<'a>(pub &'a PlanReport);

impl Serialize for ReportJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PlanReport { plan, runs, vms, waves, wave_hooks, rates, events } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("events", &Each(events))?;
        map.serialize_entry("forecast", &InOrder(&compared(self.0)))?;
        map.serialize_entry("plan", &InOrder(plan))?;
        map.serialize_entry("rates", &Each(rates))?;
        map.serialize_entry("runs", &Each(runs))?;
        map.serialize_entry("summary", &InOrder(&Summary::of(self.0)))?;
        map.serialize_entry("vms", &Each(vms))?;
        map.serialize_entry("waits_for_cutover", &InOrder(&waits_for_cutover(self.0)))?;
        map.serialize_entry("wave_hooks", &Each(wave_hooks))?;
        map.serialize_entry("waves", &Each(waves))?;
        map.end()
    }
}

/// One with its keys in their order.
struct InOrder<'a, T>(&'a T);

impl<T: Serialize> Serialize for InOrder<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::to_value(self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// The same of many.
struct Each<'a, T>(&'a [T]);

impl<T: Serialize> Serialize for Each<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(InOrder))
    }
}

fn write_whole(text: &mut String, report: &PlanReport, runs: bool) -> fmt::Result {
    if !report.vms.is_empty() {
        write!(text, "\n{}", vm_table(report))?;
    }
    text.push_str(&waves_text(&report.waves));
    report.vms.iter().try_for_each(|vm| write_notes(text, &vm.row))?;
    write_passes(text, report, runs)?;
    write_hooks(text, report)?;
    write_rehearsals(text, report)?;
    if report.vms.iter().any(|vm| !vm.disks.is_empty()) {
        write!(text, "\n{}", disk_table(report))?;
        write_links(text, report)?;
        writeln!(text, "\nRoots of the hash trees (BLAKE3, a leaf per 64 KiB):")?;
    }
    let disks = report.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
    disks.into_iter().try_for_each(|(vm, disk)| write_roots(text, vm, disk))?;
    let lines = evidence(report);
    if !lines.is_empty() {
        writeln!(text, "\nEvidence:")?;
    }
    lines.iter().try_for_each(|line| writeln!(text, "  {line}"))
}

fn write_short(text: &mut String, mut report: PlanReport, runs: bool, at: &str) -> fmt::Result {
    let all = report.vms.len();
    let mut notes = String::new();
    let rows: Vec<&VmRow> = report.vms.iter().map(|vm| &vm.row).collect();
    // Of few VMs each has its notes.
    let errors = if Extent::Short.groups(all) { Extent::Short.errors(all) } else { Errors::Each };
    write_errors(&mut notes, &rows, errors, write_notes)?;
    keep(&mut report, Extent::Short);
    let listed = report.vms.len();
    if listed > 0 {
        write!(text, "\n{}", vm_table(&report))?;
    }
    text.push_str(&waves_text(&report.waves));
    text.push_str(&notes);
    report.vms.retain(|vm| vm.row.error.is_some());
    write_passes(text, &report, runs)?;
    write_hooks(text, &report)?;
    if report.vms.iter().any(|vm| !vm.disks.is_empty()) {
        write!(text, "\n{}", disk_table(&report))?;
    }
    let (part, vms) = match all > LISTED_MAX {
        true => (format!("listed: {listed} of {all} VMs; "), " --vm '*'"),
        false => (String::new(), ""),
    };
    writeln!(text, "\n{part}all VMs and their proof: drover report {}{vms}{at}", clean(&report.plan.name))
}

fn write_head(text: &mut String, report: &PlanReport, summary: &Summary) -> fmt::Result {
    let plan = &report.plan;
    let (from, to) = (local(plan.started_ms), local(summary.ended_ms));
    let state = plan_state(plan.state);
    writeln!(text, "plan {}: {state}, {from} to {to}, {}", clean(&plan.name), duration(summary.elapsed()))?;
    writeln!(text, "{}; {}", summary.verdict(), summary.proof())?;
    write!(
        text,
        "{} of {}, {} of data; {} read, {} written in all runs",
        count(summary.disks, "disk"),
        Bytes(summary.size_bytes),
        Bytes(summary.data_bytes),
        Bytes(summary.read_bytes),
        Bytes(summary.written_bytes)
    )?;
    if summary.resumed_bytes > 0 {
        write!(text, "; {} not copied again, holes included", Bytes(summary.resumed_bytes))?;
    }
    writeln!(text)?;
    let foreseen = compared(report).map(|it| foreseen::lines(&it)).unwrap_or_default();
    foreseen.iter().try_for_each(|line| writeln!(text, "{line}"))?;
    if let Some(waits) = waits_for_cutover(report) {
        writeln!(text, "{}", order_line(&clean(&plan.name), &waits))?;
    }
    match waited_for(&summary.attribution) {
        waits if waits.is_empty() => Ok(()),
        waits => writeln!(text, "copies waited for: {waits}"),
    }
}

fn vm_table(report: &PlanReport) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("VM", Left),
        ("STATE", Left),
        ("DISKS", Right),
        ("SIZE", Right),
        ("DATA", Right),
        ("READ", Right),
        ("RATE", Right),
        ("HASH EQUAL", Left),
        ("STARTED", Left),
        ("TIME", Right),
    ]);
    for vm in &report.vms {
        let size = vm.disks.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.size));
        table.row([
            vm.row.name.clone(),
            if state_word(vm) == "waiting" { "waiting" } else { vm_state(vm.row.state) }.into(),
            vm.disks.len().to_string(),
            Bytes(size).to_string(),
            Bytes(vm.sum(|disk| disk.data_bytes)).to_string(),
            Bytes(vm.read_in_all()).to_string(),
            rate_text(vm_rate(vm)),
            Equal::of_disks(&vm.disks).to_string(),
            started_word(vm).into(),
            vm_time(vm).map_or(UNKNOWN.into(), duration),
        ]);
    }
    table
}

fn write_notes(text: &mut String, row: &VmRow) -> fmt::Result {
    let name = clean(&row.name);
    if let Some(started) = &row.started {
        writeln!(text, "\n{name} started: {}", clean(started))?;
    }
    if let Some(error) = &row.error {
        let phase = row.phase.as_deref().unwrap_or("its first phase");
        writeln!(text, "\n{name} {} in {}: {}", vm_state(row.state), clean(phase), clean(error))?;
    }
    if let Some(advice) = &row.advice {
        writeln!(text, "  try: {}", clean(advice))?;
    }
    Ok(())
}

fn disk_table(report: &PlanReport) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("DISK", Left),
        ("SIZE", Right),
        ("DATA", Right),
        ("READ", Right),
        ("RESUMED", Right),
        ("RETRIES", Right),
        ("RATE", Right),
        ("HASH EQUAL", Left),
        ("WAITED FOR", Left),
    ]);
    for (vm, disk) in report.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        let bytes = |bytes: Option<u64>| bytes.map_or(UNKNOWN.into(), |bytes| Bytes(bytes).to_string());
        table.row([
            format!("{}/{}", vm.row.name, disk.label),
            Bytes(disk.size).to_string(),
            bytes(disk.details.data_bytes),
            bytes(disk.details.read_bytes.map(|_| disk.details.read_in_all())),
            bytes(disk.details.resumed_bytes),
            disk.details.retries.map_or(UNKNOWN.into(), |retries| retries.to_string()),
            rate_text(disk.read_rate),
            Equal::of_disk(disk).to_string(),
            disk.attribution.as_ref().map(waited_for).unwrap_or_default(),
        ]);
    }
    table
}

/// What crossed the line to other sites, and what did not have to.
fn write_links(text: &mut String, report: &PlanReport) -> fmt::Result {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("OVER THE LINK, IN ALL RUNS", Left),
        ("SITE", Left),
        ("SENT", Right),
        ("PACKED TO", Right),
        ("NOT SENT: ZEROS", Right),
        ("THERE BY HASH", Right),
        ("LINK LOST", Right),
    ]);
    let disks = report.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
    let linked: Vec<_> = disks.filter_map(|(vm, disk)| Some((vm, disk, disk.link?))).collect();
    for (vm, disk, link) in &linked {
        table.row([
            format!("{}/{}", vm.row.name, disk.label),
            vm.row.site.clone().unwrap_or_else(|| UNKNOWN.into()),
            Bytes(link.sent).to_string(),
            Bytes(link.sent_packed).to_string(),
            Bytes(link.zero).to_string(),
            Bytes(link.had).to_string(),
            link.reopened.to_string(),
        ]);
    }
    if linked.is_empty() { Ok(()) } else { write!(text, "\n{table}") }
}

fn write_roots(text: &mut String, vm: &VmReport, disk: &DiskReport) -> fmt::Result {
    let root = |root: &Option<String>| clean(root.as_deref().unwrap_or(UNKNOWN)).into_owned();
    writeln!(text, "  {}/{}", clean(&vm.row.name), clean(&disk.label))?;
    writeln!(text, "    source  {}", root(&disk.details.root))?;
    writeln!(text, "    target  {}", root(&disk.details.target_root))?;
    writeln!(text, "    image   {}", clean(&disk.path.display().to_string()))?;
    match &disk.details.note {
        Some(note) => writeln!(text, "    note    {}", clean(note)),
        None => Ok(()),
    }
}

/// State of a plan in a word.
pub(crate) fn plan_state(state: PlanState) -> &'static str {
    match state {
        PlanState::Running => "running",
        PlanState::Done => "done",
        PlanState::Incomplete => "incomplete",
        PlanState::Cancelled => "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_text_says_what_arrived_what_failed_and_how_it_is_proven() {
        let (root, hash) = ("a1".repeat(32), "b2".repeat(32));
        let expected = format!(
            "\
plan lab: incomplete, 2026-03-01 14:05:10 to 2026-03-01 14:06:22, 1 min 12 s
1 of 2 VMs arrived, 1 failed; every block of the 1 VM that arrived was read back and is equal
3 disks of 30 GiB, 6 GiB of data; 5 GiB read, 6 GiB written in all runs; 1 GiB not copied again, holes included
copies waited for: source 71 %, target 20 %, cpu 6 %

VM             STATE   DISKS    SIZE   DATA   READ      RATE  HASH EQUAL   STARTED        TIME
web01          done        2  20 GiB  4 GiB  4 GiB  107 MB/s  yes          yes      1 min 00 s
<db> & \"co\"'s  FAILED      1  10 GiB  2 GiB  1 GiB        --  not checked  no       1 min 00 s

WAVE   STATE   VMS  DONE  AT WORK  FAILED  WINDOW
pilot  failed    2     1        0       1  22:00-06:00 UTC
wave pilot is after lab-first
those after wave pilot go on: somebody said so

web01 started: runs as process 42

<db> & \"co\"'s FAILED in copy: copy of <db> & \"co\"/Hard disk 1: write: no space left
  try: make room on the target, then `drover resume`

DISK                         SIZE   DATA   READ  RESUMED  RETRIES      RATE  HASH EQUAL   WAITED FOR
web01/Hard disk 1          10 GiB  2 GiB  2 GiB      0 B        0  537 MB/s  yes          source 71 %, target 20 %, cpu 6 %
web01/Hard disk 2          10 GiB  2 GiB  2 GiB      0 B        0  537 MB/s  yes          source 71 %, target 20 %, cpu 6 %
<db> & \"co\"'s/Hard disk 1  10 GiB  2 GiB  1 GiB    1 GiB        3        --  not checked  source 71 %, target 20 %, cpu 6 %

Roots of the hash trees (BLAKE3, a leaf per 64 KiB):
  web01/Hard disk 1
    source  {root}
    target  {root}
    image   /images/vm-1/disk0.raw
  web01/Hard disk 2
    source  {root}
    target  {root}
    image   /images/vm-1/disk1.raw
  <db> & \"co\"'s/Hard disk 1
    source  --
    target  --
    image   /images/vm-2/disk0.raw
    note    journal was cut

Evidence:
  run 2026-03-01 14:05:10 by ann (uid 1000) on kvm1, drover 1.2.3
    plan /plans/lab.yaml, BLAKE3 {hash}
    source vc1, VMware vCenter Server 8.0.2, instance UUID 42-cafe
  web01: vm-1 at the source, instance UUID 50-beef, host esx1; to kvm1
  <db> & \"co\"'s: vm-2 at the source; to kvm1
"
        );
        assert_eq!(report_text(&sample::report()), expected);
    }

    #[test]
    fn of_a_fleet_the_short_report_has_what_failed_and_a_filter_has_the_rest() {
        let mut report = sample::report();
        report.vms[1].row.name = "web02".into();
        let (done, failed) = (report.vms[0].clone(), report.vms[1].clone());
        let named = |vm: &VmReport, at: usize| {
            let mut vm = vm.clone();
            (vm.row.id, vm.row.name) = (format!("vm-{at}"), format!("web{at:04}"));
            vm
        };
        report.vms = (0..100).map(|at| named(if at < 3 { &failed } else { &done }, at)).collect();
        let short = report_part_text(report.clone(), false, Extent::Short, " --state s");
        for part in [
            "97 of 100 VMs arrived, 3 failed;",
            "web0001  FAILED",
            "\n3 VMs: copy of <db> & \"co\"/Hard disk 1: write: no space left\n  try: make room",
            "web0002/Hard disk 1",
            "\nlisted: 3 of 100 VMs; all VMs and their proof: drover report lab --vm '*' --state s\n",
        ] {
            assert!(short.contains(part), "{part}:\n{short}");
        }
        assert!(
            short.lines().count() < 30 && !short.contains("web0003") && !short.contains("Roots"),
            "{short}"
        );
        let filter = VmFilter { names: vec!["web0003".into()], ..VmFilter::default() };
        let part = report_part_text(report.clone(), false, filter.extent(), "");
        assert!(part.contains("97 of 100 VMs arrived") && part.contains("listed: 1 of 100 VMs"), "{part}");
        assert!(part.contains("web0003: vm-3 at the source") && !part.contains("web0004"), "{part}");
        let json = sample::json(&report_of(report.clone(), &filter));
        assert_eq!((&json["summary"]["vms"], json["events"].as_array().unwrap().len()), (&1.into(), 0));
        let read: PlanReport = serde_json::from_value(sample::json(&report)).unwrap();
        assert_eq!(report_text(&read), report_text(&report), "a daemon's is told as one's own");
        // Of a small plan a run tells the VMs, and no proof.
        let small = report_part_text(sample::report(), false, Extent::Short, "");
        assert!(
            small.contains("web01          done")
                && small.contains("web01 started: ")
                && !small.contains("web01/Hard disk 1"),
            "{small}"
        );
        assert!(small.ends_with("\nall VMs and their proof: drover report lab\n"), "{small}");
    }

    #[test]
    fn a_plan_that_a_process_elsewhere_runs_is_told_as_one_that_runs() {
        let mut report = sample::report();
        // No process of this machine has that number.
        (report.plan.state, report.plan.pid) = (PlanState::Running, Some(u32::MAX));
        let mut warm = sample::warm();
        (warm.ready_ms, warm.row.down_ms) = (None, None);
        warm.row.next_ms = Some(sample::START + 90_000);
        report.vms[0].row.state = VmState::Running;
        report.vms[0].warm = Some(warm);
        let text =
            |runs| report_part_text(report.clone(), runs, Extent::Whole, " --server https://mover:8443");
        assert!(text(true).contains("web01: pass 3 at 14:06:40, down for 12 s"), "{}", text(true));
        assert!(text(false).contains("web01: 2 passes done, predicted downtime 12 s"), "{}", text(false));
        assert!(report_text(&report).contains("web01: 2 passes done"), "here nobody runs it");
    }

    #[test]
    fn what_crossed_a_link_is_told_with_its_site() {
        let mut report = sample::report();
        assert!(!report_text(&report).contains("OVER THE LINK"));
        let mib = |mib: u64| mib << 20;
        report.vms[0].row.site = Some("site-b".into());
        let link = drover_engine::LinkBytes {
            sent: mib(100),
            sent_packed: mib(40),
            had: mib(30),
            zero: mib(5),
            reopened: 2,
        };
        report.vms[0].disks[1].link = Some(link);
        let text = report_text(&report);
        let line = text.lines().find(|line| line.contains("site-b")).unwrap();
        let words: Vec<&str> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        assert_eq!(words, ["web01/Hard disk 2", "site-b", "100 MiB", "40 MiB", "5 MiB", "30 MiB", "2"]);
        assert_eq!(sample::json(&report)["vms"][0]["disks"][1]["link"]["had"], mib(30));
        assert_eq!(sample::json(&report)["vms"][0]["site"], "site-b");
    }

    #[test]
    fn the_json_has_all_and_a_summary() {
        let value = sample::json(&sample::report());
        assert_eq!(value["summary"]["done"], 1);
        assert_eq!(value["summary"]["equal"], "not_checked");
        assert_eq!(value["vms"][0]["name"], "web01");
        assert_eq!(value["vms"][0]["disks"][1]["details"]["root"], "a1".repeat(32));
    }

    #[test]
    fn keys_of_the_json_are_in_order_at_every_depth() {
        let report = sample::report();
        let text = serde_json::to_string_pretty(&ReportJson(&report)).unwrap();
        // A value has its keys in order.
        assert_eq!(text, format!("{:#}", serde_json::from_str::<serde_json::Value>(&text).unwrap()));
        let (of_all, told) = (serde_json::to_value(&report).unwrap(), sample::json(&report));
        assert!(of_all.as_object().unwrap().iter().all(|(key, value)| told[key] == *value), "{text}");
        assert_eq!(told.as_object().unwrap().len(), of_all.as_object().unwrap().len() + 3);
    }

    #[test]
    fn an_empty_report_is_still_a_report() {
        let text = report_text(&sample::empty());
        assert!(text.contains("0 of 0 VMs arrived; no disk was copied"), "{text}");
        assert_eq!(sample::json(&sample::empty())["summary"]["vms"], 0);
    }
}
