//! The disks that are copied, made once and kept.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

/// Where the disks lie and how large they are.
pub struct Data {
    pub folder: PathBuf,
    pub mib: u64,
}

const MIB: u64 = 1 << 20;

impl Data {
    pub fn new(folder: &Path, mib: u64) -> Result<Data> {
        std::fs::create_dir_all(folder)?;
        Ok(Data { folder: folder.to_path_buf(), mib })
    }

    /// The latency cases measure waiting, not bytes.
    pub fn small_mib(&self) -> u64 {
        (self.mib / 8).max(64)
    }

    /// Nothing can be left out.
    pub fn random(&self) -> Result<PathBuf> {
        self.part(self.mib)
    }

    pub fn small_random(&self) -> Result<PathBuf> {
        self.part(self.small_mib())
    }

    /// Random bytes of any size.
    pub fn part(&self, mib: u64) -> Result<PathBuf> {
        self.made("random", mib, |path| random(path, mib))
    }

    /// 1 MiB of data, 1 MiB of hole, and so on.
    pub fn half_sparse(&self) -> Result<PathBuf> {
        let source = self.random()?;
        self.made("half", self.mib, |path| {
            let (mut from, mut to) = (File::open(source)?, File::create(path)?);
            let mut piece = vec![0; MIB as usize];
            for number in (0..self.mib).step_by(2) {
                from.read_exact(&mut piece)?;
                to.seek(SeekFrom::Start(number * MIB))?;
                to.write_all(&piece)?;
            }
            Ok(to.set_len(self.mib * MIB)?)
        })
    }

    /// Allocated everywhere; one block of 64 KiB in 64 holds data.
    pub fn mostly_zero(&self) -> Result<PathBuf> {
        let source = self.random()?;
        self.made("zeros", self.mib, |path| {
            let (mut from, mut to) = (File::open(source)?, File::create(path)?);
            for number in 0..self.mib {
                let mut piece = vec![0; MIB as usize];
                if number % 4 == 0 {
                    from.read_exact(&mut piece[..64 << 10])?;
                }
                to.write_all(&piece)?;
            }
            Ok(())
        })
    }

    /// An ext4 file system that holds what this machine has in /usr, about half full.
    pub fn file_system(&self) -> Result<PathBuf> {
        self.made("ext4", self.mib, |path| {
            let tree = self.folder.join("tree");
            std::fs::create_dir_all(&tree)?;
            let limit = self.mib * MIB / 2;
            let mut filled = 0;
            let mut folders =
                vec![PathBuf::from("/usr/lib"), PathBuf::from("/usr/share"), PathBuf::from("/usr/bin")];
            while let Some(folder) = folders.pop() {
                let Ok(entries) = std::fs::read_dir(&folder) else { continue };
                for entry in entries.flatten() {
                    let kind = entry.file_type()?;
                    if kind.is_dir() {
                        folders.push(entry.path());
                    } else if kind.is_file() && filled < limit {
                        filled += entry.metadata()?.len();
                        let name = tree.join(format!("{filled}"));
                        std::fs::copy(entry.path(), name)?;
                    }
                }
            }
            File::create(path)?.set_len(self.mib * MIB)?;
            let made = Command::new("/sbin/mke2fs")
                .args(["-q", "-t", "ext4", "-d"])
                .arg(&tree)
                .arg(path)
                .status()?;
            ensure!(made.success(), "mke2fs failed");
            Ok(std::fs::remove_dir_all(&tree)?)
        })
    }

    /// A qcow2 image of the random disk, uncompressed.
    pub fn qcow2(&self) -> Result<PathBuf> {
        let source = self.random()?;
        let path = self.folder.join(format!("random-{}.qcow2", self.mib));
        if !path.exists() {
            let half = path.with_extension("half");
            let made = Command::new("qemu-img")
                .args(["convert", "-f", "raw", "-O", "qcow2"])
                .args([&source, &half])
                .status()?;
            ensure!(made.success(), "qemu-img failed");
            std::fs::rename(half, &path)?;
        }
        Ok(path)
    }

    /// Makes a disk under another name first, so that one half made is never taken.
    fn made(&self, name: &str, mib: u64, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}-{mib}.raw"));
        if !path.exists() {
            let half = path.with_extension("half");
            make(&half)?;
            std::fs::rename(half, &path)?;
        }
        Ok(path)
    }
}

fn random(path: &Path, mib: u64) -> Result<()> {
    std::io::copy(&mut File::open("/dev/urandom")?.take(mib * MIB), &mut File::create(path)?)?;
    Ok(())
}
