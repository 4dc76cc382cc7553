//! What comes in: frames of the peer.

use std::ops::Range;
use std::time::Duration;

use drover_wire::{Ack, Frame, Header, Kind, cost};

use super::receiving::{End, ReceiveState, Violation};
use super::sending::SendState;
use super::stripes::{BACKLOG_BIT, Retiring};
use super::{
    CONTROL_MAX, COUNT_SHIFT, ChannelId, Control, Core, Moment, Order, SIDE_BIT, StripeId, order_of,
};
use crate::error::{LinkError, LinkErrorKind};

/// Where a frame belongs.
enum Place {
    Here,
    /// The channel was there and is gone, or was not let in.
    Gone,
}

impl Core {
    /// Takes a frame that came in on a connection. A peer that breaks the rules ends the session.
    pub fn arrive(&mut self, stripe: StripeId, frame: Frame, now: Moment) {
        if self.ended().is_some() {
            return;
        }
        if let Err(Violation(what)) = self.try_arrive(stripe, frame, now) {
            self.end(LinkError::new(LinkErrorKind::Protocol, format!("the peer broke the protocol: {what}")));
        }
    }

    fn try_arrive(&mut self, stripe: StripeId, frame: Frame, now: Moment) -> Result<(), Violation> {
        let header = frame.header;
        if header.kind.is_sequenced() {
            let is_new = self.arrived.note(header.sequence, header.frame_bytes() as u64, now);
            if !is_new.ok_or(Violation("a frame beyond the window"))? {
                self.counters.double_frames += 1;
                return Ok(());
            }
            self.counters.arrived_bytes += u64::from(header.payload_bytes);
            return self.sequenced(frame);
        }
        match header.kind {
            Kind::Ack => self.acknowledged(header.number, &frame.body, now),
            Kind::Bye => {
                let text = String::from_utf8_lossy(&frame.body);
                let text = if text.is_empty() { "the peer closed the session".into() } else { text };
                self.end_told(LinkError::new(LinkErrorKind::Closed, text));
                Ok(())
            }
            _ => {
                self.about_stripe(stripe, header, now);
                Ok(())
            }
        }
    }

    fn about_stripe(&mut self, stripe: StripeId, header: Header, now: Moment) {
        let Some(it) = self.stripes.all.get_mut(&stripe) else { return };
        match header.kind {
            Kind::Ping => {
                it.owe_pong(header.number);
                self.is_peer_backlogged = header.number & BACKLOG_BIT != 0;
            }
            Kind::Pong => {
                let sent = Duration::from_micros(header.number & !BACKLOG_BIT);
                it.take_rtt(now.saturating_sub(sent));
            }
            _ => {
                let new = Retiring { since: now, is_told: false, is_heard: true };
                it.retiring.get_or_insert(new).is_heard = true;
            }
        }
    }

    fn sequenced(&mut self, frame: Frame) -> Result<(), Violation> {
        let header = frame.header;
        if header.kind == Kind::Credit && header.channel == 0 {
            if header.number > self.limit {
                self.lacks_credit = false;
                self.limit = header.number;
                self.wakes.all_senders = true;
            }
            return Ok(());
        }
        let is_data = matches!(header.kind, Kind::Data | Kind::Message);
        if is_data {
            self.budget.arrive(cost(header.payload_bytes as usize))?;
        }
        match self.place(header.channel)? {
            Place::Gone if is_data => {
                self.consume(cost(header.payload_bytes as usize));
                Ok(())
            }
            Place::Gone => Ok(()),
            Place::Here => self.on_channel(frame),
        }
    }

    /// Finds a channel. Frames may overtake the one that opens their channel, so any of them makes it.
    fn place(&mut self, id: ChannelId) -> Result<Place, Violation> {
        let count = id >> COUNT_SHIFT;
        if self.channels.contains_key(&id) {
            return Ok(Place::Here);
        }
        if id & SIDE_BIT == self.side_bit() {
            return match (1..=self.opened).contains(&count) {
                true => Ok(Place::Gone),
                false => Err(Violation("a frame of a channel that was never opened")),
            };
        }
        if count == 0 {
            return Err(Violation("a channel without a number"));
        }
        if !self.seen.insert(count.into()) {
            return Ok(Place::Gone);
        }
        if self.seen.len() > self.limits.channels_max || self.control.len() > CONTROL_MAX {
            return Err(Violation("too many channels out of turn"));
        }
        if self.channels.len() - self.opened_now >= self.limits.channels_max {
            self.control.push_back(Control::Reset(id, 0));
            self.control.push_back(Control::Stop(id));
            return Ok(Place::Gone);
        }
        self.insert(id, false);
        Ok(Place::Here)
    }

    fn on_channel(&mut self, frame: Frame) -> Result<(), Violation> {
        let Header { kind, channel: id, number, .. } = frame.header;
        let Some(channel) = self.channels.get_mut(&id) else { return Ok(()) };
        match kind {
            Kind::Open if channel.is_open => return Err(Violation("a channel that was opened twice")),
            Kind::Open => {
                channel.is_open = true;
                self.incoming.push_back((id, frame.body));
                self.wakes.accept = true;
            }
            Kind::Data | Kind::Message => {
                if (kind == Kind::Message) != (order_of(id) == Order::Messages) {
                    return Err(Violation("messages on a stream, or bytes between messages"));
                }
                let lost = channel.receiving.take_frame(frame)?;
                self.consume(lost);
                self.wakes.receivers.push(id);
            }
            Kind::Finish => {
                channel.receiving.set_end(End { count: number, is_clean: true })?;
                self.wakes.receivers.push(id);
            }
            Kind::Reset if number > 0 => {
                channel.receiving.set_end(End { count: number - 1, is_clean: false })?;
                self.wakes.receivers.push(id);
            }
            Kind::Reset => {
                let unread = channel.receiving.stop(ReceiveState::Reset);
                self.consume(unread);
                self.wakes.receivers.push(id);
            }
            Kind::Stop => self.stopped(id),
            _ => {
                channel.sending.raise(number);
                self.lacks_credit = false;
                self.wakes.senders.push(id);
            }
        }
        Ok(())
    }

    /// The peer reads no more: what is queued is in vain.
    fn stopped(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if channel.sending.state != SendState::Reset {
            channel.sending.state = SendState::Stopped;
        }
        let unsent = channel.sending.clear();
        self.unsent(unsent);
        self.wakes.senders.push(id);
        self.remove_if_over(id);
    }

    fn acknowledged(&mut self, below: u64, payload: &[u8], now: Moment) -> Result<(), Violation> {
        let wrong = Violation("an acknowledgement of what was not sent");
        let ack = Ack::read(below, payload).map_err(|_| Violation("a wrong acknowledgement"))?;
        if below == 0 || ack.ranges.last().map_or(below, |range| range.end) > self.next_sequence {
            return Err(wrong);
        }
        self.land(0..ack.below, now);
        ack.ranges.into_iter().for_each(|range| self.land(range, now));
        self.end_if_flushed();
        Ok(())
    }

    fn land(&mut self, range: Range<u64>, now: Moment) {
        while let Some((sequence, _)) = self.flying.range(range.clone()).next() {
            let sequence = *sequence;
            let Some(flying) = self.flying.remove(&sequence) else { return };
            self.repeats.remove(&sequence);
            self.count_flying(flying.stripe, -1);
            // Of one that was carried twice nobody knows which one arrived.
            if !flying.is_again {
                self.usual.take(flying.header.payload_bytes, now.saturating_sub(flying.sent));
            }
            if matches!(flying.header.kind, Kind::Data | Kind::Message) {
                self.held -= cost(flying.header.payload_bytes as usize);
                self.counters.acknowledged_bytes += u64::from(flying.header.payload_bytes);
                self.wakes.all_senders = true;
            }
        }
    }
}
