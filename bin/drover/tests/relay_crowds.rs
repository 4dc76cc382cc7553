//! Thousands of connections through `drover relay`, alone and in a pair: what the processes hold in memory for them.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use drover_lab::Drover;
use drover_stage::process::{memory_kib, wait_until};
use drover_stage::running::{Running, exchange, listener, pair, try_pair, turns_away};
use drover_stage::sites::Sites;
use drover_stage::streams::{PATIENCE, noise, patient, read_all, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

const MIB: usize = 1 << 20;
const IDLE: usize = 5_000;
const BUSY: usize = 200;

/// Bytes each way of one that is busy.
const BUSY_BYTES: usize = 300_000;

/// One crowd at a time: two have more files than many a host gives a process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Raises the limit of files, also for the processes that this one starts, and gives how many idle connections fit: each
/// has two ends here, and an agent keeps 2,048 files for other things and gives one peer half of the rest.
fn room() -> usize {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let most = limit.maximum.map_or(usize::MAX, |most| most as usize);
    let fits = IDLE.min(most.saturating_sub(3_000) / 2);
    if fits < IDLE {
        println!("{fits} of {IDLE} idle connections: the limit of files allows no more");
    }
    fits
}

/// A relay of two targets, of which the first only listens.
struct Crowd {
    relay: Running,
    control: String,
    sleepy: TcpListener,
    busy: Option<TcpListener>,
}

impl Crowd {
    fn start(host: &Drover, control: &str, args: &[&str]) -> Crowd {
        let ((sleepy, sleepy_address), (busy, busy_address)) = (listener(), listener());
        let first = ["relay", "--json", "--exit-with-parent", "--control", control];
        let lines = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
        let targets = ["--to", &sleepy_address, "--to", &busy_address];
        let relay = Running::start(host, &[&first[..], &lines, &targets, args].concat());
        // What there is in any case: threads, a link, buffers of its connections.
        exchange(pair(&relay, &sleepy), 1, MIB);
        Crowd { relay, control: control.to_string(), sleepy, busy: Some(busy) }
    }

    /// Connections that say nothing; what each of the processes took for them is no more than `kib_max` for each.
    fn sleep(&self, number: usize, processes: &[&Child], kib_max: u64) -> Vec<(TcpStream, TcpStream)> {
        let now = || processes.iter().map(|process| memory_kib(process, "VmRSS:")).collect::<Vec<_>>();
        let before = now();
        let idle = (0..number).map(|_| pair(&self.relay, &self.sleepy)).collect();
        for (after, before) in now().into_iter().zip(before) {
            let grown = after.saturating_sub(before);
            println!("{grown} KiB for {number} that are idle");
            assert!(grown <= number as u64 * kib_max, "{grown} KiB for {number}");
        }
        idle
    }

    /// Connections that all send and get back at the same time.
    fn work(&mut self) {
        let target = self.busy.take().unwrap();
        std::thread::spawn(move || target.incoming().for_each(|stream| echo(stream.unwrap())));
        let worker = |number| {
            let near = patient(TcpStream::connect(self.relay.address(1)).unwrap());
            Builder::new().stack_size(256 << 10).spawn(move || work(&near, number)).unwrap()
        };
        let workers: Vec<_> = (0..BUSY as u64).map(worker).collect();
        workers.into_iter().for_each(|it| it.join().unwrap());
    }

    fn wait_for_the_end(&self, host: &Drover, number: usize) {
        let mut told = Value::Null;
        wait_until("all have ended", PATIENCE, || {
            told = host.run(&["relay", "top", "--json", "--control", &self.control]).unwrap().json().unwrap();
            told["live"] == 0
        });
        assert_eq!(told["totals"]["connected"], number);
    }
}

fn echo(stream: TcpStream) {
    let echo = move || {
        let mut writer = stream.try_clone().unwrap();
        // A client that goes away is its own business here.
        let _ = std::io::copy(&mut &stream, &mut writer);
        let _ = writer.shutdown(Shutdown::Write);
    };
    Builder::new().stack_size(128 << 10).spawn(echo).unwrap();
}

fn work(near: &TcpStream, number: u64) {
    let content = noise(number, BUSY_BYTES);
    let sending = send(near, content.clone());
    assert!(read_all(near) == content, "connection {number}");
    sending.join().unwrap();
}

/// Those that slept can still talk.
fn wake(idle: &[(TcpStream, TcpStream)]) {
    for (near, far) in idle.iter().step_by(97) {
        let (mut near, mut far) = (near, far);
        near.write_all(b"awake?").unwrap();
        let mut question = [0; 6];
        far.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"awake?");
    }
}

fn threads(process: &Child) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap().count()
}

#[test]
fn a_relay_holds_five_thousand_idle_and_two_hundred_busy_connections_in_little_memory() {
    let _alone = alone();
    let room = room();
    let folder = tempfile::tempdir().unwrap();
    let host = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("host"));
    let control = folder.path().join("relay-1.sock").display().to_string();
    let mut crowd = Crowd::start(&host, &control, &[]);
    let idle = crowd.sleep(room, &[&crowd.relay.child], 2);
    crowd.work();
    wake(&idle);
    let peak = memory_kib(&crowd.relay.child, "VmHWM:");
    println!("{peak} KiB at most, {} threads", threads(&crowd.relay.child));
    assert!(peak <= 64 << 10, "{peak} KiB");
    assert!(threads(&crowd.relay.child) < 20);
    drop(idle);
    crowd.wait_for_the_end(&host, room + BUSY + 1);
}

#[test]
fn a_pair_carries_five_thousand_idle_and_two_hundred_busy_connections_of_one_peer_in_bounded_memory() {
    let _alone = alone();
    let room = room();
    let sites = Sites::paired_with(&["--allow-connect", "*:1-65535"]);
    let control = sites.path("relay-1.sock").display().to_string();
    let mut crowd = Crowd::start(&sites.here, &control, &["--via", "site-b"]);
    let agent = sites.agent.as_ref().unwrap();
    let idle = crowd.sleep(room, &[&crowd.relay.child, agent], 8);
    // None of them has a thread of its own; those that ask for targets may not have ended yet.
    for process in [&crowd.relay.child, agent] {
        assert!(threads(process) < 400, "{} threads", threads(process));
    }
    crowd.work();
    wake(&idle);
    for process in [&crowd.relay.child, agent] {
        let peak = memory_kib(process, "VmHWM:");
        println!("{peak} KiB at most");
        // What a link may hold, and what is said of connections.
        assert!(peak <= (384 << 10) + (room as u64) * 8, "{peak} KiB");
    }
    drop(idle);
    crowd.wait_for_the_end(&sites.here, room + BUSY + 1);
}

#[test]
fn one_peer_gets_half_of_the_connections_that_an_agent_may_carry_and_is_told_so() {
    let sites = Sites::paired_with(&["--allow-connect", "*:1-65535", "--connections", "4"]);
    let (target, address) = listener();
    let control = sites.path("relay-1.sock").display().to_string();
    let args = ["relay", "--json", "--exit-with-parent", "--via", "site-b", "--control", &control];
    let relay =
        Running::start(&sites.here, &[&args[..], &["--listen", "127.0.0.1:0", "--to", &address]].concat());
    let mut held = vec![pair(&relay, &target), pair(&relay, &target)];
    assert!(turns_away(&relay));
    let refused = relay.wait_for("refused");
    assert_eq!(refused["reason"], "limit");
    let why = refused["why"].as_str().unwrap();
    assert!(why.contains("has 2 connections already") && why.contains("--connections"), "{why}");
    // One that ends makes room.
    held.pop();
    wait_until("there is room again", PATIENCE, || try_pair(&relay, &target).is_some());
}
