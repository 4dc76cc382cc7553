//! Buffers and wake-ups, time limits, ends of connections.

use std::ffi::c_int;
use std::io::Result;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::sys::{self, Name};

const NOT_SENT_LOW_WATER: Name = Name::new(libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT);
const RECEIVE_LOW_WATER: Name = Name::new(libc::SOL_SOCKET, libc::SO_RCVLOWAT);
const PACING_RATE_MAX: Name = Name::new(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);

/// An int of the kernel's from a number of bytes; what is larger means as much as there is.
fn int(value: u64) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// The socket counts as writable only while fewer bytes than this wait unsent in it, so that what is
/// written late can still choose another way. Zero takes the limit away.
///
/// # Errors
/// Those of setsockopt.
pub fn set_not_sent_low_water(socket: impl AsFd, bytes: u32) -> Result<()> {
    // Zero is not "off" in the kernel: that is all ones.
    let value = if bytes == 0 { u32::MAX } else { bytes };
    sys::set(socket.as_fd(), NOT_SENT_LOW_WATER, &value.to_ne_bytes())
}

/// What [`set_not_sent_low_water`] set; zero if there is no limit of this socket's own.
///
/// # Errors
/// Those of getsockopt.
pub fn not_sent_low_water(socket: impl AsFd) -> Result<u32> {
    let value = sys::get_int(socket.as_fd(), NOT_SENT_LOW_WATER)?.cast_unsigned();
    Ok(if value == u32::MAX { 0 } else { value })
}

/// The socket counts as readable only once this many bytes wait in it, or its end. One is the
/// kernel's own setting. The kernel takes at most half of the receive buffer's limit.
///
/// A reader that sets this must look by itself, too: fewer bytes wake nobody, however long they wait.
///
/// # Errors
/// Those of setsockopt.
pub fn set_receive_low_water(socket: impl AsFd, bytes: u32) -> Result<()> {
    sys::set_int(socket.as_fd(), RECEIVE_LOW_WATER, int(bytes.into()))
}

/// What is in force for [`set_receive_low_water`].
///
/// # Errors
/// Those of getsockopt.
pub fn receive_low_water(socket: impl AsFd) -> Result<u32> {
    Ok(sys::get_int(socket.as_fd(), RECEIVE_LOW_WATER)?.try_into().unwrap_or(0))
}

/// Sends no faster than this many bytes a second. The kernel paces by itself, also without the fq
/// queue discipline.
///
/// # Errors
/// Those of setsockopt.
pub fn set_pacing_rate_max(socket: impl AsFd, bytes_per_second: u64) -> Result<()> {
    sys::set(socket.as_fd(), PACING_RATE_MAX, &bytes_per_second.to_ne_bytes())
}

/// What limited a buffer's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the kernel gives to data and its own books (twice what was asked for, at most).
    pub bytes: usize,
    /// Whether the host's limit (`net.core.wmem_max`, `rmem_max`) made it smaller than was asked for.
    pub is_limited: bool,
}

/// Gives the send buffer a fixed size: autotuning ends. With CAP_NET_ADMIN also beyond
/// `net.core.wmem_max`.
///
/// # Errors
/// Those of setsockopt.
pub fn set_send_buffer(socket: impl AsFd, bytes: usize) -> Result<Limits> {
    if sockopt::set_socket_send_buffer_size_force(&socket, bytes).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, bytes)?;
    }
    let given = sockopt::socket_send_buffer_size(socket)?;
    Ok(Limits { bytes: given, is_limited: given < bytes.saturating_mul(2) })
}

/// Gives the receive buffer a fixed size: autotuning ends. To be set before the connection is made, or
/// the window's scale does not fit. With CAP_NET_ADMIN also beyond `net.core.rmem_max`.
///
/// # Errors
/// Those of setsockopt.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> Result<Limits> {
    if sockopt::set_socket_recv_buffer_size_force(&socket, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    let given = sockopt::socket_recv_buffer_size(socket)?;
    Ok(Limits { bytes: given, is_limited: given < bytes.saturating_mul(2) })
}

/// Gives the connection up when bytes stay unacknowledged for so long (milliseconds; zero: the
/// kernel's own limit, some 15 minutes). Applies to probes of a closed window as well.
///
/// # Errors
/// Those of setsockopt.
pub fn set_dead_peer_timeout(socket: impl AsFd, timeout: Duration) -> Result<()> {
    let ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, ms)?)
}

/// Asks a silent peer whether it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first question; whole seconds, at least one.
    pub idle: Duration,
    /// Between questions; whole seconds, at least one.
    pub interval: Duration,
    /// Questions without an answer until the connection is given up.
    pub probes: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(10), probes: 6 }
    }
}

/// Switches questions to a silent peer on.
///
/// # Errors
/// Those of setsockopt.
pub fn set_keepalive(socket: impl AsFd, keepalive: Keepalive) -> Result<()> {
    let whole = |time: Duration| Duration::from_secs(time.as_secs().max(1));
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, whole(keepalive.idle))?;
    sockopt::set_tcp_keepintvl(&socket, whole(keepalive.interval))?;
    Ok(sockopt::set_tcp_keepcnt(&socket, keepalive.probes)?)
}

/// Urgent bytes stay where they are in the stream, instead of vanishing from it.
///
/// # Errors
/// Those of setsockopt.
pub fn keep_urgent_in_line(socket: impl AsFd) -> Result<()> {
    Ok(sockopt::set_socket_oobinline(socket, true)?)
}

/// When the socket is closed, the peer gets a reset instead of an end, and what was not sent is dropped.
///
/// # Errors
/// Those of setsockopt.
pub fn reset_on_close(socket: impl AsFd) -> Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

/// Takes [`reset_on_close`] back: closing is an end again, and what was written is still sent.
///
/// # Errors
/// Those of setsockopt.
pub fn end_on_close(socket: impl AsFd) -> Result<()> {
    Ok(sockopt::set_socket_linger(socket, None)?)
}

/// The user whose process made the other end of a unix socket, or listened there.
///
/// # Errors
/// Those of getsockopt.
pub fn peer_user(socket: impl AsFd) -> Result<u32> {
    // `struct ucred`: process, user, group. The process may be 0, of another namespace.
    let mut bytes = [0; size_of::<libc::ucred>()];
    let length = sys::get(socket.as_fd(), Name::new(libc::SOL_SOCKET, libc::SO_PEERCRED), &mut bytes)?;
    match bytes.get(4..8).filter(|_| length >= 8) {
        Some(user) => Ok(u32::from_ne_bytes([user[0], user[1], user[2], user[3]])),
        None => Err(std::io::Error::other(format!("credentials of {length} bytes"))),
    }
}

/// Bytes written to the socket that the peer has not acknowledged.
///
/// # Errors
/// Those of ioctl: a listening socket has none.
pub fn unacknowledged(socket: impl AsFd) -> Result<u32> {
    // SIOCOUTQ has this number, too.
    Ok(sys::ioctl_int(socket.as_fd(), libc::TIOCOUTQ as libc::c_ulong)?.try_into().unwrap_or(0))
}
