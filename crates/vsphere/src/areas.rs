use std::io;
use std::sync::{Arc, Mutex};

use drover_http::ExtentSource;
use drover_types::{ByteSpan, Extent};

use crate::error::{Fault, VsphereError, VsphereErrorKind};
use crate::session::{Call, Inner, Session, lock};
use crate::soap::{Moref, tag};
use crate::xml::Element;

/// Which areas of a disk to ask for.
#[derive(Clone, Debug)]
pub struct ChangedAreas<'a> {
    /// Id of the VM.
    pub vm: &'a str,
    /// Id of the snapshot that ends the time looked at; absent only for a VM that is off.
    pub snapshot: Option<&'a str>,
    /// Device key of the disk.
    pub disk_key: i32,
    /// Capacity of the disk; nothing at or beyond it is asked for.
    pub capacity_bytes: u64,
    /// Change id that begins it; `*` asks for all areas ever written.
    pub change_id: &'a str,
}

/// Areas in one answer; servers send at most some 2,000.
const AREAS_MAX: usize = 1 << 20;

/// Answers to one question; a disk of 62 TiB of which every other block changed takes a quarter of that.
const PAGES_MAX: u32 = 1 << 20;
/// Areas kept of one disk (16 MiB of them). Where there are more they are widened until they are not.
const AREAS_KEPT_MAX: usize = 1 << 20;
/// How finely vSphere tracks.
const GRAIN_BYTES: u64 = 64 << 10;

/// What one answer tells: the areas in `from..until`, in order, apart from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    from: u64,
    until: u64,
    areas: Vec<ByteSpan>,
}

impl Session {
    /// The areas that changed since `query.change_id`, in order, however many answers it takes. Of a disk with more than
    /// a million changed areas they are wider than vSphere told.
    ///
    /// # Errors
    /// [`VsphereErrorKind::ChangesUnknown`] for a change id that vSphere no longer knows, tracking that is off or began
    /// anew, and answers that make no sense: compare the whole disk then. Others are failures that may pass.
    pub fn changed_areas(&self, query: &ChangedAreas<'_>) -> Result<Vec<ByteSpan>, VsphereError> {
        let mut areas: Vec<ByteSpan> = Vec::new();
        let mut grain = GRAIN_BYTES;
        let mut from = 0;
        for _ in 0..PAGES_MAX {
            if from >= query.capacity_bytes {
                return Ok(areas);
            }
            let page = self.inner.query_areas(query, from)?;
            page.areas.into_iter().for_each(|area| append(&mut areas, area));
            from = page.until;
            grain = widen(&mut areas, AREAS_KEPT_MAX, grain, query.capacity_bytes);
        }
        let op = format!("ask for areas of disk {} of {}", query.disk_key, self.inner.name_of(query.vm));
        let why = format!("{PAGES_MAX} answers came only to {from:#x} of {:#x}", query.capacity_bytes);
        Err(VsphereError::new(VsphereErrorKind::ChangesUnknown, &op, why))
    }
}

/// Adds an area that begins no earlier than the last, as a part of that if they touch.
fn append(areas: &mut Vec<ByteSpan>, area: ByteSpan) {
    match areas.last_mut() {
        Some(last) if area.offset <= last.end() => {
            *last = ByteSpan::from_bounds(last.offset, last.end().max(area.end()));
        }
        _ => areas.push(area),
    }
}

/// Rounds areas out to a grain that is coarse enough to leave at most `count_max`; gives that grain.
fn widen(areas: &mut Vec<ByteSpan>, count_max: usize, mut grain: u64, capacity: u64) -> u64 {
    while areas.len() > count_max {
        grain = grain.saturating_mul(2);
        let mut wider = Vec::new();
        for area in areas.iter() {
            let end = area.end().div_ceil(grain).saturating_mul(grain).min(capacity);
            append(&mut wider, ByteSpan::from_bounds(area.offset / grain * grain, end));
        }
        *areas = wider;
    }
    grain
}

impl Inner {
    fn query_areas(&self, query: &ChangedAreas<'_>, from: u64) -> Result<Page, VsphereError> {
        assert!(from < query.capacity_bytes, "asked for areas at or beyond the disk's end");
        let op = format!("ask for areas of disk {} of {}", query.disk_key, self.name_of(query.vm));
        let snapshot = query.snapshot.map(|id| Moref::new("VirtualMachineSnapshot", id).tag("snapshot"));
        let arguments = snapshot.unwrap_or_default()
            + &tag("deviceKey", &query.disk_key.to_string())
            + &tag("startOffset", &from.to_string())
            + &tag("changeId", query.change_id);
        let this = &Moref::new("VirtualMachine", query.vm);
        let call =
            Call { op: &op, method: "QueryChangedDiskAreas", this, arguments: &arguments, is_read: true };
        let answer = self.call(&call).map_err(unknown_or_failed)?;
        let info = answer.child("returnval").ok_or("no areas in the answer".to_string());
        info.and_then(|info| page_of(info, from, query.capacity_bytes))
            .map_err(|why| VsphereError::new(VsphereErrorKind::ChangesUnknown, &op, why))
    }
}

/// vSphere speaks of the disk's file where the change id is from before a reset, of another disk, or tracking is off.
fn unknown_or_failed(error: VsphereError) -> VsphereError {
    let wrong_id = |fault: &Fault| match fault.name.as_str() {
        "FileFault" | "FileNotFound" => true,
        "InvalidArgument" => fault.property.as_deref() == Some("changeId"),
        _ => false,
    };
    if error.fault.as_deref().is_some_and(wrong_id) {
        return VsphereError { kind: VsphereErrorKind::ChangesUnknown, ..error };
    }
    error
}

/// Takes an answer only as far as it can be believed. Where it leaves open what is allocated, all is.
fn page_of(info: &Element, from: u64, capacity: u64) -> Result<Page, String> {
    let told_start: u64 = info.number_at("startOffset").unwrap_or(from);
    let told_length: u64 = info.number_at("length").ok_or("answer tells no length")?;
    let area = |area: &Element| Some(ByteSpan::new(area.number_at("start")?, area.number_at("length")?));
    let areas: Option<Vec<ByteSpan>> = info.all("changedArea").take(AREAS_MAX + 1).map(area).collect();
    let mut areas = areas.ok_or("answer holds an area without start or length")?;
    if areas.len() > AREAS_MAX {
        return Err(format!("answer holds more than {AREAS_MAX} areas"));
    }
    if told_start > from {
        areas.push(ByteSpan::from_bounds(from, told_start));
    }
    // An area that reaches beyond the told end counts as well: the next answer may leave its tail out.
    let told_end = told_start.saturating_add(told_length);
    let until = areas.iter().map(ByteSpan::end).fold(told_end, u64::max).min(capacity);
    if until <= from {
        return Err(format!("answer for {from:#x} ends at {until:#x}, so asking again would never end"));
    }
    Ok(Page { from, until, areas: merged(areas, ByteSpan::from_bounds(from, until)) })
}

/// The areas inside `window`, in order, overlapping and touching ones made one.
fn merged(areas: Vec<ByteSpan>, window: ByteSpan) -> Vec<ByteSpan> {
    let mut areas: Vec<ByteSpan> = areas.iter().filter_map(|area| area.intersect(window)).collect();
    areas.sort();
    let mut out: Vec<ByteSpan> = Vec::with_capacity(areas.len());
    areas.into_iter().for_each(|area| append(&mut out, area));
    out
}

impl Page {
    /// What lies in `span`, which begins inside this page, up to the end of either.
    fn extents(&self, span: ByteSpan) -> Vec<Extent> {
        let until = self.until.min(span.end());
        let mut at = span.offset;
        let mut out = Vec::new();
        let first = self.areas.partition_point(|area| area.end() <= at);
        for area in self.areas[first..].iter().take_while(|area| area.offset < until) {
            if area.offset > at {
                out.push(Extent::zero(ByteSpan::from_bounds(at, area.offset)));
            }
            let end = area.end().min(until);
            out.push(Extent::allocated(ByteSpan::from_bounds(at.max(area.offset), end)));
            at = end;
        }
        if at < until {
            out.push(Extent::zero(ByteSpan::from_bounds(at, until)));
        }
        out
    }
}

/// What was ever written to a disk up to a snapshot, asked for as a copy goes on.
pub(crate) struct AllocatedAreas {
    pub session: Arc<Inner>,
    pub vm: String,
    pub snapshot: Option<String>,
    pub disk_key: i32,
    pub capacity_bytes: u64,
    /// The last answer: callers ask for less than it tells.
    pub last: Mutex<Option<Arc<PageSlot>>>,
    /// Why the server is not asked any more, for the operator.
    pub notes: Arc<Mutex<Vec<String>>>,
}

/// Keeps [`Page`] out of the signature of its owner.
pub(crate) struct PageSlot(Page);

impl AllocatedAreas {
    fn page(&self, from: u64) -> Result<Arc<PageSlot>, VsphereError> {
        if let Some(slot) =
            lock(&self.last).as_ref().filter(|slot| slot.0.from <= from && from < slot.0.until)
        {
            return Ok(slot.clone());
        }
        let query = ChangedAreas {
            vm: &self.vm,
            snapshot: self.snapshot.as_deref(),
            disk_key: self.disk_key,
            capacity_bytes: self.capacity_bytes,
            change_id: "*",
        };
        let slot = Arc::new(PageSlot(self.session.query_areas(&query, from)?));
        *lock(&self.last) = Some(slot.clone());
        Ok(slot)
    }

    /// From now on nothing is known, so everything is read.
    fn give_up(&self, error: &VsphereError) {
        let mut notes = lock(&self.notes);
        if notes.is_empty() {
            let cause =
                std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            notes.push(format!("allocated areas are unknown, so the whole disk is read: {error}{cause}"));
        }
    }
}

impl ExtentSource for AllocatedAreas {
    fn extents(&self, span: ByteSpan) -> io::Result<Vec<Extent>> {
        if span.is_empty() || span.offset >= self.capacity_bytes || !lock(&self.notes).is_empty() {
            return Ok(vec![Extent::allocated(span)]);
        }
        match self.page(span.offset) {
            Ok(slot) => Ok(slot.0.extents(span)),
            Err(error) => {
                self.give_up(&error);
                Ok(vec![Extent::allocated(span)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    fn page(text: &str, from: u64, capacity: u64) -> Result<Page, String> {
        page_of(&xml::parse(&format!("<returnval>{text}</returnval>")).unwrap(), from, capacity)
    }

    fn area(start: u64, length: u64) -> String {
        format!("<changedArea><start>{start}</start><length>{length}</length></changedArea>")
    }

    #[test]
    fn areas_out_of_order_overlapping_and_beyond_the_end_become_a_clean_list() {
        let text = "<startOffset>0</startOffset><length>1000</length>".to_string()
            + &area(500, 100)
            + &area(0, 64)
            + &area(550, 100)
            + &area(990, 999)
            + &area(5000, 5);
        let page = page(&text, 0, 1000).unwrap();
        let wanted = [ByteSpan::new(0, 64), ByteSpan::new(500, 150), ByteSpan::new(990, 10)];
        assert_eq!((page.until, page.areas.as_slice()), (1000, &wanted[..]));
    }

    #[test]
    fn a_partial_answer_ends_where_it_says() {
        let page =
            page(&("<startOffset>0</startOffset><length>300</length>".to_string() + &area(100, 50)), 0, 1000);
        let extents = page.unwrap().extents(ByteSpan::new(0, 1000));
        let wanted = [
            Extent::zero(ByteSpan::new(0, 100)),
            Extent::allocated(ByteSpan::new(100, 50)),
            Extent::zero(ByteSpan::new(150, 150)),
        ];
        assert_eq!(extents, wanted);
    }

    #[test]
    fn answers_without_progress_are_refused() {
        assert!(page("<startOffset>0</startOffset><length>0</length>", 0, 1000).is_err());
        assert!(page("<startOffset>0</startOffset><length>100</length>", 100, 1000).is_err());
        assert!(page("", 0, 1000).is_err());
        assert!(page("<length>10</length><changedArea><start>x</start></changedArea>", 0, 1000).is_err());
    }

    #[test]
    fn what_an_answer_leaves_out_counts_as_allocated() {
        let page = page("<startOffset>200</startOffset><length>100</length>", 100, 1000).unwrap();
        let wanted = [Extent::allocated(ByteSpan::new(100, 100)), Extent::zero(ByteSpan::new(200, 50))];
        assert_eq!(page.extents(ByteSpan::new(100, 150)), wanted);
    }

    #[test]
    fn too_many_areas_become_fewer_that_cover_them() {
        let capacity = 1000 * GRAIN_BYTES - 5;
        let every_other: Vec<ByteSpan> =
            (0..500).map(|i| ByteSpan::new(2 * i * GRAIN_BYTES, GRAIN_BYTES)).collect();
        let mut few = every_other.clone();
        assert_eq!(widen(&mut few, 500, GRAIN_BYTES, capacity), GRAIN_BYTES);
        assert_eq!(few, every_other, "there is room for so many");
        assert_eq!(widen(&mut few, 499, GRAIN_BYTES, capacity), 2 * GRAIN_BYTES);
        assert_eq!(few, [ByteSpan::new(0, capacity)]);

        let mut far =
            vec![ByteSpan::new(5, 1), ByteSpan::new(40 * GRAIN_BYTES, 9), ByteSpan::new(capacity - 1, 1)];
        widen(&mut far, 2, GRAIN_BYTES, capacity);
        let wanted = [ByteSpan::new(0, 64 * GRAIN_BYTES), ByteSpan::from_bounds(992 * GRAIN_BYTES, capacity)];
        assert_eq!(far, wanted);
        let mut end = vec![ByteSpan::new(0, 1), ByteSpan::new(u64::MAX - 1, 1)];
        widen(&mut end, 1, GRAIN_BYTES, u64::MAX);
        assert_eq!(end, [ByteSpan::new(0, u64::MAX)]);
    }

    #[test]
    fn only_faults_of_the_change_id_make_changes_unknown() {
        let kind = |name: &str, property: Option<&str>| {
            let property = property.map(str::to_string);
            let fault = Fault { name: name.to_string(), property, ..Fault::default() };
            unknown_or_failed(VsphereError::of_fault("ask", fault)).kind
        };
        assert_eq!(kind("FileFault", None), VsphereErrorKind::ChangesUnknown);
        assert_eq!(kind("InvalidArgument", Some("changeId")), VsphereErrorKind::ChangesUnknown);
        assert_eq!(kind("InvalidArgument", Some("deviceKey")), VsphereErrorKind::Fault);
        assert_eq!(kind("TaskInProgress", None), VsphereErrorKind::Busy);
    }

    #[test]
    fn numbers_at_the_top_of_the_range_do_no_harm() {
        let text = format!(
            "<startOffset>0</startOffset><length>{0}</length>{1}",
            u64::MAX,
            area(u64::MAX, u64::MAX)
        );
        assert_eq!(page(&text, 0, 10).unwrap().until, 10);
        assert!(page("<length>99999999999999999999999</length>", 0, 10).is_err());
    }
}
