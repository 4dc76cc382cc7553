//! The half of a channel that sends.

use std::collections::VecDeque;

use drover_wire::{DATA_BYTES_MAX, FRAME_COST, Header, Kind, check, cost};

use super::{ChannelId, Order};
use crate::payload::Payload;

/// Bytes that wait for a connection, at most, in all channels together: enough to keep many connections busy, and
/// little enough that channels take turns, and that what a program handed over last does not wait long.
const QUEUE_BYTES_MAX: u64 = 4 << 20;
/// What a channel may have of them however many there are.
const QUEUE_BYTES_MIN: u64 = 512 << 10;

/// Bytes that may wait in one of so many channels in which something does.
pub fn queue_share(channels: usize) -> u64 {
    (QUEUE_BYTES_MAX / (channels as u64).max(1)).max(QUEUE_BYTES_MIN)
}

/// A stream's small writes are gathered until they are this long.
const GATHER_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    Open,
    Finished,
    /// Given up here.
    Reset,
    /// The peer reads no more.
    Stopped,
}

/// The half of a channel that sends.
#[derive(Debug)]
pub struct Sending {
    order: Order,
    pub state: SendState,
    /// Whether the program still holds a sender.
    pub is_held: bool,
    /// Cost that the peer lets us send in all, and that was taken of it.
    limit: u64,
    used: u64,
    queue: VecDeque<(Header, Payload)>,
    queued: u64,
    /// Small writes to a stream, not yet a frame, and the offset of the first.
    gathered: Vec<u8>,
    gathered_at: u64,
    /// Bytes of the stream, or messages, taken from the program.
    count: u64,
}

impl Sending {
    pub fn new(order: Order, limit: u64) -> Sending {
        Sending {
            order,
            state: SendState::Open,
            is_held: true,
            limit,
            used: 0,
            queue: VecDeque::new(),
            queued: 0,
            gathered: Vec::new(),
            gathered_at: 0,
            count: 0,
        }
    }

    /// Cost that may be taken now, as far as this channel goes, whose share of the queue is this.
    pub fn room(&self, share: u64) -> u64 {
        let queue = if self.queued == 0 { u64::MAX } else { share.saturating_sub(self.queued) };
        (self.limit - self.used).min(queue)
    }

    /// Whether a sender that waits for room should look again: not for each frame that leaves.
    pub fn is_worth_waking(&self, share: u64) -> bool {
        self.state != SendState::Open || (self.queued <= share / 2 && self.limit > self.used)
    }

    /// Whether the peer's credit, not this side, is what keeps a frame of that cost.
    pub fn is_out_of_credit(&self, cost: u64) -> bool {
        self.limit - self.used < cost
    }

    /// Whether something is queued.
    pub fn waits_for_line(&self) -> bool {
        self.queued > 0
    }

    /// The peer lets us send more. Limits only grow.
    pub fn raise(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Takes room for a frame of that many bytes; for a stream gives its offset.
    pub fn reserve(&mut self, bytes: usize) -> u64 {
        self.used += cost(bytes);
        self.queued += cost(bytes);
        let at = self.count;
        self.count += if self.order == Order::Stream { bytes as u64 } else { 1 };
        at
    }

    /// A frame for which room was taken. It is dropped if the channel was given up meanwhile.
    pub fn push(&mut self, header: Header, payload: Payload) -> bool {
        let is_wanted = matches!(self.state, SendState::Open | SendState::Finished);
        if is_wanted {
            self.queue.push_back((header, payload));
        }
        is_wanted
    }

    /// Takes a small piece of a stream, for which there is room. Gives the cost that was taken.
    pub fn gather(&mut self, channel: ChannelId, bytes: &[u8]) -> u64 {
        if self.gathered.len() + bytes.len() > GATHER_BYTES_MAX {
            self.seal(channel);
        }
        let taken = bytes.len() as u64 + if self.gathered.is_empty() { FRAME_COST } else { 0 };
        if self.gathered.is_empty() {
            self.gathered_at = self.count;
        }
        self.gathered.extend_from_slice(bytes);
        self.used += taken;
        self.queued += taken;
        self.count += bytes.len() as u64;
        taken
    }

    /// Makes a frame of what was gathered.
    pub fn seal(&mut self, channel: ChannelId) {
        if self.gathered.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.gathered);
        let header = Header {
            payload_bytes: bytes.len() as u32,
            payload_check: check(&bytes),
            ..Header::new(Kind::Data, channel, self.gathered_at)
        };
        self.queue.push_back((header, Payload::from(bytes)));
    }

    /// The next frame.
    pub fn pop(&mut self, channel: ChannelId) -> Option<(Header, Payload)> {
        if self.queue.is_empty() {
            self.seal(channel);
        }
        let (header, payload) = self.queue.pop_front()?;
        self.queued -= cost(header.payload_bytes as usize);
        Some((header, payload))
    }

    /// Gives up what is queued; gives the cost that is free now.
    pub fn clear(&mut self) -> u64 {
        let frames: u64 = self.queue.drain(..).map(|(header, _)| cost(header.payload_bytes as usize)).sum();
        let gathered = if self.gathered.is_empty() { 0 } else { cost(self.gathered.len()) };
        self.gathered = Vec::new();
        self.queued -= frames + gathered;
        frames + gathered
    }

    /// Gives up messages that wait for a connection and are not wanted any more, by their heads: these, and the cost that
    /// is free now. The peer never hears of them, so its credit for them is there again.
    pub fn withdraw(&mut self, mut is_unwanted: impl FnMut(&[u8]) -> bool) -> (Vec<Vec<u8>>, u64) {
        let (mut heads, mut free) = (Vec::new(), 0);
        self.queue.retain(|(header, payload)| {
            let head = &payload.bytes()[..header.head_bytes.into()];
            let is_withdrawn = is_unwanted(head);
            if is_withdrawn {
                heads.push(head.to_vec());
                free += cost(header.payload_bytes as usize);
            }
            !is_withdrawn
        });
        self.queued -= free;
        self.used -= free;
        self.count -= heads.len() as u64;
        (heads, free)
    }

    /// Cost that is free again because its frame came too late.
    pub fn forget(&mut self, cost: u64) {
        self.queued -= cost;
    }

    pub fn has_frames(&self) -> bool {
        !self.queue.is_empty() || !self.gathered.is_empty()
    }

    /// Nothing is queued and nothing will be.
    pub fn is_done(&self) -> bool {
        !self.is_held && self.queued == 0
    }

    /// Bytes of the stream, or messages, taken from the program.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest piece of a stream that fits into so much room.
    pub fn piece_bytes(wanted: usize, room: u64) -> usize {
        let fits = usize::try_from(room.saturating_sub(FRAME_COST)).unwrap_or(usize::MAX);
        wanted.min(fits).min(DATA_BYTES_MAX)
    }
}
