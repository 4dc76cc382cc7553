//! Limits of a run that are changed while it goes on.

use std::collections::BTreeSet;

use drover_plan::PlannedVm;
use drover_schedule::{Budgets, Tenant, TenantLimits};

use super::job::key_of;
use super::{Schedule, State};
use crate::limits::LimitsInForce;

/// A run whose limits change.
pub(crate) struct Relimited<'a> {
    /// Its source.
    pub(crate) site: &'a str,
    pub(crate) vms: &'a [&'a PlannedVm],
    /// Whether the schedule is its own, so that its limits are the budgets of all.
    pub(crate) is_alone: bool,
}

impl Schedule {
    /// A run keeps to these limits from now on, within those of all where it shares the schedule. What it holds beyond smaller ones stays
    /// until it is given back; VMs that fit larger ones begin at once. What was learned of its hosts within the limits of before is learned
    /// anew.
    pub(crate) fn limit(&self, tenant: Tenant, limits: &LimitsInForce, run: &Relimited<'_>) {
        let mut state = self.lock();
        let shared = state.scheduler.budgets().clone();
        let own = Budgets { vms_per_host: limits.vms_per_host, disks: limits.disks, ..shared.clone() };
        if run.is_alone {
            state.scheduler.set_budgets(own);
        } else {
            let cutovers = state.scheduler.tenant_limits(tenant).cutovers;
            let own = TenantLimits { cutovers, ..TenantLimits::within(&own, &shared) };
            state.scheduler.set_tenant(tenant, own);
        }
        state.learn_anew(run.site, run.vms);
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// Judges the hosts of a run from the beginning.
    fn learn_anew(&mut self, site: &str, vms: &[&PlannedVm]) {
        let hosts: BTreeSet<String> = vms.iter().map(|vm| key_of(site, &vm.vm.host_id)).collect();
        hosts.iter().for_each(|host| self.learned.forget_host(&mut self.scheduler, host));
        self.learn(site, vms);
    }
}
