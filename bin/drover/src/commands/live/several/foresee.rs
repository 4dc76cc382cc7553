//! How long all take between two hosts: what moves tell on their way, and what that makes of the rest.

use std::time::Duration;

use drover_live::together::{Guest, Pipe, Progress, foreseen_on_the_way};
use drover_live::{Event, Facts, Moved, Told};
use drover_types::Estimate;

use super::{LINE_SPREAD, Pair};

/// What is foreseen of all is told again if it is off by more: a share of it, and seconds.
const NEWS_SHARE: f64 = 0.05;
const NEWS_S: f64 = 0.5;
/// A move that was shorter tells nothing of the line.
const MEASURE_S_MIN: f64 = 1.0;

impl Pair {
    /// Takes in what a move tells; whether what is foreseen of all may be another now.
    pub fn hears(&mut self, one: usize, event: &Event) -> bool {
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
    pub fn ends(&mut self, one: usize, moved: Option<&Moved>) -> bool {
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
        true
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
    pub fn foresee_anew(&mut self, elapsed: Duration) -> bool {
        if self.together.is_stopped() || self.together.is_over() {
            return false;
        }
        let measured = self.measured.filter(|_| !self.line_is_known);
        let line = measured.map(|likely| Estimate { likely, spread: likely * LINE_SPREAD });
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
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_live::together::{self, schedule};
    use drover_live::{Allowed, Choice, LINE_ASSUMED, Promise, Sample, SoFar, Way, choose};

    use super::*;
    use crate::commands::live::several::SHARE_MIN;

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
        let guest = |number: usize| together::Guest {
            name: format!("vm{number}"),
            facts,
            promise: Promise { downtime_max: Duration::from_secs(1), deadline: Duration::from_secs(3600) },
            allowed: Allowed::default(),
            channels: 4,
            disk_bytes: 0,
            rate_max: None,
            is_under_way: false,
            pace: together::Pace::default(),
        };
        let guests: Vec<together::Guest> = (0..guests).map(guest).collect();
        let pipe = Pipe {
            line: LINE_ASSUMED,
            rate_max: None,
            connection: None,
            share_min: SHARE_MIN,
            at_once_max: Some(1),
        };
        let schedule = schedule(&guests, &pipe);
        let mut together = schedule.together(&guests);
        together.steps();
        Pair {
            between: String::new(),
            numbers: (0..guests.len()).collect(),
            so_far: vec![Progress::Waits; guests.len()],
            foreseen_s: schedule.chosen.as_ref().unwrap().total.likely,
            measured: None,
            share_in_use: 1.0,
            line_is_known: false,
            guests,
            pipe,
            schedule,
            together,
        }
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
            assert!(pair.ends(one, Some(&moved)));
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
        assert!(pair.ends(0, Some(&moved)));
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
        assert!(pair.ends(0, Some(&moved)));
        assert!(pair.foresee_anew(Duration::from_secs(10)));
        assert!((19.5..20.5).contains(&pair.foreseen_s), "{}", pair.foreseen_s);
    }

    fn told(left_bytes: u64) -> Told {
        let sample = Sample { left_bytes, ..Sample::default() };
        Told { sample, total_bytes: 1000 << 20, ..Told::default() }
    }
}
