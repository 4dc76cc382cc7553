//! The far end of a paired relay: connects channels of a link to ports behind an agent, if that is allowed.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drover_link::{Channel, Peer, fingerprint_hex};

use crate::address::{AddressError, Network, PortRange, Target, wrong};
use crate::answer::{Word, answer};
use crate::book::{Book, Refused};
use crate::connecting::prepare_plain;
use crate::connection::Meta;
use crate::linked::{End, Form, Linked, refusal};
use crate::options::{ADDRESSES_MAX, any_address};
use crate::pipes::Budget;
use crate::relay::files_for_links;
use crate::sockets::{self, NoSocket, SocketRule};
use crate::stats::{Refusal, Snapshot};
use crate::teller::{Teller, gathered};
use crate::worker::{Inbox, Job, hand_over, start_all};

/// All addresses of a target together.
const DIAL_WITHIN: Duration = Duration::from_secs(20);
/// Threads that carry.
const WORKERS_MAX: usize = 8;
/// Connections of all peers together, unless it is said otherwise; of one peer half. Each takes one file; 8 KiB at
/// most while it is idle (47 MiB for one peer), and up to 256 KiB more while its target takes nothing (1.5 GiB).
pub const FAR_CONNECTIONS_MAX: usize = 12_000;
/// A host and port as a peer writes it is shorter.
const TO_BYTES_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Any,
    Network(Network),
    Name(String),
}

/// Where peers may connect to: `HOST:PORT[-PORT]`, with a name, an address, a network, or `*` for all; or unix sockets,
/// `unix:/FOLDER/NAME`, `unix:/FOLDER/*`, or `unix:/FOLDER/**` for those in folders below, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed(Where);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Where {
    Port { host: Host, ports: PortRange },
    Socket(SocketRule),
}

/// What an operator or a peer puts before the path of a unix socket.
const UNIX: &str = "unix:";
const SOCKETS: &str =
    "a path of unix sockets, such as unix:/run/vm/a.sock, unix:/run/vm/* or unix:/run/vm/**";

impl FromStr for Allowed {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix(UNIX) {
            let rule = SocketRule::read(path).ok_or_else(|| wrong(text, SOCKETS))?;
            return Ok(Allowed(Where::Socket(rule)));
        }
        let Target { host, ports } = text.parse()?;
        let host = match (host.as_str(), host.parse()) {
            ("*", _) => Host::Any,
            (_, Ok(network)) => Host::Network(network),
            _ => Host::Name(host.to_ascii_lowercase()),
        };
        Ok(Allowed(Where::Port { host, ports }))
    }
}

impl Allowed {
    /// Whether a host may fit by one of the addresses that its name could have.
    fn may_fit(&self, host: &str, port: u16) -> bool {
        let Where::Port { host: allowed, ports } = &self.0 else { return false };
        let is_host = match (allowed, host.parse::<IpAddr>()) {
            (Host::Any, _) => true,
            (Host::Network(network), Ok(address)) => network.contains(address),
            (Host::Network(_), Err(_)) => true,
            (Host::Name(name), _) => host.eq_ignore_ascii_case(name),
        };
        is_host && ports.contains(port)
    }

    /// Whether a host, as the peer wrote it and by an address that its name has, may be connected to.
    fn fits(&self, host: &str, address: SocketAddr) -> bool {
        let Where::Port { host: allowed, ports } = &self.0 else { return false };
        let is_host = match allowed {
            Host::Any => true,
            Host::Network(network) => network.contains(address.ip()),
            Host::Name(name) => host.eq_ignore_ascii_case(name),
        };
        is_host && ports.contains(address.port())
    }

    /// Whether it is unix sockets: monitors of QEMU, and what they offer.
    pub fn is_of_sockets(&self) -> bool {
        self.socket().is_some()
    }

    fn socket(&self) -> Option<&SocketRule> {
        match &self.0 {
            Where::Socket(rule) => Some(rule),
            Where::Port { .. } => None,
        }
    }
}

/// Why a channel was not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// What the peer wrote is no host and port, and no path of a socket.
    #[error("that is no host and port, and no unix:/PATH without '.', '..' and the like")]
    Unreadable,
    /// Nothing allows it.
    #[error("{0} is not allowed here; try: drover agent run --allow-connect {0}")]
    Denied(String),
    /// It is allowed by its name, but not what it is.
    #[error("{0} is no socket, or a part of it below what is allowed is a symbolic link")]
    Escapes(String),
    /// There are as many connections as there may be.
    #[error(
        "there are {0} connections already, as many as there may be; more: drover agent run --connections"
    )]
    TooMany(usize),
    /// The peer has as many as one may have.
    #[error(
        "this peer has {0} connections already, as many as one may have; more: drover agent run --connections"
    )]
    TooManyOfPeer(usize),
    /// The target does not answer.
    #[error("connecting to {to}")]
    Failed {
        /// Where to.
        to: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

impl ConnectError {
    fn word(&self) -> Word {
        match self {
            ConnectError::Unreadable => Word::Unreadable,
            ConnectError::Denied(_) | ConnectError::Escapes(_) => Word::Denied,
            ConnectError::TooMany(_) | ConnectError::TooManyOfPeer(_) => Word::TooMany,
            ConnectError::Failed { source, .. } => match source.kind() {
                ErrorKind::ConnectionRefused => Word::Refused,
                ErrorKind::TimedOut | ErrorKind::WouldBlock => Word::Silent,
                _ => Word::Unreachable,
            },
        }
    }

    /// Whether nothing listens there: to who only looked that is the best answer.
    pub fn is_free(&self) -> bool {
        let ConnectError::Failed { source, .. } = self else { return false };
        matches!(source.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
    }

    /// As it is counted here, where the policy is this host's own.
    fn refusal(&self) -> Refusal {
        match self.word() {
            Word::Denied => Refusal::Policy,
            word => refusal(word),
        }
    }

    /// For the peer.
    fn text(&self) -> String {
        match self {
            ConnectError::Failed { source, .. } => format!("{self}: {source}"),
            ConnectError::Unreadable
            | ConnectError::Denied(_)
            | ConnectError::Escapes(_)
            | ConnectError::TooMany(_)
            | ConnectError::TooManyOfPeer(_) => self.to_string(),
        }
    }
}

/// Connects channels of peers to ports, and carries them. Without anything allowed it connects to nothing.
/// Dropped, it resets what it carries.
pub struct Ports {
    allowed: Vec<Allowed>,
    timeout: Duration,
    connections_max: usize,
    notes: Vec<String>,
    taken: Arc<Mutex<Taken>>,
    book: Arc<Book>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    ids: AtomicU64,
    started: Instant,
}

impl Ports {
    /// Ports that peers may connect to, how long an address may take to answer, and connections at once; of one peer
    /// half of these.
    ///
    /// # Errors
    /// If there are no threads or files.
    pub fn start(allowed: Vec<Allowed>, timeout: Duration, connections_max: usize) -> io::Result<Ports> {
        let mut notes = Vec::new();
        let connections_max = files_for_links(connections_max, &mut notes);
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, WORKERS_MAX);
        let inboxes = (0..count).map(|_| Inbox::new()).collect::<io::Result<Vec<_>>>()?;
        let mut ports = Ports {
            allowed,
            timeout,
            connections_max,
            notes,
            taken: Arc::default(),
            book: Arc::default(),
            inboxes,
            threads: Vec::new(),
            ids: AtomicU64::new(1),
            started: Instant::now(),
        };
        // They hold no bytes in pipes.
        start_all(&ports.inboxes, "ports", (&Budget::new(0), &ports.book), &mut ports.threads)?;
        Ok(ports)
    }

    /// What a person should know: a limit of files that is lower than was asked for.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Connections at once, of all peers together; of one peer half, rounded up.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Connections now.
    pub fn live(&self) -> usize {
        lock(&self.taken).all
    }

    /// How it stands, with this many of the fastest connections.
    pub fn snapshot(&self, connections: usize) -> Snapshot {
        self.teller().snapshot(connections)
    }

    /// Tells how the connections stand, from any thread, for as long as they are carried.
    pub fn teller(&self) -> Teller {
        let (inboxes, book) = (self.inboxes.clone(), self.book.clone());
        let (taken, started) = (self.taken.clone(), self.started);
        Teller::new(move |connections| {
            let told = gathered(&inboxes, connections, started, book.totals());
            // Asked last: what a worker has counted as ended lives no more.
            let counts = lock(&taken);
            Snapshot { live: counts.all as u64, peers: counts.told(), ..told }
        })
    }

    /// Streams that a peer broke by what it sent since this was asked last, with what was wrong.
    pub fn take_broken(&self) -> Vec<Refused> {
        self.book.take_told()
    }

    /// Connects to `to`, as the peer wrote it, tells it what came of it, and leaves the rest to threads of its
    /// own. Waits for the target, for no more than 20 s.
    ///
    /// # Errors
    /// [`ConnectError`] if nothing was connected. The peer knows it, too.
    pub fn connect(
        &self,
        peer: &Peer,
        (to, form): (&str, Form),
        channel: Channel,
    ) -> Result<(), ConnectError> {
        let place = Place::take(&self.taken, peer, self.connections_max);
        // A channel that is given up by now needs no answer, and ends by itself. A place that comes to nothing is given
        // back before the answer: a peer that reads none keeps it from nobody.
        match place.and_then(|place| Ok((self.dial(to)?, place))) {
            Ok(((stream, target), place)) => {
                let _ = channel.sender().write_all(&answer(Word::Connected, ""));
                self.carry((stream, target), channel, (End::Far(place), form));
                Ok(())
            }
            Err(error) => {
                self.book.count(error.refusal());
                let (sender, _receiver) = channel.split();
                let _ = sender.write_all(&answer(error.word(), &error.text())).and_then(|()| sender.finish());
                Err(error)
            }
        }
    }

    fn carry(&self, (stream, target): (OwnedFd, String), channel: Channel, end: (End, Form)) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        // Whoever is at the other end of the link has no address here.
        let client = SocketAddr::new(any_address(true), 0);
        let meta = Meta { id, client, target, rule: None, accepted_at: Instant::now() };
        let linked = Linked::new(meta, stream, channel, None, end);
        hand_over(&self.inboxes, Job::Link(Box::new(linked)));
    }

    fn dial(&self, to: &str) -> Result<(OwnedFd, String), ConnectError> {
        match to.strip_prefix(UNIX) {
            Some(path) => self.dial_socket(to, path),
            None => self.dial_port(to),
        }
    }

    fn dial_socket(&self, to: &str, path: &str) -> Result<(OwnedFd, String), ConnectError> {
        let parts = sockets::parts(path).filter(|_| to.len() <= TO_BYTES_MAX);
        let parts = parts.ok_or(ConnectError::Unreadable)?;
        let rules: Vec<&SocketRule> = self.allowed.iter().filter_map(Allowed::socket).collect();
        let to = to.to_string();
        match sockets::dial(&rules, &parts, self.timeout.min(DIAL_WITHIN)) {
            Ok(stream) => Ok((stream, to)),
            Err(NoSocket::Denied) => Err(ConnectError::Denied(to)),
            Err(NoSocket::Escapes) => Err(ConnectError::Escapes(to)),
            Err(NoSocket::Failed(source)) => Err(ConnectError::Failed { to, source }),
        }
    }

    fn dial_port(&self, to: &str) -> Result<(OwnedFd, String), ConnectError> {
        let (host, port) = read(to).ok_or(ConnectError::Unreadable)?;
        let until = Instant::now() + DIAL_WITHIN;
        let failed = |source| ConnectError::Failed { to: to.to_string(), source };
        // A name that nothing could allow is not even looked up.
        if !self.allowed.iter().any(|it| it.may_fit(&host, port)) {
            return Err(ConnectError::Denied(to.to_string()));
        }
        let addresses = (host.as_str(), port).to_socket_addrs().map_err(failed)?;
        let fits = |address: &SocketAddr| self.allowed.iter().any(|it| it.fits(&host, *address));
        let mut error = None;
        for address in addresses.take(ADDRESSES_MAX).filter(fits) {
            let left = until.saturating_duration_since(Instant::now()).min(self.timeout);
            if left.is_zero() {
                break;
            }
            match dial_address(address, left) {
                Ok(stream) => return Ok((stream.into(), address.to_string())),
                Err(why) => error = Some(why),
            }
        }
        Err(error.map_or_else(|| ConnectError::Denied(to.to_string()), failed))
    }
}

/// Connections, and targets that are being connected to.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Of the peers that have some, by their keys: names are what somebody calls them, and change.
    by_peer: HashMap<[u8; 32], Own>,
}

/// What one peer has.
#[derive(Debug)]
struct Own {
    /// What it was called last.
    name: String,
    count: usize,
}

/// Digits of a key that tell peers of one name apart.
const KEY_DIGITS_TOLD: usize = 8;

impl Taken {
    /// Connections of each peer, by its name; the beginning of its key stands behind a name that several have.
    fn told(&self) -> BTreeMap<String, u64> {
        let is_shared = |name: &str| self.by_peer.values().filter(|own| own.name == name).nth(1).is_some();
        let name = |key: &[u8; 32], own: &Own| match is_shared(&own.name) {
            true => format!("{} ({})", own.name, &fingerprint_hex(key)[..KEY_DIGITS_TOLD]),
            false => own.name.clone(),
        };
        self.by_peer.iter().map(|(key, own)| (name(key, own), own.count as u64)).collect()
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    // Counts go up and down in one step, so what a panic left is as good as before.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of the connections that there may be. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<Mutex<Taken>>,
    key: [u8; 32],
    peer: String,
}

impl Place {
    /// One of `places_max` for a peer, which may have half of them.
    fn take(taken: &Arc<Mutex<Taken>>, peer: &Peer, places_max: usize) -> Result<Place, ConnectError> {
        let (key, name) = (peer.fingerprint, &peer.name);
        let mut counts = lock(taken);
        if counts.all >= places_max {
            return Err(ConnectError::TooMany(places_max));
        }
        let peer_max = places_max.div_ceil(2);
        let count = counts.by_peer.get(&key).map_or(0, |own| own.count);
        if count >= peer_max {
            return Err(ConnectError::TooManyOfPeer(peer_max));
        }
        counts.by_peer.insert(key, Own { name: name.clone(), count: count + 1 });
        counts.all += 1;
        Ok(Place { taken: taken.clone(), key, peer: name.clone() })
    }

    /// Whose it is.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.taken);
        counts.all -= 1;
        match counts.by_peer.get_mut(&self.key) {
            Some(own) if own.count > 1 => own.count -= 1,
            _ => drop(counts.by_peer.remove(&self.key)),
        }
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.inboxes.iter().for_each(|inbox| inbox.put(Job::Stop));
        for thread in self.threads.drain(..) {
            // What it carried is reset either way.
            let _ = thread.join();
        }
    }
}

fn dial_address(address: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, within)?;
    prepare_plain(&stream)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// A host and one port.
fn read(to: &str) -> Option<(String, u16)> {
    if to.len() > TO_BYTES_MAX {
        return None;
    }
    let Target { host, ports } = to.parse().ok()?;
    (ports.count() == 1).then_some((host, ports.first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(allowed: &str, host: &str, address: &str) -> bool {
        allowed.parse::<Allowed>().unwrap().fits(host, address.parse().unwrap())
    }

    #[test]
    fn names_addresses_and_networks_allow_what_they_say() {
        assert!(fits("*:8000-8010", "x", "10.0.0.1:8010"));
        assert!(!fits("*:8000-8010", "x", "10.0.0.1:8011"));
        assert!(fits("10.2.0.0/16:902", "x", "10.2.3.4:902"));
        assert!(!fits("10.2.0.0/16:902", "x", "10.3.3.4:902"));
        assert!(fits("[2001:db8::]:902", "x", "[2001:db8::]:902"));
        assert!(fits("ESX1.example.org:902", "esx1.example.org", "192.0.2.1:902"));
        assert!(!fits("esx1.example.org:902", "192.0.2.1", "192.0.2.1:902"));
        for text in ["", "*", "host", ":902", "10.0.0.0/8", "unix:run", "unix:/a/../*", "unix:/a/*/b"] {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_peer_names_one_port_of_one_host() {
        assert_eq!(read("h:902"), Some(("h".to_string(), 902)));
        for text in ["", "h", "h:0", "h:1-2", ":9", &format!("{}:9", "h".repeat(400))] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_that_means_an_address_that_is_not_allowed_is_denied() {
        let allowed = vec!["10.0.0.0/8:1-1000".parse().unwrap()];
        let ports = Ports::start(allowed, Duration::from_secs(1), 10).unwrap();
        assert!(matches!(ports.dial("127.0.0.1:80"), Err(ConnectError::Denied(_))));
        assert!(matches!(ports.dial("127.0.0.1:2000"), Err(ConnectError::Denied(_))));
        assert!(matches!(ports.dial("?"), Err(ConnectError::Unreadable)));
    }

    /// A peer of this key and name.
    fn peer(key: u8, name: &str) -> Peer {
        Peer { name: name.to_string(), fingerprint: [key; 32], version: 1, announced: Vec::new() }
    }

    #[test]
    fn a_peer_has_half_of_the_places_and_gives_them_back() {
        let taken: Arc<Mutex<Taken>> = Arc::default();
        let take = |key: u8| Place::take(&taken, &peer(key, "any"), 6);
        let mut held: Vec<Place> = (0..3).map(|_| take(0xa).unwrap()).collect();
        assert!(matches!(take(0xa), Err(ConnectError::TooManyOfPeer(3))));
        held.extend([0xb, 0xc, 0xc].map(|key| take(key).unwrap()));
        assert!(matches!(take(0xd), Err(ConnectError::TooMany(6))));
        held.remove(0);
        held.push(take(0xa).unwrap());
        drop(held);
        assert!(lock(&taken).all == 0 && lock(&taken).by_peer.is_empty());
    }

    #[test]
    fn places_go_by_the_key_of_a_peer_and_are_told_by_its_name() {
        let taken: Arc<Mutex<Taken>> = Arc::default();
        let take = |key: u8, name: &str| Place::take(&taken, &peer(key, name), 6);
        let told = || lock(&taken).told().into_iter().collect::<Vec<_>>();
        let mut held: Vec<Place> = (0..3).map(|_| take(0xa, "mill").unwrap()).collect();
        assert!(
            matches!(take(0xa, "another"), Err(ConnectError::TooManyOfPeer(3))),
            "a new name is no new peer"
        );
        held.push(take(0xb, "mill").unwrap());
        assert_eq!(told(), [("mill (0a0a0a0a)".to_string(), 3), ("mill (0b0b0b0b)".to_string(), 1)]);
        held.push(take(0xb, "forge").unwrap());
        assert_eq!(told(), [("forge".to_string(), 2), ("mill".to_string(), 3)]);
        drop(held);
        assert!(told().is_empty());
    }

    #[test]
    fn what_is_no_host_and_port_is_counted_as_that() {
        let ports = Ports::start(Vec::new(), Duration::from_secs(1), 10).unwrap();
        let (one, two) = drover_link::Session::pair();
        let _asking = one.open(drover_link::Order::Stream, b"").unwrap();
        let channel = two.accept().unwrap().channel;
        let done = ports.connect(&peer(1, "a"), ("no port", Form::Plain), channel);
        assert!(matches!(done, Err(ConnectError::Unreadable)));
        let refused: Vec<_> = ports.snapshot(0).totals.refused.into_iter().collect();
        assert_eq!(refused, [(Refusal::Unreadable, 1)]);
    }

    #[test]
    fn sockets_are_connected_to_where_a_rule_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(folder.path().join("a")).unwrap();
        let at = |name: &str| format!("unix:{}/{name}", folder.path().display());
        let ports = Ports::start(vec![at("*").parse().unwrap()], Duration::from_secs(1), 10).unwrap();
        assert_eq!(ports.dial(&at("a")).unwrap().1, at("a"));
        assert!(matches!(ports.dial(&at("b")), Err(ConnectError::Failed { .. })));
        assert!(matches!(ports.dial(&at("../a")), Err(ConnectError::Unreadable)));
        assert!(matches!(ports.dial("unix:/run/other"), Err(ConnectError::Denied(_))));
        let none = Ports::start(vec!["*:1-65535".parse().unwrap()], Duration::from_secs(1), 10).unwrap();
        assert!(matches!(none.dial(&at("a")), Err(ConnectError::Denied(_))));
    }
}
