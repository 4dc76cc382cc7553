//! What peers can make a host hold in its memory.

use std::sync::Mutex;
use std::thread;

use drover_link::{Limits, LinkErrorKind, Order, Session, connect};

use crate::stage::{Authority, Stage, wait_for};
use crate::work::messages;

const MIB: u64 = 1 << 20;

/// Of all peers; one may have half of it.
const BYTES_MAX: u64 = 20 * MIB;

fn small_limits() -> Limits {
    let mut limits = Limits { channel_credit_max: MIB, held_bytes_max: MIB, ..Limits::default() };
    (limits.credits.stream, limits.credits.messages, limits.credits.session) = (MIB / 4, MIB / 4, MIB);
    limits
}

fn unread(sessions: &[Session]) -> u64 {
    sessions.iter().map(|session| session.stats().unread_bytes).sum()
}

/// A peer that opens as many sessions as it can, sends until nothing more is taken, goes away and comes again, while the
/// program here reads nothing.
#[test]
fn a_greedy_peer_holds_no_more_than_its_half_and_keeps_no_other_out() {
    let authority = Authority::new();
    let stage = Stage::with(|listen, connect| {
        listen.tls = authority.server(authority.sign());
        listen.limits = small_limits();
        listen.bytes_max = BYTES_MAX;
        connect.tls = authority.client(authority.sign());
        connect.stripes = drover_link::StripeBounds::fixed(1);
    });
    let (mut here, taken) = (Vec::new(), Mutex::new(0));
    for _ in 0..6 {
        let mut there = Vec::new();
        let refused = loop {
            match connect(&stage.connect) {
                Ok(session) => {
                    there.push(session);
                    here.push(stage.listener.accept().unwrap());
                }
                Err(error) => break error,
            }
            assert!(here.len() < 100, "no bound");
        };
        assert_eq!(refused.kind, LinkErrorKind::Unreachable, "{refused}");
        assert!(refused.text.contains("no memory left"), "{refused}");
        *taken.lock().unwrap() += there.len();
        let before = unread(&here);
        thread::scope(|scope| {
            for session in &there {
                for _ in 0..5 {
                    let (sender, _receiver) = session.open(Order::Messages, b"").unwrap().split();
                    scope.spawn(move || while sender.send(b"", &[7; 60_000]).is_ok() {});
                }
            }
            let full = before + there.len() as u64 * MIB / 2;
            wait_for("all that is taken", || unread(&here) >= full);
            assert!(unread(&here) <= BYTES_MAX / 2, "{}", unread(&here));
            there.iter().for_each(Session::abandon);
        });
        // They are gone there; here they wait for their connections, and make way.
        for session in &here[here.len() - there.len()..] {
            wait_for("a session without a connection", || session.stats().stripes.is_empty());
        }
    }
    assert!(*taken.lock().unwrap() > 6, "it came again");
    assert!(unread(&here) <= BYTES_MAX / 2, "{}", unread(&here));
    // Somebody else.
    let mut other = stage.connect.clone();
    other.tls = authority.client(authority.sign());
    let (one, two) = (connect(&other).unwrap(), stage.listener.accept().unwrap());
    messages(&one, &two, 10, 1000, || {});
    // What was read or given up is room again.
    drop(here);
    let (one, two) = stage.session();
    messages(&one, &two, 10, 1000, || {});
}

#[test]
fn one_peer_does_not_take_all_connections() {
    let authority = Authority::new();
    let stage = Stage::with(|listen, connect| {
        listen.tls = authority.server(authority.sign());
        listen.peer_connections_max = 3;
        connect.tls = authority.client(authority.sign());
        connect.stripes = drover_link::StripeBounds::fixed(1);
    });
    let sessions: Vec<_> = (0..3).map(|_| stage.session()).collect();
    let error = connect(&stage.connect).unwrap_err();
    assert!(error.text.contains("enough connections of this peer"), "{error}");
    let mut other = stage.connect.clone();
    other.tls = authority.client(authority.sign());
    let (one, two) = (connect(&other).unwrap(), stage.listener.accept().unwrap());
    messages(&one, &two, 10, 10, || {});
    messages(&sessions[0].0, &sessions[0].1, 10, 10, || {});
}
