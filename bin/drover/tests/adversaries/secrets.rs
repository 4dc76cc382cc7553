//! Where a secret must not be: in what children inherit, and in what is left.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::tally::{Kind, Violation};

/// Looks through the environment and arguments of all that descends from a process until it is dropped or asked.
pub fn watch_children(root: u32, needles: &[String], is_over: &AtomicBool) -> Option<Violation> {
    let mut seen = BTreeSet::new();
    while !is_over.load(Ordering::SeqCst) {
        // Its own environment is where the password comes from; its arguments are not.
        if let Some(found) = look_at(root, &["cmdline"], needles) {
            return Some(found);
        }
        let mut open = vec![root];
        while let Some(process) = open.pop() {
            for child in children_of(process) {
                seen.insert(child);
                open.push(child);
            }
        }
        // Also those whose parent has left them.
        let found = seen.iter().find_map(|child| look_at(*child, &["environ", "cmdline"], needles));
        if found.is_some() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

fn children_of(process: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    let all: Vec<String> = threads.flatten().filter_map(|thread| of(thread).ok()).collect();
    all.iter().flat_map(|line| line.split_whitespace()).filter_map(|id| id.parse().ok()).collect()
}

/// A process's files that say a secret; its name and the file.
pub fn look_at(process: u32, files: &[&str], needles: &[String]) -> Option<Violation> {
    let read = |file: &str| std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    files.iter().find_map(|file| {
        let needle = needles.iter().find(|needle| holds(&read(file), needle))?;
        // A child has its parent's whole environment between fork and exec: then it is still drover, by its name too. strace is none
        // of its children. Read once more, because it may have executed its program between two looks.
        let name = String::from_utf8_lossy(&read("comm")).trim().to_string();
        let is_own = *file == "environ" && (name.starts_with("drover") || name == "strace");
        let is_there = !is_own && holds(&read(file), needle);
        is_there
            .then(|| Violation::new(Kind::Secret, format!("'{needle}' in /proc/{process}/{file} of {name}")))
    })
}

/// A secret in a file below `folder`; `skip` are names that hold it rightly.
pub fn look_below(folder: &Path, needles: &[String], skip: &[&str]) -> Result<(), Violation> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if skip.iter().any(|skipped| name == *skipped) {
            continue;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            look_below(&path, needles, skip)?;
        } else if kind.is_file() {
            let content = std::fs::read(&path).unwrap_or_default();
            if let Some(needle) = needles.iter().find(|needle| holds(&content, needle)) {
                return Err(Violation::new(Kind::Secret, format!("'{needle}' in {}", path.display())));
            }
        }
    }
    Ok(())
}

fn holds(bytes: &[u8], needle: &str) -> bool {
    let needle = needle.as_bytes();
    let first = needle[0];
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == first) {
        at += found;
        if bytes[at..].starts_with(needle) {
            return true;
        }
        at += 1;
    }
    false
}
