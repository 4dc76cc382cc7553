//! Moves on a virtual clock: ten looks a second, and whatever is to be done is done at once.

use super::*;
use crate::outlook::facts_before;
use crate::recovery::Look;
use crate::settings::RATE_UNLIMITED;
use crate::watch::Cause;

const MB: u64 = 1_000_000;
const MEMORY: u64 = 100 * MB;
const LINE: u64 = 20 * MB;

/// A guest between two hosts.
struct World {
    one: Migration,
    told: Told,
    is_told: bool,
    is_stopped: bool,
    /// Bytes a second that the line carries.
    line: u64,
    /// Of memory, in the next pass.
    written: u64,
    /// How the target stands in post-copy, and the source where that is another than it says.
    target: Half,
    source: Option<Half>,
    overlap: Option<Duration>,
    /// QEMU waits for leave before its switchover.
    waits: bool,
    /// What was to be done, without what is the same in each look.
    done: Vec<Action>,
}

impl World {
    fn new(allowed: Allowed, downtime_ms: u64) -> World {
        let downtime_max = Duration::from_millis(downtime_ms);
        let promise = Promise { downtime_max, deadline: Duration::from_secs(3600) };
        let mut one = Migration::new(promise, allowed, None);
        let facts = facts_before(MEMORY, Some(0.0), Estimate::default());
        let choice = one.outlook.choose(&facts, 1);
        one.outlook.begins(&choice, &facts);
        one.follow = Follow::new(promise, choice.course.as_ref().unwrap(), None);
        one.passage = Passage::sent();
        let sample = Sample { passes: 1, left_bytes: MEMORY, ..Sample::default() };
        let mut world = World {
            one,
            told: Told { sample, ..Told::default() },
            is_told: true,
            is_stopped: false,
            line: LINE,
            written: 0,
            target: Half::Active,
            source: None,
            overlap: None,
            waits: false,
            done: Vec::new(),
        };
        world.is_in("active");
        world
    }

    fn is_in(&mut self, status: &str) {
        (self.told.status, self.told.sample.phase) = (status.into(), Phase::of(status));
    }

    /// One look, and what comes of it; whether it goes on.
    fn look(&mut self) -> bool {
        let seen = Seen {
            told: &self.told.clone(),
            is_told: self.is_told,
            is_up: true,
            rate_max: RATE_UNLIMITED,
            late: Duration::ZERO,
            is_stopped: self.is_stopped,
            overlap: self.overlap,
        };
        let mut actions = self.one.see(&seen);
        if actions.contains(&Action::SeeAfter) {
            let Sample { at_ms, sent_bytes, left_bytes, .. } = self.told.sample;
            let source = self.source.unwrap_or(Half::of(&self.told.status));
            let (target, is_stopped) = (self.target, self.is_stopped);
            let look = Look { at_ms, source, target, sent_bytes, left_bytes, is_away: false, is_stopped };
            actions.extend(self.one.ahead.see(look, None));
        }
        for action in actions {
            self.carry_out(&action);
            let is_usual = matches!(action, Action::Attend | Action::KeepShare | Action::KeepInStep);
            let is_known =
                matches!(action, Action::SeeAfter | Action::Tell(Event::Memory(_) | Event::Chosen(_)));
            let is_last = matches!(action, Action::Arrive | Action::End(_));
            if !is_usual && !is_known {
                self.done.push(action);
            }
            if is_last {
                return false;
            }
        }
        self.one.pause(&self.told.sample);
        true
    }

    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::SendAhead => {
                self.one.passage.send_ahead();
                self.is_in("postcopy-active");
            }
            Action::LetGo => {
                self.one.passage.give_leave();
                self.one.passage.runs_ahead();
            }
            Action::HandOver => {
                self.one.passage.hand_over();
                self.is_in("device");
            }
            _ => {}
        }
    }

    fn passes(&mut self, ms: u64) {
        let sample = &mut self.told.sample;
        sample.at_ms += ms;
        if !matches!(sample.phase, Phase::Precopy | Phase::PostCopy) {
            return;
        }
        let sent = (self.line * ms / 1000).min(sample.left_bytes);
        sample.sent_bytes += sent;
        sample.gone_bytes += sent;
        sample.left_bytes -= sent;
        let is_ahead = sample.phase == Phase::PostCopy;
        if sample.left_bytes == 0 && (is_ahead || self.written == 0) {
            self.is_in(if is_ahead {
                "completed"
            } else if self.waits {
                "pre-switchover"
            } else {
                "device"
            });
        } else if sample.left_bytes == 0 {
            sample.passes += 1;
            (sample.left_bytes, sample.dirty_bytes_per_s) = (self.written, self.written);
        }
    }

    /// Goes on for so many seconds, or to its end; what came last.
    fn goes_on(&mut self, seconds: u64) -> Option<&Action> {
        let until_ms = self.told.sample.at_ms + seconds * 1000;
        while self.look() && self.told.sample.at_ms < until_ms {
            self.passes(100);
        }
        self.done.last()
    }

    fn did(&self) -> Vec<Deed> {
        self.one.deeds.iter().map(|(deed, _)| *deed).collect()
    }
}

fn usual() -> World {
    World::new(Allowed::default(), 300)
}

fn failed(action: Option<&Action>) -> &str {
    let Some(Action::End(Halt::Failed(why))) = action else { panic!("{action:?}") };
    why
}

/// A guest that runs at the target, the rest of whose memory follows.
fn ahead() -> World {
    let mut world = World::new(Allowed { postcopy: true, ..Allowed::default() }, 300);
    (world.written, world.line) = (MEMORY, LINE);
    while world.told.status != "postcopy-active" {
        assert!(world.look());
        world.passes(100);
    }
    assert!(world.look() && world.look());
    world.done.clear();
    world
}

#[test]
fn a_guest_that_is_written_to_as_fast_as_it_is_sent_is_given_up_where_nothing_is_allowed() {
    let mut world = usual();
    world.written = MEMORY;
    assert!(matches!(world.goes_on(600), Some(Action::End(Halt::GivenUp(_)))));
    assert_eq!(world.did(), [Deed::GiveUp]);
    assert!(world.one.passage.may_be_cancelled() && !world.one.passage.has_leave());
}

#[test]
fn the_same_guest_is_slowed_down_then_sent_ahead_where_that_is_allowed_and_has_leave_once_the_source_ended_it()
 {
    let mut world = World::new(Allowed { throttle: true, postcopy: true }, 300);
    world.written = MEMORY;
    assert_eq!(world.goes_on(600), Some(&Action::Arrive));
    assert_eq!(world.did(), [Deed::Throttle, Deed::PostCopy]);
    let done: Vec<&Action> = world.done.iter().filter(|done| !matches!(done, Action::Tell(_))).collect();
    assert!(
        matches!(done[..], [Action::SlowDown(_), Action::SendAhead, Action::LetGo, Action::Arrive]),
        "{done:?}"
    );
}

#[test]
fn a_guest_that_is_paused_for_longer_than_was_promised_is_called_back_before_it_has_leave() {
    for (downtime_ms, seconds) in [(300, 30), (6000, 60)] {
        let mut world = World::new(Allowed::default(), downtime_ms);
        let why = failed(world.goes_on(600)).to_string();
        assert!(why.contains("paused for too long"), "{why}");
        let paused = world.one.downtime.lasts(world.told.sample.at_ms);
        assert_eq!(paused.as_secs(), seconds, "of {downtime_ms} ms");
        assert!(world.one.passage.may_be_cancelled());
    }
}

#[test]
fn a_guest_that_is_sent_ahead_and_whose_postcopy_does_not_begin_is_called_back() {
    let mut world = World::new(Allowed { postcopy: true, ..Allowed::default() }, 300);
    world.written = MEMORY;
    while !world.done.contains(&Action::SendAhead) {
        assert!(world.look());
        world.passes(100);
    }
    // Paused it writes nothing.
    world.is_in("active");
    (world.written, world.line) = (0, MB);
    assert!(failed(world.goes_on(600)).contains("paused for too long"));
    assert!(world.one.passage.may_be_cancelled());
    // One that its owner paused may be so for as long as it takes.
    let mut world = ahead();
    (world.one.was_running, world.one.passage) = (false, Passage::sent());
    world.one.passage.send_ahead();
    world.is_in("active");
    assert!(world.look());
    assert_eq!(world.one.downtime, Downtime::default());
}

#[test]
fn a_line_on_which_nothing_is_sent_for_long_ends_the_move() {
    let mut world = usual();
    world.line = 0;
    world.told.sample.left_bytes = MEMORY;
    let Some(Action::End(Halt::GivenUp(why))) = world.goes_on(600) else { panic!("{:?}", world.done) };
    assert_eq!(why.cause, Cause::Silence);
}

#[test]
fn disks_are_handed_over_once_and_only_where_qemu_waits_for_it() {
    for waits in [true, false] {
        let mut world = usual();
        world.waits = waits;
        world.goes_on(20);
        let handed = world.done.iter().filter(|done| **done == Action::HandOver).count();
        assert_eq!(handed, usize::from(waits));
    }
}

#[test]
fn who_stops_it_has_the_guest_at_the_source_until_it_is_handed_over_and_at_the_target_after() {
    for status in ["setup", "active"] {
        let mut world = usual();
        world.is_stopped = true;
        world.is_in(status);
        assert_eq!(world.goes_on(1), Some(&Action::End(Halt::Stopped)), "{status}");
    }
    for (status, done) in [
        ("pre-switchover", vec![Action::HandOver]),
        ("device", vec![]),
        ("completed", vec![Action::Tell(Event::Sent), Action::Arrive]),
    ] {
        let mut world = usual();
        world.is_stopped = true;
        world.is_in(status);
        world.look();
        assert_eq!(world.done, done, "{status}");
    }
}

#[test]
fn who_stops_it_in_postcopy_is_told_once_that_it_is_too_late_and_ends_it_only_without_a_line() {
    let mut world = ahead();
    world.is_stopped = true;
    world.goes_on(1);
    assert!(matches!(world.done[..], [Action::Tell(Event::Note(_))]), "{:?}", world.done);
    world.is_in("postcopy-paused");
    world.target = Half::Paused;
    assert_eq!(world.goes_on(600), Some(&Action::End(Halt::Stopped)));
    assert!(world.done.iter().any(|done| matches!(done, Action::TryLine { number: 1, .. })));
    assert!(!world.one.passage.may_be_cancelled());
}

#[test]
fn a_source_that_fails_before_the_switchover_keeps_the_guest_and_its_words_are_told() {
    let mut world = usual();
    world.goes_on(1);
    world.is_in("failed");
    world.told.error = Some("the target has ended".into());
    assert_eq!(failed(world.goes_on(1)), "the target has ended");
    assert!(world.one.passage.may_be_cancelled());
}

#[test]
fn a_side_that_dies_in_postcopy_takes_the_guest_with_it() {
    let mut world = ahead();
    world.target = Half::Gone;
    assert_eq!(world.goes_on(1), Some(&Action::End(Halt::Lost(Side::Target))));
    let mut world = ahead();
    world.source = Some(Half::Gone);
    assert_eq!(world.goes_on(1), Some(&Action::End(Halt::Lost(Side::Source))));
    // With all of its memory it runs without the source.
    let mut world = ahead();
    (world.source, world.target) = (Some(Half::Gone), Half::Done);
    world.line = 0;
    assert_eq!(world.goes_on(10), None);
}

#[test]
fn a_line_that_breaks_in_postcopy_is_made_anew_and_the_guest_arrives() {
    let mut world = ahead();
    world.is_in("postcopy-paused");
    world.target = Half::Paused;
    world.goes_on(1);
    world.is_in("postcopy-active");
    world.target = Half::Active;
    assert_eq!(world.goes_on(600), Some(&Action::Arrive));
    let mended = world.done.iter().filter(|done| matches!(done, Action::Tell(Event::Mending(_)))).count();
    assert_eq!(mended, 2, "it broke, and is back: {:?}", world.done);
}

#[test]
fn the_line_is_for_others_when_all_is_sent_and_over_a_link_once_all_is_on_its_way() {
    let mut world = usual();
    world.goes_on(20);
    assert!(!world.done.contains(&Action::Tell(Event::Sent)));
    let mut world = usual();
    world.overlap = Some(Duration::from_millis(500));
    world.goes_on(20);
    assert_eq!(world.done, [Action::Tell(Event::Sent)], "it is told once");
}

#[test]
fn a_move_of_which_libvirt_tells_nothing_any_more_has_ended_and_what_it_told_last_is_not_told_again() {
    let mut world = usual();
    world.is_told = false;
    world.is_in("completed");
    assert!(!world.look());
    assert_eq!(world.done, [Action::Arrive]);
}
