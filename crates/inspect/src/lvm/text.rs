//! LVM's text: sections, and keys with numbers, texts and lists of them.
//!
//! ```text
//! rhel {                              # a comment
//!     seqno = 5
//!     status = ["READ", "WRITE"]
//!     physical_volumes { pv0 { id = "r1RRib-..." } }
//! }
//! contents = "Text Format Volume Group"
//! ```
//!
//! Source: LVM2 `lib/config/config.c`, lvm.conf(5). Depth and number of values have bounds.

/// A section: its keys in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Section(Vec<(String, Value)>);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Text(String),
    List(Vec<Value>),
    Section(Section),
}

impl Section {
    /// Reads a whole text.
    pub(super) fn parse(text: &str) -> Result<Section, String> {
        let mut parser = Parser { left: text, values: 0 };
        let section = parser.section(0)?;
        match parser.word()? {
            None => Ok(section),
            Some(word) => Err(format!("{word:?} is out of place")),
        }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        if let Some(Value::Number(number)) = self.value(key) { Some(*number) } else { None }
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        if let Some(Value::Text(text)) = self.value(key) { Some(text) } else { None }
    }

    pub(super) fn list(&self, key: &str) -> Option<&[Value]> {
        if let Some(Value::List(list)) = self.value(key) { Some(list) } else { None }
    }

    pub(super) fn section(&self, key: &str) -> Option<&Section> {
        if let Some(Value::Section(section)) = self.value(key) { Some(section) } else { None }
    }

    /// The first of its sections, and that one's name.
    pub(super) fn take_section(self) -> Option<(String, Section)> {
        self.0.into_iter().find_map(|(name, value)| match value {
            Value::Section(section) => Some((name, section)),
            _ => None,
        })
    }

    /// Its sections with their names.
    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.0.iter().filter_map(|(name, value)| match value {
            Value::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }
}

struct Parser<'a> {
    left: &'a str,
    values: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Word<'a> {
    /// One of `{}[]=,`.
    Sign(u8),
    Name(&'a str),
    Text(String),
}

impl<'a> Parser<'a> {
    /// Keys up to the end of the section or of the text, which is left to the caller.
    fn section(&mut self, depth: usize) -> Result<Section, String> {
        if depth > DEPTH_MAX {
            return Err("its sections are too deep".into());
        }
        let mut section = Section::default();
        loop {
            let before = self.left;
            let name = match self.word()? {
                Some(Word::Name(name)) => name.to_string(),
                // A name may stand in quotes.
                Some(Word::Text(name)) => name,
                _ => {
                    self.left = before;
                    return Ok(section);
                }
            };
            let value = match self.word()? {
                Some(Word::Sign(b'{')) => {
                    let value = Value::Section(self.section(depth + 1)?);
                    self.expect(b'}')?;
                    value
                }
                Some(Word::Sign(b'=')) => self.value(0)?,
                word => return Err(format!("{name} is followed by {word:?}")),
            };
            self.count()?;
            section.0.push((name, value));
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        self.count()?;
        match self.word()? {
            Some(Word::Text(text)) => Ok(Value::Text(text)),
            // A number that is none that is known here (`-1`, `0.5`) decides nothing.
            Some(Word::Name(word)) => {
                Ok(word.parse().map_or_else(|_| Value::Text(word.into()), Value::Number))
            }
            Some(Word::Sign(b'[')) if depth < DEPTH_MAX => {
                let mut list = Vec::new();
                loop {
                    let before = self.left;
                    match self.word()? {
                        Some(Word::Sign(b']')) => return Ok(Value::List(list)),
                        Some(Word::Sign(b',')) => {}
                        _ => {
                            self.left = before;
                            list.push(self.value(depth + 1)?);
                        }
                    }
                }
            }
            word => Err(format!("{word:?} is no value")),
        }
    }

    fn count(&mut self) -> Result<(), String> {
        self.values += 1;
        if self.values > VALUES_MAX { Err("it has too many values".into()) } else { Ok(()) }
    }

    fn expect(&mut self, sign: u8) -> Result<(), String> {
        match self.word()? {
            Some(Word::Sign(found)) if found == sign => Ok(()),
            word => Err(format!("{word:?} where a {} is due", char::from(sign))),
        }
    }

    fn word(&mut self) -> Result<Option<Word<'a>>, String> {
        loop {
            self.left = self.left.trim_start();
            match self.left.strip_prefix('#') {
                Some(comment) => self.left = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => break,
            }
        }
        let Some(first) = self.left.chars().next() else { return Ok(None) };
        if "{}[]=,".contains(first) {
            self.left = &self.left[1..];
            return Ok(Some(Word::Sign(first as u8)));
        }
        if first == '"' {
            return self.quoted().map(|text| Some(Word::Text(text)));
        }
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "_.+-/".contains(letter);
        let end = self.left.find(|letter| !is_of_name(letter)).unwrap_or(self.left.len());
        if end == 0 {
            return Err(format!("{first:?} is out of place"));
        }
        let (name, rest) = self.left.split_at(end);
        self.left = rest;
        Ok(Some(Word::Name(name)))
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let mut letters = self.left[1..].char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.left = &self.left[at + 2..];
                    return Ok(text);
                }
                '\\' => text.extend(letters.next().map(|(_, letter)| letter)),
                letter => text.push(letter),
            }
        }
        Err("a text has no end".into())
    }
}

/// Those of LVM are four deep.
const DEPTH_MAX: usize = 8;
/// A group of 10,000 volumes has some 20 for each.
const VALUES_MAX: usize = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_lvm_writes_it() {
        let text = "vg {\nid = \"a\\\"b\"\t# = {\nseqno = 5\nstatus = [\"READ\", \"WRITE\"]\nflags = []\nodd = -1\n\
                    pv { pv0 {\nsize = 18446744073709551615\n}\n}\n}\ncontents = \"x\"\n";
        let read = Section::parse(text).unwrap();
        let vg = read.section("vg").unwrap();
        assert_eq!((vg.text("id"), vg.number("seqno"), vg.number("odd")), (Some("a\"b"), Some(5), None));
        assert_eq!(vg.list("status").unwrap().len(), 2);
        assert_eq!(vg.list("flags"), Some(&[][..]));
        let pvs: Vec<_> = vg.section("pv").unwrap().sections().collect();
        assert_eq!((pvs[0].0, pvs[0].1.number("size")), ("pv0", Some(u64::MAX)));
        assert_eq!(read.text("contents"), Some("x"));
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "a",
            "a =",
            "a = {",
            "a {",
            "a { b = 1",
            "}",
            "a = [1",
            "a = \"b",
            "a = ]",
            "\u{e9} = 1",
            "= 1",
            "\"",
        ] {
            assert!(Section::parse(text).is_err(), "{text}");
        }
        assert!(Section::parse(&"a {".repeat(100_000)).unwrap_err().contains("too deep"));
        assert!(Section::parse(&format!("a = {}", "[".repeat(100_000))).is_err());
        assert!(Section::parse(&"a = 1\n".repeat(VALUES_MAX)).unwrap_err().contains("too many"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z0-9{}\\[\\]=,#\" \n\\\\é-]{0,200}") {
            let _ = Section::parse(&text);
        }
    }
}
