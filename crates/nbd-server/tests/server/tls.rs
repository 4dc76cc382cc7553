//! TLS with certificates named as nbdkit and QEMU name them, and QEMU's client on the other end.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drover_disk::memory::{Effect, Nth};
use drover_disk::{Buffer, Disk, DiskOp, MemDisk, Request, Slice, Work, conformance};
use drover_nbd::wire::{self, answer, option};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri, TlsFiles};
use drover_nbd_server::{Export, Listen, Server, ServerOptions, server_config};
use drover_types::ByteSpan;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::Stage;
use crate::raw::Raw;

/// Writes a CA, and certificates of it for a server and a client, into a folder.
fn certificates(folder: &Path) {
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca-cert.pem"), ca.pem()).unwrap();
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.signed_by(&key, &ca).unwrap();
        std::fs::write(folder.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }
}

fn stage(disk: MemDisk, folder: &Path, verify_clients: bool, tls_required: bool) -> Stage {
    let tls = Some(server_config(folder, verify_clients).unwrap());
    let options = ServerOptions { tls, tls_required, ..ServerOptions::default() };
    Stage::with(Export::new("", Arc::new(disk)).writable(), options)
}

fn qemu_img(stage: &Stage, certificates: &Path, arguments: &[&str]) -> Option<std::process::Output> {
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", certificates.display());
    let disk = format!(
        "driver=nbd,server.type=unix,server.path={},tls-creds=tls0,tls-hostname=localhost",
        stage.socket.display()
    );
    let mut command = Command::new("qemu-img");
    command.args(&arguments[..1]).args(["--object", &object, "--image-opts"]).args(&arguments[1..]);
    let output = command.arg(&disk).stdin(Stdio::null()).output();
    if output.is_err() {
        println!("skipped: qemu-img is not installed");
    }
    output.ok()
}

#[test]
fn whoever_needs_tls_is_told_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let stage = stage(MemDisk::new("a", vec![7; 4096]), folder.path(), false, true);
    assert!(stage.server().uri("").starts_with("nbds+unix:///"));
    let mut raw = Raw::greet(&stage);
    for (option, data) in [(option::LIST, vec![]), (option::GO, wire::encode_go("", &[]))] {
        assert_eq!(raw.option(option, &data)[0].0, answer::TLS_REQUIRED);
    }
    raw.send(&wire::encode_option(option::EXPORT_NAME, b""));
    assert!(raw.is_ended());
}

#[test]
fn words_slipped_in_ahead_of_tls_end_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let stage = stage(MemDisk::new("a", vec![7; 4096]), folder.path(), false, true);
    let mut raw = Raw::greet(&stage);
    let both = [wire::encode_option(option::STARTTLS, &[]), wire::encode_option(option::LIST, &[])].concat();
    raw.send(&both);
    assert!(raw.is_ended());
    let mut raw = Raw::greet(&stage);
    raw.agree(option::STARTTLS);
    raw.send(&[0; 100]);
    assert!(raw.is_ended(), "rubbish instead of a TLS hello");
}

/// The bytes of a TLS record that never becomes whole, one now and then: they must not stretch the time for
/// the handshake.
#[test]
fn a_record_that_trickles_in_is_cut_off() {
    trickle(false);
    trickle(true);
}

fn shake_hands(raw: &mut Raw, folder: &Path) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca-cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let mut session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut raw.stream).unwrap();
    }
}

fn trickle(handshaken: bool) {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let tls = Some(server_config(folder.path(), false).unwrap());
    // Long enough for the honest half of the handshake on a busy machine.
    let limit = Duration::from_secs(5);
    let options = ServerOptions { tls, handshake_max: limit, ..ServerOptions::default() };
    let stage = Stage::with(Export::new("", Arc::new(MemDisk::new("a", vec![7; 4096]))), options);
    let mut raw = Raw::greet(&stage);
    raw.agree(option::STARTTLS);
    if handshaken {
        shake_hands(&mut raw, folder.path());
    }
    let until = Instant::now() + Duration::from_secs(60);
    // A hello, or data, of 16 KiB.
    let head = [if handshaken { 23 } else { 22 }, 3, 3, 0x3f, 0xff, 1];
    for byte in head.into_iter().chain(std::iter::repeat(0)) {
        if raw.stream.write_all(&[byte]).is_err() {
            break;
        }
        assert!(Instant::now() < until, "a minute of trickling");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(raw.is_ended());
}

#[test]
fn qemu_copies_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let content = conformance::pattern(8 << 20);
    let stage = stage(MemDisk::new("a", content.clone()), folder.path(), true, true);
    let out = folder.path().join("out");
    let out_disk = format!("driver=raw,file.filename={}", out.display());
    std::fs::write(&out, &content).unwrap();
    let Some(output) = qemu_img(&stage, folder.path(), &["compare", &out_disk]) else { return };
    assert!(output.status.success(), "{output:?}");
    // Through the other way: what QEMU writes.
    let other: Vec<u8> = content.iter().rev().copied().collect();
    std::fs::write(&out, &other).unwrap();
    let output =
        qemu_img(&stage, folder.path(), &["convert", "-n", "--target-image-opts", &out_disk]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = qemu_img(&stage, folder.path(), &["compare", &out_disk]).unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A server on TCP, and our own client's settings for it.
fn own(disk: MemDisk, folder: &Path) -> (Server, NbdUri, NbdOptions) {
    let options =
        ServerOptions { tls: Some(server_config(folder, true).unwrap()), ..ServerOptions::default() };
    let listen = Listen::Tcp("127.0.0.1:0".to_string());
    let server = Server::start(vec![Export::new("", Arc::new(disk)).writable()], &listen, options).unwrap();
    let uri = format!("nbds://localhost:{}/", server.port().unwrap()).parse().unwrap();
    let client = Some((folder.join("client-cert.pem"), folder.join("client-key.pem")));
    let tls = TlsFiles { ca: Some(folder.join("ca-cert.pem")), client };
    (server, uri, NbdOptions { tls, ..NbdOptions::default() })
}

#[test]
fn our_own_client_reads_and_writes_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let content = conformance::pattern((3 << 20) + 17);
    let (_server, uri, options) = own(MemDisk::new("a", content.clone()), folder.path());
    conformance::check_reader(&NbdDisk::open_source(&uri, options).unwrap(), &content);
    let last = Mutex::new(None);
    conformance::check_writer(
        |size| {
            let disk = MemDisk::new("a", vec![0xee; size as usize]);
            let (server, uri, options) = own(disk.clone(), folder.path());
            *last.lock().unwrap() = Some((disk, server));
            Arc::new(NbdDisk::open_target(&uri, options).unwrap())
        },
        || last.lock().unwrap().as_ref().unwrap().0.content(),
    );
}

#[test]
fn stopping_answers_what_was_asked_over_tls_too() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let slow = Effect::Delay(Duration::from_millis(200));
    let disk = MemDisk::new("a", vec![0; 1 << 20]).with_fault(DiskOp::Write, Nth::Every(1), slow);
    let (server, uri, options) = own(disk.clone(), folder.path());
    let client = NbdDisk::open_target(&uri, options).unwrap();
    let mut lane = client.open_lane().unwrap();
    let span = ByteSpan::new(0, 512);
    lane.submit(Request { id: 1, span, work: Work::Write(Slice::from(Buffer::zeroed(512))) });
    while disk.counts().writes == 0 {
        std::thread::yield_now();
    }
    server.stop().unwrap();
    lane.complete().unwrap().result.unwrap();
    assert!(!disk.has_unflushed());
}

#[test]
fn a_client_of_another_authority_is_sent_away() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(ours.path());
    certificates(theirs.path());
    // They trust us, we do not trust them.
    std::fs::copy(ours.path().join("ca-cert.pem"), theirs.path().join("ca-cert.pem")).unwrap();
    let stage = stage(MemDisk::new("a", vec![7; 4096]), ours.path(), true, true);
    let Some(output) = qemu_img(&stage, theirs.path(), &["info"]) else { return };
    assert!(!output.status.success(), "{output:?}");
    assert!(qemu_img(&stage, ours.path(), &["info"]).unwrap().status.success());
}

#[test]
fn certificates_that_are_missing_or_no_certificates_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = server_config(folder.path(), false).unwrap_err().to_string();
    assert!(missing.contains("server-cert.pem"), "{missing}");
    certificates(folder.path());
    std::fs::write(folder.path().join("ca-cert.pem"), "nothing").unwrap();
    assert!(server_config(folder.path(), false).is_ok());
    let empty = server_config(folder.path(), true).unwrap_err().to_string();
    assert!(empty.contains("ca-cert.pem") && empty.contains("no certificate"), "{empty}");
}
