use super::*;

#[test]
fn a_plan_survives_reopening_with_all_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "text", Path::new("/plans")).unwrap();
    store.enter_vm("p", "vm-1", "web01", "{}").unwrap();
    store.enter_phase("p", "vm-1", "copy").unwrap();
    store.set_snapshot("p", "vm-1", Some("snapshot-7")).unwrap();
    store
        .put_disk(
            "p",
            &DiskRow { vm: "vm-1".into(), size: 1 << 40, root: Some("ab".into()), ..DiskRow::default() },
        )
        .unwrap();
    drop(store);
    let store = Store::open(folder.path()).unwrap();
    let vm = store.vm("p", "vm-1").unwrap().unwrap();
    assert_eq!(
        (vm.state, vm.phase.as_deref(), vm.snapshot.as_deref()),
        (VmState::Running, Some("copy"), Some("snapshot-7"))
    );
    assert_eq!(store.disks("p").unwrap()[0].size, 1 << 40);
    assert_eq!(store.plan("p").unwrap().unwrap().state, PlanState::Running);
    assert_eq!(store.events("p").unwrap().len(), 1);
}

#[test]
fn a_second_run_keeps_what_is_done_and_queues_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "one", Path::new("/")).unwrap();
    for (id, end) in [("a", VmState::Done), ("b", VmState::Failed)] {
        store.enter_vm("p", id, id, "{}").unwrap();
        store.end_vm("p", id, end, None).unwrap();
    }
    store.ask_cancel("p").unwrap();
    store.begin_plan("p", "two", Path::new("/")).unwrap();
    assert!(!store.cancel_asked("p").unwrap());
    ["a", "b"].iter().for_each(|id| store.enter_vm("p", id, id, "{}").unwrap());
    let states: Vec<_> = store.vms("p").unwrap().iter().map(|vm| vm.state).collect();
    assert_eq!(states, [VmState::Done, VmState::Queued]);
}

#[test]
fn words_for_the_report_cost_no_flush_and_ride_along_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "", Path::new("/")).unwrap();
    store.enter_vm("p", "v", "v", "{}").unwrap();
    let before = store.flushes();
    for _ in 0..100 {
        store.add_event("p", Some("v"), None, "note", "a word").unwrap();
        store.add_sample("p", 1, 2, &[]).unwrap();
        store.put_disk("p", &DiskRow { vm: "v".into(), ..DiskRow::default() }).unwrap();
    }
    assert_eq!(store.flushes(), before);
    // Another process sees them, flushed or not.
    assert_eq!(Store::open(folder.path()).unwrap().events("p").unwrap().len(), 100);
    store.enter_phase("p", "v", "copy").unwrap();
    assert_eq!(store.flushes(), before + 1, "row and event are one change");
}

#[test]
fn changes_of_many_vms_share_their_flushes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "", Path::new("/")).unwrap();
    let ids: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    let vms: Vec<_> = ids.iter().map(|id| (id.as_str(), id.as_str(), "{}".to_string())).collect();
    let before = store.flushes();
    store.enter_vms("p", vms).unwrap();
    assert_eq!(store.flushes(), before + 1);
    std::thread::scope(|scope| {
        for id in &ids {
            let store = &store;
            scope.spawn(move || (0..50).for_each(|_| store.enter_phase("p", id, "copy").unwrap()));
        }
    });
    assert!(store.flushes() - before <= 401, "never more than one for each change");
    assert_eq!(store.events("p").unwrap().len(), 400);
}

#[test]
fn a_store_that_is_removed_or_replaced_while_it_is_used_takes_no_further_step() {
    for replaced in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let store = Store::open(&path).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        store.enter_vm("p", "v", "v", "{}").unwrap();
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        if replaced {
            Store::open(&path).unwrap();
        }
        let error = store.enter_phase("p", "v", "power off").unwrap_err();
        assert!(matches!(error.source, StoreFault::Gone), "{error:?}");
        assert!(error.advice().contains("drover migrate"), "{}", error.advice());
    }
}

#[test]
fn what_to_try_goes_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("drover.db");
    let advice = || Store::open(folder.path()).unwrap_err().advice();
    std::fs::write(&db, vec![b'x'; 8192]).unwrap();
    assert!(advice().contains("damaged"), "{}", advice());
    std::fs::remove_file(&db).unwrap();
    drop(Store::open(folder.path()).unwrap());
    Connection::open(&db).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(advice().contains("the drover that made it"), "{}", advice());
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Store::open(&file.path().join("state")).unwrap_err();
    assert!(error.advice().contains("can be written"), "{}", error.advice());
}

#[test]
fn a_store_of_a_later_drover_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path()).unwrap());
    let db = Connection::open(folder.path().join("drover.db")).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    drop(db);
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error.source, StoreFault::Newer(99)));
}

#[test]
fn a_store_that_was_held_for_too_long_is_not_waited_for_as_long_again_until_it_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "", Path::new("/")).unwrap();
    assert_eq!(store.wait(), BUSY_WAIT);
    let holder = Connection::open(store.path()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    // As if it had been waited for in vain: that takes its time.
    store.is_held.store(true, Ordering::Relaxed);
    assert!(store.end_plan("p", PlanState::Done).is_err());
    assert_eq!(store.wait(), HELD_WAIT);
    holder.execute_batch("COMMIT").unwrap();
    store.end_plan("p", PlanState::Done).unwrap();
    assert_eq!(store.wait(), BUSY_WAIT);
}

#[test]
fn a_store_whose_locks_failed_is_not_asked_again_by_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "", Path::new("/")).unwrap();
    let failed = |_: &Connection| -> rusqlite::Result<()> {
        Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_PROTOCOL), None))
    };
    assert!(store.read(failed).is_err());
    let error = store.plan("p").unwrap_err();
    assert!(crate::chain(&error).contains("its locks failed earlier in this run"), "{error:?}");
    assert!(store.end_plan("p", PlanState::Done).is_err());
    assert!(Store::open(folder.path()).unwrap().plan("p").unwrap().is_some(), "the next run is asked");
}

#[test]
fn a_vm_that_was_given_up_and_is_begun_anew_has_copied_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.begin_plan("p", "", Path::new("/")).unwrap();
    let progress = |vm: &str| ProgressRow {
        vm: vm.into(),
        disk: "Hard disk 1".into(),
        activity: crate::event::DiskActivity::Copy,
        is_live: false,
        at_ms: 7,
        size_bytes: 100,
        done_bytes: 40,
        read_bytes: 40,
        left_bytes: Some(60),
        rate_bytes_per_s: None,
    };
    let entered = [("a", "given-up", "{}".to_string()), ("b", "stopped", "{}".to_string())];
    store.enter_vms("p", entered.clone()).unwrap();
    for (id, name, _) in &entered {
        store.enter_phase("p", id, "copy").unwrap();
        store.set_touched("p", id).unwrap();
        store.put_disk("p", &DiskRow { vm: id.to_string(), size: 100, ..DiskRow::default() }).unwrap();
        store.add_sample("p", 40, 40, &[progress(name)]).unwrap();
    }
    store.end_vm("p", "a", VmState::Cancelled, None).unwrap();
    store.end_vm("p", "b", VmState::Stopped, None).unwrap();
    // It may go to another name.
    store.enter_vms("p", [("a", "renamed", "{}".to_string()), entered[1].clone()]).unwrap();
    let [anew, again] = ["a", "b"].map(|id| store.vm("p", id).unwrap().unwrap());
    assert_eq!((anew.state, anew.phase, anew.touched), (VmState::Queued, None, false));
    assert_eq!((anew.started_ms, anew.ended_ms), (None, None));
    assert!(again.state == VmState::Queued && again.started_ms.is_some() && again.touched);
    let disks: Vec<String> = store.disks("p").unwrap().into_iter().map(|disk| disk.vm).collect();
    let at_work: Vec<String> = store.progress("p").unwrap().into_iter().map(|row| row.vm).collect();
    assert_eq!((disks, at_work), (vec!["b".to_string()], vec!["stopped".to_string()]));
    let sums = "SELECT group_concat(vm) FROM disk_sum";
    let sums = store.lock().query_row(sums, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(sums, "b");
}

/// Steps of SQLite's machine for each question about one VM, in a store that has so many of them in two plans.
fn steps_of_questions(vms: usize) -> Vec<i32> {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    for plan in ["p", "q"] {
        store.begin_plan(plan, "", Path::new("/")).unwrap();
        let ids: Vec<String> = (0..vms).map(|number| format!("{plan}-{number}")).collect();
        let rows: Vec<_> = ids.iter().map(|id| (id.as_str(), id.as_str(), "{}".to_string())).collect();
        store.enter_vms(plan, rows).unwrap();
        for id in &ids {
            let disk = |number| DiskRow { vm: id.clone(), number, ..DiskRow::default() };
            (0..2).for_each(|number| store.put_disk(plan, &disk(number)).unwrap());
            (0..3).for_each(|_| store.add_event(plan, Some(id), None, "note", "").unwrap());
        }
    }
    let db = store.lock();
    let steps = |sql: &&str| {
        let mut query = db.prepare(sql).unwrap();
        let mut rows = query.query(["p", "p-1"]).unwrap();
        while rows.next().unwrap().is_some() {}
        drop(rows);
        query.get_status(rusqlite::StatementStatus::VmStep)
    };
    [VM, IN_OTHER_PLANS, DISKS_OF, EVENTS_OF].iter().map(steps).collect()
}

#[test]
fn a_question_about_one_vm_costs_the_same_however_many_others_there_are() {
    let few = steps_of_questions(3);
    assert!(few.iter().all(|steps| *steps > 0));
    assert_eq!(steps_of_questions(300), few);
}
