//! Tries that shut a guest down and fail come to an end.

use super::*;

impl World {
    /// Its last try shut the guest down and failed, and the next one is due.
    fn fails_after_shutdown(&mut self, exit: u8, reason: &str) {
        self.works();
        self.status.worker = Some(WorkerWord {
            epoch: self.status.epoch,
            exit: Some(exit),
            reason: Some(reason.into()),
            message: Some("words".into()),
            outage: true,
            ..WorkerWord::default()
        });
        self.dies(false);
        self.later(PAUSE_SECONDS_MAX);
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
        world.fails_after_shutdown(exit, "Reason");
        assert_eq!(world.status.condition("Arrived").unwrap().status, "True", "exit {exit}");
        assert_ne!(world.status.phase, Phase::Failed);
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
    // A worker shut it down, and said so.
    let mut world = World::new();
    world.settle();
    world.fails_after_shutdown(6, "Source");
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
