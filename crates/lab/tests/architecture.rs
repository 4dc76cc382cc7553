//! Holds the arrows that ARCHITECTURE.md draws against what the crates really use.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

type Graph = BTreeMap<String, BTreeSet<String>>;

fn drawn() -> Graph {
    let text = std::fs::read_to_string(drover_lab::workspace().join("ARCHITECTURE.md")).unwrap();
    let block = text.split("```arrows\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let line = |line: &str| {
        let (name, uses) = line.split_once("->").unwrap_or_else(|| panic!("an arrow in '{line}'"));
        (name.trim().to_string(), uses.split_whitespace().map(str::to_string).collect())
    };
    block.lines().map(line).collect()
}

fn metadata(options: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(options)
        .current_dir(drover_lab::workspace())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn real() -> Graph {
    let metadata = metadata(&["--no-deps"]);
    let short = |name: &Value| name.as_str().unwrap().trim_start_matches("drover-").to_string();
    let uses = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let ours = dependencies
            .filter(|it| it["name"].as_str().unwrap().starts_with("drover-") && it["kind"].is_null());
        ours.map(|it| short(&it["name"])).collect()
    };
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| (short(&package["name"]), uses(package)))
        .collect()
}

/// Who uses each crate directly, outside tests, with all crates of others.
fn users() -> Graph {
    let metadata = metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let packages = metadata["packages"].as_array().unwrap().iter();
    let names: BTreeMap<&str, &str> =
        packages.map(|it| (it["id"].as_str().unwrap(), it["name"].as_str().unwrap())).collect();
    let mut users = Graph::new();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let user = names[node["id"].as_str().unwrap()];
        let is_real = |it: &&Value| it["dep_kinds"].as_array().unwrap().iter().any(|it| it["kind"].is_null());
        for used in node["deps"].as_array().unwrap().iter().filter(is_real) {
            let used = names[used["pkg"].as_str().unwrap()];
            users.entry(used.to_string()).or_default().insert(user.to_string());
        }
    }
    users
}

#[test]
fn crates_that_only_some_may_use_are_used_by_them_alone() {
    let text = std::fs::read_to_string(drover_lab::workspace().join("deny.toml")).unwrap();
    let users = users();
    let mut rules = 0;
    for rule in text.lines().filter_map(|line| line.trim().strip_prefix("{ crate = ")) {
        let mut quoted = rule.split('"').skip(1).step_by(2).map(str::to_string);
        let name = quoted.next().unwrap();
        let real = users.get(&name).cloned().unwrap_or_default();
        assert_eq!(real, quoted.collect(), "{name}: left: who uses it; right: who may, by deny.toml");
        rules += 1;
    }
    assert!(rules > 5, "{rules} rules were read of deny.toml");
}

#[test]
fn crates_use_each_other_as_architecture_md_draws() {
    assert_eq!(real(), drawn(), "left: the workspace; right: ARCHITECTURE.md");
}

#[test]
fn arrows_have_no_circle() {
    let mut left = real();
    while !left.is_empty() {
        let free: Vec<String> = left
            .iter()
            .filter(|(_, uses)| uses.iter().all(|it| !left.contains_key(it)))
            .map(|(name, _)| name.clone())
            .collect();
        assert!(!free.is_empty(), "a circle among {:?}", left.keys());
        free.iter().for_each(|name| drop(left.remove(name)));
    }
}

/// Crates whose line in ARCHITECTURE.md begins so.
fn marked(mark: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(drover_lab::workspace().join("ARCHITECTURE.md")).unwrap();
    let name = |line: &str| {
        let (name, rest) = line.strip_prefix("| `crates/")?.split_once("` | ")?;
        rest.starts_with(mark).then(|| name.to_string())
    };
    text.lines().filter_map(name).collect()
}

#[test]
fn the_program_is_built_of_nothing_that_is_for_development_only() {
    let real = real();
    let lab = marked("development only");
    assert!(lab.contains("lab"), "{lab:?}");
    let mut left = vec!["drover".to_string()];
    let mut seen = BTreeSet::new();
    while let Some(name) = left.pop() {
        assert!(
            !lab.contains(&name),
            "drover is built of {name}, which ARCHITECTURE.md calls development only"
        );
        left.extend(real[&name].iter().filter(|it| seen.insert((*it).clone())).cloned());
    }
}

#[test]
fn pure_crates_touch_no_clock_socket_thread_or_file() {
    let whole = marked("*pure*");
    assert!(["copy", "live", "operator", "schedule"].iter().all(|it| whole.contains(*it)), "{whole:?}");
    let folders = whole.iter().map(|name| format!("{name}/src"));
    for name in folders.chain(["wan/src/line".into(), "link/src/core".into()]) {
        let folder = drover_lab::workspace().join("crates").join(name);
        for file in rust_files(&folder) {
            // Unit tests have files of their own, or stand last in those of what they test.
            if file.ends_with("tests.rs") || file.to_string_lossy().contains("/tests/") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            let text = text.split("\nmod tests {").next().unwrap();
            assert_eq!(impure(text), None, "in {}", file.display());
        }
    }
}

/// The first word that a pure crate has no use for, wherever it is imported from.
fn impure(text: &str) -> Option<&str> {
    let starts =
        text.char_indices().filter(|(at, _)| !text[..*at].ends_with(is_part)).map(|(at, _)| &text[at..]);
    let word = |rest: &'_ str| rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
    starts.map(|rest| rest.split_at(word(rest))).find_map(|(word, rest)| {
        let is_found = WORDS.contains(&word) || (MODULES.contains(&word) && rest.starts_with("::"));
        is_found.then_some(word)
    })
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

const MODULES: [&str; 2] = ["fs", "thread"];
const WORDS: [&str; 10] = [
    "Instant",
    "SystemTime",
    "Mutex",
    "RwLock",
    "Condvar",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
];

#[test]
fn a_clock_is_found_however_it_is_imported() {
    assert_eq!(impure("use std::time::{Duration, Instant};"), Some("Instant"));
    assert_eq!(impure("use std::{fs, io};\nfs::read(path)"), Some("fs"));
    assert_eq!(impure("struct Instantly; // of an instant"), None);
}

#[test]
fn children_of_the_program_are_made_in_one_place_that_gives_them_no_secret() {
    // Development only, but for `drover-lab wan`, whose command is the user's own.
    let exempt = [
        "crates/child/",
        "crates/lab/",
        "crates/stage/",
        "crates/wan/",
        "drover-lab/src/clone/",
        "drover-lab/src/wan.rs",
        "/tests.rs",
        "/tests/",
    ];
    let folders = ["crates", "bin"].map(|name| drover_lab::workspace().join(name));
    let (mut looked_at, mut makers) = (0, 0);
    for file in folders.iter().flat_map(|folder| rust_files(folder)) {
        let name = file.to_string_lossy().into_owned();
        if !name.ends_with(".rs") || !name.contains("/src/") || exempt.iter().any(|it| name.contains(it)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        // Unit tests stand last in their files.
        let text = text.split("mod tests {").next().unwrap();
        looked_at += 1;
        makers += usize::from(text.contains("drover_child::command("));
        // The command line's are none.
        let text = text.replace("clap::Command::new(", "");
        assert!(!text.contains("Command::new("), "{name}: make it with drover_child::command");
    }
    assert!(looked_at > 100 && makers > 10, "{looked_at} files with {makers} makers were looked at");
}

fn rust_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}
