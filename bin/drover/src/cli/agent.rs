//! Arguments of `drover agent`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use drover_link::RdmaMode;
use drover_relay::Allowed;
use drover_types::{Bytes, DayLimit, units};

use super::relay::TopArgs;

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Serve this host's disks to paired sites until Ctrl-C or SIGTERM
    #[command(after_help = super::examples::AGENT_RUN)]
    Run(AgentRunArgs),
    /// Pair with another site's agent, or make a token for that
    #[command(after_help = super::examples::AGENT_PAIR)]
    Pair(AgentPairArgs),
    /// List trusted hosts and paired sites
    List(AgentListArgs),
    /// End trust in a host; its sessions end
    Revoke(AgentNamedArgs),
    /// Limit the rate to a site, by the time, or show its limits
    Limit(AgentLimitArgs),
    /// Show what another site's agent has
    Info(AgentNamedArgs),
    /// Show the connections that a running agent of this host carries for relays of peers, the fastest first
    Top(TopArgs),
}

#[derive(Debug, Args)]
pub struct AgentRunArgs {
    /// Listen here; may be given more than once [default: all addresses, port 7843]
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Serve and accept raw files in this folder, as agent://SITE/NAME/...
    #[arg(long, value_name = "NAME=FOLDER")]
    pub pool: Vec<Named>,
    /// Serve the folder or the volume group of a libvirt storage pool, under its name
    #[arg(long, value_name = "NAME")]
    pub libvirt_pool: Vec<String>,
    /// Serve and accept this block device, as agent://SITE/NAME
    #[arg(long, value_name = "NAME=PATH")]
    pub device: Vec<Named>,
    /// Serve and accept this NBD export, as agent://SITE/NAME
    #[arg(long, value_name = "NAME=URI")]
    pub nbd: Vec<Named>,
    /// Give disks that are attached to this machine for a peer, found by their serial and never written: this machine is the
    /// proxy of a vSphere (docs/how-to/hot-add.md). FOLDER holds links that are named as those of the default
    #[arg(
        long, value_name = "FOLDER", num_args = 0..=1, require_equals = true, default_missing_value = drover_agent::BY_ID
    )]
    pub allow_hot_added: Option<PathBuf>,
    /// Let peers start, stop and convert the machines that they moved here
    #[arg(long)]
    pub allow_start: bool,
    /// Let peers connect from here to this host (a name, an address, a network or *) and port, or to unix sockets:
    /// unix:/FOLDER/NAME, unix:/FOLDER/* (those in it) or unix:/FOLDER/** (in folders below, too); again and again. None
    /// is allowed otherwise. Who reaches a QEMU's monitor can do all that this QEMU may
    #[arg(long, value_name = "HOST:PORT[-PORT]|unix:/PATH")]
    pub allow_connect: Vec<Allowed>,
    /// Connections that are carried for relays of all peers at once; one peer gets half of them, and further ones are refused
    #[arg(long, default_value_t = drover_relay::FAR_CONNECTIONS_MAX, value_name = "N")]
    pub connections: usize,
    /// Keep no hashes beside images: blocks that are here already are sent again
    #[arg(long)]
    pub no_leaves: bool,
    /// Do not compress what is sent to peers, nor let relays of peers compress what they send here
    #[arg(long)]
    pub no_link_compression: bool,
    /// Name of this agent [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Bytes that may go out in a second, to all sites together (100m, 1g: bits as lines are named; 12MiB: bytes)
    #[arg(long, value_name = "RATE")]
    pub rate_limit: Option<RateArg>,
    /// Whether peers may also come over RDMA, at the same addresses and ports: auto, if this host has a device; never;
    /// require, without one it does not start
    #[arg(long, default_value = "auto", hide_default_value = true, value_name = "auto|never|require")]
    pub rdma: RdmaMode,
    /// Memory that the sessions of all peers may take together, from 64MiB; one peer gets half of it at most [default:
    /// 4GiB, or half of this host's memory if that is less]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Serve Prometheus metrics of relayed connections at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Socket for `drover agent top` [default, with --allow-connect: /run/drover/agent-PID.sock for root, else in
    /// $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Take the key and the peers of a new state folder from these files (key.pem, peers.json): for an agent that drover starts in a pod
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub seed: Option<PathBuf>,
    /// Print one JSON object per event on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AgentPairArgs {
    /// The agent to pair with; several addresses of it with commas between. The token is read from --token-file,
    /// DROVER_PAIRING_TOKEN or standard input
    #[arg(value_name = "HOST[:PORT]", value_delimiter = ',', required_unless_present = "new_token")]
    pub addresses: Vec<String>,
    /// Addresses of this host to go out from, with commas between: its connections to the agent use all pairs of them and
    /// the agent's addresses [default: the kernel chooses]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', requires = "addresses")]
    pub source: Vec<IpAddr>,
    /// Whether links to it go over RDMA, now and later: auto, where both hosts have a device; never; require, and without
    /// they fail. To change it, pair again
    #[arg(
        long,
        default_value = "auto",
        hide_default_value = true,
        value_name = "auto|never|require",
        conflicts_with = "new_token"
    )]
    pub rdma: RdmaMode,
    /// Make a token that lets one host pair with the agent of this one, and print it
    #[arg(long, conflicts_with_all = ["addresses", "token_file"])]
    pub new_token: bool,
    /// Name of the other side here [default: its own name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long the token is valid: a number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "15m", requires = "new_token")]
    pub valid: TimeArg,
    /// File with the token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Name of this host [default: the host's name]
    #[arg(long = "as", value_name = "NAME")]
    pub own_name: Option<String>,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AgentListArgs {
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AgentNamedArgs {
    /// Its name, as in `drover agent list`
    pub name: String,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AgentLimitArgs {
    /// Its name, as in `drover agent list`
    pub name: String,
    /// Limits in place of those that it has, the lowest of those that hold counts: RATE, or WINDOW=RATE such as "Mon-Fri 08:00-18:00 Europe/Berlin=200m"; without any, those that it has are shown
    #[arg(value_name = "LIMIT")]
    pub limits: Vec<LimitArg>,
    /// Remove all its limits
    #[arg(long, conflicts_with = "limits")]
    pub remove: bool,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
}

/// A limit for a window, or for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitArg(pub DayLimit);

impl FromStr for LimitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<LimitArg, String> {
        text.parse().map(LimitArg)
    }
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub value: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let (name, value) = text.split_once('=').ok_or("it is not NAME=VALUE")?;
        drover_agent::trust::check_name(name).map_err(|_| {
            "a name is 1 to 64 letters, digits, '-', '_' and '.', and begins with a letter or digit"
                .to_string()
        })?;
        match value {
            "" => Err("the value is empty".to_string()),
            value => Ok(Named { name: name.to_string(), value: value.to_string() }),
        }
    }
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateArg(pub u64);

impl FromStr for RateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<RateArg, String> {
        units::byte_rate(text).map(RateArg).map_err(|error| error.to_string())
    }
}

/// Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeArg(pub u64);

impl FromStr for TimeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeArg, String> {
        let time = units::time(text).map_err(|error| error.to_string())?;
        if time.as_secs() > 0 {
            Ok(TimeArg(time.as_secs()))
        } else {
            Err("that is less than a second".to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rates_are_bits_as_lines_are_named_or_bytes() {
        let rate = |text: &str| text.parse::<RateArg>().ok().map(|rate| rate.0);
        assert_eq!(rate("500m"), Some(62_500_000));
        assert_eq!(
            (rate("1g"), rate("64k"), rate("12MiB")),
            (Some(125_000_000), Some(8_000), Some(12 << 20))
        );
        for text in ["", "1", "m", "0m", "-1m", "99999999999999999999g"] {
            assert_eq!(rate(text), None, "{text}");
        }
    }

    #[test]
    fn times_have_a_unit() {
        let time = |text: &str| text.parse::<TimeArg>().ok().map(|time| time.0);
        assert_eq!(
            (time("15m"), time("2h"), time("1d"), time("9s")),
            (Some(900), Some(7200), Some(86_400), Some(9))
        );
        assert_eq!((time("15"), time("0m"), time("500ms")), (None, None, None));
    }

    #[test]
    fn named_values_are_a_name_and_something() {
        let named = "vms=/srv/a=b".parse::<Named>().unwrap();
        assert_eq!((named.name.as_str(), named.value.as_str()), ("vms", "/srv/a=b"));
        for text in ["vms", "=x", "a/b=x", "vms="] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
    }
}
