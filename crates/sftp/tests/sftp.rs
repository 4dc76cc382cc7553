//! `SftpDisk` against OpenSSH's own server and against servers that are broken or hostile.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_disk::conformance::{check_reader, pattern};
use drover_disk::{Buffer, Disk, DiskErrorKind, Request, Work};
use drover_sftp::{SftpDisk, SftpOptions};
use drover_types::ByteSpan;

const SERVERS: [&str; 2] = ["/usr/lib/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];

/// A stand-in for ssh: a script with this body.
fn ssh(folder: &Path, body: &str) -> SftpOptions {
    let program = folder.join("ssh");
    drover_lab::put_script(&program, body).unwrap();
    SftpOptions { program, timeout: Duration::from_secs(120) }
}

fn server() -> Option<&'static str> {
    let found = SERVERS.into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        println!("skipped: OpenSSH's sftp-server is not installed");
    }
    found
}

fn open(path: &Path, options: SftpOptions) -> Result<SftpDisk, drover_disk::DiskError> {
    SftpDisk::open(&format!("ssh://host{}", path.display()).parse().unwrap(), options)
}

fn refused(result: Result<SftpDisk, drover_disk::DiskError>) -> (DiskErrorKind, String) {
    let Err(error) = result else { panic!("should have failed") };
    (error.kind, format!("{error}: {}", error.source))
}

fn file(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("a disk.raw");
    std::fs::write(&path, bytes).unwrap();
    PathBuf::from(path.to_str().unwrap().replace(' ', "%20"))
}

#[test]
fn passes_the_suite_for_readers_with_the_real_server() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    for size in [1, 511, 65_537, (3 << 20) + 17] {
        let content = pattern(size);
        let path = file(folder.path(), &content);
        check_reader(&open(&path, ssh(folder.path(), &format!("exec {server}"))).unwrap(), &content);
    }
}

#[test]
fn ssh_is_given_what_keeps_it_quiet_and_safe() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), b"x");
    let log = folder.path().join("log");
    let options = ssh(folder.path(), &format!("printf '%s|' \"$@\" > {}; exec {server}", log.display()));
    let uri = format!("ssh://me@host:2222{}", path.display());
    SftpDisk::open(&uri.parse().unwrap(), options).unwrap();
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("|BatchMode=yes|") && said.ends_with("|-p|2222|-l|me|-s|--|host|sftp|"), "{said}");
}

#[test]
fn what_is_no_disk_is_refused_in_words() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = ssh(folder.path(), &format!("exec {server}"));
    let (kind, text) = refused(open(Path::new("/no/such/file"), options.clone()));
    assert!(kind == DiskErrorKind::Gone && text.contains("No such file"), "{text}");
    let (kind, text) = refused(open(Path::new("/dev/null"), options.clone()));
    assert!(kind == DiskErrorKind::Unsupported && text.contains("no regular file"), "{text}");
    let path = file(folder.path(), b"x");
    let (kind, text) =
        refused(open(&path, SftpOptions { program: "/no/such/ssh".into(), ..options.clone() }));
    assert!(kind == DiskErrorKind::Gone && text.contains("/no/such/ssh"), "{text}");
    let denied = ssh(folder.path(), "echo 'me@host: Permission denied (publickey).' >&2; exit 255");
    let (kind, text) = refused(open(&path, denied));
    assert!(
        kind == DiskErrorKind::Denied && text.contains("ssh ended: me@host: Permission denied"),
        "{text}"
    );
}

#[test]
fn a_file_that_changed_is_told_when_another_lane_is_opened() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), b"before");
    let disk = open(&path, ssh(folder.path(), &format!("exec {server}"))).unwrap();
    file(folder.path(), b"and after");
    let Err(error) = disk.open_lane() else { panic!("should have failed") };
    assert!(error.source.to_string().contains("changed"), "{}", error.source);
}

#[test]
fn a_killed_server_breaks_the_lane_and_another_one_goes_on() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let content = pattern(4 << 20);
    let path = file(folder.path(), &content);
    let pid = folder.path().join("pid");
    let disk =
        open(&path, ssh(folder.path(), &format!("echo $$ > {}; exec {server}", pid.display()))).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let read = |id| Request {
        id,
        span: ByteSpan::new(id << 20, 1 << 20),
        work: Work::Read(Buffer::zeroed(1 << 20)),
    };
    lane.submit(read(0));
    assert!(lane.complete().unwrap().result.is_ok());
    let child = std::fs::read_to_string(&pid).unwrap();
    assert!(std::process::Command::new("kill").args(["-9", child.trim()]).status().unwrap().success());
    lane.submit(read(1));
    lane.submit(read(2));
    for _ in 0..2 {
        assert_eq!(lane.complete().unwrap().result.unwrap_err().kind, DiskErrorKind::Transient);
    }
    assert!(lane.is_broken() && lane.complete().is_none());
    let mut lane = disk.open_lane().unwrap();
    lane.submit(read(3));
    let Work::Read(buffer) = lane.complete().unwrap().work else { panic!() };
    assert!(buffer[..] == content[3 << 20..]);
}

/// The greeting, a handle and attributes of a file of 1 MiB, in the words of `printf`.
const GREETED: &str = r"printf '\0\0\0\5\2\0\0\0\3'; printf '\0\0\0\12\146\0\0\0\1\0\0\0\1h'; printf '\0\0\0\21\151\0\0\0\2\0\0\0\1\0\0\0\0\0\20\0\0'";

#[test]
fn hostile_and_broken_servers_neither_hang_nor_take_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (body, expected) in [
        ("echo Welcome to host", DiskErrorKind::Corrupt),
        (r"printf '\377\377\377\377\2\0\0\0\3'", DiskErrorKind::Corrupt),
        (r"printf '\0\0\0\4\2\0\0\0\3'", DiskErrorKind::Corrupt),
        (r"printf '\0\0\0\5\2\0\0\0\2'", DiskErrorKind::Corrupt),
        (r"printf '\0\0\0\5\146\0\0\0\3'", DiskErrorKind::Corrupt),
        (
            r"printf '\0\0\0\5\2\0\0\0\3'; printf '\0\0\0\12\146\0\0\0\1\377\377\377\377h'",
            DiskErrorKind::Corrupt,
        ),
        (r"printf '\0\0\0\5\2\0\0\0\3'; printf '\0\0\0\12\146\0\0\0\7\0\0\0\1h'", DiskErrorKind::Corrupt),
        (r"printf '\0\0\0\5\2\0", DiskErrorKind::Transient),
        ("exit 255", DiskErrorKind::Transient),
        ("exec sleep 60", DiskErrorKind::Transient),
    ] {
        let mut options = ssh(folder.path(), body);
        if body.contains("sleep") {
            options.timeout = Duration::from_secs(3);
        }
        let (kind, text) = refused(open(Path::new("/disk"), options));
        // A script that ended may break the pipe before its words were read.
        assert!(
            kind == expected || (kind == DiskErrorKind::Transient && text.contains("ssh ended")),
            "{body}: {text}"
        );
    }
    for answer in [
        r"\0\0\0\12\147\0\0\0\12\377\377\377\377x",
        r"\0\0\0\12\147\0\0\0\12\0\0\0\0x",
        r"\0\0\0\5\147\0\0\0\12",
        r"\0\0\0\12\147\0\0\0\11\0\0\0\1x",
        r"\0\0\0\5\146\0\0\0\12",
        r"\377\0\0\0\147\0\0\0\12",
        r"\0\0\0\5\145\0\0\0\12",
    ] {
        let body = format!("{GREETED}; printf '{answer}'; exec sleep 60");
        let disk = open(Path::new("/disk"), ssh(folder.path(), &body)).unwrap();
        assert_eq!(disk.size(), 1 << 20);
        let mut lane = disk.open_lane().unwrap();
        let work = Work::Read(Buffer::zeroed(1000));
        lane.submit(Request { id: 1, span: ByteSpan::new(0, 1000), work });
        let kind = lane.complete().unwrap().result.unwrap_err().kind;
        assert_eq!(kind, DiskErrorKind::Corrupt, "{answer}");
        assert!(lane.complete().is_none());
    }
}
