//! The limit of a site, kept to together by all that send to it with one state folder: those of other processes, too.
//!
//! ```text
//! share     pure: who gets how much of a limit
//! slot      STATE/link/limits/SITE/N: a locked file for each that keeps to it, and what it wants and takes
//! followed  one that keeps to it, and what it may take at each moment
//! day_limits limits of one run by the hours, which may be changed
//! hours     limits by the hours that belong to no site, kept to by one process
//! ```

mod day_limits;
mod followed;
mod hours;
mod share;
mod slot;

pub use drover_link::RateLimit;

pub use day_limits::DayLimits;
pub use followed::{OfPeers, Own, Sharers, followed};
pub use hours::{by_changing_hours, by_hours};
pub use share::{Part, Sent, share, wanted};
pub use slot::{SLOTS_MAX, Slot, parts};
