//! Extended headers: lengths of 64 bits.

use std::io;
use std::sync::mpsc;

use drover_disk::{Disk, DiskErrorKind};
use drover_types::{ByteSpan, Extent};

use crate::fake::*;
use crate::{bytes, read, submit_read, words, write, zero};

const TIB: u64 = 1 << 40;
const SPAN: ByteSpan = ByteSpan::new(0x1000, 0x1000);
const EXTENDED: Offer = Offer { extended: true, ..OFFER };

fn status(context: u32, runs: &[(u64, u64)]) -> Vec<u8> {
    let mut payload = [context.to_be_bytes(), (runs.len() as u32).to_be_bytes()].concat();
    payload
        .extend(runs.iter().flat_map(|(length, flags)| [length.to_be_bytes(), flags.to_be_bytes()].concat()));
    payload
}

#[test]
fn requests_and_replies_have_the_long_headers() {
    let (tell, told) = mpsc::channel();
    let fake = Fake::start(move |mut peer, _| {
        peer.handshake(Offer { size: 8 * TIB, flags: 1 | FLUSH | ZEROES, structured: true, extended: true })?;
        loop {
            let asked = peer.extended_request()?;
            tell.send((asked.command, asked.length, asked.data.len())).unwrap();
            match asked.command {
                0 => {
                    let middle = asked.offset + asked.length / 2;
                    let hole =
                        [middle.to_be_bytes().to_vec(), ((asked.length / 2) as u32).to_be_bytes().to_vec()];
                    peer.extended_chunk(false, 2, &asked, &hole.concat())?;
                    let data = vec![9; asked.length as usize / 2];
                    peer.extended_chunk(true, 1, &asked, &[&asked.offset.to_be_bytes()[..], &data].concat())?;
                }
                7 => peer.extended_chunk(
                    true,
                    6,
                    &asked,
                    &status(42, &[(5 * TIB, 3), (TIB, 0), (8 * TIB, 3)]),
                )?,
                2 => return Ok(()),
                _ => peer.extended_chunk(true, 0, &asked, &[])?,
            }
        }
    });
    let disk = fake.target();
    let whole = ByteSpan::new(0, disk.size());
    let expected = [
        Extent::zero(ByteSpan::new(0, 5 * TIB)),
        Extent::allocated(ByteSpan::new(5 * TIB, TIB)),
        Extent::zero(ByteSpan::new(6 * TIB, 2 * TIB)),
    ];
    assert_eq!(disk.extents(whole).unwrap(), expected);
    let mut lane = disk.open_lane().unwrap();
    assert_eq!(bytes(read(&mut *lane, ByteSpan::new(7 * TIB, 100))), [vec![9; 50], vec![0; 50]].concat());
    write(&mut *lane, SPAN, 4).result.unwrap();
    zero(&mut *lane, SPAN).result.unwrap();
    disk.flush().unwrap();
    let seen: Vec<_> = told.try_iter().collect();
    assert_eq!(seen, [(7, 8 * TIB, 0), (0, 100, 0), (1, 0x1000, 0x1000), (6, 0x1000, 0), (3, 0, 0)]);
}

#[test]
fn breaches_with_long_headers_are_corrupt_and_cost_the_lane() {
    type Script = fn(&mut Peer, Asked) -> io::Result<()>;
    let scripts: [(Script, &str); 8] = [
        (|peer, asked| peer.simple(0, asked.cookie, &[1; 0x1000]), "extended headers were agreed"),
        (|peer, asked| peer.simple(5, asked.cookie, &[]), "extended headers were agreed"),
        (|peer, asked| peer.data_chunk(true, asked.cookie, 0x1000, &[1; 0x1000]), "header of the other kind"),
        (
            |peer, asked| peer.extended_chunk(true, 0, &Asked { offset: 0x1001, ..asked }, &[]),
            "another offset",
        ),
        (|peer, asked| peer.extended_chunk(true, 5, &asked, &[0; 12]), "chunk Status"),
        (|peer, asked| peer.extended_head(true, 6, &asked, 1 << 63), "of 9223372036854775808 bytes"),
        (|peer, asked| peer.extended_head(true, 1, &asked, u64::MAX), "in the answer to a read"),
        (|peer, asked| peer.extended_head(true, 0x8001, &asked, 1 << 32), "of 4294967296 bytes"),
    ];
    for (script, reason) in scripts {
        let fake = Fake::start(move |mut peer, number| {
            peer.handshake(EXTENDED)?;
            if number > 0 {
                let asked = peer.extended_request()?;
                script(&mut peer, asked)?;
                peer.send([0xcd; 64])?;
                peer.hold()?;
            }
            Ok(())
        });
        let disk = fake.source();
        let mut lane = disk.open_lane().unwrap();
        let error = read(&mut *lane, SPAN).result.unwrap_err();
        assert!(error.kind == DiskErrorKind::Corrupt && lane.is_broken(), "{}", words(&error));
        assert!(words(&error).contains(reason), "{} lacks {reason}", words(&error));
    }
}

#[test]
fn long_headers_that_were_not_agreed_are_corrupt() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(OFFER)?;
        if number > 0 {
            let asked = peer.request()?;
            peer.extended_chunk(true, 0, &asked, &[])?;
            peer.hold()?;
        }
        Ok(())
    });
    let disk = fake.source();
    let error = read(&mut *disk.open_lane().unwrap(), SPAN).result.unwrap_err();
    assert!(words(&error).contains("header of the other kind"), "{}", words(&error));
}

#[test]
fn a_status_that_miscounts_its_runs_is_corrupt() {
    for payload in [
        [&42u32.to_be_bytes()[..], &u32::MAX.to_be_bytes(), &[1; 16]].concat(),
        [&42u32.to_be_bytes()[..], &0u32.to_be_bytes()].concat(),
        status(43, &[(1, 0)]),
        status(42, &[(1, 0), (0, 0)]),
    ] {
        let fake = Fake::start(move |mut peer, _| {
            peer.handshake(EXTENDED)?;
            let asked = peer.extended_request()?;
            peer.extended_chunk(true, 6, &asked, &payload)?;
            peer.hold()
        });
        let error = fake.source().extents(ByteSpan::new(0, 1 << 20)).unwrap_err();
        assert_eq!(error.kind, DiskErrorKind::Corrupt, "{}", words(&error));
    }
}

#[test]
fn a_million_runs_are_taken_and_one_is_made_of_them() {
    let fake = Fake::start(|mut peer, _| {
        peer.handshake(Offer { size: 1 << 32, ..EXTENDED })?;
        let asked = peer.extended_request()?;
        peer.extended_chunk(true, 6, &asked, &status(42, &vec![(4096, 3); 1 << 20]))?;
        peer.hold()
    });
    let whole = ByteSpan::new(0, 1 << 32);
    assert_eq!(fake.source().extents(whole).unwrap(), [Extent::zero(whole)]);
}

#[test]
fn a_server_without_go_cannot_have_long_headers() {
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (1, _) => panic!("EXPORT_NAME is forbidden by now"),
                (11, _) => peer.answer(11, ACK, &[])?,
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
    });
    let error = drover_nbd::NbdDisk::open_source(&fake.uri(), options()).err().unwrap();
    assert!(words(&error).contains("not GO"), "{}", words(&error));
}

#[test]
fn several_requests_in_flight_are_told_apart() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(EXTENDED)?;
        if number > 0 {
            let asked = [peer.extended_request()?, peer.extended_request()?];
            for (index, asked) in asked.iter().enumerate().rev() {
                let data =
                    [&asked.offset.to_be_bytes()[..], &vec![index as u8; asked.length as usize]].concat();
                peer.extended_chunk(true, 1, asked, &data)?;
            }
        }
        peer.hold()
    });
    let disk = fake.source();
    let mut lane = disk.open_lane().unwrap();
    submit_read(&mut *lane, 0, SPAN);
    submit_read(&mut *lane, 1, ByteSpan::new(0, 7));
    let (second, first) = (lane.complete().unwrap(), lane.complete().unwrap());
    assert_eq!((second.id, first.id), (1, 0));
    assert_eq!(bytes(second), vec![1; 7]);
    assert_eq!(bytes(first), vec![0; 0x1000]);
}
