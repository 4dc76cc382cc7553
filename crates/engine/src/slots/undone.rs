//! VMs that failed and keep their slots until their source answers, so that they can be undone.

use super::{JobId, One, Slots};
use crate::parallel::OnDrop;

impl Slots<'_> {
    /// The VM waits until it can be undone, until this is dropped.
    pub(crate) fn waits_to_be_undone(&self) -> impl Drop + use<'_> {
        let (schedule, id) = (self.schedule, self.id);
        schedule.lock().undone.insert(id);
        OnDrop::new(move || {
            schedule.lock().undone.remove(&id);
        })
    }

    /// Whether another VM of its run is at work with its slots. Those that wait for slots, for their turn to move over or to be
    /// undone may wait for this very VM.
    pub(crate) fn has_others(&self) -> bool {
        let state = self.schedule.lock();
        let own = state.vms.get(&self.id).map(|one| one.tenant);
        let is_at_work = |id: &JobId, one: &One| {
            one.admitted.is_some() && !state.undone.contains(id) && !state.called_up.contains(id)
        };
        state.vms.iter().any(|(id, one)| *id != self.id && Some(one.tenant) == own && is_at_work(id, one))
    }
}

#[cfg(test)]
mod tests {
    use drover_schedule::{Budgets, Tenant};

    use super::super::Schedule;
    use super::*;
    use crate::clock::SystemClock;

    fn one(tenant: u64, admitted: Option<usize>) -> One {
        One {
            tenant: Tenant(tenant),
            at: 0,
            host: "host".into(),
            admitted,
            has_begun: true,
            is_left: false,
            is_left_out: false,
            given_up: None,
            claim: None,
            room: None,
        }
    }

    #[test]
    fn one_that_waits_to_be_undone_goes_on_for_those_at_work_and_not_for_those_that_wait() {
        let schedule = Schedule::new(Budgets::default());
        let put = |id: u64, tenant: u64, admitted: Option<usize>| {
            schedule.lock().vms.insert(JobId(id), one(tenant, admitted));
        };
        put(1, 0, Some(1));
        let slots = |id: u64| Slots { schedule: &schedule, clock: &SystemClock, id: JobId(id) };
        let (first, second) = (slots(1), slots(2));
        assert!(!first.has_others());
        put(2, 0, Some(1));
        assert!(first.has_others());
        let undone = second.waits_to_be_undone();
        assert!(!first.has_others(), "neither waits for the other");
        drop(undone);
        assert!(first.has_others());
        schedule.lock().called_up.insert(JobId(2));
        assert!(!first.has_others(), "it has its slots, and waits until others have moved over");
        schedule.lock().called_up.clear();
        put(2, 0, None);
        assert!(!first.has_others(), "it waits for slots, or for an order to move over");
        put(2, 1, Some(1));
        assert!(!first.has_others(), "it is another run's");
    }
}
