//! The fixed part of a frame.
//!
//! ```text
//!  0  1  kind
//!  1  1  zero
//!  2  2  bytes of the head, which is the first part of the payload (messages)
//!  4  4  bytes of the payload
//!  8  4  channel: bit 0 is set if the side that dialled opened it, bit 1 if it carries messages; the rest
//!        counts the channels of that side, from 1. 0 is the session itself
//! 12  4  CRC32C of the payload
//! 16  8  sequence, from 1; 0 for frames that are not repeated
//! 24  8  number: what it means depends on the kind
//! 32  4  CRC32C of bytes 0..32
//! ```
//!
//! The header has a check of its own, so that a length is believed before the payload is there.

use crate::{
    ACK_RANGES_MAX, BODY_BYTES_MAX, DATA_BYTES_MAX, HEAD_BYTES_MAX, OPENING_BYTES_MAX, TEXT_BYTES_MAX,
    WireError, check,
};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 36;

const CHECKED_BYTES: usize = 32;

/// What a frame is for. Those up to `Credit` carry a sequence number: they are kept until the peer
/// acknowledges them, and sent again on another connection if theirs ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Opens a channel. Payload: the opening.
    Open = 1,
    /// Bytes of a stream. Number: offset of the first.
    Data = 2,
    /// A message: head and body.
    Message = 3,
    /// No more will be sent. Number: bytes of the whole stream, or messages.
    Finish = 4,
    /// What was being sent ends early. Number: 0, at once; else one more than the bytes of the stream, or
    /// messages, that were sent and still count.
    Reset = 5,
    /// The sender of this reads no more; the peer should send no more.
    Stop = 6,
    /// Number: how much may have been sent in all on this channel, or session (channel 0), in cost.
    Credit = 7,
    /// Which frames arrived, see [`crate::Ack`]. Number: all below it did.
    Ack = 8,
    /// Asks for a pong with the same number.
    Ping = 9,
    /// Answers a ping.
    Pong = 10,
    /// Nothing more will be sent on this connection; others go on.
    Retire = 11,
    /// The session is over. Payload: why, text.
    Bye = 12,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::Open,
        Kind::Data,
        Kind::Message,
        Kind::Finish,
        Kind::Reset,
        Kind::Stop,
        Kind::Credit,
        Kind::Ack,
        Kind::Ping,
        Kind::Pong,
        Kind::Retire,
        Kind::Bye,
    ];

    fn of(code: u8) -> Result<Kind, WireError> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == code).ok_or(WireError::Kind(code))
    }

    /// Whether frames of this kind are numbered, acknowledged and repeated.
    pub fn is_sequenced(self) -> bool {
        (self as u8) <= Kind::Credit as u8
    }

    /// Bytes a payload may have.
    pub fn payload_bytes_max(self) -> usize {
        match self {
            Kind::Open => OPENING_BYTES_MAX,
            Kind::Data => DATA_BYTES_MAX,
            Kind::Message => HEAD_BYTES_MAX + BODY_BYTES_MAX,
            Kind::Ack => ACK_RANGES_MAX * 8,
            Kind::Bye => TEXT_BYTES_MAX,
            Kind::Finish
            | Kind::Reset
            | Kind::Stop
            | Kind::Credit
            | Kind::Ping
            | Kind::Pong
            | Kind::Retire => 0,
        }
    }

    fn is_about_a_channel(self) -> bool {
        matches!(
            self,
            Kind::Open | Kind::Data | Kind::Message | Kind::Finish | Kind::Reset | Kind::Stop | Kind::Credit
        )
    }
}

/// A header, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// Bytes of the payload that are the message's head.
    pub head_bytes: u16,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Channel; 0 is the session.
    pub channel: u32,
    /// CRC32C of the payload.
    pub payload_check: u32,
    /// Sequence, from 1; 0 for kinds that have none.
    pub sequence: u64,
    /// What [`Kind`] says.
    pub number: u64,
}

impl Header {
    /// A header of a frame without payload.
    pub fn new(kind: Kind, channel: u32, number: u64) -> Header {
        Header { kind, head_bytes: 0, payload_bytes: 0, channel, payload_check: 0, sequence: 0, number }
    }

    /// Adds what is known of the payload.
    pub fn with_payload(self, payload: &[u8]) -> Header {
        Header { payload_bytes: payload.len() as u32, payload_check: check(payload), ..self }
    }

    /// The bytes of the frame.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes as usize
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.head_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.channel.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_check.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        let check = check(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Understands a header.
    ///
    /// # Errors
    /// When the check fails, the kind is unknown, or a field is not what the kind allows.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, WireError> {
        if check(&bytes[..CHECKED_BYTES]) != word(bytes, CHECKED_BYTES) {
            return Err(WireError::HeaderCheck);
        }
        let header = Header {
            kind: Kind::of(bytes[0])?,
            head_bytes: u16::from_le_bytes([bytes[2], bytes[3]]),
            payload_bytes: word(bytes, 4),
            channel: word(bytes, 8),
            payload_check: word(bytes, 12),
            sequence: long(bytes, 16),
            number: long(bytes, 24),
        };
        header.checked(bytes[1])
    }

    fn checked(self, zero: u8) -> Result<Header, WireError> {
        let kind = self.kind;
        let field = |field| Err(WireError::Field { kind, field });
        let length = |bytes| Err(WireError::Length { kind, bytes });
        if zero != 0 {
            return field("flag");
        }
        let (payload, head) = (self.payload_bytes as usize, usize::from(self.head_bytes));
        if payload > kind.payload_bytes_max() || (kind == Kind::Data && payload == 0) {
            return length(payload);
        }
        let head_max = if kind == Kind::Message { HEAD_BYTES_MAX.min(payload) } else { 0 };
        if head > head_max || payload - head > BODY_BYTES_MAX {
            return length(head);
        }
        if (self.sequence != 0) != kind.is_sequenced() {
            return field("sequence");
        }
        // Credit may be about the session, which is channel 0; nothing else of a channel may.
        match kind.is_about_a_channel() {
            true if self.channel == 0 && kind != Kind::Credit => field("channel"),
            false if self.channel != 0 => field("channel"),
            _ => Ok(self),
        }
    }
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        (0..Kind::ALL.len(), any::<(u32, u32, u64, u64)>(), 0..=HEAD_BYTES_MAX, 0..=BODY_BYTES_MAX).prop_map(
            |(kind, (channel, payload_check, sequence, number), head, body)| {
                let kind = Kind::ALL[kind];
                let head = if kind == Kind::Message { head } else { 0 };
                let least = usize::from(kind == Kind::Data);
                Header {
                    kind,
                    head_bytes: head as u16,
                    payload_bytes: (head + body.min(kind.payload_bytes_max().min(BODY_BYTES_MAX))).max(least)
                        as u32,
                    channel: if kind.is_about_a_channel() { channel.max(1) } else { 0 },
                    payload_check,
                    sequence: if kind.is_sequenced() { sequence.max(1) } else { 0 },
                    number,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_header_reads_back(header in header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_flipped_bit_is_found(header in header(), bit in 0..HEADER_BYTES * 8) {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }

    fn sealed(change: impl Fn(&mut Header)) -> Result<Header, WireError> {
        let mut header = Header { sequence: 1, ..Header::new(Kind::Message, 1, 0) };
        change(&mut header);
        Header::decode(&header.encode())
    }

    #[test]
    fn lengths_beyond_the_bounds_are_refused_before_memory_is_taken() {
        let too_long = (HEAD_BYTES_MAX + BODY_BYTES_MAX + 1) as u32;
        assert!(matches!(sealed(|it| it.payload_bytes = too_long), Err(WireError::Length { .. })));
        let body = (BODY_BYTES_MAX + 1) as u32;
        assert!(matches!(sealed(|it| it.payload_bytes = body), Err(WireError::Length { .. })));
        assert!(matches!(sealed(|it| it.head_bytes = 1), Err(WireError::Length { .. })));
        assert!(matches!(
            sealed(|it| (it.payload_bytes, it.head_bytes) = (2000, 1025)),
            Err(WireError::Length { .. })
        ));
        assert!(matches!(sealed(|it| it.kind = Kind::Data), Err(WireError::Length { .. })));
    }

    #[test]
    fn fields_that_do_not_fit_the_kind_are_refused() {
        assert_eq!(
            sealed(|it| it.sequence = 0),
            Err(WireError::Field { kind: Kind::Message, field: "sequence" })
        );
        assert_eq!(
            sealed(|it| it.channel = 0),
            Err(WireError::Field { kind: Kind::Message, field: "channel" })
        );
        assert_eq!(
            sealed(|it| it.kind = Kind::Ping),
            Err(WireError::Field { kind: Kind::Ping, field: "sequence" })
        );
        assert!(sealed(|it| (it.kind, it.channel) = (Kind::Credit, 0)).is_ok());
    }
}
