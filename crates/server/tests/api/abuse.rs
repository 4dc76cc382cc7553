//! What strangers may do to it. Nothing here is timed; each test ends because the server has bounds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::fake::{Stage, read_answer};

/// Memory is that of all tests of this process, so those that take much of it go one after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of memory that this process has in use.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn two_hundred_clients_at_once_are_all_answered() {
    let _alone = alone();
    let stage = Stage::new();
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| assert_eq!(stage.get("viewer", "/v1/plans/one/vms?limit=1000").status, 200));
        }
    });
}

#[test]
fn garbage_large_heads_and_large_bodies_are_refused_and_others_served() {
    let _alone = alone();
    let stage = Stage::with(|options| options.bounds.body_bytes = 64 << 10, 1);
    let token = format!("Authorization: Bearer {}\r\n", stage.token("operator"));
    let raw = |text: &[u8]| {
        let mut stream = stage.connect();
        // It may close before all is sent.
        let _ = stream.write_all(text);
        read_answer(&mut stream).status
    };
    assert_eq!(raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0\0\0\r\n\r\n"), 400);
    assert_eq!(raw(b"GET / HTTP/9.9\r\n\r\n"), 400);
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    assert_eq!(raw(long.as_bytes()), 431);
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(1_000));
    assert_eq!(raw(many.as_bytes()), 431);
    let body = "x".repeat(100_000);
    let told = format!(
        "POST /v1/plans HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Content-Length: 100000\r\n\r\n{body}"
    );
    assert_eq!(raw(told.as_bytes()), 413);
    let chunked = format!(
        "POST /v1/plans HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Transfer-Encoding: chunked\r\n\r\n186A0\r\n{body}\r\n0\r\n\r\n"
    );
    assert_eq!(raw(chunked.as_bytes()), 413);
    assert_eq!(
        raw(format!("GET /v1/plans/%00%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\n")
            .as_bytes()),
        400
    );
    assert_eq!(stage.get("viewer", "/v1/plans").status, 200);
    // What is not known filters nothing: whoever misspells it would read of all VMs, or of none.
    for asked in ["state=fail", "stat=failed", "wave=pilot"] {
        assert_eq!(stage.get("viewer", &format!("/v1/plans/one/vms?{asked}")).status, 400, "{asked}");
    }
}

#[test]
fn slow_clients_are_cut_off_and_do_not_keep_others_out() {
    let _alone = alone();
    let stage = Stage::with(
        |options| {
            options.bounds.connections = 8;
            options.bounds.head_time = Duration::from_millis(300);
            options.bounds.request_time = Duration::from_millis(600);
        },
        1,
    );
    let slow_head: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = stage.connect();
            stream.write_all(b"GET / HT").unwrap();
            stream
        })
        .collect();
    let slow_body: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = stage.connect();
            let token = stage.token("operator");
            write!(stream, "POST /v1/plans HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n{{").unwrap();
            stream
        })
        .collect();
    // All connections are taken; this one is served once those are cut off.
    assert_eq!(stage.get("viewer", "/v1/plans").status, 200);
    for mut stream in slow_head {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    for mut stream in slow_body {
        let mut rest = [0; 12];
        stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"HTTP/1.1 504");
    }
}

#[test]
fn a_client_that_takes_nothing_is_cut_off() {
    let _alone = alone();
    let stage = Stage::with(|options| options.bounds.stall_time = Duration::from_millis(300), 5_000);
    let mut stream = stage.connect();
    let token = stage.token("viewer");
    let one = format!(
        "GET /v1/plans/one/vms?limit=1000 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    // Their answers are more than every buffer between us takes.
    (0..200).for_each(|_| stream.write_all(one.as_bytes()).unwrap());
    let is_gone = || stage.get("viewer", "/metrics").body.contains("drover_http_connections 1\n");
    for _ in 0..600 {
        if is_gone() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the server kept on serving one that reads nothing");
}

#[test]
fn a_flood_of_bad_tokens_is_told_to_wait_and_good_ones_are_not() {
    let _alone = alone();
    let stage = Stage::new();
    let before = resident();
    let waits: usize = std::thread::scope(|scope| {
        let flood = |_| {
            scope.spawn(|| {
                let mut stream = stage.connect();
                let ask = |number| {
                    let token = format!("Authorization: Bearer wrong-{number}\r\n");
                    write!(stream, "GET /v1/plans HTTP/1.1\r\nHost: x\r\n{token}\r\n").unwrap();
                    usize::from(read_one(&mut stream) == 429)
                };
                (0..500).map(ask).sum::<usize>()
            })
        };
        let floods: Vec<_> = (0..8).map(flood).collect();
        floods.into_iter().map(|it| it.join().unwrap()).sum()
    });
    // One more is let through every six seconds.
    assert!(waits > 3_500, "{waits} of 4000 were told to wait");
    assert_eq!(stage.get("viewer", "/v1/plans").status, 200);
    let text = stage.get("viewer", "/metrics").body;
    assert!(text.contains("drover_bad_tokens_total 4000"), "{text}");
    assert!(
        resident().saturating_sub(before) < 64 << 20,
        "memory grew by {} MiB",
        (resident() - before) >> 20
    );
}

/// Reads one answer with its length; gives its status.
fn read_one(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.trim().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn watchers_are_bounded_in_number_and_slow_ones_are_told_to_start_anew() {
    let _alone = alone();
    let stage = Stage::with(
        |options| {
            options.bounds.event_clients = 2;
            options.bounds.event_queue = 16;
        },
        1,
    );
    let watch = || {
        let mut stream = stage.connect();
        write!(
            stream,
            "GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
            stage.token("viewer")
        )
        .unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        stream
    };
    let (mut slow, _other) = (watch(), watch());
    assert_eq!(stage.get("viewer", "/v1/events").status, 429);
    let before = resident();
    let data = "x".repeat(4 << 10);
    for _ in 0..20_000 {
        let message = drover_server::Message {
            project: "web".into(),
            plan: "p".into(),
            event: "event",
            data: data.clone(),
        };
        stage.hub.publish(message);
    }
    assert!(
        resident().saturating_sub(before) < 32 << 20,
        "memory grew by {} MiB",
        (resident() - before) >> 20
    );
    let mut seen = Vec::new();
    let mut bytes = [0; 64 << 10];
    while !String::from_utf8_lossy(&seen).contains("event: reset") {
        let count = slow.read(&mut bytes).unwrap();
        assert!(count > 0, "the stream ended without a word");
        seen.extend_from_slice(&bytes[..count]);
    }
}

#[test]
fn checks_of_a_silent_source_keep_neither_orders_nor_those_who_look_waiting() {
    let _alone = alone();
    let stage = Stage::with(
        |options| {
            (options.bounds.operations, options.bounds.checks, options.bounds.order_operations) = (2, 2, 1)
        },
        1,
    );
    stage.gate.shut("check");
    stage.gate.shut("ready");
    std::thread::scope(|scope| {
        let check = || stage.post("operator", "/v1/check", &json!({ "text": "plan" })).status;
        let checks: Vec<_> = (0..6).map(|_| scope.spawn(check)).collect();
        let ready: Vec<_> = (0..6).map(|_| scope.spawn(|| stage.get("", "/readyz").status)).collect();
        stage.gate.wait_for("check", 2);
        stage.gate.wait_for("ready", 1);
        let pause = json!({ "order": "pause" });
        assert_eq!(stage.post("operator", "/v1/plans/one/orders", &pause).status, 200);
        assert_eq!(stage.get("viewer", "/v1/plans").status, 200);
        assert_eq!((stage.gate.come("check"), stage.gate.come("ready")), (2, 1));
        stage.gate.open("check");
        stage.gate.open("ready");
        checks.into_iter().chain(ready).for_each(|it| assert_eq!(it.join().unwrap(), 200));
    });
    // All of them came within a second of the first, or a new look was due.
    assert!(stage.gate.come("ready") <= 6);
}

#[test]
fn one_address_does_not_take_all_connections() {
    let _alone = alone();
    let stage = Stage::with(|options| options.bounds.address_connections = 3, 1);
    let token = format!("Authorization: Bearer {}\r\n", stage.token("viewer"));
    let open = || {
        let mut stream = stage.connect();
        let _ = write!(stream, "GET /v1/about HTTP/1.1\r\nHost: x\r\n{token}\r\n");
        let mut first = [0; 12];
        stream.read_exact(&mut first).is_ok().then_some(stream)
    };
    let held: Vec<_> = (0..5).map(|_| open()).collect();
    assert_eq!(held.iter().flatten().count(), 3);
    drop(held);
    // Places come back with the ends of connections.
    while open().is_none() {
        std::thread::yield_now();
    }
}
