//! Both sides of a move, whoever makes it.

use std::sync::atomic::AtomicBool;

use drover_live::together::Beforehand;
use drover_live::{Event, Moment, Moved, Where};

use super::core::Lifecycle;
use super::domain::mover;
use super::run::Move;
use super::{DomainOptions, Ends, Guest, LiveError, LiveOptions, Looked, LookedDomain, Wanted};
use crate::error::QemuError;

/// Both sides of a move, and how it is wanted.
pub enum Place {
    /// Two monitors.
    Qemu(Box<Sides>),
    /// Two daemons of libvirt.
    Domain {
        /// The daemons.
        ends: Ends,
        /// What the domain is called.
        name: String,
        /// How it is wanted.
        options: Box<DomainOptions>,
    },
}

/// Two monitors.
pub struct Sides {
    /// Of the QEMU that has the guest.
    pub source: Guest,
    /// Of the QEMU that is to have it.
    pub target: Guest,
    /// How it is wanted.
    pub options: LiveOptions,
}

impl Sides {
    fn mover<'a>(&'a mut self, stop: &'a AtomicBool, tell: &'a mut dyn FnMut(Event)) -> Move<'a> {
        Move::new(&mut self.source, &mut self.target, &self.options, stop, tell)
    }
}

impl Place {
    /// How the move is wanted.
    pub fn wanted(&mut self) -> &mut Wanted {
        match self {
            Place::Qemu(sides) => &mut sides.options.wanted,
            Place::Domain { options, .. } => &mut options.wanted,
        }
    }

    /// Says what a move would take; moves nothing.
    ///
    /// # Errors
    /// [`LiveError`]: what stands in the way, and where the guest is.
    pub fn foresee(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), LiveError> {
        let stop = AtomicBool::new(false);
        let looked = match self {
            Place::Qemu(sides) => sides.mover(&stop, tell).foresee(),
            Place::Domain { ends, name, options } => {
                mover(ends, name, options, &stop, tell).map_err(LiveError::of_look)?.foresee()
            }
        };
        looked.map(drop)
    }

    /// Looks at both sides and measures; changes nothing. A move that begins soon after does not look again. Whether its promise can
    /// be kept depends on what it may send, which is not asked here.
    ///
    /// # Errors
    /// [`LiveError`]: what stands in the way, and where the guest is.
    pub fn look_beforehand(&mut self, tell: &mut dyn FnMut(Event)) -> Result<Beforehand, LiveError> {
        let stop = AtomicBool::new(false);
        match self {
            Place::Qemu(sides) => {
                let (known, found) = sides.mover(&stop, tell).look_beforehand()?;
                sides.options.looked = found.map(Looked);
                Ok(known)
            }
            Place::Domain { ends, name, options } => {
                let mover = mover(ends, name, options, &stop, tell);
                let (known, found) = mover.map_err(LiveError::of_look)?.look_beforehand()?;
                options.looked = found.map(LookedDomain);
                Ok(known)
            }
        }
    }

    /// Moves the guest, or leaves it where it was.
    ///
    /// # Errors
    /// [`LiveError`]: what ended it, and where the guest is.
    pub fn go(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) -> Result<Moved, LiveError> {
        match self {
            Place::Qemu(sides) => sides.mover(stop, tell).run(),
            Place::Domain { ends, name, options } => {
                let untouched = |cause| LiveError { cause, guest_at: Where::Source };
                mover(ends, name, options, stop, tell).map_err(untouched)?.run()
            }
        }
    }

    /// What the source and the target told; daemons tell nothing.
    pub fn moments(&mut self) -> [Vec<Moment>; 2] {
        match self {
            Place::Qemu(sides) => [sides.source.moments(), sides.target.moments()],
            Place::Domain { .. } => Default::default(),
        }
    }

    /// What its daemon knows a domain by: the source's has it, or the target's once it has moved.
    ///
    /// # Errors
    /// If neither has it, or cannot be asked.
    pub fn uuid(&self) -> Result<Option<String>, QemuError> {
        let Place::Domain { ends, name, .. } = self else { return Ok(None) };
        ends.source.uuid(name).or_else(|_| ends.target.uuid(name)).map(Some)
    }
}
