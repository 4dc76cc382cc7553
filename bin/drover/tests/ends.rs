//! What `drover copy` reads beside files: web servers, devices, servers behind TLS; and what it leaves of the page cache.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/http/tests/server/mod.rs"]
mod web;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use drover_lab::Drover;
use drover_stage::loops::{Loop, ran};
use drover_stage::process::EndsWithTest;
use drover_stage::{MIB, disk_file, same_bytes};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use web::{After, Server, file};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn copy(drover: &Drover, source: &str, target: &Path, more: &[&str], code: i32) -> String {
    let output = drover.run(&[&["copy", source, text(target)], more].concat()).unwrap();
    assert_eq!(output.code, Some(code), "{source} {more:?}: {}", output.err);
    output.err
}

/// Writes an authority and a certificate of it for `localhost` into a folder, as NBD programs name them, and gives what
/// a web server needs of them.
fn certificates(folder: &Path) -> ServerConfig {
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
    let server = server.signed_by(&key, &authority).unwrap();
    std::fs::write(folder.join("ca-cert.pem"), authority.pem()).unwrap();
    std::fs::write(folder.join("server-cert.pem"), server.pem()).unwrap();
    std::fs::write(folder.join("server-key.pem"), key.serialize_pem()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap()
}

#[test]
fn web_servers_are_read_by_ranges() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 6 * MIB + 511);
    let content = std::fs::read(&source).unwrap();
    let tls = certificates(folder.path());
    let authority = folder.path().join("ca-cert.pem");
    let serve = move |_: usize, head: &str| (file(&content, head), After::KeepOpen);
    let plain = Server::start(serve.clone());
    let secret = Server::start_tls(tls, serve);
    let https = format!("https://localhost:{}/disk", secret.address.port());
    let target = |name: &str| folder.path().join(name);
    let said = copy(&drover, &plain.url("/disk"), &target("plain"), &["--verify", "source"], 0);
    assert!(said.contains("verified against the source: equal"), "{said}");
    assert!(same_bytes(&source, &target("plain")));
    copy(&drover, &https, &target("secret"), &["--ca-file", text(&authority), "--verify", "full"], 0);
    assert!(same_bytes(&source, &target("secret")));
    let said = copy(&drover, &https, &target("untrusted"), &[], 5);
    assert!(said.contains("certificate"), "{said}");
    assert!(!target("untrusted").exists(), "nothing was made for a server that nobody vouches for");
}

#[test]
fn servers_behind_tls_are_read_and_written() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 6 * MIB + 512);
    let disk = folder.path().join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(6 * MIB + 512).unwrap();
    certificates(folder.path());
    let at = text(folder.path());
    let args = ["serve-disk", text(&disk), "--writable", "--json", "--exit-with-parent"];
    let tls = ["--listen", "127.0.0.1:0", "--tls-certificates", at];
    let mut child = drover.command(&[&args[..], &tls].concat()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _serving = EndsWithTest(child);
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in '{line}'"));
    let port = said["uri"].as_str().unwrap().trim_end_matches('/').rsplit_once(':').unwrap().1.to_string();
    let trusting = format!("nbds://localhost:{port}?tls-certificates={at}");
    let output = drover.run(&["copy", text(&source), &trusting, "--verify", "full"]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(same_bytes(&source, &disk));
    copy(&drover, &trusting, &folder.path().join("back"), &[], 0);
    assert!(same_bytes(&source, &folder.path().join("back")));
    let plain = format!("nbd://localhost:{port}");
    let said = copy(&drover, &plain, &folder.path().join("plain"), &[], 5);
    assert!(said.contains("nbds://"), "{said}");
    let untrusted = format!("nbds://localhost:{port}");
    copy(&drover, &untrusted, &folder.path().join("untrusted"), &[], 5);
    let refused = drover.run(&["copy", text(&source), &untrusted]).unwrap();
    assert_eq!(refused.code, Some(5), "as a target: {}", refused.err);
    assert!(!folder.path().join("untrusted").exists() && !folder.path().join("plain").exists());
}

#[test]
fn a_block_device_is_read_to_its_last_sector() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 7 * MIB + 512);
    let Some(device) = Loop::over(&source) else { return };
    let target = folder.path().join("target");
    let said = copy(&drover, &device.device, &target, &["--verify", "source"], 0);
    assert!(said.contains("verified against the source: equal"), "{said}");
    assert!(same_bytes(&source, &target));
}

/// Bytes of a file that are in the page cache.
fn cached(path: &Path) -> u64 {
    let said = ran("fincore", &["--bytes", "--noheadings", "--output", "res", text(path)]).unwrap();
    String::from_utf8_lossy(&said.stdout).trim().parse().unwrap()
}

#[test]
fn the_page_cache_keeps_what_others_have_in_it_and_takes_nothing_of_a_target() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 16 * MIB);
    let target = folder.path().join("target");
    if ran("fincore", &["--version"]).is_none() {
        println!("skipped: fincore is not installed");
        return;
    }
    // It was written just now: whoever wrote it may want it again. Only pages that are on the disk can be dropped.
    std::fs::File::open(&source).unwrap().sync_all().unwrap();
    let before = cached(&source);
    let said = copy(&drover, text(&source), &target, &["--verify", "full"], 0);
    if said.contains("no direct I/O here") {
        println!("skipped: this file system takes no direct I/O");
        return;
    }
    // The kernel may take single pages back whenever it wants to; a program that drops what it has read leaves none.
    let after = cached(&source);
    assert!(
        before > 0 && after > before / 2,
        "pages of the source were dropped: {after} of {before} are left"
    );
    assert_eq!(cached(&target), 0, "the target was written through the page cache");
}
