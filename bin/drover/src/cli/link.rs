//! `drover link` and `drover tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use drover_link::RdmaMode;
use drover_types::units::{Rate, time};

#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// Measure the line to a site, with --back also from it: round trip, loss, rate over 1, 2, 4, 8 and 16
    /// connections, and what limits it
    Test(LinkTestArgs),
}

const TEST_AFTER: &str = "\
It fills the line while it runs. \"Sent again\" is the share of bytes that this host's kernel sent more than once on the way there (TCP_INFO), \
which is the loss of the line and what was sent again in vain.

Examples:
  drover link test site-b
  drover link test site-b --stripes 1,32 --time 10s
  drover link test site-b --back
  drover link test site-b --rdma never
  drover link test site-b --json";

#[derive(Debug, Args)]
#[command(after_help = TEST_AFTER)]
pub struct LinkTestArgs {
    /// Site, as `drover agent list` names it
    pub site: String,
    /// Numbers of connections to try
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16], value_name = "N,...", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub stripes: Vec<u16>,
    /// How long each number is measured, after 1 s of settling
    #[arg(long, default_value = "3s", value_parser = time, value_name = "TIME")]
    pub time: Duration,
    /// Also measure the way back: the site sends for up to 60 s each, and reports what its kernel saw
    #[arg(long)]
    pub back: bool,
    /// Over RDMA or TCP [default: as it was paired]
    #[arg(long, value_name = "auto|never|require")]
    pub rdma: Option<RdmaMode>,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const AFTER: &str = "\
Nothing is changed. With plans, each piece of advice names what it was found by, and what the schedule of `drover forecast` gains by it. \
Without plans this host's kernel is looked at. The lines that are printed go into a file such as /etc/sysctl.d/90-drover.conf; `sysctl --system` \
applies them. The sender's host decides on congestion control, both on buffers.

Examples:
  drover tune
  drover tune --rate 10g --rtt 55ms
  drover tune web.yaml db.yaml
  drover tune --json";

#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub struct HostTuneArgs {
    /// Plan files, run at the same time: what would make them faster, or keep them in their windows
    pub plans: Vec<PathBuf>,
    /// Rate that one connection should fill, in bits a second
    #[arg(long, requires = "rtt", conflicts_with = "plans", value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Round trip of the line
    #[arg(long, requires = "rate", value_parser = time, value_name = "TIME")]
    pub rtt: Option<Duration>,
    /// Folder of drover's state, whose earlier runs tell rates [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
