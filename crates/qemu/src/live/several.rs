//! Several moves, each in a thread of its own. What is done when `drover_live::together` decides.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use drover_live::together::{Begin, Moves, Step};
use drover_live::{Event, Moment, Moved, Where};

use super::{Ending, LiveError, Place, Share, Turn};
use crate::error::QemuError;

/// Guests that are looked at or prepared at once. Each asks daemons by programs that log in one after the other, and sshd refuses
/// some of more than ten that have not logged in yet (`MaxStartups`).
pub const LOOKS_MAX: usize = 6;
/// Between two looks whether somebody wants them to stop.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Of a move that an earlier run began.
const LEFT: &str = "its move is in progress and was not resumed: run the same command again";

/// Who is told of several moves, by the guests' numbers.
pub trait Tells {
    /// Something happened to a guest.
    fn event(&mut self, number: usize, event: &Event);
    /// A guest's move begins.
    fn begins(&mut self, number: usize);
    /// A guest's move ended.
    fn ended(&mut self, number: usize, ended: Ended);
    /// A guest's move will not begin.
    fn never_begins(&mut self, number: usize, error: &LiveError);
    /// The thread of a guest's move ended without a word.
    fn died(&mut self, number: usize);
    /// How many seconds guests between two hosts take in all is foreseen anew.
    fn foreseen_anew(&mut self, between: &str, total_s: f64);
}

/// How a move ended.
pub struct Ended {
    /// The guest runs at the target, or why it does not.
    pub result: Result<Moved, LiveError>,
    /// What the source and the target told.
    pub moments: [Vec<Moment>; 2],
}

/// Sees all moves to their ends.
pub fn several(places: BTreeMap<usize, Place>, moves: &mut Moves, stop: &AtomicBool, tells: &mut dyn Tells) {
    let (news, heard) = channel();
    thread::scope(|scope| {
        let (shares, turns, threads) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Threads { scope, news, stop, places, shares, turns, threads }.run(moves, &heard, tells);
    });
    for number in moves.waiting() {
        let is_under_way = moves.begin(number).is_some_and(|begin| begin.is_under_way);
        if is_under_way {
            tells.event(number, &Event::Note(LEFT.into()));
        }
        tells.never_begins(number, &not_begun(Ending::Stopped, is_under_way));
    }
}

/// It did not begin, and will not; one that an earlier run began goes on by itself.
fn not_begun(cause: Ending, is_under_way: bool) -> LiveError {
    let guest_at = if is_under_way { Where::Unknown } else { Where::Source };
    LiveError { cause, guest_at }
}

/// What is heard of a move.
enum News {
    Event(Event),
    Ended(Box<Ended>),
}

struct Threads<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    news: Sender<(usize, News)>,
    stop: &'env AtomicBool,
    /// Of those that are not prepared yet.
    places: BTreeMap<usize, Place>,
    shares: BTreeMap<usize, Share>,
    /// Of those that are prepared and have not begun.
    turns: BTreeMap<usize, Turn>,
    /// Nothing where it has ended, and its last word was not heard yet.
    threads: BTreeMap<usize, Option<ScopedJoinHandle<'scope, ()>>>,
}

impl Threads<'_, '_> {
    fn run(&mut self, moves: &mut Moves, heard: &Receiver<(usize, News)>, tells: &mut dyn Tells) {
        let began = Instant::now();
        let mut looked = began;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                moves.stop();
            }
            for step in moves.steps() {
                self.take(moves, step, tells);
            }
            for number in moves.next_ones() {
                if self.turns.len() < LOOKS_MAX {
                    self.prepare(moves, number);
                }
            }
            // Those that were prepared and are not to begin end by themselves, and tell how.
            if self.threads.is_empty() && moves.is_over() {
                return;
            }
            // By the clock, since others may tell something all the time.
            if looked.elapsed() >= LOOK_PAUSE {
                looked = Instant::now();
                if let Some(number) = self.died() {
                    self.forget(number);
                    moves.died(number);
                    tells.died(number);
                    continue;
                }
            }
            // Its own sender is there as long as it is.
            let Ok((number, news)) = heard.recv_timeout(LOOK_PAUSE) else { continue };
            let foreseen = match news {
                News::Event(event) => {
                    tells.event(number, &event);
                    moves.hears(number, &event, began.elapsed())
                }
                News::Ended(ended) => {
                    self.forget(number);
                    let foreseen = moves.ended(number, ended.result.as_ref().ok(), began.elapsed());
                    tells.ended(number, *ended);
                    foreseen
                }
            };
            if let Some((between, total_s)) = foreseen {
                tells.foreseen_anew(between, total_s);
            }
        }
    }

    fn take(&mut self, moves: &Moves, step: Step, tells: &mut dyn Tells) {
        match step {
            Step::Share(number, rate) => {
                if let Some(share) = self.shares.get(&number) {
                    share.set(rate);
                }
            }
            Step::Begin(number, rate) => {
                self.prepare(moves, number);
                if let (Some(share), Some(rate)) = (self.shares.get(&number), rate) {
                    share.set(rate);
                }
                if let Some(turn) = self.turns.remove(&number) {
                    tells.begins(number);
                    turn.come();
                }
            }
        }
    }

    /// Has a guest wait for its turn, if it does not do so.
    fn prepare(&mut self, moves: &Moves, number: usize) {
        let Some(begin) = moves.begin(number) else { return };
        let Some(mut place) = self.places.remove(&number) else { return };
        let Begin { at_once, share, line, is_under_way } = begin;
        let (turn, share) = (Turn::new(at_once), share.map(Share::new));
        self.turns.insert(number, turn.clone());
        self.shares.extend(share.clone().map(|share| (number, share)));
        let wanted = place.wanted();
        (wanted.turn, wanted.share, wanted.line) = (Some(turn), share, line);
        let (news, stop) = (self.news.clone(), self.stop);
        let thread = Builder::new().spawn_scoped(self.scope, move || {
            let result = place.go(stop, &mut |event| drop(news.send((number, News::Event(event)))));
            let moments = place.moments();
            // What carries it goes after it.
            drop(place);
            // Nobody listens any more only when all is over.
            let _ = news.send((number, News::Ended(Box::new(Ended { result, moments }))));
        });
        let thread = thread.map_err(|why| self.not_started(number, why, is_under_way)).ok();
        self.threads.insert(number, thread);
    }

    /// No thread could be started that moves it.
    fn not_started(&mut self, number: usize, why: io::Error, is_under_way: bool) {
        self.turns.remove(&number);
        let cause = Ending::Failed(QemuError::not_started("the thread that moves it", why));
        let ended = Ended { result: Err(not_begun(cause, is_under_way)), moments: Default::default() };
        let _ = self.news.send((number, News::Ended(Box::new(ended))));
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

impl Drop for Threads<'_, '_> {
    fn drop(&mut self) {
        // Nobody waits for a turn that nobody lets come.
        self.turns.values().for_each(Turn::abandon);
    }
}
