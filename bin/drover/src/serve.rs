//! The daemon: plans that are handed in are run by threads of this process, and go on after a restart.

mod job;
mod look;
mod operations;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_engine::{Clock, PlanState, ServedRow, Store, StoreError, SystemClock, is_running};
use drover_plan::Others;
use drover_server::{EventHub, Kind, Message, Operations, Problem, Submission, Wanted, default_project};

use crate::commands::plan::{PlanFile, has_problems, parse_quietly};
use crate::evidence::check_not_anothers;
use crate::exit::Failure;
use crate::policy::PlanPolicy;
use crate::run::file_of;
use job::{Job, Stage};

/// Plans that are run at once.
const PLANS_MAX: usize = 64;
/// How long an ending daemon waits for its plans to flush and stop, before it says that it still waits.
const WAIT_WORD: Duration = Duration::from_secs(30);

/// The daemon. Clones share all of it.
#[derive(Clone)]
pub struct Daemon(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    /// For runs.
    store: Store,
    /// For those who look, so that no run waits for them.
    look: Store,
    hub: EventHub,
    /// What plans may do here.
    policy: PlanPolicy,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    /// Held while an order is carried out.
    orders: Mutex<()>,
    ending: AtomicBool,
}

impl Daemon {
    /// A daemon for a state folder, whose lock the caller has.
    pub fn open(folder: &Path, policy: PlanPolicy, hub: EventHub) -> Result<Daemon, Failure> {
        let (store, look) = (Store::open(folder)?, Store::open(folder)?);
        let folder = folder.to_path_buf();
        let (jobs, orders, ending) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(Daemon(Arc::new(Inner { folder, store, look, hub, policy, jobs, orders, ending })))
    }

    /// Goes on with all plans that were to run when the last daemon ended; gives their names.
    pub fn go_on(&self) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for row in self.0.store.served()? {
            match wanted_of(&row.wanted) {
                Wanted::Run => self.begin(row.clone(), Stage::Checking, true),
                Wanted::Cancel if self.is_open(&row.name)? => {
                    self.begin(row.clone(), Stage::Cancelling, true)
                }
                Wanted::Cancel | Wanted::Pause | Wanted::Nothing => continue,
            }
            names.push(row.name);
        }
        Ok(names)
    }

    /// Whether a plan was begun and has not ended for good.
    fn is_open(&self, name: &str) -> Result<bool, StoreError> {
        let row = self.0.store.plan(name)?;
        Ok(row.is_some_and(|row| !matches!(row.state, PlanState::Done | PlanState::Cancelled)))
    }

    /// Stops all plans so that they can be gone on with, and waits for them.
    pub fn end(&self) {
        self.0.ending.store(true, Ordering::SeqCst);
        let jobs: Vec<Arc<Job>> = self.jobs().values().cloned().collect();
        jobs.iter().for_each(|job| job.stop.stop());
        let mut waited = Duration::ZERO;
        const LOOK: Duration = Duration::from_millis(50);
        while !self.jobs().is_empty() {
            std::thread::sleep(LOOK);
            waited += LOOK;
            if waited >= WAIT_WORD {
                let names: Vec<String> = self.jobs().keys().cloned().collect();
                crate::out::say(format_args!("still stopping: {}", names.join(", ")));
                waited = Duration::ZERO;
            }
        }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Job>>> {
        self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, name: &str) -> Option<Arc<Job>> {
        self.jobs().get(name).cloned()
    }

    fn is_ending(&self) -> bool {
        self.0.ending.load(Ordering::SeqCst)
    }

    /// Begins with a plan, if nothing is done with it already.
    fn begin(&self, row: ServedRow, stage: Stage, patient: bool) {
        let name = row.name.clone();
        let job = Arc::new(Job::new(row.project.clone(), stage));
        if self.jobs().insert(name.clone(), job.clone()).is_some() {
            // The caller holds the lock of orders and looked before.
            unreachable!("a plan is begun twice");
        }
        let daemon = self.clone();
        let others = match self.0.store.plan(&name) {
            Ok(Some(plan)) if !matches!(plan.state, PlanState::Done | PlanState::Cancelled) => {
                Others::LeftOut
            }
            _ => Others::Selected,
        };
        let run = move || daemon.run_job(row, &job, others, patient);
        let thread = std::thread::Builder::new().name(format!("plan {name}")).spawn(run);
        if let Err(error) = thread {
            self.jobs().remove(&name);
            crate::out::say(format_args!("error: plan {name}: no thread can be had: {error}"));
        }
        self.tell(&name);
    }

    /// Tells those who watch what became of a plan.
    fn tell(&self, name: &str) {
        if !self.0.hub.is_watched() {
            return;
        }
        // Trouble with the store shows itself to whoever asks for the plan.
        if let Ok(plan) = self.plan(name) {
            let data = serde_json::to_string(&plan).unwrap_or_default();
            self.0.hub.publish(Message { project: plan.project, plan: plan.name, event: "plan", data });
        }
    }

    /// The row of a plan; one that a command ran before there was a daemon gets one.
    fn row(&self, name: &str) -> Result<ServedRow, Problem> {
        if let Some(row) = self.0.look.served_plan(name).map_err(store_problem)? {
            return Ok(row);
        }
        let plan = self.0.look.plan(name).map_err(store_problem)?;
        let plan = plan.ok_or_else(|| no_plan(name))?;
        let at_ms = plan.started_ms;
        let file = file_of(&self.0.look, plan).map_err(|failure| problem(&failure))?;
        Ok(ServedRow {
            name: name.into(),
            project: default_project(),
            text: file.text,
            path: file.path,
            wanted: word(Wanted::Nothing).into(),
            by: "the command line".into(),
            at_ms,
            ..ServedRow::default()
        })
    }

    /// Reads a plan that is handed in.
    fn file(&self, submission: &Submission) -> Result<PlanFile, Problem> {
        let path = match &submission.path {
            Some(path) => PathBuf::from(path),
            None => self.0.folder.join("serve").join("plan.yaml"),
        };
        let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        let file = parse_quietly(submission.text.clone(), path, folder).map_err(|problems| {
            let mut told = problem(&has_problems(problems.len()));
            told.problems = problems.iter().filter_map(|it| serde_json::to_value(it).ok()).collect();
            told
        })?;
        self.0.policy.check_plan(&file.plan).map_err(|failure| problem(&failure))?;
        Ok(file)
    }

    /// Refuses a plan whose name another has that is not over.
    fn check_name(&self, file: &PlanFile, submission: &Submission) -> Result<(), Problem> {
        let name = &file.plan.name;
        if self.job(name).is_some() {
            let text = format!("plan '{name}' runs already");
            return Err(Problem::new(Kind::Conflict, text).advise("pause or cancel it first"));
        }
        let earlier = self.0.look.served_plan(name).map_err(store_problem)?;
        let is_open = self.is_open(name).map_err(store_problem)?;
        if let Some(earlier) = earlier.filter(|_| is_open)
            && earlier.project != submission.project
        {
            return Err(Problem::new(Kind::Conflict, format!("there is a plan '{name}' of another project"))
                .advise("give this one another `name`"));
        }
        match is_running(&self.0.look, name) {
            Ok(true) => {
                return Err(Problem::new(Kind::Conflict, format!("another process runs plan '{name}'")));
            }
            Ok(false) => {}
            Err(error) => return Err(problem(&error.into())),
        }
        if submission.path.is_some()
            && let Some(refused) = check_not_anothers(&self.0.look, file).map_err(store_problem)?
        {
            return Err(problem(&refused));
        }
        if self.jobs().len() >= PLANS_MAX {
            let text = format!("{PLANS_MAX} plans run at once already");
            return Err(Problem::new(Kind::TooMany, text).retry_after(60));
        }
        Ok(())
    }
}

/// A failure of a command, as the API tells it.
fn problem(failure: &Failure) -> Problem {
    Problem::of_exit(failure.exit as u8, failure.message.clone(), failure.advice.clone())
}

fn store_problem(error: StoreError) -> Problem {
    problem(&Failure::from(error))
}

fn no_plan(name: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no plan '{name}'"))
        .advise("see /v1/plans for those there are")
}

fn word(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::Run => "run",
        Wanted::Pause => "pause",
        Wanted::Cancel => "cancel",
        Wanted::Nothing => "nothing",
    }
}

fn wanted_of(word: &str) -> Wanted {
    match word {
        "run" => Wanted::Run,
        "pause" => Wanted::Pause,
        "cancel" => Wanted::Cancel,
        _ => Wanted::Nothing,
    }
}

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    SystemClock.now_ms()
}
