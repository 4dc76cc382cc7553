//! Where a VM stands on both sides when its run has ended: told of each VM that was touched and has not arrived whole,
//! whatever failed, and from what this run knows where nothing else can be asked.

use drover_types::inventory::PowerState;
use serde::{Deserialize, Serialize};

use crate::error::Cause;
use crate::store::{StoreError, VmState};

/// How a VM's run ended.
#[derive(Debug)]
pub struct VmEnd {
    /// Its name at the target.
    pub name: String,
    /// Its state.
    pub state: VmState,
    /// Why it failed or stopped.
    pub cause: Option<Cause>,
    /// The error, its reasons, and what is left; absent if all went well.
    pub error: Option<String>,
    /// What to try.
    pub advice: Option<String>,
    /// Where it stands; absent if it arrived whole or was never touched.
    pub standing: Option<Standing>,
    /// Why this end could not be recorded, if it could not.
    pub unkept: Option<StoreError>,
}

/// Where a VM stands on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its power at the source; `unknown` if the source does not tell it now.
    pub source: PowerState,
    /// Whether drover switched it off and has not switched it on again.
    pub switched_off: bool,
    /// What there is of its machine at the target.
    pub target: AtTarget,
    /// Names of drover's snapshots at the source; where it does not tell them now, those that this run knows of.
    pub snapshots: Vec<String>,
    /// The command that goes on.
    pub go_on: String,
}

/// What there is of a machine at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtTarget {
    /// No definition.
    Nothing,
    /// An earlier run came to its definition, and may have left it.
    MayBeDefined,
    /// A definition; drover has not started it.
    Defined,
    /// It was started.
    Started,
}

impl VmEnd {
    /// One that nothing more is to be told of.
    pub(crate) fn plain(name: String, state: VmState) -> VmEnd {
        VmEnd { name, state, cause: None, error: None, advice: None, standing: None, unkept: None }
    }
}

impl Standing {
    /// Whether the source is as it was and nothing is at the target but images.
    pub fn is_as_before(&self) -> bool {
        let is_back = match self.source {
            PowerState::On => true,
            PowerState::Off | PowerState::Suspended => !self.switched_off,
            PowerState::Unknown => false,
        };
        is_back && self.snapshots.is_empty() && self.target == AtTarget::Nothing
    }

    /// All of it, for a VM that has not arrived.
    pub fn words(&self) -> String {
        let at_target = match self.target {
            AtTarget::Nothing => "no machine is defined at the target",
            AtTarget::MayBeDefined => "its machine may be defined at the target by an earlier run",
            AtTarget::Defined => "its machine is defined at the target and was not started",
            AtTarget::Started => "its machine was started at the target",
        };
        format!(
            "where it stands: {}, and {at_target}{}; `{}` goes on",
            self.source_words(),
            self.left_words(),
            self.go_on
        )
    }

    fn source_words(&self) -> &'static str {
        match (self.source, self.switched_off) {
            (PowerState::On, _) => "its source is on",
            (PowerState::Off, true) => "its source is off, switched off by drover",
            (PowerState::Off, false) => "its source is off",
            (PowerState::Suspended, _) => "its source is suspended",
            (PowerState::Unknown, true) => {
                "its source does not tell its power now, and drover had switched it off"
            }
            (PowerState::Unknown, false) => "its source does not tell its power now",
        }
    }

    /// `; left behind: snapshot drover-p at the source`; empty if none is.
    pub(crate) fn left_words(&self) -> String {
        let as_known = if self.source == PowerState::Unknown { ", as far as this run knows" } else { "" };
        match self.snapshots.as_slice() {
            [] => String::new(),
            [one] => format!("; left behind{as_known}: snapshot {one} at the source"),
            more => format!("; left behind{as_known}: snapshots {} at the source", more.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK: Standing = Standing {
        source: PowerState::On,
        switched_off: false,
        target: AtTarget::Nothing,
        snapshots: Vec::new(),
        go_on: String::new(),
    };

    #[test]
    fn only_a_source_that_is_known_to_be_back_with_nothing_left_is_as_before() {
        assert!(BACK.is_as_before());
        assert!(Standing { source: PowerState::Off, ..BACK }.is_as_before(), "it was off before");
        assert!(!Standing { source: PowerState::Off, switched_off: true, ..BACK }.is_as_before());
        assert!(!Standing { source: PowerState::Unknown, ..BACK }.is_as_before());
        assert!(!Standing { snapshots: vec!["drover-p".into()], ..BACK }.is_as_before());
        assert!(!Standing { target: AtTarget::MayBeDefined, ..BACK }.is_as_before());
    }

    #[test]
    fn the_words_name_the_power_the_machine_the_snapshot_and_the_command() {
        let stands = Standing {
            source: PowerState::Off,
            switched_off: true,
            target: AtTarget::Defined,
            snapshots: vec!["drover-p".into()],
            go_on: "drover resume p".into(),
        };
        assert_eq!(
            stands.words(),
            "where it stands: its source is off, switched off by drover, and its machine is defined at the target and was \
             not started; left behind: snapshot drover-p at the source; `drover resume p` goes on"
        );
        let untold = Standing { source: PowerState::Unknown, ..stands };
        assert!(untold.words().contains("does not tell its power now, and drover had switched it off"));
        assert!(untold.words().contains("left behind, as far as this run knows: snapshot drover-p"));
    }
}
