//! Fixed addresses of a Windows that were others when it was shut down than when its plan was checked.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{Event, NoObserver, Phase};
use drover_types::inventory::{FixedAddresses, Nic, PowerState, Vm};
use fakes::{PLAN, Trouble, Watch, World, enters, vm};

fn fixed(address: &str) -> FixedAddresses {
    FixedAddresses { addresses: vec![(address.parse().unwrap(), 24)], ..FixedAddresses::default() }
}

/// A Windows whose card keeps 192.0.2.7, for a plan with these lines more.
fn world(lines: &str) -> World {
    let nic = Nic {
        label: "Network adapter 1".into(),
        mac: "00:50:56:aa:00:01".into(),
        connected: true,
        fixed: Some(fixed("192.0.2.7")),
        ..Nic::default()
    };
    let win =
        Vm { guest_id: "windows2019srv_64Guest".into(), nics: vec![nic], ..vm("win", PowerState::On, 1) };
    World::with(&[win], &format!("keep_addresses: true\nnetworks: {{'*': user}}\n{lines}"))
}

/// Runs it; when it enters this phase its tools tell this, and nothing once it is off.
fn run(world: &World, phase: Phase, told: Option<FixedAddresses>) {
    world.before("create snapshot", |state| state.vms.get_mut("vm-win").unwrap().nics[0].fixed = None);
    world.run(&Watch(|event: &Event| {
        if enters(event, "win", phase) {
            world.change("vm-win", |vm| vm.nics[0].fixed.clone_from(&told));
        }
    }));
}

fn notes(world: &World, words: &str) -> Vec<String> {
    let events = world.store.events_of(PLAN, "vm-win").unwrap();
    events.into_iter().map(|event| event.text).filter(|text| text.contains(words)).collect()
}

const DIFFERS: &str = "when the plan was checked, and VMware Tools told";

#[test]
fn what_is_told_last_before_the_shutdown_counts_and_differences_are_told() {
    let same = world("");
    run(&same, Phase::PowerOff, Some(fixed("192.0.2.7")));
    assert_eq!((notes(&same, DIFFERS).len(), notes(&same, "a fake, given 192.0.2.7/24").len()), (0, 1));
    let by_dhcp = world("");
    run(&by_dhcp, Phase::PowerOff, Some(FixedAddresses::default()));
    let told = notes(&by_dhcp, DIFFERS);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("(00:50:56:aa:00:01) of win had 192.0.2.7/24")
            && told[0].contains("told no fixed address")
    );
    assert_eq!((notes(&by_dhcp, "a fake").len(), notes(&by_dhcp, "given 192.0.2.7").len()), (1, 0));
    // It was off, and nothing is told of it, when its power was looked at.
    let other = world("");
    other.before("prepare", |state| {
        let vm = state.vms.get_mut("vm-win").unwrap();
        (vm.power, vm.nics[0].fixed) = (PowerState::Off, None);
    });
    run(&other, Phase::Check, Some(fixed("192.0.2.8")));
    assert_eq!((notes(&other, DIFFERS).len(), notes(&other, "a fake, given 192.0.2.8/24").len()), (1, 1));
    let silent = world("");
    run(&silent, Phase::PowerOff, None);
    assert_eq!((notes(&silent, DIFFERS).len(), notes(&silent, "a fake, given 192.0.2.7/24").len()), (0, 1));
}

#[test]
fn a_run_that_is_resumed_after_the_shutdown_knows_what_was_told_before_it() {
    let world = world("");
    world.set_trouble("open source", Trouble::DiesBefore);
    run(&world, Phase::PowerOff, Some(FixedAddresses::default()));
    world.as_if_killed();
    assert_eq!(world.power("vm-win"), PowerState::Off);
    world.run_plan(PLAN, &world.resumed(), &NoObserver, &drover_mover::StopSignal::default()).unwrap();
    assert_eq!((notes(&world, "a fake").len(), notes(&world, "given 192.0.2.7").len()), (1, 0));
    assert_eq!(notes(&world, DIFFERS).len(), 1);
}

#[test]
fn a_warm_move_takes_what_is_told_before_its_last_pass() {
    let world = world("mode: warm\nwarm: {interval: 30m, cutover: auto}");
    run(&world, Phase::PowerOff, Some(fixed("192.0.2.9")));
    assert_eq!((notes(&world, DIFFERS).len(), notes(&world, "a fake, given 192.0.2.9/24").len()), (1, 1));
}
