//! Where VMs come from: the engine's sources, vSphere and appliances, and which way the bytes of their disks take.
//!
//! ```text
//! source       the source of a plan: which of those below has its VMs
//! vsphere      vSphere: power, snapshots, a VM's disks by the way of the plan; tracking: what changed since
//! appliance    OVA and OVF
//! vddk         the ways to vSphere's disks, and VDDK as one; nfc: NFC, and whether hosts can be reached by it
//! hot_add      disks that proxy VMs read, what is attached there, and what stands in the way
//! hidden       what of an inventory does not count for a plan that goes on
//! judge        what stands against a VM when its turn comes, of a plan that went on although something did
//! reads        how much may be read in a second; urgent: which hosts are read while a guest is down for it
//! rights       what a plan needs its user to be allowed
//! inventories  one inventory of a source at a time, for all plans of a state folder
//! login        from what a plan names to a session
//! single       one disk of a VM that no plan names
//! check        disks read for a moment; measure: how fast, and what limits it
//! setting      what all are told of a plan and of who runs it
//! ```
//!
//! Who opens a [`PlanSource`] gives it the state folder and someone who tells people what goes on ([`Setting`]); nothing here ends a
//! program, reads an option or prints.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod appliance;
pub mod check;
mod hidden;
mod hot_add;
pub mod inventories;
mod judge;
pub mod login;
mod measure;
mod nfc;
mod reads;
mod rights;
mod setting;
pub mod single;
mod source;
mod tracking;
mod urgent;
pub mod vddk;
mod vsphere;

pub use appliance::Appliance;
pub use hidden::{hide_own_snapshots, hide_what_passes_see_to};
pub use judge::Judge;
pub use measure::Measured;
pub use reads::SharedReads;
pub use setting::{Setting, SourceError};
pub use source::{PlanSource, to_give_up, write_rates};
pub use vsphere::{VsphereSource, provider_error};
