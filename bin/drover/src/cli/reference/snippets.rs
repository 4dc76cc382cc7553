//! What pages show works: command lines parse, plans have no problems.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use drover_plan::{Moves, Plan};

use crate::cli::program;

/// Keys that a plan needs, for parts of one.
const NEEDED: [(&str, &str); 5] = [
    ("version", "version: 1\n"),
    ("name", "name: part\n"),
    (
        "source",
        "source: {type: vsphere, endpoint: vcenter.example.org, user: u, password_env: DROVER_PASSWORD}\n",
    ),
    ("target", "target: {type: qemu, folder: /srv/vms}\n"),
    ("vms", "vms: [{name: web01}]\n"),
];

fn pages() -> Vec<(PathBuf, String)> {
    let root = drover_lab::workspace();
    let mut folders = vec![root.join("docs")];
    let mut pages = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let name = |page: &Path| page.strip_prefix(&root).unwrap().to_owned();
    pages.iter().map(|page| (name(page), std::fs::read_to_string(page).unwrap())).collect()
}

/// The blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    text.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The words of each `drover ...` in a block of shell commands.
fn commands(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    joined.lines().flat_map(of_line).collect()
}

/// The commands of a line. Knows quotes, comments, `;`, `&&`, `|` and redirections, and nothing else of a shell.
fn of_line(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    for letter in line.chars().chain(['\n']) {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => (quote, word) = (Some(letter), Some(word.unwrap_or_default())),
            (None, '#') if word.is_none() => break,
            (None, ';' | '|' | '&' | ' ' | '\n') => {
                words.extend(word.take());
                if !matches!(letter, ' ') {
                    all.push(std::mem::take(&mut words));
                }
            }
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    all.push(words);
    all.into_iter().filter_map(drover_command).collect()
}

/// From the word `drover` on, without redirections.
fn drover_command(words: Vec<String>) -> Option<Vec<String>> {
    let is_before = |word: &&String| *word == "sudo" || word.contains('=');
    let skipped = words.iter().take_while(is_before).count();
    let mut kept = words.into_iter().skip(skipped).peekable();
    kept.next_if(|word| word == "drover")?;
    let is_plain = |word: &String| !word.contains('>') && word != "<";
    Some(std::iter::once("drover".to_string()).chain(kept.take_while(is_plain)).collect())
}

fn problem_of(words: &[String]) -> Option<String> {
    match program().try_get_matches_from(words) {
        Err(error) if !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Some(error.to_string())
        }
        _ => None,
    }
}

#[test]
fn commands_on_pages_parse() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for words in blocks(&text, "sh").into_iter().flat_map(commands) {
            seen += 1;
            let problem = problem_of(&words);
            wrong.extend(problem.map(|why| format!("{}: {}\n{why}", page.display(), words.join(" "))));
        }
    }
    assert!(seen > 60, "only {seen} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Also those within sentences: `drover NAME ...`.
#[test]
fn commands_in_sentences_exist() {
    let program = program();
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for rest in text.split("`drover ").skip(1) {
            let word: String = rest.chars().take_while(|it| it.is_ascii_lowercase() || *it == '-').collect();
            let is_named = !word.is_empty() && !word.starts_with('-');
            if is_named && program.find_subcommand(&word).is_none() && word != "help" {
                wrong.push(format!("{}: drover {word}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "there are no such commands:\n{}", wrong.join("\n"));
}

#[test]
fn plans_on_pages_have_no_problems() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for block in blocks(&text, "yaml") {
            seen += 1;
            let has = |key: &str| block.lines().any(|line| line.starts_with(&format!("{key}:")));
            let problems = if has("moves") {
                Moves::parse(block).err()
            } else {
                let missing = NEEDED.iter().filter(|(key, _)| !has(key)).map(|(_, line)| *line);
                Plan::parse(&missing.chain([block, "\n"]).collect::<String>()).err()
            };
            let words =
                |problems: Vec<_>| problems.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join("\n");
            wrong.extend(problems.map(|it| format!("{}:\n{block}\n{}", page.display(), words(it))));
        }
    }
    assert!(seen > 5, "only {seen} plans were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_line_is_read_as_a_shell_does() {
    let line = "DROVER_USER=u drover plan check a.yaml && sudo drover copy 'a b' c > log # drover no";
    let expected = [vec!["drover", "plan", "check", "a.yaml"], vec!["drover", "copy", "a b", "c"]];
    assert_eq!(
        of_line(line),
        expected.map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>())
    );
}
