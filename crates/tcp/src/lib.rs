//! What the kernel lets us ask and tell about a TCP socket, as safe functions.
//!
//! The wall around the calls that rustix does not wrap, these options, one question about files and one order to the C
//! library: everything unsafe is in the private module `sys`, a few calls long. Linux only.
//!
//! ```text
//! info        pure: what TCP_INFO tells of a connection, from any kernel's bytes
//! congestion  which congestion control a socket has, and which there are
//! options     buffers and wake-ups, time limits, ends of connections
//! offloads    which work a network interface takes off the processor
//! routing     what a transparent relay needs: original destinations, foreign addresses
//! lease       whether a file is open for writing
//! heap        how many heaps the C library keeps for threads
//! unix        connecting to unix sockets without waiting for ever
//! sys         the calls
//! ```
//!
//! All functions take any socket by reference (`&TcpStream`, `&OwnedFd`) and fail with the kernel's
//! own error, in which a missing permission is `PermissionDenied`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod congestion;
mod heap;
mod info;
mod lease;
mod offloads;
mod options;
mod routing;
mod sys;
mod unix;

pub use congestion::{BBR, available_congestion, best_congestion, congestion, set_congestion};
pub use heap::keep_few_heaps;
pub use info::{Info, State, info};
pub use lease::is_open_for_writing;
pub use offloads::{Offloads, offloads};
pub use options::{
    Keepalive, Limits, end_on_close, keep_urgent_in_line, not_sent_low_water, peer_user, receive_low_water,
    reset_on_close, set_dead_peer_timeout, set_keepalive, set_not_sent_low_water, set_pacing_rate_max,
    set_receive_buffer, set_receive_low_water, set_send_buffer, unacknowledged,
};
pub use routing::{local_address, original_destination, set_bind_address_no_port, set_mark, set_transparent};
pub use unix::connect_unix;
