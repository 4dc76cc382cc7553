//! The side that listens.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use drover_wire::{FEATURE_RDMA, Greeting, Hello, RefusalCode, VERSIONS, VersionRange, Welcome};
use rustix::net::Shutdown;
use rustls::ServerConfig;

use crate::connect::{attach, random};
use crate::core::{Core, Limits, Side};
use crate::error::{LinkError, LinkErrorKind};
use crate::greet::{self, io_failure};
use crate::greeters::Greeters;
use crate::peer::Peer;
use crate::rate::RateLimit;
use crate::rdma::RdmaMode;
use crate::session::Session;
use crate::shared::Shared;
use crate::socket::{Socket, SocketOptions};
use crate::table::{Room, Table};
use crate::tls::Tls;
use crate::{identity, keeper, shares};

/// From the first byte of a connection to the end of its greeting.
const GREET_WITHIN: Duration = Duration::from_secs(10);

/// Connections of one session, at most.
const STRIPES_MAX: usize = 128;

/// Sessions that wait to be accepted, at most.
const ACCEPT_MAX: usize = 64;

/// Sessions at a time, if nothing else is said.
const SESSIONS_MAX: usize = 256;

/// Connections of all sessions at a time, if nothing else is said: with 0.6 MiB and two threads each.
const CONNECTIONS_MAX: usize = 1024;

/// Of those, of one peer.
const PEER_CONNECTIONS_MAX: usize = 512;

/// After an error that will pass, such as too many open files, so long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener over RDMA looks so often whether it was closed.
const RDMA_LOOK: Duration = Duration::from_millis(100);

/// A peer whose TLS was sound, and that asks to be let in.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// SHA-256 of its public key, proven.
    pub fingerprint: [u8; 32],
    /// What it says that its name is.
    pub name: &'a str,
    /// What it announces.
    pub announced: &'a [u8],
    /// Where it comes from.
    pub address: SocketAddr,
}

/// Lets a peer in under a name, or says why not; asked for each connection.
pub type Admit = dyn Fn(&Applicant<'_>) -> Result<String, String> + Send + Sync;

/// The limit of what is sent to a peer, shared by those of its sessions that are given the same one.
pub type RateLimitOf = dyn Fn(&Peer) -> Option<Arc<RateLimit>> + Send + Sync;

/// How to listen.
#[derive(Clone)]
pub struct ListenOptions {
    /// Addresses to listen at; port 0 takes a free one.
    pub addresses: Vec<SocketAddr>,
    /// TLS with a certificate of ours and a verifier of theirs, who must show one.
    pub tls: Arc<ServerConfig>,
    /// Who is let in, of those whom TLS lets in.
    pub admit: Arc<Admit>,
    /// How sockets are set up.
    pub socket: SocketOptions,
    /// Whether peers may also come over RDMA, at the same addresses and ports.
    pub rdma: RdmaMode,
    /// Bounds of each session.
    pub limits: Limits,
    /// Sessions at a time.
    pub sessions_max: usize,
    /// Connections of all sessions at a time.
    pub connections_max: usize,
    /// Connections of all sessions of one peer at a time.
    pub peer_connections_max: usize,
    /// What all sessions may hold in memory: of what peers sent, and of what peers have not acknowledged. One peer gets
    /// half of it at most.
    pub bytes_max: u64,
    /// Bytes a second that may be sent; asked for each session.
    pub rate_limit_of: Arc<RateLimitOf>,
    /// Name that peers hear.
    pub name: String,
    /// What peers are told of this side, up to 8 KiB.
    pub announce: Vec<u8>,
    /// Versions of the protocol; other than what this library speaks only in tests.
    pub versions: VersionRange,
}

impl fmt::Debug for ListenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listen at {:?} as {}", self.addresses, self.name)
    }
}

impl ListenOptions {
    /// All as usual: whoever passes TLS is let in, under the name that it says.
    pub fn new(tls: Arc<ServerConfig>, addresses: Vec<SocketAddr>) -> ListenOptions {
        ListenOptions {
            addresses,
            tls,
            admit: Arc::new(|applicant: &Applicant<'_>| Ok(applicant.name.to_string())),
            socket: SocketOptions::default(),
            rdma: RdmaMode::default(),
            limits: Limits::default(),
            sessions_max: SESSIONS_MAX,
            connections_max: CONNECTIONS_MAX,
            peer_connections_max: PEER_CONNECTIONS_MAX,
            bytes_max: shares::BYTES_MAX,
            rate_limit_of: Arc::new(|_| None),
            name: String::new(),
            announce: Vec::new(),
            versions: VERSIONS,
        }
    }
}

/// Listens for sessions. Those that it gave live on when it goes, but no connection can join them then.
pub struct Listener {
    sessions: Mutex<Receiver<Session>>,
    door: Arc<Door>,
    sockets: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    rdma: Result<Vec<SocketAddr>, String>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener at {:?}", self.addresses)
    }
}

/// What the threads of a listener share.
struct Door {
    options: ListenOptions,
    instance: [u8; 16],
    features: u64,
    table: Table,
    greeters: Greeters,
    is_closed: AtomicBool,
    sender: Mutex<Option<SyncSender<Session>>>,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// `Misuse` if an address is in use or not of this host, or RDMA is required and there is none.
    pub fn bind(options: &ListenOptions) -> Result<Listener, LinkError> {
        let misuse = |text: String| LinkError::new(LinkErrorKind::Misuse, text);
        let mut instance = [0; 16];
        random(&mut instance)?;
        let (mut sockets, mut addresses) = (Vec::new(), Vec::new());
        for address in &options.addresses {
            let failed = |error: std::io::Error| misuse(format!("listening at {address}: {error}"));
            let socket = TcpListener::bind(address).map_err(failed)?;
            addresses.push(socket.local_addr().map_err(failed)?);
            sockets.push(socket);
        }
        let over_rdma = rdma_listeners(options.rdma, &addresses);
        if let (RdmaMode::Require, Err(why)) = (options.rdma, &over_rdma) {
            return Err(misuse(format!("RDMA is required, and {why}")));
        }
        let (sender, receiver) = sync_channel(ACCEPT_MAX);
        let door = Arc::new(Door {
            options: ListenOptions { tls: identity::server(&options.tls), ..options.clone() },
            instance,
            features: if over_rdma.is_ok() { FEATURE_RDMA } else { 0 },
            table: Table::new(options.limits, options.sessions_max, options.bytes_max),
            greeters: Greeters::default(),
            is_closed: AtomicBool::new(false),
            sender: Mutex::new(Some(sender)),
        });
        let thread = || thread::Builder::new().name("link-listen".into());
        let failed = |error: std::io::Error| misuse(format!("starting to listen: {error}"));
        for socket in &sockets {
            let (door, accepting) = (door.clone(), socket.try_clone().map_err(failed)?);
            thread().spawn(move || door.listen(&accepting)).map_err(failed)?;
        }
        let mut rdma = over_rdma.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
        for (address, socket) in over_rdma.into_iter().flatten() {
            let door = door.clone();
            thread().spawn(move || door.listen_over_rdma(&socket)).map_err(failed)?;
            rdma.iter_mut().for_each(|all| all.push(address));
        }
        Ok(Listener { sessions: Mutex::new(receiver), door, sockets, addresses, rdma })
    }

    /// Waits for the next session.
    ///
    /// # Errors
    /// `Closed` once [`Listener::close`] was called.
    pub fn accept(&self) -> Result<Session, LinkError> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.recv().map_err(|_| LinkError::new(LinkErrorKind::Closed, "the listener was closed"))
    }

    /// The addresses it listens at.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Those of them at which peers may also come over RDMA.
    ///
    /// # Errors
    /// Why there are none.
    pub fn rdma(&self) -> Result<&[SocketAddr], &str> {
        self.rdma.as_deref().map_err(String::as_str)
    }

    /// Listens no more; those who wait in [`Listener::accept`] are told.
    pub fn close(&self) {
        self.door.is_closed.store(true, Ordering::Release);
        // Ends the threads that wait in accept. It fails only for sockets that do not listen.
        for socket in &self.sockets {
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        *self.door.sender.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Listeners over RDMA, at those of the addresses that are of a device, or why there are none.
fn rdma_listeners(
    mode: RdmaMode,
    addresses: &[SocketAddr],
) -> Result<Vec<(SocketAddr, drover_rdma::Listener)>, String> {
    if mode == RdmaMode::Never {
        return Err("it is not wanted".into());
    }
    drover_rdma::check().map_err(|lacking| lacking.to_string())?;
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for address in addresses {
        match drover_rdma::Listener::bind(*address) {
            Ok(listener) => found.push((*address, listener)),
            Err(error) => errors.push(format!("no device listens at {address}: {error}")),
        }
    }
    if found.is_empty() { Err(errors.join("; ")) } else { Ok(found) }
}

impl Door {
    fn listen(self: Arc<Door>, socket: &TcpListener) {
        while !self.is_closed.load(Ordering::Acquire) {
            match socket.accept() {
                Ok((socket, address)) => self.clone().admit(socket.into(), address),
                Err(_) if self.is_closed.load(Ordering::Acquire) => return,
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn listen_over_rdma(self: Arc<Door>, listener: &drover_rdma::Listener) {
        while !self.is_closed.load(Ordering::Acquire) {
            match listener.accept(RDMA_LOOK) {
                Ok(Some((socket, address))) => self.clone().admit(Socket::Rdma(socket), address),
                Ok(None) => {}
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Greets in a thread of its own, unless there are too many.
    fn admit(self: Arc<Door>, socket: Socket, address: SocketAddr) {
        let Some(place) = self.greeters.enter(&socket, address.ip()) else { return };
        let door = self.clone();
        // Who is not let in has been told; nobody here waits for it. Without a thread the socket just ends.
        let _ = thread::Builder::new().name("link-greet".into()).spawn(move || {
            let _place = place;
            let _ = door.greet(socket, address);
        });
    }

    fn greet(&self, socket: Socket, address: SocketAddr) -> Result<(), LinkError> {
        let until = Instant::now() + GREET_WITHIN;
        let lost = |error: std::io::Error| io_failure("connection", &error);
        let notes = self.options.socket.apply(&socket).map_err(lost)?;
        let mut tls = Tls::accept(socket, self.options.tls.clone(), until).map_err(lost)?;
        let fingerprint = tls.proven()?;
        let Greeting::Hello(hello) = greet::read(&mut tls, until).map_err(lost)? else {
            return greet::refuse(&mut tls, RefusalCode::Protocol, "that was no hello", until).map_err(lost);
        };
        match self.judge(&hello, fingerprint, address) {
            Ok(verdict) => self.welcome(tls, hello, fingerprint, verdict, notes, until),
            Err((code, text)) => {
                greet::refuse(&mut tls, code, &identity::shortened(text), until).map_err(lost)
            }
        }
    }

    fn judge(
        &self,
        hello: &Hello,
        fingerprint: [u8; 32],
        address: SocketAddr,
    ) -> Result<Verdict, (RefusalCode, String)> {
        let ours = self.options.versions;
        let version = ours.common(hello.versions).ok_or_else(|| {
            let theirs = hello.versions;
            let text = format!(
                "versions {} to {} are spoken here, {} to {} there",
                ours.lowest, ours.highest, theirs.lowest, theirs.highest
            );
            (RefusalCode::Version, text)
        })?;
        let applicant = Applicant { fingerprint, name: &hello.name, announced: &hello.announce, address };
        let name = (self.options.admit)(&applicant).map_err(|why| (RefusalCode::Identity, why))?;
        let busy = |text: String| Err((RefusalCode::Busy, text));
        let (all, own) = self.table.connections(fingerprint);
        if all >= self.options.connections_max {
            return busy("there are enough connections of all sessions".into());
        }
        if own >= self.options.peer_connections_max {
            return busy("there are enough connections of this peer".into());
        }
        let Some((session, token)) = hello.join else {
            let room = self.table.room(fingerprint).map_err(|text| (RefusalCode::Busy, text))?;
            return Ok(Verdict { version, name, place: Place::New(room) });
        };
        match self.table.find(&session, &token) {
            Some(shared) if shared.peer.fingerprint == fingerprint => {
                if shared.lock().stripes.len() >= STRIPES_MAX {
                    return busy("the session has enough connections".into());
                }
                Ok(Verdict { version: shared.peer.version, name, place: Place::Of(session, token, shared) })
            }
            _ => Err((
                RefusalCode::Session,
                "the session is not known here: it ended, or this is a new process".into(),
            )),
        }
    }

    fn welcome(
        &self,
        mut tls: Tls,
        hello: Hello,
        fingerprint: [u8; 32],
        verdict: Verdict,
        notes: Vec<String>,
        until: Instant,
    ) -> Result<(), LinkError> {
        let lost = |error: std::io::Error| io_failure("connection", &error);
        let Verdict { version, name, place } = verdict;
        let mut token = [0; 32];
        random(&mut token)?;
        let (session, token, limits) = match &place {
            Place::Of(session, token, _) => (*session, *token, self.options.limits),
            Place::New(room) => (room.session(), token, room.limits()),
        };
        let welcome = Welcome {
            version,
            features: self.features & hello.features,
            session,
            token,
            instance: self.instance,
            name: self.options.name.clone(),
            announce: self.options.announce.clone(),
            credits: limits.credits,
        };
        let say = |tls: &mut Tls| tls.write_all(&Greeting::Welcome(welcome).encode(), until).map_err(lost);
        let room = match place {
            Place::Of(_, _, shared) => {
                say(&mut tls)?;
                return attach(&shared, tls, notes).map_err(lost);
            }
            Place::New(room) => room,
        };
        let peer = Peer { name, fingerprint, version, announced: hello.announce };
        let core = Core::new(Side::Listener, limits, hello.credits);
        let rate_limit = (self.options.rate_limit_of)(&peer);
        let shared = Shared::new(core, peer, rate_limit, 0);
        room.take(&shared, token);
        // The keeper holds it until it is over; without a session for a program it is over at once.
        keeper::start(&shared, None, None).map_err(lost)?;
        let given = Session::new(shared.clone());
        say(&mut tls)?;
        attach(&shared, tls, notes).map_err(lost)?;
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        match sender.as_ref().map(|sender| sender.try_send(given)) {
            Some(Err(TrySendError::Full(given))) => {
                shared.with(|inner, _| {
                    let text = "too many sessions wait to be accepted";
                    inner.core.end(LinkError::new(LinkErrorKind::Closed, text));
                });
                drop(sender);
                drop(given);
            }
            // A listener that is gone drops the session, which closes it.
            Some(Ok(()) | Err(TrySendError::Disconnected(_))) | None => {}
        }
        Ok(())
    }
}

/// What is to become of a connection that is let in.
struct Verdict {
    version: u16,
    name: String,
    place: Place,
}

/// Whose connection it will be.
enum Place {
    /// A new session's.
    New(Room),
    /// That session's.
    Of([u8; 16], [u8; 32], Arc<Shared>),
}
