//! `RangeDisk` against servers good and bad.
#![allow(clippy::unwrap_used)]

mod server;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use drover_disk::conformance::{check_reader, pattern};
use drover_disk::{Buffer, Completion, Disk, DiskErrorKind, Lane, Request, Work};
use drover_http::{
    Authorise, Credentials, HttpError, HttpErrorKind, HttpOp, RangeDisk, RangeOptions, Timeouts, Trust,
};
use drover_types::ByteSpan;

use server::{After, Server, answer, file};

fn content() -> Vec<u8> {
    (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn read(id: u64, offset: u64, length: u64) -> Request {
    Request { id, span: ByteSpan::new(offset, length), work: Work::Read(Buffer::zeroed(length as usize)) }
}

fn bytes(done: Completion) -> Vec<u8> {
    done.result.unwrap();
    match done.work {
        Work::Read(buffer) => buffer.to_vec(),
        _ => panic!("not a read"),
    }
}

fn open(server: &Server) -> RangeDisk {
    RangeDisk::open(&server.url("/disk"), Trust::System).unwrap()
}

/// Gives up soon, but not so soon that a good answer on a busy machine is late.
fn open_impatiently(server: &Server) -> RangeDisk {
    let mut options = RangeOptions::new(server.url("/disk").parse().unwrap(), Trust::System);
    options.timeouts =
        Timeouts { stall: Duration::from_secs(8), answer: Duration::from_secs(10), ..options.timeouts };
    RangeDisk::open_with(options).unwrap()
}

/// The kind of error that a bad answer to the first range gives, and whether the lane is lost by it.
fn outcome(bad: impl Fn(&str) -> (Vec<u8>, After) + Send + Sync + 'static) -> (DiskErrorKind, bool) {
    let server = Server::start(move |_, head| match head.starts_with("HEAD") {
        true => (file(&content(), head), After::KeepOpen),
        false => bad(head),
    });
    let disk = open_impatiently(&server);
    let mut lane = disk.open_lane().unwrap();
    lane.submit(read(1, 1000, 500));
    let error = lane.complete().unwrap().result.unwrap_err();
    (error.kind, lane.is_broken())
}

#[test]
fn passes_the_suite_for_readers() {
    for size in [1, 513, 300_001] {
        let server = Server::start(move |_, head| (file(&pattern(size), head), After::KeepOpen));
        check_reader(&open(&server), &pattern(size));
    }
}

#[test]
fn requests_sent_ahead_come_back_in_order_with_their_bytes() {
    let server = Server::start(|_, head| (file(&content(), head), After::KeepOpen));
    let disk = RangeDisk::open(&server.url("/disk"), Trust::System).unwrap();
    assert_eq!(
        (disk.size(), disk.identity()),
        (100_000, "http size=100000 etag=\"e1\" modified=-".to_string())
    );
    let mut lane = disk.open_lane().unwrap();
    let spans = [(0, 1), (99_999, 1), (5, 70_000), (40_000, 33)];
    for (id, (offset, length)) in spans.into_iter().enumerate() {
        lane.submit(read(id as u64, offset, length));
    }
    assert_eq!(lane.in_flight(), 4);
    for (offset, length) in spans {
        let wanted = content()[offset as usize..(offset + length) as usize].to_vec();
        assert!(bytes(lane.complete().unwrap()) == wanted);
    }
    assert!(lane.complete().is_none());
    // One for HEAD, one for the lane.
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn a_server_that_closes_after_each_answer_is_read_all_the_same() {
    let server = Server::start(|_, head| {
        let mut good = file(&content(), head);
        let line = good.windows(2).position(|pair| pair == b"\r\n").unwrap();
        good.splice(line..line, *b"\r\nConnection: close");
        (good, After::Close)
    });
    let disk = open(&server);
    let mut lane = disk.open_lane().unwrap();
    (0..6).for_each(|i| lane.submit(read(i, i * 1000, 1000)));
    for i in 0..6 {
        assert!(bytes(lane.complete().unwrap()) == content()[i * 1000..(i + 1) * 1000]);
    }
    assert!(!lane.is_broken());
    // It has closed by the time most of them are sent: its answer to the first is there all the same.
    let disk = open(&server);
    let mut lane = disk.open_lane().unwrap();
    for i in 0..6 {
        lane.submit(read(i, i * 1000, 1000));
        std::thread::sleep(Duration::from_millis(50));
    }
    for i in 0..6 {
        assert!(bytes(lane.complete().unwrap()) == content()[i * 1000..(i + 1) * 1000]);
    }
}

#[test]
fn answers_for_other_bytes_are_corrupt() {
    let range = |told: &'static str, length: usize| {
        move |_: &str| {
            (
                answer("206 Partial Content", &format!("Content-Range: {told}\r\n"), &vec![7; length]),
                After::KeepOpen,
            )
        }
    };
    assert_eq!(outcome(range("bytes 1001-1500/100000", 500)), (DiskErrorKind::Corrupt, true));
    assert_eq!(outcome(range("bytes 1000-1499/99999", 500)), (DiskErrorKind::Corrupt, true));
    assert_eq!(outcome(range("bytes 1000-1499/100000", 499)), (DiskErrorKind::Corrupt, true));
    assert_eq!(
        outcome(|_| (answer("206 Partial Content", "", &[7; 500]), After::KeepOpen)).0,
        DiskErrorKind::Corrupt
    );
    assert_eq!(
        outcome(|_| (answer("200 OK", "", &content()), After::KeepOpen)),
        (DiskErrorKind::Corrupt, true)
    );
}

#[test]
fn a_file_that_is_changed_while_it_is_read_ends_the_copy() {
    let told = "Content-Range: bytes 1000-1499/100000\r\nETag: \"e2\"\r\n";
    let changed = move |_: &str| (answer("206 Partial Content", told, &[7; 500]), After::KeepOpen);
    assert_eq!(outcome(changed), (DiskErrorKind::Gone, true));
    let server = Server::start(|_, head| {
        let told = "Content-Range: bytes 1000-1499/100000\r\nETag: \"e1\"\r\nLast-Modified: now\r\n";
        match head.starts_with("HEAD") {
            true => (file(&content(), head), After::KeepOpen),
            false => (answer("206 Partial Content", told, &content()[1000..1500]), After::KeepOpen),
        }
    });
    let mut lane = open(&server).open_lane().unwrap();
    lane.submit(read(1, 1000, 500));
    assert!(
        bytes(lane.complete().unwrap()) == content()[1000..1500],
        "a field that only one has tells nothing"
    );
}

#[test]
fn what_cannot_be_a_disk_is_refused_at_opening_in_words() {
    for (status, headers, words) in [
        ("302 Found", "Location: https://other/disk\r\n", "points to https://other/disk"),
        ("301 Moved Permanently", "", "points to nowhere"),
        ("200 OK", "Accept-Ranges: none\r\n", "takes no byte ranges"),
        ("200 OK", "Content-Encoding: gzip\r\n", "encodes what it sends"),
        ("405 Method Not Allowed", "", "405"),
    ] {
        let server = Server::start(move |_, _| (answer(status, headers, b""), After::Close));
        let Err(error) = RangeDisk::open(&server.url("/disk"), Trust::System) else { panic!("{status}") };
        assert!(error.source.to_string().contains(words), "{}", error.source);
        assert_eq!(error.kind, DiskErrorKind::Unsupported, "{status}");
    }
}

#[test]
fn refusals_have_their_kinds_and_leave_the_lane_whole() {
    for (status, kind) in [
        ("404 Not Found", DiskErrorKind::Gone),
        ("416 Range Not Satisfiable", DiskErrorKind::Corrupt),
        ("401 Unauthorized", DiskErrorKind::Denied),
        ("429 Too Many Requests", DiskErrorKind::Transient),
        ("500 Internal Server Error", DiskErrorKind::Transient),
    ] {
        assert_eq!(
            outcome(move |_| (answer(status, "", b"<b>no</b>"), After::KeepOpen)),
            (kind, false),
            "{status}"
        );
    }
}

#[test]
fn broken_and_slow_answers_are_transient_and_the_lane_is_lost() {
    let short = |after| {
        move |_: &str| {
            let whole = answer("206 Partial Content", "Content-Range: bytes 1000-1499/100000\r\n", &[7; 500]);
            (whole[..whole.len() - 300].to_vec(), after)
        }
    };
    for after in [After::Close, After::Hang] {
        assert_eq!(outcome(short(after)), (DiskErrorKind::Transient, true));
    }
    // Steady but far too slow: a head of 64 KiB at 50 bytes per second.
    assert_eq!(
        outcome(|_| (b"HTTP/1.1 206 X\r\nA: ".to_vec(), After::Trickle)),
        (DiskErrorKind::Transient, true)
    );
    assert_eq!(
        outcome(|_| (b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), After::KeepOpen)),
        (DiskErrorKind::Corrupt, true)
    );
}

#[test]
fn everything_in_flight_ends_when_the_lane_is_lost() {
    // It closes only when the first answer has been seen: a reset before that could cost the answer.
    let (seen, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let server = Server::start(move |number, head| match number {
        0 => (file(&content(), head), After::KeepOpen),
        1 => (file(&content(), head), After::KeepOpen),
        _ => {
            let _ = wait.lock().unwrap().recv();
            (Vec::new(), After::Close)
        }
    });
    let disk = open(&server);
    let mut lane = disk.open_lane().unwrap();
    (0..4).for_each(|i| lane.submit(read(i, 0, 100)));
    assert!(lane.complete().unwrap().result.is_ok());
    drop(seen);
    for _ in 0..3 {
        assert_eq!(lane.complete().unwrap().result.unwrap_err().kind, DiskErrorKind::Transient);
    }
    lane.submit(read(9, 0, 100));
    assert_eq!(lane.complete().unwrap().result.unwrap_err().kind, DiskErrorKind::Transient);
    assert!(lane.is_broken() && lane.complete().is_none());
}

#[test]
fn chunked_ranges_are_read_to_their_end() {
    let server = Server::start(|_, head| match head.starts_with("HEAD") {
        true => (file(&content(), head), After::KeepOpen),
        false => {
            let (first, last) = server::range(head);
            let mut out = format!(
                "HTTP/1.1 206 X\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes {first}-{last}/100000\r\n\r\n"
            )
            .into_bytes();
            for piece in content()[first..=last].chunks(77) {
                out.extend_from_slice(format!("{:x};x=y\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
            (out, After::KeepOpen)
        }
    });
    let disk = open(&server);
    let mut lane = disk.open_lane().unwrap();
    (0..3).for_each(|i| lane.submit(read(i, i * 10_000, 1000)));
    for i in 0..3 {
        assert!(bytes(lane.complete().unwrap()) == content()[i * 10_000..i * 10_000 + 1000]);
    }
}

#[test]
fn misuse_is_told_without_a_request() {
    let server = Server::start(|_, head| (file(&content(), head), After::KeepOpen));
    let disk = open(&server);
    let mut lane = disk.open_lane().unwrap();
    lane.submit(read(1, 99_999, 2));
    lane.submit(Request { id: 2, span: ByteSpan::new(0, 10), work: Work::Zero });
    for _ in 0..2 {
        assert_eq!(lane.complete().unwrap().result.unwrap_err().kind, DiskErrorKind::Misuse);
    }
    assert_eq!(server.requests.lock().unwrap().len(), 1);
}

/// Credentials that the server takes from a version on.
struct Login {
    version: AtomicU64,
}

impl Authorise for Login {
    fn credentials(&self, _: &str, _: &str) -> Result<Credentials, HttpError> {
        let version = self.version.load(Ordering::SeqCst);
        Ok(Credentials { headers: vec![("Cookie".to_string(), format!("version={version}"))], version })
    }

    fn refresh(&self, version: u64, status: u16) -> Result<(), HttpError> {
        if version > 50 {
            return Err(HttpError::other(
                HttpErrorKind::Status(status),
                HttpOp::Answer,
                "test",
                "no more logins",
            ));
        }
        let _ = self.version.compare_exchange(version, version + 1, Ordering::SeqCst, Ordering::SeqCst);
        Ok(())
    }
}

fn open_with_login(refused: &'static [usize]) -> (Server, RangeDisk) {
    let server = Server::start(move |number, head| match refused.contains(&number) {
        true => (answer("401 Unauthorized", "", b""), After::KeepOpen),
        false => (file(&content(), head), After::KeepOpen),
    });
    let mut options = RangeOptions::new(server.url("/disk").parse().unwrap(), Trust::System);
    options.authorise = Some(Arc::new(Login { version: AtomicU64::new(1) }));
    let disk = RangeDisk::open_with(options).unwrap();
    (server, disk)
}

fn three_reads(lane: &mut dyn Lane) -> Vec<Option<DiskErrorKind>> {
    (0..3).for_each(|i| lane.submit(read(i, 0, 10)));
    (0..3).map(|_| lane.complete().unwrap().result.err().map(|error| error.kind)).collect()
}

#[test]
fn refused_credentials_are_renewed_once_and_the_requests_may_be_tried_again() {
    let (server, disk) = open_with_login(&[0, 2, 3, 4]);
    let mut lane = disk.open_lane().unwrap();
    assert_eq!(three_reads(&mut *lane), [Some(DiskErrorKind::Transient); 3]);
    assert_eq!(three_reads(&mut *lane), [None; 3]);
    let requests = server.requests.lock().unwrap();
    assert!(requests[7].contains("version=3"), "{}", requests[7]);
}

#[test]
fn credentials_refused_again_after_renewal_are_denied() {
    let (_server, disk) = open_with_login(&[1, 2, 3, 4, 5, 6]);
    let mut lane = disk.open_lane().unwrap();
    assert_eq!(three_reads(&mut *lane), [Some(DiskErrorKind::Transient); 3]);
    assert!(three_reads(&mut *lane).contains(&Some(DiskErrorKind::Denied)));
}

#[test]
fn disks_without_ranges_or_length_are_not_opened() {
    for (head, kind) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nAccept-Ranges: none\r\n\r\n", DiskErrorKind::Unsupported),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", DiskErrorKind::Unsupported),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n", DiskErrorKind::Gone),
    ] {
        let server = Server::start(move |_, _| (head.as_bytes().to_vec(), After::KeepOpen));
        assert_eq!(
            RangeDisk::open(&server.url("/x"), Trust::System).err().map(|error| error.kind),
            Some(kind)
        );
    }
}
