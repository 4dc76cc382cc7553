//! Links over RDMA: when they are, what carries them else, and what is said about it. A stand-in for the library (`lab/rdma-standin`) takes
//! the place of a device; soft RDMA of a kernel is in `live_rdma.rs`.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use drover_lab::{Output, workspace};
use drover_stage::process::wait_until;
use drover_stage::sites::{Sites, done};
use drover_stage::{MIB, disk_file, moves, same_bytes};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

/// What a host has.
#[derive(Clone, Copy)]
enum Has {
    Device,
    NoDevice,
    NoLibrary,
}

/// Two sites, each with a library or none.
struct Rdma {
    sites: Sites,
    folder: tempfile::TempDir,
    here: Has,
}

impl Rdma {
    /// Not paired yet; `more` is what the agent is told.
    fn new(here: Has, there: Has, more: &[&str]) -> Rdma {
        let mut rdma = Rdma::not_started(here);
        rdma.sites.env = rdma.env(there);
        rdma.sites.env.push(("RDMA_STANDIN_HELD".into(), rdma.path("held").display().to_string()));
        rdma.sites.more = more.iter().map(|it| (*it).to_string()).collect();
        rdma.sites.start();
        rdma
    }

    fn not_started(here: Has) -> Rdma {
        let folder = tempfile::tempdir().unwrap();
        let standin = folder.path().join("standin");
        std::fs::create_dir(&standin).unwrap();
        let source = workspace().join("lab/rdma-standin/rsocket.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .arg(standin.join("librdmacm.so.1"))
            .arg(source);
        assert!(cc.status().unwrap().success());
        let broken = folder.path().join("broken");
        std::fs::create_dir(&broken).unwrap();
        std::fs::write(broken.join("librdmacm.so.1"), "no library").unwrap();
        std::fs::write(folder.path().join("never"), "").unwrap();
        Rdma { sites: Sites::not_started(), folder, here }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn env(&self, has: Has) -> Vec<(String, String)> {
        let library = if matches!(has, Has::NoLibrary) { "broken" } else { "standin" };
        let gone = if matches!(has, Has::NoDevice) { "never" } else { "gone" };
        let one = |name: &str, path: &str| (name.to_string(), self.path(path).display().to_string());
        vec![
            one("LD_LIBRARY_PATH", library),
            one("RDMA_STANDIN_GONE", gone),
            one("RDMA_STANDIN_COUNT", "count"),
        ]
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.sites.here.command(args);
        command.envs(self.env(self.here));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        moves::run(self.command(args))
    }

    fn pair(&self, more: &[&str]) -> Output {
        let token = self.path("token");
        std::fs::write(&token, self.sites.token(&[])).unwrap();
        let token = token.display().to_string();
        let args = ["agent", "pair", &self.sites.address, "--name", "site-b", "--as", "site-a"];
        self.run(&[&args[..], &["--token-file", &token], more].concat())
    }

    #[track_caller]
    fn paired(self, more: &[&str]) -> Rdma {
        let output = self.pair(more);
        assert_eq!(output.code, Some(0), "{}", output.err);
        self
    }

    fn copy(&self, source: &Path) -> Output {
        self.run(&["copy", "--json", source.to_str().unwrap(), "agent://site-b/vms/disk.raw"])
    }

    #[track_caller]
    fn measured(&self, more: &[&str]) -> Value {
        let args = ["link", "test", "site-b", "--stripes", "2", "--time", "1s", "--json"];
        let output = self.run(&[&args[..], more].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
        output.json().unwrap()
    }

    /// Bytes that went over RDMA, both ways.
    fn carried(&self) -> u64 {
        let told = std::fs::read_to_string(self.path("count")).unwrap_or_default();
        told.lines().filter_map(|line| line.parse::<u64>().ok()).sum()
    }

    fn arrived(&self, source: &Path) -> bool {
        same_bytes(source, &self.sites.in_pool("disk.raw"))
    }
}

#[test]
fn rdma_takes_over_where_both_sides_have_it() {
    let rdma = Rdma::new(Has::Device, Has::Device, &[]).paired(&[]);
    let found = rdma.measured(&[]);
    assert_eq!((&found["rdma"], &found["rdma_why_not"]), (&true.into(), &Value::Null), "{found}");
    let probe = &found["probes"][0];
    assert_eq!((&probe["congestion_control"], &probe["connections"]), (&"rdma".into(), &2.into()), "{found}");
    assert!(rdma.carried() > 0);
    let told = rdma.run(&["link", "test", "site-b", "--stripes", "1", "--time", "1s"]);
    assert!(told.out.contains("RDMA carries this link"), "{}", told.out);
    let carried = rdma.carried();
    let tcp = rdma.measured(&["--rdma", "never"]);
    assert_eq!((&tcp["rdma"], &tcp["rdma_why_not"]), (&false.into(), &"it is not wanted".into()), "{tcp}");
    assert_eq!(rdma.carried(), carried);
}

#[test]
fn a_disk_goes_over_rdma_alone_where_that_is_required() {
    let rdma = Rdma::new(Has::Device, Has::Device, &["--rdma", "require"]).paired(&["--rdma", "require"]);
    let listed = rdma.run(&["agent", "list"]);
    assert!(listed.out.contains("rdma require"), "{}", listed.out);
    let source = disk_file(rdma.folder.path(), "source", 24 * MIB);
    let before = rdma.carried();
    let sent = done(&rdma.copy(&source))["link"]["bytes_sent"].as_u64().unwrap();
    assert!(rdma.arrived(&source));
    let carried = rdma.carried() - before;
    assert!(sent > MIB && carried >= sent, "{sent} bytes of the disk were sent, {carried} over RDMA");
}

#[test]
fn a_device_that_vanishes_in_mid_copy_costs_nothing_but_time() {
    let rdma = Rdma::new(Has::Device, Has::Device, &[]).paired(&[]);
    let source = disk_file(rdma.folder.path(), "source", 96 * MIB);
    let target = "agent://site-b/vms/disk.raw";
    let log = rdma.path("log");
    let mut command = rdma.command(&["copy", source.to_str().unwrap(), target, "--rate-limit", "12MiB"]);
    let log_to = std::fs::File::create(&log).unwrap();
    let mut copying = command.stdout(Stdio::null()).stderr(log_to).spawn().unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    wait_until("blocks go over RDMA", PATIENCE, || {
        assert_eq!(copying.try_wait().unwrap(), None, "it ended: {}", said());
        rdma.carried() > 4 * MIB
    });
    std::fs::write(rdma.path("gone"), "").unwrap();
    let carried = rdma.carried();
    assert!(copying.wait().unwrap().success(), "{}", said());
    assert!(rdma.arrived(&source));
    let size = std::fs::metadata(&source).unwrap().len();
    assert!(carried < size / 2, "{carried} of {size} bytes had gone over RDMA before it vanished");
}

#[test]
fn without_library_or_device_tcp_carries_the_link_and_it_is_said_why() {
    for (here, why) in [(Has::NoDevice, "no RDMA device"), (Has::NoLibrary, "librdmacm.so.1")] {
        let rdma = Rdma::new(here, Has::Device, &[]).paired(&[]);
        let found = rdma.measured(&[]);
        assert_eq!(found["rdma"], false, "{found}");
        assert!(found["rdma_why_not"].as_str().unwrap().contains(why), "{found}");
        let source = disk_file(rdma.folder.path(), "source", 2 * MIB);
        let copied = rdma.copy(&source);
        done(&copied);
        assert!(rdma.arrived(&source));
        assert!(copied.err.contains("TCP carries this link") && copied.err.contains(why), "{}", copied.err);
        assert_eq!(rdma.carried(), 0);
    }
}

/// As an agent of before does not offer it.
#[test]
fn an_agent_that_does_not_offer_rdma_is_reached_over_tcp() {
    let has_none =
        [(Has::NoDevice, &[][..]), (Has::NoLibrary, &[][..]), (Has::Device, &["--rdma", "never"][..])];
    for (there, more) in has_none {
        let rdma = Rdma::new(Has::Device, there, more).paired(&[]);
        let found = rdma.measured(&[]);
        assert_eq!(found["rdma_why_not"], "the peer does not offer it", "{found}");
        assert_eq!(rdma.carried(), 0);
        let refused = rdma.run(&["link", "test", "site-b", "--stripes", "1", "--rdma", "require"]);
        assert_eq!(refused.code, Some(5), "{refused:?}");
        assert!(refused.err.contains("over RDMA: "), "{}", refused.err);
    }
}

/// Strangers who connect and go cost no more threads and buffers than a bound, though closing waits for each; TCP carries the link meanwhile.
#[test]
fn strangers_who_go_leave_no_more_than_a_bound_of_closes() {
    // Of whom those that are not accepted find room in the backlog.
    const STRANGERS: usize = 360;
    let rdma = Rdma::new(Has::Device, Has::Device, &[]).paired(&[]);
    let pid = rdma.sites.agent.as_ref().unwrap().id();
    let closes = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread may end while it is looked at.
        let name = |path: PathBuf| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        tasks.filter(|task| name(task.as_ref().unwrap().path()).starts_with("rdma-close")).count()
    };
    std::fs::write(rdma.path("held"), "").unwrap();
    let mut address: SocketAddrV4 = rdma.sites.address.parse().unwrap();
    // Where the stand-in has it.
    address.set_ip(Ipv4Addr::from(u32::from(*address.ip()) ^ 128 << 16));
    let strangers = (0..STRANGERS).map(|_| std::net::TcpStream::connect(address).unwrap());
    strangers.for_each(drop);
    wait_until("the bound is reached", PATIENCE, || closes() >= 256);
    std::thread::sleep(Duration::from_secs(1));
    assert!(closes() < STRANGERS - 50, "{} closes", closes());
    assert_eq!(rdma.measured(&[])["rdma"], false);
    std::fs::remove_file(rdma.path("held")).unwrap();
    wait_until("all are closed", PATIENCE, || closes() == 0);
    assert_eq!(rdma.measured(&[])["rdma"], true);
}

#[test]
fn what_lacks_for_rdma_is_named_where_that_is_required() {
    for (here, why) in [(Has::NoDevice, "no RDMA device"), (Has::NoLibrary, "librdmacm.so.1 cannot be used")]
    {
        let rdma = Rdma::new(here, Has::Device, &[]);
        let refused = rdma.pair(&["--rdma", "require"]);
        assert_eq!(refused.code, Some(5), "{refused:?}");
        assert!(refused.err.contains("RDMA is required") && refused.err.contains(why), "{}", refused.err);
        let listen = ["--listen", "127.0.0.1:0", "--rdma", "require"];
        let agent = rdma.run(&[&["agent", "run"][..], &listen].concat());
        assert_eq!(agent.code, Some(2), "{agent:?}");
        assert!(agent.err.contains("RDMA is required") && agent.err.contains(why), "{}", agent.err);
    }
}
