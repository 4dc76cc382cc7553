//! Which segments are lost: each by itself, or in bursts.
//!
//! Bursts are a Gilbert model: the line is good or bad, and what comes while it is bad is lost. From bad it turns good with
//! `1 / burst` at each segment, so a burst is `burst` segments long on average; from good it turns bad so often that
//! the share of bad segments is the loss that was asked for.
//!
//! Source: E. N. Gilbert, "Capacity of a Burst-Noise Channel", 1960.

use super::random::Random;
use super::units::Share;

/// A loss process.
#[derive(Clone, Debug)]
pub enum Loss {
    /// Each segment by itself.
    Each(Share),
    /// In bursts.
    Bursts {
        /// Chance that a good line turns bad.
        worsens: f64,
        /// Chance that a bad line turns good.
        recovers: f64,
        /// Whether it is bad now.
        is_bad: bool,
    },
}

impl Loss {
    /// A process that loses `share` of the segments, in bursts of `burst` on average if that is given and above 1.
    ///
    /// Where bursts cannot be so short at such a loss (losing 90 % in bursts of 2), they become longer.
    pub fn new(share: Share, burst: Option<f64>) -> Loss {
        let loss = share.value();
        match burst {
            Some(burst) if burst > 1.0 && loss > 0.0 && loss < 1.0 => {
                let longest = 1.0 / burst;
                let recovers = longest.min((1.0 - loss) / loss);
                Loss::Bursts { worsens: recovers * loss / (1.0 - loss), recovers, is_bad: false }
            }
            _ => Loss::Each(share),
        }
    }

    /// Whether the next segment is lost.
    pub fn next(&mut self, random: &mut Random) -> bool {
        match self {
            Loss::Each(share) => random.chance(share.value()),
            Loss::Bursts { worsens, recovers, is_bad } => {
                let turns = if *is_bad { *recovers } else { *worsens };
                *is_bad ^= random.chance(turns);
                *is_bad
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share lost and mean length of the bursts over a million segments.
    fn measured(share: f64, burst: Option<f64>, seed: u64) -> (f64, f64) {
        const SEGMENTS: u32 = 1_000_000;
        let (mut loss, mut random) = (Loss::new(Share::of_one(share), burst), Random::new(seed));
        let (mut lost, mut bursts, mut before) = (0u32, 0u32, false);
        for _ in 0..SEGMENTS {
            let now = loss.next(&mut random);
            lost += u32::from(now);
            bursts += u32::from(now && !before);
            before = now;
        }
        (f64::from(lost) / f64::from(SEGMENTS), f64::from(lost) / f64::from(bursts.max(1)))
    }

    #[test]
    fn random_loss_is_within_five_percent_of_what_was_asked() {
        for share in [0.001, 0.005, 0.01, 0.2] {
            for seed in 0..5 {
                let (lost, burst) = measured(share, None, seed);
                // A thousand losses of a million have a deviation of 3.2 %: two of them are allowed at 0.1 %.
                let allowed = if share < 0.002 { 0.10 } else { 0.05 };
                assert!((lost / share - 1.0).abs() < allowed, "{lost} for {share}, seed {seed}");
                assert!((burst * (1.0 - share) - 1.0).abs() < 0.05, "bursts of {burst}, seed {seed}");
            }
        }
    }

    #[test]
    fn bursts_have_the_asked_length_and_lose_the_asked_share() {
        for (share, length) in [(0.01, 10.0), (0.05, 4.0), (0.3, 20.0)] {
            let (lost, burst) = measured(share, Some(length), 7);
            assert!((lost / share - 1.0).abs() < 0.12, "{lost} for {share}");
            assert!((burst / length - 1.0).abs() < 0.10, "{burst} for {length}");
        }
    }

    #[test]
    fn losing_all_and_losing_none_are_exact() {
        assert_eq!(measured(0.0, None, 1).0, 0.0);
        assert_eq!(measured(0.0, Some(9.0), 1).0, 0.0);
        assert_eq!(measured(1.0, None, 1).0, 1.0);
        assert_eq!(measured(1.0, Some(9.0), 1).0, 1.0);
    }
}
