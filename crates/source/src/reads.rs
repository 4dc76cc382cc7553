//! How much may be read of sources in a second: what a plan says, within what all plans of a process share.

use std::sync::Arc;
use std::time::Duration;

use drover_agent::limits::{DayLimits, RateLimit, by_changing_hours, by_hours};
use drover_disk::{Disk, Pace, Paced};
use drover_mover::StopSignal;
use drover_plan::{PlannedVm, Target};
use drover_types::DayLimit;

/// A limit that all plans of a process share. Clones are the same limit.
#[derive(Clone, Debug)]
pub struct SharedReads {
    limits: Vec<DayLimit>,
    limit: Arc<RateLimit>,
}

impl SharedReads {
    /// The lowest of these that hold; `say` is told if they cannot be followed by the hours.
    pub fn new(limits: Vec<DayLimit>, say: fn(&str)) -> SharedReads {
        SharedReads { limit: by_hours(limits.clone(), None, say), limits }
    }

    /// By the hours.
    pub fn limits(&self) -> &[DayLimit] {
        &self.limits
    }
}

/// What holds back the reads of a plan.
pub(crate) struct Reads {
    /// Of VMs that come to this machine.
    here: Option<Arc<RateLimit>>,
    /// Of those that go on to a site: what the plan says is kept to on the way there.
    far: Option<Arc<RateLimit>>,
    stop: StopSignal,
}

impl Reads {
    /// Of a plan with this target, whose `rate_limit` is so at the moment.
    pub(crate) fn new(
        target: &Target,
        rate_limit: &DayLimits,
        shared: Option<&SharedReads>,
        stop: &StopSignal,
        say: fn(&str),
    ) -> Reads {
        let far = shared.map(|shared| shared.limit.clone());
        // Also where there is no limit: one may be ordered.
        let own = target.reads_here().then(|| by_changing_hours(rate_limit.clone(), far.clone(), say));
        Reads { here: own.or_else(|| far.clone()), far, stop: stop.clone() }
    }

    /// A disk of a VM, held back as its plan says.
    pub(crate) fn hold(&self, vm: &PlannedVm, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.pace(vm, disk, true)
    }

    /// One whose reads do not wait, because a guest is down for them. They count: others wait the longer.
    pub(crate) fn count(&self, vm: &PlannedVm, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.pace(vm, disk, false)
    }

    fn pace(&self, vm: &PlannedVm, disk: Arc<dyn Disk>, waits: bool) -> Arc<dyn Disk> {
        let limit = if vm.site.is_some() { &self.far } else { &self.here };
        match limit {
            None => disk,
            Some(limit) => {
                let pace = ByLimit { limit: limit.clone(), stop: self.stop.clone(), waits };
                Arc::new(Paced::new(disk, Arc::new(pace)))
            }
        }
    }
}

struct ByLimit {
    limit: Arc<RateLimit>,
    stop: StopSignal,
    waits: bool,
}

impl Pace for ByLimit {
    fn take(&self, bytes: u64) -> Result<(), Duration> {
        if self.waits {
            return self.limit.take(bytes);
        }
        self.limit.spend(bytes);
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}

#[cfg(test)]
mod tests {
    use drover_disk::{MemDisk, read_span};
    use drover_plan::{Plan, resolve};
    use drover_types::ByteSpan;
    use drover_types::inventory::{Inventory, PowerState, Vm, VmDisk};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A plan with these keys in its target, and its VM.
    fn plan(keys: &str) -> (Plan, PlannedVm) {
        let source = "source: {type: vsphere, endpoint: vc, user: u, password_env: P}";
        let text = format!(
            "version: 1\nname: p\n{source}\ntarget: {{type: qemu, folder: vms{keys}}}\nvms: [{{name: a}}]\n"
        );
        let plan = Plan::parse(&text).unwrap();
        let disk = VmDisk { capacity_bytes: MIB, ..VmDisk::default() };
        let vm = Vm {
            id: "vm-1".into(),
            name: "a".into(),
            power: PowerState::Off,
            disks: vec![disk],
            ..Vm::default()
        };
        let vm = resolve(&plan, &Inventory { vms: vec![vm], ..Inventory::default() }).vms.remove(0);
        (plan, vm)
    }

    /// The reads of a plan, and its limit, which may be changed.
    fn reads(plan: &Plan, shared: Option<&SharedReads>, stop: &StopSignal) -> (Reads, DayLimits) {
        let limits = DayLimits::new(plan.target.rate_limit.clone());
        (Reads::new(&plan.target, &limits, shared, stop, |_| {}), limits)
    }

    fn disk() -> Arc<dyn Disk> {
        Arc::new(MemDisk::new("disk", vec![1; MIB as usize]))
    }

    #[test]
    fn all_disks_of_a_plan_that_come_here_share_its_limit_within_that_of_all() {
        let stop = StopSignal::default();
        let shared = SharedReads::new(vec![DayLimit::always(100 * MIB)], |_| {});
        let (limited, vm) = plan(", rate_limit: [1KiB]");
        let (reads, _) = reads(&limited, Some(&shared), &stop);
        let disks = [reads.hold(&vm, disk()), reads.hold(&vm, disk())];
        read_span(&mut *disks[0].open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
        assert_eq!(reads.here.as_ref().unwrap().used().bytes, MIB);
        assert_eq!(shared.limit.used().bytes, MIB);
        // What one took, the other waits for: a quarter of an hour, but for the stop.
        stop.stop();
        read_span(&mut *disks[1].open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap_err();
        assert_eq!(shared.limit.used().bytes, MIB);
    }

    #[test]
    fn a_read_that_waits_goes_on_once_the_limit_is_taken_away_and_one_may_be_set_later() {
        let (slow, vm) = plan(", rate_limit: [1KiB]");
        let (held, limits) = reads(&slow, None, &StopSignal::default());
        let read = |disk: Arc<dyn Disk>| read_span(&mut *disk.open_lane().unwrap(), ByteSpan::new(0, MIB));
        read(held.hold(&vm, disk())).unwrap();
        std::thread::scope(|scope| {
            // For a quarter of an hour, but for the order.
            let waits = scope.spawn(|| read(held.hold(&vm, disk())));
            limits.set(Vec::new());
            waits.join().unwrap().unwrap();
        });
        let (free, vm) = plan("");
        let (reads, limits) = reads(&free, None, &StopSignal::default());
        let limit = reads.here.as_ref().unwrap();
        assert_eq!(limit.bytes_per_second(), None);
        limits.set(vec![DayLimit::always(7)]);
        let looks = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(20))).take(1500);
        assert!(looks.map(|()| limit.bytes_per_second()).any(|now| now == Some(7)));
        read(reads.hold(&vm, disk())).unwrap();
        assert_eq!(limit.used().bytes, MIB);
    }

    #[test]
    fn what_a_guest_is_down_for_does_not_wait_and_counts() {
        let shared = SharedReads::new(vec![DayLimit::always(1 << 10)], |_| {});
        let pace = |waits| ByLimit { limit: shared.limit.clone(), stop: StopSignal::default(), waits };
        assert!(pace(false).take(MIB).is_ok() && pace(false).take(MIB).is_ok());
        assert!(pace(true).take(MIB).is_err(), "others wait for what was taken");
        assert_eq!(shared.limit.used().bytes, 2 * MIB);
        let (plan, vm) = plan("");
        let (reads, _) = reads(&plan, Some(&shared), &StopSignal::default());
        let urgent = reads.count(&vm, disk());
        read_span(&mut *urgent.open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
        assert_eq!(shared.limit.used().bytes, 3 * MIB);
    }

    #[test]
    fn what_goes_on_to_a_site_keeps_to_its_own_limit_there_and_to_that_of_all_here() {
        let stop = StopSignal::default();
        let shared = SharedReads::new(vec![DayLimit::always(MIB)], |_| {});
        let (limited, vm) = plan(", via: site-b, rate_limit: [1KiB]");
        assert!(vm.site.is_some());
        let inside = disk();
        let (alone, _) = reads(&limited, None, &stop);
        assert!(Arc::ptr_eq(&alone.hold(&vm, inside.clone()), &inside), "nothing is around it");
        let (reads, _) = reads(&limited, Some(&shared), &stop);
        assert!(Arc::ptr_eq(reads.far.as_ref().unwrap(), &shared.limit));
        assert!(Arc::ptr_eq(reads.here.as_ref().unwrap(), &shared.limit));
        assert!(!Arc::ptr_eq(&reads.hold(&vm, inside.clone()), &inside));
    }
}
