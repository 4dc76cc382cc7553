//! What waits for connections over RDMA.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use libc::c_int;

use crate::address::Address;
use crate::stream::{Handle, Stream, done, is_crowded};

/// Connections that wait to be accepted, at most.
const BACKLOG: c_int = 128;

/// A socket that is listened at.
pub struct Listener {
    handle: Handle,
}

impl Listener {
    /// Listens at an address. Its port is RDMA's: one of TCP with the same number is another.
    ///
    /// # Errors
    /// `Unsupported` if this host lacks library or device ([`crate::check`]); what the library says if the address is no device's,
    /// or its port is taken.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let handle = Handle::new(address)?;
        // As sockets of the standard library: a port that was used just now is taken again.
        handle.set(libc::SO_REUSEADDR, 1)?;
        handle.bind(address)?;
        // SAFETY: the socket is open; it takes numbers only.
        done(unsafe { (handle.library.rlisten)(handle.socket, BACKLOG) })?;
        Ok(Listener { handle })
    }

    /// Waits for the next connection, for so long. There is none while too many others are being closed, whoever opened them: what
    /// comes then waits, or goes over TCP.
    ///
    /// # Errors
    /// Those of the library.
    pub fn accept(&self, within: Duration) -> io::Result<Option<(Stream, SocketAddr)>> {
        if is_crowded() {
            thread::sleep(within);
            return Ok(None);
        }
        // Looked at in any case: the library may have accepted one between two looks of its own.
        let _ = self.handle.wait(libc::POLLIN, within)?;
        let (mut address, mut length) = Address::empty();
        let library = self.handle.library;
        // SAFETY: the socket is open, and the library writes `length` bytes of an address at most, for which there is room.
        let socket = unsafe { (library.raccept)(self.handle.socket, address.as_mut_ptr(), &raw mut length) };
        if socket <= 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::WouldBlock => Ok(None),
                error => Err(error),
            };
        }
        let handle = Handle::given(library, socket);
        handle.set_blocking(false)?;
        let Some(address) = address.told() else {
            return Err(io::Error::new(ErrorKind::InvalidData, "a peer without an address"));
        };
        Ok(Some((Stream::of(handle), address)))
    }
}
