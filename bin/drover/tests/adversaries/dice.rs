//! Chance from a seed, so that what went wrong can be had again.

/// Pseudo-random numbers of one round.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        // Seeds that follow each other must not begin alike (splitmix64).
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Dice((state ^ state >> 31) | 1)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % sides
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.roll(100) < share
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.roll(all.len() as u64) as usize]
    }

    /// As many small numbers as large ones: every power of two is as likely.
    pub fn spread(&mut self, least: u64, most: u64) -> u64 {
        let doublings = (most / least).ilog2() as u64 + 1;
        let floor = least << self.roll(doublings);
        (floor + self.roll(floor)).min(most)
    }
}
