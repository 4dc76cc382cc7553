//! A folder for all of a bench, and that nothing is left of it, however it ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use drover_child::Kind;
use drover_console::Exit;

use crate::failure::Failure;

/// Ends what works in the folder, and removes it, when this value goes or this process ends.
///
/// All programs of a bench are known by a variable that names it ([`mark`]), which theirs inherit.
#[derive(Debug)]
pub struct Keeper {
    shell: Child,
    lifeline: Option<ChildStdin>,
    folder: PathBuf,
}

/// Variable that the programs of a bench have.
const MARK: &str = "DROVER_BENCH_FOLDER";

// The kernel closes our end of the pipe even after SIGKILL, so `read` returns then. It looks until nobody is found twice in a row, because
// who is killed may have started another one that was not there yet at that look.
const KEEP: &str = r#"
folder=$1
mark=$2
trap '' INT TERM HUP
read -r _
looks=0 quiet=0
while [ "$quiet" -lt 2 ] && [ "$looks" -lt 50 ]; do
    quiet=$((quiet + 1)) looks=$((looks + 1))
    for process in $(grep -lsazxF "$mark=$folder" /proc/[0-9]*/environ); do
        quiet=0 process=${process#/proc/}
        kill -KILL "${process%/environ}"
    done
    sleep 0.05
done
rm -rf -- "$folder"
"#;

/// Paths of sockets have 107 bytes, of which the longest below the folder takes less than this.
const PATH_BYTES_MAX: usize = 107 - 40;

impl Keeper {
    /// Makes the folder.
    pub fn start() -> Result<Keeper, Failure> {
        let place = std::env::temp_dir();
        let failed = |what: &str, error: io::Error| {
            Failure::new(Exit::Internal, format!("{what} in {}: {error}", place.display()))
                .advise("set TMPDIR to a folder that can be written to")
        };
        let folder = tempfile::Builder::new().prefix("drover-bench-").tempdir();
        let folder = folder.map_err(|error| failed("making a folder", error))?;
        // What processes are known by has no links in it.
        let path = folder.path().canonicalize().map_err(|error| failed("looking at a folder", error))?;
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let why = format!("{} is too long for the paths of sockets below it", path.display());
            let advice =
                format!("set TMPDIR to a folder whose path has {} bytes at most", PATH_BYTES_MAX - 20);
            return Err(Failure::new(Exit::Plan, why).advise(advice));
        }
        let mut shell = drover_child::command("/bin/sh", Kind::Plain);
        shell.args(["-c", KEEP, "drover-keeper"]).arg(&path).arg(MARK).current_dir("/");
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C on the terminal is ours to handle.
        let mut shell = shell.process_group(0).spawn().map_err(|error| failed("starting a shell", error))?;
        let lifeline = shell.stdin.take();
        // From here on it is the shell that removes it.
        let _ = folder.keep();
        Ok(Keeper { shell, lifeline, folder: path })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Has a program, and all that it starts, end with the bench of this folder, and not by a Ctrl-C on the terminal.
pub fn mark(command: &mut Command, folder: &Path) {
    command.env(MARK, folder).process_group(0);
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // It ends by itself, in a moment.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_bench_end_with_it_and_others_do_not() {
        let keeper = Keeper::start().unwrap();
        let folder = keeper.folder().to_path_buf();
        let sleep = |is_ours: bool| {
            let mut command = Command::new("sh");
            let script = if is_ours { "sleep 600 & wait" } else { "exec sleep 600" };
            command.args(["-c", script]).current_dir(&folder);
            if is_ours {
                mark(&mut command, &folder);
            }
            command.spawn().unwrap()
        };
        let (mut ours, mut other) = (sleep(true), sleep(false));
        drop(keeper);
        assert!(!folder.exists());
        assert!(!ours.wait().unwrap().success());
        let mark = format!("{MARK}={}", folder.display());
        let environments = std::fs::read_dir("/proc").unwrap().map(|it| it.unwrap().path().join("environ"));
        let is_ours = |it: Vec<u8>| it.split(|byte| *byte == 0).any(|it| it == mark.as_bytes());
        assert!(!environments.filter_map(|it| std::fs::read(it).ok()).any(is_ours), "one lives on");
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
