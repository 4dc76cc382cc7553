use std::fmt;

use drover_disk::{DiskError, DiskErrorKind};
use drover_mover::MoveError;
pub use drover_types::chain;
use serde::{Deserialize, Serialize};

use crate::store::StoreError;

/// Why something failed, as far as users and exit codes tell causes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The plan, or what it says of this VM, is wrong.
    Plan,
    /// A login or a permission is missing.
    Access,
    /// An endpoint cannot be reached, or its certificate is not the expected one.
    Connection,
    /// The source refused or failed.
    Source,
    /// The target refused or failed.
    Target,
    /// The target is full.
    TargetFull,
    /// The source is not what the checksums say that came with it.
    Manifest,
    /// What arrived is not what left.
    Verification,
    /// A hook of the plan failed, or said stop.
    Hook,
    /// A check of the plan did not pass.
    Check,
    /// A hook said that the VM is to be left out.
    Skipped,
    /// Its host failed with others so often that it was given up.
    HostFailed,
    /// Its wave was over, or others that come before it failed, so it did not begin or does not move over.
    NotItsTurn,
    /// The user stopped it.
    Cancelled,
    /// drover's own state cannot be read or kept.
    State,
    /// A defect.
    Internal,
}

impl Cause {
    const ALL: [Cause; 16] = [
        Cause::Plan,
        Cause::Access,
        Cause::Connection,
        Cause::Source,
        Cause::Target,
        Cause::TargetFull,
        Cause::Manifest,
        Cause::Verification,
        Cause::Hook,
        Cause::Check,
        Cause::Skipped,
        Cause::HostFailed,
        Cause::NotItsTurn,
        Cause::Cancelled,
        Cause::State,
        Cause::Internal,
    ];

    /// The word that the state has for it.
    pub fn word(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// How far it is from what failed first: what follows from others' failures counts for a run only where nothing nearer does.
    pub fn distance(self) -> u8 {
        match self {
            Cause::NotItsTurn => 2,
            Cause::HostFailed => 1,
            _ => 0,
        }
    }

    /// The cause of a word.
    pub fn of_word(word: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.word() == word)
    }
}

/// A failure of a provider, ready to be shown.
#[derive(Debug)]
pub struct ProviderError {
    /// Cause.
    pub cause: Cause,
    /// What was being done to what.
    pub what: String,
    /// What to try.
    pub advice: Option<String>,
    /// Why.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// Whether it is that the window of the VM's wave is over.
    pub window_over: bool,
}

impl ProviderError {
    /// An error without a deeper reason.
    pub fn new(cause: Cause, what: impl Into<String>) -> Self {
        ProviderError { cause, what: what.into(), advice: None, source: None, window_over: false }
    }

    /// Adds what to try.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds the reason.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for ProviderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

/// Why a VM's migration, or a whole run, ended.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A provider failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// Copying a disk failed.
    #[error("copy of {disk}")]
    Copy {
        /// The disk.
        disk: String,
        /// Why.
        #[source]
        source: MoveError,
        /// On which side, where that is known.
        side: Cause,
    },
    /// The target does not hold what the source holds.
    #[error("{disk} differs from its source in {blocks} of the {compared} blocks compared, first at {first}")]
    Differs {
        /// The disk.
        disk: String,
        /// Differing blocks (at most 1,000 are counted).
        blocks: usize,
        /// Compared blocks.
        compared: u64,
        /// First differing span.
        first: drover_types::ByteSpan,
    },
    /// The user stopped it.
    #[error("stopped as asked")]
    Cancelled,
    /// A hook has the VM left out.
    #[error("{0}")]
    Skipped(String),
    /// The state could not be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Someone else runs this plan.
    #[error("plan {plan} is being run by another drover (process {pid})")]
    Running {
        /// The plan.
        plan: String,
        /// Its process.
        pid: String,
    },
}

impl EngineError {
    /// The cause.
    pub fn cause(&self) -> Cause {
        match self {
            EngineError::Provider(error) => error.cause,
            EngineError::Copy { source: MoveError::Cancelled, .. } | EngineError::Cancelled => {
                Cause::Cancelled
            }
            EngineError::Copy { source, side: Cause::Target, .. } if source.is_out_of_space() => {
                Cause::TargetFull
            }
            EngineError::Copy { side, .. } => *side,
            EngineError::Differs { .. } => Cause::Verification,
            EngineError::Skipped(_) => Cause::Skipped,
            EngineError::Store(_) => Cause::State,
            EngineError::Running { .. } => Cause::Plan,
        }
    }

    /// What to try.
    pub fn advice(&self) -> Option<String> {
        match self {
            EngineError::Provider(error) => error.advice.clone(),
            EngineError::Copy { source: MoveError::Disk(error), side, .. } => disk_advice(error, *side),
            EngineError::Copy { source, side: Cause::Target, .. } if source.is_out_of_space() => {
                Some(MAKE_ROOM.into())
            }
            EngineError::Differs { .. } => Some(
                "the target's disk or memory may be faulty, or someone else wrote to the image; remove the image and its \
                 journal, check the machine's log, and run the plan again"
                    .into(),
            ),
            EngineError::Store(error) => Some(error.advice().into()),
            EngineError::Running { .. } => Some("wait for it, or stop it with `drover pause`, which keeps what was copied".into()),
            _ => None,
        }
    }

    /// Whether it is that the window of the VM's wave is over.
    pub(crate) fn is_window_over(&self) -> bool {
        matches!(self, EngineError::Provider(error) if error.window_over)
    }

    /// The error and its reasons in one line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// Whether the NFC server of a host, which the error names, and this machine agree on no TLS.
fn is_of_nfc_tls(error: &DiskError) -> bool {
    error.source.to_string().contains(NFC_TLS)
}

/// What errors of `drover_nfc` say that are of TLS.
const NFC_TLS: &str = "TLS with the NFC server of ";
const MAKE_ROOM: &str = "make room on the target, then `drover resume`";

fn disk_advice(error: &DiskError, side: Cause) -> Option<String> {
    let text = match error.kind {
        DiskErrorKind::OutOfSpace if side != Cause::Target => {
            "the source's side ran out of something; look at its log, then `drover resume`"
        }
        DiskErrorKind::OutOfSpace => MAKE_ROOM,
        DiskErrorKind::Transient => {
            "the source or the line was away for longer than `limits.retry_for`; when it is back: `drover resume`"
        }
        DiskErrorKind::Denied => "check permissions and whether another program uses the disk",
        DiskErrorKind::Corrupt => "answers that cannot be right kept coming; look at the source's log",
        DiskErrorKind::Gone => "look whether the disk was moved or removed",
        DiskErrorKind::Failed if is_of_nfc_tls(error) => {
            "the host that is named, not this machine, refuses TLS on port 902: look at its certificate and at the logs of its hostd \
             and vpxa; reconnect it in the vCenter if its certificate was changed; `data.path: https` reads without port 902"
        }
        DiskErrorKind::Failed if side == Cause::Target => {
            "the device reports an error that does not pass; look at the log of the machine that has the target"
        }
        DiskErrorKind::Failed => {
            "the source reports an error that does not pass; look at the log of the host that serves the disk"
        }
        DiskErrorKind::Unsupported | DiskErrorKind::Misuse => return None,
    };
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use std::io;

    use drover_disk::DiskOp;
    use drover_types::ByteSpan;

    use super::*;

    fn advice(side: Cause, why: &str) -> String {
        let source = io::Error::other(why.to_string());
        let error =
            DiskError::with_kind(DiskErrorKind::Failed, DiskOp::Read, ByteSpan::new(0, 1), "d", source);
        EngineError::Copy { disk: "a/b".into(), source: MoveError::Disk(error), side }.advice().unwrap()
    }

    #[test]
    fn advice_names_the_machine_that_failed() {
        let tls =
            advice(Cause::Source, "TLS with the NFC server of esx3: received fatal alert: HandshakeFailure");
        assert!(
            tls.starts_with("the host that is named, not this machine") && tls.contains("hostd"),
            "{tls}"
        );
        assert!(advice(Cause::Source, "an I/O error").contains("the host that serves the disk"));
        assert!(advice(Cause::Target, "an I/O error").contains("the machine that has the target"));
    }
}
