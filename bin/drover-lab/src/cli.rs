//! The command line.

mod bench;
#[cfg(test)]
mod tests;
mod wan;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

pub use bench::{AccelArg, BenchCommand, BenchMemoryArgs, By, MemoryUse, Pattern, Place, Way, Writes};
pub use wan::{DirectionArgs, LineArgs, WanArgs, WanControl};

/// Measures lines, cards and moves of running guests on this host, with drover and without.
#[derive(Debug, Parser)]
#[command(name = "drover-lab", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure drover beside other programs
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Run a command at the near end of a long, narrow, lossy line
    Wan(Box<WanArgs>),
    /// In a clone: move VMs of a simulated vCenter to QEMU
    Demo,
    /// In a clone: the same to Kubernetes, by the operator
    DemoKube,
    /// Print shell completions
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Write man pages into a folder
    Man {
        /// Folder
        folder: PathBuf,
    },
}
