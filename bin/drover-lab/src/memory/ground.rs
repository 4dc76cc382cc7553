//! Where guests move: on this host, or between the ends of a long line.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Result;
use drover_console::Exit;
use drover_pulse::{Pulse, PulseSpec};
use drover_types::chain;
use drover_types::units::{Rate, Share};
use drover_wan::line::LineSpec;
use drover_wan::{Wan, WanError, WanSpec};

use super::keeper::mark;
use crate::cli::{BenchMemoryArgs, Place};
use crate::failure::Failure;

/// What the line is like.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    rate: Rate,
    rtt: Duration,
    loss: Share,
}

/// Packets of the reference figures.
const MTU: u32 = 9000;
/// The line of the reference figures: 1 Gbit/s, 55 ms, 0.5 % loss.
const RATE_BITS: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(55);
const LOSS: f64 = 0.005;

impl Line {
    pub fn of(args: &BenchMemoryArgs) -> Line {
        Line {
            rate: args.rate.unwrap_or(Rate::bits(RATE_BITS)),
            rtt: args.rtt.unwrap_or(RTT),
            loss: args.loss.unwrap_or(Share::of_one(LOSS)),
        }
    }

    /// Looks whether it can be laid here, with this congestion control.
    pub fn try_out(&self, congestion: &str) -> Result<(), Failure> {
        self.lay(congestion, 1).map(drop).map_err(|error| {
            let is_denied = matches!(&error, WanError::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied);
            let exit = if is_denied { Exit::Access } else { Exit::Plan };
            let why = format!("no line can be laid here, with {congestion}: {}", chain(&error));
            let failure = Failure::new(exit, why);
            failure.advise(error.advice().unwrap_or("--place here, which needs no line"))
        })
    }

    fn lay(&self, congestion: &str, seed: u64) -> Result<Wan, WanError> {
        let line = LineSpec::symmetric(Some(self.rate), self.rtt, self.loss);
        Wan::start(&WanSpec::long(line, MTU, congestion, seed))
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

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Target,
}

impl Ground {
    pub fn lay(place: Place, line: &Line, congestion: &str, seed: u64) -> Result<Ground> {
        Ok(match place {
            Place::Here => Ground::Here,
            Place::Line => Ground::Line(Box::new(line.lay(congestion, seed)?)),
        })
    }

    /// The target host's address.
    pub fn far_address(&self) -> IpAddr {
        match self {
            Ground::Here => Ipv4Addr::LOCALHOST.into(),
            Ground::Line(wan) => wan.far.address().into(),
        }
    }

    /// Where a target waits on a free port.
    pub fn tcp_uri(&self) -> String {
        format!("tcp:{}", SocketAddr::new(self.far_address(), 0))
    }

    /// A guest at the source, in a folder of its own in that of the bench.
    pub fn source(&self, folder: &Path, spec: &PulseSpec, bench: &Path) -> Result<Pulse> {
        Ok(Pulse::start_by(folder, spec, |command| self.start(End::Source, command, bench))?)
    }

    /// A QEMU that waits for it at the target.
    pub fn target(&self, folder: &Path, spec: &PulseSpec, bench: &Path) -> Result<Pulse> {
        Ok(Pulse::waiting_by(folder, spec, |command| self.start(End::Target, command, bench))?)
    }

    /// Starts a program, which ends with the bench of this folder.
    pub fn start(&self, end: End, command: &mut Command, bench: &Path) -> io::Result<Child> {
        mark(command, bench);
        match (self, end) {
            (Ground::Here, _) => command.spawn(),
            (Ground::Line(wan), End::Source) => wan.near.spawn(command),
            (Ground::Line(wan), End::Target) => wan.far.spawn(command),
        }
    }

    /// Ends it; says what speaks against figures that were taken on it.
    pub fn leave(self) -> Result<Option<String>> {
        match self {
            Ground::Here => Ok(None),
            Ground::Line(wan) => Ok(wan.stop()?.doubt()),
        }
    }
}
