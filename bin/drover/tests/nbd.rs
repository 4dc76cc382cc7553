//! `drover copy` from and to NBD servers that die, stop and come back.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::nbdkit::start_at;
use common::process::{PATIENCE, recorded_by, wait_until};
use common::{MIB, disk_file, same_bytes};
use drover_lab::Drover;

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

/// So slow that a copy lasts until the test has done its part: 4 MB/s, of 72 MiB.
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
