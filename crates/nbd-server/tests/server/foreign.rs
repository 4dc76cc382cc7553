//! Other people's clients: libnbd's and QEMU's.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use drover_disk::{FileDisk, MemDisk, OpenTarget, conformance};

use crate::Stage;

/// Runs a program that must succeed; `None`, after a printed line, where it is not installed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let Output { status, stdout, stderr } = output(program, args)?;
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {args:?}: {status}\n{out}{err}");
    Some(out.into_owned())
}

fn output(program: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    if output.is_err() {
        println!("skipped: {program} is not installed");
    }
    output.ok()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn file_stage(content: &[u8]) -> (Stage, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, content).unwrap();
    let how = OpenTarget { size: content.len() as u64, create: false, resume: true };
    let mut stage = Stage::writable(FileDisk::open_target(&path, how).unwrap());
    let path = folder.path().join("disk");
    stage.more = Some(folder);
    (stage, path)
}

#[test]
fn nbdinfo_sees_what_there_is() {
    let content = conformance::pattern(4 << 20);
    let stage = Stage::readable(MemDisk::new("a", content));
    let uri = stage.uri().to_string();
    let Some(info) = run("nbdinfo", &[&uri]) else { return };
    for line in [
        "export-size: 4194304",
        "base:allocation",
        "is_read_only: true",
        "can_df: true",
        "can_multi_conn: true",
    ] {
        assert!(info.contains(line), "'{line}' is not in:\n{info}");
    }
    assert!(run("nbdinfo", &["--list", &uri]).unwrap().contains("export=\"\""));
    let map = run("nbdinfo", &["--map", &uri]).unwrap();
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let expected = [
        ["0", "1048576", "0"],
        ["1048576", "1048576", "3"],
        ["2097152", "1048576", "0"],
        ["3145728", "1048576", "3"],
    ];
    assert_eq!(lines, expected, "{map}");
}

#[test]
fn nbdcopy_copies_out_and_in() {
    let content = conformance::pattern((9 << 20) + 4096);
    let stage = Stage::readable(MemDisk::new("a", content.clone()));
    let out = stage.folder.path().join("out");
    if run("nbdcopy", &[&stage.uri().to_string(), text(&out)]).is_none() {
        return;
    }
    assert!(std::fs::read(&out).unwrap() == content);
    for size in [1, 511, 512, 65537] {
        let content = conformance::pattern(size);
        let odd = Stage::readable(MemDisk::new("odd", content.clone()));
        let out = odd.folder.path().join("out");
        run("nbdcopy", &[&odd.uri().to_string(), text(&out)]);
        assert!(std::fs::read(&out).unwrap() == content, "{size} bytes");
    }
    let disk = MemDisk::new("b", vec![0xee; content.len()]);
    let stage = Stage::writable(disk.clone());
    run("nbdcopy", &["--flush", text(&out), &stage.uri().to_string()]);
    assert!(disk.content() == content && !disk.has_unflushed());
}

#[test]
fn qemu_img_copies_out_and_in_and_compares() {
    let content = conformance::pattern(8 << 20);
    let (stage, path) = file_stage(&content);
    let uri = stage.uri().to_string();
    let out = stage.folder.path().join("out");
    if run("qemu-img", &["convert", "-O", "raw", &uri, text(&out)]).is_none() {
        return;
    }
    assert!(std::fs::read(&out).unwrap() == content);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&out), &uri]);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]).unwrap();
    assert!(map.contains("\"zero\": false"), "{map}");
    let other: Vec<u8> = content.iter().rev().copied().collect();
    std::fs::write(&out, &other).unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&out), &uri]);
    assert!(std::fs::read(&path).unwrap() == other);
}

#[test]
fn qemu_io_writes_zeroes_trims_and_flushes() {
    let (stage, path) = file_stage(&vec![0xee; 4 << 20]);
    let uri = stage.uri().to_string();
    let commands = [
        "write -P 0x11 0 64k",
        "write -f -P 0x22 64k 64k",
        "write -z 128k 64k",
        "write -z -u 192k 64k",
        "discard 256k 64k",
        "flush",
        "read -P 0x11 0 64k",
        "read -P 0x22 64k 64k",
        "read -P 0 128k 64k",
        "read -P 0 192k 64k",
        "read -P 0 256k 64k",
        "read -P 0xee 320k 1M",
        "write -P 0x33 4095k 1k",
    ];
    let args: Vec<&str> = commands
        .iter()
        .flat_map(|command| ["-c", command])
        .chain(["-d", "unmap", "-f", "raw", &uri])
        .collect();
    let Some(said) = run("qemu-io", &args) else { return };
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    let content = std::fs::read(&path).unwrap();
    assert!(content[..64 << 10].iter().all(|byte| *byte == 0x11));
    assert!(content[64 << 10..128 << 10].iter().all(|byte| *byte == 0x22));
    assert!(content[128 << 10..320 << 10].iter().all(|byte| *byte == 0));
    assert!(content[320 << 10..4095 << 10].iter().all(|byte| *byte == 0xee));
    assert!(content[4095 << 10..].iter().all(|byte| *byte == 0x33));
}

#[test]
fn a_read_only_export_refuses_writers() {
    let stage = Stage::readable(MemDisk::new("a", vec![7; 1 << 20]));
    let uri = stage.uri().to_string();
    let Some(output) = output("qemu-io", &["-f", "raw", "-c", "write 0 4k", &uri]) else { return };
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(said.contains("permission denied"), "{said}");
}
