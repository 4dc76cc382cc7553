//! `drover-lab completions` and `drover-lab man`.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use drover_console::{Exit, out};

use crate::cli::Cli;
use crate::failure::Failure;

/// Writes completions for a shell to standard output.
pub fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "drover-lab", &mut script);
    out::print(&String::from_utf8_lossy(&script));
    Ok(Exit::Success)
}

/// Writes a man page for the program and each of its commands into a folder.
pub fn man(folder: &Path) -> Result<Exit, Failure> {
    let made =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    let failed = |error| Failure::new(Exit::Target, format!("man pages in {}: {error}", folder.display()));
    made.map(|()| Exit::Success).map_err(failed)
}
