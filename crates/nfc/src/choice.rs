//! Which way of packing is asked for, found by measuring: the rate of plain bytes with each, a while long.

use std::time::{Duration, Instant};

use crate::codec::Codec;

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodecWish {
    /// What is fastest.
    #[default]
    Measure,
    /// This.
    Always(Codec),
}

/// Plain bytes that are measured with each way, and the shortest time for it.
const TRIAL_BYTES: u64 = 32 << 20;
const TRIAL_TIME_MIN: Duration = Duration::from_millis(50);

/// A way that packs costs the host's processor, so it has to gain something.
const GAIN_MIN: f64 = 1.1;

/// Below this rate the line is worth trying to pack harder for (0.5 Gbit/s).
const SLOW_BYTES_PER_S: f64 = 60e6;

/// The first two are always tried: SkipZ costs hosts next to nothing and leaves holes out.
const ALWAYS: &[Codec] = &[Codec::None, Codec::SkipZ];
const SLOW_LINES: &[Codec] = &[Codec::FastLz, Codec::Zlib];

/// Decides; knows the time only from its caller.
#[derive(Debug)]
pub struct Choice {
    chosen: Option<Codec>,
    told: Vec<(Codec, f64)>,
    untried: Vec<Codec>,
    trial: Trial,
}

#[derive(Debug)]
struct Trial {
    codec: Codec,
    since: Option<Instant>,
    bytes: u64,
}

impl Trial {
    fn of(codec: Codec) -> Trial {
        Trial { codec, since: None, bytes: 0 }
    }
}

impl Choice {
    pub fn new(wish: CodecWish) -> Choice {
        let (chosen, first) = match wish {
            CodecWish::Measure => (None, ALWAYS[0]),
            CodecWish::Always(codec) => (Some(codec), codec),
        };
        Choice { chosen, told: Vec::new(), untried: ALWAYS[1..].to_vec(), trial: Trial::of(first) }
    }

    /// What the next request asks for.
    pub fn next(&self) -> Codec {
        self.chosen.unwrap_or(self.trial.codec)
    }

    /// What was chosen, once it was.
    pub fn chosen(&self) -> Option<Codec> {
        self.chosen
    }

    /// Plain bytes per second with each that was tried.
    pub fn rates(&self) -> &[(Codec, f64)] {
        &self.told
    }

    /// A read of so many plain bytes ended well.
    pub fn on_read(&mut self, codec: Codec, bytes: u64, now: Instant) {
        if self.chosen.is_some() || codec != self.trial.codec {
            return;
        }
        // The first one only starts the clock: the requests before it were asked for in another way.
        let Some(since) = self.trial.since else {
            self.trial.since = Some(now);
            return;
        };
        self.trial.bytes += bytes;
        let time = now.saturating_duration_since(since);
        if self.trial.bytes < TRIAL_BYTES || time < TRIAL_TIME_MIN {
            return;
        }
        self.told.push((codec, self.trial.bytes as f64 / time.as_secs_f64()));
        let best = self.best();
        if self.untried.is_empty() && self.told.len() == ALWAYS.len() && best.1 < SLOW_BYTES_PER_S {
            self.untried = SLOW_LINES.to_vec();
        }
        match self.untried.is_empty() {
            true => self.chosen = Some(best.0),
            false => self.trial = Trial::of(self.untried.remove(0)),
        }
    }

    fn best(&self) -> (Codec, f64) {
        let better =
            |best: (Codec, f64), it: &(Codec, f64)| if it.1 > best.1 * GAIN_MIN { *it } else { best };
        self.told.iter().skip(1).fold(self.told[0], better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs trials of a host with these rates (none, SkipZ, FastLZ, zlib), in MB/s.
    fn choose(rates: [f64; 4]) -> (Codec, usize) {
        let mut choice = Choice::new(CodecWish::Measure);
        let mut now = Instant::now();
        for _ in 0..10_000 {
            if let Some(codec) = choice.chosen() {
                return (codec, choice.rates().len());
            }
            let codec = choice.next();
            let rate = match codec {
                Codec::None => rates[0],
                Codec::SkipZ => rates[1],
                Codec::FastLz => rates[2],
                Codec::Zlib => rates[3],
            };
            now += Duration::from_secs_f64((1 << 20) as f64 / (rate * 1e6));
            choice.on_read(codec, 1 << 20, now);
        }
        panic!("never chosen: {choice:?}");
    }

    #[test]
    fn the_fastest_is_chosen_and_hard_packing_is_tried_on_slow_lines_only() {
        assert_eq!(choose([500.0, 900.0, 0.0, 0.0]), (Codec::SkipZ, 2));
        assert_eq!(choose([500.0, 520.0, 0.0, 0.0]), (Codec::None, 2), "no gain, no packing");
        assert_eq!(choose([20.0, 30.0, 50.0, 54.0]), (Codec::FastLz, 4));
        assert_eq!(choose([5.0, 5.0, 5.0, 25.0]), (Codec::Zlib, 4));
    }

    #[test]
    fn what_is_wished_is_not_measured() {
        let mut choice = Choice::new(CodecWish::Always(Codec::Zlib));
        choice.on_read(Codec::Zlib, 1 << 30, Instant::now());
        assert_eq!((choice.next(), choice.rates().len()), (Codec::Zlib, 0));
    }
}
