//! Arguments of `assess`, `forecast` and `simulate`.

use std::path::PathBuf;

use clap::Args;

use super::ProviderArgs;

#[derive(Debug, Args)]
pub struct AssessArgs {
    #[command(flatten)]
    pub provider: ProviderArgs,
    /// Write one self-contained HTML page to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
