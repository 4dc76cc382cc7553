//! How far a guest is on its way from one QEMU to another, and what is done at each point of it.
//!
//! ```text
//! unsent ── sent ──┬── (disks handed over) ── all sent ── leave to run ── runs at the target
//!                  └── sent ahead ── the source is in post-copy ── leave to run ── its memory follows
//! ```
//!
//! The guest has leave to run at the target only once the source has ended it; from then on nobody calls it back.

use crate::place::Where;
use crate::told::Told;
use crate::watch::Phase;

/// How far a guest is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    stage: Stage,
    /// Its disks were handed over and the source was told to go on, which it may take a while to do.
    has_handed_over: bool,
    /// The target was given leave to run it.
    has_leave: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Nothing of its memory was sent. What the source says of a move is of an earlier one, perhaps of that by which the guest came to it.
    #[default]
    Unsent,
    /// The source was told to send it.
    Sent,
    /// It was sent ahead of its memory, and stands still until the target has leave to run it.
    SentAhead,
    /// The same, and post-copy is on: the source has ended it.
    WaitsAhead,
    /// It runs at the target, and the rest of its memory follows.
    Ahead,
}

/// What is to be done after a look at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Memory is on its way: it is followed.
    Follow,
    /// The guest stands still to be handed over: nothing is to be done.
    Wait,
    /// The guest stands still, and all but the last of its memory is sent: its disks are handed over, and the source goes on.
    HandOver,
    /// The source has ended a guest that was sent ahead: the target starts it once it has what that takes.
    LetGo,
    /// The rest of its memory is seen after it.
    SeeAfter,
    /// All is sent: the target is asked for the guest.
    Arrive,
    /// The source says that it failed.
    Fail,
}

/// What is to be done when the source has ended a move that did not come through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was all sent before it could be stopped: the target is asked for the guest.
    AllSent,
    /// The source has the guest again, which had no leave to run at the target: it is to run there.
    Back,
    /// The source gave the move up after the guest had leave to run: both sides are looked at, and then the target's word counts.
    GivenUp {
        /// It went ahead of its memory.
        is_ahead: bool,
    },
    /// It went ahead before it could be cancelled, and nobody runs it yet: it is followed on.
    FollowOn,
    /// There, as far as can be told.
    At(Where),
    /// The source says nothing any more: the target is looked at.
    Silent,
}

impl Passage {
    /// The source was told to send it.
    #[must_use]
    pub fn sent() -> Passage {
        Passage { stage: Stage::Sent, ..Passage::default() }
    }

    /// An earlier run sent it ahead; whether it waits at the target to be started.
    #[must_use]
    pub fn ahead(waits: bool) -> Passage {
        let stage = if waits { Stage::WaitsAhead } else { Stage::Ahead };
        Passage { stage, has_leave: true, has_handed_over: false }
    }

    /// It is sent ahead of its memory.
    pub fn send_ahead(&mut self) {
        self.stage = Stage::SentAhead;
    }

    /// Post-copy is on.
    pub fn is_in_postcopy(&mut self) {
        self.stage = if self.goes_ahead() { Stage::WaitsAhead } else { Stage::Ahead };
    }

    /// It runs at the target, in post-copy.
    pub fn runs_ahead(&mut self) {
        self.stage = Stage::Ahead;
    }

    /// Its disks are handed over, and the source was told to go on.
    pub fn hand_over(&mut self) {
        self.has_handed_over = true;
    }

    /// The target is given leave to run it. Said before the order: that its answer is lost does not mean that it was not carried out.
    pub fn give_leave(&mut self) {
        self.has_leave = true;
    }

    /// Something of its memory may have been sent.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.stage > Stage::Unsent
    }

    /// The target was given leave to run it.
    #[must_use]
    pub fn has_leave(&self) -> bool {
        self.has_leave
    }

    /// It goes ahead in post-copy, and does not run at the target yet.
    #[must_use]
    pub fn goes_ahead(&self) -> bool {
        matches!(self.stage, Stage::SentAhead | Stage::WaitsAhead)
    }

    /// The source was seen in post-copy, or beyond: it has ended the guest.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.stage >= Stage::WaitsAhead
    }

    /// Whether the guest may be given leave before the target was looked at, as the source says that all was sent.
    #[must_use]
    pub fn may_go_unseen(&self) -> bool {
        self.has_sent() && !self.has_leave && !self.is_ahead()
    }

    /// Whether the move may be cancelled. A guest that went ahead is not called back: QEMU before 10.0 would try, and lose it.
    #[must_use]
    pub fn may_be_cancelled(&self) -> bool {
        !self.has_leave && !self.is_ahead()
    }

    /// Whether the guest goes on at the source as if nothing had been, if the move is given up now.
    #[must_use]
    pub fn can_be_called_back(&self, told: &Told) -> bool {
        match told.sample.phase {
            Phase::Setup | Phase::Precopy => !self.goes_ahead(),
            Phase::Switchover => self.act(told) == Act::HandOver,
            Phase::PostCopy | Phase::Broken | Phase::Done | Phase::Failed => false,
        }
    }

    /// What is to be done after a look at the source.
    #[must_use]
    pub fn act(&self, told: &Told) -> Act {
        match told.sample.phase {
            Phase::Setup | Phase::Precopy => Act::Follow,
            Phase::Switchover if told.status == "pre-switchover" && !self.has_handed_over => Act::HandOver,
            Phase::Switchover => Act::Wait,
            Phase::PostCopy if self.goes_ahead() => Act::LetGo,
            Phase::PostCopy | Phase::Broken => Act::SeeAfter,
            Phase::Done => Act::Arrive,
            Phase::Failed => Act::Fail,
        }
    }

    /// What is to be done when the source has ended a move that did not come through, and said this last; nothing where it says
    /// nothing any more.
    #[must_use]
    pub fn settled(&self, told: Option<&Told>) -> Settled {
        let Some(told) = told else { return Settled::Silent };
        let is_ahead = self.is_ahead();
        match told.sample.phase {
            Phase::Done => Settled::AllSent,
            Phase::Failed if self.has_leave => Settled::GivenUp { is_ahead },
            Phase::Failed => Settled::Back,
            Phase::Setup if told.status == "none" && self.has_leave => Settled::GivenUp { is_ahead: false },
            Phase::Setup if told.status == "none" => Settled::Back,
            Phase::PostCopy if self.goes_ahead() && !self.has_leave => Settled::FollowOn,
            Phase::PostCopy | Phase::Broken => Settled::At(Where::Between),
            Phase::Setup | Phase::Precopy | Phase::Switchover => Settled::At(Where::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Sample;

    const STATUSES: [&str; 12] = [
        "none",
        "setup",
        "active",
        "pre-switchover",
        "device",
        "postcopy-active",
        "postcopy-paused",
        "postcopy-recover",
        "completed",
        "cancelling",
        "cancelled",
        "failed",
    ];

    fn told(status: &str) -> Told {
        let sample = Sample { phase: Phase::of(status), ..Sample::default() };
        Told { sample, status: status.into(), ..Told::default() }
    }

    /// Each point at which a guest can be.
    fn all() -> Vec<Passage> {
        let stages = [Stage::Unsent, Stage::Sent, Stage::SentAhead, Stage::WaitsAhead, Stage::Ahead];
        let flags = [(false, false), (false, true), (true, false), (true, true)];
        let each =
            |stage| flags.map(|(has_handed_over, has_leave)| Passage { stage, has_handed_over, has_leave });
        stages.into_iter().flat_map(each).collect()
    }

    #[test]
    fn a_guest_that_had_leave_is_never_started_at_the_source_nor_called_back() {
        for passage in all() {
            for status in STATUSES {
                let settled = passage.settled(Some(&told(status)));
                assert!(settled != Settled::Back || !passage.has_leave, "{passage:?} {status}");
            }
            assert_eq!(passage.settled(None), Settled::Silent);
        }
    }

    #[test]
    fn a_guest_in_postcopy_has_leave_only_from_a_source_that_has_ended_it() {
        for passage in all() {
            for status in STATUSES {
                let told = told(status);
                let is_postcopy = told.sample.phase == Phase::PostCopy;
                if passage.act(&told) == Act::LetGo {
                    assert!(is_postcopy && passage.goes_ahead(), "{passage:?} {status}");
                }
                let follows = passage.settled(Some(&told)) == Settled::FollowOn;
                assert!(!follows || (is_postcopy && !passage.has_leave), "{passage:?} {status}");
            }
        }
    }

    #[test]
    fn a_guest_goes_its_way_step_by_step() {
        let mut passage = Passage::default();
        assert!(!passage.has_sent() && !passage.may_go_unseen());
        passage = Passage::sent();
        assert!(passage.has_sent() && passage.may_go_unseen());
        assert_eq!(passage.act(&told("active")), Act::Follow);
        assert!(passage.can_be_called_back(&told("pre-switchover")));
        assert_eq!(passage.act(&told("pre-switchover")), Act::HandOver);
        passage.hand_over();
        assert_eq!(passage.act(&told("pre-switchover")), Act::Wait);
        assert!(!passage.can_be_called_back(&told("pre-switchover")), "its disks are the target's");
        assert_eq!(passage.act(&told("completed")), Act::Arrive);
        passage.give_leave();
        assert!(!passage.may_go_unseen() && !passage.may_be_cancelled());
        assert_eq!(passage.settled(Some(&told("failed"))), Settled::GivenUp { is_ahead: false });
    }

    #[test]
    fn a_guest_goes_ahead_step_by_step() {
        let mut passage = Passage::sent();
        passage.send_ahead();
        assert!(passage.goes_ahead() && !passage.is_ahead() && passage.may_be_cancelled());
        assert!(!passage.can_be_called_back(&told("active")), "drover has stopped it");
        assert_eq!(passage.settled(Some(&told("cancelled"))), Settled::Back);
        assert_eq!(passage.act(&told("postcopy-active")), Act::LetGo);
        passage.is_in_postcopy();
        assert!(passage.goes_ahead() && passage.is_ahead() && !passage.may_be_cancelled());
        assert_eq!(passage.settled(Some(&told("postcopy-active"))), Settled::FollowOn);
        passage.give_leave();
        passage.runs_ahead();
        assert_eq!(passage.act(&told("postcopy-active")), Act::SeeAfter);
        assert_eq!(passage.settled(Some(&told("postcopy-paused"))), Settled::At(Where::Between));
        assert_eq!(passage.settled(Some(&told("failed"))), Settled::GivenUp { is_ahead: true });
        assert_eq!(Passage::ahead(false).act(&told("postcopy-active")), Act::SeeAfter);
        assert_eq!(Passage::ahead(true).act(&told("postcopy-active")), Act::LetGo);
    }
}
