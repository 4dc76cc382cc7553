//! Hosts and datastores that fail again and again, so that they are given up before all of their VMs had their turn.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_disk::memory::{Effect, Nth};
use drover_disk::{DiskErrorKind, DiskOp};
use drover_engine::{Event, NoObserver, Phase, VmState, cancel};
use drover_schedule::Resource;
use drover_types::inventory::{PowerState, Vm};
use fakes::{PLAN, Trouble, Watch, World, vm};

/// Those that are tried until the host is given up: three that open its breaker, then five.
const TRIED: usize = 8;

/// A run that was killed when guests were down, one VM had arrived and was not cleaned up, and one was just started.
fn killed() -> World {
    let down = (0..=TRIED).map(|at| format!("a{at}"));
    let vms: Vec<Vm> = down
        .chain(["left".to_string(), "starts".to_string()])
        .map(|name| vm(&name, PowerState::On, 1))
        .collect();
    let mut world = World::with(&vms, "start: true\nlimits: {vms_per_host: 20, disks: 20}");
    // Only one of them comes so far.
    world.set_trouble("remove snapshot", Trouble::Fails);
    let dies = Watch(|event: &Event| match event {
        Event::PhaseStarted { vm, phase: Phase::Copy } if vm.starts_with('a') => panic!("the process dies"),
        Event::PhaseStarted { vm, phase: Phase::Check } if vm == "starts" => {
            assert!(fakes::becomes(&world, || world.row("vm-left").state == VmState::NotCleanedUp));
            world.set_trouble("start", Trouble::DiesAfter);
        }
        _ => {}
    });
    world.run(&dies);
    world.as_if_killed();
    world.plan.limits.vms_per_host = 1;
    // A wait for the host takes a few looks.
    world.clock.slow_down(60_000);
    world
}

#[test]
fn what_an_earlier_run_left_half_done_is_undone_or_kept_when_its_host_is_given_up() {
    let world = killed();
    let last = format!("vm-a{TRIED}");
    let (down, left, starts) = (world.row(&last), world.row("vm-left"), world.row("vm-starts"));
    assert!(
        down.switched_off && down.snapshot.is_some() && world.power(&last) == PowerState::Off,
        "{down:?}"
    );
    assert_eq!((left.state, left.phase.as_deref()), (VmState::NotCleanedUp, Some("clean up")));
    assert_eq!((starts.phase.as_deref(), starts.started.is_some()), (Some("start"), false));
    (0..2 * TRIED).for_each(|_| world.set_trouble("open source", Trouble::Fails));
    let begun = std::sync::Mutex::new(Vec::new());
    let outcome = world.run(&Watch(|event: &Event| {
        if let Event::PhaseStarted { vm, .. } = event {
            begun.lock().unwrap().push(vm.clone());
        }
    }));
    let begun = begun.into_inner().unwrap();
    let never = |name: &str| !begun.iter().any(|it| it == name);
    assert!(never(&format!("a{TRIED}")) && never("left") && never("starts"), "{begun:?}");
    let down = world.row(&last);
    assert_eq!((down.state, down.switched_off, world.power(&last)), (VmState::Failed, false, PowerState::On));
    assert!(down.error.as_ref().unwrap().contains("was not begun: host"), "{down:?}");
    for name in ["left", "starts"] {
        let row = world.row(&format!("vm-{name}"));
        assert_eq!(row.state, VmState::NotCleanedUp, "{row:?}");
        assert!(row.error.as_ref().unwrap().contains("has arrived at the target"), "{row:?}");
        assert_eq!(world.power(&format!("vm-{name}")), PowerState::Off);
    }
    assert_eq!((outcome.not_cleaned_up, outcome.failed.len()), (2, TRIED + 1), "{outcome:?}");
    // Guests wrote to what is at the target.
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!((given_up.left.len(), given_up.arrived), (0, vec!["left".to_string(), "starts".to_string()]));
    assert_eq!((world.images().len(), world.own_snapshots()), (2, 0));
    assert!(world.runs_at_target("starts"));
}

#[test]
fn a_datastore_that_cannot_be_read_ends_its_own_vms_and_no_other_of_their_host() {
    let lies_in = |datastore: &str, name: String| {
        let mut vm = vm(&name, PowerState::Off, 1);
        vm.disks[0].datastore = datastore.into();
        vm
    };
    // The bad one's come first.
    let bad = (0..TRIED + 4).map(|at| lies_in("bad", format!("a{at:02}")));
    let good = (0..6).map(|at| lies_in("good", format!("b{at}")));
    let vms: Vec<Vm> = bad.chain(good).collect();
    let world = World::with(&vms, "limits: {vms_per_host: 2, disks: 20}");
    for (_, disk) in world.sources.iter().filter(|(name, _)| name.starts_with('a')) {
        disk.add_fault(DiskOp::Read, Nth::From(1), Effect::Fail(DiskErrorKind::Failed));
    }
    world.clock.slow_down(60_000);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (6, TRIED + 4), "{outcome:?}");
    let last = world.row(&format!("vm-a{}", TRIED + 3));
    let why = "was not begun: datastore bad failed again and again";
    assert!(last.error.as_ref().unwrap().contains(why), "{last:?}");
    assert!(last.advice.as_ref().unwrap().contains("whether the datastore is well"), "{last:?}");
    let told: Vec<_> = outcome.quarantine.iter().map(|it| (it.what.clone(), it.is_open)).collect();
    assert_eq!(told, [(Resource::Datastore("bad".into()), true)]);
    assert_eq!(world.store.runs(PLAN).unwrap()[0].facts.quarantine, outcome.quarantine);
    assert!(
        world.notes().contains("its host or its datastore fails, so it is tried again"),
        "{}",
        world.notes()
    );
    // Once it is well, the next run goes on with them.
    world.sources.values().for_each(|disk| disk.clear_faults());
    assert_eq!(world.run(&NoObserver).done, TRIED + 10);
}
