//! What `drover --help` shows: the commands by what they are for, and where to begin.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory, Error};

use super::Cli;

/// Commands that no group names are shown with these.
const REST: &str = "Advanced";

/// The groups of `drover --help` and of the reference, and the commands of each in the order in which they are used.
pub const GROUPS: [(&str, &[&str]); 8] = [
    ("Plan a move", &["inventory", "assess", "plan", "forecast"]),
    (
        "Migrate VMs",
        &[
            "rehearse", "migrate", "status", "limits", "pause", "cutover", "proceed", "retry", "resume",
            "cancel", "clean", "report", "import",
        ],
    ),
    ("Daemon", &["serve"]),
    ("Single disks", &["copy", "hash", "verify", "serve-disk", "nbd"]),
    ("Running guests", &["live"]),
    ("Kubernetes", &["operator", "kubectl"]),
    ("Sites", &["agent", "link", "relay", "tune"]),
    (REST, &["nfc", "vddk", "simulate", "completions", "man"]),
];

const BEGIN: &str = "\
Begin with `drover inventory HOST`; `drover COMMAND --help` shows examples.
Manual: https://github.com/drover/drover/tree/main/docs";

/// The commands of a group that this program has.
pub fn commands_of<'a>(program: &'a Command, group: &str) -> Vec<&'a Command> {
    let named = |name: &str| program.get_subcommands().find(|command| command.get_name() == name);
    let in_group = |names: &&[&str]| names.iter().filter_map(|name| named(name)).collect::<Vec<_>>();
    let mut commands: Vec<&Command> =
        GROUPS.iter().filter(|(title, _)| *title == group).flat_map(|(_, names)| in_group(names)).collect();
    if group == REST {
        let is_named = |name: &str| name == "help" || GROUPS.iter().any(|(_, names)| names.contains(&name));
        let rest = program.get_subcommands().filter(|it| !is_named(it.get_name()) && !it.is_hide_set());
        commands.extend(rest);
    }
    commands
}

/// The program's command line, with its commands in groups.
pub fn program() -> Command {
    let program = Cli::command();
    let list: String = GROUPS.iter().map(|(title, _)| group_text(&program, title)).collect();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}\n\n{BEGIN}\n"
    );
    WITHOUT_SERVER.into_iter().fold(program.help_template(template), |program, name| {
        program.mut_subcommand(name, |command| command.mut_args(hidden_for_daemons))
    })
}

/// Commands that no daemon takes: they know its options, and refuse them with what to do.
const WITHOUT_SERVER: [&str; 3] = ["clean", "import", "rehearse"];

fn hidden_for_daemons(argument: Arg) -> Arg {
    let is_for_daemons =
        ["server", "token_file", "server_ca_file", "project"].contains(&argument.get_id().as_str());
    if is_for_daemons { argument.hide(true) } else { argument }
}

fn group_text(program: &Command, title: &str) -> String {
    let line = |command: &&Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:<12} {about}\n", command.get_name())
    };
    let lines: String = commands_of(program, title).iter().map(line).collect();
    format!("{title}:\n{lines}\n")
}

/// Commands that this program once had.
const IN_LAB: [&str; 2] = ["bench", "lab"];

/// An error of the command line, with where to find a command that left.
pub fn told(mut error: Error) -> Error {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && IN_LAB.contains(&word.as_str())
    {
        let tip = "it is in another program now, `drover-lab`".into();
        // What it is near to by its letters.
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_left_are_unknown_and_told_where_they_went() {
        let why = |words: &str| match program().try_get_matches_from(["drover", words]) {
            Ok(_) => String::new(),
            Err(error) => told(error).to_string(),
        };
        for word in IN_LAB {
            let why = why(word);
            assert!(why.contains("unrecognized subcommand") && why.contains("`drover-lab`"), "{why}");
            assert!(!why.contains("similar"), "{why}");
        }
        assert!(why("copie").contains("unrecognized subcommand") && !why("copie").contains("drover-lab"));
    }

    #[test]
    fn commands_that_no_daemon_takes_do_not_offer_one() {
        let help = |name: &str| {
            let mut program = program();
            let command = program.find_subcommand_mut(name).expect("a command");
            command.render_help().to_string() + &command.render_long_help().to_string()
        };
        for name in WITHOUT_SERVER {
            let help = help(name);
            assert!(!help.contains("--server") && !help.contains("--project"), "{help}");
            let given = program().try_get_matches_from(["drover", name, "x", "--server", "http://x"]);
            assert!(given.is_ok(), "it is known still, and refused with what to do");
        }
        assert!(help("migrate").contains("--server"));
    }

    #[test]
    fn every_command_is_in_one_group_and_fits_80_columns() {
        let program = program();
        let shown: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(title, _)| commands_of(&program, title))
            .map(Command::get_name)
            .collect();
        for command in program.get_subcommands().filter(|it| it.get_name() != "help" && !it.is_hide_set()) {
            let name = command.get_name();
            assert_eq!(shown.iter().filter(|it| **it == name).count(), 1, "{name} is not in one group");
        }
        let help = program.clone().term_width(80).render_help().to_string();
        assert!(help.contains("Plan a move:\n  inventory"), "{help}");
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "these lines are too long: {long:?}");
    }
}
