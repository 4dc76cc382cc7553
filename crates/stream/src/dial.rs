//! Connecting, with a limit on time.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt,
};

use crate::socket::timed_out;

/// After this long the next address of a name is tried beside the ones that have not answered.
const HEAD_START: Duration = Duration::from_millis(250);

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Connects to the address of `host` that answers first.
///
/// One that swallows packets costs [`HEAD_START`], not the whole time: hosts often have an IPv6
/// address that leads nowhere. Looking the name up has the resolver's own limits.
pub fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    // The resolver's errors have no kind. A name that is not known now may be later, as a host that is away.
    let unknown = |why: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::HostUnreachable, format!("the name {host} has no address: {why}"))
    };
    let found = (host, port).to_socket_addrs().map_err(|error| unknown(&error))?;
    let addresses: VecDeque<_> = found.take(ADDRESSES_MAX).collect();
    if addresses.is_empty() {
        return Err(unknown(&"the resolver found none"));
    }
    let stream = TcpStream::from(race(addresses, timeout)?);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn race(mut addresses: VecDeque<SocketAddr>, timeout: Duration) -> io::Result<OwnedFd> {
    let until = Instant::now() + timeout;
    let mut next = Instant::now();
    let (mut trying, mut last): (Vec<OwnedFd>, _) = (Vec::new(), timed_out());
    loop {
        let now = Instant::now();
        if now >= until || (trying.is_empty() && addresses.is_empty()) {
            return Err(last);
        }
        if (now >= next || trying.is_empty())
            && let Some(address) = addresses.pop_front()
        {
            next = now + HEAD_START;
            match start(address) {
                Ok(socket) => trying.push(socket),
                Err(error) => last = error,
            }
            continue;
        }
        let wake = if addresses.is_empty() { until } else { until.min(next) };
        let ready = wait(&trying, wake.saturating_duration_since(now))?;
        for (index, _) in ready.iter().enumerate().rev().filter(|(_, ready)| **ready) {
            let socket = trying.remove(index);
            match sockopt::socket_error(&socket)? {
                Ok(()) => return Ok(socket),
                Err(errno) => last = errno.into(),
            }
        }
    }
}

fn start(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// Which sockets have an outcome.
fn wait(sockets: &[OwnedFd], time: Duration) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut fds, Some(&time)) {
        Err(Errno::INTR) => Ok(vec![false; sockets.len()]),
        result => {
            result?;
            Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
        }
    }
}

/// With a time limit, which the standard library does not offer here: the connect waits while the
/// server's backlog is full.
pub fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    let address = match path.as_os_str().as_bytes() {
        [0, name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path)?,
    };
    match connect(&socket, &address) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(Errno::WOULDBLOCK) => Err(timed_out()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_address_that_answers_is_taken_wherever_it_stands() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let refused: SocketAddr = "127.0.0.1:1".parse().unwrap();
        // Reserved for documentation: no answer, or an error of the routing.
        let silent: SocketAddr = "192.0.2.1:9".parse().unwrap();
        for addresses in [vec![good, refused], vec![refused, good], vec![silent, refused, good]] {
            let stream = TcpStream::from(race(addresses.into(), Duration::from_secs(20)).unwrap());
            assert_eq!(stream.peer_addr().unwrap(), good);
        }
    }

    #[test]
    fn nobody_there_is_an_error_that_says_why() {
        let refused: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let error = race([refused, refused].into(), Duration::from_secs(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn an_abstract_socket_is_found() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let name = format!("drover-nbd-test-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        connect_unix(Path::new(&format!("\0{name}")), Duration::from_secs(5)).unwrap();
        drop(listener);
    }
}
