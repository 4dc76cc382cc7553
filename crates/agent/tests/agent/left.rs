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
        let (here, there) = Session::pair();
        let agent = self.agent.clone();
        std::thread::spawn(move || agent.serve(&there));
        here
    }

    #[track_caller]
    fn next(&self) -> String {
        self.told.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

/// Connects; the channel has to be kept.
fn connect(session: &Session, to: &str) -> Channel {
    let opening = serde_json::to_vec(&Opening::Connect { to: to.into(), pieces: false }).unwrap();
    session.open(Order::Stream, &opening).unwrap()
}

#[test]
fn one_that_was_killed_makes_way_for_its_peer() {
    let scene = Scene::new();
    let killed = scene.session();
    let _held = connect(&killed, "unix:/m");
    assert_eq!(scene.next(), "begins unix:/m");
    killed.abandon();
    let again = scene.session();
    // What the killed one does not hold needs no wait.
    let _other = connect(&again, "unix:/other");
    let _port = connect(&again, "h:1");
    let mut begun = [scene.next(), scene.next()];
    begun.sort();
    assert_eq!(begun, ["begins h:1", "begins unix:/other"]);
    let _mine = connect(&again, "unix:/m");
    let mut told = [scene.next(), scene.next()];
    told.sort();
    assert_eq!(told, ["begins unix:/m", "ends unix:/m"]);
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
