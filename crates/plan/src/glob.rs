//! Patterns of names: `*` is any text, `?` one character; everything else is itself.

/// Whether all of `text` fits the pattern. Takes time proportional to the product of the lengths at worst.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how much of the text it takes at present.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text) in [
            ("*", ""),
            ("db*", "db01"),
            ("*-old", "a-b-old"),
            ("w?b", "web"),
            ("a*b*c", "a-x-b-b-c"),
            ("ä?", "äö"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("db*", "xdb"), ("w?b", "wb"), ("", "x"), ("a*b", "abc"), ("?", "")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
