//! The lines that programs are measured on.

use std::time::Duration;

use anyhow::{Context, Result};
use drover_wan::WanSpec;
use drover_wan::line::LineSpec;
use drover_wan::line::units::{Rate, Share, time};

use crate::clone::shared::variable;

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

/// What a round of a line draws its chance from: its own for each, the same in each run of the bench, and one for all programs,
/// which are compared on the same losses. Round 0 is the idle line.
pub fn seed(rate: Rate, condition: &Condition, round: usize) -> u64 {
    // FNV-1a.
    let text = format!("{} bit/s, {}, round {round}", rate.bits_per_s(), condition.name);
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
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
        WanSpec::long(line, self.mtu, congestion, seed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_round_of_each_line_has_a_seed_of_its_own_that_stays() {
        let rates = [Rate::bits(1_000_000_000), Rate::bits(2_000_000_000)];
        let seeds = || {
            let conditions = all();
            let rounds = |rate: Rate| {
                let of = |condition: &Condition| {
                    (0..4).map(|round| seed(rate, condition, round)).collect::<Vec<_>>()
                };
                conditions.iter().flat_map(of).collect::<Vec<_>>()
            };
            rates.into_iter().flat_map(rounds).collect::<Vec<_>>()
        };
        let found: BTreeSet<u64> = seeds().into_iter().collect();
        assert_eq!(found.len(), 2 * 6 * 4);
        assert_eq!(seeds(), seeds());
    }
}
