use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use drover_disk::{Disk, DiskErrorKind, conformance};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::{ByteSpan, ExtentKind};

use crate::process::{Server, installed, nbdkit};
use crate::{Dir, bytes, read, read_all, submit_read, text, words, write, zero};

fn source(server: &Server) -> NbdDisk {
    NbdDisk::open_source(&server.uri(), NbdOptions::default()).unwrap()
}

fn target(server: &Server) -> NbdDisk {
    NbdDisk::open_target(&server.uri(), NbdOptions::default()).unwrap()
}

/// A file with the suite's pattern; its holes are real ones.
fn sparse_file(dir: &Dir, size: u64) -> (PathBuf, Vec<u8>) {
    let (path, content) = (dir.file("disk"), conformance::pattern(size));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(size).unwrap();
    for (index, block) in content.chunks(4096).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            std::os::unix::fs::FileExt::write_all_at(&file, block, index as u64 * 4096).unwrap();
        }
    }
    (path, content)
}

fn reads_with(filters: &[&str], size: u64) {
    let dir = Dir::new();
    let (path, content) = sparse_file(&dir, size);
    let mut arguments = vec!["--readonly"];
    arguments.extend(filters.iter().take_while(|text| text.starts_with('-')));
    let path = text(&path);
    arguments.extend(["file", path]);
    arguments.extend(filters.iter().skip_while(|text| text.starts_with('-')));
    conformance::check_reader(&source(&nbdkit(&arguments)), &content);
}

/// Runs the writer suite on files behind nbdkit, of sizes rounded up to `grain`.
fn writes_with(filters: &[&str], grain: u64) {
    let dir = Dir::new();
    let path = dir.file("disk");
    let servers = Mutex::new(Vec::new());
    conformance::check_writer(
        |size| {
            servers.lock().unwrap().clear();
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(size.next_multiple_of(grain)).unwrap();
            let mut arguments: Vec<_> =
                filters.iter().copied().take_while(|text| text.starts_with('-')).collect();
            arguments.extend(["file", text(&path)]);
            arguments.extend(filters.iter().skip_while(|text| text.starts_with('-')));
            let server = nbdkit(&arguments);
            let disk = target(&server);
            servers.lock().unwrap().push(server);
            Arc::new(disk)
        },
        || std::fs::read(&path).unwrap(),
    );
}

#[test]
fn reads_files_of_any_size() {
    if installed("nbdkit") {
        for size in [1, 511, 513, 65537, (3 << 20) + 17] {
            reads_with(&[], size);
        }
    }
}

#[test]
fn reads_through_what_filters_do_to_a_server() {
    if installed("nbdkit") {
        reads_with(&["--filter=noextents"], 3 << 20);
        reads_with(&["--no-sr"], 3 << 20);
        reads_with(&["--filter=noparallel"], 1 << 20);
        reads_with(&["--filter=multi-conn", "multi-conn-mode=disable"], 3 << 20);
        reads_with(&["--filter=delay", "rdelay=2ms"], 1 << 20);
        let policy = ["--filter=blocksize-policy", "blocksize-minimum=512", "blocksize-maximum=64K"];
        reads_with(&[&policy[..], &["blocksize-error-policy=error"]].concat(), 3 << 20);
        for maximum in ["blocksize-maximum=32K", "blocksize-maximum=4K"] {
            let policy =
                ["--filter=blocksize-policy", "blocksize-preferred=512", "blocksize-minimum=512", maximum];
            reads_with(&[&policy[..], &["blocksize-error-policy=error"]].concat(), 3 << 20);
        }
    }
}

#[test]
fn writes_files_of_any_size() {
    if installed("nbdkit") {
        writes_with(&[], 1);
    }
}

#[test]
fn writes_through_what_filters_do_to_a_server() {
    if installed("nbdkit") {
        writes_with(&["--filter=nozero"], 1);
        writes_with(&["--no-sr"], 1);
        writes_with(&["--filter=multi-conn", "multi-conn-mode=disable"], 1);
        let policy = ["--filter=blocksize-policy", "blocksize-minimum=4096", "blocksize-maximum=64K"];
        writes_with(&[&policy[..], &["blocksize-error-policy=error"]].concat(), 4096);
        let policy = ["--filter=blocksize-policy", "blocksize-preferred=512", "blocksize-minimum=512"];
        let policy = [&policy[..], &["blocksize-maximum=8K", "blocksize-error-policy=error"]].concat();
        writes_with(&policy, 512);
    }
}

#[test]
fn one_that_ends_further_connections_is_read_and_written_over_the_first() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    let path = dir.file("disk");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let part = ByteSpan::new(4096, 4096);
    let server = nbdkit(&["--filter=limit", "file", text(&path), "limit=1"]);
    let disk = target(&server);
    // It says that it takes several, so it is asked a few times.
    let tries = (1..=10).find(|_| match disk.open_lane() {
        Ok(mut lane) => {
            write(&mut *lane, part, 7).result.unwrap();
            disk.flush().unwrap();
            true
        }
        Err(error) => {
            assert_eq!(error.kind, DiskErrorKind::Transient, "{error}");
            false
        }
    });
    assert!(tries.is_some_and(|tries| tries > 1), "{tries:?}");
    // From then on all share it.
    let mut lanes = [disk.open_lane().unwrap(), disk.open_lane().unwrap()];
    for lane in &mut lanes {
        assert_eq!(bytes(read(&mut **lane, part)), [7; 4096]);
    }
}

#[test]
fn reads_over_tcp() {
    if !installed("nbdkit") {
        return;
    }
    let serve = || {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let number = port.to_string();
        let mut command = std::process::Command::new("nbdkit");
        command.args(["--exit-with-parent", "-f", "-i", "127.0.0.1", "-p", &number, "pattern", "8M"]);
        (command.spawn().unwrap(), format!("nbd://localhost:{port}/").parse::<drover_nbd::NbdUri>().unwrap())
    };
    let (mut child, mut uri) = serve();
    let started = Instant::now();
    let disk = loop {
        match NbdDisk::open_source(&uri, NbdOptions::default()) {
            Ok(disk) => break disk,
            Err(error) => assert!(started.elapsed().as_secs() < 120, "{}", words(&error)),
        }
        // Somebody was faster and has the port.
        if child.try_wait().unwrap().is_some() {
            (child, uri) = serve();
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    // The pattern plugin: each 8 bytes hold their own offset.
    let content: Vec<u8> = (0..8u64 << 20).step_by(8).flat_map(u64::to_be_bytes).collect();
    conformance::check_reader(&disk, &content);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn maps_of_sparse_disks_lead_to_all_data() {
    if !installed("nbdkit") {
        return;
    }
    let server = nbdkit(&["sparse-random", "size=64M", "seed=1"]);
    let disk = source(&server);
    let content = read_all(&disk);
    let mut at = 0;
    let mut zeros = 0;
    while at < disk.size() {
        for extent in disk.extents(ByteSpan::from_bounds(at, disk.size())).unwrap() {
            let bytes = &content[extent.span.offset as usize..extent.span.end() as usize];
            if extent.kind == ExtentKind::Zero {
                assert!(bytes.iter().all(|byte| *byte == 0));
                zeros += extent.span.length;
            }
            at = extent.span.end();
        }
    }
    assert!(zeros > 32 << 20, "{zeros} bytes told as zero");
}

#[test]
fn errors_of_a_server_are_told_apart_and_pass() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    let flag = dir.file("fail");
    let file_flag = format!("error-file={}", text(&flag));
    for (error, kind) in [("EIO", DiskErrorKind::Transient), ("ENOSPC", DiskErrorKind::OutOfSpace)] {
        let setting = format!("error-pwrite={error}");
        let rate = "error-pwrite-rate=100%";
        let file = file_flag.replace("error-file", "error-pwrite-file");
        let server = nbdkit(&["--filter=error", "memory", "1M", &setting, rate, &file]);
        let disk = target(&server);
        let mut lane = disk.open_lane().unwrap();
        let span = ByteSpan::new(4096, 4096);
        std::fs::write(&flag, "").unwrap();
        let failed = write(&mut *lane, span, 1).result.unwrap_err();
        assert_eq!(failed.kind, kind, "{}", words(&failed));
        std::fs::remove_file(&flag).unwrap();
        write(&mut *lane, span, 1).result.unwrap();
        disk.flush().unwrap();
        assert_eq!(bytes(read(&mut *lane, span)), vec![1; 4096]);
    }
}

#[test]
fn requests_overlap_on_a_slow_server() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    let log = dir.file("log");
    let logfile = format!("logfile={}", text(&log));
    let server = nbdkit(&["--filter=log", "--filter=delay", "memory", "64M", "rdelay=1500ms", &logfile]);
    let disk = source(&server);
    let mut lane = disk.open_lane().unwrap();
    for id in 0..16 {
        submit_read(&mut *lane, id, ByteSpan::new(id << 20, 1 << 20));
    }
    while let Some(completion) = lane.complete() {
        completion.result.unwrap();
    }
    let (mut open, mut most) = (0, 0);
    for line in std::fs::read_to_string(&log).unwrap().lines().filter(|line| line.contains("Read id=")) {
        open += if line.contains("return=") { -1 } else { 1 };
        most = most.max(open);
    }
    // The server's own bound is 16 threads.
    assert!(most >= 8 && open == 0, "{most} reads at a time, {open} unanswered");
}

#[test]
fn a_killed_server_is_transient_and_a_flush_cannot_hide_it() {
    if !installed("nbdkit") {
        return;
    }
    let mut server = nbdkit(&["memory", "1M"]);
    let disk = target(&server);
    let mut lane = disk.open_lane().unwrap();
    write(&mut *lane, ByteSpan::new(0, 4096), 1).result.unwrap();
    zero(&mut *lane, ByteSpan::new(0, 512)).result.unwrap();
    server.kill();
    assert_eq!(disk.flush().unwrap_err().kind, DiskErrorKind::Transient);
    assert_eq!(read(&mut *lane, ByteSpan::new(0, 512)).result.unwrap_err().kind, DiskErrorKind::Transient);
    assert!(lane.is_broken());
    assert!(disk.open_lane().is_err());
}

#[test]
fn an_unknown_export_names_those_there_are() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    std::fs::write(dir.file("web01"), [0; 512]).unwrap();
    let directory = format!("dir={}", text(&dir.file("")));
    let server = nbdkit(&["file", &directory]);
    let uri = drover_nbd::NbdUri::unix(&server.socket, "web02");
    let error = NbdDisk::open_source(&uri, NbdOptions::default()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Gone, "{}", words(&error));
    assert!(words(&error).contains("'web01'"), "{}", words(&error));
}
