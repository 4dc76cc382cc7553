//! What network cards of Windows are given when it boots for the first time: by the plan, by VMware Tools, and by its registry as it was
//! copied. Only addresses come out of it, whatever a guest has in its registry.

use std::net::IpAddr;

use drover_types::guest::{CardSettings, Windows, WindowsAddresses};

use crate::resolution::PlannedVm;

/// Settings of the cards that the plan gives addresses, or that keep their own. What keeps its own has what the registry holds, where that
/// tells the card's MAC address: VMware Tools told it when the plan was checked, and alone tell addresses of IPv6.
pub fn card_settings(vm: &PlannedVm, windows: Option<&Windows>) -> Vec<CardSettings> {
    let mut cards: Vec<CardSettings> = Vec::new();
    let mut kept = Vec::new();
    for given in &vm.first_boot.addresses {
        let found = cards.iter().position(|card| card.mac.eq_ignore_ascii_case(&given.mac));
        let index = found.unwrap_or_else(|| {
            cards.push(CardSettings { mac: given.mac.to_ascii_lowercase(), ..CardSettings::default() });
            kept.push(given.kept);
            cards.len() - 1
        });
        let card = &mut cards[index];
        card.addresses.push((given.address, given.prefix));
        card.gateways.extend(given.gateway);
        card.dns.extend(&given.dns);
    }
    let Some(windows) = windows else { return cards };
    for (card, kept) in cards.iter_mut().zip(kept) {
        if let Some(now) = only_one(windows, &card.mac).filter(|_| kept) {
            take(card, now);
        }
        let is_near =
            |gateway: IpAddr| card.addresses.iter().any(|(own, bits)| shares_network(*own, gateway, *bits));
        card.routes = windows.routes.iter().filter(|route| is_near(route.gateway)).copied().collect();
    }
    cards
}

/// The settings of a card, unless an earlier one of the same MAC address has some, too.
fn only_one<'a>(windows: &'a Windows, mac: &str) -> Option<&'a WindowsAddresses> {
    let is_it = |it: &&WindowsAddresses| it.mac.as_ref().is_some_and(|its| its.eq_ignore_ascii_case(mac));
    let mut found = windows.fixed.iter().filter(is_it);
    found.next().filter(|_| found.next().is_none())
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
    use drover_types::guest::Route;

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
        let told = card_settings(&vm(true), None).remove(0);
        assert_eq!(told.gateways, ips(&["192.0.2.1", "2001:db8::1"]));
        let one = windows(vec![registry(Some(MAC), &["198.51.100.7/25", "198.51.100.8/25"])]);
        let now = card_settings(&vm(true), Some(&one)).remove(0);
        let addresses: Vec<String> = now.addresses.iter().map(|(ip, bits)| format!("{ip}/{bits}")).collect();
        assert_eq!(addresses, ["198.51.100.7/25", "198.51.100.8/25", "2001:db8::7/64"]);
        assert_eq!(now.gateways, ips(&["198.51.100.1", "2001:db8::1"]));
        assert_eq!(now.dns, ips(&["198.51.100.53", "2001:db8::53"]));
        // What the plan gives stays, and so does what nobody can tell better.
        assert_eq!(card_settings(&vm(false), Some(&one)), std::slice::from_ref(&told));
        for unclear in [
            vec![registry(None, &["198.51.100.7/25"])],
            vec![registry(Some(MAC), &["198.51.100.7/25"]), registry(Some(MAC), &["203.0.113.7/25"])],
            vec![registry(Some(MAC), &["198.51.100.7/25\r\nshutdown", "198.51.100.7/99"])],
        ] {
            assert_eq!(card_settings(&vm(true), Some(&windows(unclear))), std::slice::from_ref(&told));
        }
    }

    #[test]
    fn a_route_goes_to_the_card_whose_network_has_its_gateway() {
        let route = |gateway: &str| {
            let (network, gateway) = ("203.0.113.0".parse().unwrap(), gateway.parse().unwrap());
            Route { network, prefix: 24, gateway, metric: None }
        };
        let routes = vec![route("192.0.2.254"), route("192.0.3.254")];
        let windows = Windows { routes, ..Windows::default() };
        let cards = card_settings(&vm(false), Some(&windows));
        assert_eq!(cards[0].routes, [route("192.0.2.254")]);
    }
}
