//! `drover copy` from and to NBD servers that die, stop and come back.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use drover_lab::Drover;
use drover_stage::nbdkit::start_at;
use drover_stage::process::{PATIENCE, recorded_by, wait_until};
use drover_stage::sites::{Sites, done};
use drover_stage::{MIB, disk_file, same_bytes};

/// An nbdkit that can be killed and started again at the same place.
struct Server {
    child: Child,
    socket: PathBuf,
    args: Vec<String>,
}

fn start(socket: &Path, args: &[String]) -> Option<Child> {
    start_at(socket, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Server {
    fn new(folder: &Path, args: &[&str]) -> Option<Server> {
        let (socket, args) =
            (folder.join("nbd.sock"), args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>());
        Some(Server { child: start(&socket, &args)?, socket, args })
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }

    fn start_again(&mut self) {
        self.child = start(&self.socket, &self.args).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How long a server is away: long enough for many tries, and to be given up by one that tries a few
/// times only.
const AWAY: Duration = Duration::from_secs(4);

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

/// So slow that a copy lasts until the test has done its part: 4 MB/s, of 96 MiB.
const SLOW: &str = "32M";

/// Arguments of a server that reads its rate from this file.
fn limited<'a>(disk: &'a str, rate_file: &'a str) -> [&'a str; 5] {
    ["--filter=rate", "file", disk, rate_file, "burstiness=0.2"]
}

/// Copies while the server goes away twice; the copy has to end well by itself.
fn copied_through_outages(drover: &Drover, folder: &Path, is_source: bool) {
    let (source, target) = (disk_file(folder, "source", 96 * MIB), folder.join("target"));
    if !is_source {
        std::fs::write(&target, vec![0xee; 96 * MIB as usize]).unwrap();
    }
    let (rate, journal, log) = (folder.join("rate"), folder.join("journal"), folder.join("log"));
    std::fs::write(&rate, SLOW).unwrap();
    let rate_file = format!("rate-file={}", rate.display());
    let served = if is_source { &source } else { &target };
    let args = limited(served.to_str().unwrap(), &rate_file);
    let Some(mut server) = Server::new(folder, &args) else { return };
    let uri = server.uri();
    let (from, to) = match is_source {
        true => (uri.as_str(), target.to_str().unwrap()),
        false => (source.to_str().unwrap(), uri.as_str()),
    };
    let mut command = drover.command(&["copy", from, to, "--journal", journal.to_str().unwrap()]);
    let log_file = std::fs::File::create(&log).unwrap();
    let mut copy = command.stdout(Stdio::null()).stderr(log_file).spawn().unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    for _ in 0..2 {
        let had = recorded_by(&journal);
        wait_until("the copy records more blocks", PATIENCE, || {
            assert!(copy.try_wait().unwrap().is_none(), "it ended before its server went away: {}", said());
            recorded_by(&journal) > had
        });
        server.kill();
        std::thread::sleep(AWAY);
        assert!(copy.try_wait().unwrap().is_none(), "it did not wait: {}", said());
        server.start_again();
    }
    std::fs::write(&rate, "100G").unwrap();
    let status = copy.wait().unwrap();
    assert!(status.success(), "{status}: {}", said());
    assert!(same_bytes(&source, &target));
}

#[test]
fn a_source_that_dies_and_comes_back_is_read_to_its_end() {
    let (folder, drover) = setup();
    copied_through_outages(&drover, folder.path(), true);
}

#[test]
fn a_target_that_dies_and_comes_back_holds_every_byte() {
    let (folder, drover) = setup();
    copied_through_outages(&drover, folder.path(), false);
}

#[test]
fn a_journal_is_believed_only_while_the_export_holds_what_it_says() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let journal = folder.path().join("journal");
    let Some(mut server) = Server::new(folder.path(), &["memory", "4M"]) else { return };
    let (source, uri) = (source.to_str().unwrap(), server.uri());
    let copied = || {
        let output = drover.run(&["copy", source, &uri, "--journal", journal.to_str().unwrap()]).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
        let compared = drover.run(&["verify", source, &uri]).unwrap();
        assert_eq!(compared.code, Some(0), "{}", compared.err);
        output.err
    };
    copied();
    let said = copied();
    assert!(said.contains("4 MiB of 4 MiB are on the target"), "{said}");
    // Its memory is lost, and with it all that was recorded.
    server.kill();
    server.start_again();
    let said = copied();
    assert!(said.contains("copy started again from the beginning"), "{said}");
}

#[test]
fn the_exports_of_a_server_are_listed() {
    let (folder, drover) = setup();
    let Some(server) = Server::new(folder.path(), &["memory", "4M"]) else { return };
    let listed = drover.run(&["nbd", "list", &server.uri(), "--json"]).unwrap();
    assert_eq!(listed.code, Some(0), "{}", listed.err);
    let found = listed.json().unwrap();
    let export = &found["exports"][0];
    assert_eq!((export["name"].as_str(), export["size"].as_u64()), (Some(""), Some(4 * MIB)), "{found:#}");
    assert_eq!((&export["writable"], &found["more"]), (&true.into(), &false.into()), "{found:#}");
    assert!(export["contexts"].as_array().unwrap().contains(&"base:allocation".into()), "{found:#}");
    assert!(export["block_sizes"]["maximum"].as_u64().is_none_or(|bytes| bytes >= MIB), "{found:#}");
    let listed = drover.run(&["nbd", "list", &server.uri()]).unwrap();
    assert!(listed.out.contains("4 MiB (4194304 bytes), writable"), "{}", listed.out);
    assert!(listed.out.contains("contexts: base:allocation"), "{}", listed.out);
    for (uri, code) in [("nbd+unix:///?socket=/no/such/socket", 6), ("file.raw", 2)] {
        let refused = drover.run(&["nbd", "list", uri]).unwrap();
        assert!(
            refused.code == Some(code) && refused.out.is_empty(),
            "{uri}: {:?} {}",
            refused.code,
            refused.err
        );
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// False, after a printed line, where a program of it is missing.
fn has_qemu_utils() -> bool {
    let is_there = |it: &&str| Command::new(it).arg("--version").output().is_ok();
    let has_all = ["qemu-img", "qemu-io", "qemu-nbd"].iter().all(is_there);
    if !has_all {
        println!("skipped: qemu-utils is not installed");
    }
    has_all
}

/// qemu-nbd with an image's bitmaps, until it is dropped.
struct Bitmaps(Child, PathBuf);

impl Bitmaps {
    fn serve(image: &Path, names: &[&str]) -> Bitmaps {
        let socket = image.with_extension("sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--read-only", "--shared=8", "--format=qcow2", "-k"]).arg(&socket);
        command.args(names.iter().flat_map(|name| ["-B", name]));
        let child = command.arg(image).spawn().unwrap();
        wait_until("qemu-nbd takes clients", PATIENCE, || UnixStream::connect(&socket).is_ok());
        Bitmaps(child, socket)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.1.display())
    }
}

impl Drop for Bitmaps {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_bitmap_copies_what_it_marks_onto_a_target_that_holds_the_rest() {
    if !has_qemu_utils() {
        return;
    }
    let (folder, drover) = setup();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (image, target) = (at("disk.qcow2"), at("target.raw"));
    let copied = |source: &str, target: &str, more: &[&str]| {
        let output = drover.run(&[&["copy", source, target], more].concat()).unwrap();
        assert_eq!(output.code, Some(0), "{more:?}: {}", output.err);
        output
    };
    let refused = |source: &str, target: &str, more: &[&str], code: i32, words: &str| {
        let output = drover.run(&[&["copy", source, target], more].concat()).unwrap();
        assert!(output.code == Some(code) && output.err.contains(words), "{:?} {}", output.code, output.err);
    };
    run("qemu-img", &["create", "-q", "-f", "qcow2", &image, "16M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 4M", &image]);
    copied(&image, &target, &[]);
    run("qemu-img", &["bitmap", "--add", &image, "monday"]);
    run(
        "qemu-io",
        &[
            "-f",
            "qcow2",
            "-c",
            "write -P 2 1M 100k",
            "-c",
            "write -P 3 9M 1",
            "-c",
            "write -z 2M 64k",
            &image,
        ],
    );
    let server = Bitmaps::serve(Path::new(&image), &["monday"]);
    let uri = server.uri();
    let listed = drover.run(&["nbd", "list", &uri]).unwrap();
    assert!(listed.out.contains("qemu:dirty-bitmap:monday"), "{}", listed.out);

    // What the bitmap does not mark is not looked at, neither here nor there.
    let mut expected = std::fs::read(&target).unwrap();
    expected[3 << 20..][..5].copy_from_slice(b"local");
    std::fs::write(&target, &expected).unwrap();
    expected[1 << 20..][..100 << 10].fill(2);
    expected[9 << 20] = 3;
    expected[2 << 20..][..64 << 10].fill(0);
    let said = copied(&uri, &target, &["--bitmap", "monday", "--verify", "full", "--json"]);
    assert!(std::fs::read(&target).unwrap() == expected, "not what the bitmap marks, and only that");
    let done: serde_json::Value = serde_json::from_str(said.out.lines().last().unwrap()).unwrap();
    assert_eq!((&done["root"], &done["equal"]), (&serde_json::Value::Null, &true.into()), "{done:#}");
    assert_eq!((done["bytes_marked"].as_u64(), done["blocks_compared"].as_u64()), (Some(4 << 16), Some(4)));

    let bitmap = ["--bitmap", "monday"];
    refused(&uri, &at("not-there"), &bitmap, 7, "is not there");
    std::fs::write(at("small"), b"small").unwrap();
    refused(&uri, &at("small"), &bitmap, 7, "holds 5 bytes and the source 16777216");
    assert_eq!(std::fs::read(at("small")).unwrap(), b"small");
    refused(&uri, &target, &["--bitmap", "tuesday"], 6, "monday");
    refused(&target, &at("small"), &bitmap, 2, "nbd:// sources");
    refused(&uri, "-", &bitmap, 2, "--bitmap does not go with -");
    refused(&uri, &target, &["--bitmap", "monday", "--verify", "source"], 2, "--verify none or full");
}

#[test]
fn a_copy_of_a_bitmap_and_one_of_the_whole_disk_are_never_taken_for_each_other() {
    if !has_qemu_utils() {
        return;
    }
    let (folder, drover) = setup();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (image, target, journal) = (at("disk.qcow2"), at("target.raw"), at("journal"));
    run("qemu-img", &["create", "-q", "-f", "qcow2", &image, "8M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 8M", &image]);
    run("qemu-img", &["bitmap", "--add", &image, "monday"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 2 1M 1M", &image]);
    let server = Bitmaps::serve(Path::new(&image), &["monday"]);
    let uri = server.uri();
    let copy = |more: &[&str]| {
        drover.run(&[&["copy", &uri, &target, "--journal", &journal], more].concat()).unwrap()
    };
    std::fs::write(&target, vec![1; 8 << 20]).unwrap();
    let kept = copy(&["--bitmap", "monday"]);
    assert_eq!(kept.code, Some(0), "{}", kept.err);
    let again = copy(&["--bitmap", "monday"]);
    assert!(again.code == Some(0) && again.err.contains("resumed: 1 MiB of 8 MiB"), "{}", again.err);
    // Its journal says nothing of a whole copy.
    let whole = copy(&["--verify", "full"]);
    assert!(whole.code == Some(0) && whole.err.contains("started again"), "{}", whole.err);
    assert!(whole.err.contains("128 of 128 blocks compared"), "{}", whole.err);
    // A whole copy that stopped does not hold what a bitmap leaves out.
    let length = std::fs::metadata(&journal).unwrap().len();
    std::fs::File::options().write(true).open(&journal).unwrap().set_len(length - 8).unwrap();
    let refused = copy(&["--bitmap", "monday"]);
    assert!(
        refused.code == Some(7) && refused.err.contains("a copy that is not finished"),
        "{}",
        refused.err
    );
}

#[test]
fn a_bitmap_brings_a_disk_of_another_site_up_to_date() {
    if !has_qemu_utils() {
        return;
    }
    let sites = Sites::paired();
    let image = sites.path("disk.qcow2").to_str().unwrap().to_string();
    let place = "agent://site-b/vms/disk.raw";
    let copy = |source: &str, target: &str, more: &[&str]| {
        sites.here.run(&[&["copy", "--json", source, target], more].concat()).unwrap()
    };
    run("qemu-img", &["create", "-q", "-f", "qcow2", &image, "16M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 4M", &image]);
    done(&copy(&image, place, &[]));
    run("qemu-img", &["bitmap", "--add", &image, "monday"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 2 1M 100k", "-c", "write -z 2M 64k", &image]);
    let server = Bitmaps::serve(Path::new(&image), &["monday"]);
    let at_site = sites.in_pool("disk.raw");
    let mut expected = std::fs::read(&at_site).unwrap();
    expected[3 << 20..][..5].copy_from_slice(b"local");
    std::fs::write(&at_site, &expected).unwrap();
    expected[1 << 20..][..100 << 10].fill(2);
    expected[2 << 20..][..64 << 10].fill(0);
    let bitmap = ["--bitmap", "monday"];
    let report = done(&copy(&server.uri(), place, &[&bitmap[..], &["--verify", "full"]].concat()));
    assert!(std::fs::read(&at_site).unwrap() == expected, "not what the bitmap marks, and only that");
    assert_eq!((report["bytes_marked"].as_u64(), &report["equal"]), (Some(3 << 16), &true.into()));
    assert!(report["link"]["bytes_sent"].as_u64().unwrap() > 0, "{report}");

    std::fs::write(sites.in_pool("small.raw"), b"small").unwrap();
    for (target, more, code, words) in [
        ("agent://site-b/vms/none.raw", &[][..], 7, "is not there"),
        ("agent://site-b/vms/small.raw", &[], 7, "holds 5 bytes and the source 16777216"),
        (place, &["--format", "qcow2"], 2, "an agent writes raw disks"),
    ] {
        let refused = copy(&server.uri(), target, &[&bitmap, more].concat());
        assert!(refused.code == Some(code) && refused.err.contains(words), "{target}: {}", refused.err);
    }
    assert_eq!(std::fs::read(sites.in_pool("small.raw")).unwrap(), b"small");
    assert!(!sites.in_pool("none.raw").exists());
}
