//! OpenTelemetry: what happens in a run as spans, one trace for each VM.
//!
//! Spans are made of what the engine tells, here and nowhere else. [`Export`] sends them where the environment names a collector.

mod export;

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use drover_engine::{Event, Observer, Phase, Store, chain};
use drover_log::log;
use drover_server::random_hex;
use serde_json::{Value, json};

pub use export::Export;

/// An id of a span has 8 bytes, in hexadecimal digits.
const SPAN_ID_DIGITS: usize = 16;

/// What a span is about, by which its end finds it.
#[derive(Clone, PartialEq, Eq)]
enum About {
    Run,
    Cutover,
    Phase(Phase),
    Pass(u32),
    Call(String),
}

/// A span that has not ended.
struct Open {
    about: About,
    name: &'static str,
    id: String,
    parent: String,
    began: SystemTime,
    attributes: Vec<Value>,
}

/// A VM with its open spans, the outermost first.
struct Vm {
    trace: String,
    id: String,
    name: String,
    open: Vec<Open>,
}

/// How a span ended, as OpenTelemetry has it.
#[derive(Clone)]
enum Status {
    Unset,
    Ok,
    Error(String),
}

/// Makes spans of the events of a run, and passes the events on.
pub struct Traced<'a> {
    inner: &'a dyn Observer,
    store: &'a Store,
    plan: &'a str,
    export: Option<Export>,
    vms: Mutex<HashMap<String, Vm>>,
}

impl<'a> Traced<'a> {
    /// For a run of a plan.
    pub fn new(
        inner: &'a dyn Observer,
        store: &'a Store,
        plan: &'a str,
        export: Option<Export>,
    ) -> Traced<'a> {
        Traced { inner, store, plan, export, vms: Mutex::default() }
    }

    /// Sends what is left; gives why spans did not arrive.
    pub fn end(self) -> Option<String> {
        for vm in self.vms().values_mut() {
            self.end_all(vm, &Status::Unset, &[]);
        }
        self.export?.end()
    }

    fn vms(&self) -> MutexGuard<'_, HashMap<String, Vm>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The traces of the VMs, which have been entered by now.
    fn enter_vms(&self) {
        if self.export.is_none() && !drover_log::is_on() {
            return;
        }
        let rows = match self.store.vms_in_short(self.plan) {
            Ok(rows) => rows,
            Err(error) => {
                log!("trace", "no traces: {}", chain(&error));
                return;
            }
        };
        let mut vms = self.vms();
        for row in rows {
            log!("trace", "{}: trace {}", row.name, row.trace_id);
            let vm = Vm { trace: row.trace_id, id: row.id, name: row.name.clone(), open: Vec::new() };
            vms.insert(row.name, vm);
        }
    }

    fn begin(&self, vm: &str, about: About, name: &'static str, attributes: Vec<Value>) {
        if let Some(vm) = self.vms().get_mut(vm) {
            self.begin_in(vm, about, name, SystemTime::now(), attributes);
        }
    }

    fn begin_in(
        &self,
        vm: &mut Vm,
        about: About,
        name: &'static str,
        began: SystemTime,
        attributes: Vec<Value>,
    ) {
        if vm.open.is_empty() && about != About::Run {
            self.begin_in(vm, About::Run, "migrate", began, Vec::new());
        }
        let is_around = |open: &&Open| match about {
            About::Run => false,
            About::Phase(_) | About::Cutover => open.about == About::Run,
            About::Pass(_) | About::Call(_) => matches!(open.about, About::Run | About::Phase(_)),
        };
        let parent = vm.open.iter().rev().find(is_around).map(|open| open.id.clone()).unwrap_or_default();
        let mut id = random_hex().unwrap_or_default();
        id.truncate(SPAN_ID_DIGITS);
        vm.open.push(Open { about, name, id, parent, began, attributes });
    }

    fn end_one(&self, vm: &str, about: &About, attributes: Vec<Value>) {
        if let Some(vm) = self.vms().get_mut(vm)
            && let Some(at) = vm.open.iter().rposition(|open| open.about == *about)
        {
            let open = vm.open.remove(at);
            self.send(vm, open, SystemTime::now(), &Status::Unset, attributes);
        }
    }

    /// Ends all spans of a VM, the innermost first.
    fn end_all(&self, vm: &mut Vm, status: &Status, attributes: &[Value]) {
        while let Some(open) = vm.open.pop() {
            let more = if open.about == About::Run { attributes.to_vec() } else { Vec::new() };
            self.send(vm, open, SystemTime::now(), status, more);
        }
    }

    /// A span of what is told when it is over.
    fn past(&self, vm: &str, name: &'static str, seconds: f64, attributes: Vec<Value>) {
        if let Some(vm) = self.vms().get_mut(vm) {
            let end = SystemTime::now();
            let took = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            let began = end.checked_sub(took).unwrap_or(end);
            self.begin_in(vm, About::Call(name.into()), name, began, attributes);
            if let Some(open) = vm.open.pop() {
                self.send(vm, open, end, &Status::Unset, Vec::new());
            }
        }
    }

    fn send(&self, vm: &Vm, open: Open, ended: SystemTime, status: &Status, mut more: Vec<Value>) {
        let Some(export) = &self.export else { return };
        more.extend(open.attributes);
        let all = [("drover.plan", self.plan), ("drover.vm", &vm.name), ("drover.vm_id", &vm.id)];
        more.extend(all.map(|(key, value)| text(key, value)));
        let status = match status {
            Status::Unset => json!({}),
            Status::Ok => json!({ "code": 1 }),
            Status::Error(error) => json!({ "code": 2, "message": error }),
        };
        export.send(json!({
            "traceId": vm.trace,
            "spanId": open.id,
            "parentSpanId": open.parent,
            "name": open.name,
            // Internal.
            "kind": 1,
            "startTimeUnixNano": nanos(open.began),
            "endTimeUnixNano": nanos(ended),
            "attributes": more,
            "status": status,
        }));
    }

    fn take(&self, event: &Event) {
        match event {
            Event::PlanStarted { .. } => self.enter_vms(),
            Event::PhaseStarted { vm, phase } => {
                self.begin(vm, About::Phase(*phase), phase.name(), Vec::new());
            }
            Event::PhaseEnded { vm, phase, .. } => self.end_one(vm, &About::Phase(*phase), Vec::new()),
            Event::HookStarted { vm: Some(vm), kind, point, number, .. } => {
                let more = vec![text("drover.call", word(kind)), text("drover.point", point)];
                self.begin(vm, About::Call(format!("{kind:?} {point} {number}")), "call", more);
            }
            Event::HookEnded { vm: Some(vm), kind, point, number, result, .. } => {
                let about = About::Call(format!("{kind:?} {point} {number}"));
                self.end_one(vm, &about, vec![text("drover.result", word(result))]);
            }
            Event::DiskCopied { vm, disk, bytes_read, seconds, .. } => {
                let more = vec![text("drover.disk", disk), number("drover.read_bytes", *bytes_read)];
                self.past(vm, "copy disk", *seconds, more);
            }
            Event::PassStarted { vm, number: it, .. } => {
                self.begin(vm, About::Pass(*it), "pass", vec![number("drover.pass", (*it).into())]);
            }
            Event::PassEnded { vm, number: it, read_bytes, changed_bytes, .. } => {
                let read = number("drover.read_bytes", *read_bytes);
                let changed = number("drover.changed_bytes", *changed_bytes);
                self.end_one(vm, &About::Pass(*it), vec![read, changed]);
            }
            Event::CutoverStarted { vm, reason, .. } => {
                self.begin(vm, About::Cutover, "cutover", vec![text("drover.reason", reason)]);
            }
            Event::CutoverEnded { vm, downtime_ms, .. } => {
                let more = downtime_ms.iter().map(|ms| number("drover.downtime_ms", *ms)).collect();
                self.end_one(vm, &About::Cutover, more);
            }
            Event::VmEnded { vm, state, error, .. } => {
                let status = error.clone().map_or(Status::Ok, Status::Error);
                if let Some(vm) = self.vms().get_mut(vm) {
                    self.end_all(vm, &status, &[text("drover.state", word(state))]);
                }
            }
            Event::HookStarted { .. }
            | Event::HookEnded { .. }
            | Event::Note { .. }
            | Event::SourceAway { .. }
            | Event::SourceBack { .. }
            | Event::DiskVerified { .. }
            | Event::PassWaits { .. }
            // The next try begins a span of its own, in the same trace.
            | Event::VmRetried { .. }
            | Event::WaveStarted { .. }
            | Event::WaveHeld { .. }
            | Event::WaveEnded { .. }
            | Event::LimitsChanged { .. }
            | Event::PlanEnded { .. } => {}
        }
    }
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// The word that the API has for it.
fn word(it: &impl serde::Serialize) -> String {
    serde_json::to_value(it).ok().and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}

fn text(key: &str, value: impl Display) -> Value {
    json!({ "key": key, "value": { "stringValue": value.to_string() } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

impl Observer for Traced<'_> {
    fn event(&self, event: &Event) {
        self.take(event);
        self.inner.event(event);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use drover_engine::{NoObserver, PassKind, VmState};

    use super::*;

    /// The spans that events come to, and the trace of the VM.
    fn spans_of(events: &[Event]) -> (Vec<Value>, String) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        store.enter_vm("p", "vm-1", "web", "{}").unwrap();
        let kept = Arc::<Mutex<Vec<Value>>>::default();
        let keeper = kept.clone();
        let keep = move |spans: &[Value]| {
            keeper.lock().unwrap().extend(spans.to_vec());
            Ok(())
        };
        let export = Export::by(keep, Duration::from_secs(60)).unwrap();
        let traced = Traced::new(&NoObserver, &store, "p", Some(export));
        traced.event(&Event::PlanStarted { plan: "p".into(), vms: 1, done_before: 0 });
        events.iter().for_each(|event| traced.event(event));
        assert_eq!(traced.end(), None);
        let trace = store.vm("p", "vm-1").unwrap().unwrap().trace_id;
        (std::mem::take(&mut *kept.lock().unwrap()), trace)
    }

    fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
        spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name} in {spans:#?}"))
    }

    fn is_in(spans: &[Value], inner: &str, outer: &str) -> bool {
        named(spans, inner)["parentSpanId"] == named(spans, outer)["spanId"]
    }

    #[test]
    fn phases_passes_and_a_cutover_stand_in_one_trace_as_they_happened() {
        let vm = || "web".to_string();
        let (it, kind) = (1, PassKind::Full);
        let (spans, trace) = spans_of(&[
            Event::PhaseStarted { vm: vm(), phase: Phase::Passes },
            Event::PassStarted { vm: vm(), number: it, kind, why: None },
            Event::PassEnded {
                vm: vm(),
                number: it,
                kind,
                areas_bytes: 1,
                read_bytes: 7,
                changed_bytes: 1,
                audited_blocks: 0,
                mismatches: 0,
                seconds: 1.0,
            },
            Event::CutoverStarted { vm: vm(), reason: "ordered".into(), forecast: None },
            Event::PhaseEnded { vm: vm(), phase: Phase::Passes, seconds: 1.0 },
            Event::PhaseStarted { vm: vm(), phase: Phase::Convert },
            Event::PhaseEnded { vm: vm(), phase: Phase::Convert, seconds: 1.0 },
            Event::CutoverEnded { vm: vm(), forecast: None, downtime_ms: Some(176), ready_ms: 176 },
            Event::VmEnded { vm: vm(), state: VmState::Done, error: None, advice: None, standing: None },
        ]);
        assert_eq!((spans.len(), trace.len()), (5, 32), "{spans:#?}");
        assert!(spans.iter().all(|span| span["traceId"] == trace && span["spanId"] != ""));
        assert_eq!(named(&spans, "migrate")["parentSpanId"], "");
        assert!(is_in(&spans, "pass", "passes") && is_in(&spans, "passes", "migrate"));
        assert!(is_in(&spans, "cutover", "migrate") && is_in(&spans, "convert", "migrate"));
        let has = |span: &str, attribute: Value| {
            named(&spans, span)["attributes"].as_array().unwrap().contains(&attribute)
        };
        assert!(has("pass", number("drover.read_bytes", 7)));
        assert!(
            has("cutover", number("drover.downtime_ms", 176)) && has("migrate", text("drover.state", "done"))
        );
        assert_eq!(named(&spans, "migrate")["status"]["code"], 1);
    }

    #[test]
    fn a_vm_that_fails_ends_its_spans_with_the_error_and_one_that_is_stopped_without() {
        let began = Event::PhaseStarted { vm: "web".into(), phase: Phase::Copy };
        let (vm, error) = ("web".to_string(), Some("no space left".to_string()));
        let failed = Event::VmEnded { vm, state: VmState::Failed, error, advice: None, standing: None };
        let (spans, _) = spans_of(&[began.clone(), failed.clone()]);
        for name in ["copy", "migrate"] {
            assert_eq!(
                named(&spans, name)["status"],
                json!({ "code": 2, "message": "no space left" }),
                "{name}"
            );
        }
        let vm = || "web".to_string();
        let done =
            Event::VmEnded { vm: vm(), state: VmState::Done, error: None, advice: None, standing: None };
        let retried = Event::VmRetried { vm: vm(), error: None };
        let (spans, trace) = spans_of(&[began.clone(), failed, retried, began.clone(), done]);
        let tries: Vec<&Value> = spans.iter().filter(|span| span["name"] == "migrate").collect();
        assert_eq!(tries.iter().map(|it| &it["status"]["code"]).collect::<Vec<_>>(), [2, 1], "two tries");
        assert!(spans.iter().all(|span| span["traceId"] == trace));
        let (spans, _) = spans_of(&[began]);
        assert_eq!((spans.len(), &named(&spans, "migrate")["status"]), (2, &json!({})));
    }
}
