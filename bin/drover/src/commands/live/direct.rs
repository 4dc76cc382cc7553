//! `--direct`: whether memory and disks go past the link, by what both ways were measured to carry.

use std::time::Duration;

use drover_agent::{DirectWay, Site};
use drover_link::probe::probe_at_most;
use drover_live::{Path, PathAsked, Streams, channels_within, choose_path};
use drover_qemu::live::NbdAt;

use super::memory::CHANNELS;
use crate::cli::{AllowArg, DirectAt, DisksArg, LiveArgs};
use crate::exit::{Exit, Failure};

/// Ports of which libvirt takes a free one, unless its configuration says others.
const LIBVIRT_PORTS: [u16; 2] = [49152, 49215];
/// Round trips in which connections find their pace, and for which they are measured after that.
const ROUND_TRIPS: u32 = 10;
/// The same in time: what is less tells little, and nobody wants to wait longer.
const SETTLE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
const TIME: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];
/// Connections that an agent takes.
const CONNECTIONS_MAX: u8 = 16;

/// Where memory and disks may go directly, and how.
pub struct Direct {
    at: DirectAt,
    /// Of which the agent takes a free one to measure.
    ports: [u16; 2],
    connections: u8,
    rate_max: Option<u64>,
    is_encrypted: bool,
}

impl Direct {
    /// What was said of it. Fails with what is wrong with that.
    pub fn wanted(args: &LiveArgs) -> Result<Option<Direct>, Failure> {
        let Some(at) = args.direct.clone() else { return Ok(None) };
        let is_encrypted = args.memory.tls.is_wanted();
        if !is_encrypted && !args.allow.contains(&AllowArg::Plain) {
            let what =
                format!("--direct {at}: what goes there is not encrypted, and nobody said that it may go so");
            return Err(Failure::new(Exit::Usage, what).advise(
                "--allow plain, if nobody else reads that network; or credentials of both hosts: --tls-x509, --tls-psk or \
                 --tls-creds, of domains --tls",
            ));
        }
        let is_domain = args.daemon().is_some();
        if at.port.is_none() && args.disks == DisksArg::Mirror && !is_domain {
            let what = format!(
                "--direct {at}: with --disks mirror it wants a port: HOST:PORT, and disks have the next"
            );
            return Err(Failure::new(Exit::Usage, what));
        }
        let ports = match (at.port, is_domain) {
            (Some(port), _) => [port, port],
            (None, true) => LIBVIRT_PORTS,
            (None, false) => [0, 0],
        };
        let rate_max = args.rate_max.map(|rate| rate.bits_per_s() / 8);
        let of_rate = || rate_max.map_or(CHANNELS, |rate| channels_within(rate, CHANNELS));
        let goes_alone = args.allow.contains(&AllowArg::Postcopy) || args.memory.xbzrle.is_some();
        let connections = match args.channels {
            Some(channels) => channels.min(CONNECTIONS_MAX),
            None if goes_alone => 1,
            None => of_rate(),
        };
        Ok(Some(Direct { at, ports, connections, rate_max, is_encrypted }))
    }

    /// Measures both ways, as far as it matters, and chooses.
    pub fn path(&self, site: &Site) -> Path {
        let mut asked = self.asked(Duration::ZERO);
        let session = match site.session() {
            Ok(session) => session,
            Err(refusal) => return Path::link_only(asked, format!("its agent cannot be asked: {refusal}")),
        };
        let stripes = session.stats().stripes;
        asked.round_trip =
            stripes.iter().filter_map(|stripe| stripe.rtt_min.or(stripe.rtt)).min().unwrap_or_default();
        if session.rate_limit().is_some() {
            return Path::link_only(
                asked,
                "there is a limit (`drover agent limit`), which only the link keeps",
            );
        }
        let bounded = |[least, most]: [Duration; 2]| (asked.round_trip * ROUND_TRIPS).clamp(least, most);
        let (settle, time) = (bounded(SETTLE), bounded(TIME));
        let way = DirectWay {
            host: self.at.host.clone(),
            ports: self.ports,
            connections: usize::from(self.connections),
            settle,
            time,
            rate_max: self.rate_max,
        };
        let direct = site.measure_direct(&way);
        let direct = direct
            .map(|probe| Streams { bytes_per_s: probe.goodput, again_share: probe.again })
            .map_err(|refusal| format!("directly to {}: {refusal}", self.at));
        choose_path(asked, direct, || {
            let probe = probe_at_most(&session, settle, time, self.rate_max);
            probe.map(|probe| probe.goodput).map_err(|error| error.to_string())
        })
    }

    /// Of a move that is on its way: what goes over a link ends with its drover, so it goes directly.
    pub fn already(&self) -> Path {
        let why = "it is on its way there already".to_string();
        Path { is_direct: true, why, asked: self.asked(Duration::ZERO), direct: None, link_bytes_per_s: None }
    }

    fn asked(&self, round_trip: Duration) -> PathAsked {
        PathAsked {
            to: self.at.to_string(),
            connections: usize::from(self.connections),
            round_trip,
            rate_max: self.rate_max,
            is_encrypted: self.is_encrypted,
        }
    }

    /// What two such ways have in common, if the same was measured of both.
    pub fn key(&self) -> String {
        let Direct { at, connections, rate_max, is_encrypted, .. } = self;
        format!("{} {connections} {rate_max:?} {is_encrypted}", at.host)
    }

    /// Where memory goes, as QEMU takes it.
    pub fn memory(&self) -> String {
        format!("tcp:{}", self.at.with_port(self.at.port.unwrap_or(0)))
    }

    /// Where disks go.
    pub fn disks(&self) -> Option<NbdAt> {
        Some(NbdAt::Tcp(self.at.host.clone(), self.disks_port()?))
    }

    /// The port of that.
    pub fn disks_port(&self) -> Option<u16> {
        self.at.port.map(|port| port + 1)
    }
}
