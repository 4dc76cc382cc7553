//! The page of several live moves: their sums, how they were to go and from what, and a part for each.

use std::fmt::{self, Write};

use drover_types::{Bytes, Rate};

use super::live::write_move;
use super::{Escaped, begin_table, end_table, write_facts, write_foot, write_head, write_row};
use crate::clock::{local, zone_name};
use crate::live::LiveOutcome;
use crate::live_several::{LiveOfSeveral, LiveSchedule, LiveSeveralReport, LiveSums};
use crate::text::{UNKNOWN, duration};

/// The report of several live moves as one HTML page.
pub fn live_several_html(report: &LiveSeveralReport) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, report);
    page
}

fn write_page(page: &mut String, report: &LiveSeveralReport) -> fmt::Result {
    let sums = report.sums();
    write_head(page, "live moves")?;
    let (from, to) = (local(report.began_ms), local(report.ended_ms));
    writeln!(
        page,
        "<header>\n<p class=\"eyebrow\">drover live migration report</p>\n<h1>{} guests</h1>\n<p>{from} to {to} {}</p>\n</header>",
        sums.guests,
        Escaped(&zone_name(report.ended_ms))
    )?;
    write_verdict(page, report, &sums)?;
    write_facts(page, &facts(&sums))?;
    write_guests(page, report)?;
    for schedule in &report.schedules {
        write_schedule(page, schedule)?;
    }
    for one in &report.moves {
        let (name, source, target) =
            (Escaped(&one.name), Escaped(&one.report.source), Escaped(&one.report.target));
        writeln!(page, "<header>\n<h1>{name}</h1>\n<p>{source} to {target}</p>\n</header>")?;
        write_move(page, &one.report)?;
    }
    write_foot(page)
}

fn write_verdict(page: &mut String, report: &LiveSeveralReport, sums: &LiveSums) -> fmt::Result {
    let tone = match sums {
        _ if report.message.is_some() || sums.failed > 0 => "bad",
        LiveSums { moved, kept, .. } if moved > kept => "plain",
        LiveSums { moved: 0, .. } => "plain",
        _ => "good",
    };
    writeln!(
        page,
        "<p class=\"verdict {tone}\"><strong>{} of {} guests run at their targets</strong>; {} promises were kept.</p>",
        sums.moved, sums.guests, sums.kept
    )?;
    if let Some(message) = &report.message {
        writeln!(
            page,
            "<section class=\"failure\"><h2>What went wrong</h2><p>{}</p></section>",
            Escaped(message)
        )?;
    }
    Ok(())
}

fn facts(sums: &LiveSums) -> [(&'static str, String); 5] {
    let seconds = std::time::Duration::try_from_secs_f64(sums.total_s).unwrap_or_default();
    let stood = sums.downtime_ms_max;
    [
        ("Guests moved", format!("{} of {}", sums.moved, sums.guests)),
        ("Failed, or not begun", sums.failed.to_string()),
        ("Time", duration(seconds)),
        ("Memory sent", Bytes(sums.sent_bytes).to_string()),
        ("Downtime, at most", stood.map_or(UNKNOWN.into(), |ms| format!("{ms} ms"))),
    ]
}

fn write_guests(page: &mut String, report: &LiveSeveralReport) -> fmt::Result {
    begin_table(page, "Guests", &["Guest", "#Began after", "#Took", "#Downtime", "What became of it"])?;
    for one in &report.moves {
        write_row(page, &guest_cells(one))?;
    }
    end_table(page)
}

fn guest_cells(one: &LiveOfSeveral) -> [(&'static str, String); 5] {
    let began = one.began_s.map_or(UNKNOWN.into(), |began| format!("{began:.1} s"));
    let (took, stood, word) = match &one.report.outcome {
        LiveOutcome::Moved(real) => (
            format!("{:.1} s", real.total_s),
            real.downtime_ms.or(real.downtime_ms_by_qemu).map_or(UNKNOWN.into(), |ms| format!("{ms} ms")),
            "runs at the target".to_string(),
        ),
        LiveOutcome::Failed { message, .. } => (UNKNOWN.into(), UNKNOWN.into(), message.clone()),
        LiveOutcome::Looked => (UNKNOWN.into(), UNKNOWN.into(), "was looked at only".into()),
    };
    [("name", one.name.clone()), ("number", began), ("number", took), ("number", stood), ("text", word)]
}

fn write_schedule(page: &mut String, schedule: &LiveSchedule) -> fmt::Result {
    let known = if schedule.line_is_known { "" } else { " (a guess)" };
    let bound = schedule
        .rate_max_bytes_per_s
        .map_or("nothing bounds them".into(), |rate| format!("{} for all together", Rate(rate as f64)));
    let title =
        format!("{}: line {}{known}, {bound}", Escaped(&schedule.between), Rate(schedule.line_bytes_per_s));
    begin_table(page, &title, &["Way", "#Foreseen", "#Downtime, at most", "Verdict"])?;
    for way in &schedule.ways {
        let verdict = match &way.misses {
            None if schedule.chosen.as_ref() == Some(&way.way) => "taken".to_string(),
            None => "keeps each promise".into(),
            Some(misses) => misses.clone(),
        };
        let cells = [
            ("name", way.way.clone()),
            ("number", format!("{:.1} s ± {:.1}", way.total_s, way.total_s_spread)),
            ("number", format!("{:.0} ms", way.downtime_ms_most)),
            ("text", verdict),
        ];
        write_row(page, &cells)?;
    }
    end_table(page)?;
    begin_table(page, "Turns", &["Guest", "#Begins at", "#Takes", "#Downtime", "#Has at least"])?;
    for turn in &schedule.turns {
        let cells = [
            ("name", turn.guest.clone()),
            ("number", format!("{:.1} s", turn.begins_s)),
            ("number", format!("{:.1} s", turn.takes_s)),
            ("number", format!("{:.0} ms", turn.downtime_ms)),
            ("number", Rate(turn.rate_least_bytes_per_s).to_string()),
        ];
        write_row(page, &cells)?;
    }
    end_table(page)
}

#[cfg(test)]
mod tests {
    use super::super::tests::texts;
    use super::*;
    use crate::live_several::tests::several;

    #[test]
    fn the_page_has_the_sums_the_schedule_and_a_part_for_each() {
        let page = live_several_html(&several());
        let text = texts(&page);
        for words in [
            "1 of 2 guests run at their targets",
            "web<01>",
            "12.5 s ± 1.5",
            "taken",
            "db does not converge with 50.0 MB/s",
            "52 ms",
            "the promise was kept",
            "<cpu> differs",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!page.contains("<script") && page.ends_with("</html>\n"));
    }

    #[test]
    fn what_stood_in_the_way_of_all_is_told() {
        let report = LiveSeveralReport { message: Some("no <room>".into()), ..LiveSeveralReport::default() };
        let text = texts(&live_several_html(&report));
        assert!(text.contains("no <room>") && text.contains("0 of 0"), "{text}");
    }
}
