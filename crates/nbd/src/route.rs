use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_stream::{Socket, Stream, Tls};
use drover_types::ByteSpan;

use crate::connection::{Connection, Peer, Timeouts};
use crate::disk::NbdOptions;
use crate::handshake::{Wishes, handshake};
use crate::psk::PskProxy;
use crate::talk::{HandshakeError, Talk};
use crate::uri::{Address, NbdUri};

/// Pauses between tries to connect to a server that is not there: they double. All lanes share
/// them, so that a server that comes back does not meet a crowd.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// All it takes to make one more connection to an export.
pub struct Route {
    address: Address,
    export: String,
    tls: Option<Tls>,
    dirty_bitmap: Option<String>,
    fence: Option<u64>,
    timeouts: Timeouts,
    proxy: Option<PskProxy>,
    gate: Mutex<Gate>,
}

/// When the next try may be made.
struct Gate {
    pause: Duration,
    next: Instant,
}

impl Route {
    /// Reads certificates, and starts what a pre-shared key needs.
    pub fn new(uri: &NbdUri, options: &NbdOptions) -> Result<Route, HandshakeError> {
        let mut route = Route {
            address: uri.address.clone(),
            export: uri.export.clone(),
            tls: None,
            dirty_bitmap: options.dirty_bitmap.clone(),
            fence: options.fence,
            timeouts: Timeouts { silence: options.timeout, request: options.request_timeout },
            proxy: None,
            gate: Mutex::new(Gate { pause: PAUSE_MIN, next: Instant::now() }),
        };
        let Some(uri_tls) = &uri.tls else { return Ok(route) };
        match uri_tls.psk_file.as_deref() {
            Some(key) => route.use_proxy(uri, key)?,
            None => {
                let tls =
                    crate::tls::settings(uri_tls, &options.tls, &uri.address).map_err(HandshakeError::Tls)?;
                route.tls = Some(tls);
            }
        }
        Ok(route)
    }

    fn use_proxy(&mut self, uri: &NbdUri, key: &Path) -> Result<(), HandshakeError> {
        if self.dirty_bitmap.is_some() {
            let text = "a dirty bitmap cannot be read through TLS with a pre-shared key; use certificates";
            return Err(HandshakeError::Refused(text.to_string()));
        }
        let tls = uri.tls.clone().unwrap_or_default();
        let proxy =
            PskProxy::start(uri, &tls, key).map_err(|error| HandshakeError::Tls(error.to_string()))?;
        self.address = proxy.address();
        self.export = String::new();
        self.proxy = Some(proxy);
        Ok(())
    }

    /// A stream to the server, before a word is said.
    pub fn talk(&self, limit: Duration) -> Result<Talk, HandshakeError> {
        let socket = Socket::connect(&self.address, limit)?;
        Ok(Talk::new(Stream::Plain(socket), limit))
    }

    /// What TLS needs, if the talk is to go on in it.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// A connection in transmission.
    pub fn connect(&self, limit: Duration, lost: &Arc<AtomicBool>) -> Result<Connection, HandshakeError> {
        let wishes = Wishes {
            export: &self.export,
            tls: self.tls.as_ref(),
            dirty_bitmap: self.dirty_bitmap.as_deref(),
            fence: self.fence,
        };
        let result = self.talk(limit).and_then(|talk| handshake(talk, &wishes));
        let (mut stream, export) = result.map_err(|error| self.explain(error))?;
        stream.set_timeout(self.timeouts.silence)?;
        let peer = if self.proxy.is_some() { Peer::Proxy } else { Peer::Server };
        Ok(Connection::new(stream, peer, export, self.timeouts, lost.clone()))
    }

    /// The child knows what went wrong on the other side; to us it only says that there is no export.
    pub fn explain(&self, error: HandshakeError) -> HandshakeError {
        match &self.proxy {
            None => error,
            Some(proxy) => HandshakeError::Tls(format!("nbdkit cannot connect: {}", proxy.words())),
        }
    }

    /// A further connection, after a pause if the last try failed.
    ///
    /// The export was there once: that its server, socket or name is not there now may pass.
    pub fn connect_again(
        &self,
        limit: Duration,
        lost: &Arc<AtomicBool>,
        name: &str,
    ) -> Result<Connection, DiskError> {
        self.pause();
        let result = self.connect(limit, lost);
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(connection) => {
                *gate = Gate { pause: PAUSE_MIN, next: Instant::now() };
                Ok(connection)
            }
            Err(error) => {
                gate.next = Instant::now() + gate.pause;
                gate.pause = (gate.pause * 2).min(PAUSE_MAX);
                let mut error = open_error(name, error);
                if error.kind == DiskErrorKind::Gone || self.proxy.is_some() {
                    error.kind = DiskErrorKind::Transient;
                }
                Err(error)
            }
        }
    }

    fn pause(&self) {
        let next = self.gate.lock().unwrap_or_else(PoisonError::into_inner).next;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

pub fn open_error(name: &str, error: HandshakeError) -> DiskError {
    let kind = error.kind();
    let source = match error {
        HandshakeError::Io(error) => error,
        other => std::io::Error::other(other),
    };
    DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), name, source)
}
