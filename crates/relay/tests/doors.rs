//! Doors: local unix sockets that lead over a link to unix sockets behind the other end.
#![allow(clippy::unwrap_used)]

use std::fs::DirEntry;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drover_link::Session;
use drover_relay::{Door, DoorError, Doors, Form, Ports, Probed, Reach, Refusal, Via, probe};
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
            let peer = session.peer().clone();
            let (to, ports) = (opening["to"].as_str().unwrap().to_string(), ports.clone());
            std::thread::spawn(move || drop(ports.connect(&peer, (&to, Form::Plain), incoming.channel)));
        }
    });
}

impl Scene {
    fn new(allowed: &str) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let at = format!("unix:{}/{allowed}", folder.path().display());
        let ports = Ports::start(vec![at.parse().unwrap()], PATIENCE, 100).unwrap();
        let mut scene = Scene { folder, doors: None, ports: Arc::new(ports), sessions: Arc::default() };
        scene.doors = Some(scene.open(Reach::Folder).unwrap());
        scene
    }

    /// Nobody but this user may connect, and the folder may be another's.
    fn guarded() -> Scene {
        let mut scene = Scene::new("*");
        scene.doors = None;
        scene.doors = Some(scene.open(Reach::User(None)).unwrap());
        scene
    }

    fn open(&self, reach: Reach) -> Result<Doors, DoorError> {
        let (connecting, kept) = (self.ports.clone(), self.sessions.clone());
        let dial = move || {
            let (near, far) = Session::pair();
            kept.lock().unwrap().push(far.clone());
            attend(far, connecting.clone());
            Ok(near)
        };
        let via = Via {
            site: "b".to_string(),
            dial: Arc::new(dial),
            is_shared: false,
            packs: true,
            takes_over: false,
        };
        let to = format!("unix:{}", self.path("far").display());
        Doors::open(via, &[Door { path: self.path("near"), reach, to }])
    }

    /// What is in the folder.
    fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        self.folder.path().read_dir().unwrap().map(name).collect()
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

/// A client's bytes come out at the other end, of the first connection that was made there.
#[track_caller]
fn leads_to(scene: &Scene, listener: &UnixListener) {
    scene.near().write_all(b"x").unwrap();
    let (mut far, mut byte) = (patient(listener.accept().unwrap().0), [0; 1]);
    assert_eq!((far.read(&mut byte).unwrap(), byte), (1, *b"x"), "somebody else was connected first");
}

#[test]
fn a_door_at_which_somebody_listens_is_refused_and_nobody_there_learns_of_it() {
    let scene = Scene::guarded();
    let listener = UnixListener::bind(scene.path("far")).unwrap();
    let refused = scene.open(Reach::User(None)).err();
    assert!(matches!(refused, Some(DoorError::Taken(path)) if path == scene.path("near")));
    leads_to(&scene, &listener);
}

#[test]
fn a_door_takes_the_place_of_a_socket_that_nobody_listens_at_and_of_no_other_file() {
    let mut scene = Scene::guarded();
    scene.doors = None;
    drop(UnixListener::bind(scene.path("near")).unwrap());
    scene.doors = Some(scene.open(Reach::User(None)).unwrap());
    let listener = UnixListener::bind(scene.path("far")).unwrap();
    leads_to(&scene, &listener);
    assert_eq!(scene.path("near").metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(scene.names().len(), 2, "{:?}", scene.names());
    scene.doors = None;
    symlink(scene.path("far"), scene.path("near")).unwrap();
    assert!(matches!(scene.open(Reach::User(None)).err(), Some(DoorError::Failed { .. })));
    assert!(scene.path("near").is_symlink());
}

#[test]
fn a_door_is_given_to_its_user_and_where_it_cannot_be_nothing_is_left() {
    let mut scene = Scene::guarded();
    scene.doors = None;
    let user = 4711;
    match scene.open(Reach::User(Some(user))) {
        Ok(_doors) => assert_eq!(scene.path("near").metadata().unwrap().uid(), user),
        Err(DoorError::NotGiven { .. }) => println!("not root: nothing can be given away"),
        Err(error) => panic!("{error}"),
    }
    assert!(scene.names().is_empty(), "{:?}", scene.names());
}

#[test]
fn a_door_that_is_closed_leaves_what_another_put_in_its_place() {
    let mut scene = Scene::guarded();
    std::fs::remove_file(scene.path("near")).unwrap();
    let _another = UnixListener::bind(scene.path("near")).unwrap();
    scene.doors = None;
    UnixStream::connect(scene.path("near")).unwrap();
}

#[test]
fn doors_that_close_leave_a_session_to_the_others_that_have_it() {
    for (is_shared, expected) in [(true, Ok(Probed::Free)), (false, Err(()))] {
        let scene = Scene::new("*");
        let (near, far) = Session::pair();
        attend(far, scene.ports.clone());
        let session = near.clone();
        let dial = move || Ok(session.clone());
        let via =
            Via { site: "b".to_string(), dial: Arc::new(dial), is_shared, packs: true, takes_over: false };
        let to = format!("unix:{}", scene.path("far").display());
        let place = scene.path("own");
        let doors = Doors::open(via, &[Door { path: place.clone(), reach: Reach::Folder, to: to.clone() }]);
        let mut client = patient(UnixStream::connect(&place).unwrap());
        // Nobody is there: by then the session is in use.
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
        drop(doors.unwrap());
        assert_eq!(probe(&near, &to).map_err(drop), expected);
    }
}
