//! Which segments are lost: each by itself, or in bursts.
//!
//! Bursts are a Gilbert model: the line is good or bad, and what comes while it is bad is lost. From bad it turns good with
//! `1 / burst` at each segment, so a burst is `burst` segments long on average; from good it turns bad so often that
//! the share of bad segments is the loss that was asked for.
//!
//! What spoils a true line takes time, not packets. So when nothing has come for [`FORGOTTEN_AFTER`], whether it is bad is drawn anew:
//! else a sender that has lost all it had under way, and tries again with one segment after 1, 2, 4 ... seconds, would meet the same burst each time.
//!
//! Source: E. N. Gilbert, "Capacity of a Burst-Noise Channel", 1960.

use std::time::Duration;

use super::random::Random;
use super::time::Moment;
use super::units::Share;

/// How long a line is idle until it does not matter any more what it was before.
pub const FORGOTTEN_AFTER: Duration = Duration::from_millis(50);

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
        /// Share of the segments that find it bad.
        share: f64,
        /// Whether it is bad now.
        is_bad: bool,
        /// When the last segment was through.
        busy_until: Moment,
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
                let worsens = recovers * loss / (1.0 - loss);
                Loss::Bursts { worsens, recovers, share: loss, is_bad: false, busy_until: Moment(0) }
            }
            _ => Loss::Each(share),
        }
    }

    /// Whether the next segment is lost: one that comes at `at` and is `through` then.
    pub fn next(&mut self, at: Moment, through: Moment, random: &mut Random) -> bool {
        match self {
            Loss::Each(share) => random.chance(share.value()),
            Loss::Bursts { worsens, recovers, share, is_bad, busy_until } => {
                if at.since(*busy_until) >= FORGOTTEN_AFTER {
                    *is_bad = random.chance(*share);
                } else {
                    *is_bad ^= random.chance(if *is_bad { *recovers } else { *worsens });
                }
                *busy_until = through;
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
            let now = loss.next(Moment(0), Moment(0), &mut random);
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
    fn a_burst_does_not_wait_for_who_comes_again_later() {
        let share = Share::of_one(0.01);
        let (mut random, mut again, mut bursts) = (Random::new(3), 0, 0);
        for seed in 0..20_000u64 {
            let mut loss = Loss::new(share, Some(1000.0));
            let begun = Moment(0) + Duration::from_secs(seed);
            if loss.next(begun, begun, &mut random) {
                bursts += 1;
                let later = begun + FORGOTTEN_AFTER;
                again += u32::from(loss.next(later, later, &mut random));
            }
        }
        assert!(bursts > 100 && again * 20 < bursts, "{again} of {bursts}");
    }

    #[test]
    fn losing_all_and_losing_none_are_exact() {
        assert_eq!(measured(0.0, None, 1).0, 0.0);
        assert_eq!(measured(0.0, Some(9.0), 1).0, 0.0);
        assert_eq!(measured(1.0, None, 1).0, 1.0);
        assert_eq!(measured(1.0, Some(9.0), 1).0, 1.0);
    }
}
