//! The reference of the commands, and that pages show such as there are.
#![allow(clippy::unwrap_used)]

use clap::{CommandFactory, Parser};
use drover_stage::{pages, reference};

use super::Cli;

#[test]
fn the_reference_is_what_the_code_makes() {
    let mut program = Cli::command();
    program.build();
    let mut page = format!("# Commands: drover-lab\n\n{}", reference::MADE);
    for command in program.get_subcommands().filter(|it| it.get_name() != "help") {
        reference::section(&mut page, command, &format!("drover-lab {}", command.get_name()));
    }
    reference::hold([("cli-lab.md".to_string(), page)]);
}

#[test]
fn commands_on_pages_parse() {
    assert!(pages::hold_commands(&Cli::command()) > 5);
}

/// As those of `drover` do.
#[test]
fn options_read_rates_sizes_and_times() {
    let read = |words: &str| Cli::try_parse_from(format!("drover-lab wan {words}").split_whitespace());
    for words in
        ["--rate=2.5g", "--rate=12MiB", "--rate=1g --queue=64k", "--rate=1g --rtt=1.5m", "--rtt=1500ms"]
    {
        read(words).unwrap();
    }
    for words in ["--rate=1x", "--rate=0", "--rate=1g --queue=1.5", "--rtt=5", "--rtt=367d"] {
        assert!(read(words).is_err(), "{words}");
    }
}
