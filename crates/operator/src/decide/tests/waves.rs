//! What a wave keeps from beginning, and what not.

use super::*;
use crate::model::{Progress, WarmSize};

const NIGHT: i64 = 8 * 3600;

impl World {
    fn in_wave(standing: WaveStanding) -> World {
        let mut world = World::new();
        world.spec.wave = Some("pilot".into());
        world.facts.wave = standing;
        world
    }

    fn warm(self) -> World {
        let mut world = self;
        world.spec.size.warm = Some(WarmSize::default());
        world
    }

    /// Closed, and opens in a night.
    fn closed() -> WaveStanding {
        WaveStanding::Window {
            opens: Moment(1_000_000).plus(NIGHT),
            words: "Sat 2026-12-05 22:00 UTC".into(),
        }
    }

    fn decides(&self) -> Decision {
        decide(&self.spec, &self.status, &self.facts)
    }

    fn message(&self) -> String {
        self.status.condition("Arrived").unwrap().message.clone()
    }
}

#[test]
fn a_cold_vm_begins_in_its_window_and_says_when_that_opens() {
    let mut world = World::in_wave(World::closed());
    world.settle();
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Queued, "WaitsForWindow"));
    assert!(world.message().contains("Sat 2026-12-05 22:00 UTC"), "{}", world.message());
    let decision = world.decides();
    assert_eq!((decision.wake, decision.wants_slot), (Some(Moment(1_000_000).plus(NIGHT)), None));
    assert!(world.made.is_empty() && world.claim.is_none(), "nothing is made for what does not begin");
    assert!(world.notes.iter().all(|note| note.reason != "WaitsForWindow"), "no event for each of thousands");
    let closes = Some(Moment(1_000_000).plus(2 * NIGHT));
    world.facts.wave = WaveStanding::Open { closes };
    world.facts.is_admitted = false;
    world.later(NIGHT);
    assert_eq!((world.reason("Arrived").as_str(), world.decides().wake), ("WaitsForSlot", closes));
    // It had no slot until its window closed.
    world.facts.wave = World::closed();
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.decides().wants_slot), ("WaitsForWindow", None));
    (world.facts.wave, world.facts.is_admitted) = (WaveStanding::Open { closes: None }, true);
    world.settle();
    assert_eq!(world.made, [(1, Work::Move)]);
    // What has begun goes on to its end.
    world.works();
    world.facts.wave = WaveStanding::Over;
    world.settle();
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Running, "Moving"));
}

#[test]
fn a_worker_that_came_too_late_begins_in_the_next_window() {
    let mut world = World::in_wave(WaveStanding::Open { closes: None });
    world.settle();
    world.facts.wave = World::closed();
    world.says(130, reason::WINDOW_CLOSED);
    assert_eq!((world.reason("Arrived").as_str(), world.status.failures), ("WaitsForWindow", 0));
    world.facts.wave = WaveStanding::Open { closes: None };
    world.later(NIGHT);
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move)]);
}

#[test]
fn a_guest_that_is_down_waits_for_nothing_and_one_that_is_on_again_does() {
    for (standing, reason) in [
        (World::closed(), "WaitsForWindow"),
        (WaveStanding::After("pilot".into()), "WaitsForWave"),
        (WaveStanding::Failed("pilot".into()), "WaveFailed"),
        (WaveStanding::Stopped("pilot".into()), "WaveStopped"),
        (WaveStanding::Over, "WindowOver"),
        (WaveStanding::Unknown, "PlanNotResolved"),
    ] {
        for is_down in [true, false] {
            let mut world = World::in_wave(WaveStanding::Open { closes: None });
            world.settle();
            world.works();
            let word = world.status.worker.as_mut().unwrap();
            (word.outage, word.left_off) = (true, Some(is_down));
            (word.exit, word.reason) = (Some(7), Some("Target".into()));
            world.facts.wave = standing.clone();
            world.dies(false);
            world.later(PAUSE_SECONDS_MAX);
            let tries = world.made.len();
            assert_eq!(tries, if is_down { 2 } else { 1 }, "{standing:?} {is_down}");
            if !is_down {
                assert_eq!(world.reason("Arrived"), reason);
            }
        }
    }
}

#[test]
fn a_warm_vm_is_copied_before_its_window_and_not_before_waves_that_are_before_its_own() {
    let mut world = World::in_wave(WaveStanding::After("canary".into())).warm();
    world.settle();
    assert_eq!((world.made.len(), world.reason("Arrived").as_str()), (0, "WaitsForWave"));
    assert!(world.message().contains("wave canary has to be over"), "{}", world.message());
    world.facts.wave = World::closed();
    world.settle();
    assert_eq!(world.made, [(1, Work::Move)]);
    world.works();
    assert_eq!(world.reason("Arrived"), "WaitsForWindow", "its worker copies it until then");
    assert!(world.message().contains("Sat 2026-12-05 22:00 UTC"), "{}", world.message());
    assert_eq!(world.decides().wake, Some(Moment(1_000_000).plus(NIGHT)));
    // It has begun: its worker holds its cutover against the window.
    world.facts.wave = WaveStanding::After("canary".into());
    world.fails(7, "Target");
    assert_eq!(world.made.len(), 2);
    // It moves over, and goes on when the window closes.
    world.works();
    assert_eq!(world.reason("Arrived"), "WaitsForWave");
    world.status.worker.as_mut().unwrap().outage = true;
    world.facts.wave = World::closed();
    world.settle();
    assert_eq!(world.reason("Arrived"), "Moving");
}

#[test]
fn what_missed_its_window_fails_untouched_and_follows_an_edit_of_the_plan() {
    for warm in [false, true] {
        let mut world = World::in_wave(WaveStanding::Over);
        world = if warm { world.warm() } else { world };
        world.settle();
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, "WindowOver"));
        assert!(world.made.is_empty());
        world.facts.wave = WaveStanding::Open { closes: None };
        world.later(NIGHT);
        assert!(world.made.is_empty(), "a window that is over for good does not open by itself");
        world.facts.generation = 2;
        world.settle();
        assert_eq!(world.made, [(1, Work::Move)]);
    }
}

#[test]
fn what_arrived_is_cleaned_up_at_any_time() {
    let mut world = World::in_wave(WaveStanding::Open { closes: None });
    world.settle();
    world.works();
    world.facts.wave = WaveStanding::Over;
    world.says(13, "NotCleanedUp");
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move)]);
}

fn stopped() -> WaveStanding {
    WaveStanding::Stopped("canary".into())
}

#[test]
fn a_vm_after_a_wave_that_stops_the_plan_ends_untouched_and_has_its_turn_again() {
    for warm in [false, true] {
        let mut world = World::in_wave(stopped());
        world = if warm { world.warm() } else { world };
        world.settle();
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, "WaveStopped"));
        assert!(world.message().contains("VMs of wave canary failed, after which none begins"));
        assert!(
            world.made.is_empty() && world.claim.is_none() && world.notes.is_empty(),
            "{:?}",
            world.notes
        );
        // Not alone, nor while it is not known how the waves stand.
        world.facts.retry = Some("1".into());
        world.settle();
        world.facts.wave = WaveStanding::Unknown;
        world.later(NIGHT);
        assert_eq!((world.status.phase, world.made.len()), (Phase::Failed, 0));
        // What failed is tried again, and then the wave is let go.
        world.facts.wave = WaveStanding::After("canary".into());
        world.settle();
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Queued, "WaitsForWave"));
        world.facts.wave = stopped();
        world.settle();
        assert_eq!(world.status.phase, Phase::Failed);
        world.facts.wave = WaveStanding::Open { closes: None };
        world.settle();
        assert_eq!(world.made, [(1, Work::Move)]);
    }
}

#[test]
fn what_has_a_worker_goes_on_to_its_end_and_what_was_tried_again_does_not() {
    for warm in [false, true] {
        let mut world = World::in_wave(WaveStanding::Open { closes: None });
        world = if warm { world.warm() } else { world };
        world.settle();
        world.works();
        world.facts.wave = stopped();
        world.settle();
        let reason = if warm { "WaveStopped" } else { "Moving" };
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Running, reason));
        world.fails(7, "Target");
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, "WaveStopped"));
        assert_eq!(world.made.len(), 1);
        world.facts.wave = WaveStanding::Open { closes: None };
        world.settle();
        assert_eq!(world.made, [(1, Work::Move), (2, Work::Move)]);
    }
}

#[test]
fn what_was_stopped_and_loses_its_plan_can_be_tried_again() {
    let mut world = World::in_wave(WaveStanding::Open { closes: None });
    world.settle();
    world.works();
    world.facts.wave = stopped();
    world.fails(7, "Target");
    assert_eq!(world.reason("Arrived"), "WaveStopped");
    // It was begun: it does not go with its Plan.
    (world.facts.plan, world.facts.wave) = (PlanStanding::LeftOut, WaveStanding::Gone);
    world.later(NIGHT);
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, reason::PLAN_GONE));
    assert!(world.message().contains("kubectl drover retry VM"), "{}", world.message());
    assert!(!world.is_gone && world.made.len() == 1);
    world.facts.retry = Some("1".into());
    world.settle();
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move)]);
    // What was not begun does.
    let mut world = World::in_wave(stopped());
    world.settle();
    (world.facts.plan, world.facts.wave) = (PlanStanding::LeftOut, WaveStanding::Gone);
    world.settle();
    assert!(world.is_gone);
}

#[test]
fn what_failed_itself_is_not_tried_again_because_waves_go_on() {
    let mut world = World::in_wave(WaveStanding::Open { closes: None });
    world.settle();
    world.works();
    world.says(3, reason::FORBIDDEN);
    assert_eq!(world.status.phase, Phase::Failed);
    for standing in [stopped(), WaveStanding::Open { closes: None }] {
        world.facts.wave = standing;
        world.later(NIGHT);
        assert_eq!(
            (world.status.phase, world.reason("Arrived").as_str()),
            (Phase::Failed, reason::FORBIDDEN)
        );
    }
    assert_eq!(world.made.len(), 1);
}

impl World {
    /// A warm VM whose worker has made its passes and asks to move over.
    fn asking(standing: WaveStanding) -> World {
        let mut world = World::in_wave(WaveStanding::Open { closes: None }).warm();
        world.settle();
        world.works();
        assert_eq!(world.decides().cutover, Some(Cutover::Passes));
        world.status.worker.as_mut().unwrap().asks_cutover = true;
        world.facts.wave = standing;
        world.settle();
        world
    }
}

#[test]
fn a_warm_vm_that_was_copied_once_tells_so_while_its_worker_goes_on() {
    let mut world = World::in_wave(WaveStanding::Open { closes: None }).warm();
    world.settle();
    world.works();
    let told = |world: &World| world.decides().host;
    let progress = |done_bytes| Some(Progress { total_bytes: 100, done_bytes, percent: 99 });
    world.status.progress = progress(99);
    assert_eq!(told(&world), None);
    world.status.progress = progress(100);
    assert_eq!(told(&world), Some(HostTold::CopiedOnce));
    // An earlier worker had them, and failed.
    world.status.failed_at_bytes = 100;
    assert_eq!(told(&world), None);
    world.status.worker.as_mut().unwrap().asks_cutover = true;
    assert_eq!(told(&world), Some(HostTold::CopiedOnce));
    let word = world.status.worker.as_mut().unwrap();
    (word.asks_cutover, word.reason) = (false, Some(reason::WAITS_FOR_CUTOVER.into()));
    assert_eq!(told(&world), Some(HostTold::CopiedOnce));
    world.spec.size.warm = None;
    assert_eq!(told(&world), None, "a cold VM is over soon");
}

#[test]
fn a_warm_vm_moves_over_when_the_scheduler_of_cutovers_admits_it() {
    let mut world = World::asking(WaveStanding::Open { closes: None });
    assert_eq!((world.reason("Arrived").as_str(), world.status.cutover_epoch), ("CutoverQueued", None));
    assert!(world.message().contains("limits.cutovers"), "{}", world.message());
    // Also one that waited until somebody asked for it.
    world.status.worker.as_mut().unwrap().reason = Some(reason::WAITS_FOR_CUTOVER.into());
    world.settle();
    assert_eq!(world.reason("Arrived"), "CutoverQueued");
    world.status.worker.as_mut().unwrap().reason = None;
    assert_eq!(world.decides().cutover, Some(Cutover::Asks));
    world.facts.may_cut_over = true;
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.status.cutover_epoch), ("Moving", Some(1)));
    assert_eq!(world.decides().cutover, Some(Cutover::IsDown), "it may be by now");
    assert!(world.notes.iter().all(|note| note.reason != "CutoverQueued"));
    // It makes another pass instead.
    world.status.worker.as_mut().unwrap().asks_cutover = false;
    world.settle();
    assert_eq!((world.status.cutover_epoch, world.decides().cutover), (None, Some(Cutover::Passes)));
    let word = world.status.worker.as_mut().unwrap();
    (word.asks_cutover, word.outage) = (true, true);
    world.settle();
    assert_eq!(world.decides().cutover, Some(Cutover::IsDown));
    // It counts until its guest is up again, by whichever worker.
    world.status.worker.as_mut().unwrap().left_off = Some(true);
    world.status.worker.as_mut().unwrap().exit = Some(7);
    world.dies(false);
    assert_eq!((world.status.phase, world.decides().cutover), (Phase::Retrying, Some(Cutover::IsDown)));
    world.later(PAUSE_SECONDS_MAX);
    world.works();
    assert_eq!(world.decides().cutover, Some(Cutover::IsDown));
    world.says(0, "Success");
    assert_eq!((world.status.phase, world.decides().cutover), (Phase::Done, None));
}

#[test]
fn what_its_wave_holds_is_copied_and_does_not_move_over() {
    for (standing, reason) in [
        (stopped(), "WaveStopped"),
        (WaveStanding::Failed("canary".into()), "WaveFailed"),
        (WaveStanding::After("canary".into()), "WaitsForWave"),
        (World::closed(), "WaitsForWindow"),
        (WaveStanding::Unknown, "PlanNotResolved"),
    ] {
        let mut world = World::asking(standing.clone());
        world.facts.may_cut_over = true;
        world.settle();
        assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Running, reason));
        assert!(world.message().contains("is copied while its guest runs"), "{}", world.message());
        assert_eq!((world.status.cutover_epoch, world.decides().cutover), (None, None), "{standing:?}");
        assert_eq!(world.made.len(), 1, "its worker stays");
        // What was let is taken back, as long as the guest runs.
        world.facts.wave = WaveStanding::Open { closes: None };
        world.settle();
        assert_eq!(world.status.cutover_epoch, Some(1));
        world.facts.wave = standing.clone();
        world.settle();
        assert_eq!(world.status.cutover_epoch, None);
        world.facts.wave = WaveStanding::Open { closes: None };
        world.settle();
        world.status.worker.as_mut().unwrap().outage = true;
        world.facts.wave = standing;
        world.settle();
        assert_eq!((world.reason("Arrived").as_str(), world.status.cutover_epoch), ("Moving", Some(1)));
    }
    // Without its Plan, or after its window as the Plan says now, its worker decides.
    for standing in [WaveStanding::Gone, WaveStanding::Over] {
        let mut world = World::asking(standing);
        world.facts.may_cut_over = true;
        world.settle();
        assert_eq!(world.status.cutover_epoch, Some(1));
    }
}

#[test]
fn that_a_plan_is_removed_is_no_leave_to_move_over() {
    let mut world = World::asking(WaveStanding::Stopped("first".into()));
    world.facts.may_cut_over = true;
    assert_eq!(world.reason("Arrived"), "WaveStopped");
    world.facts.wave = WaveStanding::Gone;
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.status.cutover_epoch), ("WaveStopped", None));
    assert!(world.message().contains("apply the Plan again"), "{}", world.message());
    world.facts.wave = WaveStanding::Open { closes: None };
    world.settle();
    assert_eq!(world.status.cutover_epoch, Some(1));
}

#[test]
fn a_vm_that_is_given_up_asks_no_more() {
    let mut world = World::asking(WaveStanding::Open { closes: None });
    world.facts.may_cut_over = true;
    world.spec.cancel = true;
    let decision = world.decides();
    assert_eq!((decision.cutover, decision.status.cutover_epoch), (None, None));
}
