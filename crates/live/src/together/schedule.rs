//! How many go at once: each number is tried on a virtual clock, with the forecast that a single move has.
//!
//! The rates that each has while others come and go are those that [`Together`] gives when the moves are real. A move is
//! that far which its time at each of these rates makes it. Begins and ends take a while in which a move sends nothing:
//! beside others that is no loss, and so small guests go together. What guests write meanwhile is sent again, and more so
//! the slower each goes: so busy guests go one after the other. And where what is sent waits on its way, the last of a guest
//! waits behind what the others send: so few go at once over a link where short downtimes are promised.

use std::fmt;

use drover_types::Estimate;

use super::{Step, Together};
use crate::choose::{Allowed, Choice, Way, choose};
use crate::forecast::{Facts, Promise};

/// One of several guests.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    /// What it is called.
    pub name: String,
    /// What is known of it; its rate does not count.
    pub facts: Facts,
    /// What was promised for it.
    pub promise: Promise,
    /// What may be done to keep that.
    pub allowed: Allowed,
    /// Connections for its memory.
    pub channels: u8,
    /// Bytes of its disks that are copied before its memory.
    pub disk_bytes: u64,
    /// Bytes a second that it alone may send.
    pub rate_max: Option<u64>,
    /// An earlier run began to move it: nothing is asked any more, and nothing waited for.
    pub is_under_way: bool,
    /// In which it sends nothing.
    pub pace: Pace,
}

/// What a move takes beside its sending, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// To be prepared, which is done before its turn; the first ones are waited for.
    pub prepares_s: f64,
    /// From its turn until it sends, and from the last that it sends to its end.
    pub aside_s: f64,
    /// By which its downtime is longer for each other that goes at once.
    pub beside_s: f64,
}

/// What lies between both hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pipe {
    /// Bytes a second that it carries, for all together.
    pub line: Estimate,
    /// Bytes a second that may be sent, by all together.
    pub rate_max: Option<u64>,
    /// Bytes a second that one connection carries, where that was said.
    pub connection: Option<u64>,
    /// Bytes a second below which a share cannot be set.
    pub share_min: u64,
    /// At most so many send at a time, where that was said.
    pub at_once_max: Option<usize>,
}

/// What one connection of QEMU's sends where nothing else is in the way: 1.0 to 1.9 GiB/s were measured on the loopback.
const CONNECTION_BYTES_PER_S: u64 = 1 << 30;
/// By which each move may go beyond its share, in bytes a second: QEMU looks ten times a second at what was sent, and sends 64
/// pages at once (10.0 sent 2.6 MB/s where 1.75 were allowed).
const EXCESS_BYTES_PER_S: u64 = 10 * 64 * 4096;
/// Share of the budget from which on that is told.
const EXCESS_DIVISOR: u64 = 20;
/// One at a time more must make this share of the time less.
const GAIN: f64 = 0.02;
/// Up to so many at once each number is tried; beyond, about each second.
const EACH_MAX: usize = 8;
/// Ends and begins of moves are two for each; no simulation takes more.
const EVENTS_PER_GUEST: usize = 4;

/// What becomes of a guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Which guest.
    pub guest: usize,
    /// When it begins, in seconds.
    pub begins_s: f64,
    /// From its begin to its end.
    pub takes_s: f64,
    /// For which it stands still.
    pub downtime: Estimate,
    /// Bytes a second that it has, at least.
    pub rate_least: f64,
    /// Whether its promise is kept at each rate that it has.
    pub keeps: bool,
    /// Whether its memory ever becomes little enough.
    pub converges: bool,
}

/// What comes of so many at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Foreseen {
    /// So many at once.
    pub width: usize,
    /// Seconds until the last has ended.
    pub total: Estimate,
    /// Each guest, in the order in which they begin.
    pub turns: Vec<Turn>,
    /// In words.
    pub way: String,
    /// The guest that does not keep its promise, in words.
    pub misses: Option<String>,
}

impl Foreseen {
    /// Whether each guest keeps its promise.
    pub fn keeps(&self) -> bool {
        self.misses.is_none()
    }

    /// Seconds for which a guest stands still, at most.
    pub fn downtime_most(&self) -> f64 {
        self.turns.iter().map(|turn| turn.downtime.likely).fold(0.0, f64::max)
    }
}

impl fmt::Display for Foreseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Foreseen { way, total, misses, .. } = self;
        let (low, high) = ((total.likely - total.spread).max(0.0), total.likely + total.spread);
        write!(f, "{way}: {:.1} s in all ({low:.1} to {high:.1}), ", total.likely)?;
        match misses {
            None => {
                write!(f, "each down {:.0} ms at most: keeps each promise", self.downtime_most() * 1000.0)
            }
            Some(misses) => write!(f, "but {misses}"),
        }
    }
}

/// How several guests go.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The one that is taken; nothing where none keeps each promise.
    pub chosen: Option<Foreseen>,
    /// Each number that was looked at.
    pub looked_at: Vec<Foreseen>,
    /// Bytes a second for all together, as far as there is a bound.
    pub rate_max: Option<u64>,
    /// Bytes a second that each can send at most, by guest.
    pub caps: Vec<u64>,
    /// What each would take by itself, by guest.
    pub alone: Vec<Choice>,
}

impl Schedule {
    /// Bytes a second by which all together may go beyond their budget, where that is much.
    pub fn excess(&self) -> Option<u64> {
        let found = self.chosen.as_ref()?;
        let excess = found.width.min(found.turns.len()) as u64 * EXCESS_BYTES_PER_S;
        (excess > self.rate_max? / EXCESS_DIVISOR).then_some(excess)
    }

    /// The moves, ready to begin; one after the other where nothing was chosen.
    pub fn together(&self, guests: &[Guest]) -> Together {
        let found = self.chosen.as_ref().or(self.looked_at.first());
        let order = found.map(|found| found.turns.iter().map(|turn| turn.guest).collect());
        let under_way: Vec<bool> = guests.iter().map(|guest| guest.is_under_way).collect();
        let width = found.map_or(1, |found| found.width);
        Together::new(self.rate_max, width, order.unwrap_or_default(), &self.caps, &under_way)
    }
}

/// Finds how many guests go at once: the fewest that end about as soon as any number does, and keep each promise.
///
/// They begin in this order: those that an earlier run began, then the longest first, then as they were given.
pub fn schedule(guests: &[Guest], pipe: &Pipe) -> Schedule {
    let caps: Vec<u64> = guests.iter().map(|guest| pipe.cap(guest)).collect();
    let alone: Vec<Choice> =
        guests.iter().zip(&caps).map(|(guest, cap)| pipe.choice(guest, pipe.carries(*cap), 1)).collect();
    let mut order: Vec<usize> = (0..guests.len()).collect();
    let takes = |one: usize| pipe.takes_s(&guests[one], pipe.carries(caps[one]), &alone[one]);
    order.sort_by(|a, b| {
        let first = guests[*b].is_under_way.cmp(&guests[*a].is_under_way);
        first.then(takes(*b).total_cmp(&takes(*a)))
    });
    let sim = |width| Sim { guests, pipe, caps: &caps, order: &order, width };
    let looked_at: Vec<Foreseen> = widths(guests.len(), pipe).map(|width| sim(width).foreseen()).collect();
    let soonest = looked_at.iter().filter(|one| one.keeps()).map(|one| one.total.likely);
    let soonest = soonest.fold(f64::INFINITY, f64::min);
    let is_soon = |one: &&Foreseen| one.keeps() && one.total.likely <= soonest * (1.0 + GAIN);
    let chosen = looked_at.iter().find(is_soon).cloned();
    Schedule { chosen, looked_at, rate_max: pipe.rate_max, caps, alone }
}

/// How far one of several moves is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It sends nothing yet.
    Waits,
    /// It sends its memory.
    Goes {
        /// Bytes of memory that it has not sent.
        left_bytes: u64,
    },
    /// It has ended.
    Over,
}

/// Seconds from now until the last has ended, where so many go at once.
pub fn foreseen_on_the_way(guests: &[Guest], so_far: &[Progress], pipe: &Pipe, width: usize) -> Estimate {
    let rest = guests.iter().zip(so_far).filter_map(|(guest, so_far)| rest(guest, *so_far));
    let rest: Vec<Guest> = rest.collect();
    let pipe = Pipe { at_once_max: Some(width), ..*pipe };
    schedule(&rest, &pipe).looked_at.last().map(|widest| widest.total).unwrap_or_default()
}

/// What is left to do of a move.
fn rest(guest: &Guest, so_far: Progress) -> Option<Guest> {
    // It was prepared while others sent.
    let guest = Guest { pace: Pace { prepares_s: 0.0, ..guest.pace }, ..guest.clone() };
    match so_far {
        Progress::Waits => Some(guest),
        Progress::Goes { left_bytes } => {
            let facts = Facts { used_bytes: left_bytes, memory_bytes: left_bytes, ..guest.facts };
            Some(Guest { facts, disk_bytes: 0, is_under_way: true, ..guest })
        }
        Progress::Over => None,
    }
}

/// Numbers of guests at once that are looked at.
fn widths(guests: usize, pipe: &Pipe) -> impl Iterator<Item = usize> {
    let fit = pipe.rate_max.map_or(usize::MAX, |rate| {
        usize::try_from(rate / pipe.share_min.max(1)).unwrap_or(usize::MAX).max(1)
    });
    let most = guests.min(fit).min(pipe.at_once_max.unwrap_or(usize::MAX)).max(1);
    let mut next = 1;
    std::iter::from_fn(move || {
        let width = next;
        next = if width < EACH_MAX { width + 1 } else { (width * 3 / 2).min(most.max(width + 1)) };
        (width <= most).then_some(width)
    })
}

impl Pipe {
    /// Bytes a second that a guest can send at most.
    fn cap(&self, guest: &Guest) -> u64 {
        let connection = self.connection.unwrap_or(CONNECTION_BYTES_PER_S);
        let sent = connection.saturating_mul(u64::from(guest.channels.max(1)));
        sent.min(guest.rate_max.unwrap_or(u64::MAX)).max(1)
    }

    /// Bytes a second for all together.
    fn capacity(&self, line: f64) -> u64 {
        (line.max(1.0) as u64).min(self.rate_max.unwrap_or(u64::MAX))
    }

    /// Bytes a second that a guest has which goes alone.
    fn carries(&self, cap: u64) -> u64 {
        self.capacity(self.line.likely).min(cap)
    }

    /// What a guest would do with such a rate, where so many go at once.
    fn choice(&self, guest: &Guest, rate: u64, at_once: usize) -> Choice {
        let likely = rate as f64;
        let spread = likely * (self.line.spread / self.line.likely.max(1.0));
        // A bound is kept, so it is nothing that may be more.
        let spread =
            if self.rate_max.is_some_and(|most| most as f64 <= self.line.likely) { 0.0 } else { spread };
        let mut facts = Facts { rate: Estimate { likely, spread }, ..guest.facts };
        facts.overhead.likely += guest.pace.beside_s * at_once.saturating_sub(1) as f64;
        let way =
            Way { channels: vec![(guest.channels, facts.rate)], channels_max: guest.channels, zstd: None };
        choose(&guest.promise, &facts, &way, guest.allowed)
    }

    /// Seconds from the begin to the end of a move with such a rate.
    fn takes_s(&self, guest: &Guest, rate: u64, choice: &Choice) -> f64 {
        guest.pace.aside_s + sends_s(guest, rate, choice)
    }
}

/// Of these, those in which it sends.
fn sends_s(guest: &Guest, rate: u64, choice: &Choice) -> f64 {
    guest.disk_bytes as f64 / rate.max(1) as f64 + choice.forecast.total.likely
}

/// Moves on a virtual clock.
struct Sim<'a> {
    guests: &'a [Guest],
    pipe: &'a Pipe,
    caps: &'a [u64],
    order: &'a [usize],
    /// So many go at once.
    width: usize,
}

/// A move on its way.
struct Going {
    turn: Turn,
    /// Seconds in which it sends nothing yet.
    aside_s: f64,
    /// What is to be done, from 1 down to 0.
    left: f64,
    /// Seconds that all of it would take at the rate that it has.
    sends_s: f64,
}

impl Going {
    fn ends_in(&self) -> f64 {
        self.aside_s + self.left * self.sends_s
    }

    fn pass(&mut self, seconds: f64) {
        let aside = seconds.min(self.aside_s);
        self.aside_s -= aside;
        self.left = (self.left - (seconds - aside) / self.sends_s.max(f64::MIN_POSITIVE)).max(0.0);
    }
}

impl Sim<'_> {
    fn foreseen(&self) -> Foreseen {
        let Estimate { likely, spread } = self.pipe.line;
        let (width, turns) = (self.width, self.run(likely));
        let ends = |turns: &[Turn]| turns.iter().map(|turn| turn.begins_s + turn.takes_s).fold(0.0, f64::max);
        let total = ends(&turns);
        let off = |line: f64| (ends(&self.run(line)) - total).abs();
        let total = Estimate { likely: total, spread: off(likely - spread).max(off(likely + spread)) };
        let way = match width {
            _ if self.guests.len() == 1 => "alone".to_string(),
            1 => "one after the other".to_string(),
            all if all >= self.guests.len() => "all at once".to_string(),
            some => format!("{some} at a time"),
        };
        let misses = turns.iter().find(|turn| !turn.keeps).map(|turn| self.misses(turn));
        Foreseen { width, total, turns, way, misses }
    }

    fn misses(&self, turn: &Turn) -> String {
        let name = &self.guests[turn.guest].name;
        let rate = turn.rate_least / 1e6;
        match turn.converges {
            true => format!("{name} takes too long with {rate:.1} MB/s"),
            false => format!("{name} does not converge with {rate:.1} MB/s"),
        }
    }

    /// Each guest's turn, where the line carries so much.
    fn run(&self, line: f64) -> Vec<Turn> {
        let under_way: Vec<bool> = self.guests.iter().map(|guest| guest.is_under_way).collect();
        let budget = Some(self.pipe.capacity(line));
        let mut together = Together::new(budget, self.width, self.order.to_vec(), self.caps, &under_way);
        let mut going: Vec<Going> = Vec::new();
        let mut turns = Vec::new();
        let mut now_s = 0.0;
        for _ in 0..self.guests.len() * EVENTS_PER_GUEST {
            self.take_steps(&mut together, &mut going, now_s);
            let Some(next) =
                (0..going.len()).min_by(|a, b| going[*a].ends_in().total_cmp(&going[*b].ends_in()))
            else {
                break;
            };
            let seconds = going[next].ends_in();
            now_s += seconds;
            going.iter_mut().for_each(|one| one.pass(seconds));
            let mut turn = going.remove(next).turn;
            turn.takes_s = now_s - turn.begins_s;
            together.ended(turn.guest);
            turns.push(turn);
        }
        let place = |turn: &Turn| self.order.iter().position(|guest| *guest == turn.guest);
        turns.sort_by_key(place);
        turns
    }

    /// Does at once what is to be done.
    fn take_steps(&self, together: &mut Together, going: &mut Vec<Going>, now_s: f64) {
        loop {
            let steps = together.steps();
            if steps.is_empty() {
                return;
            }
            for step in steps {
                match step {
                    Step::Begin(guest, share) => {
                        going.push(self.begin(guest, share.unwrap_or(self.caps[guest]), now_s))
                    }
                    Step::Share(guest, share) => {
                        together.keeps(guest, share);
                        if let Some(one) = going.iter_mut().find(|one| one.turn.guest == guest) {
                            self.has_rate(one, share);
                        }
                    }
                }
            }
        }
    }

    fn begin(&self, guest: usize, share: u64, now_s: f64) -> Going {
        let turn = Turn {
            guest,
            begins_s: now_s,
            takes_s: 0.0,
            downtime: Estimate::default(),
            rate_least: f64::INFINITY,
            keeps: true,
            converges: true,
        };
        let Pace { prepares_s, aside_s, .. } = self.guests[guest].pace;
        let prepares_s = if now_s > 0.0 { 0.0 } else { prepares_s };
        let mut one = Going { turn, aside_s: prepares_s + aside_s, left: 1.0, sends_s: 0.0 };
        self.has_rate(&mut one, share);
        one
    }

    fn has_rate(&self, one: &mut Going, rate: u64) {
        let guest = &self.guests[one.turn.guest];
        let choice = self.pipe.choice(guest, rate, self.width.min(self.guests.len()));
        one.sends_s = sends_s(guest, rate, &choice);
        let turn = &mut one.turn;
        turn.rate_least = turn.rate_least.min(rate as f64);
        turn.downtime = choice.forecast.downtime;
        // What an earlier run promised is not asked again.
        turn.keeps &= choice.course.is_some() || guest.is_under_way;
        turn.converges &= choice.forecast.converges;
    }
}
