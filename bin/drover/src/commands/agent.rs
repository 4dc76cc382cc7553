//! `drover agent`: the daemon, and who is trusted.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{IsTerminal, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::limits::OfPeers;
use drover_agent::trust::{
    DayLimit, Fingerprint, Peer, Peers, Seed, Token, Tokens, pair_with, server_config,
};
use drover_agent::{
    Agent, Connect, Daemon, Event, HotAdded, Machines, Places, Route, VolumeGroup, dial, now, with_port,
};
use drover_engine::chain;
use drover_landing::{PoolVolumes, Qemu};
use drover_link::{Applicant, Channel, LinkError, LinkErrorKind, ListenOptions, Listener, RdmaMode};
use drover_log::log;
use drover_qemu::daemon::{self as libvirt, PoolKind};
use drover_relay::control::ControlServer;
use drover_relay::metrics::MetricsServer;
use drover_relay::{Allowed, ConnectError, Form, Ports, announcement};
use drover_types::{Bytes, count};
use serde_json::json;

use super::relay::outlets;
use crate::cli::agent::{AgentLimitArgs, AgentListArgs, AgentNamedArgs, AgentPairArgs, AgentRunArgs, Named};
use crate::exit::{Exit, Failure, link_failure};
use crate::out::Throttle;
use crate::signals::stop_on_signals;
use crate::sites::{self, unusable};
use crate::state::state_folder;

/// How often to look for revoked peers.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// How often to look whether it is time to end.
const LOOK: Duration = Duration::from_millis(50);

/// What sessions may take of this host's memory, and what there must be for them to be of use.
const MEMORY: u64 = 4 << 30;
const MEMORY_MIN: u64 = 64 << 20;

/// A token is not longer.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The variable that may hold a token.
const TOKEN_VARIABLE: &str = "DROVER_PAIRING_TOKEN";

/// Serves until it is told to stop.
pub fn run(args: &AgentRunArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let folder = sites::folder(args.state.as_deref())?;
    if let Some(seed) = &args.seed {
        Seed::sow(seed, &folder).map_err(|error| unusable(&error))?;
    }
    let identity = sites::identity(&folder)?;
    let own_name = args.name.clone().unwrap_or_else(sites::own_name);
    let places = Arc::new(places(args)?);
    let machines = Machines::new(
        places.clone(),
        Box::new(Qemu::new(&state_folder(args.state.as_deref()))),
        args.allow_start,
    );
    let connector = Arc::new(Connector::start(args)?);
    let agent = Agent::new(places).with_machines(machines).with_connect(connector.clone());
    let agent = if args.no_link_compression { agent.without_packing() } else { agent };
    // Guests come to unix sockets: who may bring them may see by which way.
    let takes_guests = args.allow_connect.iter().any(Allowed::is_of_sockets);
    let agent = if takes_guests { agent.with_listening() } else { agent };
    let peers = Peers::new(folder.clone());
    let daemon = Daemon::new(agent, &own_name, Tokens::new(folder.clone()), peers.clone());
    let tls = server_config(&identity, |_| Ok(()))
        .map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let rates = OfPeers::new(folder, args.rate_limit.map(|rate| rate.0), |words| crate::out::say(words));
    let judge = daemon.clone();
    let options = ListenOptions {
        // TLS proves the key; who it belongs to is judged here, where the other side can be told why not.
        admit: Arc::new(move |applicant: &Applicant<'_>| judge.admit(applicant.fingerprint.into())),
        name: own_name,
        announce: if args.no_link_compression { Vec::new() } else { announcement() },
        rate_limit_of: Arc::new(move |peer| rates.of(Fingerprint(peer.fingerprint))),
        bytes_max: memory(args.memory)?,
        rdma: args.rdma,
        ..ListenOptions::new(tls, addresses(&args.listen)?)
    };
    let listener = Listener::bind(&options).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let listener = Arc::new(listener);
    let outlets = Outlets::open(args, &connector.ports)?;
    announce(args, &listener, &identity.fingerprint().to_string(), (&connector.ports, &outlets));
    let (accepting, serving, json) = (listener.clone(), daemon.clone(), args.json);
    let accept = std::thread::Builder::new().spawn(move || {
        while let Ok(session) = accepting.accept() {
            serving.take(session, move |event| tell(json, &event));
        }
    });
    let accept = accept.map_err(|error| {
        Failure::new(Exit::Internal, format!("starting a thread for the agent: {error}"))
            .advise("let this user have more threads (`ulimit -u`)")
    })?;
    let mut looked = std::time::Instant::now();
    while !stop.is_set() {
        std::thread::sleep(LOOK);
        if looked.elapsed() >= LOOK_AFTER {
            daemon.look_after(|event| tell(json, &event));
            connector.tell_broken();
            looked = std::time::Instant::now();
        }
    }
    listener.close();
    daemon.stop();
    // It ends with the listener; a panic of it has been printed.
    let _ = accept.join();
    Ok(Exit::Success)
}

/// What sessions may take of this host's memory.
fn memory(asked: Option<Bytes>) -> Result<u64, Failure> {
    match asked {
        Some(Bytes(bytes)) if bytes < MEMORY_MIN => {
            Err(Failure::new(Exit::Usage, format!("--memory {}: it takes 64MiB at least", Bytes(bytes))))
        }
        Some(Bytes(bytes)) => Ok(bytes),
        None => {
            let half = || -> Option<u64> {
                let text = std::fs::read_to_string("/proc/meminfo").ok()?;
                let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
                Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024 / 2)
            };
            Ok(half().map_or(MEMORY, |half| half.clamp(MEMORY_MIN, MEMORY)))
        }
    }
}

/// To whom it tells of the connections of relays. Kept until it ends.
struct Outlets {
    metrics: Option<MetricsServer>,
    control: Option<ControlServer>,
}

impl Outlets {
    fn open(args: &AgentRunArgs, ports: &Ports) -> Result<Outlets, Failure> {
        let metrics = outlets::metrics(args.metrics, &ports.teller())?;
        // Who lets nobody connect has nothing to show.
        let is_wanted = args.control.is_some() || !args.allow_connect.is_empty();
        let control = || outlets::control(args.control.as_deref(), "agent", ports.teller());
        let control = if is_wanted { control()? } else { None };
        Ok(Outlets { metrics, control })
    }
}

/// How long an address of a port behind the agent may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects relays of peers to what is allowed.
struct Connector {
    ports: Ports,
    throttle: Throttle,
    json: bool,
}

impl Connector {
    fn start(args: &AgentRunArgs) -> Result<Connector, Failure> {
        let ports = Ports::start(args.allow_connect.clone(), CONNECT_TIMEOUT, args.connections.max(1))
            .map_err(|error| Failure::new(Exit::Internal, format!("starting to connect: {error}")))?;
        Ok(Connector { ports, throttle: Throttle::new(), json: args.json })
    }

    /// Tells of streams that ended because of what peers sent.
    fn tell_broken(&self) {
        for it in self.ports.take_broken() {
            match self.json {
                true => crate::out::json(json!({"event": "broken", "to": it.target, "why": it.why})),
                false => crate::out::say(format_args!("a stream to {} was reset: {}", it.target, it.why)),
            }
        }
    }
}

impl Connect for Connector {
    fn connect(&self, peer: &drover_link::Peer, (to, in_pieces): (&str, bool), channel: Channel) {
        let form = if in_pieces { Form::Pieces } else { Form::Plain };
        let Err(error) = self.ports.connect(peer, (to, form), channel) else { return };
        let peer = &peer.name;
        let (passes, left_out) = self.throttle.pass();
        if left_out > 0 && !self.json {
            crate::out::say(format_args!(
                "and {} refused in a second",
                count(left_out as usize, "more connection")
            ));
        }
        match (passes, self.json) {
            (false, _) => {}
            (true, true) => crate::out::json(
                json!({"event": "not-connected", "about": peer, "to": to, "why": chain(&error)}),
            ),
            (true, false) => crate::out::say(not_connected(peer, to, &error)),
        }
    }
}

/// A peer that looks whether a place is free, as a live move does, asks as one that wants to connect.
fn not_connected(peer: &str, to: &str, error: &ConnectError) -> String {
    match error.is_free() {
        true => format!("nothing listens at {to}, which {peer} asked for"),
        false => format!("{peer} was not connected to {to}: {}", chain(error)),
    }
}

fn places(args: &AgentRunArgs) -> Result<Places, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let mut pools: BTreeMap<String, PathBuf> = BTreeMap::new();
    for Named { name, value } in &args.pool {
        if !Path::new(value).is_dir() {
            let wrong = usage(format!("pool {name}: {value} is no folder"));
            return Err(wrong.advise("make the folder first; a pool is never made by an agent"));
        }
        pools.insert(name.clone(), PathBuf::from(value));
    }
    let mut groups = BTreeMap::new();
    for name in &args.libvirt_pool {
        match libvirt_pool(name)? {
            LibvirtPool::Folder(folder) => drop(pools.insert(name.clone(), folder)),
            LibvirtPool::Group(group) => drop(groups.insert(name.clone(), group)),
        }
    }
    let devices = args.device.iter().map(|it| (it.name.clone(), PathBuf::from(&it.value))).collect();
    let mut exports = BTreeMap::new();
    for Named { name, value } in &args.nbd {
        let uri = value.parse().map_err(|error: drover_nbd::UriError| usage(format!("{name}: {error}")))?;
        exports.insert(name.clone(), uri);
    }
    let state = state_folder(args.state.as_deref());
    let hot_added = args.allow_hot_added.as_deref().map(HotAdded::new);
    let keep_leaves = !args.no_leaves;
    Ok(Places { pools, groups, devices, exports, hot_added, state, keep_leaves, ..Places::default() })
}

/// What a pool of this host's libvirt is.
enum LibvirtPool {
    Folder(PathBuf),
    Group(VolumeGroup),
}

/// A pool of libvirt, as `virsh` tells it.
fn libvirt_pool(name: &str) -> Result<LibvirtPool, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, format!("libvirt pool {name}: {text}"));
    let found = libvirt::Daemon::of_this_host().and_then(|daemon| Ok((daemon.pool(name)?, daemon)));
    let (pool, daemon) = found.map_err(|error| usage(error.chain()))?;
    let pool = pool.ok_or_else(|| usage(format!("{} has none of that name", daemon.uri())))?;
    match pool.kind {
        PoolKind::Logical if pool.path.parent() == Some(Path::new("/dev")) => {
            let volumes = PoolVolumes::new(daemon, name);
            Ok(LibvirtPool::Group(VolumeGroup::new(pool.path, volumes)))
        }
        PoolKind::Logical => Err(usage(format!(
            "its volumes lie in {}, which is no folder of a volume group",
            pool.path.display()
        ))),
        PoolKind::Luns => Err(usage("its volumes are LUNs, which no agent serves".to_string())),
        _ if pool.path.is_dir() => Ok(LibvirtPool::Folder(pool.path)),
        _ => Err(usage("it has no folder on this host".to_string())),
    }
}

fn addresses(listen: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    if listen.is_empty() {
        let any = if drover_relay::has_ipv6() { "[::]" } else { "0.0.0.0" };
        return addresses(&[any.to_string()]);
    }
    let mut found = Vec::new();
    for text in listen {
        let some = with_port(text)
            .to_socket_addrs()
            .map_err(|error| Failure::new(Exit::Usage, format!("--listen {text}: {error}")))?;
        found.extend(some);
    }
    Ok(found)
}

fn announce(args: &AgentRunArgs, listener: &Listener, key: &str, (ports, outlets): (&Ports, &Outlets)) {
    let addresses: Vec<String> = listener.addresses().iter().map(ToString::to_string).collect();
    let metrics = outlets.metrics.as_ref().map(outlets::url);
    let control = outlets.control.as_ref().map(|it| it.path().display().to_string());
    let rdma = listener.rdma().map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
    log!("agent", "RDMA: {rdma:?}");
    if args.json {
        crate::out::json(json!({
            "event": "listening", "addresses": addresses, "key": key,
            "connections_max": ports.connections_max(), "notes": ports.notes(),
            "metrics": metrics, "control": control, "rdma": rdma.as_ref().ok(), "rdma_why_not": rdma.as_ref().err(),
        }));
        return;
    }
    // Who lets nobody connect misses nothing.
    let notes = ports.notes().iter().filter(|_| !args.allow_connect.is_empty());
    notes.for_each(|note| crate::out::say(format_args!("note: {note}")));
    metrics.iter().for_each(|url| crate::out::say(format_args!("metrics: {url}")));
    control.iter().for_each(|path| crate::out::say(format_args!("control: {path} (`drover agent top`)")));
    rdma.iter().for_each(|all| crate::out::say(format_args!("also over RDMA at {}", all.join(", "))));
    crate::out::say(format_args!("listening at {}, key {key}, until Ctrl-C", addresses.join(", ")));
}

fn tell(json: bool, event: &Event) {
    let (name, about) = match event {
        Event::Came(peer) => ("came", peer.clone()),
        Event::Went(peer) => ("went", peer.clone()),
        Event::Paired(peer) => ("paired", peer.clone()),
        Event::NotPaired => ("not-paired", String::new()),
        Event::Ended(key) => ("ended", key.to_string()),
        Event::TooMany => ("too-many", String::new()),
        Event::State(why) => ("state", why.clone()),
    };
    if json {
        crate::out::json(json!({"event": name, "about": about}));
        return;
    }
    crate::out::say(match event {
        Event::Came(peer) => format!("{peer} is here"),
        Event::Went(peer) => format!("{peer} is gone"),
        Event::Paired(peer) => format!("paired with {peer}"),
        Event::NotPaired => "a stranger tried to pair in vain".to_string(),
        Event::Ended(key) => format!("ended the session of key {key}: it is no peer's any more"),
        Event::TooMany => "a session was sent away: there are too many".to_string(),
        Event::State(why) => format!("error: {why}"),
    });
}

/// Makes a token, or shows one to an agent.
pub fn pair(args: &AgentPairArgs) -> Result<Exit, Failure> {
    if args.new_token { new_token(args) } else { pair_by_token(args) }
}

fn new_token(args: &AgentPairArgs) -> Result<Exit, Failure> {
    if let Some(name) = &args.name {
        drover_agent::trust::check_name(name)
            .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    }
    let folder = sites::folder(args.state.as_deref())?;
    let identity = sites::identity(&folder)?;
    let issued = Tokens::new(folder)
        .issue(identity.fingerprint(), args.name.clone(), now(), args.valid.0)
        .map_err(|error| unusable(&error))?;
    let text = issued.token.text();
    keep_to_owner(&std::io::stdout());
    if args.json {
        crate::out::json(
            json!({"token": text.reveal(), "until": issued.until, "key": identity.fingerprint()}),
        );
    } else {
        crate::out::line(text.reveal());
        crate::out::say(format_args!(
            "it counts once, for {} s, while `drover agent run` listens here; on the other host:\n  \
             drover agent pair THIS-HOST --name NAME --token-file FILE",
            args.valid.0
        ));
    }
    Ok(Exit::Success)
}

/// A secret that is written to a file (`--new-token >FILE`) is for its owner only, whatever the shell made it.
fn keep_to_owner(out: &impl AsFd) {
    let Ok(file) = out.as_fd().try_clone_to_owned().map(File::from) else { return };
    let Ok(meta) = file.metadata() else { return };
    if !meta.is_file() {
        return;
    }
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 && file.set_permissions(Permissions::from_mode(mode & 0o700)).is_err() {
        crate::out::say("warning: the token is written to a file that others may read");
    }
}

/// Secrets are never arguments: anyone on this host can read those.
fn token(args: &AgentPairArgs) -> Result<Token, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let mut text = String::new();
    if let Some(path) = &args.token_file {
        let read =
            std::fs::File::open(path).and_then(|file| file.take(TOKEN_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| usage(format!("token file {}: {error}", path.display())))?;
    } else if let Some(found) = std::env::var_os(TOKEN_VARIABLE).filter(|text| !text.is_empty()) {
        text = found.to_string_lossy().into_owned();
    } else {
        if std::io::stdin().is_terminal() {
            crate::out::ask("token: ");
            let read = std::io::stdin().read_line(&mut text);
            read.map_err(|error| usage(format!("standard input: {error}")))?;
        } else {
            let read = std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut text);
            read.map_err(|error| usage(format!("standard input: {error}")))?;
        }
    }
    text.parse().map_err(|error: drover_agent::trust::TokenError| {
        usage(error.to_string()).advise(
            "make one with `drover agent pair --new-token` at the other host, and give it by --token-file",
        )
    })
}

fn pair_by_token(args: &AgentPairArgs) -> Result<Exit, Failure> {
    let token = token(args)?;
    let folder = sites::folder(args.state.as_deref())?;
    let identity = sites::identity(&folder)?;
    let own_name = args.own_name.clone().unwrap_or_else(sites::own_name);
    let addresses: Vec<String> = args.addresses.iter().map(|address| with_port(address)).collect();
    let sources = args.source.clone();
    let route = Route {
        addresses: addresses.clone(),
        sources: sources.clone(),
        own_name: own_name.clone(),
        rdma: args.rdma,
        ..Route::default()
    };
    let session = dial(&identity, token.agent, &route).map_err(|error| not_paired(&error))?;
    let rdma = args.rdma;
    let peer = |name| Peer { sources, rdma, ..Peer::new(name, token.agent, addresses, now()) };
    let paired = pair_with(&session, &token, &own_name, args.name.as_deref(), &Peers::new(folder), peer);
    session.close();
    let paired = paired.map_err(|error| Failure::new(Exit::Access, chain(&error)))?;
    if args.json {
        crate::out::json(json!({"name": paired.name, "key": paired.key, "called": paired.called}));
    } else {
        crate::out::say(format_args!(
            "paired: the agent is {} here, and this host is {} there; try `drover agent info {}`",
            paired.name, paired.called, paired.name
        ));
    }
    Ok(Exit::Success)
}

/// What a link to an agent that is no peer yet failed of.
fn not_paired(error: &LinkError) -> Failure {
    let failure = link_failure(error);
    match error.kind {
        LinkErrorKind::Refused => {
            failure.advise(
                "make a new token at the agent's host, as the agent's user and with its --state (another state folder is another \
                 key), and look at the agent's log",
            )
        }
        _ => failure,
    }
}

/// Shows peers.
pub fn list(args: &AgentListArgs) -> Result<Exit, Failure> {
    let folder = sites::folder(args.state.as_deref())?;
    let identity = sites::identity(&folder)?;
    let peers = Peers::new(folder).list().map_err(|error| unusable(&error))?;
    if args.json {
        crate::out::json(json!({"name": sites::own_name(), "key": identity.fingerprint(), "peers": peers}));
        return Ok(Exit::Success);
    }
    crate::out::line(format_args!("this host: {}, key {}", sites::own_name(), identity.fingerprint()));
    for Peer { name, key, addresses, sources, rdma, limits, .. } in peers {
        let mut addresses = if addresses.is_empty() { "dials in".to_string() } else { addresses.join(", ") };
        if !sources.is_empty() {
            let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
            addresses = format!("{addresses} from {}", sources.join(", "));
        }
        if rdma != RdmaMode::default() {
            addresses = format!("{addresses}  rdma {rdma}");
        }
        crate::out::line(format_args!("{name}  {addresses}  key {key}"));
        limits.iter().for_each(|limit| crate::out::line(format_args!("  {limit}")));
    }
    Ok(Exit::Success)
}

/// Ends trust.
pub fn revoke(args: &AgentNamedArgs) -> Result<Exit, Failure> {
    let peers = Peers::new(sites::folder(args.state.as_deref())?);
    if !peers.revoke(&args.name).map_err(|error| unusable(&error))? {
        return Err(no_peer(&args.name));
    }
    if args.json {
        crate::out::json(json!({"revoked": args.name}));
    } else {
        crate::out::say(format_args!("{} is trusted no more; a running agent ends its sessions", args.name));
    }
    Ok(Exit::Success)
}

fn no_peer(name: &str) -> Failure {
    Failure::new(Exit::Usage, format!("there is no peer '{name}'")).advise("see `drover agent list`")
}

/// Sets or shows how much may go to a site.
pub fn limit(args: &AgentLimitArgs) -> Result<Exit, Failure> {
    let (peers, name) = (Peers::new(sites::folder(args.state.as_deref())?), &args.name);
    let limits: Vec<DayLimit> = args.limits.iter().map(|limit| limit.0.clone()).collect();
    let is_set = args.remove || !limits.is_empty();
    if is_set && !peers.set_limits(name, limits).map_err(|error| unusable(&error))? {
        return Err(no_peer(name));
    }
    let peer = peers.named(name).map_err(|error| unusable(&error))?.ok_or_else(|| no_peer(name))?;
    if peer.limits.is_empty() {
        crate::out::line(format_args!("{name}: no limit"));
    }
    peer.limits.iter().for_each(|limit| crate::out::line(format_args!("{name}: {limit}")));
    Ok(Exit::Success)
}

/// Shows what an agent has.
pub fn info(args: &AgentNamedArgs) -> Result<Exit, Failure> {
    let site = sites::site(args.state.as_deref(), &args.name, None)?;
    let info = site.info().map_err(|refusal| Failure::new(Exit::Connection, refusal.to_string()))?;
    if args.json {
        crate::out::json(json!({"site": args.name, "agent": info}));
        return Ok(Exit::Success);
    }
    crate::out::line(format_args!("{}: drover {}", args.name, info.version));
    for pool in info.pools {
        let free = pool.free_bytes.map_or("unknown".to_string(), |bytes| Bytes(bytes).to_string());
        crate::out::line(format_args!("  agent://{}/{}/...  {free} free", args.name, pool.name));
    }
    for device in info.devices {
        crate::out::line(format_args!("  agent://{}/{device}", args.name));
    }
    Ok(Exit::Success)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_in_a_file_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("token")).unwrap();
        file.set_permissions(Permissions::from_mode(0o644)).unwrap();
        keep_to_owner(&file);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // What is no file is left alone.
        keep_to_owner(&File::options().write(true).open("/dev/null").unwrap());
        assert_eq!(std::fs::metadata("/dev/null").unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_place_that_was_only_looked_at_is_told_as_free() {
        let failed =
            |kind: std::io::ErrorKind| ConnectError::Failed { to: "unix:/a".into(), source: kind.into() };
        let told = |error: &ConnectError| not_connected("site-a", "unix:/a", error);
        let free = told(&failed(std::io::ErrorKind::NotFound));
        assert_eq!(free, "nothing listens at unix:/a, which site-a asked for");
        let slow = told(&failed(std::io::ErrorKind::TimedOut));
        assert!(slow.starts_with("site-a was not connected to unix:/a: "), "{slow}");
        let denied = told(&ConnectError::Denied("unix:/a".into()));
        assert!(denied.contains("is not allowed here"), "{denied}");
    }
}
