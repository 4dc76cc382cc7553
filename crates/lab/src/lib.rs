//! Starts the vSphere simulator, finds the test guests, runs the drover program. The tests stand on it, and the demos and benches
//! of `drover-lab`; `drover` does not.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod chart;
pub mod cluster;
mod guests;
mod libvirt;
mod program;
mod pulse;
mod rdma;
mod scene;
mod script;
pub mod served;
mod sim;
pub mod v2v;
mod vddk;
pub mod windows;

pub use cluster::Cluster;
pub use drover_pulse::{Verdict, Voice};
pub use guests::{Guest, GuestDisk, Guests};
pub use libvirt::Hosts;
pub use program::{Drover, Output, Started, lab_folder, run_by, workspace};
pub use pulse::{Pulse, PulseOptions};
pub use rdma::RdmaVm;
pub use scene::Scene;
pub use script::put_script;
pub use sim::{PASSWORD, Sim, USER};
pub use vddk::StandIn;
