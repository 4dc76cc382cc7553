//! `drover migrate`, `resume` and `cancel`.

use std::path::Path;
use std::time::{Duration, Instant};

use drover_agent::limits::Sharers;
use drover_copy::text_digest;
use drover_engine::{Board, PlanRow, PlanState, RunOutcome, Store, StoreError};
use drover_plan::{Others, PlannedVm, Problem};
use drover_view::{Display, DisplayMode, Extent, clean};
use serde_json::json;

use super::given_up::{tell_cancelled, tell_given_up, tell_has_ended};
use crate::cli::{CancelArgs, MigrateArgs, PauseArgs, ResumeArgs, RunArgs};
use crate::evidence::check_not_anothers;
use crate::exit::{Exit, Failure};
use crate::own::OwnedStore;
use crate::plan_file::{self, PlanFile};
use crate::run::{Prepared, Setting, Words, check_not_given_up, exit_of, file_of, give_up, give_up_ordered};
use crate::signals::stop_on_signals;
use crate::state::state_folder;

/// How long a pause waits for whoever runs the plan, and how often it looks: a VM that moves over may be finished first.
const PAUSE_WAIT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(200);

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
    let recorded = text_digest(&row.text).to_hex();
    let file = file_of(&store, row)?;
    let given = Path::new(&args.plan);
    tell_edited(if given.is_file() { given } else { &file.path }, &recorded, "");
    drop(store);
    run(file, Others::LeftOut, args.start, &args.run)
}

/// Says so where the plan's file is not what the plan was begun with, which counts. `at` is where that is, as an option.
pub fn tell_edited(file: &Path, recorded_blake3: &str, at: &str) {
    if plan_file::text_of(file).is_some_and(|text| text_digest(&text).to_hex() != recorded_blake3) {
        crate::out::say(format_args!(
            "warning: {0} was edited since the plan was begun; it is resumed as it was begun (what was edited counts with \
             `drover migrate {0}{at}`, which goes on, too)",
            file.display()
        ));
    }
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
        reads: None,
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

    fn problems(&self, file: &Path, problems: &[Problem], vms: &[PlannedVm]) {
        crate::out::problems_of(file, problems, vms);
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
            Ok(Some(report)) => {
                let runs = drover_view::runs(&report.plan);
                let text = drover_view::report_part_text(report, runs, Extent::Short, &state_option(args));
                crate::out::print(&text);
            }
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
        "resume with: drover resume {name}{state}    give it up with: drover cancel {name}{state}"
    ));
}

/// The option that a later command needs to find the same state.
pub fn state_option(args: &RunArgs) -> String {
    args.state.as_ref().map(|folder| format!(" --state {}", folder.display())).unwrap_or_default()
}

/// Stops whoever runs a plan, and waits until it has stopped.
pub fn pause(args: &PauseArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    if !drover_engine::is_being_run(&store, &name)? {
        tell_paused(&name, false, &state_option(&args.run), &args.run);
        return Ok(Exit::Success);
    }
    store.ask_cancel(&name)?;
    let until = Instant::now() + PAUSE_WAIT;
    while drover_engine::is_being_run(&store, &name)? {
        if Instant::now() > until {
            let text =
                format!("plan {name} was told to stop, and has not yet after {} s", PAUSE_WAIT.as_secs());
            return Err(Failure::new(Exit::Internal, text).advise(format!("see `drover status {name}`")));
        }
        std::thread::sleep(LOOK);
    }
    if store.plan(&name)?.is_some_and(|row| row.state == PlanState::Done) {
        crate::out::say(format_args!("plan {name} was done before it could be paused; its VMs have moved"));
        return Ok(Exit::Success);
    }
    tell_paused(&name, true, &state_option(&args.run), &args.run);
    Ok(Exit::Success)
}

/// `at` is the option that says where the plan is.
pub fn tell_paused(plan: &str, was_running: bool, at: &str, run: &RunArgs) {
    if run.json {
        return crate::out::json(json!({ "plan": plan, "was_running": was_running }));
    }
    match was_running {
        true => crate::out::say(format_args!("plan {plan} is paused; what was copied is kept")),
        false => crate::out::say(format_args!("nobody runs plan {plan}; there is nothing to pause")),
    }
    if was_running {
        crate::out::next(run, format_args!("drover resume {plan}{at}"));
    }
}

/// Stops a running plan, or undoes what an interrupted one left.
pub fn cancel(args: &CancelArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    if matches!(row.state, PlanState::Done | PlanState::Cancelled) {
        let is_cancelled = row.state == PlanState::Cancelled;
        tell_has_ended(&name, is_cancelled, &store.vms(&name)?, &args.run);
        return Ok(Exit::Success);
    }
    if !args.vms.is_empty() || args.wave.is_some() {
        return cancel_vms(&store, row, args);
    }
    let given_up = give_up(row, &store, args.run.state.as_deref())?;
    tell_cancelled(&name, &given_up, &args.run);
    if given_up.fails(None) {
        return Err(not_all_undone("cancel again"));
    }
    crate::out::next(&args.run, format_args!("drover clean {name}{}", state_option(&args.run)));
    Ok(Exit::Success)
}

/// That something is left behind, and what to do once more.
fn not_all_undone(again: &str) -> Failure {
    Failure::new(Exit::Source, "not everything could be undone")
        .advise(format!("mend the cause, then {again}"))
}

/// Gives single VMs up: the run of the plan does it, or else this process.
fn cancel_vms(store: &Store, row: PlanRow, args: &CancelArgs) -> Result<Exit, Failure> {
    let name = row.name.clone();
    let named = match &args.wave {
        Some(wave) => &drover_engine::wave_to_give_up(store, &name, wave)?,
        None => &args.vms,
    };
    let vms = drover_engine::ask_give_up(store, &name, named)?;
    if drover_engine::is_running(store, &name)? {
        tell_given_up(&name, &vms, None, &state_option(&args.run), &args.run);
        return Ok(Exit::Success);
    }
    let given_up = give_up_ordered(row, store, args.run.state.as_deref())?;
    let fails = given_up.fails(Some(&vms));
    if !args.run.json {
        given_up.notes.iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
        let when = if fails { "" } else { " before" };
        for problem in &given_up.left {
            crate::out::say(format_args!("left behind{when}: {problem}"));
        }
    }
    if !fails || args.run.json {
        tell_given_up(&name, &vms, Some(&given_up), &state_option(&args.run), &args.run);
    }
    match fails {
        true => Err(not_all_undone("the same command again")),
        false => Ok(Exit::Success),
    }
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

/// Opens the state folder to work at one plan that nobody runs, also beside a daemon: the plan's own lock keeps both apart.
pub fn open_store_beside_daemon(args: &RunArgs) -> Result<Store, Failure> {
    Ok(Store::open(&state_folder(args.state.as_deref()))?)
}

/// Opens the state folder to give orders there; refused while a daemon owns it.
pub fn open_store(args: &RunArgs) -> Result<OwnedStore, Failure> {
    OwnedStore::open(&state_folder(args.state.as_deref()))
}
