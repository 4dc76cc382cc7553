//! The lab: measures lines, cards and moves of running guests on this host, and holds the benches and demos of a clone.
#![forbid(unsafe_code)]
// What a person or a program reads goes through `drover_console::out`, which keeps others from driving the terminal.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cli;
mod clone;
mod documents;
mod failure;
mod memory;
mod wan;

use std::process::ExitCode;

use clap::Parser;
use drover_console::{out, signals};

use cli::{BenchCommand, Cli, Command};
use clone::What;
use failure::Failure;

fn main() -> ExitCode {
    signals::take_file_size_limits();
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            out::say(&failure);
            failure.exit.into()
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    let exit = match &cli.command {
        Command::Bench { command: BenchCommand::Memory(args) } => memory::run(args),
        Command::Bench { command: BenchCommand::Copy } => return clone::run(What::Copy),
        Command::Bench { command: BenchCommand::Warm } => return clone::run(What::Warm),
        Command::Bench { command: BenchCommand::Fleet } => return clone::run(What::Fleet),
        Command::Bench { command: BenchCommand::Relay } => return clone::run(What::Relay),
        Command::Bench { command: BenchCommand::Wan } => return clone::run(What::Wan),
        Command::Demo => return clone::run(What::Demo),
        Command::DemoKube => return clone::run(What::DemoKube),
        // It ends as the command does that it runs.
        Command::Wan(args) => return Ok(wan::run(args)),
        Command::Completions { shell } => documents::completions(*shell),
        Command::Man { folder } => documents::man(folder),
    }?;
    Ok(exit.into())
}
