//! A move whose connections something else carries: QEMU connects to sockets here, and listens on sockets there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::disks::NbdAt;

/// That what carries a move hurries, until it is dropped. See [`Carrier::hurry`].
pub struct Hurry {
    _guard: Box<dyn Send>,
}

impl Hurry {
    /// Over when `guard` is dropped.
    pub fn new(guard: impl Send + 'static) -> Hurry {
        Hurry { _guard: Box::new(guard) }
    }
}

/// What carries the connections of a move: drover's link to another site.
pub trait Carrier: Send + Sync {
    /// What the other site is called.
    fn site(&self) -> &str;

    /// From here to there and back, as far as it is known.
    fn round_trip(&self) -> Duration;

    /// Whether it carries at this moment. Away, it may come back and lose nothing.
    fn is_up(&self) -> bool;

    /// Whether what is on its way waits for it to come back. Where it does not, it is over, and a new connection is a try.
    fn is_waited_for(&self) -> bool;

    /// The guest stands still: until what is given is dropped, time counts more than the line. Nothing where there is none.
    fn hurry(&self) -> Option<Hurry>;

    /// Whether the other site says that nobody listens at the target's monitor any more, of connections since this was
    /// asked last.
    fn has_nobody(&self) -> bool;
}

/// What a move has of something that carries: the target's monitor, and mostly memory and disks.
#[derive(Clone)]
pub struct Carried {
    /// What carries.
    pub by: Arc<dyn Carrier>,
    /// Where memory and disks begin here; nothing where they go directly to the target's host.
    pub ends: Option<CarriedEnds>,
}

/// Where what is carried begins here.
#[derive(Clone, Debug)]
pub struct CarriedEnds {
    /// Where the source sends memory, as QEMU takes it: `unix:/path`.
    pub memory: String,
    /// Where the source finds the target's disks.
    pub disks: NbdAt,
}

impl Carried {
    /// What carries memory and disks, and where they begin; nothing where they go directly.
    pub(super) fn of_data(this: Option<&Carried>) -> Option<(&dyn Carrier, &CarriedEnds)> {
        this.and_then(|carried| Some((&*carried.by, carried.ends.as_ref()?)))
    }
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over the link to {}: {:?}", self.by.site(), self.ends)
    }
}
