//! Who may go where, how fast, and with which congestion control.
//!
//! One rule a line, in words; the first that fits decides:
//!
//! ```text
//! allow|direct|deny [from NETWORK] [to NETWORK] [port PORTS] [congestion NAME] [rate RATE]
//! ```
//!
//! PORTS are ports and ranges with commas between them. RATE is as in all options (`500m`: bits a
//! second, `12MiB`: bytes), shared by all connections of the rule, each way by itself. `#` begins a comment.
//! Without any rule all may pass; where there are rules, what fits none is denied. Where there is a link, what is
//! allowed goes over it, and `direct` past it; without one they are the same.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use drover_types::units::byte_rate;

use crate::address::{Network, PortRange};

/// Rules that a relay holds.
pub const RULES_MAX: usize = 4096;
/// Runs of ports that a rule names.
const RANGES_MAX: usize = 64;

/// Whether a connection may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may: over the link, where there is one.
    Allow,
    /// It may, and goes on from here, past the link.
    Direct,
    /// It is reset.
    Deny,
}

/// One line of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is done with connections that fit.
    pub verdict: Verdict,
    /// Where they come from; anywhere if absent.
    pub from: Option<Network>,
    /// Where they go; anywhere if absent.
    pub to: Option<Network>,
    /// To which ports; any if empty.
    pub ports: Vec<PortRange>,
    /// Congestion control towards the target.
    pub congestion: Option<String>,
    /// Bytes a second, each way, for all connections of this rule together.
    pub bytes_per_second: Option<u64>,
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule '{rule}': {why}")]
pub struct RuleError {
    rule: String,
    why: String,
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        read_rule(text).map_err(|why| RuleError { rule: text.trim().to_string(), why })
    }
}

fn read_rule(text: &str) -> Result<Rule, String> {
    let mut words = text.split_whitespace();
    let verdict = match words.next() {
        Some("allow") => Verdict::Allow,
        Some("direct") => Verdict::Direct,
        Some("deny") => Verdict::Deny,
        _ => return Err("it begins with neither 'allow' nor 'direct' nor 'deny'".to_string()),
    };
    let mut rule =
        Rule { verdict, from: None, to: None, ports: Vec::new(), congestion: None, bytes_per_second: None };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("nothing stands behind '{word}'"))?;
        take_word(&mut rule, word, value)?;
    }
    if rule.verdict == Verdict::Deny && (rule.congestion.is_some() || rule.bytes_per_second.is_some()) {
        return Err("what is denied has no congestion control and no rate".to_string());
    }
    Ok(rule)
}

fn take_word(rule: &mut Rule, word: &str, value: &str) -> Result<(), String> {
    let network = || value.parse::<Network>().map_err(|error| error.to_string());
    let is_new = match word {
        "from" => rule.from.replace(network()?).is_none(),
        "to" => rule.to.replace(network()?).is_none(),
        "port" => {
            let is_new = rule.ports.is_empty();
            rule.ports = read_ports(value)?;
            is_new
        }
        "congestion" => rule.congestion.replace(value.to_string()).is_none(),
        "rate" => {
            rule.bytes_per_second.replace(byte_rate(value).map_err(|error| error.to_string())?).is_none()
        }
        _ => return Err(format!("'{word}' is none of from, to, port, congestion, rate")),
    };
    if is_new { Ok(()) } else { Err(format!("'{word}' stands there twice")) }
}

/// Ports and ranges with commas between them.
///
/// # Errors
/// A sentence, if one cannot be read or there are too many.
pub fn read_ports(text: &str) -> Result<Vec<PortRange>, String> {
    let ranges: Vec<PortRange> = text
        .split(',')
        .take(RANGES_MAX + 1)
        .map(|range| range.parse().map_err(|error: crate::address::AddressError| error.to_string()))
        .collect::<Result<_, _>>()?;
    if ranges.len() > RANGES_MAX {
        Err(format!("more than {RANGES_MAX} ranges of ports"))
    } else {
        Ok(ranges)
    }
}

impl Rule {
    /// Whether a connection from there to here is meant.
    pub fn fits(&self, client: IpAddr, target: SocketAddr) -> bool {
        let holds =
            |network: &Option<Network>, address| network.as_ref().is_none_or(|it| it.contains(address));
        holds(&self.from, client)
            && holds(&self.to, target.ip())
            && (self.ports.is_empty() || self.ports.iter().any(|range| range.contains(target.port())))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            Verdict::Allow => "allow",
            Verdict::Direct => "direct",
            Verdict::Deny => "deny",
        })?;
        self.from.iter().try_for_each(|network| write!(f, " from {network}"))?;
        self.to.iter().try_for_each(|network| write!(f, " to {network}"))?;
        for (at, range) in self.ports.iter().enumerate() {
            write!(f, "{}{range}", if at == 0 { " port " } else { "," })?;
        }
        self.congestion.iter().try_for_each(|name| write!(f, " congestion {name}"))?;
        self.bytes_per_second.iter().try_for_each(|bytes| write!(f, " rate {}", bytes.saturating_mul(8)))
    }
}

/// Rules in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The rules.
    pub rules: Vec<Rule>,
}

/// What a policy says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// Number of the rule that decided, from 0; none if no rule fits.
    pub rule: Option<usize>,
}

impl Policy {
    /// Reads a file of rules.
    ///
    /// # Errors
    /// The first line that cannot be read, with its number; or too many rules.
    pub fn parse(text: &str) -> Result<Policy, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if rules.len() == RULES_MAX {
                return Err(format!("more than {RULES_MAX} rules"));
            }
            rules.push(line.parse().map_err(|error| format!("line {}: {error}", number + 1))?);
        }
        Ok(Policy { rules })
    }

    /// What is done with a connection from there to here.
    pub fn decide(&self, client: IpAddr, target: SocketAddr) -> Decision {
        match self.rules.iter().position(|rule| rule.fits(client, target)) {
            Some(at) => Decision { verdict: self.rules[at].verdict, rule: Some(at) },
            None if self.rules.is_empty() => Decision { verdict: Verdict::Allow, rule: None },
            None => Decision { verdict: Verdict::Deny, rule: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decide(policy: &str, client: &str, target: &str) -> Decision {
        Policy::parse(policy).unwrap().decide(client.parse().unwrap(), target.parse().unwrap())
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy =
            "deny to 10.1.0.0/16 port 22,8000-8010 # not there\n\nallow from 192.0.2.0/24 to 10.0.0.0/8\n";
        let denied = Decision { verdict: Verdict::Deny, rule: Some(0) };
        assert_eq!(decide(policy, "192.0.2.1", "10.1.2.3:8005"), denied);
        assert_eq!(decide(policy, "192.0.2.1", "10.1.2.3:22"), denied);
        let allowed = Decision { verdict: Verdict::Allow, rule: Some(1) };
        assert_eq!(decide(policy, "192.0.2.1", "10.1.2.3:23"), allowed);
        assert_eq!(decide(policy, "192.0.2.1", "10.2.2.3:22"), allowed);
    }

    #[test]
    fn what_fits_no_rule_is_denied_and_without_rules_all_may_pass() {
        let none = Decision { verdict: Verdict::Deny, rule: None };
        assert_eq!(decide("allow port 902", "192.0.2.1", "10.0.0.1:903"), none);
        assert_eq!(decide("allow to 10.0.0.0/8", "192.0.2.1", "[2001:db8::1]:902"), none);
        assert_eq!(decide("", "192.0.2.1", "10.0.0.1:903").verdict, Verdict::Allow);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (text, why) in [
            ("permit port 1", "neither 'allow' nor 'direct'"),
            ("allow port", "nothing stands behind 'port'"),
            ("allow port 1 port 2", "'port' stands there twice"),
            ("allow to 10.0.0.0/99", "not a network"),
            ("allow via x", "'via' is none of"),
            ("deny rate 5m", "has no congestion control and no rate"),
            ("allow rate 5x", "no rate"),
            ("allow rate 7", "no rate"),
        ] {
            let told = text.parse::<Rule>().unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        }
        let told = Policy::parse("allow\n# fine\nalow\n").unwrap_err();
        assert!(told.starts_with("line 3: rule 'alow'"), "{told}");
        assert!(Policy::parse(&"allow\n".repeat(RULES_MAX + 1)).is_err());
        assert!(read_ports(&"1,".repeat(200)).is_err());
    }

    fn any_rule() -> impl Strategy<Value = String> {
        let verdict = prop_oneof![Just("allow"), Just("direct"), Just("deny")];
        let network = prop_oneof![Just(""), Just(" to 10.0.0.0/8"), Just(" from 2001:db8::/32 to ::/0")];
        (verdict, network, prop::collection::vec((1_u16..2000, 0_u16..900), 0..4)).prop_map(
            |(verdict, network, ports)| {
                let ranges: Vec<String> =
                    ports.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
                let port =
                    if ranges.is_empty() { String::new() } else { format!(" port {}", ranges.join(",")) };
                format!("{verdict}{network}{port}")
            },
        )
    }

    proptest! {
        #[test]
        fn a_rule_reads_back_as_it_is_told(text in any_rule()) {
            let rule: Rule = text.parse().unwrap();
            prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }

        #[test]
        fn no_text_breaks_the_parser(text in "(allow|deny)?[ a-z0-9./:,#-]{0,60}") {
            let _ = Policy::parse(&text);
        }
    }
}
