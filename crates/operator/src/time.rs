//! Moments as Kubernetes writes them: RFC 3339 in UTC.

use drover_types::calendar::{days_since_1970, moment_text};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub i64);

const DAY: i64 = 86_400;

impl Moment {
    /// So many seconds later.
    pub fn plus(self, seconds: i64) -> Moment {
        Moment(self.0.saturating_add(seconds))
    }

    /// As `2026-01-02T03:04:05Z`.
    pub fn text(self) -> String {
        moment_text(self.0.saturating_mul(1000))
    }

    /// Reads what [`Moment::text`] writes; parts of seconds are dropped.
    pub fn parse(text: &str) -> Option<Moment> {
        let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
        let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let clock = clock.split('.').next()?;
        let mut clock = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
        let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        Some(Moment(days_since_1970(year, month, day) * DAY + hour * 3600 + minute * 60 + second))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        let text = String::deserialize(deserializer)?;
        Moment::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("no moment: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_they_are_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(Moment(seconds).text(), text);
            assert_eq!(Moment::parse(text), Some(Moment(seconds)), "{text}");
        }
        for day in (0..60_000).map(|it| it * DAY + 4242) {
            assert_eq!(Moment::parse(&Moment(day).text()), Some(Moment(day)));
        }
        assert_eq!(Moment::parse("2000-01-01T00:00:00.250000Z"), Some(Moment(946_684_800)));
        for text in ["", "2000-13-01T00:00:00Z", "2000-01-01", "2000-01-01T00:00:00+01:00"] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
