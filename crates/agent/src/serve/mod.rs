//! The agent's side: what is done for the peers of a session.
//!
//! ```text
//! session ── accept ── opening ──> disk     blocks of a disk: as many threads as help read its messages
//!                                  rpc      one question, one answer
//!                                  sink, source, echo      to measure a link
//!                                  listen   a port for a moment, to measure the way past the link
//!                                  connect  a stream to a port behind the agent, if somebody does that
//!                                  machine  an order about a machine, if somebody builds them
//! claims   which run writes which disk
//! given    files that follow an order
//! left     connections of sessions that nobody comes back for make way
//! seats    how many disks are open
//! press    packs what is read, where that pays
//! store    where disks are; the agent does not know what they are
//! ```

mod blocks;
mod claims;
mod disk;
mod given;
mod left;
mod listen;
mod machines;
mod orders;
mod press;
mod seats;
mod store;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::Builder;
use std::time::Duration;

use drover_disk::DiskErrorKind;
use drover_link::{Channel, Incoming, Peer, Session};

use crate::direct;
use crate::error::Refusal;
use crate::machine::{Order, What};
use crate::measure::{self, Measured};
use crate::opening::{Announced, Answer, Call, How, Listen, Opening, Writer};
use crate::site::{decode, encode};

pub use blocks::{Found, KnownBlocks};
use claims::{Claims, ORDERED, Run, Taken};
use disk::PeersRun;
use given::Pieces;
use left::Left;
pub use machines::{FirstBootFiles, Home, Hypervisor, Machines};
pub use orders::START_WITHIN;
use press::Presses;
use seats::Seats;
pub use seats::{DISKS_MAX, PEER_DISKS_MAX};
pub use store::{Held, Store};
pub(crate) use streams::sink;

/// Channels of one session at a time; further ones are refused.
pub const CHANNELS_MAX: usize = 256;

/// Carries streams to TCP ports behind the agent.
pub trait Connect: Send + Sync {
    /// Connects for a peer to `to` (`HOST:PORT`, as it wrote it), if that is allowed, and carries both ways until the end.
    /// The channel is a stream, or goes in pieces.
    fn connect(&self, peer: &Peer, to_in_pieces: (&str, bool), channel: Channel);
}

/// An agent: what it has, and who writes what of it.
pub struct Agent {
    store: Arc<dyn Store>,
    claims: Claims,
    seats: Seats,
    streams: Seats,
    probes: Seats,
    left: Left,
    presses: Presses,
    /// Whether what is read is packed for peers that unpack it.
    packs: bool,
    /// Whether peers may measure the way past the link.
    listens: bool,
    connect: Option<Arc<dyn Connect>>,
    machines: Option<Machines>,
    pair: Option<Box<Pair>>,
}

/// Serves a channel for pairing to a peer, with the name that it says.
pub(crate) type Pair = dyn Fn(&Session, Channel, &str) + Send + Sync;

impl Agent {
    /// An agent that serves these disks, no ports and no machines.
    pub fn new(store: Arc<dyn Store>) -> Agent {
        let (claims, seats, streams) = (Claims::default(), Seats::of_disks(), Seats::of_streams());
        let (probes, presses) = (Seats::of_probes(), Presses::new());
        let (connect, machines, pair) = (None, None, None);
        let (packs, listens) = (true, false);
        let left = Left::default();
        Agent {
            store,
            claims,
            seats,
            streams,
            probes,

            left,
            presses,
            packs,
            listens,
            connect,
            machines,
            pair,
        }
    }

    /// The same that listens at ports of this host for a moment, where peers measure the way past the link: for those
    /// whose guests may come here.
    #[must_use]
    pub fn with_listening(self) -> Agent {
        Agent { listens: true, ..self }
    }

    /// The same with somebody who carries streams to ports.
    #[must_use]
    pub fn with_connect(self, connect: Arc<dyn Connect>) -> Agent {
        Agent { connect: Some(connect), ..self }
    }

    /// The same that sends what is read as it is.
    #[must_use]
    pub fn without_packing(self) -> Agent {
        Agent { packs: false, ..self }
    }

    /// The same with machines beside its disks.
    #[must_use]
    pub fn with_machines(self, machines: Machines) -> Agent {
        Agent { machines: Some(machines), ..self }
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
            Opening::Rpc(call) => self.answer(session, channel, &call),
            Opening::Sink => self.measure(session, channel, streams::sink),
            Opening::Source { bytes } => {
                self.measure(session, channel, |it| streams::source(it, bytes, measure::MEASURE_TIME_MAX));
            }
            Opening::Echo => self.measure(session, channel, streams::echo),
            Opening::Connect { to, pieces, takes_over } => match &self.connect {
                Some(connect) => {
                    if takes_over {
                        self.left.comes(session, &to, &channel);
                    }
                    connect.connect(session.peer(), (&to, pieces), channel);
                }
                None => channel.split().0.reset(),
            },
            Opening::Listen(wanted) => self.listen(session, channel, &wanted),
            Opening::Machine => self.carry_out(session, channel),
            Opening::Pair { name } => match &self.pair {
                Some(pair) => pair(session, channel, &name),
                None => channel.split().0.reset(),
            },
        }
    }

    /// Serves a stream by which a line is measured, if there is room for one more.
    fn measure(&self, session: &Session, channel: Channel, serve: impl FnOnce(Channel)) {
        match self.streams.take(session.peer().fingerprint) {
            Ok(_seat) => serve(channel),
            Err(_) => channel.split().0.reset(),
        }
    }

    fn listen(&self, session: &Session, channel: Channel, wanted: &Listen) {
        let seat = match self.listens {
            true => self.probes.take(session.peer().fingerprint),
            false => Err(refused(DiskErrorKind::Denied, NO_GUESTS)),
        };
        listen::serve(channel, wanted, seat);
    }

    fn answer(&self, session: &Session, channel: Channel, call: &Call) {
        let (sender, _receiver) = channel.split();
        let body = match call {
            Call::Info => encode(&Answer::from(Ok(self.announce()))),
            Call::Stat { disk } => encode(&Answer::from(self.store.stat(disk))),
            Call::Host { devices, variables_of } => {
                encode(&Answer::from(crate::host::look(devices, variables_of)))
            }
            Call::Measure { time_ms } => encode(&Answer::from(self.send(session, *time_ms))),
        };
        // A peer that is gone needs no answer.
        let _ = body.map(|body| sender.send(&[], &body).and_then(|()| sender.finish()));
    }

    /// Sends to a peer's sink for a time, and tells what came of it.
    fn send(&self, session: &Session, time_ms: u64) -> Result<Measured, Refusal> {
        let _seat = self.probes.take(session.peer().fingerprint)?;
        measure::send(session, Duration::from_millis(time_ms))
    }

    fn announce(&self) -> Announced {
        let mut takes = self.machines.as_ref().map(Machines::takes).unwrap_or_default();
        takes.push(measure::MEASURE.to_string());
        takes.push(crate::host::HOST.to_string());
        takes.extend(self.listens.then(|| direct::LISTEN.to_string()));
        let announced = self.store.announce();
        takes.extend(announced.takes);
        Announced { takes, ..announced }
    }

    /// Takes the disks whose images an order removes or writes from runs whose peer is gone. Others are not disturbed.
    fn take_written(&self, what: &What) -> Result<Vec<Taken<'_>>, Refusal> {
        let disks: Vec<&String> = match what {
            What::Clear { images } => images.iter().map(|image| &image.disk).collect(),
            What::Convert { machine, .. } => machine.disks.iter().map(|disk| &disk.disk).collect(),
            _ => return Ok(Vec::new()),
        };
        let run = crate::random::hex(16);
        let writer = Writer { size: 0, how: How::Resume, run, epoch: ORDERED, attempt: 0, volume: None };
        disks.into_iter().map(|disk| self.claims.take(disk, &writer, Box::new(Own))).collect()
    }

    /// One order, one answer.
    fn carry_out(&self, session: &Session, channel: Channel) {
        let (sender, receiver) = channel.split();
        let mut pieces = Pieces::new(&receiver);
        let (Some(machines), Some(order)) = (&self.machines, pieces.order()) else {
            return sender.reset();
        };
        let order = decode::<Order>(&order);
        let told = order.and_then(|order| {
            let _taken = self.take_written(&order.what)?;
            let run = PeersRun { session: session.clone(), sender: sender.clone() };
            machines.carry_out(&key_of(session), &order, &run, &mut pieces)
        });
        // A peer that is gone asks again.
        let _ =
            encode(&Answer::from(told)).map(|body| sender.send(&[], &body).and_then(|()| sender.finish()));
    }
}

const NO_GUESTS: &str =
    "no guest may come here: drover agent run --allow-connect 'unix:/FOLDER/*' says where one may";

/// Removes or writes images by order: the peer is not asked for anything, and nothing has to be ended.
struct Own;

impl Run for Own {
    fn is_there(&self) -> bool {
        true
    }

    fn end(&self) {}
}

/// What a peer's session is known by.
fn key_of(session: &Session) -> String {
    crate::trust::Fingerprint(session.peer().fingerprint).to_string()
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
