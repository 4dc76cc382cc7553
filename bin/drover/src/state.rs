//! Where drover keeps what outlives a run.

use std::path::{Path, PathBuf};

use drover_engine::Store;
use drover_plan::{Begun, Others};

/// The folder that was given, else the one for this user.
pub fn state_folder(given: Option<&Path>) -> PathBuf {
    given.map_or_else(default_state, Path::to_path_buf)
}

fn default_state() -> PathBuf {
    // Whatever its home is called: with `sudo` it may be that of another user.
    let is_root = rustix::process::geteuid().is_root();
    state_of(is_root, |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn state_of(is_root: bool, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let of_user = || variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    match if is_root { None } else { of_user() } {
        Some(state) => state.join("drover"),
        // A user without a home is one of a service.
        None => PathBuf::from("/var/lib/drover"),
    }
}

/// The VMs of a plan that were begun; none where its state cannot be looked at.
pub fn begun_here(plan: &str, state: Option<&Path>) -> Vec<Begun> {
    store_here(state).map(|store| begun_in(&store, plan)).unwrap_or_default()
}

/// The same in a state that is open.
pub fn begun_in(store: &Store, plan: &str) -> Vec<Begun> {
    drover_engine::begun(store, plan, Others::Selected).unwrap_or_default()
}

/// The state, to look into; none where there is none, or it cannot be read.
pub fn store_here(state: Option<&Path>) -> Option<Store> {
    let folder = state_folder(state);
    Store::is_there(&folder).then(|| Store::open_to_read(&folder).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_who_has_its_number_and_not_who_has_its_home() {
        let with = |is_root, home: &str| {
            let found = |name: &str| (name == "HOME" && !home.is_empty()).then(|| PathBuf::from(home));
            state_of(is_root, found).display().to_string()
        };
        assert_eq!(with(true, "/home/ann"), "/var/lib/drover");
        assert_eq!(with(false, "/root"), "/root/.local/state/drover");
        assert_eq!(with(false, "/home/ann"), "/home/ann/.local/state/drover");
        assert_eq!(with(false, ""), "/var/lib/drover");
        assert_eq!(state_of(false, |_| Some("/x".into())), Path::new("/x/drover"));
    }
}
