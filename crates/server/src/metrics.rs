//! Figures for Prometheus, in its text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::operations::{Counts, Gauges, HostUse, Live, PlanGauges, Resources};

/// What the server counts itself.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub connections: AtomicU64,
    pub requests: [AtomicU64; 5],
    pub bad_tokens: AtomicU64,
    pub orders: AtomicU64,
}

impl Counters {
    pub(crate) fn answered(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.requests[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// A text of figures: families with their values behind them.
#[derive(Debug)]
pub struct Text(String);

impl Default for Text {
    fn default() -> Text {
        let mut text = Text(String::new());
        text.family("build_info", "gauge", "The program that answers.");
        text.value("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        text
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        text.0
    }
}

impl Text {
    /// Begins a family: `name` stands without `drover_`, and `kind` is `gauge` or `counter`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP drover_{name} {help}\n# TYPE drover_{name} {kind}");
    }

    /// A value of the family.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "drover_{name}{labels} {value}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// As Prometheus takes it.
pub(crate) fn answer(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// All of them.
pub(crate) fn text(
    gauges: &Gauges,
    live: &Live,
    shared: Option<&Resources>,
    counters: &Counters,
    watchers: usize,
) -> String {
    let mut text = Text::default();
    text.family("plans", "gauge", "Plans by state.");
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    gauges.plans.iter().for_each(|plan| *states.entry(&plan.state).or_default() += 1);
    states.iter().for_each(|(state, count)| text.value("plans", &[("state", state)], count));
    vms(&mut text, gauges);
    forecasts(&mut text, gauges);
    if let Some(shared) = shared {
        resources(&mut text, shared);
    }
    rates(&mut text, live);
    disks(&mut text, live);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    text.family("http_requests_total", "counter", "Requests by the class of their answer.");
    for (class, counter) in counters.requests.iter().enumerate() {
        text.value("http_requests_total", &[("class", &format!("{}xx", class + 1))], load(counter));
    }
    text.family("http_connections", "gauge", "Connections at once.");
    text.value("http_connections", &[], load(&counters.connections));
    text.family("event_clients", "gauge", "Clients of the event stream.");
    text.value("event_clients", &[], watchers);
    text.family("bad_tokens_total", "counter", "Requests with a token that is not known.");
    text.value("bad_tokens_total", &[], load(&counters.bad_tokens));
    text.family("orders_total", "counter", "Orders that were taken.");
    text.value("orders_total", &[], load(&counters.orders));
    text.0
}

fn vms(text: &mut Text, gauges: &Gauges) {
    text.family("vms", "gauge", "VMs by plan and state; those that wait are queued.");
    for plan in &gauges.plans {
        for (state, count) in states(&plan.counts) {
            text.value("vms", &[("plan", &plan.plan), ("project", &plan.project), ("state", state)], count);
        }
    }
    text.family("vms_in_phase", "gauge", "VMs at work by plan and phase.");
    for plan in &gauges.plans {
        for (phase, count) in &plan.phases {
            text.value("vms_in_phase", &[("plan", &plan.plan), ("phase", phase)], count);
        }
    }
}

fn forecasts(text: &mut Text, gauges: &Gauges) {
    let mut ends = |name: &str, help: &str, of: fn(&PlanGauges) -> Option<[i64; 3]>| {
        text.family(name, "gauge", help);
        for (plan, ends) in gauges.plans.iter().filter_map(|plan| Some((plan, of(plan)?))) {
            for (quantile, end_ms) in ["0.1", "0.5", "0.9"].into_iter().zip(ends) {
                let labels = [("plan", plan.plan.as_str()), ("quantile", quantile)];
                text.value(name, &labels, end_ms as f64 / 1000.0);
            }
        }
    };
    ends("foreseen_end_timestamp_seconds", "When a plan that runs is foreseen to end.", |it| it.foreseen_ms);
    let help = "When a plan that runs was foreseen to end as its run began.";
    ends("first_foreseen_end_timestamp_seconds", help, |it| it.first_foreseen_ms);
    let errors = || gauges.plans.iter().filter_map(|plan| Some((plan, plan.forecast_error?)));
    let help = "By which share of what the last run of a plan that is done took its forecast was off; below 0 it was too short.";
    text.family("forecast_error_ratio", "gauge", help);
    errors().for_each(|(plan, (off, _))| text.value("forecast_error_ratio", &[("plan", &plan.plan)], off));
    let help = "Whether that run took from P10 to P90 of its forecast (1) or not (0).";
    text.family("forecast_inside", "gauge", help);
    errors().for_each(|(plan, (_, inside))| {
        text.value("forecast_inside", &[("plan", &plan.plan)], u8::from(inside));
    });
}

fn resources(text: &mut Text, shared: &Resources) {
    let mut of_hosts = |name: &str, help: &str, value: fn(&HostUse) -> Option<u64>| {
        text.family(name, "gauge", help);
        for (host, value) in shared.hosts.iter().filter_map(|host| Some((host, value(host)?))) {
            text.value(name, &[("host", &host.host)], value);
        }
    };
    of_hosts("host_vms", "VMs at work of a source host.", |host| Some(host.vms.into()));
    of_hosts("host_vms_max", "VMs of a source host that may be at work.", |host| Some(host.vms_max.into()));
    of_hosts("host_disks", "Disks of a source host that are copied.", |host| Some(host.disks.into()));
    of_hosts("host_disks_max", "Disks of a source host that may be copied, where that is limited.", |host| {
        host.disks_max.map(u64::from)
    });
    of_hosts("host_vms_waiting", "VMs of a source host that wait.", |host| Some(host.waiting));
    text.family("disks_copied", "gauge", "Disks that are copied, in all.");
    text.value("disks_copied", &[], shared.disks);
    text.family("disks_copied_max", "gauge", "Disks that may be copied, in all.");
    text.value("disks_copied_max", &[], shared.disks_max);
    text.family("vms_waiting", "gauge", "VMs that wait, by what they wait for.");
    shared.waits.iter().for_each(|(what, count)| text.value("vms_waiting", &[("for", what)], count));
}

fn states(counts: &Counts) -> [(&'static str, u64); 8] {
    [
        ("queued", counts.queued),
        ("running", counts.running),
        ("done", counts.done),
        ("not_cleaned_up", counts.not_cleaned_up),
        ("failed", counts.failed),
        ("stopped", counts.stopped),
        ("skipped", counts.skipped),
        ("cancelled", counts.cancelled),
    ]
}

fn rates(text: &mut Text, live: &Live) {
    text.family("run_read_bytes", "gauge", "Bytes read since the plan's run began.");
    live.plans.iter().for_each(|plan| text.value("run_read_bytes", &[("plan", &plan.plan)], plan.read_bytes));
    text.family("run_written_bytes", "gauge", "Bytes written since the plan's run began.");
    live.plans
        .iter()
        .for_each(|plan| text.value("run_written_bytes", &[("plan", &plan.plan)], plan.written_bytes));
    text.family("read_rate_bytes_per_second", "gauge", "Bytes read per second, lately.");
    for plan in &live.plans {
        text.value("read_rate_bytes_per_second", &[("plan", &plan.plan)], plan.rate.unwrap_or(0.0));
    }
    text.family("eta_seconds", "gauge", "Time until all is copied, by the rate of now.");
    for (plan, eta) in live.plans.iter().filter_map(|plan| Some((plan, plan.eta_s?))) {
        text.value("eta_seconds", &[("plan", &plan.plan)], eta);
    }
    text.family("retries", "gauge", "Failures that were tried again, by the disks at work.");
    live.plans.iter().for_each(|plan| text.value("retries", &[("plan", &plan.plan)], plan.retries));
}

fn disks(text: &mut Text, live: &Live) {
    let count = |key: &str| {
        let mut counts: BTreeMap<(&str, String), u64> = BTreeMap::new();
        for plan in &live.plans {
            for word in plan.disks.iter().filter_map(|disk| disk[key].as_str()) {
                *counts.entry((&plan.plan, word.to_string())).or_default() += 1;
            }
        }
        counts
    };
    text.family("disks_at_work", "gauge", "Disks by plan and what they do.");
    for ((plan, activity), count) in count("activity") {
        text.value("disks_at_work", &[("plan", plan), ("activity", &activity)], count);
    }
    text.family("disks_waiting", "gauge", "Disks by plan and what they wait for most.");
    for ((plan, resource), count) in count("waits_for") {
        text.value("disks_waiting", &[("plan", plan), ("resource", &resource)], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_stay_within_their_quotes() {
        let plan = PlanGauges { plan: "a\"} 1\nevil 2\\".into(), ..PlanGauges::default() };
        let gauges = Gauges { plans: vec![plan] };
        let text = text(&gauges, &Live::default(), None, &Counters::default(), 0);
        assert!(
            text.contains("drover_vms{plan=\"a\\\"} 1\\nevil 2\\\\\",project=\"\",state=\"queued\"} 0\n"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("drover_")), "{text}");
    }
}
