use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use drover_disk::DiskErrorKind;
use drover_tls::{Refusal, TlsError, Why};

/// A failed exchange with a server: `connect to esx1:443: connection refused`.
#[derive(Debug)]
pub struct HttpError {
    /// What went wrong, to decide on.
    pub kind: HttpErrorKind,
    /// How far the exchange had come.
    pub op: HttpOp,
    /// The server as `host:port`.
    pub peer: String,
    /// The cause below, if there is one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// How far an exchange had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpOp {
    /// No request was sent yet.
    Connect,
    /// The request may have arrived in part.
    Send,
    /// The request was sent; the server may have acted on it.
    Answer,
}

/// What went wrong with an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpErrorKind {
    /// The text is no URL we can use.
    BadUrl,
    /// The CA file, the system's CA store or the thumbprint cannot be used.
    BadTrust(String),
    /// The host name has no address.
    UnknownHost,
    /// Nobody listens on that port.
    Refused,
    /// No answer to the connection attempt, or no route.
    Unreachable,
    /// The server's certificate is not believed.
    Certificate(Refusal),
    /// The TLS handshake failed for another reason; often no TLS is spoken there.
    Tls,
    /// No byte moved for this long.
    Stalled(Duration),
    /// Bytes kept coming, but the answer did not end in this time.
    Endless(Duration),
    /// The connection ended before the answer did.
    Closed,
    /// What arrived is not HTTP as we know it.
    Protocol(String),
    /// The answer is longer than this many bytes.
    TooLong(u64),
    /// The server refused the request by a status (asked for by an [`crate::Authorise`]).
    Status(u16),
    /// Another error of the system.
    Io,
}

impl From<TlsError> for HttpErrorKind {
    fn from(error: TlsError) -> HttpErrorKind {
        HttpErrorKind::BadTrust(match error {
            TlsError::NoAuthorities => format!("{error}; give a CA file or a thumbprint"),
            error => error.to_string(),
        })
    }
}

impl HttpError {
    pub(crate) fn new(kind: HttpErrorKind, op: HttpOp, peer: &str) -> Self {
        HttpError { kind, op, peer: peer.to_string(), source: None }
    }

    /// An error from another part of a backend (a login that was refused), for [`crate::Authorise`].
    pub fn other(
        kind: HttpErrorKind,
        op: HttpOp,
        peer: &str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        HttpError { kind, op, peer: peer.to_string(), source: Some(source.into()) }
    }

    /// Classifies an error of the system.
    pub(crate) fn io(error: io::Error, op: HttpOp, peer: &str, stall: Duration) -> Self {
        use io::ErrorKind as E;
        let kind = match (error.kind(), op) {
            (E::ConnectionRefused, _) => HttpErrorKind::Refused,
            (E::TimedOut | E::WouldBlock, HttpOp::Connect) => HttpErrorKind::Unreachable,
            (E::HostUnreachable | E::NetworkUnreachable | E::NetworkDown | E::AddrNotAvailable, _) => {
                HttpErrorKind::Unreachable
            }
            (E::TimedOut | E::WouldBlock, _) => return Self::new(HttpErrorKind::Stalled(stall), op, peer),
            // Invalid data is a TLS record damaged on its way: only a new connection helps.
            (
                E::ConnectionReset
                | E::ConnectionAborted
                | E::BrokenPipe
                | E::UnexpectedEof
                | E::NotConnected
                | E::InvalidData,
                _,
            ) => HttpErrorKind::Closed,
            _ => HttpErrorKind::Io,
        };
        HttpError { kind, op, peer: peer.to_string(), source: Some(error.into()) }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        use HttpErrorKind as K;
        match &self.kind {
            K::Refused | K::Unreachable | K::UnknownHost | K::Stalled(_) | K::Endless(_) | K::Closed => true,
            K::Status(status) => matches!(status, 408 | 429 | 500..=599),
            K::BadUrl
            | K::BadTrust(_)
            | K::Certificate(_)
            | K::Tls
            | K::Protocol(_)
            | K::TooLong(_)
            | K::Io => false,
        }
    }

    /// What a disk's user may do about it.
    pub fn disk_kind(&self) -> DiskErrorKind {
        use HttpErrorKind as K;
        match &self.kind {
            _ if self.is_transient() => DiskErrorKind::Transient,
            K::Certificate(_) => DiskErrorKind::Denied,
            K::Status(401 | 403) => DiskErrorKind::Denied,
            K::Protocol(_) | K::TooLong(_) => DiskErrorKind::Corrupt,
            K::BadUrl => DiskErrorKind::Misuse,
            _ => DiskErrorKind::Failed,
        }
    }

    /// What to try, for the operator.
    pub fn advice(&self) -> Option<String> {
        use HttpErrorKind as K;
        match &self.kind {
            K::Certificate(Refusal { why: Why::OtherThumbprint, presented, .. }) => Some(format!(
                "the certificate was replaced since its thumbprint was noted, or another server answers. Ask who runs the \
                 server whether it was renewed; only then put {presented} in the place of the old thumbprint"
            )),
            K::Certificate(Refusal { presented, .. }) => Some(format!(
                "nothing vouches for this server yet. It presents {presented}; compare it with the server's own console, \
                 and if it is right put it in the plan as thumbprint, or give the CA file that signed it"
            )),
            K::UnknownHost => Some("check the host name and this machine's DNS".to_string()),
            K::Refused => Some("check the port and that the service runs".to_string()),
            K::Unreachable => Some("check address, route and firewall".to_string()),
            K::Tls => Some("check that this port speaks HTTPS".to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            HttpOp::Connect => "connect to",
            HttpOp::Send => "request to",
            HttpOp::Answer => "answer of",
        };
        write!(f, "{op} {}: {}", self.peer, self.kind)
    }
}

impl Error for HttpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for HttpErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use HttpErrorKind as K;
        match self {
            K::BadUrl => f.write_str("not a usable http or https URL"),
            K::BadTrust(why) => write!(f, "cannot decide whom to trust: {why}"),
            K::UnknownHost => f.write_str("host name not found"),
            K::Refused => f.write_str("connection refused"),
            K::Unreachable => f.write_str("unreachable"),
            K::Certificate(refusal) => refusal.fmt(f),
            K::Tls => f.write_str("TLS handshake failed"),
            K::Stalled(time) => write!(f, "no byte for {} s", time.as_secs_f32()),
            K::Endless(time) => write!(f, "not ended after {} s", time.as_secs_f32()),
            K::Closed => f.write_str("connection closed early"),
            K::Protocol(why) => write!(f, "not understood: {why}"),
            K::TooLong(max) => write!(f, "longer than {max} bytes"),
            K::Status(status) => write!(f, "HTTP status {status}"),
            K::Io => f.write_str("input or output error"),
        }
    }
}
