//! `--or-direct`: whether memory and disks go past the link, by what both ways were measured to carry.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use drover_agent::{CONNECTIONS_MAX, DirectWay, Site};
use drover_link::probe::probe_within;
use drover_live::{Route, RouteAsked, Streams, choose_route};
use drover_qemu::live::{NbdAt, channels_wanted};

use crate::cli::{AllowArg, DirectAt, DisksArg, LiveArgs};
use crate::exit::{Exit, Failure};
use crate::sites::is_limited;

/// Ports of which libvirt takes a free one, unless its configuration says others.
const LIBVIRT_PORTS: [u16; 2] = [49152, 49215];
/// Round trips in which connections find their pace, and for which they are measured after that.
const ROUND_TRIPS: u32 = 10;
/// The same in time: what is less tells little, and nobody wants to wait longer.
const SETTLE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
const TIME: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];
/// For which it is looked for the way, each port and both ways for themselves.
const LOOK_TIME_MAX: Duration = Duration::from_secs(40);

/// Where memory and disks may go directly, and how.
#[derive(Clone, Debug)]
pub struct Direct {
    at: DirectAt,
    /// Of which the agent takes a free one to measure.
    ports: [u16; 2],
    /// Those that have to be open.
    fixed: Vec<u16>,
    connections: usize,
    rate_max: Option<u64>,
    is_encrypted: bool,
    /// There is a limit for the site, at some hour.
    is_limited: bool,
}

impl Direct {
    /// What is wrong with what was said of it.
    pub fn check(args: &LiveArgs) -> Result<(), Failure> {
        let Some(at) = &args.or_direct else { return Ok(()) };
        if !args.memory.tls.is_wanted() && !args.direct_plain {
            let what = format!(
                "--or-direct {at}: what goes there is neither encrypted nor authenticated: neither credentials nor --direct-plain were given"
            );
            return Err(Failure::new(Exit::Usage, what).advise(
                "--direct-plain, if nobody else reads that network or reaches these ports; or credentials of both hosts: --tls-x509, \
                 --tls-psk or --tls-creds, of domains --tls",
            ));
        }
        if at.port.is_none() && args.disks == DisksArg::Mirror && args.daemon().is_none() {
            let what = format!(
                "--or-direct {at}: with --disks mirror it wants a port: HOST:PORT, and disks have the next"
            );
            return Err(Failure::new(Exit::Usage, what));
        }
        Ok(())
    }

    /// What was said of it. Fails with what is wrong with that.
    pub fn wanted(args: &LiveArgs) -> Result<Option<Direct>, Failure> {
        Direct::check(args)?;
        let Some(at) = args.or_direct.clone() else { return Ok(None) };
        let is_encrypted = args.memory.tls.is_wanted();
        let (is_domain, copies) = (args.daemon().is_some(), args.disks == DisksArg::Mirror);
        let ports = match (at.port, is_domain) {
            (Some(port), _) => [port, port],
            (None, true) => LIBVIRT_PORTS,
            (None, false) => [0, 0],
        };
        let of_disks = at.port.filter(|_| copies).map(|port| port + 1);
        let fixed = at.port.into_iter().chain(of_disks).collect();
        let rate_max = args.rate_max.map(|rate| rate.bits_per_s() / 8);
        // With post-copy some QEMUs have one connection only.
        let goes_alone = args.allow.contains(&AllowArg::Postcopy) || args.memory.xbzrle.is_some();
        let channels = args.channels.or(goes_alone.then_some(1));
        let connections = usize::from(channels_wanted(channels, rate_max)).min(CONNECTIONS_MAX);
        let site = args.via.as_deref().unwrap_or_default();
        let is_limited = is_limited(args.state.as_deref(), site)?;
        Ok(Some(Direct { at, ports, fixed, connections, rate_max, is_encrypted, is_limited }))
    }

    /// The same with so many bytes a second at most, if that is less.
    pub fn within(&self, rate_max: Option<u64>) -> Direct {
        let rate_max = self.rate_max.into_iter().chain(rate_max).min();
        Direct { rate_max, ..self.clone() }
    }

    /// Looks whether what has its own port comes there.
    pub fn reaches(&self, site: &Arc<Site>) -> Result<(), String> {
        // Nothing is tried where that is known beforehand.
        for port in self.fixed.iter().copied().filter(|_| !self.is_limited) {
            let (site, host) = (site.clone(), self.at.host.clone());
            within_time(move || site.reaches_direct(&host, port).map_err(|refusal| refusal.to_string()))??;
        }
        Ok(())
    }

    /// Measures both ways, as far as it matters, and chooses.
    pub fn route(&self, site: &Arc<Site>) -> Route {
        if self.is_limited {
            return self.known(false, "there is a limit (`drover agent limit`), which only the link keeps");
        }
        let (direct, of_site) = (self.clone(), site.clone());
        let route = within_time(move || direct.measured(&of_site));
        route.unwrap_or_else(|why| self.known(false, &why))
    }

    fn measured(&self, site: &Site) -> Route {
        let session = match site.session() {
            Ok(session) => session,
            Err(refusal) => return self.known(false, &format!("its agent cannot be asked: {refusal}")),
        };
        let stripes = session.stats().stripes;
        let round_trip =
            stripes.iter().filter_map(|stripe| stripe.rtt_min.or(stripe.rtt)).min().unwrap_or_default();
        let bounded = |[least, most]: [Duration; 2]| (round_trip * ROUND_TRIPS).clamp(least, most);
        let (settle, time) = (bounded(SETTLE), bounded(TIME));
        let way = DirectWay {
            host: self.at.host.clone(),
            ports: self.ports,
            connections: self.connections,
            settle,
            time,
            rate_max: self.rate_max,
        };
        let direct = site.measure_direct(&way).map(|probe| Streams {
            bytes_per_s: probe.goodput,
            again_share: probe.again,
            round_trip: probe.rtt_min,
        });
        choose_route(self.asked(), direct.map_err(|refusal| refusal.to_string())).unwrap_or_else(|wants| {
            let probe = probe_within(&session, (settle, time), self.rate_max);
            wants.with(probe.map(|probe| probe.goodput).map_err(|error| error.to_string()))
        })
    }

    /// The direct way is none.
    pub fn unreachable(&self, why: String) -> Route {
        Route::unreachable(self.asked(), why)
    }

    /// The same as for another guest, whose ways were measured.
    pub fn as_measured(&self, other: &Route) -> Route {
        Route { asked: self.asked(), ..other.clone() }
    }

    /// One that needs no measuring.
    pub fn known(&self, is_direct: bool, why: &str) -> Route {
        Route::known(is_direct, self.asked(), why)
    }

    fn asked(&self) -> RouteAsked {
        RouteAsked {
            to: self.at.to_string(),
            connections: self.connections,
            rate_max: self.rate_max,
            is_encrypted: self.is_encrypted,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// What two such ways have in common, if the same was measured of both.
    pub fn key(&self) -> String {
        let Direct { at, ports, fixed, connections, rate_max, is_encrypted, .. } = self;
        // Ports of its own were tried by themselves.
        let ports = fixed.is_empty().then_some(ports);
        format!("{} {ports:?} {connections} {rate_max:?} {is_encrypted}", at.host)
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

/// What that gives, if it does within a time. A link that is cut meanwhile holds it up for as long as it may come back.
fn within_time<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (tell, told) = channel();
    // Nobody listens any more where it took too long.
    let looks = Builder::new().name("live-route".into()).spawn(move || drop(tell.send(does())));
    looks.map_err(|error| format!("starting a thread: {error}"))?;
    told.recv_timeout(LOOK_TIME_MAX)
        .map_err(|_| format!("looking for the way did not end in {} s", LOOK_TIME_MAX.as_secs()))
}
