use std::io;
use std::time::Duration;

use crate::Tls;
use crate::socket::Socket;
use crate::tls_stream::TlsStream;

/// Bytes to and from a server, in the clear or through TLS.
pub enum Stream {
    /// In the clear.
    Plain(Socket),
    /// Through TLS.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Goes on in TLS. Nothing that the server sent in the clear is taken over: all of it was read
    /// exactly, and what is left in the socket must be TLS.
    pub fn into_tls(self, tls: &Tls, limit: Duration) -> io::Result<Stream> {
        match self {
            Stream::Plain(socket) => Ok(Stream::Tls(Box::new(TlsStream::start(socket, tls, limit)?))),
            Stream::Tls(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "TLS in TLS")),
        }
    }

    /// The socket itself: TLS ends here without `close_notify`, whatever follows.
    ///
    /// # Errors
    /// If the server has sent more than was received.
    pub fn into_socket(self) -> io::Result<Socket> {
        match self {
            Stream::Plain(socket) => Ok(socket),
            Stream::Tls(stream) => stream.into_socket(),
        }
    }

    /// The socket once more, to be waited at while others use the stream.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn watch(&self) -> io::Result<Socket> {
        match self {
            Stream::Plain(socket) => socket.try_clone(),
            Stream::Tls(stream) => stream.watch(),
        }
    }

    /// The longest time to wait for the next byte, or for room for one.
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.set_timeout(timeout),
            Stream::Tls(stream) => stream.set_timeout(timeout),
        }
    }

    /// Receives some bytes, or all that `bytes` has room for if `fill`; waits for the first.
    pub fn receive(&mut self, bytes: &mut [u8], fill: bool) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.receive(bytes, fill),
            Stream::Tls(stream) => stream.receive(bytes, fill),
        }
    }

    /// Receives what is there; `None` if that is nothing.
    pub fn receive_now(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Stream::Plain(socket) => socket.receive_now(bytes),
            Stream::Tls(stream) => stream.receive_now(bytes),
        }
    }

    /// Takes over what there is room for now; 0 if there is none. What was taken over is on its way
    /// only once nothing is [`Stream::has_unsent`].
    pub fn send_now(&mut self, head: &[u8], data: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.send_now(head, data),
            Stream::Tls(stream) => stream.send_now(head, data),
        }
    }

    /// Whether something taken over still waits for room; [`Stream::send_now`] of nothing sends it.
    pub fn has_unsent(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.has_unsent(),
        }
    }

    /// Waits until there is a byte to receive or room to send; whether it is a byte.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        match self {
            Stream::Plain(socket) => socket.wait(timeout),
            Stream::Tls(stream) => stream.wait(timeout),
        }
    }

    /// Sends all of `bytes`, waiting for room; receives nothing meanwhile, so it is for the
    /// handshake, where both sides take turns.
    pub fn send_all(&mut self, bytes: &[u8], timeout: Duration) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() || self.has_unsent() {
            let length = self.send_now(&bytes[sent..], &[])?;
            sent += length;
            // What came in is not taken in here, so waiting for both would spin.
            if length == 0 {
                self.wait_to_send(timeout)?;
            }
        }
        Ok(())
    }

    fn wait_to_send(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.wait_to_send(timeout),
            Stream::Tls(stream) => stream.wait_to_send(timeout),
        }
    }
}
