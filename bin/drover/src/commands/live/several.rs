//! `drover live` for several guests: all are looked at before any begins, and those between the same two hosts share a line
//! and a budget. How many go at once `drover_live::together` decides; each moves as one alone would. None begins if one
//! cannot; those that an earlier run began go on all the same.

mod foresee;
mod place;
mod tell;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use drover_live::together::{self, Pipe, Progress, Schedule, Step, Together, room_obstacle, schedule};
use drover_live::{Allowed, Event, LINE_ASSUMED, Where};
use drover_qemu::live::{Ending, LiveError, Share, Turn};
use drover_types::Estimate;

use super::over::Sites;
use super::{LINE_SPREAD, failure};
use crate::cli::LiveCommand;
use crate::exit::{Exit, Failure};
use crate::signals::{Undo, stop_on_signals};
use place::{Ended, Place, Ready, Refusal, between, not_begun, target_host};
use tell::Teller;
use wanted::{All, Wanted, bytes, wanted};

/// Below it a bound is more noise than bound; libvirt counts in it.
const SHARE_MIN: u64 = 1 << 20;
/// Of a move that an earlier run began.
const LEFT: &str = "its move is in progress and was not resumed: run the same command again";
/// Looks at guests at once. Each asks daemons by programs that log in one after the other, and sshd refuses some of more than
/// ten that have not logged in yet (`MaxStartups`).
const LOOKS_MAX: usize = 6;
/// So many are prepared at least while others send: small guests are sent faster than one is prepared.
const AHEAD: usize = 2;
/// Between two looks whether somebody wants them to stop.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Runs it.
pub fn run(command: &LiveCommand) -> Result<Exit, Failure> {
    let all = wanted(command)?;
    if let Some(path) = &command.args.report {
        super::record::fits(path)?;
    }
    let mut teller = Teller::begin(command, &all.guests);
    let ended = move_all(command, &all, &mut teller);
    teller.ended(ended)
}

fn move_all(command: &LiveCommand, all: &All, teller: &mut Teller) -> Result<Exit, Failure> {
    parts_fit(all)?;
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let (mut ready, mut refusals) = look(all, teller);
    let mut pairs = Vec::new();
    if refusals.is_empty() {
        pairs = self::pairs(all, &ready);
        teller.schedules(&pairs);
        refusals = promises(&pairs);
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
    let mut failures = Vec::new();
    if !refusals.is_empty() {
        failures = held_back(&all.guests, &ready, refusals, teller);
        pairs = self::pairs(all, &ready);
        teller.schedules(&pairs);
    }
    let places = ready.into_iter().map(|(number, ready)| (number, ready.place)).collect();
    // Ended in its midst, guests could be left on neither side: further signals, and readers that have gone, ask for the
    // same clean stop.
    let _undo = Undo::begin();
    let flag = stop.flag();
    let (news, heard) = channel();
    failures.extend(thread::scope(|scope| {
        let mut moves = Moves {
            scope,
            news,
            flag: &flag,
            places,
            shares: BTreeMap::new(),
            turns: BTreeMap::new(),
            threads: BTreeMap::new(),
        };
        moves.run(&mut pairs, all.budget(), &heard, teller)
    }));
    teller.sums(failures)
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
) -> Vec<(usize, Failure)> {
    for number in 0..guests.len() {
        let is_told = refusals.iter().any(|(other, _)| *other == number);
        if !is_told && !under_way.contains_key(&number) {
            let failure = Failure::new(Exit::Plan, HELD_BACK);
            refusals.push((number, Refusal { failure, guest_at: Some(Where::Source) }));
        }
    }
    for (number, refusal) in &refusals {
        teller.refused(*number, refusal);
        teller.tell_refusal(*number, refusal);
    }
    refusals.into_iter().map(|(number, refusal)| (number, refusal.failure)).collect()
}

const HELD_BACK: &str = "it is not begun, since another cannot move; the guest is at the source, as it was";

/// Guests between the same two hosts.
pub struct Pair {
    /// Both hosts, in words.
    pub between: String,
    /// Numbers of the guests among all.
    pub numbers: Vec<usize>,
    pub guests: Vec<together::Guest>,
    pub pipe: Pipe,
    pub line_is_known: bool,
    pub schedule: Schedule,
    together: Together,
    so_far: Vec<Progress>,
    /// Bytes a second that all together send, as one that moves or has moved told.
    measured: Option<f64>,
    /// Share of the memory of all that holds something, as the same one told (0 to 1).
    share_in_use: f64,
    /// Seconds from the first begin to the last end.
    foreseen_s: f64,
}

fn pairs(all: &All, ready: &BTreeMap<usize, Ready>) -> Vec<Pair> {
    let mut hosts: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for number in ready.keys() {
        hosts.entry(between(&all.guests[*number].args)).or_default().push(*number);
    }
    let line = all.line.map(|rate| bytes(rate) as f64);
    let parts = hosts.len().max(1) as u64;
    let pipe = Pipe {
        line: line.map_or(LINE_ASSUMED, |likely| Estimate { likely, spread: likely * LINE_SPREAD }),
        rate_max: all.budget().map(|budget| budget / parts),
        connection: all.connection.map(bytes),
        share_min: SHARE_MIN,
        at_once_max: all.at_once.map(usize::from),
    };
    let pair = |((from, to), numbers): ((String, String), Vec<usize>)| {
        let guest = |number: &usize| ready[number].guest(&all.guests[*number]);
        let guests: Vec<together::Guest> = numbers.iter().map(guest).collect();
        let schedule = schedule(&guests, &pipe);
        let together = schedule.together(&guests);
        let between = format!("{from} to {to}");
        let so_far = vec![Progress::Waits; guests.len()];
        let foreseen_s = schedule.chosen.as_ref().map_or(0.0, |chosen| chosen.total.likely);
        let line_is_known = line.is_some();
        let (measured, share_in_use) = (None, 1.0);
        Pair {
            between,
            numbers,
            guests,
            pipe,
            line_is_known,
            schedule,
            together,
            so_far,
            measured,
            share_in_use,
            foreseen_s,
        }
    };
    hosts.into_iter().map(pair).collect()
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

/// Those that still have something to move have equal parts of what all may send.
fn share_out(pairs: &mut [Pair], budget: u64) {
    let parts = pairs.iter().filter(|pair| !pair.together.is_over()).count().max(1) as u64;
    pairs.iter_mut().for_each(|pair| pair.together.widen(budget / parts));
}

/// Promises that cannot be kept, even by a guest that goes alone.
fn promises(pairs: &[Pair]) -> Vec<(usize, Refusal)> {
    let mut failures = Vec::new();
    for pair in pairs.iter().filter(|pair| pair.schedule.chosen.is_none()) {
        for (one, choice) in pair.schedule.alone.iter().enumerate() {
            if choice.course.is_none() && !pair.guests[one].is_under_way {
                let cause = Ending::Promise(Box::new(choice.clone()));
                let error = LiveError { cause, guest_at: Where::Source };
                let failure = weighed(&error, pair.guests[one].allowed);
                failures.push((pair.numbers[one], Refusal { failure, guest_at: Some(error.guest_at) }));
            }
        }
    }
    failures
}

/// What is heard of a move.
enum News {
    Event(Event),
    Ended(Box<Ended>),
}

/// Moves, each in a thread of its own.
struct Moves<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    news: Sender<(usize, News)>,
    flag: &'env AtomicBool,
    places: BTreeMap<usize, Place>,
    shares: BTreeMap<usize, Share>,
    /// Of those that are prepared and have not begun.
    turns: BTreeMap<usize, Turn>,
    /// Nothing where it has ended, and its last word was not heard yet.
    threads: BTreeMap<usize, Option<ScopedJoinHandle<'scope, ()>>>,
}

impl Moves<'_, '_> {
    /// Sees all to their ends; gives what those that did not move ended in.
    fn run(
        &mut self,
        pairs: &mut [Pair],
        budget: Option<u64>,
        heard: &Receiver<(usize, News)>,
        teller: &mut Teller,
    ) -> Vec<(usize, Failure)> {
        let mut failures = Vec::new();
        let began = Instant::now();
        let mut looked = began;
        loop {
            if let Some(budget) = budget {
                share_out(pairs, budget);
            }
            for pair in pairs.iter_mut() {
                if self.flag.load(Ordering::Relaxed) {
                    pair.together.stop();
                }
                for step in pair.together.steps() {
                    self.take(pair, step, teller);
                }
            }
            self.prepare_next(pairs);
            // Those that were prepared and are not to begin end by themselves, and tell how.
            if self.threads.is_empty() && pairs.iter().all(|pair| pair.together.is_over()) {
                break;
            }
            // By the clock, since others may tell something all the time.
            if looked.elapsed() >= LOOK_PAUSE {
                looked = Instant::now();
                if let Some(number) = self.died()
                    && let Some((pair, one)) = find(pairs, number)
                {
                    self.forget(number);
                    pair.together.ended(one);
                    failures.push((number, teller.died(number)));
                    continue;
                }
            }
            let (number, news) = match heard.recv_timeout(LOOK_PAUSE) {
                Ok(heard) => heard,
                // Its own sender is there as long as it is.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => continue,
            };
            let Some((pair, one)) = find(pairs, number) else { continue };
            let is_measured = match &news {
                News::Event(event) => pair.hears(one, event),
                News::Ended(ended) => pair.ends(one, ended.result.as_ref().ok()),
            };
            match news {
                News::Event(event) => {
                    match event {
                        Event::Share(rate) => pair.together.keeps(one, rate),
                        Event::Sent => pair.together.sent(one),
                        _ => {}
                    }
                    teller.event(number, &event);
                }
                News::Ended(ended) => {
                    self.forget(number);
                    pair.together.ended(one);
                    failures.extend(teller.moved(number, *ended).map(|failure| (number, failure)));
                }
            }
            if is_measured && pair.foresee_anew(began.elapsed()) {
                teller.foreseen_anew(&pair.between, pair.foreseen_s);
            }
            teller.foreseen_s = pairs.iter().map(|pair| pair.foreseen_s).fold(0.0, f64::max);
        }
        for pair in pairs.iter() {
            for one in pair.together.waiting() {
                let (number, is_under_way) = (pair.numbers[one], pair.guests[one].is_under_way);
                if is_under_way {
                    teller.event(number, &Event::Note(LEFT.into()));
                }
                failures.push((number, teller.failed(number, &not_begun(is_under_way), &[])));
            }
        }
        failures
    }

    fn take(&mut self, pair: &Pair, step: Step, teller: &mut Teller) {
        match step {
            Step::Share(one, rate) => {
                if let Some(share) = self.shares.get(&pair.numbers[one]) {
                    share.set(rate);
                }
            }
            Step::Begin(one, rate) => {
                let number = pair.numbers[one];
                self.prepare(pair, one);
                if let (Some(share), Some(rate)) = (self.shares.get(&number), rate) {
                    share.set(rate);
                }
                if let Some(turn) = self.turns.remove(&number) {
                    teller.begins(number);
                    turn.come();
                }
            }
        }
    }

    /// Those whose turn comes next are looked at and prepared while others send.
    fn prepare_next(&mut self, pairs: &[Pair]) {
        for pair in pairs {
            for one in pair.together.next_ones().into_iter().take(pair.at_once().max(AHEAD)) {
                if self.turns.len() >= LOOKS_MAX {
                    return;
                }
                self.prepare(pair, one);
            }
        }
    }

    /// Has a guest wait for its turn, if it does not do so.
    fn prepare(&mut self, pair: &Pair, one: usize) {
        let number = pair.numbers[one];
        let Some(place) = self.places.remove(&number) else { return };
        let turn = Turn::new(pair.at_once());
        self.turns.insert(number, turn.clone());
        // How much it is is said with its turn.
        let share = pair.schedule.rate_max.map(|rate| Share::new(rate.min(pair.schedule.caps[one])));
        self.shares.extend(share.clone().map(|share| (number, share)));
        let line = pair.line_of(one);
        let (news, flag) = (self.news.clone(), self.flag);
        // Nobody listens any more only when all is over.
        let ends = move |news: &Sender<_>, ended| drop(news.send((number, News::Ended(Box::new(ended)))));
        let (hand, handed) = channel::<Place>();
        let thread = Builder::new().spawn_scoped(self.scope, move || {
            let Ok(place) = handed.recv() else { return };
            let mut tell = |event| drop(news.send((number, News::Event(event))));
            ends(&news, place.go(turn, share, line, flag, &mut tell));
        });
        match thread {
            Ok(thread) => {
                self.threads.insert(number, Some(thread));
                // It waits for it.
                let _ = hand.send(place);
            }
            Err(why) => {
                self.turns.remove(&number);
                self.threads.insert(number, None);
                ends(&self.news, place.not_begun(why, pair.guests[one].is_under_way));
            }
        }
    }

    /// It is over.
    fn forget(&mut self, number: usize) {
        self.threads.remove(&number);
        self.turns.remove(&number);
    }

    /// A thread that ended without a word. One that ended well is there until its last word is heard.
    fn died(&mut self) -> Option<usize> {
        let has_ended = |thread: &Option<ScopedJoinHandle<'_, ()>>| {
            thread.as_ref().is_some_and(ScopedJoinHandle::is_finished)
        };
        let (number, thread) = self.threads.iter_mut().find(|(_, thread)| has_ended(thread))?;
        let number = *number;
        thread.take()?.join().is_err().then_some(number)
    }
}

impl Drop for Moves<'_, '_> {
    fn drop(&mut self) {
        // Nobody waits for a turn that nobody lets come.
        self.turns.values().for_each(Turn::abandon);
    }
}

fn find(pairs: &mut [Pair], number: usize) -> Option<(&mut Pair, usize)> {
    pairs.iter_mut().find_map(|pair| {
        let one = pair.numbers.iter().position(|other| *other == number)?;
        Some((pair, one))
    })
}

impl Pair {
    /// So many go at once.
    fn at_once(&self) -> usize {
        self.schedule.chosen.as_ref().map_or(1, |chosen| chosen.width).min(self.guests.len())
    }

    /// What of the line a guest has, at least, where that is known.
    fn line_of(&self, one: usize) -> Option<Estimate> {
        let turns = &self.schedule.chosen.as_ref().filter(|_| self.line_is_known)?.turns;
        let likely = turns.iter().find(|turn| turn.guest == one)?.rate_least;
        Some(Estimate { likely, spread: likely * LINE_SPREAD })
    }
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
