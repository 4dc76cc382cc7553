//! What a run calls outside of it: hooks and checks. The engine decides when; the program carries them out.

use drover_mover::StopSignal;
use drover_plan::{Check, Hook};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Carries out hooks and checks. Calls are made from several threads.
pub trait HookRunner: Send + Sync {
    /// Calls a hook with a document, until it ends, its time is up, or the signal is set.
    fn call(&self, hook: &Hook, document: &Value, stop: &StopSignal) -> Answer;

    /// Asks a check once.
    fn ask(&self, check: &Check, document: &Value, stop: &StopSignal) -> Answer;
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it decides.
    pub result: HookResult,
    /// Why, in a line; empty if there is nothing to say.
    pub message: String,
    /// The last of what it wrote, without control characters.
    pub output: String,
}

impl Answer {
    /// One without output.
    pub fn new(result: HookResult, message: impl Into<String>) -> Answer {
        Answer { result, message: message.into(), output: String::new() }
    }
}

/// What a call decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookResult {
    /// The VM goes on.
    Passed,
    /// It failed, or could not be carried out.
    Failed,
    /// It says that the VM must not go on.
    Stop,
    /// It says that the VM is to be left out.
    Skip,
    /// It was ended, because the run was stopped.
    Interrupted,
}

impl HookResult {
    /// In a word, for people.
    pub fn word(self) -> &'static str {
        match self {
            HookResult::Passed => "passed",
            HookResult::Failed => "FAILED",
            HookResult::Stop => "said stop",
            HookResult::Skip => "said skip",
            HookResult::Interrupted => "interrupted",
        }
    }
}

/// Whether something is a hook or a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// A hook.
    Hook,
    /// A check.
    Check,
}

/// Key and name of the checks before a shutdown.
pub const PRE_CUTOVER: &str = "pre_cutover";
/// Key and name of the checks after a start.
pub const POST_START: &str = "post_start";

/// Calls nothing: for plans without hooks and checks.
pub struct NoHooks;

impl HookRunner for NoHooks {
    fn call(&self, _: &Hook, _: &Value, _: &StopSignal) -> Answer {
        Answer::new(HookResult::Failed, "nothing is called here")
    }

    fn ask(&self, _: &Check, _: &Value, _: &StopSignal) -> Answer {
        Answer::new(HookResult::Failed, "nothing is asked here")
    }
}
