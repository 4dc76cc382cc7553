/// The longest text of a server that is shown.
const SHOWN_CHARS_MAX: usize = 300;

/// A server's text as it may stand on a terminal: control and direction characters are written as
/// escapes, and what is too long is cut off. Names and messages of servers come as they are; this
/// is for showing them.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (index, letter) in text.chars().enumerate() {
        if index == SHOWN_CHARS_MAX {
            shown.push_str("...");
            break;
        }
        match letter {
            // Marks that turn the reading direction, or have no width, make one name look like another.
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                shown.extend(letter.escape_unicode());
            }
            letter if letter.is_control() => shown.extend(letter.escape_default()),
            letter => shown.push(letter),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn escapes_of_a_terminal_lose_their_power() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c"), "a\\u{1b}[2Jb\\r\\n\\u{9b}c");
        assert_eq!(printable("web\u{202e}10"), "web\\u{202e}10");
        assert_eq!(printable("Größe 'x' \"y\""), "Größe 'x' \"y\"");
        assert_eq!(printable(&"x".repeat(5000)).len(), 303);
    }
}
