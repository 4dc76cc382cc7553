//! Single turns of a copy or a pass: what is asked, read, made zero and recorded again, and when it comes to rest.

use super::details::{DATA, config};
use super::*;
use crate::sample::Sample;

const KNOWN: Mode = Mode::Copy { target_zeroed: false };

fn blocks(first: u64, count: u64) -> ByteSpan {
    ByteSpan::new(first * BLOCK_BYTES, count * BLOCK_BYTES)
}

fn set_of(listed: &[u64], size: u64) -> BlockSet {
    let mut set = BlockSet::none(size);
    listed.iter().for_each(|block| set.insert(*block, 1));
    set
}

/// Of a disk of so many blocks, those listed are known to be data.
fn recorded(count: u64, known: &[u64]) -> LeafTable {
    let mut leaves = LeafTable::new(count * BLOCK_BYTES);
    known.iter().for_each(|block| leaves.set(*block, DATA));
    leaves
}

fn pass_over(leaves: LeafTable, areas: &[u64]) -> Copier {
    let size = leaves.size();
    let plan = PassPlan { areas: set_of(areas, size), done: BlockSet::none(size), audit: None };
    Copier::for_pass(CopierConfig::new(KNOWN), leaves, plan)
}

fn next(copier: &mut Copier) -> Next {
    copier.next(Duration::ZERO)
}

/// Answers the question for the map with data everywhere.
fn map_as_data(copier: &mut Copier) {
    let Next::Map(page) = next(copier) else { panic!("asks for the map") };
    copier.mapped(&[Extent::allocated(page)]);
}

/// Lets the copy forget what it asks to, and gives that.
fn forget(copier: &mut Copier) -> Vec<Entry> {
    assert_eq!(next(copier), Next::Forget);
    let entries = copier.to_forget();
    copier.forgotten();
    entries
}

fn flushed(copier: &mut Copier) -> Vec<Entry> {
    let Next::Flush(ticket) = next(copier) else { panic!("flushes") };
    copier.flushed(ticket, Duration::ZERO)
}

#[test]
fn a_pass_reads_its_areas_and_what_is_unknown_and_nothing_between() {
    let mut copier = pass_over(recorded(8, &[0, 1, 2, 4, 5, 6, 7]), &[0, 5]);
    assert_eq!(
        forget(&mut copier),
        [Entry::Forget { first: 0, count: 1 }, Entry::Forget { first: 5, count: 1 }]
    );
    let Next::Map(page) = next(&mut copier) else { panic!("asks for the map") };
    assert_eq!(page, blocks(0, 6), "to the last block that it visits");
    copier.mapped(&[Extent::allocated(page)]);
    for block in [0, 3, 5] {
        assert_eq!(next(&mut copier), Next::Read(blocks(block, 1)));
    }
    assert_eq!(next(&mut copier), Next::Wait(None));
    assert_eq!(copier.totals().mapped, 3 * BLOCK_BYTES);
}

#[test]
fn what_is_found_as_it_was_known_is_recorded_again_whatever_flush_fails() {
    let mut copier = pass_over(recorded(2, &[0, 1]), &[0]);
    let again = Entry::Data { first: 0, leaves: vec![Digest([1; 32])] };
    forget(&mut copier);
    map_as_data(&mut copier);
    assert_eq!(next(&mut copier), Next::Read(blocks(0, 1)));
    assert!(copier.read(blocks(0, 1), vec![DATA]).is_empty());
    let Next::Flush(_) = next(&mut copier) else { panic!("flushes") };
    copier.flush_failed(Failure::Transient, Duration::ZERO);
    let Next::Wait(Some(rest)) = next(&mut copier) else { panic!("rests") };
    let Next::Flush(ticket) = copier.next(rest) else { panic!("flushes") };
    assert_eq!(copier.flushed(ticket, rest), [again], "it was there before this run, so no flush loses it");
    assert_eq!(copier.next(rest), Next::Done);
}

#[test]
fn each_page_is_forgotten_before_its_map_is_asked() {
    let far = (2 << 30) / BLOCK_BYTES;
    let mut leaves = recorded(far + 1, &[0]);
    leaves.set_zero(1, far - 1);
    leaves.set(far, DATA);
    let mut copier = pass_over(leaves, &[0, far]);
    for block in [0, far] {
        assert_eq!(forget(&mut copier), [Entry::Forget { first: block, count: 1 }]);
        let Next::Map(page) = next(&mut copier) else { panic!("asks for the map") };
        assert_eq!(page, blocks(block, 1));
        copier.mapped(&[Extent::allocated(page)]);
    }
}

#[test]
fn a_sample_is_hashed_where_it_is_not_known_and_nothing_else_is() {
    let sample = Sample::of_share(0.5, 7);
    let taken: Vec<u64> = (0..16).filter(|block| sample.takes(*block)).collect();
    let (known, wanted) = taken.split_at(2);
    let size = 16 * BLOCK_BYTES;
    let config = CopierConfig { request_bytes: BLOCK_BYTES, ..CopierConfig::new(Mode::Hash(Some(sample))) };
    let mut copier = Copier::new(config, recorded(16, known));
    map_as_data(&mut copier);
    assert_eq!(copier.totals().to_read, wanted.len() as u64 * BLOCK_BYTES);
    for block in wanted {
        assert_eq!(next(&mut copier), Next::Read(blocks(*block, 1)));
    }
    assert!(wanted.len() > 2 && (wanted.len() as u64) * BLOCK_BYTES < size, "{taken:?}");
    assert_eq!(next(&mut copier), Next::Wait(None));
}

#[test]
fn zeros_over_what_was_once_written_are_made_again_after_a_loss() {
    let mut copier = Copier::new(config(), LeafTable::new(4 * BLOCK_BYTES));
    let Next::Map(_) = next(&mut copier) else { panic!("asks for the map") };
    copier.mapped(&[Extent::zero(blocks(0, 1)), Extent::allocated(blocks(1, 3))]);
    assert_eq!(next(&mut copier), Next::Read(blocks(1, 3)));
    let parts = copier.read(blocks(1, 3), vec![Leaf::Zero, DATA, Leaf::Zero]);
    assert_eq!((parts.data, parts.zero), (vec![blocks(2, 1)], vec![]));
    // The write failed half-way, and the source says something else when it is asked again.
    assert!(copier.failed(blocks(1, 3), Failure::Transient, Duration::ZERO));
    let later = Duration::from_millis(500);
    assert_eq!(copier.next(later), Next::Read(blocks(1, 3)));
    let parts = copier.read(blocks(1, 3), vec![Leaf::Zero; 3]);
    assert_eq!((parts.data, parts.zero), (vec![], vec![blocks(2, 1)]));
    copier.landed(blocks(1, 3));
    copier.target_lost();
    assert_eq!(copier.next(later), Next::Zero(blocks(0, 4)), "one of these blocks was written to");
}

#[test]
fn a_copy_that_is_stopped_waits_for_its_map() {
    let mut copier = Copier::new(config(), LeafTable::new(4 * BLOCK_BYTES));
    assert!(matches!(next(&mut copier), Next::Map(_)));
    copier.stop(StopCause::Cancelled);
    assert_eq!((next(&mut copier), copier.is_over()), (Next::Wait(None), false));
    copier.map_failed();
    assert_eq!((next(&mut copier), copier.is_over()), (Next::Stopped, true));
}

#[test]
fn a_pass_that_is_stopped_waits_for_what_is_being_forgotten() {
    let mut copier = pass_over(recorded(4, &[0, 1, 2, 3]), &[0]);
    assert_eq!(next(&mut copier), Next::Forget);
    copier.stop(StopCause::Cancelled);
    assert_eq!((next(&mut copier), copier.is_over()), (Next::Wait(None), false));
    copier.forgotten();
    assert_eq!((next(&mut copier), copier.is_over()), (Next::Stopped, true));
}

#[test]
fn a_flush_that_fails_for_now_is_tried_again_and_not_for_ever() {
    let mut copier = Copier::new(config(), LeafTable::new(BLOCK_BYTES));
    map_as_data(&mut copier);
    let mut now = Duration::ZERO;
    let mut tries = 0;
    while copier.stop_cause().is_none() {
        assert_eq!(copier.next(now), Next::Read(blocks(0, 1)), "what is not recorded is copied again");
        copier.read(blocks(0, 1), vec![DATA]);
        copier.landed(blocks(0, 1));
        let Next::Flush(_) = copier.next(now) else { panic!("flushes") };
        copier.flush_failed(Failure::Transient, now);
        (tries, now) = (tries + 1, now + Duration::from_secs(20));
        assert!(tries < 100, "no end");
    }
    assert!(tries > 2 && now > config().retry.give_up_after, "{tries} tries, {now:?}");
    assert_eq!((copier.next(now), copier.stop_cause()), (Next::Stopped, Some(StopCause::Failed)));
    assert!(copier.is_over());
}

#[test]
fn what_a_flush_lost_is_written_again_after_pauses_that_grow_and_a_bounded_number_of_times() {
    let mut copier = Copier::new(config(), LeafTable::new(BLOCK_BYTES));
    map_as_data(&mut copier);
    let (mut now, mut pauses) = (Duration::ZERO, Vec::new());
    while copier.stop_cause().is_none() {
        match copier.next(now) {
            Next::Read(span) => {
                copier.read(span, vec![DATA]);
                copier.landed(span);
            }
            Next::Flush(_) => copier.flush_failed(Failure::Transient, now),
            Next::Wait(Some(until)) => {
                pauses.push(until - now);
                now = until;
            }
            other => panic!("{other:?}"),
        }
        copier.check_invariants();
        assert!(pauses.len() < 100, "no end");
    }
    assert!(pauses.is_sorted() && pauses[0] < pauses[4], "{pauses:?}");
    let retry = config().retry;
    assert_eq!(copier.totals().written, u64::from(retry.flush_attempts_max) * BLOCK_BYTES);
    // Without that bound time would have been one.
    assert!(now < retry.give_up_after, "{now:?}");
}

#[test]
fn a_copy_that_is_to_stop_does_not_rest_first() {
    let mut copier = Copier::new(config(), LeafTable::new(BLOCK_BYTES));
    map_as_data(&mut copier);
    assert_eq!(next(&mut copier), Next::Read(blocks(0, 1)));
    copier.read(blocks(0, 1), vec![DATA]);
    copier.landed(blocks(0, 1));
    let Next::Flush(_) = next(&mut copier) else { panic!("flushes") };
    copier.flush_failed(Failure::Transient, Duration::ZERO);
    assert!(matches!(next(&mut copier), Next::Wait(Some(_))));
    copier.stop(StopCause::Cancelled);
    assert_eq!(next(&mut copier), Next::Stopped);
}

#[test]
fn a_flush_that_fails_for_good_stops_at_once() {
    for failure in [Failure::Fatal, Failure::Corrupt] {
        let mut copier = Copier::new(config(), LeafTable::new(BLOCK_BYTES));
        map_as_data(&mut copier);
        assert_eq!(next(&mut copier), Next::Read(blocks(0, 1)));
        copier.read(blocks(0, 1), vec![DATA]);
        copier.landed(blocks(0, 1));
        let Next::Flush(_) = next(&mut copier) else { panic!("flushes") };
        copier.flush_failed(failure, Duration::ZERO);
        assert_eq!(copier.stop_cause(), Some(StopCause::Failed));
    }
}

#[test]
fn a_pass_over_a_target_of_which_nothing_is_known_is_a_first_copy() {
    let of = |known: &[u64]| {
        let size = 32 * BLOCK_BYTES;
        let plan = PassPlan { areas: BlockSet::none(size), done: BlockSet::none(size), audit: None };
        let config = CopierConfig { reserve_bytes: 8 * BLOCK_BYTES, ..config() };
        let mut copier = Copier::for_pass(config, recorded(32, known), plan);
        let Next::Map(page) = next(&mut copier) else { panic!("asks for the map") };
        copier.mapped(&[Extent::zero(blocks(0, 16)), Extent::allocated(blocks(16, 16))]);
        assert_eq!(page.end(), size);
        next(&mut copier)
    };
    assert_eq!(of(&[]), Next::Reserve, "its zeros are there, and space is set aside");
    assert_eq!(of(&[3]), Next::Zero(blocks(0, 3)), "what was written to once proves nothing");
}

#[test]
fn sums_of_a_pass_begin_with_what_its_last_try_recorded() {
    let size = 9 * BLOCK_BYTES + 5;
    let mut leaves = LeafTable::new(size);
    [0, 1, 2, 5, 9].iter().for_each(|block| leaves.set(*block, DATA));
    // Recorded in the areas; recorded beside them; in the areas and lost since; the short block at the end.
    let plan =
        PassPlan { areas: set_of(&[0, 1, 3, 9], size), done: set_of(&[0, 2, 3, 9], size), audit: None };
    let copier = Copier::for_pass(CopierConfig::new(KNOWN), leaves, plan);
    let totals = copier.totals();
    assert_eq!((totals.resumed, totals.mapped), (BLOCK_BYTES + 5, BLOCK_BYTES + 5));
    // Of the areas block 1; the unknown ones 3, 4, 6, 7 and 8.
    assert_eq!(copier.bytes_in_all(), 7 * BLOCK_BYTES + 5);
}

#[test]
fn sums_of_a_copy_of_some_blocks_begin_with_those_that_are_known() {
    let leaves = recorded(6, &[0, 1, 4]);
    let copier = Copier::for_areas(CopierConfig::new(KNOWN), leaves, set_of(&[1, 2, 4], 6 * BLOCK_BYTES));
    assert_eq!((copier.totals().resumed, copier.totals().mapped), (2 * BLOCK_BYTES, 2 * BLOCK_BYTES));
    assert_eq!(copier.bytes_in_all(), 3 * BLOCK_BYTES);
}

#[test]
fn a_copy_of_some_blocks_is_done_though_others_stay_unknown() {
    let areas = set_of(&[2], 4 * BLOCK_BYTES);
    let mut copier = Copier::for_areas(CopierConfig::new(KNOWN), recorded(4, &[]), areas);
    map_as_data(&mut copier);
    assert_eq!(next(&mut copier), Next::Read(blocks(2, 1)));
    copier.read(blocks(2, 1), vec![DATA]);
    copier.landed(blocks(2, 1));
    assert_eq!(flushed(&mut copier), [Entry::Data { first: 2, leaves: vec![Digest([1; 32])] }]);
    assert_eq!(next(&mut copier), Next::Done);
    copier.check_invariants();
}

#[test]
fn zeros_that_a_pass_finds_are_made_and_recorded_where_they_lie() {
    let mut leaves = recorded(6, &[0, 1, 2, 3]);
    leaves.set_zero(4, 2);
    let mut copier = pass_over(leaves, &[3, 5]);
    forget(&mut copier);
    let Next::Map(_) = next(&mut copier) else { panic!("asks for the map") };
    copier.mapped(&[Extent::zero(blocks(3, 3))]);
    assert_eq!(next(&mut copier), Next::Zero(blocks(3, 1)), "the other is zero already");
    copier.landed(blocks(3, 1));
    let entries = flushed(&mut copier);
    assert_eq!(entries, [Entry::Zero { first: 3, count: 1 }, Entry::Zero { first: 5, count: 1 }]);
    assert_eq!(next(&mut copier), Next::Done);
    assert_eq!(copier.leaves().get(0), Some(DATA));
}

#[test]
fn what_an_answer_leaves_out_counts_as_data() {
    let mut copier = Copier::new(config(), LeafTable::new(4 * BLOCK_BYTES));
    let Next::Map(_) = next(&mut copier) else { panic!("asks for the map") };
    copier.mapped(&[Extent::zero(blocks(0, 1)), Extent::zero(blocks(2, 1))]);
    assert_eq!(copier.totals().zero_mapped, BLOCK_BYTES, "up to the gap");
    for block in 1..4 {
        assert_eq!(next(&mut copier), Next::Map(blocks(block, 4 - block)));
        copier.mapped(&[]);
        assert_eq!(copier.totals().to_read, block * BLOCK_BYTES, "a block for each answer that says nothing");
    }
}

#[test]
fn space_is_set_aside_also_where_a_part_is_zeros() {
    let config = CopierConfig { reserve_bytes: 16 * BLOCK_BYTES, ..config() };
    let mut copier = Copier::new(config, LeafTable::new(32 * BLOCK_BYTES));
    map_as_data(&mut copier);
    assert_eq!(next(&mut copier), Next::Reserve);
    assert_eq!(next(&mut copier), Next::Read(blocks(0, 16)));
    let leaves = (0..16).map(|block| if block < 4 { Leaf::Zero } else { DATA });
    copier.read(blocks(0, 16), leaves.collect());
    assert_eq!(next(&mut copier), Next::Reserve, "a quarter of one request are zeros");
}
