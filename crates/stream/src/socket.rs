use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, sendmsg, sockopt};

use crate::dial::{connect_tcp, connect_unix};

/// Room asked for what we send over a Unix socket, where the default is 208 KiB. For TCP the kernel
/// finds the right size itself, and would stop doing so if we set one.
const UNIX_SEND_BYTES: usize = 2 << 20;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, without brackets, and port.
    Tcp(String, u16),
    /// Path of a Unix socket; one that starts with a zero byte is an abstract one.
    Unix(PathBuf),
}

/// A connected stream.
#[derive(Debug)]
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// On this machine.
    Unix(UnixStream),
}

impl Socket {
    /// Connects, in `timeout` at most.
    pub fn connect(address: &Address, timeout: Duration) -> io::Result<Socket> {
        let socket = match address {
            Address::Tcp(host, port) => Socket::Tcp(connect_tcp(host, *port, timeout)?),
            Address::Unix(path) => Socket::Unix(connect_unix(path, timeout)?),
        };
        // Both are a matter of speed only.
        let _ = match &socket {
            Socket::Tcp(stream) => stream.set_nodelay(true),
            Socket::Unix(_) => {
                sockopt::set_socket_send_buffer_size(&socket, UNIX_SEND_BYTES).map_err(Into::into)
            }
        };
        socket.set_timeout(timeout)?;
        Ok(socket)
    }

    /// Another handle of the same connection.
    ///
    /// # Errors
    /// When the system has no more.
    pub fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(stream) => stream.try_clone().map(Socket::Tcp),
            Socket::Unix(stream) => stream.try_clone().map(Socket::Unix),
        }
    }

    /// Ends the connection, whoever else has a handle of it.
    pub fn end(&self) {
        // One that has ended already is what is wanted.
        let _ = rustix::net::shutdown(self, rustix::net::Shutdown::Both);
    }

    /// The longest time to wait for the next byte, or for room for one.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)))
            }
        }
    }

    /// Receives some bytes, or all that `bytes` has room for if `fill`; waits for the first.
    pub fn receive(&self, bytes: &mut [u8], fill: bool) -> io::Result<usize> {
        let flags = if fill { RecvFlags::WAITALL } else { RecvFlags::empty() };
        match self.receive_with(bytes, flags) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(timed_out()),
            result => result,
        }
    }

    /// Receives what is there; `None` if that is nothing.
    pub fn receive_now(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match self.receive_with(bytes, RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            result => result.map(Some),
        }
    }

    fn receive_with(&self, bytes: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        loop {
            match recv(self, &mut *bytes, flags) {
                Ok((0, _)) if !bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::INTR) => {}
                result => return Ok(result?.0),
            }
        }
    }

    /// Sends what there is room for now; 0 if there is none.
    pub fn send_now(&self, head: &[u8], data: &[u8]) -> io::Result<usize> {
        let parts = [IoSlice::new(head), IoSlice::new(data)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(self, &parts, &mut Default::default(), flags) {
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(0),
                result => return Ok(result?),
            }
        }
    }

    /// Waits until there is a byte to receive or room to send; whether it is a byte.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        // A hangup or error shows itself by what the next receive returns.
        let events = self.poll(PollFlags::IN | PollFlags::OUT, timeout)?;
        Ok(events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    /// Waits until there is a byte to receive, or the end; false if none came.
    pub fn wait_to_receive(&self, timeout: Duration) -> io::Result<bool> {
        match self.poll(PollFlags::IN, timeout) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            result => result.map(|_| true),
        }
    }

    /// Waits until there is room to send.
    pub fn wait_to_send(&self, timeout: Duration) -> io::Result<()> {
        self.poll(PollFlags::OUT, timeout).map(drop)
    }

    fn poll(&self, flags: PollFlags, timeout: Duration) -> io::Result<PollFlags> {
        let mut fds = [PollFd::new(self, flags)];
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        loop {
            match poll(&mut fds, Some(&timeout)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(timed_out()),
                result => {
                    result?;
                    return Ok(fds[0].revents());
                }
            }
        }
    }
}

/// The error of a server that is silent.
pub fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server was silent for too long")
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}
