//! The thread that accepts clients and hands them to workers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_tcp as tcp;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, acceptfrom_with, bind, listen, socket_with};

use crate::book::Book;
use crate::gate::{Admitted, Gate};
use crate::options::{Destination, Line};
use crate::stats::Refusal;
use crate::uplink::Uplink;
use crate::worker::{Inbox, Job, hand_over};

/// Clients that may wait to be accepted; the kernel takes no more than `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Clients accepted from one listener before the others have their turn.
const TURN_CLIENTS: usize = 256;
/// How often to look whether to stop.
const LOOK: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// After the process ran out of files: time for some to come back.
const NO_FILES_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Listener {
    socket: OwnedFd,
    pub(crate) address: SocketAddr,
    to: Destination,
}

impl Listener {
    /// `ports` are tried first where the line [chooses its port](chooses_port).
    pub(crate) fn open(line: &Line, ports: &[u16]) -> io::Result<Listener> {
        for port in ports.iter().filter(|_| chooses_port(line)) {
            match Listener::open_at(line, *port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                // Not for this user: any other will do.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                result => return result,
            }
        }
        Listener::open_at(line, line.listen.port())
    }

    fn open_at(line: &Line, port: u16) -> io::Result<Listener> {
        let family = if line.listen.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        set_socket_reuseaddr(&socket, true)?;
        if family == AddressFamily::INET6 {
            set_ipv6_v6only(&socket, true)?;
        }
        if matches!(line.to, Destination::Intercepted { .. }) {
            tcp::set_transparent(&socket)?;
        }
        bind(&socket, &SocketAddr::new(line.listen.ip(), port))?;
        listen(&socket, BACKLOG)?;
        let address = tcp::local_address(&socket)?;
        Ok(Listener { socket, address, to: line.to.clone() })
    }
}

/// Whether connections are redirected to a port that is not named.
pub(crate) fn chooses_port(line: &Line) -> bool {
    line.listen.port() == 0 && matches!(line.to, Destination::Redirected)
}

/// What the entrance shares with the relay.
pub(crate) struct Shared {
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) connections_max: usize,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) book: Arc<Book>,
    pub(crate) uplink: Option<Arc<Uplink>>,
}

impl Shared {
    /// Connections now.
    pub(crate) fn live(&self) -> usize {
        let working: usize = self.inboxes.iter().map(|inbox| inbox.load.load(Ordering::Relaxed)).sum();
        working + self.uplink.as_ref().map_or(0, |uplink| uplink.waiting())
    }
}

pub(crate) struct Entrance {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) gate: Gate,
    pub(crate) shared: Arc<Shared>,
    /// Given up for a moment to accept, and refuse, clients that there is no file for.
    pub(crate) spare: Option<OwnedFd>,
}

/// A file that costs nothing.
pub(crate) fn spare_file() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

impl Entrance {
    /// Accepts until the relay stops.
    ///
    /// # Errors
    /// If the kernel gives no events any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (at, listener) in self.listeners.iter().enumerate() {
            epoll::add(&epoll, &listener.socket, EventData::new_u64(at as u64), EventFlags::IN)?;
        }
        let mut events: Vec<Event> = Vec::with_capacity(self.listeners.len().max(1));
        while !self.shared.is_stopping.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&epoll, spare_capacity(&mut events), Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.accept_some(event.data.u64() as usize);
            }
        }
        Ok(())
    }

    fn accept_some(&mut self, at: usize) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..TURN_CLIENTS {
            match acceptfrom_with(&self.listeners[at].socket, flags) {
                Ok((client, peer)) => self.take(at, client, peer.and_then(|it| it.try_into().ok())),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.refuse_for_files(at);
                }
                // Of a client that has gone again; the kernel tells errors of its network here, too.
                Err(_) => {}
            }
        }
    }

    fn take(&self, at: usize, client: OwnedFd, peer: Option<SocketAddr>) {
        // One whose address is unknown has gone.
        let Some(peer) = peer else { return };
        if self.shared.live() >= self.shared.connections_max {
            return self.shared.book.turn_away(&client, Refusal::Limit);
        }
        let listener = &self.listeners[at];
        match self.gate.admit(client, peer, &listener.to, listener.address) {
            Ok(Admitted::Far(asked)) => {
                if let Some(uplink) = &self.shared.uplink {
                    uplink.take(asked);
                }
            }
            Ok(Admitted::Here(accepted)) => {
                hand_over(&self.shared.inboxes, Job::Open(accepted));
            }
            Err((client, reason)) => self.shared.book.turn_away(&client, reason),
        }
    }

    fn refuse_for_files(&mut self, at: usize) {
        drop(self.spare.take());
        if let Ok((client, _)) = acceptfrom_with(&self.listeners[at].socket, SocketFlags::CLOEXEC) {
            self.shared.book.turn_away(&client, Refusal::Files);
        }
        self.spare = spare_file();
        std::thread::sleep(NO_FILES_PAUSE);
    }
}
