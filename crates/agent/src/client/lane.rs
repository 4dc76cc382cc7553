use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use drover_disk::{Completion, DiskError, DiskErrorKind, Lane, Request, Work, check_request};
use drover_pack::{Codec, unpack};
use drover_types::ByteSpan;

use super::disk::Inner;
use super::pending::{Reply, What};
use crate::error::Refusal;
use crate::message::{DATA_BYTES_MAX, Head, hash_of};

/// Tries of a read whose answer is not what its hashes say; after one that was packed it is to come plain from then on.
const READ_ATTEMPTS_MAX: u32 = 3;

/// A worker's way to a disk of another site.
pub(super) struct AgentLane {
    inner: Arc<Inner>,
    /// Done one after the other in `complete`: a write ends once it is copied.
    queue: VecDeque<Request>,
    /// Reads on their way.
    reads: Vec<Reading>,
}

struct Reading {
    id: u64,
    attempts: u32,
    /// Whether an answer came packed, so that further ones are to be plain.
    plain: bool,
    request: Request,
}

impl AgentLane {
    pub(super) fn new(inner: Arc<Inner>) -> AgentLane {
        AgentLane { inner, queue: VecDeque::new(), reads: Vec::new() }
    }

    fn check(&self, span: ByteSpan, work: &Work) -> Result<(), DiskError> {
        let opened = &self.inner.opened;
        check_request(span, work, opened.size, self.inner.writable, &self.inner.name)?;
        let min = opened.bytes_min;
        let ends_well = span.end().is_multiple_of(min) || span.end() == opened.size;
        if span.offset.is_multiple_of(min) && ends_well && span.length <= DATA_BYTES_MAX {
            return Ok(());
        }
        let text = format!("the agent takes multiples of {min} bytes, up to {DATA_BYTES_MAX}");
        let source = io::Error::new(io::ErrorKind::InvalidInput, text);
        Err(DiskError::new(work.op(), span, &self.inner.name, source))
    }

    /// Asks for bytes, if no write that is not answered touches them; gives the request back if one does.
    fn start_read(&mut self, request: Request) -> Option<Request> {
        let mut state = self.inner.lock();
        let pending = &state.pending;
        if pending.failed().is_some() || pending.is_withdrawn() || pending.overlaps(request.span) {
            return Some(request);
        }
        let id = state.pending.add(What::Read { plain: false }, request.span);
        drop(state);
        self.inner.notify();
        self.reads.push(Reading { id, attempts: 1, plain: false, request });
        None
    }

    /// Does the next request of the queue; `None` if it was a read that is on its way now.
    fn next_of_queue(&mut self, request: Request) -> Option<Completion> {
        let Request { id, span, work } = request;
        let taken = match (self.check(span, &work), &work) {
            (Err(error), _) => Err(error),
            (Ok(()), Work::Write(slice)) => {
                // Copied before there is room: the memory of one request for each lane.
                let bytes = slice.to_vec();
                self.put(What::Write(Arc::new(bytes)), span)
                    .map_err(|refusal| self.error(refusal, span, &work))
            }
            (Ok(()), Work::Zero) => {
                self.put(What::Zero, span).map_err(|refusal| self.error(refusal, span, &work))
            }
            (Ok(()), Work::Read(_)) => match self.inner.wait_for_room(span, 0).map(drop) {
                Ok(()) => {
                    // A write of another lane may have come between: then it is of no order, and tried again.
                    if let Some(request) = self.start_read(Request { id, span, work }) {
                        self.queue.push_front(request);
                    }
                    return None;
                }
                Err(refusal) => Err(self.error(refusal, span, &work)),
            },
        };
        Some(Completion { id, span, work, result: taken })
    }

    fn put(&self, what: What, span: ByteSpan) -> Result<(), Refusal> {
        let bytes = if let What::Write(bytes) = &what { bytes.len() as u64 } else { 0 };
        let mut state = self.inner.wait_for_room(span, bytes)?;
        state.pending.add(what, span);
        drop(state);
        self.inner.counters.taken(bytes);
        self.inner.notify();
        Ok(())
    }

    fn error(&self, refusal: Refusal, span: ByteSpan, work: &Work) -> DiskError {
        refusal.on(work.op(), span, &self.inner.name)
    }

    /// Waits for one of the reads.
    fn wait_for_read(&mut self) -> Completion {
        let (index, outcome) = self.first_read();
        let mut reading = self.reads.swap_remove(index);
        // Of an agent that packs, and so knows what it means: one of before would send this back as the codec.
        reading.plain |= matches!(&outcome, Ok(Reply::Data(head, _)) if head.detail != Codec::Plain.number());
        let outcome = outcome.and_then(|reply| fill(reply, &mut reading.request));
        match outcome {
            Err(refusal)
                if refusal.kind == DiskErrorKind::Corrupt && reading.attempts < READ_ATTEMPTS_MAX =>
            {
                self.read_again(reading, refusal)
            }
            outcome => self.ended(reading.request, outcome),
        }
    }

    fn read_again(&mut self, reading: Reading, refusal: Refusal) -> Completion {
        let mut state = self.inner.lock();
        if state.pending.failed().is_some() {
            drop(state);
            return self.ended(reading.request, Err(refusal));
        }
        let id = state.pending.add(What::Read { plain: reading.plain }, reading.request.span);
        drop(state);
        self.inner.notify();
        self.reads.push(Reading { id, attempts: reading.attempts + 1, ..reading });
        self.wait_for_read()
    }

    fn ended(&self, request: Request, outcome: Result<(), Refusal>) -> Completion {
        let Request { id, span, work } = request;
        let result = outcome.map_err(|refusal| self.error(refusal, span, &work));
        Completion { id, span, work, result }
    }

    fn first_read(&self) -> (usize, Result<Reply, Refusal>) {
        let mut state = self.inner.lock();
        loop {
            for (index, reading) in self.reads.iter().enumerate() {
                if let Some(reply) = state.pending.take_reply(reading.id) {
                    return (index, Ok(reply));
                }
            }
            if let Some(refusal) = state.pending.failed() {
                return (0, Err(refusal.clone()));
            }
            if state.pending.is_withdrawn() {
                state.pending.abandon(self.reads[0].id);
                return (0, Err(withdrawn()));
            }
            state = self.inner.wait(state, None);
        }
    }
}

/// What comes of a request after the run was asked to stop.
pub(super) fn withdrawn() -> Refusal {
    Refusal::new(DiskErrorKind::Gone, "the run was asked to stop before this was sent or had come")
}

/// Fills the buffer of a read with what came for it, checked.
fn fill(reply: Reply, request: &mut Request) -> Result<(), Refusal> {
    let corrupt = |why: String| Refusal::new(DiskErrorKind::Corrupt, why);
    let (head, body) = match reply {
        Reply::Data(head, body) => (head, body),
        Reply::Failed(refusal) => return Err(refusal),
        Reply::Done(_) | Reply::Map(_) => return Err(corrupt("no data in the answer".to_string())),
    };
    let Work::Read(buffer) = &mut request.work else { unreachable!("only reads wait for data") };
    unpack(head.detail, &body, buffer).map_err(|error| corrupt(error.to_string()))?;
    check_hashes(&head, buffer)
}

fn check_hashes(head: &Head, bytes: &[u8]) -> Result<(), Refusal> {
    for (piece, hash) in crate::message::pieces(head.span).zip(&head.hashes) {
        let start = (piece.offset - head.span.offset) as usize;
        if hash_of(&bytes[start..start + piece.length as usize]) != *hash {
            let why = format!("{piece} arrived as something else than it left");
            return Err(Refusal::new(DiskErrorKind::Corrupt, why));
        }
    }
    Ok(())
}

impl Lane for AgentLane {
    fn submit(&mut self, request: Request) {
        let is_good = self.check(request.span, &request.work).is_ok();
        let queued = match &request.work {
            Work::Read(_) if is_good && self.queue.is_empty() => self.start_read(request),
            _ => Some(request),
        };
        self.queue.extend(queued);
    }

    fn complete(&mut self) -> Option<Completion> {
        loop {
            match self.queue.pop_front() {
                Some(request) => {
                    if let Some(completion) = self.next_of_queue(request) {
                        return Some(completion);
                    }
                }
                None if self.reads.is_empty() => return None,
                None => return Some(self.wait_for_read()),
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.reads.len()
    }
}

impl Drop for AgentLane {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        self.reads.iter().for_each(|reading| state.pending.abandon(reading.id));
    }
}
