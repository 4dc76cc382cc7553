//! Which VM is copied next, how many at once, and what that comes to: the schedule of several plans.
//!
//! Pure: events and the time go in, decisions come out. No clock, thread or lock.
//!
//! ```text
//! jobs, budgets ──> Scheduler ──> admits a VM with so many disk slots        Climb: how many disks of a host at once
//!                      ^    ^                                                Breaker: whether a host is left alone
//!      disk finished,  │    │  the same on a virtual clock
//!      VM finished ────┘    └── simulate
//! ```
//!
//! - [`Scheduler`] holds VMs of several tenants (plans) and admits them within [`Budgets`].
//! - [`Climb`] finds by measuring how many disks of a host, or of a datastore, are worth reading at once; [`Learner`] holds one for each.
//! - [`Breaker`] leaves a host, a datastore or a place at the target alone that keeps failing, and tries it again with one VM.
//! - [`simulate`] runs the same scheduler on a virtual clock over resources with rates.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod breaker;
mod budgets;
mod climb;
mod job;
mod learner;
mod random;
mod scheduler;
pub mod simulate;
mod wait;

pub use breaker::{Breaker, Permit};
pub use budgets::{Budgets, HostLimits, Order, Rates};
pub use climb::{Climb, Found};
pub use job::{Disk, Group, Job, JobId, Tenant, Window};
pub use learner::{Learner, Look};
pub use random::Random;
pub use scheduler::{
    Admission, DatastoreUsage, Ended, OVERTAKEN_MAX, Quarantined, Scheduler, TargetFailure, TenantLimits,
    Usage, WaveUsage,
};
pub use wait::{Resource, Wait};
