//! Where VMs land: the engine's targets, of whatever type. A folder on this machine, one of another site through its agent,
//! domains of libvirt, or virtual machines of KubeVirt.
//!
//! ```text
//! target      the target of a plan: which of those below has a VM
//! here        QEMU on this machine; images: what it is given, ours: whose an image is
//! there       QEMU at a site, by its agent; sites: those of a plan; far: what stands in the way there
//! far_copy    a copy at a site, for a rehearsal on this machine; served_copy: that, or one in Ceph; door: the socket at which disks are
//!             served on it
//! libvirt     domains; their volumes here or at a site
//! kubevirt    virtual machines and claims of a cluster
//! conversion  whether a guest needs conversion, where, and how it went
//! look        into the guests of a plan before it runs; found: what looks found, kept for runs
//! inspection  disks as looks into guests read them
//! machine     from a planned VM to a machine of QEMU's; lacks: what this host lacks for one; room: for images
//! hypervisor  QEMU on this host for peers, as its agent serves it; volumes: logical volumes of its libvirt
//! policy      what a daemon lets plans of others do on its machine
//! setting     what all are told of a plan and of who runs it; errors: in the engine's words
//! ```
//!
//! Who makes a [`PlanTarget`] gives it the state folder and someone who tells people what goes on ([`Setting`]); nothing here ends a
//! program, reads an option or prints.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
mod conformance;
mod conversion;
mod door;
mod errors;
pub mod far;
mod far_copy;
pub mod found;
mod here;
mod hypervisor;
pub mod images;
mod inspection;
mod kubevirt;
mod lacks;
mod libvirt;
pub mod look;
mod machine;
mod ours;
mod policy;
mod room;
mod served_copy;
mod setting;
mod sites;
mod target;
mod there;
mod volumes;

pub use conversion::is_due as is_conversion_due;
pub use door::remove_stale_doors;
pub use errors::qemu_error;
pub use hypervisor::Qemu;
pub use inspection::inspect_images;
pub use machine::{boot_bus, machine_of};
pub use policy::PlanPolicy;
pub use room::room_problems;
pub use served_copy::ServedCopy;
pub use setting::Setting;
pub use target::PlanTarget;
pub use there::{GIVE_UP_AFTER_MIN, There, journal_of_place, tag_of};
pub use volumes::PoolVolumes;
