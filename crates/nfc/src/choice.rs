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

/// A way that packs costs the host's processor, so it has to gain something: in time, and on the wire. Where less of it
/// comes over the wire is no doubt; that it took less time may be chance, or the copy's slow start before.
const GAIN_MIN: f64 = 1.1;

/// Plain bytes after which a way is given up that gains nothing on the wire.
const GLANCE_BYTES: u64 = 8 << 20;

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
    best: Option<(Codec, f64)>,
    untried: Vec<Codec>,
    trial: Trial,
}

#[derive(Debug)]
struct Trial {
    codec: Codec,
    since: Option<Instant>,
    bytes: u64,
    /// What came over the wire for them.
    wire: u64,
}

impl Trial {
    fn of(codec: Codec) -> Trial {
        Trial { codec, since: None, bytes: 0, wire: 0 }
    }

    fn gains(&self) -> bool {
        self.codec == Codec::None || self.wire as f64 * GAIN_MIN < self.bytes as f64
    }

    fn is_over(&self, time: Duration) -> bool {
        let is_vain = self.bytes >= GLANCE_BYTES && !self.gains();
        is_vain || self.bytes >= TRIAL_BYTES && time >= TRIAL_TIME_MIN
    }
}

impl Choice {
    pub fn new(wish: CodecWish) -> Choice {
        let (chosen, first) = match wish {
            CodecWish::Measure => (None, ALWAYS[0]),
            CodecWish::Always(codec) => (Some(codec), codec),
        };
        let untried = ALWAYS[1..].to_vec();
        Choice { chosen, told: Vec::new(), best: None, untried, trial: Trial::of(first) }
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

    /// A read of so many plain bytes ended well; so many came over the wire for it.
    pub fn on_read(&mut self, codec: Codec, bytes: u64, wire: u64, now: Instant) {
        if self.chosen.is_some() || codec != self.trial.codec {
            return;
        }
        // The first one only starts the clock: the requests before it were asked for in another way.
        let Some(since) = self.trial.since else {
            self.trial.since = Some(now);
            return;
        };
        self.trial.bytes += bytes;
        self.trial.wire += wire;
        let time = now.saturating_duration_since(since);
        if !self.trial.is_over(time) {
            return;
        }
        let rate = self.trial.bytes as f64 / time.as_secs_f64().max(1e-9);
        self.told.push((codec, rate));
        let best = match self.best {
            Some(best) if !self.trial.gains() || rate <= best.1 * GAIN_MIN => best,
            _ => (codec, rate),
        };
        self.best = Some(best);
        if self.untried.is_empty() && self.told.len() == ALWAYS.len() && best.1 < SLOW_BYTES_PER_S {
            self.untried = SLOW_LINES.to_vec();
        }
        match self.untried.is_empty() {
            true => self.chosen = Some(best.0),
            false => self.trial = Trial::of(self.untried.remove(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Runs trials of a host with these rates (none, SkipZ, FastLZ, zlib), in MB/s, where all that packs saves half.
    fn choose(rates: [f64; 4]) -> (Codec, usize) {
        choose_where(rates, MIB / 2).0
    }

    /// The same with so many bytes on the wire for a MiB, and how many requests were packed before it was chosen.
    fn choose_where(rates: [f64; 4], packed: u64) -> ((Codec, usize), u64) {
        let mut choice = Choice::new(CodecWish::Measure);
        let (mut now, mut tried) = (Instant::now(), 0);
        for _ in 0..10_000 {
            if let Some(codec) = choice.chosen() {
                return ((codec, choice.rates().len()), tried);
            }
            let codec = choice.next();
            let rate = match codec {
                Codec::None => rates[0],
                Codec::SkipZ => rates[1],
                Codec::FastLz => rates[2],
                Codec::Zlib => rates[3],
            };
            now += Duration::from_secs_f64(MIB as f64 / (rate * 1e6));
            tried += u64::from(codec != Codec::None);
            choice.on_read(codec, MIB, if codec == Codec::None { MIB } else { packed }, now);
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

    /// A copy begins slowly, so what is tried later looks better.
    #[test]
    fn what_saves_nothing_on_the_wire_is_not_chosen_however_fast_it_seems_and_not_tried_for_long() {
        let (chosen, tried) = choose_where([200.0, 900.0, 0.0, 0.0], MIB);
        assert_eq!(chosen, (Codec::None, 2));
        assert!(tried <= GLANCE_BYTES / MIB + 1, "{tried}");
        assert_eq!(choose_where([200.0, 900.0, 0.0, 0.0], MIB / 100 * 95).0, (Codec::None, 2));
        assert_eq!(choose_where([200.0, 900.0, 0.0, 0.0], MIB / 100 * 85).0, (Codec::SkipZ, 2));
    }

    #[test]
    fn what_is_wished_is_not_measured() {
        let mut choice = Choice::new(CodecWish::Always(Codec::Zlib));
        choice.on_read(Codec::Zlib, 1 << 30, 1 << 20, Instant::now());
        assert_eq!((choice.next(), choice.rates().len()), (Codec::Zlib, 0));
    }
}
