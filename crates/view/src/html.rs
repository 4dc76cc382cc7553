//! The report as a page that stands alone: no script, no fetch, nothing to install.
//!
//! It is well-formed XML too, which the tests check, and its policy forbids the browser to load anything,
//! so whatever a VM is called, the page shows it and does nothing else.

mod assess;
mod charts;
mod forecast;
mod live;
mod live_several;

pub use assess::assess_html;
pub use forecast::forecast_html;
pub use live::live_report_html;
pub use live_several::live_several_html;

use std::fmt::{self, Write};

use drover_engine::{DiskReport, EventRow, PlanReport, VmReport};
use drover_types::Bytes;

use crate::clock::{local, zone_name};
use crate::evidence::evidence;
use crate::foreseen::{self, compared, order_line, waits_for_cutover};
use crate::hooks::{HOOK_COLUMNS, REHEARSAL_COLUMNS, hook_cells, rehearsal_cells};
use crate::now::rate_text;
use crate::report::plan_state;
use crate::status::runs;
use crate::summary::{Equal, Summary, started_word, vm_rate, vm_state, vm_time, waited_for};
use crate::text::{UNKNOWN, clean, count, duration};
use crate::warm::{PASS_COLUMNS, downtime_words, pass_cells, warnings};
use crate::waves::{wave_state, window_words};

/// Events on the page; the JSON has them all.
const EVENTS_MAX: usize = 5_000;

const STYLE: &str = include_str!("html/style.css");

/// The report of a plan as one HTML page: summary, timeline, rates, VMs, disks with their roots, events.
pub fn report_html(report: &PlanReport) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, report);
    page
}

/// Text that means itself on the page.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in clean(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Characters that XML does not have.
                '\u{fffe}' | '\u{ffff}' => f.write_char(char::REPLACEMENT_CHARACTER)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

fn write_page(page: &mut String, report: &PlanReport) -> fmt::Result {
    let summary = Summary::of(report);
    write_head(page, &report.plan.name)?;
    write_summary(page, report, &summary)?;
    write_failures(page, report)?;
    charts::write_timeline(page, report)?;
    charts::write_rates(page, report)?;
    write_vms(page, report)?;
    write_waves(page, report)?;
    write_passes(page, report)?;
    write_hooks(page, report)?;
    write_disks(page, report)?;
    write_evidence(page, report)?;
    write_events(page, report)?;
    write_foot(page)
}

/// All before the report itself.
fn write_head(page: &mut String, title: &str) -> fmt::Result {
    let title = Escaped(title);
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>{title} - drover report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    )
}

fn write_foot(page: &mut String) -> fmt::Result {
    writeln!(page, "</main>\n</body>\n</html>")
}

fn write_summary(page: &mut String, report: &PlanReport, summary: &Summary) -> fmt::Result {
    let plan = &report.plan;
    writeln!(
        page,
        "<header>\n<p class=\"eyebrow\">drover migration report</p>\n<h1>{}</h1>\n<p>{}, {} to {} {}</p>\n</header>",
        Escaped(&plan.name),
        plan_state(plan.state),
        local(plan.started_ms),
        local(summary.ended_ms),
        Escaped(&zone_name(summary.ended_ms)),
    )?;
    let tone = match (summary.done == summary.vms && summary.vms > 0, summary.equal) {
        (_, Equal::No) => "bad",
        (true, Equal::Yes) => "good",
        _ if summary.failed + summary.not_cleaned_up > 0 => "bad",
        _ => "plain",
    };
    writeln!(
        page,
        "<p class=\"verdict {tone}\"><strong>{}</strong>; {}.</p>",
        summary.verdict(),
        summary.proof()
    )?;
    let waits = waited_for(&summary.attribution);
    let facts = [
        ("VMs arrived", format!("{} of {}", summary.arrived(), summary.vms)),
        ("Disks", format!("{} of {}", summary.disks, Bytes(summary.size_bytes))),
        ("Data", Bytes(summary.data_bytes).to_string()),
        ("Read in all runs", Bytes(summary.read_bytes).to_string()),
        ("Written in all runs", Bytes(summary.written_bytes).to_string()),
        ("Not copied again, holes included", Bytes(summary.resumed_bytes).to_string()),
        ("Retried requests", summary.retries.to_string()),
        ("Time", duration(summary.elapsed())),
        ("Bottleneck, by time waited", if waits.is_empty() { UNKNOWN.into() } else { waits }),
    ];
    write_facts(page, &facts)?;
    let foreseen = compared(report).map(|it| foreseen::lines(&it)).unwrap_or_default();
    let waits = waits_for_cutover(report).map(|it| order_line(&plan.name, &it));
    let mut lines = foreseen.iter().chain(&waits);
    lines.try_for_each(|line| writeln!(page, "<p class=\"note\">{}</p>", Escaped(line)))
}

fn write_facts(page: &mut String, facts: &[(&str, String)]) -> fmt::Result {
    writeln!(page, "<dl class=\"facts\">")?;
    for (name, value) in facts {
        writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", Escaped(value))?;
    }
    writeln!(page, "</dl>")
}

fn write_failures(page: &mut String, report: &PlanReport) -> fmt::Result {
    for vm in report.vms.iter().filter(|vm| vm.row.error.is_some()) {
        let (name, error) = (Escaped(&vm.row.name), Escaped(vm.row.error.as_deref().unwrap_or_default()));
        let phase = Escaped(vm.row.phase.as_deref().unwrap_or("its first phase"));
        write!(
            page,
            "<section class=\"failure\"><h2>{name}: {} in {phase}</h2><p>{error}</p>",
            vm_state(vm.row.state)
        )?;
        if let Some(advice) = &vm.row.advice {
            write!(page, "<p><strong>Try:</strong> {}</p>", Escaped(advice))?;
        }
        writeln!(page, "</section>")?;
    }
    Ok(())
}

/// A table: its heading, and columns, of which those that begin with `#` hold numbers.
fn begin_table(page: &mut String, heading: &str, columns: &[&str]) -> fmt::Result {
    writeln!(page, "<section>\n<h2>{heading}</h2>")?;
    write_columns(page, columns)
}

fn write_columns(page: &mut String, columns: &[&str]) -> fmt::Result {
    write!(page, "<div class=\"wide\"><table>\n<thead><tr>")?;
    for column in columns {
        match column.strip_prefix('#') {
            Some(name) => write!(page, "<th scope=\"col\" class=\"number\">{name}</th>")?,
            None => write!(page, "<th scope=\"col\">{column}</th>")?,
        }
    }
    writeln!(page, "</tr></thead>\n<tbody>")
}

fn end_table(page: &mut String) -> fmt::Result {
    writeln!(page, "</tbody>\n</table></div>\n</section>")
}

/// A row of a table; cells that begin with `#` hold numbers.
fn write_row(page: &mut String, cells: &[(&str, String)]) -> fmt::Result {
    write!(page, "<tr>")?;
    for (class, text) in cells {
        match *class {
            "" => write!(page, "<td>{}</td>", Escaped(text))?,
            class => write!(page, "<td class=\"{class}\">{}</td>", Escaped(text))?,
        }
    }
    writeln!(page, "</tr>")
}

fn write_vms(page: &mut String, report: &PlanReport) -> fmt::Result {
    if report.vms.is_empty() {
        return Ok(());
    }
    let columns = [
        "VM",
        "State",
        "#Disks",
        "#Size",
        "#Data",
        "#Read",
        "#Rate",
        "Verified equal",
        "Started at the target",
        "#Time",
    ];
    begin_table(page, "Virtual machines", &columns)?;
    for vm in &report.vms {
        write_row(page, &vm_cells(vm))?;
    }
    end_table(page)
}

fn write_waves(page: &mut String, report: &PlanReport) -> fmt::Result {
    if report.waves.is_empty() {
        return Ok(());
    }
    let columns = [
        "Wave",
        "State",
        "#VMs",
        "#Done",
        "#Failed",
        "#Cancelled",
        "#Skipped",
        "#Not begun",
        "After",
        "Window",
        "Began",
        "Ended",
    ];
    begin_table(page, "Waves", &columns)?;
    for it in &report.waves {
        let moment = |ms: Option<i64>| ms.map_or(UNKNOWN.into(), local);
        let opens = it.opens.as_ref().map_or(String::new(), |opens| format!("; opens {opens}"));
        write_row(
            page,
            &[
                ("name", it.wave.name.clone()),
                (if it.failed > 0 { "bad" } else { "" }, wave_state(it.state).into()),
                ("number", it.vms.to_string()),
                ("number", it.done.to_string()),
                ("number", it.failed.to_string()),
                ("number", it.cancelled.to_string()),
                ("number", it.skipped.to_string()),
                ("number", it.left.to_string()),
                ("", it.wave.after.join(", ")),
                ("", window_words(&it.wave.window) + &opens),
                ("time", moment(it.began_ms)),
                ("time", moment(it.ended_ms)),
            ],
        )?;
    }
    end_table(page)
}

fn write_passes(page: &mut String, report: &PlanReport) -> fmt::Result {
    let warm: Vec<&VmReport> = report.vms.iter().filter(|vm| vm.warm.is_some()).collect();
    if warm.is_empty() {
        return Ok(());
    }
    let columns =
        PASS_COLUMNS.map(|(name, is_number)| if is_number { format!("#{name}") } else { name.into() });
    begin_table(page, "Passes", &columns.each_ref().map(String::as_str))?;
    for cells in pass_cells(&warm) {
        let classes = PASS_COLUMNS.iter().map(|(_, is_number)| if *is_number { "number" } else { "" });
        write_row(page, &classes.zip(cells).collect::<Vec<_>>())?;
    }
    end_table(page)?;
    let runs = runs(&report.plan);
    for vm in warm {
        let words = downtime_words(vm, runs).into_iter().chain(warnings(vm));
        for words in words {
            writeln!(page, "<p class=\"note\">{}: {}</p>", Escaped(&vm.row.name), Escaped(&words))?;
        }
    }
    Ok(())
}

fn write_hooks(page: &mut String, report: &PlanReport) -> fmt::Result {
    write_table(page, "Hooks and checks", &HOOK_COLUMNS, hook_cells(report))?;
    write_table(page, "Rehearsals", &REHEARSAL_COLUMNS, rehearsal_cells(report))
}

fn write_table<const N: usize>(
    page: &mut String,
    heading: &str,
    columns: &[(&str, bool); N],
    rows: Vec<[String; N]>,
) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let heads = columns.map(|(name, is_number)| if is_number { format!("#{name}") } else { name.into() });
    begin_table(page, heading, &heads.each_ref().map(String::as_str))?;
    for cells in rows {
        let classes = columns.iter().map(|(_, is_number)| if *is_number { "number" } else { "" });
        write_row(page, &classes.zip(cells).collect::<Vec<_>>())?;
    }
    end_table(page)
}

fn vm_cells(vm: &VmReport) -> Vec<(&'static str, String)> {
    let size = vm.disks.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.size));
    let equal = Equal::of_disks(&vm.disks);
    vec![
        ("name", vm.row.name.clone()),
        (if vm.row.error.is_some() { "bad" } else { "" }, vm_state(vm.row.state).into()),
        ("number", vm.disks.len().to_string()),
        ("number", Bytes(size).to_string()),
        ("number", Bytes(vm.sum(|disk| disk.data_bytes)).to_string()),
        ("number", Bytes(vm.read_in_all()).to_string()),
        ("number", rate_text(vm_rate(vm))),
        (equal_class(equal), equal.to_string()),
        ("", vm.row.started.clone().unwrap_or_else(|| started_word(vm).into())),
        ("number", vm_time(vm).map_or(UNKNOWN.into(), duration)),
    ]
}

fn equal_class(equal: Equal) -> &'static str {
    match equal {
        Equal::Yes => "good",
        Equal::No => "bad",
        Equal::Sampled(_) | Equal::NotChecked => "",
    }
}

fn write_disks(page: &mut String, report: &PlanReport) -> fmt::Result {
    if report.vms.iter().all(|vm| vm.disks.is_empty()) {
        return Ok(());
    }
    let columns =
        ["Disk", "#Size", "#Data", "#Read", "#Resumed", "#Retries", "#Rate", "Bottleneck", "Verified equal"];
    begin_table(page, "Disks and their proof", &columns)?;
    for (vm, disk) in report.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        write_row(page, &disk_cells(vm, disk))?;
        write_proof(page, disk, columns.len())?;
    }
    end_table(page)
}

fn disk_cells(vm: &VmReport, disk: &DiskReport) -> Vec<(&'static str, String)> {
    let bytes = |bytes: Option<u64>| bytes.map_or(UNKNOWN.into(), |bytes| Bytes(bytes).to_string());
    let equal = Equal::of_disk(disk);
    vec![
        ("name", format!("{}/{}", vm.row.name, disk.label)),
        ("number", Bytes(disk.size).to_string()),
        ("number", bytes(disk.details.data_bytes)),
        ("number", bytes(disk.details.read_bytes.map(|_| disk.details.read_in_all()))),
        ("number", bytes(disk.details.resumed_bytes)),
        ("number", disk.details.retries.map_or(UNKNOWN.into(), |retries| retries.to_string())),
        ("number", rate_text(disk.read_rate)),
        ("", disk.attribution.as_ref().map(waited_for).unwrap_or_default()),
        (equal_class(equal), equal.to_string()),
    ]
}

fn write_proof(page: &mut String, disk: &DiskReport, columns: usize) -> fmt::Result {
    let root = |root: &Option<String>| Escaped(root.as_deref().unwrap_or(UNKNOWN)).to_string();
    let blocks = match (disk.details.blocks_verified, disk.details.blocks) {
        (Some(verified), Some(blocks)) => {
            format!("{verified} of {blocks} blocks compared, {} differ", disk.details.differing.unwrap_or(0))
        }
        _ => "no block compared".into(),
    };
    write!(
        page,
        "<tr class=\"proof\"><td colspan=\"{columns}\"><dl><dt>source root</dt><dd><code>{}</code></dd>\
         <dt>target root</dt><dd><code>{}</code></dd><dt>compared</dt><dd>{blocks}</dd><dt>image</dt><dd>{}</dd>",
        root(&disk.details.root),
        root(&disk.details.target_root),
        Escaped(&disk.path.display().to_string())
    )?;
    if let Some(note) = &disk.details.note {
        write!(page, "<dt>note</dt><dd>{}</dd>", Escaped(note))?;
    }
    writeln!(page, "</dl></td></tr>")
}

fn write_evidence(page: &mut String, report: &PlanReport) -> fmt::Result {
    let lines = evidence(report);
    if lines.is_empty() {
        return Ok(());
    }
    begin_table(page, "Evidence", &["Who ran what, from where, and which VMs"])?;
    lines.into_iter().try_for_each(|line| write_row(page, &[("", line)]))?;
    end_table(page)
}

fn write_events(page: &mut String, report: &PlanReport) -> fmt::Result {
    let left_out = report.events.len().saturating_sub(EVENTS_MAX);
    if report.events.is_empty() {
        return Ok(());
    }
    // Folded: there are hundreds, and the tables above say what came of them.
    writeln!(page, "<details>\n<summary>Events ({})</summary>", report.events.len())?;
    write_columns(page, &["Time", "VM", "Phase", "Event", "Text"])?;
    if left_out > 0 {
        let text =
            format!("{} before these are left out; the JSON report has them", count(left_out, "event"));
        write_row(
            page,
            &[
                ("", UNKNOWN.into()),
                ("", String::new()),
                ("", String::new()),
                ("", String::new()),
                ("", text),
            ],
        )?;
    }
    let names: std::collections::HashMap<&str, &str> =
        report.vms.iter().map(|vm| (vm.row.id.as_str(), vm.row.name.as_str())).collect();
    for event in &report.events[left_out..] {
        write_row(page, &event_cells(event, &names))?;
    }
    writeln!(page, "</tbody>\n</table></div>\n</details>")
}

fn event_cells(
    event: &EventRow,
    names: &std::collections::HashMap<&str, &str>,
) -> [(&'static str, String); 5] {
    let vm = event.vm.as_deref().unwrap_or_default();
    [
        ("time", local(event.at_ms)),
        ("name", names.get(vm).copied().unwrap_or(vm).into()),
        ("", event.phase.clone().unwrap_or_default()),
        (if event.kind == "error" { "bad" } else { "" }, event.kind.clone()),
        ("text", event.text.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use drover_engine::{PhaseTime, RatePoint};

    use super::*;
    use crate::sample;

    /// Parses the page as XML; fails if a tag is open or a character not escaped.
    pub(super) fn texts(page: &str) -> String {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let document = roxmltree::Document::parse_with_options(page, options).unwrap();
        document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect()
    }

    #[test]
    fn the_page_is_well_formed_and_shows_hostile_names_as_they_are() {
        let mut report = sample::report();
        report.vms[0].row.name = "</title><script>alert('x')</script>\u{0}\u{ffff}".into();
        report.plan.name = "<b>&\"plan\"".into();
        let page = report_html(&report);
        let text = texts(&page);
        assert!(text.contains("</title><script>alert('x')</script>"), "{text}");
        assert!(text.contains("<db> & \"co\"'s/Hard disk 1"));
        assert!(text.contains("<b>&\"plan\""));
        assert!(!page.contains("<script"));
    }

    #[test]
    fn the_page_has_all_roots_and_loads_nothing() {
        let page = report_html(&sample::report());
        assert_eq!(page.matches(&"a1".repeat(32)).count(), 4);
        for word in ["http://", "https://", "url(", "@import", "src=", "<link", "href="] {
            assert!(!page.contains(word), "{word}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
    }

    #[test]
    fn events_are_folded_under_their_number() {
        let report = sample::report();
        let page = report_html(&report);
        let (above, folded) = page.split_once("<details>").unwrap();
        assert!(
            folded.starts_with(&format!("\n<summary>Events ({})</summary>", report.events.len())),
            "{folded}"
        );
        let head = "<th scope=\"col\">Event</th>";
        assert!(folded.contains(head) && !above.contains(head), "{above}");
    }

    #[test]
    fn no_cell_of_a_table_is_so_narrow_that_words_break_in_the_middle() {
        // `anywhere` lets a column shrink to a letter; what is no cell has its width from the page.
        let shrinking: Vec<&str> = STYLE.lines().filter(|line| line.contains("anywhere")).collect();
        let fits =
            |line: &&str| ["h1 ", ".failure ", ".proof dd "].iter().any(|start| line.starts_with(start));
        assert!(!shrinking.is_empty() && shrinking.iter().all(fits), "{shrinking:?}");
    }

    #[test]
    fn an_empty_report_is_a_page() {
        let text = texts(&report_html(&sample::empty()));
        assert!(text.contains("0 of 0 VMs arrived"), "{text}");
    }

    #[test]
    fn numbers_that_no_chart_can_show_do_not_break_the_page() {
        let mut report = sample::report();
        report.rates = [f64::NAN, f64::INFINITY, -1.0, 1e300]
            .map(|rate| RatePoint { at_ms: i64::MAX, read_rate: rate, written_rate: rate, disks: 0 })
            .into();
        report.vms[0].phases = vec![
            PhaseTime { phase: "of later versions".into(), started_ms: i64::MIN, ended_ms: Some(i64::MAX) },
            PhaseTime { phase: "copy".into(), started_ms: 5, ended_ms: Some(3) },
        ];
        let page = report_html(&report);
        texts(&page);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn a_large_plan_makes_a_page_of_bounded_size() {
        let mut report = sample::report();
        let event = report.events[0].clone();
        report.events = vec![event; EVENTS_MAX + 7];
        let point = report.rates[0];
        report.rates = (0..100_000).map(|n| RatePoint { at_ms: sample::START + n * 1000, ..point }).collect();
        let page = report_html(&report);
        assert!(page.contains("7 events before these are left out"));
        assert!(page.len() < 2 << 20, "{} bytes", page.len());
        texts(&page);
    }
}
