//! The rules as text. Pure.

use std::fmt::Write;

use super::caught::Caught;

/// Numbers of relays have 22 bits, as those of processes on 64-bit machines.
pub const NUMBER_MAX: u32 = (1 << 22) - 1;
/// Marks and routing tables of relays: this and the number.
const MARK_BASE: u32 = 0x0d80_0000;
/// How tables of relays begin.
pub(crate) const TABLE_PREFIX: &str = "drover_relay_";

/// How connections are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The packet filter changes the destination to the relay's port, and tells the relay what it was.
    Redirect {
        /// Also catch what this host itself connects to. The relay's own connections carry its mark.
        local: bool,
    },
    /// The packet filter hands the packets to the relay as they are (TPROXY).
    Tproxy,
}

/// What is to be caught, and by which relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catch {
    /// How.
    pub method: Method,
    /// What.
    pub matches: Vec<Caught>,
    /// The port that the relay listens on for IPv4, if it does.
    pub port_v4: Option<u16>,
    /// And for IPv6.
    pub port_v6: Option<u16>,
    /// The relay's number.
    pub number: u32,
}

/// A relay's table in the packet filter.
pub(crate) fn table_name(number: u32) -> String {
    format!("{TABLE_PREFIX}{number}")
}

/// The mark and the routing table of a relay.
pub(crate) fn mark(number: u32) -> u32 {
    MARK_BASE | number
}

/// The relay of a mark, if it is one's.
pub(crate) fn number_of(mark: u32) -> Option<u32> {
    (mark & !NUMBER_MAX == MARK_BASE).then_some(mark & NUMBER_MAX)
}

impl Catch {
    /// The relay's mark, as its packets carry it.
    pub fn mark(&self) -> u32 {
        mark(self.number)
    }

    /// What `nft -f` is given. A table that a killed relay of the same number left is replaced.
    pub fn nft_script(&self) -> String {
        let table = table_name(self.number);
        format!("table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n{}}}\n", self.chains())
    }

    fn chains(&self) -> String {
        match self.method {
            Method::Tproxy => self.chain("prerouting", "filter", "mangle", &self.intercepting()),
            Method::Redirect { local: false } => {
                self.chain("prerouting", "nat", "dstnat", &self.redirecting())
            }
            Method::Redirect { local: true } => {
                let own = format!("meta mark {:#010x} accept", self.mark());
                let output: Vec<String> = std::iter::once(own).chain(self.redirecting()).collect();
                self.chain("prerouting", "nat", "dstnat", &self.redirecting())
                    + &self.chain("output", "nat", "-100", &output)
            }
        }
    }

    fn chain(&self, hook: &str, kind: &str, priority: &str, rules: &[String]) -> String {
        let mut text = format!(
            "    chain {hook} {{\n        type {kind} hook {hook} priority {priority}; policy accept;\n"
        );
        for rule in rules {
            // Writing to a string does not fail.
            let _ = writeln!(text, "        {rule}");
        }
        text + "    }\n"
    }

    /// The families of a match that the relay listens for: nftables's names and the port.
    fn families<'a>(&self, caught: &'a Caught) -> Vec<(&'a Caught, &'static str, &'static str, u16)> {
        let (v4, v6) = caught.families();
        let v4 = self.port_v4.filter(|_| v4).map(|port| (caught, "ipv4", "ip", port));
        let v6 = self.port_v6.filter(|_| v6).map(|port| (caught, "ipv6", "ip6", port));
        v4.into_iter().chain(v6).collect()
    }

    fn redirecting(&self) -> Vec<String> {
        let rule = |(caught, family, _, port): (&Caught, &str, &str, u16)| {
            format!("meta nfproto {family} {} redirect to :{port}", caught.nft())
        };
        self.matches.iter().flat_map(|caught| self.families(caught)).map(rule).collect()
    }

    fn intercepting(&self) -> Vec<String> {
        let mark = format!("{:#010x}", self.mark());
        // Packets of connections that are caught already, also those that come back to a kept source.
        let known = format!("meta l4proto tcp socket transparent 1 meta mark set {mark} accept");
        let rule = |(caught, family, ip, port): (&Caught, &str, &str, u16)| {
            let nft = caught.nft();
            format!("meta nfproto {family} {nft} tproxy {ip} to :{port} meta mark set {mark} accept")
        };
        let new = self.matches.iter().flat_map(|caught| self.families(caught)).map(rule);
        std::iter::once(known).chain(new).collect()
    }

    /// Arguments of `ip` that make the routing for TPROXY: marked packets are for this host.
    pub fn ip_commands(&self) -> Vec<Vec<String>> {
        self.routing("add")
    }

    /// And that take it away.
    pub(crate) fn ip_undo(&self) -> Vec<Vec<String>> {
        self.routing("del")
    }

    fn routing(&self, verb: &str) -> Vec<Vec<String>> {
        if self.method != Method::Tproxy {
            return Vec::new();
        }
        let (mark, table) = (format!("{:#x}", self.mark()), self.mark().to_string());
        let families = [("-4", "0.0.0.0/0", self.port_v4), ("-6", "::/0", self.port_v6)];
        let commands =
            families.into_iter().filter(|(_, _, port)| port.is_some()).flat_map(|(flag, all, _)| {
                [
                    format!("{flag} rule {verb} fwmark {mark} lookup {table}"),
                    format!("{flag} route {verb} local {all} dev lo table {table}"),
                ]
            });
        commands.map(|line| line.split(' ').map(str::to_string).collect()).collect()
    }

    /// All of it, as a person would type it.
    pub fn told(&self) -> String {
        let mut text = format!("nft -f - <<'END'\n{}END\n", self.nft_script());
        for command in self.ip_commands() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "ip {}", command.join(" "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catch(method: Method, matches: &[&str]) -> Catch {
        let matches = matches.iter().map(|text| text.parse().unwrap()).collect();
        Catch { method, matches, port_v4: Some(4000), port_v6: Some(6000), number: 7 }
    }

    #[test]
    fn a_redirect_names_each_family_with_its_port() {
        let catch = catch(Method::Redirect { local: false }, &["port 8000", "to 10.2.0.0/16"]);
        assert_eq!(
            catch.told(),
            "nft -f - <<'END'
table inet drover_relay_7
delete table inet drover_relay_7
table inet drover_relay_7 {
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        meta nfproto ipv4 fib daddr type != local tcp dport { 8000 } redirect to :4000
        meta nfproto ipv6 fib daddr type != local tcp dport { 8000 } redirect to :6000
        meta nfproto ipv4 ip daddr 10.2.0.0/16 fib daddr type != local meta l4proto tcp redirect to :4000
    }
}
END
"
        );
    }

    #[test]
    fn what_the_host_itself_sends_is_caught_but_not_the_relays_own() {
        let script = catch(Method::Redirect { local: true }, &["port 8000"]).nft_script();
        let output = script.split("chain output").nth(1).unwrap();
        let own = output.find("meta mark 0x0d800007 accept").unwrap();
        assert!(own < output.find("redirect").unwrap(), "{script}");
    }

    #[test]
    fn interception_routes_marked_packets_to_this_host() {
        let mut catch = catch(Method::Tproxy, &["port 8000"]);
        catch.port_v6 = None;
        let script = catch.nft_script();
        assert!(script.contains("socket transparent 1 meta mark set 0x0d800007 accept"), "{script}");
        assert!(script.contains("tproxy ip to :4000 meta mark set 0x0d800007 accept"), "{script}");
        assert!(!script.contains("ip6"), "{script}");
        let commands: Vec<String> = catch.ip_commands().iter().map(|it| it.join(" ")).collect();
        assert_eq!(
            commands,
            [
                "-4 rule add fwmark 0xd800007 lookup 226492423",
                "-4 route add local 0.0.0.0/0 dev lo table 226492423"
            ]
        );
        assert_eq!(catch.ip_undo()[0][2], "del");
    }

    #[test]
    fn a_mark_tells_its_relay() {
        assert_eq!(number_of(mark(NUMBER_MAX)), Some(NUMBER_MAX));
        assert_eq!(number_of(mark(0)), Some(0));
        assert_eq!((number_of(0), number_of(0x0dc0_0000), number_of(u32::MAX)), (None, None, None));
    }
}
