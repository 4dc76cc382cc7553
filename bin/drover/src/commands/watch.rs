//! `drover status --watch`: follows plans that another process runs, or a daemon, by what is recorded of them.

use std::time::Duration;

use drover_engine::{Clock, PlanRow, Store, SystemClock};
use drover_mover::StopSignal;
use drover_server::{Page, Plan};
use drover_view::{Followed, InPlace, PlanProgress, can_move, now_utc, time_now};
use serde_json::{Value, json};

use super::distant::PLANS_PAGE;
use super::migrate::{open_store_to_read, plan_name, state_option, unknown_plan};
use super::show::check_filter;
use crate::cli::{RunArgs, StatusArgs};
use crate::exit::{Exit, Failure};
use crate::remote::{Remote, part};
use crate::run::exit_recorded;
use crate::signals::stop_on_signals;

/// How often the plans are looked at. A run records where it is twice a second.
const EVERY: Duration = Duration::from_secs(1);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Where the plans are asked for.
trait Plans {
    /// A plan.
    fn one(&self, name: &str) -> Result<PlanProgress, Failure>;
    /// The names of those that run now.
    fn running(&self) -> Result<Vec<String>, Failure>;
    /// How a plan ended, as `drover migrate` tells it.
    fn exit(&self, plan: &PlanProgress) -> Result<Exit, Failure>;
    /// What comes after the end of a plan.
    fn next(&self, plan: &PlanProgress) -> Option<String>;
}

/// Follows plans of the state folder.
pub fn here(args: &StatusArgs) -> Result<Exit, Failure> {
    follow(&Here { args: &args.run, state: open_store_to_read(&args.run)? }, args)
}

/// Follows plans of a daemon.
pub fn there(daemon: &Remote, args: &StatusArgs) -> Result<Exit, Failure> {
    follow(&There(daemon), args)
}

fn follow(plans: &dyn Plans, args: &StatusArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let named = args.plan.as_deref().map(plan_name).transpose()?;
    let mut names: Vec<String> = named.iter().cloned().collect();
    let mut shown = Shown::new(&args.run);
    let filter = args.filter.filter();
    let mut is_unchecked = true;
    loop {
        if named.is_none() {
            let new: Vec<_> = plans.running()?.into_iter().filter(|name| !names.contains(name)).collect();
            names.extend(new);
        }
        let mut found = names.iter().map(|name| plans.one(name)).collect::<Result<Vec<_>, _>>()?;
        for plan in &mut found {
            // One that was not begun has no VMs yet.
            if is_unchecked && !plan.vms.is_empty() {
                let known = plan.vms.iter().map(|vm| (vm.name.as_str(), vm.wave.as_deref()));
                check_filter(&filter, &plan.plan, known)?;
                is_unchecked = false;
            }
            plan.vms.retain(|vm| {
                let (name, wave, state) = vm.key();
                filter.fits(name, wave, state)
            });
        }
        let over = !found.iter().any(PlanProgress::runs);
        shown.show(&found);
        if over {
            shown.end(&found, plans);
            let exits = found.iter().map(|plan| plans.exit(plan)).collect::<Result<Vec<_>, _>>()?;
            return Ok(exit_of_all(&exits));
        }
        wait(&stop);
        if stop.is_set() {
            return Ok(Exit::Interrupted);
        }
    }
}

/// How it ends if plans ended so.
fn exit_of_all(exits: &[Exit]) -> Exit {
    let mut bad = exits.iter().filter(|exit| **exit != Exit::Success);
    match bad.next() {
        None => Exit::Success,
        Some(first) if bad.all(|exit| exit == first) => *first,
        Some(_) => Exit::Mixed,
    }
}

fn wait(stop: &StopSignal) {
    let looks = EVERY.as_millis() / LOOK.as_millis();
    (0..looks).take_while(|_| !stop.is_set()).for_each(|_| std::thread::sleep(LOOK));
}

/// How it is shown: in place on a terminal; as lines of what is new; as an object a line.
struct Shown {
    screen: Option<InPlace<Followed>>,
    json: bool,
    quiet: bool,
    last: Vec<PlanProgress>,
}

impl Shown {
    fn new(args: &RunArgs) -> Shown {
        let is_screen = !args.json && !args.quiet && can_move(&std::io::stdout());
        let screen = is_screen.then(InPlace::start_on_output);
        Shown { screen, json: args.json, quiet: args.quiet, last: Vec::new() }
    }

    fn show(&mut self, found: &[PlanProgress]) {
        let last = std::mem::replace(&mut self.last, found.to_vec());
        let before = |plan: &PlanProgress| last.iter().find(|it| it.plan == plan.plan);
        match &self.screen {
            Some(screen) => screen.show(Followed(found.to_vec())),
            None if self.json => found.iter().for_each(|plan| crate::out::json(object(plan, before(plan)))),
            None if self.quiet => {}
            None => found
                .iter()
                .flat_map(|plan| plan.changes(before(plan)))
                .for_each(|line| crate::out::line(format_args!("{}  {line}", time_now()))),
        }
    }

    /// Says how each plan ended and what comes then.
    fn end(self, found: &[PlanProgress], plans: &dyn Plans) {
        let on_screen = self.screen.is_some();
        // What moved leaves the terminal.
        drop(self.screen);
        if self.json || self.quiet {
            return;
        }
        if found.is_empty() {
            return crate::out::line("no plan runs; see `drover status`");
        }
        for plan in found {
            if on_screen {
                crate::out::line(plan.line());
            }
            if let Some(next) = plans.next(plan) {
                crate::out::line(format_args!("next: {next}"));
            }
        }
    }
}

/// A look at a plan as an object: of its VMs those that are not as they were.
fn object(plan: &PlanProgress, before: Option<&PlanProgress>) -> Value {
    let mut value = json!({ "time": now_utc(), "event": "status" });
    if let (Value::Object(value), Value::Object(fields)) = (&mut value, json!(plan.news(before))) {
        value.extend(fields);
    }
    value
}

fn next_command(plan: &PlanProgress, more: &str) -> Option<String> {
    let command = match plan.state.as_str() {
        "done" => "report",
        "incomplete" | "interrupted" | "paused" => "resume",
        _ => return None,
    };
    Some(format!("drover {command} {}{more}", plan.plan))
}

/// The state folder.
struct Here<'a> {
    args: &'a RunArgs,
    state: Store,
}

impl Here<'_> {
    fn look<T>(&self, look: impl Fn(&Store) -> Result<T, Failure>) -> Result<T, Failure> {
        // A copy is as old as it is.
        match self.state.is_copy() {
            true => look(&open_store_to_read(self.args)?),
            false => look(&self.state),
        }
    }
}

impl Plans for Here<'_> {
    fn one(&self, name: &str) -> Result<PlanProgress, Failure> {
        self.look(|store| {
            let plan = store.plan(name)?.ok_or_else(|| unknown_plan(store, name))?;
            progress_of(store, &plan)
        })
    }

    fn running(&self) -> Result<Vec<String>, Failure> {
        let is_at_work = |plan: &PlanRow| drover_view::runs(plan);
        self.look(|store| Ok(store.plans()?.into_iter().filter(is_at_work).map(|plan| plan.name).collect()))
    }

    fn exit(&self, plan: &PlanProgress) -> Result<Exit, Failure> {
        self.look(|store| {
            let row = store.plan(&plan.plan)?.ok_or_else(|| unknown_plan(store, &plan.plan))?;
            Ok(exit_recorded(row.state, &store.vms(&plan.plan)?))
        })
    }

    fn next(&self, plan: &PlanProgress) -> Option<String> {
        next_command(plan, &state_option(self.args))
    }
}

/// How far a plan of a store is.
pub fn progress_of(store: &Store, plan: &PlanRow) -> Result<PlanProgress, Failure> {
    let (vms, disks) = (store.vms(&plan.name)?, store.disks(&plan.name)?);
    Ok(PlanProgress::new(plan, &vms, &disks, &store.progress(&plan.name)?, SystemClock.now_ms()))
}

/// A daemon.
struct There<'a>(&'a Remote);

impl Plans for There<'_> {
    fn one(&self, name: &str) -> Result<PlanProgress, Failure> {
        let path = format!("/v1/plans/{}", part(name));
        let plan: Plan = self.0.get(&path)?;
        let status: Value = match self.0.get(&format!("{path}/status")) {
            // One that it did not begin yet has none.
            Err(failure) if failure.exit == Exit::Plan => {
                return Ok(PlanProgress { plan: plan.name, state: plan.state, ..PlanProgress::default() });
            }
            status => status?,
        };
        let mut progress: PlanProgress =
            serde_json::from_value(status["progress"].clone()).map_err(|error| {
                let what = format!("the daemon at {} does not tell how far a plan is: {error}", self.0.url);
                Failure::new(Exit::Connection, what).advise("it is of an earlier version: update it")
            })?;
        // It knows more than its state does: what is ordered, what it waits for.
        progress.state = plan.state;
        Ok(progress)
    }

    fn running(&self) -> Result<Vec<String>, Failure> {
        let page: Page<Plan> = self.0.get(&format!("/v1/plans?limit={PLANS_PAGE}"))?;
        let is_at_work =
            |plan: &Plan| PlanProgress { state: plan.state.clone(), ..Default::default() }.runs();
        Ok(page.items.into_iter().filter(is_at_work).map(|plan| plan.name).collect())
    }

    fn exit(&self, plan: &PlanProgress) -> Result<Exit, Failure> {
        let plan: Plan = self.0.get(&format!("/v1/plans/{}", part(&plan.plan)))?;
        Ok(match (plan.state.as_str(), plan.exit) {
            ("done", _) => Exit::Success,
            ("refused", None) => Exit::Plan,
            // Somebody gave it up, or paused it before it had run.
            ("cancelled", _) | (_, None) => Exit::Interrupted,
            (_, Some(code)) => Exit::of_code(code),
        })
    }

    fn next(&self, plan: &PlanProgress) -> Option<String> {
        next_command(plan, &format!(" --server {}", self.0.url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_next_depends_on_how_a_plan_ended() {
        let next = |state: &str| {
            let plan = PlanProgress { plan: "web".into(), state: state.into(), ..PlanProgress::default() };
            next_command(&plan, " --state s")
        };
        assert_eq!(next("done").as_deref(), Some("drover report web --state s"));
        assert_eq!(next("interrupted").as_deref(), Some("drover resume web --state s"));
        assert_eq!(next("cancelled"), None);
    }

    #[test]
    fn several_plans_end_as_the_one_that_went_wrong_or_mixed() {
        let of = |exits: &[Exit]| exit_of_all(exits);
        assert_eq!((of(&[]), of(&[Exit::Success; 2])), (Exit::Success, Exit::Success));
        assert_eq!(of(&[Exit::Success, Exit::Source, Exit::Source]), Exit::Source);
        assert_eq!(of(&[Exit::Target, Exit::Success, Exit::Source]), Exit::Mixed);
    }

    #[test]
    fn an_object_has_the_figures_beside_its_time() {
        let plan = PlanProgress { plan: "web".into(), state: "running".into(), ..PlanProgress::default() };
        let told = object(&plan, None);
        assert_eq!(
            (&told["event"], &told["plan"], &told["percent"]),
            (&json!("status"), &json!("web"), &json!(0))
        );
        assert!(told["time"].is_string() && told["vms"].is_array(), "{told}");
    }
}
