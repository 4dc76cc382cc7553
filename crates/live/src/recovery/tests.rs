use super::*;

const DEADLINE: Duration = Duration::from_secs(600);

fn look(at_ms: u64, source: Half, target: Half) -> Look {
    Look { at_ms, source, target, sent_bytes: at_ms, left_bytes: 9, is_away: false, is_stopped: false }
}

/// A look at a line that carries at first, then broke.
fn broken() -> Recovery {
    let mut recovery = Recovery::new(DEADLINE);
    assert_eq!(recovery.see(look(0, Half::Active, Half::Active)), Step::Wait);
    assert_eq!(recovery.see(look(100, Half::Paused, Half::Paused)), Step::Broke);
    recovery
}

/// What comes of a look each 100 ms in this state, until something is to be done; when, and what.
fn until_a_step(recovery: &mut Recovery, from_ms: u64, source: Half, target: Half) -> (u64, Step) {
    let looks = (0..100_000).map(|number| from_ms + number * 100);
    let mut steps = looks.map(|at| (at, recovery.see(look(at, source, target))));
    steps.find(|(_, step)| *step != Step::Wait).expect("a step")
}

#[test]
fn a_line_that_broke_is_made_anew() {
    let mut recovery = broken();
    assert_eq!(recovery.see(look(200, Half::Paused, Half::Paused)), Step::Try(1));
    assert_eq!(recovery.see(look(300, Half::Recovering, Half::Paused)), Step::Wait);
    assert_eq!(recovery.see(look(400, Half::Recovering, Half::Recovering)), Step::Wait);
    assert_eq!(recovery.see(look(500, Half::Active, Half::Recovering)), Step::Wait);
    assert_eq!(recovery.see(look(600, Half::Active, Half::Active)), Step::Back(1));
    assert_eq!(recovery.see(look(700, Half::Active, Half::Active)), Step::Wait);
    assert!(!recovery.is_broken());
}

#[test]
fn tries_come_further_and_further_apart_and_end_at_the_deadline() {
    let mut recovery = broken();
    let (mut at, mut waits, mut tries) = (200, Vec::new(), 0);
    loop {
        let (then, step) = until_a_step(&mut recovery, at, Half::Paused, Half::Paused);
        at = then + 100;
        match step {
            Step::Try(number) => {
                tries += 1;
                assert_eq!(number, tries);
                // It began, and came to nothing.
                assert_eq!(recovery.see(look(at, Half::Recovering, Half::Paused)), Step::Wait);
                at += 100;
            }
            Step::Failed(number, wait) => {
                assert_eq!(number, tries);
                waits.push(wait.as_secs());
            }
            Step::GiveUp(number) => {
                assert_eq!((number, then / 1000), (tries, DEADLINE.as_secs()));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(waits[..7], [1, 2, 4, 8, 16, 30, 30]);
    assert!((20..40).contains(&tries), "{tries}");
}

#[test]
fn a_line_that_breaks_at_the_deadline_is_tried_for_a_minute() {
    let mut recovery = Recovery::new(Duration::from_millis(50));
    assert_eq!(recovery.see(look(100, Half::Paused, Half::Paused)), Step::Broke);
    let (mut at, mut tries) = (200, 0);
    let ended = loop {
        match until_a_step(&mut recovery, at, Half::Paused, Half::Paused) {
            (then, Step::GiveUp(_)) => break then,
            (then, step) => {
                tries += u32::from(matches!(step, Step::Try(_)));
                at = then + 100;
            }
        }
    };
    assert_eq!(ended, 100 + RECOVERY_MS_MIN);
    assert!(tries > 3, "{tries}");
}

#[test]
fn a_try_that_never_shows_has_failed() {
    let mut recovery = broken();
    assert_eq!(recovery.see(look(200, Half::Paused, Half::Paused)), Step::Try(1));
    let (at, step) = until_a_step(&mut recovery, 300, Half::Paused, Half::Paused);
    assert_eq!((at, step), (200 + BEGIN_MS, Step::Failed(1, Duration::from_millis(WAIT_MS))));
}

#[test]
fn a_refused_try_is_followed_by_another() {
    let mut recovery = broken();
    assert_eq!(recovery.see(look(200, Half::Paused, Half::Paused)), Step::Try(1));
    assert_eq!(recovery.refused(300), Duration::from_secs(1));
    let next = until_a_step(&mut recovery, 400, Half::Paused, Half::Paused);
    assert_eq!(next, (1300, Step::Try(2)));
}

#[test]
fn a_side_that_has_not_noticed_is_told() {
    for (source, target, side) in
        [(Half::Active, Half::Paused, Side::Source), (Half::Paused, Half::Active, Side::Target)]
    {
        let mut recovery = Recovery::new(DEADLINE);
        assert_eq!(recovery.see(look(100, source, target)), Step::Broke);
        let (at, step) = until_a_step(&mut recovery, 200, source, target);
        assert_eq!((at, step), (100 + NOTICE_MS, Step::Pause(side)));
        // Told in vain, it is told again.
        let again = until_a_step(&mut recovery, at + 100, source, target);
        assert_eq!(again, (at + NOTICE_MS, Step::Pause(side)));
        assert_eq!(recovery.see(look(again.0 + 100, Half::Paused, Half::Paused)), Step::Try(1));
    }
}

#[test]
fn a_try_that_hangs_is_broken_off() {
    let mut recovery = broken();
    assert_eq!(recovery.see(look(200, Half::Paused, Half::Paused)), Step::Try(1));
    let (at, step) = until_a_step(&mut recovery, 300, Half::Recovering, Half::Paused);
    assert_eq!((at, step), (300 + TRY_MS_MAX, Step::Pause(Side::Source)));
    let (_, step) = until_a_step(&mut recovery, at + 100, Half::Paused, Half::Paused);
    assert!(matches!(step, Step::Failed(1, _)), "{step:?}");
}

#[test]
fn a_line_on_which_nothing_moves_is_broken() {
    let mut recovery = Recovery::new(DEADLINE);
    let still = |at| Look { sent_bytes: 7, ..look(at, Half::Active, Half::Active) };
    let mut steps = (0..1000).map(|number| (number * 100, recovery.see(still(number * 100))));
    assert_eq!(steps.find(|(_, step)| *step != Step::Wait), Some((SILENCE_MS, Step::Pause(Side::Source))));
    // The target may have much to take in that was sent already.
    let mut recovery = Recovery::new(DEADLINE);
    for number in 0..1000 {
        assert_eq!(recovery.see(Look { left_bytes: 0, ..still(number * 100) }), Step::Wait);
    }
    // Where a link is away and comes back by itself, nothing is to be concluded.
    let mut recovery = Recovery::new(DEADLINE);
    for number in 0..1000 {
        assert_eq!(recovery.see(Look { is_away: true, ..still(number * 100) }), Step::Wait);
    }
}

#[test]
fn nothing_is_tried_while_what_lies_between_is_away() {
    let mut recovery = broken();
    for number in 2..1000 {
        let away = Look { is_away: true, ..look(number * 100, Half::Paused, Half::Silent) };
        assert_eq!(recovery.see(away), Step::Wait);
    }
    assert_eq!(recovery.see(look(100_000, Half::Paused, Half::Paused)), Step::Try(1));
}

#[test]
fn a_target_whose_monitor_is_silent_is_tried_all_the_same() {
    let mut recovery = Recovery::new(DEADLINE);
    assert_eq!(recovery.see(look(0, Half::Active, Half::Silent)), Step::Wait);
    assert_eq!(recovery.see(look(100, Half::Paused, Half::Silent)), Step::Broke);
    assert_eq!(recovery.see(look(200, Half::Paused, Half::Silent)), Step::Try(1));
    // The source goes on: so the target has answered it.
    assert_eq!(recovery.see(look(300, Half::Active, Half::Silent)), Step::Back(1));
}

#[test]
fn a_side_whose_qemu_has_ended_has_lost_the_guest() {
    for half in [Half::Active, Half::Paused, Half::Recovering] {
        assert_eq!(broken().see(look(200, half, Half::Gone)), Step::Lost(Side::Target));
        assert_eq!(broken().see(look(200, Half::Gone, half)), Step::Lost(Side::Source));
    }
    // The target has everything by then.
    assert_eq!(broken().see(look(200, Half::Gone, Half::Done)), Step::Wait);
    assert_eq!(broken().see(look(200, Half::Done, Half::Gone)), Step::Wait);
}

#[test]
fn somebody_who_stops_it_waits_for_the_try_under_way() {
    let mut recovery = broken();
    let stopped = |at, source| Look { is_stopped: true, ..look(at, source, Half::Paused) };
    assert_eq!(recovery.see(stopped(200, Half::Paused)), Step::Try(1));
    assert_eq!(recovery.see(stopped(300, Half::Recovering)), Step::Wait);
    assert!(matches!(recovery.see(stopped(400, Half::Paused)), Step::Failed(1, _)));
    assert_eq!(recovery.see(stopped(500, Half::Paused)), Step::GiveUp(1));
    let away = Look { is_away: true, ..stopped(200, Half::Paused) };
    assert_eq!(broken().see(away), Step::GiveUp(0));
}

#[test]
fn a_line_that_is_back_for_a_moment_only_was_not_back() {
    let mut recovery = Recovery::new(Duration::from_millis(1));
    let (mut at, mut breaks) = (0, 0);
    // It comes back with each try, and breaks at once.
    let ended = loop {
        at += 100;
        match recovery.see(look(at, Half::Paused, Half::Paused)) {
            Step::Try(_) => {
                at += 100;
                assert!(matches!(recovery.see(look(at, Half::Active, Half::Active)), Step::Back(_)));
            }
            Step::Broke => breaks += 1,
            Step::GiveUp(_) => break at,
            Step::Wait => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(breaks > 3 && ended >= RECOVERY_MS_MIN, "{breaks} breaks until {ended}");
    assert!(ended < RECOVERY_MS_MIN + 1000, "{ended}");
    // A steady one is told from that.
    let mut recovery = broken();
    assert_eq!(recovery.see(look(200, Half::Paused, Half::Paused)), Step::Try(1));
    assert_eq!(recovery.see(look(300, Half::Active, Half::Active)), Step::Back(1));
    assert_eq!(recovery.see(look(300 + STEADY_MS, Half::Paused, Half::Paused)), Step::Broke);
    assert_eq!(recovery.see(look(400 + STEADY_MS, Half::Paused, Half::Paused)), Step::Try(1));
}

#[test]
fn whatever_both_say_a_line_is_tried_only_where_the_source_waits_for_one_and_it_ends() {
    use Half::{Active, Done, Gone, Paused, Recovering, Silent};
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |bound: usize| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        (chance % bound as u64) as usize
    };
    for _ in 0..2000 {
        let mut recovery = Recovery::new(Duration::from_secs(30));
        let (mut source, mut target, mut last_try) = (Paused, Active, None);
        let mut at = 100;
        loop {
            if draw(20) == 0 {
                source = [Active, Paused, Paused, Paused, Recovering, Silent][draw(6)];
                target = [Active, Paused, Paused, Recovering, Silent, Done][draw(6)];
            }
            let now = Look { is_away: draw(10) == 0, is_stopped: draw(500) == 0, ..look(at, source, target) };
            match recovery.see(now) {
                Step::Try(_) => {
                    assert!(source == Paused && matches!(target, Paused | Silent), "{now:?}");
                    assert!(!now.is_away, "{now:?}");
                    assert!(last_try.is_none_or(|last| at >= last + WAIT_MS), "{now:?} after {last_try:?}");
                    last_try = Some(at);
                }
                Step::Lost(_) => assert!(source == Gone || target == Gone),
                Step::Pause(side) => assert!(!now.is_away || side == Side::Source),
                Step::GiveUp(_) => break,
                Step::Wait | Step::Broke | Step::Failed(..) | Step::Back(_) => {}
            }
            at += 100;
            // A line that is not steady for ten seconds ends a minute after it broke; chance may make some steady.
            assert!(at < 3_600_000, "it never ends");
        }
    }
}
