//! Which VM goes next: budgets per source host and in total; fewer turns, greater priority and more bytes first.
//!
//! A plain state machine: the engine asks [`Scheduler::next`] until it says `None`, and again
//! whenever something finished. A VM takes a slot of its host and a slot for each of its disks, gives
//! the disks' slots back one by one, and its host's slot when it needs the source no more. A host may
//! have a budget of disks of its own (see [`crate::nfc`]); the same slots count there.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::Limits;
use crate::resolution::PlannedVm;

/// Position of a VM in the list that the [`Scheduler`] was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmIndex(pub usize);

/// What a VM asks of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Id of the host that serves it.
    pub host: String,
    /// Disks to copy.
    pub disks: u32,
    /// Bytes to copy; the measure of "longest".
    pub bytes: u64,
    /// Greater goes first.
    pub priority: i32,
    /// Disks that its host serves at once, the same for all VMs of a host; at least 1.
    pub host_disks: u32,
}

impl From<&PlannedVm> for Work {
    fn from(vm: &PlannedVm) -> Self {
        Work {
            host: vm.vm.host_id.clone(),
            disks: u32::try_from(vm.disks.len()).unwrap_or(u32::MAX),
            bytes: vm.capacity_bytes(),
            priority: vm.priority,
            host_disks: vm.nfc.map_or(u32::MAX, |nfc| nfc.disks_at_once.max(1)),
        }
    }
}

/// Budgets of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// VMs at once from one host; at least 1.
    pub vms_per_host: u32,
    /// Disks at once in total; at least 1. A VM with more disks than this goes alone.
    pub disks: u32,
}

impl From<&Limits> for Budgets {
    fn from(limits: &Limits) -> Self {
        Budgets { vms_per_host: limits.vms_per_host, disks: limits.disks }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Admitted: slots held, and disks still to copy, of which there may be more.
    Running {
        slots: u32,
        disks: u32,
    },
    /// Between two passes: wants nothing for now.
    Parked,
    Finished,
}

/// Admits VMs within budgets.
#[derive(Clone, Debug)]
pub struct Scheduler {
    works: Vec<Work>,
    states: Vec<State>,
    /// How often each was admitted.
    turns: Vec<u64>,
    /// Indexes of the waiting, first to go first.
    queue: Vec<usize>,
    budgets: Budgets,
    hosts: BTreeMap<String, HostUse>,
    disks: u32,
}

/// Slots of a host that are held.
#[derive(Clone, Copy, Debug, Default)]
struct HostUse {
    vms: u32,
    disks: u32,
}

impl Scheduler {
    /// A schedule of `works`, all waiting. Budgets of 0 count as 1, so that it always ends.
    pub fn new(works: Vec<Work>, budgets: Budgets) -> Self {
        let budgets = Budgets { vms_per_host: budgets.vms_per_host.max(1), disks: budgets.disks.max(1) };
        let mut queue: Vec<usize> = (0..works.len()).collect();
        queue.sort_by_key(|&index| order(&works[index], index));
        let (states, turns) = (vec![State::Waiting; works.len()], vec![0; works.len()]);
        Scheduler { works, states, turns, queue, budgets, hosts: BTreeMap::new(), disks: 0 }
    }

    /// The VM to start now, if one fits; its slots are taken from this moment.
    ///
    /// A host without room for its next VM is passed over, with all its VMs. A VM for whose disks there is no
    /// room in total is not: smaller ones behind it would otherwise hold it back for ever.
    #[expect(clippy::should_implement_trait, reason = "answers differ over time: no iterator")]
    pub fn next(&mut self) -> Option<VmIndex> {
        let mut full = BTreeSet::new();
        let fits = |&index: &usize| {
            let work = &self.works[index];
            !full.contains(&work.host) && (self.host_has_room(work) || !full.insert(&work.host))
        };
        let at = self.queue.iter().position(fits)?;
        let index = self.queue[at];
        let slots = self.slots(VmIndex(index));
        if self.disks + slots > self.budgets.disks {
            return None;
        }
        self.queue.remove(at);
        self.turns[index] += 1;
        self.disks += slots;
        let host = self.hosts.entry(self.works[index].host.clone()).or_default();
        host.vms += 1;
        host.disks += slots;
        self.states[index] = State::Running { slots, disks: self.works[index].disks.max(1) };
        self.check_invariants();
        Some(VmIndex(index))
    }

    /// One disk of a running VM is done: its slot goes to the VM's next disk, or else to other VMs.
    /// More calls than disks are harmless.
    pub fn disk_finished(&mut self, vm: VmIndex) {
        if let State::Running { slots, disks } = &mut self.states[vm.0] {
            *disks = disks.saturating_sub(1);
            let freed = slots.saturating_sub(*disks);
            *slots -= freed;
            self.disks -= freed;
            self.host_of(vm).disks -= freed;
        }
        self.check_invariants();
    }

    /// A running VM needs the source no more, whether it ended well or not. So does one that was parked,
    /// or waits to go on.
    ///
    /// # Panics
    /// If the VM has finished before.
    pub fn finished(&mut self, vm: VmIndex) {
        match self.states[vm.0] {
            State::Parked => {}
            State::Waiting => self.queue.retain(|index| *index != vm.0),
            State::Running { .. } | State::Finished => self.release(vm),
        }
        self.states[vm.0] = State::Finished;
        self.check_invariants();
    }

    /// A running VM goes back to the queue, at its old place, to be tried again.
    ///
    /// # Panics
    /// If the VM does not run.
    pub fn requeue(&mut self, vm: VmIndex) {
        self.release(vm);
        // It had none of this turn.
        self.turns[vm.0] -= 1;
        self.wait(vm, false);
    }

    /// A running VM wants nothing of the source until [`Scheduler::wake`]; others get its slots.
    ///
    /// # Panics
    /// If the VM does not run.
    pub fn park(&mut self, vm: VmIndex) {
        self.release(vm);
        self.states[vm.0] = State::Parked;
        self.check_invariants();
    }

    /// A parked VM waits for its slots again: behind those that had fewer turns and among its like at its old place, so
    /// that each comes to its passes however many there are; or before all others if its guest is about to be shut down
    /// for it.
    ///
    /// # Panics
    /// If the VM is not parked.
    pub fn wake(&mut self, vm: VmIndex, first: bool) {
        assert_eq!(self.states[vm.0], State::Parked, "VM {} is woken but was not parked", vm.0);
        self.wait(vm, first);
    }

    fn wait(&mut self, vm: VmIndex, first: bool) {
        self.states[vm.0] = State::Waiting;
        let key = |index: usize| (self.turns[index], order(&self.works[index], index));
        let by_order = || self.queue.iter().position(|&index| key(index) > key(vm.0));
        let at = if first { 0 } else { by_order().unwrap_or(self.queue.len()) };
        self.queue.insert(at, vm.0);
        self.check_invariants();
    }

    /// VMs that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// VMs that run.
    pub fn running(&self) -> usize {
        self.states.iter().filter(|state| matches!(state, State::Running { .. })).count()
    }

    /// Whether every VM has finished.
    pub fn is_done(&self) -> bool {
        self.states.iter().all(|state| *state == State::Finished)
    }

    fn release(&mut self, vm: VmIndex) {
        let State::Running { slots, .. } = self.states[vm.0] else {
            panic!("VM {} is given back but does not run", vm.0);
        };
        self.disks -= slots;
        let host = self.host_of(vm);
        host.vms -= 1;
        host.disks -= slots;
    }

    /// What is held of a VM's host.
    fn host_of(&mut self, vm: VmIndex) -> &mut HostUse {
        self.hosts.entry(self.works[vm.0].host.clone()).or_default()
    }

    fn host_has_room(&self, work: &Work) -> bool {
        let held = self.hosts.get(&work.host).copied().unwrap_or_default();
        held.vms < self.budgets.vms_per_host
            && held.disks.saturating_add(self.slots_of(work)) <= work.host_disks.max(1)
    }

    /// Slots that a VM takes when it starts, which is how many of its disks may be open at once: one at least,
    /// and never more than there are.
    pub fn slots(&self, vm: VmIndex) -> u32 {
        self.slots_of(&self.works[vm.0])
    }

    fn slots_of(&self, work: &Work) -> u32 {
        work.disks.clamp(1, self.budgets.disks.min(work.host_disks.max(1)))
    }

    /// # Panics
    /// If a budget is exceeded or a VM is counted twice or not at all.
    fn check_invariants(&self) {
        assert!(self.disks <= self.budgets.disks, "more disks run than the budget allows");
        assert!(
            self.hosts.values().all(|host| host.vms <= self.budgets.vms_per_host),
            "more VMs run on a host than the budget allows"
        );
        assert!(
            self.works.iter().all(|work| {
                self.hosts.get(&work.host).is_none_or(|host| host.disks <= work.host_disks.max(1))
            }),
            "more disks of a host are open than its budget allows"
        );
        let held = self.states.iter().map(|state| match state {
            State::Running { slots, .. } => *slots,
            State::Waiting | State::Parked | State::Finished => 0,
        });
        assert_eq!(held.sum::<u32>(), self.disks, "disk slots were lost or made up");
        let waiting = self.states.iter().filter(|state| **state == State::Waiting).count();
        assert_eq!(waiting, self.queue.len(), "the queue holds other VMs than the waiting ones");
    }
}

/// Sort key: greater priority, then more bytes, then the earlier in the list.
fn order(work: &Work, index: usize) -> (std::cmp::Reverse<(i32, u64)>, usize) {
    (std::cmp::Reverse((work.priority, work.bytes)), index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn work(host: &str, disks: u32, bytes: u64, priority: i32) -> Work {
        Work { host: host.into(), disks, bytes, priority, host_disks: u32::MAX }
    }

    /// Work on a host that serves so many disks at once.
    fn tight(work: Work, host_disks: u32) -> Work {
        Work { host_disks, ..work }
    }

    fn scheduler(works: &[Work], vms_per_host: u32, disks: u32) -> Scheduler {
        Scheduler::new(works.to_vec(), Budgets { vms_per_host, disks })
    }

    fn admitted(scheduler: &mut Scheduler) -> Vec<usize> {
        std::iter::from_fn(|| scheduler.next()).map(|vm| vm.0).collect()
    }

    #[test]
    fn priority_goes_first_then_size_then_the_order_of_the_list() {
        let works = [work("a", 1, 5, 0), work("a", 1, 9, 0), work("a", 1, 1, 7), work("a", 1, 9, 0)];
        assert_eq!(admitted(&mut scheduler(&works, 20, 8)), [2, 1, 3, 0]);
    }

    #[test]
    fn passes_go_round_however_large_a_vm_is_or_how_soon_it_is_back() {
        let works = [work("a", 1, 9, 5), work("a", 1, 8, 0), work("a", 1, 1, 0)];
        let mut scheduler = scheduler(&works, 20, 1);
        let mut order = Vec::new();
        for _ in 0..9 {
            let vm = scheduler.next().unwrap();
            order.push(vm.0);
            // Its next pass is due at once.
            scheduler.park(vm);
            scheduler.wake(vm, false);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_full_host_does_not_hold_back_the_others() {
        let works = [work("a", 1, 9, 0), work("a", 1, 8, 0), work("b", 1, 1, 0)];
        let mut scheduler = scheduler(&works, 1, 8);
        assert_eq!(admitted(&mut scheduler), [0, 2]);
        assert_eq!((scheduler.running(), scheduler.waiting()), (2, 1));
        scheduler.finished(VmIndex(0));
        assert_eq!(scheduler.running(), 1);
        assert_eq!(admitted(&mut scheduler), [1]);
    }

    #[test]
    fn a_vm_with_many_disks_is_not_overtaken_for_ever() {
        let works = [work("a", 3, 9, 1), work("b", 4, 8, 0), work("c", 1, 1, 0)];
        let mut scheduler = scheduler(&works, 20, 4);
        assert_eq!(admitted(&mut scheduler), [0], "the one-disk VM would fit, but it is not its turn");
        scheduler.finished(VmIndex(0));
        assert_eq!(admitted(&mut scheduler), [1]);
    }

    #[test]
    fn a_vm_with_more_disks_than_the_budget_goes_alone_until_its_last_ones() {
        let works = [work("a", 10, 9, 0), work("b", 1, 1, 0)];
        let mut scheduler = scheduler(&works, 20, 4);
        assert_eq!(admitted(&mut scheduler), [0]);
        (0..6).for_each(|_| scheduler.disk_finished(VmIndex(0)));
        assert_eq!(scheduler.next(), None, "four disks are left for four slots");
        scheduler.disk_finished(VmIndex(0));
        assert_eq!(admitted(&mut scheduler), [1]);
    }

    #[test]
    fn a_host_serves_no_more_disks_than_its_budget_and_holds_back_no_other() {
        let works = [
            tight(work("a", 2, 9, 0), 3),
            tight(work("a", 2, 8, 0), 3),
            tight(work("a", 1, 7, 0), 3),
            work("b", 1, 1, 0),
        ];
        let mut scheduler = scheduler(&works, 20, 8);
        assert_eq!(admitted(&mut scheduler), [0, 3], "the one-disk VM would fit, but it is not its turn");
        scheduler.disk_finished(VmIndex(0));
        assert_eq!(admitted(&mut scheduler), [1]);
        scheduler.finished(VmIndex(0));
        assert_eq!(admitted(&mut scheduler), [2]);
    }

    #[test]
    fn a_vm_with_more_disks_than_its_host_serves_takes_them_in_turns() {
        let works = [tight(work("a", 5, 9, 0), 2)];
        let mut scheduler = scheduler(&works, 20, 8);
        assert_eq!(admitted(&mut scheduler), [0]);
        assert_eq!(scheduler.slots(VmIndex(0)), 2);
    }

    #[test]
    fn a_vm_that_is_put_back_gets_its_old_place() {
        let works = [work("a", 1, 9, 0), work("a", 1, 8, 0), work("a", 1, 7, 0)];
        let mut scheduler = scheduler(&works, 1, 8);
        assert_eq!(admitted(&mut scheduler), [0]);
        scheduler.requeue(VmIndex(0));
        assert_eq!((scheduler.waiting(), scheduler.running()), (3, 0));
        assert_eq!(admitted(&mut scheduler), [0]);
    }

    #[test]
    fn a_parked_vm_holds_nothing_and_goes_first_when_its_guest_waits() {
        let works = [work("a", 2, 9, 0), work("a", 2, 8, 0), work("a", 2, 7, 0)];
        let mut scheduler = scheduler(&works, 1, 2);
        assert_eq!(admitted(&mut scheduler), [0]);
        scheduler.park(VmIndex(0));
        assert_eq!(admitted(&mut scheduler), [1]);
        scheduler.park(VmIndex(1));
        assert_eq!(admitted(&mut scheduler), [2]);
        // At its old place, or before all others.
        scheduler.wake(VmIndex(1), false);
        scheduler.wake(VmIndex(0), false);
        scheduler.park(VmIndex(2));
        scheduler.wake(VmIndex(2), true);
        assert_eq!(admitted(&mut scheduler), [2]);
        scheduler.finished(VmIndex(2));
        assert_eq!(admitted(&mut scheduler), [0]);
        // One may end while it is parked or waits.
        scheduler.park(VmIndex(0));
        scheduler.finished(VmIndex(0));
        scheduler.finished(VmIndex(1));
        assert!(scheduler.is_done() && scheduler.waiting() == 0);
    }

    fn any_work() -> impl Strategy<Value = Work> {
        let host_disks = [0, 1, 4, u32::MAX];
        (0..4u8, 0..12u32, 0..6u64, -1..2i32).prop_map(move |(host, disks, bytes, priority)| {
            tight(work(&host.to_string(), disks, bytes, priority), host_disks[host as usize])
        })
    }

    fn slots(work: &Work, disks: u32) -> u32 {
        work.disks.min(work.host_disks.max(1)).clamp(1, disks)
    }

    /// VMs and disks that run, counted from the outside.
    fn usage(works: &[Work], running: &[usize], disks: u32) -> (BTreeMap<String, (u32, u32)>, u32) {
        let mut hosts = BTreeMap::<String, (u32, u32)>::new();
        for &vm in running {
            let host = hosts.entry(works[vm].host.clone()).or_default();
            *host = (host.0 + 1, host.1 + slots(&works[vm], disks));
        }
        (hosts, running.iter().map(|&vm| slots(&works[vm], disks)).sum())
    }

    proptest! {
        #[test]
        fn budgets_hold_all_get_done_and_the_first_that_a_host_can_take_goes_first(
            works in prop::collection::vec(any_work(), 0..40),
            vms_per_host in 0..4u32,
            disks in 0..10u32,
            ends in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..200),
        ) {
            let mut scheduler = scheduler(&works, vms_per_host, disks);
            let (vms_per_host, disks) = (vms_per_host.max(1), disks.max(1));
            let (mut running, mut waiting) = (Vec::new(), (0..works.len()).collect::<Vec<usize>>());
            let mut ends = ends.into_iter();
            while !scheduler.is_done() {
                while let Some(VmIndex(vm)) = scheduler.next() {
                    let (hosts, _) = usage(&works, &running, disks);
                    let room = |vm: usize| hosts.get(&works[vm].host).is_none_or(|(vms, open)| {
                        *vms < vms_per_host && open + slots(&works[vm], disks) <= works[vm].host_disks.max(1)
                    });
                    let first_of_host = |vm: usize| waiting.iter().copied()
                        .filter(|&other| works[other].host == works[vm].host)
                        .min_by_key(|&other| order(&works[other], other)) == Some(vm);
                    let first = waiting.iter().copied().filter(|&vm| first_of_host(vm) && room(vm))
                        .min_by_key(|&vm| order(&works[vm], vm));
                    prop_assert_eq!(Some(vm), first);
                    waiting.retain(|other| *other != vm);
                    running.push(vm);
                    let (hosts, used) = usage(&works, &running, disks);
                    prop_assert!(used <= disks && hosts.values().all(|(vms, _)| *vms <= vms_per_host));
                    prop_assert!(hosts[&works[vm].host].1 <= works[vm].host_disks.max(1));
                }
                prop_assert!(!running.is_empty(), "work is left, nothing runs and nothing is admitted");
                let (which, again) = ends.next().map_or((0, false), |(at, again)| (at.index(running.len()), again));
                let vm = running.swap_remove(which);
                if again {
                    scheduler.requeue(VmIndex(vm));
                    waiting.push(vm);
                } else {
                    scheduler.finished(VmIndex(vm));
                }
            }
            prop_assert_eq!((scheduler.waiting(), running.len()), (0, 0));
        }
    }
}
