//! Domains of libvirt that move: libvirt's own migration, with drover's looks before, watch meanwhile and looks after.
//!
//! ```text
//! ask.rs    what daemons are asked, by `virsh`
//! read.rs   what they answer
//! run.rs    the move: look, choose, have libvirt move, watch, look, tidy up
//! ```

mod ask;
mod read;
mod run;

use std::sync::atomic::AtomicBool;

use drover_copy::converge::Estimate;
use drover_live::{Allowed, Obstacle, Promise};

use super::{Ending, Event, LiveError, Moved, Where};
use crate::virsh::Virsh;
use run::Move;

/// The daemons that a domain moves between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Has it.
    pub source: Virsh,
    /// Is to have it.
    pub target: Virsh,
}

/// How a domain's move is wanted.
#[derive(Clone, Debug)]
pub struct DomainOptions {
    /// What is promised.
    pub promise: Promise,
    /// What may be done to keep it.
    pub allowed: Allowed,
    /// Its disks are copied into volumes made at the target; else both hosts have the same storage.
    pub copies_disks: bool,
    /// Where the source's QEMU finds the target's, if not where the target's daemon says.
    pub uri: Option<String>,
    /// Connections for memory, where it was said how many.
    pub channels: Option<u8>,
    /// Bytes a second that the line carries, where that is known.
    pub line: Option<Estimate>,
    /// Most bytes a second that may be sent; whole MiB of it are used.
    pub rate_max: Option<u64>,
    /// The source's daemon talks to the target's by itself.
    pub p2p: bool,
}

/// Moves a domain, or leaves it where it was.
///
/// # Errors
/// [`LiveError`]: what ended it, and where the guest is.
pub fn live_domain(
    ends: &Ends,
    name: &str,
    options: &DomainOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event),
) -> Result<Moved, LiveError> {
    let untouched = |cause| LiveError { cause, guest_at: Where::Source };
    let known = known(ends, name).map_err(untouched)?;
    Move::new(ends, known, options, stop, tell).run()
}

/// Looks at both daemons and says what a move would take; moves nothing.
///
/// # Errors
/// What stands in the way.
pub fn foresee_domain(
    ends: &Ends,
    name: &str,
    options: &DomainOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<(), Ending> {
    let stop = AtomicBool::new(false);
    let known = known(ends, name)?;
    Move::new(ends, known, options, &stop, tell).foresee()
}

/// The domain of this name, at the source or, once it has moved, at the target.
fn known(ends: &Ends, name: &str) -> Result<ask::Known, Ending> {
    if ends.source.host()? == ends.target.host()? {
        let what = "both addresses lead to the same host, by its own word".to_string();
        let advice = "give another with --to; two hosts that tell one UUID need `host_uuid` in libvirtd.conf";
        return Err(Ending::Obstacles(vec![Obstacle { what, advice: advice.into() }]));
    }
    if let Some(known) = ends.source.find(name)? {
        return Ok(known);
    }
    ends.target.find(name)?.ok_or_else(|| {
        let what = format!("no domain {name} is at {} or {}", ends.source.uri(), ends.target.uri());
        let advice =
            "look for its name, and the daemon that has it: `virsh -c URI list --all`, --connect URI";
        Ending::Obstacles(vec![Obstacle { what, advice: advice.into() }])
    })
}
