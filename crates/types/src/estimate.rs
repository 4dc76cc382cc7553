/// A measured or assumed quantity and how far off it may be, in seconds or in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// What is likely.
    pub likely: f64,
    /// How far off it may well be, up or down.
    pub spread: f64,
}

impl Estimate {
    /// Smooths samples, the latest last: each counts half as much as the one after it.
    pub fn smoothed(samples: impl IntoIterator<Item = f64>) -> Option<Estimate> {
        let mut estimate: Option<Estimate> = None;
        for sample in samples {
            estimate = Some(match estimate {
                None => Estimate { likely: sample, spread: sample * SPREAD_OF_ONE },
                Some(Estimate { likely, spread }) => Estimate {
                    likely: likely + (sample - likely) * WEIGHT,
                    spread: spread + ((sample - likely).abs() - spread) * WEIGHT,
                },
            });
        }
        estimate
    }

    /// What samples in seconds, the latest last, tell of the next: eight times of ten it is not further off than the
    /// spread. Of what is spread evenly to both sides that is 1.6 times the mean distance.
    pub fn measured(samples: impl IntoIterator<Item = f64>) -> Option<Estimate> {
        let samples: Vec<f64> = samples.into_iter().collect();
        let factor = if samples.len() > 1 { P90_OF_MEAN } else { 1.0 };
        let Estimate { likely, spread } = Estimate::smoothed(samples)?;
        let least = (likely * SPREAD_SHARE_MIN).max(SPREAD_MIN_S);
        Some(Estimate { likely, spread: (spread * factor).max(least) })
    }

    /// Both together, one after the other.
    #[must_use]
    pub fn and(self, other: Estimate) -> Estimate {
        let spread = (self.spread * self.spread + other.spread * other.spread).sqrt();
        Estimate { likely: self.likely + other.likely, spread }
    }
}

const P90_OF_MEAN: f64 = 1.6;
/// What was measured twice alike may still differ the third time, by this share ...
const SPREAD_SHARE_MIN: f64 = 0.15;
/// ... and by what an order to another host may be late.
const SPREAD_MIN_S: f64 = 0.02;

/// How much the latest sample counts.
const WEIGHT: f64 = 0.5;
/// How far off a single sample may be, as a share of it.
const SPREAD_OF_ONE: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_smoothed_with_their_spread() {
        assert_eq!(Estimate::smoothed([]), None);
        assert_eq!(Estimate::smoothed([8.0]), Some(Estimate { likely: 8.0, spread: 4.0 }));
        assert_eq!(Estimate::smoothed([8.0, 16.0]), Some(Estimate { likely: 12.0, spread: 6.0 }));
        let steady = Estimate::smoothed([5.0; 30]).unwrap();
        assert!(steady.spread < 0.001 && steady.likely == 5.0);
    }

    #[test]
    fn what_was_measured_may_be_off_by_what_it_was_off_and_never_by_nothing() {
        assert_eq!(Estimate::measured([]), None);
        let of = |samples: &[f64]| Estimate::measured(samples.iter().copied()).unwrap();
        let once = of(&[4.0]);
        assert_eq!((once.likely, once.spread), (4.0, 2.0));
        assert_eq!(of(&[2.0; 9]).spread, 0.3, "15 %");
        assert_eq!(of(&[0.001; 9]).spread, 0.02, "what takes no time counts as measured");
        let even = of(&[4.0, 6.0, 4.0, 6.0, 4.0, 6.0, 4.0, 6.0]);
        assert!(even.likely - even.spread < 4.0 && even.likely + even.spread > 6.0, "{even:?}");
    }
}
