//! How many bytes a second may go to a site, by the time of day. Pure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::byte_rate;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// A limit that holds in a part of each day, in UTC: from its first minute up to, not with, its last. One that ends
/// before it begins goes on through midnight; one that ends where it begins always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayLimit {
    /// Minute of the day, 0 to 1439.
    pub from: u16,
    /// Minute of the day, 0 to 1439.
    pub to: u16,
    /// Bytes a second, at least 1.
    pub bytes_per_second: u64,
}

impl DayLimit {
    fn holds(&self, minute: u16) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

/// The lowest limit that holds at a time, in seconds since 1970.
pub fn limit_at(limits: &[DayLimit], seconds: u64) -> Option<u64> {
    let minute = (seconds / 60 % u64::from(DAY)) as u16;
    limits.iter().filter(|limit| limit.holds(minute)).map(|limit| limit.bytes_per_second).min()
}

/// A part of a day, written `HH:MM-HH:MM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hours {
    /// First minute.
    pub from: u16,
    /// The minute after the last.
    pub to: u16,
}

/// A text that is no part of a day.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not HH:MM-HH:MM")]
pub struct HoursError(String);

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hours { from, to } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

impl FromStr for Hours {
    type Err = HoursError;

    fn from_str(text: &str) -> Result<Hours, HoursError> {
        let hours =
            text.split_once('-').and_then(|(from, to)| Some(Hours { from: minute(from)?, to: minute(to)? }));
        hours.ok_or_else(|| HoursError(text.to_string()))
    }
}

fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
    let (hour, minute) = (number(hour)?, number(minute)?);
    // 24:00 is the end of a day, which is the beginning of the next.
    let sound = minute < 60 && (hour < 24 || (hour == 24 && minute == 0));
    sound.then_some((hour * 60 + minute) % DAY)
}

impl FromStr for DayLimit {
    type Err = String;

    /// `RATE`, which always holds, or `HH:MM-HH:MM=RATE`.
    fn from_str(text: &str) -> Result<DayLimit, String> {
        let (hours, rate) = text.split_once('=').unwrap_or(("00:00-24:00", text));
        let hours: Hours = hours.parse().map_err(|error: HoursError| error.to_string())?;
        Ok(DayLimit {
            from: hours.from,
            to: hours.to,
            bytes_per_second: byte_rate(rate).map_err(|error| error.to_string())?,
        })
    }
}

impl fmt::Display for DayLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DayLimit { from, to, bytes_per_second } = self;
        let rate = *bytes_per_second as f64 * 8e-6;
        match from == to {
            true => write!(f, "always {rate:.1} Mbit/s"),
            false => {
                write!(
                    f,
                    "{:02}:{:02}-{:02}:{:02} UTC {rate:.1} Mbit/s",
                    from / 60,
                    from % 60,
                    to / 60,
                    to % 60
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(hours: &str, rate: u64) -> DayLimit {
        let Hours { from, to } = hours.parse().unwrap();
        DayLimit { from, to, bytes_per_second: rate }
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
        assert_eq!(limit_at(&[limit("00:00-24:00", 7)], at(12, 0)), Some(7), "always");
        assert_eq!(limit_at(&[], 0), None);
    }

    #[test]
    fn a_limit_is_a_rate_or_hours_and_a_rate() {
        assert_eq!("500m".parse(), Ok(limit("00:00-24:00", 62_500_000)));
        assert_eq!("08:00-18:00=12MiB".parse(), Ok(limit("08:00-18:00", 12 << 20)));
        assert_eq!("08:00-18:00=2.5g".parse(), Ok(limit("08:00-18:00", 312_500_000)));
        for text in ["", "1", "m", "0m", "-1m", "99999999999999999999g", "08:00=1m", "08:00-9:00="] {
            assert!(text.parse::<DayLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn parts_of_a_day_are_read_strictly() {
        for text in [
            "",
            "8-9",
            "08:00",
            "08:60-09:00",
            "24:01-09:00",
            "25:00-09:00",
            "-1:00-09:00",
            "a:b-c:d",
            "+8:00-9:00",
        ] {
            assert!(text.parse::<Hours>().is_err(), "{text}");
        }
        assert_eq!(limit("22:30-06:05", 1_000_000).to_string(), "22:30-06:05 UTC 8.0 Mbit/s");
    }
}
