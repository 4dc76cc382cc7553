//! Which VMs of a plan `drover status` and `drover report` show.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use drover_view::{ShownState, VmFilter};

#[derive(Clone, Debug, Default, Args)]
pub struct FilterArgs {
    /// Show only VMs of this name at the target, or pattern (web*); may be given more than once
    #[arg(long = "vm", value_name = "NAME", requires = "plan")]
    pub vms: Vec<String>,
    /// Show only VMs of this wave; may be given more than once
    #[arg(long = "wave", value_name = "NAME", requires = "plan")]
    pub waves: Vec<String>,
    /// Show only VMs in these states
    #[arg(long = "only", value_name = "STATE", value_delimiter = ',', requires = "plan", value_parser = states())]
    pub states: Vec<String>,
}

/// The words of states. One of several words is written with hyphens, and taken as JSON has it, too.
fn states() -> impl TypedValueParser<Value = String> {
    let value = |state: ShownState| {
        let value = match state.word() {
            "not_cleaned_up" => PossibleValue::new("not-cleaned-up").alias("not_cleaned_up"),
            word => PossibleValue::new(word),
        };
        value.help(state.help())
    };
    PossibleValuesParser::new(ShownState::ALL.map(value)).map(|word| word.replace('-', "_"))
}

impl FilterArgs {
    /// The same as the views know it.
    pub fn filter(&self) -> VmFilter {
        VmFilter { names: self.vms.clone(), waves: self.waves.clone(), states: self.states.clone() }
    }
}
