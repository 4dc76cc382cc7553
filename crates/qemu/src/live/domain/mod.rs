//! Domains of libvirt that move: libvirt's own migration, with drover's looks before, watch meanwhile and looks after.
//!
//! ```text
//! ask.rs    what daemons are asked, by `virsh`
//! read.rs   what they answer
//! beforehand.rs  what is known of one that moves with others, and its share of what all may send
//! run.rs    what is done to both: look, choose, have libvirt move, watch, tidy up
//! lifecycle.rs  the move from its begin to its end
//! words.rs  what `virsh` is told
//! ahead.rs  post-copy: the rest of its memory, and a line that breaks
//! cancel.rs  the end of a move that is not to go on
//! ```

mod ahead;
mod ask;
mod beforehand;
mod cancel;
mod lifecycle;
mod read;
mod run;
mod words;

use std::sync::atomic::AtomicBool;

use drover_live::{Event, Found, Obstacle};

use super::{Ending, Wanted};
use crate::virsh::Virsh;
pub use beforehand::LookedDomain;
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
    /// As any move. What carries it leads to sockets of the same paths at the target, where its QEMU listens.
    pub wanted: Wanted,
    /// Its disks are copied into volumes made at the target; else both hosts have the same storage.
    pub copies_disks: bool,
    /// Where the source's QEMU finds the target's, if not where the target's daemon says.
    pub uri: Option<String>,
    /// Where the target offers the disks that are copied, if not at a port that its daemon chooses.
    pub disks_port: Option<u16>,
    /// The source's daemon talks to the target's by itself.
    pub p2p: bool,
    /// Both QEMUs encrypt, by what their daemons have for it; the target's name in its certificate, empty where it is the host of
    /// `uri`.
    pub tls: Option<String>,
    /// What was found beforehand.
    pub looked: Option<LookedDomain>,
}

/// A move of the domain of this name.
pub(super) fn mover<'a>(
    ends: &'a Ends,
    name: &str,
    options: &'a DomainOptions,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event),
) -> Result<Move<'a>, Ending> {
    Ok(Move::new(ends, known(ends, name)?, options, stop, tell))
}

/// What has to be known of a domain before something carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// What the daemons know it by.
    pub uuid: String,
    /// The user as which its QEMU runs at the source, where libvirt tells.
    pub owner: Option<u32>,
    /// Something has to lead to the target: it is to move, or the rest of its memory.
    pub is_needed: bool,
    /// Nothing of a move has begun, so that nobody listens at the target yet.
    pub waits: bool,
}

/// Looks at both daemons for what has to be known before a domain is carried; changes nothing.
///
/// # Errors
/// If they cannot be asked, or neither has it.
pub fn passage(ends: &Ends, name: &str) -> Result<Passage, Ending> {
    let known = known(ends, name)?;
    let found = run::found(ends, &known.uuid)?;
    let is_at_source = !ends.source.stand(&known.uuid)?.state.is_empty();
    let owner = if is_at_source { ends.source.owner(&known.uuid)? } else { None };
    let waits = found == Found::Nothing;
    let is_needed = waits || matches!(found, Found::Ahead | Found::Broken);
    Ok(Passage { uuid: known.uuid, owner, is_needed, waits })
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
