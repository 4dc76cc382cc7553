//! `drover copy --no-hash`: shared blocks where the file system can, a plain copy where not.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use drover_stage::{MIB, disk_file, same_bytes};

fn copy(source: &Path, target: &Path, more: &[&str]) -> Output {
    let args = ["copy", source.to_str().unwrap(), target.to_str().unwrap(), "--no-hash"];
    Command::new(env!("CARGO_BIN_EXE_drover")).args(args).args(more).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn where_no_blocks_can_be_shared_it_says_so_and_copies() {
    let folder = tempfile::tempdir().unwrap();
    let source = disk_file(folder.path(), "source", 3 * MIB + 7);
    let target = folder.path().join("target");
    let output = copy(&source, &target, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(same_bytes(&source, &target));
    let (shared, copied) =
        (said(&output).contains("(reflink)"), said(&output).contains("no blocks can be shared"));
    assert!(shared != copied, "{}", said(&output));
    assert_eq!(copy(&source, &folder.path().join("x"), &["--verify", "full"]).status.code(), Some(2));
    let image = folder.path().join("image.qcow2");
    let output = copy(&source, &image, &[]);
    assert!(said(&output).contains("no raw file"), "{}", said(&output));
}

#[test]
fn on_btrfs_the_blocks_are_shared_and_the_source_stays_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("btrfs");
    std::fs::File::create(&image).unwrap().set_len(256 * MIB).unwrap();
    let at = folder.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let ran = |program: &str, args: &[&str]| {
        let path = "/usr/sbin:/sbin:/usr/bin:/bin";
        Command::new(program)
            .args(args)
            .env("PATH", path)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let mounted = ran("mkfs.btrfs", &["-q", image.to_str().unwrap()])
        && ran("mount", &["-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()]);
    if !mounted {
        println!("skipped: no btrfs can be made and mounted here");
        return;
    }
    let source = disk_file(&at, "source", 24 * MIB + 5);
    let target = at.join("target");
    let first = copy(&source, &target, &[]);
    let equal = target.exists() && same_bytes(&source, &target);
    std::fs::write(&source, b"other").unwrap();
    let kept = std::fs::metadata(&target).map(|meta| meta.len()).unwrap_or(0);
    let again = copy(&source, &target, &[]);
    ran("umount", &[at.to_str().unwrap()]);
    assert_eq!(first.status.code(), Some(0), "{}", said(&first));
    assert!(said(&first).contains("(reflink), no byte copied: not hashed, not verified"), "{}", said(&first));
    assert!(equal && kept == 24 * MIB + 5);
    assert_eq!(again.status.code(), Some(7), "what is there is kept: {}", said(&again));
}
