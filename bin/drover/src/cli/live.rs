//! `drover live`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use drover_types::units::{Rate, time};

use super::memory::{MEMORY, MemoryArgs};

const AFTER: &str = "\
The target's QEMU is started beforehand, like the source's, with `-incoming defer` and disks of the same size. Everything that \
differs is named before anything is done. Whatever goes wrong, the guest runs on one side only; the last line says on which. \
A libvirt domain goes by its name, to a libvirt daemon. See docs/how-to/live.md.

Examples:
  drover live /run/vm/qmp.sock --to /run/new/qmp.sock --uri tcp:10.0.0.2:0 --downtime 300ms --deadline 20m
  drover live A.sock --to B.sock --uri tcp:10.0.0.2:0 --disks mirror --nbd 10.0.0.2:10810 --allow throttle
  drover live A.sock --to B.sock --uri tcp:10.0.0.2:0 --line 1g --dry-run
  drover live A.sock --via site-b --to /run/vm/new.sock --disks mirror
  drover live A.sock --via site-b --to /run/vm/new.sock --or-direct 10.0.0.2:4444 --direct-plain --disks mirror
  drover live A.sock --to B.sock --uri tcp:10.0.0.2:0 --report move.html
  drover live A.sock --to B.sock --uri tcp:host-b:0 --tls-x509 /etc/pki/qemu --compress zstd
  drover live web01 --to qemu+ssh://host-b/system --downtime 300ms --deadline 20m
  drover live web01 --connect qemu+ssh://host-a/system --to qemu+ssh://host-b/system --disks mirror
  drover live web01 web02 db01 --to qemu+ssh://host-b/system --rate-max 8g
  drover live --moves tonight.yaml --rate-max 8g --dry-run";

/// One guest, or several.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub struct LiveCommand {
    /// Monitor socket (QMP) of the QEMU whose guest moves; where --to is a libvirt daemon, the name of a domain, or
    /// several names
    #[arg(value_name = "QMP-SOCKET|DOMAIN", required_unless_present = "moves")]
    pub sources: Vec<PathBuf>,
    /// Monitor socket of the target's QEMU, with --via its path at the site; or the address of the target's libvirt
    /// daemon (qemu+ssh://host/system)
    #[arg(long, value_name = "QMP-SOCKET|URI", required_unless_present = "moves")]
    pub to: Option<PathBuf>,
    /// Move several guests: a YAML file with a list of moves, whose keys are the options of a single move (`from`,
    /// `to`, `uri`, ...), and defaults at its top
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sources", "to"])]
    pub moves: Option<PathBuf>,
    /// With several guests: the rate of one connection, in bits a second, where it is lower than that of the line
    #[arg(long, value_name = "RATE")]
    pub connection: Option<Rate>,
    /// With several guests: the most that send at a time [default: as many as end soonest and keep each limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub at_once: Option<u16>,
    #[command(flatten)]
    pub args: LiveArgs,
}

impl LiveCommand {
    /// The move of one guest; nothing where several are meant.
    pub fn one(&self) -> Option<LiveArgs> {
        match (self.sources.as_slice(), &self.to, &self.moves, self.connection) {
            ([source], Some(to), None, None) => {
                Some(LiveArgs { source: source.clone(), to: to.clone(), ..self.args.clone() })
            }
            _ => None,
        }
    }
}

/// How one guest moves.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct LiveArgs {
    /// Where it is: a monitor's socket, or a domain's name.
    #[arg(skip)]
    pub source: PathBuf,
    /// Where it goes to: a monitor's socket, or a daemon's address.
    #[arg(skip)]
    pub to: PathBuf,
    /// Address of the source's libvirt daemon [default: LIBVIRT_DEFAULT_URI, else qemu:///system]
    #[arg(long, value_name = "URI")]
    pub connect: Option<String>,
    /// Let the source's libvirt daemon connect to the target's itself, so that the move does not depend on drover; it
    /// must be able to log in there
    #[arg(long)]
    pub p2p: bool,
    /// Reach the target over the link to this site, through its agent (`drover agent run --allow-connect
    /// 'unix:/FOLDER/*'`). Of a domain, memory and disks go over the link, and drover must run on the source's host
    #[arg(long, value_name = "SITE")]
    pub via: Option<String>,
    /// With --via: send memory and disks directly to this address of the target's host where that is as good as the
    /// link. Both ways are measured for a second or two, also by --dry-run. Memory goes to PORT (1024 to 65534;
    /// default: a free one), disks to the next port; PORT is required with --disks mirror, except for domains. Needs
    /// --direct-plain or credentials: --tls-x509, --tls-psk or --tls-creds, for domains --tls
    #[arg(long, requires = "via", value_name = "HOST[:PORT]")]
    pub or_direct: Option<DirectAt>,
    /// Allow the direct way to be neither encrypted nor authenticated: nobody else can read that network or reach
    /// these ports
    #[arg(long, requires = "or_direct")]
    pub direct_plain: bool,
    /// Where the target listens for memory: tcp:HOST:PORT (0: a free port), unix:/PATH or rdma:HOST:PORT [default
    /// with --via: the path of --to and .memory; for domains: chosen by the target's libvirt, with --via
    /// /var/lib/libvirt/qemu/drover-UUID.memory]
    #[arg(long, value_name = "URI", value_parser = uri)]
    pub uri: Option<String>,
    /// Longest downtime
    #[arg(long, default_value = "300ms", value_parser = time, value_name = "TIME")]
    pub downtime: Duration,
    /// Time in which the move must be complete; otherwise it is cancelled, and the guest runs on at the source
    #[arg(long, default_value = "20m", value_parser = time, value_name = "TIME")]
    pub deadline: Duration,
    /// How disks are handled
    #[arg(long, value_enum, default_value_t = DisksArg::Shared)]
    pub disks: DisksArg,
    /// Take disks with other paths at the target for the same shared storage
    #[arg(long)]
    pub assume_shared: bool,
    /// Where the target serves its disks for `--disks mirror`: HOST:PORT or unix:/PATH [default with --via: the path
    /// of --to and .disks; for domains /var/lib/libvirt/qemu/drover-UUID.disks]
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Option<String>,
    /// What drover may do to keep the limits
    #[arg(long, value_enum, value_delimiter = ',')]
    pub allow: Vec<AllowArg>,
    /// Connections for memory [default: 4, fewer with a low --rate-max, 1 with --xbzrle and rdma:]
    #[arg(long, help_heading = MEMORY, value_parser = clap::value_parser!(u8).range(1..=255), value_name = "N")]
    pub channels: Option<u8>,
    /// Rate of the line in bits a second, for several guests together [default: measured during the first second of
    /// sending]
    #[arg(long, value_name = "RATE")]
    pub line: Option<Rate>,
    /// Upper bound of the rate in bits a second, for several guests together, in equal parts for each pair of hosts;
    /// each of several --channels may exceed it by 5 MB/s
    #[arg(long, help_heading = MEMORY, value_name = "RATE")]
    pub rate_max: Option<Rate>,
    /// Write a report, also of a failed move: HTML if the name ends in .html, JSON if in .json; an existing file is
    /// replaced
    #[arg(long, value_name = "FILE", value_parser = report)]
    pub report: Option<PathBuf>,
    /// With --via: do not compress on the link
    #[arg(long, requires = "via")]
    pub no_link_compression: bool,
    /// Folder of drover's state, for --via [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Check, measure and forecast; move nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Show progress in place: passes, rates, what is left, forecast. If standard error is no terminal, print lines
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// Print one JSON object per event on standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl LiveArgs {
    /// The address of the libvirt daemon that is to have a domain; nothing where two QEMUs are meant.
    pub fn daemon(&self) -> Option<&str> {
        self.to.to_str().filter(|to| to.contains("://"))
    }
}

/// How a guest's disks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DisksArg {
    /// Both sides use the same storage
    Shared,
    /// Copy them to the target's disks while the guest runs; for domains to new volumes
    Mirror,
}

/// What may be done to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AllowArg {
    /// Give its processors less time
    Throttle,
    /// Start it at the target before all of its memory is there; if the line breaks then, it waits until the line is
    /// back
    Postcopy,
}

/// A host, and perhaps a port, where memory may go directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectAt {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: Option<u16>,
}

impl DirectAt {
    /// A place there, as QEMU and people write it.
    pub fn with_port(&self, port: u16) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{port}", self.host),
            false => format!("{}:{port}", self.host),
        }
    }
}

impl fmt::Display for DirectAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => f.write_str(&self.with_port(port)),
            None if self.host.contains(':') => write!(f, "[{}]", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl FromStr for DirectAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<DirectAt, &'static str> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or(WANTED)?)),
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        // Privileged ports no agent listens at; the next one is for disks.
        let port = port.map(|port| port.parse().ok().filter(|port| (1024..u16::MAX).contains(port)));
        match port {
            Some(None) => Err(WANTED),
            _ if host.is_empty() || host.contains(['/', ',', ' ']) => Err(WANTED),
            port => Ok(DirectAt { host: host.to_string(), port: port.flatten() }),
        }
    }
}

const WANTED: &str = "want HOST or HOST:PORT, without tcp:, IPv6 in brackets, with a port from 1024 to 65534 (disks have the next)";

/// What a report can be, by its name.
fn report(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|it| it.to_str()) {
        Some("html" | "json") => Ok(path),
        _ => Err("want a name that ends in .html or .json".to_string()),
    }
}

/// What QEMU can listen on and drover can find again.
fn uri(text: &str) -> Result<String, String> {
    let is_tcp = text.strip_prefix("tcp:").and_then(|rest| rest.rsplit_once(':'));
    let is_port = is_tcp.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let is_unix = text.strip_prefix("unix:").is_some_and(|path| path.starts_with('/'));
    let is_rdma = text.strip_prefix("rdma:").and_then(|rest| rest.rsplit_once(':'));
    // Where RDMA waits QEMU does not tell, so its port is named.
    let is_rdma = is_rdma
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
    if is_port || is_unix || is_rdma {
        Ok(text.to_string())
    } else {
        Err("want tcp:HOST:PORT, unix:/PATH, or rdma:HOST:PORT with a port".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::{DirectAt, report, uri};

    #[test]
    fn places_where_memory_may_go_directly() {
        let read = |text: &str| text.parse::<DirectAt>().map(|it| (it.to_string(), it.host, it.port));
        for (text, shown, host, port) in [
            ("10.0.0.2", "10.0.0.2", "10.0.0.2", None),
            ("host-b:4444", "host-b:4444", "host-b", Some(4444)),
            ("[fe80::2]:4444", "[fe80::2]:4444", "fe80::2", Some(4444)),
            ("[fe80::2]", "[fe80::2]", "fe80::2", None),
        ] {
            assert_eq!(read(text), Ok((shown.to_string(), host.to_string(), port)), "{text}");
        }
        for bad in
            ["", ":4444", "h:", "h:80", "h:65535", "fe80::2", "[fe80::2]4444", "a/b", "h:0", "a,server"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reports_by_their_names() {
        assert!(report("/x/a.html").is_ok() && report("b.json").is_ok());
        for bad in ["a.qcow2", "html", ".html", "a.HTML", "/dev/stdout", ""] {
            assert!(report(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn places_for_memory() {
        for good in
            ["tcp:10.0.0.2:0", "tcp:[::1]:4444", "tcp:host:1", "unix:/run/x.sock", "rdma:10.0.0.2:4444"]
        {
            assert_eq!(uri(good).as_deref(), Ok(good));
        }
        for bad in [
            "tcp:host",
            "tcp::1",
            "unix:x",
            "exec:cat",
            "tcp:host:70000",
            "",
            "rdma:host",
            "rdma:host:0",
            "rdma::4444",
        ] {
            assert!(uri(bad).is_err(), "{bad}");
        }
    }
}
