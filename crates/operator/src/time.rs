//! Moments as Kubernetes writes them: RFC 3339 in UTC.

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
        let (days, of_day) = (self.0.div_euclid(DAY), self.0.rem_euclid(DAY));
        // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            of_day / 3600,
            of_day / 60 % 60,
            of_day % 60
        )
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
        let year = if month <= 2 { year - 1 } else { year };
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
        let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
        Some(Moment((era * 146_097 + of_era - 719_468) * DAY + hour * 3600 + minute * 60 + second))
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
