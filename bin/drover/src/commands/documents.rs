//! `drover completions` and `drover man`.

use std::path::Path;

use clap_complete::Shell;

use super::complete::script;
use crate::cli::program;
use crate::exit::{Exit, Failure};

/// Writes completions for a shell to standard output.
pub fn completions(shell: Shell) -> Result<Exit, Failure> {
    crate::out::print(&script(shell));
    Ok(Exit::Success)
}

/// Writes a man page for drover and each of its commands into a folder.
pub fn man(folder: &Path) -> Result<Exit, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Target, format!("man pages in {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(program(), folder).map_err(failed)?;
    Ok(Exit::Success)
}
