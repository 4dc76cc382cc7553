//! Hooks and checks of a report: what was called, when, how long it took and what it decided.

use std::fmt::{self, Write};

use drover_engine::{HookResult, HookRow, PlanReport, RehearsalRow, RehearsedCheck, VmReport};

use crate::clock::local;
use crate::table::{Align, Table};
use crate::tally::call_word;
use crate::text::{UNKNOWN, between, clean, duration};

/// Columns of a table of hooks, and whether they hold numbers.
pub(crate) const HOOK_COLUMNS: [(&str, bool); 6] = [
    ("VM", false),
    ("Hook or check", false),
    ("Calls", false),
    ("Began", false),
    ("Time", true),
    ("Outcome", false),
];

/// Lines of what a call that went wrong wrote.
const OUTPUT_LINES_MAX: usize = 8;

/// The rows of that table.
pub(crate) fn hook_cells(report: &PlanReport) -> Vec<[String; 6]> {
    let cells = |name: &str, row: &HookRow| {
        let time = row.ended_ms.map_or(UNKNOWN.into(), |ended_ms| duration(between(row.began_ms, ended_ms)));
        [
            name.to_string(),
            format!("{} {} {}", call_word(row.kind), row.point, row.number),
            row.what.clone(),
            local(row.began_ms),
            time,
            outcome(row),
        ]
    };
    let of_vm = |vm: &drover_engine::VmReport| {
        vm.hooks.iter().map(|row| cells(&vm.row.name, row)).collect::<Vec<_>>()
    };
    let of_waves = report.wave_hooks.iter().map(|it| cells(&wave_words(&it.wave), &it.call));
    report.vms.iter().flat_map(of_vm).chain(of_waves).collect()
}

fn wave_words(wave: &str) -> String {
    format!("wave {wave}")
}

fn outcome(row: &HookRow) -> String {
    match (row.result, row.message.as_str()) {
        // It runs, or its process was killed.
        (None, _) => "not ended".into(),
        (Some(result), "") => result.word().into(),
        (Some(result), message) => format!("{}: {message}", result.word()),
    }
}

/// Hooks and checks of all VMs as text, with the words of those that went wrong.
pub(crate) fn write_hooks(text: &mut String, report: &PlanReport) -> fmt::Result {
    let cells = hook_cells(report);
    if cells.is_empty() {
        return Ok(());
    }
    let heads = HOOK_COLUMNS.map(|(name, is_number)| (name.to_uppercase(), is_number));
    let side = |is_number| if is_number { Align::Right } else { Align::Left };
    let columns: Vec<(&str, Align)> = heads.iter().map(|(name, it)| (name.as_str(), side(*it))).collect();
    let mut table = Table::new(&columns);
    cells.into_iter().for_each(|cells| table.row(cells));
    write!(text, "\n{table}")?;
    let of_vms = report.vms.iter().flat_map(|vm| vm.hooks.iter().map(|row| (vm.row.name.clone(), row)));
    let rows = of_vms.chain(report.wave_hooks.iter().map(|it| (wave_words(&it.wave), &it.call)));
    for (name, row) in rows.filter(|(_, row)| went_wrong(row) && !row.output.trim().is_empty()) {
        writeln!(text, "\n{}, {} {} wrote:", clean(&name), row.point, row.number)?;
        let lines: Vec<&str> = row.output.trim_end().lines().collect();
        for line in &lines[lines.len().saturating_sub(OUTPUT_LINES_MAX)..] {
            writeln!(text, "  {}", clean(line))?;
        }
    }
    Ok(())
}

/// Columns of a table of rehearsals, and whether they hold numbers.
pub(crate) const REHEARSAL_COLUMNS: [(&str, bool); 5] =
    [("VM", false), ("Rehearsed", false), ("Time", true), ("Outcome", false), ("Asked", false)];

/// The rows of that table.
pub(crate) fn rehearsal_cells(report: &PlanReport) -> Vec<[String; 5]> {
    let cells = |vm: &VmReport, row: &RehearsalRow| {
        let time = row.ended_ms.map_or(UNKNOWN.into(), |ended_ms| duration(between(row.began_ms, ended_ms)));
        let word = row.result.map_or("not ended", |result| result.word());
        let text = if row.text.is_empty() { String::new() } else { format!(": {}", row.text) };
        let asked: Vec<String> = row.checks.iter().map(check_words).collect();
        [vm.row.name.clone(), local(row.began_ms), time, format!("{word}{text}"), asked.join("; ")]
    };
    let of_vm = |vm: &VmReport| vm.rehearsals.iter().map(|row| cells(vm, row)).collect::<Vec<_>>();
    report.vms.iter().flat_map(of_vm).collect()
}

/// A check of a rehearsal in words.
pub fn check_words(check: &RehearsedCheck) -> String {
    let word = match check.passed {
        Some(true) => "passed",
        Some(false) => "FAILED",
        None => "not asked",
    };
    let why = if check.message.is_empty() { String::new() } else { format!(" ({})", check.message) };
    format!("{} {word}{why}", check.what)
}

/// Rehearsals of all VMs as text.
pub(crate) fn write_rehearsals(text: &mut String, report: &PlanReport) -> fmt::Result {
    let cells = rehearsal_cells(report);
    if cells.is_empty() {
        return Ok(());
    }
    let heads = REHEARSAL_COLUMNS.map(|(name, is_number)| (name.to_uppercase(), is_number));
    let side = |is_number| if is_number { Align::Right } else { Align::Left };
    let columns: Vec<(&str, Align)> = heads.iter().map(|(name, it)| (name.as_str(), side(*it))).collect();
    let mut table = Table::new(&columns);
    cells.into_iter().for_each(|cells| table.row(cells));
    write!(text, "\n{table}")
}

fn went_wrong(row: &HookRow) -> bool {
    matches!(row.result, Some(HookResult::Failed | HookResult::Stop))
}

#[cfg(test)]
mod tests {
    use drover_engine::{CallKind, WaveCall};

    use super::*;
    use crate::sample;

    #[test]
    fn a_report_tells_what_was_called_how_long_it_took_and_what_a_failed_one_wrote() {
        let mut report = sample::report();
        let passed = HookRow {
            vm: "vm-1".into(),
            kind: CallKind::Hook,
            point: "before_shutdown".into(),
            number: 1,
            what: "/usr/bin/drain".into(),
            began_ms: 1_000,
            ended_ms: Some(3_000),
            result: Some(HookResult::Passed),
            message: String::new(),
            output: "quiet".into(),
        };
        let failed = HookRow {
            kind: CallKind::Check,
            point: "post_start".into(),
            what: "tcp <web01>:22".into(),
            result: Some(HookResult::Failed),
            message: "no \u{1b}[31mway".into(),
            output: "one\ntwo\n".into(),
            ..passed.clone()
        };
        let running = HookRow { ended_ms: None, result: None, ..passed.clone() };
        let before = HookRow { kind: CallKind::Hook, point: "before_wave".into(), ..failed.clone() };
        report.vms[0].hooks = vec![passed, failed, running];
        report.wave_hooks = vec![WaveCall { wave: "web".into(), call: before }];
        let text = crate::report_text(&report);
        assert!(text.contains("wave web") && text.contains("wave web, before_wave 1 wrote:"), "{text}");
        assert!(text.contains("hook before_shutdown 1") && text.contains("passed"), "{text}");
        assert!(text.contains("check post_start 1") && text.contains("FAILED: no"), "{text}");
        assert!(text.contains("not ended") && text.contains("post_start 1 wrote:\n  one\n  two\n"), "{text}");
        assert!(!text.contains("quiet") && !text.contains('\u{1b}'));
        let page = crate::report_html(&report);
        assert!(page.contains("Hooks and checks") && page.contains("tcp &lt;web01&gt;:22"));
        let json = crate::sample::json(&report);
        assert_eq!(json["vms"][0]["hooks"][1]["result"], "failed");
    }
}
