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

/// Plain bytes before the first trial: a new connection is slow, and what is tried first would look worse for it.
const WARM_UP_BYTES: u64 = 8 << 20;

/// A way that packs costs the host's processor, so it has to gain something: in time, and on the wire. Where less of it
/// comes over the wire is no doubt; that it took less time may be chance, or the copy's slow start before.
const GAIN_MIN: f64 = 1.1;

/// Plain bytes after which a way is given up that gains nothing on the wire.
const GLANCE_BYTES: u64 = 8 << 20;

/// Where SkipZ leaves out so much, nothing is sent without packing any more: a hole is quicker left out than sent.
const HOLES_MIN: f64 = 0.3;

/// Below this rate the line is worth trying to pack harder for (0.5 Gbit/s).
const SLOW_BYTES_PER_S: f64 = 60e6;

/// SkipZ comes first: it costs hosts next to nothing, and a trial without it would send a sparse disk's holes as zeros.
const FIRST: &[Codec] = &[Codec::SkipZ, Codec::None];
const SLOW_LINES: &[Codec] = &[Codec::FastLz, Codec::Zlib];

/// Decides; knows the time only from its caller.
#[derive(Debug)]
pub struct Choice {
    chosen: Option<Codec>,
    told: Vec<(Codec, f64)>,
    /// Those of them that gain on the wire, and [`Codec::None`].
    best: Option<(Codec, f64)>,
    untried: Vec<Codec>,
    trial: Trial,
}

#[derive(Debug)]
struct Trial {
    codec: Codec,
    since: Option<Instant>,
    /// Bytes before that.
    early: u64,
    bytes: u64,
    /// What came over the wire for them.
    wire: u64,
}

impl Trial {
    fn of(codec: Codec) -> Trial {
        Trial { codec, since: None, early: 0, bytes: 0, wire: 0 }
    }

    fn gains(&self) -> bool {
        self.codec == Codec::None || self.wire as f64 * GAIN_MIN < self.bytes as f64
    }

    fn leaves_holes_out(&self) -> bool {
        self.codec == Codec::SkipZ && self.wire as f64 <= self.bytes as f64 * (1.0 - HOLES_MIN)
    }

    fn is_over(&self, time: Duration) -> bool {
        let is_vain = self.bytes >= GLANCE_BYTES && !self.gains();
        is_vain || self.bytes >= TRIAL_BYTES && time >= TRIAL_TIME_MIN
    }
}

impl Choice {
    pub fn new(wish: CodecWish) -> Choice {
        let (chosen, first) = match wish {
            CodecWish::Measure => (None, FIRST[0]),
            CodecWish::Always(codec) => (Some(codec), codec),
        };
        let untried = FIRST[1..].to_vec();
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
        // What comes first only starts the clock: requests before it were asked for in another way, or the connection was new.
        let Some(since) = self.trial.since else {
            self.trial.early += bytes;
            self.trial.since = (!self.told.is_empty() || self.trial.early >= WARM_UP_BYTES).then_some(now);
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
        let is_better = match self.best {
            Some((_, best)) if codec == Codec::None => rate * GAIN_MIN >= best,
            Some((_, best)) => self.trial.gains() && rate > best * GAIN_MIN,
            None => self.trial.gains(),
        };
        if is_better {
            self.best = Some((codec, rate));
        }
        if self.trial.leaves_holes_out() {
            self.untried.clear();
        }
        let is_slow = self.best.is_some_and(|(_, best)| best < SLOW_BYTES_PER_S);
        if self.untried.is_empty() && FIRST.contains(&codec) && is_slow {
            self.untried = SLOW_LINES.to_vec();
        }
        match self.untried.is_empty() {
            true => self.chosen = self.best.map(|(codec, _)| codec),
            false => self.trial = Trial::of(self.untried.remove(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What came of trials.
    struct Tried {
        /// What was chosen, and how many ways were measured.
        chosen: (Codec, usize),
        /// Requests before that of SkipZ, and of none.
        skipz: u64,
        none: u64,
    }

    /// Runs trials of a host with these rates (none, SkipZ, FastLZ, zlib), in MB/s, where all that packs saves a fifth.
    fn choose(rates: [f64; 4]) -> (Codec, usize) {
        choose_where(rates, MIB / 5 * 4).chosen
    }

    /// The same with so many bytes on the wire for a MiB.
    fn choose_where(rates: [f64; 4], packed: u64) -> Tried {
        let mut choice = Choice::new(CodecWish::Measure);
        let (mut now, mut skipz, mut none) = (Instant::now(), 0, 0);
        for _ in 0..10_000 {
            if let Some(codec) = choice.chosen() {
                return Tried { chosen: (codec, choice.rates().len()), skipz, none };
            }
            let codec = choice.next();
            let rate = match codec {
                Codec::None => rates[0],
                Codec::SkipZ => rates[1],
                Codec::FastLz => rates[2],
                Codec::Zlib => rates[3],
            };
            now += Duration::from_secs_f64(MIB as f64 / (rate * 1e6));
            skipz += u64::from(codec == Codec::SkipZ);
            none += u64::from(codec == Codec::None);
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
        assert_eq!(choose([5.0, 20.0, 20.0, 20.0]), (Codec::SkipZ, 4));
    }

    #[test]
    fn holes_are_never_sent_to_learn_how_long_it_takes() {
        let sparse = choose_where([9_000.0, 100.0, 0.0, 0.0], MIB / 2);
        assert_eq!((sparse.chosen, sparse.none), ((Codec::SkipZ, 1), 0));
        let slow = choose_where([0.0, 20.0, 50.0, 20.0], MIB / 2);
        assert_eq!((slow.chosen, slow.none), ((Codec::FastLz, 3), 0));
        let nearly = choose_where([100.0, 100.0, 0.0, 0.0], MIB / 100 * 71);
        assert_eq!((nearly.chosen, nearly.none > 0), ((Codec::None, 2), true));
    }

    /// A copy begins slowly, so what is tried later looks better.
    #[test]
    fn what_saves_nothing_on_the_wire_is_not_chosen_however_fast_it_seems_and_not_tried_for_long() {
        let dense = choose_where([200.0, 900.0, 0.0, 0.0], MIB);
        assert_eq!(dense.chosen, (Codec::None, 2));
        assert!(dense.skipz * MIB <= WARM_UP_BYTES + GLANCE_BYTES, "{}", dense.skipz);
        assert_eq!(choose_where([200.0, 900.0, 0.0, 0.0], MIB / 100 * 95).chosen, (Codec::None, 2));
        assert_eq!(choose_where([200.0, 900.0, 0.0, 0.0], MIB / 100 * 85).chosen, (Codec::SkipZ, 2));
    }

    #[test]
    fn the_first_bytes_of_a_connection_are_not_measured() {
        let mut choice = Choice::new(CodecWish::Measure);
        let mut now = Instant::now();
        while choice.rates().is_empty() {
            now += Duration::from_millis(if choice.trial.since.is_none() { 500 } else { 10 });
            choice.on_read(choice.next(), MIB, MIB / 2, now);
        }
        assert!(choice.rates()[0].1 > 100e6, "{:?}", choice.rates());
    }

    #[test]
    fn what_is_wished_is_not_measured() {
        let mut choice = Choice::new(CodecWish::Always(Codec::Zlib));
        choice.on_read(Codec::Zlib, 1 << 30, 1 << 20, Instant::now());
        assert_eq!((choice.next(), choice.rates().len()), (Codec::Zlib, 0));
    }
}
