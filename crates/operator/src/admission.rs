//! Which of the Migrations that wait may go: the one scheduler, with names for its jobs.

use std::collections::{BTreeMap, BTreeSet};

use drover_schedule::{Budgets, Disk, Ended, Job, JobId, Scheduler, Tenant};

use crate::model::{MigrationSpec, Size};

/// The scheduler of all Migrations.
#[derive(Clone, Debug)]
pub struct Admissions {
    scheduler: Scheduler,
    jobs: BTreeMap<String, (JobId, Tenant)>,
    admitted: BTreeSet<JobId>,
    tenants: BTreeMap<String, Tenant>,
    /// Of tenants, how many of their jobs are there.
    counts: BTreeMap<Tenant, usize>,
    next_tenant: u64,
}

impl Admissions {
    /// With nothing in it.
    pub fn new(budgets: Budgets) -> Admissions {
        Admissions {
            scheduler: Scheduler::new(budgets),
            jobs: BTreeMap::new(),
            admitted: BTreeSet::new(),
            tenants: BTreeMap::new(),
            counts: BTreeMap::new(),
            next_tenant: 0,
        }
    }

    /// Whether it may go.
    pub fn has(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|(id, _)| self.admitted.contains(id))
    }

    /// It wants to go. One that was begun goes before others.
    pub fn want(&mut self, name: &str, spec: &MigrationSpec, goes_on: bool, now_ms: u64) {
        if self.jobs.contains_key(name) {
            return;
        }
        let tenant = self.tenant(&spec.plan_ref.uid);
        let job = job_of(name, &spec.source.instance_uuid, &spec.size, goes_on);
        if let Some(id) = self.scheduler.add(tenant, vec![job], now_ms).first() {
            self.jobs.insert(name.to_string(), (*id, tenant));
            *self.counts.entry(tenant).or_default() += 1;
        }
    }

    /// It wants nothing any more.
    pub fn leave(&mut self, name: &str, now_ms: u64) {
        let Some((id, tenant)) = self.jobs.remove(name) else { return };
        let was_admitted = self.admitted.remove(&id);
        let ended = if was_admitted { Ended::Arrived } else { Ended::LeftOut };
        self.scheduler.finished(id, ended, now_ms);
        let left = self.counts.entry(tenant).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 {
            // Its jobs have all ended; it gets another number when it comes again.
            self.counts.remove(&tenant);
            self.tenants.retain(|_, it| *it != tenant);
            self.scheduler.forget(tenant);
        }
    }

    /// Those that may go from now on.
    pub fn admit(&mut self, now_ms: u64) -> Vec<String> {
        let mut fresh = BTreeSet::new();
        while let Some(admission) = self.scheduler.next(now_ms) {
            fresh.insert(admission.job);
        }
        if fresh.is_empty() {
            return Vec::new();
        }
        self.admitted.extend(&fresh);
        // Jobs of plain Migrations have no windows, waves or groups, and nothing gives them up.
        let of = self.jobs.iter().filter(|(_, (id, _))| fresh.contains(id));
        of.map(|(name, _)| name.clone()).collect()
    }

    fn tenant(&mut self, plan: &str) -> Tenant {
        if let Some(tenant) = self.tenants.get(plan) {
            return *tenant;
        }
        self.next_tenant += 1;
        let tenant = Tenant(self.next_tenant);
        self.tenants.insert(plan.to_string(), tenant);
        tenant
    }
}

/// Ids of hosts and datastores are a vCenter's own, so they are told apart by it.
fn job_of(name: &str, source: &str, size: &Size, goes_on: bool) -> Job {
    let disks = size.disks.iter().map(|disk| Disk {
        bytes: disk.bytes,
        datastore: format!("{source}/{}", disk.datastore),
        pool: None,
    });
    Job {
        name: name.to_string(),
        host: format!("{source}/{}", size.host),
        disks: disks.collect(),
        goes_on,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DiskSize, Pinned, SourceId};

    fn spec(source: &str, host: &str) -> MigrationSpec {
        MigrationSpec {
            plan_ref: Pinned { uid: "p".into(), ..Pinned::default() },
            source: SourceId { instance_uuid: source.into() },
            size: Size {
                host: host.into(),
                disks: vec![DiskSize { bytes: 1 << 30, datastore: "ds".into() }],
            },
            ..MigrationSpec::default()
        }
    }

    #[test]
    fn hosts_are_never_overbooked_and_slots_come_back() {
        let mut all = Admissions::new(Budgets { vms_per_host: 2, ..Budgets::default() });
        for name in ["a", "b", "c"] {
            all.want(name, &spec("vc", "host-1"), false, 0);
            all.want(name, &spec("vc", "host-1"), false, 0);
        }
        all.want("other", &spec("vc2", "host-1"), false, 0);
        let mut first = all.admit(0);
        first.sort();
        assert_eq!(first, ["a", "b", "other"], "another vCenter's host-1 is another");
        assert!(all.admit(1).is_empty() && !all.has("c") && all.has("a"));
        all.leave("a", 2);
        assert_eq!(all.admit(2), ["c"]);
        for name in ["a", "b", "c", "other", "nobody"] {
            all.leave(name, 3);
        }
        all.want("a", &spec("vc", "host-1"), true, 4);
        assert_eq!(all.admit(4), ["a"]);
    }
}
