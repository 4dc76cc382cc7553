//! What whole copies do not tell: sums, when space is set aside, how much is in flight, when a flush is due.

use super::super::landed::Landed;
use super::super::queue::{Job, Queue, Task};
use super::*;
use crate::journal::RECORD_BLOCKS_MAX;
use crate::leaves::SEGMENT_BYTES;
use crate::sample::Sample;

const MIB: u64 = 1 << 20;
const COPY: Mode = Mode::Copy { target_zeroed: true };
pub(super) const DATA: Leaf = Leaf::Data(Digest([1; 32]));

pub(super) fn config() -> CopierConfig {
    CopierConfig::new(COPY)
}

fn span(first_mib: u64, end_mib: u64) -> ByteSpan {
    ByteSpan::from_bounds(first_mib * MIB, end_mib * MIB)
}

fn queue(jobs: &[(Task, ByteSpan)]) -> Queue {
    let mut queue = Queue::default();
    jobs.iter().for_each(|(task, span)| queue.push(Job::new(*task, *span)));
    queue
}

fn second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn as_much_is_in_flight_as_the_window_has_room_for() {
    let config = CopierConfig { window_bytes: 2 * MIB, ..config() };
    let mut queue = queue(&[(Task::Read, span(0, 3)), (Task::Zero, span(3, 4)), (Task::Read, span(4, 5))]);
    for mib in 0..2 {
        assert_eq!(queue.start(&config), Some(Next::Read(span(mib, mib + 1))));
    }
    assert_eq!((queue.start(&config), queue.in_flight_bytes()), (None, 2 * MIB));
    queue.end(span(0, 1));
    assert_eq!(queue.start(&config), Some(Next::Read(span(2, 3))));
    assert_eq!(queue.start(&config), Some(Next::Zero(span(3, 4))), "zeroing takes no memory");
    assert_eq!((queue.start(&config), queue.in_flight_bytes()), (None, 2 * MIB));
    let mut small = self::queue(&[(Task::Read, span(0, 2))]);
    let config = CopierConfig { window_bytes: 1, ..config };
    assert_eq!(small.start(&config), Some(Next::Read(span(0, 1))), "one at least");
    assert_eq!(small.start(&config), None);
}

#[test]
fn jobs_are_cut_at_multiples_of_what_is_done_at_once() {
    let odd = ByteSpan::from_bounds(3 * BLOCK_BYTES, 2 * MIB + BLOCK_BYTES);
    let mut reads = queue(&[(Task::Read, odd)]);
    let borders = [3 * BLOCK_BYTES, MIB, 2 * MIB, 2 * MIB + BLOCK_BYTES];
    for border in borders.windows(2) {
        let expected = ByteSpan::from_bounds(border[0], border[1]);
        assert_eq!(reads.start(&config()), Some(Next::Read(expected)));
    }
    assert!(reads.all_started());
    let mut zeros = queue(&[(Task::Zero, ByteSpan::from_bounds(MIB, 2 * SEGMENT_BYTES))]);
    for (first, end) in [(MIB, SEGMENT_BYTES), (SEGMENT_BYTES, 2 * SEGMENT_BYTES)] {
        assert_eq!(zeros.start(&config()), Some(Next::Zero(ByteSpan::from_bounds(first, end))));
    }
}

#[test]
fn the_map_is_asked_further_while_few_jobs_and_few_bytes_wait() {
    let block = |block: u64| (Task::Read, ByteSpan::new(block * 2 * BLOCK_BYTES, BLOCK_BYTES));
    assert!(queue(&(0..63).map(block).collect::<Vec<_>>()).wants_more());
    assert!(!queue(&(0..64).map(block).collect::<Vec<_>>()).wants_more());
    let bytes = |bytes| queue(&[(Task::Read, ByteSpan::new(0, bytes))]).wants_more();
    assert!(bytes((256 << 20) - BLOCK_BYTES) && !bytes(256 << 20));
}

#[test]
fn space_is_set_aside_for_the_next_data_and_for_nothing_else() {
    let config = CopierConfig { reserve_bytes: 8 * MIB, ..config() };
    let mut queue = queue(&[(Task::Read, span(0, 1)), (Task::Zero, span(1, 2)), (Task::Read, span(2, 12))]);
    let mut reserved = Vec::new();
    let mut read = |queue: &mut Queue, expected: Next, span: ByteSpan| {
        assert_eq!(queue.start(&config), Some(expected));
        reserved.push(queue.end(span).reserved);
    };
    assert_eq!(queue.start(&config), Some(Next::Reserve));
    assert_eq!(queue.to_reserve(), [span(0, 1), span(2, 9)]);
    read(&mut queue, Next::Read(span(0, 1)), span(0, 1));
    read(&mut queue, Next::Zero(span(1, 2)), span(1, 2));
    (2..9).for_each(|mib| read(&mut queue, Next::Read(span(mib, mib + 1)), span(mib, mib + 1)));
    assert_eq!(queue.start(&config), Some(Next::Reserve));
    assert_eq!(queue.to_reserve(), [span(9, 12)]);
    (9..12).for_each(|mib| read(&mut queue, Next::Read(span(mib, mib + 1)), span(mib, mib + 1)));
    assert_eq!(reserved, (0..12).map(|job| job != 1).collect::<Vec<_>>(), "the zeros lie beside");
}

#[test]
fn no_space_is_set_aside_where_it_would_not_pay() {
    let with = CopierConfig { reserve_bytes: 8 * MIB, ..config() };
    let starts = |config: &CopierConfig, task, bytes| queue(&[(task, ByteSpan::new(0, bytes))]).start(config);
    assert_eq!(starts(&with, Task::Read, MIB), Some(Next::Reserve), "an eighth");
    assert_ne!(starts(&with, Task::Read, MIB - BLOCK_BYTES), Some(Next::Reserve), "less");
    assert_ne!(starts(&with, Task::Zero, 8 * MIB), Some(Next::Reserve));
    let hash = CopierConfig { mode: Mode::Hash(None), ..with };
    assert_ne!(starts(&hash, Task::Read, 8 * MIB), Some(Next::Reserve));
    assert_ne!(starts(&config(), Task::Read, 8 * MIB), Some(Next::Reserve));
    let mut off = queue(&[(Task::Read, span(0, 8))]);
    off.reserve_off();
    assert_ne!(off.start(&with), Some(Next::Reserve));
    // The mean of what was seen lately: a quarter, more, a third, less than a quarter.
    for (seen, pays) in
        [(&[1.0][..], true), (&[1.0, 1.0], false), (&[1.0, 1.0, 0.0], false), (&[1.0, 1.0, 0.0, 0.0], true)]
    {
        let mut queue = queue(&[(Task::Read, span(0, 8))]);
        seen.iter().for_each(|share| queue.saw_zeros(*share));
        assert_eq!(queue.start(&with) == Some(Next::Reserve), pays, "{seen:?}");
    }
}

#[test]
fn what_is_set_aside_is_in_order_and_bounded() {
    let with = CopierConfig { reserve_bytes: 64 * MIB, ..config() };
    let mut beside =
        queue(&[(Task::Read, span(8, 16)), (Task::Read, span(16, 17)), (Task::Read, span(0, 4))]);
    assert_eq!(beside.start(&with), Some(Next::Reserve));
    assert_eq!(beside.to_reserve(), [span(8, 16), span(16, 17)], "what was put back is left out");
    let apart: Vec<_> = (0..70).map(|at| (Task::Read, span(2 * at, 2 * at + 1))).collect();
    let mut many = queue(&apart[..40]);
    apart[40..].iter().for_each(|(task, span)| many.push(Job::new(*task, *span)));
    let all = CopierConfig { reserve_bytes: 100 * MIB, ..with };
    assert_eq!(many.start(&all), Some(Next::Reserve));
    assert_eq!(many.to_reserve().len(), 64);
}

#[test]
fn a_flush_is_due_by_bytes_by_time_and_when_nothing_else_is_to_be_done() {
    let config = config();
    let mut landed = Landed::default();
    assert!(!landed.flush_is_due(&config, true, second(9)) && landed.next_flush(&config).is_none());
    landed.push(0, DATA);
    assert!(landed.flush_is_due(&config, true, second(0)));
    assert!(!landed.flush_is_due(&config, false, second(1) - Duration::from_nanos(1)));
    assert!(landed.flush_is_due(&config, false, second(1)));
    landed.add_bytes(config.flush_bytes / 2);
    landed.add_bytes(config.flush_bytes / 2 - 1);
    assert!(!landed.flush_is_due(&config, false, second(0)));
    landed.add_bytes(1);
    assert!(landed.flush_is_due(&config, false, second(0)));
    assert_eq!(landed.next_flush(&config), Some(second(1)));
    let first = landed.start_flush(second(5));
    landed.push(1, DATA);
    assert!(landed.is_flushing() && !landed.flush_is_due(&config, true, second(9)));
    assert_eq!(landed.next_flush(&config), Some(second(6)));
    assert_eq!(
        (landed.flush_failed(second(5)), landed.flush_failed(second(7))),
        ((1, second(0)), (2, second(2)))
    );
    assert_eq!(landed.take_unrecorded().len(), 2, "of the flush that failed, and what came after");
    landed.push(2, DATA);
    let again = landed.start_flush(second(8));
    assert_ne!(first, again);
    assert_eq!(landed.flushed(again, second(8)), [Entry::Data { first: 2, leaves: vec![Digest([1; 32])] }]);
    assert_eq!(landed.flush_failed(second(9)), (1, second(0)), "a good one ends the row");
    landed.push(3, DATA);
    landed.start_flush(second(10));
    assert!(landed.flushed(first, second(10)).is_empty(), "of another flush");
}

#[test]
fn neighbours_land_in_one_entry_as_far_as_a_record_goes() {
    let mut landed = Landed::default();
    (0..RECORD_BLOCKS_MAX as u64 + 1).for_each(|block| landed.push(block, DATA));
    landed.push(RECORD_BLOCKS_MAX as u64 + 2, DATA);
    landed.push(9000, Leaf::Zero);
    landed.push_zero(9001, 4);
    landed.push_zero(9006, u64::from(u32::MAX) - 1);
    let next = 9006 + u64::from(u32::MAX) - 1;
    landed.push_zero(next, 1);
    landed.push_zero(next + 1, 1);
    let entries = landed.take_unrecorded();
    let shape: Vec<(u64, u64)> = entries
        .iter()
        .map(|entry| match entry {
            Entry::Data { first, leaves } => (*first, leaves.len() as u64),
            Entry::Zero { first, count } => (*first, u64::from(*count)),
            other => panic!("{other:?}"),
        })
        .collect();
    let max = RECORD_BLOCKS_MAX as u64;
    let all = u64::from(u32::MAX);
    assert_eq!(shape, [(0, max), (max, 1), (max + 2, 1), (9000, 5), (9006, all), (next + 1, 1)]);
}

/// Everything is data; the span of the first read.
fn reading(size: u64) -> (Copier, ByteSpan) {
    let mut copier = Copier::new(config(), LeafTable::new(size));
    let first = drive_to_first_read(&mut copier, size);
    (copier, first)
}

#[test]
fn sums_are_of_bytes_read_written_and_found_zero() {
    let size = 4 * BLOCK_BYTES + 100;
    let (mut copier, whole) = reading(size);
    assert_eq!((whole, copier.in_flight_bytes()), (ByteSpan::new(0, size), size));
    let parts = copier.read(whole, vec![DATA, DATA, Leaf::Zero, DATA, Leaf::Zero]);
    let block = |first: u64, count: u64| ByteSpan::new(first * BLOCK_BYTES, count * BLOCK_BYTES);
    assert_eq!(parts, WriteParts { data: vec![block(0, 2), block(3, 1)], zero: vec![] });
    copier.landed(whole);
    let expected = Totals {
        mapped: size,
        to_read: size,
        read: size,
        written: 3 * BLOCK_BYTES,
        zero_found: 2 * BLOCK_BYTES,
        settled: size,
        changed: size,
        ..Totals::default()
    };
    assert_eq!(copier.totals(), expected);
    copier.target_lost();
    let lost = copier.totals();
    assert_eq!(
        (lost.settled, lost.changed),
        (BLOCK_BYTES + 100, BLOCK_BYTES + 100),
        "the zeros were not written"
    );
    assert_eq!(copier.next(Duration::ZERO), Next::Read(block(0, 2)));
    assert_eq!(copier.next(Duration::ZERO), Next::Read(block(3, 1)));
    assert!(copier.failed(block(3, 1), Failure::Transient, Duration::ZERO));
    assert_eq!(copier.totals().retries, 1);
}

#[test]
fn zeros_written_after_a_loss_are_written_again() {
    let size = 4 * BLOCK_BYTES;
    let mut copier =
        Copier::new(CopierConfig::new(Mode::Copy { target_zeroed: false }), LeafTable::new(size));
    let Next::Map(page) = copier.next(Duration::ZERO) else { panic!("maps first") };
    copier.mapped(&[Extent::zero(page)]);
    assert_eq!(copier.totals().zero_mapped, size);
    assert_eq!(copier.next(Duration::ZERO), Next::Zero(page));
    copier.landed(page);
    assert_eq!((copier.totals().settled, copier.totals().changed), (size, size));
    copier.target_lost();
    assert_eq!((copier.totals().settled, copier.totals().changed), (0, 0));
    assert_eq!(copier.next(Duration::ZERO), Next::Zero(page));
}

#[test]
fn sizes_can_be_set_while_it_runs() {
    let (mut copier, first) = reading(8 * MIB);
    assert_eq!(first, span(0, 1));
    copier.set_request_bytes(2 * MIB);
    assert_eq!(copier.next(Duration::ZERO), Next::Read(span(1, 2)), "up to the next multiple");
    assert_eq!(copier.next(Duration::ZERO), Next::Read(span(2, 4)));
    copier.set_window_bytes(4 * MIB);
    assert_eq!(copier.next(Duration::ZERO), Next::Wait(None));
    copier.set_window_bytes(6 * MIB);
    assert_eq!(copier.next(Duration::ZERO), Next::Read(span(4, 6)));
}

#[test]
fn a_map_that_cannot_be_told_counts_as_data() {
    let mut copier = Copier::new(config(), LeafTable::new(MIB));
    assert!(matches!(copier.next(Duration::ZERO), Next::Map(_)));
    assert_eq!(copier.next(Duration::ZERO), Next::Wait(None), "the answer is awaited");
    copier.map_failed();
    assert_eq!(copier.next(Duration::ZERO), Next::Read(span(0, 1)));
}

#[test]
fn a_stopped_copy_is_over_when_what_landed_is_recorded() {
    let (mut copier, first) = reading(4 * MIB);
    copier.stop(StopCause::Cancelled);
    assert_eq!(copier.next(Duration::ZERO), Next::Wait(None));
    assert!(!copier.is_over(), "one is in flight");
    copier.read(first, vec![DATA; 16]);
    copier.landed(first);
    assert!(!copier.is_over(), "it is not recorded");
    let Next::Flush(ticket) = copier.next(Duration::ZERO) else { panic!("flushes") };
    assert!(!copier.is_over() && copier.next(Duration::ZERO) == Next::Wait(None), "the flush is awaited");
    copier.flushed(ticket, Duration::ZERO);
    assert!(copier.is_over() && copier.next(Duration::ZERO) == Next::Stopped);
}

#[test]
fn space_set_aside_is_asked_for_once_and_its_zeros_are_made_holes_again() {
    let config = CopierConfig { reserve_bytes: 8 * MIB, ..config() };
    let mut copier = Copier::new(config, LeafTable::new(16 * MIB));
    let Next::Map(page) = copier.next(Duration::ZERO) else { panic!("maps first") };
    copier.mapped(&[Extent::allocated(page)]);
    assert_eq!(copier.next(Duration::ZERO), Next::Reserve);
    assert_eq!(copier.to_reserve(), [span(0, 8)]);
    assert_eq!(copier.next(Duration::ZERO), Next::Read(span(0, 1)));
    let parts = copier.read(span(0, 1), vec![Leaf::Zero; 16]);
    assert_eq!(parts, WriteParts { data: vec![], zero: vec![span(0, 1)] });
    copier.reserve_failed();
    for mib in 1..16 {
        assert_eq!(copier.next(Duration::ZERO), Next::Read(span(mib, mib + 1)), "no more is set aside");
    }
    assert!(copier.read(span(15, 16), vec![Leaf::Zero; 16]).is_empty(), "that was not set aside");
}

#[test]
fn an_audit_tells_what_it_compared_and_keeps_so_many_that_differ() {
    let blocks = MISMATCHES_MAX as u64 + 24;
    let size = blocks * BLOCK_BYTES;
    let mut recorded = LeafTable::new(size);
    recorded.set_zero(0, blocks);
    let areas = BlockSet::touched_by(&[ByteSpan::new(0, 16 * BLOCK_BYTES)], size);
    let plan = PassPlan { areas, done: BlockSet::none(size), audit: Some(Sample::of_share(1.0, 1)) };
    let mut copier = Copier::for_pass(CopierConfig::new(Mode::Copy { target_zeroed: false }), recorded, plan);
    assert_eq!((copier.areas_bytes(), copier.bytes_in_all()), (16 * BLOCK_BYTES, size));
    while copier.audit().blocks < blocks - 16 {
        match copier.next(Duration::ZERO) {
            Next::Forget => copier.forgotten(),
            Next::Map(page) => copier.mapped(&[Extent::zero(page)]),
            Next::Read(span) => {
                // All differ, but for the last.
                let end = span.end() / BLOCK_BYTES;
                let leaf = |block| if block == blocks - 1 { Leaf::Zero } else { DATA };
                copier.read(span, (span.offset / BLOCK_BYTES..end).map(leaf).collect());
                copier.check_invariants();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(copier.audit().blocks, blocks - 16);
    assert_eq!(copier.audit().mismatches.len(), MISMATCHES_MAX);
    assert_eq!(copier.audit_mismatches(), MISMATCHES_MAX as u64);
    assert_eq!(copier.audit().mismatches[0].block, 16);
}

#[test]
fn what_an_audit_finds_is_forgotten_and_read_once_more_and_nothing_else() {
    let size = 6 * BLOCK_BYTES;
    let mut recorded = LeafTable::new(size);
    recorded.set_zero(0, 6);
    let plan = PassPlan {
        areas: BlockSet::none(size),
        done: BlockSet::none(size),
        audit: Some(Sample::of_share(1.0, 1)),
    };
    let mut copier = Copier::for_pass(CopierConfig::new(Mode::Copy { target_zeroed: false }), recorded, plan);
    let Next::Map(page) = copier.next(Duration::ZERO) else { panic!("maps first") };
    copier.mapped(&[Extent::zero(page)]);
    let Next::Read(whole) = copier.next(Duration::ZERO) else { panic!("an audit believes no map") };
    let parts = copier.read(whole, vec![Leaf::Zero, DATA, DATA, Leaf::Zero, DATA, Leaf::Zero]);
    assert!(parts.is_empty(), "not before the journal has forgotten it");
    assert_eq!(copier.next(Duration::ZERO), Next::Forget);
    let forget = |first, count| Entry::Forget { first, count };
    assert_eq!(copier.to_forget(), [forget(1, 2), forget(4, 1)]);
    copier.forgotten();
    assert_eq!(copier.totals().to_read, 9 * BLOCK_BYTES);
    for (first, count) in [(1, 2), (4, 1)] {
        let span = ByteSpan::new(first * BLOCK_BYTES, count * BLOCK_BYTES);
        assert_eq!(copier.next(Duration::ZERO), Next::Read(span));
        assert_eq!(copier.read(span, vec![DATA; count as usize]).data, [span]);
        copier.landed(span);
    }
    assert_eq!(copier.totals().settled, size);
}

#[test]
fn what_was_withdrawn_is_recorded_by_no_flush_and_what_was_only_read_is_not_written() {
    let size = 64 * BLOCK_BYTES;
    let mut copier = Copier::new(config(), LeafTable::new(size));
    let mut reads = vec![drive_to_first_read(&mut copier, size)];
    reads.extend((0..3).map(|_| match copier.next(Duration::ZERO) {
        Next::Read(span) => span,
        other => panic!("reads ahead, not {other:?}"),
    }));
    let land = |copier: &mut Copier, number: usize| {
        assert!(!copier.read(reads[number], vec![DATA; 16]).is_empty());
        copier.landed(reads[number]);
    };
    land(&mut copier, 0);
    land(&mut copier, 1);
    let Next::Flush(ticket) = copier.next(second(2)) else { panic!("flushes by time") };
    land(&mut copier, 2);
    copier.withdraw();
    assert!(copier.read(reads[3], vec![DATA; 16]).is_empty());
    let settled = copier.totals().settled;
    let part = ByteSpan::new(4 * BLOCK_BYTES, 3 * BLOCK_BYTES);
    copier.withdrawn(&[part, reads[2]]);
    assert_eq!(settled - copier.totals().settled, 19 * BLOCK_BYTES);
    let data = |first, count| Entry::Data { first, leaves: vec![Digest([1; 32]); count] };
    assert_eq!(copier.flushed(ticket, second(2)), [data(0, 4), data(7, 25)]);
    assert_eq!((copier.next(second(3)), copier.leaves().known_blocks()), (Next::Stopped, 29));
    copier.check_invariants();
}
