//! Finds lines that would lead back to the relay itself, as far as that can be known before anybody connects.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::options::{Destination, Line};

/// The first line whose connections would come back to it, at once or over other lines, with the address that leads on from it.
/// `is_here` says whether an address is this host's.
pub(crate) fn circle(lines: &[Line], is_here: impl Fn(IpAddr) -> bool) -> Option<(SocketAddr, SocketAddr)> {
    // Port 0 is a free one, which nobody can have named.
    let mut by_port: HashMap<u16, Vec<usize>> = HashMap::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.listen.port() > 0) {
        by_port.entry(line.listen.port()).or_default().push(at);
    }
    let next = |at: usize| {
        let at_port = |to: &SocketAddr| by_port.get(&to.port()).into_iter().flatten().copied();
        let pairs = targets(&lines[at]).iter().flat_map(move |to| at_port(to).map(move |it| (*to, it)));
        pairs.filter(|(to, it)| takes(lines[*it].listen, *to, &is_here))
    };
    (0..lines.len()).find_map(|start| {
        let mut seen = HashSet::new();
        let mut left: Vec<(SocketAddr, usize)> = next(start).collect();
        while let Some((first, at)) = left.pop() {
            if at == start {
                return Some((lines[start].listen, first));
            }
            if seen.insert(at) {
                left.extend(next(at).map(|(_, it)| (first, it)));
            }
        }
        None
    })
}

/// Where connections of a line go from this host; over a link they go from another.
fn targets(line: &Line) -> &[SocketAddr] {
    match &line.to {
        Destination::Fixed { addresses } => addresses,
        // Who connects to those ports itself is reset when it comes.
        Destination::Redirected | Destination::Intercepted { .. } | Destination::Far { .. } => &[],
    }
}

/// Whether who connects to `to` comes to what listens at `listen`, on the same port. Each listens for its own family only.
fn takes(listen: SocketAddr, to: SocketAddr, is_here: &impl Fn(IpAddr) -> bool) -> bool {
    let (at, to) = (listen.ip(), to.ip().to_canonical());
    // Who connects to "any" comes to the loopback address.
    let is_loopback = to.is_loopback() || to.is_unspecified();
    match at.is_ipv4() == to.is_ipv4() {
        false => false,
        true if at.is_unspecified() => is_loopback || is_here(to),
        true => at == to || (to.is_unspecified() && is_first_loopback(at)),
    }
}

/// The one that "any" leads to.
fn is_first_loopback(address: IpAddr) -> bool {
    address == IpAddr::V4(Ipv4Addr::LOCALHOST) || address == IpAddr::V6(Ipv6Addr::LOCALHOST)
}

/// Whether an address is this host's, as far as it tells: one that lets sockets have addresses of others does not.
pub(crate) fn is_here(address: IpAddr) -> bool {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let lets = std::fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    lets.is_ok_and(|text| text.trim() == "0") && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines `LISTEN>TARGET`, on a host that has 192.0.2.1 and 2001:db8::1.
    fn found(lines: &[&str]) -> Option<(String, String)> {
        let line = |text: &&str| {
            let (listen, to) = text.split_once('>').unwrap();
            let addresses = to.split(',').map(|it| it.parse().unwrap()).collect();
            Line { listen: listen.parse().unwrap(), to: Destination::Fixed { addresses } }
        };
        let lines: Vec<Line> = lines.iter().map(line).collect();
        let is_here =
            |it: IpAddr| ["192.0.2.1", "2001:db8::1"].iter().any(|own| it == own.parse::<IpAddr>().unwrap());
        circle(&lines, is_here).map(|(listen, to)| (listen.to_string(), to.to_string()))
    }

    #[test]
    fn a_line_that_leads_to_itself_is_found() {
        for (line, to) in [
            ("127.0.0.1:9>127.0.0.1:9", "127.0.0.1:9"),
            ("192.0.2.7:9>192.0.2.7:9", "192.0.2.7:9"),
            ("0.0.0.0:9>127.0.0.3:9", "127.0.0.3:9"),
            ("0.0.0.0:9>198.51.100.1:9,192.0.2.1:9", "192.0.2.1:9"),
            ("0.0.0.0:9>[::ffff:192.0.2.1]:9", "[::ffff:192.0.2.1]:9"),
            ("127.0.0.1:9>0.0.0.0:9", "0.0.0.0:9"),
            ("[::]:9>[::1]:9", "[::1]:9"),
            ("[::]:9>[2001:db8::1]:9", "[2001:db8::1]:9"),
        ] {
            assert_eq!(found(&[line]).map(|(_, to)| to).as_deref(), Some(to), "{line}");
        }
    }

    #[test]
    fn lines_that_lead_to_each_other_are_found() {
        let lines =
            ["127.0.0.1:7>127.0.0.1:8", "127.0.0.1:8>127.0.0.1:9", "0.0.0.0:9>192.0.2.7:9,127.0.0.1:8"];
        assert_eq!(found(&lines), Some(("127.0.0.1:8".to_string(), "127.0.0.1:9".to_string())));
        assert_eq!(found(&lines[..2]), None, "one behind the other is no circle");
    }

    #[test]
    fn what_leads_elsewhere_is_let_be() {
        for line in [
            "127.0.0.1:9>127.0.0.1:8",
            "127.0.0.1:9>127.0.0.2:9",
            "127.0.0.2:9>0.0.0.0:9",
            "192.0.2.1:9>127.0.0.1:9",
            "0.0.0.0:9>198.51.100.1:9",
            "0.0.0.0:9>[::1]:9",
            "[::]:9>127.0.0.1:9",
            "127.0.0.1:0>127.0.0.1:9",
        ] {
            assert_eq!(found(&[line]), None, "{line}");
        }
    }

    #[test]
    fn addresses_of_this_host_are_known() {
        assert!(!is_here("192.0.2.1".parse().unwrap()), "kept for documents");
    }
}
