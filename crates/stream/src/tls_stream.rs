//! TLS over a socket.
//!
//! ```text
//! socket ──recv, up to 128 KiB──> incoming ──rustls decrypts in place, record by record──┐
//!                                                        ┌── what is asked for <─────────┤
//!                                      plain <── the rest of a record <──────────────────┘
//! request ──rustls encrypts──> outgoing ──send──> socket
//! ```
//!
//! rustls' own reader asks the socket for 4 KiB at a time; its unbuffered interface leaves buffers
//! to us, so there is one system call for many records, and bytes go from the record to their
//! request's buffer.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError};

use crate::Tls;
use crate::socket::{Socket, timed_out};

/// Room for records as they come; rustls leaves a handshake message of up to 64 KiB in it until it
/// is whole.
const INCOMING_BYTES: usize = 128 << 10;

/// Bytes of ours that are encrypted in one go.
const ENCRYPT_BYTES_MAX: usize = 128 << 10;

/// What is encrypted and not sent, at most: one go, and answers to key updates, which a server
/// could ask for without end.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

pub struct TlsStream {
    socket: Socket,
    tls: UnbufferedClientConnection,
    timeout: Duration,
    /// Records that came in and are not decrypted.
    incoming: Box<[u8]>,
    filled: Range<usize>,
    /// Decrypted bytes that nobody had room for: from a record, or from all of `incoming` while
    /// sending. More is received only when it is empty, so it is no larger than that.
    plain: Vec<u8>,
    plain_taken: usize,
    /// Records to send.
    outgoing: Outgoing,
    /// The server said that nothing more will come.
    is_closed: bool,
    /// rustls met an error; it must not be given more after that.
    is_failed: bool,
}

/// Where [`TlsStream::process`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// There is no room for what comes next.
    Full,
    /// The next record is not whole, in the handshake or after it.
    Handshaking,
    Ready,
}

/// What to do with a record that decrypts.
enum Task<'a> {
    /// Its bytes go here until this is full.
    Receive(&'a mut [u8]),
    /// These bytes are to be encrypted; what comes in is kept.
    Send(&'a [u8], &'a [u8]),
}

impl TlsStream {
    /// The TLS handshake, with the server's certificate checked.
    pub fn start(socket: Socket, tls: &Tls, limit: Duration) -> io::Result<TlsStream> {
        let connection =
            UnbufferedClientConnection::new(tls.config.clone(), tls.name.clone()).map_err(failed)?;
        let mut stream = TlsStream {
            socket,
            tls: connection,
            timeout: limit,
            incoming: vec![0; INCOMING_BYTES].into_boxed_slice(),
            filled: 0..0,
            plain: Vec::new(),
            plain_taken: 0,
            outgoing: Outgoing::default(),
            is_closed: false,
            is_failed: false,
        };
        let until = Instant::now() + limit;
        loop {
            let (_, stop) = stream.process(Task::Send(&[], &[]))?;
            while stream.flush()? {
                stream.wait_to_send(limit)?;
            }
            if stop == Stop::Ready {
                return Ok(stream);
            }
            if stream.is_closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if Instant::now() > until {
                return Err(timed_out());
            }
            stream.refill(true)?;
        }
    }

    /// The socket below, for a server that goes on without TLS, or with a new handshake, and ends this one without a
    /// word. We say none either.
    pub fn into_socket(mut self) -> io::Result<Socket> {
        let left = self.filled.len() + self.plain.len() - self.plain_taken;
        if left > 0 || self.has_unsent() {
            let text = format!("{left} bytes of the server are left in the TLS session that ends here");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let socket = self.socket.try_clone()?;
        self.is_closed = true;
        Ok(socket)
    }

    pub fn watch(&self) -> io::Result<Socket> {
        self.socket.try_clone()
    }

    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.socket.set_timeout(timeout)
    }

    /// See [`crate::Stream::receive`].
    pub fn receive(&mut self, bytes: &mut [u8], fill: bool) -> io::Result<usize> {
        let until = Instant::now() + self.timeout;
        let mut length = 0;
        loop {
            length += self.take(&mut bytes[length..])?;
            if length == bytes.len() || (length > 0 && !fill) {
                return Ok(length);
            }
            if self.is_closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Records without a byte for us must not keep us here.
            if Instant::now() > until {
                return if length > 0 { Ok(length) } else { Err(timed_out()) };
            }
            self.refill(true)?;
        }
    }

    /// See [`crate::Stream::receive_now`].
    pub fn receive_now(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let mut length = self.take(bytes)?;
        if length == 0 && !self.is_closed && self.refill(false)? {
            length = self.take(bytes)?;
        }
        match length {
            0 if self.is_closed => Err(io::ErrorKind::UnexpectedEof.into()),
            0 => Ok(None),
            length => Ok(Some(length)),
        }
    }

    /// See [`crate::Stream::send_now`].
    pub fn send_now(&mut self, head: &[u8], data: &[u8]) -> io::Result<usize> {
        if self.flush()? || (head.is_empty() && data.is_empty()) {
            return Ok(0);
        }
        let (length, _) = self.process(Task::Send(head, data))?;
        self.flush()?;
        Ok(length)
    }

    pub fn has_unsent(&self) -> bool {
        !self.outgoing.unsent.is_empty()
    }

    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        if self.plain_taken < self.plain.len() {
            return Ok(true);
        }
        self.socket.wait(timeout)
    }

    pub fn wait_to_send(&self, timeout: Duration) -> io::Result<()> {
        self.socket.wait_to_send(timeout)
    }

    /// Sends what is encrypted; true if some of it has to wait for room.
    fn flush(&mut self) -> io::Result<bool> {
        while self.has_unsent() {
            match self.socket.send_now(&self.outgoing.bytes[self.outgoing.unsent.clone()], &[])? {
                0 => return Ok(true),
                length => self.outgoing.unsent.start += length,
            }
        }
        self.outgoing.unsent = 0..0;
        Ok(false)
    }

    /// Gives what is decrypted, or decrypts what is there.
    fn take(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = &self.plain[self.plain_taken..];
        let length = left.len().min(bytes.len());
        bytes[..length].copy_from_slice(&left[..length]);
        self.plain_taken += length;
        if length == bytes.len() {
            return Ok(length);
        }
        self.plain.clear();
        self.plain_taken = 0;
        let more = self.process(Task::Receive(&mut bytes[length..]))?.0;
        // Answers to key updates: they wait where there is no room.
        self.flush()?;
        Ok(length + more)
    }

    /// Receives more records; false if none are there and it is not to wait.
    fn refill(&mut self, wait: bool) -> io::Result<bool> {
        self.incoming.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let room = &mut self.incoming[self.filled.end..];
        if room.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS message without end"));
        }
        let length = match wait {
            true => Some(self.socket.receive(room, false)?),
            false => self.socket.receive_now(room)?,
        };
        self.filled.end += length.unwrap_or(0);
        Ok(length.is_some())
    }

    /// Goes on with what is in `incoming`. Gives the bytes received, or those taken over to be sent.
    fn process(&mut self, mut task: Task<'_>) -> io::Result<(usize, Stop)> {
        if self.is_failed {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "TLS failed before"));
        }
        let mut done = 0;
        loop {
            let status = self.tls.process_tls_records(&mut self.incoming[self.filled.clone()]);
            let discard = status.discard;
            let stop = match status.state {
                Err(error) => {
                    self.is_failed = true;
                    self.send_alert();
                    return Err(failed(error));
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let mut payload = record.map_err(failed)?.payload;
                        if let Task::Receive(bytes) = &mut task {
                            let length = payload.len().min(bytes.len() - done);
                            bytes[done..done + length].copy_from_slice(&payload[..length]);
                            done += length;
                            payload = &payload[length..];
                        }
                        self.plain.extend_from_slice(payload);
                    }
                    matches!(&task, Task::Receive(bytes) if done == bytes.len()).then_some(Stop::Full)
                }
                Ok(ConnectionState::EncodeTlsData(mut message)) => {
                    self.outgoing.append(|room| match message.encode(room) {
                        Err(EncodeError::InsufficientSize(size)) => Err(Some(size)),
                        Err(EncodeError::AlreadyEncoded) => Err(None),
                        Ok(length) => Ok(length),
                    })?;
                    None
                }
                // It is in `outgoing`, which is sent before anything that follows it.
                Ok(ConnectionState::TransmitTlsData(message)) => {
                    message.done();
                    None
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    if let Task::Send(head, data) = &task {
                        for part in [*head, &data[..data.len().min(ENCRYPT_BYTES_MAX)]] {
                            if part.is_empty() {
                                continue;
                            }
                            self.outgoing.append(|room| match traffic.encrypt(part, room) {
                                Err(EncryptError::InsufficientSize(size)) => Err(Some(size)),
                                Err(EncryptError::EncryptExhausted) => Err(None),
                                Ok(length) => Ok(length),
                            })?;
                            done += part.len();
                        }
                    }
                    Some(Stop::Ready)
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    self.is_closed = true;
                    Some(Stop::Handshaking)
                }
                Ok(_) => Some(Stop::Handshaking),
            };
            self.filled.start += discard;
            if let Some(stop) = stop {
                return Ok((done, stop));
            }
        }
    }

    /// Tells the server why we leave, where that needs no waiting: its log then says more than ours.
    fn send_alert(&mut self) {
        if !self.tls.wants_write() {
            return;
        }
        let status = self.tls.process_tls_records(&mut []);
        if let Ok(ConnectionState::EncodeTlsData(mut message)) = status.state {
            let mut alert = [0; 256];
            if let Ok(length) = message.encode(&mut alert) {
                let _ = self.socket.send_now(&alert[..length], &[]);
            }
        }
    }
}

/// Records on their way out. The bytes stay when they are sent, to be written over.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    unsent: Range<usize>,
}

impl Outgoing {
    /// Appends what `write` gives, with as much room as it asks for.
    fn append(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
    ) -> io::Result<()> {
        let end = self.unsent.end;
        for _ in 0..2 {
            match write(&mut self.bytes[end..]) {
                Ok(length) => {
                    self.unsent.end += length;
                    return Ok(());
                }
                Err(Some(size)) if end + size.required_size <= OUTGOING_BYTES_MAX => {
                    self.bytes.resize(end + size.required_size, 0);
                }
                Err(_) => break,
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "TLS has more to send than fits"))
    }
}

/// Keeps the error inside, for the words of the caller.
fn failed(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Drop for TlsStream {
    /// Says that nothing more will come, where that needs no waiting.
    fn drop(&mut self) {
        if self.has_unsent() || self.is_closed || self.is_failed {
            return;
        }
        let status = self.tls.process_tls_records(&mut self.incoming[self.filled.clone()]);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state {
            let mut goodbye = [0; 256];
            if let Ok(length) = traffic.queue_close_notify(&mut goodbye) {
                let _ = self.socket.send_now(&goodbye[..length], &[]);
            }
        }
    }
}
