//! A daemon made of tables, a server in front of it, and a client that sends what it is told.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use drover_server::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// When all of it began.
pub const BEGAN_MS: i64 = 1_760_000_000_000;

/// A VM whose orders fail by the daemon's own fault.
pub const BROKEN: &str = "broken";

/// What the daemon did.
#[derive(Default)]
pub struct Done {
    pub orders: Vec<String>,
    /// Limits that were ordered.
    pub limits: Option<LimitValues>,
    pub audit: Vec<AuditRow>,
    pub warnings: Vec<String>,
    /// Whether the ends of orders cannot be kept.
    pub forgets_ends: bool,
}

pub struct Fake {
    pub done: Arc<Mutex<Done>>,
    pub vms: usize,
    pub gate: Arc<TestGate>,
}

/// Where operations stand still until a test lets them go on.
#[derive(Default)]
pub struct TestGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    shut: Vec<&'static str>,
    entered: Vec<&'static str>,
}

impl TestGate {
    pub fn shut(&self, what: &'static str) {
        self.state.lock().unwrap().shut.push(what);
    }

    pub fn open(&self, what: &str) {
        self.state.lock().unwrap().shut.retain(|it| *it != what);
        self.changed.notify_all();
    }

    fn pass(&self, what: &'static str) {
        let mut state = self.state.lock().unwrap();
        state.entered.push(what);
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.shut.contains(&what)).unwrap());
    }

    /// Waits until so many have come to a place.
    pub fn wait_for(&self, what: &str, count: usize) {
        let come = |state: &GateState| state.entered.iter().filter(|it| **it == what).count();
        let state = self.state.lock().unwrap();
        let time = Duration::from_secs(120);
        let (state, _) = self.changed.wait_timeout_while(state, time, |state| come(state) < count).unwrap();
        assert!(come(&state) >= count, "{what}: {} of {count} came", come(&state));
    }

    pub fn come(&self, what: &str) -> usize {
        self.state.lock().unwrap().entered.iter().filter(|it| **it == what).count()
    }
}

pub fn plan(name: &str, project: &str) -> Plan {
    Plan {
        name: name.into(),
        project: project.into(),
        state: "running".into(),
        wanted: Wanted::Run,
        started_ms: Some(BEGAN_MS),
        ended_ms: None,
        vms: Counts { all: 1, running: 1, ..Counts::default() },
        exit: None,
        error: None,
        advice: None,
        problems: Vec::new(),
        foreseen_ms: Some([BEGAN_MS + 600_000, BEGAN_MS + 900_000, BEGAN_MS + 1_200_000]),
        first_foreseen_ms: Some([BEGAN_MS + 500_000, BEGAN_MS + 600_000, BEGAN_MS + 700_000]),
        blake3: None,
    }
}

fn vm(number: usize) -> VmLine {
    let state = if number % 50 == 3 { "failed" } else { ["done", "running", "queued"][number % 3] };
    let name = if number == 1 { "<img src=x onerror=alert(1)>".into() } else { format!("web{number} ") };
    VmLine {
        id: format!("vm-{number}"),
        name,
        trace_id: "0af7651916cd43dd8448eb211c80319c".into(),
        site: None,
        host: Some(format!("esx{}.lab", number % 40)),
        state: state.into(),
        phase: (state != "queued").then(|| "copy".into()),
        disks: 1,
        size_bytes: 1 << 30,
        warm: number.is_multiple_of(2),
        wave: Some(["pilot", "rest"][number % 2].into()),
        waits: (state == "queued").then(|| "esx1.lab: 20 of 20 VMs at once".into()),
        foreseen_ms: Some([800_000, 900_000, 1_100_000].map(|ms| BEGAN_MS + ms + 2_500 * number as i64)),
        error: (state == "failed").then(|| "write of 0x40000+0x10000: no space left".into()),
        cause: (state == "failed").then(|| "target_full".into()),
        advice: (state == "failed").then(|| "make room".into()),
        started_ms: (state != "queued").then_some(BEGAN_MS + 2_000 * number as i64),
        ended_ms: matches!(state, "done" | "failed").then_some(BEGAN_MS + 900_000 + 2_500 * number as i64),
    }
}

fn limits(disks: u32) -> LimitValues {
    LimitValues { rate_limit: vec!["12MiB".into()], disks, vms_per_host: 20 }
}

fn event() -> PlanEvent {
    PlanEvent {
        at_ms: 1,
        vm: Some("vm-1".into()),
        phase: Some("copy".into()),
        kind: "started".into(),
        text: "".into(),
    }
}

/// What is different, as the daemon tells it.
fn changes(before: &LimitValues, after: &LimitValues) -> String {
    let texts = |it: &LimitValues| {
        [
            ("rate_limit", it.rate_limit.join(", ")),
            ("disks", it.disks.to_string()),
            ("vms_per_host", it.vms_per_host.to_string()),
        ]
    };
    let pairs = texts(before).into_iter().zip(texts(after));
    let changed = pairs.filter(|(from, to)| from != to);
    let told: Vec<String> = changed.map(|((name, from), (_, to))| format!("{name} {from} -> {to}")).collect();
    told.join(", ")
}

/// As long as a report of a VM of three disks.
fn report_of(vm: usize) -> String {
    let disk = |at: usize| {
        format!(
            "  Hard disk {at}  1.0 GiB  256.0 MiB of data  120 MB/s  root 0123456789abcdef0123456789abcdef\n"
        )
    };
    format!("web{vm}  arrived  down for 12 s\n{}", (0..3).map(disk).collect::<String>())
}

impl Fake {
    /// Other limits, which are in force from then on.
    fn limit(&self, ordered: &OrderedLimits) -> Outcome<ChangedLimits> {
        let count = |name: &str, value: Option<i64>, before: u32| match value {
            None => Ok(before),
            Some(value @ 1..=1000) => Ok(value as u32),
            Some(value) => {
                let text = format!("{name}: '{value}' is not a number from 1 to 1000");
                Err(Problem::new(Kind::Refused, text))
            }
        };
        let mut done = self.done.lock().unwrap();
        let before = done.limits.clone().unwrap_or_else(|| limits(200));
        let after = LimitValues {
            rate_limit: ordered.rate_limit.clone().unwrap_or_else(|| before.rate_limit.clone()),
            disks: count("disks", ordered.disks, before.disks)?,
            vms_per_host: count("vms_per_host", ordered.vms_per_host, before.vms_per_host)?,
        };
        done.limits = Some(after.clone());
        Ok(ChangedLimits { changed: changes(&before, &after), before, after })
    }
}

impl Operations for Fake {
    fn plans(&self) -> Outcome<Vec<Plan>> {
        Ok(vec![plan("one", "web"), plan("two", "db"), plan("three", "web")])
    }

    fn plan(&self, name: &str) -> Outcome<Plan> {
        self.plans()?
            .into_iter()
            .find(|plan| plan.name == name)
            .ok_or_else(|| Problem::new(Kind::NotFound, "no such plan"))
    }

    fn status(&self, _: &str, form: Form) -> Outcome<Document> {
        Ok(match form {
            Form::Json => Document::Json(json!({ "plan": {} }).to_string()),
            Form::Text | Form::Html => Document::Text("plan one: running\n".into()),
        })
    }

    fn vms(&self, _: &str, query: &VmQuery) -> Outcome<Page<VmLine>> {
        let from = query.after as usize;
        let to = (from + query.limit).min(self.vms);
        let next = (to < self.vms).then(|| to.to_string());
        Ok(Page { items: (from..to).map(vm).collect(), next })
    }

    fn vm(&self, _: &str, id: &str) -> Outcome<VmDetails> {
        let number = id
            .strip_prefix("vm-")
            .and_then(|number| number.parse::<usize>().ok())
            .filter(|number| *number < self.vms);
        let number = number.ok_or_else(|| Problem::new(Kind::NotFound, "no such VM"))?;
        let phases = vec![json!({ "phase": "copy", "started_ms": BEGAN_MS, "ended_ms": null })];
        Ok(VmDetails {
            vm: vm(number),
            phases,
            disks: vec![json!({})],
            warm: None,
            events: vec![event()],
            concerns: vec![],
        })
    }

    fn concerns(&self, _: &str, after: i64, limit: usize) -> Outcome<Page<ConcernLine>> {
        let concern = |number: usize| {
            let name = format!("web{number}");
            let [vm, id, severity, subject] = [&name, "no-tools", "warning", &name].map(str::to_string);
            ConcernLine {
                vm,
                id,
                severity,
                subject,
                message: "no guest tools".into(),
                advice: "install them".into(),
            }
        };
        let from = after.max(0) as usize;
        let to = (from + limit).min(self.vms);
        let next = (to < self.vms).then(|| to.to_string());
        Ok(Page { items: (from..to).map(concern).collect(), next })
    }

    fn events(&self, _: &str, _: i64, _: usize) -> Outcome<Page<PlanEvent>> {
        Ok(Page { items: vec![event()], next: None })
    }

    fn waves(&self, _: &str) -> Outcome<Vec<Value>> {
        let wave = |name: &str, after: &[&str], state: &str, failed: u64| {
            json!({
                "name": name, "after": after, "window": { "windows": ["Sat 22:00-06:00 Europe/Berlin"], "freezes": [], "from_ms": null, "until_ms": BEGAN_MS },
                "if_failed": "wait", "state": state, "vms": 10, "done": 4, "running": 0, "failed": failed, "cancelled": 0, "skipped": 0, "left": 6 - failed,
                "may_go_on": false, "began_ms": BEGAN_MS, "ended_ms": null, "opens": "Sat 2026-12-05 22:00 Europe/Berlin"
            })
        };
        Ok(vec![wave("pilot", &[], "failed", 6), wave("rest", &["pilot"], "queued", 0)])
    }

    fn resources(&self) -> Outcome<Resources> {
        let host = |name: &str, disks_max| HostUse {
            host: name.into(),
            vms: 20,
            vms_max: 20,
            disks: 7,
            disks_max,
            waiting: 30,
        };
        let hosts = vec![host("esx1.lab", Some(7)), host("esx2.lab", None)];
        Ok(Resources { hosts, disks: 14, disks_max: 200, waits: [("host_vms".into(), 60)].into() })
    }

    fn rates(&self, _: &str) -> Outcome<Vec<RatePoint>> {
        Ok((0..60)
            .map(|number| RatePoint {
                at_ms: BEGAN_MS + 1_000 * number,
                read_rate: 1e9 + 3e8 * (number as f64 / 5.0).sin(),
                written_rate: 5e8,
                disks: 2,
            })
            .collect())
    }

    fn report(&self, _: &str, form: Form) -> Outcome<Document> {
        Ok(match form {
            Form::Json => Document::Json(json!({ "summary": {} }).to_string()),
            Form::Text => {
                Document::Text("report\n".to_string() + &(0..self.vms).map(report_of).collect::<String>())
            }
            Form::Html => Document::Html("<!DOCTYPE html><p>report</p>".into()),
        })
    }

    fn limits(&self, _: &str) -> Outcome<PlanLimits> {
        let ordered = self.done.lock().unwrap().limits.clone();
        Ok(PlanLimits { now: ordered.unwrap_or_else(|| limits(200)), plan: limits(200) })
    }

    fn submit(&self, submission: &Submission, _: &str) -> Outcome<Plan> {
        self.done.lock().unwrap().orders.push("submit".into());
        if submission.text == "bad" {
            let mut problem = Problem::new(Kind::Refused, "the plan has 1 problems");
            problem.problems.push(json!({ "line": 3 }));
            return Err(problem);
        }
        Ok(plan("new", &submission.project))
    }

    fn check(&self, _: &Submission) -> Outcome<Checked> {
        self.gate.pass("check");
        Ok(Checked { ok: true, vms: 1, problems: vec![], concerns: vec![json!({ "id": "x" })] })
    }

    fn order(&self, plan: &str, order: &Order) -> Outcome<Ordered> {
        let limits = order.limits.as_ref().map(|limits| format!(" {}", json!(limits))).unwrap_or_default();
        self.done.lock().unwrap().orders.push(format!("{:?} {plan}{limits}", order.order));
        self.gate.pass("order");
        match order.order {
            OrderKind::Resume => Err(Problem::new(Kind::Conflict, "plan 'one' is running")),
            _ if order.vm.as_deref() == Some(BROKEN) => Err(Problem::new(Kind::Internal, "broken")),
            OrderKind::Limits => {
                let limits = Some(self.limit(&order.limits.clone().unwrap_or_default())?);
                Ok(Ordered { before: "running".into(), after: "running".into(), vms: vec![], limits })
            }
            _ => {
                let vms = vec![];
                Ok(Ordered { before: "running".into(), after: "pausing".into(), vms, limits: None })
            }
        }
    }

    fn audit(&self, entry: &AuditEntry) -> Outcome<i64> {
        let mut done = self.done.lock().unwrap();
        let id = done.audit.len() as i64;
        done.audit.push(AuditRow {
            id,
            at_ms: 1,
            entry: entry.clone(),
            after: None,
            outcome: "begun".into(),
        });
        Ok(id)
    }

    fn audit_end(&self, id: i64, after: Option<&str>, outcome: &str) -> Outcome<()> {
        let mut done = self.done.lock().unwrap();
        if done.forgets_ends {
            return Err(Problem::new(Kind::Internal, "no space left"));
        }
        let row = &mut done.audit[id as usize];
        (row.after, row.outcome) = (after.map(str::to_string), outcome.into());
        Ok(())
    }

    fn warn(&self, text: &str) {
        self.done.lock().unwrap().warnings.push(text.into());
    }

    fn audit_log(&self, _: Option<i64>, _: usize) -> Outcome<Page<AuditRow>> {
        Ok(Page { items: self.done.lock().unwrap().audit.clone(), next: None })
    }

    fn live(&self) -> Live {
        let of = |plan: &str, project: &str| LivePlan {
            plan: plan.into(),
            project: project.into(),
            read_bytes: 1,
            written_bytes: 1,
            rate: Some(1.5),
            eta_s: None,
            retries: 0,
            disks: vec![json!({ "activity": "copy", "waits_for": "source" })],
        };
        Live { plans: vec![of("one", "web"), of("two", "db")], disks_left_out: 0 }
    }

    fn gauges(&self) -> Outcome<Gauges> {
        let of = |plan: &str, project: &str| PlanGauges {
            plan: plan.into(),
            state: "running".into(),
            project: project.into(),
            phases: vec![("copy".into(), 1)],
            foreseen_ms: Some([BEGAN_MS + 600_000, BEGAN_MS + 900_000, BEGAN_MS + 1_200_000]),
            first_foreseen_ms: Some([BEGAN_MS + 500_000, BEGAN_MS + 600_000, BEGAN_MS + 700_000]),
            forecast_error: (plan == "one").then_some((-0.25, false)),
            ..PlanGauges::default()
        };
        Ok(Gauges { plans: vec![of("one", "web"), of("two", "db")] })
    }

    fn ready(&self) -> Result<(), String> {
        self.gate.pass("ready");
        Ok(())
    }
}

/// A server with tokens: `viewer`, `operator` and `admin` for all projects, `web` an operator of that project.
pub struct Stage {
    pub server: Server,
    pub hub: EventHub,
    pub done: Arc<Mutex<Done>>,
    pub gate: Arc<TestGate>,
    tokens: Vec<(String, String)>,
    pub folder: TempDir,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The type of the body, without parameters.
    pub fn content_type(&self) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        line.split(';').next().unwrap()
    }
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(|_| {}, 2_500)
    }

    pub fn with(change: impl FnOnce(&mut ServerOptions), vms: usize) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::of(folder.path());
        let mut tokens = Vec::new();
        for (name, role, project) in [
            ("viewer", Role::Viewer, None),
            ("operator", Role::Operator, None),
            ("admin", Role::Admin, None),
            ("web", Role::Operator, Some("web")),
        ] {
            tokens.push((name.to_string(), file.add(name, role, project).unwrap()));
        }
        let mut options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            tls: None,
            tokens: file,
            oidc: None,
            anonymous_view: false,
            open_metrics: false,
            bounds: Bounds::default(),
        };
        change(&mut options);
        let done = Arc::new(Mutex::new(Done::default()));
        let hub = EventHub::new(options.bounds.event_queue);
        let gate = Arc::new(TestGate::default());
        let fake = Fake { done: done.clone(), vms, gate: gate.clone() };
        let server = Server::start(&options, hub.clone(), Arc::new(fake)).unwrap();
        Stage { server, hub, done, gate, tokens, folder }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn token(&self, name: &str) -> &str {
        &self.tokens.iter().find(|(it, _)| it == name).unwrap().1
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Sends a request with the token of a name and reads the whole answer.
    pub fn send(&self, who: &str, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        let token = if who.is_empty() {
            String::new()
        } else {
            format!("Authorization: Bearer {}\r\n", self.token(who))
        };
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}{fields}Content-Length: {length}\r\n\r\n{body}"
        );
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).unwrap();
        read_answer(&mut stream)
    }

    pub fn get(&self, who: &str, path: &str) -> Answer {
        self.send(who, "GET", path, "", "")
    }

    pub fn post(&self, who: &str, path: &str, body: &Value) -> Answer {
        self.send(who, "POST", path, "", &body.to_string())
    }
}

/// Reads until the server closes.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // What came before a reset counts.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let head = head.to_ascii_lowercase().replace('\r', "");
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_string() };
    Answer { status, head, body }
}

fn unchunked(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = text.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap_or(0);
        if length == 0 || rest.len() < length {
            break;
        }
        body.push_str(&rest[..length]);
        text = rest[length..].trim_start_matches("\r\n");
    }
    body
}
