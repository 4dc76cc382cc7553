//! What the API asks of the daemon.

use std::collections::HashMap;

use drover_engine::{
    EngineError, ForecastError, LimitsInForce, LimitsOrder, OrderRow, PlanRow, PlanState, ServedRow,
    SystemClock, ask_cutover, ask_give_up, ask_limits, ask_proceed, ask_retry, is_running, plan_report,
    take_back, wave_reports, wave_to_give_up, wave_to_try_again,
};
use drover_plan::{Others, PlannedVm, Problem as PlanProblem};
use drover_schedule::Usage;
use drover_server::{
    AuditEntry, AuditRow, ChangedLimits, Checked, ConcernLine, Document, Form, Gauges, HostUse, Kind,
    LIVE_DISKS_MAX, LimitValues, Live, LivePlan, Operations, Order, OrderKind, Ordered, OrderedLimits,
    Outcome, Page, Plan, PlanEvent, PlanGauges, PlanLimits, Problem, RatePoint, Resources, Submission,
    VmDetails, VmLine, VmQuery, Wanted, default_project,
};
use drover_types::DayLimit;
use drover_view::Extent;
use serde_json::Value;

use super::decide::{wanted_of, word};
use super::job::{Stage, Work};
use super::look::{KnownOfPlan, counts, event, plan_word, state_word, vm_line};
use super::{Daemon, no_plan, now_ms, problem, store_problem};
use crate::commands::limits::advice_on;
use crate::commands::plan::check_online;
use crate::commands::show;

/// Events of one VM that are shown, the latest.
const VM_EVENTS_MAX: usize = 500;

impl Operations for Daemon {
    fn plans(&self) -> Outcome<Vec<Plan>> {
        let look = &self.0.look;
        let mut served: HashMap<String, ServedRow> =
            look.served().map_err(store_problem)?.into_iter().map(|row| (row.name.clone(), row)).collect();
        let counted = look.vm_counts().map_err(store_problem)?;
        let of = |name: &str| counts(counted.iter().filter(|row| row.plan == name));
        let rows = look.plans().map_err(store_problem)?;
        let mut plans: Vec<Plan> = rows
            .into_iter()
            .map(|row| {
                let counts = of(&row.name);
                Plan { vms: counts, ..self.plan_of(served.remove(&row.name), Some(row)) }
            })
            .collect();
        // Those that have not begun, or never could.
        plans.extend(served.into_values().map(|row| self.plan_of(Some(row), None)));
        plans.sort_by(|one, two| two.started_ms.cmp(&one.started_ms).then_with(|| one.name.cmp(&two.name)));
        Ok(plans)
    }

    fn plan(&self, name: &str) -> Outcome<Plan> {
        let row = self.0.look.plan(name).map_err(store_problem)?;
        let served = self.0.look.served_plan(name).map_err(store_problem)?;
        if row.is_none() && served.is_none() {
            return Err(no_plan(name));
        }
        let counted = self.0.look.vm_counts().map_err(store_problem)?;
        let counts = counts(counted.iter().filter(|row| row.plan == name));
        Ok(Plan { vms: counts, ..self.plan_of(served, row) })
    }

    fn status(&self, plan: &str, form: Form) -> Outcome<Document> {
        let row = self.0.look.plan(plan).map_err(store_problem)?.ok_or_else(|| not_begun(plan))?;
        let status = show::status_of(&self.0.look, row).map_err(|failure| problem(&failure))?;
        Ok(match form {
            Form::Json => Document::Json(serde_json::json!(status).to_string()),
            Form::Text | Form::Html => Document::Text(status.text(Extent::Whole, "")),
        })
    }

    fn vms(&self, plan: &str, query: &VmQuery) -> Outcome<Page<VmLine>> {
        let (state, search) = (query.state.as_deref(), query.search.as_deref());
        let rows = self
            .0
            .look
            .vms_after(plan, query.after, query.limit + 1, state, search)
            .map_err(store_problem)?;
        let known = self.known_of(plan)?;
        let (rows, next) = page(rows, query.limit);
        let line = |row: drover_engine::VmRow| {
            let planned: Option<PlannedVm> = serde_json::from_str(&row.planned).ok();
            vm_line(row, planned.as_ref(), &known)
        };
        Ok(Page { items: rows.into_iter().map(line).collect(), next })
    }

    fn vm(&self, plan: &str, vm: &str) -> Outcome<VmDetails> {
        let look = &self.0.look;
        let row = look.vm(plan, vm).map_err(store_problem)?;
        let row = row.ok_or_else(|| {
            Problem::new(Kind::NotFound, format!("plan '{plan}' has no VM with the id '{vm}'"))
                .advise(format!("see /v1/plans/{plan}/vms"))
        })?;
        let planned: Option<PlannedVm> = serde_json::from_str(&row.planned).ok();
        let report = drover_engine::vm_details(look, plan, row.clone()).map_err(store_problem)?;
        let mut events = look.events_of(plan, vm).map_err(store_problem)?;
        events.drain(..events.len().saturating_sub(VM_EVENTS_MAX));
        let values = |list: Value| list.as_array().cloned().unwrap_or_default();
        Ok(VmDetails {
            vm: vm_line(row, planned.as_ref(), &self.known_of(plan)?),
            phases: values(serde_json::json!(report.phases)),
            disks: values(serde_json::json!(report.disks)),
            warm: report.warm.map(|warm| serde_json::json!(warm)),
            events: events.into_iter().map(event).collect(),
            concerns: planned.map_or(Vec::new(), |planned| values(serde_json::json!(planned.concerns))),
        })
    }

    fn concerns(&self, plan: &str, after: i64, limit: usize) -> Outcome<Page<ConcernLine>> {
        let rows = self.0.look.vms_after(plan, after, limit + 1, None, None).map_err(store_problem)?;
        let (rows, next) = page(rows, limit);
        let mut items = Vec::new();
        for row in rows {
            let planned: Option<PlannedVm> = serde_json::from_str(&row.planned).ok();
            items.extend(planned.into_iter().flat_map(|planned| planned.concerns).map(|it| ConcernLine {
                vm: row.name.clone(),
                severity: state_word(it.severity),
                id: it.id,
                subject: it.subject,
                message: it.message,
                advice: it.advice,
            }));
        }
        Ok(Page { items, next })
    }

    fn events(&self, plan: &str, after: i64, limit: usize) -> Outcome<Page<PlanEvent>> {
        let rows = self.0.look.events_after(plan, after, limit + 1).map_err(store_problem)?;
        let (rows, next) = page(rows, limit);
        Ok(Page { items: rows.into_iter().map(event).collect(), next })
    }

    fn waves(&self, plan: &str) -> Outcome<Vec<Value>> {
        let Some(row) = self.0.look.plan(plan).map_err(store_problem)? else { return Ok(Vec::new()) };
        let vms = self.0.look.vms(plan).map_err(store_problem)?;
        Ok(wave_reports(&self.0.look, &row, &vms).iter().map(|wave| serde_json::json!(wave)).collect())
    }

    fn limits(&self, plan: &str) -> Outcome<PlanLimits> {
        let row = self.0.look.plan(plan).map_err(store_problem)?.ok_or_else(|| not_begun(plan))?;
        let limits =
            drover_engine::plan_limits(&self.0.look, &row).map_err(|error| problem(&error.into()))?;
        Ok(PlanLimits { now: limit_values(&limits.now), plan: limit_values(&limits.plan) })
    }

    fn resources(&self) -> Outcome<Resources> {
        let in_use = self.0.schedule.in_use(&SystemClock);
        let host = |it: Usage| HostUse {
            host: it.host,
            vms: it.vms,
            vms_max: it.vms_max,
            disks: it.disks,
            disks_max: Some(it.disks_max).filter(|most| *most < u32::MAX),
            waiting: it.waiting as u64,
        };
        Ok(Resources {
            hosts: in_use.hosts.into_iter().map(host).collect(),
            disks: in_use.disks,
            disks_max: in_use.disks_max,
            waits: in_use.waits.into_iter().map(|(what, count)| (what.to_string(), count)).collect(),
        })
    }

    fn rates(&self, plan: &str) -> Outcome<Vec<RatePoint>> {
        let samples = self.0.look.samples_for_chart(plan).map_err(store_problem)?;
        let point = |it: drover_engine::RatePoint| RatePoint {
            at_ms: it.at_ms,
            read_rate: it.read_rate,
            written_rate: it.written_rate,
            disks: it.disks,
        };
        Ok(drover_engine::rates(&samples).into_iter().map(point).collect())
    }

    fn report(&self, plan: &str, form: Form) -> Outcome<Document> {
        let report =
            plan_report(&self.0.look, plan).map_err(store_problem)?.ok_or_else(|| not_begun(plan))?;
        Ok(match form {
            Form::Json => {
                let text = serde_json::to_string(&drover_view::ReportJson(&report));
                Document::Json(text.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?)
            }
            Form::Text => Document::Text(drover_view::report_text(&report)),
            Form::Html => Document::Html(drover_view::report_html(&report)),
        })
    }

    fn submit(&self, submission: &Submission, who: &str) -> Outcome<Plan> {
        let mut file = self.file(submission)?;
        let name = file.plan.name.clone();
        let _orders = self.orders();
        self.check_not_ending()?;
        self.check_name(&file, submission)?;
        if submission.path.is_none() {
            file.path.set_file_name(format!("{name}.yaml"));
        }
        let row = ServedRow {
            name: name.clone(),
            project: submission.project.clone(),
            text: file.text,
            path: file.path,
            start: submission.start,
            wanted: word(Wanted::Run).into(),
            by: who.into(),
            at_ms: now_ms(),
            ..ServedRow::default()
        };
        self.0.store.put_served(&row).map_err(store_problem)?;
        self.begin(row, Work::Run(Others::Selected), false)?;
        self.plan(&name)
    }

    fn check(&self, submission: &Submission) -> Outcome<Checked> {
        let file = self.file(submission)?;
        let checked = check_online(&file, Some(&self.0.folder), Some(&self.0.policy), None)
            .map_err(|failure| problem(&failure))?;
        let problems: Vec<&PlanProblem> = checked.problems().collect();
        let concerns = checked.resolution.vms.iter().flat_map(|vm| &vm.concerns);
        Ok(Checked {
            ok: !problems.iter().any(|problem| problem.is_error()),
            vms: checked.resolution.vms.len() as u64,
            problems: problems.iter().filter_map(|it| serde_json::to_value(it).ok()).collect(),
            concerns: concerns.filter_map(|it| serde_json::to_value(it).ok()).collect(),
        })
    }

    fn order(&self, plan: &str, order: &Order) -> Outcome<Ordered> {
        let _orders = self.orders();
        self.check_not_ending()?;
        let before = self.plan(plan)?.state;
        // First of all: without names an order is about all VMs.
        if order.limits.is_some() != (order.order == OrderKind::Limits) {
            let text = "`limits` belongs to the order `limits`, which needs it";
            return Err(
                Problem::new(Kind::BadRequest, text).advise("name rate_limit, disks or vms_per_host in it")
            );
        }
        let takes_several = matches!(order.order, OrderKind::Cutover | OrderKind::Retry | OrderKind::Cancel);
        if !order.vms.is_empty() && (!takes_several || order.vm.is_some()) {
            let text =
                "several VMs can be named to move them over, to retry or to cancel them, and in place of one";
            return Err(Problem::new(Kind::BadRequest, text).advise("leave `vms` out, or `vm`"));
        }
        if order.wave.is_some()
            && matches!(order.order, OrderKind::Pause | OrderKind::Resume | OrderKind::Limits)
        {
            let text = "a wave belongs to the orders to proceed, to move over, to retry and to cancel alone";
            return Err(Problem::new(Kind::BadRequest, text).advise("leave `wave` out"));
        }
        let names = self.named(plan, order)?;
        let mut limits = None;
        let vms = match order.order {
            OrderKind::Cutover => ask_cutover(&self.0.store, plan, &names, order.wave.as_deref())
                .map_err(|error| problem(&error.into()))?,
            OrderKind::Proceed => {
                let wave = order.wave.as_deref().ok_or_else(|| {
                    Problem::new(Kind::BadRequest, "`wave` is missing: the wave of which VMs failed")
                })?;
                ask_proceed(&self.0.store, plan, wave).map_err(|error| problem(&error.into()))?
            }
            OrderKind::Retry => {
                let refused = |error: EngineError| problem(&error.into());
                let taken_back = take_back(&self.0.store, plan, &names).map_err(refused)?;
                let names = (!names.is_empty()).then_some(names.as_slice());
                match taken_back.is_empty() {
                    true => ask_retry(&self.0.store, plan, names).map_err(refused)?,
                    false => taken_back,
                }
            }
            OrderKind::Cancel if !names.is_empty() => self.give_up(plan, &before, &names)?,
            _ if order.vm.is_some() => {
                let text = "only a cutover, a retry and a cancel can be ordered for a single VM";
                return Err(Problem::new(Kind::BadRequest, text).advise("leave `vm` out"));
            }
            OrderKind::Pause => self.pause_plan(plan)?,
            OrderKind::Resume => self.resume_plan(plan, order.start)?,
            OrderKind::Cancel => self.cancel_order(plan)?,
            OrderKind::Limits => {
                limits = Some(self.limit(plan, order.limits.as_ref())?);
                Vec::new()
            }
        };
        self.tell(plan);
        Ok(Ordered { before, after: self.plan(plan)?.state, vms, limits })
    }

    fn audit(&self, entry: &AuditEntry) -> Outcome<i64> {
        let row = OrderRow {
            who: entry.who.clone(),
            role: entry.role.clone(),
            origin: entry.from.clone(),
            project: entry.project.clone(),
            plan: entry.plan.clone(),
            vm: entry.vm.clone(),
            action: entry.action.clone(),
            before: entry.before.clone(),
            ..OrderRow::default()
        };
        self.0.store.add_order(&row).map_err(store_problem)
    }

    fn audit_end(&self, id: i64, after: Option<&str>, outcome: &str) -> Outcome<()> {
        self.0.store.end_order(id, after, outcome).map_err(store_problem)
    }

    fn warn(&self, text: &str) {
        crate::out::say(format_args!("warning: {text}"));
    }

    fn audit_log(&self, before: Option<i64>, limit: usize) -> Outcome<Page<AuditRow>> {
        let rows = self.0.look.orders(before, limit + 1).map_err(store_problem)?;
        let (rows, next) = page(rows.into_iter().map(|row| (row.id, row)).collect(), limit);
        Ok(Page { items: rows.into_iter().map(audit_row).collect(), next })
    }

    fn live(&self) -> Live {
        let jobs: Vec<_> = self.jobs().iter().map(|(name, job)| (name.clone(), job.clone())).collect();
        let mut live = Live::default();
        let mut left = LIVE_DISKS_MAX;
        for (plan, job) in jobs {
            let now = job.look(left);
            left -= now.disks.len();
            live.disks_left_out += now.left_out as u64;
            live.plans.push(LivePlan {
                plan,
                project: job.project.clone(),
                read_bytes: now.moved.0,
                written_bytes: now.moved.1,
                rate: now.rate,
                eta_s: now.left.map(|left| left.as_secs()),
                retries: now.retries,
                disks: now.disks,
            });
        }
        live
    }

    fn gauges(&self) -> Outcome<Gauges> {
        let counted = self.0.look.vm_counts().map_err(store_problem)?;
        let mut gauges = Gauges::default();
        for plan in self.plans()? {
            let at_work = counted.iter().filter(|row| row.plan == plan.name && row.state == "running");
            let phases = at_work.filter_map(|row| Some((row.phase.clone()?, row.count))).collect();
            let forecast_error = plan
                .ended_ms
                .filter(|_| plan.state == "done")
                .and_then(|ended_ms| self.forecast_error(&plan.name, ended_ms));
            gauges.plans.push(PlanGauges {
                plan: plan.name,
                state: plan.state,
                project: plan.project,
                counts: plan.vms,
                phases,
                foreseen_ms: plan.foreseen_ms,
                first_foreseen_ms: plan.first_foreseen_ms,
                forecast_error: forecast_error.map(|it| (it.off, it.inside)),
            });
        }
        Ok(gauges)
    }

    fn ready(&self) -> Result<(), String> {
        if self.is_ending() {
            return Err("the daemon ends".into());
        }
        // One row by its key: that the state can be read at all.
        self.0.look.served_plan("").map(drop).map_err(|error| drover_engine::chain(&error))
    }
}

/// A plan that was taken in and has nothing to show yet.
fn not_begun(plan: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("plan '{plan}' has not begun, so there is nothing to show"))
        .advise(format!("see /v1/plans/{plan} for what it waits for or was refused for"))
}

/// The rows up to a limit, and where the next ones begin.
fn page<T>(mut rows: Vec<(i64, T)>, limit: usize) -> (Vec<T>, Option<String>) {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|(number, _)| number.to_string());
    (rows.into_iter().map(|(_, row)| row).collect(), next)
}

fn audit_row(row: OrderRow) -> AuditRow {
    AuditRow {
        id: row.id,
        at_ms: row.at_ms,
        entry: AuditEntry {
            who: row.who,
            role: row.role,
            from: row.origin,
            project: row.project,
            plan: row.plan,
            vm: row.vm,
            action: row.action,
            before: row.before,
        },
        after: row.after,
        outcome: row.outcome,
    }
}

impl Daemon {
    /// Orders are carried out one after the other.
    pub fn orders(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn check_not_ending(&self) -> Outcome<()> {
        match self.is_ending() {
            true => {
                Err(Problem::new(Kind::Unavailable, "the daemon ends, and takes no orders").retry_after(10))
            }
            false => Ok(()),
        }
    }

    /// How far the forecast of a plan's last run was off, of one that is done since then. What is foreseen for thousands of VMs is a long
    /// text: it is read once.
    fn forecast_error(&self, plan: &str, ended_ms: i64) -> Option<ForecastError> {
        let mut known = self.0.errors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, error)) = known.get(plan).filter(|(ended, _)| *ended == ended_ms) {
            return *error;
        }
        // Who looks does without it if the store cannot tell.
        let error = self.0.look.foreseen_ends(plan).ok()?.error(ended_ms);
        known.insert(plan.to_string(), (ended_ms, error));
        error
    }

    fn known_of(&self, plan: &str) -> Outcome<KnownOfPlan> {
        let look = &self.0.look;
        let mut known = KnownOfPlan::default();
        for run in look.runs(plan).map_err(store_problem)? {
            known.hosts.extend(run.facts.source_hosts);
            // The latest is the last.
            known.foreseen = run.facts.foreseen.map(|foreseen| (run.at_ms, foreseen));
        }
        // What was said last before a plan ended holds no more.
        if look.plan(plan).map_err(store_problem)?.is_some_and(|row| row.state == PlanState::Running) {
            known.waits = look.waits(plan).map_err(store_problem)?.into_iter().collect();
        }
        Ok(known)
    }

    /// A plan from what was handed in and what was run of it; without its VMs.
    fn plan_of(&self, served: Option<ServedRow>, row: Option<PlanRow>) -> Plan {
        let name = served.as_ref().map(|row| row.name.clone()).or(row.as_ref().map(|row| row.name.clone()));
        let name = name.unwrap_or_default();
        let job = self.job(&name);
        let wanted = served.as_ref().map_or(Wanted::Nothing, |row| wanted_of(&row.wanted));
        let state = match (&job, &row) {
            (Some(job), _) => job.stage().word(),
            (None, Some(row)) if row.state == PlanState::Incomplete && wanted == Wanted::Pause => "paused",
            (None, Some(row)) => {
                let elsewhere =
                    row.state == PlanState::Running && is_running(&self.0.look, &name).unwrap_or(false);
                plan_word(row.state, elsewhere)
            }
            (None, None) => match (wanted, &served) {
                (Wanted::Cancel, _) => "cancelled",
                (Wanted::Pause, _) => "paused",
                (_, Some(served)) if served.exit.is_some() => "refused",
                _ => "queued",
            },
        };
        let problems = match (&job, &served) {
            (Some(job), _) => serde_json::to_value(job.problems()).ok(),
            (None, Some(served)) => {
                served.problems.as_deref().and_then(|text| serde_json::from_str(text).ok())
            }
            (None, None) => None,
        };
        let text = row.as_ref().map(|row| &row.text).or(served.as_ref().map(|served| &served.text));
        let blake3 = text.map(|text| drover_copy::text_digest(text).to_hex());
        let ended = served.as_ref().filter(|_| job.is_none());
        // Who looks does without it if the store cannot tell.
        let ends = job.as_ref().and_then(|_| self.0.look.foreseen_ends(&name).ok()).unwrap_or_default();
        Plan {
            foreseen_ms: ends.now,
            first_foreseen_ms: ends.first,
            blake3,
            name,
            project: served.as_ref().map_or_else(default_project, |row| row.project.clone()),
            state: state.into(),
            wanted,
            started_ms: row.as_ref().map(|row| row.started_ms).or(served.as_ref().map(|row| row.at_ms)),
            ended_ms: row.as_ref().and_then(|row| row.ended_ms),
            vms: Default::default(),
            exit: ended.and_then(|row| row.exit),
            error: ended.and_then(|row| row.error.clone()),
            advice: ended.and_then(|row| row.advice.clone()),
            problems: problems.and_then(|value| value.as_array().cloned()).unwrap_or_default(),
        }
    }

    /// Keeps what was ordered, before anything is done.
    fn want(&self, name: &str, wanted: Wanted, start: bool) -> Outcome<ServedRow> {
        let mut row = match wanted {
            Wanted::Run => self.row_to_resume(name)?,
            Wanted::Pause | Wanted::Cancel | Wanted::Nothing => self.row(name)?,
        };
        row.wanted = word(wanted).into();
        row.start |= start;
        if wanted == Wanted::Run {
            (row.exit, row.error, row.advice, row.problems) = (None, None, None, None);
        }
        self.0.store.put_served(&row).map_err(store_problem)?;
        Ok(row)
    }

    fn pause_plan(&self, name: &str) -> Outcome<Vec<String>> {
        match self.job(name) {
            Some(job) if matches!(job.stage(), Stage::Checking | Stage::Running) => {
                self.want(name, Wanted::Pause, false)?;
                job.set_stage(Stage::Pausing);
                job.stop.stop();
                Ok(Vec::new())
            }
            Some(job) => Err(wrong_state(name, job.stage().word(), "wait for its end")),
            None => Err(wrong_state(name, "not running", "only a plan that runs can be paused")),
        }
    }

    fn resume_plan(&self, name: &str, start: bool) -> Outcome<Vec<String>> {
        if let Some(job) = self.job(name) {
            return Err(wrong_state(name, job.stage().word(), "wait for its end"));
        }
        let plan = self.plan(name)?;
        match plan.state.as_str() {
            "done" => return Err(wrong_state(name, "done", "nothing is left to do")),
            "cancelled" => return Err(wrong_state(name, "cancelled", "submit it anew")),
            "running" => return Err(wrong_state(name, "run by another process", "wait for its end")),
            _ => {}
        }
        let row = self.want(name, Wanted::Run, start)?;
        self.begin(row, Work::Run(Others::LeftOut), false)?;
        Ok(Vec::new())
    }

    /// Gives single VMs up; what was begun of them is undone by the run of the plan, which goes on without them, or else by a thread
    /// of its own.
    fn give_up(&self, name: &str, state: &str, vms: &[String]) -> Outcome<Vec<String>> {
        let ask = || ask_give_up(&self.0.store, name, vms).map_err(|error| problem(&error.into()));
        match (self.job(name), state) {
            (_, "running") => ask(),
            (Some(_), state) => {
                Err(wrong_state(name, state, "wait until it runs or has ended, then cancel them"))
            }
            (None, "done" | "cancelled") => Err(wrong_state(name, state, "there is nothing to cancel")),
            (None, _) => {
                let asked = ask()?;
                let row = self.row(name)?;
                let row = ServedRow { exit: None, error: None, advice: None, problems: None, ..row };
                self.0.store.put_served(&row).map_err(store_problem)?;
                self.begin(row, Work::GiveUp(asked.clone()), false)?;
                Ok(asked)
            }
        }
    }

    /// Other limits, kept for the run of the plan, which heeds them at once, and for those after it.
    fn limit(&self, name: &str, limits: Option<&OrderedLimits>) -> Outcome<ChangedLimits> {
        let OrderedLimits { rate_limit, disks, vms_per_host } = limits.cloned().unwrap_or_default();
        let order = LimitsOrder::read(rate_limit.as_deref(), disks, vms_per_host).map_err(|why| {
            let advice = advice_on(&why);
            Problem::new(Kind::Refused, why).advise(advice)
        })?;
        let (before, after) =
            ask_limits(&self.0.store, name, &order).map_err(|error| problem(&error.into()))?;
        let changed = before.changes_to(&after);
        Ok(ChangedLimits { before: limit_values(&before), after: limit_values(&after), changed })
    }

    /// The VMs that an order names, those of the wave of a retry or a cancel among them.
    fn named(&self, plan: &str, order: &Order) -> Outcome<Vec<String>> {
        let names = [order.vm.as_slice(), &order.vms].concat();
        let of_wave = match order.order {
            OrderKind::Retry => wave_to_try_again,
            OrderKind::Cancel => wave_to_give_up,
            OrderKind::Cutover
            | OrderKind::Proceed
            | OrderKind::Pause
            | OrderKind::Resume
            | OrderKind::Limits => return Ok(names),
        };
        match order.wave.as_deref() {
            None => Ok(names),
            Some(_) if !names.is_empty() => {
                let text = "VMs and a wave are named";
                Err(Problem::new(Kind::BadRequest, text).advise("name one or the other"))
            }
            Some(wave) => of_wave(&self.0.store, plan, wave).map_err(|error| problem(&error.into())),
        }
    }

    fn cancel_order(&self, name: &str) -> Outcome<Vec<String>> {
        let plan = self.plan(name)?;
        match (self.job(name), plan.state.as_str()) {
            (_, "done" | "cancelled") => Err(wrong_state(name, &plan.state, "there is nothing to cancel")),
            (Some(job), _) if job.stage() == Stage::Cancelling => Ok(Vec::new()),
            (Some(job), _) => {
                self.want(name, Wanted::Cancel, false)?;
                job.set_stage(Stage::Cancelling);
                job.stop.stop();
                Ok(Vec::new())
            }
            (None, _) => {
                let row = self.want(name, Wanted::Cancel, false)?;
                self.begin(row, Work::Cancel, false)?;
                Ok(Vec::new())
            }
        }
    }
}

fn limit_values(limits: &LimitsInForce) -> LimitValues {
    LimitValues {
        rate_limit: limits.rate_limit.iter().map(DayLimit::text).collect(),
        disks: limits.disks,
        vms_per_host: limits.vms_per_host,
    }
}

fn wrong_state(name: &str, state: &str, advice: &str) -> Problem {
    Problem::new(Kind::Conflict, format!("plan '{name}' is {state}")).advise(advice)
}

#[cfg(test)]
mod tests {
    use drover_engine::VmState;

    #[test]
    fn the_api_has_the_states_of_vms_that_the_engine_has() {
        assert_eq!(drover_server::VM_STATES, VmState::ALL.map(VmState::word));
    }
}
