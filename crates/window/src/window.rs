//! One window.

use std::fmt;

use jiff::civil::{Date, DateTime, Weekday};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::read::{WindowError, at};

/// Hours of each day or of days of the week, or the time between two dates, on the clock of a zone. It is open from the first moment
/// at which that clock shows its beginning, or a later time, up to, not with, the first moment at which it shows its end.
///
/// As text, also in JSON: `Sat 22:00-06:00 Europe/Berlin`. See [`Windows`](crate::Windows) for several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    pub(crate) when: When,
    pub(crate) clock: Clock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Days {
        /// The first of the days of the week on which it begins.
        first: Weekday,
        /// How many these are, 1 to 7.
        count: i8,
        /// Minute of the day, 0 to 1439.
        from: u16,
        /// Minute of the day, 0 to 1439.
        to: u16,
        /// How many days later it ends, 0 to 7.
        later: i8,
    },
    Dates {
        from: DateTime,
        to: DateTime,
    },
}

/// Days to look at from today on: a week, and another one if the window of this week falls into the hour that is skipped.
const DAYS_AHEAD: i8 = 16;

impl Window {
    /// The span that a moment lies in, or else the next one that there is: from and to, in milliseconds since 1970.
    pub fn span_at(&self, ms: u64) -> Option<(u64, u64)> {
        let now = i64::try_from(ms).ok()?;
        let span = |from, to| {
            let (from, to) = (self.clock.reaches(from)?, self.clock.reaches(to)?);
            // All of it may be in the hour that is skipped.
            (from < to && to > now).then(|| (from.max(0) as u64, to as u64))
        };
        match self.when {
            When::Dates { from, to } => span(from, to),
            When::Days { first, count, from, to, later } => {
                let today = self.clock.shows(now)?.date();
                let on = |day: Date| span(at(day, from)?, at(after(day, later)?, to)?);
                // From one day more than it lasts: a clock that is put back may show the day before.
                let earliest = (0..=later).try_fold(today, |day, _| day.yesterday().ok());
                let days = std::iter::successors(earliest, |day| day.tomorrow().ok());
                let mut days = days.take((later + 1 + DAYS_AHEAD) as usize);
                days.find_map(|day| (first.until(day.weekday()) < count).then(|| on(day))?)
            }
        }
    }

    /// Whether it is open at a moment, in milliseconds since 1970.
    pub fn is_open(&self, ms: u64) -> bool {
        self.span_at(ms).is_some_and(|(from, _)| from <= ms)
    }

    /// When it opens or closes next; absent if it never does.
    pub fn changes_after(&self, ms: u64) -> Option<u64> {
        let (from, to) = self.span_at(ms).filter(|_| !self.is_always())?;
        Some(if from > ms { from } else { to })
    }

    /// The spans that begin before `until_ms` and are not over at `from_ms`.
    pub fn spans(&self, from_ms: u64, until_ms: u64) -> Vec<(u64, u64)> {
        let next = |span: &(u64, u64)| self.span_at(span.1);
        let spans = std::iter::successors(self.span_at(from_ms), next);
        spans.take_while(|(from, _)| *from < until_ms).collect()
    }

    /// Whether it is open from a time until the same time of the next day or week, again and again.
    pub fn is_always(&self) -> bool {
        matches!(self.when, When::Days { count: 7, from, to, .. } | When::Days { later: 7, from, to, .. } if from == to)
    }

    /// Minutes of the day, if it is of each day and in UTC.
    pub fn daily_in_utc(&self) -> Option<(u16, u16)> {
        match self.when {
            When::Days { count: 7, from, to, later: 0 | 1, .. } if self.clock == Clock::utc() => {
                Some((from, to))
            }
            When::Days { .. } | When::Dates { .. } => None,
        }
    }

    /// Whether it is between two dates, so that it comes once.
    pub fn is_of_dates(&self) -> bool {
        matches!(self.when, When::Dates { .. })
    }

    /// The name of its zone: `Europe/Berlin`.
    pub fn zone(&self) -> &str {
        self.clock.name()
    }

    /// A moment, in milliseconds since 1970, as RFC 3339 with the offset of its zone: `2026-12-05T22:00:00+01:00`; absent beyond the calendar.
    pub fn rfc3339(&self, ms: u64) -> Option<String> {
        self.clock.rfc3339(ms)
    }

    /// A moment, in milliseconds since 1970, on its clock: `Sat 2026-12-05 22:00 Europe/Berlin`.
    pub fn moment(&self, ms: u64) -> String {
        self.clock.moment(ms)
    }
}

fn after(day: Date, days: i8) -> Option<Date> {
    (0..days).try_fold(day, |day, _| day.tomorrow().ok())
}

impl fmt::Display for Window {
    /// `Sat 22:00-06:00 Europe/Berlin`, as it may be written in a plan.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.when {
            When::Dates { from, to } => {
                write!(f, "{} - {}", from.strftime("%Y-%m-%d %H:%M"), to.strftime("%Y-%m-%d %H:%M"))?;
            }
            When::Days { first, count, from, to, later } if later == i8::from(to <= from) => {
                match count {
                    7 => {}
                    1 => write!(f, "{} ", short(first))?,
                    _ => write!(f, "{}-{} ", short(first), short(first.wrapping_add(count - 1)))?,
                }
                let to = if to == 0 { 24 * 60 } else { to };
                write!(f, "{}-{}", Time(from), Time(to))?;
            }
            When::Days { first, from, to, later, .. } => {
                let last = first.wrapping_add(later);
                write!(f, "{} {} - {} {}", short(first), Time(from), short(last), Time(to))?;
            }
        }
        write!(f, " {}", self.clock.name())
    }
}

/// A minute of the day as `HH:MM`.
struct Time(u16);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

fn short(day: Weekday) -> &'static str {
    &name_of(day)[..3]
}

pub(crate) fn name_of(day: Weekday) -> &'static str {
    match day {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    }
}

impl TryFrom<String> for Window {
    type Error = WindowError;

    fn try_from(text: String) -> Result<Window, WindowError> {
        text.parse()
    }
}

impl From<Window> for String {
    fn from(window: Window) -> String {
        window.to_string()
    }
}
