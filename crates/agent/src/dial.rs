//! Sessions over the network to an agent that is known by its key.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use drover_link::{
    ConnectOptions, Limits, LinkError, LinkErrorKind, RateLimit, RdmaMode, Session, SocketOptions,
    StripeBounds, connect,
};
use rustls::pki_types::ServerName;

use crate::trust::{Fingerprint, Identity, client_config};

/// The port that agents listen at, if nothing else is said.
pub const PORT: u16 = 7843;

/// Addresses of one host that are used.
const ADDRESSES_MAX: usize = 16;

/// How an agent is reached.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// `HOST:PORT` or `HOST`; all are used.
    pub addresses: Vec<String>,
    /// Addresses here to go out from; all are used. None: the kernel chooses.
    pub sources: Vec<IpAddr>,
    /// Name that the agent hears.
    pub own_name: String,
    /// Bytes a second that may be sent.
    pub rate_limit: Option<Arc<RateLimit>>,
    /// How long the session may be without a connection; by default as links do.
    pub give_up_after: Option<Duration>,
    /// How many connections; by default as links do.
    pub stripes: StripeBounds,
    /// What whoever passes connections on by name is told; by default a name that says nothing. The agent is known by its key.
    pub server_name: Option<String>,
    /// Marks the packets, for rules of the packet filter that must leave them alone.
    pub mark: Option<u32>,
    /// Whether connections are made over RDMA.
    pub rdma: RdmaMode,
}

/// Connects to the agent that has this key.
///
/// # Errors
/// As [`connect`]; `Unreachable` if no address has this name.
pub fn dial(identity: &Identity, agent: Fingerprint, route: &Route) -> Result<Session, LinkError> {
    let misuse = |text: String| LinkError::new(LinkErrorKind::Misuse, text);
    let tls = client_config(identity, move |key| match key == agent {
        true => Ok(()),
        false => {
            Err(format!("the host there has the key {key}, not {agent}: it is another, or was made anew"))
        }
    });
    let tls = tls.map_err(|error| misuse(error.to_string()))?;
    let name = route.server_name.clone().unwrap_or_else(|| "drover".into());
    let name = ServerName::try_from(name).map_err(|error| misuse(error.to_string()))?;
    let limits = Limits::default();
    let options = ConnectOptions {
        sources: route.sources.clone(),
        rate_limit: route.rate_limit.clone(),
        stripes: route.stripes,
        name: route.own_name.clone(),
        socket: SocketOptions { mark: route.mark, ..SocketOptions::default() },
        rdma: route.rdma,
        limits: Limits { give_up_after: route.give_up_after.unwrap_or(limits.give_up_after), ..limits },
        ..ConnectOptions::new(tls, name, resolved(&route.addresses)?)
    };
    connect(&options)
}

/// The address with the usual port, if it names none.
pub fn with_port(address: &str) -> String {
    let bare = address.strip_prefix('[').map_or(!address.contains(':'), |rest| rest.ends_with(']'));
    if bare { format!("{address}:{PORT}") } else { address.to_string() }
}

fn resolved(addresses: &[String]) -> Result<Vec<SocketAddr>, LinkError> {
    let mut found = Vec::new();
    let mut errors = Vec::new();
    for address in addresses {
        match with_port(address).to_socket_addrs() {
            Ok(some) => found.extend(some),
            Err(error) => errors.push(format!("{address}: {error}")),
        }
    }
    found.dedup();
    found.truncate(ADDRESSES_MAX);
    if found.is_empty() {
        return Err(LinkError::new(LinkErrorKind::Unreachable, errors.join("; ")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustls::server::Acceptor;

    use super::*;

    #[test]
    fn who_passes_connections_on_hears_the_name_that_the_route_says() {
        for (server_name, heard) in [(None, "drover"), (Some("vm.apps.example.org"), "vm.apps.example.org")] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let route = Route {
                addresses: vec![listener.local_addr().unwrap().to_string()],
                server_name: server_name.map(str::to_string),
                ..Route::default()
            };
            let identity = Identity::fleeting().unwrap();
            let agent = identity.fingerprint();
            let dialled = std::thread::spawn(move || dial(&identity, agent, &route).map(drop));
            let (mut stream, _) = listener.accept().unwrap();
            let mut acceptor = Acceptor::default();
            let accepted = loop {
                acceptor.read_tls(&mut stream).unwrap();
                if let Some(accepted) = acceptor.accept().map_err(|(error, _)| error).unwrap() {
                    break accepted;
                }
            };
            assert_eq!(accepted.client_hello().server_name(), Some(heard));
            drop((stream, listener));
            assert!(dialled.join().unwrap().is_err());
        }
    }

    #[test]
    fn the_usual_port_is_added_where_none_is_named() {
        for (text, expected) in [
            ("b", "b:7843"),
            ("b:1", "b:1"),
            ("10.0.0.1", "10.0.0.1:7843"),
            ("[::1]", "[::1]:7843"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(with_port(text), expected);
        }
    }
}
