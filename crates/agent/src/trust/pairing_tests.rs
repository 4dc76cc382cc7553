use super::*;
use crate::trust::{Folder, TRIES_MAX};

/// An agent with its state, and a host that would like to be its peer.
struct Scene {
    _states: [tempfile::TempDir; 2],
    tokens: Tokens,
    peers: [Peers; 2],
}

const AGENT: Fingerprint = Fingerprint([1; 32]);
const STRANGER: Fingerprint = Fingerprint([2; 32]);

impl Scene {
    fn new() -> Scene {
        let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let folders = states.each_ref().map(|state| Folder::open(state.path()).unwrap());
        let tokens = Tokens::new(folders[0].clone());
        Scene { _states: states, tokens, peers: folders.map(Peers::new) }
    }

    fn token(&self, name: Option<&str>) -> Token {
        self.tokens.issue(AGENT, name.map(str::to_string), 100, 50).unwrap().token
    }

    /// Pairs at that time.
    fn pair(&self, token: &Token, name: Option<&str>, now: u64) -> Result<Paired, PairError> {
        let (here, there) = Session::pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let incoming = there.accept().unwrap();
                let opening: Opening = serde_json::from_slice(&incoming.opening).unwrap();
                let Opening::Pair { name } = opening else { panic!("{opening:?}") };
                let stores = (&self.tokens, &self.peers[0]);
                pair_as_agent(incoming.channel, STRANGER, &name, "agent-host", stores, now).unwrap();
            });
            let agent = |name| Peer::new(name, token.agent, vec!["b:7".into()], now);
            pair_with(&here, token, "my-host", name, &self.peers[1], agent)
        })
    }

    fn refused(&self, token: &Token, now: u64) -> String {
        self.pair(token, None, now).unwrap_err().to_string()
    }
}

#[test]
fn a_token_makes_both_sides_peers_once() {
    let scene = Scene::new();
    let token = scene.token(None);
    let paired = scene.pair(&token, Some("site-b"), 101).unwrap();
    assert_eq!(paired, Paired { name: "site-b".into(), key: AGENT, called: "my-host".into() });
    assert_eq!(scene.peers[0].with_key(STRANGER).unwrap().unwrap().name, "my-host");
    let agent = scene.peers[1].named("site-b").unwrap().unwrap();
    assert_eq!((agent.key, agent.addresses), (AGENT, vec!["b:7".to_string()]));
    assert!(scene.refused(&token, 102).contains("used before"));
}

#[test]
fn names_chosen_on_either_side_count() {
    let scene = Scene::new();
    let paired = scene.pair(&scene.token(Some("west")), None, 101).unwrap();
    assert_eq!((paired.name.as_str(), paired.called.as_str()), ("agent-host", "west"));
}

#[test]
fn expired_wrong_and_withdrawn_tokens_are_refused_by_name() {
    let scene = Scene::new();
    let token = scene.token(None);
    assert!(scene.refused(&token, 150).contains("expired"));
    let other = Scene::new().token(None);
    for _ in 0..TRIES_MAX {
        assert!(scene.refused(&other, 101).contains("no such token"));
    }
    assert!(scene.refused(&token, 101).contains("withdrawn"));
    assert_eq!(scene.peers[0].list().unwrap(), []);
    assert_eq!(scene.peers[1].list().unwrap(), []);
}

#[test]
fn a_name_that_another_has_is_refused() {
    let scene = Scene::new();
    let other = Peer::new("my-host", Fingerprint([9; 32]), Vec::new(), 1);
    scene.peers[0].add(other.clone()).unwrap().unwrap();
    assert!(scene.refused(&scene.token(None), 101).contains("another peer is called 'my-host'"));
    assert_eq!(scene.peers[0].list().unwrap(), [other]);
}
