use std::fs::File;
use std::path::{Path, PathBuf};

use drover_types::NicModel;

use crate::daemon::RbdPool;
use crate::error::{QemuError, QemuErrorKind};
use crate::folder::VmFolder;
use crate::ovmf::Ovmf;

/// A machine to build for QEMU/KVM. The chipset is always q35.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSpec {
    /// Folder of the machine's own files (definition, UEFI variables, sockets, logs).
    pub folder: VmFolder,
    /// Name at the target; must be unique there.
    pub name: String,
    /// BIOS UUID, which guests see; QEMU makes one up if there is none.
    pub uuid: Option<String>,
    /// One line for people.
    pub title: Option<String>,
    /// Where the machine came from: provider, id.
    pub description: Option<String>,
    /// Firmware.
    pub firmware: MachineFirmware,
    /// Virtual CPUs, 1 or more.
    pub cpus: u32,
    /// Cores per socket; ignored where it does not divide `cpus`.
    pub cores_per_socket: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// What the guest takes its hardware clock for.
    pub clock: Clock,
    /// Disks in boot order.
    pub disks: Vec<DiskSpec>,
    /// How disks are read and written.
    pub cache: Cache,
    /// NICs in slot order.
    pub nics: Vec<NicSpec>,
    /// What executes the guest's code.
    pub accelerator: Accelerator,
}

/// Firmware of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineFirmware {
    /// Legacy BIOS (SeaBIOS).
    Bios,
    /// UEFI (OVMF).
    Uefi {
        /// Only signed boot loaders run.
        secure_boot: bool,
        /// Firmware files. Without them libvirt chooses its own, and there is no QEMU command.
        files: Option<Ovmf>,
    },
}

/// What executes the guest's code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM where it works, else TCG.
    #[default]
    Auto,
    /// The CPU, through Linux KVM.
    Kvm,
    /// Translation in QEMU: works everywhere, 10 to 50 times slower.
    Tcg,
}

/// What a guest takes its hardware clock for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// UTC, as all but Windows do.
    #[default]
    Utc,
    /// Local time, as Windows does.
    LocalTime,
}

/// A disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// Image or block device, absolute. Of an image of Ceph its name, after that of its pool: `rbd:POOL/IMAGE`.
    pub path: PathBuf,
    /// The pool of Ceph that it is an image of; absent for files and devices.
    pub rbd: Option<RbdPool>,
    /// Its format; never probed.
    pub format: ImageFormat,
    /// Bus the guest finds it on.
    pub bus: DiskBus,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Serial number the guest sees: at most 20 of `A-Z a-z 0-9 _ . + -`, on the SCSI bus 36.
    pub serial: Option<String>,
}

/// How a machine's disks are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Past the host's page cache: what the guest flushed costs no memory and no second copy.
    #[default]
    Direct,
    /// Through the page cache, where the file system can do nothing else, or not for a file of this size: QEMU opens no raw
    /// image for direct I/O that ends within a sector of its storage.
    Buffered,
}

impl Cache {
    /// `Direct` if QEMU can open every file that is there so.
    pub fn for_files<'a>(files: impl IntoIterator<Item = &'a Path>) -> Cache {
        if files.into_iter().all(opens_directly) { Cache::Direct } else { Cache::Buffered }
    }
}

fn opens_directly(file: &Path) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match open(file, flags, Mode::empty()) {
        Ok(opened) => {
            let length = File::from(opened).metadata().map_or(0, |meta| meta.len());
            length.is_multiple_of(SECTOR_BYTES_MAX)
        }
        Err(error) => error != rustix::io::Errno::INVAL,
    }
}

/// The largest sectors of storage. QEMU finds out what a file's storage wants by reading its head, and takes these where that tells
/// nothing (a hole): a file that ends within one is not opened for direct I/O.
const SECTOR_BYTES_MAX: u64 = 4096;

/// Format of a disk image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// The disk's bytes and nothing else.
    Raw,
    /// QEMU's format.
    Qcow2,
}

impl ImageFormat {
    /// The name QEMU and libvirt use.
    pub fn as_str(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

impl DiskSpec {
    /// The serial number that a disk shows which the source knows by this UUID: its digits, as many as the bus has room for. A guest of
    /// vSphere that sees serial numbers sees all 32.
    pub fn serial_of(uuid: &str, bus: DiskBus) -> Option<String> {
        let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
        let chars = if bus == DiskBus::Scsi { SCSI_SERIAL_CHARS_MAX } else { SERIAL_CHARS_MAX };
        (digits.len() == UUID_DIGITS).then(|| digits[..chars.min(UUID_DIGITS)].to_ascii_lowercase())
    }

    pub(crate) fn is_device(&self) -> bool {
        self.path.starts_with("/dev")
    }

    /// Native AIO is for block devices alone: submitting a write to a hole of a file may block, and the guest with it.
    pub(crate) fn aio(&self, cache: Cache) -> &'static str {
        if self.is_device() && cache == Cache::Direct { "native" } else { "threads" }
    }
}

/// Bus of a disk at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskBus {
    /// virtio-blk: fastest; the guest needs its driver.
    Virtio,
    /// virtio-scsi: as fast for most, and takes hundreds of disks; the guest needs its driver.
    Scsi,
    /// AHCI: every guest has a driver.
    Sata,
}

/// A NIC of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicSpec {
    /// MAC address, kept from the source.
    pub mac: String,
    /// What it is plugged into.
    pub attach: NicAttach,
    /// Whether its link is up. QEMU itself is not told: it leaves one that is down unplugged.
    pub is_up: bool,
    /// Model the guest finds.
    pub model: NicModel,
}

/// What a NIC is plugged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicAttach {
    /// A bridge of the host.
    Bridge(String),
    /// A network of libvirt's own.
    Network {
        /// Its name.
        name: String,
        /// Its port group.
        portgroup: Option<String>,
        /// VLAN tags.
        vlans: Vec<u16>,
    },
    /// A bridge of Open vSwitch.
    Ovs {
        /// Its name.
        bridge: String,
        /// VLAN tags.
        vlans: Vec<u16>,
    },
    /// A device of the host, by macvtap.
    Direct(String),
    /// QEMU's own address translation: out, but not in.
    User,
    /// Nothing: the NIC is there with its link down.
    None,
}

impl MachineSpec {
    /// Sockets and cores per socket.
    pub fn topology(&self) -> (u32, u32) {
        match self.cores_per_socket {
            cores if cores > 0 && self.cpus.is_multiple_of(cores) => (self.cpus / cores, cores),
            _ => (self.cpus, 1),
        }
    }

    /// Checks that a machine can be built of this, so that building cannot go wrong half-way.
    ///
    /// # Errors
    /// [`QemuErrorKind::Invalid`] with the first thing that is wrong.
    pub fn check(&self) -> Result<(), QemuError> {
        self.check_sizes()?;
        self.check_path("folder", self.folder.path())?;
        self.require(is_line(&self.name, 255), "its name is empty, too long, or not one line")?;
        self.require(
            self.title.as_deref().is_none_or(|title| is_line(title, 1024)),
            "its title is not one line",
        )?;
        self.require(self.uuid.as_deref().is_none_or(is_uuid), "its UUID is none")?;
        self.disks.iter().try_for_each(|disk| self.check_disk(disk))?;
        self.nics.iter().try_for_each(|nic| self.check_nic(nic))?;
        match &self.firmware {
            MachineFirmware::Uefi { files: Some(files), .. } => {
                self.check_path("firmware", &files.code)?;
                self.check_path("UEFI variables", &files.vars_template)
            }
            _ => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), QemuError> {
        self.require((1..=CPUS_MAX).contains(&self.cpus), &format!("it has {} CPUs", self.cpus))?;
        self.require(self.memory_mib > 0, "it has no memory")?;
        self.require(self.disks.len() <= DISKS_MAX, &format!("it has more than {DISKS_MAX} disks"))?;
        let virtio = self.disks.iter().filter(|disk| disk.bus == DiskBus::Virtio).count();
        self.require(
            virtio <= VIRTIO_DISKS_MAX,
            &format!(
                "each virtio disk takes a PCI slot, and {virtio} are too many; put them on the scsi bus"
            ),
        )?;
        self.require(self.nics.len() <= NICS_MAX, &format!("it has more than {NICS_MAX} NICs"))
    }

    fn check_disk(&self, disk: &DiskSpec) -> Result<(), QemuError> {
        match disk.rbd {
            Some(_) => self.require(disk.path.file_name().is_some(), "a disk of it has no name")?,
            None => self.check_path("disk", &disk.path)?,
        }
        let serial = disk.serial.as_deref().unwrap_or("x");
        let chars_max = if disk.bus == DiskBus::Scsi { SCSI_SERIAL_CHARS_MAX } else { SERIAL_CHARS_MAX };
        let fits = (1..=chars_max).contains(&serial.len())
            && serial.chars().all(|c| c.is_ascii_alphanumeric() || "_.+-".contains(c));
        self.require(fits, &format!("disk serial '{serial}' is not 1 to {chars_max} of A-Z a-z 0-9 _ . + -"))
    }

    fn check_nic(&self, nic: &NicSpec) -> Result<(), QemuError> {
        self.require(is_unicast_mac(&nic.mac), &format!("'{}' is no MAC address for a NIC", nic.mac))?;
        let (NicAttach::Bridge(device) | NicAttach::Ovs { bridge: device, .. } | NicAttach::Direct(device)) =
            &nic.attach
        else {
            return Ok(());
        };
        let fits = (1..=BRIDGE_CHARS_MAX).contains(&device.len())
            && device.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        self.require(fits, &format!("'{device}' is no name for a bridge or device"))
    }

    fn check_path(&self, role: &str, path: &Path) -> Result<(), QemuError> {
        let text = path.to_str().unwrap_or_default();
        let fits = path.is_absolute() && !text.is_empty() && !text.chars().any(char::is_control);
        self.require(
            fits,
            &format!("{role} path {} is not absolute, or has bytes that XML cannot hold", path.display()),
        )
    }

    fn require(&self, holds: bool, wrong: &str) -> Result<(), QemuError> {
        if holds {
            return Ok(());
        }
        Err(QemuError::new(
            QemuErrorKind::Invalid,
            format!("machine {:?} cannot be built: {wrong}", self.name),
        ))
    }
}

fn is_line(text: &str, chars_max: usize) -> bool {
    !text.trim().is_empty() && text.chars().count() <= chars_max && !text.chars().any(char::is_control)
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.concat().chars().all(|c| c.is_ascii_hexdigit())
}

/// Multicast addresses (odd first byte) belong to no NIC, and libvirt refuses them.
fn is_unicast_mac(text: &str) -> bool {
    let bytes: Vec<Option<u8>> = text
        .split(':')
        .map(|group| {
            // A sign would pass for a digit.
            let is_hex = group.len() == 2 && group.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_hex { u8::from_str_radix(group, 16).ok() } else { None }
        })
        .collect();
    bytes.len() == 6 && bytes.iter().all(Option::is_some) && bytes[0].is_some_and(|first| first & 1 == 0)
}

/// More than any vSphere version gives a VM (768 in 8.0).
const CPUS_MAX: u32 = 1024;
/// vSphere's most: 4 SCSI controllers of 64 disks.
const DISKS_MAX: usize = 256;
/// Each needs a PCI bus of its own, of which there are 256; the NICs and controllers need theirs.
const VIRTIO_DISKS_MAX: usize = 64;
/// vSphere allows 10; the rest is head room.
const NICS_MAX: usize = 32;
/// virtio-blk's serial has room for 20 bytes.
const SERIAL_CHARS_MAX: usize = 20;
/// QEMU's SCSI disks show so many characters of theirs.
const SCSI_SERIAL_CHARS_MAX: usize = 36;
/// Hexadecimal digits of a UUID.
const UUID_DIGITS: usize = 32;
/// `IFNAMSIZ` of Linux less the closing zero.
const BRIDGE_CHARS_MAX: usize = 15;

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use super::*;

    /// A BIOS machine with one virtio disk and one NIC.
    pub(crate) fn machine(folder: &Path) -> MachineSpec {
        MachineSpec {
            folder: VmFolder::new(folder),
            name: "web01".into(),
            uuid: Some("4211a1b2-0000-1111-2222-333344445555".into()),
            title: None,
            description: Some("from vm-42 of vc1".into()),
            firmware: MachineFirmware::Bios,
            cpus: 2,
            cores_per_socket: 2,
            memory_mib: 512,
            clock: Clock::Utc,
            disks: vec![disk(&folder.join("disk0.raw"), DiskBus::Virtio)],
            cache: Cache::Direct,
            nics: vec![nic(NicAttach::User, NicModel::Virtio)],
            accelerator: Accelerator::Tcg,
        }
    }

    pub(crate) fn disk(path: &Path, bus: DiskBus) -> DiskSpec {
        DiskSpec {
            path: path.into(),
            rbd: None,
            format: ImageFormat::Raw,
            bus,
            capacity_bytes: 1 << 20,
            serial: None,
        }
    }

    pub(crate) fn nic(attach: NicAttach, model: NicModel) -> NicSpec {
        NicSpec { mac: "00:50:56:aa:bb:cc".into(), attach, is_up: true, model }
    }

    /// QEMU refuses such an image with `cache.direct=on` where its storage has sectors of 4 KiB, or its head is a hole:
    /// "Image size is not a multiple of request alignment".
    #[test]
    fn an_image_that_ends_within_a_sector_of_its_storage_goes_through_the_page_cache() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let image = folder.path().join("disk.raw");
        if !opens_directly_at_all(&image) {
            println!("skipped: no direct I/O here");
            return;
        }
        for (bytes, cache) in
            [(1 << 20, Cache::Direct), ((1 << 20) + 512, Cache::Buffered), ((1 << 20) + 100, Cache::Buffered)]
        {
            File::create(&image).unwrap().set_len(bytes).unwrap();
            assert_eq!(Cache::for_files([image.as_path()]), cache, "{bytes}");
            let direct = if cache == Cache::Direct { "none" } else { "writeback" };
            let opened = Command::new("qemu-io")
                .args(["-t", direct, "-f", "raw", image.to_str().unwrap(), "-c", "write 0 512"])
                .output();
            assert!(opened.is_ok_and(|opened| opened.status.success()) || !has_qemu_io(), "{bytes}");
        }
    }

    fn has_qemu_io() -> bool {
        Command::new("qemu-io").arg("--version").output().is_ok()
    }

    fn opens_directly_at_all(path: &Path) -> bool {
        File::create(path).unwrap();
        Cache::for_files([path]) == Cache::Direct
    }

    fn refusal(change: impl FnOnce(&mut MachineSpec)) -> String {
        let mut spec = machine(Path::new("/vm"));
        change(&mut spec);
        spec.check().unwrap_err().to_string()
    }

    #[test]
    fn an_ordinary_machine_passes() {
        machine(Path::new("/vm")).check().unwrap();
    }

    #[test]
    fn what_cannot_be_built_is_refused_in_words() {
        assert!(refusal(|spec| spec.name = "a\nb".into()).contains("name"));
        assert!(refusal(|spec| spec.uuid = Some("42".into())).contains("UUID"));
        assert!(refusal(|spec| spec.cpus = 0).contains("0 CPUs"));
        assert!(refusal(|spec| spec.memory_mib = 0).contains("no memory"));
        assert!(refusal(|spec| spec.disks[0].path = "disk.raw".into()).contains("not absolute"));
        assert!(refusal(|spec| spec.disks[0].serial = Some("x".repeat(21))).contains("serial"));
        assert!(refusal(|spec| spec.nics[0].mac = "01:00:5e:00:00:01".into()).contains("MAC"));
        assert!(refusal(|spec| spec.nics[0].mac = "00:50:56:aa:bb".into()).contains("MAC"));
        assert!(refusal(|spec| spec.nics[0].mac = "00:+5:56:aa:bb:cc".into()).contains("MAC"));
        assert!(refusal(|spec| spec.nics[0].attach = NicAttach::Bridge("br0,x=y".into())).contains("bridge"));
    }

    #[test]
    fn a_serial_number_has_the_digits_that_its_bus_has_room_for() {
        let uuid = "6000C293-0a1b-2c3d-4e5f-66778899AABB";
        assert_eq!(DiskSpec::serial_of(uuid, DiskBus::Virtio).unwrap(), "6000c2930a1b2c3d4e5f");
        assert_eq!(DiskSpec::serial_of(uuid, DiskBus::Scsi).unwrap(), "6000c2930a1b2c3d4e5f66778899aabb");
        assert_eq!(DiskSpec::serial_of("42", DiskBus::Scsi), None);
    }

    #[test]
    fn cores_that_do_not_divide_the_cpus_become_sockets() {
        let mut spec = machine(Path::new("/vm"));
        assert_eq!(spec.topology(), (1, 2));
        spec.cpus = 3;
        assert_eq!(spec.topology(), (3, 1));
    }
}
