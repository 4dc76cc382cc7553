use std::error::Error;
use std::fmt;

use crate::causes::{Cause, Effect};

/// A failure of VDDK or of what it needs.
#[derive(Debug)]
pub struct VddkError {
    /// What may be done about it.
    pub kind: VddkErrorKind,
    /// What was being done, and what the logs say.
    pub what: String,
    /// What to try.
    pub advice: Option<String>,
    /// Why.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// What went wrong, to decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VddkErrorKind {
    /// Library, plugin or nbdkit is not there, or they do not fit together.
    Missing,
    /// Login or permission.
    Access,
    /// Not reachable, or a certificate that is not the expected one.
    Connection,
    /// The host has no room now; it may have later.
    Busy,
    /// Anything else.
    Failed,
}

impl VddkError {
    pub(crate) fn new(kind: VddkErrorKind, what: impl Into<String>) -> Self {
        VddkError { kind, what: what.into(), advice: None, source: None }
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A failure that the log tells the cause of.
    pub(crate) fn told(what: &str, words: &str, cause: Option<&Cause>) -> Self {
        let kind = match cause.map(|cause| cause.effect) {
            Some(Effect::Access) => VddkErrorKind::Access,
            Some(Effect::Connection) => VddkErrorKind::Connection,
            Some(Effect::Busy) => VddkErrorKind::Busy,
            Some(Effect::Setup) => VddkErrorKind::Missing,
            Some(Effect::Failure | Effect::Slow) | None => VddkErrorKind::Failed,
        };
        let meaning = cause.map(|cause| format!("{}; ", cause.title)).unwrap_or_default();
        let error = VddkError::new(kind, format!("{what}: {meaning}nbdkit says: {words}"));
        match cause {
            Some(cause) => error.advise(cause.advice),
            None => error,
        }
    }
}

impl fmt::Display for VddkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for VddkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
