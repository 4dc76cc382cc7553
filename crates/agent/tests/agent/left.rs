//! Connections to unix sockets over sessions that their peer left without a word make way for the same peer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_agent::opening::Opening;
use drover_agent::{Agent, Connect, Places};
use drover_link::{Channel, Order, Peer, Session};

/// Tells when it was connected somewhere, and when that ended.
struct Told(Mutex<Sender<String>>);

impl Connect for Told {
    fn connect(&self, _: &Peer, (to, _): (&str, bool), channel: Channel) {
        let tell = |word: &str| self.0.lock().unwrap().send(format!("{word} {to}"));
        let (_sender, mut receiver) = channel.split();
        // A test that is over does not listen.
        let _ = tell("begins");
        while receiver.read(&mut [0; 16]).is_ok_and(|read| read > 0) {}
        let _ = tell("ends");
    }
}

struct Scene {
    agent: Arc<Agent>,
    told: Receiver<String>,
}

impl Scene {
    fn new() -> Scene {
        let (tell, told) = channel();
        let agent = Agent::new(Arc::new(Places::default())).with_connect(Arc::new(Told(Mutex::new(tell))));
        Scene { agent: Arc::new(agent), told }
    }

    fn session(&self) -> Session {
        self.session_of([0; 32])
    }

    fn session_of(&self, peer: [u8; 32]) -> Session {
        let (here, there) = Session::pair_by(peer);
        let agent = self.agent.clone();
        std::thread::spawn(move || agent.serve(&there));
        here
    }

    /// What comes next, so many words of it, in the order of the alphabet.
    #[track_caller]
    fn told_of(&self, number: usize) -> Vec<String> {
        let mut told: Vec<String> = (0..number).map(|_| self.next()).collect();
        told.sort();
        told
    }

    #[track_caller]
    fn next(&self) -> String {
        self.told.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

/// Connects; the channel has to be kept.
fn connect(session: &Session, to: &str) -> Channel {
    let opening =
        serde_json::to_vec(&Opening::Connect { to: to.into(), pieces: false, takes_over: true }).unwrap();
    session.open(Order::Stream, &opening).unwrap()
}

#[test]
fn one_that_was_killed_makes_way_for_its_peer() {
    let scene = Scene::new();
    let killed = scene.session();
    let _held = ["unix:/m", "unix:/m.memory", "unix:/m.2"].map(|to| connect(&killed, to));
    scene.told_of(3);
    killed.abandon();
    let again = scene.session();
    // What the killed one does not hold needs no wait.
    let _free = connect(&again, "unix:/free");
    let _port = connect(&again, "h:1");
    assert_eq!(scene.told_of(2), ["begins h:1", "begins unix:/free"]);
    let _mine = connect(&again, "unix:/m");
    // What belongs to the same guest, and of the rest nothing.
    assert_eq!(scene.told_of(3), ["begins unix:/m", "ends unix:/m", "ends unix:/m.memory"]);
    assert_eq!(scene.told.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
}

#[test]
fn another_peer_and_who_does_not_say_so_take_nothing_over() {
    let scene = Scene::new();
    let killed = scene.session();
    let _held = connect(&killed, "unix:/m");
    assert_eq!(scene.next(), "begins unix:/m");
    killed.abandon();
    let (stranger, relay) = (scene.session_of([7; 32]), scene.session());
    let _theirs = connect(&stranger, "unix:/m");
    let shares = Opening::Connect { to: "unix:/m".into(), pieces: false, takes_over: false };
    let _shared = relay.open(Order::Stream, &serde_json::to_vec(&shares).unwrap()).unwrap();
    assert_eq!(scene.told_of(2), ["begins unix:/m", "begins unix:/m"]);
    // Longer than one that takes over waits.
    assert_eq!(scene.told.recv_timeout(Duration::from_secs(6)), Err(RecvTimeoutError::Timeout));
}

#[test]
fn one_that_is_there_makes_no_way() {
    let scene = Scene::new();
    let (one, two) = (scene.session(), scene.session());
    let _held = connect(&one, "unix:/m");
    assert_eq!(scene.next(), "begins unix:/m");
    let _mine = connect(&two, "unix:/m");
    assert_eq!(scene.next(), "begins unix:/m");
    let ended = scene.told.recv_timeout(Duration::from_millis(500));
    assert_eq!(ended, Err(RecvTimeoutError::Timeout));
}
