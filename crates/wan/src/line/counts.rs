//! What became of the segments of one direction.

use std::time::Duration;

/// Counts since the line began. Bytes are those of IP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that came to the line.
    pub offered: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Segments that came through, or are on their way.
    pub carried: u64,
    /// Their bytes.
    pub carried_bytes: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost in an outage.
    pub cut: u64,
    /// Dropped because the queue was full, of the line or of a shaped session.
    pub overflowed: u64,
    /// Dropped because their session was too fast.
    pub policed: u64,
    /// Held back so that later ones overtook them.
    pub held: u64,
    /// The most bytes that waited for the rate.
    pub queue_max: u64,
}

impl Counts {
    /// Segments that did not come through.
    pub fn gone(&self) -> u64 {
        self.lost + self.cut + self.overflowed + self.policed
    }
}

/// Classes of lateness: below 1 µs, 2, 4 and so on.
const CLASSES: usize = 32;

/// How much later than asked the emulator handed packets over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    classes: [u64; CLASSES],
    /// The worst.
    pub max: Duration,
}

impl Lateness {
    /// Takes one in.
    pub fn add(&mut self, late: Duration) {
        let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        self.classes[class.min(CLASSES - 1)] += 1;
        self.max = self.max.max(late);
    }

    /// A time that `share` of all were not later than; accurate to a factor of two, never too low.
    pub fn quantile(&self, share: f64) -> Duration {
        let all: u64 = self.classes.iter().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            // The last class has no upper end.
            if seen >= wanted && class + 1 < CLASSES {
                return Duration::from_micros(1 << class).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_never_too_low() {
        let mut lateness = Lateness::default();
        (0..99).for_each(|_| lateness.add(Duration::from_micros(20)));
        lateness.add(Duration::from_millis(7));
        assert_eq!(lateness.quantile(0.99), Duration::from_micros(32));
        assert_eq!(lateness.quantile(1.0), Duration::from_millis(7));
        assert_eq!(Lateness::default().quantile(0.99), Duration::ZERO);
        lateness.add(Duration::from_secs(1 << 40));
        assert_eq!(lateness.quantile(1.0), lateness.max);
    }
}
