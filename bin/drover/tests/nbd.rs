//! `drover copy` from and to NBD servers that die, stop and come back.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{MIB, disk_file, same_bytes};
use drover_lab::Drover;

/// An nbdkit that can be killed and started again at the same place.
struct Server {
    child: Child,
    socket: PathBuf,
    args: Vec<String>,
}

fn start(socket: &Path, args: &[String]) -> Option<Child> {
    let _ = std::fs::remove_file(socket);
    let mut command = Command::new("nbdkit");
    command.args(["-f", "--exit-with-parent", "-U"]).arg(socket).args(args).stdout(Stdio::null());
    let Ok(child) = command.stderr(Stdio::null()).spawn() else {
        println!("skipped: nbdkit is not installed");
        return None;
    };
    let until = Instant::now() + Duration::from_secs(20);
    while !socket.exists() {
        assert!(Instant::now() < until, "nbdkit did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(child)
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

/// Copies while the server goes away twice; the copy has to end well by itself.
fn copied_through_outages(drover: &Drover, server: &mut Server, source: &str, target: &str) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = drover.command(&["copy", source, target]);
    let mut copy = command.stdout(Stdio::null()).stderr(log.reopen().unwrap()).spawn().unwrap();
    let said = || std::fs::read_to_string(log.path()).unwrap();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(1200));
        assert!(copy.try_wait().unwrap().is_none(), "it ended before its server went away: {}", said());
        server.kill();
        std::thread::sleep(AWAY);
        assert!(copy.try_wait().unwrap().is_none(), "it did not wait: {}", said());
        server.start_again();
    }
    let status = copy.wait().unwrap();
    assert!(status.success(), "{status}: {}", said());
}

#[test]
fn a_source_that_dies_and_comes_back_is_read_to_its_end() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 96 * MIB);
    let target = folder.path().join("target");
    let rate = ["-r", "--filter=rate", "file", source.to_str().unwrap(), "rate=120M", "burstiness=0.2"];
    let Some(mut server) = Server::new(folder.path(), &rate) else { return };
    let uri = server.uri();
    copied_through_outages(&drover, &mut server, &uri, target.to_str().unwrap());
    assert!(same_bytes(&source, &target));
}

#[test]
fn a_target_that_dies_and_comes_back_holds_every_byte() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 96 * MIB);
    let target = folder.path().join("target");
    std::fs::write(&target, vec![0xee; 96 * MIB as usize]).unwrap();
    let rate = ["--filter=rate", "file", target.to_str().unwrap(), "rate=120M", "burstiness=0.2"];
    let Some(mut server) = Server::new(folder.path(), &rate) else { return };
    let uri = server.uri();
    copied_through_outages(&drover, &mut server, source.to_str().unwrap(), &uri);
    assert!(same_bytes(&source, &target));
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
