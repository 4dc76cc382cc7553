//! Where one of several guests is and goes to: two monitors, or two daemons of libvirt.

use drover_live::together::{self, Beforehand, Mover};
use drover_live::{Allowed, Event, Promise, Where};
use drover_qemu::live::LiveError;

use super::wanted::Wanted;
use super::weighed;
use crate::cli::LiveArgs;
use crate::commands::live::over::Sites;
use crate::commands::live::{Opened, allowed, domain};
use crate::exit::Failure;

/// A guest that can move.
pub struct Ready {
    pub opened: Opened,
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

impl Ready {
    /// Looks at both sides; changes nothing.
    pub fn look(args: &LiveArgs, sites: &Sites, tell: &mut dyn FnMut(Event)) -> Result<Ready, Refusal> {
        let opened = Opened::open(args, sites).map_err(|failure| Refusal { failure, guest_at: None });
        let mut opened = opened?;
        opened.route.iter().for_each(|route| tell(Event::Route(Box::new(route.clone()))));
        let known = opened.place.look_beforehand(tell)?;
        let uuid = opened.place.uuid().map_err(|error| LiveError::of_look(error.into()))?;
        Ok(Ready { opened, known, uuid })
    }

    /// What it is for the schedule.
    pub fn mover(&self, number: usize, wanted: &Wanted) -> Mover {
        let args = &wanted.args;
        let guest = together::Guest {
            name: wanted.name.clone(),
            facts: self.known.facts,
            promise: Promise { downtime_max: args.downtime, deadline: args.deadline },
            allowed: allowed(args),
            channels: self.known.channels,
            disk_bytes: self.known.disk_bytes,
            rate_max: args.rate_max.map(|rate| rate.bits_per_s() / 8),
            is_under_way: self.known.under_way.is_some(),
            pace: self.known.pace,
        };
        Mover { number, between: between(args), guest }
    }
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
