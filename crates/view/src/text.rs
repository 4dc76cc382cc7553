//! Words and numbers as all views write them.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use drover_types::drives_terminal;
pub(crate) use drover_types::duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Stands for what is not known.
pub(crate) const UNKNOWN: &str = "--";

/// Beyond this an estimate says nothing.
const ESTIMATE_MAX: Duration = Duration::from_secs(100 * 24 * 3600);

/// The text on one line, without characters that could drive a terminal or turn the direction of
/// writing.
pub fn clean(text: &str) -> Cow<'_, str> {
    let harmless = |c| match c {
        '\n' | '\r' | '\t' => ' ',
        c if drives_terminal(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    if text.chars().any(drives_terminal) {
        Cow::Owned(text.trim_end().chars().map(harmless).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// A text of one or more lines, without characters that could drive a terminal or turn the direction of
/// writing: what an image, a server or an appliance calls itself may stand in it. Everything that the program tells
/// people goes through this at the last moment, whatever was cleaned before.
pub fn plain(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

/// A JSON text that means the same and drives no terminal: such characters stand only in its strings, where they can
/// be escaped. Line ends stay, which its own layout has.
pub fn plain_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            // All of them lie below U+10000, so one escape is enough.
            c if drives_terminal(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Writes JSON on as [`plain_json`] does. What it is given at a time is whole characters, as `serde_json` writes them.
pub struct PlainJson<W>(pub W);

impl<W: Write> Write for PlainJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        match text.chars().any(|c| c != '\n' && drives_terminal(c)) {
            true => self.0.write_all(plain_json(text).as_bytes())?,
            false => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

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

/// `1 disk`, `2 disks`, `2 passes`.
pub fn count(number: usize, thing: &str) -> String {
    let ending = match number {
        1 => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(clean("web01"), "web01");
        assert_eq!(clean("\u{1b}[2Jx\u{202e}"), "\u{fffd}[2Jx\u{fffd}");
        assert_eq!(plain("a\n  b\u{9b}31m\tc\n"), "a\n  b\u{fffd}31m c\n");
        assert_eq!(clean("two\n\tlines\n"), "two  lines");
        let odd = "a\u{85}\u{9b}\u{7f}\u{61c}\u{200f}\u{202e}\u{2066}\u{feff}\u{2028}b";
        assert_eq!(clean(odd), format!("a{}b", "\u{fffd}".repeat(9)));
    }

    #[test]
    fn json_keeps_what_it_says_and_drives_no_terminal() {
        let value = serde_json::json!({"name": "a\u{9b}31m\u{202e}\u{7f}\u{feff}\n\u{1b}ä倉", "n": [1, 2]});
        let text = plain_json(&format!("{value:#}"));
        assert!(text.lines().count() > 3 && !text.contains(|c| c != '\n' && drives_terminal(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        let mut written = PlainJson(Vec::new());
        serde_json::to_writer_pretty(&mut written, &value).unwrap();
        assert_eq!(String::from_utf8(written.0).unwrap(), text);
    }

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

    #[test]
    fn counts_one_and_many() {
        assert_eq!([count(0, "disk"), count(1, "disk"), count(2, "disk")], ["0 disks", "1 disk", "2 disks"]);
        assert_eq!([count(1, "pass"), count(2, "pass")], ["1 pass", "2 passes"]);
    }
}
