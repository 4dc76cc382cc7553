//! The target of a plan, as this program has it: with the state folder that a command was given, and its words on standard error.

use std::path::Path;

use drover_agent::limits::{DayLimits, Sharers};
use drover_landing::{PlanTarget, Setting};
use drover_mover::StopSignal;
use drover_types::inventory::About;

use crate::plan_file::PlanFile;
use crate::sites::this_host;

/// The target of a plan whose VMs come from there; nothing is dialled yet.
pub fn target_of(file: &PlanFile, about: &About, state: Option<&Path>, stop: &StopSignal) -> PlanTarget {
    let rate_limit = DayLimits::new(file.plan.target.rate_limit.clone());
    shared_target_of(file, about, state, stop, &rate_limit, &Sharers::default())
}

/// The same, whose `rate_limit` may change, and other runs share.
pub fn shared_target_of(
    file: &PlanFile,
    about: &About,
    state: Option<&Path>,
    stop: &StopSignal,
    rate_limit: &DayLimits,
    sharers: &Sharers,
) -> PlanTarget {
    PlanTarget::new(Setting {
        plan: file.plan.name.clone(),
        target: file.plan.target.clone(),
        limits: file.plan.limits,
        origin: format!("{} {}", about.product, about.version).trim().to_string(),
        host: this_host(state),
        stop: stop.clone(),
        rate_limit: rate_limit.clone(),
        sharers: sharers.clone(),
    })
}
