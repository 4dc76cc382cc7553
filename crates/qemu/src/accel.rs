use std::env;
use std::fs::OpenOptions;
use std::io;

use crate::spec::Accelerator;

/// What executes guests here, and how we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// Never `Auto`.
    pub accelerator: Accelerator,
    /// Whether it was forced by the environment, so that there is no falling back.
    pub forced: bool,
    /// Such as `/dev/kvm: permission denied`.
    pub reason: String,
}

impl Accelerator {
    /// Finds out whether KVM can be had: by `DROVER_ACCEL` (`kvm` or `tcg`) if it is set, else by opening `/dev/kvm`.
    ///
    /// That it opens does not prove that a guest will run on it: [`crate::start`] falls back if QEMU dies at once.
    pub fn detect() -> Detected {
        let opened = OpenOptions::new().read(true).write(true).open(KVM);
        decide(env::var("DROVER_ACCEL").ok().as_deref(), opened.map(drop))
    }

    /// The word for it in QEMU and in plans.
    pub fn as_str(self) -> &'static str {
        match self {
            Accelerator::Auto => "auto",
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

fn decide(variable: Option<&str>, kvm: io::Result<()>) -> Detected {
    let forced = |accelerator| Detected { accelerator, forced: true, reason: "DROVER_ACCEL says so".into() };
    match (variable, kvm) {
        (Some("kvm"), _) => forced(Accelerator::Kvm),
        (Some("tcg"), _) => forced(Accelerator::Tcg),
        (_, Ok(())) => {
            Detected { accelerator: Accelerator::Kvm, forced: false, reason: format!("{KVM} can be opened") }
        }
        (_, Err(error)) => {
            Detected { accelerator: Accelerator::Tcg, forced: false, reason: format!("{KVM}: {error}") }
        }
    }
}

const KVM: &str = "/dev/kvm";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_device() {
        assert_eq!(decide(Some("tcg"), Ok(())).accelerator, Accelerator::Tcg);
        let forced = decide(Some("kvm"), Err(io::ErrorKind::NotFound.into()));
        assert!(forced.accelerator == Accelerator::Kvm && forced.forced);
    }

    #[test]
    fn a_device_that_cannot_be_opened_means_translation() {
        let found = decide(Some("auto"), Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!((found.accelerator, found.forced), (Accelerator::Tcg, false));
        assert!(found.reason.contains("/dev/kvm"));
        assert_eq!(decide(None, Ok(())).accelerator, Accelerator::Kvm);
    }
}
