//! Quantiles of what was drawn or counted.

use serde::{Deserialize, Serialize};

/// The value that a share (0 to 1) of sorted ones does not exceed; nothing of none.
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// What is exceeded nine times of ten, every other time, and once in ten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Nine of ten are greater.
    pub p10: f64,
    /// As many are greater as are smaller.
    pub p50: f64,
    /// One of ten is greater.
    pub p90: f64,
}

impl Spread {
    /// Of values in any order; those that are no number are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            p10: quantile(&sorted, 0.1)?,
            p50: quantile(&sorted, 0.5)?,
            p90: quantile(&sorted, 0.9)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let ten: Vec<u64> = (1..=10).collect();
        let at = |share| quantile(&ten, share);
        assert_eq!([0.0, 0.1, 0.11, 0.5, 0.9, 1.0].map(at), [1, 1, 2, 5, 9, 10].map(Some));
        assert_eq!(quantile::<u64>(&[], 0.5), None);
        assert_eq!(Spread::of([3.0, f64::NAN, 1.0, 2.0]), Some(Spread { p10: 1.0, p50: 2.0, p90: 3.0 }));
        assert_eq!(Spread::of([f64::NAN]), None);
    }
}
