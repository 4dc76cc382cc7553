//! Guests between the same two hosts: how they go, how long all take, and what moves tell on their way of the rest.

use std::time::Duration;

use drover_types::Estimate;

use super::moves::Mover;
use super::{Guest, Pipe, Progress, Schedule, Together, foreseen_on_the_way, schedule};
use crate::event::{Event, Moved};
use crate::forecast::Facts;
use crate::outlook::line_said;
use crate::told::Told;

/// Guests between the same two hosts.
pub struct Pair {
    /// Both hosts, in words.
    pub between: String,
    /// Numbers of the guests among all.
    pub numbers: Vec<usize>,
    /// The guests.
    pub guests: Vec<Guest>,
    /// What lies between.
    pub pipe: Pipe,
    /// What the line carries was said.
    pub line_is_known: bool,
    /// How they go.
    pub schedule: Schedule,
    pub(super) together: Together,
    so_far: Vec<Progress>,
    /// Bytes a second that all together send, as one that moves or has moved told.
    measured: Option<f64>,
    /// Share of the memory of all that holds something, as the same one told (0 to 1).
    share_in_use: f64,
    /// Seconds from the first begin to the last end.
    pub(super) foreseen_s: f64,
}

/// What is foreseen of all is told again if it is off by more: a share of it, and seconds.
const NEWS_SHARE: f64 = 0.05;
const NEWS_S: f64 = 0.5;
/// A move that was shorter tells nothing of the line.
const MEASURE_S_MIN: f64 = 1.0;

impl Pair {
    pub(super) fn new(between: String, movers: Vec<Mover>, pipe: Pipe, line_is_known: bool) -> Pair {
        let (numbers, guests): (Vec<usize>, Vec<Guest>) =
            movers.into_iter().map(|one| (one.number, one.guest)).unzip();
        let schedule = schedule(&guests, &pipe);
        let together = schedule.together(&guests);
        Pair {
            between,
            so_far: vec![Progress::Waits; guests.len()],
            foreseen_s: schedule.chosen.as_ref().map_or(0.0, |chosen| chosen.total.likely),
            measured: None,
            share_in_use: 1.0,
            numbers,
            guests,
            pipe,
            line_is_known,
            schedule,
            together,
        }
    }

    /// So many go at once.
    pub(super) fn at_once(&self) -> usize {
        self.schedule.chosen.as_ref().map_or(1, |chosen| chosen.width).min(self.guests.len())
    }

    /// What of the line a guest has, at least, where that is known.
    pub(super) fn line_of(&self, one: usize) -> Option<Estimate> {
        let turns = &self.schedule.chosen.as_ref().filter(|_| self.line_is_known)?.turns;
        Some(line_said(turns.iter().find(|turn| turn.guest == one)?.rate_least))
    }

    /// Which of these a guest is.
    pub(super) fn place(&self, number: usize) -> Option<usize> {
        self.numbers.iter().position(|other| *other == number)
    }

    /// Takes in what a move tells; whether what is foreseen of all may be another now.
    pub(super) fn hears(&mut self, one: usize, event: &Event) -> bool {
        match event {
            // Before it begins to send QEMU tells nothing of memory, which is not that none is left.
            Event::Memory(told) if told.total_bytes > 0 => {
                self.so_far[one] = Progress::Goes { left_bytes: told.sample.left_bytes };
            }
            Event::Chosen(choice) if choice.facts.so_far.seconds > 0.0 => {
                let Facts { rate, memory_bytes, used_bytes, .. } = choice.facts;
                return self.learns(rate.likely, used_bytes, memory_bytes);
            }
            _ => {}
        }
        false
    }

    /// The same at its end. One that was over before it told the line tells how fast it went, but not what an earlier run
    /// began: of that only the end was seen.
    pub(super) fn ends(&mut self, one: usize, moved: Option<&Moved>) {
        self.so_far[one] = Progress::Over;
        if let (None, Some(moved)) = (self.measured, moved)
            && !self.guests[one].is_under_way
        {
            let seconds = moved.total.as_secs_f64();
            let Told { sample, zero_bytes, .. } = &moved.last;
            let (gone, blank) = match sample.gone_bytes {
                // It told nothing of it.
                0 => (self.guests[one].facts.memory_bytes, 0),
                gone => (gone, *zero_bytes),
            };
            if seconds >= MEASURE_S_MIN {
                self.learns(gone as f64 / seconds, gone, gone.saturating_add(blank));
            }
        }
    }

    /// Both hosts, and how many seconds all take between them, if that is news.
    pub(super) fn news(&mut self, is_measured: bool, elapsed: Duration) -> Option<(&str, f64)> {
        (is_measured && self.foresee_anew(elapsed)).then_some((&self.between, self.foreseen_s))
    }

    /// Takes in that a move sends so many bytes a second, and what of its memory holds something; whether that tells anything.
    fn learns(&mut self, rate: f64, used_bytes: u64, memory_bytes: u64) -> bool {
        if rate < 1.0 {
            return false;
        }
        // How much of the memory of others is blank is not known: as much as of this one.
        let memory_bytes = memory_bytes.max(1);
        self.share_in_use = used_bytes.clamp(1, memory_bytes) as f64 / memory_bytes as f64;
        self.measured = Some(rate * self.going());
        true
    }

    /// Guests and how far they are, but for what of their memory is blank and thus not sent.
    fn in_use(&self) -> (Vec<Guest>, Vec<Progress>) {
        let share = |bytes: u64| (bytes as f64 * self.share_in_use) as u64;
        let guests = self.guests.iter().map(|guest| {
            let facts = Facts { used_bytes: share(guest.facts.used_bytes), ..guest.facts };
            Guest { facts, ..guest.clone() }
        });
        let so_far = self.so_far.iter().map(|so_far| match *so_far {
            Progress::Goes { left_bytes } => Progress::Goes { left_bytes: share(left_bytes) },
            other => other,
        });
        (guests.collect(), so_far.collect())
    }

    fn going(&self) -> f64 {
        self.together.going().len().max(1) as f64
    }

    /// Foresees how long all take, so long after the first began; whether that is worth being told. Once they were stopped
    /// nothing is: those that wait will never begin.
    fn foresee_anew(&mut self, elapsed: Duration) -> bool {
        if self.together.is_stopped() || self.together.is_over() {
            return false;
        }
        let measured = self.measured.filter(|_| !self.line_is_known);
        let line = measured.map(line_said);
        let pipe = Pipe { line: line.unwrap_or(self.pipe.line), ..self.pipe };
        let (guests, so_far) = self.in_use();
        let left = foreseen_on_the_way(&guests, &so_far, &pipe, self.at_once());
        let foreseen_s = elapsed.as_secs_f64() + left.likely;
        let off_s = (foreseen_s - self.foreseen_s).abs();
        let is_news = off_s > (self.foreseen_s * NEWS_SHARE).max(NEWS_S);
        if is_news {
            self.foreseen_s = foreseen_s;
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::{Allowed, Choice, Way, choose};
    use crate::forecast::{Promise, SoFar};
    use crate::outlook::LINE_ASSUMED;
    use crate::together::{Pace, SHARE_MIN};
    use crate::watch::Sample;

    fn pair_of(guests: usize) -> Pair {
        let bytes = 1000 << 20;
        let facts = Facts {
            used_bytes: bytes,
            memory_bytes: bytes,
            dirty: Estimate::default(),
            working_set_bytes: bytes,
            rate: LINE_ASSUMED,
            overhead: Estimate::default(),
            so_far: SoFar::default(),
        };
        let guest = |number: usize| Guest {
            name: format!("vm{number}"),
            facts,
            promise: Promise { downtime_max: Duration::from_secs(1), deadline: Duration::from_secs(3600) },
            allowed: Allowed::default(),
            channels: 4,
            disk_bytes: 0,
            rate_max: None,
            is_under_way: false,
            pace: Pace::default(),
        };
        let pipe = Pipe {
            line: LINE_ASSUMED,
            rate_max: None,
            connection: None,
            share_min: SHARE_MIN,
            at_once_max: Some(1),
        };
        let mover = |number| Mover { number, between: Default::default(), guest: guest(number) };
        let mut pair = Pair::new(String::new(), (0..guests).map(mover).collect(), pipe, false);
        pair.together.steps();
        pair
    }

    #[test]
    fn how_long_all_take_is_foreseen_anew_from_the_first_that_sends() {
        let mut pair = pair_of(3);
        assert!(pair.foreseen_s < 4.0, "by the line that is assumed: {}", pair.foreseen_s);
        assert!(!pair.foresee_anew(Duration::ZERO), "nothing is known yet");
        assert!(!pair.hears(0, &Event::Memory(told(800 << 20))));
        assert!(pair.hears(0, &Event::Chosen(Box::new(half_blank(&pair, 1e8)))));
        assert!(pair.foresee_anew(Duration::from_secs(1)));
        // Half of 800 + 1000 + 1000 MiB by 100 MB/s.
        assert!((15.0..16.5).contains(&pair.foreseen_s), "{}", pair.foreseen_s);
        assert!(!pair.foresee_anew(Duration::from_secs(1)), "it is told once");
        pair.line_is_known = true;
        assert!(pair.foresee_anew(Duration::from_secs(1)) && pair.foreseen_s < 4.0, "what was said counts");
    }

    /// What a guest tells after a second of sending, half of whose memory is blank.
    fn half_blank(pair: &Pair, bytes_per_s: f64) -> Choice {
        let so_far = SoFar { seconds: 1.0, gone_bytes: bytes_per_s as u64 };
        let rate = Estimate { likely: bytes_per_s, spread: 0.0 };
        let facts = Facts { rate, used_bytes: 500 << 20, so_far, ..pair.guests[0].facts };
        let way = Way { channels: vec![(4, rate)], channels_max: 4, zstd: None };
        choose(&pair.guests[0].promise, &facts, &way, Allowed::default())
    }

    #[test]
    fn a_bound_is_one_on_what_is_sent_and_blank_memory_is_not() {
        let mut pair = pair_of(3);
        pair.pipe.rate_max = Some(50_000_000);
        pair.hears(0, &Event::Memory(told(800 << 20)));
        assert!(pair.hears(0, &Event::Chosen(Box::new(half_blank(&pair, 5e7)))));
        assert!(pair.foresee_anew(Duration::from_secs(1)));
        // Half of 800 + 1000 + 1000 MiB by 50 MB/s.
        assert!((30.0..31.5).contains(&pair.foreseen_s), "{}", pair.foreseen_s);
    }

    #[test]
    fn a_guest_of_whose_memory_nothing_is_told_yet_is_not_about_to_end() {
        let mut pair = pair_of(2);
        pair.hears(0, &Event::Memory(Told::default()));
        assert_eq!(pair.so_far, [Progress::Waits, Progress::Waits]);
        pair.hears(0, &Event::Memory(told(7)));
        assert_eq!(pair.so_far[0], Progress::Goes { left_bytes: 7 });
    }

    #[test]
    fn what_an_earlier_run_moved_and_what_took_no_time_tell_nothing_of_the_line() {
        let mut pair = pair_of(3);
        pair.guests[0].is_under_way = true;
        pair.guests[0].facts.memory_bytes = 0;
        for (one, total_ms) in [(0, 10_000), (1, 1)] {
            let moved = moved(&pair, Duration::from_millis(total_ms));
            pair.ends(one, Some(&moved));
            assert_eq!((pair.measured, pair.share_in_use), (None, 1.0));
        }
        pair.foresee_anew(Duration::from_secs(1));
        assert!(pair.foreseen_s < 4.0, "{}", pair.foreseen_s);
    }

    #[test]
    fn nothing_is_foreseen_of_those_that_will_never_begin() {
        let mut pair = pair_of(2);
        let moved = moved(&pair, Duration::from_secs(10));
        pair.together.stop();
        pair.ends(0, Some(&moved));
        assert!(!pair.foresee_anew(Duration::from_secs(10)));
    }

    fn moved(pair: &Pair, total: Duration) -> Moved {
        Moved {
            foreseen: pair.schedule.alone[0].forecast,
            foreseen_below_s: None,
            total,
            downtime_by_qemu: None,
            stood_still: None,
            last: told(0),
            deeds: Vec::new(),
        }
    }

    #[test]
    fn one_that_is_over_before_it_tells_the_line_tells_how_fast_the_others_go() {
        let mut pair = pair_of(2);
        let moved = moved(&pair, Duration::from_secs(10));
        pair.ends(0, Some(&moved));
        assert!(pair.foresee_anew(Duration::from_secs(10)));
        assert!((19.5..20.5).contains(&pair.foreseen_s), "{}", pair.foreseen_s);
    }

    fn told(left_bytes: u64) -> Told {
        let sample = Sample { left_bytes, ..Sample::default() };
        Told { sample, total_bytes: 1000 << 20, ..Told::default() }
    }
}
