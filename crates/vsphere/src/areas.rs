use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drover_http::ExtentSource;
use drover_types::inventory::VmDisk;
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
    /// The guest is down and waits for the answer.
    pub is_down: bool,
}

/// Areas in one answer; servers send at most some 2,000.
const AREAS_MAX: usize = 1 << 20;

/// Answers about one disk that tell of less than a tracked block each. With it answers are bounded as blocks are.
const SHORT_ANSWERS_MAX: u32 = 32;
/// Asking may take this long, and no longer than reading the disk would: comparing all of it is the other way.
const ASKING_TIME_MIN: Duration = Duration::from_secs(60);
/// The same while a guest is down.
const ASKING_TIME_MIN_DOWN: Duration = Duration::from_secs(5);
const READ_BYTES_PER_S: u64 = 1 << 30;
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
        let op = self.inner.areas_op(query);
        let work = self.inner.begin();
        let ask = |from| work.check(&op).and_then(|()| self.inner.query_areas(query, from));
        all_areas(query.capacity_bytes, query.is_down, ask).map_err(|error| match error {
            Unanswered::Failed(error) => error,
            Unanswered::Endless(why) => VsphereError::new(VsphereErrorKind::ChangesUnknown, &op, why),
        })
    }
}

/// Why areas could not be had.
#[derive(Debug)]
enum Unanswered {
    Failed(VsphereError),
    /// Asking takes too long, or would never end.
    Endless(String),
}

/// The areas of a disk, from as many answers as it takes.
fn all_areas(
    capacity: u64,
    is_down: bool,
    mut ask: impl FnMut(u64) -> Result<Page, VsphereError>,
) -> Result<Vec<ByteSpan>, Unanswered> {
    let mut areas: Vec<ByteSpan> = Vec::new();
    let (mut grain, mut from) = (GRAIN_BYTES, 0);
    let mut effort = Effort { is_down, ..Effort::default() };
    while from < capacity {
        let asked = Instant::now();
        let page = ask(from).map_err(Unanswered::Failed)?;
        effort.add(&page, capacity, asked.elapsed()).map_err(Unanswered::Endless)?;
        page.areas.into_iter().for_each(|area| append(&mut areas, area));
        from = page.until;
        grain = widen(&mut areas, AREAS_KEPT_MAX, grain, capacity);
    }
    Ok(areas)
}

/// What asking for the areas of one disk took so far.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    short: u32,
    spent: Duration,
    is_down: bool,
}

impl Effort {
    /// Counts an answer; says why no more should be asked.
    fn add(&mut self, page: &Page, capacity: u64, took: Duration) -> Result<(), String> {
        self.spent += took;
        self.short += u32::from(page.until < capacity && page.until - page.from < GRAIN_BYTES);
        let until = page.until;
        if self.short > SHORT_ANSWERS_MAX {
            return Err(format!(
                "more than {SHORT_ANSWERS_MAX} answers told of less than {GRAIN_BYTES} bytes each, and came only to \
                 {until:#x} of {capacity:#x}"
            ));
        }
        let least = if self.is_down { ASKING_TIME_MIN_DOWN } else { ASKING_TIME_MIN };
        if until < capacity && self.spent > least + Duration::from_secs(capacity / READ_BYTES_PER_S) {
            return Err(format!(
                "answers came only to {until:#x} of {capacity:#x} in {} s",
                self.spent.as_secs()
            ));
        }
        Ok(())
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
    fn areas_op(&self, query: &ChangedAreas<'_>) -> String {
        format!("ask for areas of disk {} of {}", query.disk_key, self.name_of(query.vm))
    }

    fn query_areas(&self, query: &ChangedAreas<'_>, from: u64) -> Result<Page, VsphereError> {
        assert!(from < query.capacity_bytes, "asked for areas at or beyond the disk's end");
        let op = self.areas_op(query);
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
///
/// What is asked next begins where the answer says that it ends. An area outside of what the answer speaks for
/// contradicts that: nobody knows then what lies between, so the answer is worth nothing. Areas may be widened to
/// the left, and beyond the end of the disk.
fn page_of(info: &Element, from: u64, capacity: u64) -> Result<Page, String> {
    let told_start: u64 = info.number_at("startOffset").unwrap_or(from);
    let told_length: u64 = info.number_at("length").ok_or("answer tells no length")?;
    let area = |area: &Element| Some(ByteSpan::new(area.number_at("start")?, area.number_at("length")?));
    let areas: Option<Vec<ByteSpan>> = info.all("changedArea").take(AREAS_MAX + 1).map(area).collect();
    let mut areas = areas.ok_or("answer holds an area without start or length")?;
    if areas.len() > AREAS_MAX {
        return Err(format!("answer holds more than {AREAS_MAX} areas"));
    }
    let told_end = told_start.saturating_add(told_length);
    let is_outside =
        |area: &&ByteSpan| area.end() <= told_start || area.end() > told_end && told_end < capacity;
    if let Some(area) = areas.iter().filter(|area| !area.is_empty()).find(is_outside) {
        return Err(format!(
            "the answer contradicts itself: it speaks for {told_start:#x} to {told_end:#x}, and tells of {area}"
        ));
    }
    if told_start > from {
        areas.push(ByteSpan::from_bounds(from, told_start));
    }
    let until = told_end.min(capacity);
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
    pub effort: Mutex<Effort>,
    /// Why the server is not asked any more, for the operator.
    pub notes: Arc<Mutex<Vec<String>>>,
}

impl AllocatedAreas {
    /// Of a disk as a snapshot froze it, or as it is.
    pub fn of(
        session: Arc<Inner>,
        vm: &str,
        snapshot: Option<&str>,
        frozen: &VmDisk,
        notes: &Arc<Mutex<Vec<String>>>,
    ) -> AllocatedAreas {
        AllocatedAreas {
            session,
            vm: vm.to_string(),
            snapshot: snapshot.map(str::to_string),
            disk_key: frozen.key,
            capacity_bytes: frozen.capacity_bytes,
            last: Mutex::default(),
            effort: Mutex::default(),
            notes: notes.clone(),
        }
    }
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
            is_down: false,
        };
        let asked = Instant::now();
        let page = self.session.query_areas(&query, from)?;
        lock(&self.effort).add(&page, self.capacity_bytes, asked.elapsed()).map_err(|why| {
            VsphereError::new(VsphereErrorKind::ChangesUnknown, &self.session.areas_op(&query), why)
        })?;
        let slot = Arc::new(PageSlot(page));
        *lock(&self.last) = Some(slot.clone());
        Ok(slot)
    }

    /// From now on it tells nothing.
    fn give_up(&self, error: &VsphereError) {
        let mut notes = lock(&self.notes);
        if notes.is_empty() {
            let cause =
                std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            notes.push(format!(
                "change tracking does not tell what is allocated, so all is read that the host does not know to be empty: {error}{cause}"
            ));
        }
    }
}

impl ExtentSource for AllocatedAreas {
    fn extents(&self, span: ByteSpan) -> Option<Vec<Extent>> {
        if !lock(&self.notes).is_empty() {
            return None;
        }
        if span.is_empty() || span.offset >= self.capacity_bytes {
            return Some(vec![Extent::allocated(span)]);
        }
        let page = self.page(span.offset).inspect_err(|error| self.give_up(error)).ok()?;
        Some(page.0.extents(span))
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
    fn an_area_beyond_the_answers_own_end_makes_it_worth_nothing() {
        let told = |start, length| {
            page(
                &("<startOffset>100</startOffset><length>200</length>".to_string() + &area(start, length)),
                100,
                1000,
            )
        };
        // What lies between 300 and 900 was never told of, so going on from 901 would skip it.
        for (start, length) in [(900, 1), (250, 51), (300, 100), (1, 9)] {
            assert!(told(start, length).unwrap_err().contains("contradicts itself"), "{start}+{length}");
        }
        assert_eq!(told(250, 50).unwrap().until, 300);
        assert_eq!(told(90, 20).unwrap().areas, [ByteSpan::new(100, 10)], "widened to the left");
        // Rounded up at the end of the disk.
        let last = page(
            &("<startOffset>0</startOffset><length>1000</length>".to_string() + &area(990, 99)),
            0,
            1000,
        );
        assert_eq!(last.unwrap().areas, [ByteSpan::new(990, 10)]);
    }

    #[test]
    fn answers_of_a_byte_each_come_to_an_end() {
        let mut asked = 0;
        let one_byte = |from| {
            asked += 1;
            Ok(Page { from, until: from + 1, areas: Vec::new() })
        };
        let error = all_areas(1 << 30, false, one_byte).unwrap_err();
        assert!(
            matches!(&error, Unanswered::Endless(why) if why.contains("less than 65536 bytes")),
            "{error:?}"
        );
        assert_eq!(asked, SHORT_ANSWERS_MAX + 1);
        // A disk of that many bytes ends by itself, and so do answers of a block each.
        let page = |from, until| Ok(Page { from, until, areas: vec![ByteSpan::from_bounds(from, until)] });
        assert_eq!(all_areas(30, false, |from| page(from, from + 1)).unwrap(), [ByteSpan::new(0, 30)]);
        let blocks = all_areas(1 << 30, false, |from| page(from, from + GRAIN_BYTES));
        assert_eq!(blocks.unwrap(), [ByteSpan::new(0, 1 << 30)]);
    }

    #[test]
    fn asking_takes_no_longer_than_reading_would() {
        let page = Page { from: 0, until: 1 << 20, areas: Vec::new() };
        let after = |seconds, capacity| Effort::default().add(&page, capacity, Duration::from_secs(seconds));
        assert!(after(61, 1 << 30).is_ok());
        assert!(after(62, 1 << 30).unwrap_err().contains("0x100000 of 0x40000000 in 62 s"));
        assert!(after(62, 1 << 40).is_ok());
        assert!(after(1 << 20, 1 << 20).is_ok(), "it is complete");
        let mut down = Effort { is_down: true, ..Effort::default() };
        assert!(down.add(&page, 1 << 30, Duration::from_secs(6)).is_ok());
        assert!(down.add(&page, 1 << 30, Duration::from_secs(1)).is_err(), "a guest waits");
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
