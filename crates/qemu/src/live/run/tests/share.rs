//! Moves that share what may be sent with others.

use drover_live::together::Beforehand;
use drover_live::{DomainUnclear, Unclear};

use super::*;
use crate::live::{Share, Turn};

/// A source that sends until it is told otherwise, and a target that has the guest as soon as it is asked.
fn sends_on() -> (Fake, Fake) {
    let (source, target) = sent_at_once("running");
    source.said().turns = vec![("migrate", "running", "active")];
    (source, target)
}

fn look_beforehand(
    source: &mut Guest,
    target: &mut Guest,
    options: &LiveOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<(Beforehand, Option<Looked>), LiveError> {
    let stop = AtomicBool::new(false);
    let (known, found) = Move::new(source, target, options, &stop, tell).look_beforehand()?;
    Ok((known, found.map(Looked)))
}

fn with(change: impl FnOnce(&mut Wanted)) -> LiveOptions {
    let mut options = options();
    change(&mut options.wanted);
    options
}

#[test]
fn another_share_is_set_on_the_way_and_told_when_it_is_kept() {
    let (source, target) = sends_on();
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let share = Share::new(1_000_000);
    let shared = with(|wanted| (wanted.share, wanted.rate_max) = (Some(share.clone()), Some(9)));
    let mut kept = Vec::new();
    let mut tell = |event| match event {
        Event::Memory(told) if told.status == "active" => share.set(3_000_000),
        Event::Share(rate) => {
            kept.push((rate, source.said().parameters["max-bandwidth"].as_u64()));
            if rate == 3_000_000 {
                let mut said = source.said();
                (said.status, said.migration) = ("postmigrate".to_string(), "completed".to_string());
            }
        }
        _ => {}
    };
    live(&mut from, &mut to, &shared, &AtomicBool::new(false), &mut tell).unwrap();
    assert_eq!(kept, [(1_000_000, Some(1_000_000)), (3_000_000, Some(3_000_000))]);
}

#[test]
fn a_share_that_qemu_does_not_take_ends_the_move_with_the_guest_at_the_source() {
    let (source, target) = sends_on();
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let share = Share::new(1_000_000);
    let shared = with(|wanted| wanted.share = Some(share.clone()));
    source.said().turns.push(("migrate_cancel", "running", "cancelled"));
    let mut tell = |event| {
        if matches!(event, Event::Memory(told) if told.status == "active") {
            source.said().refuses = Some("migrate-set-parameters");
            share.set(3_000_000);
        }
    };
    let error = live(&mut from, &mut to, &shared, &AtomicBool::new(false), &mut tell).unwrap_err();
    assert_eq!(error.guest_at, Where::Source, "{error}");
    assert!(error.to_string().contains("not now"), "{error}");
}

#[test]
fn what_was_looked_at_a_moment_ago_is_not_looked_at_again_and_nothing_is_sent_before_its_turn() {
    let (source, target) = sent_at_once("running");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let looks = || source.said().orders.iter().filter(|order| *order == "query-cpus-fast").count();
    let (_, looked) = look_beforehand(&mut from, &mut to, &options(), &mut |_| {}).unwrap();
    assert_eq!(looks(), 1);
    let turn = Turn::new(1);
    let waits = LiveOptions { looked, ..with(|wanted| wanted.turn = Some(turn.clone())) };
    let (is_stopped, mut told) = (AtomicBool::new(false), Vec::new());
    thread::scope(|scope| {
        let moved = scope.spawn(|| {
            let mut tell = |event: Event| told.push(format!("{event:?}"));
            live(&mut from, &mut to, &waits, &is_stopped, &mut tell)
        });
        // Prepared: it is set what is set.
        while !source.was_told("migrate-set-parameters") {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(200));
        assert!(!source.was_told("migrate") && !target.was_told("migrate-incoming"));
        turn.come();
        moved.join().unwrap().unwrap();
    });
    assert_eq!(looks(), 1);
    assert!(told.iter().any(|event| event == "Sent"), "{told:?}");
}

/// Somebody else's `stop`, or another disk, while it waited.
#[test]
fn a_guest_that_was_stopped_while_it_waited_is_not_started_at_the_target() {
    let (source, target) = sent_at_once("paused");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let turn = Turn::new(1);
    let waits = with(|wanted| wanted.turn = Some(turn.clone()));
    let is_stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let moved = scope.spawn(|| live(&mut from, &mut to, &waits, &is_stopped, &mut |_| {}));
        while !source.was_told("migrate-set-parameters") {
            thread::sleep(Duration::from_millis(5));
        }
        source.said().status = "paused".to_string();
        turn.come();
        moved.join().unwrap().unwrap();
    });
    assert!(source.was_told("migrate") && !target.was_told("cont"), "{:?}", target.said().orders);
}

#[test]
fn one_that_is_stopped_before_its_turn_is_at_the_source_as_it_was() {
    let (source, target) = sent_at_once("running");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let waits = with(|wanted| wanted.turn = Some(Turn::new(1)));
    let is_stopped = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        let moved = scope.spawn(|| live(&mut from, &mut to, &waits, &is_stopped, &mut |_| {}));
        while !source.was_told("migrate-set-parameters") {
            thread::sleep(Duration::from_millis(5));
        }
        is_stopped.store(true, Ordering::Relaxed);
        moved.join().unwrap().unwrap_err()
    });
    assert!(matches!(error.cause, Ending::Stopped), "{error}");
    assert_eq!(error.guest_at, Where::Source);
    assert!(!source.was_told("migrate") && !source.was_told("stop") && !target.was_told("cont"));
}

#[test]
fn a_look_beforehand_changes_nothing() {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let (found, looked) = look_beforehand(&mut from, &mut to, &options(), &mut |_| {}).unwrap();
    assert_eq!((found.channels, found.disk_bytes, found.under_way), (1, 0, None));
    assert!(looked.is_some());
    for side in [&source, &target] {
        let changes = ["migrate", "migrate-incoming", "object-add", "stop", "cont", "migrate-set-parameters"];
        assert!(!changes.iter().any(|order| side.was_told(order)), "{:?}", side.said().orders);
    }
}

#[test]
fn what_an_earlier_run_left_unclear_is_told_beforehand() {
    let (source, target) = (Fake::new("postmigrate", "completed"), Fake::new("paused", "completed"));
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    // Without the mark of one move they are no ends of one.
    let error = look_beforehand(&mut from, &mut to, &options(), &mut |_| {}).unwrap_err();
    assert!(matches!(error.cause, Ending::Unclear(_)), "{error}");
    // It is not at the source, which has ended it.
    assert_eq!(error.guest_at, Where::Unknown, "{error}");
    let error = foresee(&mut from, &mut to, &options(), &mut |_| {}).unwrap_err();
    assert_eq!(error.guest_at, Where::Unknown, "{error}");
}

#[test]
fn a_look_at_a_domain_tells_where_it_was_found() {
    let at = |why| LiveError::of_look(Ending::Unclear(Unclear::Domain(why))).guest_at;
    assert_eq!(at(DomainUnclear::BothRun), Where::Both);
    assert_eq!(at(DomainUnclear::Held), Where::Held);
    assert_eq!(at(DomainUnclear::OtherJob), Where::Source);
    let room = Obstacle { what: "no room".into(), advice: "make some".into() };
    assert_eq!(LiveError::of_look(Ending::Obstacles(vec![room])).guest_at, Where::Source);
}

/// Bounds on the mirror of a guest that has one disk.
fn speeds(share: Option<Share>) -> Vec<Value> {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    (source.said().mirror, source.said().looks_until_ready) = (Some("drover-mirror-0"), 2);
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let at = crate::live::NbdAt::Unix("/nowhere".into());
    let (shared, stop) = (
        LiveOptions { disks: DisksBy::Mirror(at), ..with(|wanted| wanted.share = share) },
        AtomicBool::new(false),
    );
    let mut tell = |_| {};
    let mut one = Move::new(&mut from, &mut to, &shared, &stop, &mut tell);
    one.pairs = vec![Pair::new(0, "hd0".to_string(), Disk::default(), Disk::default())];
    one.mirror().unwrap();
    source.said().speeds.clone()
}

#[test]
fn a_mirror_has_its_share_while_it_copies_and_no_bound_when_it_follows_each_write() {
    assert_eq!(speeds(Some(Share::new(5_000_000))), [json!(5_000_000), json!(5_000_000), json!(0)]);
    assert_eq!(speeds(None), [Value::Null], "without others nothing is bounded");
}
