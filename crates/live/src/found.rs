//! What an earlier run left behind: two monitors, or two daemons of libvirt ([`crate::domain_found`]), say where they stand, and it
//! follows what may be done.
//!
//! A guest may be started at the target only if the source has ended it for good: all was sent, it was not started there
//! again, and both sides carry the same mark, so that they are the two ends of one move.

use crate::domain::DomainUnclear;
use crate::watch::Phase;

/// How one side stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// Of the machine: `running`, `paused`, `postmigrate`, `inmigrate`, in QEMU's words.
    pub status: String,
    /// Of the move: `none`, `active`, `completed`, in QEMU's words.
    pub migration: String,
}

impl Stand {
    fn is_live(&self) -> bool {
        self.status == "running"
    }

    /// A whole guest has come and was not started.
    fn holds_guest(&self) -> bool {
        matches!(self.status.as_str(), "paused" | "prelaunch") && self.migration == "completed"
    }

    fn still_comes(&self) -> bool {
        matches!(self.status.as_str(), "inmigrate" | "restore-vm" | "finish-migrate")
            && self.migration != "none"
    }

    /// The guest came ahead of its memory, and the line broke.
    fn lacks_memory(&self) -> bool {
        Phase::of(&self.migration) == Phase::Broken
    }

    /// It waits, and nothing has come to it.
    fn waits_afresh(&self) -> bool {
        self.status == "inmigrate" && matches!(self.migration.as_str(), "none" | "setup")
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No move that concerns both: the guest is at the source, and one may begin.
    Nothing,
    /// A move between both is under way: it can be watched to its end, or cancelled.
    Sending,
    /// The same, after the guest was let go ahead: it can only be watched.
    Ahead,
    /// The guest went ahead and the line broke.
    Broken,
    /// All of it is at the target, or about to be; the source has ended it. It is to be started there.
    Arrived,
    /// It is at the target, the source has ended it or let it go.
    Moved,
    /// Nothing may be done by itself.
    Unclear(Unclear),
}

/// Why nothing may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// Both say that they run it.
    BothRun,
    /// The source sent everything, and was started again.
    StartedAgain,
    /// The source has the guest, and the target a whole copy, standing still.
    Copy,
    /// The source sent everything, but this target does not have it.
    Elsewhere,
    /// A move is under way at the source, and this target is not its end.
    OtherMove,
    /// The guest went ahead, and the source gave the move up when it had sent everything, of which part was lost.
    Lost,
    /// Two daemons of libvirt say so.
    Domain(DomainUnclear),
}

impl Found {
    /// What was found, and what is done about it.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
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
}

impl Unclear {
    /// What it is, and what to do.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Unclear::BothRun => (
                "both sides run the guest of one move",
                "stop one of them at once (`stop` at its monitor) and look at what each has written",
            ),
            Unclear::StartedAgain => (
                "the source sent everything and was started again afterwards",
                "end the target's QEMU, it must not be started; then move again to a new one",
            ),
            Unclear::Copy => (
                "the target holds a copy of the guest, from a move that was cancelled in its last moment",
                "end the target's QEMU, it must not be started; then move again to a new one",
            ),
            Unclear::Elsewhere => (
                "the source sent everything and has ended the guest, and this target does not have it",
                "find the QEMU that it went to and give its monitor with --to; only if that QEMU ended and never ran the \
                 guest, say `cont` at the source's monitor",
            ),
            Unclear::OtherMove => (
                "a move is under way at the source that this target is not the end of, or that drover did not begin",
                "give the monitor of its target with --to, or wait for its end, or cancel it (`migrate_cancel`)",
            ),
            Unclear::Lost => (
                "the line broke in post-copy after the source had sent everything, and the target has not all of it",
                "end both QEMUs, start the guest at neither, and start it anew from its disks, like after a power cut",
            ),
            Unclear::Domain(why) => why.words(),
        }
    }
}

/// What follows from how both stand. `are_ends` says that both carry the mark of one move of drover's.
pub fn found(source: &Stand, target: &Stand, are_ends: bool) -> Found {
    if source.is_live() && target.is_live() && are_ends && !is_ahead(source) {
        return Found::Unclear(Unclear::BothRun);
    }
    if source.migration == "none" {
        return Found::Nothing;
    }
    match Phase::of(&source.migration) {
        Phase::Done => sent(source, target, are_ends),
        Phase::Failed if are_ends && target.lacks_memory() => Found::Unclear(Unclear::Lost),
        Phase::Failed if are_ends && target.holds_guest() => Found::Unclear(Unclear::Copy),
        Phase::Failed => Found::Nothing,
        Phase::Setup | Phase::Precopy | Phase::Switchover | Phase::PostCopy | Phase::Broken if !are_ends => {
            Found::Unclear(Unclear::OtherMove)
        }
        Phase::Setup | Phase::Precopy | Phase::Switchover => Found::Sending,
        Phase::PostCopy => Found::Ahead,
        Phase::Broken => Found::Broken,
    }
}

fn is_ahead(source: &Stand) -> bool {
    matches!(Phase::of(&source.migration), Phase::PostCopy | Phase::Broken)
}

/// The source says that all was sent.
fn sent(source: &Stand, target: &Stand, are_ends: bool) -> Found {
    // What ended there stays so until somebody starts it; then it is no more what was sent.
    let has_ended = source.status == "postmigrate";
    match (has_ended, are_ends) {
        // It came to the source by a move, which is what the source tells of; the new one was killed before it sent.
        (false, true) if target.waits_afresh() => Found::Nothing,
        (false, true) => Found::Unclear(Unclear::StartedAgain),
        // It came back one day, or was never here: what it sent then is of no concern.
        (false, false) => Found::Nothing,
        (true, false) => Found::Unclear(Unclear::Elsewhere),
        (true, true) if target.holds_guest() || target.still_comes() => Found::Arrived,
        (true, true) if target.status == "inmigrate" => Found::Unclear(Unclear::Elsewhere),
        // It was started, whatever became of it since.
        (true, true) => Found::Moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(status: &str, migration: &str) -> Stand {
        Stand { status: status.into(), migration: migration.into() }
    }

    const STATUSES: [&str; 8] = [
        "running",
        "paused",
        "prelaunch",
        "postmigrate",
        "inmigrate",
        "finish-migrate",
        "shutdown",
        "new-word",
    ];
    const MIGRATIONS: [&str; 13] = [
        "none",
        "setup",
        "active",
        "pre-switchover",
        "device",
        "cancelling",
        "cancelled",
        "failed",
        "failing",
        "completed",
        "postcopy-active",
        "postcopy-paused",
        "postcopy-recover",
    ];

    #[test]
    fn nothing_is_started_unless_the_source_has_ended_it_and_both_are_ends_of_one_move() {
        for (status, migration) in STATUSES.iter().flat_map(|one| MIGRATIONS.map(|other| (*one, other))) {
            let source = stand(status, migration);
            for (status, migration) in STATUSES.iter().flat_map(|one| MIGRATIONS.map(|other| (*one, other))) {
                let target = stand(status, migration);
                for are_ends in [true, false] {
                    let found = found(&source, &target, are_ends);
                    if found == Found::Arrived {
                        let has_ended = source == stand("postmigrate", "completed");
                        assert!(has_ended && are_ends && status != "running", "{source:?} {target:?}");
                    }
                    if source.is_live() && target.is_live() && are_ends && !is_ahead(&source) {
                        assert_eq!(found, Found::Unclear(Unclear::BothRun));
                    }
                    if found == Found::Moved {
                        assert!(!source.is_live(), "{source:?} {target:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_killed_run_leaves() {
        let waits = stand("inmigrate", "none");
        let comes = stand("inmigrate", "active");
        let holds = stand("paused", "completed");
        let ended = stand("postmigrate", "completed");
        assert_eq!(found(&stand("running", "none"), &waits, false), Found::Nothing);
        assert_eq!(found(&stand("running", "failed"), &waits, false), Found::Nothing);
        assert_eq!(found(&stand("running", "active"), &comes, true), Found::Sending);
        assert_eq!(found(&stand("finish-migrate", "pre-switchover"), &comes, true), Found::Sending);
        assert_eq!(found(&ended, &holds, true), Found::Arrived);
        assert_eq!(found(&ended, &comes, true), Found::Arrived);
        assert_eq!(found(&ended, &stand("running", "completed"), true), Found::Moved);
        assert_eq!(
            found(&stand("finish-migrate", "postcopy-active"), &stand("running", "active"), true),
            Found::Ahead
        );
        assert_eq!(
            found(&stand("paused", "postcopy-paused"), &stand("running", "active"), true),
            Found::Broken
        );
    }

    #[test]
    fn a_guest_that_came_by_a_move_may_move_on() {
        // What QEMU tells of a move until it begins one itself is how the guest came to it.
        for came in [stand("running", "completed"), stand("paused", "completed")] {
            for waits in [stand("inmigrate", "none"), stand("inmigrate", "setup")] {
                assert_eq!(found(&came, &waits, true), Found::Nothing, "killed before it sent");
                assert_eq!(found(&came, &waits, false), Found::Nothing);
            }
        }
    }

    #[test]
    fn what_is_unclear_is_said() {
        let unclear = |source, target, are_ends| match found(&source, &target, are_ends) {
            Found::Unclear(unclear) => unclear,
            other => panic!("{other:?}"),
        };
        let holds = stand("paused", "completed");
        assert_eq!(unclear(stand("running", "completed"), holds.clone(), true), Unclear::StartedAgain);
        assert_eq!(unclear(stand("running", "cancelled"), holds.clone(), true), Unclear::Copy);
        assert_eq!(
            unclear(stand("paused", "failed"), stand("running", "postcopy-paused"), true),
            Unclear::Lost
        );
        assert_eq!(unclear(stand("postmigrate", "completed"), holds.clone(), false), Unclear::Elsewhere);
        assert_eq!(
            unclear(stand("postmigrate", "completed"), stand("inmigrate", "none"), true),
            Unclear::Elsewhere
        );
        assert_eq!(
            unclear(stand("running", "active"), stand("inmigrate", "none"), false),
            Unclear::OtherMove
        );
        assert_eq!(
            unclear(stand("running", "completed"), stand("running", "completed"), true),
            Unclear::BothRun
        );
    }
}
