//! The far end of a paired relay: connects channels of a link to ports behind an agent, if that is allowed.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use drover_link::Channel;

use crate::address::{AddressError, Network, PortRange, Target};
use crate::carry::{Counts, Ended, carry};
use crate::connecting::prepare_plain;
use crate::options::ADDRESSES_MAX;

/// A host and port as a peer writes it is shorter.
const TO_BYTES_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Any,
    Network(Network),
    Name(String),
}

/// Where peers may connect to: `HOST:PORT[-PORT]`, with a name, an address, a network, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    host: Host,
    ports: PortRange,
}

impl FromStr for Allowed {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Target { host, ports } = text.parse()?;
        let host = match (host.as_str(), host.parse()) {
            ("*", _) => Host::Any,
            (_, Ok(network)) => Host::Network(network),
            _ => Host::Name(host.to_ascii_lowercase()),
        };
        Ok(Allowed { host, ports })
    }
}

impl Allowed {
    /// Whether a host, as the peer wrote it and by an address that its name has, may be connected to.
    fn fits(&self, host: &str, address: SocketAddr) -> bool {
        let is_host = match &self.host {
            Host::Any => true,
            Host::Network(network) => network.contains(address.ip()),
            Host::Name(name) => host.eq_ignore_ascii_case(name),
        };
        is_host && self.ports.contains(address.port())
    }
}

/// Why a channel was not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// What the peer wrote is no host and port.
    #[error("the peer wants to connect to something that is no host and port")]
    Unreadable,
    /// Nothing allows it.
    #[error("connecting to {0} is not allowed")]
    Denied(String),
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

/// Connects channels of peers to ports. Without anything allowed it connects to nothing.
#[derive(Clone, Debug)]
pub struct Ports {
    allowed: Vec<Allowed>,
    timeout: Duration,
}

impl Ports {
    /// Ports that peers may connect to, and how long an address may take to answer.
    pub fn new(allowed: Vec<Allowed>, timeout: Duration) -> Ports {
        Ports { allowed, timeout }
    }

    /// Connects to `to`, as a peer wrote it, and carries both ways until the end. Gives the bytes that went
    /// to the target and back. If it fails, the channel is reset.
    ///
    /// # Errors
    /// [`ConnectError`] if nothing was connected.
    pub fn connect(&self, to: &str, channel: Channel) -> Result<(u64, u64), ConnectError> {
        let stream = match self.dial(to) {
            Ok(stream) => stream,
            Err(error) => {
                channel.split().0.reset();
                return Err(error);
            }
        };
        let counts = Counts::default();
        // Either way both ends know how it ended.
        let (Ended::Closed | Ended::Reset) = carry(&stream, channel, &counts, (None, None));
        Ok((counts.back.into_inner(), counts.out.into_inner()))
    }

    fn dial(&self, to: &str) -> Result<TcpStream, ConnectError> {
        let (host, port) = read(to).ok_or(ConnectError::Unreadable)?;
        let failed = |source| ConnectError::Failed { to: to.to_string(), source };
        // A name that nothing could allow is not even looked up.
        if !self.allowed.iter().any(|it| it.ports.contains(port)) {
            return Err(ConnectError::Denied(to.to_string()));
        }
        let addresses = (host.as_str(), port).to_socket_addrs().map_err(failed)?;
        let fits = |address: &SocketAddr| self.allowed.iter().any(|it| it.fits(&host, *address));
        let mut error = None;
        for address in addresses.take(ADDRESSES_MAX).filter(fits) {
            match self.dial_address(address) {
                Ok(stream) => return Ok(stream),
                Err(why) => error = Some(why),
            }
        }
        Err(error.map_or_else(|| ConnectError::Denied(to.to_string()), failed))
    }

    fn dial_address(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, self.timeout)?;
        prepare_plain(&stream)?;
        Ok(stream)
    }
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
        for text in ["", "*", "host", ":902", "10.0.0.0/8"] {
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
        let ports = Ports::new(vec!["10.0.0.0/8:1-1000".parse().unwrap()], Duration::from_secs(1));
        assert!(matches!(ports.dial("127.0.0.1:80"), Err(ConnectError::Denied(_))));
        assert!(matches!(ports.dial("127.0.0.1:2000"), Err(ConnectError::Denied(_))));
        assert!(matches!(ports.dial("?"), Err(ConnectError::Unreadable)));
    }
}
