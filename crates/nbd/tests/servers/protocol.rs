//! The handshake.

use drover_disk::{Disk, DiskError, DiskErrorKind};
use drover_nbd::NbdDisk;
use drover_types::ByteSpan;

use crate::fake::*;
use crate::{bytes, read, words};

fn refused(fake: &Fake) -> DiskError {
    refused_with(fake, options())
}

fn refused_with(fake: &Fake, options: drover_nbd::NbdOptions) -> DiskError {
    match NbdDisk::open_source(&fake.uri(), options) {
        Err(error) => error,
        Ok(_) => panic!("should have been refused"),
    }
}

#[test]
fn what_is_no_nbd_server_is_told_so() {
    for greeting in ["HTTP/1.1 400 Bad Request\r\n\r\n", "NBDMAGIC\x00\x00\x42\x02\x11\x18\x12\x53........"] {
        let fake = Fake::start(move |mut peer, _| peer.send(greeting));
        let error = refused(&fake);
        assert_eq!(error.kind, DiskErrorKind::Corrupt);
        assert!(words(&error).contains("not a sound NBD server"), "{}", words(&error));
    }
}

#[test]
fn a_server_without_options_serves_as_well() {
    for (handshake_flags, padding) in [(0u16, 124), (2, 0), (3, 0), (1, 124)] {
        let fake = Fake::start(move |mut peer, _| {
            let ours = peer.greet(handshake_flags)?;
            assert_eq!(ours, u32::from(handshake_flags));
            loop {
                match peer.option()? {
                    (1, name) => {
                        assert_eq!(name, b"disk");
                        peer.send((1u64 << 20).to_be_bytes())?;
                        peer.send((1 | READ_ONLY | MULTI).to_be_bytes())?;
                        peer.send(vec![0; padding])?;
                        break;
                    }
                    (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
                }
            }
            loop {
                let asked = peer.request()?;
                peer.simple(0, asked.cookie, &vec![7; asked.length as usize])?;
            }
        });
        let disk = fake.source();
        assert_eq!(disk.size(), 1 << 20);
        assert!(!disk.features().extents);
        let mut lane = disk.open_lane().unwrap();
        assert_eq!(bytes(read(&mut *lane, ByteSpan::new(5, 1000))), vec![7; 1000]);
        let whole = ByteSpan::new(0, disk.size());
        assert_eq!(disk.extents(whole).unwrap(), [drover_types::Extent::allocated(whole)]);
    }
}

#[test]
fn an_unknown_export_is_answered_with_those_there_are() {
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (7, _) => peer.answer(7, 0x8000_0006, b"no such thing")?,
                (3, _) => {
                    for name in ["web01", "db01"] {
                        let length = (name.len() as u32).to_be_bytes();
                        peer.answer(3, 2, &[&length, name.as_bytes(), b"a description"].concat())?;
                    }
                    peer.answer(3, ACK, &[])?;
                }
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
    });
    let error = refused(&fake);
    assert_eq!(error.kind, DiskErrorKind::Gone);
    assert!(words(&error).contains("no export 'disk'; the server has 'web01', 'db01'"), "{}", words(&error));
}

#[test]
fn refusals_are_told_by_what_they_are() {
    for (answer, kind, expected) in [
        (0x8000_0005u32, DiskErrorKind::Denied, "demands TLS"),
        (0x8000_0002, DiskErrorKind::Denied, "policy forbids 'disk' (not you)"),
        (0x8000_0007, DiskErrorKind::Transient, "shutting down"),
        (0x8000_0003, DiskErrorKind::Denied, "refuses 'disk'"),
    ] {
        let fake = Fake::start(move |mut peer, _| {
            peer.greet(3)?;
            loop {
                match peer.option()? {
                    (7, _) => peer.answer(7, answer, b"not you")?,
                    (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
                }
            }
        });
        let error = refused(&fake);
        assert_eq!(error.kind, kind, "{}", words(&error));
        assert!(words(&error).contains(expected), "{}", words(&error));
    }
}

#[test]
fn answers_without_end_or_sense_are_cut_off() {
    let scripts: [fn(&mut Peer) -> std::io::Result<()>; 6] = [
        |peer| loop {
            peer.answer(7, INFO, &[0, 9])?;
        },
        |peer| peer.answer(6, ACK, &[]),
        |peer| peer.send([0xff; 20]),
        // An answer of 4 GiB.
        |peer| {
            peer.send(
                [&0x0003_e889_0455_65a9u64.to_be_bytes()[..], &[0, 0, 0, 7, 0, 0, 0, 3, 255, 255, 255, 255]]
                    .concat(),
            )
        },
        |peer| peer.answer(7, ACK, &[]),
        // A minimum block size of 3.
        |peer| peer.answer(7, INFO, &[0, 3, 0, 0, 0, 3, 0, 0, 16, 0, 1, 0, 0, 0]),
    ];
    for script in scripts {
        let fake = Fake::start(move |mut peer, _| {
            peer.greet(3)?;
            loop {
                match peer.option()? {
                    (7, _) => script(&mut peer)?,
                    (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
                }
            }
        });
        let error = refused(&fake);
        assert_eq!(error.kind, DiskErrorKind::Corrupt, "{}", words(&error));
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let fake = Fake::start(|peer, _| {
        std::thread::sleep(PATIENCE * 3);
        drop(peer);
        Ok(())
    });
    assert_eq!(refused_with(&fake, hasty()).kind, DiskErrorKind::Transient);
}

#[test]
fn no_server_is_an_error_to_try_again() {
    let dir = crate::Dir::new();
    let uri = drover_nbd::NbdUri::unix(dir.file("none"), "");
    let error = NbdDisk::open_source(&uri, options()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Gone);
    let error = NbdDisk::open_source(&drover_nbd::NbdUri::tcp("127.0.0.1", 1, ""), options()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Transient);
}

#[test]
fn a_target_must_be_writable_and_able_to_make_writes_safe() {
    for (flags, kind) in [(1 | READ_ONLY | FLUSH, DiskErrorKind::Denied), (1, DiskErrorKind::Unsupported)] {
        let fake = Fake::start(move |mut peer, _| peer.handshake(Offer { flags, ..OFFER }));
        let error = NbdDisk::open_target(&fake.uri(), options()).err().unwrap();
        assert_eq!(error.kind, kind, "{}", words(&error));
    }
}
