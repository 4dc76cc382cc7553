//! Addresses as people write them: networks, ports, and what is listened on and gone on to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Ports that one `--listen` may name.
pub const PORTS_MAX: usize = 1024;

/// A text that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {wanted}")]
pub struct AddressError {
    text: String,
    wanted: &'static str,
}

pub(crate) fn wrong(text: &str, wanted: &'static str) -> AddressError {
    AddressError { text: text.to_string(), wanted }
}

/// Addresses with the same first bits: `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

const NETWORK: &str = "a network, such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7";

impl Network {
    /// Whether it holds an address. An IPv4 address that is written as an IPv6 one counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                same_bits(network.to_bits().into(), address.to_bits().into(), 32 - self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                same_bits(network.to_bits(), address.to_bits(), 128 - self.prefix)
            }
            _ => false,
        }
    }

    /// Whether its addresses are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether it is one address.
    pub fn is_single(&self) -> bool {
        self.prefix == if self.is_ipv4() { 32 } else { 128 }
    }
}

/// Whether two addresses are the same without their last bits.
fn same_bits(a: u128, b: u128, last: u8) -> bool {
    (a ^ b).checked_shr(last.into()).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong(text, NETWORK))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), |it| it.parse().map_err(|_| wrong(text, NETWORK)))?;
        if prefix > bits {
            return Err(wrong(text, NETWORK));
        }
        Ok(Network { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A run of ports, both ends included: `902`, `8000-8010`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

const PORTS: &str = "a port or a range of ports, such as 902 or 8000-8010";

impl PortRange {
    /// How many ports.
    pub fn count(&self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// Whether it holds a port.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let number = |text: &str| text.parse::<u16>().map_err(|_| wrong(text, PORTS));
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = PortRange { first: number(first)?, last: number(last)? };
        if range.first <= range.last { Ok(range) } else { Err(wrong(text, PORTS)) }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// Host and ports of a text such as `host:80`, `[::1]:80-90`, `:80`.
fn split(text: &str) -> Result<(&str, PortRange), AddressError> {
    let (host, ports) = text.rsplit_once(':').ok_or_else(|| wrong(text, "an address with a port"))?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok((host, ports.parse()?))
}

/// What is listened on: `0.0.0.0:8000`, `[::]:8000-8010`, `:8000` for all addresses of both families.
/// Port 0 takes a free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The host's addresses.
    pub addresses: Vec<IpAddr>,
    /// Ports.
    pub ports: PortRange,
}

impl FromStr for Listen {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, ports) = split(text)?;
        if ports.count() > PORTS_MAX {
            return Err(wrong(text, "a range of at most 1024 ports"));
        }
        let addresses = match host {
            "" | "*" => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            host => vec![host.parse().map_err(|_| {
                wrong(text, "an address of this host with a port, such as 0.0.0.0:8000, [::]:8000 or :8000")
            })?],
        };
        Ok(Listen { addresses, ports })
    }
}

/// Where it goes on to: `site-b.example.org:8000`, `192.0.2.7:8000-8010`, `[2001:db8::7]:902`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name or address.
    pub host: String,
    /// Ports.
    pub ports: PortRange,
}

impl FromStr for Target {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, ports) = split(text)?;
        if host.is_empty() || ports.first == 0 {
            return Err(wrong(text, "a host and its port, such as site-b.example.org:8000"));
        }
        Ok(Target { host: host.to_string(), ports })
    }
}

/// One port that is listened on, and where its connections go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Listened on.
    pub listen: SocketAddr,
    /// Name or address of where it goes.
    pub host: String,
    /// Port there.
    pub port: u16,
}

/// Why `--listen` and `--to` do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// Their numbers differ.
    #[error(
        "{listens} addresses to listen on and {targets} targets; give one target for all or one for each"
    )]
    Numbers {
        /// How many to listen on.
        listens: usize,
        /// How many targets.
        targets: usize,
    },
    /// Ranges of different length.
    #[error("{listen} ports to listen on and {target} at the target; give as many there, or one for all")]
    Ranges {
        /// Ports to listen on.
        listen: PortRange,
        /// Ports of the target.
        target: PortRange,
    },
}

/// Puts each port that is listened on together with its target: the n-th with the n-th, ranges port by port.
///
/// # Errors
/// [`PairError`] if the numbers do not fit; one target, and one port of it, fits all.
pub fn pair(listens: &[Listen], targets: &[Target]) -> Result<Vec<Pairing>, PairError> {
    if targets.len() != 1 && targets.len() != listens.len() {
        return Err(PairError::Numbers { listens: listens.len(), targets: targets.len() });
    }
    let mut pairings = Vec::new();
    for (at, listen) in listens.iter().enumerate() {
        let target = &targets[if targets.len() == 1 { 0 } else { at }];
        pair_ports(listen, target, &mut pairings)?;
    }
    Ok(pairings)
}

fn pair_ports(listen: &Listen, target: &Target, pairings: &mut Vec<Pairing>) -> Result<(), PairError> {
    if target.ports.count() != 1 && target.ports.count() != listen.ports.count() {
        return Err(PairError::Ranges { listen: listen.ports, target: target.ports });
    }
    for port in listen.ports.first..=listen.ports.last {
        let further = if target.ports.count() == 1 { 0 } else { port - listen.ports.first };
        pairings.extend(listen.addresses.iter().map(|address| Pairing {
            listen: SocketAddr::new(*address, port),
            host: target.host.clone(),
            port: target.ports.first + further,
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.7/31", "192.0.2.6", "192.0.2.5"),
            ("2001:db8::/32", "2001:db8:1::", "2001:db9::"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("::/0", "2001:db8::1", "203.0.113.9"),
            ("10.0.0.0/8", "::ffff:10.1.1.1", "::10.1.1.1"),
        ] {
            assert!(network(text).contains(inside.parse().unwrap()), "{inside} in {text}");
            assert!(!network(text).contains(outside.parse().unwrap()), "{outside} in {text}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "host/8", "10.0.0.0/-1", "10.0.0.0/"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_are_one_or_a_bounded_range() {
        assert_eq!("902".parse(), Ok(PortRange { first: 902, last: 902 }));
        assert_eq!("8000-8010".parse(), Ok(PortRange { first: 8000, last: 8010 }));
        assert_eq!("1-65535".parse::<PortRange>().unwrap().count(), 65535);
        for text in ["", "x", "65536", "9-8", "-", "1-", "-1"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn both_families_are_listened_on_where_no_address_is_given() {
        let listen: Listen = ":8000".parse().unwrap();
        assert_eq!(listen.addresses, ["0.0.0.0".parse::<IpAddr>().unwrap(), "::".parse().unwrap()]);
        assert_eq!("[::1]:80".parse::<Listen>().unwrap().addresses, ["::1".parse::<IpAddr>().unwrap()]);
        for text in ["", "8000", "example.org:80", "1.2.3.4", "[::1]", ":1-2000"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_target_needs_a_host_and_a_port() {
        let target: Target = "[2001:db8::7]:902".parse().unwrap();
        assert_eq!((target.host.as_str(), target.ports.first), ("2001:db8::7", 902));
        for text in ["", ":80", "host", "host:0", "host:"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    fn paired(listens: &[&str], targets: &[&str]) -> Result<Vec<String>, PairError> {
        let listens: Vec<Listen> = listens.iter().map(|it| it.parse().unwrap()).collect();
        let targets: Vec<Target> = targets.iter().map(|it| it.parse().unwrap()).collect();
        let told = |it: &Pairing| format!("{} {}:{}", it.listen, it.host, it.port);
        pair(&listens, &targets).map(|pairings| pairings.iter().map(told).collect())
    }

    #[test]
    fn ranges_go_port_by_port_and_one_target_takes_all() {
        assert_eq!(
            paired(&["127.0.0.1:80-81"], &["b:90-91"]).unwrap(),
            ["127.0.0.1:80 b:90", "127.0.0.1:81 b:91"]
        );
        assert_eq!(
            paired(&["127.0.0.1:80", "[::1]:81"], &["b:9"]).unwrap(),
            ["127.0.0.1:80 b:9", "[::1]:81 b:9"]
        );
        assert_eq!(
            paired(&["127.0.0.1:80", "127.0.0.1:81"], &["b:9", "c:7"]).unwrap(),
            ["127.0.0.1:80 b:9", "127.0.0.1:81 c:7"]
        );
        assert_eq!(
            paired(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], &["b:9", "c:7"]),
            Err(PairError::Numbers { listens: 3, targets: 2 })
        );
        assert!(matches!(paired(&["127.0.0.1:80-82"], &["b:90-91"]), Err(PairError::Ranges { .. })));
    }

    proptest! {
        #[test]
        fn a_network_reads_back_as_written(bits: u32, prefix in 0_u8..=32) {
            let network = Network { address: Ipv4Addr::from_bits(bits).into(), prefix };
            prop_assert_eq!(network.to_string().parse::<Network>().unwrap(), network);
            prop_assert!(network.contains(Ipv4Addr::from_bits(bits).into()));
            let flipped = Ipv4Addr::from_bits(bits ^ 0x8000_0000);
            prop_assert_eq!(network.contains(flipped.into()), prefix == 0);
        }

        #[test]
        fn no_text_breaks_the_parsers(text in "[0-9a-f:./\\[\\]*-]{0,24}") {
            let _ = (text.parse::<Network>(), text.parse::<Listen>(), text.parse::<Target>());
        }
    }
}
