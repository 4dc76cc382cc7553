//! Which guests are to move, and how: from a file of moves, or names of domains.

use std::path::Path;
use std::str::FromStr;

use clap::{ArgAction, CommandFactory, Parser};
use drover_plan::{MOVES_MAX, Moves, OneMove, Problem, Setting};
use drover_types::count;
use drover_types::units::Rate;

use crate::cli::{DisksArg, LiveArgs, LiveCommand};
use crate::commands::live::domain;
use crate::commands::live::route::Direct;
use crate::exit::{Exit, Failure};

/// A guest that is to move.
#[derive(Debug)]
pub struct Wanted {
    /// What it is called.
    pub name: String,
    /// How it is to move.
    pub args: LiveArgs,
}

/// All that are to move, and what they have together.
#[derive(Debug)]
pub struct All {
    pub guests: Vec<Wanted>,
    /// What the line carries.
    pub line: Option<Rate>,
    /// Most that all may send.
    pub rate_max: Option<Rate>,
    /// What one connection carries.
    pub connection: Option<Rate>,
    /// At most so many send at a time.
    pub at_once: Option<u16>,
}

impl All {
    /// Most bytes a second that all may send.
    pub fn budget(&self) -> Option<u64> {
        self.rate_max.map(bytes)
    }
}

/// Of a rate in bits, bytes a second.
pub fn bytes(rate: Rate) -> u64 {
    rate.bits_per_s() / 8
}

/// The options of one move, as the command line has them.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Options {
    #[command(flatten)]
    args: LiveArgs,
}

/// Keys that hold for all together, and stand at the top only.
const TOGETHER: [&str; 4] = ["line", "rate_max", "connection", "at_once"];
/// Options of the command, not of a move.
const OF_COMMAND: [&str; 5] = ["json", "watch", "report", "dry_run", "state"];

/// Reads what the command says.
pub fn wanted(command: &LiveCommand) -> Result<All, Failure> {
    let mut all = match &command.moves {
        Some(path) => of_file(command, path)?,
        None => of_names(command)?,
    };
    all.line = command.args.line.or(all.line);
    all.rate_max = command.args.rate_max.or(all.rate_max);
    all.connection = command.connection.or(all.connection);
    all.at_once = command.at_once.or(all.at_once);
    let twice = twice(&all.guests);
    match twice.is_empty() {
        true => Ok(all),
        false => Err(Failure::new(
            if command.moves.is_some() { Exit::Plan } else { Exit::Usage },
            format!("moves are in each other's way: {}; nothing was touched", twice.join("; ")),
        )),
    }
}

fn of_names(command: &LiveCommand) -> Result<All, Failure> {
    let to = command.to.clone().unwrap_or_default();
    let args = LiveArgs { to, line: None, rate_max: None, ..command.args.clone() };
    if args.daemon().is_none() {
        let text = "several guests by their monitors, or --connection for one, want --moves FILE; several names are for domains, \
                    where --to is a libvirt daemon";
        return Err(Failure::new(Exit::Usage, text));
    }
    if command.sources.len() > MOVES_MAX {
        return Err(Failure::new(Exit::Usage, format!("{MOVES_MAX} guests are the most at once")));
    }
    let one = |source: &std::path::PathBuf| Wanted {
        name: source.display().to_string(),
        args: LiveArgs { source: source.clone(), ..args.clone() },
    };
    let guests = command.sources.iter().map(one).collect();
    Ok(All { guests, line: None, rate_max: None, connection: None, at_once: None })
}

/// A file of moves may not be larger.
const MOVES_BYTES_MAX: u64 = 16 << 20;

fn of_file(command: &LiveCommand, path: &Path) -> Result<All, Failure> {
    only_of_all(&command.args)?;
    let text = crate::files::read_text(path, MOVES_BYTES_MAX);
    let text =
        text.map_err(|error| Failure::new(Exit::Usage, format!("--moves {}: {error}", path.display())))?;
    let read = Moves::parse(&text).and_then(|moves| all(&moves, &command.args));
    read.map_err(|problems| {
        crate::out::problems(path, &problems);
        let text =
            format!("{} has {}; nothing was touched", path.display(), count(problems.len(), "problem"));
        Failure::new(Exit::Plan, text)
    })
}

/// What is said of single moves is said in the file.
fn only_of_all(args: &LiveArgs) -> Result<(), Failure> {
    let plain = Options::try_parse_from::<_, String>([]).map(|options| options.args);
    let plain = plain.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let of_all = LiveArgs {
        json: args.json,
        watch: args.watch,
        report: args.report.clone(),
        dry_run: args.dry_run,
        state: args.state.clone(),
        line: args.line,
        rate_max: args.rate_max,
        ..plain
    };
    match of_all == *args {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Usage,
            "with --moves, options of single moves go into the file: at its top for all, or at each",
        )
        .advise("beside --moves are --line, --rate-max, --connection, --at-once, --report, --state, --dry-run, --watch and --json")),
    }
}

/// Everything in a file of moves.
fn all(moves: &Moves, command: &LiveArgs) -> Result<All, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut rate = |key: &str| of_all(moves, key, &mut problems, Rate::from_str);
    let (line, rate_max, connection) = (rate("line"), rate("rate_max"), rate("connection"));
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0).ok_or("want a number from 1 on");
    let at_once = of_all(moves, "at_once", &mut problems, number);
    let is_default = |setting: &&Setting| !TOGETHER.contains(&setting.key.as_str());
    let defaults: Vec<&Setting> = moves.top.iter().filter(is_default).collect();
    let mut guests = Vec::new();
    for (number, one) in moves.moves.iter().enumerate() {
        match guest(number, one, &defaults, command) {
            Ok(wanted) => guests.push(wanted),
            Err(found) => problems.extend(found),
        }
    }
    // What is wrong at the top is wrong for each move, and told once.
    let mut known = Vec::new();
    problems.retain(|problem| {
        let place = (problem.line, problem.column, problem.message.clone());
        let is_new = !known.contains(&place);
        known.push(place);
        is_new
    });
    problems.sort_by_key(|problem| (problem.line, problem.column));
    if problems.is_empty() { Ok(All { guests, line, rate_max, connection, at_once }) } else { Err(problems) }
}

/// What holds for all together, from the top of the file.
fn of_all<T, E: ToString>(
    moves: &Moves,
    key: &str,
    problems: &mut Vec<Problem>,
    read: impl Fn(&str) -> Result<T, E>,
) -> Option<T> {
    let setting = moves.top.iter().find(|setting| setting.key == key)?;
    let value = read(setting.values.first().map_or("", String::as_str));
    value.map_err(|error| problems.push(Problem::error(key, error.to_string()).at(setting.at))).ok()
}

fn guest(
    number: usize,
    one: &OneMove,
    defaults: &[&Setting],
    command: &LiveArgs,
) -> Result<Wanted, Vec<Problem>> {
    let path = format!("moves[{number}]");
    let is_own = |key: &str| one.settings.iter().any(|setting| setting.key == key);
    let defaults = defaults.iter().copied().filter(|setting| !is_own(&setting.key));
    let (mut name, mut from, mut to) = (None, None, None);
    let mut problems = Vec::new();
    let mut words = Vec::new();
    let known = Options::command();
    for setting in defaults.chain(&one.settings) {
        let text = || setting.values.first().cloned().filter(|text| !text.is_empty());
        match setting.key.as_str() {
            "name" => name = text(),
            "from" => from = text(),
            "to" => to = text(),
            key => match word(&known, key, &setting.values) {
                Ok(word) => words.extend(word.map(|word| (word, setting))),
                Err(why) => problems.push(Problem::error(format!("{path}.{key}"), why).at(setting.at)),
            },
        }
    }
    for (key, value) in [("from", &from), ("to", &to)] {
        if value.is_none() {
            problems.push(Problem::error(&path, format!("it has no `{key}`")).at(one.at));
        }
    }
    // Each by itself first, so that a mistake has its place.
    for (word, setting) in &words {
        if let Err(error) = Options::try_parse_from([word]).map(drop)
            && error.kind() != clap::error::ErrorKind::MissingRequiredArgument
        {
            let why = first_line(&error.to_string());
            problems.push(Problem::error(format!("{path}.{}", setting.key), why).at(setting.at));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let options = Options::try_parse_from(words.iter().map(|(word, _)| word))
        .map_err(|error| vec![Problem::error(&path, first_words(&error.to_string())).at(one.at)])?;
    let (source, to) = (from.unwrap_or_default(), to.unwrap_or_default());
    let args = LiveArgs {
        source: source.clone().into(),
        to: to.into(),
        json: command.json,
        dry_run: command.dry_run,
        state: command.state.clone(),
        watch: command.watch,
        ..options.args
    };
    Direct::check(&args).map_err(|failure| vec![Problem::error(&path, failure.message).at(one.at)])?;
    Ok(Wanted { name: name.unwrap_or(source), args })
}

/// A key with what it holds, as an option of the command line; nothing for a flag that is off.
fn word(known: &clap::Command, key: &str, values: &[String]) -> Result<Option<String>, String> {
    if OF_COMMAND.contains(&key) || (TOGETHER.contains(&key) && key != "rate_max") {
        return Err("it is no option of a single move: it stands at the top, or on the command line".into());
    }
    let long = key.replace('_', "-");
    let mut options = known.get_arguments();
    let option = options.find(|option| option.get_long() == Some(&long) && !key.contains('-'));
    let Some(option) = option else {
        return Err(
            "there is no such key; keys are `name`, `from`, `to`, and options of `drover live --help` with `_` for `-`".into(),
        );
    };
    match (option.get_action(), values) {
        (ArgAction::SetTrue, [yes]) if yes == "true" => Ok(Some(format!("--{long}"))),
        (ArgAction::SetTrue, [no]) if no == "false" => Ok(None),
        (ArgAction::SetTrue, _) => Err("want true or false".into()),
        (_, []) => Ok(None),
        (_, values) => Ok(Some(format!("--{long}={}", values.join(",")))),
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_string()
}

/// The same with the options that it lists, where it ends in a colon.
fn first_words(text: &str) -> String {
    let line = first_line(text);
    match line.ends_with(':') {
        false => line,
        true => {
            let listed = text.lines().skip(1).take_while(|line| line.starts_with("  ")).map(str::trim);
            format!("{line} {}", listed.collect::<Vec<_>>().join(", "))
        }
    }
}

/// What two moves cannot both have.
fn twice(guests: &[Wanted]) -> Vec<String> {
    let mut found = Vec::new();
    let mut known: Vec<(String, &str)> = Vec::new();
    for guest in guests {
        for held in held(guest) {
            match known.iter().find(|(other, _)| *other == held) {
                Some((_, other)) => found.push(format!("{other} and {} both have the {held}", guest.name)),
                None => known.push((held, &guest.name)),
            }
        }
    }
    found
}

/// What a move has for itself. Places at other sites, and other hosts' daemons, are others.
fn held(guest: &Wanted) -> Vec<String> {
    let args = &guest.args;
    let there = args.via.as_ref().map(|site| format!(" at {site}")).unwrap_or_default();
    let mut held = vec![format!("name {}", guest.name)];
    if args.daemon().is_some() {
        held.push(format!("source {} of {}", args.source.display(), domain::source(args)));
    } else {
        held.push(format!("source {}", args.source.display()));
        held.push(format!("target {}{there}", args.to.display()));
    }
    let fixed = args.uri.as_ref().filter(|uri| !uri.ends_with(":0"));
    held.extend(fixed.map(|uri| format!("uri {uri}{there}")));
    if let Some(direct) = &args.or_direct {
        // Memory has the port, disks the next.
        let disks = if args.disks == DisksArg::Mirror { 1 } else { 0 };
        let ports = direct.port.into_iter().flat_map(|port| port..=port + disks);
        held.extend(ports.map(|port| format!("port {}{there}", direct.with_port(port))));
    }
    held.extend(args.nbd.as_ref().map(|nbd| format!("nbd {nbd}{there}")));
    held
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<All, Vec<String>> {
        let plain = Options::try_parse_from::<_, String>([]).unwrap().args;
        let told = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
        Moves::parse(text).and_then(|moves| all(&moves, &plain)).map_err(told)
    }

    #[test]
    fn a_move_has_what_stands_at_the_top_unless_it_says_otherwise() {
        let text = "rate_max: 8g\nline: 10g\ndowntime: 200ms\nallow: [throttle, postcopy]\nmoves:\n  - {name: web01, from: /a, \
                    to: /b, uri: 'tcp:h:0'}\n  - {from: /c, to: /d, downtime: 1s, assume_shared: true, rate_max: 1g}\n";
        let all = read(text).unwrap();
        assert_eq!((all.rate_max.unwrap().bits_per_s(), all.connection), (8_000_000_000, None));
        let [one, other] = all.guests.as_slice() else { panic!("two") };
        assert_eq!((one.name.as_str(), other.name.as_str()), ("web01", "/c"));
        assert_eq!((one.args.downtime.as_millis(), other.args.downtime.as_millis()), (200, 1000));
        assert_eq!((one.args.allow.len(), one.args.rate_max), (2, None));
        assert_eq!(other.args.rate_max.unwrap().bits_per_s(), 1_000_000_000);
        assert!(other.args.assume_shared && !one.args.assume_shared);
        assert_eq!((one.args.to.to_str(), one.args.uri.as_deref()), (Some("/b"), Some("tcp:h:0")));
    }

    #[test]
    fn every_mistake_has_its_place() {
        let text = "deadline: soon\nmoves:\n  - from: /a\n    assume-shared: true\n    json: true\n  - {from: /b, to: /c, p2p: maybe}\n";
        let told = read(text).unwrap_err().join("\n");
        for words in [
            "1:1: error: moves[0].deadline: invalid value 'soon' for '--deadline <TIME>'",
            "3:5: error: moves[0]: it has no `to`",
            "4:5: error: moves[0].assume-shared: there is no such key",
            "5:5: error: moves[0].json: it is no option of a single move",
            "moves[1].p2p: want true or false",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(told.matches("1:1: ").count(), 1, "{told}");
        assert!(
            read("rate_max: fast\nmoves: [{from: a, to: b}]\n").unwrap_err()[0]
                .contains("1:1: error: rate_max")
        );
    }

    #[test]
    fn what_one_option_wants_of_others_is_told() {
        let told =
            |more: &str| read(&format!("moves: [{{from: /a, to: /b, {more}}}]\n")).unwrap_err().join("\n");
        let alone = told("or_direct: h, direct_plain: true");
        assert!(alone.contains("1:9: error: moves[0]: ") && alone.contains("--via <SITE>"), "{alone}");
        let open = told("via: x, or_direct: h");
        assert!(open.contains("1:9: error: moves[0]: ") && open.contains("--direct-plain"), "{open}");
    }

    #[test]
    fn what_two_moves_cannot_both_have_is_told() {
        let one = |text: &str| twice(&read(&format!("moves:\n{text}")).unwrap().guests);
        assert!(
            one("  - {from: /a, to: /b, uri: 'tcp:h:0'}\n  - {from: /c, to: /d, uri: 'tcp:h:0'}\n")
                .is_empty()
        );
        assert!(one("  - {from: /a, to: /b, via: x}\n  - {from: /c, to: /b, via: y}\n").is_empty());
        let direct = "via: x, direct_plain: true, or_direct: 'h:";
        let apart = format!(
            "  - {{from: /a, to: /b, {direct}5000', disks: mirror}}\n  - {{from: /c, to: /d, {direct}5002'}}\n"
        );
        assert!(one(&apart).is_empty());
        assert_eq!(one(&apart.replace("5002", "5001")), ["/a and /c both have the port h:5001 at x"]);
        let told = one("  - {from: /a, to: /b, uri: 'tcp:h:1'}\n  - {from: /a, to: /b, uri: 'tcp:h:1'}\n");
        assert_eq!(told.len(), 4, "{told:?}");
        assert_eq!(told[2], "/a and /a both have the target /b");
        let domains = "  - {from: a, to: 'qemu+ssh://b/system'}\n  - {from: b, to: 'qemu+ssh://b/system'}\n";
        assert!(one(domains).is_empty());
        // Said or not, it is the same daemon.
        let plain = Options::try_parse_from::<_, String>([]).unwrap().args;
        let told = one(&format!(
            "  - {{from: a, to: 'qemu+ssh://b/system'}}\n  - {{name: x, from: a, connect: '{}', to: 'qemu+ssh://c/system'}}\n",
            domain::source(&plain)
        ));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("a and x both have the source a of "), "{told:?}");
    }
}
