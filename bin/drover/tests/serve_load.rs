//! A daemon under load, while it moves VMs: what clients that look, wait, send garbage and guess tokens take of it.
//!
//! `cargo test --workspace --test serve_load -- --ignored --nocapture`. Clients and daemon share the machine.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use drover_stage::daemon::Daemon;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::json;

/// Clients that look at all plans again and again, with a good token.
const LOOKERS: usize = 200;
const LOOK_EACH: Duration = Duration::from_millis(100);
/// Clients that send a byte of a head at times.
const SLOW: usize = 100;
const BYTE_EACH: Duration = Duration::from_millis(500);
/// Clients that ask for a page and take nothing of it.
const DEAF: usize = 20;
/// Clients that send bytes that are no request.
const GARBLED: usize = 20;
/// Clients that guess tokens, and requests a second of all of them.
const GUESSERS: usize = 8;
const GUESSES_PER_S: usize = 10_000;
/// Requests that a guesser sends at once.
const BATCH: usize = 50;

/// Disk of a VM, and what its host gives in a second.
const DISK_MIB: u64 = 96;
const RATE_MIB: u64 = 4;
const RESIDENT_MIB_MAX: u64 = 256;

/// What clients did.
#[derive(Default)]
struct Tally {
    over: AtomicBool,
    looks_ms: Mutex<Vec<f64>>,
    looks_failed: AtomicU64,
    guesses: AtomicU64,
    let_in: AtomicU64,
    garbage: AtomicU64,
    slow_closed: AtomicU64,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.over.load(Relaxed)
    }
}

fn dial(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a request and takes one whole answer; gives its status.
fn ask(stream: &mut TcpStream, request: &str) -> std::io::Result<u16> {
    stream.write_all(request.as_bytes())?;
    let (mut got, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        got.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&got);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(String::from));
        if length.is_some_and(|length| body.len() >= length.trim().parse::<usize>().unwrap()) {
            return Ok(head[9..12].parse().unwrap());
        }
    }
}

fn look(address: &str, token: &str, tally: &Tally) {
    let request =
        format!("GET /v1/plans HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut stream = None;
    while tally.goes_on() {
        let began = Instant::now();
        let answer = match stream.take() {
            Some(stream) => Ok(stream),
            None => dial(address),
        }
        .and_then(|mut it| ask(&mut it, &request).map(|status| (it, status)));
        match answer {
            Ok((it, 200)) => {
                tally.looks_ms.lock().unwrap().push(began.elapsed().as_secs_f64() * 1000.0);
                stream = Some(it);
            }
            _ => drop(tally.looks_failed.fetch_add(1, Relaxed)),
        }
        std::thread::sleep(LOOK_EACH);
    }
}

/// Guesses tokens, as fast as its part of all guesses.
fn guess(address: &str, number: usize, tally: &Tally) {
    let (each, began) =
        (Duration::from_secs_f64((BATCH * GUESSERS) as f64 / GUESSES_PER_S as f64), Instant::now());
    let (mut batches, mut stream) = (0u32, None);
    while tally.goes_on() {
        let guess = |at: usize| {
            format!(
                "GET /v1/plans HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer drover_{number}-{batches}-{at}\r\n\r\n"
            )
        };
        let requests: String = (0..BATCH).map(guess).collect();
        let sent = match stream.take() {
            Some(stream) => Ok(stream),
            None => dial(address),
        }
        .and_then(|mut it| batch(&mut it, &requests, tally).map(|()| it));
        stream = sent.ok();
        batches += 1;
        std::thread::sleep((each * batches).saturating_sub(began.elapsed()));
    }
}

fn batch(stream: &mut TcpStream, requests: &str, tally: &Tally) -> std::io::Result<()> {
    stream.write_all(requests.as_bytes())?;
    let (mut got, mut piece) = (Vec::new(), [0; 64 << 10]);
    let mut answers = 0;
    while answers < BATCH {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        got.extend_from_slice(&piece[..count]);
        answers = String::from_utf8_lossy(&got).matches("HTTP/1.1 ").count();
    }
    tally.guesses.fetch_add(answers as u64, Relaxed);
    tally.let_in.fetch_add(String::from_utf8_lossy(&got).matches("HTTP/1.1 200").count() as u64, Relaxed);
    Ok(())
}

fn send_garbage(address: &str, number: usize, tally: &Tally) {
    let mut state = number as u64 + 1;
    while tally.goes_on() {
        let Ok(mut stream) = dial(address) else { continue };
        let mut bytes = vec![0u8; 4096];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        // The server may have closed it before all is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.read(&mut bytes);
        tally.garbage.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn dawdle(address: &str, tally: &Tally) {
    while tally.goes_on() {
        let Ok(mut stream) = dial(address) else { continue };
        let head = b"GET /v1/plans HTTP/1.1\r\nX-Slow: ".iter().copied().chain(std::iter::repeat(b'x'));
        for byte in head {
            if !tally.goes_on() {
                return;
            }
            if stream.write_all(&[byte]).is_err() {
                tally.slow_closed.fetch_add(1, Relaxed);
                break;
            }
            std::thread::sleep(BYTE_EACH);
        }
    }
}

fn hear_nothing(address: &str, token: &str, tally: &Tally) {
    let request =
        format!("GET /page/app.js HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    while tally.goes_on() {
        let Ok(mut stream) = dial(address) else { continue };
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        while tally.goes_on() && stream.write_all(request.as_bytes()).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Seconds that a plan takes, and the most memory that the daemon had in use meanwhile.
fn move_all(daemon: &Daemon, plan: &str, name: &str) -> (f64, u64) {
    let began = Instant::now();
    daemon.submit(plan);
    let most = AtomicU64::new(0);
    daemon.wait_for("the end of the plan", || {
        most.fetch_max(daemon.resident_bytes(), Relaxed);
        (daemon.plan(name)["state"] == "done").then_some(())
    });
    (began.elapsed().as_secs_f64(), most.into_inner())
}

#[test]
#[ignore = "a minute, and figures"]
fn a_daemon_under_load_moves_vms_as_if_there_were_none() {
    let stage = Stage::new(180, |folder| {
        let a = disk_file(folder, "a", DISK_MIB * MIB);
        let on = |name: &str, host: &str| with(vm(name, &[&a]), json!({ "host": host }));
        vec![on("one", "esx1.lab"), on("two", "esx2.lab"), on("three", "esx1.lab"), on("four", "esx2.lab")]
    });
    let Some(stage) = stage else { return };
    stage.sim.post("/rate", json!({"bytes_per_s": RATE_MIB * MIB, "per": "host"})).unwrap();
    let without = |names: [&str; 2]| names.map(|name| format!("  - name: \"{name}\"\n"));
    let plan = |name: &str, left_out: [&str; 2]| {
        let [one, two] = without(left_out);
        stage.plan(name, &[(one.as_str(), ""), (two.as_str(), "")])
    };
    let (quiet, loud) = (plan("quiet", ["three", "four"]), plan("loud", ["one", "two"]));
    let daemon = Daemon::start(&stage.drover);
    let (alone_s, alone_bytes) = move_all(&daemon, &quiet, "quiet");
    let (tally, address) = (Tally::default(), daemon.url.trim_start_matches("http://").trim_end_matches('/'));
    let began = Instant::now();
    let (loaded_s, loaded_bytes) = std::thread::scope(|scope| {
        let (tally, token) = (&tally, daemon.token.as_str());
        (0..LOOKERS).for_each(|_| drop(scope.spawn(|| look(address, token, tally))));
        (0..SLOW).for_each(|_| drop(scope.spawn(|| dawdle(address, tally))));
        (0..DEAF).for_each(|_| drop(scope.spawn(|| hear_nothing(address, token, tally))));
        (0..GARBLED).for_each(|number| drop(scope.spawn(move || send_garbage(address, number, tally))));
        (0..GUESSERS).for_each(|number| drop(scope.spawn(move || guess(address, number, tally))));
        let moved = move_all(&daemon, &loud, "loud");
        tally.over.store(true, Relaxed);
        moved
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut looks = tally.looks_ms.into_inner().unwrap();
    looks.sort_by(f64::total_cmp);
    let at = |part: f64| looks[((looks.len() - 1) as f64 * part) as usize];
    println!(
        "plan alone {alone_s:.1} s, {} MiB; under load {loaded_s:.1} s, {} MiB\n\
         {LOOKERS} lookers: {:.0} requests/s, {:.1} ms (p99 {:.1} ms), {} failed\n\
         guesses: {:.0}/s, garbage: {:.0}/s, slow clients closed: {}",
        alone_bytes >> 20,
        loaded_bytes >> 20,
        looks.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        tally.looks_failed.load(Relaxed),
        tally.guesses.load(Relaxed) as f64 / seconds,
        tally.garbage.load(Relaxed) as f64 / seconds,
        tally.slow_closed.load(Relaxed),
    );
    assert_eq!(tally.let_in.load(Relaxed), 0, "a guess was let in");
    assert!(loaded_bytes >> 20 < RESIDENT_MIB_MAX, "{loaded_bytes} bytes");
    ["one", "two", "three", "four"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
    daemon.stop();
}
