use std::io;

use drover_types::XmlBounds;
use roxmltree::{Document, Node, ParsingOptions};

use crate::fault::damaged;

/// A descriptor of a large appliance is some 100 KiB.
pub(crate) const XML_BYTES_MAX: u64 = 8 << 20;
/// OVF is nested some eight deep.
const DEPTH_MAX: usize = 100;
/// An envelope declares some ten namespaces.
const ATTRIBUTES_MAX: usize = 64;
const NODES_MAX: u32 = 500_000;

/// Reads an XML text: no document types, so no entities but the five of XML itself.
pub(crate) fn parse(text: &str) -> io::Result<Document<'_>> {
    XmlBounds { depth_max: DEPTH_MAX, attributes_max: ATTRIBUTES_MAX }.check(text).map_err(damaged)?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..Default::default() };
    Document::parse_with_options(text, options).map_err(|error| damaged(error.to_string()))
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
