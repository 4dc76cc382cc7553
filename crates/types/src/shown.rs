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
