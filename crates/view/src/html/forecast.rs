//! A forecast as a page, with its Gantt chart.

use std::fmt::{self, Write};

use drover_forecast::{Forecast, Spread, VmForecast};
use drover_types::Bytes;

use super::charts::{NAMES, PLOT, begin_chart, end_chart, write_legend, write_time_labels};
use super::{Escaped, begin_table, end_table, write_facts, write_foot, write_head, write_row};
use crate::axis::TimeAxis;
use crate::clock::{local, zone_name};
use crate::forecast::{
    LINES_HEADING, by_end, byte_cells, change, churn_measured, down_words, foreseen, likely, openings,
    order_words, origin, time, values, wave_cells, wave_moments, wave_name, wave_order_words,
};
use crate::forecast_clock::Clocks;
use crate::text::{UNKNOWN, clip, count};

/// Rows of the chart and of the table; the JSON has all.
const ROWS_MAX: usize = 1000;
const NAME_CHARS: usize = 24;
/// A bar that took no time is still seen.
const BAR_MIN: f64 = 1.5;
/// What an open end takes beyond the last moment that is foreseen: this part of the time until then, and so many seconds at the least.
const OPEN_SHARE: f64 = 0.1;
const OPEN_MIN_S: f64 = 60.0;

/// What a fleet will take, as one page without scripts.
pub fn forecast_html(it: &Forecast) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, it);
    page
}

fn write_page(page: &mut String, it: &Forecast) -> fmt::Result {
    let title = it.plans.join(", ");
    write_head(page, &title)?;
    writeln!(
        page,
        "<header>\n<p class=\"eyebrow\">drover forecast</p>\n<h1>{}</h1>\n<p>from {} {} on</p>\n</header>",
        Escaped(&title),
        local(it.start_ms as i64),
        Escaped(&zone_name(it.start_ms as i64))
    )?;
    // What waits for an order has no end of its own.
    let Spread { p10, p50, p90 } = foreseen(it);
    let ends = if it.on_order.is_some() { "Ready for cutover" } else { "Ends" };
    let facts = [
        ("VMs", it.vms.len().to_string()),
        ("To be read", Bytes(it.bytes).to_string()),
        ("Likely", time(p50)),
        ("P10 to P90", format!("{} to {}", time(p10), time(p90))),
        (ends, moment(it, p50)),
        ("Not let in by any window", it.never.len().to_string()),
    ];
    write_facts(page, &facts)?;
    write_orders(page, it)?;
    write_gantt(page, it)?;
    write_lines(page, it)?;
    write_why(page, it)?;
    write_waves(page, it)?;
    write_vms(page, it)?;
    write_foot(page)
}

/// What of the plans waits for an order.
fn write_orders(page: &mut String, it: &Forecast) -> fmt::Result {
    let several = it.plans.len() > 1;
    let of_plans = it.plans.iter().zip(&it.plans_on_order).filter(|_| several);
    let of_plans = of_plans.filter_map(|(plan, it)| Some((format!("Plan {plan}: "), it.as_ref()?)));
    let of_all = it.on_order.iter().filter(|_| !several).map(|it| (String::new(), it));
    of_all.chain(of_plans).try_for_each(|(plan, waits)| {
        writeln!(
            page,
            "<p>{}</p>",
            Escaped(&format!(
                "{plan}{}, and each is down for {} then",
                order_words(waits),
                down_words(waits)
            ))
        )
    })
}

fn moment(it: &Forecast, seconds: f64) -> String {
    local(ms(it, seconds))
}

fn ms(it: &Forecast, seconds: f64) -> i64 {
    it.start_ms as i64 + (seconds * 1000.0) as i64
}

/// Each VM from its begin to its end, and on to where it ends once in ten times later. One that waits for an order has an open end.
fn write_gantt(page: &mut String, it: &Forecast) -> fmt::Result {
    let begin = |vm: &VmForecast| vm.begin_s.map(|it| it.p50);
    let is_drawn = |vm: &&VmForecast| vm.begin_s.is_some() && (vm.end_s.is_some() || vm.on_order);
    let mut vms: Vec<&VmForecast> = it.vms.iter().filter(is_drawn).collect();
    vms.sort_by(|one, two| begin(one).unwrap_or(0.0).total_cmp(&begin(two).unwrap_or(0.0)));
    let shown = &vms[..vms.len().min(ROWS_MAX)];
    if shown.is_empty() {
        return Ok(());
    }
    let row = if shown.len() > 60 { 8.0 } else { 20.0 };
    let height = row * shown.len() as f64;
    // One that is never ready may begin after all else has ended.
    let last = |vm: &&VmForecast| last_foreseen(vm).map(|last| last.p90).or(begin(vm));
    let foreseen = shown.iter().filter_map(last).fold(0.0, f64::max);
    let is_open = shown.iter().any(|vm| vm.on_order);
    let until = if is_open { foreseen + (foreseen * OPEN_SHARE).max(OPEN_MIN_S) } else { foreseen };
    let axis = TimeAxis::new(&[(ms(it, 0.0), ms(it, until))], NAMES, PLOT);
    begin_chart(page, "Gantt chart", "When each VM is likely to begin and to end", height)?;
    write_time_labels(page, &axis, height)?;
    let x = |seconds: f64| axis.at(ms(it, seconds));
    for (at, vm) in shown.iter().enumerate() {
        let top = row * at as f64;
        if row > 10.0 {
            writeln!(
                page,
                "<text class=\"label\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                NAMES - 8.0,
                top + row / 2.0 + 4.0,
                Escaped(&clip(&vm.name, NAME_CHARS))
            )?;
        }
        let Some(begin) = begin(vm) else { continue };
        let bar = Bar { top: top + row * 0.15, height: row * 0.7 };
        match vm.end_s.filter(|_| !vm.on_order) {
            Some(end) => bar.write_closed(page, vm, [begin, end.p50, end.p90], &x)?,
            None => bar.write_open(page, vm, begin, until, &x)?,
        }
    }
    end_chart(page)?;
    let legend = [
        ("p-copy", "copied"),
        ("p-off", "down for the last pass"),
        ("p-copy unfinished", "until P90 of its end"),
        ("p-passes unfinished", "waits for drover cutover, with an open end"),
    ];
    write_legend(page, legend[..if is_open { 4 } else { 3 }].iter())?;
    if vms.len() > shown.len() {
        writeln!(page, "<p class=\"note\">... and {}</p>", count(vms.len() - shown.len(), "more VM"))?;
    }
    writeln!(page, "</section>")
}

/// The last moment of a VM that the chart shows: its end, or when it is ready for its cutover. Absent if it never is.
fn last_foreseen(vm: &VmForecast) -> Option<Spread> {
    // One that is off moves over without a cutover.
    if vm.on_order { vm.cutover_s.or(vm.end_s) } else { vm.end_s }
}

/// Where a VM's bar lies.
struct Bar {
    top: f64,
    height: f64,
}

impl Bar {
    /// From its begin to the likely end and to P90 of that.
    fn write_closed(
        &self,
        page: &mut String,
        vm: &VmForecast,
        [begin, end, late]: [f64; 3],
        x: &dyn Fn(f64) -> f64,
    ) -> fmt::Result {
        let copied = match vm.cutover_s.filter(|_| vm.is_warm) {
            Some(down) => down.p50.max(begin).min(end),
            None => end,
        };
        let words = format!("{} to {}, P90 {}", time(begin), time(end), time(late));
        self.write_part(page, vm, ("p-copy", begin, copied), &words, x)?;
        self.write_part(page, vm, ("p-off", copied, end), &words, x)?;
        self.write_part(page, vm, ("p-copy unfinished", end, late), &words, x)
    }

    /// Until it is ready for its cutover, and from there an arrow to the end of the chart.
    fn write_open(
        &self,
        page: &mut String,
        vm: &VmForecast,
        begin: f64,
        until: f64,
        x: &dyn Fn(f64) -> f64,
    ) -> fmt::Result {
        let (ready, words) = match last_foreseen(vm) {
            Some(Spread { p50, p90, .. }) => (
                p50.max(begin),
                format!("{} until ready for cutover after {}, P90 {}", time(begin), time(p50), time(p90)),
            ),
            None => (begin, format!("begins after {}, and never may move over", time(begin))),
        };
        let words = format!("{words}; its end is open");
        self.write_part(page, vm, ("p-copy", begin, ready), &words, x)?;
        let (left, right, top, bottom) = (x(ready), x(until), self.top, self.top + self.height);
        let neck = (right - self.height / 2.0).max(left);
        writeln!(
            page,
            "<polygon class=\"phase p-passes unfinished\" points=\"{left:.1},{top:.1} {neck:.1},{top:.1} {right:.1},{:.1} \
             {neck:.1},{bottom:.1} {left:.1},{bottom:.1}\"><title>{}: {words}</title></polygon>",
            (top + bottom) / 2.0,
            Escaped(&vm.name),
        )
    }

    /// A stretch of a bar; nothing of one that takes no time.
    fn write_part(
        &self,
        page: &mut String,
        vm: &VmForecast,
        (class, from, to): (&str, f64, f64),
        words: &str,
        x: &dyn Fn(f64) -> f64,
    ) -> fmt::Result {
        if to <= from {
            return Ok(());
        }
        let left = x(from);
        writeln!(
            page,
            "<rect class=\"phase {class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}: \
             {words}</title></rect>",
            self.top,
            (x(to) - left).max(BAR_MIN),
            self.height,
            Escaped(&vm.name),
        )
    }
}

/// Bytes over each line.
fn write_lines(page: &mut String, it: &Forecast) -> fmt::Result {
    begin_table(page, LINES_HEADING, &["Line", "#P10", "#Likely", "#P90"])?;
    for line in it.lines.iter().take(ROWS_MAX) {
        let cells = byte_cells(line).map(|it| ("number", it));
        write_row(page, &[("name", line.name.clone())].into_iter().chain(cells).collect::<Vec<_>>())?;
    }
    end_table(page)
}

pub(super) fn write_why(page: &mut String, it: &Forecast) -> fmt::Result {
    begin_table(page, "What limits", &["Resource", "#For", "#From", "#Until", "#Used"])?;
    for idle in &it.without_copy {
        let cells = [time(idle.seconds), UNKNOWN.into(), UNKNOWN.into(), "nothing is copied".into()];
        let name = [("name", idle.name.clone())];
        write_row(page, &name.into_iter().chain(cells.map(|it| ("number", it))).collect::<Vec<_>>())?;
    }
    for by in &it.limiting {
        let cells = [time(by.seconds), time(by.from_s), time(by.to_s), format!("{:.0} %", by.part * 100.0)];
        let name = [("name", by.name.clone())];
        write_row(page, &name.into_iter().chain(cells.map(|it| ("number", it))).collect::<Vec<_>>())?;
    }
    end_table(page)?;
    begin_table(page, "What more of it buys", &["Of", "#Change of the time"])?;
    for gain in &it.gains {
        write_row(page, &[("", gain.what.clone()), ("number", change(gain))])?;
    }
    end_table(page)?;
    begin_table(page, "Goes by", &["Quantity", "Likely (P10-P90)", "From"])?;
    for by in &it.by {
        write_row(page, &[("", by.name.clone()), ("", values(by)), ("", origin(by))])?;
    }
    end_table(page)?;
    match churn_measured(it) {
        Some(words) => writeln!(page, "<p>{words}</p>"),
        None => Ok(()),
    }
}

fn write_waves(page: &mut String, it: &Forecast) -> fmt::Result {
    if it.waves.is_empty() {
        return Ok(());
    }
    let columns = [
        "Wave",
        "#VMs",
        "#Begins",
        "#P10",
        "#Ends",
        "#P90",
        "#Fits its window",
        "Begins at",
        "Ends at",
        "P90 at",
        "Clock of",
    ];
    begin_table(page, "Waves", &columns)?;
    let clocks = Clocks::of(it);
    for wave in &it.waves {
        let clock = clocks.of_wave(wave);
        let name = [("name", wave_name(it, wave))];
        let cells = wave_cells(wave).map(|it| ("number", it));
        let moments = wave_moments(&clock, wave).map(|it| ("time", it));
        let zone = [("", clock.zone())];
        let cells = name.into_iter().chain(cells).chain(moments).chain(zone);
        write_row(page, &cells.collect::<Vec<_>>())?;
    }
    end_table(page)?;
    for wave in it.waves.iter().filter(|wave| wave.on_order > 0) {
        let words = wave_order_words(wave);
        writeln!(page, "<p>Wave {}: {}</p>", Escaped(&wave_name(it, wave)), Escaped(&words))?;
    }
    for (wave, missed) in it.waves.iter().filter_map(|wave| Some((wave, wave.missed.as_ref()?))) {
        let (name, then) = (wave_name(it, wave), missed.then());
        let words = format!("not ready when its window closes ({}): its VMs {then}", missed.closes);
        writeln!(page, "<p>Wave {}: {}</p>", Escaped(&name), Escaped(&words))?;
    }
    openings(it).try_for_each(|(name, opens)| {
        writeln!(page, "<p>Wave {}: its window opens {}</p>", Escaped(&name), Escaped(opens))
    })
}

fn write_vms(page: &mut String, it: &Forecast) -> fmt::Result {
    let columns =
        ["VM", "Host", "#To read", "#Begins", "#Ends", "#P90", "Cutover", "#Down for", "Ends at", "Clock of"];
    let clocks = Clocks::of(it);
    begin_table(page, "Virtual machines, the last first", &columns)?;
    for vm in by_end(it).into_iter().take(ROWS_MAX) {
        let clock = clocks.of_vm(vm);
        let end = |words: String| if vm.on_order { "when ordered".into() } else { words };
        write_row(
            page,
            &[
                ("name", vm.name.clone()),
                ("", vm.host.clone()),
                ("number", Bytes(vm.bytes).to_string()),
                ("number", likely(vm.begin_s)),
                ("number", end(likely(vm.end_s))),
                ("number", end(vm.end_s.map_or(UNKNOWN.into(), |it| time(it.p90)))),
                ("time", clock.likely(vm.cutover_s)),
                ("number", likely(vm.downtime_s)),
                ("time", end(clock.likely(vm.end_s))),
                ("", clock.zone()),
            ],
        )?;
    }
    end_table(page)
}

#[cfg(test)]
mod tests {
    use drover_forecast::{Limiting, WithoutCopy};

    use super::*;
    use crate::forecast::tests::{forecast, in_zones};
    use crate::html::tests::texts;

    #[test]
    fn the_page_has_the_moments_of_waves_in_their_zones_and_says_what_waits_for_an_order() {
        let text = texts(&forecast_html(&in_zones()));
        for part in [
            "Sat 2026-03-07 22:00",
            "Europe/Berlin",
            "Sun 2026-03-01 20:00",
            "America/New_York",
            "Ready for cutover",
            "1 VM waits for `drover cutover`, and each is down for",
            "when ordered",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_vm_that_waits_for_its_cutover_is_copied_in_the_chart_and_then_has_an_open_end() {
        let mut forecast = in_zones();
        let bars = |page: &str| -> Vec<String> {
            page.lines().filter(|line| line.contains("<title>waits: ")).map(str::to_string).collect()
        };
        let page = forecast_html(&forecast);
        let [copy, open] = &bars(&page)[..] else { panic!("{page}") };
        assert!(
            copy.contains("class=\"phase p-copy\"") && copy.contains("until ready for cutover"),
            "{copy}"
        );
        let end = format!(" {:.1},", NAMES + PLOT);
        assert!(open.starts_with("<polygon") && open.contains(&end), "to the end of the chart: {open}");
        assert!(open.contains("its end is open") && page.matches("<polygon").count() == 1, "{page}");
        assert!(texts(&page).contains("waits for drover cutover, with an open end"));
        // One whose wave never opens is copied all the same.
        let waits = forecast.vms.iter_mut().find(|vm| vm.on_order).unwrap();
        (waits.cutover_s, waits.end_s) = (None, None);
        let page = forecast_html(&forecast);
        let [open] = &bars(&page)[..] else { panic!("{page}") };
        assert!(open.starts_with("<polygon") && open.contains("never may move over"), "{open}");
        // And may begin after all that is foreseen of the others.
        let late = 30.0 * 86_400.0;
        let begins = Spread { p10: late, p50: late, p90: late };
        forecast.vms.iter_mut().filter(|vm| vm.on_order).for_each(|vm| vm.begin_s = Some(begins));
        let page = forecast_html(&forecast);
        let [open] = &bars(&page)[..] else { panic!("{page}") };
        let corners = open.split_once("points=\"").and_then(|(_, rest)| rest.split('"').next()).unwrap();
        let across: Vec<f64> =
            corners.split(' ').filter_map(|corner| corner.split(',').next()?.parse().ok()).collect();
        let width = across.iter().fold(0.0, |most: f64, x| most.max(*x)) - across[0];
        assert!(width > 10.0, "{open}");
        // Where none waits, none is open.
        forecast.vms.retain(|vm| !vm.on_order);
        let page = forecast_html(&forecast);
        assert!(!page.contains("<polygon") && !texts(&page).contains("open end"), "{page}");
    }

    #[test]
    fn the_page_says_first_what_goes_on_without_copies() {
        let mut forecast = forecast();
        let host = Limiting { name: "host esx1".into(), seconds: 60.0, from_s: 0.0, to_s: 60.0, part: 0.9 };
        (forecast.limiting, forecast.without_copy) = (vec![host], Vec::new());
        let limits = |page: &str| {
            let (_, rest) = page.split_once("What limits").unwrap();
            rest.split_once("What more of it buys").unwrap().0.to_string()
        };
        assert!(!limits(&forecast_html(&forecast)).contains("nothing is copied"));
        forecast.without_copy = vec![WithoutCopy { name: "shutdown <b>".into(), seconds: 90.0 }];
        let part = limits(&forecast_html(&forecast));
        let rows: Vec<&str> = part.split("<tr>").filter(|row| row.contains("<td")).collect();
        let [idle, limiting] = &rows[..] else { panic!("{part}") };
        assert!(idle.contains("shutdown &lt;b&gt;") && idle.contains(&time(90.0)), "{part}");
        assert!(idle.contains("nothing is copied") && limiting.contains("host esx1"), "{part}");
    }

    #[test]
    fn the_page_is_well_formed_loads_nothing_and_has_a_bar_for_each_vm() {
        let page = forecast_html(&forecast());
        let text = texts(&page);
        assert!(text.contains("a-very-long-name-of-a-virtual-machine-<b>"), "{text}");
        for word in ["<script", "http://", "https://", "url(", "src=", "href=", "NaN"] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.matches("class=\"phase p-copy\"").count() == 50, "{page}");
    }
}
