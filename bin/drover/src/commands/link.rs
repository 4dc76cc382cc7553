//! `drover link test`: what the way to a site carries, and what limits it.

use std::time::Duration;

use drover_link::probe::{Probe, advice, probe, wait_for_stripes};
use drover_link::{LinkError, Session};
use serde_json::{Value, json};

use crate::cli::LinkTestArgs;
use crate::exit::{Exit, Failure, link_failure};
use crate::out::line;
use crate::sites;

/// Connections find their pace, before anything is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// All connections of a probe are there within this time, or it is measured with those that are.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A line that carries this share of the limit that was set for it is held by the limit.
const LIMIT_SHARE: f64 = 0.8;

/// Runs `drover link test`.
pub fn test(args: &LinkTestArgs) -> Result<Exit, Failure> {
    let site = sites::measured(args.state.as_deref(), &args.site)?;
    let mut probes = Vec::new();
    if !args.json {
        line("connections            goodput      round trip, shortest  sent again  waits for");
    }
    for stripes in args.stripes.iter().copied().map(usize::from) {
        let found = site.session(stripes).and_then(|session| {
            let found = measured(&session, stripes, args.time);
            session.close();
            found
        });
        let found = found.map_err(|error| failed(&args.site, &error))?;
        if !args.json {
            line(row(&found));
        }
        probes.push(found);
    }
    let advice =
        limited(&probes, site.limit, site.share()).map_or_else(|| advice(&probes), |text| vec![text]);
    if args.json {
        line(document(&args.site, site.limit, &probes, &advice));
    } else {
        line("");
        advice.iter().for_each(line);
    }
    Ok(Exit::Success)
}

fn failed(site: &str, error: &LinkError) -> Failure {
    let Failure { exit, message, .. } = link_failure(error);
    Failure::new(exit, format!("agent of {site}: {message}"))
        .advise("see `drover agent list`, and whether the agent runs there")
}

fn measured(session: &Session, stripes: usize, time: Duration) -> Result<Probe, LinkError> {
    // Fewer are measured as what they are: the row says how many there were.
    wait_for_stripes(session, stripes, CONNECT_WITHIN);
    probe(session, SETTLE, time)
}

/// Says so if what was set by `drover agent limit` is what held the line back.
fn limited(probes: &[Probe], limit: Option<u64>, share: Option<u64>) -> Option<String> {
    let (limit, share) = (limit?, share?.min(limit?));
    let held = probes.iter().any(|probe| probe.goodput > share as f64 * LIMIT_SHARE);
    let mbit = |rate: u64| format!("{:.1} Mbit/s", rate as f64 * 8.0 / 1e6);
    let others = match share < limit {
        true => format!(", of which other runs of this host left {}", mbit(share)),
        false => String::new(),
    };
    let limit = mbit(limit);
    let text =
        format!("the limit of this hour is what limits, {limit}{others}: `drover agent limit` sets it");
    held.then_some(text)
}

/// What the connections of a probe waited for most.
fn waits_for(found: &Probe) -> &'static str {
    let [busy, window, buffer] = found.busy;
    if busy < 0.5 {
        "this host"
    } else if window > busy * 0.3 {
        "the far side"
    } else if buffer > busy * 0.3 {
        "send buffers"
    } else {
        "the line"
    }
}

fn row(found: &Probe) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{:>11}  {:>10.1} Mbit/s  {:>7.2} ms, {:>7.2} ms  {:>8.3} %  {} ({})",
        found.stripes,
        found.goodput * 8.0 / 1e6,
        ms(found.rtt),
        ms(found.rtt_min),
        found.again * 100.0,
        waits_for(found),
        found.congestion,
    )
}

fn document(site: &str, limit: Option<u64>, probes: &[Probe], advice: &[String]) -> Value {
    let one = |it: &Probe| {
        json!({
            "connections": it.stripes,
            "goodput_bytes_per_s": it.goodput,
            "rtt_ms": it.rtt.as_secs_f64() * 1e3,
            "rtt_min_ms": it.rtt_min.as_secs_f64() * 1e3,
            "sent_again_share": it.again,
            "busy_share": it.busy[0],
            "far_window_full_share": it.busy[1],
            "send_buffer_full_share": it.busy[2],
            "congestion_control": it.congestion,
            "waits_for": waits_for(it),
        })
    };
    let probes: Vec<Value> = probes.iter().map(one).collect();
    json!({"site": site, "limit_bytes_per_s": limit, "probes": probes, "advice": advice})
}
