//! Arguments of `drover nbd`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum NbdCommand {
    /// List what a server exports: names, sizes, block sizes, and what its block status tells
    List(NbdListArgs),
}

const AFTER: &str = "\
Contexts are what the server can tell of an export besides its bytes: base:allocation says what reads as zeros, \
qemu:dirty-bitmap:NAME what was written since QEMU began that bitmap (`drover copy --bitmap NAME`).

Examples:
  drover nbd list nbd://host
  drover nbd list 'nbd+unix:///?socket=/run/vm/disk.sock' --json";

#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub struct NbdListArgs {
    /// nbd://HOST[:PORT], nbds://..., nbd+unix:///?socket=PATH or nbds+unix://...; an export's name in it has no part
    pub uri: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
