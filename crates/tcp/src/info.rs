//! What the kernel knows of a connection.
//!
//! `struct tcp_info` grew over the years and never changed what it had: a kernel fills as much as it
//! knows and says how many bytes that is. Fields beyond are zero here. Native byte order:
//!
//! | offset | bytes | field | | offset | bytes | field |
//! |---|---|---|---|---|---|---|
//! | 0 | 1 | state | | 120 | 8 | bytes acked |
//! | 2 | 1 | timeouts in a row | | 128 | 8 | bytes received |
//! | 7 | 1 | bit 0: the application limits the rate | | 136, 140 | 4 | segments out, in |
//! | 16 | 4 | segment size | | 144 | 4 | bytes not sent |
//! | 24 | 4 | segments in flight | | 148 | 4 | smallest RTT, µs |
//! | 32 | 4 | segments lost | | 160 | 8 | delivery rate |
//! | 60 | 4 | path MTU | | 168, 176, 184 | 8 | busy, limited by window, by buffer, µs |
//! | 68, 72 | 4 | RTT, its variation, µs | | 200, 208 | 8 | bytes sent, sent again |
//! | 192 | 4 | segments delivered | | | | |
//! | 80 | 4 | window in segments | | 224 | 4 | segments out of order |
//! | 100 | 4 | segments sent again | | 228 | 4 | the peer's window |
//! | 104, 112 | 8 | pacing rate, its limit | | | | |
//!
//! Source: Linux `include/uapi/linux/tcp.h`.

use std::io::Result;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::sys::{self, Name};

/// Longer than any kernel's answer so far (248 bytes in Linux 6.18); what is beyond is left out.
const BYTES_MAX: usize = 320;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Both ways are open.
    Established,
    /// The handshake is under way.
    Connecting,
    /// One side has said its last byte, or both have.
    Closing,
    /// Over, or not begun.
    Closed,
    /// Waits for connections.
    Listening,
}

impl State {
    fn of(byte: u8) -> State {
        match byte {
            1 => State::Established,
            2 | 3 | 12 => State::Connecting,
            4 | 5 | 6 | 8 | 9 | 11 => State::Closing,
            10 => State::Listening,
            _ => State::Closed,
        }
    }
}

/// A connection as the kernel sees it. All counts are since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where it is in its life.
    pub state: State,
    /// Retransmission timeouts in a row without an answer.
    pub timeouts: u8,
    /// Whether the delivery rate was limited by what the application gave.
    pub is_application_limited: bool,
    /// Largest segment sent, in bytes.
    pub segment_bytes: u32,
    /// Segments sent and not acknowledged.
    pub segments_in_flight: u32,
    /// Of these, held for lost now.
    pub segments_lost: u32,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_variation: Duration,
    /// Smallest round trip in the kernel's window (300 s); zero before the first sample.
    pub rtt_min: Duration,
    /// Congestion window in segments.
    pub window_segments: u32,
    /// Segments sent again.
    pub segments_again: u32,
    /// Rate the kernel paces at, bytes a second; `u64::MAX` if it does not.
    pub pacing_rate: u64,
    /// Bytes that the peer acknowledged.
    pub bytes_acknowledged: u64,
    /// Bytes that came and were acknowledged.
    pub bytes_received: u64,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments received.
    pub segments_in: u32,
    /// Bytes given to the socket and not sent yet.
    pub bytes_not_sent: u32,
    /// Latest measured rate of delivery, bytes a second.
    pub delivery_rate: u64,
    /// Time with something to send.
    pub busy: Duration,
    /// Of that, time in which the peer's window was full.
    pub limited_by_window: Duration,
    /// Of that, time in which the socket's send buffer was full.
    pub limited_by_buffer: Duration,
    /// Segments that arrived at the peer, in any order; zero before Linux 4.18. Wraps around.
    pub segments_delivered: u32,
    /// Bytes sent, those sent again included; zero before Linux 4.19.
    pub bytes_sent: u64,
    /// Bytes sent again; zero before Linux 4.19.
    pub bytes_again: u64,
    /// Segments that came out of order; zero before Linux 5.4.
    pub segments_out_of_order: u32,
    /// The window that the peer told last, in bytes; zero before Linux 5.4.
    pub peer_window_bytes: u32,
}

impl Info {
    /// Reads what a kernel filled in.
    pub fn parse(bytes: &[u8]) -> Info {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let word = |at: usize| u32::from_ne_bytes(field(bytes, at));
        let long = |at: usize| u64::from_ne_bytes(field(bytes, at));
        let micros = |at: usize| Duration::from_micros(word(at).into());
        Info {
            state: State::of(byte(0)),
            timeouts: byte(2),
            is_application_limited: byte(7) & 1 == 1,
            segment_bytes: word(16),
            segments_in_flight: word(24),
            segments_lost: word(32),
            path_mtu: word(60),
            rtt: micros(68),
            rtt_variation: micros(72),
            rtt_min: some_rtt(word(148)),
            window_segments: word(80),
            segments_again: word(100),
            pacing_rate: long(104),
            bytes_acknowledged: long(120),
            bytes_received: long(128),
            segments_out: word(136),
            segments_in: word(140),
            bytes_not_sent: word(144),
            delivery_rate: long(160),
            busy: Duration::from_micros(long(168)),
            limited_by_window: Duration::from_micros(long(176)),
            limited_by_buffer: Duration::from_micros(long(184)),
            segments_delivered: word(192),
            bytes_sent: long(200),
            bytes_again: long(208),
            segments_out_of_order: word(224),
            peer_window_bytes: word(228),
        }
    }
}

/// The field at an offset; zero where the kernel told less.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

/// The kernel says `u32::MAX` before the first sample.
fn some_rtt(micros: u32) -> Duration {
    if micros == u32::MAX { Duration::ZERO } else { Duration::from_micros(micros.into()) }
}

/// What the kernel knows of a connection now.
///
/// # Errors
/// Those of getsockopt: not a TCP socket.
pub fn info(socket: impl AsFd) -> Result<Info> {
    let mut bytes = [0; BYTES_MAX];
    let length = sys::get(socket.as_fd(), Name::new(libc::SOL_TCP, libc::TCP_INFO), &mut bytes)?;
    Ok(Info::parse(&bytes[..length]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_old_kernels_short_answer_leaves_the_rest_zero() {
        let mut bytes = [0; 104];
        bytes[0] = 1;
        bytes[68..72].copy_from_slice(&55_000_u32.to_ne_bytes());
        bytes[100..104].copy_from_slice(&7_u32.to_ne_bytes());
        let info = Info::parse(&bytes);
        assert_eq!((info.state, info.rtt, info.segments_again), (State::Established, ms(55), 7));
        assert_eq!((info.bytes_sent, info.delivery_rate, info.rtt_min), (0, 0, Duration::ZERO));
    }

    #[test]
    fn no_sample_of_the_smallest_round_trip_is_none() {
        let mut bytes = [0; 248];
        bytes[148..152].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Info::parse(&bytes).rtt_min, Duration::ZERO);
        bytes[148..152].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(Info::parse(&bytes).rtt_min, Duration::from_micros(9));
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    proptest! {
        #[test]
        fn any_answer_is_read_and_a_longer_one_adds_only(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let info = Info::parse(&bytes);
            let mut longer = bytes.clone();
            longer.resize(bytes.len() + 32, 0);
            // A field that was cut off may show now; those that were whole stay.
            if bytes.len() >= 232 {
                prop_assert_eq!(Info::parse(&longer), info);
            }
        }
    }
}
