//! The daemon: plans that are handed in are run by threads of this process, and go on after a restart.

mod decide;
mod job;
mod look;
mod oidc;
mod operations;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_engine::{
    Clock, ForecastError, PlanRow, Schedule, ServedRow, Store, StoreError, SystemClock, is_running,
};
use drover_landing::PlanPolicy;
use drover_mover::MemoryBudget;
use drover_plan::Others;
use drover_schedule::Budgets;
use drover_server::{EventHub, Kind, Message, Operations, Problem, Submission, Wanted, default_project};
use drover_source::SharedReads;

use crate::evidence::check_not_anothers;
use crate::exit::{Exit, Failure};
use crate::plan_file::{PlanFile, has_problems, parse_quietly};
use crate::run::file_of;
use decide::{Step, is_over, owner, step, wanted_after, word};
use job::{Job, Work};

pub use oidc::OidcSettings;

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
    /// All plans stand in one order, and share its budgets.
    schedule: Arc<Schedule>,
    /// Their buffer memory together.
    memory: MemoryBudget,
    /// What they may read of their sources together.
    reads: Option<SharedReads>,
    /// What plans may do here.
    policy: PlanPolicy,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    /// By plan: when it was done, and how far its forecast was off.
    errors: Mutex<BTreeMap<String, (i64, Option<ForecastError>)>>,
    /// Held while an order is carried out.
    orders: Mutex<()>,
    ending: AtomicBool,
}

impl Daemon {
    /// A daemon for a state folder, whose lock the caller has.
    pub fn open(
        folder: &Path,
        policy: PlanPolicy,
        (budgets, memory, reads): (Budgets, MemoryBudget, Option<SharedReads>),
        hub: EventHub,
    ) -> Result<Daemon, Failure> {
        let (store, look) = (Store::open(folder)?, Store::open(folder)?);
        let schedule = Schedule::of_state(budgets, folder).map_err(|error| {
            let what = format!("{}, by which processes share budgets: {error}", folder.display());
            Failure::new(Exit::State, what).advise("see that the user of the daemon may write there")
        })?;
        let schedule = Arc::new(schedule);
        let folder = folder.to_path_buf();
        let (jobs, errors) = (Mutex::default(), Mutex::default());
        let (orders, ending) = (Mutex::default(), AtomicBool::new(false));
        Ok(Daemon(Arc::new(Inner {
            folder,
            store,
            look,
            hub,
            schedule,
            memory,
            reads,
            policy,
            jobs,
            errors,
            orders,
            ending,
        })))
    }

    /// Goes on with all plans that were to run when the last daemon ended; gives their names. No order is carried out meanwhile:
    /// the caller holds `orders`, from before anybody could give one.
    pub fn go_on(&self, _orders: &MutexGuard<'_, ()>) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for row in self.0.store.served()? {
            let name = row.name.clone();
            let began = match step(&row, self.0.store.plan(&name)?.as_ref()) {
                Step::Run(others) => {
                    let wanted = word(Wanted::Run).into();
                    let row =
                        ServedRow { wanted, exit: None, error: None, advice: None, problems: None, ..row };
                    self.0.store.put_served(&row)?;
                    self.begin(row, Work::Run(others), true)
                }
                Step::Cancel => self.begin(row, Work::Cancel, true),
                Step::TellHalfPaused => {
                    self.tell_half_paused(row)?;
                    continue;
                }
                Step::Leave => continue,
            };
            match began {
                Ok(()) => names.push(name),
                Err(problem) => crate::out::say(format_args!("error: plan {name}: {}", problem.detail)),
            }
        }
        Ok(names)
    }

    /// Says that a plan was not paused as ordered, where those who look see it.
    fn tell_half_paused(&self, row: ServedRow) -> Result<(), StoreError> {
        let text =
            "the daemon was killed while the plan was to pause: VMs that drover shut down may be off still";
        let advice = "resume the plan, or cancel it to have its VMs as they were";
        crate::out::say(format_args!("warning: plan {}: {text}; {advice}", row.name));
        let (exit, error, advice) = (Some(Exit::Interrupted as u8), Some(text.into()), Some(advice.into()));
        self.0.store.put_served(&ServedRow { exit, error, advice, ..row })
    }

    /// A plan that was begun and has not ended for good.
    fn open_plan(&self, name: &str) -> Result<Option<PlanRow>, StoreError> {
        Ok(self.0.store.plan(name)?.filter(|row| !is_over(row)))
    }

    /// Stops all plans so that they can be gone on with, and waits for them.
    pub fn end(&self) {
        let jobs: Vec<Arc<Job>> = {
            // An order that is being carried out may begin with one more.
            let _orders = self.orders();
            self.0.ending.store(true, Ordering::SeqCst);
            self.jobs().values().cloned().collect()
        };
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

    /// Begins with a plan, if nothing is done with it already. The caller holds `orders`.
    fn begin(&self, row: ServedRow, work: Work, patient: bool) -> Result<(), Problem> {
        let name = row.name.clone();
        let job = Arc::new(Job::new(row.project.clone(), work.stage()));
        match self.jobs().entry(name.clone()) {
            Entry::Occupied(_) => {
                let text = format!("something is done with plan '{name}' already");
                return Err(Problem::new(Kind::Conflict, text).advise("wait for its end"));
            }
            Entry::Vacant(place) => place.insert(job.clone()),
        };
        let (daemon, served) = (self.clone(), row.clone());
        let run = move || daemon.run_job(served, &job, &work, patient);
        let thread = std::thread::Builder::new().name(format!("plan {name}")).spawn(run);
        if let Err(error) = thread {
            self.jobs().remove(&name);
            let text = format!("plan '{name}': no thread can be had: {error}");
            let wanted = wanted_after(&row.wanted, Exit::Internal, false, false).to_string();
            let row =
                ServedRow { wanted, exit: Some(Exit::Internal as u8), error: Some(text.clone()), ..row };
            self.0.store.put_served(&row).map_err(store_problem)?;
            return Err(Problem::new(Kind::Unavailable, text).retry_after(60));
        }
        self.tell(&name);
        Ok(())
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

    /// The row to go on with: what was begun and has not ended goes on as it was begun, whatever was handed in and refused since.
    fn row_to_resume(&self, name: &str) -> Result<ServedRow, Problem> {
        let row = self.row(name)?;
        let Some(plan) = self.open_plan(name).map_err(store_problem)? else { return Ok(row) };
        if plan.text == row.text && row.path.parent() == Some(&plan.folder) {
            return Ok(row);
        }
        let begun = drover_engine::begun(&self.0.look, name, Others::LeftOut).map_err(store_problem)?;
        let start = !begun.is_empty() && begun.iter().all(|it| it.planned.start);
        let file = file_of(&self.0.look, plan).map_err(|failure| problem(&failure))?;
        Ok(ServedRow { text: file.text, path: file.path, start, ..row })
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
        self.0.policy.check_plan(&file.plan).map_err(|error| problem(&Failure::from(error)))?;
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
        let begun = self.0.look.plan(name).map_err(store_problem)?;
        if owner(earlier.as_ref(), begun.as_ref()).is_some_and(|owner| owner != submission.project) {
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

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    SystemClock.now_ms()
}
