//! A YAML document as a tree whose every part knows its place.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::problem::{At, Problem};

/// Maps and lists may not be nested deeper; no plan is.
const DEPTH_MAX: usize = 16;
/// A plan of 10,000 VMs with ten keys each has fewer values.
const NODES_MAX: usize = 500_000;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub at: At,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// Anything else that is neither list nor map, as it was written; quoted text is never a number.
    Scalar {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    pub at: At,
    pub node: Node,
}

impl Node {
    /// What kind of value it is, for messages.
    pub(crate) fn describe(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Scalar { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// Parses the one document of a text.
pub(crate) fn parse(text: &str) -> Result<Node, Problem> {
    let mut builder = Builder { parser: Parser::new_from_str(text), nodes: 0 };
    let mut root = None;
    loop {
        let (event, at) = builder.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if root.is_some() => {
                return Err(Problem::error("", "a second YAML document begins here")
                    .at(at)
                    .advise("a plan file holds one"));
            }
            event => root = Some(builder.node(event, at, 0)?),
        }
    }
    root.ok_or_else(|| {
        Problem::error("", "the file is empty").advise("`drover plan new` writes a plan to begin with")
    })
}

struct Builder<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<(Event<'a>, At), Problem> {
        match self.parser.next() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, place(&start))),
            Some(Err(error)) => {
                Err(Problem::error("", format!("this is no YAML: {}", error.info()))
                    .at(place(error.marker())))
            }
            None => Ok((Event::StreamEnd, At::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, at: At, depth: usize) -> Result<Node, Problem> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            return Err(
                Problem::error("", "the file is nested too deeply or holds too much for a plan").at(at)
            );
        }
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(text.into_owned(), style),
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            Event::Alias(_) => {
                return Err(Problem::error("", "aliases (`*name`) are not used in plans")
                    .at(at)
                    .advise("write it out"));
            }
            _ => return Err(Problem::error("", "a value was expected here").at(at)),
        };
        Ok(Node { at, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(nodes)),
                (event, at) => nodes.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut entries = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Map(entries));
            }
            let Event::Scalar(key, ..) = event else {
                return Err(Problem::error("", "a key must be a single value").at(at));
            };
            let (event, value_at) = self.next()?;
            let node = self.node(event, value_at, depth + 1)?;
            entries.push(Entry { key: key.into_owned(), at, node });
        }
    }
}

fn place(marker: &Marker) -> At {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    At { line: number(marker.line()), column: number(marker.col() + 1) }
}

fn scalar(text: String, style: ScalarStyle) -> Value {
    let quoted = style != ScalarStyle::Plain;
    let is_null = !quoted && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL");
    if is_null { Value::Null } else { Value::Scalar { text, quoted } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_knows_its_place() {
        let Value::Map(entries) = parse("a: 1\nb:\n  - x\n  - 'null'\n").unwrap().value else {
            panic!("a map")
        };
        assert_eq!(entries[1].at, At { line: 2, column: 1 });
        let Value::List(nodes) = &entries[1].node.value else { panic!("a list") };
        assert_eq!(nodes[1].at, At { line: 4, column: 5 });
        assert_eq!(nodes[1].value, Value::Scalar { text: "null".into(), quoted: true });
    }

    #[test]
    fn lists_and_maps_may_be_nested_so_deep_and_no_deeper() {
        let lists = |depth: usize| parse(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        let maps = |depth: usize| parse(&format!("{}1{}", "{a: ".repeat(depth), "}".repeat(depth)));
        assert!(lists(DEPTH_MAX + 1).is_ok() && maps(DEPTH_MAX).is_ok());
        assert!(lists(DEPTH_MAX + 2).is_err() && maps(DEPTH_MAX + 1).is_err());
    }

    #[test]
    fn a_file_that_holds_too_much_is_refused() {
        let zeros = |count: usize| parse(&format!("[{}]", "0,".repeat(count)));
        // The list itself is one more.
        assert!(zeros(NODES_MAX - 1).is_ok());
        assert!(zeros(NODES_MAX).unwrap_err().message.contains("too much"));
    }

    #[test]
    fn nothing_is_nothing_unless_it_is_quoted() {
        let Value::List(nodes) = parse("[~, null, Null, NULL, '', \"~\", nil]").unwrap().value else {
            panic!("a list")
        };
        let is_null: Vec<bool> = nodes.iter().map(|node| node.value == Value::Null).collect();
        assert_eq!(is_null, [true, true, true, true, false, false, false]);
    }

    #[test]
    fn what_is_no_plan_is_refused_with_its_place() {
        for (text, words) in [
            ("", "empty"),
            ("a: [1", "no YAML"),
            ("a: &x 1\nb: *x\n", "aliases"),
            ("a: 1\n---\nb: 2\n", "second"),
            (&"[".repeat(100), "nested"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.message.contains(words), "{text}: {problem}");
        }
    }
}
