//! `drover nfc`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::SecretArgs;

#[derive(Debug, Subcommand)]
pub enum NfcCommand {
    /// Read a disk of a VM that is off for five seconds by NFC: rate, buffers, compression, what limits it
    Check(NfcCheckArgs),
}

#[derive(Debug, Args)]
pub struct NfcCheckArgs {
    /// The disk: HOST[:PORT]/VM/DISK, of a vCenter or ESXi host (DISK counts from 0)
    pub disk: String,
    /// User, for vCenter with its domain (administrator@vsphere.local)
    #[arg(long, short, env = "DROVER_USER")]
    pub user: Option<String>,
    #[command(flatten)]
    pub secret: SecretArgs,
    /// Read a VM that runs from a snapshot, which is made for this and removed again
    #[arg(long)]
    pub snapshot: bool,
    /// Read from this address of the host, as plans do with `from: hosts`
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Without NFCSSL, as `encrypted: false`: the data goes in clear text
    #[arg(long)]
    pub clear_text: bool,
    /// Write messages and heads of frames to a file: neither data nor tickets
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
