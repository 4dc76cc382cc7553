//! How much may be read of sources in a second: what a plan says, within what all plans of a process share. A delta that a
//! guest is down for is read first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_agent::limits::{DayLimits, RateLimit, by_changing_hours, by_hours};
use drover_disk::{Disk, Pace, Paced};
use drover_mover::StopSignal;
use drover_plan::{PlannedVm, Target};
use drover_types::DayLimit;

use crate::urgent::Host;

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

    /// A disk of a VM at this host, held back as its plan says, and while others of the host are read for which a guest is down.
    pub(crate) fn hold(&self, vm: &PlannedVm, host: Arc<Host>, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.pace(vm, Turn::Waits(host), disk)
    }

    /// One that a guest is down for, but for no delta: held back as its plan says, and by no other disk.
    pub(crate) fn limit(&self, vm: &PlannedVm, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.pace(vm, Turn::Beside, disk)
    }

    /// One whose reads do not wait, because a guest is down for them. They count: others wait the longer, and others of the host
    /// while it is waited for.
    pub(crate) fn count(&self, vm: &PlannedVm, host: Arc<Host>, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        host.opened();
        self.pace(vm, Turn::First(host), disk)
    }

    fn pace(&self, vm: &PlannedVm, turn: Turn, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        let limit = if vm.site.is_some() { &self.far } else { &self.here };
        let pace = ByTurn { limit: limit.clone(), stop: self.stop.clone(), turn };
        Arc::new(Paced::new(disk, Arc::new(pace)))
    }
}

/// When a disk is read, of those of its host.
enum Turn {
    /// When none is waited for that goes first.
    Waits(Arc<Host>),
    /// At any time; none waits for it.
    Beside,
    /// Before those that wait.
    First(Arc<Host>),
}

struct ByTurn {
    limit: Option<Arc<RateLimit>>,
    stop: StopSignal,
    turn: Turn,
}

impl Pace for ByTurn {
    fn take(&self, bytes: u64) -> Result<(), Duration> {
        match (&self.turn, &self.limit) {
            (Turn::Waits(_) | Turn::Beside, Some(limit)) => return limit.take(bytes),
            (Turn::Waits(_) | Turn::Beside, None) => {}
            (Turn::First(_), limit) => limit.iter().for_each(|limit| limit.spend(bytes)),
        }
        Ok(())
    }

    fn gives_way(&self, waited: Duration) -> bool {
        match &self.turn {
            Turn::Waits(host) => !self.stop.is_set() && host.holds_up(waited),
            Turn::Beside | Turn::First(_) => false,
        }
    }

    fn waits(&self, since: Instant) {
        if let Turn::First(host) = &self.turn {
            host.waits(since);
        }
    }

    fn received(&self, since: Instant, is_well: bool) {
        if let Turn::First(host) = &self.turn {
            host.received(since, is_well);
        }
    }

    /// Without a limit nothing waits that a stop has to end: [`Pace::gives_way`] sees to that.
    fn is_stopped(&self) -> bool {
        self.limit.is_some() && self.stop.is_set()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use drover_disk::{Around, Buffer, Completion, DiskError, Lane, MemDisk, Request, Work, read_span};
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

    fn host() -> Arc<Host> {
        Arc::new(Host::new())
    }

    #[test]
    fn all_disks_of_a_plan_that_come_here_share_its_limit_within_that_of_all() {
        let stop = StopSignal::default();
        let shared = SharedReads::new(vec![DayLimit::always(100 * MIB)], |_| {});
        let (limited, vm) = plan(", rate_limit: [1KiB]");
        let (reads, _) = reads(&limited, Some(&shared), &stop);
        let disks = [reads.hold(&vm, host(), disk()), reads.hold(&vm, host(), disk())];
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
        read(held.hold(&vm, host(), disk())).unwrap();
        std::thread::scope(|scope| {
            // For a quarter of an hour, but for the order.
            let waits = scope.spawn(|| read(held.hold(&vm, host(), disk())));
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
        read(reads.hold(&vm, host(), disk())).unwrap();
        assert_eq!(limit.used().bytes, MIB);
    }

    #[test]
    fn what_a_guest_is_down_for_does_not_wait_and_counts() {
        let shared = SharedReads::new(vec![DayLimit::always(1 << 10)], |_| {});
        let limit = Some(shared.limit.clone());
        let pace = |turn| ByTurn { limit: limit.clone(), stop: StopSignal::default(), turn };
        let first = || pace(Turn::First(host()));
        assert!(first().take(MIB).is_ok() && first().take(MIB).is_ok());
        assert!(pace(Turn::Waits(host())).take(MIB).is_err(), "others wait for what was taken");
        assert!(pace(Turn::Beside).take(MIB).is_err(), "and so does what is no delta");
        assert_eq!(shared.limit.used().bytes, 2 * MIB);
        let (plan, vm) = plan("");
        let (reads, _) = reads(&plan, Some(&shared), &StopSignal::default());
        let urgent = reads.count(&vm, host(), disk());
        read_span(&mut *urgent.open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
        assert_eq!(shared.limit.used().bytes, 3 * MIB);
    }

    #[test]
    fn what_goes_on_to_a_site_keeps_to_its_own_limit_there_and_to_that_of_all_here() {
        let stop = StopSignal::default();
        let shared = SharedReads::new(vec![DayLimit::always(MIB)], |_| {});
        let (limited, vm) = plan(", via: site-b, rate_limit: [1KiB]");
        assert!(vm.site.is_some());
        let (alone, _) = reads(&limited, None, &stop);
        let free = alone.hold(&vm, host(), disk());
        read_span(&mut *free.open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
        assert!(alone.here.is_none() && alone.far.is_none(), "it is held on the way there");
        let (reads, _) = reads(&limited, Some(&shared), &stop);
        assert!(Arc::ptr_eq(reads.far.as_ref().unwrap(), &shared.limit));
        assert!(Arc::ptr_eq(reads.here.as_ref().unwrap(), &shared.limit));
        let held = reads.hold(&vm, host(), disk());
        read_span(&mut *held.open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
        assert_eq!(shared.limit.used().bytes, MIB);
    }

    const PIECE: u64 = MIB / 4;

    /// Asks its host for its turn before each piece is received.
    struct OfHost {
        disk: MemDisk,
        name: &'static str,
        asks: Asks,
    }

    /// Who asks, and how it is told that it may.
    type Asks = Sender<(&'static str, Sender<()>)>;

    impl Around for OfHost {
        fn inner(&self) -> &dyn Disk {
            &self.disk
        }

        fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
            let lane = self.disk.open_lane()?;
            Ok(Box::new(LaneOfHost { lane, name: self.name, asks: self.asks.clone() }))
        }
    }

    struct LaneOfHost {
        lane: Box<dyn Lane>,
        name: &'static str,
        asks: Asks,
    }

    impl Lane for LaneOfHost {
        fn submit(&mut self, request: Request) {
            self.lane.submit(request);
        }

        fn complete(&mut self) -> Option<Completion> {
            let (turn, my_turn) = channel();
            self.asks.send((self.name, turn)).unwrap();
            my_turn.recv().unwrap();
            self.lane.complete()
        }

        fn in_flight(&self) -> usize {
            self.lane.in_flight()
        }
    }

    /// Reads a disk with all its pieces under way at once, and closes it.
    fn read_all(disk: Arc<dyn Disk>) {
        let mut lane = disk.open_lane().unwrap();
        for id in 0..MIB / PIECE {
            let work = Work::Read(Buffer::zeroed(PIECE as usize));
            lane.submit(Request { id, span: ByteSpan::new(id * PIECE, PIECE), work });
        }
        while lane.in_flight() > 0 {
            lane.complete().unwrap().result.unwrap();
        }
    }

    #[test]
    fn what_a_guest_is_down_for_has_its_host_to_itself_and_no_other() {
        let (plan, vm) = plan("");
        let (reads, _) = reads(&plan, None, &StopSignal::default());
        let (host, elsewhere) = (host(), host());
        let (asks, asked) = channel();
        let of_host = |name: &'static str| -> Arc<dyn Disk> {
            let disk = MemDisk::new(name, vec![1; MIB as usize]);
            Arc::new(OfHost { disk, name, asks: asks.clone() })
        };
        let passes = reads.hold(&vm, host.clone(), of_host("pass"));
        let mut order = Vec::new();
        // A tick of the host: whoever has asked first gets a piece.
        let mut tick = || {
            let (name, turn) = asked.recv().unwrap();
            order.push(name);
            turn
        };
        std::thread::scope(|scope| {
            scope.spawn(|| read_all(passes));
            let turn = tick();
            // All its pieces are under way when a guest goes down; one of them is being received.
            let cutover = reads.count(&vm, host.clone(), of_host("cutover"));
            scope.spawn(|| read_all(cutover));
            let cutovers = tick();
            turn.send(()).unwrap();
            // Another host goes on meanwhile, and of this one what another guest is down for.
            for free in [reads.hold(&vm, elsewhere, disk()), reads.limit(&vm, disk())] {
                read_span(&mut *free.open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
            }
            // Others wait for as long again after it: time enough for its next read to begin on a busy machine.
            std::thread::sleep(Duration::from_secs(1));
            cutovers.send(()).unwrap();
            (2..8).for_each(|_| tick().send(()).unwrap());
        });
        assert_eq!(order.join(" "), "pass cutover cutover cutover cutover pass pass pass");
    }

    #[test]
    fn a_delta_whose_target_is_slow_holds_nobody_up() {
        let (plan, vm) = plan("");
        let (reads, _) = reads(&plan, None, &StopSignal::default());
        let host = host();
        let cutover = reads.count(&vm, host.clone(), disk());
        let mut lane = cutover.open_lane().unwrap();
        for id in 0..2 {
            let work = Work::Read(Buffer::zeroed(PIECE as usize));
            lane.submit(Request { id, span: ByteSpan::new(id * PIECE, PIECE), work });
        }
        lane.complete().unwrap().result.unwrap();
        // What was read goes to the target, and the next piece lies at the host meanwhile.
        let pass = reads.hold(&vm, host, disk());
        let began = Instant::now();
        read_span(&mut *pass.open_lane().unwrap(), ByteSpan::new(0, MIB)).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        lane.complete().unwrap().result.unwrap();
    }
}
