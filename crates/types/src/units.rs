//! The one grammar of quantities, in options, plans and rules: a number, with a decimal point if need be, and a unit in
//! either case. All readers of sizes, rates and times call it.
//!
//! ```text
//! size   64k 4m 1.5GiB 20T 512B 512    powers of 1,024; without a unit bytes
//! rate   500m 2.5g 64k 1500000         bits a second, powers of 1,000
//!        12MiB 800KiB 1.5GiB           bytes a second, powers of 1,024
//! time   250us 55ms 10s 5m 5min 2h 1d
//! share  0.5% 0.005
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a quantity cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no {what}; {form}")]
pub struct UnitError {
    what: &'static str,
    text: String,
    form: &'static str,
}

/// Bits per second, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// The fastest rate that can be given: 1 Tbit/s.
pub const RATE_MAX: Rate = Rate(1_000_000_000_000);

impl Rate {
    /// A rate, held between 1 bit/s and [`RATE_MAX`].
    pub fn bits(bits_per_s: u64) -> Rate {
        Rate(bits_per_s.clamp(1, RATE_MAX.0))
    }

    /// Bits per second.
    pub fn bits_per_s(self) -> u64 {
        self.0
    }

    /// What passes in `time`, in bytes.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    /// `1g`, `200m`, `64k`, `1500000`: bits per second, decimal; `12MiB`: bytes per second.
    fn from_str(text: &str) -> Result<Rate, UnitError> {
        match scaled(text, RATES) {
            Some(bits) if (1.0..=RATE_MAX.0 as f64).contains(&bits) => Ok(Rate(bits.round() as u64)),
            _ => Err(UnitError { what: "rate", text: text.into(), form: RATE_FORM }),
        }
    }
}

const RATE_FORM: &str = "write bits a second (500m, 2.5g, 64k) or bytes a second (12MiB), up to 1000g";
const MIB: f64 = 1_048_576.0;
const RATES: &[(&str, f64)] = &[
    ("k", 1e3),
    ("m", 1e6),
    ("g", 1e9),
    ("", 1.0),
    ("kib", MIB / 128.0),
    ("mib", MIB * 8.0),
    ("gib", MIB * 8192.0),
];

/// The same in bytes per second, at least 1.
///
/// # Errors
/// If it is no rate.
pub fn byte_rate(text: &str) -> Result<u64, UnitError> {
    let bytes = text.parse::<Rate>()?.0 / 8;
    if bytes > 0 { Ok(bytes) } else { Err(UnitError { what: "rate", text: text.into(), form: RATE_FORM }) }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64;
        match self.0 {
            1_000_000_000.. => write!(f, "{} Gbit/s", short(bits / 1e9)),
            1_000_000.. => write!(f, "{} Mbit/s", short(bits / 1e6)),
            1_000.. => write!(f, "{} kbit/s", short(bits / 1e3)),
            _ => write!(f, "{} bit/s", self.0),
        }
    }
}

/// A part of the whole, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(f64);

impl Share {
    /// None at all.
    pub const NONE: Share = Share(0.0);

    /// A share, held between 0 and 1; what is no number is 0.
    pub fn of_one(value: f64) -> Share {
        Share(if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) })
    }

    /// As a number of 0 to 1.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl FromStr for Share {
    type Err = UnitError;

    /// `0.5%`, or `0.005`.
    fn from_str(text: &str) -> Result<Share, UnitError> {
        const FORM: &str = "write 0.5%, or 0.005";
        match scaled(text, &[("%", 0.01), ("", 1.0)]) {
            Some(value) if (0.0..=1.0).contains(&value) => Ok(Share(value)),
            _ => Err(UnitError { what: "share", text: text.into(), form: FORM }),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", short(self.0 * 100.0))
    }
}

/// A rate, or a share of the line's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cap {
    /// So many bits per second.
    Rate(Rate),
    /// This part of what the line carries.
    Share(Share),
}

impl Cap {
    /// The cap as a rate; `None` if it is a share of a line that has no rate, or of nothing.
    pub fn of(self, line: Option<Rate>) -> Option<Rate> {
        match self {
            Cap::Rate(rate) => Some(rate),
            Cap::Share(share) => line.map(|line| Rate::bits((line.0 as f64 * share.0) as u64)),
        }
    }
}

impl FromStr for Cap {
    type Err = UnitError;

    /// `20%`, or a rate.
    fn from_str(text: &str) -> Result<Cap, UnitError> {
        if text.trim_end().ends_with('%') {
            let share: Share = text.parse()?;
            if share.0 > 0.0 {
                return Ok(Cap::Share(share));
            }
            return Err(UnitError { what: "cap", text: text.into(), form: "write 20%, or 200m" });
        }
        text.parse().map(Cap::Rate)
    }
}

/// The longest time that can be given: 366 days.
pub const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads `55ms`, `10s`, `250us`, `5m` or `5min`, `1.5h`, `2d`.
///
/// # Errors
/// If it has no unit, is negative, or is longer than [`TIME_MAX`].
pub fn time(text: &str) -> Result<Duration, UnitError> {
    const FORM: &str = "write 55ms, 10s, 5m, 2h or 1d";
    let units =
        [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0), ("d", 86_400.0)];
    match scaled(text, &units) {
        Some(seconds) if (0.0..=TIME_MAX.as_secs_f64()).contains(&seconds) => {
            Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
        }
        _ => Err(UnitError { what: "time", text: text.into(), form: FORM }),
    }
}

/// Reads an outage, `10s@30s`: how long, and from when on. Returns when, then how long.
///
/// # Errors
/// If one of them is no time, or there is no `@`.
pub fn outage(text: &str) -> Result<(Duration, Duration), UnitError> {
    const FORM: &str = "write 10s@30s: for ten seconds, from the thirtieth on";
    match text.split_once('@') {
        Some((length, from)) => Ok((time(from)?, time(length)?)),
        None => Err(UnitError { what: "outage", text: text.into(), form: FORM }),
    }
}

/// Reads `1%`, or `1%:2ms`: which share is held back, and for how long if that is said.
///
/// # Errors
/// If one of them is wrong.
pub fn reorder(text: &str) -> Result<(Share, Option<Duration>), UnitError> {
    match text.split_once(':') {
        Some((share, by)) => Ok((share.parse()?, Some(time(by)?))),
        None => Ok((text.parse()?, None)),
    }
}

/// The longest mean burst of losses: a million segments.
pub const BURST_MAX: f64 = 1e6;

/// Reads the mean length of bursts, 1 to [`BURST_MAX`].
///
/// # Errors
/// If it is no such number.
pub fn burst(text: &str) -> Result<f64, UnitError> {
    const FORM: &str = "write segments, 1 or more: 20";
    match scaled(text, &[("", 1.0)]) {
        Some(burst) if (1.0..=BURST_MAX).contains(&burst) => Ok(burst),
        _ => Err(UnitError { what: "length of a burst", text: text.into(), form: FORM }),
    }
}

/// The largest size that can be given: 64 GiB.
pub const SIZE_MAX: u64 = 64 << 30;

/// Reads a size in memory or of a queue, as [`Bytes`](crate::Bytes) are read.
///
/// # Errors
/// If it is no such number, or more than [`SIZE_MAX`].
pub fn size(text: &str) -> Result<u64, UnitError> {
    const FORM: &str = "write bytes, up to 64g: 65536, 64k, 1.5m";
    let fits = bytes(text).filter(|bytes| *bytes <= SIZE_MAX);
    fits.ok_or_else(|| UnitError { what: "size", text: text.into(), form: FORM })
}

/// Bytes: whole numbers exactly, others rounded.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = parts(text)?;
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    // The cast: such a number fits.
    (shift > 0 && bytes < i64::MAX as f64).then_some(bytes.round() as u64)
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = parts(text)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

/// A number, and a unit in lower case.
fn parts(text: &str) -> Option<(&str, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then(|| (number, unit.trim_start().to_ascii_lowercase()))
}

/// At most three digits behind the point, and none that says nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!("1g".parse::<Rate>().unwrap().bits_per_s(), 1_000_000_000);
        assert_eq!("2.5G".parse::<Rate>().unwrap().to_string(), "2.5 Gbit/s");
        assert_eq!("64k".parse::<Rate>().unwrap().bits_per_s(), 64_000);
        assert_eq!("0.5%".parse::<Share>().unwrap().value(), 0.005);
        assert_eq!("1".parse::<Share>().unwrap().value(), 1.0);
        assert_eq!(time("55ms").unwrap(), Duration::from_millis(55));
        assert_eq!(time("27.5 ms").unwrap(), Duration::from_micros(27_500));
        assert_eq!(
            [time("5min"), time("5m"), time("0.5H")],
            [5, 5, 30].map(|it| Ok(Duration::from_secs(it * 60)))
        );
        assert_eq!(time("366d").unwrap(), TIME_MAX);
        assert_eq!(
            [byte_rate("2.5g"), byte_rate("12MiB"), byte_rate("8")],
            [Ok(312_500_000), Ok(12 << 20), Ok(1)]
        );
        assert_eq!(bytes("18446744073709551615"), Some(u64::MAX));
        assert_eq!(
            [bytes("1.5GiB"), bytes("0.1k"), bytes("1.5"), bytes("16777216T"), bytes("1e3")],
            [Some(3 << 29), Some(102), None, None, None]
        );
        assert_eq!(time("0s").unwrap(), Duration::ZERO);
        assert_eq!(size("64k").unwrap(), 65_536);
        assert_eq!("20%".parse::<Cap>().unwrap().of(Some(Rate::bits(1_000))), Some(Rate::bits(200)));
        assert_eq!("200m".parse::<Cap>().unwrap().of(None), Some(Rate::bits(200_000_000)));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_how_to_write_it() {
        for text in ["", "g", "-1g", "1x", "1e9", "inf", "nan", "2000g", "0", "1 000m"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["101%", "1.5", "-1%", "%", "0.5 percent"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        for text in ["55", "0", "367d", "1.2.3s", ".s", "5 m s", "ms", "-1s", "1e3s"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(byte_rate("7").is_err());
        assert!("0%".parse::<Cap>().is_err());
        assert!(size("65g").is_err());
        assert_eq!(time("55").unwrap_err().to_string(), "'55' is no time; write 55ms, 10s, 5m, 2h or 1d");
    }

    #[test]
    fn outages_reordering_and_bursts_read_as_told() {
        let seconds = Duration::from_secs;
        assert_eq!(outage("10s@30s"), Ok((seconds(30), seconds(10))));
        assert!(outage("10s").is_err() && outage("@").is_err());
        assert_eq!(reorder("1%:2ms"), Ok((Share::of_one(0.01), Some(Duration::from_millis(2)))));
        assert_eq!(reorder("1%"), Ok((Share::of_one(0.01), None)));
        assert_eq!(burst("20"), Ok(20.0));
        assert!(burst("0.5").is_err() && burst("nan").is_err() && burst("1e3").is_err());
    }

    #[test]
    fn what_passes_in_a_time_is_exact() {
        assert_eq!(Rate::bits(1_000_000_000).bytes_in(Duration::from_millis(55)), 6_875_000);
        assert_eq!(RATE_MAX.bytes_in(TIME_MAX), 3_952_800_000_000_000_000);
    }
}
