//! Units of systemd that are shipped.

use crate::program;
use std::path::Path;
use std::process::{Command, Stdio};

/// Has systemd look at a unit, with the program that was built here in the place of the installed one.
pub fn assert_sound(name: &str, begin: &str) {
    if Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name);
    let text = std::fs::read_to_string(shipped).unwrap();
    let program = program().display().to_string();
    assert!(text.contains(begin));
    let unit = folder.path().join(name);
    std::fs::write(&unit, text.replace("/usr/bin/drover", &program)).unwrap();
    let analyze = |args: &[&str]| {
        let output = Command::new("systemd-analyze").args(args).arg(&unit).output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    };
    let (is_sound, said) = analyze(&["verify", "--man=no"]);
    assert!(is_sound && !said.contains(&format!("{name}:")), "{said}");
    // In tenths: what it may do beyond what it needs.
    let (is_tight, said) = analyze(&["security", "--offline=yes", "--threshold=35", "--no-pager"]);
    if said.contains("unrecognized option") || said.contains("Unknown option") {
        println!("skipped: this systemd-analyze judges no unit that is not loaded");
        return;
    }
    assert!(is_tight, "{said}");
}
