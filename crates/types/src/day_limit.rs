//! How many bytes a second may go to a site, by the time. Pure.

use std::fmt;
use std::str::FromStr;

use drover_window::Window;
use serde::{Deserialize, Serialize};

use crate::units::byte_rate;

/// A limit that holds in a window, or always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Kept", into = "Kept")]
pub struct DayLimit {
    /// When it holds; absent: always.
    pub window: Option<Window>,
    /// Bytes a second, at least 1.
    pub bytes_per_second: u64,
}

impl DayLimit {
    /// One that always holds.
    pub fn always(bytes_per_second: u64) -> DayLimit {
        DayLimit { window: None, bytes_per_second }
    }

    /// When it begins or ends to hold next, in milliseconds since 1970; absent if it never does.
    pub fn changes_after(&self, ms: u64) -> Option<u64> {
        self.window.as_ref()?.changes_after(ms)
    }

    /// As it may be written in a plan: `12MiB`, or `Mon-Fri 08:00-18:00 Europe/Berlin=200m`.
    pub fn text(&self) -> String {
        let (bytes, bits) = (self.bytes_per_second, u128::from(self.bytes_per_second) * 8);
        let binary = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let decimal = [(1_000_000_000_u128, "g"), (1_000_000, "m"), (1_000, "k")];
        let binary = binary.into_iter().find(|(of, _)| bytes.is_multiple_of(*of));
        let decimal = decimal.into_iter().find(|(of, _)| bits.is_multiple_of(*of));
        let rate = match (binary, decimal) {
            (Some((of, unit)), _) => format!("{}{unit}", bytes / of),
            (None, Some((of, unit))) => format!("{}{unit}", bits / of),
            (None, None) => bits.to_string(),
        };
        match &self.window {
            Some(window) => format!("{window}={rate}"),
            None => rate,
        }
    }

    fn holds(&self, ms: u64) -> bool {
        self.window.as_ref().is_none_or(|window| window.is_open(ms))
    }
}

/// The lowest limit that holds at a time, in seconds since 1970.
pub fn limit_at(limits: &[DayLimit], seconds: u64) -> Option<u64> {
    let ms = seconds.saturating_mul(1000);
    limits.iter().filter(|limit| limit.holds(ms)).map(|limit| limit.bytes_per_second).min()
}

/// As a limit is kept in files. Those of before have the minutes of each day in UTC; a drover that knows nothing else takes one with
/// a window as one that always holds.
#[derive(Serialize, Deserialize)]
struct Kept {
    from: u16,
    to: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
    bytes_per_second: u64,
}

impl TryFrom<Kept> for DayLimit {
    type Error = drover_window::WindowError;

    fn try_from(kept: Kept) -> Result<DayLimit, Self::Error> {
        let Kept { from, to, window, bytes_per_second } = kept;
        let daily = || format!("{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60).parse();
        let window = match window {
            None if from != to => Some(daily()?),
            window => window,
        };
        Ok(DayLimit { window, bytes_per_second })
    }
}

impl From<DayLimit> for Kept {
    fn from(limit: DayLimit) -> Kept {
        let DayLimit { window, bytes_per_second } = limit;
        let (from, to) = window.as_ref().and_then(Window::daily_in_utc).unwrap_or((0, 0));
        Kept { from, to, window: window.filter(|_| from == to), bytes_per_second }
    }
}

impl FromStr for DayLimit {
    type Err = String;

    /// `RATE`, which always holds, or `WINDOW=RATE`.
    fn from_str(text: &str) -> Result<DayLimit, String> {
        let (window, rate) = match text.split_once('=') {
            Some((window, rate)) => {
                (Some(window.parse::<Window>().map_err(|error| error.to_string())?), rate)
            }
            None => (None, text),
        };
        let window = window.filter(|window| !window.is_always());
        Ok(DayLimit { window, bytes_per_second: byte_rate(rate).map_err(|error| error.to_string())? })
    }
}

impl fmt::Display for DayLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bytes_per_second as f64 * 8e-6;
        match &self.window {
            None => write!(f, "always {rate:.1} Mbit/s"),
            Some(window) => write!(f, "{window} {rate:.1} Mbit/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(window: &str, rate: u64) -> DayLimit {
        DayLimit { window: window.parse().ok(), bytes_per_second: rate }
    }

    fn at(hour: u64, minute: u64) -> u64 {
        20_000 * 86_400 + hour * 3600 + minute * 60 + 59
    }

    #[test]
    fn the_lowest_limit_of_the_hour_holds() {
        let limits = [limit("08:00-18:00", 10), limit("17:30-24:00", 5), limit("22:00-06:00", 100)];
        for (hour, minute, expected) in [
            (7, 59, None),
            (8, 0, Some(10)),
            (17, 29, Some(10)),
            (17, 30, Some(5)),
            (23, 59, Some(5)),
            (0, 0, Some(100)),
            (5, 59, Some(100)),
            (6, 0, None),
        ] {
            assert_eq!(limit_at(&limits, at(hour, minute)), expected, "{hour}:{minute}");
        }
        assert_eq!(limit_at(&[DayLimit::always(7)], at(12, 0)), Some(7), "always");
        assert_eq!(limit_at(&[], 0), None);
    }

    #[test]
    fn a_limit_holds_by_the_clock_and_the_days_of_its_zone() {
        let limits = [limit("Mon-Fri 08:00-18:00 Europe/Berlin", 10), DayLimit::always(50)];
        // 2024-10-04 is a Friday; the clock is put back on the 27th.
        let friday = 1_728_000_000;
        for (day, hour, expected) in
            [(0, 6, 10), (0, 5, 50), (0, 16, 50), (1, 12, 50), (24, 6, 50), (24, 7, 10)]
        {
            assert_eq!(
                limit_at(&limits, friday + day * 86_400 + hour * 3600),
                Some(expected),
                "{day} {hour}"
            );
        }
        assert_eq!(limits[0].changes_after(friday * 1000), Some((friday + 6 * 3600) * 1000));
        assert_eq!(limits[1].changes_after(friday * 1000), None);
    }

    #[test]
    fn a_limit_is_a_rate_or_a_window_and_a_rate() {
        assert_eq!("500m".parse(), Ok(DayLimit::always(62_500_000)));
        assert_eq!("00:00-24:00=500m".parse(), Ok(DayLimit::always(62_500_000)));
        assert_eq!("08:00-18:00=12MiB".parse(), Ok(limit("08:00-18:00", 12 << 20)));
        let workdays = "Mon-Fri 08:00-18:00 Europe/Berlin";
        assert_eq!(format!("{workdays}=2.5g").parse(), Ok(limit(workdays, 312_500_000)));
        for text in ["", "1", "m", "0m", "-1m", "99999999999999999999g", "08:00=1m", "08:00-9:00="] {
            assert!(text.parse::<DayLimit>().is_err(), "{text}");
        }
        assert_eq!(limit("22:30-06:05", 1_000_000).to_string(), "22:30-06:05 UTC 8.0 Mbit/s");
        assert_eq!(DayLimit::always(1_000_000).to_string(), "always 8.0 Mbit/s");
    }

    #[test]
    fn a_limit_is_written_as_it_is_read() {
        for (text, expected) in [
            ("500m", "500m"),
            ("2.5g", "2500m"),
            ("8k", "8k"),
            ("12MiB", "12MiB"),
            ("1KiB", "1KiB"),
            ("3GiB", "3GiB"),
            ("56", "56"),
            ("Mon-Fri 08:00-18:00 Europe/Berlin=1g", "Mon-Fri 08:00-18:00 Europe/Berlin=1g"),
            ("22:00-06:00=2MiB", "22:00-06:00 UTC=2MiB"),
        ] {
            let limit: DayLimit = text.parse().unwrap();
            assert_eq!(limit.text(), expected);
            assert_eq!(limit.text().parse(), Ok(limit), "{text}");
        }
    }

    #[test]
    fn a_limit_is_kept_as_before_where_it_can_be() {
        for (limit, kept) in [
            (limit("22:00-06:00", 7), r#"{"from":1320,"to":360,"bytes_per_second":7}"#),
            (DayLimit::always(7), r#"{"from":0,"to":0,"bytes_per_second":7}"#),
            (
                limit("Sat 22:00-06:00 Europe/Berlin", 7),
                r#"{"from":0,"to":0,"window":"Sat 22:00-06:00 Europe/Berlin","bytes_per_second":7}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&limit).unwrap(), kept);
            assert_eq!(serde_json::from_str::<DayLimit>(kept).unwrap(), limit);
        }
        let beyond = r#"{"from":1500,"to":360,"bytes_per_second":7}"#;
        assert!(serde_json::from_str::<DayLimit>(beyond).is_err());
    }
}
