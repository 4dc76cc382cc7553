//! The lines that programs are measured on.

use std::time::Duration;

use anyhow::{Context, Result};
use drover_wan::WanSpec;
use drover_wan::line::LineSpec;
use drover_wan::line::units::{Rate, Share, time};

use drover_lab::bench::{long_line, variable};

/// What a line does beside its rate and its length.
pub struct Condition {
    pub name: &'static str,
    loss: f64,
    burst: Option<f64>,
    /// Share of the line's rate that each session gets.
    policed: Option<f64>,
    /// Also at the rates behind the first.
    pub at_top: bool,
    /// The one line on which cubic is measured, too, if nothing else is asked.
    pub is_telling: bool,
}

/// The conditions of the table.
pub fn all() -> [Condition; 6] {
    let condition =
        |name, loss| Condition { name, loss, burst: None, policed: None, at_top: false, is_telling: false };
    [
        condition("no loss", 0.0),
        condition("0.1 % loss", 0.001),
        Condition { at_top: true, is_telling: true, ..condition("0.5 % loss", 0.005) },
        Condition { at_top: true, ..condition("1 % loss", 0.01) },
        Condition { burst: Some(20.0), ..condition("bursts (0.5 % in bursts of 20)", 0.005) },
        Condition { policed: Some(0.2), ..condition("policed (each session to 20 %, 0.5 % loss)", 0.005) },
    ]
}

/// What all lines have in common.
pub struct Ground {
    pub rates: Vec<Rate>,
    pub rtt: Duration,
    pub mtu: u32,
    pub seconds: f64,
}

impl Ground {
    pub fn from_environment() -> Result<Ground> {
        let rates: String = variable("DROVER_WAN_RATES", "1g 2g".to_string())?;
        let rtt: String = variable("DROVER_WAN_RTT", "55ms".to_string())?;
        Ok(Ground {
            rates: rates
                .split_whitespace()
                .map(|it| it.parse().context("DROVER_WAN_RATES"))
                .collect::<Result<_>>()?,
            rtt: time(&rtt).context("DROVER_WAN_RTT")?,
            mtu: variable("DROVER_WAN_MTU", 9_000)?,
            seconds: variable("DROVER_WAN_SECONDS", 5.0)?,
        })
    }

    /// What the bare line carries in the time given, in whole MiB.
    pub fn bytes(&self, rate: Rate) -> u64 {
        (rate.bytes_in(Duration::from_secs_f64(self.seconds)) >> 20).max(1) << 20
    }

    /// When a program is stopped.
    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds * 1.5 + 2.0)
    }

    pub fn spec(&self, rate: Rate, condition: &Condition, congestion: &str, seed: u64) -> WanSpec {
        let mut line = LineSpec::symmetric(Some(rate), self.rtt, Share::of_one(condition.loss));
        for direction in [&mut line.up, &mut line.down] {
            direction.burst = condition.burst;
            direction.police_flow =
                condition.policed.map(|share| Rate::bits((rate.bits_per_s() as f64 * share) as u64));
        }
        long_line(line, self.mtu, congestion, seed)
    }
}
