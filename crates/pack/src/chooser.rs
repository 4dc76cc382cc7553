//! Whether packing pays, and how much of it. Pure: measured figures go in, a codec comes out.
//!
//! A transfer of plain bytes moves at `line`; one that is packed at the slower of `line / ratio` (what the line
//! carries) and `lanes / cost` (what the processors pack). All three are measured as it goes:
//!
//! - `ratio` and `cost` by what packing took: of the codec in use from every block, of the others from trials;
//! - `line` by how fast bytes were taken while senders waited for the line.
//!
//! That senders wait may also be the other side's disk. So a codec that is taken has to show that more plain bytes are
//! moved than before, or packing rests for a while.
//!
//! While plain bytes do not wait for the line, something else is slow and packing can gain nothing. While packed ones
//! do not, packing or the source is slow: the codec stays as long as it moves more than plain bytes did, and now and
//! then plain bytes show again what the line takes. Trials cost time, so they are bounded by [`TRIAL_SHARE_MAX`].

use std::time::Duration;

use crate::codec::Codec;

/// Of the time of all senders together, trials take at most this share.
pub const TRIAL_SHARE_MAX: f64 = 0.02;

/// What another codec must promise before it is taken.
const GAIN_MIN: f64 = 1.05;

/// Weight of a new figure in the mean of those before.
const WEIGHT: f64 = 0.2;

/// What it must have brought after [`PROOF_PERIODS`] of use.
const PROOF_MIN: f64 = 1.03;
const PROOF_PERIODS: u32 = 6;

/// How long packing rests that brought nothing.
const REST: Duration = Duration::from_secs(30);

/// The line is judged anew after so much time.
const PERIOD: Duration = Duration::from_millis(500);

/// So many periods in a row without waiting for the line, and plain bytes are tried again.
const PERIODS_MAX: u32 = 20;

/// The line is the limit if senders waited for it at least this share of a period.
const WAITED_MIN: f64 = 0.25;

/// What packing some bytes came to.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// By which codec.
    pub codec: Codec,
    /// Bytes before.
    pub plain: u64,
    /// Bytes after; as many as before where it did not pay.
    pub packed: u64,
    /// What it took.
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// Packed bytes for each plain one.
    ratio: f64,
    /// Seconds for each plain byte, of one sender.
    cost: f64,
    known: bool,
}

/// Chooses.
#[derive(Debug)]
pub struct Chooser {
    /// Those that the other side unpacks, the cheapest first; plain bytes among them.
    codecs: Vec<Codec>,
    /// Senders that pack at the same time.
    lanes: f64,
    figures: [Figures; Codec::ALL.len()],
    current: Codec,
    /// Bytes for each second that the line takes; `None` while it is not the limit.
    line: Option<f64>,
    period_began: Option<Duration>,
    waited: Duration,
    sent: u64,
    /// The same before packing.
    moved: u64,
    /// Periods in a row in which packed bytes did not wait for the line.
    unwaited: u32,
    /// Plain bytes that were moved in a second before packing began, while that has not shown its worth, and for how
    /// many periods.
    proof: Option<(f64, u32)>,
    /// No packing before this time.
    rests_until: Duration,
    trials: Duration,
    next_trial: usize,
    started: Option<Duration>,
}

impl Chooser {
    /// For so many senders that pack at the same time (at least 1), by these codecs.
    pub fn new(lanes: usize, codecs: &[Codec]) -> Chooser {
        Chooser {
            codecs: Codec::ALL
                .into_iter()
                .filter(|codec| *codec == Codec::Plain || codecs.contains(codec))
                .collect(),
            lanes: lanes.max(1) as f64,
            figures: Default::default(),
            current: Codec::Plain,
            line: None,
            period_began: None,
            waited: Duration::ZERO,
            sent: 0,
            moved: 0,
            unwaited: 0,
            proof: None,
            rests_until: Duration::ZERO,
            trials: Duration::ZERO,
            next_trial: 0,
            started: None,
        }
    }

    /// How the next block is to be packed.
    pub fn codec(&self) -> Codec {
        self.current
    }

    /// Which codec to try out on some bytes now, beside what is sent; `None` if trials have had their share.
    pub fn trial(&mut self, now: Duration) -> Option<Codec> {
        let started = *self.started.get_or_insert(now);
        let passed = now.saturating_sub(started).as_secs_f64() * self.lanes;
        if self.line.is_none() || self.trials.as_secs_f64() > passed * TRIAL_SHARE_MAX {
            return None;
        }
        let others = || self.codecs.iter().filter(|codec| **codec != Codec::Plain && **codec != self.current);
        let count = others().count().max(1);
        self.next_trial += 1;
        others().nth(self.next_trial % count).copied()
    }

    /// Bytes were packed on trial.
    pub fn tried(&mut self, sampled: Sampled) {
        self.trials += sampled.took;
        self.packed(sampled);
    }

    /// Bytes were packed.
    pub fn packed(&mut self, sampled: Sampled) {
        if sampled.plain == 0 || sampled.codec == Codec::Plain {
            return;
        }
        let figures = &mut self.figures[sampled.codec.index()];
        let ratio = sampled.packed.min(sampled.plain) as f64 / sampled.plain as f64;
        let cost = sampled.took.as_secs_f64() / sampled.plain as f64;
        let weight = if figures.known { WEIGHT } else { 1.0 };
        figures.ratio += (ratio - figures.ratio) * weight;
        figures.cost += (cost - figures.cost) * weight;
        figures.known = true;
    }

    /// A message went to the link, which took it after `waited`: so many bytes, and so many before packing.
    pub fn sent(&mut self, plain: u64, bytes: u64, waited: Duration, now: Duration) {
        let began = *self.period_began.get_or_insert(now);
        self.waited += waited;
        self.sent += bytes;
        self.moved += plain;
        let passed = now.saturating_sub(began);
        if passed < PERIOD {
            return;
        }
        let share = self.waited.as_secs_f64() / (passed.as_secs_f64() * self.lanes);
        let (rate, moved) =
            (self.sent as f64 / passed.as_secs_f64(), self.moved as f64 / passed.as_secs_f64());
        (self.period_began, self.waited, self.sent, self.moved) = (Some(now), Duration::ZERO, 0, 0);
        if share < WAITED_MIN {
            self.was_not_waited_for(moved);
        } else if self.is_in_vain(moved) {
            (self.current, self.rests_until) = (Codec::Plain, now + REST);
        } else {
            self.was_waited_for(rate, moved, now);
        }
    }

    /// Whether packing has had its time to show that it moves more, and did not.
    fn is_in_vain(&mut self, moved: f64) -> bool {
        match self.proof {
            Some((before, periods)) if periods >= PROOF_PERIODS => {
                self.proof = None;
                self.current != Codec::Plain && moved < before * PROOF_MIN
            }
            Some((before, periods)) => {
                self.proof = Some((before, periods + 1));
                false
            }
            None => false,
        }
    }

    /// The line is the limit, and takes so much.
    fn was_waited_for(&mut self, rate: f64, moved: f64, now: Duration) {
        let line = self.line.map_or(rate, |line| line + (rate - line) * 0.5);
        self.line = Some(line);
        self.unwaited = 0;
        let mut best = self.current;
        for codec in self.codecs.iter().copied() {
            if self.promise(codec, line) > self.promise(best, line) * GAIN_MIN {
                best = codec;
            }
        }
        // A codec that promises no more than plain bytes is left at once.
        if self.promise(best, line) <= line || now < self.rests_until {
            best = Codec::Plain;
        }
        if self.current == Codec::Plain && best != Codec::Plain {
            self.proof = Some((moved, 0));
        }
        self.current = best;
    }

    /// Something else is the limit; so many plain bytes were moved in a second.
    fn was_not_waited_for(&mut self, moved: f64) {
        if self.current == Codec::Plain {
            self.line = None;
            return;
        }
        self.unwaited += 1;
        let is_slower = self.line.is_none_or(|line| moved < line);
        if is_slower || self.unwaited >= PERIODS_MAX {
            self.current = Codec::Plain;
            self.unwaited = 0;
        }
    }

    /// Plain bytes for each second that a codec would move.
    fn promise(&self, codec: Codec, line: f64) -> f64 {
        if codec == Codec::Plain {
            return line;
        }
        let figures = &self.figures[codec.index()];
        if !figures.known {
            return 0.0;
        }
        let packing = if figures.cost > 0.0 { self.lanes / figures.cost } else { f64::INFINITY };
        (line / figures.ratio.max(1e-3)).min(packing)
    }
}

#[cfg(test)]
#[path = "chooser_tests.rs"]
mod tests;
