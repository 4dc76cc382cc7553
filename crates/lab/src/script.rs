//! Programs of a test's own.

use std::io;
use std::path::Path;
use std::process::Command;

/// Puts a shell script there that can be started at once. Another process writes it: while a program of this one is
/// being started in another thread, that one holds what is open here, and the kernel starts nothing that is being written.
pub fn put_script(path: &Path, body: &str) -> io::Result<()> {
    let put = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
    let status = Command::new("sh").args(["-c", put]).arg(path).arg(body).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{} was not written: {status}", path.display()))),
    }
}
