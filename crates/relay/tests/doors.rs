//! Doors: local unix sockets that lead over a link to unix sockets behind the other end.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drover_link::Session;
use drover_relay::{Door, Doors, Form, Ports, Probed, Refusal, Via, probe};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);

/// A door `near` that leads to `far`, a link whose far end is allowed `allowed` of its folder, and that end's sessions.
struct Scene {
    folder: TempDir,
    doors: Option<Doors>,
    ports: Arc<Ports>,
    sessions: Arc<Mutex<Vec<Session>>>,
}

fn attend(session: Session, ports: Arc<Ports>) {
    std::thread::spawn(move || {
        while let Ok(incoming) = session.accept() {
            let opening: Value = serde_json::from_slice(&incoming.opening).unwrap();
            let (to, ports) = (opening["to"].as_str().unwrap().to_string(), ports.clone());
            std::thread::spawn(move || drop(ports.connect("a", (&to, Form::Plain), incoming.channel)));
        }
    });
}

impl Scene {
    fn new(allowed: &str) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("unix:{}/{name}", folder.path().display());
        let ports = Ports::start(vec![at(allowed).parse().unwrap()], PATIENCE, 100).unwrap();
        let (ports, sessions) = (Arc::new(ports), Arc::<Mutex<Vec<Session>>>::default());
        let (connecting, kept) = (ports.clone(), sessions.clone());
        let dial = move || {
            let (near, far) = Session::pair();
            kept.lock().unwrap().push(far.clone());
            attend(far, connecting.clone());
            Ok(near)
        };
        let via = Via { site: "b".to_string(), dial: Arc::new(dial), packs: true };
        let door = Door { path: folder.path().join("near"), to: at("far") };
        let doors = Some(Doors::open(via, &[door]).unwrap());
        Scene { folder, doors, ports, sessions }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn near(&self) -> UnixStream {
        patient(UnixStream::connect(self.path("near")).unwrap())
    }

    fn probe(&self, name: &str) -> Probed {
        let (near, far) = Session::pair();
        attend(far, self.ports.clone());
        probe(&near, &format!("unix:{}", self.path(name).display())).unwrap()
    }
}

fn patient(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(step).collect()
}

fn send(stream: &UnixStream, content: Vec<u8>) -> std::thread::JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        stream.write_all(&content).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    })
}

fn read_all(mut stream: &UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn bytes_and_ends_go_both_ways_for_many_at_once() {
    let scene = Scene::new("*");
    let listener = UnixListener::bind(scene.path("far")).unwrap();
    // Each is accepted before the next is made, so both ends of a pair belong together.
    let pairs: Vec<_> = (0..4).map(|_| (scene.near(), patient(listener.accept().unwrap().0))).collect();
    let work = |(number, (near, far)): (u64, (UnixStream, UnixStream))| {
        std::thread::spawn(move || {
            let (up, down) = (noise(number + 1, 3_000_007), noise(number + 100, 1_000_003));
            let sending = [send(&near, up.clone()), send(&far, down.clone())];
            let there = std::thread::spawn(move || read_all(&far));
            assert!(read_all(&near) == down && there.join().unwrap() == up, "connection {number}");
            sending.into_iter().for_each(|it| it.join().unwrap());
        })
    };
    let threads: Vec<_> = (0..).zip(pairs).map(work).collect();
    threads.into_iter().for_each(|it| it.join().unwrap());
}

#[test]
fn what_is_not_allowed_is_refused_with_the_reason() {
    let scene = Scene::new("other");
    let _listener = UnixListener::bind(scene.path("far")).unwrap();
    assert_eq!(scene.near().read(&mut [0; 1]).unwrap_or(0), 0, "it was connected");
    let until = Instant::now() + PATIENCE;
    let refused = loop {
        if let Some(refused) = scene.doors.as_ref().unwrap().take_refused().pop() {
            break refused;
        }
        assert!(Instant::now() < until, "nothing is told");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(refused.reason, Refusal::SitePolicy);
    assert!(refused.why.contains("--allow-connect unix:/"), "{}", refused.why);
}

#[test]
fn a_place_is_taken_free_or_not_allowed() {
    let scene = Scene::new("far");
    assert_eq!(scene.probe("far"), Probed::Free);
    let _listener = UnixListener::bind(scene.path("far")).unwrap();
    assert_eq!(scene.probe("far"), Probed::Taken);
    assert!(matches!(scene.probe("other"), Probed::Refused(Refusal::SitePolicy, _)));
    assert!(matches!(scene.probe("../far"), Probed::Refused(Refusal::TargetUnreachable, _)));
}

#[test]
fn a_link_that_is_lost_ends_both_sides_and_the_next_client_has_a_new_one() {
    let scene = Scene::new("*");
    let listener = UnixListener::bind(scene.path("far")).unwrap();
    let (mut near, mut far) = (scene.near(), patient(listener.accept().unwrap().0));
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0; 1]).unwrap();
    scene.sessions.lock().unwrap()[0].close();
    assert_eq!(near.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(far.read(&mut [0; 1]).unwrap_or(0), 0);
    // The end of the session comes after those of its channels: a client that is faster ends with it.
    let until = Instant::now() + PATIENCE;
    while scene.doors.as_ref().unwrap().link().state == "up" {
        assert!(Instant::now() < until, "the link never ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut near, mut far) = (scene.near(), patient(listener.accept().unwrap().0));
    near.write_all(b"y").unwrap();
    far.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(scene.sessions.lock().unwrap().len(), 2);
}

#[test]
fn doors_that_are_closed_end_what_they_carry_and_leave_nothing() {
    let mut scene = Scene::new("*");
    let listener = UnixListener::bind(scene.path("far")).unwrap();
    let (mut near, mut far) = (scene.near(), patient(listener.accept().unwrap().0));
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0; 1]).unwrap();
    scene.doors = None;
    assert_eq!(near.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(far.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(!scene.path("near").exists());
}
