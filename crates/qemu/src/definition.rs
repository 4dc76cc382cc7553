use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::command::{RunOptions, Serial};
use crate::error::{QemuError, QemuErrorKind};
use crate::folder::VmFolder;
use crate::image::{beside, sync_folder_of};
use crate::libvirt::libvirt_xml;
use crate::ovmf::Ovmf;
use crate::process::is_running;
use crate::script::shell_script;
use crate::spec::{MachineFirmware, MachineSpec};
use crate::validate::{Validation, validate_xml};

/// What was written for a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Domain XML for libvirt.
    pub xml_path: PathBuf,
    /// Script that runs it without libvirt; absent where the UEFI files are not known.
    pub run_script_path: Option<PathBuf>,
    /// The machine's UEFI variables.
    pub nvram_path: Option<PathBuf>,
    /// What libvirt's schema says of the XML.
    pub validation: Validation,
}

/// Writes a machine's definition to its folder: domain XML, run script, UEFI variables. Each file appears
/// whole and durable or not at all; doing it again changes nothing but what the spec changed. UEFI variables
/// that are there already are kept, for the guest may have written to them.
///
/// # Errors
/// If the machine cannot be built, or a file cannot be written.
pub fn write_definition(spec: &MachineSpec) -> Result<Definition, QemuError> {
    spec.check()?;
    let xml = libvirt_xml(spec);
    let script = match &spec.firmware {
        MachineFirmware::Uefi { files: None, .. } => None,
        _ => {
            let options = RunOptions { serial: Serial::Terminal, screen: true, ..RunOptions::default() };
            Some(shell_script(spec, &options)?)
        }
    };
    let folder = &spec.folder;
    make_folder(folder)?;
    let nvram_path = match &spec.firmware {
        MachineFirmware::Uefi { files: Some(files), .. } => Some(copy_variables(files, folder)?),
        _ => None,
    };
    write_file(&folder.domain_xml(), xml.as_bytes(), 0o644)?;
    if let Some(script) = &script {
        write_file(&folder.run_script(), script.as_bytes(), 0o755)?;
    }
    Ok(Definition {
        xml_path: folder.domain_xml(),
        run_script_path: script.map(|_| folder.run_script()),
        nvram_path,
        validation: validate_xml(&xml),
    })
}

/// Removes what [`write_definition`] wrote. What is gone already is fine; disks and logs stay.
///
/// # Errors
/// [`QemuErrorKind::AlreadyRunning`] if the machine runs.
pub fn undo_definition(folder: &VmFolder) -> Result<(), QemuError> {
    let what = format!("removal of the definition in {}", folder.path().display());
    if is_running(folder)? {
        return Err(QemuError::new(QemuErrorKind::AlreadyRunning, what).because("the machine runs"));
    }
    let files = [folder.domain_xml(), folder.run_script(), folder.nvram()];
    files.iter().try_for_each(|file| remove_if_there(file)).map_err(|error| QemuError::io(what, error))
}

/// Removes a file durably. One that is gone is fine.
pub(crate) fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| sync_folder_of(file)),
    }
}

fn make_folder(folder: &VmFolder) -> Result<(), QemuError> {
    let what = || format!("creation of {}", folder.path().display());
    fs::create_dir_all(folder.path()).map_err(|error| QemuError::io(what(), error))
}

fn copy_variables(files: &Ovmf, folder: &VmFolder) -> Result<PathBuf, QemuError> {
    let nvram = folder.nvram();
    if !nvram.exists() {
        let template = fs::read(&files.vars_template)
            .map_err(|error| QemuError::io(format!("read of {}", files.vars_template.display()), error))?;
        write_file(&nvram, &template, 0o600)?;
    }
    Ok(nvram)
}

/// Puts a file in its place whole and durable, or not at all.
pub(crate) fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), QemuError> {
    let new = beside(path, "new");
    let write = || {
        let mut file = File::create(&new)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        sync_folder_of(path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        QemuError::io(format!("write of {}", path.display()), error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::machine;

    fn uefi_machine(folder: &Path) -> MachineSpec {
        let files = Ovmf { code: folder.join("CODE.fd"), vars_template: folder.join("VARS.fd") };
        fs::write(&files.vars_template, "empty variables").unwrap();
        let mut spec = machine(&folder.join("vms/web01"));
        spec.firmware = MachineFirmware::Uefi { secure_boot: false, files: Some(files) };
        spec
    }

    #[test]
    fn a_definition_can_be_written_twice_and_undone_twice() {
        let folder = tempfile::tempdir().unwrap();
        let spec = uefi_machine(folder.path());
        let first = write_definition(&spec).unwrap();
        fs::write(first.nvram_path.as_ref().unwrap(), "set by the guest").unwrap();
        let second = write_definition(&spec).unwrap();
        assert_eq!(first, second);
        assert_eq!(fs::read_to_string(second.nvram_path.unwrap()).unwrap(), "set by the guest");
        let mode = fs::metadata(second.run_script_path.unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert_eq!(fs::read_dir(spec.folder.path()).unwrap().count(), 3);
        undo_definition(&spec.folder).unwrap();
        undo_definition(&spec.folder).unwrap();
        assert_eq!(fs::read_dir(spec.folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_firmware_files_libvirt_chooses_them_and_there_is_no_script() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = machine(folder.path());
        spec.firmware = MachineFirmware::Uefi { secure_boot: true, files: None };
        let definition = write_definition(&spec).unwrap();
        assert!(definition.run_script_path.is_none() && definition.nvram_path.is_none());
        assert!(fs::read_to_string(definition.xml_path).unwrap().contains("<os firmware='efi'>"));
    }

    #[test]
    fn a_machine_that_cannot_be_built_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = machine(&folder.path().join("new"));
        spec.memory_mib = 0;
        write_definition(&spec).unwrap_err();
        assert!(!spec.folder.path().exists());
    }
}
