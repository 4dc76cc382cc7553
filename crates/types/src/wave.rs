//! Waves: parts of a plan that move one after the other, each in its window. Pure.

use serde::{Deserialize, Serialize};

use crate::day_limit::Hours;

/// A wave of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// Its name, which no other wave of the plan has.
    pub name: String,
    /// When its VMs may move.
    pub window: WaveWindow,
    /// Names of the waves that have to be over before it.
    pub after: Vec<String>,
    /// What becomes of the waves after it if one of its VMs fails.
    pub if_failed: IfFailed,
}

/// What becomes of the waves after one of which a VM failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfFailed {
    /// They wait for an operator's word.
    #[default]
    Wait,
    /// They go on.
    GoOn,
    /// They do not begin in this run.
    Stop,
}

/// When the VMs of a wave may move: in the hours of each day, and from one moment until another. What is absent is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveWindow {
    /// Hours of each day, UTC.
    pub hours: Option<Hours>,
    /// Not before this moment, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// Before this moment, in milliseconds since 1970.
    pub until_ms: Option<u64>,
}

/// What a window is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is open.
    Open {
        /// When it closes, in milliseconds since 1970; absent if it never does.
        until_ms: Option<u64>,
    },
    /// It is closed, and opens at this moment.
    At(u64),
    /// It is closed for good.
    Never,
}

impl WaveWindow {
    /// Whether it is always open.
    pub fn is_always(&self) -> bool {
        *self == WaveWindow::default()
    }

    /// What it is at a moment, in milliseconds since 1970.
    pub fn at(&self, now_ms: u64) -> Opening {
        let earliest = now_ms.max(self.from_ms.unwrap_or(0));
        let (opens, closes) = match self.hours.filter(|hours| hours.from != hours.to) {
            Some(hours) => {
                let (from, to) = hours.span_at(earliest);
                (from.max(earliest), Some(to))
            }
            None => (earliest, None),
        };
        if self.until_ms.is_some_and(|until| until <= opens) {
            return Opening::Never;
        }
        match opens > now_ms {
            true => Opening::At(opens),
            false => Opening::Open { until_ms: closes.into_iter().chain(self.until_ms).min() },
        }
    }
}

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;

impl Hours {
    /// The span of these hours (UTC) that a moment lies in, or else the next one: from and to, in milliseconds since 1970.
    /// Hours that end where they begin are a whole day.
    pub fn span_at(&self, ms: u64) -> (u64, u64) {
        let (from, to) = (u64::from(self.from) * MINUTE_MS, u64::from(self.to) * MINUTE_MS);
        let length = if to > from { to - from } else { to + DAY_MS - from };
        let midnight = ms - ms % DAY_MS;
        // One that goes through midnight may have begun the day before.
        let yesterday = midnight.checked_sub(DAY_MS).map(|day| day + from);
        let begins = yesterday.into_iter().chain([midnight + from, midnight + DAY_MS + from]);
        let mut spans = begins.map(|begin| (begin, begin + length));
        spans.find(|(_, end)| *end > ms).unwrap_or((ms, ms + length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const NIGHT: Hours = Hours { from: 22 * 60, to: 6 * 60 };

    #[test]
    fn hours_are_the_span_that_a_moment_lies_in_or_the_next_one() {
        let day = 100 * DAY_MS;
        let tonight = (day + 22 * HOUR, day + 30 * HOUR);
        assert_eq!(NIGHT.span_at(day + 12 * HOUR), tonight);
        assert_eq!(NIGHT.span_at(day + 23 * HOUR), tonight);
        assert_eq!(NIGHT.span_at(day + 29 * HOUR), tonight, "after midnight");
        assert_eq!(
            NIGHT.span_at(day + 30 * HOUR),
            (tonight.0 + DAY_MS, tonight.1 + DAY_MS),
            "its end is not in it"
        );
        let noon = Hours { from: 12 * 60, to: 13 * 60 };
        assert_eq!(noon.span_at(day + 13 * HOUR).0, day + 36 * HOUR);
        assert_eq!(noon.span_at(5), (12 * HOUR, 13 * HOUR), "the first day of all");
    }

    #[test]
    fn a_window_has_hours_and_moments() {
        let day = 100 * DAY_MS;
        let window = WaveWindow { hours: Some(NIGHT), from_ms: Some(day), until_ms: Some(day + 47 * HOUR) };
        assert_eq!(window.at(day - DAY_MS), Opening::At(day), "in the middle of a night");
        assert_eq!(window.at(day + 6 * HOUR), Opening::At(day + 22 * HOUR));
        assert_eq!(window.at(day + 23 * HOUR), Opening::Open { until_ms: Some(day + 30 * HOUR) });
        assert_eq!(window.at(day + 46 * HOUR), Opening::Open { until_ms: Some(day + 47 * HOUR) });
        assert_eq!(window.at(day + 47 * HOUR), Opening::Never);
        let short = WaveWindow { until_ms: Some(day + 20 * HOUR), ..window };
        assert_eq!(short.at(day + 7 * HOUR), Opening::Never, "its hours do not come again");
        assert_eq!(WaveWindow::default().at(7), Opening::Open { until_ms: None });
        let whole = WaveWindow { hours: Some(Hours { from: 60, to: 60 }), ..WaveWindow::default() };
        assert_eq!(whole.at(day), Opening::Open { until_ms: None }, "a whole day has no end");
    }
}
