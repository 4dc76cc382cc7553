//! What is done in a guest when it boots at the target for the first time.

use std::net::IpAddr;
use std::path::PathBuf;

use drover_types::inventory::Nic;
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

/// A fixed address of a card, which may have several.
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
    /// Whether it is one that the card has, as VMware Tools told it, and not one of the plan's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
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
    /// The address as settings write it: `192.0.2.7/24`.
    pub fn with_prefix(&self) -> String {
        format!("{}/{}", self.address, self.prefix)
    }

    /// The fixed addresses that VMware Tools tell of a card, for it to keep.
    pub(crate) fn kept_of(nic: &Nic) -> Vec<StaticAddress> {
        let Some(fixed) = &nic.fixed else { return Vec::new() };
        let kept = |(index, &(address, prefix)): (usize, &(IpAddr, u8))| {
            let of_kind = |ip: &&IpAddr| ip.is_ipv4() == address.is_ipv4();
            // Who knows names goes with the first address of its kind.
            let before = fixed.addresses[..index].iter().filter(|(ip, _)| of_kind(&ip)).count();
            let dns = fixed.dns.iter().filter(of_kind).filter(|_| before == 0);
            StaticAddress {
                mac: nic.mac.to_ascii_lowercase(),
                address,
                prefix,
                gateway: fixed.gateways.iter().filter(of_kind).nth(before).copied(),
                dns: dns.copied().collect(),
                kept: true,
            }
        };
        fixed.addresses.iter().enumerate().map(kept).collect()
    }

    /// Reads `ADDRESS/PREFIX [GATEWAY [NAME SERVER...]]`, once or several times.
    pub(crate) fn parse(mac: &str, text: &str) -> Option<Vec<StaticAddress>> {
        let is_mac = mac.len() == 17
            && mac.bytes().enumerate().all(|(at, byte)| match at % 3 {
                2 => byte == b':',
                _ => byte.is_ascii_hexdigit(),
            });
        let mut found: Vec<StaticAddress> = Vec::new();
        for word in text.split_whitespace() {
            let Some((address, prefix)) = word.split_once('/') else {
                let (last, ip) = (found.last_mut()?, word.parse().ok()?);
                match last.gateway {
                    None => last.gateway = Some(ip),
                    Some(_) => last.dns.push(ip),
                }
                continue;
            };
            let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
            (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some(())?;
            let mac = mac.to_ascii_lowercase();
            found.push(StaticAddress { mac, address, prefix, gateway: None, dns: Vec::new(), kept: false });
        }
        (is_mac && !found.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_their_gateways_and_name_servers() {
        let mac = "00:50:56:AA:00:01";
        let read = |text: &str| StaticAddress::parse(mac, text);
        let found = read("192.0.2.7/24 192.0.2.1 192.0.2.53 2001:db8::53").unwrap().remove(0);
        assert_eq!(
            (found.mac.as_str(), found.address.to_string(), found.prefix),
            ("00:50:56:aa:00:01", "192.0.2.7".into(), 24)
        );
        assert_eq!((found.gateway.map(|it| it.to_string()), found.dns.len()), (Some("192.0.2.1".into()), 2));
        let several = read("192.0.2.7/24 192.0.2.8/24 192.0.2.1 192.0.2.53 2001:db8::7/64").unwrap();
        let told: Vec<_> =
            several.iter().map(|it| (it.with_prefix(), it.gateway.is_some(), it.dns.len())).collect();
        let expected = [("192.0.2.7/24", false, 0), ("192.0.2.8/24", true, 1), ("2001:db8::7/64", false, 0)];
        assert_eq!(told, expected.map(|(it, gateway, dns)| (it.to_string(), gateway, dns)));
        for text in [
            "192.0.2.7",
            "192.0.2.7/33",
            "192.0.2.7/24 router",
            "",
            "192.0.2.7/24,192.0.2.1",
            "192.0.2.1 192.0.2.7/24",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
        for mac in ["00:50:56:aa:00", "00-50-56-aa-00-01", "00:50:56:aa:00:0g"] {
            assert_eq!(StaticAddress::parse(mac, "192.0.2.7/24"), None, "{mac}");
        }
    }
}
