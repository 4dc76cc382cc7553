//! A plan at work: checked, run, stopped or given up by a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_engine::{Board, Event, Observer, RunOutcome, ServedRow};
use drover_mover::StopSignal;
use drover_plan::{Others, Problem};
use drover_server::{EventHub, Message, Wanted};
use drover_view::{RunNow, RunWatch};
use serde_json::json;

use super::{Daemon, wanted_of, word};
use crate::commands::plan::{has_problems, parse_quietly};
use crate::exit::{Exit, Failure};
use crate::run::{Prepared, Setting, Words, exit_of, give_up};

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
}

impl Stage {
    pub fn word(self) -> &'static str {
        match self {
            Stage::Checking => "checking",
            Stage::Running => "running",
            Stage::Pausing => "pausing",
            Stage::Cancelling => "cancelling",
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

    fn problems(&self, _: &Path, problems: &[Problem]) {
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
    pub(super) fn run_job(&self, row: ServedRow, job: &Job, others: Others, patient: bool) {
        let name = row.name.clone();
        let mut ended = match job.stage() {
            Stage::Cancelling => self.guarded(|| self.cancel_plan(&name)),
            _ => self.guarded(|| self.run_plan(&row, job, others, patient)),
        };
        let mut gave_up = job.stage() == Stage::Cancelling && row.wanted == word(Wanted::Cancel);
        loop {
            let orders = self.orders();
            if gave_up || job.stage() != Stage::Cancelling {
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
            Err(Failure::new(Exit::Internal, "a defect of drover ended the plan's thread")
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
        };
        let prepared = self.prepare(row, job, others, patient, &setting)?;
        job.go(Stage::Running);
        self.tell(&row.name);
        let teller = Teller { hub: &self.0.hub, project: &row.project, plan: &row.name };
        let outcome: RunOutcome = prepared.run(&setting, &teller, &job.board)?;
        Ok(exit_of(&outcome, job.stop.is_set()))
    }

    fn prepare(
        &self,
        row: &ServedRow,
        job: &Job,
        others: Others,
        patient: bool,
        setting: &Setting<'_>,
    ) -> Result<Prepared, Failure> {
        let folder = row.path.parent().unwrap_or(Path::new("/"));
        for attempt in 1.. {
            let file = parse_quietly(row.text.clone(), row.path.clone(), folder.to_path_buf()).map_err(
                |problems| {
                    Words::problems(job, &row.path, &problems);
                    has_problems(problems.len())
                },
            )?;
            match Prepared::new(file, others, row.start, setting) {
                Err(failure)
                    if patient && failure.exit == Exit::Connection && attempt < PREPARE_TRIES_MAX =>
                {
                    crate::out::say(format_args!("plan {}: {} (try {attempt})", row.name, failure.message));
                    self.pause(job);
                    if job.stop.is_set() {
                        return Err(failure);
                    }
                    job.problems.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                result => return result,
            }
        }
        unreachable!("the last try gives its result")
    }

    fn pause(&self, job: &Job) {
        let until = Instant::now() + PREPARE_PAUSE;
        while Instant::now() < until && !job.stop.is_set() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn cancel_plan(&self, name: &str) -> Result<Exit, Failure> {
        let Some(plan) = self.0.store.plan(name)?.filter(|_| self.is_open(name).unwrap_or(true)) else {
            return Ok(Exit::Interrupted);
        };
        let given_up = give_up(plan, &self.0.store, Some(&self.0.folder))?;
        given_up.notes.iter().for_each(|note| crate::out::say(format_args!("plan {name}: note: {note}")));
        if given_up.left.is_empty() {
            return Ok(Exit::Interrupted);
        }
        let left = given_up.left.join("; ");
        Err(Failure::new(Exit::Source, format!("not everything could be undone; left behind: {left}"))
            .advise("mend the cause, then cancel again"))
    }

    /// Keeps how a plan's thread ended, and whether the next daemon goes on with it.
    fn keep_end(&self, name: &str, job: &Job, ended: Result<Exit, Failure>) -> Result<(), Failure> {
        let Some(mut row) = self.0.store.served_plan(name)? else { return Ok(()) };
        let ends_with_daemon = self.is_ending() && wanted_of(&row.wanted) == Wanted::Run;
        if wanted_of(&row.wanted) == Wanted::Run && !ends_with_daemon {
            row.wanted = word(Wanted::Nothing).into();
        }
        let (exit, error, advice) = match ended {
            Ok(exit) => (exit, None, None),
            Err(failure) => (failure.exit, Some(failure.message), failure.advice),
        };
        (row.exit, row.error, row.advice) = (Some(exit as u8), error, advice);
        row.problems = serde_json::to_string(&job.problems()).ok();
        Ok(self.0.store.put_served(&row)?)
    }
}
