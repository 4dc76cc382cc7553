//! What is done in a guest when it boots at the target for the first time.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Work at the first boot, put into the guest by its conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstBoot {
    /// Files of this machine that run once, in this order.
    pub scripts: Vec<PathBuf>,
    /// A package that is installed before them.
    pub guest_agent: Option<PathBuf>,
    /// Addresses that Windows is given anew.
    pub addresses: Vec<StaticAddress>,
}

/// The fixed address of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticAddress {
    /// MAC address of the card, lower case with colons.
    pub mac: String,
    /// Its address.
    pub address: IpAddr,
    /// Bits of the network.
    pub prefix: u8,
    /// Where packets for elsewhere go.
    pub gateway: Option<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
}

impl FirstBoot {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == FirstBoot::default()
    }

    /// This, and what `earlier` says of what this says nothing of.
    pub(crate) fn or(self, earlier: FirstBoot) -> FirstBoot {
        let or = |mine: Vec<PathBuf>, theirs| if mine.is_empty() { theirs } else { mine };
        FirstBoot {
            scripts: or(self.scripts, earlier.scripts),
            guest_agent: self.guest_agent.or(earlier.guest_agent),
            addresses: if self.addresses.is_empty() { earlier.addresses } else { self.addresses },
        }
    }

    /// Its files.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.scripts.iter_mut().chain(&mut self.guest_agent)
    }
}

impl StaticAddress {
    /// Reads `ADDRESS/PREFIX [GATEWAY [NAME SERVER...]]`.
    pub(crate) fn parse(mac: &str, text: &str) -> Option<StaticAddress> {
        let is_mac = mac.len() == 17
            && mac.bytes().enumerate().all(|(at, byte)| match at % 3 {
                2 => byte == b':',
                _ => byte.is_ascii_hexdigit(),
            });
        let mut words = text.split_whitespace();
        let (address, prefix) = words.next()?.split_once('/')?;
        let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
        let more: Vec<IpAddr> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let fits = prefix <= if address.is_ipv4() { 32 } else { 128 };
        let (gateway, dns) = (more.first().copied(), more.into_iter().skip(1).collect());
        (is_mac && fits).then(|| StaticAddress {
            mac: mac.to_ascii_lowercase(),
            address,
            prefix,
            gateway,
            dns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_with_its_gateway_and_name_servers() {
        let mac = "00:50:56:AA:00:01";
        let found = StaticAddress::parse(mac, "192.0.2.7/24 192.0.2.1 192.0.2.53 2001:db8::53").unwrap();
        assert_eq!(
            (found.mac.as_str(), found.address.to_string(), found.prefix),
            ("00:50:56:aa:00:01", "192.0.2.7".into(), 24)
        );
        assert_eq!((found.gateway.map(|it| it.to_string()), found.dns.len()), (Some("192.0.2.1".into()), 2));
        assert_eq!(StaticAddress::parse(mac, "2001:db8::7/64").unwrap().gateway, None);
        for text in ["192.0.2.7", "192.0.2.7/33", "192.0.2.7/24 router", "", "192.0.2.7/24,192.0.2.1"] {
            assert_eq!(StaticAddress::parse(mac, text), None, "{text:?}");
        }
        for mac in ["00:50:56:aa:00", "00-50-56-aa-00-01", "00:50:56:aa:00:0g"] {
            assert_eq!(StaticAddress::parse(mac, "192.0.2.7/24"), None, "{mac}");
        }
    }
}
