//! What network cards of Windows are given when it boots for the first time: by the plan, by VMware Tools, and by its registry as it was
//! copied. Only addresses come out of it, whatever a guest has in its registry.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use drover_types::guest::{CardSettings, Route, Windows, WindowsAddresses};

use crate::model::NetworkTarget;
use crate::resolution::PlannedVm;

/// What the network cards of a Windows are given, and what becomes of its routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cards {
    /// Settings of the cards that the plan gives addresses, or that keep their own, in the order of the VM's cards.
    pub settings: Vec<CardSettings>,
    /// MAC addresses of cards that were to keep addresses of IPv4 and ask for one (DHCP), as the registry has it by now: they are given none.
    pub by_dhcp: Vec<String>,
    /// Routes that no card is given, because none has a network with their gateway.
    pub left_out: Vec<Route>,
    /// Routes whose gateway is as near to several cards.
    pub of_several: Vec<RouteOfSeveral>,
}

/// A route that goes to the first of several cards which have the same network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOfSeveral {
    /// The route.
    pub route: Route,
    /// MAC address of the card that is given it.
    pub given_to: String,
    /// MAC addresses of the others.
    pub others: Vec<String>,
}

/// What cards are given. What keeps its own has what the registry holds, where that tells the card's MAC address: VMware Tools told it when
/// the plan was checked, and alone tell addresses of IPv6.
pub fn cards(vm: &PlannedVm, windows: Option<&Windows>) -> Cards {
    let mut cards: Vec<CardSettings> = Vec::new();
    let mut kept = HashSet::new();
    for given in &vm.first_boot.addresses {
        let mac = given.mac.to_ascii_lowercase();
        let index = cards.iter().position(|card| card.mac == mac).unwrap_or_else(|| {
            if given.kept {
                kept.insert(mac.clone());
            }
            cards.push(CardSettings { mac, ..CardSettings::default() });
            cards.len() - 1
        });
        let card = &mut cards[index];
        card.addresses.push((given.address, given.prefix));
        card.gateways.extend(given.gateway);
        card.dns.extend(&given.dns);
    }
    // Nobody told addresses of these, and the registry may have some.
    let untold = vm.nics.iter().filter(|nic| vm.keeps_addresses && nic.target != NetworkTarget::None);
    for mac in untold.map(|nic| nic.mac.to_ascii_lowercase()) {
        if !cards.iter().any(|card| card.mac == mac) {
            kept.insert(mac.clone());
            cards.push(CardSettings { mac, ..CardSettings::default() });
        }
    }
    let place = |mac: &str| vm.nics.iter().position(|nic| nic.mac.eq_ignore_ascii_case(mac));
    cards.sort_by_key(|card| place(&card.mac).unwrap_or(usize::MAX));
    let Some(windows) = windows else {
        cards.retain(|card| !card.addresses.is_empty());
        return Cards { settings: cards, ..Cards::default() };
    };
    let mut by_dhcp = Vec::new();
    for card in cards.iter_mut().filter(|card| kept.contains(&card.mac)) {
        let is_it =
            |mac: &Option<String>| mac.as_ref().is_some_and(|mac| mac.eq_ignore_ascii_case(&card.mac));
        // A card that is part of a team, or of a virtual switch, asks for an address while the team has its own.
        let has_own = |it: &WindowsAddresses| it.addresses.iter().any(|text| holds(card, text));
        let is_fixed = windows.fixed.iter().any(|it| is_it(&it.mac) || has_own(it));
        if let Some(now) = only_one(windows, &card.mac) {
            take(card, now);
        } else if !is_fixed
            && windows.by_dhcp.contains(&card.mac)
            && card.addresses.iter().any(|(ip, _)| ip.is_ipv4())
        {
            by_dhcp.push(card.mac.clone());
            card.addresses.retain(|(ip, _)| ip.is_ipv6());
            card.gateways.retain(IpAddr::is_ipv6);
            card.dns.retain(IpAddr::is_ipv6);
        }
    }
    cards.retain(|card| !card.addresses.is_empty());
    let mut cards = Cards { settings: cards, by_dhcp, ..Cards::default() };
    windows.routes.iter().for_each(|route| cards.give(*route));
    cards
}

impl Cards {
    /// As a router chooses: by the most specific network that has the gateway. Of equals it is the first card.
    fn give(&mut self, route: Route) {
        let Some(bits) = self.settings.iter().filter_map(|card| nearness(card, &route)).max() else {
            return self.left_out.push(route);
        };
        let mut near = self.settings.iter_mut().filter(|card| nearness(card, &route) == Some(bits));
        let Some(first) = near.next() else { return };
        first.routes.push(route);
        let (given_to, others) = (first.mac.clone(), near.map(|card| card.mac.clone()).collect::<Vec<_>>());
        if !others.is_empty() {
            self.of_several.push(RouteOfSeveral { route, given_to, others });
        }
    }
}

impl fmt::Display for RouteOfSeveral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouteOfSeveral { route, given_to, others } = self;
        write!(
            f,
            "route {route} goes to the card {given_to}, and {} has its gateway as near",
            others.join(", ")
        )
    }
}

/// Why a route is given to no card.
pub fn why_left_out(route: &Route) -> String {
    format!(
        "route {route} is set at no card: none that is given addresses has a network with {}",
        route.gateway
    )
}

/// What to do about a route that is given to no card.
pub fn how_to_set(route: &Route) -> String {
    let Route { network, prefix, gateway, .. } = route;
    format!(
        "give the card of that network its address (`addresses`, `keep_addresses: true`); or see `route print` in it after the move, and set \
         it there: `netsh interface ipv4 add route {network}/{prefix} \"NAME OF THE CARD\" {gateway}`"
    )
}

/// Bits of a card's most specific network that has the route's gateway.
fn nearness(card: &CardSettings, route: &Route) -> Option<u8> {
    let near = card.addresses.iter().filter(|(own, bits)| shares_network(*own, route.gateway, *bits));
    near.map(|(_, bits)| *bits).max()
}

/// The settings of a card, unless an earlier one of the same MAC address has some, too.
fn only_one<'a>(windows: &'a Windows, mac: &str) -> Option<&'a WindowsAddresses> {
    let is_it = |it: &&WindowsAddresses| it.mac.as_ref().is_some_and(|its| its.eq_ignore_ascii_case(mac));
    let mut found = windows.fixed.iter().filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

/// Whether a card has this address, `192.0.2.7/24`.
fn holds(card: &CardSettings, text: &str) -> bool {
    let ip = text.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
    ip.is_some_and(|ip| card.addresses.iter().any(|(own, _)| *own == ip))
}

/// Replaces what VMware Tools told of IPv4.
fn take(card: &mut CardSettings, now: &WindowsAddresses) {
    let prefixed = |text: &String| {
        let (ip, bits) = text.split_once('/')?;
        Some((ip.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok().filter(|bits| *bits <= 32)?))
    };
    let parsed =
        |texts: &[String]| -> Vec<IpAddr> { texts.iter().filter_map(|it| it.parse().ok()).collect() };
    let addresses: Vec<(IpAddr, u8)> =
        now.addresses.iter().filter_map(prefixed).filter(|(ip, _)| ip.is_ipv4()).collect();
    if addresses.is_empty() {
        return;
    }
    let of_ipv6 = |ips: &[IpAddr]| -> Vec<IpAddr> { ips.iter().filter(|ip| ip.is_ipv6()).copied().collect() };
    let mut dns = parsed(&now.dns);
    if of_ipv6(&dns).is_empty() {
        dns.extend(of_ipv6(&card.dns));
    }
    card.addresses.retain(|(ip, _)| ip.is_ipv6());
    card.addresses.splice(0..0, addresses);
    card.gateways = [parsed(&now.gateways), of_ipv6(&card.gateways)].concat();
    card.dns = dns;
}

fn shares_network(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let differ = u32::from(one) ^ u32::from(other);
            differ.leading_zeros() >= u32::from(bits)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let differ = u128::from(one) ^ u128::from(other);
            differ.leading_zeros() >= u32::from(bits)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concern::tests::planned;
    use crate::model::StaticAddress;

    const MAC: &str = "00:50:56:aa:bb:cc";

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn registry(mac: Option<&str>, addresses: &[&str]) -> WindowsAddresses {
        WindowsAddresses {
            name: "Ethernet0".into(),
            mac: mac.map(str::to_string),
            addresses: addresses.iter().map(|it| it.to_string()).collect(),
            gateways: vec!["198.51.100.1".into()],
            dns: vec!["198.51.100.53".into()],
        }
    }

    fn vm(kept: bool) -> PlannedVm {
        let mut vm = planned();
        let given = StaticAddress::parse(
            MAC,
            "192.0.2.7/24 192.0.2.1 192.0.2.53 2001:db8::7/64 2001:db8::1 2001:db8::53",
        );
        vm.first_boot.addresses = given.unwrap();
        vm.first_boot.addresses.iter_mut().for_each(|it| it.kept = kept);
        vm
    }

    #[test]
    fn a_card_that_keeps_its_own_has_what_the_registry_holds_and_ipv6_of_vmware_tools() {
        let windows = |fixed: Vec<WindowsAddresses>| Windows { fixed, ..Windows::default() };
        let told = cards(&vm(true), None).settings.remove(0);
        assert_eq!(told.gateways, ips(&["192.0.2.1", "2001:db8::1"]));
        let one = windows(vec![registry(Some(MAC), &["198.51.100.7/25", "198.51.100.8/25"])]);
        let now = cards(&vm(true), Some(&one)).settings.remove(0);
        let addresses: Vec<String> = now.addresses.iter().map(|(ip, bits)| format!("{ip}/{bits}")).collect();
        assert_eq!(addresses, ["198.51.100.7/25", "198.51.100.8/25", "2001:db8::7/64"]);
        assert_eq!(now.gateways, ips(&["198.51.100.1", "2001:db8::1"]));
        assert_eq!(now.dns, ips(&["198.51.100.53", "2001:db8::53"]));
        // What the plan gives stays, and so does what nobody can tell better.
        assert_eq!(cards(&vm(false), Some(&one)).settings, std::slice::from_ref(&told));
        for unclear in [
            vec![registry(None, &["198.51.100.7/25"])],
            vec![registry(Some(MAC), &["198.51.100.7/25"]), registry(Some(MAC), &["203.0.113.7/25"])],
            vec![registry(Some(MAC), &["198.51.100.7/25\r\nshutdown", "198.51.100.7/99"])],
        ] {
            let now = cards(&vm(true), Some(&windows(unclear)));
            assert_eq!(now.settings, std::slice::from_ref(&told));
        }
    }

    #[test]
    fn a_card_that_asks_for_its_address_by_now_keeps_those_of_ipv6_alone() {
        let with =
            |fixed: Vec<WindowsAddresses>| Windows { by_dhcp: vec![MAC.into()], fixed, ..Windows::default() };
        let told = cards(&vm(true), Some(&with(vec![])));
        let card = &told.settings[0];
        assert_eq!(card.addresses, [("2001:db8::7".parse().unwrap(), 64)]);
        assert_eq!((&card.gateways, &card.dns), (&ips(&["2001:db8::1"]), &ips(&["2001:db8::53"])));
        assert_eq!(told.by_dhcp, [MAC]);
        let mut of_ipv4 = vm(true);
        of_ipv4.first_boot.addresses.truncate(1);
        assert_eq!(cards(&of_ipv4, Some(&with(vec![]))).settings, []);
        // One that Windows had once asks for its address, and the one of today has one; and what the plan gives stays.
        let both = with(vec![registry(Some(MAC), &["198.51.100.7/25"])]);
        assert!(cards(&vm(true), Some(&both)).by_dhcp.is_empty());
        assert!(cards(&vm(false), Some(&with(vec![]))).by_dhcp.is_empty());
    }

    #[test]
    fn a_fixed_address_of_the_registry_is_kept_where_vmware_tools_told_none() {
        let mut untold = vm(true);
        untold.first_boot.addresses.clear();
        let windows =
            Windows { fixed: vec![registry(Some(MAC), &["198.51.100.7/25"])], ..Windows::default() };
        assert_eq!(cards(&untold, Some(&windows)).settings, [], "its addresses are not kept");
        untold.keeps_addresses = true;
        let given = cards(&untold, Some(&windows)).settings.remove(0);
        assert_eq!(given.addresses, [("198.51.100.7".parse().unwrap(), 25)]);
        assert_eq!(
            (cards(&untold, None).settings, cards(&untold, Some(&Windows::default())).settings),
            (vec![], vec![])
        );
        untold.nics[0].target = NetworkTarget::None;
        assert_eq!(cards(&untold, Some(&windows)).settings, []);
    }

    #[test]
    fn a_card_of_a_team_keeps_the_address_that_the_team_has() {
        let team = registry(None, &["192.0.2.7/24"]);
        let windows = Windows { by_dhcp: vec![MAC.into()], fixed: vec![team], ..Windows::default() };
        let told = cards(&vm(true), Some(&windows));
        assert!(
            told.by_dhcp.is_empty()
                && told.settings[0].addresses.contains(&("192.0.2.7".parse().unwrap(), 24))
        );
    }

    /// A VM with these cards, `a` to the first, which are given these addresses in this order.
    fn with_cards(given: &[(char, &str)]) -> PlannedVm {
        let mut vm = vm(false);
        let mac = |name: char| format!("00:50:56:aa:00:0{name}");
        let nic = vm.nics.remove(0);
        vm.nics = "abc".chars().map(|name| crate::PlannedNic { mac: mac(name), ..nic.clone() }).collect();
        let parsed = given.iter().flat_map(|(name, text)| StaticAddress::parse(&mac(*name), text).unwrap());
        vm.first_boot.addresses = parsed.collect();
        vm
    }

    fn route(gateway: &str) -> Route {
        let (network, gateway) = ("203.0.113.0".parse().unwrap(), gateway.parse().unwrap());
        Route { network, prefix: 24, gateway, metric: None }
    }

    fn with_routes(vm: &PlannedVm, gateways: &[&str]) -> Cards {
        let routes = gateways.iter().map(|gateway| route(gateway)).collect();
        cards(vm, Some(&Windows { routes, ..Windows::default() }))
    }

    #[test]
    fn a_route_goes_to_the_card_whose_network_has_its_gateway() {
        let told = with_routes(&vm(false), &["192.0.2.254", "192.0.3.254"]);
        assert_eq!(told.settings[0].routes, [route("192.0.2.254")]);
        assert_eq!((told.left_out, told.of_several), (vec![route("192.0.3.254")], vec![]));
        assert!(
            why_left_out(&route("192.0.3.254"))
                .starts_with("route 203.0.113.0/24 by 192.0.3.254 is set at no card")
        );
    }

    #[test]
    fn of_several_cards_the_most_specific_network_gets_a_route_and_of_equals_the_first_card() {
        let gets = |told: &Cards| -> Vec<(char, usize)> {
            told.settings.iter().map(|card| (card.mac.chars().last().unwrap(), card.routes.len())).collect()
        };
        let specific =
            with_routes(&with_cards(&[('a', "192.0.2.7/16"), ('b', "192.0.2.8/24")]), &["192.0.2.254"]);
        assert_eq!((gets(&specific), specific.of_several), (vec![('a', 0), ('b', 1)], vec![]));
        // The plan names them in another order than the VM has them.
        let vm = with_cards(&[('c', "192.0.2.9/24"), ('b', "192.0.2.8/24"), ('a', "198.51.100.7/24")]);
        let equal = with_routes(&vm, &["192.0.2.254"]);
        assert_eq!(gets(&equal), [('a', 0), ('b', 1), ('c', 0)]);
        assert_eq!(
            equal.of_several[0].to_string(),
            "route 203.0.113.0/24 by 192.0.2.254 goes to the card 00:50:56:aa:00:0b, and 00:50:56:aa:00:0c has its gateway as near"
        );
        // By its second address.
        let second = with_cards(&[('a', "192.0.2.7/24"), ('b', "198.51.100.8/24 192.0.2.8/25")]);
        assert_eq!(gets(&with_routes(&second, &["192.0.2.100"])), [('a', 0), ('b', 1)]);
    }
}
