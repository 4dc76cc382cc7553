//! Running guests that move: what `drover-live` decides is asked for and told here, over the monitors of both sides.
//!
//! ```text
//! Guest (one monitor) ─┬─ ask.rs      what it can do, what it is, what it measures
//!                      ├─ disks.rs    exports at the target, mirrors at the source
//!                      ├─ mark.rs     which two QEMUs are the ends of one move
//!                      ├─ tls.rs      credentials for QEMU's own encryption
//!                      ├─ share.rs    what it may send of what several moves may
//!                      ├─ turn.rs     when it sends, where several move
//!                      ├─ carried.rs  what lies between, where it is not the network alone
//!                      └─ run.rs      the move: check, set, disks, memory, switchover, look, clean up ──┐
//! Virsh (one daemon) ──── domain/     the move of a libvirt domain, by libvirt ──────────────────────────┴─ core.rs  the loop and the lifecycle that both share
//! place.rs is one of both, several.rs some of either.
//! ```

mod ask;
mod carried;
mod core;
mod disks;
mod domain;
mod guest;
mod mark;
mod place;
mod run;
mod several;
mod share;
mod tls;
mod turn;

pub use carried::{Carried, CarriedEnds, Carrier, Hurry};
pub use core::channels_wanted;
pub use disks::NbdAt;
pub use domain::{DomainOptions, Ends, LookedDomain, Passage, passage};
pub use guest::Guest;
pub use place::{Place, Sides};
pub use run::{
    DisksBy, Ending, LiveError, LiveOptions, Looked, MemoryOptions, TlsBy, TlsOptions, Wanted,
    left_by_earlier,
};
pub use several::{Ended, LOOKS_MAX, Tells, several};
pub use share::Share;
pub use turn::Turn;
