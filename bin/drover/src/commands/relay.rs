//! `drover relay`: carries connections on, until Ctrl-C.

mod log;
pub mod outlets;
pub mod top;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drover_engine::chain;
use drover_relay::address::{Listen, Pairing, pair};
use drover_relay::control::ControlServer;
use drover_relay::metrics::MetricsServer;
use drover_relay::rule::{Policy, Verdict};
use drover_relay::transparent::{ApplyError, Catch, Lease, Method, Rules, clean};
use drover_relay::{
    Congestion, Destination, Line, Relay, RelayOptions, Snapshot, StartError, Via, any_address, has_ipv6,
};
use drover_types::{Bytes, count};
use serde_json::json;

use crate::cli::{RelayArgs, RelayCommand, Transparent};
use crate::exit::{Exit, Failure};
use crate::signals::{Undo, stop_on_signals};
use crate::sites;
use log::Log;

/// How often to look whether it is time to end.
const LOOK: Duration = Duration::from_millis(50);
/// Ports of root's that Debian's list of services (`/etc/services`) does not name.
const ROOT_PORTS: Range<u16> = 954..989;
/// A policy file is smaller.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Relays, or does what else was asked for.
pub fn run(args: &RelayArgs) -> Result<Exit, Failure> {
    match &args.command {
        Some(RelayCommand::Top(args)) => top::run(args, "relay"),
        None if args.clean => clean_up(),
        None if args.print_rules => print_rules(args),
        None => relay(args),
    }
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, message)
}

fn rules_failure(error: ApplyError) -> Failure {
    let advice = match &error {
        ApplyError::Start { .. } => "install nftables and iproute2",
        ApplyError::Failed { .. } | ApplyError::Number(_) => {
            "be root (CAP_NET_ADMIN), with nftables and TPROXY in the kernel; see docs/how-to/relay.md"
        }
    };
    Failure::new(Exit::Access, chain(&error)).advise(advice)
}

fn clean_up() -> Result<Exit, Failure> {
    let removed = clean().map_err(rules_failure)?;
    removed.iter().for_each(|what| crate::out::line(format_args!("removed: {what}")));
    if removed.is_empty() {
        crate::out::say("nothing was left");
    }
    Ok(Exit::Success)
}

fn print_rules(args: &RelayArgs) -> Result<Exit, Failure> {
    let lease = Lease::take().map_err(rules_failure)?;
    let port = args.port.filter(|port| *port > 0).ok_or_else(|| usage("give a --port that is not 0"))?;
    let catch = caught(args, &lease, Some(port), has_ipv6().then_some(port))?;
    crate::out::print(&catch.told());
    Ok(Exit::Success)
}

fn method(args: &RelayArgs) -> Result<Method, Failure> {
    match args.transparent {
        Some(Transparent::Tproxy) if args.also_local => {
            Err(usage("--also-local works with --transparent redirect only"))
        }
        Some(Transparent::Redirect) if args.keep_source => {
            Err(usage("--keep-source works with --transparent tproxy only"))
        }
        Some(Transparent::Tproxy) => Ok(Method::Tproxy),
        Some(Transparent::Redirect) => Ok(Method::Redirect { local: args.also_local }),
        None => Err(usage("give --transparent")),
    }
}

fn caught(args: &RelayArgs, lease: &Lease, v4: Option<u16>, v6: Option<u16>) -> Result<Catch, Failure> {
    for port in [v4, v6].into_iter().flatten() {
        if args.matches.iter().any(|it| !it.ports.is_empty() && it.holds_port(port)) {
            return Err(
                usage(format!("port {port} is among those to be caught")).advise("give another --port")
            );
        }
    }
    let (method, number) = (method(args)?, lease.number);
    Ok(Catch { method, matches: args.matches.clone(), port_v4: v4, port_v6: v6, number })
}

/// A relay and what belongs to it, in the order in which it goes.
struct Running {
    rules: Option<Rules>,
    undo: Option<Undo>,
    control: Option<ControlServer>,
    metrics: Option<MetricsServer>,
    relay: Relay,
    _lease: Option<Lease>,
}

fn relay(args: &RelayArgs) -> Result<Exit, Failure> {
    if args.exit_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|error| Failure::new(Exit::Internal, format!("--exit-with-parent: {error}")))?;
    }
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let running = start(args)?;
    announce(args, &running);
    let mut log = Log::new(args.json);
    while !stop.is_set() && !running.relay.has_failed() {
        std::thread::sleep(LOOK);
        log.look(&running.relay);
    }
    log.look(&running.relay);
    end(args, running)
}

fn start(args: &RelayArgs) -> Result<Running, Failure> {
    let lease = args.transparent.map(|_| Lease::take().map_err(rules_failure)).transpose()?;
    let via = args.via.as_ref().map(|site| via(args, site, lease.as_ref())).transpose()?;
    let options = options(args, lease.as_ref(), via)?;
    let relay = Relay::start(&options).map_err(start_failure)?;
    // Rules that stay would lead connections to where nobody listens.
    let undo = lease.as_ref().map(|_| Undo::begin());
    let rules = lease.as_ref().map(|lease| make_rules(args, lease, &options, &relay)).transpose()?;
    let metrics = outlets::metrics(args.metrics, &relay.teller())?;
    let control = outlets::control(args.control.as_deref(), "relay", relay.teller())?;
    Ok(Running { rules, undo, control, metrics, relay, _lease: lease })
}

fn start_failure(error: StartError) -> Failure {
    let advice = match &error {
        StartError::Listen { .. } => {
            "choose another address with --listen or --port; ports below 1024 are root's"
        }
        StartError::Circle { .. } => "give --to the target's own address, or --listen another port",
        StartError::Congestion { .. } => "load it (`modprobe tcp_bbr`), or give --congestion host",
        StartError::Kernel(_) => "see docs/how-to/relay.md for what is needed",
    };
    usage(chain(&error)).advise(advice)
}

fn make_rules(
    args: &RelayArgs,
    lease: &Lease,
    options: &RelayOptions,
    relay: &Relay,
) -> Result<Rules, Failure> {
    let port = |is_ipv4| caught_port(&options.lines, relay.addresses(), is_ipv4);
    let catch = caught(args, lease, port(true), port(false))?;
    Rules::make(catch).map_err(rules_failure)
}

/// The port that caught connections of a family come to. `addresses` are what the lines listen on.
fn caught_port(lines: &[Line], addresses: &[SocketAddr], is_ipv4: bool) -> Option<u16> {
    let is_caught = |to: &Destination| match to {
        Destination::Redirected | Destination::Intercepted { .. } => true,
        Destination::Fixed { .. } | Destination::Far { .. } => false,
    };
    let caught = lines.iter().zip(addresses).filter(|(line, _)| is_caught(&line.to));
    caught.map(|(_, address)| address).find(|it| it.is_ipv4() == is_ipv4).map(SocketAddr::port)
}

fn options(args: &RelayArgs, lease: Option<&Lease>, via: Option<Via>) -> Result<RelayOptions, Failure> {
    let policy = policy(args)?;
    let mut lines = fixed_lines(args, &policy)?;
    lines.extend(caught_lines(args)?);
    if lines.is_empty() {
        return Err(usage("there is nothing to relay").advise(
            "give --listen and --to, or --transparent and --match; `drover relay --help` tells more",
        ));
    }
    let usual = RelayOptions::new(lines);
    Ok(RelayOptions {
        policy,
        via,
        congestion: args.congestion.as_deref().map_or(Congestion::BestHere, congestion),
        congestion_back: congestion(&args.congestion_back),
        connections_max: args.connections.max(1),
        connect_timeout: Duration::from_secs(args.connect_timeout.max(1)),
        workers: args.workers.unwrap_or(usual.workers).max(1),
        pipes_bytes_max: usize::try_from(args.pipes.0).unwrap_or(usize::MAX),
        mark: mark(args, lease),
        redirect_ports: lease.and_then(|lease| root_ports(args, lease.number)),
        ..usual
    })
}

/// Ports that only root can take, so that nobody gets the connections that a killed relay's rules still redirect. Those that are
/// to be caught are not among them. Relays begin at different ones. `None` where a port was named, be it 0.
fn root_ports(args: &RelayArgs, number: u32) -> Option<Vec<u16>> {
    if args.port.is_some() {
        return None;
    }
    let is_caught = |port: u16| args.matches.iter().any(|it| !it.ports.is_empty() && it.holds_port(port));
    let first = number as usize % ROOT_PORTS.len();
    let ports = ROOT_PORTS.cycle().skip(first).take(ROOT_PORTS.len());
    Some(ports.filter(|port| !is_caught(*port)).collect())
}

/// What packets to targets and to the agent carry, so that the rules leave them alone.
fn mark(args: &RelayArgs, lease: Option<&Lease>) -> Option<u32> {
    lease.map(|lease| lease.mark()).filter(|_| args.also_local)
}

fn via(args: &RelayArgs, site: &str, lease: Option<&Lease>) -> Result<Via, Failure> {
    if args.keep_source {
        return Err(usage(
            "--keep-source does not go with --via: the other site's agent connects to the target",
        ));
    }
    let rate = args.rate_limit.map(|rate| rate.0);
    let set = || std::env::var_os("DROVER_STATE").filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = args.state.clone().or_else(set);
    let asked = sites::Asked { mark: mark(args, lease), ..sites::Asked::default() };
    let dial = sites::dialler(state.as_deref(), site, rate, asked)?;
    let packs = !args.no_link_compression;
    Ok(Via {
        site: site.to_string(),
        dial: Arc::new(move || Ok(dial()?)),
        is_shared: false,
        packs,
        takes_over: false,
    })
}

fn congestion(name: &str) -> Congestion {
    if name == "host" { Congestion::Host } else { Congestion::Named(name.to_string()) }
}

fn fixed_lines(args: &RelayArgs, policy: &Policy) -> Result<Vec<Line>, Failure> {
    if args.listen.is_empty() {
        return Ok(Vec::new());
    }
    // On a host without IPv6, "all addresses" are those of IPv4.
    let here = |listen: &Listen| {
        let mut listen = listen.clone();
        if listen.addresses.len() > 1 && !has_ipv6() {
            listen.addresses.retain(|address| address.is_ipv4());
        }
        listen
    };
    let listens: Vec<Listen> = args.listen.iter().map(here).collect();
    let pairings = pair(&listens, &args.to).map_err(|error| usage(error.to_string()))?;
    // What goes over a link need not be known here, but for those who go past it.
    let goes_past = policy.rules.iter().any(|rule| rule.verdict == Verdict::Direct);
    let line = |pairing: &Pairing| {
        let line = match args.via {
            Some(_) => Line::far(pairing, goes_past),
            None => Line::resolve(pairing),
        };
        line.map_err(|error| {
            Failure::new(Exit::Connection, format!("looking up {}: {error}", pairing.host))
                .advise("check the name, or give an address")
        })
    };
    pairings.iter().map(line).collect()
}

fn caught_lines(args: &RelayArgs) -> Result<Vec<Line>, Failure> {
    if args.transparent.is_none() {
        return Ok(Vec::new());
    }
    let to = match method(args)? {
        Method::Redirect { .. } => Destination::Redirected,
        Method::Tproxy => Destination::Intercepted { keep_source: args.keep_source },
    };
    let port = args.port.unwrap_or(0);
    let line = |is_ipv4| Line { listen: SocketAddr::new(any_address(is_ipv4), port), to: to.clone() };
    Ok(std::iter::once(line(true)).chain(has_ipv6().then(|| line(false))).collect())
}

fn policy(args: &RelayArgs) -> Result<Policy, Failure> {
    let mut policy = Policy { rules: args.rules.clone() };
    if let Some(path) = &args.policy {
        let failed = |why: String| usage(format!("--policy {}: {why}", path.display()));
        let text =
            crate::files::read_text(path, POLICY_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
        let rules = Policy::parse(&text).map_err(failed)?.rules;
        if rules.is_empty() && policy.rules.is_empty() {
            return Err(
                failed("it has no rule, which would let all pass".to_string()).advise("write 'allow'")
            );
        }
        policy.rules.extend(rules);
    }
    Ok(policy)
}

/// Says what is listened on: the addresses alone on standard output, the rest on the other.
fn announce(args: &RelayArgs, running: &Running) {
    let relay = &running.relay;
    let metrics = running.metrics.as_ref().map(outlets::url);
    let control = running.control.as_ref().map(|it| it.path().display().to_string());
    if args.json {
        crate::out::json(json!({
            "event": "listening", "addresses": relay.addresses(), "congestion": relay.congestion(),
            "connections_max": relay.connections_max(), "metrics": metrics, "control": control,
            "notes": relay.notes(), "via": args.via,
        }));
        return;
    }
    match &args.via {
        Some(site) => crate::out::say(format_args!("relaying over the link to {site}, until Ctrl-C")),
        None => crate::out::say(format_args!(
            "relaying with {} towards targets, until Ctrl-C",
            relay.congestion()
        )),
    }
    relay.notes().iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
    metrics.iter().for_each(|url| crate::out::say(format_args!("metrics: {url}")));
    control.iter().for_each(|path| crate::out::say(format_args!("control: {path} (`drover relay top`)")));
    relay.addresses().iter().for_each(crate::out::line);
}

fn end(args: &RelayArgs, running: Running) -> Result<Exit, Failure> {
    let Running { rules, undo, control, metrics, relay, _lease } = running;
    // New connections go their own way again, before nobody takes them any more.
    let removed = rules.map_or(Ok(()), Rules::remove);
    drop(undo);
    let told = relay.snapshot(0);
    drop((control, metrics));
    let stopped = relay.stop(Duration::from_secs(args.drain));
    summary(args, &told);
    removed.map_err(rules_failure)?;
    stopped.map_err(|error| Failure::new(Exit::Internal, format!("the relay ended by itself: {error}")))?;
    Ok(Exit::Success)
}

fn summary(args: &RelayArgs, told: &Snapshot) {
    if args.json {
        crate::out::json(json!({ "event": "ended", "live": told.live, "totals": told.totals }));
        return;
    }
    let totals = &told.totals;
    let refused: u64 = totals.refused.values().sum();
    crate::out::say(format_args!(
        "{}, {refused} of them refused, {} still open; {} to targets, {} back",
        count(totals.accepted as usize, "connection"),
        told.live,
        Bytes(totals.up_bytes),
        Bytes(totals.down_bytes)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_lead_to_the_port_of_what_is_caught() {
        let address = |port| SocketAddr::from(([0, 0, 0, 0], port));
        let far = Destination::Far { to: "10.2.0.7:9000".to_string(), addresses: [].into() };
        let fixed = Destination::Fixed { addresses: [address(1)].into() };
        for caught in [Destination::Redirected, Destination::Intercepted { keep_source: false }] {
            let lines = [&far, &fixed, &caught].map(|to| Line { listen: address(0), to: to.clone() });
            let addresses = [9000, 9001, 4000].map(address);
            assert_eq!(caught_port(&lines, &addresses, true), Some(4000));
            assert_eq!(caught_port(&lines, &addresses, false), None);
        }
    }
}
