//! The reference in `docs/reference`, made from the code. `make reference` writes it; the tests here hold code and pages
//! together, and hold the commands and plans that other pages show against this program.

mod keys;
mod resources;
mod snippets;

use clap::Command;
use drover_stage::reference::{MADE, argument, section};

use super::help::{GROUPS, commands_of, program};

/// A page for each group of commands: its name in `docs/reference`, and its text.
fn command_pages() -> Vec<(String, String)> {
    let mut program = program();
    program.build();
    GROUPS.iter().map(|(title, _)| (page_name(title), page(&program, title))).collect()
}

fn page_name(title: &str) -> String {
    format!("cli-{}.md", title.to_lowercase().replace(' ', "-"))
}

fn page(program: &Command, title: &str) -> String {
    let mut text = format!("# Commands: {}\n\n{MADE}", title.to_lowercase().replace("vms", "VMs"));
    let everywhere: Vec<String> =
        program.get_arguments().filter(|it| it.is_global_set()).map(argument).collect();
    text.push_str(&format!("\nEvery command takes these too:\n\n{}\n", everywhere.join("\n")));
    for command in commands_of(program, title) {
        section(&mut text, command, &format!("drover {}", command.get_name()));
    }
    text
}

#[test]
fn the_reference_is_what_the_code_makes() {
    let known = drover_lab::workspace().join("docs/reference").join(resources::NAME);
    let known = std::fs::read_to_string(known).unwrap_or_default();
    let resources = (resources::NAME.to_string(), resources::text(&known));
    drover_stage::reference::hold(command_pages().into_iter().chain(keys::pages()).chain([resources]));
}
