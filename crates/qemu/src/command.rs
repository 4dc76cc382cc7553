use std::path::Path;

use drover_types::NicModel;

use crate::error::{QemuError, QemuErrorKind};
use crate::libvirt::SATA_PORTS;
use crate::spec::{
    Accelerator, Cache, Clock, DiskBus, DiskSpec, MachineFirmware, MachineSpec, NicAttach, NicSpec,
};

/// How a machine is run, beyond what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Where the first serial port goes.
    pub serial: Serial,
    /// Offers the screen on `vnc.sock` in the machine's folder.
    pub screen: bool,
    /// Further arguments for QEMU, at the end.
    pub extra: Vec<String>,
}

/// Where a serial port goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serial {
    /// `serial.log` in the machine's folder.
    #[default]
    File,
    /// The terminal QEMU was started on; Ctrl-A X ends the machine.
    Terminal,
}

/// The QEMU command that runs the machine: the program and its arguments.
///
/// It is to be started in the machine's folder, because sockets are named relative to it: the path of a
/// socket may have only 107 bytes. UEFI variables must have been copied there
/// ([`crate::write_definition`] does).
///
/// # Errors
/// [`QemuErrorKind::Missing`] if the firmware's files are not known.
pub fn qemu_command(spec: &MachineSpec, options: &RunOptions) -> Result<Vec<String>, QemuError> {
    let mut command = Arguments { list: vec![PROGRAM.into()], ports: 0 };
    command.machine(spec);
    command.firmware(spec)?;
    command.ports(spec);
    command.disks(spec);
    spec.nics.iter().enumerate().try_for_each(|(index, nic)| command.nic(index, nic))?;
    command.consoles(spec, options);
    command.list.extend(options.extra.iter().cloned());
    Ok(command.list)
}

struct Arguments {
    list: Vec<String>,
    /// PCI Express ports in use.
    ports: usize,
}

impl Arguments {
    fn add(&mut self, option: &str, value: impl Into<String>) {
        self.list.push(option.into());
        self.list.push(value.into());
    }

    fn machine(&mut self, spec: &MachineSpec) {
        self.add("-name", format!("guest={}", escaped(&spec.name)));
        if let Some(uuid) = &spec.uuid {
            self.add("-uuid", uuid);
        }
        self.list.extend(["-no-user-config".into(), "-nodefaults".into()]);
        accelerators(spec.accelerator).iter().for_each(|name| self.add("-accel", *name));
        // Under KVM `max` is the host's CPU, under TCG all that QEMU can translate.
        self.add("-cpu", "max");
        let (sockets, cores) = spec.topology();
        self.add("-smp", format!("cpus={},sockets={sockets},cores={cores},threads=1", spec.cpus));
        self.add("-m", format!("size={}M", spec.memory_mib));
        let base = if spec.clock == Clock::LocalTime { "localtime" } else { "utc" };
        self.add("-rtc", format!("base={base}"));
        // Without `strict` the firmware would go on to devices that were given no place in the order.
        self.add("-boot", "strict=on");
    }

    fn firmware(&mut self, spec: &MachineSpec) -> Result<(), QemuError> {
        let MachineFirmware::Uefi { secure_boot, files } = &spec.firmware else {
            self.add("-machine", "q35");
            return Ok(());
        };
        let files = files.as_ref().ok_or_else(|| {
            let what = format!("no UEFI firmware files are known for {}", spec.name);
            QemuError::new(QemuErrorKind::Missing("ovmf"), what)
        })?;
        self.add("-machine", if *secure_boot { "q35,smm=on" } else { "q35" });
        if *secure_boot {
            // Only code in system management mode may change the variables, else the guest could add keys.
            self.add("-global", "driver=cfi.pflash01,property=secure,value=on");
            // The secure build of OVMF does not support suspend to RAM.
            self.add("-global", "ICH9-LPC.disable_s3=1");
        }
        self.add("-drive", format!("if=pflash,unit=0,format=raw,readonly=on,file={}", path(&files.code)));
        self.add("-drive", format!("if=pflash,unit=1,format=raw,file={}", path(&spec.folder.nvram())));
        Ok(())
    }

    /// One PCI Express port for each device that wants one, eight to a slot, as libvirt does.
    fn ports(&mut self, spec: &MachineSpec) {
        let is_virtio = |disk: &&DiskSpec| disk.bus == DiskBus::Virtio;
        let has_scsi = spec.disks.iter().any(|disk| disk.bus == DiskBus::Scsi);
        let disks = spec.disks.iter().filter(is_virtio).count() + usize::from(has_scsi);
        let nics = spec.nics.iter().filter(|nic| nic.model != NicModel::E1000).count();
        for port in 0..disks + nics {
            let (slot, function) = (FIRST_PORT_SLOT + port / 8, port % 8);
            let multifunction = if function == 0 { ",multifunction=on" } else { "" };
            self.add(
                "-device",
                format!(
                    "pcie-root-port,id=port{port},chassis={},addr={slot:#x}.{function}{multifunction}",
                    port + 1
                ),
            );
        }
    }

    fn next_port(&mut self) -> String {
        self.ports += 1;
        format!("port{}", self.ports - 1)
    }

    fn disks(&mut self, spec: &MachineSpec) {
        if spec.disks.iter().any(|disk| disk.bus == DiskBus::Scsi) {
            let port = self.next_port();
            self.add("-device", format!("virtio-scsi-pci,id=scsi0,bus={port}"));
        }
        let (mut scsi, mut sata) = (0, 0);
        for (index, disk) in spec.disks.iter().enumerate() {
            self.disk(index, disk, spec.cache, (scsi, sata));
            scsi += usize::from(disk.bus == DiskBus::Scsi);
            sata += usize::from(disk.bus == DiskBus::Sata);
        }
    }

    fn disk(&mut self, index: usize, disk: &DiskSpec, cache: Cache, before: (usize, usize)) {
        let direct = if cache == Cache::Direct { "on" } else { "off" };
        let driver = if disk.is_device() { "host_device" } else { "file" };
        self.add(
            "-blockdev",
            format!(
                "driver={driver},node-name=file{index},filename={},cache.direct={direct},aio={},discard=unmap",
                path(&disk.path),
                disk.aio(cache),
            ),
        );
        self.add(
            "-blockdev",
            format!(
                "driver={},node-name=disk{index},file=file{index},cache.direct={direct},discard=unmap",
                disk.format.as_str()
            ),
        );
        let (scsi, sata) = before;
        let place = match disk.bus {
            DiskBus::Virtio => format!("virtio-blk-pci,bus={}", self.next_port()),
            DiskBus::Scsi => format!("scsi-hd,bus=scsi0.0,scsi-id={scsi},lun=0"),
            DiskBus::Sata => self.sata_place(sata),
        };
        let serial = disk.serial.as_ref().map(|serial| format!(",serial={serial}")).unwrap_or_default();
        let order = index + 1;
        self.add("-device", format!("{place},drive=disk{index},bootindex={order}{serial}"));
    }

    /// The first AHCI controller is part of q35; more of them are added as ports run out.
    fn sata_place(&mut self, sata: usize) -> String {
        let (controller, port) = (sata / SATA_PORTS, sata % SATA_PORTS);
        if controller > 0 && port == 0 {
            self.add("-device", format!("ich9-ahci,id=ahci{controller}"));
        }
        let name = if controller == 0 { "ide".to_string() } else { format!("ahci{controller}") };
        format!("ide-hd,bus={name}.{port}")
    }

    fn nic(&mut self, index: usize, nic: &NicSpec) -> Result<(), QemuError> {
        let attach = if nic.is_up { &nic.attach } else { &NicAttach::None };
        let backend = match attach {
            NicAttach::Network { .. } | NicAttach::Ovs { .. } | NicAttach::Direct(_) => {
                let what = format!("NIC {} is attached to what only libvirt attaches it to", nic.mac);
                return Err(QemuError::new(QemuErrorKind::Invalid, what));
            }
            NicAttach::Bridge(bridge) => format!("bridge,id=net{index},br={bridge}"),
            NicAttach::User => format!("user,id=net{index}"),
            // A hub with nothing else on it: the frames of the guest go nowhere. QEMU has no other way to say so.
            NicAttach::None => format!("hubport,id=net{index},hubid={index}"),
        };
        self.add("-netdev", backend);
        let (model, bus) = match nic.model {
            NicModel::Virtio => ("virtio-net-pci", Some(self.next_port())),
            NicModel::E1000e => ("e1000e", Some(self.next_port())),
            NicModel::Vmxnet3 => ("vmxnet3", Some(self.next_port())),
            // Plain PCI: it has no place behind an Express port.
            NicModel::E1000 => ("e1000", None),
        };
        let bus = bus.map(|port| format!(",bus={port}")).unwrap_or_default();
        // Nothing boots from the network, and the ROM is in a package that may be missing.
        self.add("-device", format!("{model},netdev=net{index},mac={}{bus},romfile=", nic.mac));
        Ok(())
    }

    fn consoles(&mut self, spec: &MachineSpec, options: &RunOptions) {
        self.add("-object", "rng-random,id=rng0,filename=/dev/urandom");
        self.add("-device", "virtio-rng-pci,rng=rng0");
        self.add("-device", "VGA");
        self.add("-display", "none");
        if options.screen {
            self.add("-vnc", "unix:vnc.sock");
        }
        match options.serial {
            Serial::File => self.add("-serial", format!("file:{}", spec.folder.serial_log().display())),
            Serial::Terminal => self.add("-serial", "mon:stdio"),
        }
        self.add("-chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off");
        self.add("-mon", "chardev=qmp,mode=control");
        self.add("-pidfile", spec.folder.pid_file().to_string_lossy());
    }
}

fn accelerators(accelerator: Accelerator) -> &'static [&'static str] {
    match accelerator {
        Accelerator::Auto => &["kvm", "tcg"],
        Accelerator::Kvm => &["kvm"],
        Accelerator::Tcg => &["tcg"],
    }
}

fn path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// QEMU reads a doubled comma as one that separates nothing.
fn escaped(text: &str) -> String {
    text.replace(',', ",,")
}

const PROGRAM: &str = "qemu-system-x86_64";
/// Slot 0 is the host bridge, slot 1 the screen.
const FIRST_PORT_SLOT: usize = 2;
