//! A move by QEMU's monitors from its begin to its end. One that an earlier run began and did not see to its end is taken over: QEMU
//! goes on by itself, up to the moment in which the guest is to be started, or its disks handed over: then it waits.

use drover_live::{
    Allowed, Compression, Deed, Follow, Found, Half, Machine, Moved, Passage, Sample, Settled, Side,
    Throttle, Where, found,
};

use super::arrive::is_to_be_started;
use super::memory::LOOK_AT;
use super::settle::{CANCELS, LOOK_AGAIN_TIME_MAX};
use super::{DisksBy, Ending, LiveError, Mirrors, Move, SETTLE_TIME_MAX};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::carried::Carried;
use crate::live::core::{Adapter, Lifecycle, Plan};
use crate::live::guest::Guest;
use crate::live::mark::{are_ends, new_mark, unclear};
use crate::live::turn::{Dated, PAUSE, in_turn};

/// What both sides say of an earlier move.
pub(super) fn find(source: &mut Guest, target: &mut Guest) -> Result<Found, QemuError> {
    // The source first: what it has sent by then the target has, or is about to.
    let (here, marks_here) = source.stand_and_marks()?;
    let (there, marks_there) = target.stand_and_marks()?;
    Ok(found(&here, &there, are_ends(&marks_here, &marks_there)))
}

impl<'a> Lifecycle<'a> for Move<'a> {
    /// Before its turn nothing has to be asked that cannot be answered.
    fn wait_for_link(&self) {
        let Some(turn) = &self.core.wanted.turn else { return };
        while self.is_link_away() && !self.core.is_stopped() && turn.is_to_come(PAUSE) {}
    }

    fn find(&mut self) -> Result<Found, QemuError> {
        find(self.source, self.target)
    }

    fn sent(&mut self) -> Result<Sample, QemuError> {
        Ok(self.source.sample(self.core.began)?.sample)
    }

    /// The guest is at the source, unless that ended meanwhile.
    fn unsent(&mut self, cause: Ending) -> LiveError {
        let answers = match self.source.status() {
            Err(error) if error.is_of_connection() => self.source.connect_again_within(LOOK_AGAIN_TIME_MAX),
            other => other.map(drop),
        };
        let guest_at = match answers {
            Ok(()) => Where::Source,
            // Nobody listens there any more.
            Err(error) if error.kind == QemuErrorKind::NotFound => Where::Ended,
            Err(_) => Where::Unknown,
        };
        LiveError { cause, guest_at }
    }

    /// What it may send of a budget is known in its turn.
    fn look_in_turn(&mut self) -> Result<Dated<Plan>, Ending> {
        let facts = self.looked()?;
        let turn = self.core.wanted.turn.as_ref().filter(|_| self.core.wanted.share.is_some());
        let stop = self.core.stop;
        let facts = in_turn(turn, facts, stop, || self.inspect_again())?;
        facts.map(|facts| self.plan(&facts))
    }

    fn go(&mut self, plan: Dated<Plan>) -> Result<Moved, Ending> {
        let [here, there] = self.clear_leftovers()?;
        let mark = new_mark()?;
        self.target.mark(&mark, &there)?;
        self.source.mark(&mark, &here)?;
        self.make_credentials()?;
        self.set(plan.what.channels())?;
        let Plan { choice, facts } = self.plan_in_turn(plan)?;
        let Some(course) = &choice.course else { return Err(Ending::Promise(Box::new(choice))) };
        self.core.state.outlook.begins(&choice, &facts);
        self.mirror()?;
        // Disks take long, and somebody may have begun a job on them meanwhile.
        self.halt_if_job_began()?;
        // It is stopped, so that it starts the guest when drover says so, not when it thinks that all is there: the source might
        // think otherwise and go on, too.
        let waits = self.target.wait_for_guest(&self.options.uri, SETTLE_TIME_MAX);
        let uri = waits.map_err(|error| self.with_rdma(Side::Target, error))?;
        let over = Carried::of_data(self.core.carried()).map(|(by, _)| by.site().to_string());
        self.note(match over {
            None => format!("memory goes to {uri}{}", self.openly(&uri)),
            Some(site) => format!("memory goes over the link to {site}, {uri} there"),
        });
        self.core.halt_if_stopped()?;
        self.see_whether_it_runs()?;
        self.source.mark_paused(!self.core.state.was_running)?;
        // What QEMU packs it counts as packed, which is not what the line carries.
        let memory = &self.options.memory;
        let is_packed = memory.compression != Compression::None || memory.xbzrle_bytes.is_some();
        let ease = self.core.easing(&facts).filter(|_| !is_packed);
        self.core.begins(Follow::new(self.core.promise(), course, ease));
        self.core.state.passage = Passage::sent();
        let to = self.goes_to(&uri).to_string();
        if let Err(error) = self.source.send_to(&to) {
            // What QEMU refuses it does not begin; without an answer nobody knows.
            if error.is_refusal() {
                self.core.state.passage = Passage::default();
            }
            return Err(self.with_rdma(Side::Source, error).into());
        }
        if course.at_once == Some(Deed::Throttle) {
            self.slow_down(choice.facts.rate.likely)?;
        }
        self.follow()
    }

    fn prepare(&mut self, found: &Found) -> Result<(), Ending> {
        self.core.state.was_running = !self.source.is_marked_paused()?;
        // The first run withdraws its offer when it starts the guest.
        self.is_offered = self.target.offers_disks()?;
        if *found != Found::Sending {
            return Ok(());
        }
        let (here, there) = (self.source.look()?, self.target.look()?);
        self.can = [here.can, there.can];
        self.core.state.was_running &= here.machine.status != "paused" || self.source.is_marked_stopped()?;
        self.machine = here.machine.clone();
        self.find_mirrors(&here.machine, &there.machine)
    }

    fn take_over(&mut self, found: &Found) -> Result<Moved, Ending> {
        self.core.begins(Follow::of_earlier(self.core.promise(), &[]));
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
                if self.core.state.was_running && self.source.is_marked_stopped()? {
                    self.core.state.passage.send_ahead();
                }
                let deeds =
                    if self.core.state.passage.goes_ahead() { Vec::new() } else { self.deeds_left()? };
                self.core.begins(Follow::of_earlier(self.core.promise(), &deeds));
                self.follow()
            }
            Found::Ahead | Found::Broken => {
                // The first run may have been killed before it started the guest there.
                let waits = is_to_be_started(&self.target.status().unwrap_or_default());
                self.core.state.passage = Passage::ahead(waits);
                self.follow()
            }
            Found::Arrived | Found::Moved => {
                let last = self.source.sample(self.core.began)?;
                self.arrived(last, self.patience())
            }
            Found::Nothing | Found::Unclear(_) => unreachable!("nothing is taken over"),
        }
    }

    fn settle(&mut self, cause: Ending) -> Result<Moved, LiveError> {
        self.core.rests();
        if !self.core.state.passage.has_sent() {
            if matches!(cause, Ending::Stopped) && self.mirrors != Mirrors::None {
                self.note(CANCELS);
            }
            self.clean_up();
            return Err(self.unsent(cause));
        }
        if self.core.lost.is_some() {
            self.clean_up();
            return Err(LiveError {
                cause,
                guest_at: Where::Lost { had_leave: self.core.state.passage.has_leave() },
            });
        }
        // Where nothing is under way there is nothing to cancel.
        if self.core.state.passage.may_be_cancelled() {
            if matches!(cause, Ending::Stopped) {
                self.note(CANCELS);
            }
            let _ = self.source.order("migrate_cancel");
        }
        let told = self.wait_for_end();
        let guest_at = match (self.core.state.passage.settled(told.as_ref()), told) {
            (Settled::AllSent, Some(told)) => return self.has_moved(cause, told),
            (Settled::GivenUp { .. }, _) if self.do_both_run() => Where::Both,
            (Settled::GivenUp { is_ahead: true }, Some(told)) => match self.last_word() {
                // Only its word was lost.
                Half::Done => return self.has_moved(cause, told),
                // Part of what was sent is nowhere any more.
                Half::Paused | Half::Gone => Where::Lost { had_leave: true },
                Half::Active | Half::Recovering | Half::Silent => Where::Unknown,
            },
            (Settled::GivenUp { .. }, _) => Where::Unknown,
            (Settled::Back, _) if self.source_runs_again() => Where::Source,
            (Settled::Back, _) => Where::Unknown,
            (Settled::FollowOn, _) => match self.follow() {
                Ok(moved) => return Ok(moved),
                Err(_) if self.core.lost.is_some() => {
                    Where::Lost { had_leave: self.core.state.passage.has_leave() }
                }
                Err(_) => Where::Between,
            },
            (Settled::At(guest_at), _) => guest_at,
            (Settled::Silent | Settled::AllSent, _) => self.without_source(),
        };
        self.clean_up();
        if guest_at == Where::Source {
            self.warn_of_copy();
        }
        Err(LiveError { cause, guest_at })
    }

    /// The side that has the guest is set as it was before, so that the next move of it, whoever makes it, is not made as this
    /// one. Where the guest is on neither for sure, nothing is touched.
    fn put_back(&mut self, ended: &Result<Moved, LiveError>) {
        let (side, done) = match ended {
            Ok(_) => (Side::Target, self.put_target_back()),
            Err(LiveError { guest_at: Where::Source, .. }) => (Side::Source, self.put_source_back()),
            Err(_) => return,
        };
        if let Err(error) = done {
            self.note(format!(
                "what was set for this move stays set where the guest is, at the {side} ({LOOK_AT} tell): {}",
                error.chain()
            ));
        }
    }
}

impl Move<'_> {
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
