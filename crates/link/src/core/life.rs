//! Connections that come and go, time that passes, and the end.

use std::time::Duration;

use super::stripes::{PING_EVERY, RETIRE_SHARE, Retiring, StripeId, Stripes};
use super::{Core, Moment, State};
use crate::error::{LinkError, LinkErrorKind};

/// What the driver should do as time passes.
#[derive(Debug, PartialEq, Eq)]
pub struct Tick {
    /// Connections to end.
    pub kill: Vec<StripeId>,
    /// When to ask again, at the latest.
    pub next: Moment,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeView {
    /// Round-trip time as pings tell it.
    pub rtt: Option<Duration>,
    /// Bytes of frames sent and received on it.
    pub sent_bytes: u64,
    /// Bytes received on it.
    pub received_bytes: u64,
    /// Frames it carries that are not acknowledged.
    pub flying: usize,
    /// Nothing was heard on it for some time.
    pub is_suspect: bool,
}

impl Core {
    /// A connection is there.
    pub fn stripe_up(&mut self, id: StripeId, now: Moment) {
        self.stripes.add(id, now);
    }

    /// A connection is gone: what it carried goes to others.
    pub fn stripe_down(&mut self, id: StripeId, now: Moment) {
        if self.stripes.remove(id, now) {
            self.repeat_of(id);
            self.arrived.tell_all_again(now);
        }
    }

    /// Bytes came in on a connection, whatever they are.
    pub fn heard(&mut self, id: StripeId, bytes: usize, now: Moment) {
        if let Some(stripe) = self.stripes.all.get_mut(&id) {
            stripe.heard = now;
            stripe.is_suspect = false;
            stripe.received_bytes += bytes as u64;
        }
    }

    /// Begins to give up connections in good order, the ones with the longest round trips first, until `count` are
    /// left: an eighth of them with each call, so that those that stay can take over what the others carried.
    pub fn retire_down_to(&mut self, count: usize, now: Moment) {
        let mut healthy: Vec<_> = self.stripes.all.iter_mut().filter(|(_, it)| it.is_healthy()).collect();
        healthy.sort_by_key(|(_, it)| it.rtt);
        let stay = healthy.len() - healthy.len().div_ceil(RETIRE_SHARE);
        for (_, stripe) in healthy.into_iter().skip(stay.max(count).max(1)) {
            stripe.retiring = Some(Retiring { since: now, is_told: false, is_heard: false });
        }
    }

    /// Begins to give a connection up in good order.
    pub fn retire(&mut self, id: StripeId, now: Moment) {
        if let Some(stripe) = self.stripes.all.get_mut(&id).filter(|it| it.retiring.is_none()) {
            stripe.retiring = Some(Retiring { since: now, is_told: false, is_heard: false });
        }
    }

    /// Time has passed. `wanted` is how many connections there should be.
    pub fn tick(&mut self, wanted: usize, now: Moment) -> Tick {
        self.stripes.forgive(self.watch.stood_still(now));
        for id in self.stripes.new_suspects(now) {
            self.repeat_of(id);
            self.arrived.tell_all_again(now);
        }
        self.give_up_in_the_end(now);
        self.end_if_flushed();
        let soon = now + PING_EVERY / 2;
        let next = self.due(now).map_or(soon, |due| due.clamp(now, soon));
        Tick { kill: self.stripes.dead(now, wanted), next }
    }

    /// Ends a session without a connection, or with connections that carry nothing, as when each ends at the
    /// same damaged frame.
    fn give_up_in_the_end(&mut self, now: Moment) {
        let none_for = self.stripes.none_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let landed = self.next_sequence - self.flying.len() as u64;
        let stuck_for = self.watch.stuck_for(landed, !self.flying.is_empty(), now);
        let text = match self.limits.give_up_after {
            limit if none_for > limit => format!("no connection for {} s", none_for.as_secs()),
            // Longer: a cut counts here from its first moment, and there only once connections are dead.
            limit if stuck_for > limit.saturating_mul(2) => {
                format!("the peer has acknowledged nothing for {} s", stuck_for.as_secs())
            }
            _ => return,
        };
        self.end(LinkError::new(LinkErrorKind::Lost, text));
    }

    /// When an acknowledgement is due, or a frame overdue that another connection could carry: sooner, perhaps, than
    /// the last tick said. A frame that is overdue already is for the next connection that has nothing to do, and so is
    /// an acknowledgement that no connection could take: looking again sooner would find neither.
    pub fn due(&self, now: Moment) -> Option<Moment> {
        let overdue = self.overdue_at().filter(|at| *at > now);
        let arrived = self.arrived.due().filter(|at| *at > now || self.stripes.best_idle(None).is_some());
        [arrived, overdue].into_iter().flatten().min()
    }

    fn repeat_of(&mut self, id: StripeId) {
        let carried = self.flying.iter().filter(|(_, flying)| flying.stripe == id);
        self.repeats.extend(carried.map(|(sequence, _)| *sequence));
    }

    /// Closes the session once what was sent has arrived. Calls of the program fail from now on.
    pub fn close(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Closing;
            self.wakes.everyone = true;
            self.end_if_flushed();
        }
    }

    /// Ends a session that is being closed if the peer has everything.
    pub fn end_if_flushed(&mut self) {
        let is_flushed = self.flying.is_empty() && self.control.is_empty() && self.ready.is_empty();
        if matches!(self.state, State::Closing) && is_flushed {
            let why = LinkError::new(LinkErrorKind::Closed, "the session was closed");
            self.state = State::Ended { why, bye: Some(String::new()) };
            self.wakes.everyone = true;
        }
    }

    /// Ends the session at once, and tells the peer why.
    pub fn end(&mut self, why: LinkError) {
        let bye = why.text.clone();
        self.end_as(why, Some(bye));
    }

    /// Ends the session at once; the peer knows, or cannot be told.
    pub fn end_told(&mut self, why: LinkError) {
        self.end_as(why, None);
    }

    fn end_as(&mut self, why: LinkError, bye: Option<String>) {
        if self.ended().is_some() {
            return;
        }
        self.state = State::Ended { why, bye };
        self.wakes.everyone = true;
        // Nobody waits for an acknowledgement any more.
        self.flying.clear();
        self.repeats.clear();
        self.control.clear();
        self.ready.clear();
    }

    /// Connections that carry frames.
    pub fn healthy(&self) -> usize {
        self.stripes.healthy()
    }

    /// Whether this connection is one of them.
    pub fn is_healthy(&self, id: StripeId) -> bool {
        self.stripes.all.get(&id).is_some_and(|it| it.is_healthy())
    }

    /// Since when there is no connection.
    pub fn none_since(&self) -> Option<Moment> {
        self.stripes.none_since
    }

    /// The shortest round-trip time of the connections.
    pub fn rtt(&self) -> Option<Duration> {
        Stripes::rtt(&self.stripes)
    }

    /// Whether frames wait for a connection on the other side.
    pub fn is_peer_backlogged(&self) -> bool {
        self.is_peer_backlogged
    }

    /// Whether frames wait for a connection: the line is what limits.
    pub fn is_backlogged(&self) -> bool {
        !self.ready.is_empty() || !self.repeats.is_empty()
    }

    /// What is known of a connection.
    pub fn stripe(&self, id: StripeId) -> Option<StripeView> {
        let it = self.stripes.all.get(&id)?;
        Some(StripeView {
            rtt: it.rtt,
            sent_bytes: it.sent_bytes,
            received_bytes: it.received_bytes,
            flying: it.flying,
            is_suspect: it.is_suspect,
        })
    }
}
