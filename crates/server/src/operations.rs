//! What the daemon can be asked and told: the program implements it, the server carries it over HTTP.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::Problem;

/// Most rows of one answer.
pub const ROWS_MAX: usize = 1_000;
/// Rows of an answer to a question that names no limit.
pub const ROWS_DEFAULT: usize = 200;
/// Disks at work that one live look names.
pub const LIVE_DISKS_MAX: usize = 500;

/// The outcome of an operation.
pub type Outcome<T> = Result<T, Problem>;

/// What the daemon does. All of it blocks, and is called from threads made for that.
pub trait Operations: Send + Sync + 'static {
    /// All plans, the latest first.
    fn plans(&self) -> Outcome<Vec<Plan>>;
    /// One plan.
    fn plan(&self, name: &str) -> Outcome<Plan>;
    /// What `drover status` prints of a plan.
    fn status(&self, plan: &str, form: Form) -> Outcome<Document>;
    /// VMs of a plan, in the order they were entered.
    fn vms(&self, plan: &str, query: &VmQuery) -> Outcome<Page<VmLine>>;
    /// All that is known of one VM.
    fn vm(&self, plan: &str, vm: &str) -> Outcome<VmDetails>;
    /// What to know about the VMs of a plan; the limit is one of VMs.
    fn concerns(&self, plan: &str, after: i64, limit: usize) -> Outcome<Page<ConcernLine>>;
    /// What happened in a plan, the oldest first, after a cursor.
    fn events(&self, plan: &str, after: i64, limit: usize) -> Outcome<Page<PlanEvent>>;
    /// Waves of a plan in its order, as `drover report --json` has them; none if it has none.
    fn waves(&self, plan: &str) -> Outcome<Vec<Value>>;
    /// Limits of a plan that was begun: those in force, and those in the plan.
    fn limits(&self, plan: &str) -> Outcome<PlanLimits>;
    /// What is in use of what VMs of all plans share.
    fn resources(&self) -> Outcome<Resources>;
    /// Rates of a plan's copies over its time.
    fn rates(&self, plan: &str) -> Outcome<Vec<RatePoint>>;
    /// What a plan did, with its proof.
    fn report(&self, plan: &str, form: Form) -> Outcome<Document>;
    /// Takes a plan in and begins with it.
    fn submit(&self, submission: &Submission, who: &str) -> Outcome<Plan>;
    /// Holds a plan against its source and this machine; changes nothing.
    fn check(&self, submission: &Submission) -> Outcome<Checked>;
    /// Carries out an order about a plan.
    fn order(&self, plan: &str, order: &Order) -> Outcome<Ordered>;
    /// Keeps who ordered what. An order is carried out only if this went well.
    fn audit(&self, entry: &AuditEntry) -> Outcome<i64>;
    /// Adds to an entry how its order ended.
    fn audit_end(&self, id: i64, after: Option<&str>, outcome: &str) -> Outcome<()>;
    /// Says something to who runs the daemon.
    fn warn(&self, text: &str);
    /// Orders, the latest first, before a cursor.
    fn audit_log(&self, before: Option<i64>, limit: usize) -> Outcome<Page<AuditRow>>;
    /// What goes on now.
    fn live(&self) -> Live;
    /// Figures for monitoring.
    fn gauges(&self) -> Outcome<Gauges>;
    /// Whether plans can be run; what hinders them otherwise.
    fn ready(&self) -> Result<(), String>;
}

/// How a document is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// For programs.
    #[default]
    Json,
    /// As the command line prints it.
    Text,
    /// A page that stands alone.
    Html,
}

/// A document in one of its forms.
#[derive(Clone, Debug)]
pub enum Document {
    /// JSON, as text.
    Json(String),
    /// Text.
    Text(String),
    /// A page.
    Html(String),
}

/// Rows, and where the next ones begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    /// Rows.
    pub items: Vec<T>,
    /// Give it as `cursor` for those that follow; absent after the last.
    pub next: Option<String>,
}

/// What shall become of a plan, whoever is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// It is to be run; also after a restart of the daemon.
    Run,
    /// It was paused.
    Pause,
    /// It was given up, or is about to be.
    Cancel,
    /// It ended by itself.
    Nothing,
}

/// A plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Name.
    pub name: String,
    /// Project whose tokens may see it and give orders about it.
    pub project: String,
    /// `queued`, `checking`, `running`, `pausing`, `paused`, `done`, `incomplete`, `cancelling`, `cancelled`, `refused`.
    pub state: String,
    /// What was ordered last.
    pub wanted: Wanted,
    /// Begin of its first run, in milliseconds since 1970.
    pub started_ms: Option<i64>,
    /// End of its last run.
    pub ended_ms: Option<i64>,
    /// VMs by state.
    pub vms: Counts,
    /// How its last run ended, as the exit code of `drover migrate`; absent while it runs.
    pub exit: Option<u8>,
    /// Why it failed or was refused.
    pub error: Option<String>,
    /// What to try.
    pub advice: Option<String>,
    /// What is wrong with the plan, or should be looked at.
    pub problems: Vec<Value>,
    /// When it is foreseen to end, while it runs: P10, P50 and P90, in milliseconds since 1970.
    pub foreseen_ms: Option<[i64; 3]>,
    /// The same, as it was foreseen when its run began.
    pub first_foreseen_ms: Option<[i64; 3]>,
    /// BLAKE3 of the text that it was begun with, or that waits to be begun: a file with another was edited since.
    #[serde(default)]
    pub blake3: Option<String>,
}

/// VMs by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the states of a VM")]
pub struct Counts {
    pub all: u64,
    pub queued: u64,
    pub running: u64,
    pub done: u64,
    pub not_cleaned_up: u64,
    pub failed: u64,
    pub stopped: u64,
    pub skipped: u64,
    pub cancelled: u64,
}

/// Which VMs are asked for.
#[derive(Clone, Debug, Default)]
pub struct VmQuery {
    /// After this one.
    pub after: i64,
    /// At most so many.
    pub limit: usize,
    /// In this state only.
    pub state: Option<String>,
    /// With this in their names, in any case.
    pub search: Option<String>,
}

/// A VM in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmLine {
    /// The source's id.
    pub id: String,
    /// Name at the target.
    pub name: String,
    /// Tells this migration of it from all others, in traces and logs.
    pub trace_id: String,
    /// The site that it goes to.
    pub site: Option<String>,
    /// The source's host.
    pub host: Option<String>,
    /// State.
    pub state: String,
    /// Phase it is in or ended in.
    pub phase: Option<String>,
    /// Disks.
    pub disks: u64,
    /// Their capacity.
    pub size_bytes: u64,
    /// Whether it moves warm.
    pub warm: bool,
    /// Its wave.
    pub wave: Option<String>,
    /// What it waits for, while its plan runs.
    pub waits: Option<String>,
    /// When it was foreseen to arrive as the latest run began: P10, P50 and P90, in milliseconds since 1970.
    pub foreseen_ms: Option<[i64; 3]>,
    /// Error.
    pub error: Option<String>,
    /// Cause of the error.
    pub cause: Option<String>,
    /// What to try.
    pub advice: Option<String>,
    /// Begin, in milliseconds since 1970.
    pub started_ms: Option<i64>,
    /// End.
    pub ended_ms: Option<i64>,
}

/// All about one VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmDetails {
    /// Its line.
    pub vm: VmLine,
    /// Phases with their begin and end.
    pub phases: Vec<Value>,
    /// Disks as `drover report --json` has them.
    pub disks: Vec<Value>,
    /// Passes and downtime of a warm VM.
    pub warm: Option<Value>,
    /// What happened, the oldest first.
    pub events: Vec<PlanEvent>,
    /// What should be known about it before it moves.
    pub concerns: Vec<Value>,
}

/// Something to know about a VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConcernLine {
    /// VM by its name at the target.
    pub vm: String,
    /// Which of the catalogue.
    pub id: String,
    /// `blocks`, `warning` or `info`.
    pub severity: String,
    /// VM, or VM and part.
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to do about it.
    pub advice: String,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// VM's id.
    pub vm: Option<String>,
    /// Phase.
    pub phase: Option<String>,
    /// `started`, `ended`, `note`, `error`.
    pub kind: String,
    /// Text.
    pub text: String,
}

/// A point of the rate chart.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RatePoint {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Bytes read per second since the point before.
    pub read_rate: f64,
    /// Bytes written per second.
    pub written_rate: f64,
    /// Disks at work.
    pub disks: u64,
}

/// A plan that is handed in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Text of the plan file.
    pub text: String,
    /// Absolute path of the file that the text is from; paths in the plan are relative to its folder, on the daemon's machine.
    #[serde(default)]
    pub path: Option<String>,
    /// Project it belongs to.
    #[serde(default = "default_project")]
    pub project: String,
    /// Start each VM at the target once it has arrived, whatever the plan says.
    #[serde(default)]
    pub start: bool,
}

/// The project of plans that name none.
pub fn default_project() -> String {
    "default".into()
}

/// What a check found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// Whether the plan could be run.
    pub ok: bool,
    /// VMs it takes.
    pub vms: u64,
    /// What is wrong, or should be looked at.
    pub problems: Vec<Value>,
    /// What to know about VMs: each with `vm`, `id`, `category`, `title` and more.
    pub concerns: Vec<Value>,
}

/// What can be ordered about a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// VMs that are copied while they run move over now.
    Cutover,
    /// The waves after one go on, whatever of it failed.
    Proceed,
    /// VMs that failed are tried again, while the plan runs.
    Retry,
    /// Stop after what is being flushed; resumable.
    Pause,
    /// Go on: with all that has not arrived, also what failed.
    Resume,
    /// Stop, and undo what was begun.
    Cancel,
    /// Other limits hold from now on.
    Limits,
}

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// What.
    pub order: OrderKind,
    /// Name of the VM that moves over, is tried again, or is given up; all that wait, all that failed, or the whole plan, if absent.
    #[serde(default)]
    pub vm: Option<String>,
    /// For a cutover, a retry or a cancel: names of several VMs, or patterns such as `web*`.
    #[serde(default)]
    pub vms: Vec<String>,
    /// To proceed: the wave of which VMs failed. For a cutover: the wave whose VMs move over.
    #[serde(default)]
    pub wave: Option<String>,
    /// Start each VM at the target once it has arrived, whatever the plan says.
    #[serde(default)]
    pub start: bool,
    /// For other limits: these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<OrderedLimits>,
}

/// Limits that are ordered; absent: as they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderedLimits {
    /// `RATE` or `WINDOW=RATE` each; none, or `none` alone, to take the limit away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<Vec<String>>,
    /// Disks at once in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disks: Option<i64>,
    /// VMs of one host at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms_per_host: Option<i64>,
}

/// Limits in force at a moment, in the words of plan keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitValues {
    /// `RATE` or `WINDOW=RATE` each; none: as fast as it goes.
    pub rate_limit: Vec<String>,
    /// Disks at once in all.
    pub disks: u32,
    /// VMs of one host at once.
    pub vms_per_host: u32,
}

/// Limits of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLimits {
    /// In force.
    pub now: LimitValues,
    /// In the plan.
    pub plan: LimitValues,
}

/// Limits that an order changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangedLimits {
    /// As they were.
    pub before: LimitValues,
    /// As they are.
    pub after: LimitValues,
    /// What is different, in words; empty if nothing is.
    pub changed: String,
}

/// What an order changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ordered {
    /// State of the plan before.
    pub before: String,
    /// State of the plan after.
    pub after: String,
    /// VMs that it concerns by name, or waves that go on; empty for all.
    pub vms: Vec<String>,
    /// Limits, if it was about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ChangedLimits>,
}

impl Ordered {
    /// What the audit log has of it.
    pub(crate) fn audited(&self) -> String {
        match &self.limits {
            Some(limits) if limits.changed.is_empty() => format!("{}: limits as they were", self.after),
            Some(limits) => format!("{}: {}", self.after, limits.changed),
            None => self.after.clone(),
        }
    }
}

/// Who orders what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns of the audit log")]
pub struct AuditEntry {
    pub who: String,
    pub role: String,
    pub from: String,
    pub project: String,
    pub plan: Option<String>,
    pub vm: Option<String>,
    pub action: String,
    pub before: Option<String>,
}

/// A line of the audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditRow {
    /// Number.
    pub id: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who ordered what.
    #[serde(flatten)]
    pub entry: AuditEntry,
    /// State of the plan after.
    pub after: Option<String>,
    /// `ok`, `begun` where the end is not known, or why it was refused.
    pub outcome: String,
}

/// What goes on at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Live {
    /// Of each plan that runs.
    pub plans: Vec<LivePlan>,
    /// Disks at work that are not named.
    pub disks_left_out: u64,
}

/// A plan that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LivePlan {
    /// Plan.
    pub plan: String,
    /// Its project.
    pub project: String,
    /// Bytes read in this run.
    pub read_bytes: u64,
    /// Bytes written in this run.
    pub written_bytes: u64,
    /// Bytes read per second, lately.
    pub rate: Option<f64>,
    /// Seconds until all is copied, by that rate.
    pub eta_s: Option<u64>,
    /// Failures that were tried again, by the disks at work.
    pub retries: u64,
    /// Disks at work, one object each as in the JSON lines of `drover migrate --json`.
    pub disks: Vec<Value>,
}

/// What is in use of what VMs of all plans share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Hosts at which a VM is at work or waits.
    pub hosts: Vec<HostUse>,
    /// Disks that are copied, in all.
    pub disks: u32,
    /// Disks that may be.
    pub disks_max: u32,
    /// VMs that wait, by what they wait for.
    pub waits: BTreeMap<String, u64>,
}

/// What is in use of a source host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostUse {
    /// Name.
    pub host: String,
    /// VMs at work.
    pub vms: u32,
    /// VMs that may be.
    pub vms_max: u32,
    /// Disks that are copied.
    pub disks: u32,
    /// Disks that may be, by its budgets and by what was found by measuring; no limit if absent.
    pub disks_max: Option<u32>,
    /// VMs that wait.
    pub waiting: u64,
}

/// Figures for monitoring.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Of each plan.
    pub plans: Vec<PlanGauges>,
}

/// Figures of one plan.
#[derive(Clone, Debug, Default)]
pub struct PlanGauges {
    /// Plan.
    pub plan: String,
    /// Its state.
    pub state: String,
    /// Project.
    pub project: String,
    /// VMs by state.
    pub counts: Counts,
    /// VMs at work by phase.
    pub phases: Vec<(String, u64)>,
    /// See [`Plan::foreseen_ms`].
    pub foreseen_ms: Option<[i64; 3]>,
    /// See [`Plan::first_foreseen_ms`].
    pub first_foreseen_ms: Option<[i64; 3]>,
    /// Of a plan that is done: by which share of what its last run took the likely time (P50) was off as that began, and whether it was
    /// from P10 to P90.
    pub forecast_error: Option<(f64, bool)>,
}
