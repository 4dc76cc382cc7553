//! A paired relay: connections over a link, to ports behind the other end.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{MIB, listener, noise, read_all, send};
use drover_link::Session;
use drover_relay::rule::Policy;
use drover_relay::{DialError, PairedLine, PairedRelay, Ports, Refusal, Snapshot};
use drover_tcp as tcp;
use serde_json::Value;

/// The far end: connects what it is asked for, as an agent does.
fn attend(session: Session, ports: Ports) {
    std::thread::spawn(move || {
        while let Ok(incoming) = session.accept() {
            let opening: Value = serde_json::from_slice(&incoming.opening).unwrap();
            assert_eq!(opening["service"], "connect");
            let (to, ports) = (opening["to"].as_str().unwrap().to_string(), ports.clone());
            // A target that refuses is told by a reset.
            std::thread::spawn(move || drop(ports.connect(&to, incoming.channel)));
        }
    });
}

/// A relay whose every session is a new pair, and the far ends of the sessions that were dialled.
struct Scene {
    relay: PairedRelay,
    far: Arc<Mutex<Vec<Session>>>,
    dials: Arc<AtomicUsize>,
}

fn scene(target: &TcpListener, allowed: &str, policy: &str) -> Scene {
    let ports = Ports::new(vec![allowed.parse().unwrap()], Duration::from_secs(10));
    let far: Arc<Mutex<Vec<Session>>> = Arc::default();
    let dials = Arc::new(AtomicUsize::new(0));
    let (kept, counted) = (far.clone(), dials.clone());
    let dial = move || {
        let (near, there) = Session::pair();
        counted.fetch_add(1, Ordering::Relaxed);
        kept.lock().unwrap().push(there.clone());
        attend(there, ports.clone());
        Ok::<_, DialError>(near)
    };
    let line =
        PairedLine { listen: "127.0.0.1:0".parse().unwrap(), to: target.local_addr().unwrap().to_string() };
    let policy = Policy::parse(policy).unwrap();
    let relay = PairedRelay::start(&[line], policy, 100, Box::new(dial)).map_err(|(_, error)| error).unwrap();
    Scene { relay, far, dials }
}

impl Scene {
    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.relay.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        stream
    }

    fn pair(&self, target: &TcpListener) -> (TcpStream, TcpStream) {
        let near = self.client();
        let (far, _) = target.accept().unwrap();
        far.set_read_timeout(Some(common::PATIENCE)).unwrap();
        (near, far)
    }

    fn exchange(&self, target: &TcpListener, seed: u64) {
        let (near, far) = self.pair(target);
        let (up, down) = (noise(seed, 9 * MIB + 7), noise(seed + 1, 5 * MIB + 3));
        let sending = [send(&near, up.clone()), send(&far, down.clone())];
        let reading = {
            let far = far.try_clone().unwrap();
            std::thread::spawn(move || read_all(&far))
        };
        assert!(read_all(&near) == down, "what came back differs");
        assert!(reading.join().unwrap() == up, "what arrived differs");
        sending.into_iter().for_each(|it| it.join().unwrap());
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let until = Instant::now() + common::PATIENCE;
        loop {
            let told = self.relay.teller().snapshot(10);
            if is_there(&told) {
                return told;
            }
            assert!(Instant::now() < until, "{what} never came: {told:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn bytes_and_ends_go_both_ways_over_a_link() {
    let target = listener();
    let scene = scene(&target, "127.0.0.0/8:1-65535", "");
    scene.exchange(&target, 1);
    scene.exchange(&target, 3);
    let told = scene.wait_for("the end", |it| it.totals.closed == 2);
    assert_eq!((told.totals.accepted, told.totals.connected, told.totals.reset), (2, 2, 0));
    assert_eq!(told.totals.up_bytes, 2 * (9 * MIB as u64 + 7));
    assert_eq!(scene.dials.load(Ordering::Relaxed), 1, "one session is enough");
}

#[test]
fn one_way_may_end_long_before_the_other() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (mut near, mut far) = scene.pair(&target);
    near.write_all(b"question").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&far), b"question");
    far.write_all(b"answer").unwrap();
    drop(far);
    assert_eq!(read_all(&near), b"answer");
}

#[test]
fn resets_are_carried_over_both_ways() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (near, mut far) = scene.pair(&target);
    tcp::reset_on_close(&near).unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (mut near, far) = scene.pair(&target);
    tcp::reset_on_close(&far).unwrap();
    drop(far);
    assert_eq!(near.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let told = scene.wait_for("the resets", |it| it.totals.reset == 2 && it.live == 0);
    assert_eq!(told.totals.closed, 0);
}

#[test]
fn what_the_far_end_does_not_allow_is_reset() {
    let target = listener();
    for allowed in ["10.0.0.0/8:1-65535", "127.0.0.1:1"] {
        let scene = scene(&target, allowed, "");
        assert_eq!(scene.client().read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        scene.wait_for("the reset", |it| it.totals.reset == 1);
    }
}

#[test]
fn the_policy_and_its_rates_hold() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "allow from 127.0.0.0/8 rate 800m");
    scene.exchange(&target, 5);
    scene.wait_for("the end", |it| it.totals.closed == 1);
    let denied = self::scene(&target, "*:1-65535", "deny from 127.0.0.0/8");
    assert_eq!(denied.client().read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    denied.wait_for("the refusal", |it| it.totals.refused.contains_key(&Refusal::Policy));
}

#[test]
fn a_session_that_ended_resets_its_connections_and_the_next_one_dials_again() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (mut near, mut far) = scene.pair(&target);
    near.write_all(b"half").unwrap();
    far.read_exact(&mut [0; 4]).unwrap();
    let session = scene.far.lock().unwrap().pop().unwrap();
    session.close();
    for end in [&mut near, &mut far] {
        assert_eq!(end.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    scene.wait_for("the reset", |it| it.totals.reset == 1);
    scene.exchange(&target, 9);
    assert_eq!(scene.dials.load(Ordering::Relaxed), 2);
}

#[test]
fn a_stop_resets_what_is_left() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (mut near, mut far) = scene.pair(&target);
    near.write_all(b"half").unwrap();
    far.read_exact(&mut [0; 4]).unwrap();
    scene.relay.stop(Duration::ZERO);
    for end in [&mut near, &mut far] {
        assert_eq!(end.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn without_an_agent_clients_are_reset_and_the_reason_is_told() {
    let line = PairedLine { listen: "127.0.0.1:0".parse().unwrap(), to: "x:1".to_string() };
    let dial = Box::new(|| Err::<Session, DialError>("nobody there".into()));
    let relay =
        PairedRelay::start(&[line], Policy::default(), 100, dial).map_err(|(_, error)| error).unwrap();
    let mut near = TcpStream::connect(relay.addresses()[0]).unwrap();
    near.set_read_timeout(Some(common::PATIENCE)).unwrap();
    assert_eq!(near.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(relay.take_error().as_deref(), Some("nobody there"));
    assert_eq!(relay.take_error(), None);
}
