//! A real `qemu-nbd`, from its start to its end.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use drover_qemu::{Access, ImageFormat, ImageServer, Qcow2Options, QemuErrorKind, create_qcow2};

struct Image {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// A qcow2 image of 8 MiB; `None` without QEMU's tools.
fn image() -> Option<Image> {
    for program in ["qemu-img", "qemu-nbd", "qemu-io"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: no {program}");
            return None;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk, 0.qcow2");
    create_qcow2(&path, 8 << 20, &Qcow2Options::default()).unwrap();
    Some(Image { folder, path })
}

fn io(uri: &str, command: &str) -> bool {
    let mut program = Command::new("qemu-io");
    if command.starts_with("read") {
        program.arg("-r");
    }
    let output = program.args(["-f", "raw", "-c", command, uri]).output().unwrap();
    output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("failed")
}

/// Processes whose command line has this text in it.
fn processes_with(text: &str) -> Vec<String> {
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        fs::read(entry.path().join("cmdline")).ok()
    });
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).filter(|line| line.contains(text)).collect()
}

fn is_in_time(mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(120);
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

#[test]
fn what_one_client_writes_another_reads_after_the_server_was_closed_and_opened() {
    let Some(image) = image() else { return };
    let server = ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Write).unwrap();
    assert!(io(server.uri(), "write -P 5 1M 64k"));
    assert!(io(server.uri(), "read -P 5 1M 64k"), "a second client is served after the first has gone");
    let socket = server.socket();
    server.close();
    assert!(!socket.exists() && !socket.parent().unwrap().exists());
    assert_eq!(processes_with(socket.to_str().unwrap()), Vec::<String>::new());
    let server = ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Read).unwrap();
    assert!(io(server.uri(), "read -P 5 1M 64k"));
    assert!(!io(server.uri(), "write -P 6 1M 64k"), "a server for reading takes no writes");
}

#[test]
fn several_clients_are_served_at_once() {
    let Some(image) = image() else { return };
    let server = ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Write).unwrap();
    let mut clients: Vec<UnixStream> =
        (0..20).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    for client in &mut clients {
        client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut greeting = [0; 8];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGIC");
    }
}

#[test]
fn an_image_in_use_is_refused_after_a_while_and_taken_as_soon_as_it_is_free() {
    let Some(image) = image() else { return };
    let first = ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Write).unwrap();
    let error = ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Write).unwrap_err();
    assert_eq!(error.kind, QemuErrorKind::Busy, "{}", error.chain());
    assert!(error.chain().contains("lock") && error.advice().is_some(), "{}", error.chain());
    let closing = thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        drop(first);
    });
    ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Write).unwrap();
    closing.join().unwrap();
}

#[test]
fn an_image_that_leans_on_another_file_is_not_served() {
    let Some(image) = image() else { return };
    let overlay = image.folder.path().join("overlay.qcow2");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "/etc/hostname"])
        .arg(&overlay)
        .status()
        .unwrap();
    assert!(made.success());
    let error = ImageServer::open(&overlay, ImageFormat::Qcow2, Access::Read).unwrap_err();
    assert!(error.chain().contains("backing file '/etc/hostname'"), "{}", error.chain());
}

#[test]
fn what_is_no_image_is_refused_in_words() {
    let Some(image) = image() else { return };
    let missing = image.folder.path().join("missing.raw");
    let error = ImageServer::open(&missing, ImageFormat::Raw, Access::Read).unwrap_err();
    assert_eq!(error.kind, QemuErrorKind::NotFound, "{}", error.chain());
    let text = image.folder.path().join("text.qcow2");
    fs::write(&text, "not an image").unwrap();
    let error = ImageServer::open(&text, ImageFormat::Qcow2, Access::Read).unwrap_err();
    assert_eq!(error.kind, QemuErrorKind::WrongFormat, "{}", error.chain());
}

#[test]
fn a_raw_image_that_starts_like_qcow2_is_served_as_it_is() {
    let Some(image) = image() else { return };
    let raw = image.folder.path().join("forged.raw");
    fs::copy(&image.path, &raw).unwrap();
    let server = ImageServer::open(&raw, ImageFormat::Raw, Access::Read).unwrap();
    assert!(io(server.uri(), "read -P 0x51 0 1"), "the first byte is the header's Q");
}

#[test]
fn a_kill_of_the_parent_leaves_no_server_no_folder_and_no_lock() {
    let Some(image) = image() else { return };
    for round in 0..3 {
        let (mut parent, socket) = spawn_parent(&image.path);
        assert!(io(&format!("nbd+unix:///?socket={}", socket.display()), "write -P 9 0 64k"));
        // With a client connected, and without.
        let client = (round == 1).then(|| UnixStream::connect(&socket).unwrap());
        parent.kill().unwrap();
        parent.wait().unwrap();
        let name = socket.to_str().unwrap();
        assert!(is_in_time(|| processes_with(name).is_empty()), "{:?}", processes_with(name));
        assert!(is_in_time(|| !socket.parent().unwrap().exists()));
        drop(client);
        ImageServer::open(&image.path, ImageFormat::Qcow2, Access::Write).unwrap();
    }
}

#[test]
fn a_signal_to_the_parents_group_does_not_reach_the_server() {
    let Some(image) = image() else { return };
    let (mut parent, socket) = spawn_parent(&image.path);
    let group_of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let field = |stat: &str| stat.rsplit(')').next().unwrap().split_whitespace().nth(2).unwrap().to_string();
    let servers: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(socket.to_str().unwrap()))
        })
        .collect();
    assert!(!servers.is_empty());
    let ours = field(&group_of(parent.id()));
    assert!(servers.iter().all(|pid| field(&group_of(*pid)) != ours));
    parent.kill().unwrap();
    parent.wait().unwrap();
}

/// Runs this test program again as a parent that serves the image and waits; gives its socket.
fn spawn_parent(image: &Path) -> (Child, PathBuf) {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serves_an_image_until_it_is_killed", "--nocapture"])
        .env(PARENT_OF, image)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let socket = lines.find_map(|line| Some(line.split_once("serving ")?.1.to_string())).unwrap();
    (parent, socket.into())
}

/// Not a test by itself: the parent of [`spawn_parent`].
#[test]
fn serves_an_image_until_it_is_killed() {
    let Some(image) = std::env::var_os(PARENT_OF) else { return };
    // From a thread that ends: the server belongs to the process.
    let opened =
        thread::spawn(move || ImageServer::open(Path::new(&image), ImageFormat::Qcow2, Access::Write));
    let server = opened.join().unwrap().unwrap();
    println!("serving {}", server.socket().display());
    thread::sleep(Duration::from_secs(120));
}

const PARENT_OF: &str = "DROVER_TEST_PARENT_OF";
