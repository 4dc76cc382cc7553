//! The drover program: picks the providers, wires them to the engine, and speaks to the user.
#![forbid(unsafe_code)]
// What a person or a program reads goes through `out`, which keeps others from driving the terminal.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cli;
mod commands;
mod connect;
mod endpoint;
mod evidence;
mod exit;
mod files;
mod hooks;
mod inspection;
mod landing;
mod log;
mod operator;
mod out;
mod own;
mod plan_file;
mod remote;
mod run;
mod serve;
mod signature;
mod sites;
mod source;
mod state;
mod traces;
mod what_if;

use std::process::ExitCode;

use clap::FromArgMatches;
use drover_console::signals;

use cli::{AgentCommand, Cli, Command, LinkCommand, NbdCommand, NfcCommand, PlanCommand, VddkCommand};
use exit::{Exit, Failure};

/// What to try where a daemon was named for a command that works at a plan which nobody runs.
const BESIDE_DAEMON: &str =
    "run it on the daemon's machine without --server, when the plan does not run there";

fn main() -> ExitCode {
    drover_tcp::keep_few_heaps();
    signals::take_file_size_limits();
    if let Some(columns) = out::columns() {
        drover_view::set_columns(columns);
    }
    let matches = cli::program().try_get_matches_from(cli::words(std::env::args_os()));
    let matches = matches.unwrap_or_else(|error| cli::told(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let command = matches.subcommand_name().unwrap_or_default();
    match log::start(&cli.log, command).and_then(|()| run(&cli)) {
        Ok(code) => code,
        Err(failure) => {
            drover_log::log!("drover", "ended with exit code {}: {}", failure.exit as u8, failure.message);
            out::say(&failure);
            failure.exit.into()
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    let exit = match &cli.command {
        Command::Inventory(args) => commands::inventory::run(args),
        Command::Assess(args) => commands::assess::run(args),
        Command::Forecast(args) => commands::forecast::run(args),
        Command::Simulate(args) => commands::forecast::simulate(args),
        Command::Plan { command: PlanCommand::New(args) } => commands::plan::new(args),
        Command::Plan { command: PlanCommand::Check(args) } => commands::plan::check(args),
        Command::Plan { command: PlanCommand::Apply(args) } => commands::kubectl::apply(args),
        Command::Plan { command: PlanCommand::Waves(args) } => commands::waves::run(args),
        Command::Plan { command: PlanCommand::Schema } => {
            crate::out::json(format_args!("{:#}", drover_plan::schema()));
            Ok(Exit::Success)
        }
        Command::Migrate(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::migrate(&daemon, args),
            None => commands::migrate::migrate(args),
        },
        Command::Resume(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::resume(&daemon, args),
            None => commands::migrate::resume(args),
        },
        Command::Cancel(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::cancel(&daemon, args),
            None => commands::migrate::cancel(args),
        },
        Command::Pause(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::pause(&daemon, args),
            None => commands::migrate::pause(args),
        },
        Command::Limits(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::limits(&daemon, args),
            None => commands::limits::limits(args),
        },
        Command::Cutover(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::cutover(&daemon, args),
            None => commands::warm::cutover(args),
        },
        Command::Proceed(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::proceed(&daemon, args),
            None => commands::warm::proceed(args),
        },
        Command::Retry(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::retry(&daemon, args),
            None => commands::warm::retry(args),
        },
        Command::Clean(args) => {
            remote::is_absent(&args.run, BESIDE_DAEMON).and_then(|()| commands::warm::clean(args))
        }
        Command::Import(args) => {
            let advice = "leave --server out and stop the daemon, or give it a plan with `drover migrate`";
            remote::is_absent(&args.run, advice).and_then(|()| commands::import::run(args))
        }
        Command::Rehearse(args) => {
            remote::is_absent(&args.run, BESIDE_DAEMON).and_then(|()| commands::rehearse::run(args))
        }
        Command::Status(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::status(&daemon, args),
            None => commands::show::status(args),
        },
        Command::Report(args) => match remote::daemon(&args.run)? {
            Some(daemon) => commands::distant::report(&daemon, args),
            None => commands::show::report(args),
        },
        Command::Serve(args) => commands::serve::run(args),
        Command::Operator(args) => operator::run(args),
        Command::Kubectl { command } => commands::kubectl::run(command),
        Command::Copy(args) => commands::copy::run(args),
        Command::Hash(args) => commands::hash::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::ServeDisk(args) => commands::serve_disk::run(args),
        Command::Nbd { command: NbdCommand::List(args) } => commands::nbd::list(args),
        Command::Relay(args) => commands::relay::run(args),
        Command::Live(args) => commands::live::run(args),
        Command::Nfc { command: NfcCommand::Check(args) } => commands::nfc::check(args),
        Command::Vddk { command: VddkCommand::Check(args) } => commands::vddk::check(args),
        Command::Vddk { command: VddkCommand::Logs(args) } => commands::vddk::logs(args),
        Command::Link { command: LinkCommand::Test(args) } => commands::link::test(args),
        Command::Tune(args) => commands::tune::run(args),
        Command::Agent { command: AgentCommand::Run(args) } => commands::agent::run(args),
        Command::Agent { command: AgentCommand::Pair(args) } => commands::agent::pair(args),
        Command::Agent { command: AgentCommand::List(args) } => commands::agent::list(args),
        Command::Agent { command: AgentCommand::Revoke(args) } => commands::agent::revoke(args),
        Command::Agent { command: AgentCommand::Limit(args) } => commands::agent::limit(args),
        Command::Agent { command: AgentCommand::Info(args) } => commands::agent::info(args),
        Command::Agent { command: AgentCommand::Top(args) } => commands::relay::top::run(args, "agent"),
        Command::Completions { shell } => commands::documents::completions(*shell),
        Command::Complete { words } => commands::complete::run(words),
        Command::Man { folder } => commands::documents::man(folder),
    }?;
    Ok(exit.into())
}
