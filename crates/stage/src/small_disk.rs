//! A file system of its own size; needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Unmounted when it is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, after a printed line, where nothing can be mounted.
    pub fn mount(folder: &Path, mib: u64) -> Option<SmallDisk> {
        std::fs::create_dir_all(folder).unwrap();
        let size = format!("size={mib}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "drover-test"]).arg(folder).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            println!("skipped: a small file system cannot be mounted (needs root)");
            return None;
        }
        Some(SmallDisk(folder.to_path_buf()))
    }

    pub fn grow(&self, mib: u64) {
        let size = format!("remount,size={mib}m");
        assert!(Command::new("mount").args(["-o", &size]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
