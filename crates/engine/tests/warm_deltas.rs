//! Warm migrations: what passes read again, and what is done about change tracking that lies.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;

use drover_disk::memory::{Effect, Nth};
use drover_disk::{DiskErrorKind, DiskOp, MemDisk};
use drover_engine::{Event, NoObserver, PassKind, PassState};
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World};

/// The order that corrupted file systems elsewhere: what the next pass is asked from has to be the state of this pass's
/// own snapshot, and stored before that is gone.
#[test]
fn change_ids_are_those_of_the_snapshot_that_was_read_and_are_stored_before_it_is_removed() {
    let world = World::warm_auto();
    let seen = Mutex::new(Vec::new());
    let hook = Watch(|event: &Event| {
        if let Event::PassEnded { number, .. } = event {
            let tracked = world.store.tracked(PLAN, "vm-on").unwrap();
            let ids: Vec<String> = tracked.into_iter().filter_map(|row| row.change_id).collect();
            seen.lock().unwrap().push((*number, ids, world.own_snapshots()));
        }
    });
    world.run(&hook);
    world.assert_arrived("in order");
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() >= 4, "{seen:?}");
    for (number, ids, snapshots) in &seen[..3] {
        // Each snapshot of the fake freezes the next state.
        let of_this_pass = vec![format!("52 de 1/{number}"); 2];
        assert_eq!(
            (ids, *snapshots),
            (&of_this_pass, 1),
            "pass {number}: its snapshot, and no other, is there"
        );
    }
    let state = world.state();
    let calls = state
        .calls
        .iter()
        .map(|(call, _)| *call)
        .filter(|it| ["freeze", "areas", "remove snapshot"].contains(it));
    let calls: Vec<&str> = calls.collect();
    assert_eq!(
        calls[..6],
        ["freeze", "remove snapshot", "freeze", "areas", "areas", "remove snapshot"],
        "{calls:?}"
    );
}

#[test]
fn a_failed_cutover_keeps_the_replica_and_the_next_try_is_a_delta() {
    for call in ["areas", "open source", "open for verify", "define", "start"] {
        let world = World::warm("warm: {interval: 1s, cutover: auto, audit: none}\nverify: sampled");
        // From here on the guest is down: whatever fails now fails the cutover.
        world.before("shut down", move |state| state.set_trouble_at(call, 1, Trouble::Fails));
        let row = world.fails();
        assert!(row.error.as_ref().unwrap().contains("as ordered"), "{call}: {:?}", row.error);
        assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0), "{call}");
        let (done, read) = (completed(&world), frozen_bytes_read(&world));
        world.run(&NoObserver);
        world.assert_arrived(call);
        let again = &world.passes()[done..];
        assert!(
            !again.is_empty() && again.iter().all(|pass| pass.kind == PassKind::Delta),
            "{call}: {again:?}"
        );
        let areas: u64 = again.iter().map(|pass| pass.areas_bytes).sum();
        assert_eq!(frozen_bytes_read(&world) - read, areas, "{call}: more than what changed was read");
    }
}

#[test]
fn an_interrupted_first_pass_reads_only_what_is_missing_or_has_changed() {
    let world = World::warm("warm: {interval: 1s, cutover: auto, audit: none}\nverify: sampled");
    world.state().tracks.guests_write = false;
    // Under the first snapshot its disks break in the middle, and the guest goes on to write.
    world.before("open source", |state| {
        let breaks = |disk: &MemDisk| {
            disk.add_fault(DiskOp::Read, Nth::From(11), Effect::Fail(DiskErrorKind::Gone));
        };
        state.tracks.frozen.values().for_each(breaks);
        state.guest_write("on/2000", 0, b"written since");
    });
    let dies = Watch(|event: &Event| {
        assert!(
            !matches!(event, Event::Note { text, .. } if text.contains("a pass failed")),
            "the process dies"
        );
    });
    world.run(&dies);
    world.as_if_killed();
    assert_eq!(completed(&world), 0);
    let recorded: u64 = world.recorded().values().sum();
    let (read, all) = (frozen_bytes_read(&world), 2 * 20 * 65536);
    assert!(recorded > 0 && recorded < all, "{recorded}");
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 1, .. }) {
            let again = frozen_bytes_read(&world) - read;
            let (missing, changed) = (all - recorded, 65536);
            assert!(
                (missing..=missing + changed).contains(&again),
                "{missing} were missing, {again} were read"
            );
        }
    });
    world.run(&hook);
    world.assert_arrived("after an interrupted first pass");
}

#[test]
fn a_crash_when_a_pass_is_complete_has_nothing_read_again() {
    let world = World::warm("warm: {interval: 1s, cutover: auto, audit: none}\nverify: sampled");
    world.state().tracks.guests_write = false;
    world.set_trouble("remove snapshot", Trouble::DiesBefore);
    world.run(&NoObserver);
    world.as_if_killed();
    assert_eq!((completed(&world), world.own_snapshots()), (1, 1));
    let read = frozen_bytes_read(&world);
    world.run(&NoObserver);
    world.assert_arrived("after the crash");
    assert_eq!(frozen_bytes_read(&world), read, "nothing changed, so nothing is read");
}

#[test]
fn cbt_that_lies_is_found_by_the_audit_repaired_and_never_believed_again() {
    let world = World::warm_auto();
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 1, .. }) {
            world.state().tracks.lies = 3;
        }
    });
    world.run(&hook);
    world.assert_arrived("though tracking lied");
    let passes = world.passes();
    assert!(passes[1].mismatches > 0 && passes[1].kind == PassKind::HashDiff, "{:?}", passes[1]);
    assert!(passes[2..].iter().all(|pass| pass.kind == PassKind::HashDiff), "it is never believed again");
    assert!(world.warm_row().distrust.unwrap().contains("change tracking is damaged"));
    assert!(world.notes().contains("reset change tracking of the VM"));
}

#[test]
fn a_lie_that_was_found_is_not_forgotten_when_the_pass_fails() {
    let world = World::warm("limits: {disks: 1}\nwarm: {interval: 1s, cutover: auto}");
    world.state().tracks.guests_write = false;
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 1, .. }) {
            world.state().tracks.lies = 1;
            world.guest_writes("on", 2000, 7 * 65536, b"not told of");
            // The first disk is looked at, its block is mended, and the second one cannot be read.
            world.set_trouble_at("open source", 2, Trouble::Fails);
        }
    });
    world.run(&hook);
    world.assert_arrived("after a pass that failed");
    assert!(world.notes().contains("is done again (1 of 3)"), "{}", world.notes());
    let passes = world.passes();
    assert!(passes[1..].iter().all(|pass| pass.kind == PassKind::HashDiff), "{passes:?}");
    assert!(world.warm_row().distrust.unwrap().contains("change tracking is damaged"));
}

#[test]
fn a_full_audit_at_the_cutover_finds_the_last_lie() {
    for (audit, is_found) in [("none", false), ("full", true)] {
        let world = World::warm(&format!("warm: {{interval: 1s, cutover: auto, audit: {audit}}}"));
        // Nothing else is written, so nothing else has that block read.
        world.state().tracks.guests_write = false;
        world.before("shut down", |state| {
            state.tracks.lies = 1;
            state.guest_write("on/2001", 7 * 65536, b"not told of");
        });
        world.run(&NoObserver);
        let last = world.passes().pop().unwrap();
        // What is compared whole while the guest is down waits for no delta of another VM.
        assert_eq!(world.calls("open down") > 0, is_found, "{audit}");
        assert_eq!(
            (last.mismatches, last.kind == PassKind::HashDiff),
            (u64::from(is_found), is_found),
            "{audit}"
        );
        if is_found {
            world.assert_arrived("with the last lie found");
            assert!(world.warm_row().distrust.unwrap().contains("change tracking is damaged"));
        }
    }
}

/// Passes that are complete.
fn completed(world: &World) -> usize {
    world.passes().iter().filter(|pass| pass.state == PassState::Complete).count()
}

/// Bytes read of all snapshots so far.
fn frozen_bytes_read(world: &World) -> u64 {
    world.state().tracks.frozen.values().map(|disk| disk.counts().bytes_read).sum()
}
