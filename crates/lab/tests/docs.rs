//! The documents hold together: their links lead somewhere, and the README stays short.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// A newcomer reads the README from top to bottom.
const README_LINES_MAX: usize = 100;

/// Words of a page, which has one reader and one task.
const PAGE_WORDS_MAX: usize = 2_500;

/// The folders of `docs`, one for each need of a reader.
const FOLDERS: [&str; 5] = ["tutorial", "how-to", "reference", "explanation", "dev"];

/// The Markdown files of one folder, sorted.
fn pages_of(folder: &Path) -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect();
    pages.sort();
    pages
}

/// The pages of `docs`, by their paths from there.
fn docs() -> Vec<PathBuf> {
    let root = drover_lab::workspace().join("docs");
    FOLDERS
        .iter()
        .flat_map(|folder| pages_of(&root.join(folder)))
        .map(|page| page.strip_prefix(&root).unwrap().to_owned())
        .collect()
}

/// Every page for readers: those at the top, `docs`, `bench` and the lab's own.
fn pages() -> Vec<PathBuf> {
    let root = drover_lab::workspace();
    let folders = ["", "docs", "bench", "lab/vsphere-sim", "lab/vddk-standin", "lab/guests"];
    folders
        .iter()
        .flat_map(|folder| pages_of(&root.join(folder)))
        .chain(docs().into_iter().map(|page| root.join("docs").join(page)))
        .collect()
}

/// What the links of a page lead to. A link to the web or within the page is none of these.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|target| {
        let is_web = target.contains("://") || target.starts_with("mailto:");
        !is_web && !target.starts_with('#') && !target.contains(char::is_whitespace)
    })
}

/// The part of a link behind `#` that leads to a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    heading
        .to_lowercase()
        .chars()
        .filter(|it| plain(*it))
        .map(|it| if it == ' ' { '-' } else { it })
        .collect()
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim()).any(|heading| anchor(heading) == wanted)
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            let (file, part) = target.split_once('#').unwrap_or((target, ""));
            seen += 1;
            let path = page.parent().unwrap().join(file);
            let is_there = match part {
                "" => path.exists(),
                _ => std::fs::read_to_string(&path).is_ok_and(|text| has_heading(&text, part)),
            };
            if !is_there {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
        let within = text.split("](#").skip(1).filter_map(|rest| rest.split(')').next());
        broken.extend(
            within.filter(|part| !has_heading(&text, part)).map(|it| format!("{}: #{it}", page.display())),
        );
    }
    assert!(seen > 50, "no links were found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn index_and_summary_name_every_page() {
    let pages = docs();
    assert!(pages.len() > 20, "no pages were found");
    for list in ["README.md", "SUMMARY.md"] {
        let text = std::fs::read_to_string(drover_lab::workspace().join("docs").join(list)).unwrap();
        for page in &pages {
            let page = page.display();
            assert!(text.contains(&format!("]({page})")), "{page} is not in docs/{list}");
        }
    }
}

/// Errors, comments and scripts send readers to pages.
#[test]
fn pages_that_the_code_names_exist() {
    let root = drover_lab::workspace();
    let mut folders: Vec<PathBuf> =
        ["bin", "crates", "contrib", "fuzz/src", "lab", "scripts"].map(|folder| root.join(folder)).into();
    let (mut seen, mut missing) = (0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
                continue;
            }
            // What is no text names no page.
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            for rest in text.split("docs/").skip(1) {
                let fits = |letter: char| letter.is_ascii_lowercase() || matches!(letter, '/' | '-' | '.');
                let end = rest.find(|letter| !fits(letter)).unwrap_or(rest.len());
                let name = rest[..end].trim_end_matches('.');
                if FOLDERS.iter().any(|folder| name.starts_with(&format!("{folder}/")))
                    && name.ends_with(".md")
                {
                    seen += 1;
                    missing.extend(
                        (!root.join("docs").join(name).exists())
                            .then(|| format!("{}: {name}", path.display())),
                    );
                }
            }
        }
    }
    assert!(seen > 20, "no names of pages were found");
    assert!(missing.is_empty(), "pages that are not there:\n{}", missing.join("\n"));
}

#[test]
fn no_page_is_too_long() {
    let root = drover_lab::workspace().join("docs");
    for page in docs() {
        let words = std::fs::read_to_string(root.join(&page)).unwrap().split_whitespace().count();
        assert!(words <= PAGE_WORDS_MAX, "{} has {words} words: split it", page.display());
    }
}

#[test]
fn the_glossary_has_each_word_once() {
    let text = std::fs::read_to_string(drover_lab::workspace().join("docs/reference/glossary.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| **")?.split(" | ").next());
    let words: Vec<&str> =
        rows.flat_map(|words| words.split("**").step_by(2)).filter(|it| !it.is_empty()).collect();
    let firsts: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| **")?.split("**").next())
        .map(str::to_lowercase)
        .collect();
    assert!(firsts.len() > 40 && firsts.is_sorted(), "{firsts:?}");
    for (at, word) in words.iter().enumerate() {
        assert!(!words[..at].contains(word), "{word} is there twice");
    }
    for word in ["wave", "window", "slot", "hook", "epoch", "evidence", "rehearsal"] {
        assert!(words.contains(&word), "{word} is not there");
    }
}

#[test]
fn the_readme_is_short() {
    let text = std::fs::read_to_string(drover_lab::workspace().join("README.md")).unwrap();
    assert!(text.lines().count() <= README_LINES_MAX, "the README has more than {README_LINES_MAX} lines");
}

/// Phrases that no message has; what to write in their place stands behind them.
static PHRASES: [(&str, &str); 9] = [
    ("defect of drover", "internal error"),
    ("goes ahead", "switches to post-copy"),
    ("went ahead", "is in post-copy"),
    ("gone ahead", "is in post-copy"),
    ("stands still", "is paused; downtime"),
    ("stood still", "was paused; downtime"),
    ("gone on with", "resumed"),
    ("told twice", "given twice"),
    ("say it again", "run the command again"),
];

/// The first phrase of a source file that stands outside comments and unit tests, with its line.
fn phrase_of(source: &str) -> Option<(usize, &'static str, &'static str)> {
    // Unit tests stand last in their files.
    let source = source.split("\nmod tests {").next().unwrap_or(source);
    let lines = source.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    lines
        .flat_map(|(at, line)| PHRASES.iter().filter(move |it| line.contains(it.0)).map(move |it| (at, it)))
        .map(|(at, (phrase, instead))| (at + 1, *phrase, *instead))
        .next()
}

#[test]
fn messages_speak_the_words_of_the_field() {
    assert_eq!(
        phrase_of("// it goes ahead\nlet x = \"it went ahead\";"),
        Some((2, "went ahead", "is in post-copy"))
    );
    let mut left: Vec<PathBuf> = ["bin", "crates"].map(|it| drover_lab::workspace().join(it)).into();
    let mut looked_at = 0;
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "lab"].contains(&name.as_str()) {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if name.ends_with(".rs") && name != "tests.rs" {
            looked_at += 1;
            let found = phrase_of(&std::fs::read_to_string(&path).unwrap());
            assert_eq!(found, None, "in {}", path.display());
        }
    }
    assert!(looked_at > 300, "{looked_at} files");
}
