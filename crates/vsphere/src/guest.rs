//! What VMware Tools tell of a guest's network. Source: vSphere Web Services API, `GuestNicInfo`, `GuestStackInfo`.

use std::net::IpAddr;

use drover_types::inventory::{FixedAddresses, Nic};

use crate::xml::Element;

/// Fills in the fixed addresses of those NICs that `net` tells of, with gateways and name servers.
pub(crate) fn fill_addresses(nics: &mut [Nic], net: Option<&Element>, stacks: Option<&Element>) {
    let (Some(net), stacks) = (net, stacks.map_or(&[][..], |stacks| &stacks.children)) else { return };
    for (index, told) in net.children.iter().enumerate() {
        let mac = told.string_at("macAddress").to_ascii_lowercase();
        let Some(nic) = nics.iter_mut().find(|nic| nic.mac == mac) else { continue };
        // A team or a bridge in the guest has the MAC address of its card, and may have its addresses.
        let knows_some = nic.fixed.as_ref().is_some_and(|known| !known.addresses.is_empty());
        if !knows_some {
            nic.fixed = fixed(told, index, stacks).or(nic.fixed.take());
        }
    }
}

/// Nothing where it is not told whether they are fixed.
fn fixed(nic: &Element, index: usize, stacks: &[Element]) -> Option<FixedAddresses> {
    let config = nic.at("ipConfig")?;
    let has_dhcp = config.text_at("dhcp/ipv4/enable").map(|word| word == "true");
    let is_fixed = |address: &&Element| match address.text_at("origin") {
        Some(origin) => origin == "manual",
        None => has_dhcp == Some(false),
    };
    let prefixed = |address: &Element| {
        let (ip, bits): (IpAddr, u8) =
            (address.text_at("ipAddress")?.parse().ok()?, address.number_at("prefixLength")?);
        (!is_of_link(ip) && bits <= length_of(ip)).then_some((ip, bits))
    };
    let all = || config.all("ipAddress");
    let addresses: Vec<(IpAddr, u8)> = all().filter(is_fixed).filter_map(prefixed).collect();
    if addresses.is_empty() {
        let are_all_told = all().next().is_some() && all().all(|it| it.text_at("origin").is_some());
        return (has_dhcp == Some(true) || are_all_told).then(FixedAddresses::default);
    }
    let routes = stacks.iter().filter_map(|it| it.at("ipRouteConfig")).flat_map(|it| it.all("ipRoute"));
    let leads_anywhere = |route: &&Element| {
        matches!(route.text_at("network"), Some("0.0.0.0" | "::"))
            && route.text_at("prefixLength") == Some("0")
    };
    let gateway = |route: &Element| {
        let ip: IpAddr = route.text_at("gateway/ipAddress")?.parse().ok()?;
        let is_near = addresses.iter().any(|(own, bits)| shares_network(*own, ip, *bits));
        let is_its = route.number_at("gateway/device") == Some(index);
        (!ip.is_unspecified() && (is_near || is_its)).then_some(ip)
    };
    let gateways = routes.filter(leads_anywhere).filter_map(gateway).collect();
    let servers = |place: &Element| -> Vec<IpAddr> {
        let all = place.at("dnsConfig").into_iter().flat_map(|it| it.all("ipAddress"));
        all.filter_map(|it| it.text.parse().ok()).collect()
    };
    let own = servers(nic);
    let dns = if own.is_empty() { stacks.iter().flat_map(servers).collect() } else { own };
    Some(FixedAddresses { addresses, gateways, dns })
}

fn length_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Whether an address is one of the link alone, which nobody gave.
fn is_of_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn shares_network(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    };
    let Some(rest) = length_of(one).checked_sub(bits).filter(|_| one.is_ipv4() == other.is_ipv4()) else {
        return false;
    };
    (number(one) ^ number(other)).checked_shr(rest.into()).unwrap_or(0) == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn nics() -> Vec<Nic> {
        let nic = |mac: &str| Nic { mac: mac.into(), ..Nic::default() };
        vec![nic("00:50:56:aa:00:01"), nic("00:50:56:aa:00:02"), nic("00:50:56:aa:00:03")]
    }

    #[test]
    fn addresses_that_were_given_are_told_with_what_leads_out_of_their_network() {
        let net = "<val><GuestNicInfo><macAddress>00:50:56:AA:00:01</macAddress><ipConfig>\
             <ipAddress><ipAddress>192.0.2.7</ipAddress><prefixLength>24</prefixLength><origin>manual</origin></ipAddress>\
             <ipAddress><ipAddress>fe80::1</ipAddress><prefixLength>64</prefixLength><origin>manual</origin></ipAddress>\
             <ipAddress><ipAddress>2001:db8::9</ipAddress><prefixLength>64</prefixLength><origin>random</origin></ipAddress>\
             </ipConfig></GuestNicInfo>\
             <GuestNicInfo><macAddress>00:50:56:aa:00:02</macAddress><dnsConfig><ipAddress>198.51.100.53</ipAddress></dnsConfig>\
             <ipConfig><dhcp><ipv4><enable>false</enable></ipv4></dhcp>\
             <ipAddress><ipAddress>198.51.100.7</ipAddress><prefixLength>25</prefixLength></ipAddress></ipConfig></GuestNicInfo>\
             <GuestNicInfo><macAddress>00:50:56:aa:00:09</macAddress></GuestNicInfo></val>";
        let stacks = "<val><GuestStackInfo><dnsConfig><ipAddress>192.0.2.53</ipAddress></dnsConfig><ipRouteConfig>\
             <ipRoute><network>0.0.0.0</network><prefixLength>0</prefixLength><gateway><ipAddress>192.0.2.1</ipAddress><device>0</device></gateway></ipRoute>\
             <ipRoute><network>203.0.113.0</network><prefixLength>24</prefixLength><gateway><ipAddress>192.0.2.2</ipAddress><device>0</device></gateway></ipRoute>\
             </ipRouteConfig></GuestStackInfo></val>";
        let (net, stacks) = (crate::xml::parse(net).unwrap(), crate::xml::parse(stacks).unwrap());
        let mut nics = nics();
        fill_addresses(&mut nics, Some(&net), Some(&stacks));
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = FixedAddresses {
            addresses: vec![(ip("192.0.2.7"), 24)],
            gateways: vec![ip("192.0.2.1")],
            dns: vec![ip("192.0.2.53")],
        };
        let second = FixedAddresses {
            addresses: vec![(ip("198.51.100.7"), 25)],
            gateways: vec![],
            dns: vec![ip("198.51.100.53")],
        };
        assert_eq!(nics[0].fixed, Some(first));
        assert_eq!(nics[1].fixed, Some(second), "the gateway is of another network");
        assert_eq!(nics[2].fixed, None, "nobody tells of it");
    }

    #[test]
    fn a_lease_is_no_fixed_address() {
        let net = "<val><GuestNicInfo><macAddress>00:50:56:aa:00:01</macAddress><ipConfig><dhcp><ipv4><enable>true</enable></ipv4></dhcp>\
             <ipAddress><ipAddress>192.0.2.7</ipAddress><prefixLength>24</prefixLength><origin>dhcp</origin></ipAddress></ipConfig></GuestNicInfo>\
             <GuestNicInfo><macAddress>00:50:56:aa:00:02</macAddress><ipConfig>\
             <ipAddress><ipAddress>192.0.2.8</ipAddress><prefixLength>24</prefixLength></ipAddress></ipConfig></GuestNicInfo></val>";
        let mut nics = nics();
        fill_addresses(&mut nics, Some(&crate::xml::parse(net).unwrap()), None);
        assert_eq!(nics[0].fixed, Some(FixedAddresses::default()));
        assert_eq!(nics[1].fixed, None, "where it comes from is not told");
        fill_addresses(&mut nics, None, None);
    }

    #[test]
    fn what_is_known_of_a_card_outlives_what_tells_nothing() {
        let card = "<GuestNicInfo><macAddress>00:50:56:aa:00:01</macAddress>";
        let known = "<ipConfig><ipAddress><ipAddress>192.0.2.7</ipAddress><prefixLength>24</prefixLength><origin>manual</origin></ipAddress></ipConfig>";
        let lease = "<ipConfig><dhcp><ipv4><enable>true</enable></ipv4></dhcp></ipConfig>";
        let of = |parts: &[&str]| {
            let cards: String = parts.iter().map(|part| format!("{card}{part}</GuestNicInfo>")).collect();
            let mut nics = nics();
            fill_addresses(
                &mut nics,
                Some(&crate::xml::parse(&format!("<val>{cards}</val>")).unwrap()),
                None,
            );
            nics.swap_remove(0).fixed.map(|fixed| fixed.addresses.len())
        };
        assert_eq!(of(&[""]), None, "tools that have just begun");
        assert_eq!(of(&["<ipConfig></ipConfig>"]), None);
        assert_eq!(of(&[known, lease]), Some(1), "a bridge of the guest has the card's MAC address");
        assert_eq!([of(&[lease, known]), of(&[lease, ""])], [Some(1), Some(0)]);
        let odd = known.replace("24", "33");
        assert_eq!(of(&[&odd]), Some(0), "an address of no network is none");
    }

    #[test]
    fn networks_are_compared_by_their_bits() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(shares_network(ip("192.0.2.7"), ip("192.0.2.1"), 24));
        assert!(!shares_network(ip("192.0.2.7"), ip("192.0.3.1"), 24));
        assert!(shares_network(ip("192.0.2.7"), ip("203.0.113.1"), 0));
        assert!(
            !shares_network(ip("192.0.2.7"), ip("2001:db8::1"), 0)
                && !shares_network(ip("192.0.2.7"), ip("192.0.2.7"), 33)
        );
        assert!(shares_network(ip("2001:db8::7"), ip("2001:db8::1"), 64));
    }
}
