//! What the way back from a site carries: its agent sends noise, this side throws it away, and the agent tells what its kernel
//! saw of that. So both ways are measured alike, by the side that sends.

use std::time::Duration;

use drover_disk::DiskErrorKind;
use drover_link::probe::{Probe, SETTLE, probe_within};
use drover_link::{Incoming, Order, Session};
use serde::{Deserialize, Serialize};

use crate::error::{Refusal, printable};
use crate::opening::{Announced, Opening};
use crate::serve::sink;

/// What an agent says that it takes, if it sends to be measured.
pub(crate) const MEASURE: &str = "measure";

/// No measurement by order of a peer takes longer.
pub const MEASURE_TIME_MAX: Duration = Duration::from_secs(60);

/// What an agent's kernel saw while it sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Connections.
    pub connections: u32,
    /// Bytes a second that this side acknowledged.
    pub goodput_bytes_per_s: f64,
    /// Round trip under load, the mean of all connections.
    pub rtt_us: u64,
    /// Shortest round trip.
    pub rtt_min_us: u64,
    /// Share of bytes that were sent again.
    pub again_share: f64,
    /// Shares of the time: with anything to send, held by this side's window, held by the agent's send buffer.
    pub busy_shares: [f64; 3],
    /// In force at the agent's sockets.
    pub congestion: String,
    /// What the agent may send in a second, if that is limited. Older ones say what others left of it.
    pub limit_bytes_per_s: Option<u64>,
    /// What others of its host left of that.
    #[serde(default)]
    pub share_bytes_per_s: Option<u64>,
}

impl Measured {
    fn of(probe: Probe, limit: Option<u64>, share: Option<u64>) -> Measured {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Measured {
            connections: u32::try_from(probe.stripes).unwrap_or(u32::MAX),
            goodput_bytes_per_s: probe.goodput,
            rtt_us: us(probe.rtt),
            rtt_min_us: us(probe.rtt_min),
            again_share: probe.again,
            busy_shares: probe.busy,
            congestion: probe.congestion,
            limit_bytes_per_s: limit,
            share_bytes_per_s: share,
        }
    }

    /// As a probe, with what a peer said made fit to be shown.
    pub fn probe(self) -> Probe {
        let share = |share: f64| share.clamp(0.0, 1.0);
        Probe {
            stripes: self.connections as usize,
            goodput: self.goodput_bytes_per_s.max(0.0),
            rtt: Duration::from_micros(self.rtt_us),
            rtt_min: Duration::from_micros(self.rtt_min_us),
            again: share(self.again_share),
            busy: self.busy_shares.map(share),
            congestion: printable(self.congestion),
        }
    }
}

/// Refuses an agent that does not know of the way back.
pub(crate) fn check(announced: &Announced) -> Result<(), Refusal> {
    if announced.has(MEASURE) {
        return Ok(());
    }
    let why = format!(
        "it is drover {} and does not know how to send to be measured: update drover on its host, and start it again",
        announced.version
    );
    Err(Refusal::new(DiskErrorKind::Unsupported, why))
}

/// Sends to a peer's sink for that long, and no longer whatever the peer does.
pub(crate) fn send(session: &Session, time: Duration) -> Result<Measured, Refusal> {
    if time > MEASURE_TIME_MAX {
        let why = format!("a measurement takes {} s at most", MEASURE_TIME_MAX.as_secs());
        return Err(Refusal::new(DiskErrorKind::Misuse, why));
    }
    let probe = probe_within(session, (SETTLE, time), None)?;
    // It may have changed meanwhile, as others came and went: what it is now is told.
    Ok(Measured::of(probe, session.rate_limit_whole(), session.rate_limit()))
}

/// Takes what the agent sends in a session, until that is over. It may send to be measured, one stream at a time, and
/// nothing else.
pub(crate) fn take(session: &Session) {
    while let Ok(Incoming { channel, opening, .. }) = session.accept() {
        match serde_json::from_slice(&opening) {
            Ok(Opening::Sink) if channel.order() == Order::Stream => sink(channel),
            _ => channel.split().0.reset(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_of_a_measurement_is_bounded_before_it_is_shown() {
        let said = r#"{"connections":4294967295,"goodput_bytes_per_s":-1e300,"rtt_us":18446744073709551615,"rtt_min_us":0,
            "again_share":7.0,"busy_shares":[-1,0.5,9],"congestion":"b\u001b[2Jbr","limit_bytes_per_s":null,"later":1}"#;
        let measured = serde_json::from_str::<Measured>(said).unwrap();
        assert_eq!(measured.share_bytes_per_s, None, "an older one tells none");
        let probe = measured.probe();
        assert_eq!((probe.goodput, probe.again, probe.busy), (0.0, 1.0, [0.0, 0.5, 1.0]));
        assert_eq!(probe.congestion, "b?[2Jbr");
    }
}
