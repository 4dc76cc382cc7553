//! `drover relay`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use drover_relay::address::{Listen, Target};
use drover_relay::rule::Rule;
use drover_relay::transparent::Caught;
use drover_types::Bytes;

use super::agent::RateArg;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transparent {
    /// Have the packet filter send connections to the relay's port
    Redirect,
    /// Have the packet filter hand packets over as they are; needed to keep source addresses
    Tproxy,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RelayArgs {
    #[command(subcommand)]
    pub command: Option<RelayCommand>,
    /// Listen on this address and port or range of ports; `:PORT` is all addresses, port 0 a free one
    #[arg(long, value_name = "ADDRESS:PORT[-PORT]", requires = "to")]
    pub listen: Vec<Listen>,
    /// Target host; one for all --listen, or one for each
    #[arg(long, value_name = "HOST:PORT[-PORT]", requires = "listen")]
    pub to: Vec<Target>,
    /// Relay over the link to this site, whose agent connects to the targets (`drover agent run --allow-connect`
    /// there)
    #[arg(long, value_name = "SITE")]
    pub via: Option<String>,
    /// Bytes that may go over the link in a second (100m, 1g: bits as lines are named; 12MiB: bytes); the site's own
    /// limits count, too
    #[arg(long, value_name = "RATE", requires = "via")]
    pub rate_limit: Option<RateArg>,
    /// Do not compress on the link
    #[arg(long, requires = "via")]
    pub no_link_compression: bool,
    /// Folder of drover's state [default: DROVER_STATE, else /var/lib/drover for root, else ~/.local/state/drover]
    // Not by clap: what is set for all commands would clash with those of this one that stand alone.
    #[arg(long, value_name = "FOLDER", requires = "via")]
    pub state: Option<PathBuf>,
    /// Intercept connections that pass through this host, by packet filter rules that are removed when the relay ends
    #[arg(long, value_enum, value_name = "HOW", requires = "matches")]
    pub transparent: Option<Transparent>,
    /// What to intercept: 'any', or some of: in INTERFACE, from NETWORK, to NETWORK, port PORT[-PORT][,...]
    #[arg(long = "match", value_name = "WORDS", requires = "transparent")]
    pub matches: Vec<Caught>,
    /// Port that caught connections come to [default: a free one; for redirect one of 954 to 988, which only root can
    /// take, if one may be taken, is free and not to be caught]
    #[arg(long, value_name = "PORT", requires = "transparent")]
    pub port: Option<u16>,
    /// Also intercept connections of this host itself (redirect only)
    #[arg(long, requires = "transparent")]
    pub also_local: bool,
    /// Connect from the client's address (tproxy only): answers must come back through this host
    #[arg(long, requires = "transparent")]
    pub keep_source: bool,
    /// Print the rules that would be made, and change nothing
    #[arg(long, requires = "port")]
    pub print_rules: bool,
    /// Remove rules that killed relays left, and end
    #[arg(long, exclusive = true)]
    pub clean: bool,
    /// Who may go where: allow|direct|deny [from NETWORK] [to NETWORK] [port PORTS] [congestion NAME] [rate RATE];
    /// the first that fits decides, what fits none is denied; `direct` goes past the link of --via
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<Rule>,
    /// File with one rule a line; asked after those of --rule
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Congestion control towards targets, or `host` for what this host uses [default: bbr where it is there]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Congestion control towards clients
    #[arg(long, value_name = "NAME", default_value = "host")]
    pub congestion_back: String,
    /// Connections at once; further ones are reset
    #[arg(long, default_value_t = drover_relay::CONNECTIONS_MAX, value_name = "N")]
    pub connections: usize,
    /// Seconds that an address of a target may take to answer
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub connect_timeout: u64,
    /// Threads that move bytes [default: one for each core, at most 8]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Memory for bytes in flight
    #[arg(long, default_value = "256MiB", value_name = "BYTES")]
    pub pipes: Bytes,
    /// Seconds after Ctrl-C before connections are reset
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub drain: u64,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Socket for `drover relay top` [default: /run/drover/relay-PID.sock for root, else in $RUNTIME_DIRECTORY or
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// End when the program that started this one ends
    #[arg(long)]
    pub exit_with_parent: bool,
    /// Print one JSON object per event on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Show the connections of a running relay, the fastest first
    Top(TopArgs),
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Its control socket [default: that of the only one of this user]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Connections to show
    #[arg(long, short, default_value_t = 20, value_name = "N")]
    pub number: usize,
    /// Show once and end; so it is if standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
}
