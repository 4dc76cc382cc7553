//! Unix sockets that are connected to, but not waited for for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Between two tries to get into a listener's queue.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// Connects to a unix socket. A blocking connect waits for a place in the listener's queue for ever; this one for so
/// long. The socket is one that does not block.
///
/// # Errors
/// `WouldBlock` if the queue is full, and those of the kernel: `ConnectionRefused` if nobody listens.
pub fn connect_unix(address: &SocketAddrUnix, within: Duration) -> io::Result<OwnedFd> {
    let until = Instant::now() + within;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(QUEUE_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}
