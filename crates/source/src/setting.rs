//! What sources are told of a plan and of who runs it, and why one cannot be had.

use std::path::{Path, PathBuf};

use drover_agent::sites::ThisHost;
use drover_engine::ProviderError;
use drover_plan::Plan;

use crate::login::LoginError;

/// What is to be known of a plan and of who runs it, whatever its source is.
pub struct Setting<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The folder that paths in the plan are relative to.
    pub folder: &'a Path,
    /// This host: its state folder, and who is told what goes on.
    pub host: ThisHost,
    /// The state folder of this user where none is named: what all drovers of a user share may lie there.
    pub own_state: PathBuf,
}

/// Why the source of a plan cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// What the plan names to log in with.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The source, or what reads it.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}
