//! `drover-lab wan`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use drover_types::units::{Cap, Rate, Share, burst, outage, reorder, size, time};

const AFTER: &str = "\
The command runs in a network namespace of its own, from which only the far end can be reached: its address is in \
DROVER_WAN_FAR (DROVER_WAN_FAR6), its own in DROVER_WAN_NEAR (DROVER_WAN_NEAR6), all of them in DROVER_WAN_FARS and \
DROVER_WAN_NEARS. Needs root, /dev/net/tun and iproute2. Nothing is left behind, however it ends.

Ends with the command's exit code; 125 if there is no line, 126 or 127 if the command cannot be started.

Limits: the emulator is one thread. On 2 cores beside its load it is true up to about 2 Gbit/s; what it prints at the \
end says how late it was and whether figures are in doubt. See docs/dev/lab-wan.md.

Examples:
  drover-lab wan --rate 1g --rtt 55ms --loss 0.5% --congestion bbr --tcp-mem 64m --far 'iperf3 -s' -- sh -c 'iperf3 -c $DROVER_WAN_FAR'
  drover-lab wan --rate 1g --rtt 55ms --police-flow 20% --outage 10s@30s -- bash
  drover-lab wan ctl outage 10s";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER)]
pub struct WanArgs {
    #[command(subcommand)]
    pub control: Option<WanControl>,
    #[command(flatten)]
    pub line: LineArgs,
    /// Largest IP packet, in bytes
    #[arg(long, default_value_t = 1_500, value_name = "BYTES")]
    pub mtu: u32,
    /// Addresses of the near end
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub near_addresses: u8,
    /// Addresses of the far end
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub far_addresses: u8,
    /// Most bytes of TCP's buffers at both ends (tcp_rmem, tcp_wmem) [default: what the kernel has]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub tcp_mem: Option<u64>,
    /// Congestion control at both ends, bbr or cubic, read back from a socket [default: what the kernel has]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Congestion control of what the far end sends
    #[arg(long, value_name = "NAME")]
    pub far_congestion: Option<String>,
    /// Seed of all chance
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Run this by /bin/sh at the far end first; it is ended when CMD has ended
    #[arg(long, value_name = "CMD")]
    pub far: Option<String>,
    /// Wait until the far end listens on this TCP port [default: on any, 2 s at most]
    #[arg(long, value_name = "PORT", requires = "far")]
    pub far_port: Option<u16>,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// What to run at the near end
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub up: UpArgs,
    #[command(flatten)]
    pub down: DownArgs,
}

#[derive(Debug, Subcommand)]
pub enum WanControl {
    /// Give a line in use an order: outage TIME, cut, mend, loss SHARE [BURST], rate RATE|max, delay TIME (each [up|down]), rtt TIME, status
    Ctl {
        /// The line's socket [default: DROVER_WAN_CONTROL, or the only line in use]
        #[arg(long, env = "DROVER_WAN_CONTROL", value_name = "PATH")]
        socket: Option<PathBuf>,
        /// The order
        #[arg(required = true)]
        order: Vec<String>,
    },
}

/// What is asked of both directions.
#[derive(Debug, Args)]
pub struct LineArgs {
    /// Bits of IP packets per second in each direction: 1g, 200m [default: as fast as the machine]
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Round trip of the idle line; half of it is each direction's delay
    #[arg(long, value_parser = time, default_value = "0s", value_name = "TIME")]
    pub rtt: Duration,
    /// Share of the packets that are lost, in each direction: 0.5%
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub loss: Share,
    /// Losses come in bursts of this many packets on average (Gilbert)
    #[arg(long, value_parser = burst, value_name = "N")]
    pub burst: Option<f64>,
    /// The delay wanders by up to this to either side; packets keep their order
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub jitter: Option<Duration>,
    /// Share of the packets that are overtaken, and how long they are held back: 1%:2ms [default: 1ms]
    #[arg(long, value_parser = reorder, value_name = "SHARE[:TIME]")]
    pub reorder: Option<(Share, Option<Duration>)>,
    /// Bytes that may wait for the rate; more are dropped [default: one round trip, at least 256k]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub queue: Option<u64>,
    /// Police each session to a rate, or a share of the line's: what is too fast is dropped
    #[arg(long, value_name = "RATE|SHARE")]
    pub police_flow: Option<Cap>,
    /// Shape each session to a rate, or a share of the line's: what is too fast waits
    #[arg(long, value_name = "RATE|SHARE")]
    pub shape_flow: Option<Cap>,
    /// Nothing passes for a time, from a time after the start: 10s@30s; may be given often
    #[arg(long = "outage", value_parser = outage, value_name = "TIME@TIME")]
    pub outages: Vec<(Duration, Duration)>,
}

/// What is asked of one direction; it goes before what is asked of both.
#[derive(Debug, Default)]
pub struct DirectionArgs {
    pub rate: Option<Rate>,
    pub delay: Option<Duration>,
    pub loss: Option<Share>,
    pub burst: Option<f64>,
    pub jitter: Option<Duration>,
    pub reorder: Option<(Share, Option<Duration>)>,
    pub queue: Option<u64>,
    pub police_flow: Option<Cap>,
    pub shape_flow: Option<Cap>,
    pub outages: Vec<(Duration, Duration)>,
}

macro_rules! direction {
    ($name:ident, $heading:literal, $way:literal) => {
        #[derive(Debug, Args)]
        #[command(next_help_heading = $heading)]
        pub struct $name {
            #[arg(id = concat!($way, "_rate"), long = concat!($way, "-rate"), help = "Its rate")]
            rate: Option<Rate>,
            #[arg(id = concat!($way, "_delay"), long = concat!($way, "-delay"), value_parser = time,
                          value_name = "TIME", help = "Its one-way delay")]
            delay: Option<Duration>,
            #[arg(id = concat!($way, "_loss"), long = concat!($way, "-loss"), value_name = "SHARE",
                          help = "Its loss")]
            loss: Option<Share>,
            #[arg(id = concat!($way, "_burst"), long = concat!($way, "-burst"), value_parser = burst,
                          value_name = "N", help = "Its bursts")]
            burst: Option<f64>,
            #[arg(id = concat!($way, "_jitter"), long = concat!($way, "-jitter"), value_parser = time,
                          value_name = "TIME", help = "Its jitter")]
            jitter: Option<Duration>,
            #[arg(id = concat!($way, "_reorder"), long = concat!($way, "-reorder"), value_parser = reorder,
                          value_name = "SHARE[:TIME]", help = "Its reordering")]
            reorder: Option<(Share, Option<Duration>)>,
            #[arg(id = concat!($way, "_queue"), long = concat!($way, "-queue"), value_parser = size,
                          value_name = "SIZE", help = "Its queue")]
            queue: Option<u64>,
            #[arg(id = concat!($way, "_police_flow"), long = concat!($way, "-police-flow"),
                          value_name = "RATE|SHARE", help = "Its policing of sessions")]
            police_flow: Option<Cap>,
            #[arg(id = concat!($way, "_shape_flow"), long = concat!($way, "-shape-flow"),
                          value_name = "RATE|SHARE", help = "Its shaping of sessions")]
            shape_flow: Option<Cap>,
            #[arg(id = concat!($way, "_outage"), long = concat!($way, "-outage"), value_parser = outage,
                          value_name = "TIME@TIME", help = "Its outages, beside those of both directions")]
            outages: Vec<(Duration, Duration)>,
        }

        impl From<&$name> for DirectionArgs {
            fn from(args: &$name) -> DirectionArgs {
                DirectionArgs {
                    rate: args.rate,
                    delay: args.delay,
                    loss: args.loss,
                    burst: args.burst,
                    jitter: args.jitter,
                    reorder: args.reorder,
                    queue: args.queue,
                    police_flow: args.police_flow,
                    shape_flow: args.shape_flow,
                    outages: args.outages.clone(),
                }
            }
        }
    };
}

direction!(UpArgs, "From near to far only", "up");
direction!(DownArgs, "From far to near only", "down");
