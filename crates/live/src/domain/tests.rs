use super::*;

fn disk() -> DomainDisk {
    let text = str::to_string;
    DomainDisk {
        target: text("vda"),
        kind: text("file"),
        place: text("/vm/a.raw"),
        format: text("raw"),
        bytes: 1 << 30,
        ..DomainDisk::default()
    }
}

fn domain() -> Domain {
    Domain {
        name: "web01".into(),
        machine: "pc-q35-10.0".into(),
        memory_bytes: 1 << 30,
        disks: vec![disk()],
        networks: vec!["lan".into()],
        is_persistent: true,
        ..Domain::default()
    }
}

fn room() -> Room {
    Room { free_bytes: Some(2 << 30), networks: Some(vec!["lan".into()]), ..Room::default() }
}

#[track_caller]
fn one(domain: &Domain, room: &Room, words: &str) {
    let found = domain_obstacles(domain, room);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains(words), "{}", found[0]);
}

#[test]
fn a_domain_with_room_has_no_obstacle() {
    assert_eq!(domain_obstacles(&domain(), &room()), []);
    // What is not told is not held against anybody.
    assert_eq!(domain_obstacles(&domain(), &Room::default()), []);
}

#[test]
fn each_obstacle_is_one_with_what_to_do() {
    let text = str::to_string;
    one(&Domain { has_managed_save: true, ..domain() }, &room(), "lies at the source; remove it");
    one(&domain(), &Room { has_managed_save: true, ..room() }, "lies at the target; remove it");
    one(&Domain { snapshots: vec![text("s1")], ..domain() }, &room(), "snapshots (s1)");
    one(&Domain { checkpoints: vec![text("c1")], ..domain() }, &room(), "checkpoints (c1)");
    let busy = DomainDisk { has_job: true, ..disk() };
    one(&Domain { disks: vec![busy], ..domain() }, &room(), "blockjob DOMAIN vda --abort");
    one(&Domain { host_devices: vec![text("pci 0000:01:00.0")], ..domain() }, &room(), "0000:01:00.0");
    one(&domain(), &Room { namesake: Some(text("another-uuid")), ..room() }, "domrename");
    one(&domain(), &Room { machine_refused: Some(text("unknown")), ..room() }, "pc-q35-10.0: unknown");
    one(&domain(), &Room { processor_refused: Some(text("no avx")), ..room() }, "no avx");
    one(&domain(), &Room { free_bytes: Some(5 << 20), ..room() }, "1024 MiB of memory, and 5 are free");
    one(&domain(), &Room { networks: Some(vec![]), ..room() }, "(lan)");
}

#[test]
fn all_obstacles_are_told_at_once() {
    let bad = Domain { snapshots: vec!["s".into()], has_managed_save: true, ..domain() };
    assert_eq!(domain_obstacles(&bad, &Room { namesake: Some("other".into()), ..room() }).len(), 3);
}

#[test]
fn memory_in_huge_pages_is_not_held_against_what_is_free() {
    let huge = Domain { huge_pages: Some(Vec::new()), ..domain() };
    assert_eq!(domain_obstacles(&huge, &Room { free_bytes: Some(0), ..room() }), []);
}

#[test]
fn huge_pages_are_held_against_those_that_are_free_there() {
    let huge = |sizes: &[u64]| Domain { huge_pages: Some(sizes.to_vec()), ..domain() };
    let free = |pages: &[(u64, u64)]| Room { free_pages: Some(pages.iter().copied().collect()), ..room() };
    let (small, large) = (2 << 20, 1 << 30);
    assert_eq!(domain_obstacles(&huge(&[small]), &free(&[(small, 512)])), []);
    one(&huge(&[small]), &free(&[(small, 511), (large, 4)]), "huge pages of 2048 KiB, and 1022 MiB of such");
    // Of the usual size, which may be either: not half of each.
    assert_eq!(domain_obstacles(&huge(&[]), &free(&[(small, 0), (large, 1)])), []);
    one(&huge(&[]), &free(&[(small, 511), (large, 0)]), "in huge pages, and 1022 MiB");
    assert_eq!(domain_obstacles(&huge(&[small, large]), &free(&[(small, 256), (large, 1)])), []);
    one(&huge(&[small]), &free(&[]), "allocpages");
}

#[test]
fn bridges_and_cards_have_to_be_there_by_their_names() {
    let plugged = Domain { links: vec!["br0".into(), "eth1".into()], ..domain() };
    let there =
        |names: &[&str]| Room { links: Some(names.iter().map(|name| name.to_string()).collect()), ..room() };
    assert_eq!(domain_obstacles(&plugged, &there(&["eth0", "br0", "eth1"])), []);
    one(&plugged, &there(&["eth0", "br0"]), "not at the target (eth1)");
    assert_eq!(domain_obstacles(&plugged, &room()), [], "not told");
}

#[test]
fn pools_have_room_for_what_disks_take_and_may_have_too_little_for_what_they_may_take() {
    let free = || Spot::Free("vms".into());
    let disk = || DomainDisk { bytes: 10 << 20, taken_bytes: 4 << 20, ..disk() };
    let disks = [(disk(), free()), (disk(), free()), (disk(), Spot::Free("other".into()))];
    let pool = |bytes: u64| BTreeMap::from([("vms".to_string(), bytes)]);
    assert_eq!(copy_obstacles(&disks, &pool(8 << 20)), []);
    let found = copy_obstacles(&disks, &pool((8 << 20) - 1));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("take 8 MiB, and 7 are free in pool vms"), "{}", found[0]);
    assert_eq!(tight_pools(&disks, &pool(20 << 20)), []);
    assert_eq!(tight_pools(&disks, &pool(19 << 20)), [("vms".to_string(), 20 << 20, 19 << 20)]);
}

#[test]
fn only_what_has_a_place_of_its_own_is_copied() {
    assert!(disk().is_private());
    for shared in [
        DomainDisk { kind: "network".into(), ..disk() },
        DomainDisk { is_read_only: true, ..disk() },
        DomainDisk { is_shareable: true, ..disk() },
        DomainDisk { place: String::new(), ..disk() },
    ] {
        assert!(!shared.is_private(), "{shared:?}");
    }
}

#[test]
fn nothing_is_written_over_at_the_target() {
    let free = || Spot::Free("vms".into());
    assert_eq!(copy_obstacles(&[(disk(), free())], &BTreeMap::new()), []);
    let words =
        |disk: DomainDisk, spot: Spot| copy_obstacles(&[(disk, spot)], &BTreeMap::new())[0].to_string();
    assert!(words(disk(), Spot::Taken).contains("/vm/a.raw is there"));
    assert!(words(disk(), Spot::NoPool).contains("pool-create-as"));
    assert!(words(DomainDisk { is_backed: true, ..disk() }, free()).contains("blockpull"));
    assert!(words(DomainDisk { kind: "block".into(), ..disk() }, free()).contains("only files"));
    assert!(words(DomainDisk { format: "vmdk".into(), ..disk() }, free()).contains("vmdk"));
}

fn stand(state: &str, reason: &str, job: DomainJob) -> DomainStand {
    DomainStand { state: state.into(), reason: reason.into(), job }
}

#[test]
fn where_a_domain_is_follows_from_both_daemons() {
    use DomainUnclear as U;
    use Found as F;
    let none = || stand("", "", DomainJob::None);
    let off = || stand("shut off", "migrated", DomainJob::None);
    let runs = |job| stand("running", "booted", job);
    let paused = |reason, job| stand("paused", reason, job);
    let idle = DomainJob::None;
    assert_eq!(domain_found(&runs(idle), &none()), F::Nothing);
    assert_eq!(domain_found(&runs(idle), &off()), F::Nothing);
    assert_eq!(domain_found(&paused("user", idle), &none()), F::Nothing);
    assert_eq!(domain_found(&paused("I/O error", idle), &none()), F::Nothing);
    assert_eq!(domain_found(&runs(DomainJob::Out), &paused("migrating", DomainJob::In)), F::Sending);
    assert_eq!(domain_found(&paused("migrating", DomainJob::Out), &runs(idle)), F::Sending);
    assert_eq!(domain_found(&off(), &paused("migrating", DomainJob::In)), F::Sending);
    assert_eq!(domain_found(&off(), &runs(idle)), F::Moved);
    assert_eq!(domain_found(&none(), &runs(idle)), F::Moved);
    assert_eq!(domain_found(&none(), &paused("user", idle)), F::Moved);
    assert_eq!(domain_found(&off(), &none()), unclear(U::Nowhere));
    let none_moves_it = [
        (runs(idle), runs(idle), U::BothRun),
        (paused("migrating", idle), runs(idle), U::LeftAtSource),
        (paused("migrating", idle), none(), U::Held),
        (runs(DomainJob::Out), none(), U::OtherMove),
        (runs(idle), paused("migrating", DomainJob::In), U::OtherMove),
        (runs(DomainJob::Other), none(), U::OtherJob),
        (paused("user", idle), paused("user", idle), U::BothStand),
    ];
    for (source, target, why) in none_moves_it {
        assert_eq!(domain_found(&source, &target), unclear(why), "{source:?} {target:?}");
    }
}

#[test]
fn where_a_domain_is_that_went_ahead_of_its_memory() {
    use DomainUnclear as U;
    use Found as F;
    let (out, coming, idle) = (DomainJob::Out, DomainJob::In, DomainJob::None);
    let (none, off) = (stand("", "", idle), stand("shut off", "migrated", idle));
    let here = |reason| stand("paused", reason, out);
    let there = |reason| stand("running", reason, coming);
    assert_eq!(domain_found(&here("post-copy"), &there("post-copy")), F::Ahead);
    // The target is not started yet, or is done before the source is.
    assert_eq!(domain_found(&here("post-copy"), &stand("paused", "migrating", coming)), F::Ahead);
    assert_eq!(domain_found(&here("post-copy"), &stand("running", "migrated", idle)), F::Ahead);
    assert_eq!(domain_found(&off, &there("post-copy")), F::Ahead);
    // Either sees first that the line is gone; the guest runs until it wants a page.
    assert_eq!(domain_found(&here("post-copy failed"), &there("post-copy")), F::Broken);
    assert_eq!(domain_found(&here("post-copy"), &there("post-copy failed")), F::Broken);
    let failed = stand("paused", "post-copy failed", coming);
    assert_eq!(domain_found(&here("post-copy failed"), &failed), F::Broken);
    assert_eq!(domain_found(&off, &none), unclear(U::Nowhere));
    let none_moves_it = [
        (stand("running", "unpaused", idle), there("post-copy"), U::BothRun),
        (stand("running", "unpaused", idle), failed.clone(), U::TakenBack),
        (here("post-copy failed"), none.clone(), U::Lost(Side::Target)),
        (here("post-copy"), off.clone(), U::Lost(Side::Target)),
        (off, there("post-copy failed"), U::Lost(Side::Source)),
        (none, failed, U::Lost(Side::Source)),
    ];
    for (source, target, why) in none_moves_it {
        assert_eq!(domain_found(&source, &target), unclear(why), "{source:?} {target:?}");
    }
}

#[test]
fn daemons_that_cannot_make_a_line_anew_are_known() {
    for able in [(8, 5), (9, 0), (10, 10), (11, 0), (11, 1), (11, 4), (12, 2)] {
        assert_eq!(cannot_resume(able), None, "{able:?}");
    }
    assert!(cannot_resume((8, 4)).unwrap().contains("8.4 does not know"));
    assert!(cannot_resume((7, 9)).is_some());
    assert!([(11, 2), (11, 3)].iter().all(|bad| cannot_resume(*bad).unwrap().contains("crashes")));
}

#[test]
fn a_domain_that_runs_at_both_is_never_taken_for_moved() {
    let states = [
        ("", ""),
        ("running", "booted"),
        ("running", "post-copy"),
        ("running", "post-copy failed"),
        ("paused", "migrating"),
        ("paused", "user"),
        ("paused", "post-copy"),
        ("paused", "post-copy failed"),
        ("shut off", "x"),
    ];
    let jobs = [DomainJob::None, DomainJob::Out, DomainJob::In, DomainJob::Other];
    let all = || states.iter().flat_map(|(state, reason)| jobs.map(|job| stand(state, reason, job)));
    for source in all() {
        for target in all() {
            match domain_found(&source, &target) {
                Found::Moved => assert!(!source.is_active() && target.is_active()),
                Found::Nothing => assert!(source.is_active() && !target.is_active()),
                Found::Ahead | Found::Broken => assert!(!source.runs() && target.is_active()),
                _ => {}
            }
        }
    }
}
