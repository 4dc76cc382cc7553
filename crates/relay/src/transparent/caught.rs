//! Which connections are caught: `--match`.

use std::fmt::Write;
use std::str::FromStr;

use crate::address::{Network, PortRange};
use crate::rule::read_ports;

/// Linux's IFNAMSIZ - 1.
const INTERFACE_BYTES_MAX: usize = 15;

/// Connections that are caught: `[in INTERFACE] [from NETWORK] [to NETWORK] [port PORTS]`, or `any`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caught {
    interface: Option<String>,
    from: Option<Network>,
    to: Option<Network>,
    /// Any if empty.
    pub ports: Vec<PortRange>,
}

impl FromStr for Caught {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut caught = Caught::default();
        let mut words = text.split_whitespace();
        if text.trim() == "any" {
            return Ok(caught);
        }
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("'{text}': nothing stands behind '{word}'"))?;
            caught.take(word, value).map_err(|why| format!("'{text}': {why}"))?;
        }
        match (caught == Caught::default(), caught.families()) {
            (true, _) => Err("it names nothing; write 'any' to catch all".to_string()),
            (_, (false, false)) => Err(format!("'{text}': from and to are of different families")),
            _ => Ok(caught),
        }
    }
}

impl Caught {
    fn take(&mut self, word: &str, value: &str) -> Result<(), String> {
        let network = || value.parse::<Network>().map_err(|error| error.to_string());
        let is_new = match word {
            "in" => self.interface.replace(read_interface(value)?).is_none(),
            "from" => self.from.replace(network()?).is_none(),
            "to" => self.to.replace(network()?).is_none(),
            "port" => {
                let is_new = self.ports.is_empty();
                self.ports = read_ports(value)?;
                is_new
            }
            _ => return Err(format!("'{word}' is none of in, from, to, port")),
        };
        if is_new { Ok(()) } else { Err(format!("'{word}' stands there twice")) }
    }

    /// Whether IPv4, whether IPv6 can be meant.
    pub(crate) fn families(&self) -> (bool, bool) {
        let networks = || [self.from, self.to].into_iter().flatten();
        (networks().all(|it| it.is_ipv4()), networks().all(|it| !it.is_ipv4()))
    }

    /// Whether a port is among those that are caught.
    pub fn holds_port(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|range| range.contains(port))
    }

    /// In the words of nftables.
    pub(crate) fn nft(&self) -> String {
        let mut text = String::new();
        let family = |network: &Network| if network.is_ipv4() { "ip" } else { "ip6" };
        // Writing to a string does not fail.
        if let Some(interface) = &self.interface {
            let _ = write!(text, "iifname \"{interface}\" ");
        }
        if let Some(from) = &self.from {
            let _ = write!(text, "{} saddr {from} ", family(from));
        }
        if let Some(to) = &self.to {
            let _ = write!(text, "{} daddr {to} ", family(to));
        }
        // What is for this host itself, its own services, passes: a network or a port names it by chance. An address
        // that stands there by itself is meant, as one that this host has in the place of another.
        if !self.to.is_some_and(|to| to.is_single()) {
            text.push_str("fib daddr type != local ");
        }
        if self.ports.is_empty() {
            return text + "meta l4proto tcp";
        }
        let ports: Vec<String> = self.ports.iter().map(PortRange::to_string).collect();
        let _ = write!(text, "tcp dport {{ {} }}", ports.join(", "));
        text
    }
}

/// A name that the packet filter takes for a name and nothing else.
fn read_interface(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_@".contains(&byte);
    if text.is_empty() || text.len() > INTERFACE_BYTES_MAX || !text.bytes().all(is_plain) {
        return Err(format!("'{text}' is not the name of an interface"));
    }
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_become_those_of_nftables() {
        for (text, nft) in [
            ("any", "fib daddr type != local meta l4proto tcp"),
            ("port 8000", "fib daddr type != local tcp dport { 8000 }"),
            (
                "in eth1 to 10.2.0.0/16 port 902,8000-8010",
                "iifname \"eth1\" ip daddr 10.2.0.0/16 fib daddr type != local tcp dport { 902, 8000-8010 }",
            ),
            (
                "from 2001:db8::/32 to 2001:db8:1::7",
                "ip6 saddr 2001:db8::/32 ip6 daddr 2001:db8:1::7/128 meta l4proto tcp",
            ),
        ] {
            assert_eq!(text.parse::<Caught>().unwrap().nft(), nft);
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (text, why) in [
            ("", "names nothing"),
            ("port", "nothing stands behind"),
            ("port 1 port 2", "twice"),
            ("to 10.0.0.0/8 from ::/0", "different families"),
            ("in eth0;drop port 1", "not the name of an interface"),
            ("in a\"b port 1", "not the name of an interface"),
            ("dport 1", "none of in, from, to, port"),
        ] {
            let told = text.parse::<Caught>().unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn overlapping_ports_are_known() {
        let caught: Caught = "port 10-20,30".parse().unwrap();
        assert!(caught.holds_port(15) && caught.holds_port(30) && !caught.holds_port(25));
        assert!("any".parse::<Caught>().unwrap().holds_port(1));
    }

    proptest! {
        #[test]
        fn no_text_gets_other_words_into_the_packet_filter(text in "(in|to|port| |any|[a-z0-9./:,;{}\"-]){0,12}") {
            if let Ok(caught) = text.parse::<Caught>() {
                prop_assert!(!caught.nft().contains(';') && caught.nft().matches('"').count() <= 2);
            }
        }
    }
}
