//! What happens while a guest moves, and what it ends in.

use std::time::Duration;

use drover_types::Estimate;

use crate::ahead::Mending;
use crate::choose::Choice;
use crate::forecast::Forecast;
use crate::load::Loads;
use crate::route::Route;
use crate::told::Told;
use crate::watch::{Deed, Why};

/// How far a mirror is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorState {
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes to copy, as known now: what is written again counts again.
    pub all_bytes: u64,
    /// Everything was copied once; writes follow as they come.
    pub is_ready: bool,
}

/// What happens, as it happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// In words.
    Note(String),
    /// Which way memory and disks go to another site. Told by who chooses one, before the move.
    Route(Box<Route>),
    /// How busy both hosts are, and by how many seconds a downtime is longer for it. Told where it is, or is not known.
    Busy {
        /// As far as it is known.
        loads: Loads,
        /// Of that which is known.
        longer: Estimate,
    },
    /// How it will go, and what else was looked at.
    Chosen(Box<Choice>),
    /// A disk, on its way.
    Disk {
        /// What it is plugged into.
        name: String,
        /// How far it is.
        state: MirrorState,
    },
    /// Memory, on its way.
    Memory(Told),
    /// All of its memory is sent, or as good as that: the line is for others.
    Sent,
    /// Something was done, and why.
    Did(Deed, Why),
    /// It sends so many bytes a second at most from now on, its share of what several moves may.
    Share(u64),
    /// The line broke in post-copy, or is made anew.
    Mending(Mending),
    /// What carries the move went away, or came back.
    Link {
        /// The other site.
        site: String,
        /// Whether it carries.
        is_up: bool,
    },
}

/// A guest that runs at the target.
#[derive(Clone, Debug)]
pub struct Moved {
    /// What was foreseen when it began.
    pub foreseen: Forecast,
    /// Seconds below which it was foreseen to stay: nobody said what its line carries, and it was over before that was measured.
    pub foreseen_below_s: Option<f64>,
    /// From the begin of memory's way to the guest running at the target.
    pub total: Duration,
    /// For which it stood still, by QEMU's count.
    pub downtime_by_qemu: Option<Duration>,
    /// From its stop at the source to its start at the target, by the clocks of both monitors' hosts.
    pub stood_still: Option<Duration>,
    /// The last that QEMU told.
    pub last: Told,
    /// What was done on the way.
    pub deeds: Vec<(Deed, Why)>,
}
