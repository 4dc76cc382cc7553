//! Failures, and how the program ends by their causes. `docs/reference/exit-codes.md` says the same.

use std::fmt;

pub use drover_agent::sites::MORE_THREADS;
pub use drover_console::Exit;
use drover_disk::DiskError;
use drover_endpoint::{EndError, disk_cause};
use drover_engine::{Cause, EngineError, ProviderError, StoreError, chain};
use drover_link::{LinkError, LinkErrorKind};
use drover_mover::MoveError;
use drover_source::check::CheckError;
use drover_source::login::LoginError;
use drover_source::{SourceError, provider_error};
use drover_vsphere::VsphereError;

/// How the program ends for a cause.
pub fn of_cause(cause: Cause) -> Exit {
    match cause {
        Cause::Plan => Exit::Plan,
        Cause::Access => Exit::Access,
        Cause::Connection | Cause::HostFailed => Exit::Connection,
        Cause::Source => Exit::Source,
        Cause::Target => Exit::Target,
        Cause::TargetFull => Exit::TargetFull,
        Cause::Verification => Exit::Verification,
        Cause::Manifest => Exit::Manifest,
        Cause::Hook => Exit::Hook,
        Cause::Check => Exit::Check,
        Cause::Skipped => Exit::Skipped,
        Cause::Cancelled => Exit::Interrupted,
        Cause::NotItsTurn => Exit::WindowOver,
        Cause::State => Exit::State,
        Cause::Internal => Exit::Internal,
    }
}

/// An error that says how the program ends and what to try.
#[derive(Clone, Debug)]
pub struct Failure {
    /// How to end.
    pub exit: Exit,
    /// What failed.
    pub message: String,
    /// What to try.
    pub advice: Option<String>,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), advice: None }
    }

    /// Adds what to try.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.advice {
            Some(advice) => write!(f, "\n  try: {advice}"),
            None => Ok(()),
        }
    }
}

impl From<VsphereError> for Failure {
    fn from(error: VsphereError) -> Failure {
        provider_error(error).into()
    }
}

impl From<LoginError> for Failure {
    fn from(error: LoginError) -> Failure {
        Failure { exit: Exit::Usage, message: error.what, advice: error.advice }
    }
}

impl From<EndError> for Failure {
    fn from(error: EndError) -> Failure {
        match error {
            EndError::Usage { what, advice } => Failure { exit: Exit::Usage, message: what, advice },
            EndError::Login(error) => error.into(),
            EndError::Site(error) => error.into(),
            EndError::Provider(error) => error.into(),
        }
    }
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Failure {
        match error {
            CheckError::Provider(error) => error.into(),
            CheckError::Disk(error) => Failure::new(disk_exit(&error, ""), chain(&error)),
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Failure {
        match error {
            SourceError::Login(error) => error.into(),
            SourceError::Provider(error) => error.into(),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure { exit: of_cause(error.cause()), advice: error.advice(), message: error.chain() }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Failure {
        Failure { exit: of_cause(error.cause), advice: error.advice.clone(), message: chain(&error) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::from(&error)
    }
}

impl From<&StoreError> for Failure {
    fn from(error: &StoreError) -> Failure {
        Failure::new(Exit::State, chain(error)).advise(error.advice())
    }
}

/// A link that failed, to the agent of a site.
pub fn link_failure(error: &LinkError) -> Failure {
    let exit = match error.kind {
        LinkErrorKind::Unreachable
        | LinkErrorKind::Refused
        | LinkErrorKind::Version
        | LinkErrorKind::Unsupported
        | LinkErrorKind::Closed
        | LinkErrorKind::Reset
        | LinkErrorKind::Lost
        | LinkErrorKind::Protocol => Exit::Connection,
        LinkErrorKind::Misuse => Exit::Internal,
    };
    Failure::new(exit, error.to_string())
}

/// A failed transfer of one disk; `target` names the target, to tell the sides apart.
pub fn transfer_failure(error: MoveError, target: &str) -> Failure {
    let exit = match &error {
        MoveError::Cancelled => Exit::Interrupted,
        MoveError::Journal(_) if error.is_out_of_space() => Exit::TargetFull,
        MoveError::TooSmall { .. }
        | MoveError::Resized { .. }
        | MoveError::Journal(_)
        | MoveError::Other { .. } => Exit::Target,
        MoveError::Disk(disk) => disk_exit(disk, target),
    };
    Failure::new(exit, chain(&error))
}

/// The exit for a disk's error; `target` names the target.
pub fn disk_exit(error: &DiskError, target: &str) -> Exit {
    of_cause(disk_cause(error, target))
}
