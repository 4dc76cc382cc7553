//! One AIO session with an open disk, and requests in flight on it.
//!
//! ```text
//! start(request) ── head, payload, data ──> stream         pending: operation -> request
//!                                                               │
//! receive() <── stage: heads, payloads, packed data ── stream ──> not packed: straight into the read's buffer
//!      └──> done ──> take(owner)
//! ```
//!
//! Sending never just waits: while the stream has no room, replies are received. Otherwise host and we would wait for
//! each other for ever, with the buffers between us full of data of both ways.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_disk::{DiskErrorKind, Work};
use drover_stream::{Socket, Stage, Stream};
use drover_types::ByteSpan;

use crate::classic;
use crate::codec::Codec;
use crate::error::{NfcError, NfcErrorKind};
use crate::frame::{self, Head, Io, kind};
use crate::pending::{Ended, Failure, Owner, Pending, Reply};
use crate::receive::{Expect, Gathered};
use crate::trace::Trace;

/// Owner of what the disk itself asks.
pub const CONTROL: u64 = 0;

/// Owner of requests whose lane is gone.
const NOBODY: u64 = u64::MAX;

/// Operations that ended by an error, to which hosts send an ordinary reply as well. Most of a session has none.
const GHOSTS_MAX: usize = 64;

/// How long the end of a session may take: a host frees the memory of one that ends at once.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A session.
pub struct Connection {
    pub(crate) stream: Stream,
    pub(crate) buffer_bytes: u32,
    timeout: Duration,
    pub(crate) trace: Option<Arc<Trace>>,
    has_session: bool,
    handle: Option<u64>,
    pub(crate) pending: BTreeMap<u32, Pending>,
    done: VecDeque<Ended>,
    next_op: u32,
    /// Operations whose ordinary reply may still follow their error.
    pub(crate) ghosts: VecDeque<u32>,
    pub(crate) stage: Stage,
    pub(crate) gathered: Gathered,
    pub(crate) expect: Expect,
    /// When the host was heard last, or was asked after all else was answered.
    pub(crate) heard: Instant,
    broken: Option<(DiskErrorKind, String)>,
    /// Whether it broke because the host's memory is used up.
    pub is_out_of_memory: bool,
}

/// Why a session ends.
pub enum Fault {
    Io(io::Error),
    Breach(String),
    Host(NfcError),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

impl From<String> for Fault {
    fn from(breach: String) -> Self {
        Fault::Breach(breach)
    }
}

impl Connection {
    pub fn new(
        stream: Stream,
        buffer_bytes: u32,
        timeout: Duration,
        trace: Option<Arc<Trace>>,
    ) -> Connection {
        Connection {
            stream,
            buffer_bytes,
            timeout,
            trace,
            has_session: false,
            handle: None,
            pending: BTreeMap::new(),
            done: VecDeque::new(),
            next_op: 0,
            ghosts: VecDeque::new(),
            stage: Stage::default(),
            gathered: Gathered::default(),
            expect: Expect::Head,
            heard: Instant::now(),
            broken: None,
            is_out_of_memory: false,
        }
    }

    /// The session is open: from now on the host has memory for it.
    pub fn session_opened(&mut self) {
        self.has_session = true;
    }

    /// The file is open.
    pub fn opened(&mut self, handle: u64) {
        self.handle = Some(handle);
    }

    pub fn handle(&self) -> u64 {
        self.handle.unwrap_or(0)
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Asks and waits for the answer.
    pub fn call(&mut self, op: &str, kind: u32, payload: &[u8], extra: &[u8]) -> Result<Reply, NfcError> {
        self.start_control(kind, payload, extra, 0);
        loop {
            if let Some(ended) = self.take(CONTROL) {
                return ended.result.map_err(|failure| control_error(op, failure));
            }
            self.receive();
        }
    }

    /// Sends a question of the disk itself. `chunks` is what a question for allocated blocks asks about.
    pub fn start_control(&mut self, kind: u32, payload: &[u8], extra: &[u8], chunks: u64) {
        let owner = Owner { owner: CONTROL, id: 0 };
        let span = ByteSpan::new(0, 0);
        let mut pending = Pending::new(owner, kind, span, Work::Zero, Codec::None);
        pending.chunks = chunks;
        if let Some(op) = self.insert(pending)
            && let Err(fault) = self.send_frame(kind, op, payload, extra)
        {
            self.fail(fault);
        }
    }

    /// Sends a read or write.
    pub fn start_work(&mut self, owner: Owner, span: ByteSpan, work: Work, codec: Codec) {
        let data = match &work {
            Work::Read(_) => None,
            Work::Write(slice) => Some(Some(slice.clone())),
            Work::Zero => Some(None),
        };
        let Some(op) = self.insert(Pending::new(owner, kind::IO, span, work, codec)) else {
            return;
        };
        let sent = match data {
            None => {
                let io = Io::read(self.handle(), span.offset, span.length as u32, codec.number());
                self.send_frame(kind::IO, op, &io.encode(), &[])
            }
            Some(data) => self.send_write(op, span, data.as_deref()),
        };
        if let Err(fault) = sent {
            self.fail(fault);
        }
    }

    /// All fragments of a write; the host answers once, after the last.
    fn send_write(&mut self, op: u32, span: ByteSpan, data: Option<&[u8]>) -> Result<(), Fault> {
        let step = match data {
            Some(_) => self.buffer_bytes as usize,
            None => ZEROS.len().min(self.buffer_bytes as usize),
        };
        let (total, mut at) = (span.length as usize, 0);
        while at < total {
            let length = step.min(total - at);
            let io = Io {
                handle: self.handle(),
                is_read: false,
                codec: 0,
                offset: span.offset,
                total: total as u32,
                at: at as u32,
                plain: length as u32,
                extra: length as u32,
            };
            let bytes = match data {
                Some(data) => &data[at..at + length],
                None => &ZEROS[..length],
            };
            self.send_frame(kind::IO, op, &io.encode(), bytes)?;
            at += length;
        }
        Ok(())
    }

    fn insert(&mut self, pending: Pending) -> Option<u32> {
        if let Some((kind, why)) = &self.broken {
            let failure = failure(*kind, why);
            self.done.push_back(pending.end(Err(failure)));
            return None;
        }
        if self.pending.is_empty() {
            self.heard = Instant::now();
        }
        let op = self.next_op;
        // It comes around once in 4 billion requests; what is in flight then is long gone.
        self.next_op = self.next_op.wrapping_add(1);
        self.pending.insert(op, pending);
        Some(op)
    }

    fn send_frame(&mut self, kind: u32, op: u32, payload: &[u8], extra: &[u8]) -> Result<(), Fault> {
        let head = Head { kind, payload: payload.len() as u32, op };
        if let Some(trace) = &self.trace {
            trace.frame(false, &head, payload);
        }
        let mut front = Vec::with_capacity(frame::HEAD_BYTES + payload.len());
        front.extend(head.encode());
        front.extend(payload);
        let until = Instant::now() + self.timeout;
        let mut sent = 0;
        while sent < front.len() + extra.len() || self.stream.has_unsent() {
            let data = &extra[sent.saturating_sub(front.len()).min(extra.len())..];
            let length = self.stream.send_now(&front[sent.min(front.len())..], data)?;
            sent += length;
            let waits = length == 0 && (sent < front.len() + extra.len() || self.stream.has_unsent());
            if waits {
                if Instant::now() > until {
                    return Err(drover_stream::timed_out().into());
                }
                if self.stream.wait(self.timeout)? {
                    self.receive_now()?;
                }
            }
        }
        Ok(())
    }

    /// A request of `owner` that ended, if there is one.
    pub fn take(&mut self, owner: u64) -> Option<Ended> {
        let index = self.done.iter().position(|ended| ended.owner.owner == owner)?;
        self.done.remove(index)
    }

    /// Forgets an owner: what it has in flight ends without anyone asking.
    pub fn abandon(&mut self, owner: u64) {
        self.done.retain(|ended| ended.owner.owner != owner);
        let theirs = self.pending.values_mut().filter(|pending| pending.owner.owner == owner);
        theirs.for_each(|pending| pending.owner.owner = NOBODY);
    }

    /// How many requests ended that nobody has taken.
    pub fn ended(&self) -> usize {
        self.done.len()
    }

    /// Whose those are after the first `known`.
    pub fn owners_of_ended(&self, known: usize) -> impl Iterator<Item = u64> {
        self.done.iter().skip(known).map(|ended| ended.owner.owner)
    }

    /// Whether somebody else than `owner` waits for something.
    pub fn others_wait(&self, owner: u64) -> bool {
        self.pending.values().any(|pending| pending.owner.owner != owner)
    }

    /// Waits for some bytes and makes of them what they make. Breaks the session on any fault.
    pub fn receive(&mut self) {
        if !self.pending.is_empty()
            && let Err(fault) = self.receive_some()
        {
            self.fail(fault);
        }
    }

    /// Takes in what is there; whether there was anything. Breaks the session on any fault, and when the host is silent
    /// for too long.
    pub fn receive_ready(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        match self.receive_now() {
            Ok(false) if self.heard.elapsed() > self.timeout => self.fail(drover_stream::timed_out().into()),
            Ok(received) => return received,
            Err(fault) => self.fail(fault),
        }
        true
    }

    /// Its socket, to be waited at while others use it.
    pub fn watch(&self) -> io::Result<Socket> {
        self.stream.watch()
    }

    /// Whether the session stands, as far as can be told without waiting.
    pub fn probe(&mut self) -> bool {
        if self.broken.is_none()
            && let Err(fault) = self.receive_now()
        {
            self.fail(fault);
        }
        !self.is_broken()
    }

    pub(crate) fn end(&mut self, op: u32, result: Result<Reply, Failure>) {
        if let Some(pending) = self.pending.remove(&op)
            && pending.owner.owner != NOBODY
        {
            self.done.push_back(pending.end(result));
        }
    }

    /// An error that the host sends in the place of an answer. One to a read or write ends the session, as the data
    /// that may still come for it cannot be told from that of others.
    pub(crate) fn on_error(&mut self, op: u32, code: u64, text: &str) -> Result<(), Fault> {
        let Some(pending) = self.pending.get(&op) else {
            return Err(format!("an error about operation {op}, which is not in flight").into());
        };
        let error = NfcError::of_host("host", code, text);
        if pending.kind == kind::IO {
            return Err(Fault::Host(error));
        }
        self.ghosts.push_back(op);
        if self.ghosts.len() > GHOSTS_MAX {
            self.ghosts.pop_front();
        }
        let kind = error.disk_kind();
        self.end(op, Err(Failure { kind, source: io::Error::other(error) }));
        Ok(())
    }

    /// Breaks the session: all in flight ends. After a breach of the protocol no answer of this host can be trusted;
    /// after a failure of the stream another connection may do.
    fn fail(&mut self, fault: Fault) {
        let (kind, why) = match fault {
            Fault::Io(error) => (
                DiskErrorKind::Transient,
                NfcError::io("the connection to the host broke", &error).to_string(),
            ),
            Fault::Breach(breach) => {
                (DiskErrorKind::Corrupt, format!("the host broke the protocol: {breach}"))
            }
            Fault::Host(error) => {
                self.is_out_of_memory |= error.kind == NfcErrorKind::Memory;
                (error.disk_kind(), error.why)
            }
        };
        for pending in std::mem::take(&mut self.pending).into_values() {
            if pending.owner.owner != NOBODY {
                self.done.push_back(pending.end(Err(failure(kind, &why))));
            }
        }
        self.broken = Some((kind, why));
    }

    /// Ends the session in order, so that the host frees its memory and lock now and not in half an hour.
    pub fn close(&mut self) {
        if !self.has_session
            || self.is_broken()
            || !self.pending.is_empty()
            || self.stream.set_timeout(CLOSE_LIMIT).is_err()
        {
            return;
        }
        self.timeout = CLOSE_LIMIT;
        if let Some(handle) = self.handle {
            // A host that does not answer ends it by itself.
            let _ = self.call("closing", kind::CLOSE_FILE, &frame::close_file(handle), &[]);
        }
        let _ = self.call("closing", kind::CLOSE_SESSION, &[0; 4], &[]);
        if !self.is_broken() {
            let _ = self.stream.send_all(&classic::session_complete()[..], CLOSE_LIMIT);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

fn failure(kind: DiskErrorKind, why: &str) -> Failure {
    Failure { kind, source: io::Error::other(why.to_string()) }
}

/// The failure of a question in our own words.
pub fn control_error(op: &str, failure: Failure) -> NfcError {
    match failure.source.downcast::<NfcError>() {
        Ok(error) => NfcError { op: op.to_string(), ..error },
        Err(source) => {
            let kind = match failure.kind {
                DiskErrorKind::Corrupt => NfcErrorKind::Protocol,
                _ => NfcErrorKind::Connection,
            };
            NfcError::new(kind, op, source.to_string())
        }
    }
}
