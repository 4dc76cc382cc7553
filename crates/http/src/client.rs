use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_log::log;
use drover_tls::{Trust, client_config};
use rustls::ClientConfig;

use crate::connection::{Connection, Request};
use crate::endpoint::Endpoint;
use crate::error::{HttpError, HttpErrorKind, HttpOp};
use crate::head::Head;
use crate::stream::{Reads, Timeouts};

/// A server we talk to: its TLS settings (so that sessions are resumed) and idle connections.
pub struct Client {
    endpoint: Endpoint,
    config: Option<Arc<ClientConfig>>,
    timeouts: Timeouts,
    /// With the time since when each was not used.
    idle: Mutex<Vec<(Instant, Connection)>>,
}

/// An answer whose body was read whole.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its head.
    pub head: Head,
    /// Its body.
    pub body: Vec<u8>,
}

/// No answer read into memory may be longer.
pub const BODY_BYTES_MAX: usize = 64 << 20;
/// Connections that are kept. With hundreds of threads at one server most calls would make one of their own, each with a handshake.
const IDLE_MAX: usize = 32;
/// One that was not used for longer is not used again: a firewall between may have forgotten it, and then no answer comes. The most
/// impatient ones wait some minutes.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// How often an upload looks whether it is to go on.
const LOOK_UP: Duration = Duration::from_secs(1);

impl Client {
    /// A client for `endpoint`. Connects only when something is sent.
    ///
    /// # Errors
    /// [`HttpErrorKind::BadTrust`] if the CA file cannot be used.
    pub fn new(endpoint: Endpoint, trust: &Trust, timeouts: Timeouts) -> Result<Self, HttpError> {
        let bad = |error| HttpError::new(HttpErrorKind::from(error), HttpOp::Connect, &endpoint.authority());
        let config = if endpoint.https { Some(client_config(trust).map_err(bad)?) } else { None };
        Ok(Client { endpoint, config, timeouts, idle: Mutex::default() })
    }

    /// The server.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A new connection that is not shared.
    ///
    /// # Errors
    /// When none can be had.
    pub fn connect(&self) -> Result<Connection, HttpError> {
        self.open(Reads::Large)
    }

    fn open(&self, reads: Reads) -> Result<Connection, HttpError> {
        Connection::open(&self.endpoint, self.config.as_ref(), self.timeouts, reads)
    }

    /// As [`Client::connect`], for a request with a large body: calls look up once a second ([`Connection::write_body`]).
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_to_upload(&self) -> Result<Connection, HttpError> {
        let mut connection = self.connect()?;
        connection.look_up_every(LOOK_UP)?;
        Ok(connection)
    }

    /// Sends a request and reads the answer, whatever its status.
    ///
    /// A kept-alive connection that the server closed meanwhile is replaced once, if the request is idempotent.
    ///
    /// # Errors
    /// When there is no connection, no whole answer, or one of more than 64 MiB.
    pub fn send(&self, request: &Request) -> Result<Response, HttpError> {
        let began = Instant::now();
        let done = self.send_quietly(request);
        if drover_log::is_on() {
            // What stands behind a question mark may be a ticket.
            let path = request.path.split('?').next().unwrap_or_default();
            let end = match &done {
                Ok(response) => format!("status {}", response.head.status),
                Err(error) => error.to_string(),
            };
            let (to, ms) = (self.endpoint.authority(), began.elapsed().as_millis());
            log!("http", "{} {path} at {to}: {end}, {ms} ms", request.method);
        }
        done
    }

    fn send_quietly(&self, request: &Request) -> Result<Response, HttpError> {
        let Some(connection) = self.idle_connection() else {
            return self.exchange(self.open(Reads::Small)?, request).map_err(|(error, _)| error);
        };
        match self.exchange(connection, request) {
            Err((error, untouched))
                if untouched && request.idempotent && error.kind == HttpErrorKind::Closed =>
            {
                self.exchange(self.open(Reads::Small)?, request).map_err(|(error, _)| error)
            }
            done => done.map_err(|(error, _)| error),
        }
    }

    /// The error says too whether no byte of an answer had arrived.
    fn exchange(&self, mut connection: Connection, request: &Request) -> Result<Response, (HttpError, bool)> {
        connection.send(request).map_err(|error| (error, true))?;
        let head = connection.read_head().map_err(|error| (error, true))?;
        let body = connection.read_body(BODY_BYTES_MAX).map_err(|error| (error, false))?;
        self.keep(connection);
        Ok(Response { head, body })
    }

    fn idle_connection(&self) -> Option<Connection> {
        loop {
            let (since, mut connection) = self.idle().pop()?;
            if since.elapsed() < IDLE_TIME_MAX && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if connection.is_usable() && idle.len() < IDLE_MAX {
            idle.push((Instant::now(), connection));
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Instant, Connection)>> {
        // Nothing can be left half done in a list of connections, so a poisoned lock is fine.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
