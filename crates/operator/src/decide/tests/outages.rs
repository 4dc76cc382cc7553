//! Tries that shut a guest down and fail come to an end.

use super::*;
use crate::model::Progress;

impl World {
    /// Its last try shut the guest down, failed and switched it on again, and the next one is due.
    fn fails_after_shutdown(&mut self, exit: u8, reason: &str) {
        self.ends(exit, reason, Some(false));
        self.later(PAUSE_SECONDS_MAX);
    }

    /// Its last try shut the guest down and fails; whether it left it off.
    fn ends(&mut self, exit: u8, reason: &str, left_off: Option<bool>) {
        self.works();
        self.status.worker = Some(WorkerWord {
            epoch: self.status.epoch,
            exit: Some(exit),
            reason: Some(reason.into()),
            message: Some("words".into()),
            outage: true,
            left_off,
            ..WorkerWord::default()
        });
        self.dies(false);
    }

    /// Its worker says that it shuts the guest down, and nothing more.
    fn dies_after_shutdown(&mut self, by_cluster: bool) {
        self.works();
        self.status.worker.as_mut().unwrap().outage = true;
        self.dies(by_cluster);
    }

    /// A worker that only switches the guest on again ends.
    fn switches_on(&mut self, exit: u8) {
        self.works();
        assert_eq!(self.reason("GuestOn"), "SwitchingOn");
        self.status.worker = Some(WorkerWord {
            epoch: self.status.epoch,
            exit: Some(exit),
            reason: Some("SwitchedOn".into()),
            left_off: Some(exit != 0),
            ..WorkerWord::default()
        });
        self.dies(false);
    }

    /// Tries fail and leave the guest off, until none follows.
    fn fails_for_good(&mut self) {
        for round in 1..=OUTAGES_MAX {
            self.ends(7, "Target", Some(true));
            if round < OUTAGES_MAX {
                self.later(PAUSE_SECONDS_MAX);
            }
        }
    }

    fn is_on_again(&self) -> bool {
        self.status.condition("GuestOn").is_some_and(|it| it.status == "True")
    }

    fn wants_slot(&mut self) -> bool {
        self.facts.jobs = self.job.iter().chain(&self.old_jobs).cloned().collect();
        decide(&self.spec, &self.status, &self.facts).wants_slot.is_some()
    }
}

#[test]
fn a_guest_is_not_shut_down_for_ever_whatever_its_tries_fail_of() {
    // What is mended elsewhere, what is not, and a drain.
    for exit in [3, 4, 5, 6, 7, 8, 130] {
        let mut world = World::new();
        world.settle();
        for round in 1..=OUTAGES_MAX {
            assert_eq!(world.status.phase, Phase::Running, "exit {exit}, round {round}");
            // Progress is no reason to stop the guest once more.
            let done_bytes = u64::from(round) * 100;
            world.status.progress = Some(Progress { done_bytes, ..Progress::default() });
            world.fails_after_shutdown(exit, "Reason");
        }
        let made = world.made.len();
        assert_eq!((world.status.phase, made), (Phase::Failed, OUTAGES_MAX as usize), "exit {exit}");
        assert_eq!(world.reason("Arrived"), "TooManyOutages");
        let message = world.status.condition("Arrived").unwrap().message.clone();
        assert!(message.contains("words") && message.contains("drover.dev/retry"), "{message}");
        world.later(100_000);
        assert_eq!(world.made.len(), made, "nobody stops the guest again by himself");
        world.facts.retry = Some("mended".into());
        world.settle();
        assert_eq!((world.made.len(), world.status.outages), (made + 1, 0));
    }
}

#[test]
fn tries_that_leave_the_guest_alone_go_on_between_those_that_do_not() {
    let mut world = World::new();
    world.settle();
    for _ in 1..OUTAGES_MAX {
        world.fails_after_shutdown(7, "Target");
    }
    for _ in 0..20 {
        world.works();
        world.fails(7, "NameTaken");
    }
    assert_eq!((world.status.phase, world.status.outages), (Phase::Running, OUTAGES_MAX - 1));
    world.fails_after_shutdown(7, "Target");
    assert_eq!(world.status.phase, Phase::Failed);
    // It can still be undone.
    world.spec.cancel = true;
    world.settle();
    assert_eq!(world.made.last().unwrap().1, Work::Undo);
}

#[test]
fn one_that_arrived_had_its_outage_for_good() {
    for exit in [0, 13] {
        let mut world = World::new();
        world.settle();
        for _ in 1..OUTAGES_MAX {
            world.fails_after_shutdown(8, "TargetFull");
        }
        world.ends(exit, "Reason", Some(true));
        assert_eq!(world.status.condition("Arrived").unwrap().status, "True", "exit {exit}");
        assert!(world.status.phase != Phase::Failed && !world.status.guest_off && !world.wants_slot());
    }
}

#[test]
fn a_worker_that_never_reached_the_server_ends_nothing() {
    let mut world = World::new();
    world.settle();
    for _ in 0..3 * FAILURES_MAX {
        world.dies(false);
        assert_eq!((world.reason("Arrived").as_str(), world.status.failures), ("WorkerSaidNothing", 0));
        world.later(PAUSE_SECONDS_MAX);
    }
    assert_eq!(world.status.phase, Phase::Running);
}

#[test]
fn one_that_failed_says_that_its_guest_may_be_off() {
    let message = |world: &World| world.status.condition("Arrived").unwrap().message.clone();
    // A worker shut it down, and could not switch it on again.
    let mut world = World::new();
    world.settle();
    world.ends(6, "Source", Some(true));
    world.later(PAUSE_SECONDS_MAX);
    world.works();
    world.fails(3, reason::UNPARSABLE);
    assert_eq!(world.status.phase, Phase::Failed);
    assert!(
        message(&world).contains("guest may be off") && message(&world).contains("words"),
        "{}",
        message(&world)
    );
    // It ended without a word.
    let mut world = World::new();
    world.settle();
    for _ in 0..FAILURES_MAX {
        world.works();
        world.dies(false);
        world.later(PAUSE_SECONDS_MAX);
    }
    assert_eq!(world.status.phase, Phase::Failed);
    assert!(message(&world).contains("guest may be off"), "{}", message(&world));
    // It said that it had left the guest alone, or nothing was touched.
    let mut world = World::new();
    world.settle();
    world.works();
    world.fails(3, reason::UNPARSABLE);
    assert_eq!((world.status.phase, message(&world).as_str()), (Phase::Failed, "words"));
    let mut world = World::new();
    world.settle();
    world.fails(3, reason::FORBIDDEN);
    assert_eq!((world.status.phase, message(&world).as_str()), (Phase::Failed, "words"));
}

#[test]
fn a_worker_that_dies_after_it_said_that_it_shuts_the_guest_down_had_an_outage() {
    for by_cluster in [false, true] {
        let mut world = World::new();
        world.settle();
        for round in 1..=OUTAGES_MAX {
            assert_eq!((world.status.phase, world.status.outages), (Phase::Running, round - 1));
            world.dies_after_shutdown(by_cluster);
            world.later(PAUSE_SECONDS_MAX);
        }
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, "TooManyOutages"));
    }
    // One that died before it said so left the guest alone, and one that never came to the server is none.
    let mut world = World::new();
    world.settle();
    for _ in 1..FAILURES_MAX {
        world.works();
        world.dies(false);
        world.later(PAUSE_SECONDS_MAX);
    }
    assert_eq!((world.status.outages, world.status.phase), (0, Phase::Running));
}

#[test]
fn tries_that_come_to_nothing_while_the_guest_is_down_are_outages_too() {
    // The plan is wrong by now: the guest is not left off for ever because of it.
    let mut world = World::new();
    world.settle();
    world.dies_after_shutdown(false);
    for _ in 1..OUTAGES_MAX {
        world.later(PAUSE_SECONDS_MAX);
        world.works();
        world.says(3, "Plan");
    }
    assert_eq!(world.reason("Arrived"), "TooManyOutages");
    assert_eq!(world.made.last().unwrap().1, Work::SwitchOn);
    // A vCenter that is not reached would switch nothing on either: whoever comes first goes on.
    let mut world = World::new();
    world.settle();
    world.dies_after_shutdown(false);
    for exit in [4, 5, 4, 5] {
        world.later(PAUSE_SECONDS_MAX);
        world.works();
        world.says(exit, "Connection");
    }
    assert_eq!((world.status.phase, world.status.guest_off), (Phase::Retrying, true));
    world.later(PAUSE_SECONDS_MAX);
    world.works();
    world.says(0, "Success");
    assert_eq!(world.status.phase, Phase::Done);
}

#[test]
fn a_guest_that_is_down_keeps_its_slot_between_tries() {
    let mut world = World::new();
    world.settle();
    world.dies_after_shutdown(false);
    assert_eq!(world.status.phase, Phase::Retrying);
    assert!(world.wants_slot(), "nobody else gets it");
    world.later(PAUSE_SECONDS_MAX);
    world.ends(7, "Target", Some(false));
    assert_eq!(world.status.phase, Phase::Retrying);
    assert!(!world.wants_slot(), "its guest runs again, so others have their turn");
}

#[test]
fn after_it_failed_a_guest_that_is_off_is_switched_on_again() {
    let mut world = World::new();
    world.settle();
    world.fails_for_good();
    let failed = (Phase::Failed, "TooManyOutages".to_string());
    assert_eq!((world.status.phase, world.reason("Arrived")), failed);
    assert_eq!(world.made.last(), Some(&(OUTAGES_MAX as u64 + 1, Work::SwitchOn)));
    // The source is away, or the worker dies: it is tried until the guest is on.
    for exit in [5, 6, 7] {
        world.switches_on(exit);
        assert!(!world.is_on_again());
        world.later(PAUSE_SECONDS_MAX);
    }
    world.works();
    world.dies(false);
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!((world.status.phase, world.reason("Arrived")), failed, "why it failed is still told");
    world.switches_on(0);
    assert!(world.is_on_again() && !world.status.guest_off && world.claim.is_some());
    let moves = world.old_jobs.iter().filter(|job| job.work == Some(Work::Move)).count();
    assert_eq!(moves, OUTAGES_MAX as usize, "the logs of what failed first are still there");
    let made = world.made.len();
    world.later(100_000);
    assert_eq!(world.made.len(), made, "that is all");
    // A retry goes on with what was copied, and what was told of the guest holds no more.
    world.facts.retry = Some("mended".into());
    world.settle();
    assert_eq!(world.made.last().unwrap().1, Work::Move);
    assert!(world.status.condition("GuestOn").is_none());
}

#[test]
fn a_cancel_undoes_what_a_switch_on_is_about_to() {
    let mut world = World::new();
    world.settle();
    world.fails_for_good();
    world.works();
    world.spec.cancel = true;
    world.settle();
    assert_eq!(world.made.last().unwrap().1, Work::SwitchOn, "it is let to its end");
    world.switches_on(7);
    assert_eq!(world.made.last().unwrap().1, Work::Undo);
    world.works();
    world.says(0, "Undone");
    assert_eq!(world.status.phase, Phase::Cancelled);
}

#[test]
fn the_scheduler_is_told_once_what_the_end_of_a_worker_says_of_the_host() {
    let told_of = |exit: u8, host_failed: bool, datastore: Option<&str>| {
        let mut world = World::new();
        world.settle();
        world.works();
        let datastore_failed = datastore.map(str::to_string);
        let (epoch, exit) = (1, Some(exit));
        world.status.worker =
            Some(WorkerWord { epoch, exit, host_failed, datastore_failed, ..WorkerWord::default() });
        world.job.as_mut().unwrap().has_ended = true;
        world.facts.jobs = world.job.iter().cloned().collect();
        let decision = decide(&world.spec, &world.status, &world.facts);
        let host = decision.host.clone();
        let after = decide(&world.spec, &decision.status, &world.facts);
        assert_eq!(after.host, None, "the Job is of an epoch that is over");
        host
    };
    let told = |exit: u8, host_failed: bool| told_of(exit, host_failed, None);
    assert_eq!([told(0, false), told(13, false)], [const { Some(HostTold::Served) }; 2]);
    assert_eq!([told(6, true), told(5, true), told(9, true)], [const { Some(HostTold::Failed) }; 3]);
    assert_eq!(told(8, false), Some(HostTold::TargetFull));
    assert_eq!([told(6, false), told(3, false), told(130, false)], [const { None }; 3]);
    assert_eq!(told_of(6, true, Some("ds")), Some(HostTold::DatastoreFailed("ds".into())));
    assert_eq!(told_of(0, true, Some("ds")), Some(HostTold::Served));
}
