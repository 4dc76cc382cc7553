//! `drover tune`.

use std::time::Duration;

use clap::Args;
use drover_wan::line::units::{Rate, time};

const AFTER: &str = "\
Nothing is changed. The lines that are printed go into a file such as /etc/sysctl.d/90-drover.conf; `sysctl --system` \
applies them. The sender's host decides on congestion control, both on buffers.

Examples:
  drover tune
  drover tune --rate 10g --rtt 55ms
  drover tune --json";

#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub struct HostTuneArgs {
    /// Rate that one connection should fill, in bits a second
    #[arg(long, requires = "rtt", value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Round trip of the line
    #[arg(long, requires = "rate", value_parser = time, value_name = "TIME")]
    pub rtt: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
