use std::io;

use roxmltree::{Document, Node, ParsingOptions};

use crate::fault::damaged;

/// A descriptor of a large appliance is some 100 KiB.
pub(crate) const XML_BYTES_MAX: u64 = 8 << 20;
/// OVF is nested some eight deep.
const DEPTH_MAX: usize = 100;
const NODES_MAX: u32 = 500_000;

/// Reads an XML text: no document types, so no entities but the five of XML itself.
pub(crate) fn parse(text: &str) -> io::Result<Document<'_>> {
    check_depth(text)?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..Default::default() };
    Document::parse_with_options(text, options).map_err(|error| damaged(error.to_string()))
}

/// The parser calls itself for each level. A rough count of tags before it starts is enough for a bound.
fn check_depth(text: &str) -> io::Result<()> {
    let mut depth = 0usize;
    for pair in text.as_bytes().windows(2) {
        match pair {
            [b'<', b'/'] | [b'/', b'>'] => depth = depth.saturating_sub(1),
            [b'<', b'?' | b'!'] => {}
            [b'<', _] => depth += 1,
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(damaged("its elements are nested too deeply"));
        }
    }
    Ok(())
}

/// Elements by their local names: OVF 1 and 2 and the vendors differ in namespaces only.
pub(crate) trait Elements: Sized {
    /// The elements directly inside, of that name.
    fn all(self, name: &str) -> Vec<Self>;
    /// The elements inside at any depth, of that name.
    fn within(self, name: &str) -> Vec<Self>;
    /// The trimmed text of the first element of that name; empty if there is none.
    fn text_of(self, name: &str) -> String;
    /// The value of an attribute; empty if there is none.
    fn value(self, name: &str) -> String;

    /// The first element directly inside, of that name.
    fn first(self, name: &str) -> Option<Self> {
        self.all(name).into_iter().next()
    }
}

impl Elements for Node<'_, '_> {
    fn all(self, name: &str) -> Vec<Self> {
        self.children().filter(|child| child.tag_name().name() == name).collect()
    }

    fn within(self, name: &str) -> Vec<Self> {
        self.descendants().filter(|node| node.tag_name().name() == name).collect()
    }

    fn text_of(self, name: &str) -> String {
        self.first(name).and_then(|child| child.text()).unwrap_or("").trim().to_string()
    }

    fn value(self, name: &str) -> String {
        let found = self.attributes().find(|attribute| attribute.name() == name);
        found.map_or(String::new(), |attribute| attribute.value().trim().to_string())
    }
}
