//! The pages are those that the code makes.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use super::{command_pages, keys};

/// Written to instead of compared with, if it is set.
const WRITE: &str = "DROVER_WRITE_REFERENCE";

#[test]
fn the_reference_is_what_the_code_makes() {
    let folder: PathBuf = drover_lab::workspace().join("docs/reference");
    let is_written = std::env::var_os(WRITE).is_some();
    let mut old = Vec::new();
    for (name, text) in command_pages().into_iter().chain(keys::pages()) {
        let path = folder.join(&name);
        if is_written {
            std::fs::write(&path, &text).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != text {
            old.push(name);
        }
    }
    assert!(old.is_empty(), "these pages are not what the code says, run `make reference`: {old:?}");
}
