//! Why VMs do not begin in a run, or do not go on.

use drover_schedule::{Ended, JobId};

use super::{Shut, State};
use crate::error::{Cause, EngineError, ProviderError};

impl State {
    /// Why a VM does not begin in this run, or does not go on.
    pub(super) fn why(&self, id: JobId, ended: Ended, stays: Stays) -> EngineError {
        let (cause, why, advice) = match ended {
            Ended::TooLate => (Cause::NotItsTurn, "the window of its wave is over".into(), LATER),
            Ended::WaveFailed => {
                let by = self.scheduler.stopped_by(id).unwrap_or("before its own");
                (Cause::NotItsTurn, format!("VMs of wave {by} failed, after which none goes on"), TRY_WAVES)
            }
            Ended::WaveShut => match self.shut(id) {
                Some((wave, shut)) => {
                    (shut.cause, format!("wave {wave}: {}", shut.text), shut.advice.as_str())
                }
                None => (Cause::Hook, "what is called before its wave failed".into(), TRY_WAVES),
            },
            Ended::GroupFailed => {
                (Cause::NotItsTurn, "a VM of an earlier stage of its group failed".into(), TRY_GROUP)
            }
            Ended::DatastoreFailed => {
                let name = self.scheduler.datastore_failed(id).unwrap_or_default();
                let why = format!("datastore {name} failed again and again, and is left alone");
                (Cause::HostFailed, why, TRY_DATASTORE)
            }
            Ended::TargetFailed => {
                let (name, last) = self.scheduler.failed_target(id).unwrap_or_default();
                let is_full = last.is_some_and(|last| last.is_full);
                let why = last.map_or("it failed again and again", |last| last.why.as_str());
                let why = format!("{name} is left alone: {why}");
                match is_full {
                    true => (Cause::TargetFull, why, TRY_ROOM),
                    false => (Cause::Target, why, TRY_TARGET),
                }
            }
            Ended::HostFailed | Ended::Arrived | Ended::Failed | Ended::LeftOut => {
                let host = self.vms.get(&id).map(|one| self.scheduler.label(&one.host)).unwrap_or_default();
                let why = format!("host {host} failed again and again, and is left alone");
                (Cause::HostFailed, why, TRY_HOST)
            }
        };
        let what = match stays {
            Stays::NotBegun => format!("it was not begun: {why}"),
            Stays::AtItsSource => format!("{why}, so it does not move over"),
        };
        let window_over = ended == Ended::TooLate;
        ProviderError { window_over, ..ProviderError::new(cause, what).advise(advice) }.into()
    }

    /// The wave of a VM, and why it does not begin.
    fn shut(&self, id: JobId) -> Option<(&str, &Shut)> {
        let wave = self.scheduler.job(id)?.wave.as_deref()?;
        let run = self.runs.get(&self.vms.get(&id)?.tenant)?;
        Some((wave, run.shut.get(wave)?))
    }
}

/// How far a VM was that does not go on.
#[derive(Clone, Copy)]
pub(super) enum Stays {
    NotBegun,
    /// It had begun.
    AtItsSource,
}

const LATER: &str = "give the wave a later end in the plan's file, then give the file to `drover migrate` again: what was copied is kept";
const TRY_HOST: &str = "see whether the host is well, then `drover resume` goes on with its VMs";
const TRY_DATASTORE: &str = "see whether the datastore is well, then `drover resume` goes on with its VMs";
const TRY_ROOM: &str = "make room there, then `drover resume` goes on with its VMs";
const TRY_TARGET: &str =
    "see whether the place is there and can be written to, then `drover resume` goes on with its VMs";
pub(super) const TRY_WAVES: &str =
    "`drover resume` tries what failed again, and goes on in the order of the waves";
const TRY_GROUP: &str = "`drover resume` goes on with the group, in its order";
