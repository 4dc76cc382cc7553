//! Requests and replies.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use drover_disk::{Disk, DiskErrorKind, Lane, Work};
use drover_nbd::NbdDisk;
use drover_types::{ByteSpan, Extent};

use crate::fake::*;
use crate::{bytes, read, submit_read, submit_write, words, write, zero};

const SPAN: ByteSpan = ByteSpan::new(0x1000, 0x1000);

/// A server that answers the first read of each lane by `script`.
fn answers(script: impl Fn(&mut Peer, Asked) -> io::Result<()> + Send + Sync + 'static) -> Fake {
    Fake::start(move |mut peer, number| {
        peer.handshake(OFFER)?;
        if number > 0 {
            let asked = peer.request()?;
            script(&mut peer, asked)?;
            peer.serve(9)?;
        }
        Ok(())
    })
}

/// How a read ends, whether it cost the lane, and whether the next try on a sound lane works.
fn read_ends(fake: Fake) -> (DiskErrorKind, bool, String) {
    read_of_ends(&fake.source())
}

fn read_of_ends(disk: &NbdDisk) -> (DiskErrorKind, bool, String) {
    let mut lane = disk.open_lane().unwrap();
    let completion = read(&mut *lane, SPAN);
    assert!(matches!(completion.work, Work::Read(_)), "the buffer comes back");
    let error = completion.result.unwrap_err();
    let broken = lane.is_broken();
    if !broken {
        assert_eq!(bytes(read(&mut *lane, SPAN)), vec![9; 0x1000], "the lane still works");
    } else {
        let error = read(&mut *lane, SPAN).result.unwrap_err();
        assert_eq!(error.kind, DiskErrorKind::Transient, "a broken lane asks for another");
    }
    (error.kind, broken, words(&error))
}

#[test]
fn breaches_of_the_protocol_are_corrupt_and_cost_the_lane() {
    type Script = fn(&mut Peer, Asked) -> io::Result<()>;
    let scripts: [(Script, &str); 12] = [
        (|peer, _| peer.send([0xab; 64]), "starts with 0xabababab"),
        (|peer, asked| peer.data_chunk(true, asked.cookie + 7, 0x1000, &[1; 0x1000]), "not in flight"),
        (|peer, asked| peer.simple(0, asked.cookie, &[1; 0x1000]), "simple reply to a read"),
        (|peer, asked| peer.data_chunk(true, asked.cookie, 0xfff, &[1; 0x1000]), "in the answer to a read"),
        (|peer, asked| peer.data_chunk(true, asked.cookie, 0x1000, &[1; 0x1001]), "in the answer to a read"),
        (|peer, asked| peer.data_chunk(true, asked.cookie, u64::MAX, &[1; 16]), "in the answer to a read"),
        (|peer, asked| peer.chunk_head(true, 1, asked.cookie, u32::MAX), "starts with"),
        (|peer, asked| peer.chunk_head(true, 5, asked.cookie, u32::MAX), "of 4294967295 bytes"),
        (|peer, asked| peer.hole_chunk(true, asked.cookie, 0x1800, 0x1000), "in the answer to a read"),
        (|peer, asked| peer.chunk(false, 0, asked.cookie, &[]), "chunk None"),
        (|peer, asked| peer.chunk(true, 77, asked.cookie, &[1]), "Unknown(77)"),
        (
            |peer, asked| {
                peer.data_chunk(false, asked.cookie, 0x1000, &[1; 0x800])?;
                peer.data_chunk(true, asked.cookie, 0x17ff, &[1; 0x801])
            },
            "come twice",
        ),
    ];
    for (script, reason) in scripts {
        let (kind, broken, text) = read_ends(answers(move |peer, asked| {
            script(peer, asked)?;
            // Enough to fill an offset where one is awaited.
            peer.send([0xcd; 64])
        }));
        let cut_off = reason == "starts with";
        assert!(kind == DiskErrorKind::Corrupt && broken, "{kind:?} {text}");
        assert!(cut_off || text.contains(reason), "{text} lacks {reason}");
    }
}

#[test]
fn an_answer_that_leaves_bytes_out_is_corrupt() {
    let fake = answers(|peer, asked| peer.data_chunk(true, asked.cookie, 0x1000, &[1; 0xfff]));
    let (kind, broken, text) = read_ends(fake);
    assert!(kind == DiskErrorKind::Corrupt && !broken && text.contains("leaves bytes out"), "{text}");
}

#[test]
fn a_connection_cut_in_a_chunk_is_transient_and_another_lane_works() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(OFFER)?;
        if number == 1 {
            let asked = peer.request()?;
            peer.chunk_head(true, 1, asked.cookie, 8 + 0x1000)?;
            return peer.send([&asked.offset.to_be_bytes()[..], &[1; 100]].concat());
        }
        peer.serve(9).map(drop)
    });
    let disk = fake.source();
    let mut lane = disk.open_lane().unwrap();
    submit_read(&mut *lane, 1, SPAN);
    submit_read(&mut *lane, 2, SPAN);
    for _ in 0..2 {
        assert_eq!(lane.complete().unwrap().result.unwrap_err().kind, DiskErrorKind::Transient);
    }
    assert!(lane.is_broken() && lane.complete().is_none() && lane.in_flight() == 0);
    assert_eq!(bytes(read(&mut *disk.open_lane().unwrap(), SPAN)), vec![9; 0x1000]);
}

#[test]
fn a_silent_server_is_transient_and_costs_the_lane() {
    let fake = answers(|_, _| {
        std::thread::sleep(PATIENCE * 3);
        Ok(())
    });
    let (kind, broken, text) = read_of_ends(&fake.source_that_falls_silent());
    assert!(kind == DiskErrorKind::Transient && broken && text.contains("silent"), "{text}");
}

#[test]
fn errors_of_the_server_come_with_its_words_and_leave_the_lane_whole() {
    for (error, kind) in [
        (1u32, DiskErrorKind::Denied),
        (5, DiskErrorKind::Transient),
        (28, DiskErrorKind::OutOfSpace),
        (95, DiskErrorKind::Unsupported),
        (108, DiskErrorKind::Transient),
        (9999, DiskErrorKind::Failed),
    ] {
        let fake = answers(move |peer, asked| {
            peer.data_chunk(false, asked.cookie, 0x1000, &[1; 16])?;
            let message = [&error.to_be_bytes()[..], &[0, 3], b"why"].concat();
            peer.chunk(false, 0x8001, asked.cookie, &message)?;
            peer.chunk(true, 0, asked.cookie, &[])
        });
        let (found, broken, text) = read_ends(fake);
        assert!(found == kind && !broken && text.contains("why"), "{text}");
    }
}

#[test]
fn chunks_in_any_order_of_several_requests_at_once_make_the_right_bytes() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(OFFER)?;
        if number == 0 {
            return peer.serve(0).map(drop);
        }
        let (a, b) = (peer.request()?, peer.request()?);
        peer.data_chunk(false, b.cookie, b.offset + 3000, &[4; 1096])?;
        peer.data_chunk(false, a.cookie, a.offset + 4095, &[2])?;
        peer.hole_chunk(false, b.cookie, b.offset, 1000)?;
        peer.data_chunk(false, a.cookie, a.offset, &[1; 4095])?;
        peer.data_chunk(true, b.cookie, b.offset + 1000, &[3; 2000])?;
        peer.chunk(true, 0, a.cookie, &[])
    });
    let disk = fake.source();
    let mut lane = disk.open_lane().unwrap();
    submit_read(&mut *lane, 1, ByteSpan::new(0, 4096));
    submit_read(&mut *lane, 2, ByteSpan::new(8192, 4096));
    let (second, first) = (lane.complete().unwrap(), lane.complete().unwrap());
    assert_eq!((first.id, second.id), (1, 2));
    assert_eq!(bytes(first), [vec![1; 4095], vec![2]].concat());
    assert_eq!(bytes(second), [vec![0; 1000], vec![3; 2000], vec![4; 1096]].concat());
}

/// The server sends the data of eight reads before it takes another byte, and we write meanwhile:
/// with full buffers both ways, a client that only sends would wait for ever.
#[test]
fn writing_while_the_server_is_blocked_on_our_reads_does_not_stall() {
    const MIB: u64 = 1 << 20;
    let offer = Offer { size: 64 * MIB, flags: 1 | FLUSH | MULTI, structured: true, extended: false };
    let fake = Fake::start(move |mut peer, _| {
        peer.handshake(offer)?;
        let reads: Vec<_> = (0..8).map(|_| peer.request()).collect::<io::Result<_>>()?;
        for asked in reads {
            peer.data_chunk(true, asked.cookie, asked.offset, &vec![5; asked.length as usize])?;
        }
        peer.serve(0).map(drop)
    });
    let disk = fake.target();
    let mut lane = disk.open_lane().unwrap();
    for id in 0..8 {
        submit_read(&mut *lane, id, ByteSpan::new(id * MIB, MIB));
    }
    for id in 8..16 {
        submit_write(&mut *lane, id, ByteSpan::new(id * MIB, MIB), 6);
    }
    let mut ids = Vec::new();
    while let Some(completion) = lane.complete() {
        completion.result.unwrap();
        if let Work::Read(buffer) = &completion.work {
            assert!(buffer.iter().all(|byte| *byte == 5));
        }
        ids.push(completion.id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..16).collect::<Vec<_>>());
}

#[test]
fn an_export_of_another_size_after_a_reconnect_is_corrupt() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(Offer { size: OFFER.size + number as u64, ..OFFER })?;
        peer.serve(0).map(drop)
    });
    let error = fake.source().open_lane().err().unwrap();
    assert!(error.kind == DiskErrorKind::Corrupt && words(&error).contains("bytes now"), "{}", words(&error));
}

fn status(fake: Fake, span: ByteSpan) -> Result<Vec<Extent>, DiskErrorKind> {
    fake.source().extents(span).map_err(|error| error.kind)
}

fn tells_status(context: u32, runs: &'static [(u32, u32)]) -> Fake {
    Fake::start(move |mut peer, _| {
        peer.handshake(OFFER)?;
        let asked = peer.request()?;
        let mut payload = context.to_be_bytes().to_vec();
        runs.iter().for_each(|(length, flags)| {
            payload.extend(length.to_be_bytes());
            payload.extend(flags.to_be_bytes());
        });
        peer.chunk(true, 5, asked.cookie, &payload)
    })
}

#[test]
fn block_status_is_clipped_merged_and_believed_only_where_it_says_zero() {
    let runs = &[(4096, 3), (4096, 2), (4096, 1), (4096, 0), (1 << 30, 3)];
    let expected = vec![
        Extent::zero(ByteSpan::new(0, 8192)),
        Extent::allocated(ByteSpan::new(8192, 8192)),
        Extent::zero(ByteSpan::new(16384, 100)),
    ];
    assert_eq!(status(tells_status(42, runs), ByteSpan::new(0, 16484)), Ok(expected));
    // Less than asked is fine, the caller asks again.
    let short = vec![Extent::allocated(ByteSpan::new(0, 512))];
    assert_eq!(status(tells_status(42, &[(512, 0)]), ByteSpan::new(0, 65536)), Ok(short));
}

#[test]
fn block_status_that_makes_no_sense_is_corrupt() {
    let span = ByteSpan::new(0, 65536);
    for fake in [tells_status(42, &[]), tells_status(42, &[(0, 0)]), tells_status(43, &[(512, 3)])] {
        assert_eq!(status(fake, span), Err(DiskErrorKind::Corrupt));
    }
    let fake = Fake::start(|mut peer, _| {
        peer.handshake(OFFER)?;
        let asked = peer.request()?;
        peer.chunk(true, 0, asked.cookie, &[])
    });
    assert_eq!(status(fake, span), Err(DiskErrorKind::Corrupt));
}

const TARGET: Offer = Offer { size: 1 << 20, flags: 1 | FLUSH | ZEROES, structured: true, extended: false };

#[test]
fn zeroing_that_the_server_refuses_after_all_is_written_over_the_same_spans() {
    let (tell, told) = mpsc::channel();
    let fake = Fake::start(move |mut peer, _| {
        peer.handshake(TARGET)?;
        loop {
            let asked = peer.request()?;
            let (error, cookie) = (if asked.command == 6 { 95 } else { 0 }, asked.cookie);
            tell.send(asked).unwrap();
            peer.simple(error, cookie, &[])?;
        }
    });
    let disk = fake.target();
    let mut lane = disk.open_lane().unwrap();
    let spans = [ByteSpan::new(0, 100_000), ByteSpan::new(100_000, 70_000), ByteSpan::new(500_000, 1)];
    for span in spans {
        zero(&mut *lane, span).result.unwrap();
    }
    let asked: Vec<_> = told.try_iter().collect();
    let writes: Vec<_> = asked.iter().filter(|asked| asked.command == 1).collect();
    assert_eq!(asked.len(), writes.len() + 1, "the refusal is remembered");
    for (write, span) in writes.iter().zip(spans) {
        assert_eq!(ByteSpan::new(write.offset, write.length), span);
        assert!(write.data.iter().all(|byte| *byte == 0));
    }
    assert_eq!(writes.len(), spans.len());
}

#[test]
fn without_flush_each_write_is_made_durable_by_itself() {
    let (tell, told) = mpsc::channel();
    let fake = Fake::start(move |mut peer, _| {
        peer.handshake(Offer { flags: 1 | FUA | ZEROES, ..TARGET })?;
        loop {
            let asked = peer.request()?;
            tell.send((asked.command, asked.flags)).unwrap();
            peer.simple(0, asked.cookie, &[])?;
        }
    });
    let disk = fake.target();
    let mut lane = disk.open_lane().unwrap();
    write(&mut *lane, SPAN, 1).result.unwrap();
    zero(&mut *lane, SPAN).result.unwrap();
    disk.flush().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [(1, 1), (6, 1)]);
}

/// The server may have been restarted and have lost what it had not flushed.
#[test]
fn a_flush_after_a_lost_connection_fails_once() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(TARGET)?;
        if number == 0 {
            let asked = peer.request()?;
            return peer.simple(0, asked.cookie, &[]);
        }
        peer.serve(0).map(drop)
    });
    let disk = fake.target();
    let mut lane = disk.open_lane().unwrap();
    write(&mut *lane, SPAN, 1).result.unwrap();
    assert_eq!(write(&mut *lane, SPAN, 1).result.unwrap_err().kind, DiskErrorKind::Transient);
    let mut lane = disk.open_lane().unwrap();
    write(&mut *lane, SPAN, 1).result.unwrap();
    let error = disk.flush().unwrap_err();
    assert!(
        error.kind == DiskErrorKind::Transient && words(&error).contains("may be lost"),
        "{}",
        words(&error)
    );
    write(&mut *lane, SPAN, 1).result.unwrap();
    disk.flush().unwrap();
}

#[test]
fn on_one_connection_a_flush_passes_between_the_requests_of_a_busy_lane() {
    let (tell, told) = mpsc::channel();
    let fake = Fake::start(move |mut peer, number| {
        assert_eq!(number, 0, "without multi-conn a target has one connection");
        peer.handshake(TARGET)?;
        loop {
            let asked = peer.request()?;
            std::thread::sleep(Duration::from_millis(1));
            tell.send(asked.command).unwrap();
            peer.simple(0, asked.cookie, &[])?;
        }
    });
    let disk = fake.target();
    assert_eq!(disk.limits().lanes_max, 4, "lanes share the one connection");
    // A minute of writes, unless the flush is through before.
    const WRITES_MAX: u64 = 60_000;
    let is_through = AtomicBool::new(false);
    let busy = |lane: &mut dyn Lane| {
        let mut writes = 0;
        while !is_through.load(SeqCst) && writes < WRITES_MAX {
            if lane.in_flight() == 4 {
                lane.complete().unwrap().result.unwrap();
            }
            submit_write(lane, writes, SPAN, 1);
            writes += 1;
        }
        while let Some(completion) = lane.complete() {
            completion.result.unwrap();
        }
        writes
    };
    let mut lane = disk.open_lane().unwrap();
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| busy(&mut *lane));
        (0..20).for_each(|_| assert_eq!(told.recv().unwrap(), 1, "it writes"));
        disk.flush().unwrap();
        is_through.store(true, SeqCst);
        let writes = writes.join().unwrap();
        assert!(writes < WRITES_MAX, "the flush came after all writes");
        let commands: Vec<_> = told.try_iter().collect();
        assert_eq!(commands.iter().filter(|command| **command == 3).count(), 1);
        assert_eq!(commands.len() as u64 + 20, writes + 1);
    });
}

#[test]
fn a_source_that_lets_one_client_in_is_read_through_one_connection() {
    let fake = Fake::start(|mut peer, number| {
        if number > 0 {
            return Ok(());
        }
        peer.handshake(Offer { flags: 1, ..OFFER })?;
        peer.serve(9).map(drop)
    });
    let disk = fake.source();
    let (mut a, mut b) = (disk.open_lane().unwrap(), disk.open_lane().unwrap());
    assert_eq!(disk.limits().lanes_max, 4, "lanes share the one connection");
    submit_read(&mut *a, 1, SPAN);
    assert_eq!(bytes(read(&mut *b, SPAN)), vec![9; 0x1000]);
    assert_eq!(bytes(a.complete().unwrap()), vec![9; 0x1000]);
    submit_read(&mut *a, 2, SPAN);
    drop(a);
    assert_eq!(bytes(read(&mut *b, SPAN)), vec![9; 0x1000]);
}
