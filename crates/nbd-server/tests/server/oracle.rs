//! Random operations on several connections against an array of bytes.

use drover_disk::{Features, Limits, MemDisk};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::Stage;
use crate::raw::{Ask, Raw};

#[derive(Clone, Debug)]
enum Op {
    Read,
    Write(u8),
    Zero { no_hole: bool },
    Trim,
    Flush,
    Status,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Read),
        4 => (1u8..).prop_map(Op::Write),
        2 => any::<bool>().prop_map(|no_hole| Op::Zero { no_hole }),
        1 => Just(Op::Trim),
        1 => Just(Op::Flush),
        2 => Just(Op::Status),
    ]
}

fn check(disk: &MemDisk, stage: &Stage, ops: &[(usize, Op, u64, u64)], grain: u64, trims: bool) {
    let size = disk.content().len() as u64;
    let mut model = disk.content();
    let base = &["base:allocation"];
    let mut clients = [Raw::go(stage, base), Raw::go_extended(stage, base), Raw::go(stage, base)];
    for (client, op, offset, length) in ops {
        let raw = &mut clients[client % 3];
        let offset = offset % size / grain * grain;
        let length = (length % (size - offset)).next_multiple_of(grain).clamp(grain, size - offset);
        let range = offset as usize..(offset + length) as usize;
        let ask = |command, flags| Ask { command, flags, offset, length };
        let reply = match op {
            Op::Read => {
                let reply = raw.read(offset, length);
                assert!(reply.content(offset, length) == model[range], "read of {offset:#x}+{length:#x}");
                reply
            }
            Op::Write(byte) => {
                model[range].fill(*byte);
                raw.write(offset, &vec![*byte; length as usize])
            }
            Op::Zero { no_hole } => {
                model[range].fill(0);
                raw.ask(ask(6, if *no_hole { 2 } else { 0 }), &[])
            }
            Op::Trim if trims => {
                model[range].fill(0);
                raw.ask(ask(4, 0), &[])
            }
            Op::Trim => continue,
            Op::Flush => raw.ask(Ask { command: 3, ..Ask::default() }, &[]),
            Op::Status => {
                let reply = raw.ask(ask(7, 0), &[]);
                let mut at = offset;
                for (length, flags) in &reply.status[0].1 {
                    let end = (at + length).min(offset + (range.end - range.start) as u64);
                    let zero = model[at as usize..end as usize].iter().all(|byte| *byte == 0);
                    assert!(*flags == 0 || zero, "{length} bytes at {at:#x} are told as zero");
                    at = end;
                }
                assert!(at > offset);
                reply
            }
        };
        assert_eq!(reply.error, 0, "{op:?} of {offset:#x}+{length:#x}: {}", reply.message);
    }
    assert!(disk.content() == model);
}

#[test]
fn random_operations_do_what_an_array_does() {
    let mut runner = TestRunner::new(Config { cases: 40, ..Config::default() });
    let ops = prop::collection::vec((0usize..3, op(), any::<u64>(), 1u64..400_000), 1..60);
    let sizes = prop_oneof![Just(1u64), Just(511), Just(512), Just(65537), Just(1 << 20), 1u64..1 << 20];
    runner
        .run(&(ops, sizes, any::<bool>()), |(ops, size, poor)| {
            let (size, grain) = if poor { (size.next_multiple_of(512), 512) } else { (size, 1) };
            let mut disk = MemDisk::new("a", drover_disk::conformance::pattern(size));
            if poor {
                let limits = Limits {
                    bytes_min: 512,
                    bytes_preferred: 512,
                    bytes_max: 4096,
                    lanes_max: 2,
                    depth_max: 1,
                };
                let features = Features { writable: true, fast_zero: false, extents: false, zeroed: false };
                disk = disk.with_limits(limits).with_features(features);
            }
            let stage = Stage::writable(disk.clone());
            check(&disk, &stage, &ops, grain, !poor);
            Ok(())
        })
        .unwrap();
}
