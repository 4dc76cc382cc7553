//! Limits of single tenants, within the budgets that all share.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Scheduler;
use super::entry::State;
use crate::budgets::Budgets;
use crate::job::{JobId, Tenant};

/// What one tenant may take of the budgets at most; absent: what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantLimits {
    /// VMs of one host at once.
    pub vms_per_host: Option<u32>,
    /// Disks at once in all.
    pub disks: Option<u32>,
    /// Warm VMs that move over at once.
    pub cutovers: Option<u32>,
}

impl TenantLimits {
    /// What of one's own budgets is less than what all share.
    pub fn within(own: &Budgets, shared: &Budgets) -> TenantLimits {
        TenantLimits {
            vms_per_host: Some(own.vms_per_host).filter(|vms| *vms < shared.vms_per_host),
            disks: Some(own.disks).filter(|disks| *disks < shared.disks),
            cutovers: Some(own.cutovers).filter(|cutovers| *cutovers < shared.cutovers),
        }
    }
}

/// A tenant with limits of its own, and what it holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    pub(super) limits: TenantLimits,
    pub(super) disks: u32,
    /// VMs that run, by host.
    pub(super) vms: BTreeMap<usize, u32>,
}

impl Share {
    pub(super) fn vms_at(&self, host: usize) -> u32 {
        self.vms.get(&host).copied().unwrap_or(0)
    }

    pub(super) fn vms_max(&self) -> u32 {
        self.limits.vms_per_host.unwrap_or(u32::MAX).max(1)
    }

    pub(super) fn disks_max(&self) -> u32 {
        self.limits.disks.unwrap_or(u32::MAX).max(1)
    }

    /// Whether another VM of a host may begin, as far as its own limits tell.
    fn has_room(&self, host: usize) -> bool {
        self.vms_at(host) < self.vms_max() && self.disks < self.disks_max()
    }
}

impl Scheduler {
    /// Limits one tenant, or changes its limits, at any time. Its jobs wait in lanes of their own: they hold up nobody else's. What it
    /// holds beyond smaller limits stays until it is given back.
    pub fn set_tenant(&mut self, tenant: Tenant, limits: TenantLimits) {
        self.awaited = None;
        if let Some(share) = self.shares.get_mut(&tenant) {
            share.limits = limits;
        } else if limits != TenantLimits::default() {
            let own = self.jobs.iter().filter(|(_, entry)| entry.tenant == tenant);
            let mut share = Share { limits, ..Share::default() };
            let mut waiting: Vec<JobId> = Vec::new();
            for (id, entry) in own {
                match &entry.state {
                    State::Waiting => waiting.push(*id),
                    State::Running(held) => {
                        share.disks += held.slots;
                        *share.vms.entry(entry.host).or_default() += 1;
                    }
                    State::Aside(_) | State::Parked | State::Over(_) => {}
                }
            }
            // They leave the lanes of all before they have ones of their own.
            waiting.iter().for_each(|id| self.dequeue(*id));
            self.shares.insert(tenant, share);
            waiting.into_iter().for_each(|id| self.enqueue(id));
            self.check_invariants();
        }
    }

    /// The limits of one tenant.
    pub fn tenant_limits(&self, tenant: Tenant) -> TenantLimits {
        self.shares.get(&tenant).map(|share| share.limits).unwrap_or_default()
    }

    /// The tenant, if it has limits of its own.
    pub(super) fn limited(&self, tenant: Tenant) -> Option<Tenant> {
        self.shares.contains_key(&tenant).then_some(tenant)
    }

    /// Whether a lane of a host may be looked at.
    pub(super) fn may_look(&self, host: usize, tenant: Option<Tenant>) -> bool {
        tenant.and_then(|tenant| self.shares.get(&tenant)).is_none_or(|share| share.has_room(host))
    }

    /// Disks at once of a tenant.
    pub(super) fn tenant_disks(&self, tenant: Tenant) -> u32 {
        self.shares.get(&tenant).map_or(u32::MAX, Share::disks_max)
    }

    /// Warm VMs of a tenant that may move over at once.
    pub fn cutovers_of(&self, tenant: Tenant) -> u32 {
        let own = self.shares.get(&tenant).and_then(|share| share.limits.cutovers);
        own.unwrap_or(u32::MAX).max(1).min(self.budgets.cutovers)
    }

    /// Lets a host be tried again that was given up: somebody orders it anew.
    pub fn try_again(&mut self, host: &str) {
        let known = self.host_of.get(host).map(|host| &mut self.hosts[*host]);
        if let Some(host) = known.filter(|host| host.breaker.is_given_up()) {
            host.breaker.try_again();
            (host.failing, host.serves) = (BTreeSet::new(), false);
        }
    }

    /// The same for a datastore.
    pub fn try_datastore_again(&mut self, datastore: &str) {
        if let Some(datastore) = self.datastore_of.get(datastore) {
            self.datastores[*datastore].breaker.try_again();
        }
    }
}
