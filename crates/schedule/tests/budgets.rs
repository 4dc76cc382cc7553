//! Whatever happens: no budget is exceeded, nobody starves, every schedule ends, and the same seed gives the same schedule.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use drover_schedule::simulate::{Capacities, Fleet, Vm, WarmMove, simulate};
use drover_schedule::{
    Admission, Budgets, Disk, Ended, Group, HostLimits, Job, JobId, OVERTAKEN_MAX, Scheduler, TargetFailure,
    Tenant, TenantLimits, Window,
};
use drover_types::{IfFailed, Wave, WaveWindow};
use proptest::prelude::*;

fn any_job() -> impl Strategy<Value = Job> {
    let disks = prop::collection::vec((1u64..100, 0u8..3), 0..5);
    let window = prop::option::weighted(0.3, (0u64..500, 1u64..500));
    let group = prop::option::weighted(0.3, (0u8..2, 0u32..3));
    let rest = (-2i32..3, window, group, prop::option::weighted(0.2, 0u8..2), any::<bool>(), any::<bool>());
    let wave = (prop::option::weighted(0.3, 0u8..4), prop::bool::weighted(0.1));
    (0u8..4, disks, rest, wave).prop_map(
        |(host, disks, (priority, window, group, pair, is_warm, reads_back), (wave, goes_on))| Job {
            name: "vm".into(),
            host: format!("h{host}"),
            disks: disks
                .into_iter()
                .map(|(gib, ds)| Disk {
                    bytes: gib << 30,
                    datastore: format!("d{ds}"),
                    pool: (gib % 3 > 0).then(|| format!("p{}", gib % 2)),
                })
                .collect(),
            priority,
            windows: window
                .map(|(from_ms, long)| Window { from_ms, to_ms: from_ms + long })
                .into_iter()
                .collect(),
            group: group.map(|(name, stage)| Group { name: format!("g{name}"), stage }),
            wave: wave.map(|wave| format!("w{wave}")),
            goes_on,
            anti_affinity: pair.map(|key| format!("k{key}")),
            is_warm,
            reads_back,
            ..Job::default()
        },
    )
}

/// Waves of which each is after the one before it, and of which none waits for a word; there is no `w3`.
fn waves() -> Vec<Wave> {
    let wave = |number: u64, if_failed, window| Wave {
        name: format!("w{number}"),
        after: number.checked_sub(1).map(|before| format!("w{before}")).into_iter().collect(),
        if_failed,
        window,
    };
    let span = WaveWindow { from_ms: Some(100), until_ms: Some(700), ..WaveWindow::default() };
    vec![
        wave(0, IfFailed::GoOn, WaveWindow::default()),
        wave(1, IfFailed::Stop, span),
        wave(2, IfFailed::GoOn, WaveWindow::default()),
    ]
}

/// What is in use, counted from the outside.
#[derive(Default)]
struct Held {
    of: BTreeMap<JobId, (Job, u32, Vec<bool>)>,
}

impl Held {
    fn begin(&mut self, job: &Job, admission: Admission) {
        let done = vec![false; job.disks.len()];
        self.of.insert(admission.job, (job.clone(), admission.slots, done));
    }

    /// Disks that read at the same time at most: as many as it has slots, and as are left.
    fn reading((_, slots, done): &(Job, u32, Vec<bool>)) -> u32 {
        let left = done.iter().filter(|done| !**done).count() as u32;
        (*slots).min(if done.is_empty() { 1 } else { left })
    }

    /// Of a tenant whose jobs these are and that had just one of this host admitted: what it holds of other hosts beyond its own limits since these became
    /// less stays.
    fn check_own(&self, own: &[JobId], limits: TenantLimits, host: &str) -> Result<(), TestCaseError> {
        let of_it = || self.of.iter().filter(|(id, _)| own.contains(id)).map(|(_, held)| held);
        let vms = of_it().filter(|(job, ..)| job.host == host).count() as u32;
        let disks: u32 = of_it().map(Self::reading).sum();
        prop_assert!(
            limits.disks.is_none_or(|most| disks <= most),
            "{} disks of its own: {:?}",
            disks,
            limits
        );
        let most = limits.vms_per_host.unwrap_or(u32::MAX);
        prop_assert!(vms <= most, "{} VMs of its own: {:?}", vms, limits);
        Ok(())
    }

    /// One of this host was just admitted. `host_disks` is what the NFC servers of hosts take now; what is held beyond that, or beyond
    /// the budgets, since it became less stays.
    fn check(
        &self,
        budgets: &Budgets,
        host: &str,
        host_disks: &BTreeMap<String, u32>,
    ) -> Result<(), TestCaseError> {
        let (mut vms, mut disks) = (BTreeMap::<&str, u32>::new(), BTreeMap::<&str, u32>::new());
        let mut datastores = BTreeMap::<&str, u32>::new();
        let mut pairs = BTreeMap::<&str, u32>::new();
        for held in self.of.values() {
            let job = &held.0;
            *vms.entry(&job.host).or_default() += 1;
            *disks.entry(&job.host).or_default() += Self::reading(held);
            job.anti_affinity.iter().for_each(|key| *pairs.entry(key).or_default() += 1);
            let mut left = BTreeMap::<&str, u32>::new();
            for (disk, _) in job.disks.iter().zip(&held.2).filter(|(_, done)| !**done) {
                *left.entry(&disk.datastore).or_default() += 1;
            }
            left.into_iter().for_each(|(ds, left)| *datastores.entry(ds).or_default() += left.min(held.1));
        }
        prop_assert!(vms[host] <= budgets.vms_per_host, "VMs of a host: {:?}", vms);
        prop_assert!(disks[host] <= host_disks[host], "disks of a host: {:?} {:?}", disks, host_disks);
        prop_assert!(disks.values().sum::<u32>() <= budgets.disks, "disks in all");
        let most = budgets.disks_per_datastore;
        prop_assert!(datastores.values().all(|it| *it <= most), "datastores: {:?}", datastores);
        prop_assert!(pairs.values().all(|running| *running <= 1), "two of a pair run");
        Ok(())
    }
}

proptest! {
    #[test]
    fn budgets_hold_at_every_instant_and_every_schedule_ends(
        jobs in prop::collection::vec(any_job(), 0..60),
        (vms_per_host, disks, host_disks, datastore_disks) in (1u32..5, 1u32..12, 1u32..6, 1u32..5),
        (own_vms, own_disks, cutovers) in (1u32..3, 1u32..4, 1u32..3),
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0u8..16), 0..200),
    ) {
        let mut budgets = Budgets { vms_per_host, disks, cutovers, disks_per_datastore: datastore_disks, ..Budgets::default() };
        let mut scheduler = Scheduler::new(budgets.clone());
        let mut host_disks: BTreeMap<String, u32> = (0..4).map(|host| (format!("h{host}"), host_disks)).collect();
        for (host, disks) in &host_disks {
            scheduler.set_host(host, HostLimits { disks: Some(*disks), ..HostLimits::default() });
        }
        (0..2).for_each(|tenant| scheduler.set_waves(Tenant(tenant), &waves()));
        let mut own = TenantLimits { vms_per_host: Some(own_vms), disks: Some(own_disks), cutovers: Some(1) };
        scheduler.set_tenant(Tenant(1), own);
        let half = jobs.len() / 2;
        scheduler.add(Tenant(0), jobs[..half].to_vec(), 0);
        let limited = scheduler.add(Tenant(1), jobs[half..].to_vec(), 0);
        let (mut held, mut parked, mut now) = (Held::default(), Vec::new(), 0);
        // Guests that are down for their last pass; those that were so from the first do not ask.
        let mut down = BTreeSet::new();
        let mut steps = steps.into_iter();
        let mut rounds = 0;
        while !scheduler.is_done() {
            rounds += 1;
            prop_assert!(rounds < 5000, "it does not end");
            while let Some(admission) = scheduler.next(now) {
                let job = scheduler.job(admission.job).unwrap().clone();
                held.begin(&job, admission);
                held.check(&budgets, &job.host, &host_disks)?;
                if limited.contains(&admission.job) {
                    held.check_own(&limited, own, &job.host)?;
                }
            }
            down.retain(|id| !scheduler.is_over(*id));
            if let Some(id) = parked.pop() {
                scheduler.wake(id, false, now);
                continue;
            }
            let Some((at, what)) = (!held.of.is_empty()).then(|| steps.next()).flatten() else {
                // No more surprises: what runs arrives, and otherwise time passes.
                match held.of.pop_first() {
                    Some((id, _)) => scheduler.finished(id, Ended::Arrived, now),
                    None => now = scheduler.next_event_ms(now).unwrap_or(now) + 1,
                }
                continue;
            };
            let id = *held.of.keys().nth(at.index(held.of.len())).unwrap();
            match what {
                0 => {
                    held.of.remove(&id);
                    scheduler.requeue(id, now);
                }
                1 => {
                    held.of.remove(&id);
                    scheduler.park(id, now);
                    parked.push(id);
                }
                2 => {
                    held.of.remove(&id);
                    // Of its host, or of the datastore of one of its disks.
                    let disks = scheduler.job(id).unwrap().disks.clone();
                    let datastore = disks.get(at.index(disks.len() + 1)).map(|disk| disk.datastore.as_str());
                    match scheduler.host_failed(id, datastore, now) {
                        true => {
                            scheduler.retry(id, now);
                            down.remove(&id);
                        }
                        false => scheduler.finished(id, Ended::Failed, now),
                    }
                }
                3 => {
                    held.of.remove(&id);
                    scheduler.finished(id, Ended::Failed, now);
                }
                4 => now += 50,
                5 => {
                    let job = scheduler.job(id).unwrap();
                    if job.is_warm && !job.goes_on && scheduler.ask_cutover(id, now).is_ok() {
                        down.insert(id);
                    }
                    prop_assert!(down.len() <= cutovers as usize, "{} guests are down", down.len());
                    let own = down.iter().filter(|id| limited.contains(id)).count();
                    prop_assert!(own <= 1, "{own} guests of a tenant that lets one are down");
                }
                6 => {
                    scheduler.cutover_over(id);
                    down.remove(&id);
                }
                7 => {
                    // Another plan comes that knows more of a host's NFC memory.
                    let host = scheduler.job(id).unwrap().host.clone();
                    let disks = 1 + at.index(6) as u32;
                    scheduler.set_host(&host, HostLimits { disks: Some(disks), ..HostLimits::default() });
                    host_disks.insert(host, disks);
                }
                8 => {
                    own = TenantLimits {
                        vms_per_host: Some(1 + at.index(3) as u32),
                        disks: Some(1 + at.index(4) as u32),
                        cutovers: Some(1),
                    };
                    scheduler.set_tenant(Tenant(1), own);
                }
                // What is held beyond smaller ones stays, and nothing begins: those that begin are held against them.
                14 => {
                    let vms_per_host = 1 + at.index(4) as u32;
                    let disks = 1 + at.index(11) as u32;
                    budgets = Budgets { vms_per_host, disks, ..budgets };
                    scheduler.set_budgets(budgets.clone());
                }
                9 => {
                    held.of.remove(&id);
                    // Of one place of its disks, or of all.
                    let disks = scheduler.job(id).unwrap().disks.clone();
                    let pool = disks.get(at.index(disks.len() + 1)).and_then(|disk| disk.pool.as_deref());
                    let failure = TargetFailure { why: "no".into(), is_full: at.index(2) == 0 };
                    let at: Vec<&str> = pool.into_iter().collect();
                    match scheduler.target_failed(id, &at, &failure, now) {
                        true => {
                            scheduler.retry(id, now);
                            down.remove(&id);
                        }
                        false => scheduler.finished(id, Ended::Failed, now),
                    }
                }
                _ => {
                    let (_, _, done) = held.of.get_mut(&id).unwrap();
                    if !done.is_empty() {
                        let disk = at.index(done.len());
                        done[disk] = true;
                        scheduler.disk_finished(id, disk);
                    }
                }
            }
        }
        prop_assert_eq!((scheduler.running(), scheduler.waiting(), scheduler.disks_held()), (0, 0, 0));
    }

    #[test]
    fn a_simulated_fleet_ends_and_the_same_one_ends_alike(
        jobs in prop::collection::vec(any_job(), 1..40),
        warm in prop::option::of((0u64..200 << 20, 1u64..600_000)),
    ) {
        let one = |job: &Job| {
            let warm = warm.filter(|_| job.is_warm);
            let warm = warm.map(|(churn, interval_ms)| WarmMove { churn, interval_ms, cutover_ms: None, downtime_ms: 30_000 });
            let job = Job { is_warm: warm.is_some(), ..job.clone() };
            Vm { job, shutdown_ms: 10, snapshot_ms: 5, verify_ms: 7, start_ms: 3, warm, ..Vm::default() }
        };
        let capacities = Capacities { stream: Some(100 << 20), host: Some(284 << 20), ..Capacities::default() };
        let vms = jobs.iter().map(one).collect();
        let waves = [(Tenant(0), waves())].into();
        let fleet = Fleet { vms, waves, capacities, climb_from: Some(4), ..Fleet::default() };
        let outcome = simulate(&fleet);
        for vm in &outcome.vms {
            prop_assert!(vm.end_ms.is_some() != vm.given_up.is_some(), "{:?}", vm);
        }
        prop_assert_eq!(outcome, simulate(&fleet));
    }
}

/// A VM of two hosts and three datastores, and its priority.
fn one_of_few(priority: i32) -> impl Strategy<Value = Job> {
    let disks = prop::collection::vec((1u64..100, 0u8..3), 1..4);
    (0u8..2, disks).prop_map(move |(host, disks)| {
        let disk = |(gib, ds): (u64, u8)| Disk { bytes: gib << 30, datastore: format!("d{ds}"), pool: None };
        let disks = disks.into_iter().map(disk).collect();
        Job { name: "vm".into(), host: format!("h{host}"), disks, priority, ..Job::default() }
    })
}

/// VMs that others wait beside at any time.
const CROWD: usize = 6;
/// A VM runs for as many ends of others at the most.
const TURNS: usize = 12;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn none_starves_however_many_come_later_and_go_before_it(
        late in prop::collection::vec(one_of_few(-5), 1..4),
        crowd in prop::collection::vec(one_of_few(5), 1..40),
        (vms_per_host, disks, host_disks, disks_per_datastore) in (1u32..4, 2u32..8, 1u32..5, 1u32..4),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
    ) {
        let mut scheduler = Scheduler::new(Budgets { vms_per_host, disks, disks_per_datastore, ..Budgets::default() });
        for host in ["h0", "h1"] {
            scheduler.set_host(host, HostLimits { disks: Some(host_disks), ..HostLimits::default() });
        }
        let mut waits: BTreeSet<JobId> = scheduler.add(Tenant(0), late, 0).into_iter().collect();
        let most = OVERTAKEN_MAX + 8 * waits.len() as u64 + (TURNS * CROWD * 4) as u64;
        let (mut running, mut admissions) = (VecDeque::new(), 0);
        for round in 0.. {
            while scheduler.waiting() < CROWD + waits.len() {
                let job = crowd[(round + scheduler.waiting()) % crowd.len()].clone();
                scheduler.add(Tenant(0), vec![job], 0);
            }
            while let Some(Admission { job, .. }) = scheduler.next(0) {
                waits.remove(&job);
                running.push_back((round, job));
                admissions += 1;
            }
            if waits.is_empty() {
                break;
            }
            prop_assert!(admissions <= most, "{} were overtaken by {}", waits.len(), admissions);
            let (began, _) = running.front().copied().unwrap();
            let at = if round - began >= TURNS { 0 } else { ends[round % ends.len()].index(running.len()) };
            let (_, id) = running.remove(at).unwrap();
            scheduler.finished(id, Ended::Arrived, 0);
            scheduler.forget_job(id);
        }
    }
}
