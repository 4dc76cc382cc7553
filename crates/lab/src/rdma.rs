//! A small VM with soft RDMA (`scripts/get-rdma-vm`), in which programs of this machine run at the places that they have here.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::program::{lab_folder, workspace};
use crate::script::put_script;

/// The VM of the lab.
#[derive(Clone, Debug)]
pub struct RdmaVm {
    program: PathBuf,
}

/// The device in it.
const DEVICE: &str = "/sys/class/infiniband/rxe0";
/// So that tests find the QEMU of the VM where they find that of this machine.
const QEMU: &str =
    "exec /usr/bin/qemu-system-x86_64 -L /usr/share/qemu -L /usr/share/seabios -L /usr/lib/ipxe/qemu \"$@\"";
/// It ends by itself; one that hangs is ended after so many seconds.
const SECONDS_MAX: &str = "900";

impl RdmaVm {
    /// The device's address, in the VM.
    pub const ADDRESS: &'static str = "10.9.0.1";

    /// The one that `scripts/get-rdma-vm` made; `None`, after a printed line, without it.
    ///
    /// # Errors
    /// Without it where `DROVER_NEEDS_RDMA` is set.
    pub fn find() -> Result<Option<RdmaVm>> {
        let program = lab_folder().join("rdma-vm/rdma-vm");
        if program.is_file() {
            return Ok(Some(RdmaVm { program }));
        }
        ensure!(
            std::env::var_os("DROVER_NEEDS_RDMA").is_none(),
            "DROVER_NEEDS_RDMA is set, and there is no VM"
        );
        println!("skipped: no VM with soft RDMA (`make lab`)");
        Ok(None)
    }

    /// Whether this program runs in it.
    pub fn is_here() -> bool {
        Path::new(DEVICE).exists()
    }

    /// Runs the first of these programs with arguments in it, for which the folder is made; gives what it printed.
    ///
    /// # Errors
    /// If the VM does not come up, or the program fails there.
    pub fn run(&self, folder: &Path, programs: &[&Path], args: &str) -> Result<String> {
        let files = folder.join("job");
        for program in programs {
            succeed(Command::new("strip").arg("-o").args([&placed(&files, program)?, *program]))?;
        }
        put_script(&placed(&files, &lab_folder().join("qemu-11.1/qemu-system-x86_64"))?, QEMU)?;
        let idle = workspace().join("crates/lab/idle-host");
        succeed(Command::new("cp").arg("-r").args([&idle, &placed(&files, &idle)?]))?;
        let first = programs.first().context("no program")?.display();
        put_script(&files.join("job"), &format!("exec {first} {args}"))?;

        let told = folder.join("told");
        let mut command = Command::new("timeout");
        // In this group, so that Ctrl-C ends it too.
        command.args(["--foreground", "--kill-after=5", SECONDS_MAX]).arg(&self.program).arg(&files);
        let status = command.stdin(Stdio::null()).stdout(File::create(&told)?).status().context("timeout")?;
        let told = fs::read_to_string(&told)?.replace('\r', "");
        let console = || fs::read_to_string(folder.join("job.console")).unwrap_or_default();
        ensure!(status.success(), "the VM ended with {status}:\n{told}\n{}", console());
        ensure!(told.ends_with("rdma-vm: the job ended with 0\n"), "in the VM:\n{told}\n{}", console());
        Ok(told)
    }
}

/// Where a file of this machine lies in what is laid over the VM's own; its folder is made.
fn placed(files: &Path, file: &Path) -> Result<PathBuf> {
    let place =
        files.join(file.strip_prefix("/").with_context(|| format!("{} is no whole path", file.display()))?);
    let folder = place.parent().context("a file in no folder")?;
    fs::create_dir_all(folder)?;
    Ok(place)
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
