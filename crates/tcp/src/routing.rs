//! What a transparent relay needs: where a caught connection was meant to go, and addresses of others.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, getsockname, sockopt};

use crate::sys::{self, Name};

/// The address that a socket is bound to, an IPv4 one also where it came to an IPv6 socket.
///
/// # Errors
/// Those of getsockname, and `Unsupported` for a socket that is not IP's.
pub fn local_address(socket: impl AsFd) -> Result<SocketAddr> {
    let address = SocketAddr::try_from(getsockname(socket)?)
        .map_err(|_| Error::new(ErrorKind::Unsupported, "the socket has no IP address"))?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Where the client of a redirected connection wanted to go (SO_ORIGINAL_DST): the socket's own address if
/// the connection is tracked, but was not redirected.
///
/// # Errors
/// `NotFound` if the packet filter of this network namespace does not track the connection.
pub fn original_destination(socket: impl AsFd) -> Result<SocketAddr> {
    Ok(match local_address(&socket)?.ip() {
        IpAddr::V4(_) => sockopt::ip_original_dst(socket)?.into(),
        IpAddr::V6(_) => sockopt::ipv6_original_dst(socket)?.into(),
    })
}

fn by_family(socket: BorrowedFd<'_>, v4: Name, v6: Name) -> Result<()> {
    let name = if sockopt::socket_domain(socket)? == AddressFamily::INET6 { v6 } else { v4 };
    sys::set_int(socket, name, 1)
}

/// The socket may be bound to addresses that are not this host's, and take connections to them.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN (or CAP_NET_RAW).
pub fn set_transparent(socket: impl AsFd) -> Result<()> {
    let v4 = Name::new(libc::SOL_IP, libc::IP_TRANSPARENT);
    by_family(socket.as_fd(), v4, Name::new(libc::SOL_IPV6, libc::IPV6_TRANSPARENT))
}

/// A socket that is bound to an address and port 0 gets its port at connect, so that ports are used up
/// for each destination and not for all.
///
/// # Errors
/// Those of setsockopt.
pub fn set_bind_address_no_port(socket: impl AsFd) -> Result<()> {
    sys::set_int(socket.as_fd(), Name::new(libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT), 1)
}

/// Marks the packets of a socket for the packet filter and the routing rules.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN.
pub fn set_mark(socket: impl AsFd, mark: u32) -> Result<()> {
    sys::set_int(socket.as_fd(), Name::new(libc::SOL_SOCKET, libc::SO_MARK), mark.cast_signed())
}
