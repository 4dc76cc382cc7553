//! `drover hash`, `drover verify` and `drover copy --verify`.
#![allow(clippy::unwrap_used)]

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use drover_lab::{Drover, Output};
use drover_stage::{MIB, disk_file, signer};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn run(drover: &Drover, args: &[&str], code: i32) -> Output {
    let output = drover.run(args).unwrap();
    assert_eq!(output.code, Some(code), "{args:?}: {}{}", output.out, output.err);
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn a_disk_has_the_root_that_its_copy_has() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 9 * MIB + 77);
    let target = folder.path().join("target");
    let copied = run(&drover, &["copy", text(&source), text(&target)], 0).err;
    let root = run(&drover, &["hash", text(&target), "--quiet"], 0).out;
    assert_eq!(root.trim().len(), 64);
    assert!(copied.contains(root.trim()), "{root} is not in {copied}");
    let json = run(&drover, &["hash", text(&target), "--json"], 0);
    let done =
        json.out.lines().last().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).unwrap();
    assert_eq!((done["root"].as_str(), done["size"].as_u64()), (Some(root.trim()), Some(9 * MIB + 77)));
    run(&drover, &["hash", "/no/such/disk"], 6);
}

#[test]
fn differences_between_two_disks_are_told_with_their_place() {
    let (folder, drover) = setup();
    let a = disk_file(folder.path(), "a", 5 * MIB + 3);
    let b = folder.path().join("b");
    std::fs::copy(&a, &b).unwrap();
    let said = run(&drover, &["verify", text(&a), text(&b)], 0).err;
    assert!(said.contains("equal: 81 of 81 blocks compared") && said.contains("root "), "{said}");
    overwrite(&b, 70_000, &[0xaa, 0xbb]);
    overwrite(&b, 5 * MIB + 2, &[0xcc]);
    let said = run(&drover, &["verify", text(&a), text(&b)], 9).err;
    assert!(
        said.contains("differ: bytes 65536 to 131071") && said.contains("81 blocks compared, 2 differ"),
        "{said}"
    );
    let json = run(&drover, &["verify", text(&a), text(&b), "--json"], 9).out;
    let done: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(done["spans"][1]["offset"], 5 * MIB);
    assert_eq!((&done["equal"], &done["spans_complete"]), (&false.into(), &true.into()));
}

#[test]
fn a_longer_disk_differs_unless_that_is_allowed() {
    let (folder, drover) = setup();
    let a = disk_file(folder.path(), "a", 2 * MIB);
    let b = folder.path().join("b");
    std::fs::copy(&a, &b).unwrap();
    std::fs::OpenOptions::new().write(true).open(&b).unwrap().set_len(2 * MIB + 512).unwrap();
    let said = run(&drover, &["verify", text(&a), text(&b)], 9).err;
    assert!(said.contains("has 2097664") && said.contains("NOT EQUAL"), "{said}");
    run(&drover, &["verify", text(&a), text(&b), "--allow-longer"], 0);
}

#[test]
fn a_disk_and_its_image_of_whole_sectors_are_equal_and_what_lies_behind_is_looked_at() {
    let (folder, drover) = setup();
    let a = disk_file(folder.path(), "a", 2_000_000);
    let (image, report) = (folder.path().join("a.qcow2"), folder.path().join("report"));
    let copied = run(&drover, &["copy", text(&a), text(&image), "--verify=full"], 0).err;
    assert!(copied.contains("verified: equal") && copied.contains("the image has 2000384 bytes"), "{copied}");
    let root = run(&drover, &["hash", text(&a), "--output", text(&report), "--quiet"], 0).out;
    for pair in [[&a, &image], [&image, &a]] {
        let said = run(&drover, &["verify", text(pair[0]), text(pair[1])], 0).err;
        assert!(said.contains("equal: 31 of 31") && said.contains("rounded up to whole sectors"), "{said}");
        assert!(said.contains(&format!("root {}", root.trim())), "{root} is not in {said}");
    }
    run(&drover, &["verify", text(&image), "--report", text(&report)], 0);
    let longer = folder.path().join("longer");
    let mut bytes = std::fs::read(&a).unwrap();
    bytes.resize(2_000_384, 0);
    std::fs::write(&longer, &bytes).unwrap();
    let done = run(&drover, &["verify", text(&a), text(&longer), "--json"], 0).out;
    assert!(done.contains("\"rounded\":true"), "{done}");
    *bytes.last_mut().unwrap() = 1;
    std::fs::write(&longer, &bytes).unwrap();
    let said = run(&drover, &["verify", text(&a), text(&longer)], 9).err;
    assert!(said.contains("NOT EQUAL"), "{said}");
}

#[test]
fn a_report_proves_a_disk_years_later() {
    let (folder, drover) = setup();
    let disk = disk_file(folder.path(), "disk", 7 * MIB + 1);
    let report = folder.path().join("disk.report");
    let root = run(&drover, &["hash", text(&disk), "--output", text(&report), "--quiet"], 0).out;
    let said = run(&drover, &["verify", "--report", text(&report), text(&disk)], 0).err;
    assert!(said.contains(root.trim()) && said.contains("report by drover"), "{said}");
    let said = run(&drover, &["hash", text(&disk), "--output", text(&report)], 7).err;
    assert!(said.contains("exists") && said.contains("choose another name"), "{said}");
    overwrite(&disk, 3 * 65536, &[1, 2, 3]);
    let said = run(&drover, &["verify", "--report", text(&report), text(&disk)], 9).err;
    assert!(said.contains("differ: bytes 196608 to 262143"), "{said}");
    overwrite(&report, 300, &[0xff, 0xff]);
    let said = run(&drover, &["verify", "--report", text(&report), text(&disk)], 6).err;
    assert!(said.contains("it is damaged"), "{said}");
    run(&drover, &["verify", "--report", text(&disk), text(&disk)], 6);
    run(&drover, &["verify", text(&disk)], 2);
    run(&drover, &["verify", "--report", text(&report), text(&disk), text(&disk)], 2);
}

#[test]
fn a_report_that_cannot_be_finished_leaves_no_file() {
    let (folder, drover) = setup();
    let report = folder.path().join("report");
    run(&drover, &["hash", "/no/such/disk", "--output", text(&report)], 6);
    assert!(!report.exists());
    let disk = disk_file(folder.path(), "disk", MIB);
    run(&drover, &["hash", text(&disk), "--output", "/no/such/folder/report"], 7);
}

#[test]
fn a_sample_says_what_may_escape_it() {
    let (folder, drover) = setup();
    let a = disk_file(folder.path(), "a", 8 * MIB);
    let b = folder.path().join("b");
    std::fs::copy(&a, &b).unwrap();
    let said = run(&drover, &["verify", text(&a), text(&b), "--sample", "50"], 0).err;
    assert!(said.contains("1 damaged block escapes with a chance of 50.0 %, 10 with 0.097656 %"), "{said}");
    run(&drover, &["verify", text(&a), text(&b), "--sample", "100"], 0);
    run(&drover, &["verify", text(&a), text(&b), "--sample", "101"], 2);
    run(&drover, &["verify", text(&a), text(&b), "--sample", "NaN"], 2);
    run(&drover, &["verify", text(&a), text(&b), "--sample", "5", "--full"], 2);
}

#[test]
fn a_copy_is_verified_in_each_way() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 6 * MIB + 9);
    for how in ["none", "sampled", "full", "source"] {
        let target = folder.path().join(format!("by-{how}"));
        let said = run(&drover, &["copy", text(&source), text(&target), "--verify", how], 0).err;
        assert_eq!(said.contains("verified"), how != "none", "{how}: {said}");
    }
    let said =
        run(&drover, &["copy", text(&source), text(&folder.path().join("x")), "--verify", "source"], 0).err;
    assert!(said.contains("verified against the source: equal"), "{said}");
}

#[test]
fn a_signed_report_tells_its_signer_and_a_changed_one_is_refused() {
    let (folder, drover) = setup();
    let disk = disk_file(folder.path(), "disk", 3 * MIB);
    let (key, signers) = signer(folder.path(), "anna");
    let (_, others) = signer(folder.path(), "berta");
    let report = folder.path().join("disk.report");
    run(&drover, &["hash", text(&disk), "-o", text(&report), "--sign", text(&key)], 0);
    let with_signers = ["verify", "--report", text(&report), "--signers"];
    let said = run(&drover, &[&with_signers[..], &[text(&signers), text(&disk)]].concat(), 0).err;
    assert!(said.contains("signed by anna@example.org") && said.contains("equal: 48 of 48"), "{said}");
    let alone = run(&drover, &[&with_signers[..], &[text(&signers), "--json"]].concat(), 0).out;
    let done: serde_json::Value = serde_json::from_str(alone.trim()).unwrap();
    assert_eq!((done["signer"].as_str(), done["size"].as_u64()), (Some("anna@example.org"), Some(3 * MIB)));
    // Another's signature, and none, before the disk is read.
    let said = run(&drover, &[&with_signers[..], &[text(&others), "/no/such/disk"]].concat(), 9).err;
    assert!(said.contains("not good for any signer"), "{said}");
    // Changed since.
    overwrite(&report, 70, b"X");
    run(&drover, &[&with_signers[..], &[text(&signers), text(&disk)]].concat(), 9);
    std::fs::remove_file(folder.path().join("disk.report.sig")).unwrap();
    let said = run(&drover, &[&with_signers[..], &[text(&signers), text(&disk)]].concat(), 9).err;
    assert!(said.contains("disk.report.sig") && said.contains("--sign KEY"), "{said}");
}

#[test]
fn a_page_is_checked_by_its_signature_alone() {
    let (folder, drover) = setup();
    let (key, signers) = signer(folder.path(), "anna");
    let page = folder.path().join("plan.html");
    std::fs::write(&page, "<!doctype html><p>3 of 3 VMs arrived</p>").unwrap();
    let signed = std::process::Command::new("ssh-keygen")
        .args(["-q", "-Y", "sign", "-n", "drover-report", "-f", text(&key), text(&page)])
        .status()
        .unwrap();
    assert!(signed.success());
    let page_and = ["verify", "--report", text(&page)];
    let said = run(&drover, &[&page_and[..], &["--signers", text(&signers)]].concat(), 0).err;
    assert!(said.contains("signed by anna@example.org"), "{said}");
    // Without its signature a page proves nothing.
    let said = run(&drover, &page_and, 6).err;
    assert!(said.contains("not a drover hash report"), "{said}");
    std::fs::write(&page, "<!doctype html><p>4 of 4 VMs arrived</p>").unwrap();
    run(&drover, &[&page_and[..], &["--signers", text(&signers)]].concat(), 9);
    // A key that is not there is told before the disk is read and before a report is made.
    let (disk, report) = (disk_file(folder.path(), "disk", MIB), folder.path().join("new.report"));
    run(&drover, &["hash", text(&disk), "-o", text(&report), "--sign", "/no/such/key"], 4);
    assert!(!report.exists());
}
