//! The command line.

pub mod agent;
mod disks;
mod examples;
mod filter;
mod forecast;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod grammar;
mod help;
mod kubectl;
mod link;
mod live;
mod memory;
mod nbd;
mod nfc;
mod operator;
#[cfg(test)]
mod reference;
mod relay;
mod select;
mod serve;
mod vddk;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use drover_endpoint::ToldFormat;

pub use agent::AgentCommand;
use disks::formats;
pub use disks::{CopyArgs, HashArgs, LoginArgs, TuneArgs, VerifyArg, VerifyArgs};
pub use filter::FilterArgs;
pub use forecast::{AssessArgs, ForecastArgs, FormArgs, PlanWavesArgs, SimulateArgs, WhatIfArgs};
pub use help::{program, told};
pub use kubectl::{
    ClusterArgs, KubectlCommand, KubectlLogsArgs, KubectlProceedArgs, KubectlStatusArgs, KubectlVmsArgs,
    words,
};
pub use link::{HostTuneArgs, LinkCommand, LinkTestArgs};
pub use live::{AllowArg, DirectAt, DisksArg, LiveArgs, LiveCommand};
pub use memory::{CompressArg, MemoryArgs, ThrottleArg};
pub use nbd::{NbdCommand, NbdListArgs};
pub use nfc::{NfcCheckArgs, NfcCommand};
pub use operator::{OperatorArgs, OperatorCommand, OperatorWorkerArgs};
pub use relay::{RelayArgs, RelayCommand, TopArgs, Transparent};
pub use select::SelectArgs;
pub use serve::{
    AuditArgs, RoleArg, ServeArgs, ServeCommand, ServerArgs, TokenAddArgs, TokenCommand, TokenListArgs,
    TokenNamedArgs,
};
pub use vddk::{VddkCheckArgs, VddkCommand, VddkLogsArgs};

/// Moves virtual machines from VMware vSphere to QEMU/KVM and proves that what arrived is what left.
#[derive(Debug, Parser)]
#[command(name = "drover", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Whether and where it is told what goes on.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Tell what goes on, on standard error: requests, connections, choices, retries
    #[arg(long, short, global = true, display_order = 900)]
    pub verbose: bool,
    /// Write the same to this file, after what it holds
    #[arg(long, value_name = "FILE", global = true, display_order = 901)]
    pub log_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show VMs, hosts and networks of a provider, and concerns
    #[command(after_help = examples::INVENTORY)]
    Inventory(InventoryArgs),
    /// Sum up a provider: sizes, places, blockers; changes nothing
    #[command(after_help = examples::ASSESS)]
    Assess(AssessArgs),
    /// Foresee the time, downtimes and limits of plans; changes nothing
    #[command(after_help = examples::FORECAST)]
    Forecast(ForecastArgs),
    /// Hold the model of forecasts against published figures
    Simulate(SimulateArgs),
    /// Write and check plan files
    Plan {
        #[command(subcommand)]
        command: PlanCommand,
    },
    /// Run a plan: move its VMs
    #[command(after_help = examples::MIGRATE)]
    Migrate(MigrateArgs),
    /// Resume a plan that was interrupted or failed
    #[command(after_help = examples::RESUME)]
    Resume(ResumeArgs),
    /// Import an appliance (.ova, .ovf or a folder) as a VM
    #[command(after_help = examples::IMPORT)]
    Import(ImportArgs),
    /// Stop and undo a plan, or give single VMs of it up
    #[command(after_help = examples::CANCEL)]
    Cancel(CancelArgs),
    /// Stop a running plan; what was copied is kept
    #[command(after_help = examples::PAUSE)]
    Pause(PauseArgs),
    /// Show or change the limits of a plan while it runs
    #[command(after_help = examples::LIMITS)]
    Limits(LimitsArgs),
    /// Move VMs of a warm plan over now
    #[command(after_help = examples::CUTOVER)]
    Cutover(CutoverArgs),
    /// Boot copies without a network, and run the plan's checks
    #[command(after_help = examples::REHEARSE)]
    Rehearse(RehearseArgs),
    /// Let the waves after one that failed go on
    #[command(after_help = examples::PROCEED)]
    Proceed(ProceedArgs),
    /// Try failed VMs again while their plan goes on
    #[command(after_help = examples::RETRY)]
    Retry(RetryArgs),
    /// Remove every snapshot that drover made for a plan, or forget one
    #[command(after_help = examples::CLEAN)]
    Clean(CleanArgs),
    /// Show plans and the state of their VMs
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Show what a plan did: hashes, rates, timeline
    #[command(after_help = examples::REPORT)]
    Report(ReportArgs),
    /// Copy one disk
    #[command(after_help = examples::COPY)]
    Copy(CopyArgs),
    /// Print the root of a disk's hash tree
    #[command(after_help = examples::HASH)]
    Hash(HashArgs),
    /// Compare two disks, or a disk with a hash report
    #[command(after_help = examples::VERIFY)]
    Verify(VerifyArgs),
    /// Serve one disk over NBD
    #[command(after_help = examples::SERVE_DISK)]
    ServeDisk(ServeDiskArgs),
    /// Inspect NBD servers
    Nbd {
        #[command(subcommand)]
        command: NbdCommand,
    },
    /// Relay TCP connections over a long, lossy line
    Relay(Box<RelayArgs>),
    /// Move running guests between QEMUs or libvirt daemons
    Live(Box<LiveCommand>),
    /// Check the NFC servers of ESXi hosts
    Nfc {
        #[command(subcommand)]
        command: NfcCommand,
    },
    /// Check VMware's disk library, and explain its logs
    Vddk {
        #[command(subcommand)]
        command: VddkCommand,
    },
    /// Measure the line to another site
    Link {
        #[command(subcommand)]
        command: LinkCommand,
    },
    /// Advise on plans and on settings of this kernel; changes nothing
    Tune(HostTuneArgs),
    /// Serve disks to other sites, and manage trust
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Run plans as a daemon with an HTTP API and a web page
    Serve(Box<ServeArgs>),
    /// Carry out Plans of a Kubernetes namespace, one worker Job a VM
    Operator(Box<OperatorArgs>),
    /// Follow and steer the operator's work; also `kubectl drover`
    #[command(after_help = examples::KUBECTL)]
    Kubectl {
        #[command(subcommand)]
        command: KubectlCommand,
    },
    /// Print shell completions
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print what a shell may put in place of the last word
    #[command(hide = true)]
    Complete {
        /// Words after the program's name, up to the one that is being typed
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Write man pages into a folder
    Man {
        /// Folder
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Write a plan from a provider's inventory
    #[command(after_help = examples::PLAN_NEW)]
    New(PlanNewArgs),
    /// Report every problem of a plan; changes nothing
    #[command(after_help = examples::PLAN_CHECK)]
    Check(PlanCheckArgs),
    /// Have the operator of a Kubernetes cluster carry a plan out
    #[command(after_help = examples::PLAN_APPLY)]
    Apply(PlanApplyArgs),
    /// Propose waves that fit a window, from what the provider has; changes nothing there
    #[command(after_help = examples::PLAN_WAVES)]
    Waves(PlanWavesArgs),
    /// Print the JSON Schema of plan files
    Schema,
}

/// How to reach a provider that no plan describes.
#[derive(Debug, Args)]
pub struct ProviderArgs {
    /// vCenter or ESXi host: host[:port], an https URL, or a plan file whose source is used; or an .ova or .ovf file
    pub provider: String,
    /// User, for vCenter with its domain (administrator@vsphere.local)
    #[arg(long, short, env = "DROVER_USER")]
    pub user: Option<String>,
    #[command(flatten)]
    pub secret: SecretArgs,
}

/// Where a password comes from, and how a certificate is verified.
#[derive(Debug, Args)]
pub struct SecretArgs {
    /// File with the password; without it the variable DROVER_PASSWORD is read
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// PEM file with the certificate authorities to trust
    #[arg(long, value_name = "FILE", group = "trust")]
    pub ca_file: Option<PathBuf>,
    /// SHA-1 or SHA-256 thumbprint of the server's certificate
    #[arg(long, group = "trust")]
    pub thumbprint: Option<String>,
    /// Do not verify the server's certificate: anyone on the line can read and change everything
    #[arg(long, group = "trust")]
    pub insecure: bool,
}

#[derive(Debug, Args)]
pub struct InventoryArgs {
    #[command(flatten)]
    pub provider: ProviderArgs,
    #[command(flatten)]
    pub select: SelectArgs,
    /// Show each disk and NIC too
    #[arg(long)]
    pub details: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print a table as CSV, a row for each VM; plan new --table reads it
    #[arg(long, conflicts_with_all = ["json", "details"])]
    pub csv: bool,
}

#[derive(Debug, Args)]
pub struct PlanNewArgs {
    #[command(flatten)]
    pub provider: ProviderArgs,
    #[command(flatten)]
    pub select: SelectArgs,
    /// Table of the VMs to take, with a column name or id, and others such as wave, window, mode, cutover or target_name
    #[arg(long, value_name = "CSV", conflicts_with = "vms")]
    pub table: Option<PathBuf>,
    /// Plan's name [default: that of the file, else of the VMs]
    #[arg(long)]
    pub name: Option<String>,
    /// Folder that the VMs go to
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/drover/vms")]
    pub target_folder: PathBuf,
    /// File to write; standard output if absent
    #[arg(long, short)]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PlanCheckArgs {
    /// Plan file
    pub plan: PathBuf,
    /// Check the file alone, without asking the provider
    #[arg(long, conflicts_with = "inspect")]
    pub offline: bool,
    /// Show only VMs whose name matches, * is any text; may be given more than once
    #[arg(long = "vm", value_name = "GLOB", conflicts_with = "offline")]
    pub vms: Vec<String>,
    /// Show only VMs in folders that match, or below them; may be given more than once
    #[arg(long = "folder", value_name = "GLOB", conflicts_with = "offline")]
    pub folders: Vec<String>,
    /// Show only VMs that cannot be moved as they are
    #[arg(long, conflicts_with = "offline")]
    pub blocked: bool,
    /// Look into the guests' disks too, each for a moment under a snapshot that is removed again: what would keep them from booting
    #[arg(long)]
    pub inspect: bool,
    /// Folder of drover's state, for plans with `via` [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PlanApplyArgs {
    /// Plan file, whose target is KubeVirt
    pub plan: PathBuf,
    /// To the operator of a Kubernetes namespace; so far there is no other place
    #[arg(long)]
    pub kube: bool,
    /// Provider that its VMs come from; if there is none, it is made of the plan's source, with its Secret [default: the plan's name]
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Where drover keeps its state, and how it talks.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print one JSON object per event on standard output
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Plan file
    pub plan: PathBuf,
    /// Start each VM at the target once it has arrived, whatever the plan says
    #[arg(long)]
    pub start: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The .ova file, the .ovf file, or the folder that holds one
    pub appliance: PathBuf,
    /// Folder that the VM's own folder is made in
    #[arg(long, default_value = "/var/lib/drover/vms")]
    pub folder: PathBuf,
    /// Name of the plan, to resume or cancel it by [default: import- and the appliance's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Start the VM once it has arrived
    #[arg(long)]
    pub start: bool,
    /// Keep the plan in this file too, to change and run it again
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the plan and do no more
    #[arg(long)]
    pub plan_only: bool,
    /// Do not compare the files with the appliance's own checksums
    #[arg(long)]
    pub ignore_manifest: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// Start each VM at the target once it has arrived, whatever the plan says
    #[arg(long)]
    pub start: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// Remove a plan that is over from the state, with its report and the journals of its images; its images and machines stay, and its
    /// source is not looked at
    #[arg(long)]
    pub forget: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// Name of a VM at the target, or a pattern (web*), given up while others go on
    #[arg(value_name = "VM")]
    pub vms: Vec<String>,
    /// Name of a wave, of which all VMs are given up that have not arrived
    #[arg(long, value_name = "NAME", conflicts_with = "vms")]
    pub wave: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Name of the plan, or its file
    pub plan: String,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct LimitsArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// Rate in a second: RATE or WINDOW=RATE (more than once), or none
    #[arg(long, value_name = "LIMIT")]
    pub rate_limit: Vec<String>,
    /// Disks copied at once in total
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub disks: Option<i64>,
    /// VMs copied at once from one source host
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub vms_per_host: Option<i64>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct CutoverArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// Name of a VM at the target, or a pattern (web*); all that wait if absent
    #[arg(value_name = "VM")]
    pub vms: Vec<String>,
    /// Name of a wave, of which all VMs move over that wait
    #[arg(long, value_name = "NAME", conflicts_with = "vms")]
    pub wave: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct RehearseArgs {
    /// Name of the plan, or its file, whose checks are asked then
    pub plan: String,
    /// Name of a VM at the target, may be given more than once; all that have a whole copy if absent
    #[arg(long, value_name = "NAME")]
    pub vm: Vec<String>,
    /// Seconds that a guest must go on running of which nothing can be asked
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct ProceedArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// The wave of which VMs failed: those after it go on
    pub wave: String,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct RetryArgs {
    /// Name of the plan, or its file
    pub plan: String,
    /// Name of a VM at the target, or a pattern (web*), that failed or was given up
    #[arg(value_name = "VM", required_unless_present_any = ["all_failed", "wave"])]
    pub vms: Vec<String>,
    /// Name of a wave: its VMs that failed or, if none did, were given up
    #[arg(long, value_name = "NAME", conflicts_with_all = ["vms", "all_failed"])]
    pub wave: Option<String>,
    /// All VMs that failed, and those that did not begin because of them
    #[arg(long, conflicts_with = "vms")]
    pub all_failed: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of a plan, or its file; all plans if absent
    pub plan: Option<String>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Follow it until it ends, or all plans that run; with --json one object per look. Ctrl-C ends the watching only
    #[arg(long, short)]
    pub watch: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Name of the plan, or its file
    pub plan: String,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Print a table as CSV, a row for each VM
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write one self-contained HTML page of all VMs to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "vms", "waves", "states"])]
    pub html: Option<PathBuf>,
    /// Sign the page with this key of OpenSSH, into FILE.sig
    #[arg(long, value_name = "KEY", requires = "html")]
    pub sign: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsArg {
    /// No TLS
    Off,
    /// TLS for clients that ask for it
    On,
    /// Send clients without TLS away
    Require,
}

#[derive(Debug, Args)]
pub struct ServeDiskArgs {
    /// Whatever `drover copy` reads: a file, block device, nbd://..., https://..., vsphere://HOST[:PORT]/VM/DISK
    pub disk: String,
    /// Format of a file; never guessed from its content [default: by the name's ending, else raw]
    #[arg(long, value_parser = formats())]
    pub format: Option<ToldFormat>,
    /// Listen on TCP; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "socket")]
    pub listen: Option<String>,
    /// Listen on this Unix socket [default: a new one in a folder of its own]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Name of the export; clients that ask for no name get it too
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub export: String,
    /// Take no writes; so it is if nothing else is said
    #[arg(long, conflicts_with = "writable")]
    pub read_only: bool,
    /// Let clients change the disk
    #[arg(long)]
    pub writable: bool,
    /// File that keeps the highest epoch of a writer [default: the disk's path with .drover-fence added]
    #[arg(long, value_name = "FILE", requires = "writable", conflicts_with = "no_fence")]
    pub fence_file: Option<PathBuf>,
    /// Keep no epochs: any client may write, also one that another took over from
    #[arg(long, requires = "writable")]
    pub no_fence: bool,
    /// Folder with server-cert.pem and server-key.pem, and ca-cert.pem for --tls-verify-peer
    #[arg(long, value_name = "FOLDER")]
    pub tls_certificates: Option<PathBuf>,
    /// Who must use TLS [default: everybody, if there are certificates]
    #[arg(long, value_enum, requires = "tls_certificates")]
    pub tls: Option<TlsArg>,
    /// Let only clients in whose certificate ca-cert.pem signed
    #[arg(long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,
    /// Clients at once
    #[arg(long, default_value_t = drover_nbd_server::CONNECTIONS_MAX, value_name = "N")]
    pub connections: usize,
    /// End when the last client has gone
    #[arg(long)]
    pub once: bool,
    /// End when the program that started this one ends
    #[arg(long)]
    pub exit_with_parent: bool,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    #[command(flatten)]
    pub login: LoginArgs,
    /// Print one JSON object per event on standard output
    #[arg(long)]
    pub json: bool,
}
