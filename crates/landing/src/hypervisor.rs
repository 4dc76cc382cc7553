//! QEMU on this host, for the agent: what peers have it build is built here as for a plan of this host's own.

use std::path::Path;
use std::time::Duration;

use drover_agent::machine::{
    CONVERT, CONVERT_FALLBACK, CONVERT_WINDOWS, CONVERT_WINDOWS_SCSI, CONVERT_WRITE, Conversion, Guest, Lack,
    Machine,
};
use drover_agent::{FirstBootFiles, Home, Hypervisor, Refusal};
use drover_disk::DiskErrorKind;
use drover_qemu::{
    ConvertOptions, ConvertOutcome, DiskBus, GuestKind, ImageFormat, MachineSpec, QemuError, QemuErrorKind,
    RunOptions, Trials, Validation, VmFolder,
};

use crate::conversion;
use crate::lacks::lacks;
use crate::machine::spec_of;

/// How long a guest that must go may take before its plug is pulled.
const STOP_TIME: Duration = Duration::from_secs(5);

/// QEMU and libvirt on this host.
pub struct Qemu {
    trials: Trials,
}

impl Qemu {
    /// What is remembered of trials of the converter lies in this state folder.
    pub fn new(state: &Path) -> Qemu {
        Qemu { trials: conversion::trials_in(state) }
    }
}

/// The machine of a peer. What its images hold is the peer's, down to the first byte: whatever they are called, QEMU never takes them for a
/// format whose head could name files of this host.
fn spec(home: &Home<'_>) -> Result<MachineSpec, QemuError> {
    let mut spec = spec_of(home, None)?;
    spec.disks.iter_mut().for_each(|disk| disk.format = ImageFormat::Raw);
    Ok(spec)
}

impl Hypervisor for Qemu {
    fn check(&self, home: &Home<'_>) -> Result<(), Refusal> {
        spec(home).and_then(|spec| spec.check()).map_err(refusal)
    }

    fn lacks(&self, machine: &Machine, is_unwanted: &dyn Fn() -> bool) -> Vec<Lack> {
        // Which files of UEFI are taken is this host's own affair.
        let mut lacks = lacks(machine, None);
        if machine.is_converted
            && let Err(lack) = conversion::try_appliance(&self.trials, is_unwanted, &|| {})
        {
            lacks.push(Lack { what: lack.what, advice: lack.advice });
        }
        lacks
    }

    fn define(&self, home: &Home<'_>) -> Result<(String, Option<String>), Refusal> {
        let spec = spec(home).map_err(refusal)?;
        let made = drover_qemu::write_definition(&spec).map_err(refusal)?;
        let schema = match made.validation {
            Validation::Valid => "valid by libvirt's schema".to_string(),
            Validation::NotChecked(why) => format!("not checked against libvirt's schema: {why}"),
            Validation::Invalid(why) => {
                let why = format!("libvirt's schema refuses {}: {why}", made.xml_path.display());
                return Err(Refusal::new(DiskErrorKind::Failed, why));
            }
        };
        let xml = made.xml_path.display();
        let (script, start_with) = match &made.run_script_path {
            Some(script) => (format!(", {}", script.display()), format!("'{}'", script.display())),
            None => (String::new(), format!("virsh define '{xml}' && virsh start '{}'", spec.name)),
        };
        Ok((format!("{xml}{script} ({schema})"), Some(start_with)))
    }

    fn is_defined(&self, folder: &Path) -> bool {
        let folder = VmFolder::new(folder);
        folder.domain_xml().exists() || folder.run_script().exists()
    }

    fn undefine(&self, folder: &Path) -> Result<(), Refusal> {
        let folder = VmFolder::new(folder);
        drover_qemu::undo_definition(&folder).map_err(refusal)?;
        // What the last run left; a machine that runs was refused above.
        let traces = [folder.qmp_socket(), folder.vnc_socket(), folder.pid_file()];
        let logs = [folder.serial_log(), folder.qemu_log()];
        for file in traces.iter().chain(&logs) {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let why = format!("removing {}: {error}", file.display());
                    return Err(Refusal::new(DiskErrorKind::of(&error), why));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn start(&self, home: &Home<'_>) -> Result<(String, Duration), Refusal> {
        let spec = spec(home).map_err(refusal)?;
        let running = drover_qemu::start(&spec, &RunOptions::default()).map_err(refusal)?;
        let notes: String = running.notes.iter().map(|note| format!("; {note}")).collect();
        let words =
            format!("process {}, serial line in {}{notes}", running.pid, running.serial_log().display());
        Ok((words, running.watched))
    }

    fn runs(&self, folder: &Path) -> Result<bool, Refusal> {
        drover_qemu::is_running(&VmFolder::new(folder)).map_err(refusal)
    }

    fn stop(&self, folder: &Path) -> Result<(), Refusal> {
        match drover_qemu::find_running(&VmFolder::new(folder)).map_err(refusal)? {
            Some(running) => running.stop(STOP_TIME).map_err(refusal),
            None => Ok(()),
        }
    }

    fn converts(&self) -> Vec<&'static str> {
        // Which Windows it is nobody knows yet.
        let windows = GuestKind::Windows { guest_id: "" };
        let can = |guest, bus| drover_qemu::check_conversion(guest, bus).is_ok();
        let customizes = drover_qemu::can_customize().is_ok();
        let kinds = [
            (CONVERT, can(GuestKind::Other, DiskBus::Virtio)),
            (CONVERT_WINDOWS, can(windows, DiskBus::Virtio)),
            (CONVERT_WINDOWS_SCSI, can(windows, DiskBus::Scsi)),
            (CONVERT_WRITE, customizes),
            (CONVERT_FALLBACK, customizes),
        ];
        kinds.into_iter().filter(|(_, can)| *can).map(|(word, _)| word).collect()
    }

    fn convert(
        &self,
        home: &Home<'_>,
        guest: &Guest,
        files: &FirstBootFiles,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Conversion, Refusal> {
        let spec = spec(home).map_err(refusal)?;
        let guest =
            conversion::of_peer(guest, files).map_err(|why| Refusal::new(DiskErrorKind::Misuse, why))?;
        let done = drover_qemu::convert(&spec, &guest, &ConvertOptions::default(), is_unwanted);
        match done.map_err(refusal)? {
            ConvertOutcome::Converted { log, warnings, kept } => {
                let log = log.display().to_string();
                Ok(Conversion { before: false, log, warnings, kept })
            }
            ConvertOutcome::ConvertedBefore => Ok(Conversion { before: true, ..Conversion::default() }),
            ConvertOutcome::NotAvailable(why) => Err(Refusal::new(DiskErrorKind::Unsupported, why)),
        }
    }

    fn is_converted(&self, folder: &Path) -> bool {
        drover_qemu::is_converted(&VmFolder::new(folder), &[])
    }

    fn forget_conversion(&self, folder: &Path) -> Result<(), Refusal> {
        drover_qemu::forget_conversion(&VmFolder::new(folder)).map_err(refusal)
    }
}

fn refusal(error: QemuError) -> Refusal {
    let kind = match error.kind {
        QemuErrorKind::OutOfSpace => DiskErrorKind::OutOfSpace,
        QemuErrorKind::Denied | QemuErrorKind::Busy | QemuErrorKind::AlreadyRunning => DiskErrorKind::Denied,
        QemuErrorKind::Missing(_) => DiskErrorKind::Unsupported,
        QemuErrorKind::Invalid => DiskErrorKind::Misuse,
        _ => DiskErrorKind::Failed,
    };
    let advice = error.advice().map(|advice| format!(" ({advice})")).unwrap_or_default();
    Refusal::new(kind, format!("{}{advice}", error.chain()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn an_image_of_a_peer_is_raw_whatever_it_is_called() {
        let machine = r#"{"name": "web", "firmware": "bios", "cpus": 1, "cores_per_socket": 1, "memory_mib": 64, "local_time": false,
            "disks": [{"disk": "vms/web.qcow2", "bus": "virtio", "capacity_bytes": 1048576}], "nics": [], "accelerator": "tcg"}"#;
        let machine: Machine = serde_json::from_str(machine).unwrap();
        let images = vec![PathBuf::from("/vms/web.qcow2")];
        let home = Home { folder: PathBuf::from("/vms/web"), images, machine: &machine };
        let spec = spec(&home).unwrap();
        assert!(spec.disks.iter().all(|disk| disk.format == ImageFormat::Raw), "{spec:?}");
        assert_eq!(spec.disks.len(), 1);
    }
}
