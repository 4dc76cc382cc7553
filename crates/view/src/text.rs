//! Words and numbers as all views write them.

use std::borrow::Cow;
use std::time::Duration;

pub(crate) use drover_types::shown::{clean, plain_json};
pub(crate) use drover_types::{count, duration};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Stands for what is not known.
pub(crate) const UNKNOWN: &str = "--";

/// Beyond this an estimate says nothing.
const ESTIMATE_MAX: Duration = Duration::from_secs(100 * 24 * 3600);

/// Columns that the text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The text in at most `columns`; where it was cut it ends in `~`.
pub(crate) fn clip(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut taken = 0;
    let mut cut = String::new();
    for c in text.chars() {
        taken += c.width().unwrap_or(0);
        if taken + 1 > columns {
            break;
        }
        cut.push(c);
    }
    if columns > 0 {
        cut.push('~');
    }
    Cow::Owned(cut)
}

/// The text in at most `columns`; where it was cut it ends in `...`, which every locale has.
pub(crate) fn shorten(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let (mut taken, mut cut) = (DOTS.len().min(columns), String::new());
    for c in text.chars() {
        taken += c.width().unwrap_or(0);
        if taken > columns {
            break;
        }
        cut.push(c);
    }
    cut.push_str(&DOTS[..DOTS.len().min(columns)]);
    Cow::Owned(cut)
}

const DOTS: &str = "...";

/// Milliseconds between two moments as a duration; nothing less than zero.
pub(crate) fn between(started_ms: i64, ended_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ended_ms.saturating_sub(started_ms)).unwrap_or(0))
}

/// The estimate, unless it is beyond sense.
pub(crate) fn sensible(left: Option<Duration>) -> Option<Duration> {
    left.filter(|left| *left <= ESTIMATE_MAX)
}

/// An estimate: `0:12`, `1:02:03`, `3 d 04 h`; unknown or beyond sense: `--`.
pub(crate) fn estimate(left: Option<Duration>) -> String {
    let Some(left) = sensible(left) else { return UNKNOWN.into() };
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match hours {
        0 => format!("{minutes}:{:02}", seconds % 60),
        1..24 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{} d {:02} h", hours / 24, hours % 24),
    }
}

/// A share from 0 to 1 as whole percent, which says 100 only when it is all.
pub(crate) fn percent(share: f64) -> u32 {
    let whole = (share.clamp(0.0, 1.0) * 100.0).round() as u32;
    if whole == 100 && share < 1.0 { 99 } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_by_columns_and_not_by_characters() {
        assert_eq!(clip("web01", 5), "web01");
        assert_eq!(clip("web0123", 5), "web0~");
        assert_eq!(clip("倉庫倉庫", 5), "倉庫~");
        assert_eq!(clip("倉庫倉庫", 4), "倉~");
        assert_eq!(clip("web01", 1), "~");
        assert_eq!(clip("web01", 0), "");
    }

    #[test]
    fn shortens_by_columns_and_says_so_in_any_locale() {
        assert_eq!(shorten("web01", 5), "web01");
        assert_eq!(shorten("web0123", 6), "web...");
        assert_eq!(shorten("倉庫倉庫", 6), "倉...");
        assert_eq!(shorten("倉庫倉庫", 7), "倉庫...");
        assert_eq!(shorten("web01", 2), "..");
    }

    #[test]
    fn durations_grow_through_their_units() {
        let text = |ms| duration(Duration::from_millis(ms));
        assert_eq!(text(40), "0.0 s");
        assert_eq!(text(9_440), "9.4 s");
        assert_eq!(text(59_999), "59 s");
        assert_eq!(text(200_000), "3 min 20 s");
        assert_eq!(text(7_500_000), "2 h 05 min");
        assert_eq!(text(273_600_000), "3 d 04 h");
        assert_eq!(between(10, 5), Duration::ZERO);
    }

    #[test]
    fn estimates_round_up_and_are_unknown_beyond_sense() {
        let text = |ms| estimate(Some(Duration::from_millis(ms)));
        assert_eq!(text(0), "0:00");
        assert_eq!(text(11_001), "0:12");
        assert_eq!(text(3_723_000), "1:02:03");
        assert_eq!(text(273_600_000), "3 d 04 h");
        assert_eq!(estimate(Some(Duration::MAX)), "--");
        assert_eq!(estimate(None), "--");
    }

    #[test]
    fn a_hundred_percent_is_said_only_of_all() {
        assert_eq!([0.0, 0.004, 0.5, 0.999, 1.0, 7.0].map(percent), [0, 0, 50, 99, 100, 100]);
        assert_eq!(percent(f64::NAN), 0);
    }
}
