//! RDMA cards of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Where the kernel tells of them.
pub const CARDS: &str = "/sys/class/infiniband";

/// Whether there is one.
pub fn is_there() -> bool {
    Path::new(CARDS).read_dir().is_ok_and(|mut cards| cards.next().is_some())
}

/// The first IPv4 address that a card tells: cards for Ethernet have their addresses as GIDs, IPv4 within IPv6.
pub fn address() -> Option<IpAddr> {
    let cards = Path::new(CARDS).read_dir().ok()?.flatten();
    let ports = cards.filter_map(|card| card.path().join("ports").read_dir().ok()).flatten().flatten();
    let gids = ports.filter_map(|port| port.path().join("gids").read_dir().ok()).flatten().flatten();
    gids.filter_map(|gid| std::fs::read_to_string(gid.path()).ok()).find_map(|gid| address_in(&gid))
}

fn address_in(gid: &str) -> Option<IpAddr> {
    let address = gid.trim().parse::<Ipv6Addr>().ok()?.to_ipv4_mapped()?;
    (address != Ipv4Addr::UNSPECIFIED).then_some(address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ethernet_are_found_among_gids() {
        let address = |gid| address_in(gid);
        assert_eq!(
            address("0000:0000:0000:0000:0000:ffff:0a00:0002\n"),
            Some(Ipv4Addr::new(10, 0, 0, 2).into())
        );
        for other in
            ["fe80:0000:0000:0000:0202:c9ff:fe12:3456", "0000:0000:0000:0000:0000:0000:0000:0000", "", "x"]
        {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
