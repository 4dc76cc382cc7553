//! Which of the Migrations that wait may go: the one scheduler, with names for its jobs.

use std::collections::BTreeMap;

use drover_schedule::{
    Budgets, Disk, Ended, HostLimits, Job, JobId, Scheduler, TargetFailure, Tenant, TenantLimits,
};

use crate::model::{MigrationSpec, PlanLimits, Size, Work};

/// Who has no limits beside the operator's.
const ALL: Tenant = Tenant(0);

/// The schedulers of all Migrations.
#[derive(Clone, Debug)]
pub struct Admissions {
    /// Of those that are copied.
    moves: Pool,
    /// Of what copies nothing: a guest that is down waits neither for copies of others nor for a host that is left alone.
    others: Pool,
    jobs: BTreeMap<String, Slot>,
    /// Plans that limit themselves, by their UIDs, each with its Migrations that want to be copied.
    plans: BTreeMap<String, (Tenant, usize)>,
    next_tenant: u64,
    /// What Migrations tell of the disks that hosts take at once, each with how many say so: the least counts.
    host_disks: BTreeMap<String, BTreeMap<u32, usize>>,
}

/// A scheduler, with names for its jobs.
#[derive(Clone, Debug)]
struct Pool {
    scheduler: Scheduler,
    names: BTreeMap<JobId, String>,
}

/// What a Migration has of a scheduler.
#[derive(Clone, Debug)]
struct Slot {
    id: JobId,
    source: String,
    size: Size,
    moves: bool,
    is_admitted: bool,
    /// What its end tells of its host.
    ended: Ended,
    /// Its host, and what it tells of the disks that this takes.
    host_disks: Option<(String, u32)>,
    /// Its Plan, if that limits itself.
    plan: Option<String>,
}

/// What a worker tells of the host that serves the VM's disks, and of where they go to: its end, but for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTold {
    /// They were copied once, and the worker goes on, for days perhaps: others wait no more for what is tried with this one.
    CopiedOnce,
    /// It served them.
    Served,
    /// The VM failed because of it.
    Failed,
    /// A disk of the VM in this datastore could not be read.
    DatastoreFailed(String),
    /// There was no room where it goes to.
    TargetFull,
}

impl Admissions {
    /// With nothing in it. No host is given up for good: there is no next run that would try it again.
    pub fn new(budgets: Budgets) -> Admissions {
        let scheduler = Scheduler::new(Budgets { host_tries: u32::MAX, ..budgets });
        let pool = Pool { scheduler, names: BTreeMap::new() };
        Admissions {
            moves: pool.clone(),
            others: pool,
            jobs: BTreeMap::new(),
            plans: BTreeMap::new(),
            next_tenant: ALL.0 + 1,
            host_disks: BTreeMap::new(),
        }
    }

    /// Whether it may go.
    pub fn has(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|slot| slot.is_admitted)
    }

    /// It wants to go. One that was begun goes before others.
    pub fn want(&mut self, name: &str, spec: &MigrationSpec, work: Work, goes_on: bool, now_ms: u64) {
        let moves = work == Work::Move;
        let is_same = |slot: &Slot| slot.moves == moves && slot.size == spec.size;
        if self.jobs.get(name).is_some_and(|slot| slot.is_admitted || is_same(slot)) {
            return;
        }
        self.leave(name, now_ms);
        let job = job_of(name, spec, moves, goes_on);
        let host_disks = spec.size.host_disks.filter(|_| moves).map(|disks| (job.host.clone(), disks));
        let plan =
            (moves && spec.size.plan_limits != PlanLimits::default()).then(|| spec.plan_ref.uid.clone());
        let tenant = plan.as_ref().map_or(ALL, |plan| self.join(plan, spec.size.plan_limits, goes_on));
        if let Some((host, disks)) = &host_disks {
            *self.host_disks.entry(host.clone()).or_default().entry(*disks).or_default() += 1;
            self.limit_host(host);
        }
        let pool = self.pool(moves);
        if let Some(id) = pool.scheduler.add(tenant, vec![job], now_ms).first().copied() {
            pool.names.insert(id, name.to_string());
            let (source, size) = (spec.source.instance_uuid.clone(), spec.size.clone());
            let (is_admitted, ended) = (false, Ended::Failed);
            let slot = Slot { id, source, size, moves, is_admitted, ended, host_disks, plan };
            self.jobs.insert(name.to_string(), slot);
        }
    }

    /// One more Migration of a Plan that limits itself. One that was begun has what the Plan said then, which is believed only where
    /// nothing newer is known.
    fn join(&mut self, plan: &str, limits: PlanLimits, is_old: bool) -> Tenant {
        let is_known = self.plans.contains_key(plan);
        let (tenant, migrations) = self.plans.entry(plan.to_string()).or_insert_with(|| {
            self.next_tenant += 1;
            (Tenant(self.next_tenant), 0)
        });
        *migrations += 1;
        let limits = TenantLimits { vms_per_host: limits.vms_per_host, disks: limits.disks, cutovers: None };
        if !(is_old && is_known) {
            self.moves.scheduler.set_tenant(*tenant, limits);
        }
        *tenant
    }

    /// Has the scheduler keep to what a host takes.
    fn limit_host(&mut self, host: &str) {
        let disks = self.host_disks.get(host).and_then(|told| told.keys().next().copied());
        let limits = self.moves.scheduler.host_limits(host);
        self.moves.scheduler.set_host(host, HostLimits { disks, ..limits });
    }

    /// What a Migration told counts no more.
    fn forget(&mut self, slot: Slot) {
        if let Some((host, disks)) = slot.host_disks
            && let Some(told) = self.host_disks.get_mut(&host)
        {
            match told.get_mut(&disks) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(told.remove(&disks)),
            }
            if told.is_empty() {
                self.host_disks.remove(&host);
            }
            self.limit_host(&host);
        }
        let Some(plan) = slot.plan else { return };
        if let Some((tenant, migrations)) = self.plans.get_mut(&plan) {
            *migrations -= 1;
            if *migrations == 0 {
                self.moves.scheduler.forget(*tenant);
                self.plans.remove(&plan);
            }
        }
    }

    fn pool(&mut self, moves: bool) -> &mut Pool {
        if moves { &mut self.moves } else { &mut self.others }
    }

    /// Its worker ended or has copied it once, and this is what that tells of its host.
    pub fn tell(&mut self, name: &str, told: &HostTold, now_ms: u64) {
        let Some(slot) = self.jobs.get_mut(name).filter(|slot| slot.is_admitted && slot.moves) else {
            return;
        };
        match told {
            HostTold::CopiedOnce => self.moves.scheduler.try_went_well(slot.id),
            HostTold::Served => slot.ended = Ended::Arrived,
            // Whether it is tried again is not the scheduler's to say here.
            HostTold::Failed => _ = self.moves.scheduler.host_failed(slot.id, None, now_ms),
            HostTold::DatastoreFailed(datastore) => {
                let datastore = format!("{}/{datastore}", slot.source);
                _ = self.moves.scheduler.host_failed(slot.id, Some(&datastore), now_ms);
            }
            HostTold::TargetFull => {
                let failure = TargetFailure { why: "it is full".into(), is_full: true };
                _ = self.moves.scheduler.target_failed(slot.id, &[], &failure, now_ms);
            }
        }
    }

    /// It wants nothing any more.
    pub fn leave(&mut self, name: &str, now_ms: u64) {
        let Some(slot) = self.jobs.remove(name) else { return };
        let pool = self.pool(slot.moves);
        pool.names.remove(&slot.id);
        let ended = if slot.is_admitted { slot.ended } else { Ended::LeftOut };
        pool.scheduler.finished(slot.id, ended, now_ms);
        pool.scheduler.forget_job(slot.id);
        self.forget(slot);
    }

    /// Those that may go from now on.
    pub fn admit(&mut self, now_ms: u64) -> Vec<String> {
        let mut fresh = Vec::new();
        // Jobs of plain Migrations have no windows, waves or groups, and nothing gives them up.
        for pool in [&mut self.others, &mut self.moves] {
            while let Some(admission) = pool.scheduler.next(now_ms) {
                let Some(name) = pool.names.get(&admission.job) else { continue };
                if let Some(slot) = self.jobs.get_mut(name) {
                    slot.is_admitted = true;
                }
                fresh.push(name.clone());
            }
        }
        fresh
    }

    /// Those that wait, and those that may go.
    pub fn counts(&self) -> (usize, usize) {
        let admitted = self.jobs.values().filter(|slot| slot.is_admitted).count();
        (self.jobs.len() - admitted, admitted)
    }

    /// Hosts that failed and are left alone, or are being tried, each with its vCenter before it.
    pub fn left_alone(&self) -> impl Iterator<Item = &str> {
        self.moves.scheduler.left_alone()
    }

    /// The same of datastores.
    pub fn datastores_left_alone(&self) -> impl Iterator<Item = &str> {
        self.moves.scheduler.datastores_left_alone()
    }
}

/// Ids of hosts and datastores are a vCenter's own, so they are told apart by it.
fn job_of(name: &str, spec: &MigrationSpec, moves: bool, goes_on: bool) -> Job {
    let (source, size) = (&spec.source.instance_uuid, &spec.size);
    let disks = size.disks.iter().filter(|_| moves).map(|disk| Disk {
        bytes: disk.bytes,
        datastore: format!("{source}/{}", disk.datastore),
        // Those of one Plan go to one namespace, and mostly to one class.
        pool: Some(spec.plan_ref.uid.clone()),
    });
    Job {
        name: name.to_string(),
        host: format!("{source}/{}", size.host),
        disks: disks.collect(),
        priority: size.priority,
        deadline_ms: size.deadline_ms,
        // Its guest may run: it waits for its target like others. One whose guest is down keeps its slot.
        goes_first: goes_on,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use drover_schedule::Order;

    use super::*;
    use crate::model::{DiskSize, Pinned, SourceId};

    fn spec(source: &str, host: &str) -> MigrationSpec {
        MigrationSpec {
            source: SourceId { instance_uuid: source.into() },
            size: Size {
                host: host.into(),
                disks: vec![DiskSize { bytes: 1 << 30, datastore: "ds".into(), data: None }],
                ..Size::default()
            },
            ..MigrationSpec::default()
        }
    }

    #[test]
    fn hosts_are_never_overbooked_and_slots_come_back() {
        let mut all = Admissions::new(Budgets { vms_per_host: 2, ..Budgets::default() });
        for name in ["a", "b", "c"] {
            all.want(name, &spec("vc", "host-1"), Work::Move, false, 0);
            all.want(name, &spec("vc", "host-1"), Work::Move, false, 0);
        }
        all.want("other", &spec("vc2", "host-1"), Work::Move, false, 0);
        let mut first = all.admit(0);
        first.sort();
        assert_eq!(first, ["a", "b", "other"], "another vCenter's host-1 is another");
        assert!(all.admit(1).is_empty() && !all.has("c") && all.has("a"));
        all.leave("a", 2);
        assert_eq!(all.admit(2), ["c"]);
        for name in ["a", "b", "c", "other", "nobody"] {
            all.leave(name, 3);
        }
        all.want("a", &spec("vc", "host-1"), Work::Move, true, 4);
        assert_eq!(all.admit(4), ["a"]);
    }

    /// Has one after the other wait and fails those that are admitted because of their host, until none is; gives how many failed.
    fn failures(all: &mut Admissions, names: &[String], now_ms: u64) -> usize {
        let mut failed = 0;
        for name in names {
            all.want(name, &spec("vc", "host-1"), Work::Move, false, now_ms);
            let fresh = all.admit(now_ms);
            if fresh.is_empty() {
                break;
            }
            for name in fresh {
                all.tell(&name, &HostTold::Failed, now_ms);
                all.leave(&name, now_ms);
                failed += 1;
            }
        }
        failed
    }

    #[test]
    fn a_host_that_fails_vm_after_vm_is_left_alone_and_tried_by_one_now_and_then() {
        let names: Vec<String> = (0..100).map(|number| format!("vm{number}")).collect();
        let mut all = Admissions::new(Budgets::default());
        assert_eq!(failures(&mut all, &names, 0), 3);
        assert_eq!(all.left_alone().collect::<Vec<_>>(), ["vc/host-1"]);
        assert_eq!(all.counts(), (1, 0));
        // Others of it wait, those of other hosts do not, and neither does what undoes.
        let waiting = all.clone();
        all.want("undo", &spec("vc", "host-1"), Work::Undo, true, 1);
        all.want("guest", &spec("vc", "host-1"), Work::SwitchOn, true, 1);
        all.want("other", &spec("vc", "host-2"), Work::Move, false, 1);
        let mut fresh = all.admit(1);
        fresh.sort();
        assert_eq!(fresh, ["guest", "other", "undo"]);
        // After the longest first wait one is tried, and after its failure nobody for twice as long.
        let mut all = waiting;
        assert_eq!(failures(&mut all, &names, 30_000), 1);
        // It is never given up: in a week it is tried each time that somebody looks, by one.
        for hour in 1..=7 * 24 {
            assert_eq!(failures(&mut all, &names, hour * 3_600_000), 1);
        }
        // One that works opens it again for all.
        let now_ms = 8 * 24 * 3_600_000;
        names.iter().for_each(|name| all.leave(name, now_ms));
        all.want("a", &spec("vc", "host-1"), Work::Move, false, now_ms);
        assert_eq!(all.admit(now_ms), ["a"]);
        all.tell("a", &HostTold::Served, now_ms);
        all.leave("a", now_ms);
        for name in &names[..5] {
            all.want(name, &spec("vc", "host-1"), Work::Move, false, now_ms);
        }
        assert_eq!((all.admit(now_ms).len(), all.counts()), (5, (0, 5)));
        assert_eq!(all.left_alone().count(), 0);
    }

    #[test]
    fn a_target_that_is_full_holds_up_its_own_plan_and_is_tried_by_one_now_and_then() {
        let of = |plan: &str| {
            let mut spec = spec("vc", "host-1");
            spec.plan_ref.uid = plan.into();
            spec
        };
        let mut all =
            Admissions::new(Budgets { vms_per_host: 1, order: Order::Arrival, ..Budgets::default() });
        for name in ["a", "b", "c"] {
            all.want(name, &of("full"), Work::Move, false, 0);
        }
        all.want("d", &of("other"), Work::Move, false, 0);
        assert_eq!(all.admit(0), ["a"]);
        all.tell("a", &HostTold::TargetFull, 0);
        all.leave("a", 0);
        all.want("a", &of("full"), Work::Move, true, 0);
        assert_eq!(all.admit(0), ["d"], "no guest of the first Plan goes down in vain, its own neither");
        assert_eq!(all.left_alone().count(), 0);
        ["a", "d"].iter().for_each(|name| all.leave(name, 0));
        assert_eq!(all.admit(30_000), ["b"]);
        all.tell("b", &HostTold::Served, 30_000);
        all.leave("b", 30_000);
        assert_eq!(all.admit(30_000), ["c"]);
    }

    #[test]
    fn others_of_a_plan_wait_for_the_first_copy_of_the_one_that_is_tried_and_not_for_its_cutover() {
        let (mut all, one, later) = (in_order(), of_plan("p", 1, None), 9 * 3_600_000);
        all.want("a", &one, Work::Move, false, 0);
        assert_eq!(all.admit(0), ["a"]);
        all.tell("a", &HostTold::TargetFull, 0);
        all.leave("a", 0);
        ["b", "c"].iter().for_each(|name| all.want(name, &one, Work::Move, false, 0));
        assert_eq!(all.admit(30_000), ["b"]);
        assert!(all.admit(later).is_empty(), "it is tried still");
        all.tell("b", &HostTold::CopiedOnce, later);
        assert_eq!(all.admit(later), ["c"]);
        // While it waits for its cutover, that makes up for no failure of others.
        for name in ["d", "e", "f"] {
            all.want(name, &one, Work::Move, false, later);
            assert_eq!(all.admit(later), [name]);
            all.tell(name, &HostTold::Failed, later);
            all.leave(name, later);
            all.tell("b", &HostTold::CopiedOnce, later);
        }
        assert_eq!(all.left_alone().collect::<Vec<_>>(), ["vc/host-1"]);
    }

    #[test]
    fn a_datastore_that_fails_holds_up_its_own_vms_and_not_their_host() {
        let of = |datastore: &str| {
            let mut spec = spec("vc", "host-1");
            spec.size.disks[0].datastore = datastore.into();
            spec
        };
        let mut all =
            Admissions::new(Budgets { vms_per_host: 3, order: Order::Arrival, ..Budgets::default() });
        for name in ["a", "b", "c", "d"] {
            all.want(name, &of("bad"), Work::Move, false, 0);
        }
        all.want("e", &of("good"), Work::Move, false, 0);
        for name in all.admit(0) {
            all.tell(&name, &HostTold::DatastoreFailed("bad".into()), 0);
            all.leave(&name, 0);
        }
        assert_eq!(all.admit(0), ["e"]);
        assert_eq!((all.left_alone().count(), all.counts()), (0, (1, 1)));
        assert_eq!(all.datastores_left_alone().collect::<Vec<_>>(), ["vc/bad"]);
        assert_eq!(all.admit(30_000), ["d"], "one is tried");
    }

    #[test]
    fn an_end_that_tells_nothing_of_the_host_neither_opens_nor_closes_it() {
        let names: Vec<String> = (0..3).map(|number| format!("vm{number}")).collect();
        let mut all = Admissions::new(Budgets::default());
        assert_eq!(failures(&mut all, &names[..2], 0), 2);
        for _ in 0..9 {
            all.want("evicted", &spec("vc", "host-1"), Work::Move, false, 1);
            assert_eq!(all.admit(1), ["evicted"]);
            all.leave("evicted", 1);
        }
        assert_eq!(failures(&mut all, &names[2..], 2), 1);
        all.want("next", &spec("vc", "host-1"), Work::Move, false, 3);
        assert!(all.admit(3).is_empty(), "three in a row, with nothing between them that the host did");
    }

    #[test]
    fn one_that_is_given_up_while_it_waits_for_its_copy_waits_to_be_undone() {
        let mut all = Admissions::new(Budgets { vms_per_host: 1, ..Budgets::default() });
        all.want("a", &spec("vc", "host-1"), Work::Move, false, 0);
        all.want("b", &spec("vc", "host-1"), Work::Move, false, 0);
        assert_eq!(all.admit(0).len(), 1);
        let waits = if all.has("a") { "b" } else { "a" };
        all.want(waits, &spec("vc", "host-1"), Work::Undo, true, 1);
        assert_eq!(all.admit(1), [waits]);
        ["a", "b"].iter().for_each(|name| all.leave(name, 2));
        let is_empty = |pool: &Pool| pool.names.is_empty() && pool.scheduler.is_done();
        assert!(all.jobs.is_empty() && is_empty(&all.moves) && is_empty(&all.others));
    }

    #[test]
    fn a_guest_that_is_down_waits_for_no_copy_of_others() {
        let mut all = Admissions::new(Budgets { disks: 1, ..Budgets::default() });
        all.want("copied", &spec("vc", "host-1"), Work::Move, false, 0);
        all.want("waits", &spec("vc", "host-2"), Work::Move, true, 0);
        assert_eq!(all.admit(0), ["waits"], "one that was begun goes first");
        all.want("off", &spec("vc", "host-2"), Work::SwitchOn, true, 1);
        assert_eq!(all.admit(1), ["off"]);
        assert_eq!(all.counts(), (1, 2));
    }

    /// One of a Plan with so many disks, at a host that takes so many.
    fn of_plan(plan: &str, disks: usize, host_disks: Option<u32>) -> MigrationSpec {
        let one = spec("vc", "host-1");
        let disks = vec![one.size.disks[0].clone(); disks];
        MigrationSpec {
            plan_ref: Pinned { uid: plan.into(), ..Pinned::default() },
            size: Size { disks, host_disks, ..one.size },
            ..one
        }
    }

    /// One that goes by arrival, so that no VM is held back for the sake of its host's longest.
    fn in_order() -> Admissions {
        Admissions::new(Budgets { order: Order::Arrival, ..Budgets::default() })
    }

    #[test]
    fn a_host_is_asked_for_no_more_disks_than_its_nfc_server_takes() {
        for (host_disks, admitted) in [(None, 3), (Some(60), 3), (Some(50), 2)] {
            let mut all = in_order();
            all.want("a", &of_plan("p", 30, host_disks), Work::Move, false, 0);
            all.want("b", &of_plan("p", 30, host_disks), Work::Move, false, 0);
            all.want("other", &spec("vc", "host-2"), Work::Move, false, 0);
            assert_eq!(all.admit(0).len(), admitted, "{host_disks:?}");
            all.leave("a", 1);
            assert_eq!((all.admit(1).len(), all.counts()), (3 - admitted, (0, 2)));
        }
    }

    #[test]
    fn of_what_two_plans_say_of_a_host_the_least_counts_while_both_are_there() {
        let mut all = in_order();
        all.want("a", &of_plan("p", 30, Some(100)), Work::Move, false, 0);
        all.want("b", &of_plan("q", 30, Some(40)), Work::Move, false, 0);
        all.want("c", &of_plan("p", 30, Some(100)), Work::Move, false, 0);
        let first = all.admit(0);
        assert_eq!(first.len(), 1, "{first:?}");
        // What undoes reads no disk, and says nothing of its host.
        all.want("b", &of_plan("q", 30, Some(40)), Work::Undo, false, 1);
        all.leave("b", 1);
        let second = all.admit(1);
        assert_eq!(all.counts().0, 0, "{second:?}");
        ["a", "b", "c"].iter().for_each(|name| all.leave(name, 2));
        assert!(all.host_disks.is_empty());
        assert_eq!(all.moves.scheduler.host_limits("vc/host-1"), HostLimits::default());
    }

    #[test]
    fn a_plan_keeps_to_its_own_limits_and_holds_up_no_other() {
        let limited = |plan: &str, vms_per_host, disks| {
            let one = of_plan(plan, 2, None);
            MigrationSpec {
                size: Size { plan_limits: PlanLimits { vms_per_host, disks }, ..one.size },
                ..one
            }
        };
        let mut all = in_order();
        for name in ["a", "b", "c"] {
            all.want(name, &limited("p", Some(1), None), Work::Move, false, 0);
        }
        for name in ["d", "e", "f"] {
            all.want(name, &limited("q", None, Some(5)), Work::Move, false, 0);
        }
        all.want("g", &of_plan("r", 2, None), Work::Move, false, 0);
        let mut first = all.admit(0);
        first.sort();
        assert_eq!(first, ["a", "d", "e", "g"]);
        // The Plan was edited while one of its VMs is copied: from the next one on it is as it says now.
        all.leave("b", 1);
        all.want("b", &limited("p", Some(2), None), Work::Move, false, 1);
        assert_eq!(all.admit(1).len(), 1);
        assert_eq!(all.counts(), (2, 5));
        ["a", "b", "c", "d", "e", "f", "g"].iter().for_each(|name| all.leave(name, 2));
        assert!(all.plans.is_empty() && all.moves.scheduler.is_done());
        all.want("a", &limited("p", Some(1), None), Work::Move, false, 3);
        assert_eq!(all.admit(3), ["a"]);
    }

    #[test]
    fn priority_goes_first_and_then_the_earlier_deadline() {
        let wants = |priority, deadline_ms| {
            let one = spec("vc", "host-1");
            MigrationSpec { size: Size { priority, deadline_ms, ..one.size }, ..one }
        };
        let mut all = Admissions::new(Budgets::default());
        all.want("late", &wants(0, Some(9000)), Work::Move, false, 0);
        all.want("none", &wants(0, None), Work::Move, false, 0);
        all.want("early", &wants(0, Some(1000)), Work::Move, false, 0);
        all.want("first", &wants(5, None), Work::Move, false, 0);
        all.want("last", &wants(-5, Some(1)), Work::Move, false, 0);
        // The Plan was edited while it waits.
        all.want("last", &wants(6, None), Work::Move, false, 0);
        assert_eq!(all.admit(0), ["last", "first", "early", "late", "none"]);
    }

    #[test]
    fn a_spec_of_an_operator_before_has_no_limits_and_is_written_as_it_was() {
        let text = r#"{"host":"host-1","disks":[{"bytes":7,"datastore":"ds"}]}"#;
        let size: Size = serde_json::from_str(text).unwrap();
        assert_eq!((size.host_disks, size.priority, size.deadline_ms), (None, 0, None));
        assert_eq!(size.plan_limits, PlanLimits::default());
        assert_eq!(serde_json::to_string(&size).unwrap(), text);
        let size = Size {
            host_disks: Some(50),
            priority: -1,
            deadline_ms: Some(9),
            plan_limits: PlanLimits { vms_per_host: Some(3), disks: Some(8) },
            ..size
        };
        let json = serde_json::to_value(&size).unwrap();
        assert_eq!(
            (&json["hostDisks"], &json["deadlineMs"], &json["priority"]),
            (&50.into(), &9.into(), &(-1).into())
        );
        assert_eq!(json["planLimits"], serde_json::json!({"vmsPerHost": 3, "disks": 8}));
        assert_eq!(serde_json::from_value::<Size>(json).unwrap(), size);
    }
}
