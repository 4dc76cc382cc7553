//! One connection in transmission.
//!
//! ```text
//! start(request) ── head, data ──> socket          pending: cookie -> request
//!                                                       │
//! receive() <── stage: heads and small payloads ── socket ──> straight into the read's buffer
//!      └──> done ──> take(owner)
//! ```
//!
//! Sending never just waits: while the socket has no room, replies are received. Otherwise two
//! blocked senders would wait for each other for ever, the server with the data of our reads and
//! we with the data of our writes, with the buffers between them full.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_disk::{DiskErrorKind, Slice, Work};
use drover_types::ByteSpan;

use crate::handshake::{Export, Style};
use crate::reply::{Breach, Failure, Pending, Status, Ticket};
use crate::stream::Stream;
use crate::wire::{
    self, COMMAND_FUA, COMMAND_PAYLOAD, ChunkHead, ChunkKind, Command, Decoded, ReplyHead, RequestHead, flag,
};

/// Room for heads and small payloads. What follows a head in the same read is copied from here to
/// its buffer, so it should not be large.
const STAGE_BYTES: usize = 4096;

/// A payload that is not data; the longest is an extended block status of a million runs.
const PAYLOAD_BYTES_MAX: u64 = 8 + 16 * (1 << 20);

/// An error: number, length of the message, the message, and what the type adds.
const ERROR_BYTES_MAX: u64 = 6 + u16::MAX as u64 + 64;

/// A request counts as answered bit by bit if this much of it comes within the time for a request.
const PROGRESS_BYTES: usize = 64 << 10;

/// Zeros are sent from here to servers without `WRITE_ZEROES`.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A socket with requests in flight.
pub struct Connection {
    stream: Stream,
    peer: Peer,
    export: Export,
    timeouts: Timeouts,
    pending: BTreeMap<u64, Pending>,
    oldest: Oldest,
    done: VecDeque<Ended>,
    cookie: u64,
    stage: Stage,
    expect: Expect,
    broken: Option<String>,
    /// Told when this connection breaks.
    lost: Arc<AtomicBool>,
    /// Whether the server turned out not to do what its flag promises.
    no_zeroes: bool,
}

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the next byte.
    pub silence: Duration,
    /// For signs of life of one request, while others are answered.
    pub request: Duration,
}

/// What is at the other end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Server,
    /// A child of ours. Where the server behind it is lost, the stream to the child still stands, and
    /// each request ends with some error of the child's own.
    Proxy,
}

/// The oldest request in flight, and when it last showed a sign of life.
struct Oldest {
    cookie: u64,
    received: usize,
    since: Instant,
    /// When we last stopped waiting for the server.
    looked: Instant,
}

impl Oldest {
    fn new(cookie: u64, received: usize) -> Oldest {
        let now = Instant::now();
        Oldest { cookie, received, since: now, looked: now }
    }
}

/// A request that ended.
#[derive(Debug)]
pub struct Ended {
    pub ticket: Ticket,
    pub command: Command,
    pub span: ByteSpan,
    pub work: Work,
    pub status: Status,
    pub result: Result<(), Failure>,
}

/// What the next bytes are.
#[derive(Debug)]
enum Expect {
    Head,
    /// The offset of a data chunk.
    Offset(ChunkHead),
    /// Data for this part of a read's buffer.
    Data {
        cookie: u64,
        range: Range<usize>,
        done: bool,
    },
    /// A payload that is gathered before it is looked at.
    Payload(ChunkHead, Vec<u8>),
}

/// Bytes received and not yet understood.
struct Stage {
    bytes: [u8; STAGE_BYTES],
    filled: Range<usize>,
}

/// Why a connection ended.
enum Fault {
    Io(io::Error),
    Breach(Breach),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

impl From<Breach> for Fault {
    fn from(breach: Breach) -> Self {
        Fault::Breach(breach)
    }
}

/// Data of a request.
enum Payload {
    None,
    Bytes(Slice),
    Zeros(usize),
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Bytes(slice) => slice.len(),
            Payload::Zeros(length) => *length,
        }
    }

    /// A run of bytes from `at` on, empty only at the end.
    fn from(&self, at: usize) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Bytes(slice) => &slice[at..],
            Payload::Zeros(length) => &ZEROS[..ZEROS.len().min(length - at)],
        }
    }
}

impl Connection {
    pub fn new(
        stream: Stream,
        peer: Peer,
        export: Export,
        timeouts: Timeouts,
        lost: Arc<AtomicBool>,
    ) -> Connection {
        Connection {
            stream,
            peer,
            export,
            timeouts,
            pending: BTreeMap::new(),
            oldest: Oldest::new(0, 0),
            done: VecDeque::new(),
            cookie: 0,
            stage: Stage { bytes: [0; STAGE_BYTES], filled: 0..0 },
            expect: Expect::Head,
            broken: None,
            lost,
            no_zeroes: false,
        }
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Sends a read, write or zeroing.
    pub fn start_work(&mut self, ticket: Ticket, span: ByteSpan, work: Work) {
        let zeroes = self.export.has(flag::WRITE_ZEROES) && !self.no_zeroes;
        let (command, payload) = match &work {
            Work::Read(_) => (Command::Read, Payload::None),
            Work::Write(slice) => (Command::Write, Payload::Bytes(slice.clone())),
            Work::Zero if zeroes => (Command::WriteZeroes, Payload::None),
            Work::Zero => (Command::Write, Payload::Zeros(span.length as usize)),
        };
        self.start(Pending::new(ticket, command, span, work), payload);
    }

    /// Sends a request without data.
    pub fn start_plain(&mut self, ticket: Ticket, command: Command, span: ByteSpan) {
        self.start(Pending::new(ticket, command, span, Work::Zero), Payload::None);
    }

    fn start(&mut self, pending: Pending, payload: Payload) {
        if let Some(why) = &self.broken {
            let failure = broken(DiskErrorKind::Transient, why);
            return self.done.push_back(ended(pending, Err(failure)));
        }
        self.cookie += 1;
        let head = RequestHead {
            flags: self.flags(pending.command),
            command: pending.command,
            cookie: self.cookie,
            offset: pending.span.offset,
            length: pending.span.length,
        };
        self.pending.insert(self.cookie, pending);
        let sent = match self.export.style {
            Style::Extended => self.send(&head.encode_extended(), &payload),
            Style::Simple | Style::Structured => self.send(&head.encode(), &payload),
        };
        if let Err(fault) = sent {
            self.fail(fault);
        }
    }

    /// Where a server has no flush, each write is durable before its reply.
    fn flags(&self, command: Command) -> u16 {
        let writes = matches!(command, Command::Write | Command::WriteZeroes);
        let fua = writes && !self.export.has(flag::FLUSH) && self.export.has(flag::FUA);
        let payload = command == Command::Write && self.export.style == Style::Extended;
        (if fua { COMMAND_FUA } else { 0 }) | (if payload { COMMAND_PAYLOAD } else { 0 })
    }

    fn send(&mut self, head: &[u8], payload: &Payload) -> Result<(), Fault> {
        let mut sent = 0;
        while sent < head.len() + payload.len() || self.stream.has_unsent() {
            let data = payload.from(sent.saturating_sub(head.len()));
            let length = self.stream.send_now(&head[sent.min(head.len())..], data)?;
            sent += length;
            let waits = length == 0 && (sent < head.len() + payload.len() || self.stream.has_unsent());
            if waits && self.stream.wait(self.timeouts.silence)? {
                self.receive_now()?;
            }
        }
        Ok(())
    }

    /// A request of `owner` that ended, if there is one.
    pub fn take(&mut self, owner: u64) -> Option<Ended> {
        let index = self.done.iter().position(|ended| ended.ticket.owner == owner)?;
        let ended = self.done.remove(index)?;
        // The server promised zeroing but cannot: the same span again, by writing zeros. Some call that
        // an invalid argument.
        use DiskErrorKind::{Failed, Unsupported};
        let unsupported =
            matches!(&ended.result, Err(failure) if matches!(failure.kind, Unsupported | Failed));
        if ended.command == Command::WriteZeroes && unsupported && !self.is_broken() {
            self.no_zeroes = true;
            self.start_work(ended.ticket, ended.span, ended.work);
            return self.take(owner);
        }
        Some(self.judge(ended))
    }

    /// Through a proxy an error that may pass may be the loss of the server: then only another
    /// connection helps.
    fn judge(&mut self, mut ended: Ended) -> Ended {
        use DiskErrorKind::{Failed, Transient};
        if let Err(failure) = &mut ended.result
            && self.peer == Peer::Proxy
            && matches!(failure.kind, Failed | Transient)
        {
            failure.kind = Transient;
            if !self.is_broken() {
                let text = format!("the way to the server may be lost: {}", failure.source);
                self.fail(io::Error::new(io::ErrorKind::ConnectionAborted, text).into());
            }
        }
        ended
    }

    /// Forgets an owner: what it has in flight ends without anyone asking.
    pub fn abandon(&mut self, owner: u64) {
        self.done.retain(|ended| ended.ticket.owner != owner);
        let theirs = self.pending.values_mut().filter(|pending| pending.ticket.owner == owner);
        theirs.for_each(|pending| pending.ticket.owner = NOBODY);
    }

    /// Waits for some bytes and makes of them what they make. Breaks the connection on any fault.
    pub fn receive(&mut self) {
        let result = if self.pending.is_empty() { Ok(()) } else { self.receive_some() };
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    /// Whether the connection stands, as far as can be told without waiting.
    pub fn probe(&mut self) -> bool {
        if let Err(fault) = self.receive_now() {
            self.fail(fault);
        }
        !self.is_broken()
    }

    fn receive_some(&mut self) -> Result<(), Fault> {
        // Time in which nobody waited is not the server's fault.
        self.oldest.since += self.oldest.looked.elapsed();
        let (stream, into, fill) = self.destination();
        let length = stream.receive(into, fill)?;
        self.received(length)
    }

    fn receive_now(&mut self) -> Result<(), Fault> {
        let (stream, into, _) = self.destination();
        match stream.receive_now(into)? {
            Some(length) => self.received(length),
            None => Ok(()),
        }
    }

    /// Where the next bytes go, and whether to wait until all of it is filled: all of the data of a
    /// chunk will come, but of what follows nobody knows.
    fn destination(&mut self) -> (&mut Stream, &mut [u8], bool) {
        if let Expect::Data { cookie, range, .. } = &self.expect
            && let Some(pending) = self.pending.get_mut(cookie)
        {
            return (&mut self.stream, pending.buffer(range.clone()), true);
        }
        (&mut self.stream, self.stage.room(), false)
    }

    fn received(&mut self, length: usize) -> Result<(), Fault> {
        match &mut self.expect {
            Expect::Data { cookie, range, .. } => {
                range.start += length;
                if let Some(pending) = self.pending.get_mut(cookie) {
                    pending.received += length;
                }
            }
            _ => self.stage.filled.end += length,
        }
        while self.advance()? {}
        self.watch()
    }

    /// A server may answer all but one request for ever, which silence would never tell. Requests
    /// wait for those before them on a slow line, so what counts is the oldest: since it became that,
    /// or since some of its answer came.
    fn watch(&mut self) -> Result<(), Fault> {
        let Some((cookie, pending)) = self.pending.first_key_value() else { return Ok(()) };
        let oldest = &mut self.oldest;
        let progress = *cookie != oldest.cookie || pending.received >= oldest.received + PROGRESS_BYTES;
        if progress {
            *oldest = Oldest::new(*cookie, pending.received);
        } else if oldest.since.elapsed() > self.timeouts.request {
            let (command, span, seconds) = (pending.command, pending.span, self.timeouts.request.as_secs());
            let text = format!("a {command:?} of {span} has no answer after {seconds} s, others have");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
        }
        oldest.looked = Instant::now();
        Ok(())
    }

    /// Understands one more thing of what is at hand; `false` when more bytes are needed.
    fn advance(&mut self) -> Result<bool, Fault> {
        match &mut self.expect {
            Expect::Head => match wire::decode_reply(self.stage.get()) {
                Decoded::Partial => return Ok(false),
                Decoded::Garbage(magic) => return Err(format!("a reply starts with {magic:#010x}").into()),
                Decoded::Whole(head, bytes) => {
                    self.stage.consume(bytes);
                    self.on_head(head)?;
                }
            },
            Expect::Offset(head) => {
                let head = *head;
                let Some(offset) = wire::Fields(self.stage.get()).u64() else { return Ok(false) };
                self.stage.consume(8);
                self.on_offset(head, offset)?;
            }
            Expect::Data { cookie, range, done } => {
                let pending = self.pending.get_mut(cookie).ok_or("data of no request".to_string())?;
                let length = self.stage.filled.len().min(range.len());
                pending
                    .buffer(range.start..range.start + length)
                    .copy_from_slice(&self.stage.get()[..length]);
                self.stage.consume(length);
                pending.received += length;
                range.start += length;
                if range.start < range.end {
                    return Ok(false);
                }
                let (cookie, done) = (*cookie, *done);
                self.chunk_ends(cookie, done);
            }
            Expect::Payload(head, bytes) => {
                let length = self.stage.filled.len().min(head.length as usize - bytes.len());
                bytes.extend_from_slice(&self.stage.get()[..length]);
                self.stage.consume(length);
                if bytes.len() < head.length as usize {
                    return Ok(false);
                }
                let (head, bytes) = (*head, std::mem::take(bytes));
                self.on_payload(head, &bytes)?;
            }
        }
        Ok(true)
    }

    fn pending(&mut self, cookie: u64) -> Result<&mut Pending, Fault> {
        let unknown = || Fault::Breach(format!("a reply to request {cookie}, which is not in flight"));
        self.pending.get_mut(&cookie).ok_or_else(unknown)
    }

    fn on_head(&mut self, head: ReplyHead) -> Result<(), Fault> {
        match head {
            ReplyHead::Simple { error, cookie } => self.on_simple(error, cookie),
            ReplyHead::Chunk(head) => self.on_chunk(head),
        }
    }

    fn on_simple(&mut self, error: u32, cookie: u64) -> Result<(), Fault> {
        let style = self.export.style;
        if style == Style::Extended {
            return Err("a simple reply, though extended headers were agreed".to_string().into());
        }
        let pending = self.pending(cookie)?;
        if error != 0 {
            pending.fail(error, String::new())?;
        } else if pending.command == Command::Read {
            if style == Style::Structured {
                return Err("a simple reply to a read, though chunks were agreed".to_string().into());
            }
            let range = pending.place(pending.span.offset, pending.span.length)?;
            self.expect = Expect::Data { cookie, range, done: true };
            return Ok(());
        }
        self.chunk_ends(cookie, true);
        Ok(())
    }

    fn on_chunk(&mut self, head: ChunkHead) -> Result<(), Fault> {
        let agreed = match self.export.style {
            Style::Simple => return Err("a chunk, though chunks were not agreed".to_string().into()),
            Style::Structured => head.offset.is_none(),
            Style::Extended => head.offset.is_some(),
        };
        if !agreed {
            return Err("a chunk with a header of the other kind".to_string().into());
        }
        let pending = self.pending(head.cookie)?;
        let (offset, span) = (head.offset, pending.span);
        if offset.is_some_and(|offset| offset != span.offset) {
            return Err(format!("a chunk about another offset than {span}").into());
        }
        let extended = head.offset.is_some();
        let (length, most) = (head.length, PAYLOAD_BYTES_MAX);
        match head.kind {
            ChunkKind::None if length == 0 && head.done => self.chunk_ends(head.cookie, true),
            ChunkKind::Data if length > 8 => self.expect = Expect::Offset(head),
            ChunkKind::Hole if length == 12 => self.expect = Expect::Payload(head, Vec::new()),
            ChunkKind::Status if !extended && (4..=most).contains(&length) => {
                self.expect = Expect::Payload(head, Vec::new());
            }
            ChunkKind::ExtendedStatus if extended && (8..=most).contains(&length) => {
                self.expect = Expect::Payload(head, Vec::new());
            }
            ChunkKind::Error if (6..=ERROR_BYTES_MAX).contains(&length) => {
                self.expect = Expect::Payload(head, Vec::new());
            }
            kind => return Err(format!("a chunk {kind:?} of {length} bytes").into()),
        }
        Ok(())
    }

    fn on_offset(&mut self, head: ChunkHead, offset: u64) -> Result<(), Fault> {
        let range = self.pending(head.cookie)?.place(offset, head.length - 8)?;
        self.expect = Expect::Data { cookie: head.cookie, range, done: head.done };
        Ok(())
    }

    fn on_payload(&mut self, head: ChunkHead, payload: &[u8]) -> Result<(), Fault> {
        let contexts = self.export.contexts;
        let pending = self.pending(head.cookie)?;
        match head.kind {
            ChunkKind::Hole => {
                let (offset, length) =
                    wire::decode_hole(payload).ok_or("a hole that is cut off".to_string())?;
                let range = pending.place(offset, length.into())?;
                pending.buffer(range).fill(0);
            }
            ChunkKind::Status => pending.take_status(payload, false, contexts)?,
            ChunkKind::ExtendedStatus => pending.take_status(payload, true, contexts)?,
            _ => {
                let (error, message) =
                    wire::decode_error(payload).ok_or("an error that is cut off".to_string())?;
                // Zero would mean that nothing went wrong; it says it did.
                pending.fail(if error == 0 { 5 } else { error }, message)?;
            }
        }
        self.chunk_ends(head.cookie, head.done);
        Ok(())
    }

    fn chunk_ends(&mut self, cookie: u64, done: bool) {
        self.expect = Expect::Head;
        if let Some(pending) = done.then(|| self.pending.remove(&cookie)).flatten() {
            let result = pending.outcome();
            if pending.ticket.owner != NOBODY {
                self.done.push_back(ended(pending, result));
            }
        }
    }

    /// Breaks the connection: all in flight ends. After a breach of the protocol no answer of this
    /// server can be trusted; after a failure of the stream another connection may do.
    fn fail(&mut self, fault: Fault) {
        let (kind, why) = match fault {
            Fault::Io(error) => (DiskErrorKind::Transient, format!("the connection broke: {error}")),
            Fault::Breach(breach) => {
                (DiskErrorKind::Corrupt, format!("the server broke the protocol: {breach}"))
            }
        };
        self.lost.store(true, Ordering::SeqCst);
        let pending = std::mem::take(&mut self.pending).into_values();
        for pending in pending.filter(|pending| pending.ticket.owner != NOBODY) {
            self.done.push_back(ended(pending, Err(broken(kind, &why))));
        }
        self.broken = Some(why);
    }
}

/// Owner of requests whose lane is gone.
const NOBODY: u64 = u64::MAX;

fn ended(pending: Pending, result: Result<(), Failure>) -> Ended {
    let Pending { ticket, command, span, work, status, .. } = pending;
    Ended { ticket, command, span, work, status, result }
}

fn broken(kind: DiskErrorKind, why: &str) -> Failure {
    let io_kind = match kind {
        DiskErrorKind::Corrupt => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::ConnectionAborted,
    };
    Failure { kind, source: io::Error::new(io_kind, why.to_string()) }
}

impl Drop for Connection {
    /// Says good-bye where that needs no waiting: a server may otherwise log an error.
    fn drop(&mut self) {
        if self.broken.is_none() && self.pending.is_empty() {
            let head =
                RequestHead { flags: 0, command: Command::Disconnect, cookie: 0, offset: 0, length: 0 };
            let _ = match self.export.style {
                Style::Extended => self.stream.send_now(&head.encode_extended(), &[]),
                Style::Simple | Style::Structured => self.stream.send_now(&head.encode(), &[]),
            };
        }
    }
}

impl Stage {
    fn get(&self) -> &[u8] {
        &self.bytes[self.filled.clone()]
    }

    fn consume(&mut self, length: usize) {
        self.filled.start += length;
    }

    /// The free part, after moving what is left to the front. Never empty: what is left is less
    /// than one head.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        &mut self.bytes[self.filled.end..]
    }
}
