//! What a relay is to do.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use drover_link::Session;
use drover_tcp::Keepalive;

use crate::address::Pairing;
use crate::pipes::PIPES_BYTES_MAX;
use crate::rule::Policy;

/// Connections at once, unless the options or the process's limit of files say otherwise.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Addresses of a target's name that are tried.
pub const ADDRESSES_MAX: usize = 8;
/// Threads, unless the options say otherwise: more bring nothing, since one moves gigabytes a second.
const WORKERS_MAX: usize = 8;

/// Where the connections of a listener go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To one target, by any of its addresses.
    Fixed {
        /// In the order in which they are tried; not empty.
        addresses: Arc<[SocketAddr]>,
    },
    /// Where the client wanted to go before the packet filter redirected it here.
    Redirected,
    /// Where the client wanted to go, which is the accepted socket's own address (TPROXY).
    Intercepted {
        /// Connect from the client's own address.
        keep_source: bool,
    },
    /// To one target that the other end of a link knows.
    Far {
        /// `HOST:PORT`, as the agent's host knows it.
        to: String,
        /// The same as this host knows it: for rules, and for those who are to go there directly. Empty if
        /// it is a name that was not looked up here.
        addresses: Arc<[SocketAddr]>,
    },
}

/// A socket that listens, and where its connections go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where they go.
    pub to: Destination,
}

impl Line {
    /// A line to a target by name or address. The name is looked up now, and not again.
    ///
    /// # Errors
    /// Those of the look-up, and `NotFound` if it gives no address.
    pub fn resolve(pairing: &Pairing) -> io::Result<Line> {
        let addresses = look_up(&pairing.host, pairing.port)?;
        Ok(Line { listen: pairing.listen, to: Destination::Fixed { addresses } })
    }

    /// A line to a target that the other end of a link knows. A name is looked up here, too, only where that
    /// is asked for.
    ///
    /// # Errors
    /// As [`Line::resolve`].
    pub fn far(pairing: &Pairing, also_here: bool) -> io::Result<Line> {
        let Pairing { listen, host, port } = pairing;
        let address = host.parse().map(|address| SocketAddr::new(address, *port));
        let addresses = match address {
            Ok(address) => [address].into(),
            Err(_) if also_here => look_up(host, *port)?,
            Err(_) => [].into(),
        };
        let to = address.map_or_else(|_| format!("{host}:{port}"), |address| address.to_string());
        Ok(Line { listen: *listen, to: Destination::Far { to, addresses } })
    }
}

fn look_up(host: &str, port: u16) -> io::Result<Arc<[SocketAddr]>> {
    let addresses: Arc<[SocketAddr]> = (host, port).to_socket_addrs()?.take(ADDRESSES_MAX).collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

/// How the relay's sockets are told to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// BBR where this host has it, else what the host uses.
    #[default]
    BestHere,
    /// What the host uses.
    Host,
    /// This one, or the relay does not start.
    Named(String),
}

/// All of it.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// What is listened on.
    pub lines: Vec<Line>,
    /// Who may go where.
    pub policy: Policy,
    /// Congestion control towards targets.
    pub congestion: Congestion,
    /// Congestion control towards clients.
    pub congestion_back: Congestion,
    /// Connections at once; further ones are reset.
    pub connections_max: usize,
    /// For each address of a target.
    pub connect_timeout: Duration,
    /// Questions to silent peers.
    pub keepalive: Keepalive,
    /// Threads that move bytes, from 1.
    pub workers: usize,
    /// What all pipes may hold.
    pub pipes_bytes_max: usize,
    /// Marks the packets that go to targets, for rules that must leave them alone.
    pub mark: Option<u32>,
    /// Ports that redirected connections come to where a line names none: the first that is free and may be taken, else any,
    /// with a note. `None`: any will do.
    pub redirect_ports: Option<Vec<u16>>,
    /// A link, over which all go that a rule does not send directly.
    pub via: Option<Via>,
}

/// Why there is no session.
pub type DialError = Box<dyn std::error::Error + Send + Sync>;
/// Makes a session with the agent.
pub type Dial = dyn Fn() -> Result<Session, DialError> + Send + Sync;

/// A link to another site's agent, which connects to targets for this relay.
#[derive(Clone)]
pub struct Via {
    /// What the site is called here.
    pub site: String,
    /// Called at the start, and when a session was lost and the next client comes.
    pub dial: Arc<Dial>,
    /// Whether others have the sessions, too: then they are not closed when nothing here needs them any more.
    pub is_shared: bool,
    /// Whether streams may be packed, if the agent knows how.
    pub packs: bool,
    /// What an earlier program of this host left connected to the same unix sockets there makes way, once it has had no connection
    /// for some seconds: they serve one at a time.
    pub takes_over: bool,
}

impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "via {}", self.site)
    }
}

impl RelayOptions {
    /// The usual settings for these lines.
    pub fn new(lines: Vec<Line>) -> RelayOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        RelayOptions {
            lines,
            policy: Policy::default(),
            congestion: Congestion::default(),
            congestion_back: Congestion::Host,
            connections_max: CONNECTIONS_MAX,
            connect_timeout: Duration::from_secs(10),
            keepalive: Keepalive::default(),
            workers: cores.clamp(1, WORKERS_MAX),
            pipes_bytes_max: PIPES_BYTES_MAX,
            mark: None,
            redirect_ports: None,
            via: None,
        }
    }
}

/// The family's address for "any".
pub fn any_address(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { std::net::Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() }
}

/// Whether this host, or this network namespace, has IPv6.
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/thread-self/net/if_inet6").exists()
}
