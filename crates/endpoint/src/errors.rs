//! Why an end of a copy cannot be had, and whose fault an error of a disk is.

use std::io;
use std::path::Path;

use drover_agent::sites::SiteError;
use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_engine::{Cause, ProviderError, chain};
use drover_http::{HttpError, HttpErrorKind};
use drover_nbd::{HandshakeError, ServerError};
use drover_source::SourceError;
use drover_source::login::LoginError;

/// Why an end cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// It was named or asked for in a way that makes no sense.
    #[error("{what}")]
    Usage {
        /// What is wrong with it.
        what: String,
        /// What to try.
        advice: Option<String>,
    },
    /// What is named to log in with.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The site of its agent.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The end itself, or what holds it.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

impl EndError {
    pub(crate) fn advise(self, text: impl Into<String>) -> EndError {
        match self {
            EndError::Usage { what, .. } => EndError::Usage { what, advice: Some(text.into()) },
            EndError::Provider(error) => EndError::Provider(error.advise(text)),
            // They have their own.
            EndError::Login(_) | EndError::Site(_) => self,
        }
    }
}

impl From<SourceError> for EndError {
    fn from(error: SourceError) -> EndError {
        match error {
            SourceError::Login(error) => error.into(),
            SourceError::Provider(error) => error.into(),
        }
    }
}

pub(crate) fn usage(what: impl Into<String>) -> EndError {
    EndError::Usage { what: what.into(), advice: None }
}

pub(crate) fn failed(cause: Cause, what: impl Into<String>) -> EndError {
    ProviderError::new(cause, what).into()
}

/// An error of a disk; `target` names the target, to tell the sides apart.
pub(crate) fn disk_failure(error: &DiskError, target: &str) -> EndError {
    failed(disk_cause(error, target), chain(error))
}

pub(crate) fn source_failure(error: DiskError) -> EndError {
    disk_failure(&error, "")
}

pub(crate) fn target_failure(error: DiskError) -> EndError {
    disk_failure(&error, &error.disk)
}

pub(crate) fn unusable(path: &Path, error: &io::Error) -> EndError {
    failed(Cause::Target, format!("{}: {error}", path.display()))
}

/// The refusal to write a format.
pub(crate) fn only_read() -> EndError {
    usage("only raw disks and qcow2 images are written").advise("choose --format raw or qcow2")
}

/// The cause of a disk's error; `target` names the target, to tell the sides apart.
pub fn disk_cause(error: &DiskError, target: &str) -> Cause {
    match error.kind {
        // On whichever side: it was not asked for anything yet.
        DiskErrorKind::Denied if is_not_trusted(error) => Cause::Connection,
        DiskErrorKind::Transient if is_without_address(error) => Cause::Connection,
        DiskErrorKind::OutOfSpace if error.disk == target => Cause::TargetFull,
        _ if error.disk == target => Cause::Target,
        // Its server answers, and says that its own disk fails.
        DiskErrorKind::Transient if is_of_servers_disk(error) => Cause::Source,
        // Not for lack of rights: somebody else has it.
        DiskErrorKind::Denied if error.source.kind() == io::ErrorKind::ResourceBusy => Cause::Source,
        DiskErrorKind::Denied => Cause::Access,
        DiskErrorKind::Transient => Cause::Connection,
        // A source has no use for room: whatever it says that it ran out of is its own affair.
        DiskErrorKind::OutOfSpace
        | DiskErrorKind::Corrupt
        | DiskErrorKind::Gone
        | DiskErrorKind::Unsupported
        | DiskErrorKind::Misuse
        | DiskErrorKind::Failed => Cause::Source,
    }
}

/// Whether it is we who deny: the server did not show that it is the one that was named.
fn is_not_trusted(error: &DiskError) -> bool {
    use HttpErrorKind as K;
    let Some(why) = error.source.get_ref() else { return false };
    let web = why.downcast_ref::<HttpError>().map(|error| &error.kind);
    let nbd = why.downcast_ref::<HandshakeError>();
    matches!(web, Some(K::Certificate(_))) || matches!(nbd, Some(HandshakeError::Tls(_)))
}

/// Whether there is no way to a host, or its name is not known.
fn is_without_address(error: &DiskError) -> bool {
    error.op == DiskOp::Open && error.source.kind() == io::ErrorKind::HostUnreachable
}

fn is_of_servers_disk(error: &DiskError) -> bool {
    let told = error.source.get_ref().and_then(|why| why.downcast_ref::<ServerError>());
    told.is_some_and(ServerError::is_of_its_disk)
}
