//! A writer of XML: escaped, indented, in the order of its calls.

/// Collects a document.
pub(crate) struct Xml {
    text: String,
    open: Vec<&'static str>,
}

type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Xml {
    pub(crate) fn new() -> Self {
        Xml { text: String::new(), open: Vec::new() }
    }

    /// `<tag ...>`, to be closed by [`Xml::close`].
    pub(crate) fn open(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push_str(">\n");
        self.open.push(tag);
    }

    /// Closes the innermost open element.
    pub(crate) fn close(&mut self) {
        let tag = self.open.pop().expect("each close has its open");
        self.indent();
        self.text.push_str(&format!("</{tag}>\n"));
    }

    /// `<tag .../>`
    pub(crate) fn leaf(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push_str("/>\n");
    }

    /// `<tag ...>content</tag>`
    pub(crate) fn text(&mut self, tag: &'static str, attributes: Attributes<'_>, content: &str) {
        self.start(tag, attributes);
        self.text.push_str(&format!(">{}</{tag}>\n", escaped(content)));
    }

    /// The document.
    pub(crate) fn finish(self) -> String {
        assert!(self.open.is_empty(), "each open has its close");
        self.text
    }

    fn start(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.indent();
        self.text.push_str(&format!("<{tag}"));
        for (name, value) in attributes {
            self.text.push_str(&format!(" {name}='{}'", escaped(value)));
        }
    }

    fn indent(&mut self) {
        self.text.extend(std::iter::repeat_n("  ", self.open.len()));
    }
}

/// Line ends and tabs are escaped too: a reader would turn them into spaces in attributes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push_str(&format!("&#{};", c as u32)),
            // XML 1.0 has no way to write these at all.
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_nest_and_values_are_escaped() {
        let mut xml = Xml::new();
        xml.open("a", &[("b", "it's <\"&>\n\0")]);
        xml.leaf("c", &[]);
        xml.text("d", &[], "x & y");
        xml.close();
        assert_eq!(
            xml.finish(),
            "<a b='it&apos;s &lt;&quot;&amp;&gt;&#10;\u{fffd}'>\n  <c/>\n  <d>x &amp; y</d>\n</a>\n"
        );
    }
}
