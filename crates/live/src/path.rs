//! Which way a guest's bytes go to another site: directly, by QEMU's own connections, or over the link.
//!
//! A link carries what a line has, whatever its losses, and encrypts; it costs both hosts' processors, and what QEMU has
//! given to it is counted as sent while it waits. So directly is better where a few plain connections carry as much.

use std::time::Duration;

/// What is known before anything is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct PathAsked {
    /// Where the bytes go directly, as it was said.
    pub to: String,
    /// Connections that memory has.
    pub connections: usize,
    /// Of the link.
    pub round_trip: Duration,
    /// Most bytes a second that may be sent.
    pub rate_max: Option<u64>,
    /// What goes directly is encrypted by both QEMUs.
    pub is_encrypted: bool,
}

/// What plain connections were measured to carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// All of them together.
    pub bytes_per_s: f64,
    /// Share of bytes that were sent again.
    pub again_share: f64,
}

/// A way, and what it was chosen from.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// It is the direct one.
    pub is_direct: bool,
    /// Why, in words.
    pub why: String,
    /// What was known before.
    pub asked: PathAsked,
    /// What goes directly, where that was measured.
    pub direct: Option<Streams>,
    /// Bytes a second that the link carried, where that was measured.
    pub link_bytes_per_s: Option<f64>,
}

/// Of what the link carries, plain connections carry as much as makes them the better way.
const DIRECT_SHARE: f64 = 0.9;
/// The same where QEMU encrypts, which costs ten times the processor time that the link's own encryption does.
const ENCRYPTED_SHARE: f64 = 1.1;
/// Bytes a second that QEMU encrypts for one connection, on a processor of its own (measured with QEMU 10.0).
const ENCRYPTED_CONNECTION: f64 = 260e6;
/// On a line so long, what is lost costs a connection its rate for long.
const FAR: Duration = Duration::from_millis(2);
/// There, such a share of what is sent again tells of a line that loses.
const AGAIN_MAX: f64 = 0.001;

/// Chooses by what was measured of the direct way, or why that is none. What the link carries is asked for only where it
/// matters.
pub fn choose_path(
    asked: PathAsked,
    direct: Result<Streams, String>,
    link: impl FnOnce() -> Result<f64, String>,
) -> Path {
    let mut path = Path {
        is_direct: false,
        why: String::new(),
        asked,
        direct: direct.as_ref().ok().copied(),
        link_bytes_per_s: None,
    };
    (path.is_direct, path.why) = match direct {
        Err(why) => (false, why),
        Ok(streams) => path.judge(streams, link),
    };
    path
}

impl Path {
    /// The link, without a look at the direct way.
    pub fn link_only(asked: PathAsked, why: impl Into<String>) -> Path {
        Path { is_direct: false, why: why.into(), asked, direct: None, link_bytes_per_s: None }
    }

    fn judge(&mut self, streams: Streams, link: impl FnOnce() -> Result<f64, String>) -> (bool, String) {
        let asked = &self.asked;
        let directly = words(asked, streams);
        if asked.round_trip >= FAR && streams.again_share > AGAIN_MAX {
            return (false, format!("{directly}: on a line that loses so much they do not keep that up"));
        }
        let carries = match asked.is_encrypted {
            true => streams.bytes_per_s.min(ENCRYPTED_CONNECTION * asked.connections.max(1) as f64),
            false => streams.bytes_per_s,
        };
        let rate_max = asked.rate_max.map(|rate| rate as f64);
        if let Some(rate) = rate_max.filter(|rate| !asked.is_encrypted && carries >= rate * DIRECT_SHARE) {
            return (true, format!("{directly}, and no more than {} may be sent", rate_words(rate)));
        }
        let link = match link() {
            Ok(link) => link,
            Err(why) => {
                return (false, format!("{directly}; what the link carries could not be measured ({why})"));
            }
        };
        self.link_bytes_per_s = Some(link);
        let wanted = rate_max.map_or(link, |rate| rate.min(link));
        let share = if asked.is_encrypted { ENCRYPTED_SHARE } else { DIRECT_SHARE };
        let encrypted = match asked.is_encrypted {
            true => format!(", of which QEMU encrypts {} at most", rate_words(carries)),
            false => String::new(),
        };
        (carries >= wanted * share, format!("{directly}{encrypted}; the link carries {}", rate_words(link)))
    }
}

fn words(asked: &PathAsked, streams: Streams) -> String {
    format!(
        "directly to {} {} connections carry {} ({:.2} % sent again, round trip {:.2} ms)",
        asked.to,
        asked.connections,
        rate_words(streams.bytes_per_s),
        streams.again_share * 100.0,
        asked.round_trip.as_secs_f64() * 1e3
    )
}

fn rate_words(bytes_per_s: f64) -> String {
    let mbit = bytes_per_s * 8.0 / 1e6;
    if mbit >= 10_000.0 { format!("{:.1} Gbit/s", mbit / 1e3) } else { format!("{mbit:.0} Mbit/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> PathAsked {
        PathAsked {
            to: "h".into(),
            connections: 4,
            round_trip: Duration::from_micros(200),
            rate_max: None,
            is_encrypted: false,
        }
    }

    fn carries(bytes_per_s: f64) -> Result<Streams, String> {
        Ok(Streams { bytes_per_s, again_share: 0.0 })
    }

    #[test]
    fn directly_where_that_carries_nearly_what_the_link_does() {
        let is_direct = |direct| choose_path(asked(), carries(direct), || Ok(1e9)).is_direct;
        assert_eq!([2e9, 0.91e9, 0.89e9, 0.0].map(is_direct), [true, true, false, false]);
        let path = choose_path(asked(), carries(0.5e9), || Ok(1e9));
        assert_eq!((path.direct.unwrap().bytes_per_s, path.link_bytes_per_s), (0.5e9, Some(1e9)));
        assert!(
            path.why.contains("carry 4000 Mbit/s") && path.why.contains("link carries 8000"),
            "{}",
            path.why
        );
    }

    #[test]
    fn a_way_that_is_none_needs_no_look_at_the_link() {
        let path = choose_path(asked(), Err("no route".into()), || panic!("it was measured"));
        assert_eq!((path.is_direct, path.why.as_str(), path.direct), (false, "no route", None));
    }

    #[test]
    fn losses_count_on_a_long_line_only() {
        let lossy = Ok(Streams { bytes_per_s: 1e9, again_share: 0.004 });
        let far = PathAsked { round_trip: Duration::from_millis(55), ..asked() };
        let path = choose_path(far.clone(), lossy.clone(), || panic!("it was measured"));
        assert!(!path.is_direct && path.why.contains("0.40 %"), "{}", path.why);
        assert!(choose_path(asked(), lossy, || Ok(1e9)).is_direct);
        assert!(choose_path(far, carries(1e9), || Ok(1e9)).is_direct);
    }

    #[test]
    fn what_may_be_sent_is_enough() {
        let bounded = PathAsked { rate_max: Some(100_000_000), ..asked() };
        assert!(choose_path(bounded.clone(), carries(95e6), || panic!("it was measured")).is_direct);
        assert!(choose_path(bounded.clone(), carries(50e6), || Ok(55e6)).is_direct);
        assert!(!choose_path(bounded, carries(50e6), || Ok(99e6)).is_direct);
    }

    #[test]
    fn what_qemu_encrypts_must_be_faster_than_the_link() {
        let encrypted = PathAsked { is_encrypted: true, rate_max: Some(100_000_000), ..asked() };
        assert!(!choose_path(encrypted.clone(), carries(100e6), || Ok(100e6)).is_direct);
        assert!(choose_path(encrypted.clone(), carries(120e6), || Ok(100e6)).is_direct);
        let fast = PathAsked { rate_max: None, ..encrypted };
        let path = choose_path(fast, carries(5e9), || Ok(1e9));
        assert!(!path.is_direct && path.why.contains("QEMU encrypts 8320 Mbit/s"), "{}", path.why);
    }

    #[test]
    fn without_a_look_at_the_link_it_is_taken() {
        let path = choose_path(asked(), carries(1e9), || Err("busy".into()));
        assert!(!path.is_direct && path.why.contains("busy"), "{}", path.why);
    }
}
