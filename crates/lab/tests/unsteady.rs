//! `scripts/test-workspace`: what it makes of tests that fail, with a program in cargo's place.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use drover_lab::{put_script, workspace};

/// Runs the script with a cargo that says `first` and fails, then, called for one test, runs `again`; its exit code, and what it printed.
fn run(folder: &Path, first: &str, again: &str, is_strict: bool) -> (Option<i32>, String) {
    std::fs::write(folder.join("first"), first).unwrap();
    let first = folder.join("first").display().to_string();
    let cargo = format!("case \"$2\" in --no-fail-fast) cat {first}; exit 101 ;; esac\n{again}\n");
    run_with(folder, &["--workspace"], &cargo, is_strict)
}

/// Runs the script with these arguments and this cargo.
fn run_with(folder: &Path, arguments: &[&str], cargo: &str, is_strict: bool) -> (Option<i32>, String) {
    let program = folder.join("cargo");
    put_script(&program, &format!("echo \"$@\" >>{}\n{cargo}", folder.join("calls").display())).unwrap();
    let mut script = Command::new(workspace().join("scripts/test-workspace"));
    script.args(arguments).env("CARGO", &program).env("DROVER_STRICT", if is_strict { "1" } else { "0" });
    let output = script.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// A cargo for all lanes: what is said by that of guests that move, for one of its suites, by that of programs, and for one test.
fn in_lanes(folder: &Path, live: &str, other: &str, again: &str) -> String {
    for (name, text) in [("live", live), ("other", other)] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let say = |name: &str| format!("cat {0}; [ ! -s {0} ] || exit 101", folder.join(name).display());
    let (live, other) = (say("live"), say("other"));
    format!(
        "case \"$*\" in\n*--exact*) {again} ;;\n*--no-run*|*--doc*) ;;\n*'--test live_link'*) {live} ;;\n*--lib*) {other} ;;\nesac\n"
    )
}

fn told(names: &[&str], suite: &str) -> String {
    let lines: String = names.iter().map(|name| format!("test {name} ... FAILED\n")).collect();
    format!("test fine ... ok\n{lines}test result: FAILED.\nerror: test failed, to rerun pass `{suite}`\n")
}

const PASSES: &str = "echo 'test result: ok. 1 passed; 0 failed'";

#[test]
fn a_test_that_passes_alone_is_named_and_the_run_passes() {
    let folder = tempfile::tempdir().unwrap();
    let first = "a child's last words, ".to_string() + &told(&["a::b", "c"], "-p drover --test warm");
    let first = first.replace("test fine ... ok\n", "") + &told(&["d"], "-p drover-relay --lib");
    let (code, out) = run(folder.path(), &first, PASSES, false);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.ends_with("to be mended:\n  a::b\n  c\n  d\n"), "{out}");
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let one = "test --workspace --lib -- --exact d --test-threads=1 --include-ignored";
    assert_eq!(calls.lines().filter(|line| *line == one).count(), 3, "{calls}");
    assert_eq!(calls.lines().count(), 10, "{calls}");
}

#[test]
fn what_fails_again_or_is_not_found_or_nobody_named_fails_the_run() {
    let third =
        "[ $(wc -l <\"${0%/*}/calls\") -lt 4 ] || exit 101; echo 'test result: ok. 1 passed; 0 failed'";
    let none = "echo 'test result: ok. 0 passed; 0 failed'";
    let suite = "-p drover --test warm";
    for (first, again, words) in [
        (told(&["a"], suite), third, "a FAILED again"),
        (told(&["a"], suite), "exit 101", "a FAILED again"),
        (told(&["a"], suite), none, "a FAILED again"),
        (told(&["a"], suite) + &told(&[], suite), PASSES, "not by a test that could be run again"),
        (
            told(&["a"], suite).replace("test result: FAILED.\n", ""),
            PASSES,
            "not by a test that could be run again",
        ),
        ("error: could not compile `x`\n".to_string(), PASSES, "not by a test that could be run again"),
        (told(&["a", "b", "c", "d"], suite), PASSES, "more than 3 failed"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (code, out) = run(folder.path(), &first, again, false);
        assert_eq!(code, Some(1), "{out}");
        assert!(out.contains(words), "{out}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), &told(&["a"], suite), PASSES, true).0, Some(1));
}

#[test]
fn without_arguments_all_suites_run_once_in_their_lanes() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out) = run_with(folder.path(), &[], &in_lanes(folder.path(), "", "", "exit 101"), true);
    assert_eq!(code, Some(0), "{out}");
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let named: Vec<&str> = calls
        .split_whitespace()
        .skip_while(|word| *word != "--test")
        .filter(|word| !word.starts_with('-'))
        .collect();
    for name in ["live", "live_link", "unsteady", "fuzz", "copy", "pair"] {
        assert_eq!(named.iter().filter(|other| **other == name).count(), 1, "{name}: {calls}");
    }
    assert_eq!(
        calls.lines().filter(|line| line.contains("--lib --bins") || line.contains("--doc")).count(),
        2
    );
}

#[test]
fn what_fails_in_any_lane_is_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let (live, other) = (told(&["a"], "-p drover --test live_link"), told(&["b"], "-p drover --test warm"));
    let cargo = in_lanes(folder.path(), &live, &other, PASSES);
    let (code, out) = run_with(folder.path(), &[], &cargo, false);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("test a ... FAILED") && out.contains("test b ... FAILED"), "{out}");
    assert!(
        out.ends_with("to be mended:\n  a\n  b\n") || out.ends_with("to be mended:\n  b\n  a\n"),
        "{out}"
    );
    let folder = tempfile::tempdir().unwrap();
    let cargo = in_lanes(folder.path(), &live, "error: out of memory\n", PASSES);
    let (code, out) = run_with(folder.path(), &[], &cargo, false);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("not by a test that could be run again"), "{out}");
}
