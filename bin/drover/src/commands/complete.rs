//! What shells ask while a command is typed: plans in the state, plan files, and VMs of a plan.

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};
use drover_engine::{Store, VmRow};

use crate::cli::program;
use crate::exit::{Exit, Failure};
use crate::plan_file::read_quietly;
use crate::state::state_folder;

/// More are of no use to who presses a key.
const FOUND_MAX: usize = 500;

/// What is known of a command that is being typed.
#[derive(Debug, Default, PartialEq)]
struct Typed {
    /// Argument that the last word is the value of.
    argument: Option<String>,
    /// Whether that may be the name of a plan in the state.
    takes_names: bool,
    /// Value of the first positional argument.
    first: Option<String>,
    state: Option<PathBuf>,
}

/// Prints what the last of these words may become, a line each. What cannot be looked at has nothing to offer: nobody
/// who presses a key wants to read an error.
pub fn run(words: &[String]) -> Result<Exit, Failure> {
    let typed = Typed::new(&program(), words);
    let word = words.last().map_or("", String::as_str);
    let mut found = match typed.argument.as_deref() {
        Some("plan" | "plans") => plans(&typed, word),
        Some("vm" | "vms") => of_vms(&typed, |vm| Some(vm.name)),
        Some("wave" | "waves") => of_vms(&typed, |vm| vm.wave),
        _ => Vec::new(),
    };
    found.retain(|it| it.starts_with(word) && !it.contains(char::is_control));
    found.sort();
    found.dedup();
    found.iter().take(FOUND_MAX).for_each(crate::out::line);
    Ok(Exit::Success)
}

impl Typed {
    fn new(program: &Command, words: &[String]) -> Typed {
        let (mut command, mut typed) = (program, Typed::default());
        let (mut positional, mut value_of): (usize, Option<&Arg>) = (0, None);
        let (mut only_values, last) = (false, words.len().saturating_sub(1));
        for (at, word) in words.iter().enumerate() {
            let is_last = at == last;
            if let Some(argument) = value_of.take() {
                if is_last {
                    typed.ask(argument);
                } else if argument.get_id() == "state" {
                    typed.state = Some(PathBuf::from(word));
                }
            } else if word.starts_with('-') && !only_values && !is_last {
                only_values = word == "--";
                value_of = option(command, word).filter(|it| takes_value(it) && !word.contains('='));
            } else if let (Some(inner), false) = (command.find_subcommand(word), is_last) {
                command = inner;
            } else if !word.starts_with('-') || only_values {
                let argument = command.get_positionals().nth(positional);
                match argument {
                    Some(argument) if is_last => typed.ask(argument),
                    _ => typed.first = typed.first.take().or_else(|| Some(word.clone())),
                }
                // One that takes many takes all that follow.
                positional +=
                    usize::from(argument.is_some_and(|it| !matches!(it.get_action(), ArgAction::Append)));
            }
        }
        typed
    }

    fn ask(&mut self, argument: &Arg) {
        self.argument = Some(argument.get_id().to_string());
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        self.takes_names = help.starts_with("Name of");
    }

    fn store(&self) -> Option<Store> {
        let folder = state_folder(self.state.clone().or_else(of_environment).as_deref());
        if Store::is_there(&folder) { Store::open_to_read(&folder).ok() } else { None }
    }
}

fn of_environment() -> Option<PathBuf> {
    std::env::var_os("DROVER_STATE").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    let is = |argument: &&Arg| match (name.strip_prefix("--"), name.strip_prefix('-')) {
        (Some(long), _) => argument.get_long() == Some(long),
        (None, short) => argument.get_short().map(String::from).as_deref() == short,
    };
    command.get_arguments().find(is)
}

fn takes_value(argument: &Arg) -> bool {
    argument.get_action().takes_values()
}

/// Names of plans, where they are taken, and plan files in the folder that is being typed.
fn plans(typed: &Typed, word: &str) -> Vec<String> {
    let store = if typed.takes_names { typed.store() } else { None };
    let names = store.and_then(|store| store.plans().ok()).unwrap_or_default();
    names.into_iter().map(|plan| plan.name).chain(files(word)).collect()
}

fn files(word: &str) -> Vec<String> {
    let (folder, shown) = match word.rsplit_once('/') {
        Some((folder, _)) => (Path::new(if folder.is_empty() { "/" } else { folder }), format!("{folder}/")),
        None => (Path::new("."), String::new()),
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let entry = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let is_plan = name.ends_with(".yaml") || name.ends_with(".yml");
        match entry.path().is_dir() {
            true if !name.starts_with('.') => Some(format!("{shown}{name}/")),
            false if is_plan => Some(format!("{shown}{name}")),
            _ => None,
        }
    };
    entries.flatten().filter_map(entry).collect()
}

/// Names that the VMs of a plan have that was begun.
fn of_vms(typed: &Typed, name: impl Fn(VmRow) -> Option<String>) -> Vec<String> {
    let Some(plan) = typed.first.as_deref() else { return Vec::new() };
    let path = Path::new(plan);
    let plan = match path.is_file() {
        true => read_quietly(path).map(|file| file.plan.name),
        false => Some(plan.to_string()),
    };
    let rows = plan.and_then(|plan| typed.store()?.vms(&plan).ok());
    rows.unwrap_or_default().into_iter().filter_map(name).collect()
}

/// Completions for a shell.
pub fn script(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    // clap keeps names that last as long as the program does.
    let mut offered = offered(Box::leak(Box::new(program())));
    clap_complete::generate(shell, &mut offered, "drover", &mut script);
    with_names(shell, String::from_utf8_lossy(&script).into_owned())
}

/// A command as shells are told of it: without what its help hides, which clap's scripts offer all the same.
fn offered(command: &'static Command) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set()).map(offered_argument);
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set()).map(offered);
    let offered = clap::Command::new(command.get_name()).args(arguments).subcommands(commands);
    let offered = match command.get_about() {
        Some(about) => offered.about(about.clone()),
        None => offered,
    };
    match command.get_version() {
        Some(version) => offered.version(version),
        None => offered,
    }
}

/// An argument without its relations to others, which may be hidden.
fn offered_argument(argument: &'static Arg) -> Arg {
    let mut offered = Arg::new(argument.get_id().clone())
        .action(argument.get_action().clone())
        .value_hint(argument.get_value_hint())
        .global(argument.is_global_set());
    if let Some(long) = argument.get_long() {
        offered = offered.long(long);
    }
    if let Some(short) = argument.get_short() {
        offered = offered.short(short);
    }
    if let Some(help) = argument.get_help() {
        offered = offered.help(help.clone());
    }
    if let Some(names) = argument.get_value_names() {
        offered = offered.value_names(names.iter().cloned());
    }
    if let Some(values) = argument.get_num_args() {
        offered = offered.num_args(values);
    }
    let values = argument.get_possible_values();
    if takes_value(argument) && !values.is_empty() {
        offered = offered.value_parser(PossibleValuesParser::new(values));
    }
    offered
}

/// What is put before the script that clap makes for a shell, and what replaces a text in it: the program is asked
/// first; where it offers nothing, options and subcommands are.
fn with_names(shell: clap_complete::Shell, script: String) -> String {
    match shell {
        clap_complete::Shell::Bash => {
            script.replace("complete -F _drover ", "complete -F _drover_names ") + BASH
        }
        clap_complete::Shell::Zsh => {
            let (functions, end) = script.split_once("if [ \"$funcstack[1]\"").unwrap_or((&script, ""));
            let end = end.replace("_drover \"$@\"", "_drover_names \"$@\"");
            let end = end.replace("compdef _drover drover", "compdef _drover_names drover");
            format!("{functions}{ZSH}\nif [ \"$funcstack[1]\"{end}")
        }
        clap_complete::Shell::Fish => script + FISH,
        _ => script,
    }
}

const BASH: &str = r#"
# Plans, plan files and VMs: drover itself knows them.
_drover_names() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
        unset IFS
        _drover "$@"
    elif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}
"#;

const ZSH: &str = r#"# Plans, plan files and VMs: drover itself knows them.
_drover_names() {
    local -a found
    found=(${(f)"$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then
        compadd -a found
    else
        _drover "$@"
    fi
}
"#;

const FISH: &str = r#"
# Plans, plan files and VMs: drover itself knows them.
function __drover_names
    set -l words (commandline -opc) (commandline -ct)
    command drover complete -- $words[2..] 2>/dev/null
end
complete -c drover -f -n 'count (__drover_names) >/dev/null' -a '(__drover_names)'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &str) -> Typed {
        let words: Vec<String> = words.split(' ').map(str::to_string).collect();
        Typed::new(&program(), &words)
    }

    #[test]
    fn the_word_that_is_typed_is_known_by_its_place() {
        let asks = |words: &str| {
            let typed = typed(words);
            (typed.argument, typed.takes_names, typed.first)
        };
        let plan = Some("plan".to_string());
        assert_eq!(asks("resume we"), (plan.clone(), true, None));
        assert_eq!(asks("resume --json --state /s we"), (plan.clone(), true, None));
        assert_eq!(asks("migrate "), (plan.clone(), false, None));
        assert_eq!(asks("plan check -v w"), (plan.clone(), false, None));
        assert_eq!(asks("cutover web web0"), (Some("vms".into()), true, Some("web".into())));
        assert_eq!(asks("retry web web01 web0"), (Some("vms".into()), true, Some("web".into())));
        assert_eq!(asks("rehearse web --vm we").0.as_deref(), Some("vm"));
        assert_eq!(asks("status web --vm we"), (Some("vms".into()), false, Some("web".into())));
        assert_eq!(asks("report web --only failed --wave we").0.as_deref(), Some("waves"));
        assert_eq!(asks("cutover web --wave we").0.as_deref(), Some("wave"));
        assert_eq!(asks("rehearse web --for 7 --vm web01 --vm we").2.as_deref(), Some("web"));
        assert_eq!(asks("resume --js").0, None, "an option is the shell's");
        assert_eq!(asks("res").0, None, "so is a command");
        assert_eq!(typed("status --state /srv/s we").state.as_deref(), Some(Path::new("/srv/s")));
    }

    #[test]
    fn scripts_ask_the_program_first() {
        for (shell, what) in [
            (clap_complete::Shell::Bash, "complete -F _drover_names"),
            (clap_complete::Shell::Zsh, "compdef _drover_names drover"),
            (clap_complete::Shell::Fish, "-a '(__drover_names)'"),
        ] {
            let script = script(shell);
            assert!(script.contains(what), "{shell}: {script}");
            assert!(!script.contains("complete -F _drover ") && !script.contains("compdef _drover drover\n"));
            assert_eq!(script.matches("complete -- ").count(), 1, "{shell}");
        }
    }

    #[test]
    fn what_help_hides_is_not_offered() {
        let fish = script(clap_complete::Shell::Fish);
        let offers = |command: &str| {
            let begin =
                format!("complete -c drover -n \"__fish_drover_using_subcommand {command}\" -l server ");
            fish.contains(&begin)
        };
        assert!(offers("migrate") && !offers("clean"), "{fish}");
        let of_agent = |line: &&str| line.contains(" agent;") && line.contains(" -l ");
        let of_agent: Vec<&str> = fish.lines().filter(of_agent).collect();
        assert!(of_agent.iter().any(|line| line.contains(" -l allow-start")), "{fish}");
        assert!(!of_agent.iter().any(|line| line.contains(" -l seed")));
        let bash = script(clap_complete::Shell::Bash);
        let options = |command: &str| {
            let (_, section) = bash.split_once(&format!(" drover__subcmd__{command})\n")).unwrap_or_default();
            section.split('"').nth(1).unwrap_or_default().to_string()
        };
        assert!(options("clean").contains("--forget") && !options("clean").contains("--server"), "{bash}");
        assert!(options("status").contains("--server"));
    }
}
