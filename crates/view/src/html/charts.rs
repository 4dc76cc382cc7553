//! The timeline and the rates, as SVG within the page.

use std::fmt::{self, Write};

use drover_engine::{Phase, PlanReport, RatePoint};
use drover_types::Rate;

use super::Escaped;
use crate::axis::{TimeAxis, value_ticks};
use crate::clock::{local, time_of_day};
use crate::text::{between, clip, count, duration};

const WIDTH: f64 = 1000.0;
/// Left of the plot: names of VMs, or rates.
pub(super) const NAMES: f64 = 170.0;
const RIGHT: f64 = 20.0;
/// Characters of a name that fit there.
const NAME_CHARS: usize = 24;
pub(super) const PLOT: f64 = WIDTH - NAMES - RIGHT;
/// Between labels of the time axis, of eight characters.
pub(super) const LABEL_DISTANCE: f64 = 75.0;

/// Height of a VM's row; of many VMs, less.
const ROW: f64 = 24.0;
const ROW_OF_MANY: f64 = 14.0;
const MANY: usize = 60;
/// Rows of the timeline; the table has all VMs.
const ROWS_MAX: usize = 1000;
/// A phase that took no time is still seen.
const BAR_MIN: f64 = 1.5;

pub(super) const RATES_HEIGHT: f64 = 240.0;
/// Points drawn per line; more are not told apart.
pub(super) const POINTS_MAX: usize = 800;

/// When each VM was in which phase.
pub(super) fn write_timeline(page: &mut String, report: &PlanReport) -> fmt::Result {
    let vms: Vec<_> = report.vms.iter().filter(|vm| !vm.phases.is_empty()).collect();
    if vms.is_empty() {
        return Ok(());
    }
    let shown = &vms[..vms.len().min(ROWS_MAX)];
    let row = if shown.len() > MANY { ROW_OF_MANY } else { ROW };
    let height = row * shown.len() as f64;
    let axis = time_axis(report);
    begin_chart(page, "Timeline", "Phases of each VM over time", height)?;
    write_time_labels(page, &axis, height)?;
    for (at, vm) in shown.iter().enumerate() {
        let (top, name) = (row * at as f64, clip(&vm.row.name, NAME_CHARS).into_owned());
        writeln!(
            page,
            "<text class=\"label\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            NAMES - 8.0,
            top + row / 2.0 + 4.0,
            Escaped(&name)
        )?;
        for phase in &vm.phases {
            let (class, ended) =
                (phase_class(&phase.phase), phase.ended_ms.unwrap_or_else(|| end_of(report, vm)));
            let left = axis.at(phase.started_ms);
            let unfinished = if phase.ended_ms.is_none() { " unfinished" } else { "" };
            let words = if phase.ended_ms.is_none() { ", did not end well" } else { "" };
            writeln!(
                page,
                "<rect class=\"phase {class}{unfinished}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                 <title>{}: {} {}{words}</title></rect>",
                top + row * 0.15,
                (axis.at(ended) - left).max(BAR_MIN),
                row * 0.7,
                Escaped(&vm.row.name),
                Escaped(&phase.phase),
                duration(between(phase.started_ms, ended)),
            )?;
        }
    }
    end_chart(page)?;
    let is_warm = vms.iter().any(|vm| vm.warm.is_some());
    let phases: &[Phase] = if is_warm { &Phase::WARM } else { &Phase::COLD };
    let legend: Vec<_> = phases.iter().map(|phase| (phase_class(phase.name()), phase.name())).collect();
    write_legend(page, legend.iter())?;
    if vms.len() > shown.len() {
        writeln!(page, "<p class=\"note\">... and {} more</p>", count(vms.len() - shown.len(), "VM"))?;
    }
    writeln!(page, "</section>")
}

/// Bytes read and written per second over time.
pub(super) fn write_rates(page: &mut String, report: &PlanReport) -> fmt::Result {
    let points = thinned(&report.rates);
    if points.is_empty() {
        return Ok(());
    }
    let axis = time_axis(report);
    let most = points.iter().map(|point| point.read_rate.max(point.written_rate)).fold(0.0, f64::max);
    begin_chart(page, "Rate", "Bytes read and written per second over time", RATES_HEIGHT)?;
    write_time_labels(page, &axis, RATES_HEIGHT)?;
    let y = write_value_labels(page, most, &|rate| Rate(rate).to_string())?;
    for (class, rate) in [("written", written_rate as fn(&RatePoint) -> f64), ("read", read_rate)] {
        let mut path = String::new();
        for (at, point) in points.iter().enumerate() {
            let breaks = at == 0 || axis.is_broken(points[at - 1].at_ms, point.at_ms);
            write!(
                path,
                "{}{:.1} {:.1}",
                if breaks { 'M' } else { 'L' },
                axis.at(point.at_ms),
                y(rate(point))
            )?;
        }
        writeln!(page, "<path class=\"rate {class}\" d=\"{path}\"/>")?;
    }
    end_chart(page)?;
    write_legend(page, [("read", "read from the sources"), ("written", "written to the targets")].iter())?;
    writeln!(page, "</section>")
}

/// Lines across the plot with what they stand for; gives where a value lies.
pub(super) fn write_value_labels(
    page: &mut String,
    most: f64,
    label: &dyn Fn(f64) -> String,
) -> Result<impl Fn(f64) -> f64 + use<>, fmt::Error> {
    let ticks = value_ticks(most);
    let top = ticks.last().copied().unwrap_or(1.0);
    let y = move |value: f64| RATES_HEIGHT * (1.0 - (value / top).clamp(0.0, 1.0));
    for tick in &ticks {
        writeln!(
            page,
            "<line class=\"grid\" x1=\"{NAMES}\" x2=\"{:.0}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text class=\"label\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            NAMES + PLOT,
            y(*tick),
            y(*tick),
            NAMES - 8.0,
            y(*tick) + 4.0,
            label(*tick)
        )?;
    }
    Ok(y)
}

fn read_rate(point: &RatePoint) -> f64 {
    point.read_rate
}

fn written_rate(point: &RatePoint) -> f64 {
    point.written_rate
}

/// Both charts have the same axis, so that one explains the other.
fn time_axis(report: &PlanReport) -> TimeAxis {
    let of_vm = |vm: &drover_engine::VmReport| {
        let end = end_of(report, vm);
        let phases = vm.phases.iter();
        phases
            .map(|phase| (phase.started_ms, phase.ended_ms.unwrap_or(end.max(phase.started_ms))))
            .collect::<Vec<_>>()
    };
    let phases = report.vms.iter().flat_map(of_vm);
    let rates = report.rates.windows(2).map(|pair| (pair[1].at_ms, pair[1].at_ms));
    let spans: Vec<(i64, i64)> = phases.chain(rates).collect();
    TimeAxis::new(&spans, NAMES, PLOT)
}

/// When a phase that did not end well was over, as far as is known.
fn end_of(report: &PlanReport, vm: &drover_engine::VmReport) -> i64 {
    let last_start = vm.phases.iter().map(|phase| phase.started_ms).max();
    let ended = vm.row.ended_ms.or(report.plan.ended_ms);
    let last_event = report.events.iter().rev().find(|event| event.vm.as_ref() == Some(&vm.row.id));
    ended.or(last_event.map(|event| event.at_ms)).or(last_start).unwrap_or(report.plan.started_ms)
}

pub(super) fn begin_chart(page: &mut String, heading: &str, words: &str, height: f64) -> fmt::Result {
    writeln!(
        page,
        "<section>\n<h2>{heading}</h2>\n<svg class=\"chart\" viewBox=\"0 -10 {WIDTH:.0} {:.0}\" role=\"img\" \
         aria-label=\"{words}\">",
        height + 44.0
    )
}

pub(super) fn end_chart(page: &mut String) -> fmt::Result {
    writeln!(page, "</svg>")
}

pub(super) fn write_time_labels(page: &mut String, axis: &TimeAxis, height: f64) -> fmt::Result {
    let (ticks, step) = axis.ticks(LABEL_DISTANCE);
    for ms in ticks {
        let x = axis.at(ms);
        let label = if step >= 86_400_000 { local(ms).chars().take(10).collect() } else { time_of_day(ms) };
        writeln!(
            page,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{height:.0}\"/>\
             <text class=\"label\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
            height + 18.0
        )?;
    }
    for x in axis.gaps() {
        writeln!(
            page,
            "<line class=\"gap\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"-6\" y2=\"{height:.0}\">\
             <title>a time in which nothing ran is left out</title></line>"
        )?;
    }
    Ok(())
}

pub(super) fn write_legend<'a>(
    page: &mut String,
    entries: impl Iterator<Item = &'a (&'a str, &'a str)>,
) -> fmt::Result {
    write!(page, "<ul class=\"legend\">")?;
    for (class, words) in entries {
        write!(page, "<li><span class=\"swatch {class}\"></span>{words}</li>")?;
    }
    writeln!(page, "</ul>")
}

fn phase_class(name: &str) -> &'static str {
    match name {
        "check" => "p-check",
        "track" => "p-track",
        "passes" => "p-passes",
        "power off" => "p-off",
        "snapshot" => "p-snapshot",
        "copy" => "p-copy",
        "verify" => "p-verify",
        "convert" => "p-convert",
        "define" => "p-define",
        "start" => "p-start",
        "clean up" => "p-clean",
        _ => "p-other",
    }
}

/// Means of neighbours, so that no more than [`POINTS_MAX`] are left; those that are no number are not.
fn thinned(points: &[RatePoint]) -> Vec<RatePoint> {
    let sane = |rate: f64| rate.is_finite() && rate >= 0.0;
    let points: Vec<RatePoint> =
        points.iter().copied().filter(|point| sane(point.read_rate) && sane(point.written_rate)).collect();
    let mean = |some: &[RatePoint]| {
        let share = some.len() as f64;
        RatePoint {
            read_rate: some.iter().map(|point| point.read_rate / share).sum(),
            written_rate: some.iter().map(|point| point.written_rate / share).sum(),
            ..some[some.len() / 2]
        }
    };
    points.chunks(points.len().div_ceil(POINTS_MAX).max(1)).map(mean).collect()
}
