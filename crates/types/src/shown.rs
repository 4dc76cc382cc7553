//! Texts of others as they are shown: none of them drives a terminal.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

/// Whether a character drives a terminal or turns the direction of writing: it is never shown as it is where it came
/// from somebody else (names of a provider, files, words of a peer).
///
/// Control characters (C0, DEL and C1), line and paragraph separators, marks, embeddings, overrides and isolates of
/// Unicode's bidirectional algorithm (UAX #9), annotation marks, and the byte order mark, which nobody sees.
pub fn drives_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{feff}')
}

/// `a, b, c and 4 more`: so many of some names at most.
pub fn some_of(names: &[impl AsRef<str>], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `1 disk`, `2 disks`, `2 passes`, `2 tries`.
pub fn count(number: usize, thing: &str) -> String {
    let stem = thing.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match (number, stem) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        _ if thing.ends_with('s') => format!("{number} {thing}es"),
        _ => format!("{number} {thing}s"),
    }
}

/// `1 VM is`, `2 VMs are`: a count with its verb.
pub fn counted(number: usize, thing: &str, one: &str, many: &str) -> String {
    format!("{} {}", count(number, thing), if number == 1 { one } else { many })
}

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
    fn counts_one_and_many() {
        assert_eq!([count(0, "disk"), count(1, "disk"), count(2, "disk")], ["0 disks", "1 disk", "2 disks"]);
        assert_eq!([count(1, "pass"), count(2, "pass")], ["1 pass", "2 passes"]);
        assert_eq!([count(1, "try"), count(2, "try"), count(2, "day")], ["1 try", "2 tries", "2 days"]);
        assert_eq!([counted(1, "VM", "is", "are"), counted(3, "VM", "is", "are")], ["1 VM is", "3 VMs are"]);
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
}
