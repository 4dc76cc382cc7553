//! Development only: a long, narrow, lossy line between two network namespaces, in user space.
//!
//! Many kernels lack netem, and netem knows no sessions. This emulator moves packets between two TUN devices, each in a network namespace of its own;
//! what happens to them in between is decided by [`line`] (pure). Kernels hand over super-packets of up to 64 KiB and take them, so a few gigabits
//! a second pass on one core. `docs/dev/lab-wan.md` says how true it is and up to what.
//!
//! Nothing is left behind, however a run ends: the namespaces have no names, and they, the devices and the routes go with the last process in them. What runs
//! there ends with the program that laid the line, also if that is killed.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod control;
mod error;
mod keeper;
pub mod line;
mod namespace;
mod order;
mod pump;
mod report;
mod site;
mod sys;
mod tun;
mod wan;

pub use control::{Control, running, tell};
pub use error::WanError;
pub use namespace::Namespace;
pub use order::{Order, Ways};
pub use pump::Handle;
pub use report::{Report, WayReport};
pub use site::Site;
pub use wan::{ADDRESSES_MAX, MTU_MAX, MTU_MIN, Wan, WanSpec};
