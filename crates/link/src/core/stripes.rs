//! The connections of a session, as the core sees them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use drover_wire::{Header, Kind};

use super::Moment;

/// Names a connection within its session.
pub type StripeId = u32;

/// How often each side asks the other whether it is there, on each connection.
pub const PING_EVERY: Duration = Duration::from_secs(1);

/// A connection on which nothing was heard for so long gets no more frames; what it carries goes to
/// others too.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(2500);

/// A suspect that others replace ends after so long.
pub const REPLACE_AFTER: Duration = Duration::from_secs(5);

/// A connection on which nothing was heard for so long ends.
pub const DEAD_AFTER: Duration = Duration::from_secs(15);

/// A connection that is given up in good order ends after so long, whatever it still carries.
pub const RETIRE_WITHIN: Duration = Duration::from_secs(10);

/// Of so many connections one is given up at a time.
pub const RETIRE_SHARE: usize = 8;

/// Pings of the peer that wait to be answered, at most; older ones are forgotten.
const PONGS_MAX: usize = 4;

/// Set in a ping's number when frames wait for a connection on the side that asks. The rest of the number
/// is the time at which it asked.
pub const BACKLOG_BIT: u64 = 1 << 63;

/// A connection.
#[derive(Debug)]
pub struct Stripe {
    /// When something was last heard.
    pub heard: Moment,
    pub is_suspect: bool,
    /// Its writer waits for work.
    pub is_idle: bool,
    /// Round-trip time, smoothed, as pings tell it.
    pub rtt: Option<Duration>,
    pub ping_due: Moment,
    pongs: VecDeque<u64>,
    /// Frames it carries that are not acknowledged.
    pub flying: usize,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub retiring: Option<Retiring>,
    pub said_bye: bool,
}

/// A connection that is being given up in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retiring {
    pub since: Moment,
    /// The frame that says so was sent.
    pub is_told: bool,
    /// The peer said so too.
    pub is_heard: bool,
}

impl Stripe {
    fn new(now: Moment) -> Stripe {
        Stripe {
            heard: now,
            is_suspect: false,
            is_idle: false,
            rtt: None,
            ping_due: now,
            pongs: VecDeque::new(),
            flying: 0,
            sent_bytes: 0,
            received_bytes: 0,
            retiring: None,
            said_bye: false,
        }
    }

    /// Whether it may carry frames of the session.
    pub fn is_healthy(&self) -> bool {
        !self.is_suspect && self.retiring.is_none()
    }

    pub fn owe_pong(&mut self, number: u64) {
        if self.pongs.len() == PONGS_MAX {
            self.pongs.pop_front();
        }
        self.pongs.push_back(number);
    }

    pub fn take_rtt(&mut self, sample: Duration) {
        self.rtt = Some(self.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
    }

    /// A frame about this connection itself, if one is due.
    pub fn own_frame(&mut self, is_backlogged: bool, now: Moment) -> Option<Header> {
        if let Some(number) = self.pongs.pop_front() {
            return Some(Header::new(Kind::Pong, 0, number));
        }
        if let Some(retiring) = &mut self.retiring
            && !retiring.is_told
        {
            retiring.is_told = true;
            return Some(Header::new(Kind::Retire, 0, 0));
        }
        if now < self.ping_due {
            return None;
        }
        self.ping_due = now + PING_EVERY;
        let backlog = if is_backlogged { BACKLOG_BIT } else { 0 };
        Some(Header::new(Kind::Ping, 0, now.as_micros() as u64 | backlog))
    }

    pub fn has_own_frame(&self, now: Moment) -> bool {
        !self.pongs.is_empty()
            || now >= self.ping_due
            || self.retiring.is_some_and(|retiring| !retiring.is_told)
    }

    fn is_dead(&self, now: Moment, is_replaced: bool) -> bool {
        let silent = now.saturating_sub(self.heard);
        let retired = self.retiring.is_some_and(|it| {
            (it.is_told && it.is_heard && self.flying == 0) || now.saturating_sub(it.since) > RETIRE_WITHIN
        });
        silent > DEAD_AFTER || retired || (self.is_suspect && is_replaced && silent > REPLACE_AFTER)
    }
}

/// The connections of a session.
#[derive(Debug, Default)]
pub struct Stripes {
    pub all: BTreeMap<StripeId, Stripe>,
    /// Since when there is none.
    pub none_since: Option<Moment>,
}

impl Stripes {
    pub fn add(&mut self, id: StripeId, now: Moment) {
        self.all.insert(id, Stripe::new(now));
        self.none_since = None;
    }

    pub fn remove(&mut self, id: StripeId, now: Moment) -> bool {
        let was_there = self.all.remove(&id).is_some();
        if self.all.is_empty() {
            self.none_since.get_or_insert(now);
        }
        was_there
    }

    pub fn healthy(&self) -> usize {
        self.all.values().filter(|it| it.is_healthy()).count()
    }

    /// Time in which nobody could look is no silence of anybody.
    pub fn forgive(&mut self, lost: Duration) {
        self.all.values_mut().for_each(|it| it.heard += lost);
        self.none_since = self.none_since.map(|since| since + lost);
    }

    /// Finds those that have become suspect just now.
    pub fn new_suspects(&mut self, now: Moment) -> Vec<StripeId> {
        let silent = |it: &Stripe| {
            let limit = SUSPECT_AFTER.max(it.rtt.unwrap_or_default() * 4);
            !it.is_suspect && now.saturating_sub(it.heard) > limit
        };
        let found: Vec<StripeId> = self.all.iter().filter(|(_, it)| silent(it)).map(|(id, _)| *id).collect();
        for id in &found {
            if let Some(stripe) = self.all.get_mut(id) {
                stripe.is_suspect = true;
            }
        }
        found
    }

    /// Those that should be ended. `wanted` healthy ones are enough to replace a suspect.
    pub fn dead(&self, now: Moment, wanted: usize) -> Vec<StripeId> {
        let is_replaced = self.healthy() >= wanted.max(1);
        self.all.iter().filter(|(_, it)| it.is_dead(now, is_replaced)).map(|(id, _)| *id).collect()
    }

    /// The idle connection that was heard last: the least likely to stall. Not `but`.
    pub fn best_idle(&self, but: Option<StripeId>) -> Option<StripeId> {
        let idle = self.all.iter().filter(|(_, it)| it.is_idle && it.is_healthy() && !it.said_bye);
        let others = idle.filter(|(id, _)| Some(**id) != but);
        others.max_by_key(|(_, it)| it.heard).map(|(id, _)| *id)
    }

    /// The longest round-trip time among those that carry frames.
    pub fn longest_rtt(&self) -> Option<Duration> {
        self.all.values().filter(|it| it.is_healthy()).filter_map(|it| it.rtt).max()
    }

    /// The shortest round-trip time among them.
    pub fn rtt(&self) -> Option<Duration> {
        self.all.values().filter_map(|it| it.rtt).min()
    }
}
