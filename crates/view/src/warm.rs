//! Passes, forecasts and downtimes in words.

use std::fmt::{self, Write};
use std::time::Duration;

use drover_engine::{Downtime, PassKind, PassRow, PassState, PlanReport, VmReport, VmState, WarmReport};
use drover_types::Bytes;

use crate::clock::{local, time_of_day};
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, between, clean, count, duration};

/// `12 s (8 s to 20 s)`, and what it leaves out.
pub(crate) fn forecast_words(forecast: &Downtime) -> String {
    let [likely, low, high] = [forecast.forecast_ms, forecast.low_ms, forecast.high_ms]
        .map(|ms| duration(Duration::from_millis(ms)));
    let lacks = match (forecast.without_shutdown, forecast.without_start) {
        (false, false) => "",
        (true, false) => " and its shutdown, which was never measured",
        (false, true) => " and its start, which was never measured",
        (true, true) => " and its shutdown and start, which were never measured",
    };
    format!("{likely} ({low} to {high}){lacks}")
}

/// `down for 14 s`; of a guest that drover did not start nobody knows for how long it is down.
pub(crate) fn cutover_words(downtime_ms: Option<u64>, ready_ms: u64) -> String {
    match downtime_ms {
        Some(ms) => format!("down for {}", duration(Duration::from_millis(ms))),
        None => format!("ready to be started after {}", duration(Duration::from_millis(ready_ms))),
    }
}

/// `pass 4 at 14:05:10, down for 12 s (8 s to 20 s) if it moved over now`.
pub(crate) fn wait_words(number: u32, next_ms: i64, forecast: Option<&Downtime>) -> String {
    let down = forecast.map(|it| format!(", down for {} if it moved over now", forecast_words(it)));
    format!("pass {number} at {}{}", time_of_day(next_ms), down.unwrap_or_default())
}

pub(crate) fn kind_word(kind: PassKind) -> &'static str {
    match kind {
        PassKind::Full => "full",
        PassKind::Delta => "delta",
        PassKind::HashDiff => "hash diff",
    }
}

fn state_word(pass: &PassRow) -> &'static str {
    match pass.state {
        PassState::Begun => "not complete",
        PassState::Complete => "complete",
        PassState::Failed => "FAILED",
    }
}

/// How a warm VM moved over, or what it would take now; nothing for a cold one. `runs`: whether a process runs its plan.
pub(crate) fn downtime_words(vm: &VmReport, runs: bool) -> Option<String> {
    vm.warm.as_ref().map(|warm| warm_words(warm, runs && vm.row.state == VmState::Running))
}

/// `is_at_work`: whether somebody makes its passes. What nobody does is not promised.
fn warm_words(warm: &WarmReport, is_at_work: bool) -> String {
    let forecast = warm.row.forecast.as_ref().map(forecast_words);
    let predicted = forecast.clone().unwrap_or_else(|| UNKNOWN.into());
    match (warm.ready_ms, warm.row.down_ms) {
        (Some(ready_ms), _) => {
            let why = warm.row.reason.as_deref().map_or(String::new(), |why| format!(" ({})", clean(why)));
            format!("moved over{why}: {}, predicted {predicted}", cutover_words(warm.downtime_ms, ready_ms))
        }
        (None, Some(down_ms)) => format!("down since {}, predicted {predicted}", local(down_ms)),
        (None, None) => match warm.row.next_ms.filter(|_| is_at_work) {
            Some(next_ms) => {
                let number = 1 + warm.passes.last().map_or(0, |pass| pass.number);
                wait_words(number, next_ms, warm.row.forecast.as_ref())
            }
            None => format!("{}, predicted downtime {predicted}", passes_words(warm, is_at_work)),
        },
    }
}

/// `2 passes done, pass 3 runs`.
fn passes_words(warm: &WarmReport, is_at_work: bool) -> String {
    let done = warm.passes.iter().filter(|pass| pass.state == PassState::Complete).count();
    let last = warm.passes.last().filter(|pass| is_at_work && pass.state == PassState::Begun);
    let runs = last.map_or(String::new(), |pass| format!(", pass {} runs", pass.number));
    format!("{} done{runs}", count(done, "pass"))
}

/// Where warm VMs of these names stand, and whether they are at work, a line each; empty if there is none.
pub(crate) fn warm_text<'a>(vms: impl Iterator<Item = (&'a str, &'a WarmReport, bool)>) -> String {
    let line = |(name, warm, is_at_work): (&str, &WarmReport, bool)| {
        let hint = warm.row.hint.as_deref().map(|hint| format!("{}: {}\n", clean(name), clean(hint)));
        format!("{}: {}\n{}", clean(name), warm_words(warm, is_at_work), hint.unwrap_or_default())
    };
    let lines: String = vms.map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Passes of all warm VMs of a report as text. `runs`: whether a process runs its plan.
pub(crate) fn write_passes(text: &mut String, report: &PlanReport, runs: bool) -> fmt::Result {
    let warm: Vec<&VmReport> = report.vms.iter().filter(|vm| vm.warm.is_some()).collect();
    if warm.is_empty() {
        return Ok(());
    }
    write!(text, "\n{}", pass_table(&warm))?;
    for vm in warm {
        let name = clean(&vm.row.name);
        if let Some(words) = downtime_words(vm, runs) {
            writeln!(text, "\n{name}: {words}")?;
        }
        for words in warnings(vm) {
            writeln!(text, "{name}: {}", clean(&words))?;
        }
    }
    Ok(())
}

/// What is to be looked at: tracking that is not believed, advice.
pub(crate) fn warnings(vm: &VmReport) -> impl Iterator<Item = String> {
    let words = vm.warm.iter().flat_map(|warm| [&warm.row.distrust, &warm.row.hint]).flatten();
    words.cloned().collect::<Vec<_>>().into_iter()
}

/// Columns of a table of passes, and whether they hold numbers.
pub(crate) const PASS_COLUMNS: [(&str, bool); 11] = [
    ("Pass", false),
    ("Kind", false),
    ("State", false),
    ("Began", false),
    ("Time", true),
    ("Areas", true),
    ("Read", true),
    ("Changed", true),
    ("Audited", true),
    ("Wrong", true),
    ("Why", false),
];

/// The rows of that table.
pub(crate) fn pass_cells(vms: &[&VmReport]) -> Vec<[String; 11]> {
    let cells = |vm: &VmReport, pass: &PassRow| {
        [
            format!("{}/{}", vm.row.name, pass.number),
            kind_word(pass.kind).into(),
            state_word(pass).into(),
            local(pass.began_ms),
            pass.ended_ms.map_or(UNKNOWN.into(), |ended| duration(between(pass.began_ms, ended))),
            Bytes(pass.areas_bytes).to_string(),
            Bytes(pass.read_bytes).to_string(),
            Bytes(pass.changed_bytes).to_string(),
            pass.audited_blocks.to_string(),
            pass.mismatches.to_string(),
            pass.why.clone().unwrap_or_default(),
        ]
    };
    let of = |vm: &&VmReport| {
        let passes = vm.warm.iter().flat_map(|warm| &warm.passes);
        passes.map(|pass| cells(vm, pass)).collect::<Vec<_>>()
    };
    vms.iter().flat_map(of).collect()
}

fn pass_table(vms: &[&VmReport]) -> Table {
    let names = PASS_COLUMNS
        .map(|(name, is_number)| (name.to_uppercase(), if is_number { Align::Right } else { Align::Left }));
    let mut table = Table::new(&names.each_ref().map(|(name, align)| (name.as_str(), *align)));
    pass_cells(vms).into_iter().for_each(|cells| table.row(cells));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_warm_vm_shows_its_passes_its_forecast_and_its_real_downtime() {
        let mut report = sample::report();
        report.vms[0].warm = Some(sample::warm());
        report.vms[1].warm = None;
        let mut text = String::new();
        write_passes(&mut text, &report, false).unwrap();
        let page = crate::report_html(&report);
        assert!(page.contains("<td>hash diff</td>") && page.contains("down for 14 s, predicted 12 s"));
        assert_eq!(
            text,
            "
PASS     KIND       STATE     BEGAN                TIME    AREAS    READ  CHANGED  AUDITED  WRONG  WHY
web01/1  full       complete  2026-03-01 14:05:11  40 s   10 GiB  10 GiB   10 GiB        0      0
web01/2  hash diff  complete  2026-03-01 14:06:11  12 s  300 MiB  10 GiB    2 MiB     1000      2  change tracking is damaged

web01: moved over (the predicted downtime fits): down for 14 s, predicted 12 s (8.0 s to 20 s)
web01: change tracking is damaged
"
        );
        assert_eq!(downtime_words(&report.vms[1], false), None);
        report.vms[0].warm.as_mut().unwrap().downtime_ms = None;
        let words = downtime_words(&report.vms[0], false).unwrap();
        assert!(words.contains("ready to be started after 14 s") && !words.contains("down for"), "{words}");
        let of_first = report.vms[0].warm.iter().map(|warm| ("web01", warm, false));
        assert_eq!(warm_text(of_first).lines().count(), 2);
        let warm = report.vms[0].warm.as_mut().unwrap();
        warm.ready_ms = None;
        (warm.row.down_ms, warm.row.next_ms) = (None, Some(sample::START + 90_000));
        report.vms[0].row.state = VmState::Running;
        let words = |report: &PlanReport, runs| downtime_words(&report.vms[0], runs).unwrap();
        let waits = "pass 3 at 14:06:40, down for 12 s (8.0 s to 20 s) if it moved over now";
        assert_eq!(words(&report, true), waits);
        // Nobody makes that pass of a plan that was stopped, or of a VM that failed.
        let done = "2 passes done, predicted downtime 12 s (8.0 s to 20 s)";
        assert_eq!(words(&report, false), done);
        report.vms[0].row.state = VmState::Failed;
        assert_eq!(words(&report, true), done);
        report.vms[0].row.state = VmState::Running;
        let warm = report.vms[0].warm.as_mut().unwrap();
        (warm.row.next_ms, warm.row.forecast) = (None, None);
        warm.passes[1].state = PassState::Begun;
        assert_eq!(words(&report, true), "1 pass done, pass 2 runs, predicted downtime --");
        assert_eq!(words(&report, false), "1 pass done, predicted downtime --");
        let whole = Downtime { forecast_ms: 400, low_ms: 300, high_ms: 500, ..Downtime::default() };
        let first = Downtime { without_shutdown: true, ..whole };
        assert_eq!(
            forecast_words(&first),
            "0.4 s (0.3 s to 0.5 s) and its shutdown, which was never measured"
        );
    }
}
