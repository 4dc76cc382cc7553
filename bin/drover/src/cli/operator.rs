//! Arguments of `drover operator`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use drover_types::units::time;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct OperatorArgs {
    #[command(subcommand)]
    pub command: Option<OperatorCommand>,
    /// Namespace that it serves [default: the pod's own]
    #[arg(long, value_name = "NAMESPACE", env = "DROVER_NAMESPACE")]
    pub namespace: Option<String>,
    /// Image of the workers
    #[arg(long, value_name = "IMAGE", env = "DROVER_IMAGE")]
    pub image: Option<String>,
    /// Other image that Plans may name as `target.image`; may be repeated
    #[arg(long, value_name = "IMAGE")]
    pub target_image: Vec<String>,
    /// When it is pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pub image_pull: String,
    /// Service account of the workers
    #[arg(long, value_name = "NAME", default_value = "drover-worker")]
    pub worker_account: String,
    /// Storage class of the claims with drover's state [default: the cluster's]
    #[arg(long, value_name = "CLASS")]
    pub state_class: Option<String>,
    /// Size of such a claim
    #[arg(long, value_name = "QUANTITY", default_value = "1Gi")]
    pub state_size: String,
    /// CPU requested for a worker
    #[arg(long, value_name = "QUANTITY", default_value = "250m")]
    pub worker_cpu: String,
    /// Memory of a worker: its request and its limit
    #[arg(long, value_name = "QUANTITY", default_value = "1Gi")]
    pub worker_memory: String,
    /// Image with drover and virt-v2v, for workers that may convert guests
    #[arg(long, value_name = "IMAGE")]
    pub converter_image: Option<String>,
    /// Memory of such a worker: its limit; its request where it is sure to convert
    #[arg(long, value_name = "QUANTITY", default_value = "4Gi")]
    pub converter_memory: String,
    /// Size of its state claim, which holds what a conversion changes
    #[arg(long, value_name = "QUANTITY", default_value = "10Gi")]
    pub converter_state_size: String,
    /// It asks for KVM, by KubeVirt's devices.kubevirt.io/kvm
    #[arg(long)]
    pub converter_kvm: bool,
    /// How long Jobs of workers that failed are kept, for their logs
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    pub keep_failed: Duration,
    /// How long the Job and state claim of a VM that arrived are kept
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    pub keep_done: Duration,
    /// VMs of one ESXi host at once
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub vms_per_host: u32,
    /// Disks at once in all
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    pub disks: u32,
    /// Warm VMs that are down for their cutovers at once
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub cutovers: u32,
    /// Serve /metrics, /healthz and /readyz to everybody at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Log JSON, one object a line; the workers do, too
    #[arg(long)]
    pub json: bool,
    /// Kubeconfig [default: KUBECONFIG, ~/.kube/config, or the pod's own]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// Move or undo one VM: what the operator's Jobs run
    #[command(hide = true)]
    Worker(OperatorWorkerArgs),
}

#[derive(Debug, Args)]
pub struct OperatorWorkerArgs {
    /// The Migration
    pub migration: String,
    /// Its UID
    #[arg(long)]
    pub uid: String,
    /// The epoch of this worker
    #[arg(long)]
    pub epoch: u64,
    /// The UID of its pod
    #[arg(long)]
    pub pod: String,
    /// Image that pods at the target may run; may be repeated
    #[arg(long, value_name = "IMAGE")]
    pub target_image: Vec<String>,
    /// Undo what was begun
    #[arg(long)]
    pub undo: bool,
    /// Switch the guest on again at the source, if drover left it off
    #[arg(long, conflicts_with = "undo")]
    pub switch_on: bool,
    /// An earlier worker wrote to the state claim
    #[arg(long)]
    pub begun: bool,
    /// Log JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Folder of drover's state
    #[arg(long, env = "DROVER_STATE", default_value = "/state/drover")]
    pub state: PathBuf,
    /// Folder with the provider's Secret
    #[arg(long, default_value = "/provider")]
    pub provider: PathBuf,
}
