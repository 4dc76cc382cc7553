use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::program::lab_folder;
use crate::sim::{PASSWORD, Sim, USER};

/// Where this is set, tests of the VDDK data path fail instead of being skipped: CI can get all they need.
const NEEDED: &str = "DROVER_NEEDS_VDDK";
const LIBRARY: &str = "lib64/libvixDiskLib.so.8";

/// A `libdir` of one host's own, with the stand-in for VMware's library; see `lab/vddk-standin/README.md`.
#[derive(Clone, Debug)]
pub struct StandIn {
    folder: PathBuf,
}

impl StandIn {
    /// Whether library, plugin and nbdkit are there. Says what is missing if not.
    ///
    /// # Panics
    /// If they are not, where `DROVER_NEEDS_VDDK` is set.
    pub fn is_there() -> bool {
        let missing = if !built().join(LIBRARY).exists() {
            "the stand-in for VDDK is not built (`make lab`)"
        } else if !StandIn::plugin().is_file() {
            "nbdkit's vddk plugin is not there (`scripts/get-vddk-plugin target/lab/vddk`)"
        } else if std::process::Command::new("nbdkit").arg("--version").output().is_err() {
            "nbdkit is not installed"
        } else {
            return true;
        };
        assert!(std::env::var_os(NEEDED).is_none(), "{NEEDED} is set, and {missing}");
        println!("skipped: NOTHING WAS READ THROUGH VDDK: {missing}");
        false
    }

    /// Makes the folder. The stand-in takes the user, password and certificate of `sim`.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(folder: &Path, sim: &Sim) -> Result<StandIn> {
        let stand_in = StandIn { folder: folder.to_path_buf() };
        std::fs::create_dir_all(folder.join("lib64"))?;
        std::fs::create_dir_all(folder.join("faults"))?;
        let library = built().join(LIBRARY).canonicalize().context("the stand-in library")?;
        let name = library.file_name().context("a file name")?.to_owned();
        std::os::unix::fs::symlink(&library, folder.join("lib64").join(&name))?;
        std::os::unix::fs::symlink(&name, folder.join(LIBRARY))?;
        stand_in.set(&format!(
            "control={}\nuser={USER}\npassword={PASSWORD}\nthumbprint={}",
            sim.control_url, sim.thumbprint
        ))?;
        Ok(stand_in)
    }

    /// nbdkit's plugin.
    pub fn plugin() -> PathBuf {
        built().join("nbdkit-vddk-plugin.so")
    }

    /// The folder.
    pub fn libdir(&self) -> &Path {
        &self.folder
    }

    /// Adds settings (`KEY=VALUE` lines) for disks that are opened from now on.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn set(&self, lines: &str) -> Result<()> {
        use std::io::Write;
        let path = self.folder.join("standin.conf");
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        Ok(writeln!(file, "{lines}")?)
    }

    /// Orders a fault; it strikes once, or always if its name begins so.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn order(&self, name: &str, fault: &str) -> Result<()> {
        // Renamed, since it may be read at any moment.
        let (new, path) = (self.folder.join("fault.new"), self.folder.join("faults").join(name));
        std::fs::write(&new, fault)?;
        Ok(std::fs::rename(new, path)?)
    }

    /// Withdraws a fault.
    ///
    /// # Errors
    /// If there is none of that name (any more).
    pub fn withdraw(&self, name: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.folder.join("faults").join(name))?)
    }

    /// Lines of the log of calls that hold a text.
    pub fn calls(&self, text: &str) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.join("calls.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains(text)).map(str::to_string).collect()
    }
}

fn built() -> PathBuf {
    lab_folder().join("vddk")
}
