//! Rates and times with their spread: measured, given, or assumed with a source.

use std::collections::BTreeMap;
use std::fmt;

use drover_copy::converge::{UNSEEN_BOOT, UNSEEN_SHUTDOWN};
use drover_types::Estimate;
use serde::{Deserialize, Serialize};

use crate::quantile::Spread;

/// Standard deviations from the middle to P90 of a normal distribution.
const Z90: f64 = 1.2816;

/// Where a quantity comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// So many samples of earlier runs.
    Measured(usize),
    /// The command line or the plan.
    Given,
    /// Nothing of it was measured; by this source.
    Assumed(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Measured(1) => f.write_str("measured once"),
            Origin::Measured(samples) => write!(f, "measured, {samples} samples"),
            Origin::Given => f.write_str("given"),
            Origin::Assumed(source) => write!(f, "assumed: {source}"),
        }
    }
}

/// Something that is not known exactly: nine times of ten it is above `p10`, once in ten above `p90`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// P10, P50, P90.
    #[serde(flatten)]
    pub spread: Spread,
    /// Where it comes from.
    pub origin: Origin,
    /// When the latest of its samples was taken, in milliseconds since 1970; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_ms: Option<i64>,
}

impl Quantity {
    /// One that is known.
    pub fn given(value: f64) -> Quantity {
        Quantity {
            spread: Spread { p10: value, p50: value, p90: value },
            origin: Origin::Given,
            measured_ms: None,
        }
    }

    fn assumed([p10, p50, p90]: [f64; 3], source: &str) -> Quantity {
        let origin = Origin::Assumed(source.to_string());
        Quantity { spread: Spread { p10, p50, p90 }, origin, measured_ms: None }
    }

    fn assumed_time(estimate: Estimate, source: &str) -> Quantity {
        let Estimate { likely, spread } = estimate;
        Quantity::assumed([(likely - spread).max(likely / 10.0), likely, likely + spread], source)
    }

    /// Of samples: their quantiles, or around a few of them a quarter to each side at the least. `None` of none.
    pub fn measured(samples: impl IntoIterator<Item = f64>) -> Option<Quantity> {
        let samples: Vec<f64> =
            samples.into_iter().filter(|value| value.is_finite() && *value > 0.0).collect();
        let Spread { p10, p50, p90 } = Spread::of(samples.iter().copied())?;
        let least = if samples.len() < SAMPLES_ENOUGH { SPREAD_OF_FEW } else { SPREAD_LEAST };
        let spread = Spread { p10: p10.min(p50 / (1.0 + least)), p50, p90: p90.max(p50 * (1.0 + least)) };
        Some(Quantity { spread, origin: Origin::Measured(samples.len()), measured_ms: None })
    }

    /// The same of samples of which the latest was taken then.
    pub fn on(self, measured_ms: Option<i64>) -> Quantity {
        Quantity { measured_ms, ..self }
    }

    /// Whether earlier runs tell it.
    pub fn is_measured(&self) -> bool {
        matches!(self.origin, Origin::Measured(_))
    }

    /// Its value so many standard deviations from the middle: log-normal to each side.
    pub fn at(&self, z: f64) -> f64 {
        let Spread { p10, p50, p90 } = self.spread;
        if p50 <= 0.0 {
            return 0.0;
        }
        let edge = if z < 0.0 { p10 } else { p90 };
        p50 * (edge.max(p50 / FAR) / p50).powf(z.abs() / Z90)
    }
}

/// Fewer samples tell little of the spread.
const SAMPLES_ENOUGH: usize = 8;
/// What few samples may be off by, as a share.
const SPREAD_OF_FEW: f64 = 0.25;
/// What was measured often may still differ the next time, by this share.
const SPREAD_LEAST: f64 = 0.05;
/// No P10 counts as less than this part of P50.
const FAR: f64 = 1000.0;

/// All that a forecast goes by. Rates are in bytes a second, times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// One disk alone.
    pub stream: Quantity,
    /// All disks of a host.
    pub host: Quantity,
    /// All disks of a datastore.
    pub datastore: Quantity,
    /// The line to the target.
    pub link: Quantity,
    /// Writing to the target, all disks together.
    pub pool: Quantity,
    /// Reading the target back, one VM.
    pub verify: Quantity,
    /// Before the copy: a look at the VM, the snapshot.
    pub snapshot_s: Quantity,
    /// From the wish to shut down to a guest that is off.
    pub shutdown_s: Quantity,
    /// From the proof to a machine that runs: conversion, definition, start, clean-up.
    pub start_s: Quantity,
    /// Share of a disk's data that changes in an hour.
    pub churn: Quantity,
    /// All disks of single datastores, where that was measured ([`Rates::datastore_key`]).
    #[serde(default)]
    pub datastores: BTreeMap<String, Quantity>,
    /// Writing to single folders or pools of this machine, where that was measured.
    #[serde(default)]
    pub pools: BTreeMap<String, Quantity>,
    /// The lines to single sites, where that was measured: bytes of disks, packed or not.
    #[serde(default)]
    pub sites: BTreeMap<String, Quantity>,
}

const MIB: f64 = (1 << 20) as f64;
const R1: &str = "MTV performance recommendations (2025)";
const OWN: &str = "drover's own default; measure it";

impl Default for Rates {
    /// What is assumed where nothing was measured.
    ///
    /// Sources: `docs/how-to/forecast.md`, the table of assumptions; a test holds it against this.
    fn default() -> Rates {
        let mib = |low: f64, likely: f64, high: f64| [low * MIB, likely * MIB, high * MIB];
        Rates {
            stream: Quantity::assumed(mib(73.0, 100.0, 162.0), R1),
            host: Quantity::assumed(mib(241.0, 284.0, 312.0), R1),
            datastore: Quantity::assumed(mib(312.0, 621.0, 800.0), R1),
            link: Quantity::assumed(mib(1_000.0, 1_173.0, 1_192.0), R1),
            pool: Quantity::assumed(mib(637.0, 1_173.0, 1_242.0), R1),
            verify: Quantity::assumed(mib(100.0, 400.0, 1_000.0), OWN),
            snapshot_s: Quantity::assumed([2.0, 5.0, 20.0], OWN),
            shutdown_s: Quantity::assumed_time(UNSEEN_SHUTDOWN, OWN),
            start_s: Quantity::assumed_time(UNSEEN_BOOT, OWN),
            churn: Quantity::assumed([0.0005, 0.005, 0.03], OWN),
            datastores: BTreeMap::new(),
            pools: BTreeMap::new(),
            sites: BTreeMap::new(),
        }
    }
}

impl Rates {
    /// What a datastore of a source is called in [`Rates::datastores`]: two sources may each have a `datastore1`.
    pub fn datastore_key(source: &str, datastore: &str) -> String {
        format!("{source}/{datastore}")
    }

    /// Each with its name and whether it is a rate in bytes (else seconds, or a share an hour).
    pub fn named(&self) -> [(&'static str, Unit, &Quantity); 10] {
        [
            ("one disk", Unit::Rate, &self.stream),
            ("a host", Unit::Rate, &self.host),
            ("a datastore", Unit::Rate, &self.datastore),
            ("the link", Unit::Rate, &self.link),
            ("the target", Unit::Rate, &self.pool),
            ("verification of a VM", Unit::Rate, &self.verify),
            ("look and snapshot", Unit::Seconds, &self.snapshot_s),
            ("shutdown", Unit::Seconds, &self.shutdown_s),
            ("conversion, start", Unit::Seconds, &self.start_s),
            ("churn", Unit::ShareOfAnHour, &self.churn),
        ]
    }
}

/// Unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes a second.
    Rate,
    /// Seconds.
    Seconds,
    /// A share (1 is all) an hour.
    ShareOfAnHour,
}

/// The share that changes in an hour, of `2%/h` or `10%/d`.
///
/// # Errors
/// What is wrong with it.
pub fn churn_of(text: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is not a share of the data in a time, such as 2%/h or 10%/d");
    let (number, time) = text.split_once("%/").ok_or_else(wrong)?;
    let hours = match time {
        "h" => 1.0,
        "d" => 24.0,
        _ => return Err(wrong()),
    };
    let percent: f64 = number.parse().map_err(|_| wrong())?;
    if (0.0..=10_000.0).contains(&percent) { Ok(percent / 100.0 / hours) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_at_its_quantiles_where_a_normal_distribution_has_them() {
        let it = Quantity::assumed([50.0, 100.0, 400.0], "a test");
        for (z, value) in [(-Z90, 50.0), (0.0, 100.0), (Z90, 400.0), (2.0 * Z90, 1600.0)] {
            assert!((it.at(z) / value - 1.0).abs() < 1e-9, "{z}: {}", it.at(z));
        }
        assert_eq!(Quantity::given(7.0).at(-3.0), 7.0);
        assert_eq!(Quantity::given(0.0).at(1.0), 0.0);
    }

    #[test]
    fn churn_is_a_share_in_a_time() {
        assert_eq!(
            (churn_of("2%/h"), churn_of("24%/d"), churn_of("0.5%/h")),
            (Ok(0.02), Ok(0.01), Ok(0.005))
        );
        for text in ["", "2%", "2/h", "2%/w", "-1%/h", "NaN%/h", "inf%/h", "2 %/h"] {
            assert!(churn_of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn few_samples_are_not_believed_to_the_last_digit() {
        let few = Quantity::measured([100.0, 100.0]).unwrap();
        assert_eq!((few.spread.p10, few.spread.p90, &few.origin), (80.0, 125.0, &Origin::Measured(2)));
        let many = Quantity::measured((0..100).map(|n| 50.0 + f64::from(n))).unwrap();
        assert_eq!((many.spread.p10, many.spread.p50, many.spread.p90), (59.0, 99.0, 139.0));
        assert_eq!(Quantity::measured([f64::NAN, 0.0, f64::INFINITY]), None);
    }
}
