//! Lines that fail. Nothing is lost, doubled or changed.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use drover_link::{Limits, LinkErrorKind, Order, SessionState, StripeBounds};

use crate::proxy::Proxy;
use crate::stage::{Stage, wait_for};
use crate::work::{messages, stream};

/// A stage whose connections go through a proxy.
fn proxied(stripes: usize) -> (Stage, Proxy) {
    let mut stage = Stage::with(|_, connect| connect.stripes = StripeBounds::fixed(stripes));
    let proxy = Proxy::new(stage.listener.addresses()[0]);
    stage.connect.targets = vec![proxy.address];
    (stage, proxy)
}

#[test]
fn connections_that_end_all_the_time() {
    let (stage, proxy) = proxied(3);
    let (one, two) = stage.session();
    let kill = || {
        for _ in 0..15 {
            thread::sleep(Duration::from_millis(40));
            wait_for("something to end", || proxy.kill_all());
        }
    };
    messages(&one, &two, 3000, 30_000, kill);
    stream(&two, &one, 60_000_000, kill);
    wait_for("the way back", || one.stats().state == SessionState::Up);
    assert!(proxy.state.connections.load(Ordering::SeqCst) > 6);
    assert!(!one.stats().notes.is_empty(), "what happened can be read");
}

#[test]
fn flipped_bits_end_a_connection_and_nothing_wrong_arrives() {
    let (stage, proxy) = proxied(3);
    proxy.state.flip_every.store(9_000_000, Ordering::SeqCst);
    let (one, two) = stage.session_in_the_end();
    messages(&one, &two, 2000, 50_000, || {});
    stream(&one, &two, 50_000_000, || {});
    assert!(proxy.state.flips.load(Ordering::SeqCst) > 3);
    assert!(proxy.state.connections.load(Ordering::SeqCst) > 3);
}

/// The line is cut in the middle of messages, for so many seconds.
fn cut(seconds: u64) {
    let (stage, proxy) = proxied(2);
    let (one, two) = stage.session();
    messages(&one, &two, 1500, 50_000, || {
        proxy.state.is_cut.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_secs(seconds));
        proxy.state.is_cut.store(false, Ordering::SeqCst);
    });
    wait_for("the way back", || one.stats().state == SessionState::Up);
}

#[test]
fn a_cut_line_goes_on_where_it_stopped() {
    cut(1);
    cut(10);
}

#[test]
#[ignore = "takes a minute; `make soak` runs it"]
fn soak_a_line_that_is_cut_for_a_minute() {
    cut(60);
}

#[test]
#[ignore = "takes ten minutes; `make soak` runs it"]
fn soak_a_line_that_is_cut_for_ten_minutes() {
    cut(600);
}

#[test]
fn one_of_four_connections_that_swallows_is_passed_by() {
    let (stage, proxy) = proxied(4);
    let (one, two) = stage.session();
    wait_for("four connections", || one.stats().stripes.len() == 4);
    let (sender, _keep) = one.open(Order::Messages, b"").unwrap().split();
    let (_keep_too, receiver) = two.accept().unwrap().channel.split();
    sender.send(b"", b"before").unwrap();
    assert_eq!(receiver.receive().unwrap().unwrap().body, b"before");
    assert!(proxy.swallow_one());
    let got = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2000_u32 {
                sender.send(&number.to_le_bytes(), &[1; 10_000]).unwrap();
            }
        });
        (0..2000).map(|_| receiver.receive().unwrap().unwrap().head).collect::<BTreeSet<_>>()
    });
    assert_eq!(got, (0..2000_u32).map(|number| number.to_le_bytes().to_vec()).collect());
    wait_for("a connection in its place", || {
        let stats = one.stats();
        stats.stripes.len() == 4 && stats.stripes.iter().all(|it| !it.is_suspect)
    });
}

#[test]
fn a_restarted_listener_of_the_same_identity_says_that_the_session_is_lost() {
    let mut options = None;
    let stage = Stage::with(|listen, connect| {
        // An address of its own: while nobody listens there, nobody else takes its port.
        listen.addresses = vec!["127.0.0.77:0".parse().unwrap()];
        connect.stripes = StripeBounds::fixed(2);
        options = Some(listen.clone());
    });
    let (one, two) = stage.session();
    let address = stage.listener.addresses()[0];
    drop(stage.listener);
    let (sender, receiver) = one.open(Order::Messages, b"").unwrap().split();
    // The old process is gone at once: its connections end without a word.
    two.abandon();
    let mut options = options.unwrap();
    options.addresses = vec![address];
    let mut again = None;
    wait_for("the port", || {
        again = drover_link::Listener::bind(&options).ok();
        again.is_some()
    });
    assert_eq!(receiver.receive().unwrap_err().kind, LinkErrorKind::Lost);
    assert_eq!(sender.send(b"", b"").unwrap_err().kind, LinkErrorKind::Lost);
    assert_eq!(one.accept().unwrap_err().kind, LinkErrorKind::Lost);
}

#[test]
fn a_session_that_finds_no_way_back_is_given_up() {
    let limits = Limits { give_up_after: Duration::from_secs(2), ..Limits::default() };
    let stage = Stage::with(|listen, connect| (listen.limits, connect.limits) = (limits, limits));
    let (one, two) = stage.session();
    drop(stage.listener);
    two.abandon();
    assert_eq!(one.accept().unwrap_err().kind, LinkErrorKind::Lost);
}
