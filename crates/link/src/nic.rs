//! The network interface of this host by which a peer is reached, as the kernel's files show it.
//!
//! Routes are those of the main table: rules that choose another one are not heeded.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

pub use drover_tcp::Offloads;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// Megabits a second of it, or of those below it; absent where the driver does not tell.
    pub mbps: Option<u32>,
    /// The smallest packet limit of those below it (bond, bridge, VLAN), with its name, where that is less than its own.
    pub narrow: Option<(String, u32)>,
    /// What it takes off the processor; absent where the driver does not tell.
    pub offloads: Option<Offloads>,
}

/// Interfaces below one that are looked at.
const LOWER_MAX: usize = 64;
/// A file of the kernel that is looked at is no longer.
const TEXT_BYTES_MAX: u64 = 16 << 20;

impl Nic {
    /// The interface by which an address is reached, by the files below `proc` and `sys`; absent for the loopback, and where the
    /// kernel does not tell.
    pub fn to(address: IpAddr, proc: &Path, sys: &Path) -> Option<Nic> {
        let address = address.to_canonical();
        let name = match address {
            IpAddr::V4(to) => route(&read(&proc.join("net/route"))?, to),
            IpAddr::V6(to) => route6(&read(&proc.join("net/ipv6_route"))?, to),
        };
        let name = name.filter(|name| name != "lo" && !address.is_loopback())?;
        Nic::named(&name, &sys.join("class/net"))
    }

    fn named(name: &str, folder: &Path) -> Option<Nic> {
        let number = |name: &str, file: &str| {
            let text = read(&folder.join(name).join(file))?;
            // Drivers that do not know it tell -1, or nothing.
            text.trim().parse::<u32>().ok().filter(|it| (1..u32::MAX).contains(it))
        };
        let (mtu, lower) = (number(name, "mtu")?, lower(name, folder));
        let speed_of_lower = || lower.iter().filter_map(|name| number(name, "speed")).max();
        let mtu_of = |name: &String| Some((number(name, "mtu")?, name.clone()));
        let narrow = lower.iter().filter_map(mtu_of).min().filter(|(least, _)| *least < mtu);
        Some(Nic {
            name: name.to_string(),
            mtu,
            mbps: number(name, "speed").or_else(speed_of_lower),
            narrow: narrow.map(|(least, name)| (name, least)),
            offloads: drover_tcp::offloads(name).ok(),
        })
    }
}

/// Those below one, and below these.
fn lower(name: &str, folder: &Path) -> BTreeSet<String> {
    let (mut all, mut left) = (BTreeSet::new(), vec![name.to_string()]);
    while let Some(name) = left.pop().filter(|_| all.len() < LOWER_MAX) {
        let Ok(files) = fs::read_dir(folder.join(name)) else { continue };
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        for below in names.filter_map(|file| Some(file.strip_prefix("lower_")?.to_string())) {
            if all.insert(below.clone()) {
                left.push(below);
            }
        }
    }
    all
}

fn read(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path).ok()?.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A route is in use.
const RTF_UP: u32 = 0x1;
/// One that refuses.
const RTF_REJECT: u32 = 0x200;

/// The interface of the route with the longest prefix, and of several of these the one with the least metric: of `/proc/net/route`,
/// whose addresses are in the byte order of this machine.
fn route(text: &str, to: Ipv4Addr) -> Option<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, _, flags, _, _, metric, mask, ..] = words[..] else { return None };
        let address =
            |text: &str| Some(Ipv4Addr::from(u32::from_str_radix(text, 16).ok()?.to_ne_bytes()).to_bits());
        let (mask, destination) = (address(mask)?, address(destination)?);
        let is_used = is_used(u32::from_str_radix(flags, 16).ok()?) && to.to_bits() & mask == destination;
        let metric = metric.parse::<u32>().ok()?;
        is_used.then(|| (mask.count_ones(), std::cmp::Reverse(metric), interface.to_string()))
    };
    text.lines().skip(1).filter_map(line).max().map(|(.., interface)| interface)
}

/// The same of `/proc/net/ipv6_route`.
fn route6(text: &str, to: Ipv6Addr) -> Option<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, flags, interface] = words[..] else { return None };
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        let (destination, length) = (u128::from_str_radix(destination, 16).ok()?, hex(length)?);
        let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
        let is_used = is_used(hex(flags)?) && to.to_bits() & mask == destination & mask;
        is_used.then_some((length, std::cmp::Reverse(hex(metric)?), interface.to_string()))
    };
    text.lines().filter_map(line).max().map(|(.., interface)| interface)
}

fn is_used(flags: u32) -> bool {
    flags & RTF_UP != 0 && flags & RTF_REJECT == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        slow0\t00000000\t0100000A\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
        br0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth1\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth9\t0003A8C0\t00000000\t0201\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_longest_route_leads_and_then_the_one_of_the_least_metric() {
        let to = |text: &str| route(ROUTES, text.parse().unwrap());
        assert_eq!(to("192.168.2.7").as_deref(), Some("eth1"));
        assert_eq!(to("10.1.1.1").as_deref(), Some("br0"));
        assert_eq!(to("192.168.3.7").as_deref(), Some("br0"), "a route that refuses leads nowhere");
        assert_eq!(route("Iface\nnonsense\n", Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn routes_of_ipv6_are_found_likewise() {
        let none = "0".repeat(32);
        let line = |to: &str, length: &str, metric: &str, flags: &str, interface: &str| {
            format!("{to} {length} {none} 00 {none} {metric} 00000001 00000000 {flags} {interface}\n")
        };
        let net = format!("20010db8{}", "0".repeat(24));
        let text = line(&none, "00", "00000400", "00450003", "eth0")
            + &line(&net, "20", "00000100", "00000001", "eth1")
            + &line(&net, "40", "00000100", "00000201", "lo")
            + "nonsense\n";
        let to = |to: &str| route6(&text, to.parse().unwrap());
        assert_eq!((to("2001:db8:1::1").as_deref(), to("fd00::1").as_deref()), (Some("eth1"), Some("eth0")));
        assert_eq!(route6("", Ipv6Addr::LOCALHOST), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_interface_tells_its_packets_its_rate_and_what_is_narrower_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        let put = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(&proc.join("net/route"), ROUTES);
        let net = sys.join("class/net");
        for (file, text) in
            [("br0/mtu", "9000\n"), ("br0/speed", "-1\n"), ("bond0/mtu", "9000\n"), ("eth0/mtu", "1500\n")]
        {
            put(&net.join(file), text);
        }
        put(&net.join("eth0/speed"), "25000\n");
        put(&net.join("br0/lower_bond0"), "");
        put(&net.join("bond0/lower_eth0"), "");
        // Names of this host's interfaces are others.
        let br0 = Nic {
            name: "br0".into(),
            mtu: 9000,
            mbps: Some(25_000),
            narrow: Some(("eth0".into(), 1500)),
            offloads: None,
        };
        let to = |text: &str| Nic::to(text.parse().unwrap(), &proc, &sys);
        assert_eq!(to("10.1.1.1").map(|it| Nic { offloads: None, ..it }), Some(br0));
        assert_eq!(to("::ffff:10.1.1.1").map(|it| it.name).as_deref(), Some("br0"));
        assert_eq!(to("192.168.2.7"), None, "of eth1 nothing is told");
        assert_eq!((to("127.0.0.1"), to("::1")), (None, None));
        assert_eq!(lower("br0", &net), ["bond0", "eth0"].map(String::from).into());
    }
}
