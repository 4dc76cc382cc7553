use drover_engine::{DiskRow, PlanRow, VmRow};

/// The plans in the store.
pub fn plans_text(plans: &[PlanRow]) -> String {
    plans.iter().map(|plan| format!("{}\n", plan.name)).collect()
}

/// One plan with its VMs, and what to do next.
pub fn status_text(plan: &PlanRow, vms: &[VmRow], _disks: &[DiskRow]) -> String {
    format!("{}: {} VMs\n", plan.name, vms.len())
}
