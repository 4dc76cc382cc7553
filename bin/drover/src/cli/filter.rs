//! Which VMs of a plan `drover status` and `drover report` show.

use clap::{Args, ValueEnum};
use drover_view::VmFilter;

#[derive(Clone, Debug, Default, Args)]
pub struct FilterArgs {
    /// Show only VMs of this name at the target, or pattern (web*); may be given more than once
    #[arg(long = "vm", value_name = "NAME", requires = "plan")]
    pub vms: Vec<String>,
    /// Show only VMs of this wave; may be given more than once
    #[arg(long = "wave", value_name = "NAME", requires = "plan")]
    pub waves: Vec<String>,
    /// Show only VMs in these states
    #[arg(long = "only", value_name = "STATE", value_delimiter = ',', requires = "plan")]
    pub states: Vec<StateWord>,
}

/// A state that VMs are shown by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateWord {
    /// They have not begun
    Queued,
    /// They are at work, or were when their run was killed
    Running,
    /// They are copied, and wait for their next pass or their cutover
    Waiting,
    /// They have arrived
    Done,
    /// They have arrived, and the clean-up at the source failed
    NotCleanedUp,
    /// They failed
    Failed,
    /// They were stopped, and a resume goes on with them
    Stopped,
    /// A hook left them out
    Skipped,
    /// They were given up
    Cancelled,
}

impl FilterArgs {
    /// The same as the views know it.
    pub fn filter(&self) -> VmFilter {
        let word = |state: &StateWord| match state {
            StateWord::Queued => "queued",
            StateWord::Running => "running",
            StateWord::Waiting => "waiting",
            StateWord::Done => "done",
            StateWord::NotCleanedUp => "not_cleaned_up",
            StateWord::Failed => "failed",
            StateWord::Stopped => "stopped",
            StateWord::Skipped => "skipped",
            StateWord::Cancelled => "cancelled",
        };
        VmFilter {
            names: self.vms.clone(),
            waves: self.waves.clone(),
            states: self.states.iter().map(|state| word(state).to_string()).collect(),
        }
    }
}
