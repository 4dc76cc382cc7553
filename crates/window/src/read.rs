//! The grammar of a window.
//!
//! ```text
//! window = when [zone]                            UTC if no zone is named
//! when   = [days] time "-" time                   22:00-06:00   Sat 22:00-06:00   Mon-Fri 20:00-06:00
//!        | day time "-" day time                  Fri 20:00 - Mon 06:00
//!        | days                                   Sat-Sun
//!        | date [time] "-" date [time]            2026-12-12 20:00 - 2026-12-13 04:00
//!        | date [time "-" time]                   2026-12-12 20:00-23:00
//! days   = day ["-" day]
//! ```
//!
//! A time from 00:00 to 24:00 that is not after the first one is of the next day. A date without a time is the whole day.

use std::str::FromStr;

use jiff::civil::{Date, DateTime, Weekday};

use crate::clock::Clock;
use crate::window::{When, Window};

/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// No window is longer; more of a text is not repeated in an error either.
const CHARS_MAX: usize = 120;

/// A text that is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Its parts do not make one.
    #[error(
        "'{0}' is not a window: write 22:00-06:00, Sat 22:00-06:00 or 2026-12-12 20:00 - 2026-12-13 04:00, with the zone \
         at the end (Europe/Berlin) if it is not UTC"
    )]
    Shape(String),
    /// A time that there is not.
    #[error("'{0}' is not a time from 00:00 to 24:00, such as 22:00")]
    Time(String),
    /// A date that there is not.
    #[error("'{0}' is not a date such as 2026-12-12")]
    Date(String),
    /// A word where a day belongs.
    #[error("'{0}' is not a day of the week such as Sat or Mon-Fri")]
    Day(String),
    /// A zone that is not known.
    #[error("'{0}' is not a time zone such as Europe/Berlin or UTC")]
    Zone(String),
    /// The end is not after the beginning.
    #[error("'{0}' ends before it begins: write the earlier date first, as in 2026-12-20 - 2027-01-03")]
    Backwards(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// Minute of the day, 0 to 1440.
    Time(u16),
    Date(Date),
    Day(Weekday),
    Dash,
    Word(String),
}

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Window, WindowError> {
        let shape = || WindowError::Shape(text.chars().take(CHARS_MAX).collect());
        if text.chars().count() > CHARS_MAX {
            return Err(shape());
        }
        let tokens = tokens(text)?;
        let (when, clock) = match tokens.split_last() {
            Some((Token::Word(name), when)) => {
                (when, Clock::named(name).ok_or_else(|| WindowError::Zone(name.clone()))?)
            }
            _ => (tokens.as_slice(), Clock::utc()),
        };
        if let Some(Token::Word(word)) = when.iter().find(|it| matches!(it, Token::Word(_))) {
            return Err(WindowError::Day(word.clone()));
        }
        let when = when_of(when).ok_or_else(shape)?;
        match when {
            When::Dates { from, to } if to <= from => Err(WindowError::Backwards(text.trim().into())),
            when => Ok(Window { when, clock }),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, WindowError> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '-' => (Token::Dash, 1),
            '0'..='9' => number(rest)?,
            'A'..='Z' | 'a'..='z' => word(rest),
            _ => return Err(WindowError::Shape(text.trim().into())),
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// How many bytes at the beginning are such ASCII characters.
fn run(text: &str, fits: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| fits(*byte)).count()
}

/// A date or a time, and how long it is.
fn number(text: &str) -> Result<(Token, usize), WindowError> {
    let digits = run(text, |byte| byte.is_ascii_digit());
    if digits == 4 && text[digits..].starts_with('-') {
        let length = run(text, |byte| byte.is_ascii_digit() || byte == b'-').min(10);
        let date = Some(&text[..length]).filter(|it| it.len() == 10).and_then(|it| it.parse().ok());
        return match date {
            Some(date) => Ok((Token::Date(date), length)),
            None => Err(WindowError::Date(text[..length].into())),
        };
    }
    let length = run(text, |byte| byte.is_ascii_digit() || byte == b':');
    let shown = &text[..length];
    let time = minute(shown).ok_or_else(|| WindowError::Time(shown.into()))?;
    Ok((Token::Time(time), length))
}

fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| (1..=2).contains(&text.len()).then(|| text.parse::<u16>().ok())?;
    let (hour, minute) = (number(hour)?, number(minute)?);
    Some(hour * 60 + minute).filter(|it| minute < 60 && *it <= DAY)
}

/// A day of the week or another word, and how long it is.
fn word(text: &str) -> (Token, usize) {
    let letters = run(text, |byte| byte.is_ascii_alphabetic());
    if let Some(day) = weekday(&text[..letters]) {
        return (Token::Day(day), letters);
    }
    let length = run(text, |byte| byte.is_ascii_alphanumeric() || b"_+-/".contains(&byte));
    (Token::Word(text[..length].into()), length)
}

fn weekday(word: &str) -> Option<Weekday> {
    let days = Weekday::Monday.cycle_forward().take(7);
    days.into_iter().find(|day| {
        let name = crate::window::name_of(*day);
        word.eq_ignore_ascii_case(name) || word.eq_ignore_ascii_case(&name[..3])
    })
}

fn when_of(tokens: &[Token]) -> Option<When> {
    use Token::{Dash, Date, Day, Time};
    match *tokens {
        [Time(from), Dash, Time(to)] => Some(days(Weekday::Monday, 7, from, to)),
        [Day(day), Time(from), Dash, Time(to)] => Some(days(day, 1, from, to)),
        [Day(first), Dash, Day(last), Time(from), Dash, Time(to)] => {
            Some(days(first, 1 + first.until(last), from, to))
        }
        [Day(first), Time(from), Dash, Day(last), Time(to)] => Some(from_day_to_day(first, from, last, to)),
        [Day(day)] => Some(days(day, 1, 0, DAY)),
        [Day(first), Dash, Day(last)] => Some(days(first, 1 + first.until(last), 0, DAY)),
        [Date(day)] => dates((day, 0), (day, DAY)),
        [Date(day), Time(from), Dash, Time(to)] if to > from => dates((day, from), (day, to)),
        [Date(day), Time(from), Dash, Time(to)] => dates((day, from), (day.tomorrow().ok()?, to)),
        [Date(first), Dash, Date(last)] => dates((first, 0), (last, DAY)),
        [Date(first), Time(from), Dash, Date(last)] => dates((first, from), (last, DAY)),
        [Date(first), Dash, Date(last), Time(to)] => dates((first, 0), (last, to)),
        [Date(first), Time(from), Dash, Date(last), Time(to)] => dates((first, from), (last, to)),
        _ => None,
    }
}

/// Hours of so many days of the week; of all, from whichever on. 24:00 is the beginning of the next day.
fn days(first: Weekday, count: i8, from: u16, to: u16) -> When {
    let first = match count {
        7 => Weekday::Monday,
        _ if from == DAY => first.next(),
        _ => first,
    };
    let (from, to) = (from % DAY, to % DAY);
    When::Days { first, count, from, to, later: i8::from(to <= from) }
}

fn from_day_to_day(first: Weekday, from: u16, last: Weekday, to: u16) -> When {
    let first = if from == DAY { first.next() } else { first };
    let last = if to == DAY { last.next() } else { last };
    let (from, to) = (from % DAY, to % DAY);
    let later = match first.until(last) {
        0 if to <= from => 7,
        later => later,
    };
    When::Days { first, count: 1, from, to, later }
}

fn dates((first, from): (Date, u16), (last, to): (Date, u16)) -> Option<When> {
    Some(When::Dates { from: at(first, from)?, to: at(last, to)? })
}

/// The minute of a day; that after its last is the first of the next one.
pub(crate) fn at(day: Date, minute: u16) -> Option<DateTime> {
    let day = if minute == DAY { day.tomorrow().ok()? } else { day };
    let minute = minute % DAY;
    Some(day.at((minute / 60) as i8, (minute % 60) as i8, 0, 0))
}
