//! A move that an earlier run began and did not see to its end: killed, or its host was.
//!
//! QEMU goes on by itself, up to the moment in which the guest is to be started, or its disks handed over: then it waits.

use std::time::Instant;

use drover_live::{Allowed, Deed, Follow, Found, Machine, Moved, Passage, Throttle, Where, found};

use super::arrive::is_to_be_started;
use super::{DisksBy, Ending, LiveError, Mirrors, Move};
use crate::error::QemuError;
use crate::live::guest::Guest;
use crate::live::mark::{are_ends, unclear};

/// What both sides say of an earlier move.
pub(super) fn find(source: &mut Guest, target: &mut Guest) -> Result<Found, QemuError> {
    // The source first: what it has sent by then the target has, or is about to.
    let (here, marks_here) = source.stand_and_marks()?;
    let (there, marks_there) = target.stand_and_marks()?;
    Ok(found(&here, &there, are_ends(&marks_here, &marks_there)))
}

impl Move<'_> {
    /// What both sides say of an earlier move.
    pub(super) fn find(&mut self) -> Result<Found, QemuError> {
        find(self.source, self.target)
    }

    /// Ends what an earlier run began; nothing if there is none, and a new one may begin.
    pub(super) fn again(&mut self) -> Option<Result<Moved, LiveError>> {
        let found = match self.find() {
            Ok(found) => found,
            Err(error) => return Some(Err(LiveError { cause: error.into(), guest_at: Where::Unknown })),
        };
        match &found {
            Found::Nothing => return None,
            Found::Unclear(unclear) => {
                let guest_at = unclear.guest_at();
                return Some(Err(LiveError { cause: Ending::Unclear(*unclear), guest_at }));
            }
            Found::Sending | Found::Ahead | Found::Broken | Found::Arrived | Found::Moved => {
                self.note(words(&found));
            }
        }
        if let Err(cause) = self.prepare(&found) {
            // Nothing was touched: QEMU goes on as it did.
            return Some(Err(LiveError { cause, guest_at: Where::Source }));
        }
        self.passage = Passage::sent();
        let ended = self.take_over(&found);
        Some(ended.or_else(|cause| self.settle(cause)))
    }

    /// Learns of a move under way what its first run knew.
    fn prepare(&mut self, found: &Found) -> Result<(), Ending> {
        self.core.was_running = !self.source.is_marked_paused()?;
        // The first run withdraws its offer when it starts the guest.
        self.is_offered = self.target.offers_disks()?;
        if *found != Found::Sending {
            return Ok(());
        }
        let (here, there) = (self.source.look()?, self.target.look()?);
        self.can = [here.can, there.can];
        self.core.was_running &= here.machine.status != "paused" || self.source.is_marked_stopped()?;
        self.machine = here.machine.clone();
        self.find_mirrors(&here.machine, &there.machine)
    }

    fn take_over(&mut self, found: &Found) -> Result<Moved, Ending> {
        let began = Instant::now();
        match found {
            Found::Sending => {
                // It must not start by itself: this says so once more, should the first run not have come to that.
                if self.target.status()? == "inmigrate" {
                    self.target.order("stop")?;
                }
                // The first run may have sent the end of memory slower, which it does over a link.
                if self.core.carried().is_some() {
                    self.send_as_allowed()?;
                }
                // It was told to go ahead, and waits to be let go.
                if self.core.was_running && self.source.is_marked_stopped()? {
                    self.passage.send_ahead();
                }
                let deeds = if self.passage.goes_ahead() { Vec::new() } else { self.deeds_left()? };
                self.follow(began, Follow::of_earlier(self.core.promise(), &deeds))
            }
            Found::Ahead | Found::Broken => {
                // The first run may have been killed before it started the guest there.
                let waits = is_to_be_started(&self.target.status().unwrap_or_default());
                self.passage = Passage::ahead(waits);
                self.follow(began, Follow::of_earlier(self.core.promise(), &[]))
            }
            Found::Arrived | Found::Moved => {
                let last = self.source.sample(began)?;
                self.arrived(began, last, self.patience())
            }
            Found::Nothing | Found::Unclear(_) => unreachable!("nothing is taken over"),
        }
    }

    /// What may be done to keep the promise, of what is allowed now: a move under way keeps what it was begun with.
    pub(super) fn deeds_left(&mut self) -> Result<Vec<Deed>, QemuError> {
        let set = [self.source.capabilities_set()?, self.target.capabilities_set()?];
        let is_on = |set: &[String], name: &str| set.iter().any(|other| other == name);
        let throttle = if self.throttle() == Throttle::DirtyLimit { "dirty-limit" } else { "auto-converge" };
        let begun_with = Allowed {
            throttle: is_on(&set[0], throttle),
            postcopy: set.iter().all(|set| is_on(set, "postcopy-ram")),
        };
        Ok(self.core.deeds_left(begun_with))
    }

    /// The disks that are on their way, too, by what is at work and not by what was asked for this time.
    fn find_mirrors(&mut self, from: &Machine, to: &Machine) -> Result<(), Ending> {
        let mut obstacles = Vec::new();
        let pairs = self.pairs_of(from, to, &mut obstacles);
        match (self.source.has_mirrors()?, &self.options.disks) {
            (true, DisksBy::Shared { .. }) => Err(Ending::Failed(unclear(MIRRORS))),
            (_, DisksBy::Shared { .. }) => Ok(()),
            (_, DisksBy::Mirror(_)) => {
                self.mirrors = if pairs.is_empty() { Mirrors::None } else { Mirrors::Begun };
                self.pairs = pairs;
                Ok(())
            }
        }
    }

    /// Ends what an earlier run made for a move that is over; gives its marks on the source and on the target.
    pub(super) fn clear_leftovers(&mut self) -> Result<[Vec<String>; 2], QemuError> {
        if self.pairs.is_empty() && self.source.has_mirrors()? {
            return Err(unclear(MIRRORS));
        }
        if !self.pairs.is_empty() {
            self.source.drop_mirrors(&self.pairs, super::MIRROR_END_TIME_MAX)?;
        }
        let there = self.target.clear()?;
        Ok([self.source.clear()?, there])
    }
}

/// What an earlier run was told and this one was not.
const MIRRORS: &str =
    "an earlier run mirrors the guest's disks into the target's: say --disks mirror, as it was said then";

/// What was found, and what is done about it.
pub(super) fn words(found: &Found) -> &'static str {
    match found {
        Found::Nothing => "no earlier move is there",
        Found::Sending => "a move is under way: it is watched to its end; Ctrl-C cancels it",
        Found::Ahead => "the guest is in post-copy at the target: the rest of its memory is watched",
        Found::Broken => "the guest is in post-copy at the target and the line broke: it is made anew",
        Found::Arrived => {
            "all of the guest is at the target and paused, the source has ended it: it is started there"
        }
        Found::Moved => "the guest has moved already",
        Found::Unclear(unclear) => unclear.words().0,
    }
}
