use std::path::{Path, PathBuf};

use crate::error::{QemuError, QemuErrorKind};

/// The files of one UEFI firmware build (OVMF).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ovmf {
    /// The code, which machines share.
    pub code: PathBuf,
    /// Empty variables (with Microsoft's keys for secure boot), of which each machine gets a copy.
    pub vars_template: PathBuf,
}

impl Ovmf {
    /// Finds the firmware this system has installed.
    ///
    /// # Errors
    /// [`QemuErrorKind::Missing`] if there is none.
    pub fn find(secure_boot: bool) -> Result<Ovmf, QemuError> {
        Ovmf::find_below(Path::new("/"), secure_boot)
    }

    fn find_below(root: &Path, secure_boot: bool) -> Result<Ovmf, QemuError> {
        let known = if secure_boot { SECURE } else { PLAIN };
        known
            .iter()
            .map(|(code, vars)| Ovmf { code: root.join(code), vars_template: root.join(vars) })
            .find(|files| files.code.is_file() && files.vars_template.is_file())
            .ok_or_else(|| {
                let kind = if secure_boot { "UEFI firmware with secure boot" } else { "UEFI firmware" };
                QemuError::new(QemuErrorKind::Missing("ovmf"), format!("{kind} (OVMF) is not installed"))
            })
    }
}

// Code and variables of one row were built together; a 2 MiB code with 4 MiB variables does not boot. Only
// raw files are listed, as newer Fedora also ships qcow2 ones under similar names. First match wins.
// Sources: file lists of Debian `ovmf` 2022.11 and 2025.02, Fedora `edk2-ovmf`, Arch `edk2-ovmf`, openSUSE `qemu-ovmf-x86_64`.
const PLAIN: &[(&str, &str)] = &[
    ("usr/share/OVMF/OVMF_CODE_4M.fd", "usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("usr/share/OVMF/OVMF_CODE.fd", "usr/share/OVMF/OVMF_VARS.fd"),
    ("usr/share/edk2/ovmf/OVMF_CODE.fd", "usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("usr/share/edk2/x64/OVMF_CODE.4m.fd", "usr/share/edk2/x64/OVMF_VARS.4m.fd"),
    ("usr/share/qemu/ovmf-x86_64-4m-code.bin", "usr/share/qemu/ovmf-x86_64-4m-vars.bin"),
];

const SECURE: &[(&str, &str)] = &[
    ("usr/share/OVMF/OVMF_CODE_4M.ms.fd", "usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
    ("usr/share/OVMF/OVMF_CODE.ms.fd", "usr/share/OVMF/OVMF_VARS.ms.fd"),
    ("usr/share/edk2/ovmf/OVMF_CODE.secboot.fd", "usr/share/edk2/ovmf/OVMF_VARS.secboot.fd"),
    ("usr/share/qemu/ovmf-x86_64-smm-ms-code.bin", "usr/share/qemu/ovmf-x86_64-smm-ms-vars.bin"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_variables_come_from_one_build() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/share/OVMF");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["OVMF_CODE_4M.fd", "OVMF_CODE.fd", "OVMF_VARS.fd"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = Ovmf::find_below(root.path(), false).unwrap();
        assert_eq!(
            (found.code, found.vars_template),
            (folder.join("OVMF_CODE.fd"), folder.join("OVMF_VARS.fd"))
        );
    }

    #[test]
    fn missing_firmware_names_its_package() {
        let root = tempfile::tempdir().unwrap();
        let error = Ovmf::find_below(root.path(), true).unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::Missing("ovmf"));
        assert!(error.to_string().contains("secure boot"));
    }
}
