//! Who is let in, and what those who are not are told.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use drover_link::{Applicant, LinkErrorKind, Session, SessionState, StripeBounds, connect};

use crate::proxy::Proxy;
use crate::stage::{Authority, Stage, wait_for};
use crate::work::messages;

#[test]
fn a_listener_that_we_do_not_trust_is_refused_by_name() {
    let mut stage = Stage::new();
    let other = Authority::new();
    stage.connect.tls = other.client(other.sign());
    let error = connect(&stage.connect).unwrap_err();
    assert_eq!(error.kind, LinkErrorKind::Refused);
    assert!(error.text.contains("not the one that was expected"), "{error}");
}

#[test]
fn a_dialler_that_is_not_trusted_is_told_so() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let mut stage = Stage::with(|listen, _| listen.tls = authority.server(authority.sign()));
    // It trusts the listener, but shows what another authority signed.
    stage.connect.tls = authority.client(stranger.sign());
    let error = connect(&stage.connect).unwrap_err();
    assert_eq!(error.kind, LinkErrorKind::Refused);
    assert!(error.text.contains("the peer refused us"), "{error}");
}

#[test]
fn a_revoked_peer_is_refused_by_the_name_of_the_reason_and_its_session_ends() {
    let is_revoked = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut stage = Stage::with(|listen, connect| {
        connect.stripes = StripeBounds::fixed(2);
        let (is_revoked, seen) = (is_revoked.clone(), seen.clone());
        listen.admit = Arc::new(move |applicant: &Applicant<'_>| {
            seen.lock().unwrap().push(applicant.fingerprint);
            match is_revoked.load(Ordering::SeqCst) {
                true => Err("the key of 'site-a' was revoked".into()),
                false => Ok("known-as".into()),
            }
        });
    });
    let proxy = Proxy::new(stage.listener.addresses()[0]);
    stage.connect.targets = vec![proxy.address];
    let (one, two): (Session, Session) = stage.session();
    assert_eq!(two.peer().name, "known-as");
    assert!(seen.lock().unwrap().iter().all(|it| *it == two.peer().fingerprint && *it != [0; 32]));
    messages(&one, &two, 10, 10, || {});
    is_revoked.store(true, Ordering::SeqCst);
    let error = connect(&stage.connect).unwrap_err();
    assert_eq!((error.kind, &error.text[..]), (LinkErrorKind::Refused, "the key of 'site-a' was revoked"));
    // A running session cannot come back either.
    proxy.kill_all();
    wait_for("the session's end", || matches!(one.stats().state, SessionState::Ended(_)));
    assert_eq!(one.accept().unwrap_err().kind, LinkErrorKind::Refused);
}

#[test]
fn strangers_that_say_nothing_or_nonsense_do_not_keep_others_out() {
    let stage = Stage::new();
    let address = stage.listener.addresses()[0];
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 1000], &[0x16, 3, 1, 0xFF, 0xFF]] {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(nonsense).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // An alert or nothing; in any case an end.
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.len() < 100, "{answer:?}");
    }
    let (one, two) = stage.session();
    messages(&one, &two, 10, 10, || {});
    drop(silent);
}

#[test]
fn too_many_sessions_are_told_so() {
    let stage = Stage::with(|listen, _| listen.sessions_max = 2);
    let (_one, _two) = (stage.session(), stage.session());
    let error = connect(&stage.connect).unwrap_err();
    assert!(error.kind == LinkErrorKind::Unreachable && error.text.contains("2 sessions"), "{error}");
}

#[test]
fn silent_strangers_by_the_hundreds_do_not_keep_others_out() {
    let stage = Stage::new();
    let address = stage.listener.addresses()[0];
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (one, two) = stage.session();
    messages(&one, &two, 10, 10, || {});
    drop(silent);
}

#[test]
fn sessions_that_a_dead_process_left_behind_do_not_keep_its_successor_out() {
    let stage = Stage::with(|listen, connect| {
        listen.sessions_max = 2;
        connect.stripes = StripeBounds::fixed(1);
    });
    let (one, left) = stage.session();
    let (two, other) = stage.session();
    one.abandon();
    wait_for("a session without a connection", || {
        matches!(left.stats().state, SessionState::Reconnecting(_))
    });
    let (three, four) = stage.session();
    messages(&three, &four, 10, 10, || {});
    messages(&two, &other, 10, 10, || {});
    assert_eq!(left.accept().unwrap_err().kind, LinkErrorKind::Lost);
    let error = connect(&stage.connect).unwrap_err();
    assert!(error.kind == LinkErrorKind::Unreachable && error.text.contains("2 sessions"), "{error}");
}

#[test]
fn connections_of_all_sessions_are_bounded() {
    let stage = Stage::with(|listen, connect| {
        listen.connections_max = 3;
        connect.stripes = StripeBounds::fixed(1);
    });
    let sessions: Vec<_> = (0..3).map(|_| stage.session()).collect();
    let error = connect(&stage.connect).unwrap_err();
    assert!(error.kind == LinkErrorKind::Unreachable && error.text.contains("enough connections"), "{error}");
    messages(&sessions[0].0, &sessions[0].1, 10, 10, || {});
    sessions[0].0.close();
    wait_for("room", || connect(&stage.connect).is_ok());
}

#[test]
fn who_is_let_in_is_asked_without_harm() {
    let stage = Stage::with(|listen, _| {
        listen.admit = Arc::new(|applicant: &Applicant<'_>| match applicant.name {
            "bad" => panic!("a fault of the program"),
            name => Ok(name.into()),
        });
    });
    let mut bad = stage.connect.clone();
    bad.name = "bad".into();
    // More often than there are places for those who greet.
    for _ in 0..300 {
        connect(&bad).unwrap_err();
    }
    let (one, two) = stage.session();
    messages(&one, &two, 10, 10, || {});
}

#[test]
fn an_address_that_leads_elsewhere_does_not_matter_while_another_leads_to_the_peer() {
    let mut stage = Stage::new();
    let other = Stage::new();
    let right = stage.listener.addresses()[0];
    let wrong = other.listener.addresses()[0];
    // It takes connections and ends them before TLS.
    let rude = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = rude.local_addr().unwrap();
    std::thread::spawn(move || rude.incoming().take(50).for_each(drop));
    stage.connect.stripes = StripeBounds::fixed(2);
    // Which of them answers first is chance: some tries, in both orders.
    for round in 0..12 {
        stage.connect.targets = match round % 3 {
            0 => vec![wrong, right],
            1 => vec![nobody, right],
            _ => vec![right, wrong, nobody],
        };
        let (one, two) = stage.session();
        messages(&one, &two, 5, 10, || {});
        one.close();
    }
    // The peer itself may come back where nobody answers now.
    stage.connect.targets = vec![nobody, wrong];
    let error = connect(&stage.connect).unwrap_err();
    assert_eq!(error.kind, LinkErrorKind::Unreachable, "{error}");
    assert!(error.text.contains("not the one that was expected"), "{error}");
    let third = Stage::new();
    stage.connect.targets = vec![wrong, third.listener.addresses()[0]];
    let error = connect(&stage.connect).unwrap_err();
    assert_eq!(error.kind, LinkErrorKind::Refused, "{error}");
}
