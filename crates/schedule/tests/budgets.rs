//! Whatever happens: no budget is exceeded, nobody starves, every schedule ends, and the same seed gives the same schedule.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use drover_schedule::simulate::{Capacities, Fleet, Vm, WarmMove, simulate};
use drover_schedule::{
    Admission, Budgets, Disk, Ended, Group, HostLimits, Job, JobId, Scheduler, Tenant, TenantLimits, Window,
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
                .map(|(gib, ds)| Disk { bytes: gib << 30, datastore: format!("d{ds}"), pool: None })
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

    fn check(&self, budgets: &Budgets, host_disks: u32, datastore_disks: u32) -> Result<(), TestCaseError> {
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
        prop_assert!(vms.values().all(|vms| *vms <= budgets.vms_per_host), "VMs of a host: {:?}", vms);
        prop_assert!(disks.values().all(|disks| *disks <= host_disks), "disks of a host: {:?}", disks);
        prop_assert!(disks.values().sum::<u32>() <= budgets.disks, "disks in all");
        prop_assert!(datastores.values().all(|it| *it <= datastore_disks), "datastores: {:?}", datastores);
        prop_assert!(pairs.values().all(|running| *running <= 1), "two of a pair run");
        Ok(())
    }
}

proptest! {
    #[test]
    fn budgets_hold_at_every_instant_and_every_schedule_ends(
        jobs in prop::collection::vec(any_job(), 0..60),
        (vms_per_host, disks, host_disks, datastore_disks) in (1u32..5, 1u32..12, 1u32..6, 1u32..5),
        (own_vms, own_disks) in (1u32..3, 1u32..4),
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..200),
    ) {
        let budgets = Budgets { vms_per_host, disks, disks_per_datastore: datastore_disks, ..Budgets::default() };
        let mut scheduler = Scheduler::new(budgets.clone());
        (0..4).for_each(|host| {
            let limits = HostLimits { disks: Some(host_disks), ..HostLimits::default() };
            scheduler.set_host(&format!("h{host}"), limits);
        });
        (0..2).for_each(|tenant| scheduler.set_waves(Tenant(tenant), &waves()));
        let own = TenantLimits { vms_per_host: Some(own_vms), disks: Some(own_disks) };
        scheduler.set_tenant(Tenant(1), own);
        let half = jobs.len() / 2;
        scheduler.add(Tenant(0), jobs[..half].to_vec(), 0);
        scheduler.add(Tenant(1), jobs[half..].to_vec(), 0);
        let (mut held, mut parked, mut now) = (Held::default(), Vec::new(), 0);
        let mut steps = steps.into_iter();
        let mut rounds = 0;
        while !scheduler.is_done() {
            rounds += 1;
            prop_assert!(rounds < 5000, "it does not end");
            while let Some(admission) = scheduler.next(now) {
                let job = scheduler.job(admission.job).unwrap().clone();
                held.begin(&job, admission);
                held.check(&budgets, host_disks, datastore_disks)?;
            }
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
                        true => drop(scheduler.retry(id, now)),
                        false => scheduler.finished(id, Ended::Failed, now),
                    }
                }
                3 => {
                    held.of.remove(&id);
                    scheduler.finished(id, Ended::Failed, now);
                }
                4 => now += 50,
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
