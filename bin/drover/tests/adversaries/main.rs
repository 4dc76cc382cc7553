//! Adversaries: several processes on one target, kills and errors at any system call, a server between that lies, a second client
//! that does what administrators do. In seeded rounds; `make soak` plays some 10,000 of them, the ordinary test run a handful.
//!
//! A round that finds something prints the seed to have it again (docs/dev/adversaries.md).
#![allow(clippy::unwrap_used)]

mod copies;
mod dice;
mod faults;
mod moves;
mod proxy;
mod races;
mod rewritten;
mod rival;
mod run;
mod secrets;
mod site;
mod tally;

use copies::Pool;
use faults::Ways;
use moves::Life;
use site::Site;
use tally::{Settings, Tally, play};

fn races(settings: &Settings) -> Tally {
    let Some(pool) = run::can_trace().then(Pool::new).flatten() else { return Tally::default() };
    play("races", settings, |dice| races::round(&pool, dice))
}

fn faults(settings: &Settings) -> Tally {
    let Some(pool) = run::can_trace().then(Pool::new).flatten() else { return Tally::default() };
    let ways = Ways::new(&pool);
    play("faults", settings, |dice| ways.round(dice))
}

fn moves(settings: &Settings) -> Tally {
    if !run::can_trace() || !Site::is_possible() {
        return Tally::default();
    }
    let life = Life::new();
    play("moves", settings, |dice| life.round(dice))
}

fn proxies(settings: &Settings) -> Tally {
    if !Site::is_possible() {
        return Tally::default();
    }
    play("proxy", settings, rewritten::round)
}

fn rivals(settings: &Settings) -> Tally {
    if !Site::is_possible() {
        return Tally::default();
    }
    play("rival", settings, rival::round)
}

#[test]
fn several_processes_on_one_target_leave_what_the_one_that_came_through_wrote() {
    races(&Settings::few(6)).assert_none();
}

#[test]
fn a_copy_that_is_killed_or_fails_at_any_system_call_claims_nothing_and_goes_on() {
    faults(&Settings::few(6)).assert_none();
}

#[test]
fn a_migration_that_is_killed_or_fails_at_any_system_call_loses_nothing_and_leaves_nothing() {
    moves(&Settings::few(3)).assert_none();
}

#[test]
fn a_server_that_rewrites_answers_makes_no_guest_run_twice_and_no_image_wrong() {
    proxies(&Settings::few(4)).assert_none();
}

#[test]
fn a_snapshot_that_a_server_no_longer_tells_of_is_said_to_be_left() {
    if Site::is_possible() {
        [false, true].into_iter().for_each(rewritten::without_snapshots);
    }
}

#[test]
fn changed_areas_that_cannot_be_are_not_believed() {
    if Site::is_possible() {
        rewritten::with_areas(proxy::Rewrite::AreaBeyond, "contradicts itself");
        rewritten::with_areas(proxy::Rewrite::TinyPage, "contradicts itself");
    }
}

#[test]
fn somebody_who_renames_powers_and_deletes_meanwhile_is_no_reason_for_a_wrong_image() {
    rivals(&Settings::few(4)).assert_none();
}

type Adversary = fn(&Settings) -> Tally;

/// Each with its share of the rounds, in percent: those that cost the least have the most.
const ADVERSARIES: &[(&str, Adversary, u64)] = &[
    ("races", races, 40),
    ("faults", faults, 45),
    ("moves", moves, 5),
    ("proxy", proxies, 5),
    ("rival", rivals, 5),
];

/// Run by `make soak`.
#[test]
#[ignore = "takes an hour; `make soak` runs it"]
fn soak() {
    let settings = Settings::soak(10_000);
    println!("DROVER_SOAK_SEED={}", settings.seed);
    let only = std::env::var("DROVER_SOAK_ONLY").ok();
    let mut all = Tally::default();
    for (name, adversary, share) in ADVERSARIES {
        match &only {
            Some(only) if only == name => all.add(adversary(&settings)),
            Some(_) => {}
            None => all.add(adversary(&settings.share(*share))),
        }
    }
    println!("adversaries: {all}");
    all.assert_none();
}
