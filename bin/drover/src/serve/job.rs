//! A plan at work: checked, run, stopped or given up by a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::limits::Sharers;
use drover_engine::{Board, Event, GivenUp, Observer, RunOutcome, ServedRow};
use drover_mover::StopSignal;
use drover_plan::{Others, PlannedVm, Problem};
use drover_server::{EventHub, Message};
use drover_view::{RunNow, RunWatch};
use serde_json::json;

use super::Daemon;
use super::decide::wanted_after;
use crate::exit::{Exit, Failure};
use crate::plan_file::{has_problems, parse_quietly};
use crate::run::{Prepared, Setting, Words, exit_of, give_up, give_up_ordered};

/// After a restart a source that cannot be reached is asked again: so often, with so long between.
const PREPARE_TRIES_MAX: u32 = 20;
const PREPARE_PAUSE: Duration = Duration::from_secs(30);

/// What is done with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its source is asked.
    Checking,
    /// Its VMs move.
    Running,
    /// It stops, to be gone on with later.
    Pausing,
    /// What was begun is undone.
    Cancelling,
    /// What was begun of single VMs is undone, while nothing runs it.
    GivingUp,
}

impl Stage {
    pub fn word(self) -> &'static str {
        match self {
            Stage::Checking => "checking",
            Stage::Running => "running",
            Stage::Pausing => "pausing",
            Stage::Cancelling | Stage::GivingUp => "cancelling",
        }
    }
}

/// What a plan's thread begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// To run it.
    Run(Others),
    /// To undo it.
    Cancel,
    /// To undo what was begun of VMs that are given up by order: by the order that names these, and by those before.
    GiveUp(Vec<String>),
}

impl Work {
    pub fn stage(&self) -> Stage {
        match self {
            Work::Run(_) => Stage::Checking,
            Work::Cancel => Stage::Cancelling,
            Work::GiveUp(_) => Stage::GivingUp,
        }
    }
}

/// A plan at work.
pub struct Job {
    pub project: String,
    pub stop: StopSignal,
    stage: Mutex<Stage>,
    board: Board,
    watch: Mutex<RunWatch>,
    problems: Mutex<Vec<Problem>>,
    /// Its source could not be asked after a restart.
    unprepared: AtomicBool,
}

impl Job {
    pub fn new(project: String, stage: Stage) -> Job {
        let board = Board::default();
        Job {
            project,
            stop: StopSignal::default(),
            stage: Mutex::new(stage),
            watch: Mutex::new(RunWatch::new(board.clone())),
            board,
            problems: Mutex::default(),
            unprepared: AtomicBool::new(false),
        }
    }

    pub fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_stage(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Enters a stage unless it is being stopped meanwhile.
    fn go(&self, stage: Stage) {
        let mut now = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*now, Stage::Pausing | Stage::Cancelling) {
            *now = stage;
        }
    }

    pub fn look(&self, disks_max: usize) -> RunNow {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).look(Instant::now(), disks_max)
    }

    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Words for Job {
    fn say(&self, line: &str) {
        crate::out::say(line);
    }

    fn problems(&self, _: &Path, problems: &[Problem], _: &[PlannedVm]) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(problems);
    }

    fn site(&self, summary: &str) {
        crate::out::say(summary);
    }
}

/// Passes what happens in a run on to those who watch.
struct Teller<'a> {
    hub: &'a EventHub,
    project: &'a str,
    plan: &'a str,
}

impl Observer for Teller<'_> {
    fn event(&self, event: &Event) {
        if !self.hub.is_watched() {
            return;
        }
        let data = json!({ "plan": self.plan, "at_ms": super::now_ms(), "event": event }).to_string();
        let (project, plan) = (self.project.to_string(), self.plan.to_string());
        self.hub.publish(Message { project, plan, event: "event", data });
    }
}

impl Daemon {
    /// The life of a job's thread.
    pub(super) fn run_job(&self, row: ServedRow, job: &Job, work: &Work, patient: bool) {
        let name = row.name.clone();
        let mut ended = match work {
            Work::Cancel => self.guarded(|| self.patiently(&name, job, patient, || self.cancel_plan(&name))),
            Work::GiveUp(named) => self.guarded(|| self.cancel_vms(&name, named)),
            Work::Run(others) => self.guarded(|| self.run_plan(&row, job, *others, patient)),
        };
        let mut gave_up = *work == Work::Cancel;
        loop {
            let orders = self.orders();
            if gave_up || job.stage() != Stage::Cancelling {
                if let Err(failure) = &ended {
                    tell_failure(&name, job, failure);
                }
                if let Err(error) = self.keep_end(&name, job, ended) {
                    crate::out::say(&error);
                }
                self.jobs().remove(&name);
                break;
            }
            // It was ordered while the plan ran, or in the moment since.
            drop(orders);
            ended = self.guarded(|| self.cancel_plan(&name));
            gave_up = true;
        }
        self.tell(&name);
    }

    fn guarded(&self, work: impl FnOnce() -> Result<Exit, Failure>) -> Result<Exit, Failure> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(Failure::new(Exit::Internal, "internal error: the plan's thread ended")
                .advise("report it; resume the plan"))
        })
    }

    fn run_plan(&self, row: &ServedRow, job: &Job, others: Others, patient: bool) -> Result<Exit, Failure> {
        let setting = Setting {
            store: &self.0.store,
            state: Some(&self.0.folder),
            stop: &job.stop,
            words: job,
            policy: Some(&self.0.policy),
            schedule: Some(&self.0.schedule),
            memory: Some(&self.0.memory),
            reads: self.0.reads.as_ref(),
            meant: None,
            sharers: &Sharers::default(),
            leave: &|| Ok(()),
        };
        let prepare = || {
            let folder = row.path.parent().unwrap_or(Path::new("/"));
            let parsed = parse_quietly(row.text.clone(), row.path.clone(), folder.to_path_buf());
            let file = parsed.map_err(|problems| {
                Words::problems(job, &row.path, &problems, &[]);
                has_problems(problems.len())
            })?;
            Prepared::new(file, others, row.start, &setting)
        };
        let prepared = self.patiently(&row.name, job, patient, prepare);
        job.unprepared.store(patient && prepared.is_err(), Ordering::SeqCst);
        let prepared = prepared?;
        job.go(Stage::Running);
        self.tell(&row.name);
        let teller = Teller { hub: &self.0.hub, project: &row.project, plan: &row.name };
        let outcome: RunOutcome = prepared.run(&setting, &teller, &job.board)?;
        Ok(exit_of(&outcome, job.stop.is_set()))
    }

    /// Does what asks other machines, again and again after a restart: they may have been away together with this one.
    fn patiently<T>(
        &self,
        name: &str,
        job: &Job,
        patient: bool,
        mut work: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        for attempt in 1..PREPARE_TRIES_MAX {
            match work() {
                Err(failure) if patient && failure.exit == Exit::Connection => {
                    crate::out::say(format_args!("plan {name}: {} (try {attempt})", failure.message));
                    self.pause(job);
                    if job.stop.is_set() {
                        return Err(failure);
                    }
                    job.problems.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                result => return result,
            }
        }
        work()
    }

    fn pause(&self, job: &Job) {
        let until = Instant::now() + PREPARE_PAUSE;
        while Instant::now() < until && !job.stop.is_set() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn cancel_plan(&self, name: &str) -> Result<Exit, Failure> {
        let Some(plan) = self.open_plan(name)? else {
            return Ok(Exit::Interrupted);
        };
        all_undone(name, &give_up(plan, &self.0.store, Some(&self.0.folder))?, None)
    }

    fn cancel_vms(&self, name: &str, named: &[String]) -> Result<Exit, Failure> {
        let Some(plan) = self.open_plan(name)? else {
            return Ok(Exit::Interrupted);
        };
        all_undone(name, &give_up_ordered(plan, &self.0.store, Some(&self.0.folder))?, Some(named))
    }

    /// Keeps how a plan's thread ended, and whether the next daemon goes on with it.
    fn keep_end(&self, name: &str, job: &Job, ended: Result<Exit, Failure>) -> Result<(), Failure> {
        let Some(mut row) = self.0.store.served_plan(name)? else { return Ok(()) };
        let (exit, error, advice) = match ended {
            Ok(exit) => (exit, None, None),
            Err(failure) => (failure.exit, Some(failure.message), failure.advice),
        };
        let unprepared = job.unprepared.load(Ordering::SeqCst);
        row.wanted = wanted_after(&row.wanted, exit, self.is_ending(), unprepared).into();
        (row.exit, row.error, row.advice) = (Some(exit as u8), error, advice);
        row.problems = serde_json::to_string(&job.problems()).ok();
        Ok(self.0.store.put_served(&row)?)
    }
}

/// How it ends that something of a plan was given up: these VMs, or all.
fn all_undone(name: &str, given_up: &GivenUp, named: Option<&[String]>) -> Result<Exit, Failure> {
    given_up.notes.iter().for_each(|note| crate::out::say(format_args!("plan {name}: note: {note}")));
    if !given_up.fails(named) {
        for left in &given_up.left {
            crate::out::say(format_args!("plan {name}: left behind before: {left}"));
        }
        return Ok(Exit::Interrupted);
    }
    let left = given_up.left.join("; ");
    Err(Failure::new(Exit::Source, format!("not everything could be undone; left behind: {left}"))
        .advise("mend the cause, then cancel again"))
}

/// Tells on the console why a plan does not go on. How VMs fail is told by its status alone.
fn tell_failure(name: &str, job: &Job, failure: &Failure) {
    let errors: Vec<Problem> = job.problems().into_iter().filter(Problem::is_error).collect();
    crate::out::problems(Path::new(name), &errors);
    crate::out::say(format_args!("plan {name}: {failure}"));
}
