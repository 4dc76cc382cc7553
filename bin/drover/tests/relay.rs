//! `drover relay`: the program.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/relay/tests/common/streams.rs"]
mod streams;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

fn drover() -> Command {
    Command::new(env!("CARGO_BIN_EXE_drover"))
}

/// A relay that ends with the test.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    said: Value,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, out, said: Value::Null };
        running.said = running.event();
        running
    }

    fn with(folder: &Path, args: &[&str]) -> Running {
        let mut command = drover();
        command.args(["relay", "--json", "--exit-with-parent", "--control"]);
        command.arg(folder.join("relay-1.sock")).args(args);
        Running::start(command)
    }

    fn event(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in '{line}'"))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.said["addresses"][0].as_str().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn terminate(&mut self) -> (Value, Option<i32>) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let event = self.event();
        (event, self.child.wait().unwrap().code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output(args: &[&str]) -> Output {
    drover().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn relays_shows_what_it_does_and_ends_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let (target, address) = listener();
    let args =
        ["--listen", "127.0.0.1:0", "--to", &address, "--metrics", "127.0.0.1:0", "--congestion", "reno"];
    let mut relay = Running::with(folder.path(), &args);
    assert_eq!((&relay.said["event"], &relay.said["congestion"]), (&"listening".into(), &"reno".into()));
    let mut near = relay.connect();
    let (mut far, _) = target.accept().unwrap();
    near.write_all(b"hello").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let mut read = String::new();
    far.read_to_string(&mut read).unwrap();
    assert_eq!(read, "hello");

    let socket = relay.said["control"].as_str().unwrap().to_string();
    let told = output(&["relay", "top", "--control", &socket, "--json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&told["live"], &told["connections"][0]["up"]["bytes"]), (&1.into(), &5.into()));
    assert_eq!(told["connections"][0]["target_socket"]["congestion"], "reno");
    let page = text(&output(&["relay", "top", "--control", &socket]).stdout);
    assert!(page.starts_with("1 connection now") && page.contains(&address), "{page}");
    assert!(relay.said["metrics"].as_str().unwrap().ends_with("/metrics"));

    far.write_all(b"bye").unwrap();
    drop(far);
    read.clear();
    near.read_to_string(&mut read).unwrap();
    assert_eq!(read, "bye");
    let (ended, code) = relay.terminate();
    assert_eq!((&ended["event"], &ended["totals"]["accepted"]), (&"ended".into(), &1.into()));
    assert_eq!((&ended["totals"]["down_bytes"], code), (&3.into(), Some(0)));
    assert!(!Path::new(&socket).exists());
}

#[test]
fn a_killed_relay_never_looks_like_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let (target, address) = listener();
    let mut relay = Running::with(folder.path(), &["--listen", "127.0.0.1:0", "--to", &address]);
    let mut near = relay.connect();
    let (mut far, _) = target.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    near.write_all(b"half of it").unwrap();
    far.read_exact(&mut [0; 10]).unwrap();
    relay.child.kill().unwrap();
    relay.child.wait().unwrap();
    for end in [&mut near, &mut far] {
        assert_eq!(end.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    let socket = relay.said["control"].as_str().unwrap();
    let told = output(&["relay", "top", "--control", socket, "--once"]);
    assert_eq!(told.status.code(), Some(5), "{}", text(&told.stderr));
}

#[test]
fn rules_come_from_the_command_line_and_then_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy");
    let (target, address) = listener();
    std::fs::write(&policy, "# all of this host\nallow from 127.0.0.0/8\n").unwrap();
    let policy = policy.to_str().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--to", &address, "--policy", policy];
    let relay = Running::with(folder.path(), &args);
    let _near = relay.connect();
    target.accept().unwrap();
    drop(relay);
    let relay = Running::with(folder.path(), &[&args[..], &["--rule", "deny port 1-65535"]].concat());
    assert!(relay.said["notes"].is_array());
    assert!(streams::is_turned_away(relay.said["addresses"][0].as_str().unwrap()));
    std::fs::write(policy, "allow\nallow prot 5\n").unwrap();
    let told = output(&[&["relay"], &args[..]].concat());
    assert_eq!(told.status.code(), Some(2));
    assert!(text(&told.stderr).contains("line 2: rule 'allow prot 5': 'prot' is none of"), "{told:?}");
}

#[test]
fn what_does_not_fit_together_is_refused_with_advice() {
    for (args, code, why) in [
        (&["relay"][..], 2, "nothing to relay"),
        (&["relay", "--listen", "127.0.0.1:0"], 2, "--to"),
        (&["relay", "--listen", "127.0.0.1:1-3", "--to", "x:1-2"], 2, "give as many there"),
        (&["relay", "--transparent", "redirect"], 2, "--match"),
        (
            &["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--congestion", "nonesuch"],
            2,
            "modprobe",
        ),
        (&["relay", "--listen", "127.0.0.1:0", "--to", "no-such-host.invalid:9"], 5, "looking up"),
        (
            &["relay", "--transparent", "redirect", "--match", "port 80", "--port", "80", "--print-rules"],
            2,
            "port 80 is among those",
        ),
        (
            &[
                "relay",
                "--transparent",
                "redirect",
                "--match",
                "any",
                "--port",
                "80",
                "--keep-source",
                "--print-rules",
            ],
            2,
            "tproxy only",
        ),
    ] {
        let told = output(args);
        assert_eq!(told.status.code(), Some(code), "{args:?}: {told:?}");
        assert!(text(&told.stderr).contains(why), "{args:?}: {}", text(&told.stderr));
    }
}

#[test]
fn a_relay_to_itself_is_refused() {
    // One that is not refused would run on: where its port is taken it ends, too, and says something else.
    let (_held, address) = listener();
    let any = format!("0.0.0.0:{}", address.rsplit_once(':').unwrap().1);
    let (_other, between) = listener();
    for args in [
        &["--listen", &address, "--to", &address][..],
        &["--listen", &any, "--to", &address],
        &["--listen", &address, "--to", &between, "--listen", &between, "--to", &address],
    ] {
        let told = output(&[&["relay"], args].concat());
        assert_eq!(told.status.code(), Some(2), "{args:?}: {told:?}");
        let why = text(&told.stderr);
        assert!(why.contains("is the relay itself") && why.contains("another port"), "{args:?}: {why}");
    }
}

#[test]
fn printed_rules_change_nothing() {
    let args = ["relay", "--transparent", "tproxy", "--match", "to 10.2.0.0/16 port 8000", "--port", "4000"];
    let told = output(&[&args[..], &["--print-rules"]].concat());
    let printed = text(&told.stdout);
    for part in [
        "table inet drover_relay_",
        "ip daddr 10.2.0.0/16 fib daddr type != local tcp dport { 8000 } tproxy ip to :4000",
        "ip -4 rule add fwmark 0xd8",
    ] {
        assert!(printed.contains(part), "{part} in\n{printed}");
    }
    if let Ok(tables) = Command::new("nft").args(["list", "tables"]).output() {
        let table = printed.split_whitespace().find(|word| word.starts_with("drover_relay_")).unwrap();
        assert!(!text(&tables.stdout).contains(table));
    }
}

/// A network namespace that goes with the test.
struct Namespace(String);

impl Namespace {
    fn new() -> Option<Namespace> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("drover-relay-test-{}-{number}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        let namespace = Namespace(name);
        if !made.is_ok_and(|made| made.status.success()) || !namespace.run("nft", &["list", "tables"]).1 {
            println!("skipped: no network namespaces with a packet filter here");
            return None;
        }
        namespace.run("ip", &["link", "set", "lo", "up"]);
        Some(namespace)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]).args(args);
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> (String, bool) {
        let output = self.command(program, args).output().unwrap();
        (text(&output.stdout), output.status.success())
    }

    /// Tables, and rules of both families.
    fn state(&self) -> String {
        let list = |args: &[&str]| self.run("ip", args).0;
        self.run("nft", &["list", "tables"]).0 + &list(&["-4", "rule"]) + &list(&["-6", "rule"])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

/// What no end but a kill may leave behind: starts a relay with rules, ends it, and looks.
fn ends_without_a_trace(end: impl FnOnce(&Namespace, &Path) -> Child) {
    let Some(namespace) = Namespace::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let before = namespace.state();
    let mut child = end(&namespace, folder.path());
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(namespace.state(), before);
}

fn with_rules(namespace: &Namespace, folder: &Path, json: &[&str]) -> Command {
    let socket = folder.join("relay-1.sock");
    let args = ["relay", "--exit-with-parent", "--transparent", "redirect", "--match", "port 8000"];
    let control = ["--control", socket.to_str().unwrap()];
    namespace.command(env!("CARGO_BIN_EXE_drover"), &[&args[..], &control, json].concat())
}

#[test]
fn redirected_connections_come_to_a_port_that_only_root_can_take() {
    let Some(namespace) = Namespace::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let ports = |name: &str, how: &str, more: &[&str]| {
        let socket = folder.path().join(name);
        let args = ["relay", "--json", "--exit-with-parent", "--transparent", how];
        let control = ["--control", socket.to_str().unwrap()];
        let args = [&args[..], &control, more].concat();
        let relay = Running::start(namespace.command(env!("CARGO_BIN_EXE_drover"), &args));
        let addresses = relay.said["addresses"].as_array().unwrap().clone();
        let port = |address: &Value| address.as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        (addresses.iter().map(port).collect::<Vec<u16>>(), relay)
    };
    let (some, first) = ports("relay-1.sock", "redirect", &["--match", "port 8000"]);
    assert!(some.iter().all(|port| (954..=988).contains(port)), "{some:?}");
    let (rules, is_well) = namespace.run("nft", &["list", "ruleset"]);
    let leads_to = |port: &u16| rules.contains(&format!("redirect to :{port}"));
    assert!(is_well && some.iter().all(leads_to), "{some:?}: {rules}");
    let (others, second) = ports("relay-2.sock", "redirect", &["--match", "port 8001,954-987"]);
    drop(first);
    // Two relays of a kind have ports of their own, and none that is to be caught.
    let is_free = |port: &u16| *port == 988 || *port > 1023;
    assert!(others.iter().all(|port| is_free(port) && !some.contains(port)), "{some:?} {others:?}");
    drop(second);
    let exposed = |relay: &Running| {
        let notes = relay.said["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
        notes.filter(|note| note.contains("redirected connections come to")).count()
    };
    let (others, without) = ports("relay-5.sock", "redirect", &["--match", "port 8000,954-988"]);
    assert!(others.iter().all(|port| *port > 1023), "{others:?}");
    assert_eq!(exposed(&without), 1, "{}", without.said);
    drop(without);
    // What was said is done, and TPROXY needs none: such a rule finds no socket but the relay's.
    for (name, how, more) in
        [("relay-3.sock", "redirect", &["--port", "0"][..]), ("relay-4.sock", "tproxy", &[])]
    {
        let (ports, relay) = ports(name, how, &[&["--match", "port 8000"], more].concat());
        assert!(ports.iter().all(|port| *port > 1023), "{how} {ports:?}");
        assert_eq!(exposed(&relay), 0, "{}", relay.said);
    }
}

#[test]
fn a_hangup_takes_the_rules_away() {
    ends_without_a_trace(|namespace, folder| {
        // Whoever started these tests may have had hangups ignored, which goes on to all that they start.
        let mut command = Command::new("env");
        let relay = with_rules(namespace, folder, &["--json"]);
        command.arg("--default-signal=HUP").arg(relay.get_program()).args(relay.get_args());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(namespace.state().contains("drover_relay_"));
        kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
        child
    });
}

#[test]
fn rules_go_when_nobody_reads_what_is_said() {
    for json in [&["--json"][..], &[]] {
        ends_without_a_trace(|namespace, folder| {
            let mut command = with_rules(namespace, folder, json);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop((child.stdout.take(), child.stderr.take()));
            child
        });
    }
}

#[test]
fn a_second_interrupt_does_not_keep_rules_from_going() {
    ends_without_a_trace(|namespace, folder| {
        let (program, begun) = (folder.join("nft"), folder.join("begun"));
        // Slow at taking away.
        let script = format!(
            "PATH=${{PATH#*:}}\n[ $1 = delete ] && touch {} && sleep 1\nexec nft \"$@\"",
            begun.display()
        );
        drover_lab::put_script(&program, &script).unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = with_rules(namespace, folder, &["--json"]);
        let mut relay = Running::start(std::mem::replace(command.env("PATH", path), Command::new("true")));
        let interrupt = || kill_process(Pid::from_child(&relay.child), Signal::INT).unwrap();
        interrupt();
        let until = Instant::now() + PATIENCE;
        while !begun.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        interrupt();
        assert_eq!(relay.event()["event"], "ended");
        std::mem::replace(&mut relay.child, Command::new("true").spawn().unwrap())
    });
}

#[test]
fn what_a_killed_relay_leaves_is_cleaned_and_a_living_ones_is_not() {
    let Some(namespace) = Namespace::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let before = namespace.state();
    let program = env!("CARGO_BIN_EXE_drover");
    let start = |how: &str, name: &str| {
        let socket = folder.path().join(name);
        let args = ["relay", "--json", "--exit-with-parent", "--transparent", how, "--match", "port 8000"];
        let control = ["--control", socket.to_str().unwrap()];
        Running::start(namespace.command(program, &[&args[..], &control].concat()))
    };
    let mut killed = [start("tproxy", "relay-1.sock"), start("redirect", "relay-2.sock")];
    let mut living = start("tproxy", "relay-3.sock");
    assert_eq!(namespace.state().matches("drover_relay_").count(), 3);
    for relay in &mut killed {
        relay.child.kill().unwrap();
        relay.child.wait().unwrap();
    }
    assert_eq!(namespace.state().matches("drover_relay_").count(), 3);
    let (removed, is_well) = namespace.run(program, &["relay", "--clean"]);
    assert!(is_well && removed.matches("removed: nftables table").count() == 2, "{removed}");
    assert_eq!(namespace.state().matches("drover_relay_").count(), 1);
    assert_eq!(living.terminate().1, Some(0));
    assert_eq!(namespace.state(), before);
    assert_eq!(namespace.run(program, &["relay", "--clean"]), (String::new(), true));
}
