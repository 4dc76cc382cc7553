//! The bytes that are sent, made once and kept.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::Result;
use drover_lab::lab_folder;

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
    // Reading it once puts it into the page cache, as far as that goes.
    std::io::copy(&mut File::open(&path)?, &mut std::io::sink())?;
    Ok(path)
}
