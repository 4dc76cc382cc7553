//! `drover migrate`, `resume` and `cancel`.

use std::path::Path;

use drover_engine::{Board, PlanState, RunOutcome, Store, StoreError};
use drover_plan::{Others, Problem};
use drover_view::{Display, DisplayMode, clean};

use crate::cli::{MigrateArgs, NamedArgs, ResumeArgs, RunArgs};
use crate::evidence::check_not_anothers;
use crate::exit::{Exit, Failure};
use crate::limits::Sharers;
use crate::own::OwnedStore;
use crate::plan_file::{self, PlanFile};
use crate::run::{Prepared, Setting, Words, check_not_given_up, exit_of, file_of, give_up};
use crate::signals::stop_on_signals;
use crate::state::state_folder;

/// Runs a plan file.
pub fn migrate(args: &MigrateArgs) -> Result<Exit, Failure> {
    let file = plan_file::read(&args.plan)?;
    let store = open_store(&args.run)?;
    if let Some(refused) = check_not_anothers(&store, &file)? {
        return Err(refused);
    }
    drop(store);
    run(file, Others::Selected, args.start, &args.run)
}

/// Goes on with a plan, as it was when it was begun.
pub fn resume(args: &ResumeArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    if row.state == PlanState::Done {
        crate::out::say(format_args!("plan {name} is done; nothing is left to do"));
        crate::out::next(&args.run, format_args!("drover report {name}{}", state_option(&args.run)));
        return Ok(Exit::Success);
    }
    check_not_given_up(&row)?;
    let file = file_of(&store, row)?;
    drop(store);
    run(file, Others::LeftOut, args.start, &args.run)
}

/// Runs a plan, or goes on with it: with the VMs that it began with, and with `others`.
pub fn run(file: PlanFile, others: Others, start: bool, args: &RunArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let store = open_store(args)?;
    let words = Terminal { quiet: args.quiet || args.json };
    let setting = Setting {
        store: &store,
        state: args.state.as_deref(),
        stop: &stop,
        words: &words,
        policy: None,
        schedule: None,
        memory: None,
        meant: None,
        sharers: &Sharers::default(),
        leave: &|| Ok(()),
    };
    let name = file.plan.name.clone();
    let prepared = Prepared::new(file, others, start, &setting)?;
    let board = Board::default();
    let display = Display::start(DisplayMode::choose(args.json, args.quiet), board.clone());
    let outcome = prepared.run(&setting, &display, &board);
    display.finish();
    Ok(end(&name, &outcome?, stop.is_set(), args))
}

/// Whoever started the command.
struct Terminal {
    /// What is no warning is not said.
    quiet: bool,
}

impl Words for Terminal {
    fn say(&self, line: &str) {
        crate::out::say(line);
    }

    fn problems(&self, file: &Path, problems: &[Problem]) {
        crate::out::problems(file, problems);
    }

    fn site(&self, summary: &str) {
        if !self.quiet {
            crate::out::say(summary);
        }
    }
}

/// Prints the report and says how to go on.
fn end(name: &str, outcome: &RunOutcome, stopped: bool, args: &RunArgs) -> Exit {
    if let Some(error) = &outcome.unkept {
        tell_unkept(outcome, error);
        say_how_to_go_on(name, args);
        return exit_of(outcome, stopped);
    }
    if !args.json && !args.quiet {
        let report = open_store_to_read(args).and_then(|store| Ok(drover_engine::plan_report(&store, name)?));
        match report {
            Ok(Some(report)) => crate::out::print(&drover_view::report_text(&report)),
            Ok(None) => {}
            Err(failure) => crate::out::say(failure),
        }
    }
    if outcome.is_complete() {
        crate::out::next(args, format_args!("drover report {name} --html {name}.html{}", state_option(args)));
        return Exit::Success;
    }
    if outcome.has_arrived() && !args.quiet {
        crate::out::say(format_args!(
            "every VM is at the target, but {} not cleaned up at the source",
            outcome.not_cleaned_up
        ));
    }
    if !args.quiet {
        say_how_to_go_on(name, args);
    }
    exit_of(outcome, stopped)
}

/// The state does not have how the run ended, so there is no report: each VM is told from memory, also to those who want to read
/// little.
fn tell_unkept(outcome: &RunOutcome, error: &StoreError) {
    for end in &outcome.ends {
        let state = drover_view::vm_state(end.state);
        let what = end.error.as_deref().unwrap_or("arrived, and nothing is left at its source");
        crate::out::say(format_args!("{}: {state}: {}", clean(&end.name), clean(what)));
    }
    crate::out::say(Failure::from(error));
}

fn say_how_to_go_on(name: &str, args: &RunArgs) {
    let state = state_option(args);
    crate::out::say(format_args!(
        "resume with: drover resume {name}{state}    undo with: drover cancel {name}{state}"
    ));
}

/// The option that a later command needs to find the same state.
pub fn state_option(args: &RunArgs) -> String {
    args.state.as_ref().map(|folder| format!(" --state {}", folder.display())).unwrap_or_default()
}

/// Stops a running plan, or undoes what an interrupted one left.
pub fn cancel(args: &NamedArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    if matches!(row.state, PlanState::Done | PlanState::Cancelled) {
        crate::out::say(format_args!("plan {name} has ended; there is nothing to cancel"));
        return Ok(Exit::Success);
    }
    let given_up = give_up(row, &store, args.run.state.as_deref())?;
    given_up.notes.iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
    for vm in given_up.arrived.iter().map(|vm| clean(vm)) {
        crate::out::say(format_args!(
            "{vm} had arrived: it stays at the target, and its source is left as it is"
        ));
    }
    if given_up.left.is_empty() {
        crate::out::say(format_args!("plan {name} is cancelled; what it had begun is undone"));
        crate::out::next(&args.run, format_args!("drover clean {name}{}", state_option(&args.run)));
        return Ok(Exit::Success);
    }
    given_up.left.iter().for_each(|problem| crate::out::say(format_args!("left behind: {problem}")));
    Err(Failure::new(Exit::Source, "not everything could be undone")
        .advise("mend the cause, then cancel again"))
}

/// A plan's name from what the user gave: a name, or a plan file.
pub fn plan_name(text: &str) -> Result<String, Failure> {
    let path = Path::new(text);
    if path.is_file() { Ok(plan_file::read(path)?.plan.name) } else { Ok(text.to_string()) }
}

pub fn unknown_plan(store: &Store, name: &str) -> Failure {
    let folder = store.folder();
    let plans = store.plans().unwrap_or_default();
    let near = drover_plan::near(name, plans.iter().map(|plan| plan.name.as_str())).join(", ");
    let near = if near.is_empty() { near } else { format!("near names: {near}; ") };
    Failure::new(Exit::Plan, format!("there is no plan '{name}' in drover's state in {}", folder.display()))
        .advise(format!("{near}see `drover status` for those there are; --state names another folder"))
}

/// Opens the state folder to look into it, also where it cannot be written.
pub fn open_store_to_read(args: &RunArgs) -> Result<Store, Failure> {
    Ok(Store::open_to_read(&state_folder(args.state.as_deref()))?)
}

/// Opens the state folder to give orders there; refused while a daemon owns it.
pub fn open_store(args: &RunArgs) -> Result<OwnedStore, Failure> {
    OwnedStore::open(&state_folder(args.state.as_deref()))
}
