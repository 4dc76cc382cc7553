//! A client, a router and a server in network namespaces of their own.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Addresses of the server: this many from .2 on, of each family.
pub const SERVERS: u8 = 8;

static NETS: AtomicU32 = AtomicU32::new(0);

/// Client 10.1.0.2 and fd00:1::2, router .1, servers 10.2.0.2 and fd00:2::2 and so on. The router forwards.
/// All of it goes when this is dropped.
pub struct Net {
    pub client: String,
    pub router: String,
    pub server: String,
}

fn run(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let output =
        Command::new(words[0]).args(&words[1..]).output().map_err(|error| format!("{line}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Net {
    /// None, after a printed line, where this user or kernel can make no namespaces or rules.
    pub fn new() -> Option<Net> {
        let number = NETS.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("drt-{}-{number}-{what}", std::process::id());
        let net = Net { client: name("c"), router: name("r"), server: name("s") };
        match net.build() {
            Ok(()) => Some(net),
            Err(error) => {
                println!("skipped: no network namespaces with a packet filter here: {error}");
                None
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        let Net { client, router, server } = self;
        [client, router, server].iter().try_for_each(|name| run(&format!("ip netns add {name}")))?;
        run(&format!("ip -n {client} link add c0 type veth peer name r0 netns {router}"))?;
        run(&format!("ip -n {server} link add s0 type veth peer name r1 netns {router}"))?;
        for (name, link) in [(client, "c0"), (router, "r0"), (router, "r1"), (server, "s0")] {
            run(&format!("ip -n {name} link set {link} up"))?;
            run(&format!("ip -n {name} link set lo up"))?;
        }
        for (name, link, host) in [(client, "c0", 2), (router, "r0", 1)] {
            add_address(name, link, 1, host)?;
        }
        add_address(router, "r1", 2, 1)?;
        (2..2 + SERVERS).try_for_each(|host| add_address(server, "s0", 2, host))?;
        for (name, net) in [(client, 1), (server, 2)] {
            run(&format!("ip -n {name} route add default via 10.{net}.0.1"))?;
            run(&format!("ip -n {name} -6 route add default via fd00:{net}::1"))?;
        }
        let sysctl = format!("ip netns exec {router} sysctl -qw");
        run(&format!("{sysctl} net.ipv4.ip_forward=1"))?;
        run(&format!("{sysctl} net.ipv6.conf.all.forwarding=1"))?;
        run(&format!("ip netns exec {router} nft list tables"))
    }

    /// Runs something in a thread inside a namespace, and gives what came of it.
    pub fn within<T: Send + 'static>(name: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
        Net::spawn(name, act).join().unwrap()
    }

    pub fn spawn<T: Send + 'static>(name: &str, act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let file = File::open(format!("/run/netns/{name}")).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        })
    }

    /// Output of a program inside a namespace.
    pub fn output(name: &str, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let output = Command::new("ip").args(["netns", "exec", name]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn add_address(name: &str, link: &str, net: u8, host: u8) -> Result<(), String> {
    run(&format!("ip -n {name} address add 10.{net}.0.{host}/24 dev {link}"))?;
    run(&format!("ip -n {name} address add fd00:{net}::{host}/64 dev {link} nodad"))
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in [&self.client, &self.router, &self.server] {
            // One that was never made.
            let _ = run(&format!("ip netns delete {name}"));
        }
    }
}

/// An address of the servers.
pub fn server(is_ipv4: bool, host: u8) -> IpAddr {
    let text = if is_ipv4 { format!("10.2.0.{host}") } else { format!("fd00:2::{host}") };
    text.parse().unwrap()
}
