//! What has landed on the target and is not recorded yet, and the flushes after which it may be.

use std::time::Duration;

use drover_types::Digest;

use super::api::{CopierConfig, FlushTicket};
use crate::journal::{Entry, RECORD_BLOCKS_MAX};

#[derive(Debug, Default)]
pub(super) struct Landed {
    entries: Vec<Entry>,
    bytes: u64,
    flushing: Option<(u64, Vec<Entry>)>,
    failures: u32,
    first_failure: Option<Duration>,
    last_flush: Duration,
    tickets: u64,
}

impl Landed {
    /// Whether nothing waits for a flush to begin.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Whether a flush should begin; with nothing else to do there is no reason to wait.
    pub(super) fn flush_is_due(&self, config: &CopierConfig, nothing_else: bool, now: Duration) -> bool {
        !self.entries.is_empty()
            && self.flushing.is_none()
            && (nothing_else
                || self.bytes >= config.flush_bytes
                || now.saturating_sub(self.last_flush) >= config.flush_interval)
    }

    /// When the next flush is due by time.
    pub(super) fn next_flush(&self, config: &CopierConfig) -> Option<Duration> {
        (!self.entries.is_empty()).then(|| self.last_flush + config.flush_interval)
    }

    pub(super) fn start_flush(&mut self, now: Duration) -> FlushTicket {
        self.tickets += 1;
        self.last_flush = now;
        self.flushing = Some((self.tickets, std::mem::take(&mut self.entries)));
        self.bytes = 0;
        FlushTicket(self.tickets)
    }

    /// The entries that this flush made durable.
    pub(super) fn flushed(&mut self, ticket: FlushTicket, now: Duration) -> Vec<Entry> {
        self.last_flush = now;
        self.failures = 0;
        self.first_failure = None;
        match self.flushing.take() {
            Some((number, entries)) if number == ticket.0 => entries,
            _ => Vec::new(),
        }
    }

    /// A flush failed: how often since the last good one, and for how long.
    pub(super) fn flush_failed(&mut self, now: Duration) -> (u32, Duration) {
        self.failures += 1;
        let first = *self.first_failure.get_or_insert(now);
        (self.failures, now.saturating_sub(first))
    }

    /// Gives up all that is not recorded, in the order in which it landed.
    pub(super) fn take_unrecorded(&mut self) -> Vec<Entry> {
        self.bytes = 0;
        let mut entries = self.flushing.take().map(|(_, entries)| entries).unwrap_or_default();
        entries.append(&mut self.entries);
        entries
    }

    /// So many bytes more would have to be read again after a crash.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    pub(super) fn push_zero(&mut self, first: u64, count: u64) {
        match self.entries.last_mut() {
            Some(Entry::Zero { first: start, count: length })
                if *start + u64::from(*length) == first
                    && u64::from(*length) + count <= u64::from(u32::MAX) =>
            {
                *length += count as u32;
            }
            _ => self.entries.push(Entry::Zero { first, count: count as u32 }),
        }
    }

    pub(super) fn push_data(&mut self, block: u64, digest: Digest) {
        match self.entries.last_mut() {
            Some(Entry::Data { first, leaves })
                if *first + leaves.len() as u64 == block && leaves.len() < RECORD_BLOCKS_MAX =>
            {
                leaves.push(digest);
            }
            _ => self.entries.push(Entry::Data { first: block, leaves: vec![digest] }),
        }
    }
}
