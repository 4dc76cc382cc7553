//! `drover copy SOURCE -`.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::process::{Command, Stdio};

use drover_stage::{MIB, disk_file};

fn drover(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drover"));
    command.args(args).stdin(Stdio::null());
    command
}

#[test]
fn a_disk_goes_through_a_pipe_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    for size in [0, 1, 65_537, 9 * MIB + 3] {
        let source = disk_file(folder.path(), "source", size);
        let source = source.to_str().unwrap();
        let output = drover(&["copy", source, "-"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == std::fs::read(source).unwrap(), "{size}");
        let root = drover(&["hash", source, "--quiet"]).output().unwrap().stdout;
        let root = String::from_utf8(root).unwrap();
        assert!(String::from_utf8(output.stderr).unwrap().contains(root.trim()), "{size}");
    }
}

#[test]
fn holes_are_written_as_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("sparse");
    std::fs::File::create(&source).unwrap().set_len(40 * MIB + 1).unwrap();
    let output = drover(&["copy", source.to_str().unwrap(), "-"]).output().unwrap();
    assert_eq!(output.stdout.len() as u64, 40 * MIB + 1);
    assert!(output.stdout.iter().all(|byte| *byte == 0));
}

#[test]
fn a_reader_that_goes_away_ends_it_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let source = disk_file(folder.path(), "source", 16 * MIB);
    let mut child = drover(&["copy", source.to_str().unwrap(), "-", "--quiet"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(141), 0), "{output:?}");
    assert!(first[..] == std::fs::read(&source).unwrap()[..1000]);
}

#[test]
fn what_a_stream_cannot_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = disk_file(folder.path(), "source", MIB);
    let source = source.to_str().unwrap();
    for more in [&["--verify", "full"][..], &["--format", "qcow2"], &["--journal", "x"], &["--json"]] {
        let output = drover(&[&["copy", source, "-"], more].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{more:?}: {said}");
        assert!(said.contains("does not go with -"), "{said}");
    }
    assert_eq!(drover(&["copy", "-", source]).output().unwrap().status.code(), Some(2));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = drover(&["copy", source, "-"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("No space left") && said.contains("make room"), "{said}");
}

#[test]
fn a_stream_does_not_go_into_its_own_source_or_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let source = disk_file(folder.path(), "source", MIB);
    let image = folder.path().join("image.qcow2");
    let before = std::fs::read(&source).unwrap();
    let (from, drover_at) = (source.to_str().unwrap(), env!("CARGO_BIN_EXE_drover"));
    let made = drover(&["copy", from, image.to_str().unwrap(), "--quiet"]).status().unwrap();
    assert!(made.success());
    let shell = |line: &str, code: i32, words: &str| {
        let output = Command::new("sh").args(["-c", line, drover_at, from, image.to_str().unwrap()]).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    };
    shell("$0 copy $1 - 1<>$1", 2, "standard output is the source");
    shell("$0 copy $1 - >>$1", 2, "standard output is the source");
    shell("$0 copy $2 - 1<>$2", 2, "standard output is the source");
    shell("$0 copy $1 - >&-", 2, "standard output is closed");
    assert!(std::fs::read(&source).unwrap() == before, "the source is as it was");
    // Both are what was asked for, and a file that is open under another number is none of the source.
    shell("$0 copy $1 - >/dev/null", 0, "written");
    shell("exec 3>$2; $0 copy $1 - >&3", 0, "written");
    assert!(std::fs::read(&image).unwrap() == before);
}
