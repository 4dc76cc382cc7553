//! `drover relay --via` as a router hop: client, router and the other site in network namespaces.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use drover_lab::{Drover, Output};
use drover_stage::running::Running;
use drover_stage::streams::PATIENCE;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const OVER: u16 = 8000;
const PAST: u16 = 9000;

/// Client, router and the other site, in a row. The site's servers have an address of its own.
struct Net {
    names: [String; 3],
    folder: tempfile::TempDir,
}

fn run(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

impl Net {
    /// None, after a printed line, where namespaces or the packet filter are not to be had.
    fn new() -> Option<Net> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |what| format!("drover-via-{}-{number}-{what}", std::process::id());
        let names = ["client", "router", "site"].map(name);
        let net = Net { names, folder: tempfile::tempdir().unwrap() };
        match net.lay() {
            Ok(()) => Some(net),
            Err(why) => {
                println!("skipped: {why}");
                None
            }
        }
    }

    fn lay(&self) -> Result<(), String> {
        let [client, router, site] = &self.names;
        for name in &self.names {
            run(&format!("ip netns add {name}"))?;
            run(&format!("ip -n {name} link set lo up"))?;
        }
        for (name, link, other, net) in [(client, "c0", "r0", 1), (site, "s0", "r1", 3)] {
            run(&format!("ip -n {name} link add {link} type veth peer name {other} netns {router}"))?;
            for (name, link, host) in [(router, other, 1), (name, link, 2)] {
                run(&format!("ip -n {name} address add 10.{net}.0.{host}/24 dev {link}"))?;
                run(&format!("ip -n {name} link set {link} up"))?;
            }
            run(&format!("ip -n {name} route add default via 10.{net}.0.1"))?;
        }
        run(&format!("ip -n {site} address add 10.2.0.5/32 dev lo"))?;
        run(&format!("ip -n {router} route add 10.2.0.0/24 via 10.3.0.2"))?;
        run(&format!("ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1"))?;
        run(&format!("ip netns exec {router} nft list tables"))
    }

    /// The program at a host, with the host's own state.
    fn host(&self, at: usize) -> (Drover, Vec<String>) {
        let words = ["netns", "exec", &self.names[at], env!("CARGO_BIN_EXE_drover")];
        let state = self.folder.path().join(at.to_string());
        (Drover::new("ip", state), words.map(str::to_string).to_vec())
    }

    fn start(&self, at: usize, args: &[&str]) -> Running {
        let (host, words) = self.host(at);
        let words: Vec<&str> = words.iter().map(String::as_str).chain(args.iter().copied()).collect();
        Running::start(&host, &words)
    }

    fn output(&self, at: usize, args: &[&str]) -> Output {
        let (host, words) = self.host(at);
        let words: Vec<&str> = words.iter().map(String::as_str).chain(args.iter().copied()).collect();
        host.run(&words).unwrap()
    }

    /// An agent at the site, which the router knows.
    fn agent(&self) -> Running {
        let allow = format!("10.2.0.0/24:{OVER}-{PAST}");
        let control = self.folder.path().join("agent-1.sock").display().to_string();
        let agent = self.start(
            SITE,
            &[
                "agent",
                "run",
                "--json",
                "--listen",
                "10.3.0.2:7843",
                "--name",
                "west",
                "--allow-connect",
                &allow,
                "--control",
                &control,
            ],
        );
        let token = self.folder.path().join("token");
        std::fs::write(&token, self.output(SITE, &["agent", "pair", "--new-token"]).out).unwrap();
        let token = token.display().to_string();
        let args =
            ["agent", "pair", "10.3.0.2", "--name", "site-b", "--as", "site-a", "--token-file", &token];
        let paired = self.output(ROUTER, &args);
        assert_eq!(paired.code, Some(0), "{}", paired.err);
        agent
    }

    fn relay(&self, args: &[&str]) -> Running {
        let control = self.folder.path().join("relay-1.sock").display().to_string();
        let first = ["relay", "--json", "--exit-with-parent", "--via", "site-b", "--control", &control];
        self.start(ROUTER, &[&first[..], args].concat())
    }

    /// Runs something in a thread inside a namespace, and gives what came of it.
    fn within<T: Send + 'static>(&self, at: usize, act: impl FnOnce() -> T + Send + 'static) -> T {
        let file = File::open(format!("/run/netns/{}", self.names[at])).unwrap();
        let inside = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        };
        std::thread::spawn(inside).join().unwrap()
    }

    /// Servers that tell each client its address as they see it.
    fn serve(&self) {
        for port in [OVER, PAST] {
            self.within(SITE, move || {
                let listener = TcpListener::bind(("10.2.0.5", port)).unwrap();
                std::thread::spawn(move || {
                    for stream in listener.incoming() {
                        let mut stream = stream.unwrap();
                        let peer = stream.peer_addr().unwrap().ip().to_string();
                        // A client that goes away is its own business.
                        let _ = stream.write_all(peer.as_bytes());
                    }
                });
            });
        }
    }

    /// What a server sees of who visits it from there.
    fn visit(&self, from: usize, port: u16) -> Result<String, ErrorKind> {
        self.within(from, move || {
            let address = SocketAddr::new(IpAddr::from([10, 2, 0, 5]), port);
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| error.kind())?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut seen = String::new();
            stream.read_to_string(&mut seen).map_err(|error| error.kind())?;
            Ok(seen)
        })
    }

    fn tables(&self) -> String {
        let mut command = Command::new("ip");
        let output = command.args(["netns", "exec", &self.names[ROUTER], "nft", "list", "tables"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

const CLIENT: usize = 0;
const ROUTER: usize = 1;
const SITE: usize = 2;

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made.
            let _ = run(&format!("ip netns delete {name}"));
        }
    }
}

fn seen(text: &str) -> Result<String, ErrorKind> {
    Ok(text.to_string())
}

/// As the servers see those who come through the site's own agent, by the router, and as they are.
const BY_AGENT: &str = "10.2.0.5";
const BY_ROUTER: &str = "10.3.0.1";
const AS_CLIENT: &str = "10.1.0.2";

#[test]
fn caught_connections_go_over_the_link_or_past_it_and_a_killed_relay_leaves_what_clean_removes() {
    let Some(net) = Net::new() else { return };
    net.serve();
    let _agent = net.agent();
    for how in ["redirect", "tproxy"] {
        assert_eq!(net.visit(CLIENT, OVER), seen(AS_CLIENT));
        let past = format!("direct to 10.2.0.0/24 port {PAST}");
        let mut relay = net.relay(&[
            "--transparent",
            how,
            "--match",
            "to 10.2.0.0/24",
            "--rule",
            &past,
            "--rule",
            "allow",
        ]);
        assert_eq!(net.visit(CLIENT, OVER), seen(BY_AGENT), "{how}");
        assert_eq!(net.visit(CLIENT, PAST), seen(BY_ROUTER), "{how}");
        assert!(net.tables().contains("drover_relay_"));
        relay.kill();
        // What is redirected now finds nobody; a TPROXY rule without its socket catches nothing.
        assert!(how == "tproxy" || net.visit(CLIENT, OVER).is_err());
        let cleaned = net.output(ROUTER, &["relay", "--clean"]);
        assert_eq!(cleaned.code, Some(0), "{}", cleaned.err);
        assert!(cleaned.out.contains("removed: nftables table"), "{}", cleaned.out);
        assert_eq!(net.tables(), "");
    }
}

#[test]
fn the_link_itself_is_not_caught() {
    let Some(net) = Net::new() else { return };
    net.serve();
    let _agent = net.agent();
    let relay = net.relay(&["--transparent", "redirect", "--also-local", "--match", "any"]);
    assert_eq!(relay.wait_for("link")["site"], "site-b");
    // From the router's own programs, too.
    for from in [CLIENT, ROUTER] {
        assert_eq!(net.visit(from, OVER), seen(BY_AGENT));
    }
}
