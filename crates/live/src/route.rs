//! Which way a guest's bytes go to another site: directly, by QEMU's own connections, or over the link.
//!
//! A link carries what a line has, whatever its losses, and encrypts; it costs both hosts' processors, and what QEMU has
//! given to it is counted as sent while it waits. So directly is better where a few plain connections carry as much.
//!
//! Both are measured for a second or two, in which a link that is new has few connections: where each gets a share only, it
//! carries more later than was seen. Where the constants come from is in `bench/LOG.md`.

use std::fmt;
use std::time::Duration;

/// What is known before anything is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteAsked {
    /// Where the bytes go directly, as it was said.
    pub to: String,
    /// Connections that are measured.
    pub connections: usize,
    /// Most bytes a second that may be sent.
    pub rate_max: Option<u64>,
    /// What goes directly is encrypted by both QEMUs.
    pub is_encrypted: bool,
    /// Processors that each of them has for that, at most.
    pub processors: usize,
}

/// What plain connections were measured to carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// All of them together.
    pub bytes_per_s: f64,
    /// Share of bytes that were sent again.
    pub again_share: f64,
    /// The shortest round trip.
    pub round_trip: Duration,
}

/// A way, and what it was chosen from.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// It is the direct one.
    pub is_direct: bool,
    /// What decided.
    pub reason: RouteReason,
    /// What was known before.
    pub asked: RouteAsked,
    /// What goes directly, where that was measured.
    pub direct: Option<Streams>,
    /// Bytes a second that the link carried, where that was measured.
    pub link_bytes_per_s: Option<f64>,
}

/// What decided.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteReason {
    /// Nothing had to be measured: why, in words.
    Known(String),
    /// There is no direct way: why.
    Unreachable(String),
    /// The direct way is long, and bytes had to be sent again there.
    Losses,
    /// The direct way carries what may be sent.
    Bounded,
    /// What the link carries could not be measured: why.
    Unmeasured(String),
    /// What both carry.
    Compared,
}

/// Of what the link carries, plain connections carry as much as makes them the better way.
const DIRECT_SHARE: f64 = 0.9;
/// The same of a rate that is kept to while measuring: so short a time ends between two pieces.
const BOUNDED_SHARE: f64 = 0.8;
/// The same where QEMU encrypts, which costs ten times the processor time that the link's own encryption does.
const ENCRYPTED_SHARE: f64 = 1.1;
/// Bytes a second that QEMU encrypts on one processor.
const ENCRYPTED_PROCESSOR: f64 = 260e6;
/// On a line so long, what is lost costs a connection its rate for long.
const FAR: Duration = Duration::from_millis(2);
/// There, such a share of what is sent again is too much.
const AGAIN_MAX: f64 = 0.001;

/// What the link carries matters, and was not measured yet.
#[derive(Clone, Debug, PartialEq)]
pub struct WantsLink {
    asked: RouteAsked,
    streams: Streams,
    /// What goes directly, of that.
    carries: f64,
}

/// Chooses by what was measured of the direct way, or why that is none; or says that the link has to be measured for it.
///
/// # Errors
/// [`WantsLink`], which is none.
pub fn choose_route(asked: RouteAsked, direct: Result<Streams, String>) -> Result<Route, WantsLink> {
    let streams = match direct {
        Ok(streams) => streams,
        Err(why) => return Ok(Route::unreachable(asked, why)),
    };
    if streams.round_trip >= FAR && streams.again_share > AGAIN_MAX {
        return Ok(Route::new(false, RouteReason::Losses, asked, Some(streams)));
    }
    let encrypted = ENCRYPTED_PROCESSOR * asked.connections.min(asked.processors).max(1) as f64;
    let carries = if asked.is_encrypted { streams.bytes_per_s.min(encrypted) } else { streams.bytes_per_s };
    let is_enough = asked.rate_max.is_some_and(|rate| carries >= rate as f64 * BOUNDED_SHARE);
    match is_enough && !asked.is_encrypted {
        true => Ok(Route::new(true, RouteReason::Bounded, asked, Some(streams))),
        false => Err(WantsLink { asked, streams, carries }),
    }
}

impl WantsLink {
    /// Chooses by what the link carried, or why that could not be measured.
    pub fn with(self, link: Result<f64, String>) -> Route {
        let WantsLink { asked, streams, carries } = self;
        // One that was away for a moment carried nothing, which tells nothing of it.
        let link = link.and_then(|link| if link > 0.0 { Ok(link) } else { Err("it carried nothing".into()) });
        let link = match link {
            Ok(link) => link,
            Err(why) => return Route::new(false, RouteReason::Unmeasured(why), asked, Some(streams)),
        };
        let wanted = asked.rate_max.map_or(link, |rate| link.min(rate as f64));
        let share = if asked.is_encrypted { ENCRYPTED_SHARE } else { DIRECT_SHARE };
        let is_direct = carries > 0.0 && carries >= wanted * share;
        let route = Route::new(is_direct, RouteReason::Compared, asked, Some(streams));
        Route { link_bytes_per_s: Some(link), ..route }
    }
}

impl Route {
    fn new(is_direct: bool, reason: RouteReason, asked: RouteAsked, direct: Option<Streams>) -> Route {
        Route { is_direct, reason, asked, direct, link_bytes_per_s: None }
    }

    /// The link, as there is no direct way: why.
    pub fn unreachable(asked: RouteAsked, why: String) -> Route {
        Route::new(false, RouteReason::Unreachable(why), asked, None)
    }

    /// One that needs no measuring.
    pub fn known(is_direct: bool, asked: RouteAsked, why: impl Into<String>) -> Route {
        Route::new(is_direct, RouteReason::Known(why.into()), asked, None)
    }
}

impl RouteReason {
    /// For machines.
    pub fn word(&self) -> &'static str {
        match self {
            RouteReason::Known(_) => "known",
            RouteReason::Unreachable(_) => "unreachable",
            RouteReason::Losses => "losses",
            RouteReason::Bounded => "rate-max",
            RouteReason::Unmeasured(_) => "unmeasured",
            RouteReason::Compared => "compared",
        }
    }
}

impl fmt::Display for Route {
    /// Why, with what it was chosen from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouteAsked { to, connections, rate_max, is_encrypted, .. } = &self.asked;
        if let Some(Streams { bytes_per_s, again_share, round_trip }) = self.direct {
            write!(
                f,
                "to {to} {connections} plain connections carry {} ({:.2} % sent again, round trip {:.2} ms)",
                rate_words(bytes_per_s),
                again_share * 100.0,
                round_trip.as_secs_f64() * 1e3
            )?;
        }
        match &self.reason {
            RouteReason::Known(why) => f.write_str(why)?,
            RouteReason::Unreachable(why) => write!(f, "{to} is not to be had: {why}")?,
            RouteReason::Losses => {
                f.write_str(": on a line so long that slows them down, sooner or later")?
            }
            RouteReason::Bounded => {
                let rate = rate_max.map_or("no more".into(), |rate| rate_words(rate as f64));
                write!(f, ", and {rate} may be sent")?;
            }
            RouteReason::Unmeasured(why) => {
                write!(f, "; what the link carries could not be measured: {why}")?;
            }
            RouteReason::Compared => {
                write!(f, "; the link carries {}", rate_words(self.link_bytes_per_s.unwrap_or_default()))?;
                if *is_encrypted {
                    f.write_str(", and QEMU's own encryption costs ten times the link's")?;
                }
            }
        }
        if *is_encrypted && !self.is_direct {
            f.write_str("; the link encrypts, so QEMU does not")?;
        }
        Ok(())
    }
}

fn rate_words(bytes_per_s: f64) -> String {
    let mbit = bytes_per_s * 8.0 / 1e6;
    if mbit >= 10_000.0 { format!("{:.1} Gbit/s", mbit / 1e3) } else { format!("{mbit:.0} Mbit/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> RouteAsked {
        RouteAsked { to: "h".into(), connections: 4, rate_max: None, is_encrypted: false, processors: 2 }
    }

    fn streams(bytes_per_s: f64) -> Streams {
        Streams { bytes_per_s, again_share: 0.0, round_trip: Duration::from_micros(200) }
    }

    /// That the link is not asked for.
    fn at_once(asked: RouteAsked, direct: Result<Streams, String>) -> Route {
        choose_route(asked, direct).unwrap()
    }

    fn compared(asked: RouteAsked, direct: f64, link: f64) -> Route {
        choose_route(asked, Ok(streams(direct))).unwrap_err().with(Ok(link))
    }

    #[test]
    fn directly_where_that_carries_nearly_what_the_link_does() {
        let is_direct = |direct| compared(asked(), direct, 1e9).is_direct;
        assert_eq!([2e9, 0.91e9, 0.89e9, 0.0].map(is_direct), [true, true, false, false]);
        let route = compared(asked(), 0.5e9, 1e9);
        assert_eq!((route.direct.unwrap().bytes_per_s, route.link_bytes_per_s), (0.5e9, Some(1e9)));
        let words = route.to_string();
        assert!(words.contains("carry 4000 Mbit/s") && words.contains("link carries 8000"), "{words}");
    }

    #[test]
    fn a_way_that_is_none_needs_no_look_at_the_link() {
        let route = at_once(asked(), Err("no road".into()));
        assert_eq!((route.is_direct, route.reason.word(), route.direct), (false, "unreachable", None));
        assert!(route.to_string().contains("no road"), "{route}");
    }

    #[test]
    fn what_is_sent_again_counts_on_a_long_line_only() {
        let lossy = Streams { again_share: 0.004, ..streams(1e9) };
        let far = Streams { round_trip: Duration::from_millis(55), ..lossy };
        let route = at_once(asked(), Ok(far));
        assert!(!route.is_direct && route.to_string().contains("0.40 %"), "{route}");
        let is_compared = |streams| choose_route(asked(), Ok(streams)).is_err();
        assert!(is_compared(lossy) && is_compared(Streams { again_share: 0.0005, ..far }));
    }

    #[test]
    fn what_may_be_sent_is_enough() {
        let bounded = RouteAsked { rate_max: Some(100_000_000), ..asked() };
        assert_eq!(at_once(bounded.clone(), Ok(streams(85e6))).reason, RouteReason::Bounded);
        assert!(compared(bounded.clone(), 50e6, 55e6).is_direct);
        assert!(!compared(bounded, 50e6, 99e6).is_direct);
    }

    #[test]
    fn what_qemu_encrypts_must_be_faster_than_the_link() {
        let encrypted = RouteAsked { is_encrypted: true, ..asked() };
        assert!(!compared(encrypted.clone(), 100e6, 100e6).is_direct);
        assert!(compared(encrypted.clone(), 120e6, 100e6).is_direct);
        // Two processors do not encrypt more.
        assert!(compared(encrypted.clone(), 5e9, 400e6).is_direct);
        let route = compared(encrypted, 5e9, 500e6);
        assert!(!route.is_direct && route.to_string().contains("so QEMU does not"), "{route}");
    }

    #[test]
    fn a_link_of_which_nothing_is_known_is_taken() {
        let wants = choose_route(asked(), Ok(streams(1e9))).unwrap_err();
        for link in [Err("busy".to_string()), Ok(0.0)] {
            let route = wants.clone().with(link);
            assert_eq!((route.is_direct, route.reason.word()), (false, "unmeasured"), "{route}");
        }
        assert!(!compared(asked(), 0.0, 1.0).is_direct);
    }
}
