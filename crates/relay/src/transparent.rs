//! Catching connections that only pass through: rules of the packet filter, made, shown and removed.
//!
//! A relay that catches has a number of its own, and all that it makes outside of itself is named by it:
//! the nftables table `inet drover_relay_NUMBER`, and for TPROXY the mark, the routing rule and the routing
//! table `0x0d800000 + NUMBER`. While the relay lives it holds the abstract Unix socket
//! `drover-relay-NUMBER` of its network namespace; the kernel lets go of it however the relay ends. So
//! whoever cleans up can tell what a killed relay left from what a living one uses.

mod apply;
mod caught;
mod script;

pub use apply::{ApplyError, Lease, Rules, clean};
pub use caught::Caught;
pub use script::{Catch, Method, NUMBER_MAX};
