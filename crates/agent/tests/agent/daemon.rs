//! Who may come in, and who must go.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use drover_agent::trust::{Fingerprint, Folder, Peer, Peers, Tokens, pair_with};
use drover_agent::{Agent, Daemon, Event, Places, Site, now};
use drover_link::{LinkErrorKind, Session};

const WAIT: Duration = Duration::from_secs(60);

/// The key that sessions in memory show.
const KEY: Fingerprint = Fingerprint([0; 32]);

struct Scene {
    _state: tempfile::TempDir,
    daemon: Arc<Daemon>,
    peers: Peers,
    tokens: Tokens,
}

fn scene() -> Scene {
    let state = tempfile::tempdir().unwrap();
    let folder = Folder::open(state.path()).unwrap();
    let (peers, tokens) = (Peers::new(folder.clone()), Tokens::new(folder));
    let agent = Agent::new(Arc::new(Places::default()));
    let daemon = Daemon::new(agent, "site-b", tokens.clone(), peers.clone());
    Scene { _state: state, daemon, peers, tokens }
}

fn peer(name: &str) -> Peer {
    Peer::new(name, KEY, Vec::new(), 1)
}

#[test]
fn a_revoked_peer_is_sent_away_and_not_let_in_again() {
    let scene = scene();
    scene.peers.add(peer("site-a")).unwrap().unwrap();
    assert_eq!(scene.daemon.judge(KEY), Ok(()));
    let (here, there) = Session::pair();
    let (tell, told) = channel();
    scene.daemon.take(there, move |event| tell.send(event).unwrap());
    assert_eq!(told.recv_timeout(WAIT).unwrap(), Event::Came("site-a".to_string()));
    let site = Site::new("b", move || Ok(here.clone()));
    site.info().unwrap();
    scene.daemon.look_after(|event| panic!("{event:?}: it is a peer"));
    let token = scene.tokens.issue(Fingerprint([5; 32]), Some("east".into()), now(), 1000).unwrap().token;
    let own = tempfile::tempdir().unwrap();
    let own = Peers::new(Folder::open(own.path()).unwrap());
    let agent = |name| Peer::new(name, token.agent, Vec::new(), 1);
    let session = site.session().unwrap();
    assert_eq!(pair_with(&session, &token, "me", None, &own, agent).unwrap().called, "east", "paired again");
    assert!(scene.peers.revoke("east").unwrap());
    scene.daemon.look_after(|event| assert_eq!(event, Event::Ended(KEY)));
    assert_eq!(told.recv_timeout(WAIT).unwrap(), Event::Went("site-a".to_string()));
    assert!(site.info().is_err());
    assert!(scene.daemon.judge(KEY).unwrap_err().contains("revoked"));
}

#[test]
fn a_stranger_is_let_in_only_while_a_token_is_open_and_only_to_pair() {
    let scene = scene();
    assert!(scene.daemon.judge(KEY).is_err());
    let token = scene.tokens.issue(Fingerprint([5; 32]), Some("west".into()), now(), 1000).unwrap().token;
    assert_eq!(scene.daemon.judge(KEY), Ok(()));
    // Who wants anything else gets nothing.
    let (here, there) = Session::pair();
    let (tell, told) = channel();
    scene.daemon.take(there, move |event| tell.send(event).unwrap());
    let refused = Site::new("b", move || Ok(here.clone()));
    assert!(refused.info().is_err());
    assert_eq!(told.recv_timeout(WAIT).unwrap(), Event::NotPaired);
    let (here, there) = Session::pair();
    let (tell, told) = channel();
    scene.daemon.take(there, move |event| tell.send(event).unwrap());
    let own = tempfile::tempdir().unwrap();
    let own = Peers::new(Folder::open(own.path()).unwrap());
    let agent = |name| Peer::new(name, token.agent, Vec::new(), 1);
    assert_eq!(pair_with(&here, &token, "me", None, &own, agent).unwrap().called, "west");
    assert_eq!(told.recv_timeout(WAIT).unwrap(), Event::Paired("west".to_string()));
    assert_eq!(scene.peers.with_key(KEY).unwrap().unwrap().name, "west");
    let until = Instant::now() + WAIT;
    while scene.daemon.open_sessions() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let over = here.accept().unwrap_err();
    assert_eq!(over.kind, LinkErrorKind::Closed);
}

/// Strangers can come in only while a token is open; silent ones must not keep out the one that has it.
#[test]
fn silent_strangers_make_way_for_one_with_a_token() {
    let scene = scene();
    let token = scene.tokens.issue(Fingerprint([5; 32]), Some("west".into()), now(), 1000).unwrap().token;
    let (tell, told) = channel();
    let come = || {
        let (here, there) = Session::pair();
        let tell = tell.clone();
        scene.daemon.take(there, move |event| tell.send(event).unwrap());
        here
    };
    let silent: Vec<Session> = (0..10).map(|_| come()).collect();
    let own = tempfile::tempdir().unwrap();
    let own = Peers::new(Folder::open(own.path()).unwrap());
    let agent = |name| Peer::new(name, token.agent, Vec::new(), 1);
    assert_eq!(pair_with(&come(), &token, "me", None, &own, agent).unwrap().called, "west");
    let until = Instant::now() + WAIT;
    while told.recv_timeout(WAIT).unwrap() != Event::Paired("west".to_string()) {
        assert!(Instant::now() < until);
    }
    drop(silent);
}
