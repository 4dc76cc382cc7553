//! `drover tune`: what would make plans faster, and what this host's kernel lacks for long, fast lines. Changes nothing.

use drover_forecast::{Advice, Asked, Severity};
use drover_link::host::{Setting, has_bbr, settings};
use serde_json::json;

use super::forecast;
use crate::cli::{HostTuneArgs, WhatIfArgs};
use crate::exit::{Exit, Failure};
use crate::out::line;

/// Runs `drover tune`.
pub fn run(args: &HostTuneArgs) -> Result<Exit, Failure> {
    if !args.plans.is_empty() {
        return run_plans(args);
    }
    let fill = args.rate.zip(args.rtt).map(|(rate, rtt)| (rate.bits_per_s() / 8, rtt));
    let all = settings(fill);
    let bbr = has_bbr();
    if args.json {
        crate::out::json(format_args!("{:#}", document(&all, bbr)));
    } else {
        text(&all, bbr);
    }
    Ok(Exit::Success)
}

fn run_plans(args: &HostTuneArgs) -> Result<Exit, Failure> {
    let what_if = WhatIfArgs { state: args.state.clone(), seed: 1, ..WhatIfArgs::default() };
    let forecast::Asked { question, hosts, through_provider } = forecast::ask(&args.plans, &what_if)?;
    let forecast = drover_forecast::foresee(&question);
    let asked = Asked { question: &question, forecast: &forecast, hosts: &hosts, through_provider };
    let mut advice = drover_forecast::advise(&asked);
    advice.extend(of_this_host(&settings(None), governor().as_deref()));
    if args.json {
        crate::out::json(format_args!("{:#}", drover_view::advice_json(&forecast, &advice)));
    } else {
        crate::out::print(&drover_view::advice_text(&forecast, &advice));
    }
    Ok(Exit::Success)
}

/// How the kernel sets the clock of the first processor, where it does.
fn governor() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()
}

fn of_this_host(settings: &[Setting], governor: Option<&str>) -> Vec<Advice> {
    let of = |finding: &str, evidence: String, advice: &str| Advice {
        severity: Severity::Low,
        finding: finding.into(),
        evidence,
        advice: advice.into(),
        gain: None,
        source: None,
    };
    let lacking: Vec<&str> = settings.iter().filter(|it| it.is_lacking()).map(|it| it.name).collect();
    let kernel = (!lacking.is_empty()).then(|| {
        let finding = "this host's kernel is not set for long, fast lines";
        of(finding, lacking.join(", "), "`drover tune` prints the lines; a LAN does not need them")
    });
    let clock = governor.map(str::trim).filter(|it| *it != "performance").map(|it| {
        of("this host's processors save power", format!("governor {it}"), "set the governor to performance")
    });
    kernel.into_iter().chain(clock).collect()
}

fn document(all: &[Setting], bbr: bool) -> serde_json::Value {
    let setting = |it: &Setting| {
        json!({
            "name": it.name,
            "value": it.value,
            "wanted": it.wanted,
            "lacking": it.is_lacking(),
            "why": it.why,
        })
    };
    json!({ "bbr_loaded": bbr, "settings": all.iter().map(setting).collect::<Vec<_>>() })
}

fn text(all: &[Setting], bbr: bool) {
    let lacking: Vec<&Setting> = all.iter().filter(|it| it.is_lacking()).collect();
    if !bbr {
        line(
            "# BBR is not loaded: `modprobe tcp_bbr`, and the line tcp_bbr in /etc/modules-load.d/drover.conf",
        );
    }
    if lacking.is_empty() {
        return line("# nothing is lacking");
    }
    line("# /etc/sysctl.d/90-drover.conf; then: sysctl --system");
    for it in lacking {
        let value = if it.value.is_empty() { "not told by this kernel" } else { &it.value };
        line(format!("# {} (now: {value})", it.why));
        line(format!("{} = {}", it.name, it.wanted));
    }
}
