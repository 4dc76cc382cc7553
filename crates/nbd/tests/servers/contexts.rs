//! Dirty bitmaps, and the fence.

use std::path::Path;
use std::process::Command;

use drover_disk::{Disk, DiskErrorKind};
use drover_nbd::{DirtyExtent, NbdDisk, NbdOptions};
use drover_types::ByteSpan;

use crate::fake::*;
use crate::process::{installed, nbdkit, qemu_nbd};
use crate::{Dir, text, words};

fn with_bitmap(name: &str) -> NbdOptions {
    NbdOptions { dirty_bitmap: Some(name.to_string()), ..options() }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A qcow2 image of 64 MiB with bitmaps, and writes after they were made.
fn image(dir: &Dir) -> std::path::PathBuf {
    let image = dir.file("disk.qcow2");
    let path = text(&image);
    run("qemu-img", &["create", "-q", "-f", "qcow2", path, "64M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 1M", path]);
    run("qemu-img", &["bitmap", "--add", path, "monday"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 2 8M 128k", "-c", "write -P 3 20M 1", path]);
    run("qemu-img", &["bitmap", "--add", "-g", "1M", path, "tuesday"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -z 63M 512", path]);
    image
}

fn dirty_spans(disk: &NbdDisk) -> Vec<ByteSpan> {
    let (mut at, mut spans) = (0, Vec::new());
    while at < disk.size() {
        for extent in disk.dirty(ByteSpan::from_bounds(at, disk.size())).unwrap() {
            assert_eq!(extent.span.offset, at);
            at = extent.span.end();
            if extent.dirty {
                spans.push(extent.span);
            }
        }
    }
    spans
}

fn serve(image: &Path, bitmaps: &[&str]) -> crate::process::Server {
    let mut arguments = vec!["--persistent", "--shared=8", "--read-only", "--format=qcow2"];
    arguments.extend(bitmaps.iter().flat_map(|name| ["-B", name]));
    arguments.push(text(image));
    qemu_nbd(&arguments)
}

#[test]
fn a_bitmap_tells_what_was_written_since_it_was_made() {
    if !installed("qemu-nbd") || !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let dir = Dir::new();
    let image = image(&dir);
    let server = serve(&image, &["monday", "tuesday"]);
    let open = |name: &str| NbdDisk::open_source(&server.uri(), with_bitmap(name)).unwrap();
    const MIB: u64 = 1 << 20;
    let monday = open("monday");
    let expected = [
        ByteSpan::new(8 * MIB, 128 << 10),
        ByteSpan::new(20 * MIB, 64 << 10),
        ByteSpan::new(63 * MIB, 64 << 10),
    ];
    assert_eq!(dirty_spans(&monday), expected);
    // Beside it, the map of what is allocated still works.
    let first = monday.extents(ByteSpan::new(0, 64 * MIB)).unwrap()[0];
    assert_eq!((first.span, first.kind), (ByteSpan::new(0, MIB), drover_types::ExtentKind::Allocated));
    assert_eq!(dirty_spans(&open("tuesday")), [ByteSpan::new(63 * MIB, MIB)]);
    // A part of a run, at odd bounds.
    let part = monday.dirty(ByteSpan::new(8 * MIB + 1000, 5000)).unwrap();
    assert_eq!(part, [DirtyExtent { span: ByteSpan::new(8 * MIB + 1000, 5000), dirty: true }]);
}

#[test]
fn a_bitmap_that_is_not_there_is_told_with_those_that_are() {
    if !installed("qemu-nbd") || !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let dir = Dir::new();
    let image = image(&dir);
    let server = serve(&image, &["monday"]);
    let error = NbdDisk::open_source(&server.uri(), with_bitmap("friday")).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Unsupported);
    let said = words(&error);
    assert!(said.contains("'qemu:dirty-bitmap:monday'") && said.contains("friday"), "{said}");
    let plain = NbdDisk::open_source(&server.uri(), options()).unwrap();
    let error = plain.dirty(ByteSpan::new(0, 512)).unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Unsupported);
    let list = drover_nbd::list(&server.uri(), &options()).unwrap();
    assert_eq!(list.exports[0].contexts, ["base:allocation", "qemu:dirty-bitmap:monday"]);
}

/// A server that knows no contexts must not look like one where nothing is dirty.
#[test]
fn without_contexts_a_bitmap_is_refused() {
    for structured in [true, false] {
        let fake = Fake::start(move |mut peer, _| {
            peer.greet(3)?;
            loop {
                match peer.option()? {
                    (8, _) if structured => peer.answer(8, ACK, &[])?,
                    (10, _) => peer.answer(10, ACK, &[])?,
                    (7, _) => {
                        peer.export_info(7, OFFER)?;
                        peer.answer(7, ACK, &[])?;
                    }
                    (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
                }
            }
        });
        let error = NbdDisk::open_source(&fake.uri(), with_bitmap("monday")).err().unwrap();
        assert!(words(&error).contains("no context 'qemu:dirty-bitmap:monday'"), "{}", words(&error));
    }
}

/// Contexts and their runs.
type Statuses = &'static [(u32, &'static [(u32, u32)])];

/// The handshake of a server with both contexts, then one answer to a block status.
fn tells(offers: &'static [(u32, &'static str)], statuses: Statuses) -> Fake {
    Fake::start(move |mut peer, _| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (7, _) => {
                    peer.export_info(7, OFFER)?;
                    peer.answer(7, ACK, &[])?;
                    break;
                }
                (8, _) => peer.answer(8, ACK, &[])?,
                (10, _) => {
                    for (id, name) in offers {
                        peer.answer(10, 4, &[&id.to_be_bytes()[..], name.as_bytes()].concat())?;
                    }
                    peer.answer(10, ACK, &[])?;
                }
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
        let asked = peer.request()?;
        for (index, (id, runs)) in statuses.iter().enumerate() {
            let mut payload = id.to_be_bytes().to_vec();
            runs.iter().for_each(|(length, flags)| {
                payload.extend([length.to_be_bytes(), flags.to_be_bytes()].concat());
            });
            peer.chunk(index + 1 == statuses.len(), 5, asked.cookie, &payload)?;
        }
        peer.hold()
    })
}

const BOTH: &[(u32, &str)] = &[(1, "base:allocation"), (2, "qemu:dirty-bitmap:b")];

#[test]
fn each_context_is_told_once_and_by_its_number() {
    let span = ByteSpan::new(0, 65536);
    let open = |fake: &Fake| NbdDisk::open_source(&fake.uri(), with_bitmap("b"));
    let fake = tells(BOTH, &[(2, &[(512, 1), (1024, 2)]), (1, &[(65536, 3)])]);
    let expected = [
        DirtyExtent { span: ByteSpan::new(0, 512), dirty: true },
        DirtyExtent { span: ByteSpan::new(512, 1024), dirty: false },
    ];
    assert_eq!(open(&fake).unwrap().dirty(span).unwrap(), expected);
    let wrong: [Statuses; 3] =
        [&[(2, &[(512, 1)]), (2, &[(512, 0)])], &[(1, &[(65536, 3)])], &[(3, &[(512, 1)])]];
    for statuses in wrong {
        let fake = tells(BOTH, statuses);
        let error = open(&fake).unwrap().dirty(span).unwrap_err();
        assert_eq!(error.kind, DiskErrorKind::Corrupt, "{}", words(&error));
    }
    let offers: [&'static [(u32, &'static str)]; 3] = [
        &[(1, "base:allocation"), (1, "qemu:dirty-bitmap:b")],
        &[(1, "qemu:dirty-bitmap:b"), (2, "qemu:dirty-bitmap:b")],
        &[(1, "qemu:dirty-bitmap:c")],
    ];
    for offers in offers {
        let error = open(&tells(offers, &[])).err().unwrap();
        assert_eq!(error.kind, DiskErrorKind::Corrupt, "{}", words(&error));
    }
}

/// An epoch is carried where the server knows of it, and no harm elsewhere.
#[test]
fn a_server_that_keeps_no_epochs_is_written_to_unfenced() {
    let fenced = NbdOptions { fence: Some(3), ..options() };
    let offers: [(&'static [(u32, &'static str)], bool); 2] =
        [(&[(1, "base:allocation")], false), (&[(1, "base:allocation"), (9, "drover:fence=3")], true)];
    for (offers, expected) in offers {
        let fake = tells(offers, &[(1, &[(65536, 3)])]);
        let disk = NbdDisk::open_source(&fake.uri(), fenced.clone()).unwrap();
        assert_eq!(disk.is_fenced(), expected);
    }
    let fake = tells(&[(9, "drover:fence=4")], &[]);
    let error = NbdDisk::open_source(&fake.uri(), fenced.clone()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Corrupt, "{}", words(&error));
    if installed("nbdkit") {
        let server = nbdkit(&["memory", "1M"]);
        assert!(!NbdDisk::open_target(&server.uri(), fenced).unwrap().is_fenced());
    }
}
