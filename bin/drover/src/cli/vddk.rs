//! `drover vddk`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum VddkCommand {
    /// Check whether disks can be read through VDDK: library, plugin, versions, and one disk if there is a plan
    Check(VddkCheckArgs),
    /// Explain known causes of failures in logs of VDDK, nbdkit, and a host's NFC servers (vpxa, hostd)
    Logs(VddkLogsArgs),
}

#[derive(Debug, Args)]
pub struct VddkCheckArgs {
    /// Plan file; one disk of a switched-off VM of it is opened and read
    #[arg(required_unless_present = "libdir")]
    pub plan: Option<PathBuf>,
    /// VDDK's folder, to look at library and plugin only
    #[arg(long, value_name = "FOLDER", conflicts_with = "plan")]
    pub libdir: Option<PathBuf>,
    /// nbdkit's vddk plugin as a file
    #[arg(long, value_name = "FILE", requires = "libdir")]
    pub plugin: Option<PathBuf>,
    /// Name of the VM to read, at the target [default: the first that is off]
    #[arg(long, value_name = "NAME", requires = "plan")]
    pub vm: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VddkLogsArgs {
    /// Log files: vddk.log, what nbdkit said, drover's IMAGE.vddk.log, or vpxa.log and hostd.log of a host
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
