//! Servers that want to harm: what they cost is bounded, and what they say stays on its line.

use drover_disk::{Disk, DiskErrorKind};
use drover_nbd::{NbdDisk, list};
use drover_types::ByteSpan;

use crate::fake::*;
use crate::{bytes, read, words, write};

const MIB: u64 = 1 << 20;

/// A server whose answer to a read is up to `script`.
fn answers(script: fn(&mut Peer, Asked) -> std::io::Result<()>) -> Fake {
    Fake::start(move |mut peer, number| {
        peer.handshake(OFFER)?;
        if number > 0 {
            let asked = peer.request()?;
            script(&mut peer, asked)?;
        }
        peer.hold()
    })
}

#[test]
fn a_read_in_shreds_is_not_sorted_without_end() {
    let fake = answers(|peer, asked| {
        // Backwards and with gaps, so that each is sorted in before all others.
        for half in (0..asked.length / 2).rev() {
            peer.data_chunk(false, asked.cookie, asked.offset + 2 * half, &[1])?;
        }
        Ok(())
    });
    let disk = fake.source();
    let error = read(&mut *disk.open_lane().unwrap(), ByteSpan::new(0, MIB)).result.unwrap_err();
    assert!(error.kind == DiskErrorKind::Corrupt && words(&error).contains("in shreds"), "{}", words(&error));
}

#[test]
fn many_small_chunks_in_order_are_fine() {
    let fake = answers(|peer, asked| {
        for start in (0..asked.length).step_by(16) {
            peer.data_chunk(false, asked.cookie, asked.offset + start, &[6; 16])?;
        }
        peer.chunk(true, 0, asked.cookie, &[])
    });
    let disk = fake.source();
    assert_eq!(bytes(read(&mut *disk.open_lane().unwrap(), ByteSpan::new(0, MIB / 4))), vec![6; 256 << 10]);
}

#[test]
fn the_words_of_a_server_do_not_reach_the_terminal_as_they_are() {
    let fake = answers(|peer, asked| {
        let words = "\x1b]0;owned\x07\r\nall is well \u{202e}".repeat(100);
        let head = [&5u32.to_be_bytes()[..], &(words.len() as u16).to_be_bytes()].concat();
        peer.chunk(true, 0x8001, asked.cookie, &[&head, words.as_bytes()].concat())
    });
    let disk = fake.source();
    let said = words(&read(&mut *disk.open_lane().unwrap(), ByteSpan::new(0, 512)).result.unwrap_err());
    assert!(said.contains("all is well") && said.len() < 1000, "{said}");
    assert!(!said.contains(['\x1b', '\x07', '\r', '\n', '\u{202e}']), "{said:?}");
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (7, _) => peer.answer(7, 0x8000_0006, b"")?,
                (3, _) => {
                    peer.answer(3, 2, b"\0\0\0\x05\x1b[31m")?;
                    peer.answer(3, ACK, &[])?;
                }
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
    });
    let said = words(&NbdDisk::open_source(&fake.uri(), options()).err().unwrap());
    assert!(said.contains("the server has '\\u{1b}[31m'"), "{said}");
}

#[test]
fn a_handshake_in_drips_ends() {
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        let (option, _) = peer.option()?;
        peer.send(0x0003_e889_0455_65a9u64.to_be_bytes())?;
        peer.send(option.to_be_bytes())?;
        // An error whose message would take an hour.
        peer.send(UNSUPPORTED.to_be_bytes())?;
        peer.send(60_000u32.to_be_bytes())?;
        loop {
            peer.send(b"x")?;
            std::thread::sleep(PATIENCE / 20);
        }
    });
    let error = NbdDisk::open_source(&fake.uri(), hasty()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Transient, "{}", words(&error));
}

#[test]
fn a_list_of_endless_texts_is_refused() {
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (3, _) => {
                    for number in 0..1000u32 {
                        peer.answer(3, 2, &[&4u32.to_be_bytes()[..], &number.to_be_bytes()].concat())?;
                    }
                    peer.answer(3, ACK, &[])?;
                }
                (6, _) => {
                    peer.export_info(6, OFFER)?;
                    peer.answer(6, ACK, &[])?;
                }
                (9, _) => {
                    for _ in 0..100 {
                        peer.answer(9, 4, &[&[0; 4][..], &[b'x'; 4000]].concat())?;
                    }
                    peer.answer(9, ACK, &[])?;
                }
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
    });
    let error = list(&fake.uri(), &drover_nbd::NbdOptions::default()).unwrap_err();
    assert!(words(&error).contains("too long"), "{}", words(&error));
}

#[test]
fn an_export_of_impossible_size_is_refused() {
    for size in [u64::MAX, 1 << 63] {
        let fake = Fake::start(move |mut peer, _| peer.handshake(Offer { size, ..OFFER }));
        let error = NbdDisk::open_source(&fake.uri(), options()).err().unwrap();
        assert!(error.kind == DiskErrorKind::Corrupt && words(&error).contains("bytes"), "{}", words(&error));
    }
}

/// What makes writes safe was read from the flags when the disk was opened.
#[test]
fn a_target_that_comes_back_with_other_promises_is_not_written() {
    let then = 1 | FLUSH | FUA | MULTI;
    for now in [1 | FLUSH | FUA, 1 | FUA | MULTI, 1 | FLUSH | FUA | MULTI | READ_ONLY] {
        let fake = Fake::start(move |mut peer, number| {
            let flags = if number < 2 { then } else { now };
            peer.handshake(Offer { flags, ..OFFER })?;
            peer.serve(0).map(drop)
        });
        let disk = fake.target();
        let mut lane = disk.open_lane().unwrap();
        write(&mut *lane, ByteSpan::new(0, 512), 1).result.unwrap();
        let error = disk.open_lane().err().unwrap();
        assert!(error.kind == DiskErrorKind::Corrupt && words(&error).contains("flags"), "{}", words(&error));
    }
}

/// Without contexts there is nothing to ask; the copy reads all of it.
#[test]
fn a_server_that_comes_back_without_its_map_is_read_whole() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(Offer { structured: number == 0, ..OFFER })?;
        if number == 0 {
            peer.request()?;
            return Ok(());
        }
        loop {
            let asked = peer.request()?;
            assert_ne!(asked.command, 7, "it was never told what to tell");
            peer.simple(0, asked.cookie, &vec![8; asked.length as usize])?;
        }
    });
    let disk = fake.source();
    let span = ByteSpan::new(0, MIB);
    assert_eq!(disk.extents(span).unwrap(), [drover_types::Extent::allocated(span)]);
    assert_eq!(bytes(read(&mut *disk.open_lane().unwrap(), ByteSpan::new(0, 10))), vec![8; 10]);
}
