use std::time::{Duration, Instant};

use crate::error::{VsphereError, VsphereErrorKind};
use crate::session::{Call, Inner};
use crate::soap::{Moref, tag};
use crate::xml::Element;

/// An object and those of its properties that were asked for and are set.
#[derive(Debug)]
pub(crate) struct Object {
    pub moref: Moref,
    properties: Vec<(String, Element)>,
}

impl Object {
    /// The value of a property; absent if it is not set or may not be seen.
    pub fn get(&self, path: &str) -> Option<&Element> {
        self.properties.iter().find(|(name, _)| name == path).map(|(_, value)| value)
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path).map(|value| value.text.as_str()).filter(|text| !text.is_empty())
    }

    pub fn string(&self, path: &str) -> String {
        self.text(path).unwrap_or_default().to_string()
    }

    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    pub fn flag(&self, path: &str) -> bool {
        matches!(self.text(path), Some("true" | "1"))
    }
}

/// Objects of one page. vCenter slows down with larger pages, and each page has to fit in memory.
const PAGE_OBJECTS_MAX: u32 = 100;
/// Objects in all; the largest vCenter has some 70,000 VMs.
const OBJECTS_MAX: usize = 500_000;
/// Pages without an object, which tell nothing but that more is to come.
const EMPTY_PAGES_MAX: u32 = 16;
/// All pages together; a vCenter of 5,000 VMs takes seconds.
const PAGES_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// Properties to read, by type.
pub(crate) type Properties<'a> = &'a [(&'a str, &'a [&'a str])];

/// A filter: which properties of which objects. `objects` is XML of object specs.
pub(crate) fn filter_spec(properties: Properties<'_>, objects: &str) -> String {
    let mut text = String::new();
    for (kind, paths) in properties {
        let paths: String = paths.iter().map(|path| tag("pathSet", path)).collect();
        text += &format!("<propSet>{}{paths}</propSet>", tag("type", kind));
    }
    text + objects
}

/// One object, by itself.
pub(crate) fn just(object: &Moref) -> String {
    format!("<objectSet>{}</objectSet>", object.tag("obj"))
}

impl Inner {
    /// Reads properties, page by page.
    pub fn retrieve(
        &self,
        op: &str,
        properties: Properties<'_>,
        objects: &str,
    ) -> Result<Vec<Object>, VsphereError> {
        self.retrieve_as(op, properties, objects, |object| object)
    }

    /// The same, keeping only what `keep` makes of each object: thousands of them with all their properties take hundreds of
    /// megabytes.
    pub fn retrieve_as<T>(
        &self,
        op: &str,
        properties: Properties<'_>,
        objects: &str,
        keep: impl Fn(Object) -> T,
    ) -> Result<Vec<T>, VsphereError> {
        let spec = filter_spec(properties, objects);
        let first = format!(
            "<specSet>{spec}</specSet><options>{}</options>",
            tag("maxObjects", &PAGE_OBJECTS_MAX.to_string())
        );
        let work = self.begin();
        let first = self.page(op, "RetrievePropertiesEx", &first)?;
        let next = |token: &str| {
            work.check(op)?;
            self.page(op, "ContinueRetrievePropertiesEx", &tag("token", token))
        };
        follow(op, first, next, Instant::now() + PAGES_TIME_MAX, keep)
    }

    fn page(&self, op: &str, method: &str, arguments: &str) -> Result<Element, VsphereError> {
        self.call(&Call { op, method, this: &self.content.collector, arguments, is_read: true })
    }

    /// Reads properties of one object, which must be there.
    pub fn read(&self, op: &str, object: &Moref, paths: &[&str]) -> Result<Object, VsphereError> {
        let found = self.retrieve(op, &[(&object.kind, paths)], &just(object))?;
        found.into_iter().find(|found| found.moref.id == object.id).ok_or_else(|| {
            VsphereError::new(VsphereErrorKind::NotFound, op, format!("{} is not there", object.id))
        })
    }
}

/// What is kept of the objects of a page and of all that come after it.
fn follow<T>(
    op: &str,
    mut page: Element,
    mut next: impl FnMut(&str) -> Result<Element, VsphereError>,
    deadline: Instant,
    keep: impl Fn(Object) -> T,
) -> Result<Vec<T>, VsphereError> {
    let mut found = Vec::new();
    let mut empty_pages = 0;
    while let Some(result) = page.child("returnval") {
        let before = found.len();
        found.extend(result.all("objects").map(object_of).map(&keep));
        let Some(token) = result.text_at("token") else { break };
        empty_pages += u32::from(found.len() == before);
        if empty_pages > EMPTY_PAGES_MAX || found.len() > OBJECTS_MAX || Instant::now() >= deadline {
            let why = format!("pages of objects without end ({} so far)", found.len());
            return Err(VsphereError::new(VsphereErrorKind::NotVsphere, op, why));
        }
        page = next(token)?;
    }
    Ok(found)
}

pub(crate) fn object_of(content: &Element) -> Object {
    let property = |set: &Element| Some((set.string_at("name"), set.child("val")?.clone()));
    Object {
        moref: content.child("obj").map(Moref::of).unwrap_or_else(|| Moref::new("", "")),
        properties: content.all("propSet").filter_map(property).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn unset_and_empty_properties_are_absent() {
        let text = "<objects><obj type=\"VirtualMachine\">vm-1</obj><propSet><name>name</name><val>web</val></propSet>\
                    <propSet><name>runtime.host</name><val/></propSet><propSet><name>broken</name></propSet></objects>";
        let object = object_of(&xml::parse(text).unwrap());
        assert_eq!((object.moref.id.as_str(), object.text("name")), ("vm-1", Some("web")));
        assert!(
            object.text("runtime.host").is_none() && object.get("broken").is_none() && !object.flag("none")
        );
    }

    #[test]
    fn pages_without_end_are_given_up() {
        let page = |objects: usize| {
            let object = "<objects><obj type=\"VirtualMachine\">vm-1</obj></objects>".repeat(objects);
            xml::parse(&format!("<r><returnval><token>t</token>{object}</returnval></r>")).unwrap()
        };
        let later = || Instant::now() + PAGES_TIME_MAX;
        let asked = |objects: usize, deadline: Instant| {
            let mut asked = 0;
            let next = |_: &str| {
                asked += 1;
                assert!(asked < 10_000, "without end");
                Ok(page(objects))
            };
            let error = follow("read", page(objects), next, deadline, |it| it).unwrap_err();
            assert_eq!(error.kind, VsphereErrorKind::NotVsphere);
            asked
        };
        assert_eq!(asked(0, later()), EMPTY_PAGES_MAX);
        assert_eq!(asked(1000, later()), 500);
        assert_eq!(asked(1, Instant::now()), 0);
        let last = || xml::parse("<r><returnval><objects/></returnval></r>");
        assert_eq!(follow("read", page(2), |_| Ok(last().unwrap()), later(), |it| it).unwrap().len(), 3);
    }

    #[test]
    fn filters_name_types_and_paths() {
        let spec = filter_spec(&[("Task", &["info"])], &just(&Moref::new("Task", "task-1")));
        let wanted = "<propSet><type>Task</type><pathSet>info</pathSet></propSet>\
                      <objectSet><obj type=\"Task\">task-1</obj></objectSet>";
        assert_eq!(spec, wanted);
    }
}
