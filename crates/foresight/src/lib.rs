//! Forecasts of what this host knows: of plans, sites and earlier runs; and of runs that go on, all together.
//!
//! ```text
//! known  what plans and earlier runs tell: VMs, lines, rates
//! run    the forecast of a run, made beside it and corrected while it goes on
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod known;
mod run;

pub use known::{fleet, host_of, limit_hosts, lines_of, measured, seen, sites_of};
pub use run::{Shared, begin};
