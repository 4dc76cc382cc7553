//! TLS by X.509, with the files named as nbdkit and QEMU name them.

use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drover_tls::{KeyPair, TlsError};
use rustls::{ServerConfig, ServerConnection};

use crate::stream::Socket;

/// Encrypted bytes read at a time: a record and its head.
const RECORD_BYTES: usize = 17 << 10;

/// Plain bytes encrypted at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Reads `server-cert.pem` and `server-key.pem` from a folder. With `verify_clients`, only clients with
/// a certificate signed by one in `ca-cert.pem` are let in.
///
/// # Errors
/// When a file is missing or holds something else, or key and certificate do not fit.
pub fn server_config(folder: &Path, verify_clients: bool) -> Result<Arc<ServerConfig>, TlsError> {
    let own = KeyPair { certificate: folder.join("server-cert.pem"), key: folder.join("server-key.pem") };
    let clients = verify_clients.then(|| folder.join("ca-cert.pem"));
    drover_tls::server_config(&own, clients.as_deref()).map(Arc::new)
}

/// A TLS session on a socket that one thread reads while others write: no lock is held while
/// waiting for bytes.
pub(crate) struct Tls {
    session: Mutex<ServerConnection>,
    /// Encrypted bytes that were read; the reading thread's own.
    incoming: Mutex<Incoming>,
}

struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Tls {
    /// Shakes hands; `limit` is called before each wait.
    pub(crate) fn accept(
        socket: &Socket,
        config: Arc<ServerConfig>,
        limit: impl Fn() -> io::Result<()>,
    ) -> io::Result<Tls> {
        let session = ServerConnection::new(config).map_err(io::Error::other)?;
        let incoming = Incoming { bytes: vec![0; RECORD_BYTES].into(), start: 0, end: 0 };
        let tls = Tls { session: Mutex::new(session), incoming: Mutex::new(incoming) };
        while tls.session().is_handshaking() {
            tls.write(socket, &[])?;
            if !tls.session().is_handshaking() {
                break;
            }
            limit()?;
            let fed = tls.feed(socket);
            if fed.is_err() {
                // The alert tells the client why.
                let _ = tls.write(socket, &[]);
            }
            fed?;
        }
        tls.write(socket, &[])?;
        Ok(tls)
    }

    fn session(&self) -> MutexGuard<'_, ServerConnection> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads some plain bytes; 0 at the end. `None` when there is something to send first. `limit` is
    /// called before each wait: parts of a record may come one by one, and none of them is a plain byte.
    pub(crate) fn read(
        &self,
        socket: &Socket,
        bytes: &mut [u8],
        limit: impl Fn() -> io::Result<()>,
    ) -> io::Result<Option<usize>> {
        loop {
            let mut session = self.session();
            match session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result.map(Some),
            }
            if session.wants_write() {
                return Ok(None);
            }
            drop(session);
            limit()?;
            self.feed(socket)?;
        }
    }

    /// Gives the session the encrypted bytes at hand, or else the next ones from the socket.
    fn feed(&self, socket: &Socket) -> io::Result<()> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        if incoming.start == incoming.end {
            let length = socket.read(&mut incoming.bytes)?;
            (incoming.start, incoming.end) = (0, length);
        }
        let mut rest = &incoming.bytes[incoming.start..incoming.end];
        let mut session = self.session();
        let taken = session.read_tls(&mut rest)?;
        incoming.start += taken;
        let state = session
            .process_new_packets()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if taken == 0 && state.plaintext_bytes_to_read() == 0 && session.is_handshaking() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Sends all parts and whatever the session itself wants to say. One caller at a time.
    pub(crate) fn write(&self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut encrypted = Vec::new();
        for piece in parts.iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
            let mut rest = piece;
            while !rest.is_empty() {
                let mut session = self.session();
                let taken = session.writer().write(rest)?;
                rest = &rest[taken..];
                drain(&mut session, &mut encrypted)?;
                drop(session);
                send(socket, &mut encrypted)?;
            }
        }
        drain(&mut self.session(), &mut encrypted)?;
        send(socket, &mut encrypted)
    }

    pub(crate) fn say_goodbye(&self) {
        self.session().send_close_notify();
    }
}

fn drain(session: &mut ServerConnection, encrypted: &mut Vec<u8>) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(encrypted)?;
    }
    Ok(())
}

fn send(socket: &Socket, encrypted: &mut Vec<u8>) -> io::Result<()> {
    socket.write_all(&mut [IoSlice::new(encrypted)])?;
    encrypted.clear();
    Ok(())
}
