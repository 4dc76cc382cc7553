/// SplitMix64: the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that begins at `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A generator for a named thing: other names give other numbers.
    pub fn of(seed: u64, name: &str) -> Random {
        // FNV-1a, so that names that differ in one letter begin far apart.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Random(seed ^ name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product is even enough, and takes no division.
        ((u128::from(self.any()) * u128::from(end)) >> 64) as u64
    }

    /// A number from 0 up to, not with, 1.
    pub fn part(&mut self) -> f64 {
        (self.any() >> 11) as f64 / (1u64 << 53) as f64
    }
}
