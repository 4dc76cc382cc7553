//! The same scheduler on a virtual clock: what a fleet would take.
//!
//! Transfers share what they go through max-min fairly: the stream of one disk, the host's NIC, the datastore, the line by the
//! time, the target's pool, this machine. A VM's shutdown, snapshot, verification and start take fixed times.
//! The same fleet gives the same outcome.

mod bound;
mod fair;
mod outcome;
mod run;
#[cfg(test)]
mod tests;
mod transfers;

use std::collections::BTreeMap;

use drover_types::{DayLimit, Wave};
use serde::{Deserialize, Serialize};

use crate::budgets::{Budgets, HostLimits};
use crate::job::{Job, Tenant};
use crate::scheduler::TenantLimits;

pub use self::bound::lower_bound_ms;
pub use self::outcome::{Idle, Limited, Moved, Outcome, ResourceUse};

/// A fleet to be moved, and what there is for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// The VMs, in the order in which they are submitted.
    pub vms: Vec<Vm>,
    /// The waves of each plan that has some.
    pub waves: BTreeMap<Tenant, Vec<Wave>>,
    /// The limits of each plan that has some of its own.
    pub limits: BTreeMap<Tenant, TenantLimits>,
    /// What their bytes go through.
    pub capacities: Capacities,
    /// Budgets of the scheduler.
    pub budgets: Budgets,
    /// What is different at single hosts.
    pub hosts: BTreeMap<String, HostLimits>,
    /// Whether the number of disks of each host is found by measuring, from so many on; absent: the budgets alone hold.
    pub climb_from: Option<u32>,
    /// When it begins, in milliseconds since 1970: windows and the line's hours count from there.
    pub start_ms: u64,
}

/// A VM of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// Its plan.
    pub tenant: Tenant,
    /// Disks, host and wishes. A job that is warm needs [`Vm::warm`].
    pub job: Job,
    /// How long its guest takes to shut down.
    pub shutdown_ms: u64,
    /// How long a snapshot takes, before each pass.
    pub snapshot_ms: u64,
    /// How long it is verified after the copy, with its VM slot and without disk slots.
    pub verify_ms: u64,
    /// How long it takes from then on until it runs at the target, without any slot.
    pub start_ms: u64,
    /// How it moves while it runs; absent if it moves cold.
    pub warm: Option<WarmMove>,
    /// Which of [`Capacities::lines`] its bytes go over, beside the link.
    pub lines: Vec<String>,
}

/// Passes of a VM that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmMove {
    /// Bytes a second that change, of all its disks.
    pub churn: u64,
    /// From the beginning of a pass to that of the next. Passes that make a trend may follow each other sooner
    /// ([`drover_types::PassSpan`]).
    pub interval_ms: u64,
    /// When it moves over; absent: as soon as its passes make a trend and the next one is expected to fit `downtime_ms`.
    pub cutover_ms: Option<u64>,
    /// How long it may be down; 0: it moves over after its first pass, whatever that takes.
    pub downtime_ms: u64,
}

/// Passes after which a VM moves over whatever is expected.
pub const PASSES_MAX: u32 = 100;

/// Rates in bytes a second. Absent: without limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capacities {
    /// One disk alone.
    pub stream: Option<u64>,
    /// A host that is not named in `hosts`.
    pub host: Option<u64>,
    /// Hosts.
    pub hosts: BTreeMap<String, u64>,
    /// A datastore that is not named in `datastores`.
    pub datastore: Option<u64>,
    /// Datastores.
    pub datastores: BTreeMap<String, u64>,
    /// A target pool that is not named in `pools`.
    pub pool: Option<u64>,
    /// Target pools.
    pub pools: BTreeMap<String, u64>,
    /// The line of all, by the time.
    pub link: Vec<DayLimit>,
    /// What only some VMs share of it ([`Vm::lines`]), by the time.
    pub lines: BTreeMap<String, Vec<DayLimit>>,
    /// This machine.
    pub cpu: Option<u64>,
    /// The moment that the virtual clock has as 0, in milliseconds since 1970: by it go the hours of the lines.
    pub zero_ms: u64,
}

/// Moves a fleet.
pub fn simulate(fleet: &Fleet) -> Outcome {
    run::Run::new(fleet).finish()
}
