//! Channels, as programs use them.

use std::fmt;
use std::sync::{Arc, Weak};

use drover_wire::{Header, Kind, check, check_more};

use crate::core::{ChannelId, GATHER_WRITE_BYTES_MAX, Message, Order, Taken, check_message};
use crate::error::LinkError;
use crate::payload::Payload;
use crate::session::Handle;
use crate::shared::Waits;

/// Bytes copied and summed at a time: what the processor's first cache holds.
const COPY_BYTES: usize = 16 << 10;

/// A channel of a session: both directions.
#[derive(Debug)]
pub struct Channel {
    sender: Sender,
    receiver: Receiver,
    order: Order,
}

/// The half that sends. Clones send on the same channel.
///
/// When the last one goes without [`Sender::finish`], what it sent still arrives; after that the peer's
/// calls fail with `Reset`, so that nobody takes a part for the whole.
#[derive(Clone, Debug)]
pub struct Sender {
    end: Arc<SenderEnd>,
}

/// A sender as somebody knows it who does not keep its channel open.
#[derive(Clone, Debug)]
pub struct WeakSender {
    end: Weak<SenderEnd>,
}

impl WeakSender {
    /// The sender, if somebody else has it still.
    pub fn upgrade(&self) -> Option<Sender> {
        self.end.upgrade().map(|end| Sender { end })
    }
}

/// The half that receives. When it goes before the end, what comes is thrown away and the peer's sending
/// fails with `Reset`.
#[derive(Debug)]
pub struct Receiver {
    end: ReceiverEnd,
    /// Bytes of a stream that were taken from the session and not read, from an offset on.
    piece: Vec<u8>,
    read: usize,
}

struct SenderEnd {
    place: Place,
}

struct ReceiverEnd {
    place: Place,
}

/// A channel's place in its session.
#[derive(Clone)]
struct Place {
    id: ChannelId,
    handle: Arc<Handle>,
    waits: Arc<Waits>,
}

impl fmt::Debug for SenderEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.place.id)
    }
}

impl fmt::Debug for ReceiverEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.place.id)
    }
}

impl Channel {
    pub(crate) fn new(id: ChannelId, order: Order, handle: Arc<Handle>, waits: Arc<Waits>) -> Channel {
        let place = Place { id, handle, waits };
        let sender = Sender { end: Arc::new(SenderEnd { place: place.clone() }) };
        let receiver = Receiver { end: ReceiverEnd { place }, piece: Vec::new(), read: 0 };
        Channel { sender, receiver, order }
    }

    /// How what is sent on it arrives.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Has `waker` called whenever there may be something to receive, or room to send after a `try_` call found
    /// none, and when channel or session end; also when it turns out that there is nothing. For one who uses
    /// a channel without waiting: it is called under the session's lock, so it must be quick and must not call
    /// the session. Only the first one counts.
    pub fn wake_by(&self, waker: Box<dyn Fn() + Send + Sync>) {
        self.sender.end.place.waits.call(waker);
    }

    /// The half that sends.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The two halves.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

impl Sender {
    /// Sends a message. Waits while the peer's credit or this side's buffer is used up, also while the
    /// session has no connection.
    ///
    /// # Errors
    /// `Misuse` if head or body are too long ([`crate::HEAD_BYTES_MAX`], [`crate::BODY_BYTES_MAX`]), the
    /// channel is a stream or was finished; `Reset`, `Closed`, `Lost` when channel or session are over.
    /// A message for which there was no error arrives, unless session or channel end before.
    pub fn send(&self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        self.send_if(head, body, || true).map(drop)
    }

    /// As [`Sender::send`], of a message that may turn out to be unwanted before there is room for it: gives whether it was
    /// sent. `is_wanted` is called under the session's lock, again whenever [`Sender::withdraw`] is.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_if(&self, head: &[u8], body: &[u8], is_wanted: impl Fn() -> bool) -> Result<bool, LinkError> {
        check_message(head, body)?;
        let Place { id, handle, waits } = &self.end.place;
        let (payload, check) = self.copied(&[head, body]);
        let bytes = head.len() + body.len();
        let header = Header {
            head_bytes: head.len() as u16,
            payload_bytes: bytes as u32,
            payload_check: check,
            ..Header::new(Kind::Message, *id, 0)
        };
        handle.shared.wait_to_send(*id, waits, |core| {
            if !is_wanted() {
                return Ok(Some(false));
            }
            let reserved = core.reserve_message(*id, bytes)?;
            Ok(reserved.map(|_| {
                core.push(*id, header, payload.clone());
                true
            }))
        })
    }

    /// Gives up messages that wait for a connection and are not wanted any more, by their heads: the heads of those that
    /// never arrive. What a connection has taken arrives.
    pub fn withdraw(&self, is_unwanted: impl FnMut(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let Place { id, handle, waits } = &self.end.place;
        let heads = handle.shared.with(|inner, _| inner.core.withdraw(*id, is_unwanted));
        waits.wake_senders();
        heads
    }

    /// Writes to a stream, as to a socket: waits until all is taken.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), LinkError> {
        let Place { id, handle, waits } = &self.end.place;
        if (1..=GATHER_WRITE_BYTES_MAX).contains(&bytes.len()) {
            return handle.shared.wait_to_send(*id, waits, |core| Ok(core.gather(*id, bytes)?.then_some(())));
        }
        while !bytes.is_empty() {
            let (at, length) =
                handle.shared.wait_to_send(*id, waits, |core| core.reserve_piece(*id, bytes.len()))?;
            let (piece, rest) = bytes.split_at(length);
            self.push_piece(at, piece);
            bytes = rest;
        }
        Ok(())
    }

    /// Queues a piece of a stream for which room was taken.
    fn push_piece(&self, at: u64, piece: &[u8]) {
        let (payload, check) = self.copied(&[piece]);
        self.push_payload(at, payload, check);
    }

    fn push_payload(&self, at: u64, payload: Payload, check: u32) {
        let Place { id, handle, .. } = &self.end.place;
        let header = Header {
            payload_bytes: payload.bytes().len() as u32,
            payload_check: check,
            ..Header::new(Kind::Data, *id, at)
        };
        handle.shared.with(|inner, _| inner.core.push(*id, header, payload));
    }

    /// Writes as much to a stream as there is room for now: how much that is. After 0 the waker is called
    /// once there is room; see [`Channel::wake_by`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, LinkError> {
        let Place { id, handle, .. } = &self.end.place;
        if (1..=GATHER_WRITE_BYTES_MAX).contains(&bytes.len()) {
            let gathered =
                handle.shared.try_to_send(*id, |core| Ok(core.gather(*id, bytes)?.then_some(bytes.len())))?;
            return Ok(gathered.unwrap_or(0));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let reserved = handle.shared.try_to_send(*id, |core| core.reserve_piece(*id, rest.len()))?;
            let Some((at, length)) = reserved else { break };
            let (piece, left) = rest.split_at(length);
            self.push_piece(at, piece);
            rest = left;
        }
        Ok(bytes.len() - rest.len())
    }

    /// A buffer of so many bytes, whatever they are, for [`Sender::try_give`].
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        self.end.place.handle.shared.pool.take_filled(bytes)
    }

    /// Gives a buffer back to be used again.
    pub fn give_back(&self, buffer: Vec<u8>) {
        self.end.place.handle.shared.pool.give(buffer);
    }

    /// As [`Sender::try_write`] of the first `bytes` of a buffer; but of a large piece the buffer itself is taken, so that
    /// it is not copied, and an empty one is left.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn try_give(&self, buffer: &mut Vec<u8>, bytes: usize) -> Result<usize, LinkError> {
        // What is sent is counted by its bytes, so it must not lie in a buffer that holds much more.
        if bytes <= GATHER_WRITE_BYTES_MAX || bytes < buffer.capacity() - buffer.capacity() / 8 {
            return self.try_write(&buffer[..bytes]);
        }
        let Place { id, handle, .. } = &self.end.place;
        let reserved = handle.shared.try_to_send(*id, |core| core.reserve_piece(*id, bytes))?;
        let Some((at, length)) = reserved else { return Ok(0) };
        if length < bytes {
            self.push_piece(at, &buffer[..length]);
            return Ok(length + self.try_write(&buffer[length..bytes])?);
        }
        let mut piece = std::mem::take(buffer);
        piece.truncate(bytes);
        let check = check(&piece);
        self.push_payload(at, Payload::pooled(piece, &handle.shared.pool), check);
        Ok(bytes)
    }

    /// Bytes of a stream that there is room for now, up to `wanted`. After 0 the waker is called once there is
    /// room; see [`Channel::wake_by`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn try_room(&self, wanted: usize) -> Result<usize, LinkError> {
        let Place { id, handle, .. } = &self.end.place;
        let room = handle.shared.try_to_send(*id, |core| {
            let room = core.stream_room(*id, wanted)?;
            Ok((room > 0).then_some(room))
        })?;
        Ok(room.unwrap_or(0))
    }

    /// Whether nothing can be sent any more: one side gave the channel up, or the session is over.
    pub fn is_given_up(&self) -> bool {
        let Place { id, handle, .. } = &self.end.place;
        let inner = handle.shared.lock();
        inner.core.ended().is_some() || inner.core.is_given_up(*id)
    }

    /// Whether it is the peer's credit that lets no byte be sent now: the program there reads no faster.
    pub fn lacks_credit(&self) -> bool {
        let Place { id, handle, .. } = &self.end.place;
        handle.shared.lock().core.lacks_credit(*id)
    }

    /// Whether something that was sent still waits for a connection to take it.
    pub fn waits_for_line(&self) -> bool {
        let Place { id, handle, .. } = &self.end.place;
        handle.shared.lock().core.waits_for_line(*id)
    }

    /// Says that no more will be sent: the peer reads to the end. The other direction stays open. May be
    /// said again.
    ///
    /// # Errors
    /// `Reset`, `Closed`, `Lost` when channel or session are over.
    pub fn finish(&self) -> Result<(), LinkError> {
        let Place { id, handle, .. } = &self.end.place;
        handle.shared.with(|inner, _| inner.core.finish(*id))
    }

    /// The same without keeping the channel open.
    pub fn downgrade(&self) -> WeakSender {
        WeakSender { end: Arc::downgrade(&self.end) }
    }

    /// Gives both directions up: the peer's calls fail with `Reset`, and so do this side's.
    pub fn reset(&self) {
        let Place { id, handle, .. } = &self.end.place;
        handle.shared.with(|inner, _| inner.core.reset(*id));
    }

    fn copied(&self, parts: &[&[u8]]) -> (Payload, u32) {
        let pool = &self.end.place.handle.shared.pool;
        let mut bytes = pool.take(parts.iter().map(|part| part.len()).sum());
        let mut check = 0;
        for piece in parts.iter().flat_map(|part| part.chunks(COPY_BYTES)) {
            bytes.extend_from_slice(piece);
            check = check_more(check, piece);
        }
        (Payload::pooled(bytes, pool), check)
    }
}

impl Receiver {
    /// The next message, whichever comes first; `None` after the peer's finish when all have been received.
    /// Several threads may wait.
    ///
    /// # Errors
    /// `Reset`, `Closed`, `Lost`, `Protocol` when channel or session are over; what arrived before a
    /// session's end can still be received. `Misuse` on streams.
    pub fn receive(&self) -> Result<Option<Message>, LinkError> {
        let Place { id, handle, waits } = &self.end.place;
        handle.shared.wait_to_receive(waits, |core| {
            Ok(match core.message(*id)? {
                Taken::Some(message) => Some(Some(message)),
                Taken::End => {
                    waits.wake_receivers();
                    Some(None)
                }
                Taken::Wait | Taken::Reset => None,
            })
        })
    }

    /// The next piece of a stream as it arrived, up to 128 KiB: `None` if there is none now, nothing in it at the
    /// end. The waker is called when more may be there; see [`Channel::wake_by`].
    ///
    /// # Errors
    /// As [`Receiver::receive`]; `Misuse` on channels of messages.
    pub fn try_piece(&self) -> Result<Option<Vec<u8>>, LinkError> {
        let Place { id, handle, .. } = &self.end.place;
        handle.shared.with(|inner, _| {
            Ok(match inner.core.piece(*id)? {
                Taken::Some(piece) => Some(piece),
                Taken::End => Some(Vec::new()),
                Taken::Wait | Taken::Reset => None,
            })
        })
    }

    /// Gives the buffer of a piece, or of a message's body, back to be used again. One that is not given back is no
    /// loss but of time.
    pub fn give_back(&self, buffer: Vec<u8>) {
        self.end.place.handle.shared.pool.give(buffer);
    }

    /// Reads some bytes of a stream; 0 at its end, or if `buffer` is empty.
    ///
    /// # Errors
    /// As [`Receiver::receive`]; `Misuse` on channels of messages.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, LinkError> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.read == self.piece.len() {
            let Place { id, handle, waits } = &self.end.place;
            handle.shared.pool.give(std::mem::take(&mut self.piece));
            self.read = 0;
            self.piece = handle.shared.wait_to_receive(waits, |core| {
                Ok(match core.piece(*id)? {
                    Taken::Some(piece) => Some(piece),
                    Taken::End => Some(Vec::new()),
                    Taken::Wait | Taken::Reset => None,
                })
            })?;
        }
        let left = &self.piece[self.read..];
        let length = left.len().min(buffer.len());
        buffer[..length].copy_from_slice(&left[..length]);
        self.read += length;
        Ok(length)
    }
}

impl Drop for SenderEnd {
    fn drop(&mut self) {
        self.place.leave(|core, id| core.drop_sender(id));
    }
}

impl Drop for ReceiverEnd {
    fn drop(&mut self) {
        self.place.leave(|core, id| core.drop_receiver(id));
    }
}

impl Place {
    fn leave(&self, leave: impl FnOnce(&mut crate::core::Core, ChannelId)) {
        self.handle.shared.with(|inner, _| {
            leave(&mut inner.core, self.id);
            if self.waits.leave() {
                inner.forget_waits(self.id);
            }
        });
    }
}
