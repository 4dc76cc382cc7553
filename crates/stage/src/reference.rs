//! Pages of `docs/reference` that are made from command lines. `make reference` writes them; tests hold them against the code.

use clap::{Arg, Command};

/// What a page that is made says of itself.
pub const MADE: &str = "<!-- Made from the code by `make reference`; do not edit. -->\n";

/// Pages are written instead of compared, if it is set.
const WRITE: &str = "DROVER_WRITE_REFERENCE";

/// Holds pages, by their names in `docs/reference`, against what is there.
#[track_caller]
pub fn hold(pages: impl IntoIterator<Item = (String, String)>) {
    let folder = drover_lab::workspace().join("docs/reference");
    let is_written = std::env::var_os(WRITE).is_some();
    let mut old = Vec::new();
    for (name, text) in pages {
        let path = folder.join(&name);
        if is_written {
            std::fs::write(&path, &text).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != text {
            old.push(name);
        }
    }
    assert!(old.is_empty(), "these pages are not what the code says, run `make reference`: {old:?}");
}

/// Adds a command and those in it.
pub fn section(text: &mut String, command: &Command, path: &str) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let about = about.trim_end_matches('.');
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    text.push_str(&format!("\n## {path}\n\n{about}.\n\n```text\n{usage}\n```\n"));
    let lines: Vec<String> = command.get_arguments().filter(|it| is_shown(it)).map(argument).collect();
    if !lines.is_empty() {
        text.push_str(&format!("\n{}\n", lines.join("\n")));
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        text.push_str(&format!("\n```text\n{after}\n```\n"));
    }
    for inner in command.get_subcommands().filter(|it| it.get_name() != "help") {
        section(text, inner, &format!("{path} {}", inner.get_name()));
    }
}

fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set()
        && !argument.is_global_set()
        && !["help", "version"].contains(&argument.get_id().as_str())
}

/// `- **--sample PERCENT**: what it does [default: 5]`
pub fn argument(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut notes = String::new();
    let defaults: Vec<_> = argument.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    let takes_value = argument.get_action().takes_values();
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        notes.push_str(&format!(" [default: {}]", defaults.join(",")));
    }
    let values = argument.get_possible_values();
    if takes_value && !values.is_empty() && !argument.is_hide_possible_values_set() {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        notes.push_str(&format!(" [values: {}]", names.join(", ")));
    }
    if let Some(variable) = argument.get_env() {
        notes.push_str(&format!(" [variable: {}]", variable.to_string_lossy()));
    }
    format!("- `{}`: {}{}", written(argument), markdown(&help), markdown(&notes))
}

/// How an argument is written: `-o, --output FILE`.
fn written(argument: &Arg) -> String {
    let names: Vec<String> =
        argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let values = match argument.get_action().takes_values() {
        true if names.is_empty() => argument.get_id().to_string().to_uppercase(),
        true => names.join(" "),
        false => String::new(),
    };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let options: Vec<String> = short.into_iter().chain(long).collect();
    match (options.is_empty(), values.is_empty()) {
        (true, _) => values,
        (false, true) => options.join(", "),
        (false, false) => format!("{} {values}", options.join(", ")),
    }
}

/// Help text as Markdown: what would be taken for HTML or emphasis is marked as text.
fn markdown(text: &str) -> String {
    text.replace('<', "\\<").replace('*', "\\*").replace("](", "] (")
}
