//! The script that gives network cards of Windows their addresses when it boots for the first time.
//!
//! Windows takes a card of another model for another card, and binds addresses to the one that it had. The converter's own `--mac` gives a
//! card one address, waits without end for a card that `netkvm` does not drive, and knows no routes. So its work is left to this script,
//! which runs as any other of the first boot.
//!
//! ```text
//! find MAC     index of the card, by WMI; waits for Windows to set the card up, for all cards together as long as there is hope
//! card N       netsh, by that index: IPv4 (which takes DHCP and earlier addresses away), IPv6, name servers, routes
//! ```
//!
//! It is a batch file, as the first boot of Windows runs no others, in words that Windows 7 knows and 2025 still does. What it is made of are
//! numbers and addresses, which have no letter that means something to `cmd`. Each step can be done again. What it says is in the log of the
//! first boot.
//!
//! Source: `netsh interface ipv4`, `ipv6` of Microsoft's documentation; libguestfs-common, `mlcustomize/firstboot.ml`. No licensed Windows
//! ran it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use drover_types::guest::{CardSettings, Route};

use super::source::is_mac;

/// The script, with line feeds alone: the converter makes the line ends of Windows.
pub(super) fn script(cards: &[CardSettings]) -> String {
    let cards = || cards.iter().filter(|card| is_mac(&card.mac)).enumerate();
    let mut text = HEAD.to_string();
    for (index, card) in cards() {
        let mac = card.mac.to_ascii_uppercase();
        let _ = writeln!(text, "call :find {mac}\nif defined CARD call :card{index}");
    }
    text += END;
    for (index, card) in cards() {
        let _ = writeln!(text, "\n:card{index}");
        let steps = [of_ipv4(card), of_ipv6(card), name_servers(card), routes(card)].concat();
        steps.iter().for_each(|step| text.extend([step, "\n"]));
        text += "exit /b 0\n";
    }
    text + COMMON
}

/// `set` replaces all that the card has.
fn of_ipv4(card: &CardSettings) -> Vec<String> {
    let mut steps = Vec::new();
    let mut gateways = card.gateways.iter().filter(|it| it.is_ipv4());
    for (ip, bits) in card.addresses.iter().filter(|(ip, _)| ip.is_ipv4()) {
        let address = format!("address={ip} mask={}", mask(*bits));
        steps.push(match steps.is_empty() {
            true => {
                let gateway = gateways.next().map_or("gateway=none".into(), gateway);
                format!("call :run ipv4 set address name=%CARD% source=static {address} {gateway}")
            }
            false => format!("call :run ipv4 add address name=%CARD% {address}"),
        });
    }
    if !steps.is_empty() {
        steps.extend(gateways.map(|it| format!("call :run ipv4 add address name=%CARD% {}", gateway(it))));
    }
    steps
}

fn gateway(ip: &IpAddr) -> String {
    // Windows decides what it costs.
    format!("gateway={ip} gwmetric=0")
}

fn mask(bits: u8) -> Ipv4Addr {
    u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0).into()
}

/// One that is there already is not added, so it is removed before.
fn of_ipv6(card: &CardSettings) -> Vec<String> {
    let addresses = card.addresses.iter().filter(|(ip, _)| ip.is_ipv6());
    let mut steps: Vec<String> = addresses
        .flat_map(|(ip, bits)| {
            let add = format!("call :run ipv6 add address interface=%CARD% address={ip}/{bits}");
            [format!("netsh interface ipv6 delete address interface=%CARD% address={ip} {QUIET}"), add]
        })
        .collect();
    let gateways = card.gateways.iter().filter(|ip| ip.is_ipv6());
    steps.extend(gateways.flat_map(|ip| again("ipv6", "::/0", *ip, None)));
    steps
}

fn name_servers(card: &CardSettings) -> Vec<String> {
    let mut steps = Vec::new();
    for (kind, is_v4) in [("ipv4", true), ("ipv6", false)] {
        for (index, ip) in card.dns.iter().filter(|ip| ip.is_ipv4() == is_v4).enumerate() {
            steps.push(match index {
                0 => format!(
                    "call :run {kind} set dnsservers name=%CARD% source=static address={ip} register=primary validate=no"
                ),
                _ => format!(
                    "call :run {kind} add dnsservers name=%CARD% address={ip} index={} validate=no",
                    index + 1
                ),
            });
        }
    }
    steps
}

fn routes(card: &CardSettings) -> Vec<String> {
    let route = |it: &Route| {
        let kind = if it.network.is_ipv4() { "ipv4" } else { "ipv6" };
        again(kind, &format!("{}/{}", it.network, it.prefix), it.gateway, it.metric)
    };
    card.routes.iter().flat_map(route).collect()
}

fn again(kind: &str, prefix: &str, gateway: IpAddr, metric: Option<u32>) -> [String; 2] {
    let route = format!("route prefix={prefix} interface=%CARD% nexthop={gateway}");
    let metric = metric.map(|it| format!(" metric={it}")).unwrap_or_default();
    [
        format!("netsh interface {kind} delete {route} {QUIET}"),
        format!("call :run {kind} add {route}{metric}"),
    ]
}

const QUIET: &str = ">nul 2>&1";

const HEAD: &str = "\
@echo off
rem Written by drover: network cards get the addresses that they had.
setlocal
set /a WAITS=60
";

/// Later versions of the service take 249 for a wish to come again, and restart Windows for any other number than 250.
const END: &str = "exit /b 250\n";

const COMMON: &str = r#"
:find
set "CARD="
for /f %%i in ('powershell -NoProfile -NonInteractive -Command "(Get-WmiObject Win32_NetworkAdapter | Where-Object { $_.MACAddress -eq '%1' -and $_.NetConnectionID } | Select-Object -First 1).InterfaceIndex" ^<nul') do set "CARD=%%i"
if defined CARD exit /b 0
if %WAITS% leq 0 (
  echo drover: no card %1 is there, so its addresses are left out
  exit /b 0
)
set /a WAITS-=1
ping -n 6 127.0.0.1 >nul
goto find

:run
set /a TRIES=3
:try
echo netsh interface %*
netsh interface %*
if not errorlevel 1 exit /b 0
set /a TRIES-=1
if %TRIES% leq 0 (
  echo drover: that failed
  exit /b 0
)
ping -n 6 127.0.0.1 >nul
goto try
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn card(mac: &str, addresses: &[(&str, u8)], gateways: &[&str], dns: &[&str]) -> CardSettings {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        CardSettings {
            mac: mac.into(),
            addresses: addresses.iter().map(|(ip, bits)| (ip.parse().unwrap(), *bits)).collect(),
            gateways: ips(gateways),
            dns: ips(dns),
            routes: Vec::new(),
        }
    }

    fn steps(script: &str) -> Vec<&str> {
        let steps = script.split_once(END).unwrap().1.split_once("\n:find").unwrap().0;
        steps.lines().filter(|line| !line.is_empty() && *line != "exit /b 0").collect()
    }

    #[test]
    fn a_card_gets_all_its_addresses_gateways_name_servers_and_routes() {
        let route = Route {
            network: "203.0.113.0".parse().unwrap(),
            prefix: 24,
            gateway: "192.0.2.254".parse().unwrap(),
            metric: Some(5),
        };
        let addresses = [("192.0.2.7", 24), ("192.0.2.8", 25), ("2001:db8::7", 64)];
        let gateways = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
        let dns = ["192.0.2.53", "192.0.2.54", "2001:db8::53"];
        let full =
            CardSettings { routes: vec![route], ..card("00:50:56:aa:00:01", &addresses, &gateways, &dns) };
        let bare = card("00:50:56:aa:00:02", &[("198.51.100.7", 32)], &[], &[]);
        let script = script(&[full, bare]);
        let finds = "call :find 00:50:56:AA:00:01\nif defined CARD call :card0\n\
                     call :find 00:50:56:AA:00:02\nif defined CARD call :card1\nexit /b 250\n";
        assert!(script.starts_with(&format!("{HEAD}{finds}")) && script.ends_with(COMMON), "{script}");
        assert_eq!(
            steps(&script),
            [
                ":card0",
                "call :run ipv4 set address name=%CARD% source=static address=192.0.2.7 mask=255.255.255.0 gateway=192.0.2.1 gwmetric=0",
                "call :run ipv4 add address name=%CARD% address=192.0.2.8 mask=255.255.255.128",
                "call :run ipv4 add address name=%CARD% gateway=192.0.2.2 gwmetric=0",
                "netsh interface ipv6 delete address interface=%CARD% address=2001:db8::7 >nul 2>&1",
                "call :run ipv6 add address interface=%CARD% address=2001:db8::7/64",
                "netsh interface ipv6 delete route prefix=::/0 interface=%CARD% nexthop=2001:db8::1 >nul 2>&1",
                "call :run ipv6 add route prefix=::/0 interface=%CARD% nexthop=2001:db8::1",
                "call :run ipv4 set dnsservers name=%CARD% source=static address=192.0.2.53 register=primary validate=no",
                "call :run ipv4 add dnsservers name=%CARD% address=192.0.2.54 index=2 validate=no",
                "call :run ipv6 set dnsservers name=%CARD% source=static address=2001:db8::53 register=primary validate=no",
                "netsh interface ipv4 delete route prefix=203.0.113.0/24 interface=%CARD% nexthop=192.0.2.254 >nul 2>&1",
                "call :run ipv4 add route prefix=203.0.113.0/24 interface=%CARD% nexthop=192.0.2.254 metric=5",
                ":card1",
                "call :run ipv4 set address name=%CARD% source=static address=198.51.100.7 mask=255.255.255.255 gateway=none",
            ]
        );
        assert!(
            !script.contains('\r') && !script.contains('!'),
            "the converter makes line ends; `!` is a variable"
        );
    }

    #[test]
    fn a_card_of_ipv6_alone_keeps_what_it_asks_for_in_ipv4() {
        let script = script(&[card("00:50:56:aa:00:01", &[("2001:db8::7", 64)], &["192.0.2.1"], &[])]);
        assert!(steps(&script).iter().skip(1).all(|step| step.contains(" ipv6 ")), "{script}");
    }

    #[test]
    fn a_mac_address_that_is_none_does_not_reach_the_script() {
        for mac in ["00:50:56:aa:00:01 & shutdown", "%PATH%", "", "00:50:56:aa:00:0\""] {
            let script = script(&[card(mac, &[("192.0.2.7", 24)], &[], &[])]);
            assert_eq!(script, format!("{HEAD}{END}{COMMON}"), "{mac:?}");
        }
        assert_eq!(
            [mask(0), mask(1), mask(32)].map(|it| it.to_string()),
            ["0.0.0.0", "128.0.0.0", "255.255.255.255"]
        );
    }
}
