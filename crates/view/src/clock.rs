//! Moments as people and machines write them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::text::UNKNOWN;

/// A moment on the user's clock: `2026-03-01 14:05:10`.
pub fn local(at_ms: i64) -> String {
    show(at_ms, "%Y-%m-%d %H:%M:%S")
}

/// The time of day on the user's clock: `14:05:10`.
pub(crate) fn time_of_day(at_ms: i64) -> String {
    show(at_ms, "%H:%M:%S")
}

/// Now, as the time of day on the user's clock: `14:05:10`.
pub fn time_now() -> String {
    time_of_day(now_ms())
}

/// The name of the user's clock: `CET`, `UTC`.
pub(crate) fn zone_name(at_ms: i64) -> String {
    show(at_ms, "%Z")
}

/// A moment on the user's clock as RFC 3339 with its offset; absent beyond the calendar.
pub(crate) fn local_rfc3339(at_ms: i64) -> Option<String> {
    let at = Timestamp::from_millisecond(at_ms).ok()?;
    Some(at.to_zoned(zone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

/// A moment on the user's clock to the minute: `Sun 2026-03-01 14:05`.
pub(crate) fn local_moment(at_ms: i64) -> String {
    show(at_ms, "%a %Y-%m-%d %H:%M")
}

/// The name of the user's zone, as waves name theirs: `Europe/Berlin`, or what else it has.
pub(crate) fn zone_id(at_ms: i64) -> String {
    zone().iana_name().map_or_else(|| zone_name(at_ms), str::to_string)
}

/// Now, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Now, as RFC 3339 in UTC with milliseconds.
pub fn now_utc() -> String {
    utc(now_ms())
}

/// A moment as RFC 3339 in UTC with milliseconds.
pub(crate) fn utc(at_ms: i64) -> String {
    match Timestamp::from_millisecond(at_ms) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => UNKNOWN.into(),
    }
}

/// A moment in UTC to the minute: `2026-03-01 14:05`.
pub(crate) fn utc_minute(at_ms: i64) -> String {
    utc(at_ms).chars().take(16).map(|c| if c == 'T' { ' ' } else { c }).collect()
}

fn show(at_ms: i64, format: &str) -> String {
    match Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.to_zoned(zone()).strftime(format).to_string(),
        Err(_) => UNKNOWN.into(),
    }
}

#[cfg(not(test))]
fn zone() -> TimeZone {
    TimeZone::system()
}

/// Tests read the same anywhere.
#[cfg(test)]
fn zone() -> TimeZone {
    TimeZone::UTC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_moments_for_people_and_machines() {
        assert_eq!(local(1_772_373_910_250), "2026-03-01 14:05:10");
        assert_eq!(time_of_day(1_772_373_910_250), "14:05:10");
        assert_eq!(utc(1_772_373_910_250), "2026-03-01T14:05:10.250Z");
        assert_eq!(utc_minute(1_772_373_910_250), "2026-03-01 14:05");
        assert_eq!(zone_name(0), "UTC");
    }

    #[test]
    fn a_moment_that_no_calendar_has_is_unknown() {
        assert_eq!(local(i64::MAX), "--");
        assert_eq!(utc(i64::MIN), "--");
    }
}
