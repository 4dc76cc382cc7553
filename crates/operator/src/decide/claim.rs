//! The state claim of a Migration: there before its worker, large enough, and removed when nothing needs it.

use super::{Act, ClaimRoom, ClaimSeen, LOCK_REFUSED_SECONDS, PAUSE_SECONDS_MAX, Run};
use crate::lock::{self, LockSeen};
use crate::model::{Named, Phase, Work};

/// Seconds before a state claim that is being removed is looked at again.
pub(super) const CLAIM_GOES_SECONDS: i64 = 10;
/// The condition of a state claim that is too small and does not grow.
const STATE_SMALL: &str = "StateSmall";

impl Run<'_> {
    /// Whether the claim is there that this VM's state is on.
    pub(super) fn claim_ready(&mut self, work: Work) -> Result<(), Act> {
        let has_begun = self.status.begun;
        let known = self.status.claim.clone();
        match (&self.facts.claim, known) {
            (ClaimSeen::NotAsked, _) => Err(Act::AskClaim),
            (ClaimSeen::There(uid, _), Some(known)) if *uid == known.uid => match work {
                Work::Move => self.room_ready(uid),
                Work::Undo | Work::SwitchOn => Ok(()),
            },
            (_, _) if has_begun => {
                let what = "the claim with its state is gone, or is another: what was begun is not known any more. Undo it by hand \
                            (worker pods, claims and the VirtualMachine; at the source the snapshot and the power), then set \
                            drover.dev/abandon and remove this Migration";
                self.lose(what);
                Err(Act::Nothing)
            }
            (ClaimSeen::There(uid, true), _) => {
                let name = crate::objects::claim_name(&self.facts.me.name);
                self.status.claim = Some(Named { name, uid: uid.clone() });
                Ok(())
            }
            (ClaimSeen::There(_, false), _) => {
                let why = "a claim of the name of its state claim is another's";
                Err(self.look_again("StateClaimTaken", why, PAUSE_SECONDS_MAX))
            }
            (ClaimSeen::Going, _) => {
                let why = "a claim of the name of its state claim is being removed: Kubernetes keeps it as long as a pod uses it, also one that \
                           has ended; remove the Job of that pod";
                Err(self.look_again("StateClaimTerminating", why, CLAIM_GOES_SECONDS))
            }
            (ClaimSeen::Missing, _) => {
                self.status.claim = None;
                Err(Act::MakeClaim)
            }
        }
    }

    /// A claim that was made when workers had no converter is made larger. One that does not grow is told, and used as it is: a
    /// conversion may do with it.
    fn room_ready(&mut self, claim: &str) -> Result<(), Act> {
        match self.facts.room.clone() {
            ClaimRoom::Enough => self.status.conditions.retain(|it| it.kind != STATE_SMALL),
            ClaimRoom::Small { wanted, .. } => return Err(Act::GrowClaim(claim.to_string(), wanted)),
            ClaimRoom::Stays { size, wanted, why } => {
                let what = format!(
                    "its state claim has {size}, of the {wanted} that its workers are to have by now, and does not grow: {why}. A \
                     conversion that needs more fails, and leaves its volumes as they were copied. Set allowVolumeExpansion: true in the \
                     claim's StorageClass if its driver can do that, and the claim grows before the next worker; else cancel this \
                     Migration and remove it, so that it begins anew with a larger claim"
                );
                self.tell(STATE_SMALL, true, "StateClaimStays", &what);
            }
        }
        Ok(())
    }

    /// Whether nothing that it began is left, so that another may have the VM.
    fn leaves_vm(&self) -> bool {
        !self.has_arrived() && (!self.status.begun || self.status.phase == Phase::Cancelled)
    }

    /// The claim is not needed any more. No worker was without one: while it is there, the VM may have a lock.
    pub(super) fn remove_claim(&mut self) -> Option<Act> {
        if self.status.claim.is_some() && self.leaves_vm() {
            match &self.facts.lock {
                LockSeen::NotAsked => return Some(Act::AskLock),
                LockSeen::Mine(uid) => return Some(Act::RemoveLock(uid.clone())),
                // Without the kind there is none of it.
                LockSeen::Free | LockSeen::Others(_) | LockSeen::NotServed(_) => {}
                LockSeen::Denied(_) if self.facts.is_abandoned => {}
                LockSeen::Denied(why) => {
                    let what = format!(
                        "the lock of its VM is to be removed: {why}; give that right back, or set drover.dev/abandon to let this \
                         Migration go with its lock"
                    );
                    self.tell("Arrived", false, lock::REFUSED, &what);
                    return Some(self.wait(LOCK_REFUSED_SECONDS));
                }
            }
        }
        match (&self.facts.claim, &self.status.claim) {
            (_, None) => None,
            (ClaimSeen::NotAsked, Some(_)) => Some(Act::AskClaim),
            (ClaimSeen::There(uid, _), Some(known)) if *uid == known.uid => {
                Some(Act::RemoveClaim(known.uid.clone()))
            }
            (_, Some(_)) => {
                self.status.claim = None;
                None
            }
        }
    }
}
