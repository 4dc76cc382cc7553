//! Errors of QEMU, of disks on this machine and of sites in the engine's words.

use drover_agent::sites::SiteError;
use drover_disk::{DiskError, DiskErrorKind};
use drover_engine::{Cause, ProviderError, chain};
use drover_qemu::{QemuError, QemuErrorKind};

/// A QEMU error in the engine's words.
pub fn qemu_error(error: QemuError) -> ProviderError {
    let cause = match error.kind {
        QemuErrorKind::OutOfSpace => Cause::TargetFull,
        QemuErrorKind::Denied => Cause::Access,
        QemuErrorKind::Stopped => Cause::Cancelled,
        _ => Cause::Target,
    };
    let mut wrapped = ProviderError::new(cause, error.to_string());
    wrapped.advice = error.advice();
    wrapped.source = error.source;
    wrapped
}

/// An error of a disk of this machine that is written to.
pub(crate) fn disk_error(error: DiskError) -> ProviderError {
    let cause = match error.kind {
        DiskErrorKind::OutOfSpace => Cause::TargetFull,
        _ => Cause::Target,
    };
    ProviderError::new(cause, chain(&error))
}

/// What kept this host from a site, or from its own key.
pub(crate) fn site_error(cause: Cause, error: &SiteError) -> ProviderError {
    ProviderError::new(cause, error.to_string()).advise(error.advice())
}
