//! The page of a live move: promised, foreseen and real; what was decided and from what; rates and what was left over time;
//! the parts of the downtime.

use std::fmt::{self, Write};

use drover_live::{Deed, Forecast, Sample, Told};
use drover_types::{Bytes, Rate};

use super::charts::{
    LABEL_DISTANCE, NAMES, PLOT, POINTS_MAX, RATES_HEIGHT, begin_chart, end_chart, write_legend,
    write_value_labels,
};
use super::{Escaped, begin_table, end_table, write_facts, write_foot, write_head, write_row};
use crate::axis::TimeAxis;
use crate::clock::{local, zone_name};
use crate::live::{LiveLook, LiveOutcome, LiveReal, LiveReport};
use crate::text::{UNKNOWN, count, duration};

/// Where nobody told.
const UNTOLD: &str = "not told";

/// The report of a live move as one HTML page.
pub fn live_report_html(report: &LiveReport) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, report);
    page
}

fn write_page(page: &mut String, report: &LiveReport) -> fmt::Result {
    write_head(page, "live move")?;
    write_header(page, report)?;
    write_move(page, report)?;
    write_foot(page)
}

/// All that is told of a move.
pub(super) fn write_move(page: &mut String, report: &LiveReport) -> fmt::Result {
    write_verdict(page, report)?;
    write_facts(page, &facts(report))?;
    write_comparison(page, report)?;
    write_parts(page, report)?;
    write_rates(page, report)?;
    write_left(page, report)?;
    write_decisions(page, report)?;
    write_ways(page, report)?;
    write_disks(page, report)?;
    write_notes(page, report)
}

fn write_header(page: &mut String, report: &LiveReport) -> fmt::Result {
    let (source, target) = (Escaped(&report.source), Escaped(&report.target));
    let (from, to) = (local(report.began_ms), local(report.ended_ms));
    write!(
        page,
        "<header>\n<p class=\"eyebrow\">drover live migration report</p>\n<h1>{source} to {target}</h1>\n<p>"
    )?;
    if let Some(site) = &report.site {
        write!(page, "over the link to {}, ", Escaped(site))?;
    }
    writeln!(page, "{from} to {to} {}</p>\n</header>", Escaped(&zone_name(report.ended_ms)))
}

fn write_verdict(page: &mut String, report: &LiveReport) -> fmt::Result {
    let (tone, strong, words) = match &report.outcome {
        LiveOutcome::Looked => ("plain", "nothing was moved", "both sides were looked at only".into()),
        LiveOutcome::Moved(real) => {
            let (tone, kept) = match report.is_kept() {
                Some(true) => ("good", "the promise was kept"),
                Some(false) => ("bad", "the promise was not kept"),
                None => ("plain", "its downtime is not known"),
            };
            let seconds = std::time::Duration::try_from_secs_f64(real.total_s).unwrap_or_default();
            (tone, "the guest runs at the target", format!("{}; {kept}", duration(seconds)))
        }
        LiveOutcome::Failed { guest_at, .. } => {
            ("bad", "the guest did not move as it should", format!("it is {}", place(guest_at.as_deref())))
        }
    };
    writeln!(page, "<p class=\"verdict {tone}\"><strong>{strong}</strong>; {words}.</p>")?;
    let LiveOutcome::Failed { message, advice, stood_at_source_ms, .. } = &report.outcome else {
        return Ok(());
    };
    write!(page, "<section class=\"failure\"><h2>What went wrong</h2><p>{}</p>", Escaped(message))?;
    if let Some(ms) = stood_at_source_ms {
        write!(page, "<p>Downtime {ms:.1} ms; it was resumed at the source.</p>")?;
    }
    if let Some(advice) = advice {
        write!(page, "<p><strong>Try:</strong> {}</p>", Escaped(advice))?;
    }
    writeln!(page, "</section>")
}

/// Where the guest is, by drover's word for it.
fn place(word: Option<&str>) -> &'static str {
    match word {
        Some("source") => "at the source, as it was",
        Some("target") => "at the target, where it runs",
        Some("both") => "at both sides by what they say: stop one of them at once",
        Some("postcopy_incomplete") => {
            "at the target, with part of its memory still at the source: end neither QEMU"
        }
        Some("waiting") => "at the target, standing still until it is started; never start it at the source",
        Some("paused_at_target") => "at the target, where it does not run; never start it at the source",
        Some("paused_at_source") => "at the source, standing still, and not at the target",
        Some(_) => "where nobody can tell: look at both sides before you start anything",
        None => "where it was: neither side was touched by this run",
    }
}

fn facts(report: &LiveReport) -> [(&'static str, String); 8] {
    let asked = &report.asked;
    let bits = |rate: Option<u64>, otherwise: &str| {
        rate.map_or(otherwise.into(), |rate| Rate(rate as f64 / 8.0).to_string())
    };
    let chosen = report
        .forecasts
        .iter()
        .rev()
        .find_map(|look| look.choice.course.as_ref())
        .map(|course| course.channels);
    let link = report.link.as_ref().and_then(|link| link["up_bytes"].as_u64());
    [
        (
            "Memory",
            report
                .forecasts
                .last()
                .map_or(UNKNOWN.into(), |look| Bytes(look.choice.facts.memory_bytes).to_string()),
        ),
        ("Disks", asked.disks.clone()),
        (
            "Allowed",
            if asked.allowed.is_empty() { "nothing beyond sending".into() } else { asked.allowed.join(", ") },
        ),
        ("Connections", chosen.or(asked.channels).map_or(UNKNOWN.into(), |channels| channels.to_string())),
        ("The line was said to carry", bits(asked.line_bits_per_s, "nothing was said")),
        ("At most to be sent", bits(asked.rate_max_bits_per_s, "no limit")),
        ("Guest slowed down by at most", format!("{} %", most_slowed(report))),
        ("Sent over the link", link.map_or("no link".into(), |bytes| Bytes(bytes).to_string())),
    ]
}

fn most_slowed(report: &LiveReport) -> u8 {
    report.samples.iter().map(|told| told.sample.throttle_percent).max().unwrap_or(0)
}

/// What was promised, foreseen at first and at last, and real.
fn write_comparison(page: &mut String, report: &LiveReport) -> fmt::Result {
    begin_table(
        page,
        "Promised, foreseen, real",
        &["", "#Promised", "#Foreseen before", "#Foreseen last", "#Real"],
    )?;
    let (first, last) = (report.forecasts.first(), report.forecasts.last());
    let real = match &report.outcome {
        LiveOutcome::Moved(real) => Some(real),
        LiveOutcome::Looked | LiveOutcome::Failed { .. } => None,
    };
    let foreseen = |look: Option<&LiveLook>, words: fn(&Forecast) -> String| {
        look.map_or(UNKNOWN.into(), |look| words(&look.choice.forecast))
    };
    let mut row = |name: &str, promised: String, words: fn(&Forecast) -> String, real: String| {
        let cells = [
            ("name", name.into()),
            ("number", promised),
            ("number", foreseen(first, words)),
            ("number", foreseen(last, words)),
            ("number", real),
        ];
        write_row(page, &cells)
    };
    let of = |words: fn(&LiveReal) -> String| real.map_or(UNKNOWN.into(), words);
    let time = |ms: Option<u64>| ms.map_or(UNTOLD.to_string(), |ms| format!("{ms} ms"));
    let asked = &report.asked;
    row(
        "time",
        format!("{:.0} s", asked.deadline_s),
        total_words,
        of(|real| format!("{:.2} s", real.total_s)),
    )?;
    let down = real.map_or(UNKNOWN.into(), |real| time(real.downtime_ms));
    row("downtime, from stop to start", format!("{} ms", asked.downtime_ms), downtime_words, down)?;
    let down = real.map_or(UNKNOWN.into(), |real| time(real.downtime_ms_by_qemu));
    row("downtime, by QEMU's count", String::new(), |_| String::new(), down)?;
    // Of a move that failed QEMU tells zeros at last.
    let most = |of: fn(&Sample) -> u64| report.samples.iter().map(|told| of(&told.sample)).max();
    let passes = real.map(|real| real.passes).or(most(|sample| sample.passes));
    let bytes = real.map(|real| real.sent_bytes).or(most(|sample| sample.sent_bytes));
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.into());
    row(
        "passes",
        String::new(),
        |look| look.passes.to_string(),
        or_unknown(passes.map(|it| it.to_string())),
    )?;
    let bytes = or_unknown(bytes.map(|it| Bytes(it).to_string()));
    row("memory sent", String::new(), |look| Bytes(look.sent_bytes).to_string(), bytes)?;
    end_table(page)
}

fn total_words(look: &Forecast) -> String {
    if !look.converges {
        return "no end".into();
    }
    format!("{:.2} s ± {:.2}", look.total.likely, look.total.spread)
}

fn downtime_words(look: &Forecast) -> String {
    format!("{:.0} ms ± {:.0}", look.downtime.likely * 1000.0, look.downtime.spread * 1000.0)
}

fn write_parts(page: &mut String, report: &LiveReport) -> fmt::Result {
    if report.downtime_parts.is_empty() {
        return Ok(());
    }
    begin_table(page, "Parts of the downtime", &["Part", "#Time", "How it is known"])?;
    for part in &report.downtime_parts {
        let time = part.time.map_or(UNTOLD.into(), |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0));
        write_row(page, &[("name", part.name.into()), ("number", time), ("text", part.how.into())])?;
    }
    end_table(page)
}

/// A moment of a chart and what was measured then.
type Point = (u64, f64);

/// Over less time a rate is noise: news from QEMU come in between.
const SPAN_MIN_MS: u64 = 50;

/// Bytes a second that were sent, between samples; so few that they can be drawn.
fn sent_rates(samples: &[Told]) -> Vec<Point> {
    let step = samples.len().div_ceil(POINTS_MAX).max(1);
    let mut from: Option<&Sample> = None;
    let mut rates = Vec::new();
    for Told { sample, .. } in samples.iter().step_by(step).chain(samples.last()) {
        let begin = *from.get_or_insert(sample);
        let span_ms = sample.at_ms.saturating_sub(begin.at_ms);
        if span_ms >= SPAN_MIN_MS {
            let bytes = sample.sent_bytes.saturating_sub(begin.sent_bytes);
            rates.push((sample.at_ms, bytes as f64 * 1000.0 / span_ms as f64));
            from = Some(sample);
        }
    }
    rates
}

fn points(samples: &[Told], of: impl Fn(&Sample) -> u64) -> Vec<Point> {
    let step = samples.len().div_ceil(POINTS_MAX).max(1);
    let kept = samples.iter().step_by(step);
    kept.map(|Told { sample, .. }| (sample.at_ms, of(sample) as f64)).collect()
}

fn write_rates(page: &mut String, report: &LiveReport) -> fmt::Result {
    let sent = sent_rates(&report.samples);
    let dirty = points(&report.samples, |sample| sample.dirty_bytes_per_s);
    let lines = [("written", dirty.as_slice()), ("read", sent.as_slice())];
    if !write_plot(page, report, "Rates", "Memory sent, and dirty rate, over time", &lines, &|rate| {
        Rate(rate).to_string()
    })? {
        return Ok(());
    }
    write_legend(
        page,
        [
            ("read", "sent, per second"),
            ("written", "pages that the guest wrote to, per second, by QEMU's count"),
        ]
        .iter(),
    )?;
    writeln!(page, "</section>")
}

fn write_left(page: &mut String, report: &LiveReport) -> fmt::Result {
    let mut left = points(&report.samples, |sample| sample.left_bytes);
    left.iter_mut().for_each(|(_, bytes)| *bytes /= f64::from(1 << 20));
    let digits = usize::from(left.iter().all(|(_, mib)| *mib < 10.0));
    let words = "Memory left to send over time";
    let label = |mib: f64| format!("{mib:.digits$} MiB");
    if !write_plot(page, report, "Left to send", words, &[("read", left.as_slice())], &label)? {
        return Ok(());
    }
    write_legend(page, [("read", "memory left in the pass")].iter())?;
    let note = "Dotted lines: a pass begins. Red lines: something was done. Time in seconds since memory began to go.";
    writeln!(page, "<p class=\"note\">{note}</p>\n</section>")
}

/// A chart of lines over the time since memory began to go; whether there was anything to draw. The section is left open.
fn write_plot(
    page: &mut String,
    report: &LiveReport,
    heading: &str,
    words: &str,
    lines: &[(&str, &[Point])],
    label: &dyn Fn(f64) -> String,
) -> Result<bool, fmt::Error> {
    if lines.iter().all(|(_, points)| points.len() < 2) {
        return Ok(false);
    }
    let end_ms = report.samples.last().map_or(1, |last| moment(last.sample.at_ms)).max(1);
    let axis = TimeAxis::new(&[(0, end_ms)], NAMES, PLOT);
    begin_chart(page, heading, words, RATES_HEIGHT)?;
    write_seconds(page, &axis)?;
    let most =
        lines.iter().flat_map(|(_, points)| points.iter()).map(|(_, value)| *value).fold(0.0, f64::max);
    let y = write_value_labels(page, most, label)?;
    write_marks(page, report, &axis)?;
    for (class, points) in lines {
        let mut path = String::new();
        for (at, (at_ms, value)) in points.iter().enumerate() {
            write!(
                path,
                "{}{:.1} {:.1}",
                if at == 0 { 'M' } else { 'L' },
                axis.at(moment(*at_ms)),
                y(*value)
            )?;
        }
        writeln!(page, "<path class=\"rate {class}\" d=\"{path}\"/>")?;
    }
    end_chart(page)?;
    Ok(true)
}

fn moment(at_ms: u64) -> i64 {
    i64::try_from(at_ms).unwrap_or(i64::MAX)
}

/// Labels of the time axis: `0 s`, `0.5 s`, `90 s`.
fn write_seconds(page: &mut String, axis: &TimeAxis) -> fmt::Result {
    let (ticks, step) = axis.ticks(LABEL_DISTANCE);
    let digits = match step {
        1000.. => 0,
        100..1000 => 1,
        _ => 2,
    };
    for ms in ticks {
        let x = axis.at(ms);
        writeln!(
            page,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{RATES_HEIGHT:.0}\"/>\
             <text class=\"label\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{:.digits$} s</text>",
            RATES_HEIGHT + 18.0,
            ms as f64 / 1000.0
        )?;
    }
    Ok(())
}

/// Passes that are marked; of more nobody sees one.
const PASS_MARKS_MAX: usize = 60;

/// Where passes begin, and where something was done.
fn write_marks(page: &mut String, report: &LiveReport, axis: &TimeAxis) -> fmt::Result {
    let pairs = report.samples.windows(2).map(|pair| (&pair[0].sample, &pair[1].sample));
    let begins: Vec<&Sample> =
        pairs.filter(|(one, next)| next.passes > one.passes).map(|(_, next)| next).collect();
    let shown = if begins.len() > PASS_MARKS_MAX { &[] } else { begins.as_slice() };
    for sample in shown {
        let words = format!("pass {} begins", sample.passes);
        write_mark(page, "gap", axis.at(moment(sample.at_ms)), &words)?;
    }
    let began_s = report.memory_began_s.unwrap_or(0.0);
    for deed in &report.actions {
        let at_ms = ((deed.at_s - began_s).max(0.0) * 1000.0) as i64;
        write_mark(page, "deed", axis.at(at_ms), &format!("{}: {}", deed.what, deed.why))?;
    }
    Ok(())
}

fn write_mark(page: &mut String, class: &str, x: f64, words: &str) -> fmt::Result {
    writeln!(
        page,
        "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"-6\" y2=\"{RATES_HEIGHT:.0}\"><title>{}</title></line>",
        Escaped(words)
    )
}

/// What was decided, when and from what, in the order in which it was.
fn write_decisions(page: &mut String, report: &LiveReport) -> fmt::Result {
    let looks = report.forecasts.iter().map(|look| (look.at_s, chosen_words(look), input_words(look)));
    let deeds = report.actions.iter().map(|deed| (deed.at_s, deed.what.to_string(), deed.why.to_string()));
    let mut all: Vec<(f64, String, String)> = looks.chain(deeds).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    if all.is_empty() {
        return Ok(());
    }
    begin_table(page, "Decisions", &["#After", "What was decided", "From what"])?;
    for (at_s, what, why) in all {
        write_row(page, &[("number", format!("{at_s:.1} s")), ("text", what), ("text", why)])?;
    }
    end_table(page)
}

fn chosen_words(look: &LiveLook) -> String {
    let Some(course) = &look.choice.course else {
        return "no way that is allowed keeps the promise".into();
    };
    let mut words = count(course.channels.into(), "connection");
    if let Some(deed) = &course.at_once {
        words.push_str(&format!("; at once: {deed}"));
    }
    let ready: Vec<String> = course.deeds.iter().map(Deed::to_string).collect();
    match ready.as_slice() {
        [] => words,
        ready => format!("{words}; ready if it goes otherwise: {}", ready.join(", ")),
    }
}

fn input_words(look: &LiveLook) -> String {
    let facts = &look.choice.facts;
    let known = if look.line_is_known { "" } else { " (nothing was known of it)" };
    format!(
        "{} of memory, dirty rate {} ± {}, {} ± {} on the line{known}",
        Bytes(facts.memory_bytes),
        Rate(facts.dirty.likely),
        Rate(facts.dirty.spread),
        Rate(facts.rate.likely),
        Rate(facts.rate.spread),
    )
}

fn write_ways(page: &mut String, report: &LiveReport) -> fmt::Result {
    if report.forecasts.is_empty() {
        return Ok(());
    }
    let columns = ["#After", "Way", "Keeps the promise", "#Time", "#Downtime", "#Passes", "#Sent"];
    begin_table(page, "Ways that were looked at", &columns)?;
    for look in &report.forecasts {
        for way in &look.choice.looked_at {
            let cells = [
                ("number", format!("{:.1} s", look.at_s)),
                ("text", way.way.clone()),
                if way.keeps { ("good", "yes".into()) } else { ("bad", "no".into()) },
                ("number", total_words(&way.forecast)),
                ("number", downtime_words(&way.forecast)),
                ("number", way.forecast.passes.to_string()),
                ("number", Bytes(way.forecast.sent_bytes).to_string()),
            ];
            write_row(page, &cells)?;
        }
    }
    end_table(page)
}

fn write_disks(page: &mut String, report: &LiveReport) -> fmt::Result {
    if report.disks.is_empty() {
        return Ok(());
    }
    begin_table(page, "Disks", &["Disk", "#Copied", "#Of", "#All was copied once after"])?;
    for disk in &report.disks {
        let ready = disk.ready_s.map_or(UNKNOWN.into(), |at_s| format!("{at_s:.1} s"));
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        let cells = [
            ("name", disk.name.clone()),
            ("number", bytes(disk.done_bytes)),
            ("number", bytes(disk.all_bytes)),
            ("number", ready),
        ];
        write_row(page, &cells)?;
    }
    end_table(page)
}

fn write_notes(page: &mut String, report: &LiveReport) -> fmt::Result {
    if report.notes.is_empty() {
        return Ok(());
    }
    begin_table(page, "Notes", &["#After", "What was said"])?;
    for note in &report.notes {
        write_row(page, &[("number", format!("{:.1} s", note.at_s)), ("text", note.text.clone())])?;
    }
    end_table(page)
}

#[cfg(test)]
mod tests {
    use super::super::tests::texts;
    use super::*;
    use crate::live::tests::{moved, refused, sample};

    #[test]
    fn the_page_of_a_move_tells_what_was_promised_foreseen_and_real() {
        let page = live_report_html(&moved());
        let text = texts(&page);
        for words in [
            "/run/<vm>&\"a\".sock to /run/b\u{fffd}[31m.sock",
            "the promise was kept",
            "1.50 s ± 0.30",
            "2.00 s",
            "300 ms",
            "52 ms",
            "50.2 ms",
            "not told",
            "memory goes to <unix:/x>",
            "passes leave as much as they bring",
            "20 MB/s ± ",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(
            text.contains("0.6 s") && text.contains("500 MiB") && text.contains("GB/s"),
            "axes have units: {text}"
        );
        for word in ["<script", "http://", "https://", "url(", "@import", "src=", "<link", "href="] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn the_page_of_a_failure_says_what_and_where_the_guest_is() {
        let page = live_report_html(&refused());
        let text = texts(&page);
        assert!(text.contains("<cpu> differs") && text.contains("at the source, as it was"), "{text}");
        assert!(text.contains("-cpu qemu64") && !page.contains("<svg"), "{text}");
        let mut late = refused();
        late.add_sample(sample(500, 7, 300, 20));
        late.add_sample(Told { status: "failed".into(), ..sample(600, 0, 0, 0) });
        let text = texts(&live_report_html(&late));
        assert!(text.contains("passes----7") && text.contains("300 MiB"), "{text}");
        let mut lost = refused();
        let LiveOutcome::Failed { guest_at, stood_at_source_ms, .. } = &mut lost.outcome else {
            unreachable!()
        };
        (*guest_at, *stood_at_source_ms) = (None, Some(12.5));
        let text = texts(&live_report_html(&lost));
        assert!(text.contains("12.5 ms") && text.contains("neither side was touched"), "{text}");
    }

    #[test]
    fn a_broken_promise_is_no_good_news() {
        let mut report = moved();
        report.asked.downtime_ms = 10;
        let page = live_report_html(&report);
        assert!(page.contains("verdict bad") && page.contains("was not kept"));
    }

    #[test]
    fn rates_are_those_between_samples() {
        let samples = [sample(0, 1, 0, 8), sample(16, 1, 3, 5), sample(500, 1, 4, 4), sample(500, 1, 4, 4)];
        let samples = [&samples[..], &[sample(1000, 2, 5, 0), sample(1010, 2, 9, 0)]].concat();
        let mib = f64::from(1 << 20);
        assert_eq!(sent_rates(&samples), [(500, 8.0 * mib), (1000, 2.0 * mib)]);
        assert!(sent_rates(&[]).is_empty());
    }

    #[test]
    fn numbers_that_no_chart_can_show_and_very_many_of_them_do_not_break_the_page() {
        let mut report = moved();
        report.actions[0].at_s = f64::NAN;
        report.forecasts[0].choice.facts.rate.likely = f64::INFINITY;
        for number in 0..50_000u64 {
            let mut told = sample(number * number, number, number, 0);
            told.sample.left_bytes = u64::MAX;
            report.add_sample(told);
        }
        let page = live_report_html(&report);
        texts(&page);
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
    }
}
