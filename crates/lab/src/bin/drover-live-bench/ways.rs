//! The ways that guests go.

use crate::ground::Place;

/// Who moves the guest, and how.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// QEMU alone, over so many connections.
    Qemu { channels: u8, tls: bool },
    /// Drover, over the network.
    Drover,
    /// Drover, over the link to an agent.
    Link,
}

/// One way.
#[derive(Clone, Debug)]
pub struct Way {
    pub name: String,
    pub by: By,
    pub place: Place,
    /// What the hosts' congestion control is.
    pub congestion: &'static str,
    /// Others are told beside it.
    pub is_direct: bool,
}

/// All ways in a place.
pub fn all(place: Place) -> Vec<Way> {
    let qemu = |channels, tls| By::Qemu { channels, tls };
    let ways = match place {
        Place::Here => vec![
            ("qemu x1", qemu(1, false), "cubic"),
            ("qemu multifd x2", qemu(2, false), "cubic"),
            ("qemu multifd x4", qemu(4, false), "cubic"),
            ("drover direct", By::Drover, "cubic"),
            ("qemu tls x1", qemu(1, true), "cubic"),
            ("qemu tls multifd x4", qemu(4, true), "cubic"),
            ("drover link", By::Link, "cubic"),
        ],
        Place::Line => vec![
            ("qemu x1, cubic", qemu(1, false), "cubic"),
            ("qemu multifd x4, bbr", qemu(4, false), "bbr"),
            ("qemu multifd x16, bbr", qemu(16, false), "bbr"),
            ("drover link", By::Link, "cubic"),
        ],
    };
    let way = |(name, by, congestion): (&str, By, &'static str)| Way {
        name: name.to_string(),
        is_direct: matches!(by, By::Qemu { tls: false, .. }),
        by,
        place,
        congestion,
    };
    ways.into_iter().map(way).collect()
}
