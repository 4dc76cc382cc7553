//! `drover relay --via` and `drover agent run --allow-connect`: two hosts on one, over real TLS links.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Child;
use std::time::Duration;

use drover_lab::Drover;
use drover_stage::line::Line;
use drover_stage::process::{memory_kib, wait_until};
use drover_stage::running::{Running, exchange, listener, pair, try_pair, turns_away};
use drover_stage::sites::own_address;
use drover_stage::streams::{PATIENCE, is_reset, is_turned_away, noise, patient, read_all, send};
use rustix::net::sockopt::set_socket_linger;
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Two hosts: an agent at one, relays at the other.
struct Sites {
    folder: tempfile::TempDir,
    here: Drover,
    there: Drover,
    agent: Option<Running>,
    /// Where the agent listens, and where it can be found: there may be a line between.
    agent_address: String,
    allowed: Vec<String>,
}

impl Sites {
    fn new(allowed: &[&str]) -> Sites {
        let folder = tempfile::tempdir().unwrap();
        let host = |name: &str| Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join(name));
        let (here, there) = (host("here"), host("there"));
        let allowed = allowed.iter().map(ToString::to_string).collect();
        let agent_address = own_address();
        let mut sites = Sites { folder, here, there, agent: None, agent_address, allowed };
        sites.start_agent();
        sites
    }

    /// Sites that know each other; the agent is found where it is.
    fn paired(allowed: &[&str]) -> Sites {
        let sites = Sites::new(allowed);
        sites.pair(&sites.agent_address);
        sites
    }

    fn start_agent(&mut self) {
        let control = self.agent_control();
        let mut args = vec!["agent", "run", "--json", "--listen", &self.agent_address, "--name", "west"];
        args.extend(["--control", &control, "--metrics", "127.0.0.1:0"]);
        self.allowed.iter().for_each(|rule| args.extend(["--allow-connect", rule]));
        let agent = Running::start(&self.there, &args);
        self.agent_address = agent.address(0);
        self.agent = Some(agent);
    }

    fn agent(&self) -> &Running {
        self.agent.as_ref().unwrap()
    }

    fn pair(&self, address: &str) {
        let token = self.there.run(&["agent", "pair", "--new-token"]).unwrap();
        let file = self.folder.path().join("token");
        std::fs::write(&file, token.out).unwrap();
        let args = ["agent", "pair", address, "--name", "site-b", "--as", "site-a", "--token-file"];
        let paired = self.here.run(&[&args[..], &[file.to_str().unwrap()]].concat()).unwrap();
        assert_eq!(paired.code, Some(0), "{}", paired.err);
    }

    fn agent_control(&self) -> String {
        self.folder.path().join("agent-1.sock").display().to_string()
    }

    /// What the agent tells.
    fn agent_top(&self) -> Value {
        let told = self.there.run(&["agent", "top", "--json", "--control", &self.agent_control()]);
        told.unwrap().json().unwrap()
    }

    fn control(&self) -> String {
        self.folder.path().join("relay-1.sock").display().to_string()
    }

    fn relay_with(&self, args: &[&str]) -> Running {
        let control = self.control();
        let first = ["relay", "--json", "--exit-with-parent", "--via", "site-b", "--control", &control];
        Running::start(&self.here, &[&first[..], args].concat())
    }

    fn relay(&self, to: &str) -> Running {
        self.relay_with(&["--listen", "127.0.0.1:0", "--to", to])
    }

    fn top(&self) -> Value {
        let told =
            self.here.run(&["relay", "top", "--json", "--number", "1000", "--control", &self.control()]);
        told.unwrap().json().unwrap()
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut told = Value::Null;
        wait_until(what, PATIENCE, || {
            told = self.top();
            holds(&told)
        });
        told
    }
}

#[test]
fn a_stream_goes_over_the_link_both_ways_and_is_shown() {
    let sites = Sites::paired(&["127.0.0.0/8:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay_with(&["--listen", "127.0.0.1:0", "--to", &address, "--metrics", "127.0.0.1:0"]);
    assert_eq!(relay.first["via"], "site-b");
    exchange(pair(&relay, &target), 1, 20 * MIB + 7);

    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"question").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&far), b"question");
    let told = sites.wait_for("it is shown", |it| {
        let up = &it["connections"][0]["up"];
        up["bytes"] == 8 && up["waiting"] == "done" && it["link"]["rtt_us"].as_u64() > Some(0)
    });
    let shown = &told["connections"][0];
    assert_eq!((&shown["is_linked"], &shown["target"]), (&true.into(), &address.as_str().into()));
    assert_eq!(shown["stage"], "open");
    assert_eq!((&told["link"]["site"], &told["link"]["state"]), (&"site-b".into(), &"up".into()));
    assert!(told["link"]["connections"].as_u64() > Some(0), "{told}");
    let page = sites.here.run(&["relay", "top", "--control", &sites.control()]).unwrap().out;
    assert!(page.contains("link to site-b: up") && page.contains(&address), "{page}");
    assert!(metrics(&relay).contains("\ndrover_relay_link_up 1\n"));
    far.write_all(b"answer").unwrap();
    drop(far);
    assert_eq!(read_all(&near), b"answer");

    let totals = sites.wait_for("both have ended", |it| it["totals"]["closed"] == 2);
    assert_eq!(totals["totals"]["up_bytes"], (20 * MIB + 7 + 8) as u64);
}

fn metrics(relay: &Running) -> String {
    let url = relay.first["metrics"].as_str().unwrap();
    let host = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let mut stream = patient(TcpStream::connect(host).unwrap());
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    String::from_utf8(read_all(&stream)).unwrap()
}

#[test]
fn the_agent_tells_what_it_carries_connection_by_connection() {
    let sites = Sites::paired(&["127.0.0.0/8:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(&noise(1, MIB)).unwrap();
    far.read_exact(&mut vec![0; MIB]).unwrap();
    far.write_all(b"12345").unwrap();
    near.read_exact(&mut [0; 5]).unwrap();
    let mut told = Value::Null;
    wait_until("the agent tells of it", PATIENCE, || {
        told = sites.agent_top();
        let shown = &told["connections"][0];
        (&shown["up"]["bytes"], &shown["down"]["bytes"]) == (&MIB.into(), &5.into())
    });
    assert_eq!((&told["live"], &told["peers"]["site-a"]), (&1.into(), &1.into()));
    let shown = &told["connections"][0];
    assert_eq!((&shown["peer"], &shown["target"]), (&"site-a".into(), &address.as_str().into()));
    assert_eq!((&shown["up"]["waiting"], &shown["down"]["waiting"]), (&"source".into(), &"source".into()));
    let socket = &shown["target_socket"];
    assert!(socket["rtt_us"].as_u64() > Some(0) && socket["segments_again"].is_u64(), "{shown}");
    assert!(shown["client_socket"].is_null(), "{shown}");
    let page = sites.there.run(&["agent", "top", "--control", &sites.agent_control()]).unwrap().out;
    assert!(page.contains("of peers: site-a 1\n") && page.contains(&address), "{page}");
    let page = metrics(sites.agent());
    for line in [
        "drover_relay_connections 1",
        "drover_relay_peer_connections{peer=\"site-a\"} 1",
        "drover_relay_bytes_total{direction=\"up\"} 1048576",
        "drover_relay_bytes_total{direction=\"down\"} 5",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} in\n{page}");
    }
}

#[test]
fn the_agent_tells_which_side_is_waited_for_and_whom_it_refused() {
    let sites = Sites::paired(&["127.0.0.0/8:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay_with(&[
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
        "--to",
        &address,
        "--to",
        "192.0.2.1:9",
    ]);
    let (near, far) = pair(&relay, &target);
    for (way, writer) in [("up", &near), ("down", &far)] {
        wait_until("nobody takes it", PATIENCE, || {
            stuff(writer);
            sites.agent_top()["connections"][0][way]["waiting"] == "target"
        });
    }
    assert!(is_turned_away(relay.address(1)));
    let told = sites.agent_top();
    assert_eq!((&told["totals"]["refused"]["policy"], &told["live"]), (&1.into(), &1.into()), "{told}");
    assert!(metrics(sites.agent()).contains("drover_relay_refused_total{reason=\"policy\"} 1\n"));
    drop((near, far));
    wait_until("it has gone", PATIENCE, || sites.agent_top()["live"] == 0);
    let told = sites.agent_top();
    assert_eq!((&told["peers"], &told["totals"]["connected"]), (&serde_json::json!({}), &1.into()));
}

fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn resets_come_through() {
    let sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    let (near, mut far) = pair(&relay, &target);
    reset(near);
    assert!(is_reset(&mut far));
    let (mut near, far) = pair(&relay, &target);
    reset(far);
    assert!(is_reset(&mut near));
}

#[test]
fn nothing_is_allowed_by_default_and_both_sides_say_what_to_try() {
    let mut sites = Sites::paired(&[]);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    assert!(turns_away(&relay));
    let refused = relay.wait_for("refused");
    assert_eq!((&refused["reason"], &refused["target"]), (&"site_policy".into(), &address.as_str().into()));
    let told = sites.agent().wait_for("not-connected");
    assert_eq!((&told["about"], &told["to"]), (&"site-a".into(), &address.as_str().into()));
    let advice = format!("--allow-connect {address}");
    for why in [&refused["why"], &told["why"]] {
        assert!(why.as_str().unwrap().contains(&advice), "{why}");
    }
    // The advice helps.
    sites.agent.as_mut().unwrap().kill();
    sites.allowed = vec![address];
    sites.start_agent();
    let mut connected = None;
    wait_until("the new agent is found", PATIENCE, || {
        connected = try_pair(&relay, &target);
        connected.is_some()
    });
    exchange(connected.unwrap(), 3, MIB);
}

#[test]
fn a_revoked_site_is_sent_away_and_told_why() {
    let sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
    let revoked = sites.there.run(&["agent", "revoke", "site-a"]).unwrap();
    assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    assert!(is_reset(&mut near) && is_reset(&mut far));
    let refused = loop {
        assert!(turns_away(&relay));
        let refused = relay.wait_for("refused");
        // One that came while the session ended is told that.
        if refused["why"].as_str().unwrap().contains("no peer's") {
            break refused;
        }
    };
    assert_eq!(refused["reason"], "link");
}

#[test]
fn an_agent_that_is_killed_resets_its_connections_and_the_next_one_serves_new_ones() {
    let mut sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"half").unwrap();
    far.read_exact(&mut [0; 4]).unwrap();
    sites.agent.as_mut().unwrap().kill();
    // The far side knows at once.
    assert!(is_reset(&mut far));
    sites.start_agent();
    // The near side as soon as it finds another process where the agent was.
    assert!(is_reset(&mut near));
    let mut connected = None;
    wait_until("the new agent is found", PATIENCE, || {
        connected = try_pair(&relay, &target);
        connected.is_some()
    });
    exchange(connected.unwrap(), 5, 3 * MIB);
}

#[test]
fn a_relay_that_is_killed_never_looks_like_an_end() {
    let sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    let mut relay = sites.relay(&address);
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"half").unwrap();
    far.read_exact(&mut [0; 4]).unwrap();
    relay.kill();
    assert!(is_reset(&mut near));
    // Its session could come back, so the agent waits for it; a new relay is another one.
    let other = sites.relay(&address);
    exchange(pair(&other, &target), 7, MIB);
    far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let kind = far.read(&mut [0; 8]).map_err(|error| error.kind());
    assert!(matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::ConnectionReset)), "{kind:?}");
}

#[test]
fn connections_survive_a_line_that_is_cut() {
    let sites = Sites::new(&["*:1-65535"]);
    let line = Line::to(&sites.agent_address);
    sites.pair(&line.address);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    for (seed, cut) in [(1, Duration::from_secs(1)), (2, Duration::from_secs(4))] {
        let (near, far) = pair(&relay, &target);
        let (up, down) = (noise(seed, 24 * MIB), noise(seed + 10, 9 * MIB));
        let (mut head, mut back) = (vec![0; MIB], vec![0; MIB]);
        // Both ways are under way when the line goes.
        let (sending, answering) = (send(&near, up.clone()), send(&far, down.clone()));
        (&far).read_exact(&mut head).unwrap();
        (&near).read_exact(&mut back).unwrap();
        line.cut(true);
        std::thread::sleep(cut);
        line.cut(false);
        let reading = std::thread::spawn(move || read_all(&far));
        back.extend(read_all(&near));
        head.extend(reading.join().unwrap());
        assert!(head == up && back == down, "what arrived after a cut differs");
        sending.join().unwrap();
        answering.join().unwrap();
    }
    assert!(line.connections() > 4, "the line was never cut in truth");
    assert_eq!(sites.top()["totals"]["reset"], 0);
}

#[test]
fn a_slow_reader_is_waited_for_in_bounded_memory() {
    let sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    let relay = sites.relay(&address);
    let slow: Vec<_> = (0..8).map(|_| pair(&relay, &target)).collect();
    let mut sent = vec![0; slow.len()];
    let mut told = Value::Null;
    wait_until("they wait", PATIENCE, || {
        // However long the relay or the agent takes what was written before.
        slow.iter().zip(&mut sent).for_each(|((near, _), sent)| *sent += stuff(near));
        told = sites.top();
        let connections = told["connections"].as_array().unwrap();
        let all_wait = connections.len() == 8 && connections.iter().all(|it| it["up"]["waiting"] == "target");
        // What the sockets behind the agent take makes a stream's credit grow, and all of it can be on its way for a
        // moment. Then the relay takes nothing more: what the agent has no room for stays with the client.
        all_wait && told["link"]["held_bytes"].as_u64() <= Some((8 * 64) << 10)
    });
    // What the sockets behind the agent took at once counts as read, and credit grows with it: up to the session's
    // 256 MiB, beside what the process has in any case.
    for (process, mib_max) in [(&relay.child, 96), (&sites.agent().child, 256 + 64)] {
        let peak = peak_kib(process);
        assert!(peak <= mib_max << 10, "{peak} KiB");
    }
    exchange(pair(&relay, &target), 9, 4 * MIB);
    for ((near, far), sent) in slow.into_iter().zip(sent) {
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&far).len(), sent);
    }
}

/// Writes until nothing more is taken; gives how much went.
fn stuff(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut all = 0;
    loop {
        match stream.write(&[1; 64 << 10]) {
            Ok(bytes) => all += bytes,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return all;
            }
        }
    }
}

fn peak_kib(process: &Child) -> u64 {
    memory_kib(process, "VmHWM:")
}

#[test]
fn a_rate_limit_holds_for_the_link_and_nothing_is_lost() {
    let sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    let args = ["--listen", "127.0.0.1:0", "--to", &address, "--rate-limit", "8MiB"];
    let relay = sites.relay_with(&args);
    exchange(pair(&relay, &target), 21, 6 * MIB);
    let (near, _far) = pair(&relay, &target);
    let sending = std::thread::spawn(move || drop((&near).write_all(&vec![7; 64 * MIB])));
    // Nobody reads: what the line may carry is not what is waited for.
    let told = sites.wait_for("something went", |it| it["connections"][0]["up"]["bytes"].as_u64() > Some(0));
    assert_eq!(told["link"]["state"], "up");
    drop(relay);
    sending.join().unwrap();
}

#[test]
fn what_does_not_fit_together_is_refused_with_advice() {
    let sites = Sites::paired(&[]);
    let via = ["relay", "--via", "site-b"];
    let transparent = ["--transparent", "tproxy", "--match", "port 8000"];
    for (args, why) in [
        (
            vec!["relay", "--via", "nowhere", "--listen", "127.0.0.1:0", "--to", "h:1"],
            "there is no site 'nowhere'",
        ),
        (via.to_vec(), "nothing to relay"),
        ([&via[..], &transparent, &["--keep-source"]].concat(), "--keep-source does not go with --via"),
        (vec!["agent", "run", "--allow-connect", "h"], "an address with a port"),
    ] {
        let told = sites.here.run(&args).unwrap();
        assert_eq!(told.code, Some(2), "{args:?}: {}", told.err);
        assert!(told.err.contains(why), "{args:?}: {}", told.err);
    }
}

#[test]
fn without_its_agent_a_relay_runs_and_says_what_is_missing() {
    let mut sites = Sites::paired(&["*:1-65535"]);
    let (target, address) = listener();
    sites.agent.as_mut().unwrap().kill();
    let relay = sites.relay(&address);
    assert!(turns_away(&relay));
    let refused = relay.wait_for("refused");
    assert_eq!(refused["reason"], "link");
    assert!(refused["why"].as_str().unwrap().starts_with("no link to site-b: "), "{refused}");
    assert_eq!(sites.top()["link"]["state"], "down");
    sites.start_agent();
    let mut connected = None;
    wait_until("the agent is found", PATIENCE, || {
        connected = try_pair(&relay, &target);
        connected.is_some()
    });
    exchange(connected.unwrap(), 31, MIB);
}
