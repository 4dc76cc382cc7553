//! Where drover keeps what outlives a run.

use std::path::{Path, PathBuf};

/// The folder that was given, else the one for this user.
pub fn state_folder(given: Option<&Path>) -> PathBuf {
    given.map_or_else(default_state, Path::to_path_buf)
}

fn default_state() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if variable("HOME").is_none_or(|home| home == Path::new("/root")) {
        return PathBuf::from("/var/lib/drover");
    }
    let state = variable("XDG_STATE_HOME");
    state
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_default()
        .join("drover")
}
