//! What a relay tells: over its control socket, and to Prometheus.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use common::{listener, pair, relay_to};
use drover_relay::control::{Asker, ControlServer, living};
use drover_relay::metrics::MetricsServer;

#[test]
fn the_control_socket_answers_its_owner_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/relay-1.sock");
    let target = listener();
    let relay = relay_to(&target);
    let server = ControlServer::start(&path, relay.teller()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut asker = Asker::connect(server.path()).unwrap();
    assert_eq!(asker.ask(5).unwrap().live, 0);
    let (_near, _far) = pair(&relay, &target);
    let told = loop {
        let told = asker.ask(5).unwrap();
        if told.totals.connected == 1 {
            break told;
        }
    };
    assert_eq!((told.live, told.connections.len()), (1, 1));
    assert_eq!(asker.ask(0).unwrap().connections.len(), 0);
    assert_eq!(living(path.parent().unwrap(), "relay").unwrap(), std::slice::from_ref(&path));
    assert!(living(path.parent().unwrap(), "agent").unwrap().is_empty());
    drop(server);
    assert!(!path.exists());
}

#[test]
fn no_socket_lies_where_somebody_else_could_put_another_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (open, sticky) = (folder.path().join("open"), folder.path().join("sticky"));
    let relay = relay_to(&listener());
    for (folder, mode, is_fine) in [(&open, 0o777, false), (&sticky, 0o1777, true)] {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        let server = ControlServer::start(&folder.join("relay-1.sock"), relay.teller());
        assert_eq!(server.is_ok(), is_fine, "{mode:o}");
        assert_eq!(living(folder, "relay").is_ok(), is_fine, "{mode:o}");
    }
    let error = living(&open, "relay").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("name another place"), "{error}");
    assert_eq!(living(&folder.path().join("none"), "relay").unwrap(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_question_that_is_none_ends_the_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay-1.sock");
    let relay = relay_to(&listener());
    let _server = ControlServer::start(&path, relay.teller()).unwrap();
    for bytes in [b"what?\n".to_vec(), b"{}\n".to_vec(), vec![b'x'; 100_000]] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        // The server may have gone before all is written.
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    assert_eq!(Asker::connect(&path).unwrap().ask(1).unwrap().live, 0);
}

#[test]
fn the_socket_of_a_killed_relay_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay-1.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let relay = relay_to(&listener());
    let server = ControlServer::start(&path, relay.teller()).unwrap();
    // That of a living one does not.
    assert_eq!(ControlServer::start(&path, relay.teller()).err().unwrap().kind(), ErrorKind::AddrInUse);
    drop(server);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(living(folder.path(), "relay").unwrap().is_empty() && !path.exists());
    assert!(living(&folder.path().join("nothing"), "relay").unwrap().is_empty());
}

fn get(server: &MetricsServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn prometheus_gets_its_page() {
    let target = listener();
    let relay = relay_to(&target);
    let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), relay.teller()).unwrap();
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"12345").unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
    let answer = get(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("drover_relay_connections 1\n"), "{answer}");
    assert!(answer.contains("drover_relay_bytes_total{direction=\"up\"} 5\n"), "{answer}");
    assert!(get(&server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get(&server, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
}
