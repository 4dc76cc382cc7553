//! What has landed on the target and is not recorded yet, and the flushes after which it may be.

use std::time::Duration;

use super::api::{CopierConfig, FlushTicket};
use crate::journal::{Entry, RECORD_BLOCKS_MAX};
use crate::leaves::Leaf;

#[derive(Debug, Default)]
pub(super) struct Landed {
    entries: Vec<Entry>,
    /// Blocks that were on the target before this run: a flush that fails does not lose them.
    kept: Vec<Entry>,
    bytes: u64,
    flushing: Option<Flushing>,
    failures: u32,
    first_failure: Option<Duration>,
    last_flush: Duration,
    tickets: u64,
}

/// What a flush that is under way makes durable.
#[derive(Debug)]
struct Flushing {
    number: u64,
    entries: Vec<Entry>,
    kept: Vec<Entry>,
}

impl Landed {
    /// Whether nothing waits for a flush to begin.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.kept.is_empty()
    }

    pub(super) fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Whether a flush should begin; with nothing else to do there is no reason to wait.
    pub(super) fn flush_is_due(&self, config: &CopierConfig, nothing_else: bool, now: Duration) -> bool {
        !self.is_empty()
            && self.flushing.is_none()
            && (nothing_else
                || self.bytes >= config.flush_bytes
                || now.saturating_sub(self.last_flush) >= config.flush_interval)
    }

    /// When the next flush is due by time.
    pub(super) fn next_flush(&self, config: &CopierConfig) -> Option<Duration> {
        (!self.is_empty()).then(|| self.last_flush + config.flush_interval)
    }

    pub(super) fn start_flush(&mut self, now: Duration) -> FlushTicket {
        self.tickets += 1;
        self.last_flush = now;
        let (entries, kept) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.kept));
        self.flushing = Some(Flushing { number: self.tickets, entries, kept });
        self.bytes = 0;
        FlushTicket(self.tickets)
    }

    /// The entries that this flush made durable.
    pub(super) fn flushed(&mut self, ticket: FlushTicket, now: Duration) -> Vec<Entry> {
        self.last_flush = now;
        self.failures = 0;
        self.first_failure = None;
        match self.flushing.take() {
            Some(flushing) if flushing.number == ticket.0 => {
                flushing.entries.into_iter().chain(flushing.kept).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A flush failed: how often since the last good one, and for how long.
    pub(super) fn flush_failed(&mut self, now: Duration) -> (u32, Duration) {
        self.failures += 1;
        let first = *self.first_failure.get_or_insert(now);
        (self.failures, now.saturating_sub(first))
    }

    /// Gives up all that was written and is not recorded, in the order in which it landed.
    pub(super) fn take_unrecorded(&mut self) -> Vec<Entry> {
        self.bytes = 0;
        let mut entries = Vec::new();
        if let Some(flushing) = self.flushing.take() {
            entries = flushing.entries;
            self.kept.extend(flushing.kept);
        }
        entries.append(&mut self.entries);
        entries
    }

    /// Takes out what landed of the blocks from `first` to before `end` and is not recorded, also by a flush under way.
    pub(super) fn take(&mut self, first: u64, end: u64) -> Vec<Entry> {
        let mut taken = take_blocks(&mut self.entries, first, end);
        if let Some(flushing) = &mut self.flushing {
            taken.extend(take_blocks(&mut flushing.entries, first, end));
        }
        taken
    }

    /// Gives up all that is not recorded.
    pub(super) fn give_up(&mut self) {
        (self.bytes, self.flushing) = (0, None);
        self.entries.clear();
        self.kept.clear();
    }

    /// So many bytes more would have to be read again after a crash.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Zeros landed.
    pub(super) fn push_zero(&mut self, first: u64, count: u64) {
        push_zero(&mut self.entries, first, count);
    }

    /// A block landed.
    pub(super) fn push(&mut self, block: u64, leaf: Leaf) {
        push(&mut self.entries, block, leaf);
    }

    /// A block was found as it was known to be.
    pub(super) fn keep(&mut self, block: u64, leaf: Leaf) {
        push(&mut self.kept, block, leaf);
    }
}

/// Takes the blocks from `first` to before `end` out of the entries; gives them.
fn take_blocks(entries: &mut Vec<Entry>, first: u64, end: u64) -> Vec<Entry> {
    if !entries.iter().any(|entry| part(entry, first, end).is_some()) {
        return Vec::new();
    }
    let taken = entries.iter().filter_map(|entry| part(entry, first, end)).collect();
    let rest = |entry: &Entry| [part(entry, 0, first), part(entry, end, u64::MAX)];
    *entries = entries.iter().flat_map(rest).flatten().collect();
    taken
}

/// What an entry says of the blocks from `from` to before `to`.
fn part(entry: &Entry, from: u64, to: u64) -> Option<Entry> {
    let (first, blocks) = match entry {
        Entry::Data { first, leaves } => (*first, leaves.len() as u64),
        Entry::Zero { first, count } => (*first, u64::from(*count)),
        _ => unreachable!("only blocks land"),
    };
    let (start, end) = (first.max(from), (first + blocks).min(to));
    (start < end).then(|| match entry {
        Entry::Data { leaves, .. } => {
            let leaves = leaves[(start - first) as usize..(end - first) as usize].to_vec();
            Entry::Data { first: start, leaves }
        }
        _ => Entry::Zero { first: start, count: (end - start) as u32 },
    })
}

fn push(entries: &mut Vec<Entry>, block: u64, leaf: Leaf) {
    let Leaf::Data(digest) = leaf else { return push_zero(entries, block, 1) };
    match entries.last_mut() {
        Some(Entry::Data { first, leaves })
            if *first + leaves.len() as u64 == block && leaves.len() < RECORD_BLOCKS_MAX =>
        {
            leaves.push(digest);
        }
        _ => entries.push(Entry::Data { first: block, leaves: vec![digest] }),
    }
}

fn push_zero(entries: &mut Vec<Entry>, first: u64, count: u64) {
    match entries.last_mut() {
        Some(Entry::Zero { first: start, count: length })
            if *start + u64::from(*length) == first && u64::from(*length) + count <= u64::from(u32::MAX) =>
        {
            *length += count as u32;
        }
        _ => entries.push(Entry::Zero { first, count: count as u32 }),
    }
}
