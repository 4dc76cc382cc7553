//! The service of one disk, on one channel of messages.
//!
//! As many threads as the disk has use for take messages and answer each when it is done. A flush comes only after
//! the client has the answers to all writes before it, so there is no order to keep between messages. The disk is let
//! go when all threads are through; only then a `close` is answered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, DiskErrorKind, DiskOp, Lanes, Request, Slice, Work, in_threads};
use drover_link::{Channel, LinkError, Message, Receiver, Sender, Session};
use drover_pack::{Codec, unpack};
use drover_types::{BLOCK_BYTES, ByteSpan};

use super::Agent;
use super::blocks::{Found, KnownBlocks};
use super::claims::Run;
use super::press::Packing;
use super::store::Held;
use crate::error::Refusal;
use crate::message::{
    DATA_BYTES_MAX, Head, Kind, MessageError, PieceHash, READ_PLAIN, all_pieces, encode_extents, hash_of,
    pieces, status_of, words,
};
use crate::opening::{Access, Answer, DISK_VERSION, OpenDisk, Opened, codecs_of};
use crate::site::encode;

/// Threads for one disk at most; each holds 2 MiB.
const THREADS_MAX: usize = 8;

/// Of the time in which a thread had nothing to do before a read, so much counts at most: a period of the chooser. Nobody saw
/// what the line did in a longer one.
const IDLE_MAX: Duration = Duration::from_millis(500);

const NO_SPAN: ByteSpan = ByteSpan::new(0, 0);

/// Serves a disk until its channel is over.
pub(super) fn serve(agent: &Agent, session: &Session, channel: Channel, wanted: &OpenDisk) {
    let (sender, receiver) = channel.split();
    let close = match serve_open(agent, session, &sender, &receiver, wanted) {
        Ok(close) => close,
        Err(refusal) => {
            // A peer that is gone needs no answer.
            let _ = greet(&sender, Err(refusal)).and_then(|()| sender.finish());
            return;
        }
    };
    // The disk is let go by now.
    let _ = match close {
        Some(id) => done(&sender, id, Ok(Vec::new())).and_then(|()| sender.finish()),
        None => sender.finish(),
    };
}

/// Opens, serves and lets go. Gives the id of the request to close, if it ended by one.
fn serve_open(
    agent: &Agent,
    session: &Session,
    sender: &Sender,
    receiver: &Receiver,
    wanted: &OpenDisk,
) -> Result<Option<u64>, Refusal> {
    if wanted.version < DISK_VERSION {
        let why = format!("this agent speaks version {DISK_VERSION} of the disk service");
        return Err(Refusal::new(DiskErrorKind::Unsupported, why));
    }
    let _seat = agent.seats.take(session.peer().fingerprint)?;
    let _taken = match &wanted.access {
        Access::Read => None,
        Access::Write(writer) => {
            let run = PeersRun { session: session.clone(), sender: sender.clone() };
            Some(agent.claims.take(&wanted.disk, writer, Box::new(run))?)
        }
    };
    let held = agent.store.open(&wanted.disk, &wanted.access)?;
    let Held { disk, opened, known, keep, on_loss } = held;
    let lanes = Lanes::new(disk.clone());
    let threads = lanes.max().clamp(2, THREADS_MAX);
    let codecs = if agent.packs { codecs_of(&wanted.takes) } else { Vec::new() };
    let service = Service {
        lanes,
        threads,
        packing: Packing::new(&agent.presses, &codecs, threads, Instant::now()),
        disk,
        writable: matches!(wanted.access, Access::Write(_)),
        known,
        on_loss,
        close: AtomicU64::new(0),
    };
    if greet(sender, Ok(opened)).is_ok() {
        service.run(sender, receiver);
    }
    let close = service.close.load(SeqCst);
    drop(service);
    drop(keep);
    Ok((close != 0).then_some(close))
}

fn greet(sender: &Sender, opened: Result<Opened, Refusal>) -> Result<(), LinkError> {
    let body = encode(&Answer::from(opened)).unwrap_or_default();
    sender.send(&Head::plain(Kind::Opened, 0, NO_SPAN).encode(), &body)
}

/// Answers a request that has no data.
fn done(sender: &Sender, id: u64, result: Result<Vec<u8>, Refusal>) -> Result<(), LinkError> {
    let (detail, body) = match result {
        Ok(body) => (0, body),
        Err(refusal) => (status_of(refusal.kind), words(&refusal.why)),
    };
    sender.send(&Head { detail, ..Head::plain(Kind::Done, id, NO_SPAN) }.encode(), &body)
}

/// A peer's work, as long as its channel lasts.
#[derive(Clone)]
pub(super) struct PeersRun {
    pub session: Session,
    pub sender: Sender,
}

impl Run for PeersRun {
    fn is_there(&self) -> bool {
        crate::is_connected(&self.session)
    }

    fn end(&self) {
        self.sender.reset();
    }
}

struct Service<'a> {
    disk: Arc<dyn Disk>,
    lanes: Lanes,
    threads: usize,
    packing: Packing<'a>,
    writable: bool,
    known: Option<Arc<dyn KnownBlocks>>,
    on_loss: Option<Box<dyn Fn() -> Result<(), Refusal> + Send + Sync>>,
    /// Id of the request to close; 0 while there is none.
    close: AtomicU64,
}

/// Why a channel cannot go on.
enum End {
    /// The peer is gone.
    Gone,
    /// It sent what no client sends.
    Senseless,
}

impl From<LinkError> for End {
    fn from(_: LinkError) -> End {
        End::Gone
    }
}

impl From<MessageError> for End {
    fn from(_: MessageError) -> End {
        End::Senseless
    }
}

/// Ends the channel if its thread panics, so that the others do not wait for ever with the disk in their hands.
struct PanicGuard<'a>(&'a Sender);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.reset();
        }
    }
}

impl Service<'_> {
    fn run(&self, sender: &Sender, receiver: &Receiver) {
        in_threads(self.threads, |_| {
            let _guard = PanicGuard(sender);
            if let Err(End::Senseless) = self.take_messages(sender, receiver) {
                sender.reset();
            }
        });
    }

    fn take_messages(&self, sender: &Sender, receiver: &Receiver) -> Result<(), End> {
        let mut hands = Hands { buffer: Buffer::zeroed(0), idle: Duration::ZERO };
        while let Some(message) = next(sender, receiver, &mut hands)? {
            let head = Head::decode(&message.head)?;
            self.take(sender, &mut hands, &head, &message.body)?;
            receiver.give_back(message.body);
        }
        Ok(())
    }

    fn take(&self, sender: &Sender, hands: &mut Hands, head: &Head, body: &[u8]) -> Result<(), End> {
        let id = head.id;
        match head.kind {
            Kind::Write => done(sender, id, self.write(hands, head, body).map(|()| Vec::new()))?,
            Kind::Zero => done(sender, id, self.zero(head.span).map(|()| Vec::new()))?,
            Kind::Flush => done(sender, id, self.flush().map(|()| Vec::new()))?,
            Kind::Identity => done(sender, id, Ok(words(&self.disk.identity())))?,
            Kind::Read => self.read(sender, hands, head)?,
            Kind::Hash => self.hash(sender, hands, head)?,
            Kind::Extents => match self.disk.extents(head.span) {
                Ok(extents) => {
                    sender
                        .send(&Head::plain(Kind::Map, id, head.span).encode(), &encode_extents(&extents))?;
                }
                Err(error) => done(sender, id, Err(error.into()))?,
            },
            Kind::Offer => match self.offered(hands, head) {
                Ok(mask) => {
                    let have = Head { mask, ..Head::plain(Kind::Have, id, head.span) };
                    sender.send(&have.encode(), &[])?;
                }
                Err(refusal) => done(sender, id, Err(refusal))?,
            },
            Kind::Reserve => {
                // A gain in speed, no more; what there is no space for says so when it is written.
                let _ = self.writable.then(|| self.disk.reserve(&[head.span]));
            }
            Kind::Close if id != 0 => self.close.store(id, SeqCst),
            Kind::Close | Kind::Opened | Kind::Done | Kind::Data | Kind::Map | Kind::Have | Kind::Hashes => {
                return Err(End::Senseless);
            }
        }
        Ok(())
    }

    fn check_writable(&self, op: DiskOp, span: ByteSpan) -> Result<(), Refusal> {
        if self.writable {
            return Ok(());
        }
        let error = io::Error::new(io::ErrorKind::PermissionDenied, "the disk was opened to be read");
        Err(drover_disk::DiskError::with_kind(DiskErrorKind::Misuse, op, span, self.disk.name(), error)
            .into())
    }

    /// Writes the pieces that came, after each was held against its hash.
    fn write(&self, hands: &mut Hands, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        self.check_writable(DiskOp::Write, head.span)?;
        let corrupt = |why: String| Refusal::new(DiskErrorKind::Corrupt, why);
        let mut buffer = hands.take(head.meant_bytes());
        unpack(head.detail, body, &mut buffer).map_err(|error| corrupt(error.to_string()))?;
        let mut at = 0;
        for (piece, hash) in head.meant() {
            let end = at + piece.length as usize;
            if hash_of(&buffer[at..end]) != *hash {
                return Err(corrupt(format!("{piece} arrived as something else than it left")));
            }
            at = end;
        }
        self.forget(head.span);
        let buffer = Arc::new(buffer);
        let mut at = 0;
        for run in runs(head) {
            let end = at + run.length as usize;
            self.write_run(run, Slice::new(buffer.clone(), at..end))?;
            at = end;
        }
        hands.keep(buffer);
        self.learn(head);
        Ok(())
    }

    fn write_run(&self, run: ByteSpan, slice: Slice) -> Result<(), Refusal> {
        if run.length <= self.disk.limits().bytes_max {
            return self.work(run, Work::Write(slice)).map(drop);
        }
        let bytes = Arc::new({
            let mut copy = Buffer::zeroed(slice.len());
            copy.copy_from_slice(&slice);
            copy
        });
        for piece in self.cut(run) {
            let start = (piece.offset - run.offset) as usize;
            let slice = Slice::new(bytes.clone(), start..start + piece.length as usize);
            self.work(piece, Work::Write(slice))?;
        }
        Ok(())
    }

    fn zero(&self, span: ByteSpan) -> Result<(), Refusal> {
        self.check_writable(DiskOp::Zero, span)?;
        self.forget(span);
        self.cut(span).try_for_each(|piece| self.work(piece, Work::Zero).map(drop))
    }

    fn flush(&self) -> Result<(), Refusal> {
        if !self.writable {
            return Ok(());
        }
        self.disk.flush().map_err(|error| {
            let lost = Refusal::from(error);
            match self.on_loss.as_ref().map(|on_loss| on_loss()) {
                Some(Err(unwritten)) => Refusal::new(lost.kind, format!("{}; {}", lost.why, unwritten.why)),
                Some(Ok(())) | None => lost,
            }
        })
    }

    fn read(&self, sender: &Sender, hands: &mut Hands, head: &Head) -> Result<(), LinkError> {
        match self.read_all(hands, head.span) {
            Ok(mut buffer) => {
                let answer = hashed(Kind::Data, head, &buffer);
                let plain = buffer.len();
                let (codec, length) = match head.detail {
                    READ_PLAIN => (Codec::Plain, plain),
                    _ => self.packing.pack(&mut buffer, Instant::now()),
                };
                let began = Instant::now();
                sender.send(&Head { detail: codec.number(), ..answer }.encode(), &buffer[..length])?;
                let waited = began.elapsed() + hands.idle;
                self.packing.sent(plain, length, waited, Instant::now());
                hands.buffer = buffer;
                Ok(())
            }
            Err(refusal) => done(sender, head.id, Err(refusal)),
        }
    }

    /// As [`Service::read`], but only the hashes go over the link.
    fn hash(&self, sender: &Sender, hands: &mut Hands, head: &Head) -> Result<(), LinkError> {
        match self.read_all(hands, head.span) {
            Ok(buffer) => {
                let answer = hashed(Kind::Hashes, head, &buffer);
                hands.buffer = buffer;
                sender.send(&answer.encode(), &[])
            }
            Err(refusal) => done(sender, head.id, Err(refusal)),
        }
    }

    fn read_all(&self, hands: &mut Hands, span: ByteSpan) -> Result<Buffer, Refusal> {
        if span.length <= self.disk.limits().bytes_max {
            let buffer = hands.take(span.length as usize);
            return match self.work(span, Work::Read(buffer))? {
                Work::Read(buffer) => Ok(buffer),
                Work::Write(_) | Work::Zero => unreachable!("a request comes back as it went"),
            };
        }
        let mut whole = hands.take(span.length as usize);
        for piece in self.cut(span) {
            let buffer = Buffer::zeroed(piece.length as usize);
            if let Work::Read(buffer) = self.work(piece, Work::Read(buffer))? {
                let start = (piece.offset - span.offset) as usize;
                whole[start..start + buffer.len()].copy_from_slice(&buffer);
            }
        }
        Ok(whole)
    }

    /// Takes the whole blocks of an offer that are known here: each is read, held against its hash and, if it is not
    /// in its place, written there. What was found is as if it had been sent.
    fn offered(&self, hands: &mut Hands, head: &Head) -> Result<u32, Refusal> {
        self.check_writable(DiskOp::Write, head.span)?;
        let Some(known) = &self.known else { return Ok(0) };
        let mut mask = 0;
        for (number, (piece, hash)) in pieces(head.span).zip(&head.hashes).enumerate() {
            if piece.length != BLOCK_BYTES || self.disk.limits().bytes_max < BLOCK_BYTES {
                continue;
            }
            let mut buffer = hands.take(piece.length as usize);
            let block = piece.offset / BLOCK_BYTES;
            match known.find(hash, block, &mut buffer) {
                Found::Here => hands.buffer = buffer,
                Found::Elsewhere => {
                    known.forget(block, 1);
                    let buffer = Arc::new(buffer);
                    self.work(piece, Work::Write(Slice::new(buffer.clone(), 0..piece.length as usize)))?;
                    known.learn(block, std::slice::from_ref(hash));
                    hands.keep(buffer);
                }
                Found::Nowhere => {
                    hands.buffer = buffer;
                    continue;
                }
            }
            mask |= 1 << number;
        }
        Ok(mask)
    }

    fn forget(&self, span: ByteSpan) {
        if let Some(known) = &self.known {
            let first = span.offset / BLOCK_BYTES;
            known.forget(first, span.end().div_ceil(BLOCK_BYTES) - first);
        }
    }

    fn learn(&self, head: &Head) {
        let Some(known) = &self.known else { return };
        let whole = head.meant().filter(|(piece, _)| piece.length == BLOCK_BYTES);
        let mut runs: Vec<(u64, Vec<PieceHash>)> = Vec::new();
        for (piece, hash) in whole {
            let block = piece.offset / BLOCK_BYTES;
            match runs.last_mut() {
                Some((first, hashes)) if *first + hashes.len() as u64 == block => hashes.push(*hash),
                _ => runs.push((block, vec![*hash])),
            }
        }
        runs.iter().for_each(|(first, hashes)| known.learn(*first, hashes));
    }

    /// The parts of a span that the disk takes at once.
    fn cut(&self, span: ByteSpan) -> impl Iterator<Item = ByteSpan> + use<> {
        let limits = self.disk.limits();
        let step = (limits.bytes_max / limits.bytes_min).max(1) * limits.bytes_min;
        let mut at = span.offset;
        std::iter::from_fn(move || {
            let piece = ByteSpan::from_bounds(at, at.saturating_add(step).min(span.end()).max(at));
            at = piece.end();
            (!piece.is_empty()).then_some(piece)
        })
    }

    fn work(&self, span: ByteSpan, work: Work) -> Result<Work, Refusal> {
        let completion = self.lanes.run(Request { id: 0, span, work })?;
        completion.result?;
        Ok(completion.work)
    }
}

/// An answer with the hashes of what was read.
fn hashed(kind: Kind, asked: &Head, bytes: &[u8]) -> Head {
    let slice = |piece: ByteSpan| {
        let start = (piece.offset - asked.span.offset) as usize;
        &bytes[start..start + piece.length as usize]
    };
    let hashes = pieces(asked.span).map(|piece| hash_of(slice(piece))).collect();
    Head { mask: all_pieces(asked.span), hashes, ..Head::plain(kind, asked.id, asked.span) }
}

/// Runs of the pieces that are meant, each as one span.
fn runs(head: &Head) -> Vec<ByteSpan> {
    let mut runs: Vec<ByteSpan> = Vec::new();
    for (piece, _) in head.meant() {
        match runs.last_mut() {
            Some(last) if last.end() == piece.offset => last.length += piece.length,
            _ => runs.push(piece),
        }
    }
    runs
}

/// Waits for the next message. If answers wait for a connection to take them, before and after, the line is what is waited for.
fn next(sender: &Sender, receiver: &Receiver, hands: &mut Hands) -> Result<Option<Message>, LinkError> {
    let (since, waits) = (Instant::now(), sender.waits_for_line());
    let message = receiver.receive()?;
    let waits = waits && sender.waits_for_line();
    hands.idle = if waits { since.elapsed().min(IDLE_MAX) } else { Duration::ZERO };
    Ok(message)
}

/// What a thread has for itself.
struct Hands {
    /// Used again and again.
    buffer: Buffer,
    /// How long there was nothing to do before this message while answers waited for the line.
    idle: Duration,
}

impl Hands {
    fn take(&mut self, length: usize) -> Buffer {
        let mut buffer = std::mem::replace(&mut self.buffer, Buffer::zeroed(0));
        if buffer.capacity() < length {
            buffer = Buffer::zeroed(DATA_BYTES_MAX as usize);
        }
        buffer.set_len(length);
        buffer
    }

    fn keep(&mut self, buffer: Arc<Buffer>) {
        if let Some(buffer) = Arc::into_inner(buffer) {
            self.buffer = buffer;
        }
    }
}
