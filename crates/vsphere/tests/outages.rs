//! An API that does not answer for a while: calls wait for it, and nothing is done twice.
#![allow(clippy::unwrap_used)]

mod sim;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_types::inventory::PowerState;
use drover_vsphere::VsphereErrorKind;
use serde_json::{Value, json};

use sim::Sim;

/// More than these tests take.
const PATIENT: Duration = Duration::from_secs(600);
/// The error of a server that has answered 503 for too long.
const AWAY: VsphereErrorKind = VsphereErrorKind::Away(503);

/// Starts a simulator, or ends the test after a printed reason.
macro_rules! simulator {
    () => {
        match Sim::start() {
            Some(sim) => sim,
            None => return,
        }
    };
}

fn spoil(sim: &Sim, mut fault: Value) {
    fault["path"] = json!("/sdk");
    sim.post("/fault/http", fault);
}

#[test]
fn a_call_waits_for_the_api_as_long_as_it_was_told_to() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    // More than a few quick tries outlast.
    spoil(&sim, json!({"status": 503, "count": 5}));
    let error = session.vm(&vm.id).unwrap_err();
    assert_eq!(error.kind, AWAY);
    assert_eq!(error.to_string(), "look at web01: the vSphere API does not answer for the moment (HTTP 503)");
    sim.post("/fault/clear", json!({}));
    session.outlast(PATIENT);
    for fault in [json!({"status": 503, "count": 5}), json!({"cut_after": 0, "count": 5})] {
        let before = session.missed();
        spoil(&sim, fault);
        session.vm(&vm.id).unwrap();
        assert!(session.missed() - before >= 3, "it struck nothing");
    }
    // The services were away, and the session is gone with them.
    sim.post("/sessions/expire", json!({}));
    spoil(&sim, json!({"status": 502, "skip": 1, "count": 5}));
    session.vm(&vm.id).unwrap();
    assert_eq!(session.away(), None);

    let hasty = sim.session();
    hasty.outlast(Duration::from_secs(2));
    spoil(&sim, json!({"status": 503, "count": -1}));
    assert_eq!(hasty.vm(&vm.id).unwrap_err().kind, AWAY);
    assert_eq!(hasty.away(), Some(format!("127.0.0.1:{}: HTTP 503", sim.port)));
    sim.post("/fault/clear", json!({}));
    hasty.vm(&vm.id).unwrap();
    assert_eq!(hasty.away(), None);
}

#[test]
fn what_may_have_been_done_is_looked_at_before_it_is_asked_for_again() {
    let sim = simulator!();
    let session = sim.session();
    session.outlast(PATIENT);
    let vm = sim::vm(&session, "prod/web", "web01").id;
    // One is dropped by a proxy, of the other only the answer is lost.
    for (fault, name) in [(json!({"status": 503}), "drover-1"), (json!({"cut_after": 0}), "drover-2")] {
        spoil(&sim, fault);
        let made = session.create_snapshot(&vm, name, "", false).unwrap();
        let seen = session.vm(&vm).unwrap().snapshots;
        assert_eq!(seen.iter().filter(|it| it.name == name).count(), 1, "{seen:?}");
        assert!(seen.iter().any(|it| it.id == made.id));
    }
    for fault in [json!({"status": 503}), json!({"cut_after": 0})] {
        let left = session.vm(&vm).unwrap().snapshots;
        spoil(&sim, fault);
        session.remove_snapshot(&left[0].id).unwrap();
        assert_eq!(session.vm(&vm).unwrap().snapshots.len(), left.len() - 1);
    }
    // The first question is for the power as it is.
    let is_off = session.vm(&vm).unwrap().power == PowerState::Off;
    let ways = if is_off { [PowerState::On, PowerState::Off] } else { [PowerState::Off, PowerState::On] };
    for fault in [json!({"status": 503, "skip": 1}), json!({"cut_after": 0, "skip": 1})] {
        for wanted in ways {
            spoil(&sim, fault.clone());
            match wanted {
                PowerState::On => session.power_on(&vm).unwrap(),
                _ => session.power_off(&vm).unwrap(),
            }
            assert_eq!(session.vm(&vm).unwrap().power, wanted, "{fault}");
        }
    }
}

#[test]
fn what_became_of_a_task_that_the_server_forgot_is_looked_at() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01").id;
    let forgets = |skip: u32| {
        let fault = json!({"method": "RetrievePropertiesEx", "fault": "ManagedObjectNotFound", "skip": skip});
        sim.post("/fault/soap", fault);
    };
    forgets(0);
    let made = session.create_snapshot(&vm, "drover-1", "", false).unwrap();
    let seen = session.vm(&vm).unwrap().snapshots;
    assert_eq!(seen.iter().filter(|it| it.name == "drover-1").count(), 1, "{seen:?}");
    // The task fails, and nobody hears of it: the snapshot is there yet, and is removed by the next try.
    sim.post("/fault/soap", json!({"method": "RemoveSnapshot_Task", "fault": "FileFault", "as": "task"}));
    forgets(0);
    session.remove_snapshot(&made.id).unwrap();
    let left = session.vm(&vm).unwrap().snapshots;
    assert!(left.len() + 1 == seen.len() && left.iter().all(|it| it.id != made.id), "{left:?}");
    // One that is gone is fine.
    session.remove_snapshot(&made.id).unwrap();
    // The first question is for the power as it is.
    let is_off = session.vm(&vm).unwrap().power == PowerState::Off;
    forgets(1);
    if is_off {
        session.power_on(&vm).unwrap()
    } else {
        session.power_off(&vm).unwrap()
    }
    assert_eq!(session.vm(&vm).unwrap().power == PowerState::Off, !is_off);
}

#[test]
fn after_an_outage_a_vm_is_not_switched_on_by_leave_from_before_it() {
    let sim = simulator!();
    let session = sim.session();
    session.outlast(PATIENT);
    let vm = sim::vm(&session, "prod/web", "web01").id;
    session.power_off(&vm).unwrap();
    spoil(&sim, json!({"status": 503, "count": 5}));
    assert_eq!(session.power_on(&vm).unwrap_err().kind, VsphereErrorKind::Timeout);
    assert_eq!(session.vm(&vm).unwrap().power, PowerState::Off);
    session.power_on(&vm).unwrap();
    assert_eq!(session.vm(&vm).unwrap().power, PowerState::On);
}

#[test]
fn a_guest_that_may_not_have_heard_is_asked_again_to_shut_down() {
    let sim = simulator!();
    let session = sim.session();
    session.outlast(PATIENT);
    let vm = sim::vm(&session, "prod/web", "web01").id;
    session.power_on(&vm).unwrap();
    spoil(&sim, json!({"status": 503, "skip": 1}));
    session.ask_shutdown(&vm).unwrap();
    session.wait_until_off(&vm, Duration::from_secs(60)).unwrap();
    assert_eq!(session.vm(&vm).unwrap().power, PowerState::Off);
}

#[test]
fn a_stop_ends_the_wait_and_what_comes_after_it_does_not_wait() {
    let sim = simulator!();
    let session = sim.session();
    session.outlast(PATIENT);
    let vm = sim::vm(&session, "prod/web", "web01").id;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    session.stop_when(Arc::new(move || asked.load(Ordering::Relaxed)));
    spoil(&sim, json!({"status": 503, "count": -1}));
    let looked = std::thread::scope(|scope| {
        let looked = scope.spawn(|| session.vm(&vm));
        while session.away().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        looked.join().unwrap()
    });
    assert_eq!(looked.unwrap_err().kind, VsphereErrorKind::Stopped);
    assert_eq!(session.vm(&vm).unwrap_err().kind, AWAY);
}
