//! Arguments of `drover serve`, and how other commands reach it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::agent::LimitArg;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ServeArgs {
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    /// Listen here; port 0 takes a free one [default: 127.0.0.1:8420]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// File with settings: listen, tls.certificate, tls.key, anonymous_view, open_metrics, targets
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// How much all plans together may read of their sources in a second, beside their own rate_limit: RATE, or WINDOW=RATE
    /// such as "Mon-Fri 08:00-18:00 Europe/Berlin=200m"; may be given more than once, the lowest of those that hold counts
    #[arg(long, value_name = "LIMIT")]
    pub rate_limit: Vec<LimitArg>,
    /// Print one JSON object when it listens, on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    /// Say who may use the API
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Show who ordered what, the latest first
    Audit(AuditArgs),
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it; only its hash is kept
    Add(TokenAddArgs),
    /// Show the tokens by name
    List(TokenListArgs),
    /// Forget a token; it lets nobody in any more
    Remove(TokenNamedArgs),
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// To look
    Viewer,
    /// To submit plans and give orders about them
    Operator,
    /// To read the audit log, too
    Admin,
}

#[derive(Debug, Args)]
pub struct TokenAddArgs {
    /// Name, which the audit log shows
    pub name: String,
    /// What it allows
    #[arg(long, value_enum)]
    pub role: RoleArg,
    /// Only for the plans of this project [default: all]
    #[arg(long)]
    pub project: Option<String>,
    #[command(flatten)]
    pub of: TokenListArgs,
}

#[derive(Debug, Args)]
pub struct TokenNamedArgs {
    /// Name
    pub name: String,
    #[command(flatten)]
    pub of: TokenListArgs,
}

#[derive(Debug, Args)]
pub struct TokenListArgs {
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Lines to show
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub limit: usize,
    #[command(flatten)]
    pub of: TokenListArgs,
}

/// How to reach a daemon.
#[derive(Debug, Default, Args)]
pub struct ServerArgs {
    /// Let the daemon at this address do it; its token is in --token-file, or in the variable DROVER_TOKEN
    #[arg(long, env = "DROVER_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// File with the token for --server
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate authorities to trust for --server
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_ca_file: Option<PathBuf>,
    /// Project that a plan is submitted to [default: default]
    #[arg(long, requires = "server")]
    pub project: Option<String>,
}
