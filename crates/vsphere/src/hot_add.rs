//! Disks of one VM that another one reads: files of a snapshot, attached to a running proxy VM.
//!
//! A file is attached as it is, independent and nonpersistent: whatever the proxy wrote would go to a file of its own, which
//! vSphere throws away. Source: vSphere API reference, `VirtualMachineConfigSpec.deviceChange`, `VirtualDiskMode`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use drover_types::inventory::{DiskMode, PowerState, VmDisk};

use crate::collect::Object;
use crate::device;
use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::{busy_pauses, vm_ref};
use crate::session::{Call, Inner, Session};
use crate::soap::{Moref, tag};
use crate::vm::{decode_name, power_of};
use crate::xml::Element;

/// Units of a SCSI controller, its own among them. Newer ones have more, which not every guest sees.
const UNITS: i32 = 16;
/// The unit that a controller has itself, unless it says otherwise.
const OWN_UNIT: i32 = 7;
/// Attaching opens a file and its parents; detaching waits for the guest's last reads.
const RECONFIGURE_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// How long a change is waited for that an earlier call asked for.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(60);
/// Tries for a slot that somebody else took in the same moment, or for a disk of which nobody knows whether it came.
const TRIES_MAX: u32 = 5;

/// A VM that reads disks of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub power: PowerState,
    /// Id of the host that runs it.
    pub host_id: String,
    /// Names of the datastores that this host sees.
    pub datastores: BTreeSet<String>,
    /// Whether its guest sees the UUIDs of its disks (`disk.EnableUUID`).
    pub shows_uuids: bool,
    /// Its disks, those of others among them.
    pub disks: Vec<VmDisk>,
    /// Its SCSI controllers: key, and the units that are taken.
    pub controllers: BTreeMap<i32, BTreeSet<i32>>,
}

impl Proxy {
    /// Disks that can still be attached.
    pub fn free_slots(&self) -> usize {
        self.controllers.values().map(|taken| UNITS as usize - taken.len().min(UNITS as usize)).sum()
    }

    /// Another file that it has attached and that its guest cannot tell from this disk.
    fn twin_of(&self, wanted: &Wanted<'_>) -> Option<&VmDisk> {
        let serial = serial_of(wanted.uuid);
        self.disks.iter().find(|disk| disk.path != wanted.file && serial_of(&disk.uuid) == serial)
    }

    fn free_slot(&self) -> Option<(i32, i32)> {
        let free = |taken: &BTreeSet<i32>| (0..UNITS).find(|unit| !taken.contains(unit));
        self.controllers.iter().find_map(|(key, taken)| Some((*key, free(taken)?)))
    }

    fn read(object: &Object, datastores: BTreeSet<String>) -> Proxy {
        let nothing = Element::default();
        let devices = object.get("config.hardware.device").unwrap_or(&nothing);
        let settings = object.get("config.extraConfig").unwrap_or(&nothing);
        let is_shown = |setting: &Element| {
            setting.text_at("key").is_some_and(|key| key.eq_ignore_ascii_case("disk.EnableUUID"))
                && setting.text_at("value").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        };
        Proxy {
            id: object.moref.id.clone(),
            name: decode_name(&object.string("name")),
            power: power_of(object.text("runtime.powerState")),
            host_id: object.string("runtime.host"),
            datastores,
            shows_uuids: settings.children.iter().any(is_shown),
            disks: device::disks(devices.children.iter(), &[]),
            controllers: controllers(&devices.children),
        }
    }
}

/// SCSI controllers with the units that are taken on them, their own among these.
fn controllers(devices: &[Element]) -> BTreeMap<i32, BTreeSet<i32>> {
    let is_scsi = |device: &&Element| {
        device.child("busNumber").is_some() && (device.kind.contains("SCSI") || device.kind.contains("Logic"))
    };
    let mut found: BTreeMap<i32, BTreeSet<i32>> = devices
        .iter()
        .filter(is_scsi)
        .filter_map(|device| {
            let own = device.number_at("scsiCtlrUnitNumber").unwrap_or(OWN_UNIT);
            Some((device.number_at("key")?, BTreeSet::from([own])))
        })
        .collect();
    for device in devices {
        let place = (device.number_at::<i32>("controllerKey"), device.number_at::<i32>("unitNumber"));
        if let (Some(controller), Some(unit)) = place
            && let Some(taken) = found.get_mut(&controller)
            && (0..UNITS).contains(&unit)
        {
            taken.insert(unit);
        }
    }
    found
}

/// A disk that is to be attached.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its file, in the data centre of the VM that it is attached to.
    pub file: &'a str,
    /// Its UUID, by which alone a guest tells disks.
    pub uuid: &'a str,
    /// Its capacity.
    pub capacity_bytes: u64,
}

/// What came of attaching a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    /// It is attached.
    Done(Box<VmDisk>),
    /// The SCSI controllers of the proxy have no free unit.
    Full,
    /// It is not: this other file is, and has the same UUID.
    Twin(String),
}

/// Why a disk was not attached.
#[derive(Debug)]
pub enum AttachError<E> {
    /// vSphere refused, or did not answer.
    Vsphere(VsphereError),
    /// The caller, who had a look at the proxy first.
    Refused(E),
}

impl<E> From<VsphereError> for AttachError<E> {
    fn from(error: VsphereError) -> Self {
        AttachError::Vsphere(error)
    }
}

/// A disk's UUID as its guest sees it.
pub fn serial_of(uuid: &str) -> String {
    uuid.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect()
}

impl Session {
    /// A fresh look at a VM that reads disks of others.
    ///
    /// # Errors
    /// Also when it is not there (any more).
    pub fn proxy(&self, vm: &str) -> Result<Proxy, VsphereError> {
        let op = self.inner.op("look at proxy", vm);
        let paths =
            ["name", "runtime.powerState", "runtime.host", "config.hardware.device", "config.extraConfig"];
        let object = self.inner.read(&op, &vm_ref(vm), &paths)?;
        let Some(devices) = object.get("config.hardware.device") else {
            // One that cannot be reached may hold disks all the same.
            let why = "vSphere does not tell its devices: it may be inaccessible";
            return Err(VsphereError::new(VsphereErrorKind::Busy, &op, why));
        };
        if let Some(what) = device::untold_disk(devices.children.iter()) {
            // It may be the one that is looked for.
            let why = format!("vSphere does not tell {what}");
            return Err(VsphereError::new(VsphereErrorKind::NotVsphere, &op, why));
        }
        let datastores = match self.inner.datastores_of(&op, &object.string("runtime.host")) {
            // The host went, not the VM.
            Err(error) if error.kind == VsphereErrorKind::NotFound => BTreeSet::new(),
            datastores => datastores?,
        };
        Ok(Proxy::read(&object, datastores))
    }

    /// Attaches a file to a VM, so that its guest can read it, unless `admit` refuses the VM as it is found, or it has another
    /// file with the same UUID. Of several for one VM only one at a time is done by vSphere: the caller sees to it, and another
    /// program's is waited for. Each look at the VM serves all that is asked of it: two looks for a disk that nothing disturbs.
    ///
    /// # Errors
    /// When vSphere refuses. The file may be attached all the same after an error: look, and detach it.
    pub fn attach<E>(
        &self,
        proxy: &str,
        wanted: &Wanted<'_>,
        admit: impl FnOnce(&Proxy) -> Result<(), E>,
    ) -> Result<Attach, AttachError<E>> {
        let op = format!("{}: {}", self.inner.op("attach to", proxy), wanted.file);
        let mut now = self.proxy(proxy)?;
        admit(&now).map_err(AttachError::Refused)?;
        if let Some(left) = now.disks.iter().find(|disk| is_of_another(disk, wanted.file)) {
            // An earlier run's. Its snapshot may be another one.
            self.detach(proxy, left)?;
            now = self.proxy(proxy)?;
        }
        let work = self.inner.begin();
        let mut pauses = busy_pauses();
        let mut tries = 0;
        loop {
            let ours = now.disks.iter().find(|disk| is_of_another(disk, wanted.file));
            // Also one that another program attached in the same moment.
            if let Some(twin) = now.twin_of(wanted) {
                ours.map_or(Ok(()), |ours| self.detach(proxy, ours))?;
                return Ok(Attach::Twin(twin.path.clone()));
            }
            if let Some(found) = ours {
                return Ok(Attach::Done(Box::new(found.clone())));
            }
            let Some(slot) = now.free_slot() else { return Ok(Attach::Full) };
            tries += 1;
            let spec = existing_disk(wanted.file, wanted.capacity_bytes, slot);
            match self.inner.reconfigure(&op, proxy, &spec) {
                Err(error) if error.kind == VsphereErrorKind::Busy && !error.is_fault("FileLocked") => {
                    let Some(pause) = pauses.next() else { return Err(error.into()) };
                    tries -= 1;
                    work.sleep(&op, pause)?;
                }
                Err(error) if tries < TRIES_MAX && (is_of_slot(&error) || error.is_unclear()) => {
                    work.check(&op)?;
                }
                Err(error) => return Err(error.into()),
                Ok(()) if tries < TRIES_MAX => {}
                Ok(()) => {
                    let why = "the task ended well, but the disk is not there";
                    return Err(VsphereError::new(VsphereErrorKind::NotVsphere, &op, why).into());
                }
            }
            now = self.proxy(proxy)?;
        }
    }

    /// Waits until no change of a VM that was asked for before is under way: one that drover was stopped at goes on at the
    /// server, and attaches its disk when nobody waits for it any more.
    ///
    /// # Errors
    /// When one is still under way after a minute, or the VM cannot be looked at.
    pub fn wait_for_changes(&self, vm: &str) -> Result<(), VsphereError> {
        let op = self.inner.op("wait for changes of", vm);
        let recent = self.inner.read(&op, &vm_ref(vm), &["recentTask"])?;
        let tasks: Vec<Moref> =
            recent.get("recentTask").map_or(Vec::new(), |list| list.children.iter().map(Moref::of).collect());
        for task in tasks {
            let info = match self.inner.read(&op, &task, &["info"]) {
                // It ended long ago.
                Err(error) if error.is_gone() => continue,
                info => info?,
            };
            let is_change = |info: &Element| {
                info.text_at("descriptionId").is_some_and(|id| id.to_ascii_lowercase().contains("reconfig"))
            };
            if !info.get("info").is_some_and(is_change) {
                continue;
            }
            match self.inner.wait_task(&op, &task, CHANGE_TIME_MAX) {
                Err(error) if error.kind == VsphereErrorKind::Timeout => {
                    let why = "a change that was asked for before is still under way there";
                    return Err(VsphereError::new(VsphereErrorKind::Busy, &op, why));
                }
                // Whether it failed shows in what is there.
                _ => {}
            }
        }
        Ok(())
    }

    /// Detaches a disk that [`Session::attach`] attached. One that is gone is fine, and so is a proxy that is.
    ///
    /// # Errors
    /// When vSphere refuses, or the proxy stays busy with other tasks for ten minutes.
    pub fn detach(&self, proxy: &str, disk: &VmDisk) -> Result<(), VsphereError> {
        let op = format!("{}: {}", self.inner.op("detach from", proxy), disk.path);
        let work = self.inner.begin();
        let mut pauses = busy_pauses();
        let mut tries = 0;
        loop {
            let now = match self.proxy(proxy) {
                Err(error) if error.is_gone() => return Ok(()),
                now => now?,
            };
            // Another disk may have its key by now.
            if !now.disks.iter().any(|it| it.key == disk.key && is_of_another(it, &disk.path)) {
                return Ok(());
            }
            tries += 1;
            let spec = format!(
                "<operation>remove</operation><device xsi:type=\"VirtualDisk\">{}</device>",
                tag("key", &disk.key.to_string()) + &tag("capacityInKB", "0")
            );
            match self.inner.reconfigure(&op, proxy, &spec) {
                Err(error) if error.kind == VsphereErrorKind::Busy => {
                    let Some(pause) = pauses.next() else { return Err(error) };
                    tries -= 1;
                    work.sleep(&op, pause)?;
                }
                Err(error) if tries < TRIES_MAX && error.is_unclear() => {}
                Err(error) => return Err(error),
                Ok(()) if tries < TRIES_MAX => {}
                Ok(()) => {
                    let why = "the task ended well, but the disk is still there";
                    return Err(VsphereError::new(VsphereErrorKind::State, &op, why));
                }
            }
        }
    }

    /// Sleeps, unless the user asked for a stop meanwhile.
    ///
    /// # Errors
    /// Then.
    pub fn pause(&self, op: &str, time: Duration) -> Result<(), VsphereError> {
        self.inner.begin().sleep(op, time)
    }
}

impl Inner {
    fn reconfigure(&self, op: &str, vm: &str, change: &str) -> Result<(), VsphereError> {
        let arguments = format!(
            "<spec><deviceChange xsi:type=\"VirtualDeviceConfigSpec\">{change}</deviceChange></spec>"
        );
        let this = &vm_ref(vm);
        let call = Call { op, method: "ReconfigVM_Task", this, arguments: &arguments, is_read: false };
        self.run_task(&call, RECONFIGURE_TIME_MAX).map(drop)
    }

    /// Names of the datastores that a host sees.
    fn datastores_of(&self, op: &str, host: &str) -> Result<BTreeSet<String>, VsphereError> {
        let objects = format!(
            "<objectSet>{}<skip>true</skip><selectSet xsi:type=\"TraversalSpec\"><name>datastores</name>\
             <type>HostSystem</type><path>datastore</path><skip>false</skip></selectSet></objectSet>",
            Moref::new("HostSystem", host).tag("obj")
        );
        let found = self.retrieve(op, &[("Datastore", &["name"])], &objects)?;
        Ok(found.iter().map(|object| decode_name(&object.string("name"))).collect())
    }
}

/// Whether a disk of a proxy is this file, attached so that it cannot be written.
fn is_of_another(disk: &VmDisk, file: &str) -> bool {
    disk.path == file && disk.mode == DiskMode::IndependentNonpersistent
}

/// Somebody else was faster.
fn is_of_slot(error: &VsphereError) -> bool {
    ["InvalidDeviceSpec", "TooManyDevices"].iter().any(|fault| error.is_fault(fault))
}

fn existing_disk(file: &str, capacity_bytes: u64, (controller, unit): (i32, i32)) -> String {
    format!(
        "<operation>add</operation><device xsi:type=\"VirtualDisk\"><key>-1</key>\
         <backing xsi:type=\"VirtualDiskFlatVer2BackingInfo\">{}<diskMode>independent_nonpersistent</diskMode></backing>\
         <controllerKey>{controller}</controllerKey><unitNumber>{unit}</unitNumber>{}</device>",
        tag("fileName", file),
        tag("capacityInKB", &(capacity_bytes / 1024).to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn units_that_are_taken_and_the_controllers_own_are_not_free() {
        let disk = |controller: i32, unit: i32| {
            format!(
                "<device i:type=\"VirtualDisk\"><key>9</key><controllerKey>{controller}</controllerKey>\
                 <unitNumber>{unit}</unitNumber></device>"
            )
        };
        let devices = |units: std::ops::Range<i32>| {
            let disks: String = units.map(|unit| disk(1000, unit)).collect();
            let text = format!(
                "<h xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">\
                 <device i:type=\"ParaVirtualSCSIController\"><key>1000</key><busNumber>0</busNumber></device>\
                 <device i:type=\"VirtualAHCIController\"><key>15000</key><busNumber>0</busNumber></device>{}{disks}</h>",
                disk(15000, 3)
            );
            let controllers = controllers(&xml::parse(&text).unwrap().children);
            Proxy { controllers, ..Proxy::default() }
        };
        let (one, most, full) = (devices(0..1), devices(0..15), devices(0..16));
        assert_eq!((one.free_slots(), one.free_slot()), (14, Some((1000, 1))));
        assert_eq!(devices(0..7).free_slot(), Some((1000, 8)), "7 is the controller's own");
        assert_eq!((most.free_slots(), most.free_slot()), (1, Some((1000, 15))));
        assert_eq!((full.free_slots(), full.free_slot()), (0, None));
    }

    #[test]
    fn another_file_with_the_uuid_of_a_disk_is_its_twin() {
        let disk =
            |uuid: &str, path: &str| VmDisk { uuid: uuid.into(), path: path.into(), ..VmDisk::default() };
        let proxy = Proxy {
            disks: vec![disk("6000C29a-0123", "[ds1] a/a.vmdk"), disk("x", "y")],
            ..Proxy::default()
        };
        let twin_of = |file: &str| {
            let twin = proxy.twin_of(&Wanted { file, uuid: "6000c29A0123", capacity_bytes: 0 });
            twin.map(|disk| disk.path.clone())
        };
        assert_eq!(twin_of("[ds1] b/b.vmdk"), Some("[ds1] a/a.vmdk".into()));
        assert_eq!(twin_of("[ds1] a/a.vmdk"), None);
        assert_eq!(serial_of("6000C29a-0123-89ab"), "6000c29a012389ab");
    }

    #[test]
    fn a_file_is_named_in_xml_as_it_is() {
        let text = existing_disk("[a&b] <x>/y.vmdk", 4096, (1000, 3));
        assert!(text.contains("<fileName>[a&amp;b] &lt;x&gt;/y.vmdk</fileName>"), "{text}");
        assert!(text.contains("<capacityInKB>4</capacityInKB>") && !text.contains("fileOperation"), "{text}");
    }
}
