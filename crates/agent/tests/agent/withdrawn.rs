//! A run that is to stop while writes wait for a slow line.

use std::sync::Arc;

use drover_agent::opening::How;
use drover_disk::{Disk, DiskErrorKind, MemDisk, conformance};
use drover_link::RateLimit;
use drover_types::ByteSpan;

use super::stage::{One, Stage, target, write};

const MIB: u64 = 1 << 20;
const WRITES: u64 = 48;

#[test]
fn what_waits_for_a_slow_line_is_given_up_by_name_and_all_else_arrives() {
    let old = vec![0xee; (WRITES * MIB) as usize];
    let disk = MemDisk::new("one", old.clone());
    let rate = Arc::new(RateLimit::new(None));
    let stage = Stage::new(One::new(disk.clone())).behind(&rate);
    let site = stage.site();
    let far = target(&site, "one", WRITES * MIB, How::Force).unwrap();
    // So slow that most of it waits; as fast as it goes once it is asked to stop, so that nobody waits for the rest.
    rate.set(Some(4 * MIB));
    let content = conformance::pattern(WRITES * MIB);
    let spans: Vec<ByteSpan> = (0..WRITES).map(|number| ByteSpan::new(number * MIB, MIB)).collect();
    spans.iter().for_each(|span| write(&far, *span, &content).unwrap());
    far.withdraw();
    rate.set(None);
    assert_eq!(write(&far, spans[0], &content), Err(DiskErrorKind::Gone), "no more is taken");
    far.flush().unwrap();
    let withdrawn = far.withdrawn();
    let (found, bytes) = (disk.content(), |span: &ByteSpan| span.offset as usize..span.end() as usize);
    for span in &spans {
        let wanted = if withdrawn.contains(span) { &old } else { &content };
        assert!(found[bytes(span)] == wanted[bytes(span)], "{span}");
    }
    let sent = spans.len() - withdrawn.len();
    assert!((1..WRITES as usize / 2).contains(&sent), "{sent} of {WRITES} were sent");
}

#[test]
fn a_read_that_is_on_its_way_over_a_slow_line_ends() {
    let disk = MemDisk::new("one", conformance::pattern(8 * MIB));
    let rate = Arc::new(RateLimit::new(None));
    let stage = Stage::new(One::new(disk)).behind(&rate);
    let far = Arc::new(super::stage::source(&stage.site(), "one"));
    rate.set(Some(1));
    let reads = far.clone();
    let reading = std::thread::spawn(move || {
        let mut lane = reads.open_lane().unwrap();
        drover_disk::read_span(lane.as_mut(), ByteSpan::new(0, MIB)).map(drop).map_err(|error| error.kind)
    });
    far.withdraw();
    assert_eq!(reading.join().unwrap(), Err(DiskErrorKind::Gone));
    rate.set(None);
}
