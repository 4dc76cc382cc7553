use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
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

/// Questions at once about many objects: the next answers are made while one is read.
const READERS: usize = 3;
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
        self.retrieve_until(op, (properties, objects), Instant::now() + PAGES_TIME_MAX, |object| object)
    }

    fn retrieve_until<T>(
        &self,
        op: &str,
        (properties, objects): (Properties<'_>, &str),
        deadline: Instant,
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
        follow(op, first, next, deadline, keep)
    }

    /// Reads properties of many objects, a page of them with each question and several questions at once. What `keep` makes
    /// of each comes in their order, and thousands of them with all their properties would take hundreds of megabytes. Objects that are
    /// gone meanwhile are left out.
    pub fn retrieve_each<T: Send>(
        &self,
        op: &str,
        properties: Properties<'_>,
        objects: &[Moref],
        keep: impl Fn(Object) -> T + Sync,
    ) -> Result<Vec<T>, VsphereError> {
        if objects.len() > OBJECTS_MAX {
            return Err(without_end(op, objects.len()));
        }
        let (work, deadline) = (self.begin(), Instant::now() + PAGES_TIME_MAX);
        let pages: Vec<&[Moref]> = objects.chunks(PAGE_OBJECTS_MAX as usize).collect();
        let next = AtomicUsize::new(0);
        let read = || -> Result<Vec<(usize, Vec<T>)>, VsphereError> {
            let mut found = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(page) = pages.get(number) else { return Ok(found) };
                let specs =
                    page.iter().map(just).collect::<String>() + &tag("reportMissingObjectsInResults", "true");
                let kept = work.check(op).and_then(|()| match Instant::now() < deadline {
                    true => self.retrieve_until(op, (properties, &specs), deadline, &keep),
                    false => Err(without_end(op, number * PAGE_OBJECTS_MAX as usize)),
                });
                // One that fails ends the others with their next page.
                found.push((number, kept.inspect_err(|_| next.store(pages.len(), Ordering::Relaxed))?));
            }
        };
        let found = thread::scope(|scope| {
            let begin = |_| thread::Builder::new().spawn_scoped(scope, read).ok();
            // Where there are no threads one reader reads all.
            let others: Vec<_> = (1..READERS.min(pages.len())).filter_map(begin).collect();
            let mut found = vec![read()];
            found.extend(
                others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))),
            );
            found
        });
        let mut found: Vec<_> =
            found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        found.sort_by_key(|(number, _)| *number);
        Ok(found.into_iter().flat_map(|(_, kept)| kept).collect())
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
    while let Some(result) = page.take("returnval") {
        let before = found.len();
        let token = result.text_at("token").map(str::to_string);
        let objects = result.children.into_iter().filter(|child| child.name == "objects");
        found.extend(objects.map(object_of).map(&keep));
        let Some(token) = token else { break };
        empty_pages += u32::from(found.len() == before);
        if empty_pages > EMPTY_PAGES_MAX || found.len() > OBJECTS_MAX || Instant::now() >= deadline {
            return Err(without_end(op, found.len()));
        }
        page = next(&token)?;
    }
    Ok(found)
}

fn without_end(op: &str, objects: usize) -> VsphereError {
    let why = format!("pages of objects without end ({objects} so far)");
    VsphereError::new(VsphereErrorKind::NotVsphere, op, why)
}

pub(crate) fn object_of(content: Element) -> Object {
    let mut object = Object { moref: Moref::new("", ""), properties: Vec::new() };
    for mut child in content.children {
        match child.name.as_str() {
            "obj" => object.moref = Moref::of(&child),
            "propSet" => {
                let name = child.string_at("name");
                object.properties.extend(child.take("val").map(|value| (name, value)));
            }
            _ => {}
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn unset_and_empty_properties_are_absent() {
        let text = "<objects><obj type=\"VirtualMachine\">vm-1</obj><propSet><name>name</name><val>web</val></propSet>\
                    <propSet><name>runtime.host</name><val/></propSet><propSet><name>broken</name></propSet></objects>";
        let object = object_of(xml::parse(text).unwrap());
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
