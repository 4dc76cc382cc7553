//! All mutants of a file in one text: each function chooses among its own body and those of its mutants.
//!
//! ```text
//! fn f(a: u32) -> u32 { a + 1 }
//!
//! fn f(a: u32) -> u32 {
//! match crate::chosen_mutant() {
//! 7 => { /*@7*/ a - 1 /*@end*/ }
//! _ => { a + 1 }
//! }
//! }
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Stands at the end of the crate's `lib.rs`.
pub const SELECTOR: &str = r#"
/// Which mutant runs.
pub(crate) fn chosen_mutant() -> u32 {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("DROVER_MUTANT").ok().and_then(|it| it.parse().ok()).unwrap_or(0))
}
/// An iterator in a box.
#[allow(dead_code)]
pub(crate) fn boxed_for_mutants<'a, T>(it: impl Iterator<Item = T> + 'a) -> Box<dyn Iterator<Item = T> + 'a> {
    Box::new(it)
}
"#;

/// A mutant as cargo-mutants lists it.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    pub name: String,
    pub file: String,
    function: Option<Function>,
    span: Span,
    replacement: String,
    #[serde(skip)]
    pub number: u32,
}

#[derive(Clone, Debug, Deserialize)]
struct Function {
    span: Span,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

/// Both counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

/// A source file in which places are lines and columns.
pub struct Text {
    text: String,
    /// Where each line starts.
    starts: Vec<usize>,
}

impl Text {
    pub fn read(path: &Path) -> Result<Text> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Text::new(text))
    }

    fn new(text: String) -> Text {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(ends).collect();
        Text { text, starts }
    }

    fn at(&self, place: Place) -> Option<usize> {
        let start = *self.starts.get(place.line.checked_sub(1)?)?;
        let mut letters = self.text[start..].char_indices().map(|(at, _)| start + at);
        letters.nth(place.column.checked_sub(1)?).or(Some(self.text.len()))
    }

    fn range(&self, span: Span) -> Result<Range<usize>> {
        let range = self.at(span.start).zip(self.at(span.end)).filter(|(start, end)| start <= end);
        range.map(|(start, end)| start..end).context("a mutant lies outside of its file")
    }

    /// The text with one mutant in place of what it changes.
    pub fn with(&self, mutant: &Mutant) -> Result<String> {
        let Range { start, end } = self.range(mutant.span)?;
        Ok(format!("{}{}{}", &self.text[..start], mutant.replacement, &self.text[end..]))
    }
}

/// The text of a file with these mutants in it, and those that cannot be.
pub fn woven(source: &Text, mutants: &[Mutant]) -> Result<(String, Vec<Mutant>)> {
    let mut spans = Vec::new();
    for function in mutants.iter().filter_map(|mutant| mutant.function.as_ref()) {
        spans.push(source.range(function.span)?);
    }
    let (mut alone, mut functions) = (Vec::new(), BTreeMap::<usize, (Range<usize>, Vec<&Mutant>)>::new());
    for mutant in mutants {
        let Some(function) = &mutant.function else {
            alone.push(mutant.clone());
            continue;
        };
        let inner = source.range(function.span)?;
        let around = spans.iter().filter(|it| it.start <= inner.start && inner.end <= it.end);
        let outer = around.min_by_key(|it| it.start).unwrap_or(&inner).clone();
        let body = body_of(&source.text, &outer)?;
        if is_const(&source.text[outer.start..body.start]) {
            alone.push(mutant.clone());
        } else {
            functions.entry(outer.start).or_insert_with(|| (outer, Vec::new())).1.push(mutant);
        }
    }
    let mut text = source.text.clone();
    for (span, mutants) in functions.into_values().rev() {
        text.replace_range(span.clone(), &woven_function(source, &span, &mutants)?);
    }
    Ok((text, alone))
}

fn woven_function(source: &Text, span: &Range<usize>, mutants: &[&Mutant]) -> Result<String> {
    let text = &source.text;
    let body = body_of(text, span)?;
    let head = &text[span.start..body.start];
    // The arms would have different types.
    let kind = returned_impl(head).map(|kind| kind.replacen("impl ", "dyn ", 1));
    let arm = |body: &str| match &kind {
        Some(kind) => format!("let boxed: Box<{kind}> = crate::boxed_for_mutants({{{body}}}); boxed"),
        None => body.to_string(),
    };
    let mut woven = format!("{head}\n#[allow(unused, clippy::all)]\nmatch crate::chosen_mutant() {{\n");
    for mutant in mutants {
        let at = source.range(mutant.span)?;
        let changed =
            format!("{}{}{}", &text[body.start..at.start], mutant.replacement, &text[at.end..body.end]);
        let number = mutant.number;
        woven.push_str(&format!("{number} => {{ /*@{number}*/ {} /*@end*/ }}\n", arm(&changed)));
    }
    woven.push_str(&format!("_ => {{ {} }}\n\n}}\n}}", arm(&text[body])));
    Ok(woven)
}

/// Where the body of a function lies, without its braces.
fn body_of(text: &str, span: &Range<usize>) -> Result<Range<usize>> {
    let quiet = without_comments(&text[span.clone()]);
    let name = words(&quiet).zip(words(&quiet).skip(1)).find(|((_, word), _)| *word == "fn");
    let (_, (name, word)) = name.context("a function without a name")?;
    let mut depth = 0;
    for (at, letter) in quiet[name + word.len()..].bytes().enumerate() {
        match letter {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Ok(span.start + name + word.len() + at + 1..span.end - 1),
            _ => {}
        }
    }
    Err(anyhow::anyhow!("a function without a body"))
}

/// The text with blanks for comments to the end of a line, as long as before.
fn without_comments(text: &str) -> String {
    let line = |line: &str| match line.find("//") {
        Some(at) => {
            let end = line.len() - usize::from(line.ends_with('\n'));
            format!("{}{}{}", &line[..at], " ".repeat(end - at), &line[end..])
        }
        None => line.to_string(),
    };
    text.split_inclusive('\n').map(line).collect()
}

fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let parts = text.split(move |letter| !is_part(letter)).filter(|part| !part.is_empty());
    parts.map(|part| (part.as_ptr() as usize - text.as_ptr() as usize, part))
}

fn is_const(head: &str) -> bool {
    let head = without_comments(head);
    words(&head).zip(words(&head).skip(1)).any(|((_, first), (_, second))| first == "const" && second == "fn")
}

/// What a function returns, if that is an `impl`.
fn returned_impl(head: &str) -> Option<&str> {
    let head = head.trim_end().strip_suffix('{')?;
    let kinds = head.match_indices("->").map(|(at, _)| head[at + 2..].trim_start());
    let kind = kinds.into_iter().find(|kind| words(kind).next() == Some((0, "impl")))?;
    let end = words(kind).find(|(_, word)| *word == "where").map_or(kind.len(), |(at, _)| at);
    Some(kind[..end].trim())
}

/// Lines of a woven text, from 1, in which a mutant lies.
#[derive(Debug, PartialEq)]
pub struct Region {
    first: usize,
    last: usize,
    pub number: u32,
}

impl Region {
    pub fn holds(&self, line: usize) -> bool {
        (self.first..=self.last).contains(&line)
    }
}

pub fn regions(text: &str) -> Result<Vec<Region>> {
    let mut found = Vec::new();
    let (mut line, mut at) = (1, 0);
    for (begin, _) in text.match_indices("/*@") {
        let number = text[begin + 3..].split_once("*/").and_then(|(number, _)| number.parse().ok());
        let Some(number) = number else { continue };
        let length = text[begin..].find("/*@end*/").context("a mutant without an end")?;
        let lines = |range: Range<usize>| text[range].matches('\n').count();
        line += lines(at..begin);
        at = begin;
        found.push(Region { first: line, last: line + lines(begin..begin + length), number });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "const ONE: u32 = 1;\n\n/// Says fn of nothing.\nfn sum(a: &[u32; 2]) -> u32 {\n    a[0] + ONE // {\n}\n\
        const fn two() -> u32 {\n    1 + 1\n}\nfn odd<'a>(all: &'a [u32]) -> impl Iterator<Item = u32> + 'a where u32: Copy {\n    \
        all.iter().copied().filter(|it| it % 2 == 1)\n}\n";

    /// The place of the `nth` such text.
    fn span(part: &str, nth: usize) -> Span {
        let at = SOURCE.match_indices(part).nth(nth).unwrap().0;
        let place = |at: usize| {
            let before = &SOURCE[..at];
            let line = before.matches('\n').count() + 1;
            Place { line, column: at - before.rfind('\n').map_or(0, |end| end + 1) + 1 }
        };
        Span { start: place(at), end: place(at + part.len()) }
    }

    fn mutant(number: u32, function: Option<&str>, part: (&str, usize), replacement: &str) -> Mutant {
        let whole = |name: &str| {
            let start = span(name, 0).start;
            let end = SOURCE.split_once(name).unwrap().1.find("\n}").unwrap()
                + SOURCE.find(name).unwrap()
                + name.len()
                + 2;
            let last = SOURCE[..end].matches('\n').count() + 1;
            Function { span: Span { start, end: Place { line: last, column: 2 } } }
        };
        Mutant {
            name: format!("mutant {number}"),
            file: "lib.rs".into(),
            function: function.map(whole),
            span: span(part.0, part.1),
            replacement: replacement.into(),
            number,
        }
    }

    #[test]
    fn functions_choose_among_their_mutants_and_what_is_const_is_built_alone() {
        let mutants = [
            mutant(1, Some("fn sum"), ("+", 0), "-"),
            mutant(2, Some("fn sum"), ("a[0] + ONE", 0), "0"),
            mutant(3, None, ("= 1", 0), "= 2"),
            mutant(4, Some("const fn two"), ("1 + 1", 0), "0"),
            mutant(5, Some("fn odd"), ("==", 0), "!="),
        ];
        let source = Text::new(SOURCE.to_string());
        let (text, alone) = woven(&source, &mutants).unwrap();
        assert_eq!(alone.iter().map(|mutant| mutant.number).collect::<Vec<_>>(), [3, 4]);
        let arm = |number: u32| {
            let from = text.split_once(&format!("/*@{number}*/")).unwrap().1;
            from.split_once("/*@end*/").unwrap().0.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!((arm(1).as_str(), arm(2).as_str()), ("a[0] - ONE // {", "0 // {"));
        let boxed = "let boxed: Box<dyn Iterator<Item = u32> + 'a> = crate::boxed_for_mutants({";
        assert!(arm(5).starts_with(boxed) && arm(5).contains("it % 2 != 1"), "{text}");
        assert!(text.contains("const ONE: u32 = 1;") && text.contains("    1 + 1\n}"), "{text}");
        assert_eq!(text.matches("crate::chosen_mutant()").count(), 2);
        let regions = regions(&text).unwrap();
        let line = |words: &str| text.lines().position(|line| line.contains(words)).unwrap() + 1;
        assert_eq!(regions.iter().map(|it| it.number).collect::<Vec<_>>(), [1, 2, 5]);
        assert!(regions[0].holds(line("a[0] - ONE")) && !regions[1].holds(line("a[0] - ONE")), "{regions:?}");
        assert!(regions[2].holds(line("!= 1")) && regions.iter().all(|it| !it.holds(1)));
        assert!(source.with(&mutants[2]).unwrap().starts_with("const ONE: u32 = 2;\n"));
    }

    #[test]
    fn what_a_function_returns_is_told_from_what_it_takes() {
        let kind = |head| returned_impl(head);
        assert_eq!(
            kind("fn a(f: impl Fn() -> u32) -> impl Iterator<Item = u8> {"),
            Some("impl Iterator<Item = u8>")
        );
        assert_eq!(kind("fn a() -> Box<impl Sized> {"), None);
        assert_eq!(kind("fn a() -> implied {"), None);
    }
}
