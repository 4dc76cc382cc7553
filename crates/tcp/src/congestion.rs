//! Congestion control: which one a socket has, and which there are.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// The one that loss does not slow down.
pub const BBR: &str = "bbr";

/// Where Linux tells which are loaded; one list for the whole machine.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// What the kernel calls the longest (TCP_CA_NAME_MAX - 1).
const NAME_BYTES_MAX: usize = 15;

/// The congestion control that sends this socket's bytes.
///
/// # Errors
/// Those of getsockopt: not a TCP socket.
pub fn congestion(socket: impl AsFd) -> Result<String> {
    Ok(sockopt::tcp_congestion(socket)?)
}

/// Chooses a congestion control, before or while connected. The kernel loads its module if it may.
///
/// # Errors
/// `NotFound` if this kernel has none of that name, `PermissionDenied` if it is there but not among
/// those that any user may choose (`net.ipv4.tcp_allowed_congestion_control`).
pub fn set_congestion(socket: impl AsFd, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let text = format!("'{name}' is not the name of a congestion control (1 to {NAME_BYTES_MAX} bytes)");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(sockopt::set_tcp_congestion(socket, name)?)
}

/// Those that are loaded now, in the kernel's order. More may be loaded at the first use.
///
/// # Errors
/// Those of reading the kernel's file.
pub fn available_congestion() -> Result<Vec<String>> {
    Ok(std::fs::read_to_string(AVAILABLE)?.split_whitespace().map(str::to_string).collect())
}

/// Chooses `wanted`, or leaves what the socket has if that cannot be; gives what the socket has now.
///
/// # Errors
/// Only if the socket does not tell.
pub fn best_congestion(socket: impl AsFd, wanted: &str) -> Result<String> {
    // What is there is told by the answer, and better than no connection.
    let _ = set_congestion(&socket, wanted);
    congestion(socket)
}
