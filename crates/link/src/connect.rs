//! The side that dials.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use drover_wire::{FEATURE_RDMA, Hello, VERSIONS, VersionRange, Welcome};
use rustix::net::{AddressFamily, SocketType};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::core::{Controller, Core, Limits, Moment, Side, StripeBounds};
use crate::error::{LinkError, LinkErrorKind};
use crate::greet::{self, Failure, io_failure};
use crate::keeper::{self, Dial, Kept};
use crate::peer::Peer;
use crate::rate::RateLimit;
use crate::rdma::{AGAIN_AFTER, Carrier, Choice, Healthy, RdmaMode, RdmaState};
use crate::session::Session;
use crate::shared::Shared;
use crate::socket::{Socket, SocketOptions};
use crate::tls::Tls;
use crate::{identity, stripe};

/// How long one attempt may take, from the first packet to the greeting's answer.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(10);

/// A connection that was made and not used for so long is made anew: a peer waits for a greeting 10 s at most.
const STALE_AFTER: Duration = Duration::from_secs(3);

/// How long a connection may take to be there, if nothing else is said.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Pairs of addresses that are used; more are not looked at.
const PAIRS_MAX: usize = 64;

/// Connections that are being made at a time.
const DIALLING_MAX: usize = 16;

/// Pause after a failed attempt: first, and at most. It doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// In this time, as many connections as there should be are made twice at most.
const PACE_TIME: Duration = Duration::from_secs(1);

/// How a session is to be made.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// TLS with a certificate of ours and a verifier of theirs. ALPN is set by the link, and tickets are
    /// not used.
    pub tls: Arc<ClientConfig>,
    /// The name that the verifier gets to see.
    pub server_name: ServerName<'static>,
    /// Addresses of the peer; all are used.
    pub targets: Vec<SocketAddr>,
    /// Addresses here to go out from; all are used, with every target of the same kind. None: the kernel
    /// chooses.
    pub sources: Vec<IpAddr>,
    /// How many connections.
    pub stripes: StripeBounds,
    /// How their sockets are set up.
    pub socket: SocketOptions,
    /// Whether they are made over RDMA.
    pub rdma: RdmaMode,
    /// Bounds of the session.
    pub limits: Limits,
    /// Bytes a second that may be sent; shared with whoever has the same.
    pub rate_limit: Option<Arc<RateLimit>>,
    /// Name that the peer hears.
    pub name: String,
    /// What the peer is told of this side, up to 8 KiB.
    pub announce: Vec<u8>,
    /// How long a connection may take to be there.
    pub connect_within: Duration,
    /// Versions of the protocol; other than what this library speaks only in tests.
    pub versions: VersionRange,
}

impl ConnectOptions {
    /// All as usual.
    pub fn new(tls: Arc<ClientConfig>, server_name: ServerName<'static>, targets: Vec<SocketAddr>) -> Self {
        ConnectOptions {
            tls,
            server_name,
            targets,
            sources: Vec::new(),
            stripes: StripeBounds::default(),
            socket: SocketOptions::default(),
            rdma: RdmaMode::default(),
            limits: Limits::default(),
            rate_limit: None,
            name: String::new(),
            announce: Vec::new(),
            connect_within: CONNECT_WITHIN,
            versions: VERSIONS,
        }
    }

    /// Pairs of addresses that can be connected.
    fn pairs(&self) -> Vec<Pair> {
        let of = |target: &SocketAddr| {
            let target = *target;
            let fits = move |source: &&IpAddr| source.is_ipv4() == target.is_ipv4();
            let sources: Vec<_> = self.sources.iter().filter(fits).map(|it| Some(*it)).collect();
            let sources = if self.sources.is_empty() { vec![None] } else { sources };
            sources.into_iter().map(move |source| Pair { source, target })
        };
        self.targets.iter().flat_map(of).take(PAIRS_MAX).collect()
    }

    /// What a session's first connection is made over.
    fn first_carrier(&self) -> Carrier {
        match self.rdma {
            RdmaMode::Require => Carrier::Rdma,
            RdmaMode::Auto | RdmaMode::Never => Carrier::Tcp,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    source: Option<IpAddr>,
    target: SocketAddr,
}

/// Makes a session: dials one connection of all pairs of addresses at once, and further ones in the
/// background.
///
/// # Errors
/// `Unreachable` if nobody answers; `Refused` if the peer is not trusted or does not trust us; `Version`;
/// `Protocol`; `Unsupported` if RDMA is required and this host has none; `Misuse` if there is no pair of addresses.
pub fn connect(options: &ConnectOptions) -> Result<Session, LinkError> {
    let options = ConnectOptions { tls: identity::client(&options.tls), ..options.clone() };
    let pairs = options.pairs();
    if pairs.is_empty() {
        return Err(LinkError::new(LinkErrorKind::Misuse, "no source address can reach a target address"));
    }
    if options.rdma == RdmaMode::Require {
        drover_rdma::check().map_err(|lacking| {
            LinkError::new(LinkErrorKind::Unsupported, format!("RDMA is required, and {lacking}"))
        })?;
    }
    let mut ahead = Ahead::default();
    let (first, instance, welcomed) = first_of(&options, &pairs, &mut ahead)?;
    let Welcomed { tls, welcome, fingerprint, notes } = welcomed;
    let (is_rdma_offered, rtt) = (welcome.features & FEATURE_RDMA != 0, tls.socket().rtt_min());
    let rdma = RdmaState::first(options.rdma, is_rdma_offered, rtt, || {
        drover_rdma::check().err().map(|lacking| lacking.to_string())
    });
    let peer =
        Peer { name: welcome.name, fingerprint, version: welcome.version, announced: welcome.announce };
    let core = Core::new(Side::Dialler, options.limits, welcome.credits);
    let controller = Controller::new(options.stripes.for_round_trip(rtt));
    let shared = Shared::new(core, peer, options.rate_limit.clone(), controller.wanted());
    attach(&shared, tls, notes).map_err(|error| io_failure("connection", &error))?;
    let can_rdma = !matches!(rdma, RdmaState::Off(_));
    shared.with(|inner, _| {
        if let (RdmaState::Off(why), true) = (&rdma, is_rdma_offered) {
            inner.note(format!("the peer offers RDMA, and TCP carries this link: {why}"));
        }
        inner.rdma = rdma;
    });
    let state = Arc::new(DialState {
        join: (welcome.session, welcome.token),
        peer_instance: welcome.instance,
        instance,
        fingerprint,
        dialling: AtomicUsize::new(0),
        pause: Mutex::new((PAUSE_FIRST, Moment::ZERO)),
        choice: Mutex::new(Choice::new(options.rdma, can_rdma, pairs.len(), first + 1)),
        options,
    });
    ahead.join(&state, &shared, controller.wanted() - 1);
    let dial = Dialler { state, pairs, shared: Arc::downgrade(&shared), pace: Pace::default() };
    keeper::start(&shared, Some(controller), Some(Box::new(dial)))
        .map_err(|error| LinkError::new(LinkErrorKind::Unreachable, format!("no thread: {error}")))?;
    Ok(Session::new(shared))
}

pub(crate) fn random(bytes: &mut [u8]) -> Result<(), LinkError> {
    aws_lc_rs::rand::fill(bytes)
        .map_err(|_| LinkError::new(LinkErrorKind::Unreachable, "the system gives no random numbers"))
}

/// The first pair of addresses over which the peer lets us in. All are dialled at once; what does not get through
/// TLS and the greeting is not the last word as long as there are others. What the peer itself refuses is. With the
/// number that this end has for the peer.
fn first_of(
    options: &ConnectOptions,
    pairs: &[Pair],
    ahead: &mut Ahead,
) -> Result<(usize, [u8; 16], Welcomed), LinkError> {
    let (sender, receiver) = mpsc::channel();
    for (at, pair) in pairs.iter().copied().enumerate() {
        let (answer, options) = (sender.clone(), options.clone());
        let started = thread::Builder::new().name("link-dial".into()).spawn(move || {
            let dialled = dial(&options, pair, options.first_carrier());
            // Nobody receives any more if another pair was faster.
            let _ = answer.send((at, Instant::now(), dialled));
        });
        if let Err(error) = started {
            // Nobody else receives; and this end is here.
            let _ = sender.send((at, Instant::now(), Err(error)));
        }
    }
    drop(sender);
    // While the first packets are under way: a process's first random number takes some 60 ms to be gathered.
    let mut instance = [0; 16];
    random(&mut instance)?;
    let mut errors = Vec::new();
    for (at, since, dialled) in receiver {
        let pair = pairs[at];
        let socket = match dialled {
            // The peer may have given it up while another was tried in vain.
            Ok(_) if since.elapsed() > STALE_AFTER => dial(options, pair, options.first_carrier()),
            dialled => dialled,
        };
        let until = Instant::now() + ATTEMPT_WITHIN;
        let welcomed = socket
            .map_err(|error| Failure::Passing(LinkError::new(LinkErrorKind::Unreachable, error.to_string())))
            .and_then(|socket| {
                ahead.begin(options, pairs, at, &socket);
                secured(options, socket, until)
            })
            .and_then(|secured| welcomed(options, secured, None, instance, until));
        match welcomed {
            Ok(welcomed) => return Ok((at, instance, welcomed)),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(error)) => errors.push((pair, error)),
        }
    }
    Err(all_of(&errors))
}

/// One error of those of all pairs of addresses. That a peer is not trusted, or does not trust us, is the last word if all say so:
/// somebody else may be at one address, while the peer at another is about to come back.
fn all_of(errors: &[(Pair, LinkError)]) -> LinkError {
    let is_refused =
        !errors.is_empty() && errors.iter().all(|(_, error)| error.kind == LinkErrorKind::Refused);
    if let ([(_, error)], true) = (errors, is_refused) {
        return error.clone();
    }
    let mut texts: Vec<String> =
        errors.iter().map(|(pair, error)| format!("{}: {error}", pair.target)).collect();
    texts.dedup();
    let kind = if is_refused { LinkErrorKind::Refused } else { LinkErrorKind::Unreachable };
    LinkError::new(kind, texts.join("; "))
}

/// Makes a connection up to the greeting.
fn shake_hands(
    options: &ConnectOptions,
    pair: Pair,
    carrier: Carrier,
    until: Instant,
) -> Result<Secured, Failure> {
    let socket =
        dial(options, pair, carrier).map_err(|error| Failure::Passing(io_failure("connection", &error)))?;
    secured(options, socket, until)
}

/// Further connections of a session that is being made. They shake hands while the first one does, and join the
/// session as soon as there is one: on a long line that is two round trips sooner.
#[derive(Default)]
struct Ahead {
    /// Where each of them waits for its session.
    waiting: Vec<mpsc::Sender<Joining>>,
    is_begun: bool,
}

/// What a connection needs to join a session.
struct Joining {
    state: Arc<DialState>,
    shared: Weak<Shared>,
}

impl Ahead {
    /// Begins to make as many as there will be beside the first one, which is at `pairs[first]` and tells how far the
    /// peer is. Again does nothing.
    fn begin(&mut self, options: &ConnectOptions, pairs: &[Pair], first: usize, socket: &Socket) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        let wanted = Controller::new(options.stripes.for_round_trip(socket.rtt_min())).wanted();
        for at in 1..wanted.min(DIALLING_MAX) {
            let at = (first + at) % pairs.len();
            let (way, options) =
                (Way { at, pair: pairs[at], carrier: options.first_carrier() }, options.clone());
            let (sender, receiver) = mpsc::channel::<Joining>();
            let thread = thread::Builder::new().name("link-dial".into());
            let started = thread.spawn(move || {
                let until = Instant::now() + ATTEMPT_WITHIN;
                let made = shake_hands(&options, way.pair, way.carrier, until);
                // Nobody sends if there is no session.
                let Ok(Joining { state, shared }) = receiver.recv() else { return };
                state.take(way, made, until, &shared);
                state.done(&shared);
            });
            // Without a thread it is made later.
            self.waiting.extend(started.is_ok().then_some(sender));
        }
    }

    /// Has up to so many of them join a session; the others end.
    fn join(self, state: &Arc<DialState>, shared: &Arc<Shared>, wanted: usize) {
        for sender in self.waiting.iter().take(wanted) {
            // The pairs of addresses are used in turn.
            let carrier = state.options.first_carrier();
            state.choice().pair(carrier, Moment::ZERO);
            state.dialling.fetch_add(1, Ordering::Relaxed);
            let joining = Joining { state: state.clone(), shared: Arc::downgrade(shared) };
            // It waits for nothing else; one that broke is counted as one that comes.
            if sender.send(joining).is_err() {
                state.dialling.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn dial(options: &ConnectOptions, pair: Pair, carrier: Carrier) -> std::io::Result<Socket> {
    match carrier {
        Carrier::Tcp => dial_tcp(options, pair).map(Socket::Tcp),
        Carrier::Rdma => {
            let dialled = drover_rdma::Stream::connect(pair.source, pair.target, options.connect_within);
            let named =
                |error: std::io::Error| std::io::Error::new(error.kind(), format!("over RDMA: {error}"));
            dialled.map(Socket::Rdma).map_err(named)
        }
    }
}

fn dial_tcp(options: &ConnectOptions, pair: Pair) -> std::io::Result<TcpStream> {
    let family = if pair.target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, rustix::net::SocketFlags::CLOEXEC, None)?;
    if let Some(mark) = options.socket.mark {
        drover_tcp::set_mark(&socket, mark)?;
    }
    if let Some(source) = pair.source {
        rustix::net::bind(&socket, &SocketAddr::new(source, 0))?;
    }
    let socket = TcpStream::from(socket);
    connect_within(&socket, pair.target, options.connect_within)?;
    Ok(socket)
}

/// Connects a socket that exists already; the standard library does it for new ones only, which have no
/// mark and no address yet.
fn connect_within(socket: &TcpStream, target: SocketAddr, within: Duration) -> std::io::Result<()> {
    // The kernel applies the send timeout to connect as well.
    socket.set_write_timeout(Some(within))?;
    let result = rustix::net::connect(socket, &target);
    socket.set_write_timeout(None)?;
    match result {
        Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::AGAIN) => {
            Err(std::io::ErrorKind::TimedOut.into())
        }
        result => Ok(result?),
    }
}

/// A connection that the peer let in.
struct Welcomed {
    tls: Tls,
    welcome: Welcome,
    fingerprint: [u8; 32],
    notes: Vec<String>,
}

/// A connection that has shaken hands, and whose peer has not let us in yet.
struct Secured {
    tls: Tls,
    fingerprint: [u8; 32],
    notes: Vec<String>,
}

fn secured(options: &ConnectOptions, socket: Socket, until: Instant) -> Result<Secured, Failure> {
    let lost = |error: std::io::Error| Failure::Passing(io_failure("connection", &error));
    let notes = options.socket.apply(&socket).map_err(lost)?;
    let tls = Tls::connect(socket, options.tls.clone(), options.server_name.clone(), until).map_err(lost)?;
    let fingerprint = tls.proven().map_err(Failure::Passing)?;
    Ok(Secured { tls, fingerprint, notes })
}

fn welcomed(
    options: &ConnectOptions,
    secured: Secured,
    join: Option<([u8; 16], [u8; 32])>,
    instance: [u8; 16],
    until: Instant,
) -> Result<Welcomed, Failure> {
    let Secured { mut tls, fingerprint, notes } = secured;
    let hello = Hello {
        versions: options.versions,
        features: if options.rdma == RdmaMode::Never { 0 } else { FEATURE_RDMA },
        join,
        instance,
        name: options.name.clone(),
        announce: options.announce.clone(),
        credits: options.limits.credits,
    };
    let welcome = greet::introduce(&mut tls, hello, until)?;
    Ok(Welcomed { tls, welcome, fingerprint, notes })
}

/// Gives a connection to its session.
pub(crate) fn attach(shared: &Arc<Shared>, tls: Tls, notes: Vec<String>) -> std::io::Result<()> {
    shared.with(|inner, _| {
        for note in notes {
            if !inner.notes.contains(&note) {
                inner.note(note);
            }
        }
    });
    let line = tls.socket().line()?;
    let (reader, writer) = tls.split()?;
    stripe::start(shared, line, reader, writer)
}

/// Makes further connections of a session.
struct Dialler {
    state: Arc<DialState>,
    pairs: Vec<Pair>,
    shared: Weak<Shared>,
    pace: Pace,
}

/// Connections that are let in and end at once would be made again without a pause, so there is a bound on
/// how many are made in a time.
#[derive(Debug, Default)]
struct Pace {
    since: Moment,
    made: usize,
}

impl Pace {
    /// How many of those that are missing may be made now.
    fn allows(&mut self, missing: usize, wanted: usize, now: Moment) -> usize {
        if now >= self.since + PACE_TIME {
            *self = Pace { since: now, made: 0 };
        }
        let now = missing.min((2 * wanted).saturating_sub(self.made));
        self.made += now;
        now
    }
}

struct DialState {
    options: ConnectOptions,
    join: ([u8; 16], [u8; 32]),
    peer_instance: [u8; 16],
    instance: [u8; 16],
    fingerprint: [u8; 32],
    dialling: AtomicUsize,
    /// The next pause, and until when it is one.
    pause: Mutex<(Duration, Moment)>,
    choice: Mutex<Choice>,
}

/// How one connection is made.
#[derive(Clone, Copy)]
struct Way {
    /// Which of the pairs it takes.
    at: usize,
    pair: Pair,
    carrier: Carrier,
}

impl Dial for Dialler {
    fn keep(&mut self, wanted: usize, healthy: Healthy, now: Moment) -> Kept {
        let mut choice = self.state.choice();
        let carrier = choice.carrier(healthy, now);
        let (kept, healthy) = match carrier {
            Carrier::Tcp => (Kept::Tcp, healthy.all),
            Carrier::Rdma if healthy.rdma > 0 => (Kept::Rdma, healthy.rdma),
            Carrier::Rdma => (Kept::Joining, 0),
        };
        if now < self.state.pause.lock().unwrap_or_else(PoisonError::into_inner).1 {
            return kept;
        }
        let dialling = self.state.dialling.load(Ordering::Relaxed);
        let missing = wanted.saturating_sub(healthy + dialling).min(DIALLING_MAX.saturating_sub(dialling));
        for _ in 0..self.pace.allows(missing, wanted, now) {
            let at = choice.pair(carrier, now);
            let way = Way { at, pair: self.pairs[at], carrier };
            self.state.dialling.fetch_add(1, Ordering::Relaxed);
            let (state, shared) = (self.state.clone(), self.shared.clone());
            let started = thread::Builder::new().name("link-dial".into()).spawn(move || {
                state.dial(way, &shared);
                state.done(&shared);
            });
            if started.is_err() {
                self.state.dialling.fetch_sub(1, Ordering::Relaxed);
            }
        }
        kept
    }
}

impl DialState {
    /// An attempt is over.
    fn done(&self, shared: &Weak<Shared>) {
        self.dialling.fetch_sub(1, Ordering::Relaxed);
        if let Some(shared) = shared.upgrade() {
            shared.keeper.notify_all();
        }
    }

    /// One attempt.
    fn dial(&self, way: Way, shared: &Weak<Shared>) {
        let until = Instant::now() + ATTEMPT_WITHIN;
        self.take(way, shake_hands(&self.options, way.pair, way.carrier, until), until, shared);
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a connection join the session, if there is one.
    fn take(&self, way: Way, made: Result<Secured, Failure>, until: Instant, shared: &Weak<Shared>) {
        let result = made.and_then(|secured| self.joined(secured, until));
        let Some(shared) = shared.upgrade() else { return };
        let failure = match result {
            Ok(Welcomed { tls, notes, .. }) => match attach(&shared, tls, notes) {
                Ok(()) => {
                    self.pause.lock().unwrap_or_else(PoisonError::into_inner).0 = PAUSE_FIRST;
                    if way.carrier == Carrier::Rdma {
                        self.choice().joined();
                    }
                    return;
                }
                Err(error) => Failure::Passing(io_failure("connection", &error)),
            },
            Err(failure) => failure,
        };
        let now = shared.now();
        if way.carrier == Carrier::Rdma && self.options.rdma != RdmaMode::Require {
            return self.left_to_tcp(way, failure, &shared, now);
        }
        match failure {
            // While there are connections they are what tells how it ended: the peer's last word may be on its way.
            Failure::Final(error)
                if error.kind != LinkErrorKind::Lost || shared.lock().core.healthy() == 0 =>
            {
                shared.with(|inner, _| inner.core.end_told(error));
            }
            Failure::Final(error) | Failure::Passing(error) => {
                let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
                if now >= pause.1 {
                    *pause = ((pause.0 * 2).min(PAUSE_MAX), now + pause.0);
                }
                drop(pause);
                shared.with(|inner, _| inner.note(format!("no connection to {}: {error}", way.pair.target)));
            }
        }
    }

    /// None over RDMA on this way. TCP has carried the session until now, so this is no last word about it.
    fn left_to_tcp(&self, way: Way, failure: Failure, shared: &Shared, now: Moment) {
        self.choice().failed(way.at, now);
        let (Failure::Final(error) | Failure::Passing(error)) = failure;
        let (target, again) = (way.pair.target, AGAIN_AFTER.as_secs());
        let text =
            format!("no connection to {target}: {error}; TCP is used, and RDMA tried again in {again} s");
        shared.with(|inner, _| {
            inner.rdma = RdmaState::Off(text.clone());
            inner.note(text);
        });
    }

    fn joined(&self, secured: Secured, until: Instant) -> Result<Welcomed, Failure> {
        let welcomed = welcomed(&self.options, secured, Some(self.join), self.instance, until)?;
        let is_same =
            welcomed.fingerprint == self.fingerprint && welcomed.welcome.instance == self.peer_instance;
        match is_same {
            true => Ok(welcomed),
            false => {
                let text = "another peer answered than the one the session was made with";
                Err(Failure::Final(LinkError::new(LinkErrorKind::Lost, text)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_at_once_are_not_made_without_end() {
        let mut pace = Pace::default();
        let made = |pace: &mut Pace, from: u64| -> usize {
            (from..from + 10_000).map(|ms| pace.allows(4, 4, Duration::from_millis(ms))).sum()
        };
        assert_eq!(made(&mut pace, 0), 80, "ten seconds, twice four a second");
        // After a quiet time all are made at once.
        assert_eq!(pace.allows(4, 4, Duration::from_secs(60)), 4);
    }
}
