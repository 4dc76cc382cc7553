//! Local unix sockets whose connections go over a link: for a program that can connect to a path, and seen by nobody else.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use drover_link::{Hurry, LinkError, Order, Session};
use drover_tcp::Keepalive;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::answer::{Read, Reading, Word, opening};
use crate::book::{Book, Refused};
use crate::connecting::Settings;
use crate::connection::Meta;
use crate::doorway::Doorway;
use crate::linked::Form;
use crate::options::{Via, any_address};
use crate::pipes::Budget;
use crate::stats::{LinkStats, Refusal};
use crate::uplink::{Asked, Uplink};
use crate::worker::{Inbox, Job, start_all};

/// How often to look whether to stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// When there are no files, or as many clients as may be: time for some to go.
const PAUSE: Duration = Duration::from_millis(20);
/// Clients of all doors at once; a guest's memory takes 256 at most. Further ones wait.
const CLIENTS_MAX: usize = 1_024;
const WORKERS_MAX: usize = 4;

/// A socket here that leads to a place there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Where it is made.
    pub path: PathBuf,
    /// Who may connect.
    pub reach: Reach,
    /// What the agent is asked to connect to: `unix:/PATH` or `HOST:PORT`.
    pub to: String,
}

/// Who may connect to a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Whoever reaches its folder, in which nothing of its name may be yet.
    Folder,
    /// This user, or else only the one who makes it. The folder may be another's. A socket at which nobody listens is replaced.
    User(Option<u32>),
}

/// Why a door cannot be there.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Somebody listens there.
    #[error("{}: address already in use", .0.display())]
    Taken(PathBuf),
    /// Only root gives files away.
    #[error("{}: it cannot be given to user {user}", .path.display())]
    NotGiven {
        /// Where it was to be.
        path: PathBuf,
        /// Whom it was to be given to.
        user: u32,
        /// Why not.
        source: io::Error,
    },
    /// The kernel refuses it.
    #[error("{}: no socket can be there", .path.display())]
    Failed {
        /// Where it was to be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What serves them does not start.
    #[error("threads of the doors")]
    Threads(#[from] io::Error),
}

/// Sockets that lead over a link. Dropped, they go, and what they carry ends.
///
/// A unix socket knows no reset: a program here sees the end of what came when the other side was reset. What must not
/// be taken for whole has to say so itself, as the streams of QEMU do.
pub struct Doors {
    ways: Vec<Doorway>,
    uplink: Arc<Uplink>,
    book: Arc<Book>,
    inboxes: Vec<Arc<Inbox>>,
    is_stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Doors {
    /// Makes the sockets, and the link when the first client comes.
    ///
    /// # Errors
    /// Those of the kernel, and where somebody else is.
    pub fn open(via: Via, doors: &[Door]) -> Result<Doors, DoorError> {
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, WORKERS_MAX);
        let inboxes = (0..count).map(|_| Inbox::new()).collect::<io::Result<Vec<_>>>()?;
        let book: Arc<Book> = Arc::default();
        let uplink = Uplink::new(via, inboxes.clone(), book.clone());
        let (ways, threads, is_stopping) = (Vec::new(), Vec::new(), Arc::default());
        let mut made = Doors { ways, uplink, book, inboxes, is_stopping, threads };
        made.start(doors)?;
        Ok(made)
    }

    fn start(&mut self, doors: &[Door]) -> Result<(), DoorError> {
        // They hold no bytes in pipes.
        start_all(&self.inboxes, "doors", (&Budget::new(0), &self.book), &mut self.threads)?;
        let mut listeners = Vec::new();
        for door in doors {
            let (listener, way) = Doorway::open(&door.path, door.reach)?;
            self.ways.push(way);
            listener.set_nonblocking(true)?;
            listeners.push((listener, door.to.clone()));
        }
        let (uplink, is_stopping, inboxes) =
            (self.uplink.clone(), self.is_stopping.clone(), self.inboxes.clone());
        let entrance = Entrance { listeners, uplink, inboxes, ids: AtomicU64::new(1) };
        let thread = Builder::new().name("doors".to_string());
        self.threads.push(thread.spawn(move || {
            entrance.run(&is_stopping);
            Ok(())
        })?);
        Ok(())
    }

    /// How the link stands.
    pub fn link(&self) -> LinkStats {
        self.uplink.stats()
    }

    /// Has the link hurry where there is one: see [`Session::hurry`].
    pub fn hurry(&self) -> Option<Hurry> {
        self.uplink.hurry()
    }

    /// Connections that came to nothing since this was asked last, with the reason in words.
    pub fn take_refused(&self) -> Vec<Refused> {
        self.book.take_told()
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.uplink.stop();
        self.inboxes.iter().for_each(|inbox| inbox.put(Job::Stop));
        for thread in self.threads.drain(..) {
            // It ends early only if the kernel gives no events any more. What it carried ends either way.
            let _ = thread.join();
        }
        self.uplink.end();
        self.ways.clear();
    }
}

struct Entrance {
    listeners: Vec<(UnixListener, String)>,
    uplink: Arc<Uplink>,
    inboxes: Vec<Arc<Inbox>>,
    ids: AtomicU64,
}

impl Entrance {
    fn run(&self, is_stopping: &AtomicBool) {
        let settings = Arc::new(Settings {
            congestion: None,
            congestion_back: None,
            limits: None,
            connect_timeout: Duration::from_secs(10),
            keepalive: Keepalive::default(),
            mark: None,
        });
        while !is_stopping.load(Ordering::Relaxed) {
            let mut waiting: Vec<PollFd<'_>> =
                self.listeners.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)).collect();
            // Interrupted, it has found nobody.
            let came = poll(&mut waiting, Some(&LOOK)).unwrap_or(0);
            let accepted = self.clients() < CLIENTS_MAX && self.accept_all(&settings);
            if came > 0 && !accepted {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Takes a client of each door on; whether there was one.
    fn accept_all(&self, settings: &Arc<Settings>) -> bool {
        self.listeners.iter().filter(|one| self.accept(one, settings)).count() > 0
    }

    fn clients(&self) -> usize {
        let carried: usize = self.inboxes.iter().map(|inbox| inbox.load.load(Ordering::Relaxed)).sum();
        carried + self.uplink.waiting()
    }

    /// Takes one client on; whether there was one.
    fn accept(&self, (listener, to): &(UnixListener, String), settings: &Arc<Settings>) -> bool {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // No files, or a client that has gone again: the next one may fare better, after a pause.
            Err(_) => return false,
        };
        if client.set_nonblocking(true).is_err() {
            return true;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let from = SocketAddr::new(any_address(true), 0);
        let meta = Meta { id, client: from, target: to.clone(), rule: None, accepted_at: Instant::now() };
        self.uplink.take(Asked { meta, client: client.into(), settings: settings.clone() });
        true
    }
}

/// What an agent says of a place that it was asked to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Somebody is there.
    Taken,
    /// It may be connected to, and nobody is there.
    Free,
    /// It may not be connected to, or not now; why, in words.
    Refused(Refusal, String),
}

/// Asks the agent at the other end whether it would connect to `to`, by having it connect. What is connected is hung up.
///
/// # Errors
/// If the link is lost.
pub fn probe(session: &Session, to: &str) -> Result<Probed, LinkError> {
    let channel = session.open(Order::Stream, &opening(to, Form::Plain, false))?;
    let (sender, mut receiver) = channel.split();
    let (mut reading, mut piece) = (Reading::default(), [0; 1024]);
    let probed = loop {
        let bytes = receiver.read(&mut piece)?;
        match reading.take(&piece[..bytes]) {
            Read::More if bytes > 0 => {}
            Read::More | Read::Nonsense => {
                break Probed::Refused(Refusal::Link, "the agent's answer makes no sense".to_string());
            }
            Read::Done(_, word, why) => break probed(word, why),
        }
    };
    sender.reset();
    Ok(probed)
}

fn probed(word: Word, why: String) -> Probed {
    match word {
        Word::Connected => Probed::Taken,
        Word::Refused | Word::Unreachable => Probed::Free,
        Word::Denied => Probed::Refused(Refusal::SitePolicy, why),
        Word::Silent => Probed::Refused(Refusal::TargetSilent, why),
        Word::TooMany => Probed::Refused(Refusal::Limit, why),
        // Agents of before know no unix sockets.
        Word::Unreadable => Probed::Refused(Refusal::TargetUnreachable, why),
    }
}
