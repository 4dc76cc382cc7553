//! What the program does with a session.

use drover_wire::{
    BODY_BYTES_MAX, Credits, DATA_BYTES_MAX, FRAME_COST, HEAD_BYTES_MAX, Header, OPENING_BYTES_MAX, cost,
};

use super::receiving::{ReceiveState, Taken};
use super::sending::{SendState, Sending, queue_share};
use super::{
    CONTROL_MAX, COUNT_SHIFT, Channel, ChannelId, Control, Core, MESSAGES_BIT, Message, Order, Receiving,
    order_of,
};
use crate::error::{LinkError, LinkErrorKind};
use crate::payload::Payload;

/// Writes to a stream up to this size are gathered to larger frames.
pub const GATHER_WRITE_BYTES_MAX: usize = 8 << 10;

fn misuse<T>(text: &str) -> Result<T, LinkError> {
    Err(LinkError::new(LinkErrorKind::Misuse, text))
}

fn reset(text: &str) -> LinkError {
    LinkError::new(LinkErrorKind::Reset, text)
}

/// Whether a message is within the bounds.
pub fn check_message(head: &[u8], body: &[u8]) -> Result<(), LinkError> {
    match head.len() <= HEAD_BYTES_MAX && body.len() <= BODY_BYTES_MAX {
        true => Ok(()),
        false => misuse(&format!("a message of {} and {} bytes is too long", head.len(), body.len())),
    }
}

impl Core {
    /// Opens a channel. Numbers are not used twice in a session: after a thousand million it opens no more.
    pub fn open(&mut self, order: Order, opening: &[u8]) -> Result<ChannelId, LinkError> {
        if let Some(error) = self.closed_error() {
            return Err(error);
        }
        if opening.len() > OPENING_BYTES_MAX {
            return misuse(&format!("an opening of {} bytes is too long", opening.len()));
        }
        if self.opened_now >= self.limits.channels_max {
            return misuse(&format!("there are {} channels already", self.opened_now));
        }
        // They come and go faster than the peer can be told, or while there is no connection.
        if self.control.len() >= CONTROL_MAX {
            return misuse("too many channels were opened that the peer does not know of");
        }
        if self.opened >= u32::MAX >> COUNT_SHIFT {
            return Err(LinkError::new(LinkErrorKind::Lost, "the session has no channel numbers left"));
        }
        self.opened += 1;
        self.opened_now += 1;
        let messages = if order == Order::Messages { MESSAGES_BIT } else { 0 };
        let id = self.opened << COUNT_SHIFT | messages | self.side_bit();
        self.insert(id, true);
        self.control.push_back(Control::Open(id, Payload::from(opening.to_vec())));
        Ok(id)
    }

    /// Adds a channel to the table.
    pub(super) fn insert(&mut self, id: ChannelId, is_ours: bool) {
        let order = order_of(id);
        let first = |credits: Credits| match order {
            Order::Stream => credits.stream,
            Order::Messages => credits.messages,
        };
        let channel = Channel {
            order,
            sending: Sending::new(order, first(self.first)),
            receiving: Receiving::new(order, first(self.limits.credits), self.limits.channel_credit_max),
            is_ours,
            is_open: is_ours,
            is_read: true,
            is_in_ready: false,
            is_credit_queued: false,
        };
        self.channels.insert(id, channel);
    }

    /// The next channel that the peer opened.
    pub fn accept(&mut self) -> Result<Option<(ChannelId, Order, Vec<u8>)>, LinkError> {
        match (self.incoming.pop_front(), self.closed_error()) {
            (_, Some(error)) => Err(error),
            (Some((id, opening)), None) => Ok(Some((id, order_of(id), opening))),
            (None, None) => Ok(None),
        }
    }

    /// Takes room for a message of that many bytes in all. `None`: wait until woken.
    pub fn reserve_message(&mut self, id: ChannelId, bytes: usize) -> Result<Option<u64>, LinkError> {
        let room = self.room(id, Order::Messages)?;
        let cost = cost(bytes);
        // One message is always let in, or a small bound would stop everything.
        if room < cost && !(self.held == 0 && self.has_credit(id, cost)) {
            self.lacks_credit |= !self.has_credit(id, cost);
            return Ok(None);
        }
        Ok(Some(self.take_room(id, bytes)))
    }

    /// Takes room for a piece of a stream: its offset, and its bytes of those wanted. `None`: wait.
    pub fn reserve_piece(&mut self, id: ChannelId, wanted: usize) -> Result<Option<(u64, usize)>, LinkError> {
        let room = self.room(id, Order::Stream)?;
        let bytes = Sending::piece_bytes(wanted, room);
        if bytes == 0 {
            self.lacks_credit |= !self.has_credit(id, cost(1));
            return Ok(None);
        }
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.sending.seal(id);
        }
        Ok(Some((self.take_room(id, bytes), bytes)))
    }

    /// Bytes of a stream that there is room for, up to `wanted`, in as many pieces as they need.
    pub fn stream_room(&mut self, id: ChannelId, wanted: usize) -> Result<usize, LinkError> {
        let room = self.room(id, Order::Stream)?;
        // As many frames as there is room for, not as are wanted: else a rest of credit were neither room nor a lack.
        let frames = room.min(wanted as u64).div_ceil(DATA_BYTES_MAX as u64).max(1);
        let bytes = room.saturating_sub(frames * FRAME_COST);
        self.lacks_credit |= bytes == 0 && !self.has_credit(id, cost(1));
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX).min(wanted))
    }

    /// Takes a small piece of a stream whole, if there is room.
    pub fn gather(&mut self, id: ChannelId, bytes: &[u8]) -> Result<bool, LinkError> {
        if self.room(id, Order::Stream)? < cost(bytes.len()) {
            self.lacks_credit |= !self.has_credit(id, cost(bytes.len()));
            return Ok(false);
        }
        if let Some(channel) = self.channels.get_mut(&id) {
            let taken = channel.sending.gather(id, bytes);
            self.used += taken;
            self.held += taken;
        }
        self.make_ready(id);
        Ok(true)
    }

    /// Queues a frame for which room was taken.
    pub fn push(&mut self, id: ChannelId, header: Header, payload: Payload) {
        let cost = cost(header.payload_bytes as usize);
        let Some(channel) = self.channels.get_mut(&id) else { return self.unsent(cost) };
        if channel.sending.push(header, payload) {
            self.make_ready(id);
        } else {
            channel.sending.forget(cost);
            self.unsent(cost);
            self.remove_if_over(id);
        }
    }

    /// Gives back what was taken for frames that will never be sent: also the session's credit, which the
    /// peer cannot give again for what never arrives.
    pub(super) fn unsent(&mut self, cost: u64) {
        self.held -= cost;
        self.used -= cost;
        self.wakes.all_senders |= cost > 0;
    }

    fn take_room(&mut self, id: ChannelId, bytes: usize) -> u64 {
        self.used += cost(bytes);
        self.held += cost(bytes);
        self.channels.get_mut(&id).map_or(0, |channel| channel.sending.reserve(bytes))
    }

    fn has_credit(&self, id: ChannelId, cost: u64) -> bool {
        self.limit - self.used >= cost
            && self.channels.get(&id).is_some_and(|it| !it.sending.is_out_of_credit(cost))
    }

    fn room(&self, id: ChannelId, order: Order) -> Result<u64, LinkError> {
        if let Some(error) = self.closed_error() {
            return Err(error);
        }
        let Some(channel) = self.channels.get(&id) else { return Err(reset("the channel is gone")) };
        if channel.order != order {
            return misuse("messages are sent on channels of messages, bytes are written to streams");
        }
        match channel.sending.state {
            SendState::Open => {}
            SendState::Finished => return misuse("the channel was finished"),
            SendState::Reset => return Err(reset("the channel was given up")),
            SendState::Stopped => return Err(reset("the peer gave the channel up")),
        }
        let held = self.limits.held_bytes_max.saturating_sub(self.held);
        let share = queue_share(self.ready.len());
        Ok(channel.sending.room(share).min(self.limit - self.used).min(held))
    }

    /// Whether senders of a channel that wait for room should look again.
    pub fn is_worth_waking(&self, id: ChannelId) -> bool {
        let (held_max, share) = (self.limits.held_bytes_max, queue_share(self.ready.len()));
        self.closed_error().is_some()
            || self.channels.get(&id).is_none_or(|channel| {
                let is_here = channel.sending.state == SendState::Open;
                !is_here || (self.held <= held_max - held_max / 8 && channel.sending.is_worth_waking(share))
            })
    }

    /// Whether a channel was given up by one side: nothing can be sent on it any more.
    pub fn is_given_up(&self, id: ChannelId) -> bool {
        let is_over =
            |channel: &Channel| matches!(channel.sending.state, SendState::Reset | SendState::Stopped);
        self.channels.get(&id).is_none_or(is_over)
    }

    /// Whether it is the peer's credit, for the channel or for all, that lets no byte of a stream be sent now.
    pub fn lacks_credit(&self, id: ChannelId) -> bool {
        !self.has_credit(id, cost(1))
    }

    /// Whether something that was sent on a channel waits for a connection to take it.
    pub fn waits_for_line(&self, id: ChannelId) -> bool {
        self.channels.get(&id).is_some_and(|channel| channel.sending.waits_for_line())
    }

    /// Says that no more will be sent.
    pub fn finish(&mut self, id: ChannelId) -> Result<(), LinkError> {
        if let Some(error) = self.closed_error() {
            return Err(error);
        }
        let Some(channel) = self.channels.get_mut(&id) else { return Err(reset("the channel is gone")) };
        match channel.sending.state {
            SendState::Open => {}
            SendState::Finished => return Ok(()),
            SendState::Reset | SendState::Stopped => return Err(reset("the channel was given up")),
        }
        channel.sending.state = SendState::Finished;
        self.control.push_back(Control::Finish(id, channel.sending.count()));
        // Others may wait for credit that will not come any more.
        self.wakes.senders.push(id);
        Ok(())
    }

    /// Gives up both directions at once.
    pub fn reset(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut unsent = 0;
        if matches!(channel.sending.state, SendState::Open | SendState::Finished) {
            channel.sending.state = SendState::Reset;
            unsent = channel.sending.clear();
            self.control.push_back(Control::Reset(id, 0));
        }
        if channel.receiving.is_expecting() {
            self.control.push_back(Control::Stop(id));
        }
        let unread = channel.receiving.stop(ReceiveState::Reset);
        self.unsent(unsent);
        self.consume(unread);
        self.wakes.senders.push(id);
        self.wakes.receivers.push(id);
        self.wakes.all_senders = true;
    }

    /// Gives up messages of a channel that no connection has taken and that are not wanted any more, by their heads.
    /// Gives these heads: their messages never arrive, all others do.
    pub fn withdraw(&mut self, id: ChannelId, is_unwanted: impl FnMut(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let Some(channel) = self.channels.get_mut(&id) else { return Vec::new() };
        // Of a finished channel the peer was told how many messages there are.
        if channel.order != Order::Messages || channel.sending.state != SendState::Open {
            return Vec::new();
        }
        let (heads, cost) = channel.sending.withdraw(is_unwanted);
        self.unsent(cost);
        heads
    }

    /// The last sender is gone. What it sent still arrives; an end that was not said is no clean one.
    pub fn drop_sender(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.sending.is_held = false;
        if channel.sending.state == SendState::Open {
            channel.sending.state = SendState::Finished;
            self.control.push_back(Control::Reset(id, channel.sending.count() + 1));
        }
        self.remove_if_over(id);
    }

    /// The receiver is gone: what comes is thrown away, and the peer is told.
    pub fn drop_receiver(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.is_read = false;
        if channel.receiving.is_expecting() {
            self.control.push_back(Control::Stop(id));
        }
        let unread = channel.receiving.stop(ReceiveState::Dropped);
        self.consume(unread);
        self.remove_if_over(id);
    }

    /// The next message of a channel.
    pub fn message(&mut self, id: ChannelId) -> Result<Taken<Message>, LinkError> {
        let taken = self.receiving(id, Order::Messages)?.message();
        self.taken(id, taken)
    }

    /// The next bytes of a stream.
    pub fn piece(&mut self, id: ChannelId) -> Result<Taken<Vec<u8>>, LinkError> {
        let taken = self.receiving(id, Order::Stream)?.piece();
        self.taken(id, taken)
    }

    fn receiving(&mut self, id: ChannelId, order: Order) -> Result<&mut Receiving, LinkError> {
        match self.channels.get_mut(&id) {
            Some(channel) if channel.order == order => Ok(&mut channel.receiving),
            Some(_) => misuse("messages are received from channels of messages, bytes are read from streams"),
            None => Err(reset("the channel is gone")),
        }
    }

    fn taken<T>(&mut self, id: ChannelId, taken: Taken<(T, u64)>) -> Result<Taken<T>, LinkError> {
        Ok(match taken {
            Taken::Some((thing, cost)) => {
                self.consume(cost);
                if let Some(channel) = self.channels.get_mut(&id) {
                    let is_due = channel.receiving.credit().is_some();
                    if is_due && !std::mem::replace(&mut channel.is_credit_queued, true) {
                        self.control.push_back(Control::Credit(id));
                    }
                    // Others wait for more, and were told of the end when this was still to come.
                    if channel.receiving.is_at_end() {
                        self.wakes.receivers.push(id);
                    }
                }
                Taken::Some(thing)
            }
            Taken::Wait => match self.closed_error() {
                Some(error) => return Err(error),
                None => Taken::Wait,
            },
            Taken::End => Taken::End,
            Taken::Reset => return Err(reset("the peer gave the channel up")),
        })
    }
}
