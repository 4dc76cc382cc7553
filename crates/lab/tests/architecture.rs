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

fn real() -> Graph {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(drover_lab::workspace())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
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

#[test]
fn pure_crates_touch_no_clock_socket_thread_or_file() {
    for name in [
        "types/src",
        "copy/src",
        "plan/src",
        "forecast/src",
        "wan/src/line",
        "wire/src",
        "link/src/core",
        "pack/src",
    ] {
        let folder = drover_lab::workspace().join("crates").join(name);
        for file in rust_files(&folder) {
            let text = std::fs::read_to_string(&file).unwrap();
            for word in
                ["std::fs", "std::net", "std::thread", "std::time::Instant", "SystemTime", "Mutex", "RwLock"]
            {
                assert!(!text.contains(word), "{} uses {word}", file.display());
            }
        }
    }
}

#[test]
fn children_of_the_program_are_made_in_one_place_that_gives_them_no_secret() {
    // Development only, but for `lab wan`, whose command is the user's own.
    let exempt = ["crates/child/", "crates/lab/", "crates/wan/", "commands/lab.rs", "/tests.rs", "/tests/"];
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
        assert!(!text.contains("Command::new("), "{name}: make it with drover_child::command");
    }
    assert!(looked_at > 100 && makers > 10, "{looked_at} files with {makers} makers were looked at");
}

fn rust_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}
