//! The agent's side: what is done for the peers of a session.
//!
//! ```text
//! session ── accept ── opening ──> disk     blocks of a disk: as many threads as help read its messages
//!                                  rpc      one question, one answer
//!                                  sink, source, echo      to measure a link
//!                                  connect  a stream to a port behind the agent, if somebody does that
//! claims   which run writes which disk
//! store    where disks are; the agent does not know what they are
//! ```

mod blocks;
mod claims;
mod disk;
mod store;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::Builder;

use drover_disk::DiskErrorKind;
use drover_link::{Channel, Incoming, Session};

use crate::error::Refusal;
use crate::opening::{Answer, Call, Opening};
use crate::site::encode;

pub use blocks::{Found, KnownBlocks};
use claims::Claims;
pub use store::{Held, Store};

/// Channels of one session at a time; further ones are refused.
pub const CHANNELS_MAX: usize = 256;

/// Carries streams to TCP ports behind the agent.
pub trait Connect: Send + Sync {
    /// Connects to `to` (`HOST:PORT`, as the peer wrote it), if that is allowed, and carries both ways until the end.
    /// The channel is a stream.
    fn connect(&self, peer: &str, to: &str, channel: Channel);
}

/// An agent: what it has, and who writes what of it.
pub struct Agent {
    store: Arc<dyn Store>,
    claims: Claims,
    connect: Option<Arc<dyn Connect>>,
    pair: Option<Box<Pair>>,
}

/// Serves a channel for pairing to a peer, with the name that it says.
pub(crate) type Pair = dyn Fn(&Session, Channel, &str) + Send + Sync;

impl Agent {
    /// An agent that serves these disks, and no ports.
    pub fn new(store: Arc<dyn Store>) -> Agent {
        Agent { store, claims: Claims::default(), connect: None, pair: None }
    }

    /// The same with somebody who carries streams to ports.
    #[must_use]
    pub fn with_connect(self, connect: Arc<dyn Connect>) -> Agent {
        Agent { connect: Some(connect), ..self }
    }

    /// The same with somebody who pairs peers again, under another name.
    #[must_use]
    pub(crate) fn with_pair(self, pair: Box<Pair>) -> Agent {
        Agent { pair: Some(pair), ..self }
    }

    /// Serves a peer until its session is over.
    pub fn serve(self: &Arc<Self>, session: &Session) {
        let open = Arc::new(AtomicUsize::new(0));
        while let Ok(incoming) = session.accept() {
            if open.load(SeqCst) >= CHANNELS_MAX {
                let (sender, _) = incoming.channel.split();
                sender.reset();
                continue;
            }
            let count = Counted::new(&open);
            let (agent, session) = (self.clone(), session.clone());
            // Where no thread is to be had, the channel is dropped, and with it reset.
            let _ = Builder::new().name("agent-serve".to_string()).spawn(move || {
                let _count = count;
                agent.serve_channel(&session, incoming);
            });
        }
    }

    fn serve_channel(&self, session: &Session, incoming: Incoming) {
        let Incoming { channel, order: _, opening } = incoming;
        let opening = match serde_json::from_slice(&opening) {
            Ok(opening) => opening,
            Err(_) => {
                let (sender, _) = channel.split();
                return sender.reset();
            }
        };
        match opening {
            Opening::Disk(wanted) => disk::serve(self, session, channel, &wanted),
            Opening::Rpc(call) => self.answer(channel, &call),
            Opening::Sink => streams::sink(channel),
            Opening::Source { bytes } => streams::source(channel, bytes),
            Opening::Echo => streams::echo(channel),
            Opening::Connect { to } => match &self.connect {
                Some(connect) => connect.connect(&session.peer().name, &to, channel),
                None => channel.split().0.reset(),
            },
            Opening::Pair { name } => match &self.pair {
                Some(pair) => pair(session, channel, &name),
                None => channel.split().0.reset(),
            },
        }
    }

    fn answer(&self, channel: Channel, call: &Call) {
        let (sender, _receiver) = channel.split();
        let body = match call {
            Call::Info => encode(&Answer::from(Ok(self.store.announce()))),
            Call::Stat { disk } => encode(&Answer::from(self.store.stat(disk))),
        };
        // A peer that is gone needs no answer.
        let _ = body.map(|body| sender.send(&[], &body).and_then(|()| sender.finish()));
    }
}

/// A channel that counts as long as this lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, SeqCst);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn refused(kind: DiskErrorKind, why: impl Into<String>) -> Refusal {
    Refusal::new(kind, why)
}
