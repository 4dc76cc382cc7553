//! Both sides of a move, whoever makes it.

use std::sync::atomic::AtomicBool;

use drover_live::together::Beforehand;
use drover_live::{Event, Moment, Moved};

use super::{
    DomainOptions, Ends, Guest, LiveError, LiveOptions, Wanted, foresee, foresee_domain, live, live_domain,
    look_beforehand, look_domain_beforehand,
};
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
        match self {
            Place::Qemu(sides) => {
                let Sides { source, target, options } = &mut **sides;
                foresee(source, target, options, tell).map(drop)
            }
            Place::Domain { ends, name, options } => {
                foresee_domain(ends, name, options, tell).map_err(LiveError::of_look)
            }
        }
    }

    /// Looks at both sides and measures; changes nothing. A move that begins soon after does not look again.
    ///
    /// # Errors
    /// [`LiveError`]: what stands in the way, and where the guest is.
    pub fn look_beforehand(&mut self, tell: &mut dyn FnMut(Event)) -> Result<Beforehand, LiveError> {
        match self {
            Place::Qemu(sides) => {
                let Sides { source, target, options } = &mut **sides;
                let (known, looked) = look_beforehand(source, target, options, tell)?;
                options.looked = looked;
                Ok(known)
            }
            Place::Domain { ends, name, options } => {
                let looked = look_domain_beforehand(ends, name, options, tell);
                let (known, looked) = looked.map_err(LiveError::of_look)?;
                options.looked = looked;
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
            Place::Qemu(sides) => {
                let Sides { source, target, options } = &mut **sides;
                live(source, target, options, stop, tell)
            }
            Place::Domain { ends, name, options } => live_domain(ends, name, options, stop, tell),
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
