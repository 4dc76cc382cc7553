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

mod pace;
mod payload;
mod receive;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_disk::{DiskErrorKind, Work};
use drover_stream::{Stage, Stream};
use drover_types::ByteSpan;

use crate::handshake::{Export, Style};
use crate::reply::{Breach, Failure, Pending, Status, Ticket};
use crate::wire::{COMMAND_FUA, COMMAND_PAYLOAD, Command, RequestHead, flag};

use pace::{Oldest, Sending};
use payload::Payload;
use receive::Expect;

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
            stage: Stage::default(),
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
        self.oldest.skip_idle();
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
        let (mut sent, mut sending) = (0, Sending::start());
        while sent < head.len() + payload.len() || self.stream.has_unsent() {
            let data = payload.from(sent.saturating_sub(head.len()));
            let length = self.stream.send_now(&head[sent.min(head.len())..], data)?;
            sent += length;
            sending.watch(sent, self.timeouts.request)?;
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
        self.oldest.skip_idle();
        let result = if self.pending.is_empty() { Ok(()) } else { self.receive_some() };
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    /// Whether the connection stands, as far as can be told without waiting.
    pub fn probe(&mut self) -> bool {
        self.oldest.skip_idle();
        if let Err(fault) = self.receive_now() {
            self.fail(fault);
        }
        !self.is_broken()
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
