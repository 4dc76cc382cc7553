//! A peer that is paired and sends what it likes, and an agent that answers what it likes.

use std::sync::Arc;

use drover_agent::message::{Head, Kind, hash_of, pieces};
use drover_agent::opening::{
    Access, Announced, DISK_BYTES_MAX, DISK_VERSION, How, OpenDisk, Opened, Opening, Pool, Stat, Writer,
};
use drover_agent::{Agent, Held, PEER_DISKS_MAX, Places, Refusal, Store};
use drover_disk::{Disk, DiskErrorKind, MemDisk};
use drover_link::{Order, Session};
use drover_types::ByteSpan;

use crate::stage::{One, Stage, source, target, write_all};

const SIZE: u64 = 1 << 20;

/// A session to an agent that serves one pool.
fn session(places: Places) -> Session {
    let agent = Arc::new(Agent::new(Arc::new(places)));
    let (here, there) = Session::pair();
    std::thread::spawn(move || agent.serve(&there));
    here
}

fn pool(folder: &std::path::Path) -> Places {
    let pools = [("vms".to_string(), folder.to_path_buf())].into();
    Places { pools, state: folder.join(".state"), ..Places::default() }
}

/// Opens a disk as a client does, and takes the agent's first message.
fn opened(session: &Session, disk: &str, access: Access) -> (Halves, Head, Vec<u8>) {
    let opening =
        Opening::Disk(OpenDisk { version: DISK_VERSION, disk: disk.to_string(), access, takes: Vec::new() });
    let channel = session.open(Order::Messages, &serde_json::to_vec(&opening).unwrap()).unwrap();
    let (sender, receiver) = channel.split();
    let message = receiver.receive().unwrap().unwrap();
    ((sender, receiver), Head::decode(&message.head).unwrap(), message.body)
}

type Halves = (drover_link::Sender, drover_link::Receiver);

fn to_write(attempt: u32) -> Access {
    let run = "run".to_string();
    Access::Write(Writer { size: SIZE, how: How::Resume, run, epoch: 1, attempt, volume: None })
}

fn write_head(span: ByteSpan, bytes: &[u8], codec: u8) -> Head {
    let slice = |piece: ByteSpan| {
        let start = (piece.offset - span.offset) as usize;
        &bytes[start..start + piece.length as usize]
    };
    let hashes: Vec<_> = pieces(span).map(|piece| hash_of(slice(piece))).collect();
    let mask = (1 << hashes.len()) - 1;
    Head { detail: codec, mask, hashes, ..Head::plain(Kind::Write, 1, span) }
}

/// Whatever a peer asks of a disk, nothing outside of it is touched, and it keeps its size.
#[test]
fn requests_that_no_client_makes_are_refused_or_end_their_channel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.raw");
    std::fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let session = session(pool(folder.path()));
    let bytes = vec![1; 65536];
    let span = |offset, length| ByteSpan::new(offset, length);
    let refused = [
        (write_head(span(SIZE, 65536), &bytes, 0), bytes.clone()),
        (write_head(span(SIZE - 32768, 65536), &bytes, 0), bytes.clone()),
        (write_head(span(1 << 60, 65536), &bytes, 0), bytes.clone()),
        (write_head(span(0, 65536), &bytes, 1), bytes.clone()),
        (write_head(span(0, 65536), &bytes, 2), bytes.clone()),
        (write_head(span(0, 65536), &bytes, 200), bytes.clone()),
        (write_head(span(0, 65536), &bytes, 0), vec![2; 65536]),
        (write_head(span(0, 65536), &bytes, 0), vec![1; 65535]),
        (Head::plain(Kind::Zero, 1, span(SIZE - 1, 2)), Vec::new()),
        (Head::plain(Kind::Zero, 1, span(1 << 62, 1 << 40)), Vec::new()),
        (Head::plain(Kind::Read, 1, span(SIZE, 1)), Vec::new()),
        (Head::plain(Kind::Extents, 1, span(SIZE - 1, 2)), Vec::new()),
    ];
    let ((sender, receiver), head, body) = opened(&session, "vms/a.raw", to_write(0));
    assert_eq!(head.kind, Kind::Opened, "{}", String::from_utf8_lossy(&body));
    for (head, body) in refused {
        sender.send(&head.encode(), &body).unwrap();
        let answer = receiver.receive().unwrap().unwrap();
        let answer = Head::decode(&answer.head).unwrap();
        assert!(answer.kind == Kind::Done && answer.detail != 0, "{head:?}: {answer:?}");
    }
    sender.send(&Head::plain(Kind::Reserve, 0, span(1 << 50, 1 << 40)).encode(), &[]).unwrap();
    drop((sender, receiver));
    let senseless = [
        vec![],
        vec![0; 31],
        vec![255; 64],
        Head::plain(Kind::Opened, 1, span(0, 0)).encode(),
        Head::plain(Kind::Close, 0, span(0, 0)).encode(),
        write_head(span(0, 65536), &bytes, 0).encode()[..40].to_vec(),
    ];
    for (number, head) in senseless.iter().enumerate() {
        let ((sender, receiver), opened, _) = opened(&session, "vms/a.raw", to_write(1 + number as u32));
        assert_eq!(opened.kind, Kind::Opened);
        sender.send(head, &[]).unwrap();
        assert!(receiver.receive().is_err(), "{head:?}");
    }
    // A disk that was opened to be read is not written.
    let ((sender, receiver), _, _) = opened(&session, "vms/a.raw", Access::Read);
    for head in [write_head(span(0, 65536), &bytes, 0), Head::plain(Kind::Zero, 2, span(0, 65536))] {
        sender.send(&head.encode(), if head.kind == Kind::Write { &bytes } else { &[] }).unwrap();
        assert_ne!(Head::decode(&receiver.receive().unwrap().unwrap().head).unwrap().detail, 0);
    }
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; SIZE as usize]);
}

#[test]
fn names_and_openings_that_lead_elsewhere_open_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pool_folder = folder.path().join("pool");
    std::fs::create_dir_all(pool_folder.join("sub")).unwrap();
    std::fs::write(folder.path().join("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink(folder.path(), pool_folder.join("up")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("secret"), pool_folder.join("link.raw")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        pool_folder.join("pipe.raw"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let session = session(pool(&pool_folder));
    let absolute = folder.path().join("secret").display().to_string();
    for name in [
        "vms/../secret",
        "vms/sub/../../secret",
        "vms/up/secret",
        "vms/link.raw",
        "vms/pipe.raw",
        "vms/sub",
        "vms/./secret",
        "vms//secret",
        "vms/%2e%2e/secret",
        "vms/sub/..",
        "vms/.hidden",
        "vms/x\0y",
        "vms/x\u{1b}[2Jy",
        "vms/a.raw.drover-fence",
        "vms/a.raw.drover-leaves",
        "/etc/passwd",
        "",
        &absolute,
        &format!("vms{absolute}"),
        &format!("vms/{}", "x/".repeat(9)),
        &format!("vms/{}", "x".repeat(3000)),
    ] {
        for access in [Access::Read, to_write(0)] {
            let (_, head, body) = opened(&session, name, access);
            let body = String::from_utf8(body).unwrap();
            assert!(head.kind == Kind::Opened && body.starts_with("{\"refused\""), "{name:?}: {body}");
        }
    }
    assert_eq!(std::fs::read(folder.path().join("secret")).unwrap(), b"secret");
    let mut left: Vec<_> =
        std::fs::read_dir(&pool_folder).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["link.raw", "pipe.raw", "sub", "up"], "nothing was made");
}

#[test]
fn a_peer_has_so_many_disks_open_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.raw"), vec![7; 4096]).unwrap();
    let session = session(pool(folder.path()));
    let open = || opened(&session, "vms/a.raw", Access::Read);
    let refused = |body: &[u8]| body.starts_with(b"{\"refused\"");
    let mut disks: Vec<_> = (0..PEER_DISKS_MAX).map(|_| open()).collect();
    assert!(disks.iter().all(|(_, _, body)| !refused(body)));
    let (_, _, body) = open();
    assert!(refused(&body) && String::from_utf8_lossy(&body).contains("disks open"));
    let (sender, receiver) = disks.pop().unwrap().0;
    sender.send(&Head::plain(Kind::Close, 1, ByteSpan::new(0, 0)).encode(), &[]).unwrap();
    sender.finish().unwrap();
    while receiver.receive().unwrap().is_some() {}
    // The seat is free a moment after the answer.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while refused(&open().2) {
        assert!(std::time::Instant::now() < until, "a seat never came back");
    }
}

/// An agent that says what it likes of what it has.
struct Liar {
    one: One,
    change: fn(&mut Opened),
}

impl Store for Liar {
    fn open(&self, disk: &str, access: &Access) -> Result<Held, Refusal> {
        if disk == "rude" {
            let why = "\u{1b}]0;owned\u{7}\u{1b}[2J".to_string() + &"x".repeat(500_000);
            return Err(Refusal { kind: DiskErrorKind::Failed, why });
        }
        let mut held = self.one.open(disk, access)?;
        (self.change)(&mut held.opened);
        Ok(held)
    }

    fn stat(&self, _disk: &str) -> Result<Stat, Refusal> {
        Ok(Stat {
            size: None,
            tag: "\u{1b}[2Jtag".to_string(),
            holds_nothing: true,
            allocated: None,
            epoch: 0,
        })
    }

    fn announce(&self) -> Announced {
        let odd = "\u{1b}[31mred\r\n\u{202e}".to_string();
        let pools = vec![Pool {
            name: odd.clone(),
            free_bytes: Some(u64::MAX),
            folders: vec![odd.clone(); 100],
            unwritable: Some(odd.clone()),
            has_volumes: false,
        }];
        Announced { version: odd.clone(), pools, devices: vec![odd], takes: vec![], load: None }
    }
}

fn liar(change: fn(&mut Opened)) -> Arc<drover_agent::Site> {
    Stage::new(Liar { one: One::new(MemDisk::new("a", vec![3; SIZE as usize])), change }).site()
}

#[test]
fn what_an_agent_says_drives_no_terminal() {
    let site = liar(|opened| {
        opened.notes = vec!["\u{1b}[2Jcleared\nagain".to_string(); 10_000];
        opened.tag = "\u{1b}tag".to_string();
        opened.identity = "\u{9b}31m".to_string();
    });
    let info = site.info().unwrap();
    let said = format!("{}{}{}", info.version, info.pools[0].name, info.devices[0]);
    assert!(!said.contains(char::is_control) && !said.contains('\u{202e}'), "{said:?}");
    let pool = &info.pools[0];
    let said = format!("{}{:?}", pool.folders.concat(), pool.unwritable);
    assert!(pool.folders.len() <= 4 && !said.contains(char::is_control), "{said}");
    assert!(!site.stat("any").unwrap().tag.contains(char::is_control));
    let disk = source(&site, "any");
    let opened = disk.opened();
    assert!(opened.notes.len() <= 16 && opened.notes.iter().all(|note| !note.contains(char::is_control)));
    assert!(!opened.tag.contains(char::is_control) && !disk.identity().contains(char::is_control));
    let error = drover_agent::AgentDisk::open_source(&site, "rude", drover_agent::AgentOptions::default());
    let text = error.err().unwrap().source.to_string();
    assert!(!text.contains(char::is_control) && text.len() < 2000, "{} bytes", text.len());
}

#[test]
fn disks_that_cannot_be_are_not_used() {
    let changes: [fn(&mut Opened); 5] = [
        |opened| opened.size = u64::MAX,
        |opened| opened.size = DISK_BYTES_MAX + 1,
        |opened| opened.bytes_min = 0,
        |opened| opened.bytes_min = 1 << 30,
        |opened| opened.version = 99,
    ];
    for change in changes {
        let site = liar(change);
        let options = drover_agent::AgentOptions::default();
        let error = drover_agent::AgentDisk::open_source(&site, "any", options).err().unwrap();
        assert_eq!(error.kind, DiskErrorKind::Unsupported, "{}", error.source);
    }
    // Space that is set aside byte by byte would be one message for each.
    let disk = target(&liar(|opened| opened.reserve_bytes = 1), "any", SIZE, How::Resume).unwrap();
    assert!(disk.reserve_bytes() >= 1 << 20, "{}", disk.reserve_bytes());
    write_all(&disk, &vec![5; SIZE as usize]);
    disk.flush().unwrap();
}
