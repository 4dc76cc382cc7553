//! How long all take between two hosts: what moves tell on their way, and what that makes of the rest.

use std::time::Duration;

use drover_copy::converge::Estimate;
use drover_live::Facts;
use drover_live::together::{Pipe, Progress, foreseen_on_the_way};
use drover_qemu::live::{Event, Moved};

use super::{LINE_SPREAD, Pair};

/// What is foreseen of all is told again if it is off by more: a share of it, and seconds.
const NEWS_SHARE: f64 = 0.05;
const NEWS_S: f64 = 0.5;

impl Pair {
    /// Takes in what a move tells; whether what is foreseen of all may be another now.
    pub fn hears(&mut self, one: usize, event: &Event) -> bool {
        match event {
            Event::Memory(told) => self.so_far[one] = Progress::Goes { left_bytes: told.sample.left_bytes },
            Event::Chosen(choice) if choice.facts.so_far.seconds > 0.0 => {
                // How much of the memory of others is blank is not known: as much as of this one.
                let Facts { rate, memory_bytes, used_bytes, .. } = choice.facts;
                let blanks = memory_bytes.max(1) as f64 / used_bytes.clamp(1, memory_bytes.max(1)) as f64;
                self.measured = Some(rate.likely * blanks * self.going());
                return true;
            }
            _ => {}
        }
        false
    }

    /// The same at its end. One that was over before it told the line tells how fast it went.
    pub fn ends(&mut self, one: usize, moved: Option<&Moved>) -> bool {
        self.so_far[one] = Progress::Over;
        if let (None, Some(moved)) = (self.measured, moved) {
            let seconds = moved.total.as_secs_f64().max(f64::MIN_POSITIVE);
            self.measured = Some(self.guests[one].facts.memory_bytes as f64 / seconds * self.going());
        }
        true
    }

    fn going(&self) -> f64 {
        self.together.going().len().max(1) as f64
    }

    /// Foresees how long all take, so long after the first began; whether that is worth being told.
    pub fn foresee_anew(&mut self, elapsed: Duration) -> bool {
        if self.together.is_over() {
            return false;
        }
        let measured = self.measured.filter(|_| !self.line_is_known);
        let line = measured.map(|likely| Estimate { likely, spread: likely * LINE_SPREAD });
        let pipe = Pipe { line: line.unwrap_or(self.pipe.line), ..self.pipe };
        let left = foreseen_on_the_way(&self.guests, &self.so_far, &pipe, self.at_once());
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
    use drover_live::{Allowed, Promise, Sample, SoFar, Way, choose};
    use drover_qemu::live::Told;

    use super::*;
    use crate::commands::live::several::{LINE_ASSUMED, SHARE_MIN};

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
        // 100 MB/s, and half of its memory is blank: a second of it is over, and 20 of 1000 MiB.
        let so_far = SoFar { seconds: 1.0, gone_bytes: 100_000_000 };
        let rate = Estimate { likely: 1e8, spread: 0.0 };
        let facts = Facts { rate, used_bytes: 500 << 20, so_far, ..pair.guests[0].facts };
        let way = Way { channels: vec![(4, rate)], channels_max: 4, zstd: None };
        let choice = choose(&pair.guests[0].promise, &facts, &way, Allowed::default());
        assert!(!pair.hears(0, &Event::Memory(told(800 << 20))));
        assert!(pair.hears(0, &Event::Chosen(Box::new(choice))));
        assert!(pair.foresee_anew(Duration::from_secs(1)));
        // 800 + 1000 + 1000 MiB by 200 MB/s.
        assert!((15.0..16.5).contains(&pair.foreseen_s), "{}", pair.foreseen_s);
        assert!(!pair.foresee_anew(Duration::from_secs(1)), "it is told once");
        pair.line_is_known = true;
        assert!(pair.foresee_anew(Duration::from_secs(1)) && pair.foreseen_s < 4.0, "what was said counts");
    }

    #[test]
    fn one_that_is_over_before_it_tells_the_line_tells_how_fast_the_others_go() {
        let mut pair = pair_of(2);
        let moved = Moved {
            foreseen: pair.schedule.alone[0].forecast,
            foreseen_below_s: None,
            total: Duration::from_secs(10),
            downtime_by_qemu: None,
            stood_still: None,
            last: told(0),
            deeds: Vec::new(),
        };
        assert!(pair.ends(0, Some(&moved)));
        assert!(pair.foresee_anew(Duration::from_secs(10)));
        assert!((19.5..20.5).contains(&pair.foreseen_s), "{}", pair.foreseen_s);
    }

    fn told(left_bytes: u64) -> Told {
        Told { sample: Sample { left_bytes, ..Sample::default() }, ..Told::default() }
    }
}
