//! What goes out: the next frames for a connection that has room.

use drover_wire::{Header, Kind, WINDOW_FRAMES, cost};

use super::{ChannelId, Control, Core, Flying, Moment, State, StripeId};
use crate::payload::Payload;

/// Bytes that one channel may send before the next one has its turn.
const TURN_BYTES: usize = 256 << 10;

/// A frame to be written.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its header, complete.
    pub header: Header,
    /// Its payload.
    pub payload: Payload,
}

/// What there is for a connection to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// Frames to be written.
    Frames,
    /// Nothing; it will be woken, see [`Core::writers_to_wake`].
    Idle,
    /// Nothing, for good: it should be shut down.
    Gone,
}

impl Core {
    /// Gives the next frames to a connection, at least one if there is one, and about `bytes` in all. With
    /// zero, only what connections themselves and acknowledgements need; the connection comes back by
    /// itself then, and is not woken.
    pub fn pull(&mut self, stripe: StripeId, bytes: usize, now: Moment, frames: &mut Vec<Outgoing>) -> Pull {
        frames.clear();
        let is_backlogged = self.is_backlogged();
        let Some(it) = self.stripes.all.get_mut(&stripe) else { return Pull::Gone };
        it.is_idle = false;
        if let State::Ended { bye, .. } = &self.state {
            let bye = bye.as_ref().filter(|_| !std::mem::replace(&mut it.said_bye, true));
            let Some(text) = bye else { return Pull::Gone };
            frames.push(plain(Header::new(Kind::Bye, 0, 0), text.clone().into_bytes()));
            return Pull::Frames;
        }
        while let Some(header) = it.own_frame(is_backlogged, now) {
            frames.push(plain(header, Vec::new()));
        }
        if it.is_healthy() {
            self.pull_shared(stripe, bytes, now, frames);
        }
        let written: usize = frames.iter().map(|frame| frame.header.frame_bytes()).sum();
        if let Some(it) = self.stripes.all.get_mut(&stripe) {
            it.sent_bytes += written as u64;
            it.is_idle = frames.is_empty() && bytes > 0;
        }
        if frames.is_empty() { Pull::Idle } else { Pull::Frames }
    }

    fn pull_shared(&mut self, stripe: StripeId, bytes: usize, now: Moment, frames: &mut Vec<Outgoing>) {
        if let Some(ack) = self.arrived.take(now) {
            frames.push(plain(Header::new(Kind::Ack, 0, ack.below), ack.payload()));
        }
        let mut taken = 0;
        while taken < bytes {
            let Some(frame) = self.next_shared(stripe, now) else { break };
            taken += frame.header.frame_bytes();
            frames.push(frame);
        }
    }

    fn next_shared(&mut self, stripe: StripeId, now: Moment) -> Option<Outgoing> {
        let again = self.next_repeat(stripe, now).or_else(|| self.next_late(stripe, now));
        again.or_else(|| self.next_new(stripe, now)).or_else(|| self.next_overdue(stripe, now))
    }

    fn next_new(&mut self, stripe: StripeId, now: Moment) -> Option<Outgoing> {
        if !self.is_window_open() {
            return None;
        }
        let (header, payload) = self.next_control(now).or_else(|| self.next_of_channels())?;
        let header = Header { sequence: self.next_sequence, ..header };
        self.next_sequence += 1;
        self.note_new(header.payload_bytes, now);
        let flying = Flying { header, payload: payload.clone(), stripe, sent: now, is_again: false };
        self.flying.insert(header.sequence, flying);
        self.count_flying(stripe, 1);
        Some(Outgoing { header, payload })
    }

    fn next_repeat(&mut self, stripe: StripeId, now: Moment) -> Option<Outgoing> {
        while let Some(sequence) = self.repeats.pop_first() {
            let frame = self.carry_again(sequence, stripe, now);
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    /// Has a connection carry a frame that another one, or itself, carried before; `None` if it has arrived.
    pub(super) fn carry_again(&mut self, sequence: u64, stripe: StripeId, now: Moment) -> Option<Outgoing> {
        let flying = self.flying.get_mut(&sequence)?;
        let before = std::mem::replace(&mut flying.stripe, stripe);
        (flying.sent, flying.is_again) = (now, true);
        let frame = Outgoing { header: flying.header, payload: flying.payload.clone() };
        self.count_flying(before, -1);
        self.count_flying(stripe, 1);
        self.counters.repeated_frames += 1;
        Some(frame)
    }

    pub(super) fn count_flying(&mut self, stripe: StripeId, change: isize) {
        if let Some(it) = self.stripes.all.get_mut(&stripe) {
            it.flying = it.flying.saturating_add_signed(change);
        }
    }

    pub(super) fn is_window_open(&self) -> bool {
        let oldest = self.flying.first_key_value().map_or(self.next_sequence, |(sequence, _)| *sequence);
        self.next_sequence < oldest + WINDOW_FRAMES
    }

    fn next_control(&mut self, now: Moment) -> Option<(Header, Payload)> {
        loop {
            let nothing = || Payload::from(Vec::new());
            return Some(match self.control.pop_front()? {
                Control::Open(id, opening) => {
                    (Header::new(Kind::Open, id, 0).with_payload(opening.bytes()), opening)
                }
                Control::Finish(id, count) => (Header::new(Kind::Finish, id, count), nothing()),
                Control::Reset(id, number) => (Header::new(Kind::Reset, id, number), nothing()),
                Control::Stop(id) => (Header::new(Kind::Stop, id, 0), nothing()),
                Control::Credit(0) => {
                    self.budget.is_to_be_told = false;
                    (Header::new(Kind::Credit, 0, self.budget.promised), nothing())
                }
                Control::Credit(id) => match self.channels.get_mut(&id) {
                    Some(channel) => {
                        channel.is_credit_queued = false;
                        let limit = channel.receiving.grow(self.stripes.longest_rtt(), now);
                        (Header::new(Kind::Credit, id, limit), nothing())
                    }
                    None => continue,
                },
            });
        }
    }

    /// The next frame of the channel whose turn it is.
    fn next_of_channels(&mut self) -> Option<(Header, Payload)> {
        while let Some(id) = self.ready.front().copied() {
            let frame = self.channels.get_mut(&id).and_then(|channel| channel.sending.pop(id));
            let has_more = self.channels.get(&id).is_some_and(|channel| channel.sending.has_frames());
            let Some((header, payload)) = frame else {
                self.leave_ready(id);
                continue;
            };
            self.turn_bytes += cost(header.payload_bytes as usize) as usize;
            if !has_more {
                self.leave_ready(id);
            } else if self.turn_bytes >= TURN_BYTES {
                self.ready.rotate_left(1);
                self.turn_bytes = 0;
            }
            // The queue has room again, and may have been all that was left of the channel.
            self.wakes.senders.push(id);
            self.remove_if_over(id);
            return Some((header, payload));
        }
        None
    }

    fn leave_ready(&mut self, id: ChannelId) {
        self.ready.pop_front();
        self.turn_bytes = 0;
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.is_in_ready = false;
        }
        self.remove_if_over(id);
    }

    /// Whether a connection's writer should wait until it is woken.
    pub fn is_idle(&self, stripe: StripeId) -> bool {
        self.stripes.all.get(&stripe).is_some_and(|it| it.is_idle)
    }

    /// Connections whose writers are idle and have something to do now. They count as busy from here on.
    ///
    /// One is woken for what any could do; when it has taken its share it is asked again.
    pub fn writers_to_wake(&mut self, now: Moment) -> Vec<StripeId> {
        let is_over = matches!(self.state, State::Ended { .. });
        let has_own = |it: &super::stripes::Stripe| it.is_idle && (is_over || it.has_own_frame(now));
        let mut found: Vec<StripeId> =
            self.stripes.all.iter().filter(|(_, it)| has_own(it)).map(|(id, _)| *id).collect();
        if found.is_empty() {
            found.extend(self.idle_for_shared(now));
        }
        for id in &found {
            if let Some(stripe) = self.stripes.all.get_mut(id) {
                stripe.is_idle = false;
            }
        }
        found
    }

    /// An idle connection for what any could carry, or for what another one holds up.
    fn idle_for_shared(&self, now: Moment) -> Option<StripeId> {
        if self.has_shared(now) {
            return self.stripes.best_idle(None);
        }
        self.late_stripe(now).and_then(|late| self.stripes.best_idle(Some(late)))
    }

    /// Whether there is something that any connection may carry, and should now.
    fn has_shared(&self, now: Moment) -> bool {
        let has_new = !self.control.is_empty() || !self.ready.is_empty();
        !self.repeats.is_empty()
            || (has_new && self.is_window_open())
            || self.arrived.due().is_some_and(|due| due <= now)
    }
}

fn plain(header: Header, payload: Vec<u8>) -> Outgoing {
    Outgoing { header: header.with_payload(&payload), payload: Payload::from(payload) }
}
