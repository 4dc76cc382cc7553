//! Lists of exports.

use drover_disk::DiskErrorKind;
use drover_nbd::{NbdUri, list};

use crate::fake::*;
use crate::process::{installed, nbdkit};
use crate::{Dir, text, words};

#[test]
fn the_files_of_a_folder_are_listed_with_what_they_are() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    for (name, size) in [("web01", 1000), ("größe 2", 4096)] {
        std::fs::File::create(dir.file(name)).unwrap().set_len(size).unwrap();
    }
    let directory = format!("dir={}", text(&dir.file("")));
    let server = nbdkit(&["--readonly", "file", &directory]);
    let mut found = list(&server.uri(), &options()).unwrap();
    assert!(!found.more);
    found.exports.sort_by_key(|export| export.size);
    let names: Vec<_> = found.exports.iter().map(|export| (export.name.as_str(), export.size)).collect();
    assert_eq!(names, [("web01", Some(1000)), ("größe 2", Some(4096))]);
    for export in &found.exports {
        assert!(!export.is_writable() && export.is_multi_conn() && export.refusal.is_none());
        assert_eq!(export.contexts, ["base:allocation"]);
        // What is listed can be opened.
        let uri = NbdUri::unix(&server.socket, &export.name);
        drover_nbd::NbdDisk::open_source(&uri, options()).unwrap();
    }
}

#[test]
fn old_servers_cannot_list() {
    if !installed("nbdkit") {
        return;
    }
    let server = nbdkit(&["--oldstyle", "memory", "1M"]);
    let error = list(&server.uri(), &options()).unwrap_err();
    assert!(error.kind == DiskErrorKind::Denied && words(&error).contains("too old"), "{}", words(&error));
}

fn listing(answer: impl Fn(&mut Peer) -> std::io::Result<()> + Send + Sync + 'static) -> Fake {
    Fake::start(move |mut peer, _| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (3, _) => answer(&mut peer)?,
                (6, data) if data.ends_with(b"secret") || data.starts_with(b"\0\0\0\x06secret") => {
                    peer.answer(6, 0x8000_0002, b"not \x1b[1myou")?;
                }
                (6, _) => {
                    peer.export_info(6, OFFER)?;
                    peer.answer(6, INFO, b"\0\x02the \"big\" one")?;
                    peer.answer(6, ACK, &[])?;
                }
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
    })
}

fn entry(name: &[u8], description: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name, description].concat()
}

#[test]
fn what_an_export_does_not_tell_is_said() {
    let fake = listing(|peer| {
        peer.answer(3, 2, &entry(b"", b""))?;
        peer.answer(3, 2, &entry(b"secret", b"for few"))?;
        peer.answer(3, ACK, &[])
    });
    let found = list(&fake.uri(), &options()).unwrap().exports;
    assert_eq!((found[0].size, found[0].description.as_str()), (Some(OFFER.size), "the \"big\" one"));
    assert_eq!((found[1].size, found[1].description.as_str()), (None, "for few"));
    let refusal = found[1].refusal.as_deref().unwrap();
    assert!(refusal.contains("policy forbids 'secret'") && !refusal.contains('\x1b'), "{refusal}");
}

#[test]
fn lists_are_bounded() {
    let fake = listing(|peer| {
        for number in 0..1500u32 {
            peer.answer(3, 2, &entry(number.to_string().as_bytes(), b""))?;
        }
        peer.answer(3, ACK, &[])
    });
    let found = list(&fake.uri(), &drover_nbd::NbdOptions::default()).unwrap();
    assert!(found.more && found.exports.len() == 1000);
    // Without end.
    let fake = listing(|peer| {
        loop {
            peer.answer(3, 2, &entry(b"again", b""))?;
        }
    });
    let error = list(&fake.uri(), &hasty()).unwrap_err();
    assert!(matches!(error.kind, DiskErrorKind::Corrupt | DiskErrorKind::Transient), "{}", words(&error));
}

#[test]
fn lists_that_make_no_sense_are_corrupt() {
    type Script = fn(&mut Peer) -> std::io::Result<()>;
    let scripts: [Script; 4] = [
        |peer| peer.answer(3, 2, &[0, 0, 0, 9, b'x']),
        |peer| peer.answer(3, 2, &u32::MAX.to_be_bytes()),
        |peer| peer.answer(3, 3, &entry(b"x", b"")),
        |peer| {
            peer.answer(3, 2, &entry(&[b'x'; 5000], b""))?;
            peer.answer(3, ACK, &[])
        },
    ];
    for script in scripts {
        let error = list(&listing(script).uri(), &options()).unwrap_err();
        assert_eq!(error.kind, DiskErrorKind::Corrupt, "{}", words(&error));
    }
    let fake = listing(|peer| peer.answer(3, 0x8000_0002, b"go \x07away"));
    let said = words(&list(&fake.uri(), &options()).unwrap_err());
    assert!(said.contains("does not list its exports (go \\u{7}away)"), "{said}");
}
