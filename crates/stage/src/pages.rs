//! What pages of the documentation show.

use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

/// The pages of the documentation and README.md: names and texts.
pub fn pages() -> Vec<(PathBuf, String)> {
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
pub fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    text.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The words of each `PROGRAM ...` in a block of shell commands.
fn commands(block: &str, program: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    joined.lines().flat_map(|line| of_line(line, program)).collect()
}

/// A program's commands of a line. Knows quotes, comments, `;`, `&&`, `|` and redirections, and nothing else of a shell.
fn of_line(line: &str, program: &str) -> Vec<Vec<String>> {
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
    all.into_iter().filter_map(|words| command_of(words, program)).collect()
}

/// From the program's name on, without redirections.
fn command_of(words: Vec<String>, program: &str) -> Option<Vec<String>> {
    let is_before = |word: &&String| *word == "sudo" || word.contains('=');
    let skipped = words.iter().take_while(is_before).count();
    let mut kept = words.into_iter().skip(skipped).peekable();
    kept.next_if(|word| word == program)?;
    let is_plain = |word: &String| !word.contains('>') && word != "<";
    Some(std::iter::once(program.to_string()).chain(kept.take_while(is_plain)).collect())
}

fn problem_of(program: &Command, words: &[String]) -> Option<String> {
    match program.clone().try_get_matches_from(words) {
        Err(error) if !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Some(error.to_string())
        }
        _ => None,
    }
}

/// Holds what pages show of a program against its command line: commands in blocks parse, those in sentences are there.
/// Gives how many blocks have.
#[track_caller]
pub fn hold_commands(program: &Command) -> usize {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let page = page.display();
        for words in blocks(&text, "sh").into_iter().flat_map(|block| commands(block, program.get_name())) {
            seen += 1;
            let problem = problem_of(program, &words);
            wrong.extend(problem.map(|why| format!("{page}: {}\n{why}", words.join(" "))));
        }
        for rest in text.split(&format!("`{} ", program.get_name())).skip(1) {
            let word: String = rest.chars().take_while(|it| it.is_ascii_lowercase() || *it == '-').collect();
            let is_named = !word.is_empty() && !word.starts_with('-');
            if is_named && program.find_subcommand(&word).is_none() && word != "help" {
                wrong.push(format!("{page}: there is no {} {word}", program.get_name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_a_shell_does() {
        let line = "DROVER_USER=u drover plan check a.yaml && sudo drover copy 'a b' c > log; drover-lab wan # drover no";
        let expected = [vec!["drover", "plan", "check", "a.yaml"], vec!["drover", "copy", "a b", "c"]];
        assert_eq!(of_line(line, "drover"), expected);
    }
}
