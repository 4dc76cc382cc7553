//! A disk of another site, on the side that copies.
//!
//! ```text
//!  lanes ── write: copied ──> pending ──> senders: hash, pack ──> link ──> agent
//!        <── done, at once       <──────────── receiver: answers <────────
//!  flush ── waits for the answers to all writes before it, then for the agent's own flush
//! ```

mod disk;
mod lane;
mod offers;
mod open;
pub(crate) mod pending;
mod send;

pub use disk::{AgentDisk, AgentOptions};
pub use open::Target;
