//! The end of a move that is not to go on.

use std::time::Instant;

use drover_live::{DomainJob, Found};

use super::run::{LOOK_PAUSE, Move, SETTLE_TIME_MAX};

impl Move<'_> {
    /// Cancels it, and waits for its end. Nobody cancels for a guest that went ahead.
    pub(super) fn cancel(&mut self) {
        let until = Instant::now() + SETTLE_TIME_MAX;
        while Instant::now() < until {
            let found = self.found();
            if matches!(found, Ok(Found::Ahead | Found::Broken)) {
                return;
            }
            let is_over = self.moving.as_mut().is_none_or(|moving| moving.ended().is_some());
            let job = self.ends.source.job(&self.known.uuid, 0).map(|job| job.kind);
            let is_known = found.is_ok() && job.is_ok();
            if is_ours(job.unwrap_or_default(), found.ok().as_ref(), is_over) {
                // Refused where there is nothing to cancel: not yet, or no more.
                let _ = self.ends.source.ask(&["domjobabort", &self.known.uuid]);
            } else if is_over && is_known {
                return;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

/// Whether this is done with the domain by the move that is to be cancelled, and not by somebody's backup or another's move.
fn is_ours(job: DomainJob, found: Option<&Found>, has_virsh_ended: bool) -> bool {
    job == DomainJob::Out && (!has_virsh_ended || found == Some(&Found::Sending))
}

#[cfg(test)]
mod tests {
    use drover_live::{DomainUnclear, Unclear};

    use super::*;

    #[test]
    fn only_the_move_itself_is_cancelled() {
        let moving = Some(&Found::Sending);
        let other = Found::Unclear(Unclear::Domain(DomainUnclear::OtherMove));
        assert!(is_ours(DomainJob::Out, moving, false) && is_ours(DomainJob::Out, moving, true));
        // The target does not wait for it yet, or its daemon does not answer.
        assert!(is_ours(DomainJob::Out, Some(&other), false) && is_ours(DomainJob::Out, None, false));
        assert!(!is_ours(DomainJob::Out, Some(&other), true) && !is_ours(DomainJob::Out, None, true));
        let backup = Found::Unclear(Unclear::Domain(DomainUnclear::OtherJob));
        for has_virsh_ended in [false, true] {
            assert!(!is_ours(DomainJob::Other, Some(&backup), has_virsh_ended));
            assert!(!is_ours(DomainJob::None, Some(&Found::Nothing), has_virsh_ended));
        }
    }
}
