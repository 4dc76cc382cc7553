//! A forecast as text, in 80 columns, and as JSON.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::time::Duration;

use drover_forecast::reference::{Figure, Row, Use};
use drover_forecast::{
    By, ByteSpread, Forecast, Gain, LineBytes, OnOrder, Origin, ProposedWave, Spread, Unit, VmForecast,
    WaveForecast,
};
use drover_types::Bytes;
use serde_json::Value;

use crate::clock::{local, zone_name};
use crate::forecast_clock::{Clock, Clocks, with_moments};
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, clip, count, duration};

/// Rows of a table; the JSON has all.
const ROWS_MAX: usize = 20;
const NAME_COLUMNS: usize = 20;
/// Lines that bytes go over; the JSON has all.
const LINES_MAX: usize = 10;
const LINE_NAME_COLUMNS: usize = 34;
/// Each pass of a warm VM counts.
pub(crate) const LINES_HEADING: &str = "Bytes over each line, all passes together";
/// Of a line without columns.
const LINE_COLUMNS: usize = 80;
/// There are more columns beside a wave's name.
const WAVE_COLUMNS: usize = 12;
/// A change below this is none.
const NO_CHANGE: f64 = 0.005;

/// What a fleet will take, in tables.
pub fn forecast_text(it: &Forecast) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_forecast(&mut text, it);
    text
}

/// The same as JSON: all VMs, times in seconds from `start_ms`, and their moments as RFC 3339.
pub fn forecast_json(it: &Forecast) -> Value {
    with_moments(it)
}

fn write_forecast(text: &mut String, it: &Forecast) -> fmt::Result {
    writeln!(text, "{}, {} to be read in all", count(it.vms.len(), "VM"), Bytes(it.bytes))?;
    write_sums(text, it)?;
    if it.plans.len() > 1 {
        write!(text, "\nPlans: after what time each ends, or is ready for its cutovers\n{}", plan_table(it))?;
        for (plan, waits) in it.plans.iter().zip(&it.plans_on_order) {
            let Some(waits) = waits else { continue };
            writeln!(text, "{}", clip(&format!("plan {plan}: {}", order_words(waits)), LINE_COLUMNS))?;
        }
    }
    let clocks = Clocks::of(it);
    if !it.waves.is_empty() {
        write!(text, "\nWaves: how likely it is that each fits its window\n{}", wave_table(it))?;
        for (name, opens) in openings(it) {
            writeln!(text, "wave {name}: its window opens {opens}")?;
        }
        for (wave, missed) in it.waves.iter().filter_map(|wave| Some((wave, wave.missed.as_ref()?))) {
            writeln!(text, "wave {}: not ready when its window closes", wave_name(it, wave))?;
            writeln!(text, "  ({}): its VMs {}", missed.closes, missed.then())?;
        }
        for wave in it.waves.iter().filter(|wave| wave.on_order > 0) {
            writeln!(text, "wave {}: {}", wave_name(it, wave), wave_order_words(wave))?;
        }
        write_wave_clocks(text, it, &clocks)?;
    }
    write_vms(text, it, &clocks)?;
    if it.vms.len() > ROWS_MAX {
        writeln!(text, "  ... and {} more (--json has all)", it.vms.len() - ROWS_MAX)?;
    }
    write_lines(text, it)?;
    write_why(text, it)
}

/// The sums, what limits and what that goes by: without single VMs, for an assessment.
pub(crate) fn write_sums(text: &mut String, it: &Forecast) -> fmt::Result {
    // To the minute.
    let end = |seconds: f64| {
        local(it.start_ms as i64 + (seconds * 1000.0) as i64).chars().take(16).collect::<String>()
    };
    // What waits for an order has no end of its own.
    let Spread { p10, p50, p90 } = foreseen(it);
    let until = if it.on_order.is_some() { ", until all is ready for cutover" } else { "" };
    writeln!(text, "  {:<12}{}{until}", "likely", time(p50))?;
    writeln!(text, "  {:<12}{} to {}", "P10 to P90", time(p10), time(p90))?;
    writeln!(
        text,
        "  {:<12}{} (P10 {}, P90 {}) {}",
        if it.on_order.is_some() { "ready" } else { "ends" },
        end(p50),
        end(p10),
        end(p90),
        zone_name(it.start_ms as i64)
    )?;
    if let Some(waits) = &it.on_order {
        writeln!(text, "  {:<12}{}", "cutover", order_words(waits))?;
        writeln!(text, "  {:<12}{} each, then", "down for", down_words(waits))?;
    }
    if !it.never.is_empty() {
        let names = clip(&it.never.join(", "), 44).into_owned();
        writeln!(text, "  no window lets in {}: {names}", count(it.never.len(), "VM"))?;
    }
    Ok(())
}

/// What limits, what more of it buys, and what all that goes by.
pub(crate) fn write_why(text: &mut String, it: &Forecast) -> fmt::Result {
    if !it.limiting.is_empty() || !it.without_copy.is_empty() {
        writeln!(text, "\nWhat limits")?;
    }
    for idle in &it.without_copy {
        writeln!(text, "  {:<34} for {}, nothing is copied", clip(&idle.name, 34), time(idle.seconds))?;
    }
    for by in it.limiting.iter().take(5) {
        writeln!(
            text,
            "  {:<34} for {}, {:.0} % used",
            clip(&by.name, 34),
            time(by.seconds),
            by.part * 100.0
        )?;
    }
    if !it.gains.is_empty() {
        writeln!(text, "\nWhat more of it buys")?;
    }
    for gain in &it.gains {
        writeln!(text, "  {:<46} {}", clip(&gain.what, 46), change(gain))?;
    }
    writeln!(text, "\nGoes by ({} draws)", it.draws)?;
    it.by.iter().try_for_each(|by| {
        let name = clip(&by.name, 20);
        writeln!(text, "  {name:<21}{:<24} {}", values(by), clip(&origin(by), 31))
    })?;
    match churn_measured(it) {
        Some(words) => writeln!(text, "  {words}"),
        None => Ok(()),
    }
}

/// Whose churn the source told, if it told any.
pub(crate) fn churn_measured(it: &Forecast) -> Option<String> {
    let words = || format!("churn of {}: by the counters of the source", count(it.churn_measured, "VM"));
    (it.churn_measured > 0).then(words)
}

/// `-4 %`, or `nothing`.
pub(crate) fn change(gain: &Gain) -> String {
    if gain.change.abs() < NO_CHANGE { "nothing".into() } else { format!("{:+.0} %", gain.change * 100.0) }
}

/// P50 and, where it has a spread, P10 to P90.
pub(crate) fn values(by: &By) -> String {
    let one = |value: f64| match by.unit {
        Unit::Rate => format!("{:.0} MB/s", value / 1e6),
        Unit::Seconds => format!("{value:.1} s"),
        Unit::ShareOfAnHour => format!("{:.2} %/h", value * 100.0),
    };
    let number = |value: f64| one(value).split(' ').next().unwrap_or_default().to_string();
    let Spread { p10, p50, p90 } = by.quantity.spread;
    if p10 == p90 { one(p50) } else { format!("{} ({}-{})", one(p50), number(p10), number(p90)) }
}

/// `given`, `measured 2026-11-27, 3 times`, `assumed: ...`.
pub(crate) fn origin(by: &By) -> String {
    match (&by.quantity.origin, by.quantity.measured_ms) {
        (Origin::Measured(samples), Some(at_ms)) => {
            let times = if *samples == 1 { "once".into() } else { format!("{samples} times") };
            let day: String = local(at_ms).chars().take(10).collect();
            format!("measured {day}, {times}")
        }
        (origin, _) => origin.to_string(),
    }
}

pub(crate) fn time(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// `2 h 05 min`, or what stands for unknown.
pub(crate) fn likely(spread: Option<Spread>) -> String {
    spread.map_or(UNKNOWN.into(), |it| time(it.p50))
}

/// VMs with the one that ends last first; those that never end before all.
pub(crate) fn by_end(it: &Forecast) -> Vec<&VmForecast> {
    let mut vms: Vec<&VmForecast> = it.vms.iter().collect();
    let end = |vm: &VmForecast| vm.end_s.map_or(f64::INFINITY, |end| end.p50);
    vms.sort_by(|one, two| end(two).total_cmp(&end(one)));
    vms
}

/// Until all have arrived, or are ready for the cutovers that somebody has to order.
pub(crate) fn foreseen(it: &Forecast) -> Spread {
    it.on_order.map_or(it.makespan_s, |waits| waits.ready_s.unwrap_or(it.makespan_s))
}

/// `3 VMs wait for `drover cutover``.
pub(crate) fn order_words(it: &OnOrder) -> String {
    let wait = if it.vms == 1 { "waits" } else { "wait" };
    format!("{} {wait} for `drover cutover`", count(it.vms, "VM"))
}

/// How long each of them is down then: `2 min 10 s (1 min 05 s to 4 min 00 s)`.
pub(crate) fn down_words(it: &OnOrder) -> String {
    let words = |Spread { p10, p50, p90 }: Spread| format!("{} ({} to {})", time(p50), time(p10), time(p90));
    it.down_s.map_or(UNKNOWN.into(), words)
}

/// What its end goes by, in a line below its table.
pub(crate) fn wave_order_words(wave: &WaveForecast) -> String {
    format!("ends so if `drover cutover` comes as soon as its VMs are ready: {}", count(wave.on_order, "VM"))
}

/// VMs on one clock that end alike: by themselves, or when somebody orders their cutovers.
struct VmGroup<'a> {
    on_order: bool,
    clock: Clock<'a>,
    zone: String,
    vms: Vec<&'a VmForecast>,
}

/// The last VMs by the clocks that they go by, each clock in the order of its last VM.
fn vm_groups<'a>(it: &'a Forecast, clocks: &Clocks<'a>) -> Vec<VmGroup<'a>> {
    let mut groups: Vec<VmGroup<'a>> = Vec::new();
    for vm in by_end(it).into_iter().take(ROWS_MAX) {
        let clock = clocks.of_vm(vm);
        let zone = clock.zone();
        let known = groups.iter_mut().find(|it| it.on_order == vm.on_order && it.zone == zone);
        match known {
            Some(group) => group.vms.push(vm),
            None => groups.push(VmGroup { on_order: vm.on_order, clock, zone, vms: vec![vm] }),
        }
    }
    groups
}

fn write_vms(text: &mut String, it: &Forecast, clocks: &Clocks<'_>) -> fmt::Result {
    for group in vm_groups(it, clocks) {
        let what = if group.on_order { "VMs that wait for `drover cutover`" } else { "VMs" };
        write!(text, "\n{what}, the last first, by the clock of {}\n{}", group.zone, vm_table(&group))?;
    }
    Ok(())
}

fn vm_table(group: &VmGroup<'_>) -> Table {
    let ends = if group.on_order { "READY AFTER" } else { "ENDS AFTER" };
    let columns = [ends, "AT", "P90", "DOWN FOR"].map(|name| (name, Align::Right));
    let mut table = Table::new(&[[("VM", Align::Left)].as_slice(), &columns].concat()).indented(2);
    for vm in &group.vms {
        let end = if group.on_order { vm.cutover_s } else { vm.end_s };
        table.row([
            clip(&vm.name, NAME_COLUMNS).into_owned(),
            likely(end),
            group.clock.short(end),
            end.map_or(UNKNOWN.into(), |it| time(it.p90)),
            likely(vm.downtime_s),
        ]);
    }
    table
}

/// Bytes over each line.
fn write_lines(text: &mut String, it: &Forecast) -> fmt::Result {
    let columns = ["P10", "LIKELY", "P90"].map(|name| (name, Align::Right));
    let mut table = Table::new(&[[("LINE", Align::Left)].as_slice(), &columns].concat()).indented(2);
    for line in it.lines.iter().take(LINES_MAX) {
        let name = [clip(&line.name, LINE_NAME_COLUMNS).into_owned()];
        table.row(name.into_iter().chain(byte_cells(line)));
    }
    write!(text, "\n{LINES_HEADING}\n{table}")?;
    match it.lines.len().saturating_sub(LINES_MAX) {
        0 => Ok(()),
        more => writeln!(text, "  ... and {more} more (--json has all)"),
    }
}

/// P10, P50 and P90 of the bytes over a line.
pub(crate) fn byte_cells(line: &LineBytes) -> [String; 3] {
    let ByteSpread { p10, p50, p90 } = line.bytes;
    [p10, p50, p90].map(|bytes| Bytes(bytes).to_string())
}

/// When waves begin and end on the clocks of their windows.
fn write_wave_clocks(text: &mut String, it: &Forecast, clocks: &Clocks<'_>) -> fmt::Result {
    let zones: BTreeSet<String> = it.waves.iter().map(|wave| clocks.of_wave(wave).zone()).collect();
    for zone in zones {
        let columns = ["BEGINS", "ENDS", "P90"].map(|name| (name, Align::Left));
        let mut table = Table::new(&[[("WAVE", Align::Left)].as_slice(), &columns].concat()).indented(2);
        for wave in &it.waves {
            let clock = clocks.of_wave(wave);
            if clock.zone() == zone {
                let name = [clip(&wave_name(it, wave), WAVE_COLUMNS).into_owned()];
                table.row(name.into_iter().chain(wave_moments(&clock, wave)));
            }
        }
        write!(text, "\nWaves by the clock of {zone}\n{table}")?;
    }
    Ok(())
}

/// When a wave is likely to begin and to end, and P90 of its end.
pub(crate) fn wave_moments(clock: &Clock<'_>, wave: &WaveForecast) -> [String; 3] {
    let p90 = wave.end_s.map_or(UNKNOWN.into(), |end| clock.moment(end.p90));
    [clock.likely(wave.begin_s), clock.likely(wave.end_s), p90]
}

fn plan_table(it: &Forecast) -> Table {
    let columns = ["P10", "ENDS AFTER", "P90", "AT"].map(|name| (name, Align::Right));
    let mut table = Table::new(&[[("PLAN", Align::Left)].as_slice(), &columns].concat()).indented(2);
    let clock = Clocks::of(it).local();
    for (at, (plan, end)) in it.plans.iter().zip(&it.plan_ends_s).enumerate() {
        let waits = it.plans_on_order.get(at).copied().flatten();
        let end = waits.map_or(*end, |waits| waits.ready_s);
        let name = [clip(plan, NAME_COLUMNS).into_owned()];
        table.row(name.into_iter().chain(end_cells(end)).chain([clock.short(end)]));
    }
    table
}

/// P10, P50 and P90 of an end.
fn end_cells(end: Option<Spread>) -> [String; 3] {
    let at = |of: fn(Spread) -> f64| end.map_or(UNKNOWN.into(), |it| time(of(it)));
    [at(|it| it.p10), at(|it| it.p50), at(|it| it.p90)]
}

fn wave_table(it: &Forecast) -> Table {
    let columns = ["VMS", "BEGINS", "P10", "ENDS", "P90", "FITS"].map(|name| (name, Align::Right));
    let mut table = Table::new(&[[("WAVE", Align::Left)].as_slice(), &columns].concat()).indented(2);
    for wave in &it.waves {
        let name = [clip(&wave_name(it, wave), WAVE_COLUMNS).into_owned()];
        table.row(name.into_iter().chain(wave_cells(wave)));
    }
    table
}

/// With its plan, where there are several.
pub(crate) fn wave_name(it: &Forecast, wave: &WaveForecast) -> String {
    match it.plans.get(wave.plan).filter(|_| it.plans.len() > 1) {
        Some(plan) => format!("{plan}/{}", wave.name),
        None => wave.name.clone(),
    }
}

/// When the windows of waves open that are closed when all begins.
pub(crate) fn openings(it: &Forecast) -> impl Iterator<Item = (String, &str)> {
    it.waves.iter().filter_map(|wave| Some((wave_name(it, wave), wave.opens.as_deref()?)))
}

/// VMs, when it begins, P10, P50 and P90 of its end, and with which chance it fits its window.
pub(crate) fn wave_cells(wave: &WaveForecast) -> [String; 6] {
    let [p10, p50, p90] = end_cells(wave.end_s);
    [
        wave.vms.to_string(),
        likely(wave.begin_s),
        p10,
        p50,
        p90,
        wave.fits.map_or(UNKNOWN.into(), |chance| format!("{:.0} %", chance * 100.0)),
    ]
}

/// Proposed waves, and when each opens; the rest has no window.
pub fn proposed_waves_text(waves: &[ProposedWave], opens: &[String], rest: Option<&ProposedWave>) -> String {
    let columns = ["VMS", "TO READ", "P10", "LIKELY", "P90", "FITS"].map(|name| (name, Align::Right));
    let names = [("WAVE", Align::Left), ("OPENS", Align::Left)];
    let mut table = Table::new(&[names.as_slice(), &columns].concat());
    let with_windows = waves.iter().zip(opens.iter().map(Some));
    for (wave, opens) in with_windows.chain(rest.map(|rest| (rest, None))) {
        let Spread { p10, p50, p90 } = wave.makespan_s;
        table.row([
            wave.name.clone(),
            opens.map_or(UNKNOWN.into(), String::clone),
            wave.vms.len().to_string(),
            Bytes(wave.bytes).to_string(),
            time(p10),
            time(p50),
            time(p90),
            opens.map_or(UNKNOWN.into(), |_| format!("{:.0} %", wave.chance * 100.0)),
        ]);
    }
    table.to_string()
}

/// A proposed wave in a line.
pub fn proposed_note(wave: &ProposedWave) -> String {
    format!("{}, fits with {:.0} %", proposed_rest_note(wave), wave.chance * 100.0)
}

/// The same of what is left, which has no window.
pub fn proposed_rest_note(wave: &ProposedWave) -> String {
    let (vms, bytes) = (count(wave.vms.len(), "VM"), Bytes(wave.bytes));
    format!("{vms}, {bytes}, likely {}", time(wave.makespan_s.p50))
}

/// The model held against published figures.
pub fn reference_text(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        ("EXPERIMENT", Align::Left),
        ("PUBLISHED", Align::Right),
        ("MODEL", Align::Right),
        ("OFF", Align::Right),
        ("USE", Align::Left),
    ]);
    for row in rows {
        table.row(reference_cells(row));
    }
    table.to_string()
}

/// Name, published, model, off, use.
pub(crate) fn reference_cells(row: &Row) -> [String; 5] {
    let unit = match row.unit {
        Figure::Minutes => "min",
        Figure::MibPerSecond => "MiB/s",
        Figure::MbPerSecond => "MB/s",
    };
    let used = match row.used {
        Use::Fitted => "fitted",
        Use::Checked => "checked",
        Use::Predicted => "predicted",
    };
    [
        row.name.to_string(),
        row.published.map_or("-".into(), |it| format!("{it} {unit}")),
        format!("{:.1} {unit}", row.model),
        // Rounded before it is written: a hair below nothing is no -0.0.
        row.off.map_or("-".into(), |off| format!("{:+.1} %", (off * 1000.0).round() / 10.0 + 0.0)),
        used.to_string(),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use drover_forecast::{FleetDisk, FleetVm, Quantity, Question, WarmWish, foresee, reference};
    use drover_types::{Wave, WaveWindow, Windows};

    use super::*;

    /// A forecast of VMs with long and hostile names.
    pub(crate) fn forecast() -> Forecast {
        let vm = |at: usize| FleetVm {
            name: format!("a-very-long-name-of-a-virtual-machine-<b>\u{1b}[31m{at}"),
            host: format!("esxi-{:03}.second-building.long-domain.example.org", at % 3),
            wave: Some(format!("wave-{}", at % 2)),
            disks: vec![FleetDisk { data_bytes: 123_456_789_012, datastore: "ds".into(), pool: None }],
            runs: at.is_multiple_of(2),
            ..FleetVm::default()
        };
        foresee(&Question {
            vms: (0..50).map(vm).collect(),
            plans: vec!["p".into()],
            start_ms: 1_772_373_910_250,
            seed: 1,
            ..Question::default()
        })
    }

    /// VMs of a wave in Berlin, of one in New York, of none, and one that waits for its cutover.
    pub(crate) fn in_zones() -> Forecast {
        let vm = |name: &str, wave: Option<&str>| FleetVm {
            name: name.into(),
            host: "esx1".into(),
            wave: wave.map(str::to_string),
            disks: vec![FleetDisk { data_bytes: 1 << 30, datastore: "ds".into(), pool: None }],
            runs: true,
            ..FleetVm::default()
        };
        let wave = |name: &str, window: &str| Wave {
            name: name.into(),
            window: WaveWindow { windows: Windows(vec![window.parse().unwrap()]), ..WaveWindow::default() },
            ..Wave::default()
        };
        let manual = WarmWish { interval_ms: 60_000, on_order: true, ..WarmWish::default() };
        let waits = FleetVm { warm: Some(manual), ..vm("waits", None) };
        foresee(&Question {
            vms: vec![vm("berlin", Some("one")), vm("york", Some("two")), vm("none", None), waits],
            plans: vec!["p".into()],
            waves: [(
                0,
                vec![
                    wave("one", "Sat 22:00-06:00 Europe/Berlin"),
                    wave("two", "Sun 20:00-06:00 America/New_York"),
                ],
            )]
            .into(),
            start_ms: 1_772_373_910_250,
            seed: 1,
            ..Question::default()
        })
    }

    #[test]
    fn waves_and_vms_have_moments_on_the_clock_of_their_windows() {
        let text = forecast_text(&in_zones());
        for part in [
            "Waves by the clock of Europe/Berlin\n",
            "  one   Sat 2026-03-07 22:00  Sat 2026-03-07 22:",
            "Waves by the clock of America/New_York\n",
            "  two   Sun 2026-03-01 20:00  Sun 2026-03-01 20:",
            "\nVMs, the last first, by the clock of Europe/Berlin\n",
            "\nVMs, the last first, by the clock of UTC\n",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(text.lines().all(|line| crate::text::width(line) <= 80), "{text}");
    }

    #[test]
    fn what_waits_for_its_cutover_has_no_end_but_a_moment_at_which_it_is_ready() {
        let mut forecast = in_zones();
        let text = forecast_text(&forecast);
        for part in [
            ", until all is ready for cutover\n",
            "  ready       2026-03-0",
            "  cutover     1 VM waits for `drover cutover`\n  down for    ",
            "\nVMs that wait for `drover cutover`, the last first, by the clock of UTC\n",
            "READY AFTER",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("  ends  "), "{text}");
        // Of several plans each says for itself what it waits for.
        forecast.plans.push("q".into());
        forecast.plan_ends_s.push(Some(forecast.makespan_s));
        forecast.plans_on_order.push(None);
        let text = forecast_text(&forecast);
        assert!(
            text.contains("plan p: 1 VM waits for `drover cutover`") && !text.contains("plan q: "),
            "{text}"
        );
        assert!(text.lines().all(|line| crate::text::width(line) <= 80), "{text}");
        forecast.waves[0].on_order = 2;
        let text = forecast_text(&forecast);
        assert!(text.contains("comes as soon as its VMs are ready: 2 VMs\n"), "{text}");
    }

    #[test]
    fn the_text_fits_80_columns_whatever_things_are_called() {
        let text = forecast_text(&forecast());
        for line in text.lines() {
            assert!(crate::text::width(line) <= 80, "{line}");
        }
        for word in ["50 VMs", "P10 to P90", "What limits", "wave-1", "assumed: MTV", "... and 30 more"] {
            assert!(text.contains(word), "{word}:\n{text}");
        }
    }

    #[test]
    fn bytes_over_lines_are_told_with_their_spread_and_the_text_has_the_first_of_them() {
        let mut forecast = in_zones();
        let [link, host] = &forecast.lines[..] else { panic!("{:?}", forecast.lines) };
        assert!(link.bytes.p10 < link.bytes.p90 && link.bytes == host.bytes, "one VM is warm: {link:?}");
        let [p10, p50, p90] = byte_cells(link);
        let text = forecast_text(&forecast);
        assert!(text.contains("\nBytes over each line, all passes together\n  LINE "), "{text}");
        for name in ["the link ", "host esx1"] {
            assert!(text.contains(&format!("  {name}  {p10}  {p50}  {p90}\n")), "{name}:\n{text}");
        }
        assert_eq!(forecast_json(&forecast)["lines"][0]["bytes"]["p90"], link.bytes.p90);
        let ten = forecast.lines[1].clone();
        forecast.lines.extend(vec![ten; 10]);
        assert!(forecast_text(&forecast).contains("  ... and 2 more (--json has all)\n"));
    }

    #[test]
    fn what_was_measured_says_when_and_a_long_name_keeps_its_column() {
        let quantity = Quantity::measured([20e6]).unwrap().on(Some(1_772_373_910_250));
        let name = "target /srv/images/of/a/long/path".to_string();
        let mut forecast = forecast();
        forecast.by.push(By { name, unit: Unit::Rate, quantity });
        let text = forecast_text(&forecast);
        let line = text.lines().find(|line| line.contains("/srv/images")).unwrap();
        assert!(line.contains(" 20 MB/s (16-25)") && line.ends_with("measured 2026-03-01, once"), "{line}");
        assert!(crate::text::width(line) <= 80, "{line}");
    }

    #[test]
    fn the_how_to_shows_what_the_program_computes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/forecast.md");
        let page = std::fs::read_to_string(path).unwrap();
        for row in reference::rows() {
            let line = format!("| {} |", reference_cells(&row).join(" | "));
            assert!(page.contains(&line), "docs/how-to/forecast.md lacks:\n{line}");
        }
        for by in forecast().by {
            let line = format!("| {} | {} |", by.name, values(&by));
            assert!(page.contains(&line), "docs/how-to/forecast.md lacks:\n{line}");
        }
        for line in reference_text(&reference::rows()).lines() {
            assert!(line.len() <= 80, "{line}");
        }
    }
}
