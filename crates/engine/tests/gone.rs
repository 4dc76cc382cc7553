//! VMs that their source does not have any more: what is said of the copy that stays, and who may say so.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{Event, GivenUp, NoObserver, Phase, VmState, cancel};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, enters, stop_at_wait, vm};

fn one() -> World {
    World::with(&[vm("on", PowerState::On, 2)], "start: true")
}

/// Runs, and is killed when the VM enters this phase.
fn die_at(world: &World, phase: Phase) {
    world.run(&Watch(|event: &Event| assert!(!enters(event, "on", phase), "the process dies")));
    world.as_if_killed();
    assert_eq!(world.row("vm-on").phase.as_deref(), Some(phase.name()));
}

fn lose(world: &World) {
    world.state().vms.remove("vm-on");
}

fn given_up(world: &World) -> GivenUp {
    cancel(PLAN, &world.store, world, world).unwrap()
}

/// Given up with its copy kept, of which this is said, with a moment in between.
fn assert_kept(world: &World, words: (&str, &str)) {
    let given_up = given_up(world);
    assert_eq!((given_up.left, given_up.kept), (vec![], vec!["on".to_string()]), "{words:?}");
    let told = world.row("vm-on").error.unwrap();
    let (begin, end) = words;
    assert!(told.contains(&format!("; {begin}")), "{words:?}: {told}");
    assert!(told.contains(&format!("{end}, and stays where it is: ")), "{words:?}: {told}");
    assert_eq!((world.images().len(), world.calls("remove images")), (2, 0), "{words:?}");
}

#[test]
fn a_whole_copy_is_whole_though_a_later_run_came_to_its_end_before_it_copied() {
    let world = one();
    die_at(&world, Phase::Define);
    let planned = world.resumed();
    lose(&world);
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(outcome.failed.len(), 1);
    assert_eq!(world.row("vm-on").phase.as_deref(), Some("check"));
    assert_kept(&world, ("its copy is whole (copied 20", "Z)"));
}

#[test]
fn a_copy_that_was_begun_again_and_cut_off_is_not_known_to_be_whole() {
    let world = one();
    die_at(&world, Phase::Define);
    die_at(&world, Phase::Copy);
    lose(&world);
    assert_kept(&world, ("its copy is not known to be whole", "whole"));
}

#[test]
fn a_whole_copy_of_which_the_target_does_not_tell_is_not_said_to_be_in_part() {
    let world = one();
    die_at(&world, Phase::Define);
    lose(&world);
    // The first two are asked to name its images.
    world.set_trouble_at("has image", 3, Trouble::Fails);
    let end = "Z; that it still is could not be confirmed)";
    assert_kept(&world, ("its copy was whole (copied 20", end));
    assert!(world.trouble_struck());
}

/// Who was killed there has nothing left that nobody forgets.
#[test]
fn what_is_left_of_one_that_is_gone_is_forgotten_before_it_counts_as_given_up() {
    type Case = (fn() -> World, &'static str);
    let cold = || {
        let world = one();
        die_at(&world, Phase::Define);
        world
    };
    let warm = || {
        let world = World::warm("warm: {interval: 1h}");
        stop_at_wait(&world, 2);
        world
    };
    let cases: [Case; 3] = [
        (cold, "UPDATE OF switched_off ON vm"),
        (warm, "DELETE ON pass"),
        // The last that is written: by then all else is forgotten.
        (warm, "UPDATE OF state ON vm WHEN NEW.state = 'cancelled'"),
    ];
    for (world, step) in cases {
        let world = world();
        lose(&world);
        let state = rusqlite::Connection::open(world.store.path()).unwrap();
        let killed = format!("CREATE TRIGGER killed BEFORE {step} BEGIN SELECT RAISE(ABORT, 'killed'); END");
        state.execute_batch(&killed).unwrap();
        let left = given_up(&world).left;
        assert!(
            left.len() == 1 && left[0].contains("what was done could not be recorded"),
            "{step}: {left:?}"
        );
        assert_ne!(world.row("vm-on").state, VmState::Cancelled, "{step}");
        state.execute_batch("DROP TRIGGER killed").unwrap();
        let given_up = given_up(&world);
        assert_eq!((given_up.left, given_up.kept), (vec![], vec!["on".to_string()]), "{step}");
        let row = world.row("vm-on");
        assert!(row.error.as_ref().unwrap().contains("its copy is whole"), "{step}: {:?}", row.error);
        assert_eq!((row.state, row.switched_off), (VmState::Cancelled, false), "{step}");
        assert!(world.store.passes_of(PLAN, "vm-on").unwrap().is_empty(), "{step}");
    }
}

#[test]
fn a_source_that_the_plan_ran_with_before_it_was_begun_anew_has_no_say() {
    let mut world = one();
    world.site.1 = "old".into();
    die_at(&world, Phase::Define);
    assert_eq!(given_up(&world).left, Vec::<String>::new());
    assert_eq!(world.calls("remove images"), 1);
    world.site.1 = "new".into();
    die_at(&world, Phase::Define);
    lose(&world);
    let given_up = given_up(&world);
    assert_eq!((given_up.left, given_up.kept), (vec![], vec!["on".to_string()]));
}

/// It may still have the VM, and that may be off there.
#[test]
fn a_source_that_the_plan_was_gone_on_with_does_not_say_that_a_vm_of_another_is_gone() {
    let mut world = one();
    world.site.1 = "old".into();
    die_at(&world, Phase::Define);
    let planned = world.resumed();
    lose(&world);
    world.site.1 = "new".into();
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(outcome.failed.len(), 1);
    let given_up = given_up(&world);
    assert!(
        given_up.left[0].contains("the plan ran with another source (ask that one)"),
        "{:?}",
        given_up.left
    );
    assert_eq!((given_up.kept, world.images().len()), (vec![], 2));
    assert!(world.row("vm-on").switched_off);
}
