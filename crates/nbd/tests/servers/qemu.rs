use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use drover_disk::{Buffer, Disk, Lane, Request, Work, conformance};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::ByteSpan;

use crate::process::{installed, qemu_nbd};
use crate::{Dir, text};

fn qemu_img(arguments: &[&str]) {
    let output = Command::new("qemu-img").args(arguments).output().unwrap();
    assert!(output.status.success(), "qemu-img {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The image as raw bytes, read beside the running server: after a flush it is all there.
fn as_raw(dir: &Dir, image: &Path, format: &str) -> Vec<u8> {
    let raw = dir.file("raw");
    qemu_img(&["convert", "-U", "-f", format, "-O", "raw", text(image), text(&raw)]);
    std::fs::read(raw).unwrap()
}

/// qemu-nbd counts in sectors, so sizes are rounded up.
fn writes(format: &str, shared: &str) {
    if !installed("qemu-nbd") || !installed("qemu-img") {
        return;
    }
    let dir = Dir::new();
    let image = dir.file("disk");
    let server = Mutex::new(None);
    conformance::check_writer(
        |size| {
            server.lock().unwrap().take();
            let bytes = size.next_multiple_of(512).to_string();
            qemu_img(&["create", "-q", "-f", format, text(&image), &bytes]);
            let started = qemu_nbd(&["--persistent", shared, "--format", format, text(&image)]);
            let disk = NbdDisk::open_target(&started.uri(), NbdOptions::default()).unwrap();
            *server.lock().unwrap() = Some(started);
            Arc::new(disk)
        },
        || as_raw(&dir, &image, format),
    );
}

#[test]
fn writes_raw_images() {
    writes("raw", "--shared=8");
}

#[test]
fn writes_qcow2_images() {
    writes("qcow2", "--shared=8");
}

#[test]
fn writes_through_the_only_connection_that_is_allowed() {
    writes("qcow2", "--shared=1");
}

#[test]
fn reads_a_server_that_takes_one_client_and_ends_with_it() {
    if !installed("qemu-nbd") {
        return;
    }
    let dir = Dir::new();
    let (path, content) = (dir.file("disk"), conformance::pattern(1 << 20));
    std::fs::write(&path, &content).unwrap();
    let server = qemu_nbd(&["--format", "raw", "--read-only", text(&path)]);
    let disk = NbdDisk::open_source(&server.uri(), NbdOptions::default()).unwrap();
    let started = Instant::now();
    conformance::check_reader(&disk, &content);
    println!("one client: suite in {:?}, lanes {}", started.elapsed(), disk.limits().lanes_max);
}

#[test]
fn lanes_share_the_connections_that_a_server_lets_in() {
    if !installed("qemu-nbd") {
        return;
    }
    let dir = Dir::new();
    let (path, content) = (dir.file("disk"), conformance::pattern(1 << 20));
    std::fs::write(&path, &content).unwrap();
    std::thread::scope(|scope| {
        for shared in ["--shared=2", "--shared=3", "--shared=4"] {
            let (path, content) = (&path, &content);
            scope.spawn(move || {
                let server =
                    qemu_nbd(&["--persistent", shared, "--format", "raw", "--read-only", text(path)]);
                let disk = NbdDisk::open_source(&server.uri(), NbdOptions::default()).unwrap();
                // Twice: connections that were given back may be had again.
                for _ in 0..2 {
                    let mut lanes: Vec<_> = (0..8).map(|_| disk.open_lane().unwrap()).collect();
                    for (number, lane) in lanes.iter_mut().enumerate() {
                        let start = number << 12;
                        assert!(
                            read(lane.as_mut(), start) == content[start..start + 4096],
                            "{shared} {number}"
                        );
                    }
                }
            });
        }
    });
}

fn read(lane: &mut dyn Lane, start: usize) -> Vec<u8> {
    let span = ByteSpan::new(start as u64, 4096);
    lane.submit(Request { id: 1, span, work: Work::Read(Buffer::zeroed(4096)) });
    let done = lane.complete().unwrap();
    done.result.unwrap();
    let Work::Read(bytes) = done.work else { panic!("a read stays one") };
    bytes.to_vec()
}
