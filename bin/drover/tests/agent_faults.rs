//! Lines and agents that fail in mid-copy. docs/dev/link.md has the table of faults, and what each of them may do: end the
//! copy (fatal), slow it down (degraded), or be made good (retried).
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use drover_stage::nbdkit::Nbdkit;
use drover_stage::process::{recorded_in, wait_until};
use drover_stage::proxy::Proxy;
use drover_stage::sites::{Sites, done};
use drover_stage::{MIB, disk_file, same_bytes};

const PATIENCE: Duration = Duration::from_secs(180);

/// Two sites with a line between them that fails on order.
struct Line {
    sites: Sites,
    proxy: Proxy,
    source: PathBuf,
    /// Connections that pairing made.
    paired: usize,
}

impl Line {
    fn new() -> Line {
        let sites = Sites::new();
        let proxy = Proxy::new(sites.address.parse().unwrap());
        sites.pair_at(&proxy.address.to_string());
        // What is ended or swallowed later is the copy's.
        proxy.kill_all();
        let source = disk_file(sites.folder.path(), "source", 320 * MIB);
        let paired = proxy.state.connections.load(SeqCst);
        Line { sites, proxy, source, paired }
    }

    /// A copy that takes some seconds, once it has recorded something.
    fn copying(&self) -> Copying {
        let target = "agent://site-b/vms/disk.raw";
        let args = ["copy", self.source.to_str().unwrap(), target, "--rate-limit", "24MiB"];
        let mut copying = Copying::start(&self.sites, &args);
        let journals = self.sites.path("here").join("journals");
        wait_until("the copy records blocks", PATIENCE, || {
            let recorded = recorded_in(&journals) > 0;
            assert!(recorded || copying.runs(), "it ended: {}", copying.said());
            recorded
        });
        copying
    }

    /// Whether all of it is there; the agent took no more memory for it than it may.
    fn arrived(&self) -> bool {
        let peaked = peak(self.sites.agent.as_ref().unwrap());
        assert!(peaked < BOUND, "{} MiB there", peaked / MIB);
        same_bytes(&self.source, &self.sites.in_pool("disk.raw"))
    }
}

struct Copying {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Copying {
    fn start(sites: &Sites, args: &[&str]) -> Copying {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = sites.here.command(args);
        let child = command.stdout(Stdio::null()).stderr(log.reopen().unwrap()).spawn().unwrap();
        Copying { child, log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Whatever happens on the line, it takes no more memory than it may.
    fn ended(mut self) -> (ExitStatus, String) {
        let mut peaked = 0;
        while self.runs() {
            peaked = peaked.max(peak(&self.child));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(peaked < BOUND, "{} MiB", peaked / MIB);
        (self.child.wait().unwrap(), self.said())
    }

    fn ends_well(self) {
        let (status, said) = self.ended();
        assert!(status.success(), "{status}: {said}");
    }
}

/// Retried.
fn cut(time: Duration) {
    let line = Line::new();
    let mut copying = line.copying();
    line.proxy.state.is_cut.store(true, SeqCst);
    std::thread::sleep(time);
    assert!(copying.runs(), "it did not wait for the line: {}", copying.said());
    line.proxy.state.is_cut.store(false, SeqCst);
    copying.ends_well();
    assert!(line.arrived());
}

#[test]
fn a_line_that_is_cut_for_a_second_costs_nothing_but_time() {
    cut(Duration::from_secs(1));
}

#[test]
#[ignore = "takes a minute; `make soak` runs it"]
fn soak_a_line_that_is_cut_for_ten_seconds() {
    cut(Duration::from_secs(10));
}

#[test]
#[ignore = "takes two minutes; `make soak` runs it"]
fn soak_a_line_that_is_cut_for_a_minute() {
    cut(Duration::from_secs(60));
}

#[test]
#[ignore = "takes eleven minutes; `make soak` runs it"]
fn soak_a_line_that_is_cut_for_ten_minutes() {
    cut(Duration::from_secs(600));
}

/// Retried: the connection ends, and what it carried goes by another.
#[test]
fn bits_that_flip_on_the_line_never_reach_the_disk() {
    let line = Line::new();
    let copying = line.copying();
    line.proxy.state.flip_every.store(3_000_000, SeqCst);
    copying.ends_well();
    assert!(line.proxy.state.flips.load(SeqCst) > 0, "none was flipped");
    assert!(line.arrived());
}

/// Degraded: fewer connections for some seconds.
#[test]
fn a_connection_that_swallows_everything_is_passed_by() {
    let line = Line::new();
    let copying = line.copying();
    let had = line.paired;
    wait_until("there is another way", PATIENCE, || line.proxy.state.connections.load(SeqCst) > had + 1);
    assert!(line.proxy.swallow_one());
    copying.ends_well();
    assert!(line.arrived());
}

/// Retried: all connections end, again and again.
#[test]
fn connections_that_end_again_and_again_cost_nothing_but_time() {
    let line = Line::new();
    let mut copying = line.copying();
    for _ in 0..10 {
        line.proxy.kill_all();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(copying.runs() || line.arrived());
    copying.ends_well();
    assert!(line.arrived());
}

/// Fatal, and gone on with once there is trust again.
#[test]
fn a_host_that_is_revoked_in_mid_copy_writes_no_more_and_goes_on_when_it_is_trusted_again() {
    let line = Line::new();
    let copying = line.copying();
    assert_eq!(line.sites.there.run(&["agent", "revoke", "site-a"]).unwrap().code, Some(0));
    let (status, said) = copying.ended();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("revoked"), "{said}");
    assert!(!line.arrived(), "it had ended before");
    let again = line.sites.copy(&line.source, &[]);
    assert_eq!(again.code, Some(5), "{}", again.err);
    line.sites.pair_at(&line.proxy.address.to_string());
    let report = done(&line.sites.copy(&line.source, &[]));
    assert!(report["bytes_resumed"].as_u64().unwrap() > 0, "{report}");
    assert!(line.arrived());
}

/// The peak of a process's memory in bytes; 0 of one that has just ended.
fn peak(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}

/// What a copy over a link may take on each side (docs/dev/agent-protocol.md): 64 MiB that are not answered, as much again in the
/// link, buffers, and the program itself.
const BOUND: u64 = 260 * MIB;

/// Degraded: the copy waits for the disk, and nothing piles up on the way to it.
#[test]
fn a_disk_that_is_slow_over_there_fills_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let delay = ["--filter=delay", "memory", "512M", "delay-write=15ms"];
    let Some(slow) = Nbdkit::start(folder.path(), &delay) else { return };
    let sites = Sites::paired_with(&["--nbd", &format!("slow={}", slow.uri())]);
    let source = disk_file(folder.path(), "source", 448 * MIB);
    let args = ["copy", source.to_str().unwrap(), "agent://site-b/slow", "--no-link-compression"];
    let copying = Copying::start(&sites, &args);
    copying.ends_well();
    let there = peak(sites.agent.as_ref().unwrap());
    assert!(there < BOUND, "{} MiB there", there / MIB);
    assert!(compared(&sites, &source));
}

fn compared(sites: &Sites, source: &Path) -> bool {
    let back = sites.path("back");
    let output = sites.here.run(&["copy", "agent://site-b/slow", back.to_str().unwrap()]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    let (source, back) = (std::fs::read(source).unwrap(), std::fs::read(&back).unwrap());
    back[..source.len()] == source
}
