//! Two sites that exchange disks: the agent's daemon on one side, its disks on the other, and who trusts whom.
//!
//! ```text
//! client   AgentDisk: a disk of another site, as the copier knows disks
//! site     one session to another site's agent, shared by its disks; sites: those that this host knows, and dials
//! daemon   who may come in, strangers with a token, the end of revoked peers
//! serve    the agent's side: services on the channels of a session
//! measure  what the way back from an agent carries; direct: what the way past the link does
//! load     how busy its host is; host: what else it has of what machines need
//! places   what an agent serves: pools of files, devices, exports
//! limits   the limit of a site, kept to together by all that send to it from this host
//! trust    this host's key, its peers, pairing by one-time tokens
//! message  pure: what goes over the channel of a disk; opening: how channels begin; machine: orders about machines
//! ```
//!
//! Nothing that comes from a peer is believed: messages are bounded and checked, paths lead into pools only, each
//! block is held against its hash before it is written.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod daemon;
mod dial;
mod direct;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub mod limits;
mod load;
pub mod machine;
mod measure;
pub mod message;
pub mod opening;
mod places;
mod random;
mod serve;
mod site;
pub mod sites;
mod stats;
pub mod trust;

pub use client::{AgentDisk, AgentOptions, Target};
pub use daemon::{Daemon, Event, SESSIONS_MAX, STRANGERS_MAX, now};
pub use dial::{PORT, Route, dial, with_port};
pub use direct::{CONNECTIONS_MAX, DirectProbe, DirectWay};
pub use error::Refusal;
pub use load::{HostLoad, PROC};
pub use measure::{MEASURE_TIME_MAX, Measured};
pub use places::{
    BY_ID, ENTRIES_MAX, HOT_ADD, HOT_ADDED, HotAdded, Indexes, PlaceName, Places, Room, VolumeGroup, Volumes,
};
pub use serve::{
    Agent, CHANNELS_MAX, Connect, DISKS_MAX, FirstBootFiles, Found, Held, Home, Hypervisor, KnownBlocks,
    Machines, PEER_DISKS_MAX, START_WITHIN, Store,
};
pub use site::{Dial, Site};
pub use stats::Way;

use drover_link::{Session, SessionState};

/// Whether there is a connection to the peer at the moment.
fn is_connected(session: &Session) -> bool {
    matches!(session.stats().state, SessionState::Up)
}

fn is_over(session: &Session) -> bool {
    matches!(session.stats().state, SessionState::Ended(_))
}
