//! TLS, by certificates and by keys shared beforehand, against nbdkit and qemu-nbd.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drover_disk::{Disk, DiskError, DiskErrorKind, conformance};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri, TlsFiles, UriTls};
use drover_types::ByteSpan;

use crate::certificates::{Authority, self_signed};
use crate::fake::{ACK, Fake, UNSUPPORTED, hasty, options};
use crate::process::{Server, installed, nbdkit, qemu_nbd};
use crate::{Dir, bytes, read, submit_read, submit_write, text, words};

fn folder(dir: &Dir) -> UriTls {
    UriTls { certificates: Some(dir.file("")), ..UriTls::default() }
}

fn open(server: &Server, tls: UriTls) -> Result<NbdDisk, DiskError> {
    NbdDisk::open_source(&server.uri().with_tls(tls), NbdOptions::default())
}

fn refused(server: &Server, tls: UriTls) -> String {
    let error = open(server, tls).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Denied, "{}", words(&error));
    words(&error)
}

/// nbdkit with the certificates of `dir`, on a file with the suite's pattern.
fn nbdkit_x509(dir: &Dir, more: &[&str]) -> (Server, Dir, Vec<u8>) {
    let (disk, content) = (Dir::new(), conformance::pattern(3 << 20));
    std::fs::write(disk.file("disk"), &content).unwrap();
    let certificates = format!("--tls-certificates={}", text(&dir.file("")));
    let mut arguments = vec!["--tls=require", &certificates];
    arguments.extend(more);
    let path = disk.file("disk");
    arguments.extend(["file", text(&path)]);
    (nbdkit(&arguments), disk, content)
}

#[test]
fn reads_and_writes_through_tls() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (server, disk, content) = nbdkit_x509(&authority.server(&["localhost"]), &[]);
    let client = authority.client_without_key();
    conformance::check_reader(&open(&server, folder(&client)).unwrap(), &content);
    let uri = server.uri().with_tls(folder(&client));
    let target = NbdDisk::open_target(&uri, NbdOptions::default()).unwrap();
    let mut lane = target.open_lane().unwrap();
    // More at once than any buffer between holds, both ways.
    for id in 0..24u64 {
        let span = ByteSpan::new((id % 3) << 20, 1 << 20);
        if id.is_multiple_of(2) {
            submit_write(&mut *lane, id, span, 7);
        } else {
            submit_read(&mut *lane, id, span);
        }
    }
    while let Some(completion) = lane.complete() {
        completion.result.unwrap();
    }
    target.flush().unwrap();
    assert_eq!(std::fs::read(disk.file("disk")).unwrap(), vec![7; 3 << 20]);
}

#[test]
fn writes_files_of_any_size_through_tls() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (certificates, client) = (authority.server(&["localhost"]), authority.client_without_key());
    let (disk, server) = (Dir::new(), std::sync::Mutex::new(None));
    let path = disk.file("disk");
    conformance::check_writer(
        |size| {
            server.lock().unwrap().take();
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            let option = format!("--tls-certificates={}", text(&certificates.file("")));
            let started = nbdkit(&["--tls=require", &option, "file", text(&path)]);
            let uri = started.uri().with_tls(folder(&client));
            let target = NbdDisk::open_target(&uri, NbdOptions::default()).unwrap();
            *server.lock().unwrap() = Some(started);
            Arc::new(target)
        },
        || std::fs::read(&path).unwrap(),
    );
}

#[test]
fn who_is_not_proven_is_not_spoken_to() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (server, _disk, _) = nbdkit_x509(&authority.server(&["web.example"]), &[]);
    let client = authority.client_without_key();
    let ours = folder(&client);
    let named = |name: &str| UriTls { hostname: Some(name.to_string()), ..ours.clone() };
    let said = refused(&server, ours.clone());
    assert!(said.contains("for another name") && said.contains("tls-hostname"), "{said}");
    assert!(open(&server, named("web.example")).is_ok());
    assert!(refused(&server, named("db.example")).contains("for another name"));
    let other = Authority::new("theirs").client_without_key();
    let said = refused(&server, UriTls { hostname: Some("web.example".into()), ..folder(&other) });
    assert!(said.contains("no authority that is trusted"), "{said}");
    // Without a folder it is the system's authorities, and they did not issue it.
    let said = refused(&server, UriTls { hostname: Some("web.example".into()), ..UriTls::default() });
    assert!(said.contains("authority"), "{said}");
    let files = TlsFiles { ca: Some(client.file("none.pem")), client: None };
    let options = NbdOptions { tls: files, ..NbdOptions::default() };
    let error = NbdDisk::open_source(&server.uri().with_tls(named("web.example")), options).err().unwrap();
    assert!(words(&error).contains("none.pem"), "{}", words(&error));
}

#[test]
fn a_certificate_that_its_server_signed_itself_is_believed_when_it_is_given() {
    if !installed("nbdkit") {
        return;
    }
    let own = self_signed("localhost");
    let (server, _disk, content) = nbdkit_x509(&own, &[]);
    let client = Dir::new();
    std::fs::copy(own.file("ca-cert.pem"), client.file("ca-cert.pem")).unwrap();
    conformance::check_reader(&open(&server, folder(&client)).unwrap(), &content);
    let said = refused(&server, UriTls { hostname: Some("db.example".into()), ..folder(&client) });
    assert!(said.contains("for another name"), "{said}");
    let other = self_signed("localhost");
    std::fs::copy(other.file("ca-cert.pem"), client.file("ca-cert.pem")).unwrap();
    let said = refused(&server, folder(&client));
    assert!(said.contains("no authority that is trusted"), "{said}");
}

#[test]
fn a_revoked_certificate_is_refused() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (server, _disk, _) = nbdkit_x509(&authority.server(&["localhost"]), &[]);
    let client = authority.client_without_key();
    assert!(open(&server, folder(&client)).is_ok());
    authority.revoke_server(&client);
    assert!(refused(&server, folder(&client)).contains("revoked"));
}

#[test]
fn a_server_that_wants_to_know_us_gets_our_certificate() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (server, _disk, content) = nbdkit_x509(&authority.server(&["localhost"]), &["--tls-verify-peer"]);
    let client = authority.client();
    conformance::check_reader(&open(&server, folder(&client)).unwrap(), &content);
    let without = authority.client_without_key();
    let error = open(&server, folder(&without)).err().unwrap();
    assert!(words(&error).contains("give it a certificate"), "{}", words(&error));
    let files = TlsFiles {
        ca: Some(client.file("ca-cert.pem")),
        client: Some((client.file("client-cert.pem"), client.file("client-key.pem"))),
    };
    let options = NbdOptions { tls: files, ..NbdOptions::default() };
    let uri = server.uri().with_tls(UriTls::default());
    NbdDisk::open_source(&uri, options).unwrap();
}

#[test]
fn qemu_nbd_wants_to_know_us_too() {
    if !installed("qemu-nbd") {
        return;
    }
    let authority = Authority::new("ours");
    let (certificates, client, disk) = (authority.server(&["localhost"]), authority.client(), Dir::new());
    let (path, content) = (disk.file("disk"), conformance::pattern(3 << 20));
    std::fs::write(&path, &content).unwrap();
    let folder_name = certificates.file("");
    let object = format!("tls-creds-x509,id=tls,endpoint=server,verify-peer=yes,dir={}", text(&folder_name));
    let arguments = ["--persistent", "--shared=8", "--format=raw", "--object", &object, "--tls-creds=tls"];
    let path = text(&path);
    let server = qemu_nbd(&[&arguments[..], &[path]].concat());
    conformance::check_reader(&open(&server, folder(&client)).unwrap(), &content);
    assert!(open(&server, folder(&authority.client_without_key())).is_err());
    let plain = NbdDisk::open_source(&server.uri(), NbdOptions::default()).err().unwrap();
    assert!(words(&plain).contains("nbds://"), "{}", words(&plain));
}

#[test]
fn a_server_that_demands_tls_says_so_in_our_words() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (server, _disk, _) = nbdkit_x509(&authority.server(&["localhost"]), &[]);
    let error = NbdDisk::open_source(&server.uri(), NbdOptions::default()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Denied);
    assert!(words(&error).contains("demands TLS: use nbds://"), "{}", words(&error));
    let error = drover_nbd::list(&server.uri(), &NbdOptions::default()).unwrap_err();
    assert!(words(&error).contains("demands TLS: use nbds://"), "{}", words(&error));
}

/// What a server asks of those who want TLS, and what it gets to hear without it.
#[test]
fn a_downgrade_is_an_error_and_not_a_word_goes_in_the_clear() {
    for answer in [UNSUPPORTED, 0x8000_0002, 0x8000_0003, 0x8000_0005] {
        let heard = Arc::new(AtomicUsize::new(0));
        let count = heard.clone();
        let fake = Fake::start(move |mut peer, _| {
            peer.greet(3)?;
            loop {
                let (option, data) = peer.option()?;
                assert!(data.is_empty(), "the name of the export goes in the clear");
                count.fetch_add(usize::from(option != 5), Ordering::SeqCst);
                peer.answer(option, if option == 5 { answer } else { ACK }, b"\x1b[31mno")?;
            }
        });
        let uri = fake.uri().with_tls(UriTls::default());
        let error = NbdDisk::open_source(&uri, options()).err().unwrap();
        assert_eq!(error.kind, DiskErrorKind::Denied);
        let said = words(&error);
        assert!(said.contains("offers no TLS") && !said.contains('\x1b'), "{said}");
        assert_eq!(heard.load(Ordering::SeqCst), 0);
    }
    // Servers without options cannot begin TLS at all.
    for greeting in [&b"NBDMAGICIHAVEOPT\0\0"[..], &b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53"[..]] {
        let fake = Fake::start(move |mut peer, _| {
            peer.send(greeting)?;
            peer.hold()
        });
        let error = NbdDisk::open_source(&fake.uri().with_tls(UriTls::default()), options()).err().unwrap();
        assert!(words(&error).contains("offers no TLS"), "{}", words(&error));
    }
}

/// What was sent in the clear before TLS began must not be taken for what came through TLS.
#[test]
fn answers_slipped_in_before_tls_are_not_believed() {
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        assert_eq!(peer.option()?.0, 5);
        peer.answer(5, ACK, &[])?;
        // As if the server had answered EXTENDED_HEADERS already.
        peer.answer(11, ACK, &[])?;
        peer.hold()
    });
    let error = NbdDisk::open_source(&fake.uri().with_tls(UriTls::default()), options()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Denied, "{}", words(&error));
    assert!(words(&error).contains("TLS failed"), "{}", words(&error));
}

#[test]
fn a_server_that_dawdles_in_tls_is_given_up() {
    let fake = Fake::start(|mut peer, _| {
        peer.greet(3)?;
        assert_eq!(peer.option()?.0, 5);
        peer.answer(5, ACK, &[])?;
        peer.hold()
    });
    let error = NbdDisk::open_source(&fake.uri().with_tls(UriTls::default()), hasty()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Transient, "{}", words(&error));
}

fn key_file(dir: &Dir, key: &str) -> UriTls {
    std::fs::write(dir.file("keys.psk"), key).unwrap();
    UriTls { psk_file: Some(dir.file("keys.psk")), username: Some("drover".to_string()), ..UriTls::default() }
}

const KEY: &str = "drover:2e7f9a52c1d04be89f3a6c7755aa90124433deadbeef0123456789abcdef0011\n";
const OTHER_KEY: &str = "drover:0000000000000000000000000000000000000000000000000000000000000001\n";

#[test]
fn reads_and_writes_by_a_key_shared_beforehand() {
    if !installed("nbdkit") {
        return;
    }
    let (dir, content) = (Dir::new(), conformance::pattern(3 << 20));
    let tls = key_file(&dir, KEY);
    std::fs::write(dir.file("disk"), &content).unwrap();
    let option = format!("--tls-psk={}", text(&dir.file("keys.psk")));
    let server = nbdkit(&["--tls=require", &option, "file", text(&dir.file("disk"))]);
    let disk = open(&server, tls.clone()).unwrap();
    assert!(disk.features().extents);
    conformance::check_reader(&disk, &content);
    let uri = server.uri().with_tls(tls);
    let target = NbdDisk::open_target(&uri, NbdOptions::default()).unwrap();
    let mut lane = target.open_lane().unwrap();
    let span = ByteSpan::new(4096, 4096);
    crate::write(&mut *lane, span, 5).result.unwrap();
    target.flush().unwrap();
    assert_eq!(bytes(read(&mut *lane, span)), vec![5; 4096]);
    assert_eq!(std::fs::read(dir.file("disk")).unwrap()[4096..8192], [5; 4096]);
    let wrong = Dir::new();
    let said = refused(&server, key_file(&wrong, OTHER_KEY));
    assert!(said.contains("nbdkit cannot connect: nbdkit: nbd"), "{said}");
    let missing = UriTls { psk_file: Some(wrong.file("none")), ..UriTls::default() };
    let error = open(&server, missing).err().unwrap();
    assert!(words(&error).contains("/none"), "{}", words(&error));
}

#[test]
fn a_server_behind_a_shared_key_is_found_again_when_it_is_back() {
    if !installed("nbdkit") {
        return;
    }
    let (dir, content) = (Dir::new(), conformance::pattern(1 << 20));
    let tls = key_file(&dir, KEY);
    std::fs::write(dir.file("disk"), &content).unwrap();
    let option = format!("--tls-psk={}", text(&dir.file("keys.psk")));
    let path = dir.file("disk");
    let arguments = ["--tls=require", &option, "file", text(&path)];
    let mut server = nbdkit(&arguments);
    let disk = open(&server, tls).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let span = ByteSpan::new(4096, 4096);
    assert_eq!(bytes(read(&mut *lane, span)), content[4096..8192]);
    server.kill();
    let error = read(&mut *lane, span).result.unwrap_err();
    assert!(error.kind == DiskErrorKind::Transient && lane.is_broken(), "{}", words(&error));
    let error = disk.open_lane().err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Transient, "{}", words(&error));
    server.nbdkit_again(&arguments);
    let started = std::time::Instant::now();
    let mut lane = loop {
        match disk.open_lane() {
            Ok(lane) => break lane,
            Err(error) => assert!(started.elapsed().as_secs() < 120, "{}", words(&error)),
        }
    };
    assert_eq!(bytes(read(&mut *lane, span)), content[4096..8192]);
    assert!(!disk.extents(ByteSpan::new(0, 1 << 20)).unwrap().is_empty());
}

#[test]
fn reads_qemu_nbd_by_a_key_shared_beforehand() {
    if !installed("nbdkit") || !installed("qemu-nbd") {
        return;
    }
    let (dir, content) = (Dir::new(), conformance::pattern(1 << 20));
    let tls = key_file(&dir, KEY);
    std::fs::write(dir.file("disk"), &content).unwrap();
    let object = format!("tls-creds-psk,id=tls,endpoint=server,dir={}", text(&dir.file("")));
    let arguments = ["--persistent", "--shared=8", "--format=raw", "--object", &object, "--tls-creds=tls"];
    let path = dir.file("disk");
    let server = qemu_nbd(&[&arguments[..], &[text(&path)]].concat());
    conformance::check_reader(&open(&server, tls).unwrap(), &content);
}

#[test]
fn a_key_does_not_reach_a_server_in_the_clear() -> io::Result<()> {
    if !installed("nbdkit") {
        return Ok(());
    }
    let server = nbdkit(&["memory", "1M"]);
    let dir = Dir::new();
    let said = refused(&server, key_file(&dir, KEY));
    assert!(said.contains("nbdkit cannot connect"), "{said}");
    Ok(())
}

#[test]
fn uris_lead_there_too() {
    if !installed("nbdkit") {
        return;
    }
    let authority = Authority::new("ours");
    let (server, _disk, content) = nbdkit_x509(&authority.server(&["localhost"]), &[]);
    let client = authority.client_without_key();
    let uri = format!(
        "nbds+unix:///?socket={}&tls-certificates={}&tls-hostname=localhost",
        text(&server.socket),
        text(&client.file(""))
    );
    let uri: NbdUri = uri.parse().unwrap();
    let disk = NbdDisk::open_source(&uri, NbdOptions::default()).unwrap();
    assert_eq!(crate::read_all(&disk), content);
    assert!(!disk.name().contains("certificates") && disk.name().starts_with("nbds+unix://"));
    let plain = NbdUri::unix(&server.socket, "");
    assert_eq!(disk.identity(), format!("{plain}:{}", content.len()), "the same disk, however guarded");
    let list = drover_nbd::list(&uri, &NbdOptions::default()).unwrap();
    assert_eq!(list.exports[0].size, Some(content.len() as u64));
}
