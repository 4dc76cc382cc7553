//! What `drover copy` must not overwrite, and options at their edges.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use drover_copy::{Entry, Leaf};
use drover_disk::{Buffer, Disk, FileDisk, Request, Work};
use drover_lab::Drover;
use drover_mover::{JournalFile, file_tag, journal_path};
use drover_qcow2::{Qcow2Disk, Qcow2Options};
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, disk_file, same_bytes};
use drover_types::ByteSpan;

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn copied(drover: &Drover, source: &Path, target: &Path, more: &[&str]) -> String {
    let output = drover.run(&[&["copy", text(source), text(target)], more].concat()).unwrap();
    assert_eq!(output.code, Some(0), "{more:?}: {}", output.err);
    assert!(more.contains(&"qcow2") || same_bytes(source, target), "{more:?}: not equal");
    output.err
}

fn refused(drover: &Drover, source: &Path, target: &Path, more: &[&str], code: i32, words: &str) {
    let before = std::fs::read(source).unwrap();
    let output = drover.run(&[&["copy", text(source), text(target)], more].concat()).unwrap();
    assert_eq!(output.code, Some(code), "{more:?}: {}", output.err);
    assert!(output.err.contains(words), "'{words}' is not in: {}", output.err);
    assert!(std::fs::read(source).unwrap() == before, "the source is as it was");
}

/// Leaves `target` as a copy of `source` that stopped after its first half.
fn half_copied(source: &Path, target: &Path, journal: &Path) {
    let content = std::fs::read(source).unwrap();
    let mut half = content.clone();
    let border = content.len() / 2 / 65536 * 65536;
    half[border..].fill(0);
    std::fs::write(target, &half).unwrap();
    record_half(journal, target, source, &content);
}

/// Records the first half of `content` in a new journal of the target.
fn record_half(journal: &Path, target: &Path, source: &Path, content: &[u8]) {
    record_half_as(journal, target, &FileDisk::open_source(source).unwrap().identity(), content);
}

fn record_half_as(journal: &Path, target: &Path, identity: &str, content: &[u8]) {
    let size = content.len() as u64;
    let start = JournalFile::start(journal, size, identity, &file_tag(target).unwrap(), true).unwrap();
    let mut journal = start.journal;
    let border = content.len() / 2 / 65536 * 65536;
    for (block, bytes) in content[..border].chunks(65536).enumerate() {
        let first = block as u64;
        let entry = match Leaf::of(bytes) {
            Leaf::Zero => Entry::Zero { first, count: 1 },
            Leaf::Data(digest) => Entry::Data { first, leaves: vec![digest] },
        };
        journal.append(&[entry]).unwrap();
    }
}

/// Leaves a qcow2 image as a copy of `source` that stopped after its first half.
fn half_copied_image(source: &Path, target: &Path) {
    let content = std::fs::read(source).unwrap();
    let _ = std::fs::remove_file(target);
    let disk = Qcow2Disk::create(target, content.len() as u64, Qcow2Options::default()).unwrap();
    let mut lane = disk.open_lane().unwrap();
    for (block, bytes) in content[..content.len() / 2].chunks(65536).enumerate() {
        let span = ByteSpan::new(block as u64 * 65536, bytes.len() as u64);
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        let work = Work::Write(buffer.into());
        lane.submit(Request { id: 0, span, work });
        lane.complete().unwrap().result.unwrap();
    }
    disk.flush().unwrap();
    drop((lane, disk));
    let _ = std::fs::remove_file(journal_path(target));
    record_half(&journal_path(target), target, source, &content);
}

fn zero_first_block(image: &Path) {
    let disk = Qcow2Disk::open(image, Qcow2Options::default()).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let span = ByteSpan::new(0, 65536);
    lane.submit(Request { id: 0, span, work: Work::Zero });
    lane.complete().unwrap().result.unwrap();
    disk.flush().unwrap();
    drop((lane, disk));
}

#[test]
fn a_disk_is_not_copied_onto_itself_under_any_name() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB);
    let at = |name: &str| folder.path().join(name);
    symlink(&source, at("symbolic")).unwrap();
    std::fs::hard_link(&source, at("hard")).unwrap();
    std::fs::create_dir(at("inner")).unwrap();
    for name in ["source", "symbolic", "hard", "inner/../source"] {
        for force in [&[][..], &["--force"], &["--force", "--no-journal"]] {
            refused(&drover, &source, &at(name), force, 2, "both source and target");
        }
    }
    refused(&drover, &at("symbolic"), &source, &["--force"], 2, "both source and target");
    symlink("/no/such/file", at("dangling")).unwrap();
    refused(&drover, &source, &at("dangling"), &[], 7, "symbolic link to something that is not there");
    refused(&drover, &source, &at("inner"), &["--force"], 7, "directory");
    refused(&drover, &source, Path::new("/dev/null"), &["--force"], 7, "character device");
}

#[test]
fn files_that_the_sources_image_is_made_of_are_no_targets() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        println!("skipped: qemu-img is not installed");
        return;
    }
    let (folder, drover) = setup();
    let at = |name: &str| folder.path().join(name);
    let make = |args: &[&str]| assert!(Command::new("qemu-img").args(args).status().unwrap().success());
    let base = disk_file(folder.path(), "base.raw", 2 * MIB);
    let before = std::fs::read(&base).unwrap();
    let overlay = at("overlay.qcow2");
    make(&["create", "-q", "-f", "qcow2", "-b", text(&base), "-F", "raw", text(&overlay)]);
    refused(&drover, &overlay, &base, &["--force"], 2, "a part of the source");
    let vmdk = at("disk.vmdk");
    make(&["convert", "-q", "-O", "vmdk", "-o", "subformat=monolithicFlat", text(&base), text(&vmdk)]);
    refused(
        &drover,
        &vmdk,
        &at("disk-flat.vmdk"),
        &["--force", "--format", "raw"],
        2,
        "a part of the source",
    );
    assert!(std::fs::read(&base).unwrap() == before);
}

const OVF: &str = r#"<?xml version="1.0"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
  xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
 <References/><DiskSection><Info>disks</Info><Disk ovf:diskId="disk1" ovf:capacity="1048576"/></DiskSection>
 <VirtualSystem ovf:id="web01"><Info>a machine</Info><VirtualHardwareSection><Info>hardware</Info>
  <Item><rasd:ElementName>CPU</rasd:ElementName><rasd:InstanceID>1</rasd:InstanceID>
   <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
  <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:ElementName>memory</rasd:ElementName>
   <rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>
   <rasd:VirtualQuantity>256</rasd:VirtualQuantity></Item>
  <Item><rasd:ElementName>SCSI 0</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID>
   <rasd:ResourceSubType>lsilogic</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
  <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard disk 1</rasd:ElementName>
   <rasd:HostResource>ovf:/disk/disk1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID>
   <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
 </VirtualHardwareSection></VirtualSystem>
</Envelope>"#;

#[test]
fn files_that_an_appliance_is_made_of_are_no_targets() {
    let (folder, drover) = setup();
    let parts = folder.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    let (descriptor, certificate) = (parts.join("vm.ovf"), parts.join("vm.cert"));
    std::fs::write(&descriptor, OVF).unwrap();
    std::fs::write(&certificate, "who made it").unwrap();
    let disk = format!("ova:{}/0", text(&parts));
    for file in [&descriptor, &certificate] {
        let before = std::fs::read(file).unwrap();
        let output = drover.run(&["copy", &disk, text(file), "--force"]).unwrap();
        assert_eq!(output.code, Some(2), "{}", output.err);
        assert!(output.err.contains("a part of the source"), "{}", output.err);
        assert!(std::fs::read(file).unwrap() == before);
    }
    let output = drover.run(&["copy", &disk, text(&parts.join("disk.raw"))]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
}

/// A file that `nbdfuse` shows, which tells no blocks of it; gone when dropped.
struct Fuse {
    child: Child,
    path: PathBuf,
}

impl Fuse {
    /// `None`, after a printed line, where there is none.
    fn over(file: &Path) -> Option<Fuse> {
        let path = file.with_extension("fuse");
        std::fs::write(&path, "").unwrap();
        let mut command = Command::new("nbdfuse");
        command.arg(&path).args(["--command", "nbdkit", "-s", "--exit-with-parent", "file"]).arg(file);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let length = std::fs::metadata(file).unwrap().len();
        let mut fuse = command.spawn().ok().map(|child| Fuse { child, path });
        let is_there = |fuse: &Fuse| std::fs::metadata(&fuse.path).is_ok_and(|meta| meta.len() == length);
        if let Some(fuse) = &mut fuse {
            wait_until("nbdfuse shows its file, or ends", PATIENCE, || {
                is_there(fuse) || fuse.child.try_wait().unwrap().is_some()
            });
        }
        let fuse = fuse.filter(is_there);
        if fuse.is_none() {
            println!("skipped: nbdfuse and /dev/fuse are not to be had here");
        }
        fuse
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_file_whose_file_system_tells_no_blocks_is_not_taken_for_empty() {
    let (folder, drover) = setup();
    let (source, backing) = (disk_file(folder.path(), "source", MIB), folder.path().join("backing"));
    let mut content = vec![0; MIB as usize];
    content[700_000..700_004].copy_from_slice(b"data");
    std::fs::write(&backing, &content).unwrap();
    let Some(fuse) = Fuse::over(&backing) else { return };
    assert_eq!(std::fs::metadata(&fuse.path).unwrap().blocks(), 0);
    refused(&drover, &source, &fuse.path, &["--no-journal"], 7, "already holds");
    drop(fuse);
    assert!(std::fs::read(&backing).unwrap() == content);
}

#[test]
fn a_disk_of_another_host_by_the_name_of_an_image_is_not_taken_for_raw_unasked() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", MIB);
    let back = folder.path().join("back");
    let said = |args: &[&str]| {
        let output = drover.run(args).unwrap();
        (output.code, output.err)
    };
    for place in ["agent://b/vms/x.qcow2", "agent://b/vms/x.vmdk"] {
        for args in [["copy", text(&source), place], ["copy", place, text(&back)]] {
            let (code, err) = said(&args);
            assert!(code == Some(2) && err.contains("has the name of an image"), "{args:?}: {err}");
        }
        for args in [
            ["copy", text(&source), place, "--format", "raw"],
            ["copy", place, text(&back), "--source-format", "raw"],
        ] {
            let (code, err) = said(&args);
            assert!(code != Some(0) && !err.contains("has the name of an image"), "{args:?}: {err}");
        }
    }
    let (code, err) = said(&["copy", "ssh://localhost/srv/x.qcow2", text(&back)]);
    assert!(code == Some(2) && err.contains("has the name of an image"), "{err}");
    let (code, err) = said(&["copy", "https://localhost:1/x.vmdk?y=z", text(&back)]);
    assert!(code == Some(2) && err.contains("has the name of an image"), "{err}");
    assert!(!back.exists());
}

#[test]
fn a_symbolic_link_is_followed_and_the_target_has_one_journal() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let (target, link) = (folder.path().join("target"), folder.path().join("link"));
    half_copied(&source, &target, &journal_path(&target));
    symlink(&target, &link).unwrap();
    let said = copied(&drover, &source, &link, &[]);
    assert!(said.contains("resumed") && !journal_path(&target).exists(), "{said}");
    assert!(link.is_symlink());
}

#[test]
fn a_half_copy_that_was_changed_since_is_not_gone_on_with() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 8 * MIB);
    // In data, and in zeros.
    for at in [70_000, 3 * MIB as usize] {
        let target = folder.path().join(format!("target{at}"));
        half_copied(&source, &target, &journal_path(&target));
        let mut content = std::fs::read(&target).unwrap();
        content[at] ^= 1;
        std::fs::write(&target, content).unwrap();
        refused(&drover, &source, &target, &[], 7, "changed since its journal was made");
        copied(&drover, &source, &target, &["--force"]);
    }
}

#[test]
fn an_image_that_was_changed_since_is_not_gone_on_with() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let (target, journal) = (folder.path().join("target.qcow2"), folder.path().join("journal"));
    let kept = ["--format", "qcow2", "--journal", text(&journal)];
    copied(&drover, &source, &target, &kept);
    copied(&drover, &source, &target, &kept);
    zero_first_block(&target);
    refused(&drover, &source, &target, &kept, 7, "changed since its journal was made");
    copied(&drover, &source, &target, &[&kept[..], &["--force", "--verify", "full"]].concat());
}

#[test]
fn an_image_that_was_changed_since_is_not_replaced_for_a_source_of_another_size() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let grown = disk_file(folder.path(), "grown", 6 * MIB);
    let target = folder.path().join("target.qcow2");
    half_copied_image(&source, &target);
    let whole = std::fs::read(&target).unwrap();
    // Its own half copy: the source grew, so it starts again.
    let said = copied(&drover, &grown, &target, &["--format", "qcow2", "--verify", "full"]);
    assert!(said.contains("started again"), "{said}");
    for changed in ["written to", "no image any more"] {
        std::fs::remove_file(&target).unwrap();
        half_copied_image(&source, &target);
        match changed {
            "written to" => zero_first_block(&target),
            _ => std::fs::write(&target, vec![7; whole.len()]).unwrap(),
        }
        let before = std::fs::read(&target).unwrap();
        refused(&drover, &grown, &target, &["--format", "qcow2"], 7, "changed since its journal was made");
        assert!(std::fs::read(&target).unwrap() == before, "{changed}: the target is as it was");
        copied(&drover, &grown, &target, &["--format", "qcow2", "--force", "--verify", "full"]);
    }
}

#[test]
fn a_journal_that_is_not_kept_does_not_lie_to_the_next_run() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let other = folder.path().join("other");
    std::fs::write(&other, vec![7; 4 * MIB as usize]).unwrap();
    let target = folder.path().join("target");
    half_copied(&source, &target, &journal_path(&target));
    refused(&drover, &other, &target, &["--no-journal"], 7, "already holds");
    copied(&drover, &other, &target, &["--no-journal", "--force"]);
    assert!(!journal_path(&target).exists());
    refused(&drover, &source, &target, &[], 7, "already holds");
}

#[test]
fn a_finished_copy_is_overwritten_by_another_source_only_if_forced() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 3 * MIB);
    let other = disk_file(folder.path(), "other", 2 * MIB);
    let (target, journal) = (folder.path().join("target"), folder.path().join("journal"));
    copied(&drover, &source, &target, &["--journal", text(&journal)]);
    copied(&drover, &source, &target, &["--journal", text(&journal)]);
    refused(&drover, &other, &target, &["--journal", text(&journal)], 7, "finished copy of another source");
    copied(&drover, &other, &target, &["--journal", text(&journal), "--force"]);
    std::fs::rename(&journal, journal_path(&target)).unwrap();
    refused(&drover, &source, &target, &[], 7, "finished copy of another source");
}

#[test]
fn a_file_of_another_size_is_overwritten_if_forced() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB + 5);
    for (name, bytes) in [("longer", 3 * MIB), ("shorter", 100), ("tiny", 1)] {
        let target = folder.path().join(name);
        std::fs::write(&target, vec![9; bytes as usize]).unwrap();
        refused(&drover, &source, &target, &[], 7, "already holds");
        copied(&drover, &source, &target, &["--force"]);
    }
}

#[test]
fn only_a_journal_is_written_over_as_a_journal() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB);
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("letter"), "dear all").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    symlink(&source, at("link")).unwrap();
    for journal in ["source", "letter", "folder", "target", "link"] {
        let _ = std::fs::remove_file(at("target"));
        let more = ["--force", "--journal", text(&at(journal)).to_string().leak()];
        refused(&drover, &source, &at("target"), &more, 2, "--journal");
    }
    assert_eq!(std::fs::read_to_string(at("letter")).unwrap(), "dear all");
}

#[test]
fn qcow2_targets_are_taken_anew_if_forced() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        println!("skipped: qemu-img is not installed");
        return;
    }
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB);
    let larger = disk_file(folder.path(), "larger", 5 * MIB);
    let (image, back): (PathBuf, PathBuf) = (folder.path().join("image.qcow2"), folder.path().join("back"));
    copied(&drover, &larger, &image, &["--format", "qcow2"]);
    // As a writer of others may leave it in its midst: what is refused is not mended either.
    std::io::Write::write_all(&mut std::fs::File::options().append(true).open(&image).unwrap(), &[7; 1000])
        .unwrap();
    let before = std::fs::read(&image).unwrap();
    refused(&drover, &source, &image, &[], 7, "already holds");
    assert!(std::fs::read(&image).unwrap() == before, "an image that is refused is as it was");
    copied(&drover, &source, &image, &["--format", "qcow2", "--force"]);
    let output = drover.run(&["copy", text(&image), text(&back)]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(same_bytes(&source, &back), "the image has the new disk and its size");
}

#[test]
fn options_at_their_edges_neither_break_nor_hang_a_copy() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 3 * MIB + 7);
    let huge = u64::MAX.to_string();
    for (number, more) in [
        ["--lanes", "0"],
        ["--lanes", "18446744073709551615"],
        ["--depth", "0"],
        ["--depth", "18446744073709551615"],
        ["--request", "0"],
        ["--request", "1"],
        ["--request", "16EiB"],
        ["--request", &huge],
        ["--memory", "0"],
        ["--memory", "1"],
        ["--memory", &huge],
        ["--retry-for", "0"],
        ["--retry-for", &huge],
        ["--sample", "0"],
    ]
    .iter()
    .enumerate()
    {
        let target = folder.path().join(format!("target-{number}"));
        let output =
            drover.run(&[&["copy", text(&source), text(&target), "--verify", "full"], &more[..]].concat());
        let output = output.unwrap();
        let refused_as_text = output.code == Some(2) && output.err.contains("error: invalid value");
        let copied = output.code == Some(0) && same_bytes(&source, &target);
        assert!(copied || refused_as_text, "{more:?}: {:?} {}", output.code, output.err);
    }
}

#[test]
fn empty_disks_are_copied_hashed_and_compared() {
    let (folder, drover) = setup();
    let source = folder.path().join("source");
    std::fs::write(&source, "").unwrap();
    let target = folder.path().join("target");
    copied(&drover, &source, &target, &["--verify", "full"]);
    copied(&drover, &source, &folder.path().join("second"), &["--verify", "source"]);
    assert_eq!(drover.run(&["hash", text(&source)]).unwrap().code, Some(0));
    assert_eq!(drover.run(&["verify", text(&source), text(&target)]).unwrap().code, Some(0));
}

#[test]
fn a_copy_does_not_go_on_with_a_source_that_was_written_and_given_its_old_times() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB);
    let target = folder.path().join("target");
    half_copied(&source, &target, &journal_path(&target));
    let before = rustix::fs::stat(&source).unwrap();
    let file = std::fs::File::options().write(true).open(&source).unwrap();
    file.write_all_at(b"changed", 3 * 65536).unwrap();
    let then = rustix::fs::Timespec { tv_sec: before.st_mtime, tv_nsec: before.st_mtime_nsec as _ };
    let times = rustix::fs::Timestamps { last_access: then, last_modification: then };
    rustix::fs::futimens(&file, &times).unwrap();
    drop(file);
    let said = copied(&drover, &source, &target, &[]);
    assert!(said.contains("the source has changed"), "{said}");
}

#[test]
fn a_copy_that_a_drover_began_which_recorded_no_times_of_change_is_gone_on_with() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB);
    let target = folder.path().join("target");
    half_copied(&source, &target, &journal_path(&target));
    let identity = FileDisk::open_source(&source).unwrap().identity();
    let (before, _) = identity.split_once(" ctime=").unwrap();
    std::fs::remove_file(journal_path(&target)).unwrap();
    record_half_as(&journal_path(&target), &target, before, &std::fs::read(&source).unwrap());
    let header = std::fs::read(journal_path(&target)).unwrap()[..128].to_vec();
    let link = folder.path().join("journal");
    std::fs::hard_link(journal_path(&target), &link).unwrap();
    let said = copied(&drover, &source, &target, &[]);
    assert!(said.contains("resumed"), "{said}");
    // As that drover left it, so that it goes on with it, too.
    assert_eq!(std::fs::read(link).unwrap()[..128], header);
}
