//! What a line is asked to be.

use std::time::Duration;

use super::units::{Rate, Share};

/// Outages that can be planned ahead in one direction.
pub const OUTAGES_MAX: usize = 64;

/// The smallest queue that is chosen by itself: four super-packets.
pub const QUEUE_MIN: u64 = 256 << 10;

/// How long held-back segments wait if nothing is said.
pub const REORDER_BY: Duration = Duration::from_millis(1);

/// One direction of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionSpec {
    /// Bits of IP packets per second; `None`: as fast as the machine.
    pub rate: Option<Rate>,
    /// One-way delay, after the last bit was sent.
    pub delay: Duration,
    /// Share of the segments that are lost.
    pub loss: Share,
    /// Mean length of bursts of losses, in segments; `None`: each by itself.
    pub burst: Option<f64>,
    /// How far the delay wanders to either side.
    pub jitter: Duration,
    /// Share of the segments that are held back, so that later ones overtake them.
    pub reorder: Share,
    /// How long those are held back.
    pub reorder_by: Duration,
    /// Bytes that may wait for the rate; more are dropped. `None`: one round trip of the rate, at least [`QUEUE_MIN`].
    pub queue: Option<u64>,
    /// Each session is policed to this: what is too fast is dropped.
    pub police_flow: Option<Rate>,
    /// Each session is shaped to this: what is too fast waits.
    pub shape_flow: Option<Rate>,
    /// When nothing passes: from, and for how long. At most [`OUTAGES_MAX`].
    pub outages: Vec<(Duration, Duration)>,
}

impl Default for DirectionSpec {
    /// A wire: no delay, no loss, no limit.
    fn default() -> Self {
        DirectionSpec {
            rate: None,
            delay: Duration::ZERO,
            loss: Share::NONE,
            burst: None,
            jitter: Duration::ZERO,
            reorder: Share::NONE,
            reorder_by: REORDER_BY,
            queue: None,
            police_flow: None,
            shape_flow: None,
            outages: Vec::new(),
        }
    }
}

/// A line: up is from the near side to the far one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineSpec {
    /// From near to far.
    pub up: DirectionSpec,
    /// From far to near.
    pub down: DirectionSpec,
}

impl LineSpec {
    /// The same in both directions; half of `rtt` is the delay of each.
    pub fn symmetric(rate: Option<Rate>, rtt: Duration, loss: Share) -> LineSpec {
        let direction = DirectionSpec { rate, delay: rtt / 2, loss, ..DirectionSpec::default() };
        LineSpec { up: direction.clone(), down: direction }
    }

    /// The round trip of an idle line.
    pub fn rtt(&self) -> Duration {
        self.up.delay + self.down.delay
    }

    /// The line with every queue said: those that were left open hold one round trip of their rate.
    pub fn with_queues(mut self) -> LineSpec {
        let rtt = self.rtt();
        for direction in [&mut self.up, &mut self.down] {
            let round = direction.rate.map(|rate| rate.bytes_in(rtt).max(QUEUE_MIN));
            direction.queue = direction.queue.or(round);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_left_open_holds_a_round_trip() {
        let rate = Some(Rate::bits(1_000_000_000));
        let spec = LineSpec::symmetric(rate, Duration::from_millis(55), Share::NONE).with_queues();
        assert_eq!(spec.up.queue, Some(6_875_000));
        let short = LineSpec::symmetric(rate, Duration::from_micros(1), Share::NONE).with_queues();
        assert_eq!(short.down.queue, Some(QUEUE_MIN));
        assert_eq!(LineSpec::default().with_queues().up.queue, None);
    }
}
