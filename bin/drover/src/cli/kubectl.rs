//! Arguments of `drover kubectl`: what `kubectl drover` runs where this program is also called `kubectl-drover`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::examples;

/// The name by which kubectl finds a plug-in for `kubectl drover`.
const PLUGIN: &str = "kubectl-drover";

/// Phases of Migrations.
const PHASES: [&str; 8] =
    ["Pending", "Queued", "Running", "Retrying", "Cancelling", "Done", "Failed", "Cancelled"];

/// The words of a command line; those of kubectl's plug-in as if they came after `drover kubectl`.
pub fn words(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    if words.first().is_some_and(|it| Path::new(it).file_name() == Some(OsStr::new(PLUGIN))) {
        drop(words.splice(..1, ["drover".into(), "kubectl".into()]));
    }
    words
}

/// Which cluster is asked, and where in it.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// Namespace [default: that of the context]
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Kubeconfig [default: KUBECONFIG, ~/.kube/config, or the pod's own]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum KubectlCommand {
    /// Show Plans, and how far their VMs are
    #[command(after_help = examples::KUBECTL_STATUS)]
    Status(KubectlStatusArgs),
    /// Print the log of a VM's last worker
    #[command(after_help = examples::KUBECTL_LOGS)]
    Logs(KubectlLogsArgs),
    /// Move warm VMs over now
    #[command(after_help = examples::KUBECTL_CUTOVER)]
    Cutover(KubectlVmsArgs),
    /// Undo what was begun of VMs, or of a whole Plan
    #[command(after_help = examples::KUBECTL_CANCEL)]
    Cancel(KubectlVmsArgs),
    /// Try VMs again that failed or wait, and clean-ups
    #[command(after_help = examples::KUBECTL_RETRY)]
    Retry(KubectlVmsArgs),
    /// Let the waves after one go on of which VMs failed
    #[command(after_help = examples::KUBECTL_PROCEED)]
    Proceed(KubectlProceedArgs),
}

#[derive(Debug, Args)]
pub struct KubectlStatusArgs {
    /// VMs, by their names at the source or the target, or their Migrations'; all if absent
    #[arg(value_name = "VM")]
    pub names: Vec<String>,
    /// Only VMs of this Plan
    #[arg(long = "plan", value_name = "NAME")]
    pub of: Option<String>,
    /// Only VMs of this wave
    #[arg(long, value_name = "NAME")]
    pub wave: Option<String>,
    /// Only VMs in this phase, may be given more than once
    #[arg(long, value_name = "PHASE", ignore_case = true, value_parser = PossibleValuesParser::new(PHASES))]
    pub phase: Vec<String>,
    /// Count VMs by phase and reason, in the place of a line for each
    #[arg(long, conflicts_with = "json")]
    pub summary: bool,
    /// Follow them until all have come to rest; with --json one object per change
    #[arg(long, short)]
    pub watch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub struct KubectlLogsArgs {
    /// VM, by its name at the source or the target, or its Migration's
    #[arg(value_name = "VM")]
    pub name: String,
    /// Of the last worker that failed, while it is kept
    #[arg(long, conflicts_with = "follow")]
    pub failed: bool,
    /// Go on until the worker ends
    #[arg(long, short)]
    pub follow: bool,
    /// Only so many of the last lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u32>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
pub struct KubectlVmsArgs {
    /// VMs, by their names at the source or the target, or their Migrations'
    #[arg(value_name = "VM", group = "which")]
    pub names: Vec<String>,
    /// The VMs of this Plan; with names only those of it
    #[arg(long = "plan", value_name = "NAME", group = "which")]
    pub of: Option<String>,
    /// Of these, the VMs of this wave
    #[arg(long, value_name = "NAME", requires = "of")]
    pub wave: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub struct KubectlProceedArgs {
    /// Plan
    #[arg(value_name = "PLAN")]
    pub plan: String,
    /// The wave of which VMs failed: those after it go on [default: the one that holds others up now]
    #[arg(value_name = "WAVE")]
    pub wave: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_decides() {
        let of = |line: &str| {
            let all = words(line.split(' ').map(OsString::from));
            all.iter().map(|it| it.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("/usr/bin/kubectl-drover status -n vms"), "drover kubectl status -n vms");
        assert_eq!(of("kubectl-drover --help"), "drover kubectl --help");
        assert_eq!(of("/usr/bin/drover status kubectl-drover"), "/usr/bin/drover status kubectl-drover");
    }
}
