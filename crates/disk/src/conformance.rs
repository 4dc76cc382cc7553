//! What every backend must do, as ordinary code for the tests of any crate. Panics on a fault.

use std::collections::HashMap;
use std::sync::Arc;

use drover_types::{ByteSpan, ExtentKind};

use crate::{Buffer, Completion, Disk, DiskErrorKind, Lane, Request, Slice, Work};

/// Sizes every writer is tried with, as far as its granularity allows.
const SIZES: [u64; 8] = [1, 511, 512, 513, 4096, 65537, 1 << 20, (3 << 20) + 17];

/// Questions for extents before the suite takes them for endless.
const EXTENT_ANSWERS_MAX: usize = 1 << 16;

/// Bytes without any repetition that a wrong offset could hide behind, with a hole in the second
/// and the last quarter.
pub fn pattern(size: u64) -> Vec<u8> {
    let quarter = (size / 4).max(1);
    (0..size).map(|at| if at / quarter % 2 == 1 { 0 } else { byte_at(at) }).collect()
}

fn byte_at(offset: u64) -> u8 {
    let word = (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555;
    (word >> (offset % 8 * 8)) as u8 | 1
}

/// Checks that `disk` reads as `expected` in every way.
///
/// # Panics
/// On the first thing that is wrong.
pub fn check_reader(disk: &dyn Disk, expected: &[u8]) {
    assert_eq!(disk.size(), expected.len() as u64, "size");
    assert!(disk.limits().bytes_min.is_power_of_two() && disk.limits().depth_max > 0, "{:?}", disk.limits());
    assert_eq!(disk.identity(), disk.identity(), "identity changes without a reason");
    reads_odd_spans(disk, expected);
    reads_many_at_once(disk, expected);
    reads_on_two_lanes(disk, expected);
    extents_cover_and_holes_are_zero(disk, expected);
    outside_is_misuse(disk);
}

/// Checks that disks made by `make` keep what is written to them. `read_back` gives the content of
/// the disk made last, by another way than the disk itself where there is one. A backend that
/// rounds sizes up may return a larger disk.
///
/// # Panics
/// On the first thing that is wrong.
pub fn check_writer(make: impl Fn(u64) -> Arc<dyn Disk>, read_back: impl Fn() -> Vec<u8>) {
    for size in SIZES {
        let disk = make(size);
        assert!(disk.size() >= size, "asked for {size}, got {}", disk.size());
        assert!(disk.features().writable, "a target must be writable");
        let mut model = new_model(&*disk);
        writes_odd_spans(&*disk, &mut model);
        disk.flush().unwrap_or_else(|error| panic!("{error}: {}", error.source));
        check_equal(&model, &read_back(), "after odd writes");
        zeroes_what_was_written(&*disk, &mut model);
        writes_shared_slices(&*disk, &mut model);
        writes_many_at_once(&*disk, &mut model);
        disk.flush().unwrap_or_else(|error| panic!("{error}: {}", error.source));
        check_equal(&model, &read_back(), "after zeroing and writing");
        check_reader(&*disk, &model);
    }
}

fn check_equal(expected: &[u8], found: &[u8], when: &str) {
    assert_eq!(expected.len(), found.len(), "size {when}");
    if let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) {
        panic!("byte {at:#x} of {:#x} is {:#x}, not {:#x}, {when}", found.len(), found[at], expected[at]);
    }
}

/// What a new disk holds: zeros if it says so, else what we write first.
fn new_model(disk: &dyn Disk) -> Vec<u8> {
    let model = vec![0; disk.size() as usize];
    if !disk.features().zeroed {
        let whole = ByteSpan::new(0, disk.size());
        for_each_piece(disk, whole, |lane, span| run(lane, span, Work::Zero));
    }
    model
}

/// Runs `act` on the pieces of `span` that the limits allow.
fn for_each_piece(disk: &dyn Disk, span: ByteSpan, act: impl Fn(&mut dyn Lane, ByteSpan) -> Work) {
    let mut lane = open(disk);
    for piece in pieces(disk, span, disk.limits().bytes_max.min(1 << 20)) {
        act(&mut *lane, piece);
    }
}

fn pieces(disk: &dyn Disk, span: ByteSpan, bytes: u64) -> Vec<ByteSpan> {
    let bytes = (bytes / disk.limits().bytes_min).max(1) * disk.limits().bytes_min;
    (span.offset..span.end())
        .step_by(bytes as usize)
        .map(|start| ByteSpan::from_bounds(start, (start + bytes).min(span.end())))
        .collect()
}

fn open(disk: &dyn Disk) -> Box<dyn Lane> {
    disk.open_lane().unwrap_or_else(|error| panic!("{error}: {}", error.source))
}

/// Spans that begin and end in awkward places, aligned outwards to what the disk takes.
fn odd_spans(disk: &dyn Disk) -> Vec<ByteSpan> {
    let (size, limits) = (disk.size(), disk.limits());
    let mut spans = Vec::new();
    for offset in [0, 1, 511, 512, 4095, 4096, 5000, 65536, 100_001, size / 2, size - 1] {
        for length in [1, 2, 511, 512, 513, 4096, 4097, 70_000, 300_000] {
            let end = (offset + length).min(size);
            if offset < size {
                spans.push(ByteSpan::from_bounds(offset, end).widened(limits.bytes_min, size));
            }
        }
    }
    spans.push(ByteSpan::new(0, size.min(limits.bytes_max / limits.bytes_min * limits.bytes_min)));
    spans.retain(|span| span.length <= limits.bytes_max);
    spans
}

fn run(lane: &mut dyn Lane, span: ByteSpan, work: Work) -> Work {
    lane.submit(Request { id: span.offset, span, work });
    assert_eq!(lane.in_flight(), 1);
    let completion = lane.complete().expect("a request in flight ends");
    assert_eq!((completion.id, completion.span), (span.offset, span));
    assert!(lane.in_flight() == 0 && lane.complete().is_none(), "nothing is left in flight");
    succeeded(completion)
}

fn succeeded(completion: Completion) -> Work {
    if let Err(error) = &completion.result {
        panic!("{error}: {}", error.source);
    }
    completion.work
}

fn data(work: &Work) -> &[u8] {
    match work {
        Work::Read(buffer) => buffer,
        Work::Write(slice) => slice,
        Work::Zero => panic!("a request came back as another"),
    }
}

fn check_bytes(span: ByteSpan, found: &[u8], expected: &[u8]) {
    let expected = &expected[span.offset as usize..span.end() as usize];
    assert_eq!(found.len(), expected.len(), "length of {span}");
    let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(wrong.is_none(), "byte {wrong:?} of {span} is wrong");
}

fn dirty_buffer(length: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(length as usize);
    buffer.fill(0xee);
    buffer
}

fn reads_odd_spans(disk: &dyn Disk, expected: &[u8]) {
    let mut lane = open(disk);
    for span in odd_spans(disk) {
        let work = run(&mut *lane, span, Work::Read(dirty_buffer(span.length)));
        check_bytes(span, data(&work), expected);
    }
}

fn reads_many_at_once(disk: &dyn Disk, expected: &[u8]) {
    for bytes in [8192, disk.limits().bytes_max.min(1 << 20)] {
        let spans = pieces(disk, ByteSpan::new(0, disk.size()), bytes);
        let requests = spans.into_iter().map(|span| (span, Work::Read(dirty_buffer(span.length))));
        run_many(disk, requests, |span, work| check_bytes(span, data(work), expected));
    }
}

/// Keeps the lane as full as it may be, and checks that each request ends exactly once, and that what was
/// told of a read while it arrived is what it ends with.
fn run_many(
    disk: &dyn Disk,
    requests: impl Iterator<Item = (ByteSpan, Work)>,
    check: impl Fn(ByteSpan, &Work),
) {
    let mut lane = open(disk);
    let mut open_spans = HashMap::new();
    let take = |lane: &mut dyn Lane, open_spans: &mut HashMap<u64, ByteSpan>| {
        let mut seen: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut see = |id: u64, bytes: &[u8]| {
            assert!(open_spans.contains_key(&id), "bytes of request {id}, which is not in flight");
            let before = seen.insert(id, bytes.to_vec()).unwrap_or_default();
            assert!(bytes.starts_with(&before), "bytes told of request {id} changed");
        };
        let completion = lane.complete_seeing(&mut see).expect("requests are in flight");
        let span = open_spans.remove(&completion.id).expect("each request ends once");
        assert_eq!(completion.span, span);
        let seen = seen.remove(&completion.id).unwrap_or_default();
        let work = succeeded(completion);
        let is_same = seen.is_empty() || data(&work).starts_with(&seen);
        assert!(is_same, "bytes told of {span} are not what it ended with");
        check(span, &work);
        assert_eq!(lane.in_flight(), open_spans.len());
    };
    for (id, (span, work)) in requests.enumerate() {
        if lane.in_flight() == disk.limits().depth_max {
            take(&mut *lane, &mut open_spans);
        }
        open_spans.insert(id as u64, span);
        lane.submit(Request { id: id as u64, span, work });
    }
    while lane.in_flight() > 0 {
        take(&mut *lane, &mut open_spans);
    }
    assert!(open_spans.is_empty(), "{} requests never ended", open_spans.len());
}

fn reads_on_two_lanes(disk: &dyn Disk, expected: &[u8]) {
    let lanes = disk.limits().lanes_max.min(2);
    let span = ByteSpan::new(0, disk.size().min(64 << 10).min(disk.limits().bytes_max));
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                let work = run(&mut *open(disk), span, Work::Read(dirty_buffer(span.length)));
                check_bytes(span, data(&work), expected);
            });
        }
    });
}

fn extents_cover_and_holes_are_zero(disk: &dyn Disk, expected: &[u8]) {
    let size = disk.size();
    let min = disk.limits().bytes_min;
    for start in [0, size / 3 / min * min, (size - 1) / min * min] {
        let mut at = start;
        let mut answers = 0;
        while at < size {
            let span = ByteSpan::from_bounds(at, size);
            let extents = disk.extents(span).unwrap_or_else(|error| panic!("{error}: {}", error.source));
            assert!(!extents.is_empty(), "no extents for {span}");
            for extent in extents {
                assert_eq!(extent.span.offset, at, "extents of {span} have a gap or overlap");
                assert!(!extent.span.is_empty() && extent.span.end() <= size, "{extent:?} for {span}");
                let bytes = &expected[at as usize..extent.span.end() as usize];
                let wrong = extent.kind == ExtentKind::Zero && bytes.iter().any(|byte| *byte != 0);
                assert!(!wrong, "{extent:?} holds data");
                at = extent.span.end();
            }
            answers += 1;
            assert!(answers < EXTENT_ANSWERS_MAX, "extents never end");
        }
    }
}

fn outside_is_misuse(disk: &dyn Disk) {
    let (size, min) = (disk.size(), disk.limits().bytes_min);
    let mut lane = open(disk);
    for span in [ByteSpan::new(size, min), ByteSpan::new(u64::MAX - min + 1, min), ByteSpan::new(0, 0)] {
        lane.submit(Request { id: 1, span, work: Work::Read(Buffer::zeroed(span.length as usize)) });
        let completion = lane.complete().expect("a refused request ends, too");
        let kind = completion.result.expect_err("a read outside the disk").kind;
        assert_eq!(kind, DiskErrorKind::Misuse, "read of {span}");
        assert!(matches!(completion.work, Work::Read(_)), "the buffer comes back");
    }
    lane.submit(Request {
        id: 2,
        span: ByteSpan::new(0, min.min(size)),
        work: Work::Read(Buffer::zeroed(0)),
    });
    let completion = lane.complete().expect("a refused request ends, too");
    assert_eq!(completion.result.expect_err("a buffer too short").kind, DiskErrorKind::Misuse);
    assert!(!lane.is_broken(), "a misuse does not cost the lane");
    let error = disk.extents(ByteSpan::new(size, 1)).expect_err("extents outside the disk");
    assert_eq!(error.kind, DiskErrorKind::Misuse);
}

/// Bytes for `span` that differ by `round`, so that a write that did not happen shows.
fn fresh(span: ByteSpan, round: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(span.length as usize);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = byte_at((span.offset + index as u64).wrapping_add(round * 0x1_0001));
    }
    buffer
}

fn store(model: &mut [u8], span: ByteSpan, bytes: &[u8]) {
    model[span.offset as usize..span.end() as usize].copy_from_slice(bytes);
}

fn writes_odd_spans(disk: &dyn Disk, model: &mut [u8]) {
    let mut lane = open(disk);
    for (round, span) in odd_spans(disk).into_iter().enumerate() {
        let buffer = fresh(span, round as u64);
        store(model, span, &buffer);
        let work = run(&mut *lane, span, Work::Write(Slice::from(buffer)));
        check_bytes(span, data(&work), model);
    }
}

fn zeroes_what_was_written(disk: &dyn Disk, model: &mut [u8]) {
    let mut lane = open(disk);
    for (round, span) in odd_spans(disk).into_iter().enumerate() {
        run(&mut *lane, span, Work::Zero);
        model[span.offset as usize..span.end() as usize].fill(0);
        let work = run(&mut *lane, span, Work::Read(dirty_buffer(span.length)));
        check_bytes(span, data(&work), model);
        if round % 3 == 0 {
            let buffer = fresh(span, round as u64 + 1000);
            store(model, span, &buffer);
            run(&mut *lane, span, Work::Write(Slice::from(buffer)));
        }
    }
}

/// Slices from the middle of a buffer start on any address.
fn writes_shared_slices(disk: &dyn Disk, model: &mut [u8]) {
    let min = disk.limits().bytes_min;
    let whole = ByteSpan::new(0, disk.size().min(256 << 10).min(disk.limits().bytes_max));
    let buffer = Arc::new(fresh(whole, 77));
    let requests = pieces(disk, whole, min.max(whole.length / 5)).into_iter().map(|span| {
        let range = span.offset as usize..span.end() as usize;
        let target = ByteSpan::new(whole.end() - span.end(), span.length);
        let target = if target.offset.is_multiple_of(min) { target } else { span };
        (target, Slice::new(buffer.clone(), range))
    });
    let requests: Vec<_> = requests.collect();
    for (span, slice) in &requests {
        store(model, *span, slice);
    }
    let works = requests.into_iter().map(|(span, slice)| (span, Work::Write(slice)));
    run_many(disk, works, |_, work| assert!(matches!(work, Work::Write(_))));
}

fn writes_many_at_once(disk: &dyn Disk, model: &mut [u8]) {
    let spans = pieces(disk, ByteSpan::new(0, disk.size()), 12_345);
    let mut requests = Vec::new();
    for (index, span) in spans.into_iter().enumerate() {
        let buffer = fresh(span, 3);
        if index % 4 == 3 {
            store(model, span, &vec![0; span.length as usize]);
            requests.push((span, Work::Zero));
        } else {
            store(model, span, &buffer);
            requests.push((span, Work::Write(Slice::from(buffer))));
        }
    }
    run_many(disk, requests.into_iter(), |_, _| {});
}
