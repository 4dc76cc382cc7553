/// A choice of blocks to check, the same for the same seed.
///
/// Block `b` is chosen when a hash of seed and `b` falls below `share`; so every block has the same
/// chance, whatever the pattern of damage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    seed: u64,
    threshold: u64,
}

impl Sample {
    /// Chooses about `share` (0 to 1) of all blocks.
    pub fn of_share(share: f64, seed: u64) -> Self {
        Sample { seed, threshold: (share.clamp(0.0, 1.0) * u64::MAX as f64) as u64 }
    }

    /// Whether a block is chosen.
    pub fn takes(&self, block: u64) -> bool {
        mix(self.seed ^ mix(block)) <= self.threshold
    }
}

/// The chance that `damaged` blocks among `total` all escape a sample of `share` of them.
pub fn miss_probability(share: f64, damaged: u64) -> f64 {
    (1.0 - share.clamp(0.0, 1.0)).powf(damaged as f64)
}

/// A finaliser with full avalanche (the constants are those of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_about_the_share_asked_for() {
        let sample = Sample::of_share(0.1, 7);
        let taken = (0..100_000).filter(|block| sample.takes(*block)).count();
        assert!((9_000..11_000).contains(&taken), "{taken}");
    }

    #[test]
    fn everything_and_nothing_are_shares_too() {
        assert!((0..1000).all(|block| Sample::of_share(1.0, 3).takes(block)));
        assert!(!(0..1000).any(|block| Sample::of_share(0.0, 3).takes(block)));
        assert!((miss_probability(0.5, 2) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn each_seed_has_a_choice_of_its_own_and_keeps_it() {
        // The first numbers of SplitMix64 from 0, as published with it.
        let golden = 0x9e37_79b9_7f4a_7c15_u64;
        assert_eq!([mix(0), mix(golden)], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let chosen = |seed| (0..1000).filter(|block| Sample::of_share(0.5, seed).takes(*block)).count();
        for seed in [0, 1, 1 << 63, u64::MAX, mix(5)] {
            assert!((420..580).contains(&chosen(seed)), "seed {seed}: {}", chosen(seed));
        }
    }
}
