//! What was asked of an agent and is not answered. Pure: answers and the time go in, messages to send come out.
//!
//! ```text
//!  add ──> queue ──> on its way ──> answered: gone
//!            ^           │ may pass: paused, then again
//!            │           │ some pieces are there (`have`): the rest
//!            └───────────┴ the connection broke: all of them, in the order they came
//! ```
//!
//! Writes that are not answered never overlap: messages arrive in any order, and what is sent again must not undo
//! what came later. Whoever wants to touch a span waits until [`Pending::overlaps`] says no.
//!
//! A flush covers the writes that were answered when it was asked for. If the agent's host or the target became
//! another meanwhile ([`Pending::reopened`]), answered writes that no flush covers may be lost: that ends the disk.
//!
//! A run that is to stop withdraws ([`Pending::withdraw`]): writes that were not sent are given up, and no flush covers
//! them; what was sent is still answered.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use drover_disk::DiskErrorKind;
use drover_types::ByteSpan;

use crate::error::Refusal;
use crate::message::{Head, Kind, all_pieces, kind_of, words_in};

/// Tries of a write that arrived damaged; from the second on it goes plain.
const CORRUPT_ATTEMPTS_MAX: u32 = 3;

/// First pause before a write is tried again that failed for now, doubled up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Write(Arc<Vec<u8>>),
    Zero,
    /// `plain` if the answer is not to be packed.
    Read {
        plain: bool,
    },
    Hash,
    Flush,
    Extents,
    Identity,
    Close,
}

impl What {
    pub(crate) fn changes(&self) -> bool {
        matches!(self, What::Write(_) | What::Zero)
    }

    fn bytes(&self) -> u64 {
        match self {
            What::Write(bytes) => bytes.len() as u64,
            _ => 0,
        }
    }
}

#[derive(Debug)]
struct Entry {
    span: ByteSpan,
    what: What,
    /// Pieces of a write that the target does not have, once it was asked.
    rest: Option<u32>,
    attempts: u32,
    first_failure: Option<Duration>,
    plain: bool,
    /// It was sent and is not answered: only then there can be an answer to it.
    is_on_its_way: bool,
    /// Of a flush: how many writes had been answered.
    covers: u64,
}

/// A message to send.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub id: u64,
    pub span: ByteSpan,
    pub what: What,
    /// The pieces to send; `None` if the target was not asked which it has.
    pub rest: Option<u32>,
    /// Whether the bytes are not to be packed.
    pub plain: bool,
}

/// An answer for whoever waits for it.
#[derive(Debug)]
pub(crate) enum Reply {
    Done(Vec<u8>),
    Data(Head, Vec<u8>),
    Map(Vec<u8>),
    Failed(Refusal),
}

/// An answer that fits nothing that was asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Senseless;

/// The table.
#[derive(Debug)]
pub(crate) struct Pending {
    entries: BTreeMap<u64, Entry>,
    /// Ends of the writes' spans, by their first bytes.
    writes: BTreeMap<u64, u64>,
    queue: VecDeque<u64>,
    paused: Vec<(Duration, u64)>,
    replies: HashMap<u64, Reply>,
    next_id: u64,
    bytes: u64,
    answered: u64,
    flushed: u64,
    generation: String,
    give_up_after: Duration,
    failed: Option<Refusal>,
    is_withdrawn: bool,
    /// Writes that were given up since.
    withdrawn: Vec<ByteSpan>,
}

impl Pending {
    pub(crate) fn new(generation: &str, give_up_after: Duration) -> Pending {
        Pending {
            entries: BTreeMap::new(),
            writes: BTreeMap::new(),
            queue: VecDeque::new(),
            paused: Vec::new(),
            replies: HashMap::new(),
            next_id: 1,
            bytes: 0,
            answered: 0,
            flushed: 0,
            generation: generation.to_string(),
            give_up_after,
            failed: None,
            is_withdrawn: false,
            withdrawn: Vec::new(),
        }
    }

    /// Bytes of writes that are not answered.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Why the disk is of no use any more.
    pub(crate) fn failed(&self) -> Option<&Refusal> {
        self.failed.as_ref()
    }

    /// Whether the run is to stop: no write is taken any more.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// The writes that were taken and given up.
    pub(crate) fn withdrawn(&self) -> &[ByteSpan] {
        &self.withdrawn
    }

    /// The run is to stop: writes that are not on their way are given up, and those that would have to be sent again.
    pub(crate) fn withdraw(&mut self) {
        self.is_withdrawn = true;
        self.give_up_where(|entry| !entry.is_on_its_way);
    }

    /// This message was not sent after all, since it is not wanted any more.
    pub(crate) fn unsent(&mut self, id: u64) {
        self.give_up(id);
    }

    fn give_up_where(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        let writes = self.entries.iter().filter(|(_, entry)| entry.what.changes() && is_meant(entry));
        let ids: Vec<u64> = writes.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.give_up(id));
    }

    fn give_up(&mut self, id: u64) {
        if let Some(span) = self.take_write(id) {
            self.withdrawn.push(span);
        }
    }

    /// A write is over, one way or the other: its span.
    fn take_write(&mut self, id: u64) -> Option<ByteSpan> {
        let entry = self.entries.remove(&id)?;
        self.writes.remove(&entry.span.offset);
        self.bytes -= entry.what.bytes();
        Some(entry.span)
    }

    /// Whether a write that is not answered touches the span.
    pub(crate) fn overlaps(&self, span: ByteSpan) -> bool {
        self.writes.range(..span.end()).next_back().is_some_and(|(_, end)| *end > span.offset)
    }

    /// Whether writes that came before that id are not answered.
    pub(crate) fn has_writes_before(&self, id: u64) -> bool {
        self.entries.range(..id).any(|(_, entry)| entry.what.changes())
    }

    /// The id of what comes next.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Takes in something to be asked.
    pub(crate) fn add(&mut self, what: What, span: ByteSpan) -> u64 {
        assert!(self.failed.is_none(), "asked of a disk that failed");
        assert!(!(self.is_withdrawn && what.changes()), "a write after the run was to stop");
        let id = self.next_id;
        self.next_id += 1;
        if what.changes() {
            assert!(!self.overlaps(span), "two writes of {span} at once");
            self.writes.insert(span.offset, span.end());
        }
        self.bytes += what.bytes();
        let entry = Entry {
            span,
            what,
            rest: None,
            attempts: 0,
            first_failure: None,
            plain: false,
            is_on_its_way: false,
            covers: self.answered,
        };
        self.entries.insert(id, entry);
        self.queue.push_back(id);
        id
    }

    /// The next message to send.
    pub(crate) fn next(&mut self, now: Duration) -> Option<Job> {
        let due = self.paused.iter().position(|(until, _)| *until <= now);
        if let Some(due) = due {
            let (_, id) = self.paused.swap_remove(due);
            self.queue.push_back(id);
        }
        loop {
            let id = self.queue.pop_front()?;
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.is_on_its_way = true;
                let Entry { span, what, rest, plain, .. } = entry;
                return Some(Job { id, span: *span, what: what.clone(), rest: *rest, plain: *plain });
            }
        }
    }

    /// When the next one is due that is paused.
    pub(crate) fn next_wake(&self) -> Option<Duration> {
        self.paused.iter().map(|(until, _)| *until).min()
    }

    /// The reply to a request, for the one who waits for it.
    pub(crate) fn take_reply(&mut self, id: u64) -> Option<Reply> {
        self.replies.remove(&id)
    }

    /// Nobody waits for this request any more.
    pub(crate) fn abandon(&mut self, id: u64) {
        self.replies.remove(&id);
        let is_write = self.entries.get(&id).is_some_and(|entry| entry.what.changes());
        if !is_write {
            self.entries.remove(&id);
        }
    }

    /// An answer arrived. One to a request that nobody waits for any more is passed over.
    pub(crate) fn answer(&mut self, head: Head, body: Vec<u8>, now: Duration) -> Result<(), Senseless> {
        let Some(entry) = self.entries.get_mut(&head.id) else {
            return if head.id < self.next_id { Ok(()) } else { Err(Senseless) };
        };
        let is_asked = std::mem::take(&mut entry.is_on_its_way);
        if !is_asked || (head.kind != Kind::Done && head.span != entry.span) {
            return Err(Senseless);
        }
        let changes = entry.what.changes();
        match (&entry.what, head.kind) {
            (_, Kind::Done) => {
                let failure = kind_of(head.detail).map_err(|_| Senseless)?;
                let refusal = failure.map(|kind| Refusal::new(kind, words_in(&body)));
                match (refusal, changes) {
                    (None, true) => self.written(head.id),
                    (Some(refusal), true) => self.write_failed(head.id, refusal, now),
                    (None, false) => self.reply(head.id, Reply::Done(body)),
                    (Some(refusal), false) => self.reply(head.id, Reply::Failed(refusal)),
                }
            }
            (What::Write(_), Kind::Have) => {
                let rest = entry.rest.unwrap_or(all_pieces(entry.span)) & !head.mask;
                entry.rest = Some(rest);
                match rest {
                    0 => self.written(head.id),
                    _ if self.is_withdrawn => self.give_up(head.id),
                    _ => self.queue.push_back(head.id),
                }
            }
            (What::Read { .. }, Kind::Data) | (What::Hash, Kind::Hashes) => {
                self.reply(head.id, Reply::Data(head, body));
            }
            (What::Extents, Kind::Map) => self.reply(head.id, Reply::Map(body)),
            _ => return Err(Senseless),
        }
        Ok(())
    }

    fn reply(&mut self, id: u64, reply: Reply) {
        let entry = self.entries.remove(&id);
        if let (Some(Entry { what: What::Flush, covers, .. }), Reply::Done(_)) = (&entry, &reply) {
            self.flushed = self.flushed.max(*covers);
        }
        self.replies.insert(id, reply);
    }

    fn written(&mut self, id: u64) {
        self.answered += u64::from(self.take_write(id).is_some());
    }

    /// A write that failed is tried again as long as that may help; the disk ends with one that will not pass.
    fn write_failed(&mut self, id: u64, refusal: Refusal, now: Duration) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.attempts += 1;
        entry.rest = None;
        let since = now.saturating_sub(*entry.first_failure.get_or_insert(now));
        let again = match refusal.kind {
            DiskErrorKind::Transient => since < self.give_up_after,
            DiskErrorKind::Corrupt => entry.attempts < CORRUPT_ATTEMPTS_MAX,
            _ => false,
        };
        if !again {
            self.fail(refusal);
            return;
        }
        if self.is_withdrawn {
            return self.give_up(id);
        }
        entry.plain = refusal.kind == DiskErrorKind::Corrupt;
        let pause = PAUSE_MIN.saturating_mul(1 << entry.attempts.min(20)).min(PAUSE_MAX);
        self.paused.push((now + pause, id));
    }

    /// The connection broke: nothing is on its way any more.
    pub(crate) fn disconnected(&mut self) {
        self.queue.clear();
        self.paused.clear();
    }

    /// The disk was opened anew: everything is sent again.
    ///
    /// # Errors
    /// When answered writes may be lost. The disk has failed then.
    pub(crate) fn reopened(&mut self, generation: &str) -> Result<(), Refusal> {
        if generation != self.generation && self.answered > self.flushed {
            let why = "the other host was restarted, or the target replaced: writes that were not flushed may be \
                       lost; run the copy again, it goes on from what is safe";
            let refusal = Refusal::new(DiskErrorKind::Failed, why);
            self.fail(refusal.clone());
            return Err(refusal);
        }
        self.generation = generation.to_string();
        if self.is_withdrawn {
            // Whatever became of them: sent again they would take as long as before.
            self.give_up_where(|_| true);
        }
        self.entries.values_mut().for_each(|entry| (entry.rest, entry.is_on_its_way) = (None, false));
        self.paused.clear();
        self.queue = self.entries.keys().copied().collect();
        Ok(())
    }

    /// Each request is at one place at most: waiting, paused, or on its way.
    ///
    /// # Panics
    /// If it is not so.
    pub(crate) fn check(&self) {
        let waiting = self.queue.iter().chain(self.paused.iter().map(|(_, id)| id));
        let mut waiting: Vec<u64> = waiting.copied().filter(|id| self.entries.contains_key(id)).collect();
        assert!(waiting.iter().all(|id| !self.entries[id].is_on_its_way), "sent, and to be sent");
        let count = waiting.len();
        waiting.sort_unstable();
        waiting.dedup();
        assert_eq!(waiting.len(), count, "a request waits twice");
        let bytes: u64 = self.entries.values().map(|entry| entry.what.bytes()).sum();
        assert_eq!(bytes, self.bytes, "bytes of what is not answered");
    }

    /// Ends the disk for good. No write that was not flushed is ever called safe after this.
    pub(crate) fn fail(&mut self, refusal: Refusal) {
        self.failed.get_or_insert(refusal);
        self.disconnected();
        self.entries.clear();
        self.writes.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
