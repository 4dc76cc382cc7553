//! The format of a link between two agents, version 1: greetings, frames, acknowledgements.
//!
//! ```text
//! greeting  what both sides say first on each connection: versions, features, who they are   TLV, any version
//! header    the fixed part of a frame                                                        36 bytes
//! frame     a decoder that turns bytes, as they come, into frames
//! ack       which frames arrived
//! ```
//!
//! Pure: bytes in, values out. All integers are little endian, as in drover's other formats. Everything
//! that comes from a peer has a bound that is checked before memory is taken for it. `docs/dev/link-format.md`
//! draws the same layouts and says how they are used.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use crc_fast::{CrcAlgorithm, Digest};

mod ack;
mod error;
mod frame;
mod greeting;
mod header;

pub use ack::{ACK_RANGES_MAX, Ack, WINDOW_FRAMES};
pub use error::WireError;
pub use frame::{Decoder, Frame};
pub use greeting::{
    ANNOUNCE_BYTES_MAX, Credits, FEATURE_RDMA, GREETING_BYTES_MAX, Greeting, Hello, NAME_BYTES_MAX, Refusal,
    RefusalCode, TEXT_BYTES_MAX, VERSION_MAX, VERSION_MIN, VERSIONS, VersionRange, Welcome, greeting_bytes,
};
pub use header::{HEADER_BYTES, Header, Kind};

/// Bytes that open a channel, at most.
pub const OPENING_BYTES_MAX: usize = 4096;

/// The head of a message, at most.
pub const HEAD_BYTES_MAX: usize = 1024;

/// The body of a message, at most: 1 MiB of a disk and 4 KiB about it.
pub const BODY_BYTES_MAX: usize = (1 << 20) + (4 << 10);

/// Bytes of a stream in one frame, at most. Smaller than a message: a byte stream waits for its
/// slowest stripe, so its pieces should be many.
pub const DATA_BYTES_MAX: usize = 128 << 10;

/// What a frame counts against credit beside its payload: the receiver's own record of it.
pub const FRAME_COST: u64 = 128;

/// What a frame with a payload of that many bytes costs of the credit of its channel and session.
pub fn cost(payload_bytes: usize) -> u64 {
    payload_bytes as u64 + FRAME_COST
}

/// The check of frames: CRC32C (Castagnoli). TLS already keeps what is on the line from being changed;
/// this finds damage in memory on either side, and mistakes.
pub fn check(bytes: &[u8]) -> u32 {
    check_more(0, bytes)
}

/// The check of bytes that follow others.
pub fn check_more(check: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!check));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, as the polynomial says it.
    fn slowly(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |state, byte| {
            (0..8)
                .fold(state ^ u32::from(*byte), |it, _| (it >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(it & 1)))
        })
    }

    proptest! {
        #[test]
        fn a_check_is_the_same_in_one_piece_and_in_two(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            cut in any::<prop::sample::Index>(),
        ) {
            let (one, two) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(check(&bytes), slowly(&bytes));
            prop_assert_eq!(check_more(check(one), two), check(&bytes));
        }
    }

    #[test]
    fn a_check_is_what_rfc_3720_says() {
        assert_eq!((check(b""), check(&[0; 32]), check(&[0xff; 32])), (0, 0x8a91_36aa, 0x62a8_ab43));
    }
}
