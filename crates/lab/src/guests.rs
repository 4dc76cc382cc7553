use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::program::{lab_folder, workspace};

/// The test guests that `lab/guests/make-guests` builds.
#[derive(Debug, Deserialize)]
pub struct Guests {
    /// The guests.
    pub guests: Vec<Guest>,
    /// Folder of their images.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A test guest.
#[derive(Debug, Deserialize)]
pub struct Guest {
    /// Name.
    pub name: String,
    /// `bios` or `uefi`.
    pub firmware: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Disks, the boot disk first.
    pub disks: Vec<GuestDisk>,
    /// Beginnings of lines that it prints on the serial line when it boots and finds all its data.
    pub expect: Vec<String>,
}

/// A disk of a guest.
#[derive(Debug, Deserialize)]
pub struct GuestDisk {
    /// File in the folder.
    pub file: String,
    /// Bytes.
    pub capacity_bytes: u64,
}

impl Guests {
    /// Builds the guests, or finds them built.
    ///
    /// # Errors
    /// If a program or package is missing; the builder says which.
    pub fn build() -> Result<Guests> {
        let folder = lab_folder().join("guests");
        let status =
            Command::new(workspace().join("lab/guests/make-guests")).arg("--out").arg(&folder).status()?;
        if !status.success() {
            bail!("lab/guests/make-guests failed; run `make prepare` to install what it needs");
        }
        Guests::load(&folder)
    }

    /// Reads the manifest of guests that are built.
    ///
    /// # Errors
    /// If they are not.
    pub fn load(folder: &Path) -> Result<Guests> {
        let text = std::fs::read_to_string(folder.join("guests.json")).context("guests.json")?;
        let guests: Guests = serde_json::from_str(&text)?;
        Ok(Guests { folder: folder.to_path_buf(), ..guests })
    }

    /// A guest by name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<&Guest> {
        self.guests.iter().find(|guest| guest.name == name).with_context(|| format!("guest {name}"))
    }
}

impl Guest {
    /// Which of the expected lines a serial log lacks.
    pub fn missing_in(&self, serial: &str) -> Vec<&str> {
        let lines: Vec<&str> = serial.lines().map(|line| line.trim_end_matches('\r')).collect();
        let said = |expected: &&str| lines.iter().any(|line| line.trim_start().starts_with(*expected));
        self.expect.iter().map(String::as_str).filter(|expected| !said(expected)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_log_lacks_what_it_does_not_say() {
        let guest = Guest {
            name: "g".into(),
            firmware: "bios".into(),
            cpus: 1,
            memory_mib: 1,
            disks: Vec::new(),
            expect: vec!["DROVER-GUEST name=g".into(), "DROVER-DONE".into()],
        };
        assert_eq!(guest.missing_in("SeaBIOS\r\nDROVER-GUEST name=g kernel=6\r\n"), ["DROVER-DONE"]);
        assert!(guest.missing_in("DROVER-GUEST name=g x\nDROVER-DONE\n").is_empty());
    }
}
