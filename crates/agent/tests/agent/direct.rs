//! The way past a link: an agent listens at a port for a moment, for peers whose guests may come, within bounds.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::opening::{Answer, Listen, Listened, Listening, Opening, Refused};
use drover_agent::{Agent, DirectWay, Places, Site};
use drover_disk::DiskErrorKind;
use drover_link::{Order, Receiver, Sender, Session};

/// A session with an agent to which guests may come, or not.
fn session(agent: Agent) -> Session {
    let (here, there) = Session::pair();
    let agent = Arc::new(agent);
    std::thread::spawn(move || agent.serve(&there));
    here
}

fn agent() -> Agent {
    Agent::new(Arc::new(Places::default()))
}

fn site(agent: Agent) -> Arc<Site> {
    let session = session(agent);
    Site::new("b", move || Ok(session.clone()))
}

fn way(rate_max: Option<u64>) -> DirectWay {
    let (settle, time) = (Duration::from_millis(50), Duration::from_millis(300));
    DirectWay { host: "127.0.0.1".into(), ports: [0, 0], connections: 3, settle, time, rate_max }
}

fn listen(session: &Session, host: &str, ports: [u16; 2], connections: u16) -> (Sender, Receiver) {
    let opening = Opening::Listen(Listen { host: host.into(), ports, connections });
    let opening = serde_json::to_vec(&opening).unwrap();
    session.open(Order::Messages, &opening).unwrap().split()
}

fn answer((_, receiver): &(Sender, Receiver)) -> Answer<Listening> {
    serde_json::from_slice(&receiver.receive().unwrap().unwrap().body).unwrap()
}

#[track_caller]
fn refused(session: &Session, host: &str, ports: [u16; 2], connections: u16) -> Refused {
    match answer(&listen(session, host, ports, connections)) {
        Answer::Refused(refused) => refused,
        Answer::Ok(listening) => panic!("{listening:?}"),
    }
}

#[test]
fn plain_connections_are_measured_again_and_again() {
    let site = site(agent().with_listening());
    for _ in 0..2 {
        let probe = site.measure_direct(&way(None)).unwrap();
        assert!(probe.goodput > 0.0 && (0.0..1.0).contains(&probe.again), "{probe:?}");
        site.reaches_direct("127.0.0.1", free_port()).unwrap();
    }
    // Without a bound it would be a hundred times as much.
    let bounded = site.measure_direct(&way(Some(10_000_000))).unwrap();
    assert!(bounded.goodput < 100e6, "{bounded:?}");
}

#[test]
fn where_no_guest_may_come_nobody_listens() {
    let refusal = site(agent()).measure_direct(&way(None)).unwrap_err();
    assert_eq!(refusal.kind, DiskErrorKind::Unsupported);
    assert!(refusal.why.contains("--allow-connect"), "{refusal}");
    let refused = refused(&session(agent()), "127.0.0.1", [0, 0], 1);
    assert!(refused.why.contains("no guest may come here"), "{refused:?}");
}

#[test]
fn what_is_not_everybodys_is_not_listened_at() {
    let session = session(agent().with_listening());
    for (host, ports, connections, why) in [
        ("127.0.0.1", [80, 80], 1, "1024"),
        ("127.0.0.1", [5000, 4999], 1, "5000 to 4999"),
        ("127.0.0.1", [1024, 1280], 1, "256 of them"),
        ("127.0.0.1", [0, 7000], 1, "0 to 7000"),
        ("127.0.0.1", [0, 0], 0, "1 to 16"),
        ("127.0.0.1", [0, 0], 17, "1 to 16"),
        ("0.0.0.0", [0, 0], 1, "every address"),
        ("::ffff:0.0.0.0", [0, 0], 1, "every address"),
        ("192.0.2.1", [0, 0], 1, "no address of that host"),
        ("no such host", [0, 0], 1, "no such host"),
    ] {
        let refused = refused(&session, host, ports, connections);
        assert!(refused.why.contains(why), "{host} {ports:?}: {refused:?}");
    }
}

#[test]
fn strangers_are_read_nothing_of_and_the_port_is_closed_with_the_channel() {
    let session = session(agent().with_listening());
    let opened = listen(&session, "127.0.0.1", [0, 0], 2);
    let Answer::Ok(Listening { port, token }) = answer(&opened) else { panic!("refused") };
    let second = refused(&session, "127.0.0.1", [0, 0], 1);
    assert!(second.why.contains("measurements open"), "{second:?}");
    // More of them than connections are wanted, and some say nothing.
    let _silent: Vec<TcpStream> = (0..6).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(&vec![b'0'; token.len()]).unwrap();
    assert_eq!(stranger.read(&mut [0; 1]).unwrap(), 0, "it was let in");
    let mut known = TcpStream::connect(("127.0.0.1", port)).unwrap();
    known.write_all(token.as_bytes()).unwrap();
    known.write_all(b"seven b").unwrap();
    drop(known.shutdown(Shutdown::Write));
    assert_eq!(known.read(&mut [0; 1]).unwrap_or(0), 0, "it was answered");
    opened.0.finish().unwrap();
    let told = opened.1.receive().unwrap().unwrap();
    assert_eq!(
        serde_json::from_slice::<Answer<Listened>>(&told.body).unwrap(),
        Answer::Ok(Listened { connections: 1 })
    );
    // It ends after that, and with it the seat is free.
    let is_closed = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
    assert!(is_closed, "it is still listened at");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An agent that says so, whatever is asked of it.
fn site_that_says(listening: String) -> Arc<Site> {
    let (here, there) = Session::pair();
    std::thread::spawn(move || {
        let info = r#"{"ok":{"version":"1","pools":[],"devices":[],"takes":["listen"]}}"#;
        while let Ok(incoming) = there.accept() {
            let is_info = incoming.opening.windows(4).any(|word| word == b"info");
            let (sender, receiver) = incoming.channel.split();
            sender.send(&[], if is_info { info.as_bytes() } else { listening.as_bytes() }).unwrap();
            // To its last word.
            while receiver.receive().is_ok_and(|message| message.is_some()) {}
            // Who was not connected to is asked for nothing more.
            let told = sender.send(&[], br#"{"ok":{"connections":0}}"#);
            let _ = told.and_then(|()| sender.finish());
        }
    });
    Site::new("b", move || Ok(here.clone()))
}

/// What is between both lets nobody through, or somebody else is there.
#[test]
fn a_place_that_is_not_the_agents_is_told() {
    let closed = site_that_says(format!(r#"{{"ok":{{"port":{},"token":"t"}}}}"#, free_port()));
    let refusal = closed.measure_direct(&way(None)).unwrap_err();
    assert!(refusal.why.contains("connecting to it"), "{refusal}");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = other.accept() {
            open.push(std::thread::spawn(
                move || while stream.read(&mut [0; 65536]).is_ok_and(|read| read > 0) {},
            ));
        }
    });
    let refusal =
        site_that_says(format!(r#"{{"ok":{{"port":{port},"token":"t"}}}}"#)).measure_direct(&way(None));
    assert!(refusal.clone().unwrap_err().why.contains("not the agent"), "{refusal:?}");
    for said in [r#"{"ok":{"port":22,"token":"t"}}"#, r#"{"ok":{"port":5000,"token":""}}"#] {
        let refusal = site_that_says(said.into()).measure_direct(&way(None)).unwrap_err();
        assert_eq!(refusal.kind, DiskErrorKind::Corrupt, "{refusal}");
    }
}
