//! `drover live` for several guests: all are looked at before any begins, and those between the same two hosts share a line
//! and a budget. How many go at once `drover_live::together` decides; each moves as one alone would. None begins if one
//! cannot; those that an earlier run began go on all the same.

mod place;
mod tell;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};

use drover_live::together::{Bounds, Moves, SHARE_MIN, room_obstacle};
use drover_live::{Allowed, Choice, Event, Where};
use drover_qemu::live::{Ending, LOOKS_MAX, LiveError, Tells, several};

use super::failure;
use super::over::Sites;
use crate::cli::LiveCommand;
use crate::exit::{Exit, Failure};
use crate::signals::{Undo, stop_on_signals};
use place::{Ready, Refusal, between, target_host};
use tell::Teller;
use wanted::{All, Wanted, bytes, wanted};

/// Runs it.
pub fn run(command: &LiveCommand) -> Result<Exit, Failure> {
    let all = wanted(command)?;
    if let Some(path) = &command.args.report {
        super::record::fits(path)?;
    }
    let mut teller = Teller::begin(command, &all.guests);
    let ended = move_all(command, &all, &mut teller);
    teller.write(ended)
}

fn move_all(command: &LiveCommand, all: &All, teller: &mut Teller) -> Result<Exit, Failure> {
    parts_fit(all)?;
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let (mut ready, mut refusals) = look(all, teller);
    let mut moves = Moves::default();
    if refusals.is_empty() {
        moves = self::moves(all, &ready);
        teller.schedules(&moves);
        refusals = promises(&moves);
    }
    if !refusals.is_empty() {
        let is_refused = |number: usize| refusals.iter().any(|(other, _)| *other == number);
        ready.retain(|number, ready| ready.known.under_way.is_some() && !is_refused(*number));
        if command.args.dry_run || ready.is_empty() {
            return Err(refused(&all.guests, &refusals, teller));
        }
    }
    if command.args.dry_run {
        return Ok(Exit::Success);
    }
    if !refusals.is_empty() {
        held_back(&all.guests, &ready, refusals, teller);
        moves = self::moves(all, &ready);
        teller.schedules(&moves);
    }
    let mut places = BTreeMap::new();
    for (number, Ready { opened, .. }) in ready {
        teller.goes_over(number, opened.over);
        places.insert(number, opened.place);
    }
    // Ended in its midst, guests could be left on neither side: further signals, and readers that have gone, ask for the
    // same clean stop.
    let _undo = Undo::begin();
    several(places, &mut moves, &stop.flag(), teller);
    teller.sums(moves.foreseen_s())
}

/// Looks at all guests; changes nothing. Gives those that can move, by their numbers, and all that stands in the way of any.
fn look(all: &All, teller: &mut Teller) -> (BTreeMap<usize, Ready>, Vec<(usize, Refusal)>) {
    let (guests, sites) = (&all.guests, Sites::within(all.budget()));
    let looks = each(guests, LOOKS_MAX, |wanted| {
        let mut told = Vec::new();
        let ready = Ready::look(&wanted.args, &sites, &mut |event| told.push(event));
        (ready, told)
    });
    let mut ready = BTreeMap::new();
    let mut failures = Vec::new();
    for (number, look) in looks.into_iter().enumerate() {
        let (looked, told) = look.unwrap_or_else(|| (Err(panicked()), Vec::new()));
        told.iter().for_each(|event| teller.event(number, event));
        match looked {
            Ok(one) => {
                if let Some(words) = one.known.under_way {
                    teller.event(number, &Event::Note(words.into()));
                }
                ready.insert(number, one);
            }
            Err(refusal) => failures.push((number, refusal)),
        }
    }
    failures.extend(rooms(guests, &ready));
    failures.extend(twice(guests, &ready));
    (ready, failures)
}

/// Does the same with each, so many at once; gives nothing for one whose thread panicked.
fn each<T: Sync, R: Send>(all: &[T], most: usize, does: impl Fn(&T) -> R + Sync) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(number) else { return done };
            // What one ends in is its own affair. `does` keeps nothing that a panic could leave half done.
            done.push((number, catch_unwind(AssertUnwindSafe(|| does(one))).ok()));
        }
    };
    let mut results: Vec<Option<R>> = all.iter().map(|_| None).collect();
    thread::scope(|scope| {
        // Where a limit lets fewer threads start, fewer do the work; this one does at any rate.
        let helpers = 1..most.min(all.len());
        let helpers: Vec<_> = helpers.map_while(|_| Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut done = work();
        done.extend(helpers.into_iter().flat_map(|helper| helper.join().unwrap_or_default()));
        done.into_iter().for_each(|(number, result)| results[number] = result);
    });
    results
}

fn panicked() -> Refusal {
    let failure = Failure::new(Exit::Internal, "internal error: the thread that looked at it ended");
    Refusal { failure, guest_at: None }
}

/// Domains that are named twice, by two addresses of a daemon: none of them is moved.
fn twice(guests: &[Wanted], ready: &BTreeMap<usize, Ready>) -> Vec<(usize, Refusal)> {
    let mut domains: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, one) in ready {
        domains.entry(one.uuid.as_deref().unwrap_or_default()).or_default().push(*number);
    }
    let mut found = Vec::new();
    for (uuid, numbers) in domains.iter().filter(|(uuid, numbers)| !uuid.is_empty() && numbers.len() > 1) {
        let names: Vec<&str> = numbers.iter().map(|number| guests[*number].name.as_str()).collect();
        let failure = Failure::new(Exit::Plan, format!("{} are one domain, {uuid}", names.join(" and ")));
        let refusal = Refusal { failure: failure.advise("name it once"), guest_at: None };
        found.extend(numbers.iter().map(|number| (*number, refusal.clone())));
    }
    found
}

/// Hosts that have room for each guest, and not for all. Asked only where each can move.
fn rooms(guests: &[Wanted], ready: &BTreeMap<usize, Ready>) -> Vec<(usize, Refusal)> {
    if ready.len() < guests.len() {
        return Vec::new();
    }
    let mut hosts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, _) in ready.iter().filter(|(_, ready)| ready.known.under_way.is_none()) {
        hosts.entry(target_host(&guests[*number].args)).or_default().push(*number);
    }
    let mut found = Vec::new();
    for (host, numbers) in hosts {
        let free = numbers.iter().filter_map(|number| ready[number].known.free_bytes).min();
        let need = |number: &usize| (guests[*number].name.as_str(), ready[number].known.facts.memory_bytes);
        let needs: Vec<(&str, u64)> = numbers.iter().map(need).collect();
        if let Some(obstacle) = free.and_then(|free| room_obstacle(&host, &needs, free)) {
            let error = LiveError { cause: Ending::Obstacles(vec![obstacle]), guest_at: Where::Source };
            found.push((numbers[0], error.into()));
        }
    }
    found
}

/// All that stands in the way, by its worst cause.
fn refused(guests: &[Wanted], refusals: &[(usize, Refusal)], teller: &mut Teller) -> Failure {
    let exit = worst(refusals.iter().map(|(_, refusal)| refusal.failure.exit));
    let mut text = "no guest was moved, since not all can be:".to_string();
    for (number, refusal) in refusals {
        let failure = &refusal.failure;
        text.push_str(&format!("\n  {}: {}", guests[*number].name, failure.message));
        if let Some(advice) = &failure.advice {
            text.push_str(&format!("\n    try: {advice}"));
        }
        teller.refused(*number, refusal);
    }
    Failure::new(exit, text)
}

/// Tells of all but those that are under way that they are not begun, and why: what stands in their own way, or in another's.
fn held_back(
    guests: &[Wanted],
    under_way: &BTreeMap<usize, Ready>,
    mut refusals: Vec<(usize, Refusal)>,
    teller: &mut Teller,
) {
    for number in 0..guests.len() {
        let is_told = refusals.iter().any(|(other, _)| *other == number);
        if !is_told && !under_way.contains_key(&number) {
            let failure = Failure::new(Exit::Plan, HELD_BACK);
            refusals.push((number, Refusal { failure, guest_at: Some(Where::Source) }));
        }
    }
    for (number, refusal) in refusals {
        teller.refused(number, &refusal);
        teller.held_back(number, refusal.failure);
    }
}

const HELD_BACK: &str = "it is not begun, since another cannot move; the guest is at the source, as it was";

fn moves(all: &All, ready: &BTreeMap<usize, Ready>) -> Moves {
    let bounds = Bounds {
        line: all.line.map(|rate| bytes(rate) as f64),
        rate_max: all.budget(),
        connection: all.connection.map(bytes),
        at_once_max: all.at_once.map(usize::from),
    };
    let mover = |(number, ready): (&usize, &Ready)| ready.mover(*number, &all.guests[*number]);
    Moves::new(ready.iter().map(mover).collect(), &bounds)
}

/// Fails if what all may send is too little for the parts that each two hosts have of it.
fn parts_fit(all: &All) -> Result<(), Failure> {
    let hosts: BTreeSet<(String, String)> = all.guests.iter().map(|wanted| between(&wanted.args)).collect();
    let parts = hosts.len() as u64;
    match all.budget() {
        Some(budget) if parts > 1 && budget / parts < SHARE_MIN => {
            let what = format!(
                "--rate-max: the guests move between {parts} pairs of hosts, which have equal parts of it, and 8.4m is the least for each"
            );
            Err(Failure::new(Exit::Usage, what).advise("allow more, or move between fewer hosts at a time"))
        }
        _ => Ok(()),
    }
}

/// Promises that cannot be kept, even by a guest that goes alone.
fn promises(moves: &Moves) -> Vec<(usize, Refusal)> {
    let broken = moves.broken_promises().into_iter();
    let refusal = |(number, choice, allowed): (usize, &Choice, Allowed)| {
        let cause = Ending::Promise(Box::new(choice.clone()));
        let error = LiveError { cause, guest_at: Where::Source };
        (number, Refusal { failure: weighed(&error, allowed), guest_at: Some(error.guest_at) })
    };
    broken.map(refusal).collect()
}

/// What a guest's move ended in. Where it is counts more than why: one that is not at the source is what has to be seen to
/// first.
fn weighed(error: &LiveError, allowed: Allowed) -> Failure {
    let failure = failure(error, allowed);
    match error.guest_at {
        Where::Source => failure,
        Where::Ended
        | Where::Target
        | Where::Both
        | Where::Between
        | Where::Lost { .. }
        | Where::Waiting
        | Where::Halted
        | Where::Held
        | Where::Unknown => Failure { exit: Exit::Target, ..failure },
    }
}

/// The exit code of the worst of several causes: what may have touched a guest before what did not.
fn worst(exits: impl Iterator<Item = Exit>) -> Exit {
    let order = [
        Exit::Target,
        Exit::Source,
        Exit::Connection,
        Exit::Access,
        Exit::Internal,
        Exit::Interrupted,
        Exit::Plan,
    ];
    let rank = |exit: &Exit| order.iter().position(|other| other == exit).unwrap_or(order.len());
    exits.min_by_key(rank).unwrap_or(Exit::Success)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use drover_live::Unclear;

    use super::*;

    #[test]
    fn no_more_are_looked_at_at_once_than_may_be_and_one_that_panics_is_one() {
        let (state, changed) = (Mutex::new((0, 0, 0)), Condvar::new());
        let numbers: Vec<usize> = (0..20).collect();
        let done = each(&numbers, 3, |number| {
            let mut held = state.lock().unwrap();
            let (now, most, begun) = &mut *held;
            (*now, *begun) = (*now + 1, *begun + 1);
            *most = (*now).max(*most);
            changed.notify_all();
            // The first ones stay until three are there at once.
            let mut held = changed.wait_while(held, |(_, most, _)| *most < 3).unwrap();
            held.0 -= 1;
            drop(held);
            assert_ne!(*number, 7, "it panics");
            number * 2
        });
        assert_eq!(*state.lock().unwrap(), (0, 3, 20));
        let expected = |number: &usize| (*number != 7).then_some(number * 2);
        assert_eq!(done, numbers.iter().map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn the_worst_cause_gives_the_exit_code() {
        let of = |exits: &[Exit]| worst(exits.iter().copied());
        assert_eq!(of(&[]), Exit::Success);
        assert_eq!(of(&[Exit::Interrupted, Exit::Target, Exit::Source]), Exit::Target);
        assert_eq!(of(&[Exit::Plan, Exit::Interrupted]), Exit::Interrupted);
        assert_eq!(of(&[Exit::Usage, Exit::Plan]), Exit::Plan);
    }

    #[test]
    fn a_guest_that_is_not_at_the_source_is_worse_than_any_cause() {
        let of = |guest_at| {
            let error = LiveError { cause: Ending::Unclear(Unclear::BothRun), guest_at };
            weighed(&error, Allowed::default()).exit
        };
        assert_eq!(
            (of(Where::Source), of(Where::Unknown), of(Where::Both)),
            (Exit::Plan, Exit::Target, Exit::Target)
        );
        assert_eq!(worst([Exit::Interrupted, of(Where::Held)].into_iter()), Exit::Target);
    }
}
