use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes. Prints and parses binary units ([`units`](crate::units)): `512 B`, `64 KiB`, `1.5 GiB`, `20GiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = UNITS.into_iter().find(|(_, scale)| self.0 >= *scale).unwrap_or(("B", 1));
        if self.0.is_multiple_of(scale) {
            f.pad(&format!("{} {unit}", self.0 / scale))
        } else {
            f.pad(&format!("{:.1} {unit}", self.0 as f64 / scale as f64))
        }
    }
}

/// A text that is not a size.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not a size; write a number with B, KiB, MiB, GiB or TiB, such as 64MiB")]
pub struct SizeError(String);

impl FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        crate::units::bytes(text).map(Bytes).ok_or_else(|| SizeError(text.to_string()))
    }
}

/// Bytes per second, printed in decimal units as copiers do: `812 MB/s`, `1.35 GB/s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(pub f64);

impl Rate {
    /// The mean rate of `bytes` over `time`; zero when no time has passed.
    pub fn of(bytes: u64, time: Duration) -> Rate {
        if time.is_zero() { Rate(0.0) } else { Rate(bytes as f64 / time.as_secs_f64()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            r if r >= 1e9 => format!("{:.2} GB/s", r / 1e9),
            r if r >= 1e6 => format!("{:.0} MB/s", r / 1e6),
            r if r >= 1e3 => format!("{:.0} kB/s", r / 1e3),
            r => format!("{r:.0} B/s"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_largest_fitting_unit() {
        for (bytes, text) in
            [(0, "0 B"), (511, "511 B"), (65536, "64 KiB"), (3 << 29, "1.5 GiB"), (20 << 30, "20 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn parses_units_and_refuses_the_rest() {
        assert_eq!("20GiB".parse::<Bytes>().unwrap(), Bytes(20 << 30));
        assert_eq!(" 64 kib ".parse::<Bytes>().unwrap(), Bytes(65536));
        for (text, bytes) in
            [("7", 7), ("7b", 7), ("2k", 2 << 10), ("3MiB", 3 << 20), ("4t", 4 << 40), ("1.5GiB", 3 << 29)]
        {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
        for text in ["", "GiB", "1.5", "-1", "12 parsecs", "99999999TiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert_eq!(Rate::of(5, Duration::ZERO), Rate(0.0));
        assert_eq!(Rate::of(3_000_000, Duration::from_secs(2)).to_string(), "2 MB/s");
    }

    #[test]
    fn a_rate_is_shown_in_the_largest_fitting_unit() {
        for (rate, text) in
            [(999.0, "999 B/s"), (1e3, "1 kB/s"), (999e3, "999 kB/s"), (1e6, "1 MB/s"), (1.35e9, "1.35 GB/s")]
        {
            assert_eq!(Rate(rate).to_string(), text);
        }
    }
}
