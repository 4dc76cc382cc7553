//! `drover tune`: what would make plans faster, and what this host's kernel lacks for long, fast lines. Changes nothing.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;

use drover_agent::PROC;
use drover_forecast::{Advice, Asked, Severity};
use drover_link::host::{Setting, has_bbr, settings};
use drover_link::nic::{Nic, Offloads};
use serde_json::json;

use super::forecast;
use crate::cli::{HostTuneArgs, WhatIfArgs};
use crate::exit::{Exit, Failure};
use crate::out::line;

/// Where the kernel's files of devices are, if not in `/sys`.
const SYS: &str = "DROVER_SYS";

/// Runs `drover tune`.
pub fn run(args: &HostTuneArgs) -> Result<Exit, Failure> {
    if !args.plans.is_empty() {
        return run_plans(args);
    }
    let fill = args.rate.zip(args.rtt).map(|(rate, rtt)| (rate.bits_per_s() / 8, rtt));
    let all = settings(fill);
    let bbr = has_bbr();
    if args.json {
        crate::out::json(format_args!("{:#}", document(&all, bbr)));
    } else {
        text(&all, bbr);
    }
    Ok(Exit::Success)
}

fn run_plans(args: &HostTuneArgs) -> Result<Exit, Failure> {
    let what_if = WhatIfArgs { state: args.state.clone(), seed: 1, ..WhatIfArgs::default() };
    let forecast::Asked { question, hosts, through_provider, nfc, peers } =
        forecast::ask(&args.plans, &what_if)?;
    let forecast = drover_forecast::foresee(&question);
    let asked =
        Asked { question: &question, forecast: &forecast, hosts: &hosts, through_provider, nfc: &nfc };
    let mut advice = drover_forecast::advise(&asked);
    advice.extend(of_nics(&nics_to(&peers)));
    advice.extend(of_this_host(&settings(None), governor().as_deref()));
    advice.sort_by_key(|it| it.severity);
    if args.json {
        crate::out::json(format_args!("{:#}", drover_view::advice_json(&forecast, &advice)));
    } else {
        crate::out::print(&drover_view::advice_text(&forecast, &advice));
    }
    Ok(Exit::Success)
}

/// The interfaces of this host by which peers are reached, with these.
fn nics_to(peers: &[String]) -> Vec<(Nic, String)> {
    let root = |variable, usual: &str| std::env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from);
    let (proc, sys) = (root(PROC, "/proc"), root(SYS, "/sys"));
    let mut found: Vec<(Nic, String)> = Vec::new();
    for peer in peers {
        let Some(nic) = address_of(peer).and_then(|address| Nic::to(address, &proc, &sys)) else { continue };
        match found.iter_mut().find(|(known, _)| *known == nic) {
            Some((_, to)) => *to += &format!(", {peer}"),
            None => found.push((nic, peer.clone())),
        }
    }
    found
}

/// Of `HOST`, `HOST:PORT` or an address.
fn address_of(peer: &str) -> Option<IpAddr> {
    let with_port = || peer.to_socket_addrs().ok()?.next();
    let without = || (peer, 443).to_socket_addrs().ok()?.next();
    peer.parse().ok().or_else(|| Some(with_port().or_else(without)?.ip()))
}

/// What holds up lines of this rate, in megabits a second: one packet of 1500 bytes every 1.2 µs.
const FAST_MBPS: u32 = 10_000;
const MTU_USUAL: u32 = 1500;

/// What holds up fast lines at interfaces of this host.
fn of_nics(nics: &[(Nic, String)]) -> Vec<Advice> {
    let of = |severity, finding: String, evidence: String, advice: &str| Advice {
        severity,
        finding,
        evidence,
        advice: advice.into(),
        gain: None,
        source: None,
    };
    let one = |(nic, peers): &(Nic, String)| {
        let Nic { name, mtu, mbps, narrow, offloads } = nic;
        let rate = mbps.map_or(String::new(), |mbps| format!(" at {mbps} Mbit/s"));
        let is_fast = mbps.is_some_and(|mbps| mbps >= FAST_MBPS);
        let way = format!("{name}{rate}, on the way to {peers}");
        let narrow = narrow.as_ref().map(|(below, least)| {
            let finding = format!("packets of {name} do not fit {below} below it");
            let advice = "give both the same MTU: what is larger is lost or cut in pieces";
            of(Severity::Medium, finding, format!("MTU {mtu} and {least}; {way}"), advice)
        });
        let jumbo = (is_fast && *mtu <= MTU_USUAL).then(|| {
            let finding = format!("{name} is fast and has packets of {mtu} bytes");
            let advice = "set MTU 9000 at both ends and at all switches between them, or leave it as it is at all of them: it saves processor \
                          time, and one smaller MTU on the way loses large packets";
            of(Severity::Low, finding, format!("MTU {mtu}; {way}"), advice)
        });
        let off = offloads.map(switched_off).filter(|off| !off.is_empty()).map(|off| {
            let severity = if is_fast { Severity::Medium } else { Severity::Low };
            let (finding, words) = (format!("{name} leaves work to the processor"), off.join(", "));
            let keys: String =
                off.iter().filter_map(|it| it.split(' ').next()).map(|it| format!(" {it} on")).collect();
            let advice = format!("`ethtool -K {name}{keys}`, unless its driver is known to fail with it");
            of(severity, finding, format!("{words} off; {way}"), &advice)
        });
        [narrow, jumbo, off]
    };
    nics.iter().flat_map(one).flatten().collect()
}

/// By the names that `ethtool -K` takes.
fn switched_off(it: Offloads) -> Vec<&'static str> {
    let all = [
        (it.segmentation, "tso (segmentation)"),
        (it.receive, "gro (receive)"),
        (it.send_checksums, "tx (checksums)"),
        (it.receive_checksums, "rx (checksums)"),
    ];
    all.into_iter().filter(|(is_on, _)| !is_on).map(|(_, name)| name).collect()
}

/// How the kernel sets the clock of the first processor, where it does.
fn governor() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()
}

fn of_this_host(settings: &[Setting], governor: Option<&str>) -> Vec<Advice> {
    let of = |finding: &str, evidence: String, advice: &str| Advice {
        severity: Severity::Low,
        finding: finding.into(),
        evidence,
        advice: advice.into(),
        gain: None,
        source: None,
    };
    let lacking: Vec<&str> = settings.iter().filter(|it| it.is_lacking()).map(|it| it.name).collect();
    let kernel = (!lacking.is_empty()).then(|| {
        let finding = "this host's kernel is not set for long, fast lines";
        of(finding, lacking.join(", "), "`drover tune` prints the lines; a LAN does not need them")
    });
    let clock = governor.map(str::trim).filter(|it| *it != "performance").map(|it| {
        of("this host's processors save power", format!("governor {it}"), "set the governor to performance")
    });
    kernel.into_iter().chain(clock).collect()
}

fn document(all: &[Setting], bbr: bool) -> serde_json::Value {
    let setting = |it: &Setting| {
        json!({
            "name": it.name,
            "value": it.value,
            "wanted": it.wanted,
            "lacking": it.is_lacking(),
            "why": it.why,
        })
    };
    json!({ "bbr_loaded": bbr, "settings": all.iter().map(setting).collect::<Vec<_>>() })
}

fn text(all: &[Setting], bbr: bool) {
    let lacking: Vec<&Setting> = all.iter().filter(|it| it.is_lacking()).collect();
    if !bbr {
        line(
            "# BBR is not loaded: `modprobe tcp_bbr`, and the line tcp_bbr in /etc/modules-load.d/drover.conf",
        );
    }
    if lacking.is_empty() {
        return line("# nothing is lacking");
    }
    line("# /etc/sysctl.d/90-drover.conf; then: sysctl --system");
    for it in lacking {
        let value = if it.value.is_empty() { "not told by this kernel" } else { &it.value };
        line(format!("# {} (now: {value})", it.why));
        line(format!("{} = {}", it.name, it.wanted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_on_the_way_tell_what_holds_up_fast_lines_and_slow_ones_that_do_not_matter_do_not() {
        let all_on =
            Offloads { receive_checksums: true, send_checksums: true, segmentation: true, receive: true };
        let nic = |mtu, mbps, offloads| Nic { name: "eth0".into(), mtu, mbps, narrow: None, offloads };
        let found = |nic: Nic| {
            let all = of_nics(&[(nic, "vc:443, esx1".to_string())]);
            all.into_iter().map(|it| (it.severity, it.finding, it.evidence, it.advice)).collect::<Vec<_>>()
        };
        assert_eq!(found(nic(9000, Some(25_000), Some(all_on))), []);
        assert_eq!(found(nic(1500, Some(1000), None)), []);
        assert_eq!(found(nic(1500, None, Some(all_on))), [], "its rate is not known");
        let [(severity, finding, evidence, _)] = &found(nic(1500, Some(25_000), None))[..] else { panic!() };
        assert_eq!(
            (*severity, finding.as_str()),
            (Severity::Low, "eth0 is fast and has packets of 1500 bytes")
        );
        assert_eq!(evidence, "MTU 1500; eth0 at 25000 Mbit/s, on the way to vc:443, esx1");
        let off = Some(Offloads { segmentation: false, receive: false, ..all_on });
        let [(severity, _, evidence, advice)] = &found(nic(9000, Some(10_000), off))[..] else { panic!() };
        assert_eq!(*severity, Severity::Medium);
        assert!(evidence.starts_with("tso (segmentation), gro (receive) off; "), "{evidence}");
        assert!(advice.starts_with("`ethtool -K eth0 tso on gro on`"), "{advice}");
        assert_eq!(found(nic(9000, None, off))[0].0, Severity::Low);
        let narrow = Nic { narrow: Some(("eth1".into(), 1500)), ..nic(9000, Some(25_000), None) };
        assert_eq!(found(narrow)[0].1, "packets of eth0 do not fit eth1 below it");
    }

    #[test]
    fn peers_are_found_with_and_without_ports() {
        let all = ["127.0.0.1", "127.0.0.1:443", "::1", "[::1]:443", "localhost"].map(address_of);
        assert!(all.iter().all(|address| address.is_some_and(|it| it.is_loopback())), "{all:?}");
    }
}
