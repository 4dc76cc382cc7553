//! *Pure*: what a line in use can be told.

use std::str::FromStr;
use std::time::Duration;

use crate::line::units::{Rate, Share, UnitError, burst, time};

/// Which directions an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// Near to far.
    Up,
    /// Far to near.
    Down,
    /// Both.
    Both,
}

impl Ways {
    /// Whether the direction is meant; 0 is up.
    pub fn has(self, way: usize) -> bool {
        matches!((self, way), (Ways::Both, _) | (Ways::Up, 0) | (Ways::Down, 1))
    }
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Nothing passes for this long; without a time, until it is mended.
    Cut(Option<Duration>, Ways),
    /// All passes again; outages planned for later are forgotten.
    Mend(Ways),
    /// Another loss, and length of its bursts.
    Loss(Share, Option<f64>, Ways),
    /// Another rate; `None` for as fast as the machine.
    Rate(Option<Rate>, Ways),
    /// Another one-way delay.
    Delay(Duration, Ways),
    /// Tell what became of the packets so far.
    Status,
}

/// Why an order is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Not one of them.
    #[error("no order '{0}'; there are: {ORDERS}")]
    Unknown(String),
    /// A quantity is wrong.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

/// How the orders are written.
pub const ORDERS: &str = "outage TIME [up|down], cut [up|down], mend [up|down], loss SHARE [BURST] [up|down], \
                          rate RATE|max [up|down], delay TIME [up|down], rtt TIME, status";

impl FromStr for Order {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Order, OrderError> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let ways = match words.last() {
            Some(&"up") => Ways::Up,
            Some(&"down") => Ways::Down,
            _ => Ways::Both,
        };
        if ways != Ways::Both {
            words.pop();
        }
        match words.as_slice() {
            ["outage", length] => Ok(Order::Cut(Some(time(length)?), ways)),
            ["cut"] => Ok(Order::Cut(None, ways)),
            ["mend"] => Ok(Order::Mend(ways)),
            ["loss", share] => Ok(Order::Loss(share.parse()?, None, ways)),
            ["loss", share, length] => Ok(Order::Loss(share.parse()?, Some(burst(length)?), ways)),
            ["rate", "max"] => Ok(Order::Rate(None, ways)),
            ["rate", rate] => Ok(Order::Rate(Some(rate.parse()?), ways)),
            ["delay", delay] => Ok(Order::Delay(time(delay)?, ways)),
            ["rtt", rtt] if ways == Ways::Both => Ok(Order::Delay(time(rtt)? / 2, ways)),
            ["status"] if ways == Ways::Both => Ok(Order::Status),
            _ => Err(OrderError::Unknown(text.trim().to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_as_they_are_told() {
        let order = |text: &str| text.parse::<Order>();
        assert_eq!(order("outage 10s"), Ok(Order::Cut(Some(Duration::from_secs(10)), Ways::Both)));
        assert_eq!(order(" cut  up "), Ok(Order::Cut(None, Ways::Up)));
        assert_eq!(order("mend"), Ok(Order::Mend(Ways::Both)));
        assert_eq!(order("loss 1%"), Ok(Order::Loss(Share::of_one(0.01), None, Ways::Both)));
        assert_eq!(order("loss 1% 20 down"), Ok(Order::Loss(Share::of_one(0.01), Some(20.0), Ways::Down)));
        assert_eq!(order("rate 1g up"), Ok(Order::Rate(Some(Rate::bits(1_000_000_000)), Ways::Up)));
        assert_eq!(order("rate max"), Ok(Order::Rate(None, Ways::Both)));
        assert_eq!(order("rtt 55ms"), Ok(Order::Delay(Duration::from_micros(27_500), Ways::Both)));
        assert_eq!(order("status"), Ok(Order::Status));
    }

    #[test]
    fn what_is_no_order_is_told_the_orders_there_are() {
        for text in ["", "up", "cut 10s", "outage", "loss 1% 2 3", "rtt 5ms up", "status down", "x"] {
            assert!(matches!(text.parse::<Order>(), Err(OrderError::Unknown(_))), "{text}");
        }
        assert!("x".parse::<Order>().unwrap_err().to_string().contains("outage TIME"));
        for text in ["outage 10", "loss 1% 0.5", "rate fast", "loss 2"] {
            assert!(matches!(text.parse::<Order>(), Err(OrderError::Unit(_))), "{text}");
        }
    }
}
