//! Bounds of an XML text, looked at before a parser sees it.
//!
//! A parser that builds a tree calls itself for each level, and compares each attribute of an element with all others
//! of it: a text of a million levels ends the program, one element of a million attributes takes hours. What is
//! counted here is exact, so nothing that hides in quotes, comments or CDATA sections gets past it.

/// How deep elements may be nested, and how many attributes each may have.
#[derive(Clone, Copy, Debug)]
pub struct XmlBounds {
    /// Levels.
    pub depth_max: usize,
    /// Attributes of one element; declarations of namespaces are some.
    pub attributes_max: usize,
}

impl XmlBounds {
    /// Looks at a text. One that is no XML may pass: the parser refuses it.
    ///
    /// # Errors
    /// Says which bound it breaks, or that a mark in it never ends.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let mut rest = text.as_bytes();
        let mut depth = 0usize;
        while let Some(at) = position(rest, b'<') {
            rest = &rest[at..];
            rest = if let Some(comment) = rest.strip_prefix(b"<!--") {
                after(comment, b"-->")?
            } else if let Some(section) = rest.strip_prefix(b"<![CDATA[") {
                after(section, b"]]>")?
            } else if let Some(instruction) = rest.strip_prefix(b"<?") {
                after(instruction, b"?>")?
            } else if rest.starts_with(b"<!") {
                return Err("it holds a document type".into());
            } else {
                let tag = Tag::of(&rest[1..])?;
                if tag.attributes > self.attributes_max {
                    return Err(format!("an element has more than {} attributes", self.attributes_max));
                }
                match (rest[1] == b'/', tag.is_empty) {
                    (true, _) => depth = depth.saturating_sub(1),
                    (false, true) => {}
                    (false, false) => depth += 1,
                }
                if depth > self.depth_max {
                    return Err("its elements are nested too deeply".into());
                }
                &rest[1 + tag.length..]
            };
        }
        Ok(())
    }
}

/// What stands between `<` and `>`.
struct Tag {
    /// Bytes up to and with `>`.
    length: usize,
    attributes: usize,
    /// Ends in `/>`.
    is_empty: bool,
}

impl Tag {
    fn of(text: &[u8]) -> Result<Tag, String> {
        let mut quote = None;
        let mut attributes = 0;
        for (at, byte) in text.iter().enumerate() {
            match (quote, byte) {
                (Some(open), byte) if open == *byte => quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => quote = Some(*byte),
                (None, b'=') => attributes += 1,
                (None, b'>') => {
                    let is_empty = at > 0 && text[at - 1] == b'/';
                    return Ok(Tag { length: at + 1, attributes, is_empty });
                }
                (None, _) => {}
            }
        }
        Err("it ends inside of a tag".into())
    }
}

fn position(text: &[u8], byte: u8) -> Option<usize> {
    text.iter().position(|it| *it == byte)
}

fn after<'a>(text: &'a [u8], end: &[u8]) -> Result<&'a [u8], String> {
    let at = text.windows(end.len()).position(|it| it == end);
    at.map(|at| &text[at + end.len()..]).ok_or_else(|| "it ends inside of a comment or a section".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        XmlBounds { depth_max: 3, attributes_max: 2 }.check(text)
    }

    #[test]
    fn levels_and_attributes_are_counted_whatever_stands_in_quotes_and_comments() {
        for text in [
            "",
            "words = 'only'",
            "<a><b><c/></b><b><c>x</c></b></a>",
            "<?xml version='1' b='2' c='3'?><a b='1' c='= = = >'/>",
            "<a><!-- <a><a><a><a> ' --><![CDATA[<a><a><a><a b='c]]><b>it's</b></a>",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        assert!(check("<a><a><a><a>").unwrap_err().contains("too deeply"));
        // A parser takes these for four levels.
        assert!(check("<a b='/>'><a b='/>'><a b='/>'><a b='/>'>").unwrap_err().contains("too deeply"));
        assert!(check("<a><!--'--><a><!--'--><a><a>").unwrap_err().contains("too deeply"));
        assert!(check("<a b='' c='' d=''/>").unwrap_err().contains("more than 2 attributes"));
        for text in ["<a", "<a b='>", "<!-- ", "<![CDATA[", "<?x", "<!DOCTYPE a>"] {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_large_text_is_looked_at_once() {
        let bounds = XmlBounds { depth_max: 100, attributes_max: 64 };
        let many = format!("<a{}/>", " b=''".repeat(5_000_000));
        assert!(bounds.check(&many).is_err());
        assert!(bounds.check(&"<a>".repeat(1 << 20)).is_err());
        assert!(bounds.check(&"<a/>".repeat(1 << 20)).is_ok());
    }
}
