//! The keys of a warm migration.

use std::time::Duration;

use drover_types::calendar::days_since_1970;
use serde::{Deserialize, Serialize};

pub use drover_types::calendar::moment_text;

/// How a VM that keeps running is brought over: in passes, and a cutover at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {
    /// Time from the beginning of a pass to that of the next.
    pub interval: Interval,
    /// When the VM moves over.
    pub cutover: Cutover,
    /// Longest downtime that `cutover: auto` accepts.
    pub downtime_max: Duration,
    /// Whether the guest is asked to quiesce its file systems before a pass.
    pub quiesce: bool,
    /// How much of what the source calls unchanged is looked at all the same.
    pub audit: Audit,
}

impl Default for Warm {
    fn default() -> Self {
        Warm {
            interval: Interval::Every(Duration::from_secs(3600)),
            cutover: Cutover::Manual,
            downtime_max: Duration::from_secs(300),
            quiesce: false,
            audit: Audit::Sampled,
        }
    }
}

/// Time between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// As short as the rate of change needs.
    Auto,
    /// This long.
    Every(Duration),
}

/// When a VM moves over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cutover {
    /// When `drover cutover` says so.
    Manual,
    /// As soon as the predicted downtime fits.
    Auto,
    /// At this moment, in milliseconds since 1970.
    At(i64),
}

/// How much of what the source calls unchanged is looked at all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audit {
    /// Nothing.
    None,
    /// A sample, with every pass.
    Sampled,
    /// A sample with every pass, and everything at the cutover.
    Full,
}

/// What one place of the plan says of it; the rest is told elsewhere, or left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmKeys {
    /// See [`Warm::interval`].
    pub interval: Option<Interval>,
    /// See [`Warm::cutover`].
    pub cutover: Option<Cutover>,
    /// See [`Warm::downtime_max`].
    pub downtime_max: Option<Duration>,
    /// See [`Warm::quiesce`].
    pub quiesce: Option<bool>,
    /// See [`Warm::audit`].
    pub audit: Option<Audit>,
}

impl WarmKeys {
    /// These, and where they say nothing, the others.
    pub fn or(self, others: WarmKeys) -> WarmKeys {
        WarmKeys {
            interval: self.interval.or(others.interval),
            cutover: self.cutover.or(others.cutover),
            downtime_max: self.downtime_max.or(others.downtime_max),
            quiesce: self.quiesce.or(others.quiesce),
            audit: self.audit.or(others.audit),
        }
    }

    /// These, and where they say nothing, the defaults.
    pub fn or_default(self) -> Warm {
        let usual = Warm::default();
        Warm {
            interval: self.interval.unwrap_or(usual.interval),
            cutover: self.cutover.unwrap_or(usual.cutover),
            downtime_max: self.downtime_max.unwrap_or(usual.downtime_max),
            quiesce: self.quiesce.unwrap_or(usual.quiesce),
            audit: self.audit.unwrap_or(usual.audit),
        }
    }
}

/// Milliseconds since 1970 of an RFC 3339 moment such as `2026-12-01T22:00:00Z` or `...+01:00`.
pub fn parse_moment(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(zone_at);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = time.split(':');
    let (hour, minute, second) =
        (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let is_date = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    let is_time = hour < 24 && minute < 60 && second < 60;
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if parts.next().is_some() || clock.next().is_some() || !is_date || !is_time || !is_fraction {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let local = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some((local - offset(zone)?) * 1000 + millis)
}

/// Seconds that a zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60)
}

/// A number of so many digits; `+1` is none, though Rust would read it.
fn number(text: &str, digits: usize) -> Option<i64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_in_any_zone() {
        assert_eq!(parse_moment("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(moment_text(1_796_162_400_999), "2026-12-01T22:00:00Z");
        assert_eq!(moment_text(-1000), "1969-12-31T23:59:59Z");
        assert_eq!(parse_moment("2026-12-01T22:00:00Z"), Some(1_796_162_400_000));
        assert_eq!(parse_moment("2026-12-01T23:00:00+01:00"), Some(1_796_162_400_000));
        assert_eq!(parse_moment("2026-12-01 16:30:00.25-05:30"), Some(1_796_162_400_250));
        assert_eq!(parse_moment("2024-02-29T00:00:00Z"), Some(1_709_164_800_000));
        assert_eq!(parse_moment("1969-12-31T23:59:59Z"), Some(-1000));
    }

    #[test]
    fn each_day_of_two_centuries_follows_the_one_before_it() {
        let lengths = |year: i64| {
            let is_leap = year % 400 == 0 || year % 4 == 0 && year % 100 != 0;
            [31, 28 + i64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        };
        // 70 years with 17 leap days before 1970.
        let mut days = -(70 * 365 + 17);
        for year in 1900..2101 {
            for (month, length) in (1..).zip(lengths(year)) {
                for day in 1..=length {
                    let text = format!("{year}-{month:02}-{day:02}T00:00:00Z");
                    assert_eq!(parse_moment(&text), Some(days * 86_400_000), "{text}");
                    assert_eq!(moment_text(days * 86_400_000), text);
                    days += 1;
                }
                let text = format!("{year}-{month:02}-{:02}T00:00:00Z", length + 1);
                assert_eq!(parse_moment(&text), None, "{text}");
            }
        }
    }

    #[test]
    fn the_last_moments_of_a_day_and_the_furthest_zones_are_read() {
        assert_eq!(parse_moment("1970-01-01t23:59:59.9999z"), Some(86_399_999));
        assert_eq!(parse_moment("1970-01-01T23:59:00+23:59"), Some(0));
        assert_eq!(parse_moment("1970-01-01T00:00:00-00:30"), Some(30 * 60_000));
    }

    #[test]
    fn what_is_no_moment_is_none() {
        for text in [
            "",
            "auto",
            "2026-12-01",
            "22:00",
            "2026-12-01T22:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-12-00T00:00:00Z",
            "2026-12-01T24:00:00Z",
            "2026-12-01T22:00Z",
            "2026-12-01T22:00:00.Z",
            "2026-12-01T22:00:00+1:00",
            "2026-12-01T22:00:00+25:00",
            "2026-12-01T22:00:00+24:00",
            "2026-12-01T22:00:00+00:60",
            "2026-12-01T22:00:00++1:00",
            "2026-12-01T22:00:00+01:+5",
            "2026-12-01T22:60:00Z",
            "2026-12-01T22:00:60Z",
            "2026-12-32T22:00:00Z",
            "2026-00-01T22:00:00Z",
            "2026-12-01-01T22:00:00Z",
            "2026-12-01T22:00:00:00Z",
            "2026-12-01T22:00:00.1xZ",
            "+026-12-01T22:00:00Z",
            "2026-12-01T22:00:00+",
            "2026-12-01T22:00:00Zx",
            "2026-1\u{e4}-01T22:00:00Z",
            "2026-12-01T22:00:00-\u{e4}0:00",
        ] {
            assert_eq!(parse_moment(text), None, "{text}");
        }
    }

    #[test]
    fn a_vm_s_own_keys_come_before_the_plan_s() {
        let own = WarmKeys { quiesce: Some(true), ..WarmKeys::default() };
        let plan = WarmKeys { quiesce: Some(false), cutover: Some(Cutover::Auto), ..WarmKeys::default() };
        let warm = own.or(plan).or_default();
        assert_eq!((warm.quiesce, warm.cutover), (true, Cutover::Auto));
        assert_eq!(warm.interval, Interval::Every(Duration::from_secs(3600)));
    }
}
