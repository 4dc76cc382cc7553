//! Where guests move: on this host, or between the ends of a long line.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use drover_lab::bench::variable;
use drover_lab::{Pulse, PulseOptions};
use drover_wan::line::LineSpec;
use drover_wan::line::units::{Rate, Share, time};
use drover_wan::{Wan, WanSpec};

use crate::ways::Way;

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Here,
    Line,
}

impl Place {
    pub fn word(self) -> &'static str {
        match self {
            Place::Here => "here",
            Place::Line => "line",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Place::Here => "on loopback",
            Place::Line => "over the line",
        }
    }
}

/// Packets of the reference figures.
const MTU: u32 = 9000;

/// What the line is like.
pub struct Line {
    rate: Rate,
    rtt: Duration,
    loss: Share,
}

impl Line {
    pub fn from_environment() -> Result<Line> {
        let text = |name: &str, default: &str| variable(name, default.to_string());
        Ok(Line {
            rate: text("DROVER_LIVE_RATE", "1g")?.parse().context("DROVER_LIVE_RATE")?,
            rtt: time(&text("DROVER_LIVE_RTT", "55ms")?).context("DROVER_LIVE_RTT")?,
            loss: text("DROVER_LIVE_LOSS", "0.5%")?.parse().context("DROVER_LIVE_LOSS")?,
        })
    }

    fn lay(&self, congestion: &str, seed: u64) -> Result<Wan> {
        let line = LineSpec::symmetric(Some(self.rate), self.rtt, self.loss);
        Ok(Wan::start(&WanSpec::long(line, MTU, congestion, seed))?)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, round trip {:?}, {} lost, MTU {MTU}", self.rate, self.rtt, self.loss)
    }
}

/// Two hosts.
pub enum Ground {
    Here,
    Line(Box<Wan>),
}

impl Ground {
    pub fn lay(way: &Way, line: &Line, seed: u64) -> Result<Ground> {
        Ok(match way.place {
            Place::Here => Ground::Here,
            Place::Line => Ground::Line(Box::new(line.lay(way.congestion, seed)?)),
        })
    }

    /// The target host's address.
    pub fn far_address(&self) -> IpAddr {
        match self {
            Ground::Here => Ipv4Addr::LOCALHOST.into(),
            Ground::Line(wan) => wan.far.address().into(),
        }
    }

    /// A guest at the source.
    pub fn source(&self, folder: &Path, options: &PulseOptions) -> Result<Pulse> {
        match self {
            Ground::Here => Pulse::start(folder, options),
            Ground::Line(wan) => wan.near.run(|| Pulse::start(folder, options))?,
        }
    }

    /// A QEMU that waits for it at the target.
    pub fn target(&self, folder: &Path, options: &PulseOptions) -> Result<Pulse> {
        match self {
            Ground::Here => Pulse::waiting(folder, options),
            Ground::Line(wan) => wan.far.run(|| Pulse::waiting(folder, options))?,
        }
    }

    /// Starts a program at the source.
    pub fn near(&self, command: &mut Command) -> Result<Child> {
        Ok(match self {
            Ground::Here => command.spawn()?,
            Ground::Line(wan) => wan.near.spawn(command)?,
        })
    }

    /// Starts a program at the target.
    pub fn far(&self, command: &mut Command) -> Result<Child> {
        Ok(match self {
            Ground::Here => command.spawn()?,
            Ground::Line(wan) => wan.far.spawn(command)?,
        })
    }

    /// Ends it; says what speaks against figures that were taken on it.
    pub fn leave(self) -> Result<Option<String>> {
        match self {
            Ground::Here => Ok(None),
            Ground::Line(wan) => Ok(wan.stop()?.doubt()),
        }
    }
}
