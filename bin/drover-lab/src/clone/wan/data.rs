//! The bytes that are sent, made once and kept.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use drover_lab::lab_folder;

use crate::clone::shared::variable;

/// A file of random bytes: nothing can be left out or compressed.
pub fn random(bytes: u64) -> Result<PathBuf> {
    let folder = lab_folder().join("bench");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("random-{}.raw", bytes >> 20));
    if !path.exists() {
        // Under another name first, so that one half made is never taken.
        let half = path.with_extension("half");
        std::io::copy(&mut File::open("/dev/urandom")?.take(bytes), &mut File::create(&half)?)?;
        std::fs::rename(half, &path)?;
    }
    warm(&path)?;
    Ok(path)
}

/// The size of the disks below.
pub const PROGRAMS_BYTES: u64 = 2 << 30;

/// A disk as machines have them: ext4, this machine's own libraries on it, the rest never written.
pub fn programs() -> Result<PathBuf> {
    const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
    let path = lab_folder().join("bench/programs.raw");
    if !path.exists() {
        std::fs::create_dir_all(lab_folder().join("bench"))?;
        let half = path.with_extension("half");
        File::create(&half)?.set_len(PROGRAMS_BYTES)?;
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        let status = mke2fs.args(["-q", "-F", "-t", "ext4", "-d", LIBRARIES]).arg(&half).status()?;
        ensure!(status.success(), "mke2fs ended with {status}");
        std::fs::rename(half, &path)?;
    }
    warm(&path)?;
    Ok(path)
}

/// A second machine from the same image: 32 MiB of it differ, in pieces of 1 MiB all over the disk.
pub fn sibling(of: &Path) -> Result<PathBuf> {
    let path = lab_folder().join("bench/sibling.raw");
    if !path.exists() {
        let half = path.with_extension("half");
        let status = Command::new("cp")
            .args(["--sparse=always".as_ref(), of.as_os_str(), half.as_os_str()])
            .status()?;
        ensure!(status.success(), "cp ended with {status}");
        let disk = OpenOptions::new().write(true).open(&half)?;
        let mut own = vec![0; 1 << 20];
        let mut random = File::open("/dev/urandom")?;
        for piece in 0..32 {
            random.read_exact(&mut own)?;
            disk.write_all_at(&own, (piece * 60 + 20) << 20)?;
        }
        std::fs::rename(half, &path)?;
    }
    warm(&path)?;
    Ok(path)
}

/// Where disks are copied to: memory, as other programs' bytes go nowhere at all. What a disk of this machine takes is not
/// what is measured, and on some it comes and goes.
pub fn pool() -> Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let usual = if memory.is_dir() { memory.to_path_buf() } else { lab_folder().join("bench") };
    let folder: String = variable("DROVER_WAN_POOL", usual.display().to_string())?;
    Ok(Path::new(&folder).join("drover-wan-pool"))
}

/// Reading it once puts it into the page cache, as far as that goes.
fn warm(path: &Path) -> Result<()> {
    std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
    Ok(())
}
