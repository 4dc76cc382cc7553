//! Where one of several guests is and goes to: two monitors, or two daemons of libvirt.

use std::io;
use std::sync::atomic::AtomicBool;

use drover_live::together::{self, Beforehand};
use drover_live::{Allowed, Event, Moment, Moved, Promise, Route, Where};
use drover_qemu::QemuError;
use drover_qemu::live::{
    DomainOptions, Ending, Ends, LiveError, Share, Turn, live, live_domain, look_beforehand,
    look_domain_beforehand,
};
use drover_types::Estimate;

use super::wanted::Wanted;
use super::weighed;
use crate::cli::LiveArgs;
use crate::commands::live::over::{Over, Sites};
use crate::commands::live::{Sides, domain, open};
use crate::exit::Failure;

/// Both sides of a move.
pub enum Place {
    Qemu(Box<Sides>),
    Domain { ends: Ends, name: String, options: Box<DomainOptions>, over: Option<Box<Over>> },
}

/// A guest that can move.
pub struct Ready {
    pub place: Place,
    pub known: Beforehand,
    /// What its daemon knows a domain by.
    pub uuid: Option<String>,
}

/// Why a guest is not begun.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub failure: Failure,
    /// Where it is, if both sides were asked.
    pub guest_at: Option<Where>,
}

impl From<LiveError> for Refusal {
    fn from(error: LiveError) -> Refusal {
        Refusal { failure: weighed(&error, Allowed::default()), guest_at: Some(error.guest_at) }
    }
}

/// How its move ended.
pub struct Ended {
    pub result: Result<Moved, LiveError>,
    /// What the source and the target told.
    pub moments: [Vec<Moment>; 2],
    pub place: Place,
}

impl Ready {
    /// Looks at both sides; changes nothing.
    pub fn look(args: &LiveArgs, sites: &Sites, tell: &mut dyn FnMut(Event)) -> Result<Ready, Refusal> {
        let opened = Place::open(args, sites).map_err(|failure| Refusal { failure, guest_at: None });
        let (mut place, route) = opened?;
        route.into_iter().for_each(|route| tell(Event::Route(Box::new(route))));
        let known = match &mut place {
            Place::Qemu(sides) => {
                let Sides { source, target, options, .. } = &mut **sides;
                let (known, looked) = look_beforehand(source, target, options, tell)?;
                options.looked = looked;
                known
            }
            Place::Domain { ends, name, options, .. } => {
                let looked = look_domain_beforehand(ends, name, options, tell);
                let (known, looked) = looked.map_err(LiveError::of_look)?;
                options.looked = looked;
                known
            }
        };
        let uuid = place.uuid().map_err(|error| LiveError::of_look(error.into()))?;
        Ok(Ready { place, known, uuid })
    }

    /// What it is for the schedule.
    pub fn guest(&self, wanted: &Wanted) -> together::Guest {
        let args = &wanted.args;
        together::Guest {
            name: wanted.name.clone(),
            facts: self.known.facts,
            promise: Promise { downtime_max: args.downtime, deadline: args.deadline },
            allowed: self.place.allowed(),
            channels: self.known.channels,
            disk_bytes: self.known.disk_bytes,
            rate_max: args.rate_max.map(|rate| rate.bits_per_s() / 8),
            is_under_way: self.known.under_way.is_some(),
            pace: self.known.pace,
        }
    }
}

impl Place {
    /// With the way that was chosen, where there was a choice.
    fn open(args: &LiveArgs, sites: &Sites) -> Result<(Place, Option<Route>), Failure> {
        let Some(daemon) = args.daemon() else {
            let sides = open(args, sites)?;
            let route = sides.route.clone();
            return Ok((Place::Qemu(Box::new(sides)), route));
        };
        let (mut options, name) = (domain::options(args)?, domain::name(args)?.to_string());
        let ends = domain::ends(args, daemon)?;
        let (over, route) = domain::over(args, &ends, &name, sites, &mut options)?;
        let (options, over) = (Box::new(options), over.map(Box::new));
        Ok((Place::Domain { ends, name, options, over }, route))
    }

    /// The source's daemon has it, or the target's once it has moved.
    fn uuid(&self) -> Result<Option<String>, QemuError> {
        let Place::Domain { ends, name, .. } = self else { return Ok(None) };
        ends.source.uuid(name).or_else(|_| ends.target.uuid(name)).map(Some)
    }

    fn allowed(&self) -> drover_live::Allowed {
        match self {
            Place::Qemu(sides) => sides.options.wanted.allowed,
            Place::Domain { options, .. } => options.wanted.allowed,
        }
    }

    /// Moves it in its turn, with its share of a budget if there is one, over a line that gives it so much where that is known.
    pub fn go(
        mut self,
        turn: Turn,
        share: Option<Share>,
        line: Option<Estimate>,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(Event),
    ) -> Ended {
        let with = |wanted: &mut drover_qemu::live::Wanted| {
            (wanted.turn, wanted.share, wanted.line) = (Some(turn), share, line);
        };
        let result = match &mut self {
            Place::Qemu(sides) => {
                let Sides { source, target, options, .. } = &mut **sides;
                with(&mut options.wanted);
                live(source, target, options, stop, tell)
            }
            Place::Domain { ends, name, options, .. } => {
                with(&mut options.wanted);
                live_domain(ends, name, options, stop, tell)
            }
        };
        let moments = match &mut self {
            Place::Qemu(sides) => [sides.source.moments(), sides.target.moments()],
            Place::Domain { .. } => [Vec::new(), Vec::new()],
        };
        Ended { result, moments, place: self }
    }

    /// No thread could be started that moves it.
    pub fn not_begun(self, why: io::Error, is_under_way: bool) -> Ended {
        let LiveError { guest_at, .. } = not_begun(is_under_way);
        let cause = Ending::Failed(QemuError::not_started("the thread that moves it", why));
        Ended { result: Err(LiveError { cause, guest_at }), moments: Default::default(), place: self }
    }

    /// What carries it, if something does.
    pub fn over(&self) -> Option<&Over> {
        match self {
            Place::Qemu(sides) => sides.over.as_ref(),
            Place::Domain { over, .. } => over.as_deref(),
        }
    }
}

impl Ended {
    /// What the site refused, which a libvirt does not know: to it a connection ended.
    pub fn refused(&self) -> Vec<String> {
        match &self.place {
            Place::Domain { over: Some(over), .. } => over.refused(),
            Place::Domain { .. } | Place::Qemu(_) => Vec::new(),
        }
    }
}

/// It did not begin, and will not; one that an earlier run began goes on by itself.
pub fn not_begun(is_under_way: bool) -> LiveError {
    let guest_at = if is_under_way { Where::Unknown } else { Where::Source };
    LiveError { cause: Ending::Stopped, guest_at }
}

/// The two hosts that a move is between: moves between the same two share a line. A link begins on this host and ends on its agent's,
/// whichever daemons are there.
pub fn between(args: &LiveArgs) -> (String, String) {
    if let Some(site) = &args.via {
        return (HERE.into(), site.clone());
    }
    if let Some(daemon) = args.daemon() {
        return (domain::source(args), daemon.to_string());
    }
    // `tcp:HOST:PORT` and its like; a unix socket is here.
    let address =
        args.uri.as_ref().and_then(|uri| uri.split_once(':')).filter(|(scheme, _)| *scheme != "unix");
    let host = address.and_then(|(_, address)| address.rsplit_once(':')).map(|(host, _)| host.to_string());
    (HERE.into(), host.unwrap_or_else(|| HERE.into()))
}

/// The host whose memory a guest is to have: that of a daemon, however it is reached.
pub fn target_host(args: &LiveArgs) -> String {
    args.daemon().map_or_else(|| between(args).1, str::to_string)
}

const HERE: &str = "this host";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        args: LiveArgs,
    }

    #[test]
    fn moves_between_the_same_hosts_share_a_line() {
        let pair = |to: &str, more: &[&str]| {
            let args = Options::parse_from([&["live"], more].concat()).args;
            between(&LiveArgs { to: PathBuf::from(to), ..args })
        };
        let here = |to: &str| ("this host".to_string(), to.to_string());
        assert_eq!(pair("/b", &["--uri", "tcp:10.0.0.2:0"]), here("10.0.0.2"));
        assert_eq!(pair("/b", &["--uri", "tcp:[fe80::2]:4444"]), here("[fe80::2]"));
        assert_eq!(pair("/b", &["--uri", "unix:/x"]), here("this host"));
        assert_eq!(pair("/b", &["--via", "site-b"]), here("site-b"));
        let (from, to) = pair("qemu+ssh://b/system", &["--connect", "qemu+ssh://a/system"]);
        assert_eq!((from.as_str(), to.as_str()), ("qemu+ssh://a/system", "qemu+ssh://b/system"));
        for daemon in ["qemu+ssh://b/system", "qemu+ssh://b/session"] {
            assert_eq!(pair(daemon, &["--via", "site-b"]), here("site-b"));
            let args = Options::parse_from(["live", "--via", "site-b"]).args;
            assert_eq!(target_host(&LiveArgs { to: PathBuf::from(daemon), ..args }), daemon);
        }
    }
}
