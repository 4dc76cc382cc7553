//! The near end of a link: a session with the agent, made when it is needed, and the channels asked for on it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_link::{Hurry, LinkErrorKind, Order, Session};

use crate::answer::{form_for, opening};
use crate::book::Book;
use crate::connecting::Settings;
use crate::connection::Meta;
use crate::linked::{End, Form, Linked};
use crate::options::Via;
use crate::stats::{LinkStats, Refusal};
use crate::turns::{Heard, Turn, Turns};
use crate::worker::{Inbox, Job, hand_over};

/// How long a client waits for its turn to be asked for.
const TURN_WITHIN: Duration = Duration::from_secs(60);
/// After a failure to make a session, clients are refused for so long before the next try.
const DIAL_PAUSE: Duration = Duration::from_secs(1);

/// A client that may pass, to a target that the agent is to connect to.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) meta: Meta,
    pub(crate) client: OwnedFd,
    pub(crate) settings: Arc<Settings>,
}

enum Stand {
    /// Nobody has needed it yet, or what there was is over.
    None,
    Dialling,
    Up(Session),
    Down {
        until: Instant,
        why: String,
    },
}

struct State {
    stand: Stand,
    turns: Turns<Asked>,
    is_over: bool,
}

pub(crate) struct Uplink {
    via: Via,
    inboxes: Vec<Arc<Inbox>>,
    book: Arc<Book>,
    state: Mutex<State>,
}

/// A turn among those that the agent was asked for. Given back when dropped: the next one has it.
pub(crate) struct Asking {
    uplink: Arc<Uplink>,
    turn: Option<Turn>,
    heard: Heard,
}

impl Asking {
    /// What was heard of the target, for when the turn ends.
    pub(crate) fn hear(&mut self, heard: Heard) {
        self.heard = heard;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = self.uplink.lock();
        if let Some(turn) = self.turn.take() {
            state.turns.give_back(turn, self.heard);
        }
        self.uplink.go_on(&mut state);
    }
}

impl Uplink {
    pub(crate) fn new(via: Via, inboxes: Vec<Arc<Inbox>>, book: Arc<Book>) -> Arc<Uplink> {
        let state = State { stand: Stand::None, turns: Turns::new(), is_over: false };
        Arc::new(Uplink { via, inboxes, book, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so what a panic left is as good as before.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session now, so that the first client finds one.
    pub(crate) fn begin(self: &Arc<Self>) {
        self.dial(&mut self.lock());
    }

    /// Clients that wait for the session, or for their turn.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().turns.waiting()
    }

    /// Takes a client on: it is asked for now, waits for its turn, or is refused.
    pub(crate) fn take(self: &Arc<Self>, asked: Asked) {
        let mut state = self.lock();
        if let Stand::Down { until, why } = &state.stand
            && Instant::now() < *until
        {
            let why = why.clone();
            drop(state);
            return self.refuse(&asked, Refusal::Link, why);
        }
        // Dropped, one that comes too late is reset.
        if !state.is_over {
            let target = asked.meta.target.clone();
            state.turns.push(&target, asked);
            self.go_on(&mut state);
        }
    }

    fn refuse(&self, asked: &Asked, reason: Refusal, why: String) {
        self.book.refuse(&asked.client, &asked.meta, reason, why);
    }

    /// Asks for as many as may be asked for at a time.
    fn go_on(self: &Arc<Self>, state: &mut State) {
        while !state.is_over {
            let session = match &state.stand {
                Stand::Up(session) => session.clone(),
                Stand::Dialling => return,
                Stand::None | Stand::Down { .. } if state.turns.waiting() == 0 => return,
                Stand::None | Stand::Down { .. } => return self.dial(state),
            };
            let Some((asked, turn)) = state.turns.next() else { return };
            self.ask(state, &session, asked, turn);
        }
    }

    fn ask(self: &Arc<Self>, state: &mut State, session: &Session, asked: Asked, turn: Turn) {
        if asked.meta.accepted_at.elapsed() > TURN_WITHIN {
            state.turns.give_back(turn, Heard::Nothing);
            let why = format!("{} is too busy, or does not answer", self.via.site);
            return self.refuse(&asked, Refusal::TargetSilent, why);
        }
        let form = if self.via.packs { form_for(&session.peer().announced) } else { Form::Plain };
        match session.open(Order::Stream, &opening(&asked.meta.target, form, self.via.takes_over)) {
            Ok(channel) => {
                let asking = Asking { uplink: self.clone(), turn: Some(turn), heard: Heard::Nothing };
                let end = End::Near(asking);
                let limits = asked.settings.limits.clone();
                let linked = Linked::new(asked.meta, asked.client, channel, limits, (end, form));
                hand_over(&self.inboxes, Job::Link(Box::new(linked)));
            }
            Err(error) if error.kind == LinkErrorKind::Misuse => {
                state.turns.give_back(turn, Heard::Nothing);
                self.refuse(&asked, Refusal::Limit, error.to_string());
            }
            // The session is over. The next one may be made.
            Err(_) => {
                state.stand = Stand::None;
                state.turns.give_back(turn, Heard::Nothing);
                let target = asked.meta.target.clone();
                state.turns.push_again(&target, asked);
            }
        }
    }

    fn dial(self: &Arc<Self>, state: &mut State) {
        state.stand = Stand::Dialling;
        let uplink = self.clone();
        let thread = std::thread::Builder::new().name("relay-dial".to_string());
        if let Err(error) =
            thread.spawn(move || uplink.dialled((uplink.via.dial)().map_err(|it| it.to_string())))
        {
            self.failed(state, &format!("no thread: {error}"));
        }
    }

    fn dialled(self: &Arc<Self>, result: Result<Session, String>) {
        let mut state = self.lock();
        match result {
            Ok(session) if state.is_over => {
                drop(state);
                self.part_with(&session);
            }
            Ok(session) => {
                state.stand = Stand::Up(session);
                self.go_on(&mut state);
            }
            Err(why) => self.failed(&mut state, &why),
        }
    }

    fn failed(&self, state: &mut State, why: &str) {
        let why = format!("no link to {}: {why}", self.via.site);
        for asked in state.turns.drain() {
            self.refuse(&asked, Refusal::Link, why.clone());
        }
        state.stand = Stand::Down { until: Instant::now() + DIAL_PAUSE, why };
    }

    /// Asks for no more; who waits is reset. To be called before the workers end, who take what is asked for.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_over = true;
        // Dropped, they are reset: what clients have was prepared so.
        drop(state.turns.drain());
    }

    /// Ends it; to be called when its connections have gone.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        let stand = std::mem::replace(&mut state.stand, Stand::None);
        drop(state);
        if let Stand::Up(session) = stand {
            self.part_with(&session);
        }
    }

    /// It is of no more use here.
    fn part_with(&self, session: &Session) {
        if !self.via.is_shared {
            session.leave();
        }
    }

    /// Has the session hurry, if there is one.
    pub(crate) fn hurry(&self) -> Option<Hurry> {
        match &self.lock().stand {
            Stand::Up(session) => Some(session.hurry()),
            Stand::None | Stand::Dialling | Stand::Down { .. } => None,
        }
    }

    /// How the link stands.
    pub(crate) fn stats(&self) -> LinkStats {
        let state = self.lock();
        let mut told = LinkStats {
            site: self.via.site.clone(),
            asking: state.turns.asking() as u64,
            waiting: state.turns.waiting() as u64,
            ..LinkStats::default()
        };
        let session = match &state.stand {
            Stand::None => return LinkStats { state: "none".to_string(), ..told },
            Stand::Dialling => return LinkStats { state: "dialling".to_string(), ..told },
            Stand::Down { why, .. } => {
                return LinkStats { state: "down".to_string(), why: why.clone(), ..told };
            }
            Stand::Up(session) => session.clone(),
        };
        drop(state);
        told.fill(&session.stats());
        told
    }
}
