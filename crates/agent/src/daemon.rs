//! The daemon around an agent: who may come in, strangers with a token, and the end of sessions whose peer was revoked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_link::Session;

use crate::opening::Opening;
use crate::serve::Agent;
use crate::trust::{Fingerprint, FolderError, Peer, Peers, Tokens, pair_as_agent};

/// Strangers with a session at the same time; only while a token is open, and only to pair.
pub const STRANGERS_MAX: usize = 4;

/// How long a stranger may take to show its token. When one more comes than there may be, the one that has had most of
/// its time ends: who has a token shows it within some round trips, who wants to keep others out does not.
const STRANGER_TIME: Duration = Duration::from_secs(30);

/// Strangers whose session was ended and that have not gone yet, with those that have one.
const STRANGERS_IN_ALL_MAX: usize = 4 * STRANGERS_MAX;

/// Sessions at the same time; the link's listener has fewer.
pub const SESSIONS_MAX: usize = 1000;

/// What a peer is told whose session is ended here.
const ENDED: &str = "the agent trusts the key of this host no more: it was revoked, or took too long to pair";

/// An agent with its peers.
pub struct Daemon {
    agent: Arc<Agent>,
    own_name: String,
    tokens: Tokens,
    peers: Peers,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    next: u64,
    open: Vec<Open>,
}

struct Open {
    number: u64,
    key: Fingerprint,
    session: Session,
    /// When a stranger's time is over.
    until: Option<Instant>,
    /// It was told to go.
    is_ended: bool,
}

impl Sessions {
    /// Ends the oldest of the strangers if there are as many as there may be.
    fn make_way(&mut self) {
        let mut strangers = self.open.iter_mut().filter(|open| open.until.is_some() && !open.is_ended);
        let oldest = strangers.next();
        if let Some(oldest) = oldest.filter(|_| strangers.count() + 1 >= STRANGERS_MAX) {
            oldest.is_ended = true;
            oldest.session.abandon();
        }
    }
}

/// What happened, for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer's session began.
    Came(String),
    /// It is over.
    Went(String),
    /// A stranger became a peer.
    Paired(String),
    /// A stranger did not.
    NotPaired,
    /// A session was ended because its peer was revoked, or a stranger's time was over.
    Ended(Fingerprint),
    /// There were too many sessions.
    TooMany,
    /// The state cannot be used.
    State(String),
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Daemon {
    /// A daemon that calls itself so.
    pub fn new(agent: Agent, own_name: &str, tokens: Tokens, peers: Peers) -> Arc<Daemon> {
        let (name, stores) = (own_name.to_string(), (tokens.clone(), peers.clone()));
        let agent = agent.with_pair(Box::new(move |session, channel, suggested| {
            let key = Fingerprint(session.peer().fingerprint);
            // The peer has been told; what it was before, it still is.
            let _ = pair_as_agent(channel, key, suggested, &name, (&stores.0, &stores.1), now());
        }));
        Arc::new(Daemon {
            agent: Arc::new(agent),
            own_name: own_name.to_string(),
            tokens,
            peers,
            sessions: Mutex::default(),
        })
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a key may come in: that of a peer, and while a token is open any. For the handshake.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(&self, key: Fingerprint) -> Result<(), String> {
        let known = self.peers.with_key(key).map_err(|error| error.to_string())?;
        if known.is_some() || self.tokens.any_open(now()).map_err(|error| error.to_string())? {
            return Ok(());
        }
        Err(format!("the key {key} is no peer's of this agent: it was revoked, or has to be paired first"))
    }

    /// As [`Daemon::judge`], with the name that the session is to have.
    ///
    /// # Errors
    /// Why the key may not come in.
    pub fn admit(&self, key: Fingerprint) -> Result<String, String> {
        self.judge(key)?;
        let known = self.peers.with_key(key).map_err(|error| error.to_string())?;
        Ok(known.map_or_else(|| format!("stranger {key}"), |peer| peer.name))
    }

    /// Serves a session in a thread of its own. What happens is told to `tell`.
    pub fn take(self: &Arc<Self>, session: Session, tell: impl Fn(Event) + Send + 'static) {
        let key = Fingerprint(session.peer().fingerprint);
        let peer = match self.peers.with_key(key) {
            Ok(peer) => peer,
            Err(error) => return tell(state(&error)),
        };
        let Some(number) = self.enter(key, &session, peer.is_none()) else {
            tell(Event::TooMany);
            // Nothing was sent on it: there is nothing to wait for.
            return session.abandon();
        };
        let daemon = self.clone();
        let spawned = Builder::new().name("agent-session".to_string()).spawn(move || {
            match peer {
                Some(peer) => {
                    tell(Event::Came(peer.name.clone()));
                    daemon.agent.serve(&session);
                    tell(Event::Went(peer.name));
                }
                None => tell(daemon.pair(&session, key)),
            }
            daemon.sessions().open.retain(|open| open.number != number);
        });
        if spawned.is_err() {
            self.sessions().open.retain(|open| open.number != number);
        }
    }

    fn enter(&self, key: Fingerprint, session: &Session, is_stranger: bool) -> Option<u64> {
        let mut sessions = self.sessions();
        let strangers = sessions.open.iter().filter(|open| open.until.is_some()).count();
        if sessions.open.len() >= SESSIONS_MAX || (is_stranger && strangers >= STRANGERS_IN_ALL_MAX) {
            return None;
        }
        if is_stranger {
            sessions.make_way();
        }
        sessions.next += 1;
        let number = sessions.next;
        let until = is_stranger.then(|| Instant::now() + STRANGER_TIME);
        sessions.open.push(Open { number, key, session: session.clone(), until, is_ended: false });
        Some(number)
    }

    /// Lets a stranger show a token. Its session ends with that: as a peer it comes again.
    fn pair(&self, session: &Session, key: Fingerprint) -> Event {
        let paired = self.pair_on(session, key);
        session.close();
        match paired {
            Ok(Some(peer)) => Event::Paired(peer.name),
            Ok(None) => Event::NotPaired,
            Err(error) => state(&error),
        }
    }

    fn pair_on(&self, session: &Session, key: Fingerprint) -> Result<Option<Peer>, FolderError> {
        let Ok(incoming) = session.accept() else { return Ok(None) };
        match serde_json::from_slice(&incoming.opening) {
            Ok(Opening::Pair { name }) => {
                let stores = (&self.tokens, &self.peers);
                pair_as_agent(incoming.channel, key, &name, &self.own_name, stores, now())
            }
            _ => {
                incoming.channel.split().0.reset();
                Ok(None)
            }
        }
    }

    /// Ends sessions whose peer is none any more. To be called every second or so.
    pub fn look_after(&self, tell: impl Fn(Event)) {
        let peers = match self.peers.list() {
            Ok(peers) => peers,
            // Who may stay cannot be told: nobody is sent away for that.
            Err(error) => return tell(state(&error)),
        };
        let is_over = |open: &Open| match open.until {
            Some(until) => until <= Instant::now(),
            None => !peers.iter().any(|peer| peer.key == open.key),
        };
        let over: Vec<(Fingerprint, Session)> = {
            let mut sessions = self.sessions();
            let over = sessions.open.iter_mut().filter(|open| !open.is_ended && is_over(open));
            over.map(|open| {
                open.is_ended = true;
                (open.key, open.session.clone())
            })
            .collect()
        };
        for (key, session) in over {
            // What is on its way from one that is not trusted any more is not waited for.
            session.end(ENDED);
            tell(Event::Ended(key));
        }
    }

    /// Ends all sessions.
    pub fn stop(&self) {
        let sessions: Vec<Session> = self.sessions().open.iter().map(|open| open.session.clone()).collect();
        sessions.iter().for_each(Session::close);
    }

    /// Sessions that are open.
    pub fn open_sessions(&self) -> usize {
        self.sessions().open.len()
    }
}

fn state(error: &FolderError) -> Event {
    Event::State(crate::error::chain(error))
}
