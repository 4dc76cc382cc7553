//! What is read from an agent: packed where that pays and the peer unpacks it, and asked for again if it arrives damaged.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drover_agent::message::{Head, Kind, READ_PLAIN, hash_of, pieces};
use drover_agent::opening::{Answer, OpenDisk, Opening};
use drover_agent::{Agent, Refusal, Site, Store};
use drover_disk::{Buffer, Disk, MemDisk, Request, Work};
use drover_link::{Channel, Order, Receiver, Sender, Session};
use drover_pack::{Codec, Packer, unpack};
use drover_types::ByteSpan;

use crate::stage::{One, source};

const READ_BYTES: u64 = 1 << 20;
const SIZE: u64 = 4 * READ_BYTES;

fn text() -> Vec<u8> {
    (0..SIZE as usize).map(|at| b"drover reads disks, "[at % 20] ^ (at / 9973) as u8).collect()
}

/// A peer that takes 40 MB a second, and opens the disk by what it writes.
struct Reader {
    sender: Sender,
    receiver: Receiver,
}

const READER_RATE: f64 = 40e6;

/// How long there may be nothing packed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads that a peer asks for ahead: more than a channel may have on its way.
const AHEAD: u64 = 100;

impl Reader {
    fn open(agent: Agent, opening: &str) -> Reader {
        let (here, there) = Session::pair();
        std::thread::spawn(move || Arc::new(agent).serve(&there));
        let (sender, receiver) = here.open(Order::Messages, opening.as_bytes()).unwrap().split();
        let opened = receiver.receive().unwrap().unwrap();
        assert_eq!(Head::decode(&opened.head).unwrap().kind, Kind::Opened);
        Reader { sender, receiver }
    }

    /// Reads until it is over, by the codecs of the answers so far, or patience is: all codecs that were seen. Each answer is
    /// held against the disk.
    fn codecs(&self, detail: u8, is_over: impl Fn(&HashSet<u8>) -> bool) -> HashSet<u8> {
        let (content, began, mut found) = (text(), Instant::now(), HashSet::new());
        let span = |id: u64| ByteSpan::new(id % 4 * READ_BYTES, READ_BYTES);
        let ask = |id| {
            let head = Head { detail, ..Head::plain(Kind::Read, id, span(id)) };
            self.sender.send(&head.encode(), &[]).unwrap();
        };
        (1..=AHEAD).for_each(ask);
        let mut next = AHEAD + 1;
        while began.elapsed() < PATIENCE && !is_over(&found) {
            let answer = self.receiver.receive().unwrap().unwrap();
            let head = Head::decode(&answer.head).unwrap();
            assert_eq!((head.kind, head.span), (Kind::Data, span(head.id)));
            let mut plain = vec![0; READ_BYTES as usize];
            unpack(head.detail, &answer.body, &mut plain).unwrap();
            assert!(plain == content[head.span.offset as usize..head.span.end() as usize]);
            let hashes: Vec<_> = plain.chunks(64 << 10).map(hash_of).collect();
            assert_eq!(head.hashes, hashes, "of the bytes before packing");
            found.insert(head.detail);
            std::thread::sleep(Duration::from_secs_f64(answer.body.len() as f64 / READER_RATE));
            ask(next);
            next += 1;
        }
        found
    }
}

fn agent() -> Agent {
    Agent::new(Arc::new(One::new(MemDisk::new("one", text()))))
}

const OPENING: &str = r#"{"service":"disk","version":1,"disk":"one","access":"read""#;

#[test]
fn answers_are_packed_for_a_peer_that_says_what_it_unpacks() {
    let opening = format!("{OPENING},\"takes\":[\"lz4\",\"later\"]}}");
    let reader = Reader::open(agent(), &opening);
    let is_packed = |found: &HashSet<u8>| found.contains(&Codec::Lz4.number());
    assert!(is_packed(&reader.codecs(0, is_packed)), "never packed");
}

#[test]
fn answers_are_plain_for_peers_of_before_and_where_it_was_asked_for() {
    let plain = HashSet::from([Codec::Plain.number()]);
    let takes = format!("{OPENING},\"takes\":[\"lz4\",\"zstd\"]}}");
    let is_packed = |found: &HashSet<u8>| found.iter().any(|codec| *codec != Codec::Plain.number());
    let is_told = AtomicBool::new(false);
    let is_over = |found: &HashSet<u8>| is_packed(found) || (is_told.load(SeqCst) && !found.is_empty());
    std::thread::scope(|scope| {
        // As agents' clients wrote it before.
        let before = scope.spawn(|| Reader::open(agent(), &format!("{OPENING}}}")).codecs(0, is_over));
        let asked = scope.spawn(|| Reader::open(agent(), &takes).codecs(READ_PLAIN, is_over));
        let without = agent().without_packing();
        let switched_off = scope.spawn(|| Reader::open(without, &takes).codecs(0, is_over));
        // One like them whose answers may be packed: once they are, the others had the time for it. A second more, since
        // they do not go in step.
        let beside = scope.spawn(|| Reader::open(agent(), &takes).codecs(0, is_packed));
        let beside = beside.join().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        is_told.store(true, SeqCst);
        for codecs in [before, asked, switched_off] {
            assert_eq!(codecs.join().unwrap(), plain);
        }
        assert!(is_packed(&beside), "never packed, so the others show nothing");
    });
}

/// An agent by hand: opens a disk and answers its reads by these in turn, the last one again and again. What the reads
/// said is kept.
fn by_hand(channel: Channel, answers: &[(u8, Vec<u8>)], asked: &Mutex<Vec<u8>>) {
    let (sender, receiver) = channel.split();
    let wanted = drover_agent::opening::Access::Read;
    let opened = One::new(MemDisk::new("one", text())).open("one", &wanted).unwrap().opened;
    let head = Head::plain(Kind::Opened, 0, ByteSpan::new(0, 0));
    sender.send(&head.encode(), &serde_json::to_vec(&Answer::Ok(opened)).unwrap()).unwrap();
    let content = text();
    while let Ok(Some(message)) = receiver.receive() {
        let head = Head::decode(&message.head).unwrap();
        if head.kind != Kind::Read {
            let done = Head { detail: 0, ..Head::plain(Kind::Done, head.id, ByteSpan::new(0, 0)) };
            let _ = sender.send(&done.encode(), &[]);
            continue;
        }
        let mut asked = asked.lock().unwrap();
        let (codec, body) = &answers[asked.len().min(answers.len() - 1)];
        asked.push(head.detail);
        let slice = |piece: ByteSpan| &content[piece.offset as usize..piece.end() as usize];
        let hashes: Vec<_> = pieces(head.span).map(|piece| hash_of(slice(piece))).collect();
        let mask = (1 << hashes.len()) - 1;
        let data = Head { detail: *codec, mask, hashes, ..Head::plain(Kind::Data, head.id, head.span) };
        sender.send(&data.encode(), body).unwrap();
    }
}

/// Reads the first bytes of the disk of an agent that answers so: what came, and what the reads said.
fn read_from(answers: Vec<(u8, Vec<u8>)>) -> (Option<Vec<u8>>, Vec<u8>, OpenDisk) {
    let (asked, opening) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (kept, said) = (asked.clone(), opening.clone());
    let site = Site::new("b", move || -> Result<Session, Refusal> {
        let (here, there) = Session::pair();
        let (answers, asked, said) = (answers.clone(), kept.clone(), said.clone());
        std::thread::spawn(move || {
            while let Ok(incoming) = there.accept() {
                *said.lock().unwrap() = match serde_json::from_slice(&incoming.opening) {
                    Ok(Opening::Disk(opening)) => Some(opening),
                    _ => None,
                };
                by_hand(incoming.channel, &answers, &asked);
            }
        });
        Ok(here)
    });
    let disk = source(&site, "one");
    let mut lane = disk.open_lane().unwrap();
    let buffer = Buffer::zeroed(READ_BYTES as usize);
    lane.submit(Request { id: 1, span: ByteSpan::new(0, READ_BYTES), work: Work::Read(buffer) });
    let completion = lane.complete().unwrap();
    let came = match (completion.result, completion.work) {
        (Ok(()), Work::Read(buffer)) => Some(buffer.to_vec()),
        _ => None,
    };
    drop(lane);
    drop(disk);
    let asked = asked.lock().unwrap().clone();
    (came, asked, opening.lock().unwrap().take().unwrap())
}

#[test]
fn an_answer_that_was_packed_and_arrives_damaged_is_asked_for_plain() {
    let content = text()[..READ_BYTES as usize].to_vec();
    let packed = Packer::new().unwrap().pack(Codec::Zstd1, &content).unwrap().to_vec();
    let zstd = Codec::Zstd1.number();
    let mut other = content.clone();
    other[70_000] ^= 1;
    let other = Packer::new().unwrap().pack(Codec::Zstd1, &other).unwrap().to_vec();
    let torn = packed[..packed.len() / 2].to_vec();

    let (came, asked, opening) = read_from(vec![(zstd, packed)]);
    assert_eq!((came.as_deref(), asked), (Some(&content[..]), vec![0]));
    assert_eq!(opening.takes, ["lz4", "zstd"]);
    for damaged in [torn.clone(), other] {
        let (came, asked, _) = read_from(vec![(zstd, damaged), (0, content.clone())]);
        assert_eq!((came.as_deref(), asked), (Some(&content[..]), vec![0, READ_PLAIN]));
    }
    let mut damaged = content.clone();
    damaged[0] ^= 1;
    let (came, asked, _) = read_from(vec![(zstd, torn), (0, damaged.clone()), (0, content.clone())]);
    assert_eq!((came.as_deref(), asked), (Some(&content[..]), vec![0, READ_PLAIN, READ_PLAIN]));
    // Plain ones are asked for as before: agents of before know nothing else, and would send it back as the codec.
    let (came, asked, _) = read_from(vec![(0, damaged.clone()), (0, content.clone())]);
    assert_eq!((came.as_deref(), asked), (Some(&content[..]), vec![0, 0]));
    let (came, asked, _) = read_from(vec![(0, damaged)]);
    assert_eq!((came, asked), (None, vec![0; 3]), "three tries");
}
