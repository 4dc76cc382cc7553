use std::fmt::Write as _;

use drover_types::XmlBounds;

/// An element of an answer, with names without their prefixes: prefixes differ from server to server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Local name.
    pub name: String,
    /// Local part of the value of `xsi:type`; empty if there is none.
    pub kind: String,
    /// The `type` attribute of a managed object reference; empty if there is none.
    pub reference: String,
    /// Text directly inside, trimmed.
    pub text: String,
    /// Elements directly inside.
    pub children: Vec<Element>,
}

/// No answer may be nested deeper; snapshot trees may be 32 deep, each with one level of its own.
const DEPTH_MAX: usize = 200;
/// No element of an answer may have more attributes; each has one or two.
const ATTRIBUTES_MAX: usize = 64;
/// No answer may have more nodes. A page of a hundred VMs has some 60,000.
const NODES_MAX: u32 = 2_000_000;

/// Reads an XML text.
pub fn parse(text: &str) -> Result<Element, String> {
    XmlBounds { depth_max: DEPTH_MAX, attributes_max: ATTRIBUTES_MAX }.check(text)?;
    let options =
        roxmltree::ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..Default::default() };
    let document =
        roxmltree::Document::parse_with_options(text, options).map_err(|error| error.to_string())?;
    convert(document.root_element(), 0)
}

fn convert(node: roxmltree::Node<'_, '_>, depth: usize) -> Result<Element, String> {
    if depth > DEPTH_MAX {
        return Err("nested too deeply".to_string());
    }
    let mut element = Element { name: node.tag_name().name().to_string(), ..Element::default() };
    for attribute in node.attributes().filter(|attribute| attribute.name() == "type") {
        match attribute.namespace() {
            Some(_) => element.kind = local(attribute.value()).to_string(),
            None => element.reference = attribute.value().to_string(),
        }
    }
    for child in node.children() {
        if child.is_element() {
            element.children.push(convert(child, depth + 1)?);
        } else if let Some(text) = child.text().filter(|_| child.is_text()) {
            element.text.push_str(text.trim());
        }
    }
    Ok(element)
}

fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

impl Element {
    /// The first child of that name.
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Takes the first child of that name out.
    pub fn take(&mut self, name: &str) -> Option<Element> {
        let at = self.children.iter().position(|child| child.name == name)?;
        Some(self.children.swap_remove(at))
    }

    /// All children of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> + Clone {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The element at the end of a path of names, `a/b/c`.
    pub fn at(&self, path: &str) -> Option<&Element> {
        path.split('/').try_fold(self, |element, name| element.child(name))
    }

    /// The text at a path; absent if the element is not there or empty.
    pub fn text_at(&self, path: &str) -> Option<&str> {
        self.at(path).map(|element| element.text.as_str()).filter(|text| !text.is_empty())
    }

    /// As [`Element::text_at`], owned, and empty if absent.
    pub fn string_at(&self, path: &str) -> String {
        self.text_at(path).unwrap_or_default().to_string()
    }

    /// The number at a path; absent also if the text is none.
    pub fn number_at<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text_at(path)?.parse().ok()
    }

    /// Whether the text at a path says true.
    pub fn flag_at(&self, path: &str) -> bool {
        matches!(self.text_at(path), Some("true" | "1"))
    }
}

/// Makes a text safe inside an element or an attribute. Characters that XML 1.0 cannot hold are left out.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' => {
                let _ = write!(out, "&#{};", c as u32);
            }
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_empty_elements_do_not_matter() {
        let text = r#"<a:x xmlns:a="u" xmlns:odd="http://www.w3.org/2001/XMLSchema-instance">
            <a:val odd:type="a:VirtualDisk"><state/><key> 2000 </key></a:val><obj type="HostSystem">host-1</obj></a:x>"#;
        let x = parse(text).unwrap();
        let disk = x.child("val").unwrap();
        assert_eq!(
            (disk.kind.as_str(), disk.number_at("key"), disk.text_at("state")),
            ("VirtualDisk", Some(2000), None)
        );
        let host = x.child("obj").unwrap();
        assert_eq!((host.reference.as_str(), host.text.as_str()), ("HostSystem", "host-1"));
    }

    #[test]
    fn garbage_truncation_and_entity_bombs_are_errors() {
        for text in [
            "",
            "garbage",
            "<html><body>hi",
            "<a><b></a>",
            "<a>&undefined;</a>",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_million_levels_are_refused_without_harm() {
        assert!(parse(&"<a>".repeat(1 << 20)).is_err());
        let deep = format!("{}{}", "<a>".repeat(300), "</a>".repeat(300));
        assert!(parse(&deep).is_err());
        let hidden = format!("{}{}", "<a b=\"/>\">".repeat(1 << 20), "</a>".repeat(1 << 20));
        assert!(parse(&hidden).is_err());
    }

    #[test]
    fn an_element_of_a_million_attributes_is_refused_without_a_wait() {
        let attributes: String = (0..1_000_000).map(|i| format!(" a{i}=\"\"")).collect();
        assert!(parse(&format!("<a{attributes}/>")).unwrap_err().contains("attributes"));
    }

    #[test]
    fn escaped_text_reads_back_as_it_was() {
        let text = "a<b>&\"'\u{e4}\n";
        let read = parse(&format!("<a b=\"{0}\"><c>x{0}x</c></a>", escape(text))).unwrap();
        assert_eq!(read.text_at("c"), Some(&*format!("x{text}x")));
        assert_eq!(escape("\u{0}\u{1}"), "");
    }
}
