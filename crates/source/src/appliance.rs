//! Appliances (OVA, OVF) as the engine's source.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_disk::Disk;
use drover_engine::{AskedDisk, Cause, Compared, Frozen, OpenedSource, ProviderError, SourceProvider, chain};
use drover_image::{ManifestCheck, Ova};
use drover_plan::{ManifestUse, NAMES_SHOWN_MAX, OvaSource, PlannedDisk, PlannedVm, Problem, Resolution};
use drover_types::inventory::{About, Inventory, Network, Vm};
use drover_types::{counted, some_of};

/// An appliance: it lies there, never runs, and is only read.
pub struct Appliance {
    ova: Ova,
    name: String,
    manifest: ManifestUse,
    vm: Vm,
    /// Why a disk cannot be read, by its number.
    faults: Vec<Option<String>>,
}

impl Appliance {
    /// Opens the appliance of a plan of that name, whose paths are relative to `folder`.
    ///
    /// # Errors
    /// If it is none, or cannot be read.
    pub fn open(source: &OvaSource, folder: &Path, plan: &str) -> Result<Appliance, ProviderError> {
        let path = folder.join(&source.path);
        let failed = |why: String| {
            ProviderError::new(Cause::Source, why)
                .advise("give an .ova file, an .ovf file, or the folder that holds one")
        };
        let ova = Ova::open(&path).map_err(|error| failed(chain(&error)))?;
        let real = path.canonicalize().map_err(|error| failed(format!("{}: {error}", path.display())))?;
        let mut vm = ova.vm().clone();
        vm.instance_uuid = format!("appliance {}", real.display());
        if vm.id.is_empty() {
            vm.id = "vm".into();
        }
        if vm.name.is_empty() {
            vm.name = real.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        // The tables of an image tell what is allocated, which is what this says of a provider.
        vm.change_tracking = true;
        let faults = name_disks(&mut vm, &ova);
        name_nics(&mut vm, &[plan, &real.to_string_lossy()]);
        Ok(Appliance { ova, name: path.display().to_string(), manifest: source.manifest, vm, faults })
    }

    /// What it holds, as a provider would tell it.
    pub fn inventory(&self) -> Inventory {
        let mut names: Vec<&str> = self.vm.nics.iter().map(|nic| nic.network.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let network = |name: &&str| Network { id: (*name).into(), name: (*name).into() };
        Inventory {
            about: about(Path::new(&self.name)),
            networks: names.iter().map(network).collect(),
            vms: vec![self.vm.clone()],
            ..Inventory::default()
        }
    }

    /// What the user should know.
    pub fn warnings(&self) -> &[String] {
        self.ova.notes()
    }

    /// Disks that the plan takes and that cannot be read.
    pub(crate) fn problems(&self, resolution: &Resolution) -> Vec<Problem> {
        let disks = resolution.vms.iter().flat_map(|vm| &vm.disks);
        let fault = |disk: &PlannedDisk| {
            let fault = self.faults.get(disk.index)?.as_ref()?;
            let text = format!("{} cannot be read: {fault}", disk.disk.label);
            Some(
                Problem::error("source.path", text)
                    .advise("mend the appliance, or leave it out with `exclude_disks`"),
            )
        };
        disks.filter_map(fault).collect()
    }
}

/// Who an appliance comes from, for the words about a VM made of it.
pub(crate) fn about(path: &Path) -> About {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    About { product: format!("appliance {name}"), ..About::default() }
}

/// Gives every disk a key, a label of its own and the size that the image tells; gives what is wrong with
/// those that cannot be opened.
fn name_disks(vm: &mut Vm, ova: &Ova) -> Vec<Option<String>> {
    let labels: Vec<String> = vm.disks.iter().map(|disk| disk.label.clone()).collect();
    let mut faults = Vec::new();
    for (number, disk) in vm.disks.iter_mut().enumerate() {
        disk.key = i32::try_from(number).unwrap_or(i32::MAX);
        let twins = labels.iter().filter(|label| **label == disk.label).count();
        if disk.label.is_empty() || twins > 1 {
            disk.label = format!("Disk {}", number + 1);
        }
        match ova.open_disk(number) {
            Ok(image) => {
                disk.capacity_bytes = image.size();
                faults.push(None);
            }
            Err(error) => faults.push(Some(error.source.to_string())),
        }
    }
    faults
}

/// Gives NICs a network's name and a MAC address where the appliance has none, as most have. The same plan
/// gets the same addresses again; another import of the same appliance gets others.
fn name_nics(vm: &mut Vm, salt: &[&str]) {
    for (number, nic) in vm.nics.iter_mut().enumerate() {
        if nic.network.is_empty() {
            nic.network = "network".into();
        }
        if nic.mac.is_empty() {
            let parts = salt.iter().flat_map(|part| part.bytes().chain([0]));
            let [a, b, c, ..] = spread(parts.chain((number as u32).to_le_bytes())).to_le_bytes();
            nic.mac = format!("52:54:00:{a:02x}:{b:02x}:{c:02x}");
        }
    }
}

/// A number that differs for different bytes, the same on every machine (FNV-1a, folded).
fn spread(bytes: impl Iterator<Item = u8>) -> u64 {
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    sum ^ (sum >> 32)
}

impl SourceProvider for Appliance {
    fn vm(&self, id: &str) -> Result<Vm, ProviderError> {
        if id == self.vm.id {
            return Ok(self.vm.clone());
        }
        let what = format!("{} holds {}, and not {id}", self.name, self.vm.id);
        Err(ProviderError::new(Cause::Source, what).advise("the file was replaced; make a new plan"))
    }

    /// An appliance does not run.
    fn ask_shutdown(&self, _: &Vm) -> Result<(), ProviderError> {
        Ok(())
    }

    fn wait_until_off(&self, _: &Vm, _: Duration) -> Result<(), ProviderError> {
        Ok(())
    }

    /// An appliance does not run.
    fn power_off(&self, _: &Vm) -> Result<(), ProviderError> {
        Ok(())
    }

    fn power_on(&self, vm: &Vm) -> Result<(), ProviderError> {
        Err(ProviderError::new(
            Cause::Internal,
            format!("{} is an appliance, which cannot be switched on", vm.name),
        ))
    }

    /// Nothing is made: the files are only read, and that they stayed as they were is told by their
    /// identity when a copy goes on.
    fn create_snapshot(&self, _: &Vm, _: &str, _: &str) -> Result<Frozen, ProviderError> {
        Ok(Frozen { snapshot: "none".into(), ..Frozen::default() })
    }

    fn remove_snapshot(&self, _: &Vm, _: &str) -> Result<(), ProviderError> {
        Ok(())
    }

    fn has_snapshot(&self, _: &Vm, _: &str) -> Result<bool, ProviderError> {
        Ok(false)
    }

    fn open_disk(&self, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let disk = wanted.disk;
        let image = self.ova.open_disk(disk.index).map_err(|error| {
            ProviderError::new(Cause::Source, format!("{} of {}", disk.disk.label, self.name)).because(error)
        })?;
        Ok(OpenedSource { notes: image.notes().to_vec(), disk: Arc::new(image), late: None })
    }

    fn prove(&self, _: &PlannedVm, compared: Compared<'_>) -> Result<Option<String>, ProviderError> {
        if self.manifest == ManifestUse::Ignore {
            return Ok(Some("the appliance's manifest was not looked at, as the plan says".into()));
        }
        let failed = |error| {
            ProviderError::new(Cause::Manifest, format!("the manifest of {}", self.name)).because(error)
        };
        let check = self.ova.check_manifest(compared).map_err(failed)?;
        let advice = "get the appliance again; if you trust it as it is, write `manifest: ignore` under the plan's `source`";
        let failed = |what| ProviderError::new(Cause::Manifest, what).advise(advice);
        judge(&self.name, &check).map(Some).map_err(failed)
    }

    fn is_template(&self) -> bool {
        true
    }
}

/// What the manifest says of the files: a line.
///
/// # Errors
/// In what they differ.
pub fn judge(name: &str, check: &ManifestCheck) -> Result<String, String> {
    let signed = if check.certificate { "; its certificate was not verified" } else { "" };
    if !check.present {
        return Ok(format!("the appliance has no manifest, so nothing tells whether it is whole{signed}"));
    }
    if check.is_good() {
        return Ok(format!(
            "{} as the appliance's manifest says{signed}",
            counted(check.equal.len(), "file", "is", "are")
        ));
    }
    let lists = [
        (&check.different, "differs from its checksum"),
        (&check.missing, "is missing"),
        (&check.unlisted, "is not listed"),
    ];
    let found: Vec<String> = lists
        .iter()
        .flat_map(|(names, what)| names.iter().map(move |name| format!("'{}' {what}", name.escape_default())))
        .collect();
    let shown = some_of(&found, NAMES_SHOWN_MAX);
    Err(format!("manifest: {name} is not as its maker left it: {shown}"))
}

/// The source of a plan that is given up. Nothing was ever done to an appliance, so nothing is needed of it:
/// it may be gone.
pub(crate) struct LeftAlone {
    pub vms: Vec<Vm>,
}

impl SourceProvider for LeftAlone {
    fn vm(&self, id: &str) -> Result<Vm, ProviderError> {
        let found = self.vms.iter().find(|vm| vm.id == id).cloned();
        found.ok_or_else(|| ProviderError::new(Cause::Internal, format!("{id} is not in the plan")))
    }

    fn ask_shutdown(&self, _: &Vm) -> Result<(), ProviderError> {
        Ok(())
    }

    fn wait_until_off(&self, _: &Vm, _: Duration) -> Result<(), ProviderError> {
        Ok(())
    }

    fn power_off(&self, _: &Vm) -> Result<(), ProviderError> {
        Ok(())
    }

    fn power_on(&self, _: &Vm) -> Result<(), ProviderError> {
        Ok(())
    }

    fn create_snapshot(&self, _: &Vm, _: &str, _: &str) -> Result<Frozen, ProviderError> {
        Err(given_up())
    }

    fn remove_snapshot(&self, _: &Vm, _: &str) -> Result<(), ProviderError> {
        Ok(())
    }

    fn has_snapshot(&self, _: &Vm, _: &str) -> Result<bool, ProviderError> {
        Ok(false)
    }

    fn open_disk(&self, _: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        Err(given_up())
    }

    fn is_template(&self) -> bool {
        true
    }
}

fn given_up() -> ProviderError {
    ProviderError::new(Cause::Internal, "the plan is being given up")
}

/// Whether a text names an appliance: by its ending, or because it is a folder.
pub fn path_of(text: &str) -> Option<PathBuf> {
    let path = PathBuf::from(text);
    let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
    let is_one = ending.is_some_and(|ending| ending == "ova" || ending == "ovf") || path.is_dir();
    is_one.then_some(path)
}
